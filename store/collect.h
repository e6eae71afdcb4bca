// SPDX-License-Identifier: Apache-2.0
//
// The collection of garbage: values in value files to which no record refers any more. A file goes by itself when no
// table states it. If a part of its values still lives, a collection copies that part into a new file, together with
// the live parts of other files as far as they fit, and the old files go. The tables keep their references; the new
// file has an index for each old one (value/index.h).
//
// A collection takes a file that is settled (store/values.h) if at least a third of it seems to be garbage
// (view/live.h), the files with the largest share first. A sixth is enough if the garbage of all files is more than
// three tenths of the live bytes, or more than a fifth while a value merge waits for room (compact/value_merge.h). A
// collection is not worth it while all garbage is less than 1/64 of a full file. It passes over the file's records. A
// record is live if the newest record of its key in the tables has the reference to it, itself or by an index.
// (Memtables have no reference to a settled file. Records that a newer one hides are never read again: not by this
// version, and not by a later one.)
//
// A file that still takes values is closed to them when a third of it is garbage, at the end of a round.
//
// Idle workers collect, a piece at a time, so rounds and their tasks come first. They look for garbage at the end of a
// round, and a second after the opening: the life before may have left some. Without workers the end of a round
// collects, about as much as the writers have written since the last one. A full compaction collects in its own thread.
// A round installs the result, when no other one is under way.
//
// Invariants
//   G1  The new file, its indexes and its name are durable before CURRENT names them (V3). The old files are retired
//       after that, and their last user removes them: snapshots, iterators and older versions read on.
//   G2  No round that began before the install ends after it. So a merge finds all references of its records in its
//       base. The references that it writes are in the new indexes: an index has each copied record under its place in
//       the old file, also if tables reached that place by an older index.
//   G3  A collection that fails before the install leaves nothing behind and changes nothing. A file with a live value
//       that cannot be read, or whose tables cannot be read, is never collected: the damage stays where it is. The pass
//       does not see a value whose head is damaged. So it counts the bytes of the values that it sees. If they are
//       fewer than were written to the file, or nobody knows how many were, the file is collected only if the live ones
//       among them are all values that tables refer to.
//   G4  On a full disk a collection begins only if the store keeps room for CURRENT (store/reserve.h). Its copies leave
//       that room, so they can be installed.
//   G5  After a collection that could not be installed for lack of room or memory, the next one waits: each round asks
//       for one, and the attempt to install makes a round.
#ifndef STORE_COLLECT_H
#define STORE_COLLECT_H

#include "store/progress.h"
#include "store/state.h"

#define COLLECT_PIECE (1u << 20)  // bytes of a file that a thread passes over at a time, and those of live values in it
#define COLLECT_MOST 16u          // files that one collection takes
#define COLLECT_SYNC (32u << 20)  // bytes that are written between two syncs

// The end of a round, in its thread: installs a collection that is ready, and begins or asks for the next one.
void collect_round(struct xdb *x, struct worker *w);
// Idle work. Returns whether there is more.
MUST_CHECK bool collect_idle(struct xdb *x, struct epoch_slot *slot);
// The store is open, and has its version: idle workers look for garbage as soon as a store may be at rest, which is a
// second later. Nothing is read if the counts that tables state leave no room for garbage to collect.
void collect_opened(struct xdb *x);
// Tells whether idle workers collect, or are to look whether they should. The look after the opening does not count.
bool collect_pending(const struct xdb *x);
// Collects until at most a tenth more than what lives is left, as far as files are settled. Any thread that is no
// worker, outside of any lock and epoch. Reports `done` of `total` to p, as the call `what`. A collection that fails is
// left out. Fails with REMIXDB_ABORTED if p gives the call up; the workers go on.
MUST_CHECK enum remixdb_status collect_all(struct xdb *x, const struct progress *p, const char *what, uint64_t done,
                                           uint64_t total);
// The disk has no room for a put. Until one of a long value finds room, all garbage is worth a collection that one of a
// full compaction would take, and a collection may spend the room that the store keeps (store/reserve.h). Any thread;
// does not wait.
void collect_urgently(struct xdb *x);
// The store is about to close: no further piece begins.
void collect_stop(struct xdb *x);
// Drops what is under way. No other thread uses the store.
void collect_fini(struct xdb *x);
// Tells whether a collection under way writes the file, or collects it: such a file stays a while after the last table
// that states it. For tests; nothing collects meanwhile.
bool collect_has(const struct xdb *x, uint64_t number);

struct collect_figures {
  uint64_t files, file_bytes;  // the version's value files
  uint64_t value_bytes;        // bytes of all values in them, as they are read
  uint64_t garbage_bytes;      // bytes of values that no record refers to, in files that take no further ones
  uint64_t indexes, index_memory;
};
// Measures the value files of the store's version. All zero without memory. Takes xdb.lock.
void collect_measure(struct xdb *x, struct collect_figures *out);
#endif
