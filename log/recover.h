// SPDX-License-Identifier: Apache-2.0
//
// Recovery: the steps of wal_open that read old segments. Private to the log. Nobody else uses the log meanwhile.
#ifndef WAL_RECOVER_H
#define WAL_RECOVER_H

#include "log/state.h"

// Replays the segments among all[0, nr) (of wal_list) that generation `oldest` and later ones need, and judges the
// files without a header. Those segments move to w->segs; their entries in `all` become NULL. w->active is then the
// last replayed segment. Torn tails are cut in memory only. print: the oldest segment's fingerprint; NULL: not known.
// rec->last_seq: in, the sequence number before the first record; out, the last sequence number. Fails with
// REMIXDB_CORRUPT, REMIXDB_IO, REMIXDB_NOMEM, or what `replay` returns. Nothing is written.
MUST_CHECK enum remixdb_status wal_recover(struct wal *w, struct wal_seg **all, size_t nr, uint64_t oldest,
                                           const uint64_t *print, wal_replay_fn replay, void *arg,
                                           struct wal_recovery *rec);
// Makes the replayed records durable and chooses the segment that appends go to: a new one of generation `gen`, or the
// last one. Statuses as of wal_open.
MUST_CHECK enum remixdb_status wal_begin_after(struct wal *w, uint64_t gen, const struct wal_recovery *rec);
#endif
