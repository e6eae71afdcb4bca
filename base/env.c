// SPDX-License-Identifier: Apache-2.0
#include "base/env.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ENV_IO_MAX ((size_t)1 << 30)  // bytes of one system call; some systems refuse more than INT_MAX
#define ENV_COPY ((size_t)1 << 20)    // bytes to copy at a time
#define ENV_LOCK_TRIES 100u           // each one fails because a store was removed just then

// ---- the real file system: raw calls that return -errno. Each is a cancellation point on some system.

// Never returns a standard descriptor. If the program has closed one, a file would get its number, and prints would go
// into the file.
static int open_above_std(int at, const char *name, int flags) {
  const int fd = openat(at, name, flags, 0644);
  if (likely(fd < 0 || fd > STDERR_FILENO)) return fd;
  const int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), err = errno;
  (void)close(fd);
  errno = err;
  return above;
}

// Opens without waiting, and refuses all but a regular file: opening a pipe without a writer would wait.
static int open_file(int at, const char *name, int flags) {
  struct stat st;
  const int fd = open_above_std(at, name, flags | O_NONBLOCK);
  if (fd < 0) return -errno;
  int err = fstat(fd, &st) != 0 ? errno : S_ISREG(st.st_mode) ? 0 : S_ISDIR(st.st_mode) ? EISDIR : ENXIO;
  // with O_NONBLOCK rings would not wait for the disk
  if (!err && fcntl(fd, F_SETFL, flags) != 0) err = errno;
  if (!err) return fd;
  (void)close(fd);
  return -err;
}

static int open_kind(int at, const char *name, int flags, bool dir) {
  if (!dir) return open_file(at, name, flags);
  const int fd = open_above_std(at, name, flags | O_DIRECTORY);
  return fd >= 0 ? fd : -errno;
}

static int open_flags(int at, unsigned flags) {
  int o = O_CLOEXEC;
  if (at != ENV_HERE) o |= O_NOFOLLOW;
  if (flags & ENV_WRITE) o |= flags & ENV_READ ? O_RDWR : O_WRONLY;
  else o |= O_RDONLY;
  if (flags & ENV_CREATE) o |= O_CREAT;
  if (flags & ENV_EXCL) o |= O_EXCL;
  if (flags & ENV_TRUNC) o |= O_TRUNC;
  return o;
}

static int raw_open(struct env *e, int at, const char *name, unsigned flags) {
  CANCEL_LATER;
  (void)e;
  const bool dir = flags & ENV_DIR;
  int o = open_flags(at, flags), fd;
#if defined(O_DIRECT)
  if (flags & ENV_DIRECT) {
    fd = open_kind(at, name, o | O_DIRECT, dir);
    if (fd != -EINVAL) return fd;
    // This file system has no direct I/O. It may have made the file before it said so.
    o &= ~O_EXCL;
  }
#endif
#if defined(O_NOATIME)
  if (!(flags & (ENV_WRITE | ENV_DIR))) {
    fd = open_kind(at, name, o | O_NOATIME, dir);
    if (fd != -EPERM) return fd;  // EPERM: the file is another user's
  }
#endif
  fd = open_kind(at, name, o, dir);
#if defined(F_NOCACHE)
  if (fd >= 0 && flags & ENV_DIRECT) (void)fcntl(fd, F_NOCACHE, 1);
#endif
  return fd;
}

static int raw_close(struct env *e, int fd) {
  CANCEL_LATER;
  (void)e;
  return close(fd) == 0 ? 0 : -errno;
}

static ssize_t raw_pread(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  CANCEL_LATER;
  (void)e;
  const ssize_t n = pread(fd, buf, len < ENV_IO_MAX ? len : ENV_IO_MAX, (off_t)off);
  return n >= 0 ? n : -errno;
}

static ssize_t raw_pwrite(struct env *e, int fd, const void *buf, size_t len, uint64_t off) {
  CANCEL_LATER;
  (void)e;
  const ssize_t n = pwrite(fd, buf, len < ENV_IO_MAX ? len : ENV_IO_MAX, (off_t)off);
  return n >= 0 ? n : -errno;
}

