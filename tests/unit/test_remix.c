// SPDX-License-Identifier: Apache-2.0
//
// A REMIX against a model: every search is compared with a search in an array.
#include "tests/lib/check.h"
#include "tests/lib/remix_model.h"

#include "remix/seg.h"

// A key near one of the set, which may be in it. In buf.
static struct kref probe_make(const struct tables *t, uint64_t *rng, uint8_t *buf) {
  const struct kref k = t->k.keys[rng_next(rng) % t->k.nr];
  uint32_t len = k.len;
  memcpy(buf, k.ptr, len);
  switch (rng_next(rng) % 8) {
    case 0: len = len ? len - 1 : 0; break;
    case 1: buf[len++] = 0; break;
    case 2: buf[len++] = 0xff; break;
    case 3:
      if (len) buf[rng_next(rng) % len] ^= (uint8_t)(1u << rng_next(rng) % 8);
      break;
    case 4:
      if (len) len = (uint32_t)(rng_next(rng) % len);
      break;
    case 5:
      if (len) buf[len - 1]++;
      break;
    default: break;
  }
  return kref(buf, len);
}

// Skips from entry `at`, half of the time no further than the segment of a key. Returns the number of entries passed.
static uint32_t check_skip(const struct tables *t, struct remix *x, struct remix_cursor *c, const struct entry *e,
                           uint32_t nr, uint32_t at, uint32_t far, struct kref key) {
  const uint32_t end = far % 2 ? remix_segment(x, key) : UINT32_MAX, seg = c->seg;
  const uint32_t most = nr - 1 - at < far ? nr - 1 - at : far, moved = remix_skip(c, far, end);
  assert_true(moved <= most && remix_valid(c));
  if (end == UINT32_MAX) assert_int_equal(moved, most);
  if (moved) assert_true(c->seg < end);
  check_at(t, c, e, nr, at + moved, true);
  if (moved == most) return moved;
  // it stopped because the next entry is in that segment, or after it
  if (seg < end) assert_true(kv_cmp(t->k.keys[e[at + moved].key], key) < 0);
  remix_next(c);
  assert_true(c->seg >= end);
  remix_prev(c);
  return moved;
}

// A cursor and the entries that it stops at.
struct query {
  struct tables *t;
  struct remix *x;
  struct entry *e;
  uint32_t nr;
  uint64_t *rng;
  struct remix_cursor c;
  struct sst_hold hold;
  uint8_t *buf;  // memory of probe_make
};

// Gets a key near one of the set, and seeks it in one of several ways. Returns the entry that the cursor stands at.
static uint32_t query_seek(struct query *q) {
  const struct kref key = probe_make(q->t, q->rng, q->buf);
  const uint32_t at = lower(q->t, q->e, q->nr, key);
  const bool here = at < q->nr && kv_eq(q->t->k.keys[q->e[at].key], key);
  struct kv_rec r;
  FAILS(remix_get(q->x, key, hash64(key.ptr, key.len), &q->hold, &r), here ? REMIXDB_OK : REMIXDB_NOTFOUND);
  if (here) check_record(q->t, &q->e[at], &r);
  const uint32_t begun = (uint32_t)(rng_next(q->rng) % 8);
  if (begun < 3) {  // a seek that begins, and does not go on
    remix_seek_begin(&q->c, q->t->k.keys[rng_next(q->rng) % q->t->k.nr]);
    if (begun == 0) remix_seek_first(&q->c);
    else if (begun == 1) remix_seek_last(&q->c);
    else OK(remix_cursor_set(&q->c, q->c.x));
  }
  if (begun >= 5) remix_seek_begin(&q->c, key);
  if (rng_next(q->rng) % 2) {
    OK(remix_seek(&q->c, key));
    return at;
  }
  OK(remix_seek_for_prev(&q->c, key));
  return here ? at : at ? at - 1 : q->nr;
}

