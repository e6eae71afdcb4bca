// SPDX-License-Identifier: Apache-2.0
#include "base/env.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define ENV_IO_MAX ((size_t)1 << 30)  // bytes of one system call; some systems refuse more than INT_MAX
#define ENV_LOCK_TRIES 100u           // each is the end of a store that was removed in a moment

// ---- the real file system: raw calls, -errno

// Where the program has closed one of the standard descriptors a file would get its number, and what is printed would be written into it.
static int open_above_std(const char *path, int flags) {
  const int fd = open(path, flags, 0644);
  if (likely(fd < 0 || fd > STDERR_FILENO)) return fd;
  const int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), err = errno;
  (void)close(fd);
  errno = err;
  return above;
}

static int raw_open(struct env *e, const char *path, unsigned flags) {
  (void)e;
  int o = O_CLOEXEC;
  if (flags & ENV_WRITE)
    o |= flags & ENV_READ ? O_RDWR : O_WRONLY;
  else
    o |= O_RDONLY;
  if (flags & ENV_CREATE) o |= O_CREAT;
  if (flags & ENV_EXCL) o |= O_EXCL;
  if (flags & ENV_TRUNC) o |= O_TRUNC;
  if (flags & ENV_DIR) o |= O_DIRECTORY;
#if defined(O_DIRECT)
  if (flags & ENV_DIRECT) {
    const int fd = open_above_std(path, o | O_DIRECT);
    if (fd >= 0 || errno != EINVAL) return fd >= 0 ? fd : -errno;
    // This file system has no direct I/O. Some make the file before they find out; ours to open then.
    o &= ~O_EXCL;
  }
#endif
#if defined(O_NOATIME)
  if (!(flags & (ENV_WRITE | ENV_DIR))) {
    const int fd = open_above_std(path, o | O_NOATIME);
    if (fd >= 0 || errno != EPERM) return fd >= 0 ? fd : -errno;  // EPERM: it is another user's
  }
#endif
  const int fd = open_above_std(path, o);
  if (fd < 0) return -errno;
#if defined(F_NOCACHE)
  if (flags & ENV_DIRECT) (void)fcntl(fd, F_NOCACHE, 1);
#endif
  return fd;
}

static int raw_close(struct env *e, int fd) {
  (void)e;
  return close(fd) == 0 ? 0 : -errno;
}

static ssize_t raw_pread(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  (void)e;
  const ssize_t n = pread(fd, buf, len < ENV_IO_MAX ? len : ENV_IO_MAX, (off_t)off);
  return n >= 0 ? n : -errno;
}

static ssize_t raw_pwrite(struct env *e, int fd, const void *buf, size_t len, uint64_t off) {
  (void)e;
  const ssize_t n = pwrite(fd, buf, len < ENV_IO_MAX ? len : ENV_IO_MAX, (off_t)off);
  return n >= 0 ? n : -errno;
}

static int raw_sync_data(struct env *e, int fd) {
  (void)e;
#if defined(__APPLE__)
  // fsync leaves the data in the drive's cache there, so it serves only where the file system has nothing stronger: any other failure is one.
  if (fcntl(fd, F_FULLFSYNC) == 0) return 0;
  if (errno != ENOTSUP && errno != ENOTTY && errno != EINVAL) return -errno;
  return fsync(fd) == 0 ? 0 : -errno;
#else
  return fdatasync(fd) == 0 ? 0 : -errno;
#endif
}

static int raw_sync_all(struct env *e, int fd) {
#if defined(__APPLE__)
  return raw_sync_data(e, fd);
#else
  (void)e;
  return fsync(fd) == 0 ? 0 : -errno;
#endif
}

static int raw_truncate(struct env *e, int fd, uint64_t size) {
  (void)e;
  return ftruncate(fd, (off_t)size) == 0 ? 0 : -errno;
}

// Not posix_fallocate on glibc, which writes zeroes itself where the file system cannot.
static int raw_allocate(struct env *e, int fd, uint64_t off, uint64_t len) {
  (void)e;
#if defined(__linux__)
  if (fallocate(fd, 0, (off_t)off, (off_t)len) == 0) return 0;
  return errno == ENOSYS ? -EOPNOTSUPP : -errno;
#elif defined(__FreeBSD__)
  const int rc = posix_fallocate(fd, (off_t)off, (off_t)len);
  return rc == EINVAL ? -EOPNOTSUPP : -rc;  // EINVAL is ZFS's way to say so
#else
  (void)fd, (void)off, (void)len;
  return -EOPNOTSUPP;
#endif
}

