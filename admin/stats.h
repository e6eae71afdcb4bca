// SPDX-License-Identifier: Apache-2.0
//
// The figures of a store (docs/FIGURES.md).
#ifndef XDB_STATS_H
#define XDB_STATS_H

#include "store/state.h"

// Writes the figures as a JSON object, which the caller frees with mem_free. Takes xdb.lock. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status xdb_stats(struct xdb *x, char **json_out);
#endif
