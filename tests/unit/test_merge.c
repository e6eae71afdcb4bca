// SPDX-License-Identifier: Apache-2.0
//
// The merge of two memtables and the partitions against an array, at random moments and in all directions. view/merge.c
// is compiled into this program with a look at the epoch before each call that needs one.
//
// TEST_SEED in the environment repeats a run's random choices.
#include "view/merge.h"

static const struct epoch_slot *needed;  // the slot whose epoch a lookup needs; NULL: not checked
static uint64_t nr_inside, nr_outside;   // lookups

static void look_up(void) {
  if (!needed) return;
  if (atomic_load(&needed->at)) nr_inside++;
  else nr_outside++;
}
static void inside_seek_begin(struct wh_cursor *c, struct kref key, bool steps) {
  look_up(), wh_seek_begin(c, key, steps);
}
static void inside_seek_begin_place(struct wh_cursor *c, struct kref key, bool backward) {
  look_up(), wh_seek_begin_place(c, key, backward);
}
static void inside_seek(struct wh_cursor *c, struct kref key) { look_up(), wh_seek(c, key); }
static void inside_seek_for_prev(struct wh_cursor *c, struct kref key) { look_up(), wh_seek_for_prev(c, key); }
static void inside_seek_last(struct wh_cursor *c) { look_up(), wh_seek_last(c); }
static uint32_t nr_young_failed;  // lookups in young views that failed, and young views that could not be entered

static enum remixdb_status young_told(const struct remix *x, enum remixdb_status s) {
  nr_young_failed += s != REMIXDB_OK && x && remix_is_young(x);
  return s;
}
static enum remixdb_status inside_remix_seek(struct remix_cursor *c, struct kref key) {
  return look_up(), young_told(c->x, remix_seek(c, key));
}
static enum remixdb_status inside_remix_seek_for_prev(struct remix_cursor *c, struct kref key) {
  return look_up(), young_told(c->x, remix_seek_for_prev(c, key));
}
static enum remixdb_status inside_remix_record(struct remix_cursor *c, struct kv_rec *r) {
  return look_up(), young_told(c->x, remix_record(c, r));
}
static enum remixdb_status told_remix_cursor_set(struct remix_cursor *c, struct remix *x) {
  return young_told(x, remix_cursor_set(c, x));
}
#define wh_seek_begin inside_seek_begin
#define wh_seek_begin_place inside_seek_begin_place
#define wh_seek inside_seek
#define wh_seek_for_prev inside_seek_for_prev
#define wh_seek_last inside_seek_last
#define remix_seek inside_remix_seek
#define remix_seek_for_prev inside_remix_seek_for_prev
#define remix_record inside_remix_record
#define remix_cursor_set told_remix_cursor_set
#include "view/merge.c"
#undef wh_seek_begin
#undef wh_seek_begin_place
#undef wh_seek
#undef wh_seek_for_prev
#undef wh_seek_last
#undef remix_seek
#undef remix_seek_for_prev
#undef remix_record
#undef remix_cursor_set

#include "tests/lib/check.h"
#include "tests/lib/scene.h"

static uint64_t seed_base;  // for choices that are drawn anew each time

// The ranks of the merge's bounds: keys [bound_low, bound_high).
static uint32_t bound_low, bound_high = UINT32_MAX;

// The next live key at or after `at`, or before or at it, within the bounds; nr: none.
static uint32_t model_up(const struct scene *s, uint32_t at) {
  const uint32_t high = bound_high < s->k.nr ? bound_high : s->k.nr;
  if (at < bound_low) at = bound_low;
  while (at < high && s->live[at] == NONE) at++;
  return at < high ? at : s->k.nr;
}
static uint32_t model_down(const struct scene *s, uint32_t end) {
  if (end > bound_high) end = bound_high;
  while (end > bound_low && s->live[end - 1] == NONE) end--;
  return end > bound_low ? end - 1 : s->k.nr;
}

// Gives the merge bounds at random: at keys, beside keys, or open.
struct bounds {
  uint8_t bytes[2][KEY_NEAR_MAX];
};
static void bounds_choose(const struct scene *s, struct merge *m, uint64_t *rng, struct bounds *b) {
  struct kref keys[2];
  for (uint32_t i = 0; i < 2; i++) keys[i] = kref(b->bytes[i], key_near(s, rng, b->bytes[i]));
  const uint32_t dice = (uint32_t)(rng_next(rng) % 8), nr = s->k.nr;
  if (dice < 5 && kv_cmp(keys[0], keys[1]) > 0) keys[0].ptr = b->bytes[1], keys[1].ptr = b->bytes[0];
  if (keys[0].ptr == b->bytes[1]) {
    const uint32_t len = keys[0].len;
    keys[0].len = keys[1].len;
    keys[1].len = len;
  }
  const uint32_t few = (uint32_t)(rng_next(rng) % 40);
  if (dice == 3 && nr > few) keys[1] = s->k.keys[keyset_rank(&s->k, keys[0]) % (nr - few) + few];  // near the other
  if (dice == 0) keys[0] = kref(NULL, 0);
  if (dice == 1) keys[1] = kref(NULL, 0);
  bound_low = keys[0].ptr ? keyset_rank(&s->k, keys[0]) : 0;
  bound_high = keys[1].ptr ? keyset_rank(&s->k, keys[1]) : nr;
  if (bound_low > bound_high) bound_low = bound_high;
  merge_bound(m, keys[0], keys[1]);
}
static void bounds_none(void) {
  bound_low = 0;
  bound_high = UINT32_MAX;
}

static bool keys_only;  // the merge needs to give no values

// Reading the record fails the first time, when something has to be read for it.
static bool fail_first;
static uint32_t nr_failed;

static void record_here(struct merge *m, struct kv_rec *rec_out) {
  if (fail_first) {
    fault_io_set(FAULT_READ, 1, false);
    const enum remixdb_status s = merge_record(m, rec_out);
    (void)fault_io_end();
    if (s == REMIXDB_OK) return;
    FAILS(s, REMIXDB_IO);
    assert_true(merge_valid(m));
    nr_failed++;
    if (nr_failed % 3 == 0) return;  // and is not tried again: later calls must not notice
  }
  OK(merge_record(m, rec_out));
}

