// SPDX-License-Identifier: Apache-2.0
//
// The wormhole. Three parts: leaves (entries, hash part, order), the trie (nodes in a hash table), and the list that ties them.
// The list is the truth, the trie only a hint.
//
// Why a reader without locks is right. A change of the structure holds the structure lock and the locks of the leaves that die in
// it. New leaves are made locked, take their place in the list, then the old ones are marked dead, then the trie is brought up
// to date and the structure lock given back: the change is over. Only then are the new leaves unlocked. Call a leaf *fresh for S*
// unless the change in which it died was over before the moment S was taken ("before" is C11's happens-before).
//   (a) A fresh leaf holds every key of its range that has a version <= S. Keys with a committed version are never taken out of
//       the index, only copied to successors, and a commit into a successor comes after the change: if S includes such a commit,
//       the change was over before S.
//   (b) A leaf seen alive by a reader that has S already is fresh: had the change been over before S, coherence would show it
//       dead. (That its memory is no other leaf by now is what epochs are for: W6.)
//   (c) If X is fresh, so is Y when read from X.next or X.prev. Suppose the change that killed Y was over before S. If X outlived
//       it, the change stored Y's successor in X, and the reader would see that. If X died in it, or in an earlier one (the
//       structure lock puts changes in order), X's change was over before S too, and X is not fresh. A dead leaf's own pointers
//       are frozen because a change writes only to living leaves: it finds the neighbours through a living leaf.
//   (d) The range of a living leaf is fixed: a split of its right neighbour keeps that neighbour's anchor, a merge with it kills
//       the leaf. There is one exception: a full leaf to which a key behind all of its keys comes stays as it is and gets a new,
//       empty right neighbour R, so its range shrinks from [a, b) to [a, r). At that moment no key of [r, b) exists. If a commit
//       into R is <= S, the pointers to R were stored before S and are seen; if none is, R (and whatever comes of it) has nothing
//       for S, and missing it is harmless.
// From (a) to (d): the ranges of the leaves a cursor visits along next (or prev) abut, up to gaps without keys for S; a leaf
// holds only keys of its range, and all of those for S. So no key is missed and none is seen twice, whatever splits and merges
// meanwhile, and it does not matter whether a leaf's neighbour is read before or after its entries. The same holds for a single
// get: a leaf of the key's range that is seen alive has the key, or nobody has it for S.
//
// The trie. A node lists which bytes continue its prefix and the first and last leaf whose anchors start with it. A change
// updates the list first, then the nodes of the prefixes of the anchors concerned, the longest first where bounds move, and can
// stop at the first prefix that does not name the leaf: a leaf that is not at the edge of a subtree is not at the edge of one
// that contains it. New nodes enter the table from the shortest to the longest, each before its parent's bit; removal is the
// reverse. A reader in between finds too short a prefix, no child, or an old leaf; each gives a leaf near the right one, and
// locate() goes on from there by the list.
#include "wh.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "guide.h"

#define IDX_SIZE 192u          // of which WH_LEAF_KEYS at most are taken
#define IDX_FREE 0xffffu
#define PTR_BITS 48
#define PTR_MASK ((UINT64_C(1) << PTR_BITS) - 1)
#define SLOT_DELETED UINT64_C(1)   // no node has this address, tag 0
#define TERMINAL UINT64_C(1)       // in wh_node.lmost: lmost's anchor is the node's prefix itself
#define BUCKET_SLOTS 8
#define TABLE_BUCKETS_MIN 16u
#define MERGE_KEYS (WH_LEAF_KEYS / 2)
#define PUBLISH_SPENT 4u           // entries that cursors put in their order one by one before one of them publishes it
#define MERGE_TAIL 8u              // so many are put in it together
#define GUIDE_STEPS 3u             // steps along the list from what the guide says to where the trie is asked
#define GUIDE_LEAVES 32u           // with fewer leaves there is no guide
#define HINT_STEPS 8u              // steps along the list after which the hint is taken for a hash collision's
#define NODE_SLAB 31u
#define DEAD_LEAVES 32u            // so many of them wait together

#define SAMPLE 16u  // of so many keys in order the last one

struct wh_order {  // immutable once published
  uint32_t n;           // covers entries[0, n)
  uint32_t nr_samples;  // n / SAMPLE, or 0
  uint64_t samples[];   // key8() of the samples; then u8[n], the positions in order of key
};
static inline uint8_t *order_pos(const struct wh_order *o) { return (uint8_t *)(uintptr_t)&o->samples[o->nr_samples]; }

struct wh_leaf {
  // line 0. anchor, lo8 and sorted are immutable.
  struct kref anchor;                   // in the arena
  uint64_t lo8;                         // key8() of the anchor: most comparisons end here
  _Atomic(struct wh_leaf *) next;       // written under the structure lock, release; frozen at death
  _Atomic uint64_t end8;                // key8() of the next leaf's anchor, all ones without one: keys below are the leaf's while it lives, and nothing more
                                        // has to be looked at. Gets smaller, with release, before a new leaf is linked behind
  _Atomic(struct wh_order *) order;     // release-published, by a cursor (CAS) or the holder of the lock; NULL: use sorted
  struct lib_lock lock;                 // guards count, entries and idx against other writers
  _Atomic uint16_t count;               // release, after the entry and its place in idx
  uint8_t sorted;                       // entries[0, sorted) were put there in order of key
  _Atomic bool dead;                    // set with release under the leaf's lock and the structure lock
  _Atomic uint8_t spent;                // by cursors, on entries outside of the order; relaxed, and a little wrong when two add at once
  // Positions in entries by hash, below 8 more bits of it, so that a key that is not there seldom leads further; open addressing with linear probing; stored with
  // release after entries[].
  _Alignas(CACHE_LINE) _Atomic uint16_t idx[IDX_SIZE];
  _Atomic uint64_t entries[WH_LEAF_KEYS];  // pointer to wh_entry | 16 bits of its hash on top
  _Atomic(struct wh_leaf *) prev;          // as next
  struct wh_leaf *after;                   // of a dead one: in the list it waits in
};
_Static_assert(IDX_SIZE > WH_LEAF_KEYS && IDX_SIZE <= 256, "a search of idx ends, and 8 bits of a hash lead to each of its places");
_Static_assert(offsetof(struct wh_leaf, idx) == CACHE_LINE, "what a walk along the list reads is one line");

struct wh_node {  // one line
  const uint8_t *prefix;          // immutable, as are len and hash
  uint32_t len;
  uint32_t hash;                  // low half of the prefix's hash; the slot has its top 16 bits
  _Atomic uint64_t lmost;         // pointer to wh_leaf | TERMINAL; this, rmost and kids: structure lock, release
  _Atomic(struct wh_leaf *) rmost;
  _Atomic uint64_t kids[4];       // bitmap of the bytes that continue the prefix
};
_Static_assert(sizeof(struct wh_node) == CACHE_LINE, "a node is one line");

struct wh_bucket {
  // 0 free, SLOT_DELETED, or pointer to wh_node | tag; filled from the left; release.
  _Alignas(CACHE_LINE) _Atomic uint64_t slot[BUCKET_SLOTS];
};

struct wh_table {
  struct epoch_item retired;
  uint32_t mask;                // buckets - 1
  uint64_t used;                // slots that are not free, deleted ones too. Structure lock.
  uint64_t cap;                 // of used, before it must grow
  size_t bytes;
  struct wh_bucket bucket[];
};

struct leaf_list {
  struct wh_leaf *first, *last;  // NULL, and nothing: it is empty
  uint32_t nr;
};

struct wh {
  _Atomic(struct wh_table *) table;  // release
  _Atomic(struct wh_leaf *) head;    // the leaf with the empty anchor; release
  _Atomic uint32_t maxlen;           // no anchor is or was longer; relaxed, it is only a hint
  _Atomic size_t table_bytes;        // relaxed
  _Atomic(struct guide *) guide;     // release, retired through the epoch; NULL: none yet
  _Atomic size_t guide_bytes;        // relaxed
  struct epoch *epoch;
  struct wh_order *identity;         // of a full leaf that was filled in order
  _Alignas(CACHE_LINE) struct wh_node root;  // of the empty prefix; not in the table
  _Alignas(CACHE_LINE) _Atomic uint64_t count;
  pthread_mutex_t lock;              // the structure lock: the list, the trie, and the fields as far as dead_lock
  uint32_t nr_leaves, guide_due;     // the number of leaves at which the guide is made again
  struct wh_node *spare;             // nodes not used yet
  uint64_t nr_spare;
  struct lib_lock dead_lock;         // guards the rest but for cursors and the arena
  struct leaf_list dead;             // since the others were stamped
  struct leaf_list waiting;          // until these stamps have passed
  struct wh_leaf *spare_leaves;      // nobody can be on them
  uint64_t stamp, cursors_stamp;
  struct epoch *cursors;             // NULL: dead leaves stay
  struct arena arena;
};

// ---- small things

static inline struct wh_leaf *leaf_next(const struct wh_leaf *l) { return atomic_load_explicit(&l->next, memory_order_acquire); }
static inline struct wh_leaf *leaf_prev(const struct wh_leaf *l) { return atomic_load_explicit(&l->prev, memory_order_acquire); }
static inline bool leaf_dead(const struct wh_leaf *l) { return atomic_load_explicit(&l->dead, memory_order_acquire); }
static inline struct wh_entry *word_entry(uint64_t w) { return (struct wh_entry *)(uintptr_t)(w & PTR_MASK); }
// Relaxed: published by idx, the count or the order that the position came from.
static inline uint64_t leaf_word(const struct wh_leaf *l, uint32_t pos) {
  return atomic_load_explicit(&l->entries[pos], memory_order_relaxed);
}
static inline struct wh_entry *leaf_entry(const struct wh_leaf *l, uint32_t pos) { return word_entry(leaf_word(l, pos)); }
static inline struct kref entry_key(const struct wh_entry *e) { return kref(e->key, e->klen); }
static inline struct wh_ver *entry_newest(const struct wh_entry *e) {
  return atomic_load_explicit(&e->newest, memory_order_acquire);
}
// Published with the version.
static inline struct wh_ver *ver_older(const struct wh_ver *v) { return v->chained ? ((struct wh_ver *const *)(const void *)v)[-1] : NULL; }
static inline uint64_t ver_seq(const struct wh_ver *v) { return atomic_load_explicit(&v->seq, memory_order_acquire); }
static inline uint64_t entry_tag(uint32_t hash) { return (uint64_t)(hash & 0xffff) << PTR_BITS; }
static inline uint32_t entry_start(uint32_t hash) { return (hash >> 24) * IDX_SIZE >> 8; }
static inline uint32_t idx_behind(uint32_t i) { return i + 1 == IDX_SIZE ? 0 : i + 1; }
// What idx holds for an entry of this hash and position, and back.
static inline uint32_t idx_word(uint32_t hash, uint32_t pos) { return (hash >> 8 & 0xff00) | pos; }
static inline uint32_t idx_pos(uint32_t word) { return word & 0xff; }
static inline bool idx_fits(uint32_t word, uint32_t hash) { return ((word ^ idx_word(hash, 0)) & 0xff00) == 0; }
static inline uint32_t idx_load(const _Atomic uint16_t *at) { return atomic_load_explicit(at, memory_order_acquire); }

