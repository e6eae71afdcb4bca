// SPDX-License-Identifier: Apache-2.0
//
// Looks many keys up together, one group at a time. The keys of a group pass the memtables, the REMIXes and the block
// cache side by side, so they wait for memory together. Blocks that are not cached are read in one batch. (Group
// prefetching: Chen, Ailamaki, Gibbons, Mowry, "Improving Hash Join Performance through Prefetching", ICDE 2004.)
#ifndef MULTIGET_H
#define MULTIGET_H

#include "view/version.h"
#include "wh.h"

// Keys of a group: more than the processor can fetch at once, few enough to stay in its first cache.
#define MULTIGET_GROUP 64u
_Static_assert(MULTIGET_GROUP <= WH_GROUP_MAX, "a group goes through every layer as one");

struct multiget;  // one thread's state; kept from one call to the next

// queue: the queue that reads blocks, which is shared or private to the thread. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status multiget_create(struct blkio_queue *queue, struct multiget **out);
void multiget_destroy(struct multiget *m);  // NULL is allowed

// One buffer for many values. The values lie one after the other, in the order in which they are found.
struct multiget_room {
  uint8_t *ptr;
  size_t cap, len;  // bytes of the buffer, bytes used
  size_t wanted;    // bytes of all values found, including those that did not fit
};

// Begins a call. `values` may be NULL. The arrays belong to the caller and stay until multiget_end; `found` becomes all
// false. room may be NULL. If room is not NULL, `values` must not be NULL. The ptr and cap of each value are then its
// place in the room, or NULL and 0 if the value is empty or does not fit.
void multiget_begin(struct multiget *m, size_t nr, const struct remixdb_slice *keys, struct remixdb_buf *values,
                    bool *found, struct multiget_room *room);
// Sets the clock that decides what has expired: now_ms, or with 0 the env's wall clock, which the call asks once.
// Between multiget_begin and the first part.
void multiget_clock(struct multiget *m, const struct env *env, uint64_t now_ms);
// Lets the call read values apart, of this super. The parts have the super's memtables and version. Before the first
// part. Each key's file is counted, so the values are read by multiget_end, outside of any epoch.
struct super;
void multiget_super(struct multiget *m, const struct super *v);
// Looks up the next part of the keys (some groups) at the moment, and copies the values that are found. frozen may be
// NULL. Returns whether more keys are left. Inside an epoch; each part may have its own, but active, frozen and version
// must be the same for all parts.
bool multiget_part(struct multiget *m, const struct wh *active, const struct wh *frozen, const struct version *version,
                   uint64_t moment);
// Reads the values that are apart, and ends the call. *nr_out: how many keys were found. Returns the error that
// occurred earliest. If no key failed, returns REMIXDB_TOOBIG if a value did not fit, else REMIXDB_OK.
MUST_CHECK enum remixdb_status multiget_end(struct multiget *m, size_t *nr_out);
#endif
