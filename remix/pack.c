// SPDX-License-Identifier: Apache-2.0
#include "remix/pack.h"

#include <assert.h>
#include <zstd_errors.h>

#include "base/set32.h"
#include "base/zmem.h"

// A file may have one segment per SEG_LEAST entries, and SEG_FEW more. A writer makes fewer: its segments have more
// entries on average, except for a few segments at the ends of stretches.
#define SEG_LEAST 4u
#define SEG_FEW 64u
// Nearly nothing in a column repeats but single bytes: zstd looks for repetitions in few places, and codes the bytes by
// Huffman's code. That takes a third of the time of level 1 and makes the same bytes.
#define PACK_LEVEL (-100)

// The columns, in the order of the file. The file has a column as it is, or as one zstd frame if the frame is shorter.
enum { COL_TAGS, COL_HEADS, COL_SELS, COL_DBITS_LOW, COL_DBITS_HIGH, COL_ANCHORS, COLS };
// Columns that are not compressed. Tags are bytes of hashes, which do not get shorter. Large pages are for files that
// the next round replaces: what the short columns of heads and anchors save there is not worth two frames for each
// page. Anchors are short if they have PLAIN_ANCHOR bytes each on average.
#define PLAIN (1u << COL_TAGS)
#define PLAIN_LARGE (PLAIN | 1u << COL_HEADS | 1u << COL_ANCHORS)
#define PLAIN_ANCHOR 16u
#define COLUMN_SLACK REMIX_SEG  // readable bytes after a column: segments are copied in full width
// A page begins with the length of each column in the file, and the length of the column of anchors; u32 each.
#define REMIX_PAGE_HEAD (4u * (COLS + 1))
// The directory of pages has for each page these fields, a cursor offset for each run, u32, and the anchor.
enum {
  PAGE_SIZE = 0,      // u32, bytes of the page
  PAGE_SEGS = 4,      // u32
  PAGE_ENTRIES = 8,   // u32
  PAGE_KEYS = 12,     // u32, entries that are neither old nor tombstones
  PAGE_ANCHORS = 16,  // u32, bytes of its segments' anchors but the first
  PAGE_ANCHOR = 20,   // u32, length of the first
  PAGE_SUM = 24,      // u64, checksum of the page
  PAGE_STARTS = 32,
};
static inline size_t page_entry(uint32_t nr_runs, uint32_t anchor_len) {
  return PAGE_STARTS + 4 * (size_t)nr_runs + anchor_len;
}

_Atomic uint32_t remix_paged_from = REMIX_PAGED_FROM, remix_page_segs = REMIX_PAGE_SEGS;

// The directory follows the header. For each column it has the column's length and the length stored in the file.
enum { DIR_LEN = 0, DIR_STORED = 8, DIR_ENTRY = 16, DIR_SIZE = DIR_ENTRY * COLS };  // u64 each

// An image's counts, offsets and size, from its header.
struct shape {
  uint32_t nr_runs, nr_segs;
  uint64_t nr_entries;
  bool tags;
  struct remix_layout lay;
  uint64_t segs, offs, anchors, anchors_len, size;
};

static struct shape shape_of(const uint8_t *head, uint32_t nr_runs) {
  struct shape h = {.nr_runs = nr_runs,
                    .nr_segs = load32le(head + REMIX_HEAD_SEGS),
                    .nr_entries = load64le(head + REMIX_HEAD_ENTRIES),
                    .tags = load32le(head + REMIX_HEAD_FLAGS) & REMIX_FLAG_TAGS};
  h.lay = remix_layout(nr_runs, h.tags);
  h.segs = remix_segs_off(nr_runs);
  h.offs = h.segs + (uint64_t)h.nr_segs * h.lay.stride;
  h.anchors = h.offs + 4 * ((uint64_t)h.nr_segs + 1);
  h.anchors_len = load64le(head + REMIX_HEAD_ANCHORS_LEN);
  h.size = h.anchors + h.anchors_len + REMIX_SUM;
  return h;
}

struct column {
  uint8_t *p;
  size_t len, cap;
  struct mem_map map;
};

static void columns_free(struct column *c) {
  for (uint32_t i = 0; i < COLS; i++) mem_unmap(&c[i].map);
}

// Empties a column and makes room in it.
static enum remixdb_status column_make(struct column *c, uint64_t cap) {
  c->len = 0;
  if (c->p && cap <= c->cap) return REMIXDB_OK;
  mem_unmap(&c->map);
  c->cap = cap;
  const enum remixdb_status s = remix_map((cap ? cap : 1) + COLUMN_SLACK, &c->map);
  c->p = s == REMIXDB_OK ? c->map.ptr : NULL;
  return s;
}

// ---- packing

// Stretches of an image's segments: [from, to).
struct stretch {
  uint32_t from, to;
  uint64_t entries;
};