static void expect_at(struct scene *s, struct merge *m, uint32_t at, const char *what, uint64_t seed) {
  struct kv_rec r;
  if (merge_valid(m) != (at < s->k.nr))
    fail_msg("seed %llu: %s: %s", (unsigned long long)seed, what, merge_valid(m) ? "valid" : "not valid");
  if (!merge_valid(m)) return;
  r.key = NULL;
  record_here(m, &r);
  if (!r.key && fail_first) return;
  const uint32_t rank = keyset_rank(&s->k, kref(r.key, r.klen));
  if (rank != at || !kv_eq(kref(r.key, r.klen), s->k.keys[at]))
    fail_msg("seed %llu: %s: at key %u, %u expected", (unsigned long long)seed, what, rank, at);
  if (!keys_only && !value_is(&r, s->k.keys[at], s->live[at], VALUE))
    fail_msg("seed %llu: %s: value of key %u", (unsigned long long)seed, what, at);
}

// A merge that has been given the slot enters by itself, except for a seek.
static void step_in(struct scene *s, const struct merge *m) {
  if (!m->slot) enter(&s->p);
}
static void seek_out(struct scene *s, const struct merge *m) {
  if (m->slot) leave(&s->p);
}

// A round is handing records of the frozen memtable back: each keeps its number, and stays away if the active memtable
// has a newer one of its key.
static bool handing_back;

static void hand_back(struct scene *s, uint64_t *rng) {
  const struct kref key = s->k.keys[rng_next(rng) % s->k.nr];
  const uint64_t hash = hash64(key.ptr, key.len);
  struct wh_slot slot;
  struct kv_rec rec;
  enter(&s->p);
  const struct wh_ver *const ver = wh_get(s->frozen, key, hash, UINT64_MAX);
  wh_lock(s->active, key, hash, &slot);
  if (ver && !wh_slot_newest(&slot)) {
    wh_ver_value(ver, &rec);
    OK(wh_link(&slot, &rec));
    wh_stamp(&slot, atomic_load(wh_ver_number(ver)));
  }
  wh_unlock(&slot);
  leave(&s->p);
}

static void walk(struct scene *s, struct merge *m, uint32_t steps, uint64_t seed) {
  uint64_t rng = seed;
  needed = m->slot;
  uint32_t at = s->k.nr;
  bool forward = true;
  for (uint32_t i = 0; i < steps; i++) {
    uint8_t buf[KEY_NEAR_MAX];
    const uint32_t dice = (uint32_t)(rng_next(&rng) % 40);
    if (handing_back) hand_back(s, &rng);
    if (at == s->k.nr || dice < 3) {
      enter(&s->p);
      const struct kref key = kref(buf, key_near(s, &rng, buf));
      const uint32_t rank = keyset_rank(&s->k, key);
      if (dice % 3 == 0) {
        OK(merge_seek_last(m));
        seek_out(s, m);
        at = model_down(s, s->k.nr);
        expect_at(s, m, at, "seek_last", seed);
      } else if (dice % 3 == 1) {
        OK(merge_seek(m, key));
        seek_out(s, m);
        at = model_up(s, rank);
        expect_at(s, m, at, "seek", seed);
      } else {
        OK(merge_seek_for_prev(m, key));
        seek_out(s, m);
        at = model_down(s, rank < s->k.nr && kv_eq(s->k.keys[rank], key) ? rank + 1 : rank);
        expect_at(s, m, at, "seek_for_prev", seed);
      }
    } else {
      step_in(s, m);
      if (dice < 8) forward = !forward;
      if (dice < 14 && dice >= 8) {
        forward = true;
        const uint32_t far = (uint32_t)(rng_next(&rng) % (dice % 2 ? 4 : s->k.nr));
        OK(merge_skip(m, far));
        for (uint32_t n = 0; n < far && at < s->k.nr; n++) at = model_up(s, at + 1);
      } else if (forward) {
        if (dice % 3 == 0 || !merge_next_fast(m)) OK(merge_next(m));
        at = model_up(s, at + 1);
      } else {
        if (dice % 3 == 0 || !merge_prev_fast(m)) OK(merge_prev(m));
        at = model_down(s, at);
      }
      // sometimes the record is not looked at
      if (dice % 4) expect_at(s, m, at, forward ? "next" : "prev", seed);
      else assert_int_equal(merge_valid(m), at < s->k.nr);
    }
    if (!m->slot) leave(&s->p);
    if (nr_outside) fail_msg("seed %llu: step %u looked something up outside of an epoch", (unsigned long long)seed, i);
  }
  needed = NULL;
}

static void sweep(struct scene *s, struct merge *m, uint64_t seed) {
  uint32_t at = model_up(s, 0);
  needed = m->slot;
  enter(&s->p);
  OK(merge_seek(m, kref(NULL, 0)));
  seek_out(s, m);
  for (;; OK(merge_next(m)), at = model_up(s, at + 1)) {
    expect_at(s, m, at, "first to last", seed);
    if (at == s->k.nr) break;
  }
  at = model_down(s, s->k.nr);
  if (m->slot) enter(&s->p);
  OK(merge_seek_last(m));
  seek_out(s, m);
  for (;; OK(merge_prev(m)), at = model_down(s, at)) {
    expect_at(s, m, at, "last to first", seed);
    if (at == s->k.nr) break;
  }
  if (!m->slot) leave(&s->p);
  needed = NULL;
}

static void scene_check(const struct plan *plan, uint64_t seed) {
  struct scene s;
  uint32_t reach = (uint32_t)seed % 7 * 5;
  place_cold = seed % 5 < 3;
  scene_init(&s, plan, seed);
  struct merge m;
  merge_init(&m, seed % 2 ? s.p.queue : NULL);
  merge_learn(&m, seed % 5 == 1 ? 12 : 0, &reach);
  if (seed % 3) merge_use_epoch(&m, &s.p.epoch, &s.p.slot);
  merge_set(&m, s.active, s.frozen, s.version, s.moment);
  assert_false(merge_valid(&m));
  sweep(&s, &m, seed);
  walk(&s, &m, 1500, seed);
  merge_park(&m);
  assert_false(merge_valid(&m));
  merge_set(&m, s.active, s.frozen, s.version, s.moment);
  walk(&s, &m, 100, seed + 1);
  // sources change under a merge that stays: first the memtables only, as when they were compacted
  struct wh *empty;
  OK(wh_create(&s.p.epoch, 64 << 10, NULL, &empty));
  for (uint32_t a = 0; a < s.k.nr; a++) s.live[a] = s.disk[a] == TOMB ? NONE : s.disk[a];
  merge_set(&m, empty, NULL, s.version, s.moment);
  assert_false(merge_valid(&m));
  sweep(&s, &m, seed);
  walk(&s, &m, 200, seed + 2);
  // then the version, too: to one that has none of the young views, and back, from wherever it stands
  struct version *const older = version_old(&s);
  for (uint32_t i = 0; i < 6; i++) {
    for (uint32_t a = 0; a < s.k.nr; a++) {
      const uint32_t what = i % 2 ? s.disk[a] : s.old[a];
      s.live[a] = what == TOMB ? NONE : what;
    }
    merge_set(&m, empty, NULL, i % 2 ? s.version : older, s.moment);
    assert_false(merge_valid(&m));
    if (i < 2) sweep(&s, &m, seed);
    walk(&s, &m, 60, seed + 3 + i);
  }
  merge_park(&m);
  merge_fini(&m);
  wh_destroy(empty);
  version_unref(older);
  scene_fini(&s);
  place_cold = false;
}

