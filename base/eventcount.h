// SPDX-License-Identifier: Apache-2.0
//
// An eventcount: threads wait for something that other threads do. It serves like a condition variable, and a thread
// that wakes others never waits for them. A signal of glibc's condition variable may wait until a thread that was woken
// earlier has got a processor, and its caller mostly holds a mutex meanwhile.
//
// A thread that waits calls eventcount_begin. Then it looks once more whether it has to wait, and calls
// eventcount_sleep if so, else eventcount_end. A thread that does what others wait for stores that first, and then
// calls eventcount_wake or eventcount_wake_all. If all of them do so under a mutex, a waiting thread has no need for
// the look, and eventcount_wait is all that it calls.
//
// Invariants (tests/unit/test_eventcount.c)
//   E1  No wake-up is lost. Both threads change `waiters`, in some order. If the change of the waiting thread comes
//       first, the other one sees that somebody waits, and counts `turn` up. Else the waiting thread sees what the
//       other one has stored before.
//   E2  A thread sleeps only while `turn` has the value that eventcount_begin has read. The comparison and a wake-up
//       exclude each other. So a thread that comes too late does not fall asleep.
//   E3  Each eventcount_wake wakes one more of the threads that sleep, as long as there are any. It is not known which
//       one. So a thread that is woken looks for everything that an eventcount_wake may have told, or passes it on.
//   E4  Waking takes no lock whose holder may lose its processor. If nobody waits, it makes no system call.
// E2 fails if `turn` comes to the same value again, by 2^32 wake-ups between a thread's begin and its sleep.
//
// On Linux the system has such a sleep (futex). Elsewhere a mutex and a condition variable do it, without E4.
#ifndef EVENTCOUNT_H
#define EVENTCOUNT_H

#include "lib.h"

struct eventcount {
  _Atomic uint32_t turn;     // counted up by each wake-up that somebody may wait for; release and acquire
  _Atomic uint32_t waiters;  // threads between begin and the end of their wait; changed by acquire and release
  // For the portable form alone. `lock` guards the changes of `turn`.
  pthread_mutex_t lock;
  pthread_cond_t turned;
};

#define EVENTCOUNT_NEVER UINT64_MAX

void eventcount_init(struct eventcount *e);
void eventcount_fini(struct eventcount *e);  // nobody waits any more

// Announces that this thread may wait. Pass the result to eventcount_sleep.
static inline uint32_t eventcount_begin(struct eventcount *e) {
  atomic_fetch_add_explicit(&e->waiters, 1, memory_order_acq_rel);
  return atomic_load_explicit(&e->turn, memory_order_acquire);
}
// The thread goes on without a wait.
static inline void eventcount_end(struct eventcount *e) {
  atomic_fetch_sub_explicit(&e->waiters, 1, memory_order_release);
}
// Sleeps until a wake-up that has come since eventcount_begin, or for ns nanoseconds; EVENTCOUNT_NEVER: without a
// limit. May return early. Returns false if the time has passed. Ends what eventcount_begin began. The thread holds no
// lock.
bool eventcount_sleep(struct eventcount *e, uint32_t begun, uint64_t ns);
// The same; releases the mutex first, and takes it again at the end.
bool eventcount_sleep_unlocked(struct eventcount *e, uint32_t begun, pthread_mutex_t *m, uint64_t ns);
// The same, with eventcount_begin before it. Threads change the thing that this thread waits for under the mutex only.
static inline bool eventcount_wait(struct eventcount *e, pthread_mutex_t *m, uint64_t ns) {
  return eventcount_sleep_unlocked(e, eventcount_begin(e), m, ns);
}

void eventcount_wake_slow(struct eventcount *e, bool all);  // by the two calls below alone
// Wakes one thread that waits, if there is one. Any thread.
static inline void eventcount_wake(struct eventcount *e) {
  // A change, though of nothing: E1 needs its place in the order of changes.
  if (unlikely(atomic_fetch_add_explicit(&e->waiters, 0, memory_order_acq_rel))) eventcount_wake_slow(e, false);
}
// Wakes all threads that wait.
static inline void eventcount_wake_all(struct eventcount *e) {
  if (unlikely(atomic_fetch_add_explicit(&e->waiters, 0, memory_order_acq_rel))) eventcount_wake_slow(e, true);
}

// For tests: the portable form is used on Linux, too. Set it while no eventcount is in use.
extern _Atomic bool eventcount_portable;
#endif
