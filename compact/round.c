// SPDX-License-Identifier: Apache-2.0
#include "compact/compact.h"

#include <assert.h>

#include "base/set32.h"
#include "compact/cut.h"
#include "compact/fresh.h"
#include "compact/garbage.h"
#include "compact/join.h"
#include "compact/moved.h"
#include "compact/next.h"
#include "compact/plan.h"
#include "compact/tables.h"
#include "compact/views.h"

#define ROUND_WORK 4u  // a round is guessed to write four times its memtable, in units of progress

// ---- the jobs

// Plans the partitions that hold a job's tables, unless it is a slice of a cut. There are as many outputs as tables at
// most.
static void plan_outputs(struct job *j) {
  const uint32_t young = part_young_runs(old_part(j));
  const uint32_t kept = j->append || j->all ? 0
                        : j->young          ? young - j->take
                                            : part_old_runs(old_part(j)) - (j->take - young);
  assert(writes_tables(j) && (j->young ? j->take <= young : j->all || j->append || j->take >= young));
  assert(kept <= REMIX_RUNS_MAX);
  const bool one = j->kind == COMPACT_MINOR || kept || j->young;
  for (uint32_t at = 0, group; at < j->nr_tables; at += group) {
    const uint32_t left = j->nr_tables - at;
    group = one || left < COMPACT_PART_TABLES ? left : COMPACT_PART_TABLES;
    // a small rest makes no separate partition
    if (left == group + 1 && j->tables[j->nr_tables - 1]->nr_pages < table_pages(j->c) / 4) group = left;
    assert(group > 0 && group <= left);
    struct output *o = &j->outputs[j->nr_outputs++];
    *o = (struct output){.fresh = j->tables + at, .nr_fresh = group};
    o->keep = set32_below(kept);
  }
}

// Plans the task of a job's output.
static void output_task(struct job *j, struct output *o) {
  const struct remix *const old = o->keep ? old_view(j) : NULL;
  o->job = j;
  o->task.run = views_output;
  for (uint32_t i = 0; i < o->nr_fresh; i++) o->task.size += o->fresh[i]->nr_records;
  for (uint32_t r = 0; old && r < old->nr_runs; r++)
    if (o->keep >> r & 1) o->task.size += old->runs[r]->nr_records;
}

// Writes a job's tables, and adds a task for each REMIX of theirs: an idle worker does not wait for the longest merge.
static void run_job(struct task *t, struct worker *w) {
  struct job *const j = (struct job *)t;
  tables_write(j, w);
  if (j->status != REMIXDB_OK || (j->nr_tables == 0 && j->cut == CUT_NONE)) return;
  j->outputs = mem_calloc(j->cut ? cut_outputs_most(j) : j->nr_tables, sizeof(*j->outputs));
  if (!j->outputs) {
    job_fail(j, REMIXDB_NOMEM);
    return;
  }
  if (j->cut) cut_outputs(j);
  else plan_outputs(j);
  for (uint32_t i = 0; i < j->nr_outputs; i++) output_task(j, &j->outputs[i]);
  for (uint32_t i = 0; i < j->nr_outputs; i++) workers_add(j->c->workers, &j->outputs[i].task);
}

// Raises the error of the part of the round that has failed. The others may have ended in vain.
static enum remixdb_status jobs_status(const struct round *r) {
  for (uint32_t i = 0; i < r->nr_jobs; i++) {
    const struct job *const j = &r->jobs[i];
    if (j->status != REMIXDB_OK && !j->in_vain) return err_raise(&j->error);
    for (uint32_t o = 0; o < j->nr_outputs; o++)
      if (j->outputs[o].status != REMIXDB_OK) return err_raise(&j->outputs[o].error);
  }
  assert(!atomic_load_explicit(&r->failed, memory_order_relaxed));
  return REMIXDB_OK;
}

static enum remixdb_status run_jobs(struct round *r) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < r->nr_jobs; i++) {
    struct job *j = &r->jobs[i];
    if (!writes_tables(j)) continue;
    j->task.run = run_job;
    j->task.size = plan_job_size(j);
    r->tasks[nr++] = &j->task;
  }
  workers_run(r->c->workers, r->self, r->tasks, nr);
  return jobs_status(r);
}

