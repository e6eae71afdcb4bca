// SPDX-License-Identifier: Apache-2.0
//
// Asking for the room of dropped spaces (store/dropped.h): now, and again after a while.
#ifndef STORE_DROPPED_ASK_H
#define STORE_DROPPED_ASK_H

#include "store/state.h"

// Asks for a round that gives back the room of dropped spaces. Outside of any lock.
void dropped_ask(struct xdb *x);
// For idle workers: asks for such a round if it is time for another try. Returns in how many ns it is time; 0: there is
// nothing to wait for.
uint64_t dropped_look(struct xdb *x);
#endif
