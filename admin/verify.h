// SPDX-License-Identifier: Apache-2.0
//
// Reading everything, to find out whether it is whole.
#ifndef VERIFY_H
#define VERIFY_H

#include "store/ref.h"

struct verify_report {
  uint64_t tables, remixes, records, bytes;  // that are whole; the records are those of tables
  uint64_t log_records;                      // that are whole; with read_only those that the opening has replayed
  uint32_t damaged;                          // files found damaged
  uint32_t unread;  // files that memory or descriptors were missing for: nothing is known of them
};

// Reads every file of what the ref reads again from disk, past the cache, and checks: every checksum; of a table, that
// its keys ascend, that its counts, its smallest and largest key and its compressed keys are those of its data; of a
// REMIX, that its order, selectors, tags, discriminating bits and anchors are those of the tables' keys, and that all
// lie in their partition; CURRENT; and the log as far as it is durable. Goes on after damage, names each file that it
// finds damaged to the store's logger (not looked at: a REMIX whose table cannot be opened, the log behind its first
// damage, the log with read_only), and returns the status of the first with a message that names it; without any, that
// of the first that could not be read. Writers go on meanwhile. Not in an epoch. REMIXDB_CORRUPT, REMIXDB_IO,
// REMIXDB_NOMEM; REMIXDB_ABORTED: the ref's progress function gave it up, and *report_out is of what was read until
// then.
MUST_CHECK enum remixdb_status verify_store(struct xdb_ref *r, struct verify_report *report_out);
#endif
