// SPDX-License-Identifier: Apache-2.0
#include "xdb.h"

#include <assert.h>
#include <inttypes.h>

#include "log/format.h"
#include "store/below.h"
#include "store/collect.h"
#include "store/commit.h"
#include "store/dir.h"
#include "store/dropped_ask.h"
#include "store/flush.h"
#include "store/freeze.h"
#include "store/hiding.h"
#include "store/idle.h"
#include "store/memory.h"
#include "store/pace.h"
#include "store/pin.h"
#include "store/ranges.h"
#include "store/replay.h"
#include "store/reserve.h"
#include "store/scan_merge.h"
#include "store/setup.h"
#include "store/space_ref.h"
#include "store/syncer.h"
#include "store/txn_pool.h"
#include "store/value_pace.h"
#include "store/values.h"
#include "store/wait_room.h"
#include "store/write.h"
#include "store/write_steps.h"
#include "value/read.h"
#include "view/multiget.h"

// ---- opening

// With more segments to replay, the memtable is compacted soon after opening: each opening adds a segment.
#define REPLAY_SEGMENTS_MAX 4u

// For rounds (compact.hand_back): writes a record again, see "putting".
static enum remixdb_status write_back(void *arg, struct worker *w, uint32_t tree, const struct kv_rec *rec);
// For rounds (compact.secure).
static enum remixdb_status secure_log(void *arg) {
  const struct xdb *const x = arg;
  if (unlikely(!x->wal)) return REMIXDB_OK;  // the log is replayed: B4 of store/replay_round.h
  return wal_sync_active(x->wal);
}
// For rounds (compact.tell).
static void tell_unread(void *arg, const struct err_saved *why) {
  struct err_saved was;  // the logger may call the library
  err_save(&was, REMIXDB_OK);
  const bool damage = why->status == REMIXDB_CORRUPT;
  xdb_say(arg, "a partition cannot be merged %s: %s", damage ? "any more" : "now, and will be tried again", why->msg);
  err_restore(&was);
}

// Held by opening until the store's super has taken it over.
struct opening {
  struct worker self;  // the opening thread as a worker
  struct memtable *active;
  struct version *version;
  bool exists;  // the directory held a store; else opening makes one
};

// The directory, the version that CURRENT names or a new store's, and the first super.
static enum remixdb_status load(struct xdb *x, const struct env_dir *at, const char *name, struct opening *o) {
  enum remixdb_status s = dir_open(x, at, name, &o->exists);
  if (s != REMIXDB_OK) return s;
  x->ctx.store_id = x->store_id;
  x->ctx.origins = x->origins;
  x->ctx.nr_origins = x->nr_origins;
  s = o->exists ? version_open(&x->ctx, x->workers, &o->self, &o->version) : dir_make_store(x, &o->version);
  if (s == REMIXDB_OK && !x->opts.read_only) s = version_may_grow(&x->ctx, o->version);
  if (s != REMIXDB_OK) return s;
  x->ctx.store_id = x->store_id;
  atomic_store_explicit(&x->compact.next_file, o->version->next_file, memory_order_relaxed);
  struct super *super = super_create(o->active, NULL, o->version);
  if (!super) return REMIXDB_NOMEM;
  atomic_store_explicit(&x->super, super, memory_order_release);
  // how much of the value files lives is found out at the end of the first round
  value_pace_set(x, atomic_load_explicit(&x->value_ctx.room, memory_order_relaxed));
  // A process that died may have renamed CURRENT without syncing the directory. Until that is durable, no file that the
  // older CURRENT names may go.
  return o->exists && !x->opts.read_only ? env_sync_dir(&x->home) : REMIXDB_OK;
}

// The log's records go into the memtable, or into tables; a new store gets its CURRENT.
static enum remixdb_status recover(struct xdb *x, struct opening *o) {
  const enum remixdb_status s = replay_log(x, &o->self, &o->version, !o->exists, &o->active);
  return s == REMIXDB_OK && !o->exists ? version_save(&x->ctx, o->version) : s;
}

// The store works already, so these steps tell a failure to the logger only.
static void clean_up(struct xdb *x, const struct opening *o) {
  const struct version *const v = o->version;
  if (!x->opts.read_only && dir_finish_making(x) != REMIXDB_OK)
    xdb_say(x, "the mark of the store's making is left: %s", err_msg());
  if (!o->exists && version_clean(&x->ctx, v, &x->nr_cleaned) != REMIXDB_OK)
    xdb_say(x, "files that no version names are left: %s", err_msg());
  char words[128];
  const int refused = x->io.refused;
  xdb_say(x,
          "%s: opened; %u partition%s, %" PRIu64 " record%s replayed from the log, %" PRIu64
          " byte%s of a torn tail left out, %u file%s removed, io %s%s%s",
          x->dir, v->nr_parts, err_s(v->nr_parts), x->recovery.nr_records, err_s(x->recovery.nr_records),
          x->recovery.cut_bytes, err_s(x->recovery.cut_bytes), x->nr_cleaned, err_s(x->nr_cleaned),
          blkio_engine(&x->io), refused ? ", io_uring: " : "",
          refused ? err_reason(refused, words, sizeof(words)) : "");
}

