// SPDX-License-Identifier: Apache-2.0
#include "xdb.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define RETRY_NS 1000000000ull       // between two tries of a round that failed for want of space or memory
#define REST_NS 1000000000ull        // without a write after a sync: then the log is marked
#define WAL_STEP_MIN (256u << 10)
#define REPLAY_SEGMENTS_MAX 4u       // with more segments to replay the memtable is compacted soon after opening; each opening adds one

// A sanitizer sees the use of a dropped memtable only when its memory goes back to the system.
#define KEEP_CHUNKS (!LIB_SANITIZED)

// ---- memtables and views

static enum remixdb_status memtable_create(struct xdb *x, struct memtable **out) {
  struct memtable *m = mem_calloc(1, sizeof(*m));
  if (!m) return REMIXDB_NOMEM;
  const enum remixdb_status s = wh_create(&x->epoch, x->chunks.chunk_size, &x->chunks, &m->wh);
  if (s != REMIXDB_OK) {
    mem_free(m);
    return s;
  }
  atomic_init(&m->refs, 1);
  m->xdb = x;
  pthread_mutex_lock(&x->pins_lock);
  m->next = x->memtables;
  if (m->next) m->next->prev = m;
  x->memtables = m;
  pthread_mutex_unlock(&x->pins_lock);
  *out = m;
  return REMIXDB_OK;
}

static void memtable_unref(struct memtable *m) {
  if (!m || atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1) return;
  struct xdb *x = m->xdb;
  pthread_mutex_lock(&x->pins_lock);
  if (m->next) m->next->prev = m->prev;
  if (m->prev) m->prev->next = m->next;
  else x->memtables = m->next;
  pthread_mutex_unlock(&x->pins_lock);
  wh_destroy(m->wh);
  mem_free(m);
}

// Takes references of its own to all three.
static struct view *view_create(struct memtable *active, struct memtable *frozen, struct version *version) {
  struct view *v = mem_calloc(1, sizeof(*v));
  if (!v) return NULL;
  atomic_init(&v->refs, 1);
  v->active = active;
  v->frozen = frozen;
  v->version = version;
  atomic_fetch_add_explicit(&active->refs, 1, memory_order_relaxed);
  if (frozen) atomic_fetch_add_explicit(&frozen->refs, 1, memory_order_relaxed);
  version_ref(version);
  return v;
}

static void view_unref(struct view *v) {
  if (!v || atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) != 1) return;
  memtable_unref(v->active);
  memtable_unref(v->frozen);
  version_unref(v->version);
  mem_free(v);
}

static void view_reclaim(struct epoch_item *item, void *arg) {
  (void)arg;
  view_unref((struct view *)item);
}

static struct view *view_of(struct xdb *x) { return atomic_load_explicit(&x->view, memory_order_acquire); }

void xdb_say(struct xdb *x, const char *fmt, ...) {
  if (!x->opts.logger) return;
  char line[ERR_MSG_MAX + 128];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(line, sizeof(line), fmt, ap);
  va_end(ap);
  x->opts.logger(x->opts.logger_priv, line);
}

// From here on no write is accepted. The first reason stays.
static void set_failed(struct xdb *x, const struct err_saved *why) {
  pthread_mutex_lock(&x->lock);
  if (atomic_load_explicit(&x->failed, memory_order_relaxed) == 0) {
    x->error = *why;
    atomic_store_explicit(&x->failed, (uint32_t)why->status, memory_order_release);
  }
  pthread_cond_broadcast(&x->changed);
  pthread_mutex_unlock(&x->lock);
  xdb_say(x, "writes are refused from now on: %s", why->msg);
}

// `error` is written once, before `failed` is release-stored.
static enum remixdb_status raise_failed(struct xdb *x) {
  return atomic_load_explicit(&x->failed, memory_order_acquire) ? err_raise(&x->error) : REMIXDB_OK;
}

// ---- freezing and rounds

struct switching {
  struct xdb *x;
  struct view *next;
};

// Under the log's lock: what was committed before is in the old memtable and the old segment, all after in the new ones.
static void switch_view(void *arg, uint64_t gen) {
  struct switching *s = arg;
  s->next->active->gen = gen;
  s->next->active->base_seq = atomic_load_explicit(&s->x->published, memory_order_relaxed);
  atomic_store_explicit(&s->x->view, s->next, memory_order_release);
}

// lock is held; nothing is frozen.
static enum remixdb_status freeze(struct xdb *x) {
  struct view *old = view_of(x);
  struct memtable *fresh;
  enum remixdb_status s = memtable_create(x, &fresh);
  if (s != REMIXDB_OK) return s;
  struct switching sw = {x, view_create(fresh, old->active, old->version)};
  memtable_unref(fresh);  // the view has its own reference now
  if (!sw.next) return REMIXDB_NOMEM;
  if ((s = wal_switch(x->wal, switch_view, &sw)) != REMIXDB_OK) {
    view_unref(sw.next);
    return s;
  }
  atomic_store_explicit(&x->round_began_ns, time_ns(), memory_order_relaxed);
  atomic_store_explicit(&x->compact.progress, 0, memory_order_relaxed);
  atomic_store_explicit(&x->compact.work, 0, memory_order_relaxed);
  atomic_store_explicit(&x->compacting, true, memory_order_release);
  x->round_error.status = REMIXDB_OK;
  x->nr_frozen++;
  epoch_retire(&x->epoch, &old->item, view_reclaim, NULL);
  return REMIXDB_OK;
}

// Makes the round's version the store's: log and directory first, then CURRENT, then the view; then what is not needed goes.
static enum remixdb_status install(struct xdb *x, struct version *next) {
  struct view *old = view_of(x);  // only a round replaces a view that has a frozen memtable, and this is it
  struct version *base = old->version;
  next->store_id = x->store_id;
  next->number = base->number + 1;
  next->next_file = atomic_load_explicit(&x->compact.next_file, memory_order_relaxed);
  next->log_gen = old->active->gen;
  next->log_seq = old->active->base_seq;
  struct view *fresh = view_create(old->active, NULL, next);
  enum remixdb_status s = fresh ? wal_sync(x->wal) : REMIXDB_NOMEM;
  if (s == REMIXDB_OK) s = env_sync_dir(x->env, x->dir);
  bool unknown = false;
  if (s == REMIXDB_OK) {
    s = version_save(&x->ctx, next);
    unknown = s != REMIXDB_OK && s != REMIXDB_NOSPACE && s != REMIXDB_NOMEM;
  }
  if (s != REMIXDB_OK) {
    struct err_saved why;
    err_save(&why, s);
    // when it is unknown which CURRENT is there after a crash neither's files may go: no more writes, and the next opening decides
    if (unknown) set_failed(x, &why);
    else compact_retire(next, base);  // the new files are not named by anything
    view_unref(fresh);
    return err_raise(&why);
  }
  pthread_mutex_lock(&x->lock);
  atomic_store_explicit(&x->view, fresh, memory_order_release);
  atomic_store_explicit(&x->compacting, false, memory_order_release);
  x->flushing = false;
  pthread_cond_broadcast(&x->changed);
  pthread_mutex_unlock(&x->lock);
  compact_retire(base, next);
  const uint64_t log_gen = next->log_gen;
  epoch_wait(&x->epoch, epoch_stamp(&x->epoch));
  view_unref(old);
  epoch_reclaim(&x->epoch);
  if ((s = wal_release(x->wal, log_gen)) != REMIXDB_OK) xdb_say(x, "an old log segment could not be recycled: %s", err_msg());
  // have the next segment ready, so that no writer waits for it; a failure shows again, and is reported, when it is needed
  if ((s = wal_prepare(x->wal)) != REMIXDB_OK) xdb_say(x, "the next log segment could not be prepared: %s", err_msg());
  // who waits for the round waits for the room that it gives back, too
  pthread_mutex_lock(&x->lock);
  x->nr_installed++;
  pthread_cond_broadcast(&x->changed);
  pthread_mutex_unlock(&x->lock);
  return REMIXDB_OK;
}

// A part of xdb_compact's work, for one round. It is the round's from when it was taken until it is done.
struct xdb_whole {
  struct compact_whole work;
  bool taken, done;  // guarded by xdb.lock
};

static void end_whole(struct xdb *x, struct xdb_whole *whole) {
  pthread_mutex_lock(&x->lock);
  whole->done = true;
  pthread_cond_broadcast(&x->changed);
  pthread_mutex_unlock(&x->lock);
}

