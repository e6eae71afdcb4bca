// SPDX-License-Identifier: Apache-2.0
#include "compact/tables.h"

#include <assert.h>

#include "compact/apart.h"
#include "compact/fresh.h"
#include "compact/plan.h"
#include "compact/value_merge.h"
#include "remix/paged.h"
#include "remix/value_debt.h"
#include "table/scan.h"

// A job reports its progress at least once in so many records, or in so many bytes. The writers' pace needs reports of
// long records, too. Each entry of the job's views and each new record is a unit of work besides the bytes: the REMIX
// gets an entry for it, or the merge leaves it out.
#define TABLE_BYTES ((uint64_t)BLKIO_WRITER_NR * BLKIO_WRITER_BUF + (1u << 20))  // a table in the making
#define PROGRESS_EVERY 256u                                                      // records
#define PROGRESS_BYTES (256u << 10)

// Tells whether the job goes on, where others may have failed or a scan merge is to be given up.
static enum remixdb_status job_goes_on(struct job *j) {
  if (j->scan_merge && atomic_load_explicit(&j->c->yield, memory_order_relaxed))
    return err_set(REMIXDB_ABORTED, "the merge was given up for a more urgent one");
  if (likely(!atomic_load_explicit(j->failed, memory_order_relaxed))) return REMIXDB_OK;
  j->in_vain = true;
  return err_set(REMIXDB_ABORTED, "another part of the round has failed");
}

// Some runs of a view as one sorted stream, with the newest version of each key that they have. Records that a newer
// run of the view hides are left out, although that run takes no part. Erased keys are left out: all older versions of
// such a key are erased, too (remix/remix.h, R6). The first of them comes as a tombstone, so that a merge of some runs
// does not end without a table: its partition would lose the runs that stay.
struct run_stream {
  struct remix_walk walk;  // x NULL: no run takes part
  struct remix *whole;     // the view, with a reference
  uint32_t first, end;     // the runs
  bool found;              // the stream has returned a version of the current key, or a newer run has one
  bool any;                // there is a record
  bool any_erased;         // an erased key has come
  uint32_t skipped;        // records since the last report
  struct job *j;
  struct kv_rec rec;
  struct sst_scan *scans[REMIX_RUNS_MAX];
};

static void report_left_out(const struct job *j, uint32_t *nr) {
  atomic_fetch_add_explicit(&j->c->progress, *nr, memory_order_relaxed);
  *nr = 0;
}

static void run_stream_close(struct run_stream *v) {
  if (v->skipped) report_left_out(v->j, &v->skipped);
  for (uint32_t r = v->first; v->walk.x && r < v->end; r++) {
    sst_scan_destroy(v->scans[r]);
    v->scans[r] = NULL;
  }
  v->walk.x = NULL;
  remix_unref(v->whole);
  v->whole = NULL;
  v->any = false;
}

// There may be no other records for long.
static enum remixdb_status run_stream_skip(struct run_stream *v, struct sst_scan *scan) {
  sst_scan_skip(scan, 1);
  if (likely(++v->skipped < PROGRESS_EVERY)) return REMIXDB_OK;
  report_left_out(v->j, &v->skipped);
  return job_goes_on(v->j);
}

