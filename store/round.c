// SPDX-License-Identifier: Apache-2.0
#include "store/round.h"

#include <assert.h>

#include "store/collect.h"
#include "store/dropped.h"
#include "store/edit.h"
#include "store/expiry.h"
#include "store/freeze.h"
#include "store/garbage_merge.h"
#include "store/hiding.h"
#include "store/idle.h"
#include "store/install.h"
#include "store/make_room.h"
#include "store/memory.h"
#include "store/pace.h"
#include "store/reserve.h"
#include "store/scan_merge.h"
#include "store/values.h"

// The round of a frozen memtable.
struct memtable_round {
  bool asked;         // a call waits for the round: it hands nothing back, and may spend the reserved room
  bool nothing_back;  // it hands nothing back
  struct xdb_whole *whole;
};

// Finds the frozen memtable for the round. Returns false if no memtable is frozen, or if the store refuses writes.
static bool take_work(struct xdb *x, struct memtable_round *r) {
  xdb_lock(x);
  const struct super *const super = xdb_super(x);
  r->asked = x->rounds.flushing;
  r->nothing_back = r->asked || x->rounds.nothing_back;
  r->whole = NULL;
  x->rounds.error.status = REMIXDB_OK;
  const bool any = super->frozen && atomic_load_explicit(&x->failed, memory_order_relaxed) == 0;
  if (any && x->rounds.whole) {
    r->whole = x->rounds.whole;
    assert(!r->whole->taken && !r->whole->done);
    r->whole->taken = true;
    x->rounds.whole = NULL;
  }
  xdb_unlock(x);
  return any;
}

// Ends the round's use of `whole`; NULL is allowed. xdb.lock is held, and the caller gives it back by
// xdb_unlock_changed.
static void whole_done(struct xdb_whole *whole) {
  if (!whole) return;
  if (whole->abandoned) mem_free(whole);
  else whole->done = true;
}

// The active memtable is the next one that an ingest takes the place of: nobody else freezes it.
static void set_ingesting(struct xdb *x, bool is) {
  xdb_lock(x);
  x->rounds.ingesting = is;
  xdb_unlock_changed(x);
}

// Installs the version of a round with an ingest, then the one that has the ingest's tables, too.
static enum remixdb_status install_both(struct xdb *x, struct worker *w, struct xdb_ingesting *g, struct version *next,
                                        struct ingest_made *made, uint64_t *when_out) {
  version_ref(next);
  if (made->version) set_ingesting(x, true);
  const enum remixdb_status s = round_install(x, next, true, when_out);
  uint64_t when;
  struct err_saved why;
  err_save(&why, s);
  if (s == REMIXDB_OK) {
    ingest_round_place(x, w, g, made, &when);
  } else if (made->version) {
    ingest_round_drop(made, next);
    g->error = why;
  }
  set_ingesting(x, false);
  err_cleanup_begin();
  version_unref(next);
  err_cleanup_end();
  return err_raise(&why);
}

// Makes the next version of the frozen memtable's round; NULL: room is to be made first.
static enum remixdb_status compact_frozen(struct xdb *x, struct worker *w, const struct memtable_round *r,
                                          struct compact_room *room, struct ingest_made *made, struct version **next) {
  struct xdb_ingesting *const ingest = r->whole ? r->whole->ingest : NULL;
  // Names of spaces may be installed meanwhile. That replaces the super, but no tree, and the memtable stays frozen.
  xdb_lock(x);
  struct super *const super = xdb_super(x);
  const struct memtable *const frozen = super->frozen;
  super_ref(super);
  xdb_unlock(x);
  const bool back = !r->nothing_back && !values_many(x, frozen);
  enum remixdb_status s = compact_round(&x->compact, w, super->version, frozen->wh, memtable_tree(frozen, TREE_SPACES),
                                        back, r->whole && !ingest ? &r->whole->work : NULL, room, next);
  if (ingest && !ingest->tried && s == REMIXDB_OK) ingest_round_make(x, w, ingest, super->version, *next, made);
  err_cleanup_begin();
  super_unref(super);  // before the install, which waits for the last use
  err_cleanup_end();
  return s;
}

// A lack of space or memory may end.
static bool may_end(enum remixdb_status s) { return s == REMIXDB_NOSPACE || s == REMIXDB_NOMEM; }

static enum remixdb_status compact_and_install(struct xdb *x, struct worker *w, const struct memtable_round *r) {
  const uint64_t began = time_ns();
  atomic_store_explicit(&x->pace.round_began_ns, began, memory_order_relaxed);
  struct xdb_ingesting *const ingest = r->whole ? r->whole->ingest : NULL;
  struct version *next = NULL;
  struct ingest_made made = {0};
  (void)expiry_settle(x);
  // a call that waits for the round waits for that alone
  struct compact_room room = {.beside = wal_room_most(x->wal) + reserve_for_tables(x), .steps = !r->asked};
  enum remixdb_status s = compact_frozen(x, w, r, r->whole ? NULL : &room, &made, &next);
  if (s == REMIXDB_OK && !next) {
    s = make_room_steps(x, w, &room);
    if (s == REMIXDB_OK) s = compact_frozen(x, w, r, &room, &made, &next);
  }
  if (s == REMIXDB_NOSPACE && !r->whole && !room.scarce) {
    x->rounds.full = room.scarce = true;
    s = compact_frozen(x, w, r, &room, &made, &next);
  }
  compact_room_fini(&room);
  if (s != REMIXDB_OK) return s;
  // the sync of what was written shows no progress
  const uint64_t written = ingest ? time_ns() : x->compact.written_ns,
                 work = atomic_load_explicit(&x->compact.progress, memory_order_relaxed);
  uint64_t installed = 0;
  s = ingest ? install_both(x, w, ingest, next, &made, &installed) : round_install(x, next, true, &installed);
  if (s == REMIXDB_OK) xdb_pace_learn(x, work, written - began, installed - written);
  return s;
}

