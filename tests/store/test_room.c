// SPDX-License-Identifier: Apache-2.0
//
// The room that a store takes on disk: a small store is small, the files of the log keep their limit together, a store
// that was closed has one log, which is empty or holds few records, and keys are in the tables twice only where that
// pays. A short session makes few calls to the disk. On the simulated disk.
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>

#include "log/wal.h"
#include "remixdb.h"
#include "store/flush.h"
#include "store/state.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/slow.h"
#include "xdb.h"

#define DIR_NAME "/store"
#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

static struct simdisk *disk;
static struct xdb *x;
static struct xdb_ref *ref;

static void open_store(struct simdisk *d, int workers, size_t memtable_mb) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.workers = workers;
  o.memtable_mb = memtable_mb;
  o.cache_mb = 1;
  if (xdb_open(DIR_NAME, &o, simdisk_env(d), &x) != REMIXDB_OK) fail_msg("%s", remixdb_errmsg());
  CHECK((ref = remixdb_ref(x)) != NULL);
}

static void close_store(void) {
  remixdb_unref(ref);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

struct logs {
  struct simdisk *d;
  uint64_t bytes;
  uint32_t nr;
};

static bool add_log(void *arg, const char *name) {
  struct logs *const l = arg;
  char path[64];
  if (strncmp(name, "wal-", 4) != 0) return true;
  (void)snprintf(path, sizeof(path), DIR_NAME "/%s", name);
  const int64_t size = simdisk_size(l->d, path);
  l->nr += size >= 0;
  l->bytes += size >= 0 ? (uint64_t)size : 0;
  return true;
}

static struct logs logs_of(struct simdisk *d) {
  struct logs l = {.d = d};
  struct env_dir dir;
  OK(env_dir_open(ENV_PATHS(simdisk_env(d)), DIR_NAME, &dir));
  OK(env_list(&dir, add_log, &l));
  env_dir_close(&dir);
  return l;
}

static void put(uint32_t i, uint32_t vlen) {
  static uint8_t val[REMIXDB_KV_MAX];
  char key[16];
  memset(val, (int)(i % 251), vlen);
  CHECK(remixdb_put(ref, key, (uint32_t)snprintf(key, sizeof(key), "key%08u", i), val, vlen));
}

static bool has(uint32_t i) {
  char key[16];
  return remixdb_probe(ref, key, (uint32_t)snprintf(key, sizeof(key), "key%08u", i));
}

// Disk room of a new store: before its first record, with it, and closed.
static void test_small(void **state) {
  (void)state;
  disk = simdisk_create();
  open_store(disk, 0, 256);
  CHECK(simdisk_used(disk) <= 128 * KIB);
  put(1, 100);
  CHECK(remixdb_sync(ref) && simdisk_used(disk) <= 128 * KIB);
  close_store();
  CHECK(simdisk_used(disk) <= 64 * KIB);
  open_store(disk, 0, 256);
  CHECK(has(1) && !has(2));
  close_store();
  simdisk_destroy(disk);
}

// After the end of a store one log is there, of a few KiB, and nothing in it; so it is when the next opening has
// written nothing.
static void check_closed(struct simdisk *d) {
  const struct logs l = logs_of(d);
  assert_int_equal(l.nr, 1);
  assert_in_range(l.bytes, 512, 2 * WAL_REST);
}

// The same for a store whose log holds few records.
static void check_left(struct simdisk *d) {
  const struct logs l = logs_of(d);
  assert_int_equal(l.nr, 1);
  assert_in_range(l.bytes, 512, FLUSH_LEAVE + WAL_FIRST / WAL_KEEP_PART + 2 * WAL_REST);
}

static void test_closed(void **state) {
  (void)state;
  for (int workers = 0; workers <= 2; workers += 2) {
    disk = simdisk_create();
    uint32_t nr = 0;
    for (uint32_t time = 0; time < 4; time++) {
      open_store(disk, workers, 1);
      CHECK(x->recovery.nr_records == 0);
      for (uint32_t i = 0; i < (time == 2 ? 0 : 500u << (2 * time)); i++) put(nr++, i % 300);
      if (time == 3) CHECK(remixdb_flush(ref));
      close_store();
      check_closed(disk);
      // it stays so when power goes now
      struct simdisk *const crashed = simdisk_crash(disk, time + 1);
      check_closed(crashed);
      open_store(crashed, workers, 1);
      for (uint32_t i = 0; i < nr; i += 97) CHECK(has(i));
      close_store();
      simdisk_destroy(crashed);
    }
    simdisk_destroy(disk);
  }
}

// An opening after it writes nothing to the log, and gives no room away.
static void test_opened(void **state) {
  (void)state;
  disk = simdisk_create();
  open_store(disk, 0, 1);
  for (uint32_t i = 0; i < 100; i++) put(i, 100);
  close_store();
  const uint64_t writes = simdisk_calls(disk, SIMDISK_WRITE), used = simdisk_used(disk);
  open_store(disk, 0, 1);
  assert_int_equal(simdisk_calls(disk, SIMDISK_WRITE), writes);
  assert_int_equal(simdisk_used(disk), used);
  close_store();
  assert_int_equal(simdisk_calls(disk, SIMDISK_WRITE), writes);
  check_left(disk);
  simdisk_destroy(disk);
}

// Sessions that put one record each: the opening writes nothing, the session writes its frame and a watermark, and
// syncs twice, until the log has so much that it goes into a table. A power cut at the end of a session changes
// nothing.
static void test_sessions(void **state) {
  (void)state;
  enum { SESSIONS = 700, VALUE = 100 };
  uint32_t nr_tables = 0, nr_grown = 0;
  disk = simdisk_create();
  for (uint32_t i = 0; i < SESSIONS; i++) {
    const uint64_t writes = simdisk_calls(disk, SIMDISK_WRITE), used = simdisk_used(disk);
    open_store(disk, i % 2 * 2, 1);
    const bool first = i == 0;
    CHECK(first || (simdisk_calls(disk, SIMDISK_WRITE) == writes && simdisk_used(disk) == used));
    CHECK(x->recovery.nr_segments == !first && x->recovery.cut_bytes == 0);
    put(i, VALUE);
    const uint64_t syncs = simdisk_calls(disk, SIMDISK_SYNC), renames = simdisk_calls(disk, SIMDISK_RENAME);
    const uint64_t cuts = simdisk_calls(disk, SIMDISK_TRUNCATE);
    close_store();
    if (simdisk_calls(disk, SIMDISK_RENAME) > renames) {
      nr_tables++;
      check_closed(disk);
    } else {
      const bool grown = simdisk_calls(disk, SIMDISK_TRUNCATE) > cuts;
      assert_int_equal(simdisk_calls(disk, SIMDISK_SYNC) - syncs, grown ? 3 : 2);
      nr_grown += grown;
      check_left(disk);
    }
    struct simdisk *const crashed = simdisk_crash(disk, i + 1);
    if (i % 50 == 0) {
      open_store(crashed, 0, 1);
      for (uint32_t k = 0; k <= i; k++) CHECK(has(k));
      CHECK(!has(i + 1));
      close_store();
    }
    simdisk_destroy(crashed);
  }
  assert_in_range(nr_tables, 2, SESSIONS / 200);
  assert_in_range(nr_grown, 1, SESSIONS / 20);
  simdisk_destroy(disk);
}

// A closed log does not keep these: values apart, an edit of the version that no CURRENT has, records of a memtable
// that is not far from its limit, more than the limit, and records of two segments, as a process that died leaves them.
static void test_not_left(void **state) {
  (void)state;
  for (uint32_t how = 0; how < 5; how++) {
    disk = simdisk_create();
    open_store(disk, 0, 1);
    put(1, how == 0 ? 40000 : 100);
    if (how == 1) {
      x->ranges = (struct range_limits){0};
      CHECK(remixdb_flush(ref));
      simdisk_fault(disk, SIMDISK_RENAME, 0, UINT64_MAX, ENOSPC);
      CHECK(remixdb_del_range(ref, &(struct remixdb_range){{"key", 3}, {"kez", 3}}) && x->rounds.unsaved);
      simdisk_fault(disk, SIMDISK_RENAME, 0, 0, 0);
    }
    if (how == 2) x->memtable_limit = 1000;
    if (how == 3) x->leave_most = 0;
    if (how == 4) {
      CHECK(remixdb_sync(ref));
      simdisk_power_off(disk, 0);
      remixdb_unref(ref);
      remixdb_close(x);
      struct simdisk *const crashed = simdisk_crash(disk, 1);
      simdisk_destroy(disk);
      disk = crashed;
      open_store(disk, 0, 1);
      CHECK(wal_holds_older(x->wal));
    }
    close_store();
    check_closed(disk);
    open_store(disk, 0, 1);
    CHECK(has(1) == (how != 1) && x->recovery.nr_records == 0);
    close_store();
    simdisk_destroy(disk);
  }
}

// With writes of any kind the log's files together keep the limit. The store that a power cut leaves keeps it, too,
// while it goes on.
static void keep_limit(int workers, uint64_t seed) {
  const uint64_t limit = 2 * MIB;  // twice the memtable
  uint64_t rng = seed, most = 0;
  disk = simdisk_create();
  open_store(disk, workers, 1);
  CHECK(x->wal_limit == limit);
  for (uint32_t life = 0; life < 4; life++) {
    const uint32_t large = life == 1 ? 20000 : life == 2 ? 20 : 2000;
    for (uint32_t i = 0; i < (large > 2000 ? 1500u : 8000u) / SLOW; i++) {
      put((uint32_t)(rng_next(&rng) % 3000), (uint32_t)(rng_next(&rng) % large));
      if (rng_next(&rng) % 500 == 0) CHECK(remixdb_sync(ref));
      if (rng_next(&rng) % 3000 == 0) CHECK(remixdb_flush(ref));
      const uint64_t bytes = logs_of(disk).bytes;
      if (bytes > most) most = bytes;
    }
    CHECK(remixdb_sync(ref));
    simdisk_power_off(disk, 0);
    remixdb_unref(ref);
    remixdb_close(x);
    struct simdisk *const crashed = simdisk_crash(disk, seed + life);  // alone with the disk
    simdisk_destroy(disk);
    disk = crashed;
    open_store(disk, workers, 1);
  }
  close_store();
  check_closed(disk);
  simdisk_destroy(disk);
  assert_in_range(most, limit / 4, limit);
}

static void test_limit(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 3; seed++) {
    keep_limit(0, seed);
    keep_limit(2, seed);
  }
}

