// SPDX-License-Identifier: Apache-2.0
//
// The room of dropped spaces comes back by itself (compact/dropped.h has the ways).
//
// The drop of a space asks for a round, and so does an opening that finds keys of dropped spaces. The round begins with
// work that needs no room on the disk, or nearly none: partitions and tables leave as a whole. Then it compacts its
// memtable, if there is one, and at last it merges partitions. Such a merge is given up when a memtable is frozen or
// the store closes, as scan merges are. If that happens DROPPED_WAITS times, the round of a memtable does it.
//
// A step that finds no room on the disk, or whose reads or writes fail, is tried again, after a time that doubles. A
// partition that a merge cannot read is left out for a time, or for ever if it is damaged (view/part.h, P4). While a
// partition cannot be opened, no partition is merged, and value files stay; what leaves as a whole leaves all the same.
// After other damage the partitions stay as they are, until the next drop or opening. Without workers there is no later
// time: the call that drops the space does all of this, and what fails waits for the next round.
#ifndef STORE_DROPPED_H
#define STORE_DROPPED_H

#include "store/state.h"

#define DROPPED_WAITS 3u

// The first and the last step of a round, with no lock held. A failure only goes to the logger.
void dropped_begin(struct xdb *x, struct worker *w);
void dropped_end(struct xdb *x, struct worker *w);
#endif
