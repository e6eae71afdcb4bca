// SPDX-License-Identifier: Apache-2.0
//
// Tables: immutable sorted runs on disk, "%06llu.sst". Data blocks, then the compressed-keys block (when written), then metadata, then a footer of fixed
// size; layouts in docs/FORMAT.md. A position is (block number: 16 bits, record index: 8 bits) in one integer; block numbers count pages
// of 4 KiB, a block of n pages takes n numbers. Immutable after opening; any thread may read. A table finds nothing by key: its REMIX does.
// What is read here goes through the cache; table/scan.h reads past it.
#ifndef SST_H
#define SST_H

#include "blkio.h"
#include "table/block.h"
#include "table/cache.h"
#include "table/fdpool.h"
#include "base/files.h"

#define SST_PAGES_MAX 65520u      // what 16-bit block numbers allow
#define SST_MAX_BLOCKS 20480u     // pages at which a builder calls a table full: 80 MiB
#define SST_WANT 24u              // bytes of a record that a search looks at, most of the time: its lengths and key

// Files that no version names any more and that somebody still reads. Relaxed.
struct sst_retired {
  _Atomic uint64_t files, bytes;
};

static inline void sst_retired_add(struct sst_retired *r, int64_t files, uint64_t bytes) {
  atomic_fetch_add_explicit(&r->files, (uint64_t)files, memory_order_relaxed);
  atomic_fetch_add_explicit(&r->bytes, files < 0 ? 0 - bytes : bytes, memory_order_relaxed);
}

struct remix;

// What the tables and REMIX files of a store share. Lives longer than they do.
struct sst_ctx {
  struct env *env;
  const char *dir;
  struct blkio *io;
  struct cache *cache;      // NULL: none
  struct fdpool *fds;
  uint64_t store_id;
  bool direct_io;
  struct sst_retired *retired;  // counts tables and REMIXes; NULL: not counted
  // A REMIX's jumps have passed its jumps_due (remix/remix.h), and do so again and again. Any reader's thread, inside an epoch or not; the REMIX is alive. It may
  // not wait. NULL: nobody wants to know.
  void (*worn)(void *arg, struct remix *x);
  void *worn_arg;
};

// What is known of pieces of the blocks, of one page (table/pieces.h).
#define SST_PIECES 8u            // of a page
struct sst_pieces {
  uint32_t sums[SST_PIECES];     // of their bytes
  uint16_t offs[SST_PIECES];     // in the block, of the first record that begins at or behind the beginning of the eighth, or the block's size: there a piece begins
  uint8_t first[SST_PIECES];     // that record's index, or the number of records
  _Atomic uint8_t known;         // of the block's first page. 0: no, 1: a thread is at it, 2: all of the block's pages are
  uint8_t spare[7];
};

