// SPDX-License-Identifier: Apache-2.0
//
// The store: puts the parts together. Arguments have been checked by remixdb.c; these calls return statuses.
//
// One atomic pointer, the view, names the active memtable, the frozen one (being compacted; or none) and the version of the partitions. It is replaced,
// never edited, under `lock`; readers load it inside an epoch. An old view's count is dropped after all epochs in which it could be seen have passed;
// iterators hold a count of their own.
//
// Invariants
//   X1  A sequence number is published only when its version is stamped in the memtable and its record is in the log's buffer; numbers are published in order.
//       So every number up to `published` is committed, and a moment taken from it never changes.
//   X2  A reader loads the view first, then the moment. What is at or before the moment is in that view, or was moved on by a view installed before it.
//   X3  A writer that has linked a version in a memtable commits it only when the log's generation is still that memtable's; otherwise it takes the version
//       back and begins again with the new view. So nothing is committed in a frozen memtable.
//   X4  A memtable leaves the view only when the version that holds its content is durable, and its log segments are released only after that.
// Lock order: lock, a leaf's lock, the log's lock. `lock` is never taken with an epoch entered.
#ifndef XDB_H
#define XDB_H

#include "batch.h"
#include "compact.h"
#include "merge.h"
#include "multiget.h"
#include "wal.h"

struct memtable {
  _Atomic uint32_t refs;
  struct xdb *xdb;
  struct memtable *next, *prev;  // of all there are; guarded by xdb.pins_lock
  struct wh *wh;
  uint64_t gen;        // generation of its log segment (of the newest, after a recovery); set before it is shared
  uint64_t base_seq;   // last number given before that generation began
};

struct view {
  struct epoch_item item;
  _Atomic uint32_t refs;
  struct memtable *active;
  struct memtable *frozen;   // NULL: none
  struct version *version;
};

struct xdb {
  // set at open
  struct env *env;
  char *dir;
  struct remixdb_opts opts;    // strings are the defaults or NULL: resolved below
  size_t memtable_limit;       // bytes of a memtable at which it is frozen
  uint64_t wal_limit;          // bytes of a log segment at which its memtable is frozen
  int lock_fd;
  uint64_t store_id;
  struct blkio io;
  struct fdpool *fds;
  struct cache *cache;
  struct sst_ctx ctx;
  struct wal *wal;             // NULL: read_only
  struct workers *workers;     // NULL: read_only
  struct compact compact;
  struct wal_recovery recovery;
  struct arena_pool chunks;    // of memtables: what a dropped one held serves the next

  _Alignas(CACHE_LINE) _Atomic(struct view *) view;    // release-published under lock
  _Alignas(CACHE_LINE) _Atomic uint64_t published;     // see X1; release-stored under the log's lock
  _Alignas(CACHE_LINE) struct epoch epoch;

  _Alignas(CACHE_LINE) _Atomic uint32_t failed;        // status that refuses all writes; 0: none. The message is in `error`
  _Atomic bool compacting;                             // there is a frozen memtable
  _Atomic uint64_t pace_at_ns;                         // when the next writer may go on (see pace)
  _Atomic uint64_t round_began_ns, last_round_ns;

  pthread_mutex_t lock;        // guards all below, and the replacement of view
  pthread_cond_t changed;      // a round has ended
  struct err_saved error;      // why `failed`
  struct err_saved round_error;  // why the last round failed, when it may be tried again (status OK: it did not)
  uint64_t round_failed_ns;
  uint64_t nr_frozen, nr_installed;  // memtables that were frozen, and those of them whose rounds have ended well
  bool flushing;               // nothing of the frozen memtable is handed back
  struct xdb_whole *whole;     // for the next round that begins; NULL: it goes by what there is to do

  pthread_t syncer;            // with sync every N ms
  bool has_syncer;
  pthread_mutex_t sync_lock;   // guards stop_syncer
  pthread_cond_t sync_wake;
  bool stop_syncer;
  _Atomic bool dirty;          // something was written since the syncer last looked

  pthread_mutex_t pins_lock;       // guards the lists of what may be kept for readers; no lock is taken with it
  struct memtable *memtables;      // all that live, in a view of the store's or kept by snapshots and iterators
  struct xdb_snapshot *snapshots;
  uint32_t nr_snapshots;
  struct sst_retired retired;      // files kept for readers

  _Atomic uint64_t stall_ns, stall_max_ns;  // time writers were made to wait; relaxed
  _Atomic uint32_t nr_refs, nr_iters;
};

struct xdb_snapshot {
  struct xdb *xdb;
  struct view *view;             // counted
  uint64_t moment;
  uint64_t taken_ns;             // time_ns() at the moment
  struct xdb_snapshot *next, *prev;  // guarded by xdb.pins_lock
};

