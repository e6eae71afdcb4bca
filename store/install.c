// SPDX-License-Identifier: Apache-2.0
#include "store/install.h"

#include <assert.h>

#include "store/expiry.h"
#include "store/handover.h"
#include "store/idle.h"
#include "store/memory.h"
#include "store/reserve.h"
#include "store/values.h"

// ---- freezing

struct switching {
  struct xdb *x;
  struct super *next;
};

// Under the log's lock: everything committed so far is in the old memtable and the old segment, everything after it in
// the new ones.
static void switch_super(void *arg, uint64_t gen) {
  struct switching *s = arg;
  s->next->active->gen = gen;
  s->next->least = s->next->active->base_seq = atomic_load_explicit(&s->x->published, memory_order_relaxed);
  atomic_store_explicit(&s->x->super, s->next, memory_order_release);
}

// A new memtable is active. The facts about the one before end with it: the install of the caller's version settles the
// files of its values that were given up. xdb.lock is held.
static void renewed(struct xdb *x) {
  x->scan_merges.used = 0;  // that look was at the old memtable
  atomic_store_explicit(&x->values_lost, 0, memory_order_relaxed);
  atomic_store_explicit(&x->hiding.value_bytes, 0, memory_order_relaxed);
}

// A memtable is frozen from now on. xdb.lock is held.
static void froze(struct xdb *x) {
  atomic_store_explicit(&x->rounds.compacting, true, memory_order_release);
  atomic_store_explicit(&x->compact.yield, true, memory_order_relaxed);
  x->rounds.error.status = REMIXDB_OK;
  x->rounds.nr_frozen++;
  renewed(x);
}

enum remixdb_status round_freeze(struct xdb *x) {
  struct super *old = xdb_super(x);
  assert(xdb_lock_is_mine(x) && !old->frozen && !x->rounds.ingesting);
  struct memtable *fresh;
  enum remixdb_status s = memtable_create(&x->memtables, &fresh);
  if (s != REMIXDB_OK) return s;
  // Once a memtable has the index of the spaces' tree, each later one has it, too: readers do not ask.
  if (memtable_tree(old->active, TREE_SPACES)) s = memtable_spaces(fresh);
  if (s != REMIXDB_OK) {
    memtable_unref(fresh);
    return s;
  }
  struct switching sw = {x, super_create(fresh, old->active, old->version)};
  memtable_unref(fresh);  // the super has its own reference now
  if (!sw.next) return REMIXDB_NOMEM;
  sw.next->since = old->since;
  if ((s = wal_switch(x->wal, switch_super, &sw)) != REMIXDB_OK) {
    super_unref(sw.next);
    return s;
  }
  atomic_store_explicit(&x->pace.round_began_ns, time_ns(), memory_order_relaxed);
  atomic_store_explicit(&x->compact.progress, 0, memory_order_relaxed);
  atomic_store_explicit(&x->compact.work, 0, memory_order_relaxed);
  froze(x);
  super_retire(&x->epoch, old);
  x->txns.let_go(x);
  return REMIXDB_OK;
}

// ---- installing, step by step

// Makes the next super; *base_out: the version that it replaces. A thread that replaces a version holds x->installing,
// so *base_out stays the store's version. trim: leaves dropped spaces out of `next`; *full_out: see version_trim.
// Returns NULL on failure (REMIXDB_NOMEM).
static struct super *prepare(struct xdb *x, struct version *next, bool had_frozen, bool trim, struct version **base_out,
                             struct version **full_out) {
  xdb_lock(x);
  const struct super *const old = xdb_super(x);
  const struct version *const base = *base_out = old->version;
  assert(!had_frozen || old->frozen);
  struct super *fresh = super_create(old->active, had_frozen ? NULL : old->frozen, next);
  next->store_id = x->store_id;
  next->number = base->number + 1;
  next->next_file = atomic_load_explicit(&x->compact.next_file, memory_order_relaxed);
  next->log_gen = had_frozen ? old->active->gen : base->log_gen;
  next->log_seq = had_frozen ? old->active->base_seq : base->log_seq;
  if (!next->names) names_ref(next->names = base->names);
  if (fresh && trim && next->names && version_trim(next, full_out) != REMIXDB_OK) {
    super_unref(fresh);
    fresh = NULL;
  }
  xdb_unlock(x);
  return fresh;
}

