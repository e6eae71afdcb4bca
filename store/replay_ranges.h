// SPDX-License-Identifier: Apache-2.0
//
// The ranges that the log deletes (D3 of store/ranges.h), gathered while it is replayed. They give the edits of the
// version that the store has before the log. They also tell which records of the log a later range deletion takes away.
#ifndef STORE_REPLAY_RANGES_H
#define STORE_REPLAY_RANGES_H

#include "compact/erase.h"
#include "store/state.h"

struct replay_range {
  struct compact_range range;  // points into own memory, which begins with the lower bound
  uint64_t seq;                // its place in the log
};
// The keys from `from` on, up to the next cut: the last of the deletions that take them has this place; 0: none does.
struct replay_cut {
  struct kref from;
  uint64_t seq;
};
struct replay_ranges_tree {
  struct replay_range *all;  // in the order of the log
  uint32_t nr, cap;
  struct replay_cut *cuts;  // ascending; NULL: not made
  uint32_t nr_cuts;
};
// All zero: none.
struct replay_ranges {
  struct replay_ranges_tree trees[TREES];
  uint64_t last;  // the place of the last one; 0: there is none
};

void replay_ranges_fini(struct replay_ranges *r);
// Adds a KV_RANGE record. Its place is rec->seq. Copies its bounds. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status replay_ranges_add(struct replay_ranges *r, const struct kv_rec *rec);
// Makes the version that has the edits of all ranges behind v->erased, with one reference. All records of v are older
// than these. self: the caller as a worker. queue: as of struct compact_erase. After a failure the next opening removes
// the files that were made. Fails as compact_erase does.
MUST_CHECK enum remixdb_status replay_ranges_edit(const struct replay_ranges *r, struct xdb *x, struct worker *self,
                                                  struct blkio_queue *queue, struct version *v, struct version **out);
// Prepares replay_ranges_take: no range is added any more. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status replay_ranges_cut(struct replay_ranges *r);
// Tells whether a later range deletion takes the record away that has this place in the log. A record that a round has
// handed back may go by the place at which it stands the second time: none of its key was deleted in between (D5).
bool replay_ranges_take(const struct replay_ranges *r, const struct kv_rec *rec, uint64_t place);
#endif
