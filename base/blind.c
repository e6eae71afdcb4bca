// SPDX-License-Identifier: Apache-2.0
#include "base/blind.h"

// The kinds of keys. In a byte of a kind keys differ in its first bit, and in all bits after `from`: so many of 1 to 8.
// With leading bits there is one more.
struct kind {
  uint8_t first, from, per_byte;
};
static const struct kind kinds[BLIND_KINDS] = {
    {1, 1, 8}, {2, 2, 7}, {4, 4, 5},
    {2, 4, 5}, {5, 5, 4},  // any bytes, ASCII, small letters, hexadecimal digits, digits
};

// The narrow bit after n others of a kind, from byte 0 on.
#define BITS(first, from, lead, n) \
  (uint8_t)((n) / (9 - (from) + (lead)) << 4 | BIT(first, from, lead, (n) % (9 - (from) + (lead))))
#define BIT(first, from, lead, n) ((n) < (lead) ? 0 : (n) == (lead) ? (first) : (n) - (lead) + (from))
#define BITS8(f, m, l, n)                                                                                           \
  BITS(f, m, l, n), BITS(f, m, l, (n) + 1), BITS(f, m, l, (n) + 2), BITS(f, m, l, (n) + 3), BITS(f, m, l, (n) + 4), \
      BITS(f, m, l, (n) + 5), BITS(f, m, l, (n) + 6), BITS(f, m, l, (n) + 7)
#define KIND(f, m, l) \
  { BITS8(f, m, l, 0), BITS8(f, m, l, 8), BITS8(f, m, l, 16), BITS8(f, m, l, 24), BITS8(f, m, l, 32) }
const uint8_t blind_kinds[2 * BLIND_KINDS + 1][BLIND_KIND_BITS] = {{0},           KIND(1, 1, 0), KIND(1, 1, 1),
                                                                   KIND(2, 2, 0), KIND(2, 2, 1), KIND(4, 4, 0),
                                                                   KIND(4, 4, 1), KIND(2, 4, 0), KIND(2, 4, 1),
                                                                   KIND(5, 5, 0), KIND(5, 5, 1)};
const uint8_t blind_lanes[2 * BLIND_NIBBLES] = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
                                                0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};

// Facts about the narrow bits of a segment.
struct has {
  uint8_t low;              // the lowest; 0xFF: there is none
  uint8_t most;             // places: the highest one
  bool b0, b1, b2, b3, b4;  // such bits within a byte
};

static uint32_t kind_of(const struct has *h) {
  if (h->b1) return 0;
  if (h->b3 || (h->b2 && h->b4)) return 1;
  return h->b4 ? 2 : h->b2 ? 3 : 4;
}

// How many bits of the kind come before a narrow bit that it has.
static inline uint32_t place_of(const struct kind *k, uint32_t lead, uint32_t d) {
  const uint32_t b = d & 15;
  return (d >> 4) * (k->per_byte + lead) + (b == 0 ? 0 : (b > k->from ? b - k->from : 0) + lead);
}

// The entries that have a bit, and those of them with SAME, are bytes of all ones in `used` and `same`.
#if defined(SET32_SSE2)
struct bytes {
  __m128i v[2];
};

static inline bool any(const struct bytes *b, uint8_t value) {
  const __m128i v = _mm_set1_epi8((char)value);
  return _mm_movemask_epi8(_mm_or_si128(_mm_cmpeq_epi8(b->v[0], v), _mm_cmpeq_epi8(b->v[1], v))) != 0;
}

static inline uint8_t least(__m128i v) {
  v = _mm_min_epu8(v, _mm_srli_si128(v, 8));
  v = _mm_min_epu8(v, _mm_srli_si128(v, 4));
  v = _mm_min_epu8(v, _mm_srli_si128(v, 2));
  return (uint8_t)_mm_cvtsi128_si32(_mm_min_epu8(v, _mm_srli_si128(v, 1)));
}

static inline uint8_t greatest(__m128i v) {
  v = _mm_max_epu8(v, _mm_srli_si128(v, 8));
  v = _mm_max_epu8(v, _mm_srli_si128(v, 4));
  v = _mm_max_epu8(v, _mm_srli_si128(v, 2));
  return (uint8_t)_mm_cvtsi128_si32(_mm_max_epu8(v, _mm_srli_si128(v, 1)));
}