static void pack_segments(const uint8_t *image, const struct shape *h, const struct stretch *t, struct column *c) {
  for (uint32_t i = t->from; i < t->to; i++) {
    const uint8_t *const s = image + h->segs + (size_t)i * h->lay.stride;
    const uint32_t nr = remix_seg_nr(&h->lay, s);
    if (h->tags) memcpy(c[COL_TAGS].p + c[COL_TAGS].len, s, nr);
    memcpy(c[COL_HEADS].p + c[COL_HEADS].len, s + h->lay.head, REMIX_SEG_HEAD);
    memcpy(c[COL_SELS].p + c[COL_SELS].len, s + h->lay.sel, nr);
    uint8_t *const low = c[COL_DBITS_LOW].p + c[COL_DBITS_LOW].len, *const high = c[COL_DBITS_HIGH].p +
                                                                                  c[COL_DBITS_HIGH].len;
    for (uint32_t e = 0; e < nr; e++) {
      low[e] = s[h->lay.dbits + 2 * e];
      high[e] = s[h->lay.dbits + 2 * e + 1];
    }
    c[COL_HEADS].len += REMIX_SEG_HEAD;
    c[COL_TAGS].len += h->tags ? nr : 0;
    c[COL_SELS].len += nr;
    c[COL_DBITS_LOW].len += nr;
    c[COL_DBITS_HIGH].len += nr;
  }
}

static struct kref image_anchor(const uint8_t *image, const struct shape *h, uint32_t i) {
  const uint8_t *const offs = image + h->offs + 4 * (size_t)i;
  const uint32_t at = load32le(offs);
  return kref(image + h->anchors + at, load32le(offs + 4) - at);
}

// The first anchor of the stretch counts as empty.
static void pack_anchors(const uint8_t *image, const struct shape *h, const struct stretch *t, struct column *c) {
  struct kref last = kref(image, 0);
  uint8_t *p = c->p;
  for (uint32_t i = t->from; i < t->to; i++) {
    const struct kref a = i == t->from ? last : image_anchor(image, h, i);
    const uint32_t shared = kv_lcp_from(last, a, 0);
    p = kv_varint_put(p, shared);
    p = kv_varint_put(p, a.len - shared);
    memcpy(p, a.ptr + shared, a.len - shared);
    p += a.len - shared;
    last = a;
  }
  c->len = (size_t)(p - c->p);
  assert(c->len <= c->cap);
}

static enum remixdb_status pack_columns(const uint8_t *image, const struct shape *h, const struct stretch *t,
                                        struct column *c) {
  const uint32_t segs = t->to - t->from, anchors = load32le(image + h->offs + 4 * (size_t)t->to) -
                                                   load32le(image + h->offs + 4 * (size_t)t->from);
  const uint64_t caps[COLS] = {[COL_TAGS] = h->tags ? t->entries : 0,
                               [COL_HEADS] = (uint64_t)REMIX_SEG_HEAD * segs,
                               [COL_SELS] = t->entries,
                               [COL_DBITS_LOW] = t->entries,
                               [COL_DBITS_HIGH] = t->entries,
                               [COL_ANCHORS] = 10ull * segs + anchors};
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < COLS && s == REMIXDB_OK; i++) s = column_make(&c[i], caps[i]);
  if (s != REMIXDB_OK) return s;
  pack_segments(image, h, t, c);
  pack_anchors(image, h, t, &c[COL_ANCHORS]);
  return s;
}

static enum remixdb_status pack_column(ZSTD_CCtx *z, const struct column *c, bool compress, uint8_t *to,
                                       size_t *len_out) {
  if (compress && c->len > 1) {
    *len_out = ZSTD_compress2(z, to, c->len - 1, c->p, c->len);
    if (!ZSTD_isError(*len_out)) return REMIXDB_OK;
    // any other error means that the frame would not be shorter than the column
    if (ZSTD_getErrorCode(*len_out) == ZSTD_error_memory_allocation)
      return err_set(REMIXDB_NOMEM, "no memory for compression");
  }
  if (c->len) memcpy(to, c->p, c->len);
  *len_out = c->len;
  return REMIXDB_OK;
}

// A file that is being made: room for `cap` bytes.
struct packing {
  uint32_t plain;  // bit c: column c is not compressed
  const uint8_t *image;
  const struct shape *h;
  ZSTD_CCtx *z;
  struct column cols[COLS];
  uint8_t *file;
  size_t at, cap;
  uint32_t page_segs;
};

static enum remixdb_status packing_reserve(struct packing *k, size_t more) {
  if (more <= k->cap - k->at) return REMIXDB_OK;
  size_t cap = mem_sum(k->cap, k->cap / 2);
  if (cap < mem_sum(k->at, more)) cap = mem_sum(k->at, more);
  uint8_t *const file = mem_realloc(k->file, cap);
  if (!file) return REMIXDB_NOMEM;
  k->file = file;
  k->cap = cap;
  return REMIXDB_OK;
}

