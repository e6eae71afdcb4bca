// SPDX-License-Identifier: Apache-2.0
#include "xdb.h"

#include "store/idle.h"
#include "store/space_ref.h"
#include "value/read.h"

// o: the options, in which bounds, prefix and space are not looked at, because `bounds` has them; NULL: none.
static enum remixdb_status iter_create(struct xdb_ref *r, const struct xdb_iter_opts *o,
                                       const struct xdb_iter_bounds *bounds, struct xdb_iter **out) {
  struct xdb_iter *it = mem_calloc(1, sizeof(*it));
  if (!it) return REMIXDB_NOMEM;
  it->ref = r;
  if (unlikely(r->calls != NULL)) {
    const enum remixdb_status s = r->calls->iter_create(r, o, bounds, &it->own);
    if (s != REMIXDB_OK) {
      mem_free(it);
      return s;
    }
  }
  merge_init(&it->merge, blkio_shared(&r->xdb->io));
  merge_use_epoch(&it->merge, &r->xdb->epoch, &r->slot);
  merge_learn(&it->merge, 0, &r->reach);
  atomic_fetch_add_explicit(&r->xdb->nr_iters, 1, memory_order_relaxed);
  *out = it;
  return REMIXDB_OK;
}

enum remixdb_status xdb_iter_create(struct xdb_ref *r, struct xdb_iter **out) {
  return likely(!r->space) ? iter_create(r, NULL, NULL, out) : xdb_iter_create_opts(r, &(struct xdb_iter_opts){0}, out);
}

// Sets the space of an iterator on a ref of a named space. id: memory for the space's id.
static enum remixdb_status iter_space(struct xdb_ref *r, struct xdb_iter_opts *o, uint8_t *id) {
  const enum remixdb_status s = space_check(r);
  if (s != REMIXDB_OK) return s;
  names_id_put(id, r->space->id);
  o->space = kref(id, NAMES_ID);
  return o->snapshot ? memtable_spaces(o->snapshot->super->active) : s;
}

// Fixes the moment that the iterator reads.
static void iter_fix(struct xdb_iter *it, const struct xdb_iter_opts *o) {
  if (o->snapshot) {
    xdb_snapshot_hold(o->snapshot);
    it->snapshot = o->snapshot;
    it->fixed = o->snapshot->super;
    it->moment = o->snapshot->moment;
    it->fixed_ms = o->snapshot->now_ms;
  } else if (o->hold) {
    it->fixed = xdb_ref_hold(it->ref, &it->moment);
    it->fixed_ms = xdb_ref_now(it->ref);
  }
}

enum remixdb_status xdb_iter_create_opts(struct xdb_ref *r, const struct xdb_iter_opts *opts, struct xdb_iter **out) {
  struct xdb_iter *it;
  struct xdb_iter_bounds bounds;
  uint8_t id[NAMES_ID];
  struct xdb_iter_opts mine = *opts;
  const struct xdb_iter_opts *const o = &mine;
  enum remixdb_status s = r->space ? iter_space(r, &mine, id) : REMIXDB_OK;
  if (s == REMIXDB_OK) s = iter_bounds(o, &bounds);
  if (s != REMIXDB_OK) return s;
  if ((s = iter_create(r, o, &bounds, &it)) != REMIXDB_OK) {
    mem_free(bounds.bytes);
    return s;
  }
  it->bounds = bounds;
  merge_bound(&it->merge, bounds.low, bounds.high);
  merge_learn(&it->merge, o->expect, &r->reach);
  it->keys_only = o->keys_only;
  if (o->keys_only) merge_keys_only(&it->merge);
  it->nr_space = o->space.len;
  if (o->space.len) memcpy(it->space, o->space.ptr, o->space.len);
  it->special = it->keys_only || it->nr_space;
  if (likely(!it->own)) iter_fix(it, o);
  *out = it;
  return REMIXDB_OK;
}

static void iter_drop_value(struct xdb_iter *it) {
  mem_free(it->value);
  it->value = NULL;
  it->value_cap = 0;
}

