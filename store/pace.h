// SPDX-License-Identifier: Apache-2.0
//
// The pace of writers.
//
// While a round compacts one memtable, the next one should fill no faster than the round advances. The round's
// remaining work and its rate give the time that it still needs. That time, spread over the memtable's free room, is
// the time that a quantum of new data should take. All writers draw from one clock, so the pace holds for all of them
// together. A writer that comes later than the clock does not wait. Where a quantum would take long, it is made
// smaller, so that no nap is long. A nap is put off until it comes to two milliseconds, unless the memtable is nearly
// full: a few slow writes are better than many writes that are a little slow. The end of a round advances nothing, so
// the time never counts as less than that end takes: writers slow down before a memtable that is nearly full, and
// rarely have to stop.
#ifndef STORE_PACE_H
#define STORE_PACE_H

#include "store/ref.h"

void xdb_pace_draw(struct xdb_ref *r);  // by xdb_pace alone
// After a write of nbytes. May sleep for a few milliseconds. Outside of any epoch.
static inline void xdb_pace(struct xdb_ref *r, size_t nbytes) {
  if (unlikely((r->debt += nbytes) >= r->debt_max)) xdb_pace_draw(r);
}

// Learns from a round that ended well: its work (compact.work), the time the work took, and the time from its end until
// the round was installed. One round at a time.
void xdb_pace_learn(struct xdb *x, uint64_t work, uint64_t ns, uint64_t tail_ns);

// Counts a wait of a writer.
void xdb_pace_stalled(struct xdb *x, uint64_t ns);
#endif
