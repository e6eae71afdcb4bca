// SPDX-License-Identifier: Apache-2.0
#include "compact/compact.h"

#include <stdlib.h>

#include "remix/build.h"
#include "table/scan.h"

#define PROGRESS_SHIFT 5      // a unit of progress: 32 bytes written, or one entry of a REMIX
#define PROGRESS_EVERY 256u   // records between two reports
#define GARBAGE_SLACK 40u     // percent of a table
#define ABORT_COST 3u         // bytes written per byte of new data from which on a partition may be aborted
#define ABORT_ENTRY 96u       // bytes that a memtable takes for a record more than a block does
#define MERGE_COST 8u         // bytes that a merge of some runs may write per byte of new data and table that it removes

// New records that belong to a partition.
struct fresh {
  uint64_t bytes, count;                // with keys up to the largest that is there
  uint64_t behind_bytes, behind_count;  // with larger ones
};

// The work on one partition of the base, or on several neighbours that become one.
struct job {
  struct task task;
  struct compact *c;
  const struct version *base;
  const struct wh *frozen; // NULL: no new data
  uint32_t part, nr_parts;
  uint64_t bytes;          // of new records
  uint64_t count;          // new records
  // decided
  enum compact_kind kind;
  bool may_abort;
  bool worn;               // merged for its scans' sake
  bool append;             // a split that leaves the partition as it is and puts new ones behind it
  bool young;              // what is written comes into the young view: the other one stays as it is
  bool upto;               // the new data behind the partition's keys is another job's, which appends it
  uint32_t take;           // so many of the newest runs are merged with the new data
  bool all;                // of all its partitions
  bool pieces;             // as the round's
  _Atomic bool *failed;    // the round's
  bool in_vain;            // it ended because of that
  uint64_t cost;           // bytes that will be written, about
  uint64_t table_bytes;    // of data to put in each new table
  // made
  struct sst **tables;
  uint32_t nr_tables, cap_tables;
  enum remixdb_status status;
  struct err_saved error;
};

// A partition of the next version that needs a REMIX built.
struct output {
  struct task task;
  struct job *job;
  struct sst **fresh;      // within job->tables
  uint32_t nr_fresh;
  uint32_t keep;           // runs of the old view that stay
  struct remix *remix;
  enum remixdb_status status;
  struct err_saved error;
};

struct round {
  struct compact *c;
  struct worker *self;
  const struct version *base;
  const struct wh *frozen;
  bool pieces;             // of the tables' blocks many will be read one by one
  _Atomic bool failed;     // a job has: the others end soon. Relaxed
  struct fresh *fresh;     // per partition of the base
  struct job *jobs;        // in order of their keys; room for two per partition
  uint32_t nr_jobs;
  struct output *outputs;
  uint32_t nr_outputs;
  struct task **tasks;     // room for all jobs
};

static const struct part *old_part(const struct job *j) { return j->base->parts[j->part]; }
static uint32_t old_runs(const struct job *j) { return part_runs(old_part(j)); }
// The view that is made anew with what is written.
static const struct remix *old_view(const struct job *j) { return j->young ? old_part(j)->young : old_part(j)->remix; }

// The table with the largest key of a partition that has any.
static const struct sst *last_table(const struct part *p) {
  const struct sst *last = part_run(p, 0);
  for (uint32_t r = 1; r < part_runs(p); r++)
    if (kv_cmp(last->max, part_run(p, r)->max) < 0) last = part_run(p, r);
  return last;
}

// ---- the new data

// What a record takes in a block: itself and its offset.
static uint64_t record_bytes(uint32_t klen, uint32_t vlen, bool tomb) { return kv_rec_size(klen, vlen, tomb) + 2; }

static uint64_t cursor_bytes(const struct wh_cursor *c) { return record_bytes(c->entry->klen, c->ver->vlen, c->ver->tomb); }

// Everything in the frozen memtable is committed or will never be: any moment sees the same. It takes no new writers, so the cursor needs no stay (wh_recycle).
static void cursor_begin(struct wh_cursor *c, const struct compact *compact, const struct wh *frozen, struct kref key, struct worker *w) {
  wh_cursor_init(c, frozen, WH_PENDING - 1);
  epoch_enter(compact->epoch, &w->slot);
  wh_seek(c, key);
  epoch_exit(&w->slot);
}

// Measures the partitions from `from` on, before `to`.
struct slice {
  struct task task;
  struct round *r;
  uint32_t from, to;
  enum remixdb_status status;
};

static void measure(struct task *t, struct worker *w) {
  struct slice *s = (struct slice *)t;
  const struct version *v = s->r->base;
  struct wh_cursor *c = mem_alloc(sizeof(*c));
  if (!c) {
    s->status = REMIXDB_NOMEM;
    return;
  }
  cursor_begin(c, s->r->c, s->r->frozen, part_anchor(v->parts[s->from]), w);
  for (uint32_t i = s->from; i < s->to && wh_valid(c); i++) {
    struct fresh *f = &s->r->fresh[i];
    const bool any = v->parts[i]->remix != NULL, bounded = i + 1 < v->nr_parts;
    const struct kref end = bounded ? part_anchor(v->parts[i + 1]) : kref(NULL, 0), max = any ? last_table(v->parts[i])->max : kref(NULL, 0);
    bool behind = false;
    for (; wh_valid(c); wh_next(c)) {
      if (bounded && kv_cmp(wh_key(c), end) >= 0) break;
      behind = behind || (any && kv_cmp(wh_key(c), max) > 0);
      *(behind ? &f->behind_bytes : &f->bytes) += cursor_bytes(c);
      *(behind ? &f->behind_count : &f->count) += 1;
    }
  }
  mem_free(c);
}

// The new data of a job.
struct range {
  struct wh_cursor cursor;
  struct kref end;         // ptr NULL: none
  bool with_end;           // the key `end` belongs to it
  bool empty;              // there is none, and no cursor
};

static bool range_valid(const struct range *r) {
  if (r->empty || !wh_valid(&r->cursor)) return false;
  const int order = r->end.ptr ? kv_cmp(wh_key(&r->cursor), r->end) : -1;
  return order < 0 || (order == 0 && r->with_end);
}

