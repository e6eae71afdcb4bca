// SPDX-License-Identifier: Apache-2.0
//
// The two ends of a round: the active memtable is frozen, and the version that the round made becomes the store's.
#ifndef STORE_INSTALL_H
#define STORE_INSTALL_H

#include "store/state.h"

// Freezes the active memtable: a new memtable and a new log segment take all later writes. The caller holds xdb.lock,
// and no memtable is frozen yet. After a failure nothing has changed. Fails with REMIXDB_NOMEM, REMIXDB_NOSPACE, or the
// log's failure.
MUST_CHECK enum remixdb_status round_freeze(struct xdb *x);

// Makes `next` the store's version and gives up the caller's reference to it, also on failure. had_frozen: the round
// compacted the frozen memtable, so `next` has the memtable's content, and the memtable leaves the super. If had_frozen
// is false, the log stays as it is, and a memtable may have been frozen meanwhile. The names of spaces stay as they
// are. *when_out: the time at which the new super was published. Waits for the disk and for epochs; outside of any lock
// and epoch. After REMIXDB_NOSPACE or REMIXDB_NOMEM the new files have been removed, and another round may be tried.
// After any other failure it is unknown which CURRENT is on disk, so the store refuses writes.
MUST_CHECK enum remixdb_status round_install(struct xdb *x, struct version *next, bool had_frozen, uint64_t *when_out);
// Replaces the names of the spaces: makes a version that has nothing else new, durable and the store's. May run beside
// a round; spaces.changing is held. When it returns, all epochs that could see the older names have ended. Fails as
// round_install does.
MUST_CHECK enum remixdb_status install_names(struct xdb *x, struct names *names);
#endif
