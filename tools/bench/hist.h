// SPDX-License-Identifier: Apache-2.0
//
// A histogram of durations: 64 buckets for every power of two, so that a percentile is told too high by less than 1/64.
#ifndef BENCH_HIST_H
#define BENCH_HIST_H

#include <stdint.h>

#define BENCH_HIST_BITS 6
#define BENCH_HIST_BUCKETS ((65 - BENCH_HIST_BITS) << BENCH_HIST_BITS)

// Zeroed is empty. One thread at a time.
struct bench_hist {
  uint64_t count, max;
  uint64_t bucket[BENCH_HIST_BUCKETS];
};

// Values below 64 have buckets of their own; above, the bucket is the power of two and the next 6 bits.
static inline uint32_t bench_hist_bucket(uint64_t v) {
  if (v < (1u << BENCH_HIST_BITS)) return (uint32_t)v;
  const uint32_t shift = 63u - (uint32_t)__builtin_clzll(v) - BENCH_HIST_BITS;
  return (shift << BENCH_HIST_BITS) + (uint32_t)(v >> shift);
}

static inline void bench_hist_add(struct bench_hist *h, uint64_t v) {
  h->bucket[bench_hist_bucket(v)]++;
  h->count++;
  if (v > h->max) h->max = v;
}

void bench_hist_merge(struct bench_hist *to, const struct bench_hist *from);
// The value that `part` (0 to 1) of all are at or below: the upper end of its bucket, at most the maximum. 0 when
// empty.
uint64_t bench_hist_percentile(const struct bench_hist *h, double part);

#endif
