// SPDX-License-Identifier: Apache-2.0
//
// Writing a table: records in ascending order in, one synced file out. Sticky: after the first error later calls do
// nothing and finish returns it. One thread. The file is complete and durable (its directory entry is the caller's to
// sync) when finish returns REMIXDB_OK.
#ifndef SST_BUILD_H
#define SST_BUILD_H

#include "sst.h"

struct sst_build_opts {
  bool ckeys;
  enum remixdb_compression compression;
  int level;           // zstd's; 0 = its default
  bool pieces;         // the table is going to be read by single blocks: what is known of their pieces is kept
                       // (table/pieces.h). Not of compressed ones
  uint32_t max_pages;  // full at this many pages of data; 0 = SST_MAX_BLOCKS; at most SST_PAGES_MAX - BLOCK_PAGES_MAX
};
struct sst_build;
// q: the calling thread's queue. A builder is reusable for one table after the other.
MUST_CHECK enum remixdb_status sst_build_create(const struct sst_ctx *ctx, const struct sst_build_opts *o,
                                                struct blkio_queue *q, struct sst_build **out);
void sst_build_destroy(struct sst_build *b);  // removes an unfinished file; NULL is allowed
void sst_build_start(struct sst_build *b, uint64_t number);
void sst_build_add(struct sst_build *b,
                   const struct kv_rec *r);        // one that does not come after the one before: REMIXDB_CORRUPT
bool sst_build_failed(const struct sst_build *b);  // nothing will come of what is added from now on: finish tells why.
                                                   // A write that failed is seen some time after it was made
bool sst_build_full(const struct sst_build *b);    // close it before adding more
// The same, but for what still goes into the last block.
bool sst_build_takes(const struct sst_build *b, const struct kv_rec *r);
uint64_t sst_build_bytes(const struct sst_build *b);  // of data so far, before compression
// Ends the table; *size_out: bytes of the file. On failure the file is removed.
MUST_CHECK enum remixdb_status sst_build_finish(struct sst_build *b, uint64_t *size_out);
// Of the table that has been finished last, for sst_give_pieces: the caller's to mem_free, once. NULL: none (not asked
// for, or no memory for them).
struct sst_pieces *sst_build_pieces(struct sst_build *b);
#endif
