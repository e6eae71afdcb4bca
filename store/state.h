// SPDX-License-Identifier: Apache-2.0
//
// The store in memory: what its calls share. xdb.h makes it, ends it, and has its calls.
//
// One atomic pointer, the view, names the active memtable, the frozen one (being compacted; or none) and the version of
// the partitions. It is replaced, never edited, under `lock`; readers load it inside an epoch. An old view's count is
// dropped after all epochs in which it could be seen have passed; iterators hold a count of their own. Where theirs is
// the last one, the version's files are for workers to remove (store/idle.h).
//
// Invariants
//   X1  A sequence number is published only when its version is stamped in the memtable and its record is in the log's
//   buffer; numbers are published in order.
//       So every number up to `published` is committed, and a moment taken from it never changes.
//   X2  A reader loads the view first, then the moment. What is at or before the moment is in that view, or was moved
//   on by a view installed before it. X3  A writer that has linked a version in a memtable commits it only when the
//   log's generation is still that memtable's; otherwise it takes the version
//       back and begins again with the new view. So nothing is committed in a frozen memtable.
//   X4  A memtable leaves the view only when the version that holds its content is durable, and its log segments are
//   released only after that.
// Lock order: lock, a leaf's lock, the log's lock. `lock` is never taken with an epoch entered.
#ifndef STORE_STATE_H
#define STORE_STATE_H

#include "base/dirlock.h"
#include "compact/compact.h"
#include "view/super.h"
#include "log/wal.h"

// What the store's parts keep in it. Each belongs to the file of its name in store/.

// Rounds (round.c). Guarded by xdb.lock.
struct rounds {
  _Atomic bool compacting;  // there is a frozen memtable. Written under the lock, read without
  struct err_saved error;   // why the last round failed, when it may be tried again; status OK: it did not
  uint64_t failed_ns;       // when that was
  uint64_t nr_frozen;       // memtables that were frozen,
  uint64_t nr_installed;    // and those of them whose rounds have ended well
  bool flushing;            // the frozen memtable hands nothing back
  uint32_t
      nr_flushers;  // threads that wait to freeze the active memtable; writers whose memtable is full leave it to them
  enum {
    XDB_AT_REST,
    XDB_AT_MEMTABLE,
    XDB_AT_SCANS
  } at;                     // what the running round works on: a frozen memtable, or a scan merge
  struct xdb_whole *whole;  // for the next round that begins; NULL: it decides by what there is to do
};

// Scan merges (round.c). Guarded by xdb.lock; `due` and `again_ns` are relaxed atomics that readers look at.
struct scan_merges {
  _Atomic bool due;           // some partition may have paid for one
  _Atomic uint64_t again_ns;  // readers do not ask again before this time
  bool put_off;               // one is made after the next round of a memtable, or when it is asked for again
  size_t used;         // bytes in the nearly full active memtable when its growth was last looked at; 0: it was not
  uint64_t looked_ns;  // when that was
  bool ending;         // the store is about to close: no more of them
};

// The pace of writers (pace.c). Relaxed.
struct pace {
  _Atomic uint64_t at_ns;  // when the next writer may go on
  _Atomic uint64_t round_began_ns, last_round_ns;
  _Atomic uint64_t round_rate;              // work that past rounds did in a second
  _Atomic uint64_t round_tail_ns;           // from the end of a round's work until it was installed
  _Atomic uint64_t stall_ns, stall_max_ns;  // how long writers waited, in sum and at most
};

// The thread that syncs every N ms (syncer.c).
struct syncer {
  pthread_t thread;
  bool running;
  pthread_mutex_t lock;  // guards `stop`
  pthread_cond_t wake;
  bool stop;
  _Atomic bool dirty;  // something was written since the thread last looked
};

// The snapshots that exist (snapshot.c).
struct snapshots {
  pthread_mutex_t lock;  // guards the list; no lock is taken with it
  struct xdb_snapshot *first;
  uint32_t nr;
};

// What readers leave to workers (idle.c): versions whose last reference was a reader's.
struct idle {
  _Atomic(struct version *) left;  // a stack; release-pushed
  _Atomic uint32_t nr_left;        // with those that workers are destroying; release-decremented when one is gone
};

// store/reserve.h. Guarded by its lock, which is taken with no other than xdb.lock; the log's is taken within.
struct xdb_reserve {
  pthread_mutex_t lock;
  uint64_t size, want;  // bytes of the file, and what it is to have
  bool off;             // the file system cannot reserve room
  bool scarce;          // there was none for it: the log grows for deletes only
};

struct xdb {
  // set at open
  struct env *env;
  struct env_dir home;       // its directory, held while the store is open
  char *dir;                 // its path, for messages
  struct remixdb_opts opts;  // its strings are the caller's: for opening alone
  size_t memtable_limit;     // bytes of a memtable at which it is frozen
  uint64_t wal_limit;        // bytes that the log may have on disk
  bool leave_log;            // the end brings nothing into tables: the next opening replays it
  struct dirlock dirlock;
  uint32_t forks;  // fork_count when it was opened: another one tells a child made by fork
  uint64_t store_id;
  struct blkio io;
  struct fdpool *fds;
  struct cache *cache;
  struct sst_ctx ctx;
  struct wal *wal;          // with read_only it was replayed, and takes nothing
  struct workers *workers;  // NULL: read_only
  struct remix_watch watch;  // the REMIXes'
  struct compact compact;
  struct wal_recovery recovery;
  uint32_t nr_cleaned;  // files that no version names, removed by the opening

  _Alignas(CACHE_LINE) _Atomic(struct super *) view;  // release-published under lock
  _Alignas(CACHE_LINE) _Atomic uint64_t published;    // see X1; release-stored under the log's lock
  _Alignas(CACHE_LINE) struct epoch epoch;
  struct epoch cursors;  // who keeps a position in a memtable between calls (wh_recycle)

  _Alignas(CACHE_LINE) _Atomic uint32_t failed;  // status that refuses all writes; 0: none. The message is in `error`

  struct rounds rounds;
  struct scan_merges scan_merges;
  struct pace pace;
  struct syncer syncer;
  struct snapshots snapshots;
  struct idle idle;

  pthread_mutex_t lock;    // guards rounds, scan_merges and what is below, and the replacement of view
  pthread_cond_t changed;  // a round has ended, or a flush that waited has had its turn
  struct err_saved error;  // why `failed`

  struct xdb_reserve reserve;
  struct memtables memtables;
  struct sst_retired retired;  // files kept for readers

  _Atomic uint32_t nr_refs, nr_iters;
};

// Whether this process is a child, made by fork, of the one that opened the store.
static inline bool xdb_is_anothers(const struct xdb *x) { return unlikely(fork_now() != 0) && fork_now() != x->forks; }

// Inside an epoch, or under lock.
static inline struct super *xdb_super(struct xdb *x) { return atomic_load_explicit(&x->view, memory_order_acquire); }

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
