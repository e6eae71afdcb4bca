// SPDX-License-Identifier: Apache-2.0
//
// Garbage in tables: its estimates against the model, the bound that a round of a memtable keeps, and the merges of a
// store at rest, which may fail or be given up at any moment.
#include "tests/lib/check.h"

#include <inttypes.h>
#include <math.h>

#include "compact/garbage.h"
#include "tests/lib/rounds.h"

#define NEAR(a, b, share) (fabs((double)(a) - (double)(b)) <= (share) * (double)(b))

static uint64_t model_keys(const struct world *w) {
  uint64_t sum = 0;
  for (uint32_t a = 0; a < w->k.nr; a++) sum += w->disk[a] > TOMB;
  return sum;
}

// Bytes of keys and values of all records in tables.
static uint64_t table_sum(const struct version *v) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++)
    for (uint32_t r = 0; r < part_runs(v->parts[i]); r++) {
      const struct sst *const t = part_run(v->parts[i], r);
      sum += t->key_bytes + t->value_bytes;
    }
  return sum;
}

static void expect_estimate(const struct world *w) {
  struct garbage all;
  garbage_all(w->base, &all);
  const uint64_t live = world_bytes(w), sum = table_sum(w->base);
  if (!NEAR(all.live, live, 0.06)) fail_msg("live %" PRIu64 ", not %" PRIu64, all.live, live);
  if (!NEAR(all.keys, model_keys(w), 0.03)) fail_msg("keys %" PRIu64 ", not %" PRIu64, all.keys, model_keys(w));
  if (!NEAR(all.garbage + all.live, sum, 0.01)) fail_msg("all %" PRIu64 ", not %" PRIu64, all.garbage + all.live, sum);
  assert_true(all.files > sum);
}

static void test_estimates(void **state) {
  (void)state;
  for (uint32_t seed = 0; seed < 3; seed++) {
    struct world w;
    struct garbage all;
    world_init(&w, 12000, 0, 70 + seed);
    garbage_all(w.base, &all);
    assert_true(all.files == 0 && all.live == 0 && all.garbage == 0 && all.keys == 0);
    const uint32_t n = keys_for(&w, 6);
    put_range(&w, 0, n, 1, false);
    round_ok(&w, NULL);
    expect_estimate(&w);
    garbage_all(w.base, &all);
    assert_int_equal(all.garbage, 0);
    for (uint32_t r = 0; r < 3; r++) {
      put_range(&w, r, n, 5, false);
      put_range(&w, r + 1, n, 7, true);
      round_ok(&w, NULL);
      expect_estimate(&w);
    }
    world_fini(&w);
  }
}

// A young view hides as many keys as it overwrites, and new keys hide none.
static void test_hides(void **state) {
  (void)state;
  for (uint32_t fresh = 0; fresh < 2; fresh++) {
    struct world w;
    world_init(&w, 56000, 0, 80);
    w.c.build.max_pages = 4096;  // one partition
    w.c.memtable_size = 64 << 20;
    const uint32_t n = 32000;
    assert_true(w.k.nr > n);
    put_range(&w, 0, n, 2, false);
    round_ok(&w, NULL);
    w.c.young_from = 8;
    uint64_t last = 0;
    for (uint32_t r = 0; r < 2; r++) {
      put_range(&w, 40 * r + fresh, n, 64, false);
      round_ok(&w, NULL);
      const struct part *const p = w.base->parts[0];
      assert_non_null(part_young(p));
      const uint64_t hidden = part_hides(p), all = remix_live(part_young(p));
      assert_int_equal(all, 500 * (r + 1));
      if (fresh) assert_true(hidden <= 64);
      else assert_true(NEAR(hidden, all, 0.15));
      assert_true(hidden >= last);
      last = hidden;
      expect_estimate(&w);
    }
    // without that knowledge it is half
    w.base->parts[0]->hides = PART_HIDES_UNKNOWN;
    assert_int_equal(part_hides(w.base->parts[0]), 500);
    world_fini(&w);
  }
}

static uint64_t most_of(uint64_t beside, uint64_t files, uint64_t live, uint64_t garbage) {
  const struct garbage all = {.files = files, .live = live, .garbage = garbage};
  return garbage_most(&all, beside);
}

