// SPDX-License-Identifier: Apache-2.0
//
// Block I/O: batched reads, and asynchronous sequential writes. One of three engines does the transfers: io_uring
// (liburing), POSIX AIO, or plain pread and pwrite. blkio_init tries them in this order. A ring that cannot be created
// (ENOSYS, EPERM, EOPNOTSUPP, ENOMEM, EMFILE, ...) is no error: the next engine serves, and blkio_engine names it. If
// the env is not native (base/env.h), every transfer is a call of its env_ops.
//
// A `blkio` holds a store's engine, its pool of lanes and its counters. All threads share it.
// A `lane` (private) is where transfers run: a ring or a list of AIO requests, with memory for BLKIO_READS_MAX reads.
// The plain engine has no lanes. A lane of io_uring holds one descriptor. A flow's lane has memory for as many reads as
// the flow wants.
// A `blkio_queue` finds the lane for a thread's transfers:
//   - The shared queue serves all threads. A batch of reads takes a lane of the store's pool with its first read, and
//     gives it back at its end. Refs and iterators use this queue, so they hold nothing between two batches.
//   - A private queue (blkio_queue_create) serves one thread at a time and keeps its lane. Each worker has one,
//     because its writer and its flights have transfers under way beside its batches.
// A `blkio_flow` has a private lane for reads that stay in flight between calls of the user. Each object of
// asynchronous gets has one.
//
// Invariants
//   B1  A slot of the pool is empty, has an idle lane, or is taken. Only the thread that has taken a lane touches it.
//       A thread takes a lane with a compare-exchange (acquire). It gives the lane back with a store (release). So the
//       next thread sees all that the last one did with the lane.
//   B2  An idle lane has nothing queued and nothing in flight. The kernel may write to a read's buffer until a thread
//       has taken the completion. So a batch gives its lane back after the last completion.
//   B3  The pool has at most `lanes_max` lanes. A batch that finds no idle lane makes one if the pool has fewer.
//   B4  Nobody waits for a lane. A batch without a lane reads one by one, in its own thread, with plain calls, and
//       depends on no other thread. So an open batch blocks nobody, even if it stays open between calls of the user.
//       If reads come from the disk through the page cache, such a batch first tells the system of all these, and reads
//       at its end. The disk then works on all of them at once. POSIX AIO gives the shared queue a lane for direct I/O
//       only: glibc has threads for that, and does the transfers of a file one after the other.
//   B5  A lane whose ring was refused, or has failed, never returns to the pool. BLKIO_RETRY_NS pass before the next
//       ring is tried. blkio calls `trouble` once per store: when a lane cannot be made, or is lost, for the first
//       time.
//   B6  blkio_read_one, and blkio_read_batch with one read, take no lane.
//   B7  A child made by fork must not use a blkio: a ring belongs to the process that made it.
//   B8  A flow of io_uring does not use a read's descriptor after blkio_flow_submit: the kernel holds the file itself.
//       So what is in flight between two calls keeps no descriptor that others may wait for.
#ifndef BLKIO_H
#define BLKIO_H

#include "base/env.h"

#define BLKIO_ALIGN 4096     // direct I/O needs offsets, sizes and addresses that are multiples of this
#define BLKIO_BATCH_MAX 64   // reads that readahead asks for at once
#define BLKIO_READS_MAX 128  // reads in flight in a lane: enough for disks that serve many at once
#define BLKIO_TURN 2u        // reads that a batch hands to io_uring at a time while reads come from the disk

enum blkio_kind { BLKIO_AUTO, BLKIO_URING, BLKIO_AIO, BLKIO_SYNC };

#define BLKIO_LANES_MAX 32     // lanes in a store's pool, at most
#define BLKIO_DESCRIPTORS 128  // with io_uring the pool has one lane per this many descriptors of the process, or one
#define BLKIO_RETRY_NS 1000000000ull
#define BLKIO_DISK_NS 10000u  // no disk answers faster; a copy from the system's page cache takes about 1 us a page
#define BLKIO_COLD 16u        // 256ths: a smaller share of reads from the disk is not worth any care

struct blkio_lane;
struct blkio_queue {  // private
  struct blkio *io;
  struct blkio_lane *lane;  // NULL for the shared queue, and for a private queue before its first use
  bool shared;
};

