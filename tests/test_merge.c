// SPDX-License-Identifier: Apache-2.0
//
// The merge of two memtables and the partitions against an array, at random moments and in all directions. merge.c is compiled into this
// program with a look at the epoch before each call that needs one.
#include "merge.h"

static const struct epoch_slot *needed;  // whose epoch a look-up needs; NULL: it is not asked
static uint64_t nr_inside, nr_outside;   // look-ups

static void look_up(void) {
  if (!needed) return;
  if (atomic_load(&needed->at)) nr_inside++;
  else nr_outside++;
}
static void inside_want(struct wh_cursor *c, struct kref key) { look_up(), wh_want(c, key); }
static void inside_seek(struct wh_cursor *c, struct kref key) { look_up(), wh_seek(c, key); }
static void inside_seek_for_prev(struct wh_cursor *c, struct kref key) { look_up(), wh_seek_for_prev(c, key); }
static void inside_seek_last(struct wh_cursor *c) { look_up(), wh_seek_last(c); }
static enum remixdb_status inside_remix_seek(struct remix_cursor *c, struct kref key) { return look_up(), remix_seek(c, key); }
static enum remixdb_status inside_remix_seek_for_prev(struct remix_cursor *c, struct kref key) { return look_up(), remix_seek_for_prev(c, key); }
static enum remixdb_status inside_remix_record(struct remix_cursor *c, struct kv_rec *r) { return look_up(), remix_record(c, r); }
#define wh_want inside_want
#define wh_seek inside_seek
#define wh_seek_for_prev inside_seek_for_prev
#define wh_seek_last inside_seek_last
#define remix_seek inside_remix_seek
#define remix_seek_for_prev inside_remix_seek_for_prev
#define remix_record inside_remix_record
#include "merge.c"
#undef wh_want
#undef wh_seek
#undef wh_seek_for_prev
#undef wh_seek_last
#undef remix_seek
#undef remix_seek_for_prev
#undef remix_record

#include "scene.h"

// The next live key at or after `at`, or before or at it; nr: none.
static uint32_t model_up(const struct scene *s, uint32_t at) {
  while (at < s->k.nr && s->live[at] == NONE) at++;
  return at;
}
static uint32_t model_down(const struct scene *s, uint32_t end) {
  while (end > 0 && s->live[end - 1] == NONE) end--;
  return end ? end - 1 : s->k.nr;
}

// Reading the record fails the first time, when something has to be read for it.
static bool fail_first;
static uint32_t nr_failed;

static void record(struct merge *m, struct kv_rec *rec_out) {
  if (fail_first) {
    fault_io_set(FAULT_READ, 1, false);
    const enum remixdb_status st = merge_record(m, rec_out);
    (void)fault_io_end();
    if (st == REMIXDB_OK) return;
    assert_int_equal(st, REMIXDB_IO);
    assert_true(merge_valid(m));
    nr_failed++;
    if (nr_failed % 3 == 0) return;  // and is not tried again: what comes next must not notice
  }
  ok(merge_record(m, rec_out));
}

static void expect_at(struct scene *s, struct merge *m, uint32_t at, const char *what, uint64_t seed) {
  struct kv_rec r;
  if (merge_valid(m) != (at < s->k.nr))
    fail_msg("seed %llu: %s: %s", (unsigned long long)seed, what, merge_valid(m) ? "valid" : "not valid");
  if (!merge_valid(m)) return;
  r.key = NULL;
  record(m, &r);
  if (!r.key && fail_first) return;
  const uint32_t rank = keyset_rank(&s->k, kref(r.key, r.klen));
  if (rank != at || !kv_eq(kref(r.key, r.klen), s->k.keys[at]))
    fail_msg("seed %llu: %s: at key %u, %u expected", (unsigned long long)seed, what, rank, at);
  if (!value_is(&r, s->k.keys[at], s->live[at], VALUE))
    fail_msg("seed %llu: %s: value of key %u", (unsigned long long)seed, what, at);
}

// A merge that was lent the slot enters by itself, but for a seek.
static void step_in(struct scene *s, const struct merge *m) {
  if (!m->slot) enter(&s->p);
}
static void seek_out(struct scene *s, const struct merge *m) {
  if (m->slot) leave(&s->p);
}

