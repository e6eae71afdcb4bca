// SPDX-License-Identifier: Apache-2.0
#include "store/round.h"

#include "store/pace.h"
#include "store/idle.h"
#include "store/reserve.h"

#define REPORT_NS 50000000ull       // between two reports of a call that waits for a round
#define RETRY_NS 1000000000ull      // between two tries of a round that failed for want of space or memory
#define WHOLE_MOST_MIN (64u << 10)  // a compaction that cannot write so much is given up
#define WHOLE_PASSES 16u            // over the partitions that there was no room for, at most
#define SCAN_MERGE_ROOM 4u  // partitions are merged for scans while at least 1/4 of the active memtable is free,
#define SCAN_MERGE_AHEAD_NS 2000000000ull  // or it will not be full within this time, at the pace
#define SCAN_MERGE_LOOK_NS 100000000ull    // at which it grew since it was looked at, so long ago at least;
#define SCAN_MERGE_SPAN_NS 1000000000ull   // when that was longer ago, as if all had come within this;
#define SCAN_MERGE_CREEP \
  1024u  // or it grows by no more than such a share of its limit meanwhile: readers who put leaves in order make it
         // grow, too

struct switching {
  struct xdb *x;
  struct super *next;
};

// Under the log's lock: what was committed before is in the old memtable and the old segment, all after in the new
// ones.
static void switch_super(void *arg, uint64_t gen) {
  struct switching *s = arg;
  s->next->active->gen = gen;
  s->next->active->base_seq = atomic_load_explicit(&s->x->published, memory_order_relaxed);
  atomic_store_explicit(&s->x->super, s->next, memory_order_release);
}

// lock is held; nothing is frozen.
static enum remixdb_status freeze(struct xdb *x) {
  struct super *old = xdb_super(x);
  struct memtable *fresh;
  enum remixdb_status s = memtable_create(&x->memtables, &fresh);
  if (s != REMIXDB_OK) return s;
  struct switching sw = {x, super_create(fresh, old->active, old->version)};
  memtable_unref(fresh);  // the view has its own reference now
  if (!sw.next) return REMIXDB_NOMEM;
  if ((s = wal_switch(x->wal, switch_super, &sw)) != REMIXDB_OK) {
    super_unref(sw.next);
    return s;
  }
  atomic_store_explicit(&x->pace.round_began_ns, time_ns(), memory_order_relaxed);
  atomic_store_explicit(&x->compact.progress, 0, memory_order_relaxed);
  atomic_store_explicit(&x->compact.work, 0, memory_order_relaxed);
  atomic_store_explicit(&x->rounds.compacting, true, memory_order_release);
  atomic_store_explicit(&x->compact.yield, true, memory_order_relaxed);
  x->rounds.error.status = REMIXDB_OK;
  x->scan_merges.used = 0;  // of the one that is active now
  x->rounds.nr_frozen++;
  super_retire(&x->epoch, old);
  return REMIXDB_OK;
}

// The segments before this generation serve again. Writers who wait for this round's end freeze the next memtable at
// once, and are not to wait for the file of its segment, too: it is ready before they are told. What fails shows again,
// and is reported, when it is needed.
static void recycle_log(struct xdb *x, uint64_t gen) {
  if (wal_release(x->wal, gen) != REMIXDB_OK) xdb_say(x, "an old log segment could not be recycled: %s", err_msg());
  if (wal_prepare(x->wal) != REMIXDB_OK) xdb_say(x, "the next log segment could not be prepared: %s", err_msg());
  wal_ahead(x->wal);
}

