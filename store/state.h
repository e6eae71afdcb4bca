// SPDX-License-Identifier: Apache-2.0
//
// The store in memory: what its calls share. xdb.h makes it, ends it, and has its calls.
//
// One atomic pointer, the view, names the active memtable, the frozen one (being compacted; or none) and the version of the partitions. It is replaced,
// never edited, under `lock`; readers load it inside an epoch. An old view's count is dropped after all epochs in which it could be seen have passed;
// iterators hold a count of their own. Where theirs is the last one, the version's files are for workers to remove (store/idle.h).
//
// Invariants
//   X1  A sequence number is published only when its version is stamped in the memtable and its record is in the log's buffer; numbers are published in order.
//       So every number up to `published` is committed, and a moment taken from it never changes.
//   X2  A reader loads the view first, then the moment. What is at or before the moment is in that view, or was moved on by a view installed before it.
//   X3  A writer that has linked a version in a memtable commits it only when the log's generation is still that memtable's; otherwise it takes the version
//       back and begins again with the new view. So nothing is committed in a frozen memtable.
//   X4  A memtable leaves the view only when the version that holds its content is durable, and its log segments are released only after that.
// Lock order: lock, a leaf's lock, the log's lock. `lock` is never taken with an epoch entered.
#ifndef STORE_STATE_H
#define STORE_STATE_H

#include "base/dirlock.h"
#include "compact/compact.h"
#include "view/super.h"
#include "log/wal.h"

struct xdb {
  // set at open
  struct env *env;
  struct env_dir home;          // its directory, held while the store is open
  char *dir;                    // its path, for messages
  struct remixdb_opts opts;    // its strings are the caller's: for opening alone
  size_t memtable_limit;       // bytes of a memtable at which it is frozen
  uint64_t wal_limit;          // bytes that the log may have on disk
  bool leave_log;              // the end brings nothing into tables: the next opening replays it
  struct dirlock dirlock;
  uint64_t store_id;
  struct blkio io;
  struct fdpool *fds;
  struct cache *cache;
  struct sst_ctx ctx;
  struct wal *wal;             // with read_only it was replayed, and takes nothing
  struct workers *workers;     // NULL: read_only
  struct compact compact;
  struct wal_recovery recovery;

  _Alignas(CACHE_LINE) _Atomic(struct view *) view;    // release-published under lock
  _Alignas(CACHE_LINE) _Atomic uint64_t published;     // see X1; release-stored under the log's lock
  _Alignas(CACHE_LINE) struct epoch epoch;
  struct epoch cursors;                                // who keeps a position in a memtable between calls (wh_recycle)

  _Alignas(CACHE_LINE) _Atomic uint32_t failed;        // status that refuses all writes; 0: none. The message is in `error`
  _Atomic bool compacting;                             // there is a frozen memtable
  _Atomic bool worn;                                   // there may be partitions to be merged for their scans' sake. Relaxed
  _Atomic uint64_t worn_again_ns;                      // it is not asked for again before. Relaxed
  _Atomic uint64_t pace_at_ns;                         // when the next writer may go on (see store/pace.h)
  _Atomic uint64_t round_began_ns, last_round_ns;
  _Atomic uint64_t round_rate, round_tail_ns;          // of rounds before, for the pace: work done in a second; from its end until it was installed

  pthread_mutex_t lock;        // guards all below, and the replacement of view
  pthread_cond_t changed;      // a round has ended, or a flush that waited has had its turn
  struct err_saved error;      // why `failed`
  struct err_saved round_error;  // why the last round failed, when it may be tried again (status OK: it did not)
  uint64_t round_failed_ns;
  uint64_t nr_frozen, nr_installed;  // memtables that were frozen, and those of them whose rounds have ended well
  bool flushing;               // nothing of the frozen memtable is handed back
  uint32_t nr_flushers;        // threads that wait to freeze the active one: writers whose memtable is full leave it to them
  enum { XDB_AT_REST, XDB_AT_MEMTABLE, XDB_AT_SCANS } at;  // what xdb_round_run is at: a frozen memtable, or partitions that scans have paid for
  bool worn_put_off;           // one is to be made after the next round of a memtable, or when it is asked for again
  size_t worn_used;            // bytes in the active memtable, nearly full, when it was looked at how fast it grows (0: it was not),
  uint64_t worn_looked_ns;     // and when that was
  bool ending;                 // there are to be no more of those
  struct xdb_whole *whole;     // for the next round that begins; NULL: it goes by what there is to do

  pthread_t syncer;            // with sync every N ms
  bool has_syncer;
  pthread_mutex_t sync_lock;   // guards stop_syncer
  pthread_cond_t sync_wake;
  bool stop_syncer;
  _Atomic bool dirty;          // something was written since the syncer last looked

  struct memtables memtables;
  pthread_mutex_t snapshots_lock;  // guards the list of snapshots; no lock is taken with it
  struct xdb_snapshot *snapshots;
  uint32_t nr_snapshots;
  struct sst_retired retired;      // files kept for readers

  _Atomic(struct version *) left;  // versions that readers were the last to have, for workers to destroy; release-pushed
  _Atomic uint32_t nr_left;        // how many, with those that workers are at; release-decremented when one is gone
  _Atomic uint64_t stall_ns, stall_max_ns;  // time writers were made to wait; relaxed
  _Atomic uint32_t nr_refs, nr_iters;
};

// Inside an epoch, or under lock.
static inline struct view *xdb_view(struct xdb *x) { return atomic_load_explicit(&x->view, memory_order_acquire); }

// From here on no write is accepted. The first reason stays. Takes lock.
void xdb_fail(struct xdb *x, const struct err_saved *why);
// Why writes are refused: REMIXDB_OK when they are not.
MUST_CHECK enum remixdb_status xdb_failure_raise(struct xdb *x);
static inline enum remixdb_status xdb_failure(struct xdb *x) {
  return likely(atomic_load_explicit(&x->failed, memory_order_relaxed) == 0) ? REMIXDB_OK : xdb_failure_raise(x);
}

// A line for the store's logger.
void xdb_say(struct xdb *x, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#endif
