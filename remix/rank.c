// SPDX-License-Identifier: Apache-2.0
//
// Ranks: how many live entries come before a key, and which one comes after so many.
#include "base/blind.h"
#include "remix/paged.h"
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

uint64_t remix_live(const struct remix *x) {
  return x->paged ? remix_page_rank(x, remix_pages(x)) : seg_rank(x->index, x->nr_segs);
}

static enum remixdb_status rank_paged(const struct remix *x, struct kref key, struct sst_hold *h, uint64_t *rank_out) {
  const uint32_t i = remix_page_of(x, key);
  struct remix *page;
  enum remixdb_status s = remix_page(x, i, &page);
  if (s == REMIXDB_OK) s = remix_rank(page, key, h, rank_out);
  if (s == REMIXDB_OK) *rank_out += remix_page_rank(x, i);
  return s;
}

enum remixdb_status remix_rank(const struct remix *x, struct kref key, struct sst_hold *h, uint64_t *rank_out) {
  const struct remix_index *const ix = x->index;
  struct rank_reader reader = {x, h};
  struct seg_pos_found spot = {0, false};
  struct kv_rec rec;
  *rank_out = 0;
  if (x->paged) return rank_paged(x, key, h, rank_out);
  if (x->nr_segs == 0) return REMIXDB_OK;
  const uint32_t seg = anchors_find(&ix->anchors, key);
  const uint8_t *const p = seg_at(ix, seg);
  enum remixdb_status s = REMIXDB_OK;
  if (anchors_cmp(&ix->anchors, seg, key) == 0) {
    spot.at = 0;  // no entry of the segment is less (R3)
  } else if (seg_far(ix, p)) {
    s = seg_search_binary(x, p, key, rank_entry, &reader, &spot, &rec);
  } else {
    const struct blind dbits = seg_blind(ix, p);
    const uint32_t nr = seg_nr(ix, p), base = seg_base(ix, p), cand = blind_candidate(dbits, nr, base, key);
    s = rank_entry(&reader, p, cand, &rec);
    if (s == REMIXDB_OK) spot.at = blind_place(dbits, nr, base, key, cand, kref(rec.key, rec.klen), &spot.equal);
  }
  if (s == REMIXDB_OK) *rank_out = seg_rank(ix, seg) + set32_count(seg_live(ix, p) & set32_below(spot.at));
  return s;
}

