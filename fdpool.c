// SPDX-License-Identifier: Apache-2.0
#include "fdpool.h"

#include <assert.h>
#include <errno.h>

struct fdpool {
  struct env *env;
  uint32_t max_open;
  pthread_mutex_t lock;
  pthread_cond_t freed;     // a place, or a descriptor in it, is not used any more
  uint32_t nr_open;         // places taken: open descriptors, those being opened or closed, reserved places; under the lock, as are the next two
  uint32_t nr_reserved;     // of them
  uint32_t nr_waiting;
  struct fdpool_file lru;   // head of the open unused files, the last used first; under the lock
};

enum remixdb_status fdpool_create(struct env *env, uint32_t max_open, struct fdpool **out) {
  struct fdpool *const p = mem_calloc(1, sizeof(*p));
  *out = p;
  if (!p) return REMIXDB_NOMEM;
  p->env = env;
  p->max_open = max_open;
  (void)pthread_mutex_init(&p->lock, NULL);
  cond_init(&p->freed);
  p->lru.next = p->lru.prev = &p->lru;
  return REMIXDB_OK;
}

void fdpool_destroy(struct fdpool *p) {
  if (!p) return;
  assert(p->nr_open == 0 && p->lru.next == &p->lru);
  (void)pthread_cond_destroy(&p->freed);
  (void)pthread_mutex_destroy(&p->lock);
  mem_free(p);
}

static void lru_push(struct fdpool *p, struct fdpool_file *f) {
  f->prev = &p->lru;
  f->next = p->lru.next;
  f->next->prev = f;
  p->lru.next = f;
}

static void lru_unlink(struct fdpool_file *f) {
  f->prev->next = f->next;
  f->next->prev = f->prev;
  f->next = f->prev = NULL;
}

void fdpool_add(struct fdpool *p, struct fdpool_file *f, const char *path, unsigned flags) {
  *f = (struct fdpool_file){.pool = p, .path = path, .flags = flags, .fd = -1};
}

// Takes the descriptor that was unused for the longest time from its file, for the caller to close; -1 when all are in use. Its place is the caller's. The lock is held.
static int fdpool_take_unused(struct fdpool *p) {
  struct fdpool_file *const f = p->lru.prev;
  if (f == &p->lru) return -1;
  const int fd = f->fd;
  lru_unlink(f);
  f->fd = -1;
  return fd;
}

static void fdpool_wake(struct fdpool *p) {
  if (p->nr_waiting) (void)pthread_cond_broadcast(&p->freed);
}

// Closes a descriptor, and gives its place back only then. The lock is held, but not meanwhile.
static void fdpool_close(struct fdpool *p, int fd) {
  (void)pthread_mutex_unlock(&p->lock);
  env_close_quiet(p->env, fd);
  (void)pthread_mutex_lock(&p->lock);
  p->nr_open--;
  fdpool_wake(p);
}

void fdpool_remove(struct fdpool_file *f) {
  struct fdpool *const p = f->pool;
  (void)pthread_mutex_lock(&p->lock);
  assert(f->users == 0);
  const int fd = f->fd;
  if (fd >= 0) {
    lru_unlink(f);
    f->fd = -1;
    fdpool_close(p, fd);
  }
  (void)pthread_mutex_unlock(&p->lock);
}

// Waits until something is given back. False when that took too long. The lock is held, but not meanwhile.
static bool fdpool_wait(struct fdpool *p, uint64_t until) {
  const uint64_t now = time_ns();
  if (now >= until) return false;
  p->nr_waiting++;
  (void)cond_wait_ns(&p->freed, &p->lock, until - now);
  p->nr_waiting--;
  return true;
}

// A place. *unused_out: a descriptor to be closed before it is used, or -1. The lock is held.
static bool fdpool_place(struct fdpool *p, int *unused_out) {
  *unused_out = -1;
  if (p->nr_open >= p->max_open) return (*unused_out = fdpool_take_unused(p)) >= 0;
  p->nr_open++;
  return true;
}

