// SPDX-License-Identifier: Apache-2.0
//
// Children made by fork: calls on their parent's store do nothing, and leave the store as it is; they do not keep its
// lock; and they have stores of their own.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>

#include "base/thread.h"
#include "tests/lib/check.h"
#include "tests/lib/store.h"

#define STEPS 64u  // records of a block

static struct remixdb_opts opts(void) {
  struct remixdb_opts o = small_opts(
      LIB_TSAN ? 0 : 2);  // ThreadSanitizer ends children, made while there are threads, that start some
  return o;
}

static struct xdb *open_at(const char *path) {
  const struct remixdb_opts o = opts();
  return remixdb_open_opts(path, &o);
}

// In a child, a check that fails is its exit status.
#define CHILD(cond)                                                                                          \
  do {                                                                                                       \
    if (!(cond)) {                                                                                           \
      fprintf(stderr, "child, line %d: %s (%s: %s)\n", __LINE__, #cond, remixdb_strerror(remixdb_errcode()), \
              remixdb_errmsg());                                                                             \
      _exit(1);                                                                                              \
    }                                                                                                        \
  } while (0)
#define REFUSED(call)                                                                        \
  do {                                                                                       \
    (void)remixdb_iter_valid(NULL);                                                          \
    (void)(call);                                                                            \
    CHILD(remixdb_errcode() == REMIXDB_INVALID && strstr(remixdb_errmsg(), "made by fork")); \
  } while (0)

static pid_t child(void) {
  (void)fflush(NULL);
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) (void)alarm(SLOW_HANG_S);
  return pid;
}

static void ended_well(pid_t pid) {
  int st;
  while (waitpid(pid, &st, 0) < 0) CHECK(errno == EINTR);
  CHECK(WIFEXITED(st) && WEXITSTATUS(st) == 0);
}

static enum remixdb_merge_op keep(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  (void)v0, (void)v0len, (void)v1, (void)v1len, (void)priv;
  return REMIXDB_MERGE_KEEP;
}

// ---- every call

struct things {
  struct xdb *x;
  struct xdb_ref *r, *snap_ref;
  struct xdb_snapshot *snap;
  struct xdb_iter *it;
  struct xdb_gets *gets;
};

static void make(struct things *t) {
  t->x = open_at(dir);
  t->r = remixdb_ref(t->x);
  CHECK(t->r && remixdb_put(t->r, "a", 1, "1", 1));
  for (uint32_t i = 0; i < STEPS; i++) {
    const char key[2] = {'0', (char)i};
    CHECK(remixdb_put(t->r, key, 2, "1", 1));
  }
  CHECK(remixdb_flush(t->r) && remixdb_put(t->r, "b", 1, "2", 1));
  t->snap = remixdb_snapshot(t->r);
  t->snap_ref = remixdb_snapshot_ref(t->snap);
  t->it = remixdb_iter_create(t->r);
  remixdb_iter_seek(t->it, NULL, 0);
  CHECK(t->snap_ref && remixdb_iter_valid(t->it));
  for (uint32_t i = 0; i < STEPS / 2; i++) remixdb_iter_skip1(t->it);  // the next step finds all at hand
  CHECK(remixdb_iter_peek(t->it, NULL, NULL, NULL, NULL));
  t->gets = remixdb_gets_create(t->r, 2);
  CHECK(t->gets);
  (void)remixdb_gets_fd(t->gets);  // not every system has one
  CHECK(remixdb_get_begin(t->gets, "a", 1, NULL, 0, NULL));
}

