// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <errno.h>
#include <signal.h>
#include <time.h>
#if defined(__FreeBSD__)
#include <pthread_np.h>
#endif

struct thread_start_arg {
  void *(*fn)(void *);
  void *arg;
  char name[16];
};

static void *thread_main(void *p) {
  struct thread_start_arg a;
  memcpy(&a, p, sizeof(a));
  mem_free(p);
  // Some systems let only the thread itself set its name. A refused name is no loss.
#if defined(__linux__)
  (void)pthread_setname_np(pthread_self(), a.name);
#elif defined(__APPLE__)
  (void)pthread_setname_np(a.name);
#elif defined(__FreeBSD__)
  pthread_set_name_np(pthread_self(), a.name);
#endif
  return a.fn(a.arg);
}

bool (*_Atomic thread_fault)(void);

enum remixdb_status thread_start(pthread_t *out, void *(*fn)(void *), void *arg, const char *name) {
  struct thread_start_arg *const a = mem_calloc(1, sizeof(*a));
  if (!a) return REMIXDB_NOMEM;
  a->fn = fn;
  a->arg = arg;
  const size_t len = strlen(name);
  memcpy(a->name, name, len < sizeof(a->name) ? len : sizeof(a->name) - 1);
  // A new thread inherits the mask, so signals go to the program's own threads.
  sigset_t all, old;
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &old);
  bool (*const fault)(void) = atomic_load_explicit(&thread_fault, memory_order_relaxed);
  const int rc = unlikely(fault != NULL) && !fault() ? EAGAIN : pthread_create(out, NULL, thread_main, a);
  (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (rc == 0) return REMIXDB_OK;
  mem_free(a);
  return err_errno(rc == EAGAIN ? ENOMEM : rc, "starting thread", name);
}

void cond_init(pthread_cond_t *c) {
#if defined(__APPLE__)
  (void)pthread_cond_init(c, NULL);
#else
  pthread_condattr_t attr;
  (void)pthread_condattr_init(&attr);
  (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  (void)pthread_cond_init(c, &attr);
  (void)pthread_condattr_destroy(&attr);
#endif
}

void thread_join(pthread_t t) {
  CANCEL_LATER;
  (void)pthread_join(t, NULL);
}

void cond_wait(pthread_cond_t *c, pthread_mutex_t *m) {
  CANCEL_LATER;
  (void)pthread_cond_wait(c, m);
}

bool cond_wait_ns(pthread_cond_t *c, pthread_mutex_t *m, uint64_t ns) {
  CANCEL_LATER;
  if (ns > (uint64_t)1 << 60) ns = (uint64_t)1 << 60;  // 36 years: the sum below cannot wrap
#if defined(__APPLE__)
  const struct timespec ts = time_spec(ns);
  return pthread_cond_timedwait_relative_np(c, m, &ts) != ETIMEDOUT;
#else
  const struct timespec ts = time_spec(time_ns() + ns);
  return pthread_cond_timedwait(c, m, &ts) != ETIMEDOUT;
#endif
}
