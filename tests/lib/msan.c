// SPDX-License-Identifier: Apache-2.0
//
// The memory sanitizer knows of what instrumented code writes, and of the C library. These stand before calls into what
// is not instrumented (zstd, the C library's AIO), see that what goes in was written, and tell what comes out. Linked
// into every program of that mode, as is uring.c.
#include <aio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#define ZDICT_STATIC_LINKING_ONLY
#include <zdict.h>
#include <zstd.h>

#include "tests/lib/wrap.h"

// ---- zstd

static size_t zstd_wrote(void *p, size_t n) {
  if (!ZSTD_isError(n)) WRAP_WRITTEN(p, n);
  return n;
}

WRAP(size_t, ZSTD_compress, (void *dst, size_t cap, const void *src, size_t len, int level)) {
  __msan_check_mem_is_initialized(src, len);
  return zstd_wrote(dst, __real_ZSTD_compress(dst, cap, src, len, level));
}
WRAP(size_t, ZSTD_compress2, (ZSTD_CCtx * c, void *dst, size_t cap, const void *src, size_t len)) {
  WRAP_READ(src, len);
  return zstd_wrote(dst, __real_ZSTD_compress2(c, dst, cap, src, len));
}
WRAP(size_t, ZSTD_compressCCtx, (ZSTD_CCtx * c, void *dst, size_t cap, const void *src, size_t len, int level)) {
  WRAP_READ(src, len);
  return zstd_wrote(dst, __real_ZSTD_compressCCtx(c, dst, cap, src, len, level));
}
WRAP(size_t, ZSTD_decompress, (void *dst, size_t cap, const void *src, size_t len)) {
  WRAP_READ(src, len);
  return zstd_wrote(dst, __real_ZSTD_decompress(dst, cap, src, len));
}
WRAP(size_t, ZSTD_decompressDCtx, (ZSTD_DCtx * d, void *dst, size_t cap, const void *src, size_t len)) {
  WRAP_READ(src, len);
  return zstd_wrote(dst, __real_ZSTD_decompressDCtx(d, dst, cap, src, len));
}
WRAP(size_t, ZSTD_decompress_usingDDict,
     (ZSTD_DCtx * d, void *dst, size_t cap, const void *src, size_t len, const ZSTD_DDict *dict)) {
  WRAP_READ(src, len);
  return zstd_wrote(dst, __real_ZSTD_decompress_usingDDict(d, dst, cap, src, len, dict));
}
WRAP(size_t, ZSTD_decompress_usingDict,
     (ZSTD_DCtx * d, void *dst, size_t cap, const void *src, size_t len, const void *dict, size_t dict_len)) {
  WRAP_READ(src, len);
  WRAP_READ(dict, dict_len);
  return zstd_wrote(dst, __real_ZSTD_decompress_usingDict(d, dst, cap, src, len, dict, dict_len));
}
WRAP(size_t, ZDICT_trainFromBuffer_fastCover,
     (void *dict, size_t cap, const void *samples, const size_t *sizes, unsigned nr, ZDICT_fastCover_params_t how)) {
  WRAP_READ(sizes, nr * sizeof(*sizes));
  const char *p = samples;
  for (unsigned i = 0; i < nr; p += sizes[i++]) WRAP_READ(p, sizes[i]);
  return zstd_wrote(dict, __real_ZDICT_trainFromBuffer_fastCover(dict, cap, samples, sizes, nr, how));
}

// ---- AIO

WRAP(int, aio_write64, (struct aiocb * cb)) {
  WRAP_READ((const void *)cb->aio_buf, cb->aio_nbytes);
  return __real_aio_write64(cb);
}
WRAP(ssize_t, aio_return64, (struct aiocb * cb)) {
  const ssize_t n = __real_aio_return64(cb);
  if (n > 0 && cb->aio_lio_opcode == LIO_READ) WRAP_WRITTEN((void *)(uintptr_t)cb->aio_buf, (size_t)n);
  return n;
}

// ---- of the C library, but not every version of the sanitizer knows these names

#if defined(__GLIBC__)
WRAP(int, lstat64, (const char *path, struct stat *st)) {
  const int rc = __real_lstat64(path, st);
  if (rc == 0) WRAP_WRITTEN(st, sizeof(*st));
  return rc;
}
WRAP(int, stat64, (const char *path, struct stat *st)) {
  const int rc = __real_stat64(path, st);
  if (rc == 0) WRAP_WRITTEN(st, sizeof(*st));
  return rc;
}
WRAP(int, fstat64, (int fd, struct stat *st)) {
  const int rc = __real_fstat64(fd, st);
  if (rc == 0) WRAP_WRITTEN(st, sizeof(*st));
  return rc;
}
WRAP(int, fstatat64, (int at, const char *path, struct stat *st, int flags)) {
  const int rc = __real_fstatat64(at, path, st, flags);
  if (rc == 0) WRAP_WRITTEN(st, sizeof(*st));
  return rc;
}
WRAP(int, getentropy, (void *p, size_t n)) {
  const int rc = __real_getentropy(p, n);
  if (rc == 0) WRAP_WRITTEN(p, n);
  return rc;
}
#if defined(__linux__)
// The sanitizer would take what it knows of the pages that were at the new address before.
WRAP(void *, mremap, (void *p, size_t had, size_t size, int how, ...)) {
  void *const to = __real_mremap(p, had, size, how);
  if (to != MAP_FAILED) WRAP_WRITTEN(to, size);
  return to;
}
#endif
#endif
