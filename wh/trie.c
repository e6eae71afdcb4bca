// SPDX-License-Identifier: Apache-2.0
#include "wh/trie.h"

#include <assert.h>
#include <inttypes.h>

#define SLOT_DELETED UINT64_C(1)  // a slot with address 1 and tag 0, which no node has
#define TERMINAL UINT64_C(1)      // in wh_node.lmost: that leaf's anchor is the node's prefix itself
#define BUCKET_SLOTS 8
#define TABLE_BUCKETS_MIN 16u
#define NODE_SLAB 31u

struct wh_bucket {
  // 0: free; SLOT_DELETED; or pointer to wh_node | tag. Filled from the left. Release.
  _Alignas(CACHE_LINE) _Atomic uint64_t slot[BUCKET_SLOTS];
};

struct wh_table {
  struct epoch_item retired;
  uint32_t mask;  // buckets - 1
  uint64_t used;  // slots that are not free, deleted ones included. Structure lock
  uint64_t cap;   // with more used slots the table must grow
  size_t bytes;
  struct wh_bucket bucket[];
};

// ---- the table of prefixes

// The state of hashing one key. A search, or a walk through the prefixes of the key, hashes the key only once, in
// pieces of PIECE bytes.
#define PIECE 128u
struct prefixes {
  uint64_t seed;
  uint64_t hash;  // hash of the key's first `done` bytes
  uint32_t done;
  const uint8_t *same;  // memory whose first same_len bytes are the key's
  uint32_t same_len;
};

static inline struct prefixes prefixes_of(const struct wh_trie *trie) {
  return (struct prefixes){.seed = trie->seed, .hash = trie->seed};
}

// Returns the hash of the key's first len bytes.
static uint64_t prefix_long(struct prefixes *p, const uint8_t *key, uint32_t len) {
  const uint32_t whole = len - len % PIECE;
  if (p->done > whole) {
    p->done = 0;
    p->hash = p->seed;
  }
  for (; p->done < whole; p->done += PIECE) {
    WH_COUNT(pieces);
    p->hash = hash64_seed(key + p->done, PIECE, p->hash);
  }
  return hash64_seed(key + whole, len - whole, p->hash);
}

// Returns the hash of the first len - 1 bytes of the key, followed by the byte `last`; len >= 1. The key has at least
// len - 1 bytes. The last byte is a separate argument, so that a child of a prefix can be hashed without a copy. k8 =
// wh_key8(key, 0). A user who does not know the seed cannot choose keys whose prefixes meet in one bucket.
static inline uint64_t prefix_hash(struct prefixes *p, struct kref key, uint64_t k8, uint32_t len, uint32_t last) {
  uint64_t x;
  if (len <= 8) x = ((len > 1 ? k8 >> (72 - 8 * len) << 8 : 0) | last) + len * UINT64_C(0x9E3779B97F4A7C15) + p->seed;
  else if (likely(len <= PIECE)) x = hash64_seed(key.ptr, len - 1, p->seed) + last * UINT64_C(0x9E3779B97F4A7C15);
  else x = prefix_long(p, key.ptr, len - 1) + last * UINT64_C(0x9E3779B97F4A7C15);
  x = (x ^ (x >> 32)) * UINT64_C(0xD6E8FEB86659FD93);
  x = (x ^ (x >> 29)) * UINT64_C(0x94D049BB133111EB);
  return x ^ (x >> 32);
}
static inline uint64_t prefix_hash_own(struct prefixes *p, struct kref key, uint64_t k8, uint32_t len) {
  return prefix_hash(p, key, k8, len, key.ptr[len - 1]);
}

// Tells whether the key begins with the node's prefix. Nodes of one path share the memory of their prefixes, so few
// prefixes are compared.
static bool prefix_is(struct prefixes *p, const struct wh_node *node, const uint8_t *key) {
  if (node->prefix == key || (node->prefix == p->same && node->len <= p->same_len)) return true;
  WH_COUNT(prefixes);
  if (memcmp(node->prefix, key, node->len) != 0) return false;
  p->same = node->prefix;
  p->same_len = node->len;
  return true;
}

