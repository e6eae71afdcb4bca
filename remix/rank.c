// SPDX-License-Identifier: Apache-2.0
//
// Ranks: how many live entries come before a key, and which one comes after so many.
#include "base/blind.h"
#include "remix/remix.h"
#include "remix/seg.h"

struct rank_reader {
  const struct remix *x;
  struct sst_hold *hold;
};

static enum remixdb_status rank_entry(void *arg, const uint8_t *s, uint32_t i, struct kv_rec *rec_out) {
  const struct rank_reader *const r = arg;
  return entry_read(r->x, s, i, 1, r->hold, rec_out);
}

uint64_t remix_live(const struct remix *x) { return x->index->live[x->nr_segs]; }

enum remixdb_status remix_rank(const struct remix *x, struct kref key, struct sst_hold *h, uint64_t *rank_out) {
  const struct remix_index *const ix = x->index;
  struct rank_reader reader = {x, h};
  struct seg_pos_found spot = {0, false};
  struct kv_rec rec;
  *rank_out = 0;
  if (x->nr_segs == 0) return REMIXDB_OK;
  const uint32_t seg = anchors_find(&ix->anchors, key);
  const uint8_t *const p = seg_at(ix, seg);
  enum remixdb_status s = REMIXDB_OK;
  if (kv_eq(anchors_at(&ix->anchors, seg), key)) {
    spot.at = 0;  // no entry of the segment is less (R3)
  } else if (seg_far(ix, p)) {
    s = seg_search_binary(x, p, key, rank_entry, &reader, &spot, &rec);
  } else {
    const uint8_t *const dbits = p + ix->lay.dbits;
    const uint32_t nr = seg_nr(ix, p), base = seg_base(ix, p), cand = blind_candidate(dbits, nr, base, key);
    s = rank_entry(&reader, p, cand, &rec);
    if (s == REMIXDB_OK) spot.at = blind_place(dbits, nr, base, key, cand, kref(rec.key, rec.klen), &spot.equal);
  }
  if (s == REMIXDB_OK) *rank_out = ix->live[seg] + set32_count(seg_live(ix, p) & set32_below(spot.at));
  return s;
}

enum remixdb_status remix_live_at(const struct remix *x, uint64_t rank, struct sst_hold *h, struct kv_rec *rec_out) {
  const struct remix_index *const ix = x->index;
  const uint32_t seg = seg_live_after(x, 0, (uint32_t)rank);
  const uint8_t *const p = seg_at(ix, seg);
  return entry_read(x, p, set32_nth(seg_live(ix, p), (uint32_t)rank - ix->live[seg]), 1, h, rec_out);
}

enum remix_guess remix_guess(const struct remix *x, struct kref key, uint64_t hash) {
  const struct remix_index *const ix = x->index;
  if (x->nr_segs == 0) return REMIX_ABSENT;
  const uint8_t *const p = seg_at(ix, anchors_find(&ix->anchors, key));
  if (!x->tags || seg_far(ix, p)) return REMIX_UNKNOWN;
  const uint32_t set = set32_eq8(p, 0xFF, remix_tag(hash)) & seg_live(ix, p);
  if (!set) return REMIX_ABSENT;
  const uint32_t cand = blind_candidate(p + ix->lay.dbits, seg_nr(ix, p), seg_base(ix, p), key);
  if (!(set >> cand & 1)) return REMIX_ABSENT;
  return p[ix->lay.sel + cand] & REMIX_TOMB ? REMIX_DELETED : REMIX_THERE;
}
