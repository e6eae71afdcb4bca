// SPDX-License-Identifier: Apache-2.0
//
// An open table in memory, and positions in it. sst.h and the files of table/ share it.
#ifndef TABLE_STATE_H
#define TABLE_STATE_H

#include "base/admission.h"
#include "base/budget.h"
#include "base/files.h"
#include "blkio.h"
#include "table/block.h"
#include "table/cache.h"
#include "table/fdpool.h"
#include "table/pack.h"
#include "table/spread.h"

#define SST_FULL_PAGES 20480u  // pages of a full table: 80 MiB

// Counts the files that no version names any more, but that readers still use. Relaxed.
struct sst_retired {
  _Atomic uint64_t files, bytes;
};

static inline void sst_retired_add(struct sst_retired *r, int64_t files, uint64_t bytes) {
  atomic_fetch_add_explicit(&r->files, (uint64_t)files, memory_order_relaxed);
  atomic_fetch_add_explicit(&r->bytes, files < 0 ? 0 - bytes : bytes, memory_order_relaxed);
}

// The dictionaries of a store's tables that are made (table/dict.h).
struct sst_dicts {
  pthread_mutex_t lock;   // guards the others; no lock is taken within it
  struct sst_dict *hand;  // CLOCK's, in the ring; NULL: the ring is empty
  uint64_t bytes;
  uint32_t nr;
};

struct value_ctx;
struct remix_pool;

// The tables and REMIX files of a store share this struct, which outlives them.
struct sst_ctx {
  struct env *env;
  const struct env_dir *dir;
  struct blkio *io;
  struct cache *cache;  // NULL: no cache
  struct fdpool *fds;
  struct packs *packs;      // the files of these that are parts of packs; NULL: there are no packs
  uint64_t store_id;        // new files state it
  const uint64_t *origins;  // files with these ids are the store's, too (struct files_ids); the caller's
  uint32_t nr_origins;
  struct value_ctx *values;  // for the store's value files (value/file.h)
  bool direct_io;
  struct sst_retired *retired;      // counts retired tables and REMIX files; NULL: they are not counted
  const _Atomic size_t *scan_room;  // bytes that one thread's reads of many tables at once take (table/scan.h); the
                                    // caller's; NULL: standard
  struct sst_dicts *dicts;          // NULL: each table keeps its dictionary
  struct budget *budget;            // the store's accounts of memory; NULL: nothing is counted
  struct remix_pool *pages;         // for its REMIXes (remix/paged.h); NULL: these are opened whole
  struct admission *admission;      // decides which blocks readers read past the page cache; NULL: none
};

static inline struct files_ids sst_ctx_ids(const struct sst_ctx *ctx) {
  return (struct files_ids){.own = ctx->store_id, .origins = ctx->origins, .nr = ctx->nr_origins};
}

// The pieces of one page (table/pieces.h).
#define SST_PIECES 8u  // in a page
struct sst_pieces {
  uint32_t sums[SST_PIECES];  // checksum of each piece
  // A piece begins with the first record that begins in its eighth of the page or later.
  uint16_t offs[SST_PIECES];  // the offset of this record in the block; the block's size if there is no such record
  uint8_t first[SST_PIECES];  // the index of this record; the number of records if there is no such record
  // Used in the block's lowest page only. 0: no piece is known; 1: a thread makes the pieces; 2: the pieces of all of
  // the block's pages are known
  _Atomic uint8_t known;
  uint8_t unused[7];
};

// A value file that records of the table refer to.
struct sst_apart {
  uint64_t file, bytes;  // its number; bytes of the values
};