// Steps and skips from entry `at` on, mostly in one direction.
static void query_steps(struct query *q, uint32_t at) {
  const uint32_t steps = (uint32_t)(rng_next(q->rng) % 12), back = (uint32_t)(rng_next(q->rng) % 3);
  for (uint32_t n = 0; n < steps && at < q->nr; n++) {
    if (rng_next(q->rng) % 4 == 0) {  // a cursor may stand still outside of the epoch
      leave(q->t->p);
      enter(q->t->p);
    }
    if (back == 0 || (back == 1 && rng_next(q->rng) % 2)) {
      remix_prev(&q->c);
      at = at ? at - 1 : q->nr;
    } else if (rng_next(q->rng) % 4 == 0) {
      const uint32_t far = (uint32_t)(rng_next(q->rng) % (rng_next(q->rng) % 2 ? 10 : 500));
      at += check_skip(q->t, q->x, &q->c, q->e, q->nr, at, far, probe_make(q->t, q->rng, q->buf));
    } else {
      remix_next(&q->c);
      at++;
    }
    check_at(q->t, &q->c, q->e, q->nr, at, rng_next(q->rng) % 2);
  }
}

// All entries in both directions.
static void query_all(struct query *q) {
  remix_seek_first(&q->c);
  for (uint32_t i = 0; i <= q->nr; i++) {
    check_at(q->t, &q->c, q->e, q->nr, i, i % 3 == 0);
    if (i < q->nr) remix_next(&q->c);
  }
  remix_seek_last(&q->c);
  for (uint32_t i = q->nr; i-- > 0;) {
    check_at(q->t, &q->c, q->e, q->nr, i, i % 3 == 0);
    remix_prev(&q->c);
  }
  assert_false(remix_valid(&q->c));
}

static void check_queries(struct tables *t, struct remix *x, uint32_t times, uint64_t *rng) {
  struct query q = {.t = t, .x = x, .rng = rng, .buf = malloc(65536 + 1)};
  q.e = part_live(t, &q.nr);
  remix_cursor_init(&q.c, rng_next(rng) % 2 ? t->p->queue : NULL);
  assert_false(remix_valid(&q.c));
  OK(remix_cursor_set(&q.c, x));
  assert_false(remix_valid(&q.c));
  for (uint32_t i = 0; i < times; i++) {
    enter(t->p);
    const uint32_t at = query_seek(&q);
    check_at(t, &q.c, q.e, q.nr, at, rng_next(rng) % 2);
    query_steps(&q, at);
    if (rng_next(rng) % 16 == 0) OK(remix_cursor_set(&q.c, q.c.x));
    leave(t->p);
  }
  enter(t->p);
  query_all(&q);
  leave(t->p);
  remix_cursor_fini(&q.c);
  sst_hold_fini(&q.hold);
  free(q.e);
  free(q.buf);
}

// Many probes side by side find the same as remix_get.
static void check_probes(struct tables *t, struct remix *x, uint64_t *rng) {
  enum { GROUP = 64 };
  uint32_t nr, left = 1 + (uint32_t)(rng_next(rng) % GROUP), at[GROUP];
  struct entry *e = part_live(t, &nr);
  struct remix_probe p[2 * GROUP];
  uint8_t which[GROUP], *buf[GROUP];
  struct sst_hold hold = {0};
  struct kv_rec r;
  memset(p, 0xEE, sizeof(p));
  for (uint32_t i = 0; i < left; i++) {
    which[i] = (uint8_t)(2 * i + 1);
    buf[i] = malloc(65536 + 1);
    struct remix_probe *const w = &p[which[i]];
    w->x = x;
    w->key = probe_make(t, rng, buf[i]);
    w->hash = hash64(w->key.ptr, w->key.len);
    at[i] = lower(t, e, nr, w->key);
  }
  const uint32_t all = left;
  bool found[GROUP] = {false};
  enter(t->p);
  remix_probe_find(p, which, left, true);
  for (;;) {
    uint32_t again = 0;
    for (uint32_t i = 0; i < left; i++) {
      struct remix_probe *const w = &p[which[i]];
      const uint32_t k = which[i] / 2;
      if (w->search) {
        assert_int_equal(w->set, 0);
        found[k] = remix_get(x, w->key, w->hash, &hold, &r) == REMIXDB_OK;
        if (found[k]) check_record(t, &e[at[k]], &r);
      } else if (w->set && !found[k]) {
        which[again++] = which[i];
      }
    }
    left = again;
    if (left == 0) break;
    remix_probe_next(p, which, left);
    for (uint32_t i = 0; i < left; i++) {
      struct remix_probe *const w = &p[which[i]];
      OK(sst_read(w->sst, w->pos, false, &hold, &r));
      if (!kv_eq(kref(r.key, r.klen), w->key)) continue;
      check_record(t, &e[at[which[i] / 2]], &r);
      found[which[i] / 2] = true;
    }
  }
  leave(t->p);
  for (uint32_t i = 0; i < all; i++) {
    assert_int_equal(found[i], at[i] < nr && kv_eq(t->k.keys[e[at[i]].key], p[2 * i + 1].key));
    free(buf[i]);
  }
  sst_hold_fini(&hold);
  free(e);
}

