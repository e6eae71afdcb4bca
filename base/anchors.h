// SPDX-License-Identifier: Apache-2.0
//
// Anchors: finds a key's place among sorted byte strings that never change. They belong to the segments of a REMIX, or
// to the partitions of a version.
//
// A search skips the bytes that all strings share. It compares the next 8 bytes of each string, as one number. The
// numbers lie in a static B+-tree whose children follow from their positions (after Khuong and Morin, "Array Layouts
// for Comparison-Based Searching", 2017, and the S-tree of Slotin's "Algorithms for Modern Hardware"). A search reads
// one node per level and takes no branch on its contents.
//
// Several strings may share a number. If they are more than ANCHORS_FEW, they get a separate tree, over the bytes that
// follow (the layers of Mao, Kohler, Morris: "Cache Craftiness for Fast Multicore Key-Value Storage", EuroSys 2012). A
// search goes down one tree per 8-byte piece of the key, and compares whole strings only at the end, at most
// ANCHORS_FEW of them.
//
// Cells are a shortcut for large trees. The first bytes of a number select its cell (the radix table of Kipf and
// others, "RadixSpline", aiDM 2020, made of the ranks of bytes instead of bits). A cell is one cache line with about
// four numbers, so most searches read one line. If more numbers fall into a cell than its line holds, the search scans
// them elsewhere, or goes through the levels when they are many. If no cell has so many, the tree has no levels.
#ifndef ANCHORS_H
#define ANCHORS_H

#include <assert.h>

#include "base/rising.h"
#include "kv.h"

#define ANCHORS_FEW 8u
#define ANCHORS_NODE 8u   // numbers of a node: one cache line
#define ANCHORS_PIECE 8u  // bytes of a number
#define ANCHORS_PLAIN 3u

struct anchors_tree;
struct anchors_cells;
struct anchors_line;

struct anchors {
  uint32_t nr;
  // Private. Most searches read only the fields up to `ranks`, one cache line, and the memory that these fields point
  // to.
  uint32_t nr_plain;  // levels of `plain`; 0: there are none
  uint32_t common;    // if `celled`: bytes that all strings but the empty one share, behind the head
  bool celled;        // tree 0 has cells, and each of its numbers belongs to one string
  bool has_head;      // `cut`, which lies in another line, is not 0
  // The levels of tree 0, if all strings differ in their first 8 bytes and are too few for cells.
  const uint64_t *plain[ANCHORS_PLAIN];
  const struct anchors_cells *cells;  // one for each tree with cells
  const struct anchors_line *lines;   // the lines of all cells
  const uint16_t *ranks;              // the ranks of all trees with cells
  const uint8_t *shared;              // the common bytes of each tree's strings
  const struct anchors_tree *trees;   // tree 0 holds all strings except the empty one
  const uint64_t *nodes;              // the nodes of all trees; the numbers of cells whose line does not hold them
  const uint32_t *refs;               // the refs of trees in which strings share a number
  struct mem_map map;                 // memory of all the above
  // Public: where each string begins in `bytes`, and where the last one ends: nr + 1 times u32, little-endian, or, if
  // offs is NULL, rising numbers.
  const uint8_t *offs;
  const struct rising_line *rising;
  const uint8_t *bytes;
  // How many bytes are stored once for all strings but the first: `bytes` has only what follows them. Each of these
  // strings has at least one byte more.
  uint32_t cut;
  const uint8_t *head;  // these bytes
};

// Prepares the search. The caller owns the strings, which must not change while `a` lives. The strings ascend strictly,
// and string 0 is empty, so every key has a place. nr may be 0. Fails with REMIXDB_NOMEM; `a` then holds no memory.
MUST_CHECK enum remixdb_status anchors_init(struct anchors *a, const uint8_t *offs, const uint8_t *bytes, uint32_t nr);
// The same for strings that the public fields tell; the others are zero. With a cut searches take the head off the key
// first.
MUST_CHECK enum remixdb_status anchors_prepare(struct anchors *a);
void anchors_fini(struct anchors *a);  // zeroed memory is allowed
// Returns the number of the last string that is not greater than the key; 0 when there are no strings. Any thread.
uint32_t anchors_find(const struct anchors *a, struct kref key);
// The same, faster for some hundreds of strings that differ in their first bytes, as partitions do.
static inline uint32_t anchors_find_plain(const struct anchors *a, struct kref key) {
  if (likely(a->nr_plain && key.len >= ANCHORS_PIECE)) {
    const uint64_t v = load64be(key.ptr);
    uint32_t at = 0;  // numbers that are less
    for (uint32_t l = a->nr_plain; l-- > 0;) {
      const uint64_t *const node = a->plain[l] + (size_t)at * ANCHORS_NODE;
      uint32_t less = 0;
      for (uint32_t i = 0; i < ANCHORS_NODE; i++) less += node[i] < v;
      at = at * ANCHORS_NODE + less;
    }
    if (likely(a->plain[0][at] != v)) return at;  // string 0 has no number
  }
  return anchors_find(a, key);
}
// The part of the search that most keys need. A caller keeps it where he looks first, so that the search reads
// nothing of struct anchors. Valid as long as the struct is.
#define ANCHORS_UNKNOWN UINT32_MAX
struct anchors_quick {
  const struct anchors_cells *cells;  // NULL: there is no quick search
  const struct anchors_line *lines;
  const uint16_t *ranks;
  const uint8_t *shared;
  uint32_t common;
  uint32_t owned;  // for the caller's use
};
// Sets all but `owned`.
void anchors_quick_set(struct anchors_quick *q, const struct anchors *a);
// Returns the result of anchors_find, or ANCHORS_UNKNOWN: the caller then calls anchors_find. Any thread.
uint32_t anchors_quick_find(const struct anchors_quick *q, struct kref key);
// Looks up many keys side by side: found_out[i] for wants[i], nr <= ANCHORS_MANY_MAX. Each key may be looked up in
// other strings. The searches go down level by level, and each search prefetches its next node while the others go on
// (group prefetching: Chen, Ailamaki, Gibbons, Mowry, "Improving Hash Join Performance through Prefetching", ICDE
// 2004).
#define ANCHORS_MANY_MAX 64u
struct anchors_lookup {
  const struct anchors *anchors;
  struct kref key;
};
void anchors_find_many(const struct anchors_lookup *wants, uint32_t nr, uint32_t *found_out);
static inline size_t anchors_memory(const struct anchors *a) { return a->map.size; }  // bytes, without the strings

// Where string i begins; nr: where the last one ends.
static inline uint32_t anchors_begin(const struct anchors *a, uint32_t i) {
  return a->offs ? load32le(a->offs + 4 * (size_t)i) : rising_at(a->rising, i);
}
// String i without the head.
static inline struct kref anchors_rest(const struct anchors *a, uint32_t i) {
  const uint32_t off = anchors_begin(a, i);
  return kref(a->bytes + off, anchors_begin(a, i + 1) - off);
}
static inline uint32_t anchors_len(const struct anchors *a, uint32_t i) {
  return anchors_rest(a, i).len + (i ? a->cut : 0);
}
// String i, without a cut.
static inline struct kref anchors_at(const struct anchors *a, uint32_t i) {
  assert(a->cut == 0);
  return anchors_rest(a, i);
}
// Copies len bytes of string i from byte `from` on. The string has these bytes.
void anchors_copy(const struct anchors *a, uint32_t i, uint32_t from, uint32_t len, uint8_t *to);
// As kv_cmp of string i and the key.
int anchors_cmp(const struct anchors *a, uint32_t i, struct kref key);
#endif