// Returns the node of this hash and length, or NULL. exact: the prefix must equal the key's first len bytes, too. exact
// NULL: the node may be wrong if 48 bits of two hashes are equal.
static inline struct wh_node *table_find(const struct wh_table *t, uint64_t hash, uint32_t len, const uint8_t *key,
                                         struct prefixes *exact) {
  for (uint32_t b = (uint32_t)hash & t->mask;; b = (b + 1) & t->mask) {
    const struct wh_bucket *bucket = &t->bucket[b];
    WH_COUNT(buckets);
    for (uint32_t i = 0; i < BUCKET_SLOTS; i++) {
      uint64_t w = atomic_load_explicit(&bucket->slot[i], memory_order_relaxed);
      if (w == 0) return NULL;
      if (likely((w ^ hash) >> WH_PTR_BITS)) continue;
      w = atomic_load_explicit(&bucket->slot[i], memory_order_acquire);
      if (w == SLOT_DELETED || (w ^ hash) >> WH_PTR_BITS) continue;
      struct wh_node *node = (struct wh_node *)(uintptr_t)(w & WH_PTR_MASK);
      if (node->hash == (uint32_t)hash && node->len == len && (!exact || prefix_is(exact, node, key))) return node;
    }
  }
}

// Inserts the node. The caller has made room.
static void table_insert(struct wh_table *t, struct wh_node *node, uint64_t hash) {
  const uint64_t word = (uint64_t)(uintptr_t)node | (hash & ~WH_PTR_MASK);
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
      if ((w & WH_PTR_MASK) != (uint64_t)(uintptr_t)node) continue;
      atomic_store_explicit(&t->bucket[b].slot[i], SLOT_DELETED, memory_order_release);
      return;
    }
  }
}

static struct wh_table *table_create(uint64_t buckets) {
  const size_t bytes = sizeof(struct wh_table) + buckets * sizeof(struct wh_bucket);
  mem_hurry(true);
  struct wh_table *t = mem_alloc_aligned(CACHE_LINE, bytes);
  mem_hurry(false);
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

// Makes room for more nodes. If the table is too small, the call replaces it; the old table is freed when its readers
// have left. Under the structure lock.
static enum remixdb_status table_reserve(struct wh_trie *trie, uint64_t more) {
  struct wh_table *old = atomic_load_explicit(&trie->table, memory_order_relaxed);
  if (old->used + more <= old->cap) return REMIXDB_OK;
  uint64_t buckets = (uint64_t)old->mask + 1;
  do buckets *= 2;
  while (buckets * BUCKET_SLOTS * 3 / 5 < old->used + more);
  struct wh_table *t = table_create(buckets);
  if (t == NULL) return REMIXDB_NOMEM;
  for (uint32_t b = 0; b <= old->mask; b++) {
    const struct wh_bucket *ahead = &old->bucket[(b + 1) & old->mask];
    for (uint32_t i = 0; i < BUCKET_SLOTS; i++)
      prefetch((const void *)(uintptr_t)(atomic_load_explicit(&ahead->slot[i], memory_order_relaxed) & WH_PTR_MASK));
    for (uint32_t i = 0; i < BUCKET_SLOTS; i++) {
      const uint64_t w = atomic_load_explicit(&old->bucket[b].slot[i], memory_order_relaxed);
      if (w == 0) break;
      if (w == SLOT_DELETED) continue;
      struct wh_node *node = (struct wh_node *)(uintptr_t)(w & WH_PTR_MASK);
      table_insert(t, node, (w & ~WH_PTR_MASK) | node->hash);
    }
  }
  atomic_store_explicit(&trie->table, t, memory_order_release);
  atomic_store_explicit(&trie->table_bytes, t->bytes, memory_order_relaxed);
  epoch_retire(trie->epoch, &old->retired, table_free, NULL);
  return REMIXDB_OK;
}

// ---- hints

static inline struct wh_leaf *node_rmost(const struct wh_node *node) {
  return atomic_load_explicit(&node->rmost, memory_order_acquire);
}
static inline struct wh_leaf *node_lmost(uint64_t lmost) { return (struct wh_leaf *)(uintptr_t)(lmost & ~TERMINAL); }

// Returns the largest child below byte c, or -1. *above_out: whether there is a child above c.
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

struct wh_leaf *wh_trie_hint(const struct wh_trie *trie, struct kref key, uint64_t k8, bool exact) {
  struct prefixes p = prefixes_of(trie);
  const struct wh_table *t = atomic_load_explicit(&trie->table, memory_order_acquire);
  const struct wh_node *node = &trie->root;
  const uint32_t maxlen = atomic_load_explicit(&trie->maxlen, memory_order_relaxed);
  uint32_t len = 0, hi = key.len < maxlen ? key.len : maxlen;
  while (len < hi) {
    const uint32_t mid = (len + hi + 1) / 2;
    const struct wh_node *n = table_find(t, prefix_hash_own(&p, key, k8, mid), mid, key.ptr, exact ? &p : NULL);
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
      // The child is no prefix of the key, so only the bytes that it shares with this node can be compared.
      const uint64_t hash = prefix_hash(&p, key, k8, len + 1, (uint32_t)child);
      const struct wh_node *n = table_find(t, hash, len + 1, NULL, NULL);
      return likely(n != NULL) && (!exact || memcmp(n->prefix, key.ptr, len) == 0) ? node_rmost(n) : first;
    }
  }
  if (lmost & TERMINAL) return first;
  struct wh_leaf *prev = wh_leaf_prev(first);
  return prev ? prev : first;
}

