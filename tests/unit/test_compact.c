// SPDX-License-Identifier: Apache-2.0
//
// The kinds of compaction that a round chooses for a partition, with small tables.
#include "tests/lib/check.h"
#include "tests/lib/rounds.h"

static void test_keep(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 1000, 0, 1);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_KEEP, 1);
  assert_null(remix_of(&w, 0));
  put_range(&w, 0, keys_for(&w, 0.5), 1, false);
  round_ok(&w, kinds);
  struct part *part = w.base->parts[0];
  part_ref(part);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_KEEP, 1);
  assert_ptr_equal(w.base->parts[0], part);
  part_unref(part);
  assert_int_equal(atomic_load(&w.c.work), 1);
  world_fini(&w);
}

static void test_first(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 8000, 0, 2);
  const uint32_t n = keys_for(&w, 0.8);
  put_range(&w, 0, n, 1, false);
  for (uint32_t a = 0; a < n; a += 5) put(&w, a, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  assert_int_equal(w.base->nr_parts, 1);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 1);
  assert_int_equal(tombs_of(&w, 0), 0);
  world_fini(&w);

  // tombstones alone, which hide nothing, make no file
  world_init(&w, 1000, 0, 3);
  put_range(&w, 0, w.k.nr, 1, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  assert_null(remix_of(&w, 0));
  world_fini(&w);

  // a partition should hold less
  world_init(&w, 8000, 0, 4);
  put_range(&w, 0, keys_for(&w, 5.5), 1, false);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_SPLIT, 1);
  assert_true(w.base->nr_parts >= 3 && w.base->nr_parts <= 4);
  for (uint32_t i = 0; i < w.base->nr_parts; i++) assert_true(remix_of(&w, i)->nr_runs <= COMPACT_PART_TABLES);
  assert_int_equal(remix_of(&w, 0)->nr_runs, COMPACT_PART_TABLES);
  world_fini(&w);
}

static void test_minor(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 3000, 0, 5);
  const uint32_t n = keys_for(&w, 0.8);
  put_range(&w, 0, n, 1, false);
  round_ok(&w, NULL);
  for (uint32_t i = 0; i < 4; i++) {
    struct sst *oldest = remix_of(&w, 0)->runs[0];
    put_range(&w, i, n, 6, i == 2);
    round_ok(&w, kinds);
    expect_kind(kinds, COMPACT_MINOR, 1);
    assert_int_equal(remix_of(&w, 0)->nr_runs, i + 2);
    assert_ptr_equal(remix_of(&w, 0)->runs[0], oldest);
  }
  assert_true(tombs_of(&w, 0) > 0);  // they hide older versions
  world_fini(&w);
}

// Makes one partition with as many runs as it may have. The first has the size of so many tables, and each other run
// every n-th key of the first.
static void runs_make(struct world *w, double first, uint32_t every) {
  const uint32_t n = keys_for(w, first);
  put_range(w, 0, n, 1, false);
  round_ok(w, NULL);
  for (uint32_t r = 1; r < compact_run_limit(&w->c, w->base->parts[0], UINT64_MAX); r++) {
    put_range(w, r, n, every, false);
    round_ok(w, NULL);
  }
  assert_int_equal(w->base->nr_parts, 1);
  assert_int_equal(remix_of(w, 0)->nr_runs, compact_run_limit(&w->c, w->base->parts[0], UINT64_MAX));
}

// When there are too many runs, the small new ones become one. The large old one stays, and so do the tombstones.
static void test_major_some(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 3000, 0, 6);
  runs_make(&w, 0.85, 40);
  struct sst *oldest = remix_of(&w, 0)->runs[0];
  const uint32_t n = keys_for(&w, 0.85);
  put_range(&w, 3, n, 40, true);
  remix_add_debt(remix_of(&w, 0), 1000000);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 2);
  assert_ptr_equal(remix_of(&w, 0)->runs[0], oldest);
  assert_true(atomic_load(&remix_of(&w, 0)->scan_debt) < 1000000);  // most of the debt is gone
  assert_true(tombs_of(&w, 0) > 0);
  assert_true(atomic_load(&w.c.stats.read_bytes) > 0);
  world_fini(&w);
}

