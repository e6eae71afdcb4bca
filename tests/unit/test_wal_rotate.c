// SPDX-License-Identifier: Apache-2.0
//
// Segments of the write-ahead log: switching, releasing, reuse, making room and the next segment ready ahead of need.
#include "tests/lib/check.h"
#include "tests/lib/wal_model.h"

#include <errno.h>

// A log with small steps keeps no files that it does not need.
static void test_small(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  const uint32_t step = 64u << 10;
  struct wal_stats st;
  uint64_t rng = 3;
  struct wal *w = open_steps(d, m, step);
  assert_int_equal(simdisk_size(d, DIR "/wal-0"), step);
  for (int round = 0; round < 3; round++) {
    while (wal_segment_bytes(w) < 3 * step) OK(append(w, m, &rng, 3));
    OK(sync_model(w, m));
    assert_true(simdisk_used(d) < (uint64_t)(nr_files(d) + 1) * 5 * step);
    OK(wal_switch(w, switched, m));
    OK(append(w, m, &rng, 1));
    OK(release_model(w, m));
    OK(wal_prepare(w));
    if (round) continue;
    assert_true(nr_files(d) > 1);
    OK(wal_shed(w));
    assert_int_equal(nr_files(d), 1);
    wal_stats(w, &st);
    assert_int_equal(st.segments, 1);
    assert_int_equal(st.pool_segments, 0);
    OK(wal_shed(w));
  }
  // a file that cannot be removed is kept, as a spare
  simdisk_fault(d, SIMDISK_UNLINK, 0, 1, EIO);
  FAILS(wal_shed(w), REMIXDB_IO);
  OK(wal_switch(w, switched, m));
  OK(append(w, m, &rng, 2));
  OK(wal_close(w));
  OK(open_model(dir_of(d), m, &w));
  OK(wal_close(w));
  log_end(d, m);
}

// The number of calls so far that wait for the file system, except writes.
static uint64_t waits(struct simdisk *d) {
  return simdisk_calls(d, SIMDISK_OPEN) + simdisk_calls(d, SIMDISK_ALLOCATE) + simdisk_calls(d, SIMDISK_SYNC);
}

// wal_ahead does all work that appending needs, at the time it is needed, and nothing else.
static void test_ahead(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  const uint32_t step = 2u << 20;
  uint64_t rng = 31, before;
  struct wal *const w = open_steps(d, m, step);
  before = waits(d);
  wal_ahead(w);
  assert_int_equal(waits(d), before);
  assert_int_equal(simdisk_size(d, DIR "/wal-0"), WAL_FIRST);
  while (wal_segment_bytes(w) < WAL_FIRST / 2 - 4096) {
    assert_false(wal_ahead_pending(w));
    OK(append(w, m, &rng, 1));
  }
  assert_int_equal(nr_files(d), 1);
  for (int segment = 0; segment < 2; segment++) {
    uint32_t helped = 0;
    while (wal_segment_bytes(w) < 4 * step) {
      before = waits(d);
      OK(append(w, m, &rng, 1));
      assert_int_equal(waits(d), before);
      if (!wal_ahead_pending(w)) continue;
      wal_ahead(w);
      assert_false(wal_ahead_pending(w));
      assert_true(waits(d) > before);
      helped++;
    }
    // once in each step, and before each doubling of the room; the second segment has its room from the beginning
    assert_in_range(helped, segment ? 0 : 7, segment ? 1 : 10);
    if (segment == 1) {
      // nothing is made ready before the header is synced, nor while an older segment can serve again
      assert_int_equal(nr_files(d), 2);
      OK(sync_model(w, m));
      wal_ahead(w);
      assert_int_equal(nr_files(d), 2);
      OK(release_model(w, m));
      OK(wal_prepare(w));
    }
    assert_int_equal(nr_files(d), 2);
    // the next segment is made again after wal_shed
    OK(wal_shed(w));
    assert_int_equal(nr_files(d), 1);
    while (!wal_ahead_pending(w)) OK(append(w, m, &rng, 50));
    wal_ahead(w);
    assert_int_equal(nr_files(d), 2);
    const uint64_t room = (uint64_t)simdisk_size(d, segment ? DIR "/wal-1" : DIR "/wal-0");
    assert_in_range(room, 4 * step, 5 * step);
    assert_int_equal(simdisk_size(d, segment ? DIR "/wal-0" : DIR "/wal-1"), room);
    before = waits(d);
    OK(wal_switch(w, switched, m));
    assert_int_equal(waits(d), before);
  }
  // a segment has the least size when it was not made ready, or when the active one is small
  OK(sync_model(w, m));
  OK(wal_switch(w, switched, m));
  assert_int_equal(simdisk_size(d, DIR "/wal-2"), WAL_FIRST);
  OK(wal_prepare(w));
  assert_int_equal(simdisk_size(d, DIR "/wal-3"), WAL_FIRST);
  OK(wal_close(w));
  log_end(d, m);
}

