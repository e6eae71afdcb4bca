// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/env.h"
#include "tests/lib/paths.h"
#include "tests/lib/temp.h"

static char dir[ENV_PATH_MAX];
static struct env *px;

static const char *at(const char *name) {
  static char path[4][ENV_PATH_MAX];
  static unsigned n;
  char *const p = path[n++ % 4];
  OK(env_path(p, dir, name));
  return p;
}

static int make_dir(void **state) {
  (void)state;
  px = env_posix();
  return temp_make(dir, "env") ? 0 : -1;
}

static bool remove_one(void *arg, const char *name) {
  (void)arg;
  char p[2 * ENV_PATH_MAX];
  (void)snprintf(p, sizeof(p), "%s/%s", dir, name);
  if (unlink(p) != 0) (void)rmdir(p);
  return true;
}

static int remove_dir(void **state) {
  (void)state;
  const enum remixdb_status s = paths_list(px, dir, remove_one, NULL);
  return s == REMIXDB_OK ? rmdir(dir) : -1;
}

// ---- the real one

// Reading leaves the time of the last access alone where that is allowed: to a file's owner. Others read it all the
// same.
static void test_anothers_file(void **state) {
  (void)state;
  const bool root = geteuid() == 0;
  if (root) assert_int_equal(seteuid(65534), 0);
  int fd = -1;
  const enum remixdb_status s = env_open(ENV_PATHS(px), "/etc/passwd", ENV_READ, &fd);
  if (root) assert_int_equal(seteuid(0), 0);
  OK(s);
  char c;
  OK(env_read(px, fd, "/etc/passwd", &c, 1, 0));
  OK(env_close(px, fd, "/etc/passwd"));
#if defined(O_NOATIME)
  OK(paths_replace_file(px, dir, "own", "x", 1));
  OK(env_open(ENV_PATHS(px), at("own"), ENV_READ, &fd));
  assert_true(fcntl(fd, F_GETFL) & O_NOATIME);
  OK(env_close(px, fd, at("own")));
#endif
}

static void test_read_write(void **state) {
  (void)state;
  const char *const path = at("f");
  int fd = 0;
  err_finish(REMIXDB_OK);
  FAILS(env_open(ENV_PATHS(px), path, ENV_READ, &fd), REMIXDB_NOTFOUND);
  assert_int_equal(fd, -1);
  assert_string_equal(err_msg(), "");
  OK(env_open(ENV_PATHS(px), path, ENV_READ | ENV_WRITE | ENV_CREATE | ENV_EXCL, &fd));
  assert_true(fd >= 0);
  OK(env_write(px, fd, path, "hello world", 11, 3));
  uint64_t size = 0;
  OK(env_size(px, fd, path, &size));
  assert_int_equal(size, 14);
  char buf[32] = "";
  OK(env_read(px, fd, path, buf, 14, 0));
  assert_memory_equal(buf, "\0\0\0hello world", 14);
  FAILS(env_read(px, fd, path, buf, 15, 0), REMIXDB_CORRUPT);
  assert_non_null(strstr(err_msg(), "offset 14"));
  assert_non_null(strstr(err_msg(), path));
  size_t nr = 99;
  OK(env_read_upto(px, fd, path, buf, 32, 9, &nr));
  assert_int_equal(nr, 5);
  OK(env_read_upto(px, fd, path, buf, 32, 100, &nr));
  assert_int_equal(nr, 0);
  OK(env_sync_data(px, fd, path));
  OK(env_sync_all(px, fd, path));
  OK(env_truncate(px, fd, path, 5));
  OK(env_size(px, fd, path, &size));
  assert_int_equal(size, 5);
  OK(env_allocate(px, fd, path, 0, 8192));
  OK(env_size(px, fd, path, &size));
  assert_true(size == 8192 || size == 5);
  env_write_out(px, fd, 0, 4096);
  OK(env_close(px, fd, path));
  // an existing file cannot be made again, but can be emptied
  FAILS(env_open(ENV_PATHS(px), path, ENV_WRITE | ENV_CREATE | ENV_EXCL, &fd), REMIXDB_IO);
  OK(env_open(ENV_PATHS(px), path, ENV_WRITE | ENV_CREATE | ENV_TRUNC, &fd));
  OK(env_size(px, fd, path, &size));
  assert_int_equal(size, 0);
  OK(env_close(px, fd, path));
  FAILS(env_close(px, fd, path), REMIXDB_IO);
  env_close_quiet(px, -1);
}

