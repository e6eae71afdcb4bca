// SPDX-License-Identifier: Apache-2.0
#include "store/flush.h"

#include <assert.h>

#include "store/collect.h"
#include "store/freeze.h"
#include "store/idle.h"
#include "store/install.h"
#include "store/reserve.h"
#include "store/values.h"

#define REPORT_NS 50000000ull       // between two reports of a call that waits for a round
#define RETRY_NS 1000000000ull      // between two tries of a round that failed in a way that may end
#define WHOLE_MOST_MIN (64u << 10)  // a compaction of the whole that cannot write so many bytes at once gives up
#define WHOLE_PASSES 16u            // the most passes over partitions that the disk had no room for
#define WHOLE_AGAIN 3u              // the most passes more for neighbours that have come to fit each other

// ---- waiting for rounds

// A call that waits for rounds and reports its progress.
struct waiter {
  struct xdb *x;
  struct progress progress;
  const char *what;
  uint64_t total;    // work of the call in bytes; 0: not known yet
  uint64_t base;     // done by earlier rounds
  uint64_t done;     // bytes at the last report; never decreases
  uint64_t told_ns;  // time of the last report
  bool own;          // true: the call waits for its own round; false: for its turn to freeze (rounds.nr_flushers)
  struct xdb_whole *whole;  // the work that it gives to its round; NULL: none
  // A compaction of a part: where that begins. With whole->work.within it ends in the same tree.
  struct kref low;
  uint32_t tree;
};

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
    xdb_lock_wait(x, RETRY_NS);
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

// Waits for a change while a memtable is frozen; w: the waiting call, or NULL, which waits for at most so long. If the
// round has failed, asks for another one. xdb.lock is held; the call releases it while it waits. Returns a failure if
// the round will not end soon.
static enum remixdb_status wait_on(struct xdb *x, struct waiter *w, uint64_t ns) {
  assert(xdb_lock_is_mine(x));
  const enum remixdb_status s = xdb_failure(x);
  if (s != REMIXDB_OK) return s;
  if (x->rounds.error.status == REMIXDB_OK) {
    if (w) return waiter_wait(w);
    xdb_lock_wait(x, ns);
    return REMIXDB_OK;
  }
  if (time_ns() - x->rounds.failed_ns < RETRY_NS) return err_raise(&x->rounds.error);
  x->rounds.error.status = REMIXDB_OK;
  xdb_unlock(x);
  workers_kick(x->workers);
  xdb_lock(x);
  return REMIXDB_OK;
}

// Waits until a memtable may be frozen. xdb.lock is held; the call releases it while it waits.
static enum remixdb_status wait_for_round(struct xdb *x, struct waiter *w) {
  enum remixdb_status s = REMIXDB_OK;
  while (s == REMIXDB_OK && freeze_must_wait(x)) s = wait_on(x, w, RETRY_NS);
  return s;
}

enum remixdb_status xdb_wait_idle(struct xdb *x) {
  if (x->opts.read_only) return REMIXDB_OK;
  xdb_lock(x);
  enum remixdb_status s;
  do {
    s = wait_for_round(x, NULL);
    while (x->rounds.at != XDB_AT_REST || collect_pending(x)) xdb_lock_wait(x, RETRY_NS);
  } while (s == REMIXDB_OK && freeze_must_wait(x));  // the round that has ended may have frozen a full memtable
  xdb_unlock(x);
  idle_destroy_wait(x);
  return s;
}

// ---- room for writers

// xdb.lock is held.
static bool freeze_due(struct xdb *x, enum xdb_freeze when, size_t batch) {
  assert(xdb_lock_is_mine(x));
  const struct memtable *m = xdb_super(x)->active;
  return when == XDB_FREEZE_ANY ||
         (when == XDB_FREEZE_USED ? memtable_count(m) != 0 : xdb_round_due(x, m, batch) || values_full(x, m));
}

// until: the time to give up (*late_out); UINT64_MAX: never.
static enum remixdb_status wait_room(struct xdb *x, enum xdb_freeze when, size_t batch, uint64_t until,
                                     bool *late_out) {
  bool kick = false;
  *late_out = false;
  xdb_lock(x);
  enum remixdb_status s = xdb_failure(x);
  // Another writer may freeze the memtable earlier. The new memtable then has room, and this call need not wait for a
  // round. A flush may do the same. Flushes go before writers, because otherwise writers would make a flush wait for
  // one round after the other.
  while (s == REMIXDB_OK && !kick && !*late_out && freeze_due(x, when, batch)) {
    if (freeze_must_wait(x) || x->rounds.nr_flushers) {
      const uint64_t now = until == UINT64_MAX ? 0 : time_ns(), left = until > now ? until - now : 0;
      const enum remixdb_status may = xdb_may_wait(x);
      if (left && may == REMIXDB_OK) s = wait_on(x, NULL, left < RETRY_NS ? left : RETRY_NS);
      else if (until != UINT64_MAX) *late_out = true;
      else s = may;
    } else {
      s = round_freeze(x);
      kick = s == REMIXDB_OK;
      if (kick && when == XDB_FREEZE_AGAIN) x->rounds.nothing_back = true;
    }
  }
  xdb_unlock(x);
  if (kick) workers_kick(x->workers);
  return s;
}

