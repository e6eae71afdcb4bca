// SPDX-License-Identifier: Apache-2.0
//
// Snapshots: the store at one moment, kept for a user.
#ifndef STORE_SNAPSHOT_H
#define STORE_SNAPSHOT_H

#include "store/ref.h"

struct xdb_snapshot {
  struct xdb *xdb;
  struct super *super;  // counted
  uint64_t moment;
  uint64_t taken_ns;                 // time_ns() at the moment
  struct xdb_snapshot *next, *prev;  // guarded by xdb.snapshots.lock
};

// Makes a snapshot of the records that the ref reads now. A snapshot is a moment (X2), and a reference to a super, so
// that memtables, tables and REMIXes stay. Any thread may release the snapshot, after the snapshot's refs have ended.
// Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status xdb_snapshot(struct xdb_ref *r, struct xdb_snapshot **out);
MUST_CHECK enum remixdb_status xdb_snapshot_ref(struct xdb_snapshot *snap, struct xdb_ref **out);
void xdb_snapshot_release(struct xdb_snapshot *snap);  // NULL is allowed
#endif
