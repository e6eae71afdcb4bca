// SPDX-License-Identifier: Apache-2.0
//
// Cuts: a partition with much of the store is split in steps. The tests look at the room that the store takes
// meanwhile, at the contents after each slice, and at slices that fail, or find the partition changed.
#include "tests/lib/check.h"

#include "admin/repair.h"
#include "base/files.h"
#include "compact/cut.h"
#include "remix/paged.h"
#include "tests/lib/rounds.h"
#include "tests/lib/starve.h"
#include "xdb.h"

#define RUNS 10u  // runs that the partition has before its split, if all are large

static uint64_t cuts_of(const struct world *w) { return atomic_load(&w->c.stats.cuts); }

// A world whose rounds make room in steps. Its records have about `value` bytes.
static void cut_init(struct world *w, uint32_t keys, uint32_t threads, uint64_t seed, uint32_t value) {
  world_init(w, keys, threads, seed);
  w->value = value;
  w->c.memtable_size = 128 << 10;
  w->c.build.max_pages = 32;
  w->c.garbage_from = 1;
  w->c.cut_from = COMPACT_CUT_FROM;
  w->bounded = w->room.steps = true;
}

// Puts every nr-th key from r on. Such memtables have keys of the whole store, and no two of them have one in common.
static void put_share(struct world *w, uint32_t r, uint32_t nr) { put_range(w, r, w->k.nr, nr, false); }

// Loads a store of 16 memtables. Returns the most room of its files, in percent of the live bytes, from 8 on.
static uint32_t load(bool steps) {
  struct world w;
  uint32_t worst = 0;
  cut_init(&w, 2000, 0, 20, 600);
  w.room.steps = steps;
  for (uint32_t r = 0; r < 16; r++) {
    w.most_room = 0;
    put_share(&w, r, 16);
    round_ok(&w, NULL);
    const uint32_t share = (uint32_t)(w.most_room * 100 / world_bytes(&w));
    if (r >= 8 && share > worst) worst = share;
  }
  assert_int_equal(cuts_of(&w), steps);
  assert_true(w.base->nr_parts >= 3);
  world_fini(&w);
  return worst;
}

static void test_room(void **state) {
  (void)state;
  const uint32_t most = load(false), least = load(true);
  printf("percent of the live bytes: %u at once, %u in steps\n", most, least);
  assert_true(most > 200 && least < 160);
}

// Loads a store of `nr` memtables and overwrites it. Returns the most room, in thousandths of the live bytes, while it
// is overwritten. *cuts_out: how many partitions were cut meanwhile.
static uint32_t overwrite(uint32_t nr, uint32_t from, uint64_t beside, uint64_t *cuts_out) {
  struct world w;
  uint32_t worst = 0;
  cut_init(&w, 800 * nr, 0, 25, 600);
  w.c.memtable_size = 512 << 10;
  w.c.build.max_pages = 128;
  w.c.cut_from = from;
  for (uint32_t r = 0; r < 2 * nr; r++) {
    if (r == nr) {
      *cuts_out = cuts_of(&w);
      w.room.beside = beside;
    }
    w.most_room = 0;
    put_share(&w, r % nr, nr);
    round_ok(&w, NULL);
    const uint32_t share = (uint32_t)(w.most_room * 1000 / world_bytes(&w));
    if (r >= nr && share > worst) worst = share;
  }
  *cuts_out = cuts_of(&w) - *cuts_out;
  world_fini(&w);
  return worst;
}

// A partition with garbage is cut, too, where its merge would take too much room.
static void test_overwritten(void **state) {
  (void)state;
  uint64_t none, cuts, vain;
  const uint32_t most = overwrite(13, 1 << 20, 0, &none), least = overwrite(13, COMPACT_CUT_FROM, 0, &cuts);
  printf("thousandths of the live bytes: %u at once, %u in steps, %u cuts\n", most, least, (unsigned)cuts);
  assert_true(none == 0 && cuts > 0);
  assert_true(most > 1700 && least < 1640);
  (void)overwrite(13, COMPACT_CUT_FROM, 1 << 30, &vain);  // the bound is out of reach
  (void)overwrite(20, COMPACT_CUT_FROM, 0, &cuts);        // no partition has more than two tables
  assert_true(vain == 0 && cuts > 0);
}

// Loads RUNS memtables, and one more that is not flushed: its round asks for a cut. They have so many of `shares`.
static void load_shares(struct world *w, uint32_t shares) {
  for (uint32_t r = 0; r < RUNS; r++) {
    put_share(w, r, shares);
    round_ok(w, NULL);
  }
  assert_true(w->base->nr_parts == 1 && part_runs(w->base->parts[0]) == RUNS);
  put_share(w, RUNS, shares);
}

static void load_due(struct world *w) { load_shares(w, RUNS + 1); }

// Has the round plan its steps. Returns how many these are.
static uint32_t ask(struct world *w) {
  OK(round_try(w));
  assert_null(w->next);
  w->step = true;
  return w->room.nr;
}

// Forgets the plan of a round.
static void forget(struct world *w) {
  const uint64_t beside = w->room.beside;
  compact_room_fini(&w->room);
  w->room.beside = beside;
  w->room.steps = true;
}

static void finish(struct world *w) {
  w->step = false;
  OK(round_try(w));
  assert_non_null(w->next);
  world_install(w);
  forget(w);
}

// Makes the memtable's round. Returns false, and makes none, if it asks for steps.
static bool round_or_ask(struct world *w) {
  OK(round_try(w));
  w->step = !w->next;
  if (w->step) return false;
  world_install(w);
  forget(w);
  return true;
}

// Makes so many of the steps.
static void make_steps(struct world *w, uint32_t nr) {
  for (uint32_t i = 0; i < nr; i++) {
    OK(round_try(w));
    assert_non_null(w->next);
    world_install_step(w);
  }
}

