// SPDX-License-Identifier: Apache-2.0
#include "store/txn.h"

#include <assert.h>

#include "log/format.h"
#include "store/idle.h"
#include "store/merge_call.h"
#include "store/pin.h"
#include "store/ranges.h"
#include "store/space_ref.h"
#include "store/txn_blind.h"
#include "store/txn_check.h"
#include "store/txn_iter.h"
#include "store/txn_pool.h"
#include "store/write.h"
#include "view/multiget.h"
#include "xdb.h"

static const struct xdb_ref_calls txn_calls;

// ---- life

static enum remixdb_status create(struct xdb *x, struct xdb_txn **out) {
  struct xdb_txn *const t = mem_calloc(1, sizeof(*t));
  if (!t) return REMIXDB_NOMEM;
  t->xdb = x;
  for (uint32_t i = 0; i < TREES; i++) overlay_init(&t->own[i]);
  struct xdb_ref **const refs[] = {&t->base[TREE_UNNAMED], &t->base[TREE_SPACES], &t->tracked, &t->untracked, &t->now};
  enum remixdb_status s = REMIXDB_OK;
  for (size_t i = 0; i < sizeof(refs) / sizeof(refs[0]) && s == REMIXDB_OK; i++) s = xdb_ref(x, refs[i]);
  if (s != REMIXDB_OK) {
    txn_destroy(t);
    return s;
  }
  t->base[TREE_SPACES]->tree = TREE_SPACES;
  t->tracked->txn = t->untracked->txn = t;
  t->tracked->calls = t->untracked->calls = &txn_calls;
  t->untracked->untracked = true;
  *out = t;
  return s;
}

// Makes a ref read the transaction's moment.
static void ref_at(struct xdb_txn *t, struct xdb_ref *r) {
  r->super = t->super;
  r->moment = t->moment;
  r->now_ms = t->now_ms;
}

// Sets the super and the moment (X2).
static void begin(struct xdb_txn *t) {
  t->moment = atomic_load_explicit(&t->xdb->published, memory_order_acquire);
  const struct super *const v = t->super;
  if (likely(v && v == xdb_super(t->xdb))) {  // the transaction has a reference, so v is the super and not its heir
    if (unlikely(t->moment < v->least)) t->moment = v->least;
  } else {
    xdb_super_drop(t->xdb, t->super);
    t->super = xdb_ref_hold(t->now, &t->moment);
  }
}

enum remixdb_status xdb_txn_begin(struct xdb *x, struct xdb_txn **out) {
  struct xdb_txn *t = txn_pool_take(x);
  const enum remixdb_status s = t ? REMIXDB_OK : create(x, &t);
  if (s != REMIXDB_OK) return s;
  begin(t);
  t->now_ms = xdb_ref_now(t->now);
  for (uint32_t i = 0; i < TREES; i++) ref_at(t, t->base[i]);
  ref_at(t, t->tracked);
  ref_at(t, t->untracked);
  atomic_fetch_add_explicit(&txn_counts(x)->begun, 1, memory_order_relaxed);
  *out = t;
  return s;
}

// A ref of a named space that the transaction does not have yet.
static enum remixdb_status space_ref(struct xdb_txn *t, struct xdb_space *sp, bool untracked, struct xdb_ref **out) {
  struct xdb_ref **const grown = mem_realloc(t->refs, (t->nr_refs + 1) * sizeof(struct xdb_ref *));
  if (!grown) return REMIXDB_NOMEM;
  t->refs = grown;
  enum remixdb_status s = memtable_spaces(t->super->active);  // it may have begun before there was a space
  if (s == REMIXDB_OK) s = xdb_space_ref(sp, out);
  if (s != REMIXDB_OK) return s;
  struct xdb_ref *const r = t->refs[t->nr_refs++] = *out;
  r->txn = t;
  r->calls = &txn_calls;
  r->untracked = untracked;
  ref_at(t, r);
  return s;
}

enum remixdb_status xdb_txn_ref(struct xdb_txn *t, struct xdb_space *sp, bool untracked, struct xdb_ref **out) {
  *out = untracked ? t->untracked : t->tracked;
  if (!sp) return REMIXDB_OK;
  for (uint32_t i = 0; i < t->nr_refs; i++) {
    *out = t->refs[i];
    if ((*out)->space->id == sp->id && (*out)->untracked == untracked) return REMIXDB_OK;
  }
  return space_ref(t, sp, untracked, out);
}