struct blkio {
  struct env *env;
  enum blkio_kind kind;  // never BLKIO_AUTO after init
  int refused;           // errno with which io_uring was refused; 0: it was not refused, or not tried
  uint32_t lanes_max;
  struct blkio_queue shared;
  bool direct;        // readers' files bypass the page cache; set after blkio_init
  _Atomic bool past;  // blkio_past; relaxed
  uint64_t disk_ns;   // a wait of this length for at most 16 KiB comes from the disk; BLKIO_DISK_NS, except in tests
  void (*trouble)(void *arg, int errnum);  // NULL: nobody wants to know
  void *trouble_arg;
  char pad[CACHE_LINE];  // separates the counters from the fields above in cache lines, because every read loads those
  _Atomic uint64_t nr_reads, read_bytes, nr_writes, write_bytes;  // relaxed, for figures
  _Atomic uint64_t past_bytes;  // those of write_bytes that went past the page cache; relaxed
  // Trips: how often a thread waited for reads. A batch is one trip; without a lane each of its reads is one. The reads
  // that a flow hands over together are one. Relaxed.
  _Atomic uint64_t nr_trips;
  _Atomic uint64_t nr_turns;  // how often io_uring took transfers; relaxed
  _Atomic uint32_t cold;      // blkio_cold; relaxed
  _Alignas(CACHE_LINE) _Atomic(struct blkio_lane *) lanes[BLKIO_LANES_MAX];  // B1
  _Atomic uint64_t retry_ns;  // no lane is made before this time (time_ns); relaxed
  _Atomic bool troubled;      // `trouble` was called
};

// Accepts "auto", "uring", "aio", "sync"; NULL means "auto". Fails with REMIXDB_INVALID for another word.
MUST_CHECK enum remixdb_status blkio_parse(const char *name, enum blkio_kind *out);
// Tries the wanted engine and then the simpler ones, and keeps the first that works. Cannot fail. The pool is empty.
void blkio_init(struct blkio *b, struct env *env, enum blkio_kind want);
// Bounds the pool by the number of descriptors that the process may have. Sets `trouble`, which blkio calls once when a
// lane cannot be made or is lost: trouble(arg, errnum), in any thread, possibly inside an epoch. Call blkio_pool before
// the first batch.
void blkio_pool(struct blkio *b, uint64_t descriptors, void (*trouble)(void *arg, int errnum), void *arg);
// Frees the pool. No batch may be open, and all private queues must be destroyed.
void blkio_fini(struct blkio *b);
const char *blkio_engine(const struct blkio *b);  // "uring", "aio", "sync"

// Whether reads come from the disk, and not only from the system's page cache: at least one in BLKIO_COLD of the last
// ones did. It is a guess from the times of some reads. If it is so, a reader should ask at once for all that it needs.
static inline bool blkio_cold(const struct blkio *b) {
  return atomic_load_explicit(&b->cold, memory_order_relaxed) >= BLKIO_COLD;
}

// Whether rounds read and write past the page cache, a few pieces at a time. Otherwise their writes wait in the page
// cache until the system, or a sync, gives many megabytes to the disk at once, and a read of the disk waits behind
// these. And the pages that rounds read and write take the place of pages that readers use.
static inline bool blkio_past(const struct blkio *b) {
  return b->direct || atomic_load_explicit(&b->past, memory_order_relaxed);
}
static inline void blkio_set_past(struct blkio *b, bool past) {
  atomic_store_explicit(&b->past, past, memory_order_relaxed);
}

// Returns how many lanes the pool has, idle or taken. Any thread.
uint32_t blkio_lanes(struct blkio *b);

// Returns the shared queue, which any thread may use, for batches of reads only. It lives as long as b.
static inline struct blkio_queue *blkio_shared(struct blkio *b) { return &b->shared; }
// Makes a private queue. Fails with REMIXDB_NOMEM. The first use makes its lane; while that fails, the queue works with
// pread and pwrite.
MUST_CHECK enum remixdb_status blkio_queue_create(struct blkio *b, struct blkio_queue **out);
void blkio_queue_destroy(struct blkio_queue *q);  // NULL is allowed; nothing may be in flight

// ---- reads

struct blkio_read {
  // fd, path and buf stay valid until the read has ended.
  int fd;
  const char *path;  // for messages
  void *buf;
  uint32_t len;
  bool past;  // fd bypasses the page cache: the system is not asked to bring the bytes there
  uint64_t off;
  enum remixdb_status status;  // out; REMIXDB_CORRUPT: the file ends before off + len
};
// Does all the reads and waits. Returns OK, or the status and message of the failed read with the lowest index.
MUST_CHECK enum remixdb_status blkio_read_batch(struct blkio_queue *q, struct blkio_read *reads, uint32_t nr);

