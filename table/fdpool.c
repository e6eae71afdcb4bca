// SPDX-License-Identifier: Apache-2.0
#include "table/fdpool.h"

#include <assert.h>
#include <errno.h>

#include "base/eventcount.h"

#define HELD_PART 4u  // a quarter of the places may be held. More may be reserved, so a round always comes to one

_Atomic uint64_t fdpool_patience_ns = FDPOOL_PATIENCE_NS;

static uint64_t patience(void) { return atomic_load_explicit(&fdpool_patience_ns, memory_order_relaxed); }

struct fdpool {
  struct env *env;
  uint32_t max_open;
  _Atomic uint32_t wanted;  // waiting threads and places beyond the bound; changes under the lock (F2)
  _Alignas(CACHE_LINE) pthread_mutex_t lock;  // guards the rest
  uint32_t nr_open;                           // taken places: descriptors open, being opened or closed; reserved places
  uint32_t nr_reserved;                       // the reserved ones of these,
  uint32_t nr_held;                           // those that are held between two calls of users,
  uint32_t nr_passing;                        // and those of readers that pass through a file
  uint32_t nr_waiting;                        // threads
  uint32_t nr_ring;                           // open files
  struct fdpool_file *hand;                   // CLOCK: the next one to look at; NULL: no file is open
  bool tell;                                  // pool_unlock is to wake those that wait
  struct eventcount freed;                    // a place has become free, or its descriptor unused
};

static void pool_lock(struct fdpool *p) { (void)pthread_mutex_lock(&p->lock); }

// Wakes waiting threads without the lock.
static void pool_unlock(struct fdpool *p) {
  const bool tell = p->tell;
  p->tell = false;
  (void)pthread_mutex_unlock(&p->lock);
  if (tell) eventcount_wake_all(&p->freed);
}

// Releases the lock until a place may be free, or for so many nanoseconds.
static void pool_wait(struct fdpool *p, uint64_t ns) {
  const uint32_t begun = eventcount_begin(&p->freed);
  pool_unlock(p);
  (void)eventcount_sleep(&p->freed, begun, ns);
  pool_lock(p);
}

enum remixdb_status fdpool_create(struct env *env, uint32_t max_open, struct fdpool **out) {
  struct fdpool *const p = mem_alloc_aligned(CACHE_LINE, sizeof(*p));
  *out = p;
  if (!p) return REMIXDB_NOMEM;
  memset(p, 0, sizeof(*p));
  p->env = env;
  p->max_open = max_open;
  (void)pthread_mutex_init(&p->lock, NULL);
  eventcount_init(&p->freed);
  return REMIXDB_OK;
}

void fdpool_destroy(struct fdpool *p) {
  if (!p) return;
  assert(p->nr_open == 0 && p->nr_waiting == 0 && !p->hand);
  eventcount_fini(&p->freed);
  (void)pthread_mutex_destroy(&p->lock);
  mem_free(p);
}

void fdpool_add(struct fdpool *p, struct fdpool_file *f, const struct env_dir *dir, const char *path, unsigned flags) {
  *f = (struct fdpool_file){.pool = p, .dir = dir, .path = path, .flags = flags};
}

static inline int state_fd(uint64_t state) { return (int)(state >> 32) - 1; }
static inline uint32_t state_users(uint64_t state) { return (uint32_t)state & ~FDPOOL_USED; }

// Counts one more user, if the file is open.
static inline bool file_enter(struct fdpool_file *f, int *fd_out) {
  uint64_t state = atomic_load_explicit(&f->state, memory_order_relaxed);
  while (state_fd(state) >= 0) {
    // acquire: pairs with ring_add
    if (!atomic_compare_exchange_weak_explicit(&f->state, &state, (state + 1) | FDPOOL_USED, memory_order_acquire,
                                               memory_order_relaxed))
      continue;
    *fd_out = state_fd(state);
    return true;
  }
  return false;
}

// ---- under the lock

// Publishes the file's descriptor, with one user. The hand comes to it last.
static void ring_add(struct fdpool *p, struct fdpool_file *f, int fd) {
  if (p->hand) {
    f->next = p->hand;
    f->prev = p->hand->prev;
    f->prev->next = f->next->prev = f;
  } else {
    p->hand = f->next = f->prev = f;
  }
  p->nr_ring++;
  atomic_store_explicit(&f->state, ((uint64_t)fd + 1) << 32 | FDPOOL_USED | 1, memory_order_release);
}

static void ring_remove(struct fdpool *p, struct fdpool_file *f) {
  if (p->hand == f) p->hand = f->next == f ? NULL : f->next;
  f->prev->next = f->next;
  f->next->prev = f->prev;
  f->next = f->prev = NULL;
  p->nr_ring--;
}