static enum remixdb_status hand_back(struct round *r) {
  struct range *range = mem_alloc(sizeof(*range));
  if (!range) return REMIXDB_NOMEM;
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < r->nr_jobs && s == REMIXDB_OK; i++) {
    struct job *j = &r->jobs[i];
    if (j->kind != COMPACT_ABORT) continue;
    for (range_begin(range, j, r->self); range_valid(range) && s == REMIXDB_OK; range_next(range)) {
      struct kv_rec rec;
      range_record(range, &rec);
      s = r->c->hand_back(r->c->arg, r->self, j->tree, &rec);
    }
  }
  mem_free(range);
  return s;
}

// next: the partition of the tree from which the next round has to go on.
static void whole_came(struct compact_whole *whole, const struct version *base, uint32_t next) {
  const struct version *const tree = version_tree(base, whole->from_tree);
  const bool last = whole->within || whole->from_tree == TREE_SPACES || version_is_empty(base->spaces);
  whole->end = last && next >= compact_whole_stop(whole, tree);
  if (whole->end) return;
  if (next == tree->nr_parts) {
    whole->to_tree = TREE_SPACES;
    whole->to_len = 0;
    return;
  }
  const struct kref key = part_anchor(tree->parts[next]);
  memcpy(whole->to, key.ptr, key.len);
  whole->to_len = key.len;
  whole->to_tree = whole->from_tree;
}

// Begins a pack if several partitions take part. Without a system that makes holes the round writes files.
static enum remixdb_status pack_begin(struct round *r) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < r->nr_jobs; i++) nr += writes_tables(&r->jobs[i]);
  if (nr < 2 || !packs_can(r->c->ctx->packs)) return REMIXDB_OK;
  const uint64_t number = compact_new_number(r->c, files_pack_name);
  const enum remixdb_status s = packing_begin(r->c->ctx->packs, r->c->ctx->store_id, number, blkio_past(r->c->ctx->io),
                                              &r->pack);
  for (uint32_t i = 0; i < r->nr_jobs; i++) r->jobs[i].pack = r->pack;
  return s;
}

// Tells whether some job has made a file: all records of a round may be tombstones that go.
static bool has_files(const struct round *r) {
  for (uint32_t i = 0; i < r->nr_jobs; i++)
    if (r->jobs[i].nr_outputs) return true;
  return false;
}

static enum remixdb_status round_make(struct round *r, struct version *base, bool allow_abort, struct version **out) {
  enum remixdb_status s = REMIXDB_OK;
  if (allow_abort && (s = plan_aborts(r)) != REMIXDB_OK) return s;
  if (!r->scans) plan_work(r);
  // The log of the active memtable is mostly short now. At the round's end a sync of it would write a memtable of data.
  if ((s = hand_back(r)) != REMIXDB_OK) return s;
  if (!r->scans && r->c->secure && (s = r->c->secure(r->c->arg)) != REMIXDB_OK) return s;
  if ((s = pack_begin(r)) != REMIXDB_OK) return s;
  if ((s = run_jobs(r)) != REMIXDB_OK) return s;
  r->c->written_ns = time_ns();
  if (r->pack && has_files(r) && (s = packing_finish(r->pack)) != REMIXDB_OK) return s;
  return next_version(r, base, out);
}

