// SPDX-License-Identifier: Apache-2.0
#include "store/idle.h"

#include "store/dropped_ask.h"
#include "store/expiry.h"
#include "store/garbage_look.h"
#include "store/hiding.h"
#include "store/memory.h"

#define SETTLE_NS 1000000000ull  // between two looks of a thread that waits

size_t idle_memory(struct xdb *x, struct epoch_slot *slot, size_t *wanted_out) {
  epoch_enter(&x->epoch, slot);
  const struct super *v = xdb_super(x);
  const size_t used = memtable_memory(v->active);
  *wanted_out = memtables_target(&x->memtables, v->active, v->frozen != NULL);
  epoch_exit(slot);
  return used;
}

void idle_fill(struct xdb *x, struct epoch_slot *slot) {
  size_t wanted;
  arena_pool_drains(&x->memtables.chunks);
  do {  // writers take chunks meanwhile
    epoch_enter(&x->epoch, slot);
    const struct super *const v = xdb_super(x);
    wanted = memtables_growth(&x->memtables, v->active, v->frozen);
    epoch_exit(slot);
  } while (arena_pool_fill(&x->memtables.chunks, wanted));
}

static bool idle_step(void *arg, struct worker *w);

// Makes the store busy if a writer has asked for it, lets it come to rest when its time has come, and looks at the
// division of memory.
static void idle_divide(struct xdb *x, struct epoch_slot *slot) {
  if (!atomic_load_explicit(&x->memory.cache_follows, memory_order_relaxed)) return;
  if (atomic_exchange_explicit(&x->memory.asked, false, memory_order_relaxed)) {
    idle_busy(x);
    return;
  }
  const uint64_t at = memory_rest_at(x), now = time_ns();
  const bool compacting = atomic_load_explicit(&x->rounds.compacting, memory_order_relaxed);
  if (at == 0) {
    memory_look(x);
  } else if (now < at || compacting) {
    workers_later(x->workers, idle_step, now < at ? at - now : MEMORY_REST_NS);
  } else {
    size_t wanted;
    const size_t used = idle_memory(x, slot, &wanted);
    memory_rest(x, used, wanted);
  }
}

// Returns the nanoseconds until the next look; 0: there is none.
static uint64_t look_for_hiding(struct xdb *x, struct epoch_slot *slot) {
  uint64_t ns;
  if (!hiding_is_due(x, &ns)) return ns;
  xdb_lock(x);
  struct super *const v = xdb_super(x);
  super_ref(v);
  xdb_unlock(x);
  hiding_judge(x, slot, v);
  xdb_super_drop(x, v);
  return ns;
}

// Idle work (workers_idle).
static bool idle_step(void *arg, struct worker *w) {
  struct xdb *x = arg;
  size_t wanted;
  const bool more = x->cache && cache_ahead(x->cache);
  idle_destroy(x);
  idle_divide(x, &w->slot);
  expiry_look(x, &w->slot);
  const uint64_t dropped = dropped_look(x), garbage = garbage_look(x, &w->slot);
  if (dropped) idle_later(x, dropped);
  if (garbage) idle_later(x, garbage);
  const uint64_t hiding = look_for_hiding(x, &w->slot);
  if (hiding) idle_later(x, hiding);
  if (wal_ahead_pending(x->wal)) wal_ahead(x->wal);
  (void)idle_memory(x, &w->slot, &wanted);
  const bool filled = arena_pool_fill(&x->memtables.chunks, memory_chunks_ahead(x, wanted));
  return x->collect.idle(x, &w->slot) || filled || more;
}

void idle_ask(struct xdb *x) { workers_idle(x->workers, idle_step); }

void idle_busy(struct xdb *x) {
  if (memory_busy(x) && x->workers) workers_later(x->workers, idle_step, MEMORY_REST_NS);
}

void idle_grow(struct xdb *x) {
  atomic_store_explicit(&x->memory.rest_until, SIZE_MAX, memory_order_relaxed);
  if (workers_count(x->workers) == 0) {
    idle_busy(x);
    return;
  }
  atomic_store_explicit(&x->memory.asked, true, memory_order_relaxed);  // idle_ask orders it before the work
  idle_ask(x);
}

void idle_later(struct xdb *x, uint64_t ns) { workers_later(x->workers, idle_step, ns); }

void idle_expiry(struct xdb *x, const struct version *v) {
  if (expiry_watch(x, v) && x->workers) workers_tick(x->workers, idle_step, (uint64_t)EXPIRY_LOOK_MS * 1000000);
}

void idle_garbage(struct xdb *x) {
  const uint64_t ns = atomic_load_explicit(&x->garbage_merges.rest_ns, memory_order_relaxed);
  if (!x->workers || workers_count(x->workers) == 0) return;
  garbage_look_after(x, ns);
  idle_later(x, ns);
}

void idle_hiding(struct xdb *x) {
  const uint64_t ns = atomic_load_explicit(&x->hiding.rest_ns, memory_order_relaxed);
  if (!x->workers || workers_count(x->workers) == 0) return;
  hiding_after(x, ns);
  idle_later(x, ns);
}

// The version's last reference is gone.
static void version_left(struct xdb *x, struct version *last) {
  if (!x->workers || workers_count(x->workers) == 0) {
    version_destroy(last);
    packs_reclaim(x->packs);
    return;
  }
  atomic_fetch_add_explicit(&x->idle.nr_left, 1, memory_order_relaxed);
  // release: the thread that takes the version sees all of it, and what others did before they dropped their references
  last->next = atomic_load_explicit(&x->idle.left, memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(&x->idle.left, &last->next, last, memory_order_release,
                                                memory_order_relaxed))
    continue;
  idle_ask(x);
}

void xdb_super_drop(struct xdb *x, struct super *v) {
  struct version *const last = super_drop(v);
  if (unlikely(last != NULL)) version_left(x, last);
}

void xdb_version_drop(struct xdb *x, struct version *v) {
  if (unlikely(version_drop(v))) version_left(x, v);
}

void idle_destroy(struct xdb *x) {
  // acquire: pairs with the release in version_left
  struct version *v = atomic_exchange_explicit(&x->idle.left, NULL, memory_order_acquire), *next;
  if (!v) return;
  for (; v; v = next) {
    next = v->next;
    version_destroy(v);
    atomic_fetch_sub_explicit(&x->idle.nr_left, 1, memory_order_release);  // pairs with idle_destroy_wait
  }
  packs_reclaim(x->packs);
  xdb_lock(x);
  xdb_unlock_changed(x);
}

void idle_destroy_wait(struct xdb *x) {
  idle_destroy(x);
  xdb_lock(x);
  while (atomic_load_explicit(&x->idle.nr_left, memory_order_acquire)) xdb_lock_wait(x, SETTLE_NS);
  xdb_unlock(x);
}
