// SPDX-License-Identifier: Apache-2.0
//
// Scan merges: merges of a partition's newest runs that scans have paid for (compact/compact.h).
//
// Readers count the scan debt. The reader that finds it high enough asks for a round. The round merges partitions until
// none has paid for more, and gives up when a memtable is frozen or the store closes. While the active memtable is
// nearly full and still grows, no merge begins.
#ifndef STORE_SCAN_MERGE_H
#define STORE_SCAN_MERGE_H

#include "store/state.h"

// sst_ctx.scan_debt_due: a scan has added to the debt of r. arg is the store. Any thread, inside an epoch; does not
// wait.
void scan_merge_ask(void *arg, struct remix *r);
// Makes the merges that are due. In a round, with no lock held. A failure is told to the logger: the merge was not
// necessary, and scans will pay for it again.
void scan_merge_run(struct xdb *x, struct worker *w);
// The store is about to close: gives up the merge that runs, and begins no other.
void scan_merge_stop(struct xdb *x);
#endif
