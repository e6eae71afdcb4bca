// SPDX-License-Identifier: Apache-2.0
//
// A store's directory: its content, its lock, and a new store in it. Only the thread that opens the store calls these
// functions.
#ifndef STORE_DIR_H
#define STORE_DIR_H

#include "store/state.h"

// Opens the directory `name` in `at`, and takes its lock. If the directory is absent and the options allow that, the
// call makes it. The store holds the directory from then on. If the directory loses its name meanwhile, because a store
// is being destroyed, the call tries again with the directory that then has the name. *exists_out: the directory holds
// a store (CURRENT). Fails with REMIXDB_NOTFOUND if the directory holds no store and the options allow no new store.
// Fails with REMIXDB_CORRUPT if the directory holds files of a store without CURRENT, or an unfinished repair or
// checkpoint. Fails also with REMIXDB_EXISTS, REMIXDB_LOCKED or REMIXDB_VERSION. A failed call changes nothing, except
// that it may have made the directory.
MUST_CHECK enum remixdb_status dir_open(struct xdb *x, const struct env_dir *at, const char *name, bool *exists_out);
// Marks the directory as an unfinished store, gives the store its id, and makes the version of an empty store. The
// caller owns *out.
MUST_CHECK enum remixdb_status dir_make_store(struct xdb *x, struct version **out);
// Returns a new id for a store, which is never 0. salt: any address.
uint64_t dir_new_id(const void *salt);
// Removes the marks, durably. While a mark exists and CURRENT does not, the next opening may remove files.
MUST_CHECK enum remixdb_status dir_finish_making(struct xdb *x);
#endif
