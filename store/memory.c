// SPDX-License-Identifier: Apache-2.0
#include "store/memory.h"

#include "base/cgroup.h"
#include "table/dict.h"

#define MIB ((size_t)1 << 20)
#define DEFAULT_PART 4u                      // the budget is by default 1/4 of the machine's memory
#define UNKNOWN_MACHINE ((uint64_t)4 << 30)  // bytes, if the system does not tell
#define SMALL_PART 32u                       // 1/32 of the budget is for small blocks and the heap's losses
#define STEPS 4u                             // a cache of fewer steps changes its size by single MiB
#define GROW_PART 8u                         // a memtable grows by 1/8 of its limit before the store is busy
#define KEEP_PART 16u                        // 1/16 of the budget is for freed blocks
// Bytes: a table and a REMIX in the making for two workers, with their reads and the buffers of the writer. With 6 MiB
// the buffers of one drove out those of the other. Larger work reads so much that the price of its memory is small.
#define KEEP_MAX ((size_t)12 << 20)

static inline size_t budget_now(const struct memory *m) {
  return atomic_load_explicit(&m->budget, memory_order_relaxed);
}
static inline bool cache_follows(const struct memory *m) {
  return atomic_load_explicit(&m->cache_follows, memory_order_relaxed);
}

void memory_init(struct xdb *x) {
  struct memory *const m = &x->memory;
  budget_init(&m->accounts);
  pthread_mutex_init(&m->lock, NULL);
  atomic_init(&m->budget, 0);
  atomic_init(&m->cache_follows, false);
  atomic_init(&m->rest_until, SIZE_MAX);
  atomic_init(&m->asked, false);
  atomic_init(&m->resized, false);
}

void memory_fini(struct xdb *x) {
  mem_keep_less(x->kept);
  pthread_mutex_destroy(&x->memory.lock);
  budget_fini(&x->memory.accounts);
}

// ---- shares

static size_t memtable_share(size_t budget) {
  size_t size = MIB;
  while (size < MEMORY_MEMTABLE_MAX && size * 2 <= budget / MEMORY_MEMTABLE_PART) size *= 2;
  return size;
}

static size_t work_share(size_t budget) {
  const size_t part = budget / MEMORY_WORK_PART;
  return part < MEMORY_WORK_MAX ? part : MEMORY_WORK_MAX;
}

static size_t cache_least(size_t budget) {
  const size_t part = budget / MEMORY_CACHE_PART;
  return part > MIB ? part : MIB;
}

// Two memtables while a round compacts one of them. Batches, records that come back and late ones make some a little
// larger than the limit.
static inline size_t memtables_share(size_t limit) { return 2 * memory_late(limit); }

// The cache to begin with is the rest that a busy store without data leaves.
static size_t cache_first(size_t budget, size_t memtable) {
  const size_t least = cache_least(budget),
               taken = memtables_share(memtable) + work_share(budget) + budget / SMALL_PART;
  return taken + least < budget ? budget - taken : least;
}

static void set_indexes(struct memory *m, size_t budget, uint32_t parts) {
  atomic_store_explicit(&m->accounts.indexes_most, budget / 16 * parts, memory_order_relaxed);
  atomic_store_explicit(&m->accounts.dicts_most, budget / MEMORY_DICTS_PART, memory_order_relaxed);
}

static void set_bounds(struct memory *m, size_t budget) {
  atomic_store_explicit(&m->accounts.work_most, work_share(budget), memory_order_relaxed);
  atomic_store_explicit(&m->accounts.pieces_most, budget / MEMORY_PIECES_PART, memory_order_relaxed);
  atomic_store_explicit(&m->accounts.scans_most, budget / MEMORY_SCANS_PART, memory_order_relaxed);
  set_indexes(m, budget, MEMORY_INDEX_PARTS);
}

