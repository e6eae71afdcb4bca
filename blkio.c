// SPDX-License-Identifier: Apache-2.0
#include "blkio.h"

#include <aio.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>

#if defined(__linux__)
#include <sys/eventfd.h>
#include <unistd.h>
#endif
#if defined(__linux__) && !defined(REMIXDB_NO_URING)
#define BLKIO_HAS_URING 1
#include <liburing.h>
#else
#define BLKIO_HAS_URING 0
#endif

#define INFLIGHT_MAX (BLKIO_READS_MAX + 8 * BLKIO_WRITER_NR)  // in flight in a lane that is no flow's
#define RING_ENTRIES 256u                                     // the ring is never full; a flow's may have more
#define WRITER_OUT (4u << 20)                                 // bytes that the system is told to write out at a time
#define RING_TRIES 16u                                        // refusals in a row before a ring is given up
#define NAP_NS 50000u                                         // a nap after a refusal
#define READS_TIMED 8u                                        // one in this many single reads is timed,
#define READS_FIRST 64u                                       // and each of the first ones
#define BATCH_PROBE 8u   // one batch without a lane in this many waits for its first read
#define COLD_SAMPLES 8u  // the share of reads from the disk follows about so many timed reads
_Static_assert(INFLIGHT_MAX <= RING_ENTRIES, "the ring holds all that may be in flight");
_Static_assert(BLKIO_WRITER_BUF % BLKIO_ALIGN == 0 && BLKIO_DIRECT_BUF % BLKIO_ALIGN == 0,
               "writes of whole buffers are aligned");
_Static_assert(BLKIO_DIRECT_BUF <= BLKIO_WRITER_BUF && BLKIO_DIRECT_NR <= BLKIO_WRITER_NR, "the buffers serve both");

_Atomic int blkio_test_ring_errno;
_Atomic int blkio_test_cold;

// One transfer. An engine only tries it. The plain call, which has the loops and the messages, then moves the rest
// after a short count, EINTR, EAGAIN, an unknown operation or a true error.
struct blkio_op {
  struct blkio_op *next;    // in a list of the lane
  struct blkio_read *read;  // the batch's read; NULL: the transfer is a writer's or a flight's
  bool write;
  int fd;
  uint8_t *buf;
  uint32_t len;
  uint64_t off;
  ssize_t res;  // bytes moved or -errno, once done
  bool done;
  struct aiocb cb;
};

struct blkio_lane {
  struct blkio *io;
  enum blkio_kind kind;                    // BLKIO_SYNC when its ring was given up
  _Atomic(struct blkio_lane *) *slot;      // in the pool; NULL: a queue's own lane
  struct blkio_op *queued, **queued_tail;  // in the ring's order, not yet handed to the kernel
  uint32_t nr_inflight;                    // handed over and not completed
  uint32_t room;                           // most in flight; transfers beyond it are done by the plain call
  struct blkio_op *done_reads;
  struct blkio_op *free_ops;
  struct blkio_op *aio[INFLIGHT_MAX];  // AIO only: transfers in flight
  bool has_ring;
#if BLKIO_HAS_URING
  struct io_uring ring;
#endif
  struct blkio_op ops[];
};

static const char *const kind_names[] = {
    [BLKIO_AUTO] = "auto", [BLKIO_URING] = "uring", [BLKIO_AIO] = "aio", [BLKIO_SYNC] = "sync"};

enum remixdb_status blkio_parse(const char *name, enum blkio_kind *out) {
  *out = BLKIO_AUTO;
  if (!name) return REMIXDB_OK;
  for (unsigned i = 0; i < sizeof(kind_names) / sizeof(kind_names[0]); i++) {
    if (strcmp(name, kind_names[i]) != 0) continue;
    *out = (enum blkio_kind)i;
    return REMIXDB_OK;
  }
  return err_set(REMIXDB_INVALID, "I/O engine \"%.64s\": not one of auto, uring, aio, sync", name);
}

const char *blkio_engine(const struct blkio *b) { return kind_names[b->kind]; }

static void op_done(struct blkio_lane *q, struct blkio_op *op, ssize_t res) {
  op->res = res;
  op->done = true;
  if (op->read) {
    op->next = q->done_reads;
    q->done_reads = op;
  }
}

// A lane could not be made, or was lost.
static void lane_trouble(struct blkio *b, int errnum) {
  atomic_store_explicit(&b->retry_ns, time_ns() + BLKIO_RETRY_NS, memory_order_relaxed);
  if (!atomic_exchange_explicit(&b->troubled, true, memory_order_relaxed) && b->trouble)
    b->trouble(b->trouble_arg, errnum);
}

// ---- io_uring

#if BLKIO_HAS_URING

static int ring_refused(void) { return -atomic_load_explicit(&blkio_test_ring_errno, memory_order_relaxed); }

// A ring may be mapped where another thread's ring was. liburing hides the order of the two from ThreadSanitizer. This
// counter shows it: released before a ring is unmapped, acquired after a ring is mapped.
static _Atomic uint32_t ring_ends;

// Returns 0, or -errno.
static int ring_init(struct io_uring *ring, uint32_t entries) {
  CANCEL_LATER;
  int rc = ring_refused();
  if (rc == 0) rc = io_uring_queue_init(entries > RING_ENTRIES ? entries : RING_ENTRIES, ring, 0);
  (void)atomic_load_explicit(&ring_ends, memory_order_acquire);
  return rc;
}

static void ring_fini(struct io_uring *ring) {
  CANCEL_LATER;
  (void)atomic_fetch_add_explicit(&ring_ends, 1, memory_order_release);
  io_uring_queue_exit(ring);
}

