// SPDX-License-Identifier: Apache-2.0
//
// A ref: what one thread uses the store by. It reads the store as it is, or a snapshot.
#ifndef STORE_REF_H
#define STORE_REF_H

#include "store/progress.h"
#include "store/state.h"

struct xdb_ref {
  struct epoch_slot slot;
  struct epoch_slot stay;  // in xdb.cursors, inside while there are stays
  uint32_t stays;          // positions in memtables that are kept between calls: iterators', a checkpoint's
  struct xdb *xdb;
  struct super *view;  // what it reads, and the moment: the snapshot's, not counted. NULL: the store as it is
  uint64_t moment;
  struct xdb_snapshot *snapshot;
  struct sst_hold hold;  // of gets
  uint32_t above;  // the share of the last such gets, about thirty, that found their key in the active memtable (xdb.c)
  struct multiget *multiget;  // made with the first use
  uint64_t debt, debt_max;  // bytes written since the pace was last looked at, and after how many it is looked at again
  struct progress progress;  // of flush, compact, checkpoint and verify
};

// REMIXDB_NOMEM. The ref is of one thread at a time, and ends before the store does.
MUST_CHECK enum remixdb_status xdb_ref(struct xdb *x, struct xdb_ref **out);
void xdb_unref(struct xdb_ref *r);  // NULL is allowed

// What the ref reads: first the view, then the moment (X2). Inside an epoch.
static inline struct super *xdb_ref_super(const struct xdb_ref *r) {
  return likely(!r->view) ? xdb_super(r->xdb) : r->view;
}
static inline uint64_t xdb_ref_moment(const struct xdb_ref *r) {
  return likely(!r->view) ? atomic_load_explicit(&r->xdb->published, memory_order_acquire) : r->moment;
}
// The same with a reference of its own, to be given up with xdb_super_drop: not in an epoch.
struct super *xdb_ref_hold(struct xdb_ref *r, uint64_t *moment_out);
// A position in a memtable is going to be taken, in place of the one kept before (stays) or besides those that others
// keep; and it is given up. The slot goes on to now when no other is kept: who has several at a time holds up what
// waits for the oldest.
static inline void xdb_ref_stay(struct xdb_ref *r, bool stays) {
  r->stays += !stays;
  if (likely(r->stays == 1)) epoch_renew(&r->xdb->cursors, &r->stay);
}
static inline void xdb_ref_unstay(struct xdb_ref *r) {
  if (--r->stays == 0) epoch_exit(&r->stay);
}
#endif
