// SPDX-License-Identifier: Apache-2.0
//
// Compaction with small tables: each thing that can be done to a partition, many rounds against a model, and every
// failure on the way.
#include "tests/lib/check.h"
#include "tests/lib/rounds.h"

#include "remix/write.h"

// ---- each kind

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

  // nothing but tombstones, with nothing to hide: no file at all
  world_init(&w, 1000, 0, 3);
  put_range(&w, 0, w.k.nr, 1, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  assert_null(remix_of(&w, 0));
  world_fini(&w);

  // more than a partition should hold
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
  assert_true(tombs_of(&w, 0) > 0);  // they hide what is below
  world_fini(&w);
}

// One partition with as many runs as it may have: the first of so many tables' size, the others of every n-th key of
// the same.
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

// Too many runs: the small new ones become one, the large old one stays, and so do the tombstones.
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
  assert_true(atomic_load(&remix_of(&w, 0)->scan_debt) < 1000000);  // of what was paid for, this was the most
  assert_true(tombs_of(&w, 0) > 0);
  assert_true(atomic_load(&w.c.stats.read_bytes) > 0);
  world_fini(&w);
}

// All runs alike: all of them become one, and no tombstone is left.
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
    // and a partition that was emptied takes new data
    put_range(&w, 0, n, 2, false);
    round_ok(&w, kinds);
    expect_kind(kinds, deleted ? COMPACT_MAJOR : COMPACT_MINOR, 1);
    world_fini(&w);
  }
}

// Few runs, but most of what they hold is old: merged though there is room for more.
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
  // runs that hold different keys, so that all of it stays
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

// New keys behind all there are, and the partition has its share: it stays as it is.
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
  // tombstones of what is not there: nothing is made of them
  const uint32_t parts = w.base->nr_parts;
  put_range(&w, n2, n3, 1, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_KEEP, parts - 1);
  assert_int_equal(w.base->nr_parts, parts);
  part_unref(first);
  world_fini(&w);
}

// The same with some keys before the end of what is there: they are the partition's own, the others do not touch it.
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
  // the few of them go back, when they may
  const uint32_t parts = w.base->nr_parts, n3 = keys_for(&w, 7);
  w.allow_abort = true;
  put(&w, n2 - 2, true);
  put_range(&w, n2, n3, 1, false);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_ABORT, 1);
  expect_kind(kinds, COMPACT_SPLIT, 1);
  expect_kind(kinds, COMPACT_KEEP, parts - 1);
  assert_int_equal(w.back[n2 - 2], 1);
  // a little behind the end, in each of the many gaps between partitions, makes no partitions of its own
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

// A partition that is left without anything goes, and the one before it takes its keys.
static void test_empty_parts(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 8000, 0, 14);
  three_parts(&w);
  const uint32_t parts = w.base->nr_parts, one = first_key_of(&w, 1), two = first_key_of(&w, 2);
  for (uint32_t r = 0; w.base->nr_parts == parts; r++) {
    assert_true(r < 3);  // what is deleted is garbage at once
    put_range(&w, one, two, 1, true);
    round_ok(&w, NULL);
  }
  assert_int_equal(w.base->nr_parts, parts - 1);
  assert_int_equal(first_key_of(&w, 1), two);
  put_range(&w, one, two, 3, false);
  round_ok(&w, NULL);
  // all of them: the first stays, empty
  for (uint32_t r = 0; remix_of(&w, 0) || w.base->nr_parts > 1; r++) {
    assert_true(r < 4);
    put_range(&w, 0, w.k.nr, 1, true);
    round_ok(&w, NULL);
  }
  put_range(&w, 0, w.k.nr, 5, false);
  round_ok(&w, NULL);
  world_fini(&w);
}

// ---- compacting what is asked for