static int raw_sync_data(struct env *e, int fd) {
  CANCEL_LATER;
  (void)e;
#if defined(__APPLE__)
  // On macOS fsync leaves the data in the drive's cache. It serves only if the file system has nothing stronger; any
  // other failure is a failure.
  if (fcntl(fd, F_FULLFSYNC) == 0) return 0;
  if (errno != ENOTSUP && errno != ENOTTY && errno != EINVAL) return -errno;
  return fsync(fd) == 0 ? 0 : -errno;
#else
  return fdatasync(fd) == 0 ? 0 : -errno;
#endif
}

static int raw_sync_all(struct env *e, int fd) {
  CANCEL_LATER;
#if defined(__APPLE__)
  return raw_sync_data(e, fd);
#else
  (void)e;
  return fsync(fd) == 0 ? 0 : -errno;
#endif
}

// Linux has no call for a part of a file but msync, which syncs that part of the file, also what pwrite wrote. Nobody
// touches the mapping itself, so PROT_READ is enough. The descriptor must be open for writing all the same: by one that
// is not, Linux makes a mapping that msync does not sync. A file that cannot be mapped is synced as a whole.
static int raw_sync_head(struct env *e, int fd, uint64_t len) {
  CANCEL_LATER;
  assert((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY);
#if defined(__linux__)
  void *const p = len <= SIZE_MAX ? mmap(NULL, (size_t)len, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (p != MAP_FAILED) {
    const int rc = msync(p, (size_t)len, MS_SYNC) == 0 ? 0 : -errno;
    (void)munmap(p, (size_t)len);
    if (rc != -ENOSYS && rc != -EPERM) return rc;  // else the process may not call it
  }
#else
  (void)len;
#endif
  return raw_sync_data(e, fd);
}

static int raw_truncate(struct env *e, int fd, uint64_t size) {
  CANCEL_LATER;
  (void)e;
  return ftruncate(fd, (off_t)size) == 0 ? 0 : -errno;
}

// Does not use glibc's posix_fallocate, which writes zeros itself if the file system cannot allocate.
static int raw_allocate(struct env *e, int fd, uint64_t off, uint64_t len) {
  CANCEL_LATER;
  (void)e;
#if defined(__linux__)
  if (fallocate(fd, 0, (off_t)off, (off_t)len) == 0) return 0;
  return errno == ENOSYS ? -EOPNOTSUPP : -errno;
#elif defined(__FreeBSD__)
  const int rc = posix_fallocate(fd, (off_t)off, (off_t)len);
  return rc == EINVAL ? -EOPNOTSUPP : -rc;  // ZFS says EINVAL
#else
  (void)fd, (void)off, (void)len;
  return -EOPNOTSUPP;
#endif
}

static int raw_punch(struct env *e, int fd, uint64_t off, uint64_t len) {
  CANCEL_LATER;
  (void)e;
#if defined(__linux__)
  if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)len) == 0) return 0;
  return errno == ENOSYS ? -EOPNOTSUPP : -errno;
#elif defined(F_PUNCHHOLE)
  fpunchhole_t hole = {.fp_offset = (off_t)off, .fp_length = (off_t)len};
  if (fcntl(fd, F_PUNCHHOLE, &hole) == 0) return 0;
  return errno == ENOTSUP || errno == EINVAL ? -EOPNOTSUPP : -errno;
#else
  (void)fd, (void)off, (void)len;
  return -EOPNOTSUPP;
#endif
}

static int raw_stat_out(const struct stat *st, struct env_stat *out) {
  *out = (struct env_stat){.size = (uint64_t)st->st_size,
                           .dev = (uint64_t)st->st_dev,
                           .ino = (uint64_t)st->st_ino,
                           .links = (uint32_t)st->st_nlink,
                           .is_dir = S_ISDIR(st->st_mode),
                           .is_file = S_ISREG(st->st_mode)};
  return 0;
}

static int raw_fstat(struct env *e, int fd, struct env_stat *out) {
  CANCEL_LATER;
  (void)e;
  struct stat st;
  return fstat(fd, &st) == 0 ? raw_stat_out(&st, out) : -errno;
}

static int raw_stat(struct env *e, int at, const char *name, struct env_stat *out) {
  CANCEL_LATER;
  (void)e;
  struct stat st;
  return fstatat(at, name, &st, at == ENV_HERE ? 0 : AT_SYMLINK_NOFOLLOW) == 0 ? raw_stat_out(&st, out) : -errno;
}

static int raw_rename(struct env *e, int from_at, const char *from, int to_at, const char *to) {
  CANCEL_LATER;
  (void)e;
  return renameat(from_at, from, to_at, to) == 0 ? 0 : -errno;
}

