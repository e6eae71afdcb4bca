// SPDX-License-Identifier: Apache-2.0
//
// The pace of writers.
//
// While a memtable is being compacted the next one should fill no faster than the compaction advances. From the round's progress follows the time it still
// needs; spread over the room that is left it gives the time that a quantum of new data may take. Writers draw from one clock, so that it holds for all of
// them together. A writer that comes later than the clock says waits for nothing.
#ifndef XDB_PACE_H
#define XDB_PACE_H

#include "xdb_ref.h"

#define XDB_PACE_QUANTUM (16u << 10)

// After a write of so many bytes, outside of any epoch: may sleep, for some milliseconds at most.
void xdb_pace_draw(struct xdb_ref *r);
static inline void xdb_pace(struct xdb_ref *r, size_t nbytes) {
  if (unlikely(atomic_load_explicit(&r->xdb->compacting, memory_order_relaxed)) && (r->debt += nbytes) >= XDB_PACE_QUANTUM) xdb_pace_draw(r);
}

// Counts the time for which a writer was made to wait.
void xdb_pace_stalled(struct xdb *x, uint64_t ns);
#endif
