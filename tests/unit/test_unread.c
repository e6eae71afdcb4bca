// SPDX-License-Identifier: Apache-2.0
//
// Rounds of compaction that meet a partition which they cannot read (view/part.h, P4): they do all else, new data goes
// into it all the same, and the damage is told once.
#include "tests/lib/check.h"
#include "tests/lib/rounds.h"

#include "compact/join.h"
#include "compact/plan.h"

static struct part *part_of(const struct world *w, uint32_t i) { return w->base->parts[i]; }

// Three partitions or more; the next round would merge runs of the second one.
static void many_runs(struct world *w, uint64_t seed) {
  world_init(w, 4000, 0, seed);
  w->value = VALUE + 10;
  w->c.build.max_pages = 4;
  three_parts(w);
  for (uint32_t r = 0; part_runs(part_of(w, 1)) < compact_run_limit(&w->c, part_of(w, 1), UINT64_MAX); r++) {
    assert_true(r <= COMPACT_RUNS);
    put_range(w, first_key_of(w, 1) + r, first_key_of(w, 2), 30, false);
    round_ok(w, NULL);
  }
}

// Half of the records of partition 1 again: a split.
static void fill(struct world *w, uint32_t r) {
  put_range(w, first_key_of(w, 1) + r % 2, first_key_of(w, 2), 2, false);
  put(w, first_key_of(w, 2) + r, false);
}

// Flips a bit in each block of the partition's older view, and in their compressed keys; the next call flips them back.
static void damage_all(const struct part *p, bool keys) {
  for (uint32_t r = 0; r < part_old_runs(p); r++) {
    const struct sst *const t = part_run(p, r);
    for (uint64_t off = 40; off < (uint64_t)t->nr_pages * BLOCK_PAGE; off += 512)
      byte_flip(t->path, (long)(t->base + off));
    for (uint64_t off = 0; keys && off < t->ckb_len; off += 64) byte_flip(t->path, (long)(t->base + t->ckb_off + off));
  }
}

// A memtable's round needs a merge of damaged tables. It succeeds all the same, and so do those after it: where the
// partition has too many runs, those of the young view are merged. Without young views the rounds fail then. keys: the
// tables' compressed keys are damaged, too, so only a young view can be built.
static void test_memtable(void **state) {
  (void)state;
  static struct compact_whole whole;
  for (uint32_t keys = 0; keys < 2; keys++) {
    struct world w;
    uint32_t rounds = 0, most = 0, fewer = 0;
    many_runs(&w, 200 + keys);
    w.c.young_from = keys;
    const struct part *old = part_of(&w, 1);
    const uint32_t runs = part_runs(old), parts = w.base->nr_parts;
    for (; rounds < (keys ? 40 : 20); rounds++) {
      old = part_of(&w, 1);
      const uint32_t before = part_runs(old);
      fill(&w, rounds);
      damage_all(old, keys);
      const enum remixdb_status s = round_try(&w);
      damage_all(old, keys);
      if (s != REMIXDB_OK) break;
      world_install(&w);
      assert_true(w.base->nr_parts >= parts && is_damaged(part_of(&w, 1)));
      assert_true(part_old_runs(part_of(&w, 1)) >= runs && !part_young(part_of(&w, 1)) == !keys);
      assert_true(w.told == 1 && w.tell.status == REMIXDB_CORRUPT && strstr(w.tell.msg, w.p.at.path));
      assert_int_equal(atomic_load(&w.c.stats.failed), 1);
      const uint32_t now = part_runs(part_of(&w, 1));
      if (now > most) most = now;
      fewer += now < before;
    }
    assert_true(rounds >= 3 && most + 8 > COMPACT_UNREAD_RUNS && most <= COMPACT_UNREAD_RUNS);
    assert_true(keys ? rounds == 40 && fewer >= 2 : rounds < 20 && fewer == 0);
    if (!keys) expect_failed(&w, REMIXDB_CORRUPT, true);
    assert_int_equal(w.c.reads_failed, !keys);
    assert_int_equal(w.told, 1);
    whole = (struct compact_whole){.budget = UINT64_MAX};
    w.whole = &whole;  // it tries all partitions
    round_ok(&w, NULL);
    assert_true(whole.end && whole.unread.status == REMIXDB_OK);
    for (uint32_t i = 0; i < w.base->nr_parts; i++) assert_false(part_is_unread(part_of(&w, i)));
    world_fini(&w);
  }
}

