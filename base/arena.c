// SPDX-License-Identifier: Apache-2.0
#include "base/arena.h"

#include <assert.h>

// Sanitizers know malloc, but not arenas. These tell them which memory of an arena is not handed out.
#if LIB_ASAN
#include <sanitizer/asan_interface.h>
static void arena_hide(void *p, size_t size) { __asan_poison_memory_region(p, size); }
static void arena_show(void *p, size_t size) { __asan_unpoison_memory_region(p, size); }
#elif LIB_MSAN
#include <sanitizer/msan_interface.h>
static void arena_hide(void *p, size_t size) { __msan_poison(p, size); }
static void arena_show(void *p, size_t size) { (void)p, (void)size; }  // stays poisoned until it is written
#else
static inline void arena_hide(void *p, size_t size) { (void)p, (void)size; }
static inline void arena_show(void *p, size_t size) { (void)p, (void)size; }
#endif

// An allocation adds its size to `cut`. If the sum passes `size`, the chunk is used up: this allocation and all later
// ones get nothing from it. `cut` and `size` count from the start of the chunk, so they include this header.
struct arena_chunk {
  _Atomic size_t cut;
  size_t size;
  size_t base;  // bytes in the chunks before this one, without their headers
  struct arena_chunk *next;
  struct mem_map map;  // ptr NULL: the memory is from mem_alloc_aligned
  bool lacks_pages;    // arena_give_back has returned some
};

#define ARENA_HEAD ((size_t)CACHE_LINE)
_Static_assert(sizeof(struct arena_chunk) <= CACHE_LINE, "the header of a chunk fits its room");

void arena_init(struct arena *a, size_t chunk_size, struct arena_pool *pool) {
  assert(!pool || pool->chunk_size == chunk_size);
  assert(chunk_size >= 65536 && (chunk_size & (chunk_size - 1)) == 0);
  atomic_init(&a->chunk, NULL);
  atomic_init(&a->large_used, 0);
  atomic_init(&a->given_back, 0);
  a->large = NULL;
  a->chunk_size = chunk_size;
  a->pool = pool;
  (void)pthread_mutex_init(&a->lock, NULL);
}

static inline size_t pool_get(const _Atomic size_t *field) { return atomic_load_explicit(field, memory_order_relaxed); }
static inline void pool_set(_Atomic size_t *field, size_t n) { atomic_store_explicit(field, n, memory_order_relaxed); }
static inline void pool_spilled(struct arena_pool *p, bool is) {
  atomic_store_explicit(&p->spilled, is, memory_order_relaxed);
}

// Keeps the chunk for the next arena. Returns false when the pool is full.
static bool arena_pool_put(struct arena_pool *p, struct arena_chunk *c) {
  (void)pthread_mutex_lock(&p->lock);
  const bool kept = pool_get(&p->held) + c->size <= pool_get(&p->limit);
  if (kept) {
    c->next = p->chunks;
    p->chunks = c;
    pool_set(&p->held, pool_get(&p->held) + c->size);
  } else {
    pool_spilled(p, true);
  }
  (void)pthread_mutex_unlock(&p->lock);
  return kept;
}

static struct arena_chunk *arena_pool_take(struct arena_pool *p) {
  (void)pthread_mutex_lock(&p->lock);
  struct arena_chunk *const c = p->chunks;
  if (c) {
    p->chunks = c->next;
    pool_set(&p->held, pool_get(&p->held) - c->size);
  } else {
    pool_spilled(p, false);
  }
  (void)pthread_mutex_unlock(&p->lock);
  if (c) arena_hide((uint8_t *)c + ARENA_HEAD, c->size - ARENA_HEAD);
  return c;
}

static void arena_free_list(struct arena_chunk *c, struct arena_pool *pool) {
  while (c) {
    struct arena_chunk *const next = c->next;
    struct mem_map map = c->map;  // a copy, because the header lies in the map
    if (pool && !c->lacks_pages && arena_pool_put(pool, c)) {
      c = next;
      continue;
    }
    arena_show(c, c->size);  // the memory returns to the system
    if (map.ptr) mem_unmap(&map);
    else mem_free(c);
    c = next;
  }
}