void xdb_iter_park(struct xdb_iter *it) {
  struct xdb_ref *r = it->ref;
  if (unlikely(it->own != NULL)) {
    r->calls->iter_park(it->own);
    it->status = REMIXDB_OK;
    return;
  }
  epoch_enter(&r->xdb->epoch, &r->slot);
  merge_park(&it->merge);
  epoch_exit(&r->slot);
  if (it->stays) xdb_ref_unstay(r);
  it->stays = false;
  if (unlikely(it->value != NULL)) iter_drop_value(it);
  xdb_super_drop(r->xdb, it->super);
  it->super = NULL;
  it->status = REMIXDB_OK;
}

void xdb_iter_destroy(struct xdb_iter *it) {
  if (!it) return;
  xdb_iter_park(it);
  merge_fini(&it->merge);
  struct xdb *const x = it->ref->xdb;
  mem_free(it->bounds.bytes);
  if (it->snapshot) xdb_snapshot_release(it->snapshot);
  else xdb_super_drop(x, it->fixed);
  atomic_fetch_sub_explicit(&x->nr_iters, 1, memory_order_relaxed);
  if (unlikely(it->own != NULL)) it->ref->calls->iter_destroy(it->own);  // the ref may go with it
  mem_free(it);
}

enum remixdb_status xdb_iter_pass_expired(struct xdb_iter *it, enum remixdb_status s) {
  struct remix_lapse lapse = {0};
  while (s == REMIXDB_OK && merge_valid(&it->merge) && merge_expires(&it->merge)) {
    struct kv_rec rec;
    s = merge_record(&it->merge, &rec);
    if (s == REMIXDB_OK && rec.expiry > it->now_ms) return s;
    if (s == REMIXDB_OK) s = merge_pass_expired(&it->merge, &lapse, rec.expiry, it->now_ms);
    else merge_stop(&it->merge);
  }
  return s;
}

enum remixdb_status xdb_iter_moved(struct xdb_iter *it, enum remixdb_status s) {
  s = xdb_iter_pass(it, s);
  it->status = s;
  if (unlikely(s != REMIXDB_OK)) err_save(&it->error, s);
  if (likely(xdb_iter_valid(it))) return s;
  xdb_iter_park(it);  // at its end it pins nothing
  it->status = s;
  return s == REMIXDB_OK ? s : err_raise(&it->error);  // dropping the super may have left another message
}

// Moves the iterator to the store, or the snapshot, as it is now. Inside an epoch. *old_out: the super that it held;
// the caller drops it after the epoch.
static void iter_renew(struct xdb_iter *it, struct super **old_out) {
  struct xdb_ref *r = it->ref;
  uint64_t moment = it->moment;
  struct super *v = likely(!it->fixed) ? xdb_ref_super(r, &moment) : it->fixed;
  *old_out = NULL;
  it->now_ms = likely(!super_expires(v, r->tree)) ? 0 : it->fixed ? it->fixed_ms : xdb_ref_now(r);
  merge_clock(&it->merge, it->now_ms);
  if (unlikely(r->space != NULL) && !it->fixed) {
    // In a space that is dropped, it goes on at the moment of its position.
    if (it->super && space_check(r) != REMIXDB_OK) {
      v = it->super;
      moment = it->moment;
    }
    it->moment = moment;
  }
  if (v != it->super) {
    super_ref(v);
    *old_out = it->super;
    merge_park(&it->merge);
    it->super = v;
  }
  merge_set(&it->merge, memtable_tree(v->active, r->tree), super_frozen(v, r->tree), version_tree(v->version, r->tree),
            moment);
}

