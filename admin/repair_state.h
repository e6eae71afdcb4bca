// SPDX-License-Identifier: Apache-2.0
//
// A repair in memory, and its parts. admin/repair.c takes them one after the other.
#ifndef REPAIR_STATE_H
#define REPAIR_STATE_H

#include "admin/repair_report.h"
#include "base/files.h"
#include "log/wal.h"
#include "table/format.h"
#include "xdb.h"

// Records that a range deletion has erased (remix/remix.h, R6): a bit for each record of each table of a view, in
// order.
struct repair_erased {
  uint32_t nr;  // tables
  uint8_t *bits[REMIX_RUNS_MAX];
};

struct repair {
  struct env *env;
  struct env_dir dir;            // the store's
  struct sst_ctx ctx;            // for the damaged tables
  struct value_ctx value_ctx;    // for the old value files
  struct value_set values;       // those that are open
  struct value_index **indexes;  // nr_indexes of collected ones
  uint32_t nr_indexes;
  bool searched;                        // they have been looked for
  bool of_table;                        // the records that are kept now are a table's
  const struct version_names *current;  // the names in CURRENT; NULL: it is lost
  struct blkio io;
  struct fdpool *fds;
  struct epoch epoch;
  struct epoch_slot slot;
  struct xdb *x;  // the new store
  struct xdb_ref *r;
  bool put_failed;  // the last write to the new store failed
  struct repair_report report;
  uint64_t new_id;     // the new store's
  struct wal_ids ids;  // the damaged store's by its log; used when CURRENT is lost
  char lost_name[32];  // "lost.N", where the old files go; "" until it has its name
  char *text;          // the report's; NULL: none so far
  size_t text_len, text_cap;
};

// ---- keeping records, and the report (admin/repair_keep.c)

// Adds a line to the report. Without memory the line is left out; the figures still count.
void repair_note(struct repair *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// Counts a loss of `records` records (more: or more), and adds a line that describes it.
void repair_lose(struct repair *p, uint64_t records, bool more, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
// Writes a record to the new store; kind KV_SPACES: into the tree of the named spaces. Leaves a record of a dropped
// space out. A record whose value is apart and cannot be read is a loss, and no failure. The deletion of a range
// deletes there what was kept before. Returns the status of the write.
MUST_CHECK enum remixdb_status repair_keep(struct repair *p, const struct kv_rec *rec);

// ---- values apart (admin/repair_value.c)

// Reads the value of a record that is apart. The caller frees *val_out with mem_free. Fails with REMIXDB_CORRUPT or
// REMIXDB_IO if it cannot be read, or with REMIXDB_NOMEM. *hidden_out: it fails because a newer record hides this one.
MUST_CHECK enum remixdb_status repair_value(struct repair *p, const struct kv_rec *rec, uint8_t **val_out,
                                            uint32_t *vlen_out, bool *hidden_out);
void repair_values_fini(struct repair *p);

// ---- packs (admin/repair_pack.c)

// Adds the packs that CURRENT names to p->ctx.packs, with the parts that it names. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status repair_packs_named(struct repair *p, const struct version_names *v);
// Without CURRENT: adds all packs of the list, with the parts that their directories name. If a directory cannot be
// read, the tables are found by their footers. Places that were given back to the disk are left out. *tables_out: how
// many tables there are. Fails with REMIXDB_NOMEM, or REMIXDB_VERSION if a newer library wrote one.
MUST_CHECK enum remixdb_status repair_packs_search(struct repair *p, const struct files_entry *list, size_t nr,
                                                   uint64_t *tables_out);
// Adds these tables to v->tables, which has room for them.
void repair_packs_tables(struct repair *p, struct version_names *v);
// If a pack's table is newer than *newest_io, that becomes its number, and *id_out the id that the pack states.
void repair_packs_id(struct repair *p, uint64_t *newest_io, uint64_t *id_out);
// Tells whether the place of a part was given back to the disk.
bool repair_part_is_gone(const struct pack_part *part);

// ---- tables (admin/repair_ingest.c, admin/repair_order.c, admin/repair_table.c)

// Without CURRENT: takes tables of ingests that were not committed out of v->tables, which ascend, and reports them.
// p->ctx has the store's id, if it is known. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status repair_ingests(struct repair *p, const struct files_entry *list, size_t nr,
                                              struct version_names *v);
// Without CURRENT: puts tables, which come in the order of their numbers, into the order of their age. p->ctx has the
// store's id, if it is known. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status repair_order(struct repair *p, uint64_t *tables, size_t nr);
// Keeps every readable record of a table. Succeeds even if no record is readable. print: the fingerprint that CURRENT
// has for the table; NULL: none. Leaves a table with another fingerprint out, because it is of another history. Fails
// with REMIXDB_VERSION if a newer library wrote the table, which then is not damaged. Fails also with REMIXDB_NOMEM, or
// with the status of a failed write.
// spaces: CURRENT has the table in the tree of the named spaces; used if the table's footer is lost.
// erased: bits of the table's records that stay deleted, or NULL.
MUST_CHECK enum remixdb_status repair_table(struct repair *p, uint64_t number, const uint64_t *print, bool spaces,
                                            const uint8_t *erased);
// Finds out what is erased in a view of these tables. If the index or one of its tables does not open, nothing counts
// as erased. That is a loss, except where the head of the index tells that nothing was erased. The caller ends with
// repair_erased_fini. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status repair_erased_find(struct repair *p, const struct version_names *v,
                                                  const struct version_view *view, struct repair_erased *out);
void repair_erased_fini(struct repair_erased *e);

// ---- the log (admin/repair_log.c)

// Keeps every readable record of the log. v: the contents of CURRENT; only its store_id counts if the report says that
// CURRENT is lost. Fails as repair_table does.
MUST_CHECK enum remixdb_status repair_log(struct repair *p, const struct version_names *v);
#endif