void memory_plan(struct xdb *x) {
  struct memory *const m = &x->memory;
  struct remixdb_opts *const o = &x->opts;
  const bool follows = o->cache_mb == REMIXDB_AUTO;
  size_t budget = o->memory_mb * MIB;
  const uint64_t machine = x->compact.memory = cgroup_memory();
  m->memtable_follows = o->memtable_mb == 0;
  if (budget == 0) {
    const uint64_t part = (machine ? machine : UNKNOWN_MACHINE) / DEFAULT_PART;
    budget = part < SIZE_MAX ? (size_t)part : SIZE_MAX;
    if (!follows && !m->memtable_follows) {
      set_indexes(m, budget, MEMORY_INDEX_ALONE);
      atomic_store_explicit(&m->accounts.scans_most, budget / MEMORY_SCANS_PART, memory_order_relaxed);
      budget = 0;
    }
  }
  if (m->memtable_follows) o->memtable_mb = memtable_share(budget) / MIB;
  if (follows) o->cache_mb = cache_first(budget, o->memtable_mb * MIB) / MIB;
  atomic_store_explicit(&m->budget, budget, memory_order_relaxed);
  atomic_store_explicit(&m->cache_follows, follows, memory_order_relaxed);
  if (budget) set_bounds(m, budget);
}

// All chunks of a memtable that has taken late records wait for the next one: else writers would wait for new ones.
void memory_chunks(struct xdb *x, size_t limit) {
  struct arena_pool *const p = &x->memtables.chunks;
  if (p->limit) arena_pool_limit(p, memory_late(limit));
}

void memory_keep(struct xdb *x) {
  const size_t budget = budget_now(&x->memory), part = budget / KEEP_PART, had = x->kept;
  x->kept = budget && part < KEEP_MAX ? part : KEEP_MAX;
  if (x->kept < had) mem_keep_less(had - x->kept);
  else mem_keep(x->kept - had);
}

// ---- the division

// Memtables that only iterators and snapshots keep take the room of chunks that wait for the next ones. Returns how
// many bytes such chunks may have.
static size_t chunks_most(struct xdb *x) {
  const uint64_t has = memtables_kept(&x->memtables, NULL, NULL), share = memtables_share(xdb_memtable_limit(x));
  return has < share ? (size_t)(share - has) : 0;
}

size_t memory_chunks_ahead(struct xdb *x, size_t wanted) {
  if (!cache_follows(&x->memory)) return wanted;
  const size_t most = chunks_most(x), whole = most - most % x->memtables.chunks.chunk_size;
  return wanted < whole ? wanted : whole;
}

// Bytes of the budget that are not the cache's. m->lock is held.
static uint64_t others(struct xdb *x, size_t budget) {
  const struct memory *const m = &x->memory;
  const size_t limit = xdb_memtable_limit(x);
  uint64_t memtables = memtables_kept(&x->memtables, NULL, NULL) + arena_pool_held(&x->memtables.chunks);
  uint64_t work = budget_used(&m->accounts, BUDGET_WORK);
  memtables += m->busy ? 0 : limit / GROW_PART;
  if (m->busy && memtables < memtables_share(limit)) memtables = memtables_share(limit);
  if (m->busy && work < work_share(budget)) work = work_share(budget);
  uint64_t scans = budget_used(&m->accounts, BUDGET_SCANS);
  const bool told = x->workers && workers_count(x->workers) != 0;  // else nobody changes the cache when scans begin
  if (!told && scans < budget / MEMORY_SCANS_PART) scans = budget / MEMORY_SCANS_PART;
  struct wal_stats log = {0};
  if (x->wal) wal_stats(x->wal, &log);
  return memtables + work + scans + log.buffer_bytes + x->kept + budget / SMALL_PART + cache_common(x->cache) +
         budget_used(&m->accounts, BUDGET_INDEXES) + budget_used(&m->accounts, BUDGET_TABLES) +
         budget_used(&m->accounts, BUDGET_PIECES) + admission_memory(&x->admission);
}

// Gives the cache what the others leave. A change that is small and makes it larger is not worth the work. m->lock is
// held.
static void divide(struct xdb *x) {
  struct memory *const m = &x->memory;
  if (!cache_follows(m) || !x->cache) return;
  const size_t budget = budget_now(m);
  arena_pool_trim(&x->memtables.chunks, chunks_most(x));
  const uint64_t taken = others(x, budget), left = taken < budget ? budget - taken : 0;
  const size_t least = cache_least(budget), most = cache_most(x->cache), is = cache_size(x->cache);
  size_t size = (size_t)(left - left / 100);  // the cache has about 36 bytes for each page besides the page
  if (size < least) size = least;
  if (size > most) size = most;
  const size_t step = size >= STEPS * cache_step(x->cache) ? cache_step(x->cache) : MIB;
  size -= size % step;
  if (size < is || size > is + budget / MEMORY_CACHE_PART)
    IGNORED(cache_resize(x->cache, size), "without memory for the change the cache keeps its size until the next look");
}