// Copies the key of a seek, with the space in front of it, to memory of its own: *large_out, if it is too long for
// `small`, which has room for the space and COPY_SMALL bytes.
static enum remixdb_status seek_key(const struct xdb_iter *it, struct kref *key, uint8_t *small, uint8_t **large_out) {
  const uint32_t before = it->nr_space;
  uint8_t *to = small;
  if (unlikely(key->len > COPY_SMALL) && !(to = *large_out = mem_alloc((size_t)before + key->len)))
    return REMIXDB_NOMEM;
  if (unlikely(before)) memcpy(to, it->space, before);
  if (likely(!*large_out)) copy_small(to + before, key->len ? key->ptr : to, key->len);
  else memcpy(to + before, key->ptr, key->len);
  *key = kref(to, before + key->len);
  return REMIXDB_OK;
}

// xdb_iter_moved, where nothing is to be done.
static inline enum remixdb_status moved(struct xdb_iter *it, enum remixdb_status s) {
  if (unlikely(s != REMIXDB_OK || !xdb_iter_valid(it) || merge_expires(&it->merge))) return xdb_iter_moved(it, s);
  return it->status = REMIXDB_OK;
}

static enum remixdb_status iter_seek(struct xdb_iter *it, enum seek_how how, struct kref key) {
  struct super *old;
  // The key may lie in memory of the iterator's own position, which the seek gives up before the search has ended.
  uint8_t small[XDB_ITER_SPACE + COPY_SMALL], *large = NULL;
  if ((it->super && key.len > 0) || unlikely(it->nr_space)) {
    enum remixdb_status copied = it->super || it->fixed ? REMIXDB_OK : space_check(it->ref);
    if (copied == REMIXDB_OK) copied = seek_key(it, &key, small, &large);
    if (unlikely(copied != REMIXDB_OK)) {
      xdb_iter_fail(it, copied);
      return copied;
    }
  }
  if (unlikely(it->own != NULL)) {
    const enum remixdb_status s = it->ref->calls->iter_seek(it->own, how, key);
    mem_free(large);
    return xdb_iter_moved(it, s);
  }
  epoch_enter(&it->ref->xdb->epoch, &it->ref->slot);
  iter_renew(it, &old);
  xdb_ref_stay(it->ref, it->stays);
  it->stays = true;
  enum remixdb_status s = how == SEEK_GE   ? merge_seek(&it->merge, key)
                          : how == SEEK_LE ? merge_seek_for_prev(&it->merge, key)
                                           : merge_seek_last(&it->merge);
  epoch_exit(&it->ref->slot);
  if (unlikely(large != NULL)) mem_free(large);
  s = moved(it, s);
  xdb_super_drop(it->ref->xdb, old);
  return s == REMIXDB_OK ? s : err_raise(&it->error);  // dropping the super may have left another message
}

enum remixdb_status xdb_iter_seek(struct xdb_iter *it, struct kref key) { return iter_seek(it, SEEK_GE, key); }
enum remixdb_status xdb_iter_seek_for_prev(struct xdb_iter *it, struct kref key) { return iter_seek(it, SEEK_LE, key); }
enum remixdb_status xdb_iter_seek_last(struct xdb_iter *it) { return iter_seek(it, SEEK_LAST, kref(NULL, 0)); }

void xdb_iter_fail(struct xdb_iter *it, enum remixdb_status s) {
  err_save(&it->error, s);
  xdb_iter_park(it);
  it->status = s;
}

enum remixdb_status xdb_iter_skip(struct xdb_iter *it, uint32_t nr) {
  if (!xdb_iter_valid(it)) return it->status != REMIXDB_OK ? err_raise(&it->error) : REMIXDB_OK;
  if (unlikely(it->own != NULL)) return xdb_iter_moved(it, it->ref->calls->iter_skip(it->own, nr));
  if (likely(nr == 1)) return moved(it, merge_next(&it->merge));
  if (likely(!super_expires(it->super, it->ref->tree))) return xdb_iter_moved(it, merge_skip(&it->merge, nr));
  enum remixdb_status s = REMIXDB_OK;  // records that have expired do not count, so each is looked at
  while (nr-- > 0 && s == REMIXDB_OK && xdb_iter_valid(it)) s = xdb_iter_moved(it, merge_next(&it->merge));
  return s;
}

