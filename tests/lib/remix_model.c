// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/remix_model.h"

#include "base/blind.h"
#include "remix/narrow.h"

// ---- keys

static uint32_t key_make(uint32_t kind, uint32_t nr, uint64_t *rng, uint8_t *buf) {
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
      return len + (uint32_t)sprintf((char *)buf + len, "file%u", (uint32_t)(rng_next(rng) % nr));
    case KEYS_BINARY:
      len = 1 + rng_next(rng) % 40;
      for (uint32_t i = 0; i < len; i++) buf[i] = (uint8_t)rng_next(rng);
      return len;
    case KEYS_FAR:
      buf[0] = (uint8_t)('a' + rng_next(rng) % 4);
      len = 1 + (uint32_t)(rng_next(rng) % 3) * 3000;
      memset(buf + 1, 'x', len);
      for (uint32_t i = 0; i < 3; i++) buf[len++] = odd[rng_next(rng) % sizeof(odd)];
      return len;
    default:
      len = (uint32_t)(rng_next(rng) % 4096);
      buf[0] = (uint8_t)(len >> 4);
      buf[1] = (uint8_t)(len << 4);
      return 2;
  }
}

void keyset_of_kind(struct keyset *k, uint32_t kind, uint32_t nr, uint64_t *rng) {
  if (kind == KEYS_MIXED) {
    keyset_make(k, nr, rng);
    return;
  }
  uint8_t *buf = malloc(65536);
  k->keys = calloc(nr, sizeof(*k->keys));
  for (uint32_t i = 0; i < nr; i++) {
    const uint32_t len = key_make(kind, nr, rng, buf);
    uint8_t *p = malloc(len + 1);
    memcpy(p, buf, len);
    k->keys[i] = kref(p, len);
  }
  free(buf);
  keyset_sort(k, nr);
}

// ---- tables and the model of a partition

// The value of a key in a table follows from both.
static uint32_t table_value(uint64_t table, struct kref key, uint8_t *buf) {
  uint64_t r = hash64_seed(key.ptr, key.len, table);
  const uint32_t len = r % 100 == 0 ? 5000 + (uint32_t)(r >> 32) % 9000 : (uint32_t)(r >> 8) % 60;
  memset(buf, (int)(r >> 40), len);
  if (len >= 8) store64le(buf, r);
  return len;
}

void part_add_table(struct tables *t, uint8_t *has, bool ckeys) {
  struct place *p = t->p;
  struct sst_build *b;
  uint8_t *val = malloc(16384);
  uint64_t size;
  const uint64_t number = p->next++;
  OK(sst_build_create(&p->ctx, &(struct sst_build_opts){.ckeys = ckeys}, p->queue, &b));
  sst_build_start(b, number);
  for (uint32_t i = 0; i < t->k.nr; i++) {
    if (!has[i]) continue;
    struct kv_rec r = {.key = t->k.keys[i].ptr, .klen = t->k.keys[i].len, .val = val, .kind = has[i] == HAS_TOMB};
    r.vlen = r.kind ? 0 : table_value(number, t->k.keys[i], val);
    sst_build_add(b, &r);
  }
  OK(sst_build_finish(b, &size));
  sst_build_destroy(b);
  free(val);
  OK(sst_open(&p->ctx, number, &t->sst[t->nr]));
  t->has[t->nr++] = has;
}

void part_drop(struct tables *t, uint32_t run) {
  sst_unref(t->sst[run]);
  free(t->has[run]);
  for (uint32_t r = run + 1; r < t->nr; r++) {
    t->sst[r - 1] = t->sst[r];
    t->has[r - 1] = t->has[r];
  }
  t->nr--;
}

void part_fini(struct tables *t) {
  while (t->nr) part_drop(t, t->nr - 1);
  keyset_free(&t->k);
}

uint8_t *has_make(const struct keyset *k, uint32_t sparse, uint64_t *rng) {
  uint8_t *has = calloc(k->nr, 1);
  for (uint32_t i = 0; i < k->nr; i++)
    if (rng_next(rng) % sparse == 0) has[i] = rng_next(rng) % 5 ? HAS_PUT : HAS_TOMB;
  has[rng_next(rng) % k->nr] = HAS_PUT;
  return has;
}

void part_small(struct tables *t, struct place *p, uint32_t kind, uint32_t keys, uint32_t runs, uint64_t *rng) {
  *t = (struct tables){.p = p};
  keyset_of_kind(&t->k, kind, keys, rng);
  for (uint32_t r = 0; r < runs; r++) part_add_table(t, has_make(&t->k, 2, rng), true);
}

