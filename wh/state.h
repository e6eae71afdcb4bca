// SPDX-License-Identifier: Apache-2.0
//
// What a wormhole is in memory, shared by its files alone: wh.c (the list of leaves, changes of the structure, writing,
// gets) and wh/cursor.c.
#ifndef WH_STATE_H
#define WH_STATE_H

#include "wh/guide.h"
#include "wh/trie.h"

// Dead leaves that wait.
struct wh_leaf_list {
  struct wh_leaf *first, *last;  // NULL, and nothing: it is empty
  uint32_t nr;
};

// Ranges of leaves that were reopened (wh/gap.h), the last so many of them.
#define WH_REOPENED 128u
struct wh_reopened {
  struct lib_lock lock;        // guards writing
  _Atomic uint64_t begun, nr;  // how many there ever were: release, before a range is written and after it
  // By number: the leaf's anchor and the next one's, pointer and length each; a pointer of 0: there is none. Release.
  _Atomic uint64_t range[WH_REOPENED][4];
};

struct wh {
  _Atomic(struct wh_leaf *) head;  // the leaf with the empty anchor; release
  _Atomic(struct guide *) guide;   // release, retired through the epoch; NULL: none yet
  _Atomic size_t guide_bytes;      // relaxed
  _Atomic uint64_t *recent;  // by the lower half of the hash: the word (wh_entry_word) of the entry or version written
                             // last of those that lead there; release; 0: none
  uint32_t nr_recent;
  struct epoch *epoch;
  struct wh_trie trie;
  _Alignas(CACHE_LINE) _Atomic uint64_t count;
  pthread_mutex_t lock;           // the structure lock: the list, the trie, and the fields as far as dead_lock
  uint32_t nr_leaves, guide_due;  // the number of leaves at which the guide is made again
  struct lib_lock dead_lock;      // guards the rest but for cursors and the arena
  struct wh_leaf_list dead;       // since the others were stamped
  struct wh_leaf_list waiting;    // until these stamps have passed
  struct wh_leaf *free_leaves;    // nobody can be on them
  uint64_t stamp, cursors_stamp;
  struct epoch *cursors;  // NULL: dead leaves stay
  struct arena arena;
  struct wh_reopened reopened;
};

// A leaf that is or was the key's, or has been left of it. k8 = wh_key8(key, 0).
static inline struct wh_leaf *wh_hint(const struct wh *wh, struct kref key, uint64_t k8) {
  const struct guide *const g = atomic_load_explicit(&wh->guide, memory_order_acquire);
  return likely(g != NULL) ? guide_find(g, key) : wh_trie_hint(&wh->trie, key, k8, false);
}
// From a hint to the leaf of the key's range, alive when looked at.
struct wh_leaf *wh_locate(const struct wh *wh, struct wh_leaf *l, struct kref key, uint64_t k8);
#endif
