// SPDX-License-Identifier: Apache-2.0
//
// Room on the disk that old versions and tombstones take: it is bounded while a store is written to, and comes back
// when it is at rest. Bytes of files are counted; nothing is timed.
#include "tests/lib/check.h"
#include "tests/lib/gates.h"

#include <errno.h>

#include "compact/garbage.h"
#include "store/garbage_look.h"
#include "view/garbage.h"

#define MS 1000000ull
#define REST_NS (3000 * MS)

static void wait_settled(void) {
  do {
    time_sleep_ns(MS);
    idle();
  } while (garbage_pending(x));  // for ever: the alarm ends it
  idle();
}

static struct garbage measure(void) {
  struct garbage all;
  pthread_mutex_lock(&x->lock);
  garbage_all(xdb_super(x)->version, &all);
  pthread_mutex_unlock(&x->lock);
  return all;
}

static struct xdb_ref *load_garbage(int workers) {
  struct xdb_ref *const r = load(workers, LARGE);
  x->compact.garbage_from = 1;
  x->garbage_merges.rest_ns = MS;
  return r;
}

// Overwrites half of the keys, and deletes some. The round does not bound the garbage, and no merge follows before the
// next idle_garbage.
static void make_garbage(struct xdb_ref *r) {
  x->garbage_merges.rest_ns = 3600000 * MS;
  x->compact.garbage_from = 0;
  limit(64 * ROOM);  // one run
  for (uint32_t k = 0; k < KEYS; k += 2) write_key(r, k, k % 5 == 0);
  OK(xdb_flush(x));
  idle();
  limit(ROOM);
  x->compact.garbage_from = 1;
}

static void test_at_rest(void **state) {
  (void)state;
  uint32_t then[KEYS];
  struct xdb_snapshot *snap;
  struct xdb_ref *old, *r = load_garbage(1);
  wait_settled();
  memcpy(then, newest, sizeof(then));
  OK(xdb_snapshot(r, &snap));
  OK(xdb_snapshot_ref(snap, &old));
  for (uint32_t round = 0; round < 3; round++) {
    const uint64_t merges = stat_of(x, "garbage_merges");
    make_garbage(r);
    const struct garbage before = measure();
    CHECK(before.garbage > before.live / 4);
    CHECK(stat_of(x, "garbage_merges") == merges && garbage_pending(x));
    x->garbage_merges.rest_ns = MS;
    idle_garbage(x);
    wait_settled();
    const struct garbage after = measure();
    CHECK(stat_of(x, "garbage_merges") > merges);
    CHECK(after.garbage <= after.live / GARBAGE_REST || after.files <= after.live + after.live / 25 * 7);
    CHECK(!wal_cut_waiting(x->wal));  // a store at rest has done it
    CHECK(after.files < before.files && !compact_garbage_due(&x->compact, xdb_super(x)->version));
    check_all(r, newest);
    check_all(old, then);
  }
  // nothing was written: nothing is done
  const uint64_t merges = stat_of(x, "garbage_merges"), written = stat_of(x, "table_bytes_written");
  idle_garbage(x);
  wait_settled();
  CHECK(stat_of(x, "garbage_merges") == merges && stat_of(x, "table_bytes_written") == written);
  xdb_unref(old);
  xdb_snapshot_release(snap);
  reopen(r);
}

// While something is written the store is not at rest, however slowly that goes.
static void test_not_at_rest(void **state) {
  (void)state;
  struct xdb_ref *const r = load_garbage(1);
  wait_settled();
  make_garbage(r);
  const uint64_t merges = stat_of(x, "garbage_merges");
  x->garbage_merges.rest_ns = REST_NS;
  idle_garbage(x);
  uint64_t wrote = time_ns(), longest = 0;
  for (uint32_t i = 0; i < 100; i++) {  // too little for a round
    const uint64_t before = wrote;
    wrote = time_ns();
    write_key(r, i, false);
    time_sleep_ns(REST_NS / 75);
    if (time_ns() - before > longest) longest = time_ns() - before;
  }
  const bool waits = garbage_pending(x) && stat_of(x, "garbage_merges") == merges;
  CHECK(waits || longest >= REST_NS);  // a machine that stands still for so long lets the store rest
  x->garbage_merges.rest_ns = MS;
  idle_garbage(x);
  wait_settled();
  CHECK(stat_of(x, "garbage_merges") > merges);
  check_all(r, newest);
  reopen(r);
}