static int raw_unlink(struct env *e, int at, const char *name) {
  CANCEL_LATER;
  (void)e;
  return unlinkat(at, name, 0) == 0 ? 0 : -errno;
}

static int raw_link(struct env *e, int from_at, const char *from, int to_at, const char *to) {
  CANCEL_LATER;
  (void)e;
  return linkat(from_at, from, to_at, to, 0) == 0 ? 0 : -errno;
}

static int raw_mkdir(struct env *e, int at, const char *name) {
  CANCEL_LATER;
  (void)e;
  return mkdirat(at, name, 0755) == 0 ? 0 : -errno;
}

static int raw_rmdir(struct env *e, int at, const char *name) {
  CANCEL_LATER;
  (void)e;
  return unlinkat(at, name, AT_REMOVEDIR) == 0 ? 0 : -errno;
}

static int raw_list(struct env *e, int at, const char *name, bool (*fn)(void *arg, const char *name), void *arg) {
  CANCEL_LATER;
  // A separate descriptor, because threads that read a directory through the same descriptor share its position.
  const int fd = raw_open(e, at, name, ENV_READ | ENV_DIR);
  if (fd < 0) return fd;
  DIR *const d = fdopendir(fd);
  if (!d) {
    const int err = errno;
    (void)close(fd);
    return -err;
  }
  int rc = 0;
  for (;;) {
    errno = 0;
    const struct dirent *const de = readdir(d);
    if (!de) {
      if (errno == EINTR) continue;
      rc = -errno;
      break;
    }
    if (strcmp(de->d_name, ".") == 0 || strcmp(de->d_name, "..") == 0) continue;
    if (!fn(arg, de->d_name)) break;
  }
  (void)closedir(d);
  return rc;
}

static int raw_lock(struct env *e, int fd, bool exclusive) {
  CANCEL_LATER;
  (void)e;
  return flock(fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0 ? 0 : -errno;
}

static int raw_unlock(struct env *e, int fd) {
  CANCEL_LATER;
  (void)e;
  return flock(fd, LOCK_UN) == 0 ? 0 : -errno;
}

static int raw_write_out(struct env *e, int fd, uint64_t off, uint64_t len) {
  CANCEL_LATER;
  (void)e;
#if defined(SYNC_FILE_RANGE_WRITE)
  return sync_file_range(fd, (off_t)off, (off_t)len, SYNC_FILE_RANGE_WRITE) == 0 ? 0 : -errno;
#else
  (void)fd, (void)off, (void)len;
  return 0;
#endif
}

static int raw_advise(struct env *e, int fd, uint64_t off, uint64_t len, enum env_advice advice) {
  CANCEL_LATER;
  (void)e;
#if defined(POSIX_FADV_WILLNEED)
  static const int kinds[] = {[ENV_RANDOM] = POSIX_FADV_RANDOM,
                              [ENV_SEQUENTIAL] = POSIX_FADV_SEQUENTIAL,
                              [ENV_NORMAL] = POSIX_FADV_NORMAL,
                              [ENV_WILL_NEED] = POSIX_FADV_WILLNEED,
                              [ENV_DONT_NEED] = POSIX_FADV_DONTNEED};
  return -posix_fadvise(fd, (off_t)off, (off_t)len, kinds[advice]);
#elif defined(F_RDADVISE) && defined(F_RDAHEAD)
  struct radvisory part = {.ra_offset = (off_t)off, .ra_count = (int)len};
  if (advice == ENV_DONT_NEED) return 0;
  const int rc = advice == ENV_WILL_NEED ? fcntl(fd, F_RDADVISE, &part) : fcntl(fd, F_RDAHEAD, advice != ENV_RANDOM);
  return rc >= 0 ? 0 : -errno;
#else
  (void)fd, (void)off, (void)len, (void)advice;
  return 0;
#endif
}

static int raw_no_direct(struct env *e, int fd) {
  CANCEL_LATER;
  (void)e;
#if defined(O_DIRECT)
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0) return -errno;
  if (!(flags & O_DIRECT)) return 0;
  return fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0 ? 1 : -errno;
#else
  (void)fd;
  return 0;
#endif
}

