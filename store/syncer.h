// SPDX-License-Identifier: Apache-2.0
//
// Making durable what was written: when asked to, and every so often.
#ifndef STORE_SYNCER_H
#define STORE_SYNCER_H

#include "store/ref.h"

// All that was written before, by any thread, is on disk when it returns. Waits for the disk. A failure that leaves it
// unknown what is on disk stops all writes.
MUST_CHECK enum remixdb_status xdb_sync(struct xdb_ref *r);

// With sync = N ms: the thread that syncs at most N ms after a write, and marks the log when no more is written.
MUST_CHECK enum remixdb_status xdb_sync_start(struct xdb *x);
void xdb_sync_stop(struct xdb *x);  // and waits for its end; nothing when there is none
// Tells it of a write.
void xdb_sync_signal(struct xdb *x);
static inline void xdb_sync_wake(struct xdb *x) {
  if (!atomic_load_explicit(&x->syncer.dirty, memory_order_relaxed)) xdb_sync_signal(x);
}
#endif
