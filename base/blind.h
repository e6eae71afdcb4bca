// SPDX-License-Identifier: Apache-2.0
//
// Blind search: finds a key's place among up to 32 sorted keys with only their discriminating bits at hand (Ferguson,
// "Bit-Tree: a data structure for fast file processing", CACM 1992; the blind trie of Ferragina and Grossi, "The String
// B-tree", JACM 1999). The bits select one entry, the candidate. The search reads the candidate's key and finds the
// lowest bit in which this key differs from the searched key. That bit gives the place.
//
// remix/remix.h defines the bits, their positions, and the marks SAME and FAR. A search takes 32 discriminating bits,
// and uses the first nr of them. Their byte numbers count from `base`. None of them may be FAR.
#ifndef BLIND_H
#define BLIND_H

#include "kv.h"
#include "base/set32.h"

#define BLIND_SAME 0xFFFFu
#define BLIND_FAR 0xFFFEu
#define BLIND_BYTE_MAX 4094u  // the largest distance of a byte from the base that can be stored

// The discriminating bits of 32 entries: wide, as numbers of 16 bits; narrow or dense, as bytes; or as nibbles. The
// bits of a segment may be narrow if all lie in the 16 bytes from its base on: a narrow one is the low byte of the
// number, and SAME is 0xFF. They may be dense if all lie in the BLIND_DENSE_BYTES bytes from its base on: byte number n
// has the dense bits 9 * n + b, and SAME is 0xFF. A nibble is the place of a narrow bit in a table of 15 that ascend,
// and SAME is 15.
//
// A table has narrow bits that follow each other from the segment's lowest one on, except that it may leave out some in
// one place. Bits in which keys of a kind never differ do not count: the leading ones if no key ends, and in ASCII, in
// letters and in digits the highest ones.
enum blind_form { BLIND_IS_NARROW, BLIND_IS_DENSE, BLIND_IS_WIDE };
struct blind {
  const uint8_t *bits;
  uint8_t form;    // enum blind_form
  uint16_t table;  // for nibbles: their table (blind_table_make); else 0
};
#define BLIND_WIDE 64u           // bytes of 32 wide bits
#define BLIND_NARROW 32u         // bytes of 32 narrow or dense bits
#define BLIND_NIBBLES 16u        // bytes of 32 nibbles
#define BLIND_SAME_NARROW 0xFFu  // SAME as a narrow or a dense bit
#define BLIND_SAME_NIBBLE 15u
#define BLIND_DENSE_BYTES 28u
#define BLIND_KINDS 5u
#define BLIND_GAP_MAX 15u
#define BLIND_KIND_BITS 40u  // those of byte 0 before the lowest one, those of a table, those left out, one of 16 more
extern const uint8_t blind_kinds[2 * BLIND_KINDS + 1][BLIND_KIND_BITS];  // the narrow bits of each kind, which ascend
extern const uint8_t blind_lanes[2 * BLIND_NIBBLES];                     // half ones, half zeros

// The table with the bits that a kind (from 1 on) has from bit `low` on; after `from` bits it leaves out `gap` bits.
static inline uint32_t blind_table_make(uint32_t kind, uint32_t low, uint32_t from, uint32_t gap) {
  return kind | low << 4 | from << 8 | gap << 12;
}
static inline const uint8_t *blind_table_bits(uint32_t table) { return blind_kinds[table & 15] + (table >> 4 & 15); }
// The narrow bit whose place is n, n < 15.
static inline uint32_t blind_table_bit(uint32_t table, uint32_t n) {
  return blind_table_bits(table)[n + (n >= (table >> 8 & 15) ? table >> 12 : 0)];
}
#if defined(SET32_SSE2)
// All bits of the table, and SAME.
static inline __m128i blind_table_sse2(uint32_t table) {
  const uint8_t *const bits = blind_table_bits(table);
  const __m128i first = _mm_loadu_si128((const __m128i *)bits),
                second = _mm_loadu_si128((const __m128i *)(bits + (table >> 12))),
                lanes = _mm_loadu_si128((const __m128i *)(blind_lanes + BLIND_NIBBLES - (table >> 8 & 15)));
  return _mm_or_si128(_mm_or_si128(_mm_and_si128(lanes, first), _mm_andnot_si128(lanes, second)),
                      _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, (char)BLIND_SAME_NARROW));
}
#endif
// Makes nibbles of narrow bits; the first nr are used, and entry 0 has none. The lowest one must be in byte 0. Returns
// their table, or 0: no table has all of the bits.
uint32_t blind_nibbles(const uint8_t *narrow, uint32_t nr, uint8_t *to);
// Makes dense bits of wide ones: BLIND_NARROW bytes. Returns false if some bit is too far from the base.
bool blind_densify(const uint8_t *wide, uint8_t *to);