// The partition has a young view of few large runs, from another opening, when tables become small. Rounds go on: the
// view is merged into tables that are larger than others (B1 in compact/plan.h).
static void test_large(void **state) {
  (void)state;
  struct world w;
  uint32_t merged = 0;
  world_init(&w, 4000, 0, 290);
  w.value = 200;
  w.c.build.max_pages = 1000;
  put_range(&w, 0, 3000, 1, false);
  round_ok(&w, NULL);
  w.c.young_from = 1;
  assert_true(part_set_unread(part_of(&w, 0), REMIXDB_CORRUPT));
  for (uint32_t r = 0; r < 60; r++) {
    const struct part *const old = part_of(&w, 0);
    const uint32_t before = part_runs(old);
    if (r < 2) put_range(&w, r, 3000, 2, false);
    else put_range(&w, r, 3000, 300, false);
    if (r == 2) w.c.build.max_pages = 1;
    w.large = r >= 2;
    damage_all(old, true);
    const enum remixdb_status s = round_try(&w);
    damage_all(old, true);
    OK(s);
    world_install(&w);
    assert_true(w.base->nr_parts == 1 && part_old_runs(part_of(&w, 0)) == 1 && is_damaged(part_of(&w, 0)));
    assert_true(part_runs(part_of(&w, 0)) < COMPACT_UNREAD_RUNS);
    if (r == 1) assert_true(plan_young_bytes(part_of(&w, 0)) > REMIX_RUNS_MAX * BLOCK_PAGE);
    merged += part_runs(part_of(&w, 0)) <= before;
  }
  assert_true(merged >= 2);
  world_fini(&w);
}

// A minor meets damaged keys, while it builds the view again. The next try begins a young view.
static void test_minor(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 4000, 0, 210);
  w.c.build.max_pages = 4;
  three_parts(&w);
  w.c.young_from = COMPACT_YOUNG_FROM;
  const struct part *const old = part_of(&w, 1);
  put_range(&w, first_key_of(&w, 1), first_key_of(&w, 2), 10, false);
  damage_all(old, true);
  const enum remixdb_status s = round_try(&w);
  damage_all(old, true);
  OK(s);
  assert_int_equal(atomic_load(&w.c.stats.failed), 1);
  world_install(&w);
  assert_true(young_of(&w, 1) && is_damaged(part_of(&w, 1)) && w.told == 1);
  world_fini(&w);
}

// The same where a read of an old table fails. Where one of a new table does, the round fails, and may be tried again.
static void test_minor_io(void **state) {
  (void)state;
  struct world w;
  uint32_t begun = 0;
  world_init(&w, 4000, 0, 215);
  w.c.build.max_pages = 4;
  three_parts(&w);
  w.c.young_from = COMPACT_YOUNG_FROM;
  put_range(&w, first_key_of(&w, 1), first_key_of(&w, 2), 10, false);
  for (int64_t n = 1;; n++) {
    w.told = 0;
    for (uint32_t i = 0; i < w.base->nr_parts; i++) forgive(part_of(&w, i));
    fault_io_set(FAULT_READ, n, false);
    const uint64_t began = time_ns();
    const enum remixdb_status s = round_try(&w);
    const bool any = fault_io_end();
    if (s != REMIXDB_OK) {
      expect_failed(&w, REMIXDB_IO, false);
      assert_true(w.c.reads_failed && w.told == 0 && !part_is_unread(part_of(&w, 1)));
      for (uint32_t r = 0; r < part_runs(part_of(&w, 1)); r++)
        assert_null(strstr(w.error.msg, part_run(part_of(&w, 1), r)->path));
      continue;
    }
    const bool young = w.next->parts[1]->young;
    assert_true(young == any && w.told == any && part_is_left(part_of(&w, 1), began) == any);
    assert_true(!any || w.tell.status == REMIXDB_IO);
    begun += young;
    compact_retire(w.next, w.base);
    version_unref(w.next);
    if (!any) break;
  }
  assert_true(begun > 0);
  round_ok(&w, NULL);
  world_fini(&w);
}

