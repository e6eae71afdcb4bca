// SPDX-License-Identifier: Apache-2.0
//
// What a repair is in memory, shared by its files alone: admin/repair.c (the steps), admin/repair_table.c and
// admin/repair_log.c (reading what is left).
#ifndef REPAIR_STATE_H
#define REPAIR_STATE_H

#include "admin/repair_report.h"
#include "log/wal.h"
#include "table/format.h"
#include "xdb.h"

struct repair {
  struct env *env;
  struct env_dir dir;  // the store's, held
  struct sst_ctx ctx;  // of the damaged tables
  struct blkio io;
  struct fdpool *fds;
  struct epoch epoch;
  struct epoch_slot slot;
  struct xdb *x;  // the new store
  struct xdb_ref *r;
  bool put_failed;  // what failed was a write to it
  struct repair_report report;
  uint64_t new_id;     // the new store's
  char lost_name[32];  // of the directory of what was put aside; "" until it has its name
  char *text;          // the report's
  size_t text_len, text_cap;
};

// A line of the report. One that memory is missing for is left out: the figures still count it.
void repair_note(struct repair *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// A loss: so many records, or more. The line says what is known of it.
void repair_lose(struct repair *p, uint64_t records, bool more, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
// Writes a record to the new store. What xdb_put returns.
MUST_CHECK enum remixdb_status repair_keep(struct repair *p, const struct kv_rec *rec);

// Keeps what can be read of a table. REMIXDB_OK also when nothing can; REMIXDB_NOMEM, REMIXDB_VERSION (nothing is
// damaged there), or what writing failed with.
MUST_CHECK enum remixdb_status repair_table(struct repair *p, uint64_t number);
// Keeps what can be read of the log. v: what CURRENT says, or of its fields the store's id alone when the report says
// that it is lost. The same statuses.
MUST_CHECK enum remixdb_status repair_log(struct repair *p, const struct version_names *v);
#endif
