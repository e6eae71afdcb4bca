// SPDX-License-Identifier: Apache-2.0
//
// Calls that wait for rounds, and report their progress meanwhile: flushes, ingests and compactions. All of them run
// outside of any epoch and lock.
//
// If a round fails for lack of space or memory, or because the system cannot read what it needs, the call that waits
// for the round asks for another round after a while.
#ifndef STORE_WAITER_H
#define STORE_WAITER_H

#include "store/freeze.h"
#include "store/progress.h"
#include "store/round.h"

#define WAITER_RETRY_NS 1000000000ull  // between two tries of a round that failed in a way that may end

// A call that waits for rounds and reports its progress.
struct waiter {
  struct xdb *x;
  struct progress progress;
  const char *what;
  uint64_t total;    // work of the call in bytes; 0: not known yet
  uint64_t base;     // done by earlier rounds
  uint64_t done;     // bytes at the last report; never decreases
  uint64_t told_ns;  // time of the last report
  bool own;          // true: the call waits for its own round; false: for its turn to freeze (rounds.nr_flushers)
  struct xdb_whole *whole;  // the work that it gives to its round; NULL: none
  // A compaction of a part: where that begins. With whole->work.within it ends in the same tree.
  struct kref low;
  uint32_t tree;
};
// The first report of a call.
MUST_CHECK enum remixdb_status waiter_begin(struct waiter *w);
// The last report of a call that has succeeded.
MUST_CHECK enum remixdb_status waiter_end(const struct waiter *w);
// Freezes the active memtable, if it is as `when` says, and waits for its round, which hands nothing back and does the
// work of w->whole. Then the caller owns w->whole again. There is one exception: if the progress function gives the
// call up while a round works on w->whole, the round keeps it, and w->whole becomes NULL.
MUST_CHECK enum remixdb_status waiter_round(struct waiter *w, enum xdb_freeze when);

// Tells whether the active memtable is as `when` demands (batch: see xdb_round_due). xdb.lock is held.
bool xdb_freeze_due(struct xdb *x, enum xdb_freeze when, size_t batch);
// Waits for a change while a memtable is frozen; w: the waiting call, or NULL, which waits for at most so long. If the
// round has failed, asks for another one. xdb.lock is held; the call releases it while it waits. Returns a failure if
// the round will not end soon.
MUST_CHECK enum remixdb_status xdb_wait_frozen(struct xdb *x, struct waiter *w, uint64_t ns);
// Waits until a memtable may be frozen. xdb.lock is held; the call releases it while it waits.
MUST_CHECK enum remixdb_status xdb_wait_unfrozen(struct xdb *x, struct waiter *w);
#endif
