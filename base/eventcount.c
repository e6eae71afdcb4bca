// SPDX-License-Identifier: Apache-2.0
#include "base/eventcount.h"

#include "base/thread.h"

#include <errno.h>
#if defined(__linux__)
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define EVENTCOUNT_LONG ((uint64_t)1 << 60)  // 36 years: a wait without a limit

_Atomic bool eventcount_portable;

void eventcount_init(struct eventcount *e) {
  atomic_init(&e->turn, 0);
  atomic_init(&e->waiters, 0);
  (void)pthread_mutex_init(&e->lock, NULL);
  cond_init(&e->turned);
}

void eventcount_fini(struct eventcount *e) {
  (void)pthread_cond_destroy(&e->turned);
  (void)pthread_mutex_destroy(&e->lock);
}

static inline bool portable(void) {
#if defined(__linux__)
  // the call takes two words, and a longer time_t of a 32-bit system is not two words
  return sizeof(time_t) > sizeof(long) || unlikely(atomic_load_explicit(&eventcount_portable, memory_order_relaxed));
#else
  return true;
#endif
}

// Returns false if the time has passed.
static bool sleep_portable(struct eventcount *e, uint32_t begun, uint64_t ns) {
  const uint64_t until = ns < EVENTCOUNT_LONG ? time_ns() + ns : 0;
  bool in_time = true;
  (void)pthread_mutex_lock(&e->lock);
  while (in_time && atomic_load_explicit(&e->turn, memory_order_relaxed) == begun) {
    const uint64_t now = until ? time_ns() : 0;
    if (!until) cond_wait(&e->turned, &e->lock);
    else if (now < until) (void)cond_wait_ns(&e->turned, &e->lock, until - now);
    else in_time = false;
  }
  (void)pthread_mutex_unlock(&e->lock);
  return in_time;
}

#if defined(__linux__)
static bool sleep_system(struct eventcount *e, uint32_t begun, uint64_t ns) {
  const struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
  return syscall(SYS_futex, &e->turn, FUTEX_WAIT_PRIVATE, begun, ns < EVENTCOUNT_LONG ? &ts : NULL, NULL, 0) == 0 ||
         errno != ETIMEDOUT;
}
#else
static bool sleep_system(struct eventcount *e, uint32_t begun, uint64_t ns) { return sleep_portable(e, begun, ns); }
#endif

bool eventcount_sleep(struct eventcount *e, uint32_t begun, uint64_t ns) {
  const bool in_time = portable() ? sleep_portable(e, begun, ns) : sleep_system(e, begun, ns);
  eventcount_end(e);
  return in_time;
}

bool eventcount_sleep_unlocked(struct eventcount *e, uint32_t begun, pthread_mutex_t *m, uint64_t ns) {
  (void)pthread_mutex_unlock(m);
  const bool in_time = eventcount_sleep(e, begun, ns);
  (void)pthread_mutex_lock(m);
  return in_time;
}

void eventcount_wake_slow(struct eventcount *e, bool all) {
  wake_tell(e);
  if (portable()) {
    (void)pthread_mutex_lock(&e->lock);
    atomic_fetch_add_explicit(&e->turn, 1, memory_order_release);
    if (all) (void)pthread_cond_broadcast(&e->turned);
    else (void)pthread_cond_signal(&e->turned);
    (void)pthread_mutex_unlock(&e->lock);
    return;
  }
  atomic_fetch_add_explicit(&e->turn, 1, memory_order_release);
#if defined(__linux__)
  (void)syscall(SYS_futex, &e->turn, FUTEX_WAKE_PRIVATE, all ? INT_MAX : 1, NULL, NULL, 0);
#endif
}
