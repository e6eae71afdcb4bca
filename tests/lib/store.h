// SPDX-License-Identifier: Apache-2.0
//
// Fixture of the tests of the whole store: a directory that comes and goes, checks that print the seed, small options,
// figures. Each program includes it in one file.
#ifndef STORE_H
#define STORE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/slow.h"
#include "xdb.h"
#include "store/flush.h"

static char dir[512];  // of the test

#define SAY "TEST_SEED=%llu line %d: %s (%s: %s)"
#define SAID(cond) (unsigned long long)check_seed, __LINE__, cond, remixdb_strerror(remixdb_errcode()), remixdb_errmsg()
// For threads: cmocka's failures may be raised in the thread of the test only.
#define THREAD_CHECK(cond)                    \
  do {                                        \
    if (!(cond)) {                            \
      fprintf(stderr, SAY "\n", SAID(#cond)); \
      abort();                                \
    }                                         \
  } while (0)

// TEST_SEED in the environment, or what is given.
static inline uint64_t seed_from(uint64_t standard) {
  const char *const s = getenv("TEST_SEED");
  return s && *s ? strtoull(s, NULL, 0) : standard;
}

static inline uint64_t below(uint64_t *rng, uint64_t n) { return rng_next(rng) % n; }
static inline bool chance(uint64_t *rng, uint32_t percent) { return rng_next(rng) % 100 < percent; }

static inline int store_remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
  (void)st, (void)kind, (void)ftw;
  return remove(path);
}

static inline int setup(void **state) {
  (void)state;
  const char *const tmp = getenv("TMPDIR");
  (void)snprintf(dir, sizeof(dir), "%.200s/remixdb-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");
  return mkdtemp(dir) ? 0 : -1;
}

static inline int teardown(void **state) {
  (void)state;
  return nftw(dir, store_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

// An empty directory in place of the one that was used.
static inline void setup_again(void) { CHECK(teardown(NULL) == 0 && setup(NULL) == 0); }

static inline struct remixdb_opts small_opts(int workers) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.cache_mb = 1;
  o.memtable_mb = 1;
  o.workers = workers;
  return o;
}

static inline int quick_sync(struct env *e, int fd) {
  (void)e, (void)fd;
  return 0;
}

// The real files, without waiting for the disk.
static inline struct env *quick_env(void) {
  static struct env_ops ops;
  static struct env env;
  ops = *env_posix()->ops;
  ops.sync_data = ops.sync_all = quick_sync;
  env = (struct env){.ops = &ops};
  return &env;
}

// Opens the store in the directory, where no sync is waited for.
static inline struct xdb *quick_open(const struct remixdb_opts *o) {
  struct xdb *x = NULL;
  OK(xdb_open(dir, o, quick_env(), &x));
  return x;
}

// Makes memtables and tables smaller than the options can, so that little data makes many rounds. Before anything is
// written.
static inline void shrink(struct xdb *x, size_t memtable, uint32_t table_pages) {
  OK(xdb_wait_idle(x));          // which is not to be at work while its orders change
  pthread_mutex_lock(&x->lock);  // a worker may be looking whether there is more to do
  x->memtable_limit = memtable;
  pthread_mutex_unlock(&x->lock);
  x->compact.memtable_size = memtable;
  x->compact.build.max_pages = table_pages;
}

// A figure of remixdb_stats; the names used here are all different.
static inline uint64_t stat_of(struct xdb *x, const char *name) {
  char *const json = remixdb_stats(x);
  CHECK(json);
  char word[64];
  (void)snprintf(word, sizeof(word), "\"%s\":", name);
  const char *const at = strstr(json, word);
  if (!at) fail_msg("no figure %s in %s", name, json);
  const uint64_t n = strtoull(at + strlen(word), NULL, 10);
  remixdb_free(json);
  return n;
}
#endif
