// SPDX-License-Identifier: Apache-2.0
//
// Admission to the page cache: when there is a choice, and what is remembered for how long.
#include "tests/lib/check.h"

#include <math.h>

#include "base/admission.h"

#define MEMORY ((uint64_t)256 << 20)
#define PAGES ((uint32_t)(MEMORY / BLKIO_ALIGN))
#define BYTES (2 * PAGES)
#define DATA (ADMISSION_DATA(MEMORY) + 1)

static struct blkio io;

static bool past(struct admission *a, uint64_t block) { return admission_past(a, &io, block); }

// Takes every byte, for no block: the marks of blocks are odd.
static void fill(struct admission *a) {
  _Atomic uint8_t *const missed = atomic_load(&a->missed);
  for (uint32_t i = 0; missed && i <= a->mask; i++) atomic_store(&missed[i], 2);
}

static void test_choice(void **state) {
  (void)state;
  static const struct {
    uint64_t data, memory;
    size_t most, bytes;
  } cases[] = {
      {DATA, MEMORY, SIZE_MAX, BYTES},
      {DATA - 1, MEMORY, SIZE_MAX, 0},
      {DATA + BLKIO_ALIGN * 2, MEMORY + BLKIO_ALIGN, SIZE_MAX, 2 * (size_t)BYTES},  // a page more: a power of two more
      {DATA, 0, SIZE_MAX, 0},                                                       // the memory is not known
      {UINT64_MAX, UINT64_MAX, SIZE_MAX, 0},
      {DATA, MEMORY, BYTES - 1, PAGES},
      {DATA, MEMORY, PAGES, PAGES},
      {DATA, MEMORY, PAGES - 1, 0},  // it would forget what is in the page cache
      {UINT64_MAX, 1, SIZE_MAX, ADMISSION_LEAST},
      {UINT64_MAX, 1, ADMISSION_LEAST - 1, 0},
      {UINT64_MAX, UINT64_MAX / 4, SIZE_MAX, 0},
  };
  for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    struct admission a;
    admission_init(&a);
    assert_false(past(&a, 1));
    admission_set(&a, cases[i].data, cases[i].memory, cases[i].most);
    assert_int_equal(admission_memory(&a), cases[i].bytes);
    assert_false(past(&a, 2));  // its byte is free (A2)
    fill(&a);
    assert_int_equal(past(&a, 1), cases[i].bytes > 0);
    assert_false(past(&a, 1));  // it was missed before
    assert_int_equal(atomic_load(&a.nr_past), cases[i].bytes > 0);
    admission_fini(&a);
  }
  assert_false(past(NULL, 1));
}

// The choice goes when the store is smaller, and comes back with the same table. There is none where memory serves.
static void test_changes(void **state) {
  (void)state;
  struct admission a;
  admission_init(&a);
  admission_set(&a, DATA, MEMORY, SIZE_MAX);
  fill(&a);
  assert_true(past(&a, 7));
  admission_set(&a, 0, MEMORY, SIZE_MAX);
  assert_false(past(&a, 8));
  admission_set(&a, DATA, MEMORY / 2, SIZE_MAX);
  assert_int_equal(admission_memory(&a), BYTES);
  assert_false(past(&a, 7));
  assert_true(past(&a, 8));
  atomic_store(&io.cold, 0);
  assert_false(past(&a, 9));
  atomic_store(&io.cold, 256);
  assert_true(past(&a, 9));
  assert_int_equal(atomic_load(&a.nr_past), 3);
  admission_fini(&a);
}

// exp(-k / N) of the blocks that were missed before k others are known (A1), and next to none that was never missed.
static void test_forgets(void **state) {
  (void)state;
  const uint32_t nr = BYTES / 8;
  check_seed = check_seed_or(1);
  const uint64_t table = check_seed << 20;
  for (uint32_t others = 0; others <= 2 * BYTES; others += BYTES / 2) {
    struct admission a;
    uint32_t known = 0, strange = 0;
    admission_init(&a);
    admission_set(&a, DATA, MEMORY, SIZE_MAX);
    fill(&a);
    for (uint32_t i = 0; i < nr; i++) strange += !past(&a, table << 16 | i);
    for (uint32_t i = 0; i < others; i++) strange += !past(&a, ((table + 1) << 16) + i);
    CHECK_SAYS(strange < (nr + others) / 50, "%u of %u known at once", strange, nr + others);
    // Each block that is looked up and not known takes a byte, too. So one in 16 of them tells.
    for (uint32_t i = 0; i < nr; i += 16) known += !past(&a, table << 16 | i);
    const double part = known / (nr / 16.0), expect = exp(-(others + nr / 2.0) / BYTES);
    CHECK_SAYS(fabs(part - expect) < 0.05, "%.3f known after %u others, not %.3f", part, others, expect);
    admission_fini(&a);
  }
}

int main(void) {
  atomic_store(&io.cold, 256);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_choice),
      cmocka_unit_test(test_changes),
      cmocka_unit_test(test_forgets),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