struct xdb_ref {
  struct epoch_slot slot;
  struct xdb *xdb;
  struct xdb_snapshot *snapshot; // what it reads; NULL: the store as it is
  struct sst_hold hold;          // of gets
  struct blkio_queue *queue;     // for iterators' read-ahead, made with the first iterator, and for batches of blocks
  struct multiget *multiget;     // made with the first use
  uint64_t debt;                 // bytes written since the pace was last looked at
};

struct xdb_iter {
  struct xdb_ref *ref;
  struct view *view;             // counted; NULL: parked or not yet positioned
  enum remixdb_status status;
  struct err_saved error;        // why status
  bool has_rec;                  // rec is the current record
  struct kv_rec rec;
  struct merge merge;
};

MUST_CHECK enum remixdb_status xdb_open(const char *dir, const struct remixdb_opts *o, struct env *env, struct xdb **out);
MUST_CHECK enum remixdb_status xdb_close(struct xdb *x);  // frees x in any case
MUST_CHECK enum remixdb_status xdb_ref(struct xdb *x, struct xdb_ref **out);
void xdb_unref(struct xdb_ref *r);

// A line for the store's logger.
void xdb_say(struct xdb *x, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

// What the ref reads now, with a count of its own on the view: not in an epoch.
struct view *xdb_view_ref(struct xdb_ref *r, uint64_t *moment_out);
void xdb_view_unref(struct view *v);

// A snapshot of what the ref reads now: it holds the view, so that its memtables, tables and REMIXes stay, and the moment in it (X2). Any thread may release it,
// after its refs.
MUST_CHECK enum remixdb_status xdb_snapshot(struct xdb_ref *r, struct xdb_snapshot **out);
MUST_CHECK enum remixdb_status xdb_snapshot_ref(struct xdb_snapshot *s, struct xdb_ref **out);
void xdb_snapshot_release(struct xdb_snapshot *s);  // NULL is allowed

// tomb: a delete.
MUST_CHECK enum remixdb_status xdb_put(struct xdb_ref *r, struct kref key, const void *val, uint32_t vlen, bool tomb);
// All of the batch or nothing, to readers and after a crash: the leaves of its keys stay locked from the first version linked to the last one stamped, its records
// are one frame of the log, and one store publishes them. The batch is not changed. REMIXDB_TOOBIG: larger than a memtable.
MUST_CHECK enum remixdb_status xdb_write(struct xdb_ref *r, const struct xdb_batch *b);
// fn is called with the key's leaf locked: it must not call the store. When the memtable is frozen at that moment it is called again, with what is there then.
MUST_CHECK enum remixdb_status xdb_merge(struct xdb_ref *r, struct kref key, remixdb_merge_fn fn, void *priv);
// Copies at most cap bytes of the value to val_out (which may be NULL: cap 0); *vlen_out, when given, is the full length. REMIXDB_NOTFOUND.
MUST_CHECK enum remixdb_status xdb_get(struct xdb_ref *r, struct kref key, void *val_out, uint32_t cap, uint32_t *vlen_out);
// Looks up nr keys at one moment: the contract is remixdb_multi_get's. *nr_out is set in any case.
MUST_CHECK enum remixdb_status xdb_multi_get(struct xdb_ref *r, size_t nr, const struct remixdb_slice *keys, struct remixdb_buf *values, bool *found,
                                             size_t *nr_out);
MUST_CHECK enum remixdb_status xdb_sync(struct xdb_ref *r);
// Waits until no memtable is frozen. For tests and benchmarks.
MUST_CHECK enum remixdb_status xdb_wait_idle(struct xdb *x);
// Brings what is in memory into tables, and waits for it. Rounds that are tried again are waited for as well, but the failure of one (REMIXDB_NOSPACE,
// REMIXDB_NOMEM, or what stopped the store) is returned. Outside of any epoch. REMIXDB_READONLY.
MUST_CHECK enum remixdb_status xdb_flush(struct xdb *x);
// Brings all that was written before into the fewest tables, without tombstones and old versions, in several rounds, and waits. Writers go on meanwhile; what they
// write is not waited for. Otherwise as xdb_flush.
MUST_CHECK enum remixdb_status xdb_compact(struct xdb *x);
MUST_CHECK enum remixdb_status xdb_stats(struct xdb *x, char **json_out);

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
// REMIXDB_NOTFOUND when not valid; the record holds until the iterator moves.
MUST_CHECK enum remixdb_status xdb_iter_record(struct xdb_iter *it, struct kv_rec *rec_out);
#endif
