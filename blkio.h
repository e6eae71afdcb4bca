// SPDX-License-Identifier: Apache-2.0
//
// Block I/O: batched reads and asynchronous sequential writes over one of three engines, chosen at run time: io_uring
// (liburing), POSIX AIO, plain pread/pwrite. A ring that cannot be created, for whatever reason (ENOSYS, EPERM, EOPNOTSUPP,
// ENOMEM, ...), is not an error: the next engine serves, and blkio_engine says which. On an env that is not native every
// transfer goes through the env's table.
//
// A `blkio` is the store's choice of engine, shared by all threads. A `blkio_queue` belongs to one thread (a ring of its own).
#ifndef BLKIO_H
#define BLKIO_H

#include "base/env.h"

#define BLKIO_ALIGN 4096          // of offsets, sizes and addresses under direct I/O
#define BLKIO_BATCH_MAX 64        // reads that a read-ahead asks for at once
#define BLKIO_READS_MAX 128       // reads in flight in a queue: disks that serve many at once reach their best near it

enum blkio_kind { BLKIO_AUTO, BLKIO_URING, BLKIO_AIO, BLKIO_SYNC };

struct blkio {
  struct env *env;
  enum blkio_kind kind;             // never BLKIO_AUTO after init
  char pad[CACHE_LINE];             // keeps the counters' traffic off the line above, which every read loads
  _Atomic uint64_t nr_reads, read_bytes, nr_writes, write_bytes;  // relaxed, for stats
};
struct blkio_queue;

// "auto", "uring", "aio", "sync", NULL = auto. REMIXDB_INVALID for another word.
MUST_CHECK enum remixdb_status blkio_parse(const char *name, enum blkio_kind *out);
// Tries the wanted engine once (uring, then aio, then sync) and keeps what works. Cannot fail.
void blkio_init(struct blkio *b, struct env *env, enum blkio_kind want);
const char *blkio_engine(const struct blkio *b);  // "uring", "aio", "sync"

// REMIXDB_NOMEM. When this queue's own ring cannot be had it works through pread/pwrite.
MUST_CHECK enum remixdb_status blkio_queue_create(struct blkio *b, struct blkio_queue **out);
void blkio_queue_destroy(struct blkio_queue *q);  // NULL is allowed; nothing may be in flight

struct blkio_read {
  int fd;
  const char *path;                 // for messages; valid during the call
  void *buf;
  uint32_t len;
  uint64_t off;
  enum remixdb_status status;       // out: of this read. A file that ends first is REMIXDB_CORRUPT
};
// Reads them all, at most BLKIO_READS_MAX at a time in flight, and waits. Returns OK, or the status of the first that failed
// (its message is set).
MUST_CHECK enum remixdb_status blkio_read_batch(struct blkio_queue *q, struct blkio_read *reads, uint32_t nr);
// Reads that are started as they are found, and waited for together, so that a thread has work of its own while they are on their way.
// done(arg, read) is called in this thread for each that has ended, in any order, by the two calls below; when read->status is not
// OK its message is the thread's. It must not use the queue.
typedef void (*blkio_done_fn)(void *arg, struct blkio_read *read);
struct blkio_batch {  // the caller's memory
  struct blkio_queue *q;
  struct blkio_read *reads;
  uint32_t nr;        // added so far
  uint32_t next;      // private, as are the following: the first that is not started,
  uint32_t left;      // and how many have not ended
  blkio_done_fn done;
  void *arg;
  struct err_saved first;
  const struct blkio_read *first_read;
};
// reads: all there will be, none of them looked at yet. done may be NULL. Until blkio_batch_end the queue serves nothing else.
void blkio_batch_begin(struct blkio_batch *b, struct blkio_queue *q, struct blkio_read *reads, blkio_done_fn done, void *arg);
// Adds the next nr of the reads. Waits for nothing, but with pread, which reads them here.
void blkio_batch_add(struct blkio_batch *b, uint32_t nr);
// Waits for all of them. Returns OK, or the status of the first that failed (its message is set).
MUST_CHECK enum remixdb_status blkio_batch_end(struct blkio_batch *b);
// One read in the calling thread, by pread: a ring saves nothing for one. Any thread.
MUST_CHECK enum remixdb_status blkio_read_one(struct blkio *b, int fd, const char *path, void *buf, uint32_t len, uint64_t off);

// ---- a file written once from front to back, through a ring of large aligned buffers: while one fills, others are on their way.
// Sticky: after the first error later calls do nothing, and finish returns it. The file's descriptor is the caller's.
struct blkio_writer;
#if !defined(BLKIO_WRITER_BUF)  // a build that fuzzes makes it small
#define BLKIO_WRITER_BUF (512u << 10)
#endif
#define BLKIO_WRITER_NR 4
// reusable for one file after the other
MUST_CHECK enum remixdb_status blkio_writer_create(struct blkio_queue *q, struct blkio_writer **out);
void blkio_writer_destroy(struct blkio_writer *w);  // waits for what is in flight; NULL is allowed
// Starts a file at offset 0. direct: fd was opened with ENV_DIRECT; the tail is then padded to BLKIO_ALIGN and cut by truncate
// at finish.
void blkio_writer_start(struct blkio_writer *w, int fd, const char *path, bool direct);  // path is copied
void blkio_writer_put(struct blkio_writer *w, const void *p, size_t len);
uint64_t blkio_writer_offset(const struct blkio_writer *w);  // bytes put so far
bool blkio_writer_failed(const struct blkio_writer *w);      // an error has been seen; others may be on their way
// Waits for all writes; syncs the file (all of it) when sync is set.
MUST_CHECK enum remixdb_status blkio_writer_finish(struct blkio_writer *w, bool sync);

// For tests: when not 0, the creation of rings and every later use of them fails with this errno.
extern _Atomic int blkio_test_ring_errno;
#endif
