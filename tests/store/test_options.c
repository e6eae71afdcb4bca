// SPDX-License-Identifier: Apache-2.0
//
// Options of opening: defaults and sizes of the struct, each option's effect, and values that are refused.
#include "tests/lib/check.h"

#include <limits.h>

#include "base/cgroup.h"
#include "store/state.h"
#include "tests/lib/sample.h"
#include "tests/lib/slow.h"

static void test_opts_init(void **state) {
  (void)state;
  struct remixdb_opts o;
  memset(&o, 0xA5, sizeof(o));
  remixdb_opts_init(&o, sizeof(o));
  CHECK(o.size == sizeof(o) && o.cache_mb == REMIXDB_AUTO && o.memtable_mb == 0 && o.wal_mb == 0);
  CHECK(o.ckeys && o.tags && o.workers == -1);
  CHECK(strcmp(o.worker_cores, "auto") == 0 && strcmp(o.io, "auto") == 0 && !o.direct_io);
  CHECK(o.compression == REMIXDB_COMPRESSION_NONE && o.compression_level == 0 && o.sync == REMIXDB_SYNC_NONE);
  CHECK(!o.read_only && o.create && !o.error_if_exists && o.max_open_files == 1000 && !o.logger && !o.logger_priv);
  CHECK(o.memory_mb == 0);
  remixdb_opts_init(NULL, sizeof(o));
  // a program built with an older, smaller struct: nothing after its end is touched
  memset(&o, 0xA5, sizeof(o));
  remixdb_opts_init(&o, offsetof(struct remixdb_opts, workers));
  CHECK(o.size == offsetof(struct remixdb_opts, workers) && o.cache_mb == 256 && o.memtable_mb == 256);
  for (size_t i = offsetof(struct remixdb_opts, workers); i < sizeof(o); i++) CHECK(((uint8_t *)&o)[i] == 0xA5);
  CHECK(o.tags);
  // with a newer, larger one: its unknown fields are zero
  struct {
    struct remixdb_opts o;
    uint8_t more[64];
  } big;
  memset(&big, 0xA5, sizeof(big));
  remixdb_opts_init(&big.o, sizeof(big));
  CHECK(big.o.size == sizeof(big) && big.o.workers == -1);
  for (size_t i = 0; i < sizeof(big.more); i++) CHECK(big.more[i] == 0);

  char dir[PATH_SIZE];
  dir_of(dir, "sizes");
  // the small one's fields count, the others take their defaults
  void *const old = malloc(offsetof(struct remixdb_opts, workers));  // its end is the end of the allocation
  CHECK(old);
  remixdb_opts_init(old, offsetof(struct remixdb_opts, workers));
  const size_t one = 1;
  memcpy((uint8_t *)old + offsetof(struct remixdb_opts, memtable_mb), &one, sizeof(one));
  struct xdb *x = remixdb_open_opts(dir, old);
  GOOD(x != NULL);
  remixdb_close(x);
  free(old);
  big.o.memtable_mb = 1;
  big.o.workers = 0;
  big.o.error_if_exists = true;
  CHECK(!remixdb_open_opts(dir, &big.o));
  FAILED(REMIXDB_EXISTS, dir);
  big.o.error_if_exists = false;
  x = remixdb_open_opts(dir, &big.o);
  GOOD(x != NULL);
  remixdb_close(x);
  o = small_opts(0);
  o.size = 0;
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_INVALID, "size");
  remove_tree(dir);
}

static void test_read_only(void **state) {
  (void)state;
  char dir[PATH_SIZE], path[PATH_SIZE + 16];
  copy_dir(sample, dir_of(dir, "readonly"));
  (void)snprintf(path, sizeof(path), "%s/999999.sst", dir);  // left over from a compaction, as it were
  FILE *const f = fopen(path, "w");
  CHECK(f && fputs("left over", f) >= 0 && fclose(f) == 0);
  const struct listing before = list_dir(dir);
  struct remixdb_opts o = small_opts(0);
  o.read_only = true;
  o.sync = REMIXDB_SYNC_EACH;
  for (int workers = -1; workers < 2; workers++) {
    o.workers = workers;
    struct xdb *x;
    struct xdb_ref *const r = sample_open(dir, &o, &x);
    CHECK(!remixdb_put(r, "k", 1, "v", 1));
    FAILED(REMIXDB_READONLY, dir);
    CHECK(!remixdb_set(r, "k", 1, "v", 1));
    FAILED(REMIXDB_READONLY, dir);
    CHECK(!remixdb_del(r, "key-000000", 10));
    FAILED(REMIXDB_READONLY, dir);
    GOOD(remixdb_sync(r));
    uint32_t end;
    CHECK(sample_look(r, &end));
    char *const json = remixdb_stats(x);
    GOOD(json != NULL);
    CHECK(strstr(json, "\"read_only\":true"));
    remixdb_free(json);
    sample_close(x, r);
    SAME(before, dir, "a store opened with read_only");
  }
  sample_check(dir);
  CHECK(access(path, F_OK) != 0);  // an opening for writing removes files that no version names
  remove_tree(dir);
}

