// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/place.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "tests/lib/often.h"

static _Atomic int64_t fault_io_left;  // calls until the one that fails; <= 0: it has failed

static _Atomic unsigned fault_io_kinds;

static _Atomic bool fault_io_on;  // all later ones fail, too

_Atomic bool fault_io_full;

// Counts a call. Returns 0, or the -errno with which the call fails.
static int fault_io(unsigned kind) {
  if (!(atomic_load_explicit(&fault_io_kinds, memory_order_relaxed) & kind)) return 0;
  const int64_t left = atomic_fetch_sub_explicit(&fault_io_left, 1, memory_order_relaxed);
  if (left > 1 || (left < 1 && !atomic_load_explicit(&fault_io_on, memory_order_relaxed))) return 0;
  return kind == FAULT_WRITE || atomic_load_explicit(&fault_io_full, memory_order_relaxed) ? -ENOSPC : -EIO;
}

void fault_io_set(unsigned kinds, int64_t nth, bool on) {
  atomic_store(&fault_io_left, nth);
  atomic_store(&fault_io_on, on);
  atomic_store(&fault_io_kinds, kinds);
}

bool fault_io_end(void) {
  atomic_store(&fault_io_kinds, 0);
  atomic_store(&fault_io_full, false);
  return atomic_load(&fault_io_left) <= 0;
}

int place_open(struct env *e, int at, const char *path, unsigned flags) {
  (void)e;
  const int bad = fault_io(FAULT_OPEN);
  return bad ? bad : PLACE_REAL->open(env_posix(), at, path, flags);
}

static int place_close(struct env *e, int fd) {
  (void)e;
  const int rc = PLACE_REAL->close(env_posix(), fd);
  const int bad = fault_io(FAULT_CLOSE);
  return bad ? bad : rc;
}

static ssize_t place_pread(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  (void)e;
  const int bad = fault_io(FAULT_READ);
  return bad ? bad : PLACE_REAL->pread(env_posix(), fd, buf, len, off);
}

static ssize_t place_pwrite(struct env *e, int fd, const void *buf, size_t len, uint64_t off) {
  (void)e;
  const int bad = fault_io(FAULT_WRITE);
  return bad ? bad : PLACE_REAL->pwrite(env_posix(), fd, buf, len, off);
}

// No test here loses power, so that nothing waits for the disk.
static int place_sync(struct env *e, int fd) {
  (void)e, (void)fd;
  return fault_io(FAULT_SYNC);
}

static int place_fstat(struct env *e, int fd, struct env_stat *out) {
  (void)e;
  const int bad = fault_io(FAULT_STAT);
  return bad ? bad : PLACE_REAL->fstat(env_posix(), fd, out);
}

static int place_stat(struct env *e, int at, const char *path, struct env_stat *out) {
  (void)e;
  const int bad = fault_io(FAULT_STAT);
  return bad ? bad : PLACE_REAL->stat(env_posix(), at, path, out);
}

static int place_rename(struct env *e, int from_at, const char *from, int to_at, const char *to) {
  (void)e;
  const int bad = fault_io(FAULT_RENAME);
  return bad ? bad : PLACE_REAL->rename(env_posix(), from_at, from, to_at, to);
}

static int place_unlink(struct env *e, int at, const char *path) {
  (void)e;
  const int bad = fault_io(FAULT_UNLINK);
  return bad ? bad : PLACE_REAL->unlink(env_posix(), at, path);
}

static int place_list(struct env *e, int at, const char *name, bool (*fn)(void *, const char *), void *arg) {
  (void)e;
  const int bad = fault_io(FAULT_LIST);
  return bad ? bad : PLACE_REAL->list(env_posix(), at, name, fn, arg);
}

// The names of a directory.
#define PLACE_NAMES 2048u  // files in a directory, at most

struct place_names {
  char *at[PLACE_NAMES];
  uint32_t nr;
};

bool place_native;

bool place_cold;

bool place_direct;

enum remixdb_compression place_compression;

uint32_t place_max_open = 100;

