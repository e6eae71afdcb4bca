// SPDX-License-Identifier: Apache-2.0
//
// Building a REMIX: a two-way merge of a view that is already sorted (the old REMIX, less the runs that are leaving) with new
// tables that do not overlap each other. Keys come from the compressed-keys blocks (or, for a table without one, from its data);
// no key is compared from its start: the merge carries the common prefix lengths along (Ng and Kakehi, "Merging String Sequences
// by Longest Common Prefixes", 2008), and the discriminating bits and anchors fall out of it.
#ifndef REMIX_BUILD_H
#define REMIX_BUILD_H

#include "remix.h"

struct remix_build {
  const struct sst_ctx *ctx;
  struct blkio_queue *queue;
  uint64_t number;               // of the file to write
  const struct remix *old;       // NULL: none
  uint32_t keep;                 // bit r: run r of old stays. Kept runs come first in the new view, in their order,
  struct sst *const *fresh;      // then these: newer than all kept, in ascending and not overlapping key ranges
  uint32_t nr_fresh;
  bool tags;
  _Atomic uint64_t *progress;    // entries done are added as it goes; may be NULL
  // out
  uint64_t file_size;
  uint64_t data_pages_read;      // 0 when all tables have a compressed-keys block
  uint64_t key_bytes_compared;
};
// Writes and syncs the file (its directory entry is the caller's to sync). On failure no file is left. REMIXDB_NOMEM, REMIXDB_IO,
// REMIXDB_NOSPACE, REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status remix_build(struct remix_build *b);
#endif