static void test_model(void **state) {
  (void)state;
  static const struct plan plans[] = {
      {300, 200, 200, 4, 3, 4, 1 << 20},  // all of it
      {300, 200, 200, 4, 3, 4, 0},        // no cache
      {60, 400, 400, 3, 4, 3, 1 << 20},   // nearly all keys are everywhere
      {60, 400, 400, 3, 4, 3, 0},
      {400, 0, UINT32_MAX, 6, 3, 5, 1 << 20},  // partitions only
      {400, 0, 0, 1, 0, 5, 0},                 // nothing at all
      {200, 300, 0, 1, 0, 5, 0},               // one memtable only
      {200, 0, 300, 8, 0, 5, 0},               // the other
      {200, 300, 300, 8, 1, 2, 0},             // many tombstones, many partitions, some without a table
      {3, 6, 6, 2, 2, 3, 0},                   // hardly a key
      {1, 2, UINT32_MAX, 1, 1, 2, 0},
      {1500, 30, 30, 2, 5, 6, 1 << 20},   // long stretches of the partitions alone
      {1500, 30, 30, 60, 3, 3, 1 << 20},  // many small partitions, tombstones in all streams
      {1500, 300, 300, 60, 3, 2, 0},
      {1500, 40, 20, 4, 9, 2, 0},  // long deleted stretches, and segments of old versions
  };
  for (uint32_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++)
    for (uint64_t seed = 1; seed <= 4; seed++) scene_check(&plans[i], seed * 100 + i);
}

// The same within bounds, with sources that change, and with writers beside.
static void bounds_check(const struct plan *plan, uint64_t seed) {
  struct scene s;
  uint32_t reach = (uint32_t)seed % 7 * 5;
  static struct bounds b;
  place_cold = seed % 5 < 3;
  scene_init(&s, plan, seed);
  uint64_t rng = seed;
  for (uint32_t i = 0; i < 12; i++) {
    struct merge m;
    merge_init(&m, (seed + i) % 2 ? s.p.queue : NULL);
    merge_learn(&m, i % 5 == 1 ? 12 : 0, &reach);
    if ((seed + i) % 3) merge_use_epoch(&m, &s.p.epoch, &s.p.slot);
    if (i % 4) bounds_choose(&s, &m, &rng, &b);
    else bounds_none();
    keys_only = i % 2;
    if (keys_only) merge_keys_only(&m);
    merge_set(&m, s.active, s.frozen, s.version, s.moment);
    sweep(&s, &m, seed);
    walk(&s, &m, 300, seed + i);
    merge_park(&m);
    merge_set(&m, s.active, s.frozen, s.version, s.moment);
    walk(&s, &m, 30, seed + i + 50);
    merge_park(&m);
    merge_fini(&m);
  }
  keys_only = false;
  bounds_none();
  scene_fini(&s);
  place_cold = false;
}

static void test_bounds(void **state) {
  (void)state;
  static const struct plan plans[] = {
      {300, 200, 200, 4, 3, 4, 1 << 20},
      {300, 200, 200, 4, 3, 4, 0},
      {60, 400, 400, 3, 4, 3, 0},
      {400, 0, UINT32_MAX, 6, 3, 5, 1 << 20},
      {400, 0, 0, 1, 0, 5, 0},
      {200, 300, 300, 8, 1, 2, 0},
      {3, 6, 6, 2, 2, 3, 0},
      {1500, 30, 30, 2, 5, 6, 1 << 20},
      {1500, 30, 30, 60, 3, 3, 1 << 20},
      {1500, 300, 300, 60, 3, 2, 0},
      {1500, 40, 20, 4, 9, 2, 0},
      {6000, 8, UINT32_MAX, 2, 9, 5, 0},
      {20000, 100, UINT32_MAX, 2, 3, 5, 0},
  };
  for (scene_young = YOUNG_NOWHERE; scene_young < YOUNG_PLANS; scene_young++) {
    for (uint32_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++)
      for (uint64_t seed = 1; seed <= 2; seed++)
        bounds_check(&plans[i], seed_base + seed * 1000 + i * 10 + scene_young);
  }
  scene_young = YOUNG_EVERYWHERE;
  scene_long_keys = true;
  for (uint64_t seed = 1; seed <= 6; seed++)
    bounds_check(&(struct plan){200, 20, 20, 3, 3, 5, seed % 2 ? 1 << 20 : 0}, seed_base + seed);
  scene_long_keys = false;
  scene_young = YOUNG_NOWHERE;
}

static const struct plan plans_young[] = {
    {300, 200, 200, 4, 3, 4, 1 << 20},       // all of it
    {300, 200, 200, 4, 3, 4, 0},             // no cache
    {60, 400, 400, 3, 4, 3, 0},              // nearly all keys are everywhere
    {400, 0, UINT32_MAX, 6, 3, 5, 1 << 20},  // partitions only
    {400, 0, UINT32_MAX, 6, 3, 5, 0},
    {200, 300, 300, 8, 1, 2, 0},        // many tombstones, some partitions without a table
    {3, 6, 6, 2, 2, 3, 0},              // hardly a key
    {1500, 30, 30, 2, 5, 6, 1 << 20},   // long stretches of the partitions alone
    {1500, 30, 30, 60, 3, 3, 1 << 20},  // many small partitions
    {1500, 0, UINT32_MAX, 60, 3, 3, 0},
    {4000, 20, 20, 3, 3, 40, 1 << 20},  // few tombstones but the young views'
};