static void round_count(struct round *r) {
  struct compact_stats *const stats = &r->c->stats;
  for (uint32_t i = 0; i < r->nr_jobs; i++) {
    const struct job *j = &r->jobs[i];
    // not counted: a partition that stays beside a job that appends, and partitions that a scan round does not merge
    const bool counts = !r->scans ? !(j->upto && j->kind == COMPACT_KEEP) : writes_tables(j);
    if (counts) atomic_fetch_add_explicit(&stats->kinds[j->kind], 1, memory_order_relaxed);
    if (j->scan_merge && !r->dropped && !r->garbage)
      atomic_fetch_add_explicit(&stats->scan_merges, 1, memory_order_relaxed);
    if (j->garbage) atomic_fetch_add_explicit(&stats->garbage_merges, 1, memory_order_relaxed);
    if (j->moved) atomic_fetch_add_explicit(&stats->moved_merges, 1, memory_order_relaxed);
    if (j->dropped) atomic_fetch_add_explicit(&stats->dropped_merges, 1, memory_order_relaxed);
    if (j->cut == CUT_LAST) atomic_fetch_add_explicit(&stats->cuts, 1, memory_order_relaxed);
    if (j->joins) atomic_fetch_add_explicit(&stats->joined, j->nr_parts, memory_order_relaxed);
    if (j->gone) atomic_fetch_add_explicit(&stats->emptied, 1, memory_order_relaxed);
    if (j->young) atomic_fetch_add_explicit(&stats->young, 1, memory_order_relaxed);
    if (j->kind == COMPACT_ABORT)
      atomic_fetch_add_explicit(&stats->handed_back, j->bytes + j->apart, memory_order_relaxed);
  }
  atomic_fetch_add_explicit(&stats->rounds, 1, memory_order_relaxed);
}

// Pages that a round brings into the page cache are worth most where these hold the store: then readers find all that
// the round writes in memory.
static void choose_past(const struct compact *c, const struct version *base) {
  struct blkio *const io = c->ctx->io;
  blkio_set_past(io, c->memory && version_table_bytes(base) > c->memory && blkio_cold(io));
}

// The first round of a memtable after an opening may have to read all indexes, which takes as long as a round or
// longer. So that is work, too. The rest is not planned yet: a guess.
static void work_to_open(const struct round *r) {
  uint64_t away = 0, fresh = 0;
  for (uint32_t i = 0; i < TREES; i++) {
    if (!round_has(r, i)) continue;
    away += version_tree_away(r->trees[i].base);
    if (r->trees[i].frozen) fresh += wh_memory(r->trees[i].frozen);
  }
  if (likely(away == 0) || fresh == 0) return;
  atomic_store_explicit(&r->c->work, away + ROUND_WORK * (fresh >> COMPACT_PROGRESS_SHIFT), memory_order_relaxed);
}

// Opens the partitions of a tree. Those that are away after that are damaged, and stay away until the round ends. They
// are marked: merges leave them out, and the first round to find one so tells it.
static enum remixdb_status round_open(const struct round *r, const struct version *tree, _Atomic uint64_t *progress) {
  const enum remixdb_status s = version_tree_try(tree, r->c->workers, r->self, r->whole != NULL, progress);
  for (uint32_t i = 0; i < tree->nr_parts && s == REMIXDB_OK; i++) {
    struct part *const p = tree->parts[i];
    struct err_saved why;
    if (likely(!part_is_away(p)) || !part_set_unread(p, REMIXDB_CORRUPT)) continue;
    err_save(&why, part_why(p));
    compact_tell(r->c, &why);
  }
  return s;
}

// A partition that is away cannot take its new data: its young view is damaged, or it has too many tables. The next try
// may find it whole.
static enum remixdb_status check_full(const struct round *r) {
  const struct job *full = NULL;
  struct err_saved why;
  for (uint32_t i = 0; i < r->nr_jobs && !full; i++)
    if (unlikely(r->jobs[i].full)) full = &r->jobs[i];
  if (likely(!full)) return REMIXDB_OK;
  r->c->reads_failed = true;
  err_save(&why, part_why(old_part(full)));
  return err_set(why.status, "a damaged partition takes no more data until the store is repaired: %s", why.msg);
}

