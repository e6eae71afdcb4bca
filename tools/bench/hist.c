// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/hist.h"

#include <math.h>

void bench_hist_merge(struct bench_hist *to, const struct bench_hist *from) {
  for (uint32_t i = 0; i < BENCH_HIST_BUCKETS; i++) to->bucket[i] += from->bucket[i];
  to->count += from->count;
  if (from->max > to->max) to->max = from->max;
}

static uint64_t bucket_end(uint32_t b) {
  if (b < (2u << BENCH_HIST_BITS)) return b;
  const uint32_t shift = (b >> BENCH_HIST_BITS) - 1;
  const uint64_t top = b - (shift << BENCH_HIST_BITS);
  return ((top + 1) << shift) - 1;
}

uint64_t bench_hist_percentile(const struct bench_hist *h, double part) {
  if (!h->count) return 0;
  uint64_t rank = (uint64_t)ceil(part * (double)h->count);
  if (rank < 1) rank = 1;
  if (rank > h->count) rank = h->count;
  uint64_t seen = 0;
  for (uint32_t i = 0; i < BENCH_HIST_BUCKETS; i++) {
    seen += h->bucket[i];
    if (seen >= rank) return bucket_end(i) < h->max ? bucket_end(i) : h->max;
  }
  return h->max;
}