// Packs the columns of a stretch behind `head` bytes, which the caller fills with the lengths. lens_out: for each
// column its length, and its length in the file.
static enum remixdb_status pack_stretch(struct packing *k, const struct stretch *t, size_t head,
                                        size_t (*lens_out)[2]) {
  enum remixdb_status s = pack_columns(k->image, k->h, t, k->cols);
  size_t room = head + REMIX_SUM;
  for (uint32_t i = 0; i < COLS; i++) room += k->cols[i].len;
  if (s == REMIXDB_OK) s = packing_reserve(k, room);
  if (s == REMIXDB_OK) k->at += head;
  const bool long_anchors = k->cols[COL_ANCHORS].len > PLAIN_ANCHOR * (size_t)(t->to - t->from);
  for (uint32_t i = 0; i < COLS && s == REMIXDB_OK; i++) {
    const bool compress = !(k->plain >> i & 1) || (i == COL_ANCHORS && long_anchors);
    lens_out[i][0] = k->cols[i].len;
    s = pack_column(k->z, &k->cols[i], compress, k->file + k->at, &lens_out[i][1]);
    k->at += lens_out[i][1];
  }
  return s;
}

static enum remixdb_status pack_whole(struct packing *k) {
  const struct stretch all = {0, k->h->nr_segs, k->h->nr_entries};
  const size_t head = k->at;
  size_t lens[COLS][2];
  const enum remixdb_status s = pack_stretch(k, &all, DIR_SIZE, lens);
  for (uint32_t i = 0; i < COLS && s == REMIXDB_OK; i++) {
    uint8_t *const d = k->file + head + DIR_ENTRY * i;
    store64le(d + DIR_LEN, lens[i][0]);
    store64le(d + DIR_STORED, lens[i][1]);
  }
  return s;
}

// Counts what the directory says of a stretch's segments.
static void count_stretch(const uint8_t *image, const struct shape *h, struct stretch *t, uint32_t *keys_out) {
  *keys_out = 0;
  t->entries = 0;
  for (uint32_t i = t->from; i < t->to; i++) {
    const uint8_t *const s = image + h->segs + (size_t)i * h->lay.stride;
    const uint32_t nr = remix_seg_nr(&h->lay, s);
    t->entries += nr;
    *keys_out += set32_count(set32_eq8(s + h->lay.sel, REMIX_OLD | REMIX_TOMB, 0) & set32_below(nr));
  }
}

// Packs a page, and adds what the directory says of it.
static enum remixdb_status pack_page(struct packing *k, struct stretch *t, uint64_t number, struct column *dir) {
  const struct shape *const h = k->h;
  const size_t from = k->at;
  const struct kref anchor = image_anchor(k->image, h, t->from);
  size_t lens[COLS][2];
  uint32_t keys;
  count_stretch(k->image, h, t, &keys);
  const enum remixdb_status s = pack_stretch(k, t, REMIX_PAGE_HEAD, lens);
  if (s != REMIXDB_OK) return s;
  uint8_t *const head = k->file + from;
  for (uint32_t i = 0; i < COLS; i++) store32le(head + 4 * i, (uint32_t)lens[i][1]);
  store32le(head + 4 * COLS, (uint32_t)lens[COL_ANCHORS][0]);
  uint8_t *const d = dir->p + dir->len;
  store32le(d + PAGE_SIZE, (uint32_t)(k->at - from));
  store32le(d + PAGE_SEGS, t->to - t->from);
  store32le(d + PAGE_ENTRIES, (uint32_t)t->entries);
  store32le(d + PAGE_KEYS, keys);
  store32le(d + PAGE_ANCHORS, load32le(k->image + h->offs + 4 * (size_t)t->to) -
                                  load32le(k->image + h->offs + 4 * (size_t)t->from) - anchor.len);
  store32le(d + PAGE_ANCHOR, anchor.len);
  store64le(d + PAGE_SUM, hash64_seed(head, k->at - from, number));
  memcpy(d + PAGE_STARTS, k->image + h->segs + (size_t)t->from * h->lay.stride + h->lay.offs, 4 * (size_t)h->nr_runs);
  if (anchor.len) memcpy(d + PAGE_STARTS + 4 * h->nr_runs, anchor.ptr, anchor.len);
  dir->len += page_entry(h->nr_runs, anchor.len);
  return s;
}

static enum remixdb_status pack_pages(struct packing *k, uint64_t number) {
  const struct shape *const h = k->h;
  struct column dir = {0};
  size_t room = 0;
  enum remixdb_status s = REMIXDB_OK;
  const uint32_t most = k->page_segs;
  for (uint32_t i = 0; i < h->nr_segs; i += most) room += page_entry(h->nr_runs, image_anchor(k->image, h, i).len);
  s = column_make(&dir, room);
  for (uint32_t i = 0; i < h->nr_segs && s == REMIXDB_OK; i += most) {
    struct stretch t = {i, h->nr_segs - i < most ? h->nr_segs : i + most, 0};
    s = pack_page(k, &t, number, &dir);
  }
  if (s == REMIXDB_OK) s = packing_reserve(k, dir.len + 2 * REMIX_SUM);
  if (s == REMIXDB_OK) {
    store64le(k->file + REMIX_HEAD_SEGS_AT, k->at);
    memcpy(k->file + k->at, dir.p, dir.len);
    store64le(k->file + k->at + dir.len, hash64_seed(dir.p, dir.len, number));
    k->at += dir.len + REMIX_SUM;
  }
  mem_unmap(&dir.map);
  return s;
}

