// SPDX-License-Identifier: Apache-2.0
//
// The sequence numbers that the damaged tables have for keys. They tell whether a record of the log is older than a
// table's record of its key. Tables of formats 1 and 2 have no numbers; those of a table that cannot be opened are not
// known.
#ifndef REPAIR_NUMBERS_H
#define REPAIR_NUMBERS_H

#include "admin/repair_state.h"

struct repair_numbers;
// Opens the tables that have a number above `above`. The caller ends with repair_numbers_close, also after a failure.
// Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status repair_numbers_open(struct repair *p, const uint64_t *tables, size_t nr, uint64_t above,
                                                   struct repair_numbers **out);
void repair_numbers_close(struct repair_numbers *n);  // NULL is allowed
// The numbers of some table are not known.
bool repair_numbers_partial(const struct repair_numbers *n);
// Finds the largest number that an opened table has for the record's key. *seq_out is 0 if none has the key. Fails with
// REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status repair_numbers_find(struct repair_numbers *n, const struct kv_rec *rec,
                                                   uint64_t *seq_out);
// Tells whether an opened table with a key in the range has a larger number than the deletion of the range.
bool repair_numbers_newer(const struct repair_numbers *n, const struct kv_rec *range);
#endif