// Kernels before 5.6 have rings without reads and writes. Returns 0, or -errno.
static int ring_works(void) {
  struct io_uring ring;
  const int rc = ring_init(&ring, RING_ENTRIES);
  if (rc != 0) return rc;
  struct io_uring_probe *const probe = io_uring_get_probe_ring(&ring);
  const bool works = probe != NULL && io_uring_opcode_supported(probe, IORING_OP_READ) &&
                     io_uring_opcode_supported(probe, IORING_OP_WRITE);
  if (probe) io_uring_free_probe(probe);
  ring_fini(&ring);
  return works ? 0 : -ENOSYS;
}

static bool ring_start(struct blkio_lane *q, struct blkio_op *op) {
  struct io_uring_sqe *const sqe = io_uring_get_sqe(&q->ring);
  if (!sqe) return false;
  if (op->write) io_uring_prep_write(sqe, op->fd, op->buf, op->len, op->off);
  else io_uring_prep_read(sqe, op->fd, op->buf, op->len, op->off);
  io_uring_sqe_set_data(sqe, op);
  op->next = NULL;
  *q->queued_tail = op;
  q->queued_tail = &op->next;
  return true;
}

// The kernel has taken the first nr queued transfers. res < 0: it refused them, with -errno.
static void ring_move(struct blkio_lane *q, uint32_t nr, ssize_t res) {
  for (; nr > 0 && q->queued; nr--) {
    struct blkio_op *const op = q->queued;
    q->queued = op->next;
    if (!q->queued) q->queued_tail = &q->queued;
    if (res < 0) op_done(q, op, res);
    else q->nr_inflight++;
  }
}

// Takes the completions that have arrived, and returns how many.
static uint32_t ring_reap(struct blkio_lane *q) {
  struct io_uring_cqe *cqe;
  uint32_t nr = 0;
  while (q->nr_inflight && io_uring_peek_cqe(&q->ring, &cqe) == 0) {
    struct blkio_op *const op = io_uring_cqe_get_data(cqe);
    const ssize_t res = cqe->res;
    io_uring_cqe_seen(&q->ring, cqe);
    q->nr_inflight--;
    op_done(q, op, res);
    nr++;
  }
  return nr;
}

// Submits the queued transfers. wait: sleeps until one has completed.
static void ring_drive(struct blkio_lane *q, bool wait) {
  uint32_t nr = 0;
  for (uint32_t refusals = 0; q->queued;) {
    int rc = ring_refused();
    if (rc == 0) rc = wait ? io_uring_submit_and_wait(&q->ring, 1) : io_uring_submit(&q->ring);
    if (rc > 0) {
      (void)atomic_fetch_add_explicit(&q->io->nr_turns, 1, memory_order_relaxed);
      ring_move(q, (uint32_t)rc, 0);
      refusals = 0;
      continue;
    }
    // The kernel may be short of memory, or its list of completions full. Taking completions and waiting help then. No
    // other error goes away.
    nr += ring_reap(q);
    if (++refusals < RING_TRIES && (rc == 0 || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY || rc == -ENOMEM)) {
      if (rc != -EINTR) time_sleep_ns(NAP_NS);
      continue;
    }
    // The refused transfers are still in the ring, so nothing may be submitted to it any more.
    q->kind = BLKIO_SYNC;
    ring_move(q, UINT32_MAX, rc ? rc : -EAGAIN);
    lane_trouble(q->io, rc ? -rc : EAGAIN);
    nr++;
  }
  nr += ring_reap(q);
  // Transfers in flight use our memory, so they must complete first. If the kernel refuses to wait, and no signal came,
  // this naps instead of spinning.
  while (wait && nr == 0 && q->nr_inflight) {
    struct io_uring_cqe *cqe;
    int rc = ring_refused();
    if (rc == 0) rc = io_uring_wait_cqe(&q->ring, &cqe);
    if (rc < 0 && rc != -EINTR) time_sleep_ns(NAP_NS);
    nr = ring_reap(q);
  }
}

#endif

// ---- POSIX AIO

// glibc's AIO starts threads that ThreadSanitizer does not know, which kills the program. Such builds have no AIO.
#define BLKIO_HAS_AIO (!LIB_TSAN)

static bool aio_works(void) {
  CANCEL_LATER;
  if (!BLKIO_HAS_AIO) return false;
  struct aiocb *none[1] = {NULL};  // NULL entries are ignored, but a system without AIO refuses the call
  return lio_listio(LIO_NOWAIT, none, 1, NULL) == 0;
}

// Refusals are ordinary: systems bound the transfers in flight of a process (16 on macOS).
static bool aio_start(struct blkio_lane *q, struct blkio_op *op) {
  CANCEL_LATER;
  memset(&op->cb, 0, sizeof(op->cb));
  op->cb.aio_fildes = op->fd;
  op->cb.aio_buf = op->buf;
  op->cb.aio_nbytes = op->len;
  op->cb.aio_offset = (off_t)op->off;
  op->cb.aio_sigevent.sigev_notify = SIGEV_NONE;
  if ((op->write ? aio_write(&op->cb) : aio_read(&op->cb)) != 0) return false;
  q->aio[q->nr_inflight++] = op;
  return true;
}

static uint32_t aio_reap(struct blkio_lane *q) {
  uint32_t nr = 0;
  for (uint32_t i = q->nr_inflight; i-- > 0;) {
    struct blkio_op *const op = q->aio[i];
    const int errnum = aio_error(&op->cb);
    if (errnum == EINPROGRESS) continue;
    const ssize_t res = aio_return(&op->cb);  // also after an error: it frees memory of the system
    q->aio[i] = q->aio[--q->nr_inflight];
    op_done(q, op, errnum ? -(ssize_t)errnum : res);
    nr++;
  }
  return nr;
}

