// SPDX-License-Identifier: Apache-2.0
//
// Rounds of compaction beside a partition that is away and damaged (view/part.h, P5 to P7): they do all else, its new
// data goes into its young view, and nothing that it had is lost.
#include "tests/lib/check.h"
#include "tests/lib/rounds.h"

#include "compact/join.h"
#include "compact/plan.h"
#include "remix/open.h"

static uint32_t bad_key;  // a key of the damaged partition

enum harm { HARM_VIEW, HARM_TABLE, HARMS };

// A byte of the file that an opening checks.
struct spot {
  char path[ENV_PATH_MAX];
  long off;
};

static void flip(const struct spot *s) { byte_flip(s->path, s->off); }

static struct part *part_of(const struct world *w, uint32_t i) { return w->base->parts[i]; }

static uint32_t bad_at(const struct world *w) { return version_find(w->base, w->k.keys[bad_key]); }
static struct part *bad_of(const struct world *w) { return part_of(w, bad_at(w)); }

// New data for the damaged partition: every n-th of its keys from the r-th on.
static void put_bad(struct world *w, uint32_t r, uint32_t n) {
  const uint32_t at = bad_at(w);
  put_range(w, first_key_of(w, at) + r, first_key_of(w, at + 1), n, false);
}

static void spot_view(const struct remix *x, struct spot *out) {
  (void)snprintf(out->path, sizeof(out->path), "%s", x->path);
  out->off = (long)(x->part ? x->part->at.off + x->part->at.len / 2 : x->file_size / 2);
}

static void spot_table(const struct sst *t, struct spot *out) {
  (void)snprintf(out->path, sizeof(out->path), "%s", t->path);
  out->off = (long)(t->base + t->file_size - 300);  // metadata lies before the footer
}

// Base goes through the disk, and its partitions are away.
static void open_away(struct world *w) {
  world_settle(w);
  world_save(w);
  version_unref(w->base);
  packs_destroy(w->p.ctx.packs);
  OK(packs_create(&w->p.at, w->p.fds, false, true, &w->p.ctx.packs));
  atomic_store(&version_eager, 0);
  OK(version_open(&w->p.ctx, NULL, NULL, &w->base));
  atomic_store(&version_eager, VERSION_EAGER);
  char path[ENV_PATH_MAX];
  OK(env_path(path, w->p.dir, FILES_CURRENT));
  assert_int_equal(unlink(path), 0);
}

// Three partitions or more. young: the damaged one has a young view. *out: the damage, which is not there yet.
static void ready_of(struct world *w, uint32_t keys, uint32_t pages, enum harm how, bool young, uint64_t seed,
                     struct spot *out) {
  world_init(w, keys, 0, seed);
  w->c.build.max_pages = pages;
  w->c.young_from = 2;
  three_parts(w);
  bad_key = first_key_of(w, 1);
  if (young) put_bad(w, 0, 20);
  if (young) round_ok(w, NULL);
  assert_true(bad_at(w) == 1 && !young_of(w, 1) == !young);
  if (how == HARM_VIEW) spot_view(remix_of(w, 1), out);
  else spot_table(part_run(bad_of(w), 0), out);
  open_away(w);
}

static void ready(struct world *w, enum harm how, bool young, uint64_t seed, struct spot *out) {
  ready_of(w, 4000, 4, how, young, seed, out);
}

// The version of the last round takes the place of base.
static void install(struct world *w) {
  for (uint32_t a = 0; a < w->k.nr; a++)
    if (w->fresh[a] != NONE) w->disk[a] = w->fresh[a];
  compact_retire(w->base, w->next);
  version_unref(w->base);
  w->base = w->next;
  w->next = NULL;
  packs_reclaim(w->p.ctx.packs);
  thaw(w);
}

// The partition has these files of its older view.
static void expect_older(const struct part *p, const struct part_files *want) {
  struct part_files f;
  part_files(p, &f);
  assert_int_equal(f.remix.number, want->remix.number);
  assert_int_equal(f.nr - f.nr_young, want->nr - want->nr_young);
  for (uint32_t i = 0; i < want->nr - want->nr_young; i++) assert_int_equal(f.tables[i].number, want->tables[i].number);
  assert_int_equal(part_older_tables(p), want->nr - want->nr_young);
}