// Without wal_ahead the appending thread makes room in good time. A disk without room for the work ahead still takes
// the records of now.
static void test_ahead_alone(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  const uint32_t step = 4u << 20;
  uint64_t rng = 32;
  struct wal *const w = open_steps(d, m, step);
  while (wal_segment_bytes(w) < step) OK(append(w, m, &rng, 20));
  while (wal_segment_bytes(w) < 3 * step) {
    OK(append(w, m, &rng, 20));
    assert_true((uint64_t)simdisk_size(d, DIR "/wal-0") >= wal_segment_bytes(w) + step / 4 - WAL_BUF - 4096);
    assert_true((uint64_t)simdisk_size(d, DIR "/wal-0") <= wal_segment_bytes(w) + step + step / 4);
  }
  assert_int_equal(nr_files(d), 1);
  // there is room for one step, but not for a segment as large as the active one
  assert_true(wal_ahead_pending(w));
  simdisk_space(d, simdisk_used(d) + WAL_FIRST + WAL_FIRST / 2);
  const uint64_t room = (uint64_t)simdisk_size(d, DIR "/wal-0");
  wal_ahead(w);
  assert_int_equal(simdisk_size(d, DIR "/wal-0"), room);
  assert_int_equal(simdisk_size(d, DIR "/wal-1"), WAL_FIRST);
  // wal_ahead does not try again and again
  OK(append(w, m, &rng, 500));
  const uint64_t before = waits(d);
  if (wal_ahead_pending(w)) wal_ahead(w);
  assert_in_range(waits(d) - before, 0, 1);
  OK(sync_model(w, m));
  simdisk_space(d, UINT64_MAX);
  OK(wal_prepare(w));
  assert_true(simdisk_size(d, DIR "/wal-1") >= simdisk_size(d, DIR "/wal-0"));
  OK(wal_switch(w, switched, m));
  OK(append(w, m, &rng, 20));
  // wal_ahead does nothing after a permanent error
  OK(sync_model(w, m));
  while ((uint64_t)simdisk_size(d, DIR "/wal-1") > wal_segment_bytes(w) + step / 2 - WAL_BUF)
    OK(append(w, m, &rng, 20));
  assert_true(wal_ahead_pending(w));
  simdisk_fault(d, SIMDISK_SYNC, 0, 1, EIO);
  FAILS(wal_sync(w), REMIXDB_IO);
  simdisk_fault(d, SIMDISK_SYNC, 0, 0, 0);
  const uint64_t changes = simdisk_changes(d);
  wal_ahead(w);
  assert_int_equal(simdisk_changes(d), changes);
  FAILS(wal_close(w), REMIXDB_IO);
  log_end(d, m);
}

