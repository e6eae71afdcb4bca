// SPDX-License-Identifier: Apache-2.0
//
// Files that have a name of the store's and are not the store's: symbolic links, pipes, files of others and of other
// stores, second names of its own files. The store waits for none of them, and writes to, cuts or removes none.
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
#include "admin/destroy.h"
#include "admin/repair.h"
#include "admin/verify.h"
#include "store/syncer.h"

#define VALUE 900u

static struct env *e;
static struct simdisk *disk;
static struct remixdb_opts opts;

static const char *path_in(const char *store, const char *name) {
  static char paths[8][700];
  static uint32_t next;
  char *const p = paths[next++ % 8];
  (void)snprintf(p, sizeof(paths[0]), "%s/%s%s%s", dir, store, name ? "/" : "", name ? name : "");
  return p;
}

static void on_disk(void) {
  disk = simdisk_create();
  e = simdisk_env(disk);
  (void)snprintf(dir, sizeof(dir), "/s");
  OK(env_mkdir(ENV_PATHS(e), dir));
  OK(paths_sync_dir(e, "/"));
  opts = small_opts(0);
}

static void off_disk(void) {
  CHECK(simdisk_open_files(disk) == 0);
  simdisk_destroy(disk);
}

static struct xdb_ref *r;
static struct xdb *begin(const char *store) {
  struct xdb *x;
  OK(xdb_open(path_in(store, NULL), &opts, e, &x));
  OK(xdb_ref(x, &r));
  return x;
}

static void end(struct xdb *x) {
  xdb_unref(r);
  OK(xdb_close(x));
}

// Rounds in which log segments are recycled and tables come and go.
static void write_from(struct xdb *x, uint32_t from, uint32_t to, char what) {
  char key[16], value[VALUE];
  memset(value, what, sizeof(value));
  for (uint32_t i = from; i < to; i++) {
    OK(xdb_put(r, kref(key, (uint32_t)snprintf(key, sizeof(key), "k%05u", i)), value, VALUE, false));
    if (i % 20 == 19) OK(xdb_sync(r));
    if (i % 50 == 49) OK(xdb_flush(x));
  }
  OK(xdb_sync(r));
}

static void check_from(uint32_t from, uint32_t to, char what) {
  char key[16], value[VALUE];
  for (uint32_t i = from; i < to; i++) {
    OK(xdb_get(r, kref(key, (uint32_t)snprintf(key, sizeof(key), "k%05u", i)), value, VALUE, NULL));
    CHECK(value[0] == what && value[VALUE - 1] == what);
  }
}

static void make_store(const char *store, uint32_t nr, char what) {
  struct xdb *x = begin(store);
  write_from(x, 0, nr, what);
  end(x);
}

// ---- the files of a directory as they were

struct picture {
  uint32_t nr;
  char names[64][40];
  uint64_t sums[64], inos[64];
};

static const char *picture_of;
static bool picture_add(void *arg, const char *name) {
  struct picture *const p = arg;
  struct env_stat st;
  uint8_t *buf;
  size_t len;
  CHECK(p->nr < 64);
  OK(env_stat(ENV_PATHS(e), path_in(picture_of, name), &st));
  (void)snprintf(p->names[p->nr], sizeof(p->names[0]), "%s", name);
  p->inos[p->nr] = st.ino;
  p->sums[p->nr] = 0;
  if (st.is_file) {
    OK(paths_read_file(ENV_PATHS(e), path_in(picture_of, name), 64 << 20, &buf, &len));
    p->sums[p->nr] = hash64(buf, len) + len;
    mem_free(buf);
  }
  p->nr++;
  return true;
}

static struct picture picture(const char *store) {
  struct picture p = {.nr = 0};
  picture_of = store;
  OK(paths_list(e, path_in(store, NULL), picture_add, &p));
  return p;
}

static uint32_t picture_find(const struct picture *p, const char *name) {
  uint32_t i = 0;
  while (i < p->nr && strcmp(p->names[i], name) != 0) i++;
  return i;
}

