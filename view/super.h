// SPDX-License-Identifier: Apache-2.0
//
// A super: the active memtable, the frozen memtable and the version. A call reads the three together. No thread edits a
// super that others have; a new super replaces it. A super has a count of references, and holds a reference to each of
// its parts.
#ifndef SUPER_H
#define SUPER_H

#include "view/memtable.h"
#include "view/version.h"

struct super {
  struct epoch_item item;
  _Atomic uint32_t refs;
  // In a line of its own, because each call reads it, and counting must not touch that line.
  _Alignas(CACHE_LINE) struct memtable *active;
  struct memtable *frozen;  // NULL: none
  struct version *version;
  // The largest sequence number whose effects the version has without a trace in the memtables. Set before other
  // threads have the super.
  uint64_t since;
  // The least moment of readers: at least `since`, and the number at which the frozen memtable was frozen. So a reader
  // that sees a record of the active memtable sees all of the frozen one, too, as gaps demand (wh/gap.h). Set with
  // `since`.
  uint64_t least;
};

// Makes a super, which takes new references to all three parts; frozen may be NULL. Its `since` and `least` are 0. The
// result has one reference, which the caller owns. Returns NULL on failure (REMIXDB_NOMEM).
struct super *super_create(struct memtable *active, struct memtable *frozen, struct version *version);
// The super must be alive: the caller has a reference or a snapshot, or is still in the epoch in which it found the
// store's super. (The store keeps its own count until that epoch has ended.)
static inline void super_ref(struct super *v) { atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed); }
// Returns the frozen memtable's index of a tree; NULL: there is none.
static inline const struct wh *super_frozen(const struct super *v, uint32_t tree) {
  return unlikely(v->frozen != NULL) ? memtable_tree(v->frozen, tree) : NULL;
}
// Tells whether some record of the tree that a reader of the super can see expires.
static inline bool super_expires(const struct super *v, uint32_t tree) {
  const struct wh *const active = memtable_tree(v->active, tree), *const frozen = super_frozen(v, tree);
  return unlikely(version_tree(v->version, tree)->expires || (active && wh_expires(active)) ||
                  (frozen && wh_expires(frozen)));
}
struct version *super_destroy(struct super *v);  // for super_drop only
// Drops a reference; v may be NULL. The last reference to the super also drops the references to the parts. If that was
// the last reference to the version, the call returns the version, and the caller destroys it. Else it returns NULL.
// Outside of any epoch: freeing a memtable may take long. acq_rel: the thread that frees has seen all uses by the
// others.
MUST_CHECK static inline struct version *super_drop(struct super *v) {
  return v && atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) == 1 ? super_destroy(v) : NULL;
}
// Like super_drop, and also destroys the version. For threads that may wait for the removal of files. Readers must not
// wait for that (store/idle.h).
static inline void super_unref(struct super *v) {
  struct version *const last = super_drop(v);
  if (last) version_destroy(last);
}
// Finds the value file that a record of the super refers to: the version's, or one of the memtables'. The file lives as
// long as the super. *to_out: the reference. Fails with REMIXDB_CORRUPT if the reference is malformed, or the super has
// no such file.
MUST_CHECK enum remixdb_status super_value(const struct super *v, const struct kv_rec *rec, struct value_ref *to_out,
                                           struct value_file **out);
// Reads the value of a record of v from `off` on, at most cap bytes. The value is apart. See value_read. key: the
// record's; `rec` need not have it. Fails also like super_value.
MUST_CHECK enum remixdb_status super_read(const struct super *v, struct kref key, const struct kv_rec *rec,
                                          uint32_t off, void *buf, uint32_t cap, uint32_t *n_out);
// value_expect of the record's value, which is apart. Fails also like super_value.
MUST_CHECK enum remixdb_status super_expect(const struct super *v, struct kref key, const struct kv_rec *rec);
// The length of a record's value, which may be apart.
static inline uint32_t super_vlen(const struct kv_rec *rec) {
  return unlikely(rec->kind & KV_APART) && rec->vlen == VALUE_REF ? value_ref_len(rec->val) : rec->vlen;
}
// Gives v the memtables of another super. No other thread has seen v yet.
void super_follow(struct super *v, const struct super *other);
// Drops the reference when all epochs have passed in which a thread may see v. Does not wait for that.
void super_retire(struct epoch *e, struct super *v);
#endif
