// SPDX-License-Identifier: Apache-2.0
//
// The end of a store: removes its files, and nothing else.
#ifndef ADMIN_DESTROY_H
#define ADMIN_DESTROY_H

#include "base/files.h"

// Removes the files of the store in the directory `path`, then the directory if it is empty. Takes the store's lock
// meanwhile. Fails with REMIXDB_NOTFOUND, and touches nothing, if nothing proves that the directory is a store's
// (witness_find). Fails also with REMIXDB_LOCKED, REMIXDB_IO or REMIXDB_NOMEM.
//
// Crash safety: the call removes CURRENT first, unless CURRENT is the only file that proves that the directory is a
// store's. So the directory after a crash is no store, is never taken for an empty store, and can be destroyed again.
MUST_CHECK enum remixdb_status destroy_store(struct env *env, const char *path);

// Tells whether destroy_store would fail with REMIXDB_NOTFOUND. Where that cannot be found out: false.
bool destroy_finds_none(struct env *env, const char *path);

// Removes the listed files whose contents show that they are the store's, except LOCK, which the caller holds. Removes
// CURRENT first. `last` is the name of the file that proves that the directory is a store's; the call removes it when
// the removal of all others is durable. ids NULL: removes the files of any store.
MUST_CHECK enum remixdb_status destroy_files(const struct env_dir *dir, const struct files_entry *list, size_t nr,
                                             const char *last, const struct files_ids *ids);
#endif
