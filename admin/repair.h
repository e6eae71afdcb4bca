// SPDX-License-Identifier: Apache-2.0
//
// Repair: makes a store from the readable part of a damaged store.
//
// The repair builds a new store in a directory within the old one's. It reads the old tables and log from the oldest to
// the newest, so the newest readable version of every key remains. CURRENT tells the order of the tables. Without
// CURRENT the numbers of the tables tell it, because newer tables mostly have larger numbers (admin/repair_order.c).
// The old files stay untouched until the new store is whole and durable. Then they are put aside, and the new files
// take their place.
//
// Crash safety: three names of the directory are the three phases.
//   repair.new   The repair is building the new store. The next repair removes this directory.
//   repair.done  The new store is durable; the rename to this name decides. The repair moves the old files to lost.N,
//                CURRENT first.
//   repair.in    The repair moves the new files in, CURRENT last.
// During the last two phases the store cannot be opened, and another repair only finishes the repair that was begun. So
// the end of a repair cannot lose a write.
#ifndef REPAIR_H
#define REPAIR_H

#include "admin/repair_report.h"
#include "base/env.h"

// Repairs the store in the directory `path`. REMIXDB_OK: the store is whole again, although records may be lost. The
// report says how many. The file `lost.N/REPORT`, beside the old files, names each loss with its file, its offset and
// its sequence numbers, as far as they are known.
//
// Fails with REMIXDB_NOTFOUND, and touches nothing, if nothing proves that the directory is a store's (witness_find).
// Fails with REMIXDB_EXISTS if there are a thousand directories lost.N: remove some. Fails with REMIXDB_NOSPACE, and
// leaves the store unchanged, if the disk is full: make room and try again. Fails also with REMIXDB_LOCKED, REMIXDB_IO,
// REMIXDB_NOMEM or REMIXDB_VERSION.
MUST_CHECK enum remixdb_status repair_store(struct env *env, const char *path, struct repair_report *report_out);
#endif
