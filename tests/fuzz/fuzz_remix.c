// SPDX-License-Identifier: Apache-2.0
//
// REMIX files over fixed good tables: a good one, changed as the input says, then opened and used as the input says.
// An unchanged file must give the answers of a sorted array. A changed file may be refused. If not, its answers may be
// wrong, but every call ends, and reads nothing outside. Then a new REMIX and a compaction use it as their old view.
//
// Input: which good file, flags (bit 0: the checksum is right, 1: through the cache, 2: the rest of the input is the
// file, 3: it is built upon, 4: it is compacted, 5: it is packed, 6: it has pages, of two segments each, and is read
// page by page), how many calls, the calls, then changes (fuzz.h). With bits 5 and 6 the changes are those of segments,
// and the segments are packed then. With bit 6, and with bit 7 of the number of calls, nearly no page stays in memory.
#include "base/blind.h"
#include "compact/compact.h"
#include "tests/fuzz/fuzz.h"
#include "tests/lib/longer.h"
#include "base/budget.h"
#include "remix/build.h"
#include "remix/cursor.h"
#include "remix/narrow.h"
#include "remix/pack.h"
#include "remix/paged.h"
#include "view/merge.h"

#define NUMBER 90u
#define ANCHOR_OP 0xF0u  // an operation of fuzz_change from here on, from FUZZ_OWN on: a longer anchor
#define PAGE_ENTRY 32u   // bytes of a page in the directory, without cursor offsets and anchor

// The tables of a good file, oldest first.
struct super {
  bool tags;
  uint32_t nr;
  struct fuzz_table runs[8];
};

static const struct super views[] = {
    {true, 1, {{11, FUZZ_KEYS_NUMBERS, 0, 1, 40, 0, 10, {.ckeys = true}}}},
    {true,
     3,
     {{12, FUZZ_KEYS_NUMBERS, 0, 1, 150, 4, 20, {.ckeys = true}},
      {13, FUZZ_KEYS_NUMBERS, 1, 3, 60, 2, 200, {.ckeys = true}},
      {14, FUZZ_KEYS_NUMBERS, 20, 2, 60, 0, 9, {.ckeys = false}}}},
    {false,
     2,
     {{15, FUZZ_KEYS_PATHS, 0, 1, 50, 0, 20, {.ckeys = true}},
      {16, FUZZ_KEYS_PATHS, 10, 1, 60, 3, 20, {.ckeys = true}}}},
    {false,
     2,
     {{17, FUZZ_KEYS_FAR, 0, 1, 12, 0, 20, {.ckeys = true}}, {18, FUZZ_KEYS_FAR, 3, 2, 9, 3, 20, {.ckeys = true}}}},
    {true,
     5,
     {{19, FUZZ_KEYS_SHORT, 0, 1, 90, 0, 3, {.ckeys = true}},
      {20, FUZZ_KEYS_SHORT, 0, 2, 60, 2, 3, {.ckeys = true}},
      {21, FUZZ_KEYS_SHORT, 0, 3, 40, 3, 3, {.ckeys = true}},
      {22, FUZZ_KEYS_SHORT, 30, 1, 40, 1, 3, {.ckeys = true}},
      {23, FUZZ_KEYS_SHORT, 5, 5, 20, 0, 5000, {.ckeys = true}}}},
    // so many that a round merges them
    {true,
     8,
     {{30, FUZZ_KEYS_NUMBERS, 0, 3, 14, 0, 20, {.ckeys = true}},
      {31, FUZZ_KEYS_NUMBERS, 2, 4, 15, 1, 20, {.ckeys = true}},
      {32, FUZZ_KEYS_NUMBERS, 4, 5, 16, 2, 20, {.ckeys = true}},
      {33, FUZZ_KEYS_NUMBERS, 6, 3, 17, 3, 20, {.ckeys = true}},
      {34, FUZZ_KEYS_NUMBERS, 8, 4, 18, 0, 20, {.ckeys = true}},
      {35, FUZZ_KEYS_NUMBERS, 10, 5, 19, 1, 20, {.ckeys = true}},
      {36, FUZZ_KEYS_NUMBERS, 12, 3, 20, 2, 20, {.ckeys = true}},
      {37, FUZZ_KEYS_NUMBERS, 14, 4, 21, 3, 20, {.ckeys = true}}}},
};
#define VIEWS (sizeof(views) / sizeof(views[0]))

// A new run over any of them.
static const struct fuzz_table fresh_table = {80, FUZZ_KEYS_SHORT, 0, 4, 30, 5, 10, {.ckeys = true}};

// The records of a view: the newest version of each key, tombstones too, ascending.
struct model {
  struct kv_rec *recs;
  uint32_t nr;
};