static void range_begin(struct range *r, const struct job *j, struct worker *w) {
  const struct version *v = j->base;
  const uint32_t next = j->part + j->nr_parts;
  r->empty = !j->frozen;
  if (r->empty) return;
  r->end = next < v->nr_parts ? part_anchor(v->parts[next]) : kref(NULL, 0);
  r->with_end = j->upto;
  if (j->upto) r->end = last_table(old_part(j))->max;
  const struct kref from = j->append ? last_table(old_part(j))->max : part_anchor(v->parts[j->part]);
  cursor_begin(&r->cursor, j->c, j->frozen, from, w);
  if (j->append && wh_valid(&r->cursor) && kv_eq(wh_key(&r->cursor), from)) wh_next(&r->cursor);
}

static void range_record(const struct range *r, struct kv_rec *rec) {
  const struct wh_cursor *c = &r->cursor;
  *rec = (struct kv_rec){c->entry->key, c->ver->val, c->entry->klen, c->ver->vlen, c->ver->tomb};
}

// ---- what to do

// All sizes here are of blocks before compression: that is what says when a table is full.
static uint32_t table_pages(const struct compact *c) { return c->build.max_pages ? c->build.max_pages : SST_MAX_BLOCKS; }
static uint64_t table_bytes(const struct compact *c) { return (uint64_t)table_pages(c) * BLOCK_PAGE; }
static uint64_t run_bytes(const struct sst *t) { return (uint64_t)t->nr_pages * BLOCK_PAGE; }

static uint32_t tables_for(const struct compact *c, uint64_t bytes) {
  const uint64_t table = table_bytes(c);
  return (uint32_t)((bytes + table - 1) / table);
}

static const struct sst *nth_newest(const struct part *p, uint32_t n) { return part_run(p, part_runs(p) - 1 - n); }

static uint64_t runs_bytes(const struct part *p, uint32_t newest) {
  uint64_t sum = 0;
  for (uint32_t n = 0; n < newest; n++) sum += run_bytes(nth_newest(p, n));
  return sum;
}

static uint64_t all_bytes(const struct part *p) { return runs_bytes(p, part_runs(p)); }

// Of so many bytes of runs, what is neither an old version nor a tombstone, about: what the young view makes old in the other one is not known.
static uint64_t live_bytes(const struct part *p, uint64_t bytes) {
  uint64_t entries = 0, keys = 0;
  if (p->remix) entries = p->remix->nr_entries, keys = p->remix->nr_keys;
  if (p->young) entries += p->young->nr_entries, keys += p->young->nr_keys;
  return entries ? (uint64_t)((double)bytes * (double)keys / (double)entries) : 0;
}

static uint64_t all_live_bytes(const struct part *p) { return live_bytes(p, all_bytes(p)); }

// Whether the cache has room for all of it.
static bool fits_cache(const struct compact *c, const struct version *v) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) sum += all_bytes(v->parts[i]);
  return c->ctx->cache && sum <= cache_size(c->ctx->cache);
}

// Bytes that merging the newest `take` runs with the new data will write: what is known to be old versions or tombstones is not written again
// by a merge of all runs, and about half of it by a merge of some.
static uint64_t merged_bytes(const struct job *j, uint32_t take) {
  const struct part *const p = old_part(j);
  uint64_t sum = j->bytes;
  if (j->nr_parts > 1) {
    for (uint32_t i = 0; i < j->nr_parts; i++) sum += all_live_bytes(j->base->parts[j->part + i]);
  } else if (take) {
    const uint64_t bytes = runs_bytes(p, take), live = live_bytes(p, bytes);
    sum += take == part_runs(p) ? live : (bytes + live) / 2;
  }
  return sum;
}

// The slack is for blocks that do not fill.
static uint32_t tables_wanted(const struct compact *c, uint64_t bytes) { return tables_for(c, bytes + bytes / 16); }

// Equal tables rather than full ones and a rest. Where one is enough it may fill: a share of less than that could be less than a block, of which no table could
// have a part.
static uint64_t share_for(const struct compact *c, uint64_t bytes) {
  const uint32_t nr = tables_wanted(c, bytes);
  return nr <= 1 ? table_bytes(c) : (bytes + bytes / 16) / nr;
}

// Whether so much of a partition is old versions that it is merged for that alone: `more` bytes of new data will be stored, of which about half makes something
// old, too.
static bool mostly_garbage(const struct compact *c, const struct part *p, uint64_t more) {
  const uint64_t total = all_bytes(p);
  return total + more / 2 > 2 * live_bytes(p, total) + table_bytes(c) * GARBAGE_SLACK / 100;
}

uint32_t compact_run_limit(const struct compact *c, const struct part *p, uint64_t bytes) {
  const uint64_t small = table_bytes(c) * 2 / 5;
  bool large = bytes >= small;
  for (uint32_t r = 0; r < part_runs(p) && large; r++) large = run_bytes(part_run(p, r)) >= small;
  return large ? COMPACT_SPLIT_RUNS : COMPACT_RUNS - COMPACT_RUNS_SPREAD / 2 + (uint32_t)(part_run(p, 0)->number % COMPACT_RUNS_SPREAD);
}

// How many of the newest runs to merge with the new data, as there are too many. A run goes in while it is not much larger than all that is newer together, so
// that every byte moves into a run that is about twice as large, and is moved a logarithmic number of times (the shape of a merge order that is known to be
// the best for runs of one size: Mathieu, Staelin, Young, Yousefi, "Bigtable Merge Compaction", 2014). But at least as many as make room, and more where a
// merge of few would write much to remove little: tables that are as large as tables get, which only a split helps.
static uint32_t merge_depth(const struct job *j, uint32_t fresh) {
  const struct compact *c = j->c;
  const struct part *const p = old_part(j);
  const uint32_t runs = part_runs(p);
  for (uint32_t k = 1; k < runs; k++) {
    const uint64_t written = merged_bytes(j, k);
    const uint32_t in = fresh + k, out = tables_for(c, written);
    if (in <= out || runs + fresh - (in - out) > compact_run_limit(c, p, j->bytes) || written > MERGE_COST * j->bytes * (in - out)) continue;
    if (run_bytes(nth_newest(p, k)) > written - written / 4) return k;
  }
  return runs;
}

// All runs are merged with the new data.
static void decide_all(struct job *j) {
  j->take = old_runs(j);
  j->all = true;
  j->young = false;
  j->cost = merged_bytes(j, j->take);
  j->kind = tables_for(j->c, j->cost) > COMPACT_PART_TABLES ? COMPACT_SPLIT : COMPACT_MAJOR;
  j->table_bytes = share_for(j->c, j->cost);
}

