// SPDX-License-Identifier: Apache-2.0
#include "store/open.h"

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "store/round.h"
#include "store/syncer.h"
#include "store/write.h"

#define MIB ((size_t)1 << 20)
#define WAL_STEP_MIN (256u << 10)
#define OPEN_FILES_MIN 16u
#define OTHER_FILES 24u              // descriptors for the lock, the log, files being written, rings, and what the program has open
#define REPLAY_BYTES (1u << 20)      // gathered before they are linked; more than any record has
#define REPLAY_RECORDS 8192u
#define REPLAY_SHARES 2u             // for each thread
#define REPLAY_FEW 512u              // so few are not worth waking a worker
#define REPLAY_SEGMENTS_MAX 4u       // with more segments to replay the memtable is compacted soon after opening; each opening adds one

_Static_assert(REPLAY_BYTES >= REMIXDB_KV_MAX, "a record fits");

static uint64_t new_store_id(const void *salt) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  const uint64_t seed[4] = {(uint64_t)t.tv_sec, (uint64_t)t.tv_nsec, (uint64_t)getpid(), (uint64_t)(uintptr_t)salt};
  const uint64_t id = hash64(seed, sizeof(seed));
  return id ? id : 1;
}

// A directory without CURRENT (whose path is given): an error when it holds files of a store, unless one is in the making.
static enum remixdb_status headless(struct xdb *x, const char *current, bool *creating_out) {
  struct files_entry *list;
  size_t nr;
  enum remixdb_status s = files_list(x->env, x->dir, &list, &nr);
  if (s != REMIXDB_OK) return s;
  bool data = false, copying = false;
  *creating_out = false;
  for (size_t i = 0; i < nr; i++) {
    data = data || files_holds_data(list[i].kind);
    *creating_out = *creating_out || list[i].kind == FILES_IS_CREATING;
    copying = copying || list[i].kind == FILES_IS_CHECKPOINTING;
  }
  mem_free(list);
  if (copying && (s = files_has_mark(x->env, x->dir, FILES_CHECKPOINTING, &copying)) != REMIXDB_OK) return s;
  if (*creating_out && (s = files_has_mark(x->env, x->dir, FILES_CREATING, creating_out)) != REMIXDB_OK) return s;
  struct env_stat st;
  if (!copying && (!data || *creating_out)) return REMIXDB_OK;
  if (env_stat(x->env, current, &st) == REMIXDB_OK) return REMIXDB_OK;  // another opening, or checkpoint, has just made it
  if (copying)
    return err_set(REMIXDB_CORRUPT, "%s: a checkpoint was interrupted here: this is no store; remixdb_destroy removes it, another checkpoint replaces it",
                   x->dir);
  return err_corrupt(current, 0, "is missing, but the directory holds files of a store; no new store is made over them");
}

// The log of a store that was never finished; tables that may lie beside it go when the new one has been opened.
static enum remixdb_status remove_half_made(struct xdb *x) {
  struct files_entry *list;
  size_t nr;
  char path[ENV_PATH_MAX];
  enum remixdb_status s = files_list(x->env, x->dir, &list, &nr);
  if (s != REMIXDB_OK) return s;
  for (size_t i = 0; i < nr && s == REMIXDB_OK; i++) {
    if (list[i].kind != FILES_IS_LOG) continue;
    s = env_path(path, x->dir, list[i].name);
    if (s == REMIXDB_OK) s = env_unlink(x->env, path);
  }
  mem_free(list);
  return s;
}

// What is in the directory. REMIXDB_CORRUPT: no store, and none may be made there.
static enum remixdb_status look(struct xdb *x, bool *exists_out, bool *creating_out) {
  struct env_stat st;
  char path[ENV_PATH_MAX];
  bool repairing;
  *exists_out = *creating_out = false;
  enum remixdb_status s = files_repair_pending(x->env, x->dir, &repairing);
  if (s != REMIXDB_OK) return s;
  if (repairing) return err_set(REMIXDB_CORRUPT, "%s: a repair was interrupted: call remixdb_repair again to end it", x->dir);
  if ((s = env_path(path, x->dir, FILES_CURRENT)) != REMIXDB_OK) return s;
  s = env_stat(x->env, path, &st);
  if (s == REMIXDB_OK && x->opts.error_if_exists) return err_set(REMIXDB_EXISTS, "%s: holds a store already", x->dir);
  if (s == REMIXDB_OK) s = version_peek(x->env, x->dir, &x->store_id);
  *exists_out = s == REMIXDB_OK;
  return s == REMIXDB_NOTFOUND ? headless(x, path, creating_out) : s;
}

