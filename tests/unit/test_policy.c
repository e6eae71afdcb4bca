// SPDX-License-Identifier: Apache-2.0
//
// Cost and result of compaction, seen from outside of the whole store: bytes written per byte of data, room on disk,
// promises of flush and compact, savings of compression. Memtables are small, and all else in proportion, so that a
// load with many memtables takes seconds. Bytes are counted where they are written.
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/thread.h"
#include "tests/lib/check.h"

#include "store/whole.h"
#include "tests/lib/slow.h"
#include "xdb.h"
#include "store/flush.h"
#include "log/segments.h"
#include "log/state.h"
#include "admin/stats.h"
#include "tests/lib/paths.h"
#include "tests/lib/temp.h"

#define KIB ((size_t)1 << 10)
#define MEMTABLE (512 * KIB)
#define TABLE_PAGES 1024u  // as much less than of a memtable of 1 MiB as the memtable is
#define KEY 16u
#define VALUE 120u

// ---- an env that counts written bytes by kind of file, and can be out of room

enum file { FILE_OTHER, FILE_LOG, FILE_TABLE, FILE_REMIX, FILE_PACK, FILES };
#define FD_MAX 65536

static struct env_ops ops;
static struct env env = {.ops = &ops};
static _Atomic uint8_t file_of[FD_MAX];
static _Atomic uint64_t written[FILES];
static _Atomic int64_t room;  // bytes that tables and REMIXes may still take; INT64_MAX: any

static enum file kind_of(const char *path) {
  const char *name = strrchr(path, '/');
  const size_t len = strlen(path);
  name = name ? name + 1 : path;
  if (strncmp(name, "wal-", 4) == 0) return FILE_LOG;
  if (len > 4 && strcmp(path + len - 4, ".sst") == 0) return FILE_TABLE;
  if (len > 6 && strcmp(path + len - 6, ".remix") == 0) return FILE_REMIX;
  if (len > 5 && strcmp(path + len - 5, ".pack") == 0) return FILE_PACK;
  return FILE_OTHER;
}

static int counting_open(struct env *e, int at, const char *path, unsigned flags) {
  const int fd = env_posix()->ops->open(e, at, path, flags);
  if (fd >= 0 && fd < FD_MAX) atomic_store(&file_of[fd], (uint8_t)kind_of(path));
  return fd;
}

static ssize_t counting_pwrite(struct env *e, int fd, const void *buf, size_t len, uint64_t off) {
  const enum file kind = atomic_load(&file_of[fd]);
  if ((kind == FILE_TABLE || kind == FILE_REMIX || kind == FILE_PACK) &&
      atomic_fetch_sub(&room, (int64_t)len) < (int64_t)len)
    return -ENOSPC;
  const ssize_t n = env_posix()->ops->pwrite(e, fd, buf, len, off);
  if (n > 0) atomic_fetch_add(&written[kind], (uint64_t)n);
  return n;
}

// No power cut here, so no sync is waited for.
static int no_sync(struct env *e, int fd) {
  (void)e, (void)fd;
  return 0;
}

// ---- the store

static char dir[TEMP_DIR];
static struct xdb *x;
static struct xdb_ref *ref;
static uint64_t user;  // bytes of keys and values that were put

static int setup(void **state) {
  (void)state;
  ops = *env_posix()->ops;
  ops.open = counting_open;
  ops.pwrite = counting_pwrite;
  ops.sync_data = no_sync;
  ops.sync_all = no_sync;
  atomic_store(&room, INT64_MAX);
  for (uint32_t i = 0; i < FILES; i++) atomic_store(&written[i], 0);
  user = 0;
  x = NULL;
  return temp_make(dir, "policy") ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  if (x) {  // a test that failed
    xdb_unref(ref);
    (void)!xdb_close(x);
  }
  return remove_tree(dir);
}

static void store_open(struct remixdb_opts *o) {
  o->memtable_mb = 1;
  o->cache_mb = 4;
  o->worker_cores = "none";
  OK(xdb_open(dir, o, &env, &x));
  x->memtable_limit = MEMTABLE;
  x->wal->limit = 4 * MEMTABLE;
  wal_bound(x->wal);
  x->compact.memtable_size = MEMTABLE;
  x->compact.build.max_pages = TABLE_PAGES;
  OK(xdb_ref(x, &ref));
}

static void store_open_plain(int workers) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.workers = workers;
  store_open(&o);
}

static void store_close(void) {
  xdb_unref(ref);
  struct xdb *const was = x;
  x = NULL;
  OK(xdb_close(was));
}

static struct kref key_of(uint64_t k, uint8_t *buf) {
  for (uint32_t i = 0; i < KEY; i++) buf[i] = (uint8_t) "0123456789abcdef"[k >> (60 - 4 * i) & 15];
  return kref(buf, KEY);
}

