// SPDX-License-Identifier: Apache-2.0
//
// A leaf of the wormhole, shared by its files alone: up to WH_LEAF_KEYS entries in the order in which they came, a table of hashes that finds one by its key, and
// the order of the keys, which is worked out when somebody asks for it. wh.h says what of it a reader without locks may rely on.
#ifndef WH_LEAF_H
#define WH_LEAF_H

#include <stdio.h>

#include "wh.h"

#define WH_IDX_SIZE 192u   // of which WH_LEAF_KEYS at most are taken
#define WH_IDX_FREE 0xffffu
#define WH_PTR_BITS 48
#define WH_PTR_MASK ((UINT64_C(1) << WH_PTR_BITS) - 1)
#define WH_ORDER_SAMPLE 16u  // of so many keys in order the last one

struct wh_order {  // immutable once published
  uint32_t n;           // covers entries[0, n)
  uint32_t nr_samples;  // n / WH_ORDER_SAMPLE, or 0
  uint64_t samples[];   // wh_key8() of the samples; then u8[n], the positions in order of key
};
static inline uint8_t *wh_order_pos(const struct wh_order *o) { return (uint8_t *)(uintptr_t)&o->samples[o->nr_samples]; }

struct wh_leaf {
  // line 0. anchor, lo8 and sorted are immutable.
  struct kref anchor;                   // in the arena
  uint64_t lo8;                         // wh_key8() of the anchor: most comparisons end here
  _Atomic(struct wh_leaf *) next;       // written under the structure lock, release; frozen at death
  _Atomic uint64_t end8;                // wh_key8() of the next leaf's anchor, all ones without one: keys below are the leaf's while it lives, and nothing more
                                        // has to be looked at. Gets smaller, with release, before a new leaf is linked behind
  _Atomic(struct wh_order *) order;     // release-published, by a cursor (CAS) or the holder of the lock; NULL: use sorted
  struct lib_lock lock;                 // guards count, entries and idx against other writers
  _Atomic uint16_t count;               // release, after the entry and its place in idx
  uint8_t sorted;                       // entries[0, sorted) were put there in order of key
  _Atomic bool dead;                    // set with release under the leaf's lock and the structure lock
  _Atomic uint8_t spent;                // by cursors, on entries outside of the order; relaxed, and a little wrong when two add at once
  // Positions in entries by hash, below 8 more bits of it, so that a key that is not there seldom leads further; open addressing with linear probing; stored with
  // release after entries[].
  _Alignas(CACHE_LINE) _Atomic uint16_t idx[WH_IDX_SIZE];
  _Atomic uint64_t entries[WH_LEAF_KEYS];  // pointer to wh_entry | 16 bits of its hash on top
  _Atomic(struct wh_leaf *) prev;          // as next
  struct wh_leaf *after;                   // of a dead one: in the list it waits in
};
_Static_assert(WH_IDX_SIZE > WH_LEAF_KEYS && WH_IDX_SIZE <= 256, "a search of idx ends, and 8 bits of a hash lead to each of its places");
_Static_assert(offsetof(struct wh_leaf, idx) == CACHE_LINE, "what a walk along the list reads is one line");

static inline struct wh_leaf *wh_leaf_next(const struct wh_leaf *l) { return atomic_load_explicit(&l->next, memory_order_acquire); }
static inline struct wh_leaf *wh_leaf_prev(const struct wh_leaf *l) { return atomic_load_explicit(&l->prev, memory_order_acquire); }
static inline bool wh_leaf_dead(const struct wh_leaf *l) { return atomic_load_explicit(&l->dead, memory_order_acquire); }
static inline struct wh_entry *wh_word_entry(uint64_t w) { return (struct wh_entry *)(uintptr_t)(w & WH_PTR_MASK); }
// Relaxed: published by idx, the count or the order that the position came from.
static inline uint64_t wh_leaf_word(const struct wh_leaf *l, uint32_t pos) {
  return atomic_load_explicit(&l->entries[pos], memory_order_relaxed);
}
static inline struct wh_entry *wh_leaf_entry(const struct wh_leaf *l, uint32_t pos) { return wh_word_entry(wh_leaf_word(l, pos)); }
static inline struct kref wh_entry_key(const struct wh_entry *e) { return kref(e->key, e->klen); }
static inline struct wh_ver *wh_entry_newest(const struct wh_entry *e) {
  return atomic_load_explicit(&e->newest, memory_order_acquire);
}
// Published with the version.
static inline struct wh_ver *wh_ver_older(const struct wh_ver *v) { return v->chained ? ((struct wh_ver *const *)(const void *)v)[-1] : NULL; }
static inline uint64_t wh_ver_seq(const struct wh_ver *v) { return atomic_load_explicit(&v->seq, memory_order_acquire); }
static inline uint64_t wh_entry_tag(uint32_t hash) { return (uint64_t)(hash & 0xffff) << WH_PTR_BITS; }
static inline uint32_t wh_idx_start(uint32_t hash) { return (hash >> 24) * WH_IDX_SIZE >> 8; }
static inline uint32_t wh_idx_behind(uint32_t i) { return i + 1 == WH_IDX_SIZE ? 0 : i + 1; }
// What idx holds for an entry of this hash and position, and back.
static inline uint32_t wh_idx_word(uint32_t hash, uint32_t pos) { return (hash >> 8 & 0xff00) | pos; }
static inline uint32_t wh_idx_pos(uint32_t word) { return word & 0xff; }
static inline bool wh_idx_fits(uint32_t word, uint32_t hash) { return ((word ^ wh_idx_word(hash, 0)) & 0xff00) == 0; }
static inline uint32_t wh_idx_load(const _Atomic uint16_t *at) { return atomic_load_explicit(at, memory_order_acquire); }

