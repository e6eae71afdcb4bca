// SPDX-License-Identifier: Apache-2.0
//
// Merges of a store at rest: joins of neighbours in which little lives (compact/join.h), and then merges for room on
// the disk, of partitions whose garbage is much of their bytes (compact/garbage.h).
//
// A store is at rest if nothing was written for a second (store/garbage_look.h). While something is written such merges
// would make the same room several times over; then only the bound of a memtable's round holds. The merges are made a
// few partitions at a time, until nothing is due or something is written. They give way to a memtable as scan merges
// do. Without workers there are none.
#ifndef STORE_GARBAGE_MERGE_H
#define STORE_GARBAGE_MERGE_H

#include "store/state.h"

// Makes the merges that are due. A round calls it, with no lock held. A failure goes to the logger only; the merge is
// tried again after a minute.
void garbage_merge_run(struct xdb *x, struct worker *w);
#endif
