// SPDX-License-Identifier: Apache-2.0
//
// Fixture of the tests that build REMIXes: a partition of many tables with a model of them, its REMIX, and the last
// build's figures. Every field of a view is checked against the model of the keys. Random choices come from check_seed.
#ifndef TESTS_REMIX_WORLD_H
#define TESTS_REMIX_WORLD_H

#include "tests/lib/check.h"
#include "tests/lib/remix_model.h"
#include "tests/lib/slow.h"

#define MILLION (SLOW > 8 ? 40000u : SLOW > 1 ? 150000u : 1000000u)
#define HAS_NONE 0

static inline uint32_t below(uint32_t n) { return (uint32_t)(rng_next(&check_seed) % n); }

enum { CKB_NONE, CKB_ALL, CKB_MIXED };  // the tables that have compressed-keys blocks

struct world {
  struct place *p;
  struct keyset k;
  uint32_t nr;  // runs
  struct sst *sst[REMIX_RUNS_MAX];
  uint8_t *has[REMIX_RUNS_MAX];  // per key: HAS_
  struct remix *x;               // a REMIX over all runs, or NULL
  uint32_t ckb, value, tables;   // how tables are made; value: greatest length
  bool tags, zstd;
  bool moved, passing;   // for remix_build
  uint32_t newer;        // for remix_build: so many of the last runs are newer than the new tables before them
  struct remix_build b;  // the last build
};

void views_init(struct world *t, struct place *p, uint32_t ckb, uint32_t value, bool tags);
void views_fini(struct world *t);
// A place without a cache, and a world with random keys of the kind and random properties.
void small_world(struct world *t, struct place *p, uint32_t kind, uint32_t ckb);

// ---- keys and tables

// nr random keys of 16 bytes.
void keys_random16(struct keyset *k, uint32_t nr);

// Places of new keys among all.
enum { SPARSE, CLUSTERS, ONE_PLACE, BEHIND, BEFORE, LAYOUTS };
// About nr new keys in these places, some of them tombstones, for world_add.
uint8_t *fresh_keys(const struct world *t, uint32_t layout, uint32_t nr);

// Adds a run with the keys of has, and takes over has.
void world_add(struct world *t, uint8_t *has);
// The same in up to so many tables with ascending ranges. Returns their number.
uint32_t world_add_some(struct world *t, uint8_t *has, uint32_t tables);
void world_drop(struct world *t, uint32_t run);
// Puts each key into one of so many runs, but not those in `out` (or NULL); one in `old` keys (0: none) into a second
// run. Builds the REMIX of the runs.
void world_spread(struct world *t, uint32_t runs, uint32_t old, const uint8_t *out);
// The number of keys in [from, to) that are in has.
uint32_t count(const uint8_t *has, uint32_t from, uint32_t to);

// ---- views

// Builds the REMIX of all runs. The runs of `keep` stay from the one before; the nr_fresh tables before the last
// `newer` runs are new. Opens the file and compares it with the image in memory.
void world_build(struct world *t, uint32_t keep, uint32_t nr_fresh, enum remix_build_way way);
// Goes back to the REMIX before the last build.
void world_back(struct world *t, struct remix *old);
// A `keep` of the first nr runs.
static inline uint32_t first_runs(uint32_t nr) { return nr == 32 ? UINT32_MAX : (1u << nr) - 1; }

// All fields of the file are right: order, runs, flags, tags, discriminating bits, cursor offsets and anchors (R1 to
// R5).
void check_view(const struct world *t);
// Both have the same order, runs, flags and tags.
void check_same_view(const struct remix *a, const struct remix *b);
// The mean number of entries in a segment.
static inline double fill(const struct remix *x) { return x->nr_segs ? (double)x->nr_entries / x->nr_segs : 0; }
#endif
