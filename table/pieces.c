// SPDX-License-Identifier: Apache-2.0
#include "table/pieces.h"

#include <assert.h>

#define PART (BLOCK_PAGE / SST_PIECES)  // bytes of a page's eighth
enum { NO = 0, BUSY = 1, KNOWN = 2 };   // values of sst_pieces.known

_Static_assert(sizeof(struct sst_pieces) == CACHE_LINE, "one cache miss");
_Static_assert(BLOCK_GROW_PAGES *BLOCK_PAGE <= UINT16_MAX, "offsets in blocks of several records fit");

// The next three functions return the offset, the first record and the checksum of piece k of a block. `pages` is the
// size of the block. k counts from the block's beginning. The piece after the last one begins at the block's end.
static inline uint32_t piece_off(const struct sst_pieces *p, uint32_t k, uint32_t pages) {
  return k < pages * SST_PIECES ? p[k / SST_PIECES].offs[k % SST_PIECES] : pages * BLOCK_PAGE;
}
static inline uint32_t piece_first(const struct sst_pieces *p, uint32_t k, uint32_t pages, uint32_t nr_recs) {
  return k < pages * SST_PIECES ? p[k / SST_PIECES].first[k % SST_PIECES] : nr_recs;
}
static inline uint32_t piece_sum_of(const struct sst_pieces *p, uint32_t k) {
  return p[k / SST_PIECES].sums[k % SST_PIECES];
}
// Mixes the seed in after hashing. With a seed, XXH3 derives a secret at each call, which costs as much as hashing the
// piece.
static inline uint32_t piece_sum(const uint8_t *bytes, size_t len, uint64_t table, uint32_t block) {
  return (uint32_t)((hash64_seed(bytes, len, 0) ^ block_seed(table, block)) * 0x9E3779B97F4A7C15ull >> 32);
}

void sst_pieces_cut(struct sst_pieces *p, const uint8_t *block, uint64_t table, uint32_t number) {
  const uint32_t pages = block_pages(block), nr_recs = block_count(block);
  uint32_t i = 0;
  if (pages > BLOCK_GROW_PAGES) return;  // a builder makes such a block of one record
  for (uint32_t k = 0; k < pages * SST_PIECES; k++) {
    while (i < nr_recs && block_record_at(block, i) < k * PART) i++;
    p[k / SST_PIECES].first[k % SST_PIECES] = (uint8_t)i;
    p[k / SST_PIECES].offs[k % SST_PIECES] = (uint16_t)(i < nr_recs ? block_record_at(block, i) : pages * BLOCK_PAGE);
  }
  for (uint32_t k = 0; k < pages * SST_PIECES; k++) {
    const uint32_t off = piece_off(p, k, pages);
    p[k / SST_PIECES].sums[k % SST_PIECES] = piece_sum(block + off, piece_off(p, k + 1, pages) - off, table, number);
  }
  atomic_store_explicit(&p->known, KNOWN, memory_order_release);  // P1
}

bool sst_pieces_suit(const struct sst *t) { return !t->offs && !t->ctx->direct_io && t->rec_size <= SST_PIECES_RECORD; }

struct sst_pieces *sst_pieces_make(uint32_t nr) {
  struct sst_pieces *const p = mem_alloc_aligned(CACHE_LINE, nr * sizeof(*p));
  if (p) memset(p, 0, nr * sizeof(*p));
  return p;
}

bool sst_pieces_room(const struct sst *t) {
  return budget_pieces_fit(t->ctx->budget, t->nr_pages * sizeof(struct sst_pieces));
}

// Returns the table's pieces, and makes them at the first call. Returns NULL if memory is missing, or room in the
// budget.
static struct sst_pieces *pieces_of(struct sst *t) {
  struct sst_pieces *all = atomic_load_explicit(&t->pieces, memory_order_acquire);
  if (likely(all != NULL)) return all;
  struct sst_pieces *const made = sst_pieces_room(t) ? sst_pieces_make(t->nr_pages) : NULL;
  if (!made) return NULL;
  if (atomic_compare_exchange_strong_explicit(&t->pieces, &all, made, memory_order_acq_rel, memory_order_acquire)) {
    budget_take(t->ctx->budget, BUDGET_PIECES, sst_pieces_memory(t));
    return made;
  }
  mem_free(made);
  return all;
}

