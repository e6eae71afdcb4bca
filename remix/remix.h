// SPDX-License-Identifier: Apache-2.0
//
// REMIX: the sorted view over the tables (runs) of one partition (Zhong, Chen, Wu, Jiang: "REMIX: Efficient Range Query
// for LSM-trees", FAST 2021), in the file "%06llu.remix". Runs are numbered by age, the oldest is 0. An entry is one
// record of one run. The view is cut into segments of at most 32 entries. A segment has an anchor, a cursor offset for
// each run, and for each entry a selector, a tag (if tags are on) and a discriminating bit.
//
// Invariants
//   R1  Entries ascend by key; versions of one key go from the newest run to the oldest. All versions of a key are in
//       one segment.
//   R2  An entry with the key of the entry before it carries REMIX_OLD; the newest version never does. REMIX_TOMB is
//       the record's own flag, and so is REMIX_EXPIRES, except where both together mean REMIX_ERASED (R6).
//   R3  The first segment's anchor is empty. Any other anchor is the shortest prefix of the segment's first key that is
//       greater than the key before the segment.
//   R4  The cursor offset of run r is the position of r's first entry at or after the segment's beginning. Advanced by
//       the number of r's selectors before entry i, it is the position of r's next record at entry i.
//   R5  The discriminating bit of entry i (i > 0 in its segment) is the first bit at which its key differs from entry
//       i-1's key. These bits form a blind trie over the segment's distinct keys.
//   R6  A range deletion sets REMIX_ERASED on entries, whatever their records are. An erased entry is not live, in a
//       young view either, and it hides nothing. If an entry is erased, the entries of its key in all older runs of the
//       partition are erased, too, or are hidden by a tombstone. The mark belongs to the record: a new view over the
//       same run keeps it, and a merge of the run leaves the record out. So no build brings an erased record back.
//
// Bit order: each byte of a key is preceded by a 1 bit, and 0 bits follow the key's end. So a key sorts before every
// longer key that begins with it, and no two keys have all bits in common. A bit's position is byte << 4 | b: b = 0 for
// the leading bit, 1..8 for the byte's bits from the highest. A segment stores a position in 16 bits and counts bytes
// from its base, the number of bytes that all its keys share. BLIND_SAME means that the entry has the key of the entry
// before it. BLIND_FAR means a bit more than 4,094 bytes after the base; in a segment with such a bit, a search
// compares keys (binary search).
#ifndef REMIX_H
#define REMIX_H

#include "remix/open.h"

// Returns for each run how many of its entries no reader of the view finds: a newer entry of the key hides them, or
// they are erased. The first call counts. It passes over all entries, and reads the file if x is paged. The result
// lives as long as x. Fails with REMIXDB_NOMEM, or as remix_open does. Any thread.
MUST_CHECK enum remixdb_status remix_hidden(struct remix *x, const uint32_t **out);
// Finds the newest version of the key; hash = hash64(key). Fails with REMIXDB_NOTFOUND if there is none. A tombstone
// counts as none, except in a young view. Call it inside an epoch; the record is valid until the epoch ends or h is
// used again.
//
// With tags, the candidates are the live entries of one segment that have the key's tag. If there are several
// candidates, or in a young view, the blind search leaves at most one. So a get of an existing key costs one read. A
// get of a missing key costs 32/256 = 0.125 reads at most, a quarter of that if the block is not cached, and 1/256 in a
// young view. Without tags a get reads one key, as a seek does. In a segment with far bits all candidates may be read.
MUST_CHECK enum remixdb_status remix_get(struct remix *x, struct kref key, uint64_t hash, struct sst_hold *h,
                                         struct kv_rec *rec_out);
// remix_get in two steps of one epoch. The first step prefetches the segment that the second step reads.
const uint8_t *remix_get_begin(const struct remix *x, struct kref key);
// The same first step from a copy of the fields that most keys need (remix_quick_set). A partition has it in one cache
// line, so the step reads neither x nor its index. A paged view has no such copy.
struct remix_quick {
  struct anchors_quick anchors;  // `owned`: bytes of a segment; from bit REMIX_QUICK_ROW on, those of a group's row
  const uint8_t *segs;
};
#define REMIX_QUICK_ROW 16u
#define REMIX_QUICK_STRIDE 0xFFFFu
_Static_assert(sizeof(void *) != 8 || sizeof(struct remix_quick) == 48, "it fits into a partition's first line");
// Copies the fields of a view that does not change any more. The copy is valid as long as x. x NULL: makes it empty.
void remix_quick_set(struct remix_quick *q, const struct remix *x);
// Returns the segment's number, or ANCHORS_UNKNOWN: the caller searches in x.
static inline uint32_t remix_quick_find(const struct remix_quick *q, struct kref key) {
  return anchors_quick_find(&q->anchors, key);
}
// Prefetches a segment, and its group's row. Returns what remix_get_begin returns.
static inline const uint8_t *remix_quick_seg(const struct remix_quick *q, uint32_t seg) {
  const uint32_t stride = q->anchors.owned & REMIX_QUICK_STRIDE, row = q->anchors.owned >> REMIX_QUICK_ROW;
  const uint8_t *const first = q->segs + (size_t)(seg / REMIX_GROUP) * (REMIX_GROUP * stride + row),
                       *const s = first + (size_t)(seg % REMIX_GROUP) * stride;
  if (row) remix_row_prefetch(first, row);
  remix_stride_prefetch(s, stride);
  return s;
}
MUST_CHECK enum remixdb_status remix_get_end(struct remix *x, const uint8_t *wanted, struct kref key, uint64_t hash,
                                             struct sst_hold *h, struct kv_rec *rec_out);