// A library that does not know a parameter packs at its standard level.
static void pack_level(ZSTD_CCtx *z) {
  (void)ZSTD_CCtx_setParameter(z, ZSTD_c_compressionLevel, PACK_LEVEL);
  (void)ZSTD_CCtx_setParameter(z, ZSTD_c_literalCompressionMode, ZSTD_ps_enable);
}

static enum remixdb_status pack_file(struct packing *k) {
  const struct shape *const h = k->h;
  const uint64_t number = load64le(k->image + REMIX_HEAD_NUMBER);
  const bool paged = h->nr_segs >= atomic_load_explicit(&remix_paged_from, memory_order_relaxed);
  // about what a file takes; tags do not get shorter
  enum remixdb_status s = packing_reserve(k, h->segs + DIR_SIZE + 3 * h->nr_entries + 2 * REMIX_SUM);
  if (s != REMIXDB_OK) return s;
  memcpy(k->file, k->image, h->segs);
  k->at = h->segs;
  if (paged) {
    const bool plain = load32le(k->image + REMIX_HEAD_FORMAT) <= REMIX_FORMAT_PLAIN;
    store32le(k->file + REMIX_HEAD_FORMAT, REMIX_FORMAT_PAGED);
    store32le(k->file + REMIX_HEAD_FLAGS,
              load32le(k->image + REMIX_HEAD_FLAGS) | (plain ? 0 : (uint32_t)REMIX_FLAG_KINDS));
  }
  pack_level(k->z);
  s = paged ? pack_pages(k, number) : pack_whole(k);
  if (s != REMIXDB_OK) return s;
  store64le(k->file + REMIX_HEAD_SIZE, k->at + REMIX_SUM);
  store64le(k->file + k->at, hash64_seed(k->file, k->at, number));
  k->at += REMIX_SUM;
  return s;
}

enum remixdb_status remix_pack(const uint8_t *image, size_t len, bool large_pages, uint8_t **file_out,
                               size_t *len_out) {
  const struct shape h = shape_of(image, load32le(image + REMIX_HEAD_RUNS));
  assert(h.size == len);
  (void)len;
  struct packing k = {.image = image, .h = &h, .z = zmem_packer_take()};
  k.plain = large_pages ? PLAIN_LARGE : PLAIN;
  k.page_segs = atomic_load_explicit(&remix_page_segs, memory_order_relaxed) << large_pages;
  if (k.page_segs > REMIX_PAGE_MOST) k.page_segs = REMIX_PAGE_MOST;
  const enum remixdb_status s = k.z ? pack_file(&k) : REMIXDB_NOMEM;
  if (s == REMIXDB_OK) {
    *file_out = k.file;
    *len_out = k.at;
  } else {
    mem_free(k.file);
  }
  zmem_packer_give(k.z);
  columns_free(k.cols);
  return s;
}

// ---- unpacking

// A stretch of an image's segments that is being filled.
struct filling {
  const char *path;
  struct sst *const *runs;
  uint32_t nr_runs;
  bool tags;
  struct remix_layout lay;
  uint8_t *segs, *offs, *anchors;
  uint64_t anchors_len;  // room
  uint32_t nr_segs;      // that are full
  uint64_t nr_entries, nr_keys, anchors_at;
  sst_pos pos[REMIX_RUNS_MAX];
  uint64_t seen[REMIX_RUNS_MAX];
};

static enum remixdb_status unpack_column(ZSTD_DCtx *z, const uint8_t *from, uint64_t stored, uint64_t whole,
                                         const char *path, struct column *c) {
  const enum remixdb_status s = column_make(c, whole);
  if (s != REMIXDB_OK) return s;
  c->len = whole;
  if (stored == whole) {
    if (whole) memcpy(c->p, from, whole);
    return s;
  }
  if (ZSTD_findFrameCompressedSize(from, stored) != stored) return err_corrupt(path, 0, "frame of a column");
  const size_t n = ZSTD_decompressDCtx(z, c->p, whole, from, stored);
  if (ZSTD_isError(n) && ZSTD_getErrorCode(n) == ZSTD_error_memory_allocation)
    return err_set(REMIXDB_NOMEM, "%s: no memory for decompression", path);
  if (ZSTD_isError(n)) return err_corrupt(path, 0, "a column: %s", ZSTD_getErrorName(n));
  return n == whole ? s : err_corrupt(path, 0, "a column is shorter than it says");
}

// The most bytes of the anchors' column, by which two lengths go before the rest of each anchor.
static uint64_t anchors_most(uint32_t nr_segs, uint64_t anchors_len) { return 10ull * nr_segs + anchors_len; }

// The most bytes of a page in the file, where no column is longer than in memory.
static uint64_t page_most(const struct remix_page *p, bool tags) {
  return REMIX_PAGE_HEAD + (uint64_t)REMIX_SEG_HEAD * p->nr_segs + (tags ? 4ull : 3ull) * p->nr_entries +
         anchors_most(p->nr_segs, p->anchors_len);
}

