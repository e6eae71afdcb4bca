// SPDX-License-Identifier: Apache-2.0
//
// The write-ahead log. One log segment per memtable (a recovery may leave more); a log segment is one preallocated
// file. Files are called wal-0, wal-1, ... The name has no meaning: the header holds the generation, so a file is
// recycled without any change to the directory.
//
// A log segment is a header and frames (docs/FORMAT.md). A frame holds the records that are appended between two seals.
// A seal happens when a buffer is full, at a sync and at a switch. A frame consists of checksum, length, first sequence
// number, count and records. One checksum per frame costs a tenth of one checksum per record. A batch (wal_begin ..
// wal_end) never crosses a frame, so recovery finds it whole or not at all.
//
// Invariants
//   L1  Order. Sequence numbers are given under the log's lock, in the order of the bytes. Record i of a frame has the
//       number first + i. Numbers have no gap between frames, nor between log segments.
//   L2  Checksums. A frame's checksum covers all that follows it and is seeded with the generation and the store's id.
//       So stale bytes of a recycled file, or of another store, never pass for a frame.
//   L3  Torn or damaged. Each frame states the offset up to which its segment was known to be durable at the seal.
//       - A broken frame is REMIXDB_CORRUPT if it lies before an offset that a later valid frame calls durable. That
//         frame may be in the same segment or in a later one, because a segment counts as durable only after the older
//         ones.
//       - Any other broken frame is a torn tail. Recovery cuts it and all that follows, later segments included, so the
//         recovered records are a prefix.
//       - If nothing is written after a sync, no later frame states the durable offset. A watermark does so instead. It
//         is a generation and an offset in the header of the newest segment, and in the header of the segment before
//         (which shows if the newest segment is lost). A clean close or wal_mark writes the watermark after the sync
//         that it reports, so it is true after any crash. The watermark has its own checksum, and the header's checksum
//         does not cover it, so a torn watermark damages nothing else.
//   L4  Chain. A header states the generation and the final length of the segment before it. A segment is replayed only
//       when the one before is complete up to that length; else L3 decides between cut and corrupt. A segment begins
//       only when the header of the one before is durable, and every older segment is durable as a whole or released.
//       So a generation missing between two others is REMIXDB_CORRUPT, and so is a torn segment before two others.
//       Generations grow. A recovery leaves one generation out. A crash may have lost the header of a segment with that
//       generation and left its frames, and these frames must never belong to a later segment.
//   L5  Durability. wal_sync returns only when everything appended before the call, in all segments, is durable. A
//       segment is never known to be durable before the older ones: wal_sync syncs them in order. wal_sync_active makes
//       the active segment durable alone. While older segments are not durable, no frame, header or watermark states
//       that. So L3 takes the torn tail of an older segment for what it is. When a version names the active segment,
//       nobody needs the older ones: their release (wal_release) makes it known.
//   L6  Errors. A failed write or fsync is sticky: later appends and syncs return it. An append's REMIXDB_NOSPACE is
//       not sticky: room on disk is reserved before a record is accepted, so a full disk refuses the record and changes
//       nothing else.
//   L7  History. A header states the fingerprint of the segment before, which is the checksum of that segment's header.
//       It also states the sum of the checksums of that segment's frames, and a random number. So a fingerprint stands
//       for all of the log up to that header. CURRENT names the fingerprint of the segment at which the replay begins.
//       A segment that does not fit is of another history: one of two copies of the store that both went on. Recovery
//       fails with REMIXDB_CORRUPT and does not take it for a torn tail. The random number distinguishes segments whose
//       earlier frames are equal. The sum distinguishes segments that two copies continued under one header. A header
//       that has version 2 states none of this, and is not compared.
//   L8  Values apart. A record may refer to a value in another file, which is written before the record is appended. It
//       is synced before the record. So the value of a durable record is whole. A record whose value is not whole is as
//       good as torn, and recovery cuts its frame and all that follows.
//   L9  Hold. While a thread holds the log (wal_hold), no record of another thread gets a number: appends wait before
//       they have one. So what the holder does between wal_hold and wal_unhold lies between two numbers, however long
//       it takes. Syncs and writes of buffers go on.
//
// Locks: the log's lock is held for the copy of a record and for the caller's stamp. Threads compute the checksums of
// sealed buffers, and write the buffers, without the lock. Threads wait for fsync on a condition (group commit: one
// fsync serves all waiting threads). Lock order: a memtable leaf's lock, then the log's.
#ifndef WAL_H
#define WAL_H

