// SPDX-License-Identifier: Apache-2.0
//
// A leaf of the wormhole. Private to wh.c and wh/.
//
// A leaf has up to WH_LEAF_KEYS entries in the order of their arrival, a table that finds an entry by the hash of its
// key, and the order of the keys. A reader that needs a longer order computes it. wh.h states the guarantees for a
// reader without locks.
#ifndef WH_LEAF_H
#define WH_LEAF_H

#include <stdio.h>

#include "base/arena.h"
#include "wh/ver.h"

#define WH_IDX_SIZE 192u  // at most WH_LEAF_KEYS places of it are taken
#define WH_IDX_FREE 0xffffu
#define WH_PTR_BITS 48
#define WH_PTR_MASK ((UINT64_C(1) << WH_PTR_BITS) - 1)
#define WH_VER_BEFORE 12u  // bytes from a version back to the pointer to the older one
#define WH_VER_HEAD \
  20u  // bytes from a version back to the word with the entry and the key's length; the key ends there
#define WH_VER_STRIDE 8u      // every so many versions of a chain there is a milestone
#define WH_VER_KEY_MAX 32u    // longer keys have no copy beside a version: it would cost more memory than it is worth
#define WH_SAME_HASH 4u       // keys of equal hash that a search compares before it goes by their order
#define WH_ORDER_N 0xffu      // how many entries the order covers
#define WH_ORDER_BUSY 0x100u  // a thread is writing the order

struct wh_leaf {
  // line 0. anchor, lo8, end8 and skip are immutable.
  struct kref anchor;              // in the arena
  uint64_t lo8;                    // wh_key8() of the anchor; it decides most comparisons
  _Atomic(struct wh_leaf *) next;  // written under the structure lock, release; frozen at death
  uint64_t end8;  // wh_key8() of the next leaf's anchor; all ones: there is none. Keys below it belong to the leaf
                  // while it lives
  uint32_t skip;  // all keys of the range begin with the anchor's first `skip` bytes, at least
  _Atomic uint32_t ordered;  // WH_ORDER_N and WH_ORDER_BUSY: a sequence lock that readers never wait for. The number
                             // only grows, so a reader that finds it unchanged has read the order that it stands for
  struct lib_lock lock;      // guards count, entries, pieces and idx against other writers
  _Atomic uint16_t count;    // release, after the entry, its piece and its place in idx
  _Atomic bool dead;         // set with release under the leaf's lock and the structure lock
  bool holes;                // some entries may have no version; guarded by lock
  _Atomic bool gapped;       // `gaps` is set; release
  _Atomic bool lapsed;       // a gap may take expired records here as absent (G7 of wh/gap.h); exchanges only
  _Atomic uint16_t tombs;    // entries whose newest version is a tombstone, pending or not, or that have no version;
                             // written under lock, relaxed
  _Atomic uint32_t puts;  // versions other than tombstones that were linked, modulo 2^32; written under lock, release
  // The positions of entries[0, ordered & WH_ORDER_N) in order of key, a byte each.
  _Alignas(CACHE_LINE) _Atomic uint64_t order[WH_LEAF_KEYS / 8];
  int32_t pieces[WH_LEAF_KEYS];  // wh_piece() of the entries' keys; immutable below count
  // Hash table of positions in entries, with open addressing and linear probing. A position is stored with release
  // after its entry. The bits above the position hold 8 more bits of the hash, so that a search for a missing key
  // seldom reads an entry.
  _Atomic uint16_t idx[WH_IDX_SIZE];
  _Atomic uint64_t entries[WH_LEAF_KEYS];  // pointer to wh_entry | the upper 16 bits of its hash on top
  _Atomic(struct wh_leaf *) prev;          // as next
  struct wh_leaf *after;                   // the next leaf in a list of dead leaves
  uint32_t cut;                            // number of the cut that made it (wh.cuts); guarded by the structure lock
  _Atomic(struct wh_gaps *) gaps;          // wh/gap.h; NULL until a merge has passed tombstones here; release
};
_Static_assert(WH_IDX_SIZE > WH_LEAF_KEYS && WH_IDX_SIZE <= 256,
               "a search of idx ends, and 8 bits of a hash lead to each of its places");
_Static_assert(offsetof(struct wh_leaf, order) == CACHE_LINE, "a walk along the list reads one line of a leaf");
_Static_assert(WH_LEAF_KEYS <= WH_ORDER_N && WH_LEAF_KEYS % 8 == 0, "a count of entries fits");

