// SPDX-License-Identifier: Apache-2.0
//
// Young views, from the side that writes them: when one begins, goes on, has runs merged within it and ends, in all
// kinds of rounds, and every failure on the way.
#include "compact/plan.h"
#include "remix/pack.h"
#include "tests/lib/bytes.h"
#include "tests/lib/check.h"
#include "tests/lib/keys_packed.h"
#include "tests/lib/rounds.h"

// ---- young views

#define YOUNG_TABLE (8 * TABLE)  // pages
#define YOUNG_VALUE 1000u        // so that a few records fill a page

// One partition of so many tables of every second key, and a young view begins where `from` times the new data is
// there. Returns a key after them.
static uint32_t young_init(struct world *w, uint32_t keys, double tables, uint32_t from, uint64_t seed) {
  world_init(w, keys, 0, seed);
  w->c.build.max_pages = YOUNG_TABLE;
  w->value = YOUNG_VALUE;
  const uint32_t n = keys_for(w, 2 * tables);
  put_range(w, 0, n, 2, false);
  round_ok(w, NULL);
  assert_int_equal(w->base->nr_parts, 1);
  w->c.young_from = from;
  return n;
}

// A round of `nr` keys spread over the first n, from `at` on.
static void young_round(struct world *w, uint32_t n, uint32_t at, uint32_t nr, bool tomb, uint64_t *kinds) {
  const uint32_t every = (n - at) / nr;
  for (uint32_t i = 0; i < nr; i++) put(w, at + i * every, tomb);
  round_ok(w, kinds);
}

// One more key ends the young view: it becomes a run of the other view, which keeps its own runs.
static void young_ends(struct world *w) {
  uint64_t kinds[COMPACT_KINDS];
  struct remix *const old = remix_of(w, 0);
  const uint32_t runs = old->nr_runs;
  struct sst *was[REMIX_RUNS_MAX];
  memcpy(was, old->runs, runs * sizeof(was[0]));
  const uint64_t paid = atomic_load(&old->scan_debt), tombs = tombs_of(w, 0),
                 read = atomic_load(&w->c.stats.read_bytes);
  uint64_t data = 0;
  for (uint32_t r = 0; r < 2; r++) data += young_of(w, 0)->runs[r]->data_size;
  put(w, 1, true);  // is a tombstone already
  round_ok(w, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  assert_null(young_of(w, 0));
  assert_int_equal(w->base->nr_young, 0);
  assert_int_equal(remix_of(w, 0)->nr_runs, runs + 1);
  for (uint32_t r = 0; r < runs; r++) assert_ptr_equal(remix_of(w, 0)->runs[r], was[r]);
  assert_true(tombs_of(w, 0) > 0 && tombs_of(w, 0) <= tombs);
  assert_int_equal(atomic_load(&w->c.stats.young), 2);
  assert_int_equal(atomic_load(&w->c.stats.read_bytes) - read, data);
  assert_true(paid >= 700 && atomic_load(&remix_of(w, 0)->scan_debt) >= paid);  // no run of it is gone
  assert_int_equal(w->went[BEGUN], 1);
  assert_int_equal(w->went[WENT_ON], 1);
  assert_int_equal(w->went[JOINED], 1);
}

// Puts every `every`-th of the keys that are much like the keys beside them, from the `from`-th on.
static void put_like(struct world *w, uint32_t from, uint32_t every) {
  uint32_t n = 0;
  for (uint32_t a = 0; a < w->k.nr; a++)
    if (w->k.keys[a].len == 12 && memcmp(w->k.keys[a].ptr, "user", 4) == 0 && n++ % every == from) put(w, a, false);
  round_ok(w, NULL);
}

// Tables of a young view are soon merged: their keys are not packed, and those of other tables are.
static void test_young_keys(void **state) {
  (void)state;
  for (uint32_t from = 0; from <= 8; from += 8) {
    struct world w;
    world_init(&w, 9000, 0, 66 + from);
    w.c.build.max_pages = 8 * YOUNG_TABLE;
    w.value = YOUNG_VALUE;
    put_like(&w, 0, 2);
    assert_true(w.base->nr_parts == 1 && keys_packed(remix_of(&w, 0)->runs[0]));
    w.c.young_from = from;
    put_like(&w, 1, 20);
    assert_int_equal(young_of(&w, 0) != NULL, from != 0);
    const struct remix *const x = from ? young_of(&w, 0) : remix_of(&w, 0);
    assert_int_equal(keys_packed(x->runs[x->nr_runs - 1]), from == 0);
    world_fini(&w);
  }
}

// How many segments the first page of a view's file has.
static uint32_t page_segs(const struct remix *x) {
  size_t len;
  uint8_t *const file = file_read(x->path, &len);
  const size_t at = load64le(file + REMIX_HEAD_SEGS_AT);
  struct remix_dir d;
  struct remix_page page;
  OK(remix_dir_begin(&d, file, file + at, len - REMIX_SUM - at, x->path));
  OK(remix_dir_next(&d, &page));
  assert_true(d.left > 0);  // not the last one, which may have fewer
  free(file);
  return page.nr_segs;
}

// The file of a young view has large pages while indexes fit in memory, and pages like all others where they do not.
static void test_young_pages(void **state) {
  (void)state;
  const uint32_t from = atomic_load(&remix_paged_from), segs = atomic_load(&remix_page_segs);
  atomic_store(&remix_paged_from, 1);
  atomic_store(&remix_page_segs, 1);
  for (uint32_t starved = 0; starved < 2; starved++) {
    struct world w;
    world_init(&w, 9000, 0, 68);
    w.c.build.max_pages = 8 * YOUNG_TABLE;
    w.value = YOUNG_VALUE;
    put_like(&w, 0, 2);
    assert_int_equal(page_segs(remix_of(&w, 0)), 1);
    w.c.young_from = 8;
    atomic_store(&budget_starved, starved);
    put_like(&w, 1, 20);
    atomic_store(&budget_starved, false);
    assert_non_null(young_of(&w, 0));
    assert_int_equal(page_segs(young_of(&w, 0)), starved ? 1 : 2);
    world_fini(&w);
  }
  atomic_store(&remix_paged_from, from);
  atomic_store(&remix_page_segs, segs);
}

static void test_young_begins(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  // so many that all limits are met exactly: 992 and a 32nd of that, and one, make 1024
  const uint32_t n = 2 * 960;
  world_init(&w, 9000, 0, 60);
  w.value = YOUNG_VALUE;
  w.c.build.max_pages = 2 * YOUNG_TABLE;
  put_range(&w, 0, n, 2, false);
  round_ok(&w, NULL);
  // none without being told to
  young_round(&w, n, 1, 32, false, kinds);
  expect_kind(kinds, COMPACT_MINOR, 1);
  assert_null(young_of(&w, 0));
  // nor where a little too much comes
  w.c.young_from = COMPACT_YOUNG_FROM;
  const uint32_t most = (uint32_t)(remix_of(&w, 0)->nr_entries / COMPACT_YOUNG_FROM);
  young_round(&w, n, 0, most + 1, false, kinds);
  assert_null(young_of(&w, 0));
  assert_int_equal(atomic_load(&w.c.stats.young), 0);
  struct remix *const old = remix_of(&w, 0);
  assert_int_equal(old->nr_entries, COMPACT_YOUNG_FROM * COMPACT_YOUNG_FROM);
  remix_add_debt(old, 700);
  const uint64_t written = atomic_load(&w.c.stats.remix_bytes);
  young_round(&w, n, 1, (uint32_t)(old->nr_entries / COMPACT_YOUNG_FROM), true, kinds);
  expect_kind(kinds, COMPACT_MINOR, 1);
  assert_ptr_equal(remix_of(&w, 0), old);
  assert_non_null(young_of(&w, 0));
  assert_int_equal(young_of(&w, 0)->nr_runs, 1);
  assert_int_equal(atomic_load(&w.c.stats.young), 1);
  assert_int_equal(atomic_load(&w.c.stats.remix_bytes) - written, young_of(&w, 0)->file_size);
  assert_true(atomic_load(&w.c.work) < old->nr_entries / 4);  // untouched runs are no work
  assert_true(tombs_of(&w, 0) > 0);                           // they hide older records
  // goes on with more at a time, up to its share
  remix_add_debt(young_of(&w, 0), 5);
  const uint64_t scan_debt = atomic_load(&young_of(&w, 0)->scan_debt),
                 room = old->nr_entries / COMPACT_YOUNG_SHARE - young_of(&w, 0)->nr_entries;
  assert_true(room > most);
  young_round(&w, n, 0, (uint32_t)room, false, kinds);
  expect_kind(kinds, COMPACT_MINOR, 1);
  assert_ptr_equal(remix_of(&w, 0), old);
  assert_int_equal(young_of(&w, 0)->nr_runs, 2);
  assert_int_equal(young_of(&w, 0)->nr_entries, old->nr_entries / COMPACT_YOUNG_SHARE);
  assert_true(atomic_load(&young_of(&w, 0)->scan_debt) >= scan_debt);
  assert_int_equal(atomic_load(&w.c.stats.young), 2);
  // nothing new, nothing done
  struct part *const part = w.base->parts[0];
  part_ref(part);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_KEEP, 1);
  assert_ptr_equal(w.base->parts[0], part);
  part_unref(part);
  young_ends(&w);
  world_fini(&w);
}

