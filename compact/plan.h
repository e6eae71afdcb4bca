// SPDX-License-Identifier: Apache-2.0
//
// What a round does with each partition. docs/ARCHITECTURE.md has the rules as a table. One thread: the round's.
#ifndef COMPACT_PLAN_H
#define COMPACT_PLAN_H

#include "compact/job.h"

// Makes the jobs, in order of their keys, from r->fresh. whole: what is to be compacted in any case, or NULL;
// *next_out: the first partition behind that.
void plan_jobs(struct round *r, struct compact_whole *whole, uint32_t *next_out);
// The same for a round without new data: merges of partitions that scans have paid for.
void plan_scan_merges(struct round *r);
// Lets jobs whose new data is dear to write hand it back to the active memtable. REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status plan_aborts(struct round *r);
// Sets the round's estimated work, by which writers are paced.
void plan_work(struct round *r);
// Bytes of data blocks that a merge of the newest `take` runs with the job's new data writes, about.
uint64_t plan_merged_bytes(const struct job *j, uint32_t take);
// Whether the block cache can hold all tables of the version.
bool plan_fits_cache(const struct compact *c, const struct version *v);
#endif
