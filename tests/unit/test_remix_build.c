// SPDX-License-Identifier: Apache-2.0
//
// Building a REMIX, in all ways: every field of every segment against what follows from the keys, and what was read and
// compared to make it.
#include "base/blind.h"
#include "tests/lib/check.h"
#include "tests/lib/place.h"

#include <time.h>

#include "remix/write.h"
#include "tests/lib/slow.h"

#define MILLION (SLOW > 8 ? 40000u : SLOW > 1 ? 150000u : 1000000u)

static uint32_t below(uint32_t n) { return (uint32_t)(rng_next(&check_seed) % n); }

// ---- a partition and its model

enum { HAS_NONE, HAS_PUT, HAS_TOMB };
enum { CKB_NONE, CKB_ALL, CKB_MIXED };

struct world {
  struct place *p;
  struct keyset k;
  uint32_t nr;  // runs
  struct sst *sst[REMIX_RUNS_MAX];
  uint8_t *has[REMIX_RUNS_MAX];  // per key
  struct remix *x;               // of all runs, or NULL
  uint32_t ckb, value, tables;   // how tables are made; value: greatest length
  bool tags, zstd;
  bool moved;            // what builds are told
  struct remix_build b;  // the last build
};

static void world_init(struct world *t, struct place *p, uint32_t ckb, uint32_t value, bool tags) {
  *t = (struct world){.p = p, .ckb = ckb, .value = value, .tags = tags};
}

static void world_fini(struct world *t) {
  for (uint32_t r = 0; r < t->nr; r++) {
    sst_unref(t->sst[r]);
    free(t->has[r]);
  }
  if (t->x) atomic_store(&t->x->obsolete, true);
  remix_unref(t->x);
  keyset_free(&t->k);
}

// Sorts, and leaves out what is there twice.
static void keys_sort(struct keyset *k) {
  qsort(k->keys, k->nr, sizeof(*k->keys), key_order);
  uint32_t nr = 0;
  for (uint32_t i = 0; i < k->nr; i++) {
    if (nr && kv_eq(k->keys[nr - 1], k->keys[i])) free((void *)(uintptr_t)k->keys[i].ptr);
    else k->keys[nr++] = k->keys[i];
  }
  k->nr = nr;
}

static struct kref key_copy(const void *p, uint32_t len) {
  uint8_t *const q = malloc(len + 1);
  memcpy(q, p, len);
  return kref(q, len);
}

static void keys_random16(struct keyset *k, uint32_t nr) {
  k->keys = calloc(nr, sizeof(*k->keys));
  k->nr = nr;
  for (uint32_t i = 0; i < nr; i++) {
    const uint64_t a[2] = {rng_next(&check_seed), rng_next(&check_seed)};
    k->keys[i] = key_copy(a, 16);
  }
  keys_sort(k);
}

#define PREFIX "/usr/share/dictionaries/american-english/words/by-name/"  // 55 bytes

// The words of a dictionary below one path, each of them `times` times. False when there is no dictionary.
static bool keys_words(struct keyset *k, uint32_t times) {
  uint8_t *text;
  size_t len;
  if (paths_read_file(ENV_PATHS(env_posix()), "/usr/share/dict/american-english", SIZE_MAX, &text, &len) != REMIXDB_OK)
    return false;
  uint32_t lines = 0;
  for (size_t i = 0; i < len; i++) lines += text[i] == '\n';
  k->keys = calloc((size_t)lines * times, sizeof(*k->keys));
  k->nr = 0;
  for (size_t i = 0, from = 0; i < len; i++) {
    if (text[i] != '\n') continue;
    for (uint32_t n = 0; n < times; n++) {
      char buf[256];
      int m = snprintf(buf, sizeof(buf), PREFIX "%.*s", (int)(i - from), (const char *)text + from);
      if (n) m += snprintf(buf + m, sizeof(buf) - (size_t)m, "/%u", n);
      k->keys[k->nr++] = key_copy(buf, (uint32_t)m);
    }
    from = i + 1;
  }
  mem_free(text);
  keys_sort(k);
  return true;
}

// Small sets of all kinds.
enum { KIND_TINY, KIND_PATHS, KIND_BINARY, KIND_FAR, KIND_DENSE, KIND_MIXED, KINDS };

static void keys_kind(struct keyset *k, uint32_t kind, uint32_t nr) {
  static const uint8_t odd[] = {0x00, 0xff, 'a', 'b', 0x80, 0x7f};
  uint8_t *const buf = malloc(65536);
  if (kind == KIND_MIXED) {
    keyset_make(k, nr, &check_seed);
    free(buf);
    return;
  }
  k->keys = calloc(nr, sizeof(*k->keys));
  k->nr = nr;
  for (uint32_t i = 0; i < nr; i++) {
    uint32_t len = 0;
    switch (kind) {
      case KIND_TINY:
        len = below(7);
        for (uint32_t j = 0; j < len; j++) buf[j] = odd[below(sizeof(odd))];
        break;
      case KIND_PATHS:
        len = (uint32_t)sprintf((char *)buf, PREFIX "%s", below(3) ? "share/" : "lib/");
        for (uint32_t n = below(4); n > 0; n--) len += (uint32_t)sprintf((char *)buf + len, "directory%u/", below(5));
        len += (uint32_t)sprintf((char *)buf + len, "file%u", below(nr));
        break;
      case KIND_BINARY:
        len = 1 + below(40);
        for (uint32_t j = 0; j < len; j++) buf[j] = (uint8_t)rng_next(&check_seed);
        break;
      case KIND_FAR:
        // common stretches of up to 9,000 bytes, so that bits of one segment are more than 4,094 bytes apart
        buf[0] = (uint8_t)('a' + below(4));
        len = 1 + below(3) * 3000;
        memset(buf + 1, 'x', len);
        for (uint32_t j = 0; j < 3; j++) buf[len++] = odd[below(sizeof(odd))];
        break;
      default:
        // neighbours in all bits
        len = below(4096);
        buf[0] = (uint8_t)(len >> 4);
        buf[1] = (uint8_t)(len << 4);
        len = 2;
    }
    k->keys[i] = key_copy(buf, len);
  }
  free(buf);
  keys_sort(k);
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
    struct kv_rec r = {.key = t->k.keys[i].ptr, .klen = t->k.keys[i].len, .val = val, .tomb = has[i] == HAS_TOMB};
    const uint32_t room = REMIXDB_KV_MAX - r.klen;
    if (!r.tomb) r.vlen = t->value > 200 && i % 97 == 0 ? t->value : i * 7 % (t->value < 200 ? t->value + 1 : 200);
    if (!r.tomb && r.vlen > room) r.vlen = room;
    sst_build_add(b, &r);
  }
  OK(sst_build_finish(b, &size));
  sst_build_destroy(b);
  OK(sst_open(&p->ctx, number, &s));
  return s;
}

