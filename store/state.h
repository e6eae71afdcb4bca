// SPDX-License-Identifier: Apache-2.0
//
// The store in memory: the state that its calls share. xdb.h has these calls, and opens and closes the store.
//
// One atomic pointer, the super, names the active memtable, the frozen one (while a round compacts it) and the
// partitions' version. A thread replaces the super under `lock`, and never edits it; readers load it inside an epoch.
// The store drops its reference to an old super when all epochs have passed in which a reader could see that super. An
// iterator has a separate reference. When a reader drops the last reference, workers remove the version's files
// (store/idle.h).
//
// Invariants
//   X1  A sequence number is published only when its version is stamped in the memtable and its record is in the log's
//       buffer. Numbers are published in order. So every number up to `published` is committed, and a moment taken from
//       it never changes.
//   X2  A reader loads `published` first, then the super, and reads the super at the larger of that number and the
//       super's `least`. So the super has every write at or before the moment, in its memtables or in its version, and
//       the reader sees all of its version and of its frozen memtable. `least` is at most the number that `published`
//       has when it next changes, so the moments of one thread never go back.
//   X3  A writer that has linked a version in a memtable commits it only while the log's generation is that memtable's.
//       Otherwise it takes the version back and begins again with the new super. So nothing is committed in a frozen
//       memtable.
//   X4  A memtable leaves the super only when the version with its content is durable. Its log segments are released
//       only after that. The new super's `since` covers the records of that memtable.
//   X5  A record that a round hands back keeps its number, unless the active memtable has a newer one of its key. So a
//       reader of a super with a frozen memtable finds such a record in both memtables, and its active memtable may get
//       records at or before its moment at any time: each of them is one that the frozen memtable has, too.
// Lock order: lock, a leaf's lock, the log's lock. No thread takes `lock` inside an epoch.
#ifndef STORE_STATE_H
#define STORE_STATE_H

#include "base/dirlock.h"
#include "base/eventcount.h"
#include "base/pool.h"
#include "compact/compact.h"
#include "remix/paged.h"
#include "value/write.h"
#include "view/super.h"
#include "log/wal.h"

// The parts of a store. Each belongs to the file of its name in store/.

// Rounds (round.c). Guarded by xdb.lock.
struct rounds {
  _Atomic bool compacting;  // a memtable is frozen. Written under the lock, read without it
  bool ingesting;  // an ingest is about to take its place (store/handover.h): nobody freezes the active memtable
  struct err_saved error;  // why the last round failed, if it may be tried again. Status REMIXDB_OK: it did not fail
  uint64_t failed_ns;      // when it failed
  uint64_t nr_frozen;      // memtables frozen so far
  uint64_t nr_installed;   // frozen memtables that are in tables now
  bool flushing;           // a call waits for the round of the frozen memtable, which hands nothing back
  bool nothing_back;       // a batch needs all of the next memtable: the same, but nobody waits
  uint32_t nr_flushers;    // threads that wait to freeze the active memtable: writers with a full one let them go first
  bool full;               // a merge has found the disk full (make_room.c). Only rounds use this field and the next one
  uint64_t full_again_ns;  // until this time rounds make no merges for a full disk
  enum xdb_at { XDB_AT_REST, XDB_AT_MEMTABLE, XDB_AT_SCANS } at;  // the work of the round that runs
  struct xdb_whole *whole;  // the next round also does this work; NULL: no call asks for work
  struct xdb_edit *edits;   // the next round makes these edits, too (ranges.h), in this order
  // The version that CURRENT names, with a reference, while the store's own is newer and could not be saved (ranges.h,
  // D4); NULL: they are the same. Guarded by xdb.installing.
  struct version *unsaved;
};

// Scan merges (scan_merge.c). Guarded by xdb.lock. Readers look at `due` and `again_ns`, which are relaxed.
struct scan_merges {
  _Atomic bool due;           // the scan debt of some partition may pay for a merge
  _Atomic uint64_t again_ns;  // readers do not ask again before this time
  bool put_off;               // a merge waits for the next round of a memtable, or for the next reader that asks
  size_t used;                // bytes of the nearly full active memtable at the last look; 0: no look yet
  uint64_t looked_ns;         // when that look was
  bool ending;                // the store is about to close, so no merge may begin
};

