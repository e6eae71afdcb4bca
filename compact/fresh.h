// SPDX-License-Identifier: Apache-2.0
//
// The new data of a round: the frozen memtable's records, measured by partition and read job by job.
#ifndef COMPACT_FRESH_H
#define COMPACT_FRESH_H

#include "compact/job.h"

// Fills in the tree's `fresh`: how much new data each of its partitions gets. The workers share the work. Fails with
// REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status fresh_measure(struct round *r, const struct round_tree *tree);

// The new data of a job.
struct range {
  struct wh_cursor cursor;
  struct kref end;  // the range ends before this key; ptr NULL: at the memtable's end
  bool with_end;    // the key `end` belongs to the range
  bool empty;       // the job has no new data; cursor is not set
};

// Puts the range at the job's first new record. w is the calling thread's. The memtable must outlive the range.
void range_begin(struct range *r, const struct job *j, struct worker *w);
bool range_valid(const struct range *r);  // false: there is no further record
// Sets *rec to the current record, with its seq; it stays in the memtable's memory. The range must be valid.
void range_record(const struct range *r, struct kv_rec *rec);
static inline void range_next(struct range *r) { wh_next(&r->cursor); }  // the range must be valid
#endif
