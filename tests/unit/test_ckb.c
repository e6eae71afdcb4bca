// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#include "table/ckb.h"
#include "base/zmem.h"

#define TABLE 42u

static uint32_t below(uint32_t n) { return (uint32_t)(rng_next(&check_seed) % n); }

// Ascending keys, in one buffer.
struct keys {
  struct kref *k;
  bool *tomb;
  uint32_t nr;
  uint8_t *mem;
};

// tail: at most so many bytes after the counter that makes them ascend.
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
    memset(p + 8, (int)(rng_next(&check_seed) & 3), more);
    x.k[i].len = 8 + more;
    p += x.k[i].len;
  }
  return x;
}

// In turn keys that are packed well (16 hexadecimal digits) and keys that are not (40 bytes of noise): `run` of each,
// then of the others.
static int compare(const void *a, const void *b) { return memcmp(a, b, 40); }
static struct keys make_mixed(uint32_t runs, uint32_t run) {
  struct keys x = {.k = calloc(runs * run, sizeof(struct kref)),
                   .tomb = calloc(runs * run, sizeof(bool)),
                   .nr = runs * run};
  x.mem = calloc(runs * run, 40);
  for (uint32_t r = 0; r < runs; r++) {
    uint8_t *const mem = x.mem + (size_t)r * run * 40;
    for (uint32_t i = 0; i < run; i++) {
      uint8_t *const p = mem + (size_t)i * 40;
      for (uint32_t at = 0; at < 40; at += 8) store64le(p + at, rng_next(&check_seed));
      if (r % 2 == 0) (void)snprintf((char *)p, 40, "%c%08x%08x", (int)r, below(1u << 31), below(1u << 31));
      p[0] = (uint8_t)r;
    }
    qsort(mem, run, 40, compare);
    for (uint32_t i = 0; i < run; i++) {
      x.k[r * run + i] = kref(mem + (size_t)i * 40, r % 2 == 0 ? 17 : 40);
      x.tomb[r * run + i] = below(5) == 0;
    }
  }
  return x;
}

static bool is_packed(const uint8_t *chunk) { return load32le(chunk + 8) & CKB_PACKED; }

static void free_keys(struct keys *x) {
  free(x->k);
  free(x->tomb);
  free(x->mem);
}

static void build(struct ckb_build *c, const struct keys *x) {
  ckb_build_init(c, TABLE);
  for (uint32_t i = 0; i < x->nr; i++) OK(ckb_build_add(c, x->k[i], x->tomb[i]));
  OK(ckb_build_finish(c));
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
        assert_int_equal(r.kind, x->tomb[at]);
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
    OK(read_all(c.buf, c.len, 0, &x, 0, &nr));
    assert_int_equal(nr, x.nr);
    // from every chunk on
    uint32_t before = 0;
    for (size_t off = 0; off < c.len;) {
      const uint32_t n = ckb_chunk_length(c.buf + off, c.len - off);
      assert_in_range(n, CKB_CHUNK_HEAD + 2, CKB_CHUNK);
      OK(read_all(c.buf, c.len, off, &x, before, &nr));
      assert_int_equal(before + nr, x.nr);
      before += load32le(c.buf + off + 12);
      off += n;
    }
    free_keys(&x);
  }
  ckb_build_fini(&c);
}

