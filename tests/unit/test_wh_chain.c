// SPDX-License-Identifier: Apache-2.0
//
// Long chains of versions: a reader at an old moment passes few of them. The test counts the versions that it passes.
#define WH_COUNTERS 1
#include "wh/leaf.c"
#include "wh.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#define LONG 160000u
#define MOMENTS 1000u

struct index {
  struct epoch epoch;
  struct epoch_slot slot;
  struct wh *wh;
};

static void index_init(struct index *x) {
  epoch_init(&x->epoch);
  epoch_join(&x->epoch, &x->slot);
  OK(wh_create(&x->epoch, 1 << 20, NULL, &x->wh));
}

static void index_fini(struct index *x) {
  char why[200];
  if (!wh_check(x->wh, why, sizeof(why))) fail_msg("%s", why);
  wh_destroy(x->wh);
  epoch_reclaim(&x->epoch);
  epoch_leave(&x->epoch, &x->slot);
  epoch_fini(&x->epoch);
}

// Writes a version with this number, which is also its value. back: takes it back at once.
static void put(struct index *x, struct kref key, uint64_t seq, bool back) {
  struct wh_slot slot;
  epoch_enter(&x->epoch, &x->slot);
  wh_lock(x->wh, key, hash64(key.ptr, key.len), &slot);
  const bool tomb = seq % 7 == 3;
  const struct kv_rec rec = {.val = (const uint8_t *)&seq, .vlen = tomb ? 0 : sizeof(seq), .kind = tomb ? KV_TOMB : 0};
  OK(wh_link(&slot, &rec));
  if (back) wh_unlink(&slot);
  else wh_stamp(&slot, seq);
  wh_unlock(&slot);
  epoch_exit(&x->slot);
}

static uint64_t passed(void) { return atomic_load(&wh_counters.versions); }

// The version of the key at the moment has this number (0: there is none), for a get and for a seek. Neither passes
// more than `most` versions.
static void check_seen(struct index *x, struct kref key, uint64_t moment, uint64_t seq, uint64_t most) {
  uint64_t began = passed();
  epoch_enter(&x->epoch, &x->slot);
  const struct wh_ver *const v = wh_get(x->wh, key, hash64(key.ptr, key.len), moment);
  assert_int_equal(v ? wh_ver_seq(v) : 0, seq);
  assert_true(passed() - began <= most);
  struct wh_cursor c;
  wh_cursor_init(&c, x->wh, moment);
  began = passed();
  wh_seek(&c, key);
  assert_int_equal(wh_valid(&c), seq != 0);
  if (seq) assert_int_equal(wh_ver_seq(c.ver), seq);
  assert_true(passed() - began <= most);
  epoch_exit(&x->slot);
}

// About twice the logarithm of the milestones, and the versions before and after them.
static uint64_t bound(uint64_t nr) {
  uint64_t log = 0;
  for (uint64_t n = nr / WH_VER_STRIDE; n; n >>= 1) log++;
  return 3 * log + 2 * WH_VER_STRIDE;
}

// Chains of every length up to some milestones, at every moment; numbers have gaps, and some versions are taken back.
static void test_every_moment(void **state) {
  (void)state;
  uint8_t bytes[WH_VER_KEY_MAX + 1];
  memset(bytes, 'k', sizeof(bytes));
  static const uint32_t lens[] = {0, 1, 16, WH_VER_KEY_MAX, WH_VER_KEY_MAX + 1};
  for (uint32_t l = 0; l < sizeof(lens) / sizeof(lens[0]); l++) {
    const struct kref key = kref(bytes, lens[l]);
    struct index x;
    index_init(&x);
    for (uint64_t nr = 1; nr <= 12 * WH_VER_STRIDE; nr++) {
      if (nr % 5 == 0) put(&x, key, 2 * nr - 1, true);
      put(&x, key, 2 * nr, false);
      for (uint64_t moment = 0; moment <= 2 * nr + 1; moment++)
        check_seen(&x, key, moment, moment / 2 < nr ? moment / 2 * 2 : 2 * nr, bound(nr));
    }
    index_fini(&x);
  }
}

static void test_long(void **state) {
  (void)state;
  for (uint32_t len = 8; len <= 40; len += 32) {
    uint8_t bytes[40] = "overwritten";
    const struct kref key = kref(bytes, len);
    struct index x;
    index_init(&x);
    for (uint64_t seq = 1; seq <= LONG; seq++) put(&x, key, seq, false);
    const uint64_t began = passed();
    uint64_t rng = 7;
    for (uint32_t i = 0; i < MOMENTS; i++) {
      const uint64_t moment = rng_next(&rng) % (LONG + 1);
      check_seen(&x, key, moment, moment, bound(LONG));
    }
    check_seen(&x, key, 0, 0, bound(LONG));
    check_seen(&x, key, 1, 1, bound(LONG));
    const double mean = (double)(passed() - began) / (2 * MOMENTS);
    print_message("%.1f versions passed on average in a chain of %u\n", mean, LONG);
    index_fini(&x);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_moment), cmocka_unit_test(test_long)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
