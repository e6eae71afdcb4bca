// SPDX-License-Identifier: Apache-2.0
//
// The simulated disk keeps its promises, or the tests that use it prove nothing.
#include <errno.h>

#include "tests/lib/check.h"
#include "tests/lib/simdisk.h"

// A disk with the durable directories /a and /a/b.
static struct simdisk *dirs_create(void) {
  struct simdisk *const d = simdisk_create();
  struct env *const e = simdisk_env(d);
  OK(env_mkdir(ENV_PATHS(e), "/a"));
  OK(env_mkdir(ENV_PATHS(e), "/a/b"));
  OK(paths_sync_dir(e, "/"));
  OK(paths_sync_dir(e, "/a"));
  return d;
}

// The durable file /a/b/f with the content "old", over which "new" has been written.
static void file_over(struct simdisk *d) {
  struct env *const e = simdisk_env(d);
  int fd;
  FAILS(env_open(ENV_PATHS(e), "/a/b/f", ENV_READ, &fd), REMIXDB_NOTFOUND);
  OK(env_open(ENV_PATHS(e), "/a/b/f", ENV_READ | ENV_WRITE | ENV_CREATE, &fd));
  OK(env_write(e, fd, "f", "old", 3, 0));
  OK(env_sync_data(e, fd, "f"));
  OK(paths_sync_dir(e, "/a/b"));
  OK(env_write(e, fd, "f", "new", 3, 0));
  OK(env_close(e, fd, "f"));
}

// A crash leaves the rename or not, and the write or not: all four come.
static void test_unsynced(void **state) {
  (void)state;
  struct simdisk *const d = dirs_create();
  struct env *const e = simdisk_env(d);
  unsigned seen[2][2] = {{0, 0}, {0, 0}};
  char b[8];
  file_over(d);
  OK(env_rename(ENV_PATHS(e), "/a/b/f", ENV_PATHS(e), "/a/b/g"));
  assert_int_equal(simdisk_size(d, "/a/b/f"), -1);
  for (uint64_t seed = 0; seed < 200; seed++) {
    struct simdisk *const c = simdisk_crash(d, seed);
    const bool f = simdisk_size(c, "/a/b/f") >= 0, g = simdisk_size(c, "/a/b/g") >= 0;
    assert_true(f != g);
    assert_true(simdisk_peek(c, f ? "/a/b/f" : "/a/b/g", 0, b, 3));
    const bool is_new = memcmp(b, "new", 3) == 0;
    assert_true(is_new || memcmp(b, "old", 3) == 0);
    seen[g][is_new]++;
    simdisk_destroy(c);
  }
  for (int i = 0; i < 4; i++) assert_true(seen[i / 2][i % 2] > 0);
  simdisk_destroy(d);
}

static void test_synced(void **state) {
  (void)state;
  struct simdisk *const d = dirs_create();
  struct env *const e = simdisk_env(d);
  char b[8];
  file_over(d);
  OK(env_rename(ENV_PATHS(e), "/a/b/f", ENV_PATHS(e), "/a/b/g"));
  OK(paths_sync_dir(e, "/a/b"));
  OK(env_link(ENV_PATHS(e), "/a/b/g", ENV_PATHS(e), "/a/h"));
  OK(env_unlink(ENV_PATHS(e), "/a/b/g"));
  OK(paths_replace_file(e, "/a", "CURRENT", "12345", 5));
  for (uint64_t seed = 0; seed < 50; seed++) {
    struct simdisk *const c = simdisk_crash(d, seed);
    assert_true(simdisk_size(c, "/a/b/f") < 0);
    assert_true(simdisk_peek(c, "/a/CURRENT", 0, b, 5));
    assert_memory_equal(b, "12345", 5);
    simdisk_destroy(c);
  }
  simdisk_destroy(d);
}

static void test_locks(void **state) {
  (void)state;
  struct simdisk *const d = simdisk_create();
  struct env *const e = simdisk_env(d);
  int fd, fd2;
  OK(env_lock(ENV_PATHS(e), "/LOCK", true, &fd));
  FAILS(env_lock(ENV_PATHS(e), "/LOCK", true, &fd2), REMIXDB_LOCKED);
  FAILS(env_lock(ENV_PATHS(e), "/LOCK", false, &fd2), REMIXDB_LOCKED);
  OK(env_close(e, fd, "LOCK"));
  OK(env_lock(ENV_PATHS(e), "/LOCK", false, &fd));
  OK(env_lock(ENV_PATHS(e), "/LOCK", false, &fd2));
  env_close_quiet(e, fd);
  env_close_quiet(e, fd2);
  simdisk_destroy(d);
}