static void test_young(void **state) {
  (void)state;
  for (scene_young = YOUNG_SOME; scene_young < YOUNG_PLANS; scene_young++) {
    for (uint32_t i = 0; i < sizeof(plans_young) / sizeof(plans_young[0]); i++)
      for (uint64_t seed = 1; seed <= 3; seed++)
        scene_check(&plans_young[i], seed_base + seed * 1000 + i * 10 + scene_young);
  }
  scene_young = YOUNG_EVERYWHERE;
  // a seek, with `expect`, of a partition without a view; a young view comes behind it
  scene_check(&plans_young[6], 17072363117781);
  scene_long_keys = true;
  for (uint64_t seed = 1; seed <= 6; seed++)
    scene_check(&(struct plan){200, 20, 20, 3, 3, 5, seed % 2 ? 1 << 20 : 0}, seed_base + seed);
  scene_long_keys = false;
  scene_young = YOUNG_NOWHERE;
}

// ---- every place: a seek to it, and all ways of some steps from there

static void step_to(struct scene *s, struct merge *m, bool forward, uint32_t *at, uint64_t seed) {
  step_in(s, m);
  OK(forward ? merge_next(m) : merge_prev(m));
  if (!m->slot) leave(&s->p);
  *at = forward ? model_up(s, *at + 1) : model_down(s, *at);
  expect_at(s, m, *at, forward ? "every place: next" : "every place: prev", seed);
}

static uint32_t seek_to(struct scene *s, struct merge *m, struct kref key, bool backward, uint64_t seed) {
  const uint32_t rank = keyset_rank(&s->k, key);
  const uint32_t at = backward ? model_down(s, rank < s->k.nr && kv_eq(s->k.keys[rank], key) ? rank + 1 : rank)
                               : model_up(s, rank);
  enter(&s->p);
  OK(backward ? merge_seek_for_prev(m, key) : merge_seek(m, key));
  leave(&s->p);
  expect_at(s, m, at, backward ? "every place: seek_for_prev" : "every place: seek", seed);
  return at;
}

#define TURNS 4u  // steps

static void every_place(struct scene *s, struct merge *m, uint64_t seed) {
  uint8_t buf[KEY_NEAR_MAX];
  for (uint32_t a = 0; a < s->k.nr; a++) {
    for (uint32_t how = 0; how < 4; how++) {
      // the key, or the one right after it
      struct kref key = s->k.keys[a];
      if (how & 2) {
        if (key.len) memcpy(buf, key.ptr, key.len);
        buf[key.len] = 0;
        key = kref(buf, key.len + 1);
      }
      for (uint32_t ways = 0; ways < 1u << TURNS; ways++) {
        uint32_t at = seek_to(s, m, key, how & 1, seed);
        for (uint32_t i = 0; i < TURNS && at < s->k.nr; i++) step_to(s, m, ways >> i & 1, &at, seed);
      }
    }
  }
  // from both ends, so far as there is anything, and back
  for (uint32_t far = 0; far < s->k.nr; far++) {
    for (uint32_t way = 0; way < 2; way++) {
      enter(&s->p);
      OK(way ? merge_seek(m, kref(NULL, 0)) : merge_seek_last(m));
      leave(&s->p);
      uint32_t at = way ? model_up(s, 0) : model_down(s, s->k.nr), n = 0;
      for (; n < far && at < s->k.nr; n++) step_to(s, m, way, &at, seed);
      if (at == s->k.nr) continue;
      for (; n > 0; n--) step_to(s, m, !way, &at, seed);
      assert_int_equal(at, way ? model_up(s, 0) : model_down(s, s->k.nr));
    }
  }
  // skips of all lengths from everywhere, also right after a step back
  for (uint32_t a = model_up(s, 0), left = 1; a < s->k.nr; a = model_up(s, a + 1), left++) {
    for (uint32_t far = 0; far <= s->k.nr; far += 1 + far / 4) {
      uint32_t at = seek_to(s, m, s->k.keys[a], far % 2, seed);
      if (far % 3 == 0) step_to(s, m, false, &at, seed);
      if (at == s->k.nr) continue;
      step_in(s, m);
      OK(merge_skip(m, far));
      if (!m->slot) leave(&s->p);
      for (uint32_t n = 0; n < far && at < s->k.nr; n++) at = model_up(s, at + 1);
      expect_at(s, m, at, "every place: skip", seed);
    }
  }
}

static void test_every_place(void **state) {
  (void)state;
  static const struct plan plans[] = {
      {40, 0, UINT32_MAX, 1, 2, 5, 1 << 20},  {40, 0, UINT32_MAX, 4, 2, 5, 1 << 20},  {40, 8, 8, 4, 2, 4, 1 << 20},
      {40, 0, UINT32_MAX, 12, 2, 6, 1 << 20}, {120, 2, UINT32_MAX, 3, 2, 9, 1 << 20},
  };
  for (scene_young = YOUNG_NOWHERE; scene_young < YOUNG_PLANS; scene_young++) {
    for (uint32_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++) {
      const uint64_t seed = seed_base + 7000 + i * 10 + scene_young;
      struct scene s;
      place_cold = seed % 3 == 0;
      scene_init(&s, &plans[i], seed);
      struct merge m;
      merge_init(&m, place_cold ? s.p.queue : NULL);
      if (seed % 2) merge_use_epoch(&m, &s.p.epoch, &s.p.slot);
      merge_set(&m, s.active, s.frozen, s.version, s.moment);
      every_place(&s, &m, seed);
      merge_park(&m);
      static struct bounds b;
      uint64_t rng = seed;
      for (uint32_t n = 0; n < 3; n++) {
        bounds_choose(&s, &m, &rng, &b);
        merge_set(&m, s.active, s.frozen, s.version, s.moment);
        every_place(&s, &m, seed);
        merge_park(&m);
      }
      bounds_none();
      merge_fini(&m);
      scene_fini(&s);
      place_cold = false;
    }
  }
  scene_young = YOUNG_NOWHERE;
}