// The 8 bytes at from, big-endian, zeros behind the key's end. Where they differ they order as the keys do (when the keys agree
// before from): a zero that is not there sorts like one that is, and a real difference comes after; equal ones say nothing.
static inline uint64_t key8(struct kref k, uint32_t from) {
  const uint32_t rest = k.len > from ? k.len - from : 0;
  if (likely(rest >= 8)) return load64be(k.ptr + from);
  if (rest == 0) return 0;
  if (k.len >= 8) return load64be(k.ptr + k.len - 8) << (64 - 8 * rest);
  uint64_t v = 0;
  for (uint32_t i = 0; i < rest; i++) v |= (uint64_t)k.ptr[from + i] << (56 - 8 * i);
  return v;
}

static inline int anchor_cmp(const struct wh_leaf *l, struct kref key, uint64_t k8) {
  if (l->lo8 != k8) return l->lo8 < k8 ? -1 : 1;
  return kv_cmp(l->anchor, key);
}

static bool lock_try(struct lib_lock *l) {
  uint32_t free_word = 0;
  return atomic_compare_exchange_strong_explicit(&l->word, &free_word, 1, memory_order_acquire, memory_order_relaxed);
}

// From the arena, aligned to a line, with an address that fits a tagged word.
static void *alloc_line(struct wh *wh, size_t size) {
  uint8_t *p = arena_alloc(&wh->arena, size + CACHE_LINE - 8);
  if (p == NULL) return NULL;
  if (unlikely(((uint64_t)(uintptr_t)p + size) >> PTR_BITS != 0)) {
    (void)err_set(REMIXDB_NOMEM, "an address of more than %d bits", PTR_BITS);
    return NULL;
  }
  return (void *)(uintptr_t)align_up((uintptr_t)p, CACHE_LINE);
}

// ---- the table of prefixes

// Hash of the first len - 1 bytes of key (it has them) followed by last; len >= 1. The last byte stands apart so that the
// children of a prefix are hashed without writing them down. k8 = key8(key, 0).
static inline uint64_t prefix_hash(struct kref key, uint64_t k8, uint32_t len, uint32_t last) {
  uint64_t x;
  if (len <= 8)
    x = ((len > 1 ? k8 >> (72 - 8 * len) << 8 : 0) | last) + len * UINT64_C(0x9E3779B97F4A7C15);
  else
    x = hash64(key.ptr, len - 1) + last * UINT64_C(0x9E3779B97F4A7C15);
  x = (x ^ (x >> 32)) * UINT64_C(0xD6E8FEB86659FD93);
  x = (x ^ (x >> 29)) * UINT64_C(0x94D049BB133111EB);
  return x ^ (x >> 32);
}
static inline uint64_t prefix_hash_own(struct kref key, uint64_t k8, uint32_t len) {
  return prefix_hash(key, k8, len, key.ptr[len - 1]);
}

// The node of this hash and length. exact: its prefix must also equal key's first len bytes; else it is the caller's who must
// live with a collision (of 48 bits).
static inline struct wh_node *table_find(const struct wh_table *t, uint64_t hash, uint32_t len, const uint8_t *key, bool exact) {
  for (uint32_t b = (uint32_t)hash & t->mask;; b = (b + 1) & t->mask) {
    const struct wh_bucket *bucket = &t->bucket[b];
    for (uint32_t i = 0; i < BUCKET_SLOTS; i++) {
      uint64_t w = atomic_load_explicit(&bucket->slot[i], memory_order_relaxed);
      if (w == 0) return NULL;
      if (likely((w ^ hash) >> PTR_BITS)) continue;
      w = atomic_load_explicit(&bucket->slot[i], memory_order_acquire);
      if (w == SLOT_DELETED || (w ^ hash) >> PTR_BITS) continue;
      struct wh_node *node = (struct wh_node *)(uintptr_t)(w & PTR_MASK);
      if (node->hash == (uint32_t)hash && node->len == len && (!exact || memcmp(node->prefix, key, len) == 0)) return node;
    }
  }
}

// The caller has made room.
static void table_insert(struct wh_table *t, struct wh_node *node, uint64_t hash) {
  const uint64_t word = (uint64_t)(uintptr_t)node | (hash & ~PTR_MASK);
  for (uint32_t b = (uint32_t)hash & t->mask;; b = (b + 1) & t->mask) {
    for (uint32_t i = 0; i < BUCKET_SLOTS; i++) {
      const uint64_t w = atomic_load_explicit(&t->bucket[b].slot[i], memory_order_relaxed);
      if (w != 0 && w != SLOT_DELETED) continue;
      t->used += w == 0;
      atomic_store_explicit(&t->bucket[b].slot[i], word, memory_order_release);
      return;
    }
  }
}

static void table_delete(struct wh_table *t, const struct wh_node *node) {
  for (uint32_t b = node->hash & t->mask;; b = (b + 1) & t->mask) {
    for (uint32_t i = 0; i < BUCKET_SLOTS; i++) {
      const uint64_t w = atomic_load_explicit(&t->bucket[b].slot[i], memory_order_relaxed);
      assert(w != 0);
      if ((w & PTR_MASK) != (uint64_t)(uintptr_t)node) continue;
      atomic_store_explicit(&t->bucket[b].slot[i], SLOT_DELETED, memory_order_release);
      return;
    }
  }
}

static struct wh_table *table_create(uint64_t buckets) {
  const size_t bytes = sizeof(struct wh_table) + buckets * sizeof(struct wh_bucket);
  struct wh_table *t = mem_alloc_aligned(CACHE_LINE, bytes);
  if (t == NULL) return NULL;
  memset(t, 0, bytes);
  t->mask = (uint32_t)(buckets - 1);
  t->cap = buckets * BUCKET_SLOTS * 3 / 5;
  t->bytes = bytes;
  return t;
}

static void table_free(struct epoch_item *item, void *arg) {
  (void)arg;
  mem_free((uint8_t *)item - offsetof(struct wh_table, retired));
}

// Makes the table fit for more nodes; the old one goes when its readers have left. Structure lock.
static enum remixdb_status table_reserve(struct wh *wh, uint64_t more) {
  struct wh_table *old = atomic_load_explicit(&wh->table, memory_order_relaxed);
  if (old->used + more <= old->cap) return REMIXDB_OK;
  uint64_t buckets = (uint64_t)old->mask + 1;
  do buckets *= 2;
  while (buckets * BUCKET_SLOTS * 3 / 5 < old->used + more);
  struct wh_table *t = table_create(buckets);
  if (t == NULL) return REMIXDB_NOMEM;
  for (uint32_t b = 0; b <= old->mask; b++) {
    const struct wh_bucket *ahead = &old->bucket[(b + 1) & old->mask];
    for (uint32_t i = 0; i < BUCKET_SLOTS; i++)
      __builtin_prefetch((const void *)(uintptr_t)(atomic_load_explicit(&ahead->slot[i], memory_order_relaxed) & PTR_MASK));
    for (uint32_t i = 0; i < BUCKET_SLOTS; i++) {
      const uint64_t w = atomic_load_explicit(&old->bucket[b].slot[i], memory_order_relaxed);
      if (w == 0) break;
      if (w == SLOT_DELETED) continue;
      struct wh_node *node = (struct wh_node *)(uintptr_t)(w & PTR_MASK);
      table_insert(t, node, (w & ~PTR_MASK) | node->hash);
    }
  }
  atomic_store_explicit(&wh->table, t, memory_order_release);
  atomic_store_explicit(&wh->table_bytes, t->bytes, memory_order_relaxed);
  epoch_retire(wh->epoch, &old->retired, table_free, NULL);
  return REMIXDB_OK;
}

// ---- the trie

static inline struct wh_leaf *node_rmost(const struct wh_node *node) {
  return atomic_load_explicit(&node->rmost, memory_order_acquire);
}
static inline struct wh_leaf *node_lmost(uint64_t lmost) { return (struct wh_leaf *)(uintptr_t)(lmost & ~TERMINAL); }

// The largest child below byte c, -1 when there is none; *above_out: whether there is one above.
static inline int node_child_below(const struct wh_node *node, uint32_t c, bool *above_out) {
  uint64_t w[4];
  for (uint32_t i = 0; i < 4; i++) w[i] = atomic_load_explicit(&node->kids[i], memory_order_acquire);
  const uint32_t at = c >> 6;
  const uint64_t bit = UINT64_C(1) << (c & 63);
  uint64_t above = w[at] & ~(bit | (bit - 1));
  for (uint32_t i = at + 1; i < 4; i++) above |= w[i];
  *above_out = above != 0;
  uint64_t below = w[at] & (bit - 1);
  for (int i = (int)at;;) {
    if (below) return i * 64 + 63 - __builtin_clzll(below);
    if (--i < 0) return -1;
    below = w[i];
  }
}