static void end(struct xdb_txn *t) {
  struct xdb *const x = t->xdb;
  t->ended = true;
  for (struct txn_iter *i = t->iters; i; i = txn_iter_after(i)) txn_iter_end(i);
  for (uint32_t i = 0; i < TREES; i++) {
    overlay_clear(&t->own[i]);
    readset_clear(&t->reads[i]);
    t->base[i]->super = NULL;
  }
  t->nr_savepoints = 0;
  if (unlikely(t->nr_blind)) txn_blind_cut(t, 0);
  t->lost = false;
  t->tracked->super = t->untracked->super = NULL;
  atomic_fetch_add_explicit(&txn_counts(x)->ended, 1, memory_order_relaxed);
  if (likely(!t->iters)) {
    txn_pool_put(t);
    return;
  }
  xdb_super_drop(x, t->super);
  t->super = NULL;
}

void xdb_txn_abort(struct xdb_txn *t) { end(t); }

// ---- savepoints

// Overlays keep what the last savepoint may return to.
static void keep_last(struct xdb_txn *t) {
  for (uint32_t i = 0; i < TREES; i++)
    t->own[i].kept = t->nr_savepoints ? t->savepoints[t->nr_savepoints - 1].numbers[i] : 0;
}

enum remixdb_status xdb_txn_savepoint(struct xdb_txn *t) {
  if (t->nr_savepoints == t->cap_savepoints) {
    struct txn_point *const grown = mem_grow32(t->savepoints, &t->cap_savepoints, 8, sizeof(*grown));
    if (!grown) return REMIXDB_NOMEM;
    t->savepoints = grown;
  }
  struct txn_point *const p = &t->savepoints[t->nr_savepoints++];
  for (uint32_t i = 0; i < TREES; i++) p->numbers[i] = t->own[i].number;
  p->nr_blind = t->nr_blind;
  keep_last(t);
  return REMIXDB_OK;
}

enum remixdb_status xdb_txn_rollback(struct xdb_txn *t) {
  if (t->nr_savepoints == 0) return err_set(REMIXDB_INVALID, "the transaction has no savepoint");
  const struct txn_point *const p = &t->savepoints[--t->nr_savepoints];
  for (uint32_t i = 0; i < TREES; i++) overlay_rollback(&t->own[i], p->numbers[i]);
  txn_blind_cut(t, p->nr_blind);
  keep_last(t);
  return REMIXDB_OK;
}

// ---- reading

// The key is of the ref's tree.
static inline enum remixdb_status note_key(struct xdb_ref *r, struct kref key) {
  return r->untracked ? REMIXDB_OK : txn_note_key(r->txn, r->tree, key);
}

// The transaction reads its own record of a key, regardless of the writes of others.
static enum remixdb_status txn_find(struct xdb_ref **r, struct kref *key, struct kv_rec *rec_out) {
  struct xdb_txn *const t = (*r)->txn;
  enum remixdb_status s = space_key(*r, key);
  if (s != REMIXDB_OK) return s;
  const struct overlay_ver *const v = overlay_get(&t->own[(*r)->tree], *key);
  if (v) {
    overlay_record(v, rec_out);
    return REMIXDB_OK;
  }
  s = note_key(*r, *key);
  *r = t->base[(*r)->tree];
  return s == REMIXDB_OK ? REMIXDB_NOTFOUND : s;
}

static enum remixdb_status txn_get(struct xdb_ref *r, struct kref key, void *val_out, uint32_t cap,
                                   uint32_t *vlen_out) {
  struct kv_rec rec;
  const enum remixdb_status s = txn_find(&r, &key, &rec);
  if (s == REMIXDB_NOTFOUND) return xdb_get(r, key, val_out, cap, vlen_out);
  if (s != REMIXDB_OK) return s;
  if (xdb_ref_absent(r, &rec)) return REMIXDB_NOTFOUND;
  if (vlen_out) *vlen_out = rec.vlen;
  const uint32_t n = rec.vlen < cap ? rec.vlen : cap;
  if (val_out && n) memcpy(val_out, rec.val, n);
  if (!val_out || n == rec.vlen) return REMIXDB_OK;
  return err_set(REMIXDB_TOOBIG, "the value has %u bytes, the buffer %u", rec.vlen, cap);
}