// Merges for garbage (garbage_merge.c).
struct garbage_merges {
  _Atomic uint64_t look_ns;  // an idle worker looks at this time; 0: it need not. Relaxed
  _Atomic bool due;          // the next round makes some. Relaxed
  _Atomic uint64_t rest_ns;  // GARBAGE_REST_NS, or another time in tests. Relaxed
  _Atomic uint64_t written;  // the number published at the last look. Relaxed: an older one only puts a merge off
};

// Deletions in the memtable (hiding.c). The opening and tests write some of these fields, and idle work alone writes
// the others.
struct hiding {
  _Atomic uint64_t rest_ns;  // HIDING_REST_NS, or another time in tests. Relaxed, like all of these
  _Atomic uint64_t least;    // HIDING_LEAST, or less in tests
  _Atomic uint64_t at_ns;    // the time of the next look; 0: no worker looks
  _Atomic bool due;          // the next round freezes the memtable
  _Atomic bool ending;       // the store is about to close
  _Atomic uint32_t nr;       // estimates, for tests
  // For values apart that the active memtable has replaced (store/hidden_values.h)
  _Atomic uint64_t value_bytes;  // as the last pass over it has found
  _Atomic uint64_t again_ns;     // no pass before that time
  uint64_t wait_ns;              // the next look comes so many ns after the last one
  uint64_t written;              // the number that was published at the last look
  _Atomic uint64_t judged;       // the same at the last estimate
};

// The readings of the wall clock (expiry.c). Guarded by `lock`.
struct expiry {
  pthread_mutex_t lock;
  bool begun;
  uint64_t began_ms;         // when the current period began, by the clock that never steps
  uint64_t least_ms;         // the least reading of the wall clock in this period
  uint64_t before_ms;        // that of the period before; 0: there is none
  _Atomic uint64_t look_ms;  // the next look at the partitions, by the clock that never steps; relaxed
};

// The pace of writers (pace.c). Relaxed.
struct pace {
  _Atomic uint64_t at_ns;  // the next writer may go on at this time
  _Atomic uint64_t round_began_ns, last_round_ns;
  _Atomic uint64_t round_rate;              // work of past rounds in a second
  _Atomic uint64_t round_tail_ns;           // from the end of a round's work until it is installed
  _Atomic uint64_t stall_ns, stall_max_ns;  // waits of writers: the sum, and the longest wait
};

// The thread that syncs every N ms (syncer.c).
struct syncer {
  _Atomic int how;       // the option `sync`. Relaxed: a writer uses the old value or the new one
  _Atomic bool running;  // the thread is there. Written by the opening and by store/settings.c; relaxed, like `how`
  uint32_t every_ms;     // the running thread's
  pthread_t thread;
  struct eventcount wake;  // something was written, or the thread is to stop
  _Atomic bool stop;       // relaxed
  _Atomic bool dirty;      // something was written since the thread last looked
};

// The snapshots that exist (snapshot.c).
struct snapshots {
  pthread_mutex_t lock;  // guards the list; its holder takes no other lock
  struct xdb_snapshot *first;
  uint32_t nr;
};

// The named spaces (space.c).
struct spaces {
  pthread_mutex_t changing;  // held while a space is made or dropped; before `installing` and xdb.lock
  pthread_mutex_t lock;      // guards the lists; its holder takes no other lock
  struct xdb_space **open;   // those that somebody has opened: lists by the hashes of their names
  uint32_t nr, nr_lists;     // handles; lists, a power of two or 0
};

// The room of dropped spaces (dropped.c). `asked` and `again_ns` are relaxed; only rounds use the rest.
struct dropped {
  _Atomic bool asked;         // the next round begins with it
  _Atomic uint64_t again_ns;  // an idle worker asks at this time; 0: no
  uint64_t delay_ns;          // the last time between two tries that failed
  uint64_t given_up;          // the stamp of the names for which a step has failed for good
  uint32_t waits;             // merges that were given up or could not begin, in a row
  bool values_stay;           // a version was installed while a partition could not be opened: it has all value files
};