// Whether no key of a run lies among those of the runs first .. n - 1, all counted from the view's newest.
static bool lies_apart(const struct remix *x, uint32_t first, uint32_t n) {
  const struct sst *const t = x->runs[x->nr_runs - 1 - n];
  for (uint32_t i = first; i < n; i++) {
    const struct sst *const other = x->runs[x->nr_runs - 1 - i];
    if (kv_cmp(t->max, other->min) >= 0 && kv_cmp(other->max, t->min) >= 0) return false;
  }
  return true;
}

// How many of a view's newest runs to merge so that scans read from fewer: those that remove the most levels for the bytes they hold. A level is what lies apart,
// as the tables of a split do, and is read by a scan like one run. 0: there is but one.
static uint32_t worn_depth(const struct remix *x, uint64_t *bytes_out) {
  uint64_t bytes = 0;
  uint32_t best = 0, levels = 0;
  double most = 0;
  for (uint32_t k = 0; k < x->nr_runs; levels++) {
    const double removed = levels;
    const uint32_t first = k;
    do bytes += run_bytes(x->runs[x->nr_runs - 1 - k++]);
    while (k < x->nr_runs && lies_apart(x, first, k));
    if (removed / (double)bytes <= most) continue;
    most = removed / (double)bytes;
    best = k;
    *bytes_out = bytes;
  }
  return best;
}

// The newest `take` runs are merged with the new data.
static void decide_major(struct job *j, uint32_t take) {
  j->take = take;
  if (take == old_runs(j)) {
    decide_all(j);
    return;
  }
  j->kind = COMPACT_MAJOR;
  j->cost = merged_bytes(j, take) + old_view(j)->file_size;
  j->table_bytes = share_for(j->c, merged_bytes(j, take));
}

// Whether the new data may come into the partition's young view: it is little for the partition, and with it the view stays small.
static bool fits_young(const struct job *j) {
  const struct part *const p = old_part(j);
  const uint64_t there = p->young ? p->young->nr_entries : 0, old = p->remix->nr_entries;
  if (!p->young && (j->c->young_from == 0 || j->count * j->c->young_from > old)) return false;
  return (there + j->count) * COMPACT_YOUNG_SHARE <= old;
}

static void decide(struct job *j) {
  const struct compact *c = j->c;
  const struct part *const p = old_part(j);
  const uint32_t fresh = tables_for(c, j->bytes);
  if (j->count == 0) {
    j->kind = COMPACT_KEEP;
    return;
  }
  // into an empty partition, or behind all others: writing the new data is all there is to do, and tombstones have nothing to hide
  if (!p->remix || mostly_garbage(c, p, j->bytes)) {
    decide_all(j);
    return;
  }
  uint32_t take = part_runs(p) + fresh > compact_run_limit(c, p, j->bytes) ? merge_depth(j, fresh) : 0;
  j->young = take <= part_young_runs(p) && fits_young(j);
  // a young view that does not stay becomes a table of the other one
  if (!j->young && take < part_young_runs(p)) take = part_young_runs(p);
  if (take) {
    decide_major(j, take);
    return;
  }
  j->kind = COMPACT_MINOR;
  j->cost = j->bytes + (old_view(j) ? old_view(j)->file_size : 0);
  j->table_bytes = share_for(c, j->bytes);
}

// New data behind all keys of a partition that is full, by its size or its runs, does not touch it. A little of it does not: it would make small partitions.
static bool appends(const struct round *r, uint32_t part) {
  const struct compact *c = r->c;
  const struct part *const p = r->base->parts[part];
  const struct fresh *f = &r->fresh[part];
  if (!p->remix || f->behind_bytes == 0 || f->behind_bytes < c->memtable_size / COMPACT_ABORT_SHARE) return false;
  const uint32_t more = tables_for(c, f->bytes) + tables_for(c, f->behind_bytes);
  const bool full = all_bytes(p) >= table_bytes(c) || part_runs(p) + more > COMPACT_APPEND_RUNS;
  return full && !mostly_garbage(c, p, f->bytes);
}

static struct job *add_job(struct round *r, uint32_t part, uint32_t nr_parts) {
  struct job *j = &r->jobs[r->nr_jobs++];
  *j = (struct job){.c = r->c, .base = r->base, .frozen = r->frozen, .part = part, .nr_parts = nr_parts, .pieces = r->pieces, .failed = &r->failed};
  for (uint32_t i = part; i < part + nr_parts; i++) {
    j->bytes += r->fresh[i].bytes + r->fresh[i].behind_bytes;
    j->count += r->fresh[i].count + r->fresh[i].behind_count;
  }
  return j;
}

static void plan_part(struct round *r, uint32_t part) {
  const struct fresh *f = &r->fresh[part];
  struct job *j = add_job(r, part, 1);
  j->may_abort = true;
  if (!appends(r, part)) {
    decide(j);
    return;
  }
  j->upto = true;
  j->bytes = f->bytes;
  j->count = f->count;
  decide(j);
  j = add_job(r, part, 1);
  j->bytes = f->behind_bytes;
  j->count = f->behind_count;
  j->append = true;
  j->kind = COMPACT_SPLIT;
  j->cost = j->bytes;
  j->table_bytes = share_for(r->c, j->bytes);
}

// From `part` on, before `end`: a partition, or neighbours that need fewer tables together, is merged when that makes fewer tables or leaves something out.
// Returns the partition behind them.
static uint32_t plan_whole(struct round *r, uint32_t part, uint32_t end) {
  const struct compact *c = r->c;
  uint64_t bytes = 0;
  uint32_t next = part, tables = 0;
  bool needed = false;
  do {
    const struct part *const p = r->base->parts[next];
    const struct fresh *f = &r->fresh[next];
    const uint64_t more = all_live_bytes(p) + f->bytes + f->behind_bytes;
    const uint32_t apart = tables_for(c, bytes) + tables_for(c, more), together = tables_wanted(c, bytes + more);
    if (next > part && more && (together >= apart || together > COMPACT_PART_TABLES)) break;
    bytes += more;
    tables += part_runs(p);
    needed = needed || f->count + f->behind_count || p->young || (p->remix && p->remix->nr_keys != p->remix->nr_entries);
  } while (++next < end);
  if (needed || tables > tables_for(c, bytes)) {
    struct job *j = add_job(r, part, next - part);
    decide_all(j);
    j->table_bytes = table_bytes(c);  // full ones: fewer there cannot be, however good the estimate is
  } else {
    for (uint32_t i = part; i < next; i++) decide(add_job(r, i, 1));
  }
  return next;
}