struct sst {
  const struct sst_ctx *ctx;
  uint64_t number;  // in the file's name
  uint64_t origin;  // the id of the store that wrote it
  uint64_t print;   // its fingerprint: the footer's checksum, which covers those of the metadata and of the blocks
  char *path;       // the path of the file, or of the pack
  struct pack_part *part;     // the table is this part of a pack; NULL: it has a file of its own
  struct fdpool_file *file;   // for single reads, advised for random reads: own[0], or the pack's
  struct fdpool_file *scans;  // the same file, for long scans, advised for sequential reads: own[1], or the pack's
  uint64_t base;              // offset of the table in its file
  struct cache_table cache;
  uint32_t nr_pages;     // pages of data blocks
  uint32_t last, least;  // the number of the last block; the smallest number of records among the blocks before it
  // Per page: the number of records of the block that begins at the page, or 0 if the page is inside a block. One more
  // element, which is 1, ends the array.
  uint8_t *nr_recs;
  _Atomic(struct sst_pieces *) pieces;  // nr_pages elements; NULL until a block's pieces are known
  _Atomic(struct sst_chunks *) chunks;  // the compressed keys' (table/keys.h); NULL until a reader needs them
  _Atomic uint32_t keys_wanted;         // how often sst_key_cheap did not know them. Relaxed
  uint32_t rec_size;                    // bytes of a record in its block, on average
  // The offset in the file of each page's block, nr_pages + 1 elements, if the table is compressed; otherwise NULL.
  uint64_t *offs;
  struct sst_dict *dict;      // for unpacking; NULL: it has none
  uint32_t form;              // the form of its blocks: BLOCK_FORM_BARE, or with kinds and numbers (table/block.h)
  uint32_t flags;             // FORMAT_SST_FLAG_... of the footer
  uint64_t seq_min, seq_max;  // no record has a smaller sequence number, or a larger one
  struct spread expiry;       // the spread of the times at which records expire
  uint64_t nr_records, nr_tombs;
  uint64_t key_bytes, value_bytes;
  uint64_t file_size, data_size;  // bytes of the table, and of its data blocks as they are stored
  struct sst_apart *apart;        // nr_apart elements, ascending by file; NULL: none
  uint32_t nr_apart;
  uint64_t ckb_off, ckb_len;  // the compressed-keys block: its offset in the file; ckb_len 0: there is none
  struct kref min, max;       // smallest and largest key, in one allocation that the table owns
  _Atomic uint32_t refs;
  _Atomic bool obsolete;  // the last reference removes the file, or drops the part
  // the same file as `file`, for reads past the page cache beside others: own[2], or the pack's
  struct fdpool_file *past;
  struct fdpool_file own[3];
  size_t counted;  // bytes in the account of tables (base/budget.h), besides the chunks and the dictionary
};

// Returns the sequence number of a record that was read from this block of the table.
static inline uint64_t sst_seq(const struct sst *t, const struct kv_rec *r) {
  return t->seq_min + block_seq(t->form, r);
}

typedef uint32_t sst_pos;  // block number << 8 | index of the record
static inline sst_pos sst_pos_make(uint32_t block, uint32_t idx) { return block << 8 | idx; }
static inline uint32_t sst_pos_block(sst_pos p) { return p >> 8; }
static inline uint32_t sst_pos_idx(sst_pos p) { return p & 255; }
static inline sst_pos sst_end(const struct sst *t) { return sst_pos_make(t->nr_pages, 0); }
static inline uint32_t sst_block_pages(const struct sst *t, uint32_t block) {
  uint32_t n = 1;
  while (unlikely(t->nr_recs[block + n] == 0)) n++;
  return n;
}
// Returns the position n records further on, at most the end (nr_pages, 0). The function reads the number of records of
// pos's block only if the result may lie beyond the smallest number that a block has. That saves a cache miss.
static inline sst_pos sst_advance(const struct sst *t, sst_pos pos, uint32_t n) {
  uint32_t block = sst_pos_block(pos), idx = sst_pos_idx(pos) + n;
  if (likely(idx < t->least && block < t->last)) return pos + n;
  while (unlikely(block < t->nr_pages && idx >= t->nr_recs[block])) {
    idx -= t->nr_recs[block];
    block += sst_block_pages(t, block);
  }
  return block < t->nr_pages ? sst_pos_make(block, idx) : sst_end(t);
}
#endif
