// SPDX-License-Identifier: Apache-2.0
//
// Looking up a key below the active memtable: in the frozen memtable, then in the key's partition.
//
// A lookup has two steps. The first step prefetches the memory that the second step reads first. The processor loads
// this memory while the caller searches the active memtable.
#ifndef STORE_BELOW_H
#define STORE_BELOW_H

#include "store/state.h"

// The first step hands this to the second step.
struct xdb_below {
  const struct wh *index;  // the frozen memtable's; NULL: there is none
  struct wh_begun frozen;  // in it
  const struct part *part;
  const uint8_t *seg;  // the segment of the partition's newest view; NULL: the partition was away or empty
};
// Prefetches what xdb_below_end reads first. Both run in the same epoch. tree: the key's.
static inline void xdb_below_begin(const struct super *v, uint32_t tree, struct kref key, uint64_t hash,
                                   struct xdb_below *out) {
  const struct version *const version = version_tree(v->version, tree);
  const struct part *const part = out->part = version->parts[version_find(version, key)];
  out->index = super_frozen(v, tree);
  if (unlikely(out->index != NULL)) out->frozen = wh_get_begin(out->index, key, hash);
  out->seg = part_get_begin(part, key);
}
// xdb_below_tables for a partition that was away or empty.
MUST_CHECK enum remixdb_status xdb_below_away(const struct part *part, struct kref key, uint64_t hash,
                                              struct sst_hold *h, struct kv_rec *rec_out);
// Finds the record of the key in its partition. *rec_out may be a tombstone, and is valid until the caller leaves the
// epoch. Fails with REMIXDB_NOTFOUND.
static inline enum remixdb_status xdb_below_tables(const struct xdb_below *b, struct kref key, uint64_t hash,
                                                   struct sst_hold *h, struct kv_rec *rec_out) {
  const struct part *const part = b->part;
  if (unlikely(b->seg == NULL)) return xdb_below_away(part, key, hash, h, rec_out);
  if (likely(part_young(part) == NULL)) return remix_get_end(part_remix(part), b->seg, key, hash, h, rec_out);
  const enum remixdb_status s = remix_get_end(part_young(part), b->seg, key, hash, h, rec_out);
  return s == REMIXDB_NOTFOUND ? remix_get(part_remix(part), key, hash, h, rec_out) : s;
}
// Finds the newest record of the key that is below the active memtable and visible at `moment`. *rec_out may be a
// tombstone, may lack its key, and is valid until the caller leaves the epoch. Fails with REMIXDB_NOTFOUND.
static inline enum remixdb_status xdb_below_end(const struct xdb_below *b, struct kref key, uint64_t hash,
                                                uint64_t moment, struct sst_hold *h, struct kv_rec *rec_out) {
  const struct wh_ver *ver = unlikely(b->index != NULL) ? wh_get_end(b->index, b->frozen, key, hash, moment) : NULL;
  if (ver) {
    wh_ver_value(ver, rec_out);
    return REMIXDB_OK;
  }
  return xdb_below_tables(b, key, hash, h, rec_out);
}
// The same, and rec_out->seq is the record's sequence number.
static inline enum remixdb_status xdb_below_numbered(const struct xdb_below *b, struct kref key, uint64_t hash,
                                                     uint64_t moment, struct sst_hold *h, struct kv_rec *rec_out) {
  const struct wh_ver *ver = b->index ? wh_get_end(b->index, b->frozen, key, hash, moment) : NULL;
  if (ver) {
    wh_ver_value(ver, rec_out);
    rec_out->seq = wh_ver_seq(ver);
    return REMIXDB_OK;
  }
  const enum remixdb_status s = xdb_below_tables(b, key, hash, h, rec_out);
  if (s == REMIXDB_OK) rec_out->seq = sst_seq(h->of, rec_out);
  return s;
}
// Finds the newest record of the key that is visible at `moment`, in all memtables and tables of the super. *rec_out
// has its seq, may be a tombstone, may have expired, may lack its key, and is valid until the caller leaves the epoch.
// Fails with REMIXDB_NOTFOUND; then the key has no record, or only tombstones that compaction has found to hide nothing
// else.
static inline enum remixdb_status xdb_find_numbered(const struct super *v, uint32_t tree, struct kref key,
                                                    uint64_t hash, uint64_t moment, struct sst_hold *h,
                                                    struct kv_rec *rec_out) {
  const struct wh *const active = memtable_tree(v->active, tree);
  const struct wh_ver *const ver = active ? wh_get(active, key, hash, moment) : NULL;
  struct xdb_below below;
  if (ver) {
    wh_ver_value(ver, rec_out);
    rec_out->seq = wh_ver_seq(ver);
    return REMIXDB_OK;
  }
  xdb_below_begin(v, tree, key, hash, &below);
  return xdb_below_numbered(&below, key, hash, moment, h, rec_out);
}
// Both steps.
static inline enum remixdb_status xdb_below_get(const struct super *v, uint32_t tree, struct kref key, uint64_t hash,
                                                uint64_t moment, struct sst_hold *h, struct kv_rec *rec_out) {
  struct xdb_below below;
  xdb_below_begin(v, tree, key, hash, &below);
  return xdb_below_end(&below, key, hash, moment, h, rec_out);
}
#endif