static void test_most(void **state) {
  (void)state;
  for (uint64_t m = 1 << 10; m <= 1 << 28; m <<= 6) {
    assert_int_equal(most_of(m, 0, 0, 0), 0);
    const uint64_t most = 160 * m - 100 * m / 256;
    assert_int_equal(most_of(4 * m, 140 * m, 100 * m, 20 * m), most - 4 * m);
    assert_int_equal(most_of(0, 140 * m, 100 * m, 20 * m), most);
    // a merge of everything in each round would be the price of less
    assert_int_equal(most_of(4 * m, 14 * m, 10 * m, 2 * m), 14 * m);
    assert_int_equal(most_of(90 * m, 14 * m, 10 * m, 2 * m), 14 * m);
    // records of a few bytes have files that are large without any garbage
    assert_int_equal(most_of(4 * m, 190 * m, 100 * m, 10 * m), 210 * m);
  }
}

// Overwrites and deletes some keys by chance.
static void change_some(struct world *w, uint32_t n, uint32_t nr, uint32_t tombs, uint64_t *rng) {
  for (uint32_t i = 0; i < nr; i++) put(w, (uint32_t)(rng_next(rng) % n), rng_next(rng) % 100 < tombs);
  round_ok(w, NULL);
}

// How room is made: not at all, by the rounds themselves, or in steps before them.
enum way { FREE, WITHIN, STEPS, WAYS };

// Rounds that overwrite and delete. Returns the most room of all files at once, the new ones beside the old ones, in
// percent of the live bytes.
static uint32_t overwrite(enum way way, uint32_t tombs, uint64_t *written_out) {
  struct world w;
  uint64_t rng = 90 + tombs;
  uint32_t worst = 0;
  world_init(&w, 12000, 0, 90);
  w.value = 600;  // so that the files are little more than the data
  w.c.memtable_size = 256 << 10;
  w.c.build.max_pages = 64;
  const uint32_t n = keys_for(&w, 18);
  put_range(&w, 0, n, 1, false);
  round_ok(&w, NULL);
  w.c.garbage_from = 1;
  w.c.cut_from = COMPACT_CUT_FROM;
  w.bounded = way != FREE;
  w.room.steps = way == STEPS;
  for (uint32_t r = 0; r < 60; r++) {
    w.most_room = 0;
    change_some(&w, n, 400, tombs, &rng);
    const uint32_t share = (uint32_t)(w.most_room * 100 / world_bytes(&w));
    if (share > worst) worst = share;
  }
  assert_int_equal(atomic_load(&w.c.stats.garbage_merges) > 0, way != FREE);
  *written_out = atomic_load(&w.c.stats.table_bytes);
  world_fini(&w);
  return worst;
}

static void test_bound(void **state) {
  (void)state;
  for (uint32_t tombs = 0; tombs <= 30; tombs += 30) {
    uint64_t written[WAYS];
    uint32_t most[WAYS];
    for (enum way way = FREE; way < WAYS; way++) most[way] = overwrite(way, tombs, &written[way]);
    printf(
        "percent of the live bytes: %u without merges for room, %u, %u in steps; %.2f, %.2f times the bytes written\n",
        most[FREE], most[WITHIN], most[STEPS], (double)written[WITHIN] / (double)written[FREE],
        (double)written[STEPS] / (double)written[FREE]);
    assert_true(most[FREE] > 220 && most[WITHIN] <= 200 && most[STEPS] <= 175);
    assert_true(written[WITHIN] < 2 * written[FREE] && written[STEPS] < 2 * written[FREE]);
  }
}

// A world with much garbage in some partitions, and little in others.
static void garbage_init(struct world *w, uint32_t keys, uint32_t threads, uint64_t seed) {
  world_init(w, keys, threads, seed);
  w->value = 600;
  const uint32_t n = keys_for(w, 24);
  put_range(w, 0, n, 1, false);
  round_ok(w, NULL);
  for (uint32_t r = 0; r < 2; r++) {
    put_range(w, r, n / 2, 3, r == 1);
    put_range(w, n / 2 + r, n, 20, false);
    round_ok(w, NULL);
  }
  w->c.memtable_size = 4096;
  w->c.garbage_from = 1;
  w->garbage = true;
  assert_true(compact_garbage_due(&w->c, w->base));
}

