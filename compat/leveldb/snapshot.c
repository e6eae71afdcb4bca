// SPDX-License-Identifier: Apache-2.0
#include "compat/leveldb/internal.h"

const leveldb_snapshot_t *leveldb_create_snapshot(leveldb_t *db) {
  leveldb_snapshot_t *snap = calloc(1, sizeof(*snap));
  struct xdb_ref *const ref = snap ? remixdb_ref_borrow(db->xdb) : NULL;
  if (ref) snap->snapshot = remixdb_snapshot(ref);
  remixdb_ref_return(ref);
  if (!snap || !snap->snapshot) {
    free(snap);
    return NULL;
  }
  atomic_init(&snap->idle, NULL);
  return snap;
}

void leveldb_release_snapshot(leveldb_t *db, const leveldb_snapshot_t *snapshot) {
  (void)db;
  leveldb_snapshot_t *const snap = (leveldb_snapshot_t *)(uintptr_t)snapshot;
  if (!snap) return;
  remixdb_unref(atomic_load_explicit(&snap->idle, memory_order_acquire));
  remixdb_snapshot_release(snap->snapshot);
  free(snap);
}

struct xdb_ref *ldb_snapshot_reader(const leveldb_snapshot_t *snap) {
  leveldb_snapshot_t *const s = (leveldb_snapshot_t *)(uintptr_t)snap;  // its idle ref changes
  struct xdb_ref *const ref = atomic_exchange_explicit(&s->idle, NULL, memory_order_acquire);
  return ref ? ref : remixdb_snapshot_ref(snap->snapshot);
}

void ldb_snapshot_reader_end(const leveldb_snapshot_t *snap, struct xdb_ref *ref) {
  leveldb_snapshot_t *const s = (leveldb_snapshot_t *)(uintptr_t)snap;
  remixdb_unref(atomic_exchange_explicit(&s->idle, ref, memory_order_acq_rel));
}
