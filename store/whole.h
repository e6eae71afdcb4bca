// SPDX-License-Identifier: Apache-2.0
//
// Compaction of the whole store, or of a range of keys, a part in each round. Outside of any epoch and lock.
#ifndef STORE_WHOLE_H
#define STORE_WHOLE_H

#include "store/progress.h"
#include "store/state.h"

// Brings all earlier writes into the fewest tables, without tombstones and old versions, in several rounds, and waits
// for these rounds. Writers go on meanwhile. A partition that cannot be read is left as it is: when all others are
// compacted, the call fails with REMIXDB_CORRUPT or REMIXDB_IO, and names the file. Otherwise like xdb_flush.
MUST_CHECK enum remixdb_status xdb_compact(struct xdb *x);
// The same, with reports to p. Fails with REMIXDB_ABORTED if p gives the call up; the round goes on.
MUST_CHECK enum remixdb_status xdb_compact_told(struct xdb *x, const struct progress *p);
// Like xdb_compact_told, for the partitions of a tree that may hold keys low <= key < high; ptr NULL: no such bound.
MUST_CHECK enum remixdb_status xdb_compact_range(struct xdb *x, uint32_t tree, struct kref low, struct kref high,
                                                 const struct progress *p);
#endif
