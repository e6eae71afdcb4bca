// SPDX-License-Identifier: Apache-2.0
#include "store/ingest.h"

#include "compact/compact.h"
#include "store/flush.h"
#include "store/space_ref.h"
#include "store/values.h"
#include "table/build.h"

#define TELL_BYTES ((uint64_t)1 << 20)  // between two reports
#define MARK_BYTES 8u                   // bytes that make the mark's key one that nobody has
#define SYNC_BYTES VALUE_FILE           // bytes of values between two syncs: the commit has little left to sync

struct xdb_ingest {
  struct xdb_ref *ref;
  struct xdb *x;
  struct blkio_queue *queue;
  struct sst_build *build;
  uint64_t number;    // the number of the table being built; 0: none
  uint64_t *numbers;  // the finished tables' numbers
  uint32_t nr, cap;
  uint8_t *last;  // the last key, with its space
  uint32_t last_len, last_cap;
  bool any;
  uint8_t *border;  // the first key that belongs to another partition than the table; cap 0: none yet
  uint32_t border_len, border_cap;
  bool bordered;
  uint64_t bytes, told;  // bytes of records; at the last report
  struct value_log log;  // for its values that are apart (I7)
  struct value_batch values;
  uint64_t unsynced;       // bytes of them since the last sync, about
  uint64_t paced;          // the share of this ingest in xdb.collect.ingesting
  struct err_saved error;  // a put's error; the commit fails with it
};

struct xdb_ref *ingest_ref(const struct xdb_ingest *g) {
  return g->ref;
}

static enum remixdb_status keep_key(uint8_t **to, uint32_t *cap, uint32_t *len, struct kref key) {
  if (key.len > *cap || !*to) {
    const uint32_t more = key.len + key.len / 2 + 32;
    uint8_t *const p = mem_realloc(*to, more);
    if (!p) return REMIXDB_NOMEM;
    *to = p;
    *cap = more;
  }
  if (key.len) memcpy(*to, key.ptr, key.len);
  *len = key.len;
  return REMIXDB_OK;
}

static bool keep_all(void *arg, const struct value_file *f) {
  (void)arg, (void)f;
  return true;
}
static bool keep_none(void *arg, const struct value_file *f) {
  (void)arg, (void)f;
  return false;
}

// keep: the version has the files of values, or may have them; else they are removed.
static void ingest_free(struct xdb_ingest *g, bool keep) {
  err_cleanup_begin();
  if (g->log.ctx) {
    value_batch_fini(&g->values);
    value_log_turn(&g->log);
    value_log_drop(&g->log, value_log_settle(&g->log, keep ? keep_all : keep_none, NULL));
    value_log_fini(&g->log);
  }
  atomic_fetch_sub_explicit(&g->x->collect.ingesting, g->paced, memory_order_relaxed);
  sst_build_destroy(g->build);
  blkio_queue_destroy(g->queue);
  err_cleanup_end();
  mem_free(g->numbers);
  mem_free(g->last);
  mem_free(g->border);
  mem_free(g);
}

void ingest_abort(struct xdb_ingest *g) {
  if (!g) return;
  err_cleanup_begin();
  for (uint32_t i = 0; i < g->nr; i++) {
    char name[32];
    sst_name(name, g->numbers[i]);
    IGNORED(env_unlink(&g->x->home, name), "the next opening of the store removes the file");
  }
  err_cleanup_end();
  ingest_free(g, false);
}

enum remixdb_status ingest_begin(struct xdb_ref *r, struct xdb_ingest **out) {
  struct xdb *const x = r->xdb;
  enum remixdb_status s = xdb_failure(x);
  if (s == REMIXDB_OK && x->opts.read_only) s = err_set(REMIXDB_READONLY, "%s: opened with read_only", x->dir);
  if (s == REMIXDB_OK) s = space_check(r);
  if (s != REMIXDB_OK) return s;
  struct xdb_ingest *const g = mem_calloc(1, sizeof(*g));
  if (!g) return REMIXDB_NOMEM;
  g->ref = r;
  g->x = x;
  s = blkio_queue_create(&x->io, &g->queue);
  struct sst_build_opts opts = compact_build_opts(&x->compact);
  opts.pauses = true;
  if (s == REMIXDB_OK) s = sst_build_create(&x->ctx, &opts, g->queue, &g->build);
  values_log_init(x, &g->log);
  g->log.full = x->values.full;
  g->values.log = &g->log;
  if (s == REMIXDB_OK) *out = g;
  else ingest_free(g, false);
  return s;
}