#include "base/env.h"
#include "kv.h"

#if !defined(WAL_BUF)         // a fuzzing build makes it small
#define WAL_BUF (256u << 10)  // bytes of a normal frame at most; a larger batch gets a private buffer
#endif
#define WAL_FIRST (64u << 10)     // a new segment's first step of room on disk; steps double
#define WAL_PREALLOC (16u << 20)  // up to this size, unless wal_opts says otherwise
#define WAL_KEEP_PART 4u          // 1/4 of a step is kept for the last records on a full disk
#define WAL_KEEP_MAX (2u << 20)   // at most so many bytes of it
// A closed log keeps so much room on disk, or twice that, after its end. If its last segment has records, it also keeps
// the room that a first step leaves for the last records.
#define WAL_REST 4096u
// A segment is full at 31/64 of the limit. The last records may take 1/64 more. So two segments stay within the limit.
#define WAL_FULL_PART 64u

struct wal;

// The log asks this of the owner of values that are apart (KV_APART).
struct wal_values {
  // Makes durable the values that records refer to, for all records that were appended before the call. The log calls
  // it before it makes these records durable. A failure becomes the log's sticky error.
  enum remixdb_status (*sync)(void *arg);
  // Tells whether the value of a record is whole. In a recovery a frame with a value that is not whole counts as broken
  // (L3), and the thread's message tells why the value is not whole. Any status other than REMIXDB_OK ends the
  // recovery.
  enum remixdb_status (*check)(void *arg, const struct kv_rec *rec, bool *whole_out);
  void *arg;
};

struct wal_opts {
  const struct env_dir *dir;  // the caller's; outlives the log
  uint64_t store_id;
  // Other ids that the store's tables and REMIX files state. New headers list them, for a repair without CURRENT. The
  // caller's; outlive the log.
  const uint64_t *origins;
  uint32_t nr_origins;
  bool printed;                     // `print` is known:
  uint64_t print;                   // the fingerprint of the oldest segment (L7)
  const struct wal_values *values;  // the caller's; outlives the log. NULL: no record has its value apart
  bool read_only;                   // replay only: nothing is written, no append may follow
  // wal_open calls this function, with the arg of the replay, after the last record and before it writes anything. If
  // the function fails, wal_open fails with its status. NULL: no function.
  enum remixdb_status (*replayed)(void *arg);
  uint32_t step;   // most bytes by which a segment grows on disk, a power of two; 0 = WAL_PREALLOC
  uint64_t limit;  // bytes on disk of all the log's files together; 0: no limit. wal_full tells when to switch
};

// Results of a recovery.
struct wal_recovery {
  uint64_t nr_records, nr_frames, nr_segments;
  uint64_t bytes;      // bytes of replayed frames
  uint64_t cut_bytes;  // bytes of a torn tail, as far as known
  uint64_t last_seq;   // the last replayed record's; without one, the number given to wal_open
};
// Recovery calls this function for each record, in order of seq, which is the record's place. rec->seq is the record's
// number: its place, or the number that it states. rec->kind is without KV_SEQ. The record's pointers are valid during
// the call. Any status other than REMIXDB_OK ends the recovery, which returns that status.
typedef enum remixdb_status (*wal_replay_fn)(void *arg, uint64_t seq, const struct kv_rec *rec);

