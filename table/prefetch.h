// SPDX-License-Identifier: Apache-2.0
//
// Prefetches bring memory into the processor's cache before the code reads it. They change no data, and their guesses
// may be wrong.
#ifndef TABLE_PREFETCH_H
#define TABLE_PREFETCH_H

#include "table/state.h"

#define SST_PREFETCH 24u  // bytes of a record that a search reads in most cases: the lengths and the key

// Returns where record idx of the block begins if all records have the average size.
static inline size_t sst_record_guess(const struct sst *t, uint32_t block, uint32_t idx) {
  return block_records_at(t->nr_recs[block]) + (size_t)idx * t->rec_size;
}
// Reading a record's offset, and then the record, costs two cache misses in a row. With a guess of the offset the code
// prefetches both at once. The guess is right if all records have the same size, and close for some other tables.
static inline void sst_prefetch_record(const struct sst *t, const uint8_t *data, uint32_t block, uint32_t idx) {
  const uint8_t *const p = data + sst_record_guess(t, block, idx);
  prefetch(p);
  prefetch(p + SST_PREFETCH);
}
// Prefetches the whole record, up to SST_PREFETCH_MAX bytes, for a caller that also reads the value.
#define SST_PREFETCH_MAX 256u
static inline void sst_prefetch_all_of(const struct sst *t, const uint8_t *data, uint32_t block, uint32_t idx) {
  sst_prefetch_record(t, data, block, idx);
  const uint8_t *const p = data + sst_record_guess(t, block, idx);
  const uint32_t size = t->rec_size < SST_PREFETCH_MAX ? t->rec_size : SST_PREFETCH_MAX;
  for (uint32_t o = CACHE_LINE; o < size; o += CACHE_LINE) prefetch(p + o);
  prefetch(p + size - 1);  // size is 2 at least
}
// Prefetches the number of the block's records, the block's slot of the cache, and the block's pieces.
static inline void sst_prefetch_place(const struct sst *t, sst_pos pos) {
  const struct sst_pieces *const pieces = atomic_load_explicit(&t->pieces, memory_order_relaxed);
  prefetch(&t->nr_recs[sst_pos_block(pos)]);
  if (likely(t->cache.slots != NULL)) prefetch((const void *)&t->cache.slots[sst_pos_block(pos)]);
  if (pieces) prefetch(&pieces[sst_pos_block(pos)]);
}
// Prefetches the record at pos, if the cache has the block of pos.
static inline void sst_prefetch(const struct sst *t, sst_pos pos) {
  const uint8_t *const data = cache_prefetch(&t->cache, sst_pos_block(pos));
  if (data) sst_prefetch_record(t, data, sst_pos_block(pos), sst_pos_idx(pos));
}
#endif
