// SPDX-License-Identifier: Apache-2.0
//
// Replays the inputs that the fuzzers have kept (tests/corpus/<target>/), and a few changed copies of each, with any
// compiler and in every mode. A target that finds a fault reports it and aborts. The file is named before that.
//
// CORPUS in the environment is another directory of the same shape; TEST_SEED repeats the changes of a run.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/check.h"
#include "tests/lib/slow.h"

#define FILE_MAX (64u << 10)

static const uint32_t nr_changed = SLOW > 1 ? 0 : 2;  // copies of each file

typedef int (*target_fn)(const uint8_t *data, size_t size);

#define TARGETS(X) X(api) X(block) X(ckb) X(index) X(pack) X(remix) X(table) X(value) X(version) X(wal)
#define DECLARE(name) int fuzz_##name(const uint8_t *data, size_t size);
TARGETS(DECLARE)

static size_t slurp(const char *path, uint8_t *buf) {
  FILE *const f = fopen(path, "rb");
  assert_non_null(f);
  const size_t len = fread(buf, 1, FILE_MAX, f);
  assert_true(len < FILE_MAX && !ferror(f));
  assert_int_equal(fclose(f), 0);
  return len;
}

// In memory of exactly its size, so that a read beyond it is seen.
static void run_one(target_fn fn, const uint8_t *p, size_t len) {
  uint8_t *const own = malloc(len ? len : 1);
  assert_non_null(own);
  memcpy(own, p, len);
  assert_int_equal(fn(own, len), 0);
  free(own);
}

static size_t change(uint8_t *p, size_t len, uint64_t *rng) {
  for (uint64_t n = 1 + rng_next(rng) % 3; n > 0 && len > 0; n--) {
    const size_t at = rng_next(rng) % len;
    switch (rng_next(rng) % 5) {
      case 0: p[at] ^= (uint8_t)(1u << rng_next(rng) % 8); break;
      case 1: p[at] = (uint8_t)rng_next(rng); break;
      case 2: len = at; break;
      case 3:
        memmove(p + at, p + at + 1, len - at - 1);
        len--;
        break;
      default:
        memmove(p + at + 1, p + at, len - at);
        p[at] = (uint8_t)rng_next(rng);
        len++;
        break;
    }
  }
  return len;
}

static void replay(const char *name, target_fn fn) {
  static uint8_t whole[FILE_MAX], changed[FILE_MAX + 8];
  const char *const root = getenv("CORPUS");
  char dir[512], path[1024];
  (void)snprintf(dir, sizeof(dir), "%s/%s", root ? root : "tests/corpus", name);
  DIR *const d = opendir(dir);
  if (!d) fail_msg("%s cannot be opened: run it in the root of the repository, or set CORPUS", dir);
  uint32_t nr = 0;
  for (const struct dirent *e; (e = readdir(d)) != NULL;) {
    if (e->d_name[0] == '.') continue;
    (void)snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
    const size_t len = slurp(path, whole);
    // said in the buffer of a stream that is not flushed when all is well
    (void)fprintf(stdout, "%s, TEST_SEED=%llu\n", path, (unsigned long long)check_seed);
    (void)fflush(stdout);
    run_one(fn, whole, len);
    uint64_t rng = hash64_seed(whole, len, check_seed);
    for (uint32_t i = 0; i < nr_changed; i++) {
      memcpy(changed, whole, len);
      run_one(fn, changed, change(changed, len, &rng));
    }
    nr++;
  }
  (void)closedir(d);
  if (nr == 0) fail_msg("%s is empty", dir);
}

#define TEST(name)                        \
  static void test_##name(void **state) { \
    (void)state;                          \
    replay(#name, fuzz_##name);           \
  }
TARGETS(TEST)

int main(void) {
  check_seed_start();
#define ENTRY(name) cmocka_unit_test(test_##name),
  const struct CMUnitTest tests[] = {TARGETS(ENTRY)};
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
