// SPDX-License-Identifier: Apache-2.0
//
// A memtable: an index of the newest writes, and the log generation that holds the same records. It is counted. All
// memtables of a store take memory from one pool of chunks, so a dropped one's memory serves the next.
#ifndef MEMTABLE_H
#define MEMTABLE_H

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
  struct wh *wh;
  uint64_t gen;       // generation of its log segment (after a recovery, of the newest one); set before it is shared
  uint64_t base_seq;  // last sequence number given before that generation began
};

// cursors: see wh_recycle. limit: bytes that a memtable is meant to hold; the pool keeps as many for the next ones.
void memtables_init(struct memtables *all, struct epoch *epoch, struct epoch *cursors, size_t limit);
// No memtable lives any more. Does nothing without memtables_init.
void memtables_fini(struct memtables *all);
// Bytes of the living memtables beside these two (frozen may be NULL), which stay alive meanwhile. Any thread.
uint64_t memtables_kept(struct memtables *all, const struct memtable *active, const struct memtable *frozen);

// Bytes that the pool should hold beside the active memtable. One chunk until the memtable is half full; then more and
// more, so that the next memtable finds all of its memory when this one is full. One chunk while a memtable is frozen,
// because its chunks will serve again. 0: chunks of this size are not fetched ahead. Any thread, in the memtable's
// epoch.
size_t memtables_target(const struct memtables *all, const struct memtable *active, bool frozen);

// An empty memtable with one reference, the caller's. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status memtable_create(struct memtables *all, struct memtable **out);
void memtable_unref(struct memtable *m);  // NULL is allowed
#endif
