// SPDX-License-Identifier: Apache-2.0
//
// A partition of the next version whose views are made from those of a partition before, or are the same.
#ifndef COMPACT_PART_NEW_H
#define COMPACT_PART_NEW_H

#include "view/part.h"

// Makes the partition like p, with these views. s: the status of making them; another than REMIXDB_OK is returned. A
// view that is not made is NULL. Takes over one reference to each view. On failure the new views go, with their files;
// p's own stay.
// filed: the new views have files. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status part_new(const struct part *p, enum remixdb_status s, struct remix *remix,
                                        struct remix *young, bool filed, struct part **out);
// Drops a reference to the partition, and makes its views obsolete, except those of p.
void part_new_drop(struct part *made, const struct part *p, bool filed);
#endif
