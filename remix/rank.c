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

enum remixdb_status remix_live_near(const struct remix *x, uint64_t rank, uint64_t from, uint64_t to,
                                    struct sst_hold *h, remix_near_fn fn, void *arg) {
  const struct remix_index *const ix = x->index;
  const uint32_t seg = seg_live_after(x, 0, (uint32_t)rank);
  const uint8_t *const p = seg_at(ix, seg), *const sel = p + ix->lay.sel;
  const uint64_t base = ix->live[seg];
  uint32_t set = seg_live(ix, p);
  const uint32_t at = set32_nth(set, (uint32_t)(rank - base)), nr = set32_count(set);
  if (from > base) set &= ~set32_below(set32_nth(set, (uint32_t)(from - base)));
  if (to < base + nr) set &= set32_below(set32_nth(seg_live(ix, p), (uint32_t)(to - base)));
  set &= set32_eq8(sel, REMIX_RUN, sel[at] & REMIX_RUN);
  const uint32_t near = set32_count(set);
  enum remixdb_status s = REMIXDB_OK;
  for (; set && s == REMIXDB_OK; set &= set - 1) {
    struct kv_rec rec;
    s = entry_read(x, p, set32_first(set), near, h, &rec);
    if (s == REMIXDB_OK) s = fn(arg, &rec, near);
  }
  return s;
}

static void share_segment(const struct remix *x, const uint8_t *p, struct remix_share *out) {
  const struct remix_index *const ix = x->index;
  const uint8_t *const sel = p + ix->lay.sel;
  const uint32_t live = seg_live(ix, p), all = set32_below(seg_nr(ix, p)),
                 tombs = set32_eq8(sel, REMIX_ERASED, REMIX_TOMB) & all;
  out->segs++;
  out->live += set32_count(live);
  out->tombs += set32_count(live & tombs);
  for (uint32_t left = all, mine; left; left &= ~mine) {
    const uint8_t run = sel[set32_first(left)] & REMIX_RUN;
    struct remix_run_share *const r = &out->runs[run];
    mine = set32_eq8(sel, REMIX_RUN, run) & all;
    r->all += set32_count(mine);
    if (mine & live) r->live += set32_count(mine & live);
    if (mine & tombs) r->tombs += set32_count(mine & tombs);
  }
}

// The pages before a record, its part of the block included.
static double pages_to(const struct sst *t, sst_pos pos) {
  const uint32_t block = sst_pos_block(pos);
  if (block >= t->nr_pages) return t->nr_pages;
  return block + (double)sst_block_pages(t, block) * sst_pos_idx(pos) / t->nr_recs[block];
}

void remix_share(const struct remix *x, uint64_t from, uint64_t to, uint32_t most, struct remix_share *out) {
  const struct remix_index *const ix = x->index;
  const uint32_t first = seg_live_after(x, 0, (uint32_t)from), end = seg_live_after(x, first, (uint32_t)(to - 1)) + 1,
                 step = (end - first + most - 1) / most;
  *out = (struct remix_share){.segs = 0};
  for (uint32_t seg = first + (step - 1) / 2; seg < end; seg += step) share_segment(x, seg_at(ix, seg), out);
  out->scale = (double)(to - from) / (out->live > 0 ? out->live : 1);
  out->step = (double)(end - first) / out->segs;
  for (uint32_t r = 0; r < x->nr_runs; r++) {
    const struct sst *const t = x->runs[r];
    const double high = end < x->nr_segs ? pages_to(t, seg_off(ix, seg_at(ix, end), r)) : t->nr_pages;
    out->runs[r].pages = high - pages_to(t, seg_off(ix, seg_at(ix, first), r));
  }
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
