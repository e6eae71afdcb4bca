// SPDX-License-Identifier: Apache-2.0
//
// Merges for room on the disk. A partition that is merged as a whole loses its garbage (view/garbage.h), and the merge
// writes its live records. The partition with the most garbage per live byte gives the most room for what is written,
// so such merges take these first. Then a store that is overwritten evenly always has partitions with little garbage
// and with much, and its garbage is about half of that of the worst.
//
// Room is the bytes of tables and REMIX files. There are two bounds.
//   - A round of a memtable (garbage_plan_room) first makes a plan, so it knows about how many bytes its files will
//     take beside those of the store's version. These, the version's, and the store's other files (log, reserved room)
//     together are to take at most 1.6 times the live bytes. If they would take more, merges come before the round, in
//     steps. A step merges a few partitions. Then the store installs the step's version, which frees the room of the
//     old tables, before the next step begins. The steps merge the partitions that the round would write as a whole
//     anyway, but without its new data: so the round itself writes little. They cut a partition that has much of the
//     store, as the first one has (compact/cut.h). Then they merge for garbage, until the bound holds, or the garbage
//     is little (GARBAGE_FLOOR), or they have written as much as GARBAGE_ROUND memtables. One of these merges that
//     would exceed the bound by itself is made as a cut, too. So a store of few memtables may have more than 1.6 times
//     its live bytes, because there log and new files are much of it, and less garbage would mean to write the store
//     again and again. So may a store whose files without any garbage are much larger than the live bytes, as with
//     values of a few bytes. A round for which a call waits makes no steps, so that a flush is one round: it makes
//     these merges itself.
//   - On a full disk (garbage_plan_full) merges are as small as they must be: they take partitions that need little,
//     and slices of others (C8 in compact/cut.h). Each frees at least a sixteenth of what it writes.
//   - A store at rest (store/garbage_merge.h) is merged until all of its files, with log and reserved room, take at
//     most 1.28 times the live bytes, or its garbage is at most 1/32 of them.
#ifndef COMPACT_GARBAGE_H
#define COMPACT_GARBAGE_H

#include "compact/job.h"
#include "view/garbage.h"

#define GARBAGE_LEAST 8u        // a partition is not merged for garbage of less than 1/8 of its live bytes
#define GARBAGE_LEAST_FULL 16u  // the same on a full disk: 1/16
#define GARBAGE_REST 32u        // the same at rest: 1/32
#define GARBAGE_ROUND 6u        // memtables
#define GARBAGE_FLOOR 6u        // tables and REMIX files may always have 7/6 of what they would have without garbage
#define GARBAGE_CUT 4u  // not cut: a partition that would keep more hidden records and tombstones than 1/4 of its keys
#define GARBAGE_FULL 32u  // partitions that are planned at once on a full disk
#define GARBAGE_STEP 16u  // a step writes about 1/16 of the live bytes, or one memtable, or one partition, or a slice

// Bytes that tables and REMIX files may have. all: the sums. beside: bytes that other files will have.
uint64_t garbage_most(const struct garbage *all, uint64_t beside);
// Plans the merges that make room for a round of a memtable. The round has decided its jobs. base: the round's version.
// Sets the estimate of the work. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status garbage_plan_room(struct round *r, const struct version *base,
                                                 struct compact_room *room);
// The same for a round without steps: it merges some partitions with much garbage itself. So the bound holds when it
// has ended, about, but not while it has both its files and those that it replaces. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status garbage_plan_within(struct round *r, const struct version *base,
                                                   const struct compact_room *room);
// Plans the next step of garbage_plan_room: a round without new data.
void garbage_plan_step(struct round *r, struct compact_room *room);
// Plans such steps for a full disk, each of at most room->most bytes, or of what a step writes where that is less: then
// room->most becomes that. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status garbage_plan_full(struct round *r, const struct version *base,
                                                 struct compact_room *room);
// Tells whether a store at rest has so much garbage that it is to be merged. all: garbage_all.
bool garbage_due(const struct compact *c, const struct garbage *all);
// Plans the merges of a store at rest, at most as many as a round makes for scans. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status garbage_plan_rest(struct round *r, const struct version *base);
#endif
