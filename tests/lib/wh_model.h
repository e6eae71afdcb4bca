// SPDX-License-Identifier: Apache-2.0
//
// An index in memory and its model: a sorted array of keys with the versions that each got. Everything that the index
// can be asked is compared with the model. Keys of all shapes, one at a time or many together. In the thread of the
// test, because everything here checks.
#ifndef TESTS_WH_MODEL_H
#define TESTS_WH_MODEL_H

#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wh.h"
#include "wh/state.h"

#define CHUNK 65536u
#define KEY_CAP 512u

// wh_check finds nothing wrong.
void check_index(const struct wh *wh, int line);
#define CHECK_INDEX(wh) check_index(wh, __LINE__)

static inline uint64_t key_hash(struct kref key) { return hash64(key.ptr, key.len); }

// ---- the model

struct wh_model_ver {
  uint64_t seq;
  uint32_t vlen;
  bool tomb;
};

struct wh_model_key {
  uint8_t *key;
  uint32_t len;
  uint32_t nr, cap;
  struct wh_model_ver *ver;  // oldest first
};

struct wh_model {
  struct epoch epoch, cursors;
  struct epoch_slot slot, stay;  // the two slots; outside, except where a test enters
  struct wh *wh;
  struct wh_model_key *keys;  // sorted
  uint32_t nr, cap;
  uint64_t seq;  // the last commit's
};

// Dead leaves of the index serve again as soon as `cursors` allows.
void wh_model_init(struct wh_model *m);
void wh_model_fini(struct wh_model *m);

static inline struct kref wh_model_kref(const struct wh_model_key *k) { return kref(k->key, k->len); }
// The first key that is not smaller.
uint32_t wh_model_rank(const struct wh_model *m, struct kref key);
// A version was committed.
void wh_model_add(struct wh_model *m, struct kref key, uint64_t seq, uint32_t vlen, bool tomb);
// The version of the key that is seen at the moment. NULL: none.
const struct wh_model_ver *wh_model_seen(const struct wh_model_key *k, uint64_t moment);
// The same for any key.
const struct wh_model_ver *wh_model_get(const struct wh_model *m, struct kref key, uint64_t moment);
bool ver_matches(const struct wh_ver *v, const struct wh_model_ver *want);

// Links a version and commits it in both, or takes it back.
enum remixdb_status wh_model_put(struct wh_model *m, struct kref key, uint32_t vlen, bool tomb, bool take_back);
// Puts a committed version of the length, which succeeds.
void wh_model_have(struct wh_model *m, struct kref key, uint32_t vlen);
// The leaf of the key.
struct wh_leaf *wh_model_leaf(struct wh_model *m, struct kref key);

// A cursor at its moment, at the first key.
void wh_model_cursor(struct wh_model *m, struct wh_cursor *c, uint64_t moment);
// The cursor is at the model's key `at` (< 0 or nr: nowhere), or at the next in direction dir (1, -1) that is seen at
// the moment; then it goes so many steps, and turns around once in so many.
void wh_model_walk(struct wh_model *m, struct wh_cursor *c, int64_t at, int64_t dir, uint32_t steps, uint32_t turn,
                   uint64_t *rng);
// Compares everything that can be asked at the moment.
void wh_model_verify(struct wh_model *m, uint64_t moment, uint64_t *rng, uint32_t seeks);

// ---- keys of all shapes

enum shape { BINARY, UNARY, LONG_PREFIX, RANDOM16, ASCENDING, DESCENDING, STREAMS, SHAPES };

// The nth key of a shape, in buf (KEY_CAP bytes). Some shapes repeat keys.
struct kref shape_key(enum shape shape, uint64_t n, uint64_t *rng, uint8_t *buf);
// The number in so many decimal digits, in buf.
struct kref digits_key(char *buf, int digits, uint32_t number);
// A key that shares its first bytes with up to a leaf's worth of others, and ends in zeros.
struct kref tied_key(uint64_t *rng, uint8_t *buf);

int kref_order(const void *a, const void *b);

// ---- many keys as one

#define MANY_MAX 300u

struct many {
  struct kref keys[MANY_MAX];
  struct wh_link links[MANY_MAX];
  uint32_t vlen[MANY_MAX];
  bool tomb[MANY_MAX];
  uint32_t nr;
  struct kref from, to;  // in the index all keys from the one key to the other are deleted, but for these keys; to.ptr
                         // NULL: up to the end; from.ptr NULL: nothing is deleted
  struct wh_link *deleted;
  uint32_t nr_deleted, cap_deleted;
  uint8_t bytes[MANY_MAX + 2][KEY_CAP];
};

// Different keys in order, some of them the model's; half of the times a range, too. Before the first call b is zeroed.
void many_make(struct many *b, const struct wh_model *m, enum shape shape, uint32_t nr, uint64_t *rng);
// Links all, and commits them or takes them back. Takes back what was linked when one key cannot be.
enum remixdb_status many_put(struct wh_model *m, struct many *b, bool take_back);
void many_free(struct many *b);
#endif
