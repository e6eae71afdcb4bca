// SPDX-License-Identifier: Apache-2.0
//
// Joins of partitions in which little lives, and partitions in which nothing lives (compact/join.h, J1 to J5): by a
// round of a memtable and by a store at rest, against the model; and rounds with joins that fail.
#include "tests/lib/check.h"
#include "tests/lib/rounds.h"

#include "compact/join.h"
#include "compact/plan.h"
#include "tests/lib/slow.h"

#define WIDE (8 * TABLE)    // pages of a table, where the first ones had fewer
#define NARROW (TABLE / 4)  // so that a few thousand records make many partitions
#define WIDE_BYTES ((uint64_t)WIDE * BLOCK_PAGE)

static uint64_t joined(const struct world *w) { return atomic_load(&w->c.stats.joined); }
static uint64_t emptied(const struct world *w) { return atomic_load(&w->c.stats.emptied); }
static uint64_t tables_written(const struct world *w) { return atomic_load(&w->c.stats.table_bytes); }
static uint64_t tables_read(const struct world *w) { return atomic_load(&w->c.stats.read_bytes); }

static uint64_t live_of(const struct world *w, uint32_t part) { return plan_live_bytes(&w->c, w->base->parts[part]); }

// J3: no join is due, and so any JOIN_MANY neighbours have much.
static void expect_none_due(const struct world *w) {
  assert_false(join_due(&w->c, w->base));
  for (uint32_t i = 0; i + JOIN_MANY <= w->base->nr_parts; i++) {
    uint64_t sum = 0, reads = 0;
    for (uint32_t k = i; k < i + JOIN_MANY; k++) {
      sum += live_of(w, k);
      reads += plan_part_bytes(w->base->parts[k]);
    }
    const uint64_t table = (uint64_t)w->c.build.max_pages * BLOCK_PAGE;
    assert_true(sum > table / 2 || reads > JOIN_READ * table);
  }
}

// Many partitions that are small for the tables of later rounds. at_rest: only a store at rest joins them.
static void small_parts(struct world *w, uint32_t keys, uint32_t threads, uint64_t seed) {
  world_init(w, keys, threads, seed);
  w->value = VALUE + 10;
  w->c.build.max_pages = TABLE / 8;
  w->c.memtable_size = 64 << 10;
  put_range(w, 0, w->k.nr, 1, false);
  round_ok(w, NULL);
  assert_true(w->base->nr_parts > 3 * JOIN_MANY);
  w->c.build.max_pages = WIDE;
  w->c.join = COMPACT_JOIN;
  assert_true(join_due(&w->c, w->base));
}

// One record in each round, until no join is due.
static void test_memtable_rounds(void **state) {
  (void)state;
  struct world w;
  uint32_t rounds = 0;
  small_parts(&w, 6000, 0, 40);
  const uint32_t before = w.base->nr_parts;
  while (join_due(&w.c, w.base)) {
    const uint64_t did = joined(&w), wrote = tables_written(&w), read = tables_read(&w);
    const uint32_t parts = w.base->nr_parts;
    put(&w, (rounds * 331) % w.k.nr, rounds % 2);
    round_ok(&w, NULL);
    const uint64_t now = joined(&w) - did;
    assert_true(now >= JOIN_LEAST && w.base->nr_parts < parts);
    // J5: what JOIN_ROUND memtables are, and here a join is more than that
    assert_true(tables_written(&w) - wrote <= WIDE_BYTES * 3 / 4);
    assert_true(tables_read(&w) - read <= JOIN_ROUND * w.c.memtable_size + WIDE_BYTES);
    assert_true(++rounds < 50);
  }
  assert_true(rounds > 1 && w.base->nr_parts < before / 2);
  assert_true(joined(&w) > before / 2);
  expect_none_due(&w);
  // J1
  for (uint32_t i = 0; i < w.base->nr_parts; i++) assert_true(live_of(&w, i) <= WIDE_BYTES * 5 / 8);
  world_fini(&w);
}

// The round has done so much of what was estimated, in percent.
static void expect_work(const struct world *w, uint32_t least, uint32_t most) {
  const uint64_t progress = atomic_load(&w->c.progress), work = atomic_load(&w->c.work);
  if (progress < work * least / 100 || progress > work * most / 100)
    fail_msg("%u done of %u", (unsigned)progress, (unsigned)work);
}

// A join is work of the round, and so is what it reads and writes: writers are slowed down by it.
static void test_work(void **state) {
  (void)state;
  struct world w;
  small_parts(&w, 6000, 0, 41);
  put(&w, 5, false);
  round_ok(&w, NULL);
  assert_true(atomic_load(&w.c.work) > WIDE_BYTES / 4 >> COMPACT_PROGRESS_SHIFT);
  expect_work(&w, 50, 105);  // small tables are not full
  world_fini(&w);
}

