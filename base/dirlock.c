// SPDX-License-Identifier: Apache-2.0
#include "base/dirlock.h"

#include <errno.h>

// Locks the directory itself. *fd_out is -1 if the file system cannot lock directories.
static enum remixdb_status lock_itself(const struct env_dir *d, bool exclusive, int *fd_out) {
  int rc;
  enum remixdb_status s = env_open(d, ".", ENV_READ | ENV_DIR, fd_out);
  if (s == REMIXDB_NOTFOUND) s = err_errno(ENOENT, "open", d->path);
  if (s != REMIXDB_OK) return s;
  do rc = d->env->ops->lock(d->env, *fd_out, exclusive);
  while (rc == -EINTR);
  if (rc >= 0) return REMIXDB_OK;
  env_close_quiet(d->env, *fd_out);
  *fd_out = -1;
  // EBADF: this file system wants files open for writing, which a directory never is
  if (rc == -EBADF || rc == -EINVAL || rc == -EISDIR || rc == -EOPNOTSUPP || rc == -ENOTSUP || rc == -ENOLCK ||
      rc == -ENOSYS)
    return REMIXDB_OK;
  if (rc != -EWOULDBLOCK) return err_errno(-rc, "lock", d->path);
  const char *dots, *const end = err_path(d->path, &dots);
  return err_set(REMIXDB_LOCKED, "lock %s%s: held by another open of the store", dots, end);
}

static enum remixdb_status take(const struct env_dir *d, bool exclusive, struct dirlock *out) {
  enum remixdb_status s = lock_itself(d, exclusive, &out->dir_fd);
  if (s == REMIXDB_OK) s = env_lock(d, FILES_LOCK, exclusive, &out->file_fd);
  return s == REMIXDB_NOTFOUND && !exclusive ? REMIXDB_OK : s;  // a reader makes no LOCK
}

// Takes the lock on a native env. Other envs' descriptors are not the kernel's, so no child has them.
static enum remixdb_status take_native(const struct env_dir *d, bool exclusive, struct dirlock *out) {
  fork_hold();
  const enum remixdb_status s = take(d, exclusive, out);
  out->closes.fd[0] = out->dir_fd;
  out->closes.fd[1] = out->file_fd;
  fork_add(&out->closes);
  fork_release();
  return s;
}

enum remixdb_status dirlock_take(const struct env_dir *d, bool exclusive, struct dirlock *out) {
  *out = (struct dirlock){.env = NULL};
  enum remixdb_status s = fork_watch();
  if (s != REMIXDB_OK) return s;
  *out = (struct dirlock){.env = d->env, .dir_fd = -1, .file_fd = -1};
  s = d->env->native ? take_native(d, exclusive, out) : take(d, exclusive, out);
  if (s != REMIXDB_OK) dirlock_give(out);
  return s;
}

enum remixdb_status dirlock_check(const struct dirlock *l, const struct env_dir *d) {
  struct env_stat held, named;
  if (l->dir_fd >= 0) return REMIXDB_OK;
  enum remixdb_status s = env_fstat(l->env, l->file_fd, FILES_LOCK, &held);
  if (s != REMIXDB_OK) return s;
  s = env_stat(d, FILES_LOCK, &named);
  if (s != REMIXDB_OK && s != REMIXDB_NOTFOUND) return s;
  if (s == REMIXDB_OK && held.dev == named.dev && held.ino == named.ino) return s;
  return err_set(REMIXDB_IO, "%s: LOCK was removed while the store was open; another process may have opened the store",
                 d->path);
}

static void give(struct dirlock *l) {
  env_unlock(l->env, l->file_fd);
  env_unlock(l->env, l->dir_fd);
}

void dirlock_give(struct dirlock *l) {
  if (!l->env) return;
  if (l->env->native) {
    fork_hold();
    fork_remove(&l->closes);
    give(l);
    fork_release();
  } else {
    give(l);
  }
  *l = (struct dirlock){.env = NULL};
}
