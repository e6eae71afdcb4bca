// SPDX-License-Identifier: Apache-2.0
#include <assert.h>

#include "table/cache_state.h"

#define RUN_TRIES 32u  // stretches tried for one large block
#define HELD_TRIES 4u  // pinned frames in `held` that are tried again each time

void cache_queue_push(struct page *pages, struct page_queue *q, uint32_t f) {
  pages[f].next = 0;
  if (q->tail) pages[q->tail].next = f;
  else q->head = f;
  q->tail = f;
}

uint32_t cache_queue_pop(struct page *pages, struct page_queue *q) {
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
void cache_pages_give(struct page *pages, struct shard *sh, uint32_t f, uint32_t n) {
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
uint32_t cache_pages_take(struct page *pages, struct shard *sh, uint32_t n) {
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
    if (unlikely(sh->fresh >= sh->huge_at)) cache_shard_huge(c, sh);
    if (unlikely(sh->fresh >= sh->ask_at)) {
      sh->ask_at = UINT32_MAX;
      sh->asks = true;
      atomic_store_explicit(&c->untold, true, memory_order_relaxed);
    }
    return f;
  }
  if (left == 0) return 0;
  sh->fresh += left;
  cache_pages_give(c->pages, sh, f, left);
  return cache_pages_take(c->pages, sh, n);
}

// If a reader stays in its epoch for long, because it was preempted or its read is slow, limbo stays full. The reserve
// should last until that reader leaves. So the reserve doubles when it ran out, and otherwise shrinks.
static void shard_tune(struct shard *sh) {
  if (sh->starved) sh->reserve = sh->reserve < sh->reserve_max / 2 ? sh->reserve * 2 : sh->reserve_max;
  else sh->reserve -= (sh->reserve - sh->reserve_min) / 16;
  sh->starved = false;
}

// Frees the frames in limbo that no reader can hold any more.
void cache_reclaim(struct cache_full *c, struct shard *sh) {
  struct page *const pages = c->pages;
  const uint32_t oldest = sh->limbo.head;
  while (sh->limbo.head && epoch_passed(c->epoch, pages[sh->limbo.head].stamp)) {
    const uint32_t f = cache_queue_pop(pages, &sh->limbo);
    sh->limbo_pages -= pages[f].nr_pages;
    // acquire pairs with the release of the last unpin: the holder's reads come before the next load. Pins taken inside
    // the epoch are visible because the epoch has passed, and no later ones exist (C3).
    if (unlikely(frame_pinned(c, f, memory_order_acquire))) cache_queue_push(pages, &sh->held, f);
    else cache_pages_give(pages, sh, f, pages[f].nr_pages);
  }
  if (sh->limbo.head != oldest) shard_tune(sh);
  for (uint32_t i = 0; i < HELD_TRIES && sh->held.head; i++) {
    const uint32_t f = cache_queue_pop(pages, &sh->held);
    if (frame_pinned(c, f, memory_order_acquire)) cache_queue_push(pages, &sh->held, f);
    else cache_pages_give(pages, sh, f, pages[f].nr_pages);
  }
}

// The caller stamps the whole batch afterwards.
void cache_frame_unpublish(struct page *pages, struct shard *sh, uint32_t f) {
  struct page *const p = &pages[f];
  assert(p->state == PAGE_LIVE && atomic_load_explicit(p->slot, memory_order_relaxed) == f);
  // release: the last access to a table that may be closing. For readers, epoch_stamp is the fence after it
  atomic_store_explicit(p->slot, 0, memory_order_release);
  p->state = PAGE_LIMBO;
  cache_queue_push(pages, &sh->limbo, f);
  sh->limbo_pages += p->nr_pages;
  sh->evictions++;
}

// Stamps the frames in limbo from f on.
void cache_frames_stamp(struct cache_full *c, uint32_t f) {
  const uint64_t stamp = epoch_stamp(c->epoch);
  for (; f; f = c->pages[f].next) c->pages[f].stamp = stamp;
}

// CLOCK (Corbato 1968). A new block counts as used only after another hit, so a block that is read once leaves on the
// first pass. Evicts ahead of need: a frame that is evicted now is free only after this thread, too, has left its
// epoch.
void cache_evict(struct cache_full *c, struct shard *sh, uint32_t want) {
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
      cache_frame_unpublish(pages, sh, f);
      got += pages[f].nr_pages;
    }
  }
  const uint32_t from = before ? pages[before].next : sh->limbo.head;
  if (from) cache_frames_stamp(c, from);
  (void)atomic_fetch_add_explicit(&c->evicted, want, memory_order_relaxed);
}

static void shard_evict(struct cache_full *c, struct shard *sh) {
  const uint32_t ready = sh->free_pages + sh->limbo_pages + shard_fresh(sh);
  const uint32_t lacking = sh->reserve > ready ? sh->reserve - ready : 0;
  cache_evict(c, sh, lacking < BATCH_PAGES ? lacking : BATCH_PAGES);
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
      if (pages[f].state == PAGE_LIVE) cache_frame_unpublish(pages, sh, f);
    const uint32_t from = before ? pages[before].next : sh->limbo.head;
    if (from) cache_frames_stamp(c, from);
    return;
  }
}

// Takes a frame of n pages, in state PAGE_LOADING. Returns 0 if none is free at once.
uint32_t cache_frame_take(struct cache_full *c, struct shard *sh, uint32_t n) {
  struct page *const pages = c->pages;
  if (n == 0 || n > BLOCK_PAGES_MAX || n > sh->size) return 0;
  uint32_t f = cache_pages_take(pages, sh, n);
  if (!f) f = fresh_take(c, sh, n);
  if (!f) {
    cache_reclaim(c, sh);
    f = cache_pages_take(pages, sh, n);
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
