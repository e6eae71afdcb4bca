// SPDX-License-Identifier: Apache-2.0
#include "store/iter.h"

#include "store/idle.h"

enum remixdb_status xdb_iter_create(struct xdb_ref *r, struct xdb_iter **out) {
  struct xdb_iter *it = mem_calloc(1, sizeof(*it));
  if (!it) return REMIXDB_NOMEM;
  if (!r->queue) {
    const enum remixdb_status s = blkio_queue_create(&r->xdb->io, &r->queue);
    if (s != REMIXDB_OK) {
      mem_free(it);
      return s;
    }
  }
  it->ref = r;
  merge_init(&it->merge, r->queue);
  merge_lend(&it->merge, &r->xdb->epoch, &r->slot);
  atomic_fetch_add_explicit(&r->xdb->nr_iters, 1, memory_order_relaxed);
  *out = it;
  return REMIXDB_OK;
}

void xdb_iter_park(struct xdb_iter *it) {
  struct xdb_ref *r = it->ref;
  epoch_enter(&r->xdb->epoch, &r->slot);
  merge_park(&it->merge);
  epoch_exit(&r->slot);
  if (it->stays) xdb_ref_unstay(r);
  it->stays = false;
  xdb_view_drop(r->xdb, it->view);
  it->view = NULL;
  it->status = REMIXDB_OK;
}

void xdb_iter_destroy(struct xdb_iter *it) {
  if (!it) return;
  xdb_iter_park(it);
  merge_fini(&it->merge);
  atomic_fetch_sub_explicit(&it->ref->xdb->nr_iters, 1, memory_order_relaxed);
  mem_free(it);
}

// After a call that moves it, outside of any epoch.
static enum remixdb_status iter_done(struct xdb_iter *it, enum remixdb_status s) {
  it->status = s;
  if (unlikely(s != REMIXDB_OK)) err_save(&it->error, s);
  if (likely(xdb_iter_valid(it))) return s;
  xdb_iter_park(it);  // one that has come to its end, and is left there, pins nothing
  it->status = s;
  return s == REMIXDB_OK ? s : err_raise(&it->error);  // what went with the view may have said something else
}

// Brings the iterator to the store, or the snapshot, as it is now; inside an epoch. What it held before is in *old_out and must be dropped after the epoch.
static void iter_renew(struct xdb_iter *it, struct view **old_out) {
  struct xdb_ref *r = it->ref;
  struct view *v = xdb_ref_view(r);
  *old_out = NULL;
  if (v != it->view) {
    view_ref(v);
    *old_out = it->view;
    merge_park(&it->merge);
    it->view = v;
  }
  merge_set(&it->merge, v->active->wh, v->frozen ? v->frozen->wh : NULL, v->version, xdb_ref_moment(r));
}

enum seek_how { SEEK_GE, SEEK_LE, SEEK_LAST };

static enum remixdb_status iter_seek(struct xdb_iter *it, enum seek_how how, struct kref key) {
  struct view *old;
  // The key may be the one it stands on, in memory that it gives up, or reads other blocks into, before the search has ended.
  uint8_t small[COPY_SMALL], *large = NULL;
  if (it->view && key.len > 0) {
    if (unlikely(key.len > COPY_SMALL) && !(large = mem_alloc(key.len))) {
      xdb_iter_fail(it, REMIXDB_NOMEM);
      return REMIXDB_NOMEM;
    }
    if (likely(!large)) copy_small(small, key.ptr, key.len);
    else memcpy(large, key.ptr, key.len);
    key.ptr = large ? large : small;
  }
  epoch_enter(&it->ref->xdb->epoch, &it->ref->slot);
  iter_renew(it, &old);
  xdb_ref_stay(it->ref, it->stays);
  it->stays = true;
  enum remixdb_status s = how == SEEK_GE   ? merge_seek(&it->merge, key)
                          : how == SEEK_LE ? merge_seek_for_prev(&it->merge, key)
                                           : merge_seek_last(&it->merge);
  epoch_exit(&it->ref->slot);
  mem_free(large);
  s = iter_done(it, s);
  xdb_view_drop(it->ref->xdb, old);
  return s == REMIXDB_OK ? s : err_raise(&it->error);  // what went with the view may have said something else
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
  return iter_done(it, nr == 1 ? merge_next(&it->merge) : merge_skip(&it->merge, nr));
}

enum remixdb_status xdb_iter_prev(struct xdb_iter *it) {
  if (!xdb_iter_valid(it)) return it->status != REMIXDB_OK ? err_raise(&it->error) : REMIXDB_OK;
  return iter_done(it, merge_prev(&it->merge));
}

enum remixdb_status xdb_iter_record(struct xdb_iter *it, struct kv_rec *rec_out) {
  if (unlikely(!xdb_iter_valid(it))) return it->status != REMIXDB_OK ? err_raise(&it->error) : REMIXDB_NOTFOUND;
  return merge_record(&it->merge, rec_out);
}
