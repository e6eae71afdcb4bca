// SPDX-License-Identifier: Apache-2.0
//
// Options that change while the store is open: each takes effect, whatever else goes on.
//
// TEST_SEED in the environment repeats a run.
#include "tests/lib/check.h"
#include "tests/lib/store.h"
#include "store/memory.h"

static bool set(struct xdb *x, const char *name, const char *value) { return remixdb_set_option(x, name, value); }

static uint64_t figure(struct xdb *x, const char *name) {
  uint64_t value = 0;
  CHECK_SAYS(remixdb_figure(x, name, &value), "%s", name);
  return value;
}

static void put_some(struct xdb_ref *r, uint32_t from, uint32_t nr, uint32_t len) {
  static uint8_t value[4000];
  for (uint32_t i = from; i < from + nr; i++) {
    memset(value, (int)i, sizeof(value));
    CHECK(remixdb_put(r, &i, sizeof(i), value, len));
  }
}

static void test_wrong(void **state) {
  (void)state;
  static const char *const names[] = {"", "Workers", "workers ", "memtable_mb", "wal_mb", "tags", "io", "memory"};
  static const char *const values[][2] = {{"workers", "0"},
                                          {"workers", "65"},
                                          {"workers", "-2"},
                                          {"workers", ""},
                                          {"workers", "2 "},
                                          {"workers", "two"},
                                          {"sync", "-2"},
                                          {"memory_mb", "16777217"},
                                          {"sync", "always"},
                                          {"sync", ""},
                                          {"sync", "1.5"},
                                          {"sync", "99999999999"},
                                          {"compression", "snappy"},
                                          {"compression", "zst"},
                                          {"compression", "zstd:"},
                                          {"compression", "zstd:x"},
                                          {"compression", "zstd:23"},
                                          {"compression", "zstd1"},
                                          {"compression", "none "},
                                          {"max_open_files", "15"},
                                          {"max_open_files", "-1"},
                                          {"max_open_files", " 20"},
                                          {"cache_mb", "0"},
                                          {"cache_mb", "-1"},
                                          {"cache_mb", "1 "},
                                          {"cache_mb", "1.5"},
                                          {"cache_mb", "99999999999"},
                                          {"memory_mb", "0"},
                                          {"memory_mb", "-1"},
                                          {"memory_mb", "64 "},
                                          {"memory_mb", "99999999999999999"}};
  const struct remixdb_opts o = small_opts(1);
  struct xdb *const x = quick_open(&o);
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
    CHECK_SAYS(!set(x, names[i], "1") && remixdb_errcode() == REMIXDB_INVALID, "%s", names[i]);
  for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
    CHECK_SAYS(!set(x, values[i][0], values[i][1]) && remixdb_errcode() == REMIXDB_INVALID &&
                   strstr(remixdb_errmsg(), values[i][0]),
               "%s %s", values[i][0], values[i][1]);
  CHECK(!set(NULL, "sync", "none") && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!set(x, NULL, "none") && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!set(x, "sync", NULL) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(figure(x, "workers") == 1);
  remixdb_close(x);
  struct remixdb_opts ro = o;
  ro.read_only = true;
  struct xdb *const reader = quick_open(&ro);
  CHECK(!set(reader, "workers", "2") && remixdb_errcode() == REMIXDB_READONLY);
  CHECK(!set(reader, "sync", "each") && remixdb_errcode() == REMIXDB_READONLY);
  CHECK(!set(reader, "compression", "zstd") && remixdb_errcode() == REMIXDB_READONLY);
  CHECK(set(reader, "max_open_files", "16"));
  remixdb_close(reader);
}

static void test_workers(void **state) {
  (void)state;
  static const uint32_t numbers[] = {4, 2, 64, 1, 3, 3, 1};
  struct remixdb_opts o = small_opts(1);
  o.worker_cores = "none";
  struct xdb *x = quick_open(&o);
  shrink(x, 1u << 19, 64);
  struct xdb_ref *r = remixdb_ref(x);
  for (uint32_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
    char value[16];
    (void)snprintf(value, sizeof(value), "%u", numbers[i]);
    put_some(r, 1000 * i, 1000, 1000);  // rounds are under way
    CHECK(set(x, "workers", value) && figure(x, "workers") == numbers[i]);
    put_some(r, 1000 * i, 1000, 1000);
    CHECK(remixdb_flush(r));
  }
  CHECK(set(x, "workers", "-1") && figure(x, "workers") >= 1);
  CHECK(remixdb_compact(r) && remixdb_verify(r));
  remixdb_unref(r);
  remixdb_close(x);
  o = small_opts(0);
  x = quick_open(&o);
  CHECK(!set(x, "workers", "2") && remixdb_errcode() == REMIXDB_INVALID && figure(x, "workers") == 0);
  remixdb_close(x);
}

static size_t kept_bytes(void) {
  struct mem_stats s;
  mem_stats(&s);
  return s.kept;
}

// Blocks that are freed wait for the next round, as many as suit the budget: those that a smaller one has no room for
// go at once.
static void test_kept(void **state) {
  (void)state;
  enum { BLOCKS = 16 };
  static const struct {
    const char *budget;
    size_t kept;
  } steps[] = {{"16", 1u << 20}, {"256", 12u << 20}, {"1", 64u << 10}, {"64", 4u << 20}};
  struct remixdb_opts o = small_opts(0);  // no idle worker trims
  o.cache_mb = REMIXDB_AUTO;
  o.memtable_mb = 0;
  o.memory_mb = 64;
  struct xdb *const x = quick_open(&o);
  CHECK(x->kept == 4u << 20);
  for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
    void *p[BLOCKS];
    const size_t size = x->kept / BLOCKS, before = kept_bytes();
    for (uint32_t k = 0; k < BLOCKS; k++) CHECK((p[k] = mem_alloc(size)) != NULL);
    for (uint32_t k = 0; k < BLOCKS; k++) mem_free(p[k]);
    if (size >= MEM_LARGE) CHECK(kept_bytes() >= x->kept / 2 && before <= x->kept);
    CHECK(set(x, "memory_mb", steps[i].budget) && x->kept == steps[i].kept && kept_bytes() <= x->kept);
  }
  remixdb_close(x);
  CHECK(kept_bytes() == 0);
}

