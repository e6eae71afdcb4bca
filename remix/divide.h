// SPDX-License-Identifier: Apache-2.0
//
// Keys that divide a view into parts.
#ifndef REMIX_DIVIDE_H
#define REMIX_DIVIDE_H

#include "remix/remix.h"

#define REMIX_DIVIDE_MAX 32u  // parts

// Ascending keys, none of them empty, in own memory (mem_free of `keys`).
struct remix_keys {
  uint32_t nr;
  struct kref *keys;
};
// Finds the keys that divide the view into `parts` parts, at most REMIX_DIVIDE_MAX, so that the blocks of all tables
// before each key are about as many pages as in each other part. The keys are anchors. Where the view has few segments,
// there are fewer keys. Reads no block; reads the file if x is paged. Fails with REMIXDB_NOMEM, or as remix_open does.
MUST_CHECK enum remixdb_status remix_divide(struct remix *x, uint32_t parts, struct remix_keys *out);
// Tells how many pages of each of the view's tables lie before the key, about: one number for each run. x is not paged.
void remix_pages_before(const struct remix *x, struct kref key, uint32_t *out);
#endif