// Transactions (txn_pool.c).
struct txns {
  // Those that have ended wait for the next ones, with their refs and some memory. Each keeps its reference to a super
  // that is the store's: see txn_pool_let_go.
  struct pool pool;
  // Set by opening: the calls of store/txn_pool.h, for parts of the store that transactions are built on.
  void (*let_go)(struct xdb *x);
  void (*fini)(struct xdb *x);
  // Figures, each the sum over all. A thread counts in the place that pool_home names. Relaxed.
  struct txn_counts {
    _Alignas(CACHE_LINE) _Atomic uint64_t begun, ended, committed, conflicts;
  } counts[POOL_PLACES];
};

// Range deletion (ranges.c).
struct range_limits {
  uint64_t few;      // with more keys in tables than this a range is deleted key by key only if that costs less
  uint64_t cut_few;  // a cut of a partition with more keys than this costs it a new REMIX
  uint64_t most;     // with more keys in tables than this a range is never deleted key by key
};

// The collection of garbage in value files (collect.c).
struct collect {
  bool (*idle)(struct xdb *x, struct epoch_slot *slot);  // set by opening: collect_idle, for idle work
  pthread_mutex_t lock;      // held by the thread that collects or installs; before `installing`
  struct collecting *now;    // the collection under way; NULL: none. Guarded by the lock
  uint64_t again_ns;         // none begins before: the last one could not be installed (G5 in collect.h). The same
  uint64_t paid;             // bytes written to value files when the last round without workers ended. The same
  _Atomic bool asked;        // an idle worker is to look. Relaxed, like all below, but for collect_pending
  _Atomic bool busy, ready;  // `now` is there, or a worker looks; it waits for a round to install it
  _Atomic bool ending;       // the store is about to close
  _Atomic uint64_t look_ns;  // idle work looks at this time, because the store was opened; 0: it need not. Relaxed
  // The pace of those who write values (value_pace.c): bytes that value files may have together, and how many more make
  // a writer wait for the longest time.
  _Atomic uint64_t allowed, zone;
  _Atomic uint64_t ingesting;  // bytes, about, of value files of ingests that are under way. Relaxed
  _Atomic bool urgent;         // the disk had no room for a put, and none of a long value has found any since. Relaxed
  // Since the store was opened: collections, the files that they removed, bytes of values that they moved, and that
  // they left out.
  _Atomic uint64_t nr, files, moved_bytes, freed_bytes;
};

// Versions whose last reference a reader dropped: workers destroy them (idle.c).
struct idle {
  _Atomic(struct version *) left;  // a stack; pushed with release
  _Atomic uint32_t nr_left;        // versions on the stack or being destroyed; decremented with release
};

// The division of memory (memory.c).
struct memory {
  struct budget accounts;
  pthread_mutex_t lock;        // guards the next five. Its holder may change the cache's size, and so wait for epochs
  _Atomic size_t budget;       // bytes; 0: there is none. The figures read it without the lock, relaxed
  _Atomic bool cache_follows;  // the size of the cache follows the budget. Workers read it without the lock, relaxed
  bool memtable_follows;
  bool busy;
  uint64_t busy_ns;           // when that was noticed last
  _Atomic size_t rest_until;  // the store is at rest until the active memtable has more bytes. Relaxed
  _Atomic bool asked;         // a writer asks that the store become busy
  _Atomic bool resized;       // the next round goes by other sizes. Relaxed
};

// Reserved room on disk (reserve.c). A thread that takes its lock holds no lock except xdb.lock; the log's lock is
// taken inside it.
struct xdb_reserve {
  pthread_mutex_t lock;
  uint64_t size, want;     // bytes of the file: its size, and the size that it should have
  uint64_t for_tables;     // the size that it should have without value files
  uint64_t tables;         // bytes of tables that it was measured by, with replayed records,
  uint64_t named;          // and of value files that the version names
  _Atomic uint64_t again;  // bytes of value files at which it is to be measured again. Relaxed; written under the lock
  bool off;                // the file system cannot reserve room
  bool scarce;             // the disk had no room for the file: the log grows for deletes only
};

