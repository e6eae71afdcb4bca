// SPDX-License-Identifier: Apache-2.0
//
// Puts the tables of an ingest into a version. A partition of the base becomes one or more *pieces*: key ranges, each
// with the tables of the base that lie in it, and tables of the ingest above them.
#include <assert.h>

#include "compact/compact.h"
#include "compact/plan.h"
#include "compact/tables.h"
#include "compact/views.h"
#include "remix/build.h"
#include "table/scan.h"

#define INGEST_RUNS 20u    // runs that an ingest may leave in a partition: the next rounds merge them
#define INGEST_RESERVE 6u  // runs of a partition that cannot be read that an ingest leaves to rounds of memtables

// A partition of the next version that the ingest changes or makes.
struct piece {
  struct task task;
  struct compact *c;
  struct part *old;    // its views stay below the new tables; NULL: none
  bool into_young;     // the new tables go into the young view of `old`: nothing of its older view is read
  struct sst **lower;  // in place of the view that gets the new tables: its records, written again
  uint32_t nr_lower;
  struct sst **tables;  // the ingest's
  uint32_t nr;
  struct kref anchor;
  struct remix *remix, *young;  // made
  bool unread;                  // the view of `old` that gets the new tables could not be read
  enum remixdb_status status;
  struct err_saved error;
};

struct ingest {
  struct compact *c;
  struct worker *self;
  const struct version *base;  // the tree's
  const struct value_moves *moves;
  uint32_t tree;
  uint64_t now;         // when the call began, for part_is_left: all tries leave out what one of them has marked
  bool again;           // a partition could not be read, and the next try leaves it out
  struct sst **tables;  // the ingest's, cut at the partitions' borders; referenced
  uint32_t nr, cap;
  struct sst **made;  // tables that this call has written; referenced
  uint32_t nr_made, cap_made;
  struct piece *pieces;
  uint32_t nr_pieces;
  struct part **parts;
  uint32_t nr_parts;
};

// ---- tables that are written again

static enum remixdb_status push(struct sst ***list, uint32_t *nr, uint32_t *cap, struct sst *t) {
  if (*nr == *cap) {
    struct sst **const grown = mem_grow32(*list, cap, 16, sizeof(*grown));
    if (!grown) return REMIXDB_NOMEM;
    *list = grown;
  }
  (*list)[(*nr)++] = t;
  return REMIXDB_OK;
}

// Writes tables one after the other.
struct writer {
  struct ingest *in;
  struct sst_build *build;
  uint64_t number;  // the number of the table being built; 0: none
};

static enum remixdb_status writer_end(struct writer *w) {
  struct ingest *const in = w->in;
  const uint64_t number = w->number;
  uint64_t size;
  struct sst *t;
  if (number == 0) return REMIXDB_OK;
  w->number = 0;
  enum remixdb_status s = sst_build_finish(w->build, &size);
  if (s != REMIXDB_OK) return s;
  atomic_fetch_add_explicit(&in->c->stats.table_bytes, size, memory_order_relaxed);
  s = sst_open(in->c->ctx, number, &t);
  if (s == REMIXDB_OK && (s = push(&in->made, &in->nr_made, &in->cap_made, t)) != REMIXDB_OK) sst_unref(t);
  if (s == REMIXDB_OK) return s;
  char name[32];
  sst_name(name, number);
  return tables_remove_new(in->c, name, s);
}

// Adds a record of a table with these numbers.
static enum remixdb_status writer_add(struct writer *w, const struct kv_rec *rec, struct seqs seqs) {
  if (w->number && !sst_build_takes(w->build, rec)) {
    const enum remixdb_status s = writer_end(w);
    if (s != REMIXDB_OK) return s;
  }
  if (w->number == 0) {
    w->number = compact_new_number(w->in->c, sst_name);
    sst_build_start(w->build, w->number);
    sst_build_numbers(w->build, seqs.min, seqs.max);
    if (w->in->tree == TREE_SPACES) sst_build_spaces(w->build);
  }
  return tables_add(w->in->c, NULL, w->build, rec);
}

