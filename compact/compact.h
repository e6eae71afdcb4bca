// SPDX-License-Identifier: Apache-2.0
//
// Compaction: a round brings a frozen memtable into the partitions. It compares the new data of each partition with the
// old, and does one of these:
//   keep   no new data;
//   abort  too little new data for a table: its keys go back to the active memtable;
//   minor  the new data becomes one more run, or several if it needs several tables; the REMIX is built again;
//   major  the newest runs and the new data are merged. The merge takes as few runs as it can. It must make enough
//          room, must not cost too much, and its result must not be much larger than the next older run. If all runs
//          take part, the merge drops tombstones;
//   split  the merge of the whole partition, or the new data after all of its keys, is too large for one partition.
//          The split makes several partitions of two tables each.
// Neighbours in which little lives become one partition by one major (compact/join.h).
//
// A round without new data does scan merges. If blocks are not in the cache, a scan reads a block of each run that has
// a record in the scan's range. The jumps of a REMIX (remix/state.h) count the blocks that scans read only because
// there are several runs. When the jumps are as many as the blocks that a merge of the partition's newest runs would
// write, a scan merge merges these runs. So scan merges write no more than scans have read in vain, apart from small
// records, REMIXes and merges that are given up. LevelDB compacts a table after a number of seeks for the same reason.
//
// Scans that read values apart in disorder pay for value merges (compact/value_merge.h).
//
// In a large partition, new data goes into the young view (view/version.h, V4). Then the round builds only the young
// view again, and merges only runs of the young view. If the young view would be more than a small share of the older
// view, or if runs of the older view are to be merged, too, all runs of the young view take part in the merge, and the
// result goes into the older view.
//
// A round does this with both trees of a version (view/version.h, V7). No job has partitions of both.
//
// Long values of the records that go into tables are written to value files (compact/apart.h). A record whose value is
// apart keeps its reference.
//
// A round that writes to several partitions writes one pack, which has their tables and REMIX files (table/packing.h).
// It is synced once, at the end. A round of one partition writes files, because a table and a REMIX are few.
//
// Where reads come from the disk, and the store is larger than the memory that it may use with the page cache, a round
// reads and writes past the page cache (blkio_past). It decides that at its beginning. Readers read through the page
// cache all the same.
//
// A round writes files and makes the next version; the caller installs it. A round neither changes nor removes an
// existing file. The old REMIX gives the sorted order of the runs that take part: its selectors tell which run has the
// next record, and which records are old versions. So a merge compares keys of the two views and of the new data, and
// no keys of runs of one view.
#ifndef COMPACT_H
#define COMPACT_H

#include "table/build.h"
#include "value/write.h"
#include "view/version.h"
#include "wh.h"
#include "base/workers.h"

#define COMPACT_RUNS 14u         // runs that a partition may have, on average
#define COMPACT_RUNS_SPREAD 7u   // number of different limits
#define COMPACT_SPLIT_RUNS 10u   // runs that a partition may have if only a split can make them fewer
#define COMPACT_PART_TABLES 2u   // tables in each partition that a split makes
#define COMPACT_UNREAD_RUNS 28u  // runs that a partition may have if merges cannot read it
// Runs that a partition may have between two slices of a cut (compact/cut.h): it may be damaged then, so six are left.
#define COMPACT_CUT_RUNS 22u
#define COMPACT_APPEND_RUNS 8u        // runs; a partition that would get more takes no new data after all of its keys
#define COMPACT_ABORT_SHARE 16u       // a round hands back at most 1/16 of a memtable
#define COMPACT_TABLE_MIN (8u << 20)  // bytes
#define COMPACT_YOUNG_FROM 32u        // a young view begins if the partition has 32 times the new data's entries,
#define COMPACT_YOUNG_SHARE 8u        // and ends if it would have more than 1/8 of the older view's entries
#define COMPACT_PROGRESS_SHIFT 5u     // a unit of progress: 32 bytes written, or one entry of a REMIX
#define COMPACT_SCAN_DEBT_MIN 512u    // jumps; fewer are not worth a round
#define COMPACT_APART 4096u           // bytes; a value of so many is written apart
#define COMPACT_JOIN 2u               // partitions are joined to at most half a table (compact/join.h)
#define COMPACT_CUT_FROM \
  4u                                // steps for room; a partition of so many bytes is split in slices (compact/cut.h),
                                    // and one of a fourth of that if it is merged for its garbage