// Makes the round's version the store's: log and directory first, then CURRENT, then the view (at *when_out); then what
// is not needed goes. had_frozen: the round was of a frozen memtable, whose content is in the version; else the log is
// not concerned, and a memtable may be frozen meanwhile.
static enum remixdb_status install(struct xdb *x, struct version *next, bool had_frozen, uint64_t *when_out) {
  xdb_lock(x);
  struct super *old = xdb_super(x);
  struct version *const base =
      old->version;  // which only rounds replace, as they do a view that has a frozen memtable when they begin
  struct super *const fresh = super_create(old->active, had_frozen ? NULL : old->frozen, next);
  next->store_id = x->store_id;
  next->number = base->number + 1;
  next->next_file = atomic_load_explicit(&x->compact.next_file, memory_order_relaxed);
  next->log_gen = had_frozen ? old->active->gen : base->log_gen;
  next->log_seq = had_frozen ? old->active->base_seq : base->log_seq;
  xdb_unlock(x);
  enum remixdb_status s = fresh ? REMIXDB_OK : REMIXDB_NOMEM;
  if (s == REMIXDB_OK && had_frozen) s = wal_sync(x->wal);
  if (s == REMIXDB_OK) s = env_sync_dir(&x->home);
  bool unknown = false;
  // where another may have opened the store nothing of it is touched any more
  if (s == REMIXDB_OK) unknown = (s = dirlock_check(&x->dirlock, &x->home)) != REMIXDB_OK;
  if (s == REMIXDB_OK) {
    s = version_save(&x->ctx, next);
    unknown = s != REMIXDB_OK && s != REMIXDB_NOSPACE && s != REMIXDB_NOMEM;
  }
  if (s != REMIXDB_OK) {
    struct err_saved why;
    err_save(&why, s);
    // when it is unknown which CURRENT is there after a crash neither's files may go: no more writes, and the next
    // opening decides
    if (unknown) xdb_fail(x, &why);
    else compact_retire(next, base);  // the new files are not named by anything
    super_unref(fresh);
    return err_raise(&why);
  }
  if (had_frozen) recycle_log(x, next->log_gen);
  xdb_lock(x);
  old = xdb_super(x);
  if (!had_frozen) super_follow(fresh, old);
  atomic_store_explicit(&x->super, fresh, memory_order_release);
  *when_out = time_ns();
  if (had_frozen) {
    atomic_store_explicit(&x->rounds.compacting, false, memory_order_release);
    x->rounds.flushing = false;
    pthread_cond_broadcast(&x->changed);
  }
  xdb_unlock(x);
  compact_retire(base, next);
  reserve_measure(x, next, 0);
  epoch_wait(&x->epoch, epoch_stamp(&x->epoch));
  super_unref(old);
  epoch_reclaim(&x->epoch);
  if (!had_frozen) return REMIXDB_OK;
  // who waits for the round waits for the room that it gives back, too
  xdb_lock(x);
  x->rounds.nr_installed++;
  pthread_cond_broadcast(&x->changed);
  xdb_unlock(x);
  return REMIXDB_OK;
}

// The same, and gives up what the round made, of which files may go that cannot be removed: that is not what is told.
static enum remixdb_status install_made(struct xdb *x, struct version *next, bool had_frozen, uint64_t *when_out) {
  const enum remixdb_status s = install(x, next, had_frozen, when_out);
  struct err_saved why;
  err_save(&why, s);
  version_unref(next);
  return err_raise(&why);
}

// Lock is held. Whether the active memtable, which holds so many bytes, will not be frozen so soon that a merge would
// be given up: it is not nearly full, or grows slowly.
static bool freeze_far(struct xdb *x, size_t used) {
  const size_t limit = x->memtable_limit;
  if (used <= limit - limit / SCAN_MERGE_ROOM) return true;
  const uint64_t now = time_ns(), since = now - x->scan_merges.looked_ns;
  if (used >= x->scan_merges.used) {
    if (since < SCAN_MERGE_LOOK_NS) return false;
    const size_t creep = limit / SCAN_MERGE_CREEP, left = used < limit ? limit - used : 0;
    const double room = (double)(left > creep ? left : creep),
                 span = (double)(since < SCAN_MERGE_SPAN_NS ? since : SCAN_MERGE_SPAN_NS);
    if ((double)(used - x->scan_merges.used) * (double)SCAN_MERGE_AHEAD_NS <= room * span) return true;
  }
  x->scan_merges.used = used;
  x->scan_merges.looked_ns = now;
  atomic_store_explicit(&x->scan_merges.again_ns, now + SCAN_MERGE_LOOK_NS, memory_order_relaxed);
  return false;
}