// Each slice takes the place of some runs, the oldest first, and the last one makes partitions that keep the tables of
// the others. No version has more runs than the plan allows, and no record is written twice.
static void test_slices(void **state) {
  (void)state;
  struct world w;
  cut_init(&w, 1800, 0, 30, 600);
  load_due(&w);
  const uint32_t slices = ask(&w);
  assert_true(slices > 1 && slices <= CUT_SLICES);
  const uint64_t all = part_table_bytes(w.base->parts[0]), before = atomic_load(&w.c.stats.table_bytes);
  uint32_t old = RUNS, tables = 0;
  for (uint32_t i = 0; i < slices; i++) {
    struct sst *first[REMIX_RUNS_MAX];
    for (uint32_t r = 0; r < tables; r++) first[r] = part_run(w.base->parts[0], r);
    const struct sst *const newest = part_run(w.base->parts[0], part_runs(w.base->parts[0]) - 1);
    OK(round_try(&w));
    assert_non_null(w.next);
    if (i + 1 == slices) {
      uint32_t kept = 0;
      for (uint32_t n = 0; n < w.next->nr_parts; n++)
        for (uint32_t r = 0; r < part_runs(w.next->parts[n]); r++)
          for (uint32_t t = 0; t < tables; t++) kept += part_run(w.next->parts[n], r) == first[t];
      assert_int_equal(kept, tables);
      world_install_step(&w);
      break;
    }
    assert_int_equal(w.next->nr_parts, 1);
    const struct part *const p = w.next->parts[0];
    assert_true(part_runs(p) <= COMPACT_CUT_RUNS && part_run(p, part_runs(p) - 1) == newest);
    for (uint32_t r = 0; r < tables; r++) assert_ptr_equal(part_run(p, r), first[r]);
    while (part_run(p, tables)->number > newest->number) tables++;
    assert_true(part_runs(p) - tables < old);
    old = part_runs(p) - tables;
    world_install_step(&w);
  }
  assert_true(w.base->nr_parts >= 3 && cuts_of(&w) == 1);
  assert_true(atomic_load(&w.c.stats.table_bytes) - before < all + all / 20);
  for (uint32_t i = 0; i < w.base->nr_parts; i++) {  // C6
    struct part *const p = w.base->parts[i];
    const uint32_t more = p->more_runs, limit = compact_run_limit(&w.c, p, 0);
    assert_true(part_runs(p) > COMPACT_PART_TABLES && more == part_runs(p) - COMPACT_PART_TABLES);
    p->more_runs = 0;
    const uint32_t without = compact_run_limit(&w.c, p, 0), most = COMPACT_RUNS + COMPACT_RUNS_SPREAD / 2;
    assert_int_equal(limit, without + more < most ? without + more : most);
    p->more_runs = more;
  }
  OK(round_try(&w));
  assert_null(w.next);
  finish(&w);
  world_fini(&w);
}

// Makes the steps. Returns the bytes of tables that each writes, the least and the most.
static void measure_steps(struct world *w, uint32_t nr, uint64_t *least, uint64_t *most) {
  *least = UINT64_MAX;
  *most = 0;
  for (uint32_t i = 0; i < nr; i++) {
    const uint64_t before = atomic_load(&w->c.stats.table_bytes);
    make_steps(w, 1);
    const uint64_t bytes = atomic_load(&w->c.stats.table_bytes) - before;
    if (bytes < *least) *least = bytes;
    if (bytes > *most) *most = bytes;
  }
}

// Records that newer runs hide are left out, and the slices write about the same, although only the oldest runs have
// such records.
static void test_hidden(void **state) {
  (void)state;
  struct world w;
  uint64_t least, most, entries = 0, keys = 0;
  cut_init(&w, 1800, 0, 33, 600);
  w.bounded = false;
  for (uint32_t r = 0; r < RUNS; r++) {
    put_share(&w, r % (RUNS - 3), RUNS + 1);
    round_ok(&w, NULL);
  }
  put_share(&w, RUNS, RUNS + 1);
  w.bounded = true;
  w.room.beside = 1 << 30;  // as many slices as may be
  measure_steps(&w, ask(&w), &least, &most);
  assert_true(least * 2 > most);
  for (uint32_t i = 0; i < w.base->nr_parts; i++) {
    entries += remix_of(&w, i)->nr_entries;
    keys += remix_of(&w, i)->nr_keys;
  }
  assert_true(cuts_of(&w) == 1 && w.base->nr_parts > 2);
  assert_int_equal(entries, keys);
  finish(&w);
  world_fini(&w);
}

// Between the plan and the first slice a newer run hides all records of that. It makes no table, and the cut goes on.
static void test_all_hidden(void **state) {
  (void)state;
  struct world w;
  cut_init(&w, 1800, 0, 34, 600);
  load_due(&w);
  const uint32_t slices = ask(&w), runs = part_runs(w.base->parts[0]);
  const struct compact_room room = w.room;
  for (uint32_t r = 0; r < RUNS / 2; r++) put_range(&w, r, w.k.nr, RUNS + 1, true);
  w.step = w.bounded = false;
  w.base->parts[0]->more_runs = 8;  // so that the partition takes one more
  OK(round_try(&w));
  assert_non_null(w.next);
  world_install(&w);
  assert_true(w.base->nr_parts == 1 && part_runs(w.base->parts[0]) == runs + 1);
  put_share(&w, RUNS, RUNS + 1);
  w.room = room;
  w.step = w.bounded = true;
  const uint64_t before = atomic_load(&w.c.stats.table_bytes);
  make_steps(&w, 1);
  assert_int_equal(atomic_load(&w.c.stats.table_bytes), before);
  assert_true(part_runs(w.base->parts[0]) < runs);
  make_steps(&w, slices - 1);
  assert_int_equal(cuts_of(&w), 1);
  finish(&w);
  world_fini(&w);
}

