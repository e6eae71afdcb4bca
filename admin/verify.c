// SPDX-License-Identifier: Apache-2.0
#include "admin/verify.h"

#include <inttypes.h>

#include "store/idle.h"
#include "table/scan.h"
#include "value/read.h"

#define REPORT_BYTES (1u << 20)  // bytes of records between two reports

struct verifier {
  struct xdb *x;
  const struct super *super;
  struct sst_ctx ctx;  // for the tables opened here: without the cache
  struct blkio_queue *queue;
  struct epoch_slot *slot;  // the ref's
  struct sst_hold hold;     // for looking records up
  struct verify_report report;
  struct err_saved first;  // the first damage, else the first unread file; REMIXDB_ABORTED: the user gave up
  const struct progress *progress;
  uint64_t done, total;  // bytes of keys and values, also of the log's
  uint64_t told;         // at the last report
};

static bool given_up(const struct verifier *v) { return v->first.status == REMIXDB_ABORTED; }

// Counts bytes of records that were read. Tables are read again after damage, and count again. So this reports less
// than the total, and verify_store reports the end.
static enum remixdb_status went_on(struct verifier *v, uint64_t bytes) {
  v->done += bytes;
  if (v->done - v->told < REPORT_BYTES) return REMIXDB_OK;
  v->told = v->done;
  return progress_report(v->progress, "verify", v->done < v->total ? v->done : v->total - 1, v->total);
}

// Takes note of a failure. REMIXDB_ABORTED: the user gave up. REMIXDB_NOMEM: a file could not be read for lack of
// memory or descriptors, and may be whole. Any other status: a file is damaged.
static void found(struct verifier *v, enum remixdb_status s) {
  if (s == REMIXDB_ABORTED) {
    err_save(&v->first, s);
    return;
  }
  const bool unread = s == REMIXDB_NOMEM;
  const bool first = unread ? v->report.damaged + v->report.unread == 0 : v->report.damaged == 0;
  if (first) err_save(&v->first, s);
  *(unread ? &v->report.unread : &v->report.damaged) += 1;
  xdb_say(v->x, unread ? "verify: could not be read: %s" : "verify: %s", err_msg());
}

// Tells whether a newer record hides this record of a table. The value apart of a hidden record may be gone.
static bool is_hidden(struct verifier *v, const struct kv_rec *rec) {
  bool hidden = true;
  epoch_enter(&v->x->epoch, v->slot);
  // The tree of the record is not known here. A reference is in one tree only.
  for (const struct version *tree = v->super->version; tree && hidden; tree = tree->spaces) {
    struct kv_rec newest;
    const enum remixdb_status s = version_get(tree, kref(rec->key, rec->klen), &v->hold, &newest);
    const bool same = s == REMIXDB_OK && newest.kind & KV_APART && newest.vlen == rec->vlen &&
                      memcmp(newest.val, rec->val, rec->vlen) == 0;
    hidden = s == REMIXDB_NOTFOUND || (s == REMIXDB_OK && !same);
  }
  epoch_exit(v->slot);
  return hidden;
}

// Reads a record's value if it is apart. key: the record's. A damaged value does not end the reading of the table.
static enum remixdb_status check_apart(struct verifier *v, const struct kv_rec *rec) {
  struct value_ref to;
  struct value_file *f;
  if (likely(!(rec->kind & KV_APART))) return REMIXDB_OK;
  enum remixdb_status s = super_value(v->super, rec, &to, &f);
  if (s != REMIXDB_OK && value_ref_get(rec->val, rec->vlen, &to) && is_hidden(v, rec)) return REMIXDB_OK;
  if (s == REMIXDB_OK) s = value_check(f, &to, kref(rec->key, rec->klen));
  if (s != REMIXDB_OK) {
    found(v, s);
    return REMIXDB_OK;
  }
  v->report.values++;
  v->report.bytes += to.len;
  return went_on(v, to.len);
}

// ---- a table

// A table's records in order. Each is checked against the record before it and against the compressed keys.
struct stream {
  struct verifier *v;
  struct sst *t;
  struct sst_scan *scan;
  struct sst_keys keys;
  bool has_keys;
  uint8_t *last;  // a copy of the last key
  uint32_t last_len, last_cap;
  uint64_t nr_records, nr_tombs, key_bytes, value_bytes;
};