static struct fuzz_place *place;
static struct fuzz_image images[VIEWS], packed[VIEWS], paged[VIEWS];
static struct budget budget;
static struct remix_pool pool;
static struct sst_ctx ctx_pages, cached_pages;  // those of the place, with the pool
static struct model models[VIEWS];

static int rec_order(const void *a, const void *b) {
  const struct kv_rec *x = a, *y = b;
  return kv_cmp(kref(x->key, x->klen), kref(y->key, y->klen));
}

static void *keep(const void *p, size_t len) {
  void *const q = fuzz_alloc(len);
  if (len) memcpy(q, p, len);
  return q;
}

static void make_model(struct model *m, const struct super *v) {
  uint8_t *const kbuf = fuzz_alloc(FUZZ_KEY_MAX), *const vbuf = fuzz_alloc(FUZZ_VALUE_MAX);
  uint32_t all = 0;
  for (uint32_t r = 0; r < v->nr; r++) all += v->runs[r].nr;
  m->recs = fuzz_alloc(all * sizeof(*m->recs));
  for (uint32_t r = v->nr; r-- > 0;) {  // newest first: earlier records hide later ones
    const uint32_t newer = m->nr;
    for (uint32_t i = 0; i < v->runs[r].nr; i++) {
      struct kv_rec rec;
      fuzz_record(&v->runs[r], i, kbuf, vbuf, &rec);
      if (newer && bsearch(&rec, m->recs, newer, sizeof(rec), rec_order)) continue;
      rec.key = keep(rec.key, rec.klen);
      rec.val = keep(rec.val, rec.vlen);
      m->recs[m->nr++] = rec;
    }
    qsort(m->recs, m->nr, sizeof(*m->recs), rec_order);
  }
  uint32_t live = 0;
  for (uint32_t i = 0; i < m->nr; i++) {
    if (!m->recs[i].kind) {
      m->recs[live++] = m->recs[i];
      continue;
    }
    free((void *)(uintptr_t)m->recs[i].key);
    free((void *)(uintptr_t)m->recs[i].val);
  }
  m->nr = live;
  free(kbuf);
  free(vbuf);
}

static uint32_t model_rank(const struct model *m, struct kref key) {  // the rank of the first >= key
  uint32_t i = 0;
  while (i < m->nr && kv_cmp(kref(m->recs[i].key, m->recs[i].klen), key) < 0) i++;
  return i;
}

static void open_runs(const struct sst_ctx *ctx, const struct super *v, struct sst **runs) {
  for (uint32_t r = 0; r < v->nr; r++) FUZZ_OK(sst_open(ctx, v->runs[r].number, &runs[r]));
}

static void close_runs(const struct super *v, struct sst **runs) {
  for (uint32_t r = 0; r < v->nr; r++) sst_unref(runs[r]);
}

// The checksums of the pages and of the directory, as far as these can be found.
static void fix_pages(uint8_t *p, size_t len) {
  const uint64_t at_dir = load64le(p + REMIX_HEAD_SEGS_AT), runs = load32le(p + REMIX_HEAD_RUNS), end = len - 16;
  uint64_t at = remix_segs_off(runs % (REMIX_RUNS_MAX + 1)), d = at_dir;
  if (at_dir > end || runs > REMIX_RUNS_MAX) return;
  while (d + PAGE_ENTRY <= end) {
    const uint32_t size = load32le(p + d);
    if (at > at_dir || size > at_dir - at) break;
    store64le(p + d + 24, hash64_seed(p + at, size, NUMBER));
    at += size;
    d += PAGE_ENTRY + 4 * runs + load32le(p + d + 20);
  }
  store64le(p + end, hash64_seed(p + at_dir, end - at_dir, NUMBER));
}

static void fix(uint8_t *p, size_t len) {
  if (len < 8) return;
  if (len >= REMIX_HEAD_TABLES + 16 && load32le(p + 8) == REMIX_FORMAT_PAGED) fix_pages(p, len);
  if (len >= 40) store64le(p + 32, len);
  store64le(p + len - 8, hash64_seed(p, len - 8, NUMBER));
}

// The file of an image of format 1, in pages.
static struct fuzz_image pack_paged(const struct fuzz_image *image) {
  struct fuzz_image out;
  uint8_t *const copy = keep(image->p, image->len), *file;
  store32le(copy + 8, REMIX_FORMAT_PLAIN);
  atomic_store(&remix_paged_from, 1);
  atomic_store(&remix_page_segs, 2);
  FUZZ_OK(remix_pack(copy, image->len, false, &file, &out.len));
  atomic_store(&remix_paged_from, REMIX_PAGED_FROM);
  atomic_store(&remix_page_segs, REMIX_PAGE_SEGS);
  out.p = keep(file, out.len);
  mem_free(file);
  free(copy);
  return out;
}

