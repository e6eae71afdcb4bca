// SPDX-License-Identifier: Apache-2.0
//
// When scan merges are made: not while a memtable needs the room, nor for readers of an old version.
#include "store/wait_room.h"
#include "tests/lib/check.h"
#include "tests/lib/gates.h"

// The room that a nearly full memtable is about to need comes first, then the scan merge.
static void test_nearly_full(void **state) {
  (void)state;
  struct xdb_ref *r = load(1, SMALL);
  const uint32_t before = runs(r);
  write_key(r, 1, false);
  const size_t used = wh_memory(xdb_super(x)->active->wh);
  limit(used + used / 4);
  wear(r);
  idle();
  CHECK(runs(r) == before && stat_of(x, "scan_merges") == 0);
  limit(ROOM);
  OK(xdb_wait_room(x, XDB_FREEZE_ANY, 0));
  idle();
  CHECK(stat_of(x, "abort") == 1);  // so the partition with the debt is as it was
  CHECK(stat_of(x, "scan_merges") == 1 && runs(r) < before);
  check_all(r, newest);
  reopen(r);
}

// Loads a store whose memtable is four fifths full, and whose partition of *runs_out runs has debt.
static struct xdb_ref *load_nearly_full(uint32_t *runs_out) {
  struct xdb_ref *r = load(1, SMALL);
  *runs_out = runs(r);
  for (uint32_t i = 0; i < 100; i++) write_key(r, i, false);
  const size_t used = wh_memory(xdb_super(x)->active->wh);
  limit(used + used / 4);
  wear(r);
  idle();  // a worker has looked
  return r;
}

// The memtable grows by about a tenth, and scans ask for the merge again.
static void grow_and_wear(struct xdb_ref *r) {
  const size_t used = wh_memory(xdb_super(x)->active->wh);
  for (uint32_t i = 0; wh_memory(xdb_super(x)->active->wh) < used + used / 8; i++) write_key(r, i % 100, false);
  wear(r);
}

// No scan merge is made while a nearly full memtable grows so fast that the merge would soon be given up. It is made
// when that is over and scans ask again.
static void test_nearly_full_for_long(void **state) {
  (void)state;
  uint32_t before;
  struct xdb_ref *r = load_nearly_full(&before);
  time_sleep_ns(150000000);
  grow_and_wear(r);
  idle();
  CHECK(runs(r) == before && stat_of(x, "scan_merges") == 0);
  while (runs(r) == before) {  // for ever: the alarm ends it
    wear(r);
    time_sleep_ns(50000000);
  }
  idle();
  CHECK(stat_of(x, "scan_merges") == 1);
  check_all(r, newest);
  reopen(r);
}

// Makes it seem as if the last look at the memtable was long ago.
static void look_long_ago(void) {
  pthread_mutex_lock(&x->lock);
  if (x->scan_merges.looked_ns) x->scan_merges.looked_ns -= 3000000000ull;
  atomic_store(&x->scan_merges.again_ns, 0);
  pthread_mutex_unlock(&x->lock);
}

// Asks until the merge is made: every few seconds, as it seems, and each time the memtable seems to have grown by so
// many bytes.
static void ask_until_merged(struct xdb_ref *r, uint32_t before, size_t growth) {
  while (runs(r) == before) {  // for ever: the alarm ends it
    look_long_ago();
    pthread_mutex_lock(&x->lock);
    if (x->scan_merges.used) x->scan_merges.used = wh_memory(xdb_super(x)->active->wh) - growth;
    pthread_mutex_unlock(&x->lock);
    wear(r);
    time_sleep_ns(20000000);
  }
  idle();
  CHECK(stat_of(x, "scan_merges") == 1);
  check_all(r, newest);
  reopen(r);
}

// The merge is made, too, when scans ask every few seconds only; but not when the memtable has grown much since the
// last look, because that may have been just now.
static void test_nearly_full_seldom(void **state) {
  (void)state;
  uint32_t before;
  struct xdb_ref *r = load_nearly_full(&before);
  look_long_ago();
  grow_and_wear(r);
  idle();
  CHECK(runs(r) == before && stat_of(x, "scan_merges") == 0);
  ask_until_merged(r, before, 0);
}

// The merge is made, too, while a full memtable that nobody writes to grows a little with each look: readers put its
// leaves in order.
static void test_full_and_read(void **state) {
  (void)state;
  uint32_t before;
  struct xdb_ref *r = load_nearly_full(&before);
  limit(wh_memory(xdb_super(x)->active->wh) - 1);
  ask_until_merged(r, before, 8);
}

// Readers of an old version do not keep workers busy: a round can do nothing for them.
static void test_obsolete(void **state) {
  (void)state;
  struct xdb_ref *r = load(1, SMALL);
  epoch_enter(&x->epoch, &r->slot);
  struct super *old = xdb_super(x);
  super_ref(old);
  epoch_exit(&r->slot);
  struct remix *const obsolete = old->version->parts[0]->remix;
  wear(r);
  idle();
  CHECK(runs(r) == 1);
  write_key(r, 1, false);
  OK(xdb_flush(x));
  idle();
  scan_merge_stop(x);  // a request stays where the test can see it
  remix_add_debt(obsolete, UINT32_MAX);
  CHECK(compact_scan_debt_paid(obsolete));
  CHECK(!atomic_load(&x->scan_merges.due));
  wear(r);
  time_sleep_ns(20000000);  // for a round to begin that should not
  CHECK(atomic_load(&x->scan_merges.due));
  CHECK(stat_of(x, "scan_merges") == 1);
  super_unref(old);
  reopen(r);
}

int main(void) {
  check_seed = check_seed_or(1);
  hang_alarm();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_nearly_full, setup, teardown),
      cmocka_unit_test_setup_teardown(test_nearly_full_for_long, setup, teardown),
      cmocka_unit_test_setup_teardown(test_nearly_full_seldom, setup, teardown),
      cmocka_unit_test_setup_teardown(test_full_and_read, setup, teardown),
      cmocka_unit_test_setup_teardown(test_obsolete, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
