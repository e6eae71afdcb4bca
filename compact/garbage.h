// SPDX-License-Identifier: Apache-2.0
//
// Merges for room on the disk. A partition that is merged as a whole loses its garbage (view/garbage.h), and the merge
// writes its live records. The partition with the most garbage per live byte gives the most room for what is written,
// so such merges take these first. Then a store that is overwritten evenly always has partitions with little garbage
// and with much, and its garbage is about half of that of the worst.
//
// Room is the bytes of tables and REMIX files. There are two bounds.
//   - A round of a memtable keeps the room below garbage_most: 1.6 times the live bytes, less the log of two memtables
//     and the room of about four, which the round's new files take before the old ones go. A store of less than thirty
//     memtables may have more, because there it would have to merge everything in each round. So may a store whose
//     files without any garbage are much larger than the live bytes, as with values of a few bytes: its garbage may be
//     a fifth of what the files would be without it. A round does not merge more for
//     this than GARBAGE_ROUND memtables: if deletes make garbage faster than that, the room exceeds the bound until the
//     garbage is so much that merges are cheap.
//   - A store at rest (store/garbage_merge.h) is merged until its room is at most 6/5 of the live bytes, or its garbage
//     at most 1/16 of them, so that the room with the log stays below 1.3 times the live bytes.
#ifndef COMPACT_GARBAGE_H
#define COMPACT_GARBAGE_H

#include "compact/job.h"
#include "view/garbage.h"

#define GARBAGE_LEAST 8u  // a partition is not merged for garbage of less than 1/8 of its live bytes,
#define GARBAGE_REST 16u  // or less than 1/16 at rest
#define GARBAGE_ROUND 6u

// Bytes that tables and REMIX files may have after a round of a memtable. memtable: bytes. all: the sums.
uint64_t garbage_most(size_t memtable, const struct garbage *all);
// Plans merges in a round of a memtable until its room is within the bound. The other jobs are decided. base: the
// round's version. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status garbage_bound(struct round *r, const struct version *base);
// Tells whether a store at rest has so much garbage that it is to be merged. all: garbage_all.
bool garbage_due(const struct compact *c, const struct garbage *all);
// Plans the merges of a store at rest, at most as many as a round makes for scans. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status garbage_plan_rest(struct round *r, const struct version *base);
#endif
