// SPDX-License-Identifier: Apache-2.0
#include "compat/leveldb/internal.h"

leveldb_snapshot_t *ldb_snapshot_take(leveldb_t *db) {
  leveldb_snapshot_t *snap = calloc(1, sizeof(*snap));
  struct xdb_ref *const ref = snap ? remixdb_ref_borrow(db->xdb) : NULL;
  if (ref) snap->snapshot = remixdb_snapshot(ref);
  remixdb_ref_return(ref);
  if (!snap || !snap->snapshot) {
    free(snap);
    return NULL;
  }
  atomic_init(&snap->refs, 1);
  atomic_init(&snap->idle, NULL);
  return snap;
}

void ldb_snapshot_ref(leveldb_snapshot_t *snap) { atomic_fetch_add_explicit(&snap->refs, 1, memory_order_relaxed); }

void ldb_snapshot_unref(leveldb_snapshot_t *snap) {
  if (!snap || atomic_fetch_sub_explicit(&snap->refs, 1, memory_order_acq_rel) != 1) return;
  remixdb_unref(atomic_load_explicit(&snap->idle, memory_order_acquire));
  remixdb_snapshot_release(snap->snapshot);
  free(snap);
}

struct xdb_ref *ldb_snapshot_reader(const leveldb_snapshot_t *snap) {
  leveldb_snapshot_t *const s = (leveldb_snapshot_t *)(uintptr_t)snap;  // its count and its idle ref change
  struct xdb_ref *const ref = atomic_exchange_explicit(&s->idle, NULL, memory_order_acquire);
  return ref ? ref : remixdb_snapshot_ref(snap->snapshot);
}

void ldb_snapshot_reader_end(const leveldb_snapshot_t *snap, struct xdb_ref *ref) {
  leveldb_snapshot_t *const s = (leveldb_snapshot_t *)(uintptr_t)snap;
  remixdb_unref(atomic_exchange_explicit(&s->idle, ref, memory_order_acq_rel));
}

const leveldb_snapshot_t *leveldb_create_snapshot(leveldb_t *db) { return ldb_snapshot_take(db); }

void leveldb_release_snapshot(leveldb_t *db, const leveldb_snapshot_t *snapshot) {
  (void)db;
  ldb_snapshot_unref((leveldb_snapshot_t *)(uintptr_t)snapshot);
}
