// SPDX-License-Identifier: Apache-2.0
//
// Keys that somebody chose so that an index in memory gets slow. XXH3 of more than 16 bytes multiplies the first eight,
// mixed with a word of its secret and the seed, by the next eight: where the first give zero the next ones do not come
// into the hash. So keys can be chosen against any seed that is known. With the one that the index draws they do
// nothing, and where the hash of whole keys, which has no seed, is the same for many of them their order is asked. The
// test counts buckets and comparisons.
#define WH_COUNTERS 1
#include "wh/leaf.c"
#include "wh.c"
#include "wh/trie.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#define SECRET UINT64_C(0xbe4ba423396cfeb8)  // the first word of XXH3's secret
#define GROUPS 300u
#define GROUP_KEYS 300u
#define KEY_LEN 36u
#define WHOLE_LEN 32u
#define PER_PUT 2u  // buckets looked at for a put and two gets, at most on average

static uint64_t known_seed;
static uint64_t known(void) { return known_seed; }

struct index {
  struct epoch epoch;
  struct epoch_slot slot;
  struct wh *wh;
  uint64_t seq;
};

static void index_init(struct index *x, uint64_t (*seeds)(void)) {
  atomic_store(&random_seed_source, seeds);
  epoch_init(&x->epoch);
  epoch_join(&x->epoch, &x->slot);
  x->seq = 0;
  OK(wh_create(&x->epoch, 1 << 20, NULL, &x->wh));
  atomic_store(&random_seed_source, NULL);
}

static void index_fini(struct index *x) {
  char why[200];
  if (!wh_check(x->wh, why, sizeof(why))) fail_msg("%s", why);
  wh_destroy(x->wh);
  epoch_reclaim(&x->epoch);
  epoch_leave(&x->epoch, &x->slot);
  epoch_fini(&x->epoch);
}

// Against hashes with this seed: of all prefixes of more than 17 bytes, the eight bytes of the group do not count. With
// `whole` those that come after are alike in all keys, too, so that the keys have one hash.
static struct kref chosen(uint8_t *buf, uint64_t seed, uint32_t group, uint32_t nr, bool whole) {
  memset(buf, 'x', KEY_LEN);
  store64le(buf, SECRET + seed);
  store64le(buf + 8, 0);
  buf[8] = (uint8_t)(group >> 8), buf[9] = (uint8_t)group;
  if (whole) buf[10] = (uint8_t)(nr >> 8), buf[11] = (uint8_t)nr;
  else buf[KEY_LEN - 2] = (uint8_t)(nr >> 8), buf[KEY_LEN - 1] = (uint8_t)nr;
  return kref(buf, whole ? WHOLE_LEN : KEY_LEN);
}

static void index_put(struct index *x, struct kref key) {
  struct wh_slot s;
  epoch_enter(&x->epoch, &x->slot);
  wh_lock(x->wh, key, hash64(key.ptr, key.len), &s);
  OK(wh_link(&s, KV_REC(kref(NULL, 0), "v", 1, false)));
  wh_stamp(&s, ++x->seq);
  wh_unlock(&s);
  epoch_exit(&x->slot);
}

// Puts all keys that are chosen against this seed, in no order, and gets them; returns the buckets looked at and the
// keys compared, each for 100 calls.
static void cost(struct index *x, uint64_t seed, bool whole, uint32_t *buckets_out, uint32_t *compares_out) {
  uint8_t buf[KEY_LEN];
  const uint64_t buckets = atomic_load(&wh_counters.buckets), compares = atomic_load(&wh_counters.compares);
  const uint32_t nr = GROUPS * GROUP_KEYS;
  for (uint32_t i = 0; i < nr; i++) {
    const uint32_t k = (uint32_t)((uint64_t)i * 7919 % nr);  // a prime that does not divide it
    index_put(x, chosen(buf, seed, k / GROUP_KEYS, k % GROUP_KEYS, whole));
  }
  for (uint32_t i = 0; i < nr; i++) {
    const struct kref key = chosen(buf, seed, i / GROUP_KEYS, i % GROUP_KEYS, whole);
    epoch_enter(&x->epoch, &x->slot);
    const struct wh_ver *const v = wh_get(x->wh, key, hash64(key.ptr, key.len), WH_PENDING - 1);
    assert_true(v && v->vlen == 1);
    buf[13] = 1;
    assert_null(wh_get(x->wh, key, hash64(key.ptr, key.len), WH_PENDING - 1));
    epoch_exit(&x->slot);
  }
  *buckets_out = (uint32_t)((atomic_load(&wh_counters.buckets) - buckets) * 100 / nr);
  *compares_out = (uint32_t)((atomic_load(&wh_counters.compares) - compares) * 100 / nr);
}

