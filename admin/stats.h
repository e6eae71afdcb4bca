// SPDX-License-Identifier: Apache-2.0
//
// The figures of a store (docs/FIGURES.md).
#ifndef XDB_STATS_H
#define XDB_STATS_H

#include "store/state.h"

// The table of figures (admin/figures.inc).
enum figure_type { FIGURE_COUNTER, FIGURE_GAUGE, FIGURE_FLAG, FIGURE_STRING };
struct figure_def {
  const char *name;  // "object.member", or a member of the outermost object
  const char *unit;  // "" for a flag or a string
  enum figure_type type;
  const char *help;
};
extern const struct figure_def figure_defs[];
extern const uint32_t figure_nr;

// Writes the figures as a JSON object, which the caller frees with mem_free. Takes xdb.lock. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status xdb_stats(struct xdb *x, char **json_out);
// One figure by its name. Takes xdb.lock. Fails with REMIXDB_NOTFOUND, or with REMIXDB_INVALID for a string.
MUST_CHECK enum remixdb_status xdb_figure(struct xdb *x, const char *name, uint64_t *value_out);
#endif