// With many segments to replay, freezes the memtable. The store works without that, so want of room is no failure. A
// memtable that the replay has filled is frozen, too: the first writer then need not wait for its round.
static enum remixdb_status shorten_log(struct xdb *x) {
  if (x->opts.read_only) return REMIXDB_OK;
  xdb_freeze_full(x);
  if (x->recovery.nr_segments <= REPLAY_SEGMENTS_MAX || !wal_holds(x->wal)) return REMIXDB_OK;
  const enum remixdb_status s = xdb_wait_room(x, XDB_FREEZE_ANY, 0);
  if (s != REMIXDB_NOSPACE && s != REMIXDB_NOMEM) return s;
  xdb_say(x, "the log could not be shortened: %s", err_msg());
  return REMIXDB_OK;
}

// The steps of opening, in order. Those that can fail without touching the disk come first, so that a failing opening
// changes no store.
static enum remixdb_status open_steps(struct xdb *x, const struct env_dir *at, const char *name, struct opening *o) {
  enum remixdb_status s = setup_limits(x, at, name);
  if (s == REMIXDB_OK) s = setup_services(x);
  if (s == REMIXDB_OK && !x->opts.read_only) s = setup_threads(x);
  if (s == REMIXDB_OK) s = memtable_create(&x->memtables, &o->active);
  if (s == REMIXDB_OK) s = load(x, at, name, o);
  if (s == REMIXDB_OK) s = recover(x, o);
  if (s != REMIXDB_OK) return s;
  setup_asks(x);
  clean_up(x, o);
  memory_begin(x, memtable_memory(o->active));  // before the first round, which asks the budget
  if (!x->opts.read_only) {
    idle_expiry(x, o->version);
    idle_garbage(x);
    collect_opened(x);
    idle_hiding(x);
  }
  reserve_measure(x, o->version, memtable_count(o->active) ? x->recovery.bytes : 0);
  memory_data(x, o->version);
  (void)reserve_keep(x);
  if (!x->opts.read_only && version_may_have_dropped(o->version)) dropped_ask(x);
  return shorten_log(x);
}

enum remixdb_status xdb_open_at(const struct env_dir *at, const char *name, const struct remixdb_opts *o,
                                struct xdb **out) {
  struct xdb *x = setup_create(o, at->env);
  if (!x) return REMIXDB_NOMEM;
  x->compact.hand_back = write_back;
  x->compact.secure = secure_log;
  x->compact.tell = tell_unread;
  x->compact.arg = x;
  x->txns.let_go = txn_pool_let_go;
  x->txns.fini = txn_pool_fini;
  struct opening opening = {0};
  epoch_join(&x->epoch, &opening.self.slot);
  const enum remixdb_status s = open_steps(x, at, name, &opening);
  epoch_leave(&x->epoch, &opening.self.slot);
  memtable_unref(opening.active);
  version_unref(opening.version);
  if (s == REMIXDB_OK) {
    *out = x;
    return s;
  }
  err_cleanup_begin();
  setup_end_threads(x);
  if (x->wal) IGNORED(wal_close(x->wal), "the failure of opening came first");
  setup_destroy(x);
  err_cleanup_end();
  return s;
}

enum remixdb_status xdb_open(const char *dir, const struct remixdb_opts *o, struct env *env, struct xdb **out) {
  return xdb_open_at(ENV_PATHS(env), dir, o, out);
}

// ---- getting

// xdb_ref.above: the share of recent gets that found their key in the active memtable, of ABOVE_ALL. Gets of keys that
// were written a moment ago do not count (wh_get_begin). From ABOVE_OFTEN on a get searches that memtable before it
// asks for anything below it.
#define ABOVE_ALL 65535u
#define ABOVE_OFTEN (ABOVE_ALL / 3)

// Finds the key's record, which may be a tombstone, and enters the epoch in which it is valid. *v_out: its super.
static inline __attribute__((always_inline)) enum remixdb_status find(struct xdb_ref *r, struct kref key,
                                                                      const struct super **v_out,
                                                                      struct kv_rec *rec_out) {
  const uint64_t hash = hash64(key.ptr, key.len);
  epoch_enter(&r->xdb->epoch, &r->slot);
  uint64_t moment;
  const struct super *const v = *v_out = xdb_ref_super(r, &moment);
  const struct wh *const active = memtable_tree(v->active, r->tree);
  const struct wh_begun wanted = wh_get_begin(active, key, hash);
  const bool early = wanted.recent == NULL && likely(r->above < ABOVE_OFTEN);
  struct xdb_below below;
  if (early) xdb_below_begin(v, r->tree, key, hash, &below);
  const struct wh_ver *ver = wh_get_end(active, wanted, key, hash, moment);
  if (wanted.recent == NULL) r->above = r->above - (r->above >> 5) + (ver ? ABOVE_ALL >> 5 : 0);
  if (ver) {
    wh_ver_value(ver, rec_out);
    return REMIXDB_OK;
  }
  if (unlikely(!early)) xdb_below_begin(v, r->tree, key, hash, &below);
  return xdb_below_end(&below, key, hash, moment, &r->hold, rec_out);
}

