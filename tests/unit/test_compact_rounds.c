// SPDX-License-Identifier: Apache-2.0
//
// Rounds of compaction: many of them against a model, with threads, of the whole store, and the files that they leave.
#include "tests/lib/check.h"
#include "tests/lib/rounds.h"

// Small partitions in a row, with the first n keys: one gets many runs, one tombstones and one both.
static void small_parts(struct world *w, uint32_t n) {
  w->c.build.max_pages = TABLE / 8;
  for (uint32_t i = 0; i < 12; i++) {
    put_range(w, n / 12 * i, n / 12 * (i + 1), 1, false);
    round_ok(w, NULL);
  }
  assert_true(w->base->nr_parts > 20);
  for (uint32_t i = 0; i < 4; i++) {
    put_range(w, first_key_of(w, 3) + i, first_key_of(w, 4), 9, i % 2);
    put_range(w, first_key_of(w, 9) + i, first_key_of(w, 10), 9, false);
    round_ok(w, NULL);
  }
  w->c.build.max_pages = TABLE;
}

static void test_whole(void **state) {
  (void)state;
  struct world w;
  static struct compact_whole whole;
  world_init(&w, 12000, 0, 15);
  w.c.memtable_size = COMPACT_ABORT_SHARE * 1000;
  const uint32_t n = keys_for(&w, 9);
  small_parts(&w, n);
  const uint32_t parts = w.base->nr_parts;
  w.whole = &whole;
  whole = (struct compact_whole){.budget = 3 * TABLE * BLOCK_PAGE};
  uint32_t rounds = 0;
  do {
    put_range(&w, first_key_of(&w, 0) + rounds, n, 997, rounds % 2);  // new data keeps coming
    const uint64_t before = atomic_load(&w.c.stats.table_bytes);
    round_ok(&w, NULL);
    assert_true(atomic_load(&w.c.stats.table_bytes) - before < 8 * TABLE * BLOCK_PAGE);
    assert_true(++rounds < 20);
    if (!whole.end) compact_whole_on(&whole);
  } while (!whole.end);
  assert_true(rounds >= 3);
  assert_true(w.base->nr_parts < parts / 2);
  // without new data, it leaves the fewest tables, and only records that a reader can see
  whole = (struct compact_whole){.budget = UINT64_MAX};
  round_ok(&w, NULL);
  assert_true(whole.end);
  for (uint32_t i = 0; i < w.base->nr_parts; i++) {
    const struct remix *x = remix_of(&w, i);
    uint64_t pages = 0;
    for (uint32_t r = 0; r < x->nr_runs; r++) pages += x->runs[r]->nr_pages;
    assert_int_equal(x->nr_entries, x->nr_keys);
    assert_true(x->nr_runs <= 1 + pages / TABLE && x->nr_runs <= COMPACT_PART_TABLES);
  }
  // from then on it only joins neighbours that have come to fit each other, until there are none
  uint64_t kinds[COMPACT_KINDS];
  do {
    whole = (struct compact_whole){.budget = UINT64_MAX};
    round_ok(&w, kinds);
    assert_true(++rounds < 25);
  } while (kinds[COMPACT_KEEP] < w.base->nr_parts);
  // a failed round does not move the place
  put_range(&w, 0, n, 3, false);
  whole = (struct compact_whole){.budget = 1};
  fault_io_set(FAULT_WRITE, 1, false);
  FAILS(round_try(&w), REMIXDB_NOSPACE);
  (void)fault_io_end();
  assert_false(whole.end);
  assert_int_equal(whole.to_len, 0);
  round_ok(&w, NULL);
  assert_true(!whole.end && whole.to_len > 0 &&
              whole.from_len == 0);  // the caller moves it when it installs the version
  // all is deleted: one empty partition remains
  put_range(&w, 0, w.k.nr, 1, true);
  whole = (struct compact_whole){.budget = UINT64_MAX};
  round_ok(&w, NULL);
  assert_int_equal(w.base->nr_parts, 1);
  assert_null(remix_of(&w, 0));
  world_fini(&w);
}

