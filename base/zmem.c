// SPDX-License-Identifier: Apache-2.0
#include "base/zmem.h"

#include "base/pool.h"

static struct pool packers, unpackers;

ZSTD_CCtx *zmem_packer_take(void) {
  ZSTD_CCtx *z = pool_take(&packers);
  if (!z && !(z = ZSTD_createCCtx_advanced(zmem()))) (void)err_set(REMIXDB_NOMEM, "no memory for compression");
  return z;
}

void zmem_packer_give(ZSTD_CCtx *z) {
  if (!z) return;
  (void)ZSTD_CCtx_reset(z, ZSTD_reset_session_and_parameters);  // fails only while a frame is open, which it ends
  if (!pool_put(&packers, z)) (void)ZSTD_freeCCtx(z);
}

ZSTD_DCtx *zmem_unpacker_take(void) {
  ZSTD_DCtx *z = pool_take(&unpackers);
  if (!z && !(z = ZSTD_createDCtx_advanced(zmem()))) (void)err_set(REMIXDB_NOMEM, "no memory for decompression");
  return z;
}

void zmem_unpacker_give(ZSTD_DCtx *z) {
  if (z && !pool_put(&unpackers, z)) (void)ZSTD_freeDCtx(z);
}

void zmem_trim(void) {
  for (uint32_t i = 0; i < POOL_PLACES; i++) {
    (void)ZSTD_freeCCtx(pool_take_at(&packers, i));
    (void)ZSTD_freeDCtx(pool_take_at(&unpackers, i));
  }
}