// Takes the descriptor of an unused file, with its place, for the caller to close. -1: all are in use.
static int take_unused(struct fdpool *p) {
  // one round clears the used marks, a second one takes; a file that is used meanwhile stays
  for (uint32_t i = 2 * p->nr_ring; i > 0; i--) {
    struct fdpool_file *const f = p->hand;
    uint64_t state = atomic_load(&f->state);
    p->hand = f->next;
    if (state_users(state) > 0) continue;
    const bool used = state & FDPOOL_USED;
    if (!atomic_compare_exchange_strong(&f->state, &state, used ? state & ~(uint64_t)FDPOOL_USED : 0) || used) continue;
    ring_remove(p, f);
    return state_fd(state);
  }
  return -1;
}

// Returns how many of the held places are within their share. A smaller bound than before leaves others beyond it.
static uint32_t held_within(const struct fdpool *p) {
  return p->nr_held < p->max_open / HELD_PART ? p->nr_held : p->max_open / HELD_PART;
}

// The bound. Held places beyond their share come on top: nobody can wait for them.
static uint32_t bound(const struct fdpool *p) { return p->max_open + (p->nr_held - held_within(p)); }

static void count_waiters(struct fdpool *p) {
  const uint32_t most = bound(p);
  atomic_store(&p->wanted, p->nr_waiting + (p->nr_open > most ? p->nr_open - most : 0));
}

static void place_take(struct fdpool *p) {
  p->nr_open++;
  count_waiters(p);
}

static void place_give(struct fdpool *p) {
  p->nr_open--;
  count_waiters(p);
  if (p->nr_waiting) p->tell = true;
}

// Closes a descriptor, without the lock, and then gives its place back.
static void close_fd(struct fdpool *p, int fd) {
  pool_unlock(p);
  env_close_quiet(p->env, fd);
  pool_lock(p);
  place_give(p);
}

// Takes a place if one is free. *unused_out: a descriptor to close before the place is used, or -1.
static bool find_place(struct fdpool *p, int *unused_out) {
  *unused_out = -1;
  if (p->nr_open >= bound(p)) return (*unused_out = take_unused(p)) >= 0;
  place_take(p);
  return true;
}

// Begins before the check that decides whether to wait, and ends after the wait (F2).
static void wait_begin(struct fdpool *p) {
  p->nr_waiting++;
  count_waiters(p);
}
static void wait_end(struct fdpool *p) {
  p->nr_waiting--;
  count_waiters(p);
}

// ---- descriptors

void fdpool_remove(struct fdpool_file *f) {
  struct fdpool *const p = f->pool;
  pool_lock(p);
  const uint64_t state = atomic_exchange(&f->state, 0);
  assert(state_users(state) == 0);
  if (state_fd(state) >= 0) {
    ring_remove(p, f);
    close_fd(p, state_fd(state));
  }
  pool_unlock(p);
}

// Makes the env's raw call, because the errno decides what to do. Holds no lock, so that a slow file system delays only
// the threads that need this file.
static int open_fd(struct fdpool *p, const struct fdpool_file *f, unsigned flags, enum env_advice advice) {
  for (;;) {
    const int fd = p->env->ops->open(p->env, f->dir->fd, env_name(f->path), flags);
    if (fd == -EINTR) continue;
    if (fd >= 0) env_advise(p->env, fd, 0, 0, advice);
    if (fd != -EMFILE && fd != -ENFILE) return fd;
    pool_lock(p);
    const int unused = take_unused(p);
    if (unused >= 0) close_fd(p, unused);
    pool_unlock(p);
    if (unused < 0) return fd;
  }
}

// A thread that finds no place free gives up, waits, or takes one beyond the bound.
enum full { GIVE_UP, WAIT, PASS };

// Takes a place for a closed file. False with *fd_out >= 0: another thread has opened it, and no place is needed. False
// with *fd_out -1: no place is free, and the caller does not wait.
static bool place_for(struct fdpool_file *f, enum full full, int *fd_out) {
  struct fdpool *const p = f->pool;
  uint64_t until = 0;
  int unused = -1;
  bool placed = false;
  pool_lock(p);
  while (!file_enter(f, fd_out) && !(placed = find_place(p, &unused)) && full != GIVE_UP) {
    const uint64_t now = time_ns();
    if (full == WAIT && until == 0) {
      until = now + patience();
      wait_begin(p);
    } else if (now < until) {
      pool_wait(p, until - now);
    } else {
      place_take(p);
      placed = true;
      break;
    }
  }
  if (until) wait_end(p);
  pool_unlock(p);
  env_close_quiet(p->env, unused);
  return placed;
}

// The descriptor of a file that was closed. Returns 0, an errno, or EAGAIN when no place is free and the caller gives
// up.
static __attribute__((noinline)) int get_closed(struct fdpool_file *f, enum full full, int *fd_out) {
  struct fdpool *const p = f->pool;
  // the place comes before the open, so that threads that open at the same time keep to the bound
  *fd_out = -1;
  if (!place_for(f, full, fd_out)) return *fd_out >= 0 ? 0 : EAGAIN;
  const int fd = open_fd(p, f, f->flags, f->advice);
  pool_lock(p);
  if (file_enter(f, fd_out)) {  // another thread has opened it: one descriptor is enough
    if (fd >= 0) close_fd(p, fd);
    else place_give(p);
  } else if (fd >= 0) {
    ring_add(p, f, fd);
    *fd_out = fd;
  } else {
    place_give(p);
  }
  pool_unlock(p);
  return *fd_out >= 0 ? 0 : -fd;
}

