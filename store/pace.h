// SPDX-License-Identifier: Apache-2.0
//
// The pace of writers.
//
// While a memtable is being compacted the next one should fill no faster than the compaction advances. From the work
// that is left and the rate at which it is done follows the time that the round still needs; spread over the room that
// is left it gives the time that a quantum of new data may take. Writers draw from one clock, so that it holds for all
// of them together. A writer that comes later than the clock says waits for nothing. A quantum that would have to take
// long is made smaller, so that no nap is long; and a nap is put off until it is of two milliseconds, unless the
// memtable is nearly full: few slow writes are better than many that are not so slow. The time is never said to be less
// than what the end of a round takes, in which nothing advances: so writers become slower and slower before a memtable
// that is nearly full, and seldom come to where they would have to wait for all of it.
#ifndef STORE_PACE_H
#define STORE_PACE_H

#include "store/ref.h"

// After a write of so many bytes, outside of any epoch: may sleep, for some milliseconds at most.
void xdb_pace_draw(struct xdb_ref *r);
static inline void xdb_pace(struct xdb_ref *r, size_t nbytes) {
  if (unlikely((r->debt += nbytes) >= r->debt_max)) xdb_pace_draw(r);
}

// A round has ended well: the work that it counted, how long it took, and how long it was from the end of the work
// until it was installed. One round at a time.
void xdb_pace_learn(struct xdb *x, uint64_t work, uint64_t ns, uint64_t tail_ns);

// Counts the time for which a writer was made to wait.
void xdb_pace_stalled(struct xdb *x, uint64_t ns);
#endif
