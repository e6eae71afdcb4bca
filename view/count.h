// SPDX-License-Identifier: Apache-2.0
//
// Estimates how many keys a range has, and their bytes, from the indexes.
//
// The older view of a partition has the number of its live entries before each segment, so its share of a range is the
// difference of two ranks. The newer streams (memtables, young views) change that number: a put of a new key adds one,
// a tombstone of a key that exists takes one away, and an overwrite does neither. So the count takes a sample of each
// newer stream's entries in the range, and looks each one's key up in the older streams, by the tags in memory. The
// sample tells how many of the stream's puts, and of its tombstones, have a key below. The numbers of both are known
// better: a memtable's leaves count their entries and tombstones, a young view's selectors show them. So a stream with
// only overwrites, or only deletes, has no error from a sample.
//
// Work, at most: COUNT_SAMPLE to WH_SAMPLE lookups for each memtable, 2 * WH_SAMPLE_LEAVES leaves, 512 places of all
// young views together, a few thousand segments, and a few steps for each partition of the range. Blocks are read for
// the keys of young views only, and for at most two keys at each end of the range.
#ifndef COUNT_H
#define COUNT_H

#include "view/version.h"
#include "wh.h"

#define COUNT_SAMPLE 1536u  // entries of a memtable that are looked up, at least, if it has so many

struct count {
  // in
  const struct wh *mem[2];  // the active and the frozen memtable; NULL: none
  const struct version *version;
  uint64_t moment;
  struct kref low, high;  // low <= key < high; ptr NULL: open
  struct epoch *epoch;
  struct epoch_slot *slot;
  bool keys_only;            // bytes stays 0, and no segment of an older view is looked at
  const _Atomic bool *stop;  // the call opens no partition and looks no entry up when it is set; NULL: it never is
  // out
  uint64_t keys, bytes;
  uint32_t leaves, lookups, clusters, segments;  // places that it looked at, for tests
};
// Counts. The caller is outside of any epoch, and keeps the memtables and the version alive. Fails as a read does, and
// with REMIXDB_ABORTED if it was stopped.
MUST_CHECK enum remixdb_status count_range(struct count *c);
#endif
