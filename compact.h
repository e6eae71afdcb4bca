// SPDX-License-Identifier: Apache-2.0
//
// Compaction: a round brings a frozen memtable into the partitions. Per partition, by the amount of new data against what is there:
//   keep   nothing new;
//   abort  too little new data to be worth a table: its keys go back to the active memtable;
//   minor  the new data becomes one more run (of as many tables as it takes), the REMIX is rebuilt;
//   major  the newest runs and the new data are merged: those that remove the most files for the least writing; tombstones go when all runs take part;
//   split  the merge of the whole partition (or new data behind all of its keys) makes more than a partition should hold: several partitions of two
//          tables each.
// The round writes files and makes the next version; installing it is the caller's. Nothing that exists is changed or removed by a round. The merged view of
// the runs that take part is the old REMIX itself: it says which run is next and which entries are old versions, so no keys of runs are compared.
#ifndef COMPACT_H
#define COMPACT_H

#include "sst_build.h"
#include "version.h"
#include "wh.h"
#include "workers.h"

#define COMPACT_RUNS 8u           // a partition with more runs than this is merged
#define COMPACT_PART_TABLES 2u    // tables in each partition that a split makes
#define COMPACT_ABORT_SHARE 16u   // at most 1/16 of a memtable goes back in a round

enum compact_kind { COMPACT_KEEP, COMPACT_ABORT, COMPACT_MINOR, COMPACT_MAJOR, COMPACT_SPLIT, COMPACT_KINDS };

struct compact_stats {  // since the store was opened; relaxed
  _Atomic uint64_t rounds, failed;
  _Atomic uint64_t kinds[COMPACT_KINDS];         // partitions by what was done to them
  _Atomic uint64_t table_bytes, remix_bytes;     // written
  _Atomic uint64_t read_bytes;                   // of tables that were merged
  _Atomic uint64_t handed_back;                  // bytes of records
  _Atomic uint64_t remix_data_pages;             // data pages read to build REMIXes
};

struct compact {
  const struct sst_ctx *ctx;
  struct epoch *epoch;
  struct workers *workers;
  struct sst_build_opts build;      // max_pages is a table's size in all that is decided here, too
  bool tags;
  size_t memtable_size;             // bytes; of which 1/16 may be handed back
  _Atomic uint64_t next_file;       // the next free file number
  _Atomic uint64_t progress, work;  // of the round in progress: bytes done and to be done (an estimate), for the writers' pace. Relaxed
  struct compact_stats stats;
  // Puts a key back into the active memtable and its log, unless a newer version is there.
  enum remixdb_status (*hand_back)(void *arg, struct worker *w, const struct kv_rec *rec);
  void *arg;
};

// One round. base: the version it starts from. *out: the next version with one reference; its files are synced, their directory entries are not;
// store_id, number and log fields are the caller's to set. allow_abort false: nothing is handed back. On failure no new file is left.
MUST_CHECK enum remixdb_status compact_round(struct compact *c, struct worker *self, struct version *base, const struct wh *frozen, bool allow_abort,
                                             struct version **out);
// After the new version is durable: what base had and next has not is removed with its last reader.
void compact_retire(const struct version *base, const struct version *next);
#endif
