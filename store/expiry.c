// SPDX-License-Identifier: Apache-2.0
#include "store/expiry.h"

void expiry_init(struct expiry *e) { pthread_mutex_init(&e->lock, NULL); }

void expiry_fini(struct expiry *e) { pthread_mutex_destroy(&e->lock); }

uint64_t expiry_settle(struct xdb *x) {
  struct expiry *const e = &x->expiry;
  const uint64_t wall = env_wall_ms(x->env);
  pthread_mutex_lock(&e->lock);
  const uint64_t steady = env_steady_ms(x->env);
  if (!e->begun) {
    e->begun = true;
    e->began_ms = steady;
    e->least_ms = wall;
  }
  if (wall < e->least_ms) e->least_ms = wall;
  if (steady - e->began_ms >= REMIXDB_EXPIRY_SETTLES_MS) {
    e->before_ms = e->least_ms;
    e->least_ms = wall;
    e->began_ms = steady;
  }
  const uint64_t settled = e->before_ms < e->least_ms ? e->before_ms : e->least_ms;
  atomic_store_explicit(&x->compact.expired_ms, settled, memory_order_relaxed);
  pthread_mutex_unlock(&e->lock);
  return settled;
}

bool expiry_watch(struct xdb *x, const struct version *v) {
  if (likely(!v->expires && !(v->spaces && v->spaces->expires))) return false;
  (void)expiry_settle(x);
  return true;
}

static bool any_due(const struct version *v, uint64_t settled) {
  const uint64_t now = time_ns();
  for (const struct version *tree = v; tree; tree = tree->spaces)
    for (uint32_t i = 0; tree->expires && i < tree->nr_parts; i++)
      if (compact_mostly_expired(tree->parts[i], settled, now)) return true;
  return false;
}

void expiry_look(struct xdb *x, struct epoch_slot *slot) {
  struct expiry *const e = &x->expiry;
  const uint64_t now = env_steady_ms(x->env);
  if (now < atomic_load_explicit(&e->look_ms, memory_order_relaxed)) return;
  atomic_store_explicit(&e->look_ms, now + EXPIRY_LOOK_MS, memory_order_relaxed);
  epoch_enter(&x->epoch, slot);
  const struct version *const v = xdb_super(x)->version;
  const bool expires = v->expires || (v->spaces && v->spaces->expires);
  const bool due = expires && any_due(v, expiry_settle(x));
  epoch_exit(slot);
  if (due && !atomic_exchange_explicit(&x->scan_merges.due, true, memory_order_relaxed)) workers_kick(x->workers);
}
