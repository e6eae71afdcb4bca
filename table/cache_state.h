// SPDX-License-Identifier: Apache-2.0
//
// The state of the block cache (table/cache.h), for its own files only: cache_blocks.c has the way of a block,
// cache_pages.c the pages of a shard, cache_common.c the common slots, cache_size.c creation, another size, and memory
// that is cleared ahead.
#ifndef CACHE_STATE_H
#define CACHE_STATE_H

#include "base/eventcount.h"
#include "table/cache.h"
#include "table/records.h"
#include "table/slots.h"

#define SHARDS_MAX 16u   // four bits of a block's hash choose its shard
#define BATCH_PAGES 64u  // pages evicted together, so that they share one look at all epochs

// The state of a page. Only the first page of a run (a frame, or contiguous free pages) has one besides PAGE_INNER.
enum page_state {
  PAGE_INNER,
  PAGE_FREE,
  PAGE_LOADING,  // a frame that one thread is filling; no slot names it
  PAGE_LIVE,     // a frame that a slot names
  PAGE_LIMBO,    // an evicted frame whose stamp has not passed, or that is pinned
  PAGE_OUT,      // withdrawn: the cache has become smaller
};

// One per page, guarded by the shard's lock.
struct page {
  uint8_t state;
  uint32_t nr_pages;    // pages of the run that begins here
  uint32_t free_len;    // length of the free run that ends here, or 0
  uint32_t next, prev;  // page numbers in the run's list; 0 ends it
  union {
    _Atomic uint32_t *slot;  // live: the slot that names it
    uint64_t stamp;          // in limbo; the table may be gone
  };
};

struct page_queue {
  uint32_t head, tail;
};

struct shard {
  _Alignas(CACHE_LINE) pthread_mutex_t lock;
  struct cache_load *loads;
  uint64_t load_seq;
  uint32_t first, end;  // its pages, as far as it can grow
  uint32_t size;        // pages that it may use
  uint32_t withdrawn;   // pages of the runs in `out` (C6)
  struct page_queue out;
  uint32_t fresh;     // pages from here to the end were never used: untouched memory takes no room
  uint32_t ready;     // pages before it were cleared ahead; may be less than `fresh`
  uint32_t ask_at;    // the next stretch is asked for when `fresh` comes here; UINT32_MAX: not again
  bool asks;          // a stretch is asked for
  uint32_t huge_at;   // huge pages are taken when `fresh` comes here; UINT32_MAX: they are, or the shard is too small
  bool huge;          // they are taken
  bool wants_huge;    // the first stretch is to become a huge page
  uint32_t hand;      // CLOCK: the first page of a run, or `fresh`
  uint32_t run_hand;  // the same for large blocks
  uint32_t reserve;   // pages to keep free or in limbo, between the next two
  uint32_t reserve_min, reserve_max;
  bool starved;  // a miss got no frame while limbo was not empty
  uint32_t free_pages, limbo_pages;
  uint32_t given_pages;                // frames that were given to records
  uint32_t free_mask;                  // bit n: free[n] is not empty
  uint32_t free[BLOCK_PAGES_MAX + 1];  // free runs of n pages, in the last place of n or more
  struct page_queue limbo;             // in order of stamp
  struct page_queue held;              // stamp passed, but pinned
  uint64_t misses, evictions, declined, bypasses;
  struct eventcount loaded;  // a load with waiters has ended; they are woken without the lock
};

// How many pages may still be used for the first time.
static inline uint32_t shard_fresh(const struct shard *sh) {
  const uint32_t used = sh->fresh - sh->first - sh->withdrawn, left = sh->end - sh->fresh;
  if (used >= sh->size) return 0;
  return left < sh->size - used ? left : sh->size - used;
}

struct cache_full {
  struct cache pub;
  struct page *pages;  // by page number; the first is 1
  struct epoch *epoch;
  _Atomic uint64_t evicted;   // pages, in this turn of the cache; relaxed
  _Atomic uint64_t used;      // records found or kept before this turn; relaxed
  _Atomic bool idle;          // in the turn before, hardly any record was found or kept; relaxed
  _Atomic uint32_t giving;    // the next shard that gives; relaxed
  _Atomic uint32_t nr_pages;  // pages of all shards: the size; relaxed
  _Atomic uint64_t own;       // slots of all tables' arrays; relaxed
  uint32_t most;              // pages of all shards, as far as they can grow
  uint32_t nr_shards;         // a power of two
  struct shard *shards;
  struct mem_map map, page_map, mark_map;
  void (*tell)(void *arg);
  void *tell_arg;
  _Atomic bool untold;  // a shard asks, and nobody was told; relaxed: the shard's lock orders what cache_ahead reads
};

