// SPDX-License-Identifier: Apache-2.0
//
// The block cache. Its memory is one mapping, cut into pages of BLOCK_PAGE bytes. A frame is 1 to BLOCK_PAGES_MAX
// contiguous pages; it holds one block, verified and decompressed. A frame's number is the index of its first page + 1.
// A table has an array of slots, one per page of its data, or its blocks use the common slots (C9). The slot of a block
// holds:
//   - the number of the frame that has the block, or
//   - CACHE_MISSED with the shard's count of misses at the time when the block was last refused a frame (C7), or
//   - 0.
// A hit is one load of the slot (acquire), or a few where slots are common (C9). The only shared cache line that it
// writes is the frame's mark, once per sweep of the clock hand.
//
// Frames are divided into shards, chosen by (table, block). A shard has a mutex, which only misses take, a CLOCK hand,
// and lists of free runs by length. The hand sweeps in the order of addresses, so evicted neighbours make contiguous
// runs for large blocks. Lock order: the shard's mutex (or those of all shards, in their order), then the epoch's lock
// (epoch_passed).
//
// Invariants
//   C1  A slot names a frame only while the frame holds that block, verified. The slot is published (release) after the
//       frame is filled.
//   C2  CLOCK evicts a frame that is not pinned and has had no hit since the hand last passed. The slot becomes 0, the
//       frame gets an epoch stamp and waits in limbo. It is reused when the stamp has passed and no pin is left. So
//       data stays unchanged until its reader leaves the epoch, or, if the reader has pinned it, until the reader
//       unpins it.
//   C3  A reader takes a pin only inside an epoch, on a frame that it found in a slot. So a frame in limbo whose stamp
//       has passed gains no pins.
//   C4  A block that gets a frame is read once, however many threads miss it: the earliest thread marks the block as
//       loading, and the others wait for that read and take the block from the slot. If the read fails, each of the
//       others reads for itself. No thread waits for a read without a frame (C5, C7). A thread that reads many blocks
//       at once waits for others only after its own reads have ended, so no two threads wait for each other. A read
//       that may last over several calls of the user goes to the reader's own memory, and marks nothing
//       (cache_offer_missed). So other threads read the block themselves, and no thread waits for the user.
//   C5  No thread waits for a frame. If no frame is free at once, the block is read into the caller's buffer and is not
//       published.
//   C6  Memory of frames never exceeds the size given at creation, or by cache_resize when that has ended. Pages beyond
//       it were never touched, or are *withdrawn*: they are no frames and have no memory.
//   C7  A full shard admits a block at its second miss. A shard is full when no more than its reserve is free. The
//       first miss reads into the caller's own buffer, and the slot notes the miss. A second miss gets a frame when it
//       comes within a quarter as many misses of the shard as the shard has room for blocks of that size. So blocks
//       that are read once evict nothing. Two iterators that read such a block at the same time read it twice. (After
//       2Q, Johnson and Shasha 1994; the slots take the place of its list of blocks.) Two kinds of reads get a frame at
//       the first miss: all reads while loads come from the disk (one in eight loads of cache_get is timed), and
//       readahead, because the reader will look for these blocks in the cache.
//   C8  A shard begins with small pages, because a small store must not take a huge page for each shard. When it has
//       used some of them, cache_ahead makes a huge page of its first stretch of CACHE_AHEAD bytes, which takes some
//       milliseconds. Where nobody calls cache_ahead the system does so later. Further stretches are huge ones at once.
//       The system clears a page of frames when it is first touched, which takes a reader longer than its read.
//       So a shard that comes near the end of a stretch of CACHE_AHEAD bytes asks for the next one, and another thread
//       has the system clear it (cache_ahead). A reader never waits for that, and nothing else depends on it. Clearing
//       keeps what a page has, so it takes no lock.
//   C9  Slots take memory in proportion to the cache, not to the store. Tables have arrays as long as these have at
//       most CACHE_OWN slots for each page of the cache, or CACHE_OWN_LEAST slots. Other tables use the common slots
//       (table/slots.h): three for each page of the cache. If the bucket of a block is full, the block takes the
//       slot of a block that was missed. Without such a slot a cached block is evicted, preferably one that CLOCK would
//       evict (C2), and the block takes that slot. But a miss is not noted where all blocks of the bucket are cached. A
//       frame that a common slot named is reused only after its epoch, even when its table has gone: readers of other
//       tables look at that slot. When the cache has grown to more than twice the size for which common slots were
//       made, it gets more of them.
#ifndef CACHE_H
#define CACHE_H