// ---- many hints at once: each step reads one line per key, which the step before has prefetched (wh_get_many)

enum { WAY_LEAF, WAY_CHILD, WAY_PREV };

// Begins another key.
static inline struct prefixes *fresh(struct prefixes *p) {
  p->hash = p->seed;
  p->done = p->same_len = 0;
  return p;
}

static inline void way_ask(const struct wh_table *t, struct wh_way *w, uint64_t hash) {
  w->probe = hash;
  prefetch(&t->bucket[(uint32_t)hash & t->mask]);
}

// Like table_find, but trusts a slot's tag. Reading the node would cost one more cache line in each step. A wrong node
// only causes a wrong hint.
static inline const struct wh_node *way_answer(const struct wh_table *t, uint64_t hash) {
  for (uint32_t b = (uint32_t)hash & t->mask;; b = (b + 1) & t->mask) {
    for (uint32_t i = 0; i < BUCKET_SLOTS; i++) {
      const uint64_t w = atomic_load_explicit(&t->bucket[b].slot[i], memory_order_acquire);
      if (w == 0) return NULL;
      if (unlikely((w ^ hash) >> WH_PTR_BITS == 0 && w != SLOT_DELETED))
        return (const struct wh_node *)(uintptr_t)(w & WH_PTR_MASK);
    }
  }
}

// Finds the longest prefix of each key that has a node, by a binary search over the length. The keys advance together.
static void ways_descend(const struct wh_trie *trie, const struct wh_table *t, struct wh_way *ways, uint32_t nr) {
  struct prefixes p = prefixes_of(trie);
  const uint32_t maxlen = atomic_load_explicit(&trie->maxlen, memory_order_relaxed);
  uint8_t going[WH_GROUP_MAX];
  uint32_t left = 0;
  for (uint32_t i = 0; i < nr; i++) {
    struct wh_way *const w = &ways[i];
    w->node = &trie->root;
    w->len = 0;
    w->hi = w->key.len < maxlen ? w->key.len : maxlen;
    if (w->hi == 0) continue;
    way_ask(t, w, prefix_hash_own(fresh(&p), w->key, w->k8, (w->hi + 1) / 2));
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
        way_ask(t, w, prefix_hash_own(fresh(&p), w->key, w->k8, (w->len + w->hi + 1) / 2));
        going[stay++] = going[i];
      } else {
        prefetch(w->node);
      }
    }
    left = stay;
  }
}

