// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "ckb.h"

#define TABLE 42u

static uint64_t seed;
static uint32_t below(uint32_t n) { return (uint32_t)(rng_next(&seed) % n); }

// Ascending keys, in one buffer.
struct keys {
  struct kref *k;
  bool *tomb;
  uint32_t nr;
  uint8_t *mem;
};

// tail: at most so many bytes behind the counter that makes them ascend.
static struct keys make_keys(uint32_t nr, uint32_t tail) {
  struct keys x = {.k = calloc(nr, sizeof(struct kref)), .tomb = calloc(nr, sizeof(bool)), .nr = nr};
  x.mem = malloc((size_t)nr * (tail + 16) + REMIXDB_KV_MAX);
  uint8_t *p = x.mem;
  uint64_t at = 0;
  for (uint32_t i = 0; i < nr; i++) {
    x.k[i].ptr = p;
    x.tomb[i] = below(5) == 0;
    if (i == 0) continue;  // the empty key
    at += 1 + (below(10) ? below(3) : below(1u << 30));
    store64le(p, __builtin_bswap64(at));
    const uint32_t more = below(3) ? below(tail + 1) : 0;
    memset(p + 8, (int)(rng_next(&seed) & 3), more);
    x.k[i].len = 8 + more;
    p += x.k[i].len;
  }
  return x;
}

static void free_keys(struct keys *x) {
  free(x->k);
  free(x->tomb);
  free(x->mem);
}

static void build(struct ckb_build *c, const struct keys *x) {
  ckb_build_init(c, TABLE);
  for (uint32_t i = 0; i < x->nr; i++) assert_int_equal(ckb_build_add(c, x->k[i], x->tomb[i]), REMIXDB_OK);
  ckb_build_finish(c);
}

// Reads all there is from offset `from` on; keys from index `at`. Stops at the first error.
static enum remixdb_status read_all(const uint8_t *buf, size_t len, size_t from, const struct keys *x, uint32_t at,
                                    uint32_t *nr_out) {
  struct ckb_read r;
  ckb_read_init(&r);
  const uint32_t start = at;
  enum remixdb_status s = REMIXDB_OK;
  for (size_t off = from; s == REMIXDB_OK && off < len;) {
    if (len - off < CKB_CHUNK_HEAD) {
      s = REMIXDB_CORRUPT;
      break;
    }
    const uint32_t n = ckb_chunk_length(buf + off, len - off);
    s = n ? ckb_read_chunk(&r, buf + off, n, TABLE, off, "some.sst", 1000 + off) : REMIXDB_CORRUPT;
    if (s != REMIXDB_OK) break;
    while (r.left && (s = ckb_read_next(&r, "some.sst", 1000 + off)) == REMIXDB_OK) {
      if (x) {
        assert_true(at < x->nr);
        assert_true(kv_eq(kref(r.key, r.klen), x->k[at]));
        assert_int_equal(r.tomb, x->tomb[at]);
        assert_int_equal(r.shared, at == start ? 0 : kv_lcp_from(x->k[at - 1], x->k[at], 0));
      }
      at++;
    }
    off += n;
  }
  ckb_read_fini(&r);
  *nr_out = at - start;
  return s;
}

static void test_round_trip(void **state) {
  (void)state;
  struct ckb_build c = {0};
  const uint32_t sizes[][2] = {{1, 0}, {2, 5}, {20000, 0}, {5000, 40}, {300, 2000}, {40, 65000}};
  for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    struct keys x = make_keys(sizes[i][0], sizes[i][1]);
    build(&c, &x);
    uint32_t nr;
    assert_int_equal(read_all(c.buf, c.len, 0, &x, 0, &nr), REMIXDB_OK);
    assert_int_equal(nr, x.nr);
    // from every chunk on
    uint32_t before = 0;
    for (size_t off = 0; off < c.len;) {
      const uint32_t n = ckb_chunk_length(c.buf + off, c.len - off);
      assert_in_range(n, CKB_CHUNK_HEAD + 2, CKB_CHUNK);
      assert_int_equal(read_all(c.buf, c.len, off, &x, before, &nr), REMIXDB_OK);
      assert_int_equal(before + nr, x.nr);
      before += load32le(c.buf + off + 12);
      off += n;
    }
    free_keys(&x);
  }
  ckb_build_fini(&c);
}

