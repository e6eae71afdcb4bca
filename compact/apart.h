// SPDX-License-Identifier: Apache-2.0
//
// Values that a round writes apart from its tables: which ones, and how.
//
// A record that goes into a table of a round gets a reference in place of its value if the value is long. So later
// merges move the reference. Each job writes through a batch of its own; all batches write to the files of
// compact.values. A record that is handed back or dropped has no value written. A long value in an older table, which
// has it in its block, goes apart when the table is merged.
//
// The files are in use until the job ends. From then on until the version is installed they stay, because only a round
// takes files out of compact.values. After a failure the log goes back to the mark of the round's beginning.
#ifndef COMPACT_APART_H
#define COMPACT_APART_H

#include "compact/job.h"

// A value of so many bytes is written apart. The length of a reference is below it.
static inline uint32_t apart_from(const struct compact *c) {
  return likely(c->apart_from) ? c->apart_from : UINT32_MAX;
}
// Bytes of the record in a block less than record_bytes, if its value goes apart. `from`: apart_from.
static inline uint64_t apart_bytes(const struct kv_rec *rec, uint32_t from) {
  return likely(rec->vlen < from) ? 0 : rec->vlen - VALUE_REF;
}

// Writes the value of a record, and puts the reference to it into `ref` (VALUE_REF bytes). *out: the record with that
// reference as its value. Fails as value_batch_put does.
MUST_CHECK enum remixdb_status apart_put(struct job *j, const struct kv_rec *rec, uint8_t *ref, struct kv_rec *out);
// Writes what the job's batch has gathered. Fails as value_batch_end does.
MUST_CHECK enum remixdb_status apart_end(struct job *j);
#endif