// A cut keeps tombstones. So a partition with many is merged.
static void test_tombstones(void **state) {
  (void)state;
  for (uint32_t many = 0; many < 2; many++) {
    struct world w;
    cut_init(&w, 1800, 0, 39, 600);
    w.bounded = false;
    for (uint32_t r = 0; r < RUNS; r++) {
      put_share(&w, r, RUNS + 1);
      if (r == 8) put_range(&w, 0, w.k.nr * 2 / 5, many ? 2 : 40, true);
      round_ok(&w, NULL);
    }
    put_share(&w, RUNS, RUNS + 1);
    w.bounded = true;
    w.room.beside = 1 << 30;
    assert_int_equal(ask(&w) == 1, many);
    forget(&w);
    world_fini(&w);
  }
}

// A partition with many full tables has fewer slices, so that it does not get too many runs.
static void test_many_runs(void **state) {
  (void)state;
  struct world w;
  cut_init(&w, 3600, 0, 35, 600);
  w.room.beside = 1 << 30;
  put_range(&w, 0, w.k.nr, 90, false);  // a small run, so that the limit is that of small ones
  round_ok(&w, NULL);
  while (w.base->nr_parts == 1) {
    const uint32_t runs = part_runs(w.base->parts[0]);
    assert_true(runs < 20);
    put_share(&w, runs, 20);
    if (round_or_ask(&w)) continue;
    assert_true(runs > RUNS && w.room.nr > 1);
    for (w.step = true;;) {
      OK(round_try(&w));
      if (!w.next) break;
      assert_true(part_runs(w.next->parts[0]) <= COMPACT_CUT_RUNS);
      world_install_step(&w);
    }
    finish(&w);
  }
  assert_int_equal(cuts_of(&w), 1);
  world_fini(&w);
}

// The tables of another opening are much larger than those of this one: full ranges would be more than C1 allows. The
// new partitions are larger (C9). descending: each memtable has keys before all others, so a slice lies in few ranges.
static void large_tables(bool descending) {
  struct world w;
  struct budget little;
  cut_init(&w, 800 * (RUNS + 1), 0, 41, 600);
  w.c.memtable_size = 512 << 10;
  w.c.build.max_pages = 128;
  w.large = true;
  w.bounded = false;
  for (uint32_t r = 0; r < RUNS; r++) {
    const uint32_t share = w.k.nr / (RUNS + 1), from = w.k.nr - share * (r + 1);
    if (descending) put_range(&w, from, from + share, 1, false);
    else put_share(&w, r, RUNS + 1);
    round_ok(&w, NULL);
  }
  assert_true(w.base->nr_parts == 1 && part_runs(w.base->parts[0]) == RUNS);
  w.bounded = true;
  w.most_room = 0;
  w.c.memtable_size = 32 << 10;
  w.c.build.max_pages = 8;
  put_share(&w, RUNS, (RUNS + 1) * 16);
  budget_init(&little);
  little.work_most = 1000;
  w.p.ctx.budget = &little;
  assert_int_equal(ask(&w), 1);
  w.p.ctx.budget = NULL;
  budget_fini(&little);
  w.step = false;
  forget(&w);
  const uint32_t slices = ask(&w);
  assert_true(slices > 1 && slices <= CUT_SLICES);
  for (uint32_t i = 0; i < slices; i++) {
    OK(round_try(&w));
    assert_non_null(w.next);
    if (i + 1 < slices)
      assert_true(part_runs(w.next->parts[0]) <= (descending ? REMIX_RUNS_MAX - 1 : COMPACT_CUT_RUNS));
    world_install_step(&w);
  }
  printf("large tables: %u partitions, room of %u %%\n", w.base->nr_parts,
         (unsigned)(w.most_room * 100 / world_bytes(&w)));
  assert_true(w.base->nr_parts >= 4 && cuts_of(&w) == 1);
  for (uint32_t i = 0; i < w.base->nr_parts; i++) assert_true(part_runs(w.base->parts[i]) < COMPACT_CUT_RUNS);
  finish(&w);
  assert_true(w.most_room < world_bytes(&w) * 8 / 5);
  world_fini(&w);
}

static void test_large_tables(void **state) {
  (void)state;
  large_tables(false);
  large_tables(true);
}

// The young view stays until the last slice merges it.
static void test_young(void **state) {
  (void)state;
  struct world w;
  cut_init(&w, 3600, 0, 38, 600);
  put_range(&w, 0, w.k.nr, 90, false);  // a small run, so that the limit is that of small ones
  round_ok(&w, NULL);
  const uint32_t limit = compact_run_limit(&w.c, w.base->parts[0], 0);
  while (part_runs(w.base->parts[0]) + 1 < limit) {
    put_share(&w, part_runs(w.base->parts[0]), 20);
    assert_true(round_or_ask(&w));
  }
  w.c.young_from = 1;
  put_range(&w, 5, w.k.nr, 40, false);
  put_range(&w, 0, w.k.nr, 50, true);
  assert_true(round_or_ask(&w));
  const struct remix *const young = young_of(&w, 0);
  assert_true(young && part_runs(w.base->parts[0]) == limit);
  put_share(&w, 19, 20);
  assert_false(round_or_ask(&w));
  const uint32_t slices = w.room.nr;
  for (uint32_t i = 0; i < slices; i++) {
    assert_ptr_equal(young_of(&w, 0), young);
    make_steps(&w, 1);
  }
  assert_true(slices > 1 && cuts_of(&w) == 1 && w.base->nr_parts > 2);
  for (uint32_t i = 0; i < w.base->nr_parts; i++) assert_null(young_of(&w, i));
  finish(&w);
  world_fini(&w);
}

// Tells which tables a version has.
static bool has_table(const struct version *v, uint64_t number) {
  for (uint32_t i = 0; i < v->nr_parts; i++)
    for (uint32_t r = 0; r < part_runs(v->parts[i]); r++)
      if (part_run(v->parts[i], r)->number == number) return true;
  return false;
}