void place_init(struct place *p, size_t cache_size) {
  memset(p, 0, sizeof(*p));
  often_keep();
  atomic_store(&blkio_test_cold, place_cold ? 2 : 1);
  CHECK(temp_make(p->dir, "test"));
  p->ops = *PLACE_REAL;
  p->ops.open = place_open;
  p->ops.close = place_close;
  p->ops.pread = place_pread;
  p->ops.pwrite = place_pwrite;
  p->ops.sync_data = place_sync;
  p->ops.sync_all = place_sync;
  p->ops.fstat = place_fstat;
  p->ops.stat = place_stat;
  p->ops.rename = place_rename;
  p->ops.unlink = place_unlink;
  p->ops.list = place_list;
  p->env = (struct env){.ops = &p->ops};
  epoch_init(&p->epoch);
  epoch_join(&p->epoch, &p->slot);
  struct env *const env = place_native ? env_posix() : &p->env;
  OK(env_dir_open(ENV_PATHS(env), p->dir, &p->at));
  blkio_init(&p->io, env, place_native ? BLKIO_AUTO : BLKIO_SYNC);
  OK(blkio_queue_create(&p->io, &p->queue));
  if (cache_size) OK(cache_create(cache_size, 0, &p->epoch, &p->cache));
  if (cache_size) p->cache->disk_ns = place_cold ? 0 : UINT32_MAX;
  OK(fdpool_create(env, place_max_open, &p->fds));
  p->ctx = (struct sst_ctx){
      .env = env, .dir = &p->at, .io = &p->io, .cache = p->cache, .fds = p->fds, .store_id = PLACE_STORE_ID};
  p->ctx.direct_io = p->io.direct = place_direct;
  p->next = 1;
}

static bool place_remove(void *arg, const char *name) {
  const struct place *p = arg;
  char path[ENV_PATH_MAX];
  if (env_path(path, p->dir, name) == REMIXDB_OK) (void)unlink(path);
  return true;
}

void place_fini(struct place *p) {
  blkio_queue_destroy(p->queue);
  blkio_fini(&p->io);
  epoch_leave(&p->epoch, &p->slot);
  epoch_fini(&p->epoch);
  cache_destroy(p->cache);
  fdpool_destroy(p->fds);
  env_dir_close(&p->at);
  OK(paths_list(env_posix(), p->dir, place_remove, p));
  assert_int_equal(rmdir(p->dir), 0);
}

static bool place_name_add(void *arg, const char *name) {
  struct place_names *n = arg;
  if (n->nr < PLACE_NAMES) n->at[n->nr++] = strdup(name);
  return true;
}

