// SPDX-License-Identifier: Apache-2.0
//
// The room on disk that log segments have, and that appends may use. Private to the log. Called with the log's lock
// held, or alone with the log, except where a comment says otherwise.
#ifndef WAL_ROOM_H
#define WAL_ROOM_H

#include "log/state.h"

// A segment gets more room when little is left: from wal_ahead at 1/WAL_LOW of a step (wal_low), and from an append at
// the latest at 1/WAL_NEEDED.
#define WAL_LOW 2u
#define WAL_NEEDED 4u

// Sets w->lim after a change of the segment's room.
void wal_limit(struct wal *w);
// Sets `older` and `full_at`, which follow from the list of segments, for readers without the lock.
void wal_bound(struct wal *w);
// Returns the step by which a segment with so much room grows. Steps double, so the log of a small store is small.
uint64_t wal_step(const struct wal *w, uint64_t alloc);
// Returns how much of a segment's room is kept for the last records. Workers make more room before so little room is
// left, and the limit leaves more room than that after a full segment.
uint64_t wal_keep(const struct wal *w, const struct wal_seg *seg);
// Returns the part of a step at which wal_ahead makes room in the active segment. A segment that a close has cut to
// less than a first step gets its room from the append that needs it, because the process may write only a few records.
uint32_t wal_low(const struct wal *w);
// Tells whether less than 1/`part` of a step is left, so that room should be made ahead of need.
bool wal_short_of_room(const struct wal *w, uint32_t part);
// Whether wal_ahead has something to do.
bool wal_is_behind(const struct wal *w);
// Makes the active segment's room reach `need`, or waits for the thread that changes its room. Yields the lock.
MUST_CHECK enum remixdb_status wal_grow(struct wal *w, uint64_t need);
// Makes room ahead of need, or records that the disk refused it. Yields the lock.
void wal_grow_ahead(struct wal *w);
// Returns the room on disk that all files will have when the active segment is full. Under admin, without the log's
// lock; and so is the next one.
uint64_t wal_room(struct wal *w);
// Returns how many of `more` bytes of room the limit allows.
uint64_t wal_within(struct wal *w, uint64_t more);
#endif