// Puts the n-th key: n itself, or spread over all keys.
static uint64_t spread(uint64_t n) {
  uint64_t s = n;
  return rng_next(&s);
}

static enum remixdb_status put_as(struct xdb_ref *r, uint64_t k, uint32_t what) {
  uint8_t key[KEY], val[VALUE];
  uint64_t seed = k ^ what;
  for (uint32_t i = 0; i < VALUE; i += 8) store64le(val + i, rng_next(&seed));
  return xdb_put(r, KV_REC(key_of(k, key), val, VALUE, false));
}

static void put(uint64_t k, uint32_t what) {
  OK(put_as(ref, k, what));
  user += KEY + VALUE;
}

static void del(uint64_t k) {
  uint8_t key[KEY];
  OK(xdb_put(ref, KV_REC(key_of(k, key), NULL, 0, true)));
}

static void expect_is(uint64_t k, uint32_t what) {
  uint8_t key[KEY], val[VALUE];
  uint32_t len;
  OK(xdb_get(ref, key_of(k, key), val, VALUE, &len));
  uint64_t seed = k ^ what;
  assert_int_equal(len, VALUE);
  for (uint32_t i = 0; i < VALUE; i += 8) assert_true(load64le(val + i) == rng_next(&seed));
}

static void expect_gone(uint64_t k) {
  uint8_t key[KEY];
  FAILS(xdb_get(ref, key_of(k, key), NULL, 0, NULL), REMIXDB_NOTFOUND);
}

static uint64_t count_keys(void) {
  struct xdb_iter *it;
  uint64_t nr = 0;
  OK(xdb_iter_create(ref, &it));
  for (OK(xdb_iter_seek(it, kref(NULL, 0))); xdb_iter_valid(it); OK(xdb_iter_skip(it, 1))) nr++;
  xdb_iter_destroy(it);
  return nr;
}

// ---- written bytes

// Bytes written per byte put: all of them, by the env's count, with which the store's own figures agree.
static double amplification(const char *what) {
  const uint64_t log = atomic_load(&written[FILE_LOG]), packs = atomic_load(&written[FILE_PACK]),
                 other = atomic_load(&written[FILE_OTHER]);
  const uint64_t tables = stat_of(x, "table_bytes_written"), remix = stat_of(x, "remix_bytes_written");
  // the rest of them are in packs: their parts begin at pages, and they have a directory
  const uint64_t alone = atomic_load(&written[FILE_TABLE]) + atomic_load(&written[FILE_REMIX]);
  assert_true(atomic_load(&written[FILE_TABLE]) <= tables && atomic_load(&written[FILE_REMIX]) <= remix);
  assert_true(packs >= tables + remix - alone && packs <= (tables + remix - alone) / 10 * 11 + 64 * KIB);
  const uint64_t frames = stat_of(x, "written_bytes");  // headers and watermarks are not in it
  assert_true(log >= frames && log <= frames + frames / 50 + 64 * KIB);
  const double all = (double)(log + alone + packs + other) / (double)user;
  printf("%s: %.2f (log %.2f, tables %.2f, REMIXes %.2f), %u rounds: %u abort, %u minor, %u major, %u split; %u "
         "partitions, %u tables\n",
         what, all, (double)log / (double)user, (double)tables / (double)user, (double)remix / (double)user,
         (unsigned)stat_of(x, "rounds"), (unsigned)stat_of(x, "abort"), (unsigned)stat_of(x, "minor"),
         (unsigned)stat_of(x, "major"), (unsigned)stat_of(x, "split"), (unsigned)stat_of(x, "partitions"),
         (unsigned)stat_of(x, "tables"));
  return all;
}

// Records that are 64 memtables; a sanitizer takes its time, and has nothing more to find in as many. FULL: where less
// would be another case.
#define FULL (64 * MEMTABLE / (KEY + VALUE))
#define LOAD (SLOW > 1 ? FULL / 2 : FULL)

// Loads so many records in no order. Returns the bytes written per byte put.
static double random_load(int workers, uint64_t nr) {
  char what[40];
  user = 0;
  for (uint32_t i = 0; i < FILES; i++) atomic_store(&written[i], 0);
  store_open_plain(workers);
  for (uint64_t i = 0; i < nr; i++) put(spread(i), 1);
  OK(xdb_flush(x));
  (void)snprintf(what, sizeof(what), "random load of %.0f memtables", (double)user / MEMTABLE);
  const double bytes = amplification(what);
  assert_int_equal(stat_of(x, "table_keys"), nr);
  assert_true(stat_of(x, "minor") > 0 && stat_of(x, "major") > 0);
  for (uint64_t i = 0; i < nr; i += 97) expect_is(spread(i), 1);
  store_close();
  CHECK(remove_tree(dir) == 0 && mkdir(dir, 0700) == 0);
  return bytes;
}