// Little comes again and again: the runs of the young view are merged with each other, and the other view is not
// touched.
static void test_young_merged(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  const uint32_t n = young_init(&w, 9000, 1.7, 8, 61);
  struct remix *const old = remix_of(&w, 0);
  const uint32_t limit = compact_run_limit(&w.c, w.base->parts[0], 0);
  uint32_t rounds = 0;
  for (; part_runs(w.base->parts[0]) < limit; rounds++) {
    young_round(&w, n, rounds, 3 + rounds % 3, rounds % 4 == 3, kinds);
    expect_kind(kinds, COMPACT_MINOR, 1);
    assert_int_equal(young_of(&w, 0)->nr_runs, rounds + 1);
  }
  const uint64_t tombs = tombs_of(&w, 0), written = atomic_load(&w.c.stats.remix_bytes),
                 young = atomic_load(&w.c.stats.young);
  assert_true(tombs > 0);
  remix_add_debt(young_of(&w, 0), 100000);
  young_round(&w, n, 1, 4, false, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  assert_ptr_equal(remix_of(&w, 0), old);
  assert_non_null(young_of(&w, 0));
  assert_true(young_of(&w, 0)->nr_runs < rounds);
  assert_true(tombs_of(&w, 0) > 0);
  assert_true(atomic_load(&w.c.stats.remix_bytes) - written < old->file_size);
  assert_int_equal(atomic_load(&w.c.stats.young), young + 1);
  assert_true(atomic_load(&young_of(&w, 0)->scan_debt) < 100000);  // was paid for runs that are gone
  assert_int_equal(w.went[MERGED], 1);
  world_fini(&w);
}

// The first young run is large for the view, so that a merge leaves it. With more new data than the view may have that
// run is merged all the same, as the view ends.
static void test_young_merged_some(void **state) {
  (void)state;
  for (uint32_t over = 0; over < 2; over++) {
    struct world w;
    uint64_t kinds[COMPACT_KINDS];
    const uint32_t n = young_init(&w, 9000, 1.7, 8, 62);
    struct remix *const old = remix_of(&w, 0);
    const uint32_t old_nr = old->nr_runs;
    young_round(&w, n, 1, (uint32_t)old->nr_entries / 11, false, kinds);
    struct sst *const first = young_of(&w, 0)->runs[0];
    for (uint32_t r = 0; part_runs(w.base->parts[0]) < compact_run_limit(&w.c, w.base->parts[0], 0); r++)
      young_round(&w, n, r, 2, r % 2, NULL);
    assert_true(tombs_of(&w, 0) > 0);
    const uint32_t runs = young_of(&w, 0)->nr_runs;
    put(&w, 30, true);
    young_round(&w, n, 31, over ? 45 : 2, false, kinds);
    expect_kind(kinds, COMPACT_MAJOR, 1);
    assert_true(tombs_of(&w, 0) > 0);
    if (over) {
      assert_null(young_of(&w, 0));
      assert_int_equal(remix_of(&w, 0)->nr_runs, old_nr + 1);
      assert_int_equal(w.went[JOINED], 1);
    } else {
      assert_ptr_equal(remix_of(&w, 0), old);
      assert_true(young_of(&w, 0)->nr_runs > 1 && young_of(&w, 0)->nr_runs <= runs);
      assert_ptr_equal(young_of(&w, 0)->runs[0], first);
    }
    world_fini(&w);
  }
}

// Too many runs, and few of them are young: the merge takes these and some of the other view's, and there is one view
// again.
static void test_young_deeper(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  const uint32_t n = young_init(&w, 9000, 0.8, 0, 63);
  struct sst *const oldest = remix_of(&w, 0)->runs[0];
  const uint32_t limit = compact_run_limit(&w.c, w.base->parts[0], 0);
  for (uint32_t r = 0; r < limit - 4; r++) young_round(&w, n, r, 5, r % 3 == 0, NULL);
  assert_null(young_of(&w, 0));
  w.c.young_from = 8;
  while (part_runs(w.base->parts[0]) < limit) young_round(&w, n, 7, 6, false, NULL);
  assert_int_equal(young_of(&w, 0)->nr_runs, 3);
  const uint64_t read = atomic_load(&w.c.stats.read_bytes);
  uint64_t data = 0;
  for (uint32_t r = 1; r < limit; r++) data += part_run(w.base->parts[0], r)->data_size;
  const uint64_t young = atomic_load(&w.c.stats.young);
  put(&w, 8, true);
  young_round(&w, n, 9, 6, false, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  assert_null(young_of(&w, 0));
  assert_int_equal(remix_of(&w, 0)->nr_runs, 2);
  assert_ptr_equal(remix_of(&w, 0)->runs[0], oldest);
  assert_true(tombs_of(&w, 0) > 0);
  assert_int_equal(atomic_load(&w.c.stats.read_bytes) - read, data);  // each of these once
  assert_int_equal(atomic_load(&w.c.stats.young), young);
  assert_int_equal(w.went[DEEPER], 1);
  world_fini(&w);
}

// All runs of both views are merged: old versions and tombstones of either go, and no key comes back.
static void test_young_all(void **state) {
  (void)state;
  for (uint32_t large = 0; large < 2; large++) {
    struct world w;
    uint64_t kinds[COMPACT_KINDS];
    const uint32_t n = young_init(&w, 9000, large ? 1.7 : 0.4, 1, 64);
    if (large) {  // as much again
      w.c.memtable_size = 1 << 26;
      put_range(&w, n, 2 * n, 2, false);
      round_ok(&w, NULL);
      assert_int_equal(w.base->nr_parts, 1);
    }
    uint32_t r = 0;
    for (; r < 3; r++) young_round(&w, n, r, 6, r % 2, NULL);
    assert_non_null(young_of(&w, 0));
    assert_true(tombs_of(&w, 0) > 0);
    static struct compact_whole whole;
    whole = (struct compact_whole){.budget = UINT64_MAX};
    w.whole = &whole;
    round_ok(&w, kinds);
    expect_kind(kinds, large ? COMPACT_SPLIT : COMPACT_MAJOR, 1);
    assert_int_equal(w.went[ALL_TAKEN], 1);
    assert_int_equal(w.base->nr_parts > 1, large);
    for (uint32_t i = 0; i < w.base->nr_parts; i++) {
      assert_null(young_of(&w, i));
      assert_int_equal(tombs_of(&w, i), 0);
      assert_int_equal(remix_of(&w, i)->nr_entries, remix_of(&w, i)->nr_keys);
    }
    // all deleted: records of the young view alone go, too
    w.whole = NULL;
    for (r = 0; r < 3; r++) young_round(&w, n, 3 * r, 9, false, NULL);
    put_range(&w, 0, w.k.nr, 1, true);
    w.whole = &whole;
    whole = (struct compact_whole){.budget = UINT64_MAX};
    round_ok(&w, NULL);
    assert_int_equal(w.base->nr_parts, 1);
    assert_null(remix_of(&w, 0));
    world_fini(&w);
  }
}

// Most of the partition is old versions, by the counts of both views: all of it is merged, though the new data would
// fit the young one.
static void test_young_garbage(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  const uint32_t n = young_init(&w, 9000, 0.9, 0, 65);
  w.c.build.max_pages = 4 * YOUNG_TABLE;  // garbage is not worth a merge yet
  put_range(&w, 0, n, 2, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_MINOR, 1);
  w.c.young_from = 1;
  young_round(&w, n, 1, 10, false, kinds);
  expect_kind(kinds, COMPACT_MINOR, 1);
  assert_non_null(young_of(&w, 0));
  w.c.build.max_pages = YOUNG_TABLE;
  young_round(&w, n, 3, 4, false, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  assert_null(young_of(&w, 0));
  assert_int_equal(remix_of(&w, 0)->nr_runs, 1);
  assert_int_equal(remix_of(&w, 0)->nr_entries, 14);
  assert_int_equal(tombs_of(&w, 0), 0);
  world_fini(&w);
}

// The largest key is one of the young view: only keys after it are after the partition.
static void test_young_append(void **state) {
  (void)state;
  for (uint32_t before = 0; before < 2; before++) {
    struct world w;
    uint64_t kinds[COMPACT_KINDS];
    const uint32_t n = young_init(&w, 9000, 1.3, 8, 66), n2 = n + 2000;
    put_range(&w, n, n + 20, 2, false);
    put(&w, 4, true);
    round_ok(&w, kinds);
    expect_kind(kinds, COMPACT_MINOR, 1);
    assert_non_null(young_of(&w, 0));
    struct part *const first = w.base->parts[0];
    struct remix *const old = first->remix;
    if (!before) part_ref(first);
    if (before) put_range(&w, n + 1, n + 19, 3, false);
    put_range(&w, n + 19, n2, 1, false);
    for (uint32_t a = n + 19; a < n2; a += 7) put(&w, a, true);
    round_ok(&w, kinds);
    expect_kind(kinds, COMPACT_SPLIT, 1);
    expect_kind(kinds, COMPACT_MINOR, before);
    assert_ptr_equal(remix_of(&w, 0), old);
    if (before) assert_int_equal(young_of(&w, 0)->nr_runs, 2);
    else {
      assert_ptr_equal(w.base->parts[0], first);
      part_unref(first);
    }
    assert_true(w.base->nr_parts >= 2 && w.base->nr_young == 1);
    assert_true(first_key_of(&w, 1) > n + 18 && first_key_of(&w, 1) <= n + 21);
    for (uint32_t i = 1; i < w.base->nr_parts; i++) assert_int_equal(tombs_of(&w, i), 0);
    // tombstones after the end make nothing
    const uint32_t parts = w.base->nr_parts;
    w.c.memtable_size = 1 << 10;
    put_range(&w, n2, n2 + 100, 1, true);
    round_ok(&w, kinds);
    assert_int_equal(w.base->nr_parts, parts);
    assert_int_equal(w.base->nr_young, 1);
    world_fini(&w);
  }
}

// It has many runs, young ones counted: it is full.
static void test_young_append_runs(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  const uint32_t n = young_init(&w, 9000, 0.6, 8, 67);
  for (uint32_t r = 1; r < COMPACT_APPEND_RUNS; r++) young_round(&w, n, r, 4, false, NULL);
  assert_int_equal(young_of(&w, 0)->nr_runs, COMPACT_APPEND_RUNS - 1);
  struct part *const first = w.base->parts[0];
  part_ref(first);
  w.c.memtable_size = 1 << 10;
  put_range(&w, n + 1, n + 300, 1, false);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_SPLIT, 1);
  assert_ptr_equal(w.base->parts[0], first);
  part_unref(first);
  assert_int_equal(w.base->nr_parts, 2);
  world_fini(&w);
}

// Handing new data back leaves both views as they are. Data that a young view makes cheap is not handed back.
static void test_young_abort(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  const uint32_t n = young_init(&w, 9000, 1.7, 8, 68);
  young_round(&w, n, 1, 5, true, NULL);
  w.allow_abort = true;
  struct part *const part = w.base->parts[0];
  part_ref(part);
  put(&w, 5, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_ABORT, 1);
  assert_ptr_equal(w.base->parts[0], part);
  assert_int_equal(atomic_load(&w.c.stats.young), 1);
  assert_int_equal(w.back[5], 1);
  // too much for the other view's REMIX to be written, but not for the young one's
  uint64_t bytes = 0;
  uint32_t nr = 0;
  for (; bytes <= part->young->file_size / 2; nr++)
    bytes += kv_rec_size(KV_REC(kref(NULL, w.k.keys[7 * nr].len), NULL, 0, true)) + 2;
  assert_true(bytes * 2 < part->remix->file_size);
  part_unref(part);
  for (uint32_t i = 0; i < nr; i++) put(&w, 7 * i, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_MINOR, 1);
  assert_int_equal(w.nr_back, 0);
  assert_int_equal(young_of(&w, 0)->nr_runs, 2);
  // a merge within the young view that is given back
  w.allow_abort = false;
  for (uint32_t r = 0; part_runs(w.base->parts[0]) < compact_run_limit(&w.c, w.base->parts[0], 0); r++)
    young_round(&w, n, r, 1, false, NULL);
  w.allow_abort = true;
  struct part *const again = w.base->parts[0];
  part_ref(again);
  const uint64_t young = atomic_load(&w.c.stats.young);
  put(&w, 11, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_ABORT, 1);
  assert_ptr_equal(w.base->parts[0], again);
  assert_int_equal(atomic_load(&w.c.stats.young), young);
  part_unref(again);
  world_fini(&w);
}

// Neighbours that become one partition: one of them has a young view, the other, or both.
static void whole_joins(uint32_t which) {
  struct world w;
  static struct compact_whole whole;
  world_init(&w, 8000, 0, 70);
  w.c.build.max_pages = TABLE / 4;
  put_range(&w, 0, keys_for(&w, 3), 1, false);
  round_ok(&w, NULL);
  assert_int_equal(w.base->nr_parts, 2);
  w.c.young_from = 8;
  w.c.memtable_size = 1 << 24;
  const uint32_t one = first_key_of(&w, 1);
  if (which != 1) put_range(&w, 1, one, 20, which == 0);
  if (which != 0) put_range(&w, one + 1, keys_for(&w, 3), 20, true);
  round_ok(&w, NULL);
  assert_int_equal(w.base->nr_young, which == 2 ? 2 : 1);
  w.c.build.max_pages = 2 * TABLE;
  whole = (struct compact_whole){.budget = UINT64_MAX};
  w.whole = &whole;
  put(&w, 2, true);
  round_ok(&w, NULL);
  assert_int_equal(w.base->nr_parts, 1);
  assert_null(young_of(&w, 0));
  assert_int_equal(tombs_of(&w, 0), 0);
  world_fini(&w);
}

// A compaction of all there is leaves no young view in the partitions behind it, and the young views ahead as they are.
static void test_young_whole(void **state) {
  (void)state;
  struct world w;
  static struct compact_whole whole;
  world_init(&w, 12000, 0, 69);
  three_parts(&w);
  w.c.memtable_size = 1 << 24;  // nothing is after a partition
  put_range(&w, 0, w.k.nr, 40, true);
  round_ok(&w, NULL);
  const uint32_t parts = w.base->nr_parts;
  w.c.young_from = 8;
  for (uint32_t i = 0; i < parts; i++)
    if (i != 1) put_range(&w, first_key_of(&w, i) + 1, first_key_of(&w, i) + 9, 2, i % 2);
  round_ok(&w, NULL);
  assert_int_equal(w.base->nr_young, parts - 1);
  assert_null(young_of(&w, 1));
  whole = (struct compact_whole){.budget = 1};
  w.whole = &whole;
  struct part *const last = w.base->parts[parts - 1];
  put(&w, first_key_of(&w, 0) + 3, true);
  round_ok(&w, NULL);
  assert_false(whole.end);
  assert_null(young_of(&w, 0));
  assert_ptr_equal(w.base->parts[w.base->nr_parts - 1], last);
  assert_non_null(last->young);
  for (uint32_t rounds = 0; !whole.end; rounds++) {
    assert_true(rounds < 2 * parts);
    round_ok(&w, NULL);
  }
  assert_int_equal(w.base->nr_young, 0);
  for (uint32_t i = 0; i < w.base->nr_parts; i++) {
    assert_int_equal(tombs_of(&w, i), 0);
    assert_int_equal(remix_of(&w, i)->nr_entries, remix_of(&w, i)->nr_keys);
  }
  world_fini(&w);

  for (uint32_t which = 0; which < 3; which++) whole_joins(which);

  // as few tables as there can be, all of them live as far as either view knows: a young view is a reason all the same
  const uint32_t n = young_init(&w, 8000, 0.85, 8, 71);
  young_round(&w, n, 1, (uint32_t)remix_of(&w, 0)->nr_entries / 9, false, NULL);
  assert_non_null(young_of(&w, 0));
  w.c.build.max_pages = (remix_of(&w, 0)->runs[0]->nr_pages + young_of(&w, 0)->runs[0]->nr_pages) - 1;
  whole = (struct compact_whole){.budget = UINT64_MAX};
  w.whole = &whole;
  round_ok(&w, NULL);
  assert_null(young_of(&w, 0));
  world_fini(&w);
}

// Scans have paid for the young view, for the other one, for both.
static void test_young_scan_merge(void **state) {
  (void)state;
  for (uint32_t which = 1; which < 4; which++) {
    struct world w;
    uint64_t kinds[COMPACT_KINDS];
    const uint32_t n = young_init(&w, 9000, 0.8, 0, 72);
    for (uint32_t r = 0; r < 4; r++) young_round(&w, n, r, 9, r % 2, NULL);
    w.c.young_from = 8;
    for (uint32_t r = 0; r < 3; r++) young_round(&w, n, r, 8, r % 2, NULL);
    struct remix *const old = remix_of(&w, 0), *const young = young_of(&w, 0);
    struct sst *was[REMIX_RUNS_MAX];
    memcpy(was, old->runs, old->nr_runs * sizeof(was[0]));
    assert_int_equal(old->nr_runs, 5);
    assert_int_equal(young->nr_runs, 3);
    scan_merge_ok(&w, 0, NULL);
    const uint64_t tombs = tombs_of(&w, 0), of_old = atomic_load(&old->scan_debt),
                   counted = atomic_load(&w.c.stats.young);
    assert_true(tombs > 0);
    if (which & 1) remix_add_debt(young, UINT32_MAX);
    if (which & 2) remix_add_debt(old, UINT32_MAX);
    assert_int_equal(compact_scan_debt_paid(young), which & 1);
    assert_int_equal(compact_scan_debt_paid(old), which >> 1);
    scan_merge_ok(&w, 1, kinds);
    expect_kind(kinds, COMPACT_MAJOR, 1);
    assert_null(young_of(&w, 0));
    assert_int_equal(atomic_load(&w.c.stats.young), counted);
    const struct remix *const now = remix_of(&w, 0);
    assert_true(which == 1 ? now->nr_runs == 6 : now->nr_runs >= 2 && now->nr_runs < 5);
    for (uint32_t r = 0; r + 1 < now->nr_runs; r++) assert_ptr_equal(now->runs[r], was[r]);
    assert_true(tombs_of(&w, 0) > 0 && tombs_of(&w, 0) <= tombs);
    // the debt of the other view stays, unless the round was made for it
    assert_true(which == 1 ? atomic_load(&now->scan_debt) >= of_old : atomic_load(&now->scan_debt) < UINT32_MAX);
    world_fini(&w);
  }
}

// The young view has tombstones of just the keys that the older view's newest runs have: as many records come of the
// merge as leave that view, and they are others.
static void test_young_scan_merge_same_keys(void **state) {
  (void)state;
  struct world w;
  const uint32_t n = young_init(&w, 9000, 0.8, 0, 77);
  for (uint32_t r = 0; r < 3; r++) {
    for (uint32_t i = 0; i < 9; i++) put(&w, 1 + 2 * (r & 1) + i * (n / 10), r == 2);
    round_ok(&w, NULL);
    w.c.young_from = r == 1 ? 8 : 0;
  }
  assert_int_equal(young_of(&w, 0)->runs[0]->nr_tombs, 9);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 3);
  remix_add_debt(remix_of(&w, 0), UINT32_MAX);
  scan_merge_ok(&w, 1, NULL);
  assert_null(young_of(&w, 0));
  assert_int_equal(remix_of(&w, 0)->nr_runs, 2);
  assert_int_equal(remix_of(&w, 0)->runs[1]->nr_records, 18);
  assert_int_equal(tombs_of(&w, 0), 9);
  world_fini(&w);
}

// One run is reason enough for a young view; all of its tables are to be paid for, and no fewer blocks than a round is
// worth.
static void test_young_scan_merge_due(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 12000, 0, 73);
  w.c.build.max_pages = 4096;
  w.value = 3000;
  put(&w, 0, false);
  round_ok(&w, NULL);
  put_range(&w, 0, w.k.nr, 1, true);
  round_ok(&w, NULL);
  w.c.young_from = 8;
  for (uint32_t r = 0; r < 2; r++) {
    put_range(&w, r, 1160, 2, false);
    round_ok(&w, NULL);
  }
  assert_int_equal(young_of(&w, 0)->nr_runs, 2);
  const uint64_t due = young_of(&w, 0)->runs[0]->nr_pages + young_of(&w, 0)->runs[1]->nr_pages;
  assert_true(due >= COMPACT_SCAN_DEBT_MIN);
  atomic_store(&young_of(&w, 0)->scan_debt, 0);
  remix_add_debt(young_of(&w, 0), due - 1);
  scan_merge_ok(&w, 0, NULL);
  assert_int_equal(atomic_load(&young_of(&w, 0)->scan_debt_due), due);
  remix_add_debt(young_of(&w, 0), 1);
  scan_merge_ok(&w, 1, NULL);
  assert_null(young_of(&w, 0));
  world_fini(&w);

  const uint32_t n = young_init(&w, 9000, 1.7, 8, 74);
  young_round(&w, n, 1, 40, true, NULL);
  struct remix *x = young_of(&w, 0);
  assert_non_null(x);
  assert_int_equal(x->nr_runs, 1);
  atomic_store(&x->scan_debt, 0);
  remix_add_debt(x, COMPACT_SCAN_DEBT_MIN - 1);
  assert_false(compact_scan_debt_paid(x));
  assert_int_equal(atomic_load(&x->scan_debt_due), COMPACT_SCAN_DEBT_MIN);
  scan_merge_ok(&w, 0, NULL);
  assert_ptr_equal(young_of(&w, 0), x);
  remix_add_debt(x, 1);
  assert_true(compact_scan_debt_paid(x));
  const uint32_t runs = remix_of(&w, 0)->nr_runs;
  scan_merge_ok(&w, 1, NULL);
  assert_null(young_of(&w, 0));
  assert_int_equal(remix_of(&w, 0)->nr_runs, runs + 1);
  // all that is left after both views are one
  wear(&w, 0);
  scan_merge_ok(&w, 1, NULL);
  assert_int_equal(tombs_of(&w, 0), 0);
  world_fini(&w);
}