// The damaged partition is shut: nobody reads it, and its version does not list its young view.
static void expect_shut(struct world *w, const struct part *p, const struct spot *s) {
  assert_true(part_is_away(p) && part_is_shut(p) && is_damaged(p) && !part_is_empty(p) && !part_has_young(p));
  FAILS(part_ready(p), REMIXDB_CORRUPT);
  assert_non_null(strstr(err_msg(), s->path));
  for (uint32_t i = 0; i < w->base->nr_young; i++) assert_ptr_not_equal(part_of(w, w->base->young[i]), p);
  assert_false(part_opens(p));
}

static uint32_t tables_of(const struct part *p) {
  struct part_files f;
  part_files(p, &f);
  return f.nr;
}

// Rounds of all kinds leave the damaged partition as it is.
static void other_rounds(struct world *w, const struct part_files *older, const struct spot *s) {
  static struct compact_whole whole;
  const struct part *const bad = bad_of(w);
  whole = (struct compact_whole){.budget = UINT64_MAX};
  w->whole = &whole;
  OK(round_try(w));
  assert_true(whole.end && whole.unread.status == REMIXDB_CORRUPT && strstr(whole.unread.msg, s->path));
  install(w);
  w->whole = NULL;
  assert_ptr_equal(bad_of(w), bad);
  for (uint32_t kind = 0; kind < 3; kind++) {
    w->garbage = kind == 1;
    w->scan_merges = kind != 1;
    w->c.join = kind == 1 ? COMPACT_JOIN : 0;
    if (kind == 2) atomic_store(&w->c.expired_ms, UINT64_MAX);
    wear_all(w);
    if (part_young(bad)) remix_add_debt(part_young(bad), UINT32_MAX);
    OK(round_try(w));
    if (w->next) {
      assert_ptr_equal(w->next->parts[version_find(w->next, w->k.keys[bad_key])], bad);
      install(w);
    }
  }
  atomic_store(&w->c.expired_ms, 0);
  w->c.join = 0;
  w->garbage = w->scan_merges = false;
  expect_older(bad, older);
}

// The partition is opened again: by a compaction that a caller asked for, or through the disk. Nothing is lost.
static void expect_all(struct world *w, const struct spot *s, bool reopen) {
  static struct compact_whole whole;
  struct part *const was = bad_of(w);
  flip(s);
  if (reopen) open_away(w);
  else FAILS(part_ready(was), REMIXDB_CORRUPT);
  for (uint32_t pass = 0; pass < 2; pass++) {
    whole = (struct compact_whole){.budget = UINT64_MAX};
    w->whole = &whole;
    OK(round_try(w));
    assert_true(whole.end && whole.unread.status == REMIXDB_OK);
    install(w);
    for (uint32_t i = 0; i < w->base->nr_parts; i++)
      assert_true(!part_is_away(part_of(w, i)) && !part_is_unread(part_of(w, i)));
  }
  w->whole = NULL;
  expect_contents(w, w->base, w->disk);
  expect_files(w, w->base);
}

static void test_rounds(void **state) {
  (void)state;
  for (uint32_t i = 0; i < HARMS * 4; i++) {
    struct world w;
    struct spot s;
    struct part_files older;
    const bool young = i & 1, reopen = i & 2;
    ready(&w, (enum harm)(i / 4), young, 300 + i, &s);
    part_files(bad_of(&w), &older);
    flip(&s);
    uint32_t before = older.nr;
    for (uint32_t r = 0; r < 5; r++) {
      const struct part *const was = bad_of(&w);
      for (uint32_t k = 0; k < w.base->nr_parts; k++)
        if (k != bad_at(&w) || r) put(&w, first_key_of(&w, k) + r, r == 3);
      if (r) put_bad(&w, 0, 40);
      OK(round_try(&w));
      install(&w);
      const struct part *const bad = bad_of(&w);
      assert_true(w.told == 1 && w.tell.status == REMIXDB_CORRUPT && strstr(w.tell.msg, s.path));
      expect_older(bad, &older);
      if (r == 0) assert_true(bad == was && !part_is_shut(bad));
      if (r) assert_true(bad != was && tables_of(bad) > before);
      if (r) expect_shut(&w, bad, &s);
      for (uint32_t k = 0; k < w.base->nr_parts; k++) assert_true(k == bad_at(&w) || !part_is_away(part_of(&w, k)));
      if (r) other_rounds(&w, &older, &s);
      before = tables_of(bad);
    }
    assert_int_equal(atomic_load(&w.c.stats.failed), 0);
    expect_all(&w, &s, reopen);
    world_fini(&w);
  }
}

