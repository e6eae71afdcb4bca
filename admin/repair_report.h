// SPDX-License-Identifier: Apache-2.0
//
// What a repair has found.
#ifndef REPAIR_REPORT_H
#define REPAIR_REPORT_H

#include <stdbool.h>

#include "base/err.h"

struct repair_report {
  uint64_t records;                              // read and kept, all versions
  uint32_t tables, tables_damaged, tables_lost;  // whole; read in part; not at all
  uint64_t blocks_lost;                          // of tables read in part
  uint64_t log_records, log_bytes_lost;
  bool version_lost;  // CURRENT could not be read
  uint32_t losses;    // places where something was lost, or may have been; 0: all that the store was known to hold is
                      // there. A repair that only ended what an earlier call began says 1 for all of them
  uint64_t records_lost;   // in all of them, all versions
  bool more_lost;          // records_lost is the least that it can be
  char told[ERR_MSG_MAX];  // the same in words, "" when there are no losses
};
#endif
