// SPDX-License-Identifier: Apache-2.0
#include "remix/gather.h"

#include <assert.h>

#include "base/blind.h"
#include "remix/edge.h"

#define GATHER_HOLE 1u  // pages that are read though nobody needs them, because a second read would cost more
#define GATHER_MORE 3u  // entries of the cursor beside that are gathered beyond its share

struct gather {
  struct sst_need needs[BLKIO_BATCH_MAX];
  bool jumps[BLKIO_BATCH_MAX];  // the need is one only because there are several runs
  struct remix_cursor *of[BLKIO_BATCH_MAX];
  uint32_t nr, pages;
  bool first;  // the first need is a jump, too
  // The cursor whose needs are being added:
  struct remix_cursor *cursor;
  const struct remix *x;
  uint8_t last[REMIX_RUNS_MAX];  // each run's need that was added last, counted from 1; 0: none
};

static void gather_view(struct gather *g, struct remix_cursor *c) {
  g->cursor = c;
  g->x = c->x;
  memset(g->last, 0, sizeof(g->last));
}

static bool gather_missing(const struct gather *g, uint32_t run, uint32_t block) {
  const struct sst *const t = g->x->runs[run];
  return missing(&g->cursor->holds[run], t, block);
}

// Whether the blocks [from, to) are neighbours of what the run's hold has.
static bool gather_near(const struct gather *g, uint32_t run, uint32_t from, uint32_t to) {
  const struct sst_hold *const h = &g->cursor->holds[run];
  const struct sst *const t = g->x->runs[run];
  for (uint32_t i = 0; i < 2; i++) {
    const struct sst_ahead *const a = &h->ahead[i];
    if (a->to && a->number == t->number && (a->to == from || a->from == to)) return true;
  }
  return h->sst == t && (h->block == to || h->block + sst_block_pages(t, h->block) == from);
}

// Adds a missing block. False: the gather is full.
static bool gather_block(struct gather *g, uint32_t run, uint32_t block) {
  struct sst *const t = g->x->runs[run];
  const uint32_t to = block + sst_block_pages(t, block);
  struct sst_need *const w = g->last[run] ? &g->needs[g->last[run] - 1] : NULL;
  if (w && block >= w->from && to <= w->to) return true;
  if (w && block >= w->to && block <= w->to + GATHER_HOLE) {
    g->pages += to - w->to;
    w->to = to;
  } else if (w && to <= w->from && to + GATHER_HOLE >= w->from) {
    g->pages += w->from - block;
    w->from = block;
  } else {
    struct sst_hold *const hold = w ? NULL : &g->cursor->holds[run];
    if (!hold && !t->cache.cache) return true;
    if (g->nr == BLKIO_BATCH_MAX) return false;
    g->jumps[g->nr] = (g->nr || g->first) && !w && !gather_near(g, run, block, to);
    g->of[g->nr] = g->cursor;
    g->needs[g->nr++] = (struct sst_need){t, block, to, hold};
    g->last[run] = (uint8_t)g->nr;
    g->pages += to - block;
  }
  return g->pages < GATHER_PAGES;
}

// Adds the blocks of entries `set` of segment s, those that are needed first in front.
static bool gather_set(struct gather *g, const uint8_t *s, uint32_t set, bool back) {
  const struct remix *const x = g->x;
  const struct seg_sels sels = seg_sels(x->index, s);
  while (set) {
    const uint32_t run = sels_run(sels, back ? set32_last(set) : set32_first(set)), mine = set & sels_of(sels, run);
    const struct sst *const t = x->runs[run];
    const sst_pos off = seg_off(x, s, run);
    const uint32_t lo = sst_pos_block(sels_pos_from(x, off, sels, run, set32_first(mine))),
                   hi = sst_pos_block(sels_pos_from(x, off, sels, run, set32_last(mine)));
    set &= ~mine;
    for (uint32_t b = back ? hi : lo;;) {
      if (gather_missing(g, run, b) && !gather_block(g, run, b)) return false;
      if (b == (back ? lo : hi)) break;
      if (!back) b += sst_block_pages(t, b);
      else do
          b--;
        while (t->nr_recs[b] == 0);
    }
  }
  return true;
}