// Reads the value of a record of v whose value is apart, from `off` on. Leaves the epoch first, because reading may
// take long.
static __attribute__((noinline)) enum remixdb_status read_apart(struct xdb_ref *r, const struct super *v,
                                                                struct kref key, const struct kv_rec *rec, uint32_t off,
                                                                void *buf, uint32_t cap, uint32_t *n_out,
                                                                uint32_t *vlen_out) {
  struct value_ref to;
  struct value_file *f;
  *n_out = 0;
  enum remixdb_status s = super_value(v, rec, &to, &f);
  if (s == REMIXDB_OK) value_file_ref(f);
  epoch_exit(&r->slot);
  if (s != REMIXDB_OK) return s;
  *vlen_out = to.len;
  if (buf) s = value_read(f, &to, key, off, buf, cap, n_out);
  value_file_unref(f);
  return s;
}

static __attribute__((noinline)) enum remixdb_status get_apart(struct xdb_ref *r, const struct super *v,
                                                               struct kref key, const struct kv_rec *rec, void *buf,
                                                               uint32_t cap, uint32_t *vlen_out) {
  uint32_t len, n;
  enum remixdb_status s = read_apart(r, v, key, rec, 0, buf, cap, &n, &len);
  if (s != REMIXDB_OK) return s;
  if (vlen_out) *vlen_out = len;
  return !buf || n == len ? s : err_set(REMIXDB_TOOBIG, "the value has %u bytes, the buffer %u", len, cap);
}

enum remixdb_status xdb_get(struct xdb_ref *r, struct kref key, void *val_out, uint32_t cap, uint32_t *vlen_out) {
  const struct super *v;
  struct kv_rec rec;
  if (unlikely(r->calls != NULL)) return r->calls->get(r, key, val_out, cap, vlen_out);
  enum remixdb_status s = space_key(r, &key);
  if (unlikely(s != REMIXDB_OK)) return s;
  s = find(r, key, &v, &rec);
  if (s == REMIXDB_OK && unlikely(rec.kind)) {
    if (xdb_ref_absent(r, &rec)) s = REMIXDB_NOTFOUND;
    else if (rec.kind & KV_APART) return get_apart(r, v, key, &rec, val_out, cap, vlen_out);
  }
  if (s == REMIXDB_OK) {
    if (vlen_out) *vlen_out = rec.vlen;
    const uint32_t n = rec.vlen < cap ? rec.vlen : cap;
    if (likely(val_out && n <= COPY_SMALL)) copy_small(val_out, rec.val, n);
    else if (val_out) memcpy(val_out, rec.val, n);
    if (val_out && n < rec.vlen) s = err_set(REMIXDB_TOOBIG, "the value has %u bytes, the buffer %u", rec.vlen, cap);
  }
  epoch_exit(&r->slot);
  return s;
}

enum remixdb_status xdb_get_part(struct xdb_ref *r, struct kref key, uint32_t off, void *buf, uint32_t cap,
                                 uint32_t *n_out, uint32_t *vlen_out) {
  const struct super *v = NULL;
  struct kv_rec rec;
  *n_out = *vlen_out = 0;
  enum remixdb_status s = xdb_ref_find_own(&r, &key, &rec);
  const bool own = s == REMIXDB_OK;
  if (s == REMIXDB_NOTFOUND) s = space_key(r, &key);
  if (s != REMIXDB_OK) return s;
  if (own) epoch_enter(&r->xdb->epoch, &r->slot);
  else s = find(r, key, &v, &rec);
  if (s == REMIXDB_OK && unlikely(xdb_ref_absent(r, &rec))) s = REMIXDB_NOTFOUND;
  if (s == REMIXDB_OK && unlikely(rec.kind & KV_APART))
    return read_apart(r, v, key, &rec, off, buf, cap, n_out, vlen_out);
  if (s == REMIXDB_OK) {
    const uint32_t left = off < rec.vlen ? rec.vlen - off : 0;
    *vlen_out = rec.vlen;
    *n_out = left < cap ? left : cap;
    if (*n_out) memcpy(buf, rec.val + off, *n_out);
  }
  epoch_exit(&r->slot);
  return s;
}