// Cuts a table of the ingest at the borders of partitions.
static enum remixdb_status cut_table(struct ingest *in, struct sst *t) {
  const struct version *const v = in->base;
  struct writer w = {.in = in};
  struct sst_scan *scan = NULL;
  struct kv_rec rec;
  sst_pos pos;
  const uint32_t first = in->nr_made;
  uint32_t part = version_find(v, t->min);
  enum remixdb_status s = sst_build_create(in->c->ctx, &in->c->build, in->self->queue, &w.build);
  if (s == REMIXDB_OK) s = sst_scan_create(t, in->self->queue, &scan);
  while (s == REMIXDB_OK && (s = sst_scan_next(scan, &rec, &pos)) == REMIXDB_OK) {
    const struct kref key = kref(rec.key, rec.klen);
    if (part + 1 < v->nr_parts && kv_cmp(key, part_anchor(v->parts[part + 1])) >= 0) {
      s = writer_end(&w);
      part = version_find(v, key);
    }
    rec.kind |= KV_SEQ;
    if (s == REMIXDB_OK) s = writer_add(&w, &rec, (struct seqs){t->seq_min, t->seq_max});
  }
  if (s == REMIXDB_NOTFOUND) s = writer_end(&w);
  sst_scan_destroy(scan);
  sst_build_destroy(w.build);
  for (uint32_t i = first; i < in->nr_made && s == REMIXDB_OK; i++) {
    s = push(&in->tables, &in->nr, &in->cap, in->made[i]);
    if (s == REMIXDB_OK) sst_ref(in->made[i]);
  }
  return s;
}

static bool crosses(const struct ingest *in, const struct sst *t) {
  return version_find(in->base, t->min) != version_find(in->base, t->max);
}

// Takes the tables of the ingest, those that cross a border cut.
static enum remixdb_status take_tables(struct ingest *in, const struct compact_ingest *from) {
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < from->nr && s == REMIXDB_OK; i++) {
    struct sst *const t = from->tables[i];
    if (crosses(in, t)) {
      s = cut_table(in, t);
    } else if ((s = push(&in->tables, &in->nr, &in->cap, t)) == REMIXDB_OK) {
      sst_ref(t);
    }
  }
  return s;
}

// A job that writes records of a partition again.
static struct job job_of(const struct ingest *in, uint32_t part, _Atomic bool *failed) {
  return (struct job){.c = in->c,
                      .tree = in->tree,
                      .base = in->base,
                      .moves = in->moves,
                      .part = part,
                      .nr_parts = 1,
                      .now = in->now,
                      .failed = failed,
                      .table_bytes = table_bytes(in->c)};
}

// Runs the job, and adds its tables to `made`.
static enum remixdb_status write_again(struct ingest *in, struct job *j) {
  tables_write(j, in->self);
  if (j->values.log) value_batch_fini(&j->values);
  if (j->tell) compact_tell(in->c, &j->error);
  in->again = in->again || (j->unread && j->newly);
  enum remixdb_status s = j->status == REMIXDB_OK ? REMIXDB_OK : err_raise(&j->error);
  for (uint32_t i = 0; i < j->nr_tables; i++) {
    if (s == REMIXDB_OK && (s = push(&in->made, &in->nr_made, &in->cap_made, j->tables[i])) == REMIXDB_OK) continue;
    sst_retire(j->tables[i]);
    sst_unref(j->tables[i]);
  }
  mem_free(j->tables);
  return s;
}

// ---- REMIXes