static void plan(struct round *r, const struct compact_whole *whole, uint32_t *next_out) {
  const uint32_t nr = r->base->nr_parts;
  uint32_t at = 0, end = whole ? version_find(r->base, kref(whole->from, whole->from_len)) : nr;
  while (at < end) plan_part(r, at++);
  uint64_t bytes = 0;
  while (at < nr && bytes < whole->budget) {
    const uint32_t first = r->nr_jobs;
    at = plan_whole(r, at, nr);
    for (uint32_t i = first; i < r->nr_jobs; i++) bytes += r->jobs[i].cost;
  }
  *next_out = at;
  while (at < nr) plan_part(r, at++);
}

// Of the partitions that scans have paid for so many as may be merged together; they have to be paid for again, whatever comes of it. In any case the young view ends with it.
static void plan_worn(struct round *r) {
  uint64_t bytes;
  uint32_t left = r->c->worn_parts;
  for (uint32_t i = 0; i < r->base->nr_parts; i++) {
    struct job *j = add_job(r, i, 1);
    const struct part *const p = r->base->parts[i];
    if (!left) continue;
    struct remix *const x = p->remix && compact_worn(p->remix) ? p->remix : p->young && compact_worn(p->young) ? p->young : NULL;
    if (!x) continue;
    j->worn = true;
    decide_major(j, part_young_runs(p) + (x == p->remix ? worn_depth(x, &bytes) : 0));
    atomic_store_explicit(&x->jumps, 0, memory_order_relaxed);
    left--;
  }
}

static int worst_first(const void *a, const void *b) {
  const struct job *x = *(struct job *const *)a, *y = *(struct job *const *)b;
  const double cx = (double)x->cost / (double)x->bytes, cy = (double)y->cost / (double)y->bytes;
  return (cx < cy) - (cx > cy);
}

// Partitions whose new data is dear to write give it back, the dearest first, as long as there is room for it.
static enum remixdb_status choose_aborts(struct round *r) {
  struct job **by_cost = mem_alloc(r->nr_jobs * sizeof(*by_cost));
  if (!by_cost) return REMIXDB_NOMEM;
  uint32_t nr = 0;
  for (uint32_t i = 0; i < r->nr_jobs; i++) {
    struct job *j = &r->jobs[i];
    if (j->count && j->may_abort && j->cost / ABORT_COST > j->bytes) by_cost[nr++] = j;
  }
  qsort(by_cost, nr, sizeof(*by_cost), worst_first);
  uint64_t room = r->c->memtable_size / COMPACT_ABORT_SHARE;
  for (uint32_t i = 0; i < nr; i++) {
    // the memtable counts an entry's headers and its place in a leaf too
    const uint64_t need = by_cost[i]->bytes + ABORT_ENTRY * by_cost[i]->count;
    if (need > room) continue;
    room -= need;
    by_cost[i]->kind = COMPACT_ABORT;
    by_cost[i]->take = 0;
    by_cost[i]->all = false;
    by_cost[i]->young = false;
    by_cost[i]->cost = 0;
  }
  mem_free(by_cost);
  return REMIXDB_OK;
}

// ---- writing tables

// The runs of a view that take part, as one sorted stream of the newest version in them of each key.
struct view_stream {
  struct remix_walk walk;   // x NULL: none do
  uint32_t first;           // runs from this one on
  bool found;               // a version of the current key has been given out
  bool any;                 // there is a record
  struct kv_rec rec;
  struct sst_scan *scans[REMIX_RUNS_MAX];
};

static void view_close(struct view_stream *v) {
  for (uint32_t r = 0; v->walk.x && r < v->walk.x->nr_runs; r++) {
    sst_scan_destroy(v->scans[r]);
    v->scans[r] = NULL;
  }
  v->walk.x = NULL;
  v->any = false;
}

// The next record, if there is one.
static enum remixdb_status view_next(struct view_stream *v) {
  v->any = false;
  while (v->walk.x && remix_walk_valid(&v->walk)) {
    const uint8_t sel = v->walk.sel[v->walk.at];
    const uint32_t run = sel & REMIX_RUN;
    if (!(sel & REMIX_OLD)) v->found = false;
    remix_walk_next(&v->walk);
    if (run < v->first) continue;
    if (v->found) {
      sst_scan_skip(v->scans[run], 1);
      continue;
    }
    v->found = true;
    sst_pos pos;
    const enum remixdb_status s = sst_scan_next(v->scans[run], &v->rec, &pos);
    if (s == REMIXDB_NOTFOUND)
      return err_corrupt(v->walk.x->path, 0, "has more entries than table %llu has records", (unsigned long long)v->walk.x->runs[run]->number);
    v->any = s == REMIXDB_OK;
    return s;
  }
  return REMIXDB_OK;
}

// The newest `take` runs of the view; comes to the first record.
static enum remixdb_status view_begin(struct view_stream *v, const struct remix *x, uint32_t take, struct compact *c, struct blkio_queue *queue) {
  if (take == 0) return REMIXDB_OK;
  v->first = x->nr_runs - take;
  v->found = false;
  remix_walk_init(&v->walk, x);
  for (uint32_t r = v->first; r < x->nr_runs; r++) {
    const enum remixdb_status s = sst_scan_create(x->runs[r], queue, &v->scans[r]);
    if (s != REMIXDB_OK) return s;
    atomic_fetch_add_explicit(&c->stats.read_bytes, x->runs[r]->data_size, memory_order_relaxed);
  }
  return view_next(v);
}

// The same of all partitions of a job, and of both their views: where both have a key the young one's is newer.
struct old_stream {
  const struct job *j;
  struct worker *w;
  uint32_t next_part;       // after the one that is read, among the job's; as many as there are: none
  struct view_stream old, young;
  bool old_given, young_given;  // whose record was given out, or hidden by it
};

static void old_close(struct old_stream *o) {
  view_close(&o->old);
  view_close(&o->young);
  o->old_given = o->young_given = false;
}

static void old_init(struct old_stream *o, const struct job *j, struct worker *w) {
  memset(o, 0, sizeof(*o));
  o->j = j;
  o->w = w;
  o->next_part = j->all || j->take ? 0 : j->nr_parts;
}

// Goes on to the job's next partition. REMIXDB_NOTFOUND: there is none.
static enum remixdb_status old_next_part(struct old_stream *o) {
  const struct job *j = o->j;
  old_close(o);
  if (o->next_part == j->nr_parts) return REMIXDB_NOTFOUND;
  const struct part *const p = j->base->parts[j->part + o->next_part++];
  const uint32_t take = j->all ? part_runs(p) : j->take, young = take < part_young_runs(p) ? take : part_young_runs(p);
  const enum remixdb_status s = view_begin(&o->young, p->young, young, j->c, o->w->queue);
  return s == REMIXDB_OK ? view_begin(&o->old, p->remix, take - young, j->c, o->w->queue) : s;
}

