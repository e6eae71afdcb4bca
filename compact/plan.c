// SPDX-License-Identifier: Apache-2.0
#include "compact/plan.h"

#include <assert.h>
#include <stdlib.h>

#include "compact/value_merge.h"

#define GARBAGE_SLACK 40u  // percent of a table
#define ABORT_COST 3u      // a partition may be aborted if it writes more bytes than this per byte of new data
#define READ_COST 4u       // to read so many bytes that are not written again takes as long as to write one
#define ABORT_ENTRY 96u    // bytes that a record takes in a memtable more than in a block
#define MERGE_COST 8u  // bytes that a merge of some runs may write per byte of new data and per table that it removes.
#define MERGE_LEAST (64u << 10)  // Less new data counts as so many bytes,
#define MERGE_PART 128u          // or as this part of a table, where that is less

static uint32_t tables_for(const struct compact *c, uint64_t bytes) {
  const uint64_t table = table_bytes(c);
  return (uint32_t)((bytes + table - 1) / table);
}

static const struct sst *nth_newest(const struct part *p, uint32_t n) { return part_run(p, part_runs(p) - 1 - n); }

// The bytes of the newest runs `from` to `to` - 1.
static uint64_t runs_bytes(const struct part *p, uint32_t from, uint32_t to) {
  uint64_t sum = 0;
  for (uint32_t n = from; n < to; n++) sum += run_bytes(nth_newest(p, n));
  return sum;
}

static uint64_t all_bytes(const struct part *p) {
  return part_is_away(p) ? part_table_bytes(p) : runs_bytes(p, 0, part_runs(p));
}

static uint64_t expired_bytes(const struct part *p, uint64_t ms) {
  uint64_t sum = 0;
  for (uint32_t r = 0; ms && r < part_runs(p); r++) sum += spread_expired(&part_run(p, r)->expiry, ms);
  return sum;
}

static uint64_t expired_ms(const struct compact *c) {
  return atomic_load_explicit(&c->expired_ms, memory_order_relaxed);
}

bool compact_mostly_expired(const struct part *p, uint64_t ms, uint64_t now) {
  if (part_is_left(p, now)) return false;
  if (part_is_away(p)) return part_expires(p);
  const uint64_t expired = expired_bytes(p, ms);
  return expired > 0 && expired >= all_bytes(p) / COMPACT_EXPIRED_SHARE;
}

// Estimates how many of these bytes of runs are neither old versions nor tombstones, and have not expired.
static uint64_t live_bytes(const struct compact *c, const struct part *p, uint64_t bytes) {
  uint64_t entries = 0, keys = 0;
  const struct remix *const old = part_remix(p), *const young = part_young(p);
  if (old) entries = old->nr_entries, keys = old->nr_keys;
  if (young) entries += young->nr_entries, keys += young->nr_keys;
  const uint64_t hidden = likely(!part_is_away(p)) ? part_hides(p) : 0;  // those in a view that takes no part
  keys -= hidden < keys ? hidden : keys;
  if (entries == 0) return 0;
  const uint64_t live = (uint64_t)((double)bytes * (double)keys / (double)entries),
                 expired = expired_bytes(p, expired_ms(c));
  if (likely(expired == 0)) return live;
  const double all = (double)all_bytes(p), share = (double)expired < all ? (double)expired / all : 1;
  return (uint64_t)((double)live * (1 - share));
}

static uint64_t all_live_bytes(const struct compact *c, const struct part *p) { return live_bytes(c, p, all_bytes(p)); }

uint64_t plan_part_bytes(const struct part *p) { return all_bytes(p); }

uint64_t plan_live_bytes(const struct compact *c, const struct part *p) {
  if (likely(!part_is_away(p))) return all_live_bytes(c, p);
  const struct part_away *const a = p->away;
  return a->entries ? (uint64_t)((double)all_bytes(p) * (double)a->keys / (double)a->entries) : 0;
}