// Goes to the next record; at the end sets `any` to false.
static enum remixdb_status run_stream_next(struct run_stream *v) {
  v->any = false;
  while (v->walk.x && remix_walk_valid(&v->walk)) {
    const uint8_t sel = v->walk.sel[v->walk.at];
    const uint32_t run = sel & REMIX_RUN;
    if (!(sel & REMIX_OLD)) v->found = false;
    remix_walk_next(&v->walk);
    v->found |= run >= v->end;
    if (run < v->first || run >= v->end) continue;
    const bool erased = !v->found && (sel & REMIX_ERASED) == REMIX_ERASED;
    if (v->found || (erased && v->any_erased)) {
      v->found = true;
      const enum remixdb_status s = run_stream_skip(v, v->scans[run]);
      if (unlikely(s != REMIXDB_OK)) return s;
      continue;
    }
    v->found = true;
    v->any_erased |= erased;
    sst_pos pos;
    const enum remixdb_status s = sst_scan_next(v->scans[run], &v->rec, &pos);
    if (s == REMIXDB_NOTFOUND)
      return err_corrupt(v->walk.x->path, 0, "has more entries than table %llu has records",
                         (unsigned long long)v->walk.x->runs[run]->number);
    v->any = s == REMIXDB_OK;
    if (v->any && unlikely(erased))
      v->rec = (struct kv_rec){.key = v->rec.key, .klen = v->rec.klen, .kind = KV_TOMB, .seq = v->rec.seq};
    return s;
  }
  return REMIXDB_OK;
}

// Begins a stream of `take` runs of the view, the newest but `newer` ones, at its first record. In both views `all`
// runs are read at once.
static enum remixdb_status run_stream_begin(struct run_stream *v, struct remix *x, uint32_t newer, uint32_t take,
                                            uint32_t all, struct job *j, struct blkio_queue *queue) {
  struct compact *const c = j->c;
  if (take == 0) return REMIXDB_OK;
  assert(newer + take <= x->nr_runs && !v->whole);
  const enum remixdb_status whole = remix_whole(x, &v->whole);
  if (whole != REMIXDB_OK) return whole;
  v->j = j;
  v->end = x->nr_runs - newer;
  v->first = v->end - take;
  v->found = v->any_erased = false;
  remix_walk_init(&v->walk, v->whole);
  for (uint32_t r = v->first; r < v->end; r++) {
    const enum remixdb_status s = sst_scan_create(x->runs[r], queue, &v->scans[r]);
    if (s != REMIXDB_OK) return s;
    sst_scan_limit(v->scans[r], sst_scan_share(c->ctx, all));
    atomic_fetch_add_explicit(&c->stats.read_bytes, x->runs[r]->data_size, memory_order_relaxed);
  }
  return run_stream_next(v);
}

// The same over all partitions of a job and both views of each partition. If both views have a key, the record of the
// young view is newer.
struct old_stream {
  struct job *j;
  struct worker *w;
  uint32_t next_part;  // the job's partition after the current one; nr_parts: there is none
  struct run_stream old, young;
  // The stream has returned the current record of this view, or the other view's record hides it.
  bool old_given, young_given;
  enum remixdb_status failed;  // why a record could not be read
  bool again;                  // the value of the current record is to go apart again
};

static void old_close(struct old_stream *o) {
  run_stream_close(&o->old);
  run_stream_close(&o->young);
  o->old_given = o->young_given = false;
}

static void old_init(struct old_stream *o, struct job *j, struct worker *w) {
  memset(o, 0, sizeof(*o));
  o->j = j;
  o->w = w;
  o->next_part = j->all || j->take ? 0 : j->nr_parts;
}

// Goes to the job's next partition. Fails with REMIXDB_NOTFOUND if there is none.
static enum remixdb_status old_next_part(struct old_stream *o) {
  struct job *const j = o->j;
  old_close(o);
  if (o->next_part == j->nr_parts) return REMIXDB_NOTFOUND;
  const struct part *const p = j->base->parts[j->part + o->next_part++];
  if (j->newer)
    return run_stream_begin(&o->old, part_remix(p), j->newer - part_young_runs(p), j->take, j->take, j, o->w->queue);
  const uint32_t take = j->all ? part_runs(p) : j->take, young = take < part_young_runs(p) ? take : part_young_runs(p);
  const enum remixdb_status s = run_stream_begin(&o->young, part_young(p), 0, young, take, j, o->w->queue);
  return s == REMIXDB_OK ? run_stream_begin(&o->old, part_remix(p), 0, take - young, take, j, o->w->queue) : s;
}