// A parked merge holds nothing of its sources, and one that is set again has them all.
static void test_young_parked(void **state) {
  (void)state;
  scene_young = YOUNG_EVERYWHERE;
  uint32_t scenes = 0;
  for (uint64_t seed = 1; seed <= 12; seed++) {
    struct scene s;
    scene_init(&s, &(struct plan){400, 0, UINT32_MAX, 3, 3, 9, 1 << 20}, seed_base + seed);
    if (s.version->nr_young == 0) {
      scene_fini(&s);
      continue;
    }
    scenes++;
    struct merge m;
    merge_init(&m, NULL);
    for (uint32_t i = 0; i < 3; i++) {
      merge_set(&m, s.active, s.frozen, s.version, s.moment);
      walk(&s, &m, 50, seed);
      seek_to(&s, &m, kref(NULL, 0), false, seed);
      assert_non_null(m.young.x);
      merge_park(&m);
      assert_false(merge_valid(&m));
      assert_null(m.young.x);
      assert_null(m.remix.x);
    }
    merge_fini(&m);
    scene_fini(&s);
  }
  scene_young = YOUNG_NOWHERE;
  assert_true(scenes > 0);
}

// Everything is deleted: by the newest stream, by the partitions' own tombstones, or both; and there are tombstones in
// young views, too.
static void test_all_deleted(void **state) {
  (void)state;
  for (uint32_t n = 0; n < 9; n++) {
    const uint32_t where = n / 3;
    scene_young = n % 3 == 0 ? YOUNG_NOWHERE : n % 3 == 1 ? YOUNG_EVERYWHERE : YOUNG_SOME;
    struct scene s;
    scene_init(&s, &(struct plan){200, 0, 0, 3, 3, where == 1 ? 1 : 4, 0}, 5 + n);
    for (uint32_t a = 0; a < s.k.nr; a++) {
      if (where != 1) mem_put(&s.p, where ? s.frozen : s.active, s.k.keys[a], TOMB, VALUE, 5000 + a);
      s.live[a] = NONE;
    }
    s.moment = 10000;
    struct merge m;
    merge_init(&m, NULL);
    merge_set(&m, s.active, s.frozen, s.version, s.moment);
    sweep(&s, &m, n);
    walk(&s, &m, 300, n);
    merge_park(&m);
    merge_fini(&m);
    scene_fini(&s);
  }
  scene_young = YOUNG_NOWHERE;
}

// Writers go on while a thread reads at a moment: the reader sees none of their writes, in any direction.
static void test_while_written(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 6; seed++) {
    struct scene s;
    scene_young = seed % 2 ? YOUNG_EVERYWHERE : YOUNG_NOWHERE;
    scene_init(&s, &(struct plan){300, 150, 100, 3, 2, 4, 0}, seed);
    struct merge m;
    merge_init(&m, NULL);
    merge_set(&m, s.active, s.frozen, s.version, s.moment);
    uint64_t rng = seed, seq = 100000;
    for (uint32_t i = 0; i < 60; i++) {
      for (uint32_t n = 0; n < 20; n++)
        mem_put(&s.p, s.active, s.k.keys[rng_next(&rng) % s.k.nr], n % 3 ? 70000 + n : TOMB, VALUE, ++seq);
      walk(&s, &m, 30, seed * 1000 + i);
    }
    merge_park(&m);
    merge_fini(&m);
    scene_fini(&s);
  }
  scene_young = YOUNG_NOWHERE;
}

// A round hands records back while a merge stands somewhere: the merge shows each key once, in order, also where it
// turns round.
static void test_handed_back(void **state) {
  (void)state;
  handing_back = true;
  for (uint64_t seed = 1; seed <= 40; seed++) {
    struct scene s;
    scene_young = seed % 4 ? YOUNG_NOWHERE : YOUNG_EVERYWHERE;
    scene_init(&s, &(struct plan){300, (uint32_t)seed % 5 * 10, 250, 3, 2, 4, 0}, seed);
    struct merge m;
    struct bounds b;
    uint64_t rng = seed;
    merge_init(&m, NULL);
    if (seed % 3) merge_use_epoch(&m, &s.p.epoch, &s.p.slot);
    if (seed % 8 == 7) bounds_choose(&s, &m, &rng, &b);
    merge_set(&m, s.active, s.frozen, s.version, s.moment);
    walk(&s, &m, 400, seed);
    merge_park(&m);
    merge_fini(&m);
    bounds_none();
    scene_fini(&s);
  }
  handing_back = false;
  scene_young = YOUNG_NOWHERE;
}

// ---- failures

static const struct plan plan_fail = {500, 60, 60, 3, 3, 5, 0};

// A record that cannot be read is tried again, or is not: the iterator stands where it stood, and moves on from there.
static void test_record_fails(void **state) {
  (void)state;
  nr_failed = 0;
  for (uint64_t seed = 20; seed < 29; seed++) {
    struct scene s;
    scene_young = seed < 26 ? YOUNG_NOWHERE : YOUNG_EVERYWHERE;
    scene_init(&s, &(struct plan){6000, 8, UINT32_MAX, 2, 9, 5, 0},
               seed);  // tables of many blocks, few other keys, no cache
    struct merge m;
    merge_init(&m, NULL);
    merge_set(&m, s.active, s.frozen, s.version, s.moment);
    fail_first = true;
    walk(&s, &m, 1500, seed);
    fail_first = false;
    merge_park(&m);
    merge_fini(&m);
    scene_fini(&s);
  }
  scene_young = YOUNG_NOWHERE;
  assert_true(nr_failed > 300);
}

