// SPDX-License-Identifier: Apache-2.0
//
// The directory of an open store: renamed, replaced by another, robbed of its LOCK. The store goes on where it is, and
// touches nothing else.
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#include "tests/lib/simdisk.h"
#include "tests/lib/store.h"
#include "admin/checkpoint.h"
#include "admin/destroy.h"
#include "admin/repair.h"
#include "admin/verify.h"
#include "store/syncer.h"

#define KEYS 400u
#define VALUE 900u

// ---- stores whose every value says whose it is

static struct env *e;  // the env of a test's stores
static struct remixdb_opts opts;

static const char *path_in(const char *name) {
  static char paths[8][600];
  static uint32_t next;
  char *const p = paths[next++ % 8];
  (void)snprintf(p, sizeof(paths[0]), "%s/%s", dir, name);
  return p;
}

struct held {
  struct xdb *x;
  struct xdb_ref *r;
  char whose;
  uint32_t written;  // keys, all of them synced
};

static struct held hold(const char *name, char whose) {
  struct held h = {.whose = whose};
  OK(xdb_open(path_in(name), &opts, e, &h.x));
  OK(xdb_ref(h.x, &h.r));
  return h;
}

static void let_go(struct held *h) {
  xdb_unref(h->r);
  OK(xdb_close(h->x));
  h->x = NULL;
}

// Synced, and a round of compaction now and then: files of every kind are made, recycled and removed.
static void write_some(struct held *h, uint32_t nr) {
  char key[16], value[VALUE];
  memset(value, h->whose, sizeof(value));
  for (uint32_t i = 0; i < nr; i++, h->written++) {
    const int len = snprintf(key, sizeof(key), "k%05u", h->written);
    OK(xdb_put(h->r, KV_REC(kref(key, (uint32_t)len), value, VALUE, false)));
    if (i % 50 == 49) OK(xdb_sync(h->r));
    if (i % 100 == 99) OK(xdb_flush(h->x));
  }
  OK(xdb_sync(h->r));
}

// All that was written is there, nothing else is, and it is whole.
static void check_store(const char *name, const struct held *was) {
  struct held h = hold(name, was->whose);
  char key[16], value[VALUE];
  for (uint32_t i = 0; i < was->written; i++) {
    const int len = snprintf(key, sizeof(key), "k%05u", i);
    uint32_t vlen;
    OK(xdb_get(h.r, kref(key, (uint32_t)len), value, VALUE, &vlen));
    CHECK(vlen == VALUE && value[0] == was->whose && value[VALUE - 1] == was->whose);
  }
  const int len = snprintf(key, sizeof(key), "k%05u", was->written);
  CHECK(xdb_get(h.r, kref(key, (uint32_t)len), NULL, 0, NULL) == REMIXDB_NOTFOUND);
  struct verify_report report;
  OK(verify_store(h.r, &report));
  let_go(&h);
}

static void on_files(void) { e = quick_env(); }

// A test on the system's files is one on the disk in memory, too.
static struct simdisk *disk;
static char system_dir[sizeof(dir)];
static void on_disk(void) {
  disk = simdisk_create();
  e = simdisk_env(disk);
  memcpy(system_dir, dir, sizeof(dir));
  (void)snprintf(dir, sizeof(dir), "/s");
  OK(env_mkdir(ENV_PATHS(e), dir));
  OK(paths_sync_dir(e, "/"));
}

static void off_disk(void) {
  CHECK(simdisk_open_files(disk) == 0);
  simdisk_destroy(disk);
  memcpy(dir, system_dir, sizeof(dir));
}

static void move_dir(const char *from, const char *to) {
  OK(env_rename(ENV_PATHS(e), path_in(from), ENV_PATHS(e), path_in(to)));
  OK(paths_sync_dir(e, dir));
}

// ---- renamed

// Another store is made under the name that an open one has lost.
static void run_renamed(void) {
  struct held a = hold("one", 'a');
  write_some(&a, KEYS);
  move_dir("one", "moved");
  write_some(&a, KEYS);
  struct held b = hold("one", 'b');
  for (uint32_t i = 0; i < 4; i++) {
    write_some(&b, KEYS);
    write_some(&a, KEYS);
  }
  let_go(&a);
  let_go(&b);
  check_store("moved", &a);
  check_store("one", &b);
}

