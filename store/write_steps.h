// SPDX-License-Identifier: Apache-2.0
//
// The steps of a write before and after its tries, which all kinds of writes share. Outside of any epoch.
#ifndef STORE_WRITE_STEPS_H
#define STORE_WRITE_STEPS_H

#include "store/pace.h"
#include "store/ref.h"
#include "store/syncer.h"
#include "store/values.h"

// Fails with REMIXDB_READONLY if the ref takes no writes.
MUST_CHECK enum remixdb_status write_check(const struct xdb_ref *r);
// The memtable is full: for a group of so many bytes, or for one record (0). Makes room, or waits for it. again: the
// group has waited before (XDB_FREEZE_AGAIN).
MUST_CHECK enum remixdb_status write_wait_room(struct xdb *x, size_t batch, bool again);
// The disk is full, and a write was refused (REMIXDB_NOSPACE is the thread's error). REMIXDB_ABORTED: something has
// changed, try the write once more. tomb: the write deletes only. May make a round, and asks for collections.
MUST_CHECK enum remixdb_status write_no_room(struct xdb *x, bool tomb);
// Writes the record's value apart: values_put, and once more if the disk was full and write_no_room has changed
// something.
MUST_CHECK enum remixdb_status write_apart(struct xdb *x, struct kv_rec *rec, struct value_apart *out);
// After a write of so many bytes.
MUST_CHECK static inline enum remixdb_status write_done(struct xdb_ref *r, size_t nbytes) {
  struct xdb *x = r->xdb;
  xdb_pace(r, nbytes);
  if (atomic_load_explicit(&x->syncer.how, memory_order_relaxed) == REMIXDB_SYNC_EACH) return xdb_sync(r);
  if (atomic_load_explicit(&x->syncer.running, memory_order_relaxed)) xdb_sync_wake(x);
  return REMIXDB_OK;
}
#endif
