// SPDX-License-Identifier: Apache-2.0
//
// Opening a store: directories that are there, or not, or somebody else's, rights, and the lock.
#include "tests/lib/check.h"
#include "tests/lib/sample.h"

// ---- directories

static void test_no_directory(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  struct remixdb_opts o = small_opts(0);
  // no parent
  dir_of(dir, "none/below");
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_IO, dir);
  CHECK(!list_dir(dir_of(dir, "none")).there);
  CHECK(!remixdb_open_opts("", &o));
  CHECK(remixdb_errcode() != REMIXDB_OK && remixdb_errmsg()[0]);

  // none is to be made
  dir_of(dir, "none");
  o.create = false;
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_NOTFOUND, dir);
  o.read_only = true;
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_NOTFOUND, dir);
  o.create = true;  // read_only makes nothing either
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_NOTFOUND, dir);
  CHECK(!list_dir(dir).there);
  CHECK(mkdir(dir, 0755) == 0);
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_NOTFOUND, dir);
  o.read_only = o.create = false;
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_NOTFOUND, dir);
  CHECK(list_dir(dir).nr == 0);
  remove_tree(dir);
  o = small_opts(0);
  char orphan[PATH_SIZE];
  (void)snprintf(orphan, sizeof(orphan), "%.400s/none/store", dir);
  CHECK(!remixdb_open_opts(orphan, &o) && reason_is(ENOENT) && strstr(remixdb_errmsg(), orphan));
}

static void test_directory_in_use(void **state) {
  (void)state;
  char dir[PATH_SIZE], path[2 * PATH_SIZE];
  struct remixdb_opts o = small_opts(0);
  CHECK(mkdir(dir_of(dir, "in-use"), 0755) == 0);
  // files of others are no hindrance and stay
  (void)snprintf(path, sizeof(path), "%s/notes.txt", dir);
  FILE *const f = fopen(path, "w");
  CHECK(f && fputs("mine", f) >= 0 && fclose(f) == 0);
  struct xdb *x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  remixdb_close(x);
  CHECK(access(path, R_OK) == 0);
  // it is there now
  o.error_if_exists = true;
  const struct listing before = list_dir(dir);
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_EXISTS, dir);
  SAME(before, dir, "an open with error_if_exists");
  remove_tree(dir);
  x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  remixdb_close(x);
  remove_tree(dir);
}

static void test_file_in_place_of_directory(void **state) {
  (void)state;
  char dir[PATH_SIZE], path[2 * PATH_SIZE];
  struct remixdb_opts o = small_opts(0);
  dir_of(dir, "file");
  FILE *f = fopen(dir, "w");
  CHECK(f && fputs("a file", f) >= 0 && fclose(f) == 0);
  for (int i = 0; i < 3; i++) {
    o.create = i != 1;
    o.read_only = i == 2;
    CHECK(!remixdb_open_opts(dir, &o));
    FAILED(REMIXDB_IO, dir);
  }
  o = small_opts(0);  // and in the place of the parent
  (void)snprintf(path, sizeof(path), "%s/below", dir);
  CHECK(!remixdb_open_opts(path, &o));
  FAILED(REMIXDB_IO, path);
  f = fopen(dir, "r");
  CHECK(f && fgets(path, sizeof(path), f) && fclose(f) == 0 && strcmp(path, "a file") == 0);
  (void)unlink(dir);
}

static void test_directory_in_place_of_file(void **state) {
  (void)state;
  char dir[PATH_SIZE], path[2 * PATH_SIZE];
  const struct remixdb_opts o = small_opts(0);
  dir_of(dir, "swapped");
  static const char *const names[] = {"CURRENT", "LOCK"};
  for (uint32_t i = 0; i < 2; i++) {
    CHECK(mkdir(dir, 0755) == 0);
    (void)snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
    CHECK(mkdir(path, 0755) == 0);
    CHECK(!remixdb_open_opts(dir, &o));
    CHECK(remixdb_errcode() == REMIXDB_IO || remixdb_errcode() == REMIXDB_CORRUPT);
    FAILED(remixdb_errcode(), names[i]);
    CHECK(rmdir(path) == 0);
    remove_tree(dir);
  }
}

static void test_long_path(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  const struct remixdb_opts o = small_opts(0);
  dir_of(dir, "long");
  char *const longer = malloc(20000);
  CHECK(longer);
  memset(longer, 'd', 19999);
  longer[19999] = '\0';
  CHECK(!remixdb_open_opts(longer, &o));
  CHECK(remixdb_errcode() == REMIXDB_IO || remixdb_errcode() == REMIXDB_INVALID);
  CHECK(remixdb_errmsg()[0] && strlen(remixdb_errmsg()) < 2000);
  memset(longer, '/', 19999);
  memcpy(longer, dir, strlen(dir));
  longer[4090] = '\0';
  CHECK(!remixdb_open_opts(longer, &o));
  CHECK(remixdb_errcode() == REMIXDB_IO || remixdb_errcode() == REMIXDB_INVALID);
  free(longer);
}