#define COMPACT_GARBAGE (1u << 20)  // bytes; a store with less garbage is not merged for it

enum compact_kind { COMPACT_KEEP, COMPACT_ABORT, COMPACT_MINOR, COMPACT_MAJOR, COMPACT_SPLIT, COMPACT_KINDS };

struct compact_stats {  // since the store was opened; relaxed
  _Atomic uint64_t rounds, failed;
  _Atomic uint64_t kinds[COMPACT_KINDS];      // partitions, by the action of the round
  _Atomic uint64_t table_bytes, remix_bytes;  // written
  _Atomic uint64_t read_bytes;                // bytes of tables that were merged
  _Atomic uint64_t handed_back;               // bytes of records
  _Atomic uint64_t scan_merges;               // partitions
  _Atomic uint64_t again;                     // values that lay apart and were written again in the order of keys
  _Atomic uint64_t dropped_merges;            // partitions that were merged only for dropped spaces
  _Atomic uint64_t garbage_merges;            // partitions that were merged only for their garbage
  _Atomic uint64_t moved_merges;              // partitions that were merged only for moved values (compact/moved.h)
  _Atomic uint64_t cuts;                      // partitions that were split in steps (compact/cut.h)
  _Atomic uint64_t joined;                    // partitions that became one with neighbours
  _Atomic uint64_t emptied;                   // partitions that left because nothing lived in them
  _Atomic uint64_t dropped_tables;            // tables of dropped spaces that left partitions with other tables
  _Atomic uint64_t apart;                     // values that were written apart
  _Atomic uint64_t young;                     // partitions whose young view alone was built again
  _Atomic uint64_t remix_data_pages;          // data pages read to build REMIXes
};