static inline enum remixdb_status acquire(struct fdpool_file *f, enum full full, int *fd_out) {
  if (likely(file_enter(f, fd_out))) return REMIXDB_OK;
  const int errnum = get_closed(f, full, fd_out);
  return errnum ? err_errno(errnum, "open", f->path) : REMIXDB_OK;
}

enum remixdb_status fdpool_acquire(struct fdpool_file *f, int *fd_out) { return acquire(f, WAIT, fd_out); }

enum remixdb_status fdpool_acquire_beyond(struct fdpool_file *f, int *fd_out) { return acquire(f, PASS, fd_out); }

bool fdpool_try_acquire(struct fdpool_file *f, int *fd_out) {
  return file_enter(f, fd_out) || get_closed(f, GIVE_UP, fd_out) == 0;
}

// Serves waiting threads, and brings the pool back to its bound.
static __attribute__((noinline)) void release_to_waiters(struct fdpool *p) {
  int fd;
  pool_lock(p);
  while (p->nr_open > bound(p) && (fd = take_unused(p)) >= 0) close_fd(p, fd);
  if (p->nr_waiting) p->tell = true;
  pool_unlock(p);
}

void fdpool_release(struct fdpool_file *f) {
  struct fdpool *const p = f->pool;  // without users f may go at once
  const uint64_t before = atomic_fetch_sub(&f->state, 1);
  assert(state_users(before) > 0 && state_fd(before) >= 0);
  (void)before;
  if (unlikely(atomic_load(&p->wanted) > 0)) release_to_waiters(p);
}

void fdpool_set_max(struct fdpool *p, uint32_t max_open) {
  int fd;
  pool_lock(p);
  p->max_open = max_open;
  while (p->nr_open > bound(p) && (fd = take_unused(p)) >= 0) close_fd(p, fd);
  count_waiters(p);
  if (p->nr_waiting) p->tell = true;
  pool_unlock(p);
}

bool fdpool_open_passing(struct fdpool_file *f, bool direct, int *fd_out) {
  struct fdpool *const p = f->pool;
  int unused = -1;
  pool_lock(p);
  const bool placed = p->nr_passing < p->max_open / 4 && find_place(p, &unused);
  p->nr_passing += placed;
  pool_unlock(p);
  env_close_quiet(p->env, unused);
  if (!placed) return false;
  const int fd = open_fd(p, f, f->flags | (direct ? ENV_DIRECT : 0), ENV_SEQUENTIAL);
  if (fd < 0) fdpool_close_passing(f, -1);
  *fd_out = fd;
  return fd >= 0;
}

void fdpool_close_passing(struct fdpool_file *f, int fd) {
  struct fdpool *const p = f->pool;
  env_close_quiet(p->env, fd);
  pool_lock(p);
  assert(p->nr_passing > 0);
  p->nr_passing--;
  place_give(p);
  pool_unlock(p);
}

void fdpool_reserve(struct fdpool *p) {
  int unused;
  pool_lock(p);
  wait_begin(p);
  while (p->nr_reserved + held_within(p) >= (p->max_open + 1) / 2 || !find_place(p, &unused)) pool_wait(p, patience());
  wait_end(p);
  p->nr_reserved++;
  pool_unlock(p);
  env_close_quiet(p->env, unused);
}

void fdpool_unreserve(struct fdpool *p) {
  pool_lock(p);
  assert(p->nr_reserved > 0);
  p->nr_reserved--;
  place_give(p);
  pool_unlock(p);
}

bool fdpool_hold(struct fdpool *p, uint32_t nr) {
  uint32_t got = 0;
  int unused;
  pool_lock(p);
  const bool fits = p->nr_held + nr <= p->max_open / HELD_PART &&
                    p->nr_reserved + p->nr_held + nr <= (p->max_open + 1) / 2;
  while (fits && got < nr && find_place(p, &unused)) {
    p->nr_held++;
    got++;
    if (unused < 0) continue;
    pool_unlock(p);
    env_close_quiet(p->env, unused);
    pool_lock(p);
  }
  pool_unlock(p);
  if (got == nr) return true;
  fdpool_unhold(p, got);
  return false;
}

void fdpool_unhold(struct fdpool *p, uint32_t nr) {
  pool_lock(p);
  assert(p->nr_held >= nr);
  for (; nr > 0; nr--) {
    p->nr_held--;
    place_give(p);
  }
  pool_unlock(p);
}

bool fdpool_holds_fit(struct fdpool *p) {
  pool_lock(p);
  const bool fit = p->nr_held == held_within(p);
  pool_unlock(p);
  return fit;
}

uint32_t fdpool_open_count(struct fdpool *p) {
  pool_lock(p);
  const uint32_t nr = p->nr_open;
  pool_unlock(p);
  return nr;
}
