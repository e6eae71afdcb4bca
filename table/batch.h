// SPDX-License-Identifier: Apache-2.0
//
// Reads many blocks at once. The caller sets requests[0 ..] and adds them part by part. The reads of a part are under
// way while the caller finds more requests.
#ifndef TABLE_BATCH_H
#define TABLE_BATCH_H

#include "table/hold.h"

#define SST_BATCH_MAX 256u   // requests
#define SST_BATCH_PARTS 16u  // parts whose reads begin when they are added; the reads of further parts begin at the end

// Memory for blocks that get no frame of the cache. It serves batch after batch, so that the allocator does not hand
// out and take back a buffer for each block. A batch grows it to what the batch before needed. Zero it before the first
// use.
struct sst_room {
  uint8_t *buf;           // aligned to BLOCK_PAGE
  uint32_t size;          // its pages, SST_ROOM_MAX at most
  uint32_t used, wanted;  // pages that the batch has given to holds; pages that it had to find
  struct budget *budget;  // the account of scans has the memory
};
#define SST_ROOM_MAX 1024u

struct sst_request {
  struct sst *sst;
  uint32_t block;
  struct sst_hold *hold;       // receives the block; no other request has this hold, and it is not pinned
  enum remixdb_status status;  // out
};
struct sst_batch {  // the caller's memory; large
  struct sst_request requests[SST_BATCH_MAX];
  uint32_t nr;  // added so far
  // The fields below are private. The index of `reads` and `of` is the number of the read.
  struct blkio_batch io;
  struct blkio_read reads[SST_BATCH_MAX];
  struct {
    struct sst_request *request;
    struct cache_fill fill;
    uint32_t pages;
    uint8_t part;
    struct fdpool_file *opened;  // this read took its descriptor, for itself and reads after it; NULL: it did not
  } of[SST_BATCH_MAX];
  uint32_t nr_reads, nr_parts;
  struct sst_room *room;
  struct sst_scratch
      *scratch[SST_BATCH_PARTS];  // one for each part; NULL: all blocks of the part are read directly to their places
  struct err_saved error;
};
// Begins a batch. The batch begins and ends in one epoch. Until the end, the thread must read nothing else from tables,
// and must use the queue for nothing else.
// room: the holds have blocks in it until the next batch begins with it, or it ends; sst_hold_fini comes before that.
// NULL: each hold gets memory of its own.
void sst_batch_begin(struct sst_batch *b, struct blkio_queue *q, struct sst_room *room);
void sst_room_fini(struct sst_room *s);
// Adds the next nr requests. All blocks of a batch differ; the requests of one table are next to each other. Does not
// wait, unless the engine reads blocks one by one. The end of the batch sets the statuses and the holds.
void sst_batch_add(struct sst_batch *b, uint32_t nr);
// Ends the batch: the holds have their blocks. Returns REMIXDB_OK, or the status and message of one request that
// failed.
MUST_CHECK enum remixdb_status sst_batch_end(struct sst_batch *b);
#endif