// A partition writes much when it is split, and little for a long time after that. So loads of different sizes write
// between 3.6 and 5.1 bytes per byte, and 4.39 on average. A round in the caller's thread comes at the same record each
// time, so these figures are the same on each machine.
static void test_random_load(void **state) {
  (void)state;
  const uint32_t most = LOAD / (FULL / 8);
  double sum = 0;
  for (uint32_t eighths = 2; eighths <= most; eighths++) {
    const double bytes = random_load(0, FULL / 8 * eighths);
    assert_true(bytes <= 5.2);
    sum += bytes;
  }
  const double mean = sum / (most - 1);
  printf("random loads: %.3f on average\n", mean);
  assert_true(mean <= (most < 8 ? 4.0 : 4.45));
}

// A worker's rounds come when the system lets them, and each may bring a split to this load or keep one from it: 4.4 to
// 4.9 bytes were seen. A split too many costs half a byte.
static void test_random_load_worker(void **state) {
  (void)state;
  assert_true(random_load(1, LOAD) <= 5.5);
}

struct table_list {
  uint64_t *at;
  uint32_t nr;
};

static int cmp_u64(const void *a, const void *b) {
  const uint64_t n = *(const uint64_t *)a, m = *(const uint64_t *)b;
  return (n > m) - (n < m);
}

static struct table_list tables_now(void) {
  const struct version *v = atomic_load(&x->super)->version;
  struct table_list l = {calloc((size_t)v->nr_parts * REMIX_RUNS_MAX, sizeof(*l.at)), 0};
  for (uint32_t i = 0; i < v->nr_parts; i++)
    for (uint32_t r = 0; v->parts[i]->remix && r < v->parts[i]->remix->nr_runs; r++)
      l.at[l.nr++] = v->parts[i]->remix->runs[r]->number;
  qsort(l.at, l.nr, sizeof(*l.at), cmp_u64);
  return l;
}

static void test_sequential_load(void **state) {
  (void)state;
  store_open_plain(1);
  struct table_list before = {NULL, 0};
  for (uint64_t i = 0; i < LOAD; i++) {
    put(i, 1);
    if (i != LOAD / 2) continue;
    OK(xdb_wait_idle(x));
    before = tables_now();
  }
  OK(xdb_flush(x));
  assert_true(amplification("sequential load") <= 2.3);
  assert_int_equal(stat_of(x, "table_bytes_merged"), 0);
  assert_true(stat_of(x, "partitions") > 4);
  // the old records are still there
  struct table_list after = tables_now();
  assert_true(before.nr > 10);
  for (uint32_t i = 0; i < before.nr; i++)
    assert_non_null(bsearch(&before.at[i], after.at, after.nr, sizeof(*after.at), cmp_u64));
  free(before.at);
  free(after.at);
  assert_int_equal(count_keys(), LOAD);
  store_close();
}

// Several threads share one ascending sequence: a few keys of each memtable are after the last of the one before.
struct feeder {
  pthread_t thread;
  _Atomic uint64_t *next;
  enum remixdb_status status;
};

static void *feed(void *arg) {
  struct feeder *f = arg;
  struct xdb_ref *r;
  if ((f->status = xdb_ref(x, &r)) != REMIXDB_OK) return NULL;
  for (uint64_t i; f->status == REMIXDB_OK && (i = atomic_fetch_add(f->next, 1)) < LOAD / 2;)
    f->status = put_as(r, i, 1);
  xdb_unref(r);
  return NULL;
}

static void test_sequential_threads(void **state) {
  (void)state;
  store_open_plain(1);
  _Atomic uint64_t next;
  atomic_init(&next, 0);
  struct feeder f[4];
  for (uint32_t i = 0; i < 4; i++) {
    f[i] = (struct feeder){.next = &next};
    OK(thread_start(&f[i].thread, feed, &f[i], "feed"));
  }
  for (uint32_t i = 0; i < 4; i++) {
    (void)pthread_join(f[i].thread, NULL);
    OK(f[i].status);
  }
  user = LOAD / 2 * (KEY + VALUE);
  OK(xdb_flush(x));
  assert_true(amplification("sequential load by 4 threads") <= 2.5);
  assert_int_equal(count_keys(), LOAD / 2);
  store_close();
}

// The rank of a record by its number of uses: Zipf with 0.99 (Gray et al., "Quickly Generating Billion-Record Synthetic
// Databases", 1994).
struct zipf {
  uint64_t n;
  double zetan, alpha, eta;
};

static void zipf_init(struct zipf *z, uint64_t n) {
  const double theta = 0.99;
  double zeta2 = 0;
  z->n = n;
  z->zetan = 0;
  for (uint64_t i = 1; i <= n; i++) {
    z->zetan += pow(1.0 / (double)i, theta);
    if (i == 2) zeta2 = z->zetan;
  }
  z->alpha = 1 / (1 - theta);
  z->eta = (1 - pow(2.0 / (double)n, 1 - theta)) / (1 - zeta2 / z->zetan);
}