// A read that fails gives a status and an iterator that is not valid; the next seek starts afresh.
static void read_fails(void) {
  struct scene s;
  scene_init(&s, &plan_fail, 11);
  nr_young_failed = 0;
  uint32_t failed = 0, seeks = 0, steps = 0;
  for (int64_t n = 1; n < 240; n++) {
    struct merge m;
    struct kv_rec r;
    merge_init(&m, NULL);
    merge_set(&m, s.active, s.frozen, s.version, s.moment);
    uint64_t rng = (uint64_t)n;
    for (uint32_t i = 0; i < 400; i++) {
      if (i == 2) fault_io_set(FAULT_READ, 1 + n % 60, false);  // before all blocks are cached
      enter(&s.p);
      bool moved = true;
      enum remixdb_status got;
      const uint32_t dice = (uint32_t)(rng_next(&rng) % 10);
      const bool was = merge_valid(&m);
      if (!was || dice == 0) {
        const struct kref key = s.k.keys[rng_next(&rng) % s.k.nr];
        got = dice % 2 ? merge_seek(&m, key) : merge_seek_for_prev(&m, key);
        seeks += got != REMIXDB_OK;
      } else if (dice < 6) {
        got = dice < 4 ? merge_next(&m) : merge_prev(&m);
        steps += got != REMIXDB_OK;
      } else {
        got = merge_record(&m, &r);
        moved = false;
        const struct kref key = kref(r.key, r.klen);
        if (got == REMIXDB_OK) assert_true(value_is(&r, key, s.live[keyset_rank(&s.k, key)], VALUE));
      }
      leave(&s.p);
      if (got == REMIXDB_OK) continue;
      FAILS(got, REMIXDB_IO);
      assert_non_null(strstr(err_msg(), s.p.dir));
      if (moved) assert_false(merge_valid(&m));
      failed++;
    }
    (void)fault_io_end();
    walk(&s, &m, 100, (uint64_t)n);  // it works again
    merge_park(&m);
    merge_fini(&m);
  }
  assert_true(failed > 20 && seeks > 0 && steps > 0);
  assert_int_equal(nr_young_failed > 0, s.version->nr_young > 0);
  scene_fini(&s);
}

static void test_read_fails(void **state) {
  (void)state;
  for (scene_young = YOUNG_NOWHERE; scene_young < YOUNG_PLANS; scene_young++) read_fails();
  scene_young = YOUNG_NOWHERE;
}

// Damage that stays: every read is right or an error, and no walk goes round in circles.
static void damaged(bool young) {
  struct scene s;
  scene_init(&s, &(struct plan){6000, 60, 60, 3, 3, 5, 0}, 12);
  for (uint32_t i = 0; i < s.version->nr_parts; i++) {
    const struct remix *x = young ? s.version->parts[i]->young : s.version->parts[i]->remix;
    if (!x) continue;
    FILE *f = fopen(x->runs[0]->path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, 100, SEEK_SET), 0);
    assert_int_equal(fwrite("damaged, damaged", 1, 16, f), 16);
    assert_int_equal(fclose(f), 0);
  }
  struct merge m;
  struct kv_rec r;
  merge_init(&m, NULL);
  merge_set(&m, s.active, s.frozen, s.version, s.moment);
  uint32_t good = 0, bad = 0;
  for (uint32_t a = 0; a < s.k.nr; a++) {
    enter(&s.p);
    enum remixdb_status got = merge_seek(&m, s.k.keys[a]);
    if (got == REMIXDB_OK && merge_valid(&m)) got = merge_record(&m, &r);
    if (got == REMIXDB_OK) {
      good++;
      const uint32_t at = model_up(&s, a);
      assert_int_equal(merge_valid(&m), at < s.k.nr);
      if (merge_valid(&m)) {
        assert_true(kv_eq(kref(r.key, r.klen), s.k.keys[at]));
        assert_true(value_is(&r, s.k.keys[at], s.live[at], VALUE));
      }
    } else {
      FAILS(got, REMIXDB_CORRUPT);
      bad++;
    }
    leave(&s.p);
  }
  assert_true(good > 0 && bad > 0);
  merge_park(&m);
  merge_fini(&m);
  scene_fini(&s);
}

static void test_damaged(void **state) {
  (void)state;
  damaged(false);
  scene_young = YOUNG_EVERYWHERE;
  damaged(false);
  damaged(true);
  scene_young = YOUNG_NOWHERE;
}

static void no_memory(void) {
  struct scene s;
  nr_young_failed = 0;
  scene_init(&s, &(struct plan){500, 60, 60, 4, 8, 5, 0}, 13);  // holds and blocks of many tables
  uint32_t failed = 0;
  for (int64_t n = 1;; n++) {
    struct merge m;
    merge_init(&m, s.p.queue);
    merge_set(&m, s.active, s.frozen, s.version, s.moment);
    uint64_t rng = 5;
    bool turned = false;
    fault_mem_set(n);
    for (uint32_t i = 0; i < 600; i++) {
      enter(&s.p);
      enum remixdb_status got;
      if (!merge_valid(&m)) got = i % 3 ? merge_seek(&m, s.k.keys[rng_next(&rng) % s.k.nr]) : merge_seek_last(&m);
      else got = rng_next(&rng) % 3 ? merge_next(&m) : merge_prev(&m);
      leave(&s.p);
      if (got == REMIXDB_OK) continue;
      FAILS(got, REMIXDB_NOMEM);
      assert_false(merge_valid(&m));
      turned = true;
    }
    const bool any = fault_mem_end();
    failed += turned;
    walk(&s, &m, 50, (uint64_t)n);
    merge_park(&m);
    merge_fini(&m);
    if (!any) break;
  }
  assert_true(failed > 5);
  assert_int_equal(nr_young_failed > 0, s.version->nr_young > 0);
  scene_fini(&s);
}

static void test_no_memory(void **state) {
  (void)state;
  for (scene_young = YOUNG_NOWHERE; scene_young < YOUNG_PLANS; scene_young++) no_memory();
  scene_young = YOUNG_NOWHERE;
}