void sst_pieces_learn(struct sst *t, uint32_t block, const uint8_t *data) {
  if (!sst_pieces_suit(t) || block_pages(data) > BLOCK_GROW_PAGES) return;
  struct sst_pieces *const all = pieces_of(t);
  uint8_t no = NO;
  if (!all) return;  // without memory for pieces, each read reads a whole block
  if (atomic_compare_exchange_strong_explicit(&all[block].known, &no, BUSY, memory_order_relaxed, memory_order_relaxed))
    sst_pieces_cut(&all[block], data, t->number, block);
}

// Returns the piece that has record i.
static inline uint32_t piece_of(const struct sst_pieces *p, uint32_t pages, uint32_t i) {
  uint32_t k = 0;
  for (uint32_t n = 1; n < pages * SST_PIECES; n++) k += p[n / SST_PIECES].first[n % SST_PIECES] <= i;
  return k;
}

// Fills in the offsets of the records [from, to), which lie in the bytes [begin, end) of buf. Works only for short
// records of one size: the size gives the place of each record, so decoding a record does not wait for the previous
// record. False: the records are of another kind or malformed, and the offsets are not valid.
static bool records_alike(uint8_t *buf, uint32_t begin, uint32_t end, uint32_t from, uint32_t to, uint32_t width) {
  struct kv_rec r;
  uint32_t size = 3;
  for (uint32_t i = from, at = begin; i < to; i++, at += size) {
    if (unlikely(at + (size < 3 ? 3 : size) > end)) return false;
    store16le(buf + block_offset_at(i), at);
    if (unlikely(!block_record_short(buf, i, &r))) return false;
    const uint32_t len = (uint32_t)(r.val - (buf + at)) + r.vlen + width;
    if (i == from) size = len;
    else if (unlikely(len != size)) return false;
  }
  return begin + (to - from) * size <= end;
}

// The same for records of any kind: each record begins where the previous record ends. False: a record is malformed.
static bool records_walk(uint8_t *buf, uint32_t begin, uint32_t end, uint32_t from, uint32_t to, uint32_t form) {
  const uint32_t width = block_form_width(form);
  const uint8_t *at = buf + begin;
  for (uint32_t i = from; i < to; i++) {
    struct kv_rec r;
    store16le(buf + block_offset_at(i), (uint32_t)(at - buf));
    at = kv_rec_get(at, buf + end, block_form_kinds(form), &r);
    if (unlikely(!at || (size_t)(buf + end - at) < width)) return false;
    at += width;
  }
  return true;
}

// Checks the pieces [lo, hi), which are in buf, and fills in the offsets of their records. REMIXDB_NOTFOUND: a checksum
// or a record is wrong.
static enum remixdb_status pieces_take(const struct sst *t, uint32_t block, uint32_t pages, const struct sst_pieces *p,
                                       uint32_t lo, uint32_t hi, uint8_t *buf) {
  const uint32_t begin = piece_off(p, lo, pages), end = piece_off(p, hi, pages), nr_recs = t->nr_recs[block];
  assert(lo <= hi && hi <= pages * SST_PIECES);
  for (uint32_t k = lo, off = begin; k < hi; k++) {
    const uint32_t next = piece_off(p, k + 1, pages);
    if (unlikely(piece_sum(buf + off, next - off, t->number, block) != piece_sum_of(p, k))) return REMIXDB_NOTFOUND;
    off = next;
  }
  const uint32_t from = piece_first(p, lo, pages, nr_recs), to = piece_first(p, hi, pages, nr_recs);
  buf[BLOCK_OFF_FORM] = (uint8_t)t->form;  // all of the head that reading a record needs
  const bool sound = records_alike(buf, begin, end, from, to, block_form_width(t->form)) ||
                     records_walk(buf, begin, end, from, to, t->form);
  return sound ? REMIXDB_OK : REMIXDB_NOTFOUND;
}

// Reads the pieces [lo, hi) and checks them. If the offset `until` is after these pieces, the same read goes on to
// `until`, and the call does not check the bytes after the pieces.
static enum remixdb_status pieces_fetch(const struct sst *t, int fd, uint32_t block, uint32_t pages,
                                        const struct sst_pieces *p, uint32_t lo, uint32_t hi, uint32_t until,
                                        uint8_t *buf) {
  const uint32_t begin = piece_off(p, lo, pages), end = piece_off(p, hi, pages);
  if (begin == end) return REMIXDB_OK;
  const uint32_t len = (until > end ? until : end) - begin;
  const enum remixdb_status s = blkio_read_one(t->ctx->io, fd, t->path, buf + begin, len,
                                               t->base + (uint64_t)block * BLOCK_PAGE + begin);
  return likely(s == REMIXDB_OK) ? pieces_take(t, block, pages, p, lo, hi, buf) : s;
}

