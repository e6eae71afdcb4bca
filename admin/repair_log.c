// SPDX-License-Identifier: Apache-2.0
//
// Reading a damaged store's log.
//
// CURRENT tells which segments the store had released because tables have their records. Without CURRENT such a segment
// may still be among the files, and tables may have newer records of its keys: those of an ingest, which are not in the
// log, and those that a hole in the log has taken. Sequence numbers tell (admin/repair_numbers.h): a record is left out
// if a table has a larger number for its key. The deletion of a range would take everything in the range from the
// tables' records, so it is left out if a table in the range has a larger number. Then deleted keys may come back.
//
// Records before the last hole are doubtful, unless the hole is in the newest segment, which is never released.
// Tables of formats 1 and 2 have no numbers, and those of a table with damaged metadata are not known. For their keys
// the repair guesses about doubtful records: if such tables have exactly the value of some record of a segment, the
// store had released that segment and all older ones. The repair keeps a doubtful record of a released segment only if
// the tables have no record of its key. It leaves doubtful deletions of ranges out.
#include <inttypes.h>
#include <stdlib.h>

#include "admin/repair_numbers.h"

#include "store/snapshot.h"

struct logging {
  struct repair *p;
  struct wal_salvage out;          // the position and the results of the reading
  uint64_t doubt;                  // records before this sequence number are doubtful
  uint64_t hole, hole_gen;         // the last hole: its first sequence number, and the generation that was being read
  uint64_t least;                  // the smallest number of a record
  uint64_t older;                  // records that are older than the tables' records of their keys
  uint64_t ranges;                 // deletions of ranges that were left out
  uint64_t released;               // segments up to this generation were released; 0: none
  uint64_t left_out, taken;        // doubtful records against which the tables have another value
  struct repair_numbers *numbers;  // the tables'; NULL: CURRENT tells what is newer
  struct xdb_snapshot *tables;     // the new store with the tables' records alone
  struct xdb_ref *ref;             // a ref of that snapshot
};

// ---- doubt

static void see_hole(void *arg, const struct wal_loss *l) {
  struct logging *const g = arg;
  if (l->torn || l->parted || l->first_seq == 0) return;
  if (l->missing && l->gen > g->out.gen) {  // the newest segment is missing, so the others may all be released
    g->doubt = UINT64_MAX;
    return;
  }
  if (g->hole && g->out.gen > g->hole_gen && g->hole > g->doubt) g->doubt = g->hole;
  g->hole = l->first_seq;
  g->hole_gen = g->out.gen;
}

static enum remixdb_status see_record(void *arg, uint64_t seq, const struct kv_rec *rec) {
  struct logging *const g = arg;
  (void)seq;
  if (rec->seq < g->least) g->least = rec->seq;
  return REMIXDB_OK;
}

// Tells whether the tables' value of the key, which has so many bytes, is the one of the record.
static enum remixdb_status same_value(struct logging *g, const struct kv_rec *rec, uint32_t len, bool *out) {
  struct repair *const p = g->p;
  uint8_t *apart = NULL, *const val = mem_alloc(len ? len : 1);
  uint32_t vlen = rec->vlen, n;
  enum remixdb_status s = val ? xdb_get(g->ref, kref(rec->key, rec->klen), val, len, &n) : REMIXDB_NOMEM;
  if (s == REMIXDB_OK && rec->kind & KV_APART) {
    bool hidden;
    s = repair_value(p, rec, &apart, &vlen, &hidden);
    if (s == REMIXDB_CORRUPT || s == REMIXDB_IO) {  // repair_keep reports it
      vlen = UINT32_MAX;
      s = REMIXDB_OK;
    }
  }
  const uint8_t *const other = apart ? apart : rec->val;
  *out = s == REMIXDB_OK && len == vlen && (len == 0 || memcmp(val, other, len) == 0);
  mem_free(apart);
  mem_free(val);
  return s;
}

