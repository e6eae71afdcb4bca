// SPDX-License-Identifier: Apache-2.0
//
// Values apart that an iterator comes to next. While values come from the disk, a scan over records whose values are
// apart would wait for each value in turn. The records lie close together in their blocks, so the references of the
// next ones are mostly at hand. Their values are asked for together (value/readahead.h).
#ifndef VALUE_AHEAD_H
#define VALUE_AHEAD_H

#include "store/ref.h"
#include "value/readahead.h"
#include "view/merge.h"

#define VALUES_AHEAD_BYTES ((uint64_t)1 << 20)  // that are on their way at once; the first value is, however long
#define VALUES_NEAR ((uint64_t)256 << 10)       // bytes between two values that one read of the disk brings
#define VALUES_STEPS 4u                         // records from one value to the next of a scan that leaves few out

// The values that an iterator has asked for, and the last one that it read of the older views; file 0: none. Zero it
// before the first use.
struct values_told {
  struct value_readahead asked;
  struct value_ref read;
  uint32_t came;     // remix_came at that value
  uint64_t ordered;  // bytes that were read in order, up to that value
};

// The iterator reads the value `now` of its record next: asks for the values that the next steps of its merge come to,
// as many as the scan is expected to go (merge_next_records), except for those that it has asked for before. Records of
// memtables do not count. The merge learns from this scan how far scans go. super: that of the merge's sources; the
// ref's thread is in no epoch. Cannot fail: the iterator reads all the same when it comes there.
void values_ahead(struct xdb_ref *r, const struct super *super, struct merge *merge, const struct value_ref *now,
                  struct values_told *told);

// The iterator reads the value of its record; cold: from the disk. If the value lies elsewhere than the one before it,
// that adds to the value debt of the view. Only values that a merge could move count (compact/value_merge.h): those of
// compact.apart_from bytes or more, up to a chunk. Nor does a value count that the scan came to past several records,
// or from one stretch of values in order to the next.
void values_came(const struct xdb_ref *r, const struct merge *merge, bool cold, const struct value_ref *to,
                 struct values_told *told);
#endif
