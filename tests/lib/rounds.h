// SPDX-License-Identifier: Apache-2.0
//
// Fixture of the tests of compact/: rounds of compaction with small tables, against a model of the version and of the
// memtable that the next round brings into it. A round is made, checked from all sides, and installed.
#ifndef TESTS_ROUNDS_H
#define TESTS_ROUNDS_H

#include "tests/lib/check.h"
#include "compact/erase.h"

#include "view/merge.h"
#include "tests/lib/place.h"

#define TABLE 16u  // pages of a table
#define VALUE 50u  // mean bytes of a value; with more than 50, some values are large

// Fate of a partition's young view in a round that wrote into the partition.
enum went {
  BEGUN,      // there was none
  WENT_ON,    // its runs are as they were, and there are more
  MERGED,     // it is still there, but some of its runs are not
  JOINED,     // its runs and the new data became the newest of the other view, which kept all of its own
  DEEPER,     // as JOINED, but the other view lost some of its own to the same merge
  ALL_TAKEN,  // nothing stayed as it was
  WENT_KINDS
};

struct world {
  struct place p;
  struct keyset k;
  struct compact c;
  struct value_ctx values;
  struct version *base;
  struct wh *frozen;
  uint64_t seq;
  uint32_t value;
  // the model, per key
  uint32_t *disk, *fresh;  // states in base and in frozen
  uint8_t *back;           // handed back in the last round: how often
  uint32_t nr_back, next_what;
  uint64_t back_bytes;
  bool back_wrong;
  enum remixdb_status back_status;  // returned by hand_back
  _Atomic uint32_t told;            // calls of compact.tell
  struct err_saved tell;            // the last message
  // the round's way to the workers and back
  bool allow_abort;
  struct compact_whole *whole;  // NULL, or for the next round
  bool scan_merges;             // rounds merge for scans, where scan debt has paid for it
  bool garbage;                 // rounds merge for garbage, as in a store at rest
  bool bounded;                 // rounds keep to `room`; with steps it is made before them
  struct compact_room room;     // the round's; `beside` and `steps` are kept
  bool step;                    // the next round is a step for room
  uint32_t step_at;             // an index in `room`: where round_again begins the step
  uint64_t most_room;           // bytes that all files have taken at once, since the test has set it to 0
  bool large;                   // tables may be larger than those of now: another opening has written them
  bool both;                    // the spaces' tree has the same keys and gets the same new data
  uint64_t went[WENT_KINDS];    // in all rounds that were installed
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool done;
  struct version *next;
  enum remixdb_status status;
  struct err_saved error;
};

// Without threads a round runs in the thread that asks for it.
void world_init(struct world *w, uint32_t keys, uint32_t threads, uint64_t seed);

void world_fini(struct world *w);
// Saves base as CURRENT.
void world_save(struct world *w);
// Loads the version that is saved in place of base.
void world_reload(struct world *w);
// Base goes through the disk, as when the store is opened again. No file is to be cleaned, and CURRENT goes.
void world_again(struct world *w);
// Bytes of keys and values that the model of base has.
uint64_t world_bytes(const struct world *w);
// From now on the rounds write values apart that have at least so many bytes.
void world_apart(struct world *w, uint32_t bytes);
// The value files that the version's tables state, which are in the version, in base or in the rounds' log.
void world_values(struct world *w, struct version *v);
// The version is to be saved: no value file is left to which nothing refers.
void world_settle(struct world *w);

// Puts the key number at, or a tombstone for it, into the memtable of the next round.
void put(struct world *w, uint32_t at, bool tomb);
void put_range(struct world *w, uint32_t from, uint32_t to, uint32_t every, bool tomb);

// Empties that memtable.
void thaw(struct world *w);

// ---- rounds

// Each tree of a version, read from end to end, agrees with the model, and each partition holds its own keys only.
void expect_contents(struct world *w, const struct version *v, const uint32_t *what);

// The directory has the files of the version, and no others.
void expect_files(struct world *w, const struct version *v);

// Starts a round. round_end waits for it; round_try does both.
void round_begin(struct world *w);
enum remixdb_status round_end(struct world *w);
enum remixdb_status round_try(struct world *w);

// Makes a round, which succeeds, checks it from all sides and installs it. kinds_out: partitions by enum compact_kind,
// or NULL.
void round_ok(struct world *w, uint64_t *kinds_out);

// Checks the version that the last round made, and installs it in place of base.
void world_install(struct world *w);
// The same for a step for room, which brings no new data.
void world_install_step(struct world *w);

// The round did so many partitions in this way.
void expect_kind_at(int line, const uint64_t *kinds, enum compact_kind kind, uint64_t nr);
#define expect_kind(kinds, kind, nr) expect_kind_at(__LINE__, kinds, kind, nr)

static inline struct remix *remix_of(struct world *w, uint32_t part) { return w->base->parts[part]->remix; }

static inline struct remix *young_of(struct world *w, uint32_t part) { return w->base->parts[part]->young; }

uint64_t tombs_of(struct world *w, uint32_t part);

// Flips a bit in each page of the oldest table of a partition of a tree; the next call flips them back.
void damage(const struct version *tree, uint32_t part);
// No merge leaves the partition out any more (view/part.h, P4).
void forgive(struct part *p);
static inline bool is_damaged(const struct part *p) { return part_unread_ns(p) == PART_DAMAGED; }

// The number of first keys that fill about so many tables.
uint32_t keys_for(struct world *w, double tables);

uint32_t first_key_of(struct world *w, uint32_t part);

// Three partitions of two tables.
void three_parts(struct world *w);

// ---- for scans

// Gives the partition so much scan debt that a merge is paid for.
static inline void wear(struct world *w, uint32_t part) { remix_add_debt(remix_of(w, part), UINT32_MAX); }

void wear_all(struct world *w);

uint32_t due_of(struct world *w);

static inline uint64_t scan_debt_of(struct world *w, uint32_t part) {
  return atomic_load(&remix_of(w, part)->scan_debt);
}

uint64_t pages_of(struct world *w, uint32_t part);

// Makes a round for scans, which merges nr partitions, checks it from all sides and installs it.
void scan_merge_ok(struct world *w, uint64_t nr, uint64_t *kinds_out);

// ---- range deletion

// Deletes ranges of keys from base, which changes nothing else; a cut with at most `few` keys may be left as it is.
// Checks the next version from all sides and installs it. Adds up what was done to *sum (NULL: not).
void erase_ok(struct world *w, const struct compact_range *ranges, uint32_t nr, uint64_t few,
              struct compact_erase *sum);
// The same for the keys of these numbers: from to to - 1, and so on.
#define ERASE_MAX 4u
void erase_keys(struct world *w, const uint32_t (*at)[2], uint32_t nr, uint64_t few, struct compact_erase *sum);
// Deletes some ranges of all lengths.
void erase_some(struct world *w, uint64_t *rng, struct compact_erase *sum);

// ---- rounds that fail

// A world whose next round merges for scans: some runs of one partition, and all of another.
void ready_to_fail_scan_merge(struct world *w, uint64_t seed);

// The round failed with s and has changed nothing. contents: the version is read, too.
void expect_failed(struct world *w, enum remixdb_status s, bool contents);

// Makes a round, for scans if scan_merges is set, in which every merge is due.
enum remixdb_status round_again(struct world *w);
// Makes every step-th allocation of a round fail in turn, until a round does without a failure.
void no_memory(struct world *w, int64_t step);

// The same with every call to the disk, of each kind.
void io_fails(struct world *w);
#endif