static uint32_t count(const uint8_t *has, uint32_t from, uint32_t to) {
  uint32_t nr = 0;
  for (uint32_t i = from; i < to; i++) nr += has[i] != HAS_NONE;
  return nr;
}

// ---- a view against its model

static uint32_t bit_between(struct kref a, struct kref b) {
  const uint32_t lcp = kv_lcp_from(a, b, 0);
  if (lcp == a.len) return lcp << 4;
  for (uint32_t i = 1;; i++)
    if ((a.ptr[lcp] ^ b.ptr[lcp]) & 0x100 >> i) return lcp << 4 | i;
}

// Everything that the file says: order, runs, flags, tags, discriminating bits, cursor offsets and anchors (R1 to R5).
static void check_view(const struct world *t) {
  const struct remix *const x = t->x;
  const struct remix_layout l = remix_layout(t->nr, t->tags);
  sst_pos pos[REMIX_RUNS_MAX] = {0};
  uint32_t seg = 0, at = 0, before = UINT32_MAX, base = UINT32_MAX, far = 0;
  uint64_t entries = 0, keys = 0;
  const uint8_t *s = NULL;
  for (uint32_t i = 0; i < t->k.nr; i++) {
    const struct kref key = t->k.keys[i];
    bool old = false;
    for (uint32_t r = t->nr; r-- > 0;) {
      if (!t->has[r][i]) continue;
      uint32_t bit = 0;
      if (!old && before != UINT32_MAX) bit = bit_between(t->k.keys[before], key);
      if (!s || at == s[l.head]) {  // the next segment
        assert_true(seg < x->nr_segs);
        assert_false(old);
        const struct kref anchor = remix_anchor(x, seg);
        assert_int_equal(anchor.len, seg ? (bit >> 4) + 1 : 0);
        assert_true(anchor.len <= key.len && memcmp(anchor.ptr, key.ptr, anchor.len) == 0);
        s = remix_segs(x) + (size_t)seg++ * l.stride;
        at = 0;
        base = s[l.head + 1] & REMIX_SEG_FAR ? UINT32_MAX
                                             : 0;  // with far bits it is told by the first entry that has one
        for (uint32_t q = 0; q < t->nr; q++) assert_int_equal(load32le(s + l.offs + 4 * q), pos[q]);
        assert_int_equal(load16le(s + l.dbits), 0);
        base = load16le(s + l.head + 2);
        far = 0;
      } else {
        const uint32_t d = load16le(s + l.dbits + 2 * at);
        if (old) {
          assert_int_equal(d, BLIND_SAME);
        } else if (d == BLIND_FAR) {
          assert_true((bit >> 4) - base > BLIND_BYTE_MAX);
          far++;
        } else {
          if (d + (base << 4) != bit)
            fail_msg("segment %u entry %u: bit %#x, %#x expected", seg - 1, at, d + (base << 4), bit);
        }
      }
      const uint8_t sel = (uint8_t)(r | (t->has[r][i] == HAS_TOMB ? REMIX_TOMB : 0) | (old ? REMIX_OLD : 0));
      if (s[l.sel + at] != sel)
        fail_msg("segment %u entry %u: selector %#x, %#x expected", seg - 1, at, s[l.sel + at], sel);
      if (t->tags) assert_int_equal(s[at], remix_tag(hash64(key.ptr, key.len)));
      if (++at == s[l.head]) {
        uint32_t least = UINT32_MAX;
        for (uint32_t e = 1; e < at; e++) {
          const uint32_t d = load16le(s + l.dbits + 2 * e);
          if (d < BLIND_FAR && d >> 4 < least) least = d >> 4;
        }
        assert_true(least == 0 || least == UINT32_MAX);  // the base is the least byte there is
        if (least == UINT32_MAX) assert_int_equal(base, 0);
        assert_int_equal(s[l.head + 1], far ? REMIX_SEG_FAR : 0);
      }
      pos[r] = sst_advance(t->sst[r], pos[r], 1);
      keys += !old && t->has[r][i] == HAS_PUT;
      entries++;
      old = true;
      before = i;
    }
  }
  assert_int_equal(seg, x->nr_segs);
  assert_true(!s || at == s[l.head]);
  assert_int_equal(entries, x->nr_entries);
  assert_int_equal(keys, x->nr_keys);
}