// Opens the log.
// 1. Replays every segment of generation >= oldest_gen, in order. last_seq: the store's last sequence number when
//    oldest_gen began; replayed records follow it without a gap (L1). Older segments join the log pool.
// 2. Makes the replayed records durable. It writes bytes again unless a durable offset proves that they are on disk,
//    because after a failed fsync the system may treat unwritten pages as clean.
// 3. Starts a segment with a later generation. It continues the last segment instead in two cases. First case: no other
//    file can hold frames that would follow it, and the last segment is empty, or is the only one, has at most
//    WAL_FIRST bytes, and a watermark covers them. A clean close leaves such a log, and then nothing is written. Second
//    case: the disk has no room for another segment.
// Segment oldest_gen must exist, with the fingerprint that is known; if not, the call fails with REMIXDB_CORRUPT.
// fresh: the store is new; the call makes generation oldest_gen and syncs it with its directory. Nothing is written
// before the replay has succeeded. Fails with REMIXDB_CORRUPT, REMIXDB_VERSION, REMIXDB_IO, REMIXDB_NOMEM or
// REMIXDB_NOSPACE.
MUST_CHECK enum remixdb_status wal_open(const struct wal_opts *o, uint64_t oldest_gen, uint64_t last_seq, bool fresh,
                                        wal_replay_fn replay, void *arg, struct wal_recovery *rec_out,
                                        struct wal **out);
// Writes and syncs the buffers, writes a watermark (wal_mark), removes the pool's files, cuts unused room down to a
// rest (WAL_REST), and closes the files. If the log is read-only or has an error, the call writes nothing. Frees w in
// any case.
MUST_CHECK enum remixdb_status wal_close(struct wal *w);

// ---- appending

// wal_begin and wal_end enclose the records of one frame. The log's lock is held between them, so the code between them
// must not block or fail. wal_begin makes room for nbytes of records, on disk and in a buffer; when all buffers are
// full it waits until one is written. *gen_out: the active segment's generation.
// After a failure the lock is not held. Fails with REMIXDB_NOSPACE, REMIXDB_NOMEM, REMIXDB_TOOBIG (above
// WAL_FRAME_MAX), REMIXDB_READONLY, or the sticky error.
MUST_CHECK enum remixdb_status wal_begin(struct wal *w, size_t nbytes, uint64_t *gen_out);
// Like wal_begin, for records that the log should still take on a full disk: they may use the room that wal_begin
// leaves in the segment (1/WAL_KEEP_PART of a step).
MUST_CHECK enum remixdb_status wal_begin_last(struct wal *w, size_t nbytes, uint64_t *gen_out);
// Appends a record (see kv.h) of any kind, and returns its place: the sequence number that it has, unless it states its
// own (KV_SEQ), which is smaller.
uint64_t wal_put(struct wal *w, const struct kv_rec *rec);
// Releases the lock, then writes the buffers that this call filled. A write error becomes sticky; the next call reports
// it.
void wal_end(struct wal *w);
// The same in two steps. wal_end_unlock releases the lock, and returns whether wal_end_write must follow. In between
// the thread releases what others wait for.
MUST_CHECK bool wal_end_unlock(struct wal *w);
void wal_end_write(struct wal *w);
// The lock alone: no record is appended, and no segment begins meanwhile.
void wal_lock(struct wal *w);
void wal_unlock(struct wal *w);

// Holds the log (L9): until wal_unhold, wal_begin and wal_begin_last of bytes wait. One thread at a time. A thread that
// holds the log must not wait for one that may be in such a call, nor for a lock that one may have, such as a leaf's.
void wal_hold(struct wal *w);
void wal_unhold(struct wal *w);
// Like wal_begin_last, for the thread that holds the log.
MUST_CHECK enum remixdb_status wal_begin_held(struct wal *w, size_t nbytes, uint64_t *gen_out);

// Group commit. Returns when all records that any thread appended before the call are durable. The active segment's
// header is durable then, too, so a version may name the segment's generation. Blocks for the disk. After
// REMIXDB_NOSPACE (possible if the file system reserves no room) nothing is lost, and the caller may try again.
MUST_CHECK enum remixdb_status wal_sync(struct wal *w);
// Makes the header of the active segment durable, and the records that were appended to it before the call, whatever
// becomes of the older segments. A version may name the segment's generation then, as the one at which the replay
// begins. The records count as durable (wal_durable_seq) only after wal_sync, or when the older segments are released.
// Otherwise like wal_sync.
MUST_CHECK enum remixdb_status wal_sync_active(struct wal *w);
// Returns the last sequence number that is known to be durable. Relaxed.
uint64_t wal_durable_seq(const struct wal *w);
// Writes the buffers without a sync: the records survive the process, but not the machine.
MUST_CHECK enum remixdb_status wal_flush(struct wal *w);