struct mix {
  uint32_t keys, threads, rounds;
  uint32_t writes;  // at most, in a round
  uint32_t tombs;   // one in so many
  bool window;      // a round's writes lie near each other
  bool ascending;   // and the window moves on
  bool abort;
  bool young;        // young views begin sooner and later
  bool scan_merges;  // scans pay for a round now and then
  bool both;         // a tree of named spaces with the same keys beside the unnamed one
  uint32_t erase;    // ranges are deleted before one round in so many; 0: none
  uint32_t apart;    // values of so many bytes are written apart; 0: none
};

static struct compact_erase erased;  // the sum of all deletions of ranges

static void scan_merge_by_chance(struct world *w, uint64_t *rng) {
  for (uint32_t i = 0; i < w->base->nr_parts; i++) {
    const struct part *const p = w->base->parts[i];
    if (p->remix && rng_next(rng) % 2) remix_add_debt(p->remix, UINT32_MAX);
    if (p->young && rng_next(rng) % 2) remix_add_debt(p->young, UINT32_MAX);
  }
  w->scan_merges = true;
  const enum remixdb_status s = round_try(w);
  w->scan_merges = false;
  if (s != REMIXDB_OK) fail_msg("status %d: %s", s, w->error.msg);
  if (!w->next) return;
  uint32_t *const fresh = calloc(w->k.nr, sizeof(*fresh));  // the memtable, for the round after this one
  memcpy(fresh, w->fresh, w->k.nr * sizeof(*fresh));
  memset(w->fresh, 0, w->k.nr * sizeof(*fresh));
  world_install(w);
  for (uint32_t a = 0; a < w->k.nr; a++) {
    if (fresh[a] == NONE) continue;
    w->fresh[a] = fresh[a];
    mem_put(&w->p, w->frozen, w->k.keys[a], fresh[a], w->value, ++w->seq);
  }
  free(fresh);
}

static void rounds_once(const struct mix *x, uint64_t seed, uint64_t *all, uint64_t *went) {
  struct world w;
  uint64_t rng = seed;
  world_init(&w, x->keys, x->threads, seed);
  w.value = VALUE + 10;
  w.allow_abort = x->abort;
  w.both = x->both;
  world_apart(&w, x->apart);
  if (x->apart) w.c.values.full = 200000;
  if (w.both) OK(version_begin_spaces(w.base));
  for (uint32_t r = 0; r < x->rounds; r++) {
    w.c.build.ckeys = rng_next(&rng) % 3 != 0;
    w.c.build.compression = rng_next(&rng) % 3 ? REMIXDB_COMPRESSION_NONE : REMIXDB_COMPRESSION_ZSTD;
    w.c.tags = rng_next(&rng) % 3 != 0;
    const uint32_t span = x->window ? w.k.nr / 8 : w.k.nr;
    const uint32_t room = w.k.nr - span;
    const uint32_t from = x->ascending ? (uint32_t)((uint64_t)room * r / x->rounds)
                                       : (uint32_t)(rng_next(&rng) % (room + 1));
    const uint32_t nr = (uint32_t)(rng_next(&rng) % (x->writes + 1)) / (x->young ? 1u << rng_next(&rng) % 6 : 1);
    if (x->young && r == 0) put_range(&w, 0, w.k.nr, 2, false);
    for (uint32_t i = 0; i < nr; i++) {
      const bool tomb = rng_next(&rng) % x->tombs == 0;
      put(&w, from + (uint32_t)(rng_next(&rng) % span), tomb);
    }
    uint64_t kinds[COMPACT_KINDS];
    if (x->erase && rng_next(&rng) % x->erase == 0) erase_some(&w, &rng, &erased);
    if (x->young) w.c.young_from = 1u << rng_next(&rng) % 6;
    const uint64_t young = atomic_load(&w.c.stats.young), before = w.went[BEGUN] + w.went[WENT_ON] + w.went[MERGED];
    round_ok(&w, kinds);
    if (!x->both)  // it is not told about the other tree
      assert_int_equal(atomic_load(&w.c.stats.young) - young,
                       w.went[BEGUN] + w.went[WENT_ON] + w.went[MERGED] - before);
    for (uint32_t i = 0; i < COMPACT_KINDS; i++) all[i] += kinds[i];
    if (x->scan_merges && rng_next(&rng) % 5 == 0) scan_merge_by_chance(&w, &rng);
    if (rng_next(&rng) % 4) continue;
    world_again(&w);
    expect_contents(&w, w.base, w.disk);
    assert_true(!w.both || w.base->spaces);
  }
  for (uint32_t i = 0; i < WENT_KINDS; i++) went[i] += w.went[i];
  world_fini(&w);
}