static void aio_drive(struct blkio_lane *q, bool wait) {
  CANCEL_LATER;
  while (aio_reap(q) == 0 && wait && q->nr_inflight) {
    const struct aiocb *list[INFLIGHT_MAX];
    for (uint32_t i = 0; i < q->nr_inflight; i++) list[i] = &q->aio[i]->cb;
    if (aio_suspend(list, (int)q->nr_inflight, NULL) != 0 && errno != EINTR) time_sleep_ns(NAP_NS);
  }
}

// ---- lanes

void blkio_init(struct blkio *b, struct env *env, enum blkio_kind want) {
  *b = (struct blkio){.env = env, .kind = BLKIO_SYNC, .lanes_max = BLKIO_LANES_MAX, .disk_ns = BLKIO_DISK_NS};
  b->shared = (struct blkio_queue){.io = b, .shared = true};
  const int test = atomic_load_explicit(&blkio_test_cold, memory_order_relaxed);
  if (unlikely(test)) b->disk_ns = test == 1 ? UINT64_MAX : 0;
  if (unlikely(test == 2)) b->cold = 256;
  if (!env->native || want == BLKIO_SYNC) return;
#if BLKIO_HAS_URING
  if (want != BLKIO_AIO) {
    b->refused = -ring_works();
    if (b->refused == 0) {
      b->kind = BLKIO_URING;
      return;
    }
  }
#else
  b->refused = want == BLKIO_AIO ? 0 : ENOSYS;
#endif
  if (aio_works()) b->kind = BLKIO_AIO;
}

void blkio_pool(struct blkio *b, uint64_t descriptors, void (*trouble)(void *arg, int errnum), void *arg) {
  const uint64_t most = descriptors / BLKIO_DESCRIPTORS;
  b->lanes_max = b->kind != BLKIO_URING || most > BLKIO_LANES_MAX ? BLKIO_LANES_MAX : most > 0 ? (uint32_t)most : 1;
  b->trouble = trouble;
  b->trouble_arg = arg;
}

static void lane_destroy(struct blkio_lane *q) {
  if (!q) return;
  assert(!q->queued && q->nr_inflight == 0);
#if BLKIO_HAS_URING
  if (q->has_ring) ring_fini(&q->ring);
#endif
  mem_free(q);
}

// nr_ops: reads that it has memory for. Returns NULL on failure, after telling `trouble`. The thread's message stays.
static struct blkio_lane *lane_create(struct blkio *b, uint32_t nr_ops) {
  const uint64_t retry_ns = atomic_load_explicit(&b->retry_ns, memory_order_relaxed);
  if (unlikely(retry_ns != 0) && time_ns() < retry_ns) return NULL;
  err_cleanup_begin();
  struct blkio_lane *const q = mem_calloc(1, sizeof(*q) + nr_ops * sizeof(q->ops[0]));
  err_cleanup_end();
  if (!q) {
    lane_trouble(b, ENOMEM);
    return NULL;
  }
  q->io = b;
  q->kind = b->kind;
  q->queued_tail = &q->queued;
  q->room = nr_ops > INFLIGHT_MAX ? nr_ops : INFLIGHT_MAX;
  for (uint32_t i = nr_ops; i-- > 0;) {
    q->ops[i].next = q->free_ops;
    q->free_ops = &q->ops[i];
  }
#if BLKIO_HAS_URING
  if (q->kind == BLKIO_URING) {
    const int rc = ring_init(&q->ring, nr_ops);
    q->has_ring = rc == 0;
    if (rc != 0) {
      mem_free(q);
      lane_trouble(b, -rc);
      return NULL;
    }
  }
#endif
  return q;
}

// Stands in a slot while its lane is taken, or is being made.
static const struct blkio_op taken_mark;
#define TAKEN ((struct blkio_lane *)(uintptr_t)&taken_mark)

// Takes an idle lane, else makes one. Prefers low slots, so there are no more lanes than open batches.
static struct blkio_lane *lane_take(struct blkio *b) {
  for (uint32_t i = 0; i < b->lanes_max; i++) {
    struct blkio_lane *q = atomic_load_explicit(&b->lanes[i], memory_order_relaxed);
    if (!q || q == TAKEN) continue;
    // acquire: pairs with lane_give. The lane may have been taken and given back since the load; it is idle all the
    // same.
    if (atomic_compare_exchange_strong_explicit(&b->lanes[i], &q, TAKEN, memory_order_acquire, memory_order_relaxed))
      return q;
  }
  for (uint32_t i = 0; i < b->lanes_max; i++) {
    struct blkio_lane *none = NULL;
    if (!atomic_compare_exchange_strong_explicit(&b->lanes[i], &none, TAKEN, memory_order_acquire,
                                                 memory_order_relaxed))
      continue;
    struct blkio_lane *const q = lane_create(b, BLKIO_READS_MAX);
    if (q) q->slot = &b->lanes[i];
    else atomic_store_explicit(&b->lanes[i], NULL, memory_order_release);
    return q;
  }
  return NULL;
}

static void lane_give(struct blkio *b, struct blkio_lane *q) {
  _Atomic(struct blkio_lane *) *const slot = q->slot;
  assert(!q->queued && q->nr_inflight == 0 && !q->done_reads);
  const bool lost = q->kind != b->kind;
  if (unlikely(lost)) lane_destroy(q);
  atomic_store_explicit(slot, lost ? NULL : q, memory_order_release);
}

