// SPDX-License-Identifier: Apache-2.0
//
// Positions in a REMIX: seeking, stepping both ways, reading records.
#ifndef REMIX_CURSOR_H
#define REMIX_CURSOR_H

#include <assert.h>

#include "remix/position.h"

// A cursor without a REMIX; zeroed. queue may be NULL.
void remix_cursor_init(struct remix_cursor *c, struct blkio_queue *queue);
void remix_cursor_fini(struct remix_cursor *c);
// Private to remix_cursor_set:
static inline void remix_cursor_come(struct remix_cursor *c, struct remix *x) {
  c->x = x;
  c->seg = x ? x->nr_segs : 0;
  c->s = NULL;
  c->wanted = c->turned = c->bounded = c->no_room = false;
}
MUST_CHECK enum remixdb_status remix_cursor_set_slow(struct remix_cursor *c, struct remix *x);
// Moves the cursor to another REMIX; it is not valid afterwards. The holds stay, each until its run's next read, so
// that a change of the REMIX costs little. So tables that the cursor was at must stay open until it is set to NULL:
// that drops all holds and gives back their memory. Between pages of a paged REMIX remix_enter, remix_seek_first and
// remix_seek_last go on with the scans of the runs; before a seek of a key, the caller sets `turned` to false. x is no
// paged REMIX, but may be a page. REMIXDB_NOMEM, but not with NULL; it is then set to NULL.
MUST_CHECK static inline enum remixdb_status remix_cursor_set(struct remix_cursor *c, struct remix *x) {
  assert(!x || !x->paged);
  // mostly from a seek to a seek: the runs have room, and no step and no jump is to be counted
  if (unlikely(!x || x->of || x->nr_runs > c->cap || c->way != REMIX_SOUGHT || c->scan_debt || c->keys_only))
    return remix_cursor_set_slow(c, x);
  remix_cursor_come(c, x);
  return REMIXDB_OK;
}
// From now on remix_record needs to give no values. A record of a table with compressed keys then may come from these,
// without a value. So a scan reads only a few blocks of each run. Call it when the cursor has no REMIX.
static inline void remix_keys_only(struct remix_cursor *c) { c->keys_only = true; }
// Bounds: from now on, and until remix_cursor_set, the cursor goes to entries low <= key < high only; ptr NULL: no
// bound on this side. The cursor has a REMIX and is not valid. The keys must stay readable. A seek's key must lie
// within. Each move must be followed by remix_settle. The cursor reads no block for an entry beyond a bound, except for
// one key in each view, to find the bound's place.
void remix_bound(struct remix_cursor *c, struct kref low, struct kref high);
// Goes to the first entry within the bounds, or to the last one. After an error the cursor is not valid.
MUST_CHECK enum remixdb_status remix_seek_edge(struct remix_cursor *c, bool back);
// Ends a move: finds the place of the bound in this direction, if the cursor has come to its segment. If the entry lies
// beyond, the cursor is not valid afterwards. Needs an epoch if remix_settled is false.
MUST_CHECK enum remixdb_status remix_settle(struct remix_cursor *c, bool back);
static inline bool remix_settled(const struct remix_cursor *c, bool back) {
  const struct remix_edge *const e = back ? &c->low : &c->high;
  return !c->bounded || !remix_valid(c) || c->seg != e->seg || e->known;
}
void remix_stop(struct remix_cursor *c);  // makes it not valid: the next records lie beyond a bound
// Go to the first entry >= key, and to the last entry <= key. After an error the cursor is not valid.
//
// A seek reads exactly one key, whether the sought key is there or not: the key of the blind search's candidate. No
// other entry shares a longer prefix with the sought key, and if the sought key is there, the candidate is its newest
// version. The shared prefix gives the place. In a segment with far bits the seek is a binary search of keys.
// Tags cannot save this read. A key that has the tag by chance tells nothing about the place, so the seek would have to
// read a second key. The seek uses tags only to prefetch before it knows the candidate.
MUST_CHECK enum remixdb_status remix_seek(struct remix_cursor *c, struct kref key);
MUST_CHECK enum remixdb_status remix_seek_for_prev(struct remix_cursor *c, struct kref key);
void remix_seek_first(struct remix_cursor *c);
void remix_seek_last(struct remix_cursor *c);
// The same for a cursor that comes from another REMIX by a step on (first) or back (last): its scan goes on.
void remix_enter(struct remix_cursor *c, enum remix_way way);
// Tells whether the view has no key from `key` to `to`, both included. The seek of `key` has begun, and `to` lies
// beyond `key` in the direction. False says nothing. Reads one key, the candidate's: all keys between share as many
// leading bits with `key` as `to` does, and no entry of the segment shares more than the candidate. Inside an epoch.
// The cursor's next move must be a seek.
MUST_CHECK enum remixdb_status remix_none_between(struct remix_cursor *c, struct kref key, struct kref to, bool back,
                                                  bool *none_out);