// Rounds of both trees: no job has files or keys of both.
static void test_both_trees(void **state) {
  (void)state;
  static const struct mix mixes[] = {
      {1500, 0, 20, 600, 5, false, false, false, false, false, true, 0, 0},
      {4000, 0, 20, 900, 50, true, true, false, false, false, true, 0, 0},
      {3000, 2, 30, 150, 3, false, false, false, true, true, true, 0, 0},
      {40, 0, 30, 40, 2, false, false, false, false, false, true, 0, 0},
      {3000, 2, 20, 900, 5, false, false, false, true, true, true, 0, 60},
  };
  uint64_t all[COMPACT_KINDS] = {0}, went[WENT_KINDS] = {0};
  for (uint32_t i = 0; i < sizeof(mixes) / sizeof(mixes[0]); i++) rounds_once(&mixes[i], 300 + i, all, went);
  for (uint32_t i = COMPACT_MINOR; i < COMPACT_KINDS; i++) assert_true(all[i] > 0);
}

// Ranges are deleted between rounds of all kinds. No deleted key comes back.
static void test_erased(void **state) {
  (void)state;
  static const struct mix mixes[] = {
      {1500, 0, 40, 600, 5, false, false, true, false, false, false, 2, 0},
      {3000, 0, 30, 800, 8, true, false, true, false, true, false, 3, 0},
      {4000, 0, 30, 900, 50, true, true, true, false, false, false, 2, 0},
      {40, 0, 60, 40, 3, false, false, false, false, false, false, 2, 0},
      {1500, 0, 90, 60, 5, false, false, false, true, true, false, 3, 0},
      {3000, 0, 60, 80, 8, true, false, true, true, true, false, 4, 0},
      {3000, 2, 30, 150, 3, false, false, true, true, true, false, 2, 0},
      {1500, 0, 30, 300, 5, false, false, false, true, true, true, 2, 0},
      {3000, 0, 30, 800, 8, true, false, true, false, true, false, 3, 50},
  };
  const char *const given = getenv("TEST_SEED");
  const uint64_t seed = given && *given ? strtoull(given, NULL, 0) : 500;
  uint64_t all[COMPACT_KINDS] = {0}, went[WENT_KINDS] = {0};
  erased = (struct compact_erase){.keys = 0};
  for (uint32_t i = 0; i < sizeof(mixes) / sizeof(mixes[0]); i++) {
    printf("mix %u, seed %llu\n", i, (unsigned long long)(seed + i));
    rounds_once(&mixes[i], seed + i, all, went);
  }
  printf("%u partitions went, %u were cut, of %llu keys; %llu were left\n", erased.dropped, erased.erased,
         (unsigned long long)erased.keys, (unsigned long long)erased.left);
  if (seed != 500) return;
  assert_true(erased.dropped > 5 && erased.erased > 50 && erased.left > 50);
  assert_true(all[COMPACT_MINOR] > 0 && all[COMPACT_MAJOR] > 0);
  assert_true(went[WENT_ON] > 0 && went[JOINED] > 0);
}

