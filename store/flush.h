// SPDX-License-Identifier: Apache-2.0
//
// Flushes: they bring the active memtable into tables. Outside of any epoch and lock.
#ifndef STORE_FLUSH_H
#define STORE_FLUSH_H

#include "store/progress.h"
#include "store/round.h"

// Waits until no memtable is frozen, no round runs, and no version waits to be destroyed. For the store's end, for
// tests and benchmarks.
MUST_CHECK enum remixdb_status xdb_wait_idle(struct xdb *x);
// Brings the active memtable into tables, and waits until it is there. Returns the failure of the memtable's round
// (REMIXDB_NOSPACE, REMIXDB_NOMEM, REMIXDB_IO, or the failure that stopped the store), although a later round may still
// succeed. Fails also with REMIXDB_READONLY.
MUST_CHECK enum remixdb_status xdb_flush(struct xdb *x);
// The same, with reports to p. Fails with REMIXDB_ABORTED if p gives the call up; the round goes on.
MUST_CHECK enum remixdb_status xdb_flush_told(struct xdb *x, const struct progress *p);
// Like xdb_flush, for the closing of a store, so that the log is empty. If the flush fails, the log keeps the records.
void xdb_flush_last(struct xdb *x);
// Freezes the active memtable, and waits for its round, which puts the tables of g above all. Fails as a flush
// does, or with g->error. After a failure the files of g are the caller's to remove if g->tried is not set.
MUST_CHECK enum remixdb_status xdb_ingest_round(struct xdb *x, struct xdb_ingesting *g);
#endif
