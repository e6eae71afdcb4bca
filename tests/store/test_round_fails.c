// SPDX-License-Identifier: Apache-2.0
//
// Rounds of compaction that fail, on a disk in memory: nothing is lost, the error is told, and the work is made again.
#include "tests/lib/check.h"
#include "tests/lib/gates.h"

#include <errno.h>

#include "tests/lib/simdisk.h"

static struct simdisk *disk;

static struct xdb_ref *disk_open(const struct remixdb_opts *o) {
  struct xdb_ref *r;
  OK(xdb_open("/store", o, simdisk_env(disk), &x));
  OK(xdb_ref(x, &r));
  return r;
}

static void disk_close(struct xdb_ref *r) {
  xdb_unref(r);
  OK(xdb_close(x));
  x = NULL;
}

static int disk_setup(void **state) {
  (void)state;
  disk = simdisk_create();
  return disk ? 0 : -1;
}

static int disk_teardown(void **state) {
  (void)state;
  simdisk_destroy(disk);
  return 0;
}

static struct kref number_key(char buf[16], uint32_t i) { return kref(buf, (uint32_t)snprintf(buf, 16, "%u", i)); }

// Puts 300 records with `keys` keys, a hundred in the memtable, the others in tables.
static void put_some(struct xdb_ref *r, uint32_t keys) {
  char key[16];
  for (uint32_t i = 0; i < 300; i++) {
    if (i % 100 == 99) OK(xdb_flush(x));
    OK(xdb_put(r, KV_REC(number_key(key, i % keys), "v", 1, false)));
  }
}

static void get_all(struct xdb_ref *r, uint32_t keys) {
  char key[16];
  for (uint32_t i = 0; i < keys; i++) OK(xdb_get(r, number_key(key, i), NULL, 0, NULL));
}

// A flush whose `skip`th call of a kind fails once, with this error. The store takes writes all the while, and the next
// flush succeeds. Returns whether the flush makes so many calls; counts in *failed.
static bool flush_fails(enum simdisk_call call, uint64_t skip, int error, enum remixdb_status status, const char *says,
                        uint32_t *failed) {
  struct remixdb_opts o = small_opts(0);
  struct xdb_ref *r = disk_open(&o);
  put_some(r, 300);
  const uint64_t before = simdisk_calls(disk, call);
  simdisk_fault(disk, call, skip, 1, error);
  const enum remixdb_status s = xdb_flush(x);
  const bool hit = simdisk_calls(disk, call) - before > skip;
  if (s != REMIXDB_OK) {
    CHECK_SAYS(s == status && strstr(err_msg(), says), "%s", err_msg());
    ++*failed;
  }
  simdisk_fault(disk, call, 0, 0, 0);
  OK(xdb_put(r, KV_REC(kref("more", 4), "v", 1, false)));
  pthread_mutex_lock(&x->lock);
  x->rounds.failed_ns = 0;  // it may be tried again at once
  pthread_mutex_unlock(&x->lock);
  OK(xdb_flush(x));
  OK(xdb_put(r, KV_REC(kref("last", 4), "v", 1, false)));
  disk_close(r);
  r = disk_open(&o);
  get_all(r, 300);
  OK(xdb_get(r, kref("more", 4), NULL, 0, NULL));
  OK(xdb_get(r, kref("last", 4), NULL, 0, NULL));
  disk_close(r);
  return hit;
}

// No descriptor is left for one of the files that a flush makes, or for a directory that it syncs.
static void test_no_descriptor(void **state) {
  uint32_t failed = 0;
  for (uint64_t skip = 0;
       flush_fails(SIMDISK_OPEN, skip, skip % 2 ? ENFILE : EMFILE, REMIXDB_NOMEM, "open files", &failed); skip++)
    CHECK(disk_teardown(state) == 0 && disk_setup(state) == 0);
  CHECK(failed >= 3);
}

// The disk fails to read something: old tables, or those that the flush has just written.
static void test_failed_read(void **state) {
  uint32_t failed = 0;
  for (uint64_t skip = 0; flush_fails(SIMDISK_READ, skip, EIO, REMIXDB_IO, "read", &failed); skip++)
    CHECK(disk_teardown(state) == 0 && disk_setup(state) == 0);
  CHECK_SAYS(failed >= 2, "%u", failed);
}