struct work {
  struct bytes d, none, used, at;
};

static inline void work_begin(struct work *w, const uint8_t *narrow, uint32_t nr, struct has *h) {
  const __m128i iota = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), ones = _mm_set1_epi8(-1);
  const __m128i end = _mm_set1_epi8((char)nr);
  struct bytes b;
  for (int i = 0; i < 2; i++) {
    const __m128i number = _mm_add_epi8(iota, _mm_set1_epi8((char)(16 * i)));
    w->d.v[i] = _mm_loadu_si128((const __m128i *)(narrow + 16 * i));
    w->used.v[i] = _mm_andnot_si128(_mm_cmpeq_epi8(number, _mm_setzero_si128()), _mm_cmpgt_epi8(end, number));
    w->none.v[i] = _mm_or_si128(_mm_andnot_si128(w->used.v[i], ones), _mm_cmpeq_epi8(w->d.v[i], ones));
    b.v[i] = _mm_or_si128(_mm_and_si128(w->d.v[i], _mm_set1_epi8(15)), w->none.v[i]);
  }
  h->low = least(_mm_min_epu8(_mm_or_si128(w->d.v[0], w->none.v[0]), _mm_or_si128(w->d.v[1], w->none.v[1])));
  h->b0 = any(&b, 0);
  h->b1 = any(&b, 1);
  h->b2 = any(&b, 2);
  h->b3 = any(&b, 3);
  h->b4 = any(&b, 4);
}

// Finds the places; those of entries without a bit are 0.
static inline void work_places(struct work *w, const struct kind *k, uint32_t lead, uint32_t before, struct has *h) {
  const __m128i low = _mm_set1_epi8(15), each = _mm_set1_epi16((short)(k->per_byte + lead));
  const __m128i from = _mm_set1_epi8((char)k->from), more = _mm_set1_epi8((char)lead);
  for (int i = 0; i < 2; i++) {
    const __m128i byte = _mm_and_si128(_mm_srli_epi16(w->d.v[i], 4), low), b = _mm_and_si128(w->d.v[i], low);
    const __m128i in = _mm_add_epi8(_mm_subs_epu8(b, from),
                                    _mm_andnot_si128(_mm_cmpeq_epi8(b, _mm_setzero_si128()), more));
    // no product of a byte passes 8 bits, so one product of both bytes of a lane does
    const __m128i at = _mm_sub_epi8(_mm_add_epi8(_mm_mullo_epi16(byte, each), in), _mm_set1_epi8((char)before));
    w->at.v[i] = _mm_andnot_si128(w->none.v[i], at);
  }
  h->most = greatest(_mm_max_epu8(w->at.v[0], w->at.v[1]));
}

static uint64_t work_set(const struct work *w) {
  uint8_t at[32];
  uint64_t set = 0;
  for (int i = 0; i < 2; i++) _mm_storeu_si128((__m128i *)(at + 16 * i), w->at.v[i]);
  for (uint32_t i = 0; i < 32; i++) set |= 1ull << (at[i] & 63);
  return set;
}

static inline void work_end(const struct work *w, uint32_t from, uint32_t gap, uint8_t *to) {
  __m128i n[2];
  for (int i = 0; i < 2; i++) {
    const __m128i over = _mm_cmpgt_epi8(w->at.v[i], _mm_set1_epi8((char)(from - 1)));
    const __m128i at = _mm_sub_epi8(w->at.v[i], _mm_and_si128(over, _mm_set1_epi8((char)gap)));
    n[i] = _mm_or_si128(at, _mm_and_si128(_mm_and_si128(w->used.v[i], w->none.v[i]), _mm_set1_epi8(15)));
  }
  _mm_storeu_si128((__m128i *)to, _mm_or_si128(n[0], _mm_slli_epi16(n[1], 4)));
}
#else
struct work {
  const uint8_t *d;
  uint32_t nr;
  uint8_t at[32];
};

static inline bool work_has(const struct work *w, uint32_t i) {
  return i > 0 && i < w->nr && w->d[i] != BLIND_SAME_NARROW;
}