void arena_pool_init(struct arena_pool *p, size_t chunk_size, size_t limit) {
  *p = (struct arena_pool){.chunk_size = chunk_size, .limit = limit};
  (void)pthread_mutex_init(&p->lock, NULL);
}

void arena_pool_fini(struct arena_pool *p) {
  arena_free_list(p->chunks, NULL);
  p->chunks = NULL;
  (void)pthread_mutex_destroy(&p->lock);
}

size_t arena_pool_held(struct arena_pool *p) { return pool_get(&p->held); }

void arena_fini(struct arena *a) {
  arena_free_list(atomic_load_explicit(&a->chunk, memory_order_relaxed), a->pool);
  arena_free_list(a->large, NULL);
  atomic_store_explicit(&a->chunk, NULL, memory_order_relaxed);
  a->large = NULL;
  (void)pthread_mutex_destroy(&a->lock);
}

// Makes a chunk of at least `size` bytes; `cut` of them are taken. small: without huge pages. NULL: REMIXDB_NOMEM.
static struct arena_chunk *arena_chunk_create(size_t size, size_t cut, bool small) {
  struct mem_map map = {NULL, 0, 0};
  struct arena_chunk *c;
  if (size >= (size_t)1 << 20) {
    if (mem_map(size, &map) != REMIXDB_OK) return NULL;
    if (small) mem_huge(map.ptr, map.size, false);
    c = (struct arena_chunk *)map.ptr;
    size = map.size;
  } else {
    c = mem_alloc_aligned(CACHE_LINE, size);
    if (!c) return NULL;
  }
  atomic_init(&c->cut, cut);
  c->size = size;
  c->base = 0;
  c->next = NULL;
  c->map = map;
  c->lacks_pages = false;
  arena_hide((uint8_t *)c + ARENA_HEAD, size - ARENA_HEAD);
  return c;
}

void arena_pool_trim(struct arena_pool *p, size_t keep) {
  struct arena_chunk *out = NULL;
  (void)pthread_mutex_lock(&p->lock);
  while (pool_get(&p->held) > keep) {
    struct arena_chunk *const c = p->chunks;
    p->chunks = c->next;
    pool_set(&p->held, pool_get(&p->held) - c->size);
    c->next = out;
    out = c;
  }
  (void)pthread_mutex_unlock(&p->lock);
  arena_free_list(out, NULL);
}

void arena_pool_limit(struct arena_pool *p, size_t limit) {
  (void)pthread_mutex_lock(&p->lock);
  pool_set(&p->limit, limit);
  (void)pthread_mutex_unlock(&p->lock);
  arena_pool_trim(p, limit);
}

bool arena_pool_short(struct arena_pool *p, size_t enough) {
  const size_t held = pool_get(&p->held);
  return held < enough && held + p->chunk_size <= pool_get(&p->limit) &&
         !atomic_load_explicit(&p->spilled, memory_order_relaxed);
}

void arena_pool_drains(struct arena_pool *p) {
  (void)pthread_mutex_lock(&p->lock);
  pool_spilled(p, false);
  (void)pthread_mutex_unlock(&p->lock);
}

bool arena_pool_fill(struct arena_pool *p, size_t enough) {
  if (!arena_pool_short(p, enough)) return false;
  struct arena_chunk *const c = arena_chunk_create(p->chunk_size, ARENA_HEAD, false);
  if (!c) return false;
  arena_show((uint8_t *)c + ARENA_HEAD, c->size - ARENA_HEAD);
  for (size_t at = ARENA_HEAD; at < c->size; at += 4096) *((volatile uint8_t *)c + at) = 0;
  c->next = NULL;
  const bool kept = arena_pool_put(p, c);  // other threads may have filled the pool
  if (!kept) arena_free_list(c, NULL);
  return kept;
}

static void *arena_cut(struct arena_chunk *c, size_t size) {
  // A full chunk is not added to, so `cut` cannot wrap.
  if (atomic_load_explicit(&c->cut, memory_order_relaxed) > c->size) return NULL;
  const size_t at = atomic_fetch_add_explicit(&c->cut, size, memory_order_relaxed);
  return likely(at <= c->size && size <= c->size - at) ? (uint8_t *)c + at : NULL;
}

