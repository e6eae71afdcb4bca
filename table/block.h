// SPDX-License-Identifier: Apache-2.0
//
// Data blocks: both sides of their codec. A block is 1 to 17 pages of 4 KiB; docs/FORMAT.md has the layout:
//   0   u64  checksum   XXH3-64 of all that follows, seeded with the table's and the block's number (block_seed): a
//                       block read from the wrong place does not pass
//   8   u8   pages
//   9   u8   count      records, 1 to 255
//   10  u8   form       0: written for a table up to format 2. Else bit 7, and in the lower bits w, the bytes of a
//                       sequence number, 0 to 8
//   11  u8   reserved, 0
//   12  u16  offset of each record, ascending
//   ...      records (kv.h), then zeros to the end. Each record is followed by its sequence number less the table's
//            smallest one, in w bytes
#ifndef BLOCK_H
#define BLOCK_H

#include "kv.h"

#define BLOCK_PAGE 4096u  // bytes of a page
#define BLOCK_PAGES_MAX 17u
#define BLOCK_PAGES_MAX_BARE 16u  // in tables up to format 2
#define BLOCK_BYTES_MAX (BLOCK_PAGES_MAX * BLOCK_PAGE)
#define BLOCK_RECORDS_MAX 255u
#define BLOCK_GROW_PAGES 4u  // pages of a block of several records, at most

#define BLOCK_HEAD 12u  // bytes before the offsets
enum {                  // offsets in the head; private to the codec
  BLOCK_OFF_SUM = 0,
  BLOCK_OFF_PAGES = 8,
  BLOCK_OFF_COUNT = 9,
  BLOCK_OFF_FORM = 10,
  BLOCK_OFF_RESERVED = 11,
};

// The form of a table's blocks: how their records are encoded.
#define BLOCK_FORM_BARE 0u      // KV_BARE, no sequence numbers
#define BLOCK_FORM_KINDS 0x80u  // KV_IN_TABLE; the lower bits are w
#define BLOCK_SEQ_MAX 8u        // the largest w
static inline uint32_t block_form_width(uint32_t form) { return form & 0x7f; }
static inline uint32_t block_form_kinds(uint32_t form) { return form ? KV_IN_TABLE : KV_BARE; }
static inline bool block_form_valid(uint32_t form) {
  return form == BLOCK_FORM_BARE || (form & BLOCK_FORM_KINDS && block_form_width(form) <= BLOCK_SEQ_MAX);
}

static inline uint64_t block_seed(uint64_t table, uint32_t block) { return table << 16 | block; }

// ---- writing: one block at a time, in a private buffer
struct block_build {
  uint8_t *buf;   // BLOCK_BYTES_MAX
  uint32_t form;  // set by the caller while the block is empty; not BLOCK_FORM_BARE
  uint32_t count;
  uint32_t used;                     // bytes of records so far
  uint16_t offs[BLOCK_RECORDS_MAX];  // relative to the first record
};
MUST_CHECK enum remixdb_status block_build_init(struct block_build *b);  // REMIXDB_NOMEM
void block_build_fini(struct block_build *b);
// Tells whether the block takes a record of rec_size bytes: encoded, its number included. It always takes the first
// record, and gets as many pages as this record needs. It takes further records while these pages have room. Records
// not much smaller than a page would leave a large part of the pages empty. For such records the block grows, to at
// most BLOCK_GROW_PAGES, if the larger block is filled much better. A larger block makes each get read more.
bool block_build_fits(const struct block_build *b, size_t rec_size);
uint32_t block_build_pages(const struct block_build *b);  // pages of the block if it were finished now; 0: it is empty
// Adds a record, which must fit. seq: its sequence number less the table's smallest one; it fits into the form's width.
void block_build_add(struct block_build *b, const struct kv_rec *r, uint64_t seq);
// Bytes of a record in the block.
static inline size_t block_build_size(const struct block_build *b, const struct kv_rec *r) {
  return kv_rec_size(r) + block_form_width(b->form);
}
// Makes the block in b->buf, with its checksum, and returns the number of pages. Empties b for the next block; b->buf
// stays valid until the next add.
uint32_t block_build_finish(struct block_build *b, uint64_t table, uint32_t block);

// ---- reading

// Return the number of pages and of records from the block's head. If the block is not verified, the numbers may be
// wrong.
static inline uint32_t block_pages(const uint8_t *buf) { return buf[BLOCK_OFF_PAGES]; }
static inline uint32_t block_count(const uint8_t *buf) { return buf[BLOCK_OFF_COUNT]; }
static inline uint32_t block_form(const uint8_t *buf) { return buf[BLOCK_OFF_FORM]; }
// Return places in a block, in bytes from the block's beginning: the place of the offset of record i, and the place of
// the first of nr records.
static inline uint32_t block_offset_at(uint32_t i) { return BLOCK_HEAD + 2 * i; }
static inline uint32_t block_records_at(uint32_t nr) { return block_offset_at(nr); }
// Returns the offset at which record i begins.
static inline uint32_t block_record_at(const uint8_t *buf, uint32_t i) { return load16le(buf + block_offset_at(i)); }

// Checks a block once: the checksum, pages == nr_pages, count == nr_recs, the form, ascending offsets, and that each
// record is well-formed and inside the block. path and off are for the message. The accessors below rely on this check
// and check nothing. Fails with REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status block_verify(const uint8_t *buf, uint32_t nr_pages, uint32_t nr_recs, uint32_t form,
                                            uint64_t table, uint32_t block, const char *path, uint64_t off);
// The same without the checksum, for a block whose compressed form was verified.
MUST_CHECK enum remixdb_status block_verify_body(const uint8_t *buf, uint32_t nr_pages, uint32_t nr_recs, uint32_t form,
                                                 const char *path, uint64_t off);
// Reads record i of a verified block, if the record is short: it has kind 0, a key of less than 64 bytes and a value of
// less than 16,384. Returns false for any other record.
static inline bool block_record_short(const uint8_t *buf, uint32_t i, struct kv_rec *r) {
  const uint8_t *p = buf + block_record_at(buf, i);
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
  r->kind = 0;
  r->key = p + 2;
  r->val = p + 2 + r->klen;
  return true;
}
void block_record_long(const uint8_t *buf, uint32_t i, struct kv_rec *r);  // private to block_record
// Reads record i of a verified block; i < count.
static inline void block_record(const uint8_t *buf, uint32_t i, struct kv_rec *r) {
  if (unlikely(!block_record_short(buf, i, r))) block_record_long(buf, i, r);
}
// Returns the sequence number of a record that was read from a block of this form, less the table's smallest one.
static inline uint64_t block_seq(uint32_t form, const struct kv_rec *r) {
  const uint32_t w = block_form_width(form);
  const uint8_t *const p = r->val + r->vlen;
  uint64_t seq = 0;
  for (uint32_t i = 0; i < w; i++) seq |= (uint64_t)p[i] << 8 * i;
  return seq;
}
#endif
