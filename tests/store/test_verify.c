// SPDX-License-Identifier: Apache-2.0
//
// Verifying a store, checkpoints of it, and its end, on the simulated disk.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/thread.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "admin/checkpoint.h"
#include "admin/destroy.h"
#include "admin/verify.h"
#include "xdb.h"
#include "store/flush.h"
#include "store/snapshot.h"
#include "admin/stats.h"
#include "store/syncer.h"
#include "tests/lib/both.h"
#include "tests/lib/simdisk.h"

#define DIR_NAME "/store"
#define COPY "/copy"
#define NR_KEYS 4000u

struct scene {
  struct simdisk *disk;
  struct xdb *x;
  struct xdb_ref *r;
  struct remixdb_opts opts;
  char said[16][512];  // the last lines of the logger
  uint32_t nr_said;
};

// A figure of the store's.
static uint64_t stat_of(struct xdb *x, const char *name) {
  char *json, quoted[64];
  OK(xdb_stats(x, &json));
  (void)snprintf(quoted, sizeof(quoted), "\"%s\":", name);
  const char *const at = strstr(json, quoted);
  assert_non_null(at);
  const uint64_t value = strtoull(at + strlen(quoted), NULL, 10);
  mem_free(json);
  return value;
}

static void logger(void *priv, const char *line) {
  struct scene *s = priv;
  (void)snprintf(s->said[s->nr_said++ % 16], sizeof(s->said[0]), "%s", line);
}

static void scene_open(struct scene *s, const char *dir) {
  OK(xdb_open(dir, &s->opts, simdisk_env(s->disk), &s->x));
  OK(xdb_ref(s->x, &s->r));
}

static void scene_close(struct scene *s) {
  xdb_unref(s->r);
  const enum remixdb_status closed = xdb_close(s->x);
  (void)closed;  // the store is one that a test has damaged
  s->x = NULL;
}

static uint32_t key_of(uint32_t i, char *buf) {
  return (uint32_t)snprintf(buf, 64, "user/%03u/%08x", i % 97, i * 2654435761u);
}
static uint32_t value_of(uint32_t i, uint32_t round, char *buf) {
  return (uint32_t)snprintf(buf, 256, "value %u of round %u %0*d", i, round, (int)(i % 150) + 1, 7);
}

// State of a key after so many rounds: the round that wrote it last, 0 when it is deleted.
static uint32_t round_of(uint32_t i, uint32_t rounds) {
  for (uint32_t r = rounds; r > 0; r--) {
    if ((i + r) % 11 == 0 && r > 1) return 0;
    if (r == 1 || i % r == 0) return r;
  }
  return 0;
}

// Some of a round's keys, puts and deletes, in two halves: 1, 2; 0 is the rest.
static uint32_t some_of(uint32_t i, uint32_t round) {
  return i % 20 == 0 || ((i + round) % 11 == 0 && i % 5 == 0) ? 1 + i / 20 % 2 : 0;
}

// part: of some_of; 3: all.
static void write_some(struct scene *s, uint32_t round, uint32_t part) {
  char k[64], v[256];
  for (uint32_t i = 0; i < NR_KEYS; i++) {
    const uint32_t klen = key_of(i, k);
    if (part < 3 && some_of(i, round) != part) continue;
    if ((i + round) % 11 == 0 && round > 1) OK(xdb_put(s->r, KV_REC(kref(k, klen), NULL, 0, true)));
    else if (round == 1 || i % round == 0) OK(xdb_put(s->r, KV_REC(kref(k, klen), v, value_of(i, round, v), false)));
  }
}

static void write_round(struct scene *s, uint32_t round) { write_some(s, round, 3); }

static void check_content(struct xdb_ref *r, uint32_t rounds) {
  char k[64], v[256], got[256];
  for (uint32_t i = 0; i < NR_KEYS; i++) {
    const uint32_t klen = key_of(i, k), round = round_of(i, rounds);
    uint32_t len;
    const enum remixdb_status s = xdb_get(r, kref(k, klen), got, sizeof(got), &len);
    assert_int_equal(s, round ? REMIXDB_OK : REMIXDB_NOTFOUND);
    if (round) {
      assert_int_equal(len, value_of(i, round, v));
      assert_memory_equal(got, v, len);
    }
  }
}

// Three rounds in tables (old versions and tombstones among them), a fourth in the memtable and the log; of which some
// is in a young view of two tables.
static void scene_init(struct scene *s, bool ckeys, enum remixdb_compression compression) {
  memset(s, 0, sizeof(*s));
  s->disk = simdisk_create();
  remixdb_opts_init(&s->opts, sizeof(s->opts));
  s->opts.workers = 0;
  s->opts.cache_mb = 1;
  s->opts.memtable_mb = 2;
  s->opts.ckeys = ckeys;
  s->opts.compression = compression;
  s->opts.logger = logger;
  s->opts.logger_priv = s;
  scene_open(s, DIR_NAME);
  for (uint32_t round = 1; round <= 3; round++) {
    write_round(s, round);
    OK(xdb_flush(s->x));
  }
  if (with_young) {
    s->x->compact.young_from = 8;
    s->x->compact.memtable_size = 0;  // nothing is handed back
    for (uint32_t half = 1; half <= 2; half++) {
      write_some(s, 4, half);
      OK(xdb_flush(s->x));
    }
    assert_int_equal(stat_of(s->x, "young_views"), 1);
    assert_int_equal(stat_of(s->x, "young"), 2);
  }
  write_some(s, 4, with_young ? 0 : 3);
  OK(xdb_sync(s->r));
}

static void scene_fini(struct scene *s) {
  if (s->x) scene_close(s);
  simdisk_destroy(s->disk);
}