// Prefetches the segment that a seek of this key reads first. The seek is the cursor's next call, in the same epoch.
void remix_seek_begin(struct remix_cursor *c, struct kref key);
// The same, of a segment that the caller has found and prefetched (remix_quick_find).
void remix_seek_begun(struct remix_cursor *c, uint32_t seg);
// Does remix_next if the next entry is live, does not expire, and a plain step suffices. Else returns false, and
// nothing has moved. Needs no epoch: it reads the view and memory that lives as long as the tables.
static inline bool remix_next_fast(struct remix_cursor *c) {
  const uint32_t to = c->at + 1;
  if (unlikely(to >= c->warm || !(c->plain >> to & 1))) return false;
  c->near[c->sel[c->at] & REMIX_RUN].idx++;
  c->at = to;
  return true;
}
// The key that remix_next_fast would come to, if its block is held. False says nothing.
MUST_CHECK static inline bool remix_key_ahead(const struct remix_cursor *c, struct kref *out) {
  const uint32_t to = c->at + 1;
  if (unlikely(to >= c->warm || !(c->plain >> to & 1))) return false;
  const uint32_t run = c->sel[to] & REMIX_RUN;
  const struct remix_run_pos *const n = &c->near[run];
  const uint32_t idx = n->idx + (run == (c->sel[c->at] & REMIX_RUN));  // near is of the cursor's entry
  struct kv_rec r;
  if (unlikely(idx >= n->nr || !block_record_short(n->data, idx, &r))) return false;
  REMIX_COUNT(records);
  *out = kref(r.key, r.klen);
  return true;
}
void remix_next_slow(struct remix_cursor *c);  // private to remix_next
// Steps to the next live entry, or to the one before. The cursor must be valid. Reads no block and compares no key.
// Passing n segments without a live entry takes O(log n).
static inline void remix_next(struct remix_cursor *c) {
  if (unlikely(!remix_next_fast(c))) remix_next_slow(c);
}
// The same backward.
static inline bool remix_prev_fast(struct remix_cursor *c) {
  if (unlikely(c->at <= c->cool || !(c->plain >> (c->at - 1) & 1))) return false;
  const uint32_t to = --c->at;
  c->near[c->sel[to] & REMIX_RUN].idx--;
  return true;
}
// The key that remix_prev_fast would come to, as remix_key_ahead.
MUST_CHECK static inline bool remix_key_behind(const struct remix_cursor *c, struct kref *out) {
  if (unlikely(c->at <= c->cool || !(c->plain >> (c->at - 1) & 1))) return false;
  const struct remix_run_pos *const n = &c->near[c->sel[c->at - 1] & REMIX_RUN];
  const uint32_t idx = n->idx - 1;  // 0 wraps: it is beyond nr
  struct kv_rec r;
  if (unlikely(idx >= n->nr || !block_record_short(n->data, idx, &r))) return false;
  REMIX_COUNT(records);
  *out = kref(r.key, r.klen);
  return true;
}
void remix_prev_slow(struct remix_cursor *c);  // private to remix_prev
static inline void remix_prev(struct remix_cursor *c) {
  if (unlikely(!remix_prev_fast(c))) remix_prev_slow(c);
}
// Goes on by nr entries, or by as many as there are, but not into segment `end` (UINT32_MAX: no such limit). Must be
// valid, and stays valid. Returns the number of entries. O(log n) for n segments.
uint32_t remix_skip(struct remix_cursor *c, uint32_t nr, uint32_t end);
// Moves to the last live entry of a segment ahead, or of the cursor's own (back: to the first one of a segment behind).
// That segment has one, and no bound lies in the segments between. The entries between do not count as stepped over.
void remix_leap(struct remix_cursor *c, uint32_t seg, bool back);
// The current entry's record. It holds until the cursor moves to another block of the same run; its key stays readable
// while the cursor stands. Reads the block if it is not held. After an error the cursor stands where it was.
MUST_CHECK enum remixdb_status remix_record(struct remix_cursor *c, struct kv_rec *rec_out);
// The same, if the block is held and the record is a short one; else false. Needs no epoch: a held block is pinned.
MUST_CHECK static inline bool remix_record_held(const struct remix_cursor *c, struct kv_rec *rec_out) {
  const struct remix_run_pos *const n = &c->near[remix_run(c)];
  if (unlikely(n->idx >= n->nr || !block_record_short(n->data, n->idx, rec_out))) return false;
  REMIX_COUNT(records);
  return true;
}
#endif