struct compact {
  const struct sst_ctx *ctx;
  struct epoch *epoch;
  struct workers *workers;
  struct sst_build_opts build;   // max_pages is the size of a table in all decisions, too. See compact_build_opts
  _Atomic uint32_t compression;  // for new tables: enum remixdb_compression in the lowest byte, the level (biased by
                                 // COMPACT_LEVEL_BIAS) in the bits above. 0: as in `build`. Relaxed: a user may change
                                 // it at any time
  bool tags;
  uint32_t large_pages;           // pages of a table that is larger than others (B1 in compact/plan.h); 0:
                                  // SST_BUILD_PAGES. Tests set it
  uint32_t young_from;            // COMPACT_YOUNG_FROM; 0: there are no young views
  _Atomic uint64_t garbage_from;  // COMPACT_GARBAGE; 0: there are no merges for garbage. Relaxed: tests change it
  _Atomic uint32_t cut_from;      // COMPACT_CUT_FROM. Relaxed: tests change it
  _Atomic uint32_t join;          // COMPACT_JOIN; 0: there are no joins, and no partition leaves because nothing lives
                                  // in it. Relaxed: tests change it
  _Atomic uint64_t extras_ns;     // no join, and no merge for moved values, before this time, because the disk was
                                  // full, or memory was short. Relaxed
  _Atomic uint64_t value_debt;    // bytes that are due for a span (compact/value_merge.h); 0: by its values and tables.
                                  // Relaxed: tests set it
  _Atomic uint64_t moved_from;    // bytes of indexes of collected files (compact/moved.h); 0: by the bounds there.
                                  // Relaxed: tests set it
  _Atomic uint64_t values_room;   // bytes of garbage that value merges may leave; 0: by O3 there. Relaxed: tests set it
  _Atomic uint32_t scan_merge_parts;  // partitions that a scan round merges at most; at least 1
  size_t memtable_size;               // bytes; 1/16 of it may be handed back
  uint64_t memory;                    // bytes of memory that the process may use, with its page cache; 0: not known
  _Atomic uint64_t next_file;         // the next free file number
  // The round in progress: the work done, and the estimate of all work (0: not known yet), in units of
  // COMPACT_PROGRESS_SHIFT. A round and its steps for room are one sum. The opening of partitions that are away counts,
  // too. The writers' pace and waiting callers use them. Relaxed.
  _Atomic uint64_t progress, work;
  _Atomic uint64_t beside;          // bytes of the store's other files: log, reserved room. Relaxed
  uint64_t written_ns;              // when the last round had written its tables and REMIXes. The round's thread
  _Atomic uint64_t expired_ms;      // records with an expiry up to this time go; 0: none. Relaxed
  _Atomic bool yield;               // a scan round ends soon. Relaxed
  _Atomic bool dropped_too;         // the round of a memtable merges a partition for dropped spaces, too. Relaxed
  _Atomic bool values_wait;         // a value merge is due, and value files have no room for it. Relaxed: advice
  struct value_log values;          // where rounds write values apart; nobody else does
  struct value_mark mark;           // `values` when the round in progress began, if `marked`
  bool marked;                      // a round has begun, and its version is not installed yet. The round's thread
  bool reads_failed;                // the last round has failed only because old records that it needed, a table of its
                                    // own, or a partition that was away (view/part.h), could not be read. Its thread
  uint32_t apart_from;              // COMPACT_APART, at least KV_REF_MAX + 1; 0: no value is written apart
  const struct remix_watch *watch;  // the watch of the REMIXes that rounds make; NULL: no watch
  struct err_saved left_out;  // why the last rounds left merges undone, apart from partitions that could not be read
                              // (`tell`); status REMIXDB_OK: none was. The caller of a round reads and clears it
  struct compact_stats stats;
  // Puts a key of a tree back into the active memtable and its log, unless a newer version is there.
  enum remixdb_status (*hand_back)(void *arg, struct worker *w, uint32_t tree, const struct kv_rec *rec);
  // Each try of a memtable's round calls this once, after its last hand_back and before it writes: makes durable what
  // was handed back, and the beginning of the log that the next version will name. NULL: there is no log.
  enum remixdb_status (*secure)(void *arg);
  // Each time that a merge could not read a partition, and marked it (view/part.h, P4), this is called once. In a
  // round's thread, with no lock held; keeps the thread's message. NULL: nobody is told.
  void (*tell)(void *arg, const struct err_saved *why);
  void *arg;
};

#define COMPACT_LEVEL_MIN (-131072)  // levels of zstd
#define COMPACT_LEVEL_MAX 22
#define COMPACT_LEVEL_BIAS 0x800000
static inline void compact_set_compression(struct compact *c, enum remixdb_compression how, int level) {
  const uint32_t packed = (uint32_t)how | (uint32_t)(level + COMPACT_LEVEL_BIAS) << 8;
  atomic_store_explicit(&c->compression, packed, memory_order_relaxed);
}
// The options of a table that is begun now.
static inline struct sst_build_opts compact_build_opts(const struct compact *c) {
  const uint32_t packed = atomic_load_explicit(&c->compression, memory_order_relaxed);
  struct sst_build_opts opts = c->build;
  if (packed == 0) return opts;
  opts.compression = (enum remixdb_compression)(packed & 0xFF);
  opts.level = (int)(packed >> 8) - COMPACT_LEVEL_BIAS;
  return opts;
}

// Pages of a table: as many as a memtable holds, at least 8 MiB, so that files are not many and small, and at most
// SST_FULL_PAGES. Much larger tables would make few partitions: every round would touch all of them, and none would be
// small enough to be handed back.
static inline uint32_t compact_table_pages(size_t memtable_size) {
  const size_t pages = (memtable_size > COMPACT_TABLE_MIN ? memtable_size : COMPACT_TABLE_MIN) / BLOCK_PAGE;
  return pages < SST_FULL_PAGES ? (uint32_t)pages : SST_FULL_PAGES;
}