#include "base/epoch.h"
#include "table/block.h"

// The part of the cache that a hit reads; all but the atomic fields is constant after creation. The rest of the cache
// is private.
struct records;
struct slots;
struct cache {
  uint8_t *pages;
  struct records *records;         // NULL: too small to keep records by themselves
  _Atomic(struct slots *) common;  // NULL: no table uses them. Published with release
  // Per frame number: CACHE_USED (hit since the hand last passed; relaxed) and the number of pins. A pin is taken
  // relaxed inside an epoch, given back with release, and read with acquire before reuse. A step through a block needs
  // both, so they share a word. The frame's other fields are elsewhere, so that many marks share a cache line.
  _Atomic uint32_t *marks;
  _Atomic bool disk;  // the last timed load came from the disk; relaxed, a guess
  uint64_t disk_ns;   // a load that takes longer per page comes from the disk (C7); CACHE_DISK_NS, except in tests
};
#define CACHE_DISK_NS 10000u
#define CACHE_USED 0x80000000u

#define CACHE_AHEAD ((size_t)2 << 20)  // bytes; a huge page, where the system has transparent ones

#define CACHE_OWN 16u                // all arrays of slots together have at most so many slots for a page of the cache
#define CACHE_OWN_LEAST (64u << 10)  // or so many slots, if that is more. None if budget_starved is set

struct cache_table {        // embedded in a table; cache_table_init makes it. It does not move
  struct cache *cache;      // NULL: no cache, or one of size 0. Then no slots, and cache_hit must not be called
  _Atomic uint32_t *slots;  // one per page of data: nr_pages; NULL: the table uses the common ones
  uint32_t nr_pages;
  uint64_t id;  // part of the choice of a shard and of a bucket
};

// A reader's claim on one block. Zero it before the first use, reuse it for the next block, and end with
// cache_block_fini.
struct cache_block {
  const uint8_t *data;  // NULL: none. In a frame it is valid inside the epoch of the call that set it, or while pinned
  uint32_t frame;       // 0: data is in the own buffer
  bool pinned;
  uint8_t *own;  // a private buffer, kept for reuse
  uint32_t own_size;
  bool given;  // own belongs to somebody else, and is not freed here
};

// size: bytes; with 0 every get reads into the caller's own buffer. most: the size to which it can grow, or less if the
// system does not give so much address space. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status cache_create(size_t size, size_t most, struct epoch *epoch, struct cache **out);
// Changes the size, but not from or to 0. One call at a time, while other threads use the cache, outside of any epoch.
// A smaller cache gives its memory back to the system; the call waits until readers have left the blocks that go,
// except pinned ones: while many blocks are pinned the cache may stay larger, and the next call goes on. Fails with
// REMIXDB_INVALID if the size is beyond what the creation has got, or with REMIXDB_NOMEM; then it stays as it was.
MUST_CHECK enum remixdb_status cache_resize(struct cache *c, size_t size);
// tell(arg) says that cache_ahead has something to do. It is called without locks, in any thread, maybe inside an
// epoch, and must not wait. NULL: nobody calls cache_ahead. Set it while no other thread uses the cache.
void cache_on_ask(struct cache *c, void (*tell)(void *arg), void *arg);
// Has one stretch of memory cleared, or made a huge page, before readers touch it (C8). False: there is none. One
// thread at a time.
MUST_CHECK bool cache_ahead(struct cache *c);
size_t cache_size(const struct cache *c);    // bytes for blocks
size_t cache_most(const struct cache *c);    // bytes that cache_resize can give it at most
size_t cache_common(const struct cache *c);  // bytes of the common slots
size_t cache_step(const struct cache *c);    // multiples of so many bytes are sizes that fill the system's huge pages
void cache_destroy(struct cache *c);         // after the last table; NULL is allowed
MUST_CHECK enum remixdb_status cache_table_init(struct cache_table *t, struct cache *c, uint32_t nr_pages, uint64_t id);
// Frees the table's slots and its frames. No reader uses the table any more, and no pin is left.
void cache_table_fini(struct cache_table *t);

