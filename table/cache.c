// SPDX-License-Identifier: Apache-2.0
#include "table/cache.h"

#include <assert.h>
#include <stddef.h>

#include "base/budget.h"
#include "table/records.h"
#include "table/slots.h"

#define SHARDS_MAX 16u
#define SHARD_BYTES_MIN ((size_t)8 << 20)  // a cache has one shard per this many bytes
#define BATCH_PAGES 64u                    // pages evicted together, so that they share one look at all epochs
#define RESERVE_PART 8u                    // at most 1/8 of a shard is kept free or in limbo
#define ADMIT_PART 4u                      // a second miss counts within 1/4 as many misses as the shard has blocks
#define LOADS_TIMED 8u                     // one in this many loads is timed
#define RUN_TRIES 32u                      // stretches tried for one large block
#define HELD_TRIES 4u                      // pinned frames in `held` that are tried again each time
// Records are idle if, over one turn of the cache, fewer than 1/RECORDS_BUSY as many were found or kept as pages were
// evicted.
#define RECORDS_BUSY 16u
#define AHEAD_PAGES ((uint32_t)(CACHE_AHEAD / BLOCK_PAGE))
#define AHEAD_LEFT (AHEAD_PAGES / 2)  // the next stretch is asked for when no more pages are left before it

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
  uint32_t nr_pages;    // of the run that begins here
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
  pthread_cond_t loaded;  // a load with waiters has ended
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
  uint32_t hand;      // CLOCK: the first page of a run, or `fresh`
  uint32_t run_hand;  // the same for large blocks
  uint32_t reserve;   // pages to keep free or in limbo, between the next two
  uint32_t reserve_min, reserve_max;
  bool starved;  // a miss got no frame while limbo was not empty
  uint32_t free_pages, limbo_pages;
  uint32_t given_pages;                // frames that were given to records
  uint32_t free_mask;                  // bit n: free[n] is not empty
  uint32_t free[BLOCK_PAGES_MAX + 1];  // free runs of n pages; the last: or more
  struct page_queue limbo;             // in order of stamp
  struct page_queue held;              // stamp passed, but pinned
  uint64_t misses, evictions, declined, bypasses;
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
  _Atomic uint32_t nr_pages;  // of all shards: the size; relaxed
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

// ---- creation

// The first page of a stretch at or after page f.
static inline uint32_t ahead_stretch(uint32_t f) { return (f - 1 + AHEAD_PAGES - 1) / AHEAD_PAGES * AHEAD_PAGES + 1; }

// Where the stretch from page f on is asked for: not before the shard is used.
static inline uint32_t ahead_ask_at(const struct shard *sh, uint32_t f) {
  if (f >= sh->fresh + shard_fresh(sh)) return UINT32_MAX;
  return f > sh->first + AHEAD_LEFT ? f - AHEAD_LEFT : sh->first + 1;
}

static uint32_t give_chunk(void *arg);

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
}

static void shard_init(struct shard *sh, uint32_t first, uint32_t end, uint32_t size) {
  (void)pthread_mutex_init(&sh->lock, NULL);
  (void)pthread_cond_init(&sh->loaded, NULL);
  sh->first = sh->fresh = sh->ready = sh->hand = sh->run_hand = first;
  sh->end = end;
  sh->size = size;
  shard_measure(sh);
}

// Bytes of the arrays for so many pages. One page more before the first, and one after the last.
static inline size_t pages_bytes(uint32_t nr) { return ((size_t)nr + 2) * sizeof(struct page); }
static inline size_t marks_bytes(uint32_t nr) { return ((size_t)nr + 1) * sizeof(_Atomic uint32_t); }

// Whether an array of so many bytes is worth huge pages: each shard touches its own part of the array.
static inline bool array_huge(const struct cache_full *c, size_t size) { return size / c->nr_shards >= CACHE_AHEAD; }

