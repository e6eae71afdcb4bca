// SPDX-License-Identifier: Apache-2.0
#include "wh_state.h"

#define AHEAD 6u  // entries that are fetched before they are reached
#define PUBLISH_SPENT 4u  // entries that cursors put in their order one by one before one of them publishes it

void wh_cursor_init(struct wh_cursor *c, const struct wh *wh, uint64_t moment) {
  c->wh = wh;
  c->leaf = c->hint = NULL;
  c->entry = NULL;
  c->ver = NULL;
  c->moment = moment;
  c->at = c->nr = 0;
}

static inline void cursor_prefetch(const struct wh_cursor *c, uint32_t at) {
  if (at >= c->nr) return;
  const uint8_t *e = (const uint8_t *)wh_leaf_entry(c->leaf, c->order[at]);
  __builtin_prefetch(e);
  __builtin_prefetch(e + CACHE_LINE);
}

// The entry's newest version, which most of the time is the one that is seen. The entry itself has been fetched before.
static inline void cursor_prefetch_version(const struct wh_cursor *c, uint32_t at) {
  if (at >= c->nr) return;
  const uint8_t *v = (const uint8_t *)wh_entry_newest(wh_leaf_entry(c->leaf, c->order[at]));
  if (!v) return;
  for (uint32_t i = 0; i < 3; i++) __builtin_prefetch(v + i * CACHE_LINE);
}

// Goes to the leaf and takes its order.
static void cursor_take(struct wh_cursor *c, struct wh_leaf *l) {
  const uint32_t n = atomic_load_explicit(&l->count, memory_order_relaxed);
  for (uint32_t i = 0; i < n; i += CACHE_LINE / sizeof(l->entries[0])) __builtin_prefetch((const void *)&l->entries[i]);
  uint32_t tail;
  c->leaf = l;
  c->nr = wh_leaf_order(l, c->order, &tail, &c->published);
  // Only a cache, so it is written although the index is the reader's constant; see wh_order.
  if (likely(tail == 0)) return;
  // What cursors have spent on the entries outside of the published order is what a new one may cost (as in the ski rental problem).
  const uint32_t spent = atomic_load_explicit(&l->spent, memory_order_relaxed) + tail;
  atomic_store_explicit(&l->spent, (uint8_t)(spent < PUBLISH_SPENT ? spent : 0), memory_order_relaxed);
  struct wh *const wh = (struct wh *)(uintptr_t)c->wh;
  if (spent >= PUBLISH_SPENT && !wh_leaf_dead(l)) wh_leaf_publish(l, &wh->arena, wh->identity, c->order, c->nr);
}

// From order[at] on to the first entry that is seen, through the leaves behind.
static void cursor_forward(struct wh_cursor *c, uint32_t at) {
  for (;;) {
    for (; at < c->nr; at++) {
      cursor_prefetch(c, at + AHEAD);
      cursor_prefetch_version(c, at + AHEAD / 2);
      const struct wh_entry *e = wh_leaf_entry(c->leaf, c->order[at]);
      const struct wh_ver *v = wh_ver_seen(wh_entry_newest(e), c->moment);
      if (v == NULL) continue;
      c->entry = e;
      c->ver = v;
      c->at = at;
      return;
    }
    struct wh_leaf *next = wh_leaf_next(c->leaf);
    if (next == NULL) break;
    cursor_take(c, next);
    const struct wh_leaf *after = wh_leaf_next(next);
    if (after) __builtin_prefetch(after);
    for (uint32_t i = 0; i < AHEAD; i++) cursor_prefetch(c, i);
    at = 0;
  }
  c->leaf = NULL;
}

// From order[nr - 1] back, through the leaves before. nr is one more than the position to begin at.
static void cursor_backward(struct wh_cursor *c, uint32_t nr) {
  for (;;) {
    for (; nr > 0; nr--) {
      cursor_prefetch(c, nr - 1 - AHEAD);
      cursor_prefetch_version(c, nr - 1 - AHEAD / 2);
      const struct wh_entry *e = wh_leaf_entry(c->leaf, c->order[nr - 1]);
      const struct wh_ver *v = wh_ver_seen(wh_entry_newest(e), c->moment);
      if (v == NULL) continue;
      c->entry = e;
      c->ver = v;
      c->at = nr - 1;
      return;
    }
    struct wh_leaf *prev = wh_leaf_prev(c->leaf);
    if (prev == NULL) break;
    cursor_take(c, prev);
    for (uint32_t i = 1; i <= AHEAD; i++) cursor_prefetch(c, c->nr - i);
    nr = c->nr;
  }
  c->leaf = NULL;
}