static uint64_t zipf_next(const struct zipf *z, uint64_t *rng) {
  const double u = (double)(rng_next(rng) >> 11) * 0x1p-53, uz = u * z->zetan;
  if (uz < 1) return 0;
  if (uz < 1 + pow(0.5, 0.99)) return 1;
  const uint64_t k = (uint64_t)((double)z->n * pow(z->eta * u - z->eta + 1, z->alpha));
  return k < z->n ? k : z->n - 1;
}

// Few records get most of the changes, and they lie together: partitions that get few give them back.
static void test_skewed_overwrites(void **state) {
  (void)state;
  const uint64_t keys = FULL / 4;
  struct zipf z;
  uint64_t rng = 5;
  zipf_init(&z, keys);
  store_open_plain(1);
  x->compact.build.max_pages = TABLE_PAGES / 8;
  for (uint64_t i = 0; i < keys; i++) put(i, 1);
  OK(xdb_flush(x));
  assert_true(stat_of(x, "partitions") >= 8);
  const uint64_t aborts = stat_of(x, "abort");
  user = 0;
  for (uint32_t i = 0; i < FILES; i++) atomic_store(&written[i], 0);
  atomic_store(&x->compact.stats.table_bytes, 0);
  atomic_store(&x->compact.stats.remix_bytes, 0);
  const uint64_t logged = stat_of(x, "written_bytes");
  uint8_t *last = calloc(keys, 1);
  for (uint64_t i = 0; i < LOAD / 2; i++) {
    const uint64_t k = zipf_next(&z, &rng);
    last[k] = (uint8_t)(2 + i % 200);
    put(k, last[k]);
  }
  OK(xdb_wait_idle(x));
  const double tables = (double)(atomic_load(&written[FILE_TABLE]) + atomic_load(&written[FILE_PACK])) / (double)user,
               log = (double)(stat_of(x, "written_bytes") - logged) / (double)user;
  printf("skewed overwrites: log %.2f, tables %.2f, %u handed back\n", log, tables,
         (unsigned)stat_of(x, "handed_back_bytes"));
  assert_true(stat_of(x, "abort") > aborts);
  assert_true(stat_of(x, "handed_back_bytes") > 0);
  assert_true(stat_of(x, "handed_back_bytes") <= stat_of(x, "rounds") * MEMTABLE / COMPACT_ABORT_SHARE);
  assert_true(tables <= 2.5);
  for (uint64_t k = 0; k < keys; k += 7) expect_is(k, last[k] ? last[k] : 1);
  free(last);
  store_close();
}

// ---- flush and compact

static void test_flush(void **state) {
  (void)state;
  for (int workers = 0; workers < 3; workers++) {
    store_open_plain(workers);
    OK(xdb_flush(x));
    assert_int_equal(stat_of(x, "rounds"), workers ? stat_of(x, "rounds") : 0);  // nothing to flush
    x->compact.build.max_pages = 64;
    const uint64_t n = 4000;
    for (uint64_t i = 0; i < n; i++) put(spread(i), (uint32_t)workers);
    OK(xdb_flush(x));
    assert_int_equal(stat_of(x, "active_keys"), 0);
    assert_int_equal(stat_of(x, "frozen_keys"), 0);
    // a single key, which a round of the store's own would hand back
    const uint64_t aborts = stat_of(x, "abort");
    put(spread(1), 9);
    OK(xdb_flush(x));
    assert_int_equal(stat_of(x, "active_keys"), 0);
    assert_int_equal(stat_of(x, "abort"), aborts);
    expect_is(spread(1), 9);
    assert_int_equal(count_keys(), n);
    store_close();
  }
}

// Flushes of one record each write about the same whatever the store has: the small runs are merged with each other,
// and not with all that the partition has, before they are much.
static void test_small_flushes(void **state) {
  (void)state;
  enum { FLUSHES = 100 };
  uint64_t bytes[2];
  for (uint32_t turn = 0; turn < 2; turn++) {
    store_open_plain(0);
    const uint64_t n = turn ? 24000 : 6000;
    for (uint64_t i = 0; i < n; i++) put(spread(i), 1);
    OK(xdb_flush(x));
    assert_int_equal(stat_of(x, "partitions"), 1);
    const uint64_t before = stat_of(x, "table_bytes_written"), base = stat_of(x, "table_bytes");
    for (uint64_t i = 0; i < FLUSHES; i++) {
      put(spread(i * 53 % n), 2);
      OK(xdb_flush(x));
    }
    bytes[turn] = stat_of(x, "table_bytes_written") - before;
    printf("%u flushes of a record beside %u KiB write %u KiB\n", FLUSHES, (unsigned)(base / KIB),
           (unsigned)(bytes[turn] / KIB));
    for (uint64_t i = 0; i < FLUSHES; i++) expect_is(spread(i * 53 % n), 2);
    store_close();
    CHECK(remove_tree(dir) == 0 && mkdir(dir, 0700) == 0);
  }
  assert_true(bytes[1] < bytes[0] * 2 && bytes[1] < FLUSHES * 32 * KIB);
}