// The disk is full in the middle of a slice, so the cut is given up. The next one goes on where it was: at the keys of
// the tables that are there, and writes none of them again. So it does when the store was closed meanwhile (C7).
static void test_full_disk(void **state) {
  (void)state;
  enum { SHARES = RUNS + 6 };
  uint32_t cases = 0;
  for (uint32_t done = 1, slices = 2; done < slices; done++)
    for (uint32_t again = 0; again < 2; again++, cases++) {
      struct world w;
      uint64_t made[REMIX_RUNS_MAX], made_bytes = 0;
      uint32_t nr = 0;
      cut_init(&w, 2600, 0, 30 + done, 600);
      w.room.beside = 1 << 30;  // as many slices as may be
      load_shares(&w, SHARES);
      slices = ask(&w);
      assert_true(slices > 2);
      const uint64_t newest = part_run(w.base->parts[0], RUNS - 1)->number;
      make_steps(&w, done);
      fault_io_set(FAULT_WRITE, 2, true);
      assert_int_equal(round_try(&w), REMIXDB_NOSPACE);
      assert_true(fault_io_end());
      for (uint32_t r = 0; r < part_runs(w.base->parts[0]); r++) {
        const struct sst *const t = part_run(w.base->parts[0], r);
        if (t->number <= newest) continue;
        made_bytes += t->file_size;
        made[nr++] = t->number;
      }
      assert_true(nr >= 3 * done);
      w.step = false;
      forget(&w);
      if (again) world_again(&w);
      for (uint32_t r = 0; round_or_ask(&w); r++) {  // small tables may let the partition have more runs
        assert_true(RUNS + 1 + r < SHARES);
        put_share(&w, RUNS + 1 + r, SHARES);
      }
      const uint64_t then = atomic_load(&w.c.stats.table_bytes), rest = part_table_bytes(w.base->parts[0]) - made_bytes;
      const uint32_t left = w.room.nr;
      assert_true(left > 0 && left <= CUT_SLICES);
      for (uint32_t i = 0; i < left; i++) {
        for (uint32_t t = 0; t < nr; t++) assert_true(has_table(w.base, made[t]));
        assert_true(part_runs(w.base->parts[0]) <= COMPACT_CUT_RUNS);
        make_steps(&w, 1);
      }
      for (uint32_t t = 0; t < nr; t++) assert_true(has_table(w.base, made[t]));
      assert_true(cuts_of(&w) == 1 && w.base->nr_parts >= 3);
      assert_true(atomic_load(&w.c.stats.table_bytes) - then < rest + rest / 10);
      finish(&w);
      world_fini(&w);
    }
  printf("%u slices that failed\n", cases);
}

// The disk is full in a slice, so the cut is given up.
static void fail_slice(struct world *w) {
  fault_io_set(FAULT_WRITE, 2, true);
  assert_int_equal(round_try(w), REMIXDB_NOSPACE);
  assert_true(fault_io_end());
  w->step = false;
}

// The round that has asked for a slice that found the disk full needs room for its new data and a view: it does not
// split the partition, and leaves what earlier slices have made. A later round goes on with the cut, also after several
// such rounds. Where the partition would have too many runs, the round is as it was planned.
static void run_full_round(uint32_t rounds) {
  enum { SHARES = 40 };
  struct world w;
  uint32_t done = 0, slices;
  cut_init(&w, 6000, 0, 35, 600);
  w.room.beside = 1 << 30;
  load_shares(&w, SHARES);
  slices = ask(&w);
  assert_true(slices > 2);
  make_steps(&w, 1);
  for (; done < rounds; done++) {
    const uint64_t minors = atomic_load(&w.c.stats.kinds[COMPACT_MINOR]);
    const uint32_t before = part_runs(w.base->parts[0]);
    uint64_t fresh = 0;
    fail_slice(&w);
    const uint64_t made = atomic_load(&w.c.stats.table_bytes);
    OK(round_try(&w));
    world_install(&w);
    forget(&w);
    if (atomic_load(&w.c.stats.kinds[COMPACT_SPLIT])) break;
    const struct part *const p = w.base->parts[0];
    for (uint32_t r = before; r < part_runs(p); r++) fresh += part_run(p, r)->file_size;
    assert_true(w.base->nr_parts == 1 && atomic_load(&w.c.stats.kinds[COMPACT_MINOR]) == minors + 1);
    assert_true(part_runs(p) > before && part_runs(p) <= COMPACT_CUT_RUNS);
    assert_int_equal(atomic_load(&w.c.stats.table_bytes) - made, fresh);
    put_share(&w, RUNS + 1 + done, SHARES);
    slices = ask(&w);
    assert_true(slices > 0);
  }
  if (done == rounds) {
    make_steps(&w, slices);
    assert_int_equal(cuts_of(&w), 1);
    finish(&w);
  } else {
    assert_int_equal(cuts_of(&w), 0);
    printf("%u rounds beside a full disk\n", done);
  }
  assert_true(w.base->nr_parts >= 3 && (rounds < 20) == (done == rounds) && (rounds < 20 || done > 4));
  world_fini(&w);
}

static void test_full_round(void **state) {
  (void)state;
  run_full_round(1);
  run_full_round(3);
  run_full_round(20);
}