static inline struct wh_leaf *wh_leaf_next(const struct wh_leaf *l) {
  return atomic_load_explicit(&l->next, memory_order_acquire);
}
static inline struct wh_leaf *wh_leaf_prev(const struct wh_leaf *l) {
  return atomic_load_explicit(&l->prev, memory_order_acquire);
}
static inline bool wh_leaf_dead(const struct wh_leaf *l) {
  return atomic_load_explicit(&l->dead, memory_order_acquire);
}
static inline uint32_t wh_leaf_tombs_counted(const struct wh_leaf *l) {
  return atomic_load_explicit(&l->tombs, memory_order_relaxed);
}
static inline void wh_leaf_set_tombs(struct wh_leaf *l, uint32_t nr) {
  atomic_store_explicit(&l->tombs, (uint16_t)nr, memory_order_relaxed);
}
// For assertions: whether any thread holds the leaf's lock.
static inline bool wh_leaf_locked(const struct wh_leaf *l) {
  return atomic_load_explicit(&l->lock.word, memory_order_relaxed) != 0;
}
static inline struct wh_entry *wh_word_entry(uint64_t w) { return (struct wh_entry *)(uintptr_t)(w & WH_PTR_MASK); }
// Relaxed is enough: the position came from idx, count or order, which published the word.
static inline uint64_t wh_leaf_word(const struct wh_leaf *l, uint32_t pos) {
  return atomic_load_explicit(&l->entries[pos], memory_order_relaxed);
}
static inline struct wh_entry *wh_leaf_entry(const struct wh_leaf *l, uint32_t pos) {
  return wh_word_entry(wh_leaf_word(l, pos));
}
static inline struct kref wh_entry_key(const struct wh_entry *e) { return kref(e->key, e->klen); }
static inline bool wh_entry_is(const struct wh_entry *e, struct kref key) {
  return e->klen == key.len && (key.len == 0 || memcmp(e->key, key.ptr, key.len) == 0);
}
// The word of wh_entry.newest: its version, the version's turn, the word of a version (NULL: 0, with turn 0).
static inline struct wh_ver *wh_newest_ver(uintptr_t w) { return w ? (struct wh_ver *)((w | 7) - 3) : NULL; }
static inline uintptr_t wh_newest_word(const struct wh_ver *v, uint32_t turn) {
  return ((uintptr_t)v & ~(uintptr_t)7) | turn;
}
static inline uint32_t wh_newest_turn(uintptr_t w) { return (uint32_t)(w & 7); }
static inline struct wh_ver *wh_entry_newest(const struct wh_entry *e) {
  return wh_newest_ver(atomic_load_explicit(&e->newest, memory_order_acquire));
}
// Written before the version was published.
static inline struct wh_ver *wh_ver_older(const struct wh_ver *v) {
  struct wh_ver *older = NULL;
  if (v->chained) memcpy(&older, (const uint8_t *)v - WH_VER_BEFORE, sizeof(older));
  return older;
}
// Whether a word of `recent` points to a version. Otherwise it points to an entry, at a multiple of eight.
static inline bool wh_recent_is_ver(const void *recent) { return ((uintptr_t)recent & 4) != 0; }
// The word before a version that `recent` names: entry and length of the key. Written before the version was published.
static inline uint64_t wh_ver_head(const struct wh_ver *v) {
  uint64_t head;
  memcpy(&head, (const uint8_t *)v - WH_VER_HEAD, sizeof(head));
  return head;
}
static inline struct kref wh_ver_key(const struct wh_ver *v) {
  const uint32_t klen = (uint32_t)(wh_ver_head(v) >> WH_PTR_BITS);
  return kref((const uint8_t *)v - WH_VER_HEAD - klen, klen);
}
static inline struct wh_entry *wh_ver_entry(const struct wh_ver *v) {
  return (struct wh_entry *)(uintptr_t)(wh_ver_head(v) & WH_PTR_MASK);
}
static inline uint64_t wh_entry_tag(uint32_t hash) { return (uint64_t)(hash >> 16) << WH_PTR_BITS; }
static inline uint64_t wh_entry_word(const struct wh_entry *e, uint64_t hash) {
  return (uint64_t)(uintptr_t)e | wh_entry_tag((uint32_t)(hash >> 32));
}
// The tag's part of the hash, which is enough for a place in idx.
static inline uint32_t wh_word_hash(uint64_t w) { return (uint32_t)(w >> WH_PTR_BITS) << 16; }
static inline uint32_t wh_idx_start(uint32_t hash) { return (hash >> 24) * WH_IDX_SIZE >> 8; }
static inline uint32_t wh_idx_behind(uint32_t i) { return i + 1 == WH_IDX_SIZE ? 0 : i + 1; }
// The word in idx for an entry of this hash and position, and its parts.
static inline uint32_t wh_idx_word(uint32_t hash, uint32_t pos) { return (hash >> 8 & 0xff00) | pos; }
static inline uint32_t wh_idx_pos(uint32_t word) { return word & 0xff; }
static inline bool wh_idx_fits(uint32_t word, uint32_t hash) { return ((word ^ wh_idx_word(hash, 0)) & 0xff00) == 0; }
static inline uint32_t wh_idx_load(const _Atomic uint16_t *at) {
  return atomic_load_explicit(at, memory_order_acquire);
}

