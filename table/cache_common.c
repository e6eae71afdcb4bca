// SPDX-License-Identifier: Apache-2.0
#include <stddef.h>

#include "table/cache_state.h"

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

// Evicts a block of the bucket. All slots of the bucket have frames. Takes one that was not used since the last such
// eviction, and is not pinned, if there is one.
static struct slot *common_evict(struct cache_full *c, struct shard *sh, struct slot *bucket) {
  struct slot *victim = NULL;
  for (uint32_t i = 0; i < SLOTS_BUCKET; i++) {
    const uint32_t f = slot_now(&bucket[i]);
    if (frame_used(c, f)) frame_clear(c, f);
    else if (!victim && !frame_pinned(c, f, memory_order_relaxed)) victim = &bucket[i];
  }
  if (!victim) victim = &bucket[sh->misses % SLOTS_BUCKET];
  const uint32_t f = slot_now(victim);
  cache_frame_unpublish(c->pages, sh, f);
  cache_frames_stamp(c, f);
  return victim;
}

struct slot *cache_common_take(struct cache_full *c, struct shard *sh, struct slots_key k) {
  const struct slots *const all = common(c);
  struct slot *const bucket = slots_bucket(all, k.hash), *s = slots_find(all, k);
  if (!s) s = common_idle(sh, bucket);
  return s ? s : common_evict(c, sh, bucket);
}

uint32_t cache_common_miss(const struct cache_full *c, struct shard *sh, struct slots_key k, uint32_t now) {
  struct slot *s = slots_find(common(c), k);
  const uint32_t was = s ? slot_now(s) : 0;
  if (!s) s = common_idle(sh, slots_bucket(common(c), k.hash));
  if (s) slots_set(s, k, now);
  return was;
}

// ---- how many there are

enum remixdb_status cache_common_make(struct cache_full *c) {
  struct slots *none = NULL, *made;
  if (common(c)) return REMIXDB_OK;
  if (!(made = slots_create(size_now(c), NULL))) return REMIXDB_NOMEM;
  if (!atomic_compare_exchange_strong_explicit(&c->pub.common, &none, made, memory_order_acq_rel, memory_order_acquire))
    slots_destroy(made);  // another thread was quicker
  return REMIXDB_OK;
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
        cache_frame_unpublish(pages, sh, f);
        cache_frames_stamp(c, f);
      }
    }
  }
}

// Readers of the old slots find frames there that were evicted meanwhile, but these are not used for another block
// before such readers have left their epochs (C2).
enum remixdb_status cache_common_grow(struct cache_full *c, uint32_t nr) {
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