// Builds it run by run, as the store does: the file, and the same not packed.
static void build_good(const struct super *v, struct fuzz_image *out, struct fuzz_image *plain_out) {
  struct sst *runs[REMIX_RUNS_MAX];
  struct remix *old = NULL;
  char name[32];
  open_runs(&place->ctx, v, runs);
  for (uint32_t r = 0; r < v->nr; r++) {
    struct remix *x;
    struct remix_build b = {.ctx = &place->ctx,
                            .queue = place->queue,
                            .number = NUMBER,
                            .old = old,
                            .keep = (1u << r) - 1,
                            .fresh = &runs[r],
                            .nr_fresh = 1,
                            .tags = v->tags};
    FUZZ_OK(remix_build(&b));
    FUZZ_OK(remix_open(&place->ctx, NUMBER, runs, r + 1, &x));
    remix_unref(old);
    old = x;
  }
  const size_t len = remix_plain_size(old);
  uint8_t *const plain = malloc(len);
  if (!plain) abort();
  remix_plain(old, plain);
  *plain_out = (struct fuzz_image){keep(plain, len), len};
  free(plain);
  store32le(plain_out->p + 8, 1);
  fix(plain_out->p, plain_out->len);
  remix_unref(old);
  close_runs(v, runs);
  remix_name(name, NUMBER);
  *out = fuzz_file_get(place->env, name);
}

static void setup(void) {
  place = fuzz_place_create();
  for (uint32_t i = 0; i < VIEWS; i++) {
    for (uint32_t r = 0; r < views[i].nr; r++) fuzz_table_build(place, &views[i].runs[r]);
    build_good(&views[i], &packed[i], &images[i]);
    paged[i] = pack_paged(&images[i]);
    make_model(&models[i], &views[i]);
  }
  budget_init(&budget);
  remix_pool_init(&pool, &place->epoch, &budget);
  ctx_pages = place->ctx;
  ctx_pages.budget = &budget;
  ctx_pages.pages = &pool;
  cached_pages = ctx_pages;
  cached_pages.cache = place->cache;
  fuzz_table_build(place, &fresh_table);
}

// Changes that leave a segment well-formed, so that it is believed: two entries change their selectors, or one gets
// another discriminating bit.
static void change_segment(struct fuzz_in *in, const struct super *v, uint8_t *p, size_t len) {
  const struct remix_layout l = remix_layout(v->nr, v->tags);
  const uint64_t segs = remix_segs_off(v->nr);
  const uint32_t op = fuzz_u8(in), seg = fuzz_u8(in), i = fuzz_u8(in) % REMIX_SEG, j = fuzz_u8(in) % REMIX_SEG;
  const uint32_t nr = segs < len ? (uint32_t)((len - segs) / l.stride) : 0;
  if (nr == 0) return;
  uint8_t *const s = p + segs + (size_t)(seg % nr) * l.stride;
  uint8_t *const sel = s + l.sel, *const dbits = s + l.dbits;
  if (op & 1 && i > 0) {
    const uint32_t d = j | fuzz_u8(in) << 5;
    if (load16le(dbits + 2 * i) != BLIND_SAME) store16le(dbits + 2 * i, (d >> 3) << 4 | (d & 7));
    return;
  }
  const uint8_t a = sel[i], b = sel[j], keep_mask = op & 2 ? REMIX_OLD : 0;
  sel[i] = (uint8_t)((b & ~keep_mask) | (a & keep_mask));
  sel[j] = (uint8_t)((a & ~keep_mask) | (b & keep_mask));
}

// The same, or puts zeros behind an anchor of an image of format 1. It leaves any other file as it is. The segments end
// at `end` or before.
static void change_own(struct fuzz_in *in, const struct super *v, struct fuzz_image *f, size_t end) {
  if (*in->p < ANCHOR_OP) {
    change_segment(in, v, f->p, end);
    return;
  }
  (void)fuzz_u8(in);
  const uint32_t seg = fuzz_u8(in), more = fuzz_u16(in) + (KV_KEY_MAX - UINT16_MAX / 2);
  if (f->len < REMIX_HEAD_TABLES || load32le(f->p + REMIX_HEAD_FORMAT) != 1) return;
  const uint32_t nr = load32le(f->p + REMIX_HEAD_SEGS);
  uint8_t *const p = anchor_longer(f->p, &f->len, nr ? seg % nr : 0, more);
  if (!p) return;
  free(f->p);
  f->p = p;
}

// ---- using it

struct use {
  struct remix *x;
  const struct super *view;
  const struct model *good;  // NULL: it was changed
  struct remix_cursor c;
  uint32_t at;  // in the model; its nr: not valid
};