// Returns the 8 bytes of the key at `from`, big-endian, with zeros after the key's end. If two keys agree before
// `from`, different values have the same order as the keys. (A missing byte counts as zero, so a difference of the
// values comes from a later or a larger byte.) Equal values say nothing about the order of the keys.
static inline uint64_t wh_key8(struct kref k, uint32_t from) {
  const uint32_t rest = k.len > from ? k.len - from : 0;
  if (likely(rest >= 8)) return load64be(k.ptr + from);
  if (rest == 0) return 0;
  if (k.len >= 8) return load64be(k.ptr + k.len - 8) << (64 - 8 * rest);
  uint64_t v = 0;
  for (uint32_t i = 0; i < rest; i++) v |= (uint64_t)k.ptr[from + i] << (56 - 8 * i);
  return v;
}

// Compares the leaf's anchor with a key. k8 = wh_key8(key, 0).
static inline int wh_leaf_cmp(const struct wh_leaf *l, struct kref key, uint64_t k8) {
  if (l->lo8 != k8) return l->lo8 < k8 ? -1 : 1;
  return kv_cmp(l->anchor, key);
}

// Returns the piece of a key in a leaf: the four bytes after the leaf's common bytes, biased so that they order as
// signed numbers. Different pieces have the same order as their keys. Equal pieces say nothing about the order.
static inline int32_t wh_piece(struct kref key, uint32_t skip) {
  return (int32_t)((uint32_t)(wh_key8(key, skip) >> 32) ^ 0x80000000u);
}

// The entries of a leaf in the order of their keys.
struct wh_content {
  uint32_t nr, skip;
  bool tombs;  // some of them may be tombstones
  uint64_t words[WH_LEAF_KEYS];
  int32_t pieces[WH_LEAF_KEYS];
};

// Allocates memory from the arena, aligned to a cache line, with an address that fits a tagged word. Returns NULL on
// failure (REMIXDB_NOMEM), with a message.
void *wh_line_alloc(struct arena *a, size_t size);
// Makes the memory a locked leaf for the range [anchor, end), with the entries content[from, to). end NULL: the range
// has no end. content NULL: no entries. The caller sets the neighbours. The anchor's bytes must live as long as the
// index.
void wh_leaf_init(struct wh_leaf *l, struct kref anchor, const struct kref *end, const struct wh_content *content,
                  uint32_t from, uint32_t to);
// Appends an entry. The caller holds the leaf's lock, or the leaf is not published. The leaf must have room. word:
// pointer and tag, as in entries; piece: the piece of the entry's key.
void wh_leaf_append(struct wh_leaf *l, uint64_t word, int32_t piece);

// Does the same as wh_leaf_find, by the order of the keys.
struct wh_entry *wh_leaf_find_sorted(const struct wh_leaf *l, struct kref key);
// Returns the entry of the key, or NULL; hash = hash64(key). A user who chooses keys can give all keys of a leaf the
// same hash. So the search compares a few keys of equal hash, and then searches the keys in order.
static inline struct wh_entry *wh_leaf_find(const struct wh_leaf *l, struct kref key, uint64_t hash) {
  const uint32_t h32 = (uint32_t)(hash >> 32);
  const uint64_t tag = wh_entry_tag(h32);
  uint32_t others = 0;
  for (uint32_t i = wh_idx_start(h32);; i = wh_idx_behind(i)) {  // the loop ends, because idx is never full
    const uint32_t at = wh_idx_load(&l->idx[i]);
    if (at == WH_IDX_FREE) return NULL;
    if (!wh_idx_fits(at, h32)) continue;
    const uint64_t w = wh_leaf_word(l, wh_idx_pos(at));
    if ((w ^ tag) >> WH_PTR_BITS) continue;
    struct wh_entry *e = wh_word_entry(w);
    prefetch((const uint8_t *)e + CACHE_LINE);  // the first version follows the key
    WH_COUNT(compares);
    if (wh_entry_is(e, key)) return e;
    if (unlikely(++others == WH_SAME_HASH)) return wh_leaf_find_sorted(l, key);
  }
}

