// SPDX-License-Identifier: Apache-2.0
//
// Guides against a search in the list of bounds, one by one and many at once; replacement of items; and every
// allocation that can fail.
#include "wh/guide.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#define MANY 1500u
#define LEN_MAX 24u

static uint8_t bytes[MANY][LEN_MAX];
static struct kref bounds[MANY];
static void *items[MANY];
static char marks[3 * MANY];

static int by_key(const void *a, const void *b) { return kv_cmp(*(const struct kref *)a, *(const struct kref *)b); }

// Few different bytes, so that many bounds share more bytes than a number of the tree has.
static struct kref some_key(uint64_t *rng, uint8_t *buf, uint32_t shape) {
  const uint32_t len = (uint32_t)(rng_next(rng) % (LEN_MAX - 4)) + 1;
  for (uint32_t i = 0; i < len; i++)
    buf[i] = shape == 0 ? (uint8_t)rng_next(rng) : i < 12 && shape == 2 ? 'p' : (uint8_t)(rng_next(rng) % 3);
  return kref(buf, len);
}

static uint32_t make_bounds(uint64_t *rng, uint32_t shape, uint32_t nr) {
  for (uint32_t i = 0; i < nr; i++) bounds[i] = i ? some_key(rng, bytes[i], shape) : kref("", 0);
  qsort(bounds, nr, sizeof(bounds[0]), by_key);
  uint32_t n = 1;
  for (uint32_t i = 1; i < nr; i++)
    if (!kv_eq(bounds[i], bounds[n - 1])) bounds[n++] = bounds[i];
  for (uint32_t i = 0; i < n; i++) items[i] = &marks[i];
  return n;
}

static void test_find(void **state) {
  (void)state;
  static const uint32_t sizes[] = {1, 2, 9, 100, MANY};
  uint64_t rng = check_seed;
  for (uint32_t round = 0; round < 15; round++) {
    const uint32_t nr = make_bounds(&rng, round % 3, sizes[round / 3]);
    struct guide *g;
    OK(guide_create(bounds, items, nr, 0, &g));
    for (uint32_t i = 0; i < nr; i += 3) {  // in place
      void *const old = items[i];
      items[i] = &marks[MANY + i];
      guide_replace(g, bounds[i], old, items[i]);
    }
    for (uint32_t k = 0; k < nr; k++) {  // several at once, from a bound that need not be one
      uint8_t buf[LEN_MAX];
      const struct kref from = rng_next(&rng) % 2 ? bounds[rng_next(&rng) % nr] : some_key(&rng, buf, round % 3);
      uint32_t at = 0;
      while (at < nr && kv_cmp(bounds[at], from) < 0) at++;
      void *const old = at < nr ? items[at] : items[0], *const fresh = k % 2 && at ? items[at - 1]
                                                                                   : &marks[2 * MANY + k];
      if (at == nr || items[at] != fresh) guide_replace(g, from, fresh, NULL);  // another one stands there
      guide_replace(g, from, old, fresh);
      for (; at < nr && items[at] == old; at++) items[at] = fresh;
    }
    uint8_t buf[64][LEN_MAX], which[64];
    struct kref keys[64];
    void *found[64];
    for (uint32_t k = 0; k < 64; k++) {
      keys[k] = rng_next(&rng) % 2 ? bounds[rng_next(&rng) % nr] : some_key(&rng, buf[k], round % 3);
      which[k] = (uint8_t)(63 - k);
    }
    guide_find_many(g, keys, which, 64, found);
    for (uint32_t k = 0; k < 64; k++) {
      uint32_t at = 0;
      while (at + 1 < nr && kv_cmp(bounds[at + 1], keys[k]) <= 0) at++;
      if (guide_find(g, keys[k]) != items[at] || found[63 - k] != items[at])
        fail_msg("TEST_SEED=%llu round %u", (unsigned long long)check_seed, round);
    }
    assert_true(g->bytes >= nr * sizeof(void *));
    guide_destroy(g);
  }
}

static uint32_t left;
static bool deny(size_t size) {
  (void)size;
  return left-- != 0;
}

static void test_no_memory(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  const uint32_t nr = make_bounds(&rng, 0, MANY);
  struct guide *g = NULL;
  enum remixdb_status s = REMIXDB_NOMEM;
  uint32_t n = 0;
  for (; s != REMIXDB_OK; n++) {
    left = n;
    atomic_store(&mem_fault, deny);
    s = guide_create(bounds, items, nr, 0, &g);
    atomic_store(&mem_fault, NULL);
    assert_true(s == REMIXDB_OK ? g != NULL : s == REMIXDB_NOMEM && g == NULL);
  }
  assert_true(n > 1);
  guide_destroy(g);
}

int main(void) {
  const char *const s = getenv("TEST_SEED");
  check_seed = s ? strtoull(s, NULL, 0) : (uint64_t)time(NULL);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_find), cmocka_unit_test(test_no_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
