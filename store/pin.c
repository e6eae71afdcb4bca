// SPDX-License-Identifier: Apache-2.0
#include "store/pin.h"

#include "store/below.h"
#include "store/space_ref.h"
#include "value/read.h"

#define PIN_COPY 1024u  // bytes; up to so many a copy costs less than two counts that threads share

struct xdb_pin {
  struct xdb *xdb;
  struct memtable *mem;   // counted; NULL: the value is not in a memtable
  struct sst *sst;        // counted; NULL: the value is not in the cache
  struct cache_block cb;  // pinned, of `sst`
  uint8_t copy[];         // the value, if neither has it
};

// Whether the value lies in a frame of the cache that the hold has found in this epoch. It does not if it is in the
// hold's own buffer, or if the cache keeps the record without its block (table/records.h).
static bool in_frame(const struct sst_hold *h, const struct kv_rec *rec) {
  if (h->kind != SST_HOLD_FRAME) return false;
  const uintptr_t at = (uintptr_t)rec->val, from = (uintptr_t)h->cb.data;
  return at >= from && at + rec->vlen <= from + (uintptr_t)sst_block_pages(h->sst, h->block) * BLOCK_PAGE;
}

// Finds the key's value. Inside an epoch; the record is valid until the caller leaves it. *mem_out: the memtable that
// has the value, or NULL: the ref's hold has it. *v_out: the super.
static enum remixdb_status find(struct xdb_ref *r, struct kref key, struct kv_rec *rec_out, struct memtable **mem_out,
                                const struct super **v_out) {
  const uint64_t hash = hash64(key.ptr, key.len);
  uint64_t moment;
  const struct super *const v = *v_out = xdb_ref_super(r, &moment);
  const struct wh *const active = memtable_tree(v->active, r->tree), *const frozen = super_frozen(v, r->tree);
  const struct wh_ver *ver = active ? wh_get(active, key, hash, moment) : NULL;
  *mem_out = ver ? v->active : v->frozen;
  if (!ver && frozen) ver = wh_get(frozen, key, hash, moment);
  if (ver) {
    wh_ver_value(ver, rec_out);
  } else {
    struct xdb_below below;
    *mem_out = NULL;
    if (r->hold.kind == SST_HOLD_FRAME) sst_hold_drop(&r->hold);  // an earlier epoch's: it may have another block now
    xdb_below_begin(v, r->tree, key, hash, &below);
    const enum remixdb_status s = xdb_below_tables(&below, key, hash, &r->hold, rec_out);
    if (s != REMIXDB_OK) return s;
  }
  return xdb_ref_absent(r, rec_out) ? REMIXDB_NOTFOUND : REMIXDB_OK;
}

// Counts the file of a value that is apart, and leaves the epoch, because reading the value may take long.
static enum remixdb_status leave_apart(struct xdb_ref *r, const struct super *v, const struct kv_rec *rec,
                                       struct value_ref *to_out, struct value_file **out) {
  const enum remixdb_status s = super_value(v, rec, to_out, out);
  if (s == REMIXDB_OK) value_file_ref(*out);
  epoch_exit(&r->slot);
  return s;
}

enum remixdb_status pin_alloc_apart(struct xdb_ref *r, const struct super *v, struct kref key, const struct kv_rec *rec,
                                    void **val_out, uint32_t *vlen_out) {
  struct value_ref to;
  struct value_file *f;
  uint32_t n;
  enum remixdb_status s = leave_apart(r, v, rec, &to, &f);
  if (s != REMIXDB_OK) return s;
  void *val = NULL;
  s = value_expect(f, &to, key);
  if (s == REMIXDB_OK && !(val = mem_alloc(to.len))) s = REMIXDB_NOMEM;
  if (s == REMIXDB_OK) s = value_read(f, &to, key, 0, val, to.len, &n);
  value_file_unref(f);
  if (s != REMIXDB_OK) {
    mem_free(val);
    return s;
  }
  *val_out = val;
  if (vlen_out) *vlen_out = to.len;
  return s;
}

// Looks among the writes of the ref's transaction. REMIXDB_NOTFOUND: the caller goes on with `find`.
static enum remixdb_status find_own(struct xdb_ref **r, struct kref *key, struct kv_rec *rec_out) {
  enum remixdb_status s = xdb_ref_find_own(r, key, rec_out);
  if (s != REMIXDB_NOTFOUND) return s;
  s = space_key(*r, key);
  return s == REMIXDB_OK ? REMIXDB_NOTFOUND : s;
}

