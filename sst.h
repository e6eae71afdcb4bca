// SPDX-License-Identifier: Apache-2.0
//
// Tables: immutable sorted runs on disk, "%06llu.sst". Data blocks, then the compressed-keys block (when written), then metadata, then a footer of fixed
// size; layouts in docs/FORMAT.md. A position is (block number: 16 bits, record index: 8 bits) in one integer; block numbers count pages
// of 4 KiB, a block of n pages takes n numbers. Immutable after opening; any thread may read. A table finds nothing by key: its REMIX does.
// What is read here goes through the cache; table/scan.h reads past it.
#ifndef SST_H
#define SST_H

#include "table/state.h"

// Opens and checks footer and metadata (not the data). *out has one reference. A missing file is REMIXDB_CORRUPT. REMIXDB_VERSION.
MUST_CHECK enum remixdb_status sst_open(const struct sst_ctx *ctx, uint64_t number, struct sst **out);
void sst_ref(struct sst *t);
void sst_unref(struct sst *t);  // NULL is allowed; the last one closes, and removes the file when obsolete
void sst_retire(struct sst *t);  // makes it obsolete: no version will name it
void sst_name(char *buf, uint64_t number);  // "000001.sst"; buf of 32 bytes
size_t sst_memory(const struct sst *t);     // bytes of metadata, cache slots and what is known of pieces
// What a table's builder knows of its pieces (sst_build_pieces), as many as it has pages, becomes the table's. Before others know the table. NULL is allowed.
void sst_give_pieces(struct sst *t, struct sst_pieces *p);

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
#endif
