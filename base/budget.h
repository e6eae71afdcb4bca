// SPDX-License-Identifier: Apache-2.0
//
// The accounts of a store's memory. They count the bytes of those large parts that come and go by themselves. Each part
// enters its bytes when it takes memory, and takes them out when it frees the memory. store/memory.h divides the
// store's budget by these accounts; memtables and the block cache know their own sizes.
//
// The account of work is a bound, too. A piece of work that needs much memory waits until the work of other threads
// leaves room for it. If no other thread works, it begins whatever it needs.
//
// Any thread may call. A NULL pointer to the accounts means that nothing is counted and that there is no bound.
#ifndef BUDGET_H
#define BUDGET_H

#include "base/eventcount.h"

enum budget_kind {
  BUDGET_INDEXES,  // images of REMIXes, and indexes of collected value files
  BUDGET_TABLES,   // metadata of open tables
  BUDGET_PIECES,   // pieces of blocks (table/pieces.h)
  BUDGET_WORK,     // compaction
  BUDGET_SCANS,    // blocks and readahead memory that scans keep for themselves (table/hold.h)
  BUDGET_KINDS
};

struct budget {
  _Atomic uint64_t used[BUDGET_KINDS];  // bytes; relaxed
  // Bounds in bytes; UINT64_MAX: none. Relaxed: a thread uses the old value or the new one.
  _Atomic uint64_t pieces_most;  // a table gets pieces only within this bound
  _Atomic uint64_t dicts_most;   // dictionaries of tables, in the account of tables, stay within this bound
  _Atomic uint64_t work_most;    // work of several threads begins only within this bound
  _Atomic uint64_t scans_most;   // scans read ahead into memory of their own only within this bound
  // Indexes and metadata of tables should stay within this bound (remix/paged.h).
  _Atomic uint64_t indexes_most;
  _Atomic uint64_t away;  // entries of partitions that are not open yet; relaxed
  // Called before a piece of work takes its memory, if that is above the bound by itself. NULL: no call. In the
  // thread of the work, without locks and outside of any epoch.
  void (*lacks)(void *arg);
  void *arg;
  // Called when the account of scans has become another multiple of BUDGET_SCANS_STEP. In the thread of a scan, maybe
  // inside an epoch; must not wait. NULL: no call. Set it while no other thread uses the accounts.
  void (*scans_changed)(void *arg);
  void *scans_arg;
  pthread_mutex_t lock;     // guards `working`; no lock is taken within it
  uint32_t working;         // pieces of work under way
  struct eventcount ended;  // a piece of work has ended; threads are woken without the lock
};

// A partition's metadata of tables and its directory of pages (remix/paged.h) take about one byte for so many entries.
#define BUDGET_AWAY_ENTRIES 16u
#define BUDGET_SCANS_STEP ((uint64_t)1 << 20)  // bytes

extern _Atomic bool budget_starved;  // for tests: no index fits, indexes always are too much, and scans get no room

void budget_init(struct budget *b);  // no bounds
void budget_fini(struct budget *b);

static inline void budget_take(struct budget *b, enum budget_kind kind, uint64_t bytes) {
  if (b) (void)atomic_fetch_add_explicit(&b->used[kind], bytes, memory_order_relaxed);
}
static inline void budget_give(struct budget *b, enum budget_kind kind, uint64_t bytes) {
  if (b) (void)atomic_fetch_sub_explicit(&b->used[kind], bytes, memory_order_relaxed);
}
static inline uint64_t budget_used(const struct budget *b, enum budget_kind kind) {
  return b ? atomic_load_explicit(&b->used[kind], memory_order_relaxed) : 0;
}
// Tells whether there is room for pieces of so many bytes. Threads that ask at the same time may all get them.
static inline bool budget_pieces_fit(const struct budget *b, uint64_t bytes) {
  return !b || budget_used(b, BUDGET_PIECES) + bytes <= atomic_load_explicit(&b->pieces_most, memory_order_relaxed);
}

// A scan has kept `was` bytes for itself, and now keeps `is`.
void budget_scans(struct budget *b, uint64_t was, uint64_t is);
// How many bytes more scans may keep for themselves. Threads that ask at the same time may all get them.
static inline uint64_t budget_scans_left(const struct budget *b) {
  if (unlikely(atomic_load_explicit(&budget_starved, memory_order_relaxed))) return 0;
  if (!b) return UINT64_MAX;
  const uint64_t most = atomic_load_explicit(&b->scans_most, memory_order_relaxed), used = budget_used(b, BUDGET_SCANS);
  return used < most ? most - used : 0;
}

static inline uint64_t budget_indexes(const struct budget *b) {
  return budget_used(b, BUDGET_INDEXES) + budget_used(b, BUDGET_TABLES);
}
// Tells whether indexes and metadata of tables take more than they should.
static inline bool budget_indexes_over(const struct budget *b) {
  if (unlikely(atomic_load_explicit(&budget_starved, memory_order_relaxed))) return true;
  return b && budget_indexes(b) > atomic_load_explicit(&b->indexes_most, memory_order_relaxed);
}
// Counts the entries of a partition that is not open, or no longer counts them.
static inline void budget_away(struct budget *b, uint64_t entries, bool away) {
  if (!b) return;
  if (away) atomic_fetch_add_explicit(&b->away, entries, memory_order_relaxed);
  else atomic_fetch_sub_explicit(&b->away, entries, memory_order_relaxed);
}
// Tells whether a whole index of so many bytes fits beside all other indexes, and beside the memory that partitions
// take once they are open, if they are not yet. A quarter of the room is for pages of indexes that are not whole.
static inline bool budget_index_fits(const struct budget *b, uint64_t bytes) {
  if (unlikely(atomic_load_explicit(&budget_starved, memory_order_relaxed))) return false;
  if (!b) return true;
  const uint64_t most = atomic_load_explicit(&b->indexes_most, memory_order_relaxed);
  const uint64_t away = atomic_load_explicit(&b->away, memory_order_relaxed) / BUDGET_AWAY_ENTRIES;
  return budget_indexes(b) + away + bytes <= most - most / 4;
}

// Tells whether work that takes so many bytes keeps the bound.
static inline bool budget_work_fits(const struct budget *b, uint64_t bytes) {
  return !b || bytes <= atomic_load_explicit(&b->work_most, memory_order_relaxed);
}
// Begins work that takes about so many bytes, and waits for room. The caller holds no lock, is outside of any epoch,
// and has not begun another piece of work; it ends the work with the same number.
void budget_work_begin(struct budget *b, uint64_t bytes);
void budget_work_end(struct budget *b, uint64_t bytes);
#endif
