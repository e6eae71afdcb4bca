// SPDX-License-Identifier: Apache-2.0
#include <assert.h>

#include "table/cache_state.h"

#define SHARD_BYTES_MIN ((size_t)8 << 20)  // a cache has one shard per this many bytes
#define RESERVE_PART 8u                    // at most 1/8 of a shard is kept free or in limbo
#define AHEAD_PAGES ((uint32_t)(CACHE_AHEAD / BLOCK_PAGE))
#define HUGE_FROM 32u                 // pages that a shard uses before it takes huge ones
#define AHEAD_LEFT (AHEAD_PAGES / 2)  // the next stretch is asked for when no more pages are left before it

// ---- records, which borrow pages

// records_room.give
static uint32_t give_chunk(void *arg) {
  struct cache_full *const c = arg;
  struct shard
      *const sh = &c->shards[atomic_fetch_add_explicit(&c->giving, 1, memory_order_relaxed) & (c->nr_shards - 1)];
  (void)pthread_mutex_lock(&sh->lock);
  const uint32_t most = (uint32_t)((uint64_t)sh->size * RECORDS_PART_NUM / RECORDS_PART_DEN);
  const uint32_t f = sh->given_pages + RECORDS_CHUNK_PAGES <= most ? cache_frame_take(c, sh, RECORDS_CHUNK_PAGES) : 0;
  if (f) sh->given_pages += RECORDS_CHUNK_PAGES;
  (void)pthread_mutex_unlock(&sh->lock);
  return f;
}

void cache_chunk_back(struct cache_full *c, uint32_t frame) {
  struct shard *sh = c->shards;
  while (frame >= sh->end) sh++;
  (void)pthread_mutex_lock(&sh->lock);
  sh->given_pages -= RECORDS_CHUNK_PAGES;
  cache_pages_give(c->pages, sh, frame, RECORDS_CHUNK_PAGES);
  (void)pthread_mutex_unlock(&sh->lock);
}

// ---- creation

// The first page of a stretch at or after page f.
static inline uint32_t ahead_stretch(uint32_t f) { return (f - 1 + AHEAD_PAGES - 1) / AHEAD_PAGES * AHEAD_PAGES + 1; }

// Where the stretch from page f on is asked for: not before the shard is used.
static inline uint32_t ahead_ask_at(const struct shard *sh, uint32_t f) {
  if (f >= sh->fresh + shard_fresh(sh)) return UINT32_MAX;
  return f > sh->first + AHEAD_LEFT ? f - AHEAD_LEFT : sh->first + 1;
}

// The pages that shard i has of nr pages of all shards.
static inline uint32_t shard_share(const struct cache_full *c, uint32_t i, uint32_t nr) {
  return (uint32_t)((uint64_t)nr * (i + 1) / c->nr_shards) - (uint32_t)((uint64_t)nr * i / c->nr_shards);
}

// Sets all that follows from the shard's size.
static void shard_measure(struct shard *sh) {
  const uint32_t part = sh->size / RESERVE_PART;
  sh->reserve_max = part > 0 ? part : 1;
  sh->reserve_min = sh->reserve = part > BATCH_PAGES ? BATCH_PAGES : sh->reserve_max;
  sh->ask_at = ahead_ask_at(sh, ahead_stretch(sh->fresh + 1));
  const bool fits = ahead_stretch(sh->first) + AHEAD_PAGES <= sh->first + sh->size;
  if (!sh->huge) sh->huge_at = fits ? sh->first + HUGE_FROM : UINT32_MAX;
}

static void shard_init(struct shard *sh, uint32_t first, uint32_t end, uint32_t size) {
  (void)pthread_mutex_init(&sh->lock, NULL);
  eventcount_init(&sh->loaded);
  sh->first = sh->fresh = sh->ready = sh->hand = sh->run_hand = first;
  sh->end = end;
  sh->size = size;
  shard_measure(sh);
}

// Bytes of the arrays for so many pages. One page more before the first, and one after the last.
static inline size_t pages_bytes(uint32_t nr) { return ((size_t)nr + 2) * sizeof(struct page); }
static inline size_t marks_bytes(uint32_t nr) { return ((size_t)nr + 1) * sizeof(_Atomic uint32_t); }

