// SPDX-License-Identifier: Apache-2.0
//
// Fixture of the tests of REMIXes: keys of many kinds; the tables of a partition, with a model of them; and a REMIX of
// these tables. Its file is compared byte for byte with one that is made the plain way from the sorted entries.
#ifndef TESTS_REMIX_MODEL_H
#define TESTS_REMIX_MODEL_H

#include "tests/lib/check.h"
#include "tests/lib/place.h"

// ---- keys

// FAR: stretches in common of up to 9,000 bytes, so that bits of one segment are more than 4,094 bytes apart. DENSE:
// numbers of 12 bits, so that neighbours differ in every bit. MIXED: as keyset_make makes them.
enum { KEYS_TINY, KEYS_NUMBERS, KEYS_PATHS, KEYS_BINARY, KEYS_FAR, KEYS_DENSE, KEYS_MIXED, KEYS_KINDS };

// At most nr keys of the kind.
void keyset_of_kind(struct keyset *k, uint32_t kind, uint32_t nr, uint64_t *rng);

// ---- tables and their model

#define HAS_PUT 1
#define HAS_TOMB 2

struct tables {
  struct place *p;
  struct keyset k;
  bool young;  // the REMIX is a young view, in which tombstones are live
  uint32_t nr;
  struct sst *sst[REMIX_RUNS_MAX];
  uint8_t *has[REMIX_RUNS_MAX];  // per key: 0 or HAS_
};

// Adds a table with the keys that are in has, and takes over has.
void part_add_table(struct tables *t, uint8_t *has, bool ckeys);
void part_drop(struct tables *t, uint32_t run);
void part_fini(struct tables *t);
// New tables with at most so many keys; each key is in each of the runs with a chance of one half.
void part_small(struct tables *t, struct place *p, uint32_t kind, uint32_t keys, uint32_t runs, uint64_t *rng);
// For part_add_table: each key is in the table with a chance of one in `sparse`, and at least one is.
uint8_t *has_make(const struct keyset *k, uint32_t sparse, uint64_t *rng);

struct entry {
  uint32_t key;
  uint8_t run;
  bool tomb, old;
};

// All versions in order, or the entries that a cursor stops at. For free.
struct entry *part_view(const struct tables *t, uint32_t *nr_out);
struct entry *part_live(const struct tables *t, uint32_t *nr_out);
// The index of the first entry that is not less than the key.
uint32_t lower(const struct tables *t, const struct entry *e, uint32_t nr, struct kref key);

// ---- the REMIX of the tables

// Builds a REMIX from old (NULL: from nothing) and the last nr_fresh tables of t, and compares the file with the plain
// one.
struct remix *part_build(struct tables *t, const struct remix *old, uint32_t keep, uint32_t nr_fresh, bool tags,
                         uint64_t *pages_read_out);
// Builds a REMIX of all tables of t, which overlap: they arrive one by one.
struct remix *part_build_all(struct tables *t, bool tags);
// Drops a reference to the REMIX and makes its file obsolete.
void done(struct remix *x);

// The record is the newest version of the entry's key.
void check_record(const struct tables *t, const struct entry *e, const struct kv_rec *r);
// The cursor stands at entry `at`, or at the end. read: its record is right, too.
void check_at(const struct tables *t, struct remix_cursor *c, const struct entry *e, uint32_t nr, uint32_t at,
              bool read);
// A walk finds all entries. Returns the number of entries that do not record the length they share with the one before.
uint32_t check_walk(const struct tables *t, const struct remix *x);
#endif
