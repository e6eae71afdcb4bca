// SPDX-License-Identifier: Apache-2.0
//
// Data blocks: both sides of their codec. A block is 1 to 16 pages of 4 KiB; layout in docs/FORMAT.md:
//   0  u64  checksum   XXH3-64 of bytes 8 .. end, seeded with (table number << 16 | block number): a block read from
//   the wrong place does not pass 8  u8   pages 9  u8   count      records, 1 to 255 10 u16  reserved, 0 12 u16  offset
//   of each record, ascending
//      ...  records (kv.h), zeros to the end
#ifndef BLOCK_H
#define BLOCK_H

#include "kv.h"

#define BLOCK_PAGE 4096u
#define BLOCK_PAGES_MAX 16u
#define BLOCK_HEAD 12u
#define BLOCK_RECORDS_MAX 255u
#define BLOCK_GROW_PAGES 4u  // a block of several records has at most so many

static inline uint64_t block_seed(uint64_t table, uint32_t block) { return table << 16 | block; }

// ---- writing: one block at a time in a buffer of its own
struct block_build {
  uint8_t *buf;  // BLOCK_PAGES_MAX pages
  uint32_t count;
  uint32_t used;                     // bytes of records so far
  uint16_t offs[BLOCK_RECORDS_MAX];  // relative to the first record
};
MUST_CHECK enum remixdb_status block_build_init(struct block_build *b);
void block_build_fini(struct block_build *b);
// Whether a record of this encoded size still goes in. The first record always does, and makes the block as many pages
// as it needs. Further ones do while they find room in these; and where they would leave much of them empty, as records
// do that are not much smaller than a page, a block grows to BLOCK_GROW_PAGES at most, when more of such records fill
// it so much better that it pays for the larger block that a get reads.
bool block_build_fits(const struct block_build *b, size_t rec_size);
uint32_t block_build_pages(const struct block_build *b);  // that it would have if it were finished now; 0: it is empty
void block_build_add(struct block_build *b, const struct kv_rec *r);  // must fit
// Lays the block out in b->buf, checksums it, returns its number of pages, and empties b for the next one (buf holds
// until the next add).
uint32_t block_build_finish(struct block_build *b, uint64_t table, uint32_t block);

// ---- reading
// Checks everything once: checksum, pages == nr_pages, count == nr_recs, ascending offsets, each record well-formed
// within the block. path and off for the message. After this the accessors below need no checks.
MUST_CHECK enum remixdb_status block_verify(const uint8_t *buf, uint32_t nr_pages, uint32_t nr_recs, uint64_t table,
                                            uint32_t block, const char *path, uint64_t off);
// The same without the checksum: for a block that was verified in another form (compressed).
MUST_CHECK enum remixdb_status block_verify_body(const uint8_t *buf, uint32_t nr_pages, uint32_t nr_recs,
                                                 const char *path, uint64_t off);
static inline uint32_t block_count(const uint8_t *buf) { return buf[9]; }
// Record i of a verified block, when it is a live one with a key shorter than 64 bytes and a value shorter than 16,384;
// else false.
static inline bool block_record_short(const uint8_t *buf, uint32_t i, struct kv_rec *r) {
  const uint8_t *p = buf + load16le(buf + BLOCK_HEAD + 2 * i);
  const uint32_t h = p[0];
  uint32_t v = p[1];
  if (unlikely(h & 0x81)) return false;
  if (v >= 128) {
    if (unlikely(p[2] >= 128)) return false;
    v = (v & 127) | (uint32_t)p[2] << 7;
    p++;
  }
  r->klen = h >> 1;
  r->vlen = v;
  r->tomb = false;
  r->key = p + 2;
  r->val = p + 2 + r->klen;
  return true;
}
void block_record_long(const uint8_t *buf, uint32_t i, struct kv_rec *r);  // private to block_record
// Record i of a verified block; i < count.
static inline void block_record(const uint8_t *buf, uint32_t i, struct kv_rec *r) {
  if (unlikely(!block_record_short(buf, i, r))) block_record_long(buf, i, r);
}
#endif