static void test_whole(void **state) {
  (void)state;
  for (uint32_t way = 0; way < 4; way++) {
    struct scene s;
    struct verify_report rep;
    scene_init(&s, way & 1, way & 2 ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE);
    OK(verify_store(s.r, &rep));
    assert_true(rep.tables >= 1 && rep.remixes >= 1 && rep.records >= NR_KEYS && rep.damaged == 0);
    assert_int_equal(rep.tables, stat_of(s.x, "tables"));
    assert_int_equal(rep.records, stat_of(s.x, "table_entries"));
    assert_int_equal(rep.remixes, stat_of(s.x, "partitions") + (with_young ? 1 : 0));
    check_content(s.r, 4);
    scene_fini(&s);
  }
}

struct name_list {
  char names[64][40];
  uint32_t nr;
};

static bool name_add(void *arg, const char *name) {
  struct name_list *l = arg;
  assert_true(l->nr < 64);
  (void)snprintf(l->names[l->nr++], sizeof(l->names[0]), "%s", name);
  return true;
}

// Every damaged byte of a table or REMIX is found, and so is one of CURRENT and of the durable part of the log; the
// message names the file.
static void test_damage_found(void **state) {
  (void)state;
  for (uint32_t way = 0; way < 2; way++) {
    struct scene s;
    struct name_list l = {.nr = 0};
    uint32_t flips = 0;
    scene_init(&s, true, way ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE);
    OK(paths_list(simdisk_env(s.disk), DIR_NAME, name_add, &l));
    uint64_t rng = 12345 + way;
    for (uint32_t i = 0; i < l.nr; i++) {
      char path[128];
      (void)snprintf(path, sizeof(path), DIR_NAME "/%s", l.names[i]);
      const enum files_kind kind = files_kind_of(l.names[i], NULL);
      if (kind == FILES_IS_LOCK || kind == FILES_IS_RESERVE) continue;
      int64_t size = simdisk_size(s.disk, path);
      if (kind == FILES_IS_LOG) {
        struct wal_stats ws;
        wal_stats(s.x->wal, &ws);
        uint8_t gen[8];
        assert_true(simdisk_peek(s.disk, path, 24, gen, 8));
        if (load64le(gen) != wal_gen(s.x->wal)) continue;  // a spare
        size = (int64_t)wal_segment_bytes(s.x->wal);
      }
      for (uint32_t n = 0; n < 12; n++) {
        const uint64_t off = n == 0 ? 0 : n == 1 ? (uint64_t)size - 1 : rng_next(&rng) % (uint64_t)size;
        const uint8_t mask = (uint8_t)(1u << rng_next(&rng) % 8);
        struct verify_report rep;
        assert_true(simdisk_flip(s.disk, path, off, mask));
        const enum remixdb_status found = verify_store(s.r, &rep);
        if (found == REMIXDB_OK || rep.damaged == 0 || !strstr(err_msg(), l.names[i]))
          fail_msg("%s: bit %#x of byte %llu of %lld flipped: %s, %s", l.names[i], mask, (unsigned long long)off,
                   (long long)size, remixdb_strerror(found), err_msg());
        assert_true(simdisk_flip(s.disk, path, off, mask));
        flips++;
      }
    }
    assert_true(flips >= 4 * 12);
    OK(verify_store(s.r, NULL));
    scene_fini(&s);
  }
}

// The names of the store's tables: there are several; l keeps them.
static uint32_t tables_list(struct scene *s, struct name_list *l, const char **tables) {
  uint32_t nr = 0;
  OK(paths_list(simdisk_env(s->disk), DIR_NAME, name_add, l));
  for (uint32_t i = 0; i < l->nr; i++)
    if (files_kind_of(l->names[i], NULL) == FILES_IS_TABLE) tables[nr++] = l->names[i];
  assert_true(nr >= 2);
  return nr;
}

// All damaged files are named, not the first alone.
static void test_all_named(void **state) {
  (void)state;
  struct scene s;
  struct name_list l = {.nr = 0};
  const char *tables[64];
  struct verify_report rep;
  scene_init(&s, true, REMIXDB_COMPRESSION_NONE);
  const uint32_t nr = tables_list(&s, &l, tables);
  for (uint32_t i = 0; i < nr; i++) {
    char path[128];
    (void)snprintf(path, sizeof(path), DIR_NAME "/%s", tables[i]);
    assert_true(simdisk_flip(s.disk, path, 100, 1));
  }
  s.nr_said = 0;
  FAILS(verify_store(s.r, &rep), REMIXDB_CORRUPT);
  assert_int_equal(rep.damaged, nr);
  for (uint32_t i = 0; i < nr; i++) {
    bool named = false;
    for (uint32_t n = 0; n < s.nr_said && n < 16; n++) named = named || strstr(s.said[n], tables[i]);
    assert_true(named);
  }
  scene_fini(&s);
}

// A file that cannot be opened for want of descriptors is not reported as damaged, and the store is not reported as
// whole; damage goes before it.
static void test_not_read(void **state) {
  (void)state;
  struct scene s;
  struct name_list l = {.nr = 0};
  const char *tables[64];
  struct verify_report rep;
  scene_init(&s, true, REMIXDB_COMPRESSION_NONE);
  const uint32_t nr = tables_list(&s, &l, tables);
  simdisk_fault(s.disk, SIMDISK_OPEN, 0, UINT64_MAX, EMFILE);
  FAILS(verify_store(s.r, &rep), REMIXDB_NOMEM);
  assert_true(rep.damaged == 0 && rep.unread >= nr + 1);
  for (uint32_t i = 0; i < nr; i++) {
    char path[128];
    const char *const other = tables[(i + 1) % nr];
    (void)snprintf(path, sizeof(path), DIR_NAME "/%s", other);
    simdisk_fault_name(s.disk, tables[i]);
    FAILS(verify_store(s.r, &rep), REMIXDB_NOMEM);
    assert_true(rep.damaged == 0 && rep.unread == 1 && strstr(err_msg(), tables[i]));
    assert_true(simdisk_flip(s.disk, path, 100, 1));
    FAILS(verify_store(s.r, &rep), REMIXDB_CORRUPT);
    assert_true(rep.damaged == 1 && rep.unread == 1 && strstr(err_msg(), other));
    assert_true(simdisk_flip(s.disk, path, 100, 1));
  }
  simdisk_fault(s.disk, SIMDISK_OPEN, 0, 0, 0);
  OK(verify_store(s.r, &rep));
  assert_true(rep.damaged == 0 && rep.unread == 0);
  scene_fini(&s);
}

