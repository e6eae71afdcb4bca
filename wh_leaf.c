// SPDX-License-Identifier: Apache-2.0
#include "wh_leaf.h"

#define MERGE_TAIL 8u  // so many entries are put in order together

void *wh_line_alloc(struct arena *a, size_t size) {
  uint8_t *p = arena_alloc(a, size + CACHE_LINE - 8);
  if (p == NULL) return NULL;
  if (unlikely(((uint64_t)(uintptr_t)p + size) >> WH_PTR_BITS != 0)) {
    (void)err_set(REMIXDB_NOMEM, "an address of more than %d bits", WH_PTR_BITS);
    return NULL;
  }
  return (void *)(uintptr_t)align_up((uintptr_t)p, CACHE_LINE);
}

void wh_leaf_append(struct wh_leaf *l, uint64_t word) {
  const uint32_t n = atomic_load_explicit(&l->count, memory_order_relaxed);
  atomic_store_explicit(&l->entries[n], word, memory_order_relaxed);
  const uint32_t hash = wh_word_entry(word)->hash;
  uint32_t i = wh_idx_start(hash);
  while (atomic_load_explicit(&l->idx[i], memory_order_relaxed) != WH_IDX_FREE) i = wh_idx_behind(i);
  atomic_store_explicit(&l->idx[i], (uint16_t)wh_idx_word(hash, n), memory_order_release);
  atomic_store_explicit(&l->count, (uint16_t)(n + 1), memory_order_release);
}

void wh_leaf_init(struct wh_leaf *l, struct kref anchor, const uint64_t *words, uint32_t nr) {
  l->anchor = anchor;
  l->lo8 = wh_key8(anchor, 0);
  atomic_init(&l->next, NULL);
  atomic_init(&l->end8, UINT64_MAX);
  atomic_init(&l->prev, NULL);
  atomic_init(&l->order, NULL);
  atomic_init(&l->lock.word, 1);
  atomic_init(&l->count, 0);
  l->sorted = (uint8_t)nr;
  atomic_init(&l->dead, false);
  atomic_init(&l->spent, 0);
  memset((void *)l->idx, 0xff, sizeof(l->idx));
  for (uint32_t i = 0; i < nr; i++) wh_leaf_append(l, words[i]);
}

// ---- order

struct item {
  uint64_t k8;
  const struct wh_entry *e;
  uint32_t pos;
};

static inline bool item_less(const struct item *a, const struct item *b) {
  if (likely(a->k8 != b->k8)) return a->k8 < b->k8;
  return kv_cmp(wh_entry_key(a->e), wh_entry_key(b->e)) < 0;
}

