// SPDX-License-Identifier: Apache-2.0
#include "store/syncer.h"

#include "base/thread.h"

#define REST_NS 1000000000ull  // if no write comes for so long after a sync, the thread writes the log's watermark

enum remixdb_status xdb_sync_all(struct xdb *x) {
  if (x->opts.read_only) return REMIXDB_OK;
  const enum remixdb_status s = wal_sync(x->wal);
  if (s != REMIXDB_OK && s != REMIXDB_NOSPACE && s != REMIXDB_NOMEM) {
    struct err_saved why;
    err_save(&why, s);
    xdb_fail(x, &why);
    return err_raise(&why);
  }
  return s;
}

static bool stopping(const struct xdb *x) { return atomic_load_explicit(&x->syncer.stop, memory_order_relaxed); }
static bool is_dirty(const struct xdb *x) { return atomic_load_explicit(&x->syncer.dirty, memory_order_acquire); }

// Waits so long. Returns false if the thread is to stop, or (with `rest`) if something was written.
static bool sync_wait(struct xdb *x, uint64_t ns, bool rest) {
  const uint64_t until = ns == EVENTCOUNT_NEVER ? ns : time_ns() + ns;
  for (;;) {
    const uint32_t begun = eventcount_begin(&x->syncer.wake);
    const bool ends = stopping(x) || (rest && is_dirty(x));
    const uint64_t now = ends ? 0 : time_ns();
    if (ends || now >= until) {
      eventcount_end(&x->syncer.wake);
      return !ends;
    }
    (void)eventcount_sleep(&x->syncer.wake, begun, ns == EVENTCOUNT_NEVER ? ns : until - now);
  }
}

// Runs wal_sync or wal_mark. Returns whether to try again.
static bool sync_run(struct xdb *x, enum remixdb_status (*fn)(struct wal *w)) {
  const enum remixdb_status s = fn(x->wal);
  const bool again = s == REMIXDB_NOSPACE || s == REMIXDB_NOMEM;
  if (s != REMIXDB_OK && !again) {
    struct err_saved why;
    err_save(&why, s);
    xdb_fail(x, &why);
  }
  return again;
}

static void *sync_main(void *arg) {
  struct xdb *x = arg;
  const uint64_t every = (uint64_t)x->syncer.every_ms * 1000000;
  bool marked = true;  // no sync has come since the watermark was written
  uint64_t began = 0;  // when the last sync began, if something was written during it
  while (!stopping(x)) {
    if (is_dirty(x)) {
      const uint64_t passed = began ? time_ns() - began : 0;
      if (passed < every) (void)sync_wait(x, every - passed, false);
      atomic_store_explicit(&x->syncer.dirty, false,
                            memory_order_release);  // before the sync: the next one syncs what comes during it
      began = time_ns();
      const bool again = sync_run(x, wal_sync);
      if (again) atomic_store_explicit(&x->syncer.dirty, true, memory_order_relaxed);
      if (again || !atomic_load_explicit(&x->syncer.dirty, memory_order_relaxed)) began = 0;
      marked = false;
    } else if (marked) {
      (void)sync_wait(x, EVENTCOUNT_NEVER, true);
    } else if (sync_wait(x, REST_NS, true)) {
      marked = !sync_run(x, wal_mark);
    }
  }
  return NULL;
}

enum remixdb_status xdb_sync_start(struct xdb *x) {
  const int how = atomic_load_explicit(&x->syncer.how, memory_order_relaxed);
  if (how <= 0) return REMIXDB_OK;
  x->syncer.every_ms = (uint32_t)how;
  atomic_store_explicit(&x->syncer.stop, false, memory_order_relaxed);
  const enum remixdb_status s = thread_start(&x->syncer.thread, sync_main, x, "remixdb-sync");
  atomic_store_explicit(&x->syncer.running, s == REMIXDB_OK, memory_order_relaxed);
  return s;
}

void xdb_sync_stop(struct xdb *x) {
  if (!atomic_load_explicit(&x->syncer.running, memory_order_relaxed)) return;
  atomic_store_explicit(&x->syncer.stop, true, memory_order_relaxed);
  eventcount_wake(&x->syncer.wake);
  thread_join(x->syncer.thread);
  atomic_store_explicit(&x->syncer.running, false, memory_order_relaxed);
}

enum remixdb_status xdb_sync_change(struct xdb *x, int how) {
  const int before = atomic_load_explicit(&x->syncer.how, memory_order_relaxed);
  if (how == before) return how == REMIXDB_SYNC_NONE ? REMIXDB_OK : xdb_sync_all(x);
  xdb_sync_stop(x);
  atomic_store_explicit(&x->syncer.how, how, memory_order_relaxed);
  enum remixdb_status s = xdb_sync_start(x);
  // The new thread may not know of writes that the old one has not synced. A writer that still saw the old value, and
  // had not written then, wakes the new thread.
  if (s == REMIXDB_OK && before != REMIXDB_SYNC_NONE) s = xdb_sync_all(x);
  if (s == REMIXDB_OK) return s;
  struct err_saved why;
  err_save(&why, s);
  xdb_sync_stop(x);
  atomic_store_explicit(&x->syncer.how, before, memory_order_relaxed);
  IGNORED(xdb_sync_start(x), "without the thread, remixdb_sync still works");
  return err_raise(&why);
}

void xdb_sync_signal(struct xdb *x) {
  if (atomic_exchange_explicit(&x->syncer.dirty, true, memory_order_acq_rel)) return;
  eventcount_wake(&x->syncer.wake);
}