// Up to where the partitions come before the next newer key is found out when steps have passed a whole segment after
// the one where it was first compared, not before; from there on a step does not look at it. Both ways.
struct since {
  uint32_t passed_one, exact;
};
static void since_check(const struct merge *m, uint32_t since, struct since *sum) {
  const uint32_t seg = m->remix.seg, gone = m->backward ? since - seg : seg - since;
  assert_int_equal(m->since, since);
  assert_int_equal(m->clear_found, gone > 1);
  sum->passed_one += gone == 1;
  sum->exact += m->clear_found;
  if (m->clear_found) {
    const uint32_t part = version_find(m->version, m->new_key);
    assert_int_equal(m->clear, part > m->part   ? UINT32_MAX
                               : part < m->part ? 0
                                                : remix_segment(m->remix.x, m->new_key) + m->backward);
  }
  const bool clear = m->clear_found && (m->backward ? seg >= m->clear : seg < m->clear);
  if (m->at == MERGE_PARTS && m->same == 1u << MERGE_PARTS)
    assert_int_equal(m->near, m->backward ? (clear ? MERGE_BACK_ALONE : MERGE_BACK_BESIDE)
                                          : (clear ? MERGE_ALONE : MERGE_BESIDE));
}
static void since_walk(struct scene *s, bool backward, struct since *sum) {
  struct merge m;
  merge_init(&m, NULL);
  merge_set(&m, s->active, s->frozen, s->version, s->moment);
  enter(&s->p);
  OK(backward ? merge_seek_last(&m) : merge_seek(&m, kref(NULL, 0)));
  const uint8_t *key = NULL;
  uint32_t part = UINT32_MAX, since = 0;
  for (uint32_t n = 0; merge_valid(&m); n++) {
    if (m.new_at == MERGE_NONE || !parts_valid(&m)) break;
    if (m.new_key.ptr != key || m.part != part) since = m.remix.seg;
    key = m.new_key.ptr;
    part = m.part;
    since_check(&m, since, sum);
    if (n % 3 && (backward ? merge_prev_fast(&m) : merge_next_fast(&m))) continue;
    OK(backward ? merge_prev(&m) : merge_next(&m));
  }
  leave(&s->p);
  merge_park(&m);
  merge_fini(&m);
}
static void test_since(void **state) {
  (void)state;
  struct since sums[2] = {{0}};
  for (uint64_t seed = 1; seed <= 6; seed++) {
    struct scene s;
    scene_init(&s, &(struct plan){4000, 12, 12, 1 + seed % 3, 3, 50, 1 << 20}, seed);
    since_walk(&s, false, &sums[0]);
    since_walk(&s, true, &sums[1]);
    scene_fini(&s);
  }
  for (uint32_t i = 0; i < 2; i++) assert_true(sums[i].passed_one > 100 && sums[i].exact > 100);
}

// Goes through all keys, and counts the steps, and those that are plain steps within a segment.
static void fast_steps(struct scene *s, struct merge *m, bool backward, uint32_t *steps, uint32_t *fast) {
  uint32_t at = backward ? model_down(s, s->k.nr) : model_up(s, 0);
  OK(backward ? merge_seek_last(m) : merge_seek(m, kref(NULL, 0)));
  for (; merge_valid(m); ++*steps) {
    expect_at(s, m, at, backward ? "back" : "on", 0);
    const bool plain = backward ? merge_prev_fast(m) : merge_next_fast(m);
    *fast += plain;
    if (!plain) OK(backward ? merge_prev(m) : merge_next(m));
    at = backward ? model_down(s, at) : model_up(s, at + 1);
  }
  assert_int_equal(at, s->k.nr);
}

// If a partition alone has keys, and no old versions, most steps are plain ones, both ways. The others are the first
// step of a segment, and those at which a group of records is prefetched. Few newer keys change little, also where each
// segment has one or two: they only need the other record's block.
static void count_fast_steps(const struct plan *plan) {
  uint32_t steps[2] = {0}, fast[2] = {0};
  for (uint32_t seed = 1; seed <= 6; seed++) {
    struct scene s;
    struct merge m;
    scene_init(&s, plan, seed);
    merge_init(&m, NULL);
    enter(&s.p);
    for (uint32_t backward = 0; backward < 2; backward++) {
      merge_set(&m, s.active, s.frozen, s.version, s.moment);
      fast_steps(&s, &m, backward, &steps[backward], &fast[backward]);
    }
    merge_park(&m);
    leave(&s.p);
    merge_fini(&m);
    scene_fini(&s);
  }
  for (uint32_t i = 0; i < 2; i++)
    if (steps[i] < 4000 || fast[i] < steps[i] / 4 * 3) fail_msg("%u of %u steps, backward %u", fast[i], steps[i], i);
}
static void test_fast_steps(void **state) {
  (void)state;
  count_fast_steps(&(struct plan){4000, 0, UINT32_MAX, 1, 1, 1000000, 4 << 20});
  count_fast_steps(&(struct plan){4000, 12, UINT32_MAX, 1, 1, 1000000, 4 << 20});
  count_fast_steps(&(struct plan){4000, 150, UINT32_MAX, 1, 1, 1000000, 4 << 20});
}

// ---- gaps: long runs of tombstones in both memtables, over tables and over each other; keys that come to where they
// are; moments before and after that

struct swept {
  struct scene s;
  uint32_t *mem[2];  // the states of each key in the frozen and the active memtable
  uint64_t seq, rng;
};

static void swept_put(struct swept *w, uint32_t mem, uint32_t key, bool tomb) {
  struct scene *const s = &w->s;
  const uint32_t what = tomb ? TOMB : 30000 + (uint32_t)w->seq;
  mem_put(&s->p, mem ? s->active : s->frozen, s->k.keys[key], what, VALUE, ++w->seq);
  w->mem[mem][key] = what;
}

static void swept_range(struct swept *w, uint32_t mem) {
  static const uint32_t dense[] = {100, 100, 60, 20};
  const uint32_t nr = w->s.k.nr, from = rng_next(&w->rng) % 3 ? (uint32_t)(rng_next(&w->rng) % nr) : 0;
  const uint32_t len = (uint32_t)(rng_next(&w->rng) % (nr * 3 / 4)), of = dense[rng_next(&w->rng) % 4];
  const uint32_t puts = (uint32_t)(rng_next(&w->rng) % 3);
  for (uint32_t k = from; k < nr && k < from + len; k++)
    if (rng_next(&w->rng) % 100 < of) swept_put(w, mem, k, rng_next(&w->rng) % 100 >= puts);
}

static void swept_live(const struct swept *w, uint32_t *live) {
  for (uint32_t k = 0; k < w->s.k.nr; k++) {
    const uint32_t what = w->mem[1][k] ? w->mem[1][k] : w->mem[0][k] ? w->mem[0][k] : w->s.disk[k];
    live[k] = what == TOMB ? NONE : what;
  }
}

static void swept_check(struct swept *w, uint64_t seed) {
  struct scene *const s = &w->s;
  char why[200];
  uint32_t *const then = calloc(s->k.nr, sizeof(*then)), *const now = s->live;
  uint64_t moment = w->seq;
  struct merge m;
  swept_live(w, then);
  merge_init(&m, NULL);
  if (seed % 2) merge_use_epoch(&m, &s->p.epoch, &s->p.slot);
  for (uint32_t round = 0; round < 14; round++) {
    swept_live(w, now);
    merge_set(&m, s->active, s->frozen, s->version, s->moment = w->seq);
    if (round % 5 == 0) sweep(s, &m, seed);
    walk(s, &m, 150, seed + round);
    s->live = then;
    merge_set(&m, s->active, s->frozen, s->version, moment);
    walk(s, &m, 50, seed + round);
    s->live = now;
    if (round % 4 == 0) {
      moment = w->seq;
      memcpy(then, now, s->k.nr * sizeof(*then));
    }
    const bool again = rng_next(&w->rng) % 4 == 0;
    if (again) swept_range(w, 1);
    for (uint32_t i = 0; i < 20; i++)
      swept_put(w, 1, (uint32_t)(rng_next(&w->rng) % s->k.nr), rng_next(&w->rng) % 100 < 40);
    const bool whole = wh_gaps_check(s->active, why, sizeof(why)) && wh_gaps_check(s->frozen, why, sizeof(why));
    if (!whole) fail_msg("seed %llu: %s", (unsigned long long)seed, why);
  }
  merge_park(&m);
  merge_fini(&m);
  free(then);
}