// No key is found.
static void none_found(size_t nr, struct remixdb_buf *values, bool *found) {
  for (size_t i = 0; i < nr; i++) {
    found[i] = false;
    if (values) values[i].len = 0;
  }
}

enum remixdb_status xdb_multi_get(struct xdb_ref *r, size_t nr, const struct remixdb_slice *keys,
                                  struct remixdb_buf *values, bool *found, struct multiget_room *room, size_t *nr_out) {
  struct xdb *x = r->xdb;
  if (unlikely(r->calls != NULL)) return r->calls->multi_get(r, nr, keys, values, found, room, nr_out);
  struct remixdb_slice *own = NULL;  // the keys with the named space's bytes before them
  *nr_out = 0;
  enum remixdb_status s = REMIXDB_OK;
  if (unlikely(!r->multiget)) s = multiget_create(blkio_shared(&x->io), &r->multiget);
  if (s == REMIXDB_OK && unlikely(r->space != NULL)) s = space_keys(r, nr, keys, &own);
  if (s != REMIXDB_OK) {
    none_found(nr, values, found);
    return s;
  }
  if (own) keys = own;
  multiget_begin(r->multiget, nr, keys, values, found, room);
  multiget_clock(r->multiget, x->env, r->super ? r->now_ms : 0);
  epoch_enter(&x->epoch, &r->slot);
  uint64_t moment;
  struct super *v = xdb_ref_super(r, &moment), *counted = NULL;
  const struct wh *const active = memtable_tree(v->active, r->tree), *const frozen = super_frozen(v, r->tree);
  multiget_super(r->multiget, v);
  while (multiget_part(r->multiget, active, frozen, version_tree(v->version, r->tree), moment)) {
    if (!counted) {  // it outlives this epoch
      super_ref(v);
      counted = v;
    }
    epoch_exit(&r->slot);  // many keys must not hold up the reclamation of the whole store
    epoch_enter(&x->epoch, &r->slot);
  }
  epoch_exit(&r->slot);
  xdb_super_drop(x, counted);
  s = multiget_end(r->multiget, nr_out);
  mem_free(own);
  return s;
}

// ---- putting and deleting

enum write_how {
  WRITE_NEW,
  WRITE_LATE,  // it has waited for a round: a full memtable takes it, too, up to memory_late
  WRITE_LAST,  // a full memtable takes it, too, up to a quarter beyond the limit
  WRITE_BACK,  // a full memtable takes it without a limit; nothing happens when the memtable has the key
};

// Whether the memtable takes a record.
static bool takes(struct xdb *x, const struct memtable *m, enum write_how how) {
  if (how == WRITE_NEW) return !xdb_round_due(x, m, 0);
  const size_t limit = xdb_memtable_limit(x);
  if (how == WRITE_LATE) return memtable_memory(m) < memory_late(limit) && !wal_full(x->wal, 0, false);
  return how == WRITE_BACK || (memtable_memory(m) < limit + limit / 4 && !wal_full(x->wal, 0, true));
}

// One try. REMIXDB_ABORTED: nothing was done. *full_out: the memtable is full; else it was frozen meanwhile. kind: see
// commit_record.
ALWAYS_INLINE enum remixdb_status write_once_of(struct xdb *x, struct epoch_slot *es, const struct kv_rec *rec,
                                                uint32_t kind, uint64_t hash, enum write_how how, bool *full_out) {
  const uint32_t tree = kind & KV_SPACES ? TREE_SPACES : TREE_UNNAMED;
  struct wh_slot slot;
  enum remixdb_status s = REMIXDB_OK;
  epoch_enter(&x->epoch, es);
  const struct super *const v = xdb_super(x);
  struct memtable *m = v->active;
  *full_out = !takes(x, m, how) || (unlikely(kind & KV_APART) && how <= WRITE_LATE && values_full(x, m));
  if (unlikely(*full_out)) {
    epoch_exit(es);
    return REMIXDB_ABORTED;
  }
  if (unlikely(tree != TREE_UNNAMED) && (s = space_check_write(v, kref(rec->key, rec->klen))) != REMIXDB_OK) {
    epoch_exit(es);
    return s;
  }
  wh_lock(memtable_tree(m, tree), kref(rec->key, rec->klen), hash, &slot);
  if (how != WRITE_BACK || !wh_slot_newest(&slot)) {
    s = commit_record(x, es, m, &slot, rec, kind, kind & KV_TOMB && how != WRITE_BACK, NULL);
    if (likely(s == REMIXDB_OK)) return s;
  }
  wh_unlock(&slot);
  epoch_exit(es);
  return s;
}
static __attribute__((noinline)) enum remixdb_status write_once(struct xdb *x, struct epoch_slot *es,
                                                                const struct kv_rec *rec, uint64_t hash,
                                                                enum write_how how, bool *full_out) {
  return write_once_of(x, es, rec, rec->kind, hash, how, full_out);
}

