// SPDX-License-Identifier: Apache-2.0
#include "store/pace.h"

#include "store/freeze.h"
#include "store/idle.h"
#include "store/memory.h"

#define PACE_QUANTUM (16u << 10)  // bytes that a ref writes between two looks at the pace
#define PACE_QUANTUM_MIN 512u
#define PACE_NAP_MIN 50000u     // ns; a shorter nap costs more than it evens out
#define PACE_NAP_GOAL 2000000u  // ns; a few writes that take this are better than many that are a little slow
#define PACE_NAP_MAX 5000000u   // ns; the longest nap for one quantum, and the time between a nap's looks at the round
#define PACE_QUANTA_MAX 20u     // a batch of more quanta naps no longer
#define PACE_WORK_MIN 10000u    // a round with less work says nothing about the rate
#define PACE_BEFORE 4u          // earlier rounds count as 1/4 of this round's work
#define PACE_TAIL 16u           // the end of the first round takes 1/16 of its time

void xdb_pace_stalled(struct xdb *x, uint64_t ns) {
  atomic_fetch_add_explicit(&x->pace.stall_ns, ns, memory_order_relaxed);
  uint64_t max = atomic_load_explicit(&x->pace.stall_max_ns, memory_order_relaxed);
  while (ns > max && !atomic_compare_exchange_weak_explicit(&x->pace.stall_max_ns, &max, ns, memory_order_relaxed,
                                                            memory_order_relaxed)) {}
}

// Moves the mean half of the way to the new value.
static void learn(_Atomic uint64_t *mean, uint64_t seen) {
  const uint64_t was = atomic_load_explicit(mean, memory_order_relaxed);
  atomic_store_explicit(mean, was ? was / 2 + seen / 2 : seen, memory_order_relaxed);
}

// An end that took longer than the mean is expected again: writers that are too slow for it lose little, and one that
// is too fast stops.
static void learn_tail(struct xdb *x, uint64_t seen) {
  const uint64_t was = atomic_load_explicit(&x->pace.round_tail_ns, memory_order_relaxed);
  if (seen < was) learn(&x->pace.round_tail_ns, seen);
  else atomic_store_explicit(&x->pace.round_tail_ns, seen, memory_order_relaxed);
}

void xdb_pace_learn(struct xdb *x, uint64_t work, uint64_t ns, uint64_t tail_ns) {
  learn_tail(x, tail_ns < ns ? tail_ns : ns);  // a disk that hung once would slow writers down for rounds to come
  if (work >= PACE_WORK_MIN) learn(&x->pace.round_rate, (uint64_t)((double)work * 1e9 / (double)(ns + 1)) + 1);
}

// Estimates how many nanoseconds the round still needs. The rate is a mean of this round and earlier rounds. When a
// round begins, only earlier rounds are known. Later, the earlier rounds still count, because the end of a round is not
// always as fast as its beginning.
static double round_remaining(struct xdb *x, uint64_t now) {
  const uint64_t began = atomic_load_explicit(&x->pace.round_began_ns, memory_order_relaxed);
  const double elapsed = now > began ? (double)(now - began) : 0;  // it may have begun since
  const double work = (double)atomic_load_explicit(&x->compact.work, memory_order_relaxed);
  const double done = (double)atomic_load_explicit(&x->compact.progress, memory_order_relaxed);
  const double rate = (double)atomic_load_explicit(&x->pace.round_rate, memory_order_relaxed) * 1e-9;
  const double known = (double)atomic_load_explicit(&x->pace.round_tail_ns, memory_order_relaxed),
               tail = known > 0 ? known : elapsed / PACE_TAIL;
  if (work == 0) {  // unknown yet: assume as much as the last round
    const double last = (double)atomic_load_explicit(&x->pace.last_round_ns, memory_order_relaxed);
    return last - elapsed > tail ? last - elapsed : tail;
  }
  const double left = work > done ? work - done : 0, before = rate > 0 ? work / PACE_BEFORE : 0;
  const double units = done + before, ns = elapsed + (before > 0 ? before / rate : 0);
  return (units > 0 ? ns * left / units : 0) + tail;
}

// The longest nap for so many bytes (N1).
static uint64_t longest(uint64_t bytes) {
  const uint64_t quanta = bytes / PACE_QUANTUM;
  return PACE_NAP_MAX * (quanta < 1 ? 1 : quanta < PACE_QUANTA_MAX ? quanta : PACE_QUANTA_MAX);
}

// Sleeps, but not beyond the end of the round (N2).
static void nap_in_round(struct xdb *x, uint64_t now, uint64_t ns) {
  const uint64_t began = now, until = now + ns;
  do {
    time_sleep_ns(until - now < PACE_NAP_MAX ? until - now : PACE_NAP_MAX);
    now = time_ns();
  } while (now < until && atomic_load_explicit(&x->rounds.compacting, memory_order_relaxed));
  xdb_pace_stalled(x, now < until ? now - began : ns);
}

void xdb_pace_draw(struct xdb_ref *r) {
  struct xdb *x = r->xdb;
  const uint64_t quantum = r->debt;
  r->debt = 0;
  const bool compacting = atomic_load_explicit(
      &x->rounds.compacting, memory_order_relaxed);  // before: what is frozen meanwhile is not paced by
  size_t wanted;
  const size_t used = idle_memory(x, &r->slot, &wanted);
  r->debt_max = PACE_QUANTUM;
  if (memory_grows(x, used)) idle_grow(x);
  if (wal_ahead_pending(x->wal) || (wanted && arena_pool_short(&x->memtables.chunks, wanted))) idle_ask(x);
  const size_t limit = xdb_memtable_limit(x);
  if (!compacting) {
    // The next write would freeze the memtable, but there may be none.
    if (unlikely(used >= limit || wal_full(x->wal, 0, false))) xdb_freeze_full(x);
    return;
  }
  if (used < limit / 8) return;
  const uint64_t now = time_ns();
  const uint64_t room = used < limit ? limit - used : 1;
  const double share = round_remaining(x, now) * (double)quantum / (double)room;
  const double goal = share > 0 ? (double)quantum * PACE_NAP_GOAL / share : PACE_QUANTUM;
  r->debt_max = goal < PACE_QUANTUM_MIN ? PACE_QUANTUM_MIN : goal < PACE_QUANTUM ? (uint64_t)goal : PACE_QUANTUM;
  const uint64_t most = longest(quantum), interval = share < (double)most ? (uint64_t)share : most;
  uint64_t at = atomic_load_explicit(&x->pace.at_ns, memory_order_relaxed), mine;
  do {
    // No writer waits longer than the longest nap (N1). A clock that is further ahead, because of many writers, would
    // only slow down writers in later rounds.
    mine = at <= now ? now : at - now < most ? at : now + most;
  } while (!atomic_compare_exchange_weak_explicit(&x->pace.at_ns, &at, mine + interval, memory_order_relaxed,
                                                  memory_order_relaxed));
  const uint64_t nap = mine - now;
  // With little room left, a writer that does not wait now waits at the round's end.
  if (nap < (room > limit / 64 ? PACE_NAP_GOAL : PACE_NAP_MIN)) return;
  nap_in_round(x, now, nap);
}
