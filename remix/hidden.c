// SPDX-License-Identifier: Apache-2.0
//
// How many entries of each run are hidden.
#include "remix/paged.h"
#include "remix/remix.h"

enum remixdb_status remix_hidden(struct remix *x, const uint32_t **out) {
  // acquire: pairs with the publication below
  uint32_t *there = atomic_load_explicit(&x->hidden, memory_order_acquire);
  *out = there;
  if (there) return REMIXDB_OK;
  uint32_t *const counts = mem_calloc(x->nr_runs ? x->nr_runs : 1, sizeof(*counts));
  struct remix *whole = NULL;
  const enum remixdb_status s = counts ? remix_whole(x, &whole) : REMIXDB_NOMEM;
  if (s != REMIXDB_OK) {
    mem_free(counts);
    return s;
  }
  struct remix_walk w;
  for (remix_walk_init(&w, whole); remix_walk_valid(&w); remix_walk_next(&w)) {
    const uint8_t sel = w.sel[w.at];
    counts[sel & REMIX_RUN] += (sel & REMIX_OLD) || (sel & REMIX_ERASED) == REMIX_ERASED;
  }
  remix_unref(whole);
  *out = counts;
  if (atomic_compare_exchange_strong_explicit(&x->hidden, &there, counts, memory_order_acq_rel, memory_order_acquire))
    return REMIXDB_OK;
  mem_free(counts);
  *out = there;
  return REMIXDB_OK;
}