// Puts for which the disk has no room (write_steps.c). Relaxed.
struct refused {
  _Atomic uint64_t written;   // `published` when a put was refused last
  _Atomic uint64_t again_ns;  // until then no further round is made for such puts
};

// Options that change while the store is open (settings.c).
struct settings {
  pthread_mutex_t lock;  // one change at a time. A thread that takes it holds no other lock
  char *worker_cores;    // the option, own memory; NULL: "auto"
};

struct xdb {
  // Set by opening.
  struct env *env;
  struct env_dir home;       // the store's directory, held while the store is open
  char *dir;                 // its path, for messages
  struct remixdb_opts opts;  // the caller owns the strings, and only the opening reads them
  // Bytes of memory at which a memtable is frozen. Relaxed: a writer goes by the old value or the new one.
  _Atomic size_t memtable_limit;
  uint64_t wal_limit;   // bytes that the log may have on disk
  uint64_t leave_most;  // bytes that closing leaves in the log: FLUSH_LEAVE, or another number in tests
  bool leave_log;       // closing leaves the log as it is, and the next opening replays it
  struct dirlock dirlock;
  uint32_t forks;  // fork_count at opening; a child made by fork has another one
  uint64_t store_id;
  uint64_t *origins;       // the origins that CURRENT lists (view/version.h, V6), ascending
  uint64_t *origins_kept;  // those that are left when the opening has removed files; ctx has them then
  uint32_t nr_origins;
  struct blkio io;
  struct fdpool *fds;
  struct packs *packs;  // those of the tables and REMIX files
  struct value_ctx value_ctx;
  struct value_log values;       // for values that the putting threads write apart; compact.values has the rounds'
  struct wal_values log_values;  // for the log
  uint64_t values_least;         // VALUES_PER_MIN, or less in tests
  _Atomic uint64_t
      values_lost;  // bytes of values that were given up since the active memtable is there, about. Relaxed
  // While the log is replayed: the memtable, and the version that CURRENT names.
  struct memtable *replay_into;
  const struct version *replay_from;
  struct cache *cache;
  _Atomic size_t scan_room;  // ctx's; changes while the store is open (memory_rounds)
  struct sst_ctx ctx;
  struct wal *wal;           // with read_only it was replayed, and takes no records
  struct workers *workers;   // NULL with read_only
  struct remix_watch watch;  // the watch of the scan debt of all REMIXes
  struct compact compact;
  size_t kept;  // bytes that this store lets the process keep (mem_keep). Once it is open, memory.lock guards it
  struct wal_recovery recovery;
  uint32_t replay_rounds;  // that the opening has made
  uint32_t nr_cleaned;     // files that no version named, removed by opening

  _Alignas(CACHE_LINE) _Atomic(struct super *) super;  // release-published under `lock`
  _Alignas(CACHE_LINE) _Atomic uint64_t published;     // X1; release-stored under the log's lock
  _Alignas(CACHE_LINE) struct epoch epoch;
  struct epoch cursors;  // threads that keep a position in a memtable between calls (wh_recycle)

  _Alignas(CACHE_LINE) _Atomic uint32_t failed;  // the status that refuses all writes, or 0. Its message is in `error`

  struct rounds rounds;
  struct scan_merges scan_merges;
  struct garbage_merges garbage_merges;
  struct hiding hiding;
  struct expiry expiry;
  struct pace pace;
  struct syncer syncer;
  struct settings settings;
  struct memory memory;
  struct remix_pool pages;  // for paged REMIXes
  struct sst_dicts dicts;   // the tables'
  struct snapshots snapshots;
  struct range_limits ranges;  // set by opening, and by tests
  struct spaces spaces;
  struct dropped dropped;
  struct txns txns;
  struct collect collect;
  struct idle idle;
  struct admission admission;  // decides which blocks readers read past the page cache

