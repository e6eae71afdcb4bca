// SPDX-License-Identifier: Apache-2.0
//
// Many keys looked up together, a group at a time: their ways through the memtables, the partitions' REMIXes and the
// block cache are gone side by side, so that they wait for memory together, and the blocks that are not cached are read
// in one batch. (Group prefetching: Chen, Ailamaki, Gibbons, Mowry, "Improving Hash Join Performance through
// Prefetching", ICDE 2004.)
#ifndef MULTIGET_H
#define MULTIGET_H

#include "view/version.h"
#include "wh.h"

#define MULTIGET_GROUP \
  64u  // keys that go side by side: more than the processor can fetch at once, few enough to stay in its first cache
_Static_assert(MULTIGET_GROUP <= WH_GROUP_MAX, "a group goes through every layer as one");

struct multiget;  // what one thread needs for it; kept from one call to the next

// queue: for the blocks that have to be read; the shared one, or the thread's own. REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status multiget_create(struct blkio_queue *queue, struct multiget **out);
void multiget_destroy(struct multiget *m);  // NULL is allowed

// A buffer that many values go to, one behind the other in the order in which they are found.
struct multiget_room {
  uint8_t *ptr;
  size_t cap, len;  // bytes there are, bytes used
  size_t wanted;    // of all values found, also of those that did not fit
};

// Begins a call. values may be NULL; both arrays are the caller's until multiget_end, and found is filled with false.
// With a room, which needs `values`, each of these gets its place there: ptr and cap, or NULL and 0 for a value that is
// empty or does not fit.
void multiget_begin(struct multiget *m, size_t nr, const struct remixdb_slice *keys, struct remixdb_buf *values,
                    bool *found, struct multiget_room *room);
// Looks up the next part of the keys (some groups) at the moment, and copies out what is found. frozen may be NULL.
// False when there are no more. Inside an epoch, which may be another one for each part; active, frozen and version are
// the same for all of them.
bool multiget_part(struct multiget *m, const struct wh *active, const struct wh *frozen, const struct version *version,
                   uint64_t moment);
// Ends it. *nr_out: how many keys were found. REMIXDB_OK; the first error met, when a key could not be looked up; else
// REMIXDB_TOOBIG, when a value did not fit.
MUST_CHECK enum remixdb_status multiget_end(struct multiget *m, size_t *nr_out);
#endif
