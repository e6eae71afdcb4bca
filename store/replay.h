// SPDX-License-Identifier: Apache-2.0
//
// Replay: the log's records go into the first memtable when a store is opened.
//
// Records are gathered. Then the workers and the opening thread link them at the same time. Each of them takes the keys
// whose hash falls into its share, so that the versions of a key keep their order.
#ifndef STORE_REPLAY_H
#define STORE_REPLAY_H

#include "store/state.h"

// Opens the log and links in `m` what the version `v` does not have yet. fresh: the store is new, and so is its log.
// self: the caller's slot as a worker. Sets the log, what recovery found, and the published number of the store. The
// statuses are those of wal_open and wh_link.
MUST_CHECK enum remixdb_status replay_log(struct xdb *x, struct worker *self, struct version *v, bool fresh,
                                          struct memtable *m);
#endif
