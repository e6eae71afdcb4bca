// SPDX-License-Identifier: Apache-2.0
//
// The memory sanitizer knows of what instrumented code writes, and of the C library. These stand before calls into what is not
// instrumented (zstd, liburing, the C library's AIO), see that what goes in was written, and tell what comes out; the linker puts
// them there (--wrap, in the Makefile). Linked into every test program of that mode.
#include <aio.h>
#include <sanitizer/msan_interface.h>
#include <sys/stat.h>
#include <zdict.h>
#include <zstd.h>

#if !defined(REMIXDB_NO_URING)
#include <liburing.h>
#endif

#define WRAP(type, name, args) \
  type __real_##name args;     \
  type __wrap_##name args;     \
  type __wrap_##name args

// ---- zstd

static size_t zstd_wrote(void *p, size_t n) {
  if (!ZSTD_isError(n)) __msan_unpoison(p, n);
  return n;
}

WRAP(size_t, ZSTD_compress, (void *dst, size_t cap, const void *src, size_t len, int level)) {
  __msan_check_mem_is_initialized(src, len);
  return zstd_wrote(dst, __real_ZSTD_compress(dst, cap, src, len, level));
}
WRAP(size_t, ZSTD_compress2, (ZSTD_CCtx * c, void *dst, size_t cap, const void *src, size_t len)) {
  __msan_check_mem_is_initialized(src, len);
  return zstd_wrote(dst, __real_ZSTD_compress2(c, dst, cap, src, len));
}
WRAP(size_t, ZSTD_compressCCtx, (ZSTD_CCtx * c, void *dst, size_t cap, const void *src, size_t len, int level)) {
  __msan_check_mem_is_initialized(src, len);
  return zstd_wrote(dst, __real_ZSTD_compressCCtx(c, dst, cap, src, len, level));
}
WRAP(size_t, ZSTD_decompress, (void *dst, size_t cap, const void *src, size_t len)) {
  __msan_check_mem_is_initialized(src, len);
  return zstd_wrote(dst, __real_ZSTD_decompress(dst, cap, src, len));
}
WRAP(size_t, ZSTD_decompressDCtx, (ZSTD_DCtx * d, void *dst, size_t cap, const void *src, size_t len)) {
  __msan_check_mem_is_initialized(src, len);
  return zstd_wrote(dst, __real_ZSTD_decompressDCtx(d, dst, cap, src, len));
}
WRAP(size_t, ZSTD_decompress_usingDDict,
     (ZSTD_DCtx * d, void *dst, size_t cap, const void *src, size_t len, const ZSTD_DDict *dict)) {
  __msan_check_mem_is_initialized(src, len);
  return zstd_wrote(dst, __real_ZSTD_decompress_usingDDict(d, dst, cap, src, len, dict));
}
WRAP(size_t, ZDICT_trainFromBuffer, (void *dict, size_t cap, const void *samples, const size_t *sizes, unsigned nr)) {
  __msan_check_mem_is_initialized(sizes, nr * sizeof(*sizes));
  const char *p = samples;
  for (unsigned i = 0; i < nr; p += sizes[i++]) __msan_check_mem_is_initialized(p, sizes[i]);
  return zstd_wrote(dict, __real_ZDICT_trainFromBuffer(dict, cap, samples, sizes, nr));
}

// ---- AIO

WRAP(int, aio_write64, (struct aiocb * cb)) {
  __msan_check_mem_is_initialized((const void *)cb->aio_buf, cb->aio_nbytes);
  return __real_aio_write64(cb);
}
WRAP(ssize_t, aio_return64, (struct aiocb * cb)) {
  const ssize_t n = __real_aio_return64(cb);
  if (n > 0 && cb->aio_lio_opcode == LIO_READ) __msan_unpoison((void *)(uintptr_t)cb->aio_buf, (size_t)n);
  return n;
}

// ---- files: of the C library, but not every version of the sanitizer knows these names of it

#if defined(__GLIBC__)
WRAP(int, stat64, (const char *path, struct stat *st)) {
  const int rc = __real_stat64(path, st);
  if (rc == 0) __msan_unpoison(st, sizeof(*st));
  return rc;
}
WRAP(int, fstat64, (int fd, struct stat *st)) {
  const int rc = __real_fstat64(fd, st);
  if (rc == 0) __msan_unpoison(st, sizeof(*st));
  return rc;
}
#endif

// ---- io_uring. What a read brings is taken for written when it is handed over: between that and its completion nobody looks.

#if !defined(REMIXDB_NO_URING)
WRAP(int, io_uring_queue_init, (unsigned entries, struct io_uring *ring, unsigned flags)) {
  const int rc = __real_io_uring_queue_init(entries, ring, flags);
  if (rc != 0) return rc;
  __msan_unpoison(ring, sizeof(*ring));
  __msan_unpoison(ring->sq.ring_ptr, ring->sq.ring_sz);
  __msan_unpoison(ring->cq.ring_ptr, ring->cq.ring_sz);
  __msan_unpoison(ring->sq.sqes, ring->sq.ring_entries * sizeof(*ring->sq.sqes));
  return rc;
}
WRAP(struct io_uring_probe *, io_uring_get_probe_ring, (struct io_uring * ring)) {
  struct io_uring_probe *const p = __real_io_uring_get_probe_ring(ring);
  if (p) __msan_unpoison(p, sizeof(*p));
  if (p) __msan_unpoison(p->ops, p->ops_len * sizeof(p->ops[0]));
  return p;
}
static void ring_handed_over(struct io_uring *ring) {
  for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; i++) {
    const struct io_uring_sqe *const e = &ring->sq.sqes[i & ring->sq.ring_mask];
    if (e->opcode == IORING_OP_READ) __msan_unpoison((void *)(uintptr_t)e->addr, e->len);
    if (e->opcode == IORING_OP_WRITE) __msan_check_mem_is_initialized((const void *)(uintptr_t)e->addr, e->len);
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
  __msan_unpoison(cqe, sizeof(*cqe));
  return rc;
}
#endif
