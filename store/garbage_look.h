// SPDX-License-Identifier: Apache-2.0
//
// Whether a store at rest has so much garbage that it is to be merged, or partitions that are to be joined
// (store/garbage_merge.h). After each new version an idle worker looks at the store (idle_garbage), until it is at rest
// or has too little garbage. Then it asks for a round.
#ifndef STORE_GARBAGE_LOOK_H
#define STORE_GARBAGE_LOOK_H

#include "store/state.h"

#define GARBAGE_REST_NS 1000000000ull  // a store to which nothing was written for so long is at rest

// Idle work is to look so many nanoseconds from now on. Any thread; does not wake anybody.
void garbage_look_after(struct xdb *x, uint64_t ns);
// For idle work: asks for a round if one is due. Returns the nanoseconds until it is to look again; 0: it is not. slot:
// the caller's, outside of any epoch.
uint64_t garbage_look(struct xdb *x, struct epoch_slot *slot);
// Tells whether a look or a merge is pending.
bool garbage_pending(const struct xdb *x);
#endif