// A leaf at or near the one for the key. Never NULL.
static inline struct wh_leaf *trie_hint(const struct wh *wh, struct kref key, uint64_t k8, bool exact) {
  const struct wh_table *t = atomic_load_explicit(&wh->table, memory_order_acquire);
  const struct wh_node *node = &wh->root;
  const uint32_t maxlen = atomic_load_explicit(&wh->maxlen, memory_order_relaxed);
  uint32_t len = 0, hi = key.len < maxlen ? key.len : maxlen;
  while (len < hi) {
    const uint32_t mid = (len + hi + 1) / 2;
    const struct wh_node *n = table_find(t, prefix_hash_own(key, k8, mid), mid, key.ptr, exact);
    if (n) {
      node = n;
      len = mid;
    } else {
      hi = mid - 1;
    }
  }
  const uint64_t lmost = atomic_load_explicit(&node->lmost, memory_order_acquire);
  struct wh_leaf *first = node_lmost(lmost);
  if (len < key.len) {
    bool above;
    const int child = node_child_below(node, key.ptr[len], &above);
    if (child >= 0) {
      if (!above) return node_rmost(node);
      // It does not start the key, so only the bytes it shares with this node can be compared.
      const struct wh_node *n = table_find(t, prefix_hash(key, k8, len + 1, (uint32_t)child), len + 1, NULL, false);
      return likely(n != NULL) && (!exact || memcmp(n->prefix, key.ptr, len) == 0) ? node_rmost(n) : first;
    }
  }
  if (lmost & TERMINAL) return first;
  struct wh_leaf *prev = leaf_prev(first);
  return prev ? prev : first;
}

// ---- the guide

// A leaf that is or was the key's, or has been left of it.
static inline struct wh_leaf *leaf_hint(const struct wh *wh, struct kref key, uint64_t k8) {
  const struct guide *const g = atomic_load_explicit(&wh->guide, memory_order_acquire);
  return likely(g != NULL) ? guide_find(g, key) : trie_hint(wh, key, k8, false);
}

static void guide_free(struct epoch_item *item, void *arg) {
  (void)arg;
  guide_destroy((struct guide *)(void *)item);
}

// A picture of the list as it is. Without memory the old one stays, and is a little worse. Under the structure lock.
static void guide_renew(struct wh *wh) {
  struct guide *const old = atomic_load_explicit(&wh->guide, memory_order_relaxed), *fresh = NULL;
  const uint32_t nr = wh->nr_leaves;
  wh->guide_due = nr + nr / 8 + GUIDE_LEAVES;
  struct kref *const bounds = mem_alloc(nr * (sizeof(*bounds) + sizeof(void *)));
  if (!bounds) return;
  void **const items = (void **)(void *)(bounds + nr);
  uint32_t n = 0;
  for (struct wh_leaf *l = atomic_load_explicit(&wh->head, memory_order_relaxed); l && n < nr;
       l = atomic_load_explicit(&l->next, memory_order_relaxed)) {
    if (old && n + 8 < old->nr) __builtin_prefetch(atomic_load_explicit(&old->items[n + 8], memory_order_relaxed));  // near what comes in eight steps
    bounds[n] = l->anchor;
    items[n++] = l;
  }
  if (guide_create(bounds, items, n, &fresh) == REMIXDB_OK) {
    atomic_store_explicit(&wh->guide_bytes, fresh->bytes, memory_order_relaxed);
    atomic_store_explicit(&wh->guide, fresh, memory_order_release);
    if (old) epoch_retire(wh->epoch, &old->retired, guide_free, NULL);
  }
  mem_free(bounds);
}

// What the guide leads to the old leaf for is the new one's from this bound on (W7). Under the structure lock.
static void guide_hand_over(struct wh *wh, struct kref bound, const struct wh_leaf *old, struct wh_leaf *l) {
  struct guide *const g = atomic_load_explicit(&wh->guide, memory_order_relaxed);
  if (g) guide_replace(g, bound, old, l);
}

// So many leaves more. Under the structure lock, when the list is whole.
static void leaves_count(struct wh *wh, int32_t more) {
  wh->nr_leaves += (uint32_t)more;
  if (unlikely(wh->nr_leaves >= wh->guide_due)) guide_renew(wh);
}

// The node of the anchor's first len bytes; NULL when there is none.
static struct wh_node *trie_node(struct wh *wh, const struct wh_leaf *l, uint32_t len) {
  if (len == 0) return &wh->root;
  const struct wh_table *t = atomic_load_explicit(&wh->table, memory_order_relaxed);
  return table_find(t, prefix_hash_own(l->anchor, l->lo8, len), len, l->anchor.ptr, true);
}

// How many bytes of the anchor have nodes. All of these functions: under the structure lock.
static uint32_t trie_prefix(struct wh *wh, const struct wh_leaf *l) {
  const uint32_t maxlen = atomic_load_explicit(&wh->maxlen, memory_order_relaxed);
  uint32_t len = 0, hi = l->anchor.len < maxlen ? l->anchor.len : maxlen;
  while (len < hi) {
    const uint32_t mid = (len + hi + 1) / 2;
    if (trie_node(wh, l, mid))
      len = mid;
    else
      hi = mid - 1;
  }
  return len;
}

// Nodes and room for trie_add of the leaf: all that can fail of it.
static enum remixdb_status trie_reserve(struct wh *wh, const struct wh_leaf *l) {
  const uint64_t need = l->anchor.len - trie_prefix(wh, l);
  if (need > wh->nr_spare) {
    const uint64_t n = need > NODE_SLAB ? need : NODE_SLAB;
    struct wh_node *slab = alloc_line(wh, n * sizeof(*slab));
    if (slab == NULL) return REMIXDB_NOMEM;
    wh->spare = slab;
    wh->nr_spare = n;
  }
  return table_reserve(wh, need);
}

static void kids_set(struct wh_node *node, uint32_t c, bool on) {
  const uint64_t w = atomic_load_explicit(&node->kids[c >> 6], memory_order_relaxed), bit = UINT64_C(1) << (c & 63);
  atomic_store_explicit(&node->kids[c >> 6], on ? w | bit : w & ~bit, memory_order_release);
}

// In the node: from_l gives way to first as lmost, from_r (either may be NULL) to last as rmost. Whether one was there.
static bool node_swap(struct wh_node *node, const struct wh_leaf *from_l, struct wh_leaf *first, const struct wh_leaf *from_r,
                      struct wh_leaf *last) {
  bool hit = false;
  const uint64_t lmost = atomic_load_explicit(&node->lmost, memory_order_relaxed);
  if (from_l && node_lmost(lmost) == from_l) {
    atomic_store_explicit(&node->lmost, (uint64_t)(uintptr_t)first | (lmost & TERMINAL), memory_order_release);
    hit = true;
  }
  if (from_r && atomic_load_explicit(&node->rmost, memory_order_relaxed) == from_r) {
    atomic_store_explicit(&node->rmost, last, memory_order_release);
    hit = true;
  }
  return hit;
}

// new has the anchor of old and takes its place: only prefixes of that anchor name old.
static void trie_replace(struct wh *wh, const struct wh_leaf *old, struct wh_leaf *new) {
  for (uint32_t len = old->anchor.len;; len--)
    if (!node_swap(trie_node(wh, old, len), old, new, old, new) || len == 0) return;
}

// Adds the leaf between left and right (NULL: it is the last). Reserved before. Under a prefix of its anchor it is the first leaf
// exactly when right was (left's anchor, being smaller and next to it, is then outside), and the last exactly when left was.
static void trie_add(struct wh *wh, struct wh_leaf *l, const struct wh_leaf *left, const struct wh_leaf *right) {
  struct wh_table *t = atomic_load_explicit(&wh->table, memory_order_relaxed);
  const struct kref a = l->anchor;
  const uint32_t have = trie_prefix(wh, l);
  struct wh_node *node = trie_node(wh, l, have);
  if (a.len > atomic_load_explicit(&wh->maxlen, memory_order_relaxed))
    atomic_store_explicit(&wh->maxlen, a.len, memory_order_relaxed);
  if (have == a.len)  // a prefix of other anchors so far, which are all greater
    atomic_store_explicit(&node->lmost, (uint64_t)(uintptr_t)l | TERMINAL, memory_order_release);
  for (uint32_t len = have + 1; len <= a.len; len++) {
    const uint64_t hash = prefix_hash_own(a, l->lo8, len);
    struct wh_node *n = wh->spare++;
    wh->nr_spare--;
    n->prefix = a.ptr;
    n->len = len;
    n->hash = (uint32_t)hash;
    atomic_init(&n->lmost, (uint64_t)(uintptr_t)l | (len == a.len ? TERMINAL : 0));
    atomic_init(&n->rmost, l);
    for (uint32_t i = 0; i < 4; i++) atomic_init(&n->kids[i], 0);
    table_insert(t, n, hash);
    kids_set(node, a.ptr[len - 1], true);
    node = n;
  }
  for (uint32_t len = have < a.len ? have : a.len - 1;; len--)
    if (!node_swap(trie_node(wh, l, len), right, l, left, l) || len == 0) return;
}

// Takes out the leaf (not the first): left is the leaf before it, right the one behind. Nodes that only it needed go.
static void trie_remove(struct wh *wh, const struct wh_leaf *l, struct wh_leaf *left, struct wh_leaf *right) {
  struct wh_table *t = atomic_load_explicit(&wh->table, memory_order_relaxed);
  const struct kref a = l->anchor;
  for (uint32_t len = a.len; len > 0; len--) {
    struct wh_node *node = trie_node(wh, l, len);
    const uint64_t lmost = atomic_load_explicit(&node->lmost, memory_order_relaxed);
    if (node_lmost(lmost) == l && atomic_load_explicit(&node->rmost, memory_order_relaxed) == l) {
      kids_set(trie_node(wh, l, len - 1), a.ptr[len - 1], false);
      table_delete(t, node);
      continue;
    }
    if (len == a.len) atomic_store_explicit(&node->lmost, lmost & ~TERMINAL, memory_order_release);
    if (!node_swap(node, l, right, l, left)) return;
  }
  (void)node_swap(&wh->root, l, right, l, left);
}

// ---- leaves

static inline struct wh_entry *leaf_find(const struct wh_leaf *l, struct kref key, uint64_t hash) {
  const uint32_t h32 = (uint32_t)(hash >> 32);
  const uint64_t tag = entry_tag(h32);
  for (uint32_t i = entry_start(h32);; i = idx_behind(i)) {  // ends: not all of idx is taken
    const uint32_t at = idx_load(&l->idx[i]);
    if (at == IDX_FREE) return NULL;
    if (!idx_fits(at, h32)) continue;
    const uint64_t w = leaf_word(l, idx_pos(at));
    if ((w ^ tag) >> PTR_BITS) continue;
    struct wh_entry *e = word_entry(w);
    __builtin_prefetch((const uint8_t *)e + CACHE_LINE);  // the first version lies behind the key
    if (e->hash == h32 && e->klen == key.len && (key.len == 0 || memcmp(e->key, key.ptr, key.len) == 0)) return e;
  }
}