// Whether there is to be a round for scans, because there is something to do and nothing more urgent. again: after one
// that may have left more to do.
static bool scan_merge_turn(struct xdb *x, bool again, struct version **base_out) {
  xdb_lock(x);
  const struct super *v = xdb_super(x);
  const bool worn = again || x->scan_merges.put_off || atomic_load_explicit(&x->scan_merges.due, memory_order_relaxed);
  const bool able = !x->scan_merges.ending && !v->frozen && atomic_load_explicit(&x->failed, memory_order_relaxed) == 0;
  const bool begun = worn && able && freeze_far(x, wh_memory(v->active->wh));
  // where it is put off, readers may ask again (after a while), who do so as long as there is a reason; else it stays
  // as it is for the round of the frozen memtable
  atomic_store_explicit(&x->scan_merges.due, worn && !able, memory_order_relaxed);
  x->scan_merges.put_off = worn && able && !begun;
  if (begun) {
    x->rounds.at = XDB_AT_SCANS;
    atomic_store_explicit(&x->compact.yield, false, memory_order_relaxed);
    *base_out = v->version;  // which only rounds replace
  }
  xdb_unlock(x);
  return begun;
}

// Merges what scans have paid for. What fails was not necessary: nothing is lost, and scans will pay for it again.
// (What stops the store was told to it.)
static void scan_merge_run(struct xdb *x, struct worker *w) {
  struct version *base, *next;
  for (bool again = false; scan_merge_turn(x, again, &base);) {
    const uint64_t began = time_ns();
    uint64_t installed = began;
    enum remixdb_status s = compact_scan_round(&x->compact, w, base, &next);
    const bool any = s == REMIXDB_OK && next;
    if (any) s = install_made(x, next, false, &installed);
    if (s != REMIXDB_OK) xdb_say(x, "a merge for the sake of scans was not made: %s", err_msg());
    else if (any) xdb_say(x, "merged for the sake of scans: %.3f s", (double)(installed - began) * 1e-9);
    again = any && s == REMIXDB_OK;
  }
}

void xdb_round_scan_debt(void *arg, struct remix *r) {
  struct xdb *const x = arg;
  // one that is obsolete has readers, but no round can do anything for them
  if (atomic_load_explicit(&x->scan_merges.due, memory_order_relaxed) ||
      atomic_load_explicit(&r->obsolete, memory_order_relaxed) || !compact_scan_debt_paid(r))
    return;
  const uint64_t again = atomic_load_explicit(&x->scan_merges.again_ns, memory_order_relaxed);
  if (again && time_ns() < again) return;
  if (!atomic_exchange_explicit(&x->scan_merges.due, true, memory_order_relaxed)) workers_kick(x->workers);
}

void xdb_round_last(struct xdb *x) {
  xdb_lock(x);
  x->scan_merges.ending = true;
  atomic_store_explicit(&x->compact.yield, true, memory_order_relaxed);
  xdb_unlock(x);
}

// A part of xdb_compact's work, for one round. It is the round's from when it was taken until it is done.
struct xdb_whole {
  struct compact_whole work;
  bool taken, done;  // guarded by xdb.lock
  bool abandoned;    // guarded by xdb.lock: the call that waited for the round is gone, and the round frees this
  bool installed;    // what the round made: set before done is. Else it may have come to an end that nobody will see
};

// Lock is held. The round has come to its end with it (NULL is allowed).
static void whole_done(struct xdb *x, struct xdb_whole *whole) {
  if (!whole) return;
  if (whole->abandoned) mem_free(whole);
  else whole->done = true;
  pthread_cond_broadcast(&x->changed);
}

static void end_whole(struct xdb *x, struct xdb_whole *whole) {
  xdb_lock(x);
  whole_done(x, whole);
  xdb_unlock(x);
}

// The disk is full: gives back what can be done without. asked: somebody waits for the round in order to have room.
// Whether there was any.
static bool make_way(struct xdb *x, bool asked) {
  const bool yielded = wal_yield(x->wal), spent = asked && reserve_spend(x);
  return yielded || spent;
}