// A compaction of the whole leaves the damaged partition as it is, and tells its file. Each call tries again.
static void test_whole(void **state) {
  (void)state;
  static struct compact_whole whole;
  struct world w;
  many_runs(&w, 220);
  for (uint32_t r = 0; r < 2; r++) {
    for (uint32_t i = 0; i < w.base->nr_parts; i++) put(&w, first_key_of(&w, i) + 1, r);
    round_ok(&w, NULL);
  }
  const struct part *const bad = part_of(&w, 1);
  const uint32_t key = first_key_of(&w, 1);
  char path[ENV_PATH_MAX];
  (void)snprintf(path, sizeof(path), "%s", part_run(bad, 0)->path);
  assert_true(w.base->nr_parts >= 4);
  for (uint32_t call = 0; call < 3; call++) {
    const bool damaged = call < 2;
    const uint32_t at = version_find(w.base, w.k.keys[key]);
    const uint64_t failed = atomic_load(&w.c.stats.failed);
    whole = (struct compact_whole){.budget = UINT64_MAX};
    w.whole = &whole;
    if (damaged) damage(w.base, at);
    const enum remixdb_status s = round_try(&w);
    if (damaged) damage(w.base, at);
    OK(s);
    world_install(&w);
    assert_true(whole.end && w.told == 1);
    assert_int_equal(atomic_load(&w.c.stats.failed), failed + damaged);
    assert_int_equal(whole.unread.status, damaged ? REMIXDB_CORRUPT : REMIXDB_OK);
    if (damaged) assert_non_null(strstr(whole.unread.msg, path));
    if (damaged) assert_ptr_equal(part_of(&w, version_find(w.base, w.k.keys[key])), bad);
    for (uint32_t i = 0; i < w.base->nr_parts; i++)
      assert_true((damaged && part_of(&w, i) == bad) || part_runs(part_of(&w, i)) <= COMPACT_PART_TABLES);
  }
  world_fini(&w);
}

// Many small partitions, which a store at rest would join.
static void small_parts(struct world *w, uint64_t seed) {
  world_init(w, 4000, 0, seed);
  w->value = VALUE + 10;
  w->c.build.max_pages = TABLE / 8;
  put_range(w, 0, w->k.nr, 1, false);
  round_ok(w, NULL);
  w->c.build.max_pages = 8 * TABLE;
  w->c.join = COMPACT_JOIN;
  w->garbage = true;
  assert_true(w->base->nr_parts > 3 * JOIN_MANY && join_due(&w->c, w->base));
}

// A read that fails once keeps merges away for a time, which doubles with each failure. Damage keeps them away for
// ever.
static void test_pause(void **state) {
  (void)state;
  struct world w;
  small_parts(&w, 230);
  struct part *const p = part_of(&w, 0);
  part_ref(p);
  for (uint32_t i = 0; i < PART_PAUSES + 3; i++) {
    const uint64_t before = time_ns(), pause = PART_PAUSE_NS << (i < PART_PAUSES ? i : PART_PAUSES);
    fault_io_set(FAULT_READ, 1, false);
    OK(round_try(&w));
    assert_true(fault_io_end());
    assert_true(w.told == i + 1 && w.tell.status == REMIXDB_IO && w.next);
    assert_in_range(part_unread_ns(p), before + pause, time_ns() + pause);
    assert_true(part_is_left(p, before) && version_again_ns(w.base, before) >= pause);
    assert_ptr_equal(w.next->parts[0], p);  // the round has joined others
    compact_retire(w.next, w.base);
    version_unref(w.next);
    atomic_store(&p->unread_ns, 1);  // the time has passed
    assert_true(part_is_unread(p) && !part_is_left(p, time_ns()) && version_again_ns(w.base, 1) == 0);
  }
  OK(round_try(&w));
  assert_ptr_not_equal(w.next->parts[0], p);
  assert_false(part_is_unread(w.next->parts[0]));
  compact_retire(w.next, w.base);
  version_unref(w.next);
  assert_true(part_set_unread(p, REMIXDB_CORRUPT) && part_is_left(p, time_ns()) && version_again_ns(w.base, 0) == 0);
  assert_false(part_set_unread(p, REMIXDB_CORRUPT) || part_set_unread(p, REMIXDB_IO));
  assert_true(is_damaged(p));
  part_unref(p);
  world_fini(&w);
}

