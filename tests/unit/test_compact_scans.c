// SPDX-License-Identifier: Apache-2.0
//
// Merges for scans: a partition is merged when scans have paid for it.
#include "tests/lib/check.h"
#include "tests/lib/rounds.h"

// A scan merge is due when scans have paid for all that it would write, and for no less than COMPACT_SCAN_DEBT_MIN.
static void test_scan_merge_due(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 12000, 0, 40);
  w.c.build.max_pages = 2048;
  w.value = 400;
  scan_merge_ok(&w, 0, NULL);  // there is no table
  put_range(&w, 0, w.k.nr, 1, false);
  round_ok(&w, NULL);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 1);
  wear(&w, 0);  // a single run cannot be merged
  assert_false(compact_scan_debt_paid(remix_of(&w, 0)));
  scan_merge_ok(&w, 0, NULL);
  put_range(&w, 0, w.k.nr, 9, false);
  round_ok(&w, NULL);
  struct remix *x = remix_of(&w, 0);
  const uint64_t due = pages_of(&w, 0);
  assert_true(due > COMPACT_SCAN_DEBT_MIN);
  atomic_store(&x->scan_debt, 0);  // the reads of the checks count, too
  atomic_store(&x->scan_debt_due, 0);
  remix_add_debt(x, due - 1);
  assert_false(compact_scan_debt_paid(x));
  assert_int_equal(atomic_load(&x->scan_debt_due), due);
  scan_merge_ok(&w, 0, NULL);
  assert_int_equal(scan_debt_of(&w, 0), due - 1);
  remix_add_debt(x, 1);
  assert_true(compact_scan_debt_paid(x));
  scan_merge_ok(&w, 1, NULL);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 1);
  world_fini(&w);

  world_init(&w, 3000, 0, 41);
  put_range(&w, 0, 800, 1, false);
  round_ok(&w, NULL);
  put_range(&w, 3, 800, 20, true);
  round_ok(&w, NULL);
  assert_true(pages_of(&w, 0) < COMPACT_SCAN_DEBT_MIN);
  atomic_store(&remix_of(&w, 0)->scan_debt, 0);
  remix_add_debt(remix_of(&w, 0), COMPACT_SCAN_DEBT_MIN - 1);
  scan_merge_ok(&w, 0, NULL);
  remix_add_debt(remix_of(&w, 0), 1);
  scan_merge_ok(&w, 1, NULL);
  // new data that becomes one more run leaves the debt as it is
  put_range(&w, 3, 800, 20, false);
  round_ok(&w, NULL);
  remix_add_debt(remix_of(&w, 0), COMPACT_SCAN_DEBT_MIN);
  put_range(&w, 5, 800, 20, false);
  round_ok(&w, NULL);
  assert_true(scan_debt_of(&w, 0) >= COMPACT_SCAN_DEBT_MIN);
  scan_merge_ok(&w, 1, NULL);
  assert_true(scan_debt_of(&w, 0) < COMPACT_SCAN_DEBT_MIN);
  world_fini(&w);
}

// A scan merge takes the many small runs first, and a large old one only when the same bytes have no better use.
static void test_scan_merge_some(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 3000, 0, 42);
  const uint32_t n = keys_for(&w, 0.85);
  put_range(&w, 0, n, 1, false);
  round_ok(&w, NULL);
  for (uint32_t r = 0; r < 5; r++) {
    put_range(&w, r, n, 40, r == 3);
    if (r) put_range(&w, 0, n, 40, false);  // they make old versions
    round_ok(&w, NULL);
  }
  struct sst *const oldest = remix_of(&w, 0)->runs[0];
  assert_int_equal(remix_of(&w, 0)->nr_runs, 6);
  const uint64_t tombs = tombs_of(&w, 0), written = atomic_load(&w.c.stats.table_bytes);
  assert_true(tombs > 0);
  wear(&w, 0);
  scan_merge_ok(&w, 1, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 2);
  assert_ptr_equal(remix_of(&w, 0)->runs[0], oldest);
  assert_int_equal(tombs_of(&w, 0), tombs);  // they hide older versions
  assert_true(atomic_load(&w.c.stats.table_bytes) - written < oldest->data_size / 2);
  assert_true(remix_of(&w, 0)->nr_entries > remix_of(&w, 0)->nr_keys);
  // paid for anew, it merges all runs, and no tombstone is left
  scan_merge_ok(&w, 0, NULL);
  wear(&w, 0);
  scan_merge_ok(&w, 1, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 1);
  assert_int_equal(tombs_of(&w, 0), 0);
  assert_int_equal(remix_of(&w, 0)->nr_entries, remix_of(&w, 0)->nr_keys);
  wear(&w, 0);
  scan_merge_ok(&w, 0, NULL);
  // when all keys are deleted the merge leaves nothing
  w.c.build.max_pages = 10 * TABLE;  // otherwise so much garbage is merged at once
  put_range(&w, 0, n, 1, true);
  round_ok(&w, NULL);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 2);
  wear(&w, 0);
  scan_merge_ok(&w, 1, NULL);
  assert_null(remix_of(&w, 0));
  scan_merge_ok(&w, 0, NULL);
  world_fini(&w);
}