// The leaf's lock is held (or the leaf is not published), and there is room.
static void leaf_append(struct wh_leaf *l, uint64_t word) {
  const uint32_t n = atomic_load_explicit(&l->count, memory_order_relaxed);
  atomic_store_explicit(&l->entries[n], word, memory_order_relaxed);
  const uint32_t hash = word_entry(word)->hash;
  uint32_t i = entry_start(hash);
  while (atomic_load_explicit(&l->idx[i], memory_order_relaxed) != IDX_FREE) i = idx_behind(i);
  atomic_store_explicit(&l->idx[i], (uint16_t)idx_word(hash, n), memory_order_release);
  atomic_store_explicit(&l->count, (uint16_t)(n + 1), memory_order_release);
}

// ---- leaves that serve again

static void leaves_push(struct leaf_list *list, struct wh_leaf *l) {
  l->after = list->first;
  if (list->first == NULL) list->last = l;
  list->first = l;
  list->nr++;
}

// A leaf that was never shared.
static void leaf_give(struct wh *wh, struct wh_leaf *l) {
  lib_lock(&wh->dead_lock);
  l->after = wh->spare_leaves;
  wh->spare_leaves = l;
  lib_unlock(&wh->dead_lock);
}

// NULL: there is none.
static struct wh_leaf *leaf_spare(struct wh *wh) {
  lib_lock(&wh->dead_lock);
  struct wh_leaf *const l = wh->spare_leaves;
  if (l) wh->spare_leaves = l->after;
  lib_unlock(&wh->dead_lock);
  return l;
}

// Dead leaves wait in two lists: one that grows, and one that was stamped when the other was begun. dead_lock.
static void leaves_turn(struct wh *wh) {
  if (wh->waiting.nr) {
    if (!epoch_passed(wh->epoch, wh->stamp) || !epoch_passed(wh->cursors, wh->cursors_stamp)) return;
    // what a sanitizer sees when somebody is on one all the same
    for (struct wh_leaf *l = wh->waiting.first; LIB_SANITIZED && l; l = l->after) memset(l, 0xa5, offsetof(struct wh_leaf, after));
    wh->waiting.last->after = wh->spare_leaves;
    wh->spare_leaves = wh->waiting.first;
  }
  wh->waiting = wh->dead;
  wh->dead = (struct leaf_list){NULL, NULL, 0};
  wh->stamp = epoch_stamp(wh->epoch);
  wh->cursors_stamp = epoch_stamp(wh->cursors);
}

// The change in which it died is over but for the structure lock, which is held.
static void leaf_died(struct wh *wh, struct wh_leaf *l) {
  if (wh->cursors == NULL) return;
  lib_lock(&wh->dead_lock);
  leaves_push(&wh->dead, l);
  if (wh->dead.nr % DEAD_LEAVES == 0) leaves_turn(wh);
  lib_unlock(&wh->dead_lock);
}

// A locked leaf with these entries, which are in order. Its neighbours are the caller's to set. NULL: no memory.
static struct wh_leaf *leaf_create(struct wh *wh, struct kref anchor, const uint64_t *words, uint32_t nr) {
  struct wh_leaf *l = leaf_spare(wh);
  if (l == NULL) l = alloc_line(wh, sizeof(*l));
  if (l == NULL) return NULL;
  l->anchor = anchor;
  l->lo8 = key8(anchor, 0);
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
  for (uint32_t i = 0; i < nr; i++) leaf_append(l, words[i]);
  return l;
}

// Whether a leaf at or left of the key's place is the key's: the range check of the holder of its lock, or of a reader.
static inline bool leaf_ends_behind(const struct wh_leaf *l, struct kref key, uint64_t k8) {
  if (likely(k8 < atomic_load_explicit(&l->end8, memory_order_acquire))) return true;
  const struct wh_leaf *next = leaf_next(l);
  return next == NULL || anchor_cmp(next, key, k8) > 0;
}

// From a hint to the leaf of the key's range, alive when looked at. A dead leaf is left to the left, where the anchors get
// smaller and end at the head, which is replaced before it dies; from a living leaf the way to the right is over living leaves.
// So it ends unless the structure changes all the time.
static struct wh_leaf *locate(const struct wh *wh, struct wh_leaf *l, struct kref key, uint64_t k8) {
  for (uint32_t steps = 1;; steps++) {
    if (leaf_dead(l) || anchor_cmp(l, key, k8) > 0) {
      struct wh_leaf *prev = leaf_prev(l);
      l = prev ? prev : atomic_load_explicit(&wh->head, memory_order_acquire);
    } else {
      if (leaf_ends_behind(l, key, k8)) return l;
      struct wh_leaf *next = leaf_next(l);
      if (next == NULL) return l;
      l = next;
    }
    if (unlikely(steps == GUIDE_STEPS)) l = trie_hint(wh, key, k8, false);
    if (unlikely(steps == HINT_STEPS)) l = trie_hint(wh, key, k8, true);
  }
}

// ---- order within a leaf

struct item {
  uint64_t k8;
  const struct wh_entry *e;
  uint32_t pos;
};

static inline bool item_less(const struct item *a, const struct item *b) {
  if (likely(a->k8 != b->k8)) return a->k8 < b->k8;
  return kv_cmp(entry_key(a->e), entry_key(b->e)) < 0;
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
  for (uint32_t i = 0; i < n; i++) __builtin_prefetch(leaf_entry(l, i));
  const struct kref first = entry_key(leaf_entry(l, pos[0]));
  uint32_t skip = first.len;  // of the common prefix, so that the 8 bytes tell the keys apart
  for (uint32_t i = 0; i < n; i++) {
    const struct wh_entry *e = leaf_entry(l, pos[i]);
    items[i] = (struct item){.e = e, .pos = pos[i]};
    const struct kref k = entry_key(e);
    if (skip && (k.len < skip || memcmp(first.ptr, k.ptr, skip) != 0)) skip = kv_lcp_from(first, k, 0);
  }
  for (uint32_t i = 0; i < n; i++) items[i].k8 = key8(entry_key(items[i].e), skip);
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
  for (uint32_t i = base; i < n; i++) __builtin_prefetch(leaf_entry(l, i));
  for (; base < n; base++) {
    const struct kref key = entry_key(leaf_entry(l, base));
    uint32_t lo = 0, hi = base;
    if (base && kv_cmp(entry_key(leaf_entry(l, pos[base - 1])), key) < 0) lo = base;
    while (lo < hi) {
      const uint32_t mid = (lo + hi) / 2;
      if (kv_cmp(entry_key(leaf_entry(l, pos[mid])), key) < 0)
        lo = mid + 1;
      else
        hi = mid;
    }
    memmove(pos + lo + 1, pos + lo, base - lo);
    pos[lo] = (uint8_t)base;
  }
}

// Writes the positions of the leaf's entries in order of key; returns how many. *tail_out: how many the published order lacks.
// *published_out: the published order when it is the same; NULL: it is not.
static uint32_t leaf_order(const struct wh_leaf *l, uint8_t *pos, uint32_t *tail_out, const struct wh_order **published_out) {
  // The order first: whoever published it had seen the count it covers, so the count read now is not smaller.
  const struct wh_order *o = atomic_load_explicit(&l->order, memory_order_acquire);
  const uint32_t n = atomic_load_explicit(&l->count, memory_order_acquire);
  const uint32_t base = o ? o->n : l->sorted;
  if (o)
    memcpy(pos, order_pos(o), base);
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

// Publishes the order for those that come later. No memory, or somebody else was faster: no harm.
static void leaf_publish(struct wh *wh, struct wh_leaf *l, const uint8_t *pos, uint32_t n) {
  struct wh_order *seen = atomic_load_explicit(&l->order, memory_order_acquire);
  if (seen && seen->n >= n) return;
  struct wh_order *o = wh->identity;
  if (n != WH_LEAF_KEYS || memcmp(pos, order_pos(o), n) != 0) {
    const uint32_t nr_samples = n / SAMPLE;
    o = arena_alloc(&wh->arena, sizeof(*o) + nr_samples * sizeof(o->samples[0]) + n);
    if (o == NULL) return;
    o->n = n;
    o->nr_samples = nr_samples;
    for (uint32_t i = 0; i < nr_samples; i++) o->samples[i] = key8(entry_key(leaf_entry(l, pos[SAMPLE * i + SAMPLE - 1])), 0);
    memcpy(order_pos(o), pos, n);
  }
  (void)atomic_compare_exchange_strong_explicit(&l->order, &seen, o, memory_order_release, memory_order_relaxed);
}

// The words of the entries that have a version, in order. The lock is held.
static uint32_t leaf_words(const struct wh_leaf *l, uint8_t *pos, uint32_t nr_pos, uint64_t *words) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < nr_pos; i++) {
    const uint64_t w = leaf_word(l, pos[i]);
    if (atomic_load_explicit(&word_entry(w)->newest, memory_order_relaxed)) words[nr++] = w;
  }
  return nr;
}

// ---- changes of the structure

// The new leaves first..last (linked to each other, locked) take the place of the old ones from..to, which die. Structure lock;
// the locks of from and to.
static void list_replace(struct wh *wh, struct wh_leaf *from, struct wh_leaf *to, struct wh_leaf *first, struct wh_leaf *last) {
  struct wh_leaf *prev = leaf_prev(from), *next = leaf_next(to);
  atomic_store_explicit(&first->prev, prev, memory_order_relaxed);
  atomic_store_explicit(&last->next, next, memory_order_relaxed);
  atomic_store_explicit(&last->end8, next ? next->lo8 : UINT64_MAX, memory_order_relaxed);
  atomic_store_explicit(prev ? &prev->next : &wh->head, first, memory_order_release);
  if (next) atomic_store_explicit(&next->prev, last, memory_order_release);
  atomic_store_explicit(&from->dead, true, memory_order_release);
  atomic_store_explicit(&to->dead, true, memory_order_release);
}

static void struct_lock(struct wh *wh) { (void)pthread_mutex_lock(&wh->lock); }
static void struct_unlock(struct wh *wh) { (void)pthread_mutex_unlock(&wh->lock); }

