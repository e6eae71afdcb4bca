// SPDX-License-Identifier: Apache-2.0
//
// Readahead reads blocks from the file before they are asked for: into the cache, or into a hold's own memory. The
// latter serves a reader that goes from block to block and must not fill the cache with them.
#ifndef TABLE_READAHEAD_H
#define TABLE_READAHEAD_H

#include "table/state.h"

// ---- into memory of the reader's own
//
// A reader goes through a table in stretches, forward or back. A table's descriptor is advised for random reads, so the
// system reads nothing ahead of it. Where stretches that follow each other come from the disk, the next ones are on
// their way into the page cache while the reader uses the current one: up to SST_AHEAD_MORE stretches of its size, and
// no more bytes than the reader has read since it began. A reader that has gone SST_AHEAD_LONG bytes forward reads
// through the table's other descriptor. There the system reads ahead, and brings in large pages, which cost less. The
// reader keeps no descriptor and no lane between two calls, so it may pause for long. Under direct I/O nothing goes on
// meanwhile.

#define SST_AHEAD_MORE 8u
#define SST_AHEAD_LONG ((uint64_t)8 << 20)
// The reader does so while it has as many bytes to go until its edge, because the system's readahead does not know the
// edge.
#define SST_AHEAD_FAR ((uint64_t)2 << 20)

// The blocks of table `number` that begin in the pages [from, to), read. Zero it before the first use. One thread.
struct sst_ahead {
  uint32_t from, to;
  uint64_t number;
  // The reader needs no page from this one on (going back: before it). sst_ahead_read and sst_ahead_read_back ask the
  // system for nothing beyond. 0: the table's end, or its beginning.
  uint32_t edge;
  bool shared;                // blocks that are taken are offered to the cache: other readers may need them
  struct sst_ahead_mem *mem;  // kept for the next use; NULL until the first
};
static inline bool sst_ahead_has(const struct sst_ahead *a, const struct sst *t, uint32_t block) {
  return block - a->from < a->to - a->from && a->number == t->number;
}
// Reads the blocks that begin in the nr_pages pages from `block` on. All these pages exist. The blocks replace the ones
// from the last call. After a failure there are none.
void sst_ahead_read(struct sst_ahead *a, struct sst *t, uint32_t block, uint32_t nr_pages);
// The same for a reader that goes back: reads `block` and the blocks before it, as far as they begin in the nr_pages
// pages that end with this block. At the table's beginning they are fewer.
void sst_ahead_read_back(struct sst_ahead *a, struct sst *t, uint32_t block, uint32_t nr_pages);
// The first in two halves, so that one batch can have the reads of several. many: the system takes all these reads at
// once, so that some may go past the page cache. False: no memory or no descriptor, and nothing to end. Otherwise the
// caller does *read and ends with its status.
MUST_CHECK bool sst_ahead_begin(struct sst_ahead *a, struct sst *t, uint32_t block, uint32_t nr_pages, bool many,
                                struct blkio_read *read);
void sst_ahead_end(struct sst_ahead *a, struct sst *t, enum remixdb_status s);
// A block that is there, verified. Its data is valid until the next take or read. REMIXDB_CORRUPT, REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status sst_ahead_take(struct sst_ahead *a, const struct sst *t, uint32_t block,
                                              const uint8_t **data_out);
size_t sst_ahead_memory(const struct sst_ahead *a);  // bytes that it keeps
void sst_ahead_fini(struct sst_ahead *a);

// Returns the first of the blocks that sst_ahead_read_back would read. A reader that goes back gives it to
// sst_readahead, too.
uint32_t sst_block_back(const struct sst *t, uint32_t block, uint32_t nr_pages);

// ---- into the page cache

// Asks the system to bring the blocks that begin in these pages into its page cache. nr_pages may pass the table's end.
// Does not wait, and takes no descriptor that others need. No effect under direct I/O.
void sst_will_need(struct sst *t, uint32_t first_block, uint32_t nr_pages);

// ---- into the cache

// Reads the blocks of these pages that the cache does not have, in one batch, and publishes them in the cache. A later
// sst_read meets an error again, and reports it. nr_pages <= BLKIO_BATCH_MAX. Inside an epoch.
void sst_readahead(struct sst *t, struct blkio_queue *q, uint32_t first_block, uint32_t nr_pages);
// Neighbouring blocks of a table, at least one: the first begins at page `from`, the last ends at page `to`.
struct sst_stretch {
  struct sst *t;
  uint32_t from, to;
};
// The same for stretches of several tables; reads all their blocks. nr <= BLKIO_BATCH_MAX.
void sst_readahead_all(struct blkio_queue *q, const struct sst_stretch *stretches, uint32_t nr);
#endif
