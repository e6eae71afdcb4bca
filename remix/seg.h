// SPDX-License-Identifier: Apache-2.0
//
// Segments of a REMIX in memory: their parts, and reading an entry. Private to remix.c, cursor.c and gather.c.
#ifndef REMIX_SEG_H
#define REMIX_SEG_H

#include "base/blind.h"
#include "remix/state.h"

static inline const uint8_t *seg_at(const struct remix_index *ix, uint32_t seg) {
  return ix->segs + (size_t)seg * ix->lay.stride;
}
static inline uint32_t seg_nr(const struct remix_index *ix, const uint8_t *s) { return remix_seg_nr(&ix->lay, s); }
static inline uint32_t seg_base(const struct remix_index *ix, const uint8_t *s) { return remix_seg_base(&ix->lay, s); }
static inline bool seg_far(const struct remix_index *ix, const uint8_t *s) {
  return remix_seg_flags(&ix->lay, s) & REMIX_SEG_FAR;
}
// The discriminating bits of a segment (N1).
static inline struct blind seg_blind(const struct remix_index *ix, const uint8_t *s) {
  const uint8_t *const bits = s + ix->lay.dbits;
  if (unlikely(!ix->lay.narrow)) return (struct blind){bits, true};
  if (likely(!(remix_seg_flags(&ix->lay, s) & REMIX_SEG_WIDE))) return (struct blind){bits, false};
  return (struct blind){ix->wide + (size_t)load32le(bits) * BLIND_WIDE, true};
}
static inline sst_pos seg_off(const struct remix_index *ix, const uint8_t *s, uint32_t run) {
  return remix_seg_off(&ix->lay, s, run);
}
static inline uint32_t seg_live(const struct remix_index *ix, const uint8_t *s) {
  const uint8_t *const sel = s + ix->lay.sel;
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

static inline void seg_prefetch(const struct remix_index *ix, const uint8_t *s) {
  for (uint32_t o = 0; o < ix->lay.stride; o += CACHE_LINE) prefetch(s + o);
}

// Returns the position of the run's first record at or after entry i (R4).
static inline sst_pos seg_pos(const struct remix *x, const uint8_t *s, uint32_t run, uint32_t i) {
  const struct remix_index *ix = x->index;
  const uint32_t before = set32_count(set32_eq8(s + ix->lay.sel, REMIX_RUN, (uint8_t)run) & set32_below(i));
  return sst_advance(x->runs[run], seg_off(ix, s, run), before);
}

// Tells whether a reader with this hold must read the block from disk.
static inline bool missing(const struct sst_hold *h, const struct sst *t, uint32_t block) {
  return !cache_has(&t->cache, block) && !sst_holds(h, t, block) && !sst_holds_ahead(h, t, block) &&
         !sst_holds_behind(h, t, block);
}

// Reads the record of entry i. The record is valid until the epoch ends, because a search pins nothing. nr: how many
// records of the run, from this record on, the caller is going to read.
static inline enum remixdb_status entry_read(const struct remix *x, const uint8_t *s, uint32_t i, uint32_t nr,
                                             struct sst_hold *h, struct kv_rec *rec_out) {
  const uint32_t run = s[x->index->lay.sel + i] & REMIX_RUN;
  REMIX_COUNT(key_reads);
  sst_prefetch_place(x->runs[run], seg_off(x->index, s, run));
  return sst_read_some(x->runs[run], seg_pos(x, s, run, i), nr, false, h, rec_out);
}

// Prefetches the memory that entry_read of entry i reads.
static inline void entry_prefetch(const struct remix *x, const uint8_t *s, uint32_t i) {
  const uint32_t run = s[x->index->lay.sel + i] & REMIX_RUN;
  sst_prefetch(x->runs[run], seg_pos(x, s, run, i));
}

// Returns the last of [lo, hi) whose count is not above rank, by binary search. The caller knows that lo's count is not
// above rank.
static inline uint32_t seg_live_between(const uint32_t *live, uint32_t lo, uint32_t hi, uint32_t rank) {
  while (hi - lo > 1) {
    const uint32_t mid = lo + (hi - lo) / 2;
    REMIX_COUNT(probes);
    if (live[mid] > rank) hi = mid;
    else lo = mid;
  }
  return lo;
}

// Returns the segment of the live entry with `rank` live entries before it in the view. The segment is at or after
// `from`, and mostly near.
static inline uint32_t seg_live_after(const struct remix *x, uint32_t from, uint32_t rank) {
  const uint32_t *const live = x->index->live;
  uint32_t lo = from, hi = x->nr_segs;
  for (uint32_t step = 1; step < hi - lo; step *= 2) {
    REMIX_COUNT(probes);
    if (live[lo + step] > rank) hi = lo + step;
    else lo += step;
  }
  return seg_live_between(live, lo, hi, rank);
}

// Returns the same for a segment before `to`.
static inline uint32_t seg_live_before(const struct remix *x, uint32_t to, uint32_t rank) {
  const uint32_t *const live = x->index->live;
  uint32_t hi = to, lo = to - 1;
  for (uint32_t step = 1; live[lo] > rank; step *= 2) {
    REMIX_COUNT(probes);
    hi = lo;
    lo = lo > step ? lo - step : 0;
  }
  return seg_live_between(live, lo, hi, rank);
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
