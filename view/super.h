// SPDX-License-Identifier: Apache-2.0
//
// A view: what the store is made of at a time. It is never edited; a new one replaces it. Counted, and a count on each
// of its parts.
#ifndef VIEW_H
#define VIEW_H

#include "view/memtable.h"
#include "view/version.h"

struct super {
  struct epoch_item item;
  _Atomic uint32_t refs;
  struct memtable *active;
  struct memtable *frozen;  // NULL: none
  struct version *version;
};

// Takes references of its own to all three; frozen may be NULL. One reference, the caller's. NULL: REMIXDB_NOMEM.
struct super *super_create(struct memtable *active, struct memtable *frozen, struct version *version);
// The view is alive: the caller has a reference, or is in the epoch in which it found the store's view, whose count
// cannot be dropped before that is left, or holds a snapshot.
static inline void super_ref(struct super *v) { atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed); }
struct version *super_destroy(struct super *v);  // by super_drop alone
// Gives up a reference. Returns the version whose last reference went with it, which is the caller's to destroy, or
// NULL. NULL is allowed. Outside of any epoch, as the last reference of a memtable may free much.
MUST_CHECK static inline struct version *super_drop(struct super *v) {
  return v && atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) == 1 ? super_destroy(v) : NULL;
}
// The same, with the end of the version. For those who may wait for files to go; readers do not (store/idle.h).
static inline void super_unref(struct super *v) {
  struct version *const last = super_drop(v);
  if (last) version_destroy(last);
}
// Of a view that nobody else has seen yet: it gets the memtables of another one.
void super_follow(struct super *v, const struct super *other);
// Drops the reference when all epochs have passed in which it can be seen; does not wait.
void super_retire(struct epoch *e, struct super *v);
#endif