static int raw_stat_out(const struct stat *st, struct env_stat *out) {
  *out = (struct env_stat){.size = (uint64_t)st->st_size, .dev = (uint64_t)st->st_dev, .ino = (uint64_t)st->st_ino, .is_dir = S_ISDIR(st->st_mode)};
  return 0;
}

static int raw_fstat(struct env *e, int fd, struct env_stat *out) {
  (void)e;
  struct stat st;
  return fstat(fd, &st) == 0 ? raw_stat_out(&st, out) : -errno;
}

static int raw_stat(struct env *e, const char *path, struct env_stat *out) {
  (void)e;
  struct stat st;
  return stat(path, &st) == 0 ? raw_stat_out(&st, out) : -errno;
}

static int raw_rename(struct env *e, const char *from, const char *to) {
  (void)e;
  return rename(from, to) == 0 ? 0 : -errno;
}

static int raw_unlink(struct env *e, const char *path) {
  (void)e;
  return unlink(path) == 0 ? 0 : -errno;
}

static int raw_link(struct env *e, const char *from, const char *to) {
  (void)e;
  return link(from, to) == 0 ? 0 : -errno;
}

static int raw_mkdir(struct env *e, const char *path) {
  (void)e;
  return mkdir(path, 0755) == 0 ? 0 : -errno;
}

static int raw_rmdir(struct env *e, const char *path) {
  (void)e;
  return rmdir(path) == 0 ? 0 : -errno;
}

