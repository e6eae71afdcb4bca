// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/remix_world.h"

#include "base/blind.h"
#include "remix/narrow.h"

void views_init(struct world *t, struct place *p, uint32_t ckb, uint32_t value, bool tags) {
  *t = (struct world){.p = p, .ckb = ckb, .value = value, .tags = tags};
}

void views_fini(struct world *t) {
  for (uint32_t r = 0; r < t->nr; r++) {
    sst_unref(t->sst[r]);
    free(t->has[r]);
  }
  if (t->x) atomic_store(&t->x->obsolete, true);
  remix_unref(t->x);
  keyset_free(&t->k);
}

// ---- keys and tables

static struct kref key_copy(const void *p, uint32_t len) {
  uint8_t *const q = malloc(len + 1);
  memcpy(q, p, len);
  return kref(q, len);
}

void keys_random16(struct keyset *k, uint32_t nr) {
  k->keys = calloc(nr, sizeof(*k->keys));
  for (uint32_t i = 0; i < nr; i++) {
    const uint64_t a[2] = {rng_next(&check_seed), rng_next(&check_seed)};
    k->keys[i] = key_copy(a, 16);
  }
  keyset_sort(k, nr);
}

void small_world(struct world *t, struct place *p, uint32_t kind, uint32_t ckb) {
  place_init(p, 0);
  views_init(t, p, ckb, below(3) ? 40 : 9000, below(3) > 0);
  t->zstd = below(4) == 0;
  keyset_of_kind(&t->k, kind, kind == KEYS_FAR ? 40 + below(100) : 100 + below(3000), &check_seed);
}

// A table of keys [from, to) that are in `has`.
static struct sst *table_of(struct world *t, const uint8_t *has, uint32_t from, uint32_t to) {
  static uint8_t val[1 << 16];
  struct place *const p = t->p;
  struct sst_build *b;
  struct sst *s;
  uint64_t size;
  const bool ckeys = t->ckb == CKB_MIXED ? t->tables & 1 : t->ckb == CKB_ALL;
  t->tables++;
  const struct sst_build_opts opts = {.ckeys = ckeys,
                                      .compression = t->zstd ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE,
                                      .level = 1};
  OK(sst_build_create(&p->ctx, &opts, p->queue, &b));
  const uint64_t number = p->next++;
  sst_build_start(b, number);
  for (uint32_t i = from; i < to; i++) {
    if (!has[i]) continue;
    struct kv_rec r = {.key = t->k.keys[i].ptr, .klen = t->k.keys[i].len, .val = val, .kind = has[i] == HAS_TOMB};
    const uint32_t room = REMIXDB_KV_MAX - r.klen;
    if (!r.kind) r.vlen = t->value > 200 && i % 97 == 0 ? t->value : i * 7 % (t->value < 200 ? t->value + 1 : 200);
    if (!r.kind && r.vlen > room) r.vlen = room;
    sst_build_add(b, &r);
  }
  OK(sst_build_finish(b, &size));
  sst_build_destroy(b);
  OK(sst_open(&p->ctx, number, &s));
  return s;
}

uint32_t count(const uint8_t *has, uint32_t from, uint32_t to) {
  uint32_t nr = 0;
  for (uint32_t i = from; i < to; i++) nr += has[i] != HAS_NONE;
  return nr;
}

uint8_t *fresh_keys(const struct world *t, uint32_t layout, uint32_t nr) {
  uint8_t *const has = calloc(t->k.nr, 1);
  const uint32_t all = t->k.nr;
  if (nr > all) nr = all;
  switch (layout) {
    case SPARSE:
      for (uint32_t i = 0; i < nr; i++) has[below(all)] = HAS_PUT;
      break;
    case CLUSTERS:
      for (uint32_t c = 0; c < 4; c++) {
        const uint32_t from = below(all);
        for (uint32_t i = from; i < all && i < from + nr / 4; i++)
          if (below(3)) has[i] = HAS_PUT;
      }
      break;
    default: {
      const uint32_t from = layout == ONE_PLACE ? below(all - nr + 1) : layout == BEHIND ? all - nr : 0;
      for (uint32_t i = from; i < from + nr; i++) has[i] = HAS_PUT;
    }
  }
  has[below(all)] = HAS_PUT;
  for (uint32_t i = 0; i < all; i++)
    if (has[i] && below(5) == 0) has[i] = HAS_TOMB;
  return has;
}

void world_add(struct world *t, uint8_t *has) {
  assert_true(t->nr < REMIX_RUNS_MAX);
  t->sst[t->nr] = table_of(t, has, 0, t->k.nr);
  t->has[t->nr++] = has;
}

