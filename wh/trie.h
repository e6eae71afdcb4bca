// SPDX-License-Identifier: Apache-2.0
//
// The trie of the wormhole, shared by its files alone: a node for every prefix of every anchor, in a hash table, so
// that the longest prefix of a key that has one is found by binary search over its length. A node lists which bytes
// continue its prefix and the first and last leaf whose anchors start with it.
//
// A change updates the list first, then the nodes of the prefixes of the anchors concerned, the longest first where
// bounds move, and can stop at the first prefix that does not name the leaf: a leaf that is not at the edge of a
// subtree is not at the edge of one that contains it. New nodes enter the table from the shortest to the longest, each
// before its parent's bit; removal is the reverse. A reader in between finds too short a prefix, no child, or an old
// leaf; each gives a leaf near the right one, and wh_locate goes on from there by the list.
//
// Those that change it hold the structure lock; hints are given to anybody inside the epoch.
#ifndef WH_TRIE_H
#define WH_TRIE_H

#include "wh/leaf.h"

struct wh_node {          // one line
  const uint8_t *prefix;  // immutable, as are len and hash
  uint32_t len;
  uint32_t hash;           // low half of the prefix's hash; the table has its top 16 bits
  _Atomic uint64_t lmost;  // pointer to wh_leaf | 1 when that one's anchor is the prefix itself; this, rmost and kids:
                           // structure lock, release
  _Atomic(struct wh_leaf *) rmost;
  _Atomic uint64_t kids[4];  // bitmap of the bytes that continue the prefix
};
_Static_assert(sizeof(struct wh_node) == CACHE_LINE, "a node is one line");

struct wh_table;

struct wh_trie {
  _Atomic(struct wh_table *) table;  // release
  _Atomic uint32_t maxlen;           // no anchor is or was longer; relaxed, it is only a hint
  _Atomic size_t table_bytes;        // relaxed
  uint64_t seed;                     // of the hashes: nobody who chooses keys knows it
  struct epoch *epoch;
  struct arena *arena;                       // of nodes
  _Alignas(CACHE_LINE) struct wh_node root;  // of the empty prefix; not in the table
  struct wh_node *spare;                     // nodes not used yet; of those that change it
  uint64_t nr_free_nodes;
};

// The trie of one leaf, whose anchor is empty. REMIXDB_NOMEM: nothing is held. Both outlive it.
MUST_CHECK enum remixdb_status wh_trie_init(struct wh_trie *t, struct epoch *epoch, struct arena *arena,
                                            struct wh_leaf *l);
void wh_trie_fini(struct wh_trie *t);  // nobody uses it any more; zeroed memory is allowed
// Nodes and room for wh_trie_add of the leaf: all that can fail of it. REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status wh_trie_reserve(struct wh_trie *t, const struct wh_leaf *l);
// Adds the leaf between left and right (NULL: it is the last). Reserved before.
void wh_trie_add(struct wh_trie *t, struct wh_leaf *l, const struct wh_leaf *left, const struct wh_leaf *right);
// fresh has the anchor of old and takes its place.
void wh_trie_replace(struct wh_trie *t, const struct wh_leaf *old, struct wh_leaf *fresh);
// Takes out the leaf (not the first): left is the leaf before it, right the one behind. Nodes that only it needed go.
void wh_trie_remove(struct wh_trie *t, const struct wh_leaf *l, struct wh_leaf *left, struct wh_leaf *right);
// A leaf at or near the one for the key, never NULL. k8 = wh_key8(key, 0). exact: no collision of hashes leads astray.
struct wh_leaf *wh_trie_hint(const struct wh_trie *t, struct kref key, uint64_t k8, bool exact);
// The last leaf, or one that was.
static inline struct wh_leaf *wh_trie_last(const struct wh_trie *t) {
  return atomic_load_explicit(&t->root.rmost, memory_order_acquire);
}

// The same as a hint for nr <= WH_GROUP_MAX keys side by side: in, key and k8; out, leaf. Not exact.
struct wh_way {
  struct kref key;
  uint64_t k8;
  struct wh_leaf *leaf;
  // private
  uint64_t probe;  // hash of the prefix that is looked for
  const struct wh_node *node;
  uint32_t len, hi;  // of the longest prefix: at least, at most
  uint8_t state;
};
void wh_trie_hint_many(const struct wh_trie *t, struct wh_way *ways, uint32_t nr);

// For tests: check all nodes for W3 and W6, and that every prefix of the leaf's anchor has one. False and a message in
// why (of cap bytes) when not.
bool wh_trie_check(const struct wh_trie *t, char *why, size_t cap);
bool wh_trie_check_leaf(const struct wh_trie *t, const struct wh_leaf *l, char *why, size_t cap);
#endif
