// SPDX-License-Identifier: Apache-2.0
//
// Readahead reads blocks from the file before they are asked for: into the cache, or into a hold's own memory. The
// latter serves a reader that goes from block to block and must not fill the cache with them.
#ifndef TABLE_READAHEAD_H
#define TABLE_READAHEAD_H

#include "table/state.h"

// ---- into memory of the reader's own

// The blocks of table `number` that begin in the pages [from, to), read. Zero it before the first use. One thread.
struct sst_ahead {
  uint32_t from, to;
  uint64_t number;
  struct sst_ahead_mem *mem;  // kept for the next use; NULL until the first
};
static inline bool sst_ahead_has(const struct sst_ahead *a, const struct sst *t, uint32_t block) {
  return block - a->from < a->to - a->from && a->number == t->number;
}
// Reads the blocks that begin in the nr_pages pages from `block` on. All these pages exist. The blocks replace the ones
// from the last call. After a failure there are none.
void sst_ahead_read(struct sst_ahead *a, const struct sst *t, uint32_t block, uint32_t nr_pages,
                    struct fdpool_file *file);
// A block that is there, verified. Its data is valid until the next take or read. REMIXDB_CORRUPT, REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status sst_ahead_take(struct sst_ahead *a, const struct sst *t, uint32_t block,
                                              const uint8_t **data_out);
void sst_ahead_fini(struct sst_ahead *a);

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