// Half of the records of the damaged partition again, which takes several tables.
static void fill(struct world *w, uint32_t r) {
  put_bad(w, r % 2, 2);
  put(w, first_key_of(w, bad_at(w) + 1) + r, false);
}

// New data goes into the partition until it has too many tables, although those of its young view are merged. Then
// rounds that bring more fail, and those that bring none go on.
static void test_many_tables(void **state) {
  (void)state;
  struct world w;
  struct spot s;
  struct part_files older;
  uint32_t rounds = 0, fewer = 0, most = 0;
  ready_of(&w, 16000, 32, HARM_VIEW, false, 320, &s);
  part_files(bad_of(&w), &older);
  flip(&s);
  for (;; rounds++) {
    assert_true(rounds < 200);
    w.c.build.max_pages = rounds < 60 ? 8 : 2;  // the same data needs more tables
    w.c.large_pages = rounds < 60 ? 0 : 2;      // and none may be larger
    const uint32_t before = tables_of(bad_of(&w));
    fill(&w, rounds);
    if (round_try(&w) != REMIXDB_OK) break;
    install(&w);
    expect_shut(&w, bad_of(&w), &s);
    const uint32_t now = tables_of(bad_of(&w));
    if (now > most) most = now;
    fewer += now < before;
  }
  assert_true(rounds == 60 && fewer > 2 && most < COMPACT_UNREAD_RUNS && most + 8 > COMPACT_UNREAD_RUNS);
  for (uint32_t again = 0; again < 2; again++) {
    const uint64_t next = atomic_load(&w.c.next_file);
    FAILS(round_try(&w), REMIXDB_CORRUPT);
    assert_true(w.c.reads_failed && strstr(w.error.msg, s.path) && atomic_load(&w.c.next_file) == next);
  }
  thaw(&w);
  put(&w, first_key_of(&w, 0) + 1, false);
  OK(round_try(&w));
  install(&w);
  fill(&w, rounds);
  FAILS(round_try(&w), REMIXDB_CORRUPT);
  thaw(&w);
  w.c.build.max_pages = 32;
  assert_int_equal(w.told, 1);
  expect_older(bad_of(&w), &older);
  expect_all(&w, &s, false);
  world_fini(&w);
}

// The young view is damaged, or both are. Rounds without new data for the partition go on.
static void run_young(enum harm how, bool both) {
  struct world w;
  struct spot s, old;
  ready(&w, HARM_VIEW, true, 330 + how, &old);
  OK(part_ready(bad_of(&w)));
  const struct remix *const young = part_young(bad_of(&w));
  if (how == HARM_VIEW) spot_view(young, &s);
  else spot_table(young->runs[0], &s);
  open_away(&w);
  const struct part *const bad = bad_of(&w);
  flip(&s);
  if (both) flip(&old);
  put(&w, first_key_of(&w, 0), false);
  OK(round_try(&w));
  install(&w);
  assert_true(bad_of(&w) == bad && part_is_away(bad) && !part_young(bad) && !part_takes_tables(bad) && w.told == 1);
  put(&w, bad_key + 1, false);
  FAILS(round_try(&w), REMIXDB_CORRUPT);
  assert_true(w.c.reads_failed && strstr(w.error.msg, both ? old.path : s.path));
  flip(&s);
  if (both) flip(&old);
  OK(round_try(&w));
  install(&w);
  assert_false(part_is_away(bad_of(&w)));
  expect_contents(&w, w.base, w.disk);
  expect_files(&w, w.base);
  world_fini(&w);
}