// The env's raw call, because the reason of a refusal decides what to do. Nothing is locked, so that a slow file system holds up
// only those who need this file.
static int fdpool_open(struct fdpool *p, const struct fdpool_file *f) {
  for (;;) {
    const int fd = p->env->ops->open(p->env, f->path, f->flags);
    if (fd == -EINTR) continue;
    if (fd != -EMFILE && fd != -ENFILE) return fd;
    (void)pthread_mutex_lock(&p->lock);
    const int unused = fdpool_take_unused(p);
    if (unused >= 0) fdpool_close(p, unused);
    (void)pthread_mutex_unlock(&p->lock);
    if (unused < 0) return fd;
  }
}

static void fdpool_use(struct fdpool_file *f, int *fd_out) {
  if (f->users++ == 0) lru_unlink(f);
  *fd_out = f->fd;
}

// 0, the errno of a failure, or EAGAIN when there is no place and the caller does not wait.
static int fdpool_get(struct fdpool_file *f, bool wait, int *fd_out) {
  struct fdpool *const p = f->pool;
  const uint64_t until = wait ? time_ns() + FDPOOL_PATIENCE_NS : 0;
  int unused = -1;
  *fd_out = -1;
  (void)pthread_mutex_lock(&p->lock);
  // the place is taken before the file is opened, so that threads that open at the same time keep to the bound
  while (f->fd < 0 && !fdpool_place(p, &unused)) {
    if (wait && fdpool_wait(p, until)) continue;
    if (!wait) {
      (void)pthread_mutex_unlock(&p->lock);
      return EAGAIN;
    }
    p->nr_open++;
    break;
  }
  if (likely(f->fd >= 0)) {
    fdpool_use(f, fd_out);
    (void)pthread_mutex_unlock(&p->lock);
    return 0;
  }
  (void)pthread_mutex_unlock(&p->lock);
  env_close_quiet(p->env, unused);
  const int fd = fdpool_open(p, f);

  (void)pthread_mutex_lock(&p->lock);
  if (f->fd >= 0) {  // another thread opened it meanwhile: one descriptor is enough
    fdpool_use(f, fd_out);
    if (fd >= 0) {
      fdpool_close(p, fd);
    } else {
      p->nr_open--;
      fdpool_wake(p);
    }
  } else if (fd >= 0) {
    f->fd = *fd_out = fd;
    f->users = 1;
  } else {
    p->nr_open--;
    fdpool_wake(p);
  }
  (void)pthread_mutex_unlock(&p->lock);
  return *fd_out >= 0 ? 0 : -fd;
}

enum remixdb_status fdpool_acquire(struct fdpool_file *f, int *fd_out) {
  const int errnum = fdpool_get(f, true, fd_out);
  return errnum ? err_errno(errnum, "open", f->path) : REMIXDB_OK;
}

bool fdpool_try_acquire(struct fdpool_file *f, int *fd_out) { return fdpool_get(f, false, fd_out) == 0; }

void fdpool_release(struct fdpool_file *f) {
  struct fdpool *const p = f->pool;
  (void)pthread_mutex_lock(&p->lock);
  assert(f->users > 0 && f->fd >= 0);
  if (--f->users == 0) {
    if (likely(p->nr_open <= p->max_open)) {
      lru_push(p, f);
      fdpool_wake(p);
    } else {
      const int surplus = f->fd;
      f->fd = -1;
      fdpool_close(p, surplus);
    }
  }
  (void)pthread_mutex_unlock(&p->lock);
}

void fdpool_reserve(struct fdpool *p) {
  int unused;
  (void)pthread_mutex_lock(&p->lock);
  while (p->nr_reserved >= (p->max_open + 1) / 2 || !fdpool_place(p, &unused)) (void)fdpool_wait(p, time_ns() + FDPOOL_PATIENCE_NS);
  p->nr_reserved++;
  (void)pthread_mutex_unlock(&p->lock);
  env_close_quiet(p->env, unused);
}

void fdpool_unreserve(struct fdpool *p) {
  (void)pthread_mutex_lock(&p->lock);
  assert(p->nr_reserved > 0);
  p->nr_reserved--;
  p->nr_open--;
  fdpool_wake(p);
  (void)pthread_mutex_unlock(&p->lock);
}

uint32_t fdpool_open_count(struct fdpool *p) {
  (void)pthread_mutex_lock(&p->lock);
  const uint32_t nr = p->nr_open;
  (void)pthread_mutex_unlock(&p->lock);
  return nr;
}
