// SPDX-License-Identifier: Apache-2.0
#include "compact/cut.h"

#include <assert.h>

#include "base/set32.h"
#include "compact/plan.h"
#include "remix/divide.h"
#include "remix/paged.h"

#define CUT_FILL 4u  // fifths of a table that a slice writes for each range, at most

// Runs that are merged together.
struct slice {
  uint64_t oldest, newest;  // numbers of tables of the older view
  uint64_t bytes;
};

struct cut {
  struct remix_keys keys;
  uint32_t nr;
  struct slice slices[CUT_SLICES];
};

uint32_t cut_slices(const struct cut *k) { return k->nr; }
uint64_t cut_bytes(const struct cut *k, uint32_t slice) { return k->slices[slice].bytes; }

void cut_destroy(struct cut *k) {
  if (!k) return;
  mem_free(k->keys.keys);
  mem_free(k);
}

// ---- the plan

// Lists the places at which the older view's runs may be divided (C5): each record of the runs before a place has a
// smaller sequence number than all behind it. The end is the last one. Returns how many there are.
static uint32_t places(const struct part *p, uint32_t *out) {
  const uint32_t old = part_old_runs(p);
  uint32_t nr = 0;
  uint64_t before = 0;  // the largest number
  for (uint32_t r = 0; r < old; r++) {
    uint64_t behind = UINT64_MAX;  // the smallest number
    for (uint32_t q = r; q < part_runs(p); q++)
      if (part_run(p, q)->seq_min < behind) behind = part_run(p, q)->seq_min;
    if (r > 0 && before < behind) out[nr++] = r;
    if (part_run(p, r)->seq_max > before) before = part_run(p, r)->seq_max;
  }
  out[nr++] = old;
  return nr;
}

static uint64_t bytes_of(const struct remix *x, uint32_t from, uint32_t to) {
  uint64_t sum = 0;
  for (uint32_t r = from; r < to; r++) sum += run_bytes(x->runs[r]);
  return sum;
}

// Divides the older view's runs into nr slices of about the same bytes. The last one has the young view, too. Returns
// false if there are too few runs.
static bool group(struct cut *k, const struct part *p, uint32_t nr) {
  const struct remix *const x = part_remix(p);
  const uint64_t all = plan_part_bytes(p);
  uint32_t ends[REMIX_RUNS_MAX], from = 0, at = 0;
  const uint32_t nr_ends = places(p, ends);
  uint64_t sum = 0;
  *k = (struct cut){.nr = nr};
  if (nr_ends < nr) return false;
  for (uint32_t i = 0; i < nr; i++) {
    struct slice *const s = &k->slices[i];
    s->oldest = x->runs[from]->number;
    for (uint32_t least = at + 1, left = nr - 1 - i; at < nr_ends - left; at++) {  // each later slice needs something
      const uint64_t more = bytes_of(x, from, ends[at]);
      if (left && at >= least && sum + s->bytes + more / 2 > all * (i + 1) / nr) break;  // half of it would be too much
      s->bytes += more;
      from = ends[at];
    }
    s->newest = x->runs[from - 1]->number;
    sum += s->bytes;
  }
  for (uint32_t r = part_old_runs(p); r < part_runs(p); r++) k->slices[nr - 1].bytes += run_bytes(part_run(p, r));
  return true;
}

static uint64_t largest(const struct cut *k) {
  uint64_t most = 0;
  for (uint32_t i = 0; i < k->nr; i++)
    if (k->slices[i].bytes > most) most = k->slices[i].bytes;
  return most;
}

// How many ranges so many slices make: as many as a split makes partitions. But a slice's share of a range is less than
// a table.
static uint32_t ranges_for(const struct job *j, uint32_t slices) {
  const uint32_t tables = plan_tables(j->c, plan_part_bytes(old_part(j))), full = slices * CUT_FILL,
                 parts = (tables + COMPACT_PART_TABLES - 1) / COMPACT_PART_TABLES,
                 least = (tables * 5 + full - 1) / full;
  return parts > least ? parts : least;
}

// The most runs that the partition has behind a slice, by the plan.
static uint32_t runs_most(const struct job *j, const struct cut *k) {
  const struct part *const p = old_part(j);
  const uint32_t ranges = ranges_for(j, k->nr);
  uint32_t most = 0;
  for (uint32_t i = 0, merged = 0; i + 1 < k->nr; i++) {
    while (part_run(p, merged++)->number != k->slices[i].newest) {}
    const uint32_t runs = (i + 1) * ranges + part_runs(p) - merged;
    if (runs > most) most = runs;
  }
  return most;
}

// A paged view is read as a whole for that.
static enum remixdb_status divide(const struct job *j, uint32_t ranges, struct remix_keys *out) {
  struct remix *const x = part_remix(old_part(j));
  struct budget *const b = j->c->ctx->budget;
  const uint64_t bytes = remix_is_paged(x) ? remix_whole_memory(x->runs, x->nr_runs) : 0;
  budget_work_begin(b, bytes);
  const enum remixdb_status s = remix_divide(x, ranges, out);
  budget_work_end(b, bytes);
  return s;
}

