// SPDX-License-Identifier: Apache-2.0
//
// Segments of a REMIX in memory: their parts, and reading an entry. Private to remix/.
#ifndef REMIX_SEG_H
#define REMIX_SEG_H

#include "base/blind.h"
#include "remix/state.h"

static inline const uint8_t *seg_at(const struct remix_index *ix, uint32_t seg) {
  return remix_seg_at(&ix->lay, ix->segs, seg);
}
static inline uint32_t seg_nr(const struct remix_index *ix, const uint8_t *s) { return remix_seg_nr(&ix->lay, s); }
static inline uint32_t seg_base(const struct remix_index *ix, const uint8_t *s) { return remix_seg_base(&ix->lay, s); }
static inline bool seg_far(const struct remix_index *ix, const uint8_t *s) {
  return remix_seg_flags(&ix->lay, s) & REMIX_SEG_FAR;
}
// An element of the list behind a narrow image's anchors.
static inline const uint8_t *seg_listed(const struct remix_index *ix, const uint8_t *number) {
  return ix->list + (size_t)load32le(number) * REMIX_LISTED;
}
// The form of a segment's discriminating bits that are no nibbles.
static inline uint8_t seg_form(const struct remix_index *ix, const uint8_t *s) {
  const uint32_t flags = remix_seg_flags(&ix->lay, s);
  return flags & REMIX_SEG_WIDE ? BLIND_IS_WIDE : flags & REMIX_SEG_DENSE ? BLIND_IS_DENSE : BLIND_IS_NARROW;
}
// The discriminating bits of a segment (N1).
static inline struct blind seg_blind(const struct remix_index *ix, const uint8_t *s) {
  const uint8_t *const bits = s + ix->lay.dbits;
  if (likely(ix->lay.tables)) {
    const uint16_t table = (uint16_t)load16le(s + ix->lay.head + REMIX_SEG_TABLE);
    if (likely(table)) return (struct blind){bits, BLIND_IS_NARROW, table};
    return (struct blind){seg_listed(ix, bits), seg_form(ix, s), 0};
  }
  if (unlikely(ix->lay.wide)) return (struct blind){bits, BLIND_IS_WIDE, 0};
  const uint8_t form = seg_form(ix, s);
  return (struct blind){likely(form != BLIND_IS_WIDE) ? bits : seg_listed(ix, bits), form, 0};
}

// A cursor offset that is far from its group's row (N5).
sst_pos seg_off_walk(const struct remix *x, const uint8_t *s, uint32_t run);
// The row of a segment's group; s itself if there are no groups.
static inline const uint8_t *seg_row(const struct remix_index *ix, const uint8_t *s) {
  if (!ix->lay.row) return s;
  return s - (size_t)(remix_seg_flags(&ix->lay, s) >> REMIX_SEG_GROUP) * ix->lay.stride - ix->lay.row;
}
// A cursor offset (N4). row: the segment's.
ALWAYS_INLINE sst_pos seg_off_by(const struct remix *x, const uint8_t *s, const uint8_t *row, uint32_t run) {
  const struct remix_layout *const l = &x->index->lay;
  if (!l->row) return remix_seg_off(l, s, run);
  const uint32_t far = s[l->offs + run];
  if (unlikely(far == REMIX_WALK)) return seg_off_walk(x, s, run);
  return sst_pos_make(load16le(row + REMIX_BASE * run), 0) + far + (far * l->inverse >> 16) * l->beyond;
}
static inline sst_pos seg_off(const struct remix *x, const uint8_t *s, uint32_t run) {
  return seg_off_by(x, s, seg_row(x->index, s), run);
}
// The cursor offsets of all runs.
static inline void seg_offs(const struct remix *x, const uint8_t *s, sst_pos *out) {
  const uint8_t *const row = seg_row(x->index, s);
  for (uint32_t r = 0; r < x->nr_runs; r++) out[r] = seg_off_by(x, s, row, r);
}

