// SPDX-License-Identifier: Apache-2.0
#include "store/values.h"

#include <assert.h>

#include "store/reserve.h"
#include "value/read.h"

static uint64_t new_number(void *arg, void (*name_of)(char *buf, uint64_t number)) {
  return compact_new_number(&((struct xdb *)arg)->compact, name_of);
}

void values_log_init(struct xdb *x, struct value_log *l) {
  value_log_init(l, &x->value_ctx);
  if (l == &x->values) value_log_compress(l, x->opts.compression, x->opts.compression_level);
  else value_log_compress_as(l, &x->values);  // a setting may have changed it
  l->new_number = new_number;
  l->arg = x;
}

static enum remixdb_status sync_values(void *arg) { return value_log_sync(&((struct xdb *)arg)->values); }

// ---- replaying

// Opens the file of a reference, or finds it among the open ones.
static enum remixdb_status file_of(struct xdb *x, uint64_t number, struct value_file **out) {
  struct value_file *f = value_list_find(&x->replay_into->values, number);
  if (!f) f = value_set_find(&x->replay_from->values, number);
  *out = f;
  if (f) {
    value_file_ref(f);
    return REMIXDB_OK;
  }
  return value_file_open(&x->value_ctx, number, out);
}

// The record's value is whole: the memtable that the record will be in has its file (A1).
static enum remixdb_status note_whole(struct xdb *x, struct value_file *f, const struct value_ref *to, uint32_t klen) {
  const uint64_t end = to->at + value_cost(klen, to->len);
  if (f->high == 0 || to->at < f->low) f->low = to->at;
  if (end > f->high) f->high = end;
  // CURRENT states the bytes of the files that it names, as they were when it was written.
  if (value_set_find(&x->replay_from->values, f->number)) f->uncounted = true;
  else atomic_fetch_add_explicit(&f->value_bytes, to->len, memory_order_relaxed);
  atomic_fetch_add_explicit(&x->replay_into->apart_bytes, to->len, memory_order_relaxed);
  return value_list_add(&x->replay_into->values, f);
}

// struct wal_values.check
static enum remixdb_status check_value(void *arg, const struct kv_rec *rec, bool *whole_out) {
  struct xdb *const x = arg;
  struct value_ref to;
  struct value_file *f = NULL;
  *whole_out = !(rec->kind & KV_APART);
  if (*whole_out) return REMIXDB_OK;
  const bool fits = value_ref_get(rec->val, rec->vlen, &to);
  enum remixdb_status s = fits ? file_of(x, to.file, &f)
                               : err_set(REMIXDB_CORRUPT, "a record has a reference to a value that cannot be one");
  if (s == REMIXDB_OK) s = value_check(f, &to, kref(rec->key, rec->klen));
  *whole_out = s == REMIXDB_OK;
  if (s == REMIXDB_OK) s = note_whole(x, f, &to, rec->klen);
  err_cleanup_begin();  // the message tells why the value is not whole
  value_file_unref(f);
  err_cleanup_end();
  return s == REMIXDB_CORRUPT ? REMIXDB_OK : s;
}

enum remixdb_status values_replayed(struct xdb *x, struct version *v, const struct memtable *m) {
  enum remixdb_status s = REMIXDB_OK;
  bool any = false;
  const struct value_node *n = atomic_load_explicit(&m->values.first, memory_order_relaxed);
  for (; n && s == REMIXDB_OK; n = n->next) {
    any = true;
    if (!x->opts.read_only) s = value_file_secure(n->file);
    if (s == REMIXDB_OK) s = value_set_add(&v->values, n->file);
    // CURRENT may be older than the file.
    if (v->next_file <= n->file->number) v->next_file = n->file->number + 1;
  }
  if (v->next_file > atomic_load_explicit(&x->compact.next_file, memory_order_relaxed))
    atomic_store_explicit(&x->compact.next_file, v->next_file, memory_order_relaxed);
  return s == REMIXDB_OK && any && !x->opts.read_only ? env_sync_dir(&x->home) : s;
}

void values_init(struct xdb *x) {
  x->value_ctx.sst = &x->ctx;
  x->values_least = VALUES_PER_MIN;
  x->ctx.values = &x->value_ctx;
  x->log_values = (struct wal_values){.sync = sync_values, .check = check_value, .arg = x};
  values_log_init(x, &x->values);
  values_log_init(x, &x->compact.values);
  x->values.lasts = true;
}

void values_fini(struct xdb *x) {
  value_log_fini(&x->values);
  value_log_fini(&x->compact.values);
  value_ctx_fini(&x->value_ctx);
}

// ---- putting