// Tables beside each other are read like one. Merging them gains nothing, nor does merging one of them with a table
// above.
static void test_scan_merge_levels(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 12000, 0, 43);
  put_range(&w, 0, keys_for(&w, 1.6), 1, false);
  round_ok(&w, NULL);
  assert_int_equal(w.base->nr_parts, 1);
  struct remix *x = remix_of(&w, 0);
  assert_int_equal(x->nr_runs, 2);
  assert_true(kv_cmp(x->runs[0]->max, x->runs[1]->min) < 0);
  wear(&w, 0);
  assert_false(compact_scan_debt_paid(x));
  scan_merge_ok(&w, 0, NULL);
  // one above them both
  put_range(&w, 0, keys_for(&w, 1.6), 30, true);
  round_ok(&w, NULL);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 3);
  wear(&w, 0);
  scan_merge_ok(&w, 1, kinds);
  x = remix_of(&w, 0);
  assert_int_equal(x->nr_runs, 2);
  assert_true(kv_cmp(x->runs[0]->max, x->runs[1]->min) < 0);
  assert_int_equal(tombs_of(&w, 0), 0);
  // two above them: these become one, and the others stay
  struct sst *const low = x->runs[0], *const high = x->runs[1];
  for (uint32_t r = 0; r < 2; r++) {
    put_range(&w, r, keys_for(&w, 1.6), 30, false);
    round_ok(&w, NULL);
  }
  wear(&w, 0);
  scan_merge_ok(&w, 1, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  x = remix_of(&w, 0);
  assert_int_equal(x->nr_runs, 3);
  assert_ptr_equal(x->runs[0], low);
  assert_ptr_equal(x->runs[1], high);
  // small ones that share one key are not beside each other
  put(&w, 5, false);
  put(&w, 9, false);
  round_ok(&w, NULL);
  put(&w, 1, false);
  put(&w, 5, true);
  round_ok(&w, NULL);
  wear(&w, 0);
  scan_merge_ok(&w, 1, NULL);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 4);
  world_fini(&w);

  // nor are three tables, if two have the same keys
  world_init(&w, 3000, 0, 50);
  for (uint32_t r = 0; r < 3; r++) {
    put_range(&w, r == 1 ? 2000 : 1000, r == 1 ? 2100 : 1100, 1 + r, false);
    round_ok(&w, NULL);
    wear(&w, 0);
    scan_merge_ok(&w, r == 2, NULL);
  }
  assert_int_equal(remix_of(&w, 0)->nr_runs, 1);
  world_fini(&w);
}

// A scan merge of a whole partition that holds more than it should.
static void test_scan_merge_split(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 12000, 0, 44);
  const uint32_t n = keys_for(&w, 6);
  for (uint32_t r = 0; r < 7; r++) {
    put_range(&w, r, n, 7, false);
    if (r) put_range(&w, 0, 200, 1, r % 2);
    round_ok(&w, NULL);
  }
  assert_int_equal(w.base->nr_parts, 1);
  assert_true(remix_of(&w, 0)->nr_runs >= 7);
  wear(&w, 0);
  scan_merge_ok(&w, 1, kinds);
  expect_kind(kinds, COMPACT_SPLIT, 1);
  assert_true(w.base->nr_parts >= 3 && w.base->nr_parts <= 4);
  for (uint32_t i = 0; i < w.base->nr_parts; i++) {
    assert_true(remix_of(&w, i)->nr_runs <= COMPACT_PART_TABLES + 1);
    assert_int_equal(remix_of(&w, i)->nr_entries, remix_of(&w, i)->nr_keys);
  }
  wear_all(&w);
  scan_merge_ok(&w, 0, NULL);
  world_fini(&w);
}