// lens: for each column its length, and its length in the file. from: `room` bytes, which the columns fill.
static enum remixdb_status unpack_columns(ZSTD_DCtx *z, const uint8_t *from, uint64_t room, uint64_t (*lens)[2],
                                          uint32_t nr_segs, uint64_t nr_entries, uint64_t anchors_len, bool tags,
                                          const char *path, struct column *c) {
  const uint64_t whole[COLS] = {[COL_TAGS] = tags ? nr_entries : 0,
                                [COL_HEADS] = (uint64_t)REMIX_SEG_HEAD * nr_segs,
                                [COL_SELS] = nr_entries,
                                [COL_DBITS_LOW] = nr_entries,
                                [COL_DBITS_HIGH] = nr_entries};
  uint64_t at = 0;
  for (uint32_t i = 0; i < COLS; i++) {
    const uint64_t len = lens[i][0], stored = lens[i][1];
    const bool fits = i == COL_ANCHORS ? len <= anchors_most(nr_segs, anchors_len) : len == whole[i];
    if (!fits || stored > len || stored > room - at) return err_corrupt(path, 0, "length of column %u", i);
    const enum remixdb_status s = unpack_column(z, from + at, stored, len, path, &c[i]);
    if (s != REMIXDB_OK) return s;
    at += stored;
  }
  return at == room ? REMIXDB_OK : err_corrupt(path, 0, "columns end before their place");
}

// Copies nr entries in the full width of a segment, with zeros after the last one.
static void unpack_bytes(uint8_t *restrict to, const uint8_t *restrict from, uint32_t nr) {
  memcpy(to, from, REMIX_SEG);
  memset(to + nr, 0, REMIX_SEG - nr);
}

static void unpack_dbits(uint8_t *restrict to, const uint8_t *restrict low, const uint8_t *restrict high, uint32_t nr) {
  uint8_t both[2 * REMIX_SEG];
  for (uint32_t e = 0; e < REMIX_SEG; e++) {
    both[2 * e] = low[e];
    both[2 * e + 1] = high[e];
  }
  memcpy(to, both, sizeof(both));
  memset(to + 2 * nr, 0, 2 * (REMIX_SEG - nr));
}

// Counts selectors to get the cursor offsets. A selector of a run that does not exist counts for no run, so the sum of
// the counts shows it.
static enum remixdb_status fill_segments(struct filling *f, const struct column *c, uint32_t nr_segs,
                                         uint64_t nr_entries) {
  uint64_t at = 0;
  for (uint32_t i = 0; i < nr_segs; i++) {
    uint8_t *const s = f->segs + (size_t)(f->nr_segs + i) * f->lay.stride;
    memcpy(s + f->lay.head, c[COL_HEADS].p + REMIX_SEG_HEAD * (size_t)i, REMIX_SEG_HEAD);
    const uint32_t nr = remix_seg_nr(&f->lay, s);
    if (nr > REMIX_SEG || nr > nr_entries - at) return err_corrupt(f->path, 0, "a segment has %u entries", nr);
    if (f->tags) unpack_bytes(s, c[COL_TAGS].p + at, nr);
    unpack_bytes(s + f->lay.sel, c[COL_SELS].p + at, nr);
    unpack_dbits(s + f->lay.dbits, c[COL_DBITS_LOW].p + at, c[COL_DBITS_HIGH].p + at, nr);
    const uint32_t in = set32_below(nr);
    uint32_t known = 0;
    for (uint32_t r = 0; r < f->nr_runs; r++) {
      store32le(s + f->lay.offs + 4 * r, f->pos[r]);
      const uint32_t n = set32_count(set32_eq8(s + f->lay.sel, REMIX_RUN, (uint8_t)r) & in);
      f->pos[r] = sst_advance(f->runs[r], f->pos[r], n);
      f->seen[r] += n;
      known += n;
    }
    if (unlikely(known != nr)) return err_corrupt(f->path, 0, "a segment has an entry of a run that is not there");
    f->nr_keys += set32_count(set32_eq8(s + f->lay.sel, REMIX_OLD | REMIX_TOMB, 0) & in);
    at += nr;
  }
  f->nr_entries += at;
  return at == nr_entries ? REMIXDB_OK : err_corrupt(f->path, 0, "segments have %llu entries", (unsigned long long)at);
}

// first: the anchor of the first segment.
static enum remixdb_status fill_anchors(struct filling *f, const struct column *c, uint32_t nr_segs,
                                        struct kref first) {
  const uint8_t *p = c->p, *const end = p + c->len;
  uint64_t at = f->anchors_at;
  uint64_t last = at;  // offset of the anchor before; the first one counts as empty
  for (uint32_t i = 0; i < nr_segs; i++) {
    uint32_t shared, more = 0;
    p = kv_varint_get(p, end, &shared);
    if (p) p = kv_varint_get(p, end, &more);
    const bool begins = i == 0;
    if (!p || shared > (i < 2 ? 0 : at - last) || more > (uint64_t)(end - p) || (begins && more) ||
        shared + (uint64_t)more + (begins ? first.len : 0) > f->anchors_len - at)
      return err_corrupt(f->path, 0, "anchor of a segment");
    store32le(f->offs + 4 * (size_t)(f->nr_segs + i), (uint32_t)at);
    memcpy(f->anchors + at, f->anchors + last, shared);
    memcpy(f->anchors + at + shared, p, more);
    if (begins && first.len) memcpy(f->anchors + at, first.ptr, first.len);
    p += more;
    last = at;
    at += shared + (uint64_t)more + (begins ? first.len : 0);
  }
  store32le(f->offs + 4 * (size_t)(f->nr_segs + nr_segs), (uint32_t)at);
  f->anchors_at = at;
  return p == end ? REMIXDB_OK : err_corrupt(f->path, 0, "anchors end before their place");
}

