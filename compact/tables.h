// SPDX-License-Identifier: Apache-2.0
//
// Writing a job's tables: a merge of its new data with the runs that take part.
#ifndef COMPACT_TABLES_H
#define COMPACT_TABLES_H

#include "compact/job.h"

// The job's task. The job references its tables, which are synced. Sets the job's status.
void tables_write(struct task *t, struct worker *w);
// A number for a new file. No file has a name of that number. name_of: sst_name or remix_name.
MUST_CHECK uint64_t tables_new_number(struct compact *c, void (*name_of)(char *buf, uint64_t number));
// Removes a new file that could not be opened, so that no version will name it. Returns `why` with its message. If the
// file cannot be removed, the next opening of the store does.
MUST_CHECK enum remixdb_status tables_remove_new(const struct compact *c, const char *name, enum remixdb_status why);
#endif