static enum remixdb_status run_memtable(struct xdb *x, struct worker *w, const struct super *v, bool hand_back_some,
                                        struct xdb_whole *whole) {
  const uint64_t began = time_ns();
  atomic_store_explicit(&x->pace.round_began_ns, began, memory_order_relaxed);
  struct version *next;
  enum remixdb_status s = compact_round(&x->compact, w, v->version, v->frozen->wh, hand_back_some,
                                        whole ? &whole->work : NULL, &next);
  if (s != REMIXDB_OK) return s;
  const uint64_t worked = time_ns() - began, work = atomic_load_explicit(&x->compact.progress, memory_order_relaxed);
  uint64_t installed = 0;
  if ((s = install_made(x, next, true, &installed)) == REMIXDB_OK)
    xdb_pace_learn(x, work, worked, installed - began - worked);
  return s;
}

static void run(struct xdb *x, struct worker *w) {
  struct xdb_whole *whole = NULL;
  xdb_lock(x);
  struct super *v = xdb_super(x);
  const bool wanted = v->frozen && atomic_load_explicit(&x->failed, memory_order_relaxed) == 0;
  x->rounds.error.status = REMIXDB_OK;
  const bool hand_back_some = !x->rounds.flushing;
  if (wanted && x->rounds.whole) {
    whole = x->rounds.whole;
    whole->taken = true;
    x->rounds.whole = NULL;
  }
  xdb_unlock(x);
  if (!wanted) {
    scan_merge_run(x, w);
    return;
  }
  const uint64_t began = time_ns();
  enum remixdb_status s = run_memtable(x, w, v, hand_back_some, whole);
  if (s == REMIXDB_NOSPACE && make_way(x, !hand_back_some)) s = run_memtable(x, w, v, hand_back_some, whole);
  if (s == REMIXDB_OK) {
    if (whole) {
      whole->installed = true;
      end_whole(x, whole);
    }
    const uint64_t took = time_ns() - began;
    atomic_store_explicit(&x->pace.last_round_ns, took, memory_order_relaxed);
    xdb_say(x, "compaction: %.3f s", (double)took * 1e-9);
    scan_merge_run(x, w);
    return;
  }
  struct err_saved why;
  err_save(&why, s);
  if (s != REMIXDB_NOSPACE && s != REMIXDB_NOMEM) {
    xdb_fail(x, &why);
    if (whole) end_whole(x, whole);
    return;
  }
  xdb_lock(x);
  x->rounds.error = why;
  x->rounds.failed_ns = time_ns();
  whole_done(x, whole);
  pthread_cond_broadcast(&x->changed);
  xdb_unlock(x);
  xdb_say(x, "compaction failed and will be tried again: %s", why.msg);
}

void xdb_round_run(void *arg, struct worker *w) {
  struct xdb *const x = arg;
  xdb_lock(x);
  x->rounds.at = XDB_AT_MEMTABLE;
  xdb_unlock(x);
  run(x, w);
  idle_destroy(x);  // where one round follows the other no worker is idle
  xdb_lock(x);
  const bool failed = x->rounds.error.status != REMIXDB_OK;
  xdb_unlock(x);
  if (!failed) (void)reserve_keep(x);
  xdb_lock(x);
  x->rounds.at = XDB_AT_REST;
  pthread_cond_broadcast(&x->changed);
  xdb_unlock(x);
}

// A call that waits for rounds, and tells how far it has come.
struct waiter {
  struct xdb *x;
  struct progress progress;
  const char *what;
  uint64_t total;    // bytes; 0: not known yet
  uint64_t base;     // done by rounds before
  uint64_t done;     // what was told last: it never goes back
  uint64_t told_ns;  // and when
  bool own;          // the round that it waits for is its own; else it waits for its turn to freeze (xdb.nr_flushers)
  struct xdb_whole *whole;  // what it asks of its round; NULL: nothing
};

