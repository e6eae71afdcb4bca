// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/key.h"

#include <math.h>
#include <stdlib.h>

#define POOL_PIECE 100u  // bytes; the first half of each is random, the second half repeats it

static uint64_t chain_size(const struct bench_keys *k) { return (k->key_size - 16) / 3; }

static uint32_t mean_nested(const struct bench_keys *k) {
  const uint64_t chain = chain_size(k), whole = k->num / chain, rest = k->num % chain;
  const double steps = (double)whole * (double)chain * (double)(chain - 1) / 2 + (double)rest * ((double)rest - 1) / 2;
  return 17 + (uint32_t)(3 * steps / (double)k->num);
}

bool bench_keys_init(struct bench_keys *k, uint64_t num, uint32_t key_size, uint32_t value_size, enum bench_shape shape,
                     uint64_t seed) {
  const size_t size = BENCH_POOL + (key_size > value_size ? key_size : value_size);
  *k = (struct bench_keys){.num = num,
                           .band = UINT64_MAX / num / 3,
                           .seed = bench_mix(seed),
                           .key_size = key_size,
                           .mean_size = key_size,
                           .value_size = value_size,
                           .shape = shape};
  if (!(k->pool = malloc(size))) return false;
  if (shape == BENCH_NESTED) k->mean_size = mean_nested(k);
  uint64_t random = seed;
  for (size_t i = 0; i < size; i++) {
    const size_t at = i % POOL_PIECE;
    k->pool[i] = at < POOL_PIECE / 2 ? (uint8_t)(' ' + bench_random_below(&random, 95)) : k->pool[i - POOL_PIECE / 2];
  }
  return true;
}

void bench_keys_fini(struct bench_keys *k) {
  free(k->pool);
  k->pool = NULL;
}

// A chain has a key of each third length; the two after it are those of the other bands.
static uint32_t key_nested(const struct bench_keys *k, uint64_t i, enum bench_band band, uint8_t *out) {
  const uint64_t chain = chain_size(k);
  const uint32_t rest = (uint32_t)(i % chain) * 3 + band + 1;
  bench_hex16(out, i / chain);
  memcpy(out + 16, k->pool, rest);
  return rest + 16;
}

uint32_t bench_key_shaped(const struct bench_keys *k, uint64_t i, enum bench_band band, uint8_t *out) {
  if (k->shape == BENCH_NESTED) return key_nested(k, i, band, out);
  const uint64_t number = bench_number(k, i, band);
  bench_hex16(out, number);
  if (k->shape == BENCH_LONG) {
    memcpy(out + 16, k->pool + bench_mix(number) % BENCH_POOL, k->key_size - 16);
  } else {
    memcpy(out + 1, k->pool, k->key_size - 17);
    bench_hex16(out + k->key_size - 16, number);
  }
  return k->key_size;
}

void bench_perm_init(struct bench_perm *p, uint64_t n, uint64_t seed) {
  *p = (struct bench_perm){.n = n, .seed = bench_mix(seed), .half = 1};
  while ((1ull << (2 * p->half)) < n) p->half++;
}

// The sum of i^-theta for i = 1 to n: term by term at first, then by the Euler-Maclaurin formula (its next term is
// below 1e-13).
static double zeta(uint64_t n, double theta) {
  const uint64_t first = n < 10000 ? n : 10000;
  double sum = 0;
  for (uint64_t i = first; i; i--) sum += pow((double)i, -theta);
  if (n == first) return sum;
  const double a = (double)first, b = (double)n;
  sum += (pow(b, 1 - theta) - pow(a, 1 - theta)) / (1 - theta);
  sum += (pow(b, -theta) - pow(a, -theta)) / 2;
  return sum - theta * (pow(b, -theta - 1) - pow(a, -theta - 1)) / 12;
}

static void zipf_set(struct bench_zipf *z) {
  z->eta = (1 - pow(2.0 / (double)z->n, 1 - z->theta)) / (1 - z->zeta_2 / z->zeta_n);
}

void bench_zipf_init(struct bench_zipf *z, uint64_t n, double theta) {
  *z = (struct bench_zipf){.n = n, .theta = theta, .alpha = 1 / (1 - theta), .half = 1 + pow(0.5, theta)};
  z->zeta_n = zeta(n, theta);
  z->zeta_2 = zeta(2, theta);
  zipf_set(z);
}

void bench_zipf_grow(struct bench_zipf *z) {
  z->n++;
  z->zeta_n += pow((double)z->n, -z->theta);
  zipf_set(z);
}

uint64_t bench_zipf_draw(const struct bench_zipf *z, uint64_t *random) {
  const double u = bench_random_unit(random), uz = u * z->zeta_n;
  if (uz < 1 || z->n < 2) return 0;
  if (uz < z->half || z->n < 3) return 1;
  const uint64_t rank = (uint64_t)((double)z->n * pow(z->eta * u - z->eta + 1, z->alpha));
  return rank < z->n ? rank : z->n - 1;
}