  pthread_mutex_t installing;  // held while CURRENT and the super are replaced; before `lock`
  pthread_mutex_t lock;        // guards rounds, scan_merges, error, and the replacement of super; take it with xdb_lock
  const void *lock_owner;      // debug builds: the thread that holds `lock`
  struct eventcount changed;   // a round has ended, or a thread that waits to freeze has had its turn
  struct err_saved error;      // why `failed`

  struct xdb_reserve reserve;
  struct refused refused;
  struct memtables memtables;
  struct sst_retired retired;  // files kept for readers

  _Atomic uint32_t nr_refs, nr_iters;
  _Atomic uint32_t nr_pins;
  struct pool ref_pool;  // refs that wait for the next thread that borrows one (refpool.c)
};

// Returns memtable_limit. A plain load of a word is as good as an atomic one, whatever value it gets. Compilers join a
// plain load with a compare, but not an atomic one. Writers pass here once per record.
static inline size_t xdb_memtable_limit(const struct xdb *x) {
#if LIB_TSAN
  return atomic_load_explicit(&x->memtable_limit, memory_order_relaxed);
#else
  return *(const size_t *)(const void *)&x->memtable_limit;
#endif
}
_Static_assert(sizeof(_Atomic size_t) == sizeof(size_t), "the same representation");

// Debug builds note the owner of xdb.lock. A function that needs the lock asserts xdb_lock_is_mine.
#ifdef NDEBUG
static inline void xdb_lock_note(struct xdb *x, bool mine) { (void)x, (void)mine; }
#else
void xdb_lock_note(struct xdb *x, bool mine);
#endif
bool xdb_lock_is_mine(const struct xdb *x);  // debug builds only

static inline void xdb_lock(struct xdb *x) {
  pthread_mutex_lock(&x->lock);
  xdb_lock_note(x, true);
}
static inline void xdb_unlock(struct xdb *x) {
  xdb_lock_note(x, false);
  pthread_mutex_unlock(&x->lock);
}
// Releases xdb.lock after a change that others may wait for, and then wakes them. A thread that is woken often takes
// the processor from the one that wakes it. If that one had the lock still, writers would wait for it.
static inline void xdb_unlock_changed(struct xdb *x) {
  xdb_unlock(x);
  eventcount_wake_all(&x->changed);
}
// Releases xdb.lock until somebody wakes those that wait for `changed`, or so many nanoseconds have passed. May return
// early.
static inline void xdb_lock_wait(struct xdb *x, uint64_t ns) {
  xdb_lock_note(x, false);
  (void)eventcount_wait(&x->changed, &x->lock, ns);
  xdb_lock_note(x, true);
}

// Tells whether this process is a child, made by fork, of the process that opened the store.
static inline bool xdb_is_anothers(const struct xdb *x) { return unlikely(fork_now() != 0) && fork_now() != x->forks; }

// Inside an epoch, or under xdb.lock.
static inline struct super *xdb_super(struct xdb *x) { return atomic_load_explicit(&x->super, memory_order_acquire); }

// Makes the store refuse all writes from now on. If it refuses them already, the earlier reason stays. Takes xdb.lock.
void xdb_fail(struct xdb *x, const struct err_saved *why);
// Returns why the store refuses writes, or REMIXDB_OK.
MUST_CHECK enum remixdb_status xdb_failure_raise(struct xdb *x);
static inline enum remixdb_status xdb_failure(struct xdb *x) {
  return likely(atomic_load_explicit(&x->failed, memory_order_relaxed) == 0) ? REMIXDB_OK : xdb_failure_raise(x);
}

// Sends a line to the user's logger. Outside of any lock but `installing`, `spaces.changing` and `collect.lock`. The
// thread may be one that a round, or another thread, waits for.
void xdb_say(struct xdb *x, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// Before a wait for a round, for another thread's call of the logger to return, or for one of those locks. Fails with
// REMIXDB_INVALID in a thread that is in a call of the store's logger, because the wait might have no end.
MUST_CHECK enum remixdb_status xdb_may_wait(const struct xdb *x);
#endif
