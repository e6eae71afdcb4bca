// SPDX-License-Identifier: Apache-2.0
#include "wh/leaf.h"

#include <assert.h>

#define MERGE_TAIL 8u  // so many new entries, or more, are sorted together, then merged
#define SAMPLE 16u     // among keys of equal pieces, a search begins with every 16th key

void *wh_line_alloc(struct arena *a, size_t size) {
  uint8_t *p = arena_alloc(a, size + CACHE_LINE - 8);
  if (p == NULL) return NULL;
  if (unlikely(((uint64_t)(uintptr_t)p + size) >> WH_PTR_BITS != 0)) {
    (void)err_set(REMIXDB_NOMEM, "an address of more than %d bits", WH_PTR_BITS);
    return NULL;
  }
  return (void *)(uintptr_t)align_up((uintptr_t)p, CACHE_LINE);
}

void wh_leaf_append(struct wh_leaf *l, uint64_t word, int32_t piece) {
  const uint32_t n = atomic_load_explicit(&l->count, memory_order_relaxed), hash = wh_word_hash(word);
  assert(n < WH_LEAF_KEYS);
  atomic_store_explicit(&l->entries[n], word, memory_order_relaxed);
  l->pieces[n] = piece;
  uint32_t i = wh_idx_start(hash);
  while (atomic_load_explicit(&l->idx[i], memory_order_relaxed) != WH_IDX_FREE) i = wh_idx_behind(i);
  atomic_store_explicit(&l->idx[i], (uint16_t)wh_idx_word(hash, n), memory_order_release);
  atomic_store_explicit(&l->count, (uint16_t)(n + 1), memory_order_release);
}

// Returns the length of the prefix that all keys of the range share, as far as the range's ends tell.
static uint32_t range_common(struct kref anchor, const struct kref *end) {
  return end ? kv_lcp_from(anchor, *end, 0) : 0;
}

void wh_leaf_init(struct wh_leaf *l, struct kref anchor, const struct kref *end, const struct wh_content *content,
                  uint32_t from, uint32_t to) {
  // Old pieces with at least three bytes after the common ones are kept, so that no key need be read.
  const uint32_t common = range_common(anchor, end);
  assert(from <= to && to - from <= WH_LEAF_KEYS);
  const bool kept = content && common >= content->skip && common < content->skip + 2;
  l->anchor = anchor;
  l->lo8 = wh_key8(anchor, 0);
  l->end8 = end ? wh_key8(*end, 0) : UINT64_MAX;
  l->skip = kept ? content->skip : common;
  atomic_init(&l->next, NULL);
  atomic_init(&l->prev, NULL);
  atomic_init(&l->lock.word, 1);
  atomic_init(&l->count, 0);
  atomic_init(&l->dead, false);
  l->holes = false;
  atomic_init(&l->tombs, 0);
  atomic_init(&l->puts, 0);
  atomic_init(&l->gapped, false);
  atomic_init(&l->lapsed, false);
  atomic_init(&l->gaps, NULL);
  memset((void *)l->idx, 0xff, sizeof(l->idx));
  for (uint32_t i = from; i < to; i++)
    wh_leaf_append(l, content->words[i],
                   kept ? content->pieces[i] : wh_piece(wh_entry_key(wh_word_entry(content->words[i])), l->skip));
  for (uint32_t i = 0; i < WH_LEAF_KEYS / 8; i++) {
    uint8_t as_they_came[8];
    for (uint32_t k = 0; k < 8; k++) as_they_came[k] = (uint8_t)(8 * i + k);
    uint64_t w;
    memcpy(&w, as_they_came, sizeof(w));
    atomic_init(&l->order[i], w);
  }
  atomic_init(&l->ordered, to - from);
  if (unlikely(content && content->tombs)) wh_leaf_set_tombs(l, wh_leaf_tombs(l));
}

uint32_t wh_leaf_tombs(const struct wh_leaf *l) {
  const uint32_t n = atomic_load_explicit(&l->count, memory_order_relaxed);
  uint32_t nr = 0;
  for (uint32_t i = 0; i < n; i++) {
    const struct wh_ver *const v = wh_entry_newest(wh_leaf_entry(l, i));
    nr += !v || wh_ver_tomb(v);
  }
  return nr;
}

// ---- order

static inline struct kref leaf_key(const struct wh_leaf *l, uint32_t pos) {
  return wh_entry_key(wh_leaf_entry(l, pos));
}

// Returns the number that stands for an entry in a sort: the upper half is the piece, biased so that it orders as an
// unsigned number; the lower half is the position.
static inline uint64_t leaf_item(const struct wh_leaf *l, uint32_t pos) {
  return (uint64_t)((uint32_t)l->pieces[pos] ^ 0x80000000u) << 32 | pos;
}

