// SPDX-License-Identifier: Apache-2.0
//
// One budget for the memory of a store (the option memory_mb). It is divided like this: memtables, compaction and
// indexes have shares, and the block cache gets the rest and follows it. The options cache_mb and memtable_mb rule
// where they are set: then the cache or the memtables do not follow. Where both are set, and the budget is not, they
// take nothing of the default budget, and indexes have MEMORY_INDEX_ALONE/16 of it.
//
//   indexes      and the metadata of tables, MEMORY_INDEX_PARTS/16: beyond that, REMIXes are paged (remix/paged.h).
//                Indexes of collected value files have a quarter of it (compact/moved.h)
//                Dictionaries of tables have 1/MEMORY_DICTS_PART of the budget of it at most (table/dict.h)
//   memtables    1/MEMORY_MEMTABLE_PART of the budget for each of two, a power of two of MiB, MEMORY_MEMTABLE_MAX at
//                most
//   compaction   1/MEMORY_WORK_PART, MEMORY_WORK_MAX at most; work that needs more runs alone (base/budget.h)
//   scans        what iterators and refs keep for themselves, with readahead memory of 1/MEMORY_SCANS_PART at most:
//                beyond that they read into the cache, or block by block
//   pieces       1/MEMORY_PIECES_PART at most: beyond that, new tables get none
//   the cache    the rest, at least 1/MEMORY_CACHE_PART
//
// A store is *at rest* while nobody writes to it. Then the shares of memtables and of compaction that are not in use
// serve as cache. The store is *busy* from the time when a memtable grows or a round begins until MEMORY_REST_NS after
// the last round. Without workers it stays busy.
//
// Memory that the user of the store asks for comes on top: batches, transactions and values that are read. The
// memtables and tables that open iterators and snapshots keep take their memory from the cache first, and come on top
// when the cache is at its least size. The metadata of tables comes on top where it is larger than the share of
// indexes.
#ifndef STORE_MEMORY_H
#define STORE_MEMORY_H

#include "store/state.h"

// Bytes that a memtable with this limit may have once records are late (xdb_wait_room_a_while): what a round may have
// handed back, and 1/MEMORY_LATE_PART, beyond the limit.
#define MEMORY_LATE_PART 32u
static inline size_t memory_late(size_t limit) {
  return limit + limit / COMPACT_ABORT_SHARE + limit / MEMORY_LATE_PART;
}

#define MEMORY_MEMTABLE_PART 8u
#define MEMORY_MEMTABLE_MAX ((size_t)256 << 20)
#define MEMORY_WORK_PART 4u
#define MEMORY_WORK_MAX ((size_t)256 << 20)
#define MEMORY_PIECES_PART 16u
#define MEMORY_SCANS_PART 16u
#define MEMORY_DICTS_PART 16u
#define MEMORY_ADMISSION_PART 16u  // the table of base/admission.h takes at most 1/16 of the cache
#define MEMORY_INDEX_PARTS 5u
#define MEMORY_INDEX_ALONE 8u
#define MEMORY_CACHE_PART 16u
#define MEMORY_REST_NS 5000000000ull

// Sets how many chunks wait for the next memtables, which have this limit. If none wait, that stays so.
void memory_chunks(struct xdb *x, size_t limit);
// How many of the `wanted` bytes of chunks idle work may get for the next memtables: no more than memory_look leaves
// there, or both would go on for ever.
size_t memory_chunks_ahead(struct xdb *x, size_t wanted);
void memory_init(struct xdb *x);  // no budget, and accounts that are empty
void memory_fini(struct xdb *x);
// Finds out how much memory the process may use (compact.memory). Gives the options cache_mb and memtable_mb their
// values from the budget if they are not set. Touches no file of the store.
void memory_plan(struct xdb *x);
// Lets freed blocks stay for the next merge and the next REMIX, as many as suit the budget, until memory_fini. An
// opening, or a holder of memory.lock.
void memory_keep(struct xdb *x);
// Sets the sizes by which rounds go, from the limit of memtables. No round runs.
void memory_rounds(struct xdb *x);
// The store is open: from now on the cache follows the budget. No round runs, and none begins before the call ends.
// used: the bytes of the active memtable.
void memory_begin(struct xdb *x, size_t used);

// The store has this version: how large it is beside memory decides whether reads may go past the page cache
// (base/admission.h). Any thread.
void memory_data(struct xdb *x, const struct version *v);

// Lets the cache follow the budget. Any thread, outside of any epoch, without locks. May wait until readers have left
// blocks that go, and for another thread that does the same.
void memory_look(struct xdb *x);
// The same; and the store is busy from now on, or still. Returns whether it was at rest.
bool memory_busy(struct xdb *x);
// The time (time_ns) at which a busy store may come to rest if no round runs then. 0: it is at rest.
uint64_t memory_rest_at(struct xdb *x);
// The store comes to rest: its active memtable takes `used` bytes, and the pool of chunks keeps `wanted` bytes. The
// same callers as of memory_look.
void memory_rest(struct xdb *x, size_t used, size_t wanted);
// The active memtable takes so many bytes. True: the store should become busy (idle_grow). Any thread.
static inline bool memory_grows(const struct xdb *x, size_t used) {
  return unlikely(used > atomic_load_explicit(&x->memory.rest_until, memory_order_relaxed));
}
// A round begins, in the calling thread: it goes by the sizes that memory_set has left.
void memory_round(struct xdb *x);

// Changes the budget, in bytes. The new limit of memtables holds at once, and so does that of freed blocks (mem_keep);
// the sizes of rounds hold from the next round on. The sizes of tables and of the log stay. Outside of any epoch, under
// settings.lock.
void memory_set(struct xdb *x, size_t budget);
// Changes the size of the cache, which does not follow the budget any more. The same callers. Fails as cache_resize
// does; then nothing has changed.
MUST_CHECK enum remixdb_status memory_cache_set(struct xdb *x, size_t size);
#endif