static void test_whole(void **state) {
  (void)state;
  struct world w;
  static struct compact_whole whole;
  world_init(&w, 12000, 0, 15);
  w.c.memtable_size = COMPACT_ABORT_SHARE * 1000;
  // small partitions behind each other, of which one gets many runs, one tombstones and one both
  const uint32_t n = keys_for(&w, 9);
  w.c.build.max_pages = TABLE / 8;
  for (uint32_t i = 0; i < 12; i++) {
    put_range(&w, n / 12 * i, n / 12 * (i + 1), 1, false);
    round_ok(&w, NULL);
  }
  const uint32_t parts = w.base->nr_parts;
  assert_true(parts > 20);
  for (uint32_t i = 0; i < 4; i++) {
    put_range(&w, first_key_of(&w, 3) + i, first_key_of(&w, 4), 9, i % 2);
    put_range(&w, first_key_of(&w, 9) + i, first_key_of(&w, 10), 9, false);
    round_ok(&w, NULL);
  }
  w.c.build.max_pages = TABLE;
  w.whole = &whole;
  whole = (struct compact_whole){.budget = 3 * TABLE * BLOCK_PAGE};
  uint32_t rounds = 0;
  do {
    put_range(&w, first_key_of(&w, 0) + rounds, n, 997, rounds % 2);  // new data comes all the time
    const uint64_t before = atomic_load(&w.c.stats.table_bytes);
    round_ok(&w, NULL);
    assert_true(atomic_load(&w.c.stats.table_bytes) - before < 8 * TABLE * BLOCK_PAGE);
    assert_true(++rounds < 20);
    if (!whole.end) compact_whole_on(&whole);
  } while (!whole.end);
  assert_true(rounds >= 3);
  assert_true(w.base->nr_parts < parts / 2);
  // and with nothing new: the fewest tables, nothing in them that nobody can read
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
  // then there is nothing to do but for neighbours that have come to fit each other, until there are none
  uint64_t kinds[COMPACT_KINDS];
  do {
    whole = (struct compact_whole){.budget = UINT64_MAX};
    round_ok(&w, kinds);
    assert_true(++rounds < 25);
  } while (kinds[COMPACT_KEEP] < w.base->nr_parts);
  // a round that fails leaves the place where it was
  put_range(&w, 0, n, 3, false);
  whole = (struct compact_whole){.budget = 1};
  fault_io_set(FAULT_WRITE, 1, false);
  FAILS(round_try(&w), REMIXDB_NOSPACE);
  (void)fault_io_end();
  assert_false(whole.end);
  assert_int_equal(whole.to_len, 0);
  round_ok(&w, NULL);
  assert_true(!whole.end && whole.to_len > 0 && whole.from_len == 0);  // which is for who installs it to change
  // all is deleted: one empty partition is left
  put_range(&w, 0, w.k.nr, 1, true);
  whole = (struct compact_whole){.budget = UINT64_MAX};
  round_ok(&w, NULL);
  assert_int_equal(w.base->nr_parts, 1);
  assert_null(remix_of(&w, 0));
  world_fini(&w);
}

// ---- handing back

static void test_abort(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 8000, 0, 11);
  three_parts(&w);
  const uint32_t parts = w.base->nr_parts;
  w.allow_abort = true;
  // a key or two here, many there
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

  // it is there still, and is written when nothing may go back
  assert_int_equal(w.fresh[one], TOMB);
  w.allow_abort = false;
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_ABORT, 0);
  expect_kind(kinds, COMPACT_MINOR, 1);
  assert_int_equal(w.disk[one], TOMB);
  assert_int_equal(w.nr_back, 0);

  // no room for any of it
  w.allow_abort = true;
  w.c.memtable_size = 64;
  put(&w, one, false);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_ABORT, 0);

  // room for either, but not for both: the dearer one
  w.c.memtable_size = COMPACT_ABORT_SHARE * 400;
  put(&w, one, true);
  put_range(&w, two, two + 3, 1, true);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_ABORT, 1);
  expect_kind(kinds, COMPACT_MINOR, 1);
  assert_int_equal(w.back[one], 1);
  world_fini(&w);
}

// A round whose data cannot be put back is not installed.
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

// ---- many rounds