// Opens a store, which should have these sizes of cache (0: any), memtable (0: any) and budget, in MiB.
static void has_sizes(const char *dir, struct remixdb_opts *o, uint64_t cache, uint64_t memtable, uint64_t budget) {
  o->workers = 1;
  struct xdb *const x = remixdb_open_opts(dir, o);
  GOOD(x != NULL);
  const size_t limit = x->memtable_limit;
  if (memtable) CHECK_SAYS(limit >> 20 == memtable, "%zu", limit);
  if (cache) CHECK_SAYS(cache_size(x->cache) >> 20 == cache, "%zu", cache_size(x->cache));
  uint64_t is;
  CHECK(remixdb_figure(x, "memory.budget", &is) && is >> 20 == budget);
  remixdb_close(x);
}

// cache_mb and memtable_mb rule where they are set; the budget gives the others.
static void test_memory(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  dir_of(dir, "memory");
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  const uint64_t machine = cgroup_memory() >> 22, all = machine ? machine : 1024;
  has_sizes(dir, &o, 0, 0, all);
  o.memory_mb = 64;
  has_sizes(dir, &o, 0, 8, 64);
  o.memory_mb = 1;
  has_sizes(dir, &o, 1, 1, 1);
  o.memory_mb = 512;
  has_sizes(dir, &o, 0, 64, 512);
  o.cache_mb = 3;
  has_sizes(dir, &o, 3, 64, 512);
  o.memtable_mb = 5;
  has_sizes(dir, &o, 3, 5, 512);
  o.memory_mb = 0;
  has_sizes(dir, &o, 3, 5, 0);
  o.cache_mb = REMIXDB_AUTO;
  has_sizes(dir, &o, 0, 5, all);
  // an older program's struct, and the older calls
  remixdb_opts_init(&o, offsetof(struct remixdb_opts, memory_mb));
  has_sizes(dir, &o, 256, 256, 0);
  o.memtable_mb = 0;
  has_sizes(dir, &o, 256, 256, 0);
  struct xdb *x = remixdb_open(dir, 7, 0, true);
  GOOD(x != NULL);
  CHECK(x->memtable_limit >> 20 == 256 && cache_size(x->cache) >> 20 == 7 && x->memory.budget == 0);
  remixdb_close(x);
  x = remixdb_open_compact(dir, 0, 2);
  GOOD(x != NULL);
  CHECK(x->memtable_limit >> 20 == 2 && !x->cache && x->memory.budget == 0);
  remixdb_close(x);
}

static void test_bad_options(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  dir_of(dir, "options");
  // nothing is made of options that cannot be
  for (uint32_t i = 0; i < 22; i++) {
    struct remixdb_opts o = small_opts(0);
    switch (i) {
      case 0: o.io = "floppy"; break;
      case 1: o.io = ""; break;
      case 2:
        o.worker_cores = "x";
        o.workers = 1;
        break;
      case 3:
        o.worker_cores = "0,";
        o.workers = 1;
        break;
      case 4:
        o.worker_cores = "5-2";
        o.workers = 1;
        break;
      case 5:
        o.worker_cores = "";
        o.workers = 1;
        break;
      case 6: o.workers = 65; break;
      case 7: o.workers = INT_MAX; break;
      case 8: o.max_open_files = 15; break;
      case 9: o.max_open_files = 1; break;
      case 10: o.sync = -2; break;
      case 11: o.sync = INT_MIN; break;
      case 12: o.compression = (enum remixdb_compression)7; break;
      case 13: o.memtable_mb = SIZE_MAX; break;
      case 14: o.cache_mb = SIZE_MAX; break;
      case 15: o.wal_mb = SIZE_MAX; break;
      case 16: o.workers = -2; break;
      case 17:
        o.worker_cores = "99999999999";
        o.workers = 1;
        break;
      case 18: o.memory_mb = SIZE_MAX; break;
      case 19: o.compression_level = 23; break;
      case 20: o.compression_level = INT_MAX; break;
      case 21: o.compression_level = INT_MIN; break;
    }
    struct xdb *const x = remixdb_open_opts(dir, &o);
    if (x) fail_msg("options %u were taken", i);
    FAILED(REMIXDB_INVALID, NULL);
    if (list_dir(dir).there) fail_msg("options %u: there is a directory now (%s)", i, remixdb_errmsg());
  }
  CHECK(setenv("REMIXDB_IO", "floppy", 1) == 0);
  struct remixdb_opts o = small_opts(0);
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_INVALID, "floppy");
  CHECK(unsetenv("REMIXDB_IO") == 0);
  CHECK(!list_dir(dir).there);
}