// Bytes that the reads of one worker take: a quarter of a memtable. A worker that merges `runs` runs needs 128 KiB for
// each at least (SST_READ_LEAST). Besides it has either a table in the making or a REMIX. A table takes the writer's
// buffers (BLKIO_WRITER_NR * BLKIO_WRITER_BUF, as far as the table fills them) and about 1 MiB. A REMIX takes those
// buffers, 160 KiB for each run whose keys it reads, and three times its image: the segments as they are written, the
// columns of its file, and the image that readers use. So a round takes
//   workers * (max(compact_scan_room, runs * 128 KiB) + 2 MiB + max(1 MiB, runs * 160 KiB + 3 images))
// and VALUE_EXTENT for a worker that writes values apart, besides what stays when it ends.
#define COMPACT_SCAN_ROOM_MIN ((size_t)1 << 20)
#define COMPACT_SCAN_ROOM_MAX ((size_t)16 << 20)
static inline size_t compact_scan_room(size_t memtable_size) {
  const size_t room = memtable_size / 4;
  if (room < COMPACT_SCAN_ROOM_MIN) return COMPACT_SCAN_ROOM_MIN;
  return room < COMPACT_SCAN_ROOM_MAX ? room : COMPACT_SCAN_ROOM_MAX;
}

// The number of runs above which some of a partition's runs are merged. Partitions that fill at the same pace must not
// all be merged in the same round, so their limits differ by the number of their oldest table. The limit is
// COMPACT_SPLIT_RUNS if no run, nor the new data (bytes), is smaller than two fifths of a table. A merge of such runs
// would hardly make them fewer, so the whole partition will be written again. The sooner, the less there is to write. A
// partition that a cut has made has a higher limit (C6 in compact/cut.h).
uint32_t compact_run_limit(const struct compact *c, const struct part *p, uint64_t bytes);

// A partition is merged when so much of its bytes has expired: 1/COMPACT_EXPIRED_SHARE, by the estimate of its tables.
#define COMPACT_EXPIRED_SHARE 4u
// Tells whether that is so at this time; 0: nothing has expired. A scan round merges such partitions, too.
// For a partition that is away: whether any record expires. Not for one that is left out (view/part.h, P4). now: as for
// part_is_left.
bool compact_mostly_expired(const struct part *p, uint64_t ms, uint64_t now);

// Full compaction: a round brings partitions of one tree down to the fewest tables, from the partition of the key
// `from` on, until it has about `budget` bytes to write. The unnamed tree comes first. Neighbours that need fewer
// tables together become one partition. Tombstones and old versions go. On a nearly full disk, the round leaves
// partitions that need more than `most` bytes (0: no limit) for later, because room is needed before any is freed.
struct compact_whole {
  uint64_t budget, most;
  // Only a part of the store: partitions of the tree in which the round begins, that may hold keys less than `until`
  // (until_len UINT32_MAX: that has no such end).
  bool within;
  uint32_t until_len;
  uint8_t until[KV_KEY_MAX];
  bool fits_only;  // merge only where compact_whole_fits tells that it helps
  // out, also if the round fails
  uint64_t largest;         // bytes to write for the largest partition that is not left
  bool left;                // some partition is left
  struct err_saved unread;  // why the first partition that could not be read is as it was. Once it is set, the call
                            // leaves all partitions that are known to be unreadable (view/part.h, P4). Status
                            // REMIXDB_OK: there is none
  // out
  bool end;                     // all partitions have been seen
  uint32_t from_tree, to_tree;  // not at the end: `to` is the key to go on from, in the tree `to_tree`
  uint32_t from_len, to_len;
  uint8_t from[KV_KEY_MAX], to[KV_KEY_MAX];
};
// Returns the number of the first partition of a tree behind the range; nr_parts: the tree's end. tree NULL: 0.
uint32_t compact_whole_stop(const struct compact_whole *whole, const struct version *tree);
// Tells whether another pass would make fewer tables of the partitions [from, stop) of a tree. Partitions that it would
// write for another reason do not count. A pass plans by estimates, so its partitions may be smaller.
bool compact_whole_fits(const struct compact *c, const struct version *tree, uint32_t from, uint32_t stop);
// Call it after the version of a round that is not at the end is installed: the next round goes on from `to`.
static inline void compact_whole_on(struct compact_whole *whole) {
  memcpy(whole->from, whole->to, whole->to_len);
  whole->from_len = whole->to_len;
  whole->from_tree = whole->to_tree;
}

