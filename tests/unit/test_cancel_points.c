// SPDX-License-Identifier: Apache-2.0
//
// A thread whose cancellation has come makes each call of the env's table, and the other calls of the library that may
// be cancellation points: rings, AIO, sleeping, the text of an errno. No call ends the thread.
//
// A C library makes some of these calls cancellation points, and another one others. Here functions of this program
// stand before those of the C library, and make every one a cancellation point. A sanitizer of memory needs its own
// functions there, and other systems link in another way: on those only the C library's own points are tried.
#include "tests/lib/check.h"

#include <aio.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "blkio.h"
#include "tests/lib/paths.h"
#include "tests/lib/temp.h"

#if !defined(REMIXDB_NO_URING)
#include <liburing.h>
#endif

// ---- the functions that stand before others

#if defined(__linux__) && !LIB_MSAN
#define POINTS 1
#else
#define POINTS 0
#endif

static _Thread_local bool victim;
static _Thread_local uint32_t nr_points;  // that the victim came to

#if POINTS

// With _FILE_OFFSET_BITS=64 the name of the function may end in 64.
static void *find_real(const char *name) {
  char longer[64];
  (void)snprintf(longer, sizeof(longer), "%s64", name);
  void *const p = dlsym(RTLD_NEXT, longer);
  return p ? p : dlsym(RTLD_NEXT, name);
}

static void *point(const char *name) {
  if (victim) {
    nr_points++;
    pthread_testcancel();
  }
  return find_real(name);
}

