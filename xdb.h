// SPDX-License-Identifier: Apache-2.0
//
// The store: opening and closing, reading and writing keys, iterators. remixdb.c has checked the arguments. store/ref.h
// has refs, store/snapshot.h snapshots, store/flush.h flush, store/whole.h compaction, store/syncer.h sync,
// store/page.h pages of an iterator.
#ifndef XDB_H
#define XDB_H

#include "store/batch.h"
#include "store/iter_opts.h"
#include "store/ref.h"
#include "store/value_ahead.h"
#include "view/merge.h"
#include "view/multiget.h"

// The contract of remixdb_open_opts. env is the caller's and outlives the store.
MUST_CHECK enum remixdb_status xdb_open(const char *dir, const struct remixdb_opts *o, struct env *env,
                                        struct xdb **out);
// The same for the directory `name` in `at`, which is open.
MUST_CHECK enum remixdb_status xdb_open_at(const struct env_dir *at, const char *name, const struct remixdb_opts *o,
                                           struct xdb **out);
MUST_CHECK enum remixdb_status xdb_close(struct xdb *x);  // frees x in any case

// ---- reading keys

// Copies at most cap bytes of the value to val_out. *vlen_out is the full length. Both may be NULL. REMIXDB_NOTFOUND;
// REMIXDB_TOOBIG: the value is longer than cap, and val_out is not NULL.
MUST_CHECK enum remixdb_status xdb_get(struct xdb_ref *r, struct kref key, void *val_out, uint32_t cap,
                                       uint32_t *vlen_out);
// Copies the bytes [off, off + cap) of the value, as many as there are, to buf. *n_out: how many; *vlen_out: the full
// length. Memory for a few chunks of the value. REMIXDB_NOTFOUND.
MUST_CHECK enum remixdb_status xdb_get_part(struct xdb_ref *r, struct kref key, uint32_t off, void *buf, uint32_t cap,
                                            uint32_t *n_out, uint32_t *vlen_out);
// Looks up nr keys at one moment: the contract of remixdb_multi_get. room may be NULL; else the values go there, and
// each of `values` gets its place (multiget_begin). Sets *nr_out in any case.
MUST_CHECK enum remixdb_status xdb_multi_get(struct xdb_ref *r, size_t nr, const struct remixdb_slice *keys,
                                             struct remixdb_buf *values, bool *found, struct multiget_room *room,
                                             size_t *nr_out);

// ---- writing

// Writes a record of KV_IN_TABLE. On a full disk the store still takes a tombstone, while the log keeps room for it
// (wal_begin_last); a full memtable may then grow by a quarter.
MUST_CHECK enum remixdb_status xdb_put(struct xdb_ref *r, const struct kv_rec *rec);
// All of the batch or nothing, for readers and after a crash: the leaves of its keys stay locked from the first link to
// the last stamp, its records are one frame of the log, and one atomic store publishes them. The batch stays as it is.
// Its size does not depend on the memtable's: a memtable that a batch has made too large is frozen by the next write.
// REMIXDB_TOOBIG: it takes more than WAL_FRAME_MAX bytes in the log.
MUST_CHECK enum remixdb_status xdb_write(struct xdb_ref *r, const struct xdb_batch *b);
// Deletes the keys in [from, to); to.ptr NULL: no end (store/ranges.h). In a transaction: those that are there at the
// commit (store/txn_blind.h).
MUST_CHECK enum remixdb_status xdb_del_range(struct xdb_ref *r, struct kref from, struct kref to);
// fn runs with the key's leaf locked, so it must not call the store. If the memtable is frozen at that moment, fn runs
// again, with the value that the key then has.
MUST_CHECK enum remixdb_status xdb_merge(struct xdb_ref *r, struct kref key, remixdb_merge_fn fn, void *priv);

// ---- versions and expiry

// The same as xdb_get. *rec_out: the record's kind, expiry and seq, for any status but an error; the seq of a record
// that the ref's transaction has written is 0.
MUST_CHECK enum remixdb_status xdb_getv(struct xdb_ref *r, struct kref key, void *val_out, uint32_t cap,
                                        uint32_t *vlen_out, struct kv_rec *rec_out);
// Writes the record if the key has this version, or with 0 if it does not exist. Else fails with REMIXDB_ABORTED.
MUST_CHECK enum remixdb_status xdb_put_if(struct xdb_ref *r, const struct kv_rec *rec, uint64_t version);

// ---- iterators
//
// Over the store or a snapshot, in both directions. Between two calls an iterator with a position holds a super, and
// its ref is inside xdb.cursors and in no other epoch.

