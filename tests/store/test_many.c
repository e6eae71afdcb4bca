// SPDX-License-Identifier: Apache-2.0
//
// A store of very many tables and few descriptors: open files are counted where they are opened and closed.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/thread.h"
#include "tests/lib/check.h"

#include "store/whole.h"
#include "xdb.h"
#include "store/flush.h"
#include "admin/stats.h"
#include "tests/lib/paths.h"
#include "tests/lib/temp.h"

#define TABLES 2000u
#define OPEN_MAX 64u
#define TABLE_PAGES 4u
#define VALUE 100u
#define FD_MAX 65536

// ---- an env that counts descriptors of tables

static struct env_ops ops;
static struct env env = {.ops = &ops};
static _Atomic bool is_table[FD_MAX];
static _Atomic int open_tables, open_most;

static int counting_open(struct env *e, int at, const char *path, unsigned flags) {
  const int fd = env_posix()->ops->open(e, at, path, flags);
  const size_t len = strlen(path);
  if (fd < 0 || fd >= FD_MAX || len < 4 || strcmp(path + len - 4, ".sst") != 0) return fd;
  atomic_store(&is_table[fd], true);
  const int nr = atomic_fetch_add(&open_tables, 1) + 1;
  int most = atomic_load(&open_most);
  while (nr > most && !atomic_compare_exchange_weak(&open_most, &most, nr)) {}
  return fd;
}

static int counting_close(struct env *e, int fd) {
  // before it closes: the number may be another file's at once
  if (fd >= 0 && fd < FD_MAX && atomic_exchange(&is_table[fd], false)) atomic_fetch_sub(&open_tables, 1);
  return env_posix()->ops->close(e, fd);
}

// Nothing is lost here: what the disk does is not waited for.
static int no_sync(struct env *e, int fd) {
  (void)e, (void)fd;
  return 0;
}

static char dir[TEMP_DIR];

static int setup(void **state) {
  (void)state;
  ops = *env_posix()->ops;
  ops.open = counting_open;
  ops.close = counting_close;
  ops.sync_data = no_sync;
  ops.sync_all = no_sync;
  return temp_make(dir, "many") ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  return remove_tree(dir);
}

static struct xdb *open_store(uint32_t max_open, int workers) {
  struct remixdb_opts o;
  struct xdb *x;
  remixdb_opts_init(&o, sizeof(o));
  o.cache_mb = 4;
  o.memtable_mb = 4;
  o.workers = workers;
  o.worker_cores = "none";
  o.max_open_files = max_open;
  OK(xdb_open(dir, &o, &env, &x));
  x->compact.build.max_pages = TABLE_PAGES;
  return x;
}

static uint32_t count_tables(struct xdb *x) {
  uint32_t nr = 0;
  const struct version *v = atomic_load(&x->super)->version;
  for (uint32_t i = 0; i < v->nr_parts; i++) nr += v->parts[i]->remix ? v->parts[i]->remix->nr_runs : 0;
  return nr;
}

static struct kref key_of(uint32_t i, char *buf) { return kref(buf, (uint32_t)sprintf(buf, "key%09u", i)); }

static void value_of(uint32_t i, uint32_t version, uint8_t *buf) {
  uint64_t seed = (uint64_t)version << 32 | i;
  for (uint32_t at = 0; at < VALUE; at += 4) store32le(buf + at, (uint32_t)rng_next(&seed));
}

static void put(struct xdb_ref *r, uint32_t i, uint32_t version) {
  char buf[32];
  uint8_t val[VALUE];
  value_of(i, version, val);
  OK(xdb_put(r, KV_REC(key_of(i, buf), val, VALUE, false)));
}

static uint32_t nr_keys;

static uint32_t version_of(uint32_t i, uint32_t every) { return every && i % every == 0; }

static void expect_all(struct xdb_ref *r, uint32_t every) {
  struct xdb_iter *it;
  uint8_t val[VALUE];
  char buf[32];
  uint32_t i = 0;
  OK(xdb_iter_create(r, &it));
  for (OK(xdb_iter_seek(it, kref(NULL, 0))); xdb_iter_valid(it); OK(xdb_iter_skip(it, 1)), i++) {
    struct kv_rec rec;
    OK(xdb_iter_record(it, &rec));
    value_of(i, version_of(i, every), val);
    assert_true(kv_eq(kref(rec.key, rec.klen), key_of(i, buf)));
    assert_int_equal(rec.vlen, VALUE);
    assert_memory_equal(rec.val, val, VALUE);
  }
  assert_int_equal(i, nr_keys);
  xdb_iter_destroy(it);
}

struct getter {
  pthread_t thread;
  struct xdb *x;
  uint64_t seed;
  uint32_t wrong;
  _Atomic bool *stop;
};

