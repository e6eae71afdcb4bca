// SPDX-License-Identifier: Apache-2.0
//
// Steps of appending that the switch and the growth of log segments need. Private to the log. All are called with the
// log's lock held; "yields" marks those that release it for a while, after which the caller reads everything again.
#ifndef WAL_APPEND_H
#define WAL_APPEND_H

#include "log/state.h"

// Yields until the event happens next, or earlier.
void wal_event_wait(struct wal *w, struct wal_event *e);
void wal_event_wake(struct wal_event *e);

// The sticky error, or REMIXDB_OK.
MUST_CHECK enum remixdb_status wal_error(const struct wal *w);

// The active segment's end, the open buffer included.
uint64_t wal_at(const struct wal *w);
// Sets w->lim after a change of the segment's room.
void wal_limit(struct wal *w);
// Ends the open frame, if there is one. A thread writes it later, without the lock.
void wal_seal(struct wal *w);
// Puts a buffer at the end of the line of those to be written.
void wal_out_add(struct wal *w, struct wal_buf *b);
// Yields until all buffers with a ticket below `end` are written, by this thread or others.
MUST_CHECK enum remixdb_status wal_drain(struct wal *w, uint64_t end);
// The same for all buffers in line. A failure is sticky, or leaves its buffer in line, so a later call reports it.
void wal_push(struct wal *w);

// Without the log's lock, before and after the log's life.
MUST_CHECK bool wal_buffers_init(struct wal *w);  // false: REMIXDB_NOMEM, buffers_fini is needed all the same
void wal_buffers_fini(struct wal *w);
#endif