static enum remixdb_status key_copy(uint8_t **buf, uint32_t *cap, struct kref key) {
  if (key.len > *cap) {
    uint8_t *grown = mem_realloc(*buf, key.len);
    if (!grown) return REMIXDB_NOMEM;
    *buf = grown;
    *cap = key.len;
  }
  if (key.len) memcpy(*buf, key.ptr, key.len);
  return REMIXDB_OK;
}

static void stream_close(struct stream *st) {
  if (st->has_keys) sst_keys_close(&st->keys);
  sst_scan_destroy(st->scan);
  sst_unref(st->t);
  mem_free(st->last);
  *st = (struct stream){0};
}

// A file of the right name may have come from elsewhere since the store was opened.
static enum remixdb_status check_print(const char *path, uint64_t print, uint64_t want) {
  return print == want ? REMIXDB_OK : err_corrupt(path, 0, "is not the file that the store was opened with");
}

// table: as the version has it.
static enum remixdb_status stream_open(struct stream *st, struct verifier *v, const struct sst *table) {
  *st = (struct stream){.v = v};
  enum remixdb_status s = sst_open(&v->ctx, table->number, &st->t);
  if (s == REMIXDB_OK) s = check_print(st->t->path, st->t->print, table->print);
  if (s == REMIXDB_OK) s = sst_scan_create(st->t, v->queue, &st->scan);
  if (s == REMIXDB_OK && st->t->ckb_len) {
    s = sst_keys_open(st->t, v->queue, &st->keys);
    st->has_keys = s == REMIXDB_OK;
  }
  if (s != REMIXDB_OK) {
    err_cleanup_begin();
    stream_close(st);
    err_cleanup_end();
  }
  return s;
}

// Gives the next record. REMIXDB_NOTFOUND: there is none.
static enum remixdb_status stream_next(struct stream *st, struct kv_rec *rec) {
  const struct sst *t = st->t;
  sst_pos pos;
  enum remixdb_status s = sst_scan_next(st->scan, rec, &pos);
  if (s != REMIXDB_OK) return s;
  const struct kref key = kref(rec->key, rec->klen);
  const uint64_t off = (uint64_t)sst_pos_block(pos) * BLOCK_PAGE;
  if (st->nr_records && kv_cmp(kref(st->last, st->last_len), key) >= 0)
    return err_corrupt(t->path, off, "keys do not ascend at record %u of block %u", sst_pos_idx(pos),
                       sst_pos_block(pos));
  if (st->nr_records == 0 && !kv_eq(key, t->min))
    return err_corrupt(t->path, off, "the first key is not the smallest one of the metadata");
  if ((s = key_copy(&st->last, &st->last_cap, key)) != REMIXDB_OK) return s;
  st->last_len = key.len;
  st->nr_records++;
  st->nr_tombs += rec->kind & KV_TOMB;
  st->key_bytes += rec->klen;
  st->value_bytes += rec->vlen;
  if ((s = went_on(st->v, (uint64_t)rec->klen + rec->vlen)) != REMIXDB_OK || !st->has_keys) return s;
  s = sst_keys_next(&st->keys);
  if (s == REMIXDB_NOTFOUND) return err_corrupt(t->path, t->ckb_off, "the compressed keys end before the data");
  if (s == REMIXDB_OK && (!kv_eq(st->keys.key, key) || st->keys.kind != rec->kind || st->keys.pos != pos))
    return err_corrupt(t->path, t->ckb_off, "compressed key %" PRIu64 " is not that of the data", st->nr_records - 1);
  return s;
}

// At the end of the records.
static enum remixdb_status stream_end(struct stream *st) {
  const struct sst *t = st->t;
  if (st->nr_records != t->nr_records || st->nr_tombs != t->nr_tombs || st->key_bytes != t->key_bytes ||
      st->value_bytes != t->value_bytes)
    return err_corrupt(t->path, t->data_size, "counts in the metadata are not those of the data");
  if (st->nr_records && !kv_eq(kref(st->last, st->last_len), t->max))
    return err_corrupt(t->path, t->data_size, "the last key is not the largest one of the metadata");
  if (st->has_keys) {
    const enum remixdb_status s = sst_keys_next(&st->keys);
    if (s != REMIXDB_NOTFOUND)
      return s == REMIXDB_OK ? err_corrupt(t->path, t->ckb_off, "more compressed keys than data") : s;
  }
  st->v->report.tables++;
  st->v->report.records += st->nr_records;
  st->v->report.bytes += t->file_size;
  return REMIXDB_OK;
}