struct mix {
  uint32_t keys, threads, rounds;
  uint32_t writes;  // at most, in a round
  uint32_t tombs;   // one in so many
  bool window;      // a round's writes lie near each other
  bool ascending;   // and the window moves on
  bool abort;
  bool young;        // young views begin sooner and later
  bool scan_merges;  // and scans pay for a round now and then
};

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
  uint32_t *const fresh = calloc(w->k.nr, sizeof(*fresh));  // is still to come
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
    if (x->young) w.c.young_from = 1u << rng_next(&rng) % 6;
    const uint64_t young = atomic_load(&w.c.stats.young), before = w.went[BEGUN] + w.went[WENT_ON] + w.went[MERGED];
    round_ok(&w, kinds);
    assert_int_equal(atomic_load(&w.c.stats.young) - young, w.went[BEGUN] + w.went[WENT_ON] + w.went[MERGED] - before);
    for (uint32_t i = 0; i < COMPACT_KINDS; i++) all[i] += kinds[i];
    if (x->scan_merges && rng_next(&rng) % 5 == 0) scan_merge_by_chance(&w, &rng);
    if (rng_next(&rng) % 4) continue;
    // through the disk, as when the store is opened again
    w.base->store_id = PLACE_STORE_ID;
    w.base->number = w.base->log_gen = 1;
    w.base->next_file = atomic_load(&w.c.next_file);
    OK(version_save(&w.p.ctx, w.base));
    version_unref(w.base);
    OK(version_load(&w.p.ctx, NULL, NULL, &w.base));
    uint32_t cleaned;
    OK(version_clean(&w.p.ctx, w.base, &cleaned));
    assert_int_equal(cleaned, 0);
    expect_contents(&w, w.base, w.disk);
    char path[ENV_PATH_MAX];
    OK(env_path(path, w.p.dir, FILES_CURRENT));
    assert_int_equal(unlink(path), 0);
  }
  for (uint32_t i = 0; i < WENT_KINDS; i++) went[i] += w.went[i];
  world_fini(&w);
}

static void test_rounds(void **state) {
  (void)state;
  const char *const given = getenv("TEST_SEED");
  const uint64_t seed = given && *given ? strtoull(given, NULL, 0) : 100;
  static const struct mix mixes[] = {
      {1500, 0, 25, 600, 5, false, false, true, false, false},
      {1500, 0, 25, 900, 2, false, false, false, false, false},  // half of it deletes
      {3000, 0, 25, 800, 8, true, false, true, false, false},
      {4000, 0, 25, 900, 50, true, true, true, false, false},   // ascending keys
      {40, 0, 40, 40, 3, false, false, false, false, false},    // the same few keys again and again
      {3000, 2, 20, 900, 5, false, false, true, false, false},  // in threads
      {1500, 0, 90, 60, 5, false, false, false, true, true},    // little beside much
      {1500, 0, 90, 15, 2, false, false, false, true, false},
      {3000, 0, 60, 80, 8, true, false, true, true, false},
      {4000, 0, 60, 500, 20, true, true, true, true, true},
      {3000, 2, 40, 150, 3, false, false, true, true, true},
  };
  uint64_t all[COMPACT_KINDS] = {0}, went[WENT_KINDS] = {0};
  for (uint32_t i = 0; i < sizeof(mixes) / sizeof(mixes[0]); i++) {
    printf("mix %u, seed %llu\n", i, (unsigned long long)(seed + i));
    rounds_once(&mixes[i], seed + i, all, went);
  }
  printf("young views: %u begun, %u went on, %u merged, %u joined, %u deeper, %u all\n", (unsigned)went[BEGUN],
         (unsigned)went[WENT_ON], (unsigned)went[MERGED], (unsigned)went[JOINED], (unsigned)went[DEEPER],
         (unsigned)went[ALL_TAKEN]);
  if (seed != 100) return;  // any other may come to fewer things
  for (uint32_t i = 0; i < WENT_KINDS; i++) assert_true(went[i] > 0);
  for (uint32_t i = 0; i < COMPACT_KINDS; i++) assert_true(all[i] > 0);
}

// Several workers at once, while a reader goes over what is there.
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
  place_native = true;  // rings, where there are any: tables are read and written through one queue
  threads_once();
  place_native = false;
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

// Runs so large that merging some makes them hardly fewer: the partition is split at once when there are a few of them.
// Smaller ones may be more, and little new data (large == 2) does not have all of them written again.
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

