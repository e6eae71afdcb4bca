// SPDX-License-Identifier: Apache-2.0
//
// The bounds of a cursor: which entries lie within, and which blocks of the runs hold them. Private to cursor.c,
// gather.c and edge.c.
//
// A bound's segment follows from the anchors. Its place in the segment follows from one key, the candidate of the blind
// search, as for a seek. The cursor looks it up when it comes to that segment, or when a seek ends in the segment
// before. Until then nothing is read ahead in that segment.
#ifndef REMIX_EDGE_H
#define REMIX_EDGE_H

#include "remix/position.h"
#include "remix/seg.h"

// Sets the bounds of a cursor that has a REMIX; the keys stay the caller's. ptr NULL: no bound on this side.
void edge_set(struct remix_cursor *c, struct kref low, struct kref high);
// Finds the place of the edge, which is not known. own: the search may use the cursor's holds, as a seek does;
// otherwise they stay as they are. Inside an epoch.
MUST_CHECK enum remixdb_status edge_find(struct remix_cursor *c, struct remix_edge *e, bool own);
// The same if the edge ahead of a seek that ends in segment seg is near. c->back is the direction.
MUST_CHECK enum remixdb_status edge_find_near(struct remix_cursor *c, uint32_t seg);

static inline struct remix_edge *edge_ahead(struct remix_cursor *c, bool back) { return back ? &c->low : &c->high; }
// Whether the edge ahead of segment seg is in it, or in the next one.
static inline bool edge_near(const struct remix_edge *e, uint32_t seg, bool back) {
  return back ? seg <= e->seg + 1 : e->seg <= seg + 1;
}
// The entries of the segment that lie within the edges, as far as these are known.
static inline uint32_t edge_within(const struct remix_cursor *c, uint32_t seg) {
  uint32_t set = UINT32_MAX;
  if (seg == c->low.seg && c->low.known) set &= ~set32_below(c->low.at);
  if (seg == c->high.seg && c->high.known) set &= set32_below(c->high.at);
  return set;
}
// Whether the segment lies beyond the edge in this direction; or in it, and has no live entry within.
static inline bool edge_beyond(const struct remix_cursor *c, uint32_t seg, bool back) {
  if (back ? seg < c->low.seg : seg > c->high.seg) return true;
  const struct remix_edge *const e = back ? &c->low : &c->high;
  if (seg != e->seg || !e->known || seg == c->x->nr_segs) return false;
  return !(seg_live(c->x->index, seg_at(c->x->index, seg)) & edge_within(c, seg));
}
// Whether a reader ahead may read entries of the segment: its place is known, or no edge is in it.
static inline bool edge_open(const struct remix_cursor *c, uint32_t seg, bool back) {
  const struct remix_edge *const e = back ? &c->low : &c->high;
  return (back ? seg > e->seg : seg < e->seg) || (seg == e->seg && e->known);
}
// The pages of the run that hold entries within the edge ahead: they end before this page (back: begin with it). The
// reader is at `block`, which counts as one of them.
uint32_t edge_page(const struct remix_cursor *c, uint32_t run, uint32_t block, bool back);
// How many of the `most` records of the run that begin at pos come before the high edge, about: at least 1.
uint32_t edge_records(const struct remix_cursor *c, uint32_t run, sst_pos pos, uint32_t most);
#endif
