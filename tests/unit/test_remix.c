// SPDX-License-Identifier: Apache-2.0
//
// REMIX against a model: the file is compared byte for byte with one made the plain way from the sorted entries, and
// every search with a search in an array.
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/blind.h"
#include "tests/lib/check.h"

#include "tests/lib/place.h"

// ---- keys

enum { KEYS_TINY, KEYS_NUMBERS, KEYS_PATHS, KEYS_BINARY, KEYS_FAR, KEYS_DENSE, KEYS_KINDS };

static uint32_t key_make(uint32_t kind, uint64_t *rng, uint8_t *buf) {
  static const uint8_t odd[] = {0x00, 0xff, 'a', 'b', 0x80, 0x7f};
  uint32_t len = 0;
  switch (kind) {
    case KEYS_TINY:
      len = rng_next(rng) % 7;
      for (uint32_t i = 0; i < len; i++) buf[i] = odd[rng_next(rng) % sizeof(odd)];
      return len;
    case KEYS_NUMBERS: return (uint32_t)sprintf((char *)buf, "%016llu", (unsigned long long)(rng_next(rng) % 100000));
    case KEYS_PATHS:
      len = (uint32_t)sprintf((char *)buf, "/a/long/common/prefix/of/all/of/them/%s",
                              rng_next(rng) % 3 ? "share/" : "lib/");
      for (uint32_t n = rng_next(rng) % 4; n > 0; n--)
        len += (uint32_t)sprintf((char *)buf + len, "directory%u/", (uint32_t)(rng_next(rng) % 5));
      return len + (uint32_t)sprintf((char *)buf + len, "file%u", (uint32_t)(rng_next(rng) % 200));
    case KEYS_BINARY:
      len = 1 + rng_next(rng) % 40;
      for (uint32_t i = 0; i < len; i++) buf[i] = (uint8_t)rng_next(rng);
      return len;
    case KEYS_FAR:
      // common stretches of up to 9,000 bytes, so that bits of one segment are more than 4,094 bytes apart
      buf[0] = (uint8_t)('a' + rng_next(rng) % 4);
      len = 1 + (uint32_t)(rng_next(rng) % 3) * 3000;
      memset(buf + 1, 'x', len);
      for (uint32_t i = 0; i < 3; i++) buf[len++] = odd[rng_next(rng) % sizeof(odd)];
      return len;
    default:
      // neighbours in all bits: every number of 12 bits
      len = (uint32_t)(rng_next(rng) % 4096);
      buf[0] = (uint8_t)(len >> 4);
      buf[1] = (uint8_t)(len << 4);
      return 2;
  }
}

static void keyset_of_kind(struct keyset *k, uint32_t kind, uint32_t nr, uint64_t *rng) {
  uint8_t *buf = malloc(65536);
  k->keys = calloc(nr, sizeof(*k->keys));
  for (uint32_t i = 0; i < nr; i++) {
    const uint32_t len = key_make(kind, rng, buf);
    uint8_t *p = malloc(len + 1);
    memcpy(p, buf, len);
    k->keys[i] = kref(p, len);
  }
  free(buf);
  qsort(k->keys, nr, sizeof(*k->keys), key_order);
  k->nr = 0;
  for (uint32_t i = 0; i < nr; i++) {
    if (k->nr && kv_eq(k->keys[k->nr - 1], k->keys[i])) free((void *)(uintptr_t)k->keys[i].ptr);
    else k->keys[k->nr++] = k->keys[i];
  }
}

// ---- tables and the model of a partition

#define HAS_PUT 1
#define HAS_TOMB 2

struct tables {
  struct place *p;
  struct keyset k;
  bool young;  // its REMIX is a young view: tombstones are live
  uint32_t nr;
  struct sst *sst[REMIX_RUNS_MAX];
  uint8_t *has[REMIX_RUNS_MAX];  // per key: 0 or HAS_
};

// The value of a key in a table follows from both.
static uint32_t table_value(uint64_t table, struct kref key, uint8_t *buf) {
  uint64_t r = hash64_seed(key.ptr, key.len, table);
  const uint32_t len = r % 100 == 0 ? 5000 + (uint32_t)(r >> 32) % 9000 : (uint32_t)(r >> 8) % 60;
  memset(buf, (int)(r >> 40), len);
  if (len >= 8) store64le(buf, r);
  return len;
}

static void part_add_table(struct tables *t, uint8_t *has, bool ckeys) {
  struct place *p = t->p;
  struct sst_build *b;
  uint8_t *val = malloc(16384);
  uint64_t size;
  const uint64_t number = p->next++;
  OK(sst_build_create(&p->ctx, &(struct sst_build_opts){.ckeys = ckeys}, p->queue, &b));
  sst_build_start(b, number);
  for (uint32_t i = 0; i < t->k.nr; i++) {
    if (!has[i]) continue;
    struct kv_rec r = {.key = t->k.keys[i].ptr, .klen = t->k.keys[i].len, .val = val, .tomb = has[i] == HAS_TOMB};
    r.vlen = r.tomb ? 0 : table_value(number, t->k.keys[i], val);
    sst_build_add(b, &r);
  }
  OK(sst_build_finish(b, &size));
  sst_build_destroy(b);
  free(val);
  OK(sst_open(&p->ctx, number, &t->sst[t->nr]));
  t->has[t->nr++] = has;
}

static void part_drop(struct tables *t, uint32_t run) {
  sst_unref(t->sst[run]);
  free(t->has[run]);
  for (uint32_t r = run + 1; r < t->nr; r++) {
    t->sst[r - 1] = t->sst[r];
    t->has[r - 1] = t->has[r];
  }
  t->nr--;
}

static void part_fini(struct tables *t) {
  while (t->nr) part_drop(t, t->nr - 1);
  keyset_free(&t->k);
}

// Random tables: each key is in each run with a chance of one in `sparse`; none of them is empty.
static uint8_t *has_make(const struct keyset *k, uint32_t sparse, uint64_t *rng) {
  uint8_t *has = calloc(k->nr, 1);
  for (uint32_t i = 0; i < k->nr; i++)
    if (rng_next(rng) % sparse == 0) has[i] = rng_next(rng) % 5 ? HAS_PUT : HAS_TOMB;
  has[rng_next(rng) % k->nr] = HAS_PUT;
  return has;
}