static inline void work_begin(struct work *w, const uint8_t *narrow, uint32_t nr, struct has *h) {
  bool bits[16] = {false};
  w->d = narrow;
  w->nr = nr;
  h->low = 0xFF;
  for (uint32_t i = 0; i < 32; i++) {
    if (!work_has(w, i)) continue;
    if (narrow[i] < h->low) h->low = narrow[i];
    bits[narrow[i] & 15] = true;
  }
  h->b0 = bits[0];
  h->b1 = bits[1];
  h->b2 = bits[2];
  h->b3 = bits[3];
  h->b4 = bits[4];
}

static inline void work_places(struct work *w, const struct kind *k, uint32_t lead, uint32_t before, struct has *h) {
  h->most = 0;
  for (uint32_t i = 0; i < 32; i++) {
    w->at[i] = work_has(w, i) ? (uint8_t)(place_of(k, lead, w->d[i]) - before) : 0;
    if (w->at[i] > h->most) h->most = w->at[i];
  }
}

static uint64_t work_set(const struct work *w) {
  uint64_t set = 0;
  for (uint32_t i = 0; i < 32; i++) set |= 1ull << (w->at[i] & 63);
  return set;
}

static inline void work_end(const struct work *w, uint32_t from, uint32_t gap, uint8_t *to) {
  uint8_t n[32];
  for (uint32_t i = 0; i < 32; i++) {
    const bool same = i > 0 && i < w->nr && w->d[i] == BLIND_SAME_NARROW;
    n[i] = same ? BLIND_SAME_NIBBLE : (uint8_t)(w->at[i] - (w->at[i] >= from ? gap : 0));
  }
  set32_join(n, to);
}
#endif

uint32_t blind_nibbles(const uint8_t *narrow, uint32_t nr, uint8_t *to) {
  struct work w;
  struct has h;
  work_begin(&w, narrow, nr, &h);
  const uint32_t kind = kind_of(&h), lead = h.b0, low = h.low == 0xFF ? kinds[kind].first : h.low;
  if (unlikely(low > 15)) return 0;
  const uint32_t before = place_of(&kinds[kind], lead, low);
  uint32_t from = BLIND_SAME_NIBBLE, gap = 0;
  work_places(&w, &kinds[kind], lead, before, &h);
  if (h.most >= BLIND_SAME_NIBBLE) {
    gap = h.most - (BLIND_SAME_NIBBLE - 1);
    if (gap > BLIND_GAP_MAX) return 0;
    uint64_t free = ~work_set(&w) & ((1ull << h.most) - 1);  // where so many places are not used
    for (uint32_t i = 1; i < gap; i++) free &= free >> 1;
    if (!free) return 0;
    from = (uint32_t)__builtin_ctzll(free);
  }
  work_end(&w, from, gap, to);
  return blind_table_make(1 + 2 * kind + lead, before, from, gap);
}

bool blind_densify(const uint8_t *wide, uint8_t *to) {
  if ((set32_lt16(wide, BLIND_DENSE_BYTES << 4) | set32_eq16(wide, BLIND_SAME)) != UINT32_MAX) return false;
  for (uint32_t i = 0; i < 32; i++) {
    const uint32_t d = load16le(wide + 2 * i);
    to[i] = (uint8_t)(d == BLIND_SAME ? BLIND_SAME_NARROW : 9 * (d >> 4) + (d & 15));
  }
  return true;
}

uint32_t blind_less_other(struct blind b, uint32_t bit) {
  const uint32_t byte = bit >> 4, in = bit & 15;
  if (b.form == BLIND_IS_WIDE) return set32_lt16(b.bits, bit);
  return set32_lt8(b.bits, byte < BLIND_DENSE_BYTES ? 9 * byte + (in < 9 ? in : 9) : BLIND_SAME_NARROW);
}

// ---- the key's bits at dense bits. A bit's byte is found by a product: d * 57 >> 9 is d / 9 for a byte d. That of
// SAME is the first one behind BLIND_DENSE_BYTES; in its place the key has a 0.