// An estimate of what is left can be far too low (few large records among many tombstones): the tables are large all
// the same.
static void test_low_estimate(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 12000, 0, 22);
  const uint32_t n = keys_for(&w, 1.9);
  put_range(&w, 0, n, 1, false);
  round_ok(&w, NULL);
  for (uint32_t r = 1; r < COMPACT_RUNS; r++) {
    put_range(&w, n, w.k.nr, 1, true);
    put(&w, 0, false);  // not all of it behind
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
    // an estimate; but near enough to slow writers by
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

// The writer of a table records its pieces when the cache has no room for the data, and asks for them only then.
static void test_pieces(void **state) {
  (void)state;
  static const size_t sizes[] = {0, 64 * BLOCK_PAGE, 4096 * BLOCK_PAGE};
  for (uint32_t i = 0; i < 3; i++) {
    struct world w;
    world_init(&w, 12000, 0, 23);
    cache_destroy(w.p.cache);
    w.p.cache = NULL;
    if (sizes[i]) OK(cache_create(sizes[i], &w.p.epoch, &w.p.cache));
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

// ---- retiring

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

  // somebody reads the old version yet
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
      assert_false(atomic_load(&x->runs[t]->obsolete));  // a minor one keeps the tables
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

  // the other way round: what a round made goes, when it cannot be installed
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

// A scan merge is due when scans have paid for it: for all that it would write, and for no less than a round's worth.
static void test_scan_merge_due(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 12000, 0, 40);
  w.c.build.max_pages = 2048;
  w.value = 400;
  scan_merge_ok(&w, 0, NULL);  // not even a table
  put_range(&w, 0, w.k.nr, 1, false);
  round_ok(&w, NULL);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 1);
  wear(&w, 0);  // one run has nothing to be merged with
  assert_false(compact_scan_debt_paid(remix_of(&w, 0)));
  scan_merge_ok(&w, 0, NULL);
  put_range(&w, 0, w.k.nr, 9, false);
  round_ok(&w, NULL);
  struct remix *x = remix_of(&w, 0);
  const uint64_t due = pages_of(&w, 0);
  assert_true(due > COMPACT_SCAN_DEBT_MIN);
  atomic_store(&x->scan_debt, 0);  // what was looked at has been paid for
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
  // new data that becomes one more run takes nothing of what has been paid
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

// The many small runs first: a large old one only when there is no better use of the same bytes.
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
    if (r) put_range(&w, 0, n, 40, false);  // old versions
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
  assert_int_equal(tombs_of(&w, 0), tombs);  // they hide what is below
  assert_true(atomic_load(&w.c.stats.table_bytes) - written < oldest->data_size / 2);
  assert_true(remix_of(&w, 0)->nr_entries > remix_of(&w, 0)->nr_keys);
  // paid for anew, all of it, and nothing is left to hide
  scan_merge_ok(&w, 0, NULL);
  wear(&w, 0);
  scan_merge_ok(&w, 1, kinds);
  expect_kind(kinds, COMPACT_MAJOR, 1);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 1);
  assert_int_equal(tombs_of(&w, 0), 0);
  assert_int_equal(remix_of(&w, 0)->nr_entries, remix_of(&w, 0)->nr_keys);
  wear(&w, 0);
  scan_merge_ok(&w, 0, NULL);
  // all of it deleted: the merge leaves nothing
  w.c.build.max_pages = 10 * TABLE;  // as much garbage as that would be merged at once
  put_range(&w, 0, n, 1, true);
  round_ok(&w, NULL);
  assert_int_equal(remix_of(&w, 0)->nr_runs, 2);
  wear(&w, 0);
  scan_merge_ok(&w, 1, NULL);
  assert_null(remix_of(&w, 0));
  scan_merge_ok(&w, 0, NULL);
  world_fini(&w);
}

// Tables that lie beside each other are read like one: nothing is gained by merging them, nor by merging one of them
// alone with what lies above.
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
  // small ones that touch at one key are not beside each other
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

  // nor are three of which the outer ones are of the same keys
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

// All of a partition, which is more than one should hold.
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

// As many at a time as there are workers; the others stay as they are, and due.
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