// The selectors of a segment: bytes, or nibbles, which have the runs only (N1).
struct seg_sels {
  const uint8_t *p;
  bool nibbles;
};
static inline struct seg_sels seg_sels(const struct remix_index *ix, const uint8_t *s) {
  const uint8_t *const p = s + ix->lay.sel;
  if (likely(remix_seg_flags(&ix->lay, s) & REMIX_SEG_NIBBLES)) return (struct seg_sels){p, true};
  return (struct seg_sels){likely(!ix->lay.nibbles) ? p : seg_listed(ix, p), false};
}
// The run of entry i.
static inline uint32_t sels_run(struct seg_sels sels, uint32_t i) {
  return likely(sels.nibbles) ? set32_nibble(sels.p, i) : sels.p[i] & REMIX_RUN;
}
static inline uint32_t seg_run(const struct remix_index *ix, const uint8_t *s, uint32_t i) {
  return sels_run(seg_sels(ix, s), i);
}
// The entries of a run; those beyond the last entry count as of run 0.
static inline uint32_t sels_of(struct seg_sels sels, uint32_t run) {
  return likely(sels.nibbles) ? set32_eq4(sels.p, run) : set32_eq8(sels.p, REMIX_RUN, (uint8_t)run);
}
// The selector of entry i without the bit REMIX_OLD.
static inline uint8_t seg_sel(const struct remix_index *ix, const uint8_t *s, uint32_t i) {
  const struct seg_sels sels = seg_sels(ix, s);
  return likely(sels.nibbles) ? (uint8_t)set32_nibble(sels.p, i) : sels.p[i] & (uint8_t)~REMIX_OLD;
}
// The selectors as 32 bytes: in the image, or in `room`.
static inline const uint8_t *seg_bytes(const struct remix_index *ix, const uint8_t *s, uint8_t *room) {
  const struct seg_sels sels = seg_sels(ix, s);
  if (unlikely(!sels.nibbles)) return sels.p;
  set32_spread(sels.p, room);
  if (unlikely(remix_seg_flags(&ix->lay, s) & REMIX_SEG_OLD))
    for (uint32_t m = blind_same(seg_blind(ix, s)) & set32_below(seg_nr(ix, s)); m; m &= m - 1)
      room[set32_first(m)] |= REMIX_OLD;
  return room;
}

static inline uint32_t seg_live(const struct remix_index *ix, const uint8_t *s) {
  const uint32_t flags = remix_seg_flags(&ix->lay, s);
  if (likely(flags & REMIX_SEG_NIBBLES)) {  // no tombstone, and nothing is erased
    const uint32_t in = set32_below(seg_nr(ix, s));
    return likely(!(flags & REMIX_SEG_OLD)) ? in : in & ~blind_same(seg_blind(ix, s));
  }
  const uint8_t *const sel = seg_sels(ix, s).p;
  uint32_t shown;
  if (likely(!ix->young)) shown = set32_eq8(sel, REMIX_OLD | REMIX_TOMB, 0);
  else shown = set32_eq8(sel, REMIX_OLD, 0) & ~set32_eq8(sel, REMIX_ERASED, REMIX_ERASED);
  return shown & set32_below(seg_nr(ix, s));
}

// The live entries with the key's tag, in a segment with tags.
static inline uint32_t seg_tagged(const struct remix_index *ix, const uint8_t *s, uint64_t hash) {
  return set32_eq8(s, 0xFF, remix_tag(hash)) & seg_live(ix, s);
}
// The same without those that the blind search excludes; it leaves one at most. No bit of the segment is far.
static inline uint32_t seg_candidate(const struct remix_index *ix, const uint8_t *s, struct kref key, uint64_t hash) {
  const uint32_t set = seg_tagged(ix, s, hash);
  return set ? set & 1u << blind_candidate(seg_blind(ix, s), seg_nr(ix, s), seg_base(ix, s), key) : 0;
}

// Prefetches the row of a segment's group.
static inline void seg_row_prefetch(const struct remix_index *ix, uint32_t seg) {
  remix_row_prefetch(remix_group_at(&ix->lay, ix->segs, seg / REMIX_GROUP), ix->lay.row);
}
// Prefetches a segment, and its group's row. Returns the segment.
static inline const uint8_t *seg_prefetch(const struct remix_index *ix, uint32_t seg) {
  const uint8_t *const s = seg_at(ix, seg);
  if (ix->lay.row) seg_row_prefetch(ix, seg);
  remix_stride_prefetch(s, ix->lay.stride);
  return s;
}

// Returns the position of the run's first record at or after entry i (R4). off: the run's cursor offset.
ALWAYS_INLINE sst_pos sels_pos_from(const struct remix *x, sst_pos off, struct seg_sels sels, uint32_t run,
                                    uint32_t i) {
  return sst_advance(x->runs[run], off, set32_count(sels_of(sels, run) & set32_below(i)));
}
ALWAYS_INLINE sst_pos sels_pos(const struct remix *x, const uint8_t *s, struct seg_sels sels, uint32_t run,
                               uint32_t i) {
  return sels_pos_from(x, seg_off(x, s, run), sels, run, i);
}
static inline sst_pos seg_pos(const struct remix *x, const uint8_t *s, uint32_t run, uint32_t i) {
  return sels_pos(x, s, seg_sels(x->index, s), run, i);
}

// The same, and prefetches what sst_advance reads if the position is in another block than the offset.
ALWAYS_INLINE sst_pos sels_place(const struct remix *x, const uint8_t *s, struct seg_sels sels, uint32_t run,
                                 uint32_t i) {
  const sst_pos off = seg_off(x, s, run);
  sst_prefetch_place(x->runs[run], off);
  return sels_pos_from(x, off, sels, run, i);
}

