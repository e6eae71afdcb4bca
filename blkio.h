// SPDX-License-Identifier: Apache-2.0
//
// Block I/O: batched reads and asynchronous sequential writes over one of three engines, chosen at run time: io_uring
// (liburing), POSIX AIO, plain pread/pwrite. A ring that cannot be created, for whatever reason (ENOSYS, EPERM,
// EOPNOTSUPP, ENOMEM, EMFILE, ...), is not an error: the next engine serves, and blkio_engine says which. On an env
// that is not native every transfer goes through the env's table.
//
// A `blkio` is the store's choice of engine; all threads share it. A `lane` (private) is what has transfers in flight:
// a ring, or a list of AIO requests, with the memory of BLKIO_READS_MAX reads. A lane of the io_uring engine holds one
// descriptor. A `blkio_queue` is how a caller gets at a lane:
//   - The shared queue serves any number of threads. Each batch of reads takes a lane of the store's pool with its
//   first read, and gives it back at its end.
//     Refs and iterators use it: they hold no lane, no descriptor and no memory between two batches.
//   - A queue of its own (blkio_queue_create) serves one thread at a time, and keeps its lane until it is destroyed.
//   Workers have one each: their writers
//     have transfers in flight beside their reads.
//
// Invariants
//   B1  A slot of the pool is empty, or has an idle lane, or is taken. One thread at a time has a taken lane, and no
//   other touches it. Taking is a
//       compare-exchange (acquire), giving back is a store (release), so that all that one thread has done with a lane
//       is seen by the next.
//   B2  An idle lane has nothing queued and nothing in flight. Buffers of a read belong to the kernel until its
//   completion has been taken, so a lane is given back
//       after the last of them.
//   B3  The pool makes at most `lanes_max` lanes. A lane is made by the first batch that needs one and finds none idle.
//   B4  Nobody waits for a lane. A batch that gets none, since all are taken or none can be made, reads one by one in
//   its own thread, with plain
//       calls: it is slower, and it ends without any other thread's doing. So a batch may stay open for long, even
//       between calls of the store's user.
//   B5  A lane whose ring was refused, or failed in use, never goes back into the pool. The next one is tried for after
//   BLKIO_RETRY_NS, and `trouble` hears
//       of the first such failure of the store, and of no other.
//   B6  A read that is done without a batch (blkio_read_one), or is the only one of its batch, takes no lane.
//   B7  A child made by fork uses none of it: a ring belongs to the process that made it.
#ifndef BLKIO_H
#define BLKIO_H

#include "base/env.h"

#define BLKIO_ALIGN 4096     // of offsets, sizes and addresses under direct I/O
#define BLKIO_BATCH_MAX 64   // reads that a read-ahead asks for at once
#define BLKIO_READS_MAX 128  // reads in flight in a queue: disks that serve many at once reach their best near it

enum blkio_kind { BLKIO_AUTO, BLKIO_URING, BLKIO_AIO, BLKIO_SYNC };

#define BLKIO_LANES_MAX 32     // of the pool: what all readers together have at a time
#define BLKIO_DESCRIPTORS 128  // descriptors of the process for one lane: where it may have few there are fewer lanes
#define BLKIO_RETRY_NS 1000000000ull

struct blkio_lane;
struct blkio_queue {  // private
  struct blkio *io;
  struct blkio_lane *lane;  // its own; NULL: not made so far, or never (shared)
  bool shared;
};

struct blkio {
  struct env *env;
  enum blkio_kind kind;  // never BLKIO_AUTO after init
  int refused;  // errno for which io_uring was not chosen, though it was wanted; 0: it was chosen, or not wanted
  uint32_t lanes_max;
  struct blkio_queue shared;
  void (*trouble)(void *arg, int errnum);  // NULL: nobody wants to know
  void *trouble_arg;
  char pad[CACHE_LINE];  // keeps the counters' traffic off the lines above, which every read loads
  _Atomic uint64_t nr_reads, read_bytes, nr_writes, write_bytes;             // relaxed, for stats
  _Alignas(CACHE_LINE) _Atomic(struct blkio_lane *) lanes[BLKIO_LANES_MAX];  // B1
  _Atomic uint64_t retry_ns;                                                 // no lane is made before; relaxed
  _Atomic bool troubled;                                                     // it has been said
};

// "auto", "uring", "aio", "sync", NULL = auto. REMIXDB_INVALID for another word.
MUST_CHECK enum remixdb_status blkio_parse(const char *name, enum blkio_kind *out);
// Tries the wanted engine once (uring, then aio, then sync) and keeps what works. Cannot fail. The pool is empty.
void blkio_init(struct blkio *b, struct env *env, enum blkio_kind want);
// Bounds the pool by what the process may have (`descriptors`), and sets who is told, once, that a lane cannot be had:
// trouble(arg, errnum), in any thread, possibly inside an epoch. Before the first batch.
void blkio_pool(struct blkio *b, uint64_t descriptors, void (*trouble)(void *arg, int errnum), void *arg);
// Frees the pool. No batch is open, and queues of their own are destroyed.
void blkio_fini(struct blkio *b);
const char *blkio_engine(const struct blkio *b);  // "uring", "aio", "sync"

