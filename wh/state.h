// SPDX-License-Identifier: Apache-2.0
//
// A wormhole in memory. Private to wh.c (list of leaves, structure changes, writes, gets) and wh/.
#ifndef WH_STATE_H
#define WH_STATE_H

#include "wh/guide.h"
#include "wh/trie.h"

// Dead leaves that wait to serve again.
struct wh_leaf_list {
  struct wh_leaf *first, *last;  // first NULL: the list is empty, and `last` means nothing
  uint32_t nr;
};

// The last WH_REOPENED ranges of leaves that were reopened (wh/gap.h).
#define WH_REOPENED 128u
struct wh_reopened {
  struct lib_lock lock;        // guards writing
  _Atomic uint64_t begun, nr;  // ranges ever: the writer counts begun up before it writes one, nr after; release
  // Range i is at i % WH_REOPENED: the leaf's anchor, then the next leaf's; pointer and length each. A pointer of 0:
  // there is no next leaf. Release.
  _Atomic uint64_t range[WH_REOPENED][4];
};

struct wh {
  _Atomic(struct wh_leaf *) head;  // the leaf with the empty anchor; release
  _Atomic(struct guide *) guide;   // release, retired through the epoch; NULL: none yet
  _Atomic size_t guide_bytes;      // relaxed
  _Atomic uint64_t *recent;  // by the lower half of the hash: the word (wh_entry_word) of the entry or version that was
                             // written last at this place; release; 0: none
  uint32_t nr_recent;
  _Atomic bool used;     // some version was linked; relaxed, set before the version is
  _Atomic bool expires;  // some version that was linked expires; relaxed, set before the version is linked
  struct epoch *epoch;
  struct wh_trie trie;
  _Alignas(CACHE_LINE) _Atomic uint64_t count;
  pthread_mutex_t lock;           // the structure lock: the list, the trie, and the four fields that follow
  uint32_t nr_leaves, guide_due;  // leaves; at guide_due leaves the guide is made again
  uint32_t cuts, cuts_due;        // leaves that were ever cut in two; at cuts_due cuts the guide is made again, too
  struct lib_lock dead_lock;      // guards the fields up to the stamps
  struct wh_leaf_list dead;       // leaves that died after the waiting leaves got their stamps
  uint32_t dead_due;              // when there are so many, the waiting leaves' stamps are looked at
  struct wh_leaf_list waiting;    // the memory of these leaves serves again when the stamps have passed
  struct wh_leaf *free_leaves;    // no thread can be on these
  uint64_t stamp, cursors_stamp;  // stamps of the waiting leaves, one in each domain
  struct epoch *cursors;          // NULL: dead leaves stay
  struct arena arena;
  struct wh_reopened reopened;
  _Atomic bool no_gaps;  // gaps are not used (wh_end_gaps); release
};

// Returns a leaf that is or was the key's leaf, or was left of it. k8 = wh_key8(key, 0).
static inline struct wh_leaf *wh_hint(const struct wh *wh, struct kref key, uint64_t k8) {
  const struct guide *const g = atomic_load_explicit(&wh->guide, memory_order_acquire);
  return likely(g != NULL) ? guide_find(g, key) : wh_trie_hint(&wh->trie, key, k8, false);
}
// Goes from a hint to the leaf whose range has the key. That leaf was alive when the call looked at it.
struct wh_leaf *wh_locate(const struct wh *wh, struct wh_leaf *l, struct kref key, uint64_t k8);
#endif
