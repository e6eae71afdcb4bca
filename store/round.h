// SPDX-License-Identifier: Apache-2.0
//
// Rounds, which workers run. A round compacts the frozen memtable (compact/compact.h), installs the new version
// (store/install.h), and then makes the scan merges that are due.
#ifndef STORE_ROUND_H
#define STORE_ROUND_H

#include "store/ingest_round.h"

// A part of xdb_compact's work, for one round. The round owns `work` while `taken` is set and `done` is not; at other
// times the waiting call owns it. xdb.lock guards the flags.
struct xdb_whole {
  struct compact_whole work;
  struct xdb_ingesting *ingest;  // the work is this instead; NULL: the work is a compaction
  bool taken, done;
  bool abandoned;  // the call has ended without waiting for the round, so the round frees this struct
  bool installed;  // set before `done`: the store has the round's version. If not set, the results in `work` mean
                   // nothing
  struct err_saved error;  // set before `done`: why the work has failed, although the round may succeed without it
};

// One round; arg is the store. Workers call it after workers_kick. When no memtable is frozen it makes scan merges
// only. When the disk is full, memory is short, or what the round needs cannot be read, the memtable stays frozen,
// rounds.error says why, and a waiting call asks again (store/waiter.h). If the round fails otherwise while it has a
// call's work, it is made again without that. If it fails without such work, the store refuses writes.
void xdb_round_run(void *arg, struct worker *w);
// Tells the logger which merges the last round has left undone. In the thread of the round.
void round_say_left_out(struct xdb *x);

// Tells whether the memtable is full: for one record (batch 0), or for a batch that takes `batch` bytes of memory. With
// a batch, the memtable may exceed its limit by up to a quarter; a larger batch gets a new memtable. An empty memtable
// takes any batch. The same rule holds for the log's segment, which has the same records. Inside an epoch, or under
// xdb.lock.
static inline bool xdb_round_due(struct xdb *x, const struct memtable *m, size_t batch) {
  const size_t used = memtable_memory(m), limit = xdb_memtable_limit(x);
  if (used >= limit || wal_full(x->wal, 0, false)) return true;
  return unlikely(batch != 0) && ((used > limit / 4 && used + batch > limit + limit / 4 && memtable_count(m) != 0) ||
                                  wal_full(x->wal, batch, false));
}
#endif