// The segment that the version names has a durable header, so its fingerprint is known. After a freeze that is the
// active memtable's segment, which the round has secured before it wrote tables.
static enum remixdb_status name_log(struct xdb *x, struct version *next) {
  next->printed = true;
  return wal_print(x->wal, next->log_gen, &next->log_print);
}

// Makes a version durable that names its log: the directory first, and the log up to a range's deletion (D4), then
// CURRENT. *unknown_out: a crash now could leave either CURRENT.
static enum remixdb_status make_durable(struct xdb *x, const struct version *next, bool *unknown_out) {
  const bool ahead = next->erased > wal_durable_seq(x->wal);  // D4 of store/ranges.h
  *unknown_out = false;
  enum remixdb_status s = ahead ? wal_sync(x->wal) : REMIXDB_OK;
  if (s == REMIXDB_OK) s = env_sync_dir(&x->home);
  if (s != REMIXDB_OK) return s;
  if ((s = dirlock_check(&x->dirlock, &x->home)) != REMIXDB_OK) {
    *unknown_out = true;  // another process may have the store: touch none of its files
    return s;
  }
  s = version_save(&x->ctx, next);
  *unknown_out = s != REMIXDB_OK && s != REMIXDB_NOSPACE && s != REMIXDB_NOMEM;
  return s;
}

// Releases the log's segments before this generation. Writers that wait for this round freeze the next memtable at
// once, so the call first prepares the file of that memtable's segment. If that fails, the failure comes again, and is
// reported, when the file is needed.
static void recycle_log(struct xdb *x, uint64_t gen) {
  if (wal_release(x->wal, gen) != REMIXDB_OK) xdb_say(x, "an old log segment could not be recycled: %s", err_msg());
  if (wal_prepare(x->wal) != REMIXDB_OK) xdb_say(x, "the next log segment could not be prepared: %s", err_msg());
  wal_ahead(x->wal);
}

// Replaces the super. *old_out: the replaced super, with the store's reference.
static void publish(struct xdb *x, struct super *fresh, bool had_frozen, struct super **old_out, uint64_t *when_out) {
  xdb_lock(x);
  *old_out = xdb_super(x);
  if (!had_frozen) super_follow(fresh, *old_out);
  // Acquire: a reader of this moment sees every version that was stamped before. The round's own hand-backs are among
  // them (X4).
  fresh->since = fresh->least = atomic_load_explicit(&x->published, memory_order_acquire);
  atomic_store_explicit(&x->super, fresh, memory_order_release);
  *when_out = time_ns();
  if (had_frozen) {
    atomic_store_explicit(&x->rounds.compacting, false, memory_order_release);
    x->rounds.flushing = x->rounds.nothing_back = false;
  }
  xdb_unlock_changed(x);
}

// `next` is durable: files go that only the version on disk before it had, or the version before it in memory. beside:
// a round may be in progress, or another version of this round waits for its place.
static void retire(struct xdb *x, struct version *base, struct version *next, const struct memtable *frozen,
                   bool beside) {
  compact_retire(base, next);
  values_retire(x, base, next, frozen, beside);
  if (x->rounds.unsaved) {
    compact_retire(x->rounds.unsaved, next);
    values_retire(x, x->rounds.unsaved, next, NULL, beside);
  }
  version_unref(x->rounds.unsaved);
  x->rounds.unsaved = NULL;
  reserve_measure(x, next, 0);
  memory_data(x, next);
}

// Retires the files of partitions that version_trim has left out.
static void retire_trimmed(const struct version *next, struct version *full) {
  if (!full) return;
  compact_retire_tree(full, next->spaces);
  version_unref(full);
}

// `next` did not become the store's version, because of s. unknown: it may be that of CURRENT; the files of both
// versions stay then, and the next opening decides.
static void install_failed(struct xdb *x, const struct version *base, struct version *next, struct version *full,
                           bool unknown, const struct err_saved *why) {
  if (unknown) xdb_fail(x, why);
  else compact_retire(next, base);  // nothing names the new files
  if (full && !unknown) compact_retire_tree(full, base->spaces);
  version_unref(full);
}

