// SPDX-License-Identifier: Apache-2.0
//
// Value merges: scan merges that write values apart again, in the order of their keys. Values lie in the order in which
// rounds wrote them, so a scan reads one place of the disk for each value. Scans sum up what they read so (value debt,
// remix/value_debt.h). When a span's debt is as much as its values and all tables of the partition, a value merge pays
// it back: it merges all runs of the partition, and values of the span that are not longer than a chunk go apart once
// more. So value merges write no more than scans have read in vain. Longer values are read fast wherever they lie.
//
// The job reads ahead: it holds records back until a few values can be asked for at once. All records go through here,
// so they keep their order.
//
// Invariants
//   O1  A value merge changes where values lie, and nothing else of a record. A value that cannot be read stays where
//       it is, and so does the damage.
//   O2  It writes COMPACT_VALUES_MOST bytes of values at most, about, or one span. A value merge may be given up, and
//       its writes were then in vain.
//   O3  It does not begin if value files would have more garbage then than 5/16 of the bytes of their live values, and
//       the values of a memtable; or than half of the live ones. (16 MiB are never too much.) So writers still have
//       room before they wait (store/value_pace.h). A merge that has no room tells that (compact.values_wait), and the
//       collection makes room (store/collect.h).
#ifndef COMPACT_VALUE_MERGE_H
#define COMPACT_VALUE_MERGE_H

#include "compact/job.h"

#define COMPACT_VALUES_MOST ((uint64_t)64 << 20)    // bytes
#define COMPACT_VALUE_DEBT_MIN ((uint64_t)2 << 20)  // bytes; less is not worth a merge
#define VALUE_MERGE_MEMORY ((uint64_t)384 << 10)    // bytes that a job takes for it

#define VALUE_ROOM_UNKNOWN UINT64_MAX
// The spans of an older view of the store's version whose debt pays for a merge, one bit each, within O2 and O3. Their
// debt begins again. *room: bytes that the round may still write for O3, less what is chosen after the call; first
// VALUE_ROOM_UNKNOWN.
uint64_t value_merge_spans(struct compact *c, const struct version *store, const struct remix *x, uint64_t *room);

struct value_merge;
// add: gets each record, in the order of the calls of value_merge_add; `arg` is its first argument. The records have
// their values in place of references where these are to go apart again. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status value_merge_create(struct job *j,
                                                  enum remixdb_status (*add)(void *arg, const struct kv_rec *rec),
                                                  void *arg, struct value_merge **out);
// again: the record's value, if it lies apart, is to go apart again. Fails as `add` does, or with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status value_merge_add(struct value_merge *m, const struct kv_rec *rec, bool again);
// Gives `add` all records that are held back. Fails as value_merge_add does.
MUST_CHECK enum remixdb_status value_merge_end(struct value_merge *m);
void value_merge_destroy(struct value_merge *m);  // NULL is allowed
#endif