// A try that fails is work of the round, too: the writers' pace compares work with the time of both tries.
static void test_work_of_tries(void **state) {
  (void)state;
  struct world w;
  uint64_t did[2];
  small_parts(&w, 6000, 0, 42);
  w.c.memtable_size = 1 << 10;  // one join
  put(&w, first_key_of(&w, w.base->nr_parts - 1), false);
  for (uint32_t i = 0; i < 2; i++) {
    damage(w.base, JOIN_LEAST - 1);
    const enum remixdb_status s = round_try(&w);
    damage(w.base, JOIN_LEAST - 1);
    OK(s);
    assert_int_equal(atomic_load(&w.c.stats.failed), 1);
    did[i] = atomic_load(&w.c.progress);
    expect_work(&w, 50, 105);
    if (i == 0) {
      compact_retire(w.next, w.base);
      version_unref(w.next);
    }
  }
  assert_true(did[0] > did[1]);
  world_install(&w);
  world_fini(&w);
}

// New records of all partitions of a join count.
static void test_work_for_new(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 20000, 0, 45);
  w.value = 10;
  w.c.build.max_pages = NARROW;
  put_range(&w, 0, w.k.nr, 4, false);
  round_ok(&w, NULL);
  w.c.build.max_pages = 4 * WIDE;
  w.c.join = COMPACT_JOIN;
  w.c.memtable_size = 8 << 20;
  for (uint32_t a = first_key_of(&w, 1); a < w.k.nr; a++)
    if (a % 4 == 1 || a % 4 == 2) put(&w, a, false);
  round_ok(&w, NULL);
  assert_true(joined(&w) > 0);
  expect_work(&w, 90, 105);
  world_fini(&w);
}

// New data that would be handed back, because its partition is mostly garbage, does not make a join cheap (J5).
static void test_handed_back(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 30000, 0, 44);
  w.value = VALUE + 10;
  w.c.build.max_pages = NARROW;
  const uint32_t keys = keys_for(&w, 80);
  put_range(&w, 0, keys, 1, false);
  round_ok(&w, NULL);
  const uint32_t parts = w.base->nr_parts;
  w.c.build.max_pages = 16 * TABLE;  // beside such tables nothing is garbage enough for a merge
  for (uint32_t i = 0; i < parts; i++) {
    const uint32_t from = first_key_of(&w, i), end = i + 1 < parts ? first_key_of(&w, i + 1) : keys;
    put_range(&w, from + 4, end, 1, true);
  }
  round_ok(&w, NULL);
  assert_true(w.base->nr_parts == parts && parts > JOIN_MANY);
  w.c.build.max_pages = TABLE;
  w.c.join = COMPACT_JOIN;
  w.c.memtable_size = 64 << 10;
  w.allow_abort = true;
  for (uint32_t i = 0; i < parts; i++) put(&w, first_key_of(&w, i), false);
  round_ok(&w, NULL);
  assert_true(joined(&w) >= JOIN_LEAST && joined(&w) < parts / 2);
  world_fini(&w);
}

// Partitions of which one record in ten lives, if they have no new data.
static uint32_t dead_parts(struct world *w, uint64_t seed) {
  world_init(w, 30000, 0, seed);
  w->value = VALUE + 10;
  w->c.build.max_pages = NARROW;
  const uint32_t keys = keys_for(w, 80);
  put_range(w, 0, keys, 1, false);
  round_ok(w, NULL);
  w->c.build.max_pages = 16 * TABLE;  // beside such tables nothing is garbage enough for a merge
  for (uint32_t a = 0; a < keys; a++)
    if (a % 10) put(w, a, true);
  round_ok(w, NULL);
  w->c.build.max_pages = 4 * TABLE;
  w->c.join = COMPACT_JOIN;
  return keys;
}

// Records that a join reads and leaves out are work, too, as many as there are.
static void test_work_for_dead(void **state) {
  (void)state;
  struct world w;
  const uint32_t keys = dead_parts(&w, 46), parts = w.base->nr_parts;
  put(&w, keys - 1, false);
  round_ok(&w, NULL);
  assert_true(joined(&w) > parts / 2);
  assert_true(atomic_load(&w.c.progress) > keys);
  expect_work(&w, 95, 105);
  world_fini(&w);
}

// Among the tasks of a round a join counts by what it reads, too: it begins before a task that writes a little more.
static void test_order(void **state) {
  (void)state;
  struct world w;
  const uint32_t keys = dead_parts(&w, 47);
  w.c.memtable_size = 1;  // one join
  put_range(&w, keys - 1, w.k.nr, 7, false);
  round_ok(&w, NULL);
  const uint32_t last = w.base->nr_parts - 1;
  const struct sst *const both = part_run(w.base->parts[0], 0), *const fresh = part_run(w.base->parts[last],
                                                                                        part_runs(w.base->parts[last]) -
                                                                                            1);
  assert_true(joined(&w) >= JOIN_LEAST && part_runs(w.base->parts[0]) == 1);
  if (fresh->data_size < both->data_size || fresh->number < both->number)
    fail_msg("%u bytes in table %u, %u in table %u", (unsigned)fresh->data_size, (unsigned)fresh->number,
             (unsigned)both->data_size, (unsigned)both->number);
  world_fini(&w);
}

static struct compact *to_yield;
static uint32_t reads;
static ssize_t yielding_pread(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  if (++reads == 2) atomic_store(&to_yield->yield, true);
  return PLACE_REAL->pread(e, fd, buf, len, off);
}