// Looks up one key of a multi-get, and gives its value a place in the room, if there is one.
static enum remixdb_status get_one(struct xdb_ref *r, struct kref key, struct remixdb_buf *value, bool *found,
                                   struct multiget_room *room) {
  uint32_t len = 0;
  uint8_t none;
  *found = false;
  if (room) *value = (struct remixdb_buf){room->ptr + room->len, (uint32_t)(room->cap - room->len), 0};
  uint8_t *const to = value && value->ptr ? value->ptr : room ? &none : NULL;
  enum remixdb_status s = txn_get(r, key, to, value ? value->cap : 0, &len);
  if (s == REMIXDB_NOTFOUND) {
    if (value) value->len = 0;
    if (room) *value = (struct remixdb_buf){0};
    return REMIXDB_OK;
  }
  *found = s == REMIXDB_OK || s == REMIXDB_TOOBIG;
  if (value) value->len = len;
  if (!room) return s;
  const bool fits = s == REMIXDB_OK && len > 0;
  room->wanted += *found ? len : 0;
  room->len += fits ? len : 0;
  *value = (struct remixdb_buf){fits ? value->ptr : NULL, fits ? len : 0, len};
  return s;
}

// One key after the other, because some have been written by the transaction.
static enum remixdb_status get_each(struct xdb_ref *r, size_t nr, const struct remixdb_slice *keys,
                                    struct remixdb_buf *values, bool *found, struct multiget_room *room,
                                    size_t *nr_out) {
  struct err_saved error = {.status = REMIXDB_OK};
  bool only_small = false;
  for (size_t i = 0; i < nr; i++) {
    const enum remixdb_status s = get_one(r, kref(keys[i].ptr, keys[i].len), values ? &values[i] : NULL, &found[i],
                                          room);
    *nr_out += found[i];
    if (s != REMIXDB_OK && (error.status == REMIXDB_OK || (only_small && s != REMIXDB_TOOBIG))) err_save(&error, s);
    only_small = error.status == REMIXDB_TOOBIG;  // another failure is told first
  }
  if (only_small && room)
    return err_set(REMIXDB_TOOBIG, "the values have %zu bytes, the buffer %zu", room->wanted, room->cap);
  return error.status == REMIXDB_OK ? REMIXDB_OK : err_raise(&error);
}

// keys: those of the tree; plain: as the caller gave them.
static enum remixdb_status get_many(struct xdb_ref *r, size_t nr, const struct remixdb_slice *plain,
                                    const struct remixdb_slice *keys, struct remixdb_buf *values, bool *found,
                                    struct multiget_room *room, size_t *nr_out) {
  struct xdb_txn *const t = r->txn;
  const struct overlay *const own = &t->own[r->tree];
  for (size_t i = 0; i < nr && !overlay_empty(own); i++)
    if (overlay_get(own, kref(keys[i].ptr, keys[i].len))) return get_each(r, nr, plain, values, found, room, nr_out);
  for (size_t i = 0; i < nr; i++) {
    const enum remixdb_status s = note_key(r, kref(keys[i].ptr, keys[i].len));
    if (s == REMIXDB_OK) continue;
    memset(found, 0, nr * sizeof(*found));
    return s;
  }
  return xdb_multi_get(t->base[r->tree], nr, keys, values, found, room, nr_out);
}

static enum remixdb_status txn_multi_get(struct xdb_ref *r, size_t nr, const struct remixdb_slice *keys,
                                         struct remixdb_buf *values, bool *found, struct multiget_room *room,
                                         size_t *nr_out) {
  struct remixdb_slice *own = NULL;  // the keys with the named space's bytes before them
  *nr_out = 0;
  enum remixdb_status s = r->space ? space_keys(r, nr, keys, &own) : REMIXDB_OK;
  if (s == REMIXDB_OK) s = get_many(r, nr, keys, own ? own : keys, values, found, room, nr_out);
  else memset(found, 0, nr * sizeof(*found));
  mem_free(own);
  return s;
}

// ---- writing

static enum remixdb_status check_writable(const struct xdb_ref *r) {
  return unlikely(r->xdb->opts.read_only) ? err_set(REMIXDB_READONLY, "%s: opened with read_only", r->xdb->dir)
                                          : REMIXDB_OK;
}

