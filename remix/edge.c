// SPDX-License-Identifier: Apache-2.0
#include "remix/edge.h"

#include "base/blind.h"
#include "remix/paged.h"

static void edge_init(struct remix_cursor *c, struct remix_edge *e, struct kref key, uint32_t open) {
  *e = (struct remix_edge){.key = key, .seg = open, .known = true};
  if (!key.ptr || c->x->nr_segs == 0) return;
  e->seg = anchors_find(&c->x->index->anchors, key);
  e->known = anchors_cmp(&c->x->index->anchors, e->seg, key) == 0;  // then no entry of the segment is less (R3)
}

void edge_set(struct remix_cursor *c, struct kref low, struct kref high) {
  edge_init(c, &c->low, low, 0);
  edge_init(c, &c->high, high, c->x->nr_segs);
  c->bounded = low.ptr || high.ptr;
}

struct edge_reader {
  struct remix_cursor *c;
  struct sst_hold hold;  // its own hold
  bool own;
};

static enum remixdb_status edge_entry(void *arg, const uint8_t *s, uint32_t i, struct kv_rec *rec_out) {
  struct edge_reader *const r = arg;
  const struct remix *const x = r->c->x;
  const uint32_t run = seg_run(x->index, s, i);
  const sst_pos pos = seg_pos(x, s, run, i);
  struct sst_hold *const had = &r->c->holds[run];
  const bool there = sst_holds_some(had, x->runs[run], sst_pos_block(pos), sst_pos_idx(pos), 1);
  REMIX_COUNT(key_reads);
  return sst_read_some(x->runs[run], pos, 1, false, r->own || there ? had : &r->hold, rec_out);
}

enum remixdb_status edge_find(struct remix_cursor *c, struct remix_edge *e, bool own) {
  const struct remix_index *const ix = c->x->index;
  const uint8_t *const p = seg_at(ix, e->seg);
  const struct blind dbits = seg_blind(ix, p);
  const uint32_t nr = seg_nr(ix, p), base = seg_base(ix, p);
  struct edge_reader reader = {.c = c, .own = own};
  struct seg_pos_found spot = {0, false};
  struct kv_rec rec;
  enum remixdb_status s;
  if (unlikely(seg_far(ix, p))) {
    s = seg_search_binary(c->x, p, e->key, edge_entry, &reader, &spot, &rec);
  } else {
    const uint32_t cand = blind_candidate(dbits, nr, base, e->key);
    s = edge_entry(&reader, p, cand, &rec);
    if (s == REMIXDB_OK) spot.at = blind_place(dbits, nr, base, e->key, cand, kref(rec.key, rec.klen), &spot.equal);
  }
  sst_hold_fini(&reader.hold);
  if (s != REMIXDB_OK) return s;
  e->at = spot.at;
  e->known = true;
  return s;
}

enum remixdb_status edge_find_near(struct remix_cursor *c, uint32_t seg) {
  struct remix_edge *const e = edge_ahead(c, c->back);
  return e->known || !edge_near(e, seg, c->back) ? REMIXDB_OK : edge_find(c, e, true);
}

// The run's first record at or behind the edge; not known: at or behind the edge's segment (low: behind that).
static sst_pos edge_pos(const struct remix_cursor *c, uint32_t run, bool back) {
  const struct remix *const x = c->x;
  const struct remix_edge *const e = back ? &c->low : &c->high;
  const uint32_t seg = e->seg + (back && !e->known);
  if (seg == x->nr_segs) return unlikely(x->of != NULL) ? remix_page_end(x, run) : sst_end(x->runs[run]);
  return seg_pos(x, seg_at(x->index, seg), run, e->known ? e->at : 0);
}

uint32_t edge_page(const struct remix_cursor *c, uint32_t run, uint32_t block, bool back) {
  const struct sst *const t = c->x->runs[run];
  const sst_pos pos = edge_pos(c, run, back);
  const uint32_t last = sst_pos_block(pos), end = block + sst_block_pages(t, block);
  if (back) return last < block ? last : block;
  const uint32_t edge = sst_pos_idx(pos) == 0 ? last : last + sst_block_pages(t, last);
  return edge > end ? edge : end;
}

uint32_t edge_records(const struct remix_cursor *c, uint32_t run, sst_pos pos, uint32_t most) {
  const struct sst *const t = c->x->runs[run];
  const sst_pos end = edge_pos(c, run, false);
  uint32_t block = sst_pos_block(pos), nr = 0;
  const uint32_t from = sst_pos_idx(pos);
  if (most == SST_ALL || end <= pos) return most == SST_ALL ? most : 1;
  for (; block < sst_pos_block(end) && nr < most + from; block += sst_block_pages(t, block)) nr += t->nr_recs[block];
  if (block == sst_pos_block(end)) nr += sst_pos_idx(end);
  return nr - from < most ? nr - from : most;
}
