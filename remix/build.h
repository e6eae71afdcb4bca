// SPDX-License-Identifier: Apache-2.0
//
// Building a REMIX: a view that is already sorted (the old REMIX, less the runs that are leaving) and new tables that
// do not overlap each other become one. Keys come from the compressed-keys blocks (or, for a table without one, from
// its data). There are three ways:
//
//   moved   The new tables are what the leaving runs had, merged, and nothing was dropped: the order of the entries is
//   what it was, and so are tags, discriminating
//           bits and anchors. Selectors and cursor offsets are made anew by counting; no key is read.
//   merge   Both streams are read from their beginning. No key is compared from its start: the merge carries the common
//   prefix lengths along
//           (Ng and Kakehi, "Merging String Sequences by Longest Common Prefixes", 2008), and the discriminating bits
//           and anchors fall out of it.
//   splice  Each new key is looked up in the old view: its segment by exponential search in the anchors from the last
//   one found, its place
//           by the blind search of the segment, which reads one key of the old view. Entries between two such places
//           are copied with all that is recorded of them, segments that nothing comes into are copied whole.
//           remix/splice.h says more.
//
// Of the last two the one that is estimated to cost less is taken: the splice where more than twice as many old entries
// stay as new ones come.
#ifndef REMIX_BUILD_H
#define REMIX_BUILD_H

#include "remix/remix.h"

enum remix_build_way { REMIX_BUILD_AUTO, REMIX_BUILD_MERGE, REMIX_BUILD_SPLICE, REMIX_BUILD_MOVED };

struct remix_build {
  const struct sst_ctx *ctx;
  struct blkio_queue *queue;
  uint64_t number;           // of the file to write
  const struct remix *old;   // NULL: none
  uint32_t keep;             // bit r: run r of old stays. Kept runs come first in the new view, in their order,
  struct sst *const *fresh;  // then these: newer than all kept, in ascending and not overlapping key ranges
  uint32_t nr_fresh;
  bool moved;  // the new tables were made of the runs that leave and of nothing else: of each key the newest version,
               // tombstones or not
  bool tags;
  _Atomic uint64_t *progress;  // entries done are added as it goes; may be NULL
  enum remix_build_way way;  // in: what is wanted, for tests and measurements; out: what was taken. Without an old view
                             // that has segments, and tags when there are to be tags, it is a merge all the same; and
                             // `moved` is so without `moved`, or when records do not fit
  bool keep_image;           // the image is wanted, for remix_open_built
  // out
  uint8_t *image;  // on success when it is wanted, else NULL; the caller's, to be freed with mem_free
  size_t image_size;
  uint64_t file_size;
  uint64_t data_pages_read;     // of all tables; 0 when all have a compressed-keys block
  uint64_t ckb_bytes_read;      // of compressed keys
  uint64_t key_bytes_compared;  // of keys and anchors
  uint64_t keys_read;           // of the old view, by a splice: looked at one by one
  uint64_t entries_copied;      // in segments that were copied whole
};
// Writes and syncs the file (its directory entry is the caller's to sync). On failure no file is left. REMIXDB_NOMEM,
// REMIXDB_IO, REMIXDB_NOSPACE, REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status remix_build(struct remix_build *b);
#endif
