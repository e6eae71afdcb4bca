// SPDX-License-Identifier: Apache-2.0
#include "store/ref.h"

#include "store/idle.h"
#include "store/space.h"
#include "view/multiget.h"

void xdb_snapshot_hold(struct xdb_snapshot *snap) {
  atomic_fetch_add_explicit(&snap->refs, 1, memory_order_relaxed);  // the caller has one
}

void xdb_snapshot_release(struct xdb_snapshot *snap) {
  if (!snap) return;
  // The last one frees what the others have read.
  if (atomic_fetch_sub_explicit(&snap->refs, 1, memory_order_acq_rel) > 1) return;
  struct xdb *x = snap->xdb;
  pthread_mutex_lock(&x->snapshots.lock);
  if (snap->next) snap->next->prev = snap->prev;
  if (snap->prev) snap->prev->next = snap->next;
  else x->snapshots.first = snap->next;
  x->snapshots.nr--;
  pthread_mutex_unlock(&x->snapshots.lock);
  xdb_super_drop(x, snap->super);
  mem_free(snap);
}

enum remixdb_status xdb_ref(struct xdb *x, struct xdb_ref **out) {
  struct xdb_ref *r = mem_alloc_aligned(CACHE_LINE, align_up(sizeof(*r), CACHE_LINE));
  if (!r) return REMIXDB_NOMEM;
  memset(r, 0, sizeof(*r));
  r->xdb = x;
  epoch_join(&x->epoch, &r->slot);
  epoch_join(&x->cursors, &r->stay);
  atomic_fetch_add_explicit(&x->nr_refs, 1, memory_order_relaxed);
  *out = r;
  return REMIXDB_OK;
}

void xdb_unref(struct xdb_ref *r) {
  if (!r) return;
  sst_hold_fini(&r->hold);
  xdb_space_close(r->space);
  mem_free(r->key);
  multiget_destroy(r->multiget);
  epoch_leave(&r->xdb->epoch, &r->slot);
  epoch_leave(&r->xdb->cursors, &r->stay);
  atomic_fetch_sub_explicit(&r->xdb->nr_refs, 1, memory_order_relaxed);
  xdb_snapshot_release(r->snapshot);
  mem_free(r);
}

struct super *xdb_ref_hold(struct xdb_ref *r, uint64_t *moment_out) {
  epoch_enter(&r->xdb->epoch, &r->slot);
  struct super *v = xdb_ref_super(r, moment_out);
  super_ref(v);
  epoch_exit(&r->slot);
  return v;
}
