// SPDX-License-Identifier: Apache-2.0
//
// Cuts: a large partition is split in steps. A merge of all its runs writes the tables of the new partitions beside
// them, so it takes as much room again as the partition has. The first split of a store takes as much as the store. A
// cut takes a part of that: it merges the runs group by group.
//
//   - Keys, the cuts, divide the partition into ranges of about the same bytes.
//   - Each step, a *slice*, merges some runs that are neighbours in age, the oldest first. Its tables end at the cuts,
//     and take the place of the runs. The store installs the version, so these runs go before the next step writes.
//   - The last slice merges all newer runs. Each range then becomes a partition, and keeps the tables that the slices
//     have written for it. None is written again.
//
// A cut writes about the bytes of the merge, and for each slice one view of all entries. Its partitions have a table
// from each slice.
//
// Invariants
//   C1  After each slice the partition is a partition like others. It has more runs, COMPACT_CUT_RUNS at most, by the
//       plan. A cut that is given up, or ends with the process, leaves nothing to finish. A later round decides anew
//       (C7).
//   C2  The runs of a slice are known by the numbers of the oldest and the newest. If the partition has them no longer,
//       the slice is left out. The last slice is made only if each table of the others lies between two cuts.
//   C3  A slice leaves out the records that newer runs of the older view hide, although these runs take no part. If
//       that leaves nothing, it makes no table. It writes tombstones, because older runs may have records of their
//       keys, and records that the young view hides. These stay when a cut has ended.
//   C4  The young view stays until the last slice, which merges it.
//   C5  The tables of a slice that is not the last one have larger numbers than newer runs. The sequence numbers tell
//       them apart: those of a slice are smaller than all in newer runs. A partition whose runs have no such order is
//       not cut. A repair without CURRENT needs that (admin/repair_order.c).
//   C6  A partition that a cut has made has more runs than one that a split makes. It may have so many more runs, up to
//       the largest limit. Otherwise it would be merged as a whole so much sooner. That holds until all of its runs are
//       merged, or the store is closed.
//   C7  A plan first looks at the oldest runs. Where they lie between keys that divide the partition into ranges of one
//       to four tables, as those of the slices before a full disk do, these keys are the cuts. The slices then merge
//       newer runs only. So the tables that slices have written are not written again. The runs must have little that
//       newer ones hide (C3).
//   C8  On a full disk (cut_plan_full) slices are as small as the runs allow, down to one run, and there are no cuts:
//       the partition stays one, and gets no more runs (B1 in compact/plan.h). Slices that free little are not made;
//       the others need none of them.
//   C9  Tables of another opening may be much larger than those of this one. Full ranges would then need more tables
//       than C1 allows. The plan makes larger ranges, and a slice writes one table for each. These tables are larger
//       than others (B1 in compact/plan.h). Later rounds divide the new partitions; each is a part of the store. Where
//       the bound of work has no room for a whole view, there is no such cut: a split makes small views.
#ifndef COMPACT_CUT_H
#define COMPACT_CUT_H

#include "compact/job.h"

#define CUT_SLICES 4u  // at most, but on a full disk (C8)

struct cut;
// Plans the cut of a job's partition, for a job that has decided to merge all runs. Makes the fewest slices that write
// at most `most` bytes each, or as many as C1 allows: two or more, or one that ends an earlier cut (C7). *out NULL: it
// cannot be cut. Fails with REMIXDB_NOMEM, or as remix_divide does.
MUST_CHECK enum remixdb_status cut_plan(const struct job *j, uint64_t most, struct cut **out);
// Plans slices of a job's partition for a full disk (C8): the fewest that write at most `most` bytes each, or as many
// as there can be, two or more. *out NULL: there are none. Fails with REMIXDB_NOMEM, or as remix_whole does.
MUST_CHECK enum remixdb_status cut_plan_full(const struct job *j, uint64_t most, struct cut **out);
void cut_destroy(struct cut *k);  // NULL is allowed
uint32_t cut_slices(const struct cut *k);
// The bytes of tables that a slice writes, about: those of its runs without the records that it leaves out (C3).
uint64_t cut_bytes(const struct cut *k, uint32_t slice);
uint64_t cut_frees(const struct cut *k, uint32_t slice);  // the bytes of its runs' tables beyond these, about
// Decides that a job without new data makes a slice. k outlives the job. Returns false if the slice is left out (C2).
bool cut_decide(struct job *j, const struct cut *k, uint32_t slice);
// Lists the outputs of a slice whose tables are written: `outputs` has room for cut_outputs_most(j), and is zeroed.
uint32_t cut_outputs_most(const struct job *j);
void cut_outputs(struct job *j);
#endif