// The same while LOCK is not held: who holds it may just be making what is there, mending it, or removing it.
static enum remixdb_status look_first(struct xdb *x, bool *exists_out, bool *creating_out) {
  struct err_saved why;
  char path[ENV_PATH_MAX];
  int fd;
  enum remixdb_status s = look(x, exists_out, creating_out);
  if (s != REMIXDB_CORRUPT) return s;
  err_save(&why, s);
  if (env_path(path, x->dir, FILES_LOCK) != REMIXDB_OK) return err_raise(&why);
  s = env_lock(x->env, path, false, &fd);
  if (s == REMIXDB_LOCKED) return s;
  if (s != REMIXDB_OK && s != REMIXDB_NOTFOUND) return err_raise(&why);
  s = look(x, exists_out, creating_out);
  env_unlock(x->env, fd);
  return s;
}

// The directory: is there, is one, can be locked. *exists_out: holds a store (CURRENT).
static enum remixdb_status open_dir(struct xdb *x, bool *exists_out) {
  struct env_stat st;
  bool creating;
  char path[ENV_PATH_MAX];
  enum remixdb_status s = env_stat(x->env, x->dir, &st);
  const bool may_make = x->opts.create && !x->opts.read_only, made = s == REMIXDB_NOTFOUND;
  if (made) {
    if (!may_make) return err_set(REMIXDB_NOTFOUND, "%s: there is no such directory", x->dir);
    s = env_mkdir(x->env, x->dir);
    st.is_dir = true;
  }
  if (s != REMIXDB_OK) return s;
  if (!st.is_dir) return err_set(REMIXDB_IO, "%s: is a file, not a directory", x->dir);
  // what is refused, a format that is not known too, is told before anything is touched
  if ((s = look_first(x, exists_out, &creating)) != REMIXDB_OK) return s;
  if (!*exists_out && !may_make) return err_set(REMIXDB_NOTFOUND, "%s: holds no store", x->dir);
  if ((s = env_path(path, x->dir, FILES_LOCK)) != REMIXDB_OK) return s;
  s = env_lock(x->env, path, !x->opts.read_only, &x->lock_fd);
  if (s == REMIXDB_NOTFOUND && x->opts.read_only) s = REMIXDB_OK;  // nobody has locked what has no lock file
  if (s != REMIXDB_OK) return s;
  // somebody may have made it between the look and the lock, or destroyed it
  if ((s = look(x, exists_out, &creating)) != REMIXDB_OK || *exists_out) return s;
  if (!may_make) return err_set(REMIXDB_NOTFOUND, "%s: holds no store", x->dir);
  if (creating && (s = remove_half_made(x)) != REMIXDB_OK) return s;
  return files_sync_parent(x->env, x->dir, made);
}

static enum remixdb_status make_store(struct xdb *x, struct version **out) {
  char path[ENV_PATH_MAX];
  int fd;
  enum remixdb_status s = env_path(path, x->dir, FILES_CREATING);
  if (s == REMIXDB_OK) s = env_open(x->env, path, ENV_WRITE | ENV_CREATE, &fd);
  if (s != REMIXDB_OK) return s;
  if ((s = env_close(x->env, fd, path)) != REMIXDB_OK) return s;
  if ((s = env_sync_dir(x->env, x->dir)) != REMIXDB_OK) return s;
  x->store_id = new_store_id(x);
  struct part *p;
  if ((s = part_create(kref("", 0), NULL, NULL, &p)) != REMIXDB_OK) return s;
  if ((s = version_create(&p, 1, out)) != REMIXDB_OK) return s;
  (*out)->store_id = x->store_id;
  (*out)->number = 1;
  (*out)->next_file = 1;
  (*out)->log_gen = 1;
  return REMIXDB_OK;
}

// Removes the marks of a store in the making, for good: while they are there what is beside a missing CURRENT may be thrown away.
static enum remixdb_status finish_making(struct xdb *x) {
  static const char *const marks[] = {FILES_CREATING, FILES_CHECKPOINTING};
  char path[ENV_PATH_MAX];
  enum remixdb_status s = REMIXDB_OK;
  bool any = false;
  for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]) && s == REMIXDB_OK; i++) {
    bool there;
    s = files_has_mark(x->env, x->dir, marks[i], &there);
    if (s != REMIXDB_OK || !there) continue;
    if ((s = env_path(path, x->dir, marks[i])) == REMIXDB_OK) s = env_unlink(x->env, path);
    any = true;
  }
  return s == REMIXDB_OK && any ? env_sync_dir(x->env, x->dir) : s;
}

