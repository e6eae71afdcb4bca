// SPDX-License-Identifier: Apache-2.0
//
// What a log is in memory, shared by the files of the log alone: log/append.c (appending, syncing, segments) and those
// that read one: log/reader.c, log/recover.c, log/salvage.c.
#ifndef WAL_STATE_H
#define WAL_STATE_H

#include "log/format.h"
#include "log/wal.h"

#define WAL_POOL 2u  // files kept for recycling

enum wal_buf_state { WAL_BUF_FREE, WAL_BUF_FILLING, WAL_BUF_SEALED, WAL_BUF_WRITING };
enum wal_buf_kind { WAL_BUF_NORMAL, WAL_BUF_BIG, WAL_BUF_HEADER };

// Bytes on their way to a segment: a frame, or a segment's header. Guarded by the log's lock; while it is being written
// only the writing thread looks at `mem`.
struct wal_buf {
  struct wal_buf *next;  // of the free ones, or of those that go out, in order
  struct wal_seg *seg;
  uint8_t *mem;
  size_t cap, len;
  uint64_t off, ticket;
  uint64_t first_seq, durable;
  uint32_t count;
  enum wal_buf_state state;
  enum wal_buf_kind kind;
  bool retained;  // the disk was full when it was written; it is tried again
};

// A file of the log: a live segment, the prepared next one, or a spare.
struct wal_seg {
  struct wal_seg *next;
  int fd;  // -1: closed
  uint32_t nr;
  bool headed;    // `h` was read from it (recovery)
  bool guessed;   // `h` is what its frames say, its header is broken (salvage)
  bool beheaded;  // guessed, and its first frame is broken, too
  bool unread;    // its header could not be read (salvage)
  bool shared;    // its file has another name as well: it is not written to (recovery)
  bool foreign;   // neither a segment of this log nor blank: it is not written to, nor removed (recovery)
  struct wal_head h;
  struct wal_key key;
  struct wal_level level;  // in its header (recovery; of a segment that is written: what was put there, under admin)
  uint64_t size;           // of the file (recovery)
  uint64_t end;            // of what was sealed into it
  uint64_t durable;  // up to here it is known to be on disk, and every older segment whole; 0: not even the header
  uint64_t alloc;    // up to here there is room on disk; of a file that is kept for later: its size
  struct wal_buf head_buf;
  uint8_t head[WAL_HEAD];
  char path[];  // for messages; its last part is the file's name
};

// Something to wait for with the log's lock given up meanwhile. `tick` changes under both locks, so that either is
// enough to read it: who waits takes it under the log's lock, then sleeps under mu until it is another.
struct wal_event {
  pthread_mutex_t mu;
  pthread_cond_t cond;
  uint64_t tick;
  uint32_t waiters;  // under the log's lock
};

struct wal {
  // What an append touches. All of this struct is guarded by `lock` unless it says otherwise.
  struct lib_lock lock;
  bool end_work;                    // wal_end has more to do than unlock
  uint8_t *pos;                     // where the next record goes in `cur`
  uint8_t *lim;                     // records may go up to here; equal to pos whenever an append has to stop and think
  uint64_t seq;                     // the last number given
  struct wal_buf *cur;              // the buffer being filled, or NULL
  _Atomic uint64_t gen, seg_bytes;  // of the active segment; written under the lock, read relaxed by anyone
  _Atomic uint64_t durable_seq;     // the same
  _Atomic uint64_t full_at;         // the active segment is full with so many bytes (wal_full); the same
  _Atomic bool older;               // there are segments before it; the same
  _Atomic bool behind;              // wal_ahead has something to do; the same

  _Alignas(CACHE_LINE) struct wal_seg *active;
  struct wal_seg *segs;  // oldest to active
  struct wal_buf *free;
  struct wal_buf *out_head, *out_tail;  // sealed or being written, by ticket
  uint64_t next_ticket;
  uint32_t nr_retained;
  bool syncing;              // a thread leads a sync
  bool growing;              // a thread makes room in the active segment
  bool scarce;               // wal_scarce
  uint64_t grow_refused;     // making room ahead failed at this size: not tried again before it is needed
  uint64_t durable_gen;      // the newest segment whose header is durable
  struct err_saved err;      // the sticky error
  struct wal_event written;  // a write or a growth ended
  struct wal_event synced;   // a sync ended
  struct wal_stats st;
  struct wal_buf bufs[4];

  // Never changes after wal_open.
  struct env *env;
  const struct env_dir *dir;
  uint64_t store_id;
  uint32_t step;   // of a segment's growth on disk, at most
  uint64_t limit;  // bytes on disk of all segments together; UINT64_MAX: there is none
  bool read_only;

  pthread_mutex_t admin;       // one prepare, switch or release at a time; taken before `lock`
  bool turned;                 // under admin: a segment has followed another since the log was opened
  struct wal_seg *next;        // under admin: the prepared segment
  _Atomic uint64_t next_for;   // the active segment's room when it was last made ready, or was tried to be; 0: since
                               // that one began it was not. Written under admin, read relaxed by anyone
  struct wal_seg *spares;      // under admin
  _Atomic uint32_t nr_pooled;  // their number; relaxed
  struct wal_seg
      *foreign;     // under admin: what has a name of the log's and is not the log's; no new file gets these numbers
  uint8_t none[8];  // pos and lim point here when there is no buffer
};

// NULL: REMIXDB_NOMEM.
struct wal *wal_create(const struct wal_opts *o);
void wal_destroy(struct wal *w);
struct wal_seg *wal_seg_create(const struct env_dir *dir, uint32_t nr);
static inline const char *wal_seg_name(const struct wal_seg *s) { return env_name(s->path); }
void wal_seg_destroy(struct wal *w, struct wal_seg *s);
void wal_segs_destroy(struct wal *w, struct wal_seg *s);
// Makes s the segment h. Does not write the header.
void wal_seg_begin(struct wal_seg *s, const struct wal_head *h);
void wal_pool_add(struct wal *w, struct wal_seg *s);
void wal_foreign_add(struct wal *w, struct wal_seg *s);
// Whether the first `nr` bytes of a file, at most WAL_HEAD of them, are those of a segment of this log, or of a file
// that was made for one and not begun.
bool wal_is_own(const struct wal *w, const uint8_t *head, size_t nr);
// Begins the segment that appends go to, with its header durable before return.
MUST_CHECK enum remixdb_status wal_begin_segment(struct wal *w, const struct wal_head *h);
// Has appends go to s, which was recovered, is durable and open, and is the last in w->segs.
void wal_adopt(struct wal *w, struct wal_seg *s);
// Removes spares until there are no more than `keep`, and all files together have no more than the log's limit. Under
// admin.
MUST_CHECK enum remixdb_status wal_trim(struct wal *w, uint32_t keep);
// Under the log's lock, or alone with the log: says anew what follows from the list of segments for readers without it.
void wal_bound(struct wal *w);
MUST_CHECK enum remixdb_status wal_error(const struct wal *w);
#endif
