// SPDX-License-Identifier: Apache-2.0
//
// When the active memtable is frozen: for a call, or because it is full and no writer comes.
#ifndef STORE_FREEZE_H
#define STORE_FREEZE_H

#include "store/state.h"

// The active memtable that a call freezes: only a full one, only one with records, or any. Freezing an empty memtable,
// too, lets the log release its older segments. XDB_FREEZE_AGAIN: a full one, and its round hands nothing back. A batch
// asks for that if it has waited before, and if the records that a round handed back left it too little room in the new
// memtable, or in the log's segment. Without workers it would find that each time.
enum xdb_freeze { XDB_FREEZE_FULL, XDB_FREEZE_AGAIN, XDB_FREEZE_USED, XDB_FREEZE_ANY };
// Tells whether the active memtable must not be frozen now: another one is frozen, or an ingest is in the place of its
// round. xdb.lock is held.
static inline bool freeze_must_wait(const struct xdb *x) {
  return atomic_load_explicit(&x->rounds.compacting, memory_order_relaxed) || x->rounds.ingesting;
}
// Freezes the active memtable if it is full and may be frozen now, and asks for its round. Waits for neither, and does
// nothing without workers. So a memtable that one write or an opening has filled does not stay until the next write.
// After a failure the next writer tries again. Any thread, outside of any epoch and lock but settings.lock.
void xdb_freeze_full(struct xdb *x);
// The same for a memtable that has records; its round hands nothing back.
void xdb_freeze_all(struct xdb *x);
#endif
