// SPDX-License-Identifier: Apache-2.0
#include "store/edit.h"

#include "store/install.h"
#include "store/range_group.h"

#define WAIT_NS 1000000000ull

// ---- the edit

// Makes the version without the keys of the ranges, but for those that are left for tombstones. On failure no new file
// is left.
static enum remixdb_status make_next(struct xdb *x, struct worker *w, struct range_group *g, struct version *base,
                                     struct version **out) {
  struct version *v = base;
  enum remixdb_status s = REMIXDB_OK;
  version_ref(v);
  for (uint32_t t = 0; t < TREES && s == REMIXDB_OK; t++) {
    struct compact_erase e = {.c = &x->compact,
                              .slot = &w->slot,
                              .queue = w->queue,
                              .tree = t,
                              .ranges = g->trees[t].ranges,
                              .nr = g->trees[t].nr_ranges,
                              .few = x->ranges.cut_few};
    struct version *next;
    s = compact_erase(&e, v, &next);
    g->trees[t].edited = s == REMIXDB_OK && next;
    if (!g->trees[t].edited) continue;
    version_unref(v);
    v = next;
  }
  if (s == REMIXDB_OK && v == base) {
    version_unref(v);
    return version_copy(base, out);
  }
  if (s == REMIXDB_OK) {
    *out = v;
    return s;
  }
  err_cleanup_begin();
  if (v != base) compact_retire(v, base);
  version_unref(v);
  err_cleanup_end();
  return s;
}

struct committing {
  struct xdb *x;
  struct worker *w;
  struct range_group *group;
};

static enum remixdb_status commit(void *arg, struct super *old, struct super *fresh) {
  const struct committing *const c = arg;
  return range_group_commit(c->group, c->x, &c->w->slot, old, fresh);
}

// Commits the group with the version. A memtable may be frozen between the gathering and the commit: once more then.
// *there_out: as for round_edit.
static enum remixdb_status put_in_place(struct xdb *x, struct worker *w, struct range_group *g, struct version *next,
                                        bool *there_out) {
  struct committing c = {x, w, g};
  enum remixdb_status s;
  *there_out = false;
  do {
    xdb_lock(x);
    struct super *const v = xdb_super(x);
    super_ref(v);
    xdb_unlock(x);
    s = range_group_gather(g, x, &w->slot, v, next);
    if (s == REMIXDB_OK) s = round_edit(x, next, v->frozen, commit, &c, there_out);
    struct err_saved why;
    err_save(&why, s);
    super_unref(v);
    s = err_raise(&why);
  } while (s == REMIXDB_ABORTED);
  return s;
}

static enum remixdb_status edit_once(struct xdb *x, struct worker *w, struct range_group *g) {
  struct version *next;
  enum remixdb_status s = xdb_failure(x);
  if (s == REMIXDB_OK) s = round_edit_save(x);
  if (s != REMIXDB_OK) return s;
  xdb_lock(x);
  struct version *const base = xdb_super(x)->version;
  version_ref(base);
  xdb_unlock(x);
  g->few = UINT64_MAX;
  s = make_next(x, w, g, base, &next);
  if (s == REMIXDB_OK) {
    bool there;
    s = put_in_place(x, w, g, next, &there);
    err_cleanup_begin();
    if (!there) compact_retire(next, base);
    version_unref(next);
    err_cleanup_end();
  }
  struct err_saved why;
  err_save(&why, s);
  version_unref(base);
  return err_raise(&why);
}

// ---- waiting

enum remixdb_status xdb_edit(struct xdb *x, struct xdb_edit *e) {
  const enum remixdb_status s = xdb_may_wait(x);
  if (s != REMIXDB_OK) return s;
  xdb_lock(x);
  struct xdb_edit **at = &x->rounds.edits;
  while (*at) at = &(*at)->next;
  *at = e;
  atomic_store_explicit(&x->compact.yield, true, memory_order_relaxed);
  xdb_unlock(x);
  workers_kick(x->workers);
  xdb_lock(x);
  while (!e->done) xdb_lock_wait(x, WAIT_NS);
  xdb_unlock(x);
  return err_raise(&e->error);
}

void xdb_edits_run(struct xdb *x, struct worker *w) {
  for (;;) {
    xdb_lock(x);
    struct xdb_edit *const e = x->rounds.edits;
    if (e) x->rounds.edits = e->next;
    xdb_unlock(x);
    if (!e) return;
    struct err_saved result;
    err_save(&result, edit_once(x, w, e->group));
    xdb_lock(x);
    e->error = result;
    e->done = true;
    xdb_unlock_changed(x);
  }
}
