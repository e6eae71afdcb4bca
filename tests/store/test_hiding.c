// SPDX-License-Identifier: Apache-2.0
//
// A store at rest with deletions in its memtable that hide much of its tables brings them into tables. Nothing is
// timed: the test waits until the worker has judged.
#include "tests/lib/store.h"

#include "remixdb.h"
#include "store/hiding.h"
#include "store/idle.h"

#define KEYS 20000u
#define VALUE 200u

static struct xdb *x;
static struct xdb_ref *ref;

static uint32_t key_of(uint32_t i, char key[16]) { return (uint32_t)snprintf(key, 16, "key%08u", i); }

static void open_store(void) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.workers = 1;
  o.memtable_mb = 64;
  x = quick_open(&o);
  CHECK((ref = remixdb_ref(x)) != NULL);
}

static void close_store(void) {
  remixdb_unref(ref);
  OK(xdb_close(x));
}

static void put(uint32_t i) {
  static const char value[VALUE];
  char key[16];
  CHECK(remixdb_put(ref, key, key_of(i, key), value, VALUE));
}

static void del(uint32_t i) {
  char key[16];
  CHECK(remixdb_del(ref, key, key_of(i, key)));
}

// Waits until a worker has judged all that was written.
static void wait_judged(uint64_t least) {
  atomic_store(&x->hiding.least, least);
  atomic_store(&x->hiding.rest_ns, 1000000);
  idle_hiding(x);
  while (atomic_load_explicit(&x->hiding.judged, memory_order_acquire) != atomic_load(&x->published))
    time_sleep_ns(1000000);
}

static uint64_t in_memory(void) {
  xdb_lock(x);
  const uint64_t nr = memtable_count(xdb_super(x)->active);
  xdb_unlock(x);
  return nr;
}

static uint64_t frozen(void) {
  xdb_lock(x);
  const uint64_t nr = x->rounds.nr_frozen;
  xdb_unlock(x);
  return nr;
}

enum how { DELETES, FEW, NEW_KEYS, OVERWRITES, SMALL, PUT_AGAIN, WAYS };

static void write_as(enum how how) {
  for (uint32_t i = 0; i < KEYS; i++) {
    if (how == NEW_KEYS) put(KEYS + i);
    else if (how == OVERWRITES) put(i);
    else if (how == FEW ? i % 20 == 0 : i % 3 == 0) del(i);
  }
  for (uint32_t i = 0; how == PUT_AGAIN && i < KEYS; i += 3) put(i);
}

static void test_judges(void **state) {
  (void)state;
  for (int how = DELETES; how < WAYS; how++) {
    setup_again();
    open_store();
    for (uint32_t i = 0; i < KEYS; i++) put(i);
    CHECK(remixdb_flush(ref));
    OK(xdb_wait_idle(x));
    const uint64_t before = frozen();
    write_as((enum how)how);
    const uint64_t held = in_memory();
    wait_judged(how == SMALL ? (uint64_t)KEYS * VALUE : 100000);
    while (how == DELETES && frozen() == before) time_sleep_ns(1000000);  // the round begins after the judgement
    OK(xdb_wait_idle(x));
    CHECK(frozen() - before == (how == DELETES));
    CHECK(in_memory() == (how == DELETES ? 0 : held));
    char key[16];
    for (uint32_t i = 0; i < KEYS; i++) {
      const bool gone = how == FEW ? i % 20 == 0 : (how == DELETES || how == SMALL) && i % 3 == 0;
      CHECK(remixdb_probe(ref, key, key_of(i, key)) == !gone);
    }
    // nothing is written: nothing more happens, however often a worker looks
    const uint32_t nr = atomic_load(&x->hiding.nr);
    for (uint32_t looks = 0; looks < 3; looks++) {
      idle_hiding(x);
      const uint64_t at = atomic_load(&x->hiding.at_ns);
      while (atomic_load(&x->hiding.at_ns) == at) time_sleep_ns(1000000);
    }
    OK(xdb_wait_idle(x));
    CHECK(atomic_load(&x->hiding.nr) == nr);
    CHECK(frozen() - before == (how == DELETES));
    close_store();
  }
}

int main(void) {
  hang_alarm();
  const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_judges, setup, teardown)};
  return cmocka_run_group_tests_name("hiding", tests, NULL, NULL);
}
