// SPDX-License-Identifier: Apache-2.0
//
// Sets of the numbers 0 to 31, as the bits of an integer. A set is made by comparing 32 bytes, 32 numbers of 16 bits,
// or 32 nibbles, with one value. 32 nibbles take 16 bytes: number i is in the low half of byte i, number 16 + i in the
// high half. Each comparison exists in vector instructions and in plain C, and all give the same answers
// (tests/unit/test_blind.c). The compiler's target decides which one is used. AVX2 is not chosen at run time: it saves
// two instructions for bytes and six for 16-bit numbers, no more than the choice would cost.
#ifndef SET32_H
#define SET32_H

#include "lib.h"

#if defined(__SSE2__)
#define SET32_SSE2 1
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__ARM_NEON)
#define SET32_NEON 1
#include <arm_neon.h>
#endif

static inline uint32_t set32_below(uint32_t i) { return i < 32 ? (1u << i) - 1 : UINT32_MAX; }
static inline uint32_t set32_above(uint32_t i) { return 0u - (2u << i); }                   // i < 32; empty for 31
static inline uint32_t set32_first(uint32_t m) { return (uint32_t)__builtin_ctz(m); }       // m is not empty
static inline uint32_t set32_last(uint32_t m) { return 31u - (uint32_t)__builtin_clz(m); }  // m is not empty

// The number of members. Baseline x86-64 has no instruction for it, and the compiler would call a function.
static inline uint32_t set32_count(uint32_t m) {
#if defined(__POPCNT__) || defined(__aarch64__)
  return (uint32_t)__builtin_popcount(m);
#else
  m -= m >> 1 & 0x55555555u;
  m = (m & 0x33333333u) + (m >> 2 & 0x33333333u);
  return (((m + (m >> 4)) & 0x0F0F0F0Fu) * 0x01010101u) >> 24;
#endif
}

// The n-th member, counted from 0; n is less than the number of members.
static inline uint32_t set32_nth(uint32_t m, uint32_t n) {
  while (n-- > 0) m &= m - 1;
  return set32_first(m);
}

// ---- the members whose byte, masked by `keep`, equals v

static inline uint32_t set32_eq8_plain(const uint8_t *p, uint8_t keep, uint8_t v) {
  const uint64_t ones = 0x0101010101010101ull, low7 = 0x7F7F7F7F7F7F7F7Full;
  uint32_t m = 0;
  for (uint32_t i = 0; i < 32; i += 8) {
    const uint64_t x = (load64le(p + i) & keep * ones) ^ v * ones;
    const uint64_t zero = ~(((x & low7) + low7) | x | low7);  // the high bit of each byte that is 0
    m |= (uint32_t)((zero >> 7) * 0x0102040810204080ull >> 56) << i;
  }
  return m;
}

// ---- the members whose byte is less than v (v <= 0xFF)

static inline uint32_t set32_lt8_plain(const uint8_t *p, uint32_t v) {
  uint32_t m = 0;
  for (uint32_t i = 0; i < 32; i++) m |= (uint32_t)(p[i] < v) << i;
  return m;
}

// ---- the members whose 16-bit number is less than v (v <= 0xFFFF)

static inline uint32_t set32_lt16_plain(const uint8_t *p, uint32_t v) {
  uint32_t m = 0;
  for (uint32_t i = 0; i < 32; i++) m |= (uint32_t)(load16le(p + 2 * i) < v) << i;
  return m;
}

// ---- nibbles

static inline uint32_t set32_nibble(const uint8_t *p, uint32_t i) { return p[i & 15] >> (i >> 2 & 4) & 15; }

// the members whose nibble equals v, and is less than v (v <= 15)
static inline uint32_t set32_eq4_plain(const uint8_t *p, uint32_t v) {
  uint32_t m = 0;
  for (uint32_t i = 0; i < 16; i++)
    m |= (uint32_t)((p[i] & 15u) == v) << i | (uint32_t)((uint32_t)p[i] >> 4 == v) << (16 + i);
  return m;
}

static inline uint32_t set32_lt4_plain(const uint8_t *p, uint32_t v) {
  uint32_t m = 0;
  for (uint32_t i = 0; i < 16; i++)
    m |= (uint32_t)((p[i] & 15u) < v) << i | (uint32_t)((uint32_t)p[i] >> 4 < v) << (16 + i);
  return m;
}

// Makes 32 bytes of 32 nibbles.
static inline void set32_spread_plain(const uint8_t *p, uint8_t *to) {
  for (uint32_t i = 0; i < 16; i++) {
    to[i] = p[i] & 15;
    to[16 + i] = p[i] >> 4;
  }
}

// Makes 32 nibbles of the lower halves of 32 bytes.
static inline void set32_join(const uint8_t *p, uint8_t *to) {
  for (uint32_t i = 0; i < 16; i++) to[i] = (uint8_t)((p[i] & 15) | p[16 + i] << 4);
}

