// SPDX-License-Identifier: Apache-2.0
//
// Gaps, shared by the wormhole's files alone: what readers that passed a run of tombstones leave behind for those that
// come later, so that nobody walks over it again.
//
// A gap is a stretch of the key space of which it is known that a reader of the memtable *and of all that lies below
// it* finds nothing there at any moment from `since` on. A memtable's tombstones hide what older memtables and tables
// have, and what lies below a memtable means the same for as long as the memtable lives: it was complete before the
// first write came to the memtable, and compaction changes its form only. So a gap needs no word about tables. It is
// made by the one who merged all of it (view/merge.c), and it is used by the same.
//
// There are two kinds.
//   Within a leaf: [lo, hi], two entries of the leaf, or the leaf's ends. It is *whole* when it has both ends.
//   A run: from a leaf's one end over whole leaves up to the anchor of another leaf. It begins at a leaf, in one of the
//   two directions.
// Those that find a way over several runs make one of it, so a way takes few steps however long it has grown.
//
// Invariants (tests/unit/test_gap.c)
//   G1  Each entry within a gap that is valid has a tombstone as its newest version, and had one at `since` or was not
//       there.
//   G2  A leaf counts all versions that are no tombstones (`puts`), each after it was linked and before it is
//       committed. A gap within a leaf has the count that was read before its entries were looked at, and is valid
//       while the leaf has the same. So whoever has a moment that sees a put into the gap sees that the gap is not
//       valid, for the count was written before. A writer whose key is outside of the gap brings it on to the new
//       count; where a reader writes it meanwhile, that one wins and it is not valid.
//   G3  A put into a leaf that has nothing but tombstones, or nothing at all (a split may have left it that), *reopens*
//       it. The writer puts the leaf's range into the list of those that were reopened, after the version was linked
//       and before it is committed; so does a merge of two leaves where the outcome has other entries than tombstones.
//       A run has a place in this list that was read before its leaves were looked at, and reaches no further than to
//       the first range that comes into the list from there on. When the list has forgotten that place the run is not
//       valid.
//   G4  Into a run goes a leaf only that is whole by a gap that is valid, and alive, after that place in the list was
//       read. (A dead leaf's successor may have been put to where the dead one does not show it.)
//   G5  A reader uses a gap only when its moment is at `since` or after it: to one before, a snapshot's, there may be
//       something. For such there is a second place for runs.
//   G6  Nothing but the copying of runs to the leaf that takes a dead one's place outlives a leaf. A gap is a hint:
//       where one is missing a reader walks.
//
// Why G2 and G3 hold for a put that the maker of a gap did not see. The writer links, counts, maybe lists, and commits,
// in this order, under the leaf's lock. If the maker had read the count or the place in the list after the writer's
// store, it would have seen the version too. So it read it before, and the writer's store is one that a later reader
// compares with. A put into a leaf that is not listed finds another entry there that is no tombstone, whose own put is
// listed; the maker saw that one's tombstone, hence what was linked before it.
//
// No one waits: a reader writes a gap under a turn (a sequence lock) that it takes with a compare-and-swap or leaves
// alone, and what is being written counts as missing. Writers take the list's lock under a leaf's lock; readers never
// do.
#ifndef WH_GAP_H
#define WH_GAP_H

#include "wh/state.h"

// Four words that are read and written as one. All zero: nothing is there.
struct wh_note {
  _Atomic uint64_t turn;  // odd: it is being written
  _Atomic uint64_t word[4];
};

enum { WH_GAP_FORWARD, WH_GAP_BACKWARD };

struct wh_gaps {        // of a leaf, in the arena; made by whoever needs it first
  struct wh_note here;  // entries lo and hi (0: the leaf's end), since | 1 << 63, puts
  // By direction. [0] is of the newest moment, [1] of an older one. The anchor that it leads to: pointer and length;
  // since | 1 << 63; the place in the list.
  struct wh_note run[2][2];
};

// The runs of the old leaf in a direction are the new one's, which takes its place and has the end that they begin at.
// The new one is not shared yet. Without memory they are lost.
void wh_gaps_inherit(struct wh *wh, const struct wh_leaf *old, struct wh_leaf *fresh, bool backward);
// Under the leaf's lock. G2: a put of the key was linked, the leaf has gaps, and its count of puts was `before`.
void wh_gap_keep(struct wh_leaf *l, struct kref key, uint32_t before);
// G3. Under the leaf's lock.
void wh_gap_reopened(struct wh *wh, const struct wh_leaf *l);
#endif
