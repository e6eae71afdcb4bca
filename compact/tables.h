// SPDX-License-Identifier: Apache-2.0
//
// Writes the tables of a job. They are a merge of the job's new data with the runs that the job replaces.
#ifndef COMPACT_TABLES_H
#define COMPACT_TABLES_H

#include "compact/job.h"

// The task of a job: writes and syncs the tables. The job then holds a reference to each table. Sets the job's status.
void tables_write(struct task *t, struct worker *w);
// Returns a number for a new table or REMIX file. No file has the name that name_of makes of this number. If the system
// cannot tell whether a name exists, the number counts as free. name_of: sst_name or remix_name.
MUST_CHECK uint64_t tables_new_number(struct compact *c, void (*name_of)(char *buf, uint64_t number));
// Removes a new file that could not be opened; no version names it. Returns `why` and keeps the message of `why`. If
// the file cannot be removed now, the next opening of the store removes it.
MUST_CHECK enum remixdb_status tables_remove_new(const struct compact *c, const char *name, enum remixdb_status why);
#endif
