// SPDX-License-Identifier: Apache-2.0
//
// Deletions that wait in the active memtable. A tombstone is small, so a memtable can hide most of a store. The hidden
// records are no garbage (store/garbage_look.h) until the memtable goes into tables. So an idle worker of a store at
// rest estimates how many keys of the tables are gone. If they are many, a round freezes the memtable. Its version
// makes the garbage known, and merges and collections give the room back.
//
// Invariants
//   H1  At rest only. Nothing was written for as long as rest_ns. Writers do nothing for it.
//   H2  No repetition. A memtable that was judged is judged again only after another write. So a freeze that gains
//       nothing is not made again.
//   H3  Bounded work. The estimate is that of a count without bytes (view/count.h). The freeze is made if at least
//       1/HIDING_PART of the keys are gone, and as many of the files' bytes are HIDING_LEAST or more. A count opens
//       partitions that are away. A tombstone hides one key at most, so a memtable with fewer tombstones needs none.
//       HV1 and HV2 bound the pass over the memtable's values.
//   H4  The close waits for no count. When it begins, a count opens no further partition.
//   H5  Before the freeze the round closes the value files that take further values. So a file to which nothing refers
//       any more goes, and the others can be collected.
//
// The estimate knows keys only. Values apart that the memtable itself has replaced count on their own
// (store/hidden_values.h), and lead to the same freeze.
#ifndef STORE_HIDING_H
#define STORE_HIDING_H

#include "store/state.h"

#define HIDING_REST_NS 3000000000ull
#define HIDING_WAIT_NS 60000000000ull  // between two looks of a store to which nothing is written, at most
#define HIDING_PART 8u
#define HIDING_LEAST (4u << 20)

// Before the store is open.
void hiding_init(struct xdb *x);
// Idle work is to look so many nanoseconds from now on. Does not wake anybody.
void hiding_after(struct xdb *x, uint64_t ns);
// For idle work. Tells whether hiding_judge is to follow. *ns_out: nanoseconds until the next look; 0: there is none.
MUST_CHECK bool hiding_is_due(struct xdb *x, uint64_t *ns_out);
// Judges the active memtable of v, and asks for a round if it hides much. The caller keeps v, and is outside of any
// epoch; slot: the caller's.
void hiding_judge(struct xdb *x, struct epoch_slot *slot, const struct super *v);
// For the closing of the store.
void hiding_stop(struct xdb *x);
// For a round. Tells whether it was asked to freeze the memtable (H5), once.
MUST_CHECK bool hiding_take(struct xdb *x);
#endif
