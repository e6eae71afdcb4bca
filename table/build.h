// SPDX-License-Identifier: Apache-2.0
//
// Writing a table: records in ascending order go in, one synced file comes out. Errors are sticky: after the first one
// later calls do nothing, and finish returns it. When finish returns REMIXDB_OK the file is complete and durable; the
// caller syncs its directory. One thread.
#ifndef SST_BUILD_H
#define SST_BUILD_H

#include "sst.h"

struct sst_build_opts {
  bool ckeys;  // write a compressed-keys block
  enum remixdb_compression compression;
  int level;    // zstd's; 0: its default
  bool pieces;  // keep what is known of the blocks' pieces (table/pieces.h); no effect with compression
  // Pages of data in a full table, at most FORMAT_SST_PAGES_MAX - BLOCK_PAGES_MAX. 0: SST_FULL_PAGES.
  uint32_t max_pages;
};
struct sst_build;
// q: the calling thread's own queue. A builder makes one table after the other. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status sst_build_create(const struct sst_ctx *ctx, const struct sst_build_opts *o,
                                                struct blkio_queue *q, struct sst_build **out);
void sst_build_destroy(struct sst_build *b);                      // removes an unfinished file; NULL is allowed
void sst_build_start(struct sst_build *b, uint64_t number);       // removes an unfinished file, too
void sst_build_add(struct sst_build *b, const struct kv_rec *r);  // keys must ascend: REMIXDB_CORRUPT
// Whether an error has been seen, so that adding more is of no use. A failed write is seen some time after it was made.
bool sst_build_failed(const struct sst_build *b);
bool sst_build_full(const struct sst_build *b);  // the table is to be finished before the next record
// Whether the record still goes in: the table is not full, or its last block has room.
bool sst_build_takes(const struct sst_build *b, const struct kv_rec *r);
uint64_t sst_build_bytes(const struct sst_build *b);  // bytes of data so far, before compression
// Ends the table; *size_out: bytes of the file. On failure removes the file.
MUST_CHECK enum remixdb_status sst_build_finish(struct sst_build *b, uint64_t *size_out);
// The pieces of the table that was finished last, for sst_give_pieces or mem_free. NULL: none, because they were not
// asked for or memory was lacking. A second call returns NULL.
struct sst_pieces *sst_build_pieces(struct sst_build *b);
#endif
