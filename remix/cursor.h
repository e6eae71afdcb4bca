// SPDX-License-Identifier: Apache-2.0
//
// Positions in a REMIX: seeking, stepping both ways, reading the records.
#ifndef REMIX_CURSOR_H
#define REMIX_CURSOR_H

#include "remix/remix.h"

// A position in the view, at a live entry: the newest version of a key, and not a tombstone (but in a young view); all
// others are passed by the bits of their selectors. It holds (pinned, or in memory of its own) the block it reads in
// each run, or what it needs of it, so it may stand still outside of any epoch; the remix must stay alive. One thread.
// Seeks and remix_record must be made inside an epoch; what only steps needs none.
enum remix_way { REMIX_SOUGHT, REMIX_ON, REMIX_BACK };

// The block that a cursor holds for a run, and where the run stands in it: the index of the run's first record at or
// after the cursor's entry, when that is less than nr. Kept up step by step, so that a step needs no counting of
// selectors. Of a block that was read in pieces there may be nothing before the record that was read first: what is
// known is forgotten when the cursor turns back.
struct remix_run_pos {
  const uint8_t *data;
  uint32_t idx, nr;  // nr: end of the block's records that are there; 0: nothing is known
  uint32_t ahead;    // pages to read ahead of the run, grows while it is read on and on
};

struct remix_cursor {
  struct remix *x;
  uint32_t seg, at;            // entry `at` of segment `seg`; seg == nr_segs: not valid
  uint32_t live;               // the segment's live entries, a bit for each
  uint32_t cap;                // runs there is room for
  const uint8_t *s, *sel;      // the segment, and its selectors
  struct sst_hold *holds;      // per run
  struct remix_run_pos *near;  // per run
  struct blkio_queue *queue;   // for read-ahead; NULL: none
  bool no_room;                // what was read into the cache for it was not there: not tried again on this REMIX
  bool disk;      // the last read that was timed was the disk's: blocks that will be needed soon are read together
  uint8_t reads;  // which of them are timed
  bool begun;     // a block has been read since it was moved other than by steps (or need not have been): the next one
                  // elsewhere is a jump
  uint32_t scan_debt;  // not yet added to the REMIX's
  enum remix_way way;  // how it was moved last: where memory is asked for before it is read
  // Up to this entry (stepping back: down to it) memory has been asked for.
  uint32_t front_seg, front_at;
  uint32_t
      warm;  // stepping on: at this entry of the segment there is more to do than to step, REMIX_SEG at most; else 0
  uint32_t cool;   // the same stepping back: before this entry
  uint32_t group;  // entries to ask for at once; grows
  // What it will need of a block (sst.h: sst_read_some) is told by how far it went after the last seeks; in entries, as
  // if all segments were full.
  uint32_t from, came;  // where it was when it had stepped on by `came` since the last seek
  uint32_t usual;       // about as far as it went; 0: nobody stepped on after the last seek
  uint32_t begun_seg;   // of remix_seek_begin
  bool wanted;
};
// A cursor without a REMIX; zeroed. queue may be NULL.
void remix_cursor_init(struct remix_cursor *c, struct blkio_queue *queue);
void remix_cursor_fini(struct remix_cursor *c);
// Drops its holds and moves it to another REMIX, or NULL, which gives back the holds' memory: not valid afterwards.
// REMIXDB_NOMEM, but not with NULL.
MUST_CHECK enum remixdb_status remix_cursor_set(struct remix_cursor *c, struct remix *x);
static inline bool remix_valid(const struct remix_cursor *c) { return c->x && c->seg < c->x->nr_segs; }
// First entry >= key, last entry <= key. After an error the cursor is not valid.
//
// A seek reads the key of exactly one entry (and of it alone a block), for keys that are there and for others: the
// candidate of the blind search, of which no other entry shares a longer prefix with the key, and which is the key
// itself, in its newest version, when the key is there. What it shares with the key then gives the place. (But where
// discriminating bits are FAR.) Tags can therefore not save a read here. They could only save the search among the bits
// when an entry with the key's tag turns out to be the key; where it does not (one in 256 for every other entry of the
// segment: in 12% of the seeks to keys that are not there), its key says nothing of where the others lie, and a second
// one would have to be read. So a seek trusts the candidate, and asks the tags only where memory should be on its way
// before the candidate is known.
MUST_CHECK enum remixdb_status remix_seek(struct remix_cursor *c, struct kref key);
MUST_CHECK enum remixdb_status remix_seek_for_prev(struct remix_cursor *c, struct kref key);
void remix_seek_first(struct remix_cursor *c);
void remix_seek_last(struct remix_cursor *c);
// Before a seek of this key, and no other call of the cursor: what it is going to read first is fetched while the
// caller does something else. In the same epoch.
void remix_seek_begin(struct remix_cursor *c, struct kref key);
// The same as remix_next when that comes to the entry right behind and nothing else has to be done; else false, and
// nothing has moved. Needs no epoch: what is looked at are the view and what lives as long as its tables.
static inline bool remix_next_fast(struct remix_cursor *c) {
  const uint32_t to = c->at + 1;
  if (unlikely(to >= c->warm || !(c->live >> to & 1))) return false;
  c->near[c->sel[c->at] & REMIX_RUN].idx++;
  c->at = to;
  return true;
}
// The key that remix_next_fast would come to, when it is right behind the cursor's entry and its block is held; else
// false, which says nothing.
MUST_CHECK static inline bool remix_key_ahead(const struct remix_cursor *c, struct kref *out) {
  const uint32_t to = c->at + 1;
  if (unlikely(to >= c->warm || !(c->live >> to & 1))) return false;
  const uint32_t run = c->sel[to] & REMIX_RUN;
  const struct remix_run_pos *const n = &c->near[run];
  const uint32_t idx = n->idx +
                       (run == (c->sel[c->at] & REMIX_RUN));  // where the runs stand is known for the cursor's entry
  struct kv_rec r;
  if (unlikely(idx >= n->nr || !block_record_short(n->data, idx, &r))) return false;
  REMIX_COUNT(records);
  *out = kref(r.key, r.klen);
  return true;
}
void remix_next_slow(struct remix_cursor *c);  // private to remix_next
// One entry on, or back; must be valid. Reads nothing, compares nothing. A stretch without a live entry takes O(log of
// its segments).
static inline void remix_next(struct remix_cursor *c) {
  if (unlikely(!remix_next_fast(c))) remix_next_slow(c);
}
void remix_prev(struct remix_cursor *c);
// As many entries on as there are, up to nr, but not into segment `end` (UINT32_MAX: there is no such limit); must be
// valid and stays so. Returns how many. O(log of the segments passed).
uint32_t remix_skip(struct remix_cursor *c, uint32_t nr, uint32_t end);
static inline uint32_t remix_run(const struct remix_cursor *c) { return c->sel[c->at] & REMIX_RUN; }
// The current entry's record; holds until the cursor moves to another block of the same run (a key stays readable while
// the cursor stands). Reads a block when it is not held. When it fails the cursor stays where it is.
MUST_CHECK enum remixdb_status remix_record(struct remix_cursor *c, struct kv_rec *rec_out);
// The same when the block is held already and the record a short one; else false. Needs no epoch: what a cursor holds
// is pinned.
MUST_CHECK static inline bool remix_record_held(const struct remix_cursor *c, struct kv_rec *rec_out) {
  const struct remix_run_pos *const n = &c->near[remix_run(c)];
  if (unlikely(n->idx >= n->nr || !block_record_short(n->data, n->idx, rec_out))) return false;
  REMIX_COUNT(records);
  return true;
}
#endif