static void test_checkpoint(void **state) {
  (void)state;
  struct scene s;
  struct xdb *x;
  struct xdb_ref *r, *sr;
  struct xdb_snapshot *snap;
  scene_init(&s, true, REMIXDB_COMPRESSION_NONE);
  OK(xdb_snapshot(s.r, &snap));
  OK(xdb_snapshot_ref(snap, &sr));
  OK(checkpoint_make(s.r, COPY));
  FAILS(checkpoint_make(s.r, COPY), REMIXDB_EXISTS);
  FAILS(checkpoint_make(s.r, DIR_NAME), REMIXDB_LOCKED);
  // the original goes on, and even goes: the copy is a store of its own
  write_round(&s, 5);
  OK(xdb_flush(s.x));
  OK(checkpoint_make(sr, "/old"));
  xdb_unref(sr);
  xdb_snapshot_release(snap);
  check_content(s.r, 5);
  scene_close(&s);
  OK(destroy_store(simdisk_env(s.disk), DIR_NAME));
  const char *const dirs[] = {COPY, "/old"};
  for (uint32_t i = 0; i < 2; i++) {
    OK(xdb_open(dirs[i], &s.opts, simdisk_env(s.disk), &x));
    OK(xdb_ref(x, &r));
    check_content(r, 4);
    OK(verify_store(r, NULL));
    assert_int_equal(stat_of(x, "young_views"), with_young);
    OK(xdb_put(r, KV_REC(kref("more", 4), "x", 1, false)));
    OK(xdb_flush(x));
    xdb_unref(r);
    OK(xdb_close(x));
  }
  scene_fini(&s);
}

#define MANY_KEYS 60000u

static uint32_t many_key(uint32_t i, char *buf) { return (uint32_t)snprintf(buf, 64, "%08x", i * 2654435761u); }

struct putting {
  struct xdb *x;
  _Atomic uint32_t done;
  _Atomic bool stop, ended;
  enum remixdb_status status;
};

// The disk, where each write of the thread that makes a checkpoint takes as long as 20,000 puts.
static struct putting *putting;
static pthread_t copying;
static _Atomic uint32_t waited;

static ssize_t slow_pwrite(struct env *e, int fd, const void *buf, size_t len, uint64_t off) {
  if (putting && pthread_equal(pthread_self(), copying)) {
    const uint32_t until = atomic_load(&putting->done) + 20000;
    while (atomic_load(&putting->done) < until && !atomic_load(&putting->ended)) time_sleep_ns(100000);
    atomic_fetch_add(&waited, 1);
  }
  struct simdisk *const disk = e->priv;
  return simdisk_env(disk)->ops->pwrite(simdisk_env(disk), fd, buf, len, off);
}

static void *put_many(void *arg) {
  struct putting *p = arg;
  struct xdb_ref *r;
  char k[64];
  p->status = xdb_ref(p->x, &r);
  if (p->status != REMIXDB_OK) return NULL;
  for (uint32_t i = MANY_KEYS; i < 8 * MANY_KEYS && p->status == REMIXDB_OK && !atomic_load(&p->stop); i++) {
    p->status = xdb_put(r, KV_REC(kref(k, many_key(i, k)), "new", 3, false));
    atomic_fetch_add(&p->done, 1);
  }
  atomic_store(&p->ended, true);
  xdb_unref(r);
  return NULL;
}

// A checkpoint of a snapshot, while new keys come in between all keys that the snapshot has in the memtable.
static void test_checkpoint_written(void **state) {
  (void)state;
  struct scene s = {.disk = simdisk_create()};
  struct xdb *x;
  struct xdb_ref *r, *sr;
  struct xdb_snapshot *snap;
  char k[64];
  struct env slow = *simdisk_env(s.disk);
  struct env_ops ops = *slow.ops;
  ops.pwrite = slow_pwrite;
  slow.ops = &ops;
  remixdb_opts_init(&s.opts, sizeof(s.opts));
  s.opts.workers = 0;
  s.opts.memtable_mb = 128;
  OK(xdb_open(DIR_NAME, &s.opts, &slow, &s.x));
  OK(xdb_ref(s.x, &s.r));
  for (uint32_t i = 0; i < MANY_KEYS; i++) OK(xdb_put(s.r, KV_REC(kref(k, many_key(i, k)), &i, sizeof(i), false)));
  OK(xdb_snapshot(s.r, &snap));
  OK(xdb_snapshot_ref(snap, &sr));
  struct putting p = {.x = s.x};
  pthread_t t;
  copying = pthread_self();
  atomic_store(&waited, 0);
  putting = &p;
  OK(thread_start(&t, put_many, &p, "put"));
  OK(checkpoint_make(sr, COPY));
  atomic_store(&p.stop, true);
  assert_int_equal(pthread_join(t, NULL), 0);
  putting = NULL;
  assert_true(atomic_load(&waited) > 0);
  OK(p.status);
  xdb_unref(sr);
  xdb_snapshot_release(snap);
  OK(xdb_open(COPY, &s.opts, simdisk_env(s.disk), &x));
  OK(xdb_ref(x, &r));
  for (uint32_t i = 0; i < 2 * MANY_KEYS; i++) {
    uint32_t got = 0, len;
    FAILS(xdb_get(r, kref(k, many_key(i, k)), (char *)&got, sizeof(got), &len),
          i < MANY_KEYS ? REMIXDB_OK : REMIXDB_NOTFOUND);
    if (i < MANY_KEYS) assert_int_equal(got, i);
  }
  xdb_unref(r);
  OK(xdb_close(x));
  scene_fini(&s);
}