// A round merges as many partitions as there are workers. The others stay due.
static void test_scan_merge_workers(void **state) {
  (void)state;
  for (uint32_t threads = 0; threads < 3; threads++) {
    struct world w;
    world_init(&w, 12000, threads, 45);
    three_parts(&w);
    put_range(&w, 1, keys_for(&w, 5.4), 25, true);
    round_ok(&w, NULL);
    const uint32_t parts = w.base->nr_parts;
    wear_all(&w);
    for (uint32_t left = due_of(&w), each = threads ? threads : 1, nr; left; left -= nr) {
      assert_int_equal(due_of(&w), left);
      nr = left < each ? left : each;
      scan_merge_ok(&w, nr, NULL);
    }
    assert_int_equal(atomic_load(&w.c.stats.scan_merges), parts);
    scan_merge_ok(&w, 0, NULL);
    world_fini(&w);
  }
}

// Opening the n-th file asks the scan merge to yield.
static struct world *yield_world;

static _Atomic int64_t yield_left;

static int yield_open(struct env *e, int at, const char *path, unsigned flags) {
  if (atomic_fetch_sub(&yield_left, 1) == 1) atomic_store(&yield_world->c.yield, true);
  return place_open(e, at, path, flags);
}

// When several workers give up at once, the message has the reason, and not that another one gave up.
static void test_scan_merge_yield_together(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 12000, 2, 45);
  three_parts(&w);
  put_range(&w, 1, keys_for(&w, 5.4), 25, true);
  round_ok(&w, NULL);
  for (uint32_t i = 0; i < 10; i++) {
    wear_all(&w);
    atomic_store(&w.c.yield, true);
    w.scan_merges = true;
    FAILS(round_try(&w), REMIXDB_ABORTED);
    assert_non_null(strstr(w.error.msg, "more urgent"));
  }
  atomic_store(&w.c.yield, false);
  world_fini(&w);
}

static void test_scan_merge_yield(void **state) {
  (void)state;
  struct world w;
  uint32_t given_up = 0;
  world_init(&w, 8000, 0, 46);
  const uint32_t n = keys_for(&w, 3);
  for (uint32_t r = 0; r < 3; r++) {
    put_range(&w, r, n, 3, false);
    round_ok(&w, NULL);
  }
  wear(&w, 0);
  atomic_store(&w.c.yield, true);
  w.scan_merges = true;
  FAILS(round_try(&w), REMIXDB_ABORTED);
  assert_null(w.next);
  assert_true(w.error.msg[0] != 0);
  assert_int_equal(scan_debt_of(&w, 0), 0);
  expect_files(&w, w.base);
  expect_contents(&w, w.base, w.disk);
  scan_merge_ok(&w, 0, NULL);  // it has to be paid for again, urgent or not
  atomic_store(&w.c.yield, false);
  scan_merge_ok(&w, 0, NULL);
  // it yields at any moment and leaves nothing, or it is nearly done and ends
  yield_world = &w;
  w.p.ops.open = yield_open;
  for (int64_t nth = 1;; nth++) {
    wear(&w, 0);
    atomic_store(&w.c.yield, false);
    atomic_store(&yield_left, nth);
    w.scan_merges = true;
    const enum remixdb_status s = round_try(&w);
    if (s == REMIXDB_OK) {
      compact_retire(w.next, w.base);
      version_unref(w.next);
    } else {
      FAILS(s, REMIXDB_ABORTED);
      assert_null(w.next);
      given_up++;
    }
    expect_files(&w, w.base);
    if (!atomic_load(&w.c.yield)) break;
  }
  w.p.ops.open = place_open;
  assert_true(given_up >= 3);
  assert_int_equal(atomic_load(&w.c.stats.failed), 0);
  expect_contents(&w, w.base, w.disk);
  // a round with new data does not yield
  atomic_store(&w.c.yield, true);
  w.scan_merges = false;
  put_range(&w, 1, n, 3, true);
  round_ok(&w, NULL);
  atomic_store(&w.c.yield, false);
  wear_all(&w);
  scan_merge_ok(&w, 1, NULL);
  world_fini(&w);
}

// Many rounds of both kinds, in threads, while a reader goes over the version.
static void test_scan_merge_threads(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 11000, 3, 47);
  put_range(&w, 0, keys_for(&w, 8), 1, false);
  round_ok(&w, NULL);
  uint64_t rng = 1;
  for (uint32_t r = 0; r < 6; r++) {
    for (uint32_t i = 0; i < 500; i++) put(&w, (uint32_t)(rng_next(&rng) % w.k.nr), i % 9 == 0);
    round_ok(&w, NULL);
    wear_all(&w);
    w.scan_merges = true;
    round_begin(&w);
    expect_contents(&w, w.base, w.disk);
    OK(round_end(&w));
    w.scan_merges = false;
    assert_non_null(w.next);
    world_install(&w);
  }
  assert_true(atomic_load(&w.c.stats.scan_merges) >= 12);
  world_fini(&w);
}