static enum remixdb_status end_table(struct xdb_ingest *g) {
  const uint64_t number = g->number;
  uint64_t size;
  if (number == 0) return REMIXDB_OK;
  if (g->nr == g->cap) {
    uint64_t *const p = mem_grow32(g->numbers, &g->cap, 16, sizeof(*p));
    if (!p) return REMIXDB_NOMEM;
    g->numbers = p;
  }
  g->number = 0;
  const enum remixdb_status s = sst_build_finish(g->build, &size);
  if (s != REMIXDB_OK) return s;
  atomic_fetch_add_explicit(&g->x->compact.stats.table_bytes, size, memory_order_relaxed);
  g->numbers[g->nr++] = number;
  return s;
}

// Begins a table with this key. The table ends at the border of the partition that the key belongs to now.
static enum remixdb_status begin_table(struct xdb_ingest *g, struct kref key) {
  struct xdb *const x = g->x;
  enum remixdb_status s = REMIXDB_OK;
  uint64_t moment;
  epoch_enter(&x->epoch, &g->ref->slot);
  const struct version *const v = version_tree(xdb_ref_super(g->ref, &moment)->version, g->ref->tree);
  const uint32_t next = v ? version_find(v, key) + 1 : 0;
  g->bordered = v && next < v->nr_parts;
  if (g->bordered) s = keep_key(&g->border, &g->border_cap, &g->border_len, part_anchor(v->parts[next]));
  epoch_exit(&g->ref->slot);
  if (s != REMIXDB_OK) return s;
  g->number = compact_new_number(&x->compact, sst_name);
  sst_build_start(g->build, g->number);
  sst_build_numbers(g->build, 1, 1);  // I1
  if (g->ref->tree == TREE_SPACES) sst_build_spaces(g->build);
  return s;
}

// Writes the record's value apart. ref: VALUE_REF bytes, which become the record's value.
static enum remixdb_status put_apart(struct xdb_ingest *g, struct kv_rec *rec, uint8_t *ref) {
  enum remixdb_status s = value_batch_put(&g->values, kref(rec->key, rec->klen), rec->val, rec->vlen, ref);
  const uint64_t cost = value_cost(rec->klen, rec->vlen);
  g->paced += cost;
  atomic_fetch_add_explicit(&g->x->collect.ingesting, cost, memory_order_relaxed);
  g->unsynced += rec->vlen;
  if (s == REMIXDB_OK && g->unsynced >= SYNC_BYTES) {
    g->unsynced = 0;
    s = value_log_sync(&g->log);
  }
  if (s == REMIXDB_OK) s = value_log_pause(&g->log);
  rec->val = ref;
  rec->vlen = VALUE_REF;
  rec->kind |= KV_APART;
  return s;
}

static enum remixdb_status add(struct xdb_ingest *g, struct kv_rec *rec) {
  const struct kref key = kref(rec->key, rec->klen);
  enum remixdb_status s = REMIXDB_OK;
  uint8_t ref[VALUE_REF];
  const uint32_t vlen = rec->vlen;
  const bool apart = values_direct(rec->klen, vlen);
  if (apart && (s = put_apart(g, rec, ref)) != REMIXDB_OK) return s;
  const bool other = g->bordered && kv_cmp(key, kref(g->border, g->border_len)) >= 0;
  if (g->number && (other || !sst_build_takes(g->build, rec))) s = end_table(g);
  if (s == REMIXDB_OK && g->number == 0) s = begin_table(g, key);
  if (s != REMIXDB_OK) return s;
  if (apart) sst_build_apart(g->build, load64le(ref), vlen);
  sst_build_add(g->build, rec);
  return sst_build_failed(g->build) ? end_table(g) : REMIXDB_OK;
}