// The n-th file that is opened makes the round more urgent that is asked for then.
static struct world *yield_world;
static _Atomic int64_t yield_left;

static int yield_open(struct env *e, int at, const char *path, unsigned flags) {
  if (atomic_fetch_sub(&yield_left, 1) == 1) atomic_store(&yield_world->c.yield, true);
  return place_open(e, at, path, flags);
}

// Several workers give up at once: what is told is what the round was given up for, and not that one of them had.
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
  scan_merge_ok(&w, 0, NULL);  // to be paid for again, whether it is still urgent
  atomic_store(&w.c.yield, false);
  scan_merge_ok(&w, 0, NULL);
  // wherever it is told to: it leaves nothing, or it is as good as done
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
  // new data is more urgent than anything
  atomic_store(&w.c.yield, true);
  w.scan_merges = false;
  put_range(&w, 1, n, 3, true);
  round_ok(&w, NULL);
  atomic_store(&w.c.yield, false);
  wear_all(&w);
  scan_merge_ok(&w, 1, NULL);
  world_fini(&w);
}

// Many rounds of both kinds, in threads, while a reader goes over what is there.
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

// A partition of a version in which its tables may be another partition's; NULL: it holds nothing.
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

// Tables are found wherever the borders of the partitions come to lie.
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
      {{{none, NULL}, {later[0], x[0]}, {second, NULL}, {later[1], x[1]}}, 4, {true, true, false}},
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
    compact_retire(next, w.base);  // it has nothing of its own
    for (uint32_t i = 0; i < 3; i++) expect_retired(x[i], false);
    version_unref(next);
  }
  world_fini(&w);
}

// ---- what can fail

// Several partitions of which one gets a little, one many runs, one new data behind it.
static void ready_to_fail(struct world *w, uint64_t seed) {
  world_init(w, 2500, 0, seed);
  w->value = VALUE + 10;
  w->c.build.max_pages = 4;
  w->c.memtable_size = COMPACT_ABORT_SHARE * 400;
  w->allow_abort = true;
  three_parts(w);
  w->allow_abort = false;
  for (uint32_t r = 0; remix_of(w, 1)->nr_runs < compact_run_limit(&w->c, w->base->parts[1], UINT64_MAX); r++) {
    assert_true(r <= COMPACT_RUNS);
    put_range(w, first_key_of(w, 1) + r, first_key_of(w, 2), 30, false);
    round_ok(w, NULL);
  }
  w->allow_abort = true;
  put(w, first_key_of(w, 0) + 3, true);
  put_range(w, first_key_of(w, 1), first_key_of(w, 2), 25, true);
  put_range(w, first_key_of(w, 1) + 1, first_key_of(w, 2), 25, false);
  put_range(w, keys_for(w, 5.4), w->k.nr, 1, false);
}

static void test_no_memory(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  for (uint32_t compressed = 0; compressed < 2; compressed++) {
    ready_to_fail(&w, 30);
    w.c.build.compression = compressed ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
    w.c.build.ckeys = !compressed;
    no_memory(&w, compressed ? 3 : 1);
    round_ok(&w, kinds);
    expect_kind(kinds, COMPACT_ABORT, 1);
    world_fini(&w);
  }
}

// Both partitions are merged as well as if nothing had failed.
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

static void test_scan_merge_no_memory(void **state) {
  (void)state;
  struct world w;
  ready_to_fail_scan_merge(&w, 48);
  no_memory(&w, 1);
  expect_scan_merge_after(&w);
}

static void test_io_fails(void **state) {
  (void)state;
  struct world w;
  ready_to_fail(&w, 31);
  io_fails(&w);
  uint64_t done[COMPACT_KINDS];
  round_ok(&w, done);
  expect_kind(done, COMPACT_ABORT, 1);
  assert_true(done[COMPACT_MAJOR] >= 1 && done[COMPACT_MINOR] + done[COMPACT_SPLIT] >= 1);
  world_fini(&w);
}

static void test_scan_merge_io_fails(void **state) {
  (void)state;
  struct world w;
  ready_to_fail_scan_merge(&w, 49);
  io_fails(&w);
  expect_scan_merge_after(&w);
}