// A batch starts reads as the caller finds them, and waits for them together at the end. The caller works meanwhile.
// blkio_batch_add and blkio_batch_end call done(arg, read) in this thread for each read that has ended, in any order.
// If read->status is not OK, the thread's message describes this read's error during `done`. `done` must not use the
// queue.
typedef void (*blkio_done_fn)(void *arg, struct blkio_read *read);
struct blkio_batch {  // the caller's memory
  struct blkio_queue *q;
  struct blkio_lane *lane;  // NULL: not taken so far, or none could be had
  struct blkio_read *reads;
  uint32_t nr;  // added so far
  // private below
  uint32_t next;                   // the first that is not started
  uint32_t left;                   // how many have not ended
  uint32_t through, through_left;  // reads through the page cache: how many there are, and how many have not ended
  bool advised;                    // without a lane: the system was told of them, and the end reads them,
  bool probes;                     // but it was not told of the first one
  blkio_done_fn done;
  void *arg;
  struct err_saved first;
  const struct blkio_read *first_read;
};
// `reads` has room for all reads of the batch; this call does not look into it. `done` may be NULL. A private queue
// serves no other batch until blkio_batch_end. Takes no lane.
void blkio_batch_begin(struct blkio_batch *b, struct blkio_queue *q, struct blkio_read *reads, blkio_done_fn done,
                       void *arg);
// Takes a lane for the reads that the caller will add. False: none is to be had. Then the batch reads one by one if its
// reads bypass the page cache (B4).
MUST_CHECK bool blkio_batch_lane(struct blkio_batch *b);
// Adds the next nr reads and starts them. Does not wait for them. An exception is a read that no lane or engine takes:
// this call does it with pread, or leaves it to the end (B4).
void blkio_batch_add(struct blkio_batch *b, uint32_t nr);
// Waits for all reads. Returns OK, or the status and message of the failed read with the lowest index.
MUST_CHECK enum remixdb_status blkio_batch_end(struct blkio_batch *b);
// Does one read with pread in the calling thread: a ring gains nothing for one. Any thread.
MUST_CHECK enum remixdb_status blkio_read_one(struct blkio *b, int fd, const char *path, void *buf, uint32_t len,
                                              uint64_t off);

// Does one read as blkio_read_one does, but blkio_cold does not learn from it. Workers read so: their reads do not tell
// where readers' blocks come from.
MUST_CHECK enum remixdb_status blkio_read_aside(struct blkio *b, int fd, const char *path, void *buf, uint32_t len,
                                                uint64_t off);

// ---- flights
//
// A flight is one large read that goes on while its thread works on something else: a reader that passes through a file
// has the next part in flight while it uses the current one. A queue may have several flights open, beside a batch and
// a writer. On a private queue the engine reads into the buffer, also under direct I/O. A shared queue gives no lane
// away for so long, and plain calls have none. There blkio_flight_end reads, and the system's own readahead is all that
// goes on meanwhile.
struct blkio_flight;
// Whether flights of this queue go on while the thread works.
static inline bool blkio_queue_flies(const struct blkio_queue *q) { return !q->shared && q->io->kind != BLKIO_SYNC; }
// Fails with REMIXDB_NOMEM. The flight lives no longer than q.
MUST_CHECK enum remixdb_status blkio_flight_create(struct blkio_queue *q, struct blkio_flight **out);
void blkio_flight_destroy(struct blkio_flight *f);  // waits for the read; NULL is allowed
// Starts the read. No other is open. Until blkio_flight_end the descriptor, the path and the buffer stay valid, and
// nobody uses the buffer. Does not wait.
void blkio_flight_start(struct blkio_flight *f, const struct blkio_read *r);
bool blkio_flight_is_open(const struct blkio_flight *f);
// Waits for the read, which is open. Fails with REMIXDB_CORRUPT if the file ends first.
MUST_CHECK enum remixdb_status blkio_flight_end(struct blkio_flight *f);
// Ends the flight when nobody needs the bytes. A read that is not under way is not done.
void blkio_flight_drop(struct blkio_flight *f);