enum remixdb_status pin_get_alloc(struct xdb_ref *r, struct kref key, void **val_out, uint32_t *vlen_out) {
  struct kv_rec rec;
  const struct super *v = NULL;
  struct memtable *mem = NULL;
  enum remixdb_status s = find_own(&r, &key, &rec);
  epoch_enter(&r->xdb->epoch, &r->slot);
  if (s == REMIXDB_NOTFOUND) s = find(r, key, &rec, &mem, &v);
  else if (s == REMIXDB_OK && xdb_ref_absent(r, &rec)) s = REMIXDB_NOTFOUND;
  if (s == REMIXDB_OK && unlikely(rec.kind & KV_APART)) return pin_alloc_apart(r, v, key, &rec, val_out, vlen_out);
  if (s == REMIXDB_OK && !(*val_out = mem_alloc(rec.vlen ? rec.vlen : 1))) s = REMIXDB_NOMEM;
  if (s == REMIXDB_OK) {
    if (rec.vlen) memcpy(*val_out, rec.val, rec.vlen);
    if (vlen_out) *vlen_out = rec.vlen;
  }
  epoch_exit(&r->slot);
  return s;
}

// Fills the pin in, and takes what it needs of the store. Inside the epoch of `find`. Returns the value.
static const void *take(struct xdb_pin *pin, struct xdb_ref *r, const struct kv_rec *rec, struct memtable *mem,
                        bool copied) {
  *pin = (struct xdb_pin){.xdb = r->xdb};
  if (copied) {
    if (rec->vlen) memcpy(pin->copy, rec->val, rec->vlen);
    return pin->copy;
  }
  if (mem) {
    pin->mem = mem;
    memtable_ref(mem);
  } else {
    pin->sst = r->hold.sst;
    sst_ref(pin->sst);
    pin->cb.data = r->hold.cb.data;
    pin->cb.frame = r->hold.cb.frame;
    cache_block_pin(&pin->sst->cache, &pin->cb);
  }
  return rec->val;
}

// A pin of a value that is apart has a copy.
static enum remixdb_status pin_apart(struct xdb_ref *r, const struct super *v, struct kref key,
                                     const struct kv_rec *rec, struct xdb_pin **out, const void **v_out,
                                     uint32_t *vlen_out) {
  struct value_ref to;
  struct value_file *f;
  uint32_t n;
  enum remixdb_status s = leave_apart(r, v, rec, &to, &f);
  if (s != REMIXDB_OK) return s;
  struct xdb_pin *pin = NULL;
  s = value_expect(f, &to, key);
  if (s == REMIXDB_OK && !(pin = mem_array(1, sizeof(*pin), to.len))) s = REMIXDB_NOMEM;
  if (s == REMIXDB_OK) s = value_read(f, &to, key, 0, pin->copy, to.len, &n);
  value_file_unref(f);
  if (s != REMIXDB_OK) {
    mem_free(pin);
    return s;
  }
  *pin = (struct xdb_pin){.xdb = r->xdb};
  *v_out = pin->copy;
  if (vlen_out) *vlen_out = to.len;
  *out = pin;
  atomic_fetch_add_explicit(&r->xdb->nr_pins, 1, memory_order_relaxed);
  return s;
}

enum remixdb_status pin_get(struct xdb_ref *r, struct kref key, struct xdb_pin **out, const void **v_out,
                            uint32_t *vlen_out) {
  struct kv_rec rec;
  const struct super *v = NULL;
  struct memtable *mem = NULL;
  enum remixdb_status s = find_own(&r, &key, &rec);
  const bool own = s == REMIXDB_OK;
  epoch_enter(&r->xdb->epoch, &r->slot);
  if (s == REMIXDB_NOTFOUND) s = find(r, key, &rec, &mem, &v);
  else if (own && xdb_ref_absent(r, &rec)) s = REMIXDB_NOTFOUND;
  if (s == REMIXDB_OK && unlikely(rec.kind & KV_APART)) return pin_apart(r, v, key, &rec, out, v_out, vlen_out);
  if (s == REMIXDB_OK) {
    const bool copied = own || rec.vlen <= PIN_COPY || (!mem && !in_frame(&r->hold, &rec));
    struct xdb_pin *const pin = mem_array(1, sizeof(*pin), copied ? rec.vlen : 0);
    if (pin) {
      *v_out = take(pin, r, &rec, mem, copied);
      if (vlen_out) *vlen_out = rec.vlen;
      *out = pin;
    } else {
      s = REMIXDB_NOMEM;
    }
  }
  epoch_exit(&r->slot);
  if (s == REMIXDB_OK) atomic_fetch_add_explicit(&r->xdb->nr_pins, 1, memory_order_relaxed);
  return s;
}

struct xdb *pin_store(const struct xdb_pin *pin) {
  return pin->xdb;
}

void pin_release(struct xdb_pin *pin) {
  struct xdb *const x = pin->xdb;
  memtable_unref(pin->mem);
  if (pin->sst) {
    cache_block_drop(&pin->sst->cache, &pin->cb);
    err_cleanup_begin();  // the file may fail to go
    sst_unref(pin->sst);
    err_cleanup_end();
  }
  mem_free(pin);
  atomic_fetch_sub_explicit(&x->nr_pins, 1, memory_order_relaxed);
}
