// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/lib/check.h"
#include "kv.h"

static int sign(int n) { return (n > 0) - (n < 0); }

static void test_order(void **state) {
  (void)state;
  // in order; each against each
  const struct kref k[] = {kref("", 0),     kref("\0", 1),   kref("\0\0", 2), kref("a", 1),
                           kref("a\0", 2),  kref("ab", 2),   kref("abc", 3),  kref("b", 1),
                           kref("\x7f", 1), kref("\x80", 1), kref("\xff", 1), kref("\xff\xff", 2)};
  const int nr = sizeof(k) / sizeof(k[0]);
  for (int i = 0; i < nr; i++)
    for (int j = 0; j < nr; j++) {
      assert_int_equal(sign(kv_cmp(k[i], k[j])), sign(i - j));
      assert_int_equal(kv_eq(k[i], k[j]), i == j);
    }
  assert_int_equal(kv_cmp(kref(NULL, 0), kref("", 0)), 0);
  assert_true(kv_eq(kref(NULL, 0), kref("", 0)));
}

static void test_lcp(void **state) {
  (void)state;
  // heap blocks of the exact length, so that a sanitizer sees a byte read too far
  for (uint32_t alen = 0; alen < 40; alen++)
    for (uint32_t blen = 0; blen < 40; blen++) {
      uint8_t *const ax = malloc(alen ? alen : 1), *const bx = malloc(blen ? blen : 1);
      memset(ax, 'k', alen);
      memset(bx, 'k', blen);
      const uint32_t n = alen < blen ? alen : blen;
      for (uint32_t at = 0; at <= n; at++) {
        if (at < n) bx[at] = 'K';
        for (uint32_t from = 0; from <= at; from++)
          assert_int_equal(kv_lcp_from(kref(ax, alen), kref(bx, blen), from), at);
        if (at < n) bx[at] = 'k';
      }
      free(ax);
      free(bx);
    }
}

static void test_varint(void **state) {
  (void)state;
  const uint32_t edges[] = {0,       1,       127,       128,       16383,      16384,
                            2097151, 2097152, 268435455, 268435456, 0x7fffffff, 0xffffffff};
  for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
    uint8_t buf[5];
    uint32_t v = 0;
    uint8_t *const end = kv_varint_put(buf, edges[i]);
    assert_int_equal(end - buf, kv_varint_size(edges[i]));
    assert_ptr_equal(kv_varint_get(buf, end, &v), end);
    assert_int_equal(v, edges[i]);
    for (const uint8_t *cut = buf; cut < end; cut++) assert_null(kv_varint_get(buf, cut, &v));
  }
  uint32_t v;
  const uint8_t wide[] = {0xff, 0xff, 0xff, 0xff, 0x10};       // the 33rd bit
  const uint8_t six[] = {0x80, 0x80, 0x80, 0x80, 0x80, 0x00};  // a sixth byte
  assert_null(kv_varint_get(wide, wide + sizeof(wide), &v));
  assert_null(kv_varint_get(six, six + sizeof(six), &v));
}