static void test_switch_and_recycle(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  struct wal *w;
  struct wal_stats st;
  uint64_t rng = 2;
  simdisk_no_allocate(d, true);
  OK(open_model(dir_of(d), m, &w));
  for (int i = 0; i < 5; i++) {  // nothing released: five more files
    for (int k = 0; k < 50; k++) OK(append(w, m, &rng, 1 + (uint32_t)pick(&rng, 3)));
    if (i & 1) OK(wal_prepare(w));
    const uint64_t gen = m->gen;
    OK(wal_switch(w, switched, m));
    assert_int_equal(m->gen, gen + 1);
    assert_int_equal(wal_gen(w), gen + 1);
    assert_int_equal(wal_segment_bytes(w), HEAD);
  }
  assert_int_equal(nr_files(d), 6);
  OK(append(w, m, &rng, 1));
  wal_stats(w, &st);
  assert_int_equal(st.segments, 6);
  OK(wal_close(w));
  OK(open_model(dir_of(d), m, &w));
  assert_int_equal(nr_files(d), 7);
  OK(release_model(w, m));  // one active, two spares
  assert_int_equal(nr_files(d), 3);
  wal_stats(w, &st);
  assert_int_equal(st.segments, 1);
  assert_int_equal(st.pool_segments, 2);
  for (int i = 0; i < 8; i++) {  // the files go round
    for (int k = 0; k < 20; k++) OK(append(w, m, &rng, 2));
    OK(wal_switch(w, switched, m));
    for (int k = 0; k < 5; k++) OK(append(w, m, &rng, 2));
    OK(release_model(w, m));
    assert_int_equal(nr_files(d), 3);
  }
  OK(wal_release(w, UINT64_MAX));  // the active one stays in any case
  OK(append(w, m, &rng, 2));
  OK(wal_close(w));
  const uint64_t nr = m->nr;
  check_image(d, m);
  OK(open_model(dir_of(d), m, &w));
  assert_int_equal(m->nr, nr);
  assert_int_equal(nr_files(d), 1);  // closing removed the spares, and the opening goes on in the last segment
  OK(wal_close(w));
  log_end(d, m);
}

// A file that could neither be made ready nor be removed stays, and becomes the next segment.
static void test_left_file(void **state) {
  (void)state;
  for (int way = 0; way < 2; way++) {
    struct simdisk *const d = disk_create();
    struct wal *w;
    struct wal_recovery rec;
    OK(open_any(d, true, false, NULL, &w));
    append_sized(w, 20);
    OK(wal_sync(w));
    if (way == 0) {
      simdisk_fault(d, SIMDISK_ALLOCATE, 0, UINT64_MAX, ENOSPC);
      simdisk_fault(d, SIMDISK_UNLINK, 0, 1, ENOSPC);
    } else {
      simdisk_fault(d, SIMDISK_OPEN, 0, 1, SIMDISK_DONE);
    }
    assert_int_equal(wal_switch(w, NULL, NULL), way == 0 ? REMIXDB_NOSPACE : REMIXDB_IO);
    simdisk_fault(d, SIMDISK_ALLOCATE, 0, 0, 0);
    assert_int_equal(nr_files(d), 2);
    OK(wal_switch(w, NULL, NULL));
    assert_int_equal(nr_files(d), 2);
    append_sized(w, 20);
    OK(wal_sync(w));
    struct simdisk *const c = simdisk_crash(d, 1);
    OK(wal_close(w));
    OK(open_any(c, false, true, &rec, &w));
    assert_int_equal(rec.nr_records, 2);
    OK(wal_close(w));
    simdisk_destroy(c);
    simdisk_destroy(d);
  }
}

// A new store does not take the remains of an unfinished creation for its own, though id and generation are the same.
static void test_fresh_over_leftovers(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct wal *w;
  struct wal_recovery rec;
  OK(open_any(d, true, false, NULL, &w));
  for (int i = 0; i < 3; i++) append_sized(w, 20);
  OK(wal_switch(w, NULL, NULL));
  OK(wal_close(w));
  OK(open_any(d, true, false, &rec, &w));
  assert_int_equal(rec.nr_records, 0);
  append_sized(w, 20);
  OK(wal_close(w));
  OK(open_any(d, false, true, &rec, &w));
  assert_int_equal(rec.nr_records, 1);
  OK(wal_close(w));
  simdisk_destroy(d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_small),       cmocka_unit_test(test_ahead),
      cmocka_unit_test(test_ahead_alone), cmocka_unit_test(test_switch_and_recycle),
      cmocka_unit_test(test_left_file),   cmocka_unit_test(test_fresh_over_leftovers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
