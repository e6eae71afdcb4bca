// SPDX-License-Identifier: Apache-2.0
//
// Verification: reads everything in a store and checks that it is whole.
#ifndef VERIFY_H
#define VERIFY_H

#include "store/ref.h"

struct verify_report {
  uint64_t tables, remixes, records, bytes;  // found whole; `records` counts those of tables
  uint64_t log_records;                      // found whole; with read_only, those that the opening replayed
  uint64_t values;                           // values apart that were read whole
  uint32_t damaged;                          // files found damaged
  uint32_t unread;                           // files not read for lack of memory or descriptors
};

// Reads every file that the ref reads, from disk and past the cache, and checks:
//   - every checksum;
//   - of a table: its keys ascend; its counts, smallest and largest key and compressed keys agree with its data;
//   - of a REMIX: its order, selectors, tags, discriminating bits and anchors agree with the tables' keys, and all keys
//     lie in their partition;
//   - CURRENT;
//   - the log, as far as it is durable.
// Goes on after damage, and tells the store's logger each damaged file. Three things are not checked: a REMIX with a
// table that cannot be opened, the log after its earliest damage, and the log of a read-only store.
//
// Returns the status of the earliest damage that it found, with a message that names the file. If there is no damage,
// returns the status of the earliest file that could not be read. Fails with REMIXDB_CORRUPT, REMIXDB_IO or
// REMIXDB_NOMEM. Fails with REMIXDB_ABORTED if the ref's progress function gives up; *report_out then counts the files
// that were read. Writers go on meanwhile. Not in an epoch.
MUST_CHECK enum remixdb_status verify_store(struct xdb_ref *r, struct verify_report *report_out);
#endif
