// SPDX-License-Identifier: Apache-2.0
//
// The write-ahead log: one segment per memtable (more after a recovery), each a preallocated file that is recycled.
// Files are called wal-0, wal-1, ...: the name says nothing, the header's generation does, so recycling changes no
// directory.
//
// A segment is a header and frames (docs/FORMAT.md). A frame is everything appended between two seals (a buffer that
// filled, a sync, a switch): checksum, length, first sequence number, count, records. One checksum a frame, taken when
// it is sealed, costs a tenth of one a record and saves its bytes; a batch (one wal_begin .. wal_end) never crosses a
// frame, so that it is there whole or not at all.
//
// Invariants
//   L1  Sequence numbers are given under the log's lock, in the order of the bytes: record i of a frame has first + i,
//   frames
//       follow without gaps, also from one segment to the next.
//   L2  A frame's checksum covers all that follows it and is seeded with the generation and the store's id: stale bytes
//   of a
//       recycled file, or of another store, never pass.
//   L3  A frame says up to which offset its segment was known to be durable when it was sealed. A broken frame before
//   an offset
//       that any later valid frame (of this segment, or of a later one, which is synced only after this one is) calls
//       durable is REMIXDB_CORRUPT. Any other broken frame is a torn tail: it and all after it, later segments
//       included, are cut, so that what is recovered is a prefix. When nothing is written after a sync the watermark
//       says it instead: an offset, and the generation it is of, in the header of the newest segment and of the one
//       before it (so that a lost segment is missed). It is written after the sync it speaks of (a clean close;
//       wal_mark), so it is true at any crash; its bytes have a checksum of their own and the header's leaves them out,
//       so that a torn or damaged watermark takes nothing with it.
//   L4  A segment's header says the generation and the final length of the one before it: a segment is replayed only
//   when the one
//       before was complete up to that length (else L3 decides between cut and corrupt). Generations grow; after a
//       recovery one is left out, so that frames whose header a crash took never belong to a segment made later. A
//       segment begins only when the header of the one before is durable: a generation missing between two others is
//       REMIXDB_CORRUPT.
//   L5  wal_sync returns only when everything appended before the call, in all segments, is durable; a segment is never
//   synced
//       before the older ones.
//   L6  A failed write or fsync is sticky: later appends and syncs return it. REMIXDB_NOSPACE of an append is not:
//   space is
//       reserved (preallocated) before a record is accepted, so a full disk refuses the record and nothing else
//       happens.
//
// Locks: the log's lock is short: memcpy of the record and the caller's stamping. Sealed buffers are checksummed and
// written outside of it. fsync is waited for on a condition (group commit: one fsync serves all that wait). Lock order:
// a memtable leaf's lock, then the log's.
#ifndef WAL_H
#define WAL_H

#include "base/env.h"
#include "kv.h"

#if !defined(WAL_BUF)         // a build that fuzzes makes it small
#define WAL_BUF (256u << 10)  // bytes of a normal frame at most; a larger batch gets a buffer of its own
#endif
#define WAL_FIRST (64u << 10)     // the room that a new segment begins with. It doubles each time that it grows,
#define WAL_PREALLOC (16u << 20)  // up to steps of this size, when nothing else is asked for
#define WAL_KEEP_PART 4u          // this part of a step is kept for the last records that a full disk takes,
#define WAL_KEEP_MAX (2u << 20)   // and no more than that
#define WAL_REST 4096u            // a log that was closed has so much room on disk, or twice that, behind what it holds
#define WAL_FULL_PART \
  64u  // of the limit 31/64 make a segment full, and 1/64 more is for the last records: two segments together keep the
       // limit

struct wal;

struct wal_opts {
  const struct env_dir *dir;  // the caller's; outlives the log
  uint64_t store_id;
  bool read_only;  // replay only: nothing is written, no append may follow
  // Called with the replay's arg when it has got all records, before anything is written; its failure is the opening's.
  // NULL: nobody.
  enum remixdb_status (*replayed)(void *arg);
  uint32_t step;   // bytes by which a segment grows on disk at most, a power of two; 0 = WAL_PREALLOC
  uint64_t limit;  // bytes that all files of the log have on disk together; 0: no limit. wal_full says when it is time
                   // to switch
};

// What recovery found.
struct wal_recovery {
  uint64_t nr_records, nr_frames, nr_segments;
  uint64_t bytes;      // of frames replayed
  uint64_t cut_bytes;  // of a torn tail left out (known ones)
  uint64_t last_seq;   // of the last record replayed, or what was given
};
// Called for each record in order of seq; the record's pointers hold during the call. A status other than OK ends the
// recovery with it.
typedef enum remixdb_status (*wal_replay_fn)(void *arg, uint64_t seq, const struct kv_rec *rec);