#define POINT(type, name, args, values)                  \
  type name args {                                       \
    type(*const real) args = (type(*) args)point(#name); \
    return real values;                                  \
  }

int openat(int at, const char *name, int flags, ...) {
  va_list ap;
  va_start(ap, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
  va_end(ap);
  int (*const real)(int, const char *, int, ...) = (int (*)(int, const char *, int, ...))point("openat");
  return real(at, name, flags, mode);
}

int fcntl(int fd, int command, ...) {
  va_list ap;
  va_start(ap, command);
  void *const arg = va_arg(ap, void *);
  va_end(ap);
  int (*const real)(int, int, ...) = (int (*)(int, int, ...))point("fcntl");
  return real(fd, command, arg);
}

POINT(int, close, (int fd), (fd))
POINT(ssize_t, pread, (int fd, void *buf, size_t len, off_t off), (fd, buf, len, off))
POINT(ssize_t, pwrite, (int fd, const void *buf, size_t len, off_t off), (fd, buf, len, off))
POINT(int, fdatasync, (int fd), (fd))
POINT(int, msync, (void *addr, size_t len, int flags), (addr, len, flags))
POINT(int, fsync, (int fd), (fd))
POINT(int, ftruncate, (int fd, off_t size), (fd, size))
POINT(int, fallocate, (int fd, int mode, off_t off, off_t len), (fd, mode, off, len))
POINT(int, fstat, (int fd, struct stat *st), (fd, st))
POINT(int, fstatat, (int at, const char *name, struct stat *st, int flags), (at, name, st, flags))
POINT(int, renameat, (int from_at, const char *from, int to_at, const char *to), (from_at, from, to_at, to))
POINT(int, unlinkat, (int at, const char *name, int flags), (at, name, flags))
POINT(int, linkat, (int from_at, const char *from, int to_at, const char *to, int flags),
      (from_at, from, to_at, to, flags))
POINT(int, mkdirat, (int at, const char *name, mode_t mode), (at, name, mode))
POINT(DIR *, fdopendir, (int fd), (fd))
POINT(struct dirent *, readdir, (DIR * d), (d))
POINT(int, closedir, (DIR * d), (d))
POINT(int, flock, (int fd, int how), (fd, how))
POINT(off_t, lseek, (int fd, off_t off, int from), (fd, off, from))
POINT(int, sync_file_range, (int fd, off_t off, off_t len, unsigned flags), (fd, off, len, flags))
POINT(int, posix_fadvise, (int fd, off_t off, off_t len, int advice), (fd, off, len, advice))
POINT(int, aio_read, (struct aiocb * cb), (cb))
POINT(int, lio_listio, (int mode, struct aiocb *const list[], int nr, struct sigevent *event), (mode, list, nr, event))
POINT(int, nanosleep, (const struct timespec *ts, struct timespec *left), (ts, left))
#if defined(__GLIBC__)
POINT(char *, strerror_r, (int errnum, char *buf, size_t cap), (errnum, buf, cap))
#endif
#if !defined(REMIXDB_NO_URING)
POINT(int, io_uring_queue_init, (unsigned entries, struct io_uring *ring, unsigned flags), (entries, ring, flags))
POINT(void, io_uring_queue_exit, (struct io_uring * ring), (ring))
#endif
#endif

// ---- the calls

static char dir[TEMP_DIR];

static const char *at(const char *name) {
  static _Thread_local char paths[2][TEMP_DIR + 32];
  static _Thread_local unsigned n;
  char *const p = paths[n++ % 2];
  (void)snprintf(p, sizeof(paths[0]), "%s/%s", dir, name);
  return p;
}

// An open file, "file", and an empty directory, "empty".
struct place {
  struct env *e;
  const struct env_ops *ops;
  int fd;
};

static bool any_name(void *arg, const char *name) {
  (void)name;
  ++*(uint32_t *)arg;
  return true;
}

static bool do_open(struct place *p) {
  const int fd = p->ops->open(p->e, ENV_HERE, at("file"), ENV_READ);
  return fd >= 0 && p->ops->close(p->e, fd) >= 0;
}
static bool do_close(struct place *p) { return p->ops->close(p->e, p->fd) >= 0; }
static bool do_pread(struct place *p) {
  char buf[8];
  return p->ops->pread(p->e, p->fd, buf, 8, 0) == 8 && memcmp(buf, "abcdefgh", 8) == 0;
}
static bool do_pwrite(struct place *p) { return p->ops->pwrite(p->e, p->fd, "ABCDEFGH", 8, 0) == 8; }
static bool do_sync_data(struct place *p) { return p->ops->sync_data(p->e, p->fd) >= 0; }
static bool do_sync_all(struct place *p) { return p->ops->sync_all(p->e, p->fd) >= 0; }
static bool do_sync_head(struct place *p) { return p->ops->sync_head(p->e, p->fd, 4) >= 0; }
static bool do_truncate(struct place *p) { return p->ops->truncate(p->e, p->fd, 4) >= 0; }
static bool do_allocate(struct place *p) {
  const int rc = p->ops->allocate(p->e, p->fd, 0, 4096);
  return rc >= 0 || rc == -EOPNOTSUPP;
}
static bool do_punch(struct place *p) {
  const int rc = p->ops->punch(p->e, p->fd, 0, 4096);
  return rc >= 0 || rc == -EOPNOTSUPP;
}
static bool do_fstat(struct place *p) {
  struct env_stat st;
  return p->ops->fstat(p->e, p->fd, &st) >= 0 && st.size == 8;
}
static bool do_stat(struct place *p) {
  struct env_stat st;
  return p->ops->stat(p->e, ENV_HERE, at("file"), &st) >= 0 && st.size == 8;
}
static bool do_rename(struct place *p) { return p->ops->rename(p->e, ENV_HERE, at("file"), ENV_HERE, at("to")) >= 0; }
static bool do_unlink(struct place *p) { return p->ops->unlink(p->e, ENV_HERE, at("file")) >= 0; }
static bool do_link(struct place *p) { return p->ops->link(p->e, ENV_HERE, at("file"), ENV_HERE, at("to")) >= 0; }
static bool do_mkdir(struct place *p) { return p->ops->mkdir(p->e, ENV_HERE, at("to")) >= 0; }
static bool do_rmdir(struct place *p) { return p->ops->rmdir(p->e, ENV_HERE, at("empty")) >= 0; }
static bool do_list(struct place *p) {
  uint32_t nr = 0;
  return p->ops->list(p->e, ENV_HERE, dir, any_name, &nr) >= 0 && nr == 2;
}
static bool do_lock(struct place *p) { return p->ops->lock(p->e, p->fd, true) >= 0; }
static bool do_unlock(struct place *p) { return p->ops->unlock(p->e, p->fd) >= 0; }
static bool do_seek(struct place *p) {
  const int64_t off = p->ops->seek(p->e, p->fd, 0, true);
  return off >= 0 || off == -EINVAL;
}
static bool do_write_out(struct place *p) { return p->ops->write_out(p->e, p->fd, 0, 8) >= 0; }
static bool do_no_direct(struct place *p) { return p->ops->no_direct(p->e, p->fd) >= 0; }
static bool do_advise(struct place *p) { return p->ops->advise(p->e, p->fd, 0, 8, ENV_WILL_NEED) >= 0; }

#if !defined(REMIXDB_NO_URING)
// Makes a ring, where the system has them, and ends it.
static bool do_ring(struct place *p) {
  struct blkio io;
  blkio_init(&io, p->e, BLKIO_URING);
  blkio_fini(&io);
  return true;
}
#endif

// Finds out whether there is AIO, and reads by it.
static bool do_aio(struct place *p) {
  struct blkio io;
  char buf[2][4];
  struct blkio_read reads[2] = {{.fd = p->fd, .path = "file", .buf = buf[0], .len = 4},
                                {.fd = p->fd, .path = "file", .buf = buf[1], .len = 4, .off = 4}};
  blkio_init(&io, p->e, BLKIO_AIO);
  const enum remixdb_status s = blkio_read_batch(blkio_shared(&io), reads, 2);
  blkio_fini(&io);
  return s == REMIXDB_OK && memcmp(buf[0], "abcd", 4) == 0 && memcmp(buf[1], "efgh", 4) == 0;
}

static bool do_sleep(struct place *p) {
  (void)p;
  time_sleep_ns(1);
  return true;
}

static bool do_reason(struct place *p) {
  char buf[128];
  (void)p;
  return strlen(err_reason(ENOENT, buf, sizeof(buf))) > 0;
}

struct call {
  const char *name;
  bool (*fn)(struct place *p);
  uint32_t least;  // points it comes to, at least, where every call is one
};
// One for each function of the table, in its order.
static const struct call ops[] = {
    {"open", do_open, 4},           {"close", do_close, 1},         {"pread", do_pread, 1},
    {"pwrite", do_pwrite, 1},       {"sync_data", do_sync_data, 1}, {"sync_all", do_sync_all, 1},
    {"sync_head", do_sync_head, 1}, {"truncate", do_truncate, 1},   {"allocate", do_allocate, 1},
    {"punch", do_punch, 1},         {"fstat", do_fstat, 1},         {"stat", do_stat, 1},
    {"rename", do_rename, 1},       {"unlink", do_unlink, 1},       {"link", do_link, 1},
    {"mkdir", do_mkdir, 1},         {"rmdir", do_rmdir, 1},         {"list", do_list, 5},
    {"lock", do_lock, 1},           {"unlock", do_unlock, 1},       {"seek", do_seek, 1},
    {"write_out", do_write_out, 1}, {"advise", do_advise, 1},       {"no_direct", do_no_direct, 0},
};
_Static_assert(sizeof(ops) / sizeof(ops[0]) == sizeof(struct env_ops) / sizeof(void (*)(void)),
               "every function of the table is called");
static const struct call others[] = {
#if !defined(REMIXDB_NO_URING)
    {"a ring", do_ring, 1},
#endif
    {"AIO", do_aio, LIB_TSAN ? 2 : 3},
    {"sleeping", do_sleep, 1},
#if defined(__GLIBC__)
    {"the text of an errno", do_reason, 1},
#endif
};

// ---- a thread whose cancellation has come

struct victim {
  const struct call *call;
  struct place *place;
  bool returned, good, restored;
  uint32_t points;
};

static void *victim_main(void *arg) {
  struct victim *const v = arg;
  int state;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
  (void)pthread_cancel(pthread_self());
  (void)pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
  victim = true;
  const bool good = v->call->fn(v->place);
  victim = false;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  v->good = good;
  v->restored = state == PTHREAD_CANCEL_ENABLE;
  v->points = nr_points;
  v->returned = true;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
  pthread_testcancel();
  return NULL;
}

static void run(const struct call *c) {
  struct env *const e = env_posix();
  struct place p = {.e = e, .ops = e->ops};
  struct victim v = {.call = c, .place = &p};
  pthread_t t;
  void *end = NULL;
  CHECK(temp_make(dir, "cancel"));
  OK(env_open(ENV_PATHS(e), at("file"), ENV_READ | ENV_WRITE | ENV_CREATE, &p.fd));
  OK(env_write(e, p.fd, "file", "abcdefgh", 8, 0));
  OK(env_mkdir(ENV_PATHS(e), at("empty")));
  CHECK(pthread_create(&t, NULL, victim_main, &v) == 0 && pthread_join(t, &end) == 0);
  if (!v.returned) fail_msg("%s: the thread ended in the call", c->name);
  if (!v.good) fail_msg("%s failed", c->name);
  if (!v.restored || end != PTHREAD_CANCELED) fail_msg("%s: the thread was not cancelled afterwards", c->name);
  if (POINTS && v.points < c->least) fail_msg("%s: %u calls, %u at least", c->name, v.points, c->least);
  if (c->fn != do_close) env_close_quiet(e, p.fd);
  CHECK(remove_tree(dir) == 0);
}

static void test_env(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) run(&ops[i]);
}

static void test_others(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) run(&others[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_env), cmocka_unit_test(test_others)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
