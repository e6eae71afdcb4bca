// SPDX-License-Identifier: Apache-2.0
#include "store/setup.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/cores.h"
#include "store/collect.h"
#include "store/expiry.h"
#include "store/flush.h"
#include "store/garbage_look.h"
#include "store/hiding.h"
#include "store/idle.h"
#include "store/memory.h"
#include "store/refpool.h"
#include "store/reserve.h"
#include "store/ranges.h"
#include "store/round.h"
#include "store/scan_merge.h"
#include "store/syncer.h"
#include "store/value_pace.h"
#include "store/values.h"
#include "table/dict.h"

#define MIB ((size_t)1 << 20)
#define OTHER_FILES 12u  // descriptors for the lock, the log, files being written, and what the program has open
#define WORKER_RINGS 4u  // at least so many descriptors for the rings of workers

struct xdb *setup_create(const struct remixdb_opts *o, struct env *env) {
  const size_t size = align_up(sizeof(struct xdb), CACHE_LINE);
  struct xdb *x = mem_alloc_aligned(CACHE_LINE, size);
  if (!x) return NULL;
  memset(x, 0, size);
  x->env = env;
  x->forks = fork_now();
  x->leave_most = FLUSH_LEAVE;
  x->opts = *o;
  atomic_init(&x->syncer.how, o->sync);
  pthread_mutex_init(&x->settings.lock, NULL);
  epoch_init(&x->epoch);
  epoch_init(&x->cursors);
  pthread_mutex_init(&x->lock, NULL);
  eventcount_init(&x->changed);
  eventcount_init(&x->syncer.wake);
  pthread_mutex_init(&x->snapshots.lock, NULL);
  x->ranges = (struct range_limits){.few = RANGES_FEW, .most = RANGES_MOST, .cut_few = RANGES_CUT_FEW};
  pthread_mutex_init(&x->spaces.changing, NULL);
  pthread_mutex_init(&x->spaces.lock, NULL);
  pthread_mutex_init(&x->installing, NULL);
  pthread_mutex_init(&x->collect.lock, NULL);
  x->collect.idle = collect_idle;
  hiding_init(x);
  expiry_init(&x->expiry);
  reserve_init(x);
  memory_init(x);
  admission_init(&x->admission);
  sst_dicts_init(&x->dicts);
  remix_pool_init(&x->pages, &x->epoch, &x->memory.accounts);
  return x;
}

// ---- limits

static enum remixdb_status check_opts(struct xdb *x) {
  struct remixdb_opts *const o = &x->opts;
  const size_t most = SIZE_MB_MOST;
  if (o->memory_mb <= most) memory_plan(x);
  if (o->wal_mb == 0) o->wal_mb = o->memtable_mb < most / 2 ? 2 * o->memtable_mb : most;
  if (o->max_open_files == 0) o->max_open_files = 1000;
  const struct size {
    const char *name;
    size_t mb;
  } sizes[] = {{"memory_mb", o->memory_mb},
               {"memtable_mb", o->memtable_mb},
               {"wal_mb", o->wal_mb},
               {"cache_mb", o->cache_mb}};
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
    if (sizes[i].mb > most)
      return err_set(REMIXDB_INVALID, "%s is %zu MiB, and may be %zu at most", sizes[i].name, sizes[i].mb, most);
  if (o->max_open_files < OPEN_FILES_MIN)
    return err_set(REMIXDB_INVALID, "max_open_files is %u and must be at least %u", o->max_open_files, OPEN_FILES_MIN);
  if (o->sync < REMIXDB_SYNC_EACH)
    return err_set(REMIXDB_INVALID, "sync is %d: it is REMIXDB_SYNC_NONE, REMIXDB_SYNC_EACH or milliseconds", o->sync);
  if (o->workers < -1)
    return err_set(REMIXDB_INVALID, "workers is %d: it is a number of threads, or -1 for auto", o->workers);
  if (o->compression != REMIXDB_COMPRESSION_NONE && o->compression != REMIXDB_COMPRESSION_ZSTD)
    return err_set(REMIXDB_INVALID, "compression %d is not known", (int)o->compression);
  if (o->compression_level < COMPACT_LEVEL_MIN || o->compression_level > COMPACT_LEVEL_MAX)
    return err_set(REMIXDB_INVALID, "compression_level is %d: zstd has levels up to %d", o->compression_level,
                   COMPACT_LEVEL_MAX);
  return REMIXDB_OK;
}

