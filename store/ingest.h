// SPDX-License-Identifier: Apache-2.0
//
// Sorted ingest: the caller's thread writes tables, without the log and the memtable. The commit is the work of a round
// (store/ingest_round.h): it flushes what was written before, and then puts the tables above everything else.
//
// Invariants
//   I1  One moment. The records of an ingest have one sequence number, X. The log gives it while it is held (log/wal.h,
//       L9), and the hold ends when the super with the tables is the store's. So no other write has a number between X
//       and the moment at which all of the ingest becomes visible: each smaller number was visible before, and each
//       larger one comes after.
//   I2  Everything with a smaller number is below the tables. The active memtable would be above them. So if it has a
//       key of the ingest, a new one takes its place, which gets the records whose keys the ingest does not have
//       (store/handover.h). They keep their numbers. No table has the records that are left out, and no reader needs
//       them: X replaces them. A reader, snapshot or transaction of an earlier super has the older memtable itself.
//       If the memtable and the ingest have no key in common, their order tells nothing, and the memtable stays. Its
//       gaps do not know of the tables, so none is used any more (wh/gap.h).
//   I3  All or none, to readers: the tables and the memtable come with one super. Its `since` is not smaller than X. It
//       becomes the store's before X is published.
//   I4  All or none, after a crash: CURRENT names the tables, and the log segment that begins behind X. That segment
//       begins with the records that were handed over, which are durable before CURRENT is written. A CURRENT without
//       the tables names the older segment, which has all records; those of the new segment are there twice then, under
//       the same numbers. If the memtable stays, CURRENT names its segment with the tables and without. X is durable
//       before CURRENT names them, so no later write gets a number that is not above X.
//   I5  Conflicts. A write that is based on a read commits only on top of the super that it has read, or compares that
//       with the tables of the new one. X is larger than the moment of every transaction that began before, so the
//       tables tell the conflict.
//   I6  Until CURRENT names the files, no version names them. A crash leaves them to the next opening.
//   I7  Values that are apart lie in files that only the ingest writes (struct value_log): if that fails, the ingest
//       fails, and no round of the store does. They are durable before CURRENT is written. A collection of garbage
//       (store/collect.h) takes files of the store's version only, and that has none of them before CURRENT names the
//       tables; from then on nobody writes to them. An ingest that is given up removes them.
// The tables are built without a number. The commit writes it into their footers while the log is held. All long work
// comes before: the flush, the views over the tables, and a search for the active memtable's keys among those of the
// ingest. So writers wait for the footers and for CURRENT, and, where keys meet, for the handing over of at most one
// memtable.
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