// Forms of a view's image (remix/narrow.h): with wide bits, without a list, with a list.
enum { FORM_WIDE, FORM_NARROW, FORM_MIXED, FORMS };

static uint32_t form_of(const struct remix *x) {
  assert_true(x->index->lay.narrow);
  if (x->index->lay.wide) return FORM_WIDE;
  return x->image + x->image_size > x->index->list ? FORM_MIXED : FORM_NARROW;
}

static bool has_dense(const struct remix *x) {
  for (uint32_t i = 0; i < x->nr_segs; i++)
    if (seg_blind(x->index, seg_at(x->index, i)).form == BLIND_IS_DENSE) return true;
  return false;
}

static void test_random_partitions(void **state) {
  (void)state;
  uint64_t rng = check_seed_for("random partitions");
  uint32_t far = 0, dense = 0, forms[FORMS] = {0};
  for (uint32_t round = 0; round < 36; round++) {
    struct place p;
    place_cold = round % 7 >= 4;
    place_init(&p, round % 4 == 3 ? 0 : (size_t)(1 + round % 3) << 20);
    place_cold = false;
    struct tables t = {.p = &p};
    const uint32_t kind = round % KEYS_KINDS;
    keyset_of_kind(&t.k, kind, kind == KEYS_FAR ? 150 : 20 + (uint32_t)(rng_next(&rng) % 900), &rng);
    const uint32_t runs = round % 5 == 0 ? 1 : round % 5 == 1 ? 32 : 1 + (uint32_t)(rng_next(&rng) % 12);
    const uint32_t sparse = runs > 16 ? 20 : 1 + (uint32_t)(rng_next(&rng) % 4), ckeys = (uint32_t)(rng_next(&rng) % 3);
    // each run arrives on its own
    for (uint32_t r = 0; r < runs; r++) part_add_table(&t, has_make(&t.k, sparse, &rng), ckeys == 2 ? r & 1 : ckeys);
    struct remix *x = NULL;
    const bool tags = rng_next(&rng) % 2;
    const uint32_t all = t.nr;
    for (t.nr = 1; t.nr <= all; t.nr++) {
      uint64_t pages;
      struct remix *y = part_build(&t, x, UINT32_MAX, 1, tags, &pages);
      forms[form_of(y)]++;
      dense += has_dense(y);
      // a table of few keys that are far apart and long has no compressed keys
      if (ckeys == 1 && kind != KEYS_FAR) assert_int_equal(pages, 0);
      if (ckeys == 0) assert_true(pages > 0);
      if (x) done(x);
      x = y;
    }
    t.nr = all;
    far += check_walk(&t, x);
    check_queries(&t, x, 150, &rng);
    for (uint32_t i = 0; i < 4; i++) check_probes(&t, x, &rng);
    // the same with tags, if there were none, or without
    struct remix *y = part_build(&t, x, UINT32_MAX, 0, !tags, NULL);
    check_queries(&t, y, 60, &rng);
    for (uint32_t i = 0; i < 4; i++) check_probes(&t, y, &rng);
    // both as young views
    const uint64_t keys = x->nr_keys;
    remix_make_young(x);
    remix_make_young(y);
    t.young = true;
    assert_int_equal(x->nr_keys, keys);
    far += check_walk(&t, x);
    for (uint32_t i = 0; i < 2; i++) {
      check_queries(&t, i ? y : x, 80, &rng);
      for (uint32_t n = 0; n < 4; n++) check_probes(&t, i ? y : x, &rng);
    }
    t.young = false;
    done(y);
    done(x);
    part_fini(&t);
    place_fini(&p);
  }
  assert_true(far > 0);
  print_message("  views: %u wide, %u narrow, %u with a list; %u have dense bits\n", forms[FORM_WIDE],
                forms[FORM_NARROW], forms[FORM_MIXED], dense);
  assert_true(dense > 0);
  for (uint32_t f = 0; f < FORMS; f++) assert_true(forms[f] > 0);
}