static void test_direct(void **state) {
  (void)state;
  const char *const path = at("direct");
  uint8_t *const buf = mem_alloc_aligned(4096, 8192);
  int fd;
  assert_non_null(buf);
  memset(buf, 7, 4096);
  OK(env_open(ENV_PATHS(px), path, ENV_READ | ENV_WRITE | ENV_CREATE | ENV_EXCL | ENV_DIRECT, &fd));
  OK(env_write(px, fd, path, buf, 4096, 4096));
  OK(env_read(px, fd, path, buf, 8192, 0));
  assert_int_equal(buf[0], 0);
  assert_int_equal(buf[8191], 7);
  OK(env_close(px, fd, path));
  mem_free(buf);
}

static bool count_names(void *arg, const char *name) {
  if (strncmp(name, "n-", 2) == 0) ++*(int *)arg;
  return true;
}

static bool stop_at_once(void *arg, const char *name) {
  (void)name;
  ++*(int *)arg;
  return false;
}

// A file never gets the number of a standard descriptor that the program has closed.
static void test_closed_std(void **state) {
  (void)state;
  static const unsigned flags[] = {ENV_READ | ENV_WRITE | ENV_CREATE | ENV_EXCL, ENV_READ, ENV_WRITE,
                                   ENV_READ | ENV_DIRECT};
  enum { NR = sizeof(flags) / sizeof(flags[0]) };
  char path[ENV_PATH_MAX];  // at() is for one at a time
  int kept[3], fd[NR], flag[NR];
  enum remixdb_status s[NR];
  snprintf(path, sizeof(path), "%s", at("closed"));
  fflush(NULL);
  for (int i = 0; i < 3; i++) {
    kept[i] = fcntl(i, F_DUPFD_CLOEXEC, 3);
    close(i);
  }
  for (uint32_t i = 0; i < NR; i++) {
    s[i] = env_open(ENV_PATHS(px), path, flags[i], &fd[i]);
    flag[i] = fcntl(fd[i], F_GETFD);
  }
  bool closed = true;
  for (int i = 0; i < 3; i++) {
    closed = closed && fcntl(i, F_GETFD) < 0;
    dup2(kept[i], i);
    close(kept[i]);
  }
  assert_true(closed);
  for (uint32_t i = 0; i < NR; i++) {
    OK(s[i]);
    assert_true(fd[i] > 2);
    assert_int_equal(flag[i], FD_CLOEXEC);
    OK(env_close(px, fd[i], path));
  }
}

static void test_names(void **state) {
  (void)state;
  struct env_stat st;
  int fd;
  FAILS(env_stat(ENV_PATHS(px), at("none"), &st), REMIXDB_NOTFOUND);
  OK(env_open(ENV_PATHS(px), at("n-a"), ENV_WRITE | ENV_CREATE, &fd));
  OK(env_write(px, fd, at("n-a"), "x", 1, 0));
  env_close_quiet(px, fd);
  OK(env_stat(ENV_PATHS(px), at("n-a"), &st));
  assert_true(st.size == 1 && !st.is_dir);
  OK(env_link(ENV_PATHS(px), at("n-a"), ENV_PATHS(px), at("n-b")));
  FAILS(env_link(ENV_PATHS(px), at("n-a"), ENV_PATHS(px), at("n-b")), REMIXDB_IO);
  OK(env_rename(ENV_PATHS(px), at("n-a"), ENV_PATHS(px), at("n-c")));
  FAILS(env_rename(ENV_PATHS(px), at("n-a"), ENV_PATHS(px), at("n-c")), REMIXDB_IO);
  assert_non_null(strstr(err_msg(), "n-a"));
  OK(env_mkdir(ENV_PATHS(px), at("n-d")));
  OK(env_mkdir(ENV_PATHS(px), at("n-d")));                   // present is success
  FAILS(env_mkdir(ENV_PATHS(px), at("n-b")), REMIXDB_IO);    // but not as a file
  FAILS(env_mkdir(ENV_PATHS(px), at("no/no")), REMIXDB_IO);  // one component only
  OK(env_stat(ENV_PATHS(px), at("n-d"), &st));
  assert_true(st.is_dir);
  int nr = 0;
  OK(paths_list(px, dir, count_names, &nr));
  assert_int_equal(nr, 3);
  nr = 0;
  OK(paths_list(px, dir, stop_at_once, &nr));
  assert_int_equal(nr, 1);
  FAILS(paths_list(px, at("none"), count_names, &nr), REMIXDB_NOTFOUND);
  OK(paths_sync_dir(px, dir));
  FAILS(paths_sync_dir(px, at("none")), REMIXDB_NOTFOUND);
  OK(env_unlink(ENV_PATHS(px), at("n-b")));
  OK(env_unlink(ENV_PATHS(px), at("n-b")));  // absent is success
  OK(env_unlink(ENV_PATHS(px), at("n-c")));
}

