// SPDX-License-Identifier: Apache-2.0
//
// Readahead: blocks are read before they are asked for. Into the cache, or into a hold's own memory for a reader that
// goes on from block to block and must not fill the cache with them.
#ifndef TABLE_READAHEAD_H
#define TABLE_READAHEAD_H

#include "table/state.h"

// ---- into memory of the reader's own

// Blocks of the table of that number that have been read: those that begin at the pages [from, to). Zero it first. One
// thread.
struct sst_ahead {
  uint32_t from, to;
  uint64_t number;
  struct sst_ahead_mem *mem;  // kept for the next use; NULL until the first
};
static inline bool sst_ahead_has(const struct sst_ahead *a, const struct sst *t, uint32_t block) {
  return block - a->from < a->to - a->from && a->number == t->number;
}
// Reads the blocks that begin in the nr_pages pages from `block` on, which exist. What was there goes. On failure
// nothing is there.
void sst_ahead_read(struct sst_ahead *a, const struct sst *t, uint32_t block, uint32_t nr_pages,
                    struct fdpool_file *file);
// The data of a block that is there, verified. It holds until the next take or read. REMIXDB_CORRUPT, REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status sst_ahead_take(struct sst_ahead *a, const struct sst *t, uint32_t block,
                                              const uint8_t **data_out);
void sst_ahead_fini(struct sst_ahead *a);

// ---- into the cache

// Reads the given blocks that are not cached in one batch and publishes them in the cache; errors are left to the later
// sst_read. nr <= BLKIO_BATCH_MAX. Inside an epoch.
void sst_readahead(struct sst *t, struct blkio_queue *q, uint32_t first_block, uint32_t nr_pages);
// Blocks that lie one behind the other in a table, at least one: those that begin at page `from`, and before `to`.
struct sst_stretch {
  struct sst *t;
  uint32_t from, to;
};
// The same for blocks of several tables, all of which are read. nr <= BLKIO_BATCH_MAX.
void sst_readahead_all(struct blkio_queue *q, const struct sst_stretch *stretches, uint32_t nr);
#endif
