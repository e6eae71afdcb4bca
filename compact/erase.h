// SPDX-License-Identifier: Apache-2.0
//
// Range deletion in a version: makes the next version, without the keys of some ranges, or with few of them. No table
// is written. A partition whose keys all lie in a range goes as a whole. In a partition that a range cuts, the
// entries of the range are erased (remix/erase.h). If the cut has few keys, they may be left: a tombstone for each
// costs less than a REMIX. A damaged partition that cannot be opened goes only if the ranges have all keys that can
// belong to it: in the spaces' tree only keys of spaces that are there. Its files then stay until the next opening of
// the store.
#ifndef COMPACT_ERASE_H
#define COMPACT_ERASE_H

#include "compact/compact.h"
#include "remix/cursor.h"

// The keys from <= key < to. ptr NULL: no bound on this side.
struct compact_range {
  struct kref from, to;
};

struct compact_erase {
  struct compact *c;
  struct epoch_slot *slot;    // the caller's, outside of any epoch
  struct blkio_queue *queue;  // writes the REMIX files; NULL: none is written, and no such version may be saved
  uint32_t tree;
  const struct compact_range *ranges;  // ascending, apart from each other
  uint32_t nr;
  uint64_t few;  // a cut with at most so many keys is left
  // private: the spaces whose keys the tree has; NULL: it is not the spaces' tree
  const struct names *names;
  // out
  uint64_t keys;             // keys that this takes out, about: a key of both views of a partition counts twice
  uint64_t left;             // keys that are left, in the same way
  uint64_t indexed;          // compact_range_keys: entries of the views that compact_erase would make again, about
  uint32_t dropped, erased;  // partitions that went, and that were cut
};

// Sorts ranges with lower bounds, and joins those that overlap or touch. Returns how many are left.
uint32_t compact_ranges_join(struct compact_range *ranges, uint32_t nr);

// Counts the keys that the ranges have in the version's tables, as `keys` above does, up to `most` and a few more.
// Sets e->indexed, too, which is too small if there are more keys. Reads one block for each view and bound; in a paged
// view also a page for each bound. The answer is more than `most`, too, if a partition that goes as a whole is damaged.
// Fails as reads do.
MUST_CHECK enum remixdb_status compact_range_keys(struct compact_erase *e, const struct version *base, uint64_t most,
                                                  uint64_t *keys_out);
// Makes the next version. It has one reference. It has all but its partitions from base, its number too. Its REMIX
// files are synced, and the caller syncs their directory entries. *out NULL: nothing is to be done but for the keys
// that are left. On failure no new file is left. Fails with REMIXDB_NOMEM, REMIXDB_IO, REMIXDB_NOSPACE or
// REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status compact_erase(struct compact_erase *e, struct version *base, struct version **out);

// Makes files in another directory of the views that no file has (remix_erase).
struct compact_filing {
  const struct sst_ctx *ctx;  // for the directory
  struct blkio_queue *queue;
  uint64_t next_file;  // the number of the next file
};
// Tells whether the version has such views.
bool compact_unfiled(const struct version *v);
// Makes a version of the same trees, with the same names, in which all views have files; those that are made are of
// f->ctx. They are synced, and the caller syncs their directory entries. On failure the caller removes the files. Fails
// with REMIXDB_NOMEM, REMIXDB_IO or REMIXDB_NOSPACE.
MUST_CHECK enum remixdb_status compact_file_views(struct compact_filing *f, const struct version *v,
                                                  struct version **out);
#endif