static void test_prefixes(void **state) {
  (void)state;
  uint32_t with_known = 0, with_drawn, compares;
  for (uint32_t i = 0; i < 3; i++) {
    struct index x;
    known_seed = (uint64_t)i * UINT64_C(0x123456789abcdef);
    index_init(&x, known);
    cost(&x, known_seed, false, &with_known, &compares);
    index_fini(&x);
    index_init(&x, NULL);
    cost(&x, known_seed, false, &with_drawn, &compares);
    index_fini(&x);
    print_message("%u.%02u buckets a call where the seed is known, %u.%02u where it is drawn\n", with_known / 100,
                  with_known % 100, with_drawn / 100, with_drawn % 100);
    assert_true(with_known > 3 * with_drawn);  // the keys are well chosen
    assert_true(with_drawn < 100 * PER_PUT);
  }
}

static void test_whole_keys(void **state) {
  (void)state;
  struct index x;
  uint32_t buckets, compares;
  uint8_t a[KEY_LEN], b[KEY_LEN];
  const struct kref one = chosen(a, 0, 1, 1, true), other = chosen(b, 0, 2, 7, true);
  assert_true(hash64(one.ptr, one.len) == hash64(other.ptr, other.len) && !kv_eq(one, other));
  index_init(&x, NULL);
  cost(&x, 0, true, &buckets, &compares);
  print_message("%u.%02u keys compared a put and two gets\n", compares / 100, compares % 100);
  assert_true(compares < 300 * (WH_SAME_HASH + 2) && buckets < 100 * PER_PUT);
  index_fini(&x);
}

// Keys of which each begins with the one before: their anchors have thousands of prefixes, and a change of the
// structure goes through them. Not each of them is hashed, or compared, from its beginning.
static void test_long_prefixes(void **state) {
  (void)state;
  enum { KEYS = 2000, STEP = 8, PER_KEY = 300 };
  static uint8_t buf[KEYS * STEP];
  struct index x;
  memset(buf, 'p', sizeof(buf));
  index_init(&x, NULL);
  const uint64_t pieces = atomic_load(&wh_counters.pieces), prefixes = atomic_load(&wh_counters.prefixes);
  for (uint32_t i = 0; i < KEYS; i++) index_put(&x, kref(buf, (uint32_t)((uint64_t)i * 7919 % KEYS) * STEP));
  const uint64_t hashed = (atomic_load(&wh_counters.pieces) - pieces) / KEYS;
  const uint64_t compared = (atomic_load(&wh_counters.prefixes) - prefixes) / KEYS;
  print_message("%u pieces hashed and %u prefixes compared a put\n", (unsigned)hashed, (unsigned)compared);
  assert_true(hashed < PER_KEY && compared < 20);
  index_fini(&x);
}

static void test_seeds_differ(void **state) {
  (void)state;
  struct index x, y;
  index_init(&x, NULL);
  index_init(&y, NULL);
  assert_true(x.wh->trie.seed != y.wh->trie.seed);
  index_fini(&x);
  index_fini(&y);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_prefixes),
      cmocka_unit_test(test_whole_keys),
      cmocka_unit_test(test_long_prefixes),
      cmocka_unit_test(test_seeds_differ),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