// spaces: whether the spaces' tree of base takes part.
static enum remixdb_status round_begin(struct round *r, const struct version *base, bool spaces) {
  struct round_tree *const trees = r->trees;
  r->c->mark = value_log_mark(&r->c->values);
  r->c->marked = true;
  trees[TREE_UNNAMED].base = base;
  trees[TREE_SPACES].base = spaces ? base->spaces : NULL;
  trees[TREE_SPACES].names = base->names;
  trees[TREE_UNNAMED].moves = trees[TREE_SPACES].moves = base->moves.nr ? &base->moves : NULL;
  trees[TREE_UNNAMED].store = trees[TREE_SPACES].store = base;
  const uint32_t nr_parts = base->nr_parts + (spaces ? base->spaces->nr_parts : 0);
  r->c->reads_failed = false;
  work_to_open(r);
  for (uint32_t i = 0; i < TREES; i++) {
    const enum remixdb_status s = round_has(r, i) ? round_open(r, trees[i].base, &r->c->progress) : REMIXDB_OK;
    r->c->reads_failed = s == REMIXDB_IO;
    if (s != REMIXDB_OK) return s;
  }
  r->pieces = !plan_fits_cache(r->c, base);
  choose_past(r->c, base);
  r->cap_jobs = 2 * nr_parts;
  r->fresh = mem_calloc(nr_parts, sizeof(*r->fresh));
  r->jobs = mem_calloc(r->cap_jobs, sizeof(*r->jobs));
  r->tasks = mem_calloc(r->cap_jobs, sizeof(*r->tasks));
  if (!r->fresh || !r->jobs || !r->tasks) return REMIXDB_NOMEM;
  trees[TREE_UNNAMED].fresh = r->fresh;
  trees[TREE_SPACES].fresh = r->fresh + base->nr_parts;
  return REMIXDB_OK;
}

// A want of room or memory. Where a round has failed for another reason, too, its next try meets the want itself, if
// that is still there.
static bool is_want(enum remixdb_status s) { return s == REMIXDB_NOSPACE || s == REMIXDB_NOMEM; }

// Tells whether the job could not read old records, and the next try can do without them: it leaves the partition as it
// is, or adds the new data to it without reading it.
static bool can_do_without(const struct job *j) { return j->unread && (j->whole || j->newly); }

// The round has failed for want of room on the disk, or of memory. If it had merges for which there is always time,
// returns true, and the next ones wait for EXTRAS_AGAIN_NS: a flush that frees room must not need room for them.
static bool extras_failed(struct round *r) {
  bool any = false;
  for (uint32_t i = 0; i < r->nr_jobs; i++) any = any || r->jobs[i].joins || r->jobs[i].moved;
  if (any) atomic_store_explicit(&r->c->extras_ns, time_ns() + EXTRAS_AGAIN_NS, memory_order_relaxed);
  return any;
}

// Tells whether a round that failed would do without what it failed by: because merges alone could not read old
// records, or because joins, or merges for moved values, may have taken the room or the memory. The next try does not
// make them. (A merge that gives way does so again.)
static bool can_leave_out(struct round *r, enum remixdb_status s) {
  bool any = false;
  if (is_want(s) && extras_failed(r)) return r->extras_left = true;
  for (uint32_t i = 0; i < r->nr_jobs; i++) {
    const struct job *const j = &r->jobs[i];
    bool failed = j->status != REMIXDB_OK && !j->in_vain && !is_want(j->status) && j->status != REMIXDB_ABORTED;
    for (uint32_t o = 0; o < j->nr_outputs; o++)
      failed = failed || (j->outputs[o].status != REMIXDB_OK && !is_want(j->outputs[o].status));
    if (failed && !can_do_without(j)) return false;
    any = any || failed;
  }
  return any;
}

// Tells whether nothing has failed but reads of old records, and those of new tables, which the next try makes again.
static bool only_reads_failed(const struct round *r) {
  bool any = false;
  for (uint32_t i = 0; i < r->nr_jobs; i++) {
    const struct job *const j = &r->jobs[i];
    bool failed = j->status != REMIXDB_OK && !j->in_vain;
    if (failed && !j->unread && !j->fresh_unread) return false;
    for (uint32_t o = 0; o < j->nr_outputs; o++) {
      if (j->outputs[o].status == REMIXDB_OK) continue;
      if (!j->outputs[o].unread && !j->outputs[o].fresh_unread) return false;
      failed = true;
    }
    any = any || failed;
  }
  return any;
}