static void run_round(void *arg, struct worker *w) {
  struct xdb *x = arg;
  struct xdb_whole *whole = NULL;
  pthread_mutex_lock(&x->lock);
  struct view *v = view_of(x);
  const bool wanted = v->frozen && atomic_load_explicit(&x->failed, memory_order_relaxed) == 0;
  x->round_error.status = REMIXDB_OK;
  const bool hand_back_some = !x->flushing;
  if (wanted && x->whole) {
    whole = x->whole;
    whole->taken = true;
    x->whole = NULL;
  }
  pthread_mutex_unlock(&x->lock);
  if (!wanted) return;
  const uint64_t began = time_ns();
  atomic_store_explicit(&x->round_began_ns, began, memory_order_relaxed);
  struct version *next;
  enum remixdb_status s = compact_round(&x->compact, w, v->version, v->frozen->wh, hand_back_some, whole ? &whole->work : NULL, &next);
  if (s == REMIXDB_OK) {
    s = install(x, next);
    version_unref(next);
  }
  if (s == REMIXDB_OK) {
    if (whole) end_whole(x, whole);
    const uint64_t took = time_ns() - began;
    atomic_store_explicit(&x->last_round_ns, took, memory_order_relaxed);
    xdb_say(x, "compaction: %.3f s", (double)took * 1e-9);
    return;
  }
  struct err_saved why;
  err_save(&why, s);
  if (s != REMIXDB_NOSPACE && s != REMIXDB_NOMEM) {
    set_failed(x, &why);
    if (whole) end_whole(x, whole);
    return;
  }
  pthread_mutex_lock(&x->lock);
  x->round_error = why;
  x->round_failed_ns = time_ns();
  if (whole) whole->done = true;
  pthread_cond_broadcast(&x->changed);
  pthread_mutex_unlock(&x->lock);
  xdb_say(x, "compaction failed and will be tried again: %s", why.msg);
}

// Whether it takes no more; `batch` bytes of memory are to come at once (0: one record). A large batch may end beyond the limit, but not by more than a quarter:
// then it gets a memtable of its own.
static bool memtable_full(struct xdb *x, const struct memtable *m, size_t batch) {
  const size_t used = wh_memory(m->wh), limit = x->memtable_limit;
  if (used >= limit || wal_segment_bytes(x->wal) >= x->wal_limit) return true;
  return unlikely(batch != 0) && used > limit / 4 && used + batch > limit + limit / 4;
}

// Lock is held and stays so, but is let go while waiting: until no memtable is frozen, or it is known that this will not be soon.
static enum remixdb_status wait_for_round(struct xdb *x) {
  while (atomic_load_explicit(&x->compacting, memory_order_relaxed)) {
    enum remixdb_status s = raise_failed(x);
    if (s != REMIXDB_OK) return s;
    if (x->round_error.status != REMIXDB_OK) {
      if (time_ns() - x->round_failed_ns < RETRY_NS) return err_raise(&x->round_error);
      x->round_error.status = REMIXDB_OK;
      pthread_mutex_unlock(&x->lock);
      workers_kick(x->workers);
      pthread_mutex_lock(&x->lock);
      continue;
    }
    (void)cond_wait_ns(&x->changed, &x->lock, RETRY_NS);
  }
  return REMIXDB_OK;
}

// Which active memtable is frozen. Even an empty one can have something to be rid of: the log's segments before its own.
enum freeze_when { FREEZE_FULL, FREEZE_USED, FREEZE_ANY };

static bool freeze_wanted(struct xdb *x, enum freeze_when when, size_t batch) {
  const struct memtable *m = view_of(x)->active;
  return when == FREEZE_ANY || (when == FREEZE_USED ? wh_count(m->wh) != 0 : memtable_full(x, m, batch));
}

// Called outside of any epoch.
static enum remixdb_status make_room(struct xdb *x, enum freeze_when when, size_t batch) {
  bool kick = false;
  pthread_mutex_lock(&x->lock);
  enum remixdb_status s = raise_failed(x);
  if (s == REMIXDB_OK) s = wait_for_round(x);
  if (s == REMIXDB_OK && freeze_wanted(x, when, batch)) {
    s = freeze(x);
    kick = s == REMIXDB_OK;
  }
  pthread_mutex_unlock(&x->lock);
  if (kick) workers_kick(x->workers);
  return s;
}

enum remixdb_status xdb_wait_idle(struct xdb *x) {
  if (x->opts.read_only) return REMIXDB_OK;
  pthread_mutex_lock(&x->lock);
  const enum remixdb_status s = wait_for_round(x);
  pthread_mutex_unlock(&x->lock);
  return s;
}

// Lock is held and stays so, but is let go while waiting: until memtable number `nr` is in tables, or its round has failed. `whole` (NULL: none), which a round works
// on from when it is taken, is the caller's again.
static enum remixdb_status wait_installed(struct xdb *x, uint64_t nr, const struct xdb_whole *whole) {
  for (;;) {
    if (whole && whole->taken && !whole->done) {
      (void)cond_wait_ns(&x->changed, &x->lock, RETRY_NS);
      continue;
    }
    if (x->nr_installed >= nr) return REMIXDB_OK;
    const enum remixdb_status s = raise_failed(x);
    if (s != REMIXDB_OK) return s;
    if (x->round_error.status != REMIXDB_OK) return err_raise(&x->round_error);
    (void)cond_wait_ns(&x->changed, &x->lock, RETRY_NS);
  }
}

// Freezes the active memtable, when it is wanted, and waits for its round, which hands nothing back and does what `whole` (NULL: nothing) asks for.
static enum remixdb_status flush_round(struct xdb *x, enum freeze_when when, struct xdb_whole *whole) {
  if (x->opts.read_only) return err_set(REMIXDB_READONLY, "%s: opened with read_only", x->dir);
  pthread_mutex_lock(&x->lock);
  enum remixdb_status s = raise_failed(x);
  if (s == REMIXDB_OK) s = wait_for_round(x);
  const bool wanted = s == REMIXDB_OK && freeze_wanted(x, when, 0);
  if (wanted && (s = freeze(x)) == REMIXDB_OK) {
    const uint64_t nr = x->nr_frozen;
    x->flushing = true;
    x->whole = whole;
    pthread_mutex_unlock(&x->lock);
    workers_kick(x->workers);
    pthread_mutex_lock(&x->lock);
    s = wait_installed(x, nr, whole);
    if (x->whole == whole) x->whole = NULL;
  }
  pthread_mutex_unlock(&x->lock);
  return s;
}

enum remixdb_status xdb_flush(struct xdb *x) { return flush_round(x, FREEZE_USED, NULL); }

// Log files that are there to be recycled go, and the active one, which has grown, is replaced by a new one: whoever compacts wants room.
static enum remixdb_status shrink_log(struct xdb *x) {
  enum remixdb_status s = wal_shed(x->wal);
  if (s == REMIXDB_OK) s = flush_round(x, FREEZE_ANY, NULL);
  return s == REMIXDB_OK ? wal_shed(x->wal) : s;
}

enum remixdb_status xdb_compact(struct xdb *x) {
  struct xdb_whole *whole = mem_calloc(1, sizeof(*whole));
  if (!whole) return REMIXDB_NOMEM;
  // each round takes about as long as to write a few memtables: writers wait for a round at most when the next memtable is full
  whole->work.budget = 4 * x->memtable_limit;
  enum remixdb_status s;
  do {
    whole->taken = whole->done = false;
    s = flush_round(x, FREEZE_ANY, whole);
  } while (s == REMIXDB_OK && !whole->work.end);
  mem_free(whole);
  if (s == REMIXDB_OK && shrink_log(x) != REMIXDB_OK) xdb_say(x, "the log could not be made smaller: %s", err_msg());
  return s;
}

// ---- the pace of writers
//
// While a memtable is being compacted the next one should fill no faster than the compaction advances. From the round's progress follows the time it still
// needs; spread over the room that is left it gives the time that a quantum of new data may take. Writers draw from one clock, so that it holds for all of
// them together. A writer that comes later than the clock says waits for nothing.

#define PACE_QUANTUM (16u << 10)
#define PACE_NAP_MIN 50000u     // shorter naps cost more than they even out
#define PACE_NAP_MAX 5000000u

static void stalled(struct xdb *x, uint64_t ns) {
  atomic_fetch_add_explicit(&x->stall_ns, ns, memory_order_relaxed);
  uint64_t max = atomic_load_explicit(&x->stall_max_ns, memory_order_relaxed);
  while (ns > max && !atomic_compare_exchange_weak_explicit(&x->stall_max_ns, &max, ns, memory_order_relaxed, memory_order_relaxed)) {}
}

// Nanoseconds the round still needs, about.
static double round_remaining(struct xdb *x, uint64_t now) {
  const uint64_t began = atomic_load_explicit(&x->round_began_ns, memory_order_relaxed);
  const uint64_t elapsed = now > began ? now - began : 0;  // it may have begun since
  const uint64_t work = atomic_load_explicit(&x->compact.work, memory_order_relaxed);
  const uint64_t done = atomic_load_explicit(&x->compact.progress, memory_order_relaxed);
  if (work && done > work / 8) return done < work ? (double)elapsed * (double)(work - done) / (double)done : 0;
  // too early to tell: as long as the last one took
  const uint64_t last = atomic_load_explicit(&x->last_round_ns, memory_order_relaxed);
  return last > elapsed ? (double)(last - elapsed) : 0;
}