// Returns the pieces of a block, or NULL if they are not known.
static inline const struct sst_pieces *pieces_known(const struct sst *t, uint32_t block) {
  const struct sst_pieces *const all = atomic_load_explicit(&t->pieces, memory_order_acquire);
  return all && atomic_load_explicit(&all[block].known, memory_order_acquire) == KNOWN ? &all[block] : NULL;
}

uint32_t sst_pieces_span(const struct sst *t, uint32_t block, uint32_t idx, uint32_t nr) {
  const uint32_t most = block + SST_PIECES_SPAN;
  uint32_t left = nr - (t->nr_recs[block] - idx), bytes = 0;
  assert(nr > t->nr_recs[block] - idx);
  for (uint32_t at = block + sst_block_pages(t, block), pages; left > 0 && at < t->nr_pages; at += pages) {
    const struct sst_pieces *const p = pieces_known(t, at);
    pages = sst_block_pages(t, at);
    if (!p || at + pages > most || cache_has(&t->cache, at)) break;
    const uint32_t n = left < t->nr_recs[at] ? left : t->nr_recs[at];
    bytes = (at - block) * BLOCK_PAGE + piece_off(p, piece_of(p, pages, n - 1) + 1, pages);
    left -= n;
  }
  return bytes;
}

enum remixdb_status sst_pieces_check(const struct sst *t, uint32_t block, uint32_t nr_bytes, uint8_t *buf,
                                     uint32_t *nr_out) {
  const struct sst_pieces *const p = pieces_known(t, block);
  const uint32_t pages = sst_block_pages(t, block), nr_recs = t->nr_recs[block];
  uint32_t hi = 0;
  if (!p) return REMIXDB_NOTFOUND;
  while (hi < pages * SST_PIECES && piece_off(p, hi + 1, pages) <= nr_bytes) hi++;
  *nr_out = piece_first(p, hi, pages, nr_recs);
  return *nr_out ? pieces_take(t, block, pages, p, 0, hi, buf) : REMIXDB_NOTFOUND;
}

enum remixdb_status sst_pieces_read(struct sst *t, int fd, uint32_t block, uint32_t idx, uint32_t nr, uint32_t span,
                                    uint8_t *buf, uint32_t *from, uint32_t *to) {
  const struct sst_pieces *const p = pieces_known(t, block);
  assert(idx < t->nr_recs[block] && nr > 0);
  if (!p) return REMIXDB_NOTFOUND;
  const uint32_t pages = sst_block_pages(t, block), nr_recs = t->nr_recs[block];
  const uint32_t last = nr < nr_recs - idx ? idx + nr - 1 : nr_recs - 1;
  uint32_t lo = piece_of(p, pages, idx), hi = piece_of(p, pages, last) + 1;
  enum remixdb_status s = REMIXDB_OK;
  if (*from == *to) {
    // the caller then reads the whole block and checks the checksum of the block
    if (lo == 0 && piece_off(p, hi, pages) == pages * BLOCK_PAGE) return REMIXDB_NOTFOUND;
    s = pieces_fetch(t, fd, block, pages, p, lo, hi, span, buf);
  } else {
    const uint32_t had_lo = piece_of(p, pages, *from), had_hi = piece_of(p, pages, *to - 1) + 1;
    if (lo < had_lo) s = pieces_fetch(t, fd, block, pages, p, lo, had_lo, 0, buf);
    else lo = had_lo;
    if (hi <= had_hi) hi = had_hi;
    else if (s == REMIXDB_OK) s = pieces_fetch(t, fd, block, pages, p, had_hi, hi, 0, buf);
  }
  if (unlikely(s != REMIXDB_OK)) return s;
  *from = piece_first(p, lo, pages, nr_recs);
  *to = piece_first(p, hi, pages, nr_recs);
  return REMIXDB_OK;
}

size_t sst_pieces_memory(const struct sst *t) {
  return atomic_load_explicit(&t->pieces, memory_order_relaxed) ? (size_t)t->nr_pages * sizeof(struct sst_pieces) : 0;
}