// Builds a view over the runs of `below` (NULL: none) and then these tables.
static enum remixdb_status view_build(struct piece *p, struct worker *w, const struct remix *below,
                                      struct sst *const *tables, uint32_t nr, struct remix **out) {
  const uint32_t kept = below ? below->nr_runs : 0, all = kept + nr + (p->into_young ? part_old_runs(p->old) : 0);
  struct sst *runs[REMIX_RUNS_MAX];
  if (all > REMIX_RUNS_MAX) return err_set(REMIXDB_INVALID, "a partition cannot have %u tables", all);
  for (uint32_t i = 0; i < kept + nr; i++) runs[i] = i < kept ? below->runs[i] : tables[i - kept];
  struct remix_build b = {.queue = w->queue,
                          .old = below,
                          .keep = kept == 32 ? UINT32_MAX : (1u << kept) - 1,
                          .fresh = tables,
                          .nr_fresh = nr};
  const enum remixdb_status s = views_build(p->c, &b, runs, kept + nr, p->into_young, below, out);
  p->unread = s != REMIXDB_OK && b.old_unread && !p->nr_lower;
  return s;
}

static enum remixdb_status piece_make(struct piece *p, struct worker *w) {
  struct remix *lower = NULL;
  const struct remix *const below = !p->old ? NULL : p->into_young ? part_young(p->old) : part_remix(p->old);
  enum remixdb_status s = p->nr_lower ? view_build(p, w, NULL, p->lower, p->nr_lower, &lower) : REMIXDB_OK;
  if (s == REMIXDB_OK)
    s = view_build(p, w, lower ? lower : below, p->tables, p->nr, p->into_young ? &p->young : &p->remix);
  if (lower) {
    remix_retire(lower);
    remix_unref(lower);
  }
  return s;
}

static void piece_run(struct task *t, struct worker *w) {
  struct piece *const p = (struct piece *)t;
  if ((p->status = piece_make(p, w)) != REMIXDB_OK) err_save(&p->error, p->status);
}

// ---- pieces

static struct piece *add_piece(struct ingest *in, struct part *old, struct kref anchor, uint32_t from, uint32_t to) {
  struct piece *const p = &in->pieces[in->nr_pieces++];
  *p = (struct piece){.c = in->c, .old = old, .anchor = anchor, .tables = in->tables + from, .nr = to - from};
  p->task.run = piece_run;
  for (uint32_t i = 0; i < p->nr; i++) p->task.size += p->tables[i]->nr_records;
  return p;
}

// Makes new partitions for the tables [from, to). anchor: the first partition's; ptr NULL: the call chooses a key
// between `before` and the first table.
static void add_groups(struct ingest *in, uint32_t from, uint32_t to, struct kref anchor, const struct sst *before) {
  for (uint32_t at = from; at < to;) {
    const uint32_t nr = to - at < COMPACT_PART_TABLES ? to - at : COMPACT_PART_TABLES;
    const struct sst *const last = at > from ? in->tables[at - 1] : before;
    const struct kref key = at == from && anchor.ptr ? anchor : tables_separator(last, in->tables[at]);
    (void)add_piece(in, NULL, key, at, at + nr);
    at += nr;
  }
}

// The same for a partition that is written again: its records go to the new partitions.
static enum remixdb_status add_groups_again(struct ingest *in, uint32_t part, uint32_t from, uint32_t to) {
  const struct part *const old = in->base->parts[part];
  const uint32_t nr_groups = (to - from + COMPACT_PART_TABLES - 1) / COMPACT_PART_TABLES, first = in->nr_pieces;
  struct kref *const cuts = mem_array(nr_groups + 1, sizeof(*cuts), 0);
  if (!cuts) return REMIXDB_NOMEM;
  add_groups(in, from, to, part_anchor(old), NULL);
  for (uint32_t i = 1; i < nr_groups; i++) cuts[i - 1] = in->pieces[first + i].anchor;
  const uint32_t made = in->nr_made;
  _Atomic bool failed = false;
  struct job j = job_of(in, part, &failed);
  j.kind = COMPACT_SPLIT;
  j.all = true;
  j.cuts = cuts;
  // All old records may come into one group, and the old tables may be much larger than today's (B1 in compact/plan.h).
  j.take = part_runs(old);
  plan_sizes(&j, plan_merged_bytes(&j, j.take), COMPACT_PART_TABLES, COMPACT_CUT_RUNS);
  j.nr_cuts = nr_groups - 1;
  const enum remixdb_status s = write_again(in, &j);
  mem_free(cuts);
  if (s != REMIXDB_OK) return s;
  for (uint32_t i = made, g = first; i < in->nr_made; i++) {
    while (g + 1 < in->nr_pieces && kv_cmp(in->made[i]->min, in->pieces[g + 1].anchor) >= 0) g++;
    in->pieces[g].nr_lower++;
  }
  return s;
}