// Room for a round of a memtable (compact/garbage.h), or on a full disk. Zeroed but for the first four.
struct compact_merge;
struct compact_room {
  uint64_t beside;  // bytes that the store's other files take, or will take: log, reserved room
  bool steps;       // merges may come before the round; else they are within it
  bool scarce;      // the disk was full in a step, or in the round: it merges nothing that can wait
  uint64_t most;    // not 0: merges for a full disk, each of at most so many bytes. The first step makes it smaller if
                    // that is more than a step ever writes
  // private to compact/
  bool planned;
  uint64_t step;                  // bytes that the merges of one step may write, about
  struct compact_merge **merges;  // each, and the list: own memory
  struct cut **cuts;              // each, and the list: own memory
  uint32_t nr, nr_cuts, at;
};
void compact_room_fini(struct compact_room *room);

// Runs one round, which starts from the version base. frozen, spaces: the new data of each tree; spaces may be NULL. If
// base has a spaces' tree, *out has one, too. allow_abort false: the round hands nothing back. whole: NULL, or the
// range of keys in which all partitions are to be compacted; the call sets the results in it if the round succeeds.
// *out: the next version with one reference. Its files are synced; the caller syncs their directory entries, and sets
// store_id, number and log fields.
//
// Values. Those that the round has written apart are in c->values and not synced: the caller syncs them before it names
// the version. No file leaves c->values meanwhile.
//
// Room. room: NULL, or the bound for all files. With steps the first call asks for room if its files would take too
// much beside the old ones: *out is then NULL, and the caller runs compact_room_step, and calls again with the newest
// version as base. With room->scarce the round merges no partition as a whole that may have one more run,
// COMPACT_CUT_RUNS at most (compact/cut.h), and makes no merge that can be left undone.
//
// Damage. If a merge cannot read a table, the call makes the round again without that merge (view/part.h, P4). Joins,
// merges for garbage, for dropped spaces and of `whole` then leave the partition as it is. New data becomes a run in
// its young view, or in its older view where young views are not wanted. At COMPACT_UNREAD_RUNS runs the new data is
// merged with all runs of the young view. A partition that is away and damaged is left out in the same way.
//
// Failures. With damage the round fails only if a partition would have that many runs all the same, or its young view
// cannot be opened or built, or if a partition cannot be opened for another reason. Without enough room or memory for
// joins, the call makes the round again without them. A round that fails leaves no new file. Fails with REMIXDB_NOMEM,
// REMIXDB_IO, REMIXDB_NOSPACE or REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status compact_round(struct compact *c, struct worker *self, struct version *base,
                                             const struct wh *frozen, const struct wh *spaces, bool allow_abort,
                                             struct compact_whole *whole, struct compact_room *room,
                                             struct version **out);
// Makes a version without some of the garbage of base, the store's version: a step for the round that has asked for
// room, or with room->most on a full disk. *out: NULL: all is done; else the caller installs it and calls again. Other
// failures as for compact_round.
MUST_CHECK enum remixdb_status compact_room_step(struct compact *c, struct worker *self, struct version *base,
                                                 struct compact_room *room, struct version **out);