// Writes a watermark (L3), which states up to where the log is durable now. With it, recovery does not take later
// damage for a torn tail. Costs a write of 24 bytes and an fsync (two of each the first time in a segment), or nothing
// if the watermark would not change. So call it when no writes come. A failure counts as the failure of a sync (L6),
// with two exceptions: REMIXDB_NOMEM is not sticky, and a full disk is no failure. Blocks for the disk.
MUST_CHECK enum remixdb_status wal_mark(struct wal *w);

// ---- log segments

// Prepares the next segment's file: a recycled file, or a new file whose name is durable. The file gets as much room on
// disk as the active segment has, if the disk and the limit allow that. Blocks for the disk without the log's lock.
// Fails with REMIXDB_NOSPACE, REMIXDB_NOMEM or REMIXDB_IO.
MUST_CHECK enum remixdb_status wal_prepare(struct wal *w);
// Does work ahead of time, so that an append or a switch need not wait for it. It makes room on disk in the active
// segment. When the active header is durable, it also prepares the next segment's file. After the first switch it makes
// no new file while older segments exist: one of them will serve again, so a log has two files. Blocks for the disk. If
// a step fails, the append or the switch that needs it tries again, and reports the failure.
void wal_ahead(struct wal *w);
// Guesses whether wal_ahead has something to do. Relaxed.
bool wal_ahead_pending(const struct wal *w);
// Makes the next segment the active one. If the next segment is not prepared yet, the call prepares it. If older
// segments that are not durable are left, or the active header is not durable, it syncs the log first. Calls fn(arg,
// new_gen) under the log's lock at the moment of the switch; fn may be NULL. All records appended before that moment
// belong to the old generation, all later ones to the new one. On failure nothing has changed and fn is not called.
MUST_CHECK enum remixdb_status wal_switch(struct wal *w, void (*fn)(void *arg, uint64_t new_gen), void *arg);
// The same for the thread that holds the log, with a last record of the old segment. *seq_out: its number, set before
// fn runs. After a failure the record may be in the log.
MUST_CHECK enum remixdb_status wal_switch_after(struct wal *w, const struct kv_rec *last, uint64_t *seq_out,
                                                void (*fn)(void *arg, uint64_t new_gen), void *arg);
uint64_t wal_gen(const struct wal *w);  // active generation, relaxed
// The fingerprint of the segment of this generation (L7). The segment's header is durable. Any thread. Fails with
// REMIXDB_CORRUPT: the log has no such segment.
MUST_CHECK enum remixdb_status wal_print(struct wal *w, uint64_t gen, uint64_t *print_out);
uint64_t wal_segment_bytes(const struct wal *w);  // appended to the active segment, relaxed
// Room on disk that all files of the log will have when the active segment is full. Waits for a file that is prepared.
uint64_t wal_room_most(struct wal *w);
bool wal_segment_holds(const struct wal *w);  // the active segment holds a record; relaxed
bool wal_holds_older(const struct wal *w);    // the log holds a segment before the active one; relaxed
bool wal_holds(const struct wal *w);          // the log holds a record, or an older segment; relaxed
// Tells whether a switch must come before the next append, so that the log stays within its limit. more: bytes of that
// append; 0: one record. A nearly empty segment takes any batch. last: the append may use the room for the last
// records. Always false without a limit. Relaxed.
bool wal_full(const struct wal *w, size_t more, bool last);
// Releases the segments of generation < gen; a durable version file shows that they are no longer needed. Up to two of
// them join the pool (one if there is a limit), and the call removes the others. The active segment always stays. If
// the active header is not durable yet, the call first syncs.
MUST_CHECK enum remixdb_status wal_release(struct wal *w, uint64_t gen);
// Removes the files of the pool and the prepared file, when room counts more than time. Fails with REMIXDB_IO.
MUST_CHECK enum remixdb_status wal_shed(struct wal *w);

