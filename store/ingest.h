// SPDX-License-Identifier: Apache-2.0
//
// Sorted ingest: the caller's thread writes tables, without the log and the memtable. The commit is a round: it flushes
// what was written before, and puts the tables into the same version, above everything else (store/round.h).
//
// Invariants
//   I1  The records of an ingest have one sequence number, X. The log gives it when the memtable is frozen, as the last
//       number of that memtable (wal_switch_after). So all records below the tables have smaller numbers, and all
//       records in memtables larger ones. Between X and the super with the tables (rounds.ingesting), writes that
//       depend on what they have read wait: merges, deletions of ranges, commits of transactions. A transaction that
//       begins there knows X (store/txn.h, T7). The tables are built with number 1; the round writes X into their
//       footers.
//   I2  Readers see all of an ingest or nothing: its tables come with one super. They come under the log's lock, so a
//       merge or a transaction that has read older data notices it (xdb.c, commit).
//   I3  Until CURRENT names the tables, they are files that no version names. A crash leaves them to the next opening.
#ifndef STORE_INGEST_H
#define STORE_INGEST_H

#include "store/ref.h"

struct xdb_ingest;
// The contracts of remixdb_ingest_begin, _put, _commit and _abort. The ref outlives the ingest.
MUST_CHECK enum remixdb_status ingest_begin(struct xdb_ref *r, struct xdb_ingest **out);
MUST_CHECK enum remixdb_status ingest_put(struct xdb_ingest *g, struct kref key, const void *val, uint32_t vlen);
MUST_CHECK enum remixdb_status ingest_commit(struct xdb_ingest *g);  // frees g in any case
void ingest_abort(struct xdb_ingest *g);                             // frees g; NULL is allowed
struct xdb_ref *ingest_ref(const struct xdb_ingest *g);
#endif
