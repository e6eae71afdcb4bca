// SPDX-License-Identifier: Apache-2.0
//
// A round's part of an ingest: it makes the version with the ingest's tables, and puts it in place (store/ingest.h).
#ifndef STORE_INGEST_ROUND_H
#define STORE_INGEST_ROUND_H

#include "store/state.h"

// Tables that a round puts above all that was written before. Once the round has `tried`, it removes files that are not
// in the version in the end; the files of values are the caller's.
struct xdb_ingesting {
  uint32_t tree;
  const uint64_t *numbers;  // the tables' numbers, in ascending order of their keys
  uint32_t nr;
  struct kv_rec mark;        // the record that gives the ingest its sequence number
  struct value_log *values;  // where its values are apart
  bool tried, done;          // done: the store's version has the tables
  bool unknown;              // after a failure: the version on disk may have them, so all files must stay
  struct err_saved error;    // why not, after `tried`
};

// A version with the ingest's tables that waits for its place.
struct ingest_made {
  struct version *version;  // referenced; NULL: it could not be made
  struct sst **tables;      // the ingest's tables in it, each referenced; own memory
  uint32_t nr;
  struct value_mark mark;  // the mark of compact.values before it was made
};
// Makes the version: `next`, which the round has made of `base`, and the tables. g->error: why it could not be made;
// the files of the ingest are gone then.
void ingest_round_make(struct xdb *x, struct worker *w, struct xdb_ingesting *g, const struct version *base,
                       struct version *next, struct ingest_made *out);
// Puts it in the place of the store's version, which is `next` by now, and ends it. Sets g->done or g->error.
// *when_out: as for round_install.
void ingest_round_place(struct xdb *x, struct worker *w, struct xdb_ingesting *g, struct ingest_made *m,
                        uint64_t *when_out);
// Ends it without: the round has failed, and `next` is not the store's version.
void ingest_round_drop(struct ingest_made *m, const struct version *next);
#endif
