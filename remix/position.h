// SPDX-License-Identifier: Apache-2.0
//
// A position in a REMIX, which is a cursor in memory. remix/cursor.h moves it, remix/gather.h reads ahead of it.
#ifndef REMIX_POSITION_H
#define REMIX_POSITION_H

#include "remix/remix.h"
#include "table/keys.h"

// A cursor stands at a live entry: the newest version of a key, and in an older view no tombstone. The selectors' bits
// tell which entries to pass. For each run the cursor holds the block that it reads, pinned or in private memory. So it
// may stand still outside of any epoch. The REMIX must stay alive. One thread uses a cursor. Seeks and remix_record
// need an epoch; steps need none.
//
// A cursor that goes to another view keeps its holds: the hold of a run may still have a block of another view's run.
// The next read of the run replaces that block.
enum remix_way { REMIX_SOUGHT, REMIX_ON, REMIX_BACK };

// The block that a cursor holds for a run. idx is the run's first record at or after the cursor's entry, if it is less
// than nr. Each step keeps it up to date, so no step counts selectors. A block that was read in pieces may lack the
// records before the first one read; so the cursor forgets these fields when it turns back.
struct remix_run_pos {
  const uint8_t *data;
  uint32_t idx, nr;  // nr: end of the records that are in memory; 0: nothing is known
  uint32_t block;    // the block's number in the table
  uint32_t ahead;    // pages to read ahead of the run; grows while the run is read on and on, or back and back
};

// A bound of a cursor's keys, and its place in the view. The place is looked up when the cursor comes near it, because
// that reads a key.
struct remix_edge {
  struct kref key;  // the lowest key within (low), the lowest one beyond (high); ptr NULL: there is no bound
  uint32_t seg;     // the segment to which the key belongs; no bound: 0 (low), nr_segs (high)
  uint32_t at;      // if `known`: the segment's lowest entry whose key is not less
  bool known;
};

// A run's compressed keys, for a cursor that needs keys only.
struct remix_keys {
  struct sst_key_hold hold;
  uint32_t blocks;  // the run's blocks that the cursor has read since the last seek
};

struct remix_cursor {
  struct remix *x;
  uint32_t seg, at;            // entry `at` of segment `seg`; seg == nr_segs: not valid
  uint32_t live;               // the segment's live entries within the bounds, one bit each
  uint32_t plain;              // those of them whose records do not expire
  uint32_t cap;                // runs that holds and near have room for
  const uint8_t *s, *sel;      // the segment that it last came to, and its selectors, in the image or in `room`
  struct sst_hold *holds;      // one for each run
  struct remix_run_pos *near;  // one for each run
  // Bit r: near[r] was set since the cursor's last move that was not a step. A seek comes to one run or two, so a
  // cursor that leaves them looks at these bits, and not at all runs.
  uint32_t placed;
  struct blkio_queue *queue;  // for readahead; NULL: none
  bool begun;  // since the last move other than a step, a block has been read or did not need to be: a block from
               // another run is a jump next
  uint32_t scan_debt;  // not yet added to the REMIX's
  enum remix_way way;  // the last move
  // Prefetching. The memory of all entries up to (stepping back: down to) this one has been prefetched.
  uint32_t front_seg, front_at;
  uint32_t warm;   // stepping on: a step to this entry of the segment does more than step; at most REMIX_SEG; else 0
  uint32_t cool;   // stepping back: a step to an entry before this one does more than step; else REMIX_SEG
  uint32_t group;  // entries to prefetch at once; grows
  // The distance that the cursor went after the last seeks tells how much of a block to read (sst_read_some). Counted
  // in entries, as if all segments were full.
  uint32_t from, came;  // a place, and how far the cursor had stepped from the last seek to there
  uint32_t usual;       // about the usual distance; 0: no step followed the last seek
  uint32_t begun_seg;   // the segment that remix_seek_begin found, or its caller, if wanted
  // These four are false when the cursor comes to a view. They lie together, so one store does it.
  bool wanted;
  bool turned;   // but if it has come from another page of the same view, this is true: a scan of the runs goes on
  bool bounded;  // there are bounds: `low` and `high` (remix_bound)
  bool no_room;  // the cache had no room for readahead; it is not tried again on this REMIX
  bool equal;    // the last seek ended at its key; known only with a cursor beside, or if `onward`
  // Gathering (remix/gather.h).
  bool back;                    // the seek's direction
  bool due;                     // the seek that begun will surely be made
  bool onward;                  // the seek belongs to a step: more steps follow
  uint64_t reads;               // the store's reads at the last seek (remix_stirred)
  uint32_t expect;              // entries that the caller is going to read after a seek; 0: not known
  const uint32_t *reach;        // else about as many as the last scans read; NULL: not known
  struct remix_cursor *beside;  // it stands in the same range of keys, and moves as this one does; NULL: none
  struct remix_cursor *lead;    // for a young view's: the older one's, which tells how far a scan has come
  struct remix_edge low, high;  // if `bounded`
  // Keys only (remix_keys_only): from a table's compressed keys, at once or after KEYS_BLOCKS blocks of a run.
  bool keys_only;
  struct remix_keys *keys;  // one for each run; NULL: not made yet
  uint32_t keys_cap;
  uint8_t room[REMIX_SEG];  // for selectors
};

_Static_assert(REMIX_RUNS_MAX <= 32, "placed has a bit for each run");

static inline bool remix_valid(const struct remix_cursor *c) { return c->x && c->seg < c->x->nr_segs; }
// Whether reads of blocks come from the disk.
static inline bool remix_cold(const struct remix_cursor *c) { return c->queue && blkio_cold(c->queue->io); }
// The same; but false if nobody has read a block since the cursor's last seek. A store whose data is in the cache reads
// nothing, so it never learns that it is not cold any more.
static inline bool remix_stirred(const struct remix_cursor *c) {
  return c->queue && atomic_load_explicit(&c->queue->io->nr_reads, memory_order_relaxed) != c->reads && remix_cold(c);
}
// Whether the view may have the key whose seek has begun (remix_seek_begin; gather.c): false is certain, and true is
// wrong once in 256 times (with tags; without them it is always true). Reads no block. hash = hash64(key).
bool remix_may_have(const struct remix_cursor *c, struct kref key, uint64_t hash);
// How many live entries the cursor has stepped on (or back) since the last seek or turn (gather.c).
uint32_t remix_came(const struct remix_cursor *c);
// The records that the cursor's next steps come to, in the direction of its last move: as many as the scan is expected
// to go on, at most `most`, and only those whose blocks are at hand. own: the cursor's own record is among them. *out:
// in their order; valid until the epoch ends. Returns how many. Reads nothing from the disk. Inside an epoch
// (gather.c).
uint32_t remix_next_records(const struct remix_cursor *c, bool own, struct kv_rec *out, uint32_t most);
static inline uint32_t remix_run(const struct remix_cursor *c) { return c->sel[c->at] & REMIX_RUN; }
#endif