static void test_rounds(void **state) {
  (void)state;
  const char *const given = getenv("TEST_SEED");
  const uint64_t seed = given && *given ? strtoull(given, NULL, 0) : 100;
  static const struct mix mixes[] = {
      {1500, 0, 25, 600, 5, false, false, true, false, false, false, 0, 0},
      {1500, 0, 25, 900, 2, false, false, false, false, false, false, 0, 0},  // half of it deletes
      {3000, 0, 25, 800, 8, true, false, true, false, false, false, 0, 0},
      {4000, 0, 25, 900, 50, true, true, true, false, false, false, 0, 0},   // ascending keys
      {40, 0, 40, 40, 3, false, false, false, false, false, false, 0, 0},    // the same few keys again and again
      {3000, 2, 20, 900, 5, false, false, true, false, false, false, 0, 0},  // in threads
      {1500, 0, 90, 60, 5, false, false, false, true, true, false, 0, 0},    // little beside much
      {1500, 0, 90, 15, 2, false, false, false, true, false, false, 0, 0},
      {3000, 0, 60, 80, 8, true, false, true, true, false, false, 0, 0},
      {4000, 0, 60, 500, 20, true, true, true, true, true, false, 0, 0},
      {3000, 2, 40, 150, 3, false, false, true, true, true, false, 0, 0},
      {1500, 0, 25, 600, 5, false, false, true, false, false, false, 0, 50},  // values apart
      {1500, 0, 60, 400, 2, false, false, true, true, true, false, 0, 3000},
      {3000, 2, 20, 900, 5, false, false, true, false, false, false, 0, 41},
      {4000, 0, 25, 500, 20, true, true, true, true, true, false, 0, 55},
  };
  uint64_t all[COMPACT_KINDS] = {0}, went[WENT_KINDS] = {0};
  for (uint32_t i = 0; i < sizeof(mixes) / sizeof(mixes[0]); i++) {
    printf("mix %u, seed %llu\n", i, (unsigned long long)(seed + i));
    rounds_once(&mixes[i], seed + i, all, went);
  }
  printf("young views: %u begun, %u went on, %u merged, %u joined, %u deeper, %u all\n", (unsigned)went[BEGUN],
         (unsigned)went[WENT_ON], (unsigned)went[MERGED], (unsigned)went[JOINED], (unsigned)went[DEEPER],
         (unsigned)went[ALL_TAKEN]);
  if (seed != 100) return;  // another seed may come to fewer kinds
  for (uint32_t i = 0; i < WENT_KINDS; i++) assert_true(went[i] > 0);
  for (uint32_t i = 0; i < COMPACT_KINDS; i++) assert_true(all[i] > 0);
}

// Several workers at once, while a reader goes over the version.
static void threads_once(void) {
  struct world w;
  world_init(&w, 11000, 3, 20);
  w.allow_abort = true;
  put_range(&w, 0, keys_for(&w, 8), 1, false);
  round_ok(&w, NULL);
  assert_true(w.base->nr_parts >= 4);
  uint64_t rng = 1;
  for (uint32_t r = 0; r < 6; r++) {
    for (uint32_t i = 0; i < 800; i++) put(&w, (uint32_t)(rng_next(&rng) % w.k.nr), i % 9 == 0);
    round_begin(&w);
    expect_contents(&w, w.base, w.disk);
    const enum remixdb_status s = round_end(&w);
    if (s != REMIXDB_OK) fail_msg("status %d: %s", s, w.error.msg);
    world_install(&w);
  }
  world_fini(&w);
}

static void test_threads(void **state) {
  (void)state;
  threads_once();
  place_native = true;  // with rings, where the system has them, tables are read and written through one queue
  threads_once();
  place_native = false;
}

