// SPDX-License-Identifier: Apache-2.0
//
// A model of a store that remembers: a fixed set of ordered keys, and all values of each key with their times. A ref, a
// snapshot or an iterator must show the model at one time. A number determines a value, so the tests check every byte
// that they read. A wrong answer fails the test. One thread.
#ifndef TESTS_PAST_H
#define TESTS_PAST_H

#include "tests/lib/store.h"

struct past_ver {
  uint64_t time;
  uint32_t id;  // the value's; 0: not there
  uint32_t len;
  uint64_t expires;  // ms; 0: never
  uint64_t version;  // as the store told it; 0: not asked yet
  bool expired;      // not there, because the version before has expired
};

struct past_key {
  uint8_t *ptr;
  uint32_t len;
  uint32_t nr, cap;
  struct past_ver *vers;  // oldest first
};

#define PAST_VLEN_MAX (8u << 20)  // bytes of a value at most

struct past {
  struct past_key *keys;
  uint32_t nr;
  uint64_t time;  // the last write's; a batch is one
  uint32_t next_id;
  uint64_t rng;
  uint32_t vlen_max;
  uint64_t wall;        // the wall clock, which past_clock moves; 0: no record expires
  bool unversioned;     // the ref's records have no versions
  uint8_t *buf, *want;  // PAST_VLEN_MAX + 1 bytes each
};

enum key_kind { KEYS_FEW, KEYS_TEXT, KEYS_PREFIX, KEYS_MIXED, KEY_KINDS };

// About nr keys from check_seed, none of them there; the empty one is always among them.
void past_init(struct past *m, enum key_kind kind, uint32_t nr, uint32_t vlen_max);
void past_fini(struct past *m);

// ---- content

// The version of key i at that time.
struct past_ver past_at(const struct past *m, uint32_t i, uint64_t time);
bool past_has(const struct past *m, int64_t i, uint64_t time);
// Gives key i a version at the model's time; id 0 deletes it.
void past_set(struct past *m, uint32_t i, uint32_t id, uint32_t len);
// The same for a record that expires.
void past_set_expiring(struct past *m, uint32_t i, uint32_t id, uint32_t len, uint64_t expires);
// Moves the clock: what expires goes at a time of its own.
void past_clock(struct past *m, uint64_t wall);
// A time at which a record that is put now may expire; mostly 0.
uint64_t past_expires(struct past *m);
// Forgets the versions of the newest records: the store has written them once more.
void past_written_again(struct past *m);
// Frees the versions that no time from `oldest` on shows.
void past_forget(struct past *m, uint64_t oldest);
// The first key that is not smaller.
uint32_t past_rank(const struct past *m, const uint8_t *ptr, uint32_t len);

// ---- values: half of them can be compressed

void past_value(uint32_t id, uint32_t len, uint8_t *buf);
bool past_value_is(struct past *m, struct past_ver v, const void *val, uint32_t len);
// A length for a value of key i: mostly small, some of several blocks, a few of the largest there can be.
uint32_t past_vlen(struct past *m, uint32_t i);

// ---- writing: to the store, and to the model if the store accepts it. False: refused, and nothing has changed.

bool past_put(struct past *m, struct xdb_ref *ref, uint32_t i);
bool past_del(struct past *m, struct xdb_ref *ref, uint32_t i);

// Puts or deletes by a version: the right one, or another.
void past_compare(struct past *m, struct xdb_ref *ref, uint32_t i);

// ---- reading: the ref must show the model at that time

// One key, by a get of any kind.
void past_check_get(struct past *m, struct xdb_ref *ref, uint32_t i, uint64_t time);
// A key that is most likely not there.
void past_check_near(struct past *m, struct xdb_ref *ref, uint64_t time);
// Several keys together, some of them twice, some beside those of the model.
void past_check_many(struct past *m, struct xdb_ref *ref, uint64_t time);
// The same with keys and values in one buffer each.
void past_check_packed(struct past *m, struct xdb_ref *ref, uint64_t time);
// All of it, by gets of both kinds and in one direction.
void past_check_all(struct past *m, struct xdb_ref *ref, uint64_t time);

// ---- iterators: every call moves and then compares

struct past_cursor {  // all zeros: no iterator; the first seek makes it, without bounds
  struct xdb_iter *it;
  uint64_t time;  // its last seek's; fixed: all seeks'
  int64_t at;     // the key it stands on; -1 or nr: none
  bool bounded, fixed, keys_only;
  int64_t low, high;  // if bounded: it stands on keys [low, high) only
};

enum seek_kind { SEEK_TO_FIRST, SEEK_AT_LEAST, SEEK_AT_MOST, SEEK_TO_LAST, SEEK_KINDS };

// Makes the iterator with options at random: bounds and a prefix at keys or beside them, a moment that stays, keys
// only.
void past_cursor_make(struct past *m, struct past_cursor *c, struct xdb_ref *ref, uint64_t time);
bool past_cursor_valid(const struct past *m, const struct past_cursor *c);
void past_cursor_check(struct past *m, struct past_cursor *c);
// time: the moment that the ref shows.
void past_cursor_seek(struct past *m, struct past_cursor *c, struct xdb_ref *ref, uint64_t time, enum seek_kind how);
void past_cursor_skip(struct past *m, struct past_cursor *c, uint32_t nr);
void past_cursor_prev(struct past *m, struct past_cursor *c);
// Reads some pages in one direction, and then unreads some of the last page's records.
void past_cursor_pages(struct past *m, struct past_cursor *c);
// From its position to the end, or to the beginning.
void past_cursor_rest(struct past *m, struct past_cursor *c, bool back);
void past_cursor_drop(struct past_cursor *c);

// ---- asynchronous gets: each shows the model as it was when it began

#define PAST_GETS 24u

struct past_gets {  // all zeros: none; the first begin makes the object
  struct xdb_gets *gets;
  uint32_t nr;  // under way
  struct past_get {
    bool busy;
    uint32_t i, cap;
    uint64_t time;
    uint8_t *buf;  // NULL: the length only
  } slots[PAST_GETS];
};

void past_gets_drop(struct past_gets *g);
// Begins one. A full object refuses it.
void past_gets_begin(struct past *m, struct past_gets *g, struct xdb_ref *ref, uint32_t i, uint64_t time);
// Takes some results, or with `all` every one.
void past_gets_take(struct past *m, struct past_gets *g, bool all);
// The oldest moment that a get under way shows, or `time`.
uint64_t past_gets_oldest(const struct past_gets *g, uint64_t time);
#endif
