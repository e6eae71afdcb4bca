// SPDX-License-Identifier: Apache-2.0
//
// The kernel fills the buffers of a ring's reads and reads those of its writes. The memory sanitizer and valgrind see
// neither. These wrappers stand before the calls of liburing and tell them. A read's buffer counts as written when the
// read is submitted: nobody looks at it until the read completes. All programs of those modes link this file.
#include "tests/lib/wrap.h"

#if !defined(REMIXDB_NO_URING)
#include <liburing.h>

WRAP(int, io_uring_queue_init, (unsigned entries, struct io_uring *ring, unsigned flags)) {
  const int rc = __real_io_uring_queue_init(entries, ring, flags);
  if (rc != 0) return rc;
  WRAP_WRITTEN(ring, sizeof(*ring));
  WRAP_WRITTEN(ring->sq.ring_ptr, ring->sq.ring_sz);
  WRAP_WRITTEN(ring->cq.ring_ptr, ring->cq.ring_sz);
  WRAP_WRITTEN(ring->sq.sqes, ring->sq.ring_entries * sizeof(*ring->sq.sqes));
  return rc;
}
WRAP(struct io_uring_probe *, io_uring_get_probe_ring, (struct io_uring * ring)) {
  struct io_uring_probe *const p = __real_io_uring_get_probe_ring(ring);
  if (p) WRAP_WRITTEN(p, sizeof(*p));
  if (p) WRAP_WRITTEN(p->ops, p->ops_len * sizeof(p->ops[0]));
  return p;
}
static void ring_handed_over(struct io_uring *ring) {
  for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; i++) {
    const struct io_uring_sqe *const e = &ring->sq.sqes[i & ring->sq.ring_mask];
    if (e->opcode == IORING_OP_READ) WRAP_WRITTEN((void *)(uintptr_t)e->addr, e->len);
    if (e->opcode == IORING_OP_WRITE) WRAP_READ((const void *)(uintptr_t)e->addr, e->len);
  }
}
WRAP(int, io_uring_submit, (struct io_uring * ring)) {
  ring_handed_over(ring);
  return __real_io_uring_submit(ring);
}
WRAP(int, io_uring_submit_and_wait, (struct io_uring * ring, unsigned nr)) {
  ring_handed_over(ring);
  return __real_io_uring_submit_and_wait(ring, nr);
}
WRAP(int, __io_uring_get_cqe,
     (struct io_uring * ring, struct io_uring_cqe **cqe, unsigned submit, unsigned wait, sigset_t *mask)) {
  const int rc = __real___io_uring_get_cqe(ring, cqe, submit, wait, mask);
  WRAP_WRITTEN(cqe, sizeof(*cqe));
  return rc;
}
#endif
