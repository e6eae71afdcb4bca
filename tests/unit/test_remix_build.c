// SPDX-License-Identifier: Apache-2.0
//
// Building a REMIX: each way of building gives the same view, and all fields of the view are right.
#include "tests/lib/check.h"
#include "tests/lib/remix_world.h"

#include "remix/write.h"

// The view equals one that is built from nothing, run by run.
static void check_from_scratch(struct world *t) {
  struct world u = {.p = t->p, .k = t->k, .tags = t->tags};
  memcpy(u.sst, t->sst, sizeof(u.sst));
  memcpy(u.has, t->has, sizeof(u.has));
  for (u.nr = 1; u.nr <= t->nr; u.nr++) world_build(&u, UINT32_MAX, 1, REMIX_BUILD_MERGE);
  u.nr = t->nr;
  check_view(&u);
  check_same_view(t->x, u.x);
  atomic_store(&u.x->obsolete, true);
  remix_unref(u.x);
}

// Tables of few long keys have no compressed keys, even where all may.
static bool all_have_ckeys(const struct remix *x) {
  uint32_t nr = 0;
  for (uint32_t r = 0; r < x->nr_runs; r++) nr += x->runs[r]->ckb_len != 0;
  return nr == x->nr_runs;
}

// Each way gives the same view of the same tables.
static void test_ways_agree(void **state) {
  (void)state;
  for (uint32_t round = 0; round < (SLOW > 1 ? 60 : usual_or_long(60, 120)); round++) {
    struct place p;
    struct world t;
    small_world(&t, &p, round % KEYS_KINDS, round / KEYS_KINDS % 3);
    world_spread(&t, 1 + below(8), below(5), NULL);
    world_add(&t, fresh_keys(&t, below(LAYOUTS), 1 + below(t.k.nr)));
    struct remix *const old = t.x;
    remix_ref(old);
    world_build(&t, UINT32_MAX, 1, REMIX_BUILD_MERGE);
    check_view(&t);
    assert_int_equal(t.b.way, REMIX_BUILD_MERGE);
    struct remix *const merged = t.x;
    remix_ref(merged);
    remix_unref(t.x);
    t.x = old;
    world_build(&t, UINT32_MAX, 1, REMIX_BUILD_SPLICE);
    assert_int_equal(t.b.way, REMIX_BUILD_SPLICE);
    check_view(&t);
    check_same_view(merged, t.x);
    if (all_have_ckeys(t.x)) assert_int_equal(t.b.data_pages_read, 0);
    remix_unref(merged);
    views_fini(&t);
    place_fini(&p);
  }
}

// The newest `take` runs leave, and the newest versions of their keys come again, but for keys with a bit in `out`, in
// up to so many tables with ascending ranges. Returns their number; *left_out: how many records do not come again.
static uint32_t world_merge(struct world *t, uint32_t take, uint32_t tables, const uint8_t *out, uint32_t *left_out) {
  uint8_t *const has = calloc(t->k.nr, 1);
  uint32_t records = 0;
  for (uint32_t n = 0; n < take; n++) {
    for (uint32_t i = 0; i < t->k.nr; i++)
      if (!has[i]) has[i] = t->has[t->nr - 1][i];
    records += count(t->has[t->nr - 1], 0, t->k.nr);
    world_drop(t, t->nr - 1);
  }
  for (uint32_t i = 0; out && i < t->k.nr; i++)
    if (out[i]) has[i] = HAS_NONE;
  *left_out = records - count(has, 0, t->k.nr);
  return world_add_some(t, has, tables);
}