static void expect_same(const struct picture *was, const struct picture *now) {
  CHECK(was->nr == now->nr);
  for (uint32_t i = 0; i < was->nr; i++) {
    const uint32_t k = picture_find(now, was->names[i]);
    if (k == now->nr || was->sums[i] != now->sums[k]) fail_msg("%s has changed", was->names[i]);
  }
}

// Those that were there under these names are there, untouched.
static void expect_kept(const struct picture *was, const struct picture *now, const char *const *names, uint32_t nr) {
  for (uint32_t i = 0; i < nr; i++) {
    const uint32_t a = picture_find(was, names[i]), b = picture_find(now, names[i]);
    CHECK(a < was->nr);
    if (b == now->nr || was->inos[a] != now->inos[b] || was->sums[a] != now->sums[b])
      fail_msg("%s is not what it was", names[i]);
  }
}

static void file_put(const char *store, const char *name, const void *buf, size_t len) {
  int fd;
  const char *const path = path_in(store, name);
  OK(env_create(ENV_PATHS(e), path, ENV_WRITE, &fd));
  OK(env_write(e, fd, path, buf, len, 0));
  OK(env_sync_all(e, fd, path));
  OK(env_close(e, fd, path));
}

static void file_copy(const char *from, const char *from_name, const char *to, const char *to_name) {
  uint8_t *buf;
  size_t len;
  OK(paths_read_file(ENV_PATHS(e), path_in(from, from_name), 64 << 20, &buf, &len));
  file_put(to, to_name, buf, len);
  mem_free(buf);
}

static const char *name_with(const struct picture *p, const char *end) {
  for (uint32_t i = 0; i < p->nr; i++)
    if (strstr(p->names[i], end)) return p->names[i];
  fail_msg("no file %s", end);
  return NULL;
}

// ---- foreign files

// Links and pipes, a text, another store's log, table and REMIX: all under names of a log's or a table's.
static void test_foreign(void **state) {
  (void)state;
  static const char *const foreign[] = {"wal-0",      "wal-4",      "wal-5",        "wal-6",      "000040.sst",
                                        "000041.sst", "000042.sst", "000043.remix", "000050.sst", "RESERVE"};
  const uint32_t nr = sizeof(foreign) / sizeof(foreign[0]);
  on_disk();
  make_store("other", 200, 'o');
  make_store("one", 300, 'a');
  const struct picture other = picture("other");
  CHECK(simdisk_size(disk, path_in("one", "wal-0")) >= 0);
  // the number of the log's only file is taken away from it
  OK(env_rename(ENV_PATHS(e), path_in("one", "wal-0"), ENV_PATHS(e), path_in("one", "wal-12")));
  simdisk_special(disk, path_in("one", "wal-0"), ENXIO);
  simdisk_special(disk, path_in("one", "wal-4"), ELOOP);
  file_put("one", "wal-5", "a text of somebody's", 20);
  file_copy("other", name_with(&other, "wal-"), "one", "wal-6");
  simdisk_special(disk, path_in("one", "000040.sst"), ELOOP);
  simdisk_special(disk, path_in("one", "000041.sst"), ENXIO);
  file_copy("other", name_with(&other, ".sst"), "one", "000042.sst");
  file_copy("other", name_with(&other, ".remix"), "one", "000043.remix");
  OK(env_mkdir(ENV_PATHS(e), path_in("one", "000050.sst")));
  file_put("one", "RESERVE", "a text", 6);
  OK(paths_sync_dir(e, path_in("one", NULL)));
  const struct picture was = picture("one");
  for (uint32_t i = 0; i < 6; i++) {
    struct xdb *x = begin("one");
    check_from(0, 300 + 200 * i, 'a');
    write_from(x, 300 + 200 * i, 500 + 200 * i, 'a');
    struct verify_report report;
    OK(verify_store(r, &report));
    end(x);
    const struct picture now = picture("one");
    expect_kept(&was, &now, foreign, nr);
  }
  // the end of the store is not theirs
  OK(destroy_store(e, path_in("one", NULL)));
  const struct picture now = picture("one");
  static const char *const stay[] = {"wal-0",      "wal-4",      "wal-6",        "000040.sst",
                                     "000041.sst", "000042.sst", "000043.remix", "000050.sst"};
  expect_kept(&was, &now, stay, sizeof(stay) / sizeof(stay[0]));
  CHECK(now.nr == sizeof(stay) / sizeof(stay[0]));
  off_disk();
}