// Sets the leaf that the node names for the key. If the node alone does not name the leaf, the call prefetches the
// memory that the next step reads.
static inline void way_turn(const struct wh_trie *trie, const struct wh_table *t, struct wh_way *w) {
  struct prefixes p = prefixes_of(trie);
  const uint64_t lmost = atomic_load_explicit(&w->node->lmost, memory_order_acquire);
  w->leaf = node_lmost(lmost);
  w->state = WAY_LEAF;
  if (w->len < w->key.len) {
    bool above;
    const int child = node_child_below(w->node, w->key.ptr[w->len], &above);
    if (child >= 0 && above) {
      way_ask(t, w, prefix_hash(&p, w->key, w->k8, w->len + 1, (uint32_t)child));
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
  prefetch(w->leaf);
}

void wh_trie_hint_many(const struct wh_trie *trie, struct wh_way *ways, uint32_t nr) {
  const struct wh_table *const t = atomic_load_explicit(&trie->table, memory_order_acquire);
  ways_descend(trie, t, ways, nr);
  for (uint32_t i = 0; i < nr; i++) way_turn(trie, t, &ways[i]);
  for (uint32_t i = 0; i < nr; i++) {
    struct wh_way *const w = &ways[i];
    if (w->state == WAY_CHILD) {
      w->node = way_answer(t, w->probe);
      if (w->node) prefetch(w->node);
      else w->state = WAY_LEAF;
    } else if (w->state == WAY_PREV) {
      struct wh_leaf *const prev = wh_leaf_prev(w->leaf);
      if (prev) w->leaf = prev;
    }
  }
  for (uint32_t i = 0; i < nr; i++)
    if (ways[i].state == WAY_CHILD) ways[i].leaf = node_rmost(ways[i].node);
}

// ---- changes: under the structure lock

// Returns the node of the anchor's first len bytes, or NULL.
static struct wh_node *trie_node(struct wh_trie *trie, struct prefixes *p, const struct wh_leaf *l, uint32_t len) {
  if (len == 0) return &trie->root;
  const struct wh_table *t = atomic_load_explicit(&trie->table, memory_order_relaxed);
  return table_find(t, prefix_hash_own(p, l->anchor, l->lo8, len), len, l->anchor.ptr, p);
}

// Returns the length of the anchor's longest prefix that has a node.
static uint32_t trie_prefix(struct wh_trie *trie, const struct wh_leaf *l) {
  struct prefixes p = prefixes_of(trie);
  const uint32_t maxlen = atomic_load_explicit(&trie->maxlen, memory_order_relaxed);
  uint32_t len = 0, hi = l->anchor.len < maxlen ? l->anchor.len : maxlen;
  while (len < hi) {
    const uint32_t mid = (len + hi + 1) / 2;
    if (trie_node(trie, &p, l, mid)) len = mid;
    else hi = mid - 1;
  }
  return len;
}

enum remixdb_status wh_trie_reserve(struct wh_trie *trie, const struct wh_leaf *l) {
  const uint64_t need = l->anchor.len - trie_prefix(trie, l);
  if (need > trie->nr_free_nodes) {
    const uint64_t n = need > NODE_SLAB ? need : NODE_SLAB;
    struct wh_node *slab = wh_line_alloc(trie->arena, n * sizeof(*slab));
    if (slab == NULL) return REMIXDB_NOMEM;
    trie->unused = slab;
    trie->nr_free_nodes = n;
  }
  return table_reserve(trie, need);
}

static void kids_set(struct wh_node *node, uint32_t c, bool on) {
  const uint64_t w = atomic_load_explicit(&node->kids[c >> 6], memory_order_relaxed), bit = UINT64_C(1) << (c & 63);
  atomic_store_explicit(&node->kids[c >> 6], on ? w | bit : w & ~bit, memory_order_release);
}

// Replaces from_l by first as the node's lmost, and from_r by last as the node's rmost. If from_l or from_r is NULL,
// the call does not change that field. Returns whether the node named one of them.
static bool node_swap(struct wh_node *node, const struct wh_leaf *from_l, struct wh_leaf *first,
                      const struct wh_leaf *from_r, struct wh_leaf *last) {
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

// Only the nodes of the old anchor's prefixes name the old leaf.
void wh_trie_replace(struct wh_trie *trie, const struct wh_leaf *old, struct wh_leaf *to) {
  struct prefixes p = prefixes_of(trie);
  for (uint32_t len = old->anchor.len;; len--)
    if (!node_swap(trie_node(trie, &p, old, len), old, to, old, to) || len == 0) return;
}

// Take the leaves below an existing node of one of the anchor's prefixes. The new leaf l is the first of them exactly
// if `right` was the first, because the anchor of `left` then lacks this prefix. l is the last of them exactly if
// `left` was the last.
void wh_trie_add(struct wh_trie *trie, struct wh_leaf *l, const struct wh_leaf *left, const struct wh_leaf *right) {
  struct prefixes p = prefixes_of(trie);
  struct wh_table *t = atomic_load_explicit(&trie->table, memory_order_relaxed);
  const struct kref a = l->anchor;
  const uint32_t have = trie_prefix(trie, l);
  struct wh_node *node = trie_node(trie, &p, l, have);
  if (a.len > atomic_load_explicit(&trie->maxlen, memory_order_relaxed))
    atomic_store_explicit(&trie->maxlen, a.len, memory_order_relaxed);
  if (have == a.len)  // the node existed for longer anchors only, which are all greater
    atomic_store_explicit(&node->lmost, (uint64_t)(uintptr_t)l | TERMINAL, memory_order_release);
  for (uint32_t len = have + 1; len <= a.len; len++) {
    const uint64_t hash = prefix_hash_own(&p, a, l->lo8, len);
    assert(trie->nr_free_nodes > 0);
    struct wh_node *n = trie->unused++;
    trie->nr_free_nodes--;
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
    if (!node_swap(trie_node(trie, &p, l, len), right, l, left, l) || len == 0) return;
}

void wh_trie_remove(struct wh_trie *trie, const struct wh_leaf *l, struct wh_leaf *left, struct wh_leaf *right) {
  struct prefixes p = prefixes_of(trie);
  struct wh_table *t = atomic_load_explicit(&trie->table, memory_order_relaxed);
  const struct kref a = l->anchor;
  for (uint32_t len = a.len; len > 0; len--) {
    struct wh_node *node = trie_node(trie, &p, l, len);
    const uint64_t lmost = atomic_load_explicit(&node->lmost, memory_order_relaxed);
    if (node_lmost(lmost) == l && atomic_load_explicit(&node->rmost, memory_order_relaxed) == l) {
      kids_set(trie_node(trie, &p, l, len - 1), a.ptr[len - 1], false);
      table_delete(t, node);
      continue;
    }
    if (len == a.len) atomic_store_explicit(&node->lmost, lmost & ~TERMINAL, memory_order_release);
    if (!node_swap(node, l, right, l, left)) return;
  }
  (void)node_swap(&trie->root, l, right, l, left);
}

// ---- beginning and end

enum remixdb_status wh_trie_init(struct wh_trie *trie, struct epoch *epoch, struct arena *arena, struct wh_leaf *l) {
  memset(trie, 0, sizeof(*trie));
  struct wh_table *const t = table_create(TABLE_BUCKETS_MIN);
  if (t == NULL) return REMIXDB_NOMEM;
  trie->epoch = epoch;
  trie->seed = random_seed();
  trie->arena = arena;
  atomic_init(&trie->table, t);
  atomic_init(&trie->table_bytes, t->bytes);
  trie->root.prefix = l->anchor.ptr;
  atomic_init(&trie->root.lmost, (uint64_t)(uintptr_t)l | TERMINAL);
  atomic_init(&trie->root.rmost, l);
  return REMIXDB_OK;
}

void wh_trie_fini(struct wh_trie *trie) { mem_free(atomic_load_explicit(&trie->table, memory_order_relaxed)); }

// ---- checking

static bool has_prefix(const struct wh_leaf *l, const uint8_t *prefix, uint32_t len) {
  return l && l->anchor.len >= len && (len == 0 || memcmp(l->anchor.ptr, prefix, len) == 0);
}

static bool kids_has(const struct wh_node *node, uint32_t c) {
  return atomic_load_explicit(&node->kids[c >> 6], memory_order_acquire) >> (c & 63) & 1;
}

static bool check_node(const struct wh_trie *trie, const struct wh_node *node, char *why, size_t cap) {
  const struct wh_table *t = atomic_load_explicit(&trie->table, memory_order_acquire);
  const uint64_t lmost = atomic_load_explicit(&node->lmost, memory_order_acquire);
  const struct wh_leaf *first = node_lmost(lmost), *last = atomic_load_explicit(&node->rmost, memory_order_acquire);
  if (wh_leaf_dead(first) || wh_leaf_dead(last)) WH_BROKEN("W6: a node names a dead leaf");
  if (!has_prefix(first, node->prefix, node->len) || !has_prefix(last, node->prefix, node->len))
    WH_BROKEN("W3: a node names a leaf of another prefix");
  if (has_prefix(wh_leaf_prev(first), node->prefix, node->len)) WH_BROKEN("W3: not the leftmost leaf");
  if (has_prefix(wh_leaf_next(last), node->prefix, node->len)) WH_BROKEN("W3: not the rightmost leaf");
  if (((lmost & TERMINAL) != 0) != (first->anchor.len == node->len)) WH_BROKEN("W3: a wrong mark of an anchor's end");
  const struct kref prefix = kref(node->prefix, node->len);
  struct prefixes p = prefixes_of(trie);
  for (uint32_t c = 0; c < 256; c++) {
    if (!kids_has(node, c)) continue;
    const uint64_t hash = prefix_hash(&p, prefix, wh_key8(prefix, 0), prefix.len + 1, c);
    const struct wh_node *n = table_find(t, hash, prefix.len + 1, NULL, NULL);
    if (n == NULL || n->prefix[prefix.len] != c) WH_BROKEN("W3: a byte without a child");
  }
  return true;
}

bool wh_trie_check_leaf(const struct wh_trie *trie, const struct wh_leaf *l, char *why, size_t cap) {
  struct prefixes p = prefixes_of(trie);
  const struct wh_table *t = atomic_load_explicit(&trie->table, memory_order_acquire);
  const struct wh_node *parent = &trie->root;
  for (uint32_t len = 1; len <= l->anchor.len; len++) {
    const uint64_t hash = prefix_hash_own(&p, l->anchor, l->lo8, len);
    const struct wh_node *n = table_find(t, hash, len, l->anchor.ptr, &p);
    if (n == NULL) WH_BROKEN("W3: a prefix without a node");
    const uint32_t c = l->anchor.ptr[len - 1];
    if (!kids_has(parent, c)) WH_BROKEN("W3: a child without its byte");
    parent = n;
  }
  return true;
}

bool wh_trie_check(const struct wh_trie *trie, char *why, size_t cap) {
  const struct wh_table *t = atomic_load_explicit(&trie->table, memory_order_acquire);
  uint64_t used = 0;
  for (uint32_t b = 0; b <= t->mask; b++) {
    for (uint32_t i = 0; i < BUCKET_SLOTS; i++) {
      const uint64_t w = atomic_load_explicit(&t->bucket[b].slot[i], memory_order_acquire);
      used += w != 0;
      if (w == 0 || w == SLOT_DELETED) continue;
      if (!check_node(trie, (const struct wh_node *)(uintptr_t)(w & WH_PTR_MASK), why, cap)) return false;
    }
  }
  if (used != t->used || used > t->cap) WH_BROKEN("W3: %" PRIu64 " slots in use, counted %" PRIu64, used, t->used);
  return check_node(trie, &trie->root, why, cap);
}
