// SPDX-License-Identifier: Apache-2.0
//
// Failing calls under the write-ahead log: errors that stay, a full disk, no memory, and every call in turn.
#include "tests/lib/check.h"
#include "tests/lib/fault.h"
#include "tests/lib/wal_model.h"

#include <errno.h>
#include <stdio.h>

static void test_failed_write_is_sticky(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  struct wal *w;
  uint64_t rng = 10, gen;
  char first[512];
  OK(open_model(dir_of(d), m, &w));
  OK(append(w, m, &rng, 5));
  OK(sync_model(w, m));
  OK(wal_prepare(w));
  OK(append(w, m, &rng, 5));
  simdisk_fault(d, SIMDISK_WRITE, 0, 1, EIO);
  FAILS(wal_flush(w), REMIXDB_IO);
  (void)snprintf(first, sizeof(first), "%s", err_msg());
  assert_non_null(strstr(first, "wal-0"));
  for (int i = 0; i < 3; i++) {
    err_finish(REMIXDB_OK);
    FAILS(wal_sync(w), REMIXDB_IO);
    assert_string_equal(err_msg(), first);
    FAILS(wal_begin(w, 10, &gen), REMIXDB_IO);
    FAILS(wal_begin(w, 1000000, &gen), REMIXDB_IO);
    FAILS(wal_flush(w), REMIXDB_IO);
    FAILS(wal_switch(w, switched, m), REMIXDB_IO);
    FAILS(wal_release(w, UINT64_MAX), REMIXDB_IO);
  }
  assert_int_equal(wal_durable_seq(w), 5);
  FAILS(wal_close(w), REMIXDB_IO);
  OK(open_model(dir_of(d), m, &w));
  assert_int_equal(m->nr, 5);
  OK(wal_close(w));
  log_end(d, m);
}

static void test_failed_sync_is_sticky(void **state) {
  (void)state;
  static const int errnums[] = {EIO, ENOSPC, ENOMEM};
  for (size_t i = 0; i < 3; i++) {
    struct simdisk *const d = disk_create();
    struct model *const m = model_create();
    struct wal *w;
    uint64_t rng = 11, gen;
    OK(open_model(dir_of(d), m, &w));
    OK(append(w, m, &rng, 5));
    simdisk_fault(d, SIMDISK_SYNC, 0, 1, errnums[i]);
    FAILS(wal_sync(w), REMIXDB_IO);  // also for ENOSPC: the system may have dropped the pages
    FAILS(wal_sync(w), REMIXDB_IO);
    FAILS(wal_begin(w, 10, &gen), REMIXDB_IO);
    assert_int_equal(wal_durable_seq(w), 0);
    FAILS(wal_close(w), REMIXDB_IO);
    OK(open_model(dir_of(d), m, &w));
    OK(wal_close(w));
    log_end(d, m);
  }
}

// The disk has no room for the segment to grow. The log refuses a record, and accepts it when there is room again.
static void test_full_disk_at_allocate(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  struct wal *w;
  uint64_t rng = 12;
  enum remixdb_status s;
  simdisk_space(d, WAL_PREALLOC);
  OK(open_model(dir_of(d), m, &w));
  do s = append(w, m, &rng, 2000);
  while (s == REMIXDB_OK);
  FAILS(s, REMIXDB_NOSPACE);
  assert_true(wal_segment_bytes(w) > WAL_PREALLOC / 2);
  while (append(w, m, &rng, 1) == REMIXDB_OK) {}  // smaller records may fit
  FAILS(append(w, m, &rng, 2000), REMIXDB_NOSPACE);
  // the log keeps some room for wal_begin_last
  const uint64_t before = wal_segment_bytes(w);
  while ((s = append_by(w, m, &rng, 10, wal_begin_last)) == REMIXDB_OK) {
    if (m->nr % 7 == 0) FAILS(append(w, m, &rng, 2000), REMIXDB_NOSPACE);
  }
  FAILS(s, REMIXDB_NOSPACE);
  assert_in_range(wal_segment_bytes(w) - before, WAL_KEEP_MAX - 200000, WAL_KEEP_MAX + 200000);
  FAILS(wal_switch(w, switched, m), REMIXDB_NOSPACE);
  const uint64_t gen = m->gen;
  assert_int_equal(wal_gen(w), gen);
  OK(sync_model(w, m));  // accepted records have their room
  simdisk_space(d, UINT64_MAX);
  OK(append(w, m, &rng, 2000));
  OK(wal_switch(w, switched, m));
  OK(append(w, m, &rng, 1));
  const uint64_t nr = m->nr;
  OK(wal_close(w));
  // a disk with a few free blocks is enough for opening
  simdisk_space(d, simdisk_used(d) + 4096);
  OK(open_model(dir_of(d), m, &w));
  assert_int_equal(m->nr, nr);
  FAILS(append(w, m, &rng, 1), REMIXDB_NOSPACE);
  simdisk_space(d, UINT64_MAX);
  OK(append(w, m, &rng, 1));
  OK(wal_close(w));
  log_end(d, m);
}