static int raw_list(struct env *e, const char *dir, bool (*fn)(void *arg, const char *name), void *arg) {
  (void)e;
  DIR *const d = opendir(dir);
  if (!d) return -errno;
  int rc = 0;
  for (;;) {
    errno = 0;
    const struct dirent *const de = readdir(d);
    if (!de) {
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
  (void)e;
  return flock(fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0 ? 0 : -errno;
}

static int raw_unlock(struct env *e, int fd) {
  (void)e;
  return flock(fd, LOCK_UN) == 0 ? 0 : -errno;
}

static int raw_write_out(struct env *e, int fd, uint64_t off, uint64_t len) {
  (void)e;
#if defined(SYNC_FILE_RANGE_WRITE)
  return sync_file_range(fd, (off_t)off, (off_t)len, SYNC_FILE_RANGE_WRITE) == 0 ? 0 : -errno;
#else
  (void)fd, (void)off, (void)len;
  return 0;
#endif
}

static const struct env_ops raw_ops = {
    .open = raw_open,
    .close = raw_close,
    .pread = raw_pread,
    .pwrite = raw_pwrite,
    .sync_data = raw_sync_data,
    .sync_all = raw_sync_all,
    .truncate = raw_truncate,
    .allocate = raw_allocate,
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
    .write_out = raw_write_out,
};

struct env *env_posix(void) {
  static struct env posix = {.ops = &raw_ops, .priv = NULL, .native = true};
  return &posix;
}

// ---- loops, checks and messages

enum remixdb_status env_open(struct env *e, const char *path, unsigned flags, int *fd_out) {
  int fd;
  do fd = e->ops->open(e, path, flags);
  while (fd == -EINTR);
  *fd_out = fd < 0 ? -1 : fd;
  if (fd >= 0) return REMIXDB_OK;
  if (fd == -ENOENT && !(flags & ENV_CREATE)) return REMIXDB_NOTFOUND;
  return err_errno(-fd, "open", path);
}

// The descriptor is gone after EINTR too (Linux), or closing it twice could close another thread's.
enum remixdb_status env_close(struct env *e, int fd, const char *path) {
  const int rc = e->ops->close(e, fd);
  return rc >= 0 || rc == -EINTR ? REMIXDB_OK : err_errno(-rc, "close", path);
}

void env_close_quiet(struct env *e, int fd) {
  if (fd >= 0) (void)e->ops->close(e, fd);
}

enum remixdb_status env_read_upto(struct env *e, int fd, const char *path, void *buf, size_t len, uint64_t off, size_t *nr_out) {
  size_t done = 0;
  *nr_out = 0;
  while (done < len) {
    const ssize_t n = e->ops->pread(e, fd, (uint8_t *)buf + done, len - done, off + done);
    if (n == -EINTR) continue;
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
    if (n == -EINTR) continue;
    if (n < 0) return err_errno((int)-n, "write", path);
    if (n == 0) return err_set(REMIXDB_IO, "write %s: nothing was written", path);  // or this would never end
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

static enum remixdb_status dir_open(struct env *e, const char *dir, int *fd_out) {
  const enum remixdb_status s = env_open(e, dir, ENV_READ | ENV_DIR, fd_out);
  return s == REMIXDB_NOTFOUND ? err_errno(ENOENT, "sync", dir) : s;
}

// And closes it.
static enum remixdb_status dir_sync(struct env *e, int fd, const char *dir) {
  enum remixdb_status s = REMIXDB_OK;
  int rc;
  do rc = e->ops->sync_all(e, fd);
  while (rc == -EINTR);
  // EINVAL: a file system on which directories need no sync and have none
  if (rc < 0 && rc != -EINVAL) s = err_errno(-rc, "sync", dir);
  env_close_quiet(e, fd);
  return s;
}

enum remixdb_status env_sync_dir(struct env *e, const char *dir) {
  int fd;
  const enum remixdb_status s = dir_open(e, dir, &fd);
  return s == REMIXDB_OK ? dir_sync(e, fd, dir) : s;
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

enum remixdb_status env_size(struct env *e, int fd, const char *path, uint64_t *size_out) {
  struct env_stat st;
  const int rc = e->ops->fstat(e, fd, &st);
  if (rc < 0) return err_errno(-rc, "stat", path);
  *size_out = st.size;
  return REMIXDB_OK;
}

enum remixdb_status env_stat(struct env *e, const char *path, struct env_stat *out) {
  const int rc = e->ops->stat(e, path, out);
  if (rc == -ENOENT) return REMIXDB_NOTFOUND;
  return rc >= 0 ? REMIXDB_OK : err_errno(-rc, "stat", path);
}

enum remixdb_status env_rename(struct env *e, const char *from, const char *to) {
  const int rc = e->ops->rename(e, from, to);
  return rc >= 0 ? REMIXDB_OK : err_errno(-rc, "rename", from);
}

enum remixdb_status env_unlink(struct env *e, const char *path) {
  const int rc = e->ops->unlink(e, path);
  return rc >= 0 || rc == -ENOENT ? REMIXDB_OK : err_errno(-rc, "unlink", path);
}

enum remixdb_status env_link(struct env *e, const char *from, const char *to) {
  const int rc = e->ops->link(e, from, to);
  return rc >= 0 ? REMIXDB_OK : err_errno(-rc, "link", to);
}

enum remixdb_status env_mkdir(struct env *e, const char *path) {
  const int rc = e->ops->mkdir(e, path);
  if (rc >= 0) return REMIXDB_OK;
  // A file in the place of the directory is no directory.
  struct env_stat st;
  if (rc == -EEXIST && e->ops->stat(e, path, &st) >= 0) return st.is_dir ? REMIXDB_OK : err_errno(ENOTDIR, "mkdir", path);
  return err_errno(-rc, "mkdir", path);
}

enum remixdb_status env_rmdir(struct env *e, const char *path) {
  const int rc = e->ops->rmdir(e, path);
  const bool stays = rc == -ENOTEMPTY || rc == -EEXIST || rc == -EBUSY || rc == -ENOTDIR || rc == -EINVAL;
  return rc >= 0 || rc == -ENOENT || stays ? REMIXDB_OK : err_errno(-rc, "rmdir", path);
}

enum remixdb_status env_list(struct env *e, const char *dir, bool (*fn)(void *arg, const char *name), void *arg) {
  const int rc = e->ops->list(e, dir, fn, arg);
  return rc >= 0 ? REMIXDB_OK : err_errno(-rc, "list", dir);
}

// Whether the open file is still the one of that name. A lock on another keeps nobody out.
static enum remixdb_status is_named(struct env *e, int fd, const char *path, bool *out) {
  struct env_stat file, name;
  const int rc = e->ops->fstat(e, fd, &file);
  if (rc < 0) return err_errno(-rc, "stat", path);
  const enum remixdb_status s = env_stat(e, path, &name);
  *out = s == REMIXDB_OK && file.dev == name.dev && file.ino == name.ino;
  return s == REMIXDB_NOTFOUND ? REMIXDB_OK : s;
}

static enum remixdb_status open_locked(struct env *e, const char *path, bool exclusive, int *fd_out, bool *named_out) {
  enum remixdb_status s = env_open(e, path, exclusive ? ENV_READ | ENV_WRITE | ENV_CREATE : ENV_READ, fd_out);
  if (s == REMIXDB_NOTFOUND && exclusive) s = err_errno(ENOENT, "open", path);
  if (s != REMIXDB_OK) return s;
  int rc;
  do rc = e->ops->lock(e, *fd_out, exclusive);
  while (rc == -EINTR);
  const char *dots, *const end = err_path(path, &dots);
  if (rc == -EWOULDBLOCK) s = err_set(REMIXDB_LOCKED, "lock %s%s: held by another open of the store", dots, end);
  else if (rc < 0) s = err_errno(-rc, "lock", path);
  else s = is_named(e, *fd_out, path, named_out);
  if (s == REMIXDB_OK && *named_out) return s;
  if (rc >= 0) env_unlock(e, *fd_out);
  else env_close_quiet(e, *fd_out);
  *fd_out = -1;
  return s;
}

enum remixdb_status env_lock(struct env *e, const char *path, bool exclusive, int *fd_out) {
  for (uint32_t i = 0; i < ENV_LOCK_TRIES; i++) {
    bool named = false;
    const enum remixdb_status s = open_locked(e, path, exclusive, fd_out, &named);
    if (s != REMIXDB_OK || named) return s;
  }
  return err_set(REMIXDB_LOCKED, "lock %s: others remove the file again and again", path);
}

void env_unlock(struct env *e, int fd) {
  if (fd < 0) return;
  (void)e->ops->unlock(e, fd);  // what fails here is done by the closing
  env_close_quiet(e, fd);
}

void env_write_out(struct env *e, int fd, uint64_t off, uint64_t len) { (void)e->ops->write_out(e, fd, off, len); }

enum remixdb_status env_path(char *buf, const char *dir, const char *name) {
  const int n = snprintf(buf, ENV_PATH_MAX, "%s/%s", dir, name);
  if (n >= 0 && n < ENV_PATH_MAX) return REMIXDB_OK;
  buf[0] = '\0';
  return err_set(REMIXDB_INVALID, "path too long: .../%s", name);
}

enum remixdb_status env_read_file(struct env *e, const char *path, size_t max, uint8_t **buf_out, size_t *len_out) {
  int fd = -1;
  uint8_t *buf = NULL;
  uint64_t size = 0;
  *buf_out = NULL;
  *len_out = 0;
  enum remixdb_status s = env_open(e, path, ENV_READ, &fd);
  if (s != REMIXDB_OK) return s;
  s = env_size(e, fd, path, &size);
  if (s != REMIXDB_OK) goto out;
  if (size > max) {
    s = err_corrupt(path, max, "the file has %llu bytes, at most %zu were expected", (unsigned long long)size, max);
    goto out;
  }
  buf = mem_alloc((size_t)size + 1);
  if (!buf) {
    s = REMIXDB_NOMEM;
    goto out;
  }
  s = env_read(e, fd, path, buf, (size_t)size, 0);
  if (s != REMIXDB_OK) goto out;
  buf[size] = 0;
  *buf_out = buf;
  *len_out = (size_t)size;
  buf = NULL;
out:
  mem_free(buf);
  env_close_quiet(e, fd);
  return s;
}

enum remixdb_status env_replace_file(struct env *e, const char *dir, const char *name, const void *buf, size_t len) {
  char path[ENV_PATH_MAX], tmp[ENV_PATH_MAX];
  int fd = -1, dir_fd = -1;
  enum remixdb_status s = env_path(tmp, dir, name);
  if (s != REMIXDB_OK) return s;
  memcpy(path, tmp, strlen(tmp) + 1);
  const size_t at = strlen(tmp);
  static const char suffix[] = ".tmp";
  if (at + sizeof(suffix) > sizeof(tmp)) return err_set(REMIXDB_INVALID, "path too long: .../%s", name);
  memcpy(tmp + at, suffix, sizeof(suffix));

  s = env_open(e, tmp, ENV_WRITE | ENV_CREATE | ENV_TRUNC, &fd);
  if (s != REMIXDB_OK) return s;
  s = env_write(e, fd, tmp, buf, len, 0);
  if (s == REMIXDB_OK) s = env_sync_all(e, fd, tmp);
  if (s != REMIXDB_OK) {
    env_close_quiet(e, fd);
    goto out;
  }
  s = env_close(e, fd, tmp);
  if (s != REMIXDB_OK) goto out;
  // opened first: while there is no descriptor for it nothing has happened yet
  s = dir_open(e, dir, &dir_fd);
  if (s != REMIXDB_OK) goto out;
  s = env_rename(e, tmp, path);
  if (s != REMIXDB_OK) goto out;
  // a full disk that is told of here does not mean that nothing has happened
  return dir_sync(e, dir_fd, dir) == REMIXDB_OK ? REMIXDB_OK : REMIXDB_IO;
out:
  env_close_quiet(e, dir_fd);
  (void)e->ops->unlink(e, tmp);  // the raw call, which leaves the message of what failed first
  return s;
}