// The version of the round in progress is given up, and no CURRENT names it: gives back the values that the round has
// written apart. No effect if no round is in progress.
void compact_undo_values(struct compact *c);
// The version is installed: the values stay.
static inline void compact_keep_values(struct compact *c) { c->marked = false; }
// An ingest has written these tables. They are of one tree, and their key ranges ascend and do not overlap. They are
// newer than all of the version. The caller has a reference to each. All their records have one sequence number.
struct compact_ingest {
  uint32_t tree;
  const struct value_moves *moves;  // the store version's; NULL: none
  struct sst **tables;
  uint32_t nr;
  // Out: the tables of the ingest that the version has, in order; own memory, and a reference to each.
  struct sst **placed;
  uint32_t nr_placed;
};
// Makes the version that has these tables, too. In each partition they become the newest runs; behind a partition's
// last key, and in one that is empty, they become new partitions. A table that does not fit into one partition is cut.
// Few records go into the young view, as a memtable's do. If the partition would get too many runs, the other runs of
// the young view are merged first, where the records are few; else all of it is written again. In a partition that
// cannot be read (view/part.h, P4) the tables become runs of the young view, too. The call fails as the read does if
// that leaves too little room for the rounds of memtables, if the young view cannot be read either, if the store has no
// young views, or if the partition is away. *out and other failures as for compact_round; the tables of the ingest stay
// the caller's, but those that were cut are retired.
MUST_CHECK enum remixdb_status compact_ingest(struct compact *c, struct worker *self, struct version *base,
                                              struct compact_ingest *in, struct version **out);
// Sets c->watch for all REMIXes of a version. Call it before another thread has the version.
void compact_watch(const struct compact *c, const struct version *v);
// Tells whether scans have paid for a merge of some of the REMIX's runs; sets scan_debt_due. Any thread; x is alive.
bool compact_scan_debt_paid(struct remix *x);
// The same for values apart (compact/value_merge.h).
bool compact_value_debt_paid(const struct compact *c, const struct remix *x);
// Runs a scan round: merges partitions that scans have paid for, at most scan_merge_parts. *out is NULL if there are
// none. Fails with REMIXDB_ABORTED if c->yield was set. After a failure scans have to pay again. A partition that
// cannot be read is left out. Otherwise like compact_round.
MUST_CHECK enum remixdb_status compact_scan_round(struct compact *c, struct worker *self, struct version *base,
                                                  struct version **out);
// The same for partitions that are worth a merge because they have keys of dropped spaces (PART_DUE). It takes no
// account of scans.
MUST_CHECK enum remixdb_status compact_dropped_round(struct compact *c, struct worker *self, struct version *base,
                                                     struct version **out);
// Makes a round that joins partitions (compact/join.h), or merges some for their garbage (compact/garbage.h) or for
// moved values (compact/moved.h), as a store at rest does. Otherwise like compact_dropped_round.
MUST_CHECK enum remixdb_status compact_garbage_round(struct compact *c, struct worker *self, struct version *base,
                                                     struct version **out);
// Tells whether such a round has something to do.
bool compact_garbage_due(const struct compact *c, const struct version *v);
// Returns a number for a new file. No file has the name that name_of makes of this number. If the system cannot tell
// whether a name exists, the number counts as free. name_of: sst_name, remix_name or files_value_name.
MUST_CHECK uint64_t compact_new_number(struct compact *c, void (*name_of)(char *buf, uint64_t number));
// The same for a part of a pack, which has no name.
static inline uint64_t compact_part_number(struct compact *c) {
  return atomic_fetch_add_explicit(&c->next_file, 1, memory_order_relaxed);
}
// Call it after the next version is durable. The last reader of a file that only base has then removes the file.
void compact_retire(const struct version *base, const struct version *next);
// The same, but the files of a third version stay.
void compact_retire_but(const struct version *base, const struct version *next, const struct version *kept);
// The same for one tree.
void compact_retire_tree(const struct version *base, const struct version *next);
#endif