bool plan_fits_cache(const struct compact *c, const struct version *v) {
  uint64_t sum = 0;
  for (const struct version *tree = v; tree; tree = tree->spaces)
    for (uint32_t i = 0; i < tree->nr_parts; i++) sum += all_bytes(tree->parts[i]);
  return c->ctx->cache && sum <= cache_size(c->ctx->cache);
}

// A merge of all runs writes no old versions and tombstones, and a merge of some runs about half of them.
uint64_t plan_merged_bytes(const struct job *j, uint32_t take) {
  const struct part *const p = old_part(j);
  uint64_t sum = j->bytes;
  if (j->nr_parts > 1) {
    for (uint32_t i = 0; i < j->nr_parts; i++) sum += all_live_bytes(j->c, j->base->parts[j->part + i]);
  } else if (take) {
    const uint64_t bytes = runs_bytes(p, j->newer, j->newer + take), live = live_bytes(j->c, p, bytes);
    sum += take == part_runs(p) && !part_is_away(p) ? live : (bytes + live) / 2;
  }
  return sum;
}

// The slack is for blocks that do not fill up.
uint32_t plan_tables(const struct compact *c, uint64_t bytes) { return tables_for(c, bytes + bytes / 16); }

// Returns the bytes for each table, so that a job writes equal tables rather than full tables and one small table. A
// single table may become full, because a smaller share could be less than a block.
static uint64_t share_for(const struct compact *c, uint64_t bytes) {
  const uint32_t nr = plan_tables(c, bytes);
  return nr <= 1 ? table_bytes(c) : (bytes + bytes / 16) / nr;
}

static uint32_t tables_least(const struct compact *c, uint64_t bytes) {
  const uint64_t table = (uint64_t)large_pages(c) * BLOCK_PAGE;
  return (uint32_t)((bytes + bytes / 16 + table - 1) / table);
}

// The runs of the job's partition that its tables do not replace.
static uint32_t runs_kept(const struct job *j) {
  const struct part *const p = old_part(j);
  return part_older_tables(p) + part_young_runs(p) - j->take;
}

void plan_sizes(struct job *j, uint64_t bytes, uint32_t beside, uint32_t most) {
  const uint32_t kept = runs_kept(j) + beside;
  j->most_tables = kept < most ? most - kept : 1;
  j->table_bytes = share_for(j->c, bytes);
  if (unlikely(plan_tables(j->c, bytes) > j->most_tables)) j->table_bytes = (bytes + bytes / 16) / j->most_tables + 1;
}

// Tells whether a partition has so many old versions and tombstones that they alone justify a merge. `more` bytes of
// new data will be added; about half of them will hide a record.
static bool mostly_garbage(const struct compact *c, const struct part *p, uint64_t more) {
  const uint64_t total = all_bytes(p);
  return total + more / 2 > 2 * live_bytes(c, p, total) + table_bytes(c) * GARBAGE_SLACK / 100;
}

uint32_t compact_run_limit(const struct compact *c, const struct part *p, uint64_t bytes) {
  const uint64_t small = table_bytes(c) * 2 / 5;
  bool large = bytes >= small;
  for (uint32_t r = 0; r < part_runs(p) && large; r++) large = run_bytes(part_run(p, r)) >= small;
  if (large) return COMPACT_SPLIT_RUNS + p->more_runs;
  const uint32_t most = COMPACT_RUNS + COMPACT_RUNS_SPREAD / 2,
                 limit = COMPACT_RUNS - COMPACT_RUNS_SPREAD / 2 + p->more_runs +
                         (uint32_t)(part_run(p, 0)->number % COMPACT_RUNS_SPREAD);
  return limit < most ? limit : most;
}

