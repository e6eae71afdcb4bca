// SPDX-License-Identifier: Apache-2.0
//
// A store's directory: its content, its lock, and a new store in it. Only opening calls these, in one thread.
#ifndef STORE_DIR_H
#define STORE_DIR_H

#include "store/state.h"

// Opens the directory `name` in `at`, makes it where the options allow that, and takes its lock. The store holds the
// directory from then on. If the directory loses its name meanwhile, because a store is being destroyed, the call tries
// again with the directory that then has the name. *exists_out: the directory holds a store (CURRENT).
// REMIXDB_NOTFOUND: it holds none, and the options allow no new one. Fails with REMIXDB_EXISTS, REMIXDB_LOCKED or
// REMIXDB_VERSION. REMIXDB_CORRUPT: it holds files of a store without CURRENT, or the rest of an interrupted repair or
// checkpoint. A failure changes nothing, but the directory itself may be new.
MUST_CHECK enum remixdb_status dir_open(struct xdb *x, const struct env_dir *at, const char *name, bool *exists_out);
// Marks the directory as a store in the making, gives the store its id, and makes the version of an empty store. The
// caller owns *out.
MUST_CHECK enum remixdb_status dir_make_store(struct xdb *x, struct version **out);
// Removes the marks, durably. As long as a mark is there and CURRENT is not, the next opening may throw files away.
MUST_CHECK enum remixdb_status dir_finish_making(struct xdb *x);
#endif
