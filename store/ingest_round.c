// SPDX-License-Identifier: Apache-2.0
#include "store/ingest_round.h"

#include "store/install.h"
#include "table/format.h"

// The number of the records until they have one: no other record has it.
#define UNNUMBERED FORMAT_SST_SEQ_MAX

static enum remixdb_status open_tables(struct xdb *x, const struct xdb_ingesting *g, struct sst **tables) {
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < g->nr && s == REMIXDB_OK; i++)
    if ((s = sst_open(&x->ctx, g->numbers[i], &tables[i])) == REMIXDB_OK) sst_number_as(tables[i], UNNUMBERED);
  return s;
}

// Removes the files of an ingest that is not in the version.
static void remove_files(struct xdb *x, const struct xdb_ingesting *g, struct sst *const *tables) {
  for (uint32_t i = 0; i < g->nr; i++) {
    char name[32];
    sst_name(name, g->numbers[i]);
    if (tables && tables[i]) sst_retire(tables[i]);
    else IGNORED(env_unlink(&x->home, name), "the next opening of the store removes the file");
  }
}

void ingest_round_make(struct xdb *x, struct worker *w, struct xdb_ingesting *g, const struct version *base,
                       struct version *next, struct ingest_made *out) {
  struct sst **const tables = mem_calloc(g->nr, sizeof(*tables));
  enum remixdb_status s = tables ? open_tables(x, g, tables) : REMIXDB_NOMEM;
  struct compact_ingest in = {.tree = g->tree, .tables = tables, .nr = g->nr};
  if (base->moves.nr) in.moves = &base->moves;
  *out = (struct ingest_made){.mark = value_log_mark(&x->compact.values)};
  g->tried = true;
  if (s == REMIXDB_OK) s = compact_ingest(&x->compact, w, next, &in, &out->version);
  err_save(&g->error, s);
  err_cleanup_begin();
  if (s != REMIXDB_OK) remove_files(x, g, tables);
  for (uint32_t i = 0; tables && i < g->nr; i++) sst_unref(tables[i]);
  mem_free(tables);
  err_cleanup_end();
  if (s != REMIXDB_OK) return;
  out->tables = in.placed;
  out->nr = in.nr_placed;
}

static void end(struct ingest_made *m) {
  for (uint32_t i = 0; i < m->nr; i++) sst_unref(m->tables[i]);
  mem_free(m->tables);
  *m = (struct ingest_made){0};
}

// ---- numbers

struct numbering {
  struct task task;
  struct sst *table;
  uint64_t seq;
  enum remixdb_status status;
  struct err_saved error;
};

static void number_one(struct task *t, struct worker *w) {
  struct numbering *const n = (struct numbering *)t;
  (void)w;
  if ((n->status = sst_renumber(n->table, n->seq)) != REMIXDB_OK) err_save(&n->error, n->status);
}

static enum remixdb_status number_all(struct compact *c, struct worker *w, const struct ingest_made *m, uint64_t seq) {
  struct numbering *const all = mem_calloc(m->nr, sizeof(*all));
  struct task **const tasks = mem_array(m->nr, sizeof(*tasks), 0);
  enum remixdb_status s = all && tasks ? REMIXDB_OK : REMIXDB_NOMEM;
  for (uint32_t i = 0; i < m->nr && s == REMIXDB_OK; i++) {
    all[i] = (struct numbering){.task.run = number_one, .table = m->tables[i], .seq = seq};
    tasks[i] = &all[i].task;
  }
  if (s == REMIXDB_OK) workers_run(c->workers, w, tasks, m->nr);
  for (uint32_t i = 0; i < m->nr && s == REMIXDB_OK; i++)
    if (all[i].status != REMIXDB_OK) s = err_raise(&all[i].error);
  mem_free(tasks);
  mem_free(all);
  return s;
}

struct numbering_of {
  struct xdb *x;
  const struct ingest_made *made;
};

static enum remixdb_status number(void *arg, struct worker *w, uint64_t seq) {
  const struct numbering_of *const n = arg;
  return number_all(&n->x->compact, w, n->made, seq);
}

// ---- the place

void ingest_round_place(struct xdb *x, struct worker *w, struct xdb_ingesting *g, struct ingest_made *m,
                        uint64_t *when_out) {
  if (!m->version) return;
  struct numbering_of of = {x, m};
  struct round_ingest in = {.tree = g->tree,
                            .low = m->tables[0]->min,
                            .high = m->tables[m->nr - 1]->max,
                            .unnumbered = UNNUMBERED,
                            .mark = g->mark,
                            .values = g->values,
                            .number = number,
                            .arg = &of};
  const enum remixdb_status s = round_install_ingest(x, w, m->version, &in, when_out);
  g->done = s == REMIXDB_OK;
  g->unknown = in.unknown;
  err_save(&g->error, s);
  err_cleanup_begin();
  if (s != REMIXDB_OK && !in.unknown) value_log_rewind(&x->compact.values, &m->mark);
  end(m);
  err_cleanup_end();
}

void ingest_round_drop(struct ingest_made *m, const struct version *next) {
  if (!m->version) return;
  err_cleanup_begin();
  compact_retire(m->version, next);
  version_unref(m->version);
  end(m);
  err_cleanup_end();
}