// The span of the older view's current record; or of the next one, which may begin a span: one record more or less goes
// apart again.
static uint32_t old_span(const struct old_stream *o) { return remix_span(o->old.walk.seg, o->old.walk.x->nr_segs); }

// Reads the next record. Fails with REMIXDB_NOTFOUND at the end. The record is valid until the next call.
static enum remixdb_status old_next(struct old_stream *o, const struct kv_rec **rec_out) {
  enum remixdb_status s = o->old_given ? run_stream_next(&o->old) : REMIXDB_OK;
  if (s == REMIXDB_OK && o->young_given) s = run_stream_next(&o->young);
  while (s == REMIXDB_OK && !o->old.any && !o->young.any) s = old_next_part(o);
  if (s == REMIXDB_CORRUPT || s == REMIXDB_IO) o->failed = s;
  if (s != REMIXDB_OK) return s;
  const struct kv_rec *const a = &o->old.rec, *const b = &o->young.rec;
  const int c = !o->young.any ? -1 : !o->old.any ? 1 : kv_cmp(kref(a->key, a->klen), kref(b->key, b->klen));
  o->old_given = c <= 0;
  o->young_given = c >= 0;
  o->old.skipped += c == 0;  // the young view hides it
  o->again = unlikely(o->j->spans) && c < 0 && (o->j->spans >> old_span(o) & 1);
  *rec_out = c < 0 ? a : b;
  return REMIXDB_OK;
}

// If the stream has failed, marks the partition that it reads. A failure of what is written says nothing about that.
static void old_end(const struct old_stream *o) {
  if (likely(o->failed == REMIXDB_OK)) return;
  assert(o->next_part > 0);
  job_unread(o->j, o->j->base->parts[o->j->part + o->next_part - 1], o->failed);
}

// The merge could not add a record of the old stream. Tells the stream if the record itself is wrong.
static void old_not_added(struct old_stream *o, const struct kv_rec *rec) {
  struct value_ref to;
  if (rec->kind & KV_APART && !value_ref_get(rec->val, rec->vlen, &to)) o->failed = REMIXDB_CORRUPT;
}

// A file of another program may have the name of the next number. That file keeps its name, and the number is skipped.
uint64_t compact_new_number(struct compact *c, void (*name_of)(char *buf, uint64_t number)) {
  for (;;) {
    char name[32];
    struct env_stat st;
    const uint64_t number = atomic_fetch_add_explicit(&c->next_file, 1, memory_order_relaxed);
    name_of(name, number);
    if (env_stat(c->ctx->dir, name, &st) != REMIXDB_OK) return number;
  }
}

enum remixdb_status tables_remove_new(const struct compact *c, const char *name, enum remixdb_status why) {
  IGNORED(env_unlink(c->ctx->dir, name), "the next opening of the store removes the file");
  return why;
}

struct table_writer {
  struct job *j;
  struct sst_build *build;
  uint64_t number;  // the number of the table being built; 0: none
  bool drop_tombs;
  uint64_t expired_ms;        // records with an expiry up to this time have expired
  struct seqs seqs;           // the bounds of all records' numbers
  uint64_t expected;          // bytes of all records in tables, about
  uint64_t seen;              // bytes of records so far, in tables
  uint64_t apart, reported;   // bytes that went apart; bytes of both kinds that were reported
  uint32_t apart_from;        // compact/apart.h
  uint32_t since;             // records since the last report,
  uint32_t left_out;          // and how many of them, and of those that they hide, get no entry
  uint32_t cuts;              // the job's cuts that were passed
  uint32_t id;                // the last record's space; 0: none yet
  bool dropped;               // that space is dropped
  uint8_t ref[VALUE_REF];     // the last record's reference
  struct value_merge *merge;  // values go apart again: it gets the records first; NULL: they do not
};

// Makes room for one more table of the job.
static enum remixdb_status table_room(struct job *j) {
  if (j->nr_tables < j->cap_tables) return REMIXDB_OK;
  struct sst **const grown = mem_grow32(j->tables, &j->cap_tables, 8, sizeof(*grown));
  if (!grown) return REMIXDB_NOMEM;
  j->tables = grown;
  return REMIXDB_OK;
}