// Opens the log: replays every segment of generation >= oldest_gen, in order; syncs what it replayed, after writing
// again what nothing proves to be on disk (it may be in the system's memory only, called clean after a failed fsync);
// then starts a new segment with a later generation, or goes on in the last one: when that is empty and no other file
// can have what would follow it (as a clean close leaves the log: nothing is written then), and when the disk has no
// room for another. The segment oldest_gen must exist (else REMIXDB_CORRUPT) unless `fresh` says that the store is new
// (then generation oldest_gen is made, and synced with the directory, before return). last_seq: the store's last number
// when oldest_gen began; records replayed follow it without a gap (L1). Segments of older generations become spares.
// REMIXDB_CORRUPT, REMIXDB_VERSION, REMIXDB_IO, REMIXDB_NOMEM, REMIXDB_NOSPACE. Nothing is written before replay has
// succeeded.
MUST_CHECK enum remixdb_status wal_open(const struct wal_opts *o, uint64_t oldest_gen, uint64_t last_seq, bool fresh,
                                        wal_replay_fn replay, void *arg, struct wal_recovery *rec_out,
                                        struct wal **out);
// Writes out and syncs what is buffered and marks it (wal_mark), removes the files that are kept for later and the room
// that is not used but for two times WAL_REST, closes the files. When read_only or after an error nothing is written.
// Frees w in any case.
MUST_CHECK enum remixdb_status wal_close(struct wal *w);

// ---- appending. wal_begin .. wal_end brackets what must be in one frame; between them the log's lock is held, so
// nothing there may block or fail. Makes room for nbytes of records (bytes on disk and in a buffer, waiting for a
// buffer to be written when all are full) and takes the lock. *gen_out: the active segment's generation. On failure
// (REMIXDB_NOSPACE, REMIXDB_NOMEM, REMIXDB_TOOBIG above 1 GB, REMIXDB_READONLY, the sticky error) the lock is not held.
MUST_CHECK enum remixdb_status wal_begin(struct wal *w, size_t nbytes, uint64_t *gen_out);
// The same for records that are to be taken when the disk is full: they may use what room wal_begin leaves in the
// segment (a WAL_KEEP_PART of a step).
MUST_CHECK enum remixdb_status wal_begin_last(struct wal *w, size_t nbytes, uint64_t *gen_out);
// Appends a record (see kv.h) and returns its sequence number. val is ignored for a tombstone.
uint64_t wal_put(struct wal *w, struct kref key, const void *val, uint32_t vlen, bool tomb);
// Gives the lock back; then writes out what this call made full. A write error becomes sticky and is reported by the
// next call.
void wal_end(struct wal *w);

// Group commit: returns when all that was appended (by any thread) before the call is durable, the active segment's
// header included: a version may name its generation afterwards. Blocks for the disk. REMIXDB_NOSPACE (where space
// cannot be reserved) loses nothing: try again.
MUST_CHECK enum remixdb_status wal_sync(struct wal *w);
// The last sequence number known to be durable. Relaxed.
uint64_t wal_durable_seq(const struct wal *w);
// Writes out what is buffered without syncing it (so that it survives the process, not the machine).
MUST_CHECK enum remixdb_status wal_flush(struct wal *w);

// Puts a watermark (L3) at what is durable now: damage to what was synced last is then found, and is not taken for a
// torn tail. Costs a write of 24 bytes and an fsync, two of each the first time in a segment, nothing when there is
// nothing new to say: for moments of rest. A failure is one of a sync (L6), but for REMIXDB_NOMEM, and for a full disk,
// which is none. Blocks for the disk.
MUST_CHECK enum remixdb_status wal_mark(struct wal *w);