// Address space for `most` pages, or for fewer, but at least c->nr_pages.
static enum remixdb_status map_all(struct cache_full *c, uint32_t most) {
  const uint32_t nr = c->nr_pages;
  enum remixdb_status s = mem_reserve((size_t)nr * BLOCK_PAGE, (size_t)most * BLOCK_PAGE, true, &c->map);
  if (s != REMIXDB_OK) return s;
  if (c->map.size / BLOCK_PAGE < most) most = nr;
  const size_t pages = pages_bytes(nr), marks = marks_bytes(nr);
  s = mem_reserve(pages, pages_bytes(most), array_huge(c, pages), &c->page_map);
  if (s == REMIXDB_OK) s = mem_reserve(marks, marks_bytes(most), array_huge(c, marks), &c->mark_map);
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

static inline uint32_t size_now(const struct cache_full *c) {
  return atomic_load_explicit(&c->nr_pages, memory_order_relaxed);
}
size_t cache_size(const struct cache *c) { return (size_t)size_now(cache_full(c)) * BLOCK_PAGE; }

size_t cache_most(const struct cache *c) { return (size_t)cache_full(c)->most * BLOCK_PAGE; }

size_t cache_common(const struct cache *c) { return slots_memory(common(cache_full(c))); }

size_t cache_step(const struct cache *c) { return cache_full(c)->nr_shards * CACHE_AHEAD; }

void cache_destroy(struct cache *pub) {
  if (!pub) return;
  struct cache_full *const c = cache_full(pub);
  for (uint32_t i = 0; c->shards && i < c->nr_shards; i++) {
    (void)pthread_cond_destroy(&c->shards[i].loaded);
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

// ---- pages of a shard; the caller has its lock

static void queue_push(struct page *pages, struct page_queue *q, uint32_t f) {
  pages[f].next = 0;
  if (q->tail) pages[q->tail].next = f;
  else q->head = f;
  q->tail = f;
}

static uint32_t queue_pop(struct page *pages, struct page_queue *q) {
  const uint32_t f = q->head;
  assert(f != 0);
  q->head = pages[f].next;
  if (!q->head) q->tail = 0;
  return f;
}

static inline uint32_t free_class(uint32_t n) { return n < BLOCK_PAGES_MAX ? n : BLOCK_PAGES_MAX; }

static void free_link(struct page *pages, struct shard *sh, uint32_t f, uint32_t n) {
  const uint32_t class = free_class(n);
  struct page *const p = &pages[f];
  p->state = PAGE_FREE;
  p->nr_pages = n;
  p->prev = 0;
  p->next = sh->free[class];
  if (p->next) pages[p->next].prev = f;
  sh->free[class] = f;
  sh->free_mask |= 1u << class;
  pages[f + n - 1].free_len = n;
  sh->free_pages += n;
}

static void free_unlink(struct page *pages, struct shard *sh, uint32_t f) {
  struct page *const p = &pages[f];
  const uint32_t class = free_class(p->nr_pages);
  if (p->next) pages[p->next].prev = p->prev;
  if (p->prev) pages[p->prev].next = p->next;
  else sh->free[class] = p->next;
  if (!sh->free[class]) sh->free_mask &= ~(1u << class);
  pages[f + p->nr_pages - 1].free_len = 0;
  sh->free_pages -= p->nr_pages;
}

// Gives pages back, joined with their free neighbours.
static void free_put(struct page *pages, struct shard *sh, uint32_t f, uint32_t n) {
  uint32_t begin = f, end = f + n;
  assert(n > 0 && f >= sh->first && end <= sh->fresh);
  const uint32_t before = f > sh->first ? pages[f - 1].free_len : 0;
  if (before) {
    begin -= before;
    free_unlink(pages, sh, begin);
    pages[f].state = PAGE_INNER;
  }
  if (end < sh->fresh && pages[end].state == PAGE_FREE) {
    const uint32_t after = end;
    end += pages[after].nr_pages;
    free_unlink(pages, sh, after);
    pages[after].state = PAGE_INNER;
  }
  if (sh->hand > begin && sh->hand < end) sh->hand = begin;
  if (sh->run_hand > begin && sh->run_hand < end) sh->run_hand = begin;
  free_link(pages, sh, begin, end - begin);
}

// Takes n contiguous pages from the shortest free run that has them. 0: there is none.
static uint32_t free_take(struct page *pages, struct shard *sh, uint32_t n) {
  const uint32_t fitting = sh->free_mask >> n << n;
  if (!fitting) return 0;
  const uint32_t f = sh->free[__builtin_ctz(fitting)];
  const uint32_t rest = pages[f].nr_pages - n;
  free_unlink(pages, sh, f);
  if (rest) free_link(pages, sh, f + n, rest);
  return f;
}

static uint32_t fresh_take(struct cache_full *c, struct shard *sh, uint32_t n) {
  const uint32_t f = sh->fresh, left = shard_fresh(sh);
  if (left >= n) {
    sh->fresh += n;
    if (unlikely(sh->fresh >= sh->ask_at)) {
      sh->ask_at = UINT32_MAX;
      sh->asks = true;
      atomic_store_explicit(&c->untold, true, memory_order_relaxed);
    }
    return f;
  }
  if (left == 0) return 0;
  sh->fresh += left;
  free_put(c->pages, sh, f, left);
  return free_take(c->pages, sh, n);
}

// If a reader stays in its epoch for long, because it was preempted or its read is slow, limbo stays full. The reserve
// should last until that reader leaves. So the reserve doubles when it ran out, and otherwise shrinks.
static void shard_tune(struct shard *sh) {
  if (sh->starved) sh->reserve = sh->reserve < sh->reserve_max / 2 ? sh->reserve * 2 : sh->reserve_max;
  else sh->reserve -= (sh->reserve - sh->reserve_min) / 16;
  sh->starved = false;
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

// Frees the frames in limbo that no reader can hold any more.
static void shard_reclaim(struct cache_full *c, struct shard *sh) {
  struct page *const pages = c->pages;
  const uint32_t oldest = sh->limbo.head;
  while (sh->limbo.head && epoch_passed(c->epoch, pages[sh->limbo.head].stamp)) {
    const uint32_t f = queue_pop(pages, &sh->limbo);
    sh->limbo_pages -= pages[f].nr_pages;
    // acquire pairs with the release of the last unpin: the holder's reads come before the next load. Pins taken inside
    // the epoch are visible because the epoch has passed, and no later ones exist (C3).
    if (unlikely(frame_pinned(c, f, memory_order_acquire))) queue_push(pages, &sh->held, f);
    else free_put(pages, sh, f, pages[f].nr_pages);
  }
  if (sh->limbo.head != oldest) shard_tune(sh);
  for (uint32_t i = 0; i < HELD_TRIES && sh->held.head; i++) {
    const uint32_t f = queue_pop(pages, &sh->held);
    if (frame_pinned(c, f, memory_order_acquire)) queue_push(pages, &sh->held, f);
    else free_put(pages, sh, f, pages[f].nr_pages);
  }
}

// Evicts a live frame: takes it out of its slot. The caller stamps the whole batch afterwards.
static void frame_unpublish(struct page *pages, struct shard *sh, uint32_t f) {
  struct page *const p = &pages[f];
  assert(p->state == PAGE_LIVE && atomic_load_explicit(p->slot, memory_order_relaxed) == f);
  // release: the last access to a table that may be closing. For readers, epoch_stamp is the fence after it
  atomic_store_explicit(p->slot, 0, memory_order_release);
  p->state = PAGE_LIMBO;
  queue_push(pages, &sh->limbo, f);
  sh->limbo_pages += p->nr_pages;
  sh->evictions++;
}

// Stamps the frames in limbo from f on.
static void limbo_stamp(struct cache_full *c, uint32_t f) {
  const uint64_t stamp = epoch_stamp(c->epoch);
  for (; f; f = c->pages[f].next) c->pages[f].stamp = stamp;
}

// CLOCK (Corbato 1968). A new block counts as used only after another hit, so a block that is read once leaves on the
// first pass. Evicts ahead of need: a frame that is evicted now is free only after this thread, too, has left its
// epoch.
static void shard_evict_pages(struct cache_full *c, struct shard *sh, uint32_t want) {
  struct page *const pages = c->pages;
  const uint32_t runs_max = want * 4 + 32;  // bounds the time under the lock; the next miss continues
  const uint32_t before = sh->limbo.tail;
  for (uint32_t i = 0, got = 0; i < runs_max && got < want; i++) {
    if (sh->hand >= sh->fresh) sh->hand = sh->first;
    const uint32_t f = sh->hand;
    assert(pages[f].state != PAGE_INNER);
    sh->hand += pages[f].nr_pages;
    if (pages[f].state != PAGE_LIVE) continue;
    if (frame_used(c, f)) {
      frame_clear(c, f);
    } else if (!frame_pinned(c, f, memory_order_relaxed)) {
      frame_unpublish(pages, sh, f);
      got += pages[f].nr_pages;
    }
  }
  const uint32_t from = before ? pages[before].next : sh->limbo.head;
  if (from) limbo_stamp(c, from);
  (void)atomic_fetch_add_explicit(&c->evicted, want, memory_order_relaxed);
}

static void shard_evict(struct cache_full *c, struct shard *sh) {
  const uint32_t ready = sh->free_pages + sh->limbo_pages + shard_fresh(sh);
  const uint32_t lacking = sh->reserve > ready ? sh->reserve - ready : 0;
  shard_evict_pages(c, sh, lacking < BATCH_PAGES ? lacking : BATCH_PAGES);
}

// Checks whether n pages from f on are free, in limbo, or neither used nor pinned. If they are, returns the end of the
// last run among them. If not, returns 0, and sets *blocker_out to the end of the lowest run that is used or pinned.
static uint32_t run_check(const struct cache_full *c, const struct shard *sh, uint32_t f, uint32_t n,
                          uint32_t *blocker_out) {
  const uint32_t until = f + n;
  while (f < until) {
    if (f >= sh->fresh) {
      *blocker_out = sh->first;
      return 0;
    }
    const struct page *const p = &c->pages[f];
    assert(p->state != PAGE_INNER);
    const bool taken = p->state == PAGE_LOADING || p->state == PAGE_OUT || frame_pinned(c, f, memory_order_relaxed) ||
                       (p->state == PAGE_LIVE && frame_used(c, f));
    f += p->nr_pages;
    if (taken) {
      *blocker_out = f;
      return 0;
    }
  }
  return f;
}

// Makes room for a large block when the free pages are not contiguous. CLOCK with two hands (Babaoglu and Joy 1981):
// the front hand clears the used marks, the back hand evicts a stretch of neighbours that have had no hit since.
static void shard_evict_run(struct cache_full *c, struct shard *sh, uint32_t n) {
  struct page *const pages = c->pages;
  const uint32_t size = sh->fresh - sh->first;
  const uint32_t limbo_max = size / 4 > n ? size / 4 : n;
  const uint32_t ahead = size < 256 ? size / 2 : size / 8;
  if (sh->limbo_pages + n > limbo_max) return;  // limbo frees enough soon, or readers stay in their epochs
  for (uint32_t i = 0; i < RUN_TRIES; i++) {
    const uint32_t back = sh->run_hand < sh->fresh ? sh->run_hand : sh->first;
    uint32_t blocker = 0;
    const uint32_t end = run_check(c, sh, back, n, &blocker);
    sh->run_hand = end ? end : blocker;
    for (uint32_t k = back; k < sh->run_hand; k++) {
      const uint32_t front = k + ahead < sh->fresh ? k + ahead : k + ahead - size;
      if (frame_used(c, front)) frame_clear(c, front);
    }
    if (!end) continue;
    const uint32_t before = sh->limbo.tail;
    for (uint32_t f = back; f < end; f += pages[f].nr_pages)
      if (pages[f].state == PAGE_LIVE) frame_unpublish(pages, sh, f);
    const uint32_t from = before ? pages[before].next : sh->limbo.head;
    if (from) limbo_stamp(c, from);
    return;
  }
}

// Takes a frame of n pages, in state PAGE_LOADING. Returns 0 if none is free at once.
static uint32_t frame_take(struct cache_full *c, struct shard *sh, uint32_t n) {
  struct page *const pages = c->pages;
  if (n == 0 || n > BLOCK_PAGES_MAX || n > sh->size) return 0;
  uint32_t f = free_take(pages, sh, n);
  if (!f) f = fresh_take(c, sh, n);
  if (!f) {
    shard_reclaim(c, sh);
    f = free_take(pages, sh, n);
  }
  if (f) {
    pages[f].state = PAGE_LOADING;
    pages[f].nr_pages = n;
    frame_clear(c, f);
  } else if (sh->limbo.head) {
    sh->starved = true;
  }
  if (sh->free_pages + sh->limbo_pages + shard_fresh(sh) < (sh->reserve + 1) / 2) shard_evict(c, sh);
  if (n > 1 && !(sh->free_mask >> n) && shard_fresh(sh) < n) shard_evict_run(c, sh, n);  // also for the next one
  return f;
}

// ---- common slots (C9); the caller has the shard's lock, except for cache_common_frame

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

uint32_t cache_common_frame(const struct cache_table *t, uint32_t block) {
  return cache_slot_frame(slots_frame(common(cache_full(t->cache)), common_key(t, block)));
}

static inline uint32_t slot_now(const struct slot *s) { return atomic_load_explicit(&s->frame, memory_order_relaxed); }

// The slot in the bucket that is empty, or else has the oldest miss. NULL: all have frames.
static struct slot *common_idle(const struct shard *sh, struct slot *bucket) {
  struct slot *idle = NULL;
  uint32_t oldest = 0;
  for (uint32_t i = 0; i < SLOTS_BUCKET; i++) {
    const uint32_t now = slot_now(&bucket[i]), age = ((uint32_t)sh->misses - now) % CACHE_MISSED;
    if (now == 0) return &bucket[i];
    if (!(now & CACHE_MISSED) || (idle && age <= oldest)) continue;
    idle = &bucket[i];
    oldest = age;
  }
  return idle;
}

// Evicts a block of the bucket, all of whose slots have frames: one that was not used since the last such eviction, and
// is not pinned, if there is one.
static struct slot *common_evict(struct cache_full *c, struct shard *sh, struct slot *bucket) {
  struct slot *victim = NULL;
  for (uint32_t i = 0; i < SLOTS_BUCKET; i++) {
    const uint32_t f = slot_now(&bucket[i]);
    if (frame_used(c, f)) frame_clear(c, f);
    else if (!victim && !frame_pinned(c, f, memory_order_relaxed)) victim = &bucket[i];
  }
  if (!victim) victim = &bucket[sh->misses % SLOTS_BUCKET];
  const uint32_t f = slot_now(victim);
  frame_unpublish(c->pages, sh, f);
  limbo_stamp(c, f);
  return victim;
}

// A slot for the key, which names no frame.
static struct slot *common_take(struct cache_full *c, struct shard *sh, struct slots_key k) {
  const struct slots *const all = common(c);
  struct slot *const bucket = slots_bucket(all, k.hash), *s = slots_find(all, k);
  if (!s) s = common_idle(sh, bucket);
  return s ? s : common_evict(c, sh, bucket);
}

// ---- records without their blocks

// records_room.give
static uint32_t give_chunk(void *arg) {
  struct cache_full *const c = arg;
  struct shard
      *const sh = &c->shards[atomic_fetch_add_explicit(&c->giving, 1, memory_order_relaxed) & (c->nr_shards - 1)];
  const uint32_t most = (uint32_t)((uint64_t)sh->size * RECORDS_PART_NUM / RECORDS_PART_DEN);
  (void)pthread_mutex_lock(&sh->lock);
  const uint32_t f = sh->given_pages + RECORDS_CHUNK_PAGES <= most ? frame_take(c, sh, RECORDS_CHUNK_PAGES) : 0;
  if (f) sh->given_pages += RECORDS_CHUNK_PAGES;
  (void)pthread_mutex_unlock(&sh->lock);
  return f;
}

static void chunk_back(struct cache_full *c, uint32_t frame) {
  struct shard *sh = c->shards;
  while (frame >= sh->end) sh++;
  (void)pthread_mutex_lock(&sh->lock);
  sh->given_pages -= RECORDS_CHUNK_PAGES;
  free_put(c->pages, sh, frame, RECORDS_CHUNK_PAGES);
  (void)pthread_mutex_unlock(&sh->lock);
}

// A turn of the cache has ended, in which so many pages were evicted: finds out whether its records are idle.
static void turn_end(struct cache_full *c, uint64_t evicted) {
  const uint64_t used = records_used(c->pub.records);
  const uint64_t before = atomic_exchange_explicit(&c->used, used, memory_order_relaxed);
  atomic_store_explicit(&c->idle, used - before < evicted / RECORDS_BUSY, memory_order_relaxed);
}

// Call it after a load. A turn ends when as many pages were evicted as the cache has. While records are idle, each call
// takes one chunk back for blocks.
static void records_turn(struct cache_full *c) {
  const memory_order relaxed = memory_order_relaxed;
  uint64_t evicted = atomic_load_explicit(&c->evicted, relaxed);
  if (!c->pub.records) return;
  const bool over = unlikely(evicted > size_now(c));
  if (over && atomic_compare_exchange_strong_explicit(&c->evicted, &evicted, 0, relaxed, relaxed)) turn_end(c, evicted);
  if (likely(!atomic_load_explicit(&c->idle, relaxed))) return;
  const uint32_t frame = records_yield(c->pub.records);
  if (frame) chunk_back(c, frame);
}

// ---- another size

#define SHRINK_TRIES 200u  // waits for readers without a page that has become free

// Takes back what was withdrawn, as far as the size allows.
static void shard_grow(struct cache_full *c, struct shard *sh) {
  while (sh->out.head && sh->fresh - sh->first - sh->withdrawn + c->pages[sh->out.head].nr_pages <= sh->size) {
    const uint32_t f = queue_pop(c->pages, &sh->out), n = c->pages[f].nr_pages;
    sh->withdrawn -= n;
    free_put(c->pages, sh, f, n);
  }
}

// Withdraws pages until no more are used than the size allows, as far as there are free ones. Evicts others, for the
// next call. Returns how many are still too many.
static uint32_t shard_shrink(struct cache_full *c, struct shard *sh) {
  struct page *const pages = c->pages;
  shard_reclaim(c, sh);
  for (;;) {
    const uint32_t used = sh->fresh - sh->first - sh->withdrawn, over = used > sh->size ? used - sh->size : 0;
    uint32_t n = over < BLOCK_PAGES_MAX ? over : BLOCK_PAGES_MAX, f = 0;
    for (; n > 0 && !(f = free_take(pages, sh, n)); n--) {}
    if (!f) {
      if (over) shard_evict_pages(c, sh, over < BATCH_PAGES ? over : BATCH_PAGES);
      return over;
    }
    pages[f].state = PAGE_OUT;
    pages[f].nr_pages = n;
    queue_push(pages, &sh->out, f);
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

static inline struct slots_key slot_key(const struct slot *s) {
  const struct cache_table *const t = atomic_load_explicit(&s->table, memory_order_relaxed);
  return common_key(t, atomic_load_explicit(&s->block, memory_order_relaxed));
}

// Gives all blocks that use common slots a slot among others. Those for which there is none are evicted. The caller has
// all locks.
static void common_move(struct cache_full *c, const struct slots *from, const struct slots *to) {
  struct page *const pages = c->pages;
  for (uint32_t i = 0; i < c->nr_shards; i++) {
    struct shard *const sh = &c->shards[i];
    for (uint32_t f = sh->first; f < sh->fresh; f += pages[f].nr_pages) {
      if (pages[f].state != PAGE_LIVE || !slots_have(from, pages[f].slot)) continue;
      const void *const was = (const uint8_t *)pages[f].slot - offsetof(struct slot, frame);
      const struct slots_key k = slot_key(was);
      struct slot *const s = common_idle(sh, slots_bucket(to, k.hash));
      if (s) {
        slots_set(s, k, f);
        pages[f].slot = &s->frame;
      } else {
        frame_unpublish(pages, sh, f);
        limbo_stamp(c, f);
      }
    }
  }
}

// Makes more common slots for a cache of nr pages, if it has outgrown them. Readers of the old ones find frames there
// that were evicted meanwhile, but these are not used for another block before such readers have left their epochs
// (C2). Fails with REMIXDB_NOMEM.
static enum remixdb_status common_grow(struct cache_full *c, uint32_t nr) {
  struct slots *const old = common(c);
  if (!old || nr / 2 <= old->nr_frames) return REMIXDB_OK;
  struct slots *const more = slots_create(nr, old);
  if (!more) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < c->nr_shards; i++) (void)pthread_mutex_lock(&c->shards[i].lock);
  common_move(c, old, more);
  atomic_store_explicit(&c->pub.common, more, memory_order_release);
  for (uint32_t i = c->nr_shards; i > 0; i--) (void)pthread_mutex_unlock(&c->shards[i - 1].lock);
  return REMIXDB_OK;
}

enum remixdb_status cache_resize(struct cache *pub, size_t size) {
  struct cache_full *const c = cache_full(pub);
  const uint32_t nr = pages_of(size), was = size_now(c);
  if (was == 0 || nr < c->nr_shards)
    return err_set(REMIXDB_INVALID, "a block cache of %zu bytes cannot become one of %zu", cache_size(pub), size);
  if (nr > c->most)
    return err_set(REMIXDB_INVALID, "the block cache can have %zu bytes at most, not %zu", cache_most(pub), size);
  uint32_t *chunks = NULL, nr_chunks = 0;
  enum remixdb_status s = common_grow(c, nr);
  if (s == REMIXDB_OK && c->pub.records) s = records_resize(c->pub.records, nr, &chunks, &nr_chunks);
  if (s != REMIXDB_OK) return s;
  for (uint32_t i = 0; i < nr_chunks; i++) chunk_back(c, chunks[i]);
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

// After a frame was taken; without locks.
static inline void ahead_ask(struct cache_full *c) {
  if (likely(!atomic_load_explicit(&c->untold, memory_order_relaxed)) || !c->tell) return;
  if (atomic_exchange_explicit(&c->untold, false, memory_order_relaxed)) c->tell(c->tell_arg);
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
    if (ahead_take(&c->shards[i], &from, &to))
      return mem_populate(c->pub.pages + (size_t)(from - 1) * BLOCK_PAGE, (size_t)(to - from) * BLOCK_PAGE);
  return false;
}

// ---- blocks

static inline struct shard *shard_of(struct cache_full *c, const struct cache_table *t, uint32_t block) {
  return &c->shards[block_hash(t, block) >> 60 & (c->nr_shards - 1)];
}
_Static_assert(SHARDS_MAX <= 16, "four bits of the hash choose the shard");

// Puts the count of misses into the slot of a block without a frame. Returns what the slot had. Without room in the
// common slots it puts it nowhere.
static uint32_t miss_exchange(const struct cache_full *c, struct shard *sh, const struct cache_table *t, uint32_t block,
                              uint32_t now) {
  const memory_order relaxed = memory_order_relaxed;
  if (likely(t->slots != NULL)) return atomic_exchange_explicit(&t->slots[block], now, relaxed);
  const struct slots_key k = common_key(t, block);
  struct slot *s = slots_find(common(c), k);
  const uint32_t was = s ? slot_now(s) : 0;
  if (!s) s = common_idle(sh, slots_bucket(common(c), k.hash));
  if (s) slots_set(s, k, now);
  return was;
}

// Whether the shard has room for a block of nr_pages without an eviction.
static inline bool shard_roomy(const struct shard *sh, uint32_t nr_pages) {
  const uint32_t fresh = shard_fresh(sh);
  return fresh >= nr_pages || sh->free_pages + sh->limbo_pages + fresh > sh->reserve;
}

// Tells whether a missed block gets a frame (C7). If not, records the miss in the block's slot. lone: as in cache_get.
static bool shard_admits(const struct cache_full *c, struct shard *sh, const struct cache_table *t, uint32_t block,
                         uint32_t nr_pages, bool lone) {
  if (shard_roomy(sh, nr_pages) || (!lone && atomic_load_explicit(&c->pub.disk, memory_order_relaxed))) return true;
  const uint32_t now = (uint32_t)sh->misses | CACHE_MISSED, was = miss_exchange(c, sh, t, block, now);
  const uint32_t within = (sh->size - sh->given_pages) / nr_pages / ADMIT_PART;
  if (was && (now - was) % CACHE_MISSED <= (within ? within : 1)) return true;
  sh->declined++;
  return false;
}

static void load_begin(struct shard *sh, struct cache_load *load, const struct cache_table *t, uint32_t block) {
  *load = (struct cache_load){.table = t, .block = block, .seq = sh->load_seq++, .nr_waiters = 0, .next = sh->loads};
  sh->loads = load;
}

static void load_end(struct shard *sh, struct cache_load *load) {
  struct cache_load **p = &sh->loads;
  while (*p != load) p = &(*p)->next;
  *p = load->next;
  if (load->nr_waiters) (void)pthread_cond_broadcast(&sh->loaded);
}

static struct cache_load *load_find(const struct shard *sh, const struct cache_table *t, uint32_t block) {
  struct cache_load *load = sh->loads;
  while (load && (load->block != block || load->table != t)) load = load->next;
  return load;
}

// Waits until another thread's read has ended or failed. That thread takes no lock meanwhile, and does not wait for the
// epoch of this one.
static void load_wait(struct shard *sh, struct cache_load *load, const struct cache_table *t, uint32_t block) {
  const uint64_t seq = load->seq;
  load->nr_waiters++;
  do cond_wait(&sh->loaded, &sh->lock);
  while ((load = load_find(sh, t, block)) && load->seq == seq);
}

static void frame_publish(struct cache_full *c, struct shard *sh, const struct cache_table *t, uint32_t block,
                          uint32_t f) {
  struct slot *const common = t->slots ? NULL : common_take(c, sh, common_key(t, block));
  _Atomic uint32_t *const slot = common ? &common->frame : &t->slots[block];
  assert(cache_slot_frame(atomic_load_explicit(slot, memory_order_relaxed)) == 0);
  c->pages[f].state = PAGE_LIVE;
  c->pages[f].slot = slot;
  // release: readers see the whole block
  if (common) slots_set(common, common_key(t, block), f);
  else atomic_store_explicit(slot, f, memory_order_release);
}

static void block_set(const struct cache *c, struct cache_block *b, uint32_t frame) {
  b->data = cache_frame_data(c, frame);
  b->frame = frame;
}

enum remixdb_status cache_block_reserve(struct cache_block *b, uint32_t nr_pages) {
  const uint32_t size = nr_pages * BLOCK_PAGE;
  if (b->own_size >= size) return REMIXDB_OK;
  mem_free(b->own);
  b->own_size = 0;
  b->own = mem_alloc_aligned(BLOCK_PAGE, size);
  if (!b->own) return REMIXDB_NOMEM;
  b->own_size = size;
  return REMIXDB_OK;
}

// Loads a block. A timed load tells whether loads come from the disk. c may be NULL when not timed.
static enum remixdb_status block_load(struct cache_full *c, bool timed, uint32_t block, uint32_t nr_pages,
                                      cache_load_fn load, void *arg, uint8_t *buf, bool own) {
  if (likely(!timed)) return load(arg, block, nr_pages, buf, own);
  const uint64_t began = time_ns();
  const enum remixdb_status s = load(arg, block, nr_pages, buf, own);
  const bool disk = time_ns() - began > nr_pages * c->pub.disk_ns;
  if (disk != atomic_load_explicit(&c->pub.disk, memory_order_relaxed))
    atomic_store_explicit(&c->pub.disk, disk, memory_order_relaxed);
  return s;
}

static enum remixdb_status block_load_own(struct cache_full *c, bool timed, struct cache_block *b, uint32_t block,
                                          uint32_t nr_pages, cache_load_fn load, void *arg) {
  enum remixdb_status s = cache_block_reserve(b, nr_pages);
  if (s == REMIXDB_OK) s = block_load(c, timed, block, nr_pages, load, arg, b->own, true);
  if (s == REMIXDB_OK) b->data = b->own;
  return s;
}

void cache_fill_end(struct cache_table *t, uint32_t block, uint32_t nr_pages, struct cache_block *b,
                    struct cache_fill *fill, bool good) {
  if (!fill->frame) {
    if (good) b->data = b->own;
    return;
  }
  struct cache_full *const c = cache_full(t->cache);
  struct shard *const sh = shard_of(c, t, block);
  (void)pthread_mutex_lock(&sh->lock);
  if (good) frame_publish(c, sh, t, block, fill->frame);
  else free_put(c->pages, sh, fill->frame, nr_pages);  // no reader has seen it
  load_end(sh, &fill->load);
  (void)pthread_mutex_unlock(&sh->lock);
  ahead_ask(c);
  if (good) block_set(&c->pub, b, fill->frame);
}

enum remixdb_status cache_get(struct cache_table *t, uint32_t block, uint32_t nr_pages, bool lone, cache_load_fn load,
                              void *arg, struct cache_block *b) {
  cache_block_drop(t, b);
  if (!t->cache) return block_load_own(NULL, false, b, block, nr_pages, load, arg);
  assert(block < t->nr_pages);
  uint32_t f;
  const uint8_t *const hit = cache_hit(t, block, &f);
  if (likely(hit != NULL)) {
    b->data = hit;
    b->frame = f;
    return REMIXDB_OK;
  }

  struct cache_full *const c = cache_full(t->cache);
  struct shard *const sh = shard_of(c, t, block);
  struct cache_fill self;
  (void)pthread_mutex_lock(&sh->lock);
  // Slots change under the lock only, and a frame in a slot stays whole until this thread's epoch ends
  f = cache_frame(t, block);
  struct cache_load *other = f ? NULL : load_find(sh, t, block);
  if (other) {
    load_wait(sh, other, t, block);
    f = cache_frame(t, block);
    other = f ? NULL : load_find(sh, t, block);  // that read failed, and no thread waits twice
  }
  if (f) {
    (void)pthread_mutex_unlock(&sh->lock);
    cache_frame_touch(&c->pub, f);
    block_set(&c->pub, b, f);
    return REMIXDB_OK;
  }
  sh->misses++;
  const bool timed = sh->misses % LOADS_TIMED == 0;
  const bool wanted = !other && shard_admits(c, sh, t, block, nr_pages, lone);
  f = wanted ? frame_take(c, sh, nr_pages) : 0;
  if (!f) {
    sh->bypasses += wanted || other;
    (void)pthread_mutex_unlock(&sh->lock);
    return block_load_own(c, timed, b, block, nr_pages, load, arg);
  }
  load_begin(sh, &self.load, t, block);
  (void)pthread_mutex_unlock(&sh->lock);

  self.frame = f;
  const enum remixdb_status s = block_load(c, timed, block, nr_pages, load, arg,
                                           c->pub.pages + (size_t)(f - 1) * BLOCK_PAGE, false);
  cache_fill_end(t, block, nr_pages, b, &self, s == REMIXDB_OK);
  records_turn(c);
  return s;
}

enum cache_fill_begun cache_fill_begin(struct cache_table *t, uint32_t block, uint32_t nr_pages, struct cache_block *b,
                                       struct cache_fill *fill) {
  cache_block_drop(t, b);
  fill->frame = 0;
  if (t->cache) {
    assert(block < t->nr_pages);
    struct cache_full *const c = cache_full(t->cache);
    struct shard *const sh = shard_of(c, t, block);
    (void)pthread_mutex_lock(&sh->lock);
    // as in cache_get
    const uint32_t f = cache_frame(t, block);
    const bool other = !f && load_find(sh, t, block);
    if (!f && !other) {
      sh->misses++;
      const bool wanted = shard_admits(c, sh, t, block, nr_pages, false);
      fill->frame = wanted ? frame_take(c, sh, nr_pages) : 0;
      if (fill->frame) load_begin(sh, &fill->load, t, block);
      else sh->bypasses += wanted;
    }
    (void)pthread_mutex_unlock(&sh->lock);
    if (other) return CACHE_FILL_LATER;
    if (f) {
      cache_frame_touch(&c->pub, f);
      block_set(&c->pub, b, f);
      return CACHE_FILL_HIT;
    }
    if (fill->frame) {
      fill->buf = c->pub.pages + (size_t)(fill->frame - 1) * BLOCK_PAGE;
      return CACHE_FILL_READ;
    }
  }
  if (cache_block_reserve(b, nr_pages) != REMIXDB_OK) return CACHE_FILL_LATER;  // cache_get tries again, and reports it
  fill->buf = b->own;
  return CACHE_FILL_READ;
}

bool cache_room(struct cache_table *t, uint32_t block, uint32_t nr_pages) {
  if (!t->cache) return false;
  struct shard *const sh = shard_of(cache_full(t->cache), t, block);
  (void)pthread_mutex_lock(&sh->lock);
  const bool roomy = shard_roomy(sh, nr_pages);
  (void)pthread_mutex_unlock(&sh->lock);
  return roomy;
}

static void block_offer(struct cache_table *t, uint32_t block, uint32_t nr_pages, const uint8_t *data, bool missed) {
  assert(block < t->nr_pages);
  struct cache_full *const c = cache_full(t->cache);
  struct shard *const sh = shard_of(c, t, block);
  struct cache_load self;
  (void)pthread_mutex_lock(&sh->lock);
  sh->misses += missed;
  const bool lacks = !cache_frame(t, block) && !load_find(sh, t, block);
  const bool wanted = lacks && (!missed || shard_admits(c, sh, t, block, nr_pages, false));
  const uint32_t f = wanted ? frame_take(c, sh, nr_pages) : 0;
  sh->bypasses += missed && wanted && !f;
  if (f) load_begin(sh, &self, t, block);
  (void)pthread_mutex_unlock(&sh->lock);
  if (!f) return;

  memcpy(c->pub.pages + (size_t)(f - 1) * BLOCK_PAGE, data, (size_t)nr_pages * BLOCK_PAGE);

  (void)pthread_mutex_lock(&sh->lock);
  frame_publish(c, sh, t, block, f);
  load_end(sh, &self);
  (void)pthread_mutex_unlock(&sh->lock);
  ahead_ask(c);
}

void cache_offer(struct cache_table *t, uint32_t block, uint32_t nr_pages, const uint8_t *data) {
  if (t->cache && !cache_has(t, block)) block_offer(t, block, nr_pages, data, false);
}

void cache_offer_missed(struct cache_table *t, uint32_t block, uint32_t nr_pages, const uint8_t *data) {
  if (t->cache) block_offer(t, block, nr_pages, data, true);
}

const uint8_t *cache_prefetch(const struct cache_table *t, uint32_t block) {
  const uint32_t frame = t->cache ? cache_frame(t, block) : 0;
  if (frame == 0) return NULL;
  prefetch_write((const void *)&t->cache->marks[frame]);
  const uint8_t *const data = cache_frame_data(t->cache, frame);
  prefetch(data);
  return data;
}

void cache_block_fini(struct cache_table *t, struct cache_block *b) {
  assert(t || !b->pinned);
  cache_block_drop(t, b);
  mem_free(b->own);
  b->own = NULL;
  b->own_size = 0;
}

// ---- tables

// Whether a table of nr_pages has its own slots (C9). Counts them.
static bool own_take(struct cache_full *c, uint32_t nr_pages) {
  const uint64_t part = (uint64_t)CACHE_OWN * size_now(c), most = part > CACHE_OWN_LEAST ? part : CACHE_OWN_LEAST;
  if (unlikely(atomic_load_explicit(&budget_starved, memory_order_relaxed))) return false;
  const uint64_t before = atomic_fetch_add_explicit(&c->own, nr_pages, memory_order_relaxed);
  if (before + nr_pages <= most) return true;
  atomic_fetch_sub_explicit(&c->own, nr_pages, memory_order_relaxed);
  return false;
}

// Makes the common slots, if there are none.
static enum remixdb_status common_make(struct cache_full *c) {
  struct slots *none = NULL, *made;
  if (common(c)) return REMIXDB_OK;
  if (!(made = slots_create(size_now(c), NULL))) return REMIXDB_NOMEM;
  if (!atomic_compare_exchange_strong_explicit(&c->pub.common, &none, made, memory_order_acq_rel, memory_order_acquire))
    slots_destroy(made);  // another thread was quicker
  return REMIXDB_OK;
}

enum remixdb_status cache_table_init(struct cache_table *t, struct cache *pub, uint32_t nr_pages, uint64_t id) {
  struct cache_full *const c = cache_full(pub);
  *t = (struct cache_table){.cache = NULL, .slots = NULL, .nr_pages = nr_pages, .id = id};
  if (!c || size_now(c) == 0) return REMIXDB_OK;
  enum remixdb_status s = REMIXDB_OK;
  if (!own_take(c, nr_pages)) {
    s = common_make(c);
  } else if (!(t->slots = mem_calloc(nr_pages, sizeof(*t->slots)))) {
    atomic_fetch_sub_explicit(&c->own, nr_pages, memory_order_relaxed);
    s = REMIXDB_NOMEM;
  }
  if (s == REMIXDB_OK) t->cache = pub;
  return s;
}

// Takes a frame from a table that ends. common: a common slot names it.
static void frame_forget(struct cache_full *c, struct shard *sh, uint32_t f, bool common) {
  struct page *const p = &c->pages[f];
  const bool pinned = frame_pinned(c, f, memory_order_acquire);
  assert(!pinned);
  if (unlikely(common)) {
    frame_unpublish(c->pages, sh, f);
    limbo_stamp(c, f);
    return;
  }
  atomic_store_explicit(p->slot, 0, memory_order_relaxed);
  if (likely(!pinned)) {
    free_put(c->pages, sh, f, p->nr_pages);
  } else {  // a caller's mistake: the frame stays whole for its reader
    p->state = PAGE_LIMBO;
    queue_push(c->pages, &sh->held, f);
  }
}

void cache_table_fini(struct cache_table *t) {
  if (!t->cache) return;
  struct cache_full *const c = cache_full(t->cache);
  for (uint32_t block = 0; block < t->nr_pages; block++) {
    // acquire: a thread that emptied the slot is done with it before the slots are freed
    if (cache_frame(t, block) == 0) continue;
    struct shard *const sh = shard_of(c, t, block);
    (void)pthread_mutex_lock(&sh->lock);
    const uint32_t f = cache_frame(t, block);  // an eviction may have come first
    if (f) frame_forget(c, sh, f, !t->slots);
    (void)pthread_mutex_unlock(&sh->lock);
  }
  if (t->slots) atomic_fetch_sub_explicit(&c->own, t->nr_pages, memory_order_relaxed);
  mem_free(t->slots);
  t->slots = NULL;
  t->cache = NULL;
}

void cache_stats(const struct cache *pub, struct cache_stats *out) {
  struct cache_full *const c = cache_full(pub);
  *out = (struct cache_stats){.size = cache_size(pub)};
  for (uint32_t i = 0; i < c->nr_shards; i++) {
    struct shard *const sh = &c->shards[i];
    (void)pthread_mutex_lock(&sh->lock);
    out->used += (uint64_t)(sh->fresh - sh->first - sh->withdrawn - sh->free_pages - sh->limbo_pages) * BLOCK_PAGE;
    out->touched += (uint64_t)(sh->fresh - sh->first - sh->withdrawn) * BLOCK_PAGE;
    out->misses += sh->misses;
    out->evictions += sh->evictions;
    out->declined += sh->declined;
    out->bypasses += sh->bypasses;
    (void)pthread_mutex_unlock(&sh->lock);
  }
  if (!c->pub.records) return;
  struct records_stats r;
  records_stats(c->pub.records, &r);
  out->record_bytes = r.bytes;
  out->record_hits = r.hits;
  out->records_kept = r.kept;
}