static void test_path(void **state) {
  (void)state;
  char buf[ENV_PATH_MAX];
  static char name[ENV_PATH_MAX + 1];
  OK(env_path(buf, "a/b", "c"));
  assert_string_equal(buf, "a/b/c");
  memset(name, 'n', ENV_PATH_MAX);
  FAILS(env_path(buf, "d", name), REMIXDB_INVALID);
  name[ENV_PATH_MAX - 3] = '\0';
  OK(env_path(buf, "d", name));  // fits with its end, exactly
  assert_int_equal(strlen(buf), ENV_PATH_MAX - 1);
  FAILS(paths_replace_file(px, dir, name, "", 0), REMIXDB_INVALID);  // no room for the temporary name
}

static void test_whole_files(void **state) {
  (void)state;
  uint8_t *buf;
  size_t len;
  FAILS(paths_read_file(ENV_PATHS(px), at("whole"), 100, &buf, &len), REMIXDB_NOTFOUND);
  assert_null(buf);
  OK(paths_replace_file(px, dir, "whole", "", 0));
  OK(paths_read_file(ENV_PATHS(px), at("whole"), 100, &buf, &len));
  assert_int_equal(len, 0);
  assert_int_equal(buf[0], 0);
  mem_free(buf);
  OK(paths_replace_file(px, dir, "whole", "0123456789", 10));
  OK(paths_replace_file(px, dir, "whole", "012345", 6));
  OK(paths_read_file(ENV_PATHS(px), at("whole"), 6, &buf, &len));
  assert_int_equal(len, 6);
  assert_memory_equal(buf, "012345", 7);
  mem_free(buf);
  FAILS(paths_read_file(ENV_PATHS(px), at("whole"), 5, &buf, &len), REMIXDB_CORRUPT);
  assert_null(buf);
  struct env_stat st;
  FAILS(env_stat(ENV_PATHS(px), at("whole.tmp"), &st), REMIXDB_NOTFOUND);
}

static void test_lock(void **state) {
  (void)state;
  int fd, fd2;
  FAILS(env_lock(ENV_PATHS(px), at("LOCK"), false, &fd), REMIXDB_NOTFOUND);  // a reader makes no file
  assert_int_equal(fd, -1);
  OK(env_lock(ENV_PATHS(px), at("LOCK"), true, &fd));
  FAILS(env_lock(ENV_PATHS(px), at("LOCK"), true, &fd2), REMIXDB_LOCKED);
  assert_int_equal(fd2, -1);
  FAILS(env_lock(ENV_PATHS(px), at("LOCK"), false, &fd2), REMIXDB_LOCKED);
  assert_non_null(strstr(err_msg(), "LOCK"));
  env_close_quiet(px, fd);
  OK(env_lock(ENV_PATHS(px), at("LOCK"), false, &fd));
  OK(env_lock(ENV_PATHS(px), at("LOCK"), false, &fd2));  // readers share
  env_close_quiet(px, fd);
  env_close_quiet(px, fd2);
  // the lock of a process that dies is free
  const pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) _exit(env_lock(ENV_PATHS(px), at("LOCK"), true, &fd) == REMIXDB_OK ? 0 : 1);
  int status = 0;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  OK(env_lock(ENV_PATHS(px), at("LOCK"), true, &fd));
  env_close_quiet(px, fd);
}

// ---- the locked file is removed