static void test_progress(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 12000, 0, 23);
  assert_int_equal(atomic_load(&w.c.work), 0);
  // few records count too
  put_range(&w, 0, 100, 1, false);
  round_ok(&w, NULL);
  assert_true(atomic_load(&w.c.progress) > atomic_load(&w.c.work) / 2);
  const uint32_t n = keys_for(&w, 5);
  for (uint32_t r = 0; r < 14; r++) {
    const uint64_t table_bytes = atomic_load(&w.c.stats.table_bytes), remix_bytes = atomic_load(&w.c.stats.remix_bytes);
    put_range(&w, r % 10, n, 10, r > 10);
    round_ok(&w, NULL);
    const uint64_t progress = atomic_load(&w.c.progress), work = atomic_load(&w.c.work);
    // an estimate, but close enough to slow writers down by it
    if (progress < work / 2 || progress > work + work / 4)
      fail_msg("round %u: %u done of %u", r, (unsigned)progress, (unsigned)work);
    assert_true(atomic_load(&w.c.stats.table_bytes) > table_bytes);
    assert_true(atomic_load(&w.c.stats.remix_bytes) > remix_bytes);
  }
  assert_int_equal(atomic_load(&w.c.stats.remix_data_pages), 0);  // compressed keys everywhere
  assert_int_equal(atomic_load(&w.c.stats.failed), 0);
  w.c.build.ckeys = false;
  put_range(&w, 3, n, 10, false);
  round_ok(&w, NULL);
  put_range(&w, 5, n, 10, false);
  round_ok(&w, NULL);
  assert_true(atomic_load(&w.c.stats.remix_data_pages) > 0);
  world_fini(&w);
}

// The writer of a table records its pieces when the cache has no room for the data, and only then.
static void test_pieces(void **state) {
  (void)state;
  static const size_t sizes[] = {0, 64 * BLOCK_PAGE, 4096 * BLOCK_PAGE};
  for (uint32_t i = 0; i < 3; i++) {
    struct world w;
    world_init(&w, 12000, 0, 23);
    cache_destroy(w.p.cache);
    w.p.cache = NULL;
    if (sizes[i]) OK(cache_create(sizes[i], 0, &w.p.epoch, &w.p.cache));
    w.p.ctx.cache = w.p.cache;
    const uint32_t n = keys_for(&w, 8);
    for (uint32_t round = 0; round < 2; round++) {
      put_range(&w, round, n, 2, false);
      OK(round_try(&w));
      const struct remix *const x = w.next->parts[0]->remix;
      const bool known = atomic_load(&x->runs[x->nr_runs - 1]->pieces) != NULL;  // before anybody reads it
      assert_int_equal(known, i == 0 || (i == 1 && round == 1));
      world_install(&w);
    }
    world_fini(&w);
  }
}

static void test_retire(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 8000, 0, 24);
  three_parts(&w);
  const uint32_t one = first_key_of(&w, 1) + 5;
  put_range(&w, one, one + 100, 1, false);
  OK(round_try(&w));
  struct version *old = w.base;
  struct remix *gone = old->parts[1]->remix;
  char *both = place_files(&w.p);

  // a reader still has the old version
  struct merge m;
  struct kv_rec r;
  merge_init(&m, NULL);
  struct wh *empty;
  OK(wh_create(&w.p.epoch, 64 << 10, NULL, &empty));
  merge_set(&m, empty, NULL, old, 0);
  version_ref(old);
  enter(&w.p);
  OK(merge_seek(&m, w.k.keys[one]));
  leave(&w.p);

  compact_retire(old, w.next);
  assert_true(atomic_load(&gone->obsolete));
  for (uint32_t i = 0; i < old->nr_parts; i++) {
    const struct remix *x = old->parts[i]->remix;
    assert_int_equal(atomic_load(&x->obsolete), i == 1);
    for (uint32_t t = 0; t < x->nr_runs; t++)
      assert_false(atomic_load(&x->runs[t]->obsolete));  // a minor compaction keeps the tables
  }
  version_unref(old);
  char *now = place_files(&w.p);
  assert_string_equal(now, both);
  free(now);
  expect_contents(&w, old, w.disk);
  enter(&w.p);
  OK(merge_record(&m, &r));
  leave(&w.p);
  merge_park(&m);
  merge_fini(&m);
  wh_destroy(empty);
  version_unref(old);
  expect_files(&w, w.next);
  w.base = w.next;
  free(both);

  // the files of a round that cannot be installed go
  thaw(&w);
  char *before = place_files(&w.p);
  put_range(&w, one, one + 50, 1, false);
  OK(round_try(&w));
  compact_retire(w.next, w.base);
  version_unref(w.next);
  now = place_files(&w.p);
  assert_string_equal(now, before);
  free(now);
  free(before);
  world_fini(&w);
}

