// SPDX-License-Identifier: Apache-2.0
//
// A group of writes with ranges, which are committed as one (store/ranges.h has the invariants).
#ifndef STORE_RANGE_GROUP_H
#define STORE_RANGE_GROUP_H

#include "compact/erase.h"
#include "store/batch.h"
#include "store/state.h"

struct many_check;

struct range_tree {
  struct compact_range *ranges;  // ascending, apart from each other
  uint32_t nr_ranges;
  struct batch_op *ops;  // after the ranges, ascending by key
  size_t nr_ops;
  // For one try:
  struct batch_op *all;  // ops, and tombstones for keys below the active memtable that it does not delete; ascending
  size_t nr;
  struct wh_link *links;  // for `all`
  size_t nr_linked;
  struct wh_link *gone;  // tombstones for keys of the active memtable
  size_t nr_gone, cap_gone;
  size_t *gone_from;  // for each range: its first one; then their end
  bool edited;        // the next version has another tree
};
struct range_group {
  struct range_tree trees[TREES];
  bool named;       // the spaces of all ranges and operations must have names
  uint8_t *bounds;  // bytes of bounds, or NULL; own memory
  bool puts;        // some operation is none of deleting
  // A transaction's: a key that is deleted always gets a tombstone, however many there are (`few` has no bound), and no
  // table is edited.
  bool tombstones;
  struct many_check *check;       // the reads of the transaction; NULL: none
  uint64_t few;                   // most keys that get tombstones; more: REMIXDB_TOOBIG
  uint8_t *keys;                  // bytes of gathered keys
  const struct memtable *active;  // the active one when the keys were gathered
  uint64_t left_out;              // gathered keys that need no tombstone (D7)
  size_t log_bytes, memory;
};
// Gathers the keys below the active memtable that get a tombstone, from the frozen memtable and the version's tables,
// and makes `all`. The caller keeps its reference to v until the commit. Fails with REMIXDB_TOOBIG if there are more
// than g->few.
MUST_CHECK enum remixdb_status range_group_gather(struct range_group *g, struct xdb *x, struct epoch_slot *slot,
                                                  const struct super *v, const struct version *version);
// Commits the group on top of the super v. next: the super that takes its place; NULL: v stays. REMIXDB_ABORTED: v is
// not the store's super any more, or has another active memtable than the super of the gathering, or g->check found a
// conflict or something to do. After a failure nothing has changed.
MUST_CHECK enum remixdb_status range_group_commit(struct range_group *g, struct xdb *x, struct epoch_slot *slot,
                                                  struct super *v, struct super *next);
// Sorts the ranges of a group whose ranges and operations are complete. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status range_group_ready(struct range_group *g);
void range_group_fini(struct range_group *g);
#endif
