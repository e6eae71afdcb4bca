// SPDX-License-Identifier: Apache-2.0
//
// Gaps. Private to wh.c and wh/. A reader that has passed a run of tombstones records a gap, so that later readers need
// not walk over these tombstones again.
//
// A gap is a stretch of the key space in which a reader of the memtable *and of all older data* finds nothing at any
// moment from `since` on. The memtable's tombstones hide the records of older memtables and tables. All older data was
// complete before the memtable got its first write, every reader of the memtable sees all of it (super.least), and
// compaction changes only the form of older data. So a gap stays true while the memtable lives, whatever happens to the
// tables. There are two exceptions. A range deletion takes keys out of older data: the stretches that its readers pass
// are gaps from the moment of that deletion on (wh_pass.floor). An ingest may put tables below a memtable that is in
// use: it ends the gaps of that memtable (wh_end_gaps) before a reader can see the tables. The merge (view/merge.c)
// makes gaps and uses them.
//
// A record that has expired counts as a tombstone for readers whose clock shows its time or a later one. So a gap has a
// time, `until`, the latest of the times of all expired records that its maker has passed; 0: none. A reader whose
// clock stands before that does not use the gap: clocks may step back, and a snapshot has an earlier clock.
//
// There are two kinds.
//   Within a leaf: [lo, hi], two entries of the leaf, or the leaf's ends. A gap from one end of the leaf to the other
//   is *whole*.
//   A run: from one end of a leaf over whole leaves up to the anchor of another leaf, in one of the two directions.
// A reader that passes several runs in a row joins them into one run. So a later reader takes few steps over many
// leaves.
//
// Invariants (tests/unit/test_merge.c and tests/store/test_queue.c check G1 and G3 by wh_gaps_check)
//   G1  Each entry within a valid gap has a tombstone as its newest version, or a record that expires at `until` at the
//       latest. At `since` the same held, or the entry did not exist.
//   G2  A leaf counts its puts, which are the versions other than tombstones (`puts`). The writer counts after it has
//       linked the version and before it commits. A gap within a leaf stores the count that its maker read before it
//       looked at the entries. The gap is valid while the leaf has the same count. The count is written before the
//       commit, so a reader whose moment sees a put into the gap also sees that the gap is not valid. A writer whose
//       key lies outside of the gap brings the gap on to the new count. If a reader is writing the gap at that time,
//       the writer does not wait, and the gap is not valid.
//   G3  A put into a leaf with no entries, or with nothing but tombstones, *reopens* the leaf. (A split can leave a
//       leaf without entries.) An entry whose only version was taken back counts as a tombstone here: it may have come
//       after a run took the leaf. The writer adds the leaf's range to the list of reopened ranges, after it has linked
//       the version and before it commits. A thread that merges two leaves does the same if the new leaf has entries
//       that are no tombstones. A run stores a place in this list, which its maker read before it looked at the leaves.
//       The run ends at the first range that was added to the list after that place. If the list no longer has that
//       place, the run is not valid.
//   G4  A run takes only leaves that are alive and that a valid gap makes whole, both seen after its place in the list
//       was read. (The successor of a dead leaf may have got a put that the dead leaf does not show.)
//   G5  A reader uses a gap only if its moment is `since` or later. At an earlier moment, such as a snapshot's, keys
//       may exist there. Runs have a second place for readers at earlier moments.
//   G6  A gap ends with its leaf, except that runs are copied to the leaf that takes a dead one's place. A gap is a
//       hint: where it is missing, a reader walks.
//   G7  G3 tells nothing of a leaf with expired records. So a maker sets the leaf's flag `lapsed` before it looks at
//       the entries, and the flag is still set when it has seen them all closed; else it makes no gap. A put clears the
//       flag after it has linked the version and counted. If the flag was set, the put reopens the leaf before it
//       commits. A thread that replaces the leaf does the same when the leaf is dead.
//
// Proof of G2 and G3 for a put that the maker of a gap did not see. The writer links, counts, adds to the list if it
// must, and commits, in this order, under the leaf's lock. If the maker had read the count or the place in the list
// after the writer's store, the maker would have seen the version, too. So the maker read them earlier, and a later
// reader, which compares them with the stored values, notices the writer's store. If a put is not added to the list,
// the leaf already has another entry that is no tombstone. The maker saw that other entry only with a tombstone,
// because it made the gap. So the put of the other entry came after the maker's look at it. That put was added to the
// list, and the argument above holds for it.
//
// Proof of G7. Flags change by exchanges with acquire and release. When a maker finds the flag set at its end, all puts
// that it has counted have made their exchanges: it has seen their versions committed. So the next put finds the flag
// set, and reopens the leaf. It has counted before. So a reader that adds the leaf's valid gap to a run, and does not
// see the count, has read its place in the list before. The end of a leaf is the same with `dead` in place of the
// count.
//
// No thread waits. A reader writes a gap under `turn` (a sequence lock), which it takes with a compare-and-swap; if
// that fails, the reader does not write the gap. A gap that is being written counts as missing. Writers take the list's
// lock under a leaf's lock; readers never take it.
#ifndef WH_GAP_H
#define WH_GAP_H

#include "wh/state.h"

// Words that a thread reads or writes as one. If all are zero, there is no gap.
#define WH_NOTE_WORDS 5u
struct wh_note {
  _Atomic uint64_t turn;  // odd: a thread is writing
  _Atomic uint64_t word[WH_NOTE_WORDS];
};

enum { WH_GAP_FORWARD, WH_GAP_BACKWARD };

// The gaps of a leaf, in the arena. The first thread that needs them makes them.
struct wh_gaps {
  struct wh_note here;  // entries lo and hi (0: the leaf's end), since | 1 << 63, puts, until
  // By direction; then [0] for the newest moment, [1] for an older one. Pointer and length of the anchor that the run
  // leads to, since | 1 << 63, place in the list, until.
  struct wh_note run[2][2];
};

// Copies the old leaf's runs of one direction to the new leaf that takes the old leaf's place at the end where these
// runs begin. No other thread has the new leaf yet. If memory is missing, the runs are lost.
void wh_gaps_inherit(struct wh *wh, const struct wh_leaf *old, struct wh_leaf *fresh, bool backward);
// G2: updates a gap to the new count of puts, if the key lies outside of the gap. The caller has linked a put of the
// key; before that, the count was `before`. The caller holds the leaf's lock.
void wh_gap_keep(struct wh_leaf *l, struct kref key, uint32_t before);
// G3: adds the leaf's range to the list of reopened ranges. The caller holds the leaf's lock.
void wh_gap_reopened(struct wh *wh, const struct wh_leaf *l);
// G7: whether the leaf must be reopened, because a gap may have taken expired records of it as absent. The caller has
// linked a put of one of its keys, or has marked the leaf dead. It holds the leaf's lock.
static inline bool wh_gap_lapsed(struct wh_leaf *l) {
  return atomic_exchange_explicit(&l->lapsed, false, memory_order_acq_rel);
}
#endif