// ---- a flow: reads that begin and end one by one, over many calls. One thread at a time.
#define BLKIO_FLOW_MAX 1024u  // reads in flight, at most
struct blkio_flow;
// depth: reads that may be in flight; the flow has fewer if the engine takes fewer. Makes its lane now or never:
// without one it takes no reads. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status blkio_flow_create(struct blkio *b, uint32_t depth, struct blkio_flow **out);
void blkio_flow_destroy(struct blkio_flow *f);  // waits for the reads in flight; NULL is allowed
// Whether reads may stay in flight between two calls: io_uring serves. Otherwise the owner takes all of them before it
// returns to the user. May become false, never true.
bool blkio_flow_lasts(const struct blkio_flow *f);
// Whether it takes reads at all: it has a lane that works. May become false, never true.
bool blkio_flow_works(const struct blkio_flow *f);
// Whether it takes another read now.
bool blkio_flow_has_room(const struct blkio_flow *f);
// Takes a read over, until blkio_flow_take returns it. The flow has room.
void blkio_flow_add(struct blkio_flow *f, struct blkio_read *r);
// Hands the reads that were added to the system. Does not wait. With io_uring their descriptors may then be closed;
// with AIO they stay open until blkio_flow_take.
void blkio_flow_submit(struct blkio_flow *f);
// A read that has ended; NULL: none. wait: sleeps until there is one, if any is in flight. Status REMIXDB_OK, or
// REMIXDB_ABORTED: the engine did not read all of it, and a plain call must read it and find out why.
struct blkio_read *blkio_flow_take(struct blkio_flow *f, bool wait);
// A descriptor that poll and epoll find readable from the end of a read, or blkio_flow_ring_bell, until
// blkio_flow_clear_bell. The flow owns it, and makes it at the first call. REMIXDB_NOMEM; REMIXDB_INVALID: the system
// has no eventfd.
MUST_CHECK enum remixdb_status blkio_flow_bell(struct blkio_flow *f, int *fd_out);
// Both do nothing while there is no descriptor.
void blkio_flow_ring_bell(struct blkio_flow *f);
void blkio_flow_clear_bell(struct blkio_flow *f);

// ---- the writer: writes a file once, from front to back, through a few large aligned buffers. While one fills, the
// others are in flight. After an error, put writes nothing more of this file, and finish returns the error that
// occurred first. blkio_writer_start begins anew. The caller owns the descriptor.
struct blkio_writer;
#if !defined(BLKIO_WRITER_BUF)  // fuzzing builds make it small
#define BLKIO_WRITER_BUF (512u << 10)
#endif
#define BLKIO_WRITER_NR 4
// Past the page cache the disk gets each buffer as it is, so fewer and smaller ones are in flight: a read of the disk
// waits behind all of them.
#if !defined(BLKIO_DIRECT_BUF)  // the same
#define BLKIO_DIRECT_BUF (256u << 10)
#endif
#define BLKIO_DIRECT_NR 2
// A writer serves one file after the other. q must not be the shared queue. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status blkio_writer_create(struct blkio_queue *q, struct blkio_writer **out);
void blkio_writer_destroy(struct blkio_writer *w);  // waits for writes in flight; NULL is allowed
// Starts a file at offset 0. Copies path. direct: fd was opened with ENV_DIRECT; finish then pads the tail to
// BLKIO_ALIGN and truncates the file to the number of bytes put.
void blkio_writer_start(struct blkio_writer *w, int fd, const char *path, bool direct);
// Starts a part of a file. The writer calls place(arg, len, all) once, before its first write: `len` bytes were put so
// far, and these are all if `all` is set. The call returns the offset of the part, which suits direct I/O if the file
// needs it. direct: as above; finish pads the tail, so the place has room for whole pages. It never truncates.
typedef uint64_t (*blkio_place_fn)(void *arg, uint64_t len, bool all);
void blkio_writer_start_part(struct blkio_writer *w, int fd, const char *path, bool direct, blkio_place_fn place,
                             void *arg);
// Starts a file that is open only while the writer writes to it, for a caller that must not keep a descriptor between
// two calls. open(arg, &fd) gives the descriptor, and shut(arg, fd) takes it back, within blkio_writer_put and
// blkio_writer_finish. The bytes are synced before the file is shut: a file that nobody has open may lose the error of
// a write. The writer writes in the calling thread then.
struct blkio_door {
  enum remixdb_status (*open)(void *arg, int *fd_out);
  enum remixdb_status (*shut)(void *arg, int fd);
  void *arg;
};
void blkio_writer_start_ajar(struct blkio_writer *w, const char *path, bool direct, const struct blkio_door *door);
void blkio_writer_put(struct blkio_writer *w, const void *p, size_t len);
uint64_t blkio_writer_offset(const struct blkio_writer *w);  // bytes put so far
bool blkio_writer_failed(const struct blkio_writer *w);      // has met an error; writes in flight may still fail
// Writes the rest of the buffer and waits for all writes. sync: then syncs the whole file.
MUST_CHECK enum remixdb_status blkio_writer_finish(struct blkio_writer *w, bool sync);

// For tests: blkio_batch_lane says that there is a lane, also on a disk that is not the kernel's. Relaxed.
extern _Atomic bool blkio_test_lane;
// For tests: if not 0, each attempt to create or use a ring fails with this errno.
extern _Atomic int blkio_test_ring_errno;
// For tests. 0: a blkio learns from the times of reads whether it is cold. 1: a blkio that is made from now on is never
// cold. 2: it is always cold.
extern _Atomic int blkio_test_cold;
#endif