// All but one record of each partition are erased: a join writes nothing for long. It sees all the same that it is to
// give way.
static void test_erased_yields(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 9000, 0, 48);
  w.c.build.max_pages = NARROW;
  const uint32_t keys = keys_for(&w, 24);
  put_range(&w, 0, keys, 1, false);
  round_ok(&w, NULL);
  for (uint32_t i = 0; i < w.base->nr_parts; i++) {
    const uint32_t end = i + 1 < w.base->nr_parts ? first_key_of(&w, i + 1) : keys,
                   at[1][2] = {{first_key_of(&w, i) + 1, end}};
    erase_keys(&w, at, 1, 0, NULL);
  }
  w.c.build.max_pages = 4 * TABLE;
  w.c.join = COMPACT_JOIN;
  w.garbage = true;
  assert_true(join_due(&w.c, w.base));
  atomic_store(&w.c.progress, 0);
  to_yield = &w.c;
  reads = 0;
  const struct env_ops was = w.p.ops;
  w.p.ops.pread = yielding_pread;
  FAILS(round_try(&w), REMIXDB_ABORTED);
  w.p.ops = was;
  expect_failed(&w, REMIXDB_ABORTED, true);
  assert_in_range(atomic_load(&w.c.progress), 1, keys / 2);
  world_fini(&w);
}

// A store at rest joins without new data, and gives a join up for a memtable.
static void test_at_rest(void **state) {
  (void)state;
  for (uint32_t threads = 0; threads < 3; threads++) {
    struct world w;
    uint32_t rounds = 0;
    small_parts(&w, 6000, threads, 42 + threads);
    w.garbage = true;
    atomic_store(&w.c.yield, true);
    FAILS(round_try(&w), REMIXDB_ABORTED);
    expect_failed(&w, REMIXDB_ABORTED, true);
    atomic_store(&w.c.yield, false);
    const uint64_t work = atomic_load(&w.c.work);
    for (;; rounds++) {
      const uint64_t did = joined(&w);
      const uint32_t parts = w.base->nr_parts;
      assert_int_equal(compact_garbage_due(&w.c, w.base), join_due(&w.c, w.base));
      OK(round_try(&w));
      if (!w.next) break;
      const uint64_t now = joined(&w) - did;
      assert_true(now >= JOIN_LEAST);
      world_install_step(&w);
      assert_true(parts - w.base->nr_parts < now);
      assert_true(parts - w.base->nr_parts >= now - w.c.scan_merge_parts);
    }
    assert_true(rounds > 1);
    assert_int_equal(atomic_load(&w.c.work), work);  // writers do not wait for it
    assert_int_equal(atomic_load(&w.c.stats.garbage_merges), 0);
    expect_none_due(&w);
    world_fini(&w);
  }
}

// All records of some partitions are deleted, and these leave without being read (J4); the first one stays.
static void test_emptied(void **state) {
  (void)state;
  for (uint32_t way = 0; way < 3; way++) {
    struct world w;
    world_init(&w, 12000, 0, 50);
    w.value = VALUE + 10;
    w.c.build.max_pages = NARROW;
    put_range(&w, 0, keys_for(&w, 20), 1, false);
    round_ok(&w, NULL);
    const uint32_t parts = w.base->nr_parts, from = way == 1 ? 0 : 3, end = way == 2 ? parts : 6;
    assert_true(parts > 8);
    const uint32_t low = first_key_of(&w, from), high = end < parts ? first_key_of(&w, end) : w.k.nr;
    // with these tombstones beside them the records are not garbage enough for a merge
    w.c.build.max_pages = 16 * TABLE;
    put_range(&w, low, high, 1, true);
    round_ok(&w, NULL);
    assert_int_equal(w.base->nr_parts, parts);
    w.c.build.max_pages = NARROW;
    w.c.join = COMPACT_JOIN;
    assert_true(join_due(&w.c, w.base));
    const uint64_t wrote = tables_written(&w), read = tables_read(&w);
    w.garbage = true;
    OK(round_try(&w));
    assert_non_null(w.next);
    world_install_step(&w);
    w.garbage = false;
    assert_int_equal(emptied(&w), end - from);
    assert_int_equal(w.base->nr_parts, parts - (end - from) + (from == 0));
    assert_true(tables_written(&w) == wrote && tables_read(&w) == read);
    assert_true(from || !remix_of(&w, 0));
    assert_false(join_due(&w.c, w.base));
    // the range is there for new records
    put_range(&w, low, high, 7, false);
    round_ok(&w, NULL);
    assert_int_equal(emptied(&w), end - from);
    world_fini(&w);
  }
}

// The same in a round of a memtable. A partition that gets a record does not leave.
static void test_emptied_beside(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 12000, 0, 51);
  w.value = VALUE + 10;
  w.c.build.max_pages = NARROW;
  put_range(&w, 0, keys_for(&w, 20), 1, false);
  round_ok(&w, NULL);
  const uint32_t parts = w.base->nr_parts;
  w.c.build.max_pages = 16 * TABLE;
  put_range(&w, first_key_of(&w, 2), first_key_of(&w, 5), 1, true);
  round_ok(&w, NULL);
  w.c.build.max_pages = NARROW;
  w.c.join = COMPACT_JOIN;
  put(&w, first_key_of(&w, 3) + 1, false);
  round_ok(&w, NULL);
  assert_int_equal(emptied(&w), 2);
  assert_int_equal(w.base->nr_parts, parts - 2);
  world_fini(&w);
}

