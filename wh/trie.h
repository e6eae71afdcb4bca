// SPDX-License-Identifier: Apache-2.0
//
// The trie of the wormhole. Private to wh.c and wh/.
//
// Every prefix of every anchor has a node in a hash table. A binary search over the length finds the longest prefix of
// a key that has a node. A node lists the bytes that continue its prefix, and the first and the last leaf whose anchors
// start with it.
//
// A change updates the list of leaves first, then the nodes of the changed anchors' prefixes. Where bounds move, the
// change goes from the longest prefix to the shortest, and stops at the first one that does not name the leaf. A leaf
// inside of a subtree is inside of each larger one, too, and at the edge of none. New nodes enter the table from the
// shortest to the longest, each before its parent's bit. Removal is the reverse. A reader in between finds too short a
// prefix, no child, or an old leaf. Each leads to a leaf near the right one, and wh_locate goes on from there along the
// list.
//
// Changes need the structure lock. Any thread inside the epoch may ask for hints.
#ifndef WH_TRIE_H
#define WH_TRIE_H

#include "wh/leaf.h"

// A node fills one cache line. prefix, len and hash are immutable. The rest is written under the structure lock, with
// release.
struct wh_node {
  const uint8_t *prefix;
  uint32_t len;
  uint32_t hash;           // low half of the prefix's hash; the table has its top 16 bits
  _Atomic uint64_t lmost;  // pointer to wh_leaf | 1 if that leaf's anchor is the prefix itself
  _Atomic(struct wh_leaf *) rmost;
  _Atomic uint64_t kids[4];  // bitmap of the bytes that continue the prefix
};
_Static_assert(sizeof(struct wh_node) == CACHE_LINE, "a node is one line");

struct wh_table;

struct wh_trie {
  _Atomic(struct wh_table *) table;  // release
  _Atomic uint32_t maxlen;           // no anchor is or was longer; relaxed, because it is only a hint
  _Atomic size_t table_bytes;        // relaxed
  uint64_t seed;                     // the hashes' seed; unknown to a user who chooses keys
  struct epoch *epoch;
  struct arena *arena;                       // the nodes' memory
  _Alignas(CACHE_LINE) struct wh_node root;  // the empty prefix's node; not in the table
  struct wh_node *unused;                    // the next unused node; structure lock
  uint64_t nr_free_nodes;                    // from there on
};

// Makes the trie of one leaf; its anchor is empty. Epoch and arena outlive it. REMIXDB_NOMEM: nothing is held.
MUST_CHECK enum remixdb_status wh_trie_init(struct wh_trie *t, struct epoch *epoch, struct arena *arena,
                                            struct wh_leaf *l);
void wh_trie_fini(struct wh_trie *t);  // no thread uses it any more; zeroed memory is allowed
// Gets nodes and room, so that wh_trie_add of this leaf cannot fail. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status wh_trie_reserve(struct wh_trie *t, const struct wh_leaf *l);
// Adds the leaf between left and right (NULL: it is the last one). Call wh_trie_reserve first.
void wh_trie_add(struct wh_trie *t, struct wh_leaf *l, const struct wh_leaf *left, const struct wh_leaf *right);
// Puts fresh, which has the same anchor, in the place of old.
void wh_trie_replace(struct wh_trie *t, const struct wh_leaf *old, struct wh_leaf *fresh);
// Removes a leaf other than the first one, and the nodes that only it needed. left: the leaf before it; right: the leaf
// after (NULL: none).
void wh_trie_remove(struct wh_trie *t, const struct wh_leaf *l, struct wh_leaf *left, struct wh_leaf *right);
// The key's leaf or one near it, never NULL. k8 = wh_key8(key, 0). exact: compares prefixes, so that no collision of
// hashes leads astray.
struct wh_leaf *wh_trie_hint(const struct wh_trie *t, struct kref key, uint64_t k8, bool exact);
// The last leaf, or a former last one.
static inline struct wh_leaf *wh_trie_last(const struct wh_trie *t) {
  return atomic_load_explicit(&t->root.rmost, memory_order_acquire);
}

// Hints for nr <= WH_GROUP_MAX keys side by side, not exact. The caller sets key and k8; the call sets leaf.
struct wh_way {
  struct kref key;
  uint64_t k8;
  struct wh_leaf *leaf;
  // private
  uint64_t probe;  // hash of the prefix that the next step looks for
  const struct wh_node *node;
  uint32_t len, hi;  // bounds of the longest prefix's length
  uint8_t state;
};
void wh_trie_hint_many(const struct wh_trie *t, struct wh_way *ways, uint32_t nr);

// For tests. The first checks all nodes for W3 and W6. The second checks that every prefix of the leaf's anchor has a
// node. False: one is broken, and why (cap bytes) has a message.
bool wh_trie_check(const struct wh_trie *t, char *why, size_t cap);
bool wh_trie_check_leaf(const struct wh_trie *t, const struct wh_leaf *l, char *why, size_t cap);
#endif