// Has the system take huge pages for elements [first, end) of an array, each of so many bytes.
static void array_huge(const struct mem_map *map, size_t first, size_t end, size_t size) {
  const size_t from = align_up(first * size, CACHE_AHEAD), to = end * size / CACHE_AHEAD * CACHE_AHEAD;
  if (from < to) mem_huge(map->ptr + from, to - from, true);
}

void cache_shard_huge(struct cache_full *c, struct shard *sh) {
  sh->huge_at = UINT32_MAX;
  sh->huge = sh->wants_huge = true;
  atomic_store_explicit(&c->untold, true, memory_order_relaxed);
  array_huge(&c->map, sh->first - 1, sh->end - 1, BLOCK_PAGE);
  array_huge(&c->page_map, sh->first, sh->end, sizeof(struct page));
  array_huge(&c->mark_map, sh->first, sh->end, sizeof(_Atomic uint32_t));
}

// Address space for `most` pages, or for fewer, but at least c->nr_pages.
static enum remixdb_status map_all(struct cache_full *c, uint32_t most) {
  const uint32_t nr = c->nr_pages;
  enum remixdb_status s = mem_reserve((size_t)nr * BLOCK_PAGE, (size_t)most * BLOCK_PAGE, &c->map);
  if (s != REMIXDB_OK) return s;
  if (c->map.size / BLOCK_PAGE < most) most = nr;
  const size_t pages = pages_bytes(nr), marks = marks_bytes(nr);
  s = mem_reserve(pages, pages_bytes(most), &c->page_map);
  if (s == REMIXDB_OK) s = mem_reserve(marks, marks_bytes(most), &c->mark_map);
  if (s != REMIXDB_OK) return s;
  if (c->page_map.size < pages_bytes(most) || c->mark_map.size < marks_bytes(most)) most = nr;
  c->most = most;
  c->pub.pages = c->map.ptr;
  c->pages = (struct page *)(void *)c->page_map.ptr;
  c->pub.marks = (_Atomic uint32_t *)(void *)c->mark_map.ptr;
  return REMIXDB_OK;
}

static uint32_t shards_of(uint32_t nr_pages) {
  uint32_t nr = 1;
  while (nr < SHARDS_MAX && (size_t)nr_pages * BLOCK_PAGE / SHARD_BYTES_MIN >= (size_t)nr * 2) nr *= 2;
  return nr;
}

// Returns the first page behind shard i. Where there is room, a shard begins at a huge page, so that neighbours do not
// share one.
static uint32_t shard_end(const struct cache_full *c, uint32_t i) {
  const uint32_t end = (uint32_t)((uint64_t)c->most * (i + 1) / c->nr_shards);
  const bool roomy = i + 1 < c->nr_shards && c->most - c->nr_pages >= c->nr_shards * AHEAD_PAGES;
  return (roomy ? end - end % AHEAD_PAGES : end) + 1;
}

static enum remixdb_status make_shards(struct cache_full *c) {
  const uint32_t nr = c->nr_pages, nr_shards = c->nr_shards;
  c->shards = mem_alloc_aligned(CACHE_LINE, nr_shards * sizeof(*c->shards));
  if (!c->shards) return REMIXDB_NOMEM;
  memset(c->shards, 0, nr_shards * sizeof(*c->shards));
  for (uint32_t i = 0, first = 1; i < nr_shards; i++) {
    const uint32_t end = shard_end(c, i), size = shard_share(c, i, nr);
    shard_init(&c->shards[i], first, end, size < end - first ? size : end - first);
    first = end;
  }
  const struct records_room room = {c->pub.pages, nr, c->epoch, give_chunk, c};
  return records_create(&room, &c->pub.records);
}

static uint32_t pages_of(size_t size) {
  return size / BLOCK_PAGE < UINT32_MAX / 2 ? (uint32_t)(size / BLOCK_PAGE) : UINT32_MAX / 2;
}