struct entry {
  uint32_t key;
  uint8_t run;
  bool tomb, old;
};

// All versions in order.
static struct entry *part_view(const struct tables *t, uint32_t *nr_out) {
  struct entry *e = calloc((size_t)t->k.nr * t->nr + 1, sizeof(*e));
  uint32_t nr = 0;
  for (uint32_t i = 0; i < t->k.nr; i++) {
    bool old = false;
    for (uint32_t r = t->nr; r-- > 0;) {
      if (!t->has[r][i]) continue;
      e[nr++] = (struct entry){.key = i, .run = (uint8_t)r, .tomb = t->has[r][i] == HAS_TOMB, .old = old};
      old = true;
    }
  }
  *nr_out = nr;
  return e;
}

// The entries that a cursor stops at.
static struct entry *part_live(const struct tables *t, uint32_t *nr_out) {
  uint32_t all, nr = 0;
  struct entry *e = part_view(t, &all);
  for (uint32_t i = 0; i < all; i++)
    if (!e[i].old && (t->young || !e[i].tomb)) e[nr++] = e[i];
  *nr_out = nr;
  return e;
}

// ---- the file, made the plain way

static uint32_t slow_bit(struct kref k, uint32_t byte, uint32_t b) {
  if (byte >= k.len) return 0;
  return b == 0 ? 1 : k.ptr[byte] >> (8 - b) & 1;
}

static uint32_t slow_dbit(struct kref a, struct kref b) {
  for (uint32_t byte = 0;; byte++)
    for (uint32_t i = 0; i <= 8; i++)
      if (slow_bit(a, byte, i) != slow_bit(b, byte, i)) return byte << 4 | i;
}

static uint8_t *slow_image(const struct tables *t, bool tags, uint64_t number, size_t *size_out) {
  uint32_t nr;
  struct entry *e = part_view(t, &nr);
  const struct remix_layout l = remix_layout(t->nr, tags);
  size_t anchors_max = 0;
  for (uint32_t i = 0; i < t->k.nr; i++) anchors_max += t->k.keys[i].len;
  const size_t segs_off = remix_segs_off(t->nr);
  uint8_t *image = calloc(1, segs_off + (size_t)(nr + 1) * (l.stride + 4) + anchors_max + 64);
  uint8_t *anchors = malloc(anchors_max + 1);
  uint32_t *offs = calloc(nr + 2, sizeof(*offs));
  uint32_t segs = 0, len = 0, taken[REMIX_RUNS_MAX] = {0};
  uint64_t keys = 0;

  for (uint32_t from = 0, to; from < nr; from = to) {
    // whole keys, as many as fit
    to = from;
    for (;;) {
      uint32_t end = to + (to < nr);
      while (end < nr && e[end].old) end++;
      if (end == to || end - from > REMIX_SEG) break;
      to = end;
    }
    uint8_t *s = image + segs_off + (size_t)segs * l.stride;
    offs[segs++] = len;
    if (from) {
      const uint32_t lcp = slow_dbit(t->k.keys[e[from - 1].key], t->k.keys[e[from].key]) >> 4;
      memcpy(anchors + len, t->k.keys[e[from].key].ptr, lcp + 1);
      len += lcp + 1;
    }
    uint32_t base = UINT32_MAX;
    for (uint32_t i = from + 1; i < to; i++) {
      if (e[i].old) continue;
      const uint32_t d = slow_dbit(t->k.keys[e[i - 1].key], t->k.keys[e[i].key]) >> 4;
      if (d < base) base = d;
    }
    if (base == UINT32_MAX) base = 0;
    s[l.head] = (uint8_t)(to - from);
    store16le(s + l.head + 2, base);
    for (uint32_t r = 0; r < t->nr; r++) store32le(s + l.offs + 4 * r, sst_advance(t->sst[r], 0, taken[r]));
    for (uint32_t i = from; i < to; i++) {
      const struct kref k = t->k.keys[e[i].key];
      if (tags) s[i - from] = remix_tag(hash64(k.ptr, k.len));
      s[l.sel + i - from] = (uint8_t)(e[i].run | (e[i].tomb ? REMIX_TOMB : 0) | (e[i].old ? REMIX_OLD : 0));
      keys += !e[i].old && !e[i].tomb;
      taken[e[i].run]++;
      if (i == from) continue;
      uint32_t d = BLIND_SAME;
      if (!e[i].old) {
        d = slow_dbit(t->k.keys[e[i - 1].key], k);
        if ((d >> 4) - base > 4094) {
          d = BLIND_FAR;
          s[l.head + 1] = REMIX_SEG_FAR;
        } else {
          d -= base << 4;
        }
      }
      store16le(s + l.dbits + 2 * (i - from), d);
    }
  }
  offs[segs] = len;
  size_t at = segs_off + (size_t)segs * l.stride;
  memcpy(image, REMIX_MAGIC, 8);
  store32le(image + 8, 1);
  store32le(image + 12, tags);
  store64le(image + 16, PLACE_STORE_ID);
  store64le(image + 24, number);
  store32le(image + 40, t->nr);
  store32le(image + 44, segs);
  store64le(image + 48, nr);
  store64le(image + 56, keys);
  store32le(image + 64, l.stride);
  store64le(image + 72, segs_off);
  store64le(image + 80, at);
  store64le(image + 88, at + 4 * (segs + 1));
  store64le(image + 96, len);
  for (uint32_t r = 0; r < t->nr; r++) store64le(image + 104 + 8 * r, t->sst[r]->number);
  memcpy(image + at, offs, 4 * (segs + 1));
  at += 4 * (segs + 1);
  memcpy(image + at, anchors, len);
  at += len;
  store64le(image + 32, at + 8);
  store64le(image + at, hash64_seed(image, at, number));
  *size_out = at + 8;
  free(offs);
  free(anchors);
  free(e);
  return image;
}

// ---- checks

