// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/wakes.h"

#include <stdio.h>
#include <string.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define PROBES 64u
#define PATIENCE_NS 300000000000ull  // a probe that takes longer waits for the thread that is held up
#define ASLEEP_NS 20000000ull        // a thread that begins to wait mostly sleeps after that
#define LOOK_NS 1000000ull

static struct {
  void (*probe)(void *arg);
  void *arg;
  _Atomic bool busy;  // a thread is held up, or a probe goes on
  _Atomic bool through;
  _Atomic uint32_t nr, nr_stuck, nr_missed, nr_threads;
  pthread_t threads[PROBES];
} w;

static void *probe_main(void *arg) {
  (void)arg;
  w.probe(w.arg);
  atomic_store(&w.through, true);
  return NULL;
}

// A probe wakes threads, too, and nobody holds it up.
static void watch(const void *what) {
  (void)what;
  if (atomic_exchange(&w.busy, true)) return;
  const uint32_t i = atomic_load(&w.nr_threads);
  atomic_fetch_add(&w.nr, 1);
  atomic_store(&w.through, false);
  if (i == PROBES || pthread_create(&w.threads[i], NULL, probe_main, NULL) != 0) {
    atomic_fetch_add(&w.nr_missed, 1);  // `busy` stays: the watch has failed
    return;
  }
  atomic_store(&w.nr_threads, i + 1);
  const uint64_t until = time_ns() + PATIENCE_NS;
  while (!atomic_load(&w.through) && time_ns() < until) time_sleep_ns(100000);
  if (atomic_load(&w.through)) atomic_store(&w.busy, false);
  else atomic_fetch_add(&w.nr_stuck, 1);
}

void wakes_begin(void (*probe)(void *arg), void *arg) {
  w.probe = probe;
  w.arg = arg;
  atomic_store(&w.busy, false);
  atomic_store(&w.nr, 0);
  atomic_store(&w.nr_stuck, 0);
  atomic_store(&w.nr_missed, 0);
  atomic_store(&w.nr_threads, 0);
  atomic_store(&wake_watch, watch);
}

uint32_t wakes_end(void) {
  atomic_store(&wake_watch, NULL);
  for (uint32_t i = 0; i < atomic_load(&w.nr_threads); i++) (void)pthread_join(w.threads[i], NULL);
  CHECK(atomic_load(&w.nr_stuck) == 0);
  CHECK_SAYS(atomic_load(&w.nr_missed) == 0, "no probe after the first %u", PROBES);
  return atomic_load(&w.nr);
}

// ---- threads that sleep

struct sleeper {
  void *(*fn)(void *arg);
  void *arg;
  _Atomic int tid;
};

static void *sleeper_main(void *arg) {
  struct sleeper *const s = arg;
  const struct sleeper own = *s;
#if defined(__linux__)
  atomic_store(&s->tid, (int)syscall(SYS_gettid));
#else
  atomic_store(&s->tid, 1);
#endif
  return own.fn(own.arg);
}

// Tells whether a thread of this process sleeps, and how often it has begun to.
static bool sleeps(int tid, unsigned long *times_out) {
  char path[64], line[256];
  bool asleep = false;
  (void)snprintf(path, sizeof(path), "/proc/self/task/%d/status", tid);
  FILE *const f = fopen(path, "r");
  if (!f) return true;  // it has ended, or the system does not tell
  while (fgets(line, sizeof(line), f)) {
    if (strncmp(line, "State:", 6) == 0) asleep = strchr(line, 'S') != NULL && strstr(line, "sleeping") != NULL;
    (void)sscanf(line, "voluntary_ctxt_switches: %lu", times_out);
  }
  (void)fclose(f);
  return asleep;
}

bool wakes_asleep(pthread_t *thread, void *(*fn)(void *arg), void *arg) {
  struct sleeper s = {.fn = fn, .arg = arg};
  unsigned long times = 0, before = 0;
  atomic_init(&s.tid, 0);
  if (pthread_create(thread, NULL, sleeper_main, &s) != 0) return false;
  int tid;
  while ((tid = atomic_load(&s.tid)) == 0) time_sleep_ns(LOOK_NS);
  time_sleep_ns(ASLEEP_NS);
  // A thread that waits for a lock on its way sleeps, too, but not for long.
  for (uint32_t same = 0; same < 3; before = times) {
    same = sleeps(tid, &times) && times == before ? same + 1 : 0;
    time_sleep_ns(LOOK_NS);
  }
  return true;
}
