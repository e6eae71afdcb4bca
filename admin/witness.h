// SPDX-License-Identifier: Apache-2.0
//
// The witness: the file that shows that a directory is a store's.
#ifndef ADMIN_WITNESS_H
#define ADMIN_WITNESS_H

#include "base/files.h"

// Finds the file that shows that `dir` is a store's directory, even a damaged one's. Other programs may use the same
// names, so the bytes decide. `list` has the files of `dir`. *name_out, a name in the list or a constant, is the first
// of these that exists:
//   - a log segment, a table or a REMIX with its magic number;
//   - a directory of a repair;
//   - CURRENT with its magic number;
//   - the mark of a store or a checkpoint in the making;
//   - LOCK, empty, and beside it only empty files with a store's names: the rest of a destroyed store, or of a young
//     one after a power cut.
// REMIXDB_NOTFOUND (no message): there is no witness. REMIXDB_IO, REMIXDB_NOMEM: no witness, but a file could not be
// read.
MUST_CHECK enum remixdb_status witness_find(const struct env_dir *dir, const struct files_entry *list, size_t nr,
                                            const char **name_out);
#endif
