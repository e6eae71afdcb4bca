// SPDX-License-Identifier: Apache-2.0
//
// Opening a store, making one, and closing it.
#ifndef XDB_OPEN_H
#define XDB_OPEN_H

#include "store/state.h"

// The contract is remixdb_open_opts's. env is the caller's and outlives the store.
MUST_CHECK enum remixdb_status xdb_open(const char *dir, const struct remixdb_opts *o, struct env *env, struct xdb **out);
MUST_CHECK enum remixdb_status xdb_close(struct xdb *x);  // frees x in any case
#endif