// A step that fails changes nothing, and the round that asked for it can still be made.
static void test_steps_fail(void **state) {
  (void)state;
  struct world w;
  garbage_init(&w, 9000, 0, 150);
  w.garbage = false;
  w.bounded = w.room.steps = true;
  put_range(&w, 0, w.k.nr / 4, 3, false);
  OK(round_try(&w));
  assert_true(!w.next && w.room.nr > 1 && w.room.at == 0);
  w.step = true;
  // one write fails, and the next merge would not: the step fails all the same
  fault_io_set(FAULT_WRITE, 1, false);
  assert_int_equal(round_try(&w), REMIXDB_NOSPACE);
  fault_io_set(0, 0, false);
  assert_null(w.next);
  for (int64_t nth = 1; nth < 40; nth += 13) {
    fault_io_set(FAULT_WRITE, nth, true);
    const enum remixdb_status s = round_try(&w);
    fault_io_set(0, 0, false);
    if (s == REMIXDB_OK) break;
    assert_int_equal(s, REMIXDB_NOSPACE);
    assert_null(w.next);
    expect_files(&w, w.base);
    expect_contents(&w, w.base, w.disk);
  }
  w.step = false;
  if (w.next) world_install_step(&w);
  OK(round_try(&w));
  assert_non_null(w.next);
  world_install(&w);
  compact_room_fini(&w.room);
  world_fini(&w);
}

static uint32_t worst_of(const struct version *v) {
  double most = 0;
  uint32_t worst = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    struct garbage g;
    garbage_of(v->parts[i], &g);
    if ((double)g.garbage / (double)(g.live + 1) <= most) continue;
    most = (double)g.garbage / (double)(g.live + 1);
    worst = i;
  }
  return worst;
}

// The partition with the most garbage cannot be read. All other work is done, and nobody tries to merge that one again.
static void test_damaged(void **state) {
  (void)state;
  for (enum way way = FREE; way < WAYS; way++) {  // FREE: at rest
    struct world w;
    garbage_init(&w, 9000, 0, 160);
    const uint32_t bad = worst_of(w.base), other = w.base->nr_parts - 2, key = first_key_of(&w, other);
    const struct sst *const run = part_run(w.base->parts[bad], 0);
    w.garbage = way == FREE;
    w.bounded = way != FREE;
    w.room.steps = way == STEPS;
    w.c.memtable_size = 64 << 10;
    if (way != FREE) put_range(&w, key, first_key_of(&w, other + 1), 5, false);
    damage(w.base, bad);
    assert_true(bad + 1 < other);
    OK(round_try(&w));
    damage(w.base, bad);
    for (w.step = way == STEPS; w.step; damage(w.base, bad)) {
      if (w.next) world_install_step(&w);
      damage(w.base, bad);
      OK(round_try(&w));
      w.step = w.next != NULL;
    }
    if (way == STEPS) OK(round_try(&w));
    assert_non_null(w.next);
    if (way == FREE) world_install_step(&w);
    else world_install(&w);
    assert_int_equal(atomic_load(&w.c.stats.failed), 1);
    assert_true(atomic_load(&w.c.stats.garbage_merges) > 0);
    assert_true(is_damaged(w.base->parts[bad]) && part_run(w.base->parts[bad], 0) == run);
    assert_true(w.told == 1 && w.tell.status == REMIXDB_CORRUPT && w.c.left_out.status == REMIXDB_OK);
    compact_room_fini(&w.room);
    world_fini(&w);
  }
}

// Log and reserved room count, too.
static void test_beside(void **state) {
  (void)state;
  const uint64_t mb = 1 << 20;
  struct compact *const c = mem_calloc(1, sizeof(*c));
  const struct garbage much = {.files = 120 * mb, .live = 100 * mb, .garbage = 4 * mb},
                       little = {.files = 120 * mb, .live = 100 * mb, .garbage = 3 * mb};
  assert_non_null(c);
  c->garbage_from = 1;
  c->beside = 8 * mb;
  assert_false(garbage_due(c, &much));
  c->beside = 9 * mb;
  assert_true(garbage_due(c, &much));
  assert_false(garbage_due(c, &little));
  mem_free(c);
}