struct entry *part_view(const struct tables *t, uint32_t *nr_out) {
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

struct entry *part_live(const struct tables *t, uint32_t *nr_out) {
  uint32_t all, nr = 0;
  struct entry *e = part_view(t, &all);
  for (uint32_t i = 0; i < all; i++)
    if (!e[i].old && (t->young || !e[i].tomb)) e[nr++] = e[i];
  *nr_out = nr;
  return e;
}

uint32_t lower(const struct tables *t, const struct entry *e, uint32_t nr, struct kref key) {
  uint32_t lo = 0, hi = nr;
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (kv_cmp(t->k.keys[e[mid].key], key) < 0) lo = mid + 1;
    else hi = mid;
  }
  return lo;
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

// A file that is being made: the segments at its beginning, the anchors aside.
struct image {
  const struct tables *t;
  struct entry *e;  // all versions
  uint32_t nr;
  struct remix_layout l;
  bool tags;
  uint8_t *bytes, *anchors;
  uint32_t *offs;  // the anchors' offsets
  uint32_t segs, anchors_len, taken[REMIX_RUNS_MAX];
  uint64_t keys;
};

// The end of the segment that begins with entry `from`: whole keys, as many as fit.
static uint32_t segment_end(const struct image *m, uint32_t from) {
  for (uint32_t to = from;;) {
    uint32_t end = to + (to < m->nr);
    while (end < m->nr && m->e[end].old) end++;
    if (end == to || end - from > REMIX_SEG) return to;
    to = end;
  }
}

static struct kref key_at(const struct image *m, uint32_t i) { return m->t->k.keys[m->e[i].key]; }

// The bit in which entry i differs from the one before.
static uint32_t dbit_at(const struct image *m, uint32_t i) { return slow_dbit(key_at(m, i - 1), key_at(m, i)); }

static void image_anchor(struct image *m, uint32_t from) {
  m->offs[m->segs] = m->anchors_len;
  if (!from) return;
  const uint32_t len = (dbit_at(m, from) >> 4) + 1;
  memcpy(m->anchors + m->anchors_len, key_at(m, from).ptr, len);
  m->anchors_len += len;
}

static void image_entry(struct image *m, uint8_t *s, uint32_t from, uint32_t i, uint32_t base) {
  const struct entry *const e = &m->e[i];
  const struct kref k = key_at(m, i);
  if (m->tags) s[i - from] = remix_tag(hash64(k.ptr, k.len));
  s[m->l.sel + i - from] = (uint8_t)(e->run | (e->tomb ? REMIX_TOMB : 0) | (e->old ? REMIX_OLD : 0));
  m->keys += !e->old && !e->tomb;
  m->taken[e->run]++;
  if (i == from) return;
  uint32_t d = BLIND_SAME;
  if (!e->old) {
    d = dbit_at(m, i);
    if ((d >> 4) - base > 4094) {
      d = BLIND_FAR;
      s[m->l.head + 1] = REMIX_SEG_FAR;
    } else {
      d -= base << 4;
    }
  }
  store16le(s + m->l.dbits + 2 * (i - from), d);
}

static void image_segment(struct image *m, uint32_t from, uint32_t to) {
  uint8_t *const s = m->bytes + remix_segs_off(m->t->nr) + (size_t)m->segs * m->l.stride;
  uint32_t base = UINT32_MAX;
  for (uint32_t i = from + 1; i < to; i++)
    if (!m->e[i].old && dbit_at(m, i) >> 4 < base) base = dbit_at(m, i) >> 4;
  if (base == UINT32_MAX) base = 0;
  image_anchor(m, from);
  s[m->l.head] = (uint8_t)(to - from);
  store16le(s + m->l.head + 2, base);
  for (uint32_t r = 0; r < m->t->nr; r++) store32le(s + m->l.offs + 4 * r, sst_advance(m->t->sst[r], 0, m->taken[r]));
  for (uint32_t i = from; i < to; i++) image_entry(m, s, from, i, base);
  m->segs++;
}

// Adds the header, the anchors and the checksum. Returns the size.
static size_t image_finish(struct image *m, uint64_t number) {
  uint8_t *const b = m->bytes;
  const size_t segs_off = remix_segs_off(m->t->nr);
  size_t at = segs_off + (size_t)m->segs * m->l.stride;
  m->offs[m->segs] = m->anchors_len;
  memcpy(b, REMIX_MAGIC, 8);
  store32le(b + 8, 1);
  store32le(b + 12, m->tags);
  store64le(b + 16, PLACE_STORE_ID);
  store64le(b + 24, number);
  store32le(b + 40, m->t->nr);
  store32le(b + 44, m->segs);
  store64le(b + 48, m->nr);
  store64le(b + 56, m->keys);
  store32le(b + 64, m->l.stride);
  store64le(b + 72, segs_off);
  store64le(b + 80, at);
  store64le(b + 88, at + 4 * (m->segs + 1));
  store64le(b + 96, m->anchors_len);
  for (uint32_t r = 0; r < m->t->nr; r++) store64le(b + 104 + 8 * r, m->t->sst[r]->number);
  memcpy(b + at, m->offs, 4 * (m->segs + 1));
  at += 4 * (m->segs + 1);
  memcpy(b + at, m->anchors, m->anchors_len);
  at += m->anchors_len;
  store64le(b + 32, at + 8);
  store64le(b + at, hash64_seed(b, at, number));
  return at + 8;
}

static uint8_t *slow_image(const struct tables *t, bool tags, uint64_t number, size_t *size_out) {
  struct image m = {.t = t, .l = remix_layout(t->nr, tags), .tags = tags};
  size_t anchors_max = 0;
  m.e = part_view(t, &m.nr);
  for (uint32_t i = 0; i < t->k.nr; i++) anchors_max += t->k.keys[i].len;
  m.bytes = calloc(1, remix_segs_off(t->nr) + (size_t)(m.nr + 1) * (m.l.stride + 4) + anchors_max + 64);
  m.anchors = malloc(anchors_max + 1);
  m.offs = calloc(m.nr + 2, sizeof(*m.offs));
  for (uint32_t from = 0, to; from < m.nr; from = to) {
    to = segment_end(&m, from);
    image_segment(&m, from, to);
  }
  *size_out = image_finish(&m, number);
  free(m.offs);
  free(m.anchors);
  free(m.e);
  return m.bytes;
}

// ---- the REMIX

struct remix *part_build(struct tables *t, const struct remix *old, uint32_t keep, uint32_t nr_fresh, bool tags,
                         uint64_t *pages_read_out) {
  struct place *p = t->p;
  char path[ENV_PATH_MAX];
  _Atomic uint64_t progress;
  atomic_init(&progress, 0);
  struct remix_build b = place_build(p, p->next++, old, t->sst + t->nr - nr_fresh, nr_fresh);
  b.keep = keep;
  b.tags = tags;
  b.progress = &progress;
  b.way = REMIX_BUILD_MERGE;
  b.keep_image = true;
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
  assert_int_equal(remix_plain_size(x), size);
  // the image in memory is that of the file
  struct remix *built;
  assert_int_equal(b.image_size, size);
  const struct remix_built of = {b.image, b.image_size, b.file_size, b.print};
  OK(remix_open_built(&p->ctx, b.number, t->sst, t->nr, &of, &built));
  mem_free(b.image);
  assert_int_equal(built->image_size, x->image_size);
  assert_memory_equal(built->image, x->image, x->image_size);
  assert_int_equal(built->file_size, x->file_size);
  assert_true(built->print == x->print && built->origin == x->origin);
  remix_unref(built);
  // the file may have another format than the plain image, and so another checksum
  uint8_t *const plain = malloc(size);
  assert_non_null(plain);
  remix_plain(x, plain);
  for (size_t i = 0; i < size - 8; i++)
    if ((i < 8 || i >= 12) && plain[i] != want[i])
      fail_msg("byte %zu of %zu differs: %#x, %#x expected", i, size, plain[i], want[i]);
  free(plain);
  free(want);
  uint32_t nr;
  struct entry *e = part_view(t, &nr);
  assert_int_equal(x->nr_entries, nr);
  assert_int_equal(atomic_load(&progress), nr);
  free(e);
  assert_true(remix_memory(x) > x->image_size);
  return x;
}

void done(struct remix *x) {
  atomic_store(&x->obsolete, true);
  remix_unref(x);
}

struct remix *part_build_all(struct tables *t, bool tags) {
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

void check_record(const struct tables *t, const struct entry *e, const struct kv_rec *r) {
  uint8_t *val = malloc(16384);
  const struct kref key = t->k.keys[e->key];
  assert_true(kv_eq(kref(r->key, r->klen), key));
  assert_int_equal(r->kind, e->tomb);
  const uint32_t len = e->tomb ? 0 : table_value(t->sst[e->run]->number, key, val);
  assert_int_equal(r->vlen, len);
  if (len) assert_memory_equal(r->val, val, len);
  free(val);
}

void check_at(const struct tables *t, struct remix_cursor *c, const struct entry *e, uint32_t nr, uint32_t at,
              bool read) {
  assert_int_equal(remix_valid(c), at < nr);
  if (at >= nr) return;
  assert_int_equal(remix_run(c), e[at].run);
  if (!read) return;
  struct kv_rec r;
  OK(remix_record(c, &r));
  check_record(t, &e[at], &r);
}

uint32_t check_walk(const struct tables *t, const struct remix *x) {
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
