// SPDX-License-Identifier: Apache-2.0
//
// Making a store of what can still be read of a damaged one.
//
// Everything is read in order of age (as CURRENT says; without it, tables by their numbers, which grow) and written to
// a new store in a directory within the old one's, so that the newest readable version of every key is what remains,
// and what is damaged further is not touched until the new store is whole and durable. Then its files take the old
// ones' place, which are put aside.
//
// Crash safety: the new store is built in repair.new, which an interrupted repair throws away. It becomes repair.done
// by a rename: from then on repair only ends what was begun: the old files are moved to lost.N (CURRENT first),
// repair.done becomes repair.in, its files are moved in (CURRENT last). While one of those two is there the store is
// not opened, so that what is written is never lost to a repair's end.
#ifndef REPAIR_H
#define REPAIR_H

#include "admin/repair_report.h"
#include "base/env.h"

// REMIXDB_OK also when something was lost: the report says so, and `lost.N/REPORT` names each loss with its file, its
// offset and its sequence numbers as far as they are known. REMIXDB_NOTFOUND: nothing in it shows that it is a store's
// (witness_find), and nothing was touched; REMIXDB_LOCKED, REMIXDB_IO, REMIXDB_NOSPACE (the store is as it was: make
// room and try again), REMIXDB_NOMEM, REMIXDB_VERSION; REMIXDB_EXISTS: a thousand lost.N are there, remove some. What
// was lost is in `lost.N/REPORT` beside the files put aside, and in the report.
MUST_CHECK enum remixdb_status repair_store(struct env *env, const char *path, struct repair_report *report_out);
#endif
