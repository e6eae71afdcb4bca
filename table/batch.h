// SPDX-License-Identifier: Apache-2.0
//
// Many blocks at once: their reads are on their way while the caller finds more.
#ifndef TABLE_BATCH_H
#define TABLE_BATCH_H

#include "table/hold.h"

// Many blocks at once: wants are set in wants[0 ..] and added part by part; their reads are on their way while the
// caller finds more.
#define SST_BATCH_MAX 256u
#define SST_BATCH_PARTS 16u
struct sst_request {
  struct sst *sst;
  uint32_t block;
  struct sst_hold *hold;       // of its own, not pinned: gets the block, as by sst_read
  enum remixdb_status status;  // out
};
struct sst_batch {  // the caller's memory; large
  struct sst_request requests[SST_BATCH_MAX];
  uint32_t nr;  // added so far
  // private, as are the following: what is read, by number of the read
  struct blkio_batch io;
  struct blkio_read reads[SST_BATCH_MAX];
  struct {
    struct sst_request *request;
    struct cache_fill fill;
    uint32_t pages;
    uint8_t part;
    bool opened;  // it has taken a descriptor, for itself and those behind it
  } of[SST_BATCH_MAX];
  uint32_t nr_reads, nr_parts;
  struct sst_scratch *scratch[SST_BATCH_PARTS];  // of each part; NULL: everything goes straight to its place
  struct err_saved error;
};
// All of it inside one epoch. Until the end the thread reads nothing else of the tables, and the queue serves nothing
// else.
void sst_batch_begin(struct sst_batch *b, struct blkio_queue *q);
// Adds the next nr wants, which are of blocks different from each other, those of one table side by side. Waits for
// nothing (but with the engine that reads one by one). The statuses and holds are set by the end.
void sst_batch_add(struct sst_batch *b, uint32_t nr);
// The holds hold the blocks. Returns OK, or the status of one that failed (its message is set).
MUST_CHECK enum remixdb_status sst_batch_end(struct sst_batch *b);
#endif
