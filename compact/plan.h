// SPDX-License-Identifier: Apache-2.0
//
// Decides what a round does with each partition. docs/ARCHITECTURE.md has the rules as a table. The round's thread
// calls these functions; only plan_merged_bytes may be called by any job's thread.
//
// Invariant
//   B1  A job whose tables come beside other runs leaves its partition with fewer than REMIX_RUNS_MAX runs, whatever
//       sizes the runs have. Runs of another opening may be much larger than the tables of this one, so that a few runs
//       become many tables. The plan bounds the tables (plan_sizes): they are larger than usual where they would be too
//       many. The writer makes those beyond the bound as large as tables can be, in case that the estimate is wrong.
//       Where the partition can be merged as a whole, the round of a memtable does that instead: a split has no bound.
//       It does not on a full disk, or where the partition cannot be read. Merges for scans do not either, nor those of
//       a young view on a full disk: these are to write no more than the runs that they take.
#ifndef COMPACT_PLAN_H
#define COMPACT_PLAN_H

#include "compact/job.h"

// Makes the jobs of a tree from its `fresh`, in order of their keys. whole: NULL, or a range of keys in this tree: all
// partitions in it are to be compacted. The round stops when whole->budget bytes are planned, and leaves out partitions
// that need more than whole->most bytes. *next_out: the number of the partition from which the next round has to go on.
void plan_jobs(struct round *r, uint32_t tree, struct compact_whole *whole, uint32_t *next_out);
// Decides to merge all runs of the job's partitions with the new data. None of them is away (view/part.h, P7).
void plan_all(struct job *j);
// Decides to bring the partition's young view into its older one. The partition gets no more runs. Returns false if
// there is no young view.
bool plan_young_merge(struct job *j);
uint64_t plan_young_bytes(const struct part *p);  // the bytes of the young view's runs
// Tables that a merge of so many bytes is planned to write.
uint32_t plan_tables(const struct compact *c, uint64_t bytes);
// Chooses how large the tables are in which the job writes so many bytes (B1). `take` is decided. The partition has at
// most `most` runs then by the plan, with `beside` others than its own, or one more than it keeps.
void plan_sizes(struct job *j, uint64_t bytes, uint32_t beside, uint32_t most);
// Decides for a partition that merges could not read, or that is away. It gets `fresh` more tables. These become young
// runs. If it would have too many runs, the job merges all runs of the young view, with its new data if it has some.
// Neither reads anything of the older view. Returns false if the partition would have too many runs all the same,
// though its tables were as large as tables can be. beside: how many `fresh` tables are not merged, because they are
// written already, as an ingest's are.
bool plan_unread(struct job *j, uint32_t fresh, uint32_t beside);
// Decides to merge all runs of the partition's young view, with the job's new data if it has some. Reads nothing of the
// older view. Returns false if there is no such view, or the partition would have more than `most` runs with `beside`
// others.
bool plan_young_again(struct job *j, uint32_t beside, uint32_t most);
// Tells whether `count` new records may go into the young view of a partition that has a view: they are few beside the
// partition, and the young view stays small.
bool plan_fits_young(const struct compact *c, const struct part *p, uint64_t count);
// Makes the jobs of both trees for a scan round. For a round of merges for garbage, it plans none of these.
void plan_scan_merges(struct round *r);
// Plans the merge of one more partition of the spaces' tree, which is worth it only for its keys of dropped spaces.
void plan_dropped_one(struct round *r);
// Decides which jobs hand their new data back to the active memtable, because writing it is expensive. Fails with
// REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status plan_aborts(struct round *r);
// Tells whether the job's new data may be handed back: to write it is expensive.
bool plan_may_abort(const struct job *j);
// Sets the estimate of the work (compact.work): that of the round, after what is done already.
void plan_work(struct round *r);
// The work of one job that writes tables.
uint64_t plan_job_work(const struct job *j);
// How long the job's tables take, about, in bytes to write: jobs begin in this order, the largest ahead.
uint64_t plan_job_size(const struct job *j);
// Estimates how many bytes of data blocks the job writes if it merges the newest `take` runs with its new data. Where a
// job has several partitions, it merges all of their runs; `take` then has no effect.
uint64_t plan_merged_bytes(const struct job *j, uint32_t take);
// The bytes of a partition's runs, and about how many of these are neither old versions nor tombstones, and have not
// expired. A partition may be away: then records that have expired count.
uint64_t plan_part_bytes(const struct part *p);
uint64_t plan_live_bytes(const struct compact *c, const struct part *p);
// Tells whether the block cache can hold all tables of the version.
bool plan_fits_cache(const struct compact *c, const struct version *v);
#endif
