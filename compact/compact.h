// SPDX-License-Identifier: Apache-2.0
//
// Compaction: a round brings a frozen memtable into the partitions. Per partition, by the amount of new data against
// what is there:
//   keep   nothing new;
//   abort  too little new data to be worth a table: its keys go back to the active memtable;
//   minor  the new data becomes one more run, or as many as it takes tables, and the REMIX is rebuilt;
//   major  the newest runs and the new data are merged: as few as make room at a bearable cost and leave a next run
//   that is not much smaller; tombstones go
//          when all runs take part;
//   split  the merge of the whole partition (or new data behind all of its keys) makes more than a partition should
//   hold: several partitions of two
//          tables each.
// A round without new data merges what scans have paid for. Where blocks are not in the cache, a scan reads one for
// each run that has a record on its way, instead of one now and then. Once the blocks that were read only because there
// are several runs (remix/remix.h: jumps) are as many as the merge of a partition's newest runs would write, it is
// made: so what is written for the sake of scans is no more than what they had to read in vain (about: of small records
// they read less than a block each time; REMIXes, and merges that are given up, come on top). LevelDB compacts a table
// after a number of seeks for the same reason.
//
// What comes into a partition that is much larger goes into its young view (view/version.h, V4): that one alone is made
// anew, and its runs are merged among themselves. When it would be more than a small share of the older view, or more
// runs than its own are to be merged, all of its runs take part, and what is written comes into the older view.
//
// The round writes files and makes the next version; installing it is the caller's. Nothing that exists is changed or
// removed by a round. The merged view of the runs that take part is the old REMIX itself: it says which run is next and
// which entries are old versions, so no keys of runs are compared (but those of one view with those of the other).
#ifndef COMPACT_H
#define COMPACT_H

#include "table/build.h"
#include "view/version.h"
#include "wh.h"
#include "base/workers.h"

#define COMPACT_RUNS 14u        // runs that a partition may have, on average
#define COMPACT_RUNS_SPREAD 7u  // how many different limits there are
#define COMPACT_SPLIT_RUNS 10u  // runs that a partition may have when only a split can make them fewer
#define COMPACT_PART_TABLES 2u  // tables in each partition that a split makes
#define COMPACT_APPEND_RUNS \
  8u  // a partition with more runs than this, new data behind all of its keys counted, is left as it is by that data
#define COMPACT_ABORT_SHARE 16u  // at most 1/16 of a memtable goes back in a round
#define COMPACT_TABLE_MIN (8u << 20)
#define COMPACT_YOUNG_FROM 32u      // a young view begins where so many times what comes into a partition is there,
#define COMPACT_YOUNG_SHARE 8u      // and ends when it would have more than this share of the other one's entries
#define COMPACT_PROGRESS_SHIFT 5u   // a unit of a round's progress: 32 bytes written, or one entry of a REMIX
#define COMPACT_SCAN_DEBT_MIN 512u  // fewer of them are not worth a round

enum compact_kind { COMPACT_KEEP, COMPACT_ABORT, COMPACT_MINOR, COMPACT_MAJOR, COMPACT_SPLIT, COMPACT_KINDS };

struct compact_stats {  // since the store was opened; relaxed
  _Atomic uint64_t rounds, failed;
  _Atomic uint64_t kinds[COMPACT_KINDS];      // partitions by what was done to them
  _Atomic uint64_t table_bytes, remix_bytes;  // written
  _Atomic uint64_t read_bytes;                // of tables that were merged
  _Atomic uint64_t handed_back;               // bytes of records
  _Atomic uint64_t scan_merges;               // partitions that were merged because of what was read
  _Atomic uint64_t young;                     // partitions whose young view alone was made anew
  _Atomic uint64_t remix_data_pages;          // data pages read to build REMIXes
};

