// SPDX-License-Identifier: Apache-2.0
//
// The store: opening and closing, reading and writing keys, iterators. remixdb.c has checked the arguments. Refs and
// snapshots, by which it is used, are declared in store/ref.h and store/snapshot.h; flush and compaction in
// store/round.h, sync in store/syncer.h.
#ifndef XDB_H
#define XDB_H

#include "store/batch.h"
#include "store/ref.h"
#include "view/merge.h"
#include "view/multiget.h"

// The contract is remixdb_open_opts's. env is the caller's and outlives the store.
MUST_CHECK enum remixdb_status xdb_open(const char *dir, const struct remixdb_opts *o, struct env *env,
                                        struct xdb **out);
// The same for a directory `name` in one that is open.
MUST_CHECK enum remixdb_status xdb_open_at(const struct env_dir *at, const char *name, const struct remixdb_opts *o,
                                           struct xdb **out);
MUST_CHECK enum remixdb_status xdb_close(struct xdb *x);  // frees x in any case

// ---- reading keys

// Copies at most cap bytes of the value to val_out (which may be NULL: cap 0); *vlen_out, when given, is the full
// length. REMIXDB_NOTFOUND.
MUST_CHECK enum remixdb_status xdb_get(struct xdb_ref *r, struct kref key, void *val_out, uint32_t cap,
                                       uint32_t *vlen_out);
// Looks up nr keys at one moment: the contract is remixdb_multi_get's. With a room, which may be NULL, the values go
// there and each of `values` is told where (multiget_begin). *nr_out is set in any case.
MUST_CHECK enum remixdb_status xdb_multi_get(struct xdb_ref *r, size_t nr, const struct remixdb_slice *keys,
                                             struct remixdb_buf *values, bool *found, struct multiget_room *room,
                                             size_t *nr_out);

// ---- writing

// tomb: a delete. When the disk is full it is taken all the same, also by a full memtable (a quarter more), as long as
// the log has room (wal_begin_last).
MUST_CHECK enum remixdb_status xdb_put(struct xdb_ref *r, struct kref key, const void *val, uint32_t vlen, bool tomb);
// All of the batch or nothing, to readers and after a crash: the leaves of its keys stay locked from the first version
// linked to the last one stamped, its records are one frame of the log, and one store publishes them. The batch is not
// changed. REMIXDB_TOOBIG: larger than a memtable.
MUST_CHECK enum remixdb_status xdb_write(struct xdb_ref *r, const struct xdb_batch *b);
// fn is called with the key's leaf locked: it must not call the store. When the memtable is frozen at that moment it is
// called again, with what is there then.
MUST_CHECK enum remixdb_status xdb_merge(struct xdb_ref *r, struct kref key, remixdb_merge_fn fn, void *priv);

// ---- iterators
//
// Over the store or a snapshot, both ways. Between two calls an iterator that has a position holds a view, and its ref
// is inside xdb.cursors, but in no other epoch.

struct xdb_iter {
  struct xdb_ref *ref;
  struct super *view;  // counted; NULL: parked or not yet positioned
  enum remixdb_status status;
  struct err_saved error;  // why status
  struct merge merge;
  bool stays;  // it has a position, which the ref's stay stands for
};

MUST_CHECK enum remixdb_status xdb_iter_create(struct xdb_ref *r, struct xdb_iter **out);
void xdb_iter_destroy(struct xdb_iter *it);
void xdb_iter_park(struct xdb_iter *it);
static inline bool xdb_iter_valid(const struct xdb_iter *it) { return merge_valid(&it->merge); }
// The status is kept in the iterator as well.
MUST_CHECK enum remixdb_status xdb_iter_seek(struct xdb_iter *it, struct kref key);           // first key >= key
MUST_CHECK enum remixdb_status xdb_iter_seek_for_prev(struct xdb_iter *it, struct kref key);  // last key <= key
MUST_CHECK enum remixdb_status xdb_iter_seek_last(struct xdb_iter *it);
// Makes it invalid for this reason.
void xdb_iter_fail(struct xdb_iter *it, enum remixdb_status s);
MUST_CHECK enum remixdb_status xdb_iter_skip(struct xdb_iter *it, uint32_t nr);
MUST_CHECK enum remixdb_status xdb_iter_prev(struct xdb_iter *it);
// xdb_iter_skip of one, for most steps; else false, and nothing has changed.
static inline bool xdb_iter_next_fast(struct xdb_iter *it) { return merge_next_fast(&it->merge); }
// REMIXDB_NOTFOUND when not valid; the record holds until the iterator moves.
MUST_CHECK enum remixdb_status xdb_iter_record(struct xdb_iter *it, struct kv_rec *rec_out);
// The same for most records; else false.
MUST_CHECK static inline bool xdb_iter_record_held(const struct xdb_iter *it, struct kv_rec *rec_out) {
  return merge_record_held(&it->merge, rec_out);
}
// The contracts are remixdb_iter_page's and remixdb_iter_unread's. At its end an iterator that has given records is not
// valid, but holds its view until the next call, which may be an unread.
MUST_CHECK enum remixdb_status xdb_iter_page(struct xdb_iter *it, struct remixdb_page *p);
MUST_CHECK enum remixdb_status xdb_iter_unread(struct xdb_iter *it, struct remixdb_page *p, uint32_t nr);
#endif
