// SPDX-License-Identifier: Apache-2.0
//
// Fixture of test_crash and its kin: lives of a store with one writer, against a model, on a disk that loses power,
// fails and fills up.
//
// After every power cut the store holds all that the last successful sync covered. It holds the effect of the first so
// many writes, a batch being one write. No crash is taken for damage, and the version names all files. The store goes
// on from there, also when the power goes again during the recovery. After every failed call there is a status and a
// message, and nothing is lost.
//
// CRASH_SEED in the environment repeats the seed of a failure; CRASH_SEEDS is the number of seeds in each test.
#ifndef TESTS_LIFE_H
#define TESTS_LIFE_H

#include "tests/lib/check.h"

#include "tests/lib/simdisk.h"
#include "xdb.h"

#define DIR_NAME "/store"
#define KEYS_MAX 512u
#define SPACES_MAX 2u  // named ones
#define VALUE_MIN 16u
#define VALUE_MAX (300u << 10)
#define VALUE_LARGE 20000u  // from here on a value lies apart from its key from the beginning
#define HANG_S 250          // seconds for one seed, which are far more than one takes on a slow machine

// Counts of the events in all lives.
extern struct life_counts {
  uint64_t cuts, calls, recoveries, torn_openings, faults;
  uint64_t hit;  // faults that made a call fail
  uint64_t kinds[COMPACT_KINDS], scan_merges, young, joined, emptied, part_cuts;
  uint64_t apart;  // values that rounds wrote apart,
  uint64_t again;  // and those that value merges wrote again
  // calls that succeeded: ingests, values of at least VALUE_LARGE put, values read in pieces, counts, compactions of
  // ranges, iterators with options read, batches with ranges; records that have expired
  uint64_t ingests, large, pieces, counted, range_compacts, bounded, batch_ranges, expired;
  // collections of garbage in value files, the bytes that they moved, and partitions that were merged for that
  uint64_t collections, moved, moved_merges;
  uint64_t replay_rounds;  // rounds of openings
} counts;

struct op {
  uint64_t id;  // the write's, never used again; the value follows from it
  uint32_t key;
  uint32_t vlen;
  uint64_t expires;  // 0: never, or in the far future
  bool del;
  bool more;  // the next one is of the same batch
};

struct model {
  struct op *ops;
  size_t nr, cap;
  size_t synced;  // so many of them must survive
  size_t maybe;  // so many of the last are of a write that failed, and may be there after the next opening all the same
  uint64_t next_id;
  uint64_t now[KEYS_MAX];  // id of the write that gave each key its value; 0: none
  uint32_t nr_keys;
};

struct plan {
  uint32_t nr_keys, vlen_max;
  size_t memtable_limit;              // under the least that the options allow, so that little data makes many rounds
  uint32_t table_pages, other_pages;  // other_pages: those of every other opening; 0: as the others
  uint32_t young_from, apart_from, garbage_from, cut_from, join;  // as in struct compact
  uint64_t values_full;                                           // bytes of a full value file
  uint64_t moved_from;                                            // as in struct compact
  uint32_t cold;                                                  // dice of expect_reads
  size_t replay;                                                  // replay_most
  bool away;                                                      // an opening brings no partition (view/part.h)
  uint32_t flush, sync, reopen, del, wear, garbage;               // in 1000 steps
  uint32_t large, large_max;  // in 1000 puts: values of VALUE_LARGE to large_max bytes
  uint32_t focus;             // percent of writes that go to few keys
  uint32_t range_few;         // as in struct range_limits
  uint32_t apart;             // percent of values that are long enough to lie apart
  uint32_t spaces;            // named spaces: key k is in space k % (spaces + 1), 0 is the unnamed one
  bool no_allocate, short_io;
  struct remixdb_opts opts;
};

struct run {
  struct plan plan;
  struct model model;
  struct simdisk *disk;
  struct xdb *x;        // NULL: the store is closed
  struct xdb_ref *ref;  // a ref of the unnamed space
  struct xdb_space *spaces[SPACES_MAX + 1];
  struct xdb_ref *refs[SPACES_MAX + 1];  // [0]: ref. NULL: there is no such space yet, and the store is read-only
  uint64_t rng;
  uint64_t wear_rng;              // its own, so that the other choices of a seed do not depend on it
  uint64_t iter_rng;              // for iterators; its own for the same reason
  uint32_t wears;                 // views to which do_wear has added debt
  uint32_t front;                 // keys that come one after the other
  bool faulty;                    // calls may fail
  bool no_memory;                 // they may fail for want of memory, and for nothing else
  bool may_nospace;               // the disk is full, or says so
  bool may_nomem;                 // descriptors may be refused
  uint32_t look_apart;            // after an opening, keys are looked up this far apart; the iterator reads them all
  uint32_t looks;                 // single lookups so far, of three kinds in turn
  uint8_t *value, *got;           // VALUE_MAX bytes each
  _Atomic uint64_t wall, steady;  // the clocks of the store, in ms
  struct env_clock clock;
};

// The beginning of main. An argument names the tests to run, as in "test_f*".
void life_start(int argc, char **argv);
uint64_t first_seed(void);
uint64_t nr_seeds(uint64_t standard);

static inline uint64_t below(uint64_t *rng, uint64_t n) { return rng_next(rng) % n; }
static inline bool chance(uint64_t *rng, uint32_t percent) { return rng_next(rng) % 100 < percent; }