// The round takes as many partitions as there are workers, whichever view its scan debt is in.
static void test_young_scan_merge_workers(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 12000, 2, 75);
  three_parts(&w);
  w.c.young_from = 8;
  w.c.memtable_size = 1 << 24;
  put_range(&w, 1, keys_for(&w, 5.4), 40, true);
  round_ok(&w, NULL);
  const uint32_t parts = w.base->nr_parts;
  assert_int_equal(w.base->nr_young, parts);
  for (uint32_t i = 0; i < parts; i++) remix_add_debt(young_of(&w, i), UINT32_MAX);
  for (uint32_t left = parts, nr; left; left -= nr) {
    nr = left < 2 ? left : 2;
    scan_merge_ok(&w, nr, NULL);
    assert_int_equal(w.base->nr_young, left - nr);
  }
  world_fini(&w);
}

// Retiring a version retires, view by view, a REMIX and its own tables that the other version lacks, and nothing else.
static void test_young_retire(void **state) {
  (void)state;
  struct world w;
  const uint32_t n = young_init(&w, 9000, 1.7, 8, 76);
  young_round(&w, n, 1, 20, true, NULL);
  struct version *old = w.base;
  struct part *const p = old->parts[0];
  for (uint32_t join = 0; join < 2; join++) {
    for (uint32_t i = 0; i < (join ? p->remix->nr_entries / 8 : 10); i++) put(&w, 3 + i, false);
    OK(round_try(&w));
    assert_int_equal(w.next->parts[0]->young == NULL, join);
    version_ref(old);
    if (!join) {
      // cannot be installed: the new files go, the old ones stay
      compact_retire(w.next, old);
      version_unref(w.next);
      version_unref(old);
      expect_files(&w, old);
      assert_false(atomic_load(&p->remix->obsolete) || atomic_load(&p->young->obsolete));
      for (uint32_t r = 0; r < part_runs(p); r++) assert_false(atomic_load(&part_run(p, r)->obsolete));
      OK(round_try(&w));
      version_ref(old);
    }
    compact_retire(old, w.next);
    assert_int_equal(atomic_load(&p->remix->obsolete), join);
    assert_true(atomic_load(&p->young->obsolete));
    for (uint32_t r = 0; r < part_runs(p); r++)
      assert_int_equal(atomic_load(&part_run(p, r)->obsolete), join && r >= part_old_runs(p));
    if (!join) {
      // as nothing else has it: as if the round had not been
      atomic_store(&p->young->obsolete, false);
      compact_retire(w.next, old);
      version_unref(w.next);
      version_unref(old);
      expect_files(&w, old);
      thaw(&w);
      continue;
    }
    version_unref(old);
    for (uint32_t a = 0; a < w.k.nr; a++)
      if (w.fresh[a] != NONE) w.disk[a] = w.fresh[a];
    version_unref(old);
    w.base = w.next;
    expect_files(&w, w.base);
    expect_contents(&w, w.base, w.disk);
  }
  thaw(&w);
  world_fini(&w);
}