int place_name_cmp(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

char *place_files(struct place *p) {
  struct place_names *n = calloc(1, sizeof(*n));
  OK(paths_list(env_posix(), p->dir, place_name_add, n));
  assert_true(n->nr < PLACE_NAMES);
  qsort(n->at, n->nr, sizeof(n->at[0]), place_name_cmp);
  char *all = calloc(n->nr + 1, 64);
  for (uint32_t i = 0; i < n->nr; i++) {
    strcat(strcat(all, n->at[i]), "\n");
    free(n->at[i]);
  }
  free(n);
  return all;
}

uint64_t place_bytes(const struct place *p) {
  uint64_t bytes = 0;
  struct stat st;
  DIR *const d = opendir(p->dir);
  assert_non_null(d);
  for (const struct dirent *e; (e = readdir(d)) != NULL;)
    if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
      bytes += (uint64_t)st.st_blocks * 512;
  (void)closedir(d);
  return bytes;
}

void byte_flip(const char *path, long off) {
  FILE *f = fopen(path, "r+b");
  assert_non_null(f);
  assert_int_equal(fseek(f, off, SEEK_SET), 0);
  const int c = fgetc(f);
  assert_int_equal(fseek(f, off, SEEK_SET), 0);
  assert_int_not_equal(fputc(c ^ 0x10, f), EOF);
  assert_int_equal(fclose(f), 0);
}

int key_order(const void *a, const void *b) { return kv_cmp(*(const struct kref *)a, *(const struct kref *)b); }

void keyset_sort(struct keyset *k, uint32_t nr) {
  qsort(k->keys, nr, sizeof(*k->keys), key_order);
  k->nr = 0;
  for (uint32_t i = 0; i < nr; i++) {
    if (k->nr && kv_eq(k->keys[k->nr - 1], k->keys[i])) free((void *)(uintptr_t)k->keys[i].ptr);
    else k->keys[k->nr++] = k->keys[i];
  }
}

void keyset_make(struct keyset *k, uint32_t nr, uint64_t *rng) {
  k->keys = calloc(nr, sizeof(*k->keys));
  for (uint32_t i = 0; i < nr; i++) {
    char buf[128];
    uint32_t len = 0;
    switch (rng_next(rng) % 4) {
      case 0:
        len = (uint32_t)(rng_next(rng) % 5);
        for (uint32_t b = 0; b < len; b++)
          buf[b] = "\0\xff"
                   "ab\x80"[rng_next(rng) % 5];
        break;
      case 1: len = (uint32_t)sprintf(buf, "user%08u", (uint32_t)(rng_next(rng) % (4 * nr))); break;
      case 2:
        len = (uint32_t)sprintf(buf, "/a/path/that/is/shared/%u/", (uint32_t)(rng_next(rng) % 7));
        len += (uint32_t)sprintf(buf + len, "%u", (uint32_t)(rng_next(rng) % nr));
        break;
      default:
        len = 1 + (uint32_t)(rng_next(rng) % 20);
        for (uint32_t b = 0; b < len; b++) buf[b] = (char)rng_next(rng);
        break;
    }
    if (i == 0) len = 0;
    uint8_t *p = malloc(len + 1);
    memcpy(p, buf, len);
    k->keys[i] = kref(p, len);
  }
  keyset_sort(k, nr);
}

void keyset_free(struct keyset *k) {
  for (uint32_t i = 0; i < k->nr; i++) free((void *)(uintptr_t)k->keys[i].ptr);
  free(k->keys);
}

uint32_t keyset_rank(const struct keyset *k, struct kref key) {
  uint32_t lo = 0, hi = k->nr;
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (kv_cmp(k->keys[mid], key) < 0) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

uint32_t value_make(struct kref key, uint32_t what, uint32_t base, uint8_t *buf) {
  const uint64_t r = hash64_seed(key.ptr, key.len, what);
  const uint32_t len = base > 50 && r % 400 == 0 ? 4000 + (uint32_t)(r >> 32) % 5000
                                                 : (uint32_t)(r >> 8) % (2 * base + 1);
  memset(buf, (int)(r >> 40), len);
  if (len >= 8) store64le(buf, r);
  return len;
}

bool value_is(const struct kv_rec *r, struct kref key, uint32_t what, uint32_t base) {
  static _Thread_local uint8_t buf[VALUE_MAX];
  if (what == TOMB) return r->kind & KV_TOMB;
  return !(r->kind & ~(uint32_t)KV_EXPIRES) && value_make(key, what, base, buf) == r->vlen &&
         memcmp(buf, r->val, r->vlen) == 0;
}

void mem_put(struct place *p, struct wh *wh, struct kref key, uint32_t what, uint32_t base, uint64_t seq) {
  static uint8_t buf[VALUE_MAX];
  struct wh_slot s;
  enter(p);
  wh_lock(wh, key, hash64(key.ptr, key.len), &s);
  OK(wh_link(&s, KV_REC(kref(NULL, 0), buf, what == TOMB ? 0 : value_make(key, what, base, buf), what == TOMB)));
  wh_stamp(&s, seq);
  wh_unlock(&s);
  leave(p);
}

struct sst *table_make(struct place *p, const struct keyset *k, const uint32_t *what, uint32_t from, uint32_t to,
                       uint32_t base, bool ckeys) {
  static uint8_t buf[VALUE_MAX];
  struct sst_build *b;
  struct sst *t;
  uint64_t size;
  OK(sst_build_create(&p->ctx, &(struct sst_build_opts){.ckeys = ckeys, .compression = place_compression}, p->queue,
                      &b));
  const uint64_t number = p->next++;
  sst_build_start(b, number);
  for (uint32_t i = from; i < to; i++) {
    if (what[i] == NONE) continue;
    struct kv_rec r = {.key = k->keys[i].ptr, .klen = k->keys[i].len, .val = buf, .kind = what[i] == TOMB};
    r.vlen = r.kind ? 0 : value_make(k->keys[i], what[i], base, buf);
    sst_build_add(b, &r);
  }
  OK(sst_build_finish(b, &size));
  sst_build_destroy(b);
  OK(sst_open(&p->ctx, number, &t));
  return t;
}

char *remix_path(const struct place *p, uint64_t number, char path[ENV_PATH_MAX]) {
  char name[32];
  remix_name(name, number);
  OK(env_path(path, p->dir, name));
  return path;
}

struct remix_build place_build(struct place *p, uint64_t number, const struct remix *old, struct sst **fresh,
                               uint32_t nr_fresh) {
  return (struct remix_build){.ctx = &p->ctx,
                              .queue = p->queue,
                              .number = number,
                              .old = old,
                              .keep = old ? UINT32_MAX : 0,
                              .fresh = fresh,
                              .nr_fresh = nr_fresh,
                              .tags = true};
}

struct remix *remix_add(struct place *p, struct remix *old, struct sst *t, bool tags) {
  struct sst *runs[REMIX_RUNS_MAX];
  const uint32_t nr = old ? old->nr_runs : 0;
  struct remix *x;
  for (uint32_t r = 0; r < nr; r++) runs[r] = old->runs[r];
  runs[nr] = t;
  struct remix_build b = place_build(p, p->next++, old, &runs[nr], 1);
  b.tags = tags;
  OK(remix_build(&b));
  OK(remix_open(&p->ctx, b.number, runs, nr + 1, &x));
  if (old) atomic_store(&old->obsolete, true);
  remix_unref(old);
  sst_unref(t);
  return x;
}
