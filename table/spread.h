// SPDX-License-Identifier: Apache-2.0
//
// The spread of the times at which a table's records expire, weighted by the records' bytes: the first time, the
// quartiles and the last time. The builder gathers it, the footer states it, and compaction estimates by it how many
// bytes have expired.
#ifndef TABLE_SPREAD_H
#define TABLE_SPREAD_H

#include "lib.h"

#define SPREAD_POINTS 5u
struct spread {
  uint64_t nr, bytes;          // records that expire, and their bytes
  uint64_t at[SPREAD_POINTS];  // ms, ascending: the first time, the quartiles, the last time; 0 without such records
};

// Gathers times in memory of a fixed size. When that is full, neighbouring times become one, the later of the two.
#define SPREAD_SAMPLES 512u
struct spread_build {
  struct spread_sample {
    uint64_t ms, bytes;
  } samples[SPREAD_SAMPLES];
  uint32_t used;
  uint64_t nr, bytes, first, last;
};
static inline void spread_begin(struct spread_build *b) { *b = (struct spread_build){0}; }
void spread_add(struct spread_build *b, uint64_t ms, uint64_t bytes);
// Sorts the samples.
void spread_end(struct spread_build *b, struct spread *out);

// Tells whether the numbers fit together.
bool spread_valid(const struct spread *s);
// Estimates how many of the bytes have expired at this time. For times up to the first it is never too many, and from
// the last time on it is all.
uint64_t spread_expired(const struct spread *s, uint64_t ms);
#endif