// ---- runs of another opening, which made larger tables (B1 in compact/plan.h)

#define LARGE_KEYS 3000u  // every second is in the older view

// One partition of few and large runs: the two beside the oldest have more pages than a partition may have tables.
// young: they are of a young view, and a few more records would end it. From here on tables have one page.
static void large_runs(struct world *w, bool young, uint64_t seed) {
  world_init(w, LARGE_KEYS + 1000, 0, seed);
  w->c.build.max_pages = 4000;
  w->value = YOUNG_VALUE;
  put_range(w, 0, LARGE_KEYS, 2, false);
  round_ok(w, NULL);
  const uint32_t share = remix_of(w, 0)->nr_entries / COMPACT_YOUNG_SHARE / 2 - 2;
  w->c.young_from = young;
  for (uint32_t r = 0; r < 2; r++) young_round(w, LARGE_KEYS - 100, 1 + 2 * r, share, false, NULL);
  const struct part *const p = w->base->parts[0];
  assert_true(w->base->nr_parts == 1 && part_runs(p) == 3 && part_young_runs(p) == (young ? 2 : 0));
  assert_true(part_run(p, 1)->nr_pages + part_run(p, 2)->nr_pages > REMIX_RUNS_MAX + 4);
  w->c.build.max_pages = 1;
  w->large = true;
}