// REMIXDB_NOTFOUND at the end. The record holds until the next call.
static enum remixdb_status old_next(struct old_stream *o, const struct kv_rec **rec_out) {
  enum remixdb_status s = o->old_given ? view_next(&o->old) : REMIXDB_OK;
  if (s == REMIXDB_OK && o->young_given) s = view_next(&o->young);
  while (s == REMIXDB_OK && !o->old.any && !o->young.any) s = old_next_part(o);
  if (s != REMIXDB_OK) return s;
  const struct kv_rec *const a = &o->old.rec, *const b = &o->young.rec;
  const int c = !o->young.any ? -1 : !o->old.any ? 1 : kv_cmp(kref(a->key, a->klen), kref(b->key, b->klen));
  o->old_given = c <= 0;
  o->young_given = c >= 0;
  *rec_out = c < 0 ? a : b;
  return REMIXDB_OK;
}

// A file stands, but nothing will name it, because it could not be opened: it goes now, or when the store is opened next. Returns why.
static enum remixdb_status remove_new(const struct compact *c, const char *name, enum remixdb_status why) {
  struct err_saved saved;
  err_save(&saved, why);
  char path[ENV_PATH_MAX];
  enum remixdb_status s = env_path(path, c->ctx->dir, name);
  if (s == REMIXDB_OK) s = env_unlink(c->ctx->env, path);
  (void)s;
  return err_raise(&saved);
}

struct table_writer {
  struct job *j;
  struct sst_build *build;
  uint64_t number;          // of the table being built; 0: none
  bool drop_tombs;
  uint64_t expected;        // bytes of records that will come, about
  uint64_t reported, seen;  // bytes of records that came
  uint32_t since;
};

static enum remixdb_status table_end(struct table_writer *tw) {
  struct job *j = tw->j;
  struct compact *c = j->c;
  if (tw->number == 0) return REMIXDB_OK;
  const uint64_t number = tw->number;
  tw->number = 0;
  uint64_t size;
  enum remixdb_status s = sst_build_finish(tw->build, &size);
  if (s != REMIXDB_OK) return s;
  atomic_fetch_add_explicit(&c->stats.table_bytes, size, memory_order_relaxed);
  if (j->nr_tables == j->cap_tables) {
    const uint32_t cap = j->cap_tables ? j->cap_tables * 2 : 8;
    struct sst **grown = mem_realloc(j->tables, cap * sizeof(*grown));
    if (!grown) s = REMIXDB_NOMEM;
    else {
      j->tables = grown;
      j->cap_tables = cap;
    }
  }
  if (s == REMIXDB_OK) s = sst_open(c->ctx, number, &j->tables[j->nr_tables]);
  if (s == REMIXDB_OK) {
    sst_give_pieces(j->tables[j->nr_tables++], sst_build_pieces(tw->build));
    return s;
  }
  char name[32];
  sst_name(name, number);
  return remove_new(c, name, s);
}

// A table ends when it has its share, but not for a small rest: that goes in too, as far as a table may grow.
static bool table_done(const struct table_writer *tw, const struct kv_rec *next) {
  if (!sst_build_takes(tw->build, next)) return true;
  const uint64_t share = tw->j->table_bytes;
  return sst_build_bytes(tw->build) >= share && tw->expected > tw->seen + share / 4;
}

static bool told_to_yield(const struct job *j) { return j->worn && atomic_load_explicit(&j->c->yield, memory_order_relaxed); }

static bool others_failed(const struct job *j) { return atomic_load_explicit(j->failed, memory_order_relaxed); }

static enum remixdb_status end_in_vain(struct job *j) {
  j->in_vain = true;
  return err_set(REMIXDB_ABORTED, "another part of the round has failed");
}

static void report(struct table_writer *tw) {
  tw->since = 0;
  atomic_fetch_add_explicit(&tw->j->c->progress, (tw->seen - tw->reported) >> PROGRESS_SHIFT, memory_order_relaxed);
  tw->reported = tw->seen;
}

static enum remixdb_status table_add(struct table_writer *tw, const struct kv_rec *rec) {
  struct compact *c = tw->j->c;
  tw->seen += record_bytes(rec->klen, rec->vlen, rec->tomb);
  if (++tw->since >= PROGRESS_EVERY) {
    report(tw);
    if (told_to_yield(tw->j)) return err_set(REMIXDB_ABORTED, "the merge was given up for a more urgent one");
    if (unlikely(tw->number && sst_build_failed(tw->build))) return table_end(tw);
    if (unlikely(others_failed(tw->j))) return end_in_vain(tw->j);
  }
  if (rec->tomb && tw->drop_tombs) return REMIXDB_OK;
  if (tw->number && table_done(tw, rec)) {
    const enum remixdb_status s = table_end(tw);
    if (s != REMIXDB_OK) return s;
  }
  if (tw->number == 0) {
    tw->number = atomic_fetch_add_explicit(&c->next_file, 1, memory_order_relaxed);
    sst_build_start(tw->build, tw->number);
  }
  sst_build_add(tw->build, rec);
  return REMIXDB_OK;
}

static enum remixdb_status write_merged(struct table_writer *tw, struct range *range, struct old_stream *old) {
  struct kv_rec new_rec;
  const struct kv_rec *old_rec = NULL;
  bool has_new = range_valid(range), has_old;
  enum remixdb_status s = old_next(old, &old_rec);
  if (s != REMIXDB_OK && s != REMIXDB_NOTFOUND) return s;
  has_old = s == REMIXDB_OK;
  if (has_new) range_record(range, &new_rec);
  while (has_new || has_old) {
    const int c = !has_new ? 1 : !has_old ? -1 : kv_cmp(kref(new_rec.key, new_rec.klen), kref(old_rec->key, old_rec->klen));
    if ((s = table_add(tw, c <= 0 ? &new_rec : old_rec)) != REMIXDB_OK) return s;
    if (c <= 0) {
      wh_next(&range->cursor);
      if ((has_new = range_valid(range))) range_record(range, &new_rec);
    }
    if (c >= 0) {
      s = old_next(old, &old_rec);
      if (s != REMIXDB_OK && s != REMIXDB_NOTFOUND) return s;
      has_old = s == REMIXDB_OK;
    }
  }
  report(tw);
  return table_end(tw);
}