// Lock is held. Where the call stands. The end is told when it is reached.
static void waiter_look(struct waiter *w) {
  const struct compact *c = &w->x->compact;
  if (!w->own) return;
  const uint64_t done = w->base + (atomic_load_explicit(&c->progress, memory_order_relaxed) << COMPACT_PROGRESS_SHIFT);
  if (!w->whole) w->total = atomic_load_explicit(&c->work, memory_order_relaxed) << COMPACT_PROGRESS_SHIFT;
  const uint64_t most = w->total ? w->total - 1 : 0;
  if (done > w->done) w->done = done < most ? done : most;
}

// Lock is held and stays so, but is let go while waiting for something to change, and while the progress function runs.
// Nobody gives way to the call meanwhile. REMIXDB_ABORTED.
static enum remixdb_status waiter_wait(struct waiter *w) {
  struct xdb *const x = w->x;
  if (!w->progress.fn) {
    xdb_lock_wait(x, RETRY_NS);
    return REMIXDB_OK;
  }
  xdb_lock_wait(x, REPORT_NS);
  if (time_ns() - w->told_ns < REPORT_NS) return REMIXDB_OK;
  waiter_look(w);
  if (!w->own && --x->rounds.nr_flushers == 0) pthread_cond_broadcast(&x->changed);
  xdb_unlock(x);
  const enum remixdb_status s = progress_report(&w->progress, w->what, w->done, w->total);
  w->told_ns = time_ns();
  xdb_lock(x);
  x->rounds.nr_flushers += !w->own;
  return s;
}

// Lock is held and stays so, but is let go while waiting: for something to change while a memtable is frozen. Else than
// REMIXDB_OK: it is known that its round will not end soon.
static enum remixdb_status wait_on(struct xdb *x, struct waiter *w) {
  const enum remixdb_status s = xdb_failure(x);
  if (s != REMIXDB_OK) return s;
  if (x->rounds.error.status == REMIXDB_OK) {
    if (w) return waiter_wait(w);
    xdb_lock_wait(x, RETRY_NS);
    return REMIXDB_OK;
  }
  if (time_ns() - x->rounds.failed_ns < RETRY_NS) return err_raise(&x->rounds.error);
  x->rounds.error.status = REMIXDB_OK;
  xdb_unlock(x);
  workers_kick(x->workers);
  xdb_lock(x);
  return REMIXDB_OK;
}

// Lock is held and stays so, but is let go while waiting: until no memtable is frozen.
static enum remixdb_status wait_for_round(struct xdb *x, struct waiter *w) {
  enum remixdb_status s = REMIXDB_OK;
  while (s == REMIXDB_OK && atomic_load_explicit(&x->rounds.compacting, memory_order_relaxed)) s = wait_on(x, w);
  return s;
}

static bool freeze_due(struct xdb *x, enum xdb_round_when when, size_t batch) {
  const struct memtable *m = xdb_super(x)->active;
  return when == XDB_ROUND_ANY || (when == XDB_ROUND_USED ? wh_count(m->wh) != 0 : xdb_round_due(x, m, batch));
}

enum remixdb_status xdb_round_room(struct xdb *x, enum xdb_round_when when, size_t batch) {
  bool kick = false;
  xdb_lock(x);
  enum remixdb_status s = xdb_failure(x);
  // Another writer may freeze it first, or a flush, which would else wait for one round after the other: what is active
  // then has room, and its round is nobody's concern.
  while (s == REMIXDB_OK && !kick && freeze_due(x, when, batch)) {
    if (atomic_load_explicit(&x->rounds.compacting, memory_order_relaxed) || x->rounds.nr_flushers) {
      s = wait_on(x, NULL);
    } else {
      s = freeze(x);
      kick = s == REMIXDB_OK;
    }
  }
  xdb_unlock(x);
  if (kick) workers_kick(x->workers);
  return s;
}

enum remixdb_status xdb_wait_idle(struct xdb *x) {
  if (x->opts.read_only) return REMIXDB_OK;
  xdb_lock(x);
  const enum remixdb_status s = wait_for_round(x, NULL);
  while (x->rounds.at != XDB_AT_REST) xdb_lock_wait(x, RETRY_NS);
  xdb_unlock(x);
  idle_destroy_wait(x);
  return s;
}

