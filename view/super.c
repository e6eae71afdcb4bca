// SPDX-License-Identifier: Apache-2.0
#include "view/super.h"

static void take_memtables(struct super *v, struct memtable *active, struct memtable *frozen) {
  v->active = active;
  v->frozen = frozen;
  memtable_ref(active);
  if (frozen) memtable_ref(frozen);
}

struct super *super_create(struct memtable *active, struct memtable *frozen, struct version *version) {
  struct super *v = mem_calloc(1, sizeof(*v));
  if (!v) return NULL;
  atomic_init(&v->refs, 1);
  take_memtables(v, active, frozen);
  v->version = version;
  version_ref(version);
  return v;
}

void super_follow(struct super *v, const struct super *other) {
  struct memtable *const active = v->active, *const frozen = v->frozen;
  take_memtables(v, other->active, other->frozen);
  memtable_unref(active);
  memtable_unref(frozen);
}

struct version *super_destroy(struct super *v) {
  struct version *const version = v->version;
  memtable_unref(v->active);
  memtable_unref(v->frozen);
  mem_free(v);
  return version_drop(version) ? version : NULL;
}

static void super_reclaim(struct epoch_item *item, void *arg) {
  (void)arg;
  super_unref((struct super *)item);
}

void super_retire(struct epoch *e, struct super *v) { epoch_retire(e, &v->item, super_reclaim, NULL); }
