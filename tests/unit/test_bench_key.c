// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/key.h"

static const uint64_t nums[] = {1, 2, 3, 7, 1000, 65536, 100003};
#define NR_NUMS (sizeof(nums) / sizeof(nums[0]))

// The order of records, and of bands in a record, is the order of keys; so no two keys are the same.
static void test_keys_ascend(void **state) {
  (void)state;
  static const uint32_t sizes[] = {8, 11, 16, 24};
  for (size_t n = 0; n < NR_NUMS; n++)
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
      struct bench_keys k;
      uint8_t key[BENCH_KEY_MAX], last[BENCH_KEY_MAX];
      assert_true(bench_keys_init(&k, nums[n], sizes[s], 100, BENCH_NUMBER, 7));
      for (uint64_t i = 0; i < nums[n]; i++)
        for (enum bench_band b = BENCH_LOADED; b <= BENCH_MISSING; b++) {
          bench_key(&k, i, b, key);
          if (i || b) assert_true(memcmp(key, last, sizes[s]) > 0);
          memcpy(last, key, sizes[s]);
        }
      bench_keys_fini(&k);
    }
}

// The same of the shapes that have long keys.
static void test_shaped_keys_ascend(void **state) {
  (void)state;
  static const uint32_t sizes[] = {BENCH_SHAPED_MIN, 33, 100, 9000};
  static uint8_t key[BENCH_KEY_MAX], last[BENCH_KEY_MAX];
  for (enum bench_shape shape = BENCH_LONG; shape <= BENCH_NESTED; shape++)
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
      struct bench_keys k;
      assert_true(bench_keys_init(&k, 1003, sizes[s], 100, shape, 7));
      uint32_t last_klen = 0;
      double sum = 0;
      for (uint64_t i = 0; i < k.num; i++)
        for (enum bench_band b = BENCH_LOADED; b <= BENCH_MISSING; b++) {
          const uint32_t klen = bench_key(&k, i, b, key);
          assert_true(klen >= 17 && klen <= sizes[s]);
          assert_true(shape == BENCH_NESTED || klen == sizes[s]);
          if (i || b) assert_true(bench_key_cmp(key, klen, last, last_klen) > 0);
          memcpy(last, key, last_klen = klen);
          sum += b == BENCH_LOADED ? klen : 0;
        }
      assert_true(fabs(sum / 1003 - k.mean_size) < 1);
      bench_keys_fini(&k);
    }
}

static void test_nested_keys_are_prefixes_of_the_next(void **state) {
  (void)state;
  struct bench_keys k;
  uint8_t key[1000], next[1000];
  assert_true(bench_keys_init(&k, 600, 1000, 100, BENCH_NESTED, 7));
  uint32_t prefixes = 0;
  for (uint64_t i = 0; i + 1 < k.num; i++) {
    const uint32_t klen = bench_key(&k, i, BENCH_LOADED, key), nlen = bench_key(&k, i + 1, BENCH_LOADED, next);
    prefixes += klen < nlen && !memcmp(key, next, klen);
  }
  assert_int_equal(prefixes, 600 - 2);  // chains of 328 keys: 2 of the 600 have none before them
  bench_keys_fini(&k);
}

static void test_prefixed_keys_share_their_prefix(void **state) {
  (void)state;
  struct bench_keys k;
  uint8_t key[1000], next[1000];
  assert_true(bench_keys_init(&k, 600, 1000, 100, BENCH_PREFIX, 7));
  uint32_t others = 0;
  for (uint64_t i = 0; i + 1 < k.num; i++) {
    bench_key(&k, i, BENCH_LOADED, key);
    bench_key(&k, i + 1, BENCH_LOADED, next);
    others += memcmp(key, next, 1000 - 16) != 0;
    assert_memory_equal(key + 1, next + 1, 1000 - 17);
  }
  assert_int_equal(others, 15);
  bench_keys_fini(&k);
}

static void test_keys_are_hex_digits_of_their_numbers(void **state) {
  (void)state;
  struct bench_keys hex, binary;
  assert_true(bench_keys_init(&hex, 1000, 18, 100, BENCH_NUMBER, 7));
  assert_true(bench_keys_init(&binary, 1000, 9, 100, BENCH_NUMBER, 7));
  for (uint64_t i = 0; i < 1000; i++) {
    uint8_t h[BENCH_KEY_MAX], b[BENCH_KEY_MAX];
    char text[32];
    bench_key(&hex, i, BENCH_LOADED, h);
    bench_key(&binary, i, BENCH_LOADED, b);
    snprintf(text, sizeof(text), "%016llx00", (unsigned long long)__builtin_bswap64(bench_load64(b)));
    assert_memory_equal(h, text, 18);
    assert_int_equal(b[8], '0');
  }
  bench_keys_fini(&hex);
  bench_keys_fini(&binary);
}