// rec: with a key of its tree.
static enum remixdb_status own_put(struct xdb_txn *t, const struct kv_rec *rec) {
  const uint32_t tree = rec->kind & KV_SPACES ? TREE_SPACES : TREE_UNNAMED;
  const size_t other = t->own[1 - tree].log_bytes;
  return overlay_put(&t->own[tree], rec, t->iters != NULL, WAL_FRAME_MAX - other);
}

static enum remixdb_status txn_put(struct xdb_ref *r, const struct kv_rec *rec) {
  struct kv_rec mine;
  enum remixdb_status s = check_writable(r);
  if (s == REMIXDB_OK) s = space_rec(r, &rec, &mine);
  return s == REMIXDB_OK ? own_put(r->txn, rec) : s;
}

static bool own_deleted(const struct xdb_txn *t, uint32_t tree, struct kref key) {
  const struct overlay_ver *const v = overlay_get(&t->own[tree], key);
  return v && v->kind & KV_TOMB;
}

// Deletes the keys of the store's tree that lie in the range, at the transaction's moment. A key that the transaction
// has deleted stays so: no further write of it takes memory.
static enum remixdb_status del_below(struct xdb_txn *t, uint32_t tree, struct kref from, struct kref to) {
  const struct xdb_iter_opts opts = {.bounds = {{from.ptr, from.len}, {to.ptr, to.len}}, .keys_only = true};
  const uint32_t kind = KV_TOMB | (tree == TREE_SPACES ? KV_SPACES : 0u);
  struct xdb_iter *it = NULL;
  enum remixdb_status s = xdb_iter_create_opts(t->base[tree], &opts, &it);
  if (s == REMIXDB_OK) s = xdb_iter_seek(it, from);
  while (s == REMIXDB_OK && xdb_iter_valid(it)) {
    struct kv_rec rec;
    if ((s = xdb_iter_record(it, &rec)) != REMIXDB_OK) break;
    const struct kref key = kref(rec.key, rec.klen);
    if (!own_deleted(t, tree, key)) s = own_put(t, KV_REC(key, NULL, 0, kind));
    if (s == REMIXDB_OK) s = xdb_iter_skip(it, 1);
  }
  struct err_saved why;
  err_save(&why, s);
  xdb_iter_destroy(it);
  return err_raise(&why);
}

// Deletes the keys that the transaction sees in the range. The commit deletes the others that are there then.
static enum remixdb_status own_del_range(struct xdb_txn *t, uint32_t tree, struct kref from, struct kref to) {
  if (to.ptr && kv_cmp(from, to) >= 0) return REMIXDB_OK;
  enum remixdb_status s = txn_blind_add(t, tree, from, to);
  if (s == REMIXDB_OK) s = del_below(t, tree, from, to);
  struct overlay_cursor at;
  overlay_cursor_init(&at, &t->own[tree]);
  for (overlay_seek(&at, from); s == REMIXDB_OK && at.node; overlay_next(&at)) {
    const struct kref key = overlay_key(at.node);
    if (to.ptr && kv_cmp(key, to) >= 0) break;
    if (!(at.ver->kind & KV_TOMB)) s = own_put(t, KV_REC(key, NULL, 0, KV_TOMB | (at.ver->kind & KV_SPACES)));
  }
  return s;
}

// Goes back to the last savepoint if s is a failure, else forgets it. Returns s.
static enum remixdb_status settle_savepoint(struct xdb_txn *t, enum remixdb_status s) {
  struct err_saved why;
  err_save(&why, s);
  if (s != REMIXDB_OK) IGNORED(xdb_txn_rollback(t), "the savepoint is there");
  else t->nr_savepoints--;
  keep_last(t);
  return err_raise(&why);
}

static enum remixdb_status txn_del_range(struct xdb_ref *r, struct kref from, struct kref to) {
  enum remixdb_status s = check_writable(r);
  if (s == REMIXDB_OK) s = xdb_txn_savepoint(r->txn);
  return s == REMIXDB_OK ? settle_savepoint(r->txn, own_del_range(r->txn, r->tree, from, to)) : s;
}

