// SPDX-License-Identifier: Apache-2.0
#include "table/block.h"

#include <assert.h>

// A block's offsets lie before its records, and only the end tells how many there are. So records are gathered after
// the largest table of offsets and moved once. A record that needs more than BLOCK_GROW_PAGES is alone in its block and
// goes straight to its place.
#define BLOCK_GATHER (BLOCK_HEAD + 2 * BLOCK_RECORDS_MAX)
// A block grows when more than 1/3 of it would stay empty and each further page makes the empty part smaller by 1/10 of
// the block. More growth would not pay: a get of one record reads the whole block.
#define BLOCK_EMPTY 3u
#define BLOCK_GAIN 10u
#define BLOCK_SUMMED (BLOCK_OFF_SUM + 8)  // the checksum is of the bytes from here on

_Static_assert(BLOCK_HEAD + 2 + KV_HEAD_MAX + KV_KEY_MAX + KV_REF_MAX + BLOCK_SEQ_MAX <= BLOCK_BYTES_MAX,
               "the largest record fits the largest block");
_Static_assert(BLOCK_GATHER + BLOCK_GROW_PAGES * BLOCK_PAGE <= BLOCK_BYTES_MAX, "the gathered records fit the buffer");

static inline uint32_t pages_for(size_t size) { return (uint32_t)((size + BLOCK_PAGE - 1) / BLOCK_PAGE); }
static inline size_t block_end(const struct block_build *b) { return block_records_at(b->count) + b->used; }
static inline bool block_is_alone(size_t rec_size) {
  return pages_for(block_records_at(1) + rec_size) > BLOCK_GROW_PAGES;
}
static inline uint64_t block_sum(const uint8_t *buf, uint32_t nr_pages, uint64_t table, uint32_t block) {
  return hash64_seed(buf + BLOCK_SUMMED, (size_t)nr_pages * BLOCK_PAGE - BLOCK_SUMMED, block_seed(table, block));
}

enum remixdb_status block_build_init(struct block_build *b) {
  b->count = 0;
  b->used = 0;
  b->form = BLOCK_FORM_KINDS;
  b->buf = mem_alloc_aligned(BLOCK_PAGE, BLOCK_BYTES_MAX);
  return b->buf ? REMIXDB_OK : REMIXDB_NOMEM;
}

void block_build_fini(struct block_build *b) {
  mem_free(b->buf);
  b->buf = NULL;
}

uint32_t block_build_pages(const struct block_build *b) { return b->count ? pages_for(block_end(b)) : 0; }

// Tells whether the block should grow for a record of this size, and more such records. No such record fits into the
// pages that the block has.
static bool block_grows(const struct block_build *b, size_t rec_size) {
  const size_t end = block_end(b), now = pages_for(end), size = now * BLOCK_PAGE, empty = size - end;
  if (empty * BLOCK_EMPTY <= size) return false;
  for (size_t pages = pages_for(end + 2 + rec_size); pages <= BLOCK_GROW_PAGES; pages++) {
    const size_t larger = pages * BLOCK_PAGE, left = (larger - end) % (2 + rec_size);
    // left / larger + (pages - now) / BLOCK_GAIN <= empty / size
    if ((left * BLOCK_GAIN + (pages - now) * larger) * size <= empty * BLOCK_GAIN * larger) return true;
  }
  return false;
}

bool block_build_fits(const struct block_build *b, size_t rec_size) {
  if (b->count == 0) return true;
  if (rec_size < 2) rec_size = 2;  // see block_verify_body
  const uint32_t pages = pages_for(block_end(b));
  if (b->count == BLOCK_RECORDS_MAX || pages > BLOCK_GROW_PAGES) return false;
  return block_end(b) + 2 + rec_size <= pages * BLOCK_PAGE || block_grows(b, rec_size);
}

void block_build_add(struct block_build *b, const struct kv_rec *r, uint64_t seq) {
  const size_t size = block_build_size(b, r);
  const uint32_t w = block_form_width(b->form);
  assert(w == BLOCK_SEQ_MAX || seq >> 8 * w == 0);
  assert(block_build_fits(b, size));
  uint8_t *const p = b->buf + (block_is_alone(size) ? block_records_at(1) : BLOCK_GATHER + b->used);
  b->offs[b->count++] = (uint16_t)b->used;
  uint8_t *end = kv_rec_put(p, r);
  for (uint32_t i = 0; i < w; i++) *end++ = (uint8_t)(seq >> 8 * i);
  assert((size_t)(end - p) == size);
  b->used += (uint32_t)size;
}

