// SPDX-License-Identifier: Apache-2.0
//
// Joins: neighbours of a tree in which little lives become one partition. So the number of partitions follows the live
// records, also where keys rise and the oldest are deleted, where most of a store is deleted, or where writes move on
// to other keys. A partition in which nothing lives leaves.
//
// Invariants
//   J1  A join makes one partition of neighbours of one tree. It merges all of their runs and their new data. By the
//       estimate, the result has at most 1/COMPACT_JOIN of a table. A split of a full partition makes larger ones, so
//       these are joined only when they have lost a part of that. A joined partition is split only when it has grown to
//       more than COMPACT_PART_TABLES tables. So a partition does not go to and fro. A small append makes a small
//       partition, which may be joined; J2 bounds how often. A whole compaction brings neighbours together itself, and
//       its rounds have no joins.
//   J2  A join takes JOIN_LEAST partitions or more, if none has more than half of the result, or JOIN_MANY or more. A
//       partition that the round writes as a whole anyway counts as small. So joins write a record as often as its
//       partition becomes twice as large, and a row of small appends does not write the same records each time.
//   J3  When no join is due, one of three things is true of any JOIN_MANY neighbours of a tree without new data: more
//       than 1/COMPACT_JOIN of a table lives in them, their runs have more than JOIN_READ tables, or one of them cannot
//       be read.
//   J4  A partition in which nothing lives leaves the version in the next round of a memtable that has no new data for
//       it, or in the next one for garbage. Its views tell that nothing lives, so nothing is read or written. The
//       partition before it takes over its range; the first one stays, without tables.
//   J5  In each tree, the joins of a memtable's round read and write JOIN_ROUND memtables at most, or are one join.
//       A join reads JOIN_READ tables at most. They are part of the round's estimates of work and room. A store at rest
//       makes as many joins in a round as it merges partitions for scans, and gives them up for a memtable. Where
//       partitions can leave, a round at rest does only that.
//   J6  No round of a memtable fails because of a join alone. If a join cannot read a table, the round is made again
//       without it (compact_round). If a round with joins finds too little room on the disk, or too little memory, it
//       is made again without joins. view/part.h, P4 says when a partition that cannot be read is joined again.
//
// Joins take no account of named spaces, nor do the tables of a round, which have records of all of them. Otherwise
// each space would keep a partition for ever, and a store may have NAMES_MAX of them. The drop of a space that shares a
// joined partition merges that partition (compact/dropped.h), which has at most 1/COMPACT_JOIN of a table.
#ifndef COMPACT_JOIN_H
#define COMPACT_JOIN_H

#include "compact/job.h"

#define JOIN_LEAST 4u
#define JOIN_MANY 8u
#define JOIN_READ 10u  // tables
#define JOIN_ROUND 2u  // memtables

// Finds the partitions that leave (J4). The round has decided its jobs.
void join_dead(struct round *r);
// Plans joins in the trees whose jobs are decided: the jobs of neighbours become one job.
void join_plan(struct round *r);
// Tells whether a partition of the tree can leave, or some can be joined, if there is no new data. A tree with a
// partition that is away is left alone: a look opens none.
bool join_due(const struct compact *c, const struct version *tree);
#endif
