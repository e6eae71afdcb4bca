// SPDX-License-Identifier: Apache-2.0
//
// Values apart that no record of the active memtable refers to any more: newer records of the same memtable replaced
// them. No count of a version calls them garbage, and a memtable may hold VALUES_PER_MEMTABLE times its limit of values
// before it is full (store/values.h). An idle worker of a store at rest measures them (store/hiding.h), and a round
// brings the memtable into tables if they are many. Files without a referred value go with that round; a collection
// takes the others.
//
// Invariants
//   HV1  Writers do nothing for it. The pass over the memtable is made only if the memtable has values of `least` bytes
//        or more apart. It goes piece by piece, each in an epoch of its own, and gives up when something is written,
//        the memtable is frozen, or the store is about to close.
//   HV2  A pass that took t ns is followed by the next one after HIDDEN_VALUES_REST * t at the earliest.
//   HV3  The freeze is due if these values are `least` bytes or more, and more than 1/HIDDEN_VALUES_PART of all values
//        that were written apart for the memtable: the share from which on a collection takes a file.
//
// A record that has expired counts as one that refers to its value, as in tables.
#ifndef STORE_HIDDEN_VALUES_H
#define STORE_HIDDEN_VALUES_H

#include "store/state.h"

#define HIDDEN_VALUES_PART 3u
#define HIDDEN_VALUES_PIECE 1024u  // records
#define HIDDEN_VALUES_REST 64u

// Measures the active memtable of v, to which nothing was written after the number `written`, and tells whether a
// freeze is due for its values. Sets hiding.value_bytes. The caller keeps v, and is outside of any epoch; slot: the
// caller's.
MUST_CHECK bool hidden_values_due(struct xdb *x, struct epoch_slot *slot, const struct super *v, uint64_t written);
#endif