// In the older view nothing lives, and in the young view a record does: the partition stays.
static void test_lives_in_young(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 12000, 0, 53);
  w.value = VALUE + 10;
  w.c.build.max_pages = NARROW;
  put_range(&w, 0, keys_for(&w, 20), 1, false);
  round_ok(&w, NULL);
  const uint32_t parts = w.base->nr_parts, key = first_key_of(&w, 3) + 1;
  w.c.build.max_pages = 16 * TABLE;
  put_range(&w, first_key_of(&w, 3), first_key_of(&w, 4), 1, true);
  round_ok(&w, NULL);
  w.c.young_from = 1;
  put(&w, key, false);
  round_ok(&w, NULL);
  assert_true(young_of(&w, 3) && remix_of(&w, 3)->nr_keys == 0);
  w.c.build.max_pages = NARROW;
  w.c.join = COMPACT_JOIN;
  put(&w, 0, false);
  round_ok(&w, NULL);
  assert_true(emptied(&w) == 0 && w.base->nr_parts == parts);
  world_fini(&w);
}

// A young view may hide all of the older view: nobody has counted that, so the partition is read, with others.
static void test_hidden_by_young(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 9000, 0, 52);
  w.value = VALUE + 10;
  w.c.build.max_pages = NARROW;
  put_range(&w, 0, keys_for(&w, 16), 1, false);
  round_ok(&w, NULL);
  const uint32_t parts = w.base->nr_parts, low = first_key_of(&w, 2), high = first_key_of(&w, 2 + JOIN_MANY);
  assert_true(parts > 2 + JOIN_MANY);
  w.c.build.max_pages = 16 * TABLE;
  w.c.young_from = 1;
  for (uint32_t i = 2; i < 2 + JOIN_MANY; i++) {
    // all but a tenth go from the older view before
    const uint32_t first = first_key_of(&w, i), end = first_key_of(&w, i + 1), rest = end - (end - first) / 10;
    put_range(&w, first, rest, 1, true);
  }
  w.c.young_from = 0;
  round_ok(&w, NULL);
  w.c.young_from = 1;
  for (uint32_t a = low; a < high; a++)
    if (w.disk[a] > TOMB) put(&w, a, true);
  round_ok(&w, NULL);
  uint32_t young = 0;
  for (uint32_t i = 0; i < w.base->nr_parts; i++) young += young_of(&w, i) != NULL;
  assert_int_equal(young, JOIN_MANY);
  w.c.build.max_pages = TABLE;
  w.c.join = COMPACT_JOIN;
  w.garbage = true;
  while (join_due(&w.c, w.base)) {
    OK(round_try(&w));
    assert_non_null(w.next);
    world_install_step(&w);
  }
  assert_true(joined(&w) > JOIN_LEAST && emptied(&w) == 0);
  assert_int_equal(w.base->nr_parts, parts - joined(&w));
  world_fini(&w);
}

// Partitions of an even load are not joined, and joined ones are not split, before much has changed (J1).
static void test_to_and_fro(void **state) {
  (void)state;
  struct world w;
  uint64_t rng = 7, kinds[COMPACT_KINDS];
  world_init(&w, 20000, 0, 60);
  w.value = VALUE + 10;
  w.c.join = COMPACT_JOIN;
  w.c.memtable_size = 1 << 20;
  for (uint32_t r = 0; r < 40; r++) {
    for (uint32_t i = 0; i < 900; i++) put(&w, (uint32_t)(rng_next(&rng) % w.k.nr), false);
    round_ok(&w, NULL);
  }
  if (joined(&w) || w.base->nr_parts <= 10) fail_msg("%u of %u", (unsigned)joined(&w), w.base->nr_parts);
  // all but one in 30 is deleted: the partitions are joined
  const uint32_t most = w.base->nr_parts;
  for (uint32_t r = 1; r < 30; r++) {
    put_range(&w, r, w.k.nr, 30, true);
    round_ok(&w, NULL);
  }
  for (uint32_t r = 0; r < 2 * most && join_due(&w.c, w.base); r++) {
    put(&w, 30 * r % w.k.nr, false);
    round_ok(&w, NULL);
  }
  expect_none_due(&w);
  const uint64_t did = joined(&w) + emptied(&w);
  assert_true(did > most / 2 && w.base->nr_parts <= most / 3);
  // a few come back and go again
  uint64_t splits = 0;
  for (uint32_t r = 0; r < 20; r++) {
    put_range(&w, 1 + r / 2, w.k.nr, 30, r % 2);
    round_ok(&w, kinds);
    splits += kinds[COMPACT_SPLIT];
  }
  assert_int_equal(splits, 0);
  assert_int_equal(joined(&w) + emptied(&w), did);
  world_fini(&w);
}

// Keys that rise in small steps make small partitions: a join does not write the same records each time (J2).
static uint32_t rise(uint32_t join, double *written_out) {
  struct world w;
  uint64_t bytes = 0;
  static uint8_t buf[VALUE_MAX];
  world_init(&w, 8000, 0, 70);
  w.c.build.max_pages = 128;
  w.c.memtable_size = 4096;
  w.c.join = join;
  for (uint32_t at = 0; at + 20 <= w.k.nr; at += 20) {
    put_range(&w, at, at + 20, 1, false);
    for (uint32_t a = at; a < at + 20; a++)
      bytes += w.k.keys[a].len + value_make(w.k.keys[a], w.fresh[a], w.value, buf);
    round_ok(&w, NULL);
  }
  *written_out = (double)tables_written(&w) / (double)bytes;
  const uint32_t parts = w.base->nr_parts;
  if (join) assert_true(joined(&w) > parts);
  world_fini(&w);
  return parts;
}

