// SPDX-License-Identifier: Apache-2.0
#include "store/get.h"

#include "view/multiget.h"
#include "store/idle.h"

// The share of gets that found their key in the active memtable lately, of those whose key was not written lately (wh_get_want): all of them, and so many that it is
// searched before anything else is asked for.
#define ABOVE_ALL 65535u
#define ABOVE_OFTEN (ABOVE_ALL / 3)

enum remixdb_status xdb_get(struct xdb_ref *r, struct kref key, void *val_out, uint32_t cap, uint32_t *vlen_out) {
  struct xdb *x = r->xdb;
  const uint64_t hash = hash64(key.ptr, key.len);
  enum remixdb_status s = REMIXDB_OK;
  struct kv_rec rec;
  epoch_enter(&x->epoch, &r->slot);
  const struct view *v = xdb_ref_view(r);
  const uint64_t moment = xdb_ref_moment(r);
  const struct wh_wanted wanted = wh_get_want(v->active->wh, key, hash);
  const bool early = wanted.recent == NULL && likely(r->above < ABOVE_OFTEN);
  struct xdb_below below;
  if (early) xdb_want_below(v, key, hash, &below);
  const struct wh_ver *ver = wh_get_wanted(v->active->wh, wanted, key, hash, moment);
  if (wanted.recent == NULL) r->above = r->above - (r->above >> 5) + (ver ? ABOVE_ALL >> 5 : 0);
  if (ver) {
    rec = (struct kv_rec){NULL, ver->val, 0, ver->vlen, ver->tomb};
  } else {
    if (unlikely(!early)) xdb_want_below(v, key, hash, &below);
    s = xdb_get_below_wanted(v, &below, key, hash, moment, &r->hold, &rec);
  }
  if (s == REMIXDB_OK && rec.tomb) s = REMIXDB_NOTFOUND;
  if (s == REMIXDB_OK) {
    if (vlen_out) *vlen_out = rec.vlen;
    const uint32_t n = rec.vlen < cap ? rec.vlen : cap;
    if (likely(val_out && n <= COPY_SMALL)) copy_small(val_out, rec.val, n);
    else if (val_out) memcpy(val_out, rec.val, n);
    if (val_out && n < rec.vlen) s = err_set(REMIXDB_TOOBIG, "the value has %u bytes, the buffer %u", rec.vlen, cap);
  }
  epoch_exit(&r->slot);
  return s;
}

enum remixdb_status xdb_multi_get(struct xdb_ref *r, size_t nr, const struct remixdb_slice *keys, struct remixdb_buf *values, bool *found,
                                  size_t *nr_out) {
  struct xdb *x = r->xdb;
  *nr_out = 0;
  if (unlikely(!r->multiget)) {
    const enum remixdb_status s = multiget_create(&x->io, &r->queue, &r->multiget);
    if (s != REMIXDB_OK) {
      for (size_t i = 0; i < nr; i++) {
        found[i] = false;
        if (values) values[i].len = 0;
      }
      return s;
    }
  }
  multiget_begin(r->multiget, nr, keys, values, found);
  epoch_enter(&x->epoch, &r->slot);
  struct view *v = xdb_ref_view(r), *counted = NULL;
  const uint64_t moment = xdb_ref_moment(r);
  while (multiget_part(r->multiget, v->active->wh, v->frozen ? v->frozen->wh : NULL, v->version, moment)) {
    if (!counted) {  // it outlives this epoch
      view_ref(v);
      counted = v;
    }
    epoch_exit(&r->slot);  // many keys must not hold up the reclamation of the whole store
    epoch_enter(&x->epoch, &r->slot);
  }
  epoch_exit(&r->slot);
  xdb_view_drop(x, counted);
  return multiget_end(r->multiget, nr_out);
}