// The same for `take` runs that are older than the last `newer` ones. hide: a key that one of these has does not come
// again. *exact: no such key has come.
static uint32_t world_merge_below(struct world *t, uint32_t newer, uint32_t take, uint32_t tables, bool hide,
                                  uint32_t *left_out, bool *exact) {
  struct sst *sst[REMIX_RUNS_MAX];
  uint8_t *has[REMIX_RUNS_MAX], *const hidden = calloc(t->k.nr, 1);
  t->nr -= newer;
  memcpy(sst, t->sst + t->nr, newer * sizeof(*sst));
  memcpy(has, t->has + t->nr, newer * sizeof(*has));
  *exact = true;
  for (uint32_t i = 0; i < t->k.nr; i++) {
    bool come = false;
    for (uint32_t r = 0; r < newer; r++) hidden[i] |= has[r][i];
    for (uint32_t r = t->nr - take; r < t->nr; r++) come = come || t->has[r][i];
    *exact = *exact && (hide || !hidden[i] || !come);
  }
  const uint32_t made = world_merge(t, take, tables, hide ? hidden : NULL, left_out);
  free(hidden);
  memcpy(t->sst + t->nr, sst, newer * sizeof(*sst));
  memcpy(t->has + t->nr, has, newer * sizeof(*has));
  t->nr += newer;
  return made;
}

// The last build moved all entries.
static void expect_no_key_read(const struct world *t) {
  assert_int_equal(t->b.ckb_bytes_read + t->b.data_pages_read + t->b.keys_read + t->b.key_bytes_compared, 0);
  assert_int_equal(t->b.entries_copied, t->x->nr_entries);
}

// Tells whether a view is moved if so many entries are left out.
static bool is_full(uint64_t entries, uint32_t left_out, uint32_t segs) {
  return entries - left_out >= (uint64_t)segs * 24;
}

// New tables are made of the newest runs alone. When they have the newest records of these, and the caller says so, the
// build reads no key.
static void test_moved(void **state) {
  (void)state;
  uint32_t moved = 0, less = 0;
  for (uint32_t round = 0; round < (SLOW > 1 ? 60 : usual_or_long(60, 240)); round++) {
    struct place p;
    struct world t;
    uint32_t left_out;
    small_world(&t, &p, round % KEYS_KINDS, round / KEYS_KINDS % 3);
    world_spread(&t, 1 + below(8), below(3) ? 0 : 1 + below(50), NULL);
    if (below(3) == 0) {  // with tombstones, and more versions of keys
      world_add(&t, fresh_keys(&t, below(LAYOUTS), 1 + below(40)));
      world_build(&t, UINT32_MAX, 1, REMIX_BUILD_SPLICE);
    }
    const uint64_t entries = t.x->nr_entries;
    const uint32_t segs = t.x->nr_segs, take = 1 + below(t.nr), kept = t.nr - take;
    const enum remix_build_way way = below(2) ? REMIX_BUILD_AUTO : REMIX_BUILD_MOVED;
    const uint32_t made = world_merge(&t, take, 1 + below(4), NULL, &left_out);
    t.moved = below(8) > 0;
    world_build(&t, first_runs(kept), made, way);
    check_view(&t);
    const bool expected = t.moved && (is_full(entries, left_out, segs) || way == REMIX_BUILD_MOVED);
    assert_int_equal(t.b.way == REMIX_BUILD_MOVED, expected);
    if (expected) expect_no_key_read(&t);
    moved += expected && left_out == 0;
    less += expected && left_out > 0;
    check_from_scratch(&t);
    views_fini(&t);
    place_fini(&p);
  }
  assert_true(moved > 10 && less > 5);
}