static int64_t raw_seek(struct env *e, int fd, uint64_t off, bool hole) {
  CANCEL_LATER;
  (void)e;
#if defined(SEEK_DATA) && defined(SEEK_HOLE)
  // Moving the file's position does no harm: all reads and writes name their offsets.
  const off_t at = lseek(fd, (off_t)off, hole ? SEEK_HOLE : SEEK_DATA);
  return at >= 0 ? (int64_t)at : -errno;
#else
  (void)fd, (void)off, (void)hole;
  return -EINVAL;
#endif
}

static const struct env_ops raw_ops = {
    .open = raw_open,
    .close = raw_close,
    .pread = raw_pread,
    .pwrite = raw_pwrite,
    .sync_data = raw_sync_data,
    .sync_all = raw_sync_all,
    .sync_head = raw_sync_head,
    .truncate = raw_truncate,
    .allocate = raw_allocate,
    .punch = raw_punch,
    .fstat = raw_fstat,
    .stat = raw_stat,
    .rename = raw_rename,
    .unlink = raw_unlink,
    .link = raw_link,
    .mkdir = raw_mkdir,
    .rmdir = raw_rmdir,
    .list = raw_list,
    .lock = raw_lock,
    .unlock = raw_unlock,
    .seek = raw_seek,
    .write_out = raw_write_out,
    .advise = raw_advise,
    .no_direct = raw_no_direct,
};

struct env *env_posix(void) {
  static struct env posix = {.ops = &raw_ops, .priv = NULL, .native = true};
  return &posix;
}

// ---- loops, checks and messages

// Returns a file's path for messages; only its name if the path does not fit.
static const char *message_path(char *buf, const struct env_dir *at, const char *name) {
  return at->fd == ENV_HERE || env_path(buf, at->path, name) != REMIXDB_OK ? name : buf;
}

// Reports the failure of a call on a name in a directory; rc: its -errno.
static enum remixdb_status at_errno(int rc, const char *what, const struct env_dir *at, const char *name) {
  char path[ENV_PATH_MAX];
  return err_errno(-rc, what, message_path(path, at, name));
}

enum remixdb_status env_open(const struct env_dir *at, const char *name, unsigned flags, int *fd_out) {
  int fd;
  do fd = at->env->ops->open(at->env, at->fd, name, flags);
  while (fd == -EINTR);
  *fd_out = fd < 0 ? -1 : fd;
  if (fd >= 0) return REMIXDB_OK;
  if (fd == -ENOENT && !(flags & ENV_CREATE)) return REMIXDB_NOTFOUND;
  char path[ENV_PATH_MAX];
  // systems differ in what they say of a symbolic link
  if (fd == -ELOOP || fd == -EMLINK || fd == -ENXIO)
    return err_set(REMIXDB_IO, "%s: is a symbolic link, a pipe or a device: not a file", message_path(path, at, name));
  return at_errno(fd, "open", at, name);
}

enum remixdb_status env_create(const struct env_dir *at, const char *name, unsigned flags, int *fd_out) {
  const unsigned anew = flags | ENV_CREATE | ENV_EXCL;
  int fd;
  do fd = at->env->ops->open(at->env, at->fd, name, anew);
  while (fd == -EINTR);
  *fd_out = fd < 0 ? -1 : fd;
  if (fd >= 0) return REMIXDB_OK;
  if (fd != -EEXIST) return at_errno(fd, "open", at, name);
  const enum remixdb_status s = env_unlink(at, name);
  return s == REMIXDB_OK ? env_open(at, name, anew, fd_out) : s;
}

char *env_path_new(const struct env_dir *at, const char *name) {
  const size_t before = at->fd == ENV_HERE ? 0 : strlen(at->path) + 1, len = strlen(name) + 1;
  char *const path = mem_alloc(before + len);
  if (!path) return NULL;
  if (before) memcpy(path, at->path, before - 1);
  if (before) path[before - 1] = '/';
  memcpy(path + before, name, len);
  return path;
}

enum remixdb_status env_dir_open(const struct env_dir *at, const char *name, struct env_dir *out) {
  *out = (struct env_dir){.env = at->env, .fd = -1, .path = env_path_new(at, name)};
  if (!out->path) return REMIXDB_NOMEM;
  return env_open(at, name, ENV_READ | ENV_DIR, &out->fd);
}

void env_dir_close(struct env_dir *d) {
  if (d->path) env_close_quiet(d->env, d->fd);
  mem_free(d->path);
  *d = (struct env_dir){.fd = -1};
}

