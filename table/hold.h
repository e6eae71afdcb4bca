// SPDX-License-Identifier: Apache-2.0
//
// A hold: a reader's claim on one block of one table, or on some of the block's records, and reading through it.
//
// A read looks for the record in the hold itself, in its readahead memory, in the cache, in the bytes that were read
// with the block before, and then in the file.
#ifndef TABLE_HOLD_H
#define TABLE_HOLD_H

#include "table/readahead.h"

#define SST_ALL UINT32_MAX  // a number of records: all of the block

enum sst_hold_kind {
  SST_HOLD_NONE,
  SST_HOLD_FRAME,   // a frame of the cache without a pin: it may get another block after the epoch
  SST_HOLD_PINNED,  // a frame with a pin
  SST_HOLD_OWN,     // the hold's own buffer: the records [from, to), and maybe bytes of the blocks behind
  SST_HOLD_AHEAD,   // readahead memory
};

// Zero it before the first use. After sst_hold_drop it can serve another table.
struct sst_hold {
  struct cache_block cb;
  enum sst_hold_kind kind;
  uint32_t block;
  struct sst *sst;    // the block's table
  struct sst *of;     // the table of the record that was read last, which need not be in the held block
  uint64_t number;    // its number; distinguishes a closed table from a new one at the same address
  uint32_t from, to;  // the records that are there; [0, SST_ALL): all
  // cb.own has own_bytes bytes of the file, from the beginning of block own_first on. Those behind the held block are
  // not verified. own_bytes 0: there are none behind it.
  uint32_t own_first, own_bytes;
  // Readahead memory. With SST_HOLD_AHEAD the held block is in ahead[side], and the next read goes to the other one: so
  // the record that the reader stands at stays where it is.
  struct sst_ahead ahead[2];
  uint8_t side;
  bool has_ahead;  // there may be blocks in it
  // The account of scans (base/budget.h) has `counted` bytes for cb.own, unless it is given, and for readahead memory.
  struct budget *budget;
  size_t counted;
};

// Whether h has the block, or some of it, and still does after the epoch.
static inline bool sst_holds(const struct sst_hold *h, const struct sst *t, uint32_t block) {
  return h->kind > SST_HOLD_FRAME && h->sst == t && h->block == block && h->number == t->number;
}
// Whether h has record idx, or with nr SST_ALL the whole block.
static inline bool sst_holds_some(const struct sst_hold *h, const struct sst *t, uint32_t block, uint32_t idx,
                                  uint32_t nr) {
  return sst_holds(h, t, block) && (nr == SST_ALL ? h->to == SST_ALL : idx - h->from < h->to - h->from);
}
// Whether bytes of the block were read together with the block that h holds.
static inline bool sst_holds_behind(const struct sst_hold *h, const struct sst *t, uint32_t block) {
  return h->own_bytes && h->sst == t && h->number == t->number && block > h->block &&
         (block - h->own_first) * BLOCK_PAGE < h->own_bytes;
}
static inline bool sst_holds_ahead(const struct sst_hold *h, const struct sst *t, uint32_t block) {
  return unlikely(h->has_ahead) && (sst_ahead_has(&h->ahead[0], t, block) || sst_ahead_has(&h->ahead[1], t, block));
}

// Makes h hold the block of pos, and decodes the record. Inside an epoch.
//
// nr: how many records the caller expects to read, from pos on. SST_ALL: the whole block. A block that gets no frame is
// read in pieces (table/pieces.h), and h->from and h->to say which records it holds. When the block has fewer than nr
// records, the read goes on into the blocks behind it.
//
// pin: the hold outlives the epoch. Without it the next epoch looks the frame up again. So such a hold may be kept, and
// may serve another table without a drop. A pinned block of another table is unpinned here; that table must still be
// open.
MUST_CHECK enum remixdb_status sst_read_some(struct sst *t, sst_pos pos, uint32_t nr, bool pin, struct sst_hold *h,
                                             struct kv_rec *rec_out);
