// SPDX-License-Identifier: Apache-2.0
#include "store/snapshot.h"

#include "store/idle.h"

enum remixdb_status xdb_snapshot(struct xdb_ref *r, struct xdb_snapshot **out) {
  struct xdb *x = r->xdb;
  struct xdb_snapshot *s = mem_calloc(1, sizeof(*s));
  if (!s) return REMIXDB_NOMEM;
  s->xdb = x;
  s->taken_ns = r->snapshot ? r->snapshot->taken_ns : time_ns();
  s->super = xdb_ref_hold(r, &s->moment);
  pthread_mutex_lock(&x->snapshots.lock);
  s->next = x->snapshots.first;
  if (s->next) s->next->prev = s;
  x->snapshots.first = s;
  x->snapshots.nr++;
  pthread_mutex_unlock(&x->snapshots.lock);
  *out = s;
  return REMIXDB_OK;
}

enum remixdb_status xdb_snapshot_ref(struct xdb_snapshot *s, struct xdb_ref **out) {
  const enum remixdb_status made = xdb_ref(s->xdb, out);
  if (made != REMIXDB_OK) return made;
  (*out)->snapshot = s;
  (*out)->super = s->super;
  (*out)->moment = s->moment;
  return REMIXDB_OK;
}

void xdb_snapshot_release(struct xdb_snapshot *s) {
  if (!s) return;
  struct xdb *x = s->xdb;
  pthread_mutex_lock(&x->snapshots.lock);
  if (s->next) s->next->prev = s->prev;
  if (s->prev) s->prev->next = s->next;
  else x->snapshots.first = s->next;
  x->snapshots.nr--;
  pthread_mutex_unlock(&x->snapshots.lock);
  xdb_super_drop(x, s->super);
  mem_free(s);
}