// Finishes and opens the table being built, if there is one.
static enum remixdb_status table_end(struct table_writer *tw) {
  struct job *const j = tw->j;
  struct compact *const c = j->c;
  const uint64_t number = tw->number;
  if (number == 0) return REMIXDB_OK;
  tw->number = 0;
  uint64_t size;
  enum remixdb_status s = sst_build_finish(tw->build, &size);
  if (s != REMIXDB_OK) return s;
  atomic_fetch_add_explicit(&c->stats.table_bytes, size, memory_order_relaxed);
  s = table_room(j);
  if (s == REMIXDB_OK) {
    s = sst_open(c->ctx, number, &j->tables[j->nr_tables]);
    j->fresh_unread = s == REMIXDB_IO || s == REMIXDB_CORRUPT;
  }
  if (s != REMIXDB_OK) {
    char name[32];
    if (j->pack) return s;  // the pack goes
    sst_name(name, number);
    return tables_remove_new(c, name, s);
  }
  struct sst *const t = j->tables[j->nr_tables++];
  assert(kv_cmp(t->min, t->max) <= 0);
  sst_give_pieces(t, sst_build_pieces(tw->build));
  return s;
}

// Tells whether the next table of the job, or the one being built, takes more than others.
static bool table_large(const struct job *j) { return unlikely(j->most_tables && j->nr_tables + 1 >= j->most_tables); }

// A table ends when it has its share of the bytes. If only a small rest follows, and the table has room, the table
// takes the rest.
static bool table_done(const struct table_writer *tw, const struct kv_rec *next) {
  if (!sst_build_takes(tw->build, next)) return true;
  if (table_large(tw->j)) return false;
  const uint64_t share = tw->j->table_bytes;
  return sst_build_bytes(tw->build) >= share && tw->expected > tw->seen + share / 4;
}

// Whether a cut lies between the records before and this one.
static bool table_cut(struct table_writer *tw, const struct kv_rec *next) {
  const struct job *const j = tw->j;
  const uint32_t was = tw->cuts;
  while (tw->cuts < j->nr_cuts && kv_cmp(j->cuts[tw->cuts], kref(next->key, next->klen)) <= 0) tw->cuts++;
  return tw->cuts != was;
}

static void report(struct table_writer *tw) {
  const uint64_t all = tw->seen + tw->apart;
  tw->since = 0;
  atomic_fetch_add_explicit(&tw->j->c->progress, (all - tw->reported) >> COMPACT_PROGRESS_SHIFT, memory_order_relaxed);
  tw->reported = all;
  report_left_out(tw->j, &tw->left_out);
}

// Tells whether a record belongs to a space that is dropped. Records of a space follow each other.
static bool of_dropped_space(struct table_writer *tw, const struct kv_rec *rec) {
  const uint32_t id = rec->klen >= NAMES_ID ? names_id_get(rec->key) : 0;
  if (id != tw->id) {
    tw->id = id;
    tw->dropped = !names_find_id(tw->j->names, id);
  }
  return tw->dropped;
}

enum remixdb_status tables_add(const struct compact *c, const struct value_moves *moves, struct sst_build *b,
                               const struct kv_rec *rec) {
  struct kv_rec moved;
  uint8_t ref[VALUE_REF];
  if (unlikely(rec->kind & KV_APART)) {
    struct value_ref to;
    if (!value_ref_get(rec->val, rec->vlen, &to))
      return err_set(REMIXDB_CORRUPT, "%s: a record has a reference to a value that cannot be one", c->ctx->dir->path);
    if (unlikely(moves != NULL) && value_moves_follow(moves, &to)) {
      moved = *rec;
      value_ref_put(ref, &to);
      moved.val = ref;
      rec = &moved;
    }
    sst_build_apart(b, to.file, to.len);
  }
  sst_build_add(b, rec);
  return REMIXDB_OK;
}