// Power goes at every change while a checkpoint is made: the original stays as it was. At the place of the copy is a
// whole store, or none, and the checkpoint can be made again.
static void test_checkpoint_cuts(void **state) {
  (void)state;
  struct scene s;
  scene_init(&s, true, REMIXDB_COMPRESSION_NONE);
  scene_close(&s);
  uint32_t whole = 0, none = 0;
  for (uint64_t cut = 0;; cut++) {
    struct simdisk *disk = simdisk_crash(s.disk, cut);
    struct simdisk *const before = s.disk;
    s.disk = disk;
    scene_open(&s, DIR_NAME);
    simdisk_power_off(disk, cut);
    const enum remixdb_status made = checkpoint_make(s.r, COPY);
    const bool off = simdisk_is_off(disk);
    scene_close(&s);
    struct simdisk *after = simdisk_crash(disk, cut * 7 + 1);
    simdisk_destroy(disk);
    s.disk = after;
    scene_open(&s, DIR_NAME);
    check_content(s.r, 4);
    struct xdb *x;
    struct xdb_ref *r;
    struct remixdb_opts o = s.opts;
    o.create = false;
    enum remixdb_status opened = xdb_open(COPY, &o, simdisk_env(after), &x);
    if (opened == REMIXDB_OK) {
      OK(xdb_ref(x, &r));
      check_content(r, 4);
      xdb_unref(r);
      OK(xdb_close(x));
      whole++;
    } else {
      assert_true(opened == REMIXDB_NOTFOUND || opened == REMIXDB_CORRUPT);
      assert_int_not_equal(made, REMIXDB_OK);
      const enum remixdb_status gone = cut % 2 ? REMIXDB_OK : destroy_store(simdisk_env(after), COPY);
      assert_true(gone == REMIXDB_OK || gone == REMIXDB_NOTFOUND);
      OK(checkpoint_make(s.r, COPY));
      none++;
    }
    scene_close(&s);
    simdisk_destroy(after);
    s.disk = before;
    if (!off) break;
  }
  assert_true(whole >= 1 && none >= 5);
  scene_fini(&s);
}

