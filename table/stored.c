// SPDX-License-Identifier: Apache-2.0
#include "table/stored.h"

#include <assert.h>

#include "base/zmem.h"
#include "table/dict.h"
#include "table/format.h"

// ---- scratch

#define SCRATCH_NR 16
#define SCRATCH_BUF (1u << 20)                           // larger buffers are not kept
static _Atomic(struct sst_scratch *) slots[SCRATCH_NR];  // an exchange takes what is there; NULL: nothing
static _Atomic uint64_t nr_tables;                       // open ones

static void scratch_free(struct sst_scratch *x) {
  if (!x) return;
  (void)ZSTD_freeDCtx(x->zstd);
  mem_free(x->buf);
  mem_free(x->block);
  mem_free(x);
}

struct sst_scratch *sst_scratch_take(void) {
  for (uint32_t i = 0; i < SCRATCH_NR; i++) {
    if (!atomic_load_explicit(&slots[i], memory_order_relaxed)) continue;
    struct sst_scratch *const x = atomic_exchange_explicit(&slots[i], NULL, memory_order_acquire);
    if (x) return x;
  }
  return mem_calloc(1, sizeof(struct sst_scratch));
}

void sst_scratch_give(struct sst_scratch *x) {
  if (x->size > SCRATCH_BUF) {
    mem_free(x->buf);
    x->buf = NULL;
    x->size = 0;
  }
  for (uint32_t i = 0; i < SCRATCH_NR; i++) {
    struct sst_scratch *none = NULL;
    if (atomic_compare_exchange_strong_explicit(&slots[i], &none, x, memory_order_release, memory_order_relaxed))
      return;
  }
  scratch_free(x);
}

void sst_scratch_enter(void) { (void)atomic_fetch_add_explicit(&nr_tables, 1, memory_order_relaxed); }

void sst_scratch_trim(void) {
  for (uint32_t i = 0; i < SCRATCH_NR; i++)
    scratch_free(atomic_exchange_explicit(&slots[i], NULL, memory_order_acquire));
  zmem_trim();
}

void sst_scratch_leave(void) {
  if (atomic_fetch_sub_explicit(&nr_tables, 1, memory_order_acq_rel) == 1) sst_scratch_trim();
}

enum remixdb_status sst_scratch_reserve(struct sst_scratch *x, size_t size) {
  if (likely(size <= x->size)) return REMIXDB_OK;
  mem_free(x->buf);
  x->size = 0;
  x->buf = mem_alloc_aligned(BLKIO_ALIGN, size);
  if (!x->buf) return REMIXDB_NOMEM;
  x->size = size;
  return REMIXDB_OK;
}

enum remixdb_status sst_zstd_reserve(ZSTD_DCtx **z) {
  if (likely(*z != NULL)) return REMIXDB_OK;
  *z = ZSTD_createDCtx_advanced(zmem());
  return *z ? REMIXDB_OK : err_set(REMIXDB_NOMEM, "no memory for decompression");
}

// ---- blocks

enum remixdb_status sst_unpack(const struct sst *t, uint32_t block, uint32_t pages, const uint8_t *stored, uint32_t len,
                               ZSTD_DCtx **zstd, uint8_t *buf) {
  const uint64_t off = sst_block_off(t, block);
  assert(len > FORMAT_SST_STORED_HEAD);  // sst_open checks it
  const uint64_t sum = hash64_seed(stored + FORMAT_SST_STORED_KIND, len - FORMAT_SST_STORED_KIND,
                                   block_seed(t->number, block));
  if (unlikely(load64le(stored + FORMAT_SST_STORED_SUM) != sum))
    return err_corrupt(t->path, off, "checksum of block %u", block);
  const uint8_t *const src = stored + FORMAT_SST_STORED_HEAD;
  const size_t src_len = len - FORMAT_SST_STORED_HEAD;
  const size_t dst_len = (size_t)pages * BLOCK_PAGE - FORMAT_SST_STORED_SKIP;
  memset(buf, 0, FORMAT_SST_STORED_SKIP);
  uint8_t *const dst = buf + FORMAT_SST_STORED_SKIP;
  if (stored[FORMAT_SST_STORED_KIND] == FORMAT_SST_STORED_RAW) {
    if (unlikely(src_len != dst_len)) return err_corrupt(t->path, off, "size of block %u", block);
    memcpy(dst, src, dst_len);
  } else if (stored[FORMAT_SST_STORED_KIND] == FORMAT_SST_STORED_ZSTD) {
    const enum remixdb_status s = sst_zstd_reserve(zstd);
    if (s != REMIXDB_OK) return s;
    // exactly one frame: decompression accepts several frames
    if (unlikely(ZSTD_findFrameCompressedSize(src, src_len) != src_len))
      return err_corrupt(t->path, off, "frame of block %u", block);
    size_t n = 0;
    if (t->dict) {
      const void *dict;
      void *own;
      const enum remixdb_status found = sst_dict_begin(t, &dict, &own);
      if (found == REMIXDB_OK) n = ZSTD_decompress_usingDDict(*zstd, dst, dst_len, src, src_len, dict);
      sst_dict_end(t, own);
      if (found != REMIXDB_OK) return found;
    } else {
      n = ZSTD_decompressDCtx(*zstd, dst, dst_len, src, src_len);
    }
    if (unlikely(ZSTD_isError(n))) return err_corrupt(t->path, off, "block %u: %s", block, ZSTD_getErrorName(n));
    if (unlikely(n != dst_len)) return err_corrupt(t->path, off, "size of block %u", block);
  } else {
    return err_corrupt(t->path, off + FORMAT_SST_STORED_KIND, "kind of block %u", block);
  }
  return block_verify_body(buf, pages, t->nr_recs[block], t->form, t->path, off);
}