enum remixdb_status cache_create(size_t size, size_t most, struct epoch *epoch, struct cache **out) {
  *out = NULL;
  struct cache_full *const c = mem_calloc(1, sizeof(*c));
  if (!c) return REMIXDB_NOMEM;
  c->epoch = epoch;
  c->pub.disk_ns = CACHE_DISK_NS;
  c->nr_pages = pages_of(size);
  c->nr_shards = c->nr_pages ? shards_of(c->nr_pages) : 0;
  enum remixdb_status s = REMIXDB_OK;
  if (c->nr_pages > 0) s = map_all(c, pages_of(most > size ? most : size));
  if (c->nr_pages > 0 && s == REMIXDB_OK) s = make_shards(c);
  if (s == REMIXDB_OK) *out = &c->pub;
  else cache_destroy(&c->pub);
  return s;
}

size_t cache_size(const struct cache *c) { return (size_t)size_now(cache_full(c)) * BLOCK_PAGE; }

size_t cache_most(const struct cache *c) { return (size_t)cache_full(c)->most * BLOCK_PAGE; }

size_t cache_common(const struct cache *c) { return slots_memory(common(cache_full(c))); }

size_t cache_step(const struct cache *c) { return cache_full(c)->nr_shards * CACHE_AHEAD; }

void cache_destroy(struct cache *pub) {
  if (!pub) return;
  struct cache_full *const c = cache_full(pub);
  for (uint32_t i = 0; c->shards && i < c->nr_shards; i++) {
    eventcount_fini(&c->shards[i].loaded);
    (void)pthread_mutex_destroy(&c->shards[i].lock);
  }
  records_destroy(c->pub.records);
  slots_destroy(common(c));
  mem_unreserve(&c->map, (size_t)c->nr_pages * BLOCK_PAGE);
  mem_unreserve(&c->page_map, pages_bytes(c->nr_pages));
  mem_unreserve(&c->mark_map, marks_bytes(c->nr_pages));
  mem_free(c->shards);
  mem_free(c);
}

// ---- another size

#define SHRINK_TRIES 200u  // waits for readers without a page that has become free

// Takes back what was withdrawn, as far as the size allows.
static void shard_grow(struct cache_full *c, struct shard *sh) {
  while (sh->out.head && sh->fresh - sh->first - sh->withdrawn + c->pages[sh->out.head].nr_pages <= sh->size) {
    const uint32_t f = cache_queue_pop(c->pages, &sh->out), n = c->pages[f].nr_pages;
    sh->withdrawn -= n;
    cache_pages_give(c->pages, sh, f, n);
  }
}

// Withdraws pages until no more are used than the size allows, as far as there are free ones. Evicts others, for the
// next call. Returns how many are still too many.
static uint32_t shard_shrink(struct cache_full *c, struct shard *sh) {
  struct page *const pages = c->pages;
  cache_reclaim(c, sh);
  for (;;) {
    const uint32_t used = sh->fresh - sh->first - sh->withdrawn, over = used > sh->size ? used - sh->size : 0;
    uint32_t n = over < BLOCK_PAGES_MAX ? over : BLOCK_PAGES_MAX, f = 0;
    for (; n > 0 && !(f = cache_pages_take(pages, sh, n)); n--) {}
    if (!f) {
      if (over) cache_evict(c, sh, over < BATCH_PAGES ? over : BATCH_PAGES);
      return over;
    }
    pages[f].state = PAGE_OUT;
    pages[f].nr_pages = n;
    cache_queue_push(pages, &sh->out, f);
    sh->withdrawn += n;
    mem_give_back(c->pub.pages + (size_t)(f - 1) * BLOCK_PAGE, (size_t)n * BLOCK_PAGE);
  }
}

// Evicted pages are free when readers have left their epochs; pinned ones stay.
static void shrink(struct cache_full *c) {
  uint32_t least = UINT32_MAX, tries = 0, over;
  do {
    over = 0;
    for (uint32_t i = 0; i < c->nr_shards; i++) {
      struct shard *const sh = &c->shards[i];
      (void)pthread_mutex_lock(&sh->lock);
      over += shard_shrink(c, sh);
      (void)pthread_mutex_unlock(&sh->lock);
    }
    if (over) epoch_wait(c->epoch, epoch_stamp(c->epoch));
    tries = over < least ? 0 : tries + 1;
    least = over < least ? over : least;
  } while (over && tries < SHRINK_TRIES);
}