// A young view ends that takes many tables now. The round of a memtable writes the partition as a whole, and on a full
// disk a few tables that are larger.
static void test_large_ends(void **state) {
  (void)state;
  for (uint32_t scarce = 0; scarce < 2; scarce++) {
    struct world w;
    uint64_t kinds[COMPACT_KINDS];
    large_runs(&w, true, 90);
    w.c.build.max_pages = scarce ? 1 : 2;
    w.bounded = scarce;
    w.room.scarce = scarce;
    young_round(&w, LARGE_KEYS - 100, 5, 8, false, kinds);
    expect_kind(kinds, scarce ? COMPACT_MAJOR : COMPACT_SPLIT, 1);
    assert_int_equal(w.base->nr_young, 0);
    if (scarce) assert_true(w.base->nr_parts == 1 && part_runs(w.base->parts[0]) <= COMPACT_CUT_RUNS);
    else assert_true(w.base->nr_parts > REMIX_RUNS_MAX);
    w.bounded = false;
    world_fini(&w);
  }
}

// Merges for scans write only the runs that they take, into tables that are larger.
static void test_large_scan_merge(void **state) {
  (void)state;
  for (uint32_t young = 0; young < 2; young++) {
    struct world w;
    uint64_t kinds[COMPACT_KINDS];
    large_runs(&w, young, 91 + young);
    struct sst *const oldest = part_run(w.base->parts[0], 0);
    remix_add_debt(young ? young_of(&w, 0) : remix_of(&w, 0), UINT32_MAX);
    scan_merge_ok(&w, 1, kinds);
    expect_kind(kinds, COMPACT_MAJOR, 1);
    const struct part *const p = w.base->parts[0];
    assert_true(w.base->nr_parts == 1 && !part_young(p) && part_run(p, 0) == oldest);
    assert_true(part_runs(p) <= COMPACT_CUT_RUNS && part_runs(p) > COMPACT_CUT_RUNS / 2);
    world_fini(&w);
  }
}