static void test_rising(void **state) {
  (void)state;
  double written, before;
  const uint32_t many = rise(0, &before), few = rise(COMPACT_JOIN, &written);
  printf("%u partitions and %.2f times the bytes written without joins, %u and %.2f with them\n", many, before, few,
         written);
  assert_true(few < many / 4);
  assert_true(written < before + 3.5);
}

// A look opens no partition, and tells nothing of a tree that has one away.
static void test_away(void **state) {
  (void)state;
  for (uint32_t small = 0; small < 2; small++) {
    struct world w;
    struct version *v;
    small_parts(&w, 6000, 0, 80);
    w.c.build.max_pages = small ? WIDE : TABLE / 8;
    const bool due = join_due(&w.c, w.base);
    assert_int_equal(due, small);
    world_save(&w);
    atomic_store(&version_eager, 0);
    OK(version_open(&w.p.ctx, NULL, NULL, &v));
    atomic_store(&version_eager, VERSION_EAGER);
    assert_true(part_is_away(v->parts[1]));
    assert_false(join_due(&w.c, v));
    assert_true(part_is_away(v->parts[1]));
    OK(version_ready(v, NULL, NULL));
    assert_int_equal(join_due(&w.c, v), due);
    version_unref(v);
    world_fini(&w);
  }
}

// The tree of the named spaces gets no new data, and its partitions are joined by the rounds of the other tree.
static void test_other_tree(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 5000, 0, 81);
  w.value = VALUE + 10;
  w.both = true;
  OK(version_begin_spaces(w.base));
  w.c.build.max_pages = TABLE / 8;
  put_range(&w, 0, w.k.nr, 1, false);
  round_ok(&w, NULL);
  const uint32_t parts = w.base->spaces->nr_parts;
  assert_true(parts > 3 * JOIN_MANY);
  w.c.build.max_pages = WIDE;
  w.c.join = COMPACT_JOIN;
  for (uint32_t r = 0; r < 2 * parts && (join_due(&w.c, w.base) || join_due(&w.c, w.base->spaces)); r++) {
    round_ok(&w, NULL);
    expect_files(&w, w.base);
  }
  assert_false(join_due(&w.c, w.base->spaces));
  assert_true(w.base->spaces->nr_parts < parts / 3 && w.base->nr_parts < parts / 3);
  world_fini(&w);
}

// ---- rounds that fail

// The next round joins partitions, lets one leave, and brings new data.
static void ready_to_fail(struct world *w, uint64_t seed) {
  world_init(w, 2500, 0, seed);
  w->value = VALUE + 10;
  w->c.build.max_pages = 2;
  put_range(w, 0, w->k.nr, 1, false);
  round_ok(w, NULL);
  const uint32_t parts = w->base->nr_parts;
  assert_true(parts > JOIN_MANY);
  w->c.build.max_pages = 256;
  w->c.young_from = 1;
  put_range(w, first_key_of(w, parts / 2), first_key_of(w, parts / 2 + 1), 1, true);
  put_range(w, first_key_of(w, 2), first_key_of(w, 3), 11, false);
  round_ok(w, NULL);
  assert_true(w->base->nr_parts == parts && young_of(w, 2));
  w->c.build.max_pages = 40;
  w->c.join = COMPACT_JOIN;
}

static void test_fails(void **state) {
  (void)state;
  for (uint32_t rest = 0; rest < 2; rest++) {
    struct world w;
    for (uint32_t io = 0; io < 2; io++) {
      ready_to_fail(&w, 90 + io);
      w.garbage = rest;
      if (rest) {  // a partition leaves first
        OK(round_try(&w));
        assert_true(emptied(&w) == 1 && joined(&w) == 0);
        world_install_step(&w);
      }
      if (!rest) put_range(&w, 0, w.k.nr, 29, false);
      if (io) io_fails(&w);
      else no_memory(&w, 2);
      OK(round_again(&w));
      assert_true(joined(&w) >= JOIN_LEAST && (emptied(&w) > 0 || !rest));
      if (rest) world_install_step(&w);
      else world_install(&w);
      world_fini(&w);
    }
  }
}