// A record of a round goes back into the active memtable, unless that has a newer one of its key. It keeps its number.
static enum remixdb_status write_back(void *arg, struct worker *w, uint32_t tree, const struct kv_rec *rec) {
  struct xdb *x = arg;
  struct kv_rec back = *rec;
  back.kind |= KV_SEQ | (tree == TREE_SPACES ? KV_SPACES : 0u);
  // No memtable is frozen while a round works on another one, so the first try cannot be refused.
  bool full;
  const enum remixdb_status s = write_once(x, &w->slot, &back, hash64(rec->key, rec->klen), WRITE_BACK, &full);
  return s == REMIXDB_GONE ? REMIXDB_OK : s;  // nobody needs the record of a space that is dropped
}

// write_wait_room for one record that may be late: *late_out tells that it need not wait any longer. Without workers a
// writer waits for as long as it takes, so that the calls alone decide what happens.
static enum remixdb_status wait_room_or_late(struct xdb *x, bool *late_out) {
  *late_out = false;
  if (workers_count(x->workers) == 0) return write_wait_room(x, 0, false);
  const uint64_t began = time_ns();
  const enum remixdb_status s = xdb_wait_room_a_while(x, late_out);
  if (s == REMIXDB_OK) xdb_pace_stalled(x, time_ns() - began);
  return s;
}

// Goes on with a record whose first try has ended with REMIXDB_ABORTED or REMIXDB_NOSPACE, until a try ends otherwise.
static __attribute__((noinline)) enum remixdb_status put_again(struct xdb_ref *r, const struct kv_rec *rec,
                                                               uint64_t hash, enum remixdb_status s, bool full) {
  struct xdb *x = r->xdb;
  const bool tomb = rec->kind & KV_TOMB;
  enum write_how how = WRITE_NEW;
  bool tried = false;
  for (;;) {
    if (full) {
      bool late = false;
      // refused although it is late: nothing but the end of the round helps
      s = how == WRITE_LATE ? write_wait_room(x, 0, false) : wait_room_or_late(x, &late);
      if (how <= WRITE_LATE) how = late ? WRITE_LATE : WRITE_NEW;
      // Deletes make room, so a full memtable takes them while the log has room left.
      if (s == REMIXDB_NOSPACE && tomb && how <= WRITE_LATE) {
        how = WRITE_LAST;
        s = REMIXDB_OK;
      }
    } else if (s == REMIXDB_ABORTED) {
      s = REMIXDB_OK;
    }
    if (s == REMIXDB_NOSPACE && !tried) {
      tried = true;
      how = WRITE_NEW;
      if ((s = write_no_room(x, tomb)) == REMIXDB_ABORTED) s = REMIXDB_OK;
    }
    if (s != REMIXDB_OK || (s = xdb_failure(x)) != REMIXDB_OK) return s;
    s = write_once(x, &r->slot, rec, hash, how, &full);
    if (s != REMIXDB_ABORTED && (s != REMIXDB_NOSPACE || tried)) return s;
  }
}

// kind: rec's (commit_record).
ALWAYS_INLINE enum remixdb_status put_record(struct xdb_ref *r, const struct kv_rec *rec, uint32_t kind) {
  struct xdb *x = r->xdb;
  enum remixdb_status s = xdb_failure(x);
  if (unlikely(s != REMIXDB_OK)) return s;
  const uint64_t hash = hash64(rec->key, rec->klen);
  bool full;
  s = write_once_of(x, &r->slot, rec, kind, hash, WRITE_NEW, &full);
  if (unlikely(s == REMIXDB_ABORTED || s == REMIXDB_NOSPACE)) s = put_again(r, rec, hash, s, full);
  return likely(s == REMIXDB_OK) ? write_done(r, rec->klen + rec->vlen + sizeof(struct wh_ver)) : s;
}
static __attribute__((noinline)) enum remixdb_status put_special(struct xdb_ref *r, const struct kv_rec *rec) {
  return put_record(r, rec, rec->kind);
}

// A record whose value goes apart. A long value is written now, then the record that refers to it.
static __attribute__((noinline)) enum remixdb_status put_apart(struct xdb_ref *r, const struct kv_rec *rec) {
  struct xdb *x = r->xdb;
  struct value_apart apart = {0};
  struct kv_rec with = *rec;
  enum remixdb_status s = xdb_failure(x);
  if (s == REMIXDB_OK) value_pace(x);
  if (!values_direct(rec->klen, rec->vlen)) return s == REMIXDB_OK ? put_special(r, rec) : s;
  if (s == REMIXDB_OK) s = write_apart(x, &with, &apart);
  if (s != REMIXDB_OK) return s;
  s = put_special(r, &with);
  return values_end(x, &apart, s);
}

