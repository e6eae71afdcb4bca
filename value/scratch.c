// SPDX-License-Identifier: Apache-2.0
#include "value/scratch.h"

#include "base/zmem.h"

static void scratch_free(struct value_scratch *x) {
  if (!x) return;
  (void)ZSTD_freeDCtx(x->zstd);
  mem_free(x->win);
  mem_free(x->chunk);
  mem_free(x);
}

void value_scratches_fini(struct value_scratches *s) {
  for (uint32_t i = 0; i < VALUE_SCRATCH; i++)
    scratch_free(atomic_exchange_explicit(&s->all[i], NULL, memory_order_acquire));
}

struct value_scratch *value_scratch_take(struct value_scratches *s) {
  for (uint32_t i = 0; i < VALUE_SCRATCH; i++) {
    struct value_scratch *const x = atomic_exchange_explicit(&s->all[i], NULL, memory_order_acquire);
    if (x) return x;
  }
  return mem_calloc(1, sizeof(struct value_scratch));
}

void value_scratch_give(struct value_scratches *s, struct value_scratch *x) {
  for (uint32_t i = 0; i < VALUE_SCRATCH; i++) {
    struct value_scratch *none = NULL;
    if (atomic_compare_exchange_strong_explicit(&s->all[i], &none, x, memory_order_release, memory_order_relaxed))
      return;
  }
  scratch_free(x);
}

enum remixdb_status value_scratch_reserve(struct value_scratch *x, size_t n) {
  if (n <= x->win_cap) return REMIXDB_OK;
  mem_free(x->win);
  x->win_cap = 0;
  if (!(x->win = mem_alloc(n))) return REMIXDB_NOMEM;
  x->win_cap = n;
  return REMIXDB_OK;
}