// The wide number of a dense bit.
static inline uint32_t blind_dense_wide(uint32_t dense) {
  return dense == BLIND_SAME_NARROW ? BLIND_SAME : dense / 9 << 4 | dense % 9;
}

// The discriminating bit of entry i, as a wide number.
static inline uint32_t blind_bit(struct blind b, uint32_t i) {
  if (likely(b.table)) {
    const uint32_t n = set32_nibble(b.bits, i);
    return n == BLIND_SAME_NIBBLE ? BLIND_SAME : blind_table_bit(b.table, n);
  }
  if (unlikely(b.form != BLIND_IS_NARROW))
    return b.form == BLIND_IS_DENSE ? blind_dense_wide(b.bits[i]) : load16le(b.bits + 2 * i);
  return b.bits[i] == BLIND_SAME_NARROW ? BLIND_SAME : b.bits[i];
}
// Makes wide bits of all 32: BLIND_WIDE bytes.
static inline void blind_widen(struct blind b, uint8_t *to) {
  uint8_t spread[32];
  uint16_t of[BLIND_NIBBLES];
  if (likely(b.table)) {
    for (uint32_t n = 0; n < BLIND_SAME_NIBBLE; n++) of[n] = blind_table_bit(b.table, n);
    of[BLIND_SAME_NIBBLE] = BLIND_SAME;
    set32_spread(b.bits, spread);
    for (uint32_t i = 0; i < 32; i++) store16le(to + 2 * i, of[spread[i]]);
  } else if (unlikely(b.form == BLIND_IS_WIDE)) {
    memcpy(to, b.bits, BLIND_WIDE);
  } else if (unlikely(b.form == BLIND_IS_DENSE)) {
    for (uint32_t i = 0; i < 32; i++) store16le(to + 2 * i, blind_dense_wide(b.bits[i]));
  } else {
    for (uint32_t i = 0; i < 32; i++) {
      to[2 * i] = b.bits[i];
      to[2 * i + 1] = b.bits[i] == BLIND_SAME_NARROW ? BLIND_SAME_NARROW : 0;
    }
  }
}
// How many bits of a table are less than the narrow bit.
static inline uint32_t blind_rank(uint32_t table, uint32_t bit) {
#if defined(SET32_SSE2)
  const __m128i t = blind_table_sse2(table);
  return set32_first((uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(t, _mm_set1_epi8((char)bit)), t)));
#else
  uint32_t n = 0;
  while (n < BLIND_SAME_NIBBLE && blind_table_bit(table, n) < bit) n++;
  return n;
#endif
}
uint32_t blind_less_other(struct blind b, uint32_t bit);  // private: blind_less for wide and dense bits
// The entries whose discriminating bit is less than `bit`, a wide number.
static inline uint32_t blind_less(struct blind b, uint32_t bit) {
  if (likely(b.table)) return set32_lt4(b.bits, blind_rank(b.table, bit < BLIND_SAME_NARROW ? bit : BLIND_SAME_NARROW));
  if (unlikely(b.form != BLIND_IS_NARROW)) return blind_less_other(b, bit);
  return set32_lt8(b.bits, bit < BLIND_SAME_NARROW ? bit : BLIND_SAME_NARROW);
}
// The entries whose discriminating bit is less than that of entry i.
static inline uint32_t blind_below(struct blind b, uint32_t i) {
  if (likely(b.table)) return set32_lt4(b.bits, set32_nibble(b.bits, i));
  return blind_less(b, blind_bit(b, i));
}
// The entries with SAME.
static inline uint32_t blind_same(struct blind b) {
  if (likely(b.table)) return set32_eq4(b.bits, BLIND_SAME_NIBBLE);
  return unlikely(b.form == BLIND_IS_WIDE) ? set32_eq16(b.bits, BLIND_SAME)
                                           : set32_eq8(b.bits, 0xFF, BLIND_SAME_NARROW);
}