enum remixdb_status cache_resize(struct cache *pub, size_t size) {
  struct cache_full *const c = cache_full(pub);
  const uint32_t nr = pages_of(size), was = size_now(c);
  if (was == 0 || nr < c->nr_shards)
    return err_set(REMIXDB_INVALID, "a block cache of %zu bytes cannot become one of %zu", cache_size(pub), size);
  if (nr > c->most)
    return err_set(REMIXDB_INVALID, "the block cache can have %zu bytes at most, not %zu", cache_most(pub), size);
  uint32_t *chunks = NULL, nr_chunks = 0;
  enum remixdb_status s = cache_common_grow(c, nr);
  if (s == REMIXDB_OK && c->pub.records) s = records_resize(c->pub.records, nr, &chunks, &nr_chunks);
  if (s != REMIXDB_OK) return s;
  for (uint32_t i = 0; i < nr_chunks; i++) cache_chunk_back(c, chunks[i]);
  mem_free(chunks);
  atomic_store_explicit(&c->nr_pages, nr, memory_order_relaxed);
  for (uint32_t i = 0; i < c->nr_shards; i++) {
    struct shard *const sh = &c->shards[i];
    const uint32_t share = shard_share(c, i, nr), room = sh->end - sh->first;
    (void)pthread_mutex_lock(&sh->lock);
    sh->size = share < room ? share : room;
    shard_grow(c, sh);
    shard_measure(sh);
    (void)pthread_mutex_unlock(&sh->lock);
  }
  shrink(c);
  mem_reserve_change((size_t)was * BLOCK_PAGE, (size_t)nr * BLOCK_PAGE);
  mem_reserve_change(pages_bytes(was), pages_bytes(nr));
  mem_reserve_change(marks_bytes(was), marks_bytes(nr));
  return REMIXDB_OK;
}

// ---- memory ahead

void cache_on_ask(struct cache *pub, void (*tell)(void *arg), void *arg) {
  struct cache_full *const c = cache_full(pub);
  c->tell = tell;
  c->tell_arg = arg;
}

void cache_tell(struct cache_full *c) {
  if (c->tell && atomic_exchange_explicit(&c->untold, false, memory_order_relaxed)) c->tell(c->tell_arg);
}

// Makes a huge page of the first stretch of a shard, if that wants it.
static bool shard_collapse(const struct cache_full *c, struct shard *sh) {
  (void)pthread_mutex_lock(&sh->lock);
  const bool wants = sh->wants_huge;
  sh->wants_huge = false;
  (void)pthread_mutex_unlock(&sh->lock);
  if (wants) mem_collapse(c->pub.pages + (size_t)(ahead_stretch(sh->first) - 1) * BLOCK_PAGE, CACHE_AHEAD);
  return wants;
}

// Takes the stretch that a shard asks for. False: it asks for none, or its readers have come too far.
static bool ahead_take(struct shard *sh, uint32_t *from_out, uint32_t *to_out) {
  (void)pthread_mutex_lock(&sh->lock);
  const uint32_t next = ahead_stretch(sh->fresh), from = next > sh->ready ? next : sh->ready;
  const uint32_t end = sh->fresh + shard_fresh(sh);
  const bool taken = sh->asks && from < end;
  sh->asks = false;
  if (taken) {
    *from_out = from;
    *to_out = sh->ready = end - from < AHEAD_PAGES ? end : from + AHEAD_PAGES;
    sh->ask_at = ahead_ask_at(sh, sh->ready);
  }
  (void)pthread_mutex_unlock(&sh->lock);
  return taken;
}

bool cache_ahead(struct cache *pub) {
  struct cache_full *const c = cache_full(pub);
  uint32_t from, to;
  for (uint32_t i = 0; i < c->nr_shards; i++)
    if (shard_collapse(c, &c->shards[i])) return true;
  for (uint32_t i = 0; i < c->nr_shards; i++)
    if (ahead_take(&c->shards[i], &from, &to))
      return mem_populate(c->pub.pages + (size_t)(from - 1) * BLOCK_PAGE, (size_t)(to - from) * BLOCK_PAGE);
  return false;
}
