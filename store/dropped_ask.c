// SPDX-License-Identifier: Apache-2.0
#include "store/dropped_ask.h"

void dropped_ask(struct xdb *x) {
  struct err_saved was;  // without workers the round runs here, and its failure is not the caller's
  err_save(&was, REMIXDB_OK);
  atomic_store_explicit(&x->dropped.asked, true, memory_order_relaxed);
  workers_kick(x->workers);
  err_restore(&was);
}

uint64_t dropped_look(struct xdb *x) {
  uint64_t at = atomic_load_explicit(&x->dropped.again_ns, memory_order_relaxed);
  if (likely(at == 0)) return 0;
  const uint64_t now = time_ns();
  if (now < at) return at - now;  // another request came first
  if (atomic_compare_exchange_strong_explicit(&x->dropped.again_ns, &at, 0, memory_order_relaxed, memory_order_relaxed))
    dropped_ask(x);
  return 0;
}