void blkio_fini(struct blkio *b) {
  for (uint32_t i = 0; i < BLKIO_LANES_MAX; i++) {
    struct blkio_lane *const q = atomic_exchange_explicit(&b->lanes[i], NULL, memory_order_acquire);
    assert(q != TAKEN);
    lane_destroy(q);
  }
}

uint32_t blkio_lanes(struct blkio *b) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < BLKIO_LANES_MAX; i++) nr += atomic_load_explicit(&b->lanes[i], memory_order_relaxed) != NULL;
  return nr;
}

// ---- queues

enum remixdb_status blkio_queue_create(struct blkio *b, struct blkio_queue **out) {
  struct blkio_queue *const q = mem_calloc(1, sizeof(*q));
  *out = q;
  if (!q) return REMIXDB_NOMEM;
  q->io = b;
  return REMIXDB_OK;
}

void blkio_queue_destroy(struct blkio_queue *q) {
  if (!q) return;
  assert(!q->shared);
  lane_destroy(q->lane);
  mem_free(q);
}

// Returns the lane for the next transfers. NULL: there is none, and plain calls serve.
static struct blkio_lane *queue_lane(struct blkio_queue *q) {
  if (q->io->kind == BLKIO_SYNC) return NULL;
  if (q->shared) return lane_take(q->io);
  if (unlikely(!q->lane)) q->lane = lane_create(q->io, BLKIO_READS_MAX);
  return q->lane;
}

// Starts the transfer. If the engine refuses it, it is done with nothing moved.
static void lane_start(struct blkio_lane *q, struct blkio_op *op) {
  bool started = false;
  op->done = false;
#if BLKIO_HAS_URING
  if (q->kind == BLKIO_URING && q->nr_inflight < q->room) started = ring_start(q, op);
#endif
  if (q->kind == BLKIO_AIO && q->nr_inflight < INFLIGHT_MAX) started = aio_start(q, op);
  if (!started) op_done(q, op, 0);
}

static void lane_drive(struct blkio_lane *q, bool wait) {
#if BLKIO_HAS_URING
  if (q->has_ring) ring_drive(q, wait);
#endif
  if (q->kind == BLKIO_AIO) aio_drive(q, wait);
}

// Returns the bytes that need not be moved again: all, or an aligned part, because direct I/O needs an aligned rest.
static uint32_t op_moved(const struct blkio_op *op) {
  if (op->res <= 0) return 0;
  return (size_t)op->res >= op->len ? op->len : (uint32_t)op->res & ~(BLKIO_ALIGN - 1u);
}

static enum remixdb_status read_finish(struct blkio *b, const struct blkio_op *op, const char *path) {
  const uint32_t moved = op_moved(op);
  if (likely(moved == op->len)) return REMIXDB_OK;
  return env_read(b->env, op->fd, path, op->buf + moved, op->len - moved, op->off + moved);
}

static void op_read(struct blkio_op *op, const struct blkio_read *r) {
  op->read = NULL;
  op->write = false;
  op->fd = r->fd;
  op->buf = r->buf;
  op->len = r->len;
  op->off = r->off;
}

// Returns how many reads there were before.
static uint64_t count_reads(struct blkio *b, uint32_t nr, uint64_t bytes) {
  (void)atomic_fetch_add_explicit(&b->read_bytes, bytes, memory_order_relaxed);
  return atomic_fetch_add_explicit(&b->nr_reads, nr, memory_order_relaxed);
}

static void count_trips(struct blkio *b, uint32_t nr) {
  (void)atomic_fetch_add_explicit(&b->nr_trips, nr, memory_order_relaxed);
}

// Learns from one wait of ns nanoseconds for len bytes. Two threads may lose each other's sample.
static void cold_learn(struct blkio *b, uint64_t ns, uint64_t len) {
  const uint32_t was = atomic_load_explicit(&b->cold, memory_order_relaxed);
  const bool disk = ns / (1 + len / (4 * BLKIO_ALIGN)) >= b->disk_ns;
  const uint32_t now = disk ? was + (256 - was) / COLD_SAMPLES : was - was / COLD_SAMPLES;
  if (now != was) atomic_store_explicit(&b->cold, now, memory_order_relaxed);
}

static void batch_ended(struct blkio_batch *b, struct blkio_read *r, enum remixdb_status s) {
  r->status = s;
  if (s != REMIXDB_OK && (!b->first_read || r < b->first_read)) {
    err_save(&b->first, s);
    b->first_read = r;
  }
  b->left--;
  b->through_left -= !r->past;
  if (b->done) b->done(b->arg, r);
}

// Starts a read; the lane has a free op.
static void op_begin(struct blkio_lane *q, struct blkio_read *r) {
  struct blkio_op *const op = q->free_ops;
  q->free_ops = op->next;
  op_read(op, r);
  op->read = r;
  lane_start(q, op);
}

// Frees the op of the first read among those that are done.
static void op_end(struct blkio_lane *q, struct blkio_op *op) {
  assert(op == q->done_reads);
  q->done_reads = op->next;
  op->next = q->free_ops;
  q->free_ops = op;
}

// Starts as many reads as there is room for, and ends those that have completed. The system gives the disk none of the
// reads that it takes together before it has prepared all of them, which is 2 us for a read through the page cache. So
// it gets a few at a time, and the disk works on these while the system prepares the next.
static void batch_drive(struct blkio_batch *b, bool wait) {
  struct blkio_lane *const q = b->lane;
  const uint32_t turn = blkio_cold(b->q->io) ? BLKIO_TURN : UINT32_MAX;
  for (uint32_t n = 0; b->next < b->nr && q->free_ops; b->next++, n++) {
    if (n == turn) {
      if (q->queued) lane_drive(q, false);
      n = 0;
    }
    op_begin(q, &b->reads[b->next]);
  }
  lane_drive(q, wait && q->done_reads == NULL);
  while (q->done_reads) {
    struct blkio_op *const op = q->done_reads;
    struct blkio_read *const r = op->read;
    const enum remixdb_status s = read_finish(b->q->io, op, r->path);
    op_end(q, op);
    batch_ended(b, r, s);
  }
}