// After EINTR the descriptor is closed, too (Linux): closing it again could close another thread's.
enum remixdb_status env_close(struct env *e, int fd, const char *path) {
  const int rc = e->ops->close(e, fd);
  return rc >= 0 || rc == -EINTR ? REMIXDB_OK : err_errno(-rc, "close", path);
}

void env_close_quiet(struct env *e, int fd) {
  if (fd >= 0) (void)e->ops->close(e, fd);
}

// A transfer has failed. Whether it may be tried again, through the page cache.
static bool cached_instead(struct env *e, int fd, ssize_t n) {
  return n == -EINVAL && e->ops->no_direct && e->ops->no_direct(e, fd) > 0;
}

enum remixdb_status env_read_upto(struct env *e, int fd, const char *path, void *buf, size_t len, uint64_t off,
                                  size_t *nr_out) {
  size_t done = 0;
  *nr_out = 0;
  while (done < len) {
    const ssize_t n = e->ops->pread(e, fd, (uint8_t *)buf + done, len - done, off + done);
    if (n == -EINTR || (n < 0 && cached_instead(e, fd, n))) continue;
    if (n < 0) return err_errno((int)-n, "read", path);
    if (n == 0) break;
    done += (size_t)n;
  }
  *nr_out = done;
  return REMIXDB_OK;
}

enum remixdb_status env_read(struct env *e, int fd, const char *path, void *buf, size_t len, uint64_t off) {
  size_t nr;
  const enum remixdb_status s = env_read_upto(e, fd, path, buf, len, off, &nr);
  if (s != REMIXDB_OK || nr == len) return s;
  return err_corrupt(path, off + nr, "truncated: %zu bytes missing", len - nr);
}

enum remixdb_status env_write(struct env *e, int fd, const char *path, const void *buf, size_t len, uint64_t off) {
  size_t done = 0;
  while (done < len) {
    const ssize_t n = e->ops->pwrite(e, fd, (const uint8_t *)buf + done, len - done, off + done);
    if (n == -EINTR || (n < 0 && cached_instead(e, fd, n))) continue;
    if (n < 0) return err_errno((int)-n, "write", path);
    if (n == 0) return err_set(REMIXDB_IO, "write %s: nothing was written", path);  // would loop for ever
    done += (size_t)n;
  }
  return REMIXDB_OK;
}

enum remixdb_status env_sync_data(struct env *e, int fd, const char *path) {
  int rc;
  do rc = e->ops->sync_data(e, fd);
  while (rc == -EINTR);
  return rc >= 0 ? REMIXDB_OK : err_errno(-rc, "sync", path);
}

enum remixdb_status env_sync_all(struct env *e, int fd, const char *path) {
  int rc;
  do rc = e->ops->sync_all(e, fd);
  while (rc == -EINTR);
  return rc >= 0 ? REMIXDB_OK : err_errno(-rc, "sync", path);
}

enum remixdb_status env_sync_head(struct env *e, int fd, const char *path, uint64_t len) {
  int rc;
  assert(len > 0);
  do rc = e->ops->sync_head(e, fd, len);
  while (rc == -EINTR);
  return rc >= 0 ? REMIXDB_OK : err_errno(-rc, "sync", path);
}

enum remixdb_status env_sync_dir(const struct env_dir *d) {
  int rc;
  do rc = d->env->ops->sync_all(d->env, d->fd);
  while (rc == -EINTR);
  // EINVAL: directories of this file system have no sync, and need none
  return rc >= 0 || rc == -EINVAL ? REMIXDB_OK : err_errno(-rc, "sync", d->path);
}

enum remixdb_status env_truncate(struct env *e, int fd, const char *path, uint64_t size) {
  int rc;
  do rc = e->ops->truncate(e, fd, size);
  while (rc == -EINTR);
  return rc >= 0 ? REMIXDB_OK : err_errno(-rc, "truncate", path);
}

enum remixdb_status env_allocate(struct env *e, int fd, const char *path, uint64_t off, uint64_t len) {
  int rc;
  do rc = e->ops->allocate(e, fd, off, len);
  while (rc == -EINTR);
  return rc >= 0 || rc == -EOPNOTSUPP ? REMIXDB_OK : err_errno(-rc, "allocate", path);
}

enum remixdb_status env_punch(struct env *e, int fd, const char *path, uint64_t off, uint64_t len, bool *can_out) {
  int rc;
  do rc = e->ops->punch(e, fd, off, len);
  while (rc == -EINTR);
  *can_out = rc != -EOPNOTSUPP;
  return rc >= 0 || rc == -EOPNOTSUPP ? REMIXDB_OK : err_errno(-rc, "punch a hole into", path);
}