// Only a round, or a worker in place of one, may make partitions leave the version (trim), because a round makes its
// version of the partitions of its base. So no other caller waits for the removal of files. moved: what a collection
// has done; NULL: nothing.
static enum remixdb_status install(struct xdb *x, struct version *next, bool had_frozen, bool trim,
                                   const struct values_moved *moved, uint64_t *when_out) {
  struct version *base, *full = NULL;
  struct super *old, *const fresh = prepare(x, next, had_frozen, trim, &base, &full);
  bool unknown = false;
  struct memtable *const frozen = had_frozen ? xdb_super(x)->frozen : NULL;  // it stays: this is its round
  const struct values_new values = {.frozen = frozen, .moved = moved};
  enum remixdb_status s = fresh ? values_of_next(x, next, base, &values) : REMIXDB_NOMEM;
  if (s == REMIXDB_OK) s = value_log_sync(&x->compact.values);
  if (s == REMIXDB_OK && next->names != base->names) s = wal_sync(x->wal);  // no names before earlier writes
  if (s == REMIXDB_OK) s = name_log(x, next);
  if (s == REMIXDB_OK) s = make_durable(x, next, &unknown);
  if (s != REMIXDB_OK) {
    struct err_saved why;
    err_save(&why, s);
    err_cleanup_begin();
    if (!unknown && trim) compact_undo_values(&x->compact);
    install_failed(x, base, next, full, unknown, &why);
    super_unref(fresh);
    err_cleanup_end();
    return s;
  }
  if (had_frozen) recycle_log(x, next->log_gen);
  if (trim) compact_keep_values(&x->compact);
  if (frozen) memtable_leave(frozen);
  publish(x, fresh, had_frozen, &old, when_out);
  idle_expiry(x, next);
  idle_garbage(x);
  retire_trimmed(next, full);
  retire(x, base, next, frozen, !trim || x->rounds.ingesting);
  x->txns.let_go(x);
  epoch_wait(&x->epoch, epoch_stamp(&x->epoch));
  super_unref(old);
  epoch_reclaim(&x->epoch);
  packs_reclaim(x->packs);
  if (!had_frozen) return REMIXDB_OK;
  memtables_give_back(&x->memtables);  // if it is still there, readers keep it
  // A flush that waits for the round also waits until the round has given room back.
  xdb_lock(x);
  x->rounds.nr_installed++;
  xdb_unlock_changed(x);
  return REMIXDB_OK;
}

enum remixdb_status round_install(struct xdb *x, struct version *next, bool had_frozen, uint64_t *when_out) {
  pthread_mutex_lock(&x->installing);
  const enum remixdb_status s = install(x, next, had_frozen, true, NULL, when_out);
  pthread_mutex_unlock(&x->installing);
  err_cleanup_begin();  // dropping the version may fail to remove files
  version_unref(next);
  err_cleanup_end();
  return s;
}

// Makes a version of the same trees and installs it. names: those of the spaces; NULL: they stay.
static enum remixdb_status install_copy(struct xdb *x, struct names *names, const struct values_moved *moved,
                                        bool trim) {
  struct version *next = NULL;
  uint64_t when;
  pthread_mutex_lock(&x->installing);
  xdb_lock(x);
  enum remixdb_status s = version_copy(xdb_super(x)->version, &next);
  xdb_unlock(x);
  if (s == REMIXDB_OK && names) {
    names_unref(next->names);
    names_ref(next->names = names);
  }
  if (s == REMIXDB_OK) s = install(x, next, false, trim, moved, &when);
  pthread_mutex_unlock(&x->installing);
  err_cleanup_begin();
  version_unref(next);
  err_cleanup_end();
  return s;
}

enum remixdb_status install_names(struct xdb *x, struct names *names) { return install_copy(x, names, NULL, false); }

enum remixdb_status install_trim(struct xdb *x) { return install_copy(x, NULL, NULL, true); }

enum remixdb_status install_moved(struct xdb *x, const struct values_moved *moved) {
  return install_copy(x, NULL, moved, true);
}

// ---- ingests (store/ingest.h has the invariants)

struct placing {
  struct xdb *x;
  struct round_ingest *in;
  struct handover h;
  struct version *next, *base, *full;
  struct super *old;    // the super before
  struct super *fresh;  // with the ingest and a new memtable
  struct super *same;   // with the ingest and the memtable that there is
  struct super *again;  // if the ingest fails when the log has switched: that memtable is frozen, as by round_freeze
};