static void test_record(void **state) {
  (void)state;
  const struct {
    uint32_t klen, vlen;
    bool tomb;
  } c[] = {{0, 0, false},         {0, 0, true},
           {1, 0, false},         {63, 127, false},
           {64, 128, false},      {64, 0, true},
           {8191, 0, true},       {8192, 0, false},
           {0, 65500, false},     {REMIXDB_KV_MAX, 0, false},
           {30000, 35500, false}, {REMIXDB_KV_MAX, 0, true}};
  uint8_t *const data = malloc(REMIXDB_KV_MAX);
  uint8_t *const buf = malloc(REMIXDB_KV_MAX + KV_HEAD_MAX);
  for (uint32_t i = 0; i < REMIXDB_KV_MAX; i++) data[i] = (uint8_t)(i * 7);
  for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
    const struct kv_rec in = {
        .key = data, .val = data + REMIXDB_KV_MAX - c[i].vlen, .klen = c[i].klen, .vlen = c[i].vlen, .kind = c[i].tomb};
    struct kv_rec r;
    const uint8_t *const end = kv_rec_put(buf, &in);
    assert_int_equal(end - buf, kv_rec_size(&in));
    assert_ptr_equal(kv_rec_get(buf, end, KV_IN_TABLE, &r), end);
    assert_int_equal(r.klen, in.klen);
    assert_int_equal(r.vlen, in.vlen);
    assert_int_equal(r.kind, in.kind);
    assert_memory_equal(r.key, in.key, r.klen);
    assert_memory_equal(r.val, in.val, r.vlen);
    // no prefix of it is a record
    for (size_t cut = 0; cut < (size_t)(end - buf); cut += cut < 20 ? 1 : 1009)
      assert_null(kv_rec_get(buf, buf + cut, KV_IN_TABLE, &r));
    if (end > buf) assert_null(kv_rec_get(buf, end - 1, KV_IN_TABLE, &r));
  }
  free(data);
  free(buf);
}

static void test_record_limits(void **state) {
  (void)state;
  const size_t cap = 200000;
  uint8_t *const buf = calloc(1, cap);
  struct kv_rec r;
  const uint32_t bad[][2] = {{REMIXDB_KV_MAX + 1, 0},  {REMIXDB_KV_MAX, 1}, {0, REMIXDB_KV_MAX + 1},
                             {1, REMIXDB_KV_MAX},      {0x7fffffff, 0},     {0, 0xffffffff},
                             {0x7fffffff, 0xffffffff}, {1, 0xffffffff}};
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    (void)kv_head_put(buf, KV_REC(kref(NULL, bad[i][0]), NULL, bad[i][1], 0));
    assert_null(kv_rec_get(buf, buf + cap, KV_BARE, &r));
    // a key of a named space has four bytes more
    assert_true(!kv_rec_get(buf, buf + cap, KV_IN_TABLE, &r) == ((uint64_t)bad[i][0] + bad[i][1] > KV_KEY_MAX));
  }
  for (uint32_t klen = REMIXDB_KV_MAX; klen <= KV_KEY_MAX + 1; klen++) {
    (void)kv_head_put(buf, KV_REC(kref(NULL, klen), NULL, 0, KV_TOMB));
    assert_true(!kv_rec_get(buf, buf + cap, KV_IN_TABLE, &r) == (klen > KV_KEY_MAX));
    (void)kv_varint_put(buf, klen << 1 | 1);
    assert_true(!kv_rec_get(buf, buf + cap, KV_BARE, &r) == (klen > REMIXDB_KV_MAX));
  }
  free(buf);
}

// A record that is decoded lies inside its bytes, for any bytes.
static void test_record_random(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  for (int round = 0; round < 20000; round++) {
    const size_t len = rng_next(&rng) % 24;
    uint8_t *const buf = malloc(len ? len : 1);
    for (size_t i = 0; i < len; i++) buf[i] = (uint8_t)(rng_next(&rng) >> (rng_next(&rng) % 8));
    struct kv_rec r;
    const uint8_t *const end = kv_rec_get(buf, buf + len, KV_IN_TABLE, &r);
    if (end) {
      if (end > buf + len || r.key < buf || r.key + r.klen != r.val || r.val + r.vlen != end)
        fail_msg("TEST_SEED=%llu", (unsigned long long)check_seed);
    }
    free(buf);
  }
}

int main(void) {
  const char *const s = getenv("TEST_SEED");
  check_seed = s ? strtoull(s, NULL, 0) : (uint64_t)time(NULL);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_order),  cmocka_unit_test(test_lcp),           cmocka_unit_test(test_varint),
      cmocka_unit_test(test_record), cmocka_unit_test(test_record_limits), cmocka_unit_test(test_record_random),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