static void remix_path(const struct place *p, uint64_t number, char *path) {
  char name[32];
  remix_name(name, number);
  OK(env_path(path, p->dir, name));
}

// Builds from `old` (NULL: from nothing) and the last nr_fresh tables of t, and holds the file against the plain one.
static struct remix *part_build(struct tables *t, const struct remix *old, uint32_t keep, uint32_t nr_fresh, bool tags,
                                uint64_t *pages_read_out) {
  struct place *p = t->p;
  char path[ENV_PATH_MAX];
  _Atomic uint64_t progress;
  atomic_init(&progress, 0);
  struct remix_build b = {.ctx = &p->ctx,
                          .queue = p->queue,
                          .number = p->next++,
                          .old = old,
                          .keep = keep,
                          .nr_fresh = nr_fresh,
                          .fresh = t->sst + t->nr - nr_fresh,
                          .tags = tags,
                          .progress = &progress,
                          .way = REMIX_BUILD_MERGE,
                          .keep_image = true};
  OK(remix_build(&b));
  if (pages_read_out) *pages_read_out = b.data_pages_read;

  size_t size;
  uint8_t *want = slow_image(t, tags, b.number, &size);
  struct env_stat st;
  remix_path(p, b.number, path);
  OK(env_stat(ENV_PATHS(env_posix()), path, &st));
  assert_int_equal(st.size, b.file_size);
  struct remix *x;
  OK(remix_open(&p->ctx, b.number, t->sst, t->nr, &x));
  assert_int_equal(x->file_size, b.file_size);
  assert_int_equal(x->image_size, size);
  // what was built is what is read
  struct remix *built;
  assert_int_equal(b.image_size, size);
  OK(remix_open_built(&p->ctx, b.number, t->sst, t->nr, b.image, b.image_size, b.file_size, &built));
  mem_free(b.image);
  assert_int_equal(built->image_size, size);
  assert_memory_equal(built->image, x->image, size);
  assert_int_equal(built->file_size, x->file_size);
  remix_unref(built);
  // the checksum is the file's, and so is the format
  for (size_t i = 0; i < size - 8; i++)
    if ((i < 8 || i >= 12) && x->image[i] != want[i])
      fail_msg("byte %zu of %zu differs: %#x, %#x expected", i, size, x->image[i], want[i]);
  free(want);
  uint32_t nr;
  struct entry *e = part_view(t, &nr);
  assert_int_equal(x->nr_entries, nr);
  assert_int_equal(atomic_load(&progress), nr);
  free(e);
  assert_true(remix_memory(x) > size);
  return x;
}

static void done(struct remix *x) {
  atomic_store(&x->obsolete, true);
  remix_unref(x);
}

// Builds a REMIX of all tables of t, which overlap: they arrive one by one.
static struct remix *part_build_all(struct tables *t, bool tags) {
  struct remix *x = NULL;
  const uint32_t all = t->nr;
  for (t->nr = 1; t->nr <= all; t->nr++) {
    struct remix *y = part_build(t, x, UINT32_MAX, 1, tags, NULL);
    if (x) done(x);
    x = y;
  }
  t->nr = all;
  return x;
}