// ---- the key's bits at the discriminating bits of all entries (0 at SAME). The code takes all 32 without a branch,
// because the processor would mispredict a branch on whether the search needs a bit.

static inline uint32_t blind_bits_plain(struct blind dbits, uint32_t base, struct kref key) {
  static const uint8_t none[1];
  const uint8_t *const p = key.len ? key.ptr : none;
  uint32_t bits = 0;
  for (uint32_t i = 0; i < 32; i++) {
    const uint32_t d = blind_bit(dbits, i), byte = base + (d >> 4);
    const bool in = byte < key.len;
    // a leading 1 and the byte are 9 bits; b counts from the highest. The b of a mark lies outside of them.
    const uint32_t v = (0x100u | p[in ? byte : 0]) & (in ? UINT32_MAX : 0);
    bits |= (v >> ((8 - (d & 15)) & 31) & 1) << i;
  }
  return bits;
}

// Tells whether all bits are, or may be, narrow, as for most keys. The vector versions below need it.
static inline bool blind_near(struct blind dbits) {
  if (likely(dbits.form == BLIND_IS_NARROW)) return true;
  return dbits.form == BLIND_IS_WIDE &&
         (set32_lt16(dbits.bits, 16 << 4) | ~set32_lt16(dbits.bits, BLIND_SAME)) == UINT32_MAX;
}

#if defined(SET32_SSE2)
#define BLIND_SSSE3 __attribute__((target("ssse3"), unused)) static inline

// Makes 16 wide bits narrow.
static inline __m128i blind_narrow16(const uint8_t *wide) {
  const __m128i low = _mm_set1_epi16(0xFF);
  return _mm_packus_epi16(_mm_and_si128(_mm_loadu_si128((const __m128i *)wide), low),
                          _mm_and_si128(_mm_loadu_si128((const __m128i *)(wide + 16)), low));
}

// 16 bytes of the key from `base` on, and 0 behind its end. rest: bytes that the key has there.
BLIND_SSSE3 __m128i blind_window(struct kref key, uint32_t base, uint32_t rest) {
  const __m128i iota = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  // 16 bytes of the key, from `skip` bytes before the base on, and no byte outside of the key. The shuffle gives 0
  // where it has no byte.
  __m128i window;
  uint32_t skip;
  if (rest >= 16) {
    window = _mm_loadu_si128((const __m128i *)(key.ptr + base));
    skip = 0;
  } else if (key.len >= 16) {
    window = _mm_loadu_si128((const __m128i *)(key.ptr + key.len - 16));
    skip = 16 - rest;
  } else {
    uint64_t lo = 0, hi = 0;
    if (key.len >= 8) {
      lo = load64le(key.ptr);
      if (key.len > 8) hi = load64le(key.ptr + key.len - 8) >> 8 * (16 - key.len);
    } else {
      for (uint32_t i = key.len; i > 0; i--) lo = lo << 8 | key.ptr[i - 1];
    }
    window = _mm_set_epi64x((long long)hi, (long long)lo);
    skip = base < 16 ? base : 16;
  }
  return _mm_shuffle_epi8(window, _mm_add_epi8(iota, _mm_set1_epi8((char)(0x70 + skip))));
}