enum remixdb_status env_fstat(struct env *e, int fd, const char *path, struct env_stat *out) {
  int rc;
  do rc = e->ops->fstat(e, fd, out);
  while (rc == -EINTR);
  return rc >= 0 ? REMIXDB_OK : err_errno(-rc, "stat", path);
}

enum remixdb_status env_size(struct env *e, int fd, const char *path, uint64_t *size_out) {
  struct env_stat st;
  const enum remixdb_status s = env_fstat(e, fd, path, &st);
  if (s == REMIXDB_OK) *size_out = st.size;
  return s;
}

enum remixdb_status env_stat(const struct env_dir *at, const char *name, struct env_stat *out) {
  int rc;
  do rc = at->env->ops->stat(at->env, at->fd, name, out);
  while (rc == -EINTR);
  if (rc == -ENOENT) return REMIXDB_NOTFOUND;
  return rc >= 0 ? REMIXDB_OK : at_errno(rc, "stat", at, name);
}

enum remixdb_status env_rename(const struct env_dir *from_at, const char *from, const struct env_dir *to_at,
                               const char *to) {
  int rc;
  do rc = from_at->env->ops->rename(from_at->env, from_at->fd, from, to_at->fd, to);
  while (rc == -EINTR);
  return rc >= 0 ? REMIXDB_OK : at_errno(rc, "rename", from_at, from);
}

enum remixdb_status env_unlink(const struct env_dir *at, const char *name) {
  int rc;
  do rc = at->env->ops->unlink(at->env, at->fd, name);
  while (rc == -EINTR);
  return rc >= 0 || rc == -ENOENT ? REMIXDB_OK : at_errno(rc, "unlink", at, name);
}

enum remixdb_status env_link(const struct env_dir *from_at, const char *from, const struct env_dir *to_at,
                             const char *to) {
  int rc;
  do rc = from_at->env->ops->link(from_at->env, from_at->fd, from, to_at->fd, to);
  while (rc == -EINTR);
  return rc >= 0 ? REMIXDB_OK : at_errno(rc, "link", to_at, to);
}

enum remixdb_status env_mkdir(const struct env_dir *at, const char *name) {
  int rc;
  do rc = at->env->ops->mkdir(at->env, at->fd, name);
  while (rc == -EINTR);
  if (rc >= 0) return REMIXDB_OK;
  struct env_stat st;
  if (rc == -EEXIST && env_stat(at, name, &st) == REMIXDB_OK)
    return st.is_dir ? REMIXDB_OK : at_errno(-ENOTDIR, "mkdir", at, name);
  return at_errno(rc, "mkdir", at, name);
}

enum remixdb_status env_rmdir(const struct env_dir *at, const char *name) {
  int rc;
  do rc = at->env->ops->rmdir(at->env, at->fd, name);
  while (rc == -EINTR);
  const bool stays = rc == -ENOTEMPTY || rc == -EEXIST || rc == -EBUSY || rc == -ENOTDIR || rc == -EINVAL;
  return rc >= 0 || rc == -ENOENT || stays ? REMIXDB_OK : at_errno(rc, "rmdir", at, name);
}

struct listing {
  bool (*fn)(void *arg, const char *name);
  void *arg;
  bool begun;
};

static bool list_name(void *arg, const char *name) {
  struct listing *const l = arg;
  l->begun = true;
  return l->fn(l->arg, name);
}

// A call that is interrupted later than at its beginning would give names twice.
enum remixdb_status env_list(const struct env_dir *d, bool (*fn)(void *arg, const char *name), void *arg) {
  struct listing l = {fn, arg, false};
  int rc;
  do rc = d->env->ops->list(d->env, d->fd, ".", list_name, &l);
  while (rc == -EINTR && !l.begun);
  return rc >= 0 ? REMIXDB_OK : err_errno(-rc, "list", d->path);
}

