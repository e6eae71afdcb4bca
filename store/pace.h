// SPDX-License-Identifier: Apache-2.0
//
// The pace of writers.
//
// While a round compacts one memtable, the next one should fill no faster than the round advances. The round's
// remaining work and its rate give the time that it still needs. That time, spread over the memtable's free room, is
// the time that a quantum of new data should take. All writers draw from one clock, so the pace holds for all of them
// together. A writer that comes later than the clock does not wait. If a quantum would take long, the quantum is made
// smaller, so that no nap is long. A batch is one quantum, however large it is. It takes as long as its 16 KiB one by
// one:
//   N1  A write's nap is at most 5 ms, or 5 ms for each whole 16 KiB of it, and never more than 100 ms. The clock is
//       not further ahead than that nap and the time that the write takes.
//   N2  A nap ends within 5 ms of the end of the round, unless the next one has begun. So naps that are to fill the
//       time that the round needs do not exceed it.
// A writer naps only when its naps add up to two milliseconds, unless the memtable is nearly full: a few slow writes
// are better than many writes that are a little slow. During the end of a round, when its files are synced and
// installed, its work does not advance. So the remaining time never counts as less than the time that this end takes.
// Writers therefore slow down while the memtable becomes full, and rarely have to stop.
#ifndef STORE_PACE_H
#define STORE_PACE_H

#include "store/ref.h"

void xdb_pace_draw(struct xdb_ref *r);  // by xdb_pace alone
// A writer calls this after a write of nbytes. The call may sleep for a few milliseconds, after a batch for up to 100
// (N1). Outside of any epoch.
static inline void xdb_pace(struct xdb_ref *r, size_t nbytes) {
  if (unlikely((r->debt += nbytes) >= r->debt_max)) xdb_pace_draw(r);
}

// Learns from a round that succeeded: the round's work (compact.progress) with that of its steps for room, the time
// from its begin until its last table or REMIX was written, and the time from then until it was installed. One thread
// at a time.
void xdb_pace_learn(struct xdb *x, uint64_t work, uint64_t ns, uint64_t tail_ns);

// Adds a wait of a writer to the figures.
void xdb_pace_stalled(struct xdb *x, uint64_t ns);
#endif