// Where CURRENT or LOCK is no file, nothing is opened and nothing is waited for.
static void test_no_files(void **state) {
  (void)state;
  static const char *const names[] = {"CURRENT", "LOCK"};
  static const int errnums[] = {ELOOP, ENXIO, EMLINK};
  for (uint32_t i = 0; i < 6; i++) {
    struct xdb *x;
    on_disk();
    make_store("one", 60, 'a');
    OK(env_unlink(ENV_PATHS(e), path_in("one", names[i % 2])));
    simdisk_special(disk, path_in("one", names[i % 2]), errnums[i / 2]);
    CHECK(xdb_open(path_in("one", NULL), &opts, e, &x) == REMIXDB_IO);
    CHECK(strstr(err_msg(), "not a file") && strstr(err_msg(), names[i % 2]));
    off_disk();
  }
}

// A repair's directories that are none lead nowhere.
static void test_repair_links(void **state) {
  (void)state;
  static const char *const names[] = {"repair.new", "repair.done", "repair.in"};
  on_disk();
  make_store("one", 60, 'a');
  for (uint32_t i = 0; i < 3; i++) simdisk_special(disk, path_in("one", names[i]), ELOOP);
  const struct picture was = picture("one");
  end(begin("one"));
  CHECK(repair_store(e, path_in("one", NULL), NULL) == REMIXDB_IO);
  struct picture now = picture("one");
  expect_kept(&was, &now, names, 3);
  OK(destroy_store(e, path_in("one", NULL)));
  now = picture("one");
  expect_kept(&was, &now, names, 3);
  CHECK(now.nr == 3);
  off_disk();
}

// ---- second names

static const char *link_from, *link_to;
static bool link_one(void *arg, const char *name) {
  int fd;
  (void)arg;
  // on disk, too: RESERVE is not synced by the store
  OK(env_open(ENV_PATHS(e), path_in(link_from, name), ENV_READ | ENV_WRITE, &fd));
  OK(env_sync_all(e, fd, name));
  env_close_quiet(e, fd);
  OK(env_link(ENV_PATHS(e), path_in(link_from, name), ENV_PATHS(e), path_in(link_to, name)));
  return true;
}

// As cp -al does.
static void link_all(const char *from, const char *to) {
  OK(env_mkdir(ENV_PATHS(e), path_in(to, NULL)));
  link_from = from;
  link_to = to;
  OK(paths_list(e, path_in(from, NULL), link_one, NULL));
  OK(paths_sync_dir(e, path_in(to, NULL)));
  OK(paths_sync_dir(e, dir));
}

