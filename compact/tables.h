// SPDX-License-Identifier: Apache-2.0
//
// Writing a job's tables: a merge of its new data with the runs that take part.
#ifndef COMPACT_TABLES_H
#define COMPACT_TABLES_H

#include "compact/job.h"

// A task, the job's. Its tables are synced, and referenced by the job. Sets the job's status.
void tables_write(struct task *t, struct worker *w);
// Removes a file that was written and that nothing will name. Returns `why`, with its message.
MUST_CHECK enum remixdb_status tables_remove_new(const struct compact *c, const char *name, enum remixdb_status why);
#endif