// Both partitions are merged as if nothing had failed.
static void expect_scan_merge_after(struct world *w) {
  uint64_t kinds[COMPACT_KINDS];
  struct sst *const low = remix_of(w, 1)->runs[0];
  wear(w, 0);
  wear(w, 1);
  scan_merge_ok(w, 2, kinds);
  assert_ptr_equal(remix_of(w, 1)->runs[0], low);
  assert_true(tombs_of(w, 1) > 0);
  assert_int_equal(tombs_of(w, 0), 0);
  world_fini(w);
}

// Puts a key whose record has expired at `expiry`; the model takes it for one that has not.
static void put_expiring(struct world *w, uint32_t at, uint64_t expiry) {
  static uint8_t buf[VALUE_MAX];
  struct wh_slot s;
  const struct kref key = w->k.keys[at];
  w->fresh[at] = w->next_what++;
  struct kv_rec rec = *KV_REC(kref(NULL, 0), buf, value_make(key, w->fresh[at], w->value, buf), false);
  rec.kind |= KV_EXPIRES;
  rec.expiry = expiry;
  enter(&w->p);
  wh_lock(w->frozen, key, hash64(key.ptr, key.len), &s);
  OK(wh_link(&s, &rec));
  wh_stamp(&s, ++w->seq);
  wh_unlock(&s);
  leave(&w->p);
}

// Expired records become tombstones in a merge of some runs, as many as they were. The selectors of the view say so
// afterwards: the next builds read these keys, and find what the selectors say.
static void test_scan_merge_expired(void **state) {
  (void)state;
  const uint64_t expiry = 1ull << 50;  // later than any clock, so that the checks read the records
  struct world w;
  world_init(&w, 3000, 0, 50);
  const uint32_t n = keys_for(&w, 0.85);
  put_range(&w, 0, n, 1, false);
  round_ok(&w, NULL);
  struct sst *const oldest = remix_of(&w, 0)->runs[0];
  for (uint32_t r = 0; r < 5; r++) {
    for (uint32_t a = r; a < n; a += 40) put_expiring(&w, a, expiry);
    round_ok(&w, NULL);
  }
  const uint32_t runs = remix_of(&w, 0)->nr_runs;
  const uint64_t entries = remix_of(&w, 0)->nr_entries;
  assert_int_equal(tombs_of(&w, 0), 0);
  atomic_store(&w.c.expired_ms, expiry);
  wear(&w, 0);
  w.scan_merges = true;
  OK(round_try(&w));
  w.scan_merges = false;
  assert_non_null(w.next);
  for (uint32_t r = 0; r < 5; r++)
    for (uint32_t a = r; a < n; a += 40) w.disk[a] = TOMB;
  world_install_step(&w);
  assert_true(remix_of(&w, 0)->nr_runs > 1 && remix_of(&w, 0)->nr_runs < runs);
  assert_ptr_equal(remix_of(&w, 0)->runs[0], oldest);
  assert_int_equal(remix_of(&w, 0)->nr_entries, entries);
  assert_true(tombs_of(&w, 0) > 0);
  for (uint32_t r = 0; r < 2; r++) {  // beside these keys, then over them
    for (uint32_t a = 6 - r; a < n; a += 40) put(&w, a, false);
    round_ok(&w, NULL);
  }
  world_fini(&w);
}

static void test_scan_merge_no_memory(void **state) {
  (void)state;
  struct world w;
  ready_to_fail_scan_merge(&w, 48);
  no_memory(&w, 1);
  expect_scan_merge_after(&w);
}

static void test_scan_merge_io_fails(void **state) {
  (void)state;
  struct world w;
  ready_to_fail_scan_merge(&w, 49);
  io_fails(&w);
  expect_scan_merge_after(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_scan_merge_due),       cmocka_unit_test(test_scan_merge_some),
      cmocka_unit_test(test_scan_merge_levels),    cmocka_unit_test(test_scan_merge_split),
      cmocka_unit_test(test_scan_merge_workers),   cmocka_unit_test(test_scan_merge_yield_together),
      cmocka_unit_test(test_scan_merge_yield),     cmocka_unit_test(test_scan_merge_threads),
      cmocka_unit_test(test_scan_merge_no_memory), cmocka_unit_test(test_scan_merge_io_fails),
      cmocka_unit_test(test_scan_merge_expired),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