// ---- the log
//
// Records are gathered, then linked by the workers and the opening thread at the same time: each those with its share of all hashes, so that the versions of a key keep
// their order.

struct replay_rec {
  struct kv_rec rec;
  uint64_t seq, hash;
};

struct replay_share {
  struct task task;
  struct replaying *r;
  uint32_t number;
  struct err_saved error;  // status OK: none
};

struct replay_fill {
  struct task task;
  struct xdb *x;
};

struct replaying {
  struct xdb *x;
  struct memtable *m;
  struct worker *self;
  struct replay_rec recs[REPLAY_RECORDS];
  uint32_t nr;
  size_t nbytes;
  uint32_t nr_shares;
  struct replay_share shares[REPLAY_SHARES * (WORKERS_MAX + 1)];
  struct replay_fill fill;
  struct task *tasks[REPLAY_SHARES * (WORKERS_MAX + 1) + 1];
  uint8_t bytes[REPLAY_BYTES];  // keys and values
};

// All at one time: what the search for each looks at is fetched for all of them before the first is linked.
static enum remixdb_status link_group(struct replaying *r, struct worker *w, const struct replay_rec *const *group, uint32_t nr) {
  struct wh *wh = r->m->wh;
  struct kref keys[WH_GROUP_MAX];
  uint64_t hashes[WH_GROUP_MAX];
  uint8_t which[WH_GROUP_MAX];
  const struct wh_ver *versions[WH_GROUP_MAX];
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < nr; i++) {
    keys[i] = kref(group[i]->rec.key, group[i]->rec.klen);
    hashes[i] = group[i]->hash;
    which[i] = (uint8_t)i;
  }
  epoch_enter(&r->x->epoch, &w->slot);
  wh_get_many(wh, keys, hashes, which, nr, WH_PENDING - 1, versions);
  for (uint32_t i = 0; i < nr && s == REMIXDB_OK; i++) {
    const struct kv_rec *rec = &group[i]->rec;
    struct wh_slot slot;
    wh_lock(wh, keys[i], hashes[i], &slot);
    s = wh_link(&slot, rec->val, rec->vlen, rec->tomb);
    if (s == REMIXDB_OK) wh_stamp(&slot, group[i]->seq);
    wh_unlock(&slot);
  }
  epoch_exit(&w->slot);
  return s;
}

static void link_share(struct task *t, struct worker *w) {
  struct replay_share *share = (struct replay_share *)t;
  struct replaying *r = share->r;
  const struct replay_rec *group[WH_GROUP_MAX];
  uint32_t nr = 0;
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < r->nr && s == REMIXDB_OK; i++) {
    if (r->recs[i].hash % r->nr_shares != share->number) continue;
    group[nr++] = &r->recs[i];
    if (nr < WH_GROUP_MAX) continue;
    s = link_group(r, w, group, nr);
    nr = 0;
  }
  if (nr && s == REMIXDB_OK) s = link_group(r, w, group, nr);
  err_save(&share->error, s);
}

// The memory for what is linked next. Threads that came to a new page at the same time would have the system clear one for each.
static void fill_pool(struct task *t, struct worker *w) {
  (void)w;
  struct arena_pool *const pool = &((struct replay_fill *)t)->x->memtables.chunks;
  (void)arena_pool_fill(pool, pool->chunk_size);
}

static enum remixdb_status link_gathered(struct replaying *r) {
  struct workers *ws = r->x->workers;
  const uint32_t nr_threads = ws ? workers_count(ws) + 1 : 1;
  r->nr_shares = r->nr > REPLAY_FEW && nr_threads > 1 ? REPLAY_SHARES * nr_threads : 1;
  for (uint32_t i = 0; i < r->nr_shares; i++) {
    struct replay_share *share = &r->shares[i];
    share->task = (struct task){.run = link_share, .size = 1};
    share->r = r;
    share->number = i;
    r->tasks[i] = &share->task;
  }
  r->fill = (struct replay_fill){{.run = fill_pool, .size = 2}, r->x};
  r->tasks[r->nr_shares] = &r->fill.task;
  if (r->nr_shares > 1) workers_run(ws, r->self, r->tasks, r->nr_shares + 1);
  else link_share(r->tasks[0], r->self);
  r->nr = 0;
  r->nbytes = 0;
  for (uint32_t i = 0; i < r->nr_shares; i++)
    if (r->shares[i].error.status != REMIXDB_OK) return err_raise(&r->shares[i].error);
  return REMIXDB_OK;
}