// The cache follows the budget: it gives memory to memtables and rounds when somebody writes, and it gets what a larger
// budget has. A size that the user sets stays.
static void test_memory(void **state) {
  (void)state;
  uint64_t first[2];
  for (int workers = 0; workers < 2; workers++) {
    struct remixdb_opts o = small_opts(workers);
    o.cache_mb = REMIXDB_AUTO;
    o.memtable_mb = 0;
    o.memory_mb = 64;
    struct xdb *const x = quick_open(&o);
    struct xdb_ref *const r = remixdb_ref(x);
    // without workers nobody would make the cache smaller when scans begin, so their share stays free
    const uint64_t sixteenth = workers ? 0 : 4u << 20, at_rest = figure(x, "memory.cache_size") + sixteenth;
    first[workers] = at_rest;
    CHECK(figure(x, "memory.budget") == 64u << 20 && at_rest > 48u << 20 && at_rest < 64u << 20);
    if (!LIB_SANITIZED) CHECK(x->memtables.chunks.limit == memory_late(x->memtable_limit));
    put_some(r, 0, 500, 3000);  // a sixth of a memtable
    while (figure(x, "memory.cache_size") > 32u << 20) {
      CHECK(workers > 0);
      time_sleep_ns(1000000);  // a worker is at it
    }
    CHECK(set(x, "memory_mb", "256") && figure(x, "memory.budget") == 256u << 20);
    CHECK(x->memtable_limit == 32u << 20);
    // all chunks of a memtable with late records wait for the next one
    if (!LIB_SANITIZED) CHECK(x->memtables.chunks.limit == memory_late(32u << 20));
    const uint64_t large = figure(x, "memory.cache_size") + 4 * sixteenth;
    CHECK_SAYS(large > 80u << 20 && large < 192u << 20, "%llu", (unsigned long long)large);
    put_some(r, 500, 500, 3000);
    CHECK(remixdb_flush(r));
    CHECK(set(x, "memory_mb", "16") && x->memtable_limit == 2u << 20);
    CHECK_SAYS(figure(x, "memory.cache_size") <= 6u << 20, "%llu", (unsigned long long)figure(x, "memory.cache_size"));
    put_some(r, 0, 2000, 3000);  // several memtables of the new size
    CHECK(remixdb_flush(r) && x->compact.memtable_size == 2u << 20);
    CHECK(figure(x, "memory.cache_size") >= 1u << 20);
    CHECK(set(x, "memory_mb", "1") && figure(x, "memory.cache_size") == 1u << 20 && x->memtable_limit == 1u << 20);
    put_some(r, 0, 2000, 3000);
    CHECK(remixdb_flush(r) && remixdb_verify(r));
    CHECK(set(x, "cache_mb", "5") && set(x, "memory_mb", "256"));
    CHECK(figure(x, "memory.cache_size") == 5u << 20 && x->memtable_limit == 32u << 20);
    put_some(r, 0, 2000, 3000);
    CHECK(figure(x, "memory.cache_size") == 5u << 20);
    remixdb_unref(r);
    remixdb_close(x);
  }
  CHECK(first[0] == first[1]);
}

