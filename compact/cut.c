// SPDX-License-Identifier: Apache-2.0
#include "compact/cut.h"

#include <assert.h>

#include "base/set32.h"
#include "compact/plan.h"
#include "compact/tables.h"
#include "remix/divide.h"
#include "remix/paged.h"

#define CUT_FILL 4u    // fifths of a table that a slice writes for each range, at most
#define CUT_RANGES 4u  // fewer large ranges (C9) are not worth a cut
#define CUT_LEAST 1u   // with all runs, the fewest tables in each range between the borders of a cut before
#define CUT_MOST (2u * COMPACT_PART_TABLES)  // the most such tables
#define CUT_HIDDEN 8u                        // newer runs hide at most 1/8 of the records between such borders

// Runs that are merged together.
struct slice {
  uint64_t oldest, newest;  // numbers of tables of the older view
  uint64_t bytes;           // that the slice writes, about
  uint64_t from;            // that these tables have
  uint64_t table;           // bytes that each table of a large range gets (C9); 0: as many as others
};

struct cut {
  struct remix_keys keys;
  uint32_t nr;
  struct slice slices[REMIX_RUNS_MAX];
};

uint32_t cut_slices(const struct cut *k) { return k->nr; }
uint64_t cut_bytes(const struct cut *k, uint32_t slice) { return k->slices[slice].bytes; }

uint64_t cut_frees(const struct cut *k, uint32_t slice) {
  const struct slice *const s = &k->slices[slice];
  return s->from > s->bytes ? s->from - s->bytes : 0;
}

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

// The bytes that a slice of these runs writes, about. hidden: how many records of each run it leaves out (C3).
static uint64_t bytes_of(const struct remix *x, const uint32_t *hidden, uint32_t from, uint32_t to) {
  uint64_t sum = 0;
  for (uint32_t r = from; r < to; r++) {
    const struct sst *const t = x->runs[r];
    const uint64_t gone = hidden[r] < t->nr_records ? hidden[r] : t->nr_records;
    sum += (uint64_t)((double)run_bytes(t) / (double)t->nr_records * (double)(t->nr_records - gone));
  }
  return sum;
}