// A table of a partition that would be joined is damaged. The round does all else, and later ones do not try again.
static void test_damaged(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 6; i++) {
    struct world w;
    const bool rest = i % 2;
    small_parts(&w, 6000, i % 3, 98);
    const uint32_t parts = w.base->nr_parts, bad = i / 2 == 0 ? 0 : i / 2 == 1 ? JOIN_LEAST / 2 : parts - 1;
    struct part *const was = w.base->parts[bad];
    part_ref(was);
    w.garbage = rest;
    for (uint32_t rounds = 0; rest || join_due(&w.c, w.base) || !is_damaged(was); rounds++) {
      const uint32_t at = version_find(w.base, part_anchor(was));
      assert_true(rounds < 50 && w.base->parts[at] == was);
      if (!rest) put(&w, first_key_of(&w, at ? 0 : 1), false);
      damage(w.base, at);
      const enum remixdb_status s = round_try(&w);
      damage(w.base, at);
      OK(s);
      if (!w.next) break;
      if (rest) world_install_step(&w);
      else world_install(&w);
    }
    const uint32_t at = version_find(w.base, part_anchor(was));
    assert_true(w.base->parts[at] == was && is_damaged(was));
    assert_int_equal(atomic_load(&w.c.stats.failed), 1);
    assert_true(joined(&w) > parts / 2 && w.base->nr_parts < parts / 2);
    assert_true(w.c.left_out.status == REMIXDB_OK && w.told == 1 && w.tell.status == REMIXDB_CORRUPT);
    part_unref(was);
    world_fini(&w);
  }
}

// New data comes into a damaged partition: the partition that is made of it, with the damaged table, is not joined,
// either. i: with a young view, or after some of its keys have been erased.
static void test_damaged_grows(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 4; i++) {
    struct world w;
    uint32_t young = 0;
    small_parts(&w, 6000, 0, 99);
    w.c.young_from = i % 2;
    w.c.memtable_size = 1 << 10;  // one join in each round
    for (uint32_t rounds = 0; rounds < 4; rounds++) {
      assert_true(join_due(&w.c, w.base) && part_runs(w.base->parts[0]) == 2 + rounds);
      if (i / 2 && rounds == 2) erase_keys(&w, (const uint32_t[][2]){{0, 1}}, 1, 0, NULL);
      put(&w, first_key_of(&w, 1) - 1 - rounds, false);  // the first table has lower keys
      damage(w.base, 0);
      const enum remixdb_status s = round_try(&w);
      damage(w.base, 0);
      OK(s);
      world_install(&w);
      young += young_of(&w, 0) != NULL;
      assert_true(is_damaged(w.base->parts[0]));
      assert_int_equal(atomic_load(&w.c.stats.failed), 1);
    }
    assert_true(joined(&w) > 0 && !young == !(i % 2));
    world_fini(&w);
  }
}

// A join finds a damaged table, and another job of the round has no memory, before it sees that the round has failed:
// the round is made again, or lacks memory. It never fails by the damage.
static void test_damaged_and_no_memory(void **state) {
  (void)state;
  struct world w;
  uint32_t both = 0;
  small_parts(&w, 6000, 0, 100);
  w.c.memtable_size = 1 << 10;  // one join
  put(&w, first_key_of(&w, w.base->nr_parts - 1), false);
  for (int64_t n = 1;; n++) {
    const uint64_t before = atomic_load(&w.c.stats.failed);
    assert_false(is_damaged(w.base->parts[0]));
    damage(w.base, 0);
    fault_mem_set(n);
    const enum remixdb_status s = round_try(&w);
    const bool any = fault_mem_end();
    damage(w.base, 0);
    if (s != REMIXDB_OK) FAILS(s, REMIXDB_NOMEM);
    both += s == REMIXDB_OK && any && is_damaged(w.base->parts[0]);
    assert_true(atomic_load(&w.c.stats.failed) > before || n < 10);
    forgive(w.base->parts[0]);
    atomic_store(&w.c.extras_ns, 0);
    if (!any) break;
    if (s != REMIXDB_OK) continue;
    compact_retire(w.next, w.base);
    version_unref(w.next);
  }
  assert_true(both > 0);
  world_install(&w);
  world_fini(&w);
}

// A compaction of the whole, in parts, while most is deleted, so that partitions leave or are joined between its rounds
// and in them.
static void test_whole_beside(void **state) {
  (void)state;
  static struct compact_whole whole;
  uint64_t did = 0, left = 0;
  check_seed = check_seed_or(1);
  for (uint32_t i = 0; i < 6; i++) {
    struct world w;
    uint64_t rng = check_seed + i;
    uint32_t rounds = 0, between = 0;
    world_init(&w, 8000, i % 3, check_seed + i);
    w.value = VALUE + 10;
    w.both = i % 2;
    if (w.both) OK(version_begin_spaces(w.base));
    w.c.build.max_pages = NARROW;
    put_range(&w, 0, w.k.nr, 1, false);
    round_ok(&w, NULL);
    put_range(&w, 0, w.k.nr, 40, false);  // a part of each partition, so that the whole takes many rounds
    round_ok(&w, NULL);
    const uint32_t parts = w.base->nr_parts;
    w.c.join = COMPACT_JOIN;
    whole = (struct compact_whole){.budget = 1};
    for (;; rounds++) {
      const uint32_t from = (uint32_t)(rng_next(&rng) % w.k.nr), span = w.k.nr / 12,
                     end = from + span < w.k.nr ? from + span : w.k.nr;
      assert_true(rounds < 400);
      const bool stay = rng_next(&rng) % 2;  // dead ones do, for a while
      w.c.build.max_pages = stay ? 16 * TABLE : NARROW;
      w.c.join = stay ? 0 : COMPACT_JOIN;
      for (uint32_t a = from; a < end; a++)
        if (rng_next(&rng) % 2 || a % 24) put(&w, a, true);
      if (rng_next(&rng) % 2) {
        round_ok(&w, NULL);
        between++;
        w.c.build.max_pages = NARROW;
        continue;
      }
      w.c.build.max_pages = NARROW;
      w.c.join = COMPACT_JOIN;
      w.whole = &whole;
      round_ok(&w, NULL);
      w.whole = NULL;
      if (whole.end) break;
      compact_whole_on(&whole);
    }
    did += joined(&w);
    left += emptied(&w);
    assert_true(between > 3 && rounds - between > 3 && w.base->nr_parts < parts);
    world_fini(&w);
  }
  assert_true(did > 0 && left > 0);
}