// The log of values has failed with s. A want of room or memory was a write's, and may end (W3 in value/write.h).
static enum remixdb_status put_failed(struct xdb *x, enum remixdb_status s) {
  if (s == REMIXDB_NOSPACE || s == REMIXDB_NOMEM) return s;
  struct err_saved why;
  err_save(&why, s);
  xdb_fail(x, &why);
  return err_raise(&why);
}

enum remixdb_status values_put(struct xdb *x, struct kv_rec *rec, struct value_apart *out) {
  const enum remixdb_status s = value_put(&x->values, kref(rec->key, rec->klen), rec->val, rec->vlen, out->ref,
                                          &out->file);
  if (s != REMIXDB_OK) return put_failed(x, s);
  rec->val = out->ref;
  rec->vlen = VALUE_REF;
  rec->kind |= KV_APART;
  return s;
}

enum remixdb_status values_keep(struct xdb *x, struct value_apart *a) {
  const enum remixdb_status s = value_put_keep(&x->values, a->file);
  a->kept = true;
  return s == REMIXDB_OK ? s : put_failed(x, s);
}

enum remixdb_status values_hold(struct xdb *x, struct memtable *m, const struct kv_rec *rec) {
  const uint64_t number = load64le(rec->val);
  assert(rec->kind & KV_APART && rec->vlen == VALUE_REF);
  enum remixdb_status s = REMIXDB_OK;
  if (!value_list_find(&m->values, number)) {
    const struct super *const v = xdb_super(x);
    struct value_file *f = v->frozen ? value_list_find(&v->frozen->values, number) : NULL;
    if (!f) f = value_log_find(&x->values, number);
    s = f ? value_list_add(&m->values, f)
          : err_set(REMIXDB_INVALID, "%s: value file %llu is not in use", x->dir, (unsigned long long)number);
  }
  return s;
}

// The last use of a file by a write with the status s has ended, perhaps with a sync.
static enum remixdb_status end_put(struct xdb *x, struct value_file *f, enum remixdb_status s) {
  struct err_saved why;
  value_put_end(&x->values, f);
  if (s != REMIXDB_OK) err_save(&why, s);
  enum remixdb_status failed = value_log_error(&x->values);
  if (likely(failed == REMIXDB_OK)) return s;
  failed = put_failed(x, failed);
  return s == REMIXDB_OK ? failed : err_raise(&why);  // a write that has failed by itself tells why
}

enum remixdb_status values_end(struct xdb *x, struct value_apart *a, enum remixdb_status s) {
  if (!a->file) return s;
  if (unlikely(s != REMIXDB_OK))
    atomic_fetch_add_explicit(&x->values_lost, value_ref_len(a->ref), memory_order_relaxed);
  if (a->kept) value_kept_end(&x->values, a->file);
  else s = end_put(x, a->file, s);
  a->file = NULL;
  a->kept = false;
  if (unlikely(s != REMIXDB_OK)) return s;
  if (unlikely(atomic_load_explicit(&x->collect.urgent, memory_order_relaxed)))
    atomic_store_explicit(&x->collect.urgent, false, memory_order_relaxed);  // there is room
  reserve_follow(x);
  return s;
}

uint64_t values_most(const struct xdb *x) {
  const uint64_t limit = (uint64_t)xdb_memtable_limit(x) * VALUES_PER_MEMTABLE;
  return limit > x->values_least ? limit : x->values_least;
}

bool values_full(const struct xdb *x, const struct memtable *m) {
  const uint64_t lost = atomic_load_explicit(&x->values_lost, memory_order_relaxed);
  return atomic_load_explicit(&m->apart_bytes, memory_order_relaxed) + lost > values_most(x);
}

bool values_many(const struct xdb *x, const struct memtable *m) {
  return atomic_load_explicit(&m->apart_bytes, memory_order_relaxed) > values_most(x) / VALUES_MANY_PART;
}

// ---- versions

// The parts of which the next version is made.
struct making {
  struct xdb *x;
  struct version *next;
  const struct version *base;
  const struct values_new *fresh;
};

// Finds a file that a table of the next version states. NULL: it was collected.
static struct value_file *find_file(const struct making *m, uint64_t number) {
  const struct values_new *const new = m->fresh;
  struct value_file *f = value_set_find(&m->base->values, number);
  if (!f && new->frozen) f = value_list_find(&new->frozen->values, number);
  if (!f) f = value_log_find(&m->x->compact.values, number);
  return f || !new->ingest ? f : value_log_find(new->ingest, number);
}

static bool is_gone(const struct making *m, uint64_t number) {
  return m->fresh->moved && value_set_find(m->fresh->moved->gone, number);
}

