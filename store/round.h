// SPDX-License-Identifier: Apache-2.0
//
// Rounds: the active memtable is frozen, compacted by a worker (compact/compact.h), and its version installed as the
// store's.
#ifndef STORE_ROUND_H
#define STORE_ROUND_H

#include "store/progress.h"
#include "store/state.h"

// One round: what workers run (arg is the store). Of a frozen memtable, when there is one; else, when scans have paid
// for it (compact/compact.h), of partitions alone, unless the active memtable is nearly full and still grows. Such a
// round gives up when a memtable is frozen meanwhile.
void xdb_round_run(void *arg, struct worker *w);
// The watch of the store's REMIXes (remix/state.h); arg is the store.
void xdb_round_scan_debt(void *arg, struct remix *x);
// There are to be no more rounds but of frozen memtables: the store is to be closed.
void xdb_round_last(struct xdb *x);

// Whether the memtable takes no more; `batch` bytes of memory are to come at once (0: one record). A large batch may
// end beyond the limit, but not by more than a quarter: then it gets a memtable of its own. So with the log's segment,
// which holds what the memtable does.
static inline bool xdb_round_due(struct xdb *x, const struct memtable *m, size_t batch) {
  const size_t used = wh_memory(m->wh), limit = x->memtable_limit;
  if (used >= limit || wal_full(x->wal, 0, false)) return true;
  return unlikely(batch != 0) &&
         ((used > limit / 4 && used + batch > limit + limit / 4) || wal_full(x->wal, batch, false));
}

// Which active memtable is frozen. Even an empty one can have something to be rid of: the log's segments before its
// own.
enum xdb_round_when { XDB_ROUND_FULL, XDB_ROUND_USED, XDB_ROUND_ANY };
// If the active memtable is (still) to be frozen: waits until none is frozen, and freezes it. Does not wait for its
// round. Outside of any epoch. REMIXDB_NOSPACE, REMIXDB_NOMEM: there is no room for now; or what stopped the store.
MUST_CHECK enum remixdb_status xdb_round_room(struct xdb *x, enum xdb_round_when when, size_t batch);

// Waits until no memtable is frozen, no round runs, and what nobody reads any more is gone. For the store's end, tests
// and benchmarks.
MUST_CHECK enum remixdb_status xdb_wait_idle(struct xdb *x);
// Brings what is in memory into tables, and waits for it. Rounds that are tried again are waited for as well, but the
// failure of one (REMIXDB_NOSPACE, REMIXDB_NOMEM, or what stopped the store) is returned. Outside of any epoch.
// REMIXDB_READONLY.
MUST_CHECK enum remixdb_status xdb_flush(struct xdb *x);
// The same at the store's end, so that the log it leaves is empty. What fails leaves the records in the log.
void xdb_flush_last(struct xdb *x);
// Brings all that was written before into the fewest tables, without tombstones and old versions, in several rounds,
// and waits. Writers go on meanwhile; what they write is not waited for. Otherwise as xdb_flush.
MUST_CHECK enum remixdb_status xdb_compact(struct xdb *x);
// The same, with reports to p. REMIXDB_ABORTED: given up; the round that was waited for goes on.
MUST_CHECK enum remixdb_status xdb_flush_told(struct xdb *x, const struct progress *p);
MUST_CHECK enum remixdb_status xdb_compact_told(struct xdb *x, const struct progress *p);
#endif