uint32_t block_build_finish(struct block_build *b, uint64_t table, uint32_t block) {
  assert(b->count > 0);
  const uint32_t base = block_records_at(b->count);
  const uint32_t end = base + b->used;
  const uint32_t pages = pages_for(end);
  uint8_t *const buf = b->buf;
  if (pages <= BLOCK_GROW_PAGES) memmove(buf + base, buf + BLOCK_GATHER, b->used);
  for (uint32_t i = 0; i < b->count; i++) store16le(buf + block_offset_at(i), base + b->offs[i]);
  memset(buf + end, 0, pages * BLOCK_PAGE - end);
  buf[BLOCK_OFF_PAGES] = (uint8_t)pages;
  buf[BLOCK_OFF_COUNT] = (uint8_t)b->count;
  buf[BLOCK_OFF_FORM] = (uint8_t)b->form;
  buf[BLOCK_OFF_RESERVED] = 0;
  store64le(buf + BLOCK_OFF_SUM, block_sum(buf, pages, table, block));
  b->count = 0;
  b->used = 0;
  return pages;
}

// Tells whether all records are short (block_record_short) and lie one after the other; false proves nothing. The loop
// decodes each record at its offset, and checks that the record ends where the next one begins. So the decoding of a
// record does not wait for the record before it.
static bool body_is_short(const uint8_t *buf, uint32_t size, uint32_t nr_recs, uint32_t width) {
  uint32_t bad = 0, at = block_records_at(nr_recs);
  for (uint32_t i = 0; i < nr_recs; i++) {
    const uint32_t off = block_record_at(buf, i);
    struct kv_rec r;
    if (unlikely(off + 3 > size || !block_record_short(buf, i, &r))) return false;
    bad |= off ^ at;
    at = (uint32_t)(r.val - buf) + r.vlen + width;
  }
  return bad == 0 && at <= size;
}

enum remixdb_status block_verify_body(const uint8_t *buf, uint32_t nr_pages, uint32_t nr_recs, uint32_t form,
                                      const char *path, uint64_t off) {
  const uint32_t width = block_form_width(form);
  if (unlikely(block_pages(buf) != nr_pages))
    return err_corrupt(path, off + BLOCK_OFF_PAGES, "block of %u pages, %u expected", block_pages(buf), nr_pages);
  if (unlikely(block_count(buf) != nr_recs || nr_recs == 0))
    return err_corrupt(path, off + BLOCK_OFF_COUNT, "block of %u records, %u expected", block_count(buf), nr_recs);
  if (unlikely(block_form(buf) != form))
    return err_corrupt(path, off + BLOCK_OFF_FORM, "block of form %u, %u expected", block_form(buf), form);
  if (unlikely(buf[BLOCK_OFF_RESERVED] != 0))
    return err_corrupt(path, off + BLOCK_OFF_RESERVED, "reserved bytes of a block are not 0");
  const uint8_t *const end = buf + (size_t)nr_pages * BLOCK_PAGE;
  if (likely(body_is_short(buf, nr_pages * BLOCK_PAGE, nr_recs, width))) return REMIXDB_OK;
  // records that lie one after the other have ascending offsets; 255 offsets fit any block
  const uint8_t *p = buf + block_records_at(nr_recs);
  for (uint32_t i = 0; i < nr_recs; i++) {
    struct kv_rec r;
    if (unlikely(block_record_at(buf, i) != (size_t)(p - buf)))
      return err_corrupt(path, off + block_offset_at(i), "offset of record %u of a block", i);
    const uint8_t *const next = kv_rec_get(p, end, block_form_kinds(form), &r);
    if (unlikely(!next || (size_t)(end - next) < width))
      return err_corrupt(path, off + (uint64_t)(p - buf), "record %u of a block", i);
    // block_record reads two bytes; only the tombstone of an empty key has one
    if (unlikely(end - p < 2))
      return err_corrupt(path, off + (uint64_t)(p - buf), "record %u of a block begins in its last byte", i);
    p = next + width;
  }
  return REMIXDB_OK;
}

void block_record_long(const uint8_t *buf, uint32_t i, struct kv_rec *r) {
  const uint8_t *p = buf + block_record_at(buf, i);
  uint32_t h, v = 0;
  p = kv_varint_get(p, p + 5, &h);
  r->klen = h >> 1;
  r->kind = h & 1;  // without kinds this is KV_TOMB
  if (r->kind && block_form(buf) != BLOCK_FORM_BARE) {
    r->kind = *p++;
    if (r->kind & KV_EXPIRES) p = kv_varint64_get(p, p + KV_VARINT64_MAX, &r->expiry);
  }
  if (!(r->kind & KV_TOMB)) p = kv_varint_get(p, p + 5, &v);
  r->vlen = v;
  r->key = p;
  r->val = p + r->klen;
}

enum remixdb_status block_verify(const uint8_t *buf, uint32_t nr_pages, uint32_t nr_recs, uint32_t form, uint64_t table,
                                 uint32_t block, const char *path, uint64_t off) {
  if (unlikely(load64le(buf + BLOCK_OFF_SUM) != block_sum(buf, nr_pages, table, block)))
    return err_corrupt(path, off, "checksum of block %u", block);
  return block_verify_body(buf, nr_pages, nr_recs, form, path, off);
}
