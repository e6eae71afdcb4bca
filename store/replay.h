// SPDX-License-Identifier: Apache-2.0
//
// Replay: the log's records go into the first memtable when a store is opened (store/replay_link.h). If they are many
// more than memtables may take, rounds bring them into tables (store/replay_round.h). A log of that size is left by a
// life with larger memtables, or with a large batch.
#ifndef STORE_REPLAY_H
#define STORE_REPLAY_H

#include "store/state.h"

// Opens the log, and brings the records that the version *v_io does not have into the memtable *m_io, or into tables.
// fresh: the store and its log are new. self: the caller as a worker. Sets xdb.wal, xdb.recovery and xdb.published. If
// the log has deletions of ranges whose edits the version does not have, makes the edits, saves the new version and
// gives the store a super with it. A new version takes the place of *v_io, and a new memtable that of *m_io, with the
// caller's references. If rounds fail, the records go into the memtable, however many they are, and so they do with
// read_only. Fails as wal_open, wh_link, compact_erase and version_save do.
MUST_CHECK enum remixdb_status replay_log(struct xdb *x, struct worker *self, struct version **v_io, bool fresh,
                                          struct memtable **m_io);
#endif