// New tables are made of runs that are older than some of those that stay. If these hide all, there is no new table.
// The build notices if the tables have records that they hide.
static void test_below(void **state) {
  (void)state;
  uint32_t moved = 0, less = 0, none = 0, noticed = 0;
  for (uint32_t round = 0; round < (SLOW > 1 ? 120 : usual_or_long(120, 240)); round++) {
    struct place p;
    struct world t;
    uint32_t left_out;
    bool exact;
    small_world(&t, &p, round % KEYS_KINDS, round / KEYS_KINDS % 3);
    world_spread(&t, 2 + below(8), below(3) ? 0 : 1 + below(50), NULL);
    if (below(3) == 0) {  // the newest run has all keys
      uint8_t *const all = malloc(t.k.nr);
      memset(all, HAS_PUT, t.k.nr);
      world_add(&t, all);
      world_build(&t, UINT32_MAX, 1, REMIX_BUILD_MERGE);
    }
    for (uint32_t more = below(3); more > 0; more--) {  // with tombstones, and more versions of keys
      world_add(&t, fresh_keys(&t, below(LAYOUTS), 1 + below(40)));
      world_build(&t, UINT32_MAX, 1, REMIX_BUILD_SPLICE);
    }
    const uint64_t entries = t.x->nr_entries;
    const uint32_t segs = t.x->nr_segs, nr = t.nr, newer = 1 + below(nr - 1), take = 1 + below(nr - newer);
    const enum remix_build_way way = (enum remix_build_way)below(REMIX_BUILD_MOVED + 1);
    const uint32_t made = world_merge_below(&t, newer, take, 1 + below(4), below(3) > 0, &left_out, &exact);
    // records that are hidden are noticed where as many were left out
    t.moved = below(8) > 0 && (exact || left_out > 0);
    t.newer = newer;
    world_build(&t, first_runs(nr - newer - take) | first_runs(newer) << (nr - newer), made, way);
    check_view(&t);
    const bool full = is_full(entries, left_out, segs),
               expected = t.moved && exact && (way == REMIX_BUILD_MOVED || (way == REMIX_BUILD_AUTO && full));
    assert_int_equal(t.b.way, expected ? REMIX_BUILD_MOVED : REMIX_BUILD_MERGE);
    if (expected) expect_no_key_read(&t);
    moved += expected && left_out == 0;
    less += expected && left_out > 0;
    none += expected && made == 0;
    noticed += t.moved && !exact;
    t.newer = 0;
    check_from_scratch(&t);
    views_fini(&t);
    place_fini(&p);
  }
  assert_true(moved > 0 && less > 0 && none > 0 && noticed > 0);
}

// Runs leave, and nothing new comes, as where a partition is cut: the view of the runs of each range of keys.
static void test_range(void **state) {
  (void)state;
  for (uint32_t round = 0; round < (SLOW > 1 ? 40 : usual_or_long(40, 120)); round++) {
    struct place p;
    struct world t;
    small_world(&t, &p, round % KEYS_KINDS, round / KEYS_KINDS % 3);
    const uint32_t cut = 1 + below(t.k.nr - 1), groups = 1 + below(4);
    uint8_t *const upper = calloc(t.k.nr, 1), *const lower = calloc(t.k.nr, 1);
    memset(upper + cut, 1, t.k.nr - cut);
    memset(lower, 1, cut);
    for (uint32_t g = 0; g < groups; g++) {
      world_spread(&t, 1 + below(3), below(4), upper);
      world_spread(&t, 1 + below(3), below(4), lower);
    }
    free(upper);
    free(lower);
    const bool low = below(2);
    uint32_t keep = 0;
    for (uint32_t r = t.nr; r-- > 0;) {
      const bool here = count(t.has[r], 0, cut) > 0 && count(t.has[r], cut, t.k.nr) == 0;
      if (here == low) keep |= 1u << r;
      else world_drop(&t, r);
    }
    if (keep == 0) {
      views_fini(&t);
      place_fini(&p);
      continue;
    }
    world_build(&t, keep, 0, (enum remix_build_way)below(REMIX_BUILD_SPLICE + 1));
    check_view(&t);
    check_from_scratch(&t);
    views_fini(&t);
    place_fini(&p);
  }
}