// Divides the older view's runs, behind the `from` oldest, into nr slices that write about the same bytes. The last one
// has the young view, too. Returns false if there are too few runs.
static bool group(struct cut *k, const struct part *p, const uint32_t *hidden, uint32_t from, uint32_t nr) {
  const struct remix *const x = part_remix(p);
  uint64_t young = 0;
  for (uint32_t r = part_old_runs(p); r < part_runs(p); r++) young += run_bytes(part_run(p, r));
  const uint64_t all = bytes_of(x, hidden, from, x->nr_runs) + young;
  uint32_t ends[REMIX_RUNS_MAX], at = 0;
  const uint32_t nr_ends = places(p, ends);
  uint64_t sum = 0;
  *k = (struct cut){.nr = nr};
  while (at < nr_ends && ends[at] <= from) at++;
  if (nr_ends - at < nr) return false;
  for (uint32_t i = 0; i < nr; i++) {
    struct slice *const s = &k->slices[i];
    s->oldest = x->runs[from]->number;
    for (uint32_t least = at + 1, left = nr - 1 - i; at < nr_ends - left; at++) {  // each later slice needs something
      const uint64_t more = bytes_of(x, hidden, from, ends[at]);
      if (left && at >= least && sum + s->bytes + more / 2 > all * (i + 1) / nr) break;  // half of it would be too much
      s->bytes += more;
      for (; from < ends[at]; from++) s->from += run_bytes(x->runs[from]);
    }
    s->newest = x->runs[from - 1]->number;
    sum += s->bytes;
  }
  k->slices[nr - 1].bytes += young;
  k->slices[nr - 1].from += young;
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

// The most runs that the partition has behind a slice, by the plan. No slice merges the oldest `kept` runs; slice i
// writes tables[i] tables.
static uint32_t runs_most(const struct part *p, const struct cut *k, uint32_t kept, const uint32_t *tables) {
  uint32_t most = 0;
  for (uint32_t i = 0, merged = kept, written = kept; i + 1 < k->nr; i++) {
    while (part_run(p, merged++)->number != k->slices[i].newest) {}
    written += tables[i];
    const uint32_t runs = written + part_runs(p) - merged;
    if (runs > most) most = runs;
  }
  return most;
}

// Tells whether a plan with nr slices is to be tried. best: the best plan so far.
static bool wants_more(const struct cut *best, uint32_t nr, uint64_t most) {
  return nr <= CUT_SLICES && (best->nr == 0 || largest(best) > most);
}

// The most ranges of which each slice writes one table, so that C1 holds. `want` are enough. 0: there are none.
static uint32_t ranges_within(const struct part *p, const struct cut *k, uint32_t want) {
  for (uint32_t nr = want; nr > 0; nr--) {
    uint32_t tables[CUT_SLICES];
    for (uint32_t i = 0; i < k->nr; i++) tables[i] = nr;
    if (runs_most(p, k, 0, tables) <= COMPACT_CUT_RUNS) return nr;
  }
  return 0;
}

static enum remixdb_status plan_anew(const struct job *j, struct remix *whole, const uint32_t *hidden, uint64_t most,
                                     struct cut *best) {
  const struct part *const p = old_part(j);
  const uint64_t memory = remix_whole_memory(whole->runs, whole->nr_runs);
  uint32_t ranges = 0;
  struct cut k;
  for (uint32_t nr = 2; wants_more(best, nr, most); nr++) {
    if (!group(&k, p, hidden, 0, nr)) break;
    const uint32_t want = ranges_for(j, nr), fit = ranges_within(p, &k, want);
    if (fit < want && (fit < CUT_RANGES || !budget_work_fits(j->c->ctx->budget, memory))) break;
    for (uint32_t i = 0; i < nr && fit < want; i++) k.slices[i].table = k.slices[i].bytes / fit * 5 / CUT_FILL;
    *best = k;
    ranges = fit;
  }
  return best->nr ? remix_divide(whole, ranges, &best->keys) : REMIXDB_OK;
}

// ---- the plan of a cut that goes on where another one was given up (C7)

// Keys at which a partition may be cut, and how many pages of each run lie before each of them. The last entry of
// `pages` is for the end.
struct borders {
  uint32_t nr;
  struct kref keys[REMIX_RUNS_MAX];
  uint32_t pages[REMIX_RUNS_MAX + 1][REMIX_RUNS_MAX];
};

// Finds the keys between which the oldest `nr` runs lie.
static void borders_of(const struct remix *x, uint32_t nr, struct borders *b) {
  const struct sst *by_min[REMIX_RUNS_MAX], *last;
  for (uint32_t r = 0; r < nr; r++) {
    uint32_t at = r;
    for (; at > 0 && kv_cmp(by_min[at - 1]->min, x->runs[r]->min) > 0; at--) by_min[at] = by_min[at - 1];
    by_min[at] = x->runs[r];
  }
  b->nr = 0;
  last = by_min[0];
  for (uint32_t i = 1; i < nr; i++) {
    if (kv_cmp(last->max, by_min[i]->min) < 0) b->keys[b->nr++] = tables_separator(last, by_min[i]);
    if (kv_cmp(last->max, by_min[i]->max) < 0) last = by_min[i];
  }
}

static uint64_t pages_before(const struct borders *b, uint32_t at, uint32_t nr_runs) {
  uint64_t sum = 0;
  for (uint32_t r = 0; r < nr_runs; r++) sum += b->pages[at][r];
  return sum;
}

// Measures the ranges, and leaves out borders of small ones. Returns false if some range is too large.
static bool even(const struct job *j, const struct remix *whole, struct borders *b) {
  const uint64_t table = table_pages(j->c);
  uint64_t all, before = 0;
  uint32_t nr = 0;
  for (uint32_t i = 0; i < b->nr; i++) remix_pages_before(whole, b->keys[i], b->pages[i]);
  for (uint32_t r = 0; r < whole->nr_runs; r++) b->pages[b->nr][r] = whole->runs[r]->nr_pages;
  all = pages_before(b, b->nr, whole->nr_runs);
  for (uint32_t i = 0; i <= b->nr; i++) {
    const uint64_t here = pages_before(b, i, whole->nr_runs);
    if (i < b->nr && (here - before < CUT_LEAST * table || all - here < CUT_LEAST * table)) continue;
    if (here - before > CUT_MOST * table) return false;
    if (i < b->nr) b->keys[nr] = b->keys[i];
    memcpy(b->pages[nr++], b->pages[i], sizeof(b->pages[i]));
    before = here;
  }
  b->nr = nr - 1;
  return b->nr > 0;
}

// Tables that a merge of runs [from, to) writes, by the plan.
static uint32_t tables_of(const struct job *j, const struct borders *b, uint32_t from, uint32_t to) {
  const uint64_t table = table_pages(j->c);
  uint32_t tables = 0;
  for (uint32_t i = 0; i <= b->nr; i++) {
    uint64_t pages = 0;
    for (uint32_t r = from; r < to; r++) pages += b->pages[i][r] - (i ? b->pages[i - 1][r] : 0);
    tables += (uint32_t)((pages * 5 + table * CUT_FILL - 1) / (table * CUT_FILL));
  }
  return tables;
}

// Plans slices behind the oldest `kept` runs.
static void plan_behind(const struct job *j, const struct borders *b, const uint32_t *hidden, uint32_t kept,
                        uint64_t most, struct cut *best) {
  const struct part *const p = old_part(j);
  struct cut k;
  for (uint32_t nr = 1; wants_more(best, nr, most); nr++) {
    uint32_t tables[CUT_SLICES];
    if (!group(&k, p, hidden, kept, nr)) break;
    for (uint32_t i = 0, from = kept, to = kept; i + 1 < nr; i++, from = to) {
      while (part_run(p, to++)->number != k.slices[i].newest) {}
      tables[i] = tables_of(j, b, from, to);
    }
    if (runs_most(p, &k, kept, tables) > COMPACT_CUT_RUNS) break;
    *best = k;
  }
}

static enum remixdb_status copy_keys(const struct borders *b, struct remix_keys *out) {
  size_t bytes = 0;
  for (uint32_t i = 0; i < b->nr; i++) bytes += b->keys[i].len;
  out->keys = mem_array(b->nr, sizeof(*out->keys), bytes);
  if (!out->keys) return REMIXDB_NOMEM;
  uint8_t *at = (uint8_t *)(out->keys + b->nr);
  for (out->nr = 0; out->nr < b->nr; out->nr++) {
    const struct kref key = b->keys[out->nr];
    memcpy(at, key.ptr, key.len);
    out->keys[out->nr] = kref(at, key.len);
    at += key.len;
  }
  return REMIXDB_OK;
}

// Tells whether the oldest `nr` runs have little that a merge of them would leave out.
static bool clean(const struct remix *x, uint32_t nr, const uint32_t *hidden) {
  uint64_t records = 0, gone = 0;
  for (uint32_t r = 0; r < nr; r++) {
    records += x->runs[r]->nr_records;
    gone += hidden[r];
  }
  return gone <= records / CUT_HIDDEN;
}

// best->nr 0: the oldest runs have no such keys.
static enum remixdb_status plan_again(const struct job *j, struct remix *whole, const uint32_t *hidden, uint64_t most,
                                      struct cut *best) {
  const struct remix *const x = part_remix(old_part(j));
  uint32_t ends[REMIX_RUNS_MAX];
  struct borders b;
  for (uint32_t i = places(old_part(j), ends); i-- > 0;) {
    if (ends[i] < 2 || ends[i] == x->nr_runs) continue;
    borders_of(x, ends[i], &b);
    if (b.nr == 0 || !even(j, whole, &b)) continue;
    if (!clean(x, ends[i], hidden)) continue;
    plan_behind(j, &b, hidden, ends[i], most, best);
    if (best->nr) return copy_keys(&b, &best->keys);
  }
  return REMIXDB_OK;
}

// Slices without cuts (C8).
static void plan_full(const struct part *p, const uint32_t *hidden, uint64_t most, struct cut *best) {
  struct cut k;
  for (uint32_t nr = 2; best->nr == 0 || largest(best) > most; nr++) {
    if (!group(&k, p, hidden, 0, nr)) break;
    *best = k;
  }
}

// Makes a plan of a view that is not paged. *best is zeroed. best->keys.keys is the caller's, also after a failure.
typedef enum remixdb_status (*plan_fn)(const struct job *j, struct remix *whole, uint64_t most, struct cut *best);

static enum remixdb_status plan_cuts(const struct job *j, struct remix *whole, uint64_t most, struct cut *best) {
  const uint32_t *hidden;
  enum remixdb_status s = remix_hidden(whole, &hidden);
  if (s == REMIXDB_OK) s = plan_again(j, whole, hidden, most, best);
  if (s == REMIXDB_OK && best->nr == 0) s = plan_anew(j, whole, hidden, most, best);
  if (best->keys.nr == 0) best->nr = 0;
  return s;
}

static enum remixdb_status plan_slices(const struct job *j, struct remix *whole, uint64_t most, struct cut *best) {
  const uint32_t *hidden;
  const enum remixdb_status s = remix_hidden(whole, &hidden);
  if (s == REMIXDB_OK) plan_full(old_part(j), hidden, most, best);
  return s;
}

static enum remixdb_status plan_by(plan_fn plan, const struct job *j, struct remix *whole, uint64_t most,
                                   struct cut **out) {
  struct cut best = {.nr = 0};
  const enum remixdb_status s = plan(j, whole, most, &best);
  if (s == REMIXDB_OK && best.nr) *out = mem_alloc(sizeof(**out));
  if (*out) **out = best;
  else mem_free(best.keys.keys);
  return s == REMIXDB_OK && best.nr && !*out ? REMIXDB_NOMEM : s;
}

static enum remixdb_status plan_with(plan_fn plan, const struct job *j, uint64_t most, struct cut **out) {
  struct remix *const x = part_remix(old_part(j)), *whole;
  struct budget *const b = j->c->ctx->budget;
  const uint64_t bytes = remix_is_paged(x) ? remix_whole_memory(x->runs, x->nr_runs) : 0;
  *out = NULL;
  budget_work_begin(b, bytes);
  enum remixdb_status s = remix_whole(x, &whole);
  if (s == REMIXDB_OK) {
    s = plan_by(plan, j, whole, most, out);
    remix_unref(whole);
  }
  budget_work_end(b, bytes);
  return s;
}

enum remixdb_status cut_plan(const struct job *j, uint64_t most, struct cut **out) {
  return plan_with(plan_cuts, j, most, out);
}

enum remixdb_status cut_plan_full(const struct job *j, uint64_t most, struct cut **out) {
  return plan_with(plan_slices, j, most, out);
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

// Runs that the partition may have behind a slice that is not the last one. A table that may have any size still ends
// at each cut, so the cuts come on top.
static uint32_t runs_allowed(const struct cut *k, const struct part *p) {
  const uint32_t runs = part_runs(p), most = k->keys.nr && runs < COMPACT_CUT_RUNS ? COMPACT_CUT_RUNS : runs,
                 hard = REMIX_RUNS_MAX - 1 - k->keys.nr;
  return most < hard ? most : hard;
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
  j->table_bytes = j->most_tables = 0;
  if (!last) plan_sizes(j, plan_merged_bytes(j, j->take), 0, runs_allowed(k, p));
  // its tables are full ones, unless they are to be larger (B1 in compact/plan.h, C9)
  if (j->table_bytes < table_bytes(j->c)) j->table_bytes = table_bytes(j->c);
  if (j->table_bytes < s->table) j->table_bytes = s->table;
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