// Adds the blocks of nr live entries: from entry `at` of segment seg on.
static void gather_on(struct gather *g, uint32_t seg, uint32_t at, uint32_t nr) {
  const struct remix *const x = g->x;
  const struct remix_index *const ix = x->index;
  while (nr) {
    const uint8_t *const s = seg_at(ix, seg);
    uint32_t set = seg_live(ix, s) & ~set32_below(at);
    if (unlikely(g->cursor->bounded)) {
      if (!edge_open(g->cursor, seg, false)) return;
      set &= edge_within(g->cursor, seg);
    }
    const uint32_t n = set32_count(set);
    if (n > nr) set &= set32_below(set32_nth(set, nr));
    if (!gather_set(g, s, set, false) || n >= nr) return;
    nr -= n;
    seg = seg_live_next(x, seg + 1);
    if (seg == x->nr_segs) return;
    at = 0;
  }
}

// The same downward: entry `at` is the first of them.
static void gather_back(struct gather *g, uint32_t seg, uint32_t at, uint32_t nr) {
  const struct remix *const x = g->x;
  const struct remix_index *const ix = x->index;
  while (nr) {
    const uint8_t *const s = seg_at(ix, seg);
    uint32_t set = seg_live(ix, s) & ~set32_above(at);
    if (unlikely(g->cursor->bounded)) {
      if (!edge_open(g->cursor, seg, true)) return;
      set &= edge_within(g->cursor, seg);
    }
    const uint32_t n = set32_count(set);
    if (n > nr) set &= ~set32_below(set32_nth(set, n - nr));
    if (!gather_set(g, s, set, true) || n >= nr) return;
    nr -= n;
    seg = seg_live_prev(x, seg);
    if (seg == x->nr_segs) return;
    at = REMIX_SEG - 1;
  }
}

static void gather_way(struct gather *g, bool back, uint32_t seg, uint32_t at, uint32_t nr) {
  if (back) gather_back(g, seg, at, nr);
  else gather_on(g, seg, at, nr);
}

// Adds the key that tells the place of the bound ahead, if the seek looks that up (edge_find_near).
static void gather_edge(struct gather *g, uint32_t seg, bool back) {
  const struct remix_edge *const e = back ? &g->cursor->low : &g->cursor->high;
  const struct remix_index *const ix = g->x->index;
  if (e->known || !edge_near(e, seg, back)) return;
  const uint8_t *const s = seg_at(ix, e->seg);
  if (seg_far(ix, s)) return;
  gather_set(g, s, 1u << blind_candidate(seg_blind(ix, s), seg_nr(ix, s), seg_base(ix, s), e->key), back);
}

// Adds what a seek reads: its candidate's block, and its neighbour's (gather_seek).
static void gather_candidate(struct gather *g, uint32_t seg, const uint8_t *s, uint32_t cand, bool absent, bool back) {
  if (!gather_set(g, s, 1u << cand, back) || !absent) return;
  const uint32_t others = seg_live(g->x->index, s) & (back ? set32_below(cand) : set32_above(cand));
  gather_way(g, back, seg, cand, others || !(seg_live(g->x->index, s) >> cand & 1) ? 2 : 1);
}

// The live entries before an entry, given by its ordinal.
static uint32_t live_rank(const struct remix *x, uint32_t ordinal) {
  const uint32_t seg = ordinal / REMIX_SEG;
  if (seg >= x->nr_segs) return seg_rank(x->index, x->nr_segs);
  return seg_rank(x->index, seg) +
         set32_count(seg_live(x->index, seg_at(x->index, seg)) & set32_below(ordinal % REMIX_SEG));
}

uint32_t remix_came(const struct remix_cursor *c) {
  if (!c->x || c->way == REMIX_SOUGHT) return c->came;
  const uint32_t here = live_rank(c->x, c->seg * REMIX_SEG + c->at), from = live_rank(c->x, c->from);
  if (c->way == REMIX_ON) return c->came + here - from;
  return remix_valid(c) ? c->came + from - here : c->came;
}