// Bytes of all files in the store, without the holes of packs.
static bool add_size(void *arg, const char *name) {
  char path[ENV_PATH_MAX];
  struct stat st;
  if (env_path(path, dir, name) != REMIXDB_OK || stat(path, &st) != 0) return true;
  const uint64_t size = (uint64_t)st.st_size, there = (uint64_t)st.st_blocks * 512;
  *(uint64_t *)arg += kind_of(path) == FILE_PACK && there < size ? there : size;
  return true;
}

// All partitions are as small as they can be, and hold nothing that nobody can read.
static void expect_compact(uint64_t keys) {
  const struct version *v = atomic_load(&x->super)->version;
  assert_int_equal(stat_of(x, "table_entries"), keys);
  assert_int_equal(stat_of(x, "table_keys"), keys);
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    const struct remix *r = v->parts[i]->remix;
    uint64_t pages = 0;
    for (uint32_t t = 0; r && t < r->nr_runs; t++) {
      assert_int_equal(r->runs[t]->nr_tombs, 0);
      pages += r->runs[t]->nr_pages;
    }
    const uint32_t most = x->compact.build.max_pages;
    if (r) assert_int_equal(r->nr_runs, (pages + most - 1) / most);
  }
}

static void test_compact_space(void **state) {
  (void)state;
  for (int workers = 0; workers < 3; workers++) {
    store_open_plain(workers);
    const uint64_t n = workers == 1 ? FULL / 2 : FULL / 5;
    for (uint64_t i = 0; i < n; i++) put(spread(i), 1);
    for (uint64_t i = 0; i < n; i += 2) put(spread(i), 2);
    for (uint64_t i = 0; i < n; i += 3) del(spread(i));
    put(spread(1), 3);
    OK(xdb_compact(x));
    const uint64_t left = n - (n + 2) / 3;
    assert_int_equal(stat_of(x, "active_keys"), 0);
    expect_compact(left);
    uint64_t size = 0;
    OK(xdb_wait_idle(x));
    OK(paths_list(env_posix(), dir, add_size, &size));
    const double live = (double)(left * (KEY + VALUE)),
                 tables = (double)(stat_of(x, "table_bytes") + stat_of(x, "remix_bytes"));
    printf("workers %d: %.3f bytes on disk per live byte, %.3f without the log\n", workers, (double)size / live,
           tables / live);
    assert_true(tables <= 1.2 * live);
    assert_true((double)size <=
                1.26 * live + (workers == 1 ? 0 : (double)MEMTABLE));  // with so little data the log is much
    expect_is(spread(1), 3);
    for (uint64_t i = 0; i < n; i += 11) {
      if (i % 3 == 0) expect_gone(spread(i));
      else expect_is(spread(i), i == 1 ? 3 : i % 2 ? 1 : 2);
    }
    assert_int_equal(count_keys(), left);
    // again: there is nothing to do, and nothing is done
    const uint64_t before = stat_of(x, "table_bytes_written");
    OK(xdb_compact(x));
    assert_int_equal(stat_of(x, "table_bytes_written"), before);
    // all of it goes
    for (uint64_t i = 0; i < n; i++) del(spread(i));
    OK(xdb_compact(x));
    assert_int_equal(stat_of(x, "tables"), 0);
    assert_int_equal(stat_of(x, "partitions"), 1);
    assert_int_equal(count_keys(), 0);
    store_close();
    store_open_plain(workers);
    assert_int_equal(count_keys(), 0);
    put(1, 1);
    OK(xdb_compact(x));
    expect_compact(1);
    del(1);
    store_close();
  }
}

// Records of all sizes up to `most`, spread over all keys; a part of them overwritten and deleted.
struct shape {
  uint32_t pages, keys, most, overwritten, deleted;  // the last two in percent
};

static void put_sized(uint64_t k, uint32_t what, uint32_t most) {
  uint8_t key[KEY], val[6000];
  uint64_t seed = k ^ what;
  const uint32_t len = (uint32_t)(rng_next(&seed) % most);
  assert_true(most <= sizeof(val));
  memset(val, (int)what, len);
  OK(xdb_put(ref, KV_REC(key_of(k, key), val, len, false)));
}

static uint64_t written_to_tables(void) {
  return atomic_load(&written[FILE_TABLE]) + atomic_load(&written[FILE_REMIX]) + atomic_load(&written[FILE_PACK]);
}