// Checks a table alone, from the beginning.
static void verify_table(struct verifier *v, const struct sst *of) {
  struct stream st;
  struct kv_rec rec;
  enum remixdb_status s = stream_open(&st, v, of);
  if (s == REMIXDB_OK) {
    while ((s = stream_next(&st, &rec)) == REMIXDB_OK && (s = check_apart(v, &rec)) == REMIXDB_OK) {}
    if (s == REMIXDB_NOTFOUND) s = stream_end(&st);
    if (s != REMIXDB_OK) found(v, s);
    stream_close(&st);
  } else {
    found(v, s);
  }
}

// ---- a partition

// The last entry of a walk over a REMIX.
struct walked {
  uint8_t *key;  // a copy
  uint32_t len, cap;
  uint32_t run;
  bool any;
};

// Checks one entry of the REMIX against its record.
static enum remixdb_status check_entry(const struct remix *x, const struct remix_walk *w, const struct walked *prev,
                                       const struct kv_rec *rec, struct kref low, struct kref high) {
  const struct kref key = kref(rec->key, rec->klen), before = kref(prev->key, prev->len);
  const uint8_t sel = w->sel[w->at];
  const uint64_t seg = w->seg;
#define WRONG(what) err_corrupt(x->path, 0, "segment %" PRIu64 ", entry %u: %s", seg, w->at, what)
  const int c = prev->any ? kv_cmp(before, key) : -1;
  if (c > 0) return WRONG("keys do not ascend");
  if ((c == 0) != ((sel & REMIX_OLD) != 0)) return WRONG("old versions are not marked as such");
  if (c == 0 && (sel & REMIX_RUN) >= prev->run) return WRONG("versions of a key are not in order of age");
  const uint8_t kind = remix_sel_kind(rec->kind), marks = sel & REMIX_ERASED;
  if (marks != REMIX_ERASED && (marks & REMIX_TOMB) != (kind & REMIX_TOMB))
    return WRONG("tombstones are not marked as such");
  if (marks != REMIX_ERASED && (marks & REMIX_EXPIRES) != (kind & REMIX_EXPIRES))
    return WRONG("records that expire are not marked as such");
  if (w->tag && w->tag[w->at] != remix_tag(hash64(key.ptr, key.len))) return WRONG("wrong tag");
  if (kv_cmp(key, low) < 0 || (high.ptr && kv_cmp(key, high) >= 0)) return WRONG("key outside of its partition");
  if (w->at == 0) {
    if (remix_anchor_cmp(x, w->seg, key) > 0 || (prev->any && remix_anchor_cmp(x, w->seg, before) <= 0))
      return WRONG("the anchor does not separate the segments");
  }
  const char *const wrong = remix_walk_wrong(w, before, key);
  if (wrong) return WRONG(wrong);
#undef WRONG
  return REMIXDB_OK;
}

// Walks the view and all its tables together. *bad_out: the run that cannot be read; UINT32_MAX: the REMIX is wrong.
static enum remixdb_status walk_view(const struct remix *x, struct stream *runs, struct kref low, struct kref high,
                                     uint32_t *bad_out) {
  struct remix_walk w;
  struct walked prev = {0};
  enum remixdb_status s = REMIXDB_OK;
  struct kv_rec rec;
  *bad_out = UINT32_MAX;
  for (remix_walk_init(&w, x); remix_walk_valid(&w) && s == REMIXDB_OK; remix_walk_next(&w)) {
    const uint32_t run = w.sel[w.at] & REMIX_RUN;
    s = stream_next(&runs[run], &rec);
    if (s == REMIXDB_NOTFOUND) s = err_corrupt(x->path, 0, "segment %u has more entries than the tables", w.seg);
    else if (s != REMIXDB_OK) *bad_out = run;
    if (s == REMIXDB_OK) s = check_entry(x, &w, &prev, &rec, low, high);
    // An old record's value may be gone: nobody reads it.
    if (s == REMIXDB_OK && !(w.sel[w.at] & REMIX_OLD)) s = check_apart(runs[run].v, &rec);
    if (s == REMIXDB_OK) s = key_copy(&prev.key, &prev.cap, kref(rec.key, rec.klen));
    prev.len = rec.klen;
    prev.run = run;
    prev.any = true;
  }
  for (uint32_t r = 0; r < x->nr_runs && s == REMIXDB_OK; r++) {
    s = stream_next(&runs[r], &rec);
    if (s == REMIXDB_OK) s = err_corrupt(x->path, 0, "lacks entries of table %" PRIu64, runs[r].t->number);
    else if (s != REMIXDB_NOTFOUND) *bad_out = r;
    else if ((s = stream_end(&runs[r])) != REMIXDB_OK) *bad_out = r;
  }
  mem_free(prev.key);
  return s;
}