static void test_largest_keys(void **state) {
  (void)state;
  struct ckb_build c = {0};
  struct keys x = make_keys(6, REMIXDB_KV_MAX - 8);
  uint8_t *const mem = malloc(6 * (size_t)REMIXDB_KV_MAX);
  for (uint32_t i = 0; i < 6; i++) {
    memset(mem + i * (size_t)REMIXDB_KV_MAX, 'x', REMIXDB_KV_MAX);
    mem[(i + 1) * (size_t)REMIXDB_KV_MAX - 1] = (uint8_t)('0' + i);  // they differ in the last byte
    x.k[i] = kref(mem + i * (size_t)REMIXDB_KV_MAX, REMIXDB_KV_MAX);
  }
  mem[3 * (size_t)REMIXDB_KV_MAX] = mem[4 * (size_t)REMIXDB_KV_MAX] = mem[5 * (size_t)REMIXDB_KV_MAX] = 'y';  // or in the first
  build(&c, &x);
  uint32_t nr;
  assert_int_equal(read_all(c.buf, c.len, 0, &x, 0, &nr), REMIXDB_OK);
  assert_int_equal(nr, 6);
  free(mem);
  free_keys(&x);
  ckb_build_fini(&c);
}

// Leaving keys out, and going back to what was passed: as far as is promised at least where keys share little.
static void test_skip_and_back(void **state) {
  (void)state;
  struct ckb_build c = {0};
  const uint32_t sizes[][2] = {{20000, 0}, {3000, 40}, {300, 2000}, {40, 65000}};
  uint8_t *buf = NULL;
  uint32_t cap = 0, klen, went_back = 0, too_far = 0;
  for (uint32_t i = 0; i < 40; i++) {
    struct keys x = make_keys(sizes[i % 4][0], sizes[i % 4][1]);
    build(&c, &x);
    struct ckb_read r;
    ckb_read_init(&r);
    uint32_t first = 0;  // of the chunk
    for (size_t off = 0; off < c.len;) {
      const uint32_t n = ckb_chunk_length(c.buf + off, c.len - off);
      assert_int_equal(ckb_read_chunk(&r, c.buf + off, n, TABLE, off, "some.sst", off), REMIXDB_OK);
      const uint32_t all = r.left;
      // some chunks are left early
      while (r.left && below(200)) {
        const uint32_t skip = 1 + below(below(60) ? 3 : r.left) % r.left;
        assert_int_equal(ckb_read_skip(&r, skip, "some.sst", off), REMIXDB_OK);
        assert_int_equal(r.at + r.left, all);
        const uint32_t at = first + r.at - 1;
        assert_true(kv_eq(kref(r.key, r.klen), x.k[at]));
        assert_int_equal(r.tomb, x.tomb[at]);
        const uint32_t back = below(below(2) ? 10 : 2 * CKB_BACK);
        if (back >= r.at) continue;
        const enum remixdb_status s = ckb_read_back(&r, r.at - 1 - back, &buf, &cap, &klen);
        if (s == REMIXDB_OK) {
          assert_true(kv_eq(kref(buf, klen), x.k[at - back]));
          went_back++;
        } else {
          assert_int_equal(s, REMIXDB_NOTFOUND);
          assert_true(r.at > CKB_BACK);
          too_far++;
        }
        assert_true(kv_eq(kref(r.key, r.klen), x.k[at]));  // it stayed where it was
      }
      if (r.left) r.any = false;
      first += all;
      off += n;
    }
    ckb_read_fini(&r);
    free_keys(&x);
  }
  assert_true(went_back > 1000 && too_far > 10);
  mem_free(buf);
  ckb_build_fini(&c);
}

