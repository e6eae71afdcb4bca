// SPDX-License-Identifier: Apache-2.0
//
// A store's directory: what is in it, its lock, and a new store in it. For opening alone, by one thread.
#ifndef STORE_DIR_H
#define STORE_DIR_H

#include "store/state.h"

// Opens the directory `name` in `at`, which the store holds from then on, finds out whether it holds a store, makes the
// directory when the options allow it, and takes the lock. A directory that loses its name meanwhile, as that of a
// destroyed store does, is given up for the one that has the name then. *exists_out: there is a store (CURRENT).
// REMIXDB_NOTFOUND: there is none and none may be made. REMIXDB_EXISTS, REMIXDB_LOCKED, REMIXDB_VERSION.
// REMIXDB_CORRUPT: the directory holds files of a store without CURRENT, or what an interrupted repair or checkpoint
// left. A failure changes nothing but that the directory itself may be there.
MUST_CHECK enum remixdb_status dir_open(struct xdb *x, const struct env_dir *at, const char *name, bool *exists_out);
// Marks the directory as a store in the making, gives the store its id, and makes the version of an empty store, which
// the caller owns.
MUST_CHECK enum remixdb_status dir_make_store(struct xdb *x, struct version **out);
// Removes the marks of making, durably. While they are there, the next opening may throw away files that lie beside a
// missing CURRENT.
MUST_CHECK enum remixdb_status dir_finish_making(struct xdb *x);
#endif