#if defined(SET32_SSE2)
static inline __m128i set32_low4(__m128i nibbles) { return _mm_and_si128(nibbles, _mm_set1_epi8(15)); }
static inline __m128i set32_high4(__m128i nibbles) { return set32_low4(_mm_srli_epi16(nibbles, 4)); }

static inline uint32_t set32_eq4_sse2(const uint8_t *p, uint32_t v) {
  const __m128i w = _mm_set1_epi8((char)v), n = _mm_loadu_si128((const __m128i *)p);
  return (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(set32_low4(n), w)) |
         (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(set32_high4(n), w)) << 16;
}

static inline uint32_t set32_lt4_sse2(const uint8_t *p, uint32_t v) {
  const __m128i w = _mm_set1_epi8((char)v), n = _mm_loadu_si128((const __m128i *)p);
  return (uint32_t)_mm_movemask_epi8(_mm_cmpgt_epi8(w, set32_low4(n))) |
         (uint32_t)_mm_movemask_epi8(_mm_cmpgt_epi8(w, set32_high4(n))) << 16;
}

static inline void set32_spread_sse2(const uint8_t *p, uint8_t *to) {
  const __m128i n = _mm_loadu_si128((const __m128i *)p);
  _mm_storeu_si128((__m128i *)to, set32_low4(n));
  _mm_storeu_si128((__m128i *)(to + 16), set32_high4(n));
}

static inline uint32_t set32_eq8_sse2(const uint8_t *p, uint8_t keep, uint8_t v) {
  const __m128i k = _mm_set1_epi8((char)keep), w = _mm_set1_epi8((char)v);
  const __m128i lo = _mm_cmpeq_epi8(_mm_and_si128(_mm_loadu_si128((const __m128i *)p), k), w);
  const __m128i hi = _mm_cmpeq_epi8(_mm_and_si128(_mm_loadu_si128((const __m128i *)(p + 16)), k), w);
  return (uint32_t)_mm_movemask_epi8(lo) | (uint32_t)_mm_movemask_epi8(hi) << 16;
}

static inline uint32_t set32_lt8_sse2(const uint8_t *p, uint32_t v) {
  // SSE2 has no comparison of unsigned bytes, but their maximum.
  const __m128i w = _mm_set1_epi8((char)v), lo = _mm_loadu_si128((const __m128i *)p),
                hi = _mm_loadu_si128((const __m128i *)(p + 16));
  const uint32_t not_lo = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(lo, w), lo)),
                 not_hi = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(hi, w), hi));
  return ~(not_lo | not_hi << 16);
}

static inline uint32_t set32_lt16_sse2(const uint8_t *p, uint32_t v) {
  // SSE2 compares signed numbers only, so both sides are shifted by half the range.
  const __m128i half = _mm_set1_epi16((short)0x8000), w = _mm_set1_epi16((short)(v ^ 0x8000));
  __m128i q[4];
  for (int i = 0; i < 4; i++)
    q[i] = _mm_cmplt_epi16(_mm_xor_si128(_mm_loadu_si128((const __m128i *)(p + 16 * i)), half), w);
  const __m128i lo = _mm_packs_epi16(q[0], q[1]), hi = _mm_packs_epi16(q[2], q[3]);
  return (uint32_t)_mm_movemask_epi8(lo) | (uint32_t)_mm_movemask_epi8(hi) << 16;
}

#define SET32_AVX2 __attribute__((target("avx2"), unused)) static inline
SET32_AVX2 uint32_t set32_eq8_avx2(const uint8_t *p, uint8_t keep, uint8_t v) {
  const __m256i x = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)p), _mm256_set1_epi8((char)keep));
  return (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(x, _mm256_set1_epi8((char)v)));
}

SET32_AVX2 uint32_t set32_lt8_avx2(const uint8_t *p, uint32_t v) {
  const __m256i x = _mm256_loadu_si256((const __m256i *)p);
  return ~(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(x, _mm256_set1_epi8((char)v)), x));
}

SET32_AVX2 uint32_t set32_lt16_avx2(const uint8_t *p, uint32_t v) {
  const __m256i half = _mm256_set1_epi16((short)0x8000), w = _mm256_set1_epi16((short)(v ^ 0x8000));
  const __m256i lo = _mm256_cmpgt_epi16(w, _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)p), half));
  const __m256i hi = _mm256_cmpgt_epi16(w, _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(p + 32)), half));
  // packing works on each half, so the four quarters come out in the order 0, 2, 1, 3
  return (uint32_t)_mm256_movemask_epi8(_mm256_permute4x64_epi64(_mm256_packs_epi16(lo, hi), 0xD8));
}
#endif