enum remixdb_status xdb_put(struct xdb_ref *r, const struct kv_rec *rec) {
  if (unlikely(r->super != NULL) && r->calls) return r->calls->put(r, rec);
  enum remixdb_status s = write_check(r);
  struct kv_rec mine;
  if (likely(s == REMIXDB_OK)) s = space_rec(r, &rec, &mine);
  if (unlikely(s != REMIXDB_OK)) return s;
  if (values_apart(rec->klen, rec->vlen)) return put_apart(r, rec);
  return likely(rec->kind == 0) ? put_record(r, rec, 0) : put_special(r, rec);
}

// ---- writing a batch

static void many_fini(struct many_writes *w) {
  mem_free(w->links);
  mem_free(w->ops);
}

// Writes the long values apart.
static enum remixdb_status many_apart(struct xdb *x, struct many_writes *w) {
  for (size_t i = 0; i < w->nr; i++) {
    struct kv_rec *const rec = &w->ops[i].rec;
    if (!values_direct(rec->klen, rec->vlen)) continue;
    if (!w->apart && !(w->apart = mem_calloc(w->nr, sizeof(*w->apart)))) return REMIXDB_NOMEM;
    enum remixdb_status s = write_apart(x, rec, &w->apart[i]);
    if (s == REMIXDB_OK) s = values_keep(x, &w->apart[i]);
    if (s != REMIXDB_OK) return s;
  }
  return REMIXDB_OK;
}

// s: see values_end. Returns s.
static enum remixdb_status many_apart_end(struct xdb *x, struct many_writes *w, enum remixdb_status s) {
  for (size_t i = 0; w->apart && i < w->nr; i++) s = values_end(x, &w->apart[i], s);
  mem_free(w->apart);
  w->apart = NULL;
  return s;
}

// The caller ends w with many_fini, also on failure.
static enum remixdb_status many_init(struct many_writes *w, const struct xdb_ref *r, const struct xdb_batch *b) {
  *w = (struct many_writes){0};
  const enum remixdb_status s = batch_sorted(b, r->space ? r->space->id : 0, &w->ops, &w->nr);
  if (s != REMIXDB_OK) return s;
  const size_t nr = w->nr;
  w->nr = 0;
  uint64_t now_ms = 0;
  for (size_t i = 0; i < nr; i++) {
    struct kv_rec *const rec = &w->ops[i].rec;
    if (unlikely(rec->kind & KV_EXPIRES)) {
      if (now_ms == 0) now_ms = env_wall_ms(r->xdb->env);
      if (rec->expiry <= now_ms) {
        rec->kind = (rec->kind & ~(uint32_t)(KV_EXPIRES | KV_APART)) | KV_TOMB;
        rec->vlen = 0;
      }
    }
    many_add(w, &w->ops[i]);
  }
  if (!(w->links = mem_array(w->nr ? w->nr : 1, sizeof(*w->links), 0))) return REMIXDB_NOMEM;
  if (w->log_bytes <= WAL_FRAME_MAX) return REMIXDB_OK;
  return err_set(REMIXDB_TOOBIG, "a batch of %zu keys takes %zu bytes in the log; at most %u go into it at once", w->nr,
                 w->log_bytes, WAL_FRAME_MAX);
}

static inline uint32_t op_tree(const struct batch_op *op) {
  return unlikely(op->rec.kind & KV_SPACES) ? TREE_SPACES : TREE_UNNAMED;
}

// Locks the leaves of all that a transaction has read in the trees before this one, and in this one up to the key. *at:
// the tree that earlier calls have reached.
static enum remixdb_status lock_reads(struct wh_many *many, const struct many_writes *w, uint32_t *at, uint32_t tree,
                                      const struct kref *key) {
  enum remixdb_status s = REMIXDB_OK;
  for (; *at < tree && s == REMIXDB_OK; ++*at) s = w->check->lock(w->check, *at, &many[*at], NULL);
  return s == REMIXDB_OK && key ? w->check->lock(w->check, tree, &many[tree], key) : s;
}

// Links all operations; the leaves of their keys stay locked, those of the unnamed tree first. many: one for each tree.
// *linked_out: how many are linked, also on failure.
static enum remixdb_status link_many(struct xdb *x, struct memtable *m, struct wh_many *many,
                                     const struct many_writes *w, size_t *linked_out) {
  enum remixdb_status s = REMIXDB_OK;
  size_t i = 0;
  uint32_t at = TREE_UNNAMED;
  for (; i < w->nr && s == REMIXDB_OK; i += s == REMIXDB_OK) {
    const struct batch_op *const op = &w->ops[i];
    const struct kref key = kref(op->rec.key, op->rec.klen);
    if (unlikely(w->check != NULL) && (s = lock_reads(many, w, &at, op_tree(op), &key)) != REMIXDB_OK) break;
    if (unlikely(op->rec.kind & KV_APART)) s = values_hold(x, m, &op->rec);
    if (s == REMIXDB_OK) s = wh_many_link(&many[op_tree(op)], &op->rec, op->hash, &w->links[i]);
  }
  *linked_out = i;
  return s == REMIXDB_OK && w->check ? lock_reads(many, w, &at, TREES, NULL) : s;
}

