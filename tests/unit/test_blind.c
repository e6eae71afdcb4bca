// SPDX-License-Identifier: Apache-2.0
//
// Sets made by comparing, and blind search: the code with vector instructions against that without, and both against
// the plain meaning.
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/blind.h"

static uint64_t seed_start(const char *what) {
  const char *s = getenv("TEST_SEED");
  const uint64_t seed = s ? strtoull(s, NULL, 0) : time_ns();
  print_message("%s: TEST_SEED=%llu\n", what, (unsigned long long)seed);
  return seed;
}

static void test_bits(void **state) {
  (void)state;
  uint64_t rng = seed_start("bits");
  assert_int_equal(set32_below(32), UINT32_MAX);
  for (uint32_t i = 0; i < 32; i++) {
    assert_int_equal(set32_below(i) ^ set32_above(i) ^ 1u << i, UINT32_MAX);
    assert_int_equal(set32_below(i) & set32_above(i), 0);
  }
  for (uint32_t round = 0; round < 20000; round++) {
    const uint32_t m = (uint32_t)(rng_next(&rng) & rng_next(&rng)) >> rng_next(&rng) % 32;
    uint32_t n = 0;
    for (uint32_t i = 0; i < 32; i++) {
      if (!(m >> i & 1)) continue;
      assert_int_equal(set32_nth(m, n), i);
      if (n++ == 0) assert_int_equal(set32_first(m), i);
      if (!(m & set32_above(i))) assert_int_equal(set32_last(m), i);
    }
    assert_int_equal(set32_count(m), n);
  }
}

typedef uint32_t eq8_fn(const uint8_t *p, uint8_t keep, uint8_t v);
typedef uint32_t lt16_fn(const uint8_t *p, uint32_t v);
typedef uint32_t bits_fn(struct blind dbits, uint32_t base, struct kref key);

struct variant {
  const char *name;
  eq8_fn *eq8;
  lt16_fn *lt8, *lt16;
};

// Those that run here.
static uint32_t variants(struct variant *out) {
  uint32_t nr = 0;
  out[nr++] = (struct variant){"plain", set32_eq8_plain, set32_lt8_plain, set32_lt16_plain};
  out[nr++] = (struct variant){"chosen", set32_eq8, set32_lt8, set32_lt16};
#if defined(SET32_SSE2)
  out[nr++] = (struct variant){"SSE2", set32_eq8_sse2, set32_lt8_sse2, set32_lt16_sse2};
  if (__builtin_cpu_supports("avx2"))
    out[nr++] = (struct variant){"AVX2", set32_eq8_avx2, set32_lt8_avx2, set32_lt16_avx2};
#endif
#if defined(SET32_NEON)
  out[nr++] = (struct variant){"NEON", set32_eq8_neon, set32_lt8_neon, set32_lt16_neon};
#endif
  return nr;
}

static void test_comparisons(void **state) {
  (void)state;
  uint64_t rng = seed_start("comparisons");
  struct variant v[8];
  const uint32_t nr = variants(v);
  for (uint32_t i = 0; i < nr; i++) print_message("  %s\n", v[i].name);
  for (uint32_t round = 0; round < 30000; round++) {
    // all alignments, few and many different values
    uint8_t buf[128 + 8], *const p = buf + rng_next(&rng) % 8;
    const uint8_t few = (uint8_t)(rng_next(&rng) % 2 ? 0xFF : 0x83);
    for (uint32_t i = 0; i < 64; i++) p[i] = (uint8_t)rng_next(&rng) & few;
    const uint8_t keeps[] = {0xFF, 0x80, 0x1F, 0xC0, (uint8_t)rng_next(&rng)}, keep = keeps[round % 5];
    const uint8_t want = rng_next(&rng) % 4 ? p[rng_next(&rng) % 32] & keep : (uint8_t)rng_next(&rng);
    uint32_t values[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF, load16le(p + 2 * (rng_next(&rng) % 32)), 0};
    values[8] = values[7] < 0xFFFF ? values[7] + 1 : 0;
    const uint32_t value = values[rng_next(&rng) % 9];
    uint32_t eq8 = 0, lt8 = 0, lt16 = 0, eq16 = 0;
    for (uint32_t i = 0; i < 32; i++) {
      eq8 |= (uint32_t)((p[i] & keep) == want) << i;
      lt8 |= (uint32_t)(p[i] < want) << i;
      lt16 |= (uint32_t)(load16le(p + 2 * i) < value) << i;
      eq16 |= (uint32_t)(load16le(p + 2 * i) == value) << i;
    }
    for (uint32_t i = 0; i < nr; i++) {
      if (v[i].eq8(p, keep, want) != eq8) fail_msg("%s: bytes of %#x that are %#x", v[i].name, keep, want);
      if (v[i].lt8(p, want) != lt8) fail_msg("%s: bytes less than %#x", v[i].name, want);
      if (v[i].lt16(p, value) != lt16) fail_msg("%s: less than %#x", v[i].name, value);
    }
    assert_int_equal(set32_eq16(p, value), eq16);
  }
}

