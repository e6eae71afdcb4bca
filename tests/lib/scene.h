// SPDX-License-Identifier: Apache-2.0
//
// Fixture of the tests that read through all layers: two memtables, partitions of several tables, some of them with
// young views, a moment, and arrays with the expected content.
#ifndef SCENE_H
#define SCENE_H

#include "tests/lib/check.h"
#include "tests/lib/place.h"

#define VALUE 30u
#define PARTS_MAX 64u
#define KEY_NEAR_MAX 9000u

// The partitions that have young views, among those that hold anything.
enum young_plan { YOUNG_NOWHERE, YOUNG_SOME, YOUNG_EVERYWHERE, YOUNG_FIRST, YOUNG_LAST, YOUNG_FEW, YOUNG_PLANS };
// Settings of the scenes that are made from now on.
extern enum young_plan scene_young;
extern bool scene_long_keys;  // half of the keys differ where discriminating bits are far (remix/remix.h)

struct scene {
  struct place p;
  struct keyset k;
  struct wh *active, *frozen;  // frozen may be NULL
  struct version *version;
  uint64_t moment;
  // the model
  uint32_t *old, *young;  // per key: its state in the two views of its partition
  uint32_t *disk, *live;  // in both views together; at the moment, never TOMB
};

struct plan {
  uint32_t keys;
  uint32_t active, frozen;  // number of writes; frozen UINT32_MAX: there is no frozen memtable
  uint32_t parts;
  uint32_t tables;  // at most, in a partition
  uint32_t tombs;   // one in so many
  size_t cache;
};

// The scene's version without its young views.
struct version *version_old(const struct scene *s);

// Saves the version, drops it, and loads it again.
void version_again(struct scene *s);

void scene_init(struct scene *s, const struct plan *plan, uint64_t seed);

void scene_fini(struct scene *s);

// A key of the set, or one beside it; buf of KEY_NEAR_MAX bytes. Returns its length.
uint32_t key_near(const struct scene *s, uint64_t *rng, uint8_t *buf);
#endif