static void write_tables(struct task *t, struct worker *w) {
  struct job *j = (struct job *)t;
  struct compact *c = j->c;
  struct range *range = mem_alloc(sizeof(*range));
  struct old_stream old;
  old_init(&old, j, w);
  struct table_writer tw = {.j = j, .drop_tombs = j->all || j->append};
  tw.expected = merged_bytes(j, j->take);
  struct sst_build_opts opts = c->build;
  opts.pieces = j->pieces;
  enum remixdb_status s = range ? sst_build_create(c->ctx, &opts, w->queue, &tw.build) : REMIXDB_NOMEM;
  if (s == REMIXDB_OK && others_failed(j)) s = end_in_vain(j);
  if (s == REMIXDB_OK) {
    range_begin(range, j, w);
    s = write_merged(&tw, range, &old);
  }
  old_close(&old);
  if (s != REMIXDB_OK) {
    err_save(&j->error, j->status = s);  // before the builder's cleaning up can say something else
    atomic_store_explicit(j->failed, true, memory_order_relaxed);
  }
  sst_build_destroy(tw.build);
  mem_free(range);
}

// ---- REMIXes and the next version

static void build_remix(struct task *t, struct worker *w) {
  struct output *o = (struct output *)t;
  struct compact *c = o->job->c;
  const struct remix *old = o->keep ? old_view(o->job) : NULL;
  struct remix_build b = {.ctx = c->ctx, .queue = w->queue, .old = old, .keep = o->keep, .fresh = o->fresh, .nr_fresh = o->nr_fresh, .tags = c->tags,
                          .progress = &c->progress, .keep_image = true};
  b.moved = o->job->count == 0 && (o->job->young || part_young_runs(old_part(o->job)) == 0);
  b.number = atomic_fetch_add_explicit(&c->next_file, 1, memory_order_relaxed);
  struct sst *runs[REMIX_RUNS_MAX];
  uint32_t nr = 0;
  for (uint32_t r = 0; old && r < old->nr_runs; r++)
    if (o->keep & 1u << r) runs[nr++] = old->runs[r];
  enum remixdb_status s = REMIXDB_OK;
  // of both views together: a version that says more could not be opened
  const uint32_t all = nr + o->nr_fresh + (o->job->young ? part_old_runs(old_part(o->job)) : 0);
  if (all > REMIX_RUNS_MAX) s = err_set(REMIXDB_INVALID, "a partition cannot have %u tables", all);
  for (uint32_t i = 0; i < o->nr_fresh && s == REMIXDB_OK; i++) runs[nr++] = o->fresh[i];
  if (s == REMIXDB_OK) s = remix_build(&b);
  // where no run of the view is gone, what scans have paid for is as it was
  const uint64_t jumps = old && nr == old->nr_runs + o->nr_fresh ? atomic_load_explicit(&old->jumps, memory_order_relaxed) : 0;
  if (s == REMIXDB_OK) {
    atomic_fetch_add_explicit(&c->stats.remix_bytes, b.file_size, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->stats.remix_data_pages, b.data_pages_read, memory_order_relaxed);
    s = remix_open_built(c->ctx, b.number, runs, nr, b.image, b.image_size, b.file_size, &o->remix);
    mem_free(b.image);
    if (s == REMIXDB_OK) atomic_store_explicit(&o->remix->jumps, jumps, memory_order_relaxed);
    if (s == REMIXDB_OK && o->job->young) remix_make_young(o->remix);
    if (s != REMIXDB_OK) {
      char name[32];
      remix_name(name, b.number);
      s = remove_new(c, name, s);
    }
  }
  if (s != REMIXDB_OK) err_save(&o->error, o->status = s);
}

static bool writes_tables(const struct job *j) { return j->kind >= COMPACT_MINOR; }

static enum remixdb_status write_all(struct round *r) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < r->nr_jobs; i++) {
    struct job *j = &r->jobs[i];
    if (!writes_tables(j)) continue;
    j->task.run = write_tables;
    j->task.size = j->cost;
    r->tasks[nr++] = &j->task;
  }
  workers_run(r->c->workers, r->self, r->tasks, nr);
  for (uint32_t i = 0; i < r->nr_jobs; i++)
    if (r->jobs[i].status != REMIXDB_OK && !r->jobs[i].in_vain) return err_raise(&r->jobs[i].error);
  return REMIXDB_OK;
}

// Which partitions come of a job's tables.
static void plan_outputs(struct round *r, struct job *j) {
  const uint32_t young = part_young_runs(old_part(j));
  const uint32_t kept = j->append || j->all ? 0 : j->young ? young - j->take : part_old_runs(old_part(j)) - (j->take - young);
  const bool one = j->kind == COMPACT_MINOR || kept || j->young;
  for (uint32_t at = 0, group; at < j->nr_tables; at += group) {
    const uint32_t left = j->nr_tables - at;
    group = one || left < COMPACT_PART_TABLES ? left : COMPACT_PART_TABLES;
    // a small rest makes no partition of its own
    if (left == group + 1 && j->tables[j->nr_tables - 1]->nr_pages < table_pages(j->c) / 4) group = left;
    struct output *o = &r->outputs[r->nr_outputs++];
    *o = (struct output){.job = j, .fresh = j->tables + at, .nr_fresh = group};
    o->keep = kept ? (kept == 32 ? UINT32_MAX : (1u << kept) - 1) : 0;
    o->task.run = build_remix;
    for (uint32_t i = 0; i < o->nr_fresh; i++) o->task.size += o->fresh[i]->nr_records;
    for (uint32_t i = 0; i < kept; i++) o->task.size += old_view(j)->runs[i]->nr_records;
  }
}

static enum remixdb_status build_remixes(struct round *r) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < r->nr_jobs; i++) nr += r->jobs[i].nr_tables;
  if (nr == 0) return REMIXDB_OK;
  struct task **tasks = mem_alloc(nr * sizeof(*tasks));
  r->outputs = mem_calloc(nr, sizeof(*r->outputs));
  if (!tasks || !r->outputs) {
    mem_free(tasks);
    return REMIXDB_NOMEM;
  }
  for (uint32_t i = 0; i < r->nr_jobs; i++)
    if (r->jobs[i].nr_tables) plan_outputs(r, &r->jobs[i]);
  for (uint32_t i = 0; i < r->nr_outputs; i++) tasks[i] = &r->outputs[i].task;
  workers_run(r->c->workers, r->self, tasks, r->nr_outputs);
  mem_free(tasks);
  for (uint32_t i = 0; i < r->nr_outputs; i++)
    if (r->outputs[i].status != REMIXDB_OK) return err_raise(&r->outputs[i].error);
  return REMIXDB_OK;
}