// ---- segments
// Has the file of the next segment ready (a recycled one, or new, its name durable), with as much room on disk as the
// active one has by now if there is so much within the limit, and the active one's header durable. Blocks for the disk;
// the log's lock is not held meanwhile. REMIXDB_NOSPACE, REMIXDB_NOMEM, REMIXDB_IO.
MUST_CHECK enum remixdb_status wal_prepare(struct wal *w);
// What who appends, or switches, would have to wait for: room on disk in the active segment, and the next one's file
// when the active one's header is durable. After the first switch no file is made for it while there are older
// segments: one of them will serve, so that a log has two files. Blocks for the disk. What fails is tried again, and
// reported, when it is needed.
void wal_ahead(struct wal *w);
// Whether that would do something: a guess. Relaxed.
bool wal_ahead_pending(const struct wal *w);
// Makes the next segment the active one (preparing it when it is not). fn(arg, new_gen) is called under the log's lock
// at the moment of the switch: what is appended before belongs to the old generation, all after to the new one (fn may
// be NULL). On failure nothing has changed and fn is not called.
MUST_CHECK enum remixdb_status wal_switch(struct wal *w, void (*fn)(void *arg, uint64_t new_gen), void *arg);
uint64_t wal_gen(const struct wal *w);            // active generation, relaxed
uint64_t wal_segment_bytes(const struct wal *w);  // appended to the active segment, relaxed
bool wal_holds(const struct wal *w);  // whether any record, or segment, is before what is appended next. Relaxed
// Whether the active segment is to be followed by another before more is appended, so that the log keeps its limit:
// with `more` bytes to come (0: one record). A segment that has next to nothing takes any batch. last: into what is
// left for the last records. Relaxed; never without a limit.
bool wal_full(const struct wal *w, size_t more, bool last);
// Segments of generation < gen are not needed any more (a durable version file says so): up to two are kept for
// recycling (one, when there is a limit), others are removed. The active one is always kept. Syncs first when the
// active segment's header is not durable yet.
MUST_CHECK enum remixdb_status wal_release(struct wal *w, uint64_t gen);
// Removes the files that are kept for recycling, the next segment's too: for when room counts more than time.
// REMIXDB_IO.
MUST_CHECK enum remixdb_status wal_shed(struct wal *w);

// While `on` is set the log grows for wal_begin_last only: to wal_begin a segment whose room is used up is a full disk.
// Any thread.
void wal_scarce(struct wal *w, bool on);
// Gives back what the log has on disk and does not need at once: spares, and all but WAL_FIRST of the next segment, and
// of what is left in the active one. Whether there was any. Any thread; blocks for the disk. A failure gives back less.
bool wal_yield(struct wal *w);

// Reads again, and checks, what is known to be durable of every segment; a segment that is recycled meanwhile is left
// out. Reads files while others append: any thread. fn (may be NULL) is called for each record. The records, frames,
// segments and bytes that were read are added to *seen (may be NULL). REMIXDB_CORRUPT, REMIXDB_IO, REMIXDB_NOMEM, or
// what fn returned.
MUST_CHECK enum remixdb_status wal_verify(struct wal *w, wal_replay_fn fn, void *arg, struct wal_recovery *seen);

// What a log has lost at one place, as far as that is known.
struct wal_loss {
  const char *path;     // of the file; of the log's directory where no file has the segment. Holds during the call
  bool missing;         // no file has the segment
  bool torn;            // nothing says that it was durable: a crash may leave that, and an opening cuts it
  uint64_t gen;         // of the segment; 0: not known
  uint64_t off, bytes;  // what is passed over in the file; bytes 0: not known how much
  uint64_t first_seq, last_seq;  // sequence numbers of the lost records. first_seq 0: not known; last_seq below
                                 // first_seq: not known whether there was any
  bool more;                     // last_seq is the least that it can be
};
#define WAL_LOSS_TEXT 160u  // bytes of its description, the end included
// "3 records are lost, sequence numbers 5 to 7", "at least ...": into buf of WAL_LOSS_TEXT bytes, which is returned.
const char *wal_loss_text(const struct wal_loss *l, char *buf, size_t cap);

// What can still be read of a damaged log.
struct wal_salvage {
  uint64_t nr_records, nr_segments;
  uint64_t lost_bytes;  // of losses, as far as known
  uint64_t gen;         // of the segment that is being read, and at last the newest one's; 0: there is none
  uint64_t base_seq;    // the last sequence number before that segment
};
struct wal_salvage_to {
  wal_replay_fn record;
  void (*lost)(void *arg, const struct wal_loss *l);  // in order; NULL: nobody asks
  void *arg;
};
// Gives every record of every whole frame to `to`, in order, of the segments from generation oldest_gen on, the one
// that begins after last_seq (0: all that the newest header leads back to; what lies before is not missed). What is
// broken is passed over and told, as is a torn tail; what a recovery has cut is passed over. A segment whose header is
// broken is known by its frames. The log must not be open. Nothing is written. REMIXDB_IO: something could not be read,
// but all that could be was given. REMIXDB_NOMEM, REMIXDB_VERSION, or what to->record returns.
MUST_CHECK enum remixdb_status wal_read_damaged(const struct wal_opts *o, uint64_t oldest_gen, uint64_t last_seq,
                                                const struct wal_salvage_to *to, struct wal_salvage *out);
// The store's id as the headers of the log say. REMIXDB_NOTFOUND: there is no whole one. REMIXDB_NOMEM, REMIXDB_IO.
MUST_CHECK enum remixdb_status wal_store_id(const struct env_dir *dir, uint64_t *id_out);

struct wal_stats {
  uint64_t bytes, frames, syncs, records, segments, spare_segments, buffer_bytes;
};
void wal_stats(struct wal *w, struct wal_stats *out);
#endif