static enum remixdb_status replay(void *arg, uint64_t seq, const struct kv_rec *rec) {
  struct replaying *r = arg;
  const size_t nbytes = (size_t)rec->klen + rec->vlen;
  if (r->nr == REPLAY_RECORDS || nbytes > REPLAY_BYTES - r->nbytes) {
    const enum remixdb_status s = link_gathered(r);
    if (s != REMIXDB_OK) return s;
  }
  uint8_t *const key = r->bytes + r->nbytes, *const val = key + rec->klen;
  if (rec->klen) memcpy(key, rec->key, rec->klen);
  if (rec->vlen) memcpy(val, rec->val, rec->vlen);
  r->nbytes += nbytes;
  r->recs[r->nr++] = (struct replay_rec){{key, val, rec->klen, rec->vlen, rec->tomb}, seq, hash64(key, rec->klen)};
  return REMIXDB_OK;
}

static enum remixdb_status replayed(void *arg) {
  struct replaying *r = arg;
  return r->nr ? link_gathered(r) : REMIXDB_OK;
}

static enum remixdb_status recover_log(struct xdb *x, struct worker *self, struct version *v, bool fresh, struct memtable *m) {
  uint32_t step = WAL_PREALLOC;  // a small segment must not take the room of a large one
  while (step > WAL_STEP_MIN && step > x->wal_limit / 4) step /= 2;
  const struct wal_opts wo = {.env = x->env, .dir = x->dir, .store_id = x->store_id, .read_only = x->opts.read_only, .step = step, .replayed = replayed};
  struct replaying *r = mem_alloc(sizeof(*r));
  if (!r) return REMIXDB_NOMEM;
  r->x = x;
  r->m = m;
  r->self = self;
  r->nr = 0;
  r->nbytes = 0;
  enum remixdb_status s = wal_open(&wo, v->log_gen, v->log_seq, fresh, replay, r, &x->recovery, &x->wal);
  mem_free(r);
  epoch_reclaim(&x->epoch);
  if (s != REMIXDB_OK) return s;
  m->gen = wal_gen(x->wal);
  m->base_seq = x->recovery.last_seq;
  atomic_store_explicit(&x->published, x->recovery.last_seq, memory_order_release);
  return REMIXDB_OK;
}

// ---- opening and closing

static enum remixdb_status start_threads(struct xdb *x) {
  uint32_t nr, nr_cores, cores[WORKERS_MAX];
  enum remixdb_status s = workers_plan(x->opts.workers, x->opts.worker_cores, &nr, cores, WORKERS_MAX, &nr_cores);
  if (s == REMIXDB_OK) s = workers_create(nr, cores, nr_cores, &x->io, &x->epoch, xdb_round_run, x, &x->workers);
  if (s != REMIXDB_OK) return s;
  x->compact.workers = x->workers;
  // those who scan keep a processor where there is more than one
  const uint32_t processors = thread_cores(NULL, 0), others = processors > 1 ? processors - 1 : 1;
  x->compact.worn_parts = nr > others ? others : nr > 0 ? nr : 1;
  if (nr) {  // without, what a call does would depend on what the cache holds
    x->ctx.worn = xdb_round_worn;
    x->ctx.worn_arg = x;
  }
  return xdb_sync_start(x);
}

// Ends the threads: what they use, the log before all, may go only after that.
static void stop_threads(struct xdb *x) {
  xdb_sync_stop(x);
  workers_destroy(x->workers);
  x->workers = NULL;
}

static void teardown(struct xdb *x) {
  view_unref(xdb_view(x));
  epoch_fini(&x->cursors);
  epoch_fini(&x->epoch);
  memtables_fini(&x->memtables);
  cache_destroy(x->cache);
  fdpool_destroy(x->fds);
  env_unlock(x->env, x->lock_fd);
  pthread_cond_destroy(&x->changed);
  pthread_mutex_destroy(&x->lock);
  pthread_cond_destroy(&x->sync_wake);
  pthread_mutex_destroy(&x->sync_lock);
  pthread_mutex_destroy(&x->snapshots_lock);
  mem_free(x->dir);
  mem_free(x);
}