// Plans a partition that gets the tables [from, to) as the job has decided: its young view may be written again.
static enum remixdb_status add_decided(struct ingest *in, struct job *j, uint32_t from, uint32_t to) {
  struct part *const p = in->base->parts[j->part];
  struct piece *const piece = add_piece(in, p, part_anchor(p), from, to);
  const uint32_t made = in->nr_made;
  piece->into_young = j->young;
  if (j->kind != COMPACT_MAJOR) return REMIXDB_OK;
  const enum remixdb_status s = write_again(in, j);
  piece->nr_lower = in->nr_made - made;
  return s;
}

// The made tables may move in memory while more come, so the pieces get their places at the end.
static void place_lower(struct ingest *in, uint32_t first, uint32_t made) {
  for (uint32_t g = first; g < in->nr_pieces; g++) {
    if (!in->pieces[g].nr_lower) continue;
    in->pieces[g].lower = in->made + made;
    made += in->pieces[g].nr_lower;
  }
}

// Tells whether rounds of memtables can go on in a partition that cannot be read when it has the tables [from, to),
// too: a merge of its young view leaves room for more runs. An ingest may fail; a memtable that cannot be brought into
// tables ends all writes.
static bool leaves_room(const struct ingest *in, const struct part *p, uint32_t from, uint32_t to) {
  uint64_t bytes = 0;
  for (uint32_t r = part_old_runs(p); r < part_runs(p); r++) bytes += run_bytes(part_run(p, r));
  for (uint32_t i = from; i < to; i++) bytes += run_bytes(in->tables[i]);
  return part_old_runs(p) + plan_tables(in->c, bytes) + INGEST_RESERVE < COMPACT_UNREAD_RUNS;
}

// Plans a partition, which gets the tables [from, to).
static enum remixdb_status plan_part(struct ingest *in, uint32_t part, uint32_t from, uint32_t to) {
  struct part *const p = in->base->parts[part];
  if (unlikely(part_is_away(p))) return part_why(p);
  if (!part_remix(p)) {
    add_groups(in, from, to, part_anchor(p), NULL);
    return REMIXDB_OK;
  }
  const struct sst *const last = last_table(p);
  uint32_t behind = from;
  while (behind < to && kv_cmp(in->tables[behind]->min, last->max) <= 0) behind++;
  const uint32_t nr = behind - from;
  uint64_t count = 0;
  for (uint32_t i = from; i < behind; i++) count += in->tables[i]->nr_records;
  const bool small = plan_fits_young(in->c, p, count);
  enum remixdb_status s = REMIXDB_OK;
  _Atomic bool failed = false;
  struct job j = job_of(in, part, &failed);
  if (nr && part_is_left(p, in->now) && leaves_room(in, p, from, behind) && plan_unread(&j, nr, nr)) {
    s = add_decided(in, &j, from, behind);
  } else if (nr && part_runs(p) + nr > INGEST_RUNS) {
    if (!small || part_young_runs(p) < 2 || !plan_young_again(&j, nr, INGEST_RUNS))
      return add_groups_again(in, part, from, to);
    s = add_decided(in, &j, from, behind);
  } else if (nr) {
    add_piece(in, p, part_anchor(p), from, behind)->into_young = small || part_young(p);
  }
  if (s != REMIXDB_OK) return s;
  const struct sst *before = last;
  if (behind > from && kv_cmp(in->tables[behind - 1]->max, last->max) > 0) before = in->tables[behind - 1];
  add_groups(in, behind, to, kref(NULL, 0), before);
  return REMIXDB_OK;
}

