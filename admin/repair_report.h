// SPDX-License-Identifier: Apache-2.0
//
// The result of a repair.
#ifndef REPAIR_REPORT_H
#define REPAIR_REPORT_H

#include <stdbool.h>

#include "base/err.h"

struct repair_report {
  uint64_t records;         // kept, all versions
  uint32_t tables;          // read as a whole
  uint32_t tables_damaged;  // read in part
  uint32_t tables_lost;     // not read at all
  uint64_t blocks_lost;     // blocks of tables that were read in part
  uint64_t log_records, log_bytes_lost;
  bool version_lost;  // CURRENT could not be read
  // Places with a loss, certain or possible. 0: no record of the store is known to be lost. A call that only ends an
  // earlier repair counts all losses of that repair as 1.
  uint32_t losses;
  uint64_t records_lost;   // in all places, all versions
  bool more_lost;          // more than records_lost records may be lost
  char told[ERR_MSG_MAX];  // the losses in words; "": there are none
};
#endif
