// SPDX-License-Identifier: Apache-2.0
//
// Keys and values of the benchmark, the same for every engine.
//
// The 64-bit numbers are cut into `num` strips of equal width, one for each record; a key's number lies somewhere in
// its strip. So the order of records is the order of keys, and keys look random after their first digits. A strip has
// three bands: the record that is loaded, one that may be inserted later, and numbers that are never there.
//
// Keys of the shape "number" have key_size bytes. Those of 16 bytes and more are the number's 16 hex digits, then '0's;
// shorter ones (8 to 15 bytes) the number in big-endian bytes, then '0's. Long keys have other shapes:
//
// - long: the 16 hex digits, then text to key_size bytes.
// - prefix: the first hex digit, then the same text for all, then the 16 hex digits. So there are 16 prefixes of
//   key_size - 16 bytes.
// - nested: the 16 hex digits of a chain's number, then the first bytes of a text that all chains share. Each key of a
//   chain is a prefix of the next, and bands are lengths. The longest key has key_size bytes.
//
// A value is: version (8 bytes), body, check (8 bytes). The check is a function of the key and the version, the body a
// piece of a pool of bytes that compress to about a half, at a place the check tells. So every value says whether it is
// the one of its key, and cheaply.
#ifndef BENCH_KEY_H
#define BENCH_KEY_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define BENCH_KEY_MIN 8u
#define BENCH_KEY_MAX 60000u  // LMDB takes 511, and says so
#define BENCH_SHAPED_MIN 32u  // the shortest key_size of the other shapes
#define BENCH_VALUE_MIN 16u
#define BENCH_VALUE_MAX (4u << 20)
#define BENCH_POOL (64u << 10)

enum bench_shape { BENCH_NUMBER = 0, BENCH_LONG, BENCH_PREFIX, BENCH_NESTED };
enum bench_band { BENCH_LOADED = 0, BENCH_INSERTED = 1, BENCH_MISSING = 2 };

struct bench_keys {
  uint64_t num;
  uint64_t band;  // width of a band
  uint64_t seed;
  uint32_t key_size, value_size;
  uint32_t mean_size;  // mean of the keys of all records, bytes
  enum bench_shape shape;
  uint8_t *pool;  // BENCH_POOL + the larger of the sizes, bytes
};

// num, the sizes: within the limits above. False: no memory.
bool bench_keys_init(struct bench_keys *k, uint64_t num, uint32_t key_size, uint32_t value_size, enum bench_shape shape,
                     uint64_t seed);
void bench_keys_fini(struct bench_keys *k);