// The slot's key is in this new leaf now, which is locked. behind: a locked leaf next to it on the left that holds what was in the slot's leaf, when that has
// become two; NULL: there is none, or all keys are in `leaf`. The other keys of many may be in `behind`: it is kept for them, and given back otherwise.
static void slot_move(struct wh_slot *slot, struct wh_leaf *behind, struct wh_leaf *leaf) {
  struct wh_many *m = slot->many;
  slot->leaf = leaf;
  if (m) {
    m->leaves[m->nr - 1] = behind ? behind : leaf;
    if (behind) m->leaves[m->nr++] = leaf;  // wh_many_link has made room
  } else if (behind) {
    lib_unlock(&behind->lock);
  }
}

// Replaces the slot's leaf by one with these entries.
static enum remixdb_status leaf_rebuild(struct wh_slot *slot, const uint64_t *words, uint32_t nr) {
  struct wh *wh = slot->wh;
  struct wh_leaf *old = slot->leaf, *l = leaf_create(wh, old->anchor, words, nr);
  if (l == NULL) return REMIXDB_NOMEM;
  struct_lock(wh);
  list_replace(wh, old, old, l, l);
  trie_replace(wh, old, l);
  guide_hand_over(wh, l->anchor, old, l);
  leaf_died(wh, old);
  struct_unlock(wh);
  lib_unlock(&old->lock);
  slot_move(slot, NULL, l);
  return REMIXDB_OK;
}

// Puts an empty leaf for the slot's new key behind its leaf, all of whose keys are smaller than the new one. key: a copy of the
// slot's that stays.
static enum remixdb_status leaf_extend(struct wh_slot *slot, struct kref last_key, struct kref key) {
  struct wh *wh = slot->wh;
  struct wh_leaf *left = slot->leaf, *l = leaf_create(wh, kref(key.ptr, kv_lcp_from(last_key, key, 0) + 1), NULL, 0);
  if (l == NULL) return REMIXDB_NOMEM;
  struct_lock(wh);
  const enum remixdb_status s = trie_reserve(wh, l);
  if (s == REMIXDB_OK) {
    struct wh_leaf *right = leaf_next(left);
    atomic_store_explicit(&l->prev, left, memory_order_relaxed);
    atomic_store_explicit(&l->next, right, memory_order_relaxed);
    atomic_store_explicit(&l->end8, right ? right->lo8 : UINT64_MAX, memory_order_relaxed);
    atomic_store_explicit(&left->end8, l->lo8, memory_order_release);
    atomic_store_explicit(&left->next, l, memory_order_release);
    if (right) atomic_store_explicit(&right->prev, l, memory_order_release);
    trie_add(wh, l, left, right);
    guide_hand_over(wh, l->anchor, left, l);
    leaves_count(wh, 1);
  }
  struct_unlock(wh);
  if (s != REMIXDB_OK) {
    leaf_give(wh, l);
    return s;
  }
  slot_move(slot, left, l);
  return REMIXDB_OK;
}

// Where to cut: near the middle, where the separator is shortest; *len_out: its length.
static uint32_t split_point(const uint64_t *words, uint32_t nr, uint32_t *len_out) {
  uint32_t best = 0, best_len = UINT32_MAX;
  for (uint32_t i = 0; i <= nr / 4; i++) {  // the middle, one right of it, one left, two right, ...
    const uint32_t cut = i % 2 ? nr / 2 + (i + 1) / 2 : nr / 2 - i / 2;
    const uint32_t len = kv_lcp_from(entry_key(word_entry(words[cut - 1])), entry_key(word_entry(words[cut])), 0) + 1;
    if (len < best_len) {
      best = cut;
      best_len = len;
    }
  }
  *len_out = best_len;
  return best;
}

// Cuts the slot's leaf in two.
static enum remixdb_status leaf_cut(struct wh_slot *slot, const uint64_t *words, uint32_t nr) {
  struct wh *wh = slot->wh;
  struct wh_leaf *old = slot->leaf;
  uint32_t len;
  const uint32_t cut = split_point(words, nr, &len);
  struct wh_leaf *l = leaf_create(wh, old->anchor, words, cut);
  if (l == NULL) return REMIXDB_NOMEM;
  struct wh_leaf *r = leaf_create(wh, kref(word_entry(words[cut])->key, len), words + cut, nr - cut);
  if (r == NULL) {
    leaf_give(wh, l);
    return REMIXDB_NOMEM;
  }
  atomic_init(&l->next, r);
  atomic_init(&l->end8, r->lo8);
  atomic_init(&r->prev, l);
  struct_lock(wh);
  const enum remixdb_status s = trie_reserve(wh, r);
  if (s == REMIXDB_OK) {
    list_replace(wh, old, old, l, r);
    trie_replace(wh, old, l);
    trie_add(wh, r, l, leaf_next(r));
    guide_hand_over(wh, l->anchor, old, l);
    guide_hand_over(wh, r->anchor, l, r);
    leaves_count(wh, 1);
    leaf_died(wh, old);
  }
  struct_unlock(wh);
  if (s != REMIXDB_OK) {
    leaf_give(wh, l);
    leaf_give(wh, r);
    return s;
  }
  lib_unlock(&old->lock);
  if (kv_cmp(r->anchor, slot->key) <= 0) {
    slot_move(slot, l, r);
  } else {  // many come in ascending order: none of the others is in r
    lib_unlock(&r->lock);
    slot_move(slot, NULL, l);
  }
  return REMIXDB_OK;
}

// Makes room for the slot's key. On success slot->leaf is the leaf for it, locked; REMIXDB_NOMEM: nothing has changed.
static enum remixdb_status leaf_make_room(struct wh_slot *slot, struct kref key) {
  uint8_t pos[WH_LEAF_KEYS];
  uint64_t words[WH_LEAF_KEYS];
  uint32_t tail;
  const struct wh_order *published;
  const uint32_t n = leaf_order(slot->leaf, pos, &tail, &published);
  const uint32_t nr = leaf_words(slot->leaf, pos, n, words);
  if (nr < n) return leaf_rebuild(slot, words, nr);  // leftovers of wh_unlink without memory
  const struct kref last = entry_key(word_entry(words[nr - 1]));
  if (kv_cmp(last, key) > 0) return leaf_cut(slot, words, nr);
  if (tail) leaf_publish(slot->wh, slot->leaf, pos, n);  // it stays and will not change
  return leaf_extend(slot, last, key);
}

// Takes entries without version out of the slot's leaf: a new leaf without them replaces it, or it and its left neighbour when
// they are small. False: no memory, they stay.
static bool leaf_shrink(struct wh_slot *slot) {
  struct wh *wh = slot->wh;
  struct wh_leaf *old = slot->leaf;
  uint8_t pos[WH_LEAF_KEYS];
  uint64_t words[WH_LEAF_KEYS];
  uint32_t tail;
  const struct wh_order *published;
  uint32_t n = leaf_order(old, pos, &tail, &published);
  const uint32_t nr = leaf_words(old, pos, n, words);
  struct wh_leaf *l = NULL;
  struct_lock(wh);
  struct wh_leaf *left = leaf_prev(old);
  // Its holder may wait for ours, so its lock is only tried.
  if (left && atomic_load_explicit(&left->count, memory_order_relaxed) + nr <= MERGE_KEYS && lock_try(&left->lock)) {
    n = leaf_order(left, pos, &tail, &published);
    if (n + nr <= MERGE_KEYS) {
      uint64_t both[MERGE_KEYS];
      const uint32_t nr_left = leaf_words(left, pos, n, both);
      memcpy(both + nr_left, words, nr * sizeof(*words));
      l = leaf_create(wh, left->anchor, both, nr_left + nr);
    }
    if (l) {
      struct wh_leaf *right = leaf_next(old);
      list_replace(wh, left, old, l, l);
      trie_remove(wh, old, l, right);
      trie_replace(wh, left, l);
      guide_hand_over(wh, l->anchor, left, l);
      guide_hand_over(wh, old->anchor, old, l);
      leaves_count(wh, -1);
      leaf_died(wh, left);
      leaf_died(wh, old);
    }
    lib_unlock(&left->lock);
  }
  struct_unlock(wh);
  if (l == NULL) return leaf_rebuild(slot, words, nr) == REMIXDB_OK;
  lib_unlock(&old->lock);
  slot->leaf = l;
  return true;
}

// ---- the index

enum remixdb_status wh_create(struct epoch *epoch, size_t arena_chunk, struct arena_pool *pool, struct wh **out) {
  struct wh *wh = mem_alloc_aligned(CACHE_LINE, sizeof(*wh));
  if (wh == NULL) return REMIXDB_NOMEM;
  memset(wh, 0, sizeof(*wh));
  wh->epoch = epoch;
  wh->nr_leaves = 1;
  wh->guide_due = GUIDE_LEAVES;
  arena_init(&wh->arena, arena_chunk, pool);
  (void)pthread_mutex_init(&wh->lock, NULL);
  struct wh_table *t = table_create(TABLE_BUCKETS_MIN);
  if (t == NULL) goto fail;
  atomic_init(&wh->table, t);
  atomic_init(&wh->table_bytes, t->bytes);
  struct wh_leaf *l = leaf_create(wh, kref("", 0), NULL, 0);
  if (l == NULL) goto fail;
  wh->identity = arena_alloc(&wh->arena, sizeof(*wh->identity) + WH_LEAF_KEYS);
  if (wh->identity == NULL) goto fail;
  wh->identity->n = WH_LEAF_KEYS;
  wh->identity->nr_samples = 0;  // it serves many leaves
  for (uint32_t i = 0; i < WH_LEAF_KEYS; i++) order_pos(wh->identity)[i] = (uint8_t)i;
  atomic_init(&l->lock.word, 0);
  atomic_init(&wh->head, l);
  wh->root.prefix = l->anchor.ptr;
  atomic_init(&wh->root.lmost, (uint64_t)(uintptr_t)l | TERMINAL);
  atomic_init(&wh->root.rmost, l);
  *out = wh;
  return REMIXDB_OK;
fail:
  wh_destroy(wh);
  return REMIXDB_NOMEM;
}

void wh_recycle(struct wh *wh, struct epoch *cursors) { wh->cursors = cursors; }