// Another store, which is open itself, is moved in; the two change places.
static void run_swapped(void) {
  struct held a = hold("one", 'a'), b = hold("two", 'b');
  write_some(&a, KEYS);
  write_some(&b, KEYS / 2);
  move_dir("one", "aside");
  move_dir("two", "one");
  move_dir("aside", "two");
  for (uint32_t i = 0; i < 4; i++) {
    write_some(&b, KEYS);
    write_some(&a, KEYS / 2);
  }
  OK(checkpoint_make(a.r, path_in("copy")));
  struct held copy = a;
  let_go(&b);
  let_go(&a);
  check_store("two", &a);
  check_store("one", &b);
  check_store("copy", &copy);
  // the file with the name is removed
  OK(destroy_store(e, path_in("one")));
  check_store("two", &a);
  check_store("copy", &copy);
}

// The directory is the checkpoint's own until it is done.
static void run_checkpoint(void) {
  struct held a = hold("one", 'a');
  write_some(&a, KEYS);
  move_dir("one", "moved");
  OK(env_mkdir(ENV_PATHS(e), path_in("one")));
  OK(checkpoint_make(a.r, path_in("one")));
  write_some(&a, 0);
  struct held copy = a;
  write_some(&a, KEYS);
  let_go(&a);
  check_store("moved", &a);
  check_store("one", &copy);
}

static void run_everywhere(void (*run)(void)) {
  for (int ckeys = 0; ckeys < 2; ckeys++) {
    opts = small_opts(0);
    opts.ckeys = ckeys;
    on_files();
    run();
    setup_again();
    on_disk();
    run();
    off_disk();
  }
}

static void test_renamed(void **state) {
  (void)state;
  run_everywhere(run_renamed);
}
static void test_swapped(void **state) {
  (void)state;
  run_everywhere(run_swapped);
}
static void test_checkpoint(void **state) {
  (void)state;
  run_everywhere(run_checkpoint);
}

// Power goes at any moment while both stores write: the synced writes of each are in its own directory.
static void test_renamed_cuts(void **state) {
  (void)state;
  opts = small_opts(0);
  uint32_t cuts = 0;
  for (uint64_t cut = 0; cut < 400; cut += 7) {
    on_disk();
    struct held a = hold("one", 'a');
    write_some(&a, 60);
    move_dir("one", "moved");
    struct held b = hold("one", 'b');
    write_some(&b, 60);
    struct simdisk *const whole = disk;
    const struct held was_a = a, was_b = b;
    simdisk_power_off(disk, cut);
    char key[16], value[VALUE];
    memset(value, 'x', sizeof(value));  // not synced: it may be there or not
    for (uint32_t i = 0; i < 200 && !simdisk_is_off(disk); i++) {
      struct held *const h = i % 2 ? &a : &b;
      const int len = snprintf(key, sizeof(key), "z%05u", i);
      enum remixdb_status s = xdb_put(h->r, KV_REC(kref(key, (uint32_t)len), value, VALUE, false));
      if (s == REMIXDB_OK && i % 10 < 2) s = xdb_flush(h->x);
      (void)s;
    }
    cuts += simdisk_is_off(disk);
    disk = simdisk_crash(whole, cut);
    e = simdisk_env(disk);
    check_store("moved", &was_a);
    check_store("one", &was_b);
    struct simdisk *const after = disk;
    simdisk_power_on(whole);
    xdb_unref(a.r);
    xdb_unref(b.r);
    const enum remixdb_status a_closed = xdb_close(a.x), b_closed = xdb_close(b.x);
    (void)a_closed, (void)b_closed;
    simdisk_destroy(whole);
    disk = after;
    off_disk();
  }
  CHECK(cuts > 20);
}

// A repair goes on in the directory that it began in.
static struct env_ops moving_ops;
static struct env moving_env;
static uint32_t moving_left;

static int moving_mkdir(struct env *env, int at, const char *name) {
  (void)env;
  if (moving_left && --moving_left == 0) {
    move_dir("one", "moved");
    struct held b = hold("one", 'b');
    write_some(&b, 100);
    let_go(&b);
  }
  return e->ops->mkdir(e, at, name);
}

static void test_repair_renamed(void **state) {
  (void)state;
  for (uint32_t when = 1; when <= 2; when++) {  // repair.new is made; the directory of its report is
    opts = small_opts(0);
    on_disk();
    struct held a = hold("one", 'a');
    write_some(&a, KEYS);
    let_go(&a);
    moving_ops = *e->ops;
    moving_ops.mkdir = moving_mkdir;
    moving_env = *e;
    moving_env.ops = &moving_ops;
    moving_left = when;
    OK(repair_store(&moving_env, path_in("one"), NULL));
    CHECK(moving_left == 0);
    check_store("moved", &a);
    const struct held b = {.whose = 'b', .written = 100};
    check_store("one", &b);
    off_disk();
  }
}

