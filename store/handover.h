// SPDX-License-Identifier: Apache-2.0
//
// Handing the active memtable over: a new memtable and a new segment of the log take its place, with the records that
// an ingest does not replace (store/ingest.h has the invariants). The older memtable and its segment go then, though no
// round has brought them into tables. If the ingest replaces no record of the memtable, both stay.
//
// The steps, in this order:
//   1. handover_begin   while writers go on: makes the new memtable, and looks up which keys the ingest has
//   2. handover_stays   under the log's hold: whether the memtable stays. If it does, handover_mark comes next, then 5
//   3. handover_take    under the hold: the new memtable gets the records
//   4. handover_switch  under the hold: the new segment begins, and gets the records
//   5. the caller makes a version durable that names the segment, and a super with it the store's
// A failure of step 4 may leave the segment behind; the older memtable is a frozen one then, and the new memtable has
// some of its records once more.
#ifndef STORE_HANDOVER_H
#define STORE_HANDOVER_H

#include "store/state.h"

struct handover {
  // In.
  struct xdb *x;
  struct worker *w;
  const struct super *from;   // the store's super, which stays until step 4; referenced by the caller
  const struct super *above;  // its version has the ingest's tables. It is not shared
  uint32_t tree;              // the ingest's
  struct kref low, high;      // no key of the ingest is smaller, or larger
  uint64_t unnumbered;        // the sequence number of the ingest's records so far, which no other record has
  struct kv_rec mark;         // the last record of the older segment; it changes nothing
  // Out.
  struct memtable *to;  // the new memtable, which above->active is
  bool replaces;        // some record of the older memtable is one that the ingest replaces, as far as is known
  bool switched;        // the new segment is the log's active one
  bool marked;          // the memtable stays, and the mark is in its segment
  uint64_t seq;         // the mark's
  uint64_t last;        // the last number that the log gave
  uint64_t records;     // records that were handed over
  // The keys of the older memtable that were looked up in step 1, in order.
  struct handover_keys {
    struct handover_key {
      const struct wh_entry *entry;
      bool replaced;  // the ingest has the key
    } * keys;
    size_t nr, cap, at;
  } known;
  struct sst_hold hold;
  struct epoch_slot stay;  // in xdb.cursors
};
// Each may fail with REMIXDB_NOMEM, and as a read or an append does. The caller ends with handover_end.
MUST_CHECK enum remixdb_status handover_begin(struct handover *h);
MUST_CHECK enum remixdb_status handover_stays(struct handover *h, bool *out);
// Gives the ingest its number: appends the mark. No gap of the memtable is used from now on (wh/gap.h).
MUST_CHECK enum remixdb_status handover_mark(struct handover *h);
MUST_CHECK enum remixdb_status handover_take(struct handover *h);
MUST_CHECK enum remixdb_status handover_switch(struct handover *h);
void handover_end(struct handover *h);
#endif
