// SPDX-License-Identifier: Apache-2.0
//
// Iterators over the store or a snapshot, both ways. Between two calls one that has a position holds a view, and its ref is inside xdb.cursors, but in no other epoch.
#ifndef XDB_ITER_H
#define XDB_ITER_H

#include "view/merge.h"
#include "store/ref.h"

struct xdb_iter {
  struct xdb_ref *ref;
  struct view *view;             // counted; NULL: parked or not yet positioned
  enum remixdb_status status;
  struct err_saved error;        // why status
  struct merge merge;
  bool stays;                    // it has a position, which the ref's stay stands for
};

MUST_CHECK enum remixdb_status xdb_iter_create(struct xdb_ref *r, struct xdb_iter **out);
void xdb_iter_destroy(struct xdb_iter *it);
void xdb_iter_park(struct xdb_iter *it);
static inline bool xdb_iter_valid(const struct xdb_iter *it) { return merge_valid(&it->merge); }
// The status is kept in the iterator as well.
MUST_CHECK enum remixdb_status xdb_iter_seek(struct xdb_iter *it, struct kref key);           // first key >= key
MUST_CHECK enum remixdb_status xdb_iter_seek_for_prev(struct xdb_iter *it, struct kref key);  // last key <= key
MUST_CHECK enum remixdb_status xdb_iter_seek_last(struct xdb_iter *it);
// Makes it invalid for this reason.
void xdb_iter_fail(struct xdb_iter *it, enum remixdb_status s);
MUST_CHECK enum remixdb_status xdb_iter_skip(struct xdb_iter *it, uint32_t nr);
MUST_CHECK enum remixdb_status xdb_iter_prev(struct xdb_iter *it);
// xdb_iter_skip of one, for most steps; else false, and nothing has changed.
static inline bool xdb_iter_next_near(struct xdb_iter *it) { return merge_next_near(&it->merge); }
// REMIXDB_NOTFOUND when not valid; the record holds until the iterator moves.
MUST_CHECK enum remixdb_status xdb_iter_record(struct xdb_iter *it, struct kv_rec *rec_out);
// The same for most records; else false.
MUST_CHECK static inline bool xdb_iter_record_held(const struct xdb_iter *it, struct kv_rec *rec_out) { return merge_record_held(&it->merge, rec_out); }
#endif