// Without preallocation the write itself meets the full disk. The log keeps the accepted records and writes them later.
static void test_full_disk_at_write(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  struct wal *w;
  uint64_t rng = 13;
  simdisk_no_allocate(d, true);
  OK(open_model(dir_of(d), m, &w));
  OK(append(w, m, &rng, 10));
  OK(sync_model(w, m));
  simdisk_space(d, simdisk_used(d));
  enum remixdb_status s = REMIXDB_OK;
  uint64_t refused = 0;
  for (int i = 0; i < 3000; i++) {
    s = append(w, m, &rng, 1);
    if (s == REMIXDB_OK) continue;
    FAILS(s, REMIXDB_NOSPACE);
    refused++;
  }
  assert_true(refused > 0);
  FAILS(wal_flush(w), REMIXDB_NOSPACE);
  FAILS(wal_sync(w), REMIXDB_NOSPACE);
  assert_true(m->nr > 100);
  assert_int_equal(wal_durable_seq(w), 10);
  simdisk_space(d, UINT64_MAX);
  OK(append(w, m, &rng, 10));
  OK(sync_model(w, m));
  // the same for the header of a new segment
  OK(wal_prepare(w));
  simdisk_space(d, simdisk_used(d));
  OK(append(w, m, &rng, 200));
  OK(wal_switch(w, switched, m));
  FAILS(wal_sync(w), REMIXDB_NOSPACE);
  simdisk_space(d, UINT64_MAX);
  OK(append(w, m, &rng, 10));
  OK(sync_model(w, m));
  simdisk_power_off(d, 0);
  check_cuts(d, m, 5);
  FAILS(wal_close(w), REMIXDB_IO);  // only the mark fails
  simdisk_power_on(d);
  check_image(d, m);
  log_end(d, m);
}

static void test_no_memory(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  struct wal *w;
  uint64_t rng = 14;
  simdisk_no_allocate(d, true);
  // the n-th allocation of an opening fails, for all n, with segments, a spare and records to replay
  for (int round = 0; round < 3; round++) {
    enum remixdb_status s = REMIXDB_NOMEM;
    for (int64_t n = 0; s != REMIXDB_OK; n++) {
      assert_true(n < 200);
      fault_mem_set_lasting(n + 1);
      s = open_model(dir_of(d), m, &w);
      (void)fault_mem_end();
      if (s != REMIXDB_OK) FAILS(s, REMIXDB_NOMEM);
    }
    OK(append(w, m, &rng, 5));
    fault_mem_set_lasting(1);
    const uint64_t nr = m->nr;
    FAILS(append(w, m, &rng, 4000), REMIXDB_NOMEM);  // needs a buffer of its own
    assert_int_equal(m->nr, nr);
    const enum remixdb_status s2 = wal_switch(w, switched, m);
    if (s2 != REMIXDB_OK) FAILS(s2, REMIXDB_NOMEM);
    OK(append(w, m, &rng, 5));  // needs none
    OK(sync_model(w, m));
    (void)fault_mem_end();
    OK(append(w, m, &rng, 4000));
    OK(wal_switch(w, switched, m));
    OK(append(w, m, &rng, 5));
    OK(wal_close(w));
    m->synced = m->nr;
  }
  log_end(d, m);
}

// Each kind of call fails once, at every point of a whole life, and no acknowledged record is lost.
static void test_every_call_fails(void **state) {
  (void)state;
  static const enum simdisk_call calls[] = {SIMDISK_OPEN, SIMDISK_READ,   SIMDISK_WRITE, SIMDISK_SYNC, SIMDISK_ALLOCATE,
                                            SIMDISK_STAT, SIMDISK_UNLINK, SIMDISK_LIST,  SIMDISK_CLOSE};
  for (size_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++) {
    for (uint64_t skip = 0; skip < 14; skip++) {
      struct simdisk *const d = disk_create();
      struct model *const m = model_create();
      struct wal *w;
      uint64_t rng = skip;
      check_seed = skip * 100 + c;
      simdisk_no_allocate(d, calls[c] != SIMDISK_ALLOCATE);
      simdisk_fault(d, calls[c], skip, 1, EIO);
      for (int life = 0; life < 3; life++) {
        enum remixdb_status s = open_model(dir_of(d), m, &w);
        if (s != REMIXDB_OK) {
          CHECK_SAYS(s == REMIXDB_IO, "status %d", s);
          continue;
        }
        for (int i = 0; i < 4 && s == REMIXDB_OK; i++) {
          s = append(w, m, &rng, 2);
          if (s == REMIXDB_OK) s = sync_model(w, m);
          if (s == REMIXDB_OK) s = append(w, m, &rng, 2);
          if (s == REMIXDB_OK) s = wal_switch(w, switched, m);
          if (s == REMIXDB_OK && i > 1) s = release_model(w, m);
          CHECK_SAYS(s == REMIXDB_OK || s == REMIXDB_IO, "status %d", s);
        }
        if (wal_close(w) == REMIXDB_OK) m->synced = m->nr;
      }
      simdisk_fault(d, calls[c], 0, 0, 0);
      if (!m->fresh) check_image(d, m);
      log_end(d, m);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_failed_write_is_sticky),
      cmocka_unit_test(test_failed_sync_is_sticky),
      cmocka_unit_test(test_full_disk_at_allocate),
      cmocka_unit_test(test_full_disk_at_write),
      cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_every_call_fails),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