// A version that cannot be installed takes its files with it. The message has the first error, not that of the removal.
static void test_reason(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(0);
  struct xdb_ref *const r = disk_open(&o);
  OK(xdb_put(r, KV_REC(kref("k", 1), "v", 1, false)));
  simdisk_fault(disk, SIMDISK_RENAME, 0, 1, ENOSPC);
  simdisk_fault(disk, SIMDISK_UNLINK, 0, UINT64_MAX, EIO);
  CHECK(xdb_flush(x) == REMIXDB_NOSPACE && strstr(err_msg(), "rename"));
  simdisk_fault(disk, SIMDISK_UNLINK, 0, 0, 0);
  disk_close(r);
}

static uint32_t tried_again;

// There is room again. Kicks the workers before anyone has seen that the round failed, as a worker may.
static void try_again(void *arg, const char *line) {
  (void)arg;
  if (!strstr(line, "will be tried again")) return;
  simdisk_fault(disk, SIMDISK_RENAME, 0, 0, 0);
  tried_again++;
  workers_kick(x->workers);
}

// A compaction that could not be installed is made again, even where another round has brought the memtable into
// tables.
static void test_compact_not_installed(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts(0);
  o.logger = try_again;
  tried_again = 0;
  struct xdb_ref *const r = disk_open(&o);
  put_some(r, 150);
  CHECK(runs(r) > 1);
  simdisk_fault(disk, SIMDISK_RENAME, 0, UINT64_MAX, ENOSPC);
  OK(xdb_compact(x));
  CHECK(tried_again == 1);
  CHECK(runs(r) == 1);
  get_all(r, 150);
  disk_close(r);
}

// A compaction that was asked for fails by a call to the disk. The memtable's round goes on without it, so the store
// takes writes.
static void test_compact_fails(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(0);
  struct xdb_ref *const r = disk_open(&o);
  put_some(r, 150);
  CHECK(runs(r) > 1);
  simdisk_fault_name(disk, "0");  // tables and the like
  simdisk_fault(disk, SIMDISK_OPEN, 0, 1, EIO);
  CHECK(xdb_compact(x) == REMIXDB_IO && strstr(err_msg(), "open"));
  simdisk_fault_name(disk, NULL);
  CHECK(simdisk_calls(disk, SIMDISK_OPEN) > 0 && runs(r) > 1);
  OK(xdb_put(r, KV_REC(kref("more", 4), "v", 1, false)));
  OK(xdb_flush(x));
  get_all(r, 150);
  OK(xdb_compact(x));
  CHECK(runs(r) == 1);
  get_all(r, 150);
  disk_close(r);
}

// A version that cannot be installed gives back what its round has written apart, however often it is tried.
static void test_values_given_back(void **state) {
  (void)state;
  static uint8_t value[COMPACT_APART + 1000];
  const struct remixdb_opts o = small_opts(0);
  struct xdb_ref *const r = disk_open(&o);
  char key[16];
  uint64_t tail = 0;
  for (uint32_t n = 0; n < 8; n++) {
    const uint32_t before = n < 4 ? 0 : 100;  // at first there is no value file yet
    if (n == 4) {
      x->rounds.failed_ns = 0;
      OK(xdb_flush(x));
      CHECK(value_log_mark(&x->compact.values).active != 0);
    }
    for (uint32_t i = 0; i < 20; i++) OK(xdb_put(r, KV_REC(number_key(key, before + i), value, sizeof(value), false)));
    const uint64_t used = simdisk_used(disk);
    const struct value_mark was = value_log_mark(&x->compact.values);
    // the table's sync, the log's or the rename: each leaves the old CURRENT
    simdisk_fault(disk, n % 2 ? SIMDISK_RENAME : SIMDISK_WRITE, n % 2 ? 0 : 3, UINT64_MAX, ENOSPC);
    x->rounds.failed_ns = 0;
    FAILS(xdb_flush(x), REMIXDB_NOSPACE);
    simdisk_fault(disk, n % 2 ? SIMDISK_RENAME : SIMDISK_WRITE, 0, 0, 0);
    const struct value_mark is = value_log_mark(&x->compact.values);
    CHECK(is.active == was.active && is.tail == was.tail && is.newest == was.newest);
    CHECK(simdisk_used(disk) < used + 100000);
    if (n > 4) CHECK(is.tail == tail);
    tail = is.tail;
  }
  CHECK(tail > 20 * sizeof(value));
  x->rounds.failed_ns = 0;
  OK(xdb_flush(x));
  CHECK(value_log_mark(&x->compact.values).tail > tail);
  for (uint32_t i = 0; i < 20; i++) {
    OK(xdb_get(r, number_key(key, i), NULL, 0, NULL));
    OK(xdb_get(r, number_key(key, 100 + i), NULL, 0, NULL));
  }
  disk_close(r);
}