// Does all reads that were added, without a lane. The first one through the page cache tells whether it came from the
// disk, unless the system was told of it; a worker's says nothing of readers'.
static void batch_plain(struct blkio_batch *b) {
  struct blkio *const io = b->q->io;
  bool learns = b->q->shared && b->next == 0 && (!b->advised || b->probes);
  if (b->next < b->nr) count_trips(io, b->advised ? 1 : b->nr - b->next);
  while (b->next < b->nr) {
    struct blkio_read *const r = &b->reads[b->next++];
    const bool timed = learns && !r->past;
    const uint64_t began = timed ? time_ns() : 0;
    batch_ended(b, r, env_read(io->env, r->fd, r->path, r->buf, r->len, r->off));
    if (timed) cold_learn(io, time_ns() - began, r->len);
    learns = learns && !timed;
  }
  b->probes = false;
}

// Without a lane, the system can bring all blocks of a batch into its page cache at once. Tells it of the reads from
// `from` on, but in one batch of BATCH_PROBE not of the first one, which tells then whether reads still come from the
// disk. False: that would not help.
static bool batch_advise(struct blkio_batch *b, uint32_t from) {
  struct blkio *const io = b->q->io;
  if (io->direct || !blkio_cold(io)) return false;
  if (from == 0) b->probes = atomic_load_explicit(&io->nr_trips, memory_order_relaxed) % BATCH_PROBE == 0;
  for (uint32_t i = from; i < b->nr; i++)
    if (!b->reads[i].past && !(i == 0 && b->probes))
      env_advise(io->env, b->reads[i].fd, b->reads[i].off, b->reads[i].len, ENV_WILL_NEED);
  return b->advised = true;
}

void blkio_batch_begin(struct blkio_batch *b, struct blkio_queue *q, struct blkio_read *reads, blkio_done_fn done,
                       void *arg) {
  b->q = q;
  b->lane = NULL;
  b->reads = reads;
  b->nr = b->next = b->left = 0;
  b->through = b->through_left = 0;
  b->advised = b->probes = false;
  b->done = done;
  b->arg = arg;
  b->first.status = REMIXDB_OK;
  b->first_read = NULL;
}

_Atomic bool blkio_test_lane;

static bool batch_lane(struct blkio_batch *b) {
  const struct blkio *const io = b->q->io;
  if (io->kind == BLKIO_AIO && b->q->shared && !io->direct) return false;  // B4
  return b->lane || (b->lane = queue_lane(b->q)) != NULL;
}

bool blkio_batch_lane(struct blkio_batch *b) {
  return batch_lane(b) || unlikely(atomic_load_explicit(&blkio_test_lane, memory_order_relaxed));
}

void blkio_batch_add(struct blkio_batch *b, uint32_t nr) {
  uint64_t bytes = 0;
  if (nr == 0) return;
  for (uint32_t i = 0; i < nr; i++) {
    bytes += b->reads[b->nr + i].len;
    b->through += !b->reads[b->nr + i].past;
    b->through_left += !b->reads[b->nr + i].past;
  }
  (void)count_reads(b->q->io, nr, bytes);
  assert(b->next <= b->nr);
  b->nr += nr;
  b->left += nr;
  if (b->advised || !batch_lane(b)) {
    if (!batch_advise(b, b->nr - nr)) batch_plain(b);
    return;
  }
  // as long as reads end and make room for others
  uint32_t before;
  do {
    before = b->next;
    batch_drive(b, false);
  } while (b->next < b->nr && b->next != before);
}

enum remixdb_status blkio_batch_end(struct blkio_batch *b) {
  if (b->advised) batch_plain(b);
  if (b->lane) {
    batch_drive(b, false);  // the reads of cached pages have ended by now
    const uint64_t began = b->through_left ? time_ns() : 0;
    while (b->left > 0) batch_drive(b, true);
    if (b->q->shared && b->through)  // how long the others took does not tell what the page cache has
      cold_learn(b->q->io, began ? time_ns() - began : 0, 0);  // a worker's reads say nothing of readers'
    if (b->nr) count_trips(b->q->io, 1);
    if (b->q->shared) lane_give(b->q->io, b->lane);
  }
  assert(b->left == 0 && b->next == b->nr);
  b->lane = NULL;
  return err_raise(&b->first);
}

enum remixdb_status blkio_read_batch(struct blkio_queue *q, struct blkio_read *reads, uint32_t nr) {
  if (nr == 1) {
    struct blkio_read *const r = reads;
    return r->status = q->shared ? blkio_read_one(q->io, r->fd, r->path, r->buf, r->len, r->off)
                                 : blkio_read_aside(q->io, r->fd, r->path, r->buf, r->len, r->off);
  }
  struct blkio_batch b;
  blkio_batch_begin(&b, q, reads, NULL, NULL);
  blkio_batch_add(&b, nr);
  return blkio_batch_end(&b);
}

enum remixdb_status blkio_read_one(struct blkio *b, int fd, const char *path, void *buf, uint32_t len, uint64_t off) {
  const uint64_t before = count_reads(b, 1, len);
  count_trips(b, 1);
  if (likely(before % READS_TIMED && before >= READS_FIRST)) return env_read(b->env, fd, path, buf, len, off);
  const uint64_t began = time_ns();
  const enum remixdb_status s = env_read(b->env, fd, path, buf, len, off);
  cold_learn(b, time_ns() - began, len);
  return s;
}