// A failure while a table is written is seen soon: the round stops its other work, in the partition and in others. The
// message tells the cause.
static void test_fails_soon(void **state) {
  (void)state;
  for (uint32_t one = 0; one < 2; one++) {
    struct world w;
    world_init(&w, 30000, 0, 37);
    if (one) w.c.build.max_pages = 4000;  // all of it in one partition
    const uint32_t n = one ? w.k.nr : keys_for(&w, 8);
    put_range(&w, 0, n, 1, false);
    round_ok(&w, NULL);
    assert_true(one ? w.base->nr_parts == 1 && remix_of(&w, 0)->runs[0]->data_size > 3 * BLKIO_WRITER_BUF
                    : w.base->nr_parts > 3);
    put_range(&w, 0, n, 2, false);
    for (uint32_t open = 0; open < 2; open++) {
      // the first new table, or the first bytes written to one
      fault_io_set(open ? FAULT_OPEN : FAULT_WRITE, 1, false);
      assert_int_equal(round_try(&w), open ? REMIXDB_IO : REMIXDB_NOSPACE);
      assert_true(fault_io_end());
      assert_true(atomic_load(&w.c.progress) < atomic_load(&w.c.work) / (!one ? 2 : open ? 20 : 3));
    }
    round_ok(&w, NULL);
    assert_true(atomic_load(&w.c.progress) > atomic_load(&w.c.work) / 2);
    world_fini(&w);
  }
}

// A table that is damaged fails the round that has to read it, and no data is lost by it.
static void test_damaged(void **state) {
  (void)state;
  struct world w;
  ready_to_fail(&w, 32);
  const struct remix *x = remix_of(&w, 1);
  struct sst *t = x->runs[x->nr_runs - 1];
  FILE *f = fopen(t->path, "r+b");
  assert_non_null(f);
  assert_int_equal(fseek(f, 60, SEEK_SET), 0);
  uint8_t was[8];
  assert_int_equal(fread(was, 1, 8, f), 8);
  assert_int_equal(fseek(f, 60, SEEK_SET), 0);
  assert_int_equal(fwrite("damaged!", 1, 8, f), 8);
  assert_int_equal(fflush(f), 0);
  FAILS(round_try(&w), REMIXDB_CORRUPT);
  assert_non_null(strstr(w.error.msg, t->path));
  expect_failed(&w, REMIXDB_CORRUPT, false);
  assert_int_equal(fseek(f, 60, SEEK_SET), 0);
  assert_int_equal(fwrite(was, 1, 8, f), 8);
  assert_int_equal(fclose(f), 0);
  round_ok(&w, NULL);
  world_fini(&w);
}

// A table's worth of records: the next numbers behind a letter, after 400 bytes more where it is a capital one.
static struct sst *forged_table(struct place *p, char letter, uint32_t *counter) {
  struct sst_build *b;
  struct sst *t;
  uint64_t size;
  const uint64_t number = p->next++;
  OK(sst_build_create(&p->ctx, &(struct sst_build_opts){.ckeys = true, .max_pages = TABLE}, p->queue, &b));
  sst_build_start(b, number);
  for (;;) {
    char key[512];
    const uint8_t val[VALUE] = {0};
    const uint32_t head = letter <= 'Z' ? 400 : 0;
    memset(key, 'a', head);
    const uint32_t klen = head + (uint32_t)snprintf(key + head, sizeof(key) - head, "%c%015u", letter, *counter);
    const struct kv_rec rec = {.key = (const uint8_t *)key, .klen = klen, .val = val, .vlen = sizeof(val)};
    if (!sst_build_takes(b, &rec) || sst_build_bytes(b) >= TABLE * BLOCK_PAGE) break;
    sst_build_add(b, &rec);
    ++*counter;
  }
  OK(sst_build_finish(b, &size));
  sst_build_destroy(b);
  OK(sst_open(&p->ctx, number, &t));
  return t;
}

