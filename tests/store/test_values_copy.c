// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of a store that is open with read_only, and whose writer ended without a sync: the log refers to values
// that were never durable. The checkpoint is durable with them when the call returns.
//
// TEST_SEED in the environment repeats a run.
#include <stdio.h>
#include <string.h>

#include "admin/checkpoint.h"
#include "base/files.h"
#include "tests/lib/check.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/temp.h"
#include "xdb.h"

#define LONG 8u          // values that are written apart
#define SHORT 400u       // records that fill the log's buffer, so that the records before them are in its file
#define LEN 20000u       // bytes of a long value,
#define SHORT_LEN 3000u  // and of a short one
#define CUTS 6u
#define STORE "/store"
#define COPY "/copy"

static char bytes[LEN];

static struct remixdb_opts some_opts(bool read_only) {
  struct remixdb_opts o = small_opts(0);
  o.memtable_mb = 8;
  o.read_only = read_only;
  o.create = !read_only;
  return o;
}

static void put(struct xdb_ref *r, char kind, uint32_t i, uint32_t len) {
  char key[16];
  const int klen = snprintf(key, sizeof(key), "%c%u", kind, i);
  CHECK(remixdb_put(r, key, (uint32_t)klen, bytes, len));
}

// Writes the store, and ends as a killed process does. flushed: CURRENT names the value file, too.
static void write_store(struct simdisk *disk, bool flushed) {
  const struct remixdb_opts o = some_opts(false);
  struct xdb *x;
  OK(xdb_open(STORE, &o, simdisk_env(disk), &x));
  struct xdb_ref *const r = remixdb_ref(x);
  CHECK(r);
  put(r, 'a', 0, LEN);
  CHECK(flushed ? remixdb_flush(r) : remixdb_sync(r));
  for (uint32_t i = 0; i < LONG; i++) put(r, 'b', i, LEN);
  for (uint32_t i = 0; i < SHORT; i++) put(r, 'c', i, SHORT_LEN);
  x->leave_log = true;
  simdisk_power_off(disk, 0);
  remixdb_unref(r);
  IGNORED(xdb_close(x), "the disk is off");
  simdisk_power_on(disk);
}

static void check_long(struct xdb_ref *r, char kind, uint32_t nr) {
  static char got[LEN];
  for (uint32_t i = 0; i < nr; i++) {
    char key[16];
    uint32_t len;
    const int klen = snprintf(key, sizeof(key), "%c%u", kind, i);
    CHECK_SAYS(remixdb_getn(r, key, (uint32_t)klen, got, LEN, &len) && len == LEN && memcmp(got, bytes, LEN) == 0, "%s",
               key);
  }
}

// All values that the source reads are in the copy, also after a power cut.
static void check_copy(const struct simdisk *disk, uint64_t seed) {
  struct simdisk *const crashed = simdisk_crash(disk, seed);
  const struct remixdb_opts o = some_opts(false);
  struct xdb *x;
  CHECK(crashed);
  OK(xdb_open(COPY, &o, simdisk_env(crashed), &x));
  struct xdb_ref *const r = remixdb_ref(x);
  CHECK(r);
  check_long(r, 'a', 1);
  check_long(r, 'b', LONG);
  CHECK(remixdb_verify(r));
  remixdb_unref(r);
  OK(xdb_close(x));
  simdisk_destroy(crashed);
}

// A sync that failed may have left bytes that a later sync does not write (value_file_secure), which the disk of the
// tests does not do. So the copy has a value file of its own, written anew.
static void check_own_file(struct simdisk *disk) {
  char path[32], name[32];
  struct env_stat st;
  files_value_name(name, 1);
  (void)snprintf(path, sizeof(path), COPY "/%.20s", name);
  OK(env_stat(ENV_PATHS(simdisk_env(disk)), path, &st));
  CHECK_SAYS(st.links == 1, "%llu links", (unsigned long long)st.links);
}

static void one_writer(bool flushed) {
  struct simdisk *const disk = simdisk_create();
  CHECK(disk);
  write_store(disk, flushed);
  const struct remixdb_opts o = some_opts(true);
  struct xdb *x;
  OK(xdb_open(STORE, &o, simdisk_env(disk), &x));
  struct xdb_ref *const r = remixdb_ref(x);
  CHECK(r);
  check_long(r, 'b', LONG);  // the log has them
  OK(checkpoint_make(r, COPY));
  check_own_file(disk);
  for (uint32_t i = 0; i < CUTS; i++) check_copy(disk, check_seed + i);
  remixdb_unref(r);
  OK(xdb_close(x));
  simdisk_destroy(disk);
}

static void test_log_alone(void **state) {
  (void)state;
  one_writer(false);
}

static void test_log_and_tables(void **state) {
  (void)state;
  one_writer(true);
}

int main(void) {
  check_seed = check_seed_start();
  for (uint32_t i = 0; i < LEN; i++) bytes[i] = (char)(i * 7 + i / 100);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_log_alone),
      cmocka_unit_test(test_log_and_tables),
  };
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