void memory_data(struct xdb *x, const struct version *v) {
  if (!x->ctx.admission) return;  // all reads go past the page cache
  const size_t most = x->cache ? cache_size(x->cache) / MEMORY_ADMISSION_PART : 0;
  admission_set(&x->admission, version_table_bytes(v), x->compact.memory, most);
}

void memory_look(struct xdb *x) {
  pthread_mutex_lock(&x->memory.lock);
  divide(x);
  pthread_mutex_unlock(&x->memory.lock);
}

static void lacks(void *arg) { memory_look(arg); }

void memory_begin(struct xdb *x, size_t used) {
  struct memory *const m = &x->memory;
  if (!cache_follows(m)) return;
  m->accounts.arg = x;
  m->accounts.lacks = lacks;
  atomic_store_explicit(&m->rest_until, used + xdb_memtable_limit(x) / GROW_PART, memory_order_relaxed);
  memory_look(x);
}

bool memory_busy(struct xdb *x) {
  struct memory *const m = &x->memory;
  if (!cache_follows(m)) return false;
  pthread_mutex_lock(&m->lock);
  const bool begins = !m->busy;
  m->busy = true;
  m->busy_ns = time_ns();
  atomic_store_explicit(&m->rest_until, SIZE_MAX, memory_order_relaxed);
  divide(x);
  pthread_mutex_unlock(&m->lock);
  return begins;
}

uint64_t memory_rest_at(struct xdb *x) {
  struct memory *const m = &x->memory;
  pthread_mutex_lock(&m->lock);
  const uint64_t at = m->busy ? m->busy_ns + MEMORY_REST_NS : 0;
  pthread_mutex_unlock(&m->lock);
  return at;
}

void memory_rest(struct xdb *x, size_t used, size_t wanted) {
  struct memory *const m = &x->memory;
  pthread_mutex_lock(&m->lock);
  m->busy = false;
  atomic_store_explicit(&m->rest_until, used + xdb_memtable_limit(x) / GROW_PART, memory_order_relaxed);
  arena_pool_trim(&x->memtables.chunks, wanted);
  divide(x);
  pthread_mutex_unlock(&m->lock);
}

// ---- other sizes

void memory_set(struct xdb *x, size_t budget) {
  struct memory *const m = &x->memory;
  pthread_mutex_lock(&m->lock);
  atomic_store_explicit(&m->budget, budget, memory_order_relaxed);
  set_bounds(m, budget);
  memory_keep(x);
  if (m->memtable_follows) {
    const size_t limit = memtable_share(budget);
    atomic_store_explicit(&x->memtable_limit, limit, memory_order_relaxed);
    memory_chunks(x, limit);
    atomic_store_explicit(&m->resized, true, memory_order_relaxed);
  }
  sst_dicts_trim(&x->dicts, &m->accounts);
  divide(x);
  pthread_mutex_unlock(&m->lock);
}

enum remixdb_status memory_cache_set(struct xdb *x, size_t size) {
  struct memory *const m = &x->memory;
  pthread_mutex_lock(&m->lock);
  const enum remixdb_status s = cache_resize(x->cache, size);
  if (s == REMIXDB_OK) {
    atomic_store_explicit(&m->cache_follows, false, memory_order_relaxed);
    atomic_store_explicit(&m->rest_until, SIZE_MAX, memory_order_relaxed);
  }
  pthread_mutex_unlock(&m->lock);
  return s;
}

void memory_rounds(struct xdb *x) {
  const size_t limit = xdb_memtable_limit(x), half = (size_t)(x->wal_limit / 2);
  // Records that a round hands back must not fill the next memtable's log segment at once. Otherwise rounds would hand
  // them back for ever.
  x->compact.memtable_size = half < limit ? half : limit;
  atomic_store_explicit(&x->scan_room, compact_scan_room(limit), memory_order_relaxed);
}

void memory_round(struct xdb *x) {
  if (atomic_exchange_explicit(&x->memory.resized, false, memory_order_relaxed)) memory_rounds(x);
}
