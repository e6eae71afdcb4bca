// SPDX-License-Identifier: Apache-2.0
//
// The witness: the file that proves that a directory belongs to a store.
#ifndef ADMIN_WITNESS_H
#define ADMIN_WITNESS_H

#include "base/files.h"

// Finds the file that proves that `dir` is the directory of a store, which may be damaged. Other programs may use the
// same names, so the contents of the files decide. `list` has the files of `dir` with a store's names. *name_out is a
// name in the list or a constant. It is the first of these, in this order, that exists:
//   - a log segment, a table or a REMIX with its magic number;
//   - a directory of a repair;
//   - CURRENT with its magic number;
//   - the empty mark of an unfinished store or checkpoint (CREATING, CHECKPOINTING);
//   - an empty LOCK, if all other files have a store's names and are empty or begin with 8 zeros. Such a directory is
//     the rest of a destroyed store, or of a new store after a power cut.
// Fails with REMIXDB_NOTFOUND (no message) if there is no witness. Fails with REMIXDB_IO or REMIXDB_NOMEM if there is
// no witness among the files that could be read, and a file could not be read.
MUST_CHECK enum remixdb_status witness_find(const struct env_dir *dir, const struct files_entry *list, size_t nr,
                                            const char **name_out);
#endif