// An operation of a batch that deletes a range. Its end is without the id of its space.
static enum remixdb_status own_range_op(struct xdb_txn *t, const struct kv_rec *rec) {
  const struct kref from = kref(rec->key, rec->klen);
  if (!(rec->kind & KV_SPACES))
    return own_del_range(t, TREE_UNNAMED, from, kref(rec->vlen ? rec->val : NULL, rec->vlen));
  uint8_t *const to = mem_alloc(NAMES_ID + (size_t)rec->vlen);
  if (!to) return REMIXDB_NOMEM;
  names_id_put(to, names_id_get(rec->key) + (rec->vlen == 0));
  if (rec->vlen) memcpy(to + NAMES_ID, rec->val, rec->vlen);
  const enum remixdb_status s = own_del_range(t, TREE_SPACES, from, kref(to, NAMES_ID + rec->vlen));
  mem_free(to);
  return s;
}

// All of the batch, or nothing.
static enum remixdb_status txn_write(struct xdb_ref *r, const struct xdb_batch *b) {
  struct xdb_txn *const t = r->txn;
  struct batch_op *ops = NULL;
  enum remixdb_status s = check_writable(r);
  if (s == REMIXDB_OK && b->nr_names && b->store_id != r->xdb->store_id)
    s = err_set(REMIXDB_INVALID, "%s: the batch has spaces of another store", r->xdb->dir);
  if (s == REMIXDB_OK) s = batch_listed(b, r->space ? r->space->id : 0, &ops);
  if (s != REMIXDB_OK) return s;
  if ((s = xdb_txn_savepoint(t)) == REMIXDB_OK) {
    for (size_t i = 0; i < b->nr && s == REMIXDB_OK; i++)
      s = ops[i].rec.kind & KV_RANGE ? own_range_op(t, &ops[i].rec) : own_put(t, &ops[i].rec);
    s = settle_savepoint(t, s);
  }
  mem_free(ops);
  return s;
}

// Gets a copy of the key's value. *val_out NULL: the key does not exist; else the caller frees it.
static enum remixdb_status get_copy(struct xdb_ref *r, struct kref key, void **val_out, uint32_t *vlen_out) {
  *val_out = NULL;
  *vlen_out = 0;
  const enum remixdb_status s = pin_get_alloc(r, key, val_out, vlen_out);
  return s == REMIXDB_NOTFOUND ? REMIXDB_OK : s;
}

static enum remixdb_status txn_merge(struct xdb_ref *r, struct kref key, remixdb_merge_fn fn, void *priv) {
  struct merge_call c = {.key = key, .fn = fn, .priv = priv};
  void *val = NULL;
  struct kv_rec rec;
  enum remixdb_status s = check_writable(r);
  if (s == REMIXDB_OK) s = xdb_getv(r, key, NULL, 0, NULL, &rec);
  if (s == REMIXDB_OK) s = get_copy(r, key, &val, &rec.vlen);
  if (s != REMIXDB_OK && s != REMIXDB_NOTFOUND) return s;
  rec.val = val;
  s = merge_decide(r->xdb, &c, val ? &rec : NULL);
  if (s == REMIXDB_OK && c.op != REMIXDB_MERGE_KEEP) s = txn_put(r, &c.to);
  mem_free(val);
  return s;
}

static const struct xdb_ref_calls txn_calls = {.find = txn_find,
                                               .get = txn_get,
                                               .multi_get = txn_multi_get,
                                               .put = txn_put,
                                               .write = txn_write,
                                               .merge = txn_merge,
                                               .del_range = txn_del_range,
                                               .iter_create = txn_iter_create,
                                               .iter_destroy = txn_iter_destroy,
                                               .iter_park = txn_iter_park,
                                               .iter_seek = txn_iter_seek,
                                               .iter_skip = txn_iter_skip,
                                               .iter_prev = txn_iter_prev,
                                               .iter_record = txn_iter_record,
                                               .iter_load = txn_iter_load,
                                               .iter_unend = txn_iter_unend};

// ---- the commit

static size_t own_keys(const struct xdb_txn *t) { return t->own[TREE_UNNAMED].keys + t->own[TREE_SPACES].keys; }

// Makes the operations of the batch that the commit writes. The caller ends w with gather_fini, also on failure.
static enum remixdb_status gather(struct xdb_txn *t, struct many_writes *w) {
  const size_t nr = own_keys(t);
  w->ops = likely(nr <= TXN_FEW) ? t->ops : mem_array(nr, sizeof(*w->ops), 0);
  w->links = likely(nr <= TXN_FEW) ? t->links : mem_array(nr, sizeof(*w->links), 0);
  if (!w->ops || !w->links) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < TREES; i++) {
    for (const struct overlay_node *n = t->own[i].head[0]; n; n = n->next[0]) {
      struct batch_op op = {.hash = n->hash};
      overlay_record(n->newest, &op.rec);
      many_add(w, &op);
    }
  }
  return REMIXDB_OK;
}

