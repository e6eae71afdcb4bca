// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <unistd.h>

#include "tools/bench/sys.h"

// A line as Linux writes it, of 17 numbers; older systems write 11.
static void test_a_line_of_transfers(void **state) {
  (void)state;
  struct bench_usage u = {.rss = 7};
  assert_true(bench_disk_parse(&u,
                               "  3529119   150285 250527714   785631  5305611   595829 537190984  1723581        0 "
                               "  914372  3046327  1405364      115 927370672   249248  1544992   287866\n"));
  assert_true(u.disk_known);
  assert_int_equal(u.disk_reads, 3529119);
  assert_int_equal(u.disk_read_bytes, 250527714ull * 512);
  assert_int_equal(u.disk_writes, 5305611);
  assert_int_equal(u.disk_write_bytes, 537190984ull * 512);
  assert_int_equal(u.rss, 7);
  assert_true(bench_disk_parse(&u, "1 2 3 4 5 6 7 8 9 10 11\n"));
  assert_int_equal(u.disk_reads, 1);
  assert_int_equal(u.disk_write_bytes, 7 * 512);
}

static void test_other_lines_set_nothing(void **state) {
  (void)state;
  static const char *const lines[] = {"", "\n", "none", "1 2 3 4 5 6", "1 2 3 x 5 6 7 8", "   "};
  for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
    struct bench_usage u = {.disk_reads = 7};
    assert_false(bench_disk_parse(&u, lines[i]));
    assert_false(u.disk_known);
    assert_int_equal(u.disk_reads, 7);
  }
}

static void test_a_directory_that_is_not_there_has_no_disk(void **state) {
  (void)state;
  assert_null(bench_disk_find("/nosuch/directory"));
  struct bench_usage u;
  bench_usage_get(&u, NULL);
  assert_false(u.disk_known);
  bench_usage_get(&u, "/nosuch/file");
  assert_false(u.disk_known);
}

// A pause that is taken away first and counted later leaves the work alone.
static void test_what_a_thread_uses_adds_up(void **state) {
  (void)state;
  struct bench_thread_usage sum = {0}, zero = {0};
  const struct bench_thread_usage before = bench_thread_usage_get();
  bench_thread_usage_add(&sum, &before, -1);
  const struct bench_thread_usage early = sum;
  assert_true((int64_t)early.cpu_ns <= 0);
  const uint64_t start = bench_time_ns();
  while (bench_time_ns() - start < 20000000) continue;
  usleep(1000);
  bench_thread_usage_add(&sum, &before, 1);
  assert_true((int64_t)sum.cpu_ns > 0);
  assert_true((int64_t)sum.waits >= 0);
  struct bench_thread_usage all = zero;
  bench_thread_usage_add(&all, &zero, 1);
  assert_true(all.cpu_ns >= sum.cpu_ns);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_line_of_transfers),
      cmocka_unit_test(test_other_lines_set_nothing),
      cmocka_unit_test(test_a_directory_that_is_not_there_has_no_disk),
      cmocka_unit_test(test_what_a_thread_uses_adds_up),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
