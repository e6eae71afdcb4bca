// SPDX-License-Identifier: Apache-2.0
//
// A running round: its jobs, one or two for each partition, and their results. Private to compact/.
//
// A round has five steps, each in a file: measure the new data (fresh.c), decide (plan.c), write tables (tables.c),
// build REMIXes (views.c), make the next version (next.c). Jobs run side by side on the workers. The REMIXes of a job
// are built when its tables are there, while other jobs still write theirs. A job's thread alone uses the job's fields
// until it adds its outputs. From then on nobody changes them, and only an output's task changes that output.
#ifndef COMPACT_JOB_H
#define COMPACT_JOB_H

#include "compact/compact.h"
#include "remix/build.h"

// Bounds of sequence numbers. max 0: there is none.
struct seqs {
  uint64_t min, max;
};
static inline void seqs_add(struct seqs *s, uint64_t min, uint64_t max) {
  if (s->max == 0 || min < s->min) s->min = min;
  if (max > s->max) s->max = max;
}

// The new records of a partition.
struct fresh {
  uint64_t bytes, count;                // with keys up to the partition's largest
  uint64_t behind_bytes, behind_count;  // with larger keys
  uint64_t apart, behind_apart;         // bytes that go apart, which are not in the others
  uint64_t hides;                       // how many of `count` hide a live record of the older view, about
  struct seqs seqs;
};

// After a want of room or memory joins and merges for moved values wait for so long.
#define EXTRAS_AGAIN_NS 60000000000ull

// A job's part in a cut (compact/cut.h).
enum job_cut { CUT_NONE, CUT_SLICE, CUT_LAST };

// The work on one partition of a tree, or on several neighbours that become one.
struct job {
  struct task task;
  struct compact *c;
  uint32_t tree;
  const struct version *base;       // the tree's partitions
  const struct names *names;        // for the spaces' tree: records of other spaces are dropped. NULL: none is
  const struct value_moves *moves;  // the store version's; NULL: none
  const struct version *store;      // the store's version, which has the value files
  const struct wh *frozen;          // the tree's new data; NULL: none
  uint32_t part, nr_parts;
  uint64_t bytes;    // bytes of new records in tables
  uint64_t apart;    // bytes of new records, apart from the tables
  uint64_t count;    // new records
  uint64_t hides;    // as in `fresh`
  struct seqs seqs;  // the bounds of the new records' numbers
  // decided
  enum compact_kind kind;
  bool may_abort;
  bool scan_merge;       // a scan merge, or such a merge for dropped spaces or garbage: may be given up
  bool dropped;          // a merge only because the partition has keys of dropped spaces
  bool garbage;          // a merge only because the partition has much garbage
  bool moved;            // a merge only because the partition refers to moved values
  bool joins;            // its partitions are neighbours that become one (compact/join.h)
  bool gone;             // nothing lives in the partition: it leaves, and the job writes nothing
  bool append;           // a split that leaves the partition as it is and makes new partitions after it
  uint64_t spans;        // bit i: values of this span are written apart again (compact/value_merge.h)
  bool young;            // the tables go into the young view; the older view stays
  bool upto;             // another job appends the new data after the partition's keys
  enum job_cut cut;      // CUT_NONE: it is no slice of a cut
  uint32_t newer;        // for a slice: so many of the partition's newest runs stay newer than its tables
  uint32_t take;         // number of the newest runs, behind the `newer` ones, that are merged with the new data
  bool all;              // all runs of all of its partitions are merged
  bool pieces;           // as the round's
  uint64_t now;          // as the round's
  bool scarce;           // as the round's
  struct packing *pack;  // the round's
  _Atomic bool *failed;  // the round's
  bool hid;              // some record that had expired became a tombstone, or went
  bool in_vain;          // the job ended because another one failed
  bool whole;            // a merge of compact_whole
  bool unread;           // old records could not be read: their partition is marked (view/part.h, P4)
  bool fresh_unread;     // a table that it has written could not be opened
  bool newly;            // the partition was not left out before
  bool tell;             // the mark is to be told
  bool full;             // the partition is away (view/part.h, P7), and cannot take the new data: the round fails
  uint64_t cost;         // bytes to write, about
  uint64_t table_bytes;  // bytes of data for each new table
  uint32_t most_tables;  // more tables than so many are as large as tables can be (B1 in compact/plan.h); 0: no bound
  const struct kref *cuts;  // ascending keys: no table has keys on both sides of one
  uint32_t nr_cuts;
  // made
  struct value_batch values;  // log NULL: none was written
  struct sst **tables;
  uint32_t nr_tables, cap_tables;
  struct output *outputs;  // the partitions that hold the tables, in their order
  uint32_t nr_outputs;
  enum remixdb_status status;
  struct err_saved error;
};