// Loads so, and returns the number of keys to expect.
static uint64_t load_shape(const struct shape *s, uint64_t seed) {
  uint64_t rng = seed;
  const uint64_t n = s->keys / (SLOW > 8 ? 4 : SLOW > 1 ? 2 : 1);
  x->compact.build.max_pages = s->pages;
  for (uint64_t k = 0; k < n; k++) put_sized(spread(k), 1, s->most);
  OK(xdb_flush(x));
  for (uint64_t i = 0; i < n * s->overwritten / 100; i++) put_sized(spread(rng_next(&rng) % n), 2, s->most);
  for (uint64_t i = 0; i < n * s->deleted / 100; i++) del(spread(rng_next(&rng) % n));
  return count_keys();
}

static void expect_one_version(uint64_t keys) {
  assert_true(stat_of(x, "table_entries") == keys && stat_of(x, "table_keys") == keys);
}

static void store_remove(void) {
  store_close();
  CHECK(remove_tree(dir) == 0 && mkdir(dir, 0700) == 0);
}

// A compaction right after another one has nothing to do: not even where the first one did not know how large the
// partitions would become that it made.
static void test_compact_again(void **state) {
  (void)state;
  static const struct shape shapes[] = {{64, 20000, 200, 50, 30},  {64, 12000, 800, 30, 60},  {16, 9000, 300, 90, 90},
                                        {64, 3000, 4000, 60, 40},  {256, 30000, 100, 80, 80}, {32, 2000, 6000, 50, 50},
                                        {128, 20000, 120, 10, 97}, {64, 20000, 200, 0, 0}};
  check_seed = check_seed_or(1);
  for (uint32_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
    const struct shape *const s = &shapes[i];
    store_open_plain(1);
    const uint64_t keys = load_shape(s, check_seed + i);
    OK(xdb_compact(x));
    const uint64_t before = stat_of(x, "table_bytes_written");
    assert_int_equal(count_keys(), keys);
    OK(xdb_wait_idle(x));
    const uint64_t bytes = written_to_tables(), partitions = stat_of(x, "partitions");
    expect_one_version(keys);
    OK(xdb_compact(x));
    OK(xdb_wait_idle(x));
    const uint64_t again = stat_of(x, "table_bytes_written") - before;
    printf("%u pages, values to %u: %u partitions, %u bytes written, %u again\n", s->pages, s->most,
           (unsigned)partitions, (unsigned)before, (unsigned)again);
    if (again || written_to_tables() != bytes) fail_msg("shape %u: %u bytes", i, (unsigned)again);
    assert_int_equal(count_keys(), keys);
    store_remove();
  }
}

// A compaction has compacted all, and then the disk has no room to bring neighbours together that have come to fit:
// that is no failure.
static void test_compact_fits_full(void **state) {
  (void)state;
  static const struct shape shapes[] = {{16, 9000, 300, 90, 90}, {64, 3000, 4000, 60, 40}, {32, 2000, 6000, 50, 50}};
  const int64_t most = INT64_MAX / 2;
  uint32_t met = 0;
  for (uint32_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
    int64_t took = 0;
    for (uint32_t full = 0; full < 2; full++) {
      store_open_plain(0);
      const uint64_t keys = load_shape(&shapes[i], 1 + i);
      atomic_store(&room, full ? took - (int64_t)(32 * KIB) : most);
      const enum remixdb_status s = xdb_compact(x);
      if (s != REMIXDB_OK) FAILS(full ? s : REMIXDB_OK, REMIXDB_NOSPACE);
      if (s == REMIXDB_OK) expect_one_version(keys);
      else assert_true(stat_of(x, "table_entries") != keys);  // the disk was full earlier
      met += full && s == REMIXDB_OK;
      if (!full) took = most - atomic_load(&room);
      atomic_store(&room, INT64_MAX);
      assert_int_equal(count_keys(), keys);
      store_remove();
    }
  }
  if (SLOW == 1) assert_true(met > 1);  // with fewer records there may be nothing to bring together
}

// Small neighbours, as a sequential load with small memtables leaves them, become one.
static void test_compact_joins(void **state) {
  (void)state;
  store_open_plain(1);
  x->compact.build.max_pages = 16;
  const uint64_t n = FULL / 16;
  for (uint64_t i = 0; i < n; i++) put(i, 1);
  OK(xdb_flush(x));
  const uint64_t parts = stat_of(x, "partitions"), tables = stat_of(x, "tables");
  assert_true(parts > 10);
  x->compact.build.max_pages = TABLE_PAGES;
  OK(xdb_compact(x));
  expect_compact(n);
  assert_true(stat_of(x, "partitions") == 1 && stat_of(x, "tables") <= tables / 10);
  assert_int_equal(count_keys(), n);
  store_close();
}

struct writer {
  pthread_t thread;
  _Atomic bool stop;
  uint64_t nr;
  enum remixdb_status status;
};

