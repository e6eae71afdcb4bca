// SPDX-License-Identifier: Apache-2.0
//
// Programs that open and close small stores a thousand times a second. Most of their time would go into memory: each
// opening takes some ten large blocks, which are mappings, and asks the system how much memory there is.
#ifndef TESTS_OFTEN_H
#define TESTS_OFTEN_H

#include "base/cgroup.h"
#include "lib.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif
#if defined(__linux__)
#include <sys/prctl.h>
#endif

// The beginning of main: the heap keeps what a store gave back, and the machine has 8 GiB.
static inline void often(void) {
  atomic_store(&cgroup_test_memory, (uint64_t)1 << 33);
  static bool kept;
  if (!kept) mem_keep(1);  // too little for a block; so no close is that of the last store, which trims the heap
  kept = true;
#if defined(__linux__)
  (void)prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);  // little of a page of 2 MB would be used, and all of it is zeroed
#endif
#if defined(__GLIBC__)
  (void)mallopt(M_MMAP_THRESHOLD, 1 << 30);
  (void)mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

// The process keeps freed blocks, as it does while a store is open: for programs that work on files without a store, or
// that open one after the other. Their buffers would be new pages of the system each time otherwise.
static inline void often_keep(void) {
  static bool kept;
  if (!kept) mem_keep((size_t)64 << 20);
  kept = true;
}

// From now on the heap has the large blocks, too, in three of four cases. The next store finds the bytes of the one
// before in them in place of zeroes. In the fourth case they are mappings, as they are in programs of users.
static inline void often_large(uint64_t dice) { atomic_store(&mem_large_from, dice % 4 == 2 ? MEM_LARGE : SIZE_MAX); }
#endif
