// SPDX-License-Identifier: Apache-2.0
//
// Makes the next version of a store from the jobs of a round.
#ifndef COMPACT_NEXT_H
#define COMPACT_NEXT_H

#include "compact/job.h"

// Makes the next version of both trees. A tree that took no part stays. All jobs and outputs have succeeded. Fails with
// REMIXDB_CORRUPT if new tables are not in order, or not within their partition; or with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status next_version(struct round *r, struct version *base, struct version **out);
#endif
