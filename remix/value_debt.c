// SPDX-License-Identifier: Apache-2.0
#include "remix/value_debt.h"

#include "remix/paged.h"

// Makes the sums, unless another thread does. Returns NULL without memory.
static struct remix_value_debt *debt_make(struct remix *x) {
  struct remix_value_debt *const fresh = mem_calloc(1, sizeof(*fresh)), *none = NULL;
  // release: whoever finds them sees the zeros
  if (!fresh ||
      atomic_compare_exchange_strong_explicit(&x->values, &none, fresh, memory_order_release, memory_order_acquire))
    return fresh;
  mem_free(fresh);
  return none;
}

void remix_add_value_debt(struct remix *x, uint32_t page, uint32_t seg, uint64_t bytes) {
  uint64_t at = seg, nr = x->nr_segs;
  if (x->of) {
    x = x->of;
    at += remix_page_segment(x, page);
    nr = remix_page_segment(x, remix_pages(x));
  }
  struct remix_value_debt *d = remix_value_debt(x);
  if (!d && !(d = debt_make(x))) return;
  _Atomic uint64_t *const span = &d->spans[remix_span(at, nr)];
  const uint64_t sum = atomic_fetch_add_explicit(span, bytes, memory_order_relaxed) + bytes;
  if (x->watch && sum >= atomic_load_explicit(&d->due, memory_order_relaxed)) x->watch->due(x->watch->arg, x);
}

void remix_take_value_debt(struct remix *to, const struct remix *from, uint64_t but) {
  const struct remix_value_debt *const old = remix_value_debt(from);
  struct remix_value_debt *const d = old ? debt_make(to) : NULL;
  for (uint32_t i = 0; d && i < REMIX_SPANS; i++) {
    if (but >> i & 1) continue;
    const uint64_t bytes = atomic_load_explicit(&old->spans[i], memory_order_relaxed);
    atomic_store_explicit(&d->spans[i], bytes, memory_order_relaxed);
  }
}