// Tells which partitions could not be read. The next round leaves them out.
static void tell_unread(struct round *r) {
  for (uint32_t i = 0; i < r->nr_jobs; i++) {
    struct job *const j = &r->jobs[i];
    const struct err_saved *why = &j->error;
    for (uint32_t o = 0; o < j->nr_outputs; o++) {
      if (!j->outputs[o].unread) continue;
      why = &j->outputs[o].error;
      job_unread(j, j->base->parts[j->part], why->status);
    }
    if (j->whole && j->unread && r->whole->unread.status == REMIXDB_OK) r->whole->unread = *why;
    if (j->tell) compact_tell(r->c, why);
  }
}

// Frees a round. If the round has failed, removes its files. Returns s.
static enum remixdb_status round_end(struct round *r, enum remixdb_status s) {
  if (s != REMIXDB_OK && s != REMIXDB_ABORTED) atomic_fetch_add_explicit(&r->c->stats.failed, 1, memory_order_relaxed);
  if (s != REMIXDB_OK) tell_unread(r);
  if ((s == REMIXDB_IO || s == REMIXDB_CORRUPT) && only_reads_failed(r)) r->c->reads_failed = true;
  err_cleanup_begin();
  r->again = s != REMIXDB_OK && can_leave_out(r, s);
  for (uint32_t i = 0; i < r->nr_jobs; i++) {
    struct job *j = &r->jobs[i];
    for (uint32_t o = 0; o < j->nr_outputs; o++) {
      if (!j->outputs[o].remix) continue;
      if (s != REMIXDB_OK) remix_retire(j->outputs[o].remix);
      remix_unref(j->outputs[o].remix);
    }
    mem_free(j->outputs);
    for (uint32_t t = 0; t < j->nr_tables; t++) {
      if (s != REMIXDB_OK) sst_retire(j->tables[t]);
      sst_unref(j->tables[t]);
    }
    mem_free(j->tables);
    if (j->values.log) value_batch_fini(&j->values);
  }
  packing_end(r->pack, s == REMIXDB_OK);  // after the last use of its parts by a round that failed
  if (s != REMIXDB_OK) compact_undo_values(r->c);
  mem_free(r->tasks);
  mem_free(r->jobs);
  mem_free(r->fresh);
  version_release(r->trees[TREE_UNNAMED].store);
  err_cleanup_end();
  return s;
}

// Tells whether the spaces' tree takes part in the round of a memtable, which may have new data for it. New data waits
// for no whole compaction. Without these only merges that can be left undone are a reason: not if a partition cannot be
// opened for another reason than damage, which compact.left_out tells then.
static bool spaces_take_part(const struct round *r, const struct version *base, const struct compact_whole *whole,
                             bool dropped) {
  const struct version *const tree = base->spaces;
  const struct wh *const fresh = r->trees[TREE_SPACES].frozen;
  if (!tree) return false;
  if ((fresh && wh_count(fresh)) || (whole && whole->from_tree == TREE_SPACES)) return true;
  if (!dropped && (whole || (!join_due(r->c, tree) && !moved_due(r->c, base, tree)))) return false;
  struct err_saved was;
  err_save(&was, REMIXDB_OK);
  const enum remixdb_status s = round_open(r, tree, NULL);
  if (s != REMIXDB_OK) err_save(&r->c->left_out, s);
  err_restore(&was);
  return s == REMIXDB_OK;
}