uint32_t world_add_some(struct world *t, uint8_t *has, uint32_t tables) {
  uint32_t from = 0, made = 0;
  for (uint32_t n = 0; n < tables; n++) {
    const uint32_t to = n + 1 == tables ? t->k.nr : from + below(t->k.nr - from);
    if (count(has, from, to)) {
      uint8_t *const some = calloc(t->k.nr, 1);
      memcpy(some + from, has + from, to - from);
      world_add(t, some);
      made++;
    }
    from = to;
  }
  free(has);
  return made;
}

void world_drop(struct world *t, uint32_t run) {
  sst_unref(t->sst[run]);
  free(t->has[run]);
  t->nr--;
  for (uint32_t r = run; r < t->nr; r++) {
    t->sst[r] = t->sst[r + 1];
    t->has[r] = t->has[r + 1];
  }
}

void world_spread(struct world *t, uint32_t runs, uint32_t old, const uint8_t *out) {
  uint8_t *has[REMIX_RUNS_MAX];
  for (uint32_t r = 0; r < runs; r++) has[r] = calloc(t->k.nr, 1);
  for (uint32_t i = 0; i < t->k.nr; i++) {
    if (out && out[i]) continue;
    has[below(runs)][i] = HAS_PUT;
    if (old && below(old) == 0) has[below(runs)][i] = HAS_PUT;
  }
  for (uint32_t r = 0; r < runs; r++) {
    if (count(has[r], 0, t->k.nr) == 0) has[r][below(t->k.nr)] = HAS_PUT;
    world_add(t, has[r]);
    world_build(t, UINT32_MAX, 1, REMIX_BUILD_MERGE);
  }
}

// ---- views

void world_build(struct world *t, uint32_t keep, uint32_t nr_fresh, enum remix_build_way way) {
  struct place *const p = t->p;
  _Atomic uint64_t progress;
  atomic_init(&progress, 0);
  t->b = place_build(p, p->next++, t->x, t->sst + t->nr - t->newer - nr_fresh, nr_fresh);
  t->b.keep = keep;
  t->b.newer = t->newer;
  t->b.moved = t->moved;
  t->b.passing = t->passing;
  t->b.tags = t->tags;
  t->b.progress = &progress;
  t->b.way = way;
  t->b.keep_image = true;
  OK(remix_build(&t->b));
  struct remix *y, *built;
  OK(remix_open(&p->ctx, t->b.number, t->sst, t->nr, &y));
  // the image in memory is that of the file
  const struct remix_built of = {t->b.image, t->b.image_size, t->b.file_size, t->b.print};
  OK(remix_open_built(&p->ctx, t->b.number, t->sst, t->nr, &of, &built));
  mem_free(t->b.image);
  t->b.image = NULL;
  assert_int_equal(built->image_size, y->image_size);
  assert_memory_equal(built->image, y->image, y->image_size);
  assert_true(built->print == y->print && built->origin == y->origin);
  remix_unref(built);
  assert_int_equal(y->file_size, t->b.file_size);
  assert_int_equal(atomic_load(&progress), y->nr_entries);
  if (t->x) atomic_store(&t->x->obsolete, true);
  remix_unref(t->x);
  t->x = y;
}

void world_back(struct world *t, struct remix *old) {
  atomic_store(&t->x->obsolete, true);
  remix_unref(t->x);
  atomic_store(&old->obsolete, false);
  t->x = old;
}

static uint32_t bit_between(struct kref a, struct kref b) {
  const uint32_t lcp = kv_lcp_from(a, b, 0);
  if (lcp == a.len) return lcp << 4;
  for (uint32_t i = 1;; i++)
    if ((a.ptr[lcp] ^ b.ptr[lcp]) & 0x100 >> i) return lcp << 4 | i;
}

// The place in a view that is compared with the model, entry by entry.
struct scan {
  const struct world *t;
  struct remix_layout l;
  sst_pos pos[REMIX_RUNS_MAX];  // the next record of each run
  uint32_t seg, at;             // the next segment; the next entry of this one
  uint32_t base, far;           // in this segment: the base of its bits; the number of bits too far from it
  uint64_t entries, keys;
  uint8_t *plain;    // the image
  const uint8_t *s;  // this segment
};