static enum remixdb_status fill_whole(struct filling *f, ZSTD_DCtx *z, const uint8_t *file, size_t len,
                                      const struct shape *h, struct column *c) {
  const uint8_t *const dir = file + h->segs;
  uint64_t lens[COLS][2];
  for (uint32_t i = 0; i < COLS; i++) {
    lens[i][0] = load64le(dir + DIR_ENTRY * i + DIR_LEN);
    lens[i][1] = load64le(dir + DIR_ENTRY * i + DIR_STORED);
  }
  enum remixdb_status s = unpack_columns(z, dir + DIR_SIZE, len - REMIX_SUM - h->segs - DIR_SIZE, lens, h->nr_segs,
                                         h->nr_entries, h->anchors_len, h->tags, f->path, c);
  if (s == REMIXDB_OK) s = fill_segments(f, c, h->nr_segs, h->nr_entries);
  if (s == REMIXDB_OK) s = fill_anchors(f, &c[COL_ANCHORS], h->nr_segs, kref(NULL, 0));
  f->nr_segs = h->nr_segs;
  return s;
}

// Checks the page's checksum first, and that the page has the keys and the anchors of which the directory tells.
static enum remixdb_status fill_page(struct filling *f, ZSTD_DCtx *z, const uint8_t *bytes, const struct remix_page *p,
                                     struct kref first, uint64_t number, struct column *c) {
  if (hash64_seed(bytes, p->size, number) != p->sum)
    return err_corrupt(f->path, p->at, "checksum of a page does not match");
  const uint64_t keys = f->nr_keys, anchors = f->anchors_at;
  uint64_t lens[COLS][2] = {{p->nr_entries, 0}, {(uint64_t)REMIX_SEG_HEAD * p->nr_segs, 0},
                            {p->nr_entries, 0}, {p->nr_entries, 0},
                            {p->nr_entries, 0}, {load32le(bytes + 4 * COLS), 0}};
  if (!f->tags) lens[COL_TAGS][0] = 0;
  for (uint32_t i = 0; i < COLS; i++) lens[i][1] = load32le(bytes + 4 * i);
  for (uint32_t r = 0; r < f->nr_runs; r++)
    if (load32le(p->starts + 4 * r) != f->pos[r]) return err_corrupt(f->path, p->at, "a page's cursor offset");
  enum remixdb_status s = unpack_columns(z, bytes + REMIX_PAGE_HEAD, p->size - REMIX_PAGE_HEAD, lens, p->nr_segs,
                                         p->nr_entries, p->anchors_len, f->tags, f->path, c);
  if (s == REMIXDB_OK) s = fill_segments(f, c, p->nr_segs, p->nr_entries);
  if (s == REMIXDB_OK) s = fill_anchors(f, &c[COL_ANCHORS], p->nr_segs, first);
  f->nr_segs += p->nr_segs;
  if (s == REMIXDB_OK && f->nr_keys - keys != p->nr_keys)
    s = err_corrupt(f->path, p->at, "a page has %llu keys", (unsigned long long)(f->nr_keys - keys));
  if (s == REMIXDB_OK && f->anchors_at - anchors != p->anchors_len + (uint64_t)first.len)
    s = err_corrupt(f->path, p->at, "anchors of a page");
  return s;
}

static enum remixdb_status fill_pages(struct filling *f, ZSTD_DCtx *z, const uint8_t *file, size_t len,
                                      const struct shape *h, struct column *c) {
  struct remix_dir d;
  struct remix_page p;
  const uint64_t at = load64le(file + REMIX_HEAD_SEGS_AT);
  if (at < h->segs || at > len - 2 * REMIX_SUM)
    return err_corrupt(f->path, REMIX_HEAD_SEGS_AT, "place of the directory");
  enum remixdb_status s = remix_dir_begin(&d, file, file + at, len - REMIX_SUM - at, f->path);
  while (s == REMIXDB_OK && d.left) {
    if ((s = remix_dir_next(&d, &p)) != REMIXDB_OK) break;
    if (p.nr_segs > h->nr_segs - f->nr_segs) return err_corrupt(f->path, p.at, "pages have too many segments");
    s = fill_page(f, z, file + p.at, &p, p.anchor, load64le(file + REMIX_HEAD_NUMBER), c);
  }
  return s;
}

bool remix_file_is_paged(const uint8_t *head) { return load32le(head + REMIX_HEAD_FORMAT) == REMIX_FORMAT_PAGED; }

