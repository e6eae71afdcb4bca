// SPDX-License-Identifier: Apache-2.0
//
// A table's blocks as they lie in its file: where, how many bytes, and the block made of them. For those who read
// tables (sst, sst_scan).
#ifndef SST_STORED_H
#define SST_STORED_H

#include <zstd.h>

#include "table/state.h"

#define SST_BLOCK_BYTES (BLOCK_PAGES_MAX * BLOCK_PAGE)

static inline uint64_t sst_align_down(uint64_t n) { return n & ~(uint64_t)(BLKIO_ALIGN - 1); }

static inline uint64_t sst_block_off(const struct sst *t, uint32_t block) {
  return t->offs ? t->offs[block] : (uint64_t)block * BLOCK_PAGE;
}
static inline uint32_t sst_block_stored(const struct sst *t, uint32_t block, uint32_t pages) {
  return t->offs ? (uint32_t)(t->offs[block + pages] - t->offs[block]) : pages * BLOCK_PAGE;
}
// Makes the block in buf (pages * BLOCK_PAGE bytes) of the len bytes stored of a compressed table. The checksum is
// looked at before anything else is made of them. *zstd: a context to use, NULL for a new one, which is the caller's.
// REMIXDB_CORRUPT, REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status sst_unpack(const struct sst *t, uint32_t block, uint32_t pages, const uint8_t *stored,
                                          uint32_t len, ZSTD_DCtx **zstd, uint8_t *buf);

// What a miss and a read-ahead need for a moment. A decompression context is expensive to make, so a few are kept, for
// all tables of the process, in slots that are emptied by the exchange that takes them; they go with the last table.
struct sst_scratch {
  ZSTD_DCtx *zstd;  // NULL until needed
  uint8_t *buf;     // aligned; what is read
  size_t size;
  uint8_t *block;  // one decompressed block; NULL until needed
};

void sst_scratch_enter(void);                // a table is opened
void sst_scratch_leave(void);                // and closed
struct sst_scratch *sst_scratch_take(void);  // NULL: no memory
void sst_scratch_give(struct sst_scratch *x);
MUST_CHECK enum remixdb_status sst_scratch_reserve(struct sst_scratch *x, size_t size);  // of buf. REMIXDB_NOMEM
MUST_CHECK enum remixdb_status sst_zstd_reserve(ZSTD_DCtx **z);  // a context when *z is NULL. REMIXDB_NOMEM
#endif