// Tells whether a reader with this hold must read the block from disk.
static inline bool missing(const struct sst_hold *h, const struct sst *t, uint32_t block) {
  return !cache_has(&t->cache, block) && !sst_holds(h, t, block) && !sst_holds_ahead(h, t, block) &&
         !sst_holds_behind(h, t, block);
}

// Reads the record of entry i. The record is valid until the epoch ends, because a search pins nothing. nr: how many
// records of the run, from this record on, the caller is going to read.
static inline enum remixdb_status sels_read(const struct remix *x, const uint8_t *s, struct seg_sels sels, uint32_t i,
                                            uint32_t nr, struct sst_hold *h, struct kv_rec *rec_out) {
  const uint32_t run = sels_run(sels, i);
  REMIX_COUNT(key_reads);
  return sst_read_some(x->runs[run], sels_place(x, s, sels, run, i), nr, false, h, rec_out);
}
static inline enum remixdb_status entry_read(const struct remix *x, const uint8_t *s, uint32_t i, uint32_t nr,
                                             struct sst_hold *h, struct kv_rec *rec_out) {
  return sels_read(x, s, seg_sels(x->index, s), i, nr, h, rec_out);
}

// The number of live entries before a segment. Before segment nr_segs it is the number of all.
static inline uint32_t seg_rank(const struct remix_index *ix, uint32_t seg) { return rising_at(ix->live, seg); }

// Returns the last of [lo, hi) whose rank is not above `rank`, by binary search. The caller knows that lo's is not.
static inline uint32_t seg_live_between(const struct remix_index *ix, uint32_t lo, uint32_t hi, uint32_t rank) {
  while (hi - lo > 1) {
    const uint32_t mid = lo + (hi - lo) / 2;
    REMIX_COUNT(probes);
    if (seg_rank(ix, mid) > rank) hi = mid;
    else lo = mid;
  }
  return lo;
}

// Returns the segment of the live entry with `rank` live entries before it in the view. The segment is at or after
// `from`, and mostly near.
static inline uint32_t seg_live_after(const struct remix *x, uint32_t from, uint32_t rank) {
  uint32_t lo = from, hi = x->nr_segs;
  for (uint32_t step = 1; step < hi - lo; step *= 2) {
    REMIX_COUNT(probes);
    if (seg_rank(x->index, lo + step) > rank) hi = lo + step;
    else lo += step;
  }
  return seg_live_between(x->index, lo, hi, rank);
}

// Returns the same for a segment before `to`.
static inline uint32_t seg_live_before(const struct remix *x, uint32_t to, uint32_t rank) {
  uint32_t hi = to, lo = to - 1;
  for (uint32_t step = 1; seg_rank(x->index, lo) > rank; step *= 2) {
    REMIX_COUNT(probes);
    hi = lo;
    lo = lo > step ? lo - step : 0;
  }
  return seg_live_between(x->index, lo, hi, rank);
}

// Returns the first segment with live entries at or after `from`; nr_segs: there is none. Mostly `from` has some, so it
// is looked at itself.
static inline uint32_t seg_live_next(const struct remix *x, uint32_t from) {
  const struct remix_index *const ix = x->index;
  REMIX_COUNT(probes);
  if (from == x->nr_segs || likely(seg_live(ix, seg_at(ix, from)) != 0)) return from;
  const uint32_t rank = seg_rank(ix, from);
  return rank == seg_rank(ix, x->nr_segs) ? x->nr_segs : seg_live_after(x, from, rank);
}
// Returns the last segment with live entries before `to`; nr_segs: there is none.
static inline uint32_t seg_live_prev(const struct remix *x, uint32_t to) {
  const struct remix_index *const ix = x->index;
  REMIX_COUNT(probes);
  if (to == 0) return x->nr_segs;
  if (likely(seg_live(ix, seg_at(ix, to - 1)) != 0)) return to - 1;
  const uint32_t rank = seg_rank(ix, to);
  return rank == 0 ? x->nr_segs : seg_live_before(x, to, rank - 1);
}

// The place of a key in a segment.
struct seg_pos_found {
  uint32_t at;  // the lowest entry whose key is >= the key; the segment's number of entries if there is none
  bool equal;
};

// Reads the key of entry i of segment s. arg is for the caller's use.
typedef enum remixdb_status (*seg_read_fn)(void *arg, const uint8_t *s, uint32_t i, struct kv_rec *rec_out);
// Binary search by keys, for a segment with far bits. If a key is equal, *rec_out is its newest version.
MUST_CHECK enum remixdb_status seg_search_binary(const struct remix *x, const uint8_t *s, struct kref key,
                                                 seg_read_fn read, void *arg, struct seg_pos_found *out,
                                                 struct kv_rec *rec_out);
#endif