// One try of the round of a memtable.
static enum remixdb_status memtable_round(struct round *r, struct version *base, bool allow_abort,
                                          struct compact_whole *whole, struct compact_room *room,
                                          struct version **out) {
  struct compact *const c = r->c;
  uint32_t next = 0;
  const bool steps = room && room->steps, ask = steps && !room->planned;
  // the steps for room, and a try before this one, are work of this round, too
  if (!r->retry && (!steps || ask)) atomic_store_explicit(&c->progress, 0, memory_order_relaxed);
  const bool dropped = atomic_load_explicit(&c->dropped_too, memory_order_relaxed),
             both = spaces_take_part(r, base, whole, dropped);
  enum remixdb_status s = round_begin(r, base, both);
  for (uint32_t i = 0; i < TREES && s == REMIXDB_OK; i++)
    if (round_has(r, i) && r->trees[i].frozen) s = fresh_measure(r, &r->trees[i]);
  for (uint32_t i = 0; i < TREES && s == REMIXDB_OK; i++) {
    uint32_t none;
    const bool all = whole && whole->from_tree == i;
    if (round_has(r, i)) plan_jobs(r, i, all ? whole : NULL, all ? &next : &none);
  }
  if (s == REMIXDB_OK) s = check_full(r);
  if (s == REMIXDB_OK) join_dead(r);
  if (s == REMIXDB_OK && !whole && !r->scarce) join_plan(r);  // a whole compaction brings neighbours together itself
  if (s == REMIXDB_OK && dropped && both && !r->scarce) plan_dropped_one(r);
  if (s == REMIXDB_OK && ask) s = garbage_plan_room(r, base, room);
  else if (s == REMIXDB_OK && room && !steps && !r->scarce) s = garbage_plan_within(r, base, room);
  if (s != REMIXDB_OK || (ask && room->nr)) return round_end(r, s);
  if (!r->scarce) moved_plan(r, base);
  s = round_make(r, base, allow_abort, out);
  if (s == REMIXDB_OK) {
    if (whole) whole_came(whole, base, next);
    round_count(r);
  }
  return round_end(r, s);
}

enum remixdb_status compact_round(struct compact *c, struct worker *self, struct version *base, const struct wh *frozen,
                                  const struct wh *spaces, bool allow_abort, struct compact_whole *whole,
                                  struct compact_room *room, struct version **out) {
  const uint64_t now = time_ns();
  struct round r = {.again = false};
  enum remixdb_status s;
  *out = NULL;
  do {
    r = (struct round){.c = c, .self = self, .whole = whole, .now = now, .retry = r.again};
    r.scarce = room && room->scarce;
    r.trees[TREE_UNNAMED].frozen = frozen;
    r.trees[TREE_SPACES].frozen = spaces;
    s = memtable_round(&r, base, allow_abort, whole, room, out);
    // joins alone are left undone for a want, which may have come with damage that is told already
    if (r.again && r.extras_left) err_save(&c->left_out, s);
  } while (r.again);
  return s;
}

// ---- scan merges

void compact_watch(const struct compact *c, const struct version *v) {
  for (const struct version *tree = v; tree; tree = tree->spaces) {
    for (uint32_t i = 0; i < tree->nr_parts; i++) {
      const struct part *const p = tree->parts[i];
      if (part_remix(p)) remix_watch(part_remix(p), c->watch);
      if (part_young(p)) remix_watch(part_young(p), c->watch);
      if (p->away) p->away->watch = c->watch;
    }
  }
}

// Tells whether the round makes another version. Only merges for garbage are a reason to let partitions leave.
static bool changes(const struct round *r) {
  bool any = false;
  for (uint32_t i = 0; i < r->nr_jobs; i++) any = any || writes_tables(&r->jobs[i]) || (r->jobs[i].gone && r->garbage);
  return any;
}

static bool room_unplanned(const struct compact_room *room) { return room && room->most && !room->planned; }

// One try. r: which merges.
static enum remixdb_status scan_round_once(struct round *r, struct version *base, struct version **out) {
  r->scans = true;
  *out = NULL;
  enum remixdb_status s = round_begin(r, base, !version_is_empty(base->spaces));
  if (s == REMIXDB_OK) {
    plan_scan_merges(r);
    join_dead(r);
    if (r->garbage && !r->room && !changes(r)) join_plan(r);
  }
  if (s == REMIXDB_OK && room_unplanned(r->room)) s = garbage_plan_full(r, base, r->room);
  if (s == REMIXDB_OK && r->room) garbage_plan_step(r, r->room);
  else if (s == REMIXDB_OK && r->garbage && !changes(r)) s = garbage_plan_rest(r, base);
  if (s == REMIXDB_OK && r->garbage && !r->room && !changes(r)) moved_plan(r, base);
  const bool any = s == REMIXDB_OK && changes(r);
  if (any) s = round_make(r, base, false, out);
  if (s == REMIXDB_OK && any) round_count(r);
  return round_end(r, s);
}

