// SPDX-License-Identifier: Apache-2.0
//
// A thread that commits wakes those that wait for its leaf when it has released the log's lock, too. A thread that is
// woken often takes the processor from the one that wakes it.
#include "tests/lib/store.h"
#include "tests/lib/wakes.h"

#define TRIES 5u  // where the system does not tell which threads sleep, it is not sure that they do

static struct xdb *x;

static void put(const char *key) {
  struct xdb_ref *const r = remixdb_ref(x);
  THREAD_CHECK(r && remixdb_put(r, key, 4, "value", 5));
  remixdb_unref(r);
}

static void *put_one(void *arg) {
  (void)arg;
  put("same");
  return NULL;
}

static void *put_batch(void *arg) {
  (void)arg;
  struct xdb_ref *const r = remixdb_ref(x);
  struct xdb_batch *const b = remixdb_batch_create();
  THREAD_CHECK(r && b && remixdb_batch_put(b, "same", 4, "batch", 5) && remixdb_batch_put(b, "some", 4, "batch", 5));
  THREAD_CHECK(remixdb_write(r, b));
  remixdb_batch_destroy(b);
  remixdb_unref(r);
  return NULL;
}

static void *delete_range(void *arg) {
  (void)arg;
  struct xdb_ref *const r = remixdb_ref(x);
  const struct remixdb_range all = {{NULL, 0}, {NULL, 0}};
  THREAD_CHECK(r && remixdb_del_range(r, &all));
  remixdb_unref(r);
  return NULL;
}

static _Atomic uint32_t probes;

// When the thread of the test wakes the first one, that one has the leaf, and the log's lock is free. When the first
// one wakes the second one, another put gets both.
static void probe(void *arg) {
  struct wal_stats st;
  (void)arg;
  if (atomic_fetch_add(&probes, 1) == 0) wal_stats(x->wal, &st);
  else put("else");
}

// The first thread holds the leaf and waits for the log, the second one waits for the leaf. Returns how many were
// woken: the first thread, and the second one, unless it did not sleep yet.
static uint32_t wakes_of(void *(*first)(void *arg)) {
  pthread_t t[2];
  put("same");
  wal_hold(x->wal);
  CHECK(wakes_asleep(&t[0], first, NULL));
  CHECK(wakes_asleep(&t[1], put_one, NULL));
  atomic_store(&probes, 0);
  wakes_begin(probe, NULL);
  wal_unhold(x->wal);
  for (uint32_t i = 0; i < 2; i++) (void)pthread_join(t[i], NULL);
  return wakes_end();
}

static void test_leaf(void **state) {
  void *(*const first[])(void *arg) = {put_one, put_batch, delete_range};
  (void)state;
  const struct remixdb_opts o = small_opts(0);
  x = quick_open(&o);
  for (uint32_t i = 0; i < sizeof(first) / sizeof(first[0]); i++) {
    uint32_t most = 0;
    for (uint32_t tries = 0; tries < TRIES && most < 2; tries++) {
      const uint32_t nr = wakes_of(first[i]);
      most = nr > most ? nr : most;
    }
#if defined(__linux__)  // elsewhere nobody sleeps on a lib_lock
    CHECK(most >= 2);
#endif
  }
  remixdb_close(x);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_leaf, setup, teardown)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
