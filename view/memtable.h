// SPDX-License-Identifier: Apache-2.0
//
// A memtable: an index of the newest writes, and the log generation that holds the same records. The keys of the
// spaces' tree (view/version.h, V7) have an index of their own, which is made when it is first needed. A memtable has a
// count of references. All memtables of a store take memory from one pool of chunks, so the memory of a dropped
// memtable serves the next memtable.
#ifndef MEMTABLE_H
#define MEMTABLE_H

#include "base/arena.h"
#include "value/set.h"
#include "view/current.h"
#include "wh.h"

// All memtables of a store: those of its super, and those that snapshots and iterators keep. All zero before
// memtables_init.
struct memtables {
  struct epoch *epoch, *cursors;
  struct arena_pool chunks;
  pthread_mutex_t lock;  // guards the list; no lock is taken within it
  struct memtable *first;
};

struct memtable {
  _Atomic uint32_t refs;
  struct memtables *all;
  struct memtable *next, *prev;  // guarded by all->lock
  bool left;                     // the view has left it (memtable_leave); guarded by that lock
  struct wh *wh;                 // the unnamed tree's
  _Atomic(struct wh *) spaces;   // the spaces' tree's; NULL: not made yet. Published with release by memtable_spaces
  uint64_t gen;       // generation of its log segment (after a recovery, of the newest one); set before it is shared
  uint64_t base_seq;  // last sequence number given before that generation began
  struct value_list values;      // the value files that its records may refer to
  _Atomic uint64_t apart_bytes;  // bytes of the values that were written apart for its records, about. Relaxed
};

// cursors: see wh_recycle. limit: bytes of a full memtable; the pool keeps as many bytes for the next memtables, until
// its limit is set anew.
void memtables_init(struct memtables *all, struct epoch *epoch, struct epoch *cursors, size_t limit);
// All memtables must be gone. Does nothing without memtables_init.
void memtables_fini(struct memtables *all);
// Returns the bytes of all living memtables except these two (frozen may be NULL), which stay alive during the call:
// those of all chunks. Any thread.
uint64_t memtables_kept(struct memtables *all, const struct memtable *active, const struct memtable *frozen);
// Memtables that only readers keep, because memtable_leave has named them, give the unused rest of their last chunks
// back to the system. Any thread.
void memtables_give_back(struct memtables *all);

// Returns how many bytes the pool should hold while this memtable is active. Until the memtable has used half of its
// first chunk, that is nothing: a store with few writes needs no second chunk. Until the memtable is half full, it is
// one chunk. Then it is more and more, so that the pool has most memory of the next memtable when this memtable is
// full. While another memtable is frozen, it is one chunk, because the frozen memtable's chunks will serve again. 0:
// chunks of this size are not fetched ahead. Any thread, in the memtable's epoch.
size_t memtables_target(const struct memtables *all, const struct memtable *active, bool frozen);
// Returns how many bytes should be ready while the round of a full memtable runs: those that the active one may still
// take if it becomes like the frozen one, and gets late records. Few chunks make a memtable full if its values are
// apart. 0, and callers: as above.
#define MEMTABLE_LATE 4u  // 1/4 of a memtable is more than records that are late or handed back take
size_t memtables_growth(const struct memtables *all, const struct memtable *active, const struct memtable *frozen);

// The view leaves the memtable, which is alive: nobody will write to it any more. Any thread.
void memtable_leave(struct memtable *m);
// Makes an empty memtable with one reference, which the caller owns. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status memtable_create(struct memtables *all, struct memtable **out);
// Makes the index of the spaces' tree, if there is none. Any thread; the memtable is alive. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status memtable_spaces(struct memtable *m);
// Returns the index of a tree; NULL: the memtable has none. A thread that has called memtable_spaces, or got a memtable
// for which another thread has done so, gets the index.
static inline struct wh *memtable_tree(const struct memtable *m, uint32_t tree) {
  return likely(tree == TREE_UNNAMED) ? m->wh : atomic_load_explicit(&m->spaces, memory_order_acquire);
}
// Returns the bytes that both indexes take. Any thread.
static inline size_t memtable_memory(const struct memtable *m) {
  const struct wh *const spaces = memtable_tree(m, TREE_SPACES);
  return wh_memory(m->wh) + (unlikely(spaces != NULL) ? wh_memory(spaces) : 0);
}
// Returns the number of keys in both indexes.
static inline uint64_t memtable_count(const struct memtable *m) {
  const struct wh *const spaces = memtable_tree(m, TREE_SPACES);
  return wh_count(m->wh) + (spaces ? wh_count(spaces) : 0);
}
// Takes another reference. The memtable is alive: the caller has a reference, or is still in the epoch in which it
// found the memtable in the store's super.
static inline void memtable_ref(struct memtable *m) { atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed); }
void memtable_unref(struct memtable *m);  // NULL is allowed
#endif