void wh_destroy(struct wh *wh) {
  if (wh == NULL) return;
  mem_free(atomic_load_explicit(&wh->table, memory_order_relaxed));
  guide_destroy(atomic_load_explicit(&wh->guide, memory_order_relaxed));
  arena_fini(&wh->arena);
  (void)pthread_mutex_destroy(&wh->lock);
  mem_free(wh);
}

size_t wh_memory(const struct wh *wh) {
  return arena_used(&wh->arena) + atomic_load_explicit(&wh->table_bytes, memory_order_relaxed) +
         atomic_load_explicit(&wh->guide_bytes, memory_order_relaxed);
}

uint64_t wh_count(const struct wh *wh) { return atomic_load_explicit(&wh->count, memory_order_relaxed); }

// ---- writing

void wh_lock(struct wh *wh, struct kref key, uint64_t hash, struct wh_slot *slot) {
  const uint64_t k8 = key8(key, 0);
  struct wh_leaf *l = leaf_hint(wh, key, k8);
  __builtin_prefetch(l);
  __builtin_prefetch((const void *)&l->idx[entry_start((uint32_t)(hash >> 32))]);
  // Only a leaf of the key's range is waited for: that is what keeps the order of locks of those who hold leaves further left.
  for (;;) {
    l = locate(wh, l, key, k8);
    lib_lock(&l->lock);
    if (likely(!leaf_dead(l) && leaf_ends_behind(l, key, k8))) break;
    lib_unlock(&l->lock);
  }
  *slot = (struct wh_slot){.wh = wh, .leaf = l, .entry = leaf_find(l, key, hash), .key = key, .hash = hash};
}

void wh_unlock(struct wh_slot *slot) { lib_unlock(&slot->leaf->lock); }

const struct wh_ver *wh_slot_newest(const struct wh_slot *slot) {
  const struct wh_ver *v = slot->entry ? entry_newest(slot->entry) : NULL;
  while (v && ver_seq(v) == WH_PENDING) v = ver_older(v);
  return v;
}

_Static_assert(REMIXDB_KV_MAX < 1u << 30, "a length fits wh_ver.vlen");

static size_t ver_size(uint32_t vlen) {
  const size_t size = offsetof(struct wh_ver, val) + vlen;
  return size < sizeof(struct wh_ver) ? sizeof(struct wh_ver) : size;
}

// older: written before it already; NULL: no place is there.
static void ver_init(struct wh_ver *v, const struct wh_ver *older, const void *val, uint32_t vlen, bool tomb) {
  atomic_init(&v->seq, WH_PENDING);
  v->vlen = vlen;
  v->tomb = tomb;
  v->chained = older != NULL;
  if (vlen) memcpy(v->val, val, vlen);
}

enum remixdb_status wh_link(struct wh_slot *slot, const void *val, uint32_t vlen, bool tomb) {
  struct wh *wh = slot->wh;
  struct wh_entry *e = slot->entry;
  if (e) {
    struct wh_ver *const older = atomic_load_explicit(&e->newest, memory_order_relaxed);
    const size_t before = older ? sizeof(older) : 0;
    uint8_t *const p = arena_alloc(&wh->arena, before + ver_size(vlen));
    if (p == NULL) return REMIXDB_NOMEM;
    if (older) memcpy(p, &older, before);
    struct wh_ver *const v = (struct wh_ver *)(void *)(p + before);
    ver_init(v, older, val, vlen, tomb);
    atomic_store_explicit(&e->newest, v, memory_order_release);
    if (older == NULL) atomic_fetch_add_explicit(&wh->count, 1, memory_order_relaxed);
    slot->ver = v;
    return REMIXDB_OK;
  }
  const struct kref key = slot->key;
  const size_t ver_at = align_up(offsetof(struct wh_entry, key) + (size_t)key.len, 8);
  e = arena_alloc(&wh->arena, ver_at + ver_size(vlen));
  if (e == NULL) return REMIXDB_NOMEM;
  if (unlikely((uint64_t)(uintptr_t)e >> PTR_BITS != 0))
    return err_set(REMIXDB_NOMEM, "an address of more than %d bits", PTR_BITS);
  struct wh_ver *v = (struct wh_ver *)(void *)((uint8_t *)e + ver_at);
  ver_init(v, NULL, val, vlen, tomb);
  atomic_init(&e->newest, v);
  e->klen = key.len;
  e->hash = (uint32_t)(slot->hash >> 32);
  if (key.len) memcpy(e->key, key.ptr, key.len);
  if (atomic_load_explicit(&slot->leaf->count, memory_order_relaxed) == WH_LEAF_KEYS) {
    const enum remixdb_status s = leaf_make_room(slot, entry_key(e));
    if (s != REMIXDB_OK) return s;
  }
  leaf_append(slot->leaf, (uint64_t)(uintptr_t)e | entry_tag(e->hash));
  atomic_fetch_add_explicit(&wh->count, 1, memory_order_relaxed);
  slot->entry = e;
  slot->ver = v;
  return REMIXDB_OK;
}

void wh_unlink(struct wh_slot *slot) {
  struct wh_ver *const older = ver_older(slot->ver);
  atomic_store_explicit(&slot->entry->newest, older, memory_order_release);
  slot->ver = NULL;
  if (older) return;
  atomic_fetch_sub_explicit(&slot->wh->count, 1, memory_order_relaxed);
  if (leaf_shrink(slot)) slot->entry = NULL;
}

void wh_many_init(struct wh_many *m, struct wh *wh) { *m = (struct wh_many){.wh = wh}; }

enum remixdb_status wh_many_link(struct wh_many *m, struct kref key, uint64_t hash, const void *val, uint32_t vlen, bool tomb, struct wh_link *out) {
  if (m->nr + 2 > m->cap) {  // the key's leaf, and what a split makes of it
    const uint32_t cap = m->cap ? m->cap * 2 : 16;
    struct wh_leaf **grown = mem_realloc(m->leaves, cap * sizeof(struct wh_leaf *));
    if (grown == NULL) return REMIXDB_NOMEM;
    m->leaves = grown;
    m->cap = cap;
  }
  struct wh_slot slot;
  struct wh_leaf *last = m->nr ? m->leaves[m->nr - 1] : NULL;
  assert(last == NULL || anchor_cmp(last, key, key8(key, 0)) <= 0);
  // The range of a locked leaf is fixed: only its holder can move its end.
  if (last && leaf_ends_behind(last, key, key8(key, 0))) {
    slot = (struct wh_slot){.wh = m->wh, .leaf = last, .entry = leaf_find(last, key, hash), .key = key, .hash = hash};
  } else {
    wh_lock(m->wh, key, hash, &slot);
    m->leaves[m->nr++] = slot.leaf;
  }
  slot.many = m;
  const enum remixdb_status s = wh_link(&slot, val, vlen, tomb);
  if (s == REMIXDB_OK) *out = (struct wh_link){slot.entry, slot.ver};
  return s;
}

void wh_many_unlink(struct wh_many *m, const struct wh_link *l) {
  struct wh_ver *const older = ver_older(l->ver);
  atomic_store_explicit(&l->entry->newest, older, memory_order_release);
  if (older == NULL) atomic_fetch_sub_explicit(&m->wh->count, 1, memory_order_relaxed);
}

void wh_many_unlock(struct wh_many *m) {
  for (uint32_t i = 0; i < m->nr; i++) lib_unlock(&m->leaves[i]->lock);
  mem_free(m->leaves);
  *m = (struct wh_many){.wh = m->wh};
}

// ---- reading

static inline const struct wh_ver *ver_seen(const struct wh_ver *v, uint64_t moment) {
  while (v && ver_seq(v) > moment) v = ver_older(v);
  return v;
}

// From a hint.
static inline const struct wh_ver *leaf_get(const struct wh *wh, struct wh_leaf *l, struct kref key, uint64_t k8, uint64_t hash,
                                            uint64_t moment) {
  // An entry with a version is the key's one entry wherever it was found, in a dead leaf too: successors share it, and one that
  // was given up for another lost its version first.
  const struct wh_entry *e = leaf_find(l, key, hash);
  const struct wh_ver *v = e ? entry_newest(e) : NULL;
  if (v) return ver_seen(v, moment);
  struct wh_leaf *right = locate(wh, l, key, k8);
  if (likely(right == l)) return NULL;  // it was the key's leaf and is alive now, so it was when it was searched
  e = leaf_find(right, key, hash);
  return e ? ver_seen(entry_newest(e), moment) : NULL;
}

static inline void leaf_prefetch(const struct wh_leaf *l, uint64_t hash) {
  __builtin_prefetch((const void *)&l->idx[entry_start((uint32_t)(hash >> 32))]);
  __builtin_prefetch(l);
}

const struct wh_ver *wh_get(const struct wh *wh, struct kref key, uint64_t hash, uint64_t moment) {
  const uint64_t k8 = key8(key, 0);
  struct wh_leaf *l = leaf_hint(wh, key, k8);
  leaf_prefetch(l, hash);
  return leaf_get(wh, l, key, k8, hash, moment);
}

// ---- reading many keys at once
//
// Group prefetching (Chen, Ailamaki, Gibbons, Mowry: "Improving Hash Join Performance through Prefetching", ICDE 2004): a step reads one
// line per key, which the step before has asked for. The steps only find out what will be read; the last one is wh_get's own search of
// the leaf, with all it needs at hand.

struct wh_way {  // of one key
  struct kref key;
  uint64_t k8;
  uint64_t probe;             // hash of the prefix that is looked for
  const struct wh_node *node;
  struct wh_leaf *leaf;
  uint32_t len, hi;           // of the longest prefix: at least, at most
  uint8_t state;
};
enum { WAY_LEAF, WAY_CHILD, WAY_PREV };

static inline void way_ask(const struct wh_table *t, struct wh_way *w, uint64_t hash) {
  w->probe = hash;
  __builtin_prefetch(&t->bucket[(uint32_t)hash & t->mask]);
}

