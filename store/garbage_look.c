// SPDX-License-Identifier: Apache-2.0
#include "store/garbage_look.h"

#include "store/reserve.h"

void garbage_look_after(struct xdb *x, uint64_t ns) {
  atomic_store_explicit(&x->garbage_merges.look_ns, time_ns() + ns, memory_order_relaxed);
}

bool garbage_pending(const struct xdb *x) {
  return atomic_load_explicit(&x->garbage_merges.look_ns, memory_order_relaxed) ||
         atomic_load_explicit(&x->garbage_merges.due, memory_order_relaxed);
}

uint64_t garbage_look(struct xdb *x, struct epoch_slot *slot) {
  struct garbage_merges *const g = &x->garbage_merges;
  uint64_t at = atomic_load_explicit(&g->look_ns, memory_order_relaxed), next = 0;
  if (likely(at == 0)) return 0;
  const uint64_t now = time_ns(), written = atomic_load_explicit(&x->published, memory_order_relaxed);
  if (now < at) return at - now;
  bool due = false;
  if (written != atomic_load_explicit(&g->written, memory_order_relaxed)) {
    atomic_store_explicit(&g->written, written, memory_order_relaxed);
    next = now + atomic_load_explicit(&g->rest_ns, memory_order_relaxed);
  } else {
    (void)wal_cut_waiting(x->wal);
    atomic_store_explicit(&x->compact.beside, wal_room_most(x->wal) + reserve_for_tables(x), memory_order_relaxed);
    epoch_enter(&x->epoch, slot);
    due = compact_garbage_due(&x->compact, xdb_super(x)->version);
    epoch_exit(slot);
  }
  if (due) atomic_store_explicit(&g->due, true, memory_order_relaxed);
  // A version that was installed meanwhile has its own look.
  const bool mine = atomic_compare_exchange_strong_explicit(&g->look_ns, &at, next, memory_order_relaxed,
                                                            memory_order_relaxed);
  if (due) workers_kick(x->workers);
  return next && mine ? next - now : 0;
}