// Bytes that a truncation cut read as zeroes when the file grows again; then the disk is full, and loses its power.
static void test_sizes(void **state) {
  (void)state;
  struct simdisk *const d = simdisk_create();
  struct env *const e = simdisk_env(d);
  int fd;
  char b[8];
  OK(env_open(ENV_PATHS(e), "/t", ENV_READ | ENV_WRITE | ENV_CREATE, &fd));
  OK(env_write(e, fd, "t", "abcdef", 6, 4094));
  OK(env_truncate(e, fd, "t", 4097));
  OK(env_truncate(e, fd, "t", 5000));
  OK(env_read(e, fd, "t", b, 6, 4094));
  assert_memory_equal(b, "abc\0\0\0", 6);
  simdisk_space(d, simdisk_used(d));
  FAILS(env_allocate(e, fd, "t", 0, 1 << 20), REMIXDB_NOSPACE);
  static const uint8_t more[5000];
  assert_int_equal(e->ops->pwrite(e, fd, more, sizeof(more), 5000), 2 * 4096 - 5000);  // as many as there is room for
  assert_int_equal(e->ops->pwrite(e, fd, more, sizeof(more), 2 * 4096), -ENOSPC);
  assert_int_equal(simdisk_size(d, "/t"), 2 * 4096);
  simdisk_power_off(d, 0);
  (void)e->ops->pwrite(e, fd, "x", 1, 0);
  FAILS(env_write(e, fd, "t", "x", 1, 0), REMIXDB_IO);
  assert_true(simdisk_is_off(d));
  env_close_quiet(e, fd);
  simdisk_destroy(d);
}

// A hole gives whole pages back, and reads as zeros. After a power cut each of its sectors is as it was, or zeros,
// until the file was synced.
static void test_holes(void **state) {
  (void)state;
  struct simdisk *const d = simdisk_create();
  struct env *const e = simdisk_env(d);
  static uint8_t was[8 * 4096], now[sizeof(was)], got[sizeof(was)];
  int fd;
  bool can, old = false, torn = false, whole = false;
  memset(was, 'x', sizeof(was));
  memcpy(now, was, sizeof(now));
  memset(now + 4000, 0, 3 * 4096);
  OK(env_open(ENV_PATHS(e), "/h", ENV_READ | ENV_WRITE | ENV_CREATE, &fd));
  OK(env_write(e, fd, "h", was, sizeof(was), 0));
  OK(env_sync_all(e, fd, "h"));
  OK(paths_sync_dir(e, "/"));
  assert_int_equal(simdisk_room(d, "/h"), sizeof(was));
  simdisk_no_punch(d, true);
  OK(env_punch(e, fd, "h", 4000, 3 * 4096, &can));
  assert_false(can);
  simdisk_no_punch(d, false);
  const uint64_t changes = simdisk_changes(d);
  OK(env_punch(e, fd, "h", 4000, 3 * 4096, &can));
  assert_true(can);
  assert_int_equal(simdisk_changes(d), changes + 1);
  OK(env_read(e, fd, "h", got, sizeof(got), 0));
  assert_memory_equal(got, now, sizeof(got));
  assert_int_equal(simdisk_room(d, "/h"), sizeof(was) - 2 * 4096);
  assert_int_equal(simdisk_size(d, "/h"), sizeof(was));
  for (uint64_t seed = 0; seed < 64; seed++) {
    struct simdisk *const c = simdisk_crash(d, seed);
    assert_true(simdisk_peek(c, "/h", 0, got, sizeof(got)));
    for (size_t i = 0; i < sizeof(got); i++) assert_true(got[i] == was[i] || got[i] == now[i]);
    const bool is_old = memcmp(got, was, sizeof(got)) == 0, is_new = memcmp(got, now, sizeof(got)) == 0;
    old = old || is_old;
    whole = whole || is_new;
    torn = torn || (!is_old && !is_new);
    simdisk_destroy(c);
  }
  assert_true(old && whole && torn);
  OK(env_sync_data(e, fd, "h"));
  struct simdisk *const c = simdisk_crash(d, 1);
  assert_true(simdisk_peek(c, "/h", 0, got, sizeof(got)));
  assert_memory_equal(got, now, sizeof(got));
  assert_int_equal(simdisk_room(c, "/h"), sizeof(was) - 2 * 4096);
  simdisk_destroy(c);
  OK(env_write(e, fd, "h", was, sizeof(was), 0));  // takes the room again
  assert_int_equal(simdisk_room(d, "/h"), sizeof(was));
  simdisk_fault(d, SIMDISK_PUNCH, 0, 1, EIO);
  FAILS(env_punch(e, fd, "h", 0, 4096, &can), REMIXDB_IO);
  env_close_quiet(e, fd);
  simdisk_destroy(d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_unsynced), cmocka_unit_test(test_synced), cmocka_unit_test(test_locks),
      cmocka_unit_test(test_sizes),    cmocka_unit_test(test_holes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