enum remixdb_status env_dir_make(const struct env_dir *at, const char *name, bool may_make, bool *made_out,
                                 struct env_dir *out) {
  struct env_stat st;
  char path[ENV_PATH_MAX];
  *out = (struct env_dir){.fd = -1};
  enum remixdb_status s = env_stat(at, name, &st);
  *made_out = s == REMIXDB_NOTFOUND && may_make;
  if (*made_out) s = env_mkdir(at, name);
  else if (s == REMIXDB_OK && !st.is_dir)
    s = err_set(REMIXDB_IO, "%s: is a file, not a directory", message_path(path, at, name));
  if (s != REMIXDB_OK) return s;
  s = env_dir_open(at, name, out);
  return s == REMIXDB_NOTFOUND ? err_set(REMIXDB_IO, "%s: was removed meanwhile", out->path) : s;
}

// Tells whether the name still is the open file. A lock on any other file would keep nobody out.
static enum remixdb_status is_named(const struct env_dir *at, int fd, const char *name, bool *out) {
  struct env_stat file, named;
  char path[ENV_PATH_MAX];
  enum remixdb_status s = env_fstat(at->env, fd, message_path(path, at, name), &file);
  if (s != REMIXDB_OK) return s;
  s = env_stat(at, name, &named);
  *out = s == REMIXDB_OK && file.dev == named.dev && file.ino == named.ino;
  return s == REMIXDB_NOTFOUND ? REMIXDB_OK : s;
}

enum remixdb_status env_dir_is(const struct env_dir *at, const char *name, const struct env_dir *d, bool *out) {
  return is_named(at, d->fd, name, out);
}

enum remixdb_status env_dir_remove(const struct env_dir *at, const char *name, const struct env_dir *d) {
  bool same;
  const enum remixdb_status s = env_dir_is(at, name, d, &same);
  return s == REMIXDB_OK && same ? env_rmdir(at, name) : s;
}

static enum remixdb_status open_locked(const struct env_dir *at, const char *name, bool exclusive, int *fd_out,
                                       bool *named_out) {
  struct env *const e = at->env;
  enum remixdb_status s = env_open(at, name, exclusive ? ENV_READ | ENV_WRITE | ENV_CREATE : ENV_READ, fd_out);
  if (s == REMIXDB_NOTFOUND && exclusive) s = at_errno(-ENOENT, "open", at, name);
  if (s != REMIXDB_OK) return s;
  int rc;
  do rc = e->ops->lock(e, *fd_out, exclusive);
  while (rc == -EINTR);
  if (rc == -EWOULDBLOCK) {
    char path[ENV_PATH_MAX];
    const char *dots, *const end = err_path(message_path(path, at, name), &dots);
    s = err_set(REMIXDB_LOCKED, "lock %s%s: held by another open of the store", dots, end);
  } else if (rc < 0) {
    s = at_errno(rc, "lock", at, name);
  } else {
    s = is_named(at, *fd_out, name, named_out);
  }
  if (s == REMIXDB_OK && *named_out) return s;
  if (rc >= 0) env_unlock(e, *fd_out);
  else env_close_quiet(e, *fd_out);
  *fd_out = -1;
  return s;
}

enum remixdb_status env_lock(const struct env_dir *at, const char *name, bool exclusive, int *fd_out) {
  for (uint32_t i = 0; i < ENV_LOCK_TRIES; i++) {
    bool named = false;
    const enum remixdb_status s = open_locked(at, name, exclusive, fd_out, &named);
    if (s != REMIXDB_OK || named) return s;
  }
  return err_set(REMIXDB_LOCKED, "lock %s: others keep removing the file", name);
}

void env_unlock(struct env *e, int fd) {
  if (fd < 0) return;
  (void)e->ops->unlock(e, fd);  // after a failure, closing unlocks it
  env_close_quiet(e, fd);
}

uint64_t env_next_data(struct env *e, int fd, uint64_t off, uint64_t end) {
  if (!e->ops->seek || off >= end) return off < end ? off : end;
  const int64_t at = e->ops->seek(e, fd, off, false);
  if (at == -ENXIO) return end;
  if (at < 0 || (uint64_t)at <= off) return off;
  return (uint64_t)at < end ? (uint64_t)at : end;
}

bool env_is_hollow(struct env *e, int fd, uint64_t off, uint64_t end, uint64_t most) {
  while (off < end && e->ops->seek) {
    const uint64_t data = env_next_data(e, fd, off, end);
    if (data - off >= most) return true;
    const int64_t hole = data < end ? e->ops->seek(e, fd, data, true) : -1;
    if (hole < 0 || (uint64_t)hole <= off) return false;
    off = (uint64_t)hole;
  }
  return false;
}