// Runs of one size all become one, and no tombstone is left.
static void test_major_all(void **state) {
  (void)state;
  for (uint32_t deleted = 0; deleted < 2; deleted++) {
    struct world w;
    uint64_t kinds[COMPACT_KINDS];
    world_init(&w, 3000, 0, 7);
    const uint32_t n = keys_for(&w, 0.4);
    for (uint32_t r = 0; r == 0 || r < compact_run_limit(&w.c, w.base->parts[0], UINT64_MAX); r++) {
      put_range(&w, r, n, COMPACT_RUNS, false);
      round_ok(&w, kinds);
      expect_kind(kinds, r ? COMPACT_MINOR : COMPACT_MAJOR, 1);
    }
    put_range(&w, 0, n, deleted ? 1 : 3, true);
    round_ok(&w, kinds);
    expect_kind(kinds, COMPACT_MAJOR, 1);
    assert_int_equal(w.base->nr_parts, 1);
    assert_int_equal(tombs_of(&w, 0), 0);
    if (deleted) assert_null(remix_of(&w, 0));
    else assert_int_equal(remix_of(&w, 0)->nr_runs, 1);
    // an emptied partition takes new data
    put_range(&w, 0, n, 2, false);
    round_ok(&w, kinds);
    expect_kind(kinds, deleted ? COMPACT_MAJOR : COMPACT_MINOR, 1);
    world_fini(&w);
  }
}

// A few runs are merged, though there is room for more, when most of their records are old.
static void test_major_garbage(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 3000, 0, 8);
  const uint32_t n = keys_for(&w, 0.9);
  uint32_t rounds = 0;
  do {
    put_range(&w, 0, n, 1, rounds % 2 == 1);
    round_ok(&w, kinds);
    assert_int_equal(w.base->nr_parts, 1);
    assert_true(++rounds < COMPACT_RUNS);
  } while (rounds == 1 || kinds[COMPACT_MAJOR] == 0);
  assert_true(!remix_of(&w, 0) || remix_of(&w, 0)->nr_runs <= 2);
  world_fini(&w);
}

static void test_split(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 12000, 0, 9);
  // the runs hold different keys, so that all records stay
  const uint32_t n = keys_for(&w, 10);
  uint32_t r = 0;
  do {
    put_range(&w, r, n, 20, false);
    put(&w, 0, false);
    round_ok(&w, kinds);
    assert_true(++r < 20);
  } while (kinds[COMPACT_SPLIT] == 0);
  assert_true(r > 4);
  assert_true(w.base->nr_parts >= 2 && w.base->nr_parts <= 6);
  for (uint32_t i = 0; i < w.base->nr_parts; i++) {
    assert_true(remix_of(&w, i)->nr_runs <= COMPACT_PART_TABLES + 1);
    // an anchor is no longer than it has to be
    if (!i) continue;
    const struct kref a = part_anchor(w.base->parts[i]);
    const uint32_t at = keyset_rank(&w.k, a);
    assert_true(at > 0 && at < w.k.nr);
    assert_true(kv_cmp(kref(a.ptr, a.len - 1), w.k.keys[at - 1]) <= 0);
  }
  world_fini(&w);
}

// New keys come after a partition that has its share. It stays as it is.
static void test_append(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 12000, 0, 10);
  const uint32_t n = keys_for(&w, 1.3), n2 = keys_for(&w, 6.3), n3 = keys_for(&w, 6.4);
  put_range(&w, 0, n, 1, false);
  round_ok(&w, NULL);
  assert_int_equal(w.base->nr_parts, 1);
  struct part *first = w.base->parts[0];
  part_ref(first);
  put_range(&w, n, n2, 1, false);
  for (uint32_t a = n; a < n2; a += 7) put(&w, a, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_SPLIT, 1);
  assert_ptr_equal(w.base->parts[0], first);
  assert_true(w.base->nr_parts >= 3);
  for (uint32_t i = 1; i < w.base->nr_parts; i++) assert_int_equal(tombs_of(&w, i), 0);
  // tombstones of absent keys make nothing
  const uint32_t parts = w.base->nr_parts;
  put_range(&w, n2, n3, 1, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_KEEP, parts - 1);
  assert_int_equal(w.base->nr_parts, parts);
  part_unref(first);
  world_fini(&w);
}

