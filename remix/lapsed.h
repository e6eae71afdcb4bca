// SPDX-License-Identifier: Apache-2.0
//
// Segments of a view that have lapsed: all their records have expired. The first scan of a stretch of expired records
// looks at each of them. Later scans leap over its segments, until a merge drops the records.
//
// Invariants
//   E1  A view does not change, nor does the time at which one of its records expires. So a segment that has lapsed at
//       some time has lapsed for good. For a reader whose clock stands before that time it has not lapsed: a snapshot's
//       clock, or one that was set back.
//   E2  A view has a bit for each segment, and one time for all of them: the latest expiry of their records. The time
//       is raised before a bit is set. A reader reads bits first, then the time. It uses the bits if its clock is not
//       before that time.
//   E3  Only the oldest stream of a merge may leap. A newer one hides older records of its keys.
//
// Pages of a paged view have no bits, and nor has a young view (E3). Any thread; nobody waits. If memory is missing,
// there are no bits.
#ifndef REMIX_LAPSED_H
#define REMIX_LAPSED_H

#include "remix/position.h"

// The segment in which a scan passes expired records.
struct remix_lapse {
  const struct remix *x;  // it lives while this is used. NULL: none yet
  uint32_t seg;
  uint32_t seen;   // its entries that have expired, one bit each
  uint64_t until;  // the latest expiry of these (ms)
};
// The cursor's record expired at this time, by the clock of its caller. l: zeroed at first.
void remix_lapse_note(struct remix_lapse *l, const struct remix_cursor *c, uint64_t expiry);
// If the cursor's segment has lapsed by this clock, moves the cursor over all segments behind it (back: before it) that
// have, as far as its bounds: to the last (first) live entry of them.
void remix_lapse_leap(struct remix_cursor *c, bool back, uint64_t now_ms);
#endif