void env_write_out(struct env *e, int fd, uint64_t off, uint64_t len) { (void)e->ops->write_out(e, fd, off, len); }

void env_advise(struct env *e, int fd, uint64_t off, uint64_t len, enum env_advice advice) {
  if (advice != ENV_WILL_NEED) {
    (void)e->ops->advise(e, fd, off, len, advice);
    return;
  }
  for (uint64_t n; len > 0; off += n, len -= n) {
    n = len < ENV_WILL_NEED_MAX ? len : ENV_WILL_NEED_MAX;
    (void)e->ops->advise(e, fd, off, n, advice);
  }
}

enum remixdb_status env_path(char *buf, const char *dir, const char *name) {
  const int n = snprintf(buf, ENV_PATH_MAX, "%s/%s", dir, name);
  if (n >= 0 && n < ENV_PATH_MAX) return REMIXDB_OK;
  buf[0] = '\0';
  return err_set(REMIXDB_INVALID, "path too long: .../%s", name);
}

const char *env_name(const char *path) {
  const char *const slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

enum remixdb_status env_copy(struct env *e, int in, const char *from, int out, const char *to, uint64_t size) {
  uint8_t *buf = mem_alloc(ENV_COPY);
  enum remixdb_status s = buf ? REMIXDB_OK : REMIXDB_NOMEM;
  for (uint64_t off = 0; off < size && s == REMIXDB_OK;) {
    const size_t n = size - off < ENV_COPY ? (size_t)(size - off) : ENV_COPY;
    s = env_read(e, in, from, buf, n, off);
    if (s == REMIXDB_OK) s = env_write(e, out, to, buf, n, off);
    off += n;
  }
  mem_free(buf);
  return s;
}

enum remixdb_status env_read_all(struct env *e, int fd, const char *path, size_t max, uint8_t **buf_out,
                                 size_t *len_out) {
  uint64_t size = 0;
  *buf_out = NULL;
  *len_out = 0;
  enum remixdb_status s = env_size(e, fd, path, &size);
  if (s != REMIXDB_OK) return s;
  if (size > max)
    return err_corrupt(path, max, "the file has %llu bytes, more than %zu", (unsigned long long)size, max);
  uint8_t *const buf = mem_alloc((size_t)size + 1);
  if (!buf) return REMIXDB_NOMEM;
  if ((s = env_read(e, fd, path, buf, (size_t)size, 0)) != REMIXDB_OK) {
    mem_free(buf);
    return s;
  }
  buf[size] = 0;
  *buf_out = buf;
  *len_out = (size_t)size;
  return REMIXDB_OK;
}

enum remixdb_status env_replace_file(const struct env_dir *at, const char *name, const void *buf, size_t len) {
  struct env *const e = at->env;
  char tmp[ENV_PATH_MAX], path[ENV_PATH_MAX];
  const int n = snprintf(tmp, sizeof(tmp), "%s.tmp", name);
  if (n < 0 || (size_t)n >= sizeof(tmp)) return err_set(REMIXDB_INVALID, "path too long: .../%s", name);
  const char *const said = message_path(path, at, tmp);
  int fd;
  enum remixdb_status s = env_create(at, tmp, ENV_WRITE, &fd);
  if (s != REMIXDB_OK) return s;
  s = env_write(e, fd, said, buf, len, 0);
  if (s == REMIXDB_OK) s = env_sync_all(e, fd, said);
  if (s == REMIXDB_OK) s = env_close(e, fd, said);
  else env_close_quiet(e, fd);
  if (s == REMIXDB_OK) s = env_rename(at, tmp, at, name);
  // The file is replaced: a full disk at this point is no longer "nothing has happened".
  if (s == REMIXDB_OK) return env_sync_dir(at) == REMIXDB_OK ? REMIXDB_OK : REMIXDB_IO;
  IGNORED(env_unlink(at, tmp), "the next replacement makes it anew");
  return s;
}

// ---- clocks

uint64_t env_wall_ms(const struct env *e) {
  struct timespec ts;
  if (unlikely(e->clock != NULL)) return e->clock->wall_ms(e->clock->arg);
  (void)clock_gettime(CLOCK_REALTIME, &ts);
  const uint64_t ms = (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
  return ms ? ms : 1;
}

uint64_t env_steady_ms(const struct env *e) {
  return unlikely(e->clock != NULL) ? e->clock->steady_ms(e->clock->arg) : time_ns() / 1000000;
}
