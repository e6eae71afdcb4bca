// SPDX-License-Identifier: Apache-2.0
//
// Reading keys, one or many at a time.
#ifndef XDB_GET_H
#define XDB_GET_H

#include "store/ref.h"

// Copies at most cap bytes of the value to val_out (which may be NULL: cap 0); *vlen_out, when given, is the full length. REMIXDB_NOTFOUND.
MUST_CHECK enum remixdb_status xdb_get(struct xdb_ref *r, struct kref key, void *val_out, uint32_t cap, uint32_t *vlen_out);
// Looks up nr keys at one moment: the contract is remixdb_multi_get's. *nr_out is set in any case.
MUST_CHECK enum remixdb_status xdb_multi_get(struct xdb_ref *r, size_t nr, const struct remixdb_slice *keys, struct remixdb_buf *values, bool *found,
                                             size_t *nr_out);

// Where a key is looked for below the active memtable: what has been asked for.
struct xdb_below {
  struct wh_wanted frozen;   // of the frozen memtable, when there is one
  const struct part *part;
  const uint8_t *seg;        // of the partition's newest view
};
// Asks for what xdb_get_below_wanted reads first, in the same epoch: it is on its way while the active memtable is searched.
static inline void xdb_want_below(const struct view *v, struct kref key, uint64_t hash, struct xdb_below *out) {
  const struct version *const version = v->version;
  const struct part *const part = out->part = version->parts[version->nr_parts > 1 ? version_find(version, key) : 0];
  if (unlikely(v->frozen != NULL)) out->frozen = wh_get_want(v->frozen->wh, key, hash);
  const struct remix *const newest = unlikely(part->young != NULL) ? part->young : part->remix;
  out->seg = newest ? remix_get_want(newest, key) : NULL;
}
// What lies below the active memtable, seen at the moment: the frozen one, then the partitions. *rec_out may be a tombstone; it holds until the epoch is left.
static inline enum remixdb_status xdb_get_below_wanted(const struct view *v, const struct xdb_below *b, struct kref key, uint64_t hash, uint64_t moment,
                                                       struct sst_hold *h, struct kv_rec *rec_out) {
  const struct wh_ver *ver = unlikely(v->frozen != NULL) ? wh_get_wanted(v->frozen->wh, b->frozen, key, hash, moment) : NULL;
  if (ver) {
    *rec_out = (struct kv_rec){NULL, ver->val, 0, ver->vlen, ver->tomb};
    return REMIXDB_OK;
  }
  const struct part *const part = b->part;
  if (likely(part->young == NULL)) return part->remix ? remix_get_wanted(part->remix, b->seg, key, hash, h, rec_out) : REMIXDB_NOTFOUND;
  const enum remixdb_status s = remix_get_wanted(part->young, b->seg, key, hash, h, rec_out);
  return s == REMIXDB_NOTFOUND ? remix_get(part->remix, key, hash, h, rec_out) : s;
}
// The same at once.
static inline enum remixdb_status xdb_get_below(const struct view *v, struct kref key, uint64_t hash, uint64_t moment, struct sst_hold *h, struct kv_rec *rec_out) {
  struct xdb_below below;
  xdb_want_below(v, key, hash, &below);
  return xdb_get_below_wanted(v, &below, key, hash, moment, h, rec_out);
}
#endif
