// SPDX-License-Identifier: Apache-2.0
//
// Tables of ingests that were never committed. Without CURRENT they lie among the others. The commit writes the
// ingest's number into the footers of its tables (store/ingest_round.h). Before, all records of a table have the number
// 1, or FORMAT_SST_SEQ_MAX if a round has cut it at borders of partitions.
//
// No write has the number FORMAT_SST_SEQ_MAX. The number 1 alone tells nothing: an ingest into an empty store gets it,
// and the records of tables of formats 1 and 2 keep it when they are merged. Such a table is left out if two things are
// known:
// - An older file number belongs to a table with a larger sequence number, which a round wrote. So the ingest would
//   have had a larger one. File numbers only rise.
// - No REMIX has the table as a run. So no version had it.
#include <inttypes.h>
#include <stdlib.h>

#include "admin/repair_state.h"
#include "remix/format.h"
#include "table/format.h"

#define HEAD_MAX (REMIX_HEAD_TABLES + 8 * REMIX_RUNS_MAX)

struct suspects {
  struct repair *p;
  uint64_t *numbers;  // the tables', ascending
  size_t nr;
  uint64_t written;  // the least number of a table that a round wrote when 1 was taken
  bool unread;       // the runs of some REMIX are not known
};

enum verdict { GOOD, SUSPECT, NEVER };

// Looks at a table, which may be damaged.
static enum remixdb_status look(struct suspects *u, uint64_t number, enum verdict *out) {
  struct sst *t;
  *out = GOOD;
  const enum remixdb_status s = sst_open(&u->p->ctx, number, &t);
  if (s != REMIXDB_OK) return s == REMIXDB_NOMEM ? s : REMIXDB_OK;  // repair_table tells what is wrong
  if (t->form != BLOCK_FORM_BARE) {
    if (t->seq_min == FORMAT_SST_SEQ_MAX) *out = NEVER;
    else if (t->seq_max == 1 && t->nr_records > 1) *out = SUSPECT;
    else if (t->seq_max > t->seq_min && number < u->written) u->written = number;
  }
  sst_unref(t);
  return REMIXDB_OK;
}

// ---- runs of REMIXes

static void see_runs(struct suspects *u, const uint8_t *head, size_t len) {
  const uint32_t nr = len < REMIX_HEAD_TABLES ? UINT32_MAX : load32le(head + REMIX_HEAD_RUNS);
  if (nr > REMIX_RUNS_MAX || memcmp(head, REMIX_MAGIC, sizeof(REMIX_MAGIC) - 1) != 0 ||
      len < REMIX_HEAD_TABLES + 8 * (size_t)nr) {
    u->unread = true;
    return;
  }
  for (uint32_t i = 0; i < nr; i++) {
    const uint64_t number = load64le(head + REMIX_HEAD_TABLES + 8 * (size_t)i);
    size_t to = 0;
    for (size_t k = 0; k < u->nr; k++)
      if (u->numbers[k] != number) u->numbers[to++] = u->numbers[k];
    u->nr = to;
  }
}

static void see_file(struct suspects *u, const char *name) {
  uint8_t head[HEAD_MAX];
  size_t n = 0;
  int fd = -1;
  enum remixdb_status s = env_open(&u->p->dir, name, ENV_READ, &fd);
  if (s == REMIXDB_OK) s = env_read_upto(u->p->env, fd, name, head, sizeof(head), 0, &n);
  env_close_quiet(u->p->env, fd);
  see_runs(u, head, s == REMIXDB_OK ? n : 0);
}

static void see_part(void *arg, const struct pack_part *part) {
  struct suspects *const u = arg;
  uint8_t head[HEAD_MAX];
  const size_t n = part->at.len < sizeof(head) ? (size_t)part->at.len : sizeof(head);
  if (pack_id_kind(part->at.id) == PACK_REMIX && !repair_part_is_gone(part))
    see_runs(u, head, pack_part_read(part, head, n, 0) == REMIXDB_OK ? n : 0);
}

// Takes the tables away that are runs of a REMIX, or all if the runs of some REMIX are not known.
static void acquit(struct suspects *u, const struct files_entry *list, size_t nr) {
  for (size_t i = 0; i < nr && u->nr && !u->unread; i++)
    if (list[i].kind == FILES_IS_REMIX) see_file(u, list[i].name);
  if (u->nr) packs_each(u->p->ctx.packs, see_part, u);
  if (u->unread) u->nr = 0;
}

// ---- all tables

// Leaves a table out.
static void leave_out(struct repair *p, uint64_t number) {
  char name[32];
  files_table_name(name, number);
  repair_note(p, "%s/%s: is left out: it is of an ingest that was not committed", p->dir.path, name);
}

static enum remixdb_status sift(struct suspects *u, struct version_names *v, const struct files_entry *list,
                                size_t nr) {
  size_t to = 0;
  for (size_t i = 0; i < v->nr_tables; i++) {
    enum verdict is;
    const enum remixdb_status s = look(u, v->tables[i], &is);
    if (s != REMIXDB_OK) return s;
    if (is == SUSPECT && v->tables[i] > u->written) u->numbers[u->nr++] = v->tables[i];
    if (is == NEVER) leave_out(u->p, v->tables[i]);
    else v->tables[to++] = v->tables[i];
  }
  v->nr_tables = to;
  acquit(u, list, nr);
  to = 0;
  size_t at = 0;
  for (size_t i = 0; i < v->nr_tables; i++) {
    if (at < u->nr && u->numbers[at] == v->tables[i]) leave_out(u->p, u->numbers[at++]);
    else v->tables[to++] = v->tables[i];
  }
  v->nr_tables = to;
  return REMIXDB_OK;
}

enum remixdb_status repair_ingests(struct repair *p, const struct files_entry *list, size_t nr,
                                   struct version_names *v) {
  struct suspects u = {.p = p, .written = UINT64_MAX};
  if (!(u.numbers = mem_array(v->nr_tables + 1, sizeof(*u.numbers), 0))) return REMIXDB_NOMEM;
  const enum remixdb_status s = sift(&u, v, list, nr);
  mem_free(u.numbers);
  return s;
}
