// SPDX-License-Identifier: Apache-2.0
//
// The keys of the new tables of a REMIX as one stream. The tables do not overlap.
#ifndef REMIX_FRESH_H
#define REMIX_FRESH_H

#include "table/scan.h"

struct remix_fresh {
  struct kref key;  // current; holds until the next call
  uint32_t shared;  // bytes it shares with the key before it (0 for the first)
  bool tomb;
  uint32_t table;                            // the table that it is of
  uint64_t data_pages_read, ckb_bytes_read;  // of the tables that are done; after remix_fresh_fini, of all
  // private
  struct sst *const *tables;
  uint32_t nr;
  struct blkio_queue *queue;
  struct sst_keys keys;  // of that table
};

// The tables outlive f. Opens nothing yet.
void remix_fresh_init(struct remix_fresh *f, struct sst *const *tables, uint32_t nr, struct blkio_queue *q);
void remix_fresh_fini(struct remix_fresh *f);
// REMIXDB_OK, REMIXDB_NOTFOUND at the end, or an error: REMIXDB_CORRUPT also if a table begins before the end of the
// table in front of it.
MUST_CHECK enum remixdb_status remix_fresh_next(struct remix_fresh *f);
#endif
