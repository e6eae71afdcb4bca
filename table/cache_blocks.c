// SPDX-License-Identifier: Apache-2.0
#include <assert.h>

#include "base/budget.h"
#include "table/cache_state.h"

#define ADMIT_PART 4u   // a second miss counts within 1/4 as many misses as the shard has blocks
#define LOADS_TIMED 8u  // one in this many loads is timed
// Records are idle if, over one turn of the cache, fewer than 1/RECORDS_BUSY as many were found or kept as pages were
// evicted.
#define RECORDS_BUSY 16u

// ---- records without their blocks

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
  if (frame) cache_chunk_back(c, frame);
}

// ---- blocks

static inline struct shard *shard_of(struct cache_full *c, const struct cache_table *t, uint32_t block) {
  return &c->shards[block_hash(t, block) >> 60 & (c->nr_shards - 1)];
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
  const uint32_t now = (uint32_t)sh->misses | CACHE_MISSED;
  const uint32_t was = likely(t->slots != NULL) ? atomic_exchange_explicit(&t->slots[block], now, memory_order_relaxed)
                                                : cache_common_miss(c, sh, common_key(t, block), now);
  const uint32_t within = (sh->size - sh->given_pages) / nr_pages / ADMIT_PART;
  if (was && (now - was) % CACHE_MISSED <= (within ? within : 1)) return true;
  sh->declined++;
  return false;
}

static void load_begin(struct shard *sh, struct cache_load *load, const struct cache_table *t, uint32_t block) {
  *load = (struct cache_load){.table = t, .block = block, .seq = sh->load_seq++, .nr_waiters = 0, .next = sh->loads};
  sh->loads = load;
}

// Ends a load, and releases the shard's lock. Then wakes those that wait for the load.
static void load_end(struct shard *sh, struct cache_load *load) {
  struct cache_load **p = &sh->loads;
  while (*p != load) p = &(*p)->next;
  *p = load->next;
  (void)pthread_mutex_unlock(&sh->lock);
  if (load->nr_waiters) eventcount_wake_all(&sh->loaded);
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
  do (void)eventcount_wait(&sh->loaded, &sh->lock, EVENTCOUNT_NEVER);
  while ((load = load_find(sh, t, block)) && load->seq == seq);
}

static void frame_publish(struct cache_full *c, struct shard *sh, const struct cache_table *t, uint32_t block,
                          uint32_t f) {
  struct slot *const common = t->slots ? NULL : cache_common_take(c, sh, common_key(t, block));
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

static void own_free(struct cache_block *b) {
  if (!b->given) mem_free(b->own);
  b->own = NULL;
  b->own_size = 0;
  b->given = false;
}

// The heap puts a head before a block, so a block of a page that begins a page takes two pages. Only a read past the
// page cache into the buffer itself needs that.
static enum remixdb_status own_reserve(struct cache_block *b, uint32_t nr_pages, size_t align) {
  const uint32_t size = nr_pages * BLOCK_PAGE;
  if (b->own_size >= size && (uintptr_t)b->own % align == 0) return REMIXDB_OK;
  own_free(b);
  b->own = mem_alloc_aligned(align, size);
  if (!b->own) return REMIXDB_NOMEM;
  b->own_size = size;
  return REMIXDB_OK;
}

enum remixdb_status cache_block_reserve(struct cache_block *b, uint32_t nr_pages) {
  return own_reserve(b, nr_pages, CACHE_LINE);
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
  else cache_pages_give(c->pages, sh, fill->frame, nr_pages);  // no reader has seen it
  load_end(sh, &fill->load);
  cache_ask(c);
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
  f = wanted ? cache_frame_take(c, sh, nr_pages) : 0;
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
      fill->frame = wanted ? cache_frame_take(c, sh, nr_pages) : 0;
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
  // cache_get tries again, and reports a failure
  if (own_reserve(b, nr_pages, BLOCK_PAGE) != REMIXDB_OK) return CACHE_FILL_LATER;
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
  const uint32_t f = wanted ? cache_frame_take(c, sh, nr_pages) : 0;
  sh->bypasses += missed && wanted && !f;
  if (f) load_begin(sh, &self, t, block);
  (void)pthread_mutex_unlock(&sh->lock);
  if (!f) return;

  memcpy(c->pub.pages + (size_t)(f - 1) * BLOCK_PAGE, data, (size_t)nr_pages * BLOCK_PAGE);

  (void)pthread_mutex_lock(&sh->lock);
  frame_publish(c, sh, t, block, f);
  load_end(sh, &self);
  cache_ask(c);
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
  own_free(b);
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

enum remixdb_status cache_table_init(struct cache_table *t, struct cache *pub, uint32_t nr_pages, uint64_t id) {
  struct cache_full *const c = cache_full(pub);
  *t = (struct cache_table){.cache = NULL, .slots = NULL, .nr_pages = nr_pages, .id = id};
  if (!c || size_now(c) == 0) return REMIXDB_OK;
  enum remixdb_status s = REMIXDB_OK;
  if (!own_take(c, nr_pages)) {
    s = cache_common_make(c);
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
    cache_frame_unpublish(c->pages, sh, f);
    cache_frames_stamp(c, f);
    return;
  }
  atomic_store_explicit(p->slot, 0, memory_order_relaxed);
  if (likely(!pinned)) {
    cache_pages_give(c->pages, sh, f, p->nr_pages);
  } else {  // a caller's mistake: the frame stays whole for its reader
    p->state = PAGE_LIMBO;
    cache_queue_push(c->pages, &sh->held, f);
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