static void test_nibbles(void **state) {
  (void)state;
  uint64_t rng = seed_start("nibbles");
  for (uint32_t round = 0; round < 20000; round++) {
    uint8_t bytes[32], nibbles[16 + 1], spread[32], plain[32];
    uint32_t eq = 0, lt = 0;
    const uint32_t few = rng_next(&rng) % 2 ? 16 : 3, v = (uint32_t)(rng_next(&rng) % few);
    for (uint32_t i = 0; i < 32; i++) {
      bytes[i] = (uint8_t)(rng_next(&rng) % few);
      eq |= (uint32_t)(bytes[i] == v) << i;
      lt |= (uint32_t)(bytes[i] < v) << i;
    }
    uint8_t *const p = nibbles + round % 2;
    uint8_t marked[32];
    for (uint32_t i = 0; i < 32; i++) marked[i] = bytes[i] | (uint8_t)(rng_next(&rng) % 16 << 4);
    set32_join(marked, p);
    for (uint32_t i = 0; i < 32; i++) assert_int_equal(set32_nibble(p, i), bytes[i]);
    set32_spread(p, spread);
    set32_spread_plain(p, plain);
    assert_memory_equal(spread, bytes, 32);
    assert_memory_equal(plain, bytes, 32);
    assert_int_equal(set32_eq4_plain(p, v), eq);
    assert_int_equal(set32_lt4_plain(p, v), lt);
    assert_int_equal(set32_eq4(p, v), eq);
    assert_int_equal(set32_lt4(p, v), lt);
  }
}

// ---- blind search

static uint32_t slow_bit(struct kref k, uint32_t byte, uint32_t b) {
  if (byte >= k.len) return 0;
  return b == 0 ? 1 : k.ptr[byte] >> (8 - b) & 1;
}

static uint32_t slow_dbit(struct kref a, struct kref b) {
  for (uint32_t byte = 0;; byte++)
    for (uint32_t i = 0; i <= 8; i++)
      if (slow_bit(a, byte, i) != slow_bit(b, byte, i)) return byte << 4 | i;
}

#define KEY_MAX 200u

struct segment {
  uint8_t bytes[32][KEY_MAX];
  struct kref keys[32];  // equal ones are versions
  uint32_t nr, base;
  uint8_t wide[BLIND_WIDE], narrow[BLIND_NARROW];  // its discriminating bits; narrow ones only if all are near
  uint8_t dense[BLIND_NARROW];                     // if `is_dense`
  bool is_dense;
  uint8_t nibbles[BLIND_NIBBLES];  // if `table`
  uint16_t table;
};

static int by_key(const void *a, const void *b) { return kv_cmp(*(const struct kref *)a, *(const struct kref *)b); }