// A partition of the next version with a new REMIX.
struct output {
  struct task task;
  struct job *job;
  struct sst **fresh;  // within job->tables; there may be none if runs stay
  uint32_t nr_fresh;
  uint32_t keep;       // bit r: run r of the old view stays
  uint32_t newer;      // so many of these, the last ones, are newer than the new tables
  uint32_t more_runs;  // the partition's
  struct kref anchor;  // ptr NULL: the partition's or, behind another table of the job, a key between the two
  struct remix *remix;
  bool unread;        // the job's old view could not be read
  bool fresh_unread;  // a new table could not be read again
  enum remixdb_status status;
  struct err_saved error;
};

// A tree in a round.
struct round_tree {
  const struct version *base;  // NULL: the tree takes no part, and stays as it is
  const struct wh *frozen;     // NULL: no new data
  const struct names *names;   // as a job's
  const struct value_moves *moves;
  const struct version *store;  // as a job's
  struct fresh *fresh;          // one for each partition of the base
  uint32_t first_job, end_job;  // the tree's jobs
};

struct round {
  struct compact *c;
  struct worker *self;
  struct round_tree trees[TREES];
  bool scans;                   // a scan round
  bool dropped;                 // a scan round that merges partitions with keys of dropped spaces, and no others
  bool garbage;                 // a scan round that merges partitions for their garbage, and no others
  struct compact_room *room;    // such a round, which makes room for a round of a memtable; NULL: the store is at rest
  bool pieces;                  // the cache cannot hold all tables: readers will read pieces of blocks
  struct compact_whole *whole;  // NULL, or the range of keys to compact
  struct packing *pack;         // gets the tables and REMIX files; NULL: they are files of their own
  _Atomic bool failed;          // a job or an output has failed: the others end soon. Relaxed
  struct fresh *fresh;          // for both trees
  struct job *jobs;             // tree by tree, in order of their keys; room for two per partition
  uint32_t nr_jobs, cap_jobs;
  struct task **tasks;  // room for all jobs
  uint64_t now;         // when the call began, for part_is_left: all tries leave out what one of them has marked
  bool retry;           // a try of the same round has failed, and left `again`
  bool again;           // the round has failed, and the next one can leave undone what it failed by
  bool scarce;          // the disk was full in a step for the round
  bool extras_left;     // these are joins or merges for moved values, which may have taken the room or the memory
};
// Takes part in the round.
static inline bool round_has(const struct round *r, uint32_t tree) { return r->trees[tree].base != NULL; }

static inline const struct part *old_part(const struct job *j) { return j->base->parts[j->part]; }
static inline uint32_t old_runs(const struct job *j) { return part_runs(old_part(j)); }
// The view that gets the new tables.
static inline const struct remix *old_view(const struct job *j) {
  return j->young ? part_young(old_part(j)) : part_remix(old_part(j));
}
static inline bool writes_tables(const struct job *j) { return j->kind >= COMPACT_MINOR; }
// Records of the partition could not be read, because of s: REMIXDB_CORRUPT or REMIXDB_IO. Marks it.
static inline void job_unread(struct job *j, struct part *p, enum remixdb_status s) {
  j->unread = true;
  j->newly = !part_is_left(p, j->now);
  j->tell = part_set_unread(p, s);
}
// Keeps the error of a job that has failed, as the thread has it, so that the round can raise it.
static inline void job_fail(struct job *j, enum remixdb_status s) {
  err_save(&j->error, j->status = s);
  atomic_store_explicit(j->failed, true, memory_order_relaxed);
}
// The table with the largest key of a partition that has any.
static inline const struct sst *last_table(const struct part *p) {
  const struct sst *last = part_run(p, 0);
  for (uint32_t r = 1; r < part_runs(p); r++)
    if (kv_cmp(last->max, part_run(p, r)->max) < 0) last = part_run(p, r);
  return last;
}

// Tells that a partition could not be read.
static inline void compact_tell(const struct compact *c, const struct err_saved *why) {
  if (c->tell) c->tell(c->arg, why);
}

// Bytes of a record in a block: the record and its offset.
static inline uint64_t record_bytes(const struct kv_rec *rec) { return kv_rec_size(rec) + 2; }

// Sizes in bytes of blocks before compression: these decide when a table is full.
static inline uint32_t table_pages(const struct compact *c) {
  return c->build.max_pages ? c->build.max_pages : SST_FULL_PAGES;
}
// Pages of a table that is larger than others (B1 in compact/plan.h), at most.
static inline uint32_t large_pages(const struct compact *c) {
  const uint32_t pages = likely(c->large_pages == 0) ? SST_BUILD_PAGES : c->large_pages;
  return pages > table_pages(c) ? pages : table_pages(c);
}
static inline uint64_t table_bytes(const struct compact *c) { return (uint64_t)table_pages(c) * BLOCK_PAGE; }
static inline uint64_t run_bytes(const struct sst *t) { return (uint64_t)t->nr_pages * BLOCK_PAGE; }
#endif