// A view with half full segments, each with all 17 versions of one key, is made anew instead, unless it passes.
static void test_moved_lean(void **state) {
  (void)state;
  for (uint32_t turn = 0; turn < 3; turn++) {
    struct place p;
    struct world t;
    uint32_t left_out;
    place_init(&p, 0);
    views_init(&t, &p, CKB_ALL, 40, true);
    keyset_of_kind(&t.k, KEYS_BINARY, 200, &check_seed);
    for (uint32_t r = 0; r < 18; r++) {
      uint8_t *const has = calloc(t.k.nr, 1);
      for (uint32_t i = 0; i < t.k.nr; i++) has[i] = r < 16 || i % 2 == r % 2 ? HAS_PUT : HAS_NONE;
      world_add(&t, has);
      world_build(&t, UINT32_MAX, 1, REMIX_BUILD_MERGE);
    }
    const uint32_t made = world_merge(&t, 2, 2, NULL, &left_out);
    assert_int_equal(left_out, 0);
    t.moved = true;
    t.passing = turn == 2;
    world_build(&t, first_runs(16), made, turn == 1 ? REMIX_BUILD_MOVED : REMIX_BUILD_AUTO);
    assert_int_equal(t.b.way == REMIX_BUILD_MOVED, turn > 0);
    check_view(&t);
    views_fini(&t);
    place_fini(&p);
  }
}

// A run between others leaves. It had older versions of some keys, and the new table is newer than all runs that stay.
static void test_moved_not_newest(void **state) {
  (void)state;
  struct place p;
  struct world t;
  place_init(&p, 0);
  views_init(&t, &p, CKB_ALL, 40, true);
  keyset_of_kind(&t.k, KEYS_BINARY, 400, &check_seed);
  for (uint32_t r = 0; r < 3; r++) {
    uint8_t *const has = calloc(t.k.nr, 1);
    for (uint32_t i = r; i < t.k.nr; i += r == 1 ? 2 : 3) has[i] = HAS_PUT;
    world_add(&t, has);
    world_build(&t, UINT32_MAX, 1, REMIX_BUILD_MERGE);
  }
  uint8_t *const again = calloc(t.k.nr, 1);
  memcpy(again, t.has[1], t.k.nr);
  world_drop(&t, 1);
  world_add(&t, again);
  t.moved = true;
  world_build(&t, 1 | 4, 1, REMIX_BUILD_MOVED);
  assert_int_equal(t.b.way, REMIX_BUILD_MERGE);
  check_view(&t);
  views_fini(&t);
  place_fini(&p);
}

// The new table has fewer records than the view has entries for it.
static void test_moved_too_few(void **state) {
  (void)state;
  struct place p;
  struct world t;
  place_init(&p, 0);
  views_init(&t, &p, CKB_ALL, 40, true);
  keyset_of_kind(&t.k, KEYS_BINARY, 400, &check_seed);
  world_spread(&t, 2, 0, NULL);
  uint8_t *const has = calloc(t.k.nr, 1);
  memcpy(has, t.has[1], t.k.nr);
  *(uint8_t *)memchr(has, HAS_PUT, t.k.nr) = HAS_NONE;
  world_add(&t, has);
  struct sst *runs[] = {t.sst[0], t.sst[2]};
  uint8_t run_map[REMIX_RUNS_MAX];
  memset(run_map, UINT8_MAX, sizeof(run_map));
  run_map[0] = 0;
  struct remix_write w = {0};
  OK(remix_write_start(&w, &p.ctx, p.queue, p.next++, runs, 2, true));
  FAILS(remix_write_moved(&w, t.x, run_map, 1, 1), REMIXDB_CORRUPT);
  remix_write_fini(&w);
  views_fini(&t);
  place_fini(&p);
}

