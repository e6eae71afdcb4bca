// SPDX-License-Identifier: Apache-2.0
//
// A ref: one thread's access to the store, or to a snapshot.
#ifndef STORE_REF_H
#define STORE_REF_H

#include "store/progress.h"
#include "store/state.h"

// A snapshot (store/snapshot.h).
struct xdb_snapshot {
  struct xdb *xdb;
  _Atomic uint32_t refs;  // the user's, until the release, and one for each ref and iterator that reads it
  struct super *super;    // counted
  uint64_t moment;
  uint64_t taken_ns;                 // time_ns() at the moment
  uint64_t now_ms;                   // the wall clock at the moment: it tells its readers what has expired
  struct xdb_snapshot *next, *prev;  // guarded by xdb.snapshots.lock
};

struct xdb_batch;
struct xdb_iter_bounds;
struct xdb_iter_opts;
struct multiget_room;

// The calls of xdb.h for a ref of a transaction, in place of the usual ones (store/txn.c).
struct xdb_own_iter {  // the beginning of such a ref's iterator
  bool valid;
};
enum seek_how { SEEK_GE, SEEK_LE, SEEK_LAST };
struct xdb_ref_calls {
  // Notes that the key is read. REMIXDB_OK: *rec_out is the key's record among the transaction's own writes, which may
  // be a tombstone; it holds until the next write. REMIXDB_NOTFOUND: the caller goes on with *r and *key, which are a
  // ref of the transaction's moment and a key of its tree now.
  enum remixdb_status (*find)(struct xdb_ref **r, struct kref *key, struct kv_rec *rec_out);
  enum remixdb_status (*get)(struct xdb_ref *r, struct kref key, void *val_out, uint32_t cap, uint32_t *vlen_out);
  enum remixdb_status (*multi_get)(struct xdb_ref *r, size_t nr, const struct remixdb_slice *keys,
                                   struct remixdb_buf *values, bool *found, struct multiget_room *room, size_t *nr_out);
  enum remixdb_status (*put)(struct xdb_ref *r, const struct kv_rec *rec);
  enum remixdb_status (*write)(struct xdb_ref *r, const struct xdb_batch *b);
  enum remixdb_status (*merge)(struct xdb_ref *r, struct kref key, remixdb_merge_fn fn, void *priv);
  // from, to: keys of the tree, in order; to.ptr NULL: to the end of all keys.
  enum remixdb_status (*del_range)(struct xdb_ref *r, struct kref from, struct kref to);
  // Keys of the iterator are keys of the tree, also in `bounds`, which stay as long as the iterator. o and bounds may
  // be NULL.
  enum remixdb_status (*iter_create)(struct xdb_ref *r, const struct xdb_iter_opts *o,
                                     const struct xdb_iter_bounds *bounds, struct xdb_own_iter **out);
  void (*iter_destroy)(struct xdb_own_iter *it);
  void (*iter_park)(struct xdb_own_iter *it);
  enum remixdb_status (*iter_seek)(struct xdb_own_iter *it, enum seek_how how, struct kref key);
  enum remixdb_status (*iter_skip)(struct xdb_own_iter *it, uint32_t nr);  // must be valid, as for the next two
  enum remixdb_status (*iter_prev)(struct xdb_own_iter *it);
  // The record may have a reference to a value that is apart, which iter_load reads, as xdb_iter_load does.
  enum remixdb_status (*iter_record)(struct xdb_own_iter *it, struct kv_rec *rec_out);
  enum remixdb_status (*iter_load)(struct xdb_own_iter *it, struct kv_rec *rec, void *buf);
  // Back from an end that a step has reached, to the last key (first: the first one). Without such an end it does
  // nothing.
  enum remixdb_status (*iter_unend)(struct xdb_own_iter *it, bool first);
};