// The estimate of such a merge is far too small, because the counts take most records for old versions. The last tables
// become larger.
static void test_large_estimate(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  large_runs(&w, true, 93);
  remix_add_debt(young_of(&w, 0), UINT32_MAX);
  young_of(&w, 0)->nr_keys = 1;
  w.c.build.max_pages = 3;
  scan_merge_ok(&w, 1, kinds);
  assert_true(part_runs(w.base->parts[0]) <= COMPACT_CUT_RUNS);
  world_fini(&w);
}

// ---- failures

// One young view begins, one goes on, one has its runs merged within it, one is joined, and new data comes after one.
static void ready_to_fail_young(struct world *w, uint64_t seed) {
  world_init(w, 6000, 0, seed);
  w->value = 200;
  w->c.build.max_pages = 16;
  w->c.memtable_size = COMPACT_ABORT_SHARE * 4000;
  put_range(w, 0, keys_for(w, 16), 2, false);
  round_ok(w, NULL);
  assert_true(w->base->nr_parts >= 4);
  w->c.young_from = 8;
  const uint32_t parts = w->base->nr_parts, merged = first_key_of(w, 1), joined = first_key_of(w, 2),
                 on = first_key_of(w, 3);
  for (uint32_t r = 0; part_runs(w->base->parts[1]) < compact_run_limit(&w->c, w->base->parts[1], 0); r++) {
    put_range(w, merged + r, merged + r + 2, 1, r % 2);
    if (r < 2) put_range(w, joined + r, joined + 30, 3, r % 2);
    if (r < 2) put_range(w, on + r, on + 10, 3, r % 2);
    round_ok(w, NULL);
  }
  assert_int_equal(w->base->nr_parts, parts);
  put_range(w, 3, 9, 2, true);
  put_range(w, merged, merged + 40, 2, false);
  put(w, merged + 1, true);
  put_range(w, joined + 1, on, 2, true);
  put_range(w, on, on + 12, 5, true);
  put_range(w, w->k.nr - 500, w->k.nr, 1, false);
}

