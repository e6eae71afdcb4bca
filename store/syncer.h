// SPDX-License-Identifier: Apache-2.0
//
// Syncing the log: when a caller asks, and every N milliseconds.
#ifndef STORE_SYNCER_H
#define STORE_SYNCER_H

#include "store/ref.h"

// Brings all earlier writes, by any thread, to disk. Waits for the disk. Every failure but REMIXDB_NOSPACE and
// REMIXDB_NOMEM leaves the log's state on disk unknown, and stops all writes.
MUST_CHECK enum remixdb_status xdb_sync(struct xdb_ref *r);

// With sync = N ms, starts the thread that syncs at most N ms after a write. It marks the log when writes pause.
MUST_CHECK enum remixdb_status xdb_sync_start(struct xdb *x);
void xdb_sync_stop(struct xdb *x);    // ends the thread and waits for it; does nothing when there is none
void xdb_sync_signal(struct xdb *x);  // by xdb_sync_wake alone
// Tells the thread of a write.
static inline void xdb_sync_wake(struct xdb *x) {
  if (!atomic_load_explicit(&x->syncer.dirty, memory_order_relaxed)) xdb_sync_signal(x);
}
#endif