struct xdb_iter {
  struct xdb_ref *ref;
  struct super *super;  // counted; NULL: parked, or no position yet
  enum remixdb_status status;
  bool stays;                // it has a position: it is one of the ref's stays
  bool keys_only;            // records are without values
  uint32_t special;          // not 0: xdb_iter_record does more than merge_record
  struct xdb_own_iter *own;  // on a ref with calls: the iterator proper; `merge` is never valid then
  // The value of the current record, if it is apart and was asked for; own memory. NULL: there is none.
  uint8_t *value;
  size_t value_cap;
  struct values_told told;
  struct merge merge;
  uint64_t now_ms;         // the wall clock at its last seek: it decides what has expired; not set if nothing expires
  struct err_saved error;  // the message of status
  struct xdb_iter_bounds bounds;
  uint8_t space[XDB_ITER_SPACE];  // the beginning of all keys, which the caller does not see
  uint32_t nr_space;              // its bytes
  // All seeks read this moment. `fixed` NULL: each seek reads the ref's.
  struct super *fixed;            // counted, or the snapshot's
  uint64_t moment, fixed_ms;      // and the wall clock of that moment
  struct xdb_snapshot *snapshot;  // counted; NULL: none
};

MUST_CHECK enum remixdb_status xdb_iter_create(struct xdb_ref *r, struct xdb_iter **out);
// The same with options: the contract of remixdb_iter_create_opts. remixdb.c has made its checks.
MUST_CHECK enum remixdb_status xdb_iter_create_opts(struct xdb_ref *r, const struct xdb_iter_opts *o,
                                                    struct xdb_iter **out);
void xdb_iter_destroy(struct xdb_iter *it);
void xdb_iter_park(struct xdb_iter *it);  // gives up all that it holds; a seek takes it up again
static inline bool xdb_iter_valid(const struct xdb_iter *it) {
  return likely(merge_valid(&it->merge)) || (unlikely(it->own != NULL) && it->own->valid);
}
// The iterator keeps the status, too.
MUST_CHECK enum remixdb_status xdb_iter_seek(struct xdb_iter *it, struct kref key);           // first key >= key
MUST_CHECK enum remixdb_status xdb_iter_seek_for_prev(struct xdb_iter *it, struct kref key);  // last key <= key
MUST_CHECK enum remixdb_status xdb_iter_seek_last(struct xdb_iter *it);
// After a call of `merge` that moved the iterator and returned s, outside of any epoch: keeps s, and parks the iterator
// when it is not valid. Returns s.
MUST_CHECK enum remixdb_status xdb_iter_moved(struct xdb_iter *it, enum remixdb_status s);
// After a move of `merge` that returned s, outside of any epoch: goes on in the same direction while the record has
// expired. Returns s, or the status of a failure.
enum remixdb_status xdb_iter_pass_expired(struct xdb_iter *it, enum remixdb_status s);
static inline enum remixdb_status xdb_iter_pass(struct xdb_iter *it, enum remixdb_status s) {
  return unlikely(merge_valid(&it->merge) && merge_expires(&it->merge)) ? xdb_iter_pass_expired(it, s) : s;
}
// Makes it invalid, with this status and the thread's message.
void xdb_iter_fail(struct xdb_iter *it, enum remixdb_status s);
MUST_CHECK enum remixdb_status xdb_iter_skip(struct xdb_iter *it, uint32_t nr);
MUST_CHECK enum remixdb_status xdb_iter_prev(struct xdb_iter *it);
// A step forward where that is cheap. False: nothing has changed, call xdb_iter_skip.
static inline bool xdb_iter_next_fast(struct xdb_iter *it) { return merge_next_fast(&it->merge); }
// The same backward. False: call xdb_iter_prev.
static inline bool xdb_iter_prev_fast(struct xdb_iter *it) { return merge_prev_fast(&it->merge); }
// The record holds until the iterator moves. A value that is apart is read. REMIXDB_NOTFOUND: it is not valid. After
// another failure, of this call or of the two below, it is not valid any more.
MUST_CHECK enum remixdb_status xdb_iter_record(struct xdb_iter *it, struct kv_rec *rec_out);
// The same, but a value that is apart stays where it is: the record has the reference, and xdb_iter_load reads it.
MUST_CHECK enum remixdb_status xdb_iter_refer(struct xdb_iter *it, struct kv_rec *rec_out);
// Reads the value of such a record into buf, which has room for it (super_vlen); NULL: into the iterator's own memory,
// and lets the record have it.
MUST_CHECK enum remixdb_status xdb_iter_load(struct xdb_iter *it, struct kv_rec *rec, void *buf);
// The same where the record is at hand. It may have a reference, as that of xdb_iter_refer. False: call
// xdb_iter_record.
MUST_CHECK static inline bool xdb_iter_record_held(const struct xdb_iter *it, struct kv_rec *rec_out) {
  return likely(!it->special) && merge_record_held(&it->merge, rec_out);
}
#endif
