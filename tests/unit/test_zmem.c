// SPDX-License-Identifier: Apache-2.0
//
// Contexts of zstd that wait for the next use.
#include "tests/lib/check.h"

#include <string.h>

#include "base/zmem.h"

static struct mem_stats stats(void) {
  struct mem_stats s;
  mem_stats(&s);
  return s;
}

static size_t taken(void) {
  const struct mem_stats s = stats();
  return s.heap + s.large;
}

static bool denied(size_t size) {
  (void)size;
  return false;
}

// The next taker gets the context that was given, without the parameters of the last one.
static void test_again(void **state) {
  (void)state;
  zmem_trim();
  ZSTD_CCtx *const c = zmem_packer_take();
  ZSTD_DCtx *const d = zmem_unpacker_take();
  CHECK(c && d);
  int level = 0, was = 0;
  CHECK(!ZSTD_isError(ZSTD_CCtx_getParameter(c, ZSTD_c_compressionLevel, &was)));
  CHECK(!ZSTD_isError(ZSTD_CCtx_setParameter(c, ZSTD_c_compressionLevel, was + 3)));
  const size_t held = taken();
  zmem_packer_give(c);
  zmem_unpacker_give(d);
  CHECK(taken() == held);
  CHECK(zmem_packer_take() == c && zmem_unpacker_take() == d);
  CHECK(!ZSTD_isError(ZSTD_CCtx_getParameter(c, ZSTD_c_compressionLevel, &level)));
  CHECK(level == was);
  zmem_packer_give(c);
  zmem_unpacker_give(d);
  zmem_packer_give(NULL);
  zmem_unpacker_give(NULL);
  zmem_trim();
}

// A context whose frame did not fit packs the next input well.
static void test_after_error(void **state) {
  (void)state;
  uint8_t in[4096], out[8192], back[4096];
  for (size_t i = 0; i < sizeof(in); i++) in[i] = (uint8_t)(i * i >> 3);
  ZSTD_CCtx *c = zmem_packer_take();
  CHECK(c);
  CHECK(ZSTD_isError(ZSTD_compress2(c, out, 8, in, sizeof(in))));
  zmem_packer_give(c);
  c = zmem_packer_take();
  ZSTD_DCtx *const d = zmem_unpacker_take();
  CHECK(c && d);
  const size_t n = ZSTD_compress2(c, out, sizeof(out), in, sizeof(in));
  CHECK(!ZSTD_isError(n));
  CHECK(ZSTD_isError(ZSTD_decompressDCtx(d, back, sizeof(back), out, n - 1)));
  zmem_unpacker_give(d);
  CHECK(zmem_unpacker_take() == d);
  CHECK(ZSTD_decompressDCtx(d, back, sizeof(back), out, n) == sizeof(in) && memcmp(in, back, sizeof(in)) == 0);
  zmem_packer_give(c);
  zmem_unpacker_give(d);
  zmem_trim();
}

// A trim frees those that wait. Without memory there is none, and the thread's message says so.
static void test_trim(void **state) {
  (void)state;
  zmem_trim();
  const size_t was = taken();
  ZSTD_CCtx *c[3];
  ZSTD_DCtx *d[3];
  for (uint32_t i = 0; i < 3; i++) {
    c[i] = zmem_packer_take();
    d[i] = zmem_unpacker_take();
    CHECK(c[i] && d[i]);
  }
  for (uint32_t i = 0; i < 3; i++) {
    zmem_packer_give(c[i]);
    zmem_unpacker_give(d[i]);
  }
  CHECK(taken() > was);
  zmem_trim();
  CHECK(taken() == was);
  atomic_store(&mem_fault, denied);
  CHECK(!zmem_packer_take() && strstr(err_msg(), "no memory for compression"));
  CHECK(!zmem_unpacker_take() && strstr(err_msg(), "no memory for decompression"));
  atomic_store(&mem_fault, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_again),
      cmocka_unit_test(test_after_error),
      cmocka_unit_test(test_trim),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