enum remixdb_status xdb_iter_prev(struct xdb_iter *it) {
  if (!xdb_iter_valid(it)) return it->status != REMIXDB_OK ? err_raise(&it->error) : REMIXDB_OK;
  return xdb_iter_moved(it, unlikely(it->own != NULL) ? it->ref->calls->iter_prev(it->own) : merge_prev(&it->merge));
}

// The record that it stands on cannot be read: that ends the iteration.
static __attribute__((noinline)) enum remixdb_status iter_lost(struct xdb_iter *it, enum remixdb_status s) {
  xdb_iter_fail(it, s);
  return err_raise(&it->error);
}

enum remixdb_status xdb_iter_refer(struct xdb_iter *it, struct kv_rec *rec_out) {
  if (unlikely(!xdb_iter_valid(it))) return it->status != REMIXDB_OK ? err_raise(&it->error) : REMIXDB_NOTFOUND;
  const enum remixdb_status s = unlikely(it->own != NULL) ? it->ref->calls->iter_record(it->own, rec_out)
                                                          : merge_record(&it->merge, rec_out);
  if (unlikely(s != REMIXDB_OK)) return iter_lost(it, s);
  if (unlikely(it->special)) {
    rec_out->key += it->nr_space;
    rec_out->klen -= it->nr_space;
    if (it->keys_only) {
      rec_out->val = NULL;
      rec_out->vlen = 0;
      rec_out->kind &= ~(uint32_t)KV_APART;
    }
  }
  return s;
}

#define VALUE_KEPT (1u << 20)  // bytes of memory for values that an iterator keeps from one record to the next

// The same for a ref with calls.
static enum remixdb_status own_load(struct xdb_iter *it, struct kv_rec *rec, void *buf) {
  struct kv_rec whole = *rec;
  whole.key -= it->nr_space;
  whole.klen += it->nr_space;
  const enum remixdb_status s = it->ref->calls->iter_load(it->own, &whole, buf);
  if (s != REMIXDB_OK) return iter_lost(it, s);
  rec->val = whole.val;
  rec->vlen = whole.vlen;
  rec->kind = whole.kind;
  return s;
}

enum remixdb_status xdb_iter_load(struct xdb_iter *it, struct kv_rec *rec, void *buf) {
  if (unlikely(it->own != NULL)) return own_load(it, rec, buf);
  const uint32_t len = super_vlen(rec);
  const struct kref key = kref(rec->key - it->nr_space, rec->klen + it->nr_space);  // as it is in the store
  uint32_t n;
  enum remixdb_status s;
  if (!buf && (len > it->value_cap || it->value_cap > VALUE_KEPT)) {
    iter_drop_value(it);
    if ((s = super_expect(it->super, key, rec)) != REMIXDB_OK) return iter_lost(it, s);
    if (!(it->value = mem_alloc(len))) return iter_lost(it, REMIXDB_NOMEM);
    it->value_cap = len;
  }
  struct value_ref to;
  struct value_file *f;
  if ((s = super_value(it->super, rec, &to, &f)) != REMIXDB_OK) return iter_lost(it, s);
  const bool cold = value_cold(&it->ref->xdb->value_ctx);
  values_came(it->ref, &it->merge, cold, &to, &it->told);
  if (cold) values_ahead(it->ref, it->super, &it->merge, &to, &it->told);
  s = value_read(f, &to, key, 0, buf ? buf : it->value, len, &n);
  if (s != REMIXDB_OK) return iter_lost(it, s);
  if (buf) return s;
  rec->val = it->value;
  rec->vlen = len;
  rec->kind &= ~(uint32_t)KV_APART;
  return s;
}

enum remixdb_status xdb_iter_record(struct xdb_iter *it, struct kv_rec *rec_out) {
  const enum remixdb_status s = xdb_iter_refer(it, rec_out);
  return s == REMIXDB_OK && unlikely(rec_out->kind & KV_APART) ? xdb_iter_load(it, rec_out, NULL) : s;
}
