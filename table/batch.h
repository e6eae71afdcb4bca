// SPDX-License-Identifier: Apache-2.0
//
// Many blocks at once. The caller sets requests[0 ..] and adds them part by part; their reads are under way while it
// finds more.
#ifndef TABLE_BATCH_H
#define TABLE_BATCH_H

#include "table/hold.h"

#define SST_BATCH_MAX 256u   // requests
#define SST_BATCH_PARTS 16u  // parts whose reads are under way before the end; the end starts the others
struct sst_request {
  struct sst *sst;
  uint32_t block;
  struct sst_hold *hold;       // no other request's, not pinned; it gets the block
  enum remixdb_status status;  // out
};
struct sst_batch {  // the caller's memory; large
  struct sst_request requests[SST_BATCH_MAX];
  uint32_t nr;  // added so far
  // The rest is private. reads and of: by number of the read.
  struct blkio_batch io;
  struct blkio_read reads[SST_BATCH_MAX];
  struct {
    struct sst_request *request;
    struct cache_fill fill;
    uint32_t pages;
    uint8_t part;
    bool opened;  // it took a descriptor, for itself and the reads behind it
  } of[SST_BATCH_MAX];
  uint32_t nr_reads, nr_parts;
  struct sst_scratch *scratch[SST_BATCH_PARTS];  // of each part; NULL: all its blocks are read to their places
  struct err_saved error;
};
// Begins a batch. It lasts inside one epoch. Until its end the thread reads nothing else of tables, and the queue
// serves nothing else.
void sst_batch_begin(struct sst_batch *b, struct blkio_queue *q);
// Adds the next nr requests. All blocks of a batch differ; those of one table stand side by side. Does not wait, unless
// the engine reads one by one. The end sets the statuses and the holds.
void sst_batch_add(struct sst_batch *b, uint32_t nr);
// Ends the batch: the holds have their blocks. Returns OK, or the status of one that failed, with its message.
MUST_CHECK enum remixdb_status sst_batch_end(struct sst_batch *b);
#endif
