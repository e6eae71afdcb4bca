// SPDX-License-Identifier: Apache-2.0
#include "store/freeze.h"

#include "store/install.h"

// xdb.lock is held.
static bool may_freeze(const struct xdb *x) {
  // a flush that waits for its turn freezes the memtable itself
  return atomic_load_explicit(&x->failed, memory_order_relaxed) == 0 && x->rounds.nr_flushers == 0 &&
         !freeze_must_wait(x);
}

// all: the memtable need not be full, and its round hands nothing back.
static void freeze_as(struct xdb *x, bool all) {
  bool kick = false;
  if (!x->workers || workers_count(x->workers) == 0) return;
  if (atomic_load_explicit(&x->rounds.compacting, memory_order_relaxed)) return;  // its end looks again
  struct err_saved was;  // the caller's work has succeeded: its message stays
  err_save(&was, REMIXDB_OK);
  xdb_lock(x);
  const struct memtable *const m = xdb_super(x)->active;
  const bool full = all || memtable_memory(m) >= xdb_memtable_limit(x) || wal_full(x->wal, 0, false);
  if (full && memtable_count(m) != 0 && may_freeze(x)) kick = round_freeze(x) == REMIXDB_OK;
  if (kick && all) x->rounds.nothing_back = true;
  xdb_unlock(x);
  err_restore(&was);
  if (kick) workers_kick(x->workers);
}

void xdb_freeze_full(struct xdb *x) { freeze_as(x, false); }
void xdb_freeze_all(struct xdb *x) { freeze_as(x, true); }