// Reads one record for a get where reads come from the disk. A get pins nothing. The cache may have the record without
// its block, and keeps it so (table/records.h). *rec_out is valid until the caller leaves the epoch, or reads through h
// again.
MUST_CHECK enum remixdb_status sst_read_alone(struct sst *t, sst_pos pos, struct sst_hold *h, struct kv_rec *rec_out);
// The same wherever reads come from.
MUST_CHECK static inline enum remixdb_status sst_read_lone(struct sst *t, sst_pos pos, struct sst_hold *h,
                                                           struct kv_rec *rec_out) {
  return likely(!cache_keeps_records(&t->cache)) ? sst_read_some(t, pos, 1, false, h, rec_out)
                                                 : sst_read_alone(t, pos, h, rec_out);
}
// Whether the cache has the record without its block. *rec_out is valid until the caller leaves the epoch.
MUST_CHECK bool sst_kept_alone(struct sst *t, sst_pos pos, struct kv_rec *rec_out);
MUST_CHECK static inline enum remixdb_status sst_read(struct sst *t, sst_pos pos, bool pin, struct sst_hold *h,
                                                      struct kv_rec *rec_out) {
  return sst_read_some(t, pos, SST_ALL, pin, h, rec_out);
}
// Makes h hold the whole block, from the cache or the file. Inside an epoch.
MUST_CHECK enum remixdb_status sst_read_block(struct sst *t, uint32_t block, struct sst_hold *h);
// Says that h holds the whole block. Its data is in h->cb.
static inline void sst_hold_set(struct sst_hold *h, struct sst *t, uint32_t block, enum sst_hold_kind kind) {
  h->kind = kind;
  h->sst = t;
  h->number = t->number;
  h->block = block;
  h->from = 0;
  h->to = SST_ALL;
  h->own_bytes = 0;
}
// The same for a block that cache_get or a fill put into h->cb.
static inline void sst_hold_set_read(struct sst_hold *h, struct sst *t, uint32_t block) {
  sst_hold_set(h, t, block, h->cb.frame ? SST_HOLD_FRAME : SST_HOLD_OWN);
}
// Reads the blocks that begin in the nr_pages pages from `block` on into readahead memory, where sst_read finds them.
// Drops what h holds. Reads fewer blocks, or none, where the account of scans has no room for them. The later sst_read
// meets an error again, and reports it. edge: the page at which the reader ends; t->nr_pages: with the table.
void sst_hold_readahead(struct sst *t, uint32_t block, uint32_t nr_pages, uint32_t edge, struct sst_hold *h);
// The same for a reader that goes back: the blocks before `block`, and this one (sst_ahead_read_back). edge: the first
// page that the reader needs.
void sst_hold_readahead_back(struct sst *t, uint32_t block, uint32_t nr_pages, uint32_t edge, struct sst_hold *h);

// Neighbouring blocks of a table, at least one, that a reader is going to need: the first begins at page `from`, the
// last ends at page `to`.
struct sst_need {
  struct sst *t;
  uint32_t from, to;
  struct sst_hold *hold;  // where sst_read will look for them, no other need's; NULL: they go to the cache
};
// Reads all of them in one batch. A hold keeps what it holds, and gets the blocks as readahead memory; the cache is
// offered each block that is read there. Where the account of scans has no room, the blocks go to the cache alone. A
// need that fails is left out: the later sst_read meets the error again, and reports it. nr <= BLKIO_BATCH_MAX. Inside
// an epoch.
void sst_fetch(struct blkio_queue *q, const struct sst_need *needs, uint32_t nr);
// Prefetches the nr records from pos on, as far as they exist, and what a pin of their blocks reads. Their places come
// from h when it has their block, and otherwise from the average size of a record.
void sst_prefetch_stretch(const struct sst *t, sst_pos pos, uint32_t nr, const struct sst_hold *h);
void sst_hold_drop(struct sst_hold *h);  // unpins; keeps the own buffer and readahead memory for the next use
void sst_hold_fini(struct sst_hold *h);  // drops, and frees all memory
#endif