// Entry for entry the same: order, run, flags, tag.
static void check_same(const struct remix *a, const struct remix *b) {
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

static double fill(const struct remix *x) { return x->nr_segs ? (double)x->nr_entries / x->nr_segs : 0; }

// ---- building

// The runs of `keep` stay, the last nr_fresh tables of t (already there) are new: `from` is the view before. The new
// one becomes t->x.
static void world_build(struct world *t, uint32_t keep, uint32_t nr_fresh, enum remix_build_way way) {
  struct place *const p = t->p;
  _Atomic uint64_t progress;
  atomic_init(&progress, 0);
  t->b = (struct remix_build){.ctx = &p->ctx,
                              .queue = p->queue,
                              .number = p->next++,
                              .old = t->x,
                              .keep = keep,
                              .fresh = t->sst + t->nr - nr_fresh,
                              .nr_fresh = nr_fresh,
                              .moved = t->moved,
                              .tags = t->tags,
                              .progress = &progress,
                              .way = way,
                              .keep_image = true};
  OK(remix_build(&t->b));
  struct remix *y, *built;
  OK(remix_open(&p->ctx, t->b.number, t->sst, t->nr, &y));
  // what was built is what is read
  OK(remix_open_built(&p->ctx, t->b.number, t->sst, t->nr, t->b.image, t->b.image_size, t->b.file_size, &built));
  mem_free(t->b.image);
  t->b.image = NULL;
  assert_int_equal(built->image_size, y->image_size);
  assert_memory_equal(built->image, y->image, y->image_size);
  remix_unref(built);
  assert_int_equal(y->file_size, t->b.file_size);
  assert_int_equal(atomic_load(&progress), y->nr_entries);
  if (t->x) atomic_store(&t->x->obsolete, true);
  remix_unref(t->x);
  t->x = y;
}

// has is taken over: one more run.
static void world_add(struct world *t, uint8_t *has) {
  assert_true(t->nr < REMIX_RUNS_MAX);
  t->sst[t->nr] = table_of(t, has, 0, t->k.nr);
  t->has[t->nr++] = has;
}

// The same in up to so many tables, one behind the other. Returns how many these are.
static uint32_t world_add_some(struct world *t, uint8_t *has, uint32_t tables) {
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

static uint32_t first_runs(uint32_t nr) { return nr == 32 ? UINT32_MAX : (1u << nr) - 1; }

static void world_drop(struct world *t, uint32_t run) {
  sst_unref(t->sst[run]);
  free(t->has[run]);
  t->nr--;
  for (uint32_t r = run; r < t->nr; r++) {
    t->sst[r] = t->sst[r + 1];
    t->has[r] = t->has[r + 1];
  }
}

// Each key goes into one of so many runs; those in `out` (of so many) into none.
static void world_spread(struct world *t, uint32_t runs, uint32_t old, const uint8_t *out) {
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

static uint64_t data_pages(const struct world *t, uint32_t runs) {
  uint64_t nr = 0;
  for (uint32_t r = 0; r < runs; r++)
    if (!t->sst[r]->ckb_len) nr += t->sst[r]->nr_pages;
  return nr;
}

static uint64_t ckb_bytes(const struct world *t) {
  uint64_t nr = 0;
  for (uint32_t r = 0; r < t->nr; r++) nr += t->sst[r]->ckb_len;
  return nr;
}

// Back to the view before the last build.
static void world_back(struct world *t, struct remix *old) {
  atomic_store(&t->x->obsolete, true);
  remix_unref(t->x);
  atomic_store(&old->obsolete, false);
  t->x = old;
}

// The view as one built from nothing, run by run.
static void check_from_scratch(struct world *t) {
  struct world u = {.p = t->p, .k = t->k, .tags = t->tags};
  memcpy(u.sst, t->sst, sizeof(u.sst));
  memcpy(u.has, t->has, sizeof(u.has));
  for (u.nr = 1; u.nr <= t->nr; u.nr++) world_build(&u, UINT32_MAX, 1, REMIX_BUILD_MERGE);
  u.nr = t->nr;
  check_view(&u);
  check_same(t->x, u.x);
  atomic_store(&u.x->obsolete, true);
  remix_unref(u.x);
}

// Keys to be new, of all: everywhere, in a few places, or all of them in one.
enum { SPARSE, CLUSTERS, ONE_PLACE, BEHIND, BEFORE, LAYOUTS };

static uint8_t *fresh_keys(const struct world *t, uint32_t layout, uint32_t nr) {
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

// ---- tests: the same view in all ways

static void small_world(struct world *t, struct place *p, uint32_t kind, uint32_t ckb) {
  place_init(p, 0);
  world_init(t, p, ckb, below(3) ? 40 : 9000, below(3) > 0);
  t->zstd = below(4) == 0;
  keys_kind(&t->k, kind, kind == KIND_FAR ? 40 + below(100) : 100 + below(3000));
}

// The same tables, each way.
static void test_ways_agree(void **state) {
  (void)state;
  for (uint32_t round = 0; round < (SLOW > 1 ? 60 : 120); round++) {
    struct place p;
    struct world t;
    small_world(&t, &p, round % KINDS, round / KINDS % 3);
    world_spread(&t, 1 + below(8), below(5), NULL);
    world_add(&t, fresh_keys(&t, below(LAYOUTS), 1 + below(t.k.nr)));
    struct remix *const old = t.x;
    remix_ref(old);
    world_build(&t, UINT32_MAX, 1, REMIX_BUILD_MERGE);
    check_view(&t);
    assert_int_equal(t.b.way, REMIX_BUILD_MERGE);
    struct remix *const merged = t.x;
    remix_ref(merged);
    remix_unref(t.x);
    t.x = old;
    world_build(&t, UINT32_MAX, 1, REMIX_BUILD_SPLICE);
    assert_int_equal(t.b.way, REMIX_BUILD_SPLICE);
    check_view(&t);
    check_same(merged, t.x);
    if (t.ckb == CKB_ALL) assert_int_equal(t.b.data_pages_read, 0);
    remix_unref(merged);
    world_fini(&t);
    place_fini(&p);
  }
}

// The newest `take` runs leave, and what of them is newest comes again, in up to so many tables one behind the other.
// Returns how many these are; *same: nothing is left out.
static uint32_t world_merge(struct world *t, uint32_t take, uint32_t tables, bool *same) {
  uint8_t *const has = calloc(t->k.nr, 1);
  uint32_t records = 0;
  for (uint32_t n = 0; n < take; n++) {
    for (uint32_t i = 0; i < t->k.nr; i++)
      if (!has[i]) has[i] = t->has[t->nr - 1][i];
    records += count(t->has[t->nr - 1], 0, t->k.nr);
    world_drop(t, t->nr - 1);
  }
  *same = count(has, 0, t->k.nr) == records;
  return world_add_some(t, has, tables);
}

// Tables that were made of the newest runs alone: when they have all that these had, no key is read; and when not, or
// when nobody says so, it is seen.
static void test_moved(void **state) {
  (void)state;
  uint32_t moved = 0, not_same = 0;
  for (uint32_t round = 0; round < (SLOW > 1 ? 60 : 240); round++) {
    struct place p;
    struct world t;
    bool same;
    small_world(&t, &p, round % KINDS, round / KINDS % 3);
    world_spread(&t, 1 + below(8), below(3) ? 0 : 1 + below(50), NULL);
    if (below(3) == 0) {  // with tombstones, and versions of what is there
      world_add(&t, fresh_keys(&t, below(LAYOUTS), 1 + below(40)));
      world_build(&t, UINT32_MAX, 1, REMIX_BUILD_SPLICE);
    }
    const bool full = t.x->nr_entries >= t.x->nr_segs * 24;
    const uint32_t take = 1 + below(t.nr), kept = t.nr - take;
    const enum remix_build_way way = below(2) ? REMIX_BUILD_AUTO : REMIX_BUILD_MOVED;
    const uint32_t made = world_merge(&t, take, 1 + below(4), &same);
    t.moved = below(8) > 0;
    world_build(&t, first_runs(kept), made, way);
    check_view(&t);
    const bool expected = t.moved && same && (full || way == REMIX_BUILD_MOVED);
    assert_int_equal(t.b.way == REMIX_BUILD_MOVED, expected);
    if (expected) {
      assert_int_equal(t.b.ckb_bytes_read + t.b.data_pages_read + t.b.keys_read + t.b.key_bytes_compared, 0);
      assert_int_equal(t.b.entries_copied, t.x->nr_entries);
    }
    moved += expected;
    not_same += !same;
    check_from_scratch(&t);
    world_fini(&t);
    place_fini(&p);
  }
  assert_true(moved > 20 && not_same > 5);
}

// A view whose segments are half full, as each holds all 17 versions of one key, is made anew instead.
static void test_moved_lean(void **state) {
  (void)state;
  for (uint32_t turn = 0; turn < 2; turn++) {
    struct place p;
    struct world t;
    bool same;
    place_init(&p, 0);
    world_init(&t, &p, CKB_ALL, 40, true);
    keys_kind(&t.k, KIND_BINARY, 200);
    for (uint32_t r = 0; r < 18; r++) {
      uint8_t *const has = calloc(t.k.nr, 1);
      for (uint32_t i = 0; i < t.k.nr; i++) has[i] = r < 16 || i % 2 == r % 2 ? HAS_PUT : HAS_NONE;
      world_add(&t, has);
      world_build(&t, UINT32_MAX, 1, REMIX_BUILD_MERGE);
    }
    const uint32_t made = world_merge(&t, 2, 2, &same);
    assert_true(same);
    t.moved = true;
    world_build(&t, first_runs(16), made, turn ? REMIX_BUILD_MOVED : REMIX_BUILD_AUTO);
    assert_int_equal(t.b.way == REMIX_BUILD_MOVED, turn);
    check_view(&t);
    world_fini(&t);
    place_fini(&p);
  }
}

// Runs among others leave: theirs were the older versions of some keys, and the new tables would be newer than all that
// stay.
static void test_moved_not_newest(void **state) {
  (void)state;
  struct place p;
  struct world t;
  place_init(&p, 0);
  world_init(&t, &p, CKB_ALL, 40, true);
  keys_kind(&t.k, KIND_BINARY, 400);
  for (uint32_t r = 0; r < 3; r++) {
    uint8_t *const has = calloc(t.k.nr, 1);
    for (uint32_t i = r; i < t.k.nr; i += r == 1 ? 2 : 3) has[i] = HAS_PUT;
    world_add(&t, has);
    world_build(&t, UINT32_MAX, 1, REMIX_BUILD_MERGE);
  }
  uint8_t *const again = calloc(t.k.nr, 1);
  memcpy(again, t.has[1], t.k.nr);
  world_drop(&t, 1);
  world_add(&t, again);
  t.moved = true;
  world_build(&t, 1 | 4, 1, REMIX_BUILD_MOVED);
  assert_int_equal(t.b.way, REMIX_BUILD_MERGE);
  check_view(&t);
  world_fini(&t);
  place_fini(&p);
}

// Tables that have fewer records than the view has entries for them.
static void test_moved_too_few(void **state) {
  (void)state;
  struct place p;
  struct world t;
  place_init(&p, 0);
  world_init(&t, &p, CKB_ALL, 40, true);
  keys_kind(&t.k, KIND_BINARY, 400);
  world_spread(&t, 2, 0, NULL);
  uint8_t *const has = calloc(t.k.nr, 1);
  memcpy(has, t.has[1], t.k.nr);
  *(uint8_t *)memchr(has, HAS_PUT, t.k.nr) = HAS_NONE;
  world_add(&t, has);
  struct sst *runs[] = {t.sst[0], t.sst[2]};
  uint8_t run_map[REMIX_RUNS_MAX];
  memset(run_map, UINT8_MAX, sizeof(run_map));
  run_map[0] = 0;
  struct remix_write w = {0};
  OK(remix_write_start(&w, &p.ctx, p.queue, p.next++, runs, 2, true));
  FAILS(remix_write_moved(&w, t.x, run_map, 1), REMIXDB_CORRUPT);
  remix_write_fini(&w);
  world_fini(&t);
  place_fini(&p);
}

// A store's life in 50 steps: runs arrive, one to three at a time, and leave, mostly the newest ones (a major
// compaction: what they held comes again in the new tables), at times any. After each the view is what its tables say;
// at the end, what one built from nothing is.
static void live(uint32_t kind, uint32_t ckb) {
  struct place p;
  struct world t;
  small_world(&t, &p, kind, ckb);
  world_spread(&t, 1 + below(4), below(4), NULL);
  uint32_t spliced = 0;
  for (uint32_t step = 0; step < 50; step++) {
    uint8_t *const has = fresh_keys(&t, below(LAYOUTS), 1 + below(below(3) ? 30 : t.k.nr / 2));
    uint32_t keep = UINT32_MAX;
    const uint32_t what = t.nr > 24 ? 0 : below(8);
    if (what == 0) {  // major: the newest leave
      const uint32_t kept = below(t.nr + 1);
      for (uint32_t r = kept; r < t.nr; r++)
        for (uint32_t i = 0; i < t.k.nr; i++)
          if (t.has[r][i] && !has[i]) has[i] = 3;  // the newest of them, decided below
      for (uint32_t i = 0; i < t.k.nr; i++)
        for (uint32_t r = t.nr; has[i] == 3 && r-- > kept;)
          if (t.has[r][i]) has[i] = t.has[r][i];
      keep = first_runs(kept);
    } else if (what == 1) {  // any
      keep = (uint32_t)rng_next(&check_seed);
    }
    for (uint32_t r = t.nr; r-- > 0;)
      if (!(keep >> r & 1)) world_drop(&t, r);
    // one to three tables
    const uint32_t made = world_add_some(&t, has, 1 + below(3));
    world_build(&t, keep, made, below(4) ? REMIX_BUILD_SPLICE : below(2) ? REMIX_BUILD_AUTO : REMIX_BUILD_MERGE);
    spliced += t.b.way == REMIX_BUILD_SPLICE;
    check_view(&t);
  }
  assert_true(spliced > 10);
  check_from_scratch(&t);
  world_fini(&t);
  place_fini(&p);
}

static void test_fifty_steps(void **state) {
  (void)state;
  for (uint32_t round = 0; round < (SLOW > 1 ? 1 : 2); round++)
    for (uint32_t kind = 0; kind < KINDS; kind++)
      for (uint32_t ckb = 0; ckb < 3; ckb++) live(kind, ckb);
}

// Keys with as many versions as there are runs, up to 32: whole keys move from segment to segment.
static void test_all_versions(void **state) {
  (void)state;
  static const uint32_t counts[] = {3, 9, 11, 16, 17, 31};
  for (uint32_t n = 0; n < 2 * sizeof(counts) / sizeof(counts[0]); n++) {
    struct place p;
    struct world t;
    small_world(&t, &p, n & 1 ? KIND_TINY : KIND_PATHS, n % 3);
    const uint32_t runs = counts[n / 2];
    for (uint32_t r = 0; r <= runs; r++) {
      uint8_t *const has = calloc(t.k.nr, 1);
      for (uint32_t i = 0; i < t.k.nr; i++) has[i] = below(20) ? 1 + below(2) : HAS_NONE;
      has[below(t.k.nr)] = HAS_PUT;
      world_add(&t, has);
      world_build(&t, UINT32_MAX, 1, REMIX_BUILD_SPLICE);
      check_view(&t);
    }
    // down again: any of them leave, and nothing is new
    while (t.nr > 1) {
      const uint32_t keep = (uint32_t)rng_next(&check_seed) | 1;
      for (uint32_t r = t.nr; r-- > 0;)
        if (!(keep >> r & 1)) world_drop(&t, r);
      world_build(&t, keep, 0, REMIX_BUILD_SPLICE);
      check_view(&t);
    }
    world_fini(&t);
    place_fini(&p);
  }
}

// ---- tests: what is read and compared

// Every table has compressed keys: a minor compaction reads them and the old REMIX, and no data; and of the keys it
// compares little more than the bytes by which they are told from each other.
static void minor_with_ckb(struct keyset *k, const char *what) {
  static const uint32_t shares[] = {9, 1000, 2};  // one of so many is new
  for (uint32_t n = 0; n < (k->nr > 900000 ? 2 : 3); n++) {
    struct place p;
    struct world t;
    place_init(&p, 0);
    world_init(&t, &p, CKB_ALL, 20, true);
    t.k = *k;
    uint8_t *const has = calloc(k->nr, 1);
    for (uint32_t i = 0; i < k->nr; i++) has[i] = below(shares[n]) == 0;
    world_spread(&t, 8, 10, has);
    world_add(&t, has);
    // what tells a key from the one before: the first byte in which it differs, of those it does not share with that
    // one and its own before
    uint64_t bytes = 0, lcp = 0;
    for (uint32_t i = 1; i < k->nr; i++) {
      const uint32_t next = kv_lcp_from(k->keys[i - 1], k->keys[i], 0);
      bytes += (next > lcp ? next - lcp : lcp - next) + 1;
      lcp = next;
    }
    const double differ = (double)bytes / k->nr;
    struct remix *const old = t.x;
    for (enum remix_build_way way = shares[n] == 1000 ? REMIX_BUILD_AUTO : REMIX_BUILD_MERGE; way <= REMIX_BUILD_SPLICE;
         way++) {
      remix_ref(old);
      world_build(&t, UINT32_MAX, 1, way);
      check_view(&t);
      const double compared = (double)t.b.key_bytes_compared / t.x->nr_entries;
      print_message("%s, 1 of %u new, %s: %.2f bytes compared per entry (keys differ in %.2f), %llu keys read, %llu "
                    "entries copied\n",
                    what, shares[n], t.b.way == REMIX_BUILD_SPLICE ? "splice" : "merge", compared, differ,
                    (unsigned long long)t.b.keys_read, (unsigned long long)t.b.entries_copied);
      assert_int_equal(t.b.data_pages_read, 0);
      assert_true(t.b.ckb_bytes_read > 0 && t.b.ckb_bytes_read <= ckb_bytes(&t));
      // a splice compares with anchors, too, which is why it is not what is done where every second key is new
      assert_true(compared <= differ + (shares[n] == 2 && way == REMIX_BUILD_SPLICE ? 3 : 1));
      if (t.b.way == REMIX_BUILD_MERGE) assert_int_equal(t.b.ckb_bytes_read, ckb_bytes(&t));
      if (shares[n] == 1000) {
        if (way == REMIX_BUILD_AUTO) assert_int_equal(t.b.way, REMIX_BUILD_SPLICE);
        if (t.b.way == REMIX_BUILD_SPLICE) assert_true(t.b.entries_copied > t.x->nr_entries * 9 / 10);
        assert_true(compared <= 1);
      }
      world_back(&t, old);
    }
    t.k = (struct keyset){0};
    world_fini(&t);
    place_fini(&p);
  }
}

static void test_minor_random(void **state) {
  (void)state;
  struct keyset k;
  keys_random16(&k, MILLION);
  minor_with_ckb(&k, "16 random bytes");
  keyset_free(&k);
}

static void test_minor_words(void **state) {
  (void)state;
  struct keyset k;
  if (!keys_words(&k, SLOW > 1 ? 1 : 5)) skip();
  minor_with_ckb(&k, "words below a path");
  keyset_free(&k);
}

// Without compressed keys: what is read grows with the number of new keys and not with the view.
static void sparse(uint32_t entries, uint32_t nr, uint32_t ckb, uint64_t *pages_out) {
  struct place p;
  struct world t;
  place_init(&p, 0);
  world_init(&t, &p, ckb, 100, true);
  keys_random16(&t.k, entries);
  static const char *const names[] = {"everywhere", "in four places", "in one place", "behind", "before"};
  uint8_t *has[LAYOUTS], *const out = calloc(t.k.nr, 1);
  for (uint32_t n = 0; n < LAYOUTS; n++) {
    has[n] = fresh_keys(&t, n, nr);
    for (uint32_t i = 0; i < t.k.nr; i++) out[i] |= has[n][i];
  }
  world_spread(&t, 8, 0, out);
  free(out);
  const uint64_t all = data_pages(&t, 8);
  struct remix *const old = t.x;
  for (uint32_t n = 0; n < LAYOUTS; n++) {
    world_add(&t, has[n]);
    remix_ref(old);
    world_build(&t, UINT32_MAX, 1, REMIX_BUILD_AUTO);
    check_view(&t);
    const uint64_t fresh_pages = t.sst[8]->ckb_len ? 0 : t.sst[8]->nr_pages, pages = t.b.data_pages_read - fresh_pages;
    const uint32_t fresh_nr = (uint32_t)t.sst[8]->nr_records;
    print_message("%u new keys %s, %u old ones: %llu data pages of %llu, %llu keys read, %llu entries copied\n",
                  fresh_nr, names[n], entries, (unsigned long long)pages, (unsigned long long)all,
                  (unsigned long long)t.b.keys_read, (unsigned long long)t.b.entries_copied);
    assert_int_equal(t.b.way, REMIX_BUILD_SPLICE);
    // one page to find a key's place, and one now and then to cut a segment
    assert_true(pages <= fresh_nr + fresh_nr / 4 + 8);
    if (ckb == CKB_NONE) assert_true(pages > 0);
    if (n != SPARSE) assert_true(pages <= fresh_nr / 4 + 100);
    assert_true(t.b.keys_read <= 3 * fresh_nr + 8);
    assert_true(t.b.entries_copied + 64ull * fresh_nr + 64 >= t.x->nr_entries - fresh_nr);
    if (n == SPARSE) *pages_out = pages;
    world_back(&t, old);
    world_drop(&t, 8);
  }
  world_fini(&t);
  place_fini(&p);
}

static void test_sparse(void **state) {
  (void)state;
  uint64_t small, large, mixed;
  const uint32_t nr = MILLION / 1000;
  sparse(MILLION / 4, nr, CKB_NONE, &small);
  sparse(MILLION, nr, CKB_NONE, &large);
  assert_true(large <= small + small / 4);
  sparse(MILLION / 4, nr, CKB_MIXED, &mixed);
  assert_true(mixed < small);
}

// The same again and again: when the view has as few entries in a segment as it may have, more is read to fill the next
// ones better, but as little as before for the size of the view.
static void test_sparse_again(void **state) {
  (void)state;
  struct place p;
  struct world t;
  place_init(&p, 0);
  world_init(&t, &p, CKB_NONE, 100, true);
  keys_random16(&t.k, MILLION / 4);
  const uint32_t nr = MILLION / 1000;
  uint8_t *const out = calloc(t.k.nr, 1);
  for (uint32_t i = 0; i < t.k.nr; i++) out[i] = below(10) == 0;
  world_spread(&t, 4, 0, out);
  free(out);
  for (uint32_t step = 0; step < 20; step++) {
    uint64_t before = 0;
    for (uint32_t r = 0; r < t.nr; r++) before += t.sst[r]->nr_records;
    world_add(&t, fresh_keys(&t, SPARSE, nr));
    world_build(&t, UINT32_MAX, 1, REMIX_BUILD_AUTO);
    const uint32_t fresh_nr = (uint32_t)t.sst[t.nr - 1]->nr_records;
    const uint64_t pages = t.b.data_pages_read - t.sst[t.nr - 1]->nr_pages;
    print_message("step %u: %u new keys, %llu data pages of %llu, %llu keys read, %llu of %llu entries copied, %.2f in "
                  "a segment\n",
                  step + 1, fresh_nr, (unsigned long long)pages, (unsigned long long)data_pages(&t, t.nr - 1),
                  (unsigned long long)t.b.keys_read, (unsigned long long)t.b.entries_copied, (unsigned long long)before,
                  fill(t.x));
    assert_int_equal(t.b.way, REMIX_BUILD_SPLICE);
    assert_true(pages <= 3 * fresh_nr);
    assert_true(t.b.keys_read <= 8 * fresh_nr);
    assert_true(fill(t.x) >= 26);
  }
  check_view(&t);
  world_fini(&t);
  place_fini(&p);
}

// A splice is not read more for than all there is when new keys come everywhere.
static void test_dense_data(void **state) {
  (void)state;
  struct place p;
  struct world t;
  place_init(&p, 0);
  world_init(&t, &p, CKB_NONE, 100, true);
  keys_random16(&t.k, MILLION / 10);
  for (uint32_t n = 4; n <= 256; n *= 4) {
    uint8_t *const has = calloc(t.k.nr, 1);
    for (uint32_t i = 0; i < t.k.nr; i++) has[i] = below(n) == 0;
    struct world u = {.p = &p, .k = t.k, .value = 100, .tags = true};
    world_spread(&u, 5, 0, has);
    const uint64_t all = data_pages(&u, 5);
    world_add(&u, has);
    world_build(&u, UINT32_MAX, 1, REMIX_BUILD_SPLICE);
    check_view(&u);
    const uint64_t pages = u.b.data_pages_read - u.sst[5]->nr_pages;
    print_message("one of %u new: %llu data pages of %llu\n", n, (unsigned long long)pages, (unsigned long long)all);
    assert_true(pages <= all + all / 16);
    u.k = (struct keyset){0};
    world_fini(&u);
  }
  world_fini(&t);
  place_fini(&p);
}

// ---- tests: segments stay full

// 50 times a few keys anywhere; when there are many runs the newest go, and come back as one.
static void test_fill(void **state) {
  (void)state;
  for (uint32_t ckb = 0; ckb < 3; ckb++) {
    struct place p;
    struct world t;
    place_init(&p, 0);
    world_init(&t, &p, ckb, 30, true);
    keys_random16(&t.k, SLOW > 1 ? 40000 : 100000);
    // a third of the keys come later: each of the 50 steps brings one of 75
    uint8_t *const out = calloc(t.k.nr, 1);
    for (uint32_t i = 0; i < t.k.nr; i++) out[i] = below(3) == 0;
    world_spread(&t, 2, 0, out);
    free(out);
    double least = REMIX_SEG;
    uint64_t pages = 0, fresh = 0;
    for (uint32_t step = 0; step < 50; step++) {
      uint8_t *const has = calloc(t.k.nr, 1);
      uint32_t keep = UINT32_MAX;
      if (t.nr > 10) {
        for (uint32_t r = 2; r < t.nr; r++)
          for (uint32_t i = 0; i < t.k.nr; i++)
            if (t.has[r][i]) has[i] = HAS_PUT;
        while (t.nr > 2) world_drop(&t, t.nr - 1);
        keep = 3;
      }
      for (uint32_t i = 0; i < t.k.nr; i++)
        if (below(75) == 0) has[i] = HAS_PUT;
      world_add(&t, has);
      world_build(&t, keep, 1, REMIX_BUILD_SPLICE);
      if (step % 10 == 9) check_view(&t);
      if (fill(t.x) < least) least = fill(t.x);
      pages += t.b.data_pages_read;
      fresh += t.sst[t.nr - 1]->nr_records;
    }
    print_message(
        "50 steps: at least %.1f entries in a segment, %.1f at the end; %.2f data pages read for each new key\n", least,
        fill(t.x), (double)pages / fresh);
    assert_true(least >= 26);
    world_fini(&t);
    place_fini(&p);
  }
}

// Runs that leave take their entries with them: what is left does not lie in segments with holes.
static void test_fill_leaving(void **state) {
  (void)state;
  struct place p;
  struct world t;
  place_init(&p, 0);
  world_init(&t, &p, CKB_ALL, 30, true);
  keys_random16(&t.k, 30000);
  world_spread(&t, 8, 0, NULL);
  while (t.nr > 1) {
    const uint32_t run = below(t.nr), keep = ~(1u << run);
    world_drop(&t, run);
    world_build(&t, keep, 0, REMIX_BUILD_SPLICE);
    check_view(&t);
    assert_true(fill(t.x) >= 27);
  }
  world_fini(&t);
  place_fini(&p);
}

// ---- tests: failures

// A small partition for it; `old` gets the view before, and t->x is NULL.
static void fault_world(struct world *t, struct place *p, uint32_t ckb, bool zstd, struct remix **old) {
  place_init(p, 0);
  world_init(t, p, ckb, 60, true);
  t->zstd = zstd;
  keys_kind(&t->k, KIND_MIXED, 3000);
  world_spread(t, 4, 3, NULL);
  world_add(t, fresh_keys(t, SPARSE, 30));
  *old = t->x;
  t->x = NULL;
}

static char *world_path(const struct world *t, uint64_t number, char *path) {
  char name[32];
  remix_name(name, number);
  OK(env_path(path, t->p->dir, name));
  return path;
}

// Every allocation, and every call to the file system of every kind, fails in turn: a status with a message, and no
// file.
static void test_failures(void **state) {
  (void)state;
  static const unsigned kinds[] = {0, FAULT_OPEN, FAULT_READ, FAULT_WRITE, FAULT_SYNC, FAULT_CLOSE};
  for (uint32_t round = 0; round < 12; round++) {
    struct place p;
    struct world t;
    struct remix *old;
    fault_world(&t, &p, round % 3, round >= 6, &old);
    const enum remix_build_way way = round / 3 % 2 ? REMIX_BUILD_MERGE : REMIX_BUILD_SPLICE;
    // the third: runs leave, so that keys are read where segments are joined
    const uint32_t keep = round % 3 == 2 ? 0xB : UINT32_MAX;
    char path[ENV_PATH_MAX];
    world_path(&t, 900, path);
    for (uint32_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
      uint32_t failed = 0;
      for (int64_t n = 1;; n++) {
        struct remix_build b = {.ctx = &p.ctx,
                                .queue = p.queue,
                                .number = 900,
                                .old = old,
                                .keep = keep,
                                .fresh = t.sst + 4,
                                .nr_fresh = 1,
                                .tags = true,
                                .way = way};
        if (kinds[k]) fault_io_set(kinds[k], n, false);
        else fault_mem_set(n);
        const enum remixdb_status s = remix_build(&b);
        const bool met = kinds[k] ? fault_io_end() : fault_mem_end();
        if (!met) {
          OK(s);
          break;
        }
        if (kinds[k]) assert_true(s == REMIXDB_IO || s == REMIXDB_NOSPACE);
        else FAILS(s, REMIXDB_NOMEM);
        assert_true(err_msg()[0] != 0);
        assert_int_not_equal(access(path, F_OK), 0);
        failed++;
      }
      assert_int_equal(access(path, F_OK), 0);
      OK(env_unlink(ENV_PATHS(env_posix()), path));
      assert_true(failed > 0);
    }
    t.x = old;
    world_fini(&t);
    place_fini(&p);
  }
}

static uint8_t *file_get(const char *path, size_t *len) {
  uint8_t *p;
  OK(paths_read_file(ENV_PATHS(env_posix()), path, SIZE_MAX, &p, len));
  return p;
}

static void file_put(const char *path, const uint8_t *p, size_t len) {
  FILE *f = fopen(path, "r+b");
  if (!f) f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(p, 1, len, f), len);
  assert_int_equal(fclose(f), 0);
}

// Damage in what a splice reads is found, compressed keys that are only passed over included; what it does not read it
// cannot know.
static void test_damaged_tables(void **state) {
  (void)state;
  for (uint32_t ckb = 0; ckb < 2; ckb++) {
    struct place p;
    struct world t;
    struct remix *old;
    place_init(&p, 0);
    world_init(&t, &p, ckb ? CKB_ALL : CKB_NONE, 60, true);
    keys_random16(&t.k, 60000);
    world_spread(&t, 2, 0, NULL);
    uint8_t *const has = calloc(t.k.nr, 1);
    for (uint32_t i = 0; i < 40; i++) has[t.k.nr / 2 + below(t.k.nr / 2)] = HAS_TOMB;
    uint32_t last = t.k.nr - 1;
    while (!t.has[0][last]) last--;
    has[last] = HAS_PUT;
    world_add(&t, has);
    old = t.x;
    t.x = NULL;
    char path[ENV_PATH_MAX];
    world_path(&t, 900, path);
    size_t len;
    uint8_t *const image = file_get(t.sst[0]->path, &len);
    const uint64_t from = ckb ? t.sst[0]->ckb_off : 0,
                   to = ckb ? t.sst[0]->ckb_off + t.sst[0]->ckb_len : t.sst[0]->data_size;
    uint32_t found = 0, times = 0;
    for (uint64_t at = from + 1000; at < to; at += 4096, times++) {
      image[at] ^= 0x10;
      file_put(t.sst[0]->path, image, len);
      struct remix_build b = {.ctx = &p.ctx,
                              .queue = p.queue,
                              .number = 900,
                              .old = old,
                              .keep = UINT32_MAX,
                              .fresh = t.sst + 2,
                              .nr_fresh = 1,
                              .tags = true,
                              .way = REMIX_BUILD_SPLICE};
      const enum remixdb_status s = remix_build(&b);
      image[at] ^= 0x10;
      assert_true(s == REMIXDB_OK || s == REMIXDB_CORRUPT);
      assert_int_equal(access(path, F_OK) == 0, s == REMIXDB_OK);
      if (s == REMIXDB_OK) OK(env_unlink(ENV_PATHS(env_posix()), path));
      found += s == REMIXDB_CORRUPT;
      if (s == REMIXDB_CORRUPT) assert_non_null(strstr(err_msg(), t.sst[0]->path));
    }
    file_put(t.sst[0]->path, image, len);
    mem_free(image);
    if (ckb)
      assert_int_equal(found, times);  // its last key comes again and is looked at, so that all chunks are passed
    else assert_true(found > 0 && found <= 90 && found < times);
    t.x = old;
    world_fini(&t);
    place_fini(&p);
  }
}

// A REMIX whose checksum is right and which says what is not true of the keys: the splice ends, with a view or with an
// error.
static void test_damaged_view(void **state) {
  (void)state;
  struct place p;
  struct world t;
  place_init(&p, 0);
  world_init(&t, &p, CKB_MIXED, 20, true);
  keys_kind(&t.k, KIND_TINY, 250);
  world_spread(&t, 3, 3, NULL);
  world_add(&t, fresh_keys(&t, SPARSE, t.k.nr / 4));
  uint8_t *const again = calloc(t.k.nr, 1);
  memcpy(again, t.has[2], t.k.nr);
  world_add(&t, again);
  struct remix *const old = t.x, *bad;
  t.x = NULL;
  char path[ENV_PATH_MAX], made[ENV_PATH_MAX];
  world_path(&t, old->number, path);
  world_path(&t, 900, made);
  // as format 1 has it: the image itself, with a checksum at its end
  const size_t len = old->image_size;
  uint8_t *const image = malloc(len);
  memcpy(image, old->image, len);
  store32le(image + 8, 1);
  OK(env_unlink(ENV_PATHS(env_posix()), path));
  uint32_t opened = 0, refused = 0;
  for (size_t i = 104; i < len - 8; i++) {
    for (uint32_t bit = 0; bit < 8; bit++) {
      image[i] ^= (uint8_t)(1u << bit);
      store64le(image + len - 8, hash64_seed(image, len - 8, old->number));
      file_put(path, image, len);
      if (remix_open(&p.ctx, old->number, t.sst, 3, &bad) == REMIXDB_OK) {
        // new keys come; or the newest run is another table now, and no key is read
        for (uint32_t moves = 0; moves < 2; moves++) {
          struct remix_build b = {.ctx = &p.ctx,
                                  .queue = p.queue,
                                  .number = 900,
                                  .old = bad,
                                  .fresh = t.sst + 3 + moves,
                                  .nr_fresh = 1,
                                  .moved = moves,
                                  .tags = true};
          b.keep = moves ? first_runs(2) : below(3) ? UINT32_MAX : (uint32_t)rng_next(&check_seed);
          b.way = moves ? REMIX_BUILD_MOVED : REMIX_BUILD_SPLICE;
          const enum remixdb_status s = remix_build(&b);
          assert_true(s == REMIXDB_OK || (s == REMIXDB_CORRUPT && !moves));
          assert_true(!moves || b.way == REMIX_BUILD_MOVED);
          assert_int_equal(access(made, F_OK) == 0, s == REMIXDB_OK);
          if (s == REMIXDB_OK) OK(env_unlink(ENV_PATHS(env_posix()), made));
          refused += s == REMIXDB_CORRUPT;
        }
        opened++;
        remix_unref(bad);
      }
      image[i] ^= (uint8_t)(1u << bit);
    }
  }
  assert_true(opened > 100 && refused > 100);
  free(image);
  t.x = old;
  world_fini(&t);
  place_fini(&p);
}

// New tables that overlap, and an old one that is new again under another name, which is no error.
static void test_overlap(void **state) {
  (void)state;
  for (enum remix_build_way way = REMIX_BUILD_AUTO; way <= REMIX_BUILD_SPLICE; way++) {
    struct place p;
    struct world t;
    small_world(&t, &p, KIND_PATHS, CKB_ALL);
    world_spread(&t, 2, 0, NULL);
    uint8_t *const all = calloc(t.k.nr, 1), *const last = calloc(t.k.nr, 1);
    memset(all, HAS_PUT, t.k.nr);
    last[t.k.nr - 1] = HAS_PUT;  // the largest key, in both
    world_add(&t, all);
    world_add(&t, last);
    struct remix_build b = {.ctx = &p.ctx,
                            .queue = p.queue,
                            .number = 900,
                            .old = t.x,
                            .keep = UINT32_MAX,
                            .fresh = t.sst + 2,
                            .nr_fresh = 2,
                            .tags = t.tags,
                            .way = way};
    char path[ENV_PATH_MAX];
    FAILS(remix_build(&b), REMIXDB_CORRUPT);
    assert_int_not_equal(access(world_path(&t, 900, path), F_OK), 0);
    world_fini(&t);
    place_fini(&p);
  }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_ways_agree),       cmocka_unit_test(test_fifty_steps),    cmocka_unit_test(test_all_versions),
    cmocka_unit_test(test_minor_random),     cmocka_unit_test(test_minor_words),    cmocka_unit_test(test_sparse),
    cmocka_unit_test(test_dense_data),       cmocka_unit_test(test_fill),           cmocka_unit_test(test_fill_leaving),
    cmocka_unit_test(test_failures),         cmocka_unit_test(test_damaged_tables), cmocka_unit_test(test_damaged_view),
    cmocka_unit_test(test_overlap),          cmocka_unit_test(test_sparse_again),   cmocka_unit_test(test_moved),
    cmocka_unit_test(test_moved_not_newest), cmocka_unit_test(test_moved_too_few),  cmocka_unit_test(test_moved_lean),
};

int main(void) {
  const char *const given = getenv("TEST_SEED");
  const uint64_t start = check_seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
  const int rc = cmocka_run_group_tests(tests, NULL, NULL);
  if (rc) (void)fprintf(stderr, "repeat with TEST_SEED=%llu\n", (unsigned long long)start);
  return rc;
}