// ---- a run

// A run with a plan by the seed, without a disk.
struct run *run_create(uint64_t s);
// Makes the run one of values that lie apart in small files, and are written again and again. Before it has a disk.
void run_apart(struct run *r);
// Makes the run one of partitions that are small for the tables of the next opening, and in which little lives. Before
// it has a disk.
void run_sparse(struct run *r);
// Gives the run a disk, which it owns, and destroys the one before.
void run_disk(struct run *r, struct simdisk *d);
enum remixdb_status run_open(struct run *r);
enum remixdb_status run_close(struct run *r);
void run_destroy(struct run *r);
// The two small stores in which each call fails in turn: plan 0 and plan 1. In plans 2 and 3 they take all their reads
// for a disk's.
struct run *run_small(uint32_t plan);
#define SMALL_PLANS 2u
#define COLD_PLANS 4u  // with those

// The ref of a key's space.
static inline struct xdb_ref *life_ref(const struct run *r, uint32_t key) {
  return r->refs[key % (r->plan.spaces + 1)];
}
// Keys ascend with their number. Some are longer than the eight bytes that the indexes compare first.
struct kref life_key(uint32_t i, uint8_t buf[32]);

// ---- checks

// A failed call gives a status that is possible, and a message.
void check_failure(struct run *r, enum remixdb_status s);
// The value is from a write of this key. Returns the id of the write.
uint64_t check_value(struct run *r, uint32_t key, const uint8_t *val, uint32_t vlen);
// The id of the write that gave the key its value, or 0. *ok_out: the read succeeded.
uint64_t look_up(struct run *r, uint32_t key, bool *ok_out);
// The same for all keys, through an iterator. False: a read failed.
bool read_all(struct run *r, uint64_t *ids);
// The store holds the effect of all accepted operations. may_fail: reads may fail.
void check_content(struct run *r, bool may_fail);
// The store holds the effect of the first so many writes, and of all that were synced. Later writes leave the model.
// False: a read failed, where it may.
bool check_prefix(struct run *r);
// The directory has the files that the version names, and no others. log_too: and few segments of the log.
void check_names(struct run *r, bool log_too);

// ---- for steps

// The number of operations that the store has accepted.
static inline size_t life_accepted(const struct model *m) { return m->nr - m->maybe; }
// A new operation on the key.
struct op life_op(struct run *r, uint32_t key, bool del);
const struct op *life_find(const struct model *m, uint64_t id);
void life_value(const struct op *op, uint8_t *buf);
uint32_t life_pick_key(struct run *r);
// A write of nr operations, on different keys, begins. From here on a cut may leave it.
void life_begins(struct run *r, struct op *ops, uint32_t nr);
// The write ended with s. False: it failed.
bool life_written(struct run *r, const struct op *ops, uint32_t nr, enum remixdb_status s);

// ---- steps. False: a call failed, as it may.

bool life_put(struct run *r, uint32_t key, bool del);
// Deletes the keys [first, end) that are in the space of `first`, as a range.
bool life_del_range(struct run *r, uint32_t first, uint32_t end);
bool write_batch(struct run *r);
bool merge_key(struct run *r, uint32_t key);
bool do_sync(struct run *r);
bool do_flush(struct run *r);
// The store may be closed after a failure.
bool do_reopen(struct run *r);
// Gives so many partitions, of those that can be merged, the scan debt for a merge. A failure of the merge fails no
// call.
void do_wear(struct run *r, uint32_t most);
// Makes the merges for garbage that a store at rest makes. With workers: asks for them.
void do_garbage(struct run *r);
// Puts a value that lies apart.
bool life_put_large(struct run *r, uint32_t key);
// Ingests records of some keys of one space, from `first` on, at most nr.
bool life_ingest(struct run *r, uint32_t first, uint32_t nr);
// Counts the keys [first, end) of the space of `first`.
bool life_count(struct run *r, uint32_t first, uint32_t end);
// Compacts the partitions of the keys [first, end) of the unnamed space.
bool life_compact_range(struct run *r, uint32_t first, uint32_t end);
// Reads through an iterator with options by the dice.
bool life_read_bounded(struct run *r);
// Time goes by, and records expire.
void life_clock(struct run *r);
// One of those by the dice, or nothing. *ok_out: it did not fail.
bool life_call(struct run *r, bool *ok_out);
// A random step by the plan, or nr of them.
bool step(struct run *r);
bool steps(struct run *r, uint64_t nr);
// A number of steps that write enough for a few rounds.
uint64_t enough(struct run *r, uint64_t rounds);
// The life of a small store from its creation on.
bool small_life(struct run *r, uint32_t nr);
// The same of a store in which most is deleted, so that partitions are joined. run_sparse has made the plan.
bool sparse_life(struct run *r);

// ---- power cuts

// Opens and checks the store after a cut. Up to `again` times the power goes again on the way, or the process dies.
void recover(struct run *r, uint32_t again);
// A copy of a run for one of the outcomes of a cut. Its disk is that after the cut.
struct run *fork_run(const struct run *r, uint64_t outcome);
void drop_fork(struct run *f);
// The power is off. Reads from memory may succeed and are right, and the store closes.
void after_cut(struct run *r);
#endif
