// SPDX-License-Identifier: Apache-2.0
//
// The end of a store: removes its files, and nothing else.
#ifndef ADMIN_DESTROY_H
#define ADMIN_DESTROY_H

#include "base/files.h"

// Removes the files of the store in the directory `path`, then the directory if it is empty. Takes the store's lock
// meanwhile. REMIXDB_NOTFOUND: nothing shows that the directory is a store's (witness_find), and nothing was touched.
// Fails with REMIXDB_LOCKED, REMIXDB_IO or REMIXDB_NOMEM.
//
// Crash safety: CURRENT goes first, unless it is the only file that shows that the directory is a store's. So the rest
// after a crash is no store, is never taken for an empty one, and can be destroyed again.
MUST_CHECK enum remixdb_status destroy_store(struct env *env, const char *path);

// Removes the listed files that are the store's by their bytes, except LOCK, which the caller holds. CURRENT goes
// first. `last` is the name of the file that shows that the directory is a store's; it goes when all others are durably
// gone. store_id 0: the files of any store.
MUST_CHECK enum remixdb_status destroy_files(const struct env_dir *dir, const struct files_entry *list, size_t nr,
                                             const char *last, uint64_t store_id);
#endif
