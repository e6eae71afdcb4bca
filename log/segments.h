// SPDX-License-Identifier: Apache-2.0
//
// Log segments: the log pool, and which segment is active. Private to the log.
#ifndef WAL_SEGMENTS_H
#define WAL_SEGMENTS_H

#include "log/file.h"
#include "log/room.h"

#define WAL_POOL 2u  // most files in the pool

// ---- the pool; under admin
void wal_pool_add(struct wal *w, struct wal_seg *seg);
void wal_foreign_add(struct wal *w, struct wal_seg *seg);  // closes the file of seg
// Removes files of the pool until at most `keep` are left and all files together keep the log's limit.
MUST_CHECK enum remixdb_status wal_trim(struct wal *w, uint32_t keep);

// ---- the active segment
// Begins the segment to which appends go; the segment's header is durable before the call returns. No other thread uses
// the log yet.
MUST_CHECK enum remixdb_status wal_begin_segment(struct wal *w, const struct wal_head *h);
// Makes appends go to seg, which is recovered, durable, open, and the last in w->segs. No other thread uses the log
// yet.
void wal_adopt(struct wal *w, struct wal_seg *seg);
#endif
