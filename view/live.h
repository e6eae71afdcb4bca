// SPDX-License-Identifier: Apache-2.0
//
// How much of each value file the records of a version still refer to, about. The tables state for each value file the
// bytes to which their records refer, and a REMIX tells how many records of a table are hidden. Hidden records count as
// records of the average: if a table has short values and long ones, and only the long ones were overwritten, the file
// seems to have more live bytes than it has, until the runs are merged. A record of the older view that only the young
// view hides counts as live.
#ifndef VIEW_LIVE_H
#define VIEW_LIVE_H

#include "view/version.h"

// Sets live_out[i] to the live bytes of v->values.files[i], as values are read. Passes over the indexes that no call
// has passed over before. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status live_values(const struct version *v, uint64_t *live_out);
// The least that live_values may set: as if the hidden records of a view were those with the most bytes apart. It knows
// how many these are, so it reads nothing.
void live_least(const struct version *v, uint64_t *live_out);
// The bytes of all values of a file to which records of tables refer, live or hidden. UINT64_MAX: a partition is away,
// so nobody knows.
uint64_t live_referred(const struct version *v, const struct value_file *f);
// The most bytes by which all of live_out together may be too large because of young views: as if each of their records
// hid a record of the older view with as many bytes apart, as far as that view has so many.
uint64_t live_young(const struct version *v);
#endif