enum remixdb_status remix_dir_begin(struct remix_dir *d, const uint8_t *head, const uint8_t *dir, size_t len,
                                    const char *path) {
  const uint64_t number = load64le(head + REMIX_HEAD_NUMBER);
  *d = (struct remix_dir){.path = path, .p = dir, .nr_runs = load32le(head + REMIX_HEAD_RUNS)};
  d->tags = load32le(head + REMIX_HEAD_FLAGS) & REMIX_FLAG_TAGS;
  d->at = remix_segs_off(d->nr_runs);
  d->end = load64le(head + REMIX_HEAD_SEGS_AT);
  d->segs = load32le(head + REMIX_HEAD_SEGS);
  d->entries = load64le(head + REMIX_HEAD_ENTRIES);
  d->keys = load64le(head + REMIX_HEAD_KEYS);
  d->anchors = load64le(head + REMIX_HEAD_ANCHORS_LEN);
  if (len < REMIX_SUM || d->nr_runs > REMIX_RUNS_MAX) return err_corrupt(path, d->end, "directory of %zu bytes", len);
  d->left = len - REMIX_SUM;
  if (hash64_seed(dir, d->left, number) != load64le(dir + d->left))
    return err_corrupt(path, d->end, "checksum of the directory does not match");
  return REMIXDB_OK;
}

static struct remix_page page_of_entry(const uint8_t *entry, uint32_t nr_runs, uint64_t at) {
  return (struct remix_page){
      .at = at,
      .size = load32le(entry + PAGE_SIZE),
      .nr_segs = load32le(entry + PAGE_SEGS),
      .nr_entries = load32le(entry + PAGE_ENTRIES),
      .nr_keys = load32le(entry + PAGE_KEYS),
      .anchors_len = load32le(entry + PAGE_ANCHORS),
      .sum = load64le(entry + PAGE_SUM),
      .starts = entry + PAGE_STARTS,
      .anchor = kref(entry + PAGE_STARTS + 4 * (size_t)nr_runs, load32le(entry + PAGE_ANCHOR)),
  };
}

enum remixdb_status remix_dir_next(struct remix_dir *d, struct remix_page *out) {
  const uint8_t *const p = d->p;
  if (d->left < page_entry(d->nr_runs, 0)) return err_corrupt(d->path, d->end, "directory ends within a page");
  const uint32_t len = load32le(p + PAGE_ANCHOR);
  if (len > KV_KEY_MAX || d->left < page_entry(d->nr_runs, len))
    return err_corrupt(d->path, d->end, "anchor of a page has %u bytes", len);
  *out = page_of_entry(p, d->nr_runs, d->at);
  const bool first = d->last.ptr == NULL;
  const bool fits = out->nr_segs > 0 && out->nr_segs <= REMIX_PAGE_MOST && out->nr_segs <= d->segs &&
                    out->nr_entries >= out->nr_segs && out->nr_entries <= REMIX_SEG * out->nr_segs &&
                    out->nr_entries <= d->entries && out->nr_keys <= d->keys && out->nr_keys <= out->nr_entries &&
                    out->anchors_len <= (out->nr_segs - 1) * KV_KEY_MAX &&
                    (uint64_t)out->anchors_len + len <= d->anchors && out->size >= REMIX_PAGE_HEAD &&
                    out->size <= d->end - d->at && out->size <= page_most(out, d->tags) &&
                    (first ? len == 0 : kv_cmp(d->last, out->anchor) < 0);
  if (!fits) return err_corrupt(d->path, d->end, "page at %llu", (unsigned long long)d->at);
  d->p += page_entry(d->nr_runs, len);
  d->left -= page_entry(d->nr_runs, len);
  d->last = out->anchor;
  d->at += out->size;
  d->segs -= out->nr_segs;
  d->entries -= out->nr_entries;
  d->keys -= out->nr_keys;
  d->anchors -= out->anchors_len + len;
  if (d->left == 0 && (d->segs || d->entries || d->keys || d->anchors || d->at != d->end))
    return err_corrupt(d->path, d->end, "pages are not all of the file");
  return REMIXDB_OK;
}

ZSTD_DCtx *remix_unpacker_create(void) { return zmem_unpacker_take(); }

void remix_unpacker_destroy(ZSTD_DCtx *z) { zmem_unpacker_give(z); }

enum remixdb_status remix_page_unpack(const struct remix_page *p, const uint8_t *bytes, const struct remix *x,
                                      uint64_t number, ZSTD_DCtx *z, uint8_t *image, uint64_t *seen) {
  struct filling f = {.path = x->path, .runs = x->runs, .nr_runs = x->nr_runs, .tags = x->tags};
  struct column c[COLS] = {{0}};
  f.lay = remix_layout(x->nr_runs, x->tags);
  f.segs = image;
  f.offs = image + (size_t)p->nr_segs * f.lay.stride;
  f.anchors = f.offs + 4 * ((size_t)p->nr_segs + 1);
  f.anchors_len = p->anchors_len;
  for (uint32_t r = 0; r < x->nr_runs; r++) f.pos[r] = load32le(p->starts + 4 * r);
  memset(image, 0, (size_t)p->nr_segs * f.lay.stride);
  const enum remixdb_status s = fill_page(&f, z, bytes, p, kref(NULL, 0), number, c);
  columns_free(c);
  memcpy(seen, f.seen, x->nr_runs * sizeof(*seen));
  return s;
}