// The cache gives what scans keep for themselves, and has it again when they end.
static void test_scans(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts(1);
  o.cache_mb = REMIXDB_AUTO;
  o.memtable_mb = 0;
  o.memory_mb = 64;
  struct xdb *const x = quick_open(&o);
  const uint64_t before = figure(x, "memory.cache_size"), scans = 16u << 20;
  budget_scans(&x->memory.accounts, 0, scans);
  while (figure(x, "memory.cache_size") + scans > before) time_sleep_ns(1000000);  // a worker is at it
  CHECK(figure(x, "memory.scans") == scans && figure(x, "memory.cache_size") + scans + (4u << 20) > before);
  budget_scans(&x->memory.accounts, scans, 0);
  while (figure(x, "memory.cache_size") + (4u << 20) < before) time_sleep_ns(1000000);
  remixdb_close(x);
}

static void test_sync(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(1);
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  for (uint32_t round = 0; round < 3; round++) {
    CHECK(set(x, "sync", "none"));
    uint64_t syncs = figure(x, "log.syncs");
    put_some(r, 0, 20, 10);
    CHECK(figure(x, "log.syncs") == syncs && figure(x, "log.durable_sequence") < figure(x, "sequence"));
    CHECK(set(x, "sync", "none") && figure(x, "log.syncs") == syncs);
    CHECK(set(x, "sync", "each"));
    put_some(r, 0, 20, 10);
    CHECK(figure(x, "log.syncs") >= syncs + 20 && figure(x, "log.durable_sequence") == figure(x, "sequence"));
    CHECK(set(x, "sync", "3600000"));  // once an hour
    put_some(r, 0, 1, 10);
    CHECK(figure(x, "log.durable_sequence") < figure(x, "sequence"));
    CHECK(set(x, "sync", "3600000"));  // the same value syncs, too
    CHECK(figure(x, "log.durable_sequence") == figure(x, "sequence"));
    put_some(r, 0, 1, 10);
    CHECK(set(x, "sync", "1"));  // this syncs what the other value has left
    CHECK(figure(x, "log.durable_sequence") == figure(x, "sequence"));
    for (uint32_t n = 0; n < 3; n++) {
      put_some(r, 0, 1, 10);
      while (figure(x, "log.durable_sequence") < figure(x, "sequence")) (void)sched_yield();
    }
  }
  CHECK(set(x, "sync", "0") && set(x, "sync", "-1") && set(x, "sync", "none"));
  remixdb_unref(r);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

static void test_compression(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(1);
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  put_some(r, 0, 1000, 1000);
  CHECK(remixdb_compact(r));
  const uint64_t plain = figure(x, "disk.table_bytes");
  CHECK(plain > 1000000);
  static const char *const packed[] = {"zstd", "zstd:1", "zstd:-5", "zstd:19"};
  for (uint32_t i = 0; i < 4; i++) {
    CHECK(set(x, "compression", packed[i]));
    put_some(r, 0, 1000, 1000);
    CHECK(remixdb_compact(r) && figure(x, "disk.table_bytes") < plain / 4);
  }
  CHECK(set(x, "compression", "none"));
  put_some(r, 0, 1000, 1000);
  CHECK(remixdb_compact(r) && figure(x, "disk.table_bytes") == plain);
  CHECK(remixdb_verify(r));
  remixdb_unref(r);
  remixdb_close(x);
}

// Tables and values of ingests, too.
static void test_compression_ingest(void **state) {
  (void)state;
  enum { SHORT = 1000, LONG = 40000, NR = 100 };
  static uint8_t value[LONG];
  memset(value, 'x', sizeof(value));
  const struct remixdb_opts o = small_opts(1);
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  static const char *const how[] = {NULL, "zstd", "none"};
  for (uint32_t i = 0; i < sizeof(how) / sizeof(how[0]); i++) {
    if (how[i]) CHECK(set(x, "compression", how[i]));
    const bool packed = how[i] && how[i][0] == 'z';
    const uint64_t tables = figure(x, "disk.table_bytes"), values = figure(x, "values.room");
    struct xdb_ingest *const g = remixdb_ingest_begin(r);
    for (uint32_t k = 0; k < 2 * NR; k++) {
      char key[16];
      const uint32_t klen = (uint32_t)snprintf(key, sizeof(key), "%u %06u", i, k);
      CHECK(remixdb_ingest_put(g, key, klen, value, k < NR ? SHORT : LONG));
    }
    CHECK(remixdb_ingest_commit(g));
    const uint64_t table = figure(x, "disk.table_bytes") - tables, apart = figure(x, "values.room") - values;
    CHECK_SAYS(packed ? table < NR * SHORT / 2 : table > NR * SHORT, "%u: %llu", i, (unsigned long long)table);
    CHECK_SAYS(packed ? apart < NR * LONG / 20 : apart > NR * LONG, "%u: %llu", i, (unsigned long long)apart);
  }
  CHECK(remixdb_verify(r));
  remixdb_unref(r);
  remixdb_close(x);
}

// Values apart, of puts and of rounds. Values that lie there stay as they are and are read.
static void test_compression_apart(void **state) {
  (void)state;
  enum { SHORT = 6000, LONG = 40000, NR = 20 };
  static uint8_t value[LONG], got[LONG];
  memset(value, 'x', sizeof(value));
  const struct remixdb_opts o = small_opts(1);
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  static const char *const how[] = {NULL, "zstd", "none", "zstd:5", "zstd:-3"};
  for (uint32_t i = 0; i < sizeof(how) / sizeof(how[0]); i++) {
    if (how[i]) CHECK(set(x, "compression", how[i]));
    const bool packed = how[i] && how[i][0] == 'z';
    const uint64_t puts = atomic_load(&x->values.file_bytes), rounds = atomic_load(&x->compact.values.file_bytes);
    for (uint32_t k = 0; k < 2 * NR; k++) {
      const uint32_t key = i * 100 + k;
      CHECK(remixdb_put(r, &key, sizeof(key), value, k < NR ? SHORT : LONG));
    }
    CHECK(remixdb_flush(r));
    const uint64_t put = atomic_load(&x->values.file_bytes) - puts,
                   round = atomic_load(&x->compact.values.file_bytes) - rounds;
    CHECK(packed ? put < NR * LONG / 20 : put > NR * LONG);
    CHECK(packed ? round < NR * SHORT / 20 : round > NR * SHORT);
  }
  for (uint32_t i = 0; i < sizeof(how) / sizeof(how[0]); i++) {
    for (uint32_t k = 0; k < 2 * NR; k++) {
      const uint32_t key = i * 100 + k;
      uint32_t len;
      CHECK(remixdb_getn(r, &key, sizeof(key), got, sizeof(got), &len) && len == (k < NR ? SHORT : LONG) &&
            memcmp(got, value, len) == 0);
    }
  }
  CHECK(remixdb_verify(r));
  remixdb_unref(r);
  remixdb_close(x);
}

static void test_max_open_files(void **state) {
  (void)state;
  enum { NR = 24000 };
  struct remixdb_opts o = small_opts(1);
  o.cache_mb = 0;
  struct xdb *const x = quick_open(&o);
  shrink(x, 1u << 20, 64);  // many tables
  packs_cannot(x->packs);   // and a file for each
  struct xdb_ref *const r = remixdb_ref(x);
  put_some(r, 0, NR, 1000);
  CHECK(remixdb_compact(r) && figure(x, "tables") > 40);
  for (uint32_t round = 0; round < 3; round++) {
    CHECK(set(x, "max_open_files", "500"));
    for (uint32_t i = 0; i < NR; i += 50) CHECK(remixdb_probe(r, &i, sizeof(i)));
    CHECK(figure(x, "io_totals.open_files") > 40);
    CHECK(set(x, "max_open_files", "16"));
    CHECK(figure(x, "io_totals.open_files") <= 16);
    for (uint32_t i = 0; i < NR; i += 50) CHECK(remixdb_probe(r, &i, sizeof(i)));
    CHECK(figure(x, "io_totals.open_files") <= 16);
  }
  remixdb_unref(r);
  remixdb_close(x);
}

// The cache becomes as large as was asked, and as small; what it has stays right.
static void test_cache(void **state) {
  (void)state;
  enum { NR = 24000 };
  static const uint32_t sizes[] = {4, 16, 2, 40, 1, 8};
  struct remixdb_opts o = small_opts(1);
  o.cache_mb = 8;
  struct xdb *x = quick_open(&o);
  shrink(x, 1u << 20, 64);
  struct xdb_ref *const r = remixdb_ref(x);
  put_some(r, 0, NR, 1000);
  CHECK(remixdb_compact(r));
  for (uint32_t round = 0; round < 2; round++)
    for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
      char value[16];
      (void)snprintf(value, sizeof(value), "%u", sizes[i]);
      CHECK(set(x, "cache_mb", value) && figure(x, "memory.cache_size") == (uint64_t)sizes[i] << 20);
      for (uint32_t lap = 0; lap < 2; lap++)
        for (uint32_t k = 0; k < NR; k++) {
          uint8_t got[1000];
          uint32_t len;
          CHECK(remixdb_get(r, &k, sizeof(k), got, &len) && len == 1000 && got[0] == (uint8_t)k && got[999] == got[0]);
        }
      CHECK(figure(x, "memory.cache_touched") <= (uint64_t)sizes[i] << 20);
      CHECK(figure(x, "memory.cache_used") > (sizes[i] < 20 ? (uint64_t)sizes[i] << 19 : 15u << 20));
    }
  remixdb_unref(r);
  remixdb_close(x);
  o.cache_mb = 0;
  x = quick_open(&o);
  CHECK(!set(x, "cache_mb", "8") && remixdb_errcode() == REMIXDB_INVALID && figure(x, "memory.cache_size") == 0);
  remixdb_close(x);
}