enum remixdb_status ingest_put(struct xdb_ingest *g, struct kref key, const void *val, uint32_t vlen) {
  if (g->error.status != REMIXDB_OK) return err_raise(&g->error);
  enum remixdb_status s = space_key(g->ref, &key);
  if (s != REMIXDB_OK) return s;
  if (g->any && kv_cmp(key, kref(g->last, g->last_len)) <= 0)
    return err_set(REMIXDB_INVALID, "the keys of an ingest ascend, and this one is not greater than the one before");
  if (g->bytes - g->told >= TELL_BYTES) {
    if ((s = progress_report(&g->ref->progress, "ingest", g->bytes, 0)) != REMIXDB_OK) return s;
    g->told = g->bytes;
  }
  struct kv_rec rec;
  kv_rec_set(&rec, key, val, vlen, 0);
  rec.seq = 1;
  s = keep_key(&g->last, &g->last_cap, &g->last_len, key);
  if (s == REMIXDB_OK) s = add(g, &rec);
  if (s != REMIXDB_OK) err_save(&g->error, s);
  g->any = true;
  g->bytes += (uint64_t)key.len + vlen;
  return s;
}

// Makes the record that gives the ingest its number: a tombstone of a key that nobody has, behind one of the ingest's
// keys. *bytes_out: its key, which the caller frees.
static enum remixdb_status make_mark(const struct xdb_ingest *g, struct kv_rec *mark, uint8_t **bytes_out) {
  const uint32_t len = g->last_len < KV_KEY_MAX - MARK_BYTES ? g->last_len : KV_KEY_MAX - MARK_BYTES;
  uint8_t *const key = mem_alloc(len + MARK_BYTES);
  *bytes_out = key;
  if (!key) return REMIXDB_NOMEM;
  if (len) memcpy(key, g->last, len);
  store64le(key + len, hash64_seed(g->last, g->last_len, time_ns() ^ g->x->store_id));
  kv_rec_set(mark, kref(key, len + MARK_BYTES), NULL, 0, KV_TOMB | (g->ref->tree == TREE_SPACES ? KV_SPACES : 0u));
  return REMIXDB_OK;
}

// *taken_out: the tables are the round's. *keep_out: the files of values stay.
static enum remixdb_status commit(struct xdb_ingest *g, bool *taken_out, bool *keep_out) {
  struct xdb_ingesting work = {.tree = g->ref->tree, .values = &g->log};
  uint8_t *mark;
  *taken_out = *keep_out = false;
  enum remixdb_status s = g->error.status != REMIXDB_OK ? err_raise(&g->error) : end_table(g);
  if (s == REMIXDB_OK) s = value_batch_end(&g->values);
  if (s == REMIXDB_OK) s = space_check(g->ref);
  if (s == REMIXDB_OK) s = progress_report(&g->ref->progress, "ingest", g->bytes, 0);
  if (s != REMIXDB_OK || g->nr == 0) return s;
  s = make_mark(g, &work.mark, &mark);
  // The collection of garbage keeps up with what is written.
  atomic_fetch_add_explicit(&g->x->values.file_bytes, atomic_load_explicit(&g->log.file_bytes, memory_order_relaxed),
                            memory_order_relaxed);
  work.numbers = g->numbers;
  work.nr = g->nr;
  if (s == REMIXDB_OK) s = xdb_ingest_round(g->x, &work);
  *taken_out = work.tried;
  *keep_out = work.done || work.unknown;
  mem_free(mark);
  return s;
}

enum remixdb_status ingest_commit(struct xdb_ingest *g) {
  struct xdb_ref *const r = g->ref;
  const uint64_t bytes = g->bytes;
  bool taken, keep;
  struct err_saved error;
  err_save(&error, commit(g, &taken, &keep));
  if (taken) ingest_free(g, keep);
  else ingest_abort(g);
  if (error.status != REMIXDB_OK) return err_raise(&error);
  return progress_report(&r->progress, "ingest", bytes + 1, bytes + 1);
}