static void walk(struct scene *s, struct merge *m, uint32_t steps, uint64_t seed) {
  uint64_t rng = seed;
  needed = m->slot;
  uint32_t at = s->k.nr;
  bool forward = true;
  for (uint32_t i = 0; i < steps; i++) {
    uint8_t buf[256];
    const uint32_t dice = (uint32_t)(rng_next(&rng) % 40);
    if (at == s->k.nr || dice < 3) {
      enter(&s->p);
      const struct kref key = kref(buf, key_near(s, &rng, buf));
      const uint32_t rank = keyset_rank(&s->k, key);
      if (dice % 3 == 0) {
        ok(merge_seek_last(m));
        seek_out(s, m);
        at = model_down(s, s->k.nr);
        expect_at(s, m, at, "seek_last", seed);
      } else if (dice % 3 == 1) {
        ok(merge_seek(m, key));
        seek_out(s, m);
        at = model_up(s, rank);
        expect_at(s, m, at, "seek", seed);
      } else {
        ok(merge_seek_for_prev(m, key));
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
        ok(merge_skip(m, far));
        for (uint32_t n = 0; n < far && at < s->k.nr; n++) at = model_up(s, at + 1);
      } else if (forward) {
        if (dice % 3 == 0 || !merge_next_near(m)) ok(merge_next(m));
        at = model_up(s, at + 1);
      } else {
        ok(merge_prev(m));
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
  ok(merge_seek(m, kref(NULL, 0)));
  seek_out(s, m);
  for (;; ok(merge_next(m)), at = model_up(s, at + 1)) {
    expect_at(s, m, at, "first to last", seed);
    if (at == s->k.nr) break;
  }
  at = model_down(s, s->k.nr);
  if (m->slot) enter(&s->p);
  ok(merge_seek_last(m));
  seek_out(s, m);
  for (;; ok(merge_prev(m)), at = model_down(s, at)) {
    expect_at(s, m, at, "last to first", seed);
    if (at == s->k.nr) break;
  }
  if (!m->slot) leave(&s->p);
  needed = NULL;
}

static void scene_check(const struct plan *plan, uint64_t seed) {
  struct scene s;
  scene_init(&s, plan, seed);
  struct merge m;
  merge_init(&m, seed % 2 ? s.p.queue : NULL);
  if (seed % 3) merge_lend(&m, &s.p.epoch, &s.p.slot);
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
  ok(wh_create(&s.p.epoch, 64 << 10, NULL, &empty));
  for (uint32_t a = 0; a < s.k.nr; a++) s.live[a] = s.disk[a] == TOMB ? NONE : s.disk[a];
  merge_set(&m, empty, NULL, s.version, s.moment);
  assert_false(merge_valid(&m));
  sweep(&s, &m, seed);
  walk(&s, &m, 200, seed + 2);
  merge_park(&m);
  merge_fini(&m);
  wh_destroy(empty);
  scene_fini(&s);
}

static void test_model(void **state) {
  (void)state;
  static const struct plan plans[] = {
      {300, 200, 200, 4, 3, 4, 1 << 20},    // all of it
      {300, 200, 200, 4, 3, 4, 0},          // no cache
      {60, 400, 400, 3, 4, 3, 1 << 20},     // nearly all keys are everywhere
      {60, 400, 400, 3, 4, 3, 0},
      {400, 0, UINT32_MAX, 6, 3, 5, 1 << 20},  // partitions only
      {400, 0, 0, 1, 0, 5, 0},              // nothing at all
      {200, 300, 0, 1, 0, 5, 0},            // one memtable only
      {200, 0, 300, 8, 0, 5, 0},            // the other
      {200, 300, 300, 8, 1, 2, 0},          // many tombstones, many partitions, some without a table
      {3, 6, 6, 2, 2, 3, 0},                // hardly a key
      {1, 2, UINT32_MAX, 1, 1, 2, 0},
      {1500, 30, 30, 2, 5, 6, 1 << 20},     // long stretches of the partitions alone
      {1500, 30, 30, 60, 3, 3, 1 << 20},    // many small partitions, tombstones in all streams
      {1500, 300, 300, 60, 3, 2, 0},
      {1500, 40, 20, 4, 9, 2, 0},           // long deleted stretches, and segments of old versions
  };
  for (uint32_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++)
    for (uint64_t seed = 1; seed <= 4; seed++) scene_check(&plans[i], seed * 100 + i);
}

// Everything is deleted: by the newest stream, by the partitions' own tombstones, or both.
static void test_all_deleted(void **state) {
  (void)state;
  for (uint32_t where = 0; where < 3; where++) {
    struct scene s;
    scene_init(&s, &(struct plan){200, 0, 0, 3, 3, where == 1 ? 1 : 4, 0}, 5 + where);
    for (uint32_t a = 0; a < s.k.nr; a++) {
      if (where != 1) mem_put(&s.p, where ? s.frozen : s.active, s.k.keys[a], TOMB, VALUE, 5000 + a);
      s.live[a] = NONE;
    }
    s.moment = 10000;
    struct merge m;
    merge_init(&m, NULL);
    merge_set(&m, s.active, s.frozen, s.version, s.moment);
    sweep(&s, &m, where);
    walk(&s, &m, 300, where);
    merge_park(&m);
    merge_fini(&m);
    scene_fini(&s);
  }
}

// Writers go on while somebody reads at a moment: what they write is not seen, in any direction.
static void test_while_written(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 6; seed++) {
    struct scene s;
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
}

// ---- what can fail

static const struct plan plan_fail = {500, 60, 60, 3, 3, 5, 0};

// A record that cannot be read is tried again, or is not: the iterator stands where it stood, and moves on from there.
static void test_record_fails(void **state) {
  (void)state;
  nr_failed = 0;
  for (uint64_t seed = 20; seed < 26; seed++) {
    struct scene s;
    scene_init(&s, &(struct plan){6000, 8, UINT32_MAX, 2, 9, 5, 0}, seed);  // tables of many blocks, few other keys, no cache
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
  assert_true(nr_failed > 300);
}

// A read that fails gives a status and an iterator that is not valid; the next seek starts afresh.
static void test_read_fails(void **state) {
  (void)state;
  struct scene s;
  scene_init(&s, &plan_fail, 11);
  uint32_t failed = 0, seeks = 0, steps = 0;
  for (int64_t n = 1; n < 60; n++) {
    struct merge m;
    struct kv_rec r;
    merge_init(&m, NULL);
    merge_set(&m, s.active, s.frozen, s.version, s.moment);
    uint64_t rng = (uint64_t)n;
    for (uint32_t i = 0; i < 400; i++) {
      if (i == 10) fault_io_set(FAULT_READ, n, false);
      enter(&s.p);
      bool moved = true;
      enum remixdb_status st;
      const uint32_t dice = (uint32_t)(rng_next(&rng) % 10);
      const bool was = merge_valid(&m);
      if (!was || dice == 0) {
        const struct kref key = s.k.keys[rng_next(&rng) % s.k.nr];
        st = dice % 2 ? merge_seek(&m, key) : merge_seek_for_prev(&m, key);
        seeks += st != REMIXDB_OK;
      } else if (dice < 6) {
        st = dice < 4 ? merge_next(&m) : merge_prev(&m);
        steps += st != REMIXDB_OK;
      } else {
        st = merge_record(&m, &r);
        moved = false;
        const struct kref key = kref(r.key, r.klen);
        if (st == REMIXDB_OK) assert_true(value_is(&r, key, s.live[keyset_rank(&s.k, key)], VALUE));
      }
      leave(&s.p);
      if (st == REMIXDB_OK) continue;
      assert_int_equal(st, REMIXDB_IO);
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
  scene_fini(&s);
}

// Damage that stays: what can be read is right, what cannot is an error, and nobody goes round in circles.
static void test_damaged(void **state) {
  (void)state;
  struct scene s;
  scene_init(&s, &plan_fail, 12);
  for (uint32_t i = 0; i < s.version->nr_parts; i++) {
    const struct remix *x = s.version->parts[i]->remix;
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
    enum remixdb_status st = merge_seek(&m, s.k.keys[a]);
    if (st == REMIXDB_OK && merge_valid(&m)) st = merge_record(&m, &r);
    if (st == REMIXDB_OK) {
      good++;
      const uint32_t at = model_up(&s, a);
      assert_int_equal(merge_valid(&m), at < s.k.nr);
      if (merge_valid(&m)) {
        assert_true(kv_eq(kref(r.key, r.klen), s.k.keys[at]));
        assert_true(value_is(&r, s.k.keys[at], s.live[at], VALUE));
      }
    } else {
      assert_int_equal(st, REMIXDB_CORRUPT);
      bad++;
    }
    leave(&s.p);
  }
  assert_true(good > 0 && bad > 0);
  merge_park(&m);
  merge_fini(&m);
  scene_fini(&s);
}

static void test_no_memory(void **state) {
  (void)state;
  struct scene s;
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
      enum remixdb_status st;
      if (!merge_valid(&m)) st = i % 3 ? merge_seek(&m, s.k.keys[rng_next(&rng) % s.k.nr]) : merge_seek_last(&m);
      else st = rng_next(&rng) % 3 ? merge_next(&m) : merge_prev(&m);
      leave(&s.p);
      if (st == REMIXDB_OK) continue;
      assert_int_equal(st, REMIXDB_NOMEM);
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
  scene_fini(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_model),      cmocka_unit_test(test_all_deleted),  cmocka_unit_test(test_while_written),
      cmocka_unit_test(test_read_fails), cmocka_unit_test(test_record_fails), cmocka_unit_test(test_damaged),
      cmocka_unit_test(test_no_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
