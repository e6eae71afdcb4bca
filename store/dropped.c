// SPDX-License-Identifier: Apache-2.0
#include "store/dropped.h"

#include "compact/dropped.h"
#include "store/idle.h"
#include "store/install.h"
#include "store/scan_merge.h"

#define AGAIN_NS 1000000000ull        // until the next try,
#define AGAIN_MOST_NS 64000000000ull  // at most

// An idle worker asks again after a while.
static void again_after(struct xdb *x, uint64_t ns) {
  atomic_store_explicit(&x->dropped.again_ns, time_ns() + ns, memory_order_relaxed);
  idle_later(x, ns);
}

// A step did not succeed. A lack of room or memory may end, and so may a failing disk. Damage stays.
static void step_failed(struct xdb *x, uint64_t stamp, enum remixdb_status s) {
  struct dropped *const d = &x->dropped;
  if (s == REMIXDB_ABORTED) {
    if (++d->waits >= DROPPED_WAITS) atomic_store_explicit(&x->compact.dropped_too, true, memory_order_relaxed);
    again_after(x, AGAIN_NS);
    return;
  }
  xdb_say(x, "a dropped space keeps some of its room: %s", err_msg());
  if (s == REMIXDB_CORRUPT) {
    d->given_up = stamp;
    return;
  }
  d->delay_ns = d->delay_ns ? d->delay_ns * 2 : AGAIN_NS;
  if (d->delay_ns > AGAIN_MOST_NS) d->delay_ns = AGAIN_MOST_NS;
  again_after(x, d->delay_ns);
}

static void all_done(struct xdb *x) {
  x->dropped.waits = 0;
  x->dropped.delay_ns = 0;
  atomic_store_explicit(&x->compact.dropped_too, false, memory_order_relaxed);
}

// Returns the version to look at, with a reference; NULL: there is nothing to do, or the store refuses writes.
static struct version *begin(struct xdb *x) {
  struct version *base = NULL;
  xdb_lock(x);
  struct version *const v = xdb_super(x)->version;
  const bool any = names_dropped(v->names) && (!version_is_empty(v->spaces) || x->dropped.values_stay) &&
                   names_stamp(v->names) != x->dropped.given_up && !x->scan_merges.ending &&
                   atomic_load_explicit(&x->failed, memory_order_relaxed) == 0;
  if (any) version_ref(base = v);
  xdb_unlock(x);
  return base;
}

// Value files go when nobody refers to them, but not while they take new values. A partition that is away could refer
// to any of them, so all are opened first. If one cannot be opened, the files stay with the next version.
static enum remixdb_status turn_values(struct xdb *x, struct worker *w, struct version *base) {
  const enum remixdb_status s = version_ready(base, x->workers, w);
  if (s != REMIXDB_OK && s != REMIXDB_IO && s != REMIXDB_CORRUPT) return s;
  if (s != REMIXDB_OK) x->dropped.values_stay = true;
  value_log_turn(&x->values);
  value_log_turn(&x->compact.values);
  return REMIXDB_OK;
}

// Installs a version without the value files that a step has left to it.
static enum remixdb_status leave_values(struct xdb *x, struct worker *w, struct version *base) {
  enum remixdb_status s = version_ready(base, x->workers, w);
  if (s == REMIXDB_OK) s = install_trim(x);
  if (s == REMIXDB_OK) x->dropped.values_stay = false;
  return s;
}

// Makes what is to be done next, and installs it. *more_out: something may be left to do.
static enum remixdb_status step(struct xdb *x, struct worker *w, struct version *base, bool merges, bool *more_out) {
  struct compact_dropped found;
  struct version *next = NULL;
  uint64_t when;
  enum remixdb_status s = compact_dropped_find(&x->compact, &w->slot, base, &found);
  const bool merge = s == REMIXDB_OK && !found.parts && !found.tables && found.due;
  *more_out = s == REMIXDB_OK && (found.parts || found.tables || (merge && merges));
  if (s == REMIXDB_OK && !*more_out && !merge) {
    if (x->dropped.values_stay && (s = leave_values(x, w, base)) != REMIXDB_OK) return s;
    all_done(x);
    if (found.again_ns) again_after(x, found.again_ns);
  }
  if (!*more_out) return s;
  if (found.apart && (s = turn_values(x, w, base)) != REMIXDB_OK) return s;
  if (found.parts) return install_trim(x);
  if (merge && !scan_merge_may_begin(x)) return REMIXDB_ABORTED;
  s = merge ? compact_dropped_round(&x->compact, w, base, &next) : compact_dropped_tables(&x->compact, w, base, &next);
  if (s == REMIXDB_OK && next) s = round_install(x, next, false, &when);
  return s;
}

static void run(struct xdb *x, struct worker *w, bool merges) {
  struct version *base;
  bool more = true;
  while (more && (base = begin(x)) != NULL) {
    const uint64_t stamp = names_stamp(base->names);
    const enum remixdb_status s = step(x, w, base, merges, &more);
    if (s != REMIXDB_OK) step_failed(x, stamp, s);
    more = more && s == REMIXDB_OK;
    err_cleanup_begin();
    version_unref(base);
    err_cleanup_end();
  }
}

void dropped_begin(struct xdb *x, struct worker *w) {
  if (!atomic_exchange_explicit(&x->dropped.asked, false, memory_order_relaxed)) return;
  run(x, w, false);
}

void dropped_end(struct xdb *x, struct worker *w) { run(x, w, true); }