static void pace(struct xdb *x, struct xdb_ref *r) {
  const uint64_t quantum = r->debt;
  r->debt = 0;
  epoch_enter(&x->epoch, &r->slot);
  const size_t used = wh_memory(view_of(x)->active->wh);
  epoch_exit(&r->slot);
  if (used < x->memtable_limit / 8) return;
  const uint64_t now = time_ns();
  const uint64_t room = used < x->memtable_limit ? x->memtable_limit - used : 1;
  const double share = round_remaining(x, now) * (double)quantum / (double)room;
  const uint64_t interval = share < PACE_NAP_MAX ? (uint64_t)share : PACE_NAP_MAX;
  uint64_t at = atomic_load_explicit(&x->pace_at_ns, memory_order_relaxed), mine;
  do {
    // nobody waits longer than the longest nap, so a clock further ahead, of many writers, would only slow the rounds to come
    mine = at <= now ? now : at - now < PACE_NAP_MAX ? at : now + PACE_NAP_MAX;
  } while (!atomic_compare_exchange_weak_explicit(&x->pace_at_ns, &at, mine + interval, memory_order_relaxed, memory_order_relaxed));
  const uint64_t nap = mine - now;
  if (nap < PACE_NAP_MIN) return;
  time_sleep_ns(nap);
  stalled(x, nap);
}

// ---- looking up

// What the ref reads: first the view, then the moment (X2). Inside an epoch.
static inline struct view *ref_view(const struct xdb_ref *r) { return likely(!r->snapshot) ? view_of(r->xdb) : r->snapshot->view; }
static inline uint64_t ref_moment(const struct xdb_ref *r) {
  return likely(!r->snapshot) ? atomic_load_explicit(&r->xdb->published, memory_order_acquire) : r->snapshot->moment;
}

// What lies below the active memtable, seen at the moment: the frozen one, then the partitions. *rec_out may be a tombstone; it holds until the epoch is left.
static inline enum remixdb_status lookup_below(const struct view *v, struct kref key, uint64_t hash, uint64_t moment, struct sst_hold *h, struct kv_rec *rec_out) {
  const struct wh_ver *ver = v->frozen ? wh_get(v->frozen->wh, key, hash, moment) : NULL;
  if (ver) {
    *rec_out = (struct kv_rec){NULL, ver->val, 0, ver->vlen, ver->tomb};
    return REMIXDB_OK;
  }
  struct remix *remix = v->version->parts[version_find(v->version, key)]->remix;
  return remix ? remix_get(remix, key, hash, h, rec_out) : REMIXDB_NOTFOUND;
}

// ---- writing

// The key's leaf is locked. Links the new version, logs and commits it; on success the leaf and the epoch have been given up, on failure nothing is linked.
// REMIXDB_ABORTED: the memtable was frozen meanwhile.
static enum remixdb_status commit(struct xdb *x, struct epoch_slot *es, const struct memtable *m, struct wh_slot *slot, const void *val, uint32_t vlen, bool tomb) {
  enum remixdb_status s = wh_link(slot, val, vlen, tomb);
  if (unlikely(s != REMIXDB_OK)) return s;
  uint64_t gen;
  if ((s = wal_begin(x->wal, kv_rec_size(slot->key.len, vlen, tomb), &gen)) == REMIXDB_OK) {
    if (likely(gen == m->gen)) {
      const uint64_t seq = wal_put(x->wal, slot->key, val, vlen, tomb);
      wh_stamp(slot, seq);
      atomic_store_explicit(&x->published, seq, memory_order_release);
      wh_unlock(slot);
      epoch_exit(es);
      wal_end(x->wal);  // may write a buffer out: nobody need wait for the leaf, or for this epoch, meanwhile
      return REMIXDB_OK;
    }
    wal_end(x->wal);
    s = REMIXDB_ABORTED;
  }
  wh_unlink(slot);
  return s;
}

// One try. REMIXDB_ABORTED: nothing was done; the memtable is full, or was frozen meanwhile (*full_out says which). handed_back: a full memtable takes it all the
// same, and nothing is done when it has the key.
static enum remixdb_status write_once(struct xdb *x, struct epoch_slot *es, struct kref key, uint64_t hash, const void *val, uint32_t vlen, bool tomb,
                                      bool handed_back, bool *full_out) {
  struct wh_slot slot;
  epoch_enter(&x->epoch, es);
  struct memtable *m = view_of(x)->active;
  *full_out = !handed_back && memtable_full(x, m, 0);
  if (unlikely(*full_out)) {
    epoch_exit(es);
    return REMIXDB_ABORTED;
  }
  wh_lock(m->wh, key, hash, &slot);
  enum remixdb_status s = REMIXDB_OK;
  if (!handed_back || !wh_slot_newest(&slot)) {
    s = commit(x, es, m, &slot, val, vlen, tomb);
    if (likely(s == REMIXDB_OK)) return s;
  }
  wh_unlock(&slot);
  epoch_exit(es);
  return s;
}

static enum remixdb_status write_many_once(struct xdb *x, struct epoch_slot *es, const struct batch_op *ops, size_t nr, struct wh_link *links, size_t log_bytes,
                                           size_t memory, bool *full_out) {
  struct wh_many many;
  epoch_enter(&x->epoch, es);
  struct memtable *m = view_of(x)->active;
  *full_out = memtable_full(x, m, memory);
  if (*full_out) {
    epoch_exit(es);
    return REMIXDB_ABORTED;
  }
  wh_many_init(&many, m->wh);
  enum remixdb_status s = REMIXDB_OK;
  size_t linked = 0;
  for (; linked < nr && s == REMIXDB_OK; linked += s == REMIXDB_OK)
    s = wh_many_link(&many, ops[linked].key, ops[linked].hash, ops[linked].val, ops[linked].vlen, ops[linked].tomb, &links[linked]);
  uint64_t gen;
  if (s == REMIXDB_OK && (s = wal_begin(x->wal, log_bytes, &gen)) == REMIXDB_OK && unlikely(gen != m->gen)) {
    wal_end(x->wal);
    s = REMIXDB_ABORTED;
  }
  const bool logged = s == REMIXDB_OK;
  if (logged) {
    uint64_t seq = 0;
    for (size_t i = 0; i < nr; i++) {
      seq = wal_put(x->wal, ops[i].key, ops[i].val, ops[i].vlen, ops[i].tomb);
      wh_link_stamp(&links[i], seq);
    }
    // one store makes all of it visible: until then every moment is before the first of the numbers
    atomic_store_explicit(&x->published, seq, memory_order_release);
  } else {
    while (linked > 0) wh_many_unlink(&many, &links[--linked]);
  }
  wh_many_unlock(&many);
  epoch_exit(es);
  if (logged) wal_end(x->wal);
  return s;
}

static enum remixdb_status hand_back(void *arg, struct worker *w, const struct kv_rec *rec) {
  struct xdb *x = arg;
  const struct kref key = kref(rec->key, rec->klen);
  // no memtable can be frozen while one is: the first try is never refused for that
  bool full;
  return write_once(x, &w->slot, key, hash64(key.ptr, key.len), rec->val, rec->vlen, rec->tomb, true, &full);
}

static void wake_syncer(struct xdb *x) {
  if (atomic_load_explicit(&x->dirty, memory_order_relaxed) || atomic_exchange_explicit(&x->dirty, true, memory_order_acq_rel)) return;
  pthread_mutex_lock(&x->sync_lock);
  pthread_cond_signal(&x->sync_wake);
  pthread_mutex_unlock(&x->sync_lock);
}

static enum remixdb_status check_writable(const struct xdb_ref *r) {
  struct xdb *x = r->xdb;
  if (unlikely(r->snapshot)) return err_set(REMIXDB_READONLY, "%s: a snapshot is not written to", x->dir);
  if (unlikely(x->opts.read_only)) return err_set(REMIXDB_READONLY, "%s: opened with read_only", x->dir);
  return REMIXDB_OK;
}

// Before a try to write.
static inline enum remixdb_status check_failed(struct xdb *x) {
  return likely(atomic_load_explicit(&x->failed, memory_order_relaxed) == 0) ? REMIXDB_OK : raise_failed(x);
}

// The memtable was full, for a batch of so many bytes or for one record (0).
static enum remixdb_status wait_for_room(struct xdb *x, size_t batch) {
  const uint64_t began = time_ns();
  const enum remixdb_status s = make_room(x, FREEZE_FULL, batch);
  if (s == REMIXDB_OK) stalled(x, time_ns() - began);
  return s;
}

// After a write of so many bytes.
static enum remixdb_status written(struct xdb_ref *r, size_t nbytes) {
  struct xdb *x = r->xdb;
  if (unlikely(atomic_load_explicit(&x->compacting, memory_order_relaxed)) && (r->debt += nbytes) >= PACE_QUANTUM) pace(x, r);
  if (x->opts.sync == REMIXDB_SYNC_EACH) return xdb_sync(r);
  if (x->has_syncer) wake_syncer(x);
  return REMIXDB_OK;
}

enum remixdb_status xdb_put(struct xdb_ref *r, struct kref key, const void *val, uint32_t vlen, bool tomb) {
  struct xdb *x = r->xdb;
  enum remixdb_status s = check_writable(r);
  if (unlikely(s != REMIXDB_OK)) return s;
  const uint64_t hash = hash64(key.ptr, key.len);
  bool full;
  do {
    if ((s = check_failed(x)) != REMIXDB_OK) return s;
    s = write_once(x, &r->slot, key, hash, val, vlen, tomb, false, &full);
    if (unlikely(full)) {
      if ((s = wait_for_room(x, 0)) != REMIXDB_OK) return s;
      s = REMIXDB_ABORTED;
    }
  } while (unlikely(s == REMIXDB_ABORTED));
  return likely(s == REMIXDB_OK) ? written(r, key.len + vlen + sizeof(struct wh_ver)) : s;
}