static struct {
  uint32_t left;  // so many times, between the opening of a file and its locking
  bool again;     // another takes its place
  int held;       // and is locked: this descriptor
  uint32_t open_nr;
} removal;

static int removing_open(struct env *e, int at, const char *path, unsigned flags) {
  (void)e;
  const int fd = px->ops->open(px, at, path, flags);
  removal.open_nr += fd >= 0;
  return fd;
}

static int removing_close(struct env *e, int fd) {
  (void)e;
  removal.open_nr--;
  return px->ops->close(px, fd);
}

static int removing_lock(struct env *e, int fd, bool exclusive) {
  (void)e;
  if (removal.left) {
    removal.left--;
    assert_int_equal(unlink(at("LOCK")), 0);
    if (removal.again) OK(env_lock(ENV_PATHS(px), at("LOCK"), true, &removal.held));
  }
  return px->ops->lock(px, fd, exclusive);
}

// The owner of the lock may remove the file, as destroying a store does. A lock taken on that file is then no lock.
static void test_lock_removed(void **state) {
  (void)state;
  struct env_ops ops = *px->ops;
  ops.open = removing_open;
  ops.close = removing_close;
  ops.lock = removing_lock;
  struct env e = {.ops = &ops};
  int fd, fd2;
  removal.left = 3;
  OK(env_lock(ENV_PATHS(&e), at("LOCK"), true, &fd));
  assert_int_equal(removal.open_nr, 1);
  FAILS(env_lock(ENV_PATHS(px), at("LOCK"), true, &fd2), REMIXDB_LOCKED);
  env_unlock(&e, fd);
  // somebody else has made it anew
  removal.left = 1;
  removal.again = true;
  FAILS(env_lock(ENV_PATHS(&e), at("LOCK"), true, &fd), REMIXDB_LOCKED);
  assert_int_equal(fd, -1);
  env_unlock(px, removal.held);
  removal.left = 1;
  FAILS(env_lock(ENV_PATHS(&e), at("LOCK"), false, &fd), REMIXDB_LOCKED);
  env_unlock(px, removal.held);
  // a reader makes none
  removal.left = 1;
  removal.again = false;
  FAILS(env_lock(ENV_PATHS(&e), at("LOCK"), false, &fd), REMIXDB_NOTFOUND);
  // not for ever
  removal.left = UINT32_MAX;
  FAILS(env_lock(ENV_PATHS(&e), at("LOCK"), true, &fd), REMIXDB_LOCKED);
  assert_non_null(strstr(err_msg(), "LOCK"));
  assert_int_equal(fd, -1);
  assert_int_equal(removal.open_nr, 0);
  removal.left = 0;
}

// ---- a bad disk over the real one: one call of one kind fails, others are interrupted or come short

enum op {
  OP_NONE,
  OP_OPEN,
  OP_CLOSE,
  OP_READ,
  OP_WRITE,
  OP_SYNC_DATA,
  OP_SYNC_ALL,
  OP_SYNC_HEAD,
  OP_TRUNC,
  OP_ALLOC,
  OP_PUNCH,
  OP_FSTAT,
  OP_RENAME,
  OP_LOCK
};

struct bad {
  struct env env;
  struct env_ops ops;
  enum op fail;
  int error;   // the failing call's
  bool jumpy;  // every other read and write is interrupted, the rest do one byte
  bool zero;   // writes write nothing
  unsigned turn;
  int open_nr;  // descriptors open
};

static struct bad *bad_of(struct env *e) { return e->priv; }
static int bad_hit(struct env *e, enum op op) { return bad_of(e)->fail == op ? -bad_of(e)->error : 0; }

