// SPDX-License-Identifier: Apache-2.0
#include "compact/views.h"

#include "compact/tables.h"
#include "remix/paged.h"
#include "remix/value_debt.h"

#define REMIX_READ_BYTES (160u << 10)  // for each run whose keys a build reads

// The runs of the partition's view that the output leaves as it is.
static uint32_t runs_beside(const struct output *o) {
  const struct part *const p = old_part(o->job);
  return o->job->young ? part_older_tables(p) : o->job->cut == CUT_SLICE ? part_young_runs(p) : 0;
}

// The runs of an output's view: the kept runs of the old view, and the new tables at their place. Both views together
// must not have more runs than a version may name.
static enum remixdb_status output_runs(const struct output *o, const struct remix *old, struct sst **runs,
                                       uint32_t *nr_out) {
  uint32_t nr = 0;
  for (uint32_t r = 0; old && r < old->nr_runs; r++)
    if (o->keep & 1u << r) runs[nr++] = old->runs[r];
  const uint32_t all = nr + o->nr_fresh + runs_beside(o);
  if (all > REMIX_RUNS_MAX) return err_set(REMIXDB_INVALID, "a partition cannot have %u tables", all);
  const uint32_t at = nr - o->newer;
  memmove(runs + at + o->nr_fresh, runs + at, o->newer * sizeof(*runs));
  for (uint32_t i = 0; i < o->nr_fresh; i++) runs[at + i] = o->fresh[i];
  *nr_out = nr + o->nr_fresh;
  return REMIXDB_OK;
}

// The collection of values asks which of their records are hidden.
static enum remixdb_status hidden_counted(struct remix *x) {
  const uint32_t *hidden;
  bool apart = false;
  for (uint32_t r = 0; r < x->nr_runs; r++) apart = apart || x->runs[r]->nr_apart;
  return apart ? remix_hidden(x, &hidden) : REMIXDB_OK;
}

// Makes a new view paged if indexes have no room. Its file is written. before: the view that had its keys; or NULL.
static void view_page_out(struct remix *x, const struct remix *before) {
  if (budget_index_fits(x->ctx->budget, 0)) return;
  IGNORED(hidden_counted(x), "they are counted when somebody asks");
  IGNORED(remix_page_out(x, before), "it stays whole, which takes more memory and is as right");
}

enum remixdb_status views_build(struct compact *c, struct remix_build *b, struct sst *const *runs, uint32_t nr,
                                bool young, const struct remix *before, struct remix **out) {
  const struct remix *const old = b->old;
  struct remix *whole = NULL;
  *out = NULL;
  b->ctx = c->ctx;
  b->number = b->pack ? compact_part_number(c) : compact_new_number(c, remix_name);
  b->tags = c->tags;
  b->keep_image = true;
  // a young view is built again soon, and nobody reads its pages while all indexes fit in memory
  b->large_pages = young && budget_index_fits(c->ctx->budget, 0);
  enum remixdb_status s = old ? remix_whole((struct remix *)(uintptr_t)old, &whole) : REMIXDB_OK;
  b->old = whole;
  b->old_unread = s == REMIXDB_CORRUPT || s == REMIXDB_IO;
  if (s == REMIXDB_OK) s = remix_build(b);
  remix_unref(whole);
  b->old = old;
  if (s != REMIXDB_OK) return s;
  atomic_fetch_add_explicit(&c->stats.remix_bytes, b->file_size, memory_order_relaxed);
  atomic_fetch_add_explicit(&c->stats.remix_data_pages, b->data_pages_read, memory_order_relaxed);
  const struct remix_built built = {b->image, b->image_size, b->file_size, b->print};
  s = remix_open_built(c->ctx, b->number, runs, nr, &built, out);
  mem_free(b->image);
  if (s != REMIXDB_OK) {
    char name[32];
    if (b->pack) return s;  // the pack goes
    remix_name(name, b->number);
    return tables_remove_new(c, name, s);
  }
  if (old && nr == old->nr_runs + b->nr_fresh) {
    const uint64_t scan_debt = atomic_load_explicit(&old->scan_debt, memory_order_relaxed);
    atomic_store_explicit(&(*out)->scan_debt, scan_debt, memory_order_relaxed);
  }
  remix_watch(*out, c->watch);
  if (young) remix_make_young(*out);
  view_page_out(*out, before);
  return s;
}

// Bytes that building the REMIX takes, about: see compact_scan_room.
static uint64_t output_memory(const struct output *o, struct sst *const *runs, uint32_t nr) {
  const struct compact *const c = o->job->c;
  const struct sst *const t = o->nr_fresh ? o->fresh[0] : runs[0];
  // Segments are seldom full, and each has an anchor and two words beside it.
  const uint64_t seg = remix_layout(nr, c->tags).stride + t->key_bytes / t->nr_records + 8;
  const uint64_t image = o->task.size * seg / (REMIX_SEG * 7 / 8);
  return (uint64_t)BLKIO_WRITER_NR * BLKIO_WRITER_BUF + nr * REMIX_READ_BYTES + 3 * image;
}

static void output_fail(struct output *o, enum remixdb_status s) {
  err_save(&o->error, o->status = s);
  atomic_store_explicit(o->job->failed, true, memory_order_relaxed);
}

static void build_output(struct output *o, struct worker *w, struct sst **runs, uint32_t nr) {
  struct compact *const c = o->job->c;
  struct remix_build b = {.queue = w->queue,
                          .old = o->keep ? old_view(o->job) : NULL,
                          .keep = o->keep,
                          .newer = o->newer,
                          .fresh = o->fresh,
                          .nr_fresh = o->nr_fresh,
                          .pack = o->job->pack,
                          .progress = &c->progress};
  b.moved = o->job->count == 0 && !o->job->hid && o->job->cut != CUT_LAST &&
            (o->job->young || o->job->cut || part_young_runs(old_part(o->job)) == 0);
  b.passing = o->job->cut == CUT_SLICE;
  const struct version *const base = o->job->base;
  const struct part *const part = base->parts[version_find(base, runs[0]->min)];
  const struct remix *const before = o->job->young ? part_young(part) : part_remix(part);
  const enum remixdb_status s = views_build(c, &b, runs, nr, o->job->young, before, &o->remix);
  o->unread = s != REMIXDB_OK && b.old_unread;
  o->fresh_unread = s != REMIXDB_OK && b.fresh_unread;
  if (s != REMIXDB_OK) output_fail(o, s);
  // the values of a partition that gets no other keys lie where they lay
  else if (before && !o->job->young && !o->job->append && o->job->nr_parts == 1 && o->job->nr_outputs == 1)
    remix_take_value_debt(o->remix, before, o->job->spans);
}

// Tells whether another part of the round has failed. To build a REMIX is in vain then.
static bool in_vain(const struct output *o) { return atomic_load_explicit(o->job->failed, memory_order_relaxed); }

void views_output(struct task *t, struct worker *w) {
  struct output *const o = (struct output *)t;
  struct budget *const b = o->job->c->ctx->budget;
  struct sst *runs[REMIX_RUNS_MAX];
  uint32_t nr = 0;
  if (in_vain(o)) return;
  const enum remixdb_status s = output_runs(o, o->keep ? old_view(o->job) : NULL, runs, &nr);
  if (s != REMIXDB_OK) {
    output_fail(o, s);
    return;
  }
  const uint64_t bytes = output_memory(o, runs, nr);
  budget_work_begin(b, bytes);
  if (!in_vain(o)) build_output(o, w, runs, nr);
  budget_work_end(b, bytes);
}