// For part_add_table: stretches of tombstones that are longer than segments, or tombstones alone.
static uint8_t *has_deleted(const struct keyset *k, bool all, uint64_t *rng) {
  uint8_t *has = calloc(k->nr, 1);
  bool stretch = all;
  for (uint32_t i = 0; i < k->nr; i++) {
    if (!all && rng_next(rng) % 90 == 0) stretch = !stretch;
    has[i] = stretch ? HAS_TOMB : rng_next(rng) % 3 == 0 ? HAS_PUT : 0;
  }
  has[0] = HAS_TOMB;
  has[k->nr - 1] = HAS_TOMB;
  return has;
}

// Young views that delete whole segments, whole tables, or everything. A REMIX made from a young view, or opened again,
// equals one made from an ordinary view.
static void test_young_deletes(void **state) {
  (void)state;
  uint64_t rng = check_seed_for("young deletes");
  for (uint32_t round = 0; round < 4 * KEYS_KINDS; round++) {
    struct place p;
    place_init(&p, round % 3 ? 1 << 20 : 0);
    struct tables t = {.p = &p};
    const uint32_t kind = round % KEYS_KINDS, runs = 1 + (uint32_t)(rng_next(&rng) % 4);
    keyset_of_kind(&t.k, kind, kind == KEYS_FAR ? 150 : 700, &rng);
    for (uint32_t r = 0; r < runs; r++)
      part_add_table(&t, has_deleted(&t.k, round % 2 || r + 1 < runs, &rng), rng_next(&rng) % 2);
    struct remix *x = NULL;
    const bool tags = round / KEYS_KINDS % 2;
    for (t.nr = 1; t.nr <= runs; t.nr++) {
      struct remix *const y = part_build(&t, x, UINT32_MAX, 1, tags, NULL);
      if (x) done(x);
      x = y;
      t.young = t.nr % 2;
      if (t.young) remix_make_young(x);
      check_queries(&t, x, 40, &rng);
      check_probes(&t, x, &rng);
      // opened again it is not young, until remix_make_young
      struct remix *again;
      OK(remix_open(&p.ctx, x->number, t.sst, t.nr, &again));
      assert_false(remix_is_young(again));
      t.young = false;
      check_queries(&t, again, 10, &rng);
      remix_make_young(again);
      assert_true(remix_is_young(again));
      t.young = true;
      check_queries(&t, again, 40, &rng);
      check_probes(&t, again, &rng);
      t.young = false;
      remix_unref(again);
    }
    t.nr = runs;
    done(x);
    part_fini(&t);
    place_fini(&p);
  }
}