// Adds a partition of the next version. Takes the references to the views over, also if it fails.
static enum remixdb_status add_part(struct ingest *in, struct kref anchor, struct remix *remix, struct remix *young) {
  const enum remixdb_status s = part_create(anchor, remix, young, &in->parts[in->nr_parts]);
  in->nr_parts += s == REMIXDB_OK;
  return s;
}

static enum remixdb_status add_made(struct ingest *in, const struct piece *p) {
  if (p->remix) remix_ref(p->remix);
  if (p->young) {
    remix_ref(p->young);
    remix_ref(part_remix(p->old));
  }
  const enum remixdb_status s = add_part(in, p->anchor, p->young ? part_remix(p->old) : p->remix, p->young);
  if (s == REMIXDB_OK && p->old) part_inherit(in->parts[in->nr_parts - 1], p->old);
  return s;
}

static enum remixdb_status plan_parts(struct ingest *in) {
  uint32_t at = 0;
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < in->base->nr_parts && s == REMIXDB_OK; i++) {
    const uint32_t from = at;
    while (at < in->nr &&
           (i + 1 == in->base->nr_parts || kv_cmp(in->tables[at]->min, part_anchor(in->base->parts[i + 1])) < 0))
      at++;
    if (at > from) s = plan_part(in, i, from, at);
  }
  return s;
}

// Marks partitions that could not be read. The next try leaves them out.
static void tell_unread(struct ingest *in) {
  for (uint32_t i = 0; i < in->nr_pieces; i++) {
    const struct piece *const p = &in->pieces[i];
    if (!p->unread) continue;
    in->again = in->again || !part_is_left(p->old, in->now);
    if (part_set_unread(p->old, p->status)) compact_tell(in->c, &p->error);
  }
}

static enum remixdb_status build_all(struct ingest *in) {
  struct task **const tasks = mem_array(in->nr_pieces + 1, sizeof(*tasks), 0);
  if (!tasks) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < in->nr_pieces; i++) tasks[i] = &in->pieces[i].task;
  workers_run(in->c->workers, in->self, tasks, in->nr_pieces);
  mem_free(tasks);
  tell_unread(in);
  for (uint32_t i = 0; i < in->nr_pieces; i++)
    if (in->pieces[i].status != REMIXDB_OK) return err_raise(&in->pieces[i].error);
  return REMIXDB_OK;
}

// The tree with the pieces in place of the partitions that they come from.
static enum remixdb_status next_tree(struct ingest *in, struct version **out) {
  const struct version *const v = in->base;
  enum remixdb_status s = REMIXDB_OK;
  uint32_t at = 0;
  in->parts = mem_calloc(v->nr_parts + in->nr_pieces, sizeof(*in->parts));
  if (!in->parts) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < v->nr_parts && s == REMIXDB_OK; i++) {
    const bool replaced = at < in->nr_pieces && kv_eq(in->pieces[at].anchor, part_anchor(v->parts[i]));
    if (!replaced) {
      part_ref(v->parts[i]);
      in->parts[in->nr_parts++] = v->parts[i];
    }
    while (s == REMIXDB_OK && at < in->nr_pieces &&
           (i + 1 == v->nr_parts || kv_cmp(in->pieces[at].anchor, part_anchor(v->parts[i + 1])) < 0))
      s = add_made(in, &in->pieces[at++]);
  }
  if (s == REMIXDB_OK) s = version_create(in->parts, in->nr_parts, out);
  else
    for (uint32_t i = 0; i < in->nr_parts; i++) part_unref(in->parts[i]);
  if (s == REMIXDB_OK) (*out)->erased = v->erased;
  return s;
}