// How many entries from the cursor's on (its own among them) are worth reading together.
static uint32_t gather_entries(const struct remix_cursor *c) {
  const uint32_t usual = c->expect ? c->expect : c->reach ? *c->reach : 0, came = remix_came(c);
  uint32_t left = came < usual ? usual - came : came;
  if ((left < GATHER_FEW && came >= usual) || c->keys_only) left = GATHER_FEW;  // later keys come without blocks
  return 1 + (left < GATHER_ENTRIES ? left : GATHER_ENTRIES);
}

// How many entries a seek reads together with its own; 0: only its own.
static uint32_t gather_sought(const struct remix_cursor *c) {
  if (c->onward) return gather_entries(c->lead ? c->lead : c);
  const uint32_t limit = c->keys_only ? GATHER_FEW : GATHER_ENTRIES, most = c->expect < limit ? c->expect : limit;
  return most ? most + 1 : 0;
}

// The share of nr entries of the one view that belongs to the other.
static uint32_t gather_share(const struct remix *of, const struct remix *to, uint32_t nr) {
  const uint64_t a = remix_live(of->of ? of->of : of), b = remix_live(to->of ? to->of : to);
  const uint64_t n = a ? nr * b / a + GATHER_MORE : nr;
  return n < GATHER_ENTRIES ? (uint32_t)n : GATHER_ENTRIES;
}

// Reads what was gathered. A single block is left to sst_read_some, which may find a frame for it.
static void gather_read(struct remix_cursor *c, const struct gather *g) {
  if (g->nr > 1 || (g->nr == 1 && g->needs[0].to - g->needs[0].from > sst_block_pages(g->needs[0].t, g->needs[0].from)))
    sst_fetch(c->queue, g->needs, g->nr);
  else return;
  for (uint32_t i = 0; i < g->nr; i++) g->of[i]->scan_debt += g->jumps[i];
}

// Adds nr entries from the cursor's own position on, and those of the cursor beside; with nr 1 only the two entries
// that they stand at.
static void gather_both(struct gather *g, struct remix_cursor *c, bool back, uint32_t nr) {
  struct remix_cursor *const b = c->beside;
  gather_view(g, c);
  gather_way(g, back, c->seg, c->at, nr);
  if (!b || b->wanted || !remix_valid(b)) return;
  gather_view(g, b);
  gather_way(g, back, b->seg, b->at, nr == 1 ? 1 : gather_share(c->x, b->x, nr));
}

void gather_seek(struct remix_cursor *c, struct kref key, const uint8_t *s, uint32_t cand, bool absent) {
  struct remix_cursor *const b = c->beside;
  struct gather g = {.nr = 0};
  assert(c->queue);
  gather_view(&g, c);
  const uint32_t seg = c->front_seg;
  g.first = c->x->index->young;
  const uint32_t nr = gather_sought(c);
  gather_candidate(&g, seg, s, cand, absent, c->back);
  if (unlikely(c->bounded)) gather_edge(&g, seg, c->back);
  if (nr) gather_way(&g, c->back, seg, cand, c->lead && c->lead->x ? gather_share(c->lead->x, c->x, nr) : nr);
  if (b && b->wanted && (b->due || absent || c->onward)) {  // its seek is the next
    const struct remix_index *const ix = b->x->index;
    const uint8_t *const s2 = seg_at(ix, b->begun_seg);
    gather_view(&g, b);
    if (!seg_far(ix, s2)) {
      const uint32_t cand2 = blind_candidate(seg_blind(ix, s2), seg_nr(ix, s2), seg_base(ix, s2), key);
      gather_set(&g, s2, 1u << cand2, c->back);
      if (unlikely(b->bounded)) gather_edge(&g, b->begun_seg, c->back);
      if (nr) gather_way(&g, c->back, b->begun_seg, cand2, gather_share(c->x, b->x, nr));
    }
  } else if (b && c->onward && !b->wanted && remix_valid(b)) {
    gather_view(&g, b);
    gather_way(&g, c->back, b->seg, b->at, b->lead ? gather_share(c->x, b->x, nr) : nr);
  }
  gather_read(c, &g);
}