static void gather_fini(const struct xdb_txn *t, struct many_writes *w) {
  if (likely(w->ops == t->ops)) return;
  mem_free(w->ops);
  mem_free(w->links);
}

// check: NULL, if the transaction has read nothing.
static enum remixdb_status write_keys(struct xdb_txn *t, struct many_check *check) {
  struct many_writes w = {.check = check};
  enum remixdb_status s = gather(t, &w);
  if (s == REMIXDB_OK) s = xdb_write_many(t->base[TREE_UNNAMED], &w);
  gather_fini(t, &w);
  return s;
}

// Takes the writes and the deleted ranges of a tree into a group.
static enum remixdb_status gather_tree(const struct xdb_txn *t, uint32_t tree, struct range_group *g) {
  struct range_tree *const to = &g->trees[tree];
  to->ops = mem_array(t->own[tree].keys + 1, sizeof(*to->ops), 0);
  to->ranges = mem_array(t->nr_blind + 1, sizeof(*to->ranges), 0);
  if (!to->ops || !to->ranges) return REMIXDB_NOMEM;
  for (const struct overlay_node *n = t->own[tree].head[0]; n; n = n->next[0]) {
    struct batch_op *const op = &to->ops[to->nr_ops++];
    *op = (struct batch_op){.hash = n->hash};
    overlay_record(n->newest, &op->rec);
    g->puts = g->puts || !(op->rec.kind & KV_TOMB);
  }
  for (uint32_t i = 0; i < t->nr_blind; i++)
    if (t->blind[i].tree == tree)
      to->ranges[to->nr_ranges++] = (struct compact_range){t->blind[i].from, t->blind[i].to};
  return REMIXDB_OK;
}

// The same with deletions of ranges.
static enum remixdb_status write_ranges(struct xdb_txn *t, struct many_check *check) {
  struct range_group g = {.named = true, .tombstones = true, .check = check};
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < TREES && s == REMIXDB_OK; i++) s = gather_tree(t, i, &g);
  if (s == REMIXDB_OK) return ranges_commit(t->now, &g);
  range_group_fini(&g);
  return s;
}

// Writes all that is in the overlays, and deletes the ranges.
static enum remixdb_status write_own(struct xdb_txn *t) {
  struct txn_check check;
  txn_check_init(&check, t);
  struct many_check *const reads = t->reads[TREE_UNNAMED].nr || t->reads[TREE_SPACES].nr ? &check.many : NULL;
  enum remixdb_status s = unlikely(t->nr_blind) ? write_ranges(t, reads) : write_keys(t, reads);
  if (s == REMIXDB_GONE) s = err_set(REMIXDB_ABORTED, "a space that the transaction wrote to is dropped");
  if (s == REMIXDB_ABORTED) atomic_fetch_add_explicit(&txn_counts(t->xdb)->conflicts, 1, memory_order_relaxed);
  txn_check_fini(&check);
  return s;
}

static enum remixdb_status commit(struct xdb_txn *t) {
  for (struct txn_iter *i = t->iters; i; i = txn_iter_after(i)) IGNORED(txn_iter_note(i), "t->lost tells it");
  if (own_keys(t) == 0 && t->nr_blind == 0) return REMIXDB_OK;
  if (t->lost) return err_set(REMIXDB_NOMEM, "the transaction has lost track of its reads");
  for (uint32_t i = 0; i < TREES; i++) readset_sort(&t->reads[i]);
  return write_own(t);
}

enum remixdb_status xdb_txn_commit(struct xdb_txn *t) {
  struct xdb *const x = t->xdb;
  const enum remixdb_status s = commit(t);
  if (s == REMIXDB_OK) {
    atomic_fetch_add_explicit(&txn_counts(x)->committed, 1, memory_order_relaxed);
    end(t);
    return s;
  }
  struct err_saved why;
  err_save(&why, s);
  err_cleanup_begin();
  end(t);
  err_cleanup_end();
  return err_raise(&why);
}