// How many of the leaf's samples are smaller than the key. False: their first bytes do not tell.
static bool rank_samples(const struct wh_order *o, uint64_t k8, uint32_t *out) {
  uint32_t from = 0;
  for (uint32_t i = 0; i < o->nr_samples; i++) from += o->samples[i] < k8;
  *out = from;
  return o->nr_samples && (from == o->nr_samples || o->samples[from] != k8);
}

// How many of the leaf's keys are smaller than the key (or equal, with or_equal). One or two rounds of keys fetched together instead of
// a chain of cache misses.
static uint32_t cursor_rank(const struct wh_cursor *c, struct kref key, bool or_equal) {
  uint32_t lo = 0, hi = c->nr;
  if (hi > WH_ORDER_SAMPLE) {
    uint32_t from = 0, to = c->nr / WH_ORDER_SAMPLE;  // the first sample that is not smaller
    if (!c->published || !rank_samples(c->published, wh_key8(key, 0), &from)) {
      for (uint32_t i = WH_ORDER_SAMPLE - 1; i < c->nr; i += WH_ORDER_SAMPLE) __builtin_prefetch(wh_leaf_entry(c->leaf, c->order[i]));
      from = 0;
      while (from < to) {
        const uint32_t mid = (from + to) / 2;
        if (kv_cmp(wh_entry_key(wh_leaf_entry(c->leaf, c->order[WH_ORDER_SAMPLE * mid + WH_ORDER_SAMPLE - 1])), key) < (or_equal ? 1 : 0))
          from = mid + 1;
        else
          to = mid;
      }
    }
    lo = WH_ORDER_SAMPLE * from;
    hi = lo + WH_ORDER_SAMPLE - 1 < c->nr ? lo + WH_ORDER_SAMPLE - 1 : c->nr;
    for (uint32_t i = lo; i < hi; i++) __builtin_prefetch(wh_leaf_entry(c->leaf, c->order[i]));
  }
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (kv_cmp(wh_entry_key(wh_leaf_entry(c->leaf, c->order[mid])), key) < (or_equal ? 1 : 0))
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

static void cursor_locate(struct wh_cursor *c, struct kref key) {
  const uint64_t k8 = wh_key8(key, 0);
  struct wh_leaf *l = c->hint ? c->hint : wh_hint(c->wh, key, k8);
  c->hint = NULL;
  cursor_take(c, wh_locate(c->wh, l, key, k8));
}

void wh_want(struct wh_cursor *c, struct kref key) {
  c->hint = wh_hint(c->wh, key, wh_key8(key, 0));
  __builtin_prefetch(c->hint);
  for (uint32_t i = 0; i < WH_LEAF_KEYS; i += CACHE_LINE / sizeof(c->hint->entries[0])) __builtin_prefetch((const void *)&c->hint->entries[i]);
}

void wh_want_order(const struct wh_cursor *c) {
  const uint8_t *const o = (const uint8_t *)atomic_load_explicit(&c->hint->order, memory_order_acquire);
  const size_t size = sizeof(struct wh_order) + WH_LEAF_KEYS / WH_ORDER_SAMPLE * sizeof(uint64_t) + WH_LEAF_KEYS;
  for (size_t i = 0; o && i < size; i += CACHE_LINE) __builtin_prefetch(o + i);
}

void wh_seek(struct wh_cursor *c, struct kref key) {
  cursor_locate(c, key);
  const uint32_t at = cursor_rank(c, key, false);
  for (uint32_t i = 0; i < AHEAD / 2; i++) cursor_prefetch_version(c, at + i);
  cursor_forward(c, at);
}

void wh_seek_for_prev(struct wh_cursor *c, struct kref key) {
  cursor_locate(c, key);
  cursor_backward(c, cursor_rank(c, key, true));
}

void wh_seek_last(struct wh_cursor *c) {
  struct wh_leaf *l = wh_trie_last(&c->wh->trie);
  for (;;) {  // as in wh_locate
    if (wh_leaf_dead(l)) {
      struct wh_leaf *prev = wh_leaf_prev(l);
      l = prev ? prev : atomic_load_explicit(&c->wh->head, memory_order_acquire);
      continue;
    }
    struct wh_leaf *next = wh_leaf_next(l);
    if (next == NULL) break;
    l = next;
  }
  cursor_take(c, l);
  cursor_backward(c, c->nr);
}

void wh_next(struct wh_cursor *c) { cursor_forward(c, c->at + 1); }
void wh_prev(struct wh_cursor *c) { cursor_backward(c, c->at); }