// Fills buf (nr_pages * BLOCK_PAGE bytes) with the block, verified. own: buf is the buffer of cache_get's caller, and
// may be filled only as far as that caller needs it. Called without locks.
typedef enum remixdb_status (*cache_load_fn)(void *arg, uint32_t block, uint32_t nr_pages, uint8_t *buf, bool own);

static inline const uint8_t *cache_frame_data(const struct cache *c, uint32_t frame) {
  return c->pages + (size_t)(frame - 1) * BLOCK_PAGE;
}
// Marks the frame as used, unless it is marked: the line stays shared between processors until the hand clears the
// mark.
static inline void cache_frame_touch(const struct cache *c, uint32_t frame) {
  _Atomic uint32_t *const mark = &c->marks[frame];
  if (unlikely(!(atomic_load_explicit(mark, memory_order_relaxed) & CACHE_USED)))
    (void)atomic_fetch_or_explicit(mark, CACHE_USED, memory_order_relaxed);
}

#define CACHE_MISSED 0x80000000u  // in a slot: no frame; the other bits are a count of misses
static inline uint32_t cache_slot_frame(uint32_t slot) { return slot & CACHE_MISSED ? 0 : slot; }
uint32_t cache_common_frame(const struct cache_table *t, uint32_t block);  // for cache_frame
// The frame that has the block, or 0. Acquire: its data can be read. Inside an epoch; elsewhere it is a guess.
static inline uint32_t cache_frame(const struct cache_table *t, uint32_t block) {
  if (unlikely(!t->slots)) return cache_common_frame(t, block);
  return cache_slot_frame(atomic_load_explicit(&t->slots[block], memory_order_acquire));
}
// Whether the cache has the block. A guess: it may come or go at any time.
static inline bool cache_has(const struct cache_table *t, uint32_t block) {
  return t->cache && cache_frame(t, block) != 0;
}

// The fast path of a get; NULL on a miss. Inside an epoch; the data is valid until the epoch is left.
static inline const uint8_t *cache_hit(struct cache_table *t, uint32_t block, uint32_t *frame_out) {
  const uint32_t f = cache_frame(t, block);
  if (f == 0) return NULL;
  cache_frame_touch(t->cache, f);
  *frame_out = f;
  return cache_frame_data(t->cache, f);
}

// Makes b hold the block: from the cache, or by load(arg, ...) into a new frame or into b's own buffer. Drops the block
// that b held. lone: the caller wants one record of it, and keeps that by itself (C7). Inside an epoch; b->data is
// valid until the epoch is left, or longer with cache_block_pin. On failure (the load's status, REMIXDB_NOMEM) b holds
// nothing.
MUST_CHECK enum remixdb_status cache_get(struct cache_table *t, uint32_t block, uint32_t nr_pages, bool lone,
                                         cache_load_fn load, void *arg, struct cache_block *b);