static void file_put(struct env *env, const char *dir, const char *name, const void *bytes, size_t len) {
  char path[128];
  int fd;
  (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
  OK(env_open(ENV_PATHS(env), path, ENV_WRITE | ENV_CREATE | ENV_TRUNC, &fd));
  OK(env_write(env, fd, path, bytes, len, 0));
  OK(env_sync_all(env, fd, path));
  OK(env_close(env, fd, path));
}

// Another program's file has the name of the mark: no checkpoint is made there. A store can be made beside it, and the
// file stays.
static void foreign_mark(struct scene *s) {
  OK(env_mkdir(ENV_PATHS(simdisk_env(s->disk)), COPY));
  file_put(simdisk_env(s->disk), COPY, "CHECKPOINTING", "not a mark", 10);
  file_put(simdisk_env(s->disk), COPY, "000001.sst", "mine", 4);
  FAILS(checkpoint_make(s->r, COPY), REMIXDB_EXISTS);
  assert_int_equal(simdisk_size(s->disk, COPY "/000001.sst"), 4);
  OK(env_unlink(ENV_PATHS(simdisk_env(s->disk)), COPY "/000001.sst"));
  scene_close(s);
  file_put(simdisk_env(s->disk), COPY, "CREATING", "nor this", 8);
  scene_open(s, COPY);
  scene_close(s);
  assert_int_equal(simdisk_size(s->disk, COPY "/CHECKPOINTING"), 10);
  assert_int_equal(simdisk_size(s->disk, COPY "/CREATING"), 8);
  OK(env_unlink(ENV_PATHS(simdisk_env(s->disk)), COPY "/CHECKPOINTING"));
  OK(env_unlink(ENV_PATHS(simdisk_env(s->disk)), COPY "/CREATING"));
  OK(destroy_store(simdisk_env(s->disk), COPY));
}

// A checkpoint that is half made is no store: no kind of open takes it or changes it. Returns the number of tries.
static uint32_t half_made(struct env *env, struct remixdb_opts o) {
  struct xdb *x;
  uint32_t way = 0;
  for (; way < 3; way++) {
    struct name_list was = {.nr = 0}, is = {.nr = 0};
    o.create = way != 1;
    o.read_only = way == 2;
    OK(paths_list(env, COPY, name_add, &was));
    FAILS(xdb_open(COPY, &o, env, &x), REMIXDB_CORRUPT);
    assert_non_null(strstr(err_msg(), "checkpoint"));
    assert_non_null(strstr(err_msg(), COPY));
    OK(paths_list(env, COPY, name_add, &is));
    assert_int_equal(is.nr, was.nr);
  }
  return way;
}

// The process dies while it makes a checkpoint: no call takes the remains for a store until they are destroyed or made
// anew.
static void test_checkpoint_killed(void **state) {
  (void)state;
  struct scene s;
  struct xdb *x;
  struct xdb_ref *r;
  struct env_stat st;
  scene_init(&s, true, REMIXDB_COMPRESSION_NONE);
  foreign_mark(&s);
  uint32_t refused = 0;
  for (uint64_t cut = 0;; cut++) {
    struct simdisk *const before = s.disk, *const disk = simdisk_crash(before, 1);
    struct env *const env = simdisk_env(disk);
    s.disk = disk;
    scene_open(&s, DIR_NAME);
    simdisk_power_off(disk, cut);
    const enum remixdb_status made = checkpoint_make(s.r, COPY);
    simdisk_power_on(disk);
    scene_close(&s);
    scene_open(&s, DIR_NAME);
    const bool marked = env_stat(ENV_PATHS(env), COPY "/CHECKPOINTING", &st) == REMIXDB_OK;
    const bool whole = env_stat(ENV_PATHS(env), COPY "/CURRENT", &st) == REMIXDB_OK;
    if (marked && !whole) refused += half_made(env, s.opts);
    // without the mark there is no file yet, or no longer
    struct name_list l = {.nr = 0};
    if (!marked && !whole && env_stat(ENV_PATHS(env), COPY, &st) == REMIXDB_OK) {
      OK(paths_list(env, COPY, name_add, &l));
      assert_true(l.nr <= 1);
    }
    if (whole) FAILS(checkpoint_make(s.r, COPY), REMIXDB_EXISTS);
    else if (cut % 2 && marked) OK(destroy_store(env, COPY));
    if (cut % 2 && marked && !whole) FAILS(env_stat(ENV_PATHS(env), COPY, &st), REMIXDB_NOTFOUND);
    if (!whole) OK(checkpoint_make(s.r, COPY));
    OK(xdb_open(COPY, &s.opts, env, &x));
    FAILS(env_stat(ENV_PATHS(env), COPY "/CHECKPOINTING", &st), REMIXDB_NOTFOUND);
    OK(xdb_ref(x, &r));
    check_content(r, 4);
    xdb_unref(r);
    OK(xdb_close(x));
    scene_close(&s);
    simdisk_destroy(disk);
    s.disk = before;
    if (made == REMIXDB_OK) break;
  }
  assert_true(refused > 10);
  scene_fini(&s);
}

// Each call that can fail fails once: a status, nothing left at the checkpoint's place, and the store goes on.
static void test_checkpoint_faults(void **state) {
  (void)state;
  struct scene s;
  struct env_stat st;
  scene_init(&s, true, REMIXDB_COMPRESSION_NONE);
  static const enum simdisk_call calls[] = {SIMDISK_OPEN,  SIMDISK_WRITE,  SIMDISK_SYNC, SIMDISK_LINK,
                                            SIMDISK_MKDIR, SIMDISK_RENAME, SIMDISK_LIST, SIMDISK_READ};
  uint32_t failed = 0;
  for (uint32_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++) {
    for (uint64_t nth = 0; nth < 40; nth++) {
      simdisk_fault(s.disk, calls[c], nth, 1, EIO);
      const enum remixdb_status made = checkpoint_make(s.r, COPY);
      simdisk_fault(s.disk, calls[c], 0, 0, 0);
      if (made == REMIXDB_OK) {
        OK(destroy_store(simdisk_env(s.disk), COPY));
        if (calls[c] != SIMDISK_LINK) break;  // a link that fails becomes a copy
      } else {
        assert_true(err_msg()[0] != '\0');
        failed++;
        // a destroy may take the files that the failure itself kept from being removed
        if (env_stat(ENV_PATHS(simdisk_env(s.disk)), COPY, &st) == REMIXDB_OK) {
          const enum remixdb_status gone = destroy_store(simdisk_env(s.disk), COPY);
          assert_true(gone == REMIXDB_OK || gone == REMIXDB_NOTFOUND);
        }
      }
    }
  }
  assert_true(failed > 20);
  check_content(s.r, 4);
  scene_fini(&s);
}

static struct remixdb_opts
    *arriving;  // a store that another makes at the checkpoint's place as soon as it is let go of; NULL: none

static int arriving_unlock(struct env *e, int fd) {
  struct env *const env = simdisk_env(e->priv);
  const int rc = env->ops->unlock(env, fd);
  struct remixdb_opts *o = arriving;
  struct env_stat st;
  if (!o || env->ops->fstat(env, fd, &st) < 0 || !st.is_dir) return rc;  // the directory is let go of last
  arriving = NULL;
  struct xdb *x;
  struct xdb_ref *r;
  simdisk_fault(e->priv, SIMDISK_SYNC, 0, 0, 0);
  OK(xdb_open(COPY, o, env, &x));
  OK(xdb_ref(x, &r));
  OK(xdb_put(r, KV_REC(kref("theirs", 6), "x", 1, false)));
  xdb_unref(r);
  OK(xdb_close(x));
  return rc;
}

// A checkpoint that fails removes its own files and no more: not a directory that was there, nor a store that another
// has made there meanwhile.
static void test_checkpoint_gives_up(void **state) {
  (void)state;
  struct scene s;
  struct xdb *x;
  struct xdb_ref *r;
  uint32_t failed = 0;
  scene_init(&s, true, REMIXDB_COMPRESSION_NONE);
  struct env *const disk = simdisk_env(s.disk);
  for (uint32_t way = 0; way < 3;
       way++) {  // in an empty directory, in one with files of others, where another makes a store
    for (uint64_t nth = 0;; nth++) {
      struct env env = *disk;
      struct env_ops ops = *env.ops;
      struct name_list l = {.nr = 0};
      ops.unlock = arriving_unlock;
      env.ops = &ops;
      if (way < 2) OK(env_mkdir(ENV_PATHS(disk), COPY));
      if (way == 1) file_put(disk, COPY, "LOCK", "theirs", 6);
      if (way == 1) file_put(disk, COPY, "notes.txt", "n", 1);
      arriving = way == 2 ? &s.opts : NULL;
      s.x->env = &env;
      simdisk_fault(s.disk, SIMDISK_SYNC, nth, 1, EIO);
      const enum remixdb_status made = checkpoint_make(s.r, COPY);
      simdisk_fault(s.disk, SIMDISK_SYNC, 0, 0, 0);
      s.x->env = disk;
      arriving = NULL;
      failed += made != REMIXDB_OK;
      if (made != REMIXDB_OK && way < 2) {
        OK(paths_list(disk, COPY, name_add, &l));
        assert_int_equal(l.nr, way * 2);
        if (way == 1) assert_int_equal(simdisk_size(s.disk, COPY "/LOCK"), 6);
      } else if (made != REMIXDB_OK) {
        struct remixdb_opts o = s.opts;
        o.create = false;
        OK(xdb_open(COPY, &o, disk, &x));
        OK(xdb_ref(x, &r));
        OK(xdb_get(r, kref("theirs", 6), NULL, 0, NULL));
        xdb_unref(r);
        OK(xdb_close(x));
      }
      if (way < 2) OK(env_unlink(ENV_PATHS(disk), COPY "/notes.txt"));
      if (made == REMIXDB_OK || way == 2) OK(destroy_store(disk, COPY));
      else OK(env_unlink(ENV_PATHS(disk), COPY "/LOCK"));
      if (made == REMIXDB_OK) break;
    }
  }
  assert_true(failed > 10);
  scene_fini(&s);
}

static void test_destroy(void **state) {
  (void)state;
  struct scene s;
  struct env_stat st;
  int fd;
  scene_init(&s, true, REMIXDB_COMPRESSION_NONE);
  struct env *env = simdisk_env(s.disk);
  FAILS(destroy_store(env, DIR_NAME), REMIXDB_LOCKED);
  FAILS(destroy_store(env, "/nowhere"), REMIXDB_NOTFOUND);
  scene_close(&s);
  // somebody else's file is left alone, and with it the directory
  OK(env_open(ENV_PATHS(env), DIR_NAME "/notes.txt", ENV_WRITE | ENV_CREATE, &fd));
  OK(env_close(env, fd, "notes"));
  OK(destroy_store(env, DIR_NAME));
  struct name_list l = {.nr = 0};
  OK(paths_list(env, DIR_NAME, name_add, &l));
  assert_int_equal(l.nr, 1);
  assert_string_equal(l.names[0], "notes.txt");
  FAILS(destroy_store(env, DIR_NAME), REMIXDB_NOTFOUND);
  OK(env_unlink(ENV_PATHS(env), DIR_NAME "/notes.txt"));
  for (uint32_t way = 0; way < 2; way++) {  // a directory that others use, as a mount point, stays
    scene_open(&s, DIR_NAME);
    scene_close(&s);
    if (way == 0) simdisk_fault(s.disk, SIMDISK_RMDIR, 0, 1, EBUSY);
    OK(destroy_store(env, DIR_NAME));
    assert_int_equal(env_stat(ENV_PATHS(env), DIR_NAME, &st), way == 0 ? REMIXDB_OK : REMIXDB_NOTFOUND);
  }
  scene_fini(&s);
}

// Whether a parent may not be opened, or only now, is not the same.
static void test_parent(void **state) {
  (void)state;
  struct simdisk *disk = simdisk_create();
  OK(env_mkdir(ENV_PATHS(simdisk_env(disk)), DIR_NAME));
  for (uint32_t made = 0; made < 2; made++) {
    simdisk_fault(disk, SIMDISK_OPEN, 0, 1, EMFILE);
    FAILS(files_sync_parent(simdisk_env(disk), DIR_NAME, made), REMIXDB_NOMEM);
    simdisk_fault(disk, SIMDISK_OPEN, 0, 1, EACCES);
    assert_int_equal(files_sync_parent(simdisk_env(disk), DIR_NAME, made), made ? REMIXDB_IO : REMIXDB_OK);
    OK(files_sync_parent(simdisk_env(disk), DIR_NAME, made));
  }
  simdisk_destroy(disk);
}

// Other stores have a CURRENT, a LOCK and tables, too: where nothing is ours nothing is touched.
static void test_destroy_others(void **state) {
  (void)state;
  static const struct {
    const char *name, *text;
  } dirs[][6] = {
      {{"CURRENT", "MANIFEST-000005\n"},
       {"LOCK", ""},
       {"000009.sst", "a table of another store"},
       {"MANIFEST-000005", "m"},
       {"IDENTITY", "i"}},
      {{"LOCK", ""}, {"notes.txt", "n"}},
      {{"LOCK", "1234\n"}},
      {{"000009.sst", "mine"}},
      {{"000009.sst", "a table of another store"}, {"000010.remix", "RDBREMI"}, {"wal-3", "#REMXWAX"}},
      {{"CURRENT", ""}, {"CREATING", "what?"}, {"wal-1", ""}, {"notes.txt", "n"}},
  };
  for (uint32_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
    struct simdisk *disk = simdisk_create();
    struct env *env = simdisk_env(disk);
    struct name_list l = {.nr = 0};
    uint32_t nr = 0;
    OK(env_mkdir(ENV_PATHS(env), DIR_NAME));
    for (; nr < 6 && dirs[i][nr].name; nr++)
      file_put(env, DIR_NAME, dirs[i][nr].name, dirs[i][nr].text, strlen(dirs[i][nr].text));
    const uint64_t changes = simdisk_changes(disk);
    FAILS(destroy_store(env, DIR_NAME), REMIXDB_NOTFOUND);
    assert_int_equal(simdisk_changes(disk), changes);
    OK(paths_list(env, DIR_NAME, name_add, &l));
    assert_int_equal(l.nr, nr);
    simdisk_destroy(disk);
  }
  // a file that cannot be read may be ours: the call says so and touches nothing
  struct simdisk *disk = simdisk_create();
  OK(env_mkdir(ENV_PATHS(simdisk_env(disk)), DIR_NAME));
  file_put(simdisk_env(disk), DIR_NAME, "000009.sst", "a table of another store", 24);
  simdisk_fault(disk, SIMDISK_READ, 0, 1, EIO);
  FAILS(destroy_store(simdisk_env(disk), DIR_NAME), REMIXDB_IO);
  assert_int_equal(simdisk_size(disk, DIR_NAME "/000009.sst"), 24);
  simdisk_destroy(disk);
}

// A store with any damage can be destroyed, as long as one file shows that it was a store.
static void test_destroy_damaged(void **state) {
  (void)state;
  struct scene s;
  struct env_stat st;
  struct name_list l = {.nr = 0};
  char path[128];
  scene_init(&s, true, REMIXDB_COMPRESSION_NONE);
  scene_close(&s);
  OK(paths_sync_dir(simdisk_env(s.disk), DIR_NAME));  // removed files stay away
  OK(paths_list(simdisk_env(s.disk), DIR_NAME, name_add, &l));
  for (uint32_t way = 0; way < 3 + l.nr; way++) {
    struct simdisk *disk = simdisk_crash(s.disk, way);
    struct env *env = simdisk_env(disk);
    if (way == 0) file_put(env, DIR_NAME, "CURRENT", "", 0);
    if (way == 1) file_put(env, DIR_NAME, "CURRENT", "RMXD", 4);
    if (way == 2) assert_true(simdisk_flip(disk, DIR_NAME "/CURRENT", 3, 1));
    for (uint32_t i = 0; way >= 3 && i < l.nr; i++) {  // one file is whole
      (void)snprintf(path, sizeof(path), DIR_NAME "/%s", l.names[i]);
      const int64_t size = simdisk_size(disk, path);
      if (i == way - 3 || size < 8) continue;
      assert_true(simdisk_flip(disk, path, 0, 1) && simdisk_flip(disk, path, (uint64_t)size - 1, 1));
    }
    const bool lock = way >= 3 &&
                      (strcmp(l.names[way - 3], "LOCK") == 0 ||
                       strcmp(l.names[way - 3], FILES_RESERVE) == 0);  // and nothing else that shows a store is
    assert_int_equal(destroy_store(env, DIR_NAME), lock ? REMIXDB_NOTFOUND : REMIXDB_OK);
    assert_int_equal(env_stat(ENV_PATHS(env), DIR_NAME, &st), lock ? REMIXDB_OK : REMIXDB_NOTFOUND);
    simdisk_destroy(disk);
  }
  // leftovers of an interrupted destroy, creation, checkpoint and repair
  static const char *const left[] = {"LOCK", "CREATING", "CHECKPOINTING"};
  for (uint32_t i = 0; i < 4; i++) {
    struct simdisk *disk = simdisk_create();
    OK(env_mkdir(ENV_PATHS(simdisk_env(disk)), DIR_NAME));
    if (i < 3) file_put(simdisk_env(disk), DIR_NAME, left[i], "", 0);
    else OK(env_mkdir(ENV_PATHS(simdisk_env(disk)), DIR_NAME "/repair.done"));
    OK(destroy_store(simdisk_env(disk), DIR_NAME));
    FAILS(env_stat(ENV_PATHS(simdisk_env(disk)), DIR_NAME, &st), REMIXDB_NOTFOUND);
    simdisk_destroy(disk);
  }
  // empty files, as a power cut may leave them, are destroyed only beside a LOCK and without files of other programs
  for (uint32_t way = 0; way < 5; way++) {
    static const uint8_t zero[600], text[600] = "text";
    struct simdisk *disk = simdisk_create();
    OK(env_mkdir(ENV_PATHS(simdisk_env(disk)), DIR_NAME));
    if (way != 3) file_put(simdisk_env(disk), DIR_NAME, "LOCK", "", 0);
    file_put(simdisk_env(disk), DIR_NAME, "CURRENT", "", 0);
    file_put(simdisk_env(disk), DIR_NAME, "wal-1", way == 1 ? text : zero, sizeof(zero));
    if (way == 2) file_put(simdisk_env(disk), DIR_NAME, "notes.txt", "n", 1);
    if (way == 4) OK(env_mkdir(ENV_PATHS(simdisk_env(disk)), DIR_NAME "/000007.sst"));
    assert_int_equal(destroy_store(simdisk_env(disk), DIR_NAME), way == 0 ? REMIXDB_OK : REMIXDB_NOTFOUND);
    assert_int_equal(simdisk_size(disk, DIR_NAME "/wal-1"), way == 0 ? -1 : 600);
    simdisk_destroy(disk);
  }
  scene_fini(&s);
}

// A store is destroyed between another's opening of LOCK and its locking: the opening makes a new store, and is one
// process's alone.
static bool destroying;

static int destroying_lock(struct env *e, int fd, bool exclusive) {
  struct env *const env = simdisk_env(e->priv);
  if (destroying) {
    destroying = false;
    OK(destroy_store(env, DIR_NAME));
    OK(env_mkdir(ENV_PATHS(env), DIR_NAME));
  }
  return env->ops->lock(env, fd, exclusive);
}

static void test_destroy_and_open(void **state) {
  (void)state;
  struct scene s;
  struct xdb *x, *y;
  scene_init(&s, true, REMIXDB_COMPRESSION_NONE);
  scene_close(&s);
  struct env env = *simdisk_env(s.disk);
  struct env_ops ops = *env.ops;
  ops.lock = destroying_lock;
  env.ops = &ops;
  destroying = true;
  const enum remixdb_status first = xdb_open(DIR_NAME, &s.opts, &env, &x);
  const enum remixdb_status second = xdb_open(DIR_NAME, &s.opts, simdisk_env(s.disk), &y);
  OK(first);
  FAILS(second, REMIXDB_LOCKED);
  assert_int_equal(atomic_load(&x->published), 0);
  OK(xdb_close(x));
  scene_fini(&s);
}

// The other order: an opening comes at each change while a store is destroyed, or a checkpoint is made. It is told that
// another has it.
static struct remixdb_opts *busy_opts;  // NULL: nothing is to be opened
static const char *busy_dir;
static uint32_t busy_locked;

static void open_busy(struct env *e) {
  struct remixdb_opts *const opts = busy_opts;
  struct env_stat st;
  struct xdb *x;
  char path[128];
  (void)snprintf(path, sizeof(path), "%s/LOCK", busy_dir);
  if (!opts || env_stat(ENV_PATHS(simdisk_env(e->priv)), path, &st) != REMIXDB_OK) return;
  busy_opts = NULL;
  for (uint32_t way = 0; way < 3; way++) {
    struct remixdb_opts o = *opts;
    o.create = way != 1;
    o.read_only = way == 2;
    const enum remixdb_status s = xdb_open(busy_dir, &o, simdisk_env(e->priv), &x);
    // an opening that makes no store may report that there is none
    if (s != REMIXDB_LOCKED && (way == 0 || s != REMIXDB_NOTFOUND))
      fail_msg("way %u: %s: %s", way, remixdb_strerror(s), err_msg());
    busy_locked += s == REMIXDB_LOCKED;
  }
  busy_opts = opts;
}

static int busy_unlink(struct env *e, int at, const char *path) {
  open_busy(e);
  const int rc = simdisk_env(e->priv)->ops->unlink(simdisk_env(e->priv), at, path);
  open_busy(e);
  return rc;
}

static int busy_link(struct env *e, int from_at, const char *from, int to_at, const char *to) {
  open_busy(e);
  return simdisk_env(e->priv)->ops->link(simdisk_env(e->priv), from_at, from, to_at, to);
}

static void test_open_busy(void **state) {
  (void)state;
  struct scene s;
  scene_init(&s, true, REMIXDB_COMPRESSION_NONE);
  struct env env = *simdisk_env(s.disk);
  struct env_ops ops = *env.ops;
  ops.unlink = busy_unlink;
  ops.link = busy_link;
  env.ops = &ops;
  busy_opts = &s.opts;
  busy_dir = COPY;
  s.x->env = &env;
  OK(checkpoint_make(s.r, COPY));
  s.x->env = simdisk_env(s.disk);
  assert_true(busy_locked > 3);
  busy_locked = 0;
  busy_dir = DIR_NAME;
  scene_close(&s);
  OK(destroy_store(&env, DIR_NAME));
  assert_true(busy_locked > 3);
  busy_opts = NULL;
  scene_fini(&s);
}

// Power goes while a store is destroyed: it is whole, or it is none; never an empty one.
static void test_destroy_cuts(void **state) {
  (void)state;
  struct scene s;
  scene_init(&s, true, REMIXDB_COMPRESSION_NONE);
  scene_close(&s);
  // files without our heads or footers do not keep the rest from being destroyed again
  file_put(simdisk_env(s.disk), DIR_NAME, "000900.sst", "begun", 5);
  file_put(simdisk_env(s.disk), DIR_NAME, "000901.remix", "", 0);
  file_put(simdisk_env(s.disk), DIR_NAME, "CURRENT.tmp", "RM", 2);
  OK(paths_sync_dir(simdisk_env(s.disk), DIR_NAME));
  uint32_t whole = 0, none = 0;
  for (uint64_t cut = 0;; cut++) {
    struct simdisk *disk = simdisk_crash(s.disk, cut);
    simdisk_power_off(disk, cut);
    IGNORED(destroy_store(simdisk_env(disk), DIR_NAME), "the power may have gone");
    const bool off = simdisk_is_off(disk);
    struct simdisk *after = simdisk_crash(disk, cut * 3 + 1), *const before = s.disk;
    simdisk_destroy(disk);
    struct xdb *x;
    struct env_stat es;
    const enum remixdb_status opened = xdb_open(DIR_NAME, &s.opts, simdisk_env(after), &x);
    if (opened == REMIXDB_OK) {
      struct xdb_ref *r;
      OK(xdb_ref(x, &r));
      const bool empty = wal_segment_bytes(x->wal) > 0 && atomic_load(&x->published) == 0;
      if (!empty) check_content(r, 4);
      else none++;  // all of its files were gone: this one is new
      whole += !empty;
      xdb_unref(r);
      OK(xdb_close(x));
      OK(destroy_store(simdisk_env(after), DIR_NAME));
    } else {
      FAILS(opened, REMIXDB_CORRUPT);
      OK(destroy_store(simdisk_env(after), DIR_NAME));
      none++;
    }
    FAILS(env_stat(ENV_PATHS(simdisk_env(after)), DIR_NAME, &es), REMIXDB_NOTFOUND);
    simdisk_destroy(after);
    s.disk = before;
    if (!off) break;
  }
  assert_true(whole >= 1 && none >= 2);
  scene_fini(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BOTH(test_whole),
      BOTH(test_damage_found),
      BOTH(test_all_named),
      BOTH(test_not_read),
      BOTH(test_checkpoint),
      OLD(test_checkpoint_written),
      BOTH(test_checkpoint_cuts),
      OLD(test_checkpoint_killed),
      BOTH(test_checkpoint_faults),
      OLD(test_checkpoint_gives_up),
      OLD(test_destroy),
      OLD(test_destroy_cuts),
      OLD(test_destroy_and_open),
      OLD(test_open_busy),
      OLD(test_parent),
      OLD(test_destroy_others),
      OLD(test_destroy_damaged),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
