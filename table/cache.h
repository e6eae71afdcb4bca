// SPDX-License-Identifier: Apache-2.0
//
// The block cache. Memory is one mapping cut in pages of 4 KiB; a frame is 1 to 16 contiguous pages and holds one
// verified, decompressed block. Every table owns an array with one slot per page of its data (block number); a slot
// holds the first page's index + 1; or 0; or, marked CACHE_MISSED, which miss of its shard it was when the block was
// last denied a frame. A hit is one load of the slot (acquire), and no shared cache line is written (but the frame's
// `used` mark, once after each sweep).
//
// Invariants
//   C1  A slot names a frame only while that holds the block, verified; it is release-published after the frame is
//   filled. C2  A frame is taken away by CLOCK: only when not `used` since the hand last passed and not pinned; its
//   slot is set to 0,
//       then it is stamped (epoch) and waits in limbo. It is reused only when the stamp has passed and it is not
//       pinned. So what a reader got inside an epoch stays whole until it leaves the epoch, and what it pinned until it
//       unpins.
//   C3  A pin is taken only inside an epoch on a frame found in a slot. Therefore a frame in limbo whose stamp has
//   passed gains
//       no pins.
//   C4  Two threads that miss the same block read it once, where it gets a frame: the first marks it loading, the
//   others wait for it (bounded by that
//       read) and take it from the slot; when the load fails each of them tries by itself.
//       A read without a frame (C5, C7) is not waited for. A thread that reads many blocks at once waits for others
//       only when it has ended all reads of its own, so no two wait for each other.
//   C5  Nobody waits for a frame: when none can be had at once the block is read into the caller's own buffer and not
//   published. C6  Memory held for frames never exceeds the size given at creation. C7  Once no more is free than the
//   reserve, a block that is missed gets a frame when it was missed before within a quarter as many misses of its shard
//   as that has room for
//       blocks of its size. (Within as many: twice as many frames filled, and as many misses, for keys drawn uniformly
//       and zipfian; but another working set is in after two thirds of the misses.) The first time it is read into the
//       caller's own buffer, and its slot notes when. So what is read once puts out nothing, and goes to memory that
//       the processor's caches still have: of 1.2 us that 4 KiB from the page cache took, 0.35 were the frame's lines.
//       (2Q, Johnson and Shasha 1994; the blocks that it would keep a list of are in their slots.) Who reads such a
//       block twice at once, by two iterators, reads it twice: from the page cache that costs less than it saves
//       elsewhere. Where loads are the disk's (one in eight of cache_get's is timed) it would not, and blocks get their
//       frame at once; what is read ahead does, too, since who reads ahead looks for it there.
// Sharded by (table, block); each shard has a mutex (miss path only), a CLOCK hand that sweeps in order of address, so
// that evicting neighbours makes contiguous runs for large blocks, and free lists by run length. Lock: shard mutex,
// then the epoch's lock (epoch_passed).
#ifndef CACHE_H
#define CACHE_H

#include "base/epoch.h"

#define CACHE_PAGE 4096u
#define CACHE_BLOCK_PAGES 16u  // the largest block

// What a hit reads of the cache; constant after creation. The rest of the cache is private.
struct cache {
  uint8_t *pages;
  // Per frame number: CACHE_USED (hit since the hand last passed; relaxed), and the number of pins, taken relaxed
  // inside an epoch, given back with release, read with acquire before reuse. One word for both, as who steps through a
  // block needs both; apart from what else is known of a frame, so that many share a line.
  _Atomic uint32_t *marks;
  uint64_t disk_ns;  // a load that takes longer for each page is the disk's (C7); CACHE_DISK_NS, but in tests
};
#define CACHE_DISK_NS 10000u
#define CACHE_USED 0x80000000u

struct cache_table {        // embedded in a table; zeroed memory is not enough: cache_table_init
  struct cache *cache;      // NULL: no cache, also when its size is 0. Then no slots, and cache_hit must not be called
  _Atomic uint32_t *slots;  // one per page of data; the table's, nr_pages long
  uint32_t nr_pages;
  uint64_t id;  // distinguishes tables in shard choice
};

// A reader's hold on one block. Zero it before first use; reuse it for the next block; cache_block_fini at the end.
struct cache_block {
  const uint8_t *data;  // NULL: none. Inside the epoch in which it was got, or while pinned, or own memory
  uint32_t frame;       // page index + 1; 0 when data is own memory
  bool pinned;
  uint8_t *own;  // buffer of its own, kept for reuse; mem_free'd by fini
  uint32_t own_size;
};

// size: bytes; 0 is allowed and means that every get reads into own memory. REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status cache_create(size_t size, struct epoch *epoch, struct cache **out);
size_t cache_size(const struct cache *c);  // bytes for blocks
void cache_destroy(struct cache *c);       // all tables are gone; NULL is allowed
MUST_CHECK enum remixdb_status cache_table_init(struct cache_table *t, struct cache *c, uint32_t nr_pages, uint64_t id);
// Takes the table's frames out of the cache. No reader uses the table any more (pins must be gone).
void cache_table_fini(struct cache_table *t);

// Fills buf (nr_pages * CACHE_PAGE bytes) with the block, verified; own: it is the caller's own memory, and what of it
// the caller does without may be left out. Called without locks held.
typedef enum remixdb_status (*cache_load_fn)(void *arg, uint32_t block, uint32_t nr_pages, uint8_t *buf, bool own);