// The part for which writers need not wait.
static enum remixdb_status place_prepare(struct placing *p, struct worker *w) {
  struct xdb *const x = p->x;
  struct memtable *to;
  enum remixdb_status s = memtable_create(&x->memtables, &to);
  if (s != REMIXDB_OK) return s;
  p->fresh = super_create(to, NULL, p->next);
  p->again = super_create(to, p->old->active, p->old->version);
  p->same = super_create(p->old->active, NULL, p->next);
  memtable_unref(to);
  struct super *const other = prepare(x, p->next, false, true, &p->base, &p->full);  // for the version's fields
  if (other) super_unref(other);
  if (!other || !p->fresh || !p->again || !p->same) return REMIXDB_NOMEM;
  // The names stay as they are until the end: only an install changes them.
  if (p->in->tree == TREE_SPACES && !names_have_key(p->next->names, p->in->low))
    return err_set(REMIXDB_GONE, "the space is dropped");
  s = values_of_next(x, p->next, p->base, &(struct values_new){.ingest = p->in->values});
  if (s == REMIXDB_OK) s = value_log_sync(&x->compact.values);
  if (s == REMIXDB_OK) s = value_log_sync(p->in->values);
  if (s != REMIXDB_OK) return s;
  p->h = (struct handover){.x = x,
                           .w = w,
                           .from = p->old,
                           .above = p->fresh,
                           .tree = p->in->tree,
                           .low = p->in->low,
                           .high = p->in->high,
                           .unnumbered = p->in->unnumbered,
                           .mark = p->in->mark};
  return handover_begin(&p->h);
}

// While the log is held. A new memtable and a new segment take the records.
static enum remixdb_status place_over(struct placing *p) {
  enum remixdb_status s = handover_take(&p->h);
  if (s == REMIXDB_OK) s = handover_switch(&p->h);
  if (s != REMIXDB_OK) return s;
  p->next->log_gen = p->h.to->gen;
  p->next->log_seq = p->h.to->base_seq;
  return REMIXDB_OK;
}

static enum remixdb_status place_held(struct placing *p, struct worker *w) {
  struct xdb *const x = p->x;
  bool stays = false;
  enum remixdb_status s = handover_stays(&p->h, &stays);
  if (s == REMIXDB_OK) s = stays ? handover_mark(&p->h) : place_over(p);
  if (s == REMIXDB_OK) s = p->in->number(p->in->arg, w, p->h.seq);
  if (s == REMIXDB_OK) s = wal_sync(x->wal);
  if (s == REMIXDB_OK) s = name_log(x, p->next);
  return s == REMIXDB_OK ? make_durable(x, p->next, &p->in->unknown) : s;
}

// Publishes the ingest's number, while the log is held, and replaces the super; not if the ingest has failed and the
// memtable stays. Returns whether the super was replaced.
static bool place_publish(struct placing *p, bool good, uint64_t *when_out) {
  struct xdb *const x = p->x;
  const bool over = p->h.switched;
  struct super **const v = good ? over ? &p->fresh : &p->same : over ? &p->again : NULL;
  if (!over && !p->h.marked) return false;
  xdb_lock(x);
  wal_lock(x->wal);
  assert(xdb_super(x) == p->old);
  if (v) {
    (*v)->since = good ? p->h.last : p->old->since;
    (*v)->least = p->h.last;
    atomic_store_explicit(&x->super, *v, memory_order_release);
    *v = NULL;
  }
  atomic_store_explicit(&x->published, p->h.last, memory_order_release);
  wal_unlock(x->wal);
  *when_out = time_ns();
  if (good && over) renewed(x);
  if (!good && over) froze(x);
  xdb_unlock(x);
  return v != NULL;
}

// The store's reference to the super before goes.
static void place_reclaim(struct placing *p) {
  struct xdb *const x = p->x;
  x->txns.let_go(x);
  epoch_wait(&x->epoch, epoch_stamp(&x->epoch));
  super_unref(p->old);
  epoch_reclaim(&x->epoch);
  packs_reclaim(x->packs);
}

static enum remixdb_status place(struct placing *p, struct worker *w, uint64_t *when_out) {
  struct xdb *const x = p->x;
  enum remixdb_status s = place_prepare(p, w);
  if (s == REMIXDB_OK) s = wal_sync(x->wal);  // little is left for the sync under the hold
  if (s != REMIXDB_OK) return s;
  wal_hold(x->wal);
  s = place_held(p, w);
  struct err_saved why;
  err_save(&why, s);
  const bool replaced = place_publish(p, s == REMIXDB_OK, when_out);
  wal_unhold(x->wal);
  err_cleanup_begin();
  if (s == REMIXDB_OK) {
    const bool over = p->h.switched;
    if (over) recycle_log(x, p->next->log_gen);
    idle_expiry(x, p->next);
    idle_garbage(x);
    retire_trimmed(p->next, p->full);
    retire(x, p->base, p->next, over ? p->old->active : NULL, false);
  }
  if (replaced) place_reclaim(p);
  err_cleanup_end();
  return err_raise(&why);
}