// A partition with the tables of x, which may be another partition's; NULL: it holds nothing.
static struct part *part_of(struct kref anchor, struct remix *x) {
  struct part *p;
  if (x) remix_ref(x);
  OK(part_create(anchor, x, NULL, &p));
  return p;
}

static void expect_retired(struct remix *x, bool retired) {
  assert_int_equal(atomic_load(&x->obsolete), retired);
  atomic_store(&x->obsolete, false);
  for (uint32_t r = 0; r < x->nr_runs; r++) {
    assert_int_equal(atomic_load(&x->runs[r]->obsolete), retired);
    atomic_store(&x->runs[r]->obsolete, false);
  }
}

// Tables are found wherever the borders of the partitions lie.
static void test_retire_borders(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 8000, 0, 24);
  three_parts(&w);
  struct remix *x[3];
  for (uint32_t i = 0; i < 3; i++) x[i] = w.base->parts[i]->remix;
  const struct kref none = kref("", 0), second = part_anchor(w.base->parts[1]), third = part_anchor(w.base->parts[2]);
  const struct kref later[] = {x[0]->runs[0]->min, x[1]->runs[0]->min, x[2]->runs[0]->min};
  const struct {
    struct {
      struct kref anchor;
      struct remix *x;
    } parts[4];
    uint32_t nr;
    bool has[3];
  } cases[] = {
      {{{none, x[0]}, {second, x[1]}, {third, x[2]}}, 3, {true, true, true}},
      {{{none, x[0]}, {second, NULL}, {later[1], x[1]}}, 3, {true, true, false}},
      {{{none, x[0]}, {second, NULL}, {later[1], x[1]}, {later[2], x[2]}}, 4, {true, true, true}},
      {{{none, NULL}, {later[2], x[2]}}, 2, {false, false, true}},
      {{{none, x[1]}}, 1, {false, true, false}},
      {{{none, x[2]}}, 1, {false, false, true}},
      {{{none, NULL}}, 1, {false, false, false}},
  };
  for (uint32_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
    struct part *parts[4];
    struct version *next;
    for (uint32_t i = 0; i < cases[c].nr; i++) parts[i] = part_of(cases[c].parts[i].anchor, cases[c].parts[i].x);
    OK(version_create(parts, cases[c].nr, &next));
    compact_retire(w.base, next);
    for (uint32_t i = 0; i < 3; i++) expect_retired(x[i], !cases[c].has[i]);
    compact_retire(next, w.base);  // next has no tables of its own
    for (uint32_t i = 0; i < 3; i++) expect_retired(x[i], false);
    version_unref(next);
  }
  world_fini(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_whole),      cmocka_unit_test(test_rounds),  cmocka_unit_test(test_erased),
      cmocka_unit_test(test_both_trees), cmocka_unit_test(test_threads), cmocka_unit_test(test_progress),
      cmocka_unit_test(test_pieces),     cmocka_unit_test(test_retire),  cmocka_unit_test(test_retire_borders),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
