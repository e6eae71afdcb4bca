// SPDX-License-Identifier: Apache-2.0
#include "xdb.h"

#include <inttypes.h>
#include <stdlib.h>

#include "store/below.h"
#include "store/dir.h"
#include "store/idle.h"
#include "store/pace.h"
#include "store/replay.h"
#include "store/reserve.h"
#include "store/scan_merge.h"
#include "store/flush.h"
#include "store/syncer.h"
#include "view/multiget.h"

#define MIB ((size_t)1 << 20)
#define OPEN_FILES_MIN 16u
#define OTHER_FILES 12u  // descriptors for the lock, the log, files being written, and what the program has open
#define WORKER_RINGS 4u  // descriptors for the rings of workers, when there are no more of them
#define REPLAY_SEGMENTS_MAX \
  4u  // with more segments to replay the memtable is compacted soon after opening; each opening adds one

// ---- reading keys

// The share of gets that found their key in the active memtable lately, of those whose key was not written lately
// (wh_get_begin): all of them, and so many that it is searched before anything else is asked for.
#define ABOVE_ALL 65535u
#define ABOVE_OFTEN (ABOVE_ALL / 3)

enum remixdb_status xdb_get(struct xdb_ref *r, struct kref key, void *val_out, uint32_t cap, uint32_t *vlen_out) {
  struct xdb *x = r->xdb;
  const uint64_t hash = hash64(key.ptr, key.len);
  enum remixdb_status s = REMIXDB_OK;
  struct kv_rec rec;
  epoch_enter(&x->epoch, &r->slot);
  const struct super *v = xdb_ref_super(r);
  const uint64_t moment = xdb_ref_moment(r);
  const struct wh_begun wanted = wh_get_begin(v->active->wh, key, hash);
  const bool early = wanted.recent == NULL && likely(r->above < ABOVE_OFTEN);
  struct xdb_below below;
  if (early) xdb_below_begin(v, key, hash, &below);
  const struct wh_ver *ver = wh_get_end(v->active->wh, wanted, key, hash, moment);
  if (wanted.recent == NULL) r->above = r->above - (r->above >> 5) + (ver ? ABOVE_ALL >> 5 : 0);
  if (ver) {
    rec = (struct kv_rec){NULL, ver->val, 0, ver->vlen, ver->tomb};
  } else {
    if (unlikely(!early)) xdb_below_begin(v, key, hash, &below);
    s = xdb_below_end(v, &below, key, hash, moment, &r->hold, &rec);
  }
  if (s == REMIXDB_OK && rec.tomb) s = REMIXDB_NOTFOUND;
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

enum remixdb_status xdb_multi_get(struct xdb_ref *r, size_t nr, const struct remixdb_slice *keys,
                                  struct remixdb_buf *values, bool *found, struct multiget_room *room, size_t *nr_out) {
  struct xdb *x = r->xdb;
  *nr_out = 0;
  if (unlikely(!r->multiget)) {
    const enum remixdb_status s = multiget_create(blkio_shared(&x->io), &r->multiget);
    if (s != REMIXDB_OK) {
      for (size_t i = 0; i < nr; i++) {
        found[i] = false;
        if (values) values[i].len = 0;
      }
      return s;
    }
  }
  multiget_begin(r->multiget, nr, keys, values, found, room);
  epoch_enter(&x->epoch, &r->slot);
  struct super *v = xdb_ref_super(r), *counted = NULL;
  const uint64_t moment = xdb_ref_moment(r);
  while (multiget_part(r->multiget, v->active->wh, v->frozen ? v->frozen->wh : NULL, v->version, moment)) {
    if (!counted) {  // it outlives this epoch
      super_ref(v);
      counted = v;
    }
    epoch_exit(&r->slot);  // many keys must not hold up the reclamation of the whole store
    epoch_enter(&x->epoch, &r->slot);
  }
  epoch_exit(&r->slot);
  xdb_super_drop(x, counted);
  return multiget_end(r->multiget, nr_out);
}

// ---- writing

// Nothing was logged, for s: the version goes. That may find no memory to make the leaf smaller, which is not what the
// caller is told.
static __attribute__((noinline)) enum remixdb_status take_back(struct wh_slot *slot, enum remixdb_status s) {
  struct err_saved why;
  err_save(&why, s);
  wh_unlink(slot);
  return s == REMIXDB_ABORTED ? s : err_raise(&why);
}

// The commit of one record. The caller has locked the key's leaf. The steps:
//   1. link    the new version stands first in its key's chain, pending: no reader sees it (wh_link)
//   2. log     the record goes into the log's buffer, which gives it its sequence number (wal_begin, wal_put)
//   3. stamp   the version gets that number (wh_stamp)
//   4. publish the number becomes the newest moment that readers take (X1)
//   5. unlock  the leaf, the epoch, then the log's buffer, which wal_end may write out
// On failure nothing is linked, and the caller still holds the leaf and the epoch. REMIXDB_ABORTED: the memtable was
// frozen between 1 and 2 (X3). last: the log takes the record also when the disk is full, as long as it has the room
// that it keeps for deletes.
static enum remixdb_status commit(struct xdb *x, struct epoch_slot *es, const struct memtable *m, struct wh_slot *slot,
                                  const void *val, uint32_t vlen, bool tomb, bool last) {
  enum remixdb_status s = wh_link(slot, val, vlen, tomb);
  if (unlikely(s != REMIXDB_OK)) return s;
  uint64_t gen;
  const size_t nbytes = kv_rec_size(slot->key.len, vlen, tomb);
  if ((s = last ? wal_begin_last(x->wal, nbytes, &gen) : wal_begin(x->wal, nbytes, &gen)) == REMIXDB_OK) {
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
  return take_back(slot, s);
}

enum write_how {
  WRITE_NEW,
  WRITE_LAST,  // a full memtable takes it all the same, up to a quarter more than its limit
  WRITE_BACK,  // that without a limit, and nothing is done when it has the key
};

static bool takes(struct xdb *x, const struct memtable *m, enum write_how how) {
  if (how == WRITE_NEW) return !xdb_round_due(x, m, 0);
  return how == WRITE_BACK ||
         (wh_memory(m->wh) < x->memtable_limit + x->memtable_limit / 4 && !wal_full(x->wal, 0, true));
}

// One try. REMIXDB_ABORTED: nothing was done; the memtable is full, or was frozen meanwhile (*full_out says which).
static enum remixdb_status write_once(struct xdb *x, struct epoch_slot *es, struct kref key, uint64_t hash,
                                      const void *val, uint32_t vlen, bool tomb, enum write_how how, bool *full_out) {
  struct wh_slot slot;
  epoch_enter(&x->epoch, es);
  struct memtable *m = xdb_super(x)->active;
  *full_out = !takes(x, m, how);
  if (unlikely(*full_out)) {
    epoch_exit(es);
    return REMIXDB_ABORTED;
  }
  wh_lock(m->wh, key, hash, &slot);
  enum remixdb_status s = REMIXDB_OK;
  if (how != WRITE_BACK || !wh_slot_newest(&slot)) {
    s = commit(x, es, m, &slot, val, vlen, tomb, tomb && how != WRITE_BACK);
    if (likely(s == REMIXDB_OK)) return s;
  }
  wh_unlock(&slot);
  epoch_exit(es);
  return s;
}

static enum remixdb_status write_many_once(struct xdb *x, struct epoch_slot *es, const struct batch_op *ops, size_t nr,
                                           struct wh_link *links, size_t log_bytes, size_t memory, bool *full_out) {
  struct wh_many many;
  epoch_enter(&x->epoch, es);
  struct memtable *m = xdb_super(x)->active;
  *full_out = xdb_round_due(x, m, memory);
  if (*full_out) {
    epoch_exit(es);
    return REMIXDB_ABORTED;
  }
  wh_many_init(&many, m->wh);
  enum remixdb_status s = REMIXDB_OK;
  size_t linked = 0;
  for (; linked < nr && s == REMIXDB_OK; linked += s == REMIXDB_OK)
    s = wh_many_link(&many, ops[linked].key, ops[linked].hash, ops[linked].val, ops[linked].vlen, ops[linked].tomb,
                     &links[linked]);
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

// For a round (compact.hand_back; arg is the store): a record goes into the active memtable, unless there is a newer
// one of its key.
static enum remixdb_status write_back(void *arg, struct worker *w, const struct kv_rec *rec) {
  struct xdb *x = arg;
  const struct kref key = kref(rec->key, rec->klen);
  // no memtable can be frozen while one is: the first try is never refused for that
  bool full;
  return write_once(x, &w->slot, key, hash64(key.ptr, key.len), rec->val, rec->vlen, rec->tomb, WRITE_BACK, &full);
}

static enum remixdb_status check_writable(const struct xdb_ref *r) {
  struct xdb *x = r->xdb;
  if (unlikely(r->super)) return err_set(REMIXDB_READONLY, "%s: a snapshot is not written to", x->dir);
  if (unlikely(x->opts.read_only)) return err_set(REMIXDB_READONLY, "%s: opened with read_only", x->dir);
  return REMIXDB_OK;
}

// The memtable was full, for a batch of so many bytes or for one record (0).
static enum remixdb_status wait_for_room(struct xdb *x, size_t batch) {
  const uint64_t began = time_ns();
  const enum remixdb_status s = xdb_wait_room(x, XDB_FREEZE_FULL, batch);
  if (s == REMIXDB_OK) xdb_pace_stalled(x, time_ns() - began);
  return s;
}

// A write was refused because the disk is full. REMIXDB_ABORTED: something has changed, so that it is tried once more.
// Else its status. For a delete what is in memory goes into tables, by means of what is kept for that, and the log has
// room again.
static __attribute__((noinline)) enum remixdb_status no_room(struct xdb *x, bool tomb) {
  struct err_saved why;
  err_save(&why, REMIXDB_NOSPACE);
  if (tomb ? xdb_flush(x) == REMIXDB_OK : reserve_back(x)) return REMIXDB_ABORTED;
  return err_raise(&why);
}

// After a write of so many bytes.
static enum remixdb_status written(struct xdb_ref *r, size_t nbytes) {
  struct xdb *x = r->xdb;
  xdb_pace(r, nbytes);
  if (x->opts.sync == REMIXDB_SYNC_EACH) return xdb_sync(r);
  if (x->syncer.running) xdb_sync_wake(x);
  return REMIXDB_OK;
}

enum remixdb_status xdb_put(struct xdb_ref *r, struct kref key, const void *val, uint32_t vlen, bool tomb) {
  struct xdb *x = r->xdb;
  enum remixdb_status s = check_writable(r);
  if (unlikely(s != REMIXDB_OK)) return s;
  const uint64_t hash = hash64(key.ptr, key.len);
  enum write_how how = WRITE_NEW;
  bool full, tried = false;
  do {
    if ((s = xdb_failure(x)) != REMIXDB_OK) return s;
    s = write_once(x, &r->slot, key, hash, val, vlen, tomb, how, &full);
    if (unlikely(full)) {
      s = wait_for_room(x, 0);
      // a delete is how one makes room: it goes into the full memtable, as long as the log has room left
      if (s == REMIXDB_NOSPACE && tomb && how == WRITE_NEW) {
        how = WRITE_LAST;
        s = REMIXDB_ABORTED;
        continue;
      }
      if (s == REMIXDB_OK) s = REMIXDB_ABORTED;
    }
    if (unlikely(s == REMIXDB_NOSPACE) && !tried) {
      tried = true;
      how = WRITE_NEW;
      s = no_room(x, tomb);
    }
  } while (unlikely(s == REMIXDB_ABORTED));
  return likely(s == REMIXDB_OK) ? written(r, key.len + vlen + sizeof(struct wh_ver)) : s;
}

enum remixdb_status xdb_write(struct xdb_ref *r, const struct xdb_batch *b) {
  struct xdb *x = r->xdb;
  enum remixdb_status s = check_writable(r);
  if (s == REMIXDB_OK) s = xdb_failure(x);
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
    s = err_set(REMIXDB_TOOBIG, "a batch of %zu keys takes %zu bytes of memory, the memtable has %zu", nr, memory,
                x->memtable_limit);
  bool full = false, tried = false;
  for (bool again = nr > 0; again && s == REMIXDB_OK;) {
    s = write_many_once(x, &r->slot, ops, nr, links, log_bytes, memory, &full);
    if (unlikely(s == REMIXDB_NOSPACE) && !tried) {
      tried = true;
      s = no_room(x, false);
    }
    again = s == REMIXDB_ABORTED;
    if (again) s = full ? wait_for_room(x, memory) : REMIXDB_OK;
    if (again && s == REMIXDB_OK) s = xdb_failure(x);
  }
  mem_free(links);
  mem_free(ops);
  return s == REMIXDB_OK ? written(r, memory) : s;
}

// The user's function, while the leaf of its key is locked.
static enum remixdb_merge_op decide(remixdb_merge_fn fn, const struct kv_rec *rec, bool there, const void **val_out,
                                    uint32_t *vlen_out, void *priv) {
  CANCEL_LATER;
  return fn(there ? rec->val : NULL, there ? rec->vlen : 0, val_out, vlen_out, priv);
}

// One try; see write_once.
static enum remixdb_status merge_once(struct xdb_ref *r, struct kref key, uint64_t hash, remixdb_merge_fn fn,
                                      void *priv, size_t *written_out, bool *full_out) {
  struct xdb *x = r->xdb;
  struct wh_slot slot;
  struct kv_rec rec;
  epoch_enter(&x->epoch, &r->slot);
  const struct super *v = xdb_super(x);
  struct memtable *m = v->active;
  enum remixdb_status s = REMIXDB_OK;
  *full_out = xdb_round_due(x, m, 0);
  if (unlikely(*full_out)) {
    epoch_exit(&r->slot);
    return REMIXDB_ABORTED;
  }
  // What lies below the active memtable does not change while it is the active one, so it is read before the leaf is
  // locked: nobody waits for a disk.
  if (!wh_get(m->wh, key, hash, WH_PENDING - 1)) s = xdb_below_get(v, key, hash, WH_PENDING - 1, &r->hold, &rec);
  if (unlikely(s != REMIXDB_OK && s != REMIXDB_NOTFOUND)) {
    epoch_exit(&r->slot);
    return s;
  }
  wh_lock(m->wh, key, hash, &slot);
  const struct wh_ver *newest = wh_slot_newest(&slot);
  if (newest) rec = (struct kv_rec){NULL, newest->val, 0, newest->vlen, newest->tomb};
  const bool there = (newest || s == REMIXDB_OK) && !rec.tomb;
  const void *val = NULL;
  uint32_t vlen = 0;
  const enum remixdb_merge_op op = decide(fn, &rec, there, &val, &vlen, priv);
  const bool tomb = op == REMIXDB_MERGE_DEL;
  *written_out = 0;
  s = REMIXDB_OK;
  if (xdb_is_anothers(x))
    s = err_set(REMIXDB_INVALID, "the merge function has returned in a child that it made by fork");
  else if (op == REMIXDB_MERGE_PUT && !val && vlen)
    s = err_set(REMIXDB_INVALID, "the merge function returned no value, but a length of %u", vlen);
  else if (op == REMIXDB_MERGE_PUT && (uint64_t)key.len + vlen > REMIXDB_KV_MAX)
    s = err_set(REMIXDB_TOOBIG, "a key of %u bytes with a value of %u is too long: together they may have %u", key.len,
                vlen, REMIXDB_KV_MAX);
  else if (op != REMIXDB_MERGE_PUT && op != REMIXDB_MERGE_DEL && op != REMIXDB_MERGE_KEEP)
    s = err_set(REMIXDB_INVALID, "the merge function returned %d", (int)op);
  else if (op == REMIXDB_MERGE_PUT || (tomb && there)) {
    *written_out = key.len + vlen + sizeof(struct wh_ver);
    s = commit(x, &r->slot, m, &slot, tomb ? NULL : val, tomb ? 0 : vlen, tomb, false);
    if (likely(s == REMIXDB_OK)) return s;
  }
  wh_unlock(&slot);
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
    if ((s = xdb_failure(x)) != REMIXDB_OK) return s;
    s = merge_once(r, key, hash, fn, priv, &nbytes, &full);
    if (unlikely(full)) {
      if ((s = wait_for_room(x, 0)) != REMIXDB_OK) return s;
      s = REMIXDB_ABORTED;
    }
  } while (unlikely(s == REMIXDB_ABORTED));
  return s == REMIXDB_OK && nbytes ? written(r, nbytes) : s;
}

// ---- iterators

enum remixdb_status xdb_iter_create(struct xdb_ref *r, struct xdb_iter **out) {
  struct xdb_iter *it = mem_calloc(1, sizeof(*it));
  if (!it) return REMIXDB_NOMEM;
  it->ref = r;
  merge_init(&it->merge, blkio_shared(&r->xdb->io));
  merge_use_epoch(&it->merge, &r->xdb->epoch, &r->slot);
  atomic_fetch_add_explicit(&r->xdb->nr_iters, 1, memory_order_relaxed);
  *out = it;
  return REMIXDB_OK;
}

void xdb_iter_park(struct xdb_iter *it) {
  struct xdb_ref *r = it->ref;
  epoch_enter(&r->xdb->epoch, &r->slot);
  merge_park(&it->merge);
  epoch_exit(&r->slot);
  if (it->stays) xdb_ref_unstay(r);
  it->stays = false;
  xdb_super_drop(r->xdb, it->super);
  it->super = NULL;
  it->status = REMIXDB_OK;
}

void xdb_iter_destroy(struct xdb_iter *it) {
  if (!it) return;
  xdb_iter_park(it);
  merge_fini(&it->merge);
  atomic_fetch_sub_explicit(&it->ref->xdb->nr_iters, 1, memory_order_relaxed);
  mem_free(it);
}

// After a call that moves it, outside of any epoch.
static enum remixdb_status iter_done(struct xdb_iter *it, enum remixdb_status s) {
  it->status = s;
  if (unlikely(s != REMIXDB_OK)) err_save(&it->error, s);
  if (likely(xdb_iter_valid(it))) return s;
  xdb_iter_park(it);  // one that has come to its end, and is left there, pins nothing
  it->status = s;
  return s == REMIXDB_OK ? s : err_raise(&it->error);  // what went with the view may have said something else
}

// Brings the iterator to the store, or the snapshot, as it is now; inside an epoch. What it held before is in *old_out
// and must be dropped after the epoch.
static void iter_renew(struct xdb_iter *it, struct super **old_out) {
  struct xdb_ref *r = it->ref;
  struct super *v = xdb_ref_super(r);
  *old_out = NULL;
  if (v != it->super) {
    super_ref(v);
    *old_out = it->super;
    merge_park(&it->merge);
    it->super = v;
  }
  merge_set(&it->merge, v->active->wh, v->frozen ? v->frozen->wh : NULL, v->version, xdb_ref_moment(r));
}

enum seek_how { SEEK_GE, SEEK_LE, SEEK_LAST };

static enum remixdb_status iter_seek(struct xdb_iter *it, enum seek_how how, struct kref key) {
  struct super *old;
  // The key may be the one it stands on, in memory that it gives up, or reads other blocks into, before the search has
  // ended.
  uint8_t small[COPY_SMALL], *large = NULL;
  if (it->super && key.len > 0) {
    if (unlikely(key.len > COPY_SMALL) && !(large = mem_alloc(key.len))) {
      xdb_iter_fail(it, REMIXDB_NOMEM);
      return REMIXDB_NOMEM;
    }
    if (likely(!large)) copy_small(small, key.ptr, key.len);
    else memcpy(large, key.ptr, key.len);
    key.ptr = large ? large : small;
  }
  epoch_enter(&it->ref->xdb->epoch, &it->ref->slot);
  iter_renew(it, &old);
  xdb_ref_stay(it->ref, it->stays);
  it->stays = true;
  enum remixdb_status s = how == SEEK_GE   ? merge_seek(&it->merge, key)
                          : how == SEEK_LE ? merge_seek_for_prev(&it->merge, key)
                                           : merge_seek_last(&it->merge);
  epoch_exit(&it->ref->slot);
  mem_free(large);
  s = iter_done(it, s);
  xdb_super_drop(it->ref->xdb, old);
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
  return iter_done(it, nr == 1 ? merge_next(&it->merge) : merge_skip(&it->merge, nr));
}

enum remixdb_status xdb_iter_prev(struct xdb_iter *it) {
  if (!xdb_iter_valid(it)) return it->status != REMIXDB_OK ? err_raise(&it->error) : REMIXDB_OK;
  return iter_done(it, merge_prev(&it->merge));
}

enum remixdb_status xdb_iter_record(struct xdb_iter *it, struct kv_rec *rec_out) {
  if (unlikely(!xdb_iter_valid(it))) return it->status != REMIXDB_OK ? err_raise(&it->error) : REMIXDB_NOTFOUND;
  return merge_record(&it->merge, rec_out);
}

// ---- pages of records

static inline enum remixdb_status page_step(struct xdb_iter *it, bool back) {
  if (back) return merge_prev(&it->merge);
  return merge_next_fast(&it->merge) ? REMIXDB_OK : merge_next(&it->merge);
}

// Behind the last record of the page before. An iterator that has come to its end holds its view no longer.
static enum remixdb_status page_begin(struct xdb_iter *it, struct remixdb_page *p) {
  const bool after = p->after;
  p->after = false;
  p->nr = 0;
  p->len = 0;
  if (!after) return REMIXDB_OK;
  if (xdb_iter_valid(it)) return iter_done(it, page_step(it, p->back));
  if (it->super) xdb_iter_park(it);
  return it->status == REMIXDB_OK ? REMIXDB_OK : err_raise(&it->error);
}

// False: it does not fit.
static inline bool page_put(struct remixdb_page *p, const struct kv_rec *r) {
  const uint32_t vlen = p->vlens ? r->vlen : 0;
  p->klens[p->nr] = r->klen;
  if (p->vlens) p->vlens[p->nr] = vlen;
  if (unlikely((uint64_t)r->klen + vlen > p->cap - p->len)) return false;
  if (likely(r->klen)) memcpy((uint8_t *)p->ptr + p->len, r->key, r->klen);
  p->len += r->klen;
  if (likely(vlen)) memcpy((uint8_t *)p->ptr + p->len, r->val, vlen);
  p->len += vlen;
  p->nr++;
  return true;
}

enum remixdb_status xdb_iter_page(struct xdb_iter *it, struct remixdb_page *p) {
  struct kv_rec r;
  enum remixdb_status s = page_begin(it, p);
  if (s != REMIXDB_OK) return s;
  while ((likely(xdb_iter_record_held(it, &r)) || (s = xdb_iter_record(it, &r)) == REMIXDB_OK) && page_put(p, &r)) {
    p->after = p->nr == p->max;
    if (p->after) return REMIXDB_OK;
    if (unlikely((s = page_step(it, p->back)) != REMIXDB_OK)) {
      s = iter_done(it, s);
      break;
    }
    p->after = !xdb_iter_valid(it);
    if (unlikely(p->after)) return REMIXDB_OK;  // the view stays, for what may be given back
  }
  if (p->nr) return REMIXDB_OK;  // an error is met again by the next call
  return s != REMIXDB_OK
             ? s
             : err_set(REMIXDB_TOOBIG, "the record has %u and %u bytes, the page room for %zu", r.klen, r.vlen, p->cap);
}

enum remixdb_status xdb_iter_unread(struct xdb_iter *it, struct remixdb_page *p, uint32_t nr) {
  const bool after = p->after;
  enum remixdb_status s = REMIXDB_OK;
  p->after = false;
  p->nr = 0;
  p->len = 0;
  if (!xdb_iter_valid(it)) {
    if (it->status != REMIXDB_OK) return err_raise(&it->error);
    if (!it->super) return REMIXDB_OK;
    if (!after || nr == 0) {
      xdb_iter_park(it);
      return REMIXDB_OK;
    }
    // it stands behind the last of them: to that one, at the same moment
    epoch_enter(&it->ref->xdb->epoch, &it->ref->slot);
    s = p->back ? merge_seek(&it->merge, kref("", 0)) : merge_seek_last(&it->merge);
    epoch_exit(&it->ref->slot);
    s = iter_done(it, s);
  } else if (after && nr == 0) {
    return iter_done(it, page_step(it, p->back));
  }
  for (uint32_t n = nr - after; n > 0 && s == REMIXDB_OK && xdb_iter_valid(it); n--)
    s = iter_done(it, page_step(it, !p->back));
  return s;
}

// ---- opening and closing

static enum remixdb_status start_threads(struct xdb *x) {
  uint32_t nr, nr_cores, cores[WORKERS_MAX];
  enum remixdb_status s = workers_plan(x->opts.workers, x->opts.worker_cores, &nr, cores, WORKERS_MAX, &nr_cores);
  if (s == REMIXDB_OK) s = workers_create(nr, cores, nr_cores, &x->io, &x->epoch, xdb_round_run, x, &x->workers);
  if (s != REMIXDB_OK) return s;
  x->compact.workers = x->workers;
  // those who scan keep a processor where there is more than one
  const uint32_t processors = thread_cores(NULL, 0), others = processors > 1 ? processors - 1 : 1;
  x->compact.scan_merge_parts = nr > others ? others : nr > 0 ? nr : 1;
  if (nr) {  // without, what a call does would depend on what the cache holds
    x->watch = (struct remix_watch){scan_merge_ask, x};
    x->compact.watch = &x->watch;
  }
  return xdb_sync_start(x);
}

// Ends the threads: what they use, the log before all, may go only after that.
static void stop_threads(struct xdb *x) {
  xdb_sync_stop(x);
  workers_destroy(x->workers);
  x->workers = NULL;
}

static void teardown(struct xdb *x) {
  super_unref(xdb_super(x));
  epoch_fini(&x->cursors);
  epoch_fini(&x->epoch);
  memtables_fini(&x->memtables);
  cache_destroy(x->cache);
  fdpool_destroy(x->fds);
  blkio_fini(&x->io);
  dirlock_give(&x->dirlock);
  env_dir_close(&x->home);
  pthread_cond_destroy(&x->changed);
  pthread_mutex_destroy(&x->lock);
  pthread_cond_destroy(&x->syncer.wake);
  pthread_mutex_destroy(&x->syncer.lock);
  pthread_mutex_destroy(&x->snapshots.lock);
  reserve_fini(x);
  mem_free(x->dir);
  mem_free(x);
}

static void ring_trouble(void *arg, int errnum) {
  struct xdb *x = arg;
  char words[128];
  xdb_say(x, "%s: %s: io_uring gives no ring; where one is lacking blocks are read one by one", x->dir,
          err_reason(errnum, words, sizeof(words)));
}

// How many table files may be open at once. Where a process may have few descriptors (256 is usual on macOS) the tables
// leave some to the rest of the store: it has none to close when it needs one.
static uint32_t table_files(struct xdb *x, uint64_t limit) {
  const uint32_t workers = x->opts.workers > (int)WORKER_RINGS ? (uint32_t)x->opts.workers : WORKER_RINGS;
  const uint64_t others = OTHER_FILES + (x->io.kind == BLKIO_URING ? x->io.lanes_max + workers : 0);
  const uint64_t room = limit > OPEN_FILES_MIN + others ? limit - others : OPEN_FILES_MIN;
  if (x->opts.max_open_files <= room) return x->opts.max_open_files;
  xdb_say(x, "%s: %u table files may be open at once, not %u: the process may have %" PRIu64 " descriptors", x->dir,
          (uint32_t)room, x->opts.max_open_files, limit);
  return (uint32_t)room;
}

static enum remixdb_status start_services(struct xdb *x) {
  enum blkio_kind kind;
  const char *io = getenv("REMIXDB_IO");
  enum remixdb_status s = blkio_parse(io && *io ? io : x->opts.io, &kind);
  if (s != REMIXDB_OK) return s;
  blkio_init(&x->io, x->env, kind);
  const uint64_t limit = process_descriptors();
  blkio_pool(&x->io, limit, ring_trouble, x);
  if ((s = fdpool_create(x->env, table_files(x, limit), &x->fds)) != REMIXDB_OK) return s;
  if (x->opts.cache_mb && (s = cache_create(x->opts.cache_mb * MIB, &x->epoch, &x->cache)) != REMIXDB_OK) return s;
  x->ctx = (struct sst_ctx){.env = x->env,
                            .dir = &x->home,
                            .io = &x->io,
                            .cache = x->cache,
                            .fds = x->fds,
                            .store_id = x->store_id,
                            .direct_io = x->opts.direct_io,
                            .retired = &x->retired};
  return REMIXDB_OK;
}

static enum remixdb_status check_opts(struct remixdb_opts *o) {
  if (o->memtable_mb == 0) o->memtable_mb = 256;
  if (o->wal_mb == 0) o->wal_mb = 2 * o->memtable_mb;
  if (o->max_open_files == 0) o->max_open_files = 1000;
  const size_t most = (SIZE_MAX >> 20) / 4;
  if (o->memtable_mb > most || o->wal_mb > most || o->cache_mb > most)
    return err_set(REMIXDB_INVALID, "a size in MiB is out of range");
  if (o->max_open_files < OPEN_FILES_MIN)
    return err_set(REMIXDB_INVALID, "max_open_files is %u and must be at least %u", o->max_open_files, OPEN_FILES_MIN);
  if (o->sync < REMIXDB_SYNC_EACH)
    return err_set(REMIXDB_INVALID, "sync is %d: it is REMIXDB_SYNC_NONE, REMIXDB_SYNC_EACH or milliseconds", o->sync);
  if (o->workers < -1)
    return err_set(REMIXDB_INVALID, "workers is %d: it is a number of threads, or -1 for auto", o->workers);
  if (o->compression != REMIXDB_COMPRESSION_NONE && o->compression != REMIXDB_COMPRESSION_ZSTD)
    return err_set(REMIXDB_INVALID, "compression %d is not known", (int)o->compression);
  return REMIXDB_OK;
}

// Set first, so that a failure at any later step can be taken down the same way.
static struct xdb *create(const struct remixdb_opts *o, struct env *env) {
  const size_t size = align_up(sizeof(struct xdb), CACHE_LINE);
  struct xdb *x = mem_alloc_aligned(CACHE_LINE, size);
  if (!x) return NULL;
  memset(x, 0, size);
  x->env = env;
  x->forks = fork_now();
  x->opts = *o;
  epoch_init(&x->epoch);
  epoch_init(&x->cursors);
  pthread_mutex_init(&x->lock, NULL);
  cond_init(&x->changed);
  pthread_mutex_init(&x->syncer.lock, NULL);
  cond_init(&x->syncer.wake);
  pthread_mutex_init(&x->snapshots.lock, NULL);
  reserve_init(x);
  return x;
}

// Checks the options and derives the store's limits from them.
static enum remixdb_status configure(struct xdb *x, const struct env_dir *at, const char *name) {
  const enum remixdb_status s = check_opts(&x->opts);
  if (s != REMIXDB_OK) return s;
  x->memtable_limit = x->opts.memtable_mb * MIB;
  x->wal_limit = (uint64_t)x->opts.wal_mb * MIB;
  memtables_init(&x->memtables, &x->epoch, &x->cursors, x->memtable_limit);
  if (!(x->dir = env_path_new(at, name))) return REMIXDB_NOMEM;
  struct compact *c = &x->compact;
  c->ctx = &x->ctx;
  c->epoch = &x->epoch;
  c->build = (struct sst_build_opts){.ckeys = x->opts.ckeys,
                                     .compression = x->opts.compression,
                                     .level = x->opts.compression_level,
                                     .max_pages = compact_table_pages(x->memtable_limit)};
  c->tags = x->opts.tags;
  c->young_from = COMPACT_YOUNG_FROM;
  // what is handed back must not fill the next memtable's log segment at once, or it would be handed back for ever
  c->memtable_size = x->wal_limit / 2 < x->memtable_limit ? (size_t)(x->wal_limit / 2) : x->memtable_limit;
  c->hand_back = write_back;
  c->arg = x;
  return REMIXDB_OK;
}

// What opening holds until the store's view has taken it over.
struct opening {
  struct worker self;  // what this thread does of a worker's
  struct memtable *active;
  struct version *version;
  bool exists;  // there was a store; else a new one is made
};

// The directory, the version that CURRENT names or that of a new store, and the first view.
static enum remixdb_status load(struct xdb *x, const struct env_dir *at, const char *name, struct opening *o) {
  enum remixdb_status s = dir_open(x, at, name, &o->exists);
  if (s != REMIXDB_OK) return s;
  x->ctx.store_id = x->store_id;
  s = o->exists ? version_load(&x->ctx, x->workers, &o->self, &o->version) : dir_make_store(x, &o->version);
  if (s != REMIXDB_OK) return s;
  x->ctx.store_id = x->store_id;
  compact_watch(&x->compact, o->version);
  atomic_store_explicit(&x->compact.next_file, o->version->next_file, memory_order_relaxed);
  struct super *view = super_create(o->active, NULL, o->version);
  if (!view) return REMIXDB_NOMEM;
  atomic_store_explicit(&x->super, view, memory_order_release);
  // a process that died may have given CURRENT its name and not made that durable: what an older one names must not go
  // before it is
  return o->exists && !x->opts.read_only ? env_sync_dir(&x->home) : REMIXDB_OK;
}

// The log's records go into the memtable; a new store gets its CURRENT.
static enum remixdb_status recover(struct xdb *x, struct opening *o) {
  const enum remixdb_status s = replay_log(x, &o->self, o->version, !o->exists, o->active);
  return s == REMIXDB_OK && !o->exists ? version_save(&x->ctx, o->version) : s;
}

// The store works. What it can do without is told to the logger when it fails.
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

// With many segments to replay, the memtable is compacted soon. Without room or memory for that the store works all the
// same.
static enum remixdb_status shorten_log(struct xdb *x) {
  if (x->opts.read_only || x->recovery.nr_segments <= REPLAY_SEGMENTS_MAX) return REMIXDB_OK;
  const enum remixdb_status s = xdb_wait_room(x, XDB_FREEZE_ANY, 0);
  if (s != REMIXDB_NOSPACE && s != REMIXDB_NOMEM) return s;
  xdb_say(x, "the log could not be shortened: %s", err_msg());
  return REMIXDB_OK;
}

// The steps of opening, in order. Those that can fail without touching the disk come first, so that a failing opening
// changes no store.
static enum remixdb_status open_steps(struct xdb *x, const struct env_dir *at, const char *name, struct opening *o) {
  enum remixdb_status s = configure(x, at, name);
  if (s == REMIXDB_OK) s = start_services(x);
  if (s == REMIXDB_OK && !x->opts.read_only) s = start_threads(x);
  if (s == REMIXDB_OK) s = memtable_create(&x->memtables, &o->active);
  if (s == REMIXDB_OK) s = load(x, at, name, o);
  if (s == REMIXDB_OK) s = recover(x, o);
  if (s != REMIXDB_OK) return s;
  clean_up(x, o);
  reserve_measure(x, o->version, x->recovery.bytes);
  (void)reserve_keep(x);
  return shorten_log(x);
}

enum remixdb_status xdb_open_at(const struct env_dir *at, const char *name, const struct remixdb_opts *o,
                                struct xdb **out) {
  struct xdb *x = create(o, at->env);
  if (!x) return REMIXDB_NOMEM;
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

enum remixdb_status xdb_open(const char *dir, const struct remixdb_opts *o, struct env *env, struct xdb **out) {
  return xdb_open_at(ENV_PATHS(env), dir, o, out);
}

enum remixdb_status xdb_close(struct xdb *x) {
  if (x->workers) {
    // a round that runs, or was asked for, is finished: the next opening has that much less to replay
    scan_merge_stop(x);
    const enum remixdb_status idle = xdb_wait_idle(x);  // and what was left for workers to destroy is gone
    (void)idle;                                         // what could not be compacted is in the log
    if (!x->leave_log) xdb_flush_last(x);
  }
  stop_threads(x);
  enum remixdb_status s = xdb_failure(x);
  if (x->wal) {
    struct err_saved why;
    err_save(&why, s);
    const enum remixdb_status closed = wal_close(x->wal);
    x->wal = NULL;
    (void)reserve_keep(x);  // from what the log has given back
    if (s != REMIXDB_OK) s = err_raise(&why);
    else s = closed;
  }
  struct err_saved why;
  err_save(&why, s);
  teardown(x);
  return s == REMIXDB_OK ? s : err_raise(&why);
}
