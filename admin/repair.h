// SPDX-License-Identifier: Apache-2.0
//
// Repair: makes a store of the readable part of a damaged one.
//
// The repair builds a new store in a directory within the old one's. It reads the old tables and log from the oldest to
// the newest, so the newest readable version of every key remains. CURRENT tells the order of the tables; without
// CURRENT their numbers do, which only grow. The old files stay untouched until the new store is whole and durable.
// Then they are put aside, and the new files take their place.
//
// Crash safety: three names of the directory are the three phases.
//   repair.new   the new store is being built. The next repair throws it away.
//   repair.done  the new store is durable; the rename to this name decides. The old files move to lost.N, CURRENT
//   first. repair.in    the new files move in, CURRENT last.
// During the last two phases the store cannot be opened, and another repair only finishes the begun one. So the end of
// a repair cannot lose a write.
#ifndef REPAIR_H
#define REPAIR_H

#include "admin/repair_report.h"
#include "base/env.h"

// Repairs the store in the directory `path`. REMIXDB_OK: the store is whole again, although records may be lost. The
// report says how many. The file `lost.N/REPORT`, beside the old files, names each loss with its file, its offset and
// its sequence numbers, as far as they are known.
//
// REMIXDB_NOTFOUND: nothing shows that the directory is a store's (witness_find), and nothing was touched.
// REMIXDB_EXISTS: there are a thousand lost.N; remove some. Fails with REMIXDB_LOCKED, REMIXDB_IO, REMIXDB_NOMEM,
// REMIXDB_VERSION or REMIXDB_NOSPACE (the store is unchanged: make room and try again).
MUST_CHECK enum remixdb_status repair_store(struct env *env, const char *path, struct repair_report *report_out);
#endif