static int bad_open(struct env *e, int at, const char *path, unsigned flags) {
  if (bad_of(e)->jumpy && bad_of(e)->turn++ % 2 == 0) return -EINTR;
  if (bad_hit(e, OP_OPEN)) return bad_hit(e, OP_OPEN);
  const int fd = px->ops->open(px, at, path, flags);
  if (fd >= 0) bad_of(e)->open_nr++;
  return fd;
}
static int bad_close(struct env *e, int fd) {
  bad_of(e)->open_nr--;
  const int rc = px->ops->close(px, fd);
  return bad_hit(e, OP_CLOSE) ? bad_hit(e, OP_CLOSE) : rc;
}
static ssize_t bad_pread(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  if (bad_hit(e, OP_READ)) return bad_hit(e, OP_READ);
  if (bad_of(e)->jumpy && bad_of(e)->turn++ % 2 == 0) return -EINTR;
  return px->ops->pread(px, fd, buf, bad_of(e)->jumpy && len > 1 ? 1 : len, off);
}
static ssize_t bad_pwrite(struct env *e, int fd, const void *buf, size_t len, uint64_t off) {
  if (bad_hit(e, OP_WRITE)) return bad_hit(e, OP_WRITE);
  if (bad_of(e)->zero) return 0;
  if (bad_of(e)->jumpy && bad_of(e)->turn++ % 2 == 0) return -EINTR;
  return px->ops->pwrite(px, fd, buf, bad_of(e)->jumpy && len > 1 ? 1 : len, off);
}
static int bad_sync_data(struct env *e, int fd) {
  return bad_hit(e, OP_SYNC_DATA) ? bad_hit(e, OP_SYNC_DATA) : px->ops->sync_data(px, fd);
}
static int bad_sync_all(struct env *e, int fd) {
  if (bad_of(e)->jumpy && bad_of(e)->turn++ % 2 == 0) return -EINTR;
  return bad_hit(e, OP_SYNC_ALL) ? bad_hit(e, OP_SYNC_ALL) : px->ops->sync_all(px, fd);
}
static int bad_sync_head(struct env *e, int fd, uint64_t len) {
  if (bad_of(e)->jumpy && bad_of(e)->turn++ % 2 == 0) return -EINTR;
  return bad_hit(e, OP_SYNC_HEAD) ? bad_hit(e, OP_SYNC_HEAD) : px->ops->sync_head(px, fd, len);
}
static int bad_truncate(struct env *e, int fd, uint64_t size) {
  return bad_hit(e, OP_TRUNC) ? bad_hit(e, OP_TRUNC) : px->ops->truncate(px, fd, size);
}
static int bad_allocate(struct env *e, int fd, uint64_t off, uint64_t len) {
  return bad_hit(e, OP_ALLOC) ? bad_hit(e, OP_ALLOC) : px->ops->allocate(px, fd, off, len);
}
static int bad_punch(struct env *e, int fd, uint64_t off, uint64_t len) {
  if (bad_of(e)->jumpy && bad_of(e)->turn++ % 2 == 0) return -EINTR;
  return bad_hit(e, OP_PUNCH) ? bad_hit(e, OP_PUNCH) : px->ops->punch(px, fd, off, len);
}
static int bad_fstat(struct env *e, int fd, struct env_stat *out) {
  return bad_hit(e, OP_FSTAT) ? bad_hit(e, OP_FSTAT) : px->ops->fstat(px, fd, out);
}
static int bad_rename(struct env *e, int from_at, const char *from, int to_at, const char *to) {
  return bad_hit(e, OP_RENAME) ? bad_hit(e, OP_RENAME) : px->ops->rename(px, from_at, from, to_at, to);
}
static int bad_lock(struct env *e, int fd, bool exclusive) {
  return bad_hit(e, OP_LOCK) ? bad_hit(e, OP_LOCK) : px->ops->lock(px, fd, exclusive);
}

static struct env *bad_init(struct bad *b, enum op fail, int error) {
  memset(b, 0, sizeof(*b));
  b->ops = *px->ops;
  b->ops.open = bad_open;
  b->ops.close = bad_close;
  b->ops.pread = bad_pread;
  b->ops.pwrite = bad_pwrite;
  b->ops.sync_data = bad_sync_data;
  b->ops.sync_all = bad_sync_all;
  b->ops.sync_head = bad_sync_head;
  b->ops.truncate = bad_truncate;
  b->ops.allocate = bad_allocate;
  b->ops.punch = bad_punch;
  b->ops.fstat = bad_fstat;
  b->ops.rename = bad_rename;
  b->ops.lock = bad_lock;
  b->env = (struct env){.ops = &b->ops, .priv = b, .native = false};
  b->fail = fail;
  b->error = error;
  return &b->env;
}