// ---- many blocks at once: fills begin one by one, the caller reads them together, and they end one by one. One
// thread.
struct cache_load {  // private: a block that a thread is reading
  const struct cache_table *table;
  uint32_t block;
  uint64_t seq;  // distinguishes it from a later load at the same address
  uint32_t nr_waiters;
  struct cache_load *next;
};
struct cache_fill {
  uint8_t *buf;            // destination of the read, aligned to BLOCK_PAGE
  uint32_t frame;          // private; 0: buf is b's own buffer
  struct cache_load load;  // private
};
enum cache_fill_begun {
  CACHE_FILL_HIT,    // b holds the block, and there is nothing to end
  CACHE_FILL_READ,   // the caller reads the block into fill->buf, verifies it and ends the fill
  CACHE_FILL_LATER,  // another fill or get reads the block, or memory is lacking: the caller calls cache_get once all
                     // fills of its thread have ended
};
// Drops the block that b held. Inside an epoch, which lasts until the fill has ended. Until then fill does not move.
enum cache_fill_begun cache_fill_begin(struct cache_table *t, uint32_t block, uint32_t nr_pages, struct cache_block *b,
                                       struct cache_fill *fill);
// good: fill->buf holds the block, verified. Then b holds it as after cache_get, and a frame is published. Otherwise b
// holds nothing.
void cache_fill_end(struct cache_table *t, uint32_t block, uint32_t nr_pages, struct cache_block *b,
                    struct cache_fill *fill, bool good);

// Whether the cache has room for the block without an eviction. A guess.
bool cache_room(struct cache_table *t, uint32_t block, uint32_t nr_pages);
// Publishes a block that readahead has read, by copying it into a frame. Does nothing when the cache has the block, or
// when no frame is free.
void cache_offer(struct cache_table *t, uint32_t block, uint32_t nr_pages, const uint8_t *data);
// The same for a block that was missed, and read without a fill: counts the miss, and publishes the block if C7 admits
// it.
void cache_offer_missed(struct cache_table *t, uint32_t block, uint32_t nr_pages, const uint8_t *data);
// Pins the frame. Inside the epoch of b's cache_get. Has no effect on the own buffer, or when b is pinned.
static inline void cache_block_pin(struct cache_table *t, struct cache_block *b) {
  if (!b->frame || b->pinned) return;
  // relaxed: the thread that reuses the frame has seen this one leave its epoch, and with that the pin
  (void)atomic_fetch_add_explicit(&t->cache->marks[b->frame], 1, memory_order_relaxed);
  b->pinned = true;
}
// Prefetches what a hit of the block, and a pin, will read. Returns the block's data for further prefetches, or NULL on
// a miss. The frame may have changed by the time it is read.
const uint8_t *cache_prefetch(const struct cache_table *t, uint32_t block);
// Makes the own buffer at least nr_pages long; growing loses its contents. b->data must not be in it. Fails with
// REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status cache_block_reserve(struct cache_block *b, uint32_t nr_pages);
// Unpins; data becomes NULL. Keeps the own buffer.
static inline void cache_block_drop(struct cache_table *t, struct cache_block *b) {
  // release: this thread's reads come before the reuse
  if (b->pinned) (void)atomic_fetch_sub_explicit(&t->cache->marks[b->frame], 1, memory_order_release);
  b->data = NULL;
  b->frame = 0;
  b->pinned = false;
}
// Drops, and frees the own buffer. t may be NULL when b is not pinned.
void cache_block_fini(struct cache_table *t, struct cache_block *b);

// Whether a get that misses should look for its record among those that are kept alone, and keep it there.
static inline bool cache_keeps_records(const struct cache_table *t) {
  return t->cache && t->cache->records && atomic_load_explicit(&t->cache->disk, memory_order_relaxed);
}

struct cache_stats {
  uint64_t size;       // bytes for frames
  uint64_t used;       // bytes of frames that hold a block, are being filled, or are still pinned
  uint64_t touched;    // bytes of frames that were ever used: the system gives memory for these only
  uint64_t misses;     // blocks read on demand, without readahead; includes the last two
  uint64_t evictions;  // blocks
  uint64_t declined;   // blocks refused a frame at their first miss (C7)
  uint64_t bypasses;   // blocks for which no frame was free (C5)
  uint64_t record_bytes, record_hits, records_kept;  // records that are kept alone: their bytes; found ones; kept ones
};
void cache_stats(const struct cache *c, struct cache_stats *out);
#endif