// Returns how many of the newest runs to merge with the new data, because there are too many runs. The merge takes a
// run if it is not much larger than all newer runs together. So every byte moves into a run about twice as large, and
// moves a logarithmic number of times (the shape of the best known merge order for runs of one size: Mathieu, Staelin,
// Young, Yousefi, "Bigtable Merge Compaction", 2014). The merge takes at least as many runs as it must to make room. It
// takes more if a merge of a few runs would write much and remove few runs. Few new records in a round are no reason to
// take all: tables and indexes take some pages each, whatever they hold. If tables are full, only a split helps.
static uint32_t merge_depth(const struct job *j, uint32_t fresh) {
  const struct compact *c = j->c;
  const struct part *const p = old_part(j);
  const uint64_t part = table_bytes(c) / MERGE_PART, least = part < MERGE_LEAST ? part : MERGE_LEAST;
  const uint64_t most = MERGE_COST * (j->bytes > least ? j->bytes : least);  // for each table that goes
  const uint32_t runs = part_runs(p);
  for (uint32_t k = 1; k < runs; k++) {
    const uint64_t written = plan_merged_bytes(j, k);
    const uint32_t in = fresh + k, out = tables_for(c, written);
    if (in <= out || runs + fresh - (in - out) > compact_run_limit(c, p, j->bytes) || written > most * (in - out))
      continue;
    if (run_bytes(nth_newest(p, k)) > written - written / 4) return k;
  }
  return runs;
}

void plan_all(struct job *j) {
  for (uint32_t i = 0; i < j->nr_parts && !j->append; i++) assert(!part_is_away(j->base->parts[j->part + i]));
  j->take = old_runs(j);
  j->all = true;
  j->young = false;
  j->cost = plan_merged_bytes(j, j->take);
  j->kind = tables_for(j->c, j->cost) > COMPACT_PART_TABLES ? COMPACT_SPLIT : COMPACT_MAJOR;
  j->table_bytes = share_for(j->c, j->cost);
  j->most_tables = 0;
}

// Tells whether run n's key range overlaps none of runs first .. n - 1. Runs are counted from the view's newest.
static bool lies_apart(const struct remix *x, uint32_t first, uint32_t n) {
  const struct sst *const t = x->runs[x->nr_runs - 1 - n];
  for (uint32_t i = first; i < n; i++) {
    const struct sst *const other = x->runs[x->nr_runs - 1 - i];
    if (kv_cmp(t->max, other->min) >= 0 && kv_cmp(other->max, t->min) >= 0) return false;
  }
  return true;
}