static void test_rest(void **state) {
  (void)state;
  for (uint32_t threads = 0; threads < 3; threads++) {
    struct world w;
    struct garbage all;
    uint32_t rounds = 0;
    garbage_init(&w, 9000, threads, 100 + threads);
    const uint64_t read = atomic_load(&w.c.stats.read_bytes);
    garbage_all(w.base, &all);
    assert_true(all.garbage > all.live / 8 && compact_garbage_due(&w.c, w.base));
    for (;; rounds++) {
      const uint64_t merges = atomic_load(&w.c.stats.garbage_merges), scans = atomic_load(&w.c.stats.scan_merges);
      const struct garbage before = all;
      OK(round_try(&w));
      if (!w.next) break;
      const uint64_t nr = atomic_load(&w.c.stats.garbage_merges) - merges;
      assert_true(nr > 0 && nr <= w.c.scan_merge_parts);
      assert_int_equal(atomic_load(&w.c.stats.scan_merges), scans);
      world_install(&w);
      garbage_all(w.base, &all);
      assert_true(all.garbage < before.garbage && all.files < before.files);
      expect_estimate(&w);
    }
    assert_true(rounds > 1);
    assert_false(compact_garbage_due(&w.c, w.base));
    assert_true(all.garbage <= all.live / GARBAGE_REST || all.files <= all.live + all.live / 25 * 7);
    assert_true(atomic_load(&w.c.stats.read_bytes) - read < 2 * all.files);
    // none if they are not wanted, and none for little
    w.c.garbage_from = 0;
    put_range(&w, 0, w.k.nr / 4, 2, true);
    w.garbage = false;
    round_ok(&w, NULL);
    assert_false(compact_garbage_due(&w.c, w.base));
    w.c.garbage_from = 1 << 20;
    assert_false(compact_garbage_due(&w.c, w.base));
    w.c.garbage_from = 1;
    assert_true(compact_garbage_due(&w.c, w.base));
    world_fini(&w);
  }
}

static void test_rest_yields(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 12000, 0, 110);
  w.c.build.max_pages = 2048;  // one partition: the merge is long
  w.c.memtable_size = 64 << 20;
  put_range(&w, 0, w.k.nr, 1, false);
  round_ok(&w, NULL);
  put_range(&w, 0, w.k.nr, 2, true);
  round_ok(&w, NULL);
  w.c.memtable_size = 4096;
  w.c.garbage_from = 1;
  w.garbage = true;
  atomic_store(&w.c.yield, true);
  FAILS(round_try(&w), REMIXDB_ABORTED);
  expect_failed(&w, REMIXDB_ABORTED, true);
  assert_true(compact_garbage_due(&w.c, w.base));
  atomic_store(&w.c.yield, false);
  OK(round_try(&w));
  world_install(&w);
  assert_false(compact_garbage_due(&w.c, w.base));
  world_fini(&w);
}

static void test_rest_fails(void **state) {
  (void)state;
  struct world w;
  garbage_init(&w, 9000, 0, 120);
  no_memory(&w, 3);
  world_fini(&w);
  garbage_init(&w, 9000, 0, 121);
  io_fails(&w);
  world_fini(&w);
}

// Where records are compressed, live bytes and garbage are bytes of the files, and garbage is noticed all the same.
static void test_compressed(void **state) {
  (void)state;
  struct world w;
  struct garbage all;
  world_init(&w, 9000, 0, 130);
  w.value = 600;
  w.c.build.compression = REMIXDB_COMPRESSION_ZSTD;
  put_range(&w, 0, w.k.nr, 1, false);
  round_ok(&w, NULL);
  garbage_all(w.base, &all);
  assert_true(all.files < table_sum(w.base) && all.live <= all.files && all.garbage == 0);
  put_range(&w, 0, w.k.nr, 2, false);
  round_ok(&w, NULL);
  garbage_all(w.base, &all);
  assert_true(all.live + all.garbage <= all.files && all.garbage > all.live / 5);
  w.c.memtable_size = 4096;
  w.c.garbage_from = 1;
  assert_true(compact_garbage_due(&w.c, w.base));
  assert_true(garbage_most(&all, 0) < 2 * all.files);
  world_fini(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_estimates),   cmocka_unit_test(test_hides),      cmocka_unit_test(test_most),
      cmocka_unit_test(test_bound),       cmocka_unit_test(test_beside),     cmocka_unit_test(test_rest),
      cmocka_unit_test(test_rest_yields), cmocka_unit_test(test_rest_fails), cmocka_unit_test(test_compressed),
      cmocka_unit_test(test_steps_fail),  cmocka_unit_test(test_damaged),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