static enum remixdb_status hand_back(struct round *r) {
  struct range *range = mem_alloc(sizeof(*range));
  if (!range) return REMIXDB_NOMEM;
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < r->nr_jobs && s == REMIXDB_OK; i++) {
    struct job *j = &r->jobs[i];
    if (j->kind != COMPACT_ABORT) continue;
    for (range_begin(range, j, r->self); range_valid(range) && s == REMIXDB_OK; wh_next(&range->cursor)) {
      struct kv_rec rec;
      range_record(range, &rec);
      s = r->c->hand_back(r->c->arg, r->self, &rec);
    }
  }
  mem_free(range);
  return s;
}

// The shortest key that is greater than all keys of the table before and not greater than any of the table after.
static struct kref separator(const struct sst *before, const struct sst *after) {
  const uint32_t lcp = kv_lcp_from(before->max, after->min, 0);
  return kref(after->min.ptr, lcp < after->min.len ? lcp + 1 : after->min.len);
}

// The order of what was merged is what the old files say it is. Within a table it was looked at when that was written; here it is between the tables of a job, and at
// the ends of its range: a version with a table outside of its partition could not be opened again.
static enum remixdb_status check_range(const struct job *j) {
  const struct version *v = j->base;
  const uint32_t next = j->part + j->nr_parts;
  const struct kref low = part_anchor(old_part(j)), end = next < v->nr_parts ? part_anchor(v->parts[next]) : kref(NULL, 0);
  const struct sst *before = j->append ? last_table(old_part(j)) : NULL;
  for (uint32_t i = 0; i < j->nr_tables; before = j->tables[i++]) {
    const struct sst *const t = j->tables[i];
    bool in = kv_cmp(t->min, low) >= 0 && (!before || kv_cmp(before->max, t->min) < 0) && (!end.ptr || kv_cmp(t->max, end) < 0);
    if (j->upto) in = in && kv_cmp(t->max, last_table(old_part(j))->max) <= 0;
    if (!in) return err_corrupt(t->path, 0, "what it was merged from is not in order, or not of its partition");
  }
  return REMIXDB_OK;
}

// Partitions that hold nothing go, and the ones before them take over their range; but not the first, whose anchor is empty.
static enum remixdb_status next_version(struct round *r, struct version **out) {
  struct part **parts = mem_calloc(r->nr_jobs + r->nr_outputs, sizeof(*parts));
  if (!parts) return REMIXDB_NOMEM;
  uint32_t nr = 0, at = 0;
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < r->nr_jobs && s == REMIXDB_OK; i++) {
    const struct job *j = &r->jobs[i];
    struct part *old = r->base->parts[j->part];
    if ((s = check_range(j)) != REMIXDB_OK) break;
    if (!writes_tables(j)) {
      if (!old->remix && nr) continue;
      part_ref(old);
      parts[nr++] = old;
    } else if (j->nr_tables == 0 && nr == 0) {
      s = part_create(part_anchor(old), NULL, NULL, &parts[nr]);
      nr += s == REMIXDB_OK;
    }
    const struct sst *before = j->append ? last_table(old) : NULL;
    for (; at < r->nr_outputs && r->outputs[at].job == j && s == REMIXDB_OK; at++) {
      struct output *o = &r->outputs[at];
      const struct kref anchor = before ? separator(before, o->fresh[0]) : part_anchor(old);
      remix_ref(o->remix);
      if (j->young) remix_ref(old->remix);
      s = j->young ? part_create(anchor, old->remix, o->remix, &parts[nr]) : part_create(anchor, o->remix, NULL, &parts[nr]);
      nr += s == REMIXDB_OK;
      before = o->fresh[o->nr_fresh - 1];
    }
  }
  if (s == REMIXDB_OK) s = version_create(parts, nr, out);
  else
    for (uint32_t i = 0; i < nr; i++) part_unref(parts[i]);
  mem_free(parts);
  return s;
}

static void estimate_work(struct round *r) {
  uint64_t work = 0;
  for (uint32_t i = 0; i < r->nr_jobs; i++) {
    const struct job *j = &r->jobs[i];
    if (!writes_tables(j)) continue;
    work += merged_bytes(j, j->take) >> PROGRESS_SHIFT;
    work += j->count;
    for (uint32_t k = 0; k < j->nr_parts && !j->append; k++) {
      const struct part *const p = j->base->parts[j->part + k];
      if (p->young) work += p->young->nr_entries;
      if (p->remix && !j->young) work += p->remix->nr_entries;
    }
  }
  atomic_store_explicit(&r->c->work, work ? work : 1, memory_order_relaxed);
}

// A few slices for each worker, as they are not equally large.
static enum remixdb_status measure_all(struct round *r) {
  const uint32_t nr_parts = r->base->nr_parts, most = 4 * (workers_count(r->c->workers) + 1), nr = nr_parts < most ? nr_parts : most;
  struct slice *slices = mem_calloc(nr, sizeof(*slices));
  if (!slices) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < nr; i++) {
    slices[i] = (struct slice){.task = {.run = measure, .size = 1}, .r = r, .from = (uint32_t)((uint64_t)nr_parts * i / nr),
                               .to = (uint32_t)((uint64_t)nr_parts * (i + 1) / nr)};
    r->tasks[i] = &slices[i].task;
  }
  workers_run(r->c->workers, r->self, r->tasks, nr);
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < nr; i++)
    if (slices[i].status != REMIXDB_OK) s = slices[i].status;
  mem_free(slices);
  return s == REMIXDB_OK ? s : err_set(s, "no memory to measure what is to be compacted");
}

static void whole_came(struct compact_whole *whole, const struct version *base, uint32_t next) {
  whole->end = next == base->nr_parts;
  if (whole->end) return;
  const struct kref key = part_anchor(base->parts[next]);
  memcpy(whole->to, key.ptr, key.len);
  whole->to_len = key.len;
}

static enum remixdb_status round_make(struct round *r, bool allow_abort, struct version **out) {
  enum remixdb_status s = REMIXDB_OK;
  if (allow_abort && (s = choose_aborts(r)) != REMIXDB_OK) return s;
  if (r->frozen) estimate_work(r);
  if ((s = write_all(r)) != REMIXDB_OK) return s;
  if ((s = build_remixes(r)) != REMIXDB_OK) return s;
  if ((s = hand_back(r)) != REMIXDB_OK) return s;
  return next_version(r, out);
}