// A hole reads as zeros, and neither the bytes around it nor the size change.
static void test_punch(void **state) {
  (void)state;
  struct bad b;
  struct env *const e = bad_init(&b, OP_NONE, 0);
  const char *const path = at("holes");
  uint8_t buf[4 * 4096], want[sizeof(buf)];
  uint64_t size = 0;
  int fd;
  bool can = false;
  b.jumpy = true;  // the first try is interrupted
  memset(want, 'x', sizeof(want));
  OK(env_open(ENV_PATHS(e), path, ENV_READ | ENV_WRITE | ENV_CREATE | ENV_TRUNC, &fd));
  OK(env_write(px, fd, path, want, sizeof(want), 0));
  OK(env_punch(e, fd, path, 4096, 8192, &can));
  if (can) memset(want + 4096, 0, 8192);
  OK(env_read(px, fd, path, buf, sizeof(buf), 0));
  assert_memory_equal(buf, want, sizeof(buf));
  OK(env_punch(e, fd, path, 3 * 4096, 1 << 20, &can));
  OK(env_size(px, fd, path, &size));
  assert_int_equal(size, sizeof(want));
  OK(env_close(px, fd, path));
}

static void test_interrupted_and_short(void **state) {
  (void)state;
  struct bad b;
  struct env *const e = bad_init(&b, OP_NONE, 0);
  uint8_t *buf;
  size_t len;
  b.jumpy = true;
  OK(paths_replace_file(e, dir, "jumpy", "twenty bytes of text", 20));
  OK(paths_read_file(ENV_PATHS(e), at("jumpy"), 20, &buf, &len));
  assert_int_equal(len, 20);
  assert_memory_equal(buf, "twenty bytes of text", 21);
  mem_free(buf);
  assert_int_equal(b.open_nr, 0);
}

// A replacement that fails anywhere leaves the old file, no temporary one, and no descriptor.
static void test_replace_fails(void **state) {
  (void)state;
  const struct {
    enum op op;
    int error;
    enum remixdb_status want;
    const char *msg;
  } c[] = {{OP_OPEN, EACCES, REMIXDB_IO, "open"},        {OP_WRITE, ENOSPC, REMIXDB_NOSPACE, "write"},
           {OP_WRITE, EIO, REMIXDB_IO, "write"},         {OP_SYNC_ALL, EIO, REMIXDB_IO, "sync"},
           {OP_CLOSE, EDQUOT, REMIXDB_NOSPACE, "close"}, {OP_RENAME, EIO, REMIXDB_IO, "rename"}};
  struct env_dir held;
  OK(env_dir_open(ENV_PATHS(px), dir, &held));
  OK(env_replace_file(&held, "keep", "old", 3));
  for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
    struct bad b;
    struct env *const e = bad_init(&b, c[i].op, c[i].error);
    struct env_stat st;
    uint8_t *buf;
    size_t len;
    held.env = e;
    assert_int_equal(env_replace_file(&held, "keep", "newer", 5), c[i].want);
    assert_non_null(strstr(err_msg(), c[i].msg));
    assert_int_equal(b.open_nr, 0);
    OK(paths_read_file(ENV_PATHS(px), at("keep"), 100, &buf, &len));
    assert_int_equal(len, 3);
    assert_memory_equal(buf, "old", 3);
    mem_free(buf);
    FAILS(env_stat(ENV_PATHS(px), at("keep.tmp"), &st), REMIXDB_NOTFOUND);
  }
  held.env = px;
  env_dir_close(&held);
}

static bool deny_all(size_t size) {
  (void)size;
  return false;
}

static void test_read_file_fails(void **state) {
  (void)state;
  struct bad b;
  uint8_t *buf;
  size_t len;
  OK(paths_replace_file(px, dir, "r", "text", 4));
  FAILS(paths_read_file(ENV_PATHS(bad_init(&b, OP_READ, EIO)), at("r"), 100, &buf, &len), REMIXDB_IO);
  assert_true(!buf && b.open_nr == 0);
  FAILS(paths_read_file(ENV_PATHS(bad_init(&b, OP_FSTAT, EIO)), at("r"), 100, &buf, &len), REMIXDB_IO);
  assert_true(!buf && b.open_nr == 0);
  FAILS(paths_read_file(ENV_PATHS(bad_init(&b, OP_OPEN, EMFILE)), at("r"), 100, &buf, &len), REMIXDB_NOMEM);
  struct env *const e = bad_init(&b, OP_NONE, 0);
  atomic_store(&mem_fault, deny_all);
  const enum remixdb_status s = paths_read_file(ENV_PATHS(e), at("r"), 100, &buf, &len);
  atomic_store(&mem_fault, NULL);
  FAILS(s, REMIXDB_NOMEM);
  assert_true(!buf && b.open_nr == 0);
}

