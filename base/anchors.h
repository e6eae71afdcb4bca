// SPDX-License-Identifier: Apache-2.0
//
// Anchors: finding the place of a key among sorted byte strings that do not change: the segments of a REMIX, the
// partitions of a version.
//
// What is searched is not the strings but numbers: the 8 bytes of each that follow what all of them share. The numbers
// lie in a static B+-tree of implicit children (after Khuong and Morin, "Array Layouts for Comparison-Based Searching",
// 2017, and the S-tree of Slotin's "Algorithms for Modern Hardware"), so that a search reads one node per level,
// without a branch on what it finds. Where more than a few strings agree in those 8 bytes too, they have a tree of
// their own, which begins behind what they share (the layers of Mao, Kohler, Morris: "Cache Craftiness for Fast
// Multicore Key-Value Storage", EuroSys 2012): a search goes down as many trees as the key has 8-byte pieces that tell
// strings apart, and looks at whole strings only where at most ANCHORS_FEW are left.
//
// A tree of many numbers is also cut in cells, by what their first bytes are (the radix table of Kipf and others,
// "RadixSpline", aiDM 2020, made of bytes' ranks instead of bits): a cell is a cache line that has its four or so
// numbers, so that most searches read one; what lies in crowded cells is looked for among all numbers, and in very
// crowded ones through the levels.
#ifndef ANCHORS_H
#define ANCHORS_H

#include "kv.h"

#define ANCHORS_FEW 8u

struct anchors_tree;
struct anchors_cells;
struct anchors_line;

struct anchors {
  const uint8_t
      *offs;  // nr + 1 times u32, little-endian: where each string begins in `bytes`, and where the last one ends
  const uint8_t *bytes;
  uint32_t nr;
  // private below
  const struct anchors_tree *trees;   // the first is of all strings but the empty one
  const uint64_t *nodes;              // of all trees
  const uint32_t *refs;               // of trees in which strings share a number
  const struct anchors_cells *cells;  // of trees that are cut in them
  const struct anchors_line *lines;   // of all cells
  const uint16_t *ranks;              // of all trees with cells
  const uint8_t *shared;              // what the strings of each tree share
  struct mem_map map;                 // what all this lies in
};

// The strings stay the caller's, must not change, and must live as long. They ascend strictly and the first one is
// empty, so that every key has a place; nr may be 0. REMIXDB_NOMEM: nothing is held.
MUST_CHECK enum remixdb_status anchors_init(struct anchors *a, const uint8_t *offs, const uint8_t *bytes, uint32_t nr);
void anchors_fini(struct anchors *a);  // zeroed memory is allowed
// The number of the last string that is not greater than the key; 0 when there are none. Any thread.
uint32_t anchors_find(const struct anchors *a, struct kref key);
// The same for many keys, each among strings of its own: found_out[i] for wants[i]; nr <= ANCHORS_MANY_MAX. The
// searches go down level by level side by side, each node being fetched while the others' are looked at (group
// prefetching: Chen, Ailamaki, Gibbons, Mowry, "Improving Hash Join Performance through Prefetching", ICDE 2004).
#define ANCHORS_MANY_MAX 64u
struct anchors_lookup {
  const struct anchors *anchors;
  struct kref key;
};
void anchors_find_many(const struct anchors_lookup *wants, uint32_t nr, uint32_t *found_out);
static inline size_t anchors_memory(const struct anchors *a) { return a->map.size; }  // bytes held beside the strings

static inline struct kref anchors_at(const struct anchors *a, uint32_t i) {
  const uint32_t off = load32le(a->offs + 4 * (size_t)i);
  return kref(a->bytes + off, load32le(a->offs + 4 * (size_t)i + 4) - off);
}
#endif