// *any_out: the tables have a value of the key. *same_out: they have exactly this value.
static enum remixdb_status tables_have(struct logging *g, const struct kv_rec *rec, bool *same_out, bool *any_out) {
  uint32_t len = 0;
  g->ref->tree = rec->kind & KV_SPACES ? TREE_SPACES : TREE_UNNAMED;  // the record's key is one of the tree
  const enum remixdb_status s = xdb_get(g->ref, kref(rec->key, rec->klen), NULL, 0, &len);
  *same_out = false;
  *any_out = s == REMIXDB_OK;
  if (s != REMIXDB_OK) return s == REMIXDB_NOTFOUND ? REMIXDB_OK : s;
  return !(rec->kind & KV_TOMB) && len == super_vlen(rec) ? same_value(g, rec, len, same_out) : REMIXDB_OK;
}

static enum remixdb_status see_release(void *arg, uint64_t seq, const struct kv_rec *rec) {
  struct logging *const g = arg;
  uint64_t number;
  bool same = false, any;
  // A record that states a number of its own was handed back: its memtable's round has written it to tables as well, if
  // it was tried again.
  if (seq >= g->doubt || g->released == g->out.gen || rec->kind & KV_RANGE || rec->seq != seq) return REMIXDB_OK;
  enum remixdb_status s = repair_numbers_find(g->numbers, rec, &number);
  if (s != REMIXDB_OK || number) return s;
  s = tables_have(g, rec, &same, &any);
  if (s == REMIXDB_OK && same) g->released = g->out.gen;  // segments come from the oldest to the newest
  return s;
}

// ---- keeping

// Decides about a doubtful record of a key for which no number is known.
static enum remixdb_status guess(struct logging *g, const struct kv_rec *rec, bool *keep_out) {
  bool same, any;
  const enum remixdb_status s = tables_have(g, rec, &same, &any);
  if (s != REMIXDB_OK) return s;
  *keep_out = !any || g->out.gen > g->released;
  if (any && !same) ++*(*keep_out ? &g->taken : &g->left_out);
  return s;
}

// *keep_out: the deletion of a range takes no newer record from the tables.
static void judge_range(struct logging *g, bool doubtful, const struct kv_rec *rec, bool *keep_out) {
  *keep_out = !(doubtful && repair_numbers_partial(g->numbers)) && !repair_numbers_newer(g->numbers, rec);
  g->ranges += !*keep_out;
}

// *keep_out: no table hides the record.
static enum remixdb_status judge(struct logging *g, uint64_t seq, const struct kv_rec *rec, bool *keep_out) {
  const bool doubtful = seq < g->doubt;
  uint64_t number;
  if (rec->kind & KV_RANGE) {
    judge_range(g, doubtful, rec, keep_out);
    return REMIXDB_OK;
  }
  const enum remixdb_status s = repair_numbers_find(g->numbers, rec, &number);
  if (s != REMIXDB_OK) return s;
  if (number == 0 && doubtful && repair_numbers_partial(g->numbers)) return guess(g, rec, keep_out);
  *keep_out = number <= rec->seq;
  g->older += !*keep_out;
  return s;
}

static enum remixdb_status keep_logged(void *arg, uint64_t seq, const struct kv_rec *rec) {
  struct logging *const g = arg;
  bool keep = true;
  const enum remixdb_status s = g->numbers ? judge(g, seq, rec, &keep) : REMIXDB_OK;
  if (s != REMIXDB_OK) return s;
  return keep ? repair_keep(g->p, rec) : REMIXDB_OK;
}

static void tell_loss(void *arg, const struct wal_loss *l) {
  struct logging *const g = arg;
  char text[WAL_LOSS_TEXT];
  const char *dots, *const end = err_path(l->path, &dots);
  (void)wal_loss_text(l, text, sizeof(text));
  const uint64_t lost = l->first_seq && l->last_seq >= l->first_seq ? l->last_seq - l->first_seq + 1 : 0;
  if (l->parted)
    repair_lose(g->p, 0, true,
                "%s%s: generation %" PRIu64
                " of the log is of another history of the store, or follows a segment that is: records may be missing",
                dots, end, l->gen);
  else if (l->torn)
    repair_note(g->p,
                "%s%s: offset %" PRIu64 ": %" PRIu64
                " bytes of a torn tail are left out; nothing shows that they were synced",
                dots, end, l->off, l->bytes);
  else if (l->missing)
    repair_lose(g->p, lost, l->more, "%s%s: the log's generation %" PRIu64 " is missing: %s", dots, end, l->gen, text);
  else if (l->off == 0) repair_lose(g->p, lost, l->more, "%s%s: cannot be read: %s", dots, end, text);
  else
    repair_lose(g->p, lost, l->more, "%s%s: offset %" PRIu64 ", %" PRIu64 " bytes: %s", dots, end, l->off, l->bytes,
                text);
}

