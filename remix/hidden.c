// SPDX-License-Identifier: Apache-2.0
//
// How many entries of each run are hidden.
#include "remix/remix.h"

const uint32_t *remix_hidden(struct remix *x) {
  // acquire: pairs with the publication below
  uint32_t *there = atomic_load_explicit(&x->hidden, memory_order_acquire);
  if (there) return there;
  uint32_t *const counts = mem_calloc(x->nr_runs ? x->nr_runs : 1, sizeof(*counts));
  if (!counts) return NULL;
  struct remix_walk w;
  for (remix_walk_init(&w, x); remix_walk_valid(&w); remix_walk_next(&w)) {
    const uint8_t sel = w.sel[w.at];
    counts[sel & REMIX_RUN] += (sel & REMIX_OLD) || (sel & REMIX_ERASED) == REMIX_ERASED;
  }
  if (atomic_compare_exchange_strong_explicit(&x->hidden, &there, counts, memory_order_acq_rel, memory_order_acquire))
    return counts;
  mem_free(counts);
  return there;
}