enum remixdb_status setup_limits(struct xdb *x, const struct env_dir *at, const char *name) {
  const enum remixdb_status s = check_opts(x);
  if (s != REMIXDB_OK) return s;
  x->memtable_limit = x->opts.memtable_mb * MIB;
  x->wal_limit = (uint64_t)x->opts.wal_mb * MIB;
  memtables_init(&x->memtables, &x->epoch, &x->cursors, x->memtable_limit);
  memory_chunks(x, x->memtable_limit);
  if (!(x->dir = env_path_new(at, name))) return REMIXDB_NOMEM;
  struct compact *c = &x->compact;
  c->ctx = &x->ctx;
  c->epoch = &x->epoch;
  c->build = (struct sst_build_opts){.ckeys = x->opts.ckeys,
                                     .compression = x->opts.compression,
                                     .level = x->opts.compression_level,
                                     .max_pages = compact_table_pages(x->memtable_limit)};
  compact_set_compression(c, x->opts.compression, x->opts.compression_level);
  c->tags = x->opts.tags;
  c->young_from = COMPACT_YOUNG_FROM;
  c->garbage_from = COMPACT_GARBAGE;
  c->cut_from = COMPACT_CUT_FROM;
  c->join = COMPACT_JOIN;
  x->garbage_merges.rest_ns = GARBAGE_REST_NS;
  c->apart_from = COMPACT_APART;
  memory_rounds(x);
  return REMIXDB_OK;
}

// ---- services

// io_uring gave no ring.
static void ring_trouble(void *arg, int errnum) {
  struct xdb *x = arg;
  char words[128];
  xdb_say(x, "%s: %s: io_uring gives no ring; reads without one take their blocks one by one", x->dir,
          err_reason(errnum, words, sizeof(words)));
}

// Returns how many table files may be open at once. Tables can close files; the rest of the store cannot. If the
// process may have only few descriptors (`limit`), the tables leave some of them to the rest of the store.
static uint32_t table_files(struct xdb *x, uint32_t asked, uint64_t limit) {
  const uint32_t workers = x->opts.workers > (int)WORKER_RINGS ? (uint32_t)x->opts.workers : WORKER_RINGS;
  const uint64_t others = OTHER_FILES + (x->io.kind == BLKIO_URING ? x->io.lanes_max + workers : 0);
  const uint64_t room = limit > OPEN_FILES_MIN + others ? limit - others : OPEN_FILES_MIN;
  if (asked <= room) return asked;
  xdb_say(x, "%s: %u table files may be open at once, not %u: the process may have %" PRIu64 " descriptors", x->dir,
          (uint32_t)room, asked, limit);
  return (uint32_t)room;
}

uint32_t setup_table_files(struct xdb *x, uint32_t asked) { return table_files(x, asked, process_descriptors()); }

enum remixdb_status setup_services(struct xdb *x) {
  enum blkio_kind kind;
  const char *io = getenv("REMIXDB_IO");
  enum remixdb_status s = blkio_parse(io && *io ? io : x->opts.io, &kind);
  if (s != REMIXDB_OK) return s;
  blkio_init(&x->io, x->env, kind);
  x->io.direct = x->opts.direct_io;
  const uint64_t limit = process_descriptors();
  blkio_pool(&x->io, limit, ring_trouble, x);
  if ((s = fdpool_create(x->env, table_files(x, x->opts.max_open_files, limit), &x->fds)) != REMIXDB_OK) return s;
  s = packs_create(&x->home, x->fds, x->opts.direct_io, !x->opts.read_only, &x->packs);
  if (s != REMIXDB_OK) return s;
  // The cache can grow up to the machine's memory (remixdb_set_option).
  const size_t cache = x->opts.cache_mb * MIB;
  if (cache && (s = cache_create(cache, memory_size(), &x->epoch, &x->cache)) != REMIXDB_OK) return s;
  x->ctx = (struct sst_ctx){.env = x->env,
                            .dir = &x->home,
                            .io = &x->io,
                            .cache = x->cache,
                            .fds = x->fds,
                            .packs = x->packs,
                            .store_id = x->store_id,
                            .direct_io = x->opts.direct_io,
                            .admission = x->opts.direct_io ? NULL : &x->admission,
                            .retired = &x->retired,
                            .scan_room = &x->scan_room,
                            .budget = &x->memory.accounts,
                            .pages = &x->pages,
                            .dicts = &x->dicts};
  values_init(x);
  value_pace_init(x);
  memory_keep(x);
  return REMIXDB_OK;
}