static void round_count(struct round *r) {
  struct compact_stats *const stats = &r->c->stats;
  for (uint32_t i = 0; i < r->nr_jobs; i++) {
    const struct job *j = &r->jobs[i];
    // what is put behind a partition is all that is done to it, when there is no more; and nobody looked at those that a round for scans leaves as they are
    const bool counts = r->frozen ? !(j->upto && j->kind == COMPACT_KEEP) : j->worn;
    if (counts) atomic_fetch_add_explicit(&stats->kinds[j->kind], 1, memory_order_relaxed);
    if (j->worn) atomic_fetch_add_explicit(&stats->worn, 1, memory_order_relaxed);
    if (j->young) atomic_fetch_add_explicit(&stats->young, 1, memory_order_relaxed);
    if (j->kind == COMPACT_ABORT) atomic_fetch_add_explicit(&stats->handed_back, j->bytes, memory_order_relaxed);
  }
  atomic_fetch_add_explicit(&stats->rounds, 1, memory_order_relaxed);
}

static enum remixdb_status round_begin(struct round *r) {
  const uint32_t nr_parts = r->base->nr_parts;
  r->pieces = !fits_cache(r->c, r->base);
  r->fresh = mem_calloc(nr_parts, sizeof(*r->fresh));
  r->jobs = mem_calloc(2 * (size_t)nr_parts, sizeof(*r->jobs));
  r->tasks = mem_calloc(2 * (size_t)nr_parts, sizeof(*r->tasks));
  return r->fresh && r->jobs && r->tasks ? REMIXDB_OK : REMIXDB_NOMEM;
}

// Of a round that has failed no file is left. Returns its status.
static enum remixdb_status round_end(struct round *r, enum remixdb_status s) {
  struct err_saved why;
  if (s != REMIXDB_OK) {
    err_save(&why, s);
    if (s != REMIXDB_ABORTED) atomic_fetch_add_explicit(&r->c->stats.failed, 1, memory_order_relaxed);
  }
  for (uint32_t i = 0; i < r->nr_outputs; i++) {
    if (!r->outputs[i].remix) continue;
    if (s != REMIXDB_OK) remix_retire(r->outputs[i].remix);
    remix_unref(r->outputs[i].remix);
  }
  for (uint32_t i = 0; i < r->nr_jobs; i++) {
    struct job *j = &r->jobs[i];
    for (uint32_t t = 0; t < j->nr_tables; t++) {
      if (s != REMIXDB_OK) sst_retire(j->tables[t]);
      sst_unref(j->tables[t]);
    }
    mem_free(j->tables);
  }
  mem_free(r->outputs);
  mem_free(r->tasks);
  mem_free(r->jobs);
  mem_free(r->fresh);
  return s == REMIXDB_OK ? s : err_raise(&why);
}

enum remixdb_status compact_round(struct compact *c, struct worker *self, struct version *base, const struct wh *frozen, bool allow_abort,
                                  struct compact_whole *whole, struct version **out) {
  struct round r = {.c = c, .self = self, .base = base, .frozen = frozen};
  uint32_t next = 0;
  atomic_store_explicit(&c->progress, 0, memory_order_relaxed);
  enum remixdb_status s = round_begin(&r);
  if (s == REMIXDB_OK) s = measure_all(&r);
  if (s == REMIXDB_OK) {
    plan(&r, whole, &next);
    s = round_make(&r, allow_abort, out);
  }
  if (s == REMIXDB_OK) {
    if (whole) whole_came(whole, base, next);
    round_count(&r);
  }
  return round_end(&r, s);
}

// ---- for scans

bool compact_worn(struct remix *x) {
  uint64_t due = atomic_load_explicit(&x->jumps_due, memory_order_relaxed);
  if (due == 0) {
    const bool young = remix_is_young(x);  // all of its runs are merged then
    uint64_t bytes = 0;
    due = UINT64_MAX;
    for (uint32_t r = 0; young && r < x->nr_runs; r++) bytes += run_bytes(x->runs[r]);
    if (young || worn_depth(x, &bytes)) due = bytes / BLOCK_PAGE;
    if (due < COMPACT_JUMPS_MIN) due = COMPACT_JUMPS_MIN;
    atomic_store_explicit(&x->jumps_due, due, memory_order_relaxed);
  }
  return atomic_load_explicit(&x->jumps, memory_order_relaxed) >= due;
}

enum remixdb_status compact_worn_round(struct compact *c, struct worker *self, struct version *base, struct version **out) {
  struct round r = {.c = c, .self = self, .base = base};
  *out = NULL;
  enum remixdb_status s = round_begin(&r);
  bool any = false;
  if (s == REMIXDB_OK) {
    plan_worn(&r);
    for (uint32_t i = 0; i < r.nr_jobs; i++) any = any || r.jobs[i].worn;
    if (any) s = round_make(&r, false, out);
  }
  if (s == REMIXDB_OK && any) round_count(&r);
  return round_end(&r, s);
}

// ---- retiring

// Of the partitions [from, to).
static bool parts_have(const struct version *v, uint32_t from, uint32_t to, const void *object) {
  for (uint32_t i = from; i < to; i++) {
    const struct part *const p = v->parts[i];
    if (object == p->remix || object == p->young) return true;
    for (uint32_t r = 0; r < part_runs(p); r++)
      if (object == part_run(p, r)) return true;
  }
  return false;
}

void compact_retire(const struct version *base, const struct version *next) {
  for (uint32_t i = 0; i < base->nr_parts; i++) {
    const struct part *const p = base->parts[i];
    // whatever of it is there yet is in a partition that shares keys with it (V2)
    const uint32_t from = version_find(next, part_anchor(p));
    uint32_t to = from + 1;
    while (to < next->nr_parts && (i + 1 == base->nr_parts || kv_cmp(part_anchor(next->parts[to]), part_anchor(base->parts[i + 1])) < 0)) to++;
    if (p->remix && !parts_have(next, from, to, p->remix)) remix_retire(p->remix);
    if (p->young && !parts_have(next, from, to, p->young)) remix_retire(p->young);
    for (uint32_t r = 0; r < part_runs(p); r++)
      if (!parts_have(next, from, to, part_run(p, r))) sst_retire(part_run(p, r));
  }
}