// Returns how many of a view's newest runs a scan merge takes: the number that removes the most levels for the bytes. A
// level is a group of runs that do not overlap, such as the tables of a split. A scan reads a level like one run.
// Returns 0 if there is only one level.
static uint32_t scan_merge_depth(const struct remix *x, uint64_t *bytes_out) {
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

// Decides to merge the newest `take` runs with the new data. If some runs stay, the partition has at most `most` by the
// plan, with `beside` others.
static void decide_major(struct job *j, uint32_t take, uint32_t beside, uint32_t most) {
  assert(take > 0 && take <= old_runs(j));
  j->take = take;
  if (take == old_runs(j) && !part_is_away(old_part(j))) {
    plan_all(j);
    return;
  }
  j->kind = COMPACT_MAJOR;
  j->cost = plan_merged_bytes(j, take) + old_view(j)->file_size;
  plan_sizes(j, plan_merged_bytes(j, take), beside, most);
}

bool plan_fits_young(const struct compact *c, const struct part *p, uint64_t count) {
  const struct remix *const young = part_young(p);
  const uint64_t there = young ? young->nr_entries : 0, old = part_remix(p)->nr_entries;
  if (!young && (c->young_from == 0 || count * c->young_from > old)) return false;
  return (there + count) * COMPACT_YOUNG_SHARE <= old;
}

uint64_t plan_young_bytes(const struct part *p) { return runs_bytes(p, 0, part_young_runs(p)); }

bool plan_young_merge(struct job *j) {
  const uint32_t young = part_young_runs(old_part(j));
  if (young == 0) return false;
  decide_major(j, young, 0, part_runs(old_part(j)));
  return true;
}

static void decide_minor(struct job *j, uint32_t most) {
  j->kind = COMPACT_MINOR;
  j->cost = j->bytes + (old_view(j) ? old_view(j)->file_size : 0);
  plan_sizes(j, j->bytes, 0, most);
}

// tables: how many the merge writes.
static bool young_again(struct job *j, uint32_t tables, uint32_t beside, uint32_t most) {
  const struct part *const p = old_part(j);
  if (part_young_runs(p) == 0 || part_older_tables(p) + tables + beside > most) return false;
  j->young = true;
  decide_major(j, part_young_runs(p), beside, most);
  return true;
}

bool plan_young_again(struct job *j, uint32_t beside, uint32_t most) {
  return young_again(j, plan_tables(j->c, plan_merged_bytes(j, part_young_runs(old_part(j)))), beside, most);
}

bool plan_unread(struct job *j, uint32_t fresh, uint32_t beside) {
  const struct part *const p = old_part(j);
  const uint32_t young = part_young_runs(p), old = part_older_tables(p), most = COMPACT_UNREAD_RUNS - 1;
  const bool away = part_is_away(p);
  if (part_is_empty(p) || (away && !part_takes_tables(p))) return false;
  // the job's own tables may be larger ones
  const uint32_t least = beside || young ? fresh : tables_least(j->c, j->bytes);
  if (old + young + least <= most) {
    j->young = j->c->young_from || young || away;
    decide_minor(j, most);
    return true;
  }
  return young_again(j, tables_least(j->c, plan_merged_bytes(j, young)), beside, most);
}

// Tells whether a merge of the newest `take` runs would leave more runs than a partition is to have, because its tables
// are much smaller than these runs: those of another opening may be (B1).
static bool too_many(const struct job *j, uint32_t take) {
  return old_runs(j) - take + plan_tables(j->c, plan_merged_bytes(j, take)) > COMPACT_CUT_RUNS;
}

// Tells whether a merge of the whole partition can wait. On a full disk it must: it needs more room than the round has,
// and a later round can still cut the partition (C1), or make room by slices (C8).
static bool whole_waits(const struct job *j, uint32_t fresh) {
  return unlikely(j->scarce) && part_runs(old_part(j)) + fresh <= COMPACT_CUT_RUNS;
}

static void decide(struct job *j) {
  const struct compact *c = j->c;
  const struct part *const p = old_part(j);
  const uint32_t fresh = tables_for(c, j->bytes);
  if (j->count == 0) {
    j->kind = COMPACT_KEEP;
    return;
  }
  if (part_is_left(p, j->now) && plan_unread(j, fresh, 0)) return;
  if (unlikely(part_is_away(p))) {
    j->kind = COMPACT_KEEP;
    j->full = true;
    return;
  }
  // in an empty partition tombstones hide no record
  const bool drops = mostly_garbage(c, p, j->bytes) || (j->names && part_dropped(p, j->names) == PART_DUE);
  if (!part_remix(p) || (drops && !whole_waits(j, fresh))) {
    plan_all(j);
    return;
  }
  uint32_t take = part_runs(p) + fresh > compact_run_limit(c, p, j->bytes) ? merge_depth(j, fresh) : 0;
  if (take == part_runs(p) && whole_waits(j, fresh)) take = 0;
  j->young = take <= part_young_runs(p) && plan_fits_young(c, p, j->count);
  // a young view that does not stay becomes a table of the older view
  if (!j->young && take < part_young_runs(p)) take = part_young_runs(p);
  if (take && too_many(j, take) && !j->scarce) take = part_runs(p);
  if (take) {
    decide_major(j, take, 0, COMPACT_CUT_RUNS);
    return;
  }
  decide_minor(j, COMPACT_CUT_RUNS);
}

// Tells whether a separate job makes new partitions of the new data after all of the partition's keys. That is so if
// the partition is full, by its size or its number of runs, and the new data is not small. (Small new data would make
// small partitions.)
static bool appends(const struct round *r, const struct round_tree *tree, uint32_t part) {
  const struct compact *c = r->c;
  const struct part *const p = tree->base->parts[part];
  const struct fresh *f = &tree->fresh[part];
  if (!part_remix(p) || f->behind_bytes == 0 || f->behind_bytes < c->memtable_size / COMPACT_ABORT_SHARE) return false;
  const uint32_t more = tables_for(c, f->bytes) + tables_for(c, f->behind_bytes);
  const bool full = all_bytes(p) >= table_bytes(c) || part_runs(p) + more > COMPACT_APPEND_RUNS;
  return full && !mostly_garbage(c, p, f->bytes);
}

static struct job *add_job(struct round *r, const struct round_tree *tree, uint32_t part, uint32_t nr_parts) {
  assert(nr_parts > 0 && part + nr_parts <= tree->base->nr_parts && r->nr_jobs < r->cap_jobs);
  struct job *j = &r->jobs[r->nr_jobs++];
  *j = (struct job){.c = r->c,
                    .tree = (uint32_t)(tree - r->trees),
                    .base = tree->base,
                    .names = tree->names,
                    .moves = tree->moves,
                    .store = tree->store,
                    .frozen = tree->frozen,
                    .part = part,
                    .nr_parts = nr_parts,
                    .pieces = r->pieces,
                    .now = r->now,
                    .scarce = r->scarce,
                    .failed = &r->failed};
  for (uint32_t i = part; i < part + nr_parts; i++) {
    j->bytes += tree->fresh[i].bytes + tree->fresh[i].behind_bytes;
    j->apart += tree->fresh[i].apart + tree->fresh[i].behind_apart;
    j->count += tree->fresh[i].count + tree->fresh[i].behind_count;
    j->hides += tree->fresh[i].hides;
    if (tree->fresh[i].seqs.max) seqs_add(&j->seqs, tree->fresh[i].seqs.min, tree->fresh[i].seqs.max);
  }
  return j;
}

static void plan_part(struct round *r, const struct round_tree *tree, uint32_t part) {
  const struct fresh *f = &tree->fresh[part];
  struct job *j = add_job(r, tree, part, 1);
  j->may_abort = true;
  if (!appends(r, tree, part)) {
    decide(j);
    return;
  }
  j->upto = true;
  j->bytes = f->bytes;
  j->apart = f->apart;
  j->count = f->count;
  decide(j);
  j = add_job(r, tree, part, 1);
  j->bytes = f->behind_bytes;
  j->apart = f->behind_apart;
  j->count = f->behind_count;
  j->append = true;
  j->kind = COMPACT_SPLIT;
  j->cost = j->bytes;
  j->table_bytes = share_for(r->c, j->bytes);
}

// A part of a full compaction: one partition, or several neighbours that need fewer tables together.
struct whole_part {
  uint32_t part, next;  // partitions part to next - 1
  uint64_t bytes;       // to write
  uint32_t tables;      // that it has
  bool drops;           // a merge brings new data, or drops records
};

// Finds the part that begins with partition `part`. It ends before partition `end`. If it is more than one partition,
// it has at most `most` bytes to write. fresh: the new data of each partition of the tree; NULL: there is none.
static struct whole_part whole_part_of(const struct compact *c, const struct version *tree, const struct names *names,
                                       const struct fresh *fresh, uint32_t part, uint32_t end, uint64_t most) {
  struct whole_part w = {.part = part, .next = part};
  do {
    const struct part *const p = tree->parts[w.next];
    const struct fresh f = fresh ? fresh[w.next] : (struct fresh){0};
    const uint64_t more = all_live_bytes(c, p) + f.bytes + f.behind_bytes;
    const uint32_t apart = tables_for(c, w.bytes) + tables_for(c, more), together = plan_tables(c, w.bytes + more);
    if (w.next > part && (part_is_unread(p) || part_is_unread(tree->parts[part])))
      break;  // alone, as all that are away
    if (w.next > part && more && (together >= apart || together > COMPACT_PART_TABLES || w.bytes + more > most)) break;
    w.bytes += more;
    w.tables += part_runs(p);
    w.drops = w.drops || (names && part_has_dropped(p, names));
    const struct remix *const old = part_remix(p);
    w.drops = w.drops || f.count + f.behind_count || part_young(p) || expired_bytes(p, expired_ms(c)) > 0 ||
              (old && old->nr_keys != old->nr_entries);
  } while (++w.next < end);
  return w;
}

static bool makes_fewer(const struct compact *c, const struct whole_part *w) {
  return w->tables > tables_for(c, w->bytes);
}

// Plans a part of a full compaction, from partition `part` on. The job merges it if that makes fewer tables or drops
// records; fits_only: if it only makes fewer tables. When the call has found one partition that cannot be read, it
// leaves all that are known as such. Returns the number of the partition after the part.
static uint32_t plan_whole(struct round *r, const struct round_tree *tree, uint32_t part, uint32_t end, uint64_t most) {
  const struct compact *c = r->c;
  const struct part *const p = tree->base->parts[part];
  const bool away = part_is_away(p), leave = away || (r->whole->unread.status != REMIXDB_OK && part_is_unread(p));
  if (away && r->whole->unread.status == REMIXDB_OK && !part_opens(p)) err_save(&r->whole->unread, part_why(p));
  const struct whole_part w = whole_part_of(c, tree->base, tree->names, tree->fresh, part, end, most);
  if (!leave && (w.drops ? !r->whole->fits_only : makes_fewer(c, &w))) {
    struct job *j = add_job(r, tree, part, w.next - part);
    plan_all(j);
    j->whole = true;
    j->table_bytes = table_bytes(c);  // full tables: the fewest, even if the estimate is wrong
  } else {
    for (uint32_t i = part; i < w.next; i++) decide(add_job(r, tree, i, 1));
  }
  return w.next;
}

bool compact_whole_fits(const struct compact *c, const struct version *tree, uint32_t from, uint32_t stop) {
  if (version_tree_away(tree)) return false;
  for (uint32_t at = from; at < stop;) {
    const struct whole_part w = whole_part_of(c, tree, NULL, NULL, at, stop, UINT64_MAX);
    if (!w.drops && makes_fewer(c, &w) && !part_is_unread(tree->parts[at])) return true;
    at = w.next;
  }
  return false;
}

uint32_t compact_whole_stop(const struct compact_whole *whole, const struct version *tree) {
  if (!tree) return 0;
  if (!whole->within || whole->until_len == UINT32_MAX) return tree->nr_parts;
  const struct kref until = kref(whole->until, whole->until_len);
  const uint32_t part = version_find(tree, until);
  return kv_eq(part_anchor(tree->parts[part]), until) ? part : part + 1;
}

void plan_jobs(struct round *r, uint32_t which, struct compact_whole *whole, uint32_t *next_out) {
  struct round_tree *const tree = &r->trees[which];
  const uint32_t nr = tree->base->nr_parts;
  uint32_t at = 0, end = whole ? version_find(tree->base, kref(whole->from, whole->from_len)) : nr;
  const uint32_t stop = whole ? compact_whole_stop(whole, tree->base) : nr;
  tree->first_job = r->nr_jobs;
  while (at < end) plan_part(r, tree, at++);
  uint64_t bytes = 0;
  if (whole) whole->largest = 0;
  const uint64_t most = whole && whole->most ? whole->most : UINT64_MAX;
  while (at < stop && bytes < whole->budget) {
    const uint32_t first = r->nr_jobs, from = at;
    uint64_t cost = 0;
    at = plan_whole(r, tree, at, stop, most);
    for (uint32_t i = first; i < r->nr_jobs; i++) cost += r->jobs[i].cost;
    if (cost > most) {
      r->nr_jobs = first;
      for (uint32_t i = from; i < at; i++) plan_part(r, tree, i);
      whole->left = true;
      continue;
    }
    if (cost > whole->largest) whole->largest = cost;
    bytes += cost;
  }
  *next_out = at;
  assert(at <= nr);
  while (at < nr) plan_part(r, tree, at++);
  tree->end_job = r->nr_jobs;
}

// Plans scan merges of partitions that scans have paid for, as many as a round may merge. Their debt begins again, even
// if the merges fail. A scan merge always ends the young view.
static void plan_tree_scan_merges(struct round *r, struct round_tree *tree, uint32_t *left, uint64_t *room) {
  uint64_t bytes;
  tree->first_job = r->nr_jobs;
  for (uint32_t i = 0; i < tree->base->nr_parts; i++) {
    struct job *j = add_job(r, tree, i, 1);
    const struct part *const p = tree->base->parts[i];
    if (!*left || r->garbage) continue;
    if (r->dropped) {
      if (!tree->names || part_dropped(p, tree->names) != PART_DUE || part_is_left(p, r->now)) continue;
      j->scan_merge = j->dropped = true;
      plan_all(j);
      --*left;
      continue;
    }
    if (unlikely(compact_mostly_expired(p, expired_ms(r->c), r->now))) {
      j->scan_merge = true;
      plan_all(j);
      --*left;
      continue;
    }
    struct remix *const old = part_remix(p), *const young = part_young(p);
    const uint64_t spans = old ? value_merge_spans(r->c, tree->store, old, room) : 0;
    if (unlikely(spans) && !part_is_left(p, r->now)) {
      j->scan_merge = true;
      j->spans = spans;
      plan_all(j);
      --*left;
      continue;
    }
    struct remix *const x = old && compact_scan_debt_paid(old)       ? old
                            : young && compact_scan_debt_paid(young) ? young
                                                                     : NULL;
    if (!x) continue;
    atomic_store_explicit(&x->scan_debt, 0, memory_order_relaxed);
    if (part_is_left(p, r->now)) continue;
    j->scan_merge = true;
    decide_major(j, part_young_runs(p) + (x == old ? scan_merge_depth(x, &bytes) : 0), 0, COMPACT_CUT_RUNS);
    --*left;
  }
  tree->end_job = r->nr_jobs;
}

void plan_scan_merges(struct round *r) {
  uint32_t left = atomic_load_explicit(&r->c->scan_merge_parts, memory_order_relaxed);
  uint64_t room = VALUE_ROOM_UNKNOWN;
  for (uint32_t i = 0; i < TREES; i++)
    if (round_has(r, i)) plan_tree_scan_merges(r, &r->trees[i], &left, &room);
}

void plan_dropped_one(struct round *r) {
  const struct round_tree *const tree = &r->trees[TREE_SPACES];
  for (uint32_t i = tree->first_job; i < tree->end_job && tree->names; i++) {
    struct job *const j = &r->jobs[i];
    if (j->kind != COMPACT_KEEP || j->upto || j->gone || part_is_left(old_part(j), r->now)) continue;
    if (part_dropped(old_part(j), tree->names) != PART_DUE) continue;
    j->dropped = true;
    plan_all(j);
    return;
  }
}

// Bytes of a job's new records, and bytes that it writes for them.
static uint64_t new_bytes(const struct job *j) { return j->bytes + j->apart; }
static uint64_t all_cost(const struct job *j) { return j->cost + j->apart; }

bool plan_may_abort(const struct job *j) { return j->count && j->may_abort && all_cost(j) / ABORT_COST > new_bytes(j); }

static int worst_first(const void *a, const void *b) {
  const struct job *x = *(struct job *const *)a, *y = *(struct job *const *)b;
  const double cx = (double)all_cost(x) / (double)new_bytes(x), cy = (double)all_cost(y) / (double)new_bytes(y);
  return (cx < cy) - (cx > cy);
}

// Aborts partitions in order of their cost, the most expensive first, as long as the memtable has room for their new
// data.
enum remixdb_status plan_aborts(struct round *r) {
  struct job **by_cost = mem_array(r->nr_jobs, sizeof(*by_cost), 0);
  if (!by_cost) return REMIXDB_NOMEM;
  uint32_t nr = 0;
  for (uint32_t i = 0; i < r->nr_jobs; i++) {
    struct job *j = &r->jobs[i];
    if (plan_may_abort(j)) by_cost[nr++] = j;
  }
  qsort(by_cost, nr, sizeof(*by_cost), worst_first);
  uint64_t room = r->c->memtable_size / COMPACT_ABORT_SHARE;
  for (uint32_t i = 0; i < nr; i++) {
    // a memtable needs an entry's headers and its place in a leaf, too
    const uint64_t need = new_bytes(by_cost[i]) + ABORT_ENTRY * by_cost[i]->count;
    if (need > room) continue;
    room -= need;
    struct job *const j = by_cost[i];
    assert(!j->append && !j->scan_merge);
    j->kind = COMPACT_ABORT;
    j->take = 0;
    j->all = j->young = false;
    j->cost = 0;
  }
  mem_free(by_cost);
  return REMIXDB_OK;
}

uint64_t plan_job_work(const struct job *j) {
  uint64_t work = ((plan_merged_bytes(j, j->take) + j->apart) >> COMPACT_PROGRESS_SHIFT) + j->count;
  for (uint32_t k = 0; k < j->nr_parts && !j->append; k++) {
    const struct part *const p = j->base->parts[j->part + k];
    const struct remix *const old = part_remix(p), *const young = part_young(p);
    if (young) work += young->nr_entries;
    if (old && !j->young) work += old->nr_entries;
  }
  return work;
}

uint64_t plan_job_size(const struct job *j) {
  uint64_t reads = 0;
  for (uint32_t k = 0; k < j->nr_parts && j->all; k++) reads += all_bytes(j->base->parts[j->part + k]);
  if (!j->all && j->take) reads = runs_bytes(old_part(j), j->newer, j->newer + j->take);
  const uint64_t merged = plan_merged_bytes(j, j->take), again = merged > j->bytes ? merged - j->bytes : 0;
  return j->cost + (reads > again ? reads - again : 0) / READ_COST;
}

void plan_work(struct round *r) {
  uint64_t work = atomic_load_explicit(&r->c->progress, memory_order_relaxed);
  for (uint32_t i = 0; i < r->nr_jobs; i++)
    if (writes_tables(&r->jobs[i])) work += plan_job_work(&r->jobs[i]);
  atomic_store_explicit(&r->c->work, work ? work : 1, memory_order_relaxed);
}

bool compact_scan_debt_paid(struct remix *x) {
  uint64_t due = atomic_load_explicit(&x->scan_debt_due, memory_order_relaxed);
  if (due == 0) {
    const bool young = remix_is_young(x);  // a scan merge takes all runs of a young view
    uint64_t bytes = 0;
    due = UINT64_MAX;
    for (uint32_t r = 0; young && r < x->nr_runs; r++) bytes += run_bytes(x->runs[r]);
    if (young || scan_merge_depth(x, &bytes)) due = bytes / BLOCK_PAGE;
    if (due < COMPACT_SCAN_DEBT_MIN) due = COMPACT_SCAN_DEBT_MIN;
    atomic_store_explicit(&x->scan_debt_due, due, memory_order_relaxed);
  }
  return atomic_load_explicit(&x->scan_debt, memory_order_relaxed) >= due;
}
