// SPDX-License-Identifier: Apache-2.0
//
// Building a REMIX of an old view, less the runs that leave, and new tables, which do not overlap each other. Keys come
// from the compressed-keys blocks, or from the data of a table without them. There are three ways:
//
//   moved   The new tables are the leaving runs, merged, and no record was dropped. So the order of entries stays, with
//           tags, discriminating bits and anchors. Only selectors and cursor offsets change, by counting; no key is
//           read.
//   merge   Both streams are read from the beginning. The merge carries the lengths of common prefixes along (Ng and
//           Kakehi, "Merging String Sequences by Longest Common Prefixes", 2008), so it compares no key from its start,
//           and gets discriminating bits and anchors for free.
//   splice  Each new key is looked up in the old view: an exponential search in the anchors finds its segment, and the
//           blind search its place, with one key of the old view read. Entries in between are copied with all that is
//           recorded of them; segments without new keys are copied whole. remix/splice.h has more.
//
// A splice is taken rather than a merge if more than twice as many old entries stay as new ones come.
#ifndef REMIX_BUILD_H
#define REMIX_BUILD_H

#include "remix/remix.h"

enum remix_build_way { REMIX_BUILD_AUTO, REMIX_BUILD_MERGE, REMIX_BUILD_SPLICE, REMIX_BUILD_MOVED };

struct remix_build {
  const struct sst_ctx *ctx;
  struct blkio_queue *queue;
  uint64_t number;           // of the file to write
  const struct remix *old;   // NULL: none
  uint32_t keep;             // bit r: run r of old stays. The new view has these runs first, in their order,
  struct sst *const *fresh;  // and then these: newer than all kept runs, in ascending key ranges that do not overlap
  uint32_t nr_fresh;
  bool moved;  // the new tables have the newest version of each key of the leaving runs, tombstones included, and
               // nothing else
  bool tags;
  _Atomic uint64_t *progress;  // entries done are added; may be NULL
  enum remix_build_way way;  // in: the way wanted, for tests and measurements. out: the way taken. Without an old view
                             // with segments (and with tags, if tags are wanted) it is a merge; it is not the moved way
                             // if `moved` is false or the numbers of records differ
  bool keep_image;           // in: the image is wanted, for remix_open_built
  // out
  uint8_t *image;  // on success if wanted, else NULL; the caller frees it with mem_free
  size_t image_size;
  uint64_t file_size;
  uint64_t data_pages_read;     // of all tables; 0 if all have compressed-keys blocks
  uint64_t ckb_bytes_read;      // of compressed keys
  uint64_t key_bytes_compared;  // of keys and anchors
  uint64_t keys_read;           // of the old view, one by one, by a splice
  uint64_t entries_copied;      // in segments that were copied whole
};
// Writes and syncs the file; the caller syncs its directory entry. On failure no file is left. Fails with
// REMIXDB_NOMEM, REMIXDB_IO, REMIXDB_NOSPACE or REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status remix_build(struct remix_build *b);
#endif