// Looks up the bytes of 16 entries at once.
BLIND_SSSE3 uint32_t blind_bits_ssse3(struct blind dbits, uint32_t base, struct kref key) {
  const __m128i weights = _mm_setr_epi8(0, (char)0x80, 0x40, 0x20, 0x10, 8, 4, 2, 1, 0, 0, 0, 0, 0, 0, 0);
  const __m128i low = _mm_set1_epi8(15), zero = _mm_setzero_si128();
  const uint32_t rest = key.len > base ? key.len - base : 0;
  const __m128i window = blind_window(key, base, rest);
  const __m128i end = _mm_set1_epi8((char)(rest < 16 ? rest : 16));
  __m128i narrow[2];
  if (likely(dbits.table)) {
    const __m128i n = _mm_loadu_si128((const __m128i *)dbits.bits), table = blind_table_sse2(dbits.table);
    narrow[0] = _mm_shuffle_epi8(table, set32_low4(n));
    narrow[1] = _mm_shuffle_epi8(table, set32_high4(n));
  } else {
    for (uint32_t i = 0; i < 2; i++)
      narrow[i] = dbits.form == BLIND_IS_WIDE ? blind_narrow16(dbits.bits + 32 * i)
                                              : _mm_loadu_si128((const __m128i *)(dbits.bits + 16 * i));
  }
  uint32_t bits = 0;
  for (uint32_t i = 0; i < 32; i += 16) {
    const __m128i d = narrow[i / 16];
    const __m128i byte = _mm_and_si128(_mm_srli_epi16(d, 4), low), b = _mm_and_si128(d, low);
    const __m128i clear = _mm_cmpeq_epi8(_mm_and_si128(_mm_shuffle_epi8(window, byte), _mm_shuffle_epi8(weights, b)),
                                         zero);
    const __m128i in = _mm_and_si128(_mm_cmpeq_epi8(b, zero), _mm_cmpgt_epi8(end, byte));
    bits |= (((uint32_t)_mm_movemask_epi8(clear) ^ 0xFFFF) | (uint32_t)_mm_movemask_epi8(in)) << i;
  }
  return bits;
}
#endif

#if defined(SET32_NEON)
// Makes 16 wide bits narrow.
static inline uint8x16_t blind_narrow16(const uint8_t *wide) {
  return vcombine_u8(vmovn_u16(vreinterpretq_u16_u8(vld1q_u8(wide))),
                     vmovn_u16(vreinterpretq_u16_u8(vld1q_u8(wide + 16))));
}

static inline uint32_t blind_bits_neon(struct blind dbits, uint32_t base, struct kref key) {
  static const uint8_t weights[16] = {0, 0x80, 0x40, 0x20, 0x10, 8, 4, 2, 1};
  const uint32_t rest = key.len > base ? key.len - base : 0, n = rest < 16 ? rest : 16;
  uint8_t bytes[16] = {0};
  if (n == 16) memcpy(bytes, key.ptr + base, 16);
  else if (n) memcpy(bytes, key.ptr + base, n);
  uint8x16_t table = vdupq_n_u8(0);
  if (likely(dbits.table != 0)) {
    const uint8_t *const all = blind_table_bits(dbits.table);
    const uint8x16_t lanes = vld1q_u8(blind_lanes + BLIND_NIBBLES - (dbits.table >> 8 & 15));
    table = vsetq_lane_u8(BLIND_SAME_NARROW, vbslq_u8(lanes, vld1q_u8(all), vld1q_u8(all + (dbits.table >> 12))), 15);
  }
  const uint8x16_t window = vld1q_u8(bytes), weight = vld1q_u8(weights), end = vdupq_n_u8((uint8_t)n);
  uint32_t bits = 0;
  for (uint32_t i = 0; i < 32; i += 16) {
    uint8x16_t d;
    if (likely(dbits.table != 0)) {
      const uint8x16_t nibbles = vld1q_u8(dbits.bits);
      d = vqtbl1q_u8(table, i ? vshrq_n_u8(nibbles, 4) : vandq_u8(nibbles, vdupq_n_u8(15)));
    } else {
      d = dbits.form == BLIND_IS_WIDE ? blind_narrow16(dbits.bits + 2 * i) : vld1q_u8(dbits.bits + i);
    }
    const uint8x16_t byte = vshrq_n_u8(d, 4), b = vandq_u8(d, vdupq_n_u8(15));
    const uint8x16_t set = vtstq_u8(vqtbl1q_u8(window, byte), vqtbl1q_u8(weight, b));
    const uint8x16_t in = vandq_u8(vceqzq_u8(b), vcltq_u8(byte, end));
    bits |= set32_neon_bits(vorrq_u8(set, in)) << i;
  }
  return bits;
}
#endif

