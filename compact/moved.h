// SPDX-License-Identifier: Apache-2.0
//
// Merges for moved values. A collection moves values and leaves the tables as they are. So the indexes of the files
// that it has collected stay in memory, VALUE_MOVED bytes a value, and an opening reads them, until no table refers to
// those files (value/index.h). A merge writes the new references. Merges for other reasons mostly come in time. Where
// they do not, rounds merge whole partitions only for that.
//
// Tables of long values are small beside the values. While the first bound of moved_most holds, such merges of all
// tables write at most a twentieth of the bytes that collections have moved since the merges before.
//
// Invariants
//   M1  While the indexes of a version take more than moved_most, each round of a memtable merges at least one
//       partition that refers to moved values, and one memtable's bytes of such partitions at most beyond that. A store
//       at rest merges as many in a round as for scans. Those with the most moved values per byte of their tables come
//       first, so each has its turn before an older index than the others' keeps memory for long.
//   M2  Partitions that are away or cannot be read are left out (view/part.h). Where only those are left, nothing is
//       due.
//   M3  No round of a memtable fails because of such a merge alone: it is left out as a join is (J6 in compact/join.h).
#ifndef COMPACT_MOVED_H
#define COMPACT_MOVED_H

#include "compact/job.h"

#define MOVED_PART 8u                    // indexes may have 1/8 of the bytes of all tables,
#define MOVED_MEMORY 4u                  // but 1/4 of the memory for indexes,
#define MOVED_FLOOR 64u                  // and 1/64 of the bytes of all tables,
#define MOVED_LEAST ((uint64_t)4 << 20)  // and so many bytes in any case

// Bytes of memory that the indexes of the store's version may take.
uint64_t moved_most(const struct compact *c, const struct version *store);
// Tells whether a round has such a merge to make in this tree of the store's version. Opens no partition. Any thread;
// inside an epoch, or with a reference to `store`.
bool moved_due(const struct compact *c, const struct version *store, const struct version *tree);
// Plans the merges; without memory for that, none. The round has decided its jobs. store: the round's version.
void moved_plan(struct round *r, const struct version *store);
#endif