static void test_single_failures(void **state) {
  (void)state;
  struct bad b;
  int fd;
  const char *const path = at("single");
  struct env *e = bad_init(&b, OP_NONE, 0);
  OK(env_open(ENV_PATHS(e), path, ENV_READ | ENV_WRITE | ENV_CREATE, &fd));
  b.fail = OP_SYNC_DATA, b.error = EIO;
  FAILS(env_sync_data(e, fd, path), REMIXDB_IO);
  b.jumpy = true;
  OK(env_sync_head(e, fd, path, 1));  // an empty file
  OK(env_write(e, fd, path, "head and tail", 13, 0));
  OK(env_sync_head(e, fd, path, 4));
  b.jumpy = false;
  b.fail = OP_SYNC_HEAD, b.error = EIO;
  FAILS(env_sync_head(e, fd, path, 4), REMIXDB_IO);
  FAILS(env_sync_head(px, -1, path, 4), REMIXDB_IO);  // neither mapped nor synced as a whole
  b.fail = OP_TRUNC, b.error = EIO;
  FAILS(env_truncate(e, fd, path, 0), REMIXDB_IO);
  b.fail = OP_ALLOC, b.error = EOPNOTSUPP;
  OK(env_allocate(e, fd, path, 0, 4096));
  b.fail = OP_ALLOC, b.error = ENOSPC;
  FAILS(env_allocate(e, fd, path, 0, 4096), REMIXDB_NOSPACE);
  bool can = true;
  b.fail = OP_PUNCH, b.error = EOPNOTSUPP;
  OK(env_punch(e, fd, path, 0, 4096, &can));
  assert_false(can);
  b.fail = OP_PUNCH, b.error = EIO;
  FAILS(env_punch(e, fd, path, 0, 4096, &can), REMIXDB_IO);
  b.fail = OP_SYNC_ALL, b.error = EIO;
  FAILS(paths_sync_dir(e, dir), REMIXDB_IO);
  b.fail = OP_SYNC_ALL, b.error = EINVAL;
  OK(paths_sync_dir(e, dir));
  b.fail = OP_NONE;
  b.zero = true;
  FAILS(env_write(e, fd, path, "x", 1, 0), REMIXDB_IO);  // not forever
  b.fail = OP_CLOSE, b.error = EINTR;
  OK(env_close(e, fd, path));
  const enum op of_lock[] = {OP_LOCK, OP_FSTAT};
  for (size_t i = 0; i < sizeof(of_lock) / sizeof(of_lock[0]); i++) {
    FAILS(env_lock(ENV_PATHS(bad_init(&b, of_lock[i], ENOLCK)), path, true, &fd), REMIXDB_IO);
    assert_int_equal(fd, -1);
    assert_int_equal(b.open_nr, 0);
  }
}

// ---- calls on names that are interrupted before they begin: every other one

static unsigned jumps;
#define JUMP(name, args, call)                        \
  static int jump_##name args {                       \
    (void)e;                                          \
    return jumps++ % 2 == 0 ? -EINTR : px->ops->call; \
  }
JUMP(fstat, (struct env * e, int fd, struct env_stat *out), fstat(px, fd, out))
JUMP(stat, (struct env * e, int d, const char *n, struct env_stat *out), stat(px, d, n, out))
JUMP(rename, (struct env * e, int d, const char *n, int to_d, const char *to), rename(px, d, n, to_d, to))
JUMP(link, (struct env * e, int d, const char *n, int to_d, const char *to), link(px, d, n, to_d, to))
JUMP(unlink, (struct env * e, int d, const char *n), unlink(px, d, n))
JUMP(mkdir, (struct env * e, int d, const char *n), mkdir(px, d, n))
JUMP(rmdir, (struct env * e, int d, const char *n), rmdir(px, d, n))
JUMP(list, (struct env * e, int d, const char *n, bool (*fn)(void *, const char *), void *arg), list(px, d, n, fn, arg))