// The same for dense bits, with vector instructions if the processor has them.
uint32_t blind_bits_dense(struct blind dbits, uint32_t base, struct kref key);

static inline uint32_t blind_bits(struct blind dbits, uint32_t base, struct kref key) {
#if defined(SET32_SSE2)
  if (likely(__builtin_cpu_supports("ssse3") && blind_near(dbits))) return blind_bits_ssse3(dbits, base, key);
#elif defined(SET32_NEON)
  if (likely(blind_near(dbits))) return blind_bits_neon(dbits, base, key);
#endif
  if (dbits.form == BLIND_IS_DENSE) return blind_bits_dense(dbits, base, key);
  return blind_bits_plain(dbits, base, key);
}

// ---- the search

// Returns the candidate among the entries [from, nr): no other entry of the range shares more leading bits with the
// key. The range is not empty. It is all entries, or a subtree of the trie. In a subtree the key and all entries agree
// up to some bit, and the range ends before the next entry whose discriminating bit is at or before that bit.
static inline uint32_t blind_candidate_in(struct blind dbits, uint32_t from, uint32_t nr, uint32_t base,
                                          struct kref key) {
  const uint32_t zeros = ~blind_bits(dbits, base, key) & set32_below(nr);
  uint32_t cand = from, i = from + 1;
  for (;;) {
    // At an entry whose bit the key has as 1, that entry is the better candidate, and the search goes on to the next.
    const uint32_t m = zeros & set32_above(i - 1);
    const uint32_t zero = m ? set32_first(m) : nr;
    if (zero > i) cand = zero - 1;
    if (m == 0) return cand;
    // The key has a 0 here. All entries up to the next smaller bit have a 1, so the search leaps over them.
    const uint32_t less = blind_below(dbits, zero) & set32_above(zero) & set32_below(nr);
    if (less == 0) return cand;
    i = set32_first(less);
  }
}

// Returns the candidate among all entries. If the key is present, it is the key's newest version.
static inline uint32_t blind_candidate(struct blind dbits, uint32_t nr, uint32_t base, struct kref key) {
  return blind_candidate_in(dbits, 0, nr, base, key);
}

// Returns the lowest entry whose key is not less than `key`, or nr if there is none. found: the candidate's key.
static inline uint32_t blind_place(struct blind dbits, uint32_t nr, uint32_t base, struct kref key, uint32_t cand,
                                   struct kref found, bool *equal_out) {
  const uint32_t lcp = kv_lcp_from(key, found, 0);
  *equal_out = lcp == key.len && lcp == found.len;
  if (*equal_out) return cand;
  bool greater;  // the key is greater than the candidate's
  uint32_t b;    // the lowest bit in which the two keys differ
  if (lcp == key.len || lcp == found.len) {
    greater = lcp == found.len;
    b = 0;
  } else {
    greater = key.ptr[lcp] > found.ptr[lcp];
    b = (uint32_t)__builtin_clz((uint32_t)(key.ptr[lcp] ^ found.ptr[lcp])) - 23;
  }
  if (lcp < base) return greater ? nr : 0;  // the keys differ in bytes that all entries share
  // A bit too far to be stored counts as greater than every bit that can be stored, and as less than SAME.
  const uint32_t bit = lcp - base <= BLIND_BYTE_MAX ? (lcp - base) << 4 | b : BLIND_FAR;
  const uint32_t less = blind_less(dbits, bit);
  if (greater) {
    const uint32_t m = less & set32_above(cand) & set32_below(nr);
    return m ? set32_first(m) : nr;
  }
  const uint32_t m = less & ~set32_above(cand);
  return m ? set32_last(m) : 0;
}
#endif