enum remixdb_status round_install_ingest(struct xdb *x, struct worker *w, struct version *next, struct round_ingest *in,
                                         uint64_t *when_out) {
  struct placing p = {.x = x, .in = in, .next = next};
  pthread_mutex_lock(&x->installing);
  xdb_lock(x);
  p.old = xdb_super(x);
  super_ref(p.old);
  xdb_unlock(x);
  assert(!p.old->frozen);
  in->unknown = false;
  const enum remixdb_status s = place(&p, w, when_out);
  struct err_saved why;
  err_save(&why, s);
  err_cleanup_begin();
  if (p.h.x) handover_end(&p.h);
  if (s != REMIXDB_OK) install_failed(x, p.old->version, next, p.full, in->unknown, &why);
  super_unref(p.fresh);
  super_unref(p.same);
  super_unref(p.again);
  super_unref(p.old);
  version_unref(next);
  err_cleanup_end();
  pthread_mutex_unlock(&x->installing);
  if (s != REMIXDB_OK) workers_kick(x->workers);  // a memtable may have been frozen
  return err_raise(&why);
}

// ---- edits

// Under x->installing.
static enum remixdb_status edit_save(struct xdb *x) {
  if (!x->rounds.unsaved) return REMIXDB_OK;
  bool unknown;
  xdb_lock(x);
  struct version *const v = xdb_super(x)->version;  // stays: whoever replaces it needs x->installing
  xdb_unlock(x);
  const enum remixdb_status s = make_durable(x, v, &unknown);
  if (s == REMIXDB_OK) {
    retire(x, v, v, NULL, false);
  } else if (unknown) {
    struct err_saved why;
    err_save(&why, s);
    xdb_fail(x, &why);
  }
  return s;
}

enum remixdb_status round_edit_save(struct xdb *x) {
  pthread_mutex_lock(&x->installing);
  const enum remixdb_status s = edit_save(x);
  pthread_mutex_unlock(&x->installing);
  return s;
}

// Commits and publishes. *old_out: the replaced super, with the store's reference.
static enum remixdb_status edit_publish(struct xdb *x, struct version *next, const struct memtable *frozen,
                                        round_commit_fn commit, void *arg, struct super **old_out) {
  struct version *base;
  names_unref(next->names);
  next->names = NULL;
  struct super *const fresh = prepare(x, next, false, false, &base, NULL);
  enum remixdb_status s = fresh ? values_of_next(x, next, base, &(struct values_new){0}) : REMIXDB_NOMEM;
  if (s == REMIXDB_OK) s = name_log(x, next);
  if (s == REMIXDB_OK) {
    xdb_lock(x);
    struct super *const old = *old_out = xdb_super(x);
    super_follow(fresh, old);
    s = old->frozen == frozen ? commit(arg, old, fresh) : REMIXDB_ABORTED;
    xdb_unlock(x);
  }
  if (s == REMIXDB_OK) {
    version_ref(x->rounds.unsaved = base);
  } else if (fresh) {
    err_cleanup_begin();
    super_unref(fresh);
    err_cleanup_end();
  }
  return s;
}

enum remixdb_status round_edit(struct xdb *x, struct version *next, const struct memtable *frozen,
                               round_commit_fn commit, void *arg, bool *there_out) {
  struct super *old;
  pthread_mutex_lock(&x->installing);
  enum remixdb_status s = edit_publish(x, next, frozen, commit, arg, &old);
  *there_out = s == REMIXDB_OK;
  if (s == REMIXDB_OK) {
    s = edit_save(x);
    struct err_saved why;
    err_save(&why, s);
    idle_garbage(x);
    x->txns.let_go(x);
    epoch_wait(&x->epoch, epoch_stamp(&x->epoch));
    super_unref(old);
    epoch_reclaim(&x->epoch);
    packs_reclaim(x->packs);
    s = err_raise(&why);
    if (s == REMIXDB_NOSPACE || s == REMIXDB_NOMEM) {
      xdb_say(x, "a range was deleted, and the log says so, but CURRENT could not be written yet: %s", why.msg);
      s = REMIXDB_OK;
    }
  }
  pthread_mutex_unlock(&x->installing);
  return s;
}