static void *write_on(void *arg) {
  struct writer *w = arg;
  struct xdb_ref *r;
  if ((w->status = xdb_ref(x, &r)) != REMIXDB_OK) return NULL;
  for (; w->status == REMIXDB_OK && (!atomic_load(&w->stop) || w->nr < 20000); w->nr++)
    w->status = put_as(r, spread(w->nr), 2);
  xdb_unref(r);
  return NULL;
}

// Writers get their rounds while the store is compacted, by two at once, and nothing of theirs is lost.
static void test_compact_while_writing(void **state) {
  (void)state;
  store_open_plain(2);
  x->compact.build.max_pages = 64;
  const uint64_t n = 30000;
  for (uint64_t i = 0; i < n; i++) put(spread(i), 1);
  struct writer w = {.nr = 0};
  atomic_init(&w.stop, false);
  OK(thread_start(&w.thread, write_on, &w, "write"));
  for (uint32_t i = 0; i < 3; i++) {
    OK(xdb_compact(x));
    OK(xdb_flush(x));
  }
  atomic_store(&w.stop, true);
  (void)pthread_join(w.thread, NULL);
  OK(w.status);
  OK(xdb_compact(x));
  expect_compact(w.nr > n ? w.nr : n);
  for (uint64_t i = 0; i < n; i += 13) expect_is(spread(i), i < w.nr ? 2 : 1);
  assert_int_equal(count_keys(), w.nr > n ? w.nr : n);
  store_close();
}

// A failing compaction tells why. With room again it succeeds, and the failure has lost nothing.
static void test_compact_fails(void **state) {
  (void)state;
  for (int workers = 0; workers < 2; workers++) {
    store_open_plain(workers);
    const uint64_t n = 20000;
    for (uint64_t i = 0; i < n; i++) put(spread(i), 1);
    OK(xdb_flush(x));
    for (uint64_t i = 0; i < n; i += 2) put(spread(i), 2);
    atomic_store(&room, (int64_t)(64 * KIB));
    FAILS(xdb_compact(x), REMIXDB_NOSPACE);
    assert_true(err_msg()[0] != 0);
    FAILS(xdb_flush(x), REMIXDB_NOSPACE);
    assert_int_equal(count_keys(), n);
    for (uint64_t i = 0; i < n; i += 13) expect_is(spread(i), i % 2 ? 1 : 2);
    atomic_store(&room, INT64_MAX);
    enum remixdb_status s;
    while ((s = xdb_compact(x)) == REMIXDB_NOSPACE)
      time_sleep_ns(100000000);  // it is tried again a second after it failed
    OK(s);
    expect_compact(n);
    for (uint64_t i = 0; i < n; i += 13) expect_is(spread(i), i % 2 ? 1 : 2);
    store_close();
    CHECK(remove_tree(dir) == 0 && mkdir(dir, 0700) == 0);
  }
  // not of a store that is only read
  store_open_plain(0);
  put(1, 1);
  OK(xdb_flush(x));
  store_close();
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.read_only = true;
  store_open(&o);
  FAILS(xdb_flush(x), REMIXDB_READONLY);
  FAILS(xdb_compact(x), REMIXDB_READONLY);
  expect_is(1, 1);
  store_close();
}

// ---- compression

// A record of about 200 bytes, as programs write them.
static uint32_t json_make(uint64_t n, char *buf) {
  static const char *const names[] = {"anna", "bernd", "clara", "david", "elena", "friedrich", "gisela", "hannes"};
  static const char *const states[] = {"active", "suspended", "pending", "closed"};
  uint64_t s = n;
  const uint64_t a = rng_next(&s), b = rng_next(&s);
  return (uint32_t)sprintf(buf,
                           "{\"id\":%llu,\"name\":\"%s\",\"email\":\"%s.%u@example.com\",\"state\":\"%s\",\"created\":"
                           "\"2026-%02u-%02uT%02u:%02u:%02uZ\",\"balance\":%u.%02u,"
                           "\"tags\":[\"customer\",\"region-%u\"],\"score\":%u}",
                           (unsigned long long)n, names[a % 8], names[a % 8], (unsigned)(b % 10000), states[a >> 8 & 3],
                           (unsigned)(a >> 16) % 12 + 1, (unsigned)(a >> 24) % 28 + 1, (unsigned)(a >> 32) % 24,
                           (unsigned)(a >> 40) % 60, (unsigned)(a >> 48) % 60, (unsigned)(b >> 16) % 100000,
                           (unsigned)(b >> 40) % 100, (unsigned)(b >> 48) % 16, (unsigned)(b >> 52) % 1000);
}

