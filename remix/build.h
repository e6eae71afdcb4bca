// SPDX-License-Identifier: Apache-2.0
//
// Builds a REMIX from an old view without its leaving runs, and from new tables, which do not overlap each other. The
// new tables are the newest runs, or lie in age where the leaving runs lay. Keys come from the tables' compressed-keys
// blocks; if a table has none, they come from its data. There are three ways:
//
//   moved   The new tables are the merged leaving runs, without the records that newer runs of the view hide. So the
//           order of the other entries stays, with tags, discriminating bits and anchors. Only selectors and cursor
//           offsets change. The build counts selectors and reads no key.
//   merge   Both streams are read from the beginning. The merge carries the lengths of common prefixes along (Ng and
//           Kakehi, "Merging String Sequences by Longest Common Prefixes", 2008), so it compares no key from its start,
//           and gets discriminating bits and anchors for free.
//   splice  Each new key is looked up in the old view: an exponential search in the anchors finds its segment, and the
//           blind search its place, with one key of the old view read. The build copies the entries between two places
//           with their tags and discriminating bits, and copies segments without new keys whole. remix/splice.h has
//           more.
//
// The build chooses a splice rather than a merge if the old entries that stay are more than twice as many as the new
// entries, and the new tables are the newest runs.
#ifndef REMIX_BUILD_H
#define REMIX_BUILD_H

#include "remix/remix.h"

struct packing;  // table/packing.h

enum remix_build_way { REMIX_BUILD_AUTO, REMIX_BUILD_MERGE, REMIX_BUILD_SPLICE, REMIX_BUILD_MOVED };

struct remix_build {
  const struct sst_ctx *ctx;
  struct blkio_queue *queue;
  uint64_t number;           // the number of the file to write
  struct packing *pack;      // the file becomes a part of this pack; NULL: a file of its own
  const struct remix *old;   // the old view; NULL: there is none
  uint32_t keep;             // bit r: run r of old stays. The new view has these runs, in their order
  uint32_t newer;            // so many of the kept runs, the last ones, are newer than the new tables. Then all that
                             // leave are older than these, and newer than the other kept runs
  struct sst *const *fresh;  // new tables, in ascending key ranges that do not overlap
  uint32_t nr_fresh;
  bool moved;  // the new tables have the newest version of each key of the leaving runs, tombstones included, unless a
               // run that stays is newer and has the key; and nothing else
  bool passing;  // another view replaces this one soon: it may have thin segments
  bool tags;
  _Atomic uint64_t *progress;  // the build adds the entries that it has done; may be NULL
  enum remix_build_way way;  // in: the way wanted, for tests and measurements. out: the way taken. Without an old view
                             // with segments (and with tags, if tags are wanted) it is a merge. It is not the moved way
                             // if `moved` is false, or does not fit the new tables' number of records
  bool large_pages;          // in: see remix_pack
  bool keep_image;           // in: the caller wants the image, for remix_open_built
  // out
  bool old_unread;  // the call has failed with REMIXDB_CORRUPT or REMIXDB_IO, because it could not read the old view or
                    // a table of it
  bool fresh_unread;  // the same, because it could not read a new table
  uint8_t *image;     // set on success if it is wanted, else NULL; the caller frees it with mem_free
  size_t image_size;
  uint64_t file_size;
  uint64_t print;               // the file's fingerprint
  uint64_t data_pages_read;     // for all tables; 0 if all have compressed-keys blocks
  uint64_t ckb_bytes_read;      // bytes of compressed keys
  uint64_t key_bytes_compared;  // bytes of keys and anchors
  uint64_t keys_read;           // keys of the old view that a splice read one by one
  uint64_t entries_copied;      // in segments that were copied whole
};
// Writes and syncs the file; the caller syncs its directory entry. On failure no file is left. A part of a pack is
// durable when the pack is. Fails with REMIXDB_NOMEM, REMIXDB_IO, REMIXDB_NOSPACE or REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status remix_build(struct remix_build *b);
#endif
