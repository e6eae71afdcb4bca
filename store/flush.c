// SPDX-License-Identifier: Apache-2.0
#include "store/flush.h"

#include "log/format.h"
#include "store/collect.h"
#include "store/idle.h"
#include "store/reserve.h"
#include "store/waiter.h"

enum remixdb_status xdb_flush_told(struct xdb *x, const struct progress *p) {
  struct waiter w = {.x = x, .progress = *p, .what = "flush"};
  enum remixdb_status s = waiter_begin(&w);
  if (s == REMIXDB_OK) s = waiter_round(&w, XDB_FREEZE_USED);
  return s == REMIXDB_OK ? waiter_end(&w) : s;
}

enum remixdb_status xdb_flush(struct xdb *x) { return xdb_flush_told(x, &(struct progress){0}); }

// Tells whether the log may keep the records of the active memtable.
static bool log_may_stay(struct xdb *x) {
  const struct memtable *const m = xdb_super(x)->active;
  const size_t part = xdb_memtable_limit(x) / FLUSH_LEAVE_PART;
  const uint64_t most = x->leave_most < part ? x->leave_most : part;
  return wal_segment_bytes(x->wal) <= most && !wal_holds_older(x->wal) && !x->rounds.unsaved &&
         atomic_load_explicit(&m->apart_bytes, memory_order_relaxed) == 0;
}

void xdb_flush_last(struct xdb *x) {
  struct waiter w = {.x = x};
  if (!wal_holds(x->wal)) return;
  if (log_may_stay(x)) {
    // The close keeps the room that the next opening would ask for.
    reserve_measure(x, xdb_super(x)->version, wal_segment_bytes(x->wal) - WAL_HEAD);
    return;
  }
  if (waiter_round(&w, XDB_FREEZE_ANY) == REMIXDB_OK) return;
  xdb_say(x, "%s: some records stay in the log, because they could not be brought into tables: %s", x->dir, err_msg());
}

enum remixdb_status xdb_ingest_round(struct xdb *x, struct xdb_ingesting *g) {
  struct waiter w = {.x = x, .whole = mem_calloc(1, sizeof(*w.whole))};
  if (!w.whole) return REMIXDB_NOMEM;
  w.whole->ingest = g;
  enum remixdb_status s = waiter_round(&w, XDB_FREEZE_ANY);
  // A round of the memtable that succeeds without the ingest says why; one that failed may have been tried again.
  if (g->tried && !g->done) s = err_raise(&g->error);
  else if (s == REMIXDB_OK && !g->done && w.whole->error.status != REMIXDB_OK) s = err_raise(&w.whole->error);
  else if (s == REMIXDB_OK && !g->done) s = err_set(REMIXDB_ABORTED, "%s: the round of the ingest has failed", x->dir);
  mem_free(w.whole);
  return s;
}

enum remixdb_status xdb_wait_idle(struct xdb *x) {
  if (x->opts.read_only) return REMIXDB_OK;
  xdb_lock(x);
  enum remixdb_status s;
  do {
    s = xdb_wait_unfrozen(x, NULL);
    while (x->rounds.at != XDB_AT_REST || collect_pending(x)) xdb_lock_wait(x, WAITER_RETRY_NS);
  } while (s == REMIXDB_OK && freeze_must_wait(x));  // the round that has ended may have frozen a full memtable
  xdb_unlock(x);
  idle_destroy_wait(x);
  return s;
}