// Lock is held and stays so, but is let go while waiting: until memtable number `nr` is in tables, or its round has
// failed. w->whole, which a round works on from when it is taken, is the caller's again; but when the call is given up
// while a round has it, that round's alone, and NULL here.
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

// Lock is held and stays so, but is let go while waiting: freezes the active memtable, when it is (still) wanted.
// *s_out is not REMIXDB_OK: that has failed.
static bool freeze_asked(struct waiter *w, enum xdb_round_when when, enum remixdb_status *s_out) {
  struct xdb *const x = w->x;
  for (;;) {
    x->rounds.nr_flushers++;
    if (x->rounds.error.status == REMIXDB_NOSPACE &&
        reserve_there(x)) {  // the frozen memtable's round may have that, which it had not when nobody waited for it
      x->rounds.flushing = true;
      x->rounds.failed_ns = 0;
    }
    *s_out = wait_for_round(x, w);
    x->rounds.nr_flushers--;
    const bool wanted = *s_out == REMIXDB_OK && freeze_due(x, when, 0);
    if (wanted) *s_out = freeze(x);
    if (!wanted || *s_out != REMIXDB_NOSPACE) return wanted;
    xdb_unlock(x);
    const bool again = reserve_spend(x);
    xdb_lock(x);
    if (!again) return wanted;
  }
}

// Freezes the active memtable, when it is wanted, and waits for its round, which hands nothing back and does what
// w->whole asks for.
static enum remixdb_status flush_round(struct waiter *w, enum xdb_round_when when) {
  struct xdb *const x = w->x;
  if (x->opts.read_only) return err_set(REMIXDB_READONLY, "%s: opened with read_only", x->dir);
  xdb_lock(x);
  enum remixdb_status s = xdb_failure(x);
  const bool wanted = s == REMIXDB_OK && freeze_asked(w, when, &s);
  pthread_cond_broadcast(&x->changed);  // who has given way looks again
  if (wanted && s == REMIXDB_OK) {
    const uint64_t nr = x->rounds.nr_frozen;
    x->rounds.flushing = true;
    x->rounds.whole = w->whole;
    w->own = true;
    xdb_unlock(x);
    workers_kick(x->workers);
    xdb_lock(x);
    s = wait_installed(w, nr);
    w->own = false;
    if (x->rounds.whole == w->whole) x->rounds.whole = NULL;
  }
  xdb_unlock(x);
  return s;
}

// The first report of a call, and the last one of a call that has succeeded.
static enum remixdb_status waiter_begin(struct waiter *w) {
  w->told_ns = time_ns();
  return w->x->opts.read_only ? REMIXDB_OK : progress_report(&w->progress, w->what, 0, w->total);
}

static enum remixdb_status waiter_end(const struct waiter *w) {
  const uint64_t total = w->total > w->done ? w->total : w->done + 1;
  return progress_report(&w->progress, w->what, total, total);
}

enum remixdb_status xdb_flush_told(struct xdb *x, const struct progress *p) {
  struct waiter w = {.x = x, .progress = *p, .what = "flush"};
  enum remixdb_status s = waiter_begin(&w);
  if (s == REMIXDB_OK) s = flush_round(&w, XDB_ROUND_USED);
  return s == REMIXDB_OK ? waiter_end(&w) : s;
}

enum remixdb_status xdb_flush(struct xdb *x) { return xdb_flush_told(x, &(struct progress){0}); }

void xdb_flush_last(struct xdb *x) {
  struct waiter w = {.x = x};
  if (!wal_holds(x->wal) || flush_round(&w, XDB_ROUND_ANY) == REMIXDB_OK) return;
  xdb_say(x, "%s: the log keeps what could not be brought into tables: %s", x->dir, err_msg());
}

// Log files that are there to be recycled go, and the active one, which has grown, is replaced by a new one: whoever
// compacts wants room.
static enum remixdb_status shrink_log(struct xdb *x) {
  struct waiter w = {.x = x};
  enum remixdb_status s = wal_shed(x->wal);
  if (s == REMIXDB_OK) s = flush_round(&w, XDB_ROUND_ANY);
  return s == REMIXDB_OK ? wal_shed(x->wal) : s;
}

