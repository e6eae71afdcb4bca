// SPDX-License-Identifier: Apache-2.0
#include "store/refpool.h"

#include <assert.h>

// The place where the calling thread begins to look. The address of a variable of the thread tells threads apart.
static uint32_t home(void) { return (uint32_t)(((uintptr_t)&err_state * 0x9E3779B97F4A7C15ull) >> 58); }
_Static_assert(REF_POOL == 64, "home takes six bits");

enum remixdb_status refpool_borrow(struct xdb *x, struct xdb_ref **out) {
  const uint32_t from = home();
  for (uint32_t i = 0; i < REF_POOL; i++) {
    _Atomic(struct xdb_ref *) *const place = &x->ref_pool.places[(from + i) % REF_POOL].ref;
    if (!atomic_load_explicit(place, memory_order_relaxed)) continue;
    struct xdb_ref *const r = atomic_exchange_explicit(place, NULL, memory_order_acquire);
    if (!r) continue;
    *out = r;
    return REMIXDB_OK;
  }
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
    const uint32_t from = home();
    for (uint32_t i = 0; i < REF_POOL; i++) {
      _Atomic(struct xdb_ref *) *const place = &x->ref_pool.places[(from + i) % REF_POOL].ref;
      struct xdb_ref *none = NULL;
      if (atomic_load_explicit(place, memory_order_relaxed)) continue;
      if (atomic_compare_exchange_strong_explicit(place, &none, r, memory_order_release, memory_order_relaxed)) return;
    }
  }
  xdb_unref(r);
}

uint32_t refpool_count(const struct xdb *x) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < REF_POOL; i++)
    nr += atomic_load_explicit(&x->ref_pool.places[i].ref, memory_order_relaxed) != NULL;
  return nr;
}

void refpool_fini(struct xdb *x) {
  for (uint32_t i = 0; i < REF_POOL; i++)
    xdb_unref(atomic_exchange_explicit(&x->ref_pool.places[i].ref, NULL, memory_order_acquire));
}