// Compares what was filled in with what the header and the tables say.
static enum remixdb_status filled_all(const struct filling *f, const struct shape *h) {
  for (uint32_t r = 0; r < h->nr_runs; r++)
    if (f->pos[r] != sst_end(f->runs[r]) || f->seen[r] != f->runs[r]->nr_records)
      return err_corrupt(f->path, 0, "%llu entries of run %u, whose table has %llu records",
                         (unsigned long long)f->seen[r], r, (unsigned long long)f->runs[r]->nr_records);
  if (f->nr_entries != h->nr_entries || f->nr_segs != h->nr_segs)
    return err_corrupt(f->path, REMIX_HEAD_ENTRIES, "segments have %llu entries", (unsigned long long)f->nr_entries);
  return f->anchors_at == h->anchors_len ? REMIXDB_OK
                                         : err_corrupt(f->path, REMIX_HEAD_ANCHORS_LEN, "anchors have %llu bytes",
                                                       (unsigned long long)f->anchors_at);
}

// Makes the image's header of the file's.
static void unpack_head(const uint8_t *file, const struct shape *h, uint8_t *image) {
  memcpy(image, file, h->segs);
  store64le(image + REMIX_HEAD_SIZE, h->size);
  if (!remix_file_is_paged(file)) return;
  const uint32_t flags = load32le(file + REMIX_HEAD_FLAGS);
  store64le(image + REMIX_HEAD_SEGS_AT, h->segs);
  store32le(image + REMIX_HEAD_FORMAT, flags & REMIX_FLAG_KINDS ? REMIX_FORMAT_KINDS : REMIX_FORMAT_PLAIN);
  store32le(image + REMIX_HEAD_FLAGS, flags & ~(uint32_t)REMIX_FLAG_KINDS);
}

enum remixdb_status remix_unpack(const uint8_t *file, size_t len, struct sst *const *runs, uint32_t nr_runs,
                                 const char *path, struct mem_map *map_out, size_t *len_out) {
  uint64_t records = 0;
  for (uint32_t r = 0; r < nr_runs; r++) records += runs[r]->nr_records;
  const uint32_t nr_said = load32le(file + REMIX_HEAD_RUNS);
  if (nr_said != nr_runs) return err_corrupt(path, REMIX_HEAD_RUNS, "%u runs, %u expected", nr_said, nr_runs);
  if (len < remix_segs_off(nr_runs) + (remix_file_is_paged(file) ? REMIX_SUM : DIR_SIZE) + REMIX_SUM)
    return err_corrupt(path, REMIX_HEAD_SIZE, "too short for %u runs", nr_runs);
  const struct shape h = shape_of(file, nr_runs);
  // this check and the check of the anchors' length bound the memory that unpacking takes
  if (h.nr_entries != records || h.nr_segs > records / SEG_LEAST + SEG_FEW)
    return err_corrupt(path, REMIX_HEAD_SEGS, "%u segments, %llu entries of %llu records", h.nr_segs,
                       (unsigned long long)h.nr_entries, (unsigned long long)records);
  uint64_t keys = 0;
  for (uint32_t r = 0; r < nr_runs; r++) keys += runs[r]->key_bytes;
  if (h.anchors_len > UINT32_MAX || h.anchors_len > keys || h.anchors_len > (uint64_t)h.nr_segs * KV_KEY_MAX)
    return err_corrupt(path, REMIX_HEAD_ANCHORS_LEN, "length of the anchors");
  struct column c[COLS] = {{0}};
  struct mem_map map = {0};
  ZSTD_DCtx *const z = zmem_unpacker_take();
  enum remixdb_status s = z ? remix_map(h.size, &map) : REMIXDB_NOMEM;
  if (s != REMIXDB_OK) goto out;
  uint8_t *const image = map.ptr;
  if (map.page == 0) memset(image, 0, h.size);  // else the system has zeroed it
  unpack_head(file, &h, image);
  struct filling f = {.path = path, .runs = runs, .nr_runs = nr_runs, .tags = h.tags, .lay = h.lay};
  f.segs = image + h.segs;
  f.offs = image + h.offs;
  f.anchors = image + h.anchors;
  f.anchors_len = h.anchors_len;
  for (uint32_t r = 0; r < nr_runs; r++) f.pos[r] = sst_advance(runs[r], 0, 0);
  s = remix_file_is_paged(file) ? fill_pages(&f, z, file, len, &h, c) : fill_whole(&f, z, file, len, &h, c);
  if (s == REMIXDB_OK) s = filled_all(&f, &h);
out:
  zmem_unpacker_give(z);
  columns_free(c);
  if (s != REMIXDB_OK) {
    mem_unmap(&map);
    return s;
  }
  *map_out = map;
  *len_out = h.size;
  return s;
}