#if defined(SET32_SSE2)
BLIND_SSSE3 uint32_t dense_ssse3(const uint8_t *dense, uint32_t base, struct kref key) {
  const __m128i weights = _mm_setr_epi8(0, (char)0x80, 0x40, 0x20, 0x10, 8, 4, 2, 1, 0, 0, 0, 0, 0, 0, 0);
  const __m128i part = _mm_set1_epi16(57), even = _mm_set1_epi16(0xFF), zero = _mm_setzero_si128();
  const uint32_t rest = key.len > base ? key.len - base : 0, behind = rest > 16 ? rest - 16 : 0;
  const __m128i first = blind_window(key, base, rest),
                second = _mm_and_si128(blind_window(key, base + 16, behind), _mm_setr_epi32(-1, -1, -1, 0));
  const __m128i end = _mm_set1_epi8((char)(rest < BLIND_DENSE_BYTES ? rest : BLIND_DENSE_BYTES));
  uint32_t bits = 0;
  for (uint32_t i = 0; i < 32; i += 16) {
    const __m128i d = _mm_loadu_si128((const __m128i *)(dense + i));
    const __m128i lo = _mm_srli_epi16(_mm_mullo_epi16(_mm_and_si128(d, even), part), 9),
                  hi = _mm_srli_epi16(_mm_mullo_epi16(_mm_srli_epi16(d, 8), part), 9);
    const __m128i byte = _mm_or_si128(lo, _mm_slli_epi16(hi, 8));
    const __m128i b = _mm_sub_epi8(d, _mm_add_epi8(byte, _mm_slli_epi16(byte, 3)));  // 8 * byte passes no lane's byte
    // each shuffle gives 0 for the bytes of the other one
    const __m128i v = _mm_or_si128(_mm_shuffle_epi8(first, _mm_add_epi8(byte, _mm_set1_epi8(0x70))),
                                   _mm_shuffle_epi8(second, _mm_sub_epi8(byte, _mm_set1_epi8(16))));
    const __m128i clear = _mm_cmpeq_epi8(_mm_and_si128(v, _mm_shuffle_epi8(weights, b)), zero);
    const __m128i in = _mm_and_si128(_mm_cmpeq_epi8(b, zero), _mm_cmpgt_epi8(end, byte));
    bits |= (((uint32_t)_mm_movemask_epi8(clear) ^ 0xFFFF) | (uint32_t)_mm_movemask_epi8(in)) << i;
  }
  return bits;
}
#endif

#if defined(SET32_NEON)
static uint32_t dense_neon(const uint8_t *dense, uint32_t base, struct kref key) {
  static const uint8_t weights[16] = {0, 0x80, 0x40, 0x20, 0x10, 8, 4, 2, 1};
  const uint32_t rest = key.len > base ? key.len - base : 0, n = rest < BLIND_DENSE_BYTES ? rest : BLIND_DENSE_BYTES;
  uint8_t bytes[32] = {0};
  if (n) memcpy(bytes, key.ptr + base, n);
  const uint8x16x2_t window = {{vld1q_u8(bytes), vld1q_u8(bytes + 16)}};
  const uint8x16_t weight = vld1q_u8(weights), end = vdupq_n_u8((uint8_t)n);
  const uint8x8_t part = vdup_n_u8(57);
  uint32_t bits = 0;
  for (uint32_t i = 0; i < 32; i += 16) {
    const uint8x16_t d = vld1q_u8(dense + i);
    const uint8x16_t half = vcombine_u8(vshrn_n_u16(vmull_u8(vget_low_u8(d), part), 8),
                                        vshrn_n_u16(vmull_u8(vget_high_u8(d), part), 8));
    const uint8x16_t byte = vshrq_n_u8(half, 1), b = vsubq_u8(d, vmulq_u8(byte, vdupq_n_u8(9)));
    const uint8x16_t set = vtstq_u8(vqtbl2q_u8(window, byte), vqtbl1q_u8(weight, b));
    const uint8x16_t in = vandq_u8(vceqzq_u8(b), vcltq_u8(byte, end));
    bits |= set32_neon_bits(vorrq_u8(set, in)) << i;
  }
  return bits;
}
#endif

uint32_t blind_bits_dense(struct blind dbits, uint32_t base, struct kref key) {
#if defined(SET32_SSE2)
  if (__builtin_cpu_supports("ssse3")) return dense_ssse3(dbits.bits, base, key);
#elif defined(SET32_NEON)
  return dense_neon(dbits.bits, base, key);
#endif
  return blind_bits_plain(dbits, base, key);
}