static bool went_well(const struct use *u, enum remixdb_status s) {
  FUZZ_CHECK(s == REMIXDB_OK || (s == REMIXDB_CORRUPT && !u->good));
  return s == REMIXDB_OK;
}

static void look(struct use *u) {
  struct kv_rec r;
  if (u->good) FUZZ_CHECK(remix_valid(&u->c) == (u->at < u->good->nr));
  if (!remix_valid(&u->c)) return;
  FUZZ_CHECK(u->c.at < REMIX_SEG && u->c.live >> u->c.at & 1 && !(u->c.sel[u->c.at] & (REMIX_OLD | REMIX_TOMB)) &&
             (u->c.sel[u->c.at] & REMIX_RUN) < u->view->nr);
  if (!went_well(u, remix_record(&u->c, &r))) return;
  fuzz_touch(r.key, r.klen);
  fuzz_touch(r.val, r.vlen);
  if (u->good) FUZZ_CHECK(fuzz_same_record(&r, &u->good->recs[u->at]));
}

// A key of the tables, a little changed, or one of the input.
static struct kref some_key(struct fuzz_in *in, const struct super *v) {
  const uint32_t kind = fuzz_u8(in);
  if (kind & 1) return fuzz_key(in, kind >> 1);
  uint8_t *const buf = fuzz_alloc(FUZZ_KEY_MAX);
  struct kref k = fuzz_key_of(v->runs[0].keys, fuzz_u8(in), buf);
  if (kind & 2 && k.len) k.len--;
  if (kind & 4 && k.len) buf[k.len - 1]++;
  if (kind & 8 && k.len < FUZZ_KEY_MAX) buf[k.len++] = (uint8_t)((kind >> 4) * 17);
  uint8_t *const own = malloc(k.len ? k.len : 1);
  FUZZ_CHECK(own != NULL);
  if (k.len) memcpy(own, buf, k.len);
  free(buf);
  return kref(own, k.len);
}

static void get(struct use *u, struct kref key) {
  struct sst_hold h = {0};
  struct kv_rec r;
  const enum remixdb_status s = remix_get(u->x, key, hash64(key.ptr, key.len), &h, &r);
  if (s == REMIXDB_OK) {
    FUZZ_CHECK(kv_eq(kref(r.key, r.klen), key));
    fuzz_touch(r.val, r.vlen);
  }
  if (u->good) {
    const uint32_t at = model_rank(u->good, key);
    const bool there = at < u->good->nr && kv_eq(kref(u->good->recs[at].key, u->good->recs[at].klen), key);
    FUZZ_CHECK(s == (there ? REMIXDB_OK : REMIXDB_NOTFOUND));
    if (there) FUZZ_CHECK(fuzz_same_record(&r, &u->good->recs[at]));
  }
  if (s != REMIXDB_NOTFOUND) (void)went_well(u, s);
  sst_hold_fini(&h);
}

static void seek(struct use *u, struct kref key, bool for_prev) {
  if (!went_well(u, for_prev ? remix_seek_for_prev(&u->c, key) : remix_seek(&u->c, key))) {
    FUZZ_CHECK(!remix_valid(&u->c));
    return;
  }
  if (!u->good) return;
  u->at = model_rank(u->good, key);
  const bool equal = u->at < u->good->nr && kv_eq(kref(u->good->recs[u->at].key, u->good->recs[u->at].klen), key);
  if (for_prev && !equal) u->at = u->at ? u->at - 1 : u->good->nr;
}

enum { CALL_SEEK, CALL_FOR_PREV, CALL_GET, CALL_FIRST, CALL_LAST, CALL_NEXT, CALL_PREV, CALL_PARK };

static void call(struct use *u, struct fuzz_in *in) {
  const uint32_t op = fuzz_u8(in), nr = u->good ? u->good->nr : 0;
  struct kref key;
  epoch_enter(&place->epoch, &place->slot);
  switch (op & 7) {
    case CALL_SEEK:
    case CALL_FOR_PREV:
    case CALL_GET:
      key = some_key(in, u->view);
      if ((op & 7) == CALL_GET) get(u, key);
      else seek(u, key, (op & 7) == CALL_FOR_PREV);
      fuzz_key_free(key);
      break;
    case CALL_FIRST:
      remix_seek_first(&u->c);
      u->at = 0;
      break;
    case CALL_LAST:
      remix_seek_last(&u->c);
      u->at = nr ? nr - 1 : 0;
      break;
    case CALL_NEXT:
      if (op >> 3 & 16 && remix_valid(&u->c)) {
        const uint32_t n = 1 + (op >> 3 & 15), moved = remix_skip(&u->c, n, UINT32_MAX);
        if (u->good) FUZZ_CHECK(moved == (u->at + n < nr ? n : nr - 1 - u->at));
        u->at += moved;
        break;
      }
      for (uint32_t n = 1 + (op >> 3); n > 0 && remix_valid(&u->c); n--) {
        if (n & 1) look(u);
        remix_next(&u->c);
        u->at++;
      }
      break;
    case CALL_PREV:
      for (uint32_t n = 1 + (op >> 3); n > 0 && remix_valid(&u->c); n--) {
        if (n & 1) look(u);
        remix_prev(&u->c);
        u->at = u->at ? u->at - 1 : nr;
      }
      break;
    default:
      FUZZ_OK(remix_cursor_set(&u->c, u->x));
      u->at = nr;
      break;
  }
  look(u);
  epoch_exit(&place->slot);
}