static enum remixdb_status read_log(struct logging *g, const struct version_names *v, wal_replay_fn record,
                                    void (*lost)(void *, const struct wal_loss *)) {
  const struct wal_opts wo = {
      .dir = &g->p->dir, .store_id = v->store_id, .printed = v->printed, .print = v->log_print, .read_only = true};
  const struct wal_salvage_to to = {.record = record, .lost = lost, .arg = g};
  return wal_read_damaged(&wo, g->p->report.version_lost ? 0 : v->log_gen, v->log_seq, &to, &g->out);
}

// Finds the segments that were released, for keys without numbers.
static enum remixdb_status look_for_release(struct logging *g, const struct version_names *v) {
  enum remixdb_status s = xdb_snapshot(g->p->r, &g->tables);
  if (s == REMIXDB_OK) s = xdb_snapshot_ref(g->tables, &g->ref);
  return s == REMIXDB_OK ? read_log(g, v, see_release, NULL) : s;
}

// Finds the doubtful records, and the numbers of the tables.
static enum remixdb_status look_ahead(struct logging *g, const struct version_names *v) {
  enum remixdb_status s = read_log(g, v, see_record, see_hole);
  if (s != REMIXDB_OK && s != REMIXDB_IO) return s;  // IO: the pass that keeps records reports it
  if (g->hole && g->out.gen > g->hole_gen && g->hole > g->doubt) g->doubt = g->hole;
  if (g->least == UINT64_MAX) return REMIXDB_OK;  // there are no records
  s = repair_numbers_open(g->p, v->tables, v->nr_tables, g->least, &g->numbers);
  if (s == REMIXDB_OK && g->doubt && repair_numbers_partial(g->numbers)) {
    // Small numbers count, too: there is no guess to make for their keys.
    repair_numbers_close(g->numbers);
    s = repair_numbers_open(g->p, v->tables, v->nr_tables, 0, &g->numbers);
    if (s == REMIXDB_OK) s = look_for_release(g, v);
  }
  return s == REMIXDB_IO ? REMIXDB_OK : s;
}

enum remixdb_status repair_log(struct repair *p, const struct version_names *v) {
  struct logging g = {.p = p, .least = UINT64_MAX};
  enum remixdb_status s = p->report.version_lost ? look_ahead(&g, v) : REMIXDB_OK;
  if (s == REMIXDB_OK) s = read_log(&g, v, keep_logged, tell_loss);
  if (s == REMIXDB_IO && !p->put_failed) {  // a file of the old log cannot be read
    repair_note(p, "%s", err_msg());
    s = REMIXDB_OK;
  }
  p->report.log_records = g.out.nr_records;
  p->report.log_bytes_lost = g.out.lost_bytes;
  if (g.left_out || g.taken)
    repair_lose(p, 0, true,
                "without " FILES_CURRENT " the order of tables and of the log before a hole is a guess: %" PRIu64
                " records of the log were left out because tables have other values, %" PRIu64
                " were kept although tables have other values; their keys may have older values",
                g.left_out, g.taken);
  if (g.older)
    repair_note(p, "%" PRIu64 " record%s of the log are left out because tables have newer ones of the same keys",
                g.older, err_s(g.older));
  if (g.ranges)
    repair_lose(p, 0, true,
                "%" PRIu64 " deletion%s of a range in the log: left out because tables may have newer records there; "
                "deleted keys may come back",
                g.ranges, err_s(g.ranges));
  repair_numbers_close(g.numbers);
  xdb_unref(g.ref);
  xdb_snapshot_release(g.tables);
  return s;
}
