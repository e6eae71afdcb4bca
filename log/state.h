// SPDX-License-Identifier: Apache-2.0
//
// A log in memory: its segments, its buffers, its lock, the events that threads wait for, and the sticky error. Private
// to the files of the log.
#ifndef WAL_STATE_H
#define WAL_STATE_H

#include "base/eventcount.h"
#include "log/format.h"
#include "log/wal.h"

enum wal_buf_state { WAL_BUF_FREE, WAL_BUF_FILLING, WAL_BUF_SEALED, WAL_BUF_WRITING };
enum wal_buf_kind { WAL_BUF_NORMAL, WAL_BUF_BIG, WAL_BUF_HEADER };

// Bytes on their way to a log segment: a frame, or a segment's header. Guarded by the log's lock. While a thread writes
// the buffer, only that thread looks at `mem`.
struct wal_buf {
  struct wal_buf *next;  // in w->free, or in the order of writing
  struct wal_seg *seg;
  uint8_t *mem;
  size_t cap, len;
  uint64_t off, ticket;  // the buffer's place in the file, and in the order of writing
  uint64_t first_seq, durable;
  uint64_t sum;  // the frame's checksum, once it is in `mem`
  uint32_t count;
  enum wal_buf_state state;
  enum wal_buf_kind kind;
  bool retained;  // the disk was too full to write the buffer; a later call tries again
};

// A file of the log: a live segment, the prepared next one, or one in the pool.
struct wal_seg {
  struct wal_seg *next;
  int fd;  // -1: closed
  uint32_t nr;
  // Recovery and salvage alone:
  bool headed;    // `h` was read from it
  bool guessed;   // its header is broken; the frames gave the values in `h`
  bool beheaded;  // guessed, and its first frame is broken, too
  bool unread;    // its header could not be read
  bool shared;    // the file has a second name: the log never writes to it
  bool foreign;   // neither a segment of this log nor blank: the log never writes to it, and never removes it
  uint64_t size;  // bytes of the file

  // The file belonged to a segment that was released before it was durable: the system may have bytes of that segment
  // up to here. A sync of the whole file would write those behind this segment's end, too. Changes only at a release. A
  // release waits for a sync of the segment.
  uint64_t stale;
  struct wal_head h;
  struct wal_key key;
  struct wal_level level;  // the watermark in its header; written under admin
  uint64_t end;            // end of the bytes that were sealed for this segment
  uint64_t frames;         // the sum of the checksums of the frames that were written, modulo 2^64
  // This segment is known to be on disk up to here, and every older segment as a whole. 0: not known. The header alone
  // may be known to be there (wal.durable_gen).
  uint64_t durable;
  uint64_t alloc;  // the file has room on disk up to here; in the pool: the file's size
  struct wal_buf head_buf;
  uint8_t head[WAL_HEAD];
  char path[];  // for messages; its last part is the file's name
};

// A thread that has made one of these happen notes it in `events`, and releases the lock by wal_unlock, or by wal_end
// after it has set end_work. Then those that wait are woken.
enum wal_event {
  WAL_WRITTEN = 1,
  WAL_SYNCED = 2,
  WAL_UNHELD = 4,
};

// `lock` guards all of this, except where a comment says otherwise.
struct wal {
  // Touched by every append.
  struct lib_lock lock;
  bool end_work;        // wal_end has more to do than unlock
  uint8_t events;       // enum wal_event: what others wait for and has happened while this thread has the lock
  uint8_t *pos;         // where the next record goes in `cur`
  uint8_t *lim;         // records may go up to here; equal to pos when every append must take the slow path
  uint64_t seq;         // the last number given
  uint64_t base;        // plus the address `pos`, modulo 2^64: the bytes appended to the segment (seg_bytes)
  struct wal_buf *cur;  // the buffer being filled, or NULL
  // Written under the lock; any thread reads them relaxed.
  _Atomic uint64_t gen, seg_bytes;  // the active segment's
  _Atomic uint64_t durable_seq;
  _Atomic uint64_t full_at;  // the active segment is full when it has so many bytes (wal_full)
  _Atomic bool older;        // there are segments before the active one
  _Atomic bool behind;       // wal_ahead has something to do