void gather_steps(struct remix_cursor *c) {
  struct gather g = {.nr = 0};
  assert(c->queue && remix_valid(c));
  if (c->way == REMIX_SOUGHT) {  // nothing tells that steps will follow, nor which way
    gather_both(&g, c, false, 1);
  } else if (!c->lead || !remix_valid(c->lead)) {
    gather_both(&g, c, c->way == REMIX_BACK, gather_entries(c));
  } else {
    const bool back = c->way == REMIX_BACK;
    const uint32_t nr = gather_entries(c->lead);
    gather_view(&g, c);
    gather_way(&g, back, c->seg, c->at, gather_share(c->lead->x, c->x, nr));
    if (c->beside) {
      gather_view(&g, c->lead);
      gather_way(&g, back, c->lead->seg, c->lead->at, nr);
    }
  }
  gather_read(c, &g);
}

bool remix_may_have(const struct remix_cursor *c, struct kref key, uint64_t hash) {
  const struct remix *const x = c->x;
  if (x->nr_segs == 0) return false;
  assert(c->wanted);
  const uint8_t *const s = seg_at(x->index, c->begun_seg);
  const uint32_t nr = seg_nr(x->index, s);
  const uint8_t tag = remix_tag(hash);
  if (!x->tags || seg_far(x->index, s)) return true;
  if (!(set32_eq8(s, 0xFF, tag) & set32_below(nr))) return false;
  return s[blind_candidate(seg_blind(x->index, s), nr, seg_base(x->index, s), key)] == tag;
}

// ---- records ahead

static bool record_at_hand(const struct remix_cursor *c, const uint8_t *s, uint32_t i, struct kv_rec *out) {
  const uint32_t run = seg_run(c->x->index, s, i);
  struct sst *const t = c->x->runs[run];
  const struct sst_hold *const h = &c->holds[run];
  const sst_pos pos = seg_pos(c->x, s, run, i);
  const uint8_t *data = NULL;
  uint32_t frame;
  if (sst_holds_some(h, t, sst_pos_block(pos), sst_pos_idx(pos), 1)) data = h->cb.data;
  else if (t->cache.cache) data = cache_hit(&t->cache, sst_pos_block(pos), &frame);
  if (data) block_record(data, sst_pos_idx(pos), out);
  return data != NULL;
}

// How many entries the cursor's steps come to. A scan that has gone further than expected goes on, mostly not for long.
static uint32_t steps_expected(const struct remix_cursor *c) {
  const struct remix_cursor *const lead = c->lead && remix_valid(c->lead) ? c->lead : c;
  const uint32_t usual = lead->expect ? lead->expect : lead->reach ? *lead->reach : 0, came = remix_came(lead);
  uint32_t nr = came < usual ? usual - came : 2 * (came - usual);
  if (lead->way == REMIX_SOUGHT) nr = lead->expect;
  if (nr > GATHER_ENTRIES) nr = GATHER_ENTRIES;
  return lead == c || nr == 0 ? nr : gather_share(lead->x, c->x, nr);
}

// Goes to the next segment with live entries. False: there is none within the bounds.
static bool segment_ahead(const struct remix_cursor *c, bool back, uint32_t *seg, uint32_t *set_out) {
  const struct remix *const x = c->x;
  *seg = back ? seg_live_prev(x, *seg) : seg_live_next(x, *seg + 1);
  if (*seg == x->nr_segs) return false;
  *set_out = seg_live(x->index, seg_at(x->index, *seg));
  if (likely(!c->bounded)) return true;
  *set_out &= edge_within(c, *seg);
  return edge_open(c, *seg, back);
}

uint32_t remix_next_records(const struct remix_cursor *c, bool own, struct kv_rec *out, uint32_t most) {
  uint32_t found = 0;
  if (!remix_valid(c)) return 0;
  const bool back = c->way == REMIX_SOUGHT ? c->back : c->way == REMIX_BACK;
  uint32_t left = steps_expected(c), seg = c->seg;
  uint32_t set = c->live & (back ? set32_below(c->at + own) : ~set32_below(c->at + !own));
  while (left && found < most) {
    if (!set) {
      if (!segment_ahead(c, back, &seg, &set)) break;
      continue;
    }
    const uint32_t i = back ? set32_last(set) : set32_first(set);
    set &= ~(1u << i);
    left--;
    found += record_at_hand(c, seg_at(c->x->index, seg), i, &out[found]);
  }
  return found;
}