enum remixdb_status xdb_write(struct xdb_ref *r, const struct xdb_batch *b) {
  struct xdb *x = r->xdb;
  enum remixdb_status s = check_writable(r);
  if (s == REMIXDB_OK) s = check_failed(x);
  if (s != REMIXDB_OK) return s;
  struct batch_op *ops;
  size_t nr;
  if ((s = batch_sorted(b, &ops, &nr)) != REMIXDB_OK) return s;
  size_t log_bytes = 0, memory = 0;
  for (size_t i = 0; i < nr; i++) {
    log_bytes += kv_rec_size(ops[i].key.len, ops[i].vlen, ops[i].tomb);
    memory += wh_record_memory(ops[i].key.len, ops[i].vlen);
  }
  struct wh_link *links = mem_alloc((nr ? nr : 1) * sizeof(*links));
  if (!links) s = REMIXDB_NOMEM;
  else if (memory > x->memtable_limit)
    s = err_set(REMIXDB_TOOBIG, "a batch of %zu keys takes %zu bytes of memory, the memtable has %zu", nr, memory, x->memtable_limit);
  bool full = false;
  for (bool again = nr > 0; again && s == REMIXDB_OK;) {
    s = write_many_once(x, &r->slot, ops, nr, links, log_bytes, memory, &full);
    again = s == REMIXDB_ABORTED;
    if (again) s = full ? wait_for_room(x, memory) : REMIXDB_OK;
    if (again && s == REMIXDB_OK) s = check_failed(x);
  }
  mem_free(links);
  mem_free(ops);
  return s == REMIXDB_OK ? written(r, memory) : s;
}

// One try; see write_once.
static enum remixdb_status merge_once(struct xdb_ref *r, struct kref key, uint64_t hash, remixdb_merge_fn fn, void *priv, size_t *written_out, bool *full_out) {
  struct xdb *x = r->xdb;
  struct wh_slot slot;
  struct kv_rec rec;
  epoch_enter(&x->epoch, &r->slot);
  const struct view *v = view_of(x);
  struct memtable *m = v->active;
  enum remixdb_status s = REMIXDB_OK;
  *full_out = memtable_full(x, m, 0);
  if (unlikely(*full_out)) {
    epoch_exit(&r->slot);
    return REMIXDB_ABORTED;
  }
  // What lies below the active memtable does not change while it is the active one, so it is read before the leaf is locked: nobody waits for a disk.
  if (!wh_get(m->wh, key, hash, WH_PENDING - 1)) s = lookup_below(v, key, hash, WH_PENDING - 1, &r->hold, &rec);
  if (unlikely(s != REMIXDB_OK && s != REMIXDB_NOTFOUND)) {
    sst_hold_drop(&r->hold);
    epoch_exit(&r->slot);
    return s;
  }
  wh_lock(m->wh, key, hash, &slot);
  const struct wh_ver *newest = wh_slot_newest(&slot);
  if (newest) rec = (struct kv_rec){NULL, newest->val, 0, newest->vlen, newest->tomb};
  const bool there = (newest || s == REMIXDB_OK) && !rec.tomb;
  const void *val = NULL;
  uint32_t vlen = 0;
  const enum remixdb_merge_op op = fn(there ? rec.val : NULL, there ? rec.vlen : 0, &val, &vlen, priv);
  const bool tomb = op == REMIXDB_MERGE_DEL;
  *written_out = 0;
  s = REMIXDB_OK;
  if (op == REMIXDB_MERGE_PUT && !val && vlen) s = err_set(REMIXDB_INVALID, "the merge function returned no value, but a length of %u", vlen);
  else if (op == REMIXDB_MERGE_PUT && (uint64_t)key.len + vlen > REMIXDB_KV_MAX)
    s = err_set(REMIXDB_TOOBIG, "a key of %u bytes with a value of %u is too long: together they may have %u", key.len, vlen, REMIXDB_KV_MAX);
  else if (op != REMIXDB_MERGE_PUT && op != REMIXDB_MERGE_DEL && op != REMIXDB_MERGE_KEEP)
    s = err_set(REMIXDB_INVALID, "the merge function returned %d", (int)op);
  else if (op == REMIXDB_MERGE_PUT || (tomb && there)) {
    *written_out = key.len + vlen + sizeof(struct wh_ver);
    s = commit(x, &r->slot, m, &slot, tomb ? NULL : val, tomb ? 0 : vlen, tomb);
    if (likely(s == REMIXDB_OK)) {
      sst_hold_drop(&r->hold);  // only now: what fn returned may be part of what it was given
      return s;
    }
  }
  wh_unlock(&slot);
  sst_hold_drop(&r->hold);
  epoch_exit(&r->slot);
  return s;
}

enum remixdb_status xdb_merge(struct xdb_ref *r, struct kref key, remixdb_merge_fn fn, void *priv) {
  struct xdb *x = r->xdb;
  enum remixdb_status s = check_writable(r);
  if (s != REMIXDB_OK) return s;
  const uint64_t hash = hash64(key.ptr, key.len);
  size_t nbytes = 0;
  bool full;
  do {
    if ((s = check_failed(x)) != REMIXDB_OK) return s;
    s = merge_once(r, key, hash, fn, priv, &nbytes, &full);
    if (unlikely(full)) {
      if ((s = wait_for_room(x, 0)) != REMIXDB_OK) return s;
      s = REMIXDB_ABORTED;
    }
  } while (unlikely(s == REMIXDB_ABORTED));
  return s == REMIXDB_OK && nbytes ? written(r, nbytes) : s;
}

enum remixdb_status xdb_sync(struct xdb_ref *r) {
  struct xdb *x = r->xdb;
  if (x->opts.read_only) return REMIXDB_OK;
  const enum remixdb_status s = wal_sync(x->wal);
  if (s != REMIXDB_OK && s != REMIXDB_NOSPACE && s != REMIXDB_NOMEM) {
    struct err_saved why;
    err_save(&why, s);
    set_failed(x, &why);
    return err_raise(&why);
  }
  return s;
}

// With sync_lock held, which is let go meanwhile. False: it is time to stop, or (when `rest`) something was written.
static bool syncer_wait(struct xdb *x, uint64_t ns, bool rest) {
  const uint64_t until = time_ns() + ns;
  for (;;) {
    if (x->stop_syncer || (rest && atomic_load_explicit(&x->dirty, memory_order_relaxed))) return false;
    const uint64_t now = time_ns();
    if (now >= until) return true;
    (void)cond_wait_ns(&x->sync_wake, &x->sync_lock, until - now);
  }
}

// wal_sync or wal_mark, with sync_lock let go meanwhile. Whether it is to be tried again.
static bool syncer_run(struct xdb *x, enum remixdb_status (*fn)(struct wal *w)) {
  pthread_mutex_unlock(&x->sync_lock);
  const enum remixdb_status s = fn(x->wal);
  const bool again = s == REMIXDB_NOSPACE || s == REMIXDB_NOMEM;
  if (s != REMIXDB_OK && !again) {
    struct err_saved why;
    err_save(&why, s);
    set_failed(x, &why);
  }
  pthread_mutex_lock(&x->sync_lock);
  return again;
}

static void *syncer_main(void *arg) {
  struct xdb *x = arg;
  const uint64_t every = (uint64_t)x->opts.sync * 1000000;
  bool marked = true;  // nothing was synced since the log was marked
  pthread_mutex_lock(&x->sync_lock);
  while (!x->stop_syncer) {
    if (atomic_load_explicit(&x->dirty, memory_order_acquire)) {
      (void)syncer_wait(x, every, false);
      atomic_store_explicit(&x->dirty, false, memory_order_release);  // before the sync: what comes during it is synced by the next
      if (syncer_run(x, wal_sync)) atomic_store_explicit(&x->dirty, true, memory_order_relaxed);
      marked = false;
    } else if (marked) {
      pthread_cond_wait(&x->sync_wake, &x->sync_lock);
    } else if (syncer_wait(x, REST_NS, true)) {
      marked = !syncer_run(x, wal_mark);
    }
  }
  pthread_mutex_unlock(&x->sync_lock);
  return NULL;
}

// ---- reading