struct sst {
  const struct sst_ctx *ctx;
  uint64_t number;              // of the file
  char *path;
  struct fdpool_file file;
  struct cache_table cache;
  uint32_t nr_pages;            // pages of data blocks
  uint32_t last, least;         // the last block, and the fewest records that one before it has
  uint8_t *nr_recs;             // per page: records of the block that begins there; 0 inside a larger block. nr_pages + 1 long, ends in 1
  _Atomic(struct sst_pieces *) pieces;  // nr_pages of them; NULL until something is known
  uint32_t rec_size;            // bytes of a record in its block, on average
  uint64_t *offs;               // compressed: file offset of each page's block, nr_pages + 1 long; else NULL
  void *zdict;                  // decompression dictionary, or NULL
  uint64_t nr_records, nr_tombs;
  uint64_t key_bytes, value_bytes;
  uint64_t file_size, data_size;  // data_size: bytes of data blocks in the file
  uint64_t ckb_off, ckb_len;    // ckb_len 0: none
  struct kref min, max;         // smallest and largest key; own memory
  _Atomic uint32_t refs;
  _Atomic bool obsolete;        // the file is removed with the last reference
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
// The position n records further on; the end is (nr_pages, 0), never passed. Where every block has so many records it is not looked how many this one has, for
// which memory would be waited for.
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

// Opens and checks footer and metadata (not the data). *out has one reference. A missing file is REMIXDB_CORRUPT. REMIXDB_VERSION.
MUST_CHECK enum remixdb_status sst_open(const struct sst_ctx *ctx, uint64_t number, struct sst **out);
void sst_ref(struct sst *t);
void sst_unref(struct sst *t);  // NULL is allowed; the last one closes, and removes the file when obsolete
void sst_retire(struct sst *t);  // makes it obsolete: no version will name it
void sst_name(char *buf, uint64_t number);  // "000001.sst"; buf of 32 bytes
size_t sst_memory(const struct sst *t);     // bytes of metadata, cache slots and what is known of pieces
// What a table's builder knows of its pieces (sst_build_pieces), as many as it has pages, becomes the table's. Before others know the table. NULL is allowed.
void sst_give_pieces(struct sst *t, struct sst_pieces *p);

#define SST_ALL UINT32_MAX  // of records

// A reader's hold on the block of one table. Zero it first; may be moved from one table to another only after sst_hold_drop.
struct sst_hold {
  struct cache_block cb;
  struct sst *sst;        // of the block held; NULL: none
  uint64_t number;        // its number: tells a table that was closed from one opened at the same address
  uint32_t block;
  // The records of it that are there: all of them, [0, SST_ALL), but in memory of its own maybe some.
  uint32_t from, to;
  // What lies behind the block, and was read with it: so many bytes from the beginning of block own_first on are in cb.own, not verified. 0: nothing was.
  uint32_t own_first, own_bytes;
  // Blocks that have been read ahead, and are in memory of its own: of the table of that number, those that begin at the pages [from, to).
  uint32_t ahead_from, ahead_to;
  uint64_t ahead_number;
  struct sst_ahead *ahead;  // NULL until there are some
};
// Whether h has the block, or some of it, whatever the epoch: pinned, or in memory of its own. A frame that is not pinned may be another block's by now.
static inline bool sst_holds(const struct sst_hold *h, const struct sst *t, uint32_t block) {
  return h->sst == t && h->block == block && h->number == t->number && h->cb.data && (h->cb.pinned || h->cb.frame == 0);
}
// The nr records from idx on, or the first of them; SST_ALL: all that the block has.
static inline bool sst_holds_few(const struct sst_hold *h, const struct sst *t, uint32_t block, uint32_t idx, uint32_t nr) {
  return sst_holds(h, t, block) && (nr == SST_ALL ? h->to == SST_ALL : idx - h->from < h->to - h->from);
}
// Whether some of the block has been read with what h holds, which lies before it.
static inline bool sst_holds_behind(const struct sst_hold *h, const struct sst *t, uint32_t block) {
  return h->own_bytes && h->sst == t && h->number == t->number && block > h->block && (block - h->own_first) * BLOCK_PAGE < h->own_bytes;
}
static inline bool sst_holds_ahead(const struct sst_hold *h, const struct sst *t, uint32_t block) {
  return block - h->ahead_from < h->ahead_to - h->ahead_from && h->ahead_number == t->number;
}
// What follows asks for memory before it is read; it changes nothing, and may be wrong about where things are.
//
// A block's offsets say where a record lies, and then the record is read: two misses, one behind the other. Records of one size lie where
// their number says, so that both can be fetched at once; of those that are not, some lie near.
static inline void sst_want_record(const struct sst *t, const uint8_t *data, uint32_t block, uint32_t idx) {
  const uint8_t *const p = data + BLOCK_HEAD + 2 * t->nr_recs[block] + (size_t)idx * t->rec_size;
  prefetch(p);
  prefetch(p + SST_WANT);
}
// The same of all of the record, as far as WANT_ALL: for who reads its value, too.
#define SST_WANT_ALL 256u
static inline void sst_want_all(const struct sst *t, const uint8_t *data, uint32_t block, uint32_t idx) {
  sst_want_record(t, data, block, idx);
  const uint8_t *const p = data + BLOCK_HEAD + 2 * t->nr_recs[block] + (size_t)idx * t->rec_size;
  const uint32_t size = t->rec_size < SST_WANT_ALL ? t->rec_size : SST_WANT_ALL;
  for (uint32_t o = CACHE_LINE; o < size; o += CACHE_LINE) prefetch(p + o);
  prefetch(p + size - 1);  // of at least two bytes
}
// What says how far the block goes, where it is, and what its pieces are.
static inline void sst_want_place(const struct sst *t, sst_pos pos) {
  const struct sst_pieces *const pieces = atomic_load_explicit(&t->pieces, memory_order_relaxed);
  prefetch(&t->nr_recs[sst_pos_block(pos)]);
  if (likely(t->cache.cache != NULL)) prefetch((const void *)&t->cache.slots[sst_pos_block(pos)]);
  if (pieces) prefetch(&pieces[sst_pos_block(pos)]);
}
static inline void sst_want(const struct sst *t, sst_pos pos) {
  const uint8_t *const data = cache_want(&t->cache, sst_pos_block(pos));
  if (data) sst_want_record(t, data, sst_pos_block(pos), sst_pos_idx(pos));
}
// The nr records from pos on, which need not exist, and what pinning their blocks looks at. Where h has the block they are found in it,
// else by their size.
void sst_want_stretch(const struct sst *t, sst_pos pos, uint32_t nr, const struct sst_hold *h);
// Makes h hold the block of pos (at once when it already does), through the cache, and decodes the record. pin: it outlives the epoch. Inside an epoch.
// A frame held from an earlier epoch without a pin is looked up again (own memory is not), so an unpinned hold may be kept from one epoch to the next, and used for
// another table without a drop; a pinned one of another table is unpinned here (that table must still be there).
//
// nr: how many records from pos on the caller expects to read. A block that gets no frame is read in pieces then (table/pieces.h), and h holds no more of it than it says; when it has fewer,
// those of the blocks behind it come with it, in the same read. SST_ALL: all of the block, those before pos, too.
MUST_CHECK enum remixdb_status sst_read_few(struct sst *t, sst_pos pos, uint32_t nr, bool pin, struct sst_hold *h, struct kv_rec *rec_out);
MUST_CHECK static inline enum remixdb_status sst_read(struct sst *t, sst_pos pos, bool pin, struct sst_hold *h, struct kv_rec *rec_out) {
  return sst_read_few(t, pos, SST_ALL, pin, h, rec_out);
}
// Reads the blocks that begin in the nr_pages pages from `block` on, which exist, into memory of h's own, where sst_read finds them: for who goes on from block to
// block and is not to fill the cache with them. Drops what h holds. When that fails there are none, and errors are left to the later sst_read.
void sst_read_ahead(struct sst *t, uint32_t block, uint32_t nr_pages, struct sst_hold *h);
// Drops what h holds and gives it the data of a block that is in its memory (sst_holds_ahead), verified. For sst_read, which says what it is.
MUST_CHECK enum remixdb_status sst_take_ahead(struct sst *t, uint32_t block, struct sst_hold *h);
void sst_ahead_free(struct sst_ahead *a);  // for sst_hold_fini; NULL is allowed
// Reads the given blocks that are not cached in one batch and publishes them in the cache; errors are left to the later sst_read. nr <= BLKIO_BATCH_MAX. Inside an epoch.
void sst_prefetch(struct sst *t, struct blkio_queue *q, uint32_t first_block, uint32_t nr_pages);
// Blocks that lie one behind the other in a table, at least one: those that begin at page `from`, and before `to`.
struct sst_stretch {
  struct sst *t;
  uint32_t from, to;
};
// The same for blocks of several tables, all of which are read. nr <= BLKIO_BATCH_MAX.
void sst_prefetch_all(struct blkio_queue *q, const struct sst_stretch *stretches, uint32_t nr);

// Many blocks at once: wants are set in wants[0 ..] and added part by part; their reads are on their way while the caller finds more.
#define SST_BATCH_MAX 256u
#define SST_BATCH_PARTS 16u
struct sst_want {
  struct sst *sst;
  uint32_t block;
  struct sst_hold *hold;       // of its own, not pinned: gets the block, as by sst_read
  enum remixdb_status status;  // out
};
struct sst_batch {             // the caller's memory; large
  struct sst_want wants[SST_BATCH_MAX];
  uint32_t nr;                 // added so far
  // private, as are the following: what is read, by number of the read
  struct blkio_batch io;
  struct blkio_read reads[SST_BATCH_MAX];
  struct {
    struct sst_want *want;
    struct cache_fill fill;
    uint32_t pages;
    uint8_t part;
    bool opened;               // it has taken a descriptor, for itself and those behind it
  } of[SST_BATCH_MAX];
  uint32_t nr_reads, nr_parts;
  struct sst_scratch *scratch[SST_BATCH_PARTS];  // of each part; NULL: everything goes straight to its place
  struct err_saved error;
};
// All of it inside one epoch. Until the end the thread reads nothing else of the tables, and the queue serves nothing else.
void sst_batch_begin(struct sst_batch *b, struct blkio_queue *q);
// Adds the next nr wants, which are of blocks different from each other, those of one table side by side. Waits for nothing (but with the
// engine that reads one by one). The statuses and holds are set by the end.
void sst_batch_add(struct sst_batch *b, uint32_t nr);
// The holds hold the blocks. Returns OK, or the status of one that failed (its message is set).
MUST_CHECK enum remixdb_status sst_batch_end(struct sst_batch *b);

void sst_hold_drop(struct sst_hold *h);
void sst_hold_fini(struct sst_hold *h);
#endif
