// SPDX-License-Identifier: Apache-2.0
//
// Calls that freeze the active memtable, and calls that wait for rounds: room for writers, flush, compaction of the
// whole store. All of them run outside of any epoch and lock.
//
// If a round fails for lack of space or memory, or because the system cannot read what it needs, the call that waits
// for the round asks for another round after a while.
#ifndef STORE_FLUSH_H
#define STORE_FLUSH_H

#include "store/progress.h"
#include "store/round.h"

// The active memtable that a call freezes: only a full one, only one with records, or any. Freezing an empty memtable,
// too, lets the log release its older segments. XDB_FREEZE_AGAIN: a full one, and its round hands nothing back. A
// batch asks for that if it has waited before, and what a round had handed back left it too little room in the new
// memtable, or in the log's segment. Without workers it would find that each time.
enum xdb_freeze { XDB_FREEZE_FULL, XDB_FREEZE_AGAIN, XDB_FREEZE_USED, XDB_FREEZE_ANY };
// Makes room for a writer: waits until no memtable is frozen, then freezes the active memtable, if it still is as
// `when` demands (batch: see xdb_round_due). Does not wait for the round. Fails with REMIXDB_NOSPACE, REMIXDB_NOMEM,
// REMIXDB_IO or REMIXDB_CORRUPT if there is no room now, or with the failure that stopped the store.
MUST_CHECK enum remixdb_status xdb_wait_room(struct xdb *x, enum xdb_freeze when, size_t batch);
// The same for one record and a full memtable, but waits for a round or a flush no longer than ROOM_WAIT_NS. *late_out:
// the time has passed, and there is still no room. The full memtable then takes the record all the same, up to
// memory_late (store/memory.h). So writers wait for the end of a round in small steps, hundreds in a second, and a
// memtable of 64 MiB takes some ten thousand small records in that way. The log's segment must have room, too: it is
// full before a memtable of records of more than about 1.6 KB, so these wait for the round.
#define ROOM_WAIT_NS 5000000u
MUST_CHECK enum remixdb_status xdb_wait_room_a_while(struct xdb *x, bool *late_out);

// Waits until no memtable is frozen, no round runs, and no version waits to be destroyed. For the store's end, for
// tests and benchmarks.
MUST_CHECK enum remixdb_status xdb_wait_idle(struct xdb *x);
// Brings the active memtable into tables, and waits until it is there. Returns the failure of the memtable's round
// (REMIXDB_NOSPACE, REMIXDB_NOMEM, REMIXDB_IO, or the failure that stopped the store), although a later round may still
// succeed. Fails also with REMIXDB_READONLY.
MUST_CHECK enum remixdb_status xdb_flush(struct xdb *x);
// Like xdb_flush, for the closing of a store, so that the log is empty. If the flush fails, the log keeps the records.
void xdb_flush_last(struct xdb *x);
// Brings all earlier writes into the fewest tables, without tombstones and old versions, in several rounds, and waits
// for these rounds. Writers go on meanwhile. A partition that cannot be read is left as it is: when all others are
// compacted, the call fails with REMIXDB_CORRUPT or REMIXDB_IO, and names the file. Otherwise like xdb_flush.
MUST_CHECK enum remixdb_status xdb_compact(struct xdb *x);
// Freezes the active memtable, and waits for its round, which puts the tables of g above all. Fails as a flush
// does, or with g->error. After a failure the files of g are the caller's to remove if g->tried is not set.
MUST_CHECK enum remixdb_status xdb_ingest_round(struct xdb *x, struct xdb_ingesting *g);
// Like xdb_compact, for the partitions of a tree that may hold keys low <= key < high; ptr NULL: no such bound. Reports
// to p.
MUST_CHECK enum remixdb_status xdb_compact_range(struct xdb *x, uint32_t tree, struct kref low, struct kref high,
                                                 const struct progress *p);
// Like the two calls above, with reports to p. Fails with REMIXDB_ABORTED if p gives the call up; the round goes on.
MUST_CHECK enum remixdb_status xdb_flush_told(struct xdb *x, const struct progress *p);
MUST_CHECK enum remixdb_status xdb_compact_told(struct xdb *x, const struct progress *p);
#endif
