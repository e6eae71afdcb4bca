// SPDX-License-Identifier: Apache-2.0
//
// Writes a table. The caller adds records in ascending order of keys, and sst_build_finish makes one synced file. After
// an error, later calls do nothing, and finish returns the error. When finish returns REMIXDB_OK, the file is complete
// and durable; the caller syncs the directory. One thread.
#ifndef SST_BUILD_H
#define SST_BUILD_H

#include "sst.h"
#include "table/packing.h"

struct sst_build_opts {
  bool ckeys;  // write a compressed-keys block
  enum remixdb_compression compression;
  int level;    // zstd's; 0: its default
  bool brief;   // the table will be merged soon: small keys are not packed
  bool pieces;  // make the pieces of the blocks (table/pieces.h); no effect with compression
  // The caller may pause between two calls for as long as it likes. Then the builder keeps a descriptor only where the
  // pool gives it a place to hold (fdpool_hold). Without that, the table's file is open only while it is written to.
  bool pauses;
  uint32_t max_pages;  // pages of data in a full table, at most SST_BUILD_PAGES; 0: SST_FULL_PAGES
};
#define SST_BUILD_PAGES 65503u
#define SST_BUILD_HELD 2u  // places of the pool that a builder holds between two calls, at most
struct sst_build;
// q: a queue that only the calling thread uses. A builder makes one table after the other. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status sst_build_create(const struct sst_ctx *ctx, const struct sst_build_opts *o,
                                                struct blkio_queue *q, struct sst_build **out);
void sst_build_destroy(struct sst_build *b);                 // removes an unfinished file; NULL is allowed
void sst_build_start(struct sst_build *b, uint64_t number);  // removes an unfinished file, too
// The same for a table in a pack, which outlives the table's building. When sst_build_finish returns REMIXDB_OK, the
// part is added to the pack, and durable when the pack is.
void sst_build_start_in(struct sst_build *b, uint64_t number, struct packing *pack);
// Changes max_pages from the next table on.
void sst_build_pages(struct sst_build *b, uint32_t max_pages);
// The numbers of the records that will be added: none is smaller than min, or larger than max. Call it after
// sst_build_start, before the first record. Without it every record gets number 1.
void sst_build_numbers(struct sst_build *b, uint64_t min, uint64_t max);
// The records that will be added belong to the tree of the named spaces. Call it where sst_build_numbers is called.
void sst_build_spaces(struct sst_build *b);
// The next record's value, of so many bytes, is in this value file.
void sst_build_apart(struct sst_build *b, uint64_t file, uint64_t bytes);
// Adds a record of KV_IN_TABLE, with its seq. Other bits of its kind are left out.
void sst_build_add(struct sst_build *b, const struct kv_rec *r);  // keys must ascend: REMIXDB_CORRUPT
// Tells whether an error has been noticed, so that adding more is useless. The builder notices a failed write some time
// after the write began.
bool sst_build_failed(const struct sst_build *b);
bool sst_build_full(const struct sst_build *b);  // the caller must finish the table before the next record
// Tells whether the table takes the record: the table is not full, or its last block has room.
bool sst_build_takes(const struct sst_build *b, const struct kv_rec *r);
uint64_t sst_build_bytes(const struct sst_build *b);  // bytes of data so far, before compression
// Completes the table; *size_out: bytes of the file. Removes the file if the call fails.
MUST_CHECK enum remixdb_status sst_build_finish(struct sst_build *b, uint64_t *size_out);
// Returns the pieces of the table that was finished last, for sst_give_pieces or mem_free. Returns NULL if pieces were
// not asked for, or if memory was missing. A second call returns NULL.
struct sst_pieces *sst_build_pieces(struct sst_build *b);
#endif