static void items_merge(const struct item *a, uint32_t na, const struct item *b, uint32_t nb, struct item *out) {
  while (na && nb) {
    if (item_less(b, a)) {
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

// Merge sort from runs of 8; what is sorted already costs one pass.
static void items_sort(struct item *v, uint32_t n, struct item *tmp) {
  uint32_t i = 1;
  while (i < n && item_less(&v[i - 1], &v[i])) i++;
  if (i >= n) return;
  for (uint32_t from = 0; from < n; from += 8) {
    const uint32_t to = n - from < 8 ? n : from + 8;
    for (uint32_t j = from + 1; j < to; j++) {
      const struct item it = v[j];
      uint32_t k = j;
      for (; k > from && item_less(&it, &v[k - 1]); k--) v[k] = v[k - 1];
      v[k] = it;
    }
  }
  for (uint32_t run = 8; run < n; run *= 2) {
    for (uint32_t from = 0; from < n; from += 2 * run) {
      const uint32_t na = n - from < run ? n - from : run;
      const uint32_t nb = n - from - na < run ? n - from - na : run;
      items_merge(v + from, na, v + from + na, nb, tmp + from);
    }
    memcpy(v, tmp, n * sizeof(*v));
  }
}

// Merges the unordered entries [base, n) into the positions of the first base, which are in order.
static void order_merge(const struct wh_leaf *l, uint8_t *pos, uint32_t base, uint32_t n) {
  struct item items[2 * WH_LEAF_KEYS], tmp[WH_LEAF_KEYS];
  for (uint32_t i = base; i < n; i++) pos[i] = (uint8_t)i;
  for (uint32_t i = 0; i < n; i++) __builtin_prefetch(wh_leaf_entry(l, i));
  const struct kref first = wh_entry_key(wh_leaf_entry(l, pos[0]));
  uint32_t skip = first.len;  // of the common prefix, so that the 8 bytes tell the keys apart
  for (uint32_t i = 0; i < n; i++) {
    const struct wh_entry *e = wh_leaf_entry(l, pos[i]);
    items[i] = (struct item){.e = e, .pos = pos[i]};
    const struct kref k = wh_entry_key(e);
    if (skip && (k.len < skip || memcmp(first.ptr, k.ptr, skip) != 0)) skip = kv_lcp_from(first, k, 0);
  }
  for (uint32_t i = 0; i < n; i++) items[i].k8 = wh_key8(wh_entry_key(items[i].e), skip);
  items_sort(items + base, n - base, tmp);
  struct item *merged = items;
  if (base && item_less(&items[base], &items[base - 1])) {
    merged = items + WH_LEAF_KEYS;
    items_merge(items, base, items + base, n - base, merged);
  }
  for (uint32_t i = 0; i < n; i++) pos[i] = (uint8_t)merged[i].pos;
}

// A few entries more: by binary search each.
static void order_insert(const struct wh_leaf *l, uint8_t *pos, uint32_t base, uint32_t n) {
  for (uint32_t i = base; i < n; i++) __builtin_prefetch(wh_leaf_entry(l, i));
  for (; base < n; base++) {
    const struct kref key = wh_entry_key(wh_leaf_entry(l, base));
    uint32_t lo = 0, hi = base;
    if (base && kv_cmp(wh_entry_key(wh_leaf_entry(l, pos[base - 1])), key) < 0) lo = base;
    while (lo < hi) {
      const uint32_t mid = (lo + hi) / 2;
      if (kv_cmp(wh_entry_key(wh_leaf_entry(l, pos[mid])), key) < 0)
        lo = mid + 1;
      else
        hi = mid;
    }
    memmove(pos + lo + 1, pos + lo, base - lo);
    pos[lo] = (uint8_t)base;
  }
}

uint32_t wh_leaf_order(const struct wh_leaf *l, uint8_t *pos, uint32_t *tail_out, const struct wh_order **published_out) {
  // The order first: whoever published it had seen the count it covers, so the count read now is not smaller.
  const struct wh_order *o = atomic_load_explicit(&l->order, memory_order_acquire);
  const uint32_t n = atomic_load_explicit(&l->count, memory_order_acquire);
  const uint32_t base = o ? o->n : l->sorted;
  if (o)
    memcpy(pos, wh_order_pos(o), base);
  else
    for (uint32_t i = 0; i < base; i++) pos[i] = (uint8_t)i;
  if (n - base >= MERGE_TAIL)
    order_merge(l, pos, base, n);
  else if (n > base)
    order_insert(l, pos, base, n);
  *tail_out = n - base;
  *published_out = n == base ? o : NULL;
  return n;
}

void wh_leaf_publish(struct wh_leaf *l, struct arena *a, struct wh_order *identity, const uint8_t *pos, uint32_t n) {
  struct wh_order *seen = atomic_load_explicit(&l->order, memory_order_acquire);
  if (seen && seen->n >= n) return;
  struct wh_order *o = identity;
  if (n != WH_LEAF_KEYS || memcmp(pos, wh_order_pos(o), n) != 0) {
    const uint32_t nr_samples = n / WH_ORDER_SAMPLE;
    o = arena_alloc(a, sizeof(*o) + nr_samples * sizeof(o->samples[0]) + n);
    if (o == NULL) return;
    o->n = n;
    o->nr_samples = nr_samples;
    for (uint32_t i = 0; i < nr_samples; i++) o->samples[i] = wh_key8(wh_entry_key(wh_leaf_entry(l, pos[WH_ORDER_SAMPLE * i + WH_ORDER_SAMPLE - 1])), 0);
    memcpy(wh_order_pos(o), pos, n);
  }
  (void)atomic_compare_exchange_strong_explicit(&l->order, &seen, o, memory_order_release, memory_order_relaxed);
}

struct wh_order *wh_order_identity(struct arena *a) {
  struct wh_order *const o = arena_alloc(a, sizeof(*o) + WH_LEAF_KEYS);
  if (o == NULL) return NULL;
  o->n = WH_LEAF_KEYS;
  o->nr_samples = 0;  // it serves many leaves
  for (uint32_t i = 0; i < WH_LEAF_KEYS; i++) wh_order_pos(o)[i] = (uint8_t)i;
  return o;
}

uint32_t wh_leaf_words(const struct wh_leaf *l, const uint8_t *pos, uint32_t nr_pos, uint64_t *words) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < nr_pos; i++) {
    const uint64_t w = wh_leaf_word(l, pos[i]);
    if (atomic_load_explicit(&wh_word_entry(w)->newest, memory_order_relaxed)) words[nr++] = w;
  }
  return nr;
}
