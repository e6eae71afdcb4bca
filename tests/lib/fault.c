// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/fault.h"

static _Atomic int64_t left;  // until the one that fails; <= 0: it has failed
static _Atomic bool lasts;

static bool fault(size_t size) {
  (void)size;
  const int64_t n = atomic_fetch_sub_explicit(&left, 1, memory_order_relaxed);
  return n > 1 || (n < 1 && !atomic_load_explicit(&lasts, memory_order_relaxed));
}

static void set(int64_t nth, bool lasting) {
  atomic_store(&left, nth);
  atomic_store(&lasts, lasting);
  atomic_store(&mem_fault, fault);
}

void fault_mem_set(int64_t nth) { set(nth, false); }
void fault_mem_set_lasting(int64_t nth) { set(nth, true); }

bool fault_mem_end(void) {
  atomic_store(&mem_fault, NULL);
  return atomic_load(&left) <= 0;
}