// Puts records [from, to), compressible or not, and returns the bytes of tables that they make.
static uint64_t put_records(uint64_t from, uint64_t to, bool json) {
  const uint64_t before = stat_of(x, "table_bytes_written");
  char val[512];
  for (uint64_t i = from; i < to; i++) {
    uint8_t key[KEY];
    uint32_t len = 200;
    if (json) len = json_make(i, val);
    else
      for (uint64_t at = 0, s = i; at < 200; at += 8) store64le(val + at, rng_next(&s));
    OK(xdb_put(ref, KV_REC(key_of(i, key), val, len, false)));
  }
  OK(xdb_flush(x));
  return stat_of(x, "table_bytes_written") - before;
}

static void expect_records(uint64_t from, uint64_t to, bool json) {
  char want[512], got[512];
  for (uint64_t i = from; i < to; i++) {
    uint8_t key[KEY];
    uint32_t len = 200, n;
    if (json) len = json_make(i, want);
    else
      for (uint64_t at = 0, s = i; at < 200; at += 8) store64le(want + at, rng_next(&s));
    OK(xdb_get(ref, key_of(i, key), got, sizeof(got), &n));
    assert_int_equal(n, len);
    assert_memory_equal(got, want, len);
  }
}

static void open_compressed(enum remixdb_compression how, int level) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.workers = 1;
  o.compression = how;
  o.compression_level = level;
  store_open(&o);
}

static uint32_t tables_of_kind(bool compressed) {
  const struct version *v = atomic_load(&x->super)->version;
  uint32_t nr = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++)
    for (uint32_t r = 0; v->parts[i]->remix && r < v->parts[i]->remix->nr_runs; r++)
      nr += (v->parts[i]->remix->runs[r]->offs != NULL) == compressed;
  return nr;
}

static void test_compression(void **state) {
  (void)state;
  const uint64_t n = 20000;
  open_compressed(REMIXDB_COMPRESSION_NONE, 0);
  const uint64_t plain = put_records(0, n, true);
  assert_int_equal(tables_of_kind(true), 0);
  store_close();
  // another setting for the same store: old tables stay, new ones are as it says, merges make what it says of both
  static const int levels[] = {0, 1, 19, -5};
  uint64_t next = n, smallest = UINT64_MAX;
  for (uint32_t i = 0; i < 4; i++) {
    open_compressed(REMIXDB_COMPRESSION_ZSTD, levels[i]);
    const uint64_t size = put_records(next, next + n, true);
    printf("level %d: %.2f times smaller\n", levels[i], (double)plain / (double)size);
    if (levels[i] >= 0) assert_true((double)plain >= 2.5 * (double)size);
    if (size < smallest) smallest = size;
    assert_true(tables_of_kind(true) > 0 && tables_of_kind(false) > 0);
    expect_records(next, next + 100, true);
    next += n;
    store_close();
  }
  // blocks that do not shrink are stored as they are: the table is larger by a head per block, no more
  open_compressed(REMIXDB_COMPRESSION_NONE, 0);
  const uint64_t noise_plain = put_records(next, next + n, false);
  store_close();
  open_compressed(REMIXDB_COMPRESSION_ZSTD, 0);
  const uint64_t noise = put_records(next + n, next + 2 * n, false);
  assert_true(noise <= noise_plain + noise_plain / 100);
  expect_records(0, next, true);
  expect_records(next, next + 2 * n, false);
  OK(xdb_compact(x));
  assert_int_equal(tables_of_kind(false), 0);
  expect_records(0, next, true);
  expect_records(next, next + 2 * n, false);
  store_close();
  open_compressed(REMIXDB_COMPRESSION_NONE, 0);
  assert_true(tables_of_kind(true) > 0);
  expect_records(0, next, true);
  put_records(0, n, true);
  OK(xdb_compact(x));
  assert_true(tables_of_kind(false) > 0 &&
              tables_of_kind(true) > 0);  // tables that needed no compaction are as they were
  expect_records(0, next, true);
  store_close();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_random_load, setup, teardown),
      cmocka_unit_test_setup_teardown(test_random_load_worker, setup, teardown),
      cmocka_unit_test_setup_teardown(test_sequential_load, setup, teardown),
      cmocka_unit_test_setup_teardown(test_sequential_threads, setup, teardown),
      cmocka_unit_test_setup_teardown(test_skewed_overwrites, setup, teardown),
      cmocka_unit_test_setup_teardown(test_flush, setup, teardown),
      cmocka_unit_test_setup_teardown(test_small_flushes, setup, teardown),
      cmocka_unit_test_setup_teardown(test_compact_space, setup, teardown),
      cmocka_unit_test_setup_teardown(test_compact_again, setup, teardown),
      cmocka_unit_test_setup_teardown(test_compact_fits_full, setup, teardown),
      cmocka_unit_test_setup_teardown(test_compact_joins, setup, teardown),
      cmocka_unit_test_setup_teardown(test_compact_while_writing, setup, teardown),
      cmocka_unit_test_setup_teardown(test_compact_fails, setup, teardown),
      cmocka_unit_test_setup_teardown(test_compression, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