enum remixdb_status blkio_read_aside(struct blkio *b, int fd, const char *path, void *buf, uint32_t len, uint64_t off) {
  (void)count_reads(b, 1, len);
  count_trips(b, 1);
  return env_read(b->env, fd, path, buf, len, off);
}

// ---- flights

// Starts a transfer that belongs to no batch. Without a lane it is done with nothing moved.
static void own_start(struct blkio_queue *q, struct blkio_op *op) {
  struct blkio_lane *const lane = q->shared ? NULL : queue_lane(q);
  op->done = lane == NULL;
  op->res = 0;
  if (!lane) return;
  lane_start(lane, op);
  lane_drive(lane, false);
}

struct blkio_flight {
  struct blkio_queue *q;
  struct blkio_op op;
  const char *path;
  bool open;
};

enum remixdb_status blkio_flight_create(struct blkio_queue *q, struct blkio_flight **out) {
  struct blkio_flight *const f = mem_calloc(1, sizeof(*f));
  *out = f;
  if (!f) return REMIXDB_NOMEM;
  f->q = q;
  return REMIXDB_OK;
}

void blkio_flight_drop(struct blkio_flight *f) {
  while (!f->op.done) lane_drive(f->q->lane, true);
  f->open = false;
}

void blkio_flight_destroy(struct blkio_flight *f) {
  if (!f) return;
  if (f->open) blkio_flight_drop(f);
  mem_free(f);
}

void blkio_flight_start(struct blkio_flight *f, const struct blkio_read *r) {
  assert(!f->open);
  op_read(&f->op, r);
  f->path = r->path;
  f->open = true;
  count_reads(f->q->io, 1, r->len);
  own_start(f->q, &f->op);
}

bool blkio_flight_is_open(const struct blkio_flight *f) { return f->open; }

enum remixdb_status blkio_flight_end(struct blkio_flight *f) {
  assert(f->open);
  blkio_flight_drop(f);  // the buffer is no longer the kernel's
  return read_finish(f->q->io, &f->op, f->path);
}

// ---- a flow

struct blkio_flow {
  struct blkio *io;
  struct blkio_lane *lane;  // NULL: there is none
  uint32_t nr_added;        // reads since it last submitted
  int bell;                 // an eventfd; -1: none
};

enum remixdb_status blkio_flow_create(struct blkio *b, uint32_t depth, struct blkio_flow **out) {
  struct blkio_flow *const f = *out = mem_calloc(1, sizeof(*f));
  if (!f) return REMIXDB_NOMEM;
  f->io = b;
  f->bell = -1;
  const uint32_t most = b->kind == BLKIO_URING ? BLKIO_FLOW_MAX : BLKIO_READS_MAX;
  if (b->kind != BLKIO_SYNC) f->lane = lane_create(b, depth < most ? depth : most);
  return REMIXDB_OK;
}

void blkio_flow_destroy(struct blkio_flow *f) {
  if (!f) return;
  while (blkio_flow_take(f, true)) continue;
  lane_destroy(f->lane);
#if defined(__linux__)
  CANCEL_LATER;
  if (f->bell >= 0) (void)close(f->bell);
#endif
  mem_free(f);
}

bool blkio_flow_lasts(const struct blkio_flow *f) { return f->lane && f->lane->kind == BLKIO_URING; }

bool blkio_flow_works(const struct blkio_flow *f) { return f->lane && f->lane->kind != BLKIO_SYNC; }
bool blkio_flow_has_room(const struct blkio_flow *f) { return blkio_flow_works(f) && f->lane->free_ops; }

void blkio_flow_add(struct blkio_flow *f, struct blkio_read *r) {
  assert(blkio_flow_has_room(f));
  (void)count_reads(f->io, 1, r->len);
  op_begin(f->lane, r);
  f->nr_added++;
}

void blkio_flow_submit(struct blkio_flow *f) {
  if (f->nr_added) count_trips(f->io, 1);
  f->nr_added = 0;
  if (f->lane && f->lane->queued) lane_drive(f->lane, false);
}

struct blkio_read *blkio_flow_take(struct blkio_flow *f, bool wait) {
  struct blkio_lane *const q = f->lane;
  if (!q) return NULL;
  if (!q->done_reads) lane_drive(q, wait);
  struct blkio_op *const op = q->done_reads;
  if (!op) return NULL;
  struct blkio_read *const r = op->read;
  r->status = op_moved(op) == op->len ? REMIXDB_OK : REMIXDB_ABORTED;
  op_end(q, op);
  return r;
}

#if defined(__linux__)

enum remixdb_status blkio_flow_bell(struct blkio_flow *f, int *fd_out) {
  CANCEL_LATER;
  *fd_out = f->bell;
  if (f->bell >= 0) return REMIXDB_OK;
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  int rc = fd < 0 ? -errno : 0;
#if BLKIO_HAS_URING
  if (fd >= 0 && blkio_flow_lasts(f)) rc = io_uring_register_eventfd(&f->lane->ring, fd);
#endif
  if (rc != 0) {
    if (fd >= 0) (void)close(fd);
    return err_errno(-rc, "eventfd", NULL);
  }
  *fd_out = f->bell = fd;
  return REMIXDB_OK;
}

// A counter that is full is readable, too, so a write that is refused changes nothing.
void blkio_flow_ring_bell(struct blkio_flow *f) {
  CANCEL_LATER;
  if (f->bell >= 0) (void)eventfd_write(f->bell, 1);
}

void blkio_flow_clear_bell(struct blkio_flow *f) {
  CANCEL_LATER;
  eventfd_t count;
  if (f->bell >= 0) (void)eventfd_read(f->bell, &count);
}

