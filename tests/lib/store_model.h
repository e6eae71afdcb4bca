// SPDX-License-Identifier: Apache-2.0
//
// A store in `dir` (store.h) and its model, for one thread: a fixed set of keys in order, and the version of each that
// is there. A value follows from key and version. Iterators stay open and must show the model as it was at their seek.
// tests/lib/past.h has a model that keeps old versions, for snapshots.
#ifndef TESTS_STORE_MODEL_H
#define TESTS_STORE_MODEL_H

#include "tests/lib/check.h"
#include "tests/lib/store.h"

struct key {
  uint8_t *ptr;
  uint32_t len;
};

struct now {
  uint32_t ver;  // 0: not there
  uint32_t len;
};

struct cursor {  // an iterator with its model
  struct xdb_iter *it;
  struct now *seen;  // the model at its seek
  uint32_t at;       // nr: past the end
};

#define CURSORS 4u

struct model {
  struct key *keys;
  uint32_t nr;
  struct now *now;
  uint32_t next_ver;
  uint64_t rng;
  struct remixdb_opts opts;
  struct xdb *xdb;
  struct xdb_ref *ref;
  struct cursor cursors[CURSORS];
  uint32_t val_min, val_max;
  uint8_t *buf, *want;  // REMIXDB_KV_MAX bytes each
};

int key_cmp(const void *a, const void *b);

// Keys from check_seed, none of them there. The values have up to val_max bytes.
void model_init(struct model *m, uint32_t nr, uint32_t val_max);
void model_fini(struct model *m);
// Open and close the store with m->opts.
void model_open(struct model *m);
void model_close(struct model *m);

void value_fill(uint8_t *p, uint32_t i, struct now n);
bool value_good(struct model *m, uint32_t i, struct now n, const uint8_t *val, uint32_t len);
uint32_t random_len(struct model *m, uint32_t klen);

// False: refused for want of space; nothing has changed then.
bool model_put(struct model *m, uint32_t i);
bool model_del(struct model *m, uint32_t i);
// Compares one key, by a get of any kind.
void model_get(struct model *m, uint32_t i);
// The first key of the model that is not smaller.
uint32_t model_find(const struct model *m, struct key k);
// A key of the model, changed a little (in m->buf, with some room): most likely none of the store's.
struct key model_near(struct model *m);
// Compare everything, by iterator and in the second one by get, too.
void model_scan(struct model *m);
void model_check(struct model *m);

// A cursor of zeros has no iterator; the first seek makes it.
void cursor_seek(struct model *m, struct cursor *c, struct key k);
void cursor_skip(struct model *m, struct cursor *c, uint32_t nr);
// From where it stands to the end.
void cursor_rest(struct model *m, struct cursor *c);
void cursor_check(struct model *m, struct cursor *c, bool values);
void cursor_drop(struct cursor *c);
#endif
