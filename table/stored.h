// SPDX-License-Identifier: Apache-2.0
//
// The blocks of a table in its file: their places, their sizes, and unpacking. Private to table/ and sst.c.
#ifndef SST_STORED_H
#define SST_STORED_H

#include <zstd.h>

#include "table/state.h"

static inline uint64_t sst_align_down(uint64_t n) { return n & ~(uint64_t)(BLKIO_ALIGN - 1); }

static inline uint64_t sst_block_off(const struct sst *t, uint32_t block) {
  return t->offs ? t->offs[block] : t->base + (uint64_t)block * BLOCK_PAGE;
}
static inline uint32_t sst_block_stored(const struct sst *t, uint32_t block, uint32_t pages) {
  return t->offs ? (uint32_t)(t->offs[block + pages] - t->offs[block]) : pages * BLOCK_PAGE;
}
// Unpacks a block of a compressed table: len bytes at `stored` into buf (pages * BLOCK_PAGE bytes). Checks the stored
// bytes' checksum before it uses them, and then checks the block. *zstd is the context to use. If *zstd is NULL, the
// call makes a new context, which the caller frees. Fails with REMIXDB_CORRUPT or REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status sst_unpack(const struct sst *t, uint32_t block, uint32_t pages, const uint8_t *stored,
                                          uint32_t len, ZSTD_DCtx **zstd, uint8_t *buf);

// Scratch memory, which a miss or a readahead needs for a short time. A decompression context is expensive to make, so
// the process keeps a few scratches for all tables, and frees them when the last table closes. Only the thread that has
// taken a scratch uses it.
struct sst_scratch {
  ZSTD_DCtx *zstd;  // NULL until needed
  uint8_t *buf;     // for the bytes read from the file; aligned to BLKIO_ALIGN
  size_t size;      // bytes of buf
  uint8_t *block;   // one unpacked block, BLOCK_BYTES_MAX; NULL until needed
};

void sst_scratch_enter(void);                // each table calls it when it opens
void sst_scratch_leave(void);                // each table calls it when it has closed
void sst_scratch_trim(void);                 // frees the scratch memory that nobody uses
struct sst_scratch *sst_scratch_take(void);  // NULL: memory is missing
void sst_scratch_give(struct sst_scratch *x);
// Makes x->buf at least `size` bytes long; the contents of x->buf are lost. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status sst_scratch_reserve(struct sst_scratch *x, size_t size);
// Makes a context if *z is NULL. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status sst_zstd_reserve(ZSTD_DCtx **z);
#endif