// From one end to the other and back, in as many steps as there are live entries.
static void walk(struct use *u) {
  uint64_t newest = 0, n = 0;
  struct remix_walk w;
  uint64_t entries = 0;
  for (remix_walk_init(&w, u->x); remix_walk_valid(&w); remix_walk_next(&w), entries++) {
    bool known;
    (void)remix_walk_lcp(&w, &known);
    newest += !(w.sel[w.at] & (REMIX_OLD | REMIX_TOMB));
  }
  FUZZ_CHECK(entries == u->x->nr_entries);
  epoch_enter(&place->epoch, &place->slot);
  u->at = 0;
  for (remix_seek_first(&u->c); remix_valid(&u->c); remix_next(&u->c), n++, u->at++) look(u);
  FUZZ_CHECK(n == newest);
  n = 0;
  u->at = u->good ? u->good->nr - 1 : 0;
  for (remix_seek_last(&u->c); remix_valid(&u->c); remix_prev(&u->c), n++, u->at = u->at ? u->at - 1 : u->at) look(u);
  FUZZ_CHECK(n == newest);
  epoch_exit(&place->slot);
}

// One more run on it, and some of its own taken away.
static void build_upon(struct use *u, uint32_t leave) {
  struct sst *runs[REMIX_RUNS_MAX];
  uint32_t nr = 0;
  struct remix *y;
  struct remix_build b = {.ctx = u->x->ctx,
                          .queue = place->queue,
                          .number = NUMBER + 1,
                          .old = u->x,
                          .fresh = &runs[REMIX_RUNS_MAX - 1],
                          .nr_fresh = 1,
                          .tags = u->view->tags};
  FUZZ_OK(sst_open(u->x->ctx, fresh_table.number, &runs[REMIX_RUNS_MAX - 1]));
  for (uint32_t r = 0; r < u->view->nr; r++) {
    if (leave >> r & 1) continue;
    b.keep |= 1u << r;
    runs[nr++] = u->x->runs[r];
  }
  runs[nr++] = runs[REMIX_RUNS_MAX - 1];
  // A REMIX built on wrong input is wrong too. It may be refused; nobody reads it.
  if (went_well(u, remix_build(&b)) && went_well(u, remix_open(u->x->ctx, b.number, runs, nr, &y))) {
    atomic_store(&y->obsolete, true);
    remix_unref(y);
  }
  sst_unref(runs[nr - 1]);
}

static enum remixdb_status take_back(void *arg, struct worker *w, uint32_t tree, const struct kv_rec *rec) {
  (void)arg, (void)w, (void)tree;
  fuzz_touch(rec->key, rec->klen);
  return REMIXDB_OK;
}

static void no_round(void *arg, struct worker *w) { (void)arg, (void)w; }