// The 8 bytes at from, big-endian, zeros behind the key's end. Where they differ they order as the keys do (when the keys agree
// before from): a zero that is not there sorts like one that is, and a real difference comes after; equal ones say nothing.
static inline uint64_t wh_key8(struct kref k, uint32_t from) {
  const uint32_t rest = k.len > from ? k.len - from : 0;
  if (likely(rest >= 8)) return load64be(k.ptr + from);
  if (rest == 0) return 0;
  if (k.len >= 8) return load64be(k.ptr + k.len - 8) << (64 - 8 * rest);
  uint64_t v = 0;
  for (uint32_t i = 0; i < rest; i++) v |= (uint64_t)k.ptr[from + i] << (56 - 8 * i);
  return v;
}

// The leaf's anchor against a key, k8 = wh_key8(key, 0).
static inline int wh_leaf_cmp(const struct wh_leaf *l, struct kref key, uint64_t k8) {
  if (l->lo8 != k8) return l->lo8 < k8 ? -1 : 1;
  return kv_cmp(l->anchor, key);
}

// From the arena, aligned to a line, with an address that fits a tagged word. NULL: REMIXDB_NOMEM, and the message is set.
void *wh_line_alloc(struct arena *a, size_t size);
// Makes the memory a locked leaf with these entries, which are in order. Its neighbours are the caller's to set.
void wh_leaf_init(struct wh_leaf *l, struct kref anchor, const uint64_t *words, uint32_t nr);
// The leaf's lock is held (or the leaf is not published), and there is room. word: pointer and tag, as in entries.
void wh_leaf_append(struct wh_leaf *l, uint64_t word);

// The entry of the key; hash = hash64(key). NULL: it is not there.
static inline struct wh_entry *wh_leaf_find(const struct wh_leaf *l, struct kref key, uint64_t hash) {
  const uint32_t h32 = (uint32_t)(hash >> 32);
  const uint64_t tag = wh_entry_tag(h32);
  for (uint32_t i = wh_idx_start(h32);; i = wh_idx_behind(i)) {  // ends: not all of idx is taken
    const uint32_t at = wh_idx_load(&l->idx[i]);
    if (at == WH_IDX_FREE) return NULL;
    if (!wh_idx_fits(at, h32)) continue;
    const uint64_t w = wh_leaf_word(l, wh_idx_pos(at));
    if ((w ^ tag) >> WH_PTR_BITS) continue;
    struct wh_entry *e = wh_word_entry(w);
    __builtin_prefetch((const uint8_t *)e + CACHE_LINE);  // the first version lies behind the key
    if (e->hash == h32 && e->klen == key.len && (key.len == 0 || memcmp(e->key, key.ptr, key.len) == 0)) return e;
  }
}

// The newest version of the chain that is seen at the moment.
static inline const struct wh_ver *wh_ver_seen(const struct wh_ver *v, uint64_t moment) {
  while (v && wh_ver_seq(v) > moment) v = wh_ver_older(v);
  return v;
}

// What a search of the leaf reads first.
static inline void wh_leaf_prefetch(const struct wh_leaf *l, uint64_t hash) {
  __builtin_prefetch((const void *)&l->idx[wh_idx_start((uint32_t)(hash >> 32))]);
  __builtin_prefetch(l);
}

// Whether a leaf at or left of the key's place is the key's: the range check of the holder of its lock, or of a reader.
static inline bool wh_leaf_ends_behind(const struct wh_leaf *l, struct kref key, uint64_t k8) {
  if (likely(k8 < atomic_load_explicit(&l->end8, memory_order_acquire))) return true;
  const struct wh_leaf *next = wh_leaf_next(l);
  return next == NULL || wh_leaf_cmp(next, key, k8) > 0;
}

// ---- order

// Writes the positions of the leaf's entries in order of key; returns how many. *tail_out: how many the published order lacks.
// *published_out: the published order when it is the same; NULL: it is not.
uint32_t wh_leaf_order(const struct wh_leaf *l, uint8_t *pos, uint32_t *tail_out, const struct wh_order **published_out);
// Publishes the order for those that come later, in memory of the arena; `identity` is that of a full leaf that was filled in order. No memory, or somebody else was
// faster: no harm.
void wh_leaf_publish(struct wh_leaf *l, struct arena *a, struct wh_order *identity, const uint8_t *pos, uint32_t n);
// From the arena. NULL: no memory.
struct wh_order *wh_order_identity(struct arena *a);
// The words of the entries that have a version, in the order of pos. The lock is held.
uint32_t wh_leaf_words(const struct wh_leaf *l, const uint8_t *pos, uint32_t nr_pos, uint64_t *words);

// ---- for checks (wh_check): what is broken into why, of cap bytes, and false.
#define WH_BROKEN(...) return (void)snprintf(why, cap, __VA_ARGS__), false
#endif