enum remixdb_status xdb_get(struct xdb_ref *r, struct kref key, void *val_out, uint32_t cap, uint32_t *vlen_out) {
  struct xdb *x = r->xdb;
  const uint64_t hash = hash64(key.ptr, key.len);
  enum remixdb_status s = REMIXDB_OK;
  struct kv_rec rec;
  epoch_enter(&x->epoch, &r->slot);
  const struct view *v = ref_view(r);
  const uint64_t moment = ref_moment(r);
  const struct wh_ver *ver = wh_get(v->active->wh, key, hash, moment);
  if (ver) rec = (struct kv_rec){NULL, ver->val, 0, ver->vlen, ver->tomb};
  else s = lookup_below(v, key, hash, moment, &r->hold, &rec);
  if (s == REMIXDB_OK && rec.tomb) s = REMIXDB_NOTFOUND;
  if (s == REMIXDB_OK) {
    if (vlen_out) *vlen_out = rec.vlen;
    const uint32_t n = rec.vlen < cap ? rec.vlen : cap;
    if (val_out && n) memcpy(val_out, rec.val, n);
    if (val_out && n < rec.vlen) s = err_set(REMIXDB_TOOBIG, "the value has %u bytes, the buffer %u", rec.vlen, cap);
  }
  sst_hold_drop(&r->hold);  // the block was held by the epoch only
  epoch_exit(&r->slot);
  return s;
}

enum remixdb_status xdb_multi_get(struct xdb_ref *r, size_t nr, const struct remixdb_slice *keys, struct remixdb_buf *values, bool *found,
                                  size_t *nr_out) {
  struct xdb *x = r->xdb;
  *nr_out = 0;
  if (unlikely(!r->multiget)) {
    const enum remixdb_status s = multiget_create(&x->io, &r->queue, &r->multiget);
    if (s != REMIXDB_OK) {
      for (size_t i = 0; i < nr; i++) {
        found[i] = false;
        if (values) values[i].len = 0;
      }
      return s;
    }
  }
  multiget_begin(r->multiget, nr, keys, values, found);
  epoch_enter(&x->epoch, &r->slot);
  struct view *v = ref_view(r), *counted = NULL;
  const uint64_t moment = ref_moment(r);
  while (multiget_part(r->multiget, v->active->wh, v->frozen ? v->frozen->wh : NULL, v->version, moment)) {
    if (!counted) {  // it outlives this epoch; it is alive: see iter_renew
      atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed);
      counted = v;
    }
    epoch_exit(&r->slot);  // many keys must not hold up the reclamation of the whole store
    epoch_enter(&x->epoch, &r->slot);
  }
  epoch_exit(&r->slot);
  view_unref(counted);
  return multiget_end(r->multiget, nr_out);
}

enum remixdb_status xdb_iter_create(struct xdb_ref *r, struct xdb_iter **out) {
  struct xdb_iter *it = mem_calloc(1, sizeof(*it));
  if (!it) return REMIXDB_NOMEM;
  if (!r->queue) {
    const enum remixdb_status s = blkio_queue_create(&r->xdb->io, &r->queue);
    if (s != REMIXDB_OK) {
      mem_free(it);
      return s;
    }
  }
  it->ref = r;
  merge_init(&it->merge, r->queue);
  merge_lend(&it->merge, &r->xdb->epoch, &r->slot);
  atomic_fetch_add_explicit(&r->xdb->nr_iters, 1, memory_order_relaxed);
  *out = it;
  return REMIXDB_OK;
}

void xdb_iter_park(struct xdb_iter *it) {
  struct xdb_ref *r = it->ref;
  epoch_enter(&r->xdb->epoch, &r->slot);
  merge_park(&it->merge);
  epoch_exit(&r->slot);
  view_unref(it->view);
  it->view = NULL;
  it->status = REMIXDB_OK;
  it->has_rec = false;
}

void xdb_iter_destroy(struct xdb_iter *it) {
  if (!it) return;
  xdb_iter_park(it);
  merge_fini(&it->merge);
  atomic_fetch_sub_explicit(&it->ref->xdb->nr_iters, 1, memory_order_relaxed);
  mem_free(it);
}

static enum remixdb_status iter_done(struct xdb_iter *it, enum remixdb_status s) {
  struct view *left = NULL;
  if (unlikely(!xdb_iter_valid(it))) {  // one that has come to its end, and is left there, pins nothing
    merge_park(&it->merge);
    left = it->view;
    it->view = NULL;
  }
  epoch_exit(&it->ref->slot);
  it->status = s;
  it->has_rec = false;
  if (unlikely(s != REMIXDB_OK)) err_save(&it->error, s);
  view_unref(left);
  return s == REMIXDB_OK ? s : err_raise(&it->error);
}

// Brings the iterator to the store, or the snapshot, as it is now; inside an epoch. What it held before is in *old_out and must be dropped after the epoch.
static void iter_renew(struct xdb_iter *it, struct view **old_out) {
  struct xdb_ref *r = it->ref;
  struct view *v = ref_view(r);
  *old_out = NULL;
  if (v != it->view) {
    // the store's own count cannot be dropped while this epoch lasts, nor a snapshot's while its refs live, so the view is alive
    atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed);
    *old_out = it->view;
    merge_park(&it->merge);
    it->view = v;
  }
  merge_set(&it->merge, v->active->wh, v->frozen ? v->frozen->wh : NULL, v->version, ref_moment(r));
}

enum seek_how { SEEK_GE, SEEK_LE, SEEK_LAST };

static enum remixdb_status iter_seek(struct xdb_iter *it, enum seek_how how, struct kref key) {
  struct view *old;
  epoch_enter(&it->ref->xdb->epoch, &it->ref->slot);
  iter_renew(it, &old);
  enum remixdb_status s = how == SEEK_GE   ? merge_seek(&it->merge, key)
                          : how == SEEK_LE ? merge_seek_for_prev(&it->merge, key)
                                           : merge_seek_last(&it->merge);
  s = iter_done(it, s);
  view_unref(old);
  return s == REMIXDB_OK ? s : err_raise(&it->error);  // what went with the view may have said something else
}

enum remixdb_status xdb_iter_seek(struct xdb_iter *it, struct kref key) { return iter_seek(it, SEEK_GE, key); }
enum remixdb_status xdb_iter_seek_for_prev(struct xdb_iter *it, struct kref key) { return iter_seek(it, SEEK_LE, key); }
enum remixdb_status xdb_iter_seek_last(struct xdb_iter *it) { return iter_seek(it, SEEK_LAST, kref(NULL, 0)); }

void xdb_iter_fail(struct xdb_iter *it, enum remixdb_status s) {
  err_save(&it->error, s);
  xdb_iter_park(it);
  it->status = s;
}

enum remixdb_status xdb_iter_skip(struct xdb_iter *it, uint32_t nr) {
  if (!xdb_iter_valid(it)) return it->status != REMIXDB_OK ? err_raise(&it->error) : REMIXDB_OK;
  if (likely(nr == 1 && merge_next_near(&it->merge))) {  // as most steps are: without the fence of an epoch
    it->has_rec = false;
    return REMIXDB_OK;
  }
  epoch_enter(&it->ref->xdb->epoch, &it->ref->slot);
  return iter_done(it, merge_skip(&it->merge, nr));
}

enum remixdb_status xdb_iter_prev(struct xdb_iter *it) {
  if (!xdb_iter_valid(it)) return it->status != REMIXDB_OK ? err_raise(&it->error) : REMIXDB_OK;
  epoch_enter(&it->ref->xdb->epoch, &it->ref->slot);
  return iter_done(it, merge_prev(&it->merge));
}

enum remixdb_status xdb_iter_record(struct xdb_iter *it, struct kv_rec *rec_out) {
  if (unlikely(!xdb_iter_valid(it))) return it->status != REMIXDB_OK ? err_raise(&it->error) : REMIXDB_NOTFOUND;
  if (!it->has_rec && !merge_record_held(&it->merge, &it->rec)) {
    struct xdb_ref *r = it->ref;
    epoch_enter(&r->xdb->epoch, &r->slot);
    const enum remixdb_status s = merge_record(&it->merge, &it->rec);
    epoch_exit(&r->slot);
    if (unlikely(s != REMIXDB_OK)) return s;
  }
  it->has_rec = true;
  *rec_out = it->rec;
  return REMIXDB_OK;
}

// ---- refs and snapshots

static enum remixdb_status ref_create(struct xdb *x, struct xdb_snapshot *snapshot, struct xdb_ref **out) {
  struct xdb_ref *r = mem_alloc_aligned(CACHE_LINE, align_up(sizeof(*r), CACHE_LINE));
  if (!r) return REMIXDB_NOMEM;
  memset(r, 0, sizeof(*r));
  r->xdb = x;
  r->snapshot = snapshot;
  epoch_join(&x->epoch, &r->slot);
  atomic_fetch_add_explicit(&x->nr_refs, 1, memory_order_relaxed);
  *out = r;
  return REMIXDB_OK;
}

enum remixdb_status xdb_ref(struct xdb *x, struct xdb_ref **out) { return ref_create(x, NULL, out); }

void xdb_unref(struct xdb_ref *r) {
  if (!r) return;
  sst_hold_fini(&r->hold);
  multiget_destroy(r->multiget);
  blkio_queue_destroy(r->queue);
  epoch_leave(&r->xdb->epoch, &r->slot);
  atomic_fetch_sub_explicit(&r->xdb->nr_refs, 1, memory_order_relaxed);
  mem_free(r);
}