// ---- without LOCK

static void expect_locked(void) {
  struct xdb *x;
  for (uint32_t way = 0; way < 2; way++) {
    struct remixdb_opts o = opts;
    o.read_only = way == 1;
    CHECK(xdb_open(path_in("one"), &o, e, &x) == REMIXDB_LOCKED);
  }
  CHECK(destroy_store(e, path_in("one")) == REMIXDB_LOCKED);
  CHECK(repair_store(e, path_in("one"), NULL) == REMIXDB_LOCKED);
}

// Removing LOCK lets nobody in.
static void run_lock_removed(void) {
  struct held a = hold("one", 'a');
  write_some(&a, KEYS);
  expect_locked();
  OK(env_unlink(ENV_PATHS(e), path_in("one/LOCK")));
  expect_locked();
  write_some(&a, KEYS);
  expect_locked();
  let_go(&a);
  check_store("one", &a);
  // a store that is opened for reading only does not either
  OK(env_unlink(ENV_PATHS(e), path_in("one/LOCK")));
  struct xdb *x, *y;
  struct remixdb_opts o = opts;
  o.read_only = true;
  OK(xdb_open(path_in("one"), &o, e, &x));
  OK(xdb_open(path_in("one"), &o, e, &y));
  OK(xdb_close(y));
  CHECK(xdb_open(path_in("one"), &opts, e, &y) == REMIXDB_LOCKED);
  OK(xdb_close(x));
}

static void test_lock_removed(void **state) {
  (void)state;
  run_everywhere(run_lock_removed);
}

// Where the file system locks no directories a store that has lost its LOCK installs nothing more, and what the next
// one makes of the directory stays.
static struct env_ops nolock_ops;
static struct env nolock_env, *locking_env;

static int nolock_lock(struct env *env, int fd, bool exclusive) {
  struct env_stat st;
  (void)env;
  if (locking_env->ops->fstat(locking_env, fd, &st) == 0 && st.is_dir) return -EBADF;
  return locking_env->ops->lock(locking_env, fd, exclusive);
}

static void test_no_directory_locks(void **state) {
  (void)state;
  opts = small_opts(0);
  on_disk();
  locking_env = e;
  nolock_ops = *e->ops;
  nolock_ops.lock = nolock_lock;
  nolock_env = *e;
  nolock_env.ops = &nolock_ops;
  struct held a = {.whose = 'a'}, b = {.whose = 'a'};
  OK(xdb_open(path_in("one"), &opts, &nolock_env, &a.x));
  OK(xdb_ref(a.x, &a.r));
  write_some(&a, KEYS);
  struct xdb *x;
  CHECK(xdb_open(path_in("one"), &opts, &nolock_env, &x) == REMIXDB_LOCKED);
  OK(env_unlink(ENV_PATHS(e), path_in("one/LOCK")));
  OK(xdb_open(path_in("one"), &opts, &nolock_env, &b.x));
  OK(xdb_ref(b.x, &b.r));
  b.written = a.written;
  OK(xdb_put(a.r, KV_REC(kref("late", 4), "x", 1, false)));
  CHECK(xdb_flush(a.x) == REMIXDB_IO);
  CHECK(strstr(err_msg(), "LOCK was removed"));
  CHECK(xdb_put(a.r, KV_REC(kref("later", 5), "x", 1, false)) == REMIXDB_IO);
  e = &nolock_env;
  write_some(&b, KEYS);
  xdb_unref(a.r);
  CHECK(xdb_close(a.x) == REMIXDB_IO);
  write_some(&b, KEYS);
  let_go(&b);
  check_store("one", &b);
  e = locking_env;
  off_disk();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_renamed, setup, teardown),
      cmocka_unit_test_setup_teardown(test_swapped, setup, teardown),
      cmocka_unit_test_setup_teardown(test_checkpoint, setup, teardown),
      cmocka_unit_test(test_renamed_cuts),
      cmocka_unit_test(test_repair_renamed),
      cmocka_unit_test_setup_teardown(test_lock_removed, setup, teardown),
      cmocka_unit_test(test_no_directory_locks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