// A flush with values apart, beside those of an earlier one. Its `skip`th sync finds no room or no memory. The next
// flush succeeds, and no power cut loses a value then. Returns whether the flush makes so many syncs; counts in
// *failed.
static bool value_sync_fails(uint64_t skip, int error, uint32_t *failed) {
  static const uint8_t value[COMPACT_APART + 1000] = {1};
  const struct remixdb_opts o = small_opts(0);
  struct xdb_ref *r = disk_open(&o);
  char key[16];
  for (uint32_t i = 0; i < 40; i++) {
    if (i == 20) OK(xdb_flush(x));
    OK(xdb_put(r, KV_REC(number_key(key, i), value, sizeof(value), false)));
  }
  const uint64_t before = simdisk_calls(disk, SIMDISK_SYNC);
  simdisk_fault(disk, SIMDISK_SYNC, skip, 1, error);
  const enum remixdb_status s = xdb_flush(x);
  const bool hit = simdisk_calls(disk, SIMDISK_SYNC) - before > skip;
  *failed += s != REMIXDB_OK;
  simdisk_fault(disk, SIMDISK_SYNC, 0, 0, 0);
  x->rounds.failed_ns = 0;
  const bool goes_on = xdb_failure(x) == REMIXDB_OK;  // otherwise the log's sync has failed, which no try mends
  if (goes_on) OK(xdb_flush(x));
  struct simdisk *const left = simdisk_crash(disk, skip + 1);
  xdb_unref(r);
  IGNORED(xdb_close(x), "it may have failed");
  simdisk_destroy(disk);
  disk = left;
  r = disk_open(&o);
  for (uint32_t i = 0; i < (goes_on ? 40u : 20u); i++) OK(xdb_get(r, number_key(key, i), NULL, 0, NULL));
  disk_close(r);
  return hit;
}

static void test_value_sync_fails(void **state) {
  uint32_t failed = 0;
  for (uint64_t skip = 0; value_sync_fails(skip / 2, skip % 2 ? ENOSPC : ENOMEM, &failed); skip++)
    CHECK(disk_teardown(state) == 0 && disk_setup(state) == 0);
  CHECK_SAYS(failed >= 4, "%u", failed);
}

static char told[2048];

static void note_line(void *arg, const char *line) {
  (void)arg;
  (void)snprintf(told, sizeof(told), "%s", line);
}

// The lines that tell of a store in a directory with a very long name have their ends all the same.
static void test_long_name(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts(0);
  struct xdb_ref *r;
  char name[3000] = "/";
  memset(name + 1, 'd', sizeof(name) - 2);
  o.logger = note_line;
  OK(xdb_open(name, &o, simdisk_env(disk), &x));
  CHECK_SAYS(strstr(told, "0 files removed, io "), "%s", told);
  OK(xdb_ref(x, &r));
  OK(xdb_put(r, KV_REC(kref("k", 1), "v", 1, false)));
  x->leave_most = 0;
  simdisk_fault(disk, SIMDISK_RENAME, 0, UINT64_MAX, ENOSPC);
  disk_close(r);
  CHECK_SAYS(strstr(told, "into tables: ") && strstr(told, strerror(ENOSPC)) && strstr(told, "rename"), "%s", told);
}

int main(void) {
  check_seed = check_seed_or(1);
  hang_alarm();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_no_descriptor, disk_setup, disk_teardown),
      cmocka_unit_test_setup_teardown(test_failed_read, disk_setup, disk_teardown),
      cmocka_unit_test_setup_teardown(test_reason, disk_setup, disk_teardown),
      cmocka_unit_test_setup_teardown(test_compact_not_installed, disk_setup, disk_teardown),
      cmocka_unit_test_setup_teardown(test_compact_fails, disk_setup, disk_teardown),
      cmocka_unit_test_setup_teardown(test_values_given_back, disk_setup, disk_teardown),
      cmocka_unit_test_setup_teardown(test_value_sync_fails, disk_setup, disk_teardown),
      cmocka_unit_test_setup_teardown(test_long_name, disk_setup, disk_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
