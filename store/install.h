// SPDX-License-Identifier: Apache-2.0
//
// The two ends of a round: the active memtable is frozen, and the version that the round made becomes the store's.
#ifndef STORE_INSTALL_H
#define STORE_INSTALL_H

#include "store/state.h"

// Freezes the active memtable: a new memtable and log segment take all that comes after. Nothing is frozen yet.
// xdb.lock is held. On failure nothing has changed. Fails with REMIXDB_NOMEM, REMIXDB_NOSPACE, or the log's failure.
MUST_CHECK enum remixdb_status round_freeze(struct xdb *x);

// Makes `next` the store's version and gives up the caller's reference to it, also on failure. had_frozen: the round
// was of the frozen memtable, so `next` has its content, and the memtable leaves the super. Else the log stays as it
// is, and a memtable may have been frozen meanwhile. *when_out: the time at which the new super was published. Waits
// for the disk and for epochs; outside of any lock and epoch. REMIXDB_NOSPACE, REMIXDB_NOMEM: the new files are gone,
// try again. After another failure it is unknown which CURRENT is on disk: the store refuses writes.
MUST_CHECK enum remixdb_status round_install(struct xdb *x, struct version *next, bool had_frozen, uint64_t *when_out);
#endif