static void test_a_value_is_good_for_its_key_only(void **state) {
  (void)state;
  static const uint32_t sizes[] = {16, 17, 24, 120, 5000};
  for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
    struct bench_keys k;
    assert_true(bench_keys_init(&k, 1000, 16, sizes[s], BENCH_NUMBER, 7));
    uint8_t key[BENCH_KEY_MAX], other[BENCH_KEY_MAX], *const value = malloc(sizes[s]);
    for (uint64_t i = 0; i < 200; i++) {
      uint64_t version = 0;
      bench_key(&k, i, BENCH_LOADED, key);
      bench_key(&k, i + 1, BENCH_LOADED, other);
      bench_value(&k, key, 16, 1000 + i, value);
      assert_true(bench_value_good(&k, key, 16, value, sizes[s], true, &version));
      assert_int_equal(version, 1000 + i);
      assert_false(bench_value_good(&k, other, 16, value, sizes[s], false, &version));
      assert_false(bench_value_good(&k, key, 16, value, sizes[s] - 1, false, &version));
      for (uint32_t at = 0; at < sizes[s]; at += sizes[s] / 50 + 1) {
        const bool end = at < 8 || at >= sizes[s] - 8;
        value[at] ^= 0x10;
        assert_true(bench_value_good(&k, key, 16, value, sizes[s], false, &version) ==
                    !end);  // the ends are looked at always
        assert_false(bench_value_good(&k, key, 16, value, sizes[s], true, &version));
        value[at] ^= 0x10;
      }
    }
    free(value);
    bench_keys_fini(&k);
  }
}

static void test_permutations(void **state) {
  (void)state;
  for (size_t n = 0; n < NR_NUMS; n++) {
    struct bench_perm p;
    uint8_t *const seen = calloc(nums[n], 1);
    uint64_t fixed = 0;
    bench_perm_init(&p, nums[n], n);
    for (uint64_t i = 0; i < nums[n]; i++) {
      const uint64_t at = bench_perm_at(&p, i);
      assert_true(at < nums[n] && !seen[at]);
      seen[at] = 1;
      fixed += at == i;
    }
    if (nums[n] >= 1000) assert_true(fixed < 20);  // one is to be expected
    free(seen);
  }
}

// Frequencies of the first ranks against the law; the sum after it against adding up; growing against starting at that
// size.
static void test_zipf(void **state) {
  (void)state;
  const double theta = 0.99;
  const uint64_t n = 50000;
  struct bench_zipf z, grown;
  double sum = 0;
  bench_zipf_init(&z, n, theta);
  for (uint64_t i = n; i; i--) sum += pow((double)i, -theta);
  assert_true(fabs(z.zeta_n - sum) < 1e-9 * sum);
  bench_zipf_init(&grown, n - 20, theta);
  for (int i = 0; i < 20; i++) bench_zipf_grow(&grown);
  assert_true(grown.n == n && fabs(grown.zeta_n - sum) < 1e-9 * sum && fabs(grown.eta - z.eta) < 1e-9);

  const uint32_t draws = 1000000;
  uint64_t random = 3;
  uint32_t *const count = calloc(n, sizeof(*count));
  for (uint32_t i = 0; i < draws; i++) {
    const uint64_t rank = bench_zipf_draw(&z, &random);
    assert_true(rank < n);
    count[rank]++;
  }
  for (uint32_t i = 0; i < 2; i++) {  // exact; further ranks are those of an approximation by a power
    const double due = draws * pow(i + 1, -theta) / sum;
    assert_true(fabs(count[i] - due) < 5 * sqrt(due));
  }
  double first = 0, due = 0;
  for (uint32_t i = 0; i < 100; i++) {
    first += count[i];
    due += draws * pow(i + 1, -theta) / sum;
  }
  assert_true(fabs(first - due) < 0.05 * due);
  free(count);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_keys_ascend),
      cmocka_unit_test(test_shaped_keys_ascend),
      cmocka_unit_test(test_nested_keys_are_prefixes_of_the_next),
      cmocka_unit_test(test_prefixed_keys_share_their_prefix),
      cmocka_unit_test(test_keys_are_hex_digits_of_their_numbers),
      cmocka_unit_test(test_a_value_is_good_for_its_key_only),
      cmocka_unit_test(test_permutations),
      cmocka_unit_test(test_zipf),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
