// SPDX-License-Identifier: Apache-2.0
//
// A hold: a reader's claim on one block of one table, or on some of its records, and reading through it.
//
// A record is looked for in what the hold has, in its readahead memory, in the cache, in what was read behind the block
// before, and then in the file.
#ifndef TABLE_HOLD_H
#define TABLE_HOLD_H

#include "table/readahead.h"

#define SST_ALL UINT32_MAX  // of records

enum sst_hold_kind {
  SST_HOLD_NONE,
  SST_HOLD_FRAME,   // a frame of the cache without a pin: it may be another block's when the epoch has ended
  SST_HOLD_PINNED,  // a frame with a pin
  SST_HOLD_OWN,     // memory of the hold's own: the records [from, to), and maybe bytes of the blocks behind
  SST_HOLD_AHEAD,   // readahead memory
};

// Zero it first. It may be moved to another table after sst_hold_drop.
struct sst_hold {
  struct cache_block cb;
  enum sst_hold_kind kind;
  uint32_t block;
  struct sst *sst;    // of the block
  uint64_t number;    // the table's: tells a closed table from one that was opened at the same address
  uint32_t from, to;  // the records that are there; all of them: [0, SST_ALL)
  // Bytes that were read with an own block, from the beginning of block own_first on, in cb.own. What lies behind the
  // block is not verified. 0: none.
  uint32_t own_first, own_bytes;
  struct sst_ahead ahead;  // blocks that were read ahead
};

// Whether h has the block, or some of it, also when the epoch has ended.
static inline bool sst_holds(const struct sst_hold *h, const struct sst *t, uint32_t block) {
  return h->kind > SST_HOLD_FRAME && h->sst == t && h->block == block && h->number == t->number;
}
// Whether h has record idx, and all of the block's when nr is SST_ALL.
static inline bool sst_holds_some(const struct sst_hold *h, const struct sst *t, uint32_t block, uint32_t idx,
                                  uint32_t nr) {
  return sst_holds(h, t, block) && (nr == SST_ALL ? h->to == SST_ALL : idx - h->from < h->to - h->from);
}
// Whether some of the block was read with the block before it that h holds.
static inline bool sst_holds_behind(const struct sst_hold *h, const struct sst *t, uint32_t block) {
  return h->own_bytes && h->sst == t && h->number == t->number && block > h->block &&
         (block - h->own_first) * BLOCK_PAGE < h->own_bytes;
}
static inline bool sst_holds_ahead(const struct sst_hold *h, const struct sst *t, uint32_t block) {
  return sst_ahead_has(&h->ahead, t, block);
}

// Makes h hold the block of pos, and decodes the record. Inside an epoch.
//
// nr: how many records from pos on the caller expects to read. A block that gets no frame is read in pieces
// (table/pieces.h), and h holds the records that it says. When the block has fewer than nr, records of the blocks
// behind it come with the same read. SST_ALL: all of the block, those before pos, too. pin: the hold outlives the
// epoch. A frame without a pin is looked up again in the next epoch, so such a hold may be kept, and used for another
// table without a drop. A pinned one of another table is unpinned here; that table must still be there.
MUST_CHECK enum remixdb_status sst_read_some(struct sst *t, sst_pos pos, uint32_t nr, bool pin, struct sst_hold *h,
                                             struct kv_rec *rec_out);
MUST_CHECK static inline enum remixdb_status sst_read(struct sst *t, sst_pos pos, bool pin, struct sst_hold *h,
                                                      struct kv_rec *rec_out) {
  return sst_read_some(t, pos, SST_ALL, pin, h, rec_out);
}
// Reads the block in any case, whole, and makes h hold it. Inside an epoch.
MUST_CHECK enum remixdb_status sst_read_block(struct sst *t, uint32_t block, struct sst_hold *h);
// h holds the block: its data is in h->cb.
static inline void sst_hold_set(struct sst_hold *h, struct sst *t, uint32_t block, enum sst_hold_kind kind) {
  h->kind = kind;
  h->sst = t;
  h->number = t->number;
  h->block = block;
  h->from = 0;
  h->to = SST_ALL;
  h->own_bytes = 0;
}
// A block that the cache has given: in a frame, or in the hold's own memory.
static inline void sst_hold_set_read(struct sst_hold *h, struct sst *t, uint32_t block) {
  sst_hold_set(h, t, block, h->cb.frame ? SST_HOLD_FRAME : SST_HOLD_OWN);
}
// Reads the blocks that begin in the nr_pages pages from `block` on into readahead memory, where sst_read finds them.
// Drops what h holds. Errors are left to the later sst_read.
void sst_hold_readahead(struct sst *t, uint32_t block, uint32_t nr_pages, struct sst_hold *h);
// Prefetches the nr records from pos on, which need not exist, and what pinning their blocks looks at. They are found
// in h when it has their block, else by their size.
void sst_prefetch_stretch(const struct sst *t, sst_pos pos, uint32_t nr, const struct sst_hold *h);
void sst_hold_drop(struct sst_hold *h);  // unpins; own memory and readahead memory stay for the next use
void sst_hold_fini(struct sst_hold *h);  // drops, and frees its memory
#endif
