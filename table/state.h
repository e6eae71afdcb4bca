// SPDX-License-Identifier: Apache-2.0
//
// An open table in memory, and positions in it: what sst.h and the files of table/ share.
#ifndef TABLE_STATE_H
#define TABLE_STATE_H

#include "base/files.h"
#include "blkio.h"
#include "table/block.h"
#include "table/cache.h"
#include "table/fdpool.h"

#define SST_PAGES_MAX 65520u   // what 16-bit block numbers allow
#define SST_MAX_BLOCKS 20480u  // pages at which a builder calls a table full: 80 MiB

// Files that no version names any more and that somebody still reads. Relaxed.
struct sst_retired {
  _Atomic uint64_t files, bytes;
};

static inline void sst_retired_add(struct sst_retired *r, int64_t files, uint64_t bytes) {
  atomic_fetch_add_explicit(&r->files, (uint64_t)files, memory_order_relaxed);
  atomic_fetch_add_explicit(&r->bytes, files < 0 ? 0 - bytes : bytes, memory_order_relaxed);
}

// What the tables and REMIX files of a store share. Lives longer than they do.
struct sst_ctx {
  struct env *env;
  const struct env_dir *dir;
  struct blkio *io;
  struct cache *cache;  // NULL: none
  struct fdpool *fds;
  uint64_t store_id;
  bool direct_io;
  struct sst_retired *retired;  // counts tables and REMIXes; NULL: not counted
};

// What is known of pieces of the blocks, of one page (table/pieces.h).
#define SST_PIECES 8u  // of a page
struct sst_pieces {
  uint32_t sums[SST_PIECES];  // of their bytes
  uint16_t offs[SST_PIECES];  // in the block, of the first record that begins at or behind the beginning of the eighth,
                              // or the block's size: there a piece begins
  uint8_t first[SST_PIECES];  // that record's index, or the number of records
  _Atomic uint8_t known;      // of the block's first page. 0: no, 1: a thread is at it, 2: all of the block's pages are
  uint8_t spare[7];
};

struct sst {
  const struct sst_ctx *ctx;
  uint64_t number;  // of the file
  char *path;
  struct fdpool_file file;
  struct cache_table cache;
  uint32_t nr_pages;     // pages of data blocks
  uint32_t last, least;  // the last block, and the fewest records that one before it has
  uint8_t *nr_recs;  // per page: records of the block that begins there; 0 inside a larger block. nr_pages + 1 long,
                     // ends in 1
  _Atomic(struct sst_pieces *) pieces;  // nr_pages of them; NULL until something is known
  uint32_t rec_size;                    // bytes of a record in its block, on average
  uint64_t *offs;                       // compressed: file offset of each page's block, nr_pages + 1 long; else NULL
  void *zdict;                          // decompression dictionary, or NULL
  uint64_t nr_records, nr_tombs;
  uint64_t key_bytes, value_bytes;
  uint64_t file_size, data_size;  // data_size: bytes of data blocks in the file
  uint64_t ckb_off, ckb_len;      // ckb_len 0: none
  struct kref min, max;           // smallest and largest key; own memory
  _Atomic uint32_t refs;
  _Atomic bool obsolete;  // the file is removed with the last reference
};

typedef uint32_t sst_pos;
static inline sst_pos sst_pos_make(uint32_t block, uint32_t idx) { return block << 8 | idx; }
static inline uint32_t sst_pos_block(sst_pos p) { return p >> 8; }
static inline uint32_t sst_pos_idx(sst_pos p) { return p & 255; }
static inline uint32_t sst_block_pages(const struct sst *t, uint32_t block) {
  uint32_t n = 1;
  while (unlikely(t->nr_recs[block + n] == 0)) n++;
  return n;
}
// The position n records further on; the end is (nr_pages, 0), never passed. Where every block has so many records it
// is not looked how many this one has, for which memory would be waited for.
static inline sst_pos sst_advance(const struct sst *t, sst_pos pos, uint32_t n) {
  uint32_t block = pos >> 8, idx = (pos & 255) + n;
  if (likely(idx < t->least && block < t->last)) return pos + n;
  while (unlikely(block < t->nr_pages && idx >= t->nr_recs[block])) {
    idx -= t->nr_recs[block];
    block += sst_block_pages(t, block);
  }
  return block < t->nr_pages ? block << 8 | idx : t->nr_pages << 8;
}
static inline sst_pos sst_end(const struct sst *t) { return t->nr_pages << 8; }
#endif