static void end(struct things *t) {
  struct remixdb_got got;
  CHECK(remixdb_get_poll(t->gets, &got, 1, 1) == 1 && got.status == REMIXDB_OK && got.len == 1);
  remixdb_gets_destroy(t->gets);
  remixdb_iter_destroy(t->it);
  remixdb_unref(t->snap_ref);
  remixdb_snapshot_release(t->snap);
  remixdb_unref(t->r);
  remixdb_close(t->x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

static void writes_are_refused(struct things *t) {
  struct xdb_batch *const b = remixdb_batch_create();
  CHILD(remixdb_batch_put(b, "c", 1, "3", 1) && remixdb_batch_count(b) == 1);  // belongs to no store
  REFUSED(remixdb_put(t->r, "c", 1, "3", 1));
  REFUSED(remixdb_set(t->r, "c", 1, "3", 1));
  REFUSED(remixdb_del(t->r, "a", 1));
  REFUSED(remixdb_merge(t->r, "a", 1, keep, NULL));
  REFUSED(remixdb_write(t->r, b));
  REFUSED(remixdb_sync(t->r));
  REFUSED(remixdb_flush(t->r));
  REFUSED(remixdb_compact(t->r));
  char other[600];
  (void)snprintf(other, sizeof(other), "%s/other", dir);
  REFUSED(remixdb_checkpoint(t->r, other));
  CHILD(access(other, F_OK) != 0);
  REFUSED(remixdb_verify(t->r));
  REFUSED(remixdb_progress(t->r, NULL, NULL));
  remixdb_batch_destroy(b);
}

static void reads_are_refused(struct things *t) {
  char buf[8];
  uint32_t len = 77;
  bool found = true;
  const struct remixdb_slice key = {"a", 1};
  REFUSED(remixdb_get(t->r, "a", 1, buf, &len));
  REFUSED(remixdb_getn(t->r, "a", 1, buf, 8, &len));
  CHILD(len == 77);
  REFUSED(remixdb_probe(t->snap_ref, "a", 1));
  REFUSED(remixdb_multi_get(t->r, 1, &key, NULL, &found));
  REFUSED(remixdb_multi_get(t->r, 0, &key, NULL, &found));
  uint32_t klen = 1, room[2] = {77, 77};
  struct remixdb_packed packed = {.ptr = buf, .cap = 8, .offs = room, .lens = room + 1, .found = &found};
  REFUSED(remixdb_multi_get_packed(t->r, 1, &klen, "a", 1, &packed));
  CHILD(found && room[0] == 77 && room[1] == 77);
  REFUSED(remixdb_stats(t->x));
  REFUSED(remixdb_ref(t->x));
  REFUSED(remixdb_snapshot(t->r));
  REFUSED(remixdb_snapshot_ref(t->snap));
  REFUSED(remixdb_iter_create(t->r));
  REFUSED(remixdb_iter_create_opts(t->r, NULL));
  REFUSED(remixdb_iter_seek(t->it, "a", 1));
  REFUSED(remixdb_iter_seek_for_prev(t->it, "a", 1));
  REFUSED(remixdb_iter_seek_last(t->it));
  REFUSED(remixdb_iter_skip1(t->it));
  REFUSED(remixdb_iter_skip(t->it, 2));
  REFUSED(remixdb_iter_prev(t->it));
  struct remixdb_page page = {.ptr = buf, .cap = 8, .klens = &klen, .max = 1};
  REFUSED(remixdb_iter_page(t->it, &page));
  REFUSED(remixdb_iter_unread(t->it, &page, 0));
  REFUSED(remixdb_iter_peek(t->it, buf, &len, NULL, NULL));
  REFUSED(remixdb_iter_key(t->it, &len));
  REFUSED(remixdb_iter_value(t->it, &len));
  REFUSED(remixdb_iter_valid(t->it));
  struct remixdb_got got;
  REFUSED(remixdb_gets_create(t->r, 1));
  REFUSED(remixdb_get_begin(t->gets, "b", 1, NULL, 0, NULL));
  REFUSED(remixdb_get_poll(t->gets, &got, 1, 1));
  CHILD(remixdb_gets_fd(t->gets) == -1 && remixdb_errcode() == REMIXDB_INVALID);
  CHILD(!remixdb_iter_valid(t->it) && remixdb_iter_status(t->it) == REMIXDB_INVALID);
}

static void ends_are_refused(struct things *t) {
  REFUSED(remixdb_iter_park(t->it));
  REFUSED(remixdb_iter_destroy(t->it));
  REFUSED(remixdb_gets_destroy(t->gets));
  REFUSED(remixdb_unref(t->snap_ref));
  REFUSED(remixdb_snapshot_release(t->snap));
  REFUSED(remixdb_unref(t->r));
  REFUSED(remixdb_close(t->x));
}

// Both locks are the parent's still: that of the directory, and that of LOCK.
static bool is_locked(const char *name) {
  char path[600];
  (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
  const int fd = open(path, O_RDONLY);
  const bool locked = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  (void)close(fd);
  return locked;
}

static void test_calls(void **state) {
  (void)state;
  struct things t;
  make(&t);
  const pid_t pid = child();
  if (pid == 0) {
    writes_are_refused(&t);
    reads_are_refused(&t);
    ends_are_refused(&t);
    reads_are_refused(&t);  // nothing was freed
    if (child() == 0) {     // nor is it a grandchild's
      reads_are_refused(&t);
      _exit(0);
    }
    int st;
    CHILD(wait(&st) > 0 && WIFEXITED(st) && WEXITSTATUS(st) == 0);
    CHILD(open_at(dir) == NULL && remixdb_errcode() == REMIXDB_LOCKED && is_locked(".") && is_locked("LOCK"));
    _exit(0);
  }
  ended_well(pid);
  // the parent has noticed nothing
  CHECK(remixdb_iter_valid(t.it) && remixdb_put(t.r, "c", 1, "3", 1) && remixdb_flush(t.r));
  remixdb_iter_skip(t.it, STEPS);
  CHECK(!remixdb_iter_valid(t.it));
  remixdb_iter_seek(t.it, "c", 1);
  CHECK(remixdb_iter_valid(t.it) && remixdb_verify(t.r));
  end(&t);
}

// A child that exits runs the rest of the program's end; the store's files are as they were.
static void test_exit(void **state) {
  (void)state;
  struct things t;
  make(&t);
  const pid_t pid = child();
  if (pid == 0) {
    remixdb_close(t.x);
    _exit(remixdb_errcode() == REMIXDB_INVALID ? 0 : 1);
  }
  ended_well(pid);
  CHECK(remixdb_put(t.r, "d", 1, "4", 1) && remixdb_sync(t.r));
  end(&t);
  make(&t);
  CHECK(remixdb_probe(t.r, "d", 1));
  end(&t);
}

// ---- while other threads are at work: their locks are held in the child for ever

static _Atomic bool stop;

static void *writer(void *arg) {
  struct xdb *const x = arg;
  struct xdb_ref *const r = remixdb_ref(x);
  char key[16], value[300] = "";
  for (uint32_t i = 0; !atomic_load(&stop); i++) {
    const int len = sprintf(key, "%08u", i % 20000);
    THREAD_CHECK(remixdb_put(r, key, (uint32_t)len, value, sizeof(value)));
    if (i % 64 == 0) THREAD_CHECK(remixdb_sync(r));
  }
  remixdb_unref(r);
  return NULL;
}

static void test_busy(void **state) {
  (void)state;
  struct things t;
  pthread_t threads[2];
  make(&t);
  atomic_store(&stop, false);
  for (uint32_t i = 0; i < 2; i++) CHECK(thread_start(&threads[i], writer, t.x, "writer") == REMIXDB_OK);
  for (uint32_t n = 0; n < 24; n++) {
    const pid_t pid = child();
    if (pid == 0) {
      writes_are_refused(&t);
      reads_are_refused(&t);
      ends_are_refused(&t);
      _exit(0);
    }
    ended_well(pid);
  }
  atomic_store(&stop, true);
  for (uint32_t i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  CHECK(remixdb_verify(t.r));
  end(&t);
}

// ---- a store of the child's own

static void test_own_store(void **state) {
  (void)state;
  struct things t;
  make(&t);
  char other[600];
  (void)snprintf(other, sizeof(other), "%s/own", dir);
  const pid_t pid = child();
  if (pid == 0) {
    struct xdb *const x = open_at(other);
    struct xdb_ref *const r = remixdb_ref(x);
    CHILD(x && r);
    for (uint32_t i = 0; i < 1000; i++) CHILD(remixdb_put(r, &i, sizeof(i), "v", 1));
    CHILD(remixdb_flush(r));
    struct xdb_iter *const it = remixdb_iter_create(r);
    uint32_t nr = 0, len;
    char key[8];
    for (remixdb_iter_seek(it, NULL, 0); remixdb_iter_valid(it); remixdb_iter_skip1(it)) {
      CHILD(remixdb_iter_peek(it, key, &len, NULL, NULL) && len == 4);
      nr++;
    }
    CHILD(nr == 1000 && remixdb_iter_status(it) == REMIXDB_OK);
    REFUSED(remixdb_probe(t.r, "a", 1));
    const pid_t own = fork();  // a grandchild may not use the stores of the child
    CHILD(own >= 0);
    if (own == 0) {
      REFUSED(remixdb_probe(r, "a", 1));
      REFUSED(remixdb_close(x));
      _exit(0);
    }
    int st;
    CHILD(waitpid(own, &st, 0) == own && WIFEXITED(st) && WEXITSTATUS(st) == 0);
    remixdb_iter_destroy(it);
    remixdb_unref(r);
    remixdb_close(x);
    CHILD(remixdb_errcode() == REMIXDB_OK);
    _exit(0);
  }
  ended_well(pid);
  end(&t);
}

// ---- the lock

// A process that has a store open makes a child, and dies. The child lives on, and has not the lock.
static void lock_goes(bool read_only) {
  int hold[2], made[2];
  char byte;
  CHECK(pipe(hold) == 0 && pipe(made) == 0);
  const pid_t pid = child();
  if (pid == 0) {
    struct remixdb_opts o = opts();
    o.read_only = read_only;
    CHILD(remixdb_open_opts(dir, &o) != NULL);
    const pid_t grandchild = fork();
    CHILD(grandchild >= 0);
    if (grandchild == 0) {
      (void)close(hold[1]);
      CHILD(write(made[1], "m", 1) == 1);
      _exit(read(hold[0], &byte, 1) == 0 ? 0 : 1);  // until the test closes its end
    }
    CHILD(read(made[0], &byte, 1) == 1 && write(made[1], "m", 1) == 1);
    (void)kill(getpid(), SIGKILL);
  }
  int st;
  while (waitpid(pid, &st, 0) < 0) CHECK(errno == EINTR);
  CHECK(WIFSIGNALED(st) && WTERMSIG(st) == SIGKILL);
  CHECK(read(made[0], &byte, 1) == 1);
  struct xdb *const x = open_at(dir);
  CHECK(x != NULL);
  remixdb_close(x);
  for (int i = 0; i < 2; i++) {
    (void)close(hold[i]);
    (void)close(made[i]);
  }
}

static void test_lock(void **state) {
  (void)state;
  struct xdb *const x = open_at(dir);
  CHECK(x != NULL);
  remixdb_close(x);
  lock_goes(false);
  lock_goes(true);
}

// Stores are opened and closed in one thread, so that descriptors come and go, while another makes children: no child
// has a lock, and none closes a descriptor of others.
static void *opener(void *arg) {
  while (!atomic_load(&stop)) {
    struct xdb *const x = open_at(arg);
    THREAD_CHECK(x);
    remixdb_close(x);
  }
  return NULL;
}

static void test_open_and_fork(void **state) {
  (void)state;
  pthread_t threads[2];
  static char paths[2][600];
  const int mine = open("/dev/null", O_RDONLY);
  atomic_store(&stop, false);
  for (int i = 0; i < 2; i++) {
    (void)snprintf(paths[i], sizeof(paths[i]), "%s/%d", dir, i);
    CHECK(thread_start(&threads[i], opener, paths[i], "opener") == REMIXDB_OK);
  }
  int hold[2];
  char byte;
  pid_t pids[40];
  CHECK(mine >= 0 && pipe(hold) == 0);
  for (uint32_t n = 0; n < 40; n++) {
    pids[n] = child();
    if (pids[n] != 0) continue;
    (void)close(hold[1]);
    _exit(fcntl(mine, F_GETFD) != -1 && read(hold[0], &byte, 1) == 0 ? 0 : 1);
  }
  atomic_store(&stop, true);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < 2; i++) {  // the children live
    struct xdb *const x = open_at(paths[i]);
    CHECK(x != NULL);
    remixdb_close(x);
  }
  (void)close(hold[1]);
  for (uint32_t n = 0; n < 40; n++) ended_well(pids[n]);
  (void)close(hold[0]);
  (void)close(mine);
}

// While a lock is being taken no child is made.
static _Atomic bool begins, made;

static void *forker(void *arg) {
  atomic_store(&begins, true);
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  atomic_store(&made, true);
  *(pid_t *)arg = pid;
  return NULL;
}

static void test_held(void **state) {
  (void)state;
  pthread_t t;
  pid_t pid = -1;
  OK(fork_watch());
  OK(fork_watch());
  (void)fflush(NULL);
  fork_hold();
  CHECK(thread_start(&t, forker, &pid, "forker") == REMIXDB_OK);
  while (!atomic_load(&begins)) time_sleep_ns(1000000);
  time_sleep_ns(100000000);
  const bool early = atomic_load(&made);
  fork_release();
  pthread_join(t, NULL);
  CHECK(!early && atomic_load(&made) && pid > 0);
  ended_well(pid);
}

// ---- a merge whose function forks

static _Atomic pid_t forked;

static enum remixdb_merge_op forks(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  (void)v0, (void)v0len, (void)priv;
  atomic_store(&forked, fork());
  *v1 = forked == 0 ? "child" : "parent";
  *v1len = 6;
  return REMIXDB_MERGE_PUT;
}

static void test_merge(void **state) {
  (void)state;
  struct things t;
  make(&t);
  (void)fflush(NULL);
  const bool merged = remixdb_merge(t.r, "m", 1, forks, NULL);
  if (atomic_load(&forked) == 0) _exit(!merged && remixdb_errcode() == REMIXDB_INVALID ? 0 : 1);
  CHECK(merged);
  ended_well(forked);
  CHECK(remixdb_sync(t.r));
  end(&t);
  make(&t);
  char buf[16];
  uint32_t len;
  CHECK(remixdb_getn(t.r, "m", 1, buf, sizeof(buf), &len) && len == 6 && memcmp(buf, "parent", 6) == 0);
  end(&t);
}

int main(void) {
  hang_alarm();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_calls, setup, teardown),
      cmocka_unit_test_setup_teardown(test_exit, setup, teardown),
      cmocka_unit_test_setup_teardown(test_busy, setup, teardown),
      cmocka_unit_test_setup_teardown(test_own_store, setup, teardown),
      cmocka_unit_test_setup_teardown(test_lock, setup, teardown),
      cmocka_unit_test_setup_teardown(test_open_and_fork, setup, teardown),
      cmocka_unit_test_setup_teardown(test_held, setup, teardown),
      cmocka_unit_test_setup_teardown(test_merge, setup, teardown),
  };
  return cmocka_run_group_tests_name("fork", tests, NULL, NULL);
}