// The same until it does not fail by partitions that cannot be read, which the next try leaves out.
static enum remixdb_status scan_round(const struct round *which, struct version *base, struct version **out) {
  const uint64_t now = time_ns();
  enum remixdb_status s;
  bool again;
  do {
    struct round r = *which;
    r.now = now;
    s = scan_round_once(&r, base, out);
    again = r.again && !is_want(s);
  } while (again);
  return s;
}

enum remixdb_status compact_scan_round(struct compact *c, struct worker *self, struct version *base,
                                       struct version **out) {
  struct round r = {.c = c, .self = self};
  return scan_round(&r, base, out);
}

enum remixdb_status compact_dropped_round(struct compact *c, struct worker *self, struct version *base,
                                          struct version **out) {
  struct round r = {.c = c, .self = self, .dropped = true};
  return scan_round(&r, base, out);
}

enum remixdb_status compact_garbage_round(struct compact *c, struct worker *self, struct version *base,
                                          struct version **out) {
  struct round r = {.c = c, .self = self, .garbage = true};
  return scan_round(&r, base, out);
}

enum remixdb_status compact_room_step(struct compact *c, struct worker *self, struct version *base,
                                      struct compact_room *room, struct version **out) {
  const uint64_t now = time_ns();
  *out = NULL;
  // no merge is left of a step if its partitions went meanwhile, and none is made if one of them cannot be read
  while (!*out && (room->at < room->nr || room_unplanned(room))) {
    struct round r = {.c = c, .self = self, .garbage = true, .room = room, .now = now};
    const enum remixdb_status s = scan_round_once(&r, base, out);
    room->scarce = room->scarce || s == REMIXDB_NOSPACE;
    if (s != REMIXDB_OK && (!r.again || is_want(s))) return s;
  }
  return REMIXDB_OK;
}

bool compact_garbage_due(const struct compact *c, const struct version *v) {
  struct garbage all;
  for (const struct version *tree = v; tree; tree = tree->spaces)
    if (join_due(c, tree) || moved_due(c, v, tree)) return true;
  garbage_all(v, &all);
  return garbage_due(c, &all);
}

// ---- retiring

// Tells whether a partition of [from, to) has this REMIX or table.
static bool parts_have(const struct version *v, uint32_t from, uint32_t to, const void *object) {
  bool has = false;
  for (uint32_t i = from; i < to && !has; i++) has = part_has(v->parts[i], object);
  return has;
}

// Tells whether v has this object of the tree base, which is in partition i. A file of that partition which v has is in
// a partition that shares keys with it (V2).
static bool tree_has(const struct version *v, const struct version *base, uint32_t i, const void *object) {
  const uint32_t from = version_find(v, part_anchor(base->parts[i]));
  uint32_t to = from + 1;
  while (to < v->nr_parts &&
         (i + 1 == base->nr_parts || kv_cmp(part_anchor(v->parts[to]), part_anchor(base->parts[i + 1])) < 0))
    to++;
  return parts_have(v, from, to, object);
}

// kept: NULL, or another tree whose files stay.
static void retire_tree(const struct version *base, const struct version *next, const struct version *kept) {
  for (uint32_t i = 0; i < base->nr_parts; i++) {
    const struct part *const p = base->parts[i];
    struct remix *const views[] = {part_remix(p), part_young(p)};
    for (uint32_t k = 0; k < 2; k++)
      if (views[k] && !tree_has(next, base, i, views[k]) && !(kept && tree_has(kept, base, i, views[k])))
        remix_retire(views[k]);
    for (uint32_t r = 0; r < part_runs(p); r++) {
      struct sst *const t = part_run(p, r);
      if (!tree_has(next, base, i, t) && !(kept && tree_has(kept, base, i, t))) sst_retire(t);
    }
  }
}

void compact_retire_tree(const struct version *base, const struct version *next) { retire_tree(base, next, NULL); }

void compact_retire_but(const struct version *base, const struct version *next, const struct version *kept) {
  retire_tree(base, next, kept);
  if (base->spaces && next->spaces && base->spaces != next->spaces)
    retire_tree(base->spaces, next->spaces, kept ? kept->spaces : NULL);
}

void compact_retire(const struct version *base, const struct version *next) { compact_retire_but(base, next, NULL); }
