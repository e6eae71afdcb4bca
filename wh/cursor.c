// SPDX-License-Identifier: Apache-2.0
#include "wh.h"
#include "wh/state.h"

#include <assert.h>

// Entries that a cursor prefetches ahead:
#define AHEAD 6u  // when it steps
#define FLOW 16u  // when it has stepped from leaf to leaf
#define SPOT 1u   // when it only seeks
// The first bytes of an entry that a cursor mostly reads: fields, key, number of the first version.
#define ENTRY_HEAD 40u

void wh_cursor_init(struct wh_cursor *c, const struct wh *wh, uint64_t moment) {
  c->wh = wh;
  c->leaf = c->hint = NULL;
  c->entry = NULL;
  c->ver = NULL;
  c->moment = moment;
  c->at = c->nr = c->asked = 0;
  c->placed = c->steps = c->gapped = false;
}

static inline void cursor_prefetch(const struct wh_cursor *c, uint32_t at) {
  const uint8_t *e = (const uint8_t *)wh_leaf_entry(c->leaf, c->order[at]);
  prefetch(e);
  prefetch(e + ENTRY_HEAD - 1);
}

// Prefetches the entry's newest version and its value. Mostly the cursor sees the newest version. The entry was
// prefetched earlier.
static inline void cursor_prefetch_version(const struct wh_cursor *c, uint32_t at) {
  const uint8_t *v = (const uint8_t *)wh_entry_newest(wh_leaf_entry(c->leaf, c->order[at]));
  if (!v) return;
  for (uint32_t i = 0; i < 3; i++) prefetch(v + i * CACHE_LINE);
}

// Prefetches the entries of order[at, at + nr) that were not prefetched yet, and the version of the entry in the
// middle. The cache line of that entry has had time to arrive.
static inline void cursor_ask(struct wh_cursor *c, uint32_t at, uint32_t nr) {
  const uint32_t had = c->asked, to = at + nr < c->nr ? at + nr : c->nr;
  for (uint32_t i = had > at ? had : at; i < to; i++) cursor_prefetch(c, i);
  c->asked = to;
  if (nr > 1 && likely(at + nr / 2 < had)) cursor_prefetch_version(c, at + nr / 2);
}

// Does the same backward, for order(at - nr, at].
static inline void cursor_ask_back(struct wh_cursor *c, uint32_t at, uint32_t nr) {
  const uint32_t had = c->asked, to = at + 1 > nr ? at + 1 - nr : 0;
  for (uint32_t i = had > at ? at + 1 : had; i > to; i--) cursor_prefetch(c, i - 1);
  c->asked = to;
  if (nr > 1 && likely(at >= nr / 2 && at - nr / 2 >= had)) cursor_prefetch_version(c, at - nr / 2);
}

// Goes to the leaf and copies the leaf's order.
static void cursor_take(struct wh_cursor *c, struct wh_leaf *l) {
  c->leaf = l;
  c->ahead = AHEAD;
  c->gapped = atomic_load_explicit(&l->gapped, memory_order_relaxed);  // a hint: wh_gap reads the pointer
  c->nr = wh_leaf_order(l, c->order);
}

static inline void leaf_prefetch_entries(const struct wh_leaf *l) {
  for (uint32_t i = 0; i < WH_LEAF_KEYS; i += CACHE_LINE / sizeof(l->entries[0]))
    prefetch((const void *)&l->entries[i]);
}

// Goes to a neighbour. All its entries are about to be read. Prefetches `after`, the leaf after it in that direction
// (NULL: none), too.
static void cursor_enter(struct wh_cursor *c, struct wh_leaf *l, const struct wh_leaf *after) {
  leaf_prefetch_entries(l);
  cursor_take(c, l);
  c->ahead = FLOW;
  if (!after) return;
  prefetch(after);
  for (uint32_t i = 0; i < WH_LEAF_KEYS / 8; i += CACHE_LINE / sizeof(after->order[0]))
    prefetch((const void *)&after->order[i]);
  leaf_prefetch_entries(after);
}