enum remixdb_status cut_plan(const struct job *j, uint64_t most, struct cut **out) {
  const struct part *const p = old_part(j);
  struct cut best = {.nr = 0}, k;
  *out = NULL;
  for (uint32_t nr = 2; nr <= CUT_SLICES && (best.nr == 0 || largest(&best) > most); nr++) {
    if (!group(&k, p, nr) || runs_most(j, &k) > CUT_RUNS) break;
    best = k;
  }
  if (best.nr == 0) return REMIXDB_OK;
  const enum remixdb_status s = divide(j, ranges_for(j, best.nr), &best.keys);
  if (s != REMIXDB_OK) return s;
  *out = best.keys.nr ? mem_alloc(sizeof(**out)) : NULL;
  if (*out) **out = best;
  else mem_free(best.keys.keys);
  return *out || best.keys.nr == 0 ? REMIXDB_OK : REMIXDB_NOMEM;
}

// ---- a slice

// The number of the run with this file number in the older view; UINT32_MAX: there is none.
static uint32_t run_of(const struct remix *x, uint64_t number) {
  for (uint32_t r = 0; r < x->nr_runs; r++)
    if (x->runs[r]->number == number) return r;
  return UINT32_MAX;
}

// The range of a key.
static uint32_t range_of(const struct kref *cuts, uint32_t nr, struct kref key) {
  uint32_t i = 0;
  while (i < nr && kv_cmp(cuts[i], key) <= 0) i++;
  return i;
}

// Tells whether the first `nr` runs lie between two cuts each.
static bool all_cut(const struct cut *k, const struct remix *x, uint32_t nr) {
  for (uint32_t r = 0; r < nr; r++) {
    const struct sst *const t = x->runs[r];
    if (range_of(k->keys.keys, k->keys.nr, t->min) != range_of(k->keys.keys, k->keys.nr, t->max)) return false;
  }
  return true;
}

bool cut_decide(struct job *j, const struct cut *k, uint32_t slice) {
  const struct part *const p = old_part(j);
  const struct remix *const x = part_remix(p);
  const struct slice *const s = &k->slices[slice];
  const uint32_t from = run_of(x, s->oldest), to = run_of(x, s->newest);
  const bool last = slice + 1 == k->nr;
  assert(j->count == 0 && j->nr_parts == 1);
  if (from == UINT32_MAX || to == UINT32_MAX || to < from || (last && !all_cut(k, x, from))) return false;
  j->cut = last ? CUT_LAST : CUT_SLICE;
  j->newer = last ? 0 : part_runs(p) - 1 - to;
  j->take = part_runs(p) - j->newer - from;
  j->all = j->young = false;
  j->kind = last ? COMPACT_SPLIT : COMPACT_MAJOR;
  j->cuts = k->keys.keys;
  j->nr_cuts = k->keys.nr;
  j->cost = plan_merged_bytes(j, j->take) + x->file_size;
  j->table_bytes = (uint64_t)table_pages(j->c) * BLOCK_PAGE;
  return true;
}

// ---- its outputs

// The partition with the tables in place of the runs that were merged.
static void slice_output(struct job *j) {
  const struct part *const p = old_part(j);
  const uint32_t newer = j->newer - part_young_runs(p), end = part_old_runs(p) - newer, older = end - j->take;
  struct output *const o = &j->outputs[j->nr_outputs++];
  o->fresh = j->tables;
  o->nr_fresh = j->nr_tables;
  o->keep = set32_below(older) | (set32_below(end + newer) & ~set32_below(end));
  o->newer = newer;
}

// A partition for each range that has tables. The first one has the anchor of the old partition.
static void range_outputs(struct job *j) {
  const struct part *const p = old_part(j);
  const struct remix *const x = part_remix(p);
  const uint32_t kept = part_runs(p) - j->take;
  for (uint32_t i = 0, at = 0; i <= j->nr_cuts; i++) {
    struct output o = {.fresh = j->tables + at};
    for (; at < j->nr_tables && range_of(j->cuts, j->nr_cuts, j->tables[at]->min) == i; at++) o.nr_fresh++;
    for (uint32_t r = 0; r < kept; r++)
      if (range_of(j->cuts, j->nr_cuts, x->runs[r]->min) == i) o.keep |= 1u << r;
    if (o.nr_fresh == 0 && o.keep == 0) continue;
    const uint32_t runs = o.nr_fresh + set32_count(o.keep);
    if (runs > COMPACT_PART_TABLES) o.more_runs = runs - COMPACT_PART_TABLES;
    if (j->nr_outputs) o.anchor = j->cuts[i - 1];
    j->outputs[j->nr_outputs++] = o;
  }
}

uint32_t cut_outputs_most(const struct job *j) { return j->cut == CUT_LAST ? j->nr_cuts + 1 : 1; }

void cut_outputs(struct job *j) {
  if (j->cut == CUT_LAST) range_outputs(j);
  else slice_output(j);
}
