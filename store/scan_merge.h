// SPDX-License-Identifier: Apache-2.0
//
// Scan merges: merges of a partition's newest runs, or of all runs and some values apart (compact/value_merge.h), that
// scans have paid for (compact/compact.h).
//
// Readers count the scan debt and the value debt. A reader that finds the debt high enough asks for a round. The round
// merges partitions until no partition has enough debt for another merge. It gives up when a memtable is frozen or the
// store closes. While the active memtable is nearly full and still grows, no merge begins.
#ifndef STORE_SCAN_MERGE_H
#define STORE_SCAN_MERGE_H

#include "store/state.h"

// The `due` function of the store's remix_watch: a scan has added to a debt of r. arg is the store. Any thread, inside
// an epoch; does not wait.
void scan_merge_ask(void *arg, struct remix *r);
// Makes the merges that are due. A round calls it, with no lock held. A failure only goes to the logger, because the
// merge was not necessary, and scans will pay for it again.
void scan_merge_run(struct xdb *x, struct worker *w);
// For other merges of that kind, which the caller then makes: tells whether to begin one now. xdb.lock is free.
bool scan_merge_may_begin(struct xdb *x);
// For the closing of the store: gives up a running merge, and prevents further merges.
void scan_merge_stop(struct xdb *x);
#endif
