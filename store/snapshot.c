// SPDX-License-Identifier: Apache-2.0
#include "store/snapshot.h"

enum remixdb_status xdb_snapshot(struct xdb_ref *r, struct xdb_snapshot **out) {
  struct xdb *x = r->xdb;
  struct xdb_snapshot *snap = mem_calloc(1, sizeof(*snap));
  if (!snap) return REMIXDB_NOMEM;
  snap->xdb = x;
  atomic_init(&snap->refs, 1);
  snap->taken_ns = r->snapshot ? r->snapshot->taken_ns : time_ns();
  snap->super = xdb_ref_hold(r, &snap->moment);
  snap->now_ms = xdb_ref_now(r);
  pthread_mutex_lock(&x->snapshots.lock);
  snap->next = x->snapshots.first;
  if (snap->next) snap->next->prev = snap;
  x->snapshots.first = snap;
  x->snapshots.nr++;
  pthread_mutex_unlock(&x->snapshots.lock);
  *out = snap;
  return REMIXDB_OK;
}

enum remixdb_status xdb_snapshot_ref(struct xdb_snapshot *snap, struct xdb_ref **out) {
  const enum remixdb_status s = xdb_ref(snap->xdb, out);
  if (s != REMIXDB_OK) return s;
  xdb_snapshot_hold(snap);
  (*out)->snapshot = snap;
  (*out)->super = snap->super;
  (*out)->moment = snap->moment;
  (*out)->now_ms = snap->now_ms;
  return REMIXDB_OK;
}
