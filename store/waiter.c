// SPDX-License-Identifier: Apache-2.0
#include "store/waiter.h"

#include <assert.h>

#include "store/install.h"
#include "store/reserve.h"
#include "store/values.h"

#define REPORT_NS 50000000ull  // between two reports of a call that waits for a round

// Finds out how much of its work the call has done. `done` stays below `total`, because the end is reported separately.
// xdb.lock is held.
static void waiter_look(struct waiter *w) {
  const struct compact *c = &w->x->compact;
  if (!w->own) return;
  const uint64_t done = w->base + (atomic_load_explicit(&c->progress, memory_order_relaxed) << COMPACT_PROGRESS_SHIFT);
  if (!w->whole) w->total = atomic_load_explicit(&c->work, memory_order_relaxed) << COMPACT_PROGRESS_SHIFT;
  const uint64_t most = w->total ? w->total - 1 : 0;
  if (done > w->done) w->done = done < most ? done : most;
}

// Waits for a change. xdb.lock is held; the call releases it while it waits and while the progress function runs. While
// that function runs, the call does not count as a flusher, so that no writer waits for the function. Fails with
// REMIXDB_ABORTED.
static enum remixdb_status waiter_wait(struct waiter *w) {
  struct xdb *const x = w->x;
  assert(xdb_lock_is_mine(x));
  if (!w->progress.fn) {
    xdb_lock_wait(x, WAITER_RETRY_NS);
    return REMIXDB_OK;
  }
  xdb_lock_wait(x, REPORT_NS);
  if (time_ns() - w->told_ns < REPORT_NS) return REMIXDB_OK;
  waiter_look(w);
  x->rounds.nr_flushers -= !w->own;
  xdb_unlock_changed(x);
  const enum remixdb_status s = progress_report(&w->progress, w->what, w->done, w->total);
  w->told_ns = time_ns();
  xdb_lock(x);
  x->rounds.nr_flushers += !w->own;
  return s;
}

enum remixdb_status xdb_wait_frozen(struct xdb *x, struct waiter *w, uint64_t ns) {
  assert(xdb_lock_is_mine(x));
  const enum remixdb_status s = xdb_failure(x);
  if (s != REMIXDB_OK) return s;
  if (x->rounds.error.status == REMIXDB_OK) {
    if (w) return waiter_wait(w);
    xdb_lock_wait(x, ns);
    return REMIXDB_OK;
  }
  if (time_ns() - x->rounds.failed_ns < WAITER_RETRY_NS) return err_raise(&x->rounds.error);
  x->rounds.error.status = REMIXDB_OK;
  xdb_unlock(x);
  workers_kick(x->workers);
  xdb_lock(x);
  return REMIXDB_OK;
}

enum remixdb_status xdb_wait_unfrozen(struct xdb *x, struct waiter *w) {
  enum remixdb_status s = REMIXDB_OK;
  while (s == REMIXDB_OK && freeze_must_wait(x)) s = xdb_wait_frozen(x, w, WAITER_RETRY_NS);
  return s;
}

bool xdb_freeze_due(struct xdb *x, enum xdb_freeze when, size_t batch) {
  assert(xdb_lock_is_mine(x));
  const struct memtable *m = xdb_super(x)->active;
  return when == XDB_FREEZE_ANY ||
         (when == XDB_FREEZE_USED ? memtable_count(m) != 0 : xdb_round_due(x, m, batch) || values_full(x, m));
}

// Waits until memtable number `nr` is in tables, or its round has failed. xdb.lock is held; the call releases it while
// it waits. w->whole: see waiter_round.
static enum remixdb_status wait_installed(struct waiter *w, uint64_t nr) {
  struct xdb *const x = w->x;
  for (;;) {
    if (!w->whole || !w->whole->taken || w->whole->done) {
      if (x->rounds.nr_installed >= nr) return REMIXDB_OK;
      const enum remixdb_status s = xdb_failure(x);
      if (s != REMIXDB_OK) return s;
      if (x->rounds.error.status != REMIXDB_OK) return err_raise(&x->rounds.error);
    }
    const enum remixdb_status s = waiter_wait(w);
    if (s == REMIXDB_OK) continue;
    if (w->whole && w->whole->taken && !w->whole->done) {
      w->whole->abandoned = true;
      w->whole = NULL;
    }
    return s;
  }
}

// Freezes the active memtable, if it still is as `when` demands. xdb.lock is held; the call releases it while it waits.
// Returns whether freezing was due. *s_out is then the status of the freezing, else the status of the waiting.
static bool freeze_in_turn(struct waiter *w, enum xdb_freeze when, enum remixdb_status *s_out) {
  struct xdb *const x = w->x;
  for (;;) {
    x->rounds.nr_flushers++;
    if (x->rounds.error.status == REMIXDB_NOSPACE && reserve_bytes(x)) {
      // The frozen memtable's round failed while no call waited for it. Now it may spend the reserved room.
      x->rounds.flushing = true;
      x->rounds.failed_ns = 0;
    }
    *s_out = xdb_wait_unfrozen(x, w);
    x->rounds.nr_flushers--;
    const bool due = *s_out == REMIXDB_OK && xdb_freeze_due(x, when, 0);
    if (due) *s_out = round_freeze(x);
    if (!due || *s_out != REMIXDB_NOSPACE) return due;
    xdb_unlock(x);
    const bool again = reserve_spend(x);
    xdb_lock(x);
    if (!again) return due;
  }
}

enum remixdb_status waiter_round(struct waiter *w, enum xdb_freeze when) {
  struct xdb *const x = w->x;
  if (x->opts.read_only) return err_set(REMIXDB_READONLY, "%s: opened with read_only", x->dir);
  enum remixdb_status s = xdb_may_wait(x);
  if (s != REMIXDB_OK) return s;
  xdb_lock(x);
  s = xdb_failure(x);
  const bool due = s == REMIXDB_OK && freeze_in_turn(w, when, &s);
  if (due && s == REMIXDB_OK) {
    const uint64_t nr = x->rounds.nr_frozen;
    x->rounds.flushing = true;
    x->rounds.whole = w->whole;
    w->own = true;
    xdb_unlock_changed(x);  // writers that let this call go first look again
    workers_kick(x->workers);
    xdb_lock(x);
    s = wait_installed(w, nr);
    w->own = false;
    if (x->rounds.whole == w->whole) x->rounds.whole = NULL;
  }
  xdb_unlock_changed(x);
  return s;
}

enum remixdb_status waiter_begin(struct waiter *w) {
  w->told_ns = time_ns();
  return w->x->opts.read_only ? REMIXDB_OK : progress_report(&w->progress, w->what, 0, w->total);
}

enum remixdb_status waiter_end(const struct waiter *w) {
  const uint64_t total = w->total > w->done ? w->total : w->done + 1;
  return progress_report(&w->progress, w->what, total, total);
}