// ---- compressed keys

struct load {
  uint64_t data, tables, keys, without, written;  // bytes, but for `without`: tables without compressed keys
};

static uint64_t figure(const char *name) {
  uint64_t value = 0;
  CHECK_SAYS(remixdb_figure(x, name, &value), "%s", name);
  return value;
}

// Loads random keys in several rounds.
static struct load load(bool ckeys, uint32_t nr, uint32_t klen, uint32_t vlen) {
  struct remixdb_opts o;
  struct load l = {.data = (uint64_t)nr * (klen + vlen)};
  uint8_t key[200], val[400];
  uint64_t rng = 1;
  CHECK(klen <= sizeof(key) && vlen <= sizeof(val) && klen % 8 == 0);
  memset(val, 'v', sizeof(val));
  disk = simdisk_create();
  remixdb_opts_init(&o, sizeof(o));
  o.workers = 0;
  o.memtable_mb = o.cache_mb = 1;
  o.ckeys = ckeys;
  OK(xdb_open(DIR_NAME, &o, simdisk_env(disk), &x));
  CHECK((ref = remixdb_ref(x)) != NULL);
  for (uint32_t i = 0; i < nr; i++) {
    for (uint32_t at = 0; at < klen; at += 8) store64le(key + at, rng_next(&rng));
    CHECK(remixdb_put(ref, key, klen, val, vlen));
  }
  CHECK(remixdb_flush(ref));
  l.tables = figure("disk.table_bytes");
  l.keys = figure("disk.compressed_keys_bytes");
  l.without = figure("tables_without_keys");
  l.written = figure("compaction.table_bytes_written");
  CHECK(figure("compaction.rounds") > 2 && figure("tables") > 0);
  close_store();
  simdisk_destroy(disk);
  return l;
}

// Random keys that are most of the data are in the tables once: no more is written, and no more room taken, than
// without compressed keys. Where values are most of the data nothing is left out.
static void test_keys_once(void **state) {
  (void)state;
  const uint32_t nr = 20000 / (SLOW > 1 ? 2 : 1);
  const struct load once = load(true, nr, 200, 10), off = load(false, nr, 200, 10);
  CHECK(once.keys <= once.tables / 50 && once.without > 0);
  CHECK(once.tables <= once.data + once.data / 10);
  CHECK(once.written <= off.written + off.written / 50 && once.tables <= off.tables + off.tables / 50);
  const struct load small = load(true, 2 * nr, 16, 100), none = load(false, 2 * nr, 16, 100);
  CHECK(small.without == 0 && small.keys > small.data / 10 && none.keys == 0 && none.without > 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_small),    cmocka_unit_test(test_closed),
                                     cmocka_unit_test(test_opened),   cmocka_unit_test(test_sessions),
                                     cmocka_unit_test(test_not_left), cmocka_unit_test(test_limit),
                                     cmocka_unit_test(test_keys_once)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
