// SPDX-License-Identifier: Apache-2.0
//
// A store at rest with deletions in its memtable that hide much of its tables brings them into tables. Nothing is
// timed: the tests wait until the worker has judged, or until it is at it.
#include "tests/lib/store.h"

#include "remixdb.h"
#include "store/hiding.h"
#include "store/idle.h"
#include "view/version.h"

#define KEYS 20000u
#define VALUE 200u

static struct xdb *x;
static struct xdb_ref *ref;

static uint32_t key_of(uint32_t i, char key[16]) { return (uint32_t)snprintf(key, 16, "key%08u", i); }

static void open_store_with(int workers) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.workers = workers;
  o.memtable_mb = 64;
  x = quick_open(&o);
  CHECK((ref = remixdb_ref(x)) != NULL);
}

static void open_store(void) { open_store_with(1); }

// The test writes to a named space from now on.
static void use_space(void) {
  remixdb_unref(ref);
  struct xdb_space *const space = remixdb_space_open(x, "space", true);
  CHECK(space != NULL && (ref = remixdb_space_ref(space)) != NULL);
  remixdb_space_close(space);
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

enum how { DELETES, FEW, NEW_KEYS, OVERWRITES, SMALL, PUT_AGAIN, STOPPED, IN_SPACE, WAYS };

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
    const bool due = how == DELETES || how == IN_SPACE;
    setup_again();
    open_store();
    if (how == IN_SPACE) use_space();
    for (uint32_t i = 0; i < KEYS; i++) put(i);
    CHECK(remixdb_flush(ref));
    OK(xdb_wait_idle(x));
    const uint64_t before = frozen();
    write_as((enum how)how);
    const uint64_t held = in_memory();
    if (how == STOPPED) hiding_stop(x);
    wait_judged(how == SMALL ? (uint64_t)KEYS * VALUE : 100000);
    while (due && frozen() == before) time_sleep_ns(1000000);  // the round begins after the judgement
    OK(xdb_wait_idle(x));
    CHECK(frozen() - before == due);
    CHECK(in_memory() == (due ? 0 : held));
    char key[16];
    for (uint32_t i = 0; i < KEYS; i++) {
      const bool gone = how == FEW ? i % 20 == 0 : (due || how == SMALL || how == STOPPED) && i % 3 == 0;
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
    CHECK(frozen() - before == due);
    close_store();
  }
}

static uint64_t away(void) {
  xdb_lock(x);
  const uint64_t nr = version_tree_away(xdb_super(x)->version);
  xdb_unlock(x);
  return nr;
}

// A judgement that cannot find many keys gone leaves partitions away, and so does one that the close stops.
static void test_away(void **state) {
  (void)state;
  static const enum how ways[] = {FEW, NEW_KEYS, STOPPED, DELETES};
  for (uint32_t way = 0; way < sizeof(ways) / sizeof(ways[0]); way++) {
    const enum how how = ways[way];
    setup_again();
    open_store();
    for (uint32_t i = 0; i < KEYS; i++) put(i);
    CHECK(remixdb_flush(ref));
    close_store();
    atomic_store(&version_eager, 0);
    open_store();
    atomic_store(&version_eager, VERSION_EAGER);
    const uint64_t before = frozen(), there = away();
    CHECK(there != 0);
    if (how != FEW) write_as(how);
    if (how == FEW || how == NEW_KEYS) del(0);
    if (how == STOPPED) hiding_stop(x);
    wait_judged(100000);
    CHECK(atomic_load(&x->hiding.nr) == 1);
    while (how == DELETES && frozen() == before) time_sleep_ns(1000000);
    CHECK(away() == (how == DELETES ? 0 : there));
    OK(xdb_wait_idle(x));
    CHECK(frozen() - before == (how == DELETES));
    close_store();
  }
}

// ---- the close beside a judgement

static _Atomic bool judging;
static bool goes_on;

// For mem_fault: holds a worker up that begins to count tombstones until the close has begun, and then for a while.
static bool hold_judge(size_t size) {
  if (size != sizeof(struct wh_sample) || atomic_exchange(&judging, true)) return true;
  while (!atomic_load(&x->hiding.ending)) time_sleep_ns(100000);
  if (goes_on) atomic_store(&x->hiding.ending, false);
  time_sleep_ns(30000000);
  return true;
}

// Deletes a third of few keys, and waits until a worker judges that.
static void begin_judging(void) {
  const uint32_t nr = 600;
  atomic_store(&judging, false);
  setup_again();
  open_store_with(2);
  for (uint32_t i = 0; i < nr; i++) put(i);
  CHECK(remixdb_flush(ref));
  OK(xdb_wait_idle(x));
  for (uint32_t i = 0; i < nr; i += 3) del(i);
  atomic_store(&mem_fault, hold_judge);
  atomic_store(&x->hiding.least, 1);
  atomic_store(&x->hiding.rest_ns, 1000000);
  idle_hiding(x);
  while (!atomic_load(&judging)) time_sleep_ns(100000);
}

// The close waits for the round that a judgement asks for beside it, and begins nothing meanwhile that the round would
// disturb: the few records, which it would leave in the log, are in tables.
static void test_close(void **state) {
  (void)state;
  goes_on = true;
  begin_judging();
  close_store();
  atomic_store(&mem_fault, NULL);
  open_store();
  CHECK(x->recovery.nr_records == 0);
  close_store();
}

// A new space does not wait for the judgement. That keeps the version that the space's name replaces, and leaves it to
// the close. If it stayed there, its memory would leak.
static void test_replaced(void **state) {
  (void)state;
  goes_on = false;
  begin_judging();
  use_space();
  CHECK(!atomic_load(&x->hiding.ending));
  close_store();
  atomic_store(&mem_fault, NULL);
  open_store();
  CHECK(x->nr_cleaned == 0);
  close_store();
}

int main(void) {
  hang_alarm();
  const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_judges, setup, teardown),
                                     cmocka_unit_test_setup_teardown(test_away, setup, teardown),
                                     cmocka_unit_test_setup_teardown(test_close, setup, teardown),
                                     cmocka_unit_test_setup_teardown(test_replaced, setup, teardown)};
  return cmocka_run_group_tests_name("hiding", tests, NULL, NULL);
}
