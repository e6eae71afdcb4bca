// SPDX-License-Identifier: Apache-2.0
//
// A pool of refs, for callers that own no thread: tasks that run now on one thread, then on another.
//
// A ref costs about a microsecond to make, and takes the lock of two epoch domains. A ref from the pool (base/pool.h)
// costs an exchange. The pool keeps POOL_PLACES refs at most; a ref that finds no place ends.
#ifndef STORE_REFPOOL_H
#define STORE_REFPOOL_H

#include "store/ref.h"

// Takes a ref of the store from the pool, or makes one. Never waits for another thread's ref. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status refpool_borrow(struct xdb *x, struct xdb_ref **out);
// Puts a ref that was borrowed into the pool, or ends it. Ends a ref that was not borrowed. Its iterators are gone.
void refpool_return(struct xdb_ref *r);
// Returns how many refs wait in the pool at the moment.
uint32_t refpool_count(const struct xdb *x);
// Ends the refs that wait. No other thread uses the pool.
void refpool_fini(struct xdb *x);
#endif