static enum remixdb_status table_add(struct table_writer *tw, const struct kv_rec *rec) {
  struct compact *c = tw->j->c;
  if (++tw->since >= PROGRESS_EVERY || tw->seen + tw->apart - tw->reported >= PROGRESS_BYTES) {
    report(tw);
    if (unlikely(tw->number && sst_build_failed(tw->build))) return table_end(tw);
    const enum remixdb_status s = job_goes_on(tw->j);
    if (unlikely(s != REMIXDB_OK)) return s;
  }
  struct kv_rec hiding;
  if (unlikely(rec->kind & KV_EXPIRES) && rec->expiry <= tw->expired_ms) {
    // it hides older records of its key in runs that do not take part, as a tombstone does
    (void)kv_rec_set(&hiding, kref(rec->key, rec->klen), NULL, 0, KV_TOMB);
    hiding.seq = rec->seq;
    rec = &hiding;
    tw->j->hid = true;
  }
  if (tw->drop_tombs && (rec->kind & KV_TOMB || (unlikely(tw->j->names != NULL) && of_dropped_space(tw, rec)))) {
    tw->left_out++;
    return REMIXDB_OK;
  }
  tw->seen += record_bytes(rec);
  struct kv_rec with_ref;
  if (unlikely(rec->vlen >= tw->apart_from)) {
    const uint64_t off = apart_bytes(rec, tw->apart_from);
    const enum remixdb_status s = apart_put(tw->j, rec, tw->ref, &with_ref);
    if (s != REMIXDB_OK) return s;
    tw->seen -= off;
    tw->apart += off;
    rec = &with_ref;
  }
  const bool cut = unlikely(tw->j->nr_cuts) && table_cut(tw, rec);
  if (tw->number && (cut || table_done(tw, rec))) {
    const enum remixdb_status s = table_end(tw);
    if (s != REMIXDB_OK) return s;
  }
  if (tw->number == 0) {
    struct packing *const pack = tw->j->pack;
    tw->number = pack ? compact_part_number(c) : compact_new_number(c, sst_name);
    const bool large = table_large(tw->j) || tw->j->table_bytes > table_bytes(c);
    sst_build_pages(tw->build, unlikely(large) ? large_pages(c) : table_pages(c));
    if (pack) sst_build_start_in(tw->build, tw->number, pack);
    else sst_build_start(tw->build, tw->number);
    sst_build_numbers(tw->build, tw->seqs.min, tw->seqs.max);
    if (tw->j->tree == TREE_SPACES) sst_build_spaces(tw->build);
  }
  return tables_add(c, tw->j->moves, tw->build, rec);
}

static enum remixdb_status table_take(void *arg, const struct kv_rec *rec) { return table_add(arg, rec); }

static enum remixdb_status write_record(struct table_writer *tw, const struct kv_rec *rec, bool again) {
  return likely(!tw->merge) ? table_add(tw, rec) : value_merge_add(tw->merge, rec, again);
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
    const int c = !has_new   ? 1
                  : !has_old ? -1
                             : kv_cmp(kref(new_rec.key, new_rec.klen), kref(old_rec->key, old_rec->klen));
    if ((s = write_record(tw, c <= 0 ? &new_rec : old_rec, c > 0 && old->again)) != REMIXDB_OK) {
      if (c > 0) old_not_added(old, old_rec);
      return s;
    }
    tw->left_out += c == 0;
    if (c <= 0) {
      range_next(range);
      if ((has_new = range_valid(range))) range_record(range, &new_rec);
    }
    if (c >= 0) {
      s = old_next(old, &old_rec);
      if (s != REMIXDB_OK && s != REMIXDB_NOTFOUND) return s;
      has_old = s == REMIXDB_OK;
    }
  }
  s = tw->merge ? value_merge_end(tw->merge) : REMIXDB_OK;
  report(tw);
  if (s == REMIXDB_OK) s = table_end(tw);
  return s == REMIXDB_OK ? apart_end(tw->j) : s;
}