// Nothing is asserted in a thread.
static void *get_main(void *arg) {
  struct getter *g = arg;
  struct xdb_ref *r;
  if (xdb_ref(g->x, &r) != REMIXDB_OK) {
    g->wrong++;
    return NULL;
  }
  for (uint32_t n = 0; n < 500 || !atomic_load(g->stop); n++) {
    if (n % 8 == 0) time_sleep_ns(1000000);  // others are to get on as well
    const uint32_t i = (uint32_t)(rng_next(&g->seed) % nr_keys);
    char buf[32];
    uint8_t val[VALUE], want[VALUE];
    uint32_t len = 0;
    bool good = xdb_get(r, key_of(i, buf), val, VALUE, &len) == REMIXDB_OK && len == VALUE;
    value_of(i, 0, want);
    if (good && memcmp(val, want, VALUE) != 0) {
      value_of(i, 1, want);
      good = memcmp(val, want, VALUE) == 0;
    }
    g->wrong += !good;
  }
  xdb_unref(r);
  return NULL;
}

static void expect_few_open(struct xdb *x, uint32_t max_open) {
  char *json;
  OK(xdb_stats(x, &json));
  const char *p = strstr(json, "\"open_files\":");
  assert_non_null(p);
  assert_true(strtoul(p + strlen("\"open_files\":"), NULL, 10) <= max_open);
  remixdb_free(json);
  if (atomic_load(&open_most) > (int)max_open)
    fail_msg("%d tables were open at a time, %u may be", atomic_load(&open_most), max_open);
}

static void test_many(void **state) {
  (void)state;
  struct xdb_ref *r;
  struct xdb *x = open_store(OPEN_MAX, 1);
  OK(xdb_ref(x, &r));
  while (count_tables(x) < TABLES) {
    for (uint32_t n = 0; n < 20000; n++) put(r, nr_keys++, 0);
    OK(xdb_flush(x));
  }
  expect_few_open(x, OPEN_MAX);
  xdb_unref(r);
  OK(xdb_close(x));
  assert_int_equal(atomic_load(&open_tables), 0);

  // opening and a scan
  atomic_store(&open_most, 0);
  const uint64_t began = time_ns();
  x = open_store(OPEN_MAX, 2);
  printf("%u tables opened in %u ms\n", count_tables(x), (unsigned)((time_ns() - began) / 1000000));
  assert_true(count_tables(x) >= TABLES);
  OK(xdb_ref(x, &r));
  expect_all(r, 0);
  assert_true(atomic_load(&open_most) > (int)OPEN_MAX / 2);  // the allowed descriptors are used
  expect_few_open(x, OPEN_MAX);

  // gets by several threads while partitions are compacted by several others
  _Atomic bool stop;
  atomic_init(&stop, false);
  struct getter g[4];
  for (uint32_t i = 0; i < 4; i++) {
    g[i] = (struct getter){.x = x, .seed = i, .stop = &stop};
    OK(thread_start(&g[i].thread, get_main, &g[i], "get"));
  }
  for (uint32_t i = 0; i < nr_keys; i += 50) put(r, i, 1);
  OK(xdb_flush(x));
  x->compact.build.max_pages = 100 * TABLE_PAGES;
  OK(xdb_compact(x));
  atomic_store(&stop, true);
  for (uint32_t i = 0; i < 4; i++) {
    (void)pthread_join(g[i].thread, NULL);
    assert_int_equal(g[i].wrong, 0);
  }
  assert_true(count_tables(x) <= TABLES / 40);
  expect_all(r, 50);
  expect_few_open(x, OPEN_MAX);
  xdb_unref(r);
  OK(xdb_close(x));
  assert_int_equal(atomic_load(&open_tables), 0);
}

// The fewest descriptors there can be, and more threads than descriptors.
static void test_few(void **state) {
  (void)state;
  struct xdb_ref *r;
  atomic_store(&open_most, 0);
  struct xdb *x = open_store(16, 10);
  OK(xdb_ref(x, &r));
  _Atomic bool stop;
  atomic_init(&stop, false);
  struct getter g[20];
  for (uint32_t i = 0; i < 20; i++) {
    g[i] = (struct getter){.x = x, .seed = i, .stop = &stop};
    OK(thread_start(&g[i].thread, get_main, &g[i], "get"));
  }
  for (uint32_t i = 0; i < nr_keys; i += 50) put(r, i, 1);
  OK(xdb_compact(x));
  atomic_store(&stop, true);
  for (uint32_t i = 0; i < 20; i++) {
    (void)pthread_join(g[i].thread, NULL);
    assert_int_equal(g[i].wrong, 0);
  }
  expect_few_open(x, 16);
  xdb_unref(r);
  OK(xdb_close(x));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_many),
      cmocka_unit_test(test_few),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