// A copy by hard links stays what it was, whatever becomes of the store, and the other way round. cut: the machine
// stops before the store is closed.
static void run_copy(bool cut, uint32_t writes) {
  on_disk();
  struct xdb *x = begin("one");
  write_from(x, 0, writes, 'a');
  if (cut) {
    struct simdisk *const before = disk;
    disk = simdisk_crash(before, writes);
    xdb_unref(r);
    OK(xdb_close(x));
    simdisk_destroy(before);
    e = simdisk_env(disk);
  } else {
    end(x);
  }
  link_all("one", "copy");
  const struct picture was = picture("copy");
  for (uint32_t i = 0; i < 4; i++) {
    x = begin("one");
    // closed with the log that was replayed still in use
    if (i == 0) OK(xdb_put(r, kref("a", 1), "b", 1, false));
    if (i == 0) end(x), x = begin("one");
    write_from(x, writes + 100 * i, writes + 100 * i + 100, 'b');
    if (i == 2) OK(xdb_compact(x));
    end(x);
    const struct picture now = picture("copy");
    expect_same(&was, &now);
  }
  // power goes while the store is in use again: the copy is unchanged
  x = begin("one");
  simdisk_power_off(disk, 30);
  char value[VALUE] = "x";
  for (uint32_t i = 0; i < 100; i++) {
    enum remixdb_status s = xdb_put(r, kref("z", 1), value, VALUE, false);
    if (s == REMIXDB_OK && i % 3 == 0) s = xdb_sync(r);
    if (s == REMIXDB_OK && i % 9 == 0) s = xdb_flush(x);
    (void)s;
  }
  struct simdisk *const whole = disk;
  disk = simdisk_crash(whole, writes);
  simdisk_power_on(whole);
  xdb_unref(r);
  const enum remixdb_status closed = xdb_close(x);
  (void)closed;
  simdisk_destroy(whole);
  e = simdisk_env(disk);
  const struct picture after = picture("copy");
  expect_same(&was, &after);
  const struct picture one = picture("one");
  x = begin("copy");
  check_from(0, writes, 'a');
  write_from(x, writes, writes + 300, 'c');
  end(x);
  const struct picture still = picture("one");
  expect_same(&one, &still);
  x = begin("one");
  check_from(0, writes, 'a');
  check_from(writes, writes + 400, 'b');
  end(x);
  off_disk();
}

static void test_copy(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 24; i++) run_copy(i % 2, 10 + 37 * i);
}

// ---- on the system's files

static void test_files(void **state) {
  (void)state;
  char victim[700];
  e = quick_env();
  opts = small_opts(0);
  (void)snprintf(victim, sizeof(victim), "%s/victim", dir);
  FILE *const f = fopen(victim, "w");
  CHECK(f && fputs("of somebody", f) >= 0 && fclose(f) == 0);
  make_store("one", 100, 'a');
  CHECK(mkfifo(path_in("one", "wal-1"), 0600) == 0 || errno == EEXIST);
  CHECK(mkfifo(path_in("one", "wal-7"), 0600) == 0);
  CHECK(symlink(victim, path_in("one", "wal-5")) == 0);
  CHECK(symlink(victim, path_in("one", "CURRENT.tmp")) == 0);
  CHECK(symlink(victim, path_in("one", "CREATING")) == 0);
  for (uint32_t i = 1; i < 20; i++) {
    struct xdb *x = begin("one");
    write_from(x, 100 * i, 100 * i + 100, 'a');
    end(x);
  }
  struct env_stat st;
  CHECK(env_stat(ENV_PATHS(e), victim, &st) == REMIXDB_OK && st.size == 11);
  // repair's directories are links to another store
  make_store("two", 100, 'b');
  CHECK(symlink(path_in("two", NULL), path_in("one", "repair.new")) == 0);
  CHECK(symlink(path_in("two", NULL), path_in("one", "repair.in")) == 0);
  CHECK(repair_store(e, path_in("one", NULL), NULL) == REMIXDB_IO);
  OK(destroy_store(e, path_in("one", NULL)));
  struct xdb *x = begin("two");
  check_from(0, 100, 'b');
  end(x);
  static const char *const names[] = {"CURRENT", "LOCK"};
  for (uint32_t i = 0; i < 2; i++) {
    const char *const store = i ? "two" : "three";
    if (i == 0) make_store(store, 60, 'c');
    CHECK(unlink(path_in(store, names[i])) == 0 && mkfifo(path_in(store, names[i]), 0600) == 0);
    CHECK(xdb_open(path_in(store, NULL), &opts, e, &x) == REMIXDB_IO);
    CHECK(strstr(err_msg(), "not a file"));
  }
}

int main(void) {
  (void)alarm(300);  // a call that waits for a pipe waits for ever
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_files, setup, teardown),
      cmocka_unit_test(test_foreign),
      cmocka_unit_test(test_no_files),
      cmocka_unit_test(test_repair_links),
      cmocka_unit_test(test_copy),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