// A large allocation gets a chunk of its own. Later small allocations still come from the current chunk.
static void *arena_alloc_large(struct arena *a, size_t size) {
  if (size > SIZE_MAX / 2) {
    (void)err_set(REMIXDB_NOMEM, "no memory for %zu bytes", size);
    return NULL;
  }
  struct arena_chunk *const c = arena_chunk_create(size + ARENA_HEAD, size + ARENA_HEAD, false);
  if (!c) return NULL;
  (void)pthread_mutex_lock(&a->lock);
  c->next = a->large;
  a->large = c;
  (void)pthread_mutex_unlock(&a->lock);
  atomic_fetch_add_explicit(&a->large_used, size, memory_order_relaxed);
  return (uint8_t *)c + ARENA_HEAD;
}

// Tells whether no arena has taken a chunk for this pool yet.
static bool pool_begins(struct arena_pool *p) {
  return !atomic_load_explicit(&p->begun, memory_order_relaxed) &&
         !atomic_exchange_explicit(&p->begun, true, memory_order_relaxed);
}

// Allocates after `full` was found full: takes the next chunk, unless another thread has done so already.
static void *arena_alloc_slow(struct arena *a, struct arena_chunk *full, size_t size) {
  void *p = NULL;
  (void)pthread_mutex_lock(&a->lock);
  for (;;) {
    struct arena_chunk *c = atomic_load_explicit(&a->chunk, memory_order_acquire);
    if (c != full) {
      p = arena_cut(c, size);
      if (p) break;
      full = c;
    }
    c = a->pool ? arena_pool_take(a->pool) : NULL;
    if (c) atomic_store_explicit(&c->cut, ARENA_HEAD + size, memory_order_relaxed);
    else c = arena_chunk_create(a->chunk_size, ARENA_HEAD + size, a->pool && pool_begins(a->pool));
    if (!c) break;
    p = (uint8_t *)c + ARENA_HEAD;
    c->base = full ? full->base + full->size - ARENA_HEAD : 0;
    c->next = full;
    atomic_store_explicit(&a->chunk, c, memory_order_release);
    break;
  }
  (void)pthread_mutex_unlock(&a->lock);
  return p;
}

void *arena_alloc(struct arena *a, size_t size) {
  assert(size > 0);
  void *p;
  const size_t full = align_up(size + ARENA_GAP, 8);
  if (unlikely(size > a->chunk_size / 4)) {
    p = arena_alloc_large(a, size > SIZE_MAX / 2 ? size : full);
  } else {
    struct arena_chunk *const c = atomic_load_explicit(&a->chunk, memory_order_acquire);
    p = likely(c != NULL) ? arena_cut(c, full) : NULL;
    if (unlikely(!p)) p = arena_alloc_slow(a, c, full);
  }
  if (p) arena_show(p, size);
  return p;
}

size_t arena_used_small(const struct arena *a) {
  struct arena_chunk *const c = atomic_load_explicit(&a->chunk, memory_order_acquire);
  if (!c) return 0;
  const size_t cut = atomic_load_explicit(&c->cut, memory_order_relaxed);
  return c->base + (cut < c->size ? cut : c->size) - ARENA_HEAD;
}

size_t arena_used(const struct arena *a) {
  return atomic_load_explicit(&a->large_used, memory_order_relaxed) + arena_used_small(a);
}

size_t arena_held(const struct arena *a) {
  const struct arena_chunk *const c = atomic_load_explicit(&a->chunk, memory_order_acquire);
  const size_t small = c ? c->base + c->size - atomic_load_explicit(&a->given_back, memory_order_relaxed) : 0;
  return atomic_load_explicit(&a->large_used, memory_order_relaxed) + small;
}

void arena_give_back(struct arena *a) {
  struct arena_chunk *const c = atomic_load_explicit(&a->chunk, memory_order_acquire);
  if (!c || !c->map.ptr || atomic_load_explicit(&c->cut, memory_order_relaxed) >= c->size) return;
  // The chunk is used up by this: nobody has the bytes behind `at`, and nobody gets them.
  const size_t at = atomic_fetch_add_explicit(&c->cut, c->size, memory_order_relaxed);
  const size_t from = align_up(at, c->map.page);
  if (from >= c->size) return;
  mem_give_back((uint8_t *)c + from, c->size - from);
  atomic_fetch_add_explicit(&a->given_back, c->size - from, memory_order_relaxed);
  c->lacks_pages = true;
}
