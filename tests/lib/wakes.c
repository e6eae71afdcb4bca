// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/wakes.h"

#define PROBES 64u
#define PATIENCE_NS 3000000000ull  // a probe that takes longer waits for the thread that is held up

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
