// SPDX-License-Identifier: Apache-2.0
//
// Merges of a store at rest for room on the disk: partitions whose garbage is much of their bytes (compact/garbage.h).
//
// A store is at rest if nothing was written for a second (GARBAGE_REST_NS). While something is written such merges
// would make the same room several times over; then only the bound of a memtable's round holds. After each new version
// an idle worker looks at the store until it is at rest, or has too little garbage. Then it asks for a round, which
// makes the merges, a few partitions at a time, until nothing is due or something is written. They give way to a
// memtable as scan merges do. Without workers there are none.
#ifndef STORE_GARBAGE_MERGE_H
#define STORE_GARBAGE_MERGE_H

#include "store/state.h"

#define GARBAGE_REST_NS 1000000000ull

// A version was installed: idle work will look at it. Any thread; does not wait.
void garbage_watch(struct xdb *x);
// For idle work: asks for a round if one is due. Returns the nanoseconds until it is to look again; 0: it is not. slot:
// the caller's, outside of any epoch.
uint64_t garbage_look(struct xdb *x, struct epoch_slot *slot);
// Makes the merges that are due. A round calls it, with no lock held. A failure goes to the logger only; the merge is
// tried again after a minute.
void garbage_merge_run(struct xdb *x, struct worker *w);
// Tells whether a look or a merge is pending.
bool garbage_pending(const struct xdb *x);
#endif