static inline bool item_less(const struct wh_leaf *l, uint64_t a, uint64_t b) {
  if (likely((a ^ b) >> 32 != 0)) return a < b;
  return kv_cmp(leaf_key(l, (uint32_t)a), leaf_key(l, (uint32_t)b)) < 0;
}

static void items_merge(const struct wh_leaf *l, const uint64_t *a, uint32_t na, const uint64_t *b, uint32_t nb,
                        uint64_t *out) {
  while (na && nb) {
    if (item_less(l, *b, *a)) {
      *out++ = *b++;
      nb--;
    } else {
      *out++ = *a++;
      na--;
    }
  }
  memcpy(out, a, na * sizeof(*a));
  memcpy(out + na, b, nb * sizeof(*b));
}

// Merge sort from runs of 8. Sorted input costs one pass.
static void items_sort(const struct wh_leaf *l, uint64_t *v, uint32_t n, uint64_t *tmp) {
  uint32_t i = 1;
  while (i < n && item_less(l, v[i - 1], v[i])) i++;
  if (i >= n) return;
  for (uint32_t from = 0; from < n; from += 8) {
    const uint32_t to = n - from < 8 ? n : from + 8;
    for (uint32_t j = from + 1; j < to; j++) {
      const uint64_t it = v[j];
      uint32_t k = j;
      for (; k > from && item_less(l, it, v[k - 1]); k--) v[k] = v[k - 1];
      v[k] = it;
    }
  }
  for (uint32_t run = 8; run < n; run *= 2) {
    for (uint32_t from = 0; from < n; from += 2 * run) {
      const uint32_t na = n - from < run ? n - from : run;
      const uint32_t nb = n - from - na < run ? n - from - na : run;
      items_merge(l, v + from, na, v + from + na, nb, tmp + from);
    }
    memcpy(v, tmp, n * sizeof(*v));
  }
}

// Merges the unordered entries [base, n) into the positions of the first base, which are in order.
static void order_merge(const struct wh_leaf *l, uint8_t *pos, uint32_t base, uint32_t n) {
  uint64_t items[2 * WH_LEAF_KEYS], tmp[WH_LEAF_KEYS];
  for (uint32_t i = 0; i < n; i++) items[i] = leaf_item(l, i < base ? pos[i] : i);
  items_sort(l, items + base, n - base, tmp);
  const uint64_t *merged = items;
  if (base && item_less(l, items[base], items[base - 1])) {
    merged = items + WH_LEAF_KEYS;
    items_merge(l, items, base, items + base, n - base, items + WH_LEAF_KEYS);
  }
  for (uint32_t i = 0; i < n; i++) pos[i] = (uint8_t)merged[i];
}

// Searches pos[lo, hi), in the order of their keys. With step 1, returns the lowest place whose key is not smaller than
// the given key (or_equal: is greater), or hi if there is no such place. With a larger step, the call looks only at the
// last key of each group of `step` places. The call then returns the beginning of the first group whose last key is not
// smaller (or_equal: is greater), or the end of the last whole group. The call prefetches all these keys together, so
// that it does not wait for one cache miss after another.
static uint32_t keys_search(const struct wh_leaf *l, const uint8_t *pos, uint32_t lo, uint32_t hi, uint32_t step,
                            struct kref key, bool or_equal) {
  uint32_t from = 0, to = (hi - lo) / step;
  for (uint32_t i = 0; to > 1 && i < to; i++) prefetch(wh_leaf_entry(l, pos[lo + step * i + step - 1]));
  while (from < to) {
    const uint32_t mid = (from + to) / 2;
    if (kv_cmp(leaf_key(l, pos[lo + step * mid + step - 1]), key) < (or_equal ? 1 : 0)) from = mid + 1;
    else to = mid;
  }
  return lo + step * from;
}

uint32_t wh_leaf_place(const struct wh_leaf *l, const uint8_t *pos, uint32_t n, struct kref key, uint32_t rank,
                       bool or_equal) {
  const int32_t piece = wh_piece(key, l->skip);
  uint32_t lo = rank, hi = rank;
  while (hi < n && l->pieces[pos[hi]] == piece) hi++;
  if (unlikely(hi - lo > SAMPLE)) {
    lo = keys_search(l, pos, lo, hi, SAMPLE, key, or_equal);
    if (hi - lo > SAMPLE - 1) hi = lo + SAMPLE - 1;
  }
  return keys_search(l, pos, lo, hi, 1, key, or_equal);
}

// Inserts a few new entries, each at its place.
static void order_insert(const struct wh_leaf *l, uint8_t *pos, uint32_t base, uint32_t n) {
  for (; base < n; base++) {
    uint32_t at = wh_leaf_rank(l, base, l->pieces[base]);
    if (at < base && l->pieces[pos[at]] == l->pieces[base])
      at = wh_leaf_place(l, pos, base, leaf_key(l, base), at, false);
    memmove(pos + at + 1, pos + at, base - at);
    pos[at] = (uint8_t)base;
  }
}

