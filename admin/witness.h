// SPDX-License-Identifier: Apache-2.0
//
// What shows that a directory is a store's.
#ifndef ADMIN_WITNESS_H
#define ADMIN_WITNESS_H

#include "base/files.h"

// Finds what shows that `dir`, whose files are in the list, is a store's directory, however damaged. Other programs'
// files may have names like a store's, so bytes decide. *name_out, a name in the list or a constant, is the first of
// these that is there:
//   - a log segment, a table or a REMIX that has its magic;
//   - a repair's directory;
//   - CURRENT with its magic;
//   - the mark of a store or a checkpoint in the making;
//   - LOCK, empty, and beside it only such names with nothing in them: what a destroyed store leaves last, or a power
//   cut of a young one.
// REMIXDB_NOTFOUND (no message): nothing shows it. REMIXDB_IO, REMIXDB_NOMEM: nothing shows it, but something could not
// be read.
MUST_CHECK enum remixdb_status witness_find(const struct env_dir *dir, const struct files_entry *list, size_t nr,
                                            const char **name_out);
#endif
