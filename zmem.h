// SPDX-License-Identifier: Apache-2.0
//
// zstd's memory from this library's allocator, so that its failure is met, and tested, like any other's. The calls that take an allocator are not among those whose
// interface zstd promises to keep; they have not changed since they are there, and every build of the shared library that is known has them.
#ifndef ZMEM_H
#define ZMEM_H

#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

#include "lib.h"

static inline void *zmem_alloc(void *unused, size_t size) {
  (void)unused;
  return mem_alloc(size);
}
static inline void zmem_free(void *unused, void *p) {
  (void)unused;
  mem_free(p);
}
static inline ZSTD_customMem zmem(void) { return (ZSTD_customMem){zmem_alloc, zmem_free, NULL}; }
#endif