static void test_flips_and_cuts(void **state) {
  (void)state;
  struct ckb_build c = {0};
  struct keys x = make_keys(60, 4);
  build(&c, &x);
  uint32_t nr;
  for (uint32_t bit = 0; bit < c.len * 8; bit++) {
    c.buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
    assert_int_equal(read_all(c.buf, c.len, 0, NULL, 0, &nr), REMIXDB_CORRUPT);
    c.buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
  }
  assert_non_null(strstr(err_msg(), "some.sst"));
  for (size_t len = 1; len < c.len; len++) assert_int_equal(read_all(c.buf, len, 0, NULL, 0, &nr), REMIXDB_CORRUPT);
  // another table's
  struct ckb_read r;
  ckb_read_init(&r);
  assert_int_equal(ckb_read_chunk(&r, c.buf, (uint32_t)c.len, TABLE + 1, 0, "t", 0), REMIXDB_CORRUPT);
  assert_int_equal(ckb_read_chunk(&r, c.buf, (uint32_t)c.len, TABLE, 1, "t", 0), REMIXDB_CORRUPT);
  ckb_read_fini(&r);
  free_keys(&x);
  ckb_build_fini(&c);
}

static void seal(uint8_t *buf, uint32_t len, uint32_t count) {
  store32le(buf + 8, len);
  store32le(buf + 12, count);
  store64le(buf, hash64_seed(buf + 8, len - 8, ~((uint64_t)TABLE << 32)));
}

static enum remixdb_status read_entries(const char *bytes, uint32_t nr, uint32_t count) {
  uint8_t *const buf = malloc(CKB_CHUNK_HEAD + nr);
  memcpy(buf + CKB_CHUNK_HEAD, bytes, nr);
  seal(buf, CKB_CHUNK_HEAD + nr, count);
  uint32_t got;
  const enum remixdb_status s = read_all(buf, CKB_CHUNK_HEAD + nr, 0, NULL, 0, &got);
  if (s == REMIXDB_OK) assert_int_equal(got, count);
  free(buf);
  return s;
}
#define ENTRIES(s, count) read_entries(s, sizeof(s) - 1, count)

// Chunks whose checksum is right and whose entries are not.
static void test_forged(void **state) {
  (void)state;
  assert_int_equal(ENTRIES("\0\4ab" "\2\2c" "\1\2c", 3), REMIXDB_OK);            // ab abc ac
  assert_int_equal(ENTRIES("\0\0" "\0\2a", 2), REMIXDB_OK);                      // "" a
  assert_int_equal(ENTRIES("\0\4ab" "\2\2c" "\1\2c", 2), REMIXDB_CORRUPT);       // more bytes than keys
  assert_int_equal(ENTRIES("\0\4ab" "\2\2c" "\1\2c", 4), REMIXDB_CORRUPT);       // more keys than bytes
  assert_int_equal(ENTRIES("\0\4ab" "\2\2c" "\1\2c", 0), REMIXDB_CORRUPT);
  assert_int_equal(ENTRIES("\1\4ab", 1), REMIXDB_CORRUPT);                       // the first shares
  assert_int_equal(ENTRIES("\0\4ab" "\2\0", 2), REMIXDB_CORRUPT);                // the same key again
  assert_int_equal(ENTRIES("\0\4ab" "\1\0", 2), REMIXDB_CORRUPT);                // ab a
  assert_int_equal(ENTRIES("\0\4ab" "\3\2c", 2), REMIXDB_CORRUPT);               // shares more than there is
  assert_int_equal(ENTRIES("\0\4ab" "\1\4bc", 2), REMIXDB_CORRUPT);              // shares less than there is
  assert_int_equal(ENTRIES("\0\4ab" "\1\2a", 2), REMIXDB_CORRUPT);               // ab aa
  assert_int_equal(ENTRIES("\0\6ab", 1), REMIXDB_CORRUPT);                       // a suffix behind the end
  assert_int_equal(ENTRIES("\0\xff\xff\xff\xff\xff", 1), REMIXDB_CORRUPT);       // not a number
  assert_int_equal(ENTRIES("\0\xff\xff\xff\xff\x0f", 1), REMIXDB_CORRUPT);
  assert_int_equal(ENTRIES("\0\4ab" "\xff\xff\xff\xff\x0f\2c", 2), REMIXDB_CORRUPT);
  assert_non_null(strstr(err_msg(), "some.sst"));

  // keys that grow beyond the limit
  const uint32_t half = REMIXDB_KV_MAX / 2;
  uint8_t *const buf = calloc(1, CKB_CHUNK);
  for (uint32_t over = 0; over < 2; over++) {
    uint8_t *p = buf + CKB_CHUNK_HEAD;
    p = kv_varint_put(kv_varint_put(p, 0), half << 1) + half;
    p = kv_varint_put(kv_varint_put(p, half), (REMIXDB_KV_MAX - half + over) << 1) + REMIXDB_KV_MAX - half + over;
    assert_true(p - buf <= CKB_CHUNK);
    seal(buf, (uint32_t)(p - buf), 2);
    uint32_t nr;
    assert_int_equal(read_all(buf, (size_t)(p - buf), 0, NULL, 0, &nr), over ? REMIXDB_CORRUPT : REMIXDB_OK);
  }

  // anything: it ends, with an answer
  struct ckb_build c = {0};
  struct keys x = make_keys(60, 4);
  build(&c, &x);
  for (uint32_t round = 0; round < 5000; round++) {
    uint8_t *const copy = malloc(c.len);
    memcpy(copy, c.buf, c.len);
    for (uint32_t i = 0; i <= below(3); i++)
      copy[CKB_CHUNK_HEAD + below((uint32_t)c.len - CKB_CHUNK_HEAD)] = (uint8_t)rng_next(&seed);
    seal(copy, (uint32_t)c.len, 60);
    uint32_t nr;
    const enum remixdb_status s = read_all(copy, c.len, 0, NULL, 0, &nr);
    assert_true(s == REMIXDB_OK || s == REMIXDB_CORRUPT);
    free(copy);
  }
  free_keys(&x);
  free(buf);
  ckb_build_fini(&c);
}