// As table_find, but what a slot's tag says is taken for true: to look at the node would be a line more for each step, and a wrong one is
// found out like any other wrong hint.
static inline const struct wh_node *way_answer(const struct wh_table *t, uint64_t hash) {
  for (uint32_t b = (uint32_t)hash & t->mask;; b = (b + 1) & t->mask) {
    for (uint32_t i = 0; i < BUCKET_SLOTS; i++) {
      const uint64_t w = atomic_load_explicit(&t->bucket[b].slot[i], memory_order_acquire);
      if (w == 0) return NULL;
      if (unlikely((w ^ hash) >> PTR_BITS == 0 && w != SLOT_DELETED)) return (const struct wh_node *)(uintptr_t)(w & PTR_MASK);
    }
  }
}

// The binary search over the length of the longest prefix that has a node.
static void ways_descend(const struct wh *wh, const struct wh_table *t, struct wh_way *ways, uint32_t nr) {
  const uint32_t maxlen = atomic_load_explicit(&wh->maxlen, memory_order_relaxed);
  uint8_t going[WH_GROUP_MAX];
  uint32_t left = 0;
  for (uint32_t i = 0; i < nr; i++) {
    struct wh_way *const w = &ways[i];
    w->node = &wh->root;
    w->len = 0;
    w->hi = w->key.len < maxlen ? w->key.len : maxlen;
    if (w->hi == 0) continue;
    way_ask(t, w, prefix_hash_own(w->key, w->k8, (w->hi + 1) / 2));
    going[left++] = (uint8_t)i;
  }
  while (left) {
    uint32_t stay = 0;
    for (uint32_t i = 0; i < left; i++) {
      struct wh_way *const w = &ways[going[i]];
      const uint32_t mid = (w->len + w->hi + 1) / 2;
      const struct wh_node *const n = way_answer(t, w->probe);
      if (n) {
        w->node = n;
        w->len = mid;
      } else {
        w->hi = mid - 1;
      }
      if (w->len < w->hi) {
        way_ask(t, w, prefix_hash_own(w->key, w->k8, (w->len + w->hi + 1) / 2));
        going[stay++] = going[i];
      } else {
        __builtin_prefetch(w->node);
      }
    }
    left = stay;
  }
}

// From the node to the leaf that it names for the key, or to what has to be read for that.
static inline void way_turn(const struct wh_table *t, struct wh_way *w) {
  const uint64_t lmost = atomic_load_explicit(&w->node->lmost, memory_order_acquire);
  w->leaf = node_lmost(lmost);
  w->state = WAY_LEAF;
  if (w->len < w->key.len) {
    bool above;
    const int child = node_child_below(w->node, w->key.ptr[w->len], &above);
    if (child >= 0 && above) {
      way_ask(t, w, prefix_hash(w->key, w->k8, w->len + 1, (uint32_t)child));
      w->state = WAY_CHILD;
      return;
    }
    if (child >= 0) {
      w->leaf = node_rmost(w->node);
      return;
    }
  }
  if (lmost & TERMINAL) return;
  w->state = WAY_PREV;
  __builtin_prefetch(w->leaf);
}

static void ways_hint(const struct wh *wh, const struct wh_table *t, struct wh_way *ways, uint32_t nr) {
  ways_descend(wh, t, ways, nr);
  for (uint32_t i = 0; i < nr; i++) way_turn(t, &ways[i]);
  for (uint32_t i = 0; i < nr; i++) {
    struct wh_way *const w = &ways[i];
    if (w->state == WAY_CHILD) {
      w->node = way_answer(t, w->probe);
      if (w->node)
        __builtin_prefetch(w->node);
      else
        w->state = WAY_LEAF;
    } else if (w->state == WAY_PREV) {
      struct wh_leaf *const prev = leaf_prev(w->leaf);
      if (prev) w->leaf = prev;
    }
  }
  for (uint32_t i = 0; i < nr; i++)
    if (ways[i].state == WAY_CHILD) ways[i].leaf = node_rmost(ways[i].node);
}

// Asks for the words of the entries that leaf_find will look at.
static inline void leaf_prefetch_words(const struct wh_leaf *l, uint64_t hash) {
  const uint32_t h32 = (uint32_t)(hash >> 32);
  for (uint32_t i = entry_start(h32);; i = idx_behind(i)) {
    const uint32_t at = idx_load(&l->idx[i]);
    if (at == IDX_FREE) return;
    if (idx_fits(at, h32)) __builtin_prefetch((const void *)&l->entries[idx_pos(at)]);
  }
}

// Asks for the entry that has the key, most likely; without one, for the neighbour that shows where the leaf ends.
static inline void leaf_prefetch_entry(const struct wh_leaf *l, uint64_t hash) {
  const uint32_t h32 = (uint32_t)(hash >> 32);
  for (uint32_t i = entry_start(h32);; i = idx_behind(i)) {
    const uint32_t at = idx_load(&l->idx[i]);
    if (at == IDX_FREE) break;
    if (!idx_fits(at, h32)) continue;
    const uint64_t w = leaf_word(l, idx_pos(at));
    if ((w ^ entry_tag(h32)) >> PTR_BITS) continue;
    const uint8_t *const e = (const uint8_t *)word_entry(w);
    __builtin_prefetch(e);
    __builtin_prefetch(e + CACHE_LINE);  // the first version lies behind the key
    return;
  }
  __builtin_prefetch(leaf_next(l));
}

void wh_get_many(const struct wh *wh, const struct kref *keys, const uint64_t *hashes, const uint8_t *which, uint32_t nr, uint64_t moment,
                 const struct wh_ver **versions_out) {
  struct wh_way ways[WH_GROUP_MAX];
  assert(nr <= WH_GROUP_MAX);
  for (uint32_t i = 0; i < nr; i++) {
    ways[i].key = keys[which[i]];
    ways[i].k8 = key8(ways[i].key, 0);
  }
  const struct guide *const g = atomic_load_explicit(&wh->guide, memory_order_acquire);
  if (likely(g != NULL)) {
    void *leaves[WH_GROUP_MAX];
    guide_find_many(g, keys, which, nr, leaves);
    for (uint32_t i = 0; i < nr; i++) ways[i].leaf = leaves[i];
  } else {
    ways_hint(wh, atomic_load_explicit(&wh->table, memory_order_acquire), ways, nr);
  }
  for (uint32_t i = 0; i < nr; i++) leaf_prefetch(ways[i].leaf, hashes[which[i]]);
  for (uint32_t i = 0; i < nr; i++) leaf_prefetch_words(ways[i].leaf, hashes[which[i]]);
  for (uint32_t i = 0; i < nr; i++) leaf_prefetch_entry(ways[i].leaf, hashes[which[i]]);
  for (uint32_t i = 0; i < nr; i++)
    versions_out[which[i]] = leaf_get(wh, ways[i].leaf, ways[i].key, ways[i].k8, hashes[which[i]], moment);
}

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
  const uint8_t *e = (const uint8_t *)leaf_entry(c->leaf, c->order[at]);
  __builtin_prefetch(e);
  __builtin_prefetch(e + CACHE_LINE);
}

// The entry's newest version, which most of the time is the one that is seen. The entry itself has been fetched before.
static inline void cursor_prefetch_version(const struct wh_cursor *c, uint32_t at) {
  if (at >= c->nr) return;
  const uint8_t *v = (const uint8_t *)entry_newest(leaf_entry(c->leaf, c->order[at]));
  if (!v) return;
  for (uint32_t i = 0; i < 3; i++) __builtin_prefetch(v + i * CACHE_LINE);
}

// Goes to the leaf and takes its order.
static void cursor_take(struct wh_cursor *c, struct wh_leaf *l) {
  const uint32_t n = atomic_load_explicit(&l->count, memory_order_relaxed);
  for (uint32_t i = 0; i < n; i += CACHE_LINE / sizeof(l->entries[0])) __builtin_prefetch((const void *)&l->entries[i]);
  uint32_t tail;
  c->leaf = l;
  c->nr = leaf_order(l, c->order, &tail, &c->published);
  // Only a cache, so it is written although the index is the reader's constant; see wh_order.
  if (likely(tail == 0)) return;
  // What cursors have spent on the entries outside of the published order is what a new one may cost (as in the ski rental problem).
  const uint32_t spent = atomic_load_explicit(&l->spent, memory_order_relaxed) + tail;
  atomic_store_explicit(&l->spent, (uint8_t)(spent < PUBLISH_SPENT ? spent : 0), memory_order_relaxed);
  if (spent >= PUBLISH_SPENT && !leaf_dead(l)) leaf_publish((struct wh *)(uintptr_t)c->wh, l, c->order, c->nr);
}

#define AHEAD 6u  // entries that are fetched before they are reached