enum remixdb_status remix_live_near(const struct remix *x, uint64_t rank, uint64_t from, uint64_t to,
                                    struct sst_hold *h, remix_near_fn fn, void *arg) {
  if (x->paged) {
    const uint32_t i = remix_page_at(x, rank);
    const uint64_t before = remix_page_rank(x, i);
    struct remix *page;
    const enum remixdb_status s = remix_page(x, i, &page);
    if (s != REMIXDB_OK) return s;
    const uint64_t all = remix_live(page), end = to - before < all ? to - before : all;
    return remix_live_near(page, rank - before, from > before ? from - before : 0, end, h, fn, arg);
  }
  const struct remix_index *const ix = x->index;
  const uint32_t seg = seg_live_after(x, 0, (uint32_t)rank);
  const uint8_t *const p = seg_at(ix, seg);
  const struct seg_sels sels = seg_sels(ix, p);
  const uint64_t base = seg_rank(ix, seg);
  uint32_t set = seg_live(ix, p);
  const uint32_t at = set32_nth(set, (uint32_t)(rank - base)), nr = set32_count(set);
  if (from > base) set &= ~set32_below(set32_nth(set, (uint32_t)(from - base)));
  if (to < base + nr) set &= set32_below(set32_nth(seg_live(ix, p), (uint32_t)(to - base)));
  set &= sels_of(sels, sels_run(sels, at));
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
  uint8_t room[REMIX_SEG];
  const uint8_t *const sel = seg_bytes(ix, p, room);
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

// Adds `most` segments at most of [first, end), at equal distances.
static void share_segments(const struct remix *x, uint32_t first, uint32_t end, uint32_t most,
                           struct remix_share *out) {
  const uint32_t step = (end - first + most - 1) / most;
  for (uint32_t seg = first + (step - 1) / 2; seg < end; seg += step) share_segment(x, seg_at(x->index, seg), out);
}

// The segments of a whole view with live entries of these ranks: [*first_out, *end_out).
static void share_bounds(const struct remix *x, uint64_t from, uint64_t to, uint32_t *first_out, uint32_t *end_out) {
  *first_out = seg_live_after(x, 0, (uint32_t)from);
  *end_out = seg_live_after(x, *first_out, (uint32_t)(to - 1)) + 1;
}

// Pages of each run before a segment of a whole view, or of a page.
static void share_pages(const struct remix *x, uint32_t seg, double *pages_out) {
  for (uint32_t r = 0; r < x->nr_runs; r++)
    pages_out[r] = seg < x->nr_segs ? pages_to(x->runs[r], seg_off(x, seg_at(x->index, seg), r)) : x->runs[r]->nr_pages;
}

static void share_end(const struct remix *x, uint64_t live, uint32_t segs, const double *low, const double *high,
                      struct remix_share *out) {
  out->scale = (double)live / (out->live > 0 ? out->live : 1);
  out->step = (double)segs / out->segs;
  for (uint32_t r = 0; r < x->nr_runs; r++) out->runs[r].pages = high[r] - low[r];
}

#define SHARE_PAGES 8u  // pages of a paged view to look at

// Adds segments of a page that lie in [from, to), ranks of the paged view. Sets the bounds of these segments.
static enum remixdb_status share_page(const struct remix *x, uint32_t i, uint64_t from, uint64_t to, uint32_t most,
                                      struct remix_share *out, struct remix **page_out, uint32_t *first_out,
                                      uint32_t *end_out) {
  const uint64_t before = remix_page_rank(x, i), end = remix_page_rank(x, i + 1);
  const enum remixdb_status s = remix_page(x, i, page_out);
  if (s != REMIXDB_OK || before == end) return s;
  share_bounds(*page_out, from > before ? from - before : 0, (to < end ? to : end) - before, first_out, end_out);
  share_segments(*page_out, *first_out, *end_out, most, out);
  return s;
}

// Pages of each run before segment `seg` of page i of a paged view; behind its last one: before the next page.
static enum remixdb_status share_page_pages(const struct remix *x, uint32_t i, uint32_t seg, double *pages_out) {
  struct remix *page;
  enum remixdb_status s = remix_page(x, i, &page);
  if (s == REMIXDB_OK && seg == page->nr_segs && i + 1 < remix_pages(x)) {
    seg = 0;
    s = remix_page(x, i + 1, &page);
  }
  if (s == REMIXDB_OK) share_pages(page, seg, pages_out);
  return s;
}

static enum remixdb_status share_paged(const struct remix *x, uint64_t from, uint64_t to, uint32_t most,
                                       struct remix_share *out) {
  const uint32_t first = remix_page_at(x, from), last = remix_page_at(x, to - 1), nr = last - first + 1,
                 looks = nr < SHARE_PAGES ? nr : SHARE_PAGES, each = most / looks + 1;
  double low[REMIX_RUNS_MAX], high[REMIX_RUNS_MAX];
  uint32_t segs = 0, begin = 0, end = 0, first_seg = 0;
  struct remix *page;
  enum remixdb_status s = REMIXDB_OK;
  *out = (struct remix_share){.segs = 0};
  for (uint32_t k = 0; k < looks && s == REMIXDB_OK; k++) {
    const uint32_t i = looks == 1 ? first : first + (uint32_t)((uint64_t)(nr - 1) * k / (looks - 1));
    begin = end = 0;
    s = share_page(x, i, from, to, each, out, &page, &begin, &end);
    if (k == 0) first_seg = begin;
  }
  if (s == REMIXDB_OK) s = share_page_pages(x, first, first_seg, low);
  if (s == REMIXDB_OK) s = share_page_pages(x, last, end, high);
  if (s != REMIXDB_OK) return s;
  segs = remix_page_segment(x, last) + end - remix_page_segment(x, first) - first_seg;
  share_end(x, to - from, segs, low, high, out);
  return s;
}

enum remixdb_status remix_share(const struct remix *x, uint64_t from, uint64_t to, uint32_t most,
                                struct remix_share *out) {
  double low[REMIX_RUNS_MAX], high[REMIX_RUNS_MAX];
  uint32_t first, end;
  if (x->paged) return share_paged(x, from, to, most, out);
  *out = (struct remix_share){.segs = 0};
  share_bounds(x, from, to, &first, &end);
  share_segments(x, first, end, most, out);
  share_pages(x, first, low);
  share_pages(x, end, high);
  share_end(x, to - from, end - first, low, high, out);
  return REMIXDB_OK;
}

// A page that cannot be read makes the caller look the key up, and find the failure.
static __attribute__((noinline)) enum remix_guess guess_paged(const struct remix *x, struct kref key, uint64_t hash) {
  struct remix *page;
  if (remix_page_get(x, key, hash, true, &page) != REMIXDB_OK) return REMIX_UNKNOWN;
  return page ? remix_guess(page, key, hash) : REMIX_ABSENT;
}

enum remix_guess remix_guess(const struct remix *x, struct kref key, uint64_t hash) {
  const struct remix_index *const ix = x->index;
  if (x->paged) return guess_paged(x, key, hash);
  if (x->nr_segs == 0) return REMIX_ABSENT;
  const uint8_t *const p = seg_at(ix, anchors_find(&ix->anchors, key));
  if (!x->tags) return REMIX_UNKNOWN;
  if (seg_far(ix, p)) return seg_tagged(ix, p, hash) ? REMIX_UNKNOWN : REMIX_ABSENT;
  const uint32_t set = seg_candidate(ix, p, key, hash);
  if (!set) return REMIX_ABSENT;
  return seg_sel(ix, p, set32_first(set)) & REMIX_TOMB ? REMIX_DELETED : REMIX_THERE;
}
