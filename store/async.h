// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous gets: many gets under way in one thread. remixdb.h documents the calls.
//
// A get is a small state machine. Beginning it looks in the memtables and takes the candidates of its key one after the
// other (view/candidate.h), as long as their blocks are cached. At a block that is not cached, it joins that block's
// fetch (table/fetch.h) and waits. The poll that takes the fetch compares the key, and the get has its result or goes
// on to the next candidate. A value that lies apart from its record is read step by step (value/read.h): the get waits
// for a fetch of the bytes that come next. A get is free, waits for one fetch, or is ready.
//
// Invariants
//   A1  All that a get reads is of the super and the moment of its beginning. The memtables are searched there and
//       then. So a waiting get needs the version only, and counts that one. It counts the super if it waits for a value
//       to which a memtable refers: the super holds that value's file.
//   A2  Between two calls gets are in no epoch, and hold no lock, no frame of the cache, and no descriptor (L2). They
//       hold versions. A version is counted once for all gets that wait in it, and given up with the last of them. A
//       new get counts the version of its own moment, so gets that follow each other keep no old one.
//   A3  A get that begins has exactly one result, unless all are destroyed.
//   A4  The caller's value buffer is written until its result is ready, at any time: reads of long values go straight
//       there. The destruction waits for them (L4).
//   A5  No thread waits for this one's next call: fetches mark nothing in the cache (L1).
#ifndef STORE_ASYNC_H
#define STORE_ASYNC_H

#include "store/ref.h"

struct xdb_gets;

// depth: 1 to REMIXDB_GETS_MAX. REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status xdb_gets_create(struct xdb_ref *r, uint32_t depth, struct xdb_gets **out);
void xdb_gets_destroy(struct xdb_gets *g);  // NULL is allowed
struct xdb_ref *xdb_gets_ref(const struct xdb_gets *g);
// The contracts of remixdb_get_begin, _poll and _fd. val NULL: the length only. REMIXDB_ABORTED: no room.
MUST_CHECK enum remixdb_status xdb_get_begin(struct xdb_gets *g, struct kref key, void *val, uint32_t cap, void *priv);
// *nr_out in any case. REMIXDB_NOTFOUND: no get is under way.
MUST_CHECK enum remixdb_status xdb_get_poll(struct xdb_gets *g, struct remixdb_got *out, size_t max, size_t min,
                                            size_t *nr_out);
MUST_CHECK enum remixdb_status xdb_gets_fd(struct xdb_gets *g, int *fd_out);
#endif
