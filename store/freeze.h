// SPDX-License-Identifier: Apache-2.0
//
// Freezing a full memtable without a next writer.
#ifndef STORE_FREEZE_H
#define STORE_FREEZE_H

#include "store/state.h"

// Tells whether the active memtable must not be frozen now: another one is frozen, or an ingest is in the place of its
// round. xdb.lock is held.
static inline bool freeze_must_wait(const struct xdb *x) {
  return atomic_load_explicit(&x->rounds.compacting, memory_order_relaxed) || x->rounds.ingesting;
}
// Freezes the active memtable if it is full and may be frozen now, and asks for its round. Waits for neither, and does
// nothing without workers. So a memtable that one write or an opening has filled does not stay until the next write.
// After a failure the next writer tries again. Any thread, outside of any epoch and lock but settings.lock.
void xdb_freeze_full(struct xdb *x);
#endif
