// SPDX-License-Identifier: Apache-2.0
//
// A round at work: its jobs, one for each partition, and what comes of them. Private to compact/.
//
// A round has four steps, each with a file: measure the new data (fresh.c), decide (plan.c), write tables (tables.c),
// build REMIXes and make the next version (round.c). Jobs run side by side on the workers; a job's fields are its own
// until all of them have ended.
#ifndef COMPACT_JOB_H
#define COMPACT_JOB_H

#include "compact/compact.h"

// New records that belong to a partition.
struct fresh {
  uint64_t bytes, count;                // with keys up to the largest that is there
  uint64_t behind_bytes, behind_count;  // with larger ones
};

// The work on one partition of the base, or on several neighbours that become one.
struct job {
  struct task task;
  struct compact *c;
  const struct version *base;
  const struct wh *frozen;  // NULL: no new data
  uint32_t part, nr_parts;
  uint64_t bytes;  // of new records
  uint64_t count;  // new records
  // decided
  enum compact_kind kind;
  bool may_abort;
  bool scan_merge;       // merged for its scans' sake
  bool append;           // a split that leaves the partition as it is and puts new ones behind it
  bool young;            // what is written comes into the young view: the other one stays as it is
  bool upto;             // the new data behind the partition's keys is another job's, which appends it
  uint32_t take;         // so many of the newest runs are merged with the new data
  bool all;              // of all its partitions
  bool pieces;           // as the round's
  _Atomic bool *failed;  // the round's
  bool in_vain;          // it ended because of that
  uint64_t cost;         // bytes that will be written, about
  uint64_t table_bytes;  // of data to put in each new table
  // made
  struct sst **tables;
  uint32_t nr_tables, cap_tables;
  enum remixdb_status status;
  struct err_saved error;
};

// A partition of the next version that needs a REMIX built.
struct output {
  struct task task;
  struct job *job;
  struct sst **fresh;  // within job->tables
  uint32_t nr_fresh;
  uint32_t keep;  // runs of the old view that stay
  struct remix *remix;
  enum remixdb_status status;
  struct err_saved error;
};

struct round {
  struct compact *c;
  struct worker *self;
  const struct version *base;
  const struct wh *frozen;
  bool pieces;          // of the tables' blocks many will be read one by one
  _Atomic bool failed;  // a job has: the others end soon. Relaxed
  struct fresh *fresh;  // per partition of the base
  struct job *jobs;     // in order of their keys; room for two per partition
  uint32_t nr_jobs;
  struct output *outputs;
  uint32_t nr_outputs;
  struct task **tasks;  // room for all jobs
};

static inline const struct part *old_part(const struct job *j) { return j->base->parts[j->part]; }
static inline uint32_t old_runs(const struct job *j) { return part_runs(old_part(j)); }
// The view that is made anew with what is written.
static inline const struct remix *old_view(const struct job *j) {
  return j->young ? old_part(j)->young : old_part(j)->remix;
}
static inline bool writes_tables(const struct job *j) { return j->kind >= COMPACT_MINOR; }
// The table with the largest key of a partition that has any.
static inline const struct sst *last_table(const struct part *p) {
  const struct sst *last = part_run(p, 0);
  for (uint32_t r = 1; r < part_runs(p); r++)
    if (kv_cmp(last->max, part_run(p, r)->max) < 0) last = part_run(p, r);
  return last;
}

// What a record takes in a block: itself and its offset.
static inline uint64_t record_bytes(uint32_t klen, uint32_t vlen, bool tomb) {
  return kv_rec_size(klen, vlen, tomb) + 2;
}

// All sizes here are of blocks before compression: that is what says when a table is full.
static inline uint32_t table_pages(const struct compact *c) {
  return c->build.max_pages ? c->build.max_pages : SST_MAX_BLOCKS;
}
static inline uint64_t table_bytes(const struct compact *c) { return (uint64_t)table_pages(c) * BLOCK_PAGE; }
static inline uint64_t run_bytes(const struct sst *t) { return (uint64_t)t->nr_pages * BLOCK_PAGE; }
#endif
