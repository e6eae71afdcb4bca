// SPDX-License-Identifier: Apache-2.0
//
// Prefetches: they ask the processor for memory before it is read. They change nothing, and may be wrong about where
// things are.
#ifndef TABLE_PREFETCH_H
#define TABLE_PREFETCH_H

#include "table/state.h"

#define SST_PREFETCH 24u  // bytes of a record that a search looks at, most of the time: its lengths and key

// A block's offsets say where a record lies, and then the record is read: two misses, one behind the other. Records of
// one size lie where their number says, so that both can be fetched at once; of those that are not, some lie near.
static inline void sst_prefetch_record(const struct sst *t, const uint8_t *data, uint32_t block, uint32_t idx) {
  const uint8_t *const p = data + BLOCK_HEAD + 2 * t->nr_recs[block] + (size_t)idx * t->rec_size;
  prefetch(p);
  prefetch(p + SST_PREFETCH);
}
// The same of all of the record, as far as WANT_ALL: for who reads its value, too.
#define SST_PREFETCH_MAX 256u
static inline void sst_prefetch_all_of(const struct sst *t, const uint8_t *data, uint32_t block, uint32_t idx) {
  sst_prefetch_record(t, data, block, idx);
  const uint8_t *const p = data + BLOCK_HEAD + 2 * t->nr_recs[block] + (size_t)idx * t->rec_size;
  const uint32_t size = t->rec_size < SST_PREFETCH_MAX ? t->rec_size : SST_PREFETCH_MAX;
  for (uint32_t o = CACHE_LINE; o < size; o += CACHE_LINE) prefetch(p + o);
  prefetch(p + size - 1);  // of at least two bytes
}
// What says how far the block goes, where it is, and what its pieces are.
static inline void sst_prefetch_place(const struct sst *t, sst_pos pos) {
  const struct sst_pieces *const pieces = atomic_load_explicit(&t->pieces, memory_order_relaxed);
  prefetch(&t->nr_recs[sst_pos_block(pos)]);
  if (likely(t->cache.cache != NULL)) prefetch((const void *)&t->cache.slots[sst_pos_block(pos)]);
  if (pieces) prefetch(&pieces[sst_pos_block(pos)]);
}
static inline void sst_prefetch(const struct sst *t, sst_pos pos) {
  const uint8_t *const data = cache_prefetch(&t->cache, sst_pos_block(pos));
  if (data) sst_prefetch_record(t, data, sst_pos_block(pos), sst_pos_idx(pos));
}
#endif