// The oldest runs have no keys in common. The cut keeps them only where the ranges between them are neither small nor
// large, and where little is hidden. turn 0: the first run has few keys, so the second one has nearly all; 1: each has
// a half; 2: one has few keys, and three have a third each; 3: the same, and a newer run has a fifth of their keys,
// too.
static void test_uneven(void **state) {
  (void)state;
  for (uint32_t turn = 0; turn < 4; turn++) {
    struct world w;
    cut_init(&w, turn == 1 ? 3600 : 2400, 0, 95 + turn, 600);
    w.room.beside = 1 << 30;
    const uint32_t n = w.k.nr, few = n / 40, first = turn >= 2 ? 4 : 2;
    const uint32_t at[4][5] = {{0, few, n},
                               {0, n / 2, n},
                               {0, few, n / 3, n * 2 / 3, n},
                               {0, few, n / 3, n * 2 / 3, n}};
    uint64_t numbers[4];
    uint32_t r = 0;
    do {
      if (r < first) put_range(&w, at[turn][r] / 20 * 20 + 19, at[turn][r + 1], 20, false);
      else put_share(&w, r, 20);
      for (uint32_t i = 0; turn == 3 && r == 8 && i < first; i++)
        put_range(&w, at[turn][i] / 20 * 20 + 19, at[turn][i + 1], 60, false);
      assert_true(r < 20);
    } while (r++, round_or_ask(&w));
    const struct part *const p = w.base->parts[0];
    for (uint32_t i = 0; i < first; i++) {
      numbers[i] = part_run(p, i)->number;
      assert_true(i == 0 || kv_cmp(part_run(p, i - 1)->max, part_run(p, i)->min) < 0);
    }
    assert_true(w.base->nr_parts == 1 && w.room.nr > 1);
    make_steps(&w, w.room.nr);
    assert_true(cuts_of(&w) == 1 && (turn == 2 ? w.base->nr_parts == 3 : w.base->nr_parts > 2));
    for (uint32_t i = 0; i < first; i++) assert_true(has_table(w.base, numbers[i]) == (turn == 2));
    finish(&w);
    world_fini(&w);
  }
}

// Overwrites, tombstones, values apart, values of very different sizes, keys that rise, deleted ranges: whatever the
// partition has, the contents stay right.
static void test_kinds(void **state) {
  (void)state;
  uint64_t cuts = 0;
  for (uint32_t kind = 0; kind < 24; kind++) {
    struct world w;
    uint64_t rng = check_seed + kind;
    cut_init(&w, kind % 3 ? 2500 : 6000, kind % 2, check_seed + kind, kind % 3 ? 500 : 120);
    if (kind % 4 == 1) world_apart(&w, 600);
    w.both = kind % 5 == 4;
    if (w.both) OK(version_begin_spaces(w.base));
    const bool small = kind % 4 == 2;  // so that there is a young view
    if (small) w.c.young_from = 8;
    for (uint32_t r = 0; r < (small ? 60 : 24); r++) {
      const uint32_t n = w.k.nr, from = (uint32_t)(rng_next(&rng) % n);
      if (small) put_range(&w, r % 40, n, 40, r > 30 && r % 7 == 0);
      else if (kind % 6 == 5) put_range(&w, r * (n / 24), (r + 2) * (n / 24) < n ? (r + 2) * (n / 24) : n, 1, false);
      else put_range(&w, r % 12, n, 12, false);
      if (kind % 4 == 3) put_range(&w, from, from + n / 20 < n ? from + n / 20 : n, 2, r % 2);
      round_ok(&w, NULL);
      if (r % 9 == 8) erase_some(&w, &rng, NULL);
    }
    cuts += cuts_of(&w);
    world_again(&w);
    expect_contents(&w, w.base, w.disk);
    world_fini(&w);
  }
  printf("%u cuts\n", (unsigned)cuts);
  assert_true(cuts >= 4);
}

// A memtable becomes two tables of the same age, which no cut divides (C5): the fixture looks at that in each version.
static void test_same_age(void **state) {
  (void)state;
  struct world w;
  uint32_t pairs = 0;  // before the cut
  cut_init(&w, 2000, 0, 36, 600);
  w.c.memtable_size = 64 << 10;
  w.c.build.max_pages = 16;
  for (uint32_t r = 0; r < 16 && cuts_of(&w) == 0; r++) {
    const struct part *const p = w.base->parts[0];
    pairs = 0;
    for (uint32_t n = 1; n < part_runs(p); n++) pairs += part_run(p, n - 1)->seq_min == part_run(p, n)->seq_min;
    put_share(&w, r, 16);
    round_ok(&w, NULL);
  }
  assert_true(cuts_of(&w) == 1 && pairs > 2);
  world_fini(&w);
}

// Some keys were deleted as a range. The cut passes their records, and makes no partition where nothing else is.
static void test_erased(void **state) {
  (void)state;
  struct world w;
  cut_init(&w, 3600, 0, 37, 600);
  w.room.beside = 1 << 30;
  put_range(&w, 0, w.k.nr, 90, false);  // a small run, so that the limit is that of small ones
  while (round_or_ask(&w)) put_share(&w, part_runs(w.base->parts[0]), 20);
  w.step = false;
  forget(&w);
  thaw(&w);
  w.c.build.max_pages = 22;  // so that there are many ranges
  const uint32_t n = w.k.nr, gone[1][2] = {{n / 4, n * 44 / 100}};
  erase_keys(&w, gone, 1, 0, NULL);
  put_range(&w, 0, n / 4, 20, false);
  put_range(&w, n * 44 / 100, n, 20, false);
  const uint32_t slices = ask(&w);
  for (uint32_t i = 0; i < slices; i++) {
    OK(round_try(&w));
    world_install_step(&w);
  }
  assert_true(cuts_of(&w) == 1 && w.base->nr_parts >= 2);
  for (uint32_t i = 0; i < w.base->nr_parts; i++) assert_int_equal(remix_of(&w, i)->nr_keys > 0, true);
  finish(&w);
  world_fini(&w);
}