#if defined(SET32_NEON)
static inline uint32_t set32_neon_bits(uint8x16_t lanes) {  // lanes are 0 or 0xFF
  static const uint8_t weights[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t w = vandq_u8(lanes, vld1q_u8(weights));
  return (uint32_t)vaddv_u8(vget_low_u8(w)) | (uint32_t)vaddv_u8(vget_high_u8(w)) << 8;
}

static inline uint32_t set32_eq8_neon(const uint8_t *p, uint8_t keep, uint8_t v) {
  const uint8x16_t k = vdupq_n_u8(keep), w = vdupq_n_u8(v);
  return set32_neon_bits(vceqq_u8(vandq_u8(vld1q_u8(p), k), w)) |
         set32_neon_bits(vceqq_u8(vandq_u8(vld1q_u8(p + 16), k), w)) << 16;
}

static inline uint32_t set32_lt8_neon(const uint8_t *p, uint32_t v) {
  const uint8x16_t w = vdupq_n_u8((uint8_t)v);
  return set32_neon_bits(vcltq_u8(vld1q_u8(p), w)) | set32_neon_bits(vcltq_u8(vld1q_u8(p + 16), w)) << 16;
}

static inline uint32_t set32_eq4_neon(const uint8_t *p, uint32_t v) {
  const uint8x16_t w = vdupq_n_u8((uint8_t)v), n = vld1q_u8(p);
  return set32_neon_bits(vceqq_u8(vandq_u8(n, vdupq_n_u8(15)), w)) | set32_neon_bits(vceqq_u8(vshrq_n_u8(n, 4), w))
                                                                         << 16;
}

static inline uint32_t set32_lt4_neon(const uint8_t *p, uint32_t v) {
  const uint8x16_t w = vdupq_n_u8((uint8_t)v), n = vld1q_u8(p);
  return set32_neon_bits(vcltq_u8(vandq_u8(n, vdupq_n_u8(15)), w)) | set32_neon_bits(vcltq_u8(vshrq_n_u8(n, 4), w))
                                                                         << 16;
}

static inline uint32_t set32_lt16_neon(const uint8_t *p, uint32_t v) {
  const uint16x8_t w = vdupq_n_u16((uint16_t)v);
  uint8x8_t q[4];
  for (int i = 0; i < 4; i++) q[i] = vmovn_u16(vcltq_u16(vreinterpretq_u16_u8(vld1q_u8(p + 16 * i)), w));
  return set32_neon_bits(vcombine_u8(q[0], q[1])) | set32_neon_bits(vcombine_u8(q[2], q[3])) << 16;
}
#endif

static inline uint32_t set32_eq4(const uint8_t *p, uint32_t v) {
#if defined(SET32_SSE2)
  return set32_eq4_sse2(p, v);
#elif defined(SET32_NEON)
  return set32_eq4_neon(p, v);
#else
  return set32_eq4_plain(p, v);
#endif
}

static inline uint32_t set32_lt4(const uint8_t *p, uint32_t v) {
#if defined(SET32_SSE2)
  return set32_lt4_sse2(p, v);
#elif defined(SET32_NEON)
  return set32_lt4_neon(p, v);
#else
  return set32_lt4_plain(p, v);
#endif
}

static inline void set32_spread(const uint8_t *p, uint8_t *to) {
#if defined(SET32_SSE2)
  set32_spread_sse2(p, to);
#else
  set32_spread_plain(p, to);
#endif
}

static inline uint32_t set32_eq8(const uint8_t *p, uint8_t keep, uint8_t v) {
#if defined(__AVX2__)
  return set32_eq8_avx2(p, keep, v);
#elif defined(SET32_SSE2)
  return set32_eq8_sse2(p, keep, v);
#elif defined(SET32_NEON)
  return set32_eq8_neon(p, keep, v);
#else
  return set32_eq8_plain(p, keep, v);
#endif
}

static inline uint32_t set32_lt8(const uint8_t *p, uint32_t v) {
#if defined(__AVX2__)
  return set32_lt8_avx2(p, v);
#elif defined(SET32_SSE2)
  return set32_lt8_sse2(p, v);
#elif defined(SET32_NEON)
  return set32_lt8_neon(p, v);
#else
  return set32_lt8_plain(p, v);
#endif
}

static inline uint32_t set32_lt16(const uint8_t *p, uint32_t v) {
#if defined(__AVX2__)
  return set32_lt16_avx2(p, v);
#elif defined(SET32_SSE2)
  return set32_lt16_sse2(p, v);
#elif defined(SET32_NEON)
  return set32_lt16_neon(p, v);
#else
  return set32_lt16_plain(p, v);
#endif
}

static inline uint32_t set32_eq16(const uint8_t *p, uint32_t v) {
  const uint32_t below = set32_lt16(p, v);
  return (v == 0xFFFF ? UINT32_MAX : set32_lt16(p, v + 1)) & ~below;
}
#endif