#else

enum remixdb_status blkio_flow_bell(struct blkio_flow *f, int *fd_out) {
  *fd_out = f->bell;
  return err_set(REMIXDB_INVALID, "this system has no eventfd");
}
void blkio_flow_ring_bell(struct blkio_flow *f) { (void)f; }
void blkio_flow_clear_bell(struct blkio_flow *f) { (void)f; }

#endif

// ---- the writer

struct blkio_writer {
  struct blkio_queue *q;
  uint8_t *bufs[BLKIO_WRITER_NR];  // BLKIO_WRITER_BUF bytes each
  uint32_t nr;                     // buffers that exist, at least one; a long file makes more
  uint32_t size, turns;            // for this file: the bytes that a buffer takes; the most buffers that take some
  struct blkio_op ops[BLKIO_WRITER_NR];  // one for each buffer
  bool busy[BLKIO_WRITER_NR];            // its op was started and not settled
  uint32_t cur;                          // the buffer being filled; never busy between calls
  uint32_t fill;                         // bytes in it
  uint64_t base;                         // its offset in what is written
  uint64_t origin;                       // the offset of that in the file, once place is NULL
  blkio_place_fn place;
  void *place_arg;
  uint64_t total;  // bytes put
  uint64_t out;    // offset up to which the system was told to write out
  int fd;
  bool direct, part;
  bool ajar;  // fd is open only while the writer writes: by the door
  struct blkio_door door;
  struct err_saved err;  // the first one
  char path[ENV_PATH_MAX];
};

enum remixdb_status blkio_writer_create(struct blkio_queue *q, struct blkio_writer **out) {
  assert(!q->shared);
  *out = NULL;
  struct blkio_writer *const w = mem_calloc(1, sizeof(*w));
  if (!w) return REMIXDB_NOMEM;
  w->q = q;
  w->fd = -1;
  if (!(w->bufs[0] = mem_alloc_aligned(BLKIO_ALIGN, BLKIO_WRITER_BUF))) {
    mem_free(w);
    return REMIXDB_NOMEM;
  }
  w->nr = 1;
  *out = w;
  return REMIXDB_OK;
}

static inline bool writer_failed(const struct blkio_writer *w) { return w->err.status != REMIXDB_OK; }

static void writer_note(struct blkio_writer *w, enum remixdb_status s) {
  if (s != REMIXDB_OK && !writer_failed(w)) err_save(&w->err, s);
}

// Waits until the buffer's write has ended, and writes the rest if it was short.
static void writer_settle(struct blkio_writer *w, uint32_t i) {
  struct blkio_op *const op = &w->ops[i];
  if (!w->busy[i]) return;
  while (!op->done) lane_drive(w->q->lane, true);
  w->busy[i] = false;
  const uint32_t moved = op_moved(op);
  if (moved < op->len && !writer_failed(w))
    writer_note(w, env_write(w->q->io->env, op->fd, w->path, op->buf + moved, op->len - moved, op->off + moved));
}

// Waits for all writes in flight, of an abandoned file.
static void writer_drain(struct blkio_writer *w) {
  for (uint32_t i = 0; i < BLKIO_WRITER_NR; i++) {
    while (w->busy[i] && !w->ops[i].done) lane_drive(w->q->lane, true);
    w->busy[i] = false;
  }
}

void blkio_writer_destroy(struct blkio_writer *w) {
  if (!w) return;
  writer_drain(w);
  for (uint32_t i = 0; i < w->nr; i++) mem_free(w->bufs[i]);
  mem_free(w);
}

void blkio_writer_start(struct blkio_writer *w, int fd, const char *path, bool direct) {
  writer_drain(w);
  w->cur = w->fill = 0;
  w->base = w->total = w->out = w->origin = 0;
  w->place = NULL;
  w->fd = fd;
  w->direct = direct;
  w->part = w->ajar = false;
  w->size = direct ? BLKIO_DIRECT_BUF : BLKIO_WRITER_BUF;
  w->turns = direct ? BLKIO_DIRECT_NR : BLKIO_WRITER_NR;
  w->err.status = REMIXDB_OK;
  (void)snprintf(w->path, sizeof(w->path), "%s", path);
}

void blkio_writer_start_part(struct blkio_writer *w, int fd, const char *path, bool direct, blkio_place_fn place,
                             void *arg) {
  blkio_writer_start(w, fd, path, direct);
  w->part = true;
  w->place = place;
  w->place_arg = arg;
}

void blkio_writer_start_ajar(struct blkio_writer *w, const char *path, bool direct, const struct blkio_door *door) {
  blkio_writer_start(w, -1, path, direct);
  w->ajar = true;
  w->door = *door;
  w->size = BLKIO_WRITER_BUF;  // all buffers are written together: each time costs a sync
  w->turns = BLKIO_WRITER_NR;
}

// Opens a file that is ajar. False: that has failed.
static bool writer_enter(struct blkio_writer *w) {
  if (!w->ajar) return true;
  const enum remixdb_status s = w->door.open(w->door.arg, &w->fd);
  if (s != REMIXDB_OK) w->fd = -1;
  writer_note(w, s);
  return s == REMIXDB_OK;
}

// Shuts it. synced: nothing is left to sync.
static void writer_leave(struct blkio_writer *w, bool synced) {
  if (!w->ajar) return;
  if (!synced && !writer_failed(w)) writer_note(w, env_sync_data(w->q->io->env, w->fd, w->path));
  writer_note(w, w->door.shut(w->door.arg, w->fd));
  w->fd = -1;
}

