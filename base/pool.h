// SPDX-License-Identifier: Apache-2.0
//
// A pool of objects that wait for the next thread that needs one.
//
// An object costs its taker an exchange. Each thread begins its search at a place of its own, in a cache line of its
// own. So threads that take and put one object at a time do not write the same cache lines, and each thread gets the
// object back that it has put, with its memory still near.
//
// An object belongs to one thread at a time: a thread puts it in with release and takes it out with acquire.
#ifndef POOL_H
#define POOL_H

#include "lib.h"

#define POOL_PLACES 64u

// All zero: an empty pool.
struct pool {
  struct {
    _Alignas(CACHE_LINE) _Atomic(void *) object;  // NULL: the place is free
  } places[POOL_PLACES];
};

// Returns the place where the calling thread begins to look, below POOL_PLACES. The address of a variable of the thread
// tells threads apart.
static inline uint32_t pool_home(void) { return (uint32_t)(((uintptr_t)&err_state * 0x9E3779B97F4A7C15ull) >> 58); }
_Static_assert(POOL_PLACES == 64, "pool_home takes six bits");

// Takes an object out. NULL: there is none.
static inline void *pool_take(struct pool *p) {
  const uint32_t from = pool_home();
  for (uint32_t i = 0; i < POOL_PLACES; i++) {
    _Atomic(void *) *const place = &p->places[(from + i) % POOL_PLACES].object;
    if (!atomic_load_explicit(place, memory_order_relaxed)) continue;
    void *const object = atomic_exchange_explicit(place, NULL, memory_order_acquire);
    if (object) return object;
  }
  return NULL;
}

// Puts an object into place i < POOL_PLACES. False: it is not free, and the object stays the caller's.
MUST_CHECK static inline bool pool_put_at(struct pool *p, uint32_t i, void *object) {
  void *none = NULL;
  return atomic_compare_exchange_strong_explicit(&p->places[i].object, &none, object, memory_order_acq_rel,
                                                 memory_order_relaxed);
}

// Puts an object in. False: there is no free place, and the object stays the caller's.
MUST_CHECK static inline bool pool_put(struct pool *p, void *object) {
  const uint32_t from = pool_home();
  for (uint32_t i = 0; i < POOL_PLACES; i++) {
    const uint32_t at = (from + i) % POOL_PLACES;
    if (atomic_load_explicit(&p->places[at].object, memory_order_relaxed)) continue;
    if (pool_put_at(p, at, object)) return true;
  }
  return false;
}

// Takes out what place i has; NULL: nothing. i < POOL_PLACES. The exchange is made in any case: a thread that puts an
// object into the place later sees all that the caller did before it.
static inline void *pool_take_at(struct pool *p, uint32_t i) {
  return atomic_exchange_explicit(&p->places[i].object, NULL, memory_order_acq_rel);
}

// Returns how many objects wait at the moment.
static inline uint32_t pool_count(const struct pool *p) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < POOL_PLACES; i++)
    nr += atomic_load_explicit(&p->places[i].object, memory_order_relaxed) != NULL;
  return nr;
}
#endif
