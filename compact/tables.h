// SPDX-License-Identifier: Apache-2.0
//
// Writing a job's tables: a merge of its new data with the runs that take part.
#ifndef COMPACT_TABLES_H
#define COMPACT_TABLES_H

#include "compact/job.h"

// A task, the job's. Its tables are synced, and referenced by the job. Sets the job's status.
void tables_write(struct task *t, struct worker *w);
// The number of a new file, which no file bears yet; name_of: sst_name or remix_name.
MUST_CHECK uint64_t tables_new_number(struct compact *c, void (*name_of)(char *buf, uint64_t number));
// Removes a file that was written and that nothing will name. Returns `why`, with its message.
MUST_CHECK enum remixdb_status tables_remove_new(const struct compact *c, const char *name, enum remixdb_status why);
#endif