// While `on` is set, the log grows for wal_begin_last only. If the segment has no room, wal_begin then fails as on a
// full disk. Any thread.
void wal_scarce(struct wal *w, bool on);
// Gives back room on disk that the log does not need at once: the pool, and all but WAL_FIRST bytes of the prepared
// segment and of the unused room of the active one. Returns whether it gave any room back. If a step fails, the call
// gives less room back. Any thread; blocks for the disk.
bool wal_yield(struct wal *w);
// The same for the pool and the prepared segment alone, which then grows again when it is the active one.
bool wal_cut_waiting(struct wal *w);

// Reads and checks again the part of the log that is known to be durable, segment by segment. The call leaves a segment
// out if the log recycles it meanwhile. Any thread, also while others append. Calls fn (may be NULL) for each record.
// Adds the records, frames, segments and bytes that were read to *seen (may be NULL). Fails with REMIXDB_CORRUPT,
// REMIXDB_IO, REMIXDB_NOMEM, or fn's status.
MUST_CHECK enum remixdb_status wal_verify(struct wal *w, wal_replay_fn fn, void *arg, struct wal_recovery *seen);

// ---- damaged logs

// A loss at one place of a log, as far as it is known.
struct wal_loss {
  const char *path;  // the file's; the log directory's if no file has the segment. Holds during the call
  bool missing;      // no file has the segment
  bool parted;       // the segment is of another history (L7), or follows one that is
  bool torn;  // nothing proves that the lost bytes were durable: a crash may leave such a tail, and an opening cuts it
  uint64_t gen;         // the segment's; 0: not known
  uint64_t off, bytes;  // the skipped bytes of the file; bytes 0: their number is not known
  // Sequence numbers of the lost records. first_seq 0: they are not known. last_seq < first_seq: it is not known
  // whether a record is lost
  uint64_t first_seq, last_seq;
  bool more;  // last_seq is a lower bound
};
#define WAL_LOSS_TEXT 160u  // bytes of its description, the end included
// Describes a loss, such as "3 records are lost, sequence numbers 5 to 7" or "at least ...", in buf of WAL_LOSS_TEXT
// bytes. Returns buf.
const char *wal_loss_text(const struct wal_loss *l, char *buf, size_t cap);

// Results of reading a damaged log.
struct wal_salvage {
  uint64_t nr_records, nr_segments;
  uint64_t lost_bytes;  // as far as known
  uint64_t gen;         // the generation of the segment being read, and at the end that of the newest one; 0: none
  uint64_t base_seq;    // the last sequence number before that segment
};
struct wal_salvage_to {
  wal_replay_fn record;
  void (*lost)(void *arg, const struct wal_loss *l);  // in order; NULL: none
  void *arg;
};
// Gives every record of every whole frame to `to`, in order. Begins with generation oldest_gen; its first record
// follows last_seq. oldest_gen 0: begins with the oldest segment of the chain that ends with the newest header; older
// records do not count as lost. Skips broken parts and a torn tail, and reports them to `to`. Skips frames that a
// recovery has cut. Leaves out segments of another history, as far as their headers show it (L7). If a segment's header
// is broken, the segment's frames tell its generation. The log must not be open. Nothing is written. Fails with
// REMIXDB_IO if some bytes could not be read; `to` then has the records of all other bytes. Fails also with
// REMIXDB_NOMEM, REMIXDB_VERSION, or the status of to->record.
MUST_CHECK enum remixdb_status wal_read_damaged(const struct wal_opts *o, uint64_t oldest_gen, uint64_t last_seq,
                                                const struct wal_salvage_to *to, struct wal_salvage *out);
// The store's ids, as a header of the log states them.
struct wal_ids {
  uint64_t own;
  uint32_t nr_origins;  // how many the header lists
  uint64_t origins[44];
};
// Fails with REMIXDB_NOTFOUND if no header is whole, or with REMIXDB_NOMEM or REMIXDB_IO.
MUST_CHECK enum remixdb_status wal_read_ids(const struct env_dir *dir, struct wal_ids *out);

struct wal_stats {
  uint64_t bytes, frames, syncs, records, segments, pool_segments, buffer_bytes;
};
void wal_stats(struct wal *w, struct wal_stats *out);
#endif
