// SPDX-License-Identifier: Apache-2.0
//
// Readahead into a hold's own memory: for a reader that goes on from block to block and must not fill the cache with them.
#ifndef TABLE_READAHEAD_H
#define TABLE_READAHEAD_H

#include "table/state.h"

// Reads the blocks that begin in the nr_pages pages from `block` on, which exist, into memory of h's own, where sst_read finds them: for who goes on from block to
// block and is not to fill the cache with them. Drops what h holds. When that fails there are none, and errors are left to the later sst_read.
void sst_read_ahead(struct sst *t, uint32_t block, uint32_t nr_pages, struct sst_hold *h);
// Drops what h holds and gives it the data of a block that is in its memory (sst_holds_ahead), verified. For sst_read, which says what it is.
MUST_CHECK enum remixdb_status sst_take_ahead(struct sst *t, uint32_t block, struct sst_hold *h);
void sst_ahead_free(struct sst_ahead *a);  // for sst_hold_fini; NULL is allowed
#endif