static _Atomic uint32_t allowed;
static bool allow_some(size_t size) {
  (void)size;
  return atomic_load(&allowed) && atomic_fetch_sub(&allowed, 1);
}

static void test_no_memory(void **state) {
  (void)state;
  struct keys x = make_keys(3000, 30);
  // building: a refused key can be added again
  struct ckb_build c = {0};
  ckb_build_init(&c, TABLE);
  uint32_t refused = 0;
  for (uint32_t i = 0; i < x.nr; i++) {
    atomic_store(&allowed, 0);
    atomic_store(&mem_fault, allow_some);
    const enum remixdb_status s = ckb_build_add(&c, x.k[i], x.tomb[i]);
    atomic_store(&mem_fault, NULL);
    if (s == REMIXDB_OK) continue;
    assert_int_equal(s, REMIXDB_NOMEM);
    refused++;
    assert_int_equal(ckb_build_add(&c, x.k[i], x.tomb[i]), REMIXDB_OK);
  }
  assert_true(refused > 0);
  ckb_build_finish(&c);
  uint32_t nr;
  assert_int_equal(read_all(c.buf, c.len, 0, &x, 0, &nr), REMIXDB_OK);
  assert_int_equal(nr, x.nr);
  // reading
  uint32_t n = 0;
  enum remixdb_status s;
  do {
    atomic_store(&allowed, n++);
    atomic_store(&mem_fault, allow_some);
    s = read_all(c.buf, c.len, 0, NULL, 0, &nr);
    atomic_store(&mem_fault, NULL);
    assert_true(s == REMIXDB_OK || s == REMIXDB_NOMEM);
  } while (s != REMIXDB_OK);
  assert_true(n > 1);
  free_keys(&x);
  ckb_build_fini(&c);
}

int main(void) {
  const char *const given = getenv("TEST_SEED");
  const uint64_t start = seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_round_trip), cmocka_unit_test(test_largest_keys), cmocka_unit_test(test_flips_and_cuts),
      cmocka_unit_test(test_forged),     cmocka_unit_test(test_no_memory),    cmocka_unit_test(test_skip_and_back),
  };
  const int rc = cmocka_run_group_tests(tests, NULL, NULL);
  if (rc) fprintf(stderr, "repeat with TEST_SEED=%llu\n", (unsigned long long)start);
  return rc;
}
