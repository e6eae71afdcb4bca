// SPDX-License-Identifier: Apache-2.0
//
// Counts the files that a process makes and its syncs, for any engine: bench_growth.py preloads this library into
// xdbbench.out (LD_PRELOAD). At the end of the process the counts go into the file that BENCH_SYNCS names: files that
// were made, syncs.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static _Atomic unsigned long files, syncs;

static void *real_of(const char *name) { return dlsym(RTLD_NEXT, name); }

__attribute__((destructor)) static void report(void) {
  const char *const path = getenv("BENCH_SYNCS");
  FILE *const f = path ? fopen(path, "w") : NULL;
  if (!f) return;
  (void)fprintf(f, "%lu %lu\n", files, syncs);
  (void)fclose(f);
}

int fsync(int fd) {
  syncs++;
  return ((int (*)(int))real_of("fsync"))(fd);
}

int fdatasync(int fd) {
  syncs++;
  return ((int (*)(int))real_of("fdatasync"))(fd);
}

// Whether an opening with these flags is about to make the file.
static int makes(int at, const char *path, int flags) {
  struct stat st;
  return (flags & O_CREAT) && fstatat(at, path, &st, AT_SYMLINK_NOFOLLOW) != 0;
}

#define OPENAT(name)                                                                              \
  int name(int at, const char *path, int flags, ...) {                                            \
    va_list ap;                                                                                   \
    va_start(ap, flags);                                                                          \
    const mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;                                 \
    va_end(ap);                                                                                   \
    const int is_new = makes(at, path, flags);                                                    \
    const int fd = ((int (*)(int, const char *, int, ...))real_of(#name))(at, path, flags, mode); \
    if (is_new && fd >= 0) files++;                                                               \
    return fd;                                                                                    \
  }
OPENAT(openat)
OPENAT(openat64)

#define OPEN(name)                                                                       \
  int name(const char *path, int flags, ...) {                                           \
    va_list ap;                                                                          \
    va_start(ap, flags);                                                                 \
    const mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;                        \
    va_end(ap);                                                                          \
    const int is_new = makes(AT_FDCWD, path, flags);                                     \
    const int fd = ((int (*)(const char *, int, ...))real_of(#name))(path, flags, mode); \
    if (is_new && fd >= 0) files++;                                                      \
    return fd;                                                                           \
  }
OPEN(open)
OPEN(open64)