// Returns the segment to which the key belongs: all entries before this segment are less than the key. Reads no entry.
// In a paged view the first segment of its page, counted over all pages.
uint32_t remix_segment(const struct remix *x, struct kref key);
uint32_t remix_segments(const struct remix *x);  // how many there are; also in a paged view

// ---- ranks (remix/rank.c): the live entries in order, counted from 0. In a young view tombstones are live.

uint64_t remix_live(const struct remix *x);  // how many there are
// Returns how many live entries have keys less than this one. Reads at most one key. Inside an epoch; so is the next
// call. Both fail as a read of a block does.
MUST_CHECK enum remixdb_status remix_rank(const struct remix *x, struct kref key, struct sst_hold *h,
                                          uint64_t *rank_out);
// Reads the live entries that are near the one of this rank, in the same segment and the same run, so mostly in one
// block, with ranks in [from, to). Gives each to fn, with their number. The records are valid in fn only. Ends when fn
// fails, with its status.
typedef enum remixdb_status (*remix_near_fn)(void *arg, const struct kv_rec *rec, uint32_t nr);
MUST_CHECK enum remixdb_status remix_live_near(const struct remix *x, uint64_t rank, uint64_t from, uint64_t to,
                                               struct sst_hold *h, remix_near_fn fn, void *arg);
// The segments of the live entries with ranks in [from, to), from < to, or a sample of them.
struct remix_share {
  uint32_t segs;       // segments that were looked at
  double live, tombs;  // their live entries; the tombstones among these (of young views)
  struct remix_run_share {
    double live, tombs, all;  // the same for each run, and its entries
    double pages;             // pages of the run's table in all segments that have entries of the range
  } runs[REMIX_RUNS_MAX];
  double scale;  // the range has so many times as many live entries
  double step;   // all these segments have so many times as many entries
};
// Looks at about `most` segments, at equal distances; in a paged view in a few pages. Reads no block. Inside an epoch.
// Fails as remix_page does.
MUST_CHECK enum remixdb_status remix_share(const struct remix *x, uint64_t from, uint64_t to, uint32_t most,
                                           struct remix_share *out);
// Tells whether a live entry has the key, as far as the tags tell. REMIX_ABSENT is certain, the next two are wrong once
// in 256 times. Reads no block. Inside an epoch.
enum remix_guess {
  REMIX_ABSENT,
  REMIX_THERE,
  REMIX_DELETED,  // in a young view: a tombstone has the key
  REMIX_UNKNOWN,  // there are no tags, or an entry has the tag in a segment with far bits
};
enum remix_guess remix_guess(const struct remix *x, struct kref key, uint64_t hash);

// ---- many keys at once: the steps of remix_get, each for a whole group of keys. Each step prefetches the memory that
// the next step reads. All steps of a group are in one epoch; or the caller keeps a reference to x if it is a page.
struct remix_probe {
  const struct remix *x;      // in, as are key and hash. If it is paged: out, the key's page
  const struct remix *older;  // for the caller's use: the view to try if the key is not in x
  struct kref key;
  uint64_t hash;
  bool search;      // out: only remix_get can search x: the segment has far bits, or the page cannot be read now
  uint32_t set;     // out: entries that can be the key and have not been taken yet; empty with search
  struct sst *sst;  // out: the place of the entry that was taken last
  sst_pos pos;
  bool several;  // private, like the fields below: the segment has several entries with the key's tag
  const uint8_t *seg;
  uint32_t at, entry;
};
// Finds the candidates of the nr probes p[which[0]], p[which[1]], ... Reads no block from disk, but pages of paged
// views (remix/paged.h). wait: may wait for a descriptor to read one, so that the caller holds none.
void remix_probe_find(struct remix_probe *p, const uint8_t *which, uint32_t nr, bool wait);
// Takes the candidate with the lowest index out of each probe's set, which must not be empty, and sets sst and pos.
// Prefetches the cache's slot of the candidate's block.
void remix_probe_next(struct remix_probe *p, const uint8_t *which, uint32_t nr);
// Tells whether the candidate that was taken last can be the key, as far as the segment shows. Call it before reading
// the candidate's block from disk. Among several candidates only one is possible.
bool remix_probe_fits(const struct remix_probe *p);

// ---- walking all entries in order, all versions, without holds: for compaction and building
struct remix_walk {
  const struct remix *x;
  uint32_t seg, at, nr;      // as in the cursor
  const uint8_t *sel, *tag;  // the segment's; tag NULL without tags
  uint8_t room[REMIX_SEG];   // private: for selectors
};
void remix_walk_init(struct remix_walk *w, const struct remix *x);  // at the first entry
static inline bool remix_walk_valid(const struct remix_walk *w) { return w->seg < w->x->nr_segs; }
void remix_walk_next(struct remix_walk *w);  // must be valid
// A value in place of a common prefix or a discriminating bit. It means that the entry has the key of the entry before
// it.
#define REMIX_SAME UINT32_MAX
// Returns how many bytes the current entry's key shares with the key of the entry before it in the view: 0 for the
// view's first entry, REMIX_SAME for the same key. *known_out is false for a far bit; the caller then compares the
// keys.
uint32_t remix_walk_lcp(const struct remix_walk *w, bool *known_out);
// Compares the current entry's discriminating bit, the segment's base and, at a segment's first entry, the segment's
// anchor with the entry's key. Returns NULL if they are right, else the name of the error. before: the key of the entry
// before it in the view, which is not greater than key.
const char *remix_walk_wrong(const struct remix_walk *w, struct kref before, struct kref key);

#endif
