// SPDX-License-Identifier: Apache-2.0
//
// Allocations that fail: the n-th from now on, once.
#ifndef FAULT_H
#define FAULT_H

#include "lib.h"

static _Atomic int64_t fault_mem_left;  // until the one that fails; <= 0: it has failed

static inline bool fault_mem_fn(size_t size) {
  (void)size;
  return atomic_fetch_sub_explicit(&fault_mem_left, 1, memory_order_relaxed) != 1;
}

static inline void fault_mem_set(int64_t nth) {
  atomic_store(&fault_mem_left, nth);
  atomic_store(&mem_fault, fault_mem_fn);
}

// Ends it; whether one was made to fail.
static inline bool fault_mem_end(void) {
  atomic_store(&mem_fault, NULL);
  return atomic_load(&fault_mem_left) <= 0;
}
#endif