static void verify_view(struct verifier *v, const struct remix *x, struct kref low, struct kref high) {
  struct stream *runs = mem_calloc(x->nr_runs, sizeof(*runs));
  struct sst **tables = mem_calloc(x->nr_runs, sizeof(*tables));
  struct remix *fresh = NULL;
  enum remixdb_status s = runs && tables ? REMIXDB_OK : REMIXDB_NOMEM;
  uint32_t opened = 0, bad = UINT32_MAX;
  if (s != REMIXDB_OK) found(v, s);
  for (; opened < x->nr_runs && s == REMIXDB_OK; opened += s == REMIXDB_OK) {
    s = stream_open(&runs[opened], v, x->runs[opened]);
    if (s == REMIXDB_OK) tables[opened] = runs[opened].t;
    else bad = opened;
  }
  if (s == REMIXDB_OK) s = remix_open(&v->ctx, x->number, tables, x->nr_runs, &fresh);
  if (s == REMIXDB_OK) s = check_print(fresh->path, fresh->print, x->print);
  if (s == REMIXDB_OK) s = walk_view(fresh, runs, low, high, &bad);
  if (s == REMIXDB_OK) {
    v->report.remixes++;
    v->report.bytes += fresh->file_size;
  } else if (runs && tables) {
    found(v, s);
  }
  for (uint32_t r = 0; r < opened; r++) stream_close(&runs[r]);
  remix_unref(fresh);
  // The walk ended early, so the other tables were not read to their ends.
  for (uint32_t r = 0; s != REMIXDB_OK && runs && tables && r < x->nr_runs && !given_up(v); r++)
    if (r != bad) verify_table(v, x->runs[r]);
  mem_free(runs);
  mem_free(tables);
}

static void verify_current(struct verifier *v) {
  const struct xdb *const x = v->x;
  uint64_t store_id;
  enum remixdb_status s = version_peek(&x->home, &store_id);
  if (s == REMIXDB_NOTFOUND) s = err_set(REMIXDB_CORRUPT, "%s: " FILES_CURRENT " is missing", x->dir);
  if (s == REMIXDB_OK && store_id != x->store_id)
    s = err_set(REMIXDB_CORRUPT, "%s: " FILES_CURRENT " is of another store", x->dir);
  if (s != REMIXDB_OK) found(v, s);
}

static enum remixdb_status logged(void *arg, uint64_t seq, const struct kv_rec *rec) {
  struct verifier *const v = arg;
  struct value_ref to;
  struct value_file *f;
  (void)seq;
  if (unlikely(rec->kind & KV_APART)) {
    // A record that was logged after the call began may refer to a file that this super does not have.
    err_cleanup_begin();
    const bool there = super_value(v->super, rec, &to, &f) == REMIXDB_OK;
    err_cleanup_end();
    if (there) return check_apart(v, rec);
  }
  return went_on(v, (uint64_t)rec->klen + rec->vlen);
}

// The opening of a read-only store has read the log already.
static void verify_log(struct verifier *v) {
  const struct xdb *const x = v->x;
  struct wal_recovery seen = {0};
  enum remixdb_status s = REMIXDB_OK;
  if (x->opts.read_only) seen = x->recovery;
  else if (x->wal) s = wal_verify(x->wal, logged, v, &seen);
  if (s != REMIXDB_OK) found(v, s);
  v->report.log_records = seen.nr_records;
  v->report.bytes += seen.bytes;
}