// Without workers, and where they are not wanted, there are none.
static void test_none(void **state) {
  (void)state;
  struct xdb_ref *r = load_garbage(0);
  make_garbage(r);
  CHECK(!garbage_pending(x) && compact_garbage_due(&x->compact, xdb_super(x)->version));
  CHECK(stat_of(x, "garbage_merges") == 0);
  reopen(r);
  setup_again();
  r = load_garbage(1);
  make_garbage(r);
  x->compact.garbage_from = 0;
  x->garbage_merges.rest_ns = MS;
  idle_garbage(x);
  wait_settled();
  CHECK(stat_of(x, "garbage_merges") == 0);
  reopen(r);
}

// A merge gives way to a memtable, and is made after it.
static void test_yields(void **state) {
  (void)state;
  struct xdb_ref *const r = load_garbage(1);
  wait_settled();
  make_garbage(r);
  const uint64_t merges = stat_of(x, "garbage_merges");
  x->garbage_merges.rest_ns = MS;
  hold(GATE_TABLE);
  idle_garbage(x);
  wait_held_at(GATE_TABLE);
  freeze(r);
  hold(GATE_NONE);
  idle();
  wait_settled();
  CHECK(stat_of(x, "garbage_merges") > merges && stat_of(x, "failed") == 0);
  check_all(r, newest);
  reopen(r);
}

// A merge that fails changes nothing, and is not tried again at once.
static void test_fails(void **state) {
  (void)state;
  struct xdb_ref *const r = load_garbage(1);
  wait_settled();
  make_garbage(r);
  const uint64_t merges = stat_of(x, "garbage_merges"), failed = stat_of(x, "failed");
  atomic_store(&fail_with, ENOSPC);
  atomic_store(&fail_at, GATE_TABLE);
  x->garbage_merges.rest_ns = MS;
  idle_garbage(x);
  while (stat_of(x, "failed") == failed) time_sleep_ns(MS);
  time_sleep_ns(50 * MS);  // for a try that should not come
  idle();
  CHECK(stat_of(x, "failed") == failed + 1 && stat_of(x, "garbage_merges") == merges && garbage_pending(x));
  atomic_store(&fail_at, GATE_NONE);
  check_all(r, newest);
  write_key(r, 1, false);
  idle_garbage(x);
  wait_settled();
  CHECK(stat_of(x, "garbage_merges") > merges);
  check_all(r, newest);
  reopen(r);
}

// A read has failed: the merges wait for a while, and are made then, although nothing else happens. A damaged partition
// is never merged.
static void test_unread(void **state) {
  (void)state;
  struct xdb_ref *const r = load_garbage(1);
  wait_settled();
  make_garbage(r);
  const uint64_t merges = stat_of(x, "garbage_merges"), began = time_ns();
  pthread_mutex_lock(&x->lock);
  const struct version *const v = xdb_super(x)->version;
  for (uint32_t i = 0; i < v->nr_parts; i++) CHECK(part_set_unread(v->parts[i], REMIXDB_IO));
  pthread_mutex_unlock(&x->lock);
  x->garbage_merges.rest_ns = MS;
  idle_garbage(x);
  while (stat_of(x, "garbage_merges") == merges) time_sleep_ns(10 * MS);
  CHECK(time_ns() - began >= PART_PAUSE_NS);
  wait_settled();
  check_all(r, newest);
  make_garbage(r);
  const uint64_t then = stat_of(x, "garbage_merges");
  pthread_mutex_lock(&x->lock);
  const struct version *const now = xdb_super(x)->version;
  for (uint32_t i = 0; i < now->nr_parts; i++) CHECK(part_set_unread(now->parts[i], REMIXDB_CORRUPT));
  pthread_mutex_unlock(&x->lock);
  x->garbage_merges.rest_ns = MS;
  idle_garbage(x);
  wait_settled();  // the look ends
  CHECK(stat_of(x, "garbage_merges") == then);
  reopen(r);
}

int main(void) {
  check_seed = check_seed_or(1);
  hang_alarm();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_at_rest, setup, teardown),
      cmocka_unit_test_setup_teardown(test_not_at_rest, setup, teardown),
      cmocka_unit_test_setup_teardown(test_none, setup, teardown),
      cmocka_unit_test_setup_teardown(test_yields, setup, teardown),
      cmocka_unit_test_setup_teardown(test_fails, setup, teardown),
      cmocka_unit_test_setup_teardown(test_unread, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
