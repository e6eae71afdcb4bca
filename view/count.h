// SPDX-License-Identifier: Apache-2.0
//
// Estimates how many keys a range has, and their bytes, from the indexes.
//
// The older view of a partition has the number of its live entries before each segment, so its share of a range is the
// difference of two ranks. The newer streams (memtables, young views) change that number: a put of a new key adds one,
// a tombstone of a key that exists takes one away, and an overwrite does neither. So the count takes a sample of each
// newer stream's entries in the range, and looks each one's key up in the older streams, mostly by the tags in memory.
// A stream of COUNT_SAMPLE entries or fewer is looked up whole.
#ifndef COUNT_H
#define COUNT_H

#include "view/version.h"
#include "wh.h"

#define COUNT_SAMPLE 1536u  // entries of a newer stream that are looked up, about

struct count {
  // in
  const struct wh *mem[2];  // the active and the frozen memtable; NULL: none
  const struct version *version;
  uint64_t moment;
  struct kref low, high;  // low <= key < high; ptr NULL: open
  struct epoch *epoch;
  struct epoch_slot *slot;
  // out
  uint64_t keys, bytes;
};
// Counts. The caller is outside of any epoch, and keeps the memtables and the version alive. Fails as a read does.
MUST_CHECK enum remixdb_status count_range(struct count *c);
#endif