// A chunk is packed when that saves an eighth, and only then, if it is tried: behind one that saves less, 1, 3 and then
// 7 chunks are not. An entry's offset in an unpacked chunk fits 16 bits.
static void test_packed_and_raw(void **state) {
  (void)state;
  struct ckb_build c = {0};
  struct keys x = make_mixed(9, 20000);
  build(&c, &x);
  uint32_t nr, packed = 0, raw = 0, left = 0, left_of = 0, missed = 0;
  size_t plain = 0;
  OK(read_all(c.buf, c.len, 0, &x, 0, &nr));
  assert_int_equal(nr, x.nr);
  static uint8_t bytes[CKB_CHUNK], frame[2 * CKB_CHUNK];
  for (size_t off = 0; off < c.len;) {
    const uint8_t *const p = c.buf + off;
    const uint32_t n = ckb_chunk_length(p, c.len - off);
    if (is_packed(p)) {
      const uint32_t entries = load32le(p + 16);
      assert_in_range(entries, 2, CKB_CHUNK - CKB_CHUNK_HEAD);
      assert_int_equal(ZSTD_decompress(bytes, sizeof(bytes), p + 20, n - 20), entries);
      assert_true(8 * (n - CKB_CHUNK_HEAD) <= 7 * entries);
      assert_int_equal(left, 0);
      left_of = 0;
      plain += CKB_CHUNK_HEAD + entries;
      packed++;
    } else {
      // a frame that has little room may be found not to fit though it just would
      const uint32_t entries = n - CKB_CHUNK_HEAD;
      const size_t z = ZSTD_compress(frame, sizeof(frame), p + CKB_CHUNK_HEAD, entries, 1);
      const bool pays = !ZSTD_isError(z) && 8 * (4 + z + 100) <= 7 * entries;
      if (left) {
        left--;
        missed += pays;
      } else {
        assert_false(pays);
        left = left_of = left_of == 0 ? 1 : left_of == 1 ? 3 : 7;
      }
      plain += n;
      raw++;
    }
    off += n;
  }
  assert_true(packed >= 12 && raw >= 40 && missed > 0 && missed <= 4 * 7);
  assert_true(plain / CKB_CHUNK <= packed + raw && c.len < plain * 19 / 20);
  free_keys(&x);

  // all noise: nothing is packed, and of a few bytes nothing can be saved
  x = make_mixed(2, 5000);
  struct keys noise = {.k = x.k + 5000, .tomb = x.tomb + 5000, .nr = 5000};
  build(&c, &noise);
  for (size_t off = 0; off < c.len; off += ckb_chunk_length(c.buf + off, c.len - off))
    assert_false(is_packed(c.buf + off));
  for (noise.nr = 1; noise.nr < 4; noise.nr++) {
    noise.k = x.k;
    build(&c, &noise);
    assert_false(is_packed(c.buf));
    OK(read_all(c.buf, c.len, 0, &noise, 0, &nr));
  }
  free_keys(&x);
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
  mem[3 * (size_t)REMIXDB_KV_MAX] = mem[4 * (size_t)REMIXDB_KV_MAX] = mem[5 * (size_t)REMIXDB_KV_MAX] =
      'y';  // or in the first
  build(&c, &x);
  uint32_t nr;
  OK(read_all(c.buf, c.len, 0, &x, 0, &nr));
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
  uint32_t packed = 0, raw = 0;
  for (uint32_t i = 0; i < 45; i++) {
    struct keys x = i % 5 == 4 ? make_mixed(3, 6000) : make_keys(sizes[i % 5][0], sizes[i % 5][1]);
    build(&c, &x);
    struct ckb_read r;
    ckb_read_init(&r);
    uint32_t first = 0;  // the chunk's
    for (size_t off = 0; off < c.len;) {
      const uint32_t n = ckb_chunk_length(c.buf + off, c.len - off);
      OK(ckb_read_chunk(&r, c.buf + off, n, TABLE, off, "some.sst", off));
      const uint32_t all = r.left;
      packed += is_packed(c.buf + off);
      raw += !is_packed(c.buf + off);
      // some chunks are left early
      while (r.left && below(200)) {
        const uint32_t skip = 1 + below(below(60) ? 3 : r.left) % r.left;
        OK(ckb_read_skip(&r, skip, "some.sst", off));
        assert_int_equal(r.at + r.left, all);
        const uint32_t at = first + r.at - 1;
        assert_true(kv_eq(kref(r.key, r.klen), x.k[at]));
        assert_int_equal(r.kind, x.tomb[at]);
        const uint32_t back = below(below(2) ? 10 : 2 * CKB_BACK);
        if (back >= r.at) continue;
        const enum remixdb_status s = ckb_read_back(&r, r.at - 1 - back, &buf, &cap, &klen);
        if (s == REMIXDB_OK) {
          assert_true(kv_eq(kref(buf, klen), x.k[at - back]));
          went_back++;
        } else {
          FAILS(s, REMIXDB_NOTFOUND);
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
  assert_true(went_back > 1000 && too_far > 10 && packed > 20 && raw > 20);
  mem_free(buf);
  ckb_build_fini(&c);
}

static void flips_and_cuts(struct keys x, bool packed) {
  struct ckb_build c = {0};
  build(&c, &x);
  assert_int_equal(is_packed(c.buf), packed);
  uint32_t nr;
  for (uint32_t bit = 0; bit < c.len * 8; bit++) {
    c.buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
    FAILS(read_all(c.buf, c.len, 0, NULL, 0, &nr), REMIXDB_CORRUPT);
    c.buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
  }
  assert_non_null(strstr(err_msg(), "some.sst"));
  for (size_t len = 1; len < c.len; len++) FAILS(read_all(c.buf, len, 0, NULL, 0, &nr), REMIXDB_CORRUPT);
  // another table's
  struct ckb_read r;
  ckb_read_init(&r);
  FAILS(ckb_read_chunk(&r, c.buf, (uint32_t)c.len, TABLE + 1, 0, "t", 0), REMIXDB_CORRUPT);
  FAILS(ckb_read_chunk(&r, c.buf, (uint32_t)c.len, TABLE, 1, "t", 0), REMIXDB_CORRUPT);
  ckb_read_fini(&r);
  free_keys(&x);
  ckb_build_fini(&c);
}

static void test_flips_and_cuts(void **state) {
  (void)state;
  flips_and_cuts(make_mixed(1, 100), true);
  struct keys x = make_mixed(2, 20);
  memmove(x.k, x.k + 20, 20 * sizeof(*x.k));
  x.nr = 20;
  flips_and_cuts(x, false);
}

// len: with CKB_PACKED or without.
static void seal(uint8_t *buf, uint32_t word, uint32_t count) {
  const uint32_t len = word & ~(CKB_PACKED | CKB_KINDS);
  store32le(buf + 8, word);
  store32le(buf + 12, count);
  store64le(buf, hash64_seed(buf + 8, len - 8, ~((uint64_t)TABLE << 32)));
}

// A chunk that says it is packed, of memory of its own so that reading beyond is seen. It ends with the status of
// read_all.
static enum remixdb_status read_packed(const uint8_t *frame, size_t len, uint32_t promised, uint32_t count) {
  uint8_t *const buf = malloc(CKB_PACKED_HEAD + len);
  store32le(buf + CKB_CHUNK_HEAD, promised);
  if (len) memcpy(buf + CKB_PACKED_HEAD, frame, len);
  seal(buf, (uint32_t)(CKB_PACKED_HEAD + len) | CKB_PACKED, count);
  uint32_t got;
  const enum remixdb_status s = read_all(buf, CKB_PACKED_HEAD + len, 0, NULL, 0, &got);
  if (s == REMIXDB_OK) assert_int_equal(got, count);
  free(buf);
  return s;
}

// The same answer whether they are packed or not.
static enum remixdb_status read_entries(const char *bytes, uint32_t nr, uint32_t count) {
  uint8_t *const buf = malloc(CKB_CHUNK_HEAD + nr);
  memcpy(buf + CKB_CHUNK_HEAD, bytes, nr);
  seal(buf, CKB_CHUNK_HEAD + nr, count);
  uint32_t got;
  const enum remixdb_status s = read_all(buf, CKB_CHUNK_HEAD + nr, 0, NULL, 0, &got);
  if (s == REMIXDB_OK) assert_int_equal(got, count);
  free(buf);
  uint8_t frame[256];
  const size_t len = ZSTD_compress(frame, sizeof(frame), bytes, nr, 1);
  assert_false(ZSTD_isError(len));
  assert_int_equal(read_packed(frame, len, nr, count), s);
  return s;
}
#define ENTRIES(s, count) read_entries(s, sizeof(s) - 1, count)

// Keys that grow beyond the limit.
static void forge_long_keys(void) {
  const uint32_t half = KV_KEY_MAX / 2;
  uint8_t *const buf = calloc(1, CKB_CHUNK);
  for (uint32_t over = 0; over < 2; over++) {
    uint8_t *p = buf + CKB_CHUNK_HEAD;
    p = kv_varint_put(kv_varint_put(p, 0), half << 1) + half;
    p = kv_varint_put(kv_varint_put(p, half), (KV_KEY_MAX - half + over) << 1) + KV_KEY_MAX - half + over;
    assert_true(p - buf <= CKB_CHUNK);
    seal(buf, (uint32_t)(p - buf), 2);
    uint32_t nr;
    assert_int_equal(read_all(buf, (size_t)(p - buf), 0, NULL, 0, &nr), over ? REMIXDB_CORRUPT : REMIXDB_OK);
  }
  free(buf);
}

// Random bytes: the reading ends, with an answer.
static void forge_bytes(void) {
  struct ckb_build c = {0};
  struct keys x = make_keys(60, 4);
  build(&c, &x);
  for (uint32_t round = 0; round < 5000; round++) {
    uint8_t *const copy = malloc(c.len);
    memcpy(copy, c.buf, c.len);
    for (uint32_t i = 0; i <= below(3); i++)
      copy[CKB_CHUNK_HEAD + below((uint32_t)c.len - CKB_CHUNK_HEAD)] = (uint8_t)rng_next(&check_seed);
    seal(copy, load32le(c.buf + 8), 60);
    uint32_t nr;
    const enum remixdb_status s = read_all(copy, c.len, 0, NULL, 0, &nr);
    assert_true(s == REMIXDB_OK || s == REMIXDB_CORRUPT);
    free(copy);
  }
  free_keys(&x);
  ckb_build_fini(&c);
}

// Chunks whose checksum is right and whose entries are not.
static void test_forged(void **state) {
  (void)state;
  OK(ENTRIES("\0\4ab"
             "\2\2c"
             "\1\2c",
             3));  // ab abc ac
  OK(ENTRIES("\0\0"
             "\0\2a",
             2));  // "" a
  FAILS(ENTRIES("\0\4ab"
                "\2\2c"
                "\1\2c",
                2),
        REMIXDB_CORRUPT);  // more bytes than keys
  FAILS(ENTRIES("\0\4ab"
                "\2\2c"
                "\1\2c",
                4),
        REMIXDB_CORRUPT);  // more keys than bytes
  FAILS(ENTRIES("\0\4ab"
                "\2\2c"
                "\1\2c",
                0),
        REMIXDB_CORRUPT);
  FAILS(ENTRIES("\1\4ab", 1), REMIXDB_CORRUPT);  // the first shares
  FAILS(ENTRIES("\0\4ab"
                "\2\0",
                2),
        REMIXDB_CORRUPT);  // the same key again
  FAILS(ENTRIES("\0\4ab"
                "\1\0",
                2),
        REMIXDB_CORRUPT);  // ab a
  FAILS(ENTRIES("\0\4ab"
                "\3\2c",
                2),
        REMIXDB_CORRUPT);  // shares more than there is
  FAILS(ENTRIES("\0\4ab"
                "\1\4bc",
                2),
        REMIXDB_CORRUPT);  // shares less than there is
  FAILS(ENTRIES("\0\4ab"
                "\1\2a",
                2),
        REMIXDB_CORRUPT);                                        // ab aa
  FAILS(ENTRIES("\0\6ab", 1), REMIXDB_CORRUPT);                  // a suffix after the end
  FAILS(ENTRIES("\0\xff\xff\xff\xff\xff", 1), REMIXDB_CORRUPT);  // not a number
  FAILS(ENTRIES("\0\xff\xff\xff\xff\x0f", 1), REMIXDB_CORRUPT);
  FAILS(ENTRIES("\0\4ab"
                "\xff\xff\xff\xff\x0f\2c",
                2),
        REMIXDB_CORRUPT);
  assert_non_null(strstr(err_msg(), "some.sst"));

  forge_long_keys();
  forge_bytes();
}

static const char some_entries[] = "\0\4ab"
                                   "\2\2c"
                                   "\1\2c";
#define SOME ((uint32_t)sizeof(some_entries) - 1)
#define SOME_NR 3u

// That it was found where the frame is.
static void expect_corrupt_at(enum remixdb_status s, uint64_t at) {
  char where[32];
  (void)snprintf(where, sizeof(where), "%llu", 1000 + (unsigned long long)at);
  FAILS(s, REMIXDB_CORRUPT);
  assert_non_null(strstr(err_msg(), "some.sst"));
  assert_non_null(strstr(err_msg(), where));
}

// The head of a packed chunk is larger by the size, and a frame has at least a byte.
static void forge_lengths(void) {
  uint8_t head[CKB_CHUNK_HEAD] = {0};
  for (uint32_t packed = 0; packed < 2; packed++) {
    const uint32_t least = packed ? CKB_PACKED_HEAD + 1 : CKB_CHUNK_HEAD + 2, flag = packed ? CKB_PACKED : 0;
    for (uint32_t len = 0; len <= CKB_CHUNK + 1; len++) {
      store32le(head + 8, len | flag);
      assert_int_equal(ckb_chunk_length(head, 2 * CKB_CHUNK), len < least || len > CKB_CHUNK ? 0 : len);
      assert_int_equal(ckb_chunk_length(head, len ? len - 1 : 0), 0);
    }
  }
}

// Impossible sizes, and sizes that are not those of the frame.
static void forge_sizes(const uint8_t *frame, size_t n) {
  const uint32_t never[] = {0, 1, CKB_CHUNK - CKB_CHUNK_HEAD + 1, CKB_CHUNK, UINT32_MAX};
  for (uint32_t i = 0; i < sizeof(never) / sizeof(never[0]); i++)
    expect_corrupt_at(read_packed(frame, n, never[i], SOME_NR), 16);
  for (uint32_t size = 2; size < 40; size++)
    if (size != SOME) expect_corrupt_at(read_packed(frame, n, size, SOME_NR), 20);
  expect_corrupt_at(read_packed(frame, n, CKB_CHUNK - CKB_CHUNK_HEAD, SOME_NR), 20);
}

static void forge_around(const uint8_t *frame, size_t n) {
  uint8_t wrong[512];
  // after the frame: a byte, an empty frame, a skipped frame; and a skipped frame alone or in front
  static const uint8_t skipped[] = {0x50, 0x2A, 0x4D, 0x18, 2, 0, 0, 0, 'x', 'y'};
  memcpy(wrong, frame, n);
  wrong[n] = 0;
  expect_corrupt_at(read_packed(wrong, n + 1, SOME, SOME_NR), 20);
  const size_t empty = ZSTD_compress(wrong + n, sizeof(wrong) - n, "", 0, 1);
  assert_false(ZSTD_isError(empty));
  expect_corrupt_at(read_packed(wrong, n + empty, SOME, SOME_NR), 20);
  expect_corrupt_at(read_packed(wrong + n, empty, SOME, SOME_NR), 20);
  memcpy(wrong + n, skipped, sizeof(skipped));
  expect_corrupt_at(read_packed(wrong, n + sizeof(skipped), SOME, SOME_NR), 20);
  expect_corrupt_at(read_packed(wrong + n, sizeof(skipped), SOME, SOME_NR), 20);
  memcpy(wrong, skipped, sizeof(skipped));
  memcpy(wrong + sizeof(skipped), frame, n);
  expect_corrupt_at(read_packed(wrong, sizeof(skipped) + n, SOME, SOME_NR), 20);
  // the entries in two frames
  const size_t first = ZSTD_compress(wrong, sizeof(wrong), some_entries, 4, 1);
  const size_t second = ZSTD_compress(wrong + first, sizeof(wrong) - first, some_entries + 4, SOME - 4, 1);
  assert_false(ZSTD_isError(first) || ZSTD_isError(second));
  expect_corrupt_at(read_packed(wrong, first + second, SOME, SOME_NR), 20);
}

// No frame at all is corrupt. A frame without its size is a frame.
static void forge_unsized(void) {
  uint8_t wrong[512];
  expect_corrupt_at(read_packed((const uint8_t *)some_entries, SOME, SOME, SOME_NR), 20);
  ZSTD_CCtx *const z = ZSTD_createCCtx();
  assert_false(ZSTD_isError(ZSTD_CCtx_setParameter(z, ZSTD_c_contentSizeFlag, 0)));
  const size_t silent = ZSTD_compress2(z, wrong, sizeof(wrong), some_entries, SOME);
  assert_false(ZSTD_isError(silent));
  ZSTD_freeCCtx(z);
  OK(read_packed(wrong, silent, SOME, SOME_NR));
  expect_corrupt_at(read_packed(wrong, silent, SOME - 1, SOME_NR), 20);
  expect_corrupt_at(read_packed(wrong, silent, SOME + 1, SOME_NR), 20);
}

// A good chunk, with each bit changed, and cut everywhere.
static void forge_bits(void) {
  struct ckb_build c = {0};
  struct keys x = make_mixed(1, 100);
  build(&c, &x);
  assert_true(is_packed(c.buf));
  assert_int_equal(c.len, ckb_chunk_length(c.buf, c.len));
  uint32_t sound = 0;
  for (uint32_t bit = 16 * 8; bit < c.len * 8; bit++) {
    c.buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
    uint32_t nr;
    uint8_t *const copy = malloc(c.len);
    memcpy(copy, c.buf, c.len);
    seal(copy, load32le(c.buf + 8), 100);
    const enum remixdb_status s = read_all(copy, c.len, 0, NULL, 0, &nr);
    assert_true(s == REMIXDB_OK || s == REMIXDB_CORRUPT);
    if (bit < 20 * 8) FAILS(s, REMIXDB_CORRUPT);
    sound += s == REMIXDB_OK;
    free(copy);
    c.buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
  }
  assert_true(sound < c.len * 8);
  for (size_t len = 1; len < c.len - 20; len++)
    FAILS(read_packed(c.buf + 20, len, load32le(c.buf + 16), 100), REMIXDB_CORRUPT);
  free_keys(&x);
  ckb_build_fini(&c);
}

// Chunks whose checksum is right, and whose frame does not fit the head.
static void test_forged_packed(void **state) {
  (void)state;
  uint8_t frame[512];
  const size_t n = ZSTD_compress(frame, sizeof(frame), some_entries, SOME, 1);
  assert_false(ZSTD_isError(n));
  OK(read_packed(frame, n, SOME, SOME_NR));
  forge_lengths();
  forge_sizes(frame, n);
  // cut anywhere, to nothing too
  for (size_t len = 1; len < n; len++) expect_corrupt_at(read_packed(frame, len, SOME, SOME_NR), 20);
  FAILS(read_packed(frame, 0, SOME, SOME_NR), REMIXDB_CORRUPT);
  forge_around(frame, n);
  forge_unsized();
  forge_bits();
}

static _Atomic uint32_t allowed;
static bool allow_some(size_t size) {
  (void)size;
  return atomic_load(&allowed) && atomic_fetch_sub(&allowed, 1);
}

static void refuse_after(uint32_t nr) {
  atomic_store(&allowed, nr);
  atomic_store(&mem_fault, allow_some);
}

// A chunk that is left out is not unpacked, which takes memory; one whose unpacking failed for lack of it can be read
// afterwards.
static void test_left_out(void **state) {
  (void)state;
  struct ckb_build c = {0};
  struct keys x = make_mixed(1, 40000);
  build(&c, &x);
  struct ckb_read r;
  ckb_read_init(&r);
  uint32_t first = 0, chunks = 0;
  for (size_t off = 0; off < c.len; chunks++) {
    const uint32_t n = ckb_chunk_length(c.buf + off, c.len - off);
    assert_true(is_packed(c.buf + off));
    refuse_after(0);
    enum remixdb_status s = ckb_read_chunk(&r, c.buf + off, n, TABLE, off, "some.sst", off);
    atomic_store(&mem_fault, NULL);
    OK(s);
    assert_int_equal(r.left, load32le(c.buf + off + 12));
    assert_true(r.unpacked == NULL);
    off += n;
    if (off < c.len) {
      first += r.left;
    } else {
      for (uint32_t nr = 0; nr < 2; nr++) {
        zmem_trim();  // so that the context needs memory, too
        refuse_after(nr);
        s = nr ? ckb_read_skip(&r, 3, "some.sst", off) : ckb_read_next(&r, "some.sst", off);
        atomic_store(&mem_fault, NULL);
        FAILS(s, REMIXDB_NOMEM);
        assert_int_equal(r.at, 0);
      }
      for (uint32_t i = 0; r.left; i++) {
        OK(ckb_read_next(&r, "some.sst", off));
        assert_true(kv_eq(kref(r.key, r.klen), x.k[first + i]));
      }
    }
  }
  assert_true(chunks > 3 && r.unpacked);
  ckb_read_fini(&r);
  free_keys(&x);
  ckb_build_fini(&c);
}

// Building with a failure at every allocation there is: nothing is changed by it, and the same comes out.
static void test_no_memory_building(void **state) {
  (void)state;
  struct keys x = make_mixed(2, 9000);
  struct ckb_build want = {0};
  build(&want, &x);
  for (uint32_t n = 0;; n++) {
    struct ckb_build c = {0};
    ckb_build_init(&c, TABLE);
    zmem_trim();
    uint32_t refused = 0;
    refuse_after(n);
    for (uint32_t i = 0; i <= x.nr; i++) {
      const struct ckb_build before = c;
      enum remixdb_status s = i < x.nr ? ckb_build_add(&c, x.k[i], x.tomb[i]) : ckb_build_finish(&c);
      if (s == REMIXDB_OK) continue;
      atomic_store(&mem_fault, NULL);
      FAILS(s, REMIXDB_NOMEM);
      assert_true(c.len == before.len && c.chunk == before.chunk && c.count == before.count &&
                  c.last_len == before.last_len);
      refused++;
      s = i < x.nr ? ckb_build_add(&c, x.k[i], x.tomb[i]) : ckb_build_finish(&c);
      OK(s);
    }
    atomic_store(&mem_fault, NULL);
    assert_true(refused <= 1);
    assert_int_equal(c.len, want.len);
    assert_memory_equal(c.buf, want.buf, c.len);
    ckb_build_fini(&c);
    if (refused) continue;
    assert_true(n > 5);
    break;
  }
  free_keys(&x);
  ckb_build_fini(&want);
}

static void test_no_memory(void **state) {
  (void)state;
  struct keys x = make_keys(20000, 30);
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
    FAILS(s, REMIXDB_NOMEM);
    refused++;
    OK(ckb_build_add(&c, x.k[i], x.tomb[i]));
  }
  assert_true(refused > 3);  // closing a chunk, too
  OK(ckb_build_finish(&c));
  assert_true(is_packed(c.buf));
  uint32_t nr;
  OK(read_all(c.buf, c.len, 0, &x, 0, &nr));
  assert_int_equal(nr, x.nr);
  // reading
  uint32_t n = 0;
  enum remixdb_status s;
  do {
    zmem_trim();
    atomic_store(&allowed, n++);
    atomic_store(&mem_fault, allow_some);
    s = read_all(c.buf, c.len, 0, NULL, 0, &nr);
    atomic_store(&mem_fault, NULL);
    assert_true(s == REMIXDB_OK || s == REMIXDB_NOMEM);
  } while (s != REMIXDB_OK);
  assert_true(n > 3);
  free_keys(&x);
  ckb_build_fini(&c);
}

int main(void) {
  const char *const given = getenv("TEST_SEED");
  const uint64_t start = check_seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_round_trip),     cmocka_unit_test(test_largest_keys),
      cmocka_unit_test(test_flips_and_cuts), cmocka_unit_test(test_forged),
      cmocka_unit_test(test_no_memory),      cmocka_unit_test(test_skip_and_back),
      cmocka_unit_test(test_packed_and_raw), cmocka_unit_test(test_forged_packed),
      cmocka_unit_test(test_left_out),       cmocka_unit_test(test_no_memory_building),
  };
  const int rc = cmocka_run_group_tests(tests, NULL, NULL);
  if (rc) fprintf(stderr, "repeat with TEST_SEED=%llu\n", (unsigned long long)start);
  return rc;
}
