// SPDX-License-Identifier: Apache-2.0
//
// Expiry: when compaction may remove what has expired, and when a merge is due for it.
//
// Readers judge a record by the wall clock of their moment (xdb_ref_absent). So a wrong clock makes records absent, and
// they come back when the clock is right again. Compaction must not remove them meanwhile. It goes by the *settled
// time*: the least time that the wall clock has shown over the last REMIXDB_EXPIRY_SETTLES_MS at least, as measured by
// a clock that never steps.
//   - A clock that is ahead for less than that loses nothing.
//   - When the clock steps back, the settled time steps back with it at once. Records whose time is behind the new time
//     stay, whatever the clock has shown before.
//   - Nothing is settled in the first REMIXDB_EXPIRY_SETTLES_MS after the opening.
// A clock that is ahead for longer is believed, because nothing distinguishes it from a right one.
//
// The settled time is the least reading of two periods: the current one and the one before it, each as long as
// REMIXDB_EXPIRY_SETTLES_MS or longer. Rounds and idle workers take readings.
#ifndef STORE_EXPIRY_H
#define STORE_EXPIRY_H

#include "store/state.h"

void expiry_init(struct expiry *e);
void expiry_fini(struct expiry *e);
// Takes a reading of the clocks, and returns the settled time in ms; 0: none yet. Gives it to compaction. Any thread.
uint64_t expiry_settle(struct xdb *x);
// A version is about to be the store's. Returns whether it has records that expire, so that idle workers have to look
// at it every EXPIRY_LOOK_MS (idle_expiry).
bool expiry_watch(struct xdb *x, const struct version *v);
// For idle workers: asks for a merge if enough of some partition has expired. Looks at most once in
// EXPIRY_LOOK_MS. slot: the caller's, outside of any epoch.
#define EXPIRY_LOOK_MS (REMIXDB_EXPIRY_SETTLES_MS / 5)
void expiry_look(struct xdb *x, struct epoch_slot *slot);
#endif
