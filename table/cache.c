// SPDX-License-Identifier: Apache-2.0
#include "table/cache.h"

#include <assert.h>

#define SHARDS_MAX 16u
#define SHARD_BYTES_MIN ((size_t)8 << 20)  // a shard more is worth it for this much
#define BATCH_PAGES 64u                    // evicted together, so that one look at all epochs serves them all
#define RESERVE_PART 8u                    // kept free or in limbo at most: this part of a shard
#define ADMIT_PART 4u   // of the misses that a shard has room for: a block missed again within so many gets a frame
#define LOADS_TIMED 8u  // one in so many loads is timed
#define RUN_TRIES 32u   // stretches looked at for one large block
#define HELD_TRIES 4u   // frames found pinned that are looked at again each time

// What a page is. Only the first page of a run (a frame, or free pages side by side) says more than PAGE_INNER.
enum page_state {
  PAGE_INNER,
  PAGE_FREE,
  PAGE_LOADING,  // a frame that one thread fills, not in a slot yet
  PAGE_LIVE,     // a frame in a slot
  PAGE_LIMBO,    // evicted, its epoch may not have passed; or passed, but pinned
};

// One per page, guarded by the shard's lock.
struct page {
  uint8_t state;
  uint32_t nr_pages;    // of the run that begins here
  uint32_t free_len;    // length of the free run that ends here, or 0
  uint32_t next, prev;  // page numbers in the list the run is in; 0 ends it
  union {
    _Atomic uint32_t *slot;  // live: where it is published
    uint64_t stamp;          // in limbo. Nothing points to the table any more
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
  uint32_t first, end;  // its pages
  // pages from here to the end were never used, so that their memory is not touched before it is needed
  uint32_t fresh;
  uint32_t hand;      // CLOCK: the first page of a run, or `fresh`
  uint32_t run_hand;  // the same for large blocks
  uint32_t reserve;   // pages kept free or in limbo: between the two below
  uint32_t reserve_min, reserve_max;
  bool starved;  // there was no frame to be had while limbo could not be emptied
  uint32_t free_pages, limbo_pages;
  uint32_t free_mask;                  // bit n: free[n] is not empty
  uint32_t free[BLOCK_PAGES_MAX + 1];  // free runs of n pages, the last: or more
  struct page_queue limbo;             // in order of stamp
  struct page_queue held;              // stamp passed, but pinned
  uint64_t misses, evictions, declined, bypasses;
};

struct cache_full {
  struct cache pub;
  struct page *pages;  // by page number, which begins at 1
  struct epoch *epoch;
  _Atomic bool disk;  // the last load that was timed was the disk's. A guess, relaxed
  uint32_t nr_pages;
  uint32_t nr_shards;  // a power of two
  struct shard *shards;
  struct mem_map map;
};

static inline struct cache_full *cache_full(const struct cache *c) { return (struct cache_full *)(uintptr_t)c; }

// ---- creation

static void shard_init(struct shard *s, uint32_t first, uint32_t end) {
  (void)pthread_mutex_init(&s->lock, NULL);
  (void)pthread_cond_init(&s->loaded, NULL);
  s->first = s->fresh = s->hand = s->run_hand = first;
  s->end = end;
  const uint32_t part = (end - first) / RESERVE_PART;
  s->reserve_max = part > 0 ? part : 1;
  s->reserve_min = s->reserve = part > BATCH_PAGES ? BATCH_PAGES : s->reserve_max;
}

enum remixdb_status cache_create(size_t size, struct epoch *epoch, struct cache **out) {
  *out = NULL;
  struct cache_full *const c = mem_calloc(1, sizeof(*c));
  if (!c) return REMIXDB_NOMEM;
  const size_t nr = size / BLOCK_PAGE;
  c->epoch = epoch;
  c->pub.disk_ns = CACHE_DISK_NS;
  c->nr_pages = nr < UINT32_MAX / 2 ? (uint32_t)nr : UINT32_MAX / 2;
  if (c->nr_pages > 0) {
    uint32_t nr_shards = 1;
    while (nr_shards < SHARDS_MAX && size / SHARD_BYTES_MIN >= (size_t)nr_shards * 2) nr_shards *= 2;
    // one before the first, and one after the last to be looked at
    c->pages = mem_calloc((size_t)c->nr_pages + 2, sizeof(*c->pages));
    c->pub.marks = mem_calloc((size_t)c->nr_pages + 1, sizeof(*c->pub.marks));
    c->shards = mem_alloc_aligned(CACHE_LINE, nr_shards * sizeof(*c->shards));
    if (!c->pages || !c->pub.marks || !c->shards || mem_map((size_t)c->nr_pages * BLOCK_PAGE, &c->map) != REMIXDB_OK) {
      cache_destroy(&c->pub);
      return REMIXDB_NOMEM;
    }
    c->pub.pages = c->map.ptr;
    memset(c->shards, 0, nr_shards * sizeof(*c->shards));
    for (uint32_t i = 0; i < nr_shards; i++)
      shard_init(&c->shards[i], (uint32_t)((uint64_t)c->nr_pages * i / nr_shards) + 1,
                 (uint32_t)((uint64_t)c->nr_pages * (i + 1) / nr_shards) + 1);
    c->nr_shards = nr_shards;
  }
  *out = &c->pub;
  return REMIXDB_OK;
}

size_t cache_size(const struct cache *c) { return (size_t)cache_full(c)->nr_pages * BLOCK_PAGE; }

void cache_destroy(struct cache *pub) {
  if (!pub) return;
  struct cache_full *const c = cache_full(pub);
  for (uint32_t i = 0; i < c->nr_shards; i++) {
    (void)pthread_cond_destroy(&c->shards[i].loaded);
    (void)pthread_mutex_destroy(&c->shards[i].lock);
  }
  mem_unmap(&c->map);
  mem_free(c->shards);
  mem_free(c->pub.marks);
  mem_free(c->pages);
  mem_free(c);
}

// ---- pages of a shard; its lock is held

static void queue_push(struct page *pages, struct page_queue *q, uint32_t f) {
  pages[f].next = 0;
  if (q->tail) pages[q->tail].next = f;
  else q->head = f;
  q->tail = f;
}

static uint32_t queue_pop(struct page *pages, struct page_queue *q) {
  const uint32_t f = q->head;
  q->head = pages[f].next;
  if (!q->head) q->tail = 0;
  return f;
}

static inline uint32_t free_class(uint32_t n) { return n < BLOCK_PAGES_MAX ? n : BLOCK_PAGES_MAX; }

static void free_link(struct page *pages, struct shard *s, uint32_t f, uint32_t n) {
  const uint32_t class = free_class(n);
  struct page *const p = &pages[f];
  p->state = PAGE_FREE;
  p->nr_pages = n;
  p->prev = 0;
  p->next = s->free[class];
  if (p->next) pages[p->next].prev = f;
  s->free[class] = f;
  s->free_mask |= 1u << class;
  pages[f + n - 1].free_len = n;
  s->free_pages += n;
}

static void free_unlink(struct page *pages, struct shard *s, uint32_t f) {
  struct page *const p = &pages[f];
  const uint32_t class = free_class(p->nr_pages);
  if (p->next) pages[p->next].prev = p->prev;
  if (p->prev) pages[p->prev].next = p->next;
  else s->free[class] = p->next;
  if (!s->free[class]) s->free_mask &= ~(1u << class);
  pages[f + p->nr_pages - 1].free_len = 0;
  s->free_pages -= p->nr_pages;
}

// Gives pages back, joined with what is free beside them.
static void free_put(struct page *pages, struct shard *s, uint32_t f, uint32_t n) {
  uint32_t begin = f, end = f + n;
  const uint32_t before = f > s->first ? pages[f - 1].free_len : 0;
  if (before) {
    begin -= before;
    free_unlink(pages, s, begin);
    pages[f].state = PAGE_INNER;
  }
  if (end < s->fresh && pages[end].state == PAGE_FREE) {
    const uint32_t after = end;
    end += pages[after].nr_pages;
    free_unlink(pages, s, after);
    pages[after].state = PAGE_INNER;
  }
  if (s->hand > begin && s->hand < end) s->hand = begin;
  if (s->run_hand > begin && s->run_hand < end) s->run_hand = begin;
  free_link(pages, s, begin, end - begin);
}

// n pages side by side out of the shortest free run that has them; 0 when there are none.
static uint32_t free_take(struct page *pages, struct shard *s, uint32_t n) {
  const uint32_t fitting = s->free_mask >> n << n;
  if (!fitting) return 0;
  const uint32_t f = s->free[__builtin_ctz(fitting)];
  const uint32_t rest = pages[f].nr_pages - n;
  free_unlink(pages, s, f);
  if (rest) free_link(pages, s, f + n, rest);
  return f;
}

static uint32_t fresh_take(struct page *pages, struct shard *s, uint32_t n) {
  const uint32_t f = s->fresh, left = s->end - f;
  if (left >= n) {
    s->fresh += n;
    return f;
  }
  if (left == 0) return 0;
  s->fresh = s->end;
  free_put(pages, s, f, left);
  return free_take(pages, s, n);
}

// A reader that stays in its epoch (its processor was taken away, or its read is slow) keeps all of limbo. The reserve
// is to last for as long as that takes: it doubles when it did not, and shrinks while it does.
static void shard_tune(struct shard *s) {
  if (s->starved) s->reserve = s->reserve < s->reserve_max / 2 ? s->reserve * 2 : s->reserve_max;
  else s->reserve -= (s->reserve - s->reserve_min) / 16;
  s->starved = false;
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

// Takes back from limbo what no reader can hold any more.
static void shard_reclaim(struct cache_full *c, struct shard *s) {
  struct page *const pages = c->pages;
  const uint32_t oldest = s->limbo.head;
  while (s->limbo.head && epoch_passed(c->epoch, pages[s->limbo.head].stamp)) {
    const uint32_t f = queue_pop(pages, &s->limbo);
    s->limbo_pages -= pages[f].nr_pages;
    // acquire: pairs with the release of the last unpin, so that the holder's reads come before the next filling. Pins
    // taken inside the epoch are seen because the epoch has passed, and there can be no later ones (C3).
    if (unlikely(frame_pinned(c, f, memory_order_acquire))) queue_push(pages, &s->held, f);
    else free_put(pages, s, f, pages[f].nr_pages);
  }
  if (s->limbo.head != oldest) shard_tune(s);
  for (uint32_t i = 0; i < HELD_TRIES && s->held.head; i++) {
    const uint32_t f = queue_pop(pages, &s->held);
    if (frame_pinned(c, f, memory_order_acquire)) queue_push(pages, &s->held, f);
    else free_put(pages, s, f, pages[f].nr_pages);
  }
}

// Takes a live frame out of its slot. The caller stamps it once all of its batch are out.
static void frame_unpublish(struct page *pages, struct shard *s, uint32_t f) {
  struct page *const p = &pages[f];
  assert(p->state == PAGE_LIVE && atomic_load_explicit(p->slot, memory_order_relaxed) == f);
  // epoch_stamp is the fence after it for readers; release: the last touch of a table that may be on its way out
  atomic_store_explicit(p->slot, 0, memory_order_release);
  p->state = PAGE_LIMBO;
  queue_push(pages, &s->limbo, f);
  s->limbo_pages += p->nr_pages;
  s->evictions++;
}

// Stamps what was put in limbo from f on.
static void limbo_stamp(struct cache_full *c, uint32_t f) {
  const uint64_t stamp = epoch_stamp(c->epoch);
  for (; f; f = c->pages[f].next) c->pages[f].stamp = stamp;
}

// CLOCK (Corbato 1968). A block just read is not `used` before it is hit again, so that what is read once leaves on the
// first pass. Evicts ahead of need: what is evicted now can be had only after this thread, too, has left its epoch.
static void shard_evict(struct cache_full *c, struct shard *s) {
  struct page *const pages = c->pages;
  const uint32_t spare = s->free_pages + s->limbo_pages + (s->end - s->fresh);
  const uint32_t lacking = s->reserve > spare ? s->reserve - spare : 0;
  const uint32_t want = lacking < BATCH_PAGES ? lacking : BATCH_PAGES;
  const uint32_t runs_max = want * 4 + 32;  // a bound on the time under the lock; the next miss goes on from there
  const uint32_t before = s->limbo.tail;
  for (uint32_t i = 0, got = 0; i < runs_max && got < want; i++) {
    if (s->hand >= s->fresh) s->hand = s->first;
    const uint32_t f = s->hand;
    assert(pages[f].state != PAGE_INNER);
    s->hand += pages[f].nr_pages;
    if (pages[f].state != PAGE_LIVE) continue;
    if (frame_used(c, f)) {
      frame_clear(c, f);
    } else if (!frame_pinned(c, f, memory_order_relaxed)) {
      frame_unpublish(pages, s, f);
      got += pages[f].nr_pages;
    }
  }
  const uint32_t from = before ? pages[before].next : s->limbo.head;
  if (from) limbo_stamp(c, from);
}

// The end of n pages or more that can be taken from f on, all free, in limbo or unused; or 0, with *blocker_out the end
// of the first run in the way.
static uint32_t run_check(const struct cache_full *c, const struct shard *s, uint32_t f, uint32_t n,
                          uint32_t *blocker_out) {
  const uint32_t until = f + n;
  while (f < until) {
    if (f >= s->fresh) {
      *blocker_out = s->first;
      return 0;
    }
    const struct page *const p = &c->pages[f];
    assert(p->state != PAGE_INNER);
    const bool taken = p->state == PAGE_LOADING || frame_pinned(c, f, memory_order_relaxed) ||
                       (p->state == PAGE_LIVE && frame_used(c, f));
    f += p->nr_pages;
    if (taken) {
      *blocker_out = f;
      return 0;
    }
  }
  return f;
}

// Makes room for a large block where there are free pages, but not side by side. CLOCK with two hands (Babaoglu and Joy
// 1981): the front hand clears `used`, the back hand evicts a stretch of neighbours that have not been used since.
static void shard_evict_run(struct cache_full *c, struct shard *s, uint32_t n) {
  struct page *const pages = c->pages;
  const uint32_t size = s->end - s->first;
  const uint32_t limbo_max = size / 4 > n ? size / 4 : n;
  const uint32_t ahead = size < 256 ? size / 2 : size / 8;
  if (s->limbo_pages + n > limbo_max) return;  // enough is on its way, or readers stay in their epochs
  for (uint32_t i = 0; i < RUN_TRIES; i++) {
    const uint32_t back = s->run_hand < s->fresh ? s->run_hand : s->first;
    uint32_t blocker = 0;
    const uint32_t end = run_check(c, s, back, n, &blocker);
    s->run_hand = end ? end : blocker;
    for (uint32_t k = back; k < s->run_hand; k++) {
      const uint32_t front = k + ahead < s->end ? k + ahead : k + ahead - size;
      if (frame_used(c, front)) frame_clear(c, front);
    }
    if (!end) continue;
    const uint32_t before = s->limbo.tail;
    for (uint32_t f = back; f < end; f += pages[f].nr_pages)
      if (pages[f].state == PAGE_LIVE) frame_unpublish(pages, s, f);
    const uint32_t from = before ? pages[before].next : s->limbo.head;
    if (from) limbo_stamp(c, from);
    return;
  }
}

// A frame of n pages in state LOADING, or 0 when there is none at once.
static uint32_t frame_take(struct cache_full *c, struct shard *s, uint32_t n) {
  struct page *const pages = c->pages;
  if (n == 0 || n > BLOCK_PAGES_MAX || n > s->end - s->first) return 0;
  uint32_t f = free_take(pages, s, n);
  if (!f) f = fresh_take(pages, s, n);
  if (!f) {
    shard_reclaim(c, s);
    f = free_take(pages, s, n);
  }
  if (f) {
    pages[f].state = PAGE_LOADING;
    pages[f].nr_pages = n;
    frame_clear(c, f);
  } else if (s->limbo.head) {
    s->starved = true;
  }
  if (s->free_pages + s->limbo_pages + (s->end - s->fresh) < (s->reserve + 1) / 2) shard_evict(c, s);
  if (n > 1 && !(s->free_mask >> n) && s->end - s->fresh < n) shard_evict_run(c, s, n);  // for the next one, too
  return f;
}

// ---- blocks

static inline struct shard *shard_of(struct cache_full *c, const struct cache_table *t, uint32_t block) {
  // the finalizer's multiplications of splitmix64; the upper bits are the mixed ones
  const uint64_t h = (t->id * 0x9E3779B97F4A7C15ull + block) * 0xBF58476D1CE4E5B9ull;
  return &c->shards[h >> 60 & (c->nr_shards - 1)];
}
_Static_assert(SHARDS_MAX <= 16, "four bits of the hash choose the shard");

// No other block has to leave for one of so many pages.
static inline bool shard_roomy(const struct shard *s, uint32_t nr_pages) {
  const uint32_t fresh = s->end - s->fresh;
  return fresh >= nr_pages || s->free_pages + s->limbo_pages + fresh > s->reserve;
}

// Whether a block that is missed is to get a frame (C7). When not, its slot has noted that.
static bool shard_admits(const struct cache_full *c, struct shard *s, _Atomic uint32_t *slot, uint32_t nr_pages) {
  if (shard_roomy(s, nr_pages) || atomic_load_explicit(&c->disk, memory_order_relaxed)) return true;
  const uint32_t was = atomic_load_explicit(slot, memory_order_relaxed), now = (uint32_t)s->misses | CACHE_MISSED;
  const uint32_t within = (s->end - s->first) / nr_pages / ADMIT_PART;
  if (was && (now - was) % CACHE_MISSED <= (within ? within : 1)) return true;
  atomic_store_explicit(slot, now, memory_order_relaxed);
  s->declined++;
  return false;
}

static void load_begin(struct shard *s, struct cache_load *load, const _Atomic uint32_t *slot) {
  *load = (struct cache_load){.slot = slot, .seq = s->load_seq++, .nr_waiters = 0, .next = s->loads};
  s->loads = load;
}

static void load_end(struct shard *s, struct cache_load *load) {
  struct cache_load **p = &s->loads;
  while (*p != load) p = &(*p)->next;
  *p = load->next;
  if (load->nr_waiters) (void)pthread_cond_broadcast(&s->loaded);
}

static struct cache_load *load_find(const struct shard *s, const _Atomic uint32_t *slot) {
  struct cache_load *load = s->loads;
  while (load && load->slot != slot) load = load->next;
  return load;
}

// Waits for the end of another thread's read, whatever comes of it. That thread takes no lock and waits for no epoch of
// ours meanwhile.
static void load_wait(struct shard *s, struct cache_load *load, const _Atomic uint32_t *slot) {
  const uint64_t seq = load->seq;
  load->nr_waiters++;
  do cond_wait(&s->loaded, &s->lock);
  while ((load = load_find(s, slot)) && load->seq == seq);
}

static void frame_publish(struct page *pages, uint32_t f, _Atomic uint32_t *slot) {
  assert(cache_slot_frame(atomic_load_explicit(slot, memory_order_relaxed)) == 0);
  pages[f].state = PAGE_LIVE;
  pages[f].slot = slot;
  atomic_store_explicit(slot, f, memory_order_release);  // readers see the block whole
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

// Loads a block, and finds out by those that are timed where from. c may be NULL when not timed.
static enum remixdb_status block_load(struct cache_full *c, bool timed, uint32_t block, uint32_t nr_pages,
                                      cache_load_fn load, void *arg, uint8_t *buf, bool own) {
  if (likely(!timed)) return load(arg, block, nr_pages, buf, own);
  const uint64_t began = time_ns();
  const enum remixdb_status status = load(arg, block, nr_pages, buf, own);
  const bool disk = time_ns() - began > nr_pages * c->pub.disk_ns;
  if (disk != atomic_load_explicit(&c->disk, memory_order_relaxed))
    atomic_store_explicit(&c->disk, disk, memory_order_relaxed);
  return status;
}

static enum remixdb_status block_load_own(struct cache_full *c, bool timed, struct cache_block *b, uint32_t block,
                                          uint32_t nr_pages, cache_load_fn load, void *arg) {
  enum remixdb_status status = cache_block_reserve(b, nr_pages);
  if (status == REMIXDB_OK) status = block_load(c, timed, block, nr_pages, load, arg, b->own, true);
  if (status == REMIXDB_OK) b->data = b->own;
  return status;
}

void cache_fill_end(struct cache_table *t, uint32_t block, uint32_t nr_pages, struct cache_block *b,
                    struct cache_fill *fill, bool good) {
  if (!fill->frame) {
    if (good) b->data = b->own;
    return;
  }
  struct cache_full *const c = cache_full(t->cache);
  struct shard *const s = shard_of(c, t, block);
  (void)pthread_mutex_lock(&s->lock);
  if (good) frame_publish(c->pages, fill->frame, &t->slots[block]);
  else free_put(c->pages, s, fill->frame, nr_pages);  // nobody has seen it
  load_end(s, &fill->load);
  (void)pthread_mutex_unlock(&s->lock);
  if (good) block_set(&c->pub, b, fill->frame);
}

enum remixdb_status cache_get(struct cache_table *t, uint32_t block, uint32_t nr_pages, cache_load_fn load, void *arg,
                              struct cache_block *b) {
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
  struct shard *const s = shard_of(c, t, block);
  _Atomic uint32_t *const slot = &t->slots[block];
  struct cache_fill self;
  (void)pthread_mutex_lock(&s->lock);
  // Slots change under the lock only, and what a slot holds stays for this thread's epoch.
  f = cache_frame(t, block);
  struct cache_load *other = f ? NULL : load_find(s, slot);
  if (other) {
    load_wait(s, other, slot);
    f = cache_frame(t, block);
    other = f ? NULL : load_find(s, slot);  // that read failed; nobody waits for another one
  }
  if (f) {
    (void)pthread_mutex_unlock(&s->lock);
    cache_frame_touch(&c->pub, f);
    block_set(&c->pub, b, f);
    return REMIXDB_OK;
  }
  s->misses++;
  const bool timed = s->misses % LOADS_TIMED == 0;
  const bool wanted = !other && shard_admits(c, s, slot, nr_pages);
  f = wanted ? frame_take(c, s, nr_pages) : 0;
  if (!f) {
    s->bypasses += wanted || other;
    (void)pthread_mutex_unlock(&s->lock);
    return block_load_own(c, timed, b, block, nr_pages, load, arg);
  }
  load_begin(s, &self.load, slot);
  (void)pthread_mutex_unlock(&s->lock);

  self.frame = f;
  const enum remixdb_status status = block_load(c, timed, block, nr_pages, load, arg,
                                                c->pub.pages + (size_t)(f - 1) * BLOCK_PAGE, false);
  cache_fill_end(t, block, nr_pages, b, &self, status == REMIXDB_OK);
  return status;
}

enum cache_fill_begun cache_fill_begin(struct cache_table *t, uint32_t block, uint32_t nr_pages, struct cache_block *b,
                                       struct cache_fill *fill) {
  cache_block_drop(t, b);
  fill->frame = 0;
  if (t->cache) {
    assert(block < t->nr_pages);
    struct cache_full *const c = cache_full(t->cache);
    struct shard *const s = shard_of(c, t, block);
    _Atomic uint32_t *const slot = &t->slots[block];
    (void)pthread_mutex_lock(&s->lock);
    // as in cache_get
    const uint32_t f = cache_frame(t, block);
    const bool other = !f && load_find(s, slot);
    if (!f && !other) {
      s->misses++;
      const bool wanted = shard_admits(c, s, slot, nr_pages);
      fill->frame = wanted ? frame_take(c, s, nr_pages) : 0;
      if (fill->frame) load_begin(s, &fill->load, slot);
      else s->bypasses += wanted;
    }
    (void)pthread_mutex_unlock(&s->lock);
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
  if (cache_block_reserve(b, nr_pages) != REMIXDB_OK) return CACHE_FILL_LATER;  // which tries again, and reports it
  fill->buf = b->own;
  return CACHE_FILL_READ;
}

bool cache_room(struct cache_table *t, uint32_t block, uint32_t nr_pages) {
  if (!t->cache) return false;
  struct shard *const s = shard_of(cache_full(t->cache), t, block);
  (void)pthread_mutex_lock(&s->lock);
  const bool roomy = shard_roomy(s, nr_pages);
  (void)pthread_mutex_unlock(&s->lock);
  return roomy;
}

void cache_offer(struct cache_table *t, uint32_t block, uint32_t nr_pages, const uint8_t *data) {
  if (!t->cache) return;
  assert(block < t->nr_pages);
  struct cache_full *const c = cache_full(t->cache);
  struct shard *const s = shard_of(c, t, block);
  _Atomic uint32_t *const slot = &t->slots[block];
  struct cache_load self;
  if (cache_has(t, block)) return;
  (void)pthread_mutex_lock(&s->lock);
  const bool wanted = !cache_frame(t, block) && !load_find(s, slot);
  const uint32_t f = wanted ? frame_take(c, s, nr_pages) : 0;
  if (f) load_begin(s, &self, slot);
  (void)pthread_mutex_unlock(&s->lock);
  if (!f) return;

  memcpy(c->pub.pages + (size_t)(f - 1) * BLOCK_PAGE, data, (size_t)nr_pages * BLOCK_PAGE);

  (void)pthread_mutex_lock(&s->lock);
  frame_publish(c->pages, f, slot);
  load_end(s, &self);
  (void)pthread_mutex_unlock(&s->lock);
}

const uint8_t *cache_prefetch(const struct cache_table *t, uint32_t block) {
  const uint32_t frame = t->cache ? cache_slot_frame(atomic_load_explicit(&t->slots[block], memory_order_relaxed)) : 0;
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

enum remixdb_status cache_table_init(struct cache_table *t, struct cache *c, uint32_t nr_pages, uint64_t id) {
  *t = (struct cache_table){.cache = NULL, .slots = NULL, .nr_pages = nr_pages, .id = id};
  if (!c || cache_full(c)->nr_pages == 0) return REMIXDB_OK;
  t->slots = mem_calloc(nr_pages, sizeof(*t->slots));
  if (!t->slots) return REMIXDB_NOMEM;
  t->cache = c;
  return REMIXDB_OK;
}

void cache_table_fini(struct cache_table *t) {
  if (!t->cache) return;
  struct cache_full *const c = cache_full(t->cache);
  for (uint32_t block = 0; block < t->nr_pages; block++) {
    // acquire: who emptied the slot has done with it before the slots go
    if (cache_frame(t, block) == 0) continue;
    struct shard *const s = shard_of(c, t, block);
    (void)pthread_mutex_lock(&s->lock);
    const uint32_t f = cache_frame(t, block);  // it may just have been evicted
    if (f) {
      struct page *const p = &c->pages[f];
      atomic_store_explicit(&t->slots[block], 0, memory_order_relaxed);
      const bool pinned = frame_pinned(c, f, memory_order_acquire);
      assert(!pinned);
      if (likely(!pinned)) {
        free_put(c->pages, s, f, p->nr_pages);
      } else {  // a caller's mistake: the frame stays whole for whom it serves
        p->state = PAGE_LIMBO;
        queue_push(c->pages, &s->held, f);
      }
    }
    (void)pthread_mutex_unlock(&s->lock);
  }
  mem_free(t->slots);
  t->slots = NULL;
  t->cache = NULL;
}

void cache_stats(const struct cache *pub, struct cache_stats *out) {
  struct cache_full *const c = cache_full(pub);
  *out = (struct cache_stats){.size = cache_size(pub)};
  for (uint32_t i = 0; i < c->nr_shards; i++) {
    struct shard *const s = &c->shards[i];
    (void)pthread_mutex_lock(&s->lock);
    out->used += (uint64_t)(s->fresh - s->first - s->free_pages - s->limbo_pages) * BLOCK_PAGE;
    out->misses += s->misses;
    out->evictions += s->evictions;
    out->declined += s->declined;
    out->bypasses += s->bypasses;
    (void)pthread_mutex_unlock(&s->lock);
  }
}
