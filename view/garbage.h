// SPDX-License-Identifier: Apache-2.0
//
// How much of the room of a partition's files is garbage: old versions and tombstones, which no reader of the newest
// moment finds. Everything is an estimate from counts in memory: a record counts as the average of its view, and what
// has expired counts as live. If the files are smaller than their records, because these are compressed, bytes of
// records are bytes of the files; so live and garbage together are never more than files. Values apart are not in these
// figures (view/live.h).
#ifndef VIEW_GARBAGE_H
#define VIEW_GARBAGE_H

#include "view/version.h"

struct garbage {
  uint64_t files;    // bytes of tables and REMIX files
  uint64_t live;     // bytes of keys and values that readers find
  uint64_t garbage;  // bytes of all other records
  uint64_t keys;     // records that readers find
};
// Measures a partition, also one that is away.
void garbage_of(const struct part *p, struct garbage *out);
// The sums over all partitions of both trees.
void garbage_all(const struct version *v, struct garbage *out);
#endif
