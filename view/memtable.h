// SPDX-License-Identifier: Apache-2.0
//
// A memtable: an index of what was written lately, and which segments of the log hold the same. Counted; its memory
// comes from chunks that all memtables of a store share, so that what a dropped one held serves the next.
#ifndef MEMTABLE_H
#define MEMTABLE_H

#include "wh.h"

// All memtables of a store: that of its view, and those that snapshots and iterators keep. One that was never begun is
// zero.
struct memtables {
  struct epoch *epoch, *cursors;
  struct arena_pool chunks;
  pthread_mutex_t lock;  // guards the list; no lock is taken with it
  struct memtable *first;
};

struct memtable {
  _Atomic uint32_t refs;
  struct memtables *all;
  struct memtable *next, *prev;  // guarded by all->lock
  struct wh *wh;
  uint64_t gen;       // generation of its log segment (of the newest, after a recovery); set before it is shared
  uint64_t base_seq;  // last number given before that generation began
};

// cursors: see wh_recycle. limit: bytes that a memtable is to hold; that much is kept for the next ones.
void memtables_init(struct memtables *all, struct epoch *epoch, struct epoch *cursors, size_t limit);
// None lives any more. Nothing when it was never begun.
void memtables_fini(struct memtables *all);
// Bytes of those that live beside these two (frozen may be NULL). Both stay alive meanwhile. Any thread.
uint64_t memtables_kept(struct memtables *all, const struct memtable *active, const struct memtable *frozen);

// What the pool of chunks should hold, in bytes, beside the active memtable: one chunk until that is half full; then
// more and more, so that the next memtable finds all of its memory when this one is full. One chunk while another is
// frozen, whose chunks will serve again. 0: nothing is fetched ahead of such a size. Any thread, in the memtable's
// epoch.
size_t memtables_target(const struct memtables *all, const struct memtable *active, bool frozen);

// An empty one with one reference, the caller's. REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status memtable_create(struct memtables *all, struct memtable **out);
void memtable_unref(struct memtable *m);  // NULL is allowed
#endif