static void expect_young_after(struct world *w) {
  uint64_t kinds[COMPACT_KINDS];
  memset(w->went, 0, sizeof(w->went));
  round_ok(w, kinds);
  expect_kind(kinds, COMPACT_SPLIT, 1);
  for (enum went i = BEGUN; i <= JOINED; i++)
    if (w->went[i] == 0) fail_msg("nothing of kind %d", i);
  world_fini(w);
}

static void test_young_no_memory(void **state) {
  (void)state;
  struct world w;
  ready_to_fail_young(&w, 78);
  no_memory(&w, 1);
  expect_young_after(&w);
}

static void test_young_io_fails(void **state) {
  (void)state;
  struct world w;
  ready_to_fail_young(&w, 78);
  io_fails(&w);
  expect_young_after(&w);
}

// A merge for scans of a young view, and of both views.
static void test_young_scan_merge_fails(void **state) {
  (void)state;
  struct world w;
  ready_to_fail_scan_merge(&w, 79);
  w.scan_merges = false;
  w.c.young_from = 4;
  put_range(&w, first_key_of(&w, 0) + 1, first_key_of(&w, 0) + 9, 3, true);
  put_range(&w, first_key_of(&w, 1) + 1, first_key_of(&w, 1) + 9, 3, true);
  round_ok(&w, NULL);
  assert_true(young_of(&w, 0) && young_of(&w, 1));
  w.scan_merges = true;
  no_memory(&w, 1);
  io_fails(&w);
  (void)round_again(&w);
  world_install(&w);
  assert_true(!young_of(&w, 0) && !young_of(&w, 1));
  world_fini(&w);
}