// Gives the next version the file of this number, or its index.
static enum remixdb_status want(struct making *m, uint64_t number) {
  struct value_index *i = m->fresh->moved ? value_moves_find(m->fresh->moved->made, number) : NULL;
  if (!i && is_gone(m, number)) return REMIXDB_OK;  // nothing in it is live
  struct value_file *const f = i ? NULL : find_file(m, number);
  if (f) return value_set_add(&m->next->values, f);
  if (!i) i = value_moves_find(&m->base->moves, number);
  // If the file with the values is collected now, the collection has made the index anew, or nothing in it is live.
  if (!i || is_gone(m, i->file->number)) return REMIXDB_OK;
  const enum remixdb_status s = value_moves_add(&m->next->moves, i);
  return s == REMIXDB_OK ? value_set_add(&m->next->values, i->file) : s;
}

enum remixdb_status values_of_next(struct xdb *x, struct version *next, const struct version *base,
                                   const struct values_new *new) {
  struct making m = {x, next, base, new};
  enum remixdb_status s = REMIXDB_OK;
  bool away = false;
  for (const struct version *tree = next; tree; tree = tree->spaces) {
    for (uint32_t i = 0; i < tree->nr_parts; i++) {
      const struct part *const p = tree->parts[i];
      away = away || part_is_away(p);
      for (uint32_t r = 0; r < part_runs(p); r++) {
        const struct sst *const t = part_run(p, r);
        for (uint32_t k = 0; k < t->nr_apart && s == REMIXDB_OK; k++) s = want(&m, t->apart[k].file);
      }
    }
  }
  // The tables of a partition that is away are not open: they may state any of the files.
  for (uint32_t i = 0; i < base->values.nr && away && s == REMIXDB_OK; i++)
    if (!is_gone(&m, base->values.files[i]->number)) s = value_set_add(&next->values, base->values.files[i]);
  for (uint32_t i = 0; i < base->moves.nr && away && s == REMIXDB_OK; i++) s = want(&m, base->moves.all[i]->number);
  return s;
}

struct keeping {
  const struct version *next;
  const struct super *super;
};

// For value_log_settle.
static bool keeps(void *arg, const struct value_file *f) {
  const struct keeping *const k = arg;
  return value_set_find(&k->next->values, f->number) == f || value_list_find(&k->super->active->values, f->number) ||
         (k->super->frozen && value_list_find(&k->super->frozen->values, f->number));
}

void values_turn(struct xdb *x) {
  struct value_file *direct = NULL, *rounds = NULL;
  value_log_turn(&x->values);
  value_log_turn(&x->compact.values);
  (void)pthread_mutex_lock(&x->installing);
  if (!x->rounds.unsaved) {  // else CURRENT may name a file that the version lacks
    xdb_lock(x);
    struct keeping k = {xdb_super(x)->version, xdb_super(x)};
    direct = value_log_settle(&x->values, keeps, &k);
    rounds = value_log_settle(&x->compact.values, keeps, &k);
    xdb_unlock(x);
  }
  (void)pthread_mutex_unlock(&x->installing);
  value_log_drop(&x->values, direct);
  value_log_drop(&x->compact.values, rounds);
  if (direct || rounds) x->txns.let_go(x);  // an ended transaction may have the last reference to a file that goes
}

bool values_settled(struct xdb *x, const struct value_file *f) {
  // In this order: a file that has left a log's list is in the lists of the memtables that need it.
  if (value_log_has(&x->values, f) || value_log_has(&x->compact.values, f)) return false;
  xdb_lock(x);
  const struct super *const v = xdb_super(x);
  const bool needed = value_list_find(&v->active->values, f->number) ||
                      (v->frozen && value_list_find(&v->frozen->values, f->number));
  xdb_unlock(x);
  return !needed;
}

static void retire_one(struct xdb *x, struct keeping *k, struct value_file *f) {
  // A file in a list may be in use by a thread that has not put its record yet: settling decides.
  if (!keeps(k, f) && !value_log_has(&x->values, f) && !value_log_has(&x->compact.values, f)) value_file_retire(f);
}

void values_retire(struct xdb *x, const struct version *base, const struct version *next, const struct memtable *frozen,
                   bool beside) {
  xdb_lock(x);  // no memtable becomes active meanwhile
  struct keeping k = {next, xdb_super(x)};
  struct value_file *const direct = value_log_settle(&x->values, keeps, &k),
                           *const rounds = beside ? NULL : value_log_settle(&x->compact.values, keeps, &k);
  for (uint32_t i = 0; i < base->values.nr; i++) retire_one(x, &k, base->values.files[i]);
  const struct value_node *n = frozen ? atomic_load_explicit(&frozen->values.first, memory_order_acquire) : NULL;
  for (; n; n = n->next) retire_one(x, &k, n->file);
  xdb_unlock(x);
  value_log_drop(&x->values, direct);
  value_log_drop(&x->compact.values, rounds);
}