// Goes forward from order[at] to the nearest entry that has a version at the moment, also into the next leaves. ask:
// how many entries to prefetch.
static void cursor_forward(struct wh_cursor *c, uint32_t at, uint32_t ask) {
  for (;; ask = c->ahead) {
    for (; at < c->nr; at++, ask = c->ahead) {
      cursor_ask(c, at, ask);
      WH_COUNT(entries);
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
    cursor_enter(c, next, wh_leaf_next(next));
    c->asked = at = 0;
  }
  c->leaf = NULL;
}

// Goes back from order[nr - 1] to the nearest entry that has a version at the moment, also into the leaves before.
static void cursor_backward(struct wh_cursor *c, uint32_t nr, uint32_t ask) {
  for (;; ask = c->ahead) {
    for (; nr > 0; nr--, ask = c->ahead) {
      cursor_ask_back(c, nr - 1, ask);
      WH_COUNT(entries);
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
    cursor_enter(c, prev, wh_leaf_prev(prev));
    c->asked = nr = c->nr;
  }
  c->leaf = NULL;
}

// Goes to the leaf of the key, and there to the lowest entry whose piece is not smaller than the key's piece.
static void cursor_locate(struct wh_cursor *c, struct kref key) {
  const uint64_t k8 = wh_key8(key, 0);
  struct wh_leaf *const hint = c->hint ? c->hint : wh_hint(c->wh, key, k8), *const l = wh_locate(c->wh, hint, key, k8);
  c->hint = NULL;
  cursor_take(c, l);
  c->at = wh_leaf_rank(l, c->nr, wh_piece(key, l->skip));
}

// Returns how many of the leaf's keys are smaller than the key (or_equal: or equal).
static inline uint32_t cursor_rank(struct wh_cursor *c, struct kref key, bool or_equal) {
  if (!c->placed) {
    cursor_locate(c, key);
    c->asked = c->at;
  }
  c->placed = false;
  return wh_leaf_place(c->leaf, c->order, c->nr, key, c->at, or_equal);
}

void wh_seek_begin(struct wh_cursor *c, struct kref key, bool steps) {
  struct wh_leaf *const l = c->hint = wh_hint(c->wh, key, wh_key8(key, 0));
  c->placed = false;
  c->steps = steps;
  for (const uint8_t *p = (const uint8_t *)l; p < (const uint8_t *)l->idx; p += CACHE_LINE) prefetch(p);
  if (steps) leaf_prefetch_entries(l);
}

void wh_seek_begin_place(struct wh_cursor *c, struct kref key, bool backward) {
  cursor_locate(c, key);
  c->placed = true;
  c->asked = c->at;
  if (backward && c->at) cursor_prefetch(c, c->at - 1);
  cursor_ask(c, c->at, c->steps ? AHEAD : SPOT);
}

void wh_seek(struct wh_cursor *c, struct kref key) {
  const uint32_t at = cursor_rank(c, key, false);
  for (uint32_t i = at; c->steps && i < c->asked && i < at + AHEAD / 2; i++) cursor_prefetch_version(c, i);
  cursor_forward(c, at, SPOT);
}

void wh_seek_for_prev(struct wh_cursor *c, struct kref key) {
  const uint32_t nr = cursor_rank(c, key, true);
  c->asked = nr;
  cursor_backward(c, nr, SPOT);
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
  c->hint = NULL;
  c->placed = false;
  c->asked = c->nr;
  cursor_backward(c, c->nr, SPOT);
}

void wh_next(struct wh_cursor *c) {
  assert(wh_valid(c));
  cursor_forward(c, c->at + 1, c->ahead);
}

void wh_prev(struct wh_cursor *c) {
  assert(wh_valid(c));
  cursor_backward(c, c->at, c->ahead);
}