// All runs hold the same keys, so that each key takes as many entries as there are runs.
static void test_all_versions(void **state) {
  (void)state;
  uint64_t rng = check_seed_for("all versions");
  static const uint32_t counts[] = {2, 5, 11, 17, 31, 32};
  for (uint32_t n = 0; n < sizeof(counts) / sizeof(counts[0]); n++) {
    struct place p;
    place_init(&p, 1 << 20);
    struct tables t = {.p = &p};
    keyset_of_kind(&t.k, KEYS_TINY, 60, &rng);
    struct remix *x = NULL;
    for (uint32_t r = 0; r < counts[n]; r++) {
      part_add_table(&t, has_make(&t.k, 1, &rng), true);
      struct remix *y = part_build(&t, x, UINT32_MAX, 1, true, NULL);
      if (x) done(x);
      x = y;
    }
    (void)check_walk(&t, x);
    check_queries(&t, x, 150, &rng);
    done(x);
    part_fini(&t);
    place_fini(&p);
  }
}

// Nothing is found in a REMIX without runs.
static void check_empty(struct remix *x, struct place *p) {
  assert_int_equal(x->nr_segs, 0);
  struct remix_cursor c;
  struct sst_hold hold = {0};
  struct kv_rec r;
  remix_cursor_init(&c, NULL);
  OK(remix_cursor_set(&c, x));
  enter(p);
  FAILS(remix_get(x, kref("a", 1), hash64("a", 1), &hold, &r), REMIXDB_NOTFOUND);
  OK(remix_seek(&c, kref("a", 1)));
  assert_false(remix_valid(&c));
  remix_seek_first(&c);
  assert_false(remix_valid(&c));
  remix_seek_last(&c);
  assert_false(remix_valid(&c));
  leave(p);
  remix_cursor_fini(&c);
}

// Many steps of a partition's life: runs leave, and one to three tables that do not overlap arrive. Each view equals
// one that is built from nothing.
static void test_incremental(void **state) {
  (void)state;
  uint64_t rng = check_seed_for("incremental");
  for (uint32_t kind = 0; kind < KEYS_KINDS; kind++) {
    struct place p;
    place_init(&p, 1 << 20);
    struct tables t = {.p = &p};
    keyset_of_kind(&t.k, kind, kind == KEYS_FAR ? 80 : 400, &rng);
    struct remix *x = NULL;
    bool had_tags = false;
    for (uint32_t step = 0; step < 32; step++) {
      uint32_t keep = UINT32_MAX;
      if (t.nr > 20 || rng_next(&rng) % 4 == 0) keep = (uint32_t)rng_next(&rng);
      if (rng_next(&rng) % 30 == 0) keep = 0;
      for (uint32_t r = t.nr; r-- > 0;)
        if (!(keep >> r & 1)) part_drop(&t, r);
      const uint32_t nr_fresh = 1 + (uint32_t)(rng_next(&rng) % 3), ckeys = step % 5;
      uint32_t cut = 0;
      for (uint32_t i = 0; i < nr_fresh; i++) {
        const uint32_t to = i + 1 == nr_fresh ? t.k.nr : cut + 1 + (uint32_t)(rng_next(&rng) % (t.k.nr / 3));
        uint8_t *has = has_make(&t.k, 1 + (uint32_t)(rng_next(&rng) % 8), &rng);
        for (uint32_t j = 0; j < t.k.nr; j++)
          if (j < cut || j >= to) has[j] = 0;
        has[cut] = HAS_PUT;
        part_add_table(&t, has, ckeys != 0);
        cut = to;
      }
      const bool tags = rng_next(&rng) % 8 ? had_tags : !had_tags;
      struct remix *y = part_build(&t, x, keep, nr_fresh, tags, NULL);
      had_tags = tags;
      check_queries(&t, y, 10, &rng);
      if (x) done(x);
      x = y;
    }
    // runs leave, until there are none
    while (t.nr) {
      const uint32_t r = (uint32_t)(rng_next(&rng) % t.nr), keep = ~(1u << r);
      part_drop(&t, r);
      struct remix *y = part_build(&t, x, keep, 0, had_tags, NULL);
      done(x);
      x = y;
    }
    check_empty(x, &p);
    done(x);
    part_fini(&t);
    place_fini(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_partitions),
      cmocka_unit_test(test_young_deletes),
      cmocka_unit_test(test_all_versions),
      cmocka_unit_test(test_incremental),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