static int rights_child(void *arg) {
  const char *const dir = arg;
  struct remixdb_opts o = small_opts(0);
  if (geteuid() == 0) {
    const uid_t nobody = 65534;
    CHILD_CHECK(setgid(nobody) == 0 && setuid(nobody) == 0);
  }
  if (access(base, R_OK | X_OK) != 0) return 77;  // the directory for temporary files is root's alone
  char closed[PATH_SIZE], fresh[PATH_SIZE];
  // may not be entered
  dir_of(closed, "closed");
  CHILD_CHECK(!remixdb_open_opts(closed, &o));
  CHILD_CHECK(reason_is(EACCES) && strstr(remixdb_errmsg(), closed));
  o.read_only = true;
  CHILD_CHECK(!remixdb_open_opts(closed, &o));
  CHILD_CHECK(reason_is(EACCES) && strstr(remixdb_errmsg(), closed));
  // may be read, not written
  o = small_opts(0);
  CHILD_CHECK(!remixdb_open_opts(dir, &o));
  CHILD_CHECK(reason_is(EACCES) && strstr(remixdb_errmsg(), dir));
  (void)snprintf(fresh, sizeof(fresh), "%.400s/fresh", dir);
  CHILD_CHECK(!remixdb_open_opts(fresh, &o));
  CHILD_CHECK(reason_is(EACCES) && strstr(remixdb_errmsg(), fresh));
  o.read_only = true;
  struct xdb *const x = remixdb_open_opts(dir, &o);
  CHILD_CHECK(x);
  struct xdb_ref *const r = remixdb_ref(x);
  CHILD_CHECK(r);
  char key[24];
  for (uint32_t i = 0; i < SAMPLE_KEYS; i += 500) CHILD_CHECK(remixdb_probe(r, key, sample_key(key, i)));
  sample_close(x, r);
  return 0;
}

static void test_rights(void **state) {
  (void)state;
  char dir[PATH_SIZE], closed[PATH_SIZE];
  copy_dir(sample, dir_of(dir, "rights"));
  copy_dir(sample, dir_of(closed, "closed"));
  const struct listing before = list_dir(sample);
  CHECK(chmod(base, 0755) == 0 && chmod(dir, 0555) == 0 && chmod(closed, 0) == 0);
  const int rc = in_child(rights_child, dir);
  CHECK(chmod(base, 0755) == 0 && chmod(dir, 0755) == 0 && chmod(closed, 0755) == 0);
  if (rc == 77) skip();
  CHECK(rc == 0);
  SAME(before, dir, "opening without rights");
  SAME(before, closed, "opening without rights");
  remove_tree(dir);
  remove_tree(closed);
}

// ---- locks

static int lock_child(void *arg) {
  const struct remixdb_opts o = small_opts(0);
  CHILD_CHECK(!remixdb_open_opts(arg, &o));
  CHILD_CHECK(remixdb_errcode() == REMIXDB_LOCKED && strstr(remixdb_errmsg(), arg));
  return 0;
}

static int open_child(void *arg) {
  static struct xdb *volatile x;  // kept, so that a leak checker does not report it
  const struct remixdb_opts o = small_opts(0);
  x = remixdb_open_opts(arg, &o);
  CHILD_CHECK(x);
  return 0;  // without closing: the lock dies with the process
}

static void test_locked(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  dir_of(dir, "locked");
  struct remixdb_opts o = small_opts(0);
  CHECK(in_child(open_child, dir) == 0);
  struct xdb *x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  CHECK(in_child(lock_child, dir) == 0);
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_LOCKED, dir);
  o.read_only = true;
  CHECK(!remixdb_open_opts(dir, &o));
  FAILED(REMIXDB_LOCKED, dir);
  struct xdb_ref *r = remixdb_ref(x);
  GOOD(remixdb_put(r, "still", 5, "works", 5));
  sample_close(x, r);
  // readers share it, and keep a writer out
  x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  struct xdb *const y = remixdb_open_opts(dir, &o);
  GOOD(y != NULL);
  CHECK(in_child(lock_child, dir) == 0);
  remixdb_close(x);
  r = remixdb_ref(y);
  GOOD(remixdb_probe(r, "still", 5));
  remixdb_unref(r);
  remixdb_close(y);
  CHECK(in_child(open_child, dir) == 0);
  o.read_only = false;
  x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  remixdb_close(x);
  // a lock file that somebody removed is no hindrance, for readers neither
  char path[PATH_SIZE + 8];
  (void)snprintf(path, sizeof(path), "%s/LOCK", dir);
  CHECK(unlink(path) == 0);
  o.read_only = true;
  x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  remixdb_close(x);
  o.read_only = false;
  x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  remixdb_close(x);
  remove_tree(dir);
}

// A child made by fork has the lock's descriptor, too, and may live on for long: closing the store lets go of the lock
// all the same.
static void test_lock_and_children(void **state) {
  (void)state;
  char dir[PATH_SIZE], byte;
  dir_of(dir, "children");
  const struct remixdb_opts o = small_opts(0);
  struct xdb *x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  int hold[2];
  CHECK(pipe(hold) == 0);
  (void)fflush(NULL);
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    (void)close(hold[1]);
    _exit(read(hold[0], &byte, 1) == 0 ? 0 : 1);  // until the parent closes its end
  }
  (void)close(hold[0]);
  remixdb_close(x);
  x = remixdb_open_opts(dir, &o);
  GOOD(x != NULL);
  remixdb_close(x);
  (void)close(hold[1]);
  int st;
  while (waitpid(pid, &st, 0) < 0) CHECK(errno == EINTR);
  CHECK(WIFEXITED(st) && WEXITSTATUS(st) == 0);
  remove_tree(dir);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      // those with children first: while there is one thread only
      cmocka_unit_test(test_rights),
      cmocka_unit_test(test_locked),
      cmocka_unit_test(test_lock_and_children),
      cmocka_unit_test(test_no_directory),
      cmocka_unit_test(test_directory_in_use),
      cmocka_unit_test(test_file_in_place_of_directory),
      cmocka_unit_test(test_directory_in_place_of_file),
      cmocka_unit_test(test_long_path),
  };
  return cmocka_run_group_tests_name("open", tests, samples_setup, base_teardown);
}
