// SPDX-License-Identifier: Apache-2.0
#include "view/super.h"

#include "value/read.h"

static void take_memtables(struct super *v, struct memtable *active, struct memtable *frozen) {
  v->active = active;
  v->frozen = frozen;
  memtable_ref(active);
  if (frozen) memtable_ref(frozen);
}

struct super *super_create(struct memtable *active, struct memtable *frozen, struct version *version) {
  struct super *v = mem_alloc_aligned(CACHE_LINE, sizeof(*v));
  if (!v) return NULL;
  memset(v, 0, sizeof(*v));
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

enum remixdb_status super_value(const struct super *v, const struct kv_rec *rec, struct value_ref *to_out,
                                struct value_file **out) {
  const bool fits = value_ref_get(rec->val, rec->vlen, to_out);
  // The version comes first: a file that was collected is another one in a later version than that of a memtable.
  *out = fits ? version_value(v->version, to_out) : NULL;
  if (fits && !*out) *out = value_list_find(&v->active->values, to_out->file);
  if (fits && !*out && v->frozen) *out = value_list_find(&v->frozen->values, to_out->file);
  if (likely(*out != NULL)) return REMIXDB_OK;
  return fits ? err_set(REMIXDB_CORRUPT, "a record refers to value file %llu, which the store does not have",
                        (unsigned long long)to_out->file)
              : err_set(REMIXDB_CORRUPT, "a record has a reference to a value that cannot be one");
}

enum remixdb_status super_read(const struct super *v, struct kref key, const struct kv_rec *rec, uint32_t off,
                               void *buf, uint32_t cap, uint32_t *n_out) {
  struct value_ref to;
  struct value_file *f;
  *n_out = 0;
  const enum remixdb_status s = super_value(v, rec, &to, &f);
  return s == REMIXDB_OK ? value_read(f, &to, key, off, buf, cap, n_out) : s;
}

enum remixdb_status super_expect(const struct super *v, struct kref key, const struct kv_rec *rec) {
  struct value_ref to;
  struct value_file *f;
  const enum remixdb_status s = super_value(v, rec, &to, &f);
  return s == REMIXDB_OK ? value_expect(f, &to, key) : s;
}