static enum remixdb_status start_services(struct xdb *x) {
  enum blkio_kind kind;
  const char *io = getenv("REMIXDB_IO");
  enum remixdb_status s = blkio_parse(io && *io ? io : x->opts.io, &kind);
  if (s != REMIXDB_OK) return s;
  blkio_init(&x->io, x->env, kind);
  // Where a process may have few (256 is usual on macOS) the tables leave some to the rest of the store: it has none to close when it needs one.
  const uint64_t limit = process_descriptors(), room = limit > OPEN_FILES_MIN + OTHER_FILES ? limit - OTHER_FILES : OPEN_FILES_MIN;
  const uint32_t max_open = x->opts.max_open_files < room ? x->opts.max_open_files : (uint32_t)room;
  if (max_open < x->opts.max_open_files)
    xdb_say(x, "%s: %u table files may be open at once, not %u: the process may have %" PRIu64 " descriptors", x->dir, max_open, x->opts.max_open_files, limit);
  if ((s = fdpool_create(x->env, max_open, &x->fds)) != REMIXDB_OK) return s;
  if (x->opts.cache_mb && (s = cache_create(x->opts.cache_mb * MIB, &x->epoch, &x->cache)) != REMIXDB_OK) return s;
  x->ctx = (struct sst_ctx){.env = x->env, .dir = x->dir, .io = &x->io, .cache = x->cache, .fds = x->fds, .store_id = x->store_id,
                            .direct_io = x->opts.direct_io,
                            .retired = &x->retired};
  return REMIXDB_OK;
}

static enum remixdb_status check_opts(struct remixdb_opts *o) {
  if (o->memtable_mb == 0) o->memtable_mb = 256;
  if (o->wal_mb == 0) o->wal_mb = 2 * o->memtable_mb;
  if (o->max_open_files == 0) o->max_open_files = 1000;
  const size_t most = (SIZE_MAX >> 20) / 4;
  if (o->memtable_mb > most || o->wal_mb > most || o->cache_mb > most) return err_set(REMIXDB_INVALID, "a size in MiB is out of range");
  if (o->max_open_files < OPEN_FILES_MIN)
    return err_set(REMIXDB_INVALID, "max_open_files is %u and must be at least %u", o->max_open_files, OPEN_FILES_MIN);
  if (o->sync < REMIXDB_SYNC_EACH) return err_set(REMIXDB_INVALID, "sync is %d: it is REMIXDB_SYNC_NONE, REMIXDB_SYNC_EACH or milliseconds", o->sync);
  if (o->workers < -1) return err_set(REMIXDB_INVALID, "workers is %d: it is a number of threads, or -1 for auto", o->workers);
  if (o->compression != REMIXDB_COMPRESSION_NONE && o->compression != REMIXDB_COMPRESSION_ZSTD)
    return err_set(REMIXDB_INVALID, "compression %d is not known", (int)o->compression);
  return REMIXDB_OK;
}

