// SPDX-License-Identifier: Apache-2.0
#include "store/page.h"

static inline enum remixdb_status step(struct xdb_iter *it, bool back) {
  if (unlikely(it->own != NULL))
    return back ? it->ref->calls->iter_prev(it->own) : it->ref->calls->iter_skip(it->own, 1);
  if (back) return xdb_iter_pass(it, merge_prev(&it->merge));
  return merge_next_fast(&it->merge) ? REMIXDB_OK : xdb_iter_pass(it, merge_next(&it->merge));
}

static void clear(struct remixdb_page *p) {
  p->after = false;
  p->nr = 0;
  p->len = 0;
}

// Moves the iterator past the last record of the previous page. If the iterator then is at its end, it drops its super.
static enum remixdb_status begin(struct xdb_iter *it, struct remixdb_page *p) {
  const bool after = p->after;
  clear(p);
  if (!after) return REMIXDB_OK;
  if (xdb_iter_valid(it)) return xdb_iter_moved(it, step(it, p->back));
  if (it->super || it->own) xdb_iter_park(it);
  return it->status == REMIXDB_OK ? REMIXDB_OK : err_raise(&it->error);
}

// Appends a record. *s_out: a value that is apart could not be read. Returns false if so, or if the record does not
// fit. Writes the record's lengths into the page in any case.
static inline bool put(struct xdb_iter *it, struct remixdb_page *p, struct kv_rec *r, enum remixdb_status *s_out) {
  const uint32_t vlen = p->vlens ? super_vlen(r) : 0;
  p->klens[p->nr] = r->klen;
  if (p->vlens) p->vlens[p->nr] = vlen;
  if (unlikely((uint64_t)r->klen + vlen > p->cap - p->len)) return false;
  if (likely(r->klen)) memcpy((uint8_t *)p->ptr + p->len, r->key, r->klen);
  p->len += r->klen;
  if (unlikely(vlen && r->kind & KV_APART)) {
    if ((*s_out = xdb_iter_load(it, r, (uint8_t *)p->ptr + p->len)) != REMIXDB_OK) {
      p->len -= r->klen;
      return false;
    }
  } else if (likely(vlen)) {
    memcpy((uint8_t *)p->ptr + p->len, r->val, vlen);
  }
  p->len += vlen;
  p->nr++;
  return true;
}

enum remixdb_status xdb_iter_page(struct xdb_iter *it, struct remixdb_page *p) {
  struct kv_rec r;
  enum remixdb_status s = begin(it, p);
  if (s != REMIXDB_OK) return s;
  while ((likely(xdb_iter_record_held(it, &r)) || (s = xdb_iter_refer(it, &r)) == REMIXDB_OK) && put(it, p, &r, &s)) {
    p->after = p->nr == p->max;
    if (p->after) return REMIXDB_OK;
    if (unlikely((s = step(it, p->back)) != REMIXDB_OK)) {
      s = xdb_iter_moved(it, s);
      break;
    }
    p->after = !xdb_iter_valid(it);
    if (unlikely(p->after)) return REMIXDB_OK;  // the super stays: an unread may follow
  }
  if (p->nr) return REMIXDB_OK;  // the next call meets the error again
  if (s != REMIXDB_OK) return s;
  return err_set(REMIXDB_TOOBIG, "the record has %u and %u bytes, the page room for %zu", r.klen, super_vlen(&r),
                 p->cap);
}

// Moves an iterator that is past the store's last record (else: before its first one) back to that record, at the same
// moment.
static enum remixdb_status seek_end(struct xdb_iter *it, bool last) {
  epoch_enter(&it->ref->xdb->epoch, &it->ref->slot);
  const enum remixdb_status s = last ? merge_seek_last(&it->merge) : merge_seek(&it->merge, kref("", 0));
  epoch_exit(&it->ref->slot);
  return xdb_iter_moved(it, s);
}

enum remixdb_status xdb_iter_unread(struct xdb_iter *it, struct remixdb_page *p, uint32_t nr) {
  const bool after = p->after;
  enum remixdb_status s = REMIXDB_OK;
  clear(p);
  if (!xdb_iter_valid(it)) {
    if (it->status != REMIXDB_OK) return err_raise(&it->error);
    if (!it->super && !it->own) return REMIXDB_OK;
    if (!after || nr == 0) {
      xdb_iter_park(it);
      return REMIXDB_OK;
    }
    if (it->own) s = xdb_iter_moved(it, it->ref->calls->iter_unend(it->own, p->back));
    else s = seek_end(it, !p->back);
  } else if (after && nr == 0) {
    return xdb_iter_moved(it, step(it, p->back));
  }
  for (uint32_t n = nr - after; n > 0 && s == REMIXDB_OK && xdb_iter_valid(it); n--)
    s = xdb_iter_moved(it, step(it, !p->back));
  return s;
}