// First entry >= key.
static uint32_t lower(const struct tables *t, const struct entry *e, uint32_t nr, struct kref key) {
  uint32_t lo = 0, hi = nr;
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (kv_cmp(t->k.keys[e[mid].key], key) < 0) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

static void check_record(const struct tables *t, const struct entry *e, const struct kv_rec *r) {
  uint8_t *val = malloc(16384);
  const struct kref key = t->k.keys[e->key];
  assert_true(kv_eq(kref(r->key, r->klen), key));
  assert_int_equal(r->tomb, e->tomb);
  const uint32_t len = e->tomb ? 0 : table_value(t->sst[e->run]->number, key, val);
  assert_int_equal(r->vlen, len);
  if (len) assert_memory_equal(r->val, val, len);
  free(val);
}

static void check_at(const struct tables *t, struct remix_cursor *c, const struct entry *e, uint32_t nr, uint32_t at,
                     bool read) {
  assert_int_equal(remix_valid(c), at < nr);
  if (at >= nr) return;
  assert_int_equal(remix_run(c), e[at].run);
  if (!read) return;
  struct kv_rec r;
  OK(remix_record(c, &r));
  check_record(t, &e[at], &r);
}

// A key near one of the set, present or not.
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

// Skips from entry `at`, half of the time not beyond the segment of a key; returns how many were passed.
static uint32_t check_skip(const struct tables *t, struct remix *x, struct remix_cursor *c, const struct entry *e,
                           uint32_t nr, uint32_t at, uint32_t far, struct kref key) {
  const uint32_t end = far % 2 ? remix_segment(x, key) : UINT32_MAX, seg = c->seg;
  const uint32_t most = nr - 1 - at < far ? nr - 1 - at : far, moved = remix_skip(c, far, end);
  assert_true(moved <= most && remix_valid(c));
  if (end == UINT32_MAX) assert_int_equal(moved, most);
  if (moved) assert_true(c->seg < end);
  check_at(t, c, e, nr, at + moved, true);
  if (moved == most) return moved;
  // what stopped it: the next one is in that segment, or behind it
  if (seg < end) assert_true(kv_cmp(t->k.keys[e[at + moved].key], key) < 0);
  remix_next(c);
  assert_true(c->seg >= end);
  remix_prev(c);
  return moved;
}

static void check_queries(struct tables *t, struct remix *x, uint32_t times, uint64_t *rng) {
  uint32_t nr;
  struct entry *e = part_live(t, &nr);
  uint8_t *buf = malloc(65536 + 1);
  struct remix_cursor c;
  struct sst_hold hold = {0};
  remix_cursor_init(&c, rng_next(rng) % 2 ? t->p->queue : NULL);
  assert_false(remix_valid(&c));
  OK(remix_cursor_set(&c, x));
  assert_false(remix_valid(&c));
  for (uint32_t i = 0; i < times; i++) {
    const struct kref key = probe_make(t, rng, buf);
    const uint32_t at = lower(t, e, nr, key);
    const bool here = at < nr && kv_eq(t->k.keys[e[at].key], key);
    struct kv_rec r;
    enter(t->p);
    const enum remixdb_status s = remix_get(x, key, hash64(key.ptr, key.len), &hold, &r);
    assert_int_equal(s, here ? REMIXDB_OK : REMIXDB_NOTFOUND);
    if (here) check_record(t, &e[at], &r);

    uint32_t stand = at;
    const uint32_t wish = (uint32_t)(rng_next(rng) % 8);
    if (wish < 3) {  // one that is not come for: the cursor is sent elsewhere
      remix_seek_begin(&c, t->k.keys[rng_next(rng) % t->k.nr]);
      if (wish == 0) remix_seek_first(&c);
      else if (wish == 1) remix_seek_last(&c);
      else OK(remix_cursor_set(&c, c.x));
    }
    if (wish >= 5) remix_seek_begin(&c, key);
    if (rng_next(rng) % 2) {
      OK(remix_seek(&c, key));
    } else {
      OK(remix_seek_for_prev(&c, key));
      if (!here) stand = at ? at - 1 : nr;
    }
    check_at(t, &c, e, nr, stand, rng_next(rng) % 2);
    const uint32_t steps = (uint32_t)(rng_next(rng) % 12), back = (uint32_t)(rng_next(rng) % 3);
    for (uint32_t n = 0; n < steps && stand < nr; n++) {
      if (rng_next(rng) % 4 == 0) {  // outside of the epoch a cursor may stand still
        leave(t->p);
        enter(t->p);
      }
      if (back == 0 || (back == 1 && rng_next(rng) % 2)) {
        remix_prev(&c);
        stand = stand ? stand - 1 : nr;
      } else if (rng_next(rng) % 4 == 0) {
        const uint32_t far = (uint32_t)(rng_next(rng) % (rng_next(rng) % 2 ? 10 : 500));
        stand += check_skip(t, x, &c, e, nr, stand, far, probe_make(t, rng, buf));
      } else {
        remix_next(&c);
        stand++;
      }
      check_at(t, &c, e, nr, stand, rng_next(rng) % 2);
    }
    if (rng_next(rng) % 16 == 0) OK(remix_cursor_set(&c, c.x));
    leave(t->p);
  }
  // all of it in both directions
  enter(t->p);
  remix_seek_first(&c);
  for (uint32_t i = 0; i <= nr; i++) {
    check_at(t, &c, e, nr, i, i % 3 == 0);
    if (i < nr) remix_next(&c);
  }
  remix_seek_last(&c);
  for (uint32_t i = nr; i-- > 0;) {
    check_at(t, &c, e, nr, i, i % 3 == 0);
    remix_prev(&c);
  }
  assert_false(remix_valid(&c));
  leave(t->p);
  remix_cursor_fini(&c);
  sst_hold_fini(&hold);
  free(e);
  free(buf);
}

// Many keys side by side: each ends where remix_get would.
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
  remix_probe_find(p, which, left);
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

// Returns how many entries do not record what they share with the one before.
static uint32_t check_walk(const struct tables *t, const struct remix *x) {
  uint32_t nr, i = 0, unknown = 0;
  struct entry *e = part_view(t, &nr);
  struct remix_walk w;
  for (remix_walk_init(&w, x); remix_walk_valid(&w); remix_walk_next(&w), i++) {
    assert_true(i < nr);
    assert_int_equal(w.sel[w.at], e[i].run | (e[i].tomb ? REMIX_TOMB : 0) | (e[i].old ? REMIX_OLD : 0));
    const struct kref k = t->k.keys[e[i].key];
    assert_int_equal(w.tag != NULL, x->tags);
    if (w.tag) assert_int_equal(w.tag[w.at], remix_tag(hash64(k.ptr, k.len)));
    bool known;
    const uint32_t lcp = remix_walk_lcp(&w, &known);
    if (known) assert_int_equal(lcp, i == 0 ? 0 : e[i].old ? UINT32_MAX : kv_lcp_from(t->k.keys[e[i - 1].key], k, 0));
    unknown += !known;
  }
  assert_int_equal(i, nr);
  free(e);
  return unknown;
}

// A random test that fails says with which seed.
static uint64_t seed_start(const char *what) {
  const char *s = getenv("TEST_SEED");
  const uint64_t seed = s ? strtoull(s, NULL, 0) : time_ns();
  print_message("%s: TEST_SEED=%llu\n", what, (unsigned long long)seed);
  return seed;
}

// ---- tests

static void test_random_partitions(void **state) {
  (void)state;
  uint64_t rng = seed_start("random partitions");
  uint32_t far = 0;
  for (uint32_t round = 0; round < 36; round++) {
    struct place p;
    place_init(&p, round % 4 == 3 ? 0 : (size_t)(1 + round % 3) << 20);
    struct tables t = {.p = &p};
    const uint32_t kind = round % KEYS_KINDS;
    keyset_of_kind(&t.k, kind, kind == KEYS_FAR ? 150 : 20 + (uint32_t)(rng_next(&rng) % 900), &rng);
    const uint32_t runs = round % 5 == 0 ? 1 : round % 5 == 1 ? 32 : 1 + (uint32_t)(rng_next(&rng) % 12);
    const uint32_t sparse = runs > 16 ? 20 : 1 + (uint32_t)(rng_next(&rng) % 4), ckeys = (uint32_t)(rng_next(&rng) % 3);
    // each run arrives on its own; only the last view is built
    for (uint32_t r = 0; r < runs; r++) part_add_table(&t, has_make(&t.k, sparse, &rng), ckeys == 2 ? r & 1 : ckeys);
    struct remix *x = NULL;
    const bool tags = rng_next(&rng) % 2;
    const uint32_t all = t.nr;
    for (t.nr = 1; t.nr <= all; t.nr++) {
      uint64_t pages;
      struct remix *y = part_build(&t, x, UINT32_MAX, 1, tags, &pages);
      if (ckeys == 1) assert_int_equal(pages, 0);
      if (ckeys == 0) assert_true(pages > 0);
      if (x) done(x);
      x = y;
    }
    t.nr = all;
    far += check_walk(&t, x);
    check_queries(&t, x, 150, &rng);
    for (uint32_t i = 0; i < 4; i++) check_probes(&t, x, &rng);
    // with and without tags the other way round
    struct remix *y = part_build(&t, x, UINT32_MAX, 0, !tags, NULL);
    check_queries(&t, y, 60, &rng);
    for (uint32_t i = 0; i < 4; i++) check_probes(&t, y, &rng);
    // and both as young views
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
}

// The keys that a table holds in tests of young views: stretches of tombstones longer than segments, or nothing else.
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

// Young views that delete: whole segments, whole tables, everything. A REMIX made from a young view, or opened again,
// equals one made from an ordinary view.
static void test_young_deletes(void **state) {
  (void)state;
  uint64_t rng = seed_start("young deletes");
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
      // opened again it is not young until it is told
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

// All runs hold the same keys: each key takes as many entries as there are runs.
static void test_all_versions(void **state) {
  (void)state;
  uint64_t rng = seed_start("all versions");
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

// Many steps of a store's life: runs leave, one to three tables that do not overlap arrive; each view is what building
// it from nothing gives.
static void test_incremental(void **state) {
  (void)state;
  uint64_t rng = seed_start("incremental");
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
    // only leaving, down to nothing
    while (t.nr) {
      const uint32_t r = (uint32_t)(rng_next(&rng) % t.nr), keep = ~(1u << r);
      part_drop(&t, r);
      struct remix *y = part_build(&t, x, keep, 0, had_tags, NULL);
      done(x);
      x = y;
    }
    assert_int_equal(x->nr_segs, 0);
    struct remix_cursor c;
    struct sst_hold hold = {0};
    struct kv_rec r;
    remix_cursor_init(&c, NULL);
    OK(remix_cursor_set(&c, x));
    enter(&p);
    FAILS(remix_get(x, kref("a", 1), hash64("a", 1), &hold, &r), REMIXDB_NOTFOUND);
    OK(remix_seek(&c, kref("a", 1)));
    assert_false(remix_valid(&c));
    remix_seek_first(&c);
    assert_false(remix_valid(&c));
    remix_seek_last(&c);
    assert_false(remix_valid(&c));
    leave(&p);
    remix_cursor_fini(&c);
    done(x);
    part_fini(&t);
    place_fini(&p);
  }
}

static void part_small(struct tables *t, struct place *p, uint32_t kind, uint32_t keys, uint32_t runs, uint64_t *rng) {
  *t = (struct tables){.p = p};
  keyset_of_kind(&t->k, kind, keys, rng);
  for (uint32_t r = 0; r < runs; r++) part_add_table(t, has_make(&t->k, 2, rng), true);
}

// Not truncated first: some systems then write it out when it is closed.
static void file_put(const char *path, const uint8_t *p, size_t len) {
  const int fd = open(path, O_WRONLY);
  assert_true(fd >= 0);
  assert_int_equal(pwrite(fd, p, len, 0), len);
  assert_int_equal(ftruncate(fd, (off_t)len), 0);
  assert_int_equal(close(fd), 0);
}

static uint8_t *file_get(const char *path, size_t *len_out) {
  uint8_t *p;
  OK(paths_read_file(ENV_PATHS(env_posix()), path, SIZE_MAX, &p, len_out));
  return p;
}

// Uses a REMIX that may say anything: no call may do more harm than to fail or to answer wrongly.
static void use_anyhow(struct tables *t, struct remix *x, bool build) {
  struct remix_cursor c;
  struct sst_hold hold = {0};
  struct kv_rec r;
  remix_cursor_init(&c, NULL);
  OK(remix_cursor_set(&c, x));
  enter(t->p);
  for (uint32_t i = 0; i < t->k.nr; i += 7) {
    const struct kref k = t->k.keys[i];
    enum remixdb_status s = remix_get(x, k, hash64(k.ptr, k.len), &hold, &r);
    assert_true(s == REMIXDB_OK || s == REMIXDB_NOTFOUND);
    if (s == REMIXDB_OK) assert_true(kv_eq(kref(r.key, r.klen), k));
    OK(remix_seek(&c, k));
    OK(remix_seek_for_prev(&c, k));
  }
  for (remix_seek_first(&c); remix_valid(&c); remix_next(&c)) OK(remix_record(&c, &r));
  for (remix_seek_last(&c); remix_valid(&c); remix_prev(&c)) OK(remix_record(&c, &r));
  leave(t->p);
  remix_cursor_fini(&c);
  sst_hold_fini(&hold);
  if (!build) return;
  struct remix_build b = {
      .ctx = &t->p->ctx, .queue = t->p->queue, .number = 999, .old = x, .keep = UINT32_MAX, .tags = true};
  const enum remixdb_status s = remix_build(&b);
  char path[ENV_PATH_MAX];
  remix_path(t->p, 999, path);
  assert_true(s == REMIXDB_OK || s == REMIXDB_CORRUPT);
  assert_int_equal(access(path, F_OK) == 0, s == REMIXDB_OK);
  if (s == REMIXDB_OK) OK(env_unlink(ENV_PATHS(env_posix()), path));
}

// The file as format 1 has it: the image, with a checksum at its end.
static uint8_t *file_plain(const struct remix *x, size_t *len_out) {
  uint8_t *p = mem_alloc(x->image_size);
  assert_non_null(p);
  memcpy(p, x->image, x->image_size);
  store32le(p + 8, 1);
  store64le(p + x->image_size - 8, hash64_seed(p, x->image_size - 8, x->number));
  *len_out = x->image_size;
  return p;
}

static void test_damaged_file(void **state) {
  (void)state;
  uint64_t rng = seed_start("damaged file");
  struct place p;
  place_init(&p, 1 << 20);
  struct tables t;
  part_small(&t, &p, KEYS_TINY, 80, 3, &rng);
  for (uint32_t form = 0; form < 4; form++) {
    const bool tags = form & 1, plain = form & 2;
    struct remix *x = part_build_all(&t, tags), *y;
    const uint64_t number = x->number;
    char path[ENV_PATH_MAX];
    size_t len;
    uint32_t opened = 0;
    remix_path(&p, number, path);
    uint8_t *image = plain ? file_plain(x, &len) : file_get(path, &len);
    for (size_t i = 0; i < len; i++) {
      for (uint32_t bit = 0; bit < 8; bit++) {
        image[i] ^= (uint8_t)(1u << bit);
        if ((i + bit) % 3 == 0) {
          file_put(path, image, len);
          const enum remixdb_status s = remix_open(&p.ctx, number, t.sst, t.nr, &y);
          FAILS(s, REMIXDB_CORRUPT);
        }
        // with a checksum that fits, the structure itself has to be looked at
        if (i < len - 8) {
          uint8_t sum[8];
          memcpy(sum, image + len - 8, 8);
          store64le(image + len - 8, hash64_seed(image, len - 8, number));
          file_put(path, image, len);
          const enum remixdb_status s = remix_open(&p.ctx, number, t.sst, t.nr, &y);
          if (s == REMIXDB_OK) {
            use_anyhow(&t, y, opened++ % 16 == 0);
            remix_unref(y);
          } else {
            assert_true(s == REMIXDB_CORRUPT || (s == REMIXDB_VERSION && i >= 8 && i < 12));
          }
          memcpy(image + len - 8, sum, 8);
        }
        image[i] ^= (uint8_t)(1u << bit);
      }
    }
    for (size_t n = 0; n < len; n++) {
      file_put(path, image, n);
      FAILS(remix_open(&p.ctx, number, t.sst, t.nr, &y), REMIXDB_CORRUPT);
      assert_null(y);
    }
    file_put(path, image, len);
    OK(remix_open(&p.ctx, number, t.sst, t.nr, &y));
    remix_unref(y);
    mem_free(image);
    done(x);
  }
  part_fini(&t);
  place_fini(&p);
}

static void test_open_refuses(void **state) {
  (void)state;
  uint64_t rng = 7;
  struct place p;
  place_init(&p, 1 << 20);
  struct tables t;
  part_small(&t, &p, KEYS_NUMBERS, 200, 4, &rng);
  struct remix *x = part_build_all(&t, true), *y;
  const uint64_t number = x->number;
  // fresh tables may not overlap
  struct remix_build b = {.ctx = &p.ctx, .queue = p.queue, .number = 888, .fresh = t.sst, .nr_fresh = 4};
  FAILS(remix_build(&b), REMIXDB_CORRUPT);
  struct sst *other[4] = {t.sst[1], t.sst[0], t.sst[2], t.sst[3]};
  FAILS(remix_open(&p.ctx, number, other, 4, &y), REMIXDB_CORRUPT);
  FAILS(remix_open(&p.ctx, number, t.sst, 3, &y), REMIXDB_CORRUPT);
  FAILS(remix_open(&p.ctx, number + 1, t.sst, 4, &y), REMIXDB_CORRUPT);
  assert_null(y);
  struct sst_ctx stranger = p.ctx;
  stranger.store_id++;
  FAILS(remix_open(&stranger, number, t.sst, 4, &y), REMIXDB_CORRUPT);
  // another file under this one's name
  char from[ENV_PATH_MAX], to[ENV_PATH_MAX];
  remix_path(&p, number, from);
  remix_path(&p, number + 5, to);
  OK(env_link(ENV_PATHS(env_posix()), from, ENV_PATHS(env_posix()), to));
  FAILS(remix_open(&p.ctx, number + 5, t.sst, 4, &y), REMIXDB_CORRUPT);

  // the file goes with the last reference when it is obsolete, and not before
  remix_ref(x);
  atomic_store(&x->obsolete, true);
  remix_unref(x);
  assert_int_equal(access(from, F_OK), 0);
  remix_unref(x);
  assert_int_not_equal(access(from, F_OK), 0);
  remix_unref(NULL);
  part_fini(&t);
  place_fini(&p);
}

// Every n-th allocation fails in turn: an error, nothing leaks, no file is left.
static void test_no_memory(void **state) {
  (void)state;
  uint64_t rng = 11;
  struct place p;
  place_init(&p, 1 << 20);
  struct tables t;
  part_small(&t, &p, KEYS_PATHS, 400, 5, &rng);
  struct remix *old = NULL, *x;
  t.nr = 3;
  old = part_build_all(&t, true);
  t.nr = 5;
  struct remix_build b = {.ctx = &p.ctx,
                          .queue = p.queue,
                          .number = 500,
                          .old = old,
                          .keep = UINT32_MAX,
                          .fresh = t.sst + 3,
                          .nr_fresh = 1,
                          .tags = true};
  char path[ENV_PATH_MAX];
  remix_path(&p, 500, path);
  uint32_t failed = 0;
  for (int64_t n = 1;; n++) {
    fault_mem_set(n);
    const enum remixdb_status s = remix_build(&b);
    (void)fault_mem_end();
    if (s == REMIXDB_OK) break;
    FAILS(s, REMIXDB_NOMEM);
    assert_int_not_equal(access(path, F_OK), 0);
    failed++;
  }
  assert_true(failed > 5);
  t.nr = 4;
  for (int64_t n = 1;; n++) {
    fault_mem_set(n);
    const enum remixdb_status s = remix_open(&p.ctx, 500, t.sst, 4, &x);
    (void)fault_mem_end();
    if (s == REMIXDB_OK) break;
    FAILS(s, REMIXDB_NOMEM);
    assert_null(x);
  }
  for (int64_t n = 1;; n++) {
    struct remix_cursor c;
    struct kv_rec r;
    remix_cursor_init(&c, p.queue);
    fault_mem_set(n);
    enum remixdb_status s = remix_cursor_set(&c, x);
    enter(&p);
    if (s == REMIXDB_OK) s = remix_seek(&c, t.k.keys[t.k.nr / 2]);
    while (s == REMIXDB_OK && remix_valid(&c)) {
      s = remix_record(&c, &r);
      if (s == REMIXDB_OK) remix_next(&c);
    }
    leave(&p);
    const bool through = !fault_mem_end();
    remix_cursor_fini(&c);
    if (s == REMIXDB_OK && through) break;
    assert_true(s == REMIXDB_NOMEM || s == REMIXDB_OK);  // read-ahead does without memory
  }
  t.nr = 5;
  done(x);
  done(old);
  part_fini(&t);
  place_fini(&p);
}

// The disk fails at every call in turn: the status says so, and no file is left.
static void test_disk_fails(void **state) {
  (void)state;
  uint64_t rng = 19;
  struct place p;
  place_init(&p, 1 << 20);
  struct tables t;
  part_small(&t, &p, KEYS_NUMBERS, 300, 1, &rng);
  struct remix_build b = {.ctx = &p.ctx, .queue = p.queue, .number = 600, .fresh = t.sst, .nr_fresh = 1, .tags = true};
  char path[ENV_PATH_MAX];
  remix_path(&p, 600, path);
  int64_t n = 1;
  for (;; n++) {
    fault_io_set(FAULT_OPEN | FAULT_WRITE | FAULT_SYNC, n, false);
    const enum remixdb_status s = remix_build(&b);
    const bool met = fault_io_end();
    if (s == REMIXDB_OK) {
      assert_false(met);
      break;
    }
    assert_true(s == REMIXDB_IO || s == REMIXDB_NOSPACE);
    assert_true(err_msg()[0] != 0);
    assert_int_not_equal(access(path, F_OK), 0);
  }
  assert_true(n > 3);  // opening, writing, syncing
  part_fini(&t);
  place_fini(&p);
}

// A table that is damaged after its REMIX was built: a status, never wrong data.
static void test_damaged_table(void **state) {
  (void)state;
  uint64_t rng = 13;
  struct place p;
  place_init(&p, 0);
  struct tables t;
  part_small(&t, &p, KEYS_NUMBERS, 2000, 3, &rng);
  for (uint32_t tags = 0; tags < 2; tags++) {
    struct remix *x = part_build_all(&t, tags);
    uint32_t block = 0;
    while (t.sst[1]->nr_recs[block] < 20) block++;  // of one page, and some of its records are the newest of their keys
    const long at = (long)block * 4096 + 2000;
    byte_flip(t.sst[1]->path, at);
    uint32_t nr, bad = 0, bad_seek = 0, bad_record = 0;
    struct entry *e = part_live(&t, &nr);
    struct remix_cursor c;
    struct sst_hold hold = {0};
    struct kv_rec r;
    remix_cursor_init(&c, NULL);
    OK(remix_cursor_set(&c, x));
    enter(&p);
    for (uint32_t i = 0; i < nr; i++) {
      const struct kref k = t.k.keys[e[i].key];
      enum remixdb_status s = remix_get(x, k, hash64(k.ptr, k.len), &hold, &r);
      assert_true(s == REMIXDB_OK || s == REMIXDB_CORRUPT);
      if (s == REMIXDB_OK) check_record(&t, &e[i], &r);
      bad += s != REMIXDB_OK;
      s = i % 2 ? remix_seek(&c, k) : remix_seek_for_prev(&c, k);
      assert_true(s == REMIXDB_OK || s == REMIXDB_CORRUPT);
      assert_int_equal(remix_valid(&c), s == REMIXDB_OK);
      bad_seek += s != REMIXDB_OK;
    }
    uint32_t i = 0;
    for (remix_seek_first(&c); remix_valid(&c); remix_next(&c), i++) {
      const enum remixdb_status s = remix_record(&c, &r);
      if (s == REMIXDB_OK) check_record(&t, &e[i], &r);
      bad_record += s == REMIXDB_CORRUPT;
    }
    assert_int_equal(i, nr);
    leave(&p);
    assert_true(bad > 0 && bad < nr && bad_seek > 0 && bad_record > 0);
    remix_cursor_fini(&c);
    sst_hold_fini(&hold);
    free(e);
    // keys come from the compressed-keys block, which is whole
    struct remix *y = part_build(&t, x, UINT32_MAX, 0, tags, NULL);
    done(y);
    byte_flip(t.sst[1]->path, at);
    byte_flip(t.sst[1]->path, (long)t.sst[1]->ckb_off + 100);
    struct remix_build b = {.ctx = &p.ctx,
                            .queue = p.queue,
                            .number = 777,
                            .old = x,
                            .keep = UINT32_MAX,
                            .tags = tags,
                            .way = REMIX_BUILD_MERGE};
    char path[ENV_PATH_MAX];
    remix_path(&p, 777, path);
    FAILS(remix_build(&b), REMIXDB_CORRUPT);
    assert_int_not_equal(access(path, F_OK), 0);
    byte_flip(t.sst[1]->path, (long)t.sst[1]->ckb_off + 100);
    done(x);
  }
  part_fini(&t);
  place_fini(&p);
}

// Stepping forward reads ahead: far fewer reads than blocks, and every block is read once.
static void test_read_ahead(void **state) {
  (void)state;
  uint64_t rng = 17;
  struct place p;
  place_init(&p, 8 << 20);
  struct tables t;
  part_small(&t, &p, KEYS_BINARY, 6000, 3, &rng);
  struct remix *x = part_build_all(&t, true);
  uint32_t pages = 0;
  for (uint32_t r = 0; r < t.nr; r++) pages += t.sst[r]->nr_pages;
  struct remix_cursor c;
  struct kv_rec r;
  struct cache_stats stats;
  remix_cursor_init(&c, p.queue);
  OK(remix_cursor_set(&c, x));
  enter(&p);
  for (remix_seek_first(&c); remix_valid(&c); remix_next(&c)) OK(remix_record(&c, &r));
  leave(&p);
  cache_stats(p.cache, &stats);
  assert_true(pages > 100);
  assert_true(stats.misses < pages / 4);
  remix_cursor_fini(&c);
  done(x);
  part_fini(&t);
  place_fini(&p);
}

// A cursor moves from one REMIX to another with more or fewer runs, and to none.
static void test_cursor_moves(void **state) {
  (void)state;
  uint64_t rng = seed_start("cursor moves");
  struct place p;
  place_init(&p, 1 << 20);
  struct tables t;
  part_small(&t, &p, KEYS_PATHS, 300, 9, &rng);
  struct remix *x[9];
  struct entry *e[9];
  uint32_t nr[9];
  for (uint32_t i = 0; i < 9; i++) {
    t.nr = i + 1;
    x[i] = part_build(&t, i ? x[i - 1] : NULL, UINT32_MAX, 1, i % 2, NULL);
    e[i] = part_live(&t, &nr[i]);
  }
  struct remix_cursor c;
  remix_cursor_init(&c, NULL);
  OK(remix_seek(&c, kref("a", 1)));
  assert_false(remix_valid(&c));
  for (uint32_t i = 0; i < 200; i++) {
    const uint32_t n = (uint32_t)(rng_next(&rng) % 9);
    const struct kref key = t.k.keys[rng_next(&rng) % t.k.nr];
    OK(remix_cursor_set(&c, x[n]));
    assert_false(remix_valid(&c));
    enter(&p);
    OK(remix_seek(&c, key));
    uint32_t at = lower(&t, e[n], nr[n], key);
    check_at(&t, &c, e[n], nr[n], at, true);
    for (uint32_t j = 0; j < 40 && remix_valid(&c); j++) {
      remix_next(&c);
      check_at(&t, &c, e[n], nr[n], ++at, j % 2);
    }
    leave(&p);
    if (i % 10 == 0) OK(remix_cursor_set(&c, NULL));
  }
  remix_cursor_fini(&c);
  for (uint32_t i = 0; i < 9; i++) {
    done(x[i]);
    free(e[i]);
  }
  part_fini(&t);
  place_fini(&p);
}

// In a young view every block that a seek reads counts as a jump; where bits are far each key that it reads may be in
// one.
static void test_young_far(void **state) {
  (void)state;
  struct place p;
  struct remix_cursor c;
  uint64_t rng = seed_start("young scan_debt");
  struct tables t = {.p = &p};
  place_init(&p, 0);
  remix_cursor_init(&c, NULL);
  keyset_of_kind(&t.k, KEYS_FAR, 100, &rng);
  part_add_table(&t, has_make(&t.k, 1, &rng), true);
  part_add_table(&t, has_make(&t.k, 2, &rng), true);
  struct remix *const x = part_build_all(&t, false);
  assert_true(check_walk(&t, x) > 0);
  remix_make_young(x);
  OK(remix_cursor_set(&c, x));
  enter(&p);
  for (uint32_t i = 0; i < 300; i++) {
    const uint64_t before = c.scan_debt >= 64 ? 0 : c.scan_debt, reads = atomic_load(&p.io.nr_reads);
    OK(remix_seek(&c, t.k.keys[rng_next(&rng) % t.k.nr]));
    assert_int_equal(c.scan_debt - before, atomic_load(&p.io.nr_reads) - reads);
  }
  leave(&p);
  assert_true(atomic_load(&x->scan_debt) > 300);
  remix_cursor_fini(&c);
  done(x);
  part_fini(&t);
  place_fini(&p);
}

struct reader {
  struct tables *t;
  struct remix *x;
  const struct entry *e;
  uint32_t nr;
  uint64_t seed;
  uint32_t wrong;
};

static void *reader_main(void *arg) {
  struct reader *d = arg;
  struct epoch_slot slot;
  struct sst_hold hold = {0};
  struct remix_cursor c;
  struct kv_rec r;
  epoch_join(&d->t->p->epoch, &slot);
  remix_cursor_init(&c, NULL);
  if (remix_cursor_set(&c, d->x) != REMIXDB_OK) d->wrong++;
  for (uint32_t i = 0; i < 3000; i++) {
    const uint32_t at = (uint32_t)(rng_next(&d->seed) % d->nr);
    const struct kref k = d->t->k.keys[d->e[at].key];
    remix_ref(d->x);
    epoch_enter(&d->t->p->epoch, &slot);
    if (remix_get(d->x, k, hash64(k.ptr, k.len), &hold, &r) != REMIXDB_OK || !kv_eq(kref(r.key, r.klen), k)) d->wrong++;
    if (remix_seek(&c, k) != REMIXDB_OK || !remix_valid(&c)) {
      d->wrong++;
    } else {
      for (uint32_t n = 0; n < 5 && remix_valid(&c); n++) {
        if (remix_record(&c, &r) != REMIXDB_OK || !kv_eq(kref(r.key, r.klen), d->t->k.keys[d->e[at + n].key]))
          d->wrong++;
        remix_next(&c);
      }
    }
    epoch_exit(&slot);
    remix_unref(d->x);
  }
  remix_cursor_fini(&c);
  sst_hold_fini(&hold);
  epoch_leave(&d->t->p->epoch, &slot);
  return NULL;
}

// Readers share a REMIX over a cache too small for its tables.
static void test_threads(void **state) {
  (void)state;
  uint64_t rng = seed_start("threads");
  struct place p;
  place_init(&p, 256 << 10);
  struct tables t;
  part_small(&t, &p, KEYS_BINARY, 4000, 4, &rng);
  struct remix *x = part_build_all(&t, true);
  uint32_t nr;
  struct entry *e = part_live(&t, &nr);
  pthread_t threads[4];
  struct reader readers[4];
  for (uint32_t i = 0; i < 4; i++) {
    readers[i] = (struct reader){.t = &t, .x = x, .e = e, .nr = nr, .seed = rng + i};
    OK(thread_start(&threads[i], reader_main, &readers[i], "reader"));
  }
  for (uint32_t i = 0; i < 4; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(readers[i].wrong, 0);
  }
  free(e);
  done(x);
  part_fini(&t);
  place_fini(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_partitions), cmocka_unit_test(test_all_versions),
      cmocka_unit_test(test_incremental),       cmocka_unit_test(test_damaged_file),
      cmocka_unit_test(test_open_refuses),      cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_damaged_table),     cmocka_unit_test(test_read_ahead),
      cmocka_unit_test(test_cursor_moves),      cmocka_unit_test(test_threads),
      cmocka_unit_test(test_disk_fails),        cmocka_unit_test(test_young_deletes),
      cmocka_unit_test(test_young_far),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
