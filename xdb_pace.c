// SPDX-License-Identifier: Apache-2.0
#include "xdb_pace.h"

#define PACE_NAP_MIN 50000u  // shorter naps cost more than they even out
#define PACE_NAP_MAX 5000000u

void xdb_pace_stalled(struct xdb *x, uint64_t ns) {
  atomic_fetch_add_explicit(&x->stall_ns, ns, memory_order_relaxed);
  uint64_t max = atomic_load_explicit(&x->stall_max_ns, memory_order_relaxed);
  while (ns > max && !atomic_compare_exchange_weak_explicit(&x->stall_max_ns, &max, ns, memory_order_relaxed, memory_order_relaxed)) {}
}

// Nanoseconds the round still needs, about.
static double round_remaining(struct xdb *x, uint64_t now) {
  const uint64_t began = atomic_load_explicit(&x->round_began_ns, memory_order_relaxed);
  const uint64_t elapsed = now > began ? now - began : 0;  // it may have begun since
  const uint64_t work = atomic_load_explicit(&x->compact.work, memory_order_relaxed);
  const uint64_t done = atomic_load_explicit(&x->compact.progress, memory_order_relaxed);
  if (work && done > work / 8) return done < work ? (double)elapsed * (double)(work - done) / (double)done : 0;
  // too early to tell: as long as the last one took
  const uint64_t last = atomic_load_explicit(&x->last_round_ns, memory_order_relaxed);
  return last > elapsed ? (double)(last - elapsed) : 0;
}

void xdb_pace_draw(struct xdb_ref *r) {
  struct xdb *x = r->xdb;
  const uint64_t quantum = r->debt;
  r->debt = 0;
  epoch_enter(&x->epoch, &r->slot);
  const size_t used = wh_memory(xdb_view(x)->active->wh);
  epoch_exit(&r->slot);
  if (used < x->memtable_limit / 8) return;
  const uint64_t now = time_ns();
  const uint64_t room = used < x->memtable_limit ? x->memtable_limit - used : 1;
  const double share = round_remaining(x, now) * (double)quantum / (double)room;
  const uint64_t interval = share < PACE_NAP_MAX ? (uint64_t)share : PACE_NAP_MAX;
  uint64_t at = atomic_load_explicit(&x->pace_at_ns, memory_order_relaxed), mine;
  do {
    // nobody waits longer than the longest nap, so a clock further ahead, of many writers, would only slow the rounds to come
    mine = at <= now ? now : at - now < PACE_NAP_MAX ? at : now + PACE_NAP_MAX;
  } while (!atomic_compare_exchange_weak_explicit(&x->pace_at_ns, &at, mine + interval, memory_order_relaxed, memory_order_relaxed));
  const uint64_t nap = mine - now;
  if (nap < PACE_NAP_MIN) return;
  time_sleep_ns(nap);
  xdb_pace_stalled(x, nap);
}