struct view *xdb_view_ref(struct xdb_ref *r, uint64_t *moment_out) {
  epoch_enter(&r->xdb->epoch, &r->slot);
  struct view *v = ref_view(r);
  *moment_out = ref_moment(r);
  atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed);  // alive: see iter_renew
  epoch_exit(&r->slot);
  return v;
}

void xdb_view_unref(struct view *v) { view_unref(v); }

enum remixdb_status xdb_snapshot(struct xdb_ref *r, struct xdb_snapshot **out) {
  struct xdb *x = r->xdb;
  struct xdb_snapshot *s = mem_calloc(1, sizeof(*s));
  if (!s) return REMIXDB_NOMEM;
  s->xdb = x;
  s->taken_ns = r->snapshot ? r->snapshot->taken_ns : time_ns();
  s->view = xdb_view_ref(r, &s->moment);
  pthread_mutex_lock(&x->pins_lock);
  s->next = x->snapshots;
  if (s->next) s->next->prev = s;
  x->snapshots = s;
  x->nr_snapshots++;
  pthread_mutex_unlock(&x->pins_lock);
  *out = s;
  return REMIXDB_OK;
}

enum remixdb_status xdb_snapshot_ref(struct xdb_snapshot *s, struct xdb_ref **out) { return ref_create(s->xdb, s, out); }

void xdb_snapshot_release(struct xdb_snapshot *s) {
  if (!s) return;
  struct xdb *x = s->xdb;
  pthread_mutex_lock(&x->pins_lock);
  if (s->next) s->next->prev = s->prev;
  if (s->prev) s->prev->next = s->next;
  else x->snapshots = s->next;
  x->nr_snapshots--;
  pthread_mutex_unlock(&x->pins_lock);
  view_unref(s->view);
  mem_free(s);
}

// ---- opening

static uint64_t new_store_id(const void *salt) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  const uint64_t seed[4] = {(uint64_t)t.tv_sec, (uint64_t)t.tv_nsec, (uint64_t)getpid(), (uint64_t)(uintptr_t)salt};
  const uint64_t id = hash64(seed, sizeof(seed));
  return id ? id : 1;
}

// A directory without CURRENT (whose path is given): an error when it holds files of a store, unless one is in the making.
static enum remixdb_status headless(struct xdb *x, const char *current, bool *creating_out) {
  struct files_entry *list;
  size_t nr;
  const enum remixdb_status s = files_list(x->env, x->dir, &list, &nr);
  if (s != REMIXDB_OK) return s;
  bool data = false;
  *creating_out = false;
  for (size_t i = 0; i < nr; i++) {
    data = data || files_holds_data(list[i].kind);
    *creating_out = *creating_out || list[i].kind == FILES_IS_CREATING;
  }
  mem_free(list);
  struct env_stat st;
  if (!data || *creating_out || env_stat(x->env, current, &st) == REMIXDB_OK) return REMIXDB_OK;  // or another opening has just made it
  return err_corrupt(current, 0, "is missing, but the directory holds files of a store; no new store is made over them");
}

// The log of a store that was never finished; tables that may lie beside it go when the new one has been opened.
static enum remixdb_status remove_half_made(struct xdb *x) {
  struct files_entry *list;
  size_t nr;
  char path[ENV_PATH_MAX];
  enum remixdb_status s = files_list(x->env, x->dir, &list, &nr);
  if (s != REMIXDB_OK) return s;
  for (size_t i = 0; i < nr && s == REMIXDB_OK; i++) {
    if (list[i].kind != FILES_IS_LOG) continue;
    s = env_path(path, x->dir, list[i].name);
    if (s == REMIXDB_OK) s = env_unlink(x->env, path);
  }
  mem_free(list);
  return s;
}

// The directory: is there, is one, can be locked. *exists_out: holds a store (CURRENT).
static enum remixdb_status open_dir(struct xdb *x, bool *exists_out) {
  struct env_stat st;
  bool creating;
  char path[ENV_PATH_MAX];
  enum remixdb_status s = env_stat(x->env, x->dir, &st);
  const bool may_make = x->opts.create && !x->opts.read_only, made = s == REMIXDB_NOTFOUND;
  if (made) {
    if (!may_make) return err_set(REMIXDB_NOTFOUND, "%s: there is no such directory", x->dir);
    s = env_mkdir(x->env, x->dir);
    st.is_dir = true;
  }
  if (s != REMIXDB_OK) return s;
  if (!st.is_dir) return err_set(REMIXDB_IO, "%s: is a file, not a directory", x->dir);
  bool repairing;
  if ((s = files_repair_pending(x->env, x->dir, &repairing)) != REMIXDB_OK) return s;
  if (repairing) return err_set(REMIXDB_CORRUPT, "%s: a repair was interrupted: call remixdb_repair again to end it", x->dir);
  if ((s = env_path(path, x->dir, FILES_CURRENT)) != REMIXDB_OK) return s;
  s = env_stat(x->env, path, &st);
  if (s != REMIXDB_OK && s != REMIXDB_NOTFOUND) return s;
  bool exists = s == REMIXDB_OK;
  if (!exists && (s = headless(x, path, &creating)) != REMIXDB_OK) return s;
  if (!exists && !may_make) return err_set(REMIXDB_NOTFOUND, "%s: holds no store", x->dir);
  if (exists && x->opts.error_if_exists) return err_set(REMIXDB_EXISTS, "%s: holds a store already", x->dir);
  // a format that is not known is told before anything is touched
  if (exists && (s = version_peek(x->env, x->dir, &x->store_id)) != REMIXDB_OK) return s;
  if ((s = env_path(path, x->dir, FILES_LOCK)) != REMIXDB_OK) return s;
  s = env_lock(x->env, path, !x->opts.read_only, &x->lock_fd);
  if (s == REMIXDB_NOTFOUND && x->opts.read_only) s = REMIXDB_OK;  // nobody has locked what has no lock file
  if (s != REMIXDB_OK) return s;
  if (exists) {
    *exists_out = true;
    return REMIXDB_OK;
  }
  // somebody may have made it between the look and the lock
  if ((s = env_path(path, x->dir, FILES_CURRENT)) != REMIXDB_OK) return s;
  s = env_stat(x->env, path, &st);
  if (s == REMIXDB_OK && x->opts.error_if_exists) return err_set(REMIXDB_EXISTS, "%s: holds a store already", x->dir);
  if (s == REMIXDB_OK && (s = version_peek(x->env, x->dir, &x->store_id)) == REMIXDB_OK) {
    *exists_out = true;
    return REMIXDB_OK;
  }
  if (s != REMIXDB_NOTFOUND) return s;
  if ((s = headless(x, path, &creating)) != REMIXDB_OK) return s;
  if (creating && (s = remove_half_made(x)) != REMIXDB_OK) return s;
  *exists_out = false;
  return files_sync_parent(x->env, x->dir, made);
}

static enum remixdb_status make_store(struct xdb *x, struct version **out) {
  char path[ENV_PATH_MAX];
  int fd;
  enum remixdb_status s = env_path(path, x->dir, FILES_CREATING);
  if (s == REMIXDB_OK) s = env_open(x->env, path, ENV_WRITE | ENV_CREATE, &fd);
  if (s != REMIXDB_OK) return s;
  if ((s = env_close(x->env, fd, path)) != REMIXDB_OK) return s;
  if ((s = env_sync_dir(x->env, x->dir)) != REMIXDB_OK) return s;
  x->store_id = new_store_id(x);
  struct part *p;
  if ((s = part_create(kref("", 0), NULL, &p)) != REMIXDB_OK) return s;
  if ((s = version_create(&p, 1, out)) != REMIXDB_OK) return s;
  (*out)->store_id = x->store_id;
  (*out)->number = 1;
  (*out)->next_file = 1;
  (*out)->log_gen = 1;
  return REMIXDB_OK;
}

// Removes the mark of a store in the making: while it is there the log beside a missing CURRENT may be thrown away.
static enum remixdb_status finish_making(struct xdb *x) {
  char path[ENV_PATH_MAX];
  const enum remixdb_status s = env_path(path, x->dir, FILES_CREATING);
  return s == REMIXDB_OK ? env_unlink(x->env, path) : s;
}

struct replaying {
  struct xdb *x;
  struct memtable *m;
  struct epoch_slot slot;
};

static enum remixdb_status replay(void *arg, uint64_t seq, const struct kv_rec *rec) {
  struct replaying *r = arg;
  const struct kref key = kref(rec->key, rec->klen);
  struct wh_slot slot;
  epoch_enter(&r->x->epoch, &r->slot);
  wh_lock(r->m->wh, key, hash64(key.ptr, key.len), &slot);
  const enum remixdb_status s = wh_link(&slot, rec->val, rec->vlen, rec->tomb);
  if (s == REMIXDB_OK) wh_stamp(&slot, seq);
  wh_unlock(&slot);
  epoch_exit(&r->slot);
  return s;
}