static inline uint64_t bench_mix(uint64_t z) {  // the finalizer of splitmix64: one to one
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

static inline uint64_t bench_random(uint64_t *state) { return bench_mix(*state += 0x9E3779B97F4A7C15ull); }
// A number below n.
static inline uint64_t bench_random_below(uint64_t *state, uint64_t n) {
  return (uint64_t)(((unsigned __int128)bench_random(state) * n) >> 64);
}
// In [0, 1).
static inline double bench_random_unit(uint64_t *state) { return (double)(bench_random(state) >> 11) * 0x1p-53; }

static inline uint64_t bench_load64(const void *p) {
  uint64_t v;
  memcpy(&v, p, 8);
  return v;
}

// The order of two keys, and memcpy of one: the work of a scan for each record. Most keys differ in their first 8
// bytes, and most have 16.
static inline int bench_key_cmp(const void *a, uint32_t alen, const void *b, uint32_t blen) {
  const uint64_t x = __builtin_bswap64(bench_load64(a)), y = __builtin_bswap64(bench_load64(b));
  if (__builtin_expect(x != y, 1)) return x < y ? -1 : 1;
  const int order = memcmp(a, b, alen < blen ? alen : blen);
  return order ? order : (alen > blen) - (alen < blen);
}
static inline void bench_key_copy(void *to, const void *key, uint32_t key_size) {
  memcpy(to, key, __builtin_expect(key_size == 16, 1) ? 16 : key_size);
}

static inline void bench_hex8(uint8_t *out,
                              uint32_t n) {  // 8 digits at once: a nibble in each byte, then the letters moved up
  uint64_t x = n;
  x = (x | x << 16) & 0x0000FFFF0000FFFFull;
  x = (x | x << 8) & 0x00FF00FF00FF00FFull;
  x = (x | x << 4) & 0x0F0F0F0F0F0F0F0Full;
  const uint64_t letters = ((x + 0x0606060606060606ull) >> 4) & 0x0101010101010101ull;
  x = __builtin_bswap64(x + 0x3030303030303030ull + letters * ('a' - '0' - 10));
  memcpy(out, &x, 8);
}

static inline uint64_t bench_number(const struct bench_keys *k, uint64_t i, enum bench_band band) {
  const uint64_t place = (uint64_t)(((unsigned __int128)bench_mix(i ^ k->seed) * k->band) >> 64);
  return (i * 3 + band) * k->band + place;
}
static inline void bench_hex16(uint8_t *out, uint64_t number) {
  bench_hex8(out, (uint32_t)(number >> 32));
  bench_hex8(out + 8, (uint32_t)number);
}

uint32_t bench_key_shaped(const struct bench_keys *k, uint64_t i, enum bench_band band, uint8_t *out);
// Writes up to key_size bytes; returns how many. i < num.
static inline uint32_t bench_key(const struct bench_keys *k, uint64_t i, enum bench_band band, uint8_t *out) {
  if (__builtin_expect(k->shape != BENCH_NUMBER, 0)) return bench_key_shaped(k, i, band, out);
  const uint64_t number = bench_number(k, i, band);
  if (k->key_size >= 16) {
    bench_hex16(out, number);
    if (k->key_size > 16) memset(out + 16, '0', k->key_size - 16);
  } else {
    const uint64_t be = __builtin_bswap64(number);
    memcpy(out, &be, 8);
    memset(out + 8, '0', k->key_size - 8);
  }
  return k->key_size;
}

static inline uint64_t bench_value_check(const struct bench_keys *k, const uint8_t *key, uint32_t klen,
                                         uint64_t version) {
  uint64_t low = k->key_size >= 16 ? bench_load64(key + 8) : 0;
  if (__builtin_expect(k->shape != BENCH_NUMBER, 0))
    low = bench_mix(low ^ klen) ^ bench_mix(bench_load64(key + klen - 16)) ^ bench_load64(key + klen - 8);
  return bench_mix(bench_load64(key) ^ low * 0x9E3779B97F4A7C15ull ^ version * 0xD6E8FEB86659FD93ull);
}

// Writes value_size bytes.
static inline void bench_value(const struct bench_keys *k, const uint8_t *key, uint32_t klen, uint64_t version,
                               uint8_t *out) {
  const uint64_t check = bench_value_check(k, key, klen, version);
  memcpy(out, &version, 8);
  memcpy(out + 8, k->pool + check % BENCH_POOL, k->value_size - 16);
  memcpy(out + k->value_size - 8, &check, 8);
}

// Whether it is a value of the key: length, check and, if `full`, body. *version_out is set when it is.
static inline bool bench_value_good(const struct bench_keys *k, const uint8_t *key, uint32_t klen, const uint8_t *value,
                                    uint32_t vlen, bool full, uint64_t *version_out) {
  if (vlen != k->value_size) return false;
  const uint64_t version = bench_load64(value), check = bench_load64(value + vlen - 8);
  *version_out = version;
  return check == bench_value_check(k, key, klen, version) &&
         (!full || !memcmp(value + 8, k->pool + check % BENCH_POOL, vlen - 16));
}

// ---- orders and distributions of record numbers

// The numbers 0 to n-1 in a random order: a Feistel network over the next even number of bits, walked until the result
// is below n.
struct bench_perm {
  uint64_t n, seed;
  uint32_t half;  // bits
};
void bench_perm_init(struct bench_perm *p, uint64_t n, uint64_t seed);
static inline uint64_t bench_perm_at(const struct bench_perm *p, uint64_t i) {  // i < n
  const uint64_t mask = (1ull << p->half) - 1;
  do {
    uint64_t l = i >> p->half, r = i & mask;
    for (uint64_t round = 0; round < 4; round++) {
      const uint64_t f = bench_mix(r + p->seed + (round << 56)) & mask;
      const uint64_t t = l ^ f;
      l = r;
      r = t;
    }
    i = l << p->half | r;
  } while (i >= p->n);
  return i;
}

// Ranks 0 to n-1 by Zipf's law with exponent theta < 1, rank 0 the most frequent: the method of Gray et al., "Quickly
// generating billion-record synthetic databases" (SIGMOD 1994), which YCSB uses.
struct bench_zipf {
  uint64_t n;
  double theta, alpha, zeta_n, zeta_2, eta, half;
};
void bench_zipf_init(struct bench_zipf *z, uint64_t n, double theta);
void bench_zipf_grow(struct bench_zipf *z);  // n + 1
uint64_t bench_zipf_draw(const struct bench_zipf *z, uint64_t *random);

#endif