// common: bytes all share; spread: bytes that then differ; versions: one key in so many is that of the one before.
static void segment_make(struct segment *s, uint32_t common, uint32_t spread, uint32_t versions, uint64_t *rng) {
  s->nr = 1 + (uint32_t)(rng_next(rng) % 32);
  const uint32_t letters = 1 + (uint32_t)(rng_next(rng) % (rng_next(rng) % 2 ? 255 : 2));
  for (uint32_t i = 0; i < s->nr; i++) {
    uint32_t len = 0;
    for (; len < common; len++) s->bytes[i][len] = (uint8_t)(len * 7);
    if (i && rng_next(rng) % 4) {  // a branch of another one, from somewhere on
      const struct kref k = s->keys[rng_next(rng) % i];
      const uint32_t shared = common + (uint32_t)(rng_next(rng) % (k.len - common + 1));
      for (; len < shared; len++) s->bytes[i][len] = k.ptr[len];
    }
    for (uint32_t n = (uint32_t)(rng_next(rng) % (spread + 1)); n > 0 && len < KEY_MAX; n--)
      s->bytes[i][len++] = (uint8_t)(rng_next(rng) % letters);
    s->keys[i] = kref(s->bytes[i], len);
    if (i && rng_next(rng) % versions == 0) s->keys[i] = s->keys[i - 1];
  }
  qsort(s->keys, s->nr, sizeof(s->keys[0]), by_key);
  uint32_t d[32] = {0};
  s->base = UINT32_MAX;
  for (uint32_t i = 1; i < s->nr; i++) {
    d[i] = kv_eq(s->keys[i - 1], s->keys[i]) ? BLIND_SAME : slow_dbit(s->keys[i - 1], s->keys[i]);
    if (d[i] != BLIND_SAME && d[i] >> 4 < s->base) s->base = d[i] >> 4;
  }
  if (s->base == UINT32_MAX) s->base = 0;
  memset(s->wide, 0, sizeof(s->wide));
  memset(s->narrow, 0, sizeof(s->narrow));
  for (uint32_t i = 1; i < s->nr; i++) {
    store16le(s->wide + 2 * i, d[i] == BLIND_SAME ? BLIND_SAME : d[i] - (s->base << 4));
    s->narrow[i] = (uint8_t)load16le(s->wide + 2 * i);
  }
  s->table = 0;
  s->is_dense = blind_densify(s->wide, s->dense);
  if (blind_near((struct blind){s->wide, BLIND_IS_WIDE, 0}))
    s->table = (uint16_t)blind_nibbles(s->narrow, s->nr, s->nibbles);
}

// Own memory for each, so that a sanitizer sees a look beyond it.
static struct kref probe(const struct segment *s, uint32_t i, uint64_t *rng) {
  const struct kref k = s->keys[i % s->nr];
  uint8_t *const p = malloc(k.len + 2);
  uint32_t len = k.len;
  if (len) memcpy(p, k.ptr, len);
  switch (i < s->nr ? 7 : rng_next(rng) % 7) {
    case 0: len = len ? (uint32_t)(rng_next(rng) % len) : 0; break;
    case 1: p[len++] = (uint8_t)rng_next(rng); break;
    case 2: p[len++] = 0; break;
    case 3:
      if (len) p[len - 1]++;
      break;
    case 4:
      if (len) p[rng_next(rng) % len] ^= (uint8_t)(1u << rng_next(rng) % 8);
      break;
    default: break;
  }
  uint8_t *const q = malloc(len ? len : 1);
  if (len) memcpy(q, p, len);
  free(p);
  return kref(q, len);
}

static void check_key_bits(const struct segment *s, struct blind dbits, struct kref key) {
  const uint32_t in = set32_below(s->nr) & ~1u, plain = blind_bits_plain(dbits, s->base, key) & in;
  uint32_t want = 0;
  for (uint32_t i = 1; i < s->nr; i++) {
    const uint32_t d = load16le(s->wide + 2 * i);
    assert_int_equal(blind_bit(dbits, i), d);
    if (d != BLIND_SAME) want |= slow_bit(key, s->base + (d >> 4), d & 15) << i;
  }
  assert_int_equal(plain, want);
  assert_int_equal(blind_bits(dbits, s->base, key) & in, want);
  if (!blind_near(dbits)) return;
#if defined(SET32_SSE2)
  if (__builtin_cpu_supports("ssse3")) assert_int_equal(blind_bits_ssse3(dbits, s->base, key) & in, want);
#elif defined(SET32_NEON)
  assert_int_equal(blind_bits_neon(dbits, s->base, key) & in, want);
#endif
}