// Writes and reads back some, across a compaction and an opening. *io_out, when given, is the engine's name.
static void try_options(const struct remixdb_opts *o, char io_out[16]) {
  char dir[PATH_SIZE];
  dir_of(dir, "options");
  for (int round = 0; round < 2; round++) {
    struct xdb *x;
    struct xdb_ref *const r = sample_open(dir, o, &x);
    for (uint32_t i = 0; i < SAMPLE_KEYS && round == 0; i++) sample_put(r, i);
    uint32_t end;
    CHECK(sample_look(r, &end));
    if (io_out) {
      char *const json = remixdb_stats(x);
      GOOD(json != NULL);
      const char *const at = strstr(json, "\"io\":\"");
      CHECK(at && sscanf(at, "\"io\":\"%15[a-z_]\"", io_out) == 1);
      remixdb_free(json);
    }
    sample_close(x, r);
  }
  remove_tree(dir);
}

static void test_options(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts(0);
  static const char *const cores[] = {"auto", "none", "0", "0-1", "1,0", NULL};
  for (uint32_t i = 0; i < 6; i++) {
    o.worker_cores = cores[i];
    o.workers = (int)i % 3;
    try_options(&o, NULL);
  }
  o = small_opts(0);
  o.cache_mb = 0;
  o.max_open_files = 16;
  o.wal_mb = 1;
  try_options(&o, NULL);
  o = small_opts(0);
  o.memtable_mb = 0;  // the default
  o.max_open_files = 0;
  o.direct_io = true;
  try_options(&o, NULL);
  o = small_opts(0);
  o.direct_io = true;
  o.compression = REMIXDB_COMPRESSION_ZSTD;
  static const int levels[] = {0, 1, -5, 19};
  for (uint32_t i = 0; i < 4; i++) {
    o.compression_level = levels[i];
    try_options(&o, NULL);
  }
}

static void test_io(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts(0);
  char io[16];
  o.io = "sync";
  try_options(&o, io);
  CHECK(strcmp(io, "sync") == 0);
  static const char *const engines[] = {"auto", "uring", "aio", NULL};  // where one cannot be had the next one serves
  for (uint32_t i = 0; i < 4; i++) {
    o.io = engines[i];
    try_options(&o, io);
    CHECK(strcmp(io, "uring") == 0 || strcmp(io, "io_uring") == 0 || strcmp(io, "aio") == 0 || strcmp(io, "sync") == 0);
  }
  o.io = "floppy";  // the environment has the last word
  CHECK(setenv("REMIXDB_IO", "sync", 1) == 0);
  try_options(&o, io);
  CHECK(strcmp(io, "sync") == 0);
  o.io = "uring";
  try_options(&o, io);
  CHECK(strcmp(io, "sync") == 0);
  CHECK(setenv("REMIXDB_IO", "", 1) == 0);  // empty is not set
  try_options(&o, io);
  CHECK(unsetenv("REMIXDB_IO") == 0);
}

// The store as a crash of the process would leave it: the files as they are while it is open.
static bool in_copy(const char *dir, const char *key) {
  char copy[PATH_SIZE];
  copy_dir(dir, dir_of(copy, "copy"));
  const struct remixdb_opts o = small_opts(0);
  struct xdb *x;
  struct xdb_ref *const r = sample_open(copy, &o, &x);
  const bool found = remixdb_probe(r, key, (uint32_t)strlen(key));
  sample_close(x, r);
  remove_tree(copy);
  return found;
}

static void test_sync_modes(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  dir_of(dir, "sync");
  struct remixdb_opts o = small_opts(0);
  o.sync = REMIXDB_SYNC_EACH;
  struct xdb *x;
  struct xdb_ref *r = sample_open(dir, &o, &x);
  for (uint32_t i = 0; i < 20; i++) sample_put(r, i);
  GOOD(remixdb_del(r, "key-000003", 10));
  CHECK(in_copy(dir, "key-000019") && !in_copy(dir, "key-000003"));
  sample_close(x, r);

  o.sync = REMIXDB_SYNC_NONE;
  r = sample_open(dir, &o, &x);
  sample_put(r, 20);
  GOOD(remixdb_sync(r));
  CHECK(in_copy(dir, "key-000020"));
  sample_close(x, r);

  // the machine limits the longest wait, not the option
  for (uint32_t round = 0; round < 15; round++) {
    o.sync = round % 3 == 0 ? 1 : round % 3 == 1 ? 20 : INT_MAX;
    r = sample_open(dir, &o, &x);
    sample_put(r, 100 + round);
    if (round < 2) {
      char key[24];
      key[sample_key(key, 100 + round)] = '\0';
      while (!in_copy(dir, key)) time_sleep_ns(1000000);  // for ever: the alarm ends it
    }
    sample_close(x, r);  // while a sync may be under way
  }
  remove_tree(dir);
}

int main(void) {
  hang_alarm();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_opts_init),  cmocka_unit_test(test_read_only), cmocka_unit_test(test_bad_options),
      cmocka_unit_test(test_memory),     cmocka_unit_test(test_options),   cmocka_unit_test(test_io),
      cmocka_unit_test(test_sync_modes),
  };
  return cmocka_run_group_tests_name("options", tests, samples_setup, base_teardown);
}