// A slice is left out, or the partition gets other runs between two slices: the cut ends without its last slice.
static void test_changed(void **state) {
  (void)state;
  for (uint32_t turn = 0; turn < 3; turn++) {
    struct world w;
    cut_init(&w, 1800, 0, 40 + turn, 600);
    load_due(&w);
    const uint32_t slices = ask(&w), done = turn % 2;
    assert_true(slices > done + 1);
    make_steps(&w, done);
    if (turn < 2) {
      w.room.at++;
      make_steps(&w, slices - done - 2);
    } else {  // the newest runs become others
      const struct compact_room room = w.room;
      w.step = false;
      w.bounded = false;
      w.scan_merges = true;
      wear(&w, 0);
      OK(round_try(&w));
      assert_non_null(w.next);
      world_install_step(&w);
      w.scan_merges = false;
      w.room = room;
      w.step = w.bounded = true;
      while (w.room.at + 1 < w.room.nr) {
        OK(round_try(&w));
        if (w.next) world_install_step(&w);
      }
    }
    OK(round_try(&w));
    assert_null(w.next);
    assert_int_equal(cuts_of(&w), 0);
    finish(&w);
    world_fini(&w);
  }
}

// A store that ends between two slices comes again, with all that it had.
static void test_reload(void **state) {
  (void)state;
  for (uint32_t done = 1; done < 3; done++) {
    struct world w;
    cut_init(&w, 1800, 0, 50, 600);
    load_due(&w);
    assert_true(ask(&w) > done);
    for (uint32_t i = 0; i < done; i++) {
      OK(round_try(&w));
      world_install_step(&w);
    }
    compact_room_fini(&w.room);
    w.room.steps = true;
    w.step = false;
    world_again(&w);
    expect_contents(&w, w.base, w.disk);
    round_ok(&w, NULL);
    world_fini(&w);
  }
}

// A store that a repair has made of the world's files has the records of the model.
static void expect_repaired(struct world *w) {
  static uint8_t val[VALUE_MAX], got[VALUE_MAX];
  char dir[TEMP_DIR], from[ENV_PATH_MAX], to[ENV_PATH_MAX];
  char *const names = place_files(&w->p);
  struct remixdb_opts o = small_opts(0);
  struct repair_report report;
  struct xdb *x;
  struct xdb_ref *r;
  assert_true(temp_make(dir, "cut"));
  for (char *name = strtok(names, "\n"); name; name = strtok(NULL, "\n")) {
    OK(env_path(from, w->p.dir, name));
    OK(env_path(to, dir, name));
    copy_file(from, to);
  }
  free(names);
  OK(repair_store(env_posix(), dir, &report));
  assert_true(report.version_lost);
  OK(xdb_open(dir, &o, env_posix(), &x));
  OK(xdb_ref(x, &r));
  for (uint32_t a = 0; a < w->k.nr; a++) {
    uint32_t len;
    const enum remixdb_status s = xdb_get(r, w->k.keys[a], got, sizeof(got), &len);
    assert_int_equal(s, w->disk[a] > TOMB ? REMIXDB_OK : REMIXDB_NOTFOUND);
    if (s != REMIXDB_OK) continue;
    assert_int_equal(len, value_make(w->k.keys[a], w->disk[a], w->value, val));
    assert_memory_equal(got, val, len);
  }
  xdb_unref(r);
  OK(xdb_close(x));
  assert_int_equal(remove_tree(dir), 0);
}

// A partition behind the first one, with a table that is younger than all runs of that, and whose records are as old as
// all of these.
static void merge_behind(struct world *w) {
  assert_int_equal(w->base->nr_parts, 2);
  const uint32_t from = first_key_of(w, 1);
  put_range(w, from, w->k.nr, 9, false);
  round_ok(w, NULL);
  w->scan_merges = true;
  wear(w, 1);
  scan_merge_ok(w, 1, NULL);
  w->scan_merges = false;
}

// CURRENT is lost between two slices. Tables of a slice have larger numbers than runs that are newer, and the repair
// finds out which is which.
static void test_lost(void **state) {
  (void)state;
  for (uint32_t turn = 0; turn < 8; turn++) {
    struct world w;
    const bool behind = turn % 2;
    const uint32_t done = turn / 2;
    cut_init(&w, 1500, 0, 80 + turn, 600);
    const uint32_t n = behind ? w.k.nr * 4 / 5 : w.k.nr;
    for (uint32_t r = 0; r <= RUNS; r++) {
      if (behind && r == RUNS) merge_behind(&w);
      put_range(&w, r, n, RUNS + 1, false);
      put_range(&w, r % 5, n, 50, r % 3 == 2);
      if (behind && r == 2) put_range(&w, n, w.k.nr, 2, false);
      if (r < RUNS) round_ok(&w, NULL);
    }
    assert_true(ask(&w) > 1);
    for (uint32_t i = 0; i < done && w.room.at < w.room.nr; i++) {
      OK(round_try(&w));
      world_install_step(&w);
    }
    expect_repaired(&w);
    compact_room_fini(&w.room);
    world_fini(&w);
  }
}

// A table of a slice has to come before a newer run, but only because of another table between the two: it has no keys
// in common with that run itself.
static void test_lost_narrow(void **state) {
  (void)state;
  for (uint32_t turn = 0; turn < 3; turn++) {
    struct world w;
    cut_init(&w, 1800, 0, 180 + turn, 600);
    w.room.beside = 1 << 30;  // as many slices as may be
    const uint32_t n = w.k.nr, low = n / 12;
    uint32_t r = 0;
    do {
      if (r == 8) put_range(&w, 0, low, 1, false);
      else put_range(&w, r >= 4 && r < 8 ? r : low + r, n, 13, false);
      assert_true(r < 20);
    } while (r++, round_or_ask(&w));
    assert_true(r > 8 && w.room.nr > turn + 1);
    make_steps(&w, turn + 1);
    expect_repaired(&w);
    forget(&w);
    world_fini(&w);
  }
}

