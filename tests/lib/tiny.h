// SPDX-License-Identifier: Apache-2.0
//
// Stores of a few KB on a simulated disk, and a model of what they hold: for the tests of formats and of damage. Values
// follow from a rule, so that a listing of keys, numbers and lengths says everything; tests/py/remixdb_format.py has
// the same rule. The store's id is fixed and nothing depends on the time, so that the same calls make the same files.
// One thread. A failing call fails the test unless the function returns a status.
#ifndef TESTS_TINY_H
#define TESTS_TINY_H

#include "tests/lib/simdisk.h"
#include "xdb.h"

#define TINY_DIR "/tiny"
#define TINY_STORE_ID 0x1122334455667788ull
#define TINY_RECS 512u
#define TINY_FILE_MAX (1u << 20)
#define TINY_SPACES 4u

struct tiny_rec {
  uint8_t *key;
  uint32_t klen;
  uint32_t number;  // the write's, from 1 on
  uint32_t vlen;
  bool noise;      // the value is
  bool there;      // else deleted
  uint32_t space;  // index in tiny.spaces + 1; 0: the unnamed one
};

// A key space of the model. Without a name: it was dropped.
struct tiny_space {
  char name[16];
  struct xdb_space *handle;  // when the store is open, with one ref
  struct xdb_ref *ref;
};

struct tiny {
  struct simdisk *disk;
  struct remixdb_opts opts;
  uint32_t table_pages;             // at which a table is full; 0: the usual
  struct tiny_rec recs[TINY_RECS];  // by space and key
  uint32_t nr, number;
  struct tiny_space spaces[TINY_SPACES];
  uint32_t nr_spaces;
  uint32_t in;      // the current space, as in tiny_rec
  uint32_t opened;  // times; the dice of expect.h
  struct xdb *x;    // when open, with one ref
  struct xdb_ref *ref;
};

// The rule: text repeats "key/number;" (at most 16 bytes of the key); noise is the output of rng_next, little-endian.
// buf has room for r->vlen bytes.
void tiny_value(const struct tiny_rec *r, uint8_t *buf);
// Changes the model alone, as the next write to the current space would. The record stays valid until the next change.
struct tiny_rec *tiny_model(struct tiny *t, struct kref key, uint32_t vlen, bool noise, bool there);
// A copy of the model without its store, which has no named space: for comparisons after t is changed.
struct tiny *tiny_keep(const struct tiny *t);

// An empty disk with a new store. The store's log begins with generation 1. tiny_destroy frees it, and copies of
// tiny_keep. Random numbers follow from nothing but the calls. tiny_create_as gives the store another id.
struct tiny *tiny_create_as(uint64_t id, bool ckeys, bool tags, enum remixdb_compression compression);
struct tiny *tiny_create(bool ckeys, bool tags, enum remixdb_compression compression);
void tiny_destroy(struct tiny *t);
enum remixdb_status tiny_try_open(struct tiny *t, bool read_only);
void tiny_open(struct tiny *t);
// Keeps the log. A store that is not open: REMIXDB_OK.
enum remixdb_status tiny_close(struct tiny *t);
// Later writes go to this key space, which is made if it is not there; NULL: to the unnamed one.
void tiny_use(struct tiny *t, const char *space);
// Drops the current space, and goes back to the unnamed one.
void tiny_drop_space(struct tiny *t);
struct xdb_ref *tiny_ref(const struct tiny *t);  // a ref of the current space
// Write to the current space of the store, and to the model.
void tiny_put(struct tiny *t, struct kref key, uint32_t vlen, bool noise);
void tiny_del(struct tiny *t, struct kref key);

// Errors that a look at the whole store found besides right answers.
struct tiny_errors {
  uint32_t nr;
  enum remixdb_status status;  // the first one's, with its message
  char msg[ERR_MSG_MAX];
};

// Reads everything by gets of both kinds, forwards and backwards: ref's keys are those without a space. False: an
// answer was wrong (an error is none).
bool tiny_look(const struct tiny *t, struct xdb_ref *ref, struct tiny_errors *e);
// The store on the disk has the content of the model.
void tiny_check(struct tiny *t, bool read_only);

struct tiny_files {
  char names[32][32];
  uint32_t nr;
};

// Adds the name to the struct tiny_files at arg: for paths_list.
bool tiny_name(void *arg, const char *name);
// The store's files, in order.
void tiny_list(const struct tiny *t, struct tiny_files *out);
// Valid until the next call.
const char *tiny_path(const char *name);
// The file's bytes, for free().
uint8_t *tiny_read_file(const struct tiny *t, const char *name, size_t *len_out);
// Makes the file, or replaces it.
void tiny_write_file(struct tiny *t, const char *name, const void *p, size_t len);
// Removes segments of the log that are not needed: in a store as small as these they are most of it.
void tiny_drop_pool(struct tiny *t);
#endif
