// SPDX-License-Identifier: Apache-2.0
#include "store/write.h"

#include "store/get.h"
#include "store/pace.h"
#include "store/round.h"
#include "store/syncer.h"

// Nothing was logged, for s: the version goes. That may find no memory to make the leaf smaller, which is not what the caller is told.
static __attribute__((noinline)) enum remixdb_status take_back(struct wh_slot *slot, enum remixdb_status s) {
  struct err_saved why;
  err_save(&why, s);
  wh_unlink(slot);
  return s == REMIXDB_ABORTED ? s : err_raise(&why);
}

// The key's leaf is locked. Links the new version, logs and commits it; on success the leaf and the epoch have been given up, on failure nothing is linked.
// REMIXDB_ABORTED: the memtable was frozen meanwhile. last: the log takes it also when the disk is full, as long as there is what it keeps for that.
static enum remixdb_status commit(struct xdb *x, struct epoch_slot *es, const struct memtable *m, struct wh_slot *slot, const void *val, uint32_t vlen, bool tomb,
                                  bool last) {
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
  WRITE_LAST,    // a full memtable takes it all the same, up to a quarter more than its limit
  WRITE_BACK,    // that without a limit, and nothing is done when it has the key
};

static bool takes(struct xdb *x, const struct memtable *m, enum write_how how) {
  if (how == WRITE_NEW) return !xdb_round_due(x, m, 0);
  return how == WRITE_BACK ||
         (wh_memory(m->wh) < x->memtable_limit + x->memtable_limit / 4 && wal_segment_bytes(x->wal) < x->wal_limit + x->wal_limit / 4);
}

// One try. REMIXDB_ABORTED: nothing was done; the memtable is full, or was frozen meanwhile (*full_out says which).
static enum remixdb_status write_once(struct xdb *x, struct epoch_slot *es, struct kref key, uint64_t hash, const void *val, uint32_t vlen, bool tomb,
                                      enum write_how how, bool *full_out) {
  struct wh_slot slot;
  epoch_enter(&x->epoch, es);
  struct memtable *m = xdb_view(x)->active;
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

static enum remixdb_status write_many_once(struct xdb *x, struct epoch_slot *es, const struct batch_op *ops, size_t nr, struct wh_link *links, size_t log_bytes,
                                           size_t memory, bool *full_out) {
  struct wh_many many;
  epoch_enter(&x->epoch, es);
  struct memtable *m = xdb_view(x)->active;
  *full_out = xdb_round_due(x, m, memory);
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

enum remixdb_status xdb_write_back(void *arg, struct worker *w, const struct kv_rec *rec) {
  struct xdb *x = arg;
  const struct kref key = kref(rec->key, rec->klen);
  // no memtable can be frozen while one is: the first try is never refused for that
  bool full;
  return write_once(x, &w->slot, key, hash64(key.ptr, key.len), rec->val, rec->vlen, rec->tomb, WRITE_BACK, &full);
}

static enum remixdb_status check_writable(const struct xdb_ref *r) {
  struct xdb *x = r->xdb;
  if (unlikely(r->view)) return err_set(REMIXDB_READONLY, "%s: a snapshot is not written to", x->dir);
  if (unlikely(x->opts.read_only)) return err_set(REMIXDB_READONLY, "%s: opened with read_only", x->dir);
  return REMIXDB_OK;
}

// The memtable was full, for a batch of so many bytes or for one record (0).
static enum remixdb_status wait_for_room(struct xdb *x, size_t batch) {
  const uint64_t began = time_ns();
  const enum remixdb_status s = xdb_round_room(x, XDB_ROUND_FULL, batch);
  if (s == REMIXDB_OK) xdb_pace_stalled(x, time_ns() - began);
  return s;
}

// After a write of so many bytes.
static enum remixdb_status written(struct xdb_ref *r, size_t nbytes) {
  struct xdb *x = r->xdb;
  xdb_pace(r, nbytes);
  if (x->opts.sync == REMIXDB_SYNC_EACH) return xdb_sync(r);
  if (x->has_syncer) xdb_sync_wake(x);
  return REMIXDB_OK;
}

enum remixdb_status xdb_put(struct xdb_ref *r, struct kref key, const void *val, uint32_t vlen, bool tomb) {
  struct xdb *x = r->xdb;
  enum remixdb_status s = check_writable(r);
  if (unlikely(s != REMIXDB_OK)) return s;
  const uint64_t hash = hash64(key.ptr, key.len);
  enum write_how how = WRITE_NEW;
  bool full;
  do {
    if ((s = xdb_failure(x)) != REMIXDB_OK) return s;
    s = write_once(x, &r->slot, key, hash, val, vlen, tomb, how, &full);
    if (unlikely(full)) {
      s = wait_for_room(x, 0);
      // a delete is how one makes room: it goes into the full memtable, as long as the log has room left
      if (s == REMIXDB_NOSPACE && tomb && how == WRITE_NEW) how = WRITE_LAST;
      else if (s != REMIXDB_OK) return s;
      s = REMIXDB_ABORTED;
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
    s = err_set(REMIXDB_TOOBIG, "a batch of %zu keys takes %zu bytes of memory, the memtable has %zu", nr, memory, x->memtable_limit);
  bool full = false;
  for (bool again = nr > 0; again && s == REMIXDB_OK;) {
    s = write_many_once(x, &r->slot, ops, nr, links, log_bytes, memory, &full);
    again = s == REMIXDB_ABORTED;
    if (again) s = full ? wait_for_room(x, memory) : REMIXDB_OK;
    if (again && s == REMIXDB_OK) s = xdb_failure(x);
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
  const struct view *v = xdb_view(x);
  struct memtable *m = v->active;
  enum remixdb_status s = REMIXDB_OK;
  *full_out = xdb_round_due(x, m, 0);
  if (unlikely(*full_out)) {
    epoch_exit(&r->slot);
    return REMIXDB_ABORTED;
  }
  // What lies below the active memtable does not change while it is the active one, so it is read before the leaf is locked: nobody waits for a disk.
  if (!wh_get(m->wh, key, hash, WH_PENDING - 1)) s = xdb_get_below(v, key, hash, WH_PENDING - 1, &r->hold, &rec);
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
