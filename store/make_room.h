// SPDX-License-Identifier: Apache-2.0
//
// Merges that make room on the disk (compact/garbage.h), in a round's thread. Each installs its version.
#ifndef STORE_MAKE_ROOM_H
#define STORE_MAKE_ROOM_H

#include "store/state.h"

// Merges for the round that has asked for room. On a full disk the round goes on without the rest (room->scarce).
// Where a step fails otherwise than for want of memory, the memtable does not need it either.
MUST_CHECK enum remixdb_status make_room_steps(struct xdb *x, struct worker *w, struct compact_room *room);
// For a full disk: makes merges as small as they must be, until there is nothing to gain, or the store is about to
// close. A merge that finds no room is followed by smaller ones, and one that has made room by larger ones. urgent: a
// memtable waits for the room, or puts do: if nothing else helps, the room that the store keeps for this is spent
// (store/reserve.h). Returns whether the store has made any room. No effect for a while after a call that has made
// none.
bool make_room_full(struct xdb *x, struct worker *w, bool urgent);
// The same at the end of a round, if a merge has found the disk full since the last call.
void make_room_run(struct xdb *x, struct worker *w);
#endif