  _Alignas(CACHE_LINE) struct wal_seg *active;
  struct wal_seg *segs;  // oldest to active
  struct wal_buf *free;
  struct wal_buf *out_head, *out_tail;  // buffers that are sealed or being written, in order of tickets
  uint64_t next_ticket;
  uint32_t nr_retained;
  bool syncing;           // a thread leads a sync
  bool growing;           // a thread makes room in the active segment
  bool scarce;            // wal_scarce
  bool held;              // wal_hold
  uint64_t grow_refused;  // making room ahead failed at this size, so wal_ahead does not try again until an append
                          // needs room
  uint64_t durable_gen;   // the newest segment with a durable header; all buffers of older ones are written
  // wal_sync_active has made the records up to this number durable in the segment `secured_gen`, up to `secured_end`;
  // older segments were not. When they are released, that segment is durable up to there.
  uint64_t secured_gen, secured_end, secured_seq;
  uint64_t ends_at;      // where the next full buffer ends if it is as long as the one before
  bool ends_wrong;       // the last full buffer did not end where the one before had said
  struct err_saved err;  // the sticky error
  // Threads wait without the log's lock. They begin under it, and wal_unlock wakes them without it.
  struct eventcount written;  // a write or a growth has ended
  struct eventcount synced;   // a sync has ended
  struct eventcount unheld;   // the hold has ended
  struct wal_stats st;
  struct wal_buf bufs[4];
  uint8_t none[8];  // pos and lim point here when there is no buffer

  // Constant after wal_create.
  struct env *env;
  const struct env_dir *dir;
  uint64_t store_id;
  const uint64_t *origins;  // the caller's
  uint32_t nr_origins;
  const struct wal_values *values;  // the caller's, or NULL
  uint32_t step;                    // most bytes by which a segment grows on disk
  uint64_t limit;                   // bytes on disk of all segments together; UINT64_MAX: none
  bool read_only;

  // One prepare, switch, release or mark at a time. Taken before `lock`. It guards:
  pthread_mutex_t admin;
  bool turned;              // there was a switch since the log was opened
  struct wal_seg *next;     // the prepared segment
  struct wal_seg *pool;     // the log pool
  struct wal_seg *foreign;  // files with a log's name that are not this log's: no new file gets their numbers
  // Written under admin; any thread reads them relaxed.
  _Atomic uint32_t nr_pooled;
  _Atomic uint64_t next_for;  // the active segment's room when the next one was last prepared; 0: not yet
};

// ---- log/create.c
// NULL: REMIXDB_NOMEM.
struct wal *wal_create(const struct wal_opts *o);
void wal_destroy(struct wal *w);

// ---- log/state.c. All are called with the log's lock held. "Yields" marks those that release it for a while; then the
// caller must read everything again.

// Yields until the event happens the next time. May return earlier.
void wal_wait(struct wal *w, struct eventcount *e);

// Makes a failure sticky: every later append and sync returns REMIXDB_IO with the message of the first such failure. If
// an fsync reports a full disk, that is sticky, too, because the system may have dropped data that it had accepted.
void wal_fail(struct wal *w, enum remixdb_status s);
// The sticky error, or REMIXDB_OK.
MUST_CHECK enum remixdb_status wal_error(const struct wal *w);

// Returns the active segment's end, with the open buffer.
uint64_t wal_at(const struct wal *w);
// There is no buffer: sets w->pos and w->lim for that, after each change of seg_bytes.
void wal_pos_none(struct wal *w);
// Gives a buffer back that nobody uses.
void wal_buf_put(struct wal *w, struct wal_buf *b);
// A buffer for one append, without the lock. NULL: REMIXDB_NOMEM.
struct wal_buf *wal_buf_create(size_t size);
// Before and after the log's life. False: REMIXDB_NOMEM; the caller must call wal_buffers_fini all the same.
MUST_CHECK bool wal_buffers_init(struct wal *w);
void wal_buffers_fini(struct wal *w);

// ---- log/append.c, the part for log segments. As above.

// Takes the log's lock, with room for nbytes of records, for the thread that holds the log. After a failure the lock is
// not held.
MUST_CHECK enum remixdb_status wal_lock_with_room(struct wal *w, size_t nbytes);
// Ends the open frame, if there is one. A thread writes it later, without the lock.
void wal_seal(struct wal *w);
// Puts a buffer at the end of the queue of buffers to write.
void wal_out_add(struct wal *w, struct wal_buf *b);
// Yields until all queued buffers are written. A failure is sticky, or leaves its buffer in the queue; a later call
// reports it.
void wal_push(struct wal *w);
#endif
