// SPDX-License-Identifier: Apache-2.0
//
// Decides what a round does with each partition. docs/ARCHITECTURE.md has the rules as a table. One thread: the
// round's.
#ifndef COMPACT_PLAN_H
#define COMPACT_PLAN_H

#include "compact/job.h"

// Makes the jobs from r->fresh, in order of their keys. whole: what is to be compacted in any case, or NULL. *next_out:
// the first partition behind that.
void plan_jobs(struct round *r, struct compact_whole *whole, uint32_t *next_out);
// Makes the jobs of a scan round.
void plan_scan_merges(struct round *r);
// Lets jobs hand their new data back to the active memtable if it is expensive to write. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status plan_aborts(struct round *r);
// Sets the estimate of the round's work (compact.work).
void plan_work(struct round *r);
// Estimates the bytes of data blocks that a merge of the newest `take` runs with the job's new data writes.
uint64_t plan_merged_bytes(const struct job *j, uint32_t take);
// Whether the block cache can hold all tables of the version.
bool plan_fits_cache(const struct compact *c, const struct version *v);
#endif