// Ways over many versions of a chain at once. They stand before a milestone's other parts, unaligned.
struct __attribute__((packed)) wh_mile {
  const struct wh_ver *prev, *jump;  // the milestone before this one, and one that is further back; NULL: none
  uint64_t prev_seq, jump_seq;       // their numbers, so that a search reads only what it goes to; 0: none
  uint32_t span;                     // how many milestones `jump` is back; 0 without it
};
static inline bool wh_ver_is_mile(const struct wh_ver *v) { return v->chained && v->turn == 0; }
// Bytes before a chained version, without those of a milestone.
static inline size_t wh_ver_before(const struct wh_ver *v) {
  return v->keyed ? WH_VER_HEAD + (size_t)(wh_ver_head(v) >> WH_PTR_BITS) : WH_VER_BEFORE;
}
// Only for a milestone.
static inline struct wh_mile wh_ver_mile(const struct wh_ver *v) {
  struct wh_mile m;
  memcpy(&m, (const uint8_t *)v - wh_ver_before(v) - sizeof(m), sizeof(m));
  return m;
}
// The ways of a new milestone in front of `older`. Their lengths are those of Myers, "An applicative random-access
// stack", Information Processing Letters 17 (1983): a search makes O(log n) steps in a chain of n milestones, and a new
// milestone reads two others.
struct wh_mile wh_mile_after(const struct wh_ver *older);
// Returns the newest version at the moment, from v on in the chain, or NULL. v is newer than the moment.
const struct wh_ver *wh_ver_seen_far(const struct wh_ver *v, uint64_t moment);
// The same; v may be NULL.
static inline const struct wh_ver *wh_ver_seen(const struct wh_ver *v, uint64_t moment) {
  if (likely(!v || wh_ver_seq(v) <= moment)) return v;
  return wh_ver_seen_far(v, moment);
}

// Prefetches the lines that a search of the leaf reads first.
static inline void wh_leaf_prefetch(const struct wh_leaf *l, uint64_t hash) {
  prefetch((const void *)&l->idx[wh_idx_start((uint32_t)(hash >> 32))]);
  prefetch(l);
}

// Tells whether the leaf's range ends after the key. If so, and if the leaf's anchor is not greater than the key, the
// key belongs to the leaf. Callers hold the leaf's lock, or are readers.
static inline bool wh_leaf_ends_behind(const struct wh_leaf *l, struct kref key, uint64_t k8) {
  if (likely(k8 < l->end8)) return true;
  const struct wh_leaf *next = wh_leaf_next(l);
  return next == NULL || wh_leaf_cmp(next, key, k8) > 0;
}

// ---- order

// Returns how many of the first n pieces are smaller than the given piece.
static inline uint32_t wh_leaf_rank(const struct wh_leaf *l, uint32_t n, int32_t piece) {
  uint32_t rank = 0;
  for (uint32_t i = 0; i < n; i++) rank += l->pieces[i] < piece;
  return rank;
}
// Returns how many of n entries have a smaller key than the given one (or_equal: or an equal key). pos: the entries'
// positions, in the order of their keys. The given key begins with the leaf's first `skip` bytes. rank:
// wh_leaf_rank for the key's piece.
uint32_t wh_leaf_place(const struct wh_leaf *l, const uint8_t *pos, uint32_t n, struct kref key, uint32_t rank,
                       bool or_equal);
// Writes the positions of the leaf's entries in the order of their keys. Returns the number of positions. If the order
// in the leaf is too short, the call stores the new order there for later calls, unless another thread is storing one.
// Readers may do so, because the order is only a cache (W9).
uint32_t wh_leaf_order(struct wh_leaf *l, uint8_t *pos);
// Collects the leaf's entries that have a version. Returns the number of all entries of the leaf. The caller holds the
// lock.
uint32_t wh_leaf_content(struct wh_leaf *l, struct wh_content *out);

// Returns how many entries have a tombstone as their newest version, or no version. The caller holds the lock.
uint32_t wh_leaf_tombs(const struct wh_leaf *l);

// ---- for checks (wh_check): returns false, with a message in the cap bytes at why.
#define WH_BROKEN(...) return (void)snprintf(why, cap, __VA_ARGS__), false
#endif
