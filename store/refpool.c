// SPDX-License-Identifier: Apache-2.0
#include "store/refpool.h"

#include <assert.h>

enum remixdb_status refpool_borrow(struct xdb *x, struct xdb_ref **out) {
  if ((*out = pool_take(&x->ref_pool)) != NULL) return REMIXDB_OK;
  const enum remixdb_status s = xdb_ref(x, out);
  if (s == REMIXDB_OK) (*out)->borrowed = true;
  return s;
}

void refpool_return(struct xdb_ref *r) {
  struct xdb *const x = r->xdb;
  assert(r->stays == 0);
  if (r->borrowed) {
    r->told = ERR_STATE_OK;
    r->progress = (struct progress){NULL, NULL};
    if (pool_put(&x->ref_pool, r)) return;
  }
  xdb_unref(r);
}

uint32_t refpool_count(const struct xdb *x) { return pool_count(&x->ref_pool); }

void refpool_fini(struct xdb *x) {
  for (uint32_t i = 0; i < POOL_PLACES; i++) xdb_unref(pool_take_at(&x->ref_pool, i));
}