// A REMIX that says run for run what order its entries are in, two runs for each letter.
static struct remix *forged_remix(struct place *p, uint64_t number, const char *letters) {
  struct sst *runs[REMIX_RUNS_MAX];
  struct remix_write rw = {0};
  struct remix *x;
  uint64_t size;
  uint32_t nr = 0, nr_segs = 0, counter = 0;
  for (const char *c = letters; *c; c++)
    for (uint32_t i = 0; i < 2; i++) runs[nr++] = forged_table(p, *c, &counter);
  OK(remix_write_start(&rw, &p->ctx, p->queue, number, runs, nr, true));
  for (uint32_t r = 0; r < nr; r++) {
    for (uint64_t left = runs[r]->nr_records; left > 0;) {
      const uint32_t n = left < 28 ? (uint32_t)left : 28;
      uint8_t sel[32], tag[32] = {0};
      uint32_t dbit[32];
      char anchor[16];
      memset(sel, (int)r, sizeof(sel));
      for (uint32_t i = 0; i < 32; i++) dbit[i] = 16 * i + 5;
      (void)snprintf(anchor, sizeof(anchor), "%08x", ++nr_segs);
      const struct remix_entries e = {.sel = sel, .tag = tag, .dbit = dbit};
      OK(remix_write_segment(&rw, &e, n, kref(anchor, 8)));
      left -= n;
    }
  }
  OK(remix_write_finish(&rw, &size));
  remix_write_fini(&rw);
  OK(remix_open(&p->ctx, number, runs, nr, &x));
  for (uint32_t r = 0; r < nr; r++) sst_unref(runs[r]);
  return x;
}

// All checksums are right, and the order that it speaks of is not that of the keys: what a round makes of it, that is
// no version either, is not installed.
static void test_forged_order(void **state) {
  (void)state;
  static const char *const orders[] = {"ma", "ma0", "mab", "MXbaYZ"};
  for (uint32_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
    struct world w;
    struct part *part;
    struct compact_whole whole = {.budget = UINT64_C(1) << 40};
    world_init(&w, 10, 0, 1);
    w.p.next = 100;
    OK(part_create(kref("", 0), forged_remix(&w.p, 99, orders[i]), NULL, &part));
    version_unref(w.base);
    OK(version_create(&part, 1, &w.base));
    atomic_store(&w.c.next_file, 1000);
    w.whole = &whole;
    mem_put(&w.p, w.frozen, kref("z", 1), 5, VALUE, ++w.seq);
    FAILS(round_try(&w), REMIXDB_CORRUPT);
    assert_non_null(strstr(w.error.msg, "not in order"));
    assert_null(w.next);
    world_fini(&w);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_keep),
      cmocka_unit_test(test_first),
      cmocka_unit_test(test_minor),
      cmocka_unit_test(test_major_some),
      cmocka_unit_test(test_major_all),
      cmocka_unit_test(test_major_garbage),
      cmocka_unit_test(test_split),
      cmocka_unit_test(test_append),
      cmocka_unit_test(test_append_over),
      cmocka_unit_test(test_empty_parts),
      cmocka_unit_test(test_whole),
      cmocka_unit_test(test_abort),
      cmocka_unit_test(test_abort_fails),
      cmocka_unit_test(test_rounds),
      cmocka_unit_test(test_threads),
      cmocka_unit_test(test_compressed),
      cmocka_unit_test(test_split_soon),
      cmocka_unit_test(test_low_estimate),
      cmocka_unit_test(test_progress),
      cmocka_unit_test(test_retire),
      cmocka_unit_test(test_retire_borders),
      cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_io_fails),
      cmocka_unit_test(test_fails_soon),
      cmocka_unit_test(test_pieces),
      cmocka_unit_test(test_damaged),
      cmocka_unit_test(test_forged_order),
      cmocka_unit_test(test_scan_merge_due),
      cmocka_unit_test(test_scan_merge_some),
      cmocka_unit_test(test_scan_merge_levels),
      cmocka_unit_test(test_scan_merge_split),
      cmocka_unit_test(test_scan_merge_workers),
      cmocka_unit_test(test_scan_merge_yield),
      cmocka_unit_test(test_scan_merge_yield_together),
      cmocka_unit_test(test_scan_merge_threads),
      cmocka_unit_test(test_scan_merge_no_memory),
      cmocka_unit_test(test_scan_merge_io_fails),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
