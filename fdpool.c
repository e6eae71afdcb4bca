// SPDX-License-Identifier: Apache-2.0
#include "fdpool.h"

#include <assert.h>
#include <errno.h>

struct fdpool {
  struct env *env;
  uint32_t max_open;
  pthread_mutex_t lock;
  uint32_t nr_open;         // open descriptors and those being opened; under the lock
  struct fdpool_file lru;   // head of the open unused files, the last used first; under the lock
};

enum remixdb_status fdpool_create(struct env *env, uint32_t max_open, struct fdpool **out) {
  struct fdpool *const p = mem_calloc(1, sizeof(*p));
  *out = p;
  if (!p) return REMIXDB_NOMEM;
  p->env = env;
  p->max_open = max_open;
  (void)pthread_mutex_init(&p->lock, NULL);
  p->lru.next = p->lru.prev = &p->lru;
  return REMIXDB_OK;
}

void fdpool_destroy(struct fdpool *p) {
  if (!p) return;
  assert(p->nr_open == 0 && p->lru.next == &p->lru);
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

// Takes the descriptor that was unused for the longest time from its file, for the caller to close; -1 when all are in use. The
// lock is held.
static int fdpool_take_unused(struct fdpool *p) {
  struct fdpool_file *const f = p->lru.prev;
  if (f == &p->lru) return -1;
  const int fd = f->fd;
  lru_unlink(f);
  f->fd = -1;
  p->nr_open--;
  return fd;
}

void fdpool_remove(struct fdpool_file *f) {
  struct fdpool *const p = f->pool;
  (void)pthread_mutex_lock(&p->lock);
  assert(f->users == 0);
  const int fd = f->fd;
  if (fd >= 0) {
    lru_unlink(f);
    f->fd = -1;
    p->nr_open--;
  }
  (void)pthread_mutex_unlock(&p->lock);
  env_close_quiet(p->env, fd);
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
    (void)pthread_mutex_unlock(&p->lock);
    if (unused < 0) return fd;
    env_close_quiet(p->env, unused);
  }
}

enum remixdb_status fdpool_acquire(struct fdpool_file *f, int *fd_out) {
  struct fdpool *const p = f->pool;
  (void)pthread_mutex_lock(&p->lock);
  if (likely(f->fd >= 0)) {
    if (f->users++ == 0) lru_unlink(f);
    *fd_out = f->fd;
    (void)pthread_mutex_unlock(&p->lock);
    return REMIXDB_OK;
  }
  // The place is taken before the file is opened, so that threads that open at the same time keep to the bound.
  const int unused = p->nr_open >= p->max_open ? fdpool_take_unused(p) : -1;
  p->nr_open++;
  (void)pthread_mutex_unlock(&p->lock);
  env_close_quiet(p->env, unused);
  int fd = fdpool_open(p, f);
  const int errnum = fd < 0 ? -fd : 0;

  (void)pthread_mutex_lock(&p->lock);
  if (f->fd >= 0) {  // another thread opened it meanwhile: one descriptor is enough
    p->nr_open--;
    if (f->users++ == 0) lru_unlink(f);
    *fd_out = f->fd;
  } else if (fd >= 0) {
    f->fd = *fd_out = fd;
    f->users = 1;
    fd = -1;
  } else {
    p->nr_open--;
    *fd_out = -1;
  }
  const bool failed = *fd_out < 0;
  (void)pthread_mutex_unlock(&p->lock);
  env_close_quiet(p->env, fd);
  return failed ? err_errno(errnum, "open", f->path) : REMIXDB_OK;
}

void fdpool_release(struct fdpool_file *f) {
  struct fdpool *const p = f->pool;
  int surplus = -1;
  (void)pthread_mutex_lock(&p->lock);
  assert(f->users > 0 && f->fd >= 0);
  if (--f->users == 0) {
    if (likely(p->nr_open <= p->max_open)) {
      lru_push(p, f);
    } else {
      surplus = f->fd;
      f->fd = -1;
      p->nr_open--;
    }
  }
  (void)pthread_mutex_unlock(&p->lock);
  env_close_quiet(p->env, surplus);
}

uint32_t fdpool_open_count(struct fdpool *p) {
  (void)pthread_mutex_lock(&p->lock);
  const uint32_t nr = p->nr_open;
  (void)pthread_mutex_unlock(&p->lock);
  return nr;
}