// ---- all at once

static struct xdb *shared;
static _Atomic bool over;

static void *write_some(void *arg) {
  uint64_t rng = (uintptr_t)arg;
  struct xdb_ref *const r = remixdb_ref(shared);
  uint8_t value[2000];
  uint32_t len;
  memset(value, 'v', sizeof(value));
  while (!atomic_load(&over)) {
    const uint32_t key = (uint32_t)below(&rng, 4000);
    THREAD_CHECK(remixdb_put(r, &key, sizeof(key), value, (uint32_t)below(&rng, sizeof(value))));
    THREAD_CHECK(remixdb_get(r, &key, sizeof(key), value, &len));
    if (chance(&rng, 1)) THREAD_CHECK(remixdb_sync(r));
  }
  remixdb_unref(r);
  return NULL;
}

static void *change_some(void *arg) {
  static const char *const changes[][2] = {
      {"workers", "1"},         {"workers", "4"},
      {"workers", "2"},         {"sync", "none"},
      {"sync", "each"},         {"sync", "1"},
      {"sync", "20"},           {"compression", "zstd"},
      {"compression", "none"},  {"compression", "zstd:3"},
      {"max_open_files", "16"}, {"max_open_files", "100"},
      {"cache_mb", "1"},        {"cache_mb", "9"},
  };
  uint64_t rng = (uintptr_t)arg;
  for (uint32_t i = 0; i < 400 / SLOW; i++) {
    const size_t which = below(&rng, sizeof(changes) / sizeof(changes[0]));
    THREAD_CHECK(set(shared, changes[which][0], changes[which][1]));
  }
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(2);
  shared = quick_open(&o);
  shrink(shared, 1u << 19, 64);
  atomic_store(&over, false);
  pthread_t writers[3], changers[2];
  for (uintptr_t i = 0; i < 3; i++) CHECK(pthread_create(&writers[i], NULL, write_some, (void *)(check_seed + i)) == 0);
  for (uintptr_t i = 0; i < 2; i++)
    CHECK(pthread_create(&changers[i], NULL, change_some, (void *)(check_seed + 10 + i)) == 0);
  for (uint32_t i = 0; i < 2; i++) CHECK(pthread_join(changers[i], NULL) == 0);
  struct xdb_ref *const r = remixdb_ref(shared);
  CHECK(remixdb_flush(r));  // workers are there
  atomic_store(&over, true);
  for (uint32_t i = 0; i < 3; i++) CHECK(pthread_join(writers[i], NULL) == 0);
  CHECK(remixdb_compact(r) && remixdb_verify(r));
  remixdb_unref(r);
  remixdb_close(shared);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

int main(int argc, char **argv) {
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  hang_alarm();
  check_seed_start();
#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)
  const struct CMUnitTest tests[] = {TEST(test_wrong),
                                     TEST(test_workers),
                                     TEST(test_memory),
                                     TEST(test_kept),
                                     TEST(test_scans),
                                     TEST(test_sync),
                                     TEST(test_compression),
                                     TEST(test_compression_ingest),
                                     TEST(test_compression_apart),
                                     TEST(test_max_open_files),
                                     TEST(test_cache),
                                     TEST(test_threads)};
  return check_seed_end(cmocka_run_group_tests_name("settings", tests, NULL, NULL));
}
