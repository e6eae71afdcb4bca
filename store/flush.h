// SPDX-License-Identifier: Apache-2.0
//
// Flushes: they bring the active memtable into tables. Outside of any epoch and lock.
#ifndef STORE_FLUSH_H
#define STORE_FLUSH_H

#include "store/progress.h"
#include "store/round.h"

// Closing leaves a log segment of so many bytes as it is: a program that opens the store, writes a little and closes it
// pays for no table, no REMIX and no CURRENT. The next opening links some hundred records, and appends to the segment
// (wal_open). All must be in one segment, the log must be all that holds them (no value apart, no edit of a version
// that waits for an install), and the memtable must be far from its limit.
#define FLUSH_LEAVE (32u << 10)
#define FLUSH_LEAVE_PART 8u  // and at most this part of the memtable's limit

// Waits until no memtable is frozen, no round runs, and no version waits to be destroyed. For the store's end, for
// tests and benchmarks.
MUST_CHECK enum remixdb_status xdb_wait_idle(struct xdb *x);
// Brings the active memtable into tables, and waits until it is there. Returns the failure of the memtable's round
// (REMIXDB_NOSPACE, REMIXDB_NOMEM, REMIXDB_IO, or the failure that stopped the store), although a later round may still
// succeed. Fails also with REMIXDB_READONLY.
MUST_CHECK enum remixdb_status xdb_flush(struct xdb *x);
// The same, with reports to p. Fails with REMIXDB_ABORTED if p gives the call up; the round goes on.
MUST_CHECK enum remixdb_status xdb_flush_told(struct xdb *x, const struct progress *p);
// Like xdb_flush, for the closing of a store. Few records may stay in the log (FLUSH_LEAVE). If the flush fails, the
// log keeps the records. No writer runs, no round, and nobody asks for one (workers_settle).
void xdb_flush_last(struct xdb *x);
// Freezes the active memtable, and waits for its round, which puts the tables of g above all. Fails as a flush does, or
// with g->error. After a failure the files of g are the caller's to remove if g->tried is not set.
MUST_CHECK enum remixdb_status xdb_ingest_round(struct xdb *x, struct xdb_ingesting *g);
#endif
