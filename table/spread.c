// SPDX-License-Identifier: Apache-2.0
#include "table/spread.h"

#include <stdlib.h>

static int earlier_first(const void *a, const void *b) {
  const struct spread_sample *x = a, *y = b;
  return (x->ms > y->ms) - (x->ms < y->ms);
}

static void sort(struct spread_build *b) { qsort(b->samples, b->used, sizeof(b->samples[0]), earlier_first); }

// Makes one of every two neighbours.
static void thin(struct spread_build *b) {
  sort(b);
  for (uint32_t i = 0; i < SPREAD_SAMPLES / 2; i++) {
    const struct spread_sample *const two = &b->samples[2 * i];
    b->samples[i] = (struct spread_sample){two[1].ms, two[0].bytes + two[1].bytes};
  }
  b->used = SPREAD_SAMPLES / 2;
}

void spread_add(struct spread_build *b, uint64_t ms, uint64_t bytes) {
  if (b->used == SPREAD_SAMPLES) thin(b);
  b->samples[b->used++] = (struct spread_sample){ms, bytes};
  if (b->nr == 0 || ms < b->first) b->first = ms;
  if (ms > b->last) b->last = ms;
  b->nr++;
  b->bytes += bytes;
}

void spread_end(struct spread_build *b, struct spread *out) {
  *out = (struct spread){.nr = b->nr, .bytes = b->bytes};
  if (b->nr == 0) return;
  sort(b);
  uint64_t sum = 0;
  uint32_t point = 1;
  for (uint32_t i = 0; i < b->used; i++) {
    sum += b->samples[i].bytes;
    for (; point < SPREAD_POINTS - 1 && sum >= b->bytes / 4 * point; point++) out->at[point] = b->samples[i].ms;
  }
  out->at[0] = b->first;
  out->at[SPREAD_POINTS - 1] = b->last;
}

bool spread_valid(const struct spread *s) {
  if (s->nr == 0) return s->bytes == 0 && s->at[SPREAD_POINTS - 1] == 0;
  bool valid = s->bytes > 0 && s->at[0] > 0;
  for (uint32_t i = 1; i < SPREAD_POINTS; i++) valid = valid && s->at[i - 1] <= s->at[i];
  return valid;
}

uint64_t spread_expired(const struct spread *s, uint64_t ms) {
  if (s->nr == 0 || ms < s->at[0]) return 0;
  if (ms >= s->at[SPREAD_POINTS - 1]) return s->bytes;
  uint32_t i = 0;
  while (ms >= s->at[i + 1]) i++;
  const uint64_t from = s->at[i], to = s->at[i + 1];
  const double share = (double)i + (double)(ms - from) / (double)(to - from);
  return (uint64_t)((double)s->bytes * share / (SPREAD_POINTS - 1));
}