// A partition's life in 50 steps. Runs arrive, one to three at a time. Runs leave: mostly the newest ones, as in a
// major compaction, so their records come again in the new tables; at times any. The view is right after each step, and
// at the end equals one that is built from nothing.
static void live(uint32_t kind, uint32_t ckb) {
  struct place p;
  struct world t;
  small_world(&t, &p, kind, ckb);
  world_spread(&t, 1 + below(4), below(4), NULL);
  uint32_t spliced = 0;
  for (uint32_t step = 0; step < 50; step++) {
    uint8_t *const has = fresh_keys(&t, below(LAYOUTS), 1 + below(below(3) ? 30 : t.k.nr / 2));
    uint32_t keep = UINT32_MAX;
    const uint32_t what = t.nr > 24 ? 0 : below(8);
    if (what == 0) {  // major: the newest leave
      const uint32_t kept = below(t.nr + 1);
      for (uint32_t r = kept; r < t.nr; r++)
        for (uint32_t i = 0; i < t.k.nr; i++)
          if (t.has[r][i] && !has[i]) has[i] = 3;  // one of them, chosen below
      for (uint32_t i = 0; i < t.k.nr; i++)
        for (uint32_t r = t.nr; has[i] == 3 && r-- > kept;)
          if (t.has[r][i]) has[i] = t.has[r][i];
      keep = first_runs(kept);
    } else if (what == 1) {  // any
      keep = (uint32_t)rng_next(&check_seed);
    }
    for (uint32_t r = t.nr; r-- > 0;)
      if (!(keep >> r & 1)) world_drop(&t, r);
    // one to three tables
    const uint32_t made = world_add_some(&t, has, 1 + below(3));
    world_build(&t, keep, made, below(4) ? REMIX_BUILD_SPLICE : below(2) ? REMIX_BUILD_AUTO : REMIX_BUILD_MERGE);
    spliced += t.b.way == REMIX_BUILD_SPLICE;
    check_view(&t);
  }
  assert_true(spliced > 10);
  check_from_scratch(&t);
  views_fini(&t);
  place_fini(&p);
}

static void test_fifty_steps(void **state) {
  (void)state;
  for (uint32_t round = 0; round < (SLOW > 1 ? 1 : 2); round++)
    for (uint32_t kind = 0; kind < KEYS_KINDS; kind++)
      for (uint32_t ckb = 0; ckb < 3; ckb++) live(kind, ckb);
}

// Keys have as many versions as there are runs, up to 32, and move from segment to segment as a whole.
static void test_all_versions(void **state) {
  (void)state;
  static const uint32_t counts[] = {3, 9, 11, 16, 17, 31};
  for (uint32_t n = 0; n < 2 * sizeof(counts) / sizeof(counts[0]); n++) {
    struct place p;
    struct world t;
    small_world(&t, &p, n & 1 ? KEYS_TINY : KEYS_PATHS, n % 3);
    const uint32_t runs = counts[n / 2];
    for (uint32_t r = 0; r <= runs; r++) {
      uint8_t *const has = calloc(t.k.nr, 1);
      for (uint32_t i = 0; i < t.k.nr; i++) has[i] = below(20) ? 1 + below(2) : HAS_NONE;
      has[below(t.k.nr)] = HAS_PUT;
      world_add(&t, has);
      world_build(&t, UINT32_MAX, 1, REMIX_BUILD_SPLICE);
      check_view(&t);
    }
    // any runs leave, and nothing is new
    while (t.nr > 1) {
      const uint32_t keep = (uint32_t)rng_next(&check_seed) | 1;
      for (uint32_t r = t.nr; r-- > 0;)
        if (!(keep >> r & 1)) world_drop(&t, r);
      world_build(&t, keep, 0, REMIX_BUILD_SPLICE);
      check_view(&t);
    }
    views_fini(&t);
    place_fini(&p);
  }
}

int main(void) {
  (void)check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ways_agree),       cmocka_unit_test(test_moved),         cmocka_unit_test(test_moved_lean),
      cmocka_unit_test(test_moved_not_newest), cmocka_unit_test(test_moved_too_few), cmocka_unit_test(test_fifty_steps),
      cmocka_unit_test(test_all_versions),     cmocka_unit_test(test_below),         cmocka_unit_test(test_range),
  };
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
