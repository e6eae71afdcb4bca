// SPDX-License-Identifier: Apache-2.0
//
// The deletion of a range passes leaves in which all keys are deleted already, without a look at the keys. The test
// counts the entries that it looks at, and checks which keys it deletes where leaves are so in part.
#define WH_COUNTERS 1
#include "wh/leaf.c"
#include "wh.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#define KEYS 20000u

struct index {
  struct epoch epoch;
  struct epoch_slot slot;
  struct wh *wh;
  uint64_t seq;
  uint32_t nr;  // keys that the last deletion deleted
};

static struct kref key_of(uint32_t i, char *buf) { return kref(buf, (uint32_t)sprintf(buf, "%08u", i)); }

static void put(struct index *x, uint32_t i, bool back) {
  char buf[16];
  struct wh_slot slot;
  const struct kref key = key_of(i, buf);
  epoch_enter(&x->epoch, &x->slot);
  wh_lock(x->wh, key, hash64(key.ptr, key.len), &slot);
  OK(wh_link(&slot, KV_REC(kref(NULL, 0), "v", 1, 0)));
  if (back) wh_unlink(&slot);
  else wh_stamp(&slot, ++x->seq);
  wh_unlock(&slot);
  epoch_exit(&x->slot);
}

static enum remixdb_status note(void *arg, const struct wh_link *l) {
  struct index *const x = arg;
  wh_link_stamp(l, ++x->seq);
  x->nr++;
  return REMIXDB_OK;
}

// Deletes [from, to). Returns how many entries were looked at.
static uint64_t del(struct index *x, uint32_t from, uint32_t to) {
  char a[16], b[16];
  struct wh_many many;
  const uint64_t before = atomic_load(&wh_counters.hidden);
  x->nr = 0;
  epoch_enter(&x->epoch, &x->slot);
  wh_many_init(&many, x->wh);
  OK(wh_many_delete(&many, key_of(from, a), key_of(to, b), note, x));
  wh_many_unlock(&many);
  epoch_exit(&x->slot);
  return atomic_load(&wh_counters.hidden) - before;
}

static void test_passed(void **state) {
  (void)state;
  struct index x = {.seq = 0};
  char why[200];
  epoch_init(&x.epoch);
  epoch_join(&x.epoch, &x.slot);
  OK(wh_create(&x.epoch, 1 << 20, NULL, &x.wh));
  for (uint32_t i = 0; i < KEYS; i++) put(&x, i, false);
  assert_in_range(del(&x, 0, KEYS / 2), KEYS / 2, KEYS / 2 + WH_LEAF_KEYS);
  assert_int_equal(x.nr, KEYS / 2);
  // step by step: the leaf in which the last deletion ended, and the next one at most
  for (uint32_t i = 1; i <= 1000; i++) {
    assert_true(del(&x, 0, KEYS / 2 + i) <= 2 * WH_LEAF_KEYS);
    assert_int_equal(x.nr, 1);
  }
  assert_true(del(&x, 0, KEYS / 2 + 1000) <= 2 * WH_LEAF_KEYS);
  assert_int_equal(x.nr, 0);
  // one key has come back, in the middle
  put(&x, 5000, false);
  assert_in_range(del(&x, 0, KEYS / 2), 1, WH_LEAF_KEYS);
  assert_int_equal(x.nr, 1);
  // a put that was taken back has not come; a new key has
  put(&x, 5000, true);
  put(&x, KEYS + 1, true);
  assert_int_equal(del(&x, 0, KEYS / 2), 0);
  put(&x, 2500, false);
  put(&x, 7500, false);
  assert_int_equal((del(&x, 2501, 7500), x.nr), 0);
  assert_int_equal((del(&x, 2500, 7501), x.nr), 2);
  (void)del(&x, 0, KEYS);
  assert_int_equal(x.nr, KEYS / 2 - 1000);
  assert_true(wh_check(x.wh, why, sizeof(why)) && wh_gaps_check(x.wh, why, sizeof(why)));
  wh_destroy(x.wh);
  epoch_reclaim(&x.epoch);
  epoch_leave(&x.epoch, &x.slot);
  epoch_fini(&x.epoch);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_passed)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