static inline struct cache_full *cache_full(const struct cache *c) { return (struct cache_full *)(uintptr_t)c; }
static inline struct slots *common(const struct cache_full *c) {
  return atomic_load_explicit(&c->pub.common, memory_order_acquire);
}

static inline uint32_t size_now(const struct cache_full *c) {
  return atomic_load_explicit(&c->nr_pages, memory_order_relaxed);
}
static inline bool frame_pinned(const struct cache_full *c, uint32_t f, memory_order order) {
  return (atomic_load_explicit(&c->pub.marks[f], order) & ~CACHE_USED) != 0;
}
static inline bool frame_used(const struct cache_full *c, uint32_t f) {
  return (atomic_load_explicit(&c->pub.marks[f], memory_order_relaxed) & CACHE_USED) != 0;
}
static inline void frame_clear(const struct cache_full *c, uint32_t f) {
  (void)atomic_fetch_and_explicit(&c->pub.marks[f], ~CACHE_USED, memory_order_relaxed);
}

// ---- pages of a shard (cache_pages.c); the caller has its lock

// Waiting lines, for frames in limbo, for those that are pinned there, and for withdrawn pages.
void cache_queue_push(struct page *pages, struct page_queue *q, uint32_t f);
uint32_t cache_queue_pop(struct page *pages, struct page_queue *q);  // there is one
// Gives pages back, joined with their free neighbours.
void cache_pages_give(struct page *pages, struct shard *sh, uint32_t f, uint32_t n);
// Takes n contiguous pages from the shortest free run that has them. 0: there is none.
uint32_t cache_pages_take(struct page *pages, struct shard *sh, uint32_t n);
// Takes a frame of n pages, in state PAGE_LOADING. Returns 0 if none is free at once.
uint32_t cache_frame_take(struct cache_full *c, struct shard *sh, uint32_t n);
// Evicts a live frame: takes it out of its slot. The caller stamps it, or a whole batch, afterwards.
void cache_frame_unpublish(struct page *pages, struct shard *sh, uint32_t f);
// Stamps the frames in limbo from f on.
void cache_frames_stamp(struct cache_full *c, uint32_t f);
// Frees the frames in limbo that no reader can hold any more.
void cache_reclaim(struct cache_full *c, struct shard *sh);
// Evicts frames of `want` pages in all, if a bounded search finds them.
void cache_evict(struct cache_full *c, struct shard *sh, uint32_t want);

// ---- common slots (cache_common.c, C9); the caller has the shard's lock, except where a comment says otherwise

// A hash of both: splitmix64's finalizer (Steele, Lea, Flood, OOPSLA 2014) without its last step. The upper bits are
// well mixed.
static inline uint64_t block_hash(const struct cache_table *t, uint32_t block) {
  uint64_t h = t->id * 0x9E3779B97F4A7C15ull + block;
  h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9ull;
  return (h ^ h >> 27) * 0x94D049BB133111EBull;
}
static inline struct slots_key common_key(const struct cache_table *t, uint32_t block) {
  return (struct slots_key){.table = t, .block = block, .hash = block_hash(t, block)};
}
// A slot for the key. It names no frame. A frame may have been evicted for it.
struct slot *cache_common_take(struct cache_full *c, struct shard *sh, struct slots_key k);
// Notes a miss of a block without a frame: puts `now` into its slot, and returns what the slot had; 0: it had none.
// Nothing is noted where all slots of the bucket have frames.
uint32_t cache_common_miss(const struct cache_full *c, struct shard *sh, struct slots_key k, uint32_t now);
// Makes the common slots, if there are none. Without a lock. Fails with REMIXDB_NOMEM, as the next one does.
MUST_CHECK enum remixdb_status cache_common_make(struct cache_full *c);
// Makes more of them for a cache of nr pages, if it has outgrown those that it has. Without a lock; one call at a time.
MUST_CHECK enum remixdb_status cache_common_grow(struct cache_full *c, uint32_t nr);

// ---- memory (cache_size.c)

// The shard takes huge pages from now on (C8). sh->lock is held.
void cache_shard_huge(struct cache_full *c, struct shard *sh);
// After a frame was taken; without locks.
void cache_tell(struct cache_full *c);
static inline void cache_ask(struct cache_full *c) {
  if (unlikely(atomic_load_explicit(&c->untold, memory_order_relaxed))) cache_tell(c);
}
// Returns a chunk of pages, which records have borrowed, to its shard.
void cache_chunk_back(struct cache_full *c, uint32_t frame);
#endif
