// SPDX-License-Identifier: Apache-2.0
//
// Log segments: their files, the log pool, their room on disk, and which one is active. Private to the log.
#ifndef WAL_SEGMENTS_H
#define WAL_SEGMENTS_H

#include "log/state.h"

#define WAL_POOL 2u  // most files in the pool
// A segment gets more room when little is left: from wal_ahead at 1/WAL_LOW of a step, and from an append at the latest
// at 1/WAL_NEEDED.
#define WAL_LOW 2u
#define WAL_NEEDED 4u

// ---- files
struct wal_seg *wal_seg_create(const struct env_dir *dir, uint32_t nr);  // NULL: REMIXDB_NOMEM
void wal_seg_destroy(struct wal *w, struct wal_seg *seg);                // closes its file; NULL is allowed
void wal_segs_destroy(struct wal *w, struct wal_seg *seg);               // a list of them
void wal_seg_close(struct wal *w, struct wal_seg *seg);                  // closes its file, if it is open
static inline const char *wal_seg_name(const struct wal_seg *seg) { return env_name(seg->path); }
// Makes seg the segment h, in memory, with a random number and the log's origins in its header. The header is not
// written.
void wal_seg_begin(const struct wal *w, struct wal_seg *seg, const struct wal_head *h);
// Makes the bytes of a segment's file up to `end` durable, and the room and the size that it was given. fd: of the
// file.
MUST_CHECK enum remixdb_status wal_file_sync(struct wal *w, const struct wal_seg *seg, int fd, uint64_t end);
// Tells whether the first `nr` bytes of a file, at most WAL_HEAD, begin a segment of this log, or are all zero. A file
// of zeros was made for a segment that was not begun.
bool wal_is_own(const struct wal *w, const uint8_t *head, size_t nr);

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

// ---- room on disk; with the log's lock held, or alone with the log
// Sets `older` and `full_at`, which follow from the list of segments, for readers without the lock.
void wal_bound(struct wal *w);
// Returns the step by which a segment with so much room grows. Steps double, so the log of a small store is small.
uint64_t wal_step(const struct wal *w, uint64_t alloc);
// Returns how much of a segment's room is kept for the last records. Workers make more room before so little room is
// left, and the limit leaves more room than that after a full segment.
uint64_t wal_keep(const struct wal *w, const struct wal_seg *seg);
// Returns the offset from which on the segment should get more room.
uint64_t wal_watch(const struct wal *w, const struct wal_seg *seg);
// Tells whether less than 1/`part` of a step is left, so that room should be made ahead of need.
bool wal_short_of_room(const struct wal *w, uint32_t part);
// Whether wal_ahead has something to do.
bool wal_is_behind(const struct wal *w);
// Makes the active segment's room reach `need`, or waits for the thread that changes its room. Yields the lock.
MUST_CHECK enum remixdb_status wal_grow(struct wal *w, uint64_t need);
// Makes room ahead of need, or records that the disk refused it. Yields the lock.
void wal_grow_ahead(struct wal *w);
#endif