static bool count_name(void *arg, const char *name) {
  (void)name;
  ++*(uint32_t *)arg;
  return true;
}

static void test_interrupted(void **state) {
  (void)state;
  struct env_ops ops = *px->ops;
  struct env e = {.ops = &ops};
  struct env_dir d;
  struct env_stat st;
  uint64_t size;
  uint32_t nr = 0;
  int fd;
  ops.fstat = jump_fstat;
  ops.stat = jump_stat;
  ops.rename = jump_rename;
  ops.link = jump_link;
  ops.unlink = jump_unlink;
  ops.mkdir = jump_mkdir;
  ops.rmdir = jump_rmdir;
  ops.list = jump_list;
  jumps = 0;
  OK(env_mkdir(ENV_PATHS(&e), at("interrupted")));
  OK(env_dir_open(ENV_PATHS(&e), at("interrupted"), &d));
  OK(env_create(&d, "a", ENV_WRITE, &fd));
  OK(env_size(&e, fd, "a", &size));
  OK(env_close(&e, fd, "a"));
  OK(env_rename(&d, "a", &d, "b"));
  OK(env_link(&d, "b", &d, "c"));
  OK(env_stat(&d, "c", &st));
  assert_int_equal(st.links, 2);
  OK(env_list(&d, count_name, &nr));
  assert_int_equal(nr, 2);
  OK(env_unlink(&d, "b"));
  OK(env_unlink(&d, "c"));
  env_dir_close(&d);
  OK(env_rmdir(ENV_PATHS(&e), at("interrupted")));
  FAILS(env_stat(ENV_PATHS(&e), at("interrupted"), &st), REMIXDB_NOTFOUND);
  assert_int_equal(jumps % 2, 0);
}

// ---- advice

static struct {
  struct env_ops ops;
  uint64_t off[8], len[8];
  uint32_t nr;
} advised;

static int note_advice(struct env *e, int fd, uint64_t off, uint64_t len, enum env_advice advice) {
  (void)e, (void)fd, (void)advice;
  assert_true(advised.nr < 8);
  advised.off[advised.nr] = off;
  advised.len[advised.nr++] = len;
  return -EIO;  // it has no consequence
}

// Only the advice to bring pages in is cut, because the system may bring in no more with one call.
static void test_advice(void **state) {
  (void)state;
  advised.ops = *px->ops;
  advised.ops.advise = note_advice;
  struct env e = {.ops = &advised.ops};
  env_advise(&e, 3, 0, 0, ENV_RANDOM);
  env_advise(&e, 3, 4096, 9 * ENV_WILL_NEED_MAX, ENV_DONT_NEED);
  env_advise(&e, 3, 4096, 0, ENV_WILL_NEED);
  assert_int_equal(advised.nr, 2);
  assert_int_equal(advised.len[0], 0);
  assert_int_equal(advised.len[1], 9 * ENV_WILL_NEED_MAX);
  advised.nr = 0;
  env_advise(&e, 3, 4096, 2 * ENV_WILL_NEED_MAX + 1, ENV_WILL_NEED);
  assert_int_equal(advised.nr, 3);
  for (uint64_t i = 0; i < 3; i++) {
    assert_int_equal(advised.off[i], 4096 + i * ENV_WILL_NEED_MAX);
    assert_int_equal(advised.len[i], i < 2 ? ENV_WILL_NEED_MAX : 1);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_read_write),
      cmocka_unit_test(test_punch),
      cmocka_unit_test(test_direct),
      cmocka_unit_test(test_anothers_file),
      cmocka_unit_test(test_closed_std),
      cmocka_unit_test(test_names),
      cmocka_unit_test(test_path),
      cmocka_unit_test(test_whole_files),
      cmocka_unit_test(test_lock),
      cmocka_unit_test(test_lock_removed),
      cmocka_unit_test(test_interrupted),
      cmocka_unit_test(test_advice),
      cmocka_unit_test(test_interrupted_and_short),
      cmocka_unit_test(test_replace_fails),
      cmocka_unit_test(test_read_file_fails),
      cmocka_unit_test(test_single_failures),
  };
  return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