// A round with a memtable of a few keys, which merges some or all of the runs: the tables are small.
static void compact(struct use *u, uint32_t how) {
  struct compact *const c = fuzz_alloc(sizeof(*c));
  struct worker *w = NULL;
  struct wh *frozen;
  struct part *part;
  struct version *base, *next;
  c->ctx = u->x->ctx;
  c->epoch = &place->epoch;
  c->build = (struct sst_build_opts){.ckeys = how & 1, .max_pages = 4 + 4 * (how >> 1 & 7)};
  c->tags = how & 1;
  c->memtable_size = 1 << 20;
  c->hand_back = take_back;
  atomic_store(&c->next_file, NUMBER + 2);
  FUZZ_OK(workers_create(0, NULL, 0, &place->io, &place->epoch, no_round, NULL, &c->workers));
  FUZZ_CHECK(posix_memalign((void **)&w, CACHE_LINE, align_up(sizeof(*w), CACHE_LINE)) == 0);
  memset(w, 0, sizeof(*w));
  w->queue = place->queue;
  epoch_join(&place->epoch, &w->slot);
  FUZZ_OK(wh_create(&place->epoch, 64 << 10, NULL, &frozen));
  uint8_t *const kbuf = fuzz_alloc(FUZZ_KEY_MAX);
  for (uint32_t i = 0; i < 40; i++) {
    struct wh_slot s;
    const struct kref k = fuzz_key_of(u->view->runs[0].keys, i * 3, kbuf);
    epoch_enter(&place->epoch, &w->slot);
    wh_lock(frozen, k, hash64(k.ptr, k.len), &s);
    FUZZ_OK(wh_link(&s, KV_REC(kref(NULL, 0), kbuf, i % 5 ? k.len : 0, i % 5 == 0)));
    wh_stamp(&s, 1 + i);
    wh_unlock(&s);
    epoch_exit(&w->slot);
  }
  free(kbuf);
  remix_ref(u->x);
  FUZZ_OK(part_create(kref("", 0), u->x, NULL, &part));
  FUZZ_OK(version_create(&part, 1, &base));
  struct compact_whole *const whole = fuzz_alloc(sizeof(*whole));
  whole->budget = 1 << 30;
  if (went_well(u, compact_round(c, w, base, frozen, NULL, how & 0x80, how & 0x40 ? whole : NULL, NULL, &next))) {
    compact_retire(next, base);  // its new files go with it
    version_unref(next);
  }
  version_unref(base);
  wh_destroy(frozen);
  epoch_leave(&place->epoch, &w->slot);
  free(w);
  workers_destroy(c->workers);
  free(whole);
  free(c);
}

// ---- page by page

// A paged view alone in a version, and a merge over it.
struct leaf {
  struct use u;  // u.at: the merge's place in the model; its nr: not valid
  struct version *version;
  struct merge m;
};

static void leaf_look(struct leaf *l) {
  struct use *const u = &l->u;
  struct kv_rec r;
  if (u->good) FUZZ_CHECK(merge_valid(&l->m) == (u->at < u->good->nr));
  if (!merge_valid(&l->m) || !went_well(u, merge_record(&l->m, &r))) return;
  fuzz_touch(r.key, r.klen);
  fuzz_touch(r.val, r.vlen);
  if (u->good) FUZZ_CHECK(fuzz_same_record(&r, &u->good->recs[u->at]));
}

static bool leaf_moved(struct leaf *l, enum remixdb_status s, uint32_t at) {
  l->u.at = at;
  if (went_well(&l->u, s)) return true;
  FUZZ_CHECK(!merge_valid(&l->m));
  return false;
}

// The step to the record of the model before `at`, or to none.
static uint32_t before(const struct use *u, uint32_t at) { return at ? at - 1 : u->good ? u->good->nr : 0; }

static void leaf_seek(struct leaf *l, struct kref key, bool for_prev) {
  struct use *const u = &l->u;
  uint32_t at = u->good ? model_rank(u->good, key) : 0;
  if (for_prev && u->good && !(at < u->good->nr && kv_eq(kref(u->good->recs[at].key, u->good->recs[at].klen), key)))
    at = before(u, at);
  (void)leaf_moved(l, for_prev ? merge_seek_for_prev(&l->m, key) : merge_seek(&l->m, key), at);
}

// A question for remix_live_near.
struct near {
  const struct use *u;
  uint64_t from, to;
};

static enum remixdb_status near_record(void *arg, const struct kv_rec *r, uint32_t nr) {
  const struct near *const n = arg;
  fuzz_touch(r->key, r->klen);
  fuzz_touch(r->val, r->vlen);
  if (!n->u->good) return REMIXDB_OK;
  const uint32_t at = model_rank(n->u->good, kref(r->key, r->klen));
  FUZZ_CHECK(nr > 0 && at >= n->from && at < n->to && fuzz_same_record(r, &n->u->good->recs[at]));
  return REMIXDB_OK;
}

static void leaf_rank(struct use *u, struct kref key, uint32_t width) {
  struct sst_hold h = {0};
  struct remix_share share;
  uint64_t rank;
  const uint64_t hash = hash64(key.ptr, key.len), live = remix_live(u->x);
  const enum remix_guess guess = remix_guess(u->x, key, hash);
  if (u->good) FUZZ_CHECK(live == u->good->nr);
  if (went_well(u, remix_rank(u->x, key, &h, &rank))) {
    FUZZ_CHECK(rank <= live);
    const uint32_t at = u->good ? model_rank(u->good, key) : 0;
    if (u->good) FUZZ_CHECK(rank == at);
    if (u->good && at < u->good->nr && kv_eq(kref(u->good->recs[at].key, u->good->recs[at].klen), key))
      FUZZ_CHECK(guess != REMIX_ABSENT);
    if (rank < live) {
      struct near n = {u, rank > width ? rank - width : 0, rank + 1 + width < live ? rank + 1 + width : live};
      (void)went_well(u, remix_live_near(u->x, rank, n.from, n.to, &h, near_record, &n));
      (void)went_well(u, remix_share(u->x, n.from, n.to, 1 + width % 8, &share));
    }
  }
  sst_hold_fini(&h);
}