// From order[at] on to the first entry that is seen, through the leaves behind.
static void cursor_forward(struct wh_cursor *c, uint32_t at) {
  for (;;) {
    for (; at < c->nr; at++) {
      cursor_prefetch(c, at + AHEAD);
      cursor_prefetch_version(c, at + AHEAD / 2);
      const struct wh_entry *e = leaf_entry(c->leaf, c->order[at]);
      const struct wh_ver *v = ver_seen(entry_newest(e), c->moment);
      if (v == NULL) continue;
      c->entry = e;
      c->ver = v;
      c->at = at;
      return;
    }
    struct wh_leaf *next = leaf_next(c->leaf);
    if (next == NULL) break;
    cursor_take(c, next);
    const struct wh_leaf *after = leaf_next(next);
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
      const struct wh_entry *e = leaf_entry(c->leaf, c->order[nr - 1]);
      const struct wh_ver *v = ver_seen(entry_newest(e), c->moment);
      if (v == NULL) continue;
      c->entry = e;
      c->ver = v;
      c->at = nr - 1;
      return;
    }
    struct wh_leaf *prev = leaf_prev(c->leaf);
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
  if (hi > SAMPLE) {
    uint32_t from = 0, to = c->nr / SAMPLE;  // the first sample that is not smaller
    if (!c->published || !rank_samples(c->published, key8(key, 0), &from)) {
      for (uint32_t i = SAMPLE - 1; i < c->nr; i += SAMPLE) __builtin_prefetch(leaf_entry(c->leaf, c->order[i]));
      from = 0;
      while (from < to) {
        const uint32_t mid = (from + to) / 2;
        if (kv_cmp(entry_key(leaf_entry(c->leaf, c->order[SAMPLE * mid + SAMPLE - 1])), key) < (or_equal ? 1 : 0))
          from = mid + 1;
        else
          to = mid;
      }
    }
    lo = SAMPLE * from;
    hi = lo + SAMPLE - 1 < c->nr ? lo + SAMPLE - 1 : c->nr;
    for (uint32_t i = lo; i < hi; i++) __builtin_prefetch(leaf_entry(c->leaf, c->order[i]));
  }
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (kv_cmp(entry_key(leaf_entry(c->leaf, c->order[mid])), key) < (or_equal ? 1 : 0))
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

static void cursor_locate(struct wh_cursor *c, struct kref key) {
  const uint64_t k8 = key8(key, 0);
  struct wh_leaf *l = c->hint ? c->hint : leaf_hint(c->wh, key, k8);
  c->hint = NULL;
  cursor_take(c, locate(c->wh, l, key, k8));
}

void wh_want(struct wh_cursor *c, struct kref key) {
  c->hint = leaf_hint(c->wh, key, key8(key, 0));
  __builtin_prefetch(c->hint);
  for (uint32_t i = 0; i < WH_LEAF_KEYS; i += CACHE_LINE / sizeof(c->hint->entries[0])) __builtin_prefetch((const void *)&c->hint->entries[i]);
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
  struct wh_leaf *l = atomic_load_explicit(&c->wh->root.rmost, memory_order_acquire);
  for (;;) {  // as in locate
    if (leaf_dead(l)) {
      struct wh_leaf *prev = leaf_prev(l);
      l = prev ? prev : atomic_load_explicit(&c->wh->head, memory_order_acquire);
      continue;
    }
    struct wh_leaf *next = leaf_next(l);
    if (next == NULL) break;
    l = next;
  }
  cursor_take(c, l);
  cursor_backward(c, c->nr);
}

void wh_next(struct wh_cursor *c) { cursor_forward(c, c->at + 1); }
void wh_prev(struct wh_cursor *c) { cursor_backward(c, c->at); }

// ---- checking

#define BROKEN(...) return (void)snprintf(why, cap, __VA_ARGS__), false

static bool has_prefix(const struct wh_leaf *l, const uint8_t *prefix, uint32_t len) {
  return l && l->anchor.len >= len && (len == 0 || memcmp(l->anchor.ptr, prefix, len) == 0);
}

static bool check_chain(const struct wh_entry *e, char *why, size_t cap) {
  uint64_t above = 0;
  bool first = true;
  for (const struct wh_ver *v = entry_newest(e); v; v = ver_older(v)) {
    const uint64_t seq = ver_seq(v);
    if (!first && seq >= above) BROKEN("W4: number %" PRIu64 " behind %" PRIu64 " in a chain", seq, above);
    above = seq;
    first = false;
  }
  return true;
}

static bool check_leaf(const struct wh *wh, const struct wh_leaf *l, uint64_t *keys, char *why, size_t cap) {
  const struct wh_leaf *next = leaf_next(l);
  const uint32_t n = atomic_load_explicit(&l->count, memory_order_acquire);
  if (leaf_dead(l)) BROKEN("W1: a dead leaf in the list");
  if (n > WH_LEAF_KEYS) BROKEN("W1: %u keys in a leaf", n);
  uint32_t taken = 0;
  for (uint32_t i = 0; i < IDX_SIZE; i++) {
    const uint32_t at = idx_load(&l->idx[i]);
    if (at == IDX_FREE) continue;
    if (idx_pos(at) >= n) BROKEN("W1: the hash part names entry %u of %u", idx_pos(at), n);
    if (!idx_fits(at, leaf_entry(l, idx_pos(at))->hash)) BROKEN("W1: entry %u has another hash in the hash part", idx_pos(at));
    taken++;
  }
  if (taken != n) BROKEN("W1: the hash part has %u of %u entries", taken, n);
  uint8_t pos[WH_LEAF_KEYS];
  uint32_t tail;
  const struct wh_order *published;
  (void)leaf_order(l, pos, &tail, &published);
  for (uint32_t i = 0; i < n; i++) {
    const struct wh_entry *e = leaf_entry(l, pos[i]);
    const struct kref key = entry_key(e);
    const uint64_t hash = hash64(key.ptr, key.len);
    if (e->hash != (uint32_t)(hash >> 32)) BROKEN("W1: an entry's hash is not its key's");
    if (leaf_find(l, key, hash) != e) BROKEN("W1: an entry is not found by its key");
    if (kv_cmp(l->anchor, key) > 0 || (next && kv_cmp(key, next->anchor) >= 0)) BROKEN("W1: a key outside of its leaf's range");
    if (i && kv_cmp(entry_key(leaf_entry(l, pos[i - 1])), key) >= 0) BROKEN("W1: keys out of order");
    const uint64_t k8 = key8(key, 0);
    if (trie_hint(wh, key, k8, true) != l) BROKEN("W3: the trie leads to another leaf");
    if (!check_chain(e, why, cap)) return false;
    *keys += entry_newest(e) != NULL;
  }
  return true;
}

static bool kids_has(const struct wh_node *node, uint32_t c) {
  return atomic_load_explicit(&node->kids[c >> 6], memory_order_acquire) >> (c & 63) & 1;
}

static bool check_node(const struct wh *wh, const struct wh_node *node, char *why, size_t cap) {
  const struct wh_table *t = atomic_load_explicit(&wh->table, memory_order_acquire);
  const uint64_t lmost = atomic_load_explicit(&node->lmost, memory_order_acquire);
  const struct wh_leaf *first = node_lmost(lmost), *last = atomic_load_explicit(&node->rmost, memory_order_acquire);
  if (leaf_dead(first) || leaf_dead(last)) BROKEN("W6: a node names a dead leaf");
  if (!has_prefix(first, node->prefix, node->len) || !has_prefix(last, node->prefix, node->len))
    BROKEN("W3: a node names a leaf of another prefix");
  if (has_prefix(leaf_prev(first), node->prefix, node->len)) BROKEN("W3: not the leftmost leaf");
  if (has_prefix(leaf_next(last), node->prefix, node->len)) BROKEN("W3: not the rightmost leaf");
  if (((lmost & TERMINAL) != 0) != (first->anchor.len == node->len)) BROKEN("W3: a wrong mark of an anchor's end");
  const struct kref p = kref(node->prefix, node->len);
  for (uint32_t c = 0; c < 256; c++) {
    if (!kids_has(node, c)) continue;
    const struct wh_node *n = table_find(t, prefix_hash(p, key8(p, 0), p.len + 1, c), p.len + 1, NULL, false);
    if (n == NULL || n->prefix[p.len] != c) BROKEN("W3: a byte without a child");
  }
  return true;
}

static bool check_prefixes(const struct wh *wh, const struct wh_leaf *l, char *why, size_t cap) {
  const struct wh_table *t = atomic_load_explicit(&wh->table, memory_order_acquire);
  const struct wh_node *parent = &wh->root;
  for (uint32_t len = 1; len <= l->anchor.len; len++) {
    const struct wh_node *n = table_find(t, prefix_hash_own(l->anchor, l->lo8, len), len, l->anchor.ptr, true);
    if (n == NULL) BROKEN("W3: a prefix without a node");
    const uint32_t c = l->anchor.ptr[len - 1];
    if (!kids_has(parent, c)) BROKEN("W3: a child without its byte");
    parent = n;
  }
  return true;
}

static bool check_guide(const struct wh *wh, char *why, size_t cap) {
  const struct guide *const g = atomic_load_explicit(&wh->guide, memory_order_acquire);
  for (uint32_t i = 0; g && i < g->nr; i++) {
    const struct wh_leaf *const l = atomic_load_explicit(&g->items[i], memory_order_acquire), *const next = leaf_next(l);
    const struct kref bound = anchors_at(&g->anchors, i);
    if (leaf_dead(l)) BROKEN("W6: the guide names a dead leaf");
    if (kv_cmp(l->anchor, bound) > 0 || (next && kv_cmp(bound, next->anchor) >= 0)) BROKEN("W7: the guide names a leaf of another range");
  }
  return true;
}

static bool check_dead(const struct leaf_list *list, char *why, size_t cap) {
  uint32_t nr = 0;
  for (const struct wh_leaf *l = list->first; l; l = l->after, nr++)
    if (!leaf_dead(l)) BROKEN("W6: a living leaf among the dead ones");
  if (nr != list->nr) BROKEN("%u dead leaves, counted %u", nr, list->nr);
  return true;
}

bool wh_check(const struct wh *wh, char *why, size_t cap) {
  const struct wh_leaf *prev = NULL;
  uint64_t keys = 0;
  for (const struct wh_leaf *l = atomic_load_explicit(&wh->head, memory_order_acquire); l; prev = l, l = leaf_next(l)) {
    if (leaf_prev(l) != prev) BROKEN("W1: next and prev differ");
    if (prev ? kv_cmp(prev->anchor, l->anchor) >= 0 : l->anchor.len != 0) BROKEN("W1: anchors out of order");
    const struct wh_leaf *const behind = leaf_next(l);
    if (atomic_load_explicit(&l->end8, memory_order_relaxed) != (behind ? behind->lo8 : UINT64_MAX)) BROKEN("W1: a leaf's end differs");
    if (l->lo8 != key8(l->anchor, 0)) BROKEN("W1: an anchor's first bytes differ");
    if (!check_leaf(wh, l, &keys, why, cap) || !check_prefixes(wh, l, why, cap)) return false;
  }
  if (!check_guide(wh, why, cap) || !check_dead(&wh->dead, why, cap) || !check_dead(&wh->waiting, why, cap)) return false;
  if (keys != wh_count(wh)) BROKEN("%" PRIu64 " keys, counted %" PRIu64, keys, wh_count(wh));
  const struct wh_table *t = atomic_load_explicit(&wh->table, memory_order_acquire);
  uint64_t used = 0;
  for (uint32_t b = 0; b <= t->mask; b++) {
    for (uint32_t i = 0; i < BUCKET_SLOTS; i++) {
      const uint64_t w = atomic_load_explicit(&t->bucket[b].slot[i], memory_order_acquire);
      used += w != 0;
      if (w == 0 || w == SLOT_DELETED) continue;
      if (!check_node(wh, (const struct wh_node *)(uintptr_t)(w & PTR_MASK), why, cap)) return false;
    }
  }
  if (used != t->used || used > t->cap) BROKEN("W3: %" PRIu64 " slots in use, counted %" PRIu64, used, t->used);
  return check_node(wh, &wh->root, why, cap);
}
