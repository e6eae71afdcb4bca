// SPDX-License-Identifier: Apache-2.0
#include "store/value_pace.h"

#include "store/pace.h"
#include "store/values.h"

#define MORE_PART 16u  // the files may have 5/16 of what lives more,
#define MORE_TIMES 5u
#define ZONE_PART 8u   // and another 1/8 more make a put wait for the longest time
#define FILE_PART 16u  // a file has 1/16 of what lives,
#define HELD_PART 8u   // and at least 1/8 of what a full memtable holds

_Atomic uint64_t value_pace_most_ns = VALUE_PACE_MOST_NS;

void value_pace_init(struct xdb *x) { value_pace_set(x, 0); }

void value_pace_set(struct xdb *x, uint64_t live) {
  const uint64_t held = values_most(x), zone = live / ZONE_PART > held / ZONE_PART ? live : held;
  const uint64_t file = live / FILE_PART > held / HELD_PART ? live / FILE_PART : held / HELD_PART;
  atomic_store_explicit(&x->collect.zone, zone / ZONE_PART + 1, memory_order_relaxed);
  atomic_store_explicit(&x->collect.allowed, live + live / MORE_PART * MORE_TIMES + 2 * held, memory_order_relaxed);
  value_log_size(&x->values, file);
  value_log_size(&x->compact.values, file);
}

bool value_pace_far(const struct xdb *x) {
  return value_pace_over(x) > atomic_load_explicit(&x->collect.zone, memory_order_relaxed);
}

// Nanoseconds that a put waits at most.
static uint64_t longest(const struct xdb *x) {
  const uint64_t over = value_pace_over(x), zone = atomic_load_explicit(&x->collect.zone, memory_order_relaxed),
                 most = atomic_load_explicit(&value_pace_most_ns, memory_order_relaxed);
  return over < zone ? (uint64_t)((double)most * (double)over / (double)zone) : most;
}

// Tells whether what the files have becomes less soon: garbage is collected, or the round ends that knows of it.
// xdb.lock is held.
static bool is_coming(const struct xdb *x) {
  return atomic_load_explicit(&x->collect.asked, memory_order_relaxed) ||
         atomic_load_explicit(&x->collect.busy, memory_order_relaxed) || x->rounds.at != XDB_AT_REST;
}

__attribute__((noinline)) void value_pace_wait(struct xdb *x) {
  if (workers_count(x->workers) == 0 || xdb_may_wait(x) != REMIXDB_OK) return;
  const uint64_t began = time_ns(), until = began + longest(x);
  uint64_t now = began;
  xdb_lock(x);
  while (now < until && value_pace_over(x) && is_coming(x)) {
    xdb_lock_wait(x, until - now);
    now = time_ns();
  }
  xdb_unlock(x);
  xdb_pace_stalled(x, now - began);
}