// A pass for neighbours that fit together writes nothing for another reason: not what drops records.
static void test_fits_only(void **state) {
  (void)state;
  static struct compact_whole whole;
  for (uint32_t fresh = 0; fresh < 2; fresh++) {
    struct world w;
    uint64_t kinds[COMPACT_KINDS];
    small_parts(&w, 6000, 0, 101);
    w.c.join = 0;
    put(&w, 1, false);
    if (!fresh) round_ok(&w, NULL);
    const uint32_t parts = w.base->nr_parts, runs = part_runs(w.base->parts[0]);
    assert_true(compact_whole_fits(&w.c, w.base, 0, parts));
    whole = (struct compact_whole){.budget = UINT64_MAX, .fits_only = true};
    w.whole = &whole;
    round_ok(&w, kinds);
    assert_true(whole.end && w.base->nr_parts < parts && part_runs(w.base->parts[0]) == runs + fresh);
    expect_kind(kinds, COMPACT_MINOR, fresh);
    assert_false(compact_whole_fits(&w.c, w.base, 0, w.base->nr_parts));
    whole = (struct compact_whole){.budget = UINT64_MAX};
    round_ok(&w, NULL);
    assert_true(part_runs(w.base->parts[0]) <= 2);
    world_fini(&w);
  }
}

// On a full disk joins do not keep a round from its own work: the next rounds have none for a while.
static void test_full_disk(void **state) {
  (void)state;
  for (uint32_t rest = 0; rest < 2; rest++) {
    struct world w;
    small_parts(&w, 6000, 0, 97);
    w.garbage = rest;
    if (!rest) put_range(&w, 0, w.k.nr, 29, false);
    fault_io_set(FAULT_WRITE, 1, true);
    FAILS(round_try(&w), REMIXDB_NOSPACE);
    (void)fault_io_end();
    assert_false(join_due(&w.c, w.base));
    OK(round_try(&w));
    assert_int_equal(joined(&w), 0);
    assert_int_equal(w.next == NULL, rest);
    if (!rest) world_install(&w);
    atomic_store(&w.c.extras_ns, 0);
    w.garbage = true;
    assert_true(join_due(&w.c, w.base));
    OK(round_try(&w));
    assert_true(joined(&w) >= JOIN_LEAST);
    world_install_step(&w);
    world_fini(&w);
  }
}

// The disk has room for the round, and not for its joins: it is made without them at once.
static void test_room_without(void **state) {
  (void)state;
  struct world w;
  small_parts(&w, 6000, 0, 99);
  put(&w, 5, false);
  fault_io_set(FAULT_WRITE, 1, false);
  OK(round_try(&w));
  assert_true(fault_io_end());
  assert_int_equal(atomic_load(&w.c.stats.failed), 1);
  assert_int_equal(w.c.left_out.status, REMIXDB_NOSPACE);
  assert_true(joined(&w) == 0 && !join_due(&w.c, w.base));
  world_install(&w);
  world_fini(&w);
}

// The same for memory.
static void test_memory_without(void **state) {
  (void)state;
  struct world w;
  uint32_t without = 0;
  small_parts(&w, 6000, 0, 99);
  put(&w, 5, false);
  for (int64_t n = 1;; n += 9) {
    const uint64_t did = joined(&w), failed = atomic_load(&w.c.stats.failed);
    w.c.left_out.status = REMIXDB_OK;
    atomic_store(&w.c.extras_ns, 0);
    fault_mem_set(n);
    const enum remixdb_status s = round_try(&w);
    const bool any = fault_mem_end();
    if (s != REMIXDB_OK) FAILS(s, REMIXDB_NOMEM);
    const bool again = s == REMIXDB_OK && atomic_load(&w.c.stats.failed) != failed;
    assert_int_equal(w.c.left_out.status, again ? REMIXDB_NOMEM : REMIXDB_OK);
    if (again) assert_true(joined(&w) == did && !join_due(&w.c, w.base));
    without += again;
    if (s == REMIXDB_OK) {
      compact_retire(w.next, w.base);
      version_unref(w.next);
    }
    if (!any) break;
  }
  assert_true(without > 5);
  world_fini(&w);
}