// Reads the leaf's order. Returns how many entries the order covers, or 0 if a thread writes the order meanwhile. The
// loads are acquire. So a reader that loads a writer's word also sees that this writer has begun (Boehm: "Can Seqlocks
// Get Along With Programming Language Memory Models?", MSPC 2012).
static uint32_t order_load(const struct wh_leaf *l, uint8_t *pos, uint32_t *state_out) {
  const uint32_t state = *state_out = atomic_load_explicit(&l->ordered, memory_order_acquire), n = state & WH_ORDER_N;
  if (unlikely(state & WH_ORDER_BUSY)) return 0;
  for (uint32_t i = 0; i < n; i += 8) {
    const uint64_t w = atomic_load_explicit(&l->order[i / 8], memory_order_acquire);
    memcpy(pos + i, &w, sizeof(w));
  }
  return likely(atomic_load_explicit(&l->ordered, memory_order_relaxed) == state) ? n : 0;
}

// Stores an order, unless another thread has stored an order meanwhile or is storing one. state: the value that
// order_load read.
static void order_store(struct wh_leaf *l, uint32_t state, const uint8_t *pos, uint32_t n) {
  if (state & WH_ORDER_BUSY || !atomic_compare_exchange_strong_explicit(&l->ordered, &state, state | WH_ORDER_BUSY,
                                                                        memory_order_relaxed, memory_order_relaxed))
    return;
  for (uint32_t i = 0; i < n; i += 8) {
    uint64_t w = 0;
    memcpy(&w, pos + i, n - i < sizeof(w) ? n - i : sizeof(w));
    atomic_store_explicit(&l->order[i / 8], w, memory_order_release);  // after BUSY
  }
  atomic_store_explicit(&l->ordered, n, memory_order_release);
}

uint32_t wh_leaf_order(struct wh_leaf *l, uint8_t *pos) {
  // Read the order before the count. The thread that stored the order had seen a count as large as the order, so the
  // count is not smaller than the order.
  uint32_t state;
  const uint32_t base = order_load(l, pos, &state), n = atomic_load_explicit(&l->count, memory_order_acquire);
  if (likely(n == base)) return n;
  if (n - base >= MERGE_TAIL) order_merge(l, pos, base, n);
  else order_insert(l, pos, base, n);
  order_store(l, state, pos, n);
  return n;
}

struct wh_entry *wh_leaf_find_sorted(const struct wh_leaf *l, struct kref key) {
  uint8_t pos[WH_LEAF_KEYS];
  const uint32_t n = wh_leaf_order((struct wh_leaf *)(uintptr_t)l, pos);  // may store the order, which is only a cache
  const uint32_t at = wh_leaf_place(l, pos, n, key, wh_leaf_rank(l, n, wh_piece(key, l->skip)), false);
  WH_COUNT(compares);
  if (at == n) return NULL;
  struct wh_entry *const e = wh_leaf_entry(l, pos[at]);
  return wh_entry_is(e, key) ? e : NULL;
}

uint32_t wh_leaf_content(struct wh_leaf *l, struct wh_content *out) {
  uint8_t pos[WH_LEAF_KEYS];
  const uint32_t n = wh_leaf_order(l, pos);
  uint32_t nr = 0;
  for (uint32_t i = 0; i < n; i++) {
    const uint64_t w = wh_leaf_word(l, pos[i]);
    if (unlikely(l->holes) && !atomic_load_explicit(&wh_word_entry(w)->newest, memory_order_relaxed)) continue;
    out->words[nr] = w;
    out->pieces[nr++] = l->pieces[pos[i]];
  }
  out->nr = nr;
  out->skip = l->skip;
  out->tombs = wh_leaf_tombs_counted(l) != 0;
  return n;
}

// ---- chains of versions

const struct wh_ver *wh_ver_seen_far(const struct wh_ver *v, uint64_t moment) {
  while (v && wh_ver_seq(v) > moment) {
    WH_COUNT(versions);
    const struct wh_ver *next = wh_ver_older(v);
    if (wh_ver_is_mile(v)) {
      const struct wh_mile m = wh_ver_mile(v);
      if (m.jump_seq > moment) next = m.jump;
      else if (m.prev_seq > moment) next = m.prev;
    }
    v = next;
  }
  return v;
}

struct wh_mile wh_mile_after(const struct wh_ver *older) {
  while (older && !wh_ver_is_mile(older)) older = wh_ver_older(older);
  if (!older) return (struct wh_mile){0};
  const struct wh_mile before = wh_ver_mile(older);
  const uint64_t seq = wh_ver_seq(older);
  if (before.jump) {
    const struct wh_mile far = wh_ver_mile(before.jump);
    if (far.span == before.span)
      return (struct wh_mile){older, far.jump, seq, far.jump_seq, before.span + far.span + 1};
  }
  return (struct wh_mile){older, older, seq, seq, 1};
}