static void leaf_call(struct leaf *l, struct fuzz_in *in) {
  struct use *const u = &l->u;
  const uint32_t op = fuzz_u8(in), nr = u->good ? u->good->nr : 0;
  struct kref key = kref(NULL, 0);
  epoch_enter(&place->epoch, &place->slot);
  if ((op & 7) <= CALL_GET || (op & 7) == CALL_PARK) key = some_key(in, u->view);
  switch (op & 7) {
    case CALL_SEEK:
    case CALL_FOR_PREV: leaf_seek(l, key, (op & 7) == CALL_FOR_PREV); break;
    case CALL_GET: get(u, key); break;
    case CALL_PARK: leaf_rank(u, key, op >> 3); break;
    case CALL_FIRST: (void)leaf_moved(l, merge_seek(&l->m, kref("", 0)), 0); break;
    case CALL_LAST: (void)leaf_moved(l, merge_seek_last(&l->m), before(u, nr)); break;
    case CALL_NEXT:
      if (op >> 3 & 16 && merge_valid(&l->m)) {
        const uint32_t n = 1 + (op >> 3 & 15);
        (void)leaf_moved(l, merge_skip(&l->m, n), u->at + n < nr ? u->at + n : nr);
        break;
      }
      for (uint32_t n = 1 + (op >> 3); n > 0 && merge_valid(&l->m); n--) {
        if (n & 1) leaf_look(l);
        if (!merge_next_fast(&l->m)) (void)leaf_moved(l, merge_next(&l->m), u->at + 1);
        else u->at++;
      }
      break;
    default:
      for (uint32_t n = 1 + (op >> 3); n > 0 && merge_valid(&l->m); n--) {
        if (n & 1) leaf_look(l);
        if (!merge_prev_fast(&l->m)) (void)leaf_moved(l, merge_prev(&l->m), before(u, u->at));
        else u->at = before(u, u->at);
      }
      break;
  }
  leaf_look(l);
  epoch_exit(&place->slot);
  fuzz_key_free(key);
}

// Through all pages, on and back.
static void leaf_walk(struct leaf *l) {
  struct use *const u = &l->u;
  uint64_t live = 0, on = 0, back = 0;
  bool whole = true;
  epoch_enter(&place->epoch, &place->slot);
  for (uint32_t i = 0; i < remix_pages(u->x); i++) {
    struct remix *page;
    FUZZ_CHECK(remix_page_rank(u->x, i) == live);
    if (!went_well(u, remix_page(u->x, i, &page))) {
      whole = false;
      live = remix_page_rank(u->x, i + 1);
      continue;
    }
    live += remix_live(page);
  }
  FUZZ_CHECK(live == remix_live(u->x));
  for (bool ok = leaf_moved(l, merge_seek(&l->m, kref("", 0)), 0); ok && merge_valid(&l->m); on++) {
    leaf_look(l);
    ok = leaf_moved(l, merge_next(&l->m), u->at + 1);
  }
  for (bool ok = leaf_moved(l, merge_seek_last(&l->m), before(u, u->good ? u->good->nr : 0)); ok && merge_valid(&l->m);
       back++) {
    leaf_look(l);
    ok = leaf_moved(l, merge_prev(&l->m), before(u, u->at));
  }
  if (u->good) FUZZ_CHECK(whole && on == live && back == live);
  epoch_exit(&place->slot);
}

// The whole REMIX of a paged one.
static void leaf_whole(struct leaf *l, bool build, uint32_t how) {
  struct use w = {.view = l->u.view, .good = l->u.good};
  if (!went_well(&l->u, remix_whole(l->u.x, &w.x))) return;
  remix_cursor_init(&w.c, place->queue);
  FUZZ_OK(remix_cursor_set(&w.c, w.x));
  walk(&w);
  epoch_enter(&place->epoch, &place->slot);
  remix_cursor_fini(&w.c);
  epoch_exit(&place->slot);
  if (build) build_upon(&w, how);
  remix_unref(w.x);
}