// The same with some keys before the end of the partition. These go into it; the others do not touch it.
static void test_append_over(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 12000, 0, 13);
  const uint32_t n = keys_for(&w, 1.3), n2 = keys_for(&w, 5);
  put_range(&w, 0, n, 1, false);
  round_ok(&w, NULL);
  struct sst *const first = remix_of(&w, 0)->runs[0];
  put_range(&w, n - 300, n2, 1, false);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_MINOR, 1);
  expect_kind(kinds, COMPACT_SPLIT, 1);
  assert_ptr_equal(remix_of(&w, 0)->runs[0], first);
  assert_true(remix_of(&w, 0)->runs[remix_of(&w, 0)->nr_runs - 1]->nr_records == 300);
  assert_true(w.base->nr_parts >= 2);
  assert_int_equal(first_key_of(&w, 1), n);
  // so few keys go back, if they may
  const uint32_t parts = w.base->nr_parts, n3 = keys_for(&w, 7);
  w.allow_abort = true;
  put(&w, n2 - 2, true);
  put_range(&w, n2, n3, 1, false);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_ABORT, 1);
  expect_kind(kinds, COMPACT_SPLIT, 1);
  expect_kind(kinds, COMPACT_KEEP, parts - 1);
  assert_int_equal(w.back[n2 - 2], 1);
  // a few keys in each of the many gaps between partitions make no partitions of their own
  w.allow_abort = false;
  const uint32_t many = w.base->nr_parts;
  w.c.memtable_size = COMPACT_ABORT_SHARE * 1000;
  for (uint32_t i = 1; i < many; i++) put_range(&w, first_key_of(&w, i) - 2, first_key_of(&w, i), 1, true);
  round_ok(&w, NULL);
  for (uint32_t i = 1; i < many; i++) put_range(&w, first_key_of(&w, i) - 2, first_key_of(&w, i), 1, false);
  round_ok(&w, NULL);
  assert_int_equal(w.base->nr_parts, many);
  world_fini(&w);
}

// An empty partition goes, and the one before it takes its range.
static void test_empty_parts(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 8000, 0, 14);
  three_parts(&w);
  const uint32_t parts = w.base->nr_parts, one = first_key_of(&w, 1), two = first_key_of(&w, 2);
  for (uint32_t r = 0; w.base->nr_parts == parts; r++) {
    assert_true(r < 3);  // deleted records are garbage at once
    put_range(&w, one, two, 1, true);
    round_ok(&w, NULL);
  }
  assert_int_equal(w.base->nr_parts, parts - 1);
  assert_int_equal(first_key_of(&w, 1), two);
  put_range(&w, one, two, 3, false);
  round_ok(&w, NULL);
  // when all partitions are empty, the first one stays
  for (uint32_t r = 0; remix_of(&w, 0) || w.base->nr_parts > 1; r++) {
    assert_true(r < 4);
    put_range(&w, 0, w.k.nr, 1, true);
    round_ok(&w, NULL);
  }
  put_range(&w, 0, w.k.nr, 5, false);
  round_ok(&w, NULL);
  world_fini(&w);
}

static void test_abort(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 8000, 0, 11);
  three_parts(&w);
  const uint32_t parts = w.base->nr_parts;
  w.allow_abort = true;
  // one key here, many there
  const uint32_t one = first_key_of(&w, 0) + 10, two = first_key_of(&w, 1) + 10;
  put(&w, one, true);
  put_range(&w, two, two + 150, 1, false);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_ABORT, 1);
  expect_kind(kinds, COMPACT_MINOR, 1);
  expect_kind(kinds, COMPACT_KEEP, parts - 2);
  assert_int_equal(w.nr_back, 1);
  assert_int_equal(w.back[one], 1);
  assert_true(atomic_load(&w.c.stats.handed_back) > 0);

  // it is still in the memtable, and is written when nothing may go back
  assert_int_equal(w.fresh[one], TOMB);
  w.allow_abort = false;
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_ABORT, 0);
  expect_kind(kinds, COMPACT_MINOR, 1);
  assert_int_equal(w.disk[one], TOMB);
  assert_int_equal(w.nr_back, 0);

  // there is no room to hand it back
  w.allow_abort = true;
  w.c.memtable_size = 64;
  put(&w, one, false);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_ABORT, 0);

  // there is room for one of two: the more expensive one goes back
  w.c.memtable_size = COMPACT_ABORT_SHARE * 400;
  put(&w, one, true);
  put_range(&w, two, two + 3, 1, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_ABORT, 1);
  expect_kind(kinds, COMPACT_MINOR, 1);
  assert_int_equal(w.back[one], 1);
  world_fini(&w);
}

// A round that fails to hand back data is not installed.
static void test_abort_fails(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 8000, 0, 12);
  three_parts(&w);
  w.allow_abort = true;
  const uint32_t two = first_key_of(&w, 1) + 10;
  put(&w, first_key_of(&w, 0) + 10, false);
  put_range(&w, two, two + 150, 1, false);
  w.back_status = REMIXDB_NOSPACE;
  FAILS(round_try(&w), REMIXDB_NOSPACE);
  assert_string_equal(w.error.msg, "hand_back was told to fail");
  assert_null(w.next);
  assert_int_equal(w.nr_back, 1);
  expect_files(&w, w.base);
  w.back_status = REMIXDB_OK;
  round_ok(&w, NULL);
  world_fini(&w);
}

