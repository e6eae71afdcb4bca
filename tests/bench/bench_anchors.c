// SPDX-License-Identifier: Apache-2.0
//
// Cost of finding a segment: an index of anchors alone, as it would be over so many entries.
//   bench_anchors [random|urls] [entries] [searches]
// random: keys of 16 random bytes. urls: many in each of many groups, which agree in far more than 8 bytes.
#include <stdio.h>
#include <stdlib.h>

#include "base/anchors.h"

#define SEGMENT 32u
#define URLS_OF_SITE 100000u

struct strings {
  uint8_t *offs, *bytes;
  size_t len, cap;
  uint32_t nr;
};

static void add(struct strings *s, struct kref key) {
  if (s->len + key.len >= s->cap) s->bytes = realloc(s->bytes, s->cap = 2 * s->cap + key.len + 4096);
  if (!s->bytes) exit(1);
  if (key.len) memcpy(s->bytes + s->len, key.ptr, key.len);
  store32le(s->offs + 4 * (size_t)s->nr++, (uint32_t)s->len);
  s->len += key.len;
}

static uint32_t url(uint64_t n, char *buf) {
  return (uint32_t)sprintf(buf, "https://www.site-%05u.example/library/section-%02u/item-%05u.html",
                           (unsigned)(n / URLS_OF_SITE), (unsigned)(n / 5000 % 20), (unsigned)(n % 5000));
}

static int by_number(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

// Adds random keys, cut to the bytes that tell a key from the one before it among so many entries.
static void add_random(struct strings *s, uint64_t entries, uint32_t nr) {
  uint32_t len = 1;
  for (uint64_t n = entries; n > 1; n /= 256) len++;
  uint64_t rng = 1, *v = malloc(nr * sizeof(*v)), before = 0;
  if (!v) exit(1);
  for (uint32_t i = 0; i < nr; i++) v[i] = rng_next(&rng) >> 8 * (8 - len);
  qsort(v, nr, sizeof(*v), by_number);
  for (uint32_t i = 0; i < nr; i++) {
    const uint64_t be = __builtin_bswap64(v[i] << 8 * (8 - len));
    if (v[i] != before) add(s, kref(&be, len));
    before = v[i];
  }
  free(v);
}

static void add_urls(struct strings *s, uint32_t nr) {
  char last[128], key[128];
  for (uint32_t i = 1; i <= nr; i++) {
    const uint32_t llen = url((uint64_t)i * SEGMENT - 1, last), klen = url((uint64_t)i * SEGMENT, key);
    add(s, kref(key, kv_lcp_from(kref(last, llen), kref(key, klen), 0) + 1));
  }
}

int main(int argc, char **argv) {
  const bool urls = argc > 1 && strcmp(argv[1], "urls") == 0;
  const uint64_t entries = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000000;
  const uint32_t searches = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 1000000;
  const uint32_t nr = (uint32_t)(entries / SEGMENT);
  struct strings s = {.offs = malloc(4 * ((size_t)nr + 2))};
  if (!s.offs) return 1;
  add(&s, kref("", 0));
  if (urls) add_urls(&s, nr);
  else add_random(&s, entries, nr);
  store32le(s.offs + 4 * (size_t)s.nr, (uint32_t)s.len);

  struct anchors a;
  if (anchors_init(&a, s.offs, s.bytes, s.nr) != REMIXDB_OK) return 1;
  char(*keys)[80] = malloc((size_t)searches * sizeof(*keys));
  uint8_t *lens = malloc(searches);
  if (!keys || !lens) return 1;
  uint64_t rng = 2, sum = 0;
  for (uint32_t i = 0; i < searches; i++) {
    if (urls) {
      char key[128];
      lens[i] = (uint8_t)url(rng_next(&rng) % entries, key);
      memcpy(keys[i], key, lens[i]);
    } else {
      store64le(keys[i], rng_next(&rng));
      store64le(keys[i] + 8, rng_next(&rng));
      lens[i] = 16;
    }
  }
  uint64_t best = UINT64_MAX;
  for (uint32_t round = 0; round < 5; round++) {
    const uint64_t began = time_ns();
    // each search waits for the one before, as it does in a program that uses its result
    for (uint32_t i = 0; i < searches; i++) sum += anchors_find(&a, kref(keys[i] + (sum >> 63), lens[i]));
    const uint64_t took = time_ns() - began;
    if (took < best) best = took;
  }
  printf("%s: %u anchors of %.1f bytes, %.1f bytes each beside them: %.1f ns a search (%llu)\n",
         urls ? "urls" : "random", s.nr, (double)s.len / s.nr, (double)anchors_memory(&a) / s.nr,
         (double)best / searches, (unsigned long long)sum);
  anchors_fini(&a);
  free(keys);
  free(lens);
  free(s.offs);
  free(s.bytes);
  return 0;
}