static enum remixdb_status recover_log(struct xdb *x, struct version *v, bool fresh, struct memtable *m) {
  uint32_t step = WAL_PREALLOC;  // a small segment must not take the room of a large one
  while (step > WAL_STEP_MIN && step > x->wal_limit / 4) step /= 2;
  const struct wal_opts wo = {.env = x->env, .dir = x->dir, .store_id = x->store_id, .read_only = x->opts.read_only, .step = step};
  struct replaying *r = mem_alloc_aligned(CACHE_LINE, align_up(sizeof(*r), CACHE_LINE));
  if (!r) return REMIXDB_NOMEM;
  memset(r, 0, sizeof(*r));
  r->x = x;
  r->m = m;
  epoch_join(&x->epoch, &r->slot);
  enum remixdb_status s = wal_open(&wo, v->log_gen, v->log_seq, fresh, replay, r, &x->recovery, &x->wal);
  epoch_leave(&x->epoch, &r->slot);
  mem_free(r);
  epoch_reclaim(&x->epoch);
  if (s != REMIXDB_OK) return s;
  m->gen = wal_gen(x->wal);
  m->base_seq = x->recovery.last_seq;
  atomic_store_explicit(&x->published, x->recovery.last_seq, memory_order_release);
  return REMIXDB_OK;
}

static enum remixdb_status start_threads(struct xdb *x) {
  uint32_t nr, nr_cores, cores[WORKERS_MAX];
  enum remixdb_status s = workers_plan(x->opts.workers, x->opts.worker_cores, &nr, cores, WORKERS_MAX, &nr_cores);
  if (s == REMIXDB_OK) s = workers_create(nr, cores, nr_cores, &x->io, &x->epoch, run_round, x, &x->workers);
  if (s != REMIXDB_OK) return s;
  x->compact.workers = x->workers;
  if (x->opts.sync <= 0) return REMIXDB_OK;
  s = thread_start(&x->syncer, syncer_main, x, "remixdb-sync");
  x->has_syncer = s == REMIXDB_OK;
  return s;
}

// Ends the threads: what they use, the log before all, may go only after that.
static void stop_threads(struct xdb *x) {
  if (x->has_syncer) {
    pthread_mutex_lock(&x->sync_lock);
    x->stop_syncer = true;
    pthread_cond_signal(&x->sync_wake);
    pthread_mutex_unlock(&x->sync_lock);
    pthread_join(x->syncer, NULL);
    x->has_syncer = false;
  }
  workers_destroy(x->workers);
  x->workers = NULL;
}

static void teardown(struct xdb *x) {
  view_unref(view_of(x));
  epoch_fini(&x->epoch);
  if (x->chunks.chunk_size) arena_pool_fini(&x->chunks);
  cache_destroy(x->cache);
  fdpool_destroy(x->fds);
  env_close_quiet(x->env, x->lock_fd);
  pthread_cond_destroy(&x->changed);
  pthread_mutex_destroy(&x->lock);
  pthread_cond_destroy(&x->sync_wake);
  pthread_mutex_destroy(&x->sync_lock);
  pthread_mutex_destroy(&x->pins_lock);
  mem_free(x->dir);
  mem_free(x);
}

static enum remixdb_status start_services(struct xdb *x) {
  enum blkio_kind kind;
  const char *io = getenv("REMIXDB_IO");
  enum remixdb_status s = blkio_parse(io && *io ? io : x->opts.io, &kind);
  if (s != REMIXDB_OK) return s;
  blkio_init(&x->io, x->env, kind);
  if ((s = fdpool_create(x->env, x->opts.max_open_files, &x->fds)) != REMIXDB_OK) return s;
  if (x->opts.cache_mb && (s = cache_create(x->opts.cache_mb * MIB, &x->epoch, &x->cache)) != REMIXDB_OK) return s;
  x->ctx = (struct sst_ctx){.env = x->env, .dir = x->dir, .io = &x->io, .cache = x->cache, .fds = x->fds, .store_id = x->store_id,
                            .direct_io = x->opts.direct_io,
                            .retired = &x->retired};
  return REMIXDB_OK;
}

static enum remixdb_status check_opts(struct remixdb_opts *o) {
  if (o->memtable_mb == 0) o->memtable_mb = 256;
  if (o->wal_mb == 0) o->wal_mb = 2 * o->memtable_mb;
  if (o->max_open_files == 0) o->max_open_files = 1000;
  const size_t most = (SIZE_MAX >> 20) / 4;
  if (o->memtable_mb > most || o->wal_mb > most || o->cache_mb > most) return err_set(REMIXDB_INVALID, "a size in MiB is out of range");
  if (o->max_open_files < 16) return err_set(REMIXDB_INVALID, "max_open_files is %u and must be at least 16", o->max_open_files);
  if (o->sync < REMIXDB_SYNC_EACH) return err_set(REMIXDB_INVALID, "sync is %d: it is REMIXDB_SYNC_NONE, REMIXDB_SYNC_EACH or milliseconds", o->sync);
  if (o->workers < -1) return err_set(REMIXDB_INVALID, "workers is %d: it is a number of threads, or -1 for auto", o->workers);
  if (o->compression != REMIXDB_COMPRESSION_NONE && o->compression != REMIXDB_COMPRESSION_ZSTD)
    return err_set(REMIXDB_INVALID, "compression %d is not known", (int)o->compression);
  return REMIXDB_OK;
}

enum remixdb_status xdb_open(const char *dir, const struct remixdb_opts *o, struct env *env, struct xdb **out) {
  const size_t size = align_up(sizeof(struct xdb), CACHE_LINE);
  struct xdb *x = mem_alloc_aligned(CACHE_LINE, size);
  if (!x) return REMIXDB_NOMEM;
  memset(x, 0, size);
  x->env = env;
  x->lock_fd = -1;
  x->opts = *o;
  epoch_init(&x->epoch);
  pthread_mutex_init(&x->lock, NULL);
  cond_init(&x->changed);
  pthread_mutex_init(&x->sync_lock, NULL);
  cond_init(&x->sync_wake);
  pthread_mutex_init(&x->pins_lock, NULL);
  struct version *v = NULL;
  struct memtable *m = NULL;
  bool exists = false;
  uint32_t cleaned = 0;
  enum remixdb_status s = check_opts(&x->opts);
  if (s != REMIXDB_OK) goto out;
  x->memtable_limit = x->opts.memtable_mb * MIB;
  x->wal_limit = (uint64_t)x->opts.wal_mb * MIB;
  size_t chunk = 64u << 10;
  while (chunk < 2 * MIB && chunk * 32 < x->memtable_limit) chunk *= 2;
  arena_pool_init(&x->chunks, chunk, KEEP_CHUNKS ? x->memtable_limit : 0);
  s = REMIXDB_NOMEM;
  if (!(x->dir = mem_alloc(strlen(dir) + 1))) goto out;
  memcpy(x->dir, dir, strlen(dir) + 1);
  struct compact *c = &x->compact;
  c->ctx = &x->ctx;
  c->epoch = &x->epoch;
  c->build = (struct sst_build_opts){.ckeys = x->opts.ckeys, .compression = x->opts.compression, .level = x->opts.compression_level,
                                      .max_pages = compact_table_pages(x->memtable_limit)};
  c->tags = x->opts.tags;
  // what is handed back must not fill the next memtable's log segment at once, or it would be handed back for ever
  c->memtable_size = x->wal_limit < x->memtable_limit ? (size_t)x->wal_limit : x->memtable_limit;
  c->hand_back = hand_back;
  c->arg = x;
  // what can fail without touching the disk comes first, so that a store that is there is not changed by an opening that fails
  if ((s = start_services(x)) != REMIXDB_OK) goto out;
  if (!x->opts.read_only && (s = start_threads(x)) != REMIXDB_OK) goto out;
  if ((s = memtable_create(x, &m)) != REMIXDB_OK) goto out;
  if ((s = open_dir(x, &exists)) != REMIXDB_OK) goto out;
  x->ctx.store_id = x->store_id;
  s = exists ? version_load(&x->ctx, &v) : make_store(x, &v);
  if (s != REMIXDB_OK) goto out;
  x->ctx.store_id = x->store_id;
  atomic_store_explicit(&c->next_file, v->next_file, memory_order_relaxed);
  struct view *view = view_create(m, NULL, v);
  if (!view) {
    s = REMIXDB_NOMEM;
    goto out;
  }
  atomic_store_explicit(&x->view, view, memory_order_release);
  // a process that died may have given CURRENT its name and not made that durable: what an older one names must not go before it is
  if (exists && !x->opts.read_only && (s = env_sync_dir(x->env, x->dir)) != REMIXDB_OK) goto out;
  if ((s = recover_log(x, v, !exists, m)) != REMIXDB_OK) goto out;
  if (!exists && (s = version_save(&x->ctx, v)) != REMIXDB_OK) goto out;
  if (!x->opts.read_only && finish_making(x) != REMIXDB_OK) xdb_say(x, "the mark of the store's making is left: %s", err_msg());
  if (!x->opts.read_only && version_clean(&x->ctx, v, &cleaned) != REMIXDB_OK) xdb_say(x, "files that no version names are left: %s", err_msg());
  xdb_say(x, "%s: opened; %u partitions, %" PRIu64 " records replayed from the log, %" PRIu64 " bytes of a torn tail cut, %u files removed, io %s", x->dir,
      v->nr_parts, x->recovery.nr_records, x->recovery.cut_bytes, cleaned, blkio_engine(&x->io));
  if (!x->opts.read_only && x->recovery.nr_segments > REPLAY_SEGMENTS_MAX) {
    s = make_room(x, FREEZE_ANY, 0);
    if (s == REMIXDB_NOSPACE || s == REMIXDB_NOMEM) {  // the store works all the same
      xdb_say(x, "the log could not be shortened: %s", err_msg());
      s = REMIXDB_OK;
    }
  }
out:
  memtable_unref(m);
  version_unref(v);
  if (s != REMIXDB_OK) {
    struct err_saved why;
    err_save(&why, s);
    stop_threads(x);
    if (x->wal) {
      const enum remixdb_status ignored = wal_close(x->wal);  // the failure that is reported came first
      (void)ignored;
    }
    teardown(x);
    return err_raise(&why);
  }
  *out = x;
  return REMIXDB_OK;
}

