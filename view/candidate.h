// SPDX-License-Identifier: Apache-2.0
//
// The candidates of a get: the entries of a partition's views that can be the key, one after the other, by the calls
// remix_probe_*. The young view comes first. A get that waits for the block of a candidate goes on with the next one if
// the block shows another key. Inside an epoch, except where a comment says more.
#ifndef CANDIDATE_H
#define CANDIDATE_H

#include "view/version.h"

// Sets a probe of the key's partition. False: the partition is empty, or away (part_ready). The next step is
// remix_probe_find.
static inline bool candidate_begin(struct remix_probe *p, const struct part *part, struct kref key, uint64_t hash) {
  struct remix *const remix = part_remix(part), *const young = part_young(part);  // in this order (view/part.h, P1)
  if (unlikely(!remix)) return false;
  p->x = young ? young : remix;
  p->older = young ? remix : NULL;
  p->key = key;
  p->hash = hash;
  return true;
}
// Goes on to the older view, which there is. The next step is remix_probe_find.
static inline void candidate_older(struct remix_probe *p) {
  p->x = p->older;
  p->older = NULL;
}
// The block of the candidate taken last, if the cache has it. NULL: the file has to be read, if remix_probe_fits.
static inline const uint8_t *candidate_cached(const struct remix_probe *p) {
  uint32_t frame;
  return p->sst->cache.cache ? cache_hit(&p->sst->cache, sst_pos_block(p->pos), &frame) : NULL;
}
// Whether the cache has that candidate's record without its block. Then the file need not be read.
static inline bool candidate_alone(const struct remix_probe *p, struct kv_rec *rec_out) {
  return unlikely(cache_keeps_records(&p->sst->cache)) && sst_kept_alone(p->sst, p->pos, rec_out);
}
// The record of that candidate in its block. Returns whether it has the key. Needs no epoch if data is the caller's.
static inline bool candidate_record(const struct remix_probe *p, const uint8_t *data, struct kv_rec *rec_out) {
  block_record(data, sst_pos_idx(p->pos), rec_out);
  return kv_eq(kref(rec_out->key, rec_out->klen), p->key);
}
// Looks the key of a probe with `search` up, in this view and the older one, and reads the blocks that it needs one by
// one. The contract of remix_get.
MUST_CHECK static inline enum remixdb_status candidate_search(const struct remix_probe *p, struct sst_hold *h,
                                                              struct kv_rec *rec_out) {
  struct remix *const x = (struct remix *)(uintptr_t)p->x, *const older = (struct remix *)(uintptr_t)p->older;
  const enum remixdb_status s = remix_get(x, p->key, p->hash, h, rec_out);
  return s == REMIXDB_NOTFOUND && older ? remix_get(older, p->key, p->hash, h, rec_out) : s;
}
#endif