// The bounds of all records that the job's tables get.
static struct seqs job_seqs(const struct job *j) {
  struct seqs s = j->seqs;
  for (uint32_t i = 0; i < j->nr_parts && (j->all || j->take); i++) {
    const struct part *const p = j->base->parts[j->part + i];
    const uint32_t end = part_runs(p) - j->newer;
    for (uint32_t r = j->all ? 0 : end - j->take; r < end; r++)
      seqs_add(&s, part_run(p, r)->seq_min, part_run(p, r)->seq_max);
  }
  return s;
}

// Pages of the job's tables, about, unless an estimate was wrong.
static uint64_t job_pages(const struct job *j) {
  const uint64_t pages = j->table_bytes / BLOCK_PAGE;
  return pages > table_pages(j->c) ? pages : table_pages(j->c);
}

// Bytes that the job takes, about: see compact_scan_room.
static uint64_t job_memory(const struct job *j, bool pieces) {
  const struct compact *const c = j->c;
  uint64_t runs = j->all ? 0 : j->take;
  for (uint32_t i = 0; i < j->nr_parts && j->all; i++)
    if (part_runs(j->base->parts[j->part + i]) > runs) runs = part_runs(j->base->parts[j->part + i]);
  const uint64_t reads = 2 * runs * sst_scan_share(c->ctx, (uint32_t)(runs ? runs : 1));
  const uint64_t values = j->spans ? VALUE_MERGE_MEMORY : 0;
  return reads + values + TABLE_BYTES + (pieces ? 2 * job_pages(j) * sizeof(struct sst_pieces) : 0);
}

static void write_job(struct job *j, struct worker *w, bool pieces) {
  struct compact *const c = j->c;
  assert(writes_tables(j) && j->table_bytes > 0 && j->nr_tables == 0);
  struct range *range = mem_alloc(sizeof(*range));
  struct old_stream old;
  old_init(&old, j, w);
  struct table_writer tw = {.j = j, .drop_tombs = j->all || j->append, .seqs = job_seqs(j)};
  tw.expired_ms = atomic_load_explicit(&c->expired_ms, memory_order_relaxed);
  tw.expected = plan_merged_bytes(j, j->take);
  tw.apart_from = apart_from(c);
  struct sst_build_opts opts = compact_build_opts(c);
  opts.pieces = pieces;
  opts.brief = j->young;
  enum remixdb_status s = range ? sst_build_create(c->ctx, &opts, w->queue, &tw.build) : REMIXDB_NOMEM;
  if (s == REMIXDB_OK && j->spans) s = value_merge_create(j, table_take, &tw, &tw.merge);
  if (s == REMIXDB_OK) s = job_goes_on(j);
  if (s == REMIXDB_OK) {
    range_begin(range, j, w);
    s = write_merged(&tw, range, &old);
  }
  old_close(&old);
  old_end(&old);
  if (s != REMIXDB_OK) job_fail(j, s);  // before the builder's clean-up can set another message
  sst_build_destroy(tw.build);
  value_merge_destroy(tw.merge);
  mem_free(range);
}

void tables_write(struct job *j, struct worker *w) {
  struct budget *const b = j->c->ctx->budget;
  const bool pieces = j->pieces && budget_pieces_fit(b, job_pages(j) * sizeof(struct sst_pieces));
  const uint64_t bytes = job_memory(j, pieces);
  budget_work_begin(b, bytes);
  write_job(j, w, pieces);
  budget_work_end(b, bytes);
}

struct kref tables_separator(const struct sst *before, const struct sst *after) {
  const uint32_t lcp = kv_lcp_from(before->max, after->min, 0);
  assert(kv_cmp(before->max, after->min) < 0);
  return kref(after->min.ptr, lcp < after->min.len ? lcp + 1 : after->min.len);
}
