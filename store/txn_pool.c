// SPDX-License-Identifier: Apache-2.0
#include "store/txn_pool.h"

#include "store/idle.h"
#include "store/txn_state.h"

void txn_figures(const struct xdb *x, struct txn_figures *out) {
  uint64_t begun = 0, ended = 0;
  *out = (struct txn_figures){0};
  for (uint32_t i = 0; i < POOL_PLACES; i++) {
    const struct txn_counts *const c = &x->txns.counts[i];
    ended += atomic_load_explicit(&c->ended, memory_order_relaxed);
    begun += atomic_load_explicit(&c->begun, memory_order_relaxed);
    out->committed += atomic_load_explicit(&c->committed, memory_order_relaxed);
    out->conflicts += atomic_load_explicit(&c->conflicts, memory_order_relaxed);
  }
  out->open = begun > ended ? begun - ended : 0;  // some may have ended since their beginnings were counted
}

void txn_destroy(struct xdb_txn *t) {
  xdb_super_drop(t->xdb, t->super);
  xdb_unref(t->tracked);
  xdb_unref(t->untracked);
  xdb_unref(t->now);
  for (uint32_t i = 0; i < TREES; i++) {
    xdb_unref(t->base[i]);
    overlay_fini(&t->own[i]);
    readset_fini(&t->reads[i]);
  }
  mem_free(t->savepoints);
  mem_free(t->blind);
  mem_free(t);
}

struct xdb_txn *txn_pool_take(struct xdb *x) {
  return pool_take(&x->txns.pool);
}

static void drop_super(struct xdb_txn *t) {
  xdb_super_drop(t->xdb, t->super);
  t->super = NULL;
}

void txn_pool_put(struct xdb_txn *t) {
  struct xdb *const x = t->xdb;
  while (t->nr_refs) xdb_unref(t->refs[--t->nr_refs]);
  mem_free(t->refs);
  t->refs = NULL;
  t->ended = false;
  if (t->super != xdb_super(x)) drop_super(t);  // the pointers are only compared
  const struct super *const kept = t->super;
  if (!pool_put(&x->txns.pool, t)) txn_destroy(t);
  else if (unlikely(kept && kept != xdb_super(x))) txn_pool_let_go(x);
}

void txn_pool_let_go(struct xdb *x) {
  for (uint32_t i = 0; i < POOL_PLACES; i++) {
    struct xdb_txn *const t = pool_take_at(&x->txns.pool, i);
    if (!t) continue;
    drop_super(t);
    if (!pool_put_at(&x->txns.pool, i, t)) txn_destroy(t);
  }
}

void txn_pool_fini(struct xdb *x) {
  for (uint32_t i = 0; i < POOL_PLACES; i++) {
    struct xdb_txn *const t = pool_take_at(&x->txns.pool, i);
    if (t) txn_destroy(t);
  }
}
