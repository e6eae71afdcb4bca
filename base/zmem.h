// SPDX-License-Identifier: Apache-2.0
//
// Gives zstd the memory of this library's allocator, so that tests can make it fail like any other. The functions of
// zstd that take an allocator belong to zstd's experimental interface. These functions have never changed, and every
// known build of the shared library has them.
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
// Some functions of zstd return NULL for missing memory and for other failures. This allocator sets *lacking to true if
// memory is missing. Only the creating call can write *lacking: the created object keeps the pointer, but allocates no
// more memory.
static inline void *zmem_alloc_telling(void *lacking, size_t size) {
  void *const p = mem_alloc(size);
  if (!p) *(bool *)lacking = true;
  return p;
}
static inline ZSTD_customMem zmem_telling(bool *lacking) {
  return (ZSTD_customMem){zmem_alloc_telling, zmem_free, lacking};
}
static inline ZSTD_customMem zmem(void) { return (ZSTD_customMem){zmem_alloc, zmem_free, NULL}; }

// Contexts of zstd that wait for the next thread that packs or unpacks: to make one costs more than to pack a few KiB.
// A context that is taken has zstd's default parameters, and no dictionary. NULL without memory. Any thread.
ZSTD_CCtx *zmem_packer_take(void);
void zmem_packer_give(ZSTD_CCtx *z);  // NULL is allowed; forgets the parameters
ZSTD_DCtx *zmem_unpacker_take(void);
void zmem_unpacker_give(ZSTD_DCtx *z);  // NULL is allowed
void zmem_trim(void);                   // frees the contexts that wait
#endif