struct compact {
  const struct sst_ctx *ctx;
  struct epoch *epoch;
  struct workers *workers;
  struct sst_build_opts build;  // max_pages is a table's size in all that is decided here, too
  bool tags;
  uint32_t young_from;         // COMPACT_YOUNG_FROM; 0: there are no young views
  uint32_t scan_merge_parts;   // partitions that are merged together for the sake of scans; at least 1
  size_t memtable_size;        // bytes; of which 1/16 may be handed back
  _Atomic uint64_t next_file;  // the next free file number
  // Of the round in progress: what is done and what is to be done (an estimate, 0: not known yet), in units of 1 <<
  // COMPACT_PROGRESS_SHIFT bytes written or one entry of a REMIX. For the writers' pace, and for who waits. Relaxed
  _Atomic uint64_t progress, work;
  _Atomic bool yield;  // ends a round of compact_scan_round soon. Relaxed
  const struct remix_watch *watch;  // of the REMIXes that rounds make; NULL: none
  struct compact_stats stats;
  // Puts a key back into the active memtable and its log, unless a newer version is there.
  enum remixdb_status (*hand_back)(void *arg, struct worker *w, const struct kv_rec *rec);
  void *arg;
};

// Pages of a table: as many as a memtable holds, but of 8 MiB at least (files should not be many and small) and no more
// than SST_MAX_BLOCKS. With tables much larger than a memtable there would be few partitions, all of them touched by
// every round, and none small enough to be handed back.
static inline uint32_t compact_table_pages(size_t memtable_size) {
  const size_t pages = (memtable_size > COMPACT_TABLE_MIN ? memtable_size : COMPACT_TABLE_MIN) / BLOCK_PAGE;
  return pages < SST_MAX_BLOCKS ? (uint32_t)pages : SST_MAX_BLOCKS;
}

// With more runs than this some of a partition's are merged. Partitions that fill at the same pace must not all be
// merged in the same round: their limits differ by what their oldest tables happen to be called. COMPACT_SPLIT_RUNS is
// the limit where no run, nor the new data (bytes), is smaller than two fifths of a table: merging some would make them
// hardly fewer, so the whole partition will be written again, and the sooner it is the less there is to write.
uint32_t compact_run_limit(const struct compact *c, const struct part *p, uint64_t bytes);

// What a round is to bring down to the fewest tables, whatever else would be decided: partitions from that of the key
// `from` on, until about `budget` bytes are to be written. Neighbours that need fewer tables together become one.
// Tombstones and old versions go. On a disk that is nearly full, partitions for which more than `most` bytes (0: any
// number) would be written are left for later: room is needed before any is freed.
struct compact_whole {
  uint64_t budget, most;
  uint64_t largest;  // set by a round, also when it fails: bytes to be written for the largest that is not left,
  bool left;         // whether any was left
  bool end;          // set by a round: all partitions have been seen,
  uint32_t from_len, to_len;  // else `to` is where it came to
  uint8_t from[REMIXDB_KV_MAX], to[REMIXDB_KV_MAX];
};
// After the version of a round that did not come to the end is installed: the next one goes on where it came to.
static inline void compact_whole_on(struct compact_whole *whole) {
  memcpy(whole->from, whole->to, whole->to_len);
  whole->from_len = whole->to_len;
}

// One round. base: the version it starts from. *out: the next version with one reference; its files are synced, their
// directory entries are not; store_id, number and log fields are the caller's to set. allow_abort false: nothing is
// handed back. whole: NULL, or what is to be compacted in any case; told how far when the round succeeds. On failure no
// new file is left.
MUST_CHECK enum remixdb_status compact_round(struct compact *c, struct worker *self, struct version *base,
                                             const struct wh *frozen, bool allow_abort, struct compact_whole *whole,
                                             struct version **out);
// Has c->watch told of the scan debt of all REMIXes of a version that no other thread has yet.
void compact_watch(const struct compact *c, const struct version *v);
// Whether scans have paid for a merge of some of its runs; sets scan_debt_due. Any thread, while it is alive.
bool compact_scan_debt_paid(struct remix *x);
// A round that merges those partitions, of which it takes at most as many as there are workers. *out: NULL when there
// are none. REMIXDB_ABORTED: c->yield was set. When it fails they have to be paid for again. Otherwise as
// compact_round.
MUST_CHECK enum remixdb_status compact_scan_round(struct compact *c, struct worker *self, struct version *base,
                                                  struct version **out);
// After the new version is durable: what base had and next has not is removed with its last reader.
void compact_retire(const struct version *base, const struct version *next);
#endif