static void test_swept(void **state) {
  (void)state;
  for (uint64_t seed = seed_base; seed < seed_base + (LIB_SANITIZED ? 6 : 30); seed++) {
    struct swept w = {.rng = seed, .seq = 1000};
    scene_young = seed % 3 == 0 ? YOUNG_SOME : YOUNG_NOWHERE;
    scene_init(&w.s, &(struct plan){1500, 0, 0, 3, 3, 5, 1 << 20}, seed);
    for (uint32_t i = 0; i < 2; i++) {
      w.mem[i] = calloc(w.s.k.nr, sizeof(uint32_t));
      for (uint32_t n = (uint32_t)(rng_next(&w.rng) % 4); n; n--) swept_range(&w, i);
    }
    swept_check(&w, seed);
    scene_fini(&w.s);
    for (uint32_t i = 0; i < 2; i++) free(w.mem[i]);
  }
  scene_young = YOUNG_NOWHERE;
}

// ---- a frozen memtable's gap excludes keys that the active one hid

#define HIDDEN 2u  // this key of the range lies in a table, and the active memtable alone hides it
#define RANGE 40u  // the other keys of the range have tombstones in the frozen memtable

static void frozen_gap_is(struct scene *s, uint32_t key, bool backward, bool expected) {
  struct wh_cursor c;
  struct kref to;
  uint64_t until = 0;
  enter(&s->p);
  wh_cursor_init(&c, s->frozen, s->moment);
  wh_seek(&c, s->k.keys[key]);
  assert_true(wh_valid(&c));
  assert_int_equal(wh_gap(&c, s->k.keys[key], backward, 0, &to, &until), expected);
  leave(&s->p);
}

static void seek_expects(struct scene *s, struct merge *m, uint32_t from, bool backward, uint32_t at) {
  enter(&s->p);
  OK(backward ? merge_seek_for_prev(m, s->k.keys[from]) : merge_seek(m, s->k.keys[from]));
  expect_at(s, m, at, backward ? "backward" : "forward", 0);
  leave(&s->p);
}

// All tombstones lie in one leaf. The first four that the making seek passes include the active memtable's.
static void frozen_gap(struct scene *s, uint32_t first, bool backward) {
  const uint32_t last = first + RANGE - 1, hidden = backward ? last - HIDDEN : first + HIDDEN;
  const uint32_t from = backward ? last : first, to = backward ? first : last;
  struct merge m;
  merge_init(&m, NULL);
  for (uint32_t a = first; a <= last; a++)
    if (a != hidden) mem_put(&s->p, s->frozen, s->k.keys[a], s->live[a] = TOMB, VALUE, 1000 + a);
  const uint64_t before = 1000 + last;
  mem_put(&s->p, s->active, s->k.keys[hidden], TOMB, VALUE, before + 1);
  for (uint32_t a = 0; a < s->k.nr; a++)
    s->live[a] = (a >= first && a <= last) || s->disk[a] == TOMB ? NONE : s->disk[a];
  // The newest moment: the seek passes the range and leaves a gap.
  merge_set(&m, s->active, s->frozen, s->version, s->moment = before + 1);
  seek_expects(s, &m, from, backward, backward ? model_down(s, first) : model_up(s, last + 1));
  frozen_gap_is(s, from, backward, false);
  frozen_gap_is(s, to, !backward, true);
  // A moment that the frozen memtable's tombstones precede and the active one's does not: the hidden key is there. Both
  // directions reach it, in this super and in the one from before the freeze.
  s->live[hidden] = s->disk[hidden];
  s->moment = before;
  for (uint32_t i = 0; i < 2; i++) {
    merge_set(&m, i ? s->frozen : s->active, i ? NULL : s->frozen, s->version, s->moment);
    seek_expects(s, &m, from, backward, hidden);
    seek_expects(s, &m, to, !backward, hidden);
  }
  merge_park(&m);
  merge_fini(&m);
}

static void test_frozen_gap(void **state) {
  (void)state;
  uint32_t tested[2] = {0, 0};
  for (uint64_t seed = 1; seed <= 16; seed++) {
    struct scene s;
    const bool backward = seed % 2;
    scene_init(&s, &(struct plan){600, 0, 0, 1, 3, 50, 1 << 20}, seed);
    for (uint32_t first = s.k.nr / 4; first + RANGE < s.k.nr; first++) {
      if (s.disk[backward ? first + RANGE - 1 - HIDDEN : first + HIDDEN] <= TOMB) continue;
      frozen_gap(&s, first, backward);
      tested[backward]++;
      break;
    }
    scene_fini(&s);
  }
  assert_true(tested[false] > 3 && tested[true] > 3);
}

int main(void) {
  const char *const given = getenv("TEST_SEED");
  seed_base = given ? strtoull(given, NULL, 0) : time_ns();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_model),       cmocka_unit_test(test_young),         cmocka_unit_test(test_every_place),
      cmocka_unit_test(test_bounds),      cmocka_unit_test(test_since),         cmocka_unit_test(test_young_parked),
      cmocka_unit_test(test_all_deleted), cmocka_unit_test(test_while_written), cmocka_unit_test(test_handed_back),
      cmocka_unit_test(test_read_fails),  cmocka_unit_test(test_record_fails),  cmocka_unit_test(test_damaged),
      cmocka_unit_test(test_no_memory),   cmocka_unit_test(test_swept),         cmocka_unit_test(test_frozen_gap),
      cmocka_unit_test(test_fast_steps),
  };
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  if (failed) fprintf(stderr, "repeat with TEST_SEED=%llu\n", (unsigned long long)seed_base);
  return failed;
}