enum remixdb_status xdb_wait_room(struct xdb *x, enum xdb_freeze when, size_t batch) {
  bool late;
  return wait_room(x, when, batch, UINT64_MAX, &late);
}

enum remixdb_status xdb_wait_room_a_while(struct xdb *x, bool *late_out) {
  return wait_room(x, XDB_FREEZE_FULL, 0, time_ns() + ROOM_WAIT_NS, late_out);
}

// ---- flush

// Waits until memtable number `nr` is in tables, or its round has failed. xdb.lock is held; the call releases it while
// it waits. Afterwards the caller owns w->whole again. There is one exception: if the progress function gives the call
// up while a round works on w->whole, the round keeps it, and w->whole becomes NULL.
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
    *s_out = wait_for_round(x, w);
    x->rounds.nr_flushers--;
    const bool due = *s_out == REMIXDB_OK && freeze_due(x, when, 0);
    if (due) *s_out = round_freeze(x);
    if (!due || *s_out != REMIXDB_NOSPACE) return due;
    xdb_unlock(x);
    const bool again = reserve_spend(x);
    xdb_lock(x);
    if (!again) return due;
  }
}

// Freezes the active memtable, if it is as `when` says, and waits for its round, which hands nothing back and does the
// work of w->whole.
static enum remixdb_status flush_round(struct waiter *w, enum xdb_freeze when) {
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

// The first report of a call.
static enum remixdb_status waiter_begin(struct waiter *w) {
  w->told_ns = time_ns();
  return w->x->opts.read_only ? REMIXDB_OK : progress_report(&w->progress, w->what, 0, w->total);
}

// The last report of a call that has succeeded.
static enum remixdb_status waiter_end(const struct waiter *w) {
  const uint64_t total = w->total > w->done ? w->total : w->done + 1;
  return progress_report(&w->progress, w->what, total, total);
}

enum remixdb_status xdb_flush_told(struct xdb *x, const struct progress *p) {
  struct waiter w = {.x = x, .progress = *p, .what = "flush"};
  enum remixdb_status s = waiter_begin(&w);
  if (s == REMIXDB_OK) s = flush_round(&w, XDB_FREEZE_USED);
  return s == REMIXDB_OK ? waiter_end(&w) : s;
}

enum remixdb_status xdb_flush(struct xdb *x) { return xdb_flush_told(x, &(struct progress){0}); }

void xdb_flush_last(struct xdb *x) {
  struct waiter w = {.x = x};
  if (!wal_holds(x->wal) || flush_round(&w, XDB_FREEZE_ANY) == REMIXDB_OK) return;
  xdb_say(x, "%s: some records stay in the log, because they could not be brought into tables: %s", x->dir, err_msg());
}

enum remixdb_status xdb_ingest_round(struct xdb *x, struct xdb_ingesting *g) {
  struct waiter w = {.x = x, .whole = mem_calloc(1, sizeof(*w.whole))};
  if (!w.whole) return REMIXDB_NOMEM;
  w.whole->ingest = g;
  enum remixdb_status s = flush_round(&w, XDB_FREEZE_ANY);
  // A round of the memtable that succeeds without the ingest says why; one that failed may have been tried again.
  if (g->tried && !g->done) s = err_raise(&g->error);
  else if (s == REMIXDB_OK && !g->done && w.whole->error.status != REMIXDB_OK) s = err_raise(&w.whole->error);
  else if (s == REMIXDB_OK && !g->done) s = err_set(REMIXDB_ABORTED, "%s: the round of the ingest has failed", x->dir);
  mem_free(w.whole);
  return s;
}

// ---- compaction of the whole store, a part in each round

// Returns the bytes of the tables in the partitions [from, to) of a tree.
static uint64_t parts_bytes(const struct version *tree, uint32_t from, uint32_t to) {
  uint64_t bytes = 0;
  for (uint32_t i = from; i < to; i++) bytes += part_table_bytes(tree->parts[i]);
  return bytes;
}

// Estimates how many bytes the compaction will read.
static uint64_t whole_bytes(const struct waiter *w) {
  const struct compact_whole *const work = &w->whole->work;
  xdb_lock(w->x);
  const struct super *const super = xdb_super(w->x);
  uint64_t bytes = memtable_memory(super->active);
  if (work->within) {
    const struct version *const tree = version_tree(super->version, w->tree);  // NULL: no space has tables
    if (tree) bytes += parts_bytes(tree, version_find(tree, w->low), compact_whole_stop(work, tree));
  } else {
    for (const struct version *tree = super->version; tree; tree = tree->spaces)
      bytes += parts_bytes(tree, 0, tree->nr_parts);
  }
  xdb_unlock(w->x);
  return bytes + 1;
}

// Goes on to the next partitions: a round has brought the partitions before w->whole->work.to into the fewest tables.
static void whole_on(struct waiter *w) {
  struct compact_whole *const work = &w->whole->work;
  xdb_lock(w->x);
  const struct version *const v = xdb_super(w->x)->version;
  const struct version *const tree = version_tree(v, work->to_tree);
  const uint32_t before = work->to_tree == TREE_UNNAMED ? 0 : v->nr_parts,
                 all = v->nr_parts + (v->spaces ? v->spaces->nr_parts : 0),
                 at = version_find(tree, kref(work->to, work->to_len));
  const uint32_t low = version_find(tree, w->low);
  if (!work->within) w->base = w->total / all * (before + at);
  else if (at > low) w->base = w->total / (compact_whole_stop(work, tree) - low) * (at - low);
  xdb_unlock(w->x);
  compact_whole_on(work);
}

// Called when the disk had no room for a round. Returns whether to try again with smaller partitions only; these then
// make room for larger partitions.
static bool go_smaller(struct waiter *w) {
  struct compact_whole *const work = w->whole ? &w->whole->work : NULL;  // NULL: the call is given up
  if (!work || work->largest / 2 < WHOLE_MOST_MIN) return false;
  work->most = work->largest / 2;
  xdb_lock(w->x);
  w->x->rounds.failed_ns = 0;  // the memtable's round tries again at once
  xdb_unlock(w->x);
  return true;
}

// One pass over all partitions. Sets *any_out when it has written something.
static enum remixdb_status compact_pass(struct waiter *w, bool *any_out) {
  enum remixdb_status s = REMIXDB_OK;
  for (bool end = false; s == REMIXDB_OK && !end;) {
    w->whole->taken = w->whole->done = w->whole->installed = false;
    w->whole->work.largest = 0;
    s = flush_round(w, XDB_FREEZE_ANY);
    if (s == REMIXDB_NOSPACE && go_smaller(w)) s = REMIXDB_OK;
    if (s == REMIXDB_OK && w->whole->error.status != REMIXDB_OK) s = err_raise(&w->whole->error);
    if (s != REMIXDB_OK || !w->whole->installed) continue;  // the round with this work failed: once more
    *any_out = *any_out || w->whole->work.largest;
    end = w->whole->work.end;
    if (end) break;
    whole_on(w);
    s = progress_report(&w->progress, w->what, w->done, w->total);
  }
  return s;
}

// Tells whether neighbours fit together now that the last pass has made them smaller.
static bool fits_again(struct waiter *w) {
  const struct compact_whole *const work = &w->whole->work;
  bool fits = false;
  xdb_lock(w->x);
  const struct version *const v = xdb_super(w->x)->version;
  for (uint32_t i = 0; i < TREES; i++) {
    const struct version *const tree = version_tree(v, i);
    if (!tree || (work->within && i != w->tree)) continue;
    const uint32_t from = work->within ? version_find(tree, w->low) : 0;
    fits = fits || compact_whole_fits(&w->x->compact, tree, from, compact_whole_stop(work, tree));
  }
  xdb_unlock(w->x);
  return fits;
}

// Makes a pass. fits_only: as in struct compact_whole. Sets *any_out to whether it has written something, and *left_out
// to whether it has left out a partition for lack of room.
static enum remixdb_status pass_from_start(struct waiter *w, bool fits_only, bool *any_out, bool *left_out) {
  struct compact_whole *const work = &w->whole->work;
  *any_out = work->left = false;
  work->fits_only = fits_only;
  work->most = UINT64_MAX;
  work->from_len = w->low.len;
  if (w->low.len) memcpy(work->from, w->low.ptr, w->low.len);
  work->from_tree = w->tree;
  const enum remixdb_status s = compact_pass(w, any_out);
  *left_out = w->whole && w->whole->work.left;
  return s;
}

// Makes passes until no partition is left out for lack of room, or a pass achieves nothing. Then makes passes for
// neighbours that have come to fit each other. A lack of room or memory ends these without a failure: the call has
// already done its work.
static enum remixdb_status compact_passes(struct waiter *w) {
  enum remixdb_status s = REMIXDB_OK;
  bool any = true, left = true;
  for (uint32_t pass = 0; s == REMIXDB_OK && left && any && pass < WHOLE_PASSES; pass++)
    s = pass_from_start(w, false, &any, &left);
  if (s == REMIXDB_OK && left)
    s = err_set(REMIXDB_NOSPACE, "%s: No space left on device: some partitions could not be compacted", w->x->dir);
  if (s != REMIXDB_OK) return s;
  // writers make neighbours that fit, too
  for (uint32_t more = 0; s == REMIXDB_OK && !left && any && more < WHOLE_AGAIN && fits_again(w); more++)
    s = pass_from_start(w, true, &any, &left);
  return s == REMIXDB_NOSPACE || s == REMIXDB_NOMEM ? REMIXDB_OK : s;
}

// Removes the log files that are kept for reuse, and replaces the active segment, which has grown, by a new one.
static enum remixdb_status shrink_log(struct xdb *x) {
  struct waiter w = {.x = x};
  enum remixdb_status s = wal_shed(x->wal);
  if (s == REMIXDB_OK) s = flush_round(&w, XDB_FREEZE_ANY);
  return s == REMIXDB_OK ? wal_shed(x->wal) : s;
}

// Compacts what w->whole says, and frees that. Also where it returns REMIXDB_OK, partitions may be as they were,
// because they could not be read. *unread_out tells why: the call fails by that when all else is done.
static enum remixdb_status compact_with(struct waiter *w, struct err_saved *unread_out) {
  struct xdb *const x = w->x;
  // A round takes about as long as writing a few memtables: a writer waits for one round at most.
  w->whole->work.budget = 4 * xdb_memtable_limit(x);
  if (w->progress.fn && !x->opts.read_only) w->total = whole_bytes(w);
  unread_out->status = REMIXDB_OK;
  enum remixdb_status s = waiter_begin(w);
  if (s == REMIXDB_OK) s = compact_passes(w);
  if (s == REMIXDB_OK && w->whole) *unread_out = w->whole->work.unread;
  mem_free(w->whole);
  return s;
}

enum remixdb_status xdb_compact_told(struct xdb *x, const struct progress *p) {
  struct waiter w = {.x = x, .progress = *p, .what = "compact", .whole = mem_calloc(1, sizeof(*w.whole))};
  if (!w.whole) return REMIXDB_NOMEM;
  value_log_turn(&x->values);  // the garbage in all files is collected, also in those that are not full
  value_log_turn(&x->compact.values);
  struct err_saved unread;
  enum remixdb_status s = compact_with(&w, &unread);
  if (s == REMIXDB_OK) s = collect_all(x, &w.progress, w.what, w.done, w.total);
  if (s == REMIXDB_OK && shrink_log(x) != REMIXDB_OK) xdb_say(x, "the log could not be made smaller: %s", err_msg());
  if (s == REMIXDB_OK) s = err_raise(&unread);
  return s == REMIXDB_OK ? waiter_end(&w) : s;
}

// A key as `from` and `until` of struct compact_whole have room for.
static struct kref whole_key(struct kref key) { return kref(key.ptr, key.len < KV_KEY_MAX ? key.len : KV_KEY_MAX); }

enum remixdb_status xdb_compact_range(struct xdb *x, uint32_t tree, struct kref low, struct kref high,
                                      const struct progress *p) {
  struct waiter w = {.x = x, .progress = *p, .what = "compact", .tree = tree, .whole = mem_calloc(1, sizeof(*w.whole))};
  if (!w.whole) return REMIXDB_NOMEM;
  struct compact_whole *const work = &w.whole->work;
  w.low = low.ptr ? whole_key(low) : kref("", 0);
  work->within = true;
  work->until_len = high.ptr ? whole_key(high).len : UINT32_MAX;
  if (high.ptr) memcpy(work->until, high.ptr, work->until_len);
  struct err_saved unread;
  enum remixdb_status s = compact_with(&w, &unread);
  if (s == REMIXDB_OK) s = err_raise(&unread);
  return s == REMIXDB_OK ? waiter_end(&w) : s;
}

enum remixdb_status xdb_compact(struct xdb *x) { return xdb_compact_told(x, &(struct progress){0}); }
