// SPDX-License-Identifier: Apache-2.0
//
// Replay: the log's records go into the first memtable when a store is opened.
//
// The opening thread gathers records. Then it and the workers link them at the same time. Each thread takes the keys
// with hashes in its share, so the versions of a key keep their order.
#ifndef STORE_REPLAY_H
#define STORE_REPLAY_H

#include "store/state.h"

// Opens the log, and links the records that the version *v_io does not have into `m`. fresh: the store and its log are
// new. self: the caller as a worker. Sets xdb.wal, xdb.recovery and xdb.published. If the log has deletions of ranges
// whose edits the version does not have, makes the edits, saves the new version and gives the store a super with it;
// the new version takes the place of *v_io. Fails as wal_open, wh_link, compact_erase and version_save do.
MUST_CHECK enum remixdb_status replay_log(struct xdb *x, struct worker *self, struct version **v_io, bool fresh,
                                          struct memtable *m);
#endif