// Called on a full disk: gives back the room that the store does not need at once. Returns whether it gave any room
// back.
static bool give_back(struct xdb *x, bool asked) {
  const bool yielded = wal_yield(x->wal), spent = asked && reserve_spend(x);
  return yielded || spent;
}

static void round_succeeded(struct xdb *x, struct xdb_whole *whole, uint64_t began) {
  if (whole) {
    whole->installed = !whole->ingest || whole->ingest->done;
    xdb_lock(x);
    whole_done(whole);
    xdb_unlock_changed(x);
  }
  const uint64_t took = time_ns() - began;
  atomic_store_explicit(&x->pace.last_round_ns, took, memory_order_relaxed);
  xdb_say(x, "compaction: %.3f s", (double)took * 1e-9);
}

// The round has failed for another reason, with the work of a call that compacts the store. The memtable needs none of
// that: the call fails, and the round goes on without. Returns false if the store is not as it was, or there is no such
// work.
static bool leave_whole(struct xdb *x, struct memtable_round *r, enum remixdb_status s) {
  if (!r->whole || r->whole->ingest || atomic_load_explicit(&x->failed, memory_order_relaxed)) return false;
  err_save(&r->whole->error, s);
  xdb_say(x, "a compaction failed: %s", r->whole->error.msg);
  xdb_lock(x);
  whole_done(r->whole);
  xdb_unlock_changed(x);
  r->whole = NULL;
  return true;
}

// After other failures than a lack of space or memory the store refuses writes, unless the round failed only because it
// could not read a partition, or a table that it had made. The files may be whole again, or the partition's range
// deleted, when it is tried again. The round itself has installed nothing.
static void round_failed(struct xdb *x, struct xdb_whole *whole, enum remixdb_status s) {
  const bool again = may_end(s) || x->compact.reads_failed;
  struct err_saved why;
  err_save(&why, s);
  if (!again) xdb_fail(x, &why);
  xdb_lock(x);
  if (again) {
    x->rounds.error = why;
    x->rounds.failed_ns = time_ns();
  }
  if (whole && whole->ingest) whole->error = why;  // the next try may begin before the ingest looks
  whole_done(whole);
  xdb_unlock_changed(x);
  if (again) xdb_say(x, "compaction failed and will be tried again: %s", why.msg);
}

void round_say_left_out(struct xdb *x) {
  struct err_saved *const why = &x->compact.left_out;
  if (why->status == REMIXDB_OK) return;
  xdb_say(x, "compaction has left out merges that can wait: %s", why->msg);
  why->status = REMIXDB_OK;
}

// Returns false when the round failed.
static bool memtable_run(struct xdb *x, struct worker *w, struct memtable_round *r) {
  const uint64_t began = time_ns();
  if (workers_count(x->workers) && !r->asked) idle_fill(x, &w->slot);  // writers have filled a memtable
  enum remixdb_status s = compact_and_install(x, w, r);
  if (s != REMIXDB_OK && !may_end(s) && leave_whole(x, r, s)) s = compact_and_install(x, w, r);
  if (s == REMIXDB_NOSPACE && give_back(x, r->asked)) s = compact_and_install(x, w, r);
  if (s == REMIXDB_NOSPACE && make_room_full(x, w, true)) s = compact_and_install(x, w, r);
  if (s == REMIXDB_OK) round_succeeded(x, r->whole, began);
  else round_failed(x, r->whole, s);
  round_say_left_out(x);
  return s == REMIXDB_OK;
}

static void set_at(struct xdb *x, enum xdb_at at) {
  xdb_lock(x);
  x->rounds.at = at;
  xdb_unlock_changed(x);
}

// Freezes the memtable if a judgement has asked for that.
static void freeze_hiding(struct xdb *x) {
  if (likely(!hiding_take(x))) return;
  values_turn(x);  // H5 in store/hiding.h
  xdb_freeze_all(x);
}

void xdb_round_run(void *arg, struct worker *w) {
  struct xdb *const x = arg;
  struct memtable_round r;
  set_at(x, XDB_AT_MEMTABLE);
  freeze_hiding(x);
  memory_round(x);
  idle_busy(x);
  dropped_begin(x, w);
  const bool good = !take_work(x, &r) || memtable_run(x, w, &r);
  xdb_edits_run(x, w);           // after a failed round, too: they may make room
  if (good) xdb_freeze_full(x);  // a batch may have filled the next memtable meanwhile
  if (good) dropped_end(x, w);
  collect_round(x, w);
  if (good) scan_merge_run(x, w);
  if (good) garbage_merge_run(x, w);
  make_room_run(x, w);
  idle_destroy(x);  // while rounds follow each other no worker is idle
  xdb_lock(x);
  const bool failed = x->rounds.error.status != REMIXDB_OK;
  xdb_unlock(x);
  if (!failed) (void)reserve_keep(x);
  sst_trim();
  idle_busy(x);
  set_at(x, XDB_AT_REST);
}
