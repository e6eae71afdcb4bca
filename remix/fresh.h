// SPDX-License-Identifier: Apache-2.0
//
// The keys of a REMIX's new tables as one stream. The key ranges of the tables do not overlap.
#ifndef REMIX_FRESH_H
#define REMIX_FRESH_H

#include "table/scan.h"

struct remix_fresh {
  struct kref key;  // the current key; valid until the next call
  uint32_t shared;  // bytes that the key shares with the key before it (0 for the first key of the stream)
  uint32_t kind;    // the kind of its record
  uint32_t table;   // the index of the key's table
  bool failed;      // a table could not be read
  uint64_t data_pages_read, ckb_bytes_read;  // for the tables read to the end; after remix_fresh_fini, for all
  // private
  struct sst *const *tables;
  uint32_t nr;
  struct blkio_queue *queue;
  struct sst_keys keys;  // the keys of that table
};

// The tables outlive f. Opens nothing yet.
void remix_fresh_init(struct remix_fresh *f, struct sst *const *tables, uint32_t nr, struct blkio_queue *q);
void remix_fresh_fini(struct remix_fresh *f);
// Reads the next key. Returns REMIXDB_OK, REMIXDB_NOTFOUND at the end, or an error. The error is REMIXDB_CORRUPT also
// if the smallest key of a table is not greater than the largest key of the table before it.
MUST_CHECK enum remixdb_status remix_fresh_next(struct remix_fresh *f);
#endif