struct xdb_ref {
  struct epoch_slot slot;
  struct epoch_slot stay;  // in xdb.cursors; inside while there are stays
  uint32_t stays;          // how many positions in memtables the iterators, or a checkpoint, keep between calls
  struct err_state told;   // the status of the last call on the ref. Each call writes it, so it lies beside `xdb`
  bool borrowed;           // from the pool (store/refpool.h)
  struct xdb *xdb;
  uint32_t tree;            // the tree that it reads and writes (view/version.h, V7)
  struct xdb_space *space;  // a named space, counted (store/space.h); NULL: the unnamed one
  uint8_t *key;             // memory for the keys of a named space: its id, then the user's key
  size_t key_cap;
  struct super *super;  // the snapshot's super, without a reference; NULL: the ref reads the store as it is
  uint64_t moment;      // the snapshot's
  uint64_t now_ms;      // with `super`: the wall clock at that moment
  struct xdb_snapshot *snapshot;
  struct xdb_txn *txn;  // the transaction that the ref belongs to; NULL: none. If set, `super` and `calls` are set, too
  const struct xdb_ref_calls *calls;  // a transaction's calls
  bool untracked;                     // reads through it cause the transaction no conflicts
  struct sst_hold hold;               // for gets
  uint32_t above;                     // the share of recent gets that found their key in the active memtable (xdb_get)
  uint32_t reach;                     // about how many records the last scans of its iterators read (merge_learn)
  struct multiget *multiget;          // made by the first multi-get
  uint64_t debt, debt_max;            // bytes written since the last look at the pace, and bytes until the next look
  struct progress progress;           // for flush, compact, checkpoint and verify
  char told_msg[ERR_MSG_MAX];         // the message of `told`, if that has one; only a failing call writes it
};

// The snapshot stays until as many releases. A hold needs one that is there.
void xdb_snapshot_hold(struct xdb_snapshot *snap);
// Gives back what xdb_snapshot or xdb_snapshot_hold gave. Any thread; NULL is allowed.
void xdb_snapshot_release(struct xdb_snapshot *snap);

// One thread uses the ref at a time. It ends before the store does. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status xdb_ref(struct xdb *x, struct xdb_ref **out);
void xdb_unref(struct xdb_ref *r);  // NULL is allowed

// Returns the super that the ref reads, and the moment at which (X2). Inside an epoch.
static inline struct super *xdb_ref_super(const struct xdb_ref *r, uint64_t *moment_out) {
  *moment_out = r->moment;
  if (unlikely(r->super != NULL)) return r->super;
  const uint64_t moment = atomic_load_explicit(&r->xdb->published, memory_order_acquire);
  struct super *const v = xdb_super(r->xdb);
  *moment_out = likely(moment > v->least) ? moment : v->least;
  return v;
}
// Returns the wall clock by which the ref judges what has expired: that of now, or of the moment that it reads.
static inline uint64_t xdb_ref_now(const struct xdb_ref *r) {
  return unlikely(r->super != NULL) ? r->now_ms : env_wall_ms(r->xdb->env);
}
// Tells whether a record that was found is a tombstone, or has expired.
static inline bool xdb_ref_absent(const struct xdb_ref *r, const struct kv_rec *rec) {
  if (likely((rec->kind & (KV_TOMB | KV_EXPIRES)) == 0)) return false;
  return rec->kind & KV_TOMB || rec->expiry <= xdb_ref_now(r);
}
// Returns the super and the moment, with a reference to the super that the caller drops with xdb_super_drop. Outside of
// any epoch.
struct super *xdb_ref_hold(struct xdb_ref *r, uint64_t *moment_out);
// For calls that get a key, outside of any epoch: `find` above. For a plain ref it does nothing: REMIXDB_NOTFOUND.
MUST_CHECK static inline enum remixdb_status xdb_ref_find_own(struct xdb_ref **r, struct kref *key,
                                                              struct kv_rec *rec_out) {
  return likely((*r)->calls == NULL) ? REMIXDB_NOTFOUND : (*r)->calls->find(r, key, rec_out);
}
// Call this before taking a position in a memtable. stays: the caller already keeps a position, which the new position
// replaces. If the ref keeps no other position, the ref's slot enters again (epoch_renew). If it does, the slot stays
// where it is, and memory that waits for its epoch is not reused.
static inline void xdb_ref_stay(struct xdb_ref *r, bool stays) {
  r->stays += !stays;
  if (likely(r->stays == 1)) epoch_renew(&r->xdb->cursors, &r->stay);
}
// Call this after giving the position up.
static inline void xdb_ref_unstay(struct xdb_ref *r) {
  if (--r->stays == 0) epoch_exit(&r->stay);
}
#endif