// ---- threads

static void asks(void *arg) { idle_ask(arg); }

void setup_scan_merges(struct xdb *x, uint32_t nr_workers) {
  // Scan merges leave one processor to scans, where there are several.
  const uint32_t processors = cores_list(NULL, 0), others = processors > 1 ? processors - 1 : 1;
  const uint32_t parts = nr_workers > others ? others : nr_workers > 0 ? nr_workers : 1;
  atomic_store_explicit(&x->compact.scan_merge_parts, parts, memory_order_relaxed);
}

// The caller owns the options' strings, and settings.c needs this one later.
static enum remixdb_status keep_worker_cores(struct xdb *x) {
  const char *const cores = x->opts.worker_cores;
  x->opts.worker_cores = NULL;
  if (!cores) return REMIXDB_OK;
  const size_t size = strlen(cores) + 1;
  if (!(x->settings.worker_cores = mem_alloc(size))) return REMIXDB_NOMEM;
  memcpy(x->settings.worker_cores, cores, size);
  return REMIXDB_OK;
}

enum remixdb_status setup_threads(struct xdb *x) {
  uint32_t nr, nr_cores, cores[WORKERS_MAX];
  enum remixdb_status s = keep_worker_cores(x);
  if (s == REMIXDB_OK) s = workers_plan(x->opts.workers, x->settings.worker_cores, &nr, cores, WORKERS_MAX, &nr_cores);
  if (s == REMIXDB_OK) s = workers_create(nr, cores, nr_cores, &x->io, &x->epoch, xdb_round_run, x, &x->workers);
  if (s != REMIXDB_OK) return s;
  x->compact.workers = x->workers;
  setup_scan_merges(x, nr);
  return xdb_sync_start(x);
}

void setup_asks(struct xdb *x) {
  if (!x->workers || workers_count(x->workers) == 0) return;  // the work of a call must not depend on the cache
  x->watch = (struct remix_watch){scan_merge_ask, x};
  x->compact.watch = &x->watch;
  compact_watch(&x->compact, xdb_super(x)->version);
  if (x->cache) cache_on_ask(x->cache, asks, x);
  x->memory.accounts.scans_changed = asks;
  x->memory.accounts.scans_arg = x;
}

void setup_end_threads(struct xdb *x) {
  xdb_sync_stop(x);
  workers_destroy(x->workers);
  x->workers = NULL;
  if (x->cache) cache_on_ask(x->cache, NULL, NULL);
  x->memory.accounts.scans_changed = NULL;
}

void setup_destroy(struct xdb *x) {
  refpool_fini(x);
  x->txns.fini(x);
  super_unref(xdb_super(x));
  version_unref(x->rounds.unsaved);
  epoch_fini(&x->cursors);
  epoch_fini(&x->epoch);
  memtables_fini(&x->memtables);
  collect_fini(x);
  values_fini(x);
  cache_destroy(x->cache);
  packs_destroy(x->packs);
  fdpool_destroy(x->fds);
  blkio_fini(&x->io);
  admission_fini(&x->admission);
  dirlock_give(&x->dirlock);
  env_dir_close(&x->home);
  eventcount_fini(&x->changed);
  pthread_mutex_destroy(&x->lock);
  eventcount_fini(&x->syncer.wake);
  pthread_mutex_destroy(&x->snapshots.lock);
  pthread_mutex_destroy(&x->settings.lock);
  mem_free(x->settings.worker_cores);
  pthread_mutex_destroy(&x->spaces.changing);
  pthread_mutex_destroy(&x->spaces.lock);
  mem_free(x->spaces.open);
  pthread_mutex_destroy(&x->installing);
  pthread_mutex_destroy(&x->collect.lock);
  expiry_fini(&x->expiry);
  reserve_fini(x);
  mem_free(x->origins_kept);
  mem_free(x->origins);
  mem_free(x->dir);
  remix_pool_fini(&x->pages);
  sst_dicts_fini(&x->dicts);
  memory_fini(x);
  mem_free(x);
}