// Searches for a key with one form of the segment's bits.
static void check_search(const struct segment *s, struct blind dbits, struct kref key) {
  check_key_bits(s, dbits, key);
  const uint32_t cand = blind_candidate(dbits, s->nr, s->base, key);
  uint32_t at = 0;
  while (at < s->nr && kv_cmp(s->keys[at], key) < 0) at++;
  const bool here = at < s->nr && kv_eq(s->keys[at], key);
  assert_true(cand < s->nr);
  if (here) assert_int_equal(cand, at);
  for (uint32_t j = 0; j < s->nr && !here; j++)  // no other one shares more
    assert_true(kv_eq(s->keys[j], s->keys[cand]) || slow_dbit(s->keys[j], key) <= slow_dbit(s->keys[cand], key));
  bool equal;
  assert_int_equal(blind_place(dbits, s->nr, s->base, key, cand, s->keys[cand], &equal), at);
  assert_int_equal(equal, here);
}

// Both forms mean the same for the entries that have bits.
static void check_forms(const struct segment *s, struct blind narrow, struct blind wide, uint64_t *rng) {
  const uint32_t in = set32_below(s->nr) & ~1u;
  const uint32_t bits[] = {0,
                           1,
                           0xF8,
                           0xFE,
                           0xFF,
                           0x100,
                           0x1B7,
                           0x1B8,
                           0x1B9,
                           0x1C0,
                           BLIND_FAR,
                           BLIND_SAME,
                           (uint32_t)(rng_next(rng) % 0x1D0)};
  assert_int_equal(blind_same(narrow), blind_same(wide));  // none beyond
  for (uint32_t i = 0; i < sizeof(bits) / sizeof(bits[0]); i++)
    assert_int_equal(blind_less(narrow, bits[i]) & in, blind_less(wide, bits[i]) & in);
  for (uint32_t i = 1; i < s->nr; i++) {
    const uint32_t bit = blind_bit(wide, i);
    assert_int_equal(blind_bit(narrow, i), bit);
    assert_int_equal(blind_less(narrow, bit) & in, blind_less(wide, bit) & in);
    assert_int_equal(blind_below(narrow, i) & in, blind_less(wide, bit) & in);
  }
}

static void test_blind(void **state) {
  (void)state;
  uint64_t rng = seed_start("blind");
  uint32_t near = 0, wide = 0, tables = 0, dense = 0;
  for (uint32_t round = 0; round < 3000; round++) {
    struct segment s;
    const uint32_t commons[] = {0, 1, 7, 8, 15, 16, 30, 90}, spreads[] = {3, 12, 16, 60, 26};
    segment_make(&s, commons[round % 8], spreads[rng_next(&rng) % 5], 1 + (uint32_t)(rng_next(&rng) % 20), &rng);
    struct blind forms[4] = {{s.wide, BLIND_IS_WIDE, 0}};
    uint32_t nr_forms = 1;
    uint32_t last = 0;
    for (uint32_t i = 1; i < s.nr; i++)
      if (load16le(s.wide + 2 * i) != BLIND_SAME && load16le(s.wide + 2 * i) >> 4 > last)
        last = load16le(s.wide + 2 * i) >> 4;
    assert_int_equal(s.is_dense, last < BLIND_DENSE_BYTES);
    assert_int_equal(blind_near(forms[0]), last < 16);
    if (s.is_dense) forms[nr_forms++] = (struct blind){s.dense, BLIND_IS_DENSE, 0};
    if (blind_near(forms[0])) forms[nr_forms++] = (struct blind){s.narrow, BLIND_IS_NARROW, 0};
    if (s.table) forms[nr_forms++] = (struct blind){s.nibbles, BLIND_IS_NARROW, s.table};
    (*(blind_near(forms[0]) ? &near : s.is_dense ? &dense : &wide))++;
    tables += s.table != 0;
    for (uint32_t f = 1; f < nr_forms; f++) check_forms(&s, forms[f], forms[0], &rng);
    for (uint32_t i = 0; i < s.nr + 40; i++) {
      const struct kref key = probe(&s, i, &rng);
      for (uint32_t f = 0; f < nr_forms; f++) check_search(&s, forms[f], key);
      free((void *)(uintptr_t)key.ptr);
    }
  }
  print_message("  %u near, %u of them in tables, %u dense, %u wide\n", near, tables, dense, wide);
  assert_true(near > 500 && wide > 300 && dense > 100 && tables > 300 && near - tables > 300);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits), cmocka_unit_test(test_comparisons),
                                     cmocka_unit_test(test_nibbles), cmocka_unit_test(test_blind)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