// The indexes of collected value files, as they are on the disk.
static void verify_moves(struct verifier *v) {
  const struct value_moves *const m = &v->super->version->moves;
  for (uint32_t i = 0; i < m->nr && !given_up(v); i++) {
    const struct value_index *const of = m->all[i];
    struct value_index *fresh = NULL;
    const enum remixdb_status s = value_index_open(of->file, of->number, of->bytes, &of->ref, &fresh);
    if (s != REMIXDB_OK) found(v, s);
    else v->report.bytes += of->ref.len;
    value_index_unref(fresh);
  }
}

// The partitions of a tree.
static void verify_parts(struct verifier *v, const struct version *version) {
  for (uint32_t i = 0; i < version->nr_parts && !given_up(v); i++) {
    const struct kref high = i + 1 < version->nr_parts ? part_anchor(version->parts[i + 1]) : kref(NULL, 0);
    const struct part *const p = version->parts[i];
    const enum remixdb_status s = part_ready(p);
    if (s != REMIXDB_OK) found(v, s);
    if (part_remix(p)) verify_view(v, part_remix(p), part_anchor(p), high);
    if (part_young(p) && !given_up(v)) verify_view(v, part_young(p), part_anchor(p), high);
  }
}

// Estimates the bytes of all records in tables and in the log. Adds one, so the total is never 0.
static uint64_t bytes_of(const struct xdb *x, const struct version *version) {
  uint64_t bytes = 1;
  for (const struct version *tree = version; tree; tree = tree->spaces)
    for (uint32_t i = 0; i < tree->nr_parts; i++)
      for (uint32_t r = 0; r < part_runs(tree->parts[i]); r++) {
        const struct sst *const t = part_run(tree->parts[i], r);
        bytes += t->key_bytes + t->value_bytes;
        for (uint32_t k = 0; k < t->nr_apart; k++) bytes += t->apart[k].bytes;
      }
  return x->wal && !x->opts.read_only ? bytes + wal_segment_bytes(x->wal) : bytes;
}

static void summarize(const struct verifier *v) {
  const struct verify_report *const r = &v->report;
  xdb_say(v->x,
          "verify: %" PRIu64 " table%s and %" PRIu64 " index%s with %" PRIu64 " record%s, %" PRIu64
          " value%s apart, and %" PRIu64 " record%s of the log, are whole; %" PRIu64
          " byte%s read, %u file%s damaged, %u could not be read",
          r->tables, err_s(r->tables), r->remixes, r->remixes == 1 ? "" : "es", r->records, err_s(r->records),
          r->values, err_s(r->values), r->log_records, err_s(r->log_records), r->bytes, err_s(r->bytes), r->damaged,
          err_s(r->damaged), r->unread);
}

enum remixdb_status verify_store(struct xdb_ref *r, struct verify_report *report_out) {
  struct xdb *x = r->xdb;
  struct verifier v = {.x = x,
                       .ctx = x->ctx,
                       .queue = blkio_shared(&x->io),
                       .slot = &r->slot,
                       .first = {.status = REMIXDB_OK},
                       .progress = &r->progress};
  v.ctx.cache = NULL;
  v.ctx.retired = NULL;
  uint64_t moment;
  struct super *super = xdb_ref_hold(r, &moment);
  v.super = super;
  IGNORED(version_ready(super->version, NULL, NULL), "verify_parts finds the failure again");
  v.total = bytes_of(x, super->version);
  enum remixdb_status s = progress_report(v.progress, "verify", 0, v.total);
  if (s != REMIXDB_OK) found(&v, s);
  if (!given_up(&v)) verify_current(&v);
  if (!given_up(&v)) verify_log(&v);
  if (!given_up(&v)) verify_moves(&v);
  for (const struct version *tree = super->version; tree; tree = tree->spaces) verify_parts(&v, tree);
  sst_hold_fini(&v.hold);
  xdb_super_drop(x, super);
  if (!given_up(&v)) summarize(&v);
  if (report_out) *report_out = v.report;
  if ((s = err_raise(&v.first)) != REMIXDB_OK) return s;
  return progress_report(v.progress, "verify", v.total, v.total);
}
