// SPDX-License-Identifier: Apache-2.0
//
// Syncing the log: when a caller asks, and every N milliseconds.
#ifndef STORE_SYNCER_H
#define STORE_SYNCER_H

#include "store/ref.h"

// Brings all earlier writes, by any thread, to disk. Waits for the disk. After every failure except REMIXDB_NOSPACE and
// REMIXDB_NOMEM the log's state on disk is unknown, and the store refuses all writes.
MUST_CHECK enum remixdb_status xdb_sync_all(struct xdb *x);
MUST_CHECK static inline enum remixdb_status xdb_sync(struct xdb_ref *r) { return xdb_sync_all(r->xdb); }

// With sync = N ms, starts the thread that syncs at most N ms after a write. The thread writes the log's watermark when
// no writes come.
MUST_CHECK enum remixdb_status xdb_sync_start(struct xdb *x);
void xdb_sync_stop(struct xdb *x);  // ends the thread and waits for it; does nothing when there is none
// Changes when writes are synced: the option `sync`. One thread at a time, beside writers. Earlier writes are synced
// when the call returns, unless the option was REMIXDB_SYNC_NONE. After a failure the old value holds.
MUST_CHECK enum remixdb_status xdb_sync_change(struct xdb *x, int how);
void xdb_sync_signal(struct xdb *x);  // by xdb_sync_wake alone
// Tells the thread that something was written.
static inline void xdb_sync_wake(struct xdb *x) {
  if (!atomic_load_explicit(&x->syncer.dirty, memory_order_relaxed)) xdb_sync_signal(x);
}
#endif