// Checks that the spaces of all operations have names.
static enum remixdb_status check_many_spaces(const struct super *v, const struct many_writes *w) {
  uint32_t id = 0;
  enum remixdb_status s = REMIXDB_OK;
  for (size_t i = w->nr; i > 0 && s == REMIXDB_OK; i--) {
    const struct batch_op *const op = &w->ops[i - 1];
    if (likely(op_tree(op) == TREE_UNNAMED)) break;
    if (names_id_get(op->rec.key) == id) continue;
    id = names_id_get(op->rec.key);
    s = space_check_write(v, kref(op->rec.key, op->rec.klen));
  }
  return s;
}

// Logs, stamps and publishes all operations, as one frame of the log. wal_begin has made room for them.
static void log_many(struct xdb *x, const struct many_writes *w) {
  uint64_t seq = 0;
  assert(w->nr > 0);
  for (size_t i = 0; i < w->nr; i++) {
    seq = wal_put(x->wal, &w->ops[i].rec);
    wh_link_stamp(&w->links[i], seq);
  }
  // One store makes all of it visible: until then every moment is before the first of the numbers.
  atomic_store_explicit(&x->published, seq, memory_order_release);
}

static void count_apart(struct memtable *m, const struct many_writes *w) {
  for (size_t i = 0; i < w->nr; i++)
    if (w->ops[i].rec.kind & KV_APART) values_count(m, &w->ops[i].rec);
}

// One try, with the steps of commit_record for all operations together. See write_once.
static enum remixdb_status write_many_once(struct xdb *x, struct epoch_slot *es, const struct many_writes *w,
                                           bool *full_out) {
  struct wh_many many[TREES];
  epoch_enter(&x->epoch, es);
  const struct super *const v = xdb_super(x);
  struct memtable *const m = v->active;
  *full_out = xdb_round_due(x, m, w->memory) || (unlikely(w->apart != NULL) && values_full(x, m));
  if (*full_out || (w->check && !w->check->begin(w->check, v))) {
    epoch_exit(es);
    return REMIXDB_ABORTED;
  }
  enum remixdb_status s = check_many_spaces(v, w);
  if (unlikely(s != REMIXDB_OK)) {
    epoch_exit(es);
    return s;
  }
  for (uint32_t i = 0; i < TREES; i++) wh_many_init(&many[i], memtable_tree(m, i));
  size_t linked;
  s = link_many(x, m, many, w, &linked);
  if (s == REMIXDB_OK && w->check && !w->check->passes(w->check, m)) s = REMIXDB_ABORTED;
  uint64_t gen;
  if (s == REMIXDB_OK && (s = wal_begin(x->wal, w->log_bytes, &gen)) == REMIXDB_OK &&
      unlikely(gen != m->gen || (w->check && xdb_super(x)->since != v->since))) {
    wal_end(x->wal);
    s = REMIXDB_ABORTED;
  }
  const bool logged = s == REMIXDB_OK;
  if (logged) log_many(x, w);
  if (logged && unlikely(w->apart != NULL)) count_apart(m, w);
  if (unlikely(!logged))
    for (; linked > 0; linked--) wh_many_unlink(&many[op_tree(&w->ops[linked - 1])], &w->links[linked - 1]);
  for (uint32_t i = 0; i < TREES; i++) wh_many_release(&many[i]);
  const bool write = logged && wal_end_unlock(x->wal);
  for (uint32_t i = 0; i < TREES; i++) wh_many_wake(&many[i]);
  epoch_exit(es);
  if (write) wal_end_write(x->wal);
  return s;
}

enum remixdb_status xdb_write_many(struct xdb_ref *r, struct many_writes *w) {
  struct xdb *x = r->xdb;
  bool full = false, tried = false, waited = false;
  enum remixdb_status s = xdb_failure(x);
  if (s == REMIXDB_OK && unlikely(w->paced)) value_pace(x);
  if (s == REMIXDB_OK) s = many_apart(x, w);
  for (bool again = w->nr > 0; again && s == REMIXDB_OK;) {
    if (w->check && (s = w->check->tables(w->check)) != REMIXDB_OK) break;
    s = write_many_once(x, &r->slot, w, &full);
    if (unlikely(s == REMIXDB_NOSPACE) && !tried) {
      tried = true;
      s = write_no_room(x, false);
    }
    again = s == REMIXDB_ABORTED && !(w->check && w->check->conflict);
    if (again) s = full ? write_wait_room(x, w->memory, waited) : REMIXDB_OK;
    waited = waited || full;
    if (again && s == REMIXDB_OK) s = xdb_failure(x);
  }
  s = many_apart_end(x, w, s);
  return s == REMIXDB_OK ? write_done(r, w->memory) : s;
}

