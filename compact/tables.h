// SPDX-License-Identifier: Apache-2.0
//
// Writes the tables of a job. They are a merge of the job's new data with the runs that the job replaces.
#ifndef COMPACT_TABLES_H
#define COMPACT_TABLES_H

#include "compact/job.h"

// Writes and syncs the job's tables. The job then holds a reference to each table. Sets the job's status.
void tables_write(struct job *j, struct worker *w);
// Removes a new file that could not be opened; no version names it. Returns `why` and keeps the message of `why`. If
// the file cannot be removed now, the next opening of the store removes it.
MUST_CHECK enum remixdb_status tables_remove_new(const struct compact *c, const char *name, enum remixdb_status why);
// Adds a record to a table, and the file of its value if that is apart. If `moves` (NULL: nothing was collected) has
// that file, the table gets the reference to the value's new place. Fails with REMIXDB_CORRUPT: the record has no
// reference.
MUST_CHECK enum remixdb_status tables_add(const struct compact *c, const struct value_moves *moves, struct sst_build *b,
                                          const struct kv_rec *rec);
// Returns the shortest key that is greater than all keys of one table and not greater than any key of the next table.
struct kref tables_separator(const struct sst *before, const struct sst *after);
#endif