static void test_young(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 2 * HARMS; i++) run_young((enum harm)(i / 2), i % 2);
}

// A reader of an older version opens the older view when the file is whole again. Others share what it has opened, and
// the files stay until the last of them has gone.
static void test_shared(void **state) {
  (void)state;
  struct world w;
  struct spot s;
  static struct compact_whole whole;
  ready(&w, HARM_TABLE, true, 340, &s);
  struct version *const before = w.base;
  struct part *const first = bad_of(&w);
  version_ref(before);
  flip(&s);
  for (uint32_t r = 0; r < 2; r++) {
    put_bad(&w, r, 40);
    OK(round_try(&w));
    install(&w);
  }
  struct version *const between = w.base;
  struct part *const shut = bad_of(&w);
  version_ref(between);
  expect_shut(&w, shut, &s);
  flip(&s);
  OK(part_ready(first));
  assert_true(part_opens(shut) && part_has(shut, part_remix(first)) && part_has(shut, part_run(first, 0)));
  FAILS(part_ready(shut), REMIXDB_CORRUPT);
  put(&w, first_key_of(&w, 0) + 1, false);
  OK(round_try(&w));
  install(&w);
  struct part *const whole_again = bad_of(&w);
  assert_true(part_remix(whole_again) == part_remix(first) && part_young(whole_again) == part_young(shut));
  assert_true(!part_is_away(whole_again) && !part_is_unread(whole_again));
  char path[ENV_PATH_MAX];
  (void)snprintf(path, sizeof(path), "%s", part_run(first, 0)->path);
  const uint64_t size = place_bytes(&w.p);
  whole = (struct compact_whole){.budget = UINT64_MAX};
  w.whole = &whole;
  OK(round_try(&w));
  install(&w);
  w.whole = NULL;
  assert_int_equal(access(path, F_OK), 0);
  assert_true(place_bytes(&w.p) > size / 2);
  expect_contents(&w, w.base, w.disk);
  version_unref(between);
  assert_int_equal(access(path, F_OK), 0);
  version_unref(before);
  packs_reclaim(w.p.ctx.packs);
  expect_files(&w, w.base);
  world_fini(&w);
}

// A round that cannot be made leaves no file, and all that it had.
static void test_fails(void **state) {
  (void)state;
  for (uint32_t young = 0; young < 2; young++) {
    struct world w;
    struct spot s;
    struct part_files older;
    uint32_t failed = 0;
    ready(&w, HARM_VIEW, young, 350 + young, &s);
    part_files(bad_of(&w), &older);
    flip(&s);
    fill(&w, 0);
    for (int64_t n = 1;; n++) {
      fault_mem_set(n);
      const enum remixdb_status made = round_try(&w);
      const bool any = fault_mem_end();
      if (made != REMIXDB_OK) {
        FAILS(made, REMIXDB_NOMEM);
        failed++;
      } else {
        compact_retire(w.next, w.base);
        version_unref(w.next);
        w.next = NULL;
        packs_reclaim(w.p.ctx.packs);
      }
      expect_older(bad_of(&w), &older);
      if (!any) break;
    }
    assert_true(failed > 20);
    for (int64_t n = 1;; n++) {
      fault_io_set(FAULT_WRITE, n, false);
      const enum remixdb_status made = round_try(&w);
      const bool any = fault_io_end();
      if (made == REMIXDB_OK) {
        compact_retire(w.next, w.base);
        version_unref(w.next);
        w.next = NULL;
        packs_reclaim(w.p.ctx.packs);
      }
      if (!any) break;
    }
    OK(round_try(&w));
    install(&w);
    expect_shut(&w, bad_of(&w), &s);
    expect_all(&w, &s, false);
    world_fini(&w);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rounds), cmocka_unit_test(test_many_tables), cmocka_unit_test(test_young),
      cmocka_unit_test(test_shared), cmocka_unit_test(test_fails),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