// Each slice fails at each allocation and at each call to the disk, and changes nothing then.
static void test_faults(void **state) {
  (void)state;
  struct world w;
  cut_init(&w, 900, 2, 60, 300);
  w.c.memtable_size = 32 << 10;
  w.c.build.max_pages = 8;
  load_due(&w);
  for (int64_t n = 1;; n++) {  // the plan needs memory, too
    fault_mem_set(n);
    const enum remixdb_status s = round_try(&w);
    const bool any = fault_mem_end();
    assert_true(s == REMIXDB_OK || (any && s == REMIXDB_NOMEM));
    assert_null(w.next);
    forget(&w);
    if (!any) break;
  }
  const uint32_t slices = ask(&w);
  for (uint32_t i = 0; i < slices; i++) {
    w.step_at = i;
    if (i == 1 || i + 1 == slices) {
      no_memory(&w, 3);
      io_fails(&w);
    }
    OK(round_again(&w));
    assert_non_null(w.next);
    world_install_step(&w);
  }
  assert_int_equal(cuts_of(&w) > 0, true);
  finish(&w);
  world_fini(&w);
}

// A run cannot be read. The slices that need it are left out, the partition is marked, and the round goes on.
static void test_damaged(void **state) {
  (void)state;
  struct world w;
  cut_init(&w, 1800, 0, 70, 600);
  w.c.young_from = COMPACT_YOUNG_FROM;
  load_due(&w);
  (void)ask(&w);
  damage(w.base, 0);
  OK(round_try(&w));
  assert_null(w.next);
  damage(w.base, 0);
  assert_true(w.told == 1 && is_damaged(w.base->parts[0]) && w.base->nr_parts == 1 && cuts_of(&w) == 0);
  w.step = false;
  damage(w.base, 0);
  OK(round_try(&w));
  assert_non_null(w.next);
  damage(w.base, 0);
  world_install(&w);
  assert_non_null(young_of(&w, 0));
  compact_room_fini(&w.room);
  world_fini(&w);
}

// The partition's view is paged, and each call to the disk fails while the steps are planned. No plan fails: a merge in
// place of the cut meets what is wrong.
static void test_paged(void **state) {
  (void)state;
  struct world w;
  struct budget budget;
  struct remix_pool pool;
  static const unsigned kinds[] = {FAULT_OPEN, FAULT_READ};
  uint32_t merges = 0;
  cut_init(&w, 1800, 0, 90, 600);
  budget_init(&budget);
  remix_pool_init(&pool, &w.p.epoch, &budget);
  w.p.ctx.budget = &budget;
  w.p.ctx.pages = &pool;
  starve(true);
  load_due(&w);
  assert_true(remix_is_paged(remix_of(&w, 0)));
  for (uint32_t k = 0; k < 2; k++) {
    bool any = true;
    for (int64_t n = 1; any; n++) {
      fault_io_set(kinds[k], n, false);
      OK(round_try(&w));
      any = fault_io_end();
      assert_null(w.next);
      merges += w.room.nr == 1;
      assert_true(w.room.nr > 1 || any);
      forget(&w);
    }
  }
  assert_true(merges > 0);
  make_steps(&w, ask(&w));
  assert_int_equal(cuts_of(&w), 1);
  finish(&w);
  version_unref(w.base);
  struct part *only;
  OK(part_create(kref(NULL, 0), NULL, NULL, &only));
  OK(version_create(&only, 1, &w.base));
  w.p.ctx.pages = NULL;
  epoch_reclaim(&w.p.epoch);
  remix_pool_fini(&pool);
  starve(false);
  w.p.ctx.budget = NULL;
  world_fini(&w);
  budget_fini(&budget);
}

// ---- room on a full disk (C8)

// One partition of some runs. The newest one deletes `gone` of 20 keys of each other one. young: a young view deletes
// one more of 20.
static void load_garbage(struct world *w, uint32_t gone, bool young) {
  w->bounded = false;
  for (uint32_t r = 0; r + 1 < RUNS; r++) {
    put_share(w, r, RUNS);
    if (r + 2 == RUNS)
      for (uint32_t i = 0; i < gone; i++) put_range(w, i, w->k.nr, 20, true);
    round_ok(w, NULL);
  }
  if (young) {
    w->c.young_from = 1;
    put_range(w, gone, w->k.nr, 20, true);
    round_ok(w, NULL);
    assert_non_null(young_of(w, 0));
  }
  assert_true(w->base->nr_parts == 1 && part_runs(w->base->parts[0]) > RUNS / 2);
  w->bounded = w->step = true;
}

// Makes steps for a full disk. Each may write at most so many bytes, which is checked. Returns how many.
static uint32_t make_full_steps(struct world *w, uint64_t most) {
  uint32_t nr = 0;
  forget(w);
  w->room.most = most;
  for (;; nr++) {
    const uint64_t before = atomic_load(&w->c.stats.table_bytes);
    const uint32_t runs = part_runs(w->base->parts[0]);
    OK(round_try(w));
    assert_true(w->room.most <= most);
    if (!w->next) return nr;
    // small tables have much beside their blocks
    assert_true(w->large || atomic_load(&w->c.stats.table_bytes) - before <= w->room.most);
    world_install_step(w);
    assert_true(part_runs(w->base->parts[0]) <= runs);
  }
}

static uint64_t largest_run(const struct part *p) {
  uint64_t most = 0;
  for (uint32_t r = 0; r < part_runs(p); r++)
    if (part_run(p, r)->file_size > most) most = part_run(p, r)->file_size;
  return most;
}

// Slices free what newer runs and the young view hide, each in little room, and the partition gets no more runs. With
// more room there are fewer slices, and with enough of it one merge of the whole. Where nothing fits nothing is done,
// and a second plan finds nothing more to do. small: tables are much smaller than those of an opening before.
static void full_steps(bool small) {
  for (uint32_t young = 0; young < 2; young++) {
    uint32_t before = UINT32_MAX;
    for (uint32_t times = 1; times < 5; times++) {
      struct world w;
      cut_init(&w, 1800, 0, 200 + times, 600);
      w.c.memtable_size = 1 << 20;
      load_garbage(&w, 4, young);
      if (small) w.c.build.max_pages = 2;
      w.large = small;
      const uint64_t all = version_table_bytes(w.base), run = largest_run(w.base->parts[0]);
      assert_int_equal(make_full_steps(&w, run / 8), young);  // the young view becomes a run, which is little
      assert_null(young_of(&w, 0));
      const uint32_t nr = make_full_steps(&w, times == 4 ? UINT64_MAX : times * run);
      assert_true(nr > 0 && (small || (nr <= before && version_table_bytes(w.base) < all * 9 / 10)));
      assert_true(times == 4 ? nr == 1 && !young_of(&w, 0) : w.base->nr_parts == 1);
      assert_int_equal(make_full_steps(&w, UINT64_MAX), 0);
      before = nr;
      forget(&w);
      world_fini(&w);
    }
  }
}

