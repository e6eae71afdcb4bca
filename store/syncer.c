// SPDX-License-Identifier: Apache-2.0
#include "store/syncer.h"

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

// Waits so long. syncer.lock is held; the call releases it while it waits. Returns false if the thread is to stop, or
// (with `rest`) if something was written.
static bool sync_wait(struct xdb *x, uint64_t ns, bool rest) {
  const uint64_t until = time_ns() + ns;
  for (;;) {
    if (x->syncer.stop || (rest && atomic_load_explicit(&x->syncer.dirty, memory_order_relaxed))) return false;
    const uint64_t now = time_ns();
    if (now >= until) return true;
    (void)cond_wait_ns(&x->syncer.wake, &x->syncer.lock, until - now);
  }
}

// Runs wal_sync or wal_mark. syncer.lock is held; the call releases it meanwhile. Returns whether to try again.
static bool sync_run(struct xdb *x, enum remixdb_status (*fn)(struct wal *w)) {
  pthread_mutex_unlock(&x->syncer.lock);
  const enum remixdb_status s = fn(x->wal);
  const bool again = s == REMIXDB_NOSPACE || s == REMIXDB_NOMEM;
  if (s != REMIXDB_OK && !again) {
    struct err_saved why;
    err_save(&why, s);
    xdb_fail(x, &why);
  }
  pthread_mutex_lock(&x->syncer.lock);
  return again;
}

static void *sync_main(void *arg) {
  struct xdb *x = arg;
  const uint64_t every = (uint64_t)x->syncer.every_ms * 1000000;
  bool marked = true;  // no sync has come since the watermark was written
  uint64_t began = 0;  // when the last sync began, if something was written during it
  pthread_mutex_lock(&x->syncer.lock);
  while (!x->syncer.stop) {
    if (atomic_load_explicit(&x->syncer.dirty, memory_order_acquire)) {
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
      cond_wait(&x->syncer.wake, &x->syncer.lock);
    } else if (sync_wait(x, REST_NS, true)) {
      marked = !sync_run(x, wal_mark);
    }
  }
  pthread_mutex_unlock(&x->syncer.lock);
  return NULL;
}

enum remixdb_status xdb_sync_start(struct xdb *x) {
  const int how = atomic_load_explicit(&x->syncer.how, memory_order_relaxed);
  if (how <= 0) return REMIXDB_OK;
  x->syncer.every_ms = (uint32_t)how;
  x->syncer.stop = false;
  const enum remixdb_status s = thread_start(&x->syncer.thread, sync_main, x, "remixdb-sync");
  atomic_store_explicit(&x->syncer.running, s == REMIXDB_OK, memory_order_relaxed);
  return s;
}

void xdb_sync_stop(struct xdb *x) {
  if (!atomic_load_explicit(&x->syncer.running, memory_order_relaxed)) return;
  pthread_mutex_lock(&x->syncer.lock);
  x->syncer.stop = true;
  pthread_cond_signal(&x->syncer.wake);
  pthread_mutex_unlock(&x->syncer.lock);
  thread_join(x->syncer.thread);
  atomic_store_explicit(&x->syncer.running, false, memory_order_relaxed);
}

enum remixdb_status xdb_sync_change(struct xdb *x, int how) {
  const int before = atomic_load_explicit(&x->syncer.how, memory_order_relaxed);
  if (how == before) return REMIXDB_OK;
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
  pthread_mutex_lock(&x->syncer.lock);
  pthread_cond_signal(&x->syncer.wake);
  pthread_mutex_unlock(&x->syncer.lock);
}
