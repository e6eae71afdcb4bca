// SPDX-License-Identifier: Apache-2.0
#include "view/super.h"

static void take_memtables(struct view *v, struct memtable *active, struct memtable *frozen) {
  v->active = active;
  v->frozen = frozen;
  atomic_fetch_add_explicit(&active->refs, 1, memory_order_relaxed);
  if (frozen) atomic_fetch_add_explicit(&frozen->refs, 1, memory_order_relaxed);
}

struct view *view_create(struct memtable *active, struct memtable *frozen, struct version *version) {
  struct view *v = mem_calloc(1, sizeof(*v));
  if (!v) return NULL;
  atomic_init(&v->refs, 1);
  take_memtables(v, active, frozen);
  v->version = version;
  version_ref(version);
  return v;
}

void view_follow(struct view *v, const struct view *other) {
  struct memtable *const active = v->active, *const frozen = v->frozen;
  take_memtables(v, other->active, other->frozen);
  memtable_unref(active);
  memtable_unref(frozen);
}

struct version *view_destroy(struct view *v) {
  struct version *const version = v->version;
  memtable_unref(v->active);
  memtable_unref(v->frozen);
  mem_free(v);
  return version_drop(version) ? version : NULL;
}

static void view_reclaim(struct epoch_item *item, void *arg) {
  (void)arg;
  view_unref((struct view *)item);
}

void view_retire(struct epoch *e, struct view *v) { epoch_retire(e, &v->item, view_reclaim, NULL); }
