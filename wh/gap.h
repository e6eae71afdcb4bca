// SPDX-License-Identifier: Apache-2.0
//
// Gaps. Private to wh.c and wh/. A reader that has passed a run of tombstones leaves a gap behind, so that later
// readers need not walk over them again.
//
// A gap is a stretch of the key space in which a reader of the memtable *and of all older data* finds nothing at any
// moment from `since` on. The memtable's tombstones hide what older memtables and tables have. All that lies below a
// memtable was complete before the first write came to it, and compaction changes only its form. So a gap stays true
// while the memtable lives, whatever happens to the tables. The merge (view/merge.c) makes gaps and uses them.
//
// There are two kinds.
//   Within a leaf: [lo, hi], two entries of the leaf, or the leaf's ends. It is *whole* if it has both ends.
//   A run: from one end of a leaf over whole leaves up to the anchor of another leaf, in one of the two directions.
// A reader that passes several runs in a row joins them into one. So a long way takes few steps.
//
// Invariants (tests/unit/test_merge.c and tests/store/test_queue.c check G1 and G3 by wh_gaps_check)
//   G1  Each entry within a valid gap has a tombstone as its newest version. At `since` it had one too, or did not
//       exist.
//   G2  A leaf counts its puts, which are the versions other than tombstones (`puts`). The writer counts after it has
//       linked the version and before it commits. A gap within a leaf stores the count that its maker read before it
//       looked at the entries. The gap is valid while the leaf has the same count. The count is written before the
//       commit, so a reader whose moment sees a put into the gap also sees that the gap is not valid. A writer whose
//       key lies outside of the gap brings the gap on to the new count. If a reader is writing the gap meanwhile, the
//       reader wins, and the gap is not valid.
//   G3  A put into a leaf with no entries, or with nothing but tombstones, *reopens* the leaf. (A split can leave a
//       leaf without entries.) The writer adds the leaf's range to the list of reopened ranges, after it has linked the
//       version and before it commits. A merge of two leaves does the same if the new leaf has other entries than
//       tombstones. A run stores a place in this list, which its maker read before it looked at the leaves. The run
//       ends at the first range that was added to the list after that place. If the list no longer has that place, the
//       run is not valid.
//   G4  A run takes only leaves that are alive and that a valid gap makes whole, both seen after its place in the list
//       was read. (The successor of a dead leaf may have got a put that the dead leaf does not show.)
//   G5  A reader uses a gap only if its moment is `since` or later. At an earlier moment, such as a snapshot's, keys
//       may exist there. Runs have a second place for readers at earlier moments.
//   G6  A gap ends with its leaf, except that runs are copied to the leaf that takes a dead one's place. A gap is a
//       hint: where it is missing, a reader walks.
//
// Proof of G2 and G3 for a put that the maker of a gap did not see. The writer links, counts, adds to the list if it
// must, and commits, in this order, under the leaf's lock. If the maker had read the count or the place in the list
// after the writer's store, it would have seen the version too. So it read them earlier, and a later reader, which
// compares with the stored value, notices the writer's store. A put that is not listed finds another entry in the leaf
// that is no tombstone, and the put of that entry is listed. The maker saw that entry's tombstone, so it saw everything
// that was linked before it.
//
// No thread waits. A reader writes a gap under a turn (a sequence lock), which it takes with a compare-and-swap, or
// gives up. A gap that is being written counts as missing. Writers take the list's lock under a leaf's lock; readers
// never take it.
#ifndef WH_GAP_H
#define WH_GAP_H

#include "wh/state.h"

// Four words that are read and written as one. All zero: empty.
struct wh_note {
  _Atomic uint64_t turn;  // odd: a thread is writing
  _Atomic uint64_t word[4];
};

enum { WH_GAP_FORWARD, WH_GAP_BACKWARD };

// The gaps of a leaf, in the arena. The first thread that needs them makes them.
struct wh_gaps {
  struct wh_note here;  // entries lo and hi (0: the leaf's end), since | 1 << 63, puts
  // By direction; then [0] for the newest moment, [1] for an older one. Pointer and length of the anchor that the run
  // leads to, since | 1 << 63, place in the list.
  struct wh_note run[2][2];
};

// Copies the old leaf's runs of one direction to the new leaf that replaces it at the end where those runs begin. The
// new leaf is not shared yet. Without memory the runs are lost.
void wh_gaps_inherit(struct wh *wh, const struct wh_leaf *old, struct wh_leaf *fresh, bool backward);
// G2: brings a gap on to the new count of puts, if the key lies outside of it. A put of the key was linked, and the
// count was `before`. The caller holds the leaf's lock.
void wh_gap_keep(struct wh_leaf *l, struct kref key, uint32_t before);
// G3: adds the leaf's range to the list of reopened ranges. The caller holds the leaf's lock.
void wh_gap_reopened(struct wh *wh, const struct wh_leaf *l);
#endif