static void test_room_full(void **state) {
  (void)state;
  full_steps(false);
  full_steps(true);
}

// CURRENT is lost between two such slices: a repair finds the age of all tables out.
static void test_room_lost(void **state) {
  (void)state;
  for (uint32_t done = 1; done < 6; done++) {
    struct world w;
    uint32_t made = 0;
    cut_init(&w, 1800, 0, 240 + done, 600);
    w.c.memtable_size = 1 << 20;
    load_garbage(&w, 4, done % 2);
    forget(&w);
    w.room.most = largest_run(w.base->parts[0]);
    for (; made < done; made++) {
      OK(round_try(&w));
      if (!w.next) break;
      world_install_step(&w);
    }
    assert_true(made == done || made > 2);
    expect_repaired(&w);
    forget(&w);
    world_fini(&w);
  }
}

// A merge of the whole frees room where a slice would not: only the first one drops tombstones.
static void test_room_whole(void **state) {
  (void)state;
  struct world w;
  cut_init(&w, 900, 0, 210, 600);
  w.bounded = false;
  put_range(&w, 0, w.k.nr, 1, false);
  round_ok(&w, NULL);
  put_range(&w, 0, w.k.nr / 5, 1, true);
  round_ok(&w, NULL);
  assert_true(tombs_of(&w, 0) > 0);
  w.bounded = w.step = true;
  w.c.memtable_size = 1 << 20;
  assert_int_equal(make_full_steps(&w, UINT64_MAX), 1);
  assert_int_equal(tombs_of(&w, 0), 0);
  forget(&w);
  world_fini(&w);
}

// A round on a full disk merges no partition for its garbage, and writes its new data alone.
static void test_scarce(void **state) {
  (void)state;
  for (uint32_t scarce = 0; scarce < 2; scarce++) {
    struct world w;
    cut_init(&w, 1800, 0, 220, 600);
    load_garbage(&w, 5, false);
    w.step = false;
    forget(&w);
    w.room.steps = false;
    w.room.scarce = scarce;
    const uint64_t before = atomic_load(&w.c.stats.table_bytes), all = part_table_bytes(w.base->parts[0]);
    for (uint32_t i = 5; i < 15; i++) put_range(&w, i, w.k.nr, 20, true);
    OK(round_try(&w));
    assert_non_null(w.next);
    const uint64_t made = atomic_load(&w.c.stats.table_bytes) - before;
    world_install(&w);
    if (scarce) assert_true(made < all / 10);
    else assert_true(made > all / 10);
    assert_int_equal(tombs_of(&w, 0) > 0, scarce);
    forget(&w);
    world_fini(&w);
  }
}

// Planning and making such steps fail at each allocation and each call to the disk, and change nothing then.
static void test_room_faults(void **state) {
  (void)state;
  static const unsigned kinds[] = {FAULT_OPEN, FAULT_READ, FAULT_WRITE};
  struct world w;
  cut_init(&w, 900, 2, 230, 300);
  w.c.memtable_size = 32 << 10;
  w.c.build.max_pages = 8;
  load_garbage(&w, 10, false);
  const uint64_t most = 2 * largest_run(w.base->parts[0]);
  bool any = true;
  for (int64_t n = 1; any; n++) {
    w.room.most = most;
    fault_mem_set(n);
    const enum remixdb_status s = round_try(&w);
    any = fault_mem_end();
    if (any) expect_failed(&w, REMIXDB_NOMEM, n % 16 == 0);
    else OK(s);
    if (any) forget(&w);
  }
  assert_non_null(w.next);
  world_install_step(&w);
  for (uint32_t k = 0; k < 3; k++) {
    any = true;
    for (int64_t n = 1; any; n++) {
      forget(&w);
      w.room.most = most;
      forgive(w.base->parts[0]);
      fault_io_set(kinds[k], n, false);
      const enum remixdb_status s = round_try(&w);
      any = fault_io_end();
      if (s != REMIXDB_OK) expect_failed(&w, s, n % 16 == 0);
      else if (w.next) world_install_step(&w);
    }
  }
  forget(&w);
  world_fini(&w);
}

int main(void) {
  (void)check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_room),        cmocka_unit_test(test_slices),      cmocka_unit_test(test_kinds),
      cmocka_unit_test(test_changed),     cmocka_unit_test(test_reload),      cmocka_unit_test(test_faults),
      cmocka_unit_test(test_damaged),     cmocka_unit_test(test_lost),        cmocka_unit_test(test_many_runs),
      cmocka_unit_test(test_same_age),    cmocka_unit_test(test_erased),      cmocka_unit_test(test_young),
      cmocka_unit_test(test_paged),       cmocka_unit_test(test_lost_narrow), cmocka_unit_test(test_hidden),
      cmocka_unit_test(test_all_hidden),  cmocka_unit_test(test_overwritten), cmocka_unit_test(test_tombstones),
      cmocka_unit_test(test_full_disk),   cmocka_unit_test(test_full_round),  cmocka_unit_test(test_uneven),
      cmocka_unit_test(test_room_full),   cmocka_unit_test(test_room_whole),  cmocka_unit_test(test_scarce),
      cmocka_unit_test(test_room_faults), cmocka_unit_test(test_room_lost),   cmocka_unit_test(test_large_tables),
  };
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