// The bytes that a compaction of all will read, about.
static uint64_t whole_bytes(struct xdb *x) {
  xdb_lock(x);
  const struct super *const view = xdb_super(x);
  uint64_t bytes = wh_memory(view->active->wh);
  for (uint32_t i = 0; i < view->version->nr_parts; i++) {
    const struct part *const p = view->version->parts[i];
    for (uint32_t r = 0; r < part_runs(p); r++) bytes += part_run(p, r)->file_size;
  }
  xdb_unlock(x);
  return bytes + 1;
}

// A round has brought the partitions before w->whole->work.to into their fewest tables.
static void whole_on(struct waiter *w) {
  struct compact_whole *const work = &w->whole->work;
  xdb_lock(w->x);
  const struct version *const v = xdb_super(w->x)->version;
  w->base = w->total / v->nr_parts * version_find(v, kref(work->to, work->to_len));
  xdb_unlock(w->x);
  compact_whole_on(work);
}

// The disk had no room for a round of a compaction. Whether it is worth while to try again with smaller partitions
// alone, which then give room for others.
static bool go_smaller(struct waiter *w) {
  struct compact_whole *const work = w->whole ? &w->whole->work : NULL;  // NULL: the call is given up
  if (!work || work->largest / 2 < WHOLE_MOST_MIN) return false;
  work->most = work->largest / 2;
  xdb_lock(w->x);
  w->x->rounds.failed_ns = 0;  // the memtable's round is tried again at once
  xdb_unlock(w->x);
  return true;
}

// Once over all partitions. *any_out is set when something was written for one.
static enum remixdb_status compact_pass(struct waiter *w, bool *any_out) {
  enum remixdb_status s = REMIXDB_OK;
  for (bool end = false; s == REMIXDB_OK && !end;) {
    w->whole->taken = w->whole->done = w->whole->installed = false;
    w->whole->work.largest = 0;
    s = flush_round(w, XDB_ROUND_ANY);
    if (s == REMIXDB_NOSPACE && go_smaller(w)) s = REMIXDB_OK;
    if (s != REMIXDB_OK || !w->whole->installed)
      continue;  // its round failed, and another has brought the memtable into tables: once more
    *any_out = *any_out || w->whole->work.largest;
    end = w->whole->work.end;
    if (end) break;
    whole_on(w);
    s = progress_report(&w->progress, w->what, w->done, w->total);
  }
  return s;
}

enum remixdb_status xdb_compact_told(struct xdb *x, const struct progress *p) {
  struct waiter w = {.x = x, .progress = *p, .what = "compact", .whole = mem_calloc(1, sizeof(*w.whole))};
  if (!w.whole) return REMIXDB_NOMEM;
  // each round takes about as long as to write a few memtables: writers wait for a round at most when the next memtable
  // is full
  w.whole->work.budget = 4 * x->memtable_limit;
  if (p->fn && !x->opts.read_only) w.total = whole_bytes(x);
  enum remixdb_status s = waiter_begin(&w);
  bool any = true, left = true;
  for (uint32_t pass = 0; s == REMIXDB_OK && left && any && pass < WHOLE_PASSES; pass++) {
    any = w.whole->work.left = false;
    w.whole->work.most = UINT64_MAX;
    w.whole->work.from_len = 0;
    s = compact_pass(&w, &any);
    left = w.whole && w.whole->work.left;
  }
  if (s == REMIXDB_OK && left)
    s = err_set(REMIXDB_NOSPACE, "%s: No space left on device: some partitions could not be compacted", x->dir);
  mem_free(w.whole);
  if (s == REMIXDB_OK && shrink_log(x) != REMIXDB_OK) xdb_say(x, "the log could not be made smaller: %s", err_msg());
  return s == REMIXDB_OK ? waiter_end(&w) : s;
}

enum remixdb_status xdb_compact(struct xdb *x) { return xdb_compact_told(x, &(struct progress){0}); }
