// SPDX-License-Identifier: Apache-2.0
//
// Arenas: many small allocations that arena_fini frees together. Any number of threads may allocate at the same time. A
// small allocation is one atomic add. It takes a lock only if the arena needs a new chunk: at the first allocation, and
// when a chunk is used up. A large allocation always takes the lock.
#ifndef ARENA_H
#define ARENA_H

#include "lib.h"

struct arena_chunk;
struct arena_pool;
struct arena {
  _Atomic(struct arena_chunk *)
      chunk;  // the chunk that allocations are cut from; published with release after its header is written
  _Atomic size_t large_used;  // bytes handed out in separate chunks (relaxed)
  _Atomic size_t given_back;  // bytes of arena_give_back (relaxed)
  struct arena_chunk *large;  // the separate chunks; guarded by the lock
  size_t chunk_size;          // bytes of each normal chunk
  struct arena_pool *pool;    // normal chunks come from this pool; NULL: from the system
  pthread_mutex_t lock;       // held while a thread adds a chunk
};
// chunk_size: bytes, a power of two >= 64 KB. pool: NULL, or a pool with the same chunk size that outlives the arena.
// The arena takes no memory before its first allocation.
void arena_init(struct arena *a, size_t chunk_size, struct arena_pool *pool);
void arena_fini(struct arena *a);
// Allocates size > 0 bytes, aligned to 8 bytes and not zeroed. A size above 1/4 of a chunk gets a separate chunk.
// Returns NULL on failure (REMIXDB_NOMEM).
void *arena_alloc(struct arena *a, size_t size);
// Returns the bytes handed out. The number includes alignment and the unused tails of used-up chunks (each less than
// 1/4 of a chunk). It never decreases. Any thread, also while others allocate.
size_t arena_used(const struct arena *a);
size_t arena_used_small(const struct arena *a);  // the same without the separate chunks
// Returns the bytes of all chunks, with the unused rest of the last one. Any thread.
size_t arena_held(const struct arena *a);
// Returns the unused rest of the last chunk to the system, in whole pages. It counts as handed out from then on, and a
// later allocation takes another chunk. The chunk does not go to the pool at the end. Any thread, one at a time.
void arena_give_back(struct arena *a);
// Bytes between two allocations. With them the address sanitizer sees a write past the end of an allocation.
#define ARENA_GAP (LIB_ASAN ? 8u : 0u)

// A pool keeps the chunks of ended arenas for later arenas. New pages from the system are expensive, because the system
// zeroes them: that takes longer than all work of the arena on them. Any thread.
struct arena_pool {
  pthread_mutex_t lock;  // guards all below. arena_pool_short reads without it, relaxed
  struct arena_chunk *chunks;
  size_t chunk_size;           // constant
  _Atomic size_t held, limit;  // bytes
  _Atomic bool begun;    // an arena has made a chunk. The first one has small pages, because a user of little memory
                         // must not take a huge one. Relaxed
  _Atomic bool spilled;  // true: chunks went back to the system because the pool was full, and the pool has not been
                         // empty since then. So the pool needs no more chunks
};
void arena_pool_init(struct arena_pool *p, size_t chunk_size, size_t limit);
void arena_pool_fini(struct arena_pool *p);
size_t arena_pool_held(struct arena_pool *p);               // bytes
void arena_pool_trim(struct arena_pool *p, size_t keep);    // returns chunks to the system until so many bytes are left
void arena_pool_limit(struct arena_pool *p, size_t limit);  // changes the limit, and trims to it
// Tells whether the pool has less than `enough` bytes, has room for one more chunk, and has not spilled. Takes no lock:
// the answer is a guess while others take or give chunks.
bool arena_pool_short(struct arena_pool *p, size_t enough);
// Forgets that the pool has spilled.
void arena_pool_drains(struct arena_pool *p);
// If arena_pool_short and if there is memory, adds a chunk. Writes to the chunk's pages, so that the system allocates
// and zeroes them now. Returns whether it added a chunk. A failure is harmless: an arena that needs a chunk then takes
// it from the system.
bool arena_pool_fill(struct arena_pool *p, size_t enough);
#endif