// Lanes of the pool that are there, idle or taken. Any thread.
uint32_t blkio_lanes(struct blkio *b);

// The queue of all threads, for batches of reads only. It lives as long as b.
static inline struct blkio_queue *blkio_shared(struct blkio *b) { return &b->shared; }
// A queue for one thread at a time. REMIXDB_NOMEM. Its lane is made when it is first used; while it cannot be had the
// queue works through pread and pwrite.
MUST_CHECK enum remixdb_status blkio_queue_create(struct blkio *b, struct blkio_queue **out);
void blkio_queue_destroy(struct blkio_queue *q);  // NULL is allowed; nothing may be in flight

struct blkio_read {
  int fd;
  const char *path;  // for messages; valid during the call
  void *buf;
  uint32_t len;
  uint64_t off;
  enum remixdb_status status;  // out: of this read. A file that ends first is REMIXDB_CORRUPT
};
// Reads them all, at most BLKIO_READS_MAX at a time in flight, and waits. Returns OK, or the status of the first that
// failed (its message is set).
MUST_CHECK enum remixdb_status blkio_read_batch(struct blkio_queue *q, struct blkio_read *reads, uint32_t nr);
// Reads that are started as they are found, and waited for together, so that a thread has work of its own while they
// are on their way. done(arg, read) is called in this thread for each that has ended, in any order, by the two calls
// below; when read->status is not OK its message is the thread's. It must not use the queue.
typedef void (*blkio_done_fn)(void *arg, struct blkio_read *read);
struct blkio_batch {  // the caller's memory
  struct blkio_queue *q;
  struct blkio_lane *lane;  // NULL: not taken so far, or none was to be had
  struct blkio_read *reads;
  uint32_t nr;    // added so far
  uint32_t next;  // private, as are the following: the first that is not started,
  uint32_t left;  // and how many have not ended
  blkio_done_fn done;
  void *arg;
  struct err_saved first;
  const struct blkio_read *first_read;
};
// reads: all there will be, none of them looked at yet. done may be NULL. Until blkio_batch_end a queue of one's own
// serves no other batch. Takes no lane.
void blkio_batch_begin(struct blkio_batch *b, struct blkio_queue *q, struct blkio_read *reads, blkio_done_fn done,
                       void *arg);
// Adds the next nr of the reads. Waits for nothing, but without a lane, when they are read here.
void blkio_batch_add(struct blkio_batch *b, uint32_t nr);
// Waits for all of them. Returns OK, or the status of the first that failed (its message is set).
MUST_CHECK enum remixdb_status blkio_batch_end(struct blkio_batch *b);
// One read in the calling thread, by pread: a ring saves nothing for one. Any thread.
MUST_CHECK enum remixdb_status blkio_read_one(struct blkio *b, int fd, const char *path, void *buf, uint32_t len,
                                              uint64_t off);

// ---- a file written once from front to back, through a ring of large aligned buffers: while one fills, others are on
// their way. Sticky: after the first error later calls do nothing, and finish returns it. The file's descriptor is the
// caller's.
struct blkio_writer;
#if !defined(BLKIO_WRITER_BUF)  // a build that fuzzes makes it small
#define BLKIO_WRITER_BUF (512u << 10)
#endif
#define BLKIO_WRITER_NR 4
// reusable for one file after the other; q is not the shared one
MUST_CHECK enum remixdb_status blkio_writer_create(struct blkio_queue *q, struct blkio_writer **out);
void blkio_writer_destroy(struct blkio_writer *w);  // waits for what is in flight; NULL is allowed
// Starts a file at offset 0. direct: fd was opened with ENV_DIRECT; the tail is then padded to BLKIO_ALIGN and cut by
// truncate at finish.
void blkio_writer_start(struct blkio_writer *w, int fd, const char *path, bool direct);  // path is copied
void blkio_writer_put(struct blkio_writer *w, const void *p, size_t len);
uint64_t blkio_writer_offset(const struct blkio_writer *w);  // bytes put so far
bool blkio_writer_failed(const struct blkio_writer *w);      // an error has been seen; others may be on their way
// Waits for all writes; syncs the file (all of it) when sync is set.
MUST_CHECK enum remixdb_status blkio_writer_finish(struct blkio_writer *w, bool sync);

// For tests: when not 0, the creation of rings and every later use of them fails with this errno.
extern _Atomic int blkio_test_ring_errno;
#endif
