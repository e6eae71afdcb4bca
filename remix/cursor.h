// SPDX-License-Identifier: Apache-2.0
//
// Positions in a REMIX: seeking, stepping both ways, reading records.
#ifndef REMIX_CURSOR_H
#define REMIX_CURSOR_H

#include "remix/remix.h"

// A cursor stands at a live entry: the newest version of a key, and in an older view no tombstone. The selectors' bits
// tell which entries to pass. For each run the cursor holds the block that it reads, pinned or in memory of its own, so
// it may stand still outside of any epoch. The REMIX must stay alive. One thread. Seeks and remix_record need an epoch;
// steps need none.
enum remix_way { REMIX_SOUGHT, REMIX_ON, REMIX_BACK };

// The block that a cursor holds for a run. idx is the run's first record at or after the cursor's entry, if it is less
// than nr. Each step keeps it up to date, so no step counts selectors. A block that was read in pieces may lack the
// records before the first one read; so the cursor forgets these fields when it turns back.
struct remix_run_pos {
  const uint8_t *data;
  uint32_t idx, nr;  // nr: end of the records that are in memory; 0: nothing is known
  uint32_t ahead;    // pages to read ahead of the run; grows while the run is read on and on
};

struct remix_cursor {
  struct remix *x;
  uint32_t seg, at;            // entry `at` of segment `seg`; seg == nr_segs: not valid
  uint32_t live;               // the segment's live entries, one bit each
  uint32_t cap;                // runs that holds and near have room for
  const uint8_t *s, *sel;      // the segment, and its selectors
  struct sst_hold *holds;      // one for each run
  struct remix_run_pos *near;  // one for each run
  struct blkio_queue *queue;   // for readahead; NULL: none
  bool no_room;                // the cache had no room for readahead; it is not tried again on this REMIX
  bool disk;                   // the last timed read came from the disk: blocks that are needed soon are read together
  uint8_t reads;               // counts reads, to time some of them
  bool begun;  // since the last move that was not a step, a block has been read or did not need to be: the next block
               // of another run is a jump
  uint32_t scan_debt;  // not yet added to the REMIX's
  enum remix_way way;  // the last move
  // Prefetching. The memory of all entries up to (stepping back: down to) this one has been prefetched.
  uint32_t front_seg, front_at;
  uint32_t warm;   // stepping on: a step to this entry of the segment does more than step; at most REMIX_SEG; else 0
  uint32_t cool;   // stepping back: a step to an entry before this one does more
  uint32_t group;  // entries to prefetch at once; grows
  // The distance that the cursor went after the last seeks tells how much of a block to read (sst_read_some). Counted
  // in entries, as if all segments were full.
  uint32_t from, came;  // a place, and how far the cursor had stepped from the last seek to there
  uint32_t usual;       // about the usual distance; 0: no step followed the last seek
  uint32_t begun_seg;   // the segment that remix_seek_begin found, if wanted
  bool wanted;
};
// A cursor without a REMIX; zeroed. queue may be NULL.
void remix_cursor_init(struct remix_cursor *c, struct blkio_queue *queue);
void remix_cursor_fini(struct remix_cursor *c);
// Drops the holds and moves the cursor to another REMIX; it is not valid afterwards. NULL gives back the holds' memory.
// REMIXDB_NOMEM, but not with NULL.
MUST_CHECK enum remixdb_status remix_cursor_set(struct remix_cursor *c, struct remix *x);
static inline bool remix_valid(const struct remix_cursor *c) { return c->x && c->seg < c->x->nr_segs; }
// Go to the first entry >= key, and to the last entry <= key. After an error the cursor is not valid.
//
// A seek reads exactly one key, whether the sought key is there or not: the key of the blind search's candidate. No
// other entry shares a longer prefix with the sought key, and if the sought key is there, the candidate is its newest
// version. The shared prefix gives the place. In a segment with far bits the seek is a binary search of keys.
// Tags cannot save this read. A key that has the tag by chance tells nothing about the place, so the seek would have to
// read a second key. It uses tags only to prefetch before it knows the candidate.
MUST_CHECK enum remixdb_status remix_seek(struct remix_cursor *c, struct kref key);
MUST_CHECK enum remixdb_status remix_seek_for_prev(struct remix_cursor *c, struct kref key);
void remix_seek_first(struct remix_cursor *c);
void remix_seek_last(struct remix_cursor *c);
// Prefetches the segment that a seek of this key reads first. The seek is the cursor's next call, in the same epoch.
void remix_seek_begin(struct remix_cursor *c, struct kref key);
// Does remix_next if the next entry is live and a plain step suffices. Else returns false, and nothing has
// moved. Needs no epoch: it reads the view and memory that lives as long as the tables.
static inline bool remix_next_fast(struct remix_cursor *c) {
  const uint32_t to = c->at + 1;
  if (unlikely(to >= c->warm || !(c->live >> to & 1))) return false;
  c->near[c->sel[c->at] & REMIX_RUN].idx++;
  c->at = to;
  return true;
}
// The key that remix_next_fast would come to, if its block is held. False says nothing.
MUST_CHECK static inline bool remix_key_ahead(const struct remix_cursor *c, struct kref *out) {
  const uint32_t to = c->at + 1;
  if (unlikely(to >= c->warm || !(c->live >> to & 1))) return false;
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
void remix_prev(struct remix_cursor *c);
// Goes on by nr entries, or by as many as there are, but not into segment `end` (UINT32_MAX: no such limit). Must be
// valid, and stays valid. Returns the number of entries. O(log n) for n segments.
uint32_t remix_skip(struct remix_cursor *c, uint32_t nr, uint32_t end);
static inline uint32_t remix_run(const struct remix_cursor *c) { return c->sel[c->at] & REMIX_RUN; }
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