enum remixdb_status xdb_write(struct xdb_ref *r, const struct xdb_batch *b) {
  struct many_writes w;
  if (unlikely(r->calls != NULL)) return r->calls->write(r, b);
  enum remixdb_status s = write_check(r);
  if (s == REMIXDB_OK && b->nr_names && b->store_id != r->xdb->store_id)
    s = err_set(REMIXDB_INVALID, "%s: the batch has spaces of another store", r->xdb->dir);
  if (s == REMIXDB_OK) s = space_check(r);
  if (s != REMIXDB_OK) return s;
  if (unlikely(b->ranges)) return ranges_write(r, b);
  s = many_init(&w, r, b);
  if (s == REMIXDB_OK) s = xdb_write_many(r, &w);
  many_fini(&w);
  return s;
}

// ---- deleting a range

// from, to: keys of the tree.
static enum remixdb_status del_range(struct xdb_ref *r, struct kref from, struct kref to) {
  return unlikely(r->calls != NULL) ? r->calls->del_range(r, from, to) : ranges_delete(r, r->tree, from, to, true);
}

enum remixdb_status xdb_del_range(struct xdb_ref *r, struct kref from, struct kref to) {
  if (!from.ptr) from = kref("", 0);
  if (to.ptr && kv_cmp(from, to) >= 0) return r->calls ? REMIXDB_OK : write_check(r);
  if (likely(!r->space)) return del_range(r, from, to);
  const struct remixdb_range range = {{from.ptr, from.len}, {to.ptr, to.len}};
  struct xdb_iter_bounds b;
  enum remixdb_status s = space_bounds(r, &range, &b);
  if (s != REMIXDB_OK) return s;
  s = del_range(r, b.low, b.high);
  mem_free(b.bytes);
  return s;
}

// ---- versions

enum remixdb_status xdb_getv(struct xdb_ref *r, struct kref key, void *val_out, uint32_t cap, uint32_t *vlen_out,
                             struct kv_rec *rec_out) {
  struct kv_rec rec;
  uint64_t moment;
  enum remixdb_status s = xdb_ref_find_own(&r, &key, &rec);
  if (s == REMIXDB_OK) {
    rec.seq = 0;
  } else {
    if (s != REMIXDB_NOTFOUND) return s;
    if ((s = space_key(r, &key)) != REMIXDB_OK) return s;
    s = REMIXDB_NOTFOUND;
  }
  const struct super *v = NULL;
  epoch_enter(&r->xdb->epoch, &r->slot);
  if (s == REMIXDB_NOTFOUND) {
    v = xdb_ref_super(r, &moment);
    s = xdb_find_numbered(v, r->tree, key, hash64(key.ptr, key.len), moment, &r->hold, &rec);
  }
  if (s == REMIXDB_OK && xdb_ref_absent(r, &rec)) s = REMIXDB_NOTFOUND;
  if (s == REMIXDB_OK && unlikely(rec.kind & KV_APART)) {
    *rec_out = rec;
    return get_apart(r, v, key, &rec, val_out, cap, vlen_out);
  }
  if (s == REMIXDB_OK) {
    if (vlen_out) *vlen_out = rec.vlen;
    const uint32_t n = rec.vlen < cap ? rec.vlen : cap;
    if (val_out && n) memcpy(val_out, rec.val, n);
    if (val_out && n < rec.vlen) s = err_set(REMIXDB_TOOBIG, "the value has %u bytes, the buffer %u", rec.vlen, cap);
    *rec_out = rec;
  }
  epoch_exit(&r->slot);
  return s;
}

// ---- closing

// Closes the log; s: why the store refuses writes. Returns the first failure.
static enum remixdb_status close_log(struct xdb *x, enum remixdb_status s) {
  if (s == REMIXDB_OK) s = wal_close(x->wal);
  else IGNORED(wal_close(x->wal), "the failure that stopped writes came first");
  x->wal = NULL;
  struct err_saved why;
  err_save(&why, s);
  (void)reserve_keep(x);  // from the room that the log has given back
  return err_raise(&why);
}

enum remixdb_status xdb_close(struct xdb *x) {
  if (x->workers) {
    // The round that runs, or was asked for, ends first: the next opening then has less to replay.
    scan_merge_stop(x);
    collect_stop(x);
    hiding_stop(x);
    if (xdb_wait_idle(x) != REMIXDB_OK) xdb_say(x, "%s: the last round did not succeed: %s", x->dir, err_msg());
    // From here on no round runs but that of the last flush.
    workers_settle(x->workers);
    idle_destroy(x);
    if (!x->leave_log) xdb_flush_last(x);
  }
  setup_end_threads(x);
  enum remixdb_status s = xdb_failure(x);
  if (x->wal) s = close_log(x, s);
  err_cleanup_begin();
  setup_destroy(x);
  err_cleanup_end();
  return s;
}
