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
#define PACK_LEVEL 1  // of zstd; higher levels gain a few percent

// The columns, in the order of the file. The file has a column as it is, or as one zstd frame if the frame is shorter.
// Tags are never compressed.
enum { COL_TAGS, COL_HEADS, COL_SELS, COL_DBITS_LOW, COL_DBITS_HIGH, COL_ANCHORS, COLS };
#define COLUMN_SLACK REMIX_SEG  // readable bytes after a column: segments are copied in full width
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

static enum remixdb_status column_make(struct column *c, uint64_t cap) {
  c->cap = cap;
  const enum remixdb_status s = mem_map_table((cap ? cap : 1) + COLUMN_SLACK, &c->map);
  c->p = c->map.ptr;
  return s;
}

// ---- packing

static void pack_segments(const uint8_t *image, const struct shape *h, struct column *c) {
  for (uint32_t i = 0; i < h->nr_segs; i++) {
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

static void pack_anchors(const uint8_t *image, const struct shape *h, struct column *c) {
  const uint8_t *const offs = image + h->offs, *const bytes = image + h->anchors;
  struct kref last = kref(bytes, 0);
  uint8_t *p = c->p;
  for (uint32_t i = 0; i < h->nr_segs; i++) {
    const uint32_t at = load32le(offs + 4 * (size_t)i);
    const struct kref a = kref(bytes + at, load32le(offs + 4 * (size_t)i + 4) - at);
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

static enum remixdb_status pack_columns(const uint8_t *image, const struct shape *h, struct column *c) {
  const uint64_t caps[COLS] = {[COL_TAGS] = h->tags ? h->nr_entries : 0,
                               [COL_HEADS] = (uint64_t)REMIX_SEG_HEAD * h->nr_segs,
                               [COL_SELS] = h->nr_entries,
                               [COL_DBITS_LOW] = h->nr_entries,
                               [COL_DBITS_HIGH] = h->nr_entries,
                               [COL_ANCHORS] = 10ull * h->nr_segs + h->anchors_len};
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < COLS && s == REMIXDB_OK; i++) s = column_make(&c[i], caps[i]);
  if (s != REMIXDB_OK) return s;
  pack_segments(image, h, c);
  pack_anchors(image, h, &c[COL_ANCHORS]);
  return s;
}

// compress is false for tags: they are bytes of hashes, which do not get shorter.
static enum remixdb_status pack_column(ZSTD_CCtx *z, const struct column *c, bool compress, uint8_t *to,
                                       size_t *len_out) {
  if (compress && c->len > 1) {
    *len_out = ZSTD_compressCCtx(z, to, c->len - 1, c->p, c->len, PACK_LEVEL);
    if (!ZSTD_isError(*len_out)) return REMIXDB_OK;
    // any other error means that the frame would not be shorter than the column
    if (ZSTD_getErrorCode(*len_out) == ZSTD_error_memory_allocation)
      return err_set(REMIXDB_NOMEM, "no memory for compression");
  }
  if (c->len) memcpy(to, c->p, c->len);
  *len_out = c->len;
  return REMIXDB_OK;
}

enum remixdb_status remix_pack(const uint8_t *image, size_t len, uint8_t **file_out, size_t *len_out) {
  const struct shape h = shape_of(image, load32le(image + REMIX_HEAD_RUNS));
  assert(h.size == len);
  (void)len;
  struct column c[COLS] = {{0}};
  ZSTD_CCtx *const z = ZSTD_createCCtx_advanced(zmem());
  uint8_t *file = NULL;
  enum remixdb_status s = z ? pack_columns(image, &h, c) : err_set(REMIXDB_NOMEM, "no memory for compression");
  if (s != REMIXDB_OK) goto out;
  size_t cap = h.segs + DIR_SIZE + REMIX_SUM;
  for (uint32_t i = 0; i < COLS; i++) cap += c[i].len;
  if (!(file = mem_alloc(cap))) {
    s = REMIXDB_NOMEM;
    goto out;
  }
  memcpy(file, image, h.segs);
  size_t at = h.segs + DIR_SIZE;
  for (uint32_t i = 0; i < COLS; i++) {
    size_t n;
    if ((s = pack_column(z, &c[i], i != COL_TAGS, file + at, &n)) != REMIXDB_OK) goto out;
    uint8_t *const d = file + h.segs + DIR_ENTRY * i;
    store64le(d + DIR_LEN, c[i].len);
    store64le(d + DIR_STORED, n);
    at += n;
  }
  store64le(file + REMIX_HEAD_SIZE, at + REMIX_SUM);
  store64le(file + at, hash64_seed(file, at, load64le(image + REMIX_HEAD_NUMBER)));
  *file_out = file;
  *len_out = at + REMIX_SUM;
out:
  if (s != REMIXDB_OK) mem_free(file);
  (void)ZSTD_freeCCtx(z);
  columns_free(c);
  return s;
}

// ---- unpacking

static enum remixdb_status unpack_columns(ZSTD_DCtx *z, const uint8_t *file, size_t len, const struct shape *h,
                                          const char *path, struct column *c) {
  const uint64_t lens[COLS] = {[COL_TAGS] = h->tags ? h->nr_entries : 0,
                               [COL_HEADS] = (uint64_t)REMIX_SEG_HEAD * h->nr_segs,
                               [COL_SELS] = h->nr_entries,
                               [COL_DBITS_LOW] = h->nr_entries,
                               [COL_DBITS_HIGH] = h->nr_entries};
  uint64_t at = h->segs + DIR_SIZE;
  for (uint32_t i = 0; i < COLS; i++) {
    const uint8_t *const d = file + h->segs + DIR_ENTRY * i;
    const uint64_t whole = load64le(d + DIR_LEN), stored = load64le(d + DIR_STORED);
    const bool fits = i == COL_ANCHORS ? whole <= 10ull * h->nr_segs + h->anchors_len : whole == lens[i];
    if (!fits || stored > whole || stored > len - REMIX_SUM - at)
      return err_corrupt(path, (uint64_t)(d - file), "length of column %u", i);
    const enum remixdb_status s = column_make(&c[i], whole);
    if (s != REMIXDB_OK) return s;
    c[i].len = whole;
    if (stored == whole) {
      memcpy(c[i].p, file + at, whole);
    } else {
      if (ZSTD_findFrameCompressedSize(file + at, stored) != stored)
        return err_corrupt(path, at, "frame of column %u", i);
      const size_t n = ZSTD_decompressDCtx(z, c[i].p, whole, file + at, stored);
      if (ZSTD_isError(n) && ZSTD_getErrorCode(n) == ZSTD_error_memory_allocation)
        return err_set(REMIXDB_NOMEM, "%s: no memory for decompression", path);
      if (ZSTD_isError(n)) return err_corrupt(path, at, "column %u: %s", i, ZSTD_getErrorName(n));
      if (n != whole) return err_corrupt(path, at, "column %u is shorter than it says", i);
    }
    at += stored;
  }
  return at == len - REMIX_SUM ? REMIXDB_OK : err_corrupt(path, at, "columns end before the file");
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
static enum remixdb_status unpack_segments(const struct column *c, const struct shape *h, struct sst *const *runs,
                                           const char *path, uint8_t *image) {
  sst_pos pos[REMIX_RUNS_MAX];
  uint64_t seen[REMIX_RUNS_MAX] = {0}, at = 0;
  for (uint32_t r = 0; r < h->nr_runs; r++) pos[r] = sst_advance(runs[r], 0, 0);
  for (uint32_t i = 0; i < h->nr_segs; i++) {
    uint8_t *const s = image + h->segs + (size_t)i * h->lay.stride;
    memcpy(s + h->lay.head, c[COL_HEADS].p + REMIX_SEG_HEAD * (size_t)i, REMIX_SEG_HEAD);
    const uint32_t nr = remix_seg_nr(&h->lay, s);
    if (nr > REMIX_SEG || nr > h->nr_entries - at) return err_corrupt(path, 0, "segment %u has %u entries", i, nr);
    if (h->tags) unpack_bytes(s, c[COL_TAGS].p + at, nr);
    unpack_bytes(s + h->lay.sel, c[COL_SELS].p + at, nr);
    unpack_dbits(s + h->lay.dbits, c[COL_DBITS_LOW].p + at, c[COL_DBITS_HIGH].p + at, nr);
    const uint32_t in = set32_below(nr);
    uint32_t known = 0;
    for (uint32_t r = 0; r < h->nr_runs; r++) {
      store32le(s + h->lay.offs + 4 * r, pos[r]);
      const uint32_t n = set32_count(set32_eq8(s + h->lay.sel, REMIX_RUN, (uint8_t)r) & in);
      pos[r] = sst_advance(runs[r], pos[r], n);
      seen[r] += n;
      known += n;
    }
    if (unlikely(known != nr)) return err_corrupt(path, 0, "segment %u has an entry of a run that is not there", i);
    at += nr;
  }
  for (uint32_t r = 0; r < h->nr_runs; r++)
    if (pos[r] != sst_end(runs[r]) || seen[r] != runs[r]->nr_records)
      return err_corrupt(path, 0, "%llu entries of run %u, whose table has %llu records", (unsigned long long)seen[r],
                         r, (unsigned long long)runs[r]->nr_records);
  return at == h->nr_entries
             ? REMIXDB_OK
             : err_corrupt(path, REMIX_HEAD_ENTRIES, "segments have %llu entries", (unsigned long long)at);
}

static enum remixdb_status unpack_anchors(const struct column *c, const struct shape *h, const char *path,
                                          uint8_t *image) {
  const uint8_t *p = c->p, *const end = p + c->len;
  uint8_t *const bytes = image + h->anchors;
  uint64_t at = 0;
  uint32_t last = 0;  // offset of the previous anchor
  for (uint32_t i = 0; i < h->nr_segs; i++) {
    uint32_t shared, more = 0;
    p = kv_varint_get(p, end, &shared);
    if (p) p = kv_varint_get(p, end, &more);
    if (!p || shared > at - last || more > (uint64_t)(end - p) || shared + (uint64_t)more > h->anchors_len - at)
      return err_corrupt(path, 0, "anchor of segment %u", i);
    store32le(image + h->offs + 4 * (size_t)i, (uint32_t)at);
    memcpy(bytes + at, bytes + last, shared);
    memcpy(bytes + at + shared, p, more);
    p += more;
    last = (uint32_t)at;
    at += shared + (uint64_t)more;
  }
  store32le(image + h->offs + 4 * (size_t)h->nr_segs, (uint32_t)at);
  return p == end && at == h->anchors_len
             ? REMIXDB_OK
             : err_corrupt(path, REMIX_HEAD_ANCHORS_LEN, "anchors have %llu bytes", (unsigned long long)at);
}

enum remixdb_status remix_unpack(const uint8_t *file, size_t len, struct sst *const *runs, uint32_t nr_runs,
                                 const char *path, struct mem_map *map_out, size_t *len_out) {
  uint64_t records = 0;
  for (uint32_t r = 0; r < nr_runs; r++) records += runs[r]->nr_records;
  const uint32_t nr_said = load32le(file + REMIX_HEAD_RUNS);
  if (nr_said != nr_runs) return err_corrupt(path, REMIX_HEAD_RUNS, "%u runs, %u expected", nr_said, nr_runs);
  if (len < remix_segs_off(nr_runs) + DIR_SIZE + REMIX_SUM)
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
  ZSTD_DCtx *const z = ZSTD_createDCtx_advanced(zmem());
  enum remixdb_status s = z ? unpack_columns(z, file, len, &h, path, c)
                            : err_set(REMIXDB_NOMEM, "no memory for decompression");
  if (s != REMIXDB_OK) goto out;
  if ((s = mem_map_table(h.size, &map)) != REMIXDB_OK) goto out;
  uint8_t *const image = map.ptr;
  if (map.page == 0) memset(image, 0, h.size);  // else the system has zeroed it
  memcpy(image, file, h.segs);
  store64le(image + REMIX_HEAD_SIZE, h.size);
  s = unpack_segments(c, &h, runs, path, image);
  if (s == REMIXDB_OK) s = unpack_anchors(&c[COL_ANCHORS], &h, path, image);
out:
  (void)ZSTD_freeDCtx(z);
  columns_free(c);
  if (s != REMIXDB_OK) {
    mem_unmap(&map);
    return s;
  }
  *map_out = map;
  *len_out = h.size;
  return s;
}