enum remixdb_status xdb_close(struct xdb *x) {
  if (x->workers) {
    // a round that runs, or was asked for, is finished: the next opening has that much less to replay
    const enum remixdb_status idle = xdb_wait_idle(x);
    (void)idle;  // what could not be compacted is in the log
  }
  stop_threads(x);
  enum remixdb_status s = raise_failed(x);
  if (x->wal) {
    struct err_saved why;
    err_save(&why, s);
    const enum remixdb_status closed = wal_close(x->wal);
    x->wal = NULL;
    if (s != REMIXDB_OK) s = err_raise(&why);
    else s = closed;
  }
  struct err_saved why;
  err_save(&why, s);
  teardown(x);
  return s == REMIXDB_OK ? s : err_raise(&why);
}

// ---- figures

enum remixdb_status xdb_stats(struct xdb *x, char **json_out) {
  const size_t cap = 4096;
  char *buf = mem_alloc(cap);
  if (!buf) return REMIXDB_NOMEM;
  uint64_t tables = 0, entries = 0, keys = 0, table_bytes = 0, remix_bytes = 0, index_memory = 0, table_memory = 0;
  pthread_mutex_lock(&x->lock);  // holds the view where it is
  const struct view *v = view_of(x);
  const uint64_t active = wh_memory(v->active->wh), frozen = v->frozen ? wh_memory(v->frozen->wh) : 0;
  const uint64_t active_keys = wh_count(v->active->wh), frozen_keys = v->frozen ? wh_count(v->frozen->wh) : 0;
  const uint32_t parts = v->version->nr_parts;
  const uint64_t number = v->version->number;
  for (uint32_t i = 0; i < parts; i++) {
    const struct remix *r = v->version->parts[i]->remix;
    if (!r) continue;
    tables += r->nr_runs;
    entries += r->nr_entries;
    keys += r->nr_keys;
    remix_bytes += r->file_size;
    index_memory += remix_memory(r);
    for (uint32_t t = 0; t < r->nr_runs; t++) {
      table_bytes += r->runs[t]->file_size;
      table_memory += sst_memory(r->runs[t]);
    }
  }
  // what readers keep: every memtable that lives but the two of the view
  uint64_t pinned = 0, oldest_ns = 0;
  pthread_mutex_lock(&x->pins_lock);
  for (const struct memtable *m = x->memtables; m; m = m->next)
    if (m != v->active && m != v->frozen) pinned += wh_memory(m->wh);
  const uint32_t snapshots = x->nr_snapshots;
  for (const struct xdb_snapshot *s = x->snapshots; s; s = s->next)
    if (oldest_ns == 0 || s->taken_ns < oldest_ns) oldest_ns = s->taken_ns;
  pthread_mutex_unlock(&x->pins_lock);
  const uint64_t oldest_ms = oldest_ns ? (time_ns() - oldest_ns) / 1000000 : 0;
  pthread_mutex_unlock(&x->lock);
  struct wal_stats wal = {0};
  if (x->wal) wal_stats(x->wal, &wal);
  struct cache_stats cache = {0};
  if (x->cache) cache_stats(x->cache, &cache);
  const struct compact_stats *c = &x->compact.stats;
#define GET(field) atomic_load_explicit(&(field), memory_order_relaxed)
  const int n = snprintf(
      buf, cap,
      "{\"version\":\"%s\",\"io\":\"%s\",\"read_only\":%s,\"workers\":%u,\"refs\":%u,\"iterators\":%u,\n"
      " \"sequence\":%" PRIu64 ",\"version_number\":%" PRIu64 ",\"partitions\":%u,\"tables\":%" PRIu64 ",\"table_entries\":%" PRIu64 ",\"table_keys\":%" PRIu64 ",\n"
      " \"disk\":{\"table_bytes\":%" PRIu64 ",\"remix_bytes\":%" PRIu64 ",\"log_bytes\":%" PRIu64 "},\n"
      " \"memory\":{\"memtable_active\":%" PRIu64 ",\"memtable_frozen\":%" PRIu64 ",\"memtable_spare\":%" PRIu64 ",\"cache_size\":%" PRIu64 ",\"cache_used\":%" PRIu64
      ",\"remix\":%" PRIu64 ",\"tables\":%" PRIu64 ",\"log_buffers\":%" PRIu64 "},\n"
      " \"snapshots\":{\"count\":%u,\"oldest_ms\":%" PRIu64 "},\n"
      " \"pinned\":{\"memory_bytes\":%" PRIu64 ",\"files\":%" PRIu64 ",\"file_bytes\":%" PRIu64 "},\n"
      " \"memtable\":{\"active_keys\":%" PRIu64 ",\"frozen_keys\":%" PRIu64 "},\n"
      " \"log\":{\"written_bytes\":%" PRIu64 ",\"records\":%" PRIu64 ",\"frames\":%" PRIu64 ",\"syncs\":%" PRIu64 ",\"segments\":%" PRIu64 ",\"spare_segments\":%" PRIu64
      ",\"durable_sequence\":%" PRIu64 "},\n"
      " \"cache\":{\"misses\":%" PRIu64 ",\"evictions\":%" PRIu64 ",\"bypasses\":%" PRIu64 "},\n"
      " \"io_totals\":{\"reads\":%" PRIu64 ",\"read_bytes\":%" PRIu64 ",\"writes\":%" PRIu64 ",\"write_bytes\":%" PRIu64 ",\"open_files\":%u},\n"
      " \"compaction\":{\"rounds\":%" PRIu64 ",\"failed\":%" PRIu64 ",\"keep\":%" PRIu64 ",\"abort\":%" PRIu64 ",\"minor\":%" PRIu64 ",\"major\":%" PRIu64 ",\"split\":%" PRIu64
      ",\"table_bytes_written\":%" PRIu64 ",\"remix_bytes_written\":%" PRIu64 ",\"table_bytes_merged\":%" PRIu64 ",\"handed_back_bytes\":%" PRIu64
      ",\"remix_data_pages_read\":%" PRIu64 "},\n"
      " \"recovery\":{\"records\":%" PRIu64 ",\"frames\":%" PRIu64 ",\"segments\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"cut_bytes\":%" PRIu64 "},\n"
      " \"stall\":{\"total_us\":%" PRIu64 ",\"longest_us\":%" PRIu64 "}}\n",
      REMIXDB_VERSION_STRING, blkio_engine(&x->io), x->opts.read_only ? "true" : "false", x->workers ? workers_count(x->workers) : 0, GET(x->nr_refs),
      GET(x->nr_iters), GET(x->published), number, parts, tables, entries, keys, table_bytes, remix_bytes, x->wal ? wal_segment_bytes(x->wal) : 0, active, frozen,
      (uint64_t)arena_pool_held(&x->chunks), cache.size, cache.used, index_memory, table_memory, wal.buffer_bytes, snapshots, oldest_ms, pinned,
      GET(x->retired.files), GET(x->retired.bytes), active_keys, frozen_keys, wal.bytes, wal.records, wal.frames, wal.syncs, wal.segments,
      wal.spare_segments, x->wal ? wal_durable_seq(x->wal) : 0, cache.misses, cache.evictions, cache.bypasses, GET(x->io.nr_reads), GET(x->io.read_bytes),
      GET(x->io.nr_writes), GET(x->io.write_bytes), fdpool_open_count(x->fds), GET(c->rounds), GET(c->failed), GET(c->kinds[COMPACT_KEEP]), GET(c->kinds[COMPACT_ABORT]),
      GET(c->kinds[COMPACT_MINOR]), GET(c->kinds[COMPACT_MAJOR]), GET(c->kinds[COMPACT_SPLIT]), GET(c->table_bytes), GET(c->remix_bytes), GET(c->read_bytes),
      GET(c->handed_back), GET(c->remix_data_pages), x->recovery.nr_records, x->recovery.nr_frames, x->recovery.nr_segments, x->recovery.bytes, x->recovery.cut_bytes,
      GET(x->stall_ns) / 1000, GET(x->stall_max_ns) / 1000);
#undef GET
  if (n < 0 || (size_t)n >= cap) {
    mem_free(buf);
    return err_set(REMIXDB_TOOBIG, "the figures do not fit their buffer");
  }
  *json_out = buf;
  return REMIXDB_OK;
}