enum remixdb_status xdb_open(const char *dir, const struct remixdb_opts *o, struct env *env, struct xdb **out) {
  const size_t size = align_up(sizeof(struct xdb), CACHE_LINE);
  struct xdb *x = mem_alloc_aligned(CACHE_LINE, size);
  if (!x) return REMIXDB_NOMEM;
  memset(x, 0, size);
  x->env = env;
  x->lock_fd = -1;
  x->opts = *o;
  epoch_init(&x->epoch);
  epoch_init(&x->cursors);
  struct worker self = {0};  // what this thread does of a worker's
  epoch_join(&x->epoch, &self.slot);
  pthread_mutex_init(&x->lock, NULL);
  cond_init(&x->changed);
  pthread_mutex_init(&x->sync_lock, NULL);
  cond_init(&x->sync_wake);
  pthread_mutex_init(&x->snapshots_lock, NULL);
  struct version *v = NULL;
  struct memtable *m = NULL;
  bool exists = false;
  uint32_t cleaned = 0;
  enum remixdb_status s = check_opts(&x->opts);
  if (s != REMIXDB_OK) goto out;
  x->memtable_limit = x->opts.memtable_mb * MIB;
  x->wal_limit = (uint64_t)x->opts.wal_mb * MIB;
  memtables_init(&x->memtables, &x->epoch, &x->cursors, x->memtable_limit);
  s = REMIXDB_NOMEM;
  if (!(x->dir = mem_alloc(strlen(dir) + 1))) goto out;
  memcpy(x->dir, dir, strlen(dir) + 1);
  struct compact *c = &x->compact;
  c->ctx = &x->ctx;
  c->epoch = &x->epoch;
  c->build = (struct sst_build_opts){.ckeys = x->opts.ckeys, .compression = x->opts.compression, .level = x->opts.compression_level,
                                      .max_pages = compact_table_pages(x->memtable_limit)};
  c->tags = x->opts.tags;
  c->young_from = COMPACT_YOUNG_FROM;
  // what is handed back must not fill the next memtable's log segment at once, or it would be handed back for ever
  c->memtable_size = x->wal_limit < x->memtable_limit ? (size_t)x->wal_limit : x->memtable_limit;
  c->hand_back = xdb_write_back;
  c->arg = x;
  // what can fail without touching the disk comes first, so that a store that is there is not changed by an opening that fails
  if ((s = start_services(x)) != REMIXDB_OK) goto out;
  if (!x->opts.read_only && (s = start_threads(x)) != REMIXDB_OK) goto out;
  if ((s = memtable_create(&x->memtables, &m)) != REMIXDB_OK) goto out;
  if ((s = open_dir(x, &exists)) != REMIXDB_OK) goto out;
  x->ctx.store_id = x->store_id;
  s = exists ? version_load(&x->ctx, x->workers, &self, &v) : make_store(x, &v);
  if (s != REMIXDB_OK) goto out;
  x->ctx.store_id = x->store_id;
  atomic_store_explicit(&c->next_file, v->next_file, memory_order_relaxed);
  struct view *view = view_create(m, NULL, v);
  if (!view) {
    s = REMIXDB_NOMEM;
    goto out;
  }
  atomic_store_explicit(&x->view, view, memory_order_release);
  // a process that died may have given CURRENT its name and not made that durable: what an older one names must not go before it is
  if (exists && !x->opts.read_only && (s = env_sync_dir(x->env, x->dir)) != REMIXDB_OK) goto out;
  if ((s = recover_log(x, &self, v, !exists, m)) != REMIXDB_OK) goto out;
  if (!exists && (s = version_save(&x->ctx, v)) != REMIXDB_OK) goto out;
  if (!x->opts.read_only && finish_making(x) != REMIXDB_OK) xdb_say(x, "the mark of the store's making is left: %s", err_msg());
  if (!x->opts.read_only && version_clean(&x->ctx, v, &cleaned) != REMIXDB_OK) xdb_say(x, "files that no version names are left: %s", err_msg());
  xdb_say(x, "%s: opened; %u partitions, %" PRIu64 " records replayed from the log, %" PRIu64 " bytes of a torn tail left out, %u files removed, io %s", x->dir,
      v->nr_parts, x->recovery.nr_records, x->recovery.cut_bytes, cleaned, blkio_engine(&x->io));
  if (!x->opts.read_only && x->recovery.nr_segments > REPLAY_SEGMENTS_MAX) {
    s = xdb_round_room(x, XDB_ROUND_ANY, 0);
    if (s == REMIXDB_NOSPACE || s == REMIXDB_NOMEM) {  // the store works all the same
      xdb_say(x, "the log could not be shortened: %s", err_msg());
      s = REMIXDB_OK;
    }
  }
out:
  epoch_leave(&x->epoch, &self.slot);
  memtable_unref(m);
  version_unref(v);
  if (s != REMIXDB_OK) {
    struct err_saved why;
    err_save(&why, s);
    stop_threads(x);
    if (x->wal) {
      const enum remixdb_status ignored = wal_close(x->wal);  // the failure that is reported came first
      (void)ignored;
    }
    teardown(x);
    return err_raise(&why);
  }
  *out = x;
  return REMIXDB_OK;
}

enum remixdb_status xdb_close(struct xdb *x) {
  if (x->workers) {
    // a round that runs, or was asked for, is finished: the next opening has that much less to replay
    xdb_round_last(x);
    const enum remixdb_status idle = xdb_wait_idle(x);  // and what was left for workers to destroy is gone
    (void)idle;  // what could not be compacted is in the log
  }
  stop_threads(x);
  enum remixdb_status s = xdb_failure(x);
  if (x->wal) {
    struct err_saved why;
    err_save(&why, s);
    const enum remixdb_status closed = wal_close(x->wal);
    x->wal = NULL;
    if (s != REMIXDB_OK) s = err_raise(&why);
    else s = closed;
  }
  struct err_saved why;
  err_save(&why, s);
  teardown(x);
  return s == REMIXDB_OK ? s : err_raise(&why);
}