static void told_late(void *arg, const struct err_saved *why) {
  struct world *const w = arg;
  w->tell = *why;
  if (atomic_fetch_add(&w->told, 1) < 2)
    for (uint32_t i = 0; i < w->base->nr_parts; i++)
      if (part_is_unread(part_of(w, i))) atomic_store(&part_of(w, i)->unread_ns, time_ns());
}

// A try takes longer than the marks that it makes last. The other tries of the call leave the partitions out all the
// same. kind 0: a memtable's round; 1: one of a store at rest; 2: one for scans; 3: the whole.
static void test_long_try(void **state) {
  (void)state;
  static struct compact_whole whole;
  for (uint32_t kind = 0; kind < 4; kind++) {
    struct world w;
    if (kind == 1) small_parts(&w, 270);
    else many_runs(&w, 270);
    const uint32_t bad = kind != 1;
    w.c.tell = told_late;
    w.c.young_from = 1;
    if (kind == 0) fill(&w, 0);
    whole = (struct compact_whole){.budget = UINT64_MAX};
    if (kind == 3) w.whole = &whole;
    w.scan_merges = kind == 2;
    if (kind == 2) wear(&w, bad);
    damage_all(part_of(&w, bad), false);
    const enum remixdb_status s = round_try(&w);
    damage_all(part_of(&w, bad), false);
    OK(s);
    assert_true(w.told == 1 && atomic_load(&w.c.stats.failed) == 1);
    assert_true(!w.next == (kind == 2));
    if (w.next) {
      compact_retire(w.next, w.base);
      version_unref(w.next);
    }
    w.scan_merges = w.garbage = false;
    round_ok(&w, NULL);
    world_fini(&w);
  }
}

static struct compact *to_yield;
static ssize_t yielding_pread(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  atomic_store(&to_yield->yield, true);
  return PLACE_REAL->pread(e, fd, buf, len, off);
}

// A merge finds damage, and another one of its round gives way to a memtable. The damage is told, once.
static void test_given_up(void **state) {
  (void)state;
  uint32_t given_up = 0;
  for (uint32_t large = 0; large < 2; large++) {
    struct world w;
    world_init(&w, 4000, 0, 240);
    w.c.build.max_pages = 4;
    w.c.scan_merge_parts = 2;
    three_parts(&w);
    for (uint32_t r = 0; r < 4; r++) {
      put_range(&w, r, first_key_of(&w, 2), 30, false);
      put_range(&w, first_key_of(&w, large) + r, first_key_of(&w, large + 1), 15, false);
      round_ok(&w, NULL);
    }
    w.scan_merges = true;
    wear(&w, 0);
    wear(&w, 1);
    // the first task reads something and fails by it; the other one begins after that
    to_yield = &w.c;
    const struct env_ops was = w.p.ops;
    damage_all(part_of(&w, 0), false);
    damage_all(part_of(&w, 1), false);
    w.p.ops.pread = yielding_pread;
    const enum remixdb_status s = round_try(&w);
    w.p.ops = was;
    damage_all(part_of(&w, 0), false);
    damage_all(part_of(&w, 1), false);
    OK(s);  // no debt is left for another try
    assert_null(w.next);
    given_up += atomic_load(&w.c.stats.failed) == 0;  // so the round told
    assert_int_equal(is_damaged(part_of(&w, 0)) + is_damaged(part_of(&w, 1)), 1);
    assert_true(w.told == 1 && w.tell.status == REMIXDB_CORRUPT);
    atomic_store(&w.c.yield, false);
    expect_files(&w, w.base);
    expect_contents(&w, w.base, w.disk);
    OK(round_try(&w));
    assert_int_equal(w.told, 1);
    if (w.next) world_install(&w);
    world_fini(&w);
  }
  assert_true(given_up > 0);
}

