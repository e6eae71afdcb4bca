// SPDX-License-Identifier: Apache-2.0
//
// Snapshots: the store at one moment, kept for a user.
#ifndef STORE_SNAPSHOT_H
#define STORE_SNAPSHOT_H

#include "store/ref.h"

// Makes a snapshot of the records that the ref reads now. A snapshot is a moment (X2), and a reference to a super, so
// that memtables, tables and REMIXes stay. Any thread may release the snapshot. It goes with the last ref or iterator
// that reads it. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status xdb_snapshot(struct xdb_ref *r, struct xdb_snapshot **out);
MUST_CHECK enum remixdb_status xdb_snapshot_ref(struct xdb_snapshot *snap, struct xdb_ref **out);
#endif