// The version with another tree. Takes over the reference to it.
static enum remixdb_status with_tree(struct version *base, uint32_t which, struct version *tree, struct version **out) {
  if (which == TREE_UNNAMED) {
    if (base->spaces) version_ref(tree->spaces = base->spaces);
    if (base->names) names_ref(tree->names = base->names);
    *out = tree;
    return REMIXDB_OK;
  }
  const enum remixdb_status s = version_copy(base, out);
  if (s != REMIXDB_OK) {
    version_unref(tree);
    return s;
  }
  version_unref((*out)->spaces);
  (*out)->spaces = tree;
  return s;
}

static enum remixdb_status ingest_make(struct ingest *in, struct version *base, const struct compact_ingest *from,
                                       struct version **out) {
  struct version *tree;
  enum remixdb_status s = take_tables(in, from);
  if (s != REMIXDB_OK) return s;
  in->pieces = mem_calloc(in->nr + in->base->nr_parts + 1, sizeof(*in->pieces));
  if (!in->pieces) return REMIXDB_NOMEM;
  // Tables that were cut are among the made ones, too, but no piece's lower ones.
  const uint32_t made = in->nr_made;
  if ((s = plan_parts(in)) != REMIXDB_OK) return s;
  place_lower(in, 0, made);
  if ((s = build_all(in)) != REMIXDB_OK) return s;
  if ((s = next_tree(in, &tree)) != REMIXDB_OK) return s;
  return with_tree(base, in->tree, tree, out);
}

// One try.
static enum remixdb_status ingest_once(struct ingest *in, struct version *base, struct compact_ingest *from,
                                       struct version **out) {
  struct value_mark mark = value_log_mark(&in->c->values);
  mark.inner = true;  // the memtable's round may have written values before
  const enum remixdb_status s = ingest_make(in, base, from, out);
  err_cleanup_begin();
  for (uint32_t i = 0; i < from->nr && s == REMIXDB_OK; i++)
    if (crosses(in, from->tables[i])) sst_retire(from->tables[i]);
  for (uint32_t i = 0; i < in->nr_pieces; i++) {
    struct remix *const both[] = {in->pieces[i].remix, in->pieces[i].young};
    for (uint32_t k = 0; k < 2; k++) {
      if (both[k] && s != REMIXDB_OK) remix_retire(both[k]);
      remix_unref(both[k]);
    }
  }
  for (uint32_t i = 0; i < in->nr_made; i++) {
    if (s != REMIXDB_OK) sst_retire(in->made[i]);
    sst_unref(in->made[i]);
  }
  if (s == REMIXDB_OK) {
    from->placed = in->tables;
    from->nr_placed = in->nr;
  } else {
    for (uint32_t i = 0; i < in->nr; i++) sst_unref(in->tables[i]);
    mem_free(in->tables);
  }
  if (s != REMIXDB_OK) value_log_rewind(&in->c->values, &mark);
  mem_free(in->pieces);
  mem_free(in->parts);
  mem_free(in->made);
  err_cleanup_end();
  return s;
}

enum remixdb_status compact_ingest(struct compact *c, struct worker *self, struct version *base,
                                   struct compact_ingest *from, struct version **out) {
  const struct version *const tree = version_tree(base, from->tree);
  const uint64_t now = time_ns();
  assert(tree);
  enum remixdb_status s = version_tree_try(tree, c->workers, self, false, NULL);
  for (bool again = s == REMIXDB_OK; again;) {
    struct ingest in = {.c = c, .self = self, .tree = from->tree, .base = tree, .moves = from->moves, .now = now};
    s = ingest_once(&in, base, from, out);
    again = s != REMIXDB_OK && in.again;
  }
  version_release(tree);
  return s;
}
