// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "tools/bench/hist.h"
#include "tools/bench/key.h"

#define NR 20000u

static uint64_t values[NR];
static struct bench_hist hist, other;

static int compare(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static void test_buckets_ascend_and_end_at_the_last(void **state) {
  (void)state;
  assert_int_equal(bench_hist_bucket(0), 0);
  assert_int_equal(bench_hist_bucket(UINT64_MAX), BENCH_HIST_BUCKETS - 1);
  for (uint32_t shift = 0; shift < 63; shift++)
    for (uint64_t v = (1ull << shift); v < (2ull << shift); v += (1ull << shift) / 100 + 1) {
      const uint32_t b = bench_hist_bucket(v), next = bench_hist_bucket(v + 1);
      assert_true(next == b || next == b + 1);
    }
}

// Against the sorted values themselves, for values of every size.
static void test_percentiles(void **state) {
  (void)state;
  static const double parts[] = {0, 0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1};
  for (uint32_t bits = 1; bits <= 64; bits += 7) {
    uint64_t random = bits;
    hist = (struct bench_hist){0};
    for (uint32_t i = 0; i < NR; i++) {
      values[i] = bench_random(&random) >> (64 - bits) >> (i % bits);
      bench_hist_add(&hist, values[i]);
    }
    qsort(values, NR, sizeof(values[0]), compare);
    for (size_t p = 0; p < sizeof(parts) / sizeof(parts[0]); p++) {
      const uint32_t rank = parts[p] > 0 ? (uint32_t)ceil(parts[p] * NR) - 1 : 0;
      const uint64_t got = bench_hist_percentile(&hist, parts[p]);
      assert_true(got >= values[rank]);
      assert_true(got - values[rank] <= values[rank] / 64);
    }
    assert_true(bench_hist_percentile(&hist, 1) == values[NR - 1]);
    assert_true(hist.max == values[NR - 1] && hist.count == NR);
  }
}

static void test_merge_is_as_if_added_to_one(void **state) {
  (void)state;
  static struct bench_hist both;
  uint64_t random = 5;
  hist = other = both = (struct bench_hist){0};
  assert_true(bench_hist_percentile(&hist, 0.5) == 0);
  for (uint32_t i = 0; i < NR; i++) {
    const uint64_t v = bench_random(&random) >> 40;
    bench_hist_add(i % 3 ? &hist : &other, v);
    bench_hist_add(&both, v);
  }
  bench_hist_merge(&hist, &other);
  assert_memory_equal(&hist, &both, sizeof(both));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_buckets_ascend_and_end_at_the_last),
      cmocka_unit_test(test_percentiles),
      cmocka_unit_test(test_merge_is_as_if_added_to_one),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