// Bit: in which key differs from the one before, when it is not the first key.
static void scan_segment(struct scan *v, struct kref key, uint32_t bit) {
  const struct remix *const x = v->t->x;
  assert_true(v->seg < x->nr_segs);
  static uint8_t room[KV_KEY_MAX];
  const struct kref anchor = remix_anchor(x, v->seg, room);
  assert_int_equal(anchor.len, v->seg ? (bit >> 4) + 1 : 0);
  assert_true(anchor.len <= key.len && memcmp(anchor.ptr, key.ptr, anchor.len) == 0);
  v->s = v->plain + remix_segs_off(x->nr_runs) + (size_t)v->seg++ * v->l.stride;
  v->at = v->far = 0;
  for (uint32_t q = 0; q < v->t->nr; q++) assert_int_equal(load32le(v->s + v->l.offs + 4 * q), v->pos[q]);
  assert_int_equal(load16le(v->s + v->l.dbits), 0);
  v->base = load16le(v->s + v->l.head + 2);
}

static void scan_bit(struct scan *v, uint32_t bit, bool old) {
  const uint32_t d = load16le(v->s + v->l.dbits + 2 * v->at);
  if (old) {
    assert_int_equal(d, BLIND_SAME);
  } else if (d == BLIND_FAR) {
    assert_true((bit >> 4) - v->base > BLIND_BYTE_MAX);
    v->far++;
  } else {
    CHECK_SAYS(d + (v->base << 4) == bit, "segment %u entry %u: bit %#x, %#x expected", v->seg - 1, v->at,
               d + (v->base << 4), bit);
  }
}

// The base is the least byte of the segment's bits.
static void scan_segment_end(const struct scan *v) {
  uint32_t least = UINT32_MAX;
  for (uint32_t e = 1; e < v->at; e++) {
    const uint32_t d = load16le(v->s + v->l.dbits + 2 * e);
    if (d < BLIND_FAR && d >> 4 < least) least = d >> 4;
  }
  assert_true(least == 0 || least == UINT32_MAX);
  if (least == UINT32_MAX) assert_int_equal(v->base, 0);
  assert_int_equal(v->s[v->l.head + 1], v->far ? REMIX_SEG_FAR : 0);
}

// The next entry is the version of key i in run r. old: a newer run has one. before: the key before, or UINT32_MAX.
static void scan_entry(struct scan *v, uint32_t i, uint32_t r, bool old, uint32_t before) {
  const struct world *const t = v->t;
  const struct kref key = t->k.keys[i];
  const bool tomb = t->has[r][i] == HAS_TOMB;
  const uint32_t bit = old || before == UINT32_MAX ? 0 : bit_between(t->k.keys[before], key);
  if (!v->s || v->at == v->s[v->l.head]) {
    assert_false(old);
    scan_segment(v, key, bit);
  } else {
    scan_bit(v, bit, old);
  }
  const uint8_t sel = (uint8_t)(r | (tomb ? REMIX_TOMB : 0) | (old ? REMIX_OLD : 0));
  CHECK_SAYS(v->s[v->l.sel + v->at] == sel, "segment %u entry %u: selector %#x, %#x expected", v->seg - 1, v->at,
             v->s[v->l.sel + v->at], sel);
  if (t->tags) assert_int_equal(v->s[v->at], remix_tag(hash64(key.ptr, key.len)));
  if (++v->at == v->s[v->l.head]) scan_segment_end(v);
  v->pos[r] = sst_advance(t->sst[r], v->pos[r], 1);
  v->keys += !old && !tomb;
  v->entries++;
}

void check_view(const struct world *t) {
  struct scan v = {.t = t, .l = remix_layout(t->nr, t->tags), .plain = malloc(remix_plain_size(t->x))};
  assert_non_null(v.plain);
  remix_plain(t->x, v.plain);
  for (uint32_t i = 0, before = UINT32_MAX; i < t->k.nr; i++) {
    bool old = false;
    for (uint32_t r = t->nr; r-- > 0;) {
      if (!t->has[r][i]) continue;
      scan_entry(&v, i, r, old, before);
      old = true;
    }
    if (old) before = i;
  }
  assert_int_equal(v.seg, t->x->nr_segs);
  assert_true(!v.s || v.at == v.s[v.l.head]);
  assert_int_equal(v.entries, t->x->nr_entries);
  assert_int_equal(v.keys, t->x->nr_keys);
  free(v.plain);
}

void check_same_view(const struct remix *a, const struct remix *b) {
  struct remix_walk v, w;
  remix_walk_init(&w, b);
  for (remix_walk_init(&v, a); remix_walk_valid(&v); remix_walk_next(&v), remix_walk_next(&w)) {
    assert_true(remix_walk_valid(&w));
    assert_int_equal(v.sel[v.at], w.sel[w.at]);
    assert_int_equal(v.tag != NULL, w.tag != NULL);
    if (v.tag) assert_int_equal(v.tag[v.at], w.tag[w.at]);
  }
  assert_false(remix_walk_valid(&w));
}