// A new record has a reference that cannot be one, so the round cannot write its table: that says nothing about the
// partitions that it reads.
static void test_new_record(void **state) {
  (void)state;
  struct world w;
  many_runs(&w, 250);
  fill(&w, 0);
  struct wh_slot slot;
  const struct kref k = w.k.keys[first_key_of(&w, 1) + 50];
  enter(&w.p);
  wh_lock(w.frozen, k, hash64(k.ptr, k.len), &slot);
  struct kv_rec rec = *KV_REC(kref(NULL, 0), "x", 1, false);
  rec.kind |= KV_APART;
  OK(wh_link(&slot, &rec));
  wh_stamp(&slot, ++w.seq);
  wh_unlock(&slot);
  leave(&w.p);
  FAILS(round_try(&w), REMIXDB_CORRUPT);
  expect_failed(&w, REMIXDB_CORRUPT, true);
  assert_int_equal(w.told, 0);
  for (uint32_t i = 0; i < w.base->nr_parts; i++) assert_false(part_is_unread(part_of(&w, i)));
  world_fini(&w);
}

// A round hands records back, and is made again because of damage. It hands them back again, which changes nothing.
static void test_handed_back(void **state) {
  (void)state;
  struct world w;
  uint32_t back = 0;
  many_runs(&w, 260);
  w.c.memtable_size = COMPACT_ABORT_SHARE * 400;
  w.allow_abort = true;
  const uint32_t key = first_key_of(&w, 0) + 3;
  fill(&w, 0);
  put(&w, key, true);
  damage(w.base, 1);
  const enum remixdb_status s = round_try(&w);
  damage(w.base, 1);
  OK(s);
  assert_false(w.back_wrong);
  assert_int_equal(atomic_load(&w.c.stats.failed), 1);
  for (uint32_t a = 0; a < w.k.nr; a++) back += w.back[a];
  assert_true(back == w.nr_back && w.back[key] == 2);
  assert_true(atomic_load(&w.c.stats.kinds[COMPACT_ABORT]) >= 1);
  world_install(&w);
  assert_int_equal(w.fresh[key], TOMB);
  w.allow_abort = false;
  round_ok(&w, NULL);
  world_fini(&w);
}

// The disk is full from the nth write on, where the round meets a damaged partition. The round fails for want of room,
// and changes nothing. With room it goes on, without the merge.
static void test_full_disk(void **state) {
  (void)state;
  static struct compact_whole whole;
  struct world w;
  uint32_t failed = 0;
  many_runs(&w, 280);
  w.c.young_from = 1;
  fill(&w, 0);
  for (int64_t n = 1;; n++) {
    w.told = 0;
    for (uint32_t i = 0; i < w.base->nr_parts; i++) forgive(part_of(&w, i));
    damage_all(part_of(&w, 1), n % 2);
    fault_io_set(FAULT_WRITE, n, true);
    enum remixdb_status s = round_try(&w);
    const bool any = fault_io_end();
    damage_all(part_of(&w, 1), n % 2);
    assert_true(any == (s != REMIXDB_OK) && w.told <= 1 && is_damaged(part_of(&w, 1)) == (w.told == 1));
    if (any) {
      failed++;
      expect_failed(&w, REMIXDB_NOSPACE, n % 4 == 0);
      damage_all(part_of(&w, 1), n % 2);
      s = round_try(&w);
      damage_all(part_of(&w, 1), n % 2);
    }
    OK(s);
    assert_true(w.told == 1 && is_damaged(part_of(&w, 1)) && w.next->parts[1]->young);
    if (!any) break;
    compact_retire(w.next, w.base);
    version_unref(w.next);
  }
  assert_true(failed > 3);
  world_install(&w);
  whole = (struct compact_whole){.budget = UINT64_MAX};
  w.whole = &whole;
  round_ok(&w, NULL);
  assert_true(whole.end && whole.unread.status == REMIXDB_OK);
  world_fini(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_memtable), cmocka_unit_test(test_large),      cmocka_unit_test(test_minor),
      cmocka_unit_test(test_minor_io), cmocka_unit_test(test_whole),      cmocka_unit_test(test_pause),
      cmocka_unit_test(test_given_up), cmocka_unit_test(test_new_record), cmocka_unit_test(test_handed_back),
      cmocka_unit_test(test_long_try), cmocka_unit_test(test_full_disk),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