static inline const uint8_t *cache_frame_data(const struct cache *c, uint32_t frame) {
  return c->pages + (size_t)(frame - 1) * CACHE_PAGE;
}
// Sets `used` when it is not set: the line stays shared between the readers' processors until the hand clears it.
static inline void cache_frame_touch(const struct cache *c, uint32_t frame) {
  _Atomic uint32_t *const mark = &c->marks[frame];
  if (unlikely(!(atomic_load_explicit(mark, memory_order_relaxed) & CACHE_USED)))
    (void)atomic_fetch_or_explicit(mark, CACHE_USED, memory_order_relaxed);
}

#define CACHE_MISSED 0x80000000u  // of a slot: no frame; the other bits count the shard's misses
static inline uint32_t cache_slot_frame(uint32_t slot) { return slot & CACHE_MISSED ? 0 : slot; }
// The frame that has the block, or 0. Acquire: what it holds can be read.
static inline uint32_t cache_frame(const struct cache_table *t, uint32_t block) {
  return cache_slot_frame(atomic_load_explicit(&t->slots[block], memory_order_acquire));
}
// Whether it is there: a guess, as it may come or go at any time.
static inline bool cache_has(const struct cache_table *t, uint32_t block) {
  return t->cache && cache_slot_frame(atomic_load_explicit(&t->slots[block], memory_order_relaxed)) != 0;
}

// The way of a hit: NULL on a miss. Inside an epoch; the pointer holds until the epoch is left.
static inline const uint8_t *cache_hit(struct cache_table *t, uint32_t block, uint32_t *frame_out) {
  const uint32_t f = cache_frame(t, block);
  if (f == 0) return NULL;
  cache_frame_touch(t->cache, f);
  *frame_out = f;
  return cache_frame_data(t->cache, f);
}

// The block: from the cache, or by load(arg, ...) into a new frame, or into b's own memory. Drops b's former hold.
// Inside an epoch; b->data holds until the epoch is left, unless pinned by cache_block_pin. On failure (the load's
// status, REMIXDB_NOMEM) b holds nothing.
MUST_CHECK enum remixdb_status cache_get(struct cache_table *t, uint32_t block, uint32_t nr_pages, cache_load_fn load,
                                         void *arg, struct cache_block *b);
// ---- many blocks at once: begun one by one, read together by the caller, ended one by one. One thread.
struct cache_load {  // private: a block that its thread reads
  const _Atomic uint32_t *slot;
  uint64_t seq;  // tells it from a later one at the same address
  uint32_t nr_waiters;
  struct cache_load *next;
};
struct cache_fill {
  uint8_t *buf;            // where the block is to be read to, aligned to CACHE_PAGE
  uint32_t frame;          // private: 0 when buf is b's own memory
  struct cache_load load;  // private
};
enum cache_fill_begun {
  CACHE_FILL_HIT,    // it is in the cache: b holds it, and there is nothing to end
  CACHE_FILL_READ,   // to be read to fill->buf, verified, and ended
  CACHE_FILL_LATER,  // another fill or get reads it, or there is no memory: to be had by cache_get once all fills of
                     // this thread have ended
};
// Drops b's former hold. Inside an epoch, which lasts until the fill has ended. fill stays where it is until then.
enum cache_fill_begun cache_fill_begin(struct cache_table *t, uint32_t block, uint32_t nr_pages, struct cache_block *b,
                                       struct cache_fill *fill);
// good: fill->buf holds the block, verified. It is published, when it is in a frame, and b holds it as after cache_get;
// else b holds nothing.
void cache_fill_end(struct cache_table *t, uint32_t block, uint32_t nr_pages, struct cache_block *b,
                    struct cache_fill *fill, bool good);

// Whether the cache has room for that block without another one leaving it. A guess.
bool cache_room(struct cache_table *t, uint32_t block, uint32_t nr_pages);
// Publishes a block that was read otherwise (read-ahead): copies it into a frame when one can be had and it is not
// there; else does nothing.
void cache_offer(struct cache_table *t, uint32_t block, uint32_t nr_pages, const uint8_t *data);
// Inside the epoch of its cache_get; no effect on own memory or when pinned.
static inline void cache_block_pin(struct cache_table *t, struct cache_block *b) {
  if (!b->frame || b->pinned) return;
  // relaxed: who reuses the frame has seen this thread leave its epoch, and with that this
  (void)atomic_fetch_add_explicit(&t->cache->marks[b->frame], 1, memory_order_relaxed);
  b->pinned = true;
}
// Asks for the memory that a hit of this block, and its pin, are going to look at, when it is there. Returns its data
// for more of that kind, or NULL; it may be anything by the time it is read.
const uint8_t *cache_prefetch(const struct cache_table *t, uint32_t block);
// Makes the own buffer so large; what was in it is lost when it was smaller. Not while b has it as its data.
// REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status cache_block_reserve(struct cache_block *b, uint32_t nr_pages);
// Unpins; data becomes NULL; keeps the own buffer.
static inline void cache_block_drop(struct cache_table *t, struct cache_block *b) {
  // release: the holder's reads come before the reuse
  if (b->pinned) (void)atomic_fetch_sub_explicit(&t->cache->marks[b->frame], 1, memory_order_release);
  b->data = NULL;
  b->frame = 0;
  b->pinned = false;
}
// Drops and frees the own buffer. t may be NULL when not pinned.
void cache_block_fini(struct cache_table *t, struct cache_block *b);

struct cache_stats {
  uint64_t size;       // bytes for frames
  uint64_t used;       // bytes of frames that hold a block, are being filled, or are still pinned
  uint64_t misses;     // blocks that were read when they were needed (not ahead), those of the last two among them
  uint64_t evictions;  // blocks
  uint64_t declined;   // blocks read for the first time in a while: into own memory (C7)
  uint64_t bypasses;   // blocks for which there was no frame (C5)
};
void cache_stats(const struct cache *c, struct cache_stats *out);
#endif