// Tells whether some buffer's write was started and not settled.
static bool writer_is_busy(const struct blkio_writer *w) {
  bool busy = false;
  for (uint32_t i = 0; i < w->nr; i++) busy |= w->busy[i];
  return busy;
}

// Starts writing the first len bytes of the current buffer. last: all bytes were put. The caller waits at once for the
// end of these, so without others in flight this thread writes them itself: the kernel would give them to a thread of
// its own, and the switches to it and back cost as much as a short write. The same holds for a file that is ajar.
static void writer_submit(struct blkio_writer *w, uint32_t len, bool last) {
  struct blkio_op *const op = &w->ops[w->cur];
  struct blkio *const b = w->q->io;
  if (w->place) {
    w->origin = w->place(w->place_arg, w->base + len, last);
    w->place = NULL;
  }
  op->read = NULL;
  op->write = true;
  op->fd = w->fd;
  op->buf = w->bufs[w->cur];
  op->len = len;
  op->off = w->origin + w->base;
  const bool here = w->ajar || (last && !writer_is_busy(w));
  w->busy[w->cur] = true;
  (void)atomic_fetch_add_explicit(&b->nr_writes, 1, memory_order_relaxed);
  (void)atomic_fetch_add_explicit(&b->write_bytes, len, memory_order_relaxed);
  if (w->direct) (void)atomic_fetch_add_explicit(&b->past_bytes, len, memory_order_relaxed);
  if (here) {
    op->done = true;
    op->res = 0;
  } else {
    own_start(w->q, op);
  }
  if (op->done) writer_settle(w, w->cur);
}

// Tells the system to write out the finished part of the file, a few megabytes at a time. Otherwise the sync at the end
// would wait for all of it.
static void writer_out(struct blkio_writer *w) {
  uint64_t to = w->base;
  for (uint32_t i = 0; i < BLKIO_WRITER_NR; i++)
    if (w->busy[i] && w->ops[i].off - w->origin < to) to = w->ops[i].off - w->origin;
  if (w->direct || to < w->out + WRITER_OUT || writer_failed(w)) return;
  env_write_out(w->q->io->env, w->fd, w->origin + w->out, to - w->out);
  w->out = to;
}

// Makes a buffer more, if all are in use and there may be more. Without memory those that exist do, and are waited for.
static void writer_grow(struct blkio_writer *w) {
  if (w->cur + 1 < w->nr || w->nr >= w->turns) return;
  err_cleanup_begin();
  w->bufs[w->nr] = mem_alloc_aligned(BLKIO_ALIGN, BLKIO_WRITER_BUF);
  err_cleanup_end();
  w->nr += w->bufs[w->nr] != NULL;
}

// Writes the full buffers of a file that is ajar and open now, and len bytes of the current one.
static void writer_write_all(struct blkio_writer *w, uint32_t len) {
  const uint32_t nr = w->cur;
  w->base -= (uint64_t)nr * w->size;
  for (w->cur = 0; w->cur < nr; w->cur++) {
    writer_submit(w, w->size, false);
    w->base += w->size;
  }
  if (len > 0) writer_submit(w, len, true);
}

// Goes on to the next buffer of a file that is ajar. Writes when there is none.
static void writer_flush_ajar(struct blkio_writer *w) {
  writer_grow(w);
  const bool more = w->cur + 1 < w->nr;
  if (!more && !writer_enter(w)) return;
  if (!more) writer_write_all(w, w->size);
  w->cur = more ? w->cur + 1 : 0;
  w->base += w->size;
  w->fill = 0;
  if (!more) writer_leave(w, false);
}

// Writes the full current buffer and goes on to the next. So every write but the last begins and ends aligned.
static void writer_flush(struct blkio_writer *w) {
  if (w->ajar) {
    writer_flush_ajar(w);
    return;
  }
  writer_submit(w, w->size, false);
  writer_grow(w);
  w->cur = (w->cur + 1) % (w->nr < w->turns ? w->nr : w->turns);
  writer_settle(w, w->cur);  // the oldest
  w->base += w->size;
  w->fill = 0;
  writer_out(w);
}

void blkio_writer_put(struct blkio_writer *w, const void *p, size_t len) {
  w->total += len;
  while (len > 0 && !writer_failed(w)) {
    const size_t room = w->size - w->fill, n = len < room ? len : room;
    memcpy(w->bufs[w->cur] + w->fill, p, n);
    p = (const uint8_t *)p + n;
    len -= n;
    w->fill += (uint32_t)n;
    if (w->fill == w->size) writer_flush(w);
  }
}

uint64_t blkio_writer_offset(const struct blkio_writer *w) { return w->total; }

bool blkio_writer_failed(const struct blkio_writer *w) { return writer_failed(w); }

enum remixdb_status blkio_writer_finish(struct blkio_writer *w, bool sync) {
  struct env *const env = w->q->io->env;
  uint32_t pad = 0;
  const bool in = !writer_failed(w) && writer_enter(w);
  if (!writer_failed(w) && (w->fill > 0 || w->ajar)) {
    if (w->direct) pad = (uint32_t)align_up(w->fill, BLKIO_ALIGN) - w->fill;
    memset(w->bufs[w->cur] + w->fill, 0, pad);
    if (w->ajar) writer_write_all(w, w->fill + pad);
    else writer_submit(w, w->fill + pad, true);
    w->fill = 0;
  }
  for (uint32_t i = 0; i < w->nr; i++) writer_settle(w, i);
  if (!writer_failed(w) && pad > 0 && !w->part) writer_note(w, env_truncate(env, w->fd, w->path, w->total));
  if (!writer_failed(w) && sync) writer_note(w, env_sync_all(env, w->fd, w->path));
  if (in) writer_leave(w, sync);
  return err_raise(&w->err);
}
