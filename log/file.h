// SPDX-License-Identifier: Apache-2.0
//
// A log segment and its file. Private to the log.
#ifndef WAL_FILE_H
#define WAL_FILE_H

#include "log/state.h"

struct wal_seg *wal_seg_create(const struct env_dir *dir, uint32_t nr);  // NULL: REMIXDB_NOMEM
void wal_seg_destroy(struct wal *w, struct wal_seg *seg);                // closes its file; NULL is allowed
void wal_segs_destroy(struct wal *w, struct wal_seg *seg);               // a list of them
void wal_seg_close(struct wal *w, struct wal_seg *seg);                  // closes its file, if it is open
static inline const char *wal_seg_name(const struct wal_seg *seg) { return env_name(seg->path); }
// Makes seg the segment h, in memory, with a random number and the log's origins in its header. The header is not
// written.
void wal_seg_begin(const struct wal *w, struct wal_seg *seg, const struct wal_head *h);
// Makes the bytes of a segment's file up to `end` durable, and the room and the size that it was given. fd: the file's.
MUST_CHECK enum remixdb_status wal_file_sync(struct wal *w, const struct wal_seg *seg, int fd, uint64_t end);
// Tells whether the first `nr` bytes of a file, at most WAL_HEAD, begin a segment of this log, or are all zero. Zeros
// are in a file that was made for a segment which was not begun.
bool wal_is_own(const struct wal *w, const uint8_t *head, size_t nr);
#endif