// Plans count compressed data by its size before compression. Otherwise tables would be many and small, or one
// partition would get too many of them.
static void test_compressed(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 12000, 0, 21);
  w.c.build.compression = REMIXDB_COMPRESSION_ZSTD;
  w.value = 400;
  const uint32_t n = keys_for(&w, 8);
  uint64_t stored = 0, pages = 0;
  uint32_t rounds = 0, limit = 0;
  do {
    for (uint32_t r = stored = pages = 0; remix_of(&w, 0) && r < remix_of(&w, 0)->nr_runs; r++) {
      stored += remix_of(&w, 0)->runs[r]->data_size;
      pages += remix_of(&w, 0)->runs[r]->nr_pages;
    }
    put_range(&w, rounds, n, 10, false);
    round_ok(&w, kinds);
    if (rounds++ == 0) limit = compact_run_limit(&w.c, w.base->parts[0], UINT64_MAX);
    assert_true(rounds <= limit + 1);
  } while (kinds[COMPACT_SPLIT] == 0);
  assert_true(rounds >= limit - 1);
  assert_true(stored < pages * BLOCK_PAGE / 6);
  expect_kind(kinds, COMPACT_SPLIT, 1);
  assert_true(w.base->nr_parts >= rounds / 3 && w.base->nr_parts <= rounds / 2 + 1);
  world_fini(&w);
}

// When the runs are so large that merging some makes them hardly fewer, a few of them are enough to split the
// partition. There may be more small runs, and little new data (large == 2) does not have all of them written again.
static void test_split_soon(void **state) {
  (void)state;
  for (uint32_t large = 0; large < 3; large++) {
    struct world w;
    uint64_t kinds[COMPACT_KINDS];
    world_init(&w, 12000, 0, 29);
    const uint32_t n = keys_for(&w, large ? 7 : 2);
    for (uint32_t r = 0; r < COMPACT_SPLIT_RUNS; r++) {
      put_range(&w, r, n, COMPACT_SPLIT_RUNS + 1, false);
      round_ok(&w, kinds);
      expect_kind(kinds, r ? COMPACT_MINOR : COMPACT_MAJOR, 1);
    }
    assert_int_equal(remix_of(&w, 0)->nr_runs, COMPACT_SPLIT_RUNS);
    if (large == 2) put(&w, 7, false);
    else put_range(&w, COMPACT_SPLIT_RUNS, n, COMPACT_SPLIT_RUNS + 1, false);
    round_ok(&w, kinds);
    expect_kind(kinds, large == 1 ? COMPACT_SPLIT : COMPACT_MINOR, 1);
    world_fini(&w);
  }
}

// The estimate of the records that remain can be far too low (few large records among many tombstones). The tables are
// large all the same.
static void test_low_estimate(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 12000, 0, 22);
  const uint32_t n = keys_for(&w, 1.9);
  put_range(&w, 0, n, 1, false);
  round_ok(&w, NULL);
  for (uint32_t r = 1; r < COMPACT_RUNS; r++) {
    put_range(&w, n, w.k.nr, 1, true);
    put(&w, 0, false);  // one key that is not after the others
    round_ok(&w, NULL);
  }
  put_range(&w, n, w.k.nr, 1, true);
  put(&w, 0, false);
  round_ok(&w, NULL);
  uint32_t tables = 0;
  for (uint32_t i = 0; i < w.base->nr_parts; i++) tables += remix_of(&w, i) ? remix_of(&w, i)->nr_runs : 0;
  assert_true(tables <= 2 * COMPACT_RUNS);
  world_fini(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_keep),        cmocka_unit_test(test_first),      cmocka_unit_test(test_minor),
      cmocka_unit_test(test_major_some),  cmocka_unit_test(test_major_all),  cmocka_unit_test(test_major_garbage),
      cmocka_unit_test(test_split),       cmocka_unit_test(test_append),     cmocka_unit_test(test_append_over),
      cmocka_unit_test(test_empty_parts), cmocka_unit_test(test_abort),      cmocka_unit_test(test_abort_fails),
      cmocka_unit_test(test_compressed),  cmocka_unit_test(test_split_soon), cmocka_unit_test(test_low_estimate),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