// The spaces' tree has no new data, and would take part only for a dropped space. A partition of it cannot be opened.
// Where a read fails, the round is made without that tree. Where it is damaged, the round leaves that partition out.
static void test_spaces_closed(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 5000, 0, 82);
  w.both = true;
  OK(version_begin_spaces(w.base));
  put_range(&w, 0, w.k.nr, 1, false);
  round_ok(&w, NULL);
  world_save(&w);
  const struct remix *const x = part_remix(w.base->spaces->parts[w.base->spaces->nr_parts - 1]);
  char path[ENV_PATH_MAX];
  (void)snprintf(path, sizeof(path), "%s", x->runs[0]->path);  // the pack's path
  assert_non_null(x->part);
  const long off = (long)(x->part->at.off + x->part->at.len / 2);
  version_unref(w.base);
  packs_destroy(w.p.ctx.packs);
  OK(packs_create(&w.p.at, w.p.fds, false, true, &w.p.ctx.packs));
  atomic_store(&version_eager, 0);
  OK(version_open(&w.p.ctx, NULL, NULL, &w.base));
  atomic_store(&version_eager, VERSION_EAGER);
  w.both = false;
  put(&w, 7, false);
  OK(version_tree_ready(w.base, w.c.workers, NULL));
  atomic_store(&w.c.dropped_too, true);
  fault_io_set(FAULT_READ, 1, false);
  OK(round_try(&w));
  assert_true(fault_io_end());
  assert_ptr_equal(w.next->spaces, w.base->spaces);
  assert_int_equal(w.c.left_out.status, REMIXDB_IO);
  w.c.left_out.status = REMIXDB_OK;
  compact_retire(w.next, w.base);
  version_unref(w.next);
  byte_flip(path, off);
  FAILS(version_tree_ready(w.base->spaces, w.c.workers, NULL), REMIXDB_CORRUPT);
  OK(round_try(&w));
  const struct version *const tree = w.base->spaces;
  const struct part *const bad = tree->parts[tree->nr_parts - 1];
  assert_true(part_is_away(bad) && is_damaged(bad) && !part_is_shut(bad));
  assert_true(w.next->spaces != tree && w.next->spaces->parts[w.next->spaces->nr_parts - 1] == bad);
  assert_true(w.told == 1 && strstr(w.tell.msg, path) && w.c.left_out.status == REMIXDB_OK);
  FAILS(part_ready(bad), REMIXDB_CORRUPT);
  byte_flip(path, off);
  OK(part_ready(bad));  // the round holds it no longer
  assert_false(part_is_unread(bad));
  compact_retire(w.next, w.base);
  version_unref(w.next);
  world_fini(&w);
}

// ---- by chance

// Rounds of all kinds, in which much is deleted, with joins as soon as may be.
static void chance_once(uint64_t seed) {
  struct world w;
  uint64_t rng = seed;
  world_init(&w, 200 + (uint32_t)(rng_next(&rng) % 4000), (uint32_t)(seed % 3), seed);
  w.value = VALUE + 10;
  w.both = seed % 4 == 1;
  w.c.memtable_size = 8 << 10;
  w.c.build.max_pages = NARROW;
  if (seed % 5 == 2) world_apart(&w, 55);
  if (w.both) OK(version_begin_spaces(w.base));
  w.allow_abort = !w.both;
  for (uint32_t r = 0; r < 40; r++) {
    w.c.join = rng_next(&rng) % 4 ? COMPACT_JOIN : 0;
    w.c.young_from = 1u << rng_next(&rng) % 6;
    const uint32_t from = (uint32_t)(rng_next(&rng) % w.k.nr), span = w.k.nr >> rng_next(&rng) % 5;
    const uint32_t end = from + span < w.k.nr ? from + span : w.k.nr, every = 1 + (uint32_t)(rng_next(&rng) % 5);
    put_range(&w, from, end, every, rng_next(&rng) % 3 != 0);
    if (rng_next(&rng) % 6 == 0) erase_some(&w, &rng, NULL);
    round_ok(&w, NULL);
    if (rng_next(&rng) % 3) continue;
    w.garbage = true;
    OK(round_try(&w));
    if (w.next) world_install_step(&w);
    w.garbage = false;
  }
  world_fini(&w);
}

static void test_by_chance(void **state) {
  (void)state;
  check_seed = check_seed_or(1);
  for (uint64_t i = 0; i < (SLOW > 1 ? 6 : 20); i++) chance_once(check_seed + i);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_memtable_rounds),
      cmocka_unit_test(test_work),
      cmocka_unit_test(test_work_for_new),
      cmocka_unit_test(test_work_for_dead),
      cmocka_unit_test(test_order),
      cmocka_unit_test(test_erased_yields),
      cmocka_unit_test(test_damaged),
      cmocka_unit_test(test_whole_beside),
      cmocka_unit_test(test_room_without),
      cmocka_unit_test(test_memory_without),
      cmocka_unit_test(test_spaces_closed),
      cmocka_unit_test(test_at_rest),
      cmocka_unit_test(test_emptied),
      cmocka_unit_test(test_emptied_beside),
      cmocka_unit_test(test_lives_in_young),
      cmocka_unit_test(test_hidden_by_young),
      cmocka_unit_test(test_to_and_fro),
      cmocka_unit_test(test_rising),
      cmocka_unit_test(test_away),
      cmocka_unit_test(test_full_disk),
      cmocka_unit_test(test_handed_back),
      cmocka_unit_test(test_other_tree),
      cmocka_unit_test(test_fails),
      cmocka_unit_test(test_by_chance),
      cmocka_unit_test(test_damaged_grows),
      cmocka_unit_test(test_work_of_tries),
      cmocka_unit_test(test_fits_only),
      cmocka_unit_test(test_damaged_and_no_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
