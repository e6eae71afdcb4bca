// SPDX-License-Identifier: Apache-2.0
//
// Rounds of an opening. A log that holds more than memtables may take is brought into tables while it is replayed, a
// memtable at a time.
//
// Invariants
//   B1  CURRENT names the version before the log, and the whole log is there, until all records of the log are in
//       tables. Then one new CURRENT names these tables, and the log's new segment, which is empty. So a crash at any
//       time leaves a store that opens as before, with files that no version names.
//   B2  Until then no file goes that the first version names. A file that a round has made, and that a later one
//       replaces, goes at once.
//   B3  A round puts its records above all of the version, and later rounds are of later records. The edits of the
//       log's range deletions are made before the first round, of the version that has nothing of the log. Later they
//       would take records away that came after the deletion. So a record that is older than a deletion of its key does
//       not come into a round (store/replay_ranges.h).
//   B4  Until the log is replayed nobody knows whether it is whole. Then it becomes durable, and the values to which
//       its records refer, before CURRENT is written.
//   B5  Only the opening thread uses the store's super, and workers read of it only by tasks (U1 of store/setup.h). So
//       a super goes at once when the next one takes its place.
#ifndef STORE_REPLAY_ROUND_H
#define STORE_REPLAY_ROUND_H

#include "store/replay_link.h"

// Bytes of memtables that are replayed without a round. 0: by their limit. Tests set it. Relaxed.
extern _Atomic size_t replay_most;

// The parts of the store in a replay. The store's super has `m` and `version`.
struct replay_state {
  struct xdb *x;
  struct worker *self;      // the opening thread as a worker
  struct memtable *m;       // takes the records; with a reference
  struct version *first;    // that CURRENT names; with a reference
  struct version *version;  // the newest one; with a reference
};

// Tells whether m holds so much that the log is to be replayed in rounds: more than the two memtables of a store with
// these options, and what batches and late records add.
bool replay_is_much(const struct xdb *x, const struct memtable *m);
// Tells whether a round is due.
bool replay_round_due(const struct xdb *x, const struct memtable *m);
// Bytes of records after which they are linked, at most REPLAY_BYTES.
size_t replay_gather(void);
// Begins with an empty memtable and the first version again: nothing is left of a replay that came before. Fails with
// REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status replay_again(struct replay_state *st);
// The version takes the place of st->version. Takes the caller's reference over, also on failure. Fails with
// REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status replay_place(struct replay_state *st, struct version *v);
// Brings the memtable into tables; st->m is a new one then, which has the same value files. Fails as compact_round
// does.
MUST_CHECK enum remixdb_status replay_round(struct replay_state *st);
// The log is open, and its records are in tables but for those of the memtable. Brings these into tables, too, saves
// the version, and releases the log's older segments. st->first is st->version then. *unknown_out: the call has failed,
// and CURRENT may be the old or the new one. After another failure the caller may begin again without rounds. Fails
// also with REMIXDB_NOSPACE if the log had no room for a new segment.
MUST_CHECK enum remixdb_status replay_finish(struct replay_state *st, bool *unknown_out);
#endif
