// SPDX-License-Identifier: Apache-2.0
//
// Iterators that expect scans of many lengths, on stores that take their reads for a disk's or for the page cache's: so
// that the blocks of a scan are gathered (remix/gather.h) wherever a test reads. The caller's dice decide.
#ifndef TESTS_EXPECT_H
#define TESTS_EXPECT_H

#include <string.h>

#include "blkio.h"
#include "remixdb.h"
#include "xdb.h"

// Stores that are opened from now on learn where their reads come from, or take them all for the page cache's, or all
// for the disk's.
static inline void expect_reads(uint64_t dice) { atomic_store(&blkio_test_cold, (int)(dice % 3)); }

// The store, which was just opened, takes itself for much larger than memory. Where reads come from the disk, its
// rounds go past the page cache, and so do readers of several blocks that nobody has missed lately. No worker is at
// work.
static inline void expect_small_memory(struct xdb *x) {
  x->compact.memory = 1;
  atomic_store(&blkio_test_lane, true);
  admission_set(&x->admission, UINT64_MAX, 1, SIZE_MAX);
  _Atomic uint8_t *const missed = atomic_load(&x->admission.missed);
  // so that there is no free byte, and the first miss of a block goes past the page cache; 2 is no block's mark
  if (missed) memset((void *)missed, 2, (size_t)x->admission.mask + 1);
}

static inline uint32_t expect_length(uint64_t dice) {
  static const uint32_t lengths[] = {0, 1, 7, 50, 5000, UINT32_MAX};
  return lengths[dice % 6];
}

// NULL: it failed, and the thread's status tells why.
static inline struct xdb_iter *expect_iter(struct xdb_ref *ref, uint64_t dice) {
  struct remixdb_iter_opts o;
  remixdb_iter_opts_init(&o, sizeof(o));
  o.expect = expect_length(dice);
  return remixdb_iter_create_opts(ref, dice % 12 == 0 ? NULL : &o);
}

// The same for a test below the public calls.
static inline enum remixdb_status expect_iter_below(struct xdb_ref *ref, uint64_t dice, struct xdb_iter **out) {
  const struct xdb_iter_opts o = {.expect = expect_length(dice), .hold = dice % 13 == 0};
  return xdb_iter_create_opts(ref, &o, out);
}
// Scans pay for value merges (compact/value_merge.h) with so many bytes.
static inline void expect_value_merges(struct xdb *x, uint64_t bytes) { atomic_store(&x->compact.value_debt, bytes); }
#endif