// All of a young view's keys are deleted as a range. A merge that takes nothing else leaves the other view as it is.
static void test_young_erased(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  const uint32_t n = young_init(&w, 9000, 1.7, 8, 66);
  for (uint32_t i = 0; i < 20; i++) put(&w, n / 2 + i, i % 3 == 0);
  round_ok(&w, kinds);
  assert_non_null(young_of(&w, 0));
  const uint32_t runs = remix_of(&w, 0)->nr_runs;
  const uint32_t at[1][2] = {{n / 2, n / 2 + 20}};
  struct compact_erase sum = {.keys = 0};
  erase_keys(&w, at, 1, 0, &sum);
  assert_true(sum.erased == 1 && sum.dropped == 0);
  assert_int_equal(remix_of(&w, 0)->nr_runs, runs);
  assert_int_equal(remix_live(young_of(&w, 0)), 0);
  remix_add_debt(young_of(&w, 0), UINT32_MAX);
  scan_merge_ok(&w, 1, NULL);
  assert_null(young_of(&w, 0));
  assert_int_equal(remix_of(&w, 0)->nr_runs, runs + 1);
  assert_int_equal(remix_of(&w, 0)->runs[runs]->nr_records, 1);
  world_fini(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_young_erased),
      cmocka_unit_test(test_young_no_memory),
      cmocka_unit_test(test_young_io_fails),
      cmocka_unit_test(test_young_scan_merge_fails),
      cmocka_unit_test(test_young_keys),
      cmocka_unit_test(test_young_pages),
      cmocka_unit_test(test_young_begins),
      cmocka_unit_test(test_young_merged),
      cmocka_unit_test(test_young_merged_some),
      cmocka_unit_test(test_young_deeper),
      cmocka_unit_test(test_young_all),
      cmocka_unit_test(test_young_garbage),
      cmocka_unit_test(test_young_append),
      cmocka_unit_test(test_young_append_runs),
      cmocka_unit_test(test_young_abort),
      cmocka_unit_test(test_young_whole),
      cmocka_unit_test(test_young_scan_merge),
      cmocka_unit_test(test_young_scan_merge_same_keys),
      cmocka_unit_test(test_young_scan_merge_due),
      cmocka_unit_test(test_young_scan_merge_workers),
      cmocka_unit_test(test_young_retire),
      cmocka_unit_test(test_large_ends),
      cmocka_unit_test(test_large_scan_merge),
      cmocka_unit_test(test_large_estimate),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