// Uses a paged view, and gives it back.
static void use_pages(const struct use *u, struct fuzz_in *calls, uint32_t flags, uint32_t how) {
  struct leaf *const l = fuzz_alloc(sizeof(*l));
  struct part *part;
  l->u = *u;
  remix_ref(u->x);
  FUZZ_OK(part_create(kref("", 0), u->x, NULL, &part));
  FUZZ_OK(version_create(&part, 1, &l->version));
  merge_init(&l->m, place->queue);
  epoch_enter(&place->epoch, &place->slot);
  merge_set(&l->m, NULL, NULL, l->version, UINT64_MAX);
  epoch_exit(&place->slot);
  l->u.at = u->good ? u->good->nr : 0;
  while (fuzz_left(calls)) leaf_call(l, calls);
  leaf_walk(l);
  epoch_enter(&place->epoch, &place->slot);
  merge_park(&l->m);
  epoch_exit(&place->slot);
  merge_fini(&l->m);
  leaf_whole(l, flags & 8, how);
  if (flags & 16) compact(&l->u, how);
  version_unref(l->version);
  remix_unref(u->x);
  free(l);
}

// The good file, as the flags choose it.
static const struct fuzz_image *good_file(uint32_t which, uint32_t flags) {
  if (flags & 64) return &paged[which];
  return flags & 32 ? &packed[which] : &images[which];
}

// A file with pages of changed segments.
static struct fuzz_image changed_pages(struct fuzz_in *in, uint32_t which) {
  struct fuzz_image image = fuzz_image_copy(&images[which]);
  const size_t end = load64le(image.p + REMIX_HEAD_OFFS_AT);  // the end of the segments: packing trusts the rest
  for (uint32_t n = 0; n < 64 && fuzz_left(in); n++) change_own(in, &views[which], &image, end);
  const struct fuzz_image file = pack_paged(&image);
  free(image.p);
  return file;
}

FUZZ(remix) {
  if (!place) setup();
  struct fuzz_in in = {data, data + size};
  const uint32_t which = fuzz_u8(&in) % VIEWS, flags = fuzz_u8(&in);
  const struct super *const v = &views[which];
  const struct fuzz_image *const good = good_file(which, flags);
  // calls come first in the input; they are made last
  struct fuzz_in calls = {in.p, in.p};
  struct fuzz_image file;
  const uint32_t how = fuzz_u8(&in);
  if (flags & 4) {
    file = (struct fuzz_image){fuzz_alloc(fuzz_left(&in)), fuzz_left(&in)};
    if (file.len) memcpy(file.p, in.p, file.len);
  } else {
    uint32_t len;
    const uint8_t *const p = fuzz_bytes(&in, fuzz_u8(&in), &len);
    calls = (struct fuzz_in){p, p + len};
    file = (flags & 96) == 96 ? changed_pages(&in, which) : fuzz_image_copy(good);
    for (uint32_t n = 0; n < 64 && fuzz_left(&in); n++) {
      if ((*in.p & 15) >= FUZZ_OWN) change_own(&in, v, &file, file.len);
      else file.len = fuzz_change(&in, file.p, file.len);
    }
  }
  const bool changed = file.len != good->len || memcmp(file.p, good->p, file.len) != 0;
  if (changed && flags & 1) fix(file.p, file.len);

  char name[32];
  remix_name(name, NUMBER);
  fuzz_file_put(place->env, name, file.p, file.len);
  free(file.p);
  struct sst *runs[REMIX_RUNS_MAX];
  const bool by_page = flags & 64;
  const struct sst_ctx *const ctx = by_page     ? (flags & 2 ? &cached_pages : &ctx_pages)
                                    : flags & 2 ? &place->cached
                                                : &place->ctx;
  struct use u = {.view = v, .good = changed ? NULL : &models[which]};
  open_runs(ctx, v, runs);
  atomic_store(&budget_starved, by_page && how & 128);
  const enum remixdb_status s = by_page ? remix_open_paged(ctx, NUMBER, runs, v->nr, &u.x)
                                        : remix_open(ctx, NUMBER, runs, v->nr, &u.x);
  close_runs(v, runs);
  FUZZ_CHECK(s == REMIXDB_OK || (changed && fuzz_refused(s)));
  if (s == REMIXDB_OK && remix_is_paged(u.x)) {
    use_pages(&u, &calls, flags, how);
    FUZZ_CHECK(atomic_load(&pool.nr) == 0);
    epoch_reclaim(&place->epoch);
  } else if (s == REMIXDB_OK) {
    remix_cursor_init(&u.c, place->queue);
    FUZZ_OK(remix_cursor_set(&u.c, u.x));
    u.at = u.good ? u.good->nr : 0;
    while (fuzz_left(&calls)) call(&u, &calls);
    walk(&u);
    epoch_enter(&place->epoch, &place->slot);
    remix_cursor_fini(&u.c);
    epoch_exit(&place->slot);
    if (flags & 8) build_upon(&u, how);
    if (flags & 16) compact(&u, how);
    remix_unref(u.x);
  }
  atomic_store(&budget_starved, false);
  FUZZ_CHECK(simdisk_open_files(place->disk) == 0);
  fuzz_file_remove(place->env, name);
  return 0;
}
