// SPDX-License-Identifier: Apache-2.0
//
// zstd's memory from this library's allocator, so that its failure is met, and tested, like any other's. The calls that
// take an allocator are not among those whose interface zstd promises to keep; they have not changed since they are
// there, and every build of the shared library that is known has them.
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
// For a call that answers NULL both for memory that could not be had and for other failures: *lacking is set to true
// for the first. It is written by that call alone; what was made keeps the pointer, and never follows it.
static inline void *zmem_alloc_telling(void *lacking, size_t size) {
  void *const p = mem_alloc(size);
  if (!p) *(bool *)lacking = true;
  return p;
}
static inline ZSTD_customMem zmem_telling(bool *lacking) {
  return (ZSTD_customMem){zmem_alloc_telling, zmem_free, lacking};
}
static inline ZSTD_customMem zmem(void) { return (ZSTD_customMem){zmem_alloc, zmem_free, NULL}; }
#endif
