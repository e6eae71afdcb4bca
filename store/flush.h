// SPDX-License-Identifier: Apache-2.0
//
// Calls that freeze the active memtable, and calls that wait for rounds: room for writers, flush, compaction of the
// whole store. All of them run outside of any epoch and lock.
//
// When a round fails for want of space or memory, the call that waits for it asks for it again after a while.
#ifndef STORE_FLUSH_H
#define STORE_FLUSH_H

#include "store/progress.h"
#include "store/round.h"

// The active memtable that a call freezes: a full one, one with records, or any. Freezing even an empty one lets the
// log's older segments be released.
enum xdb_freeze { XDB_FREEZE_FULL, XDB_FREEZE_USED, XDB_FREEZE_ANY };
// Makes room for a writer: waits until no memtable is frozen, then freezes the active one, if it is still as `when`
// says (batch: see xdb_round_due). Does not wait for the round. REMIXDB_NOSPACE, REMIXDB_NOMEM: there is no room now.
// Else the failure that stopped the store.
MUST_CHECK enum remixdb_status xdb_wait_room(struct xdb *x, enum xdb_freeze when, size_t batch);

// Waits until no memtable is frozen, no round runs, and no version waits to be destroyed. For the store's end, for
// tests and benchmarks.
MUST_CHECK enum remixdb_status xdb_wait_idle(struct xdb *x);
// Brings the active memtable into tables, and waits for that. Returns the failure of its round (REMIXDB_NOSPACE,
// REMIXDB_NOMEM, or what stopped the store), although a later round may still succeed. Fails with REMIXDB_READONLY.
MUST_CHECK enum remixdb_status xdb_flush(struct xdb *x);
// The same at the store's end, so that the log is empty. After a failure the log keeps the records.
void xdb_flush_last(struct xdb *x);
// Brings all earlier writes into the fewest tables, without tombstones and old versions, in several rounds, and waits
// for that. Writers go on meanwhile. Otherwise like xdb_flush.
MUST_CHECK enum remixdb_status xdb_compact(struct xdb *x);
// The same with reports to p. REMIXDB_ABORTED: p gave the call up; the round that it waited for goes on.
MUST_CHECK enum remixdb_status xdb_flush_told(struct xdb *x, const struct progress *p);
MUST_CHECK enum remixdb_status xdb_compact_told(struct xdb *x, const struct progress *p);
#endif
