// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/thread.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "table/fdpool.h"
#include "tests/lib/slow.h"
#include "tests/lib/temp.h"

#define FILES 16
#define LONG_NS 600000000000ull  // no thread is held up for so long, however slow the machine is
#define SHORT_NS 50000000ull

static char dir[ENV_PATH_MAX];
static char paths[FILES][ENV_PATH_MAX + 16];
static struct fdpool_file files[FILES];

// ---- an env that counts descriptors and refuses them

static struct env_ops fake_ops;
static struct env fake = {.ops = &fake_ops};
static _Atomic int fake_limit;    // descriptors the "system" gives out
static _Atomic int fake_refusal;  // its error
static _Atomic int fake_open_nr, fake_open_max;
static _Atomic int fake_opens;   // calls that succeeded
static _Atomic int fake_eintrs;  // opens to interrupt
static _Atomic int fake_meet;    // opens that wait until so many threads are in them

static struct env_dir held;  // the directory of the files

static int fake_open(struct env *e, int at, const char *path, unsigned flags) {
  if (atomic_load(&fake_eintrs) > 0) {
    atomic_fetch_sub(&fake_eintrs, 1);
    return -EINTR;
  }
  if (atomic_load(&fake_meet) > 0) {
    atomic_fetch_sub(&fake_meet, 1);
    while (atomic_load(&fake_meet) > 0) time_sleep_ns(10000);
  }
  const int nr = atomic_fetch_add(&fake_open_nr, 1) + 1;
  if (nr > atomic_load(&fake_limit)) {
    atomic_fetch_sub(&fake_open_nr, 1);
    return -atomic_load(&fake_refusal);
  }
  const int fd = env_posix()->ops->open(e, at, path, flags);
  if (fd < 0) {
    atomic_fetch_sub(&fake_open_nr, 1);
    return fd;
  }
  int max = atomic_load(&fake_open_max);
  while (nr > max && !atomic_compare_exchange_weak(&fake_open_max, &max, nr)) {}
  atomic_fetch_add(&fake_opens, 1);
  return fd;
}

static int fake_close(struct env *e, int fd) {
  const int rc = env_posix()->ops->close(e, fd);
  if (rc == 0) atomic_fetch_sub(&fake_open_nr, 1);
  return rc;
}

static _Atomic int fake_advices, fake_passing;  // advices on a whole file: for random reads, and for sequential ones
static int fake_advise(struct env *e, int fd, uint64_t off, uint64_t len, enum env_advice advice) {
  (void)e, (void)fd;
  if (off == 0 && len == 0 && advice == ENV_RANDOM) atomic_fetch_add(&fake_advices, 1);
  if (off == 0 && len == 0 && advice == ENV_SEQUENTIAL) atomic_fetch_add(&fake_passing, 1);
  return -EIO;
}

static int setup(void **state) {
  (void)state;
  if (!temp_make(dir, "fdpool")) return -1;
  fake_ops = *env_posix()->ops;
  if (env_dir_open(ENV_PATHS(env_posix()), dir, &held) != REMIXDB_OK) return -1;
  fake_ops.open = fake_open;
  fake_ops.close = fake_close;
  fake_ops.advise = fake_advise;
  for (uint32_t i = 0; i < FILES; i++) {
    (void)snprintf(paths[i], sizeof(paths[i]), "%s/%u", dir, i);
    FILE *const f = fopen(paths[i], "w");
    if (!f || fwrite(&i, sizeof(i), 1, f) != 1 || fclose(f) != 0) return -1;
  }
  return 0;
}

static int teardown(void **state) {
  (void)state;
  env_dir_close(&held);
  for (uint32_t i = 0; i < FILES; i++) (void)unlink(paths[i]);
  return rmdir(dir);
}

static struct fdpool *make_pool(uint32_t max_open, uint32_t nr_files) {
  struct fdpool *p = NULL;
  atomic_store(&fake_limit, 1000);
  atomic_store(&fake_refusal, EMFILE);
  atomic_store(&fake_open_max, 0);
  atomic_store(&fake_opens, 0);
  atomic_store(&fake_advices, 0);
  atomic_store(&fake_passing, 0);
  assert_int_equal(atomic_load(&fake_open_nr), 0);
  OK(fdpool_create(&fake, max_open, &p));
  for (uint32_t i = 0; i < nr_files; i++) fdpool_add(p, &files[i], &held, paths[i], ENV_READ);
  assert_int_equal(fdpool_open_count(p), 0);
  return p;
}

static void drop_pool(struct fdpool *p, uint32_t nr_files) {
  for (uint32_t i = 0; i < nr_files; i++) fdpool_remove(&files[i]);
  assert_int_equal(fdpool_open_count(p), 0);
  assert_int_equal(atomic_load(&fake_open_nr), 0);
  // once for each descriptor
  assert_int_equal(atomic_load(&fake_advices) + atomic_load(&fake_passing), atomic_load(&fake_opens));
  fdpool_destroy(p);
}

static bool is_file(int fd, uint32_t i) {
  uint32_t id = UINT32_MAX;
  return pread(fd, &id, sizeof(id), 0) == (ssize_t)sizeof(id) && id == i;
}

static int take(uint32_t i) {
  int fd = -1;
  OK(fdpool_acquire(&files[i], &fd));
  assert_true(is_file(fd, i));
  return fd;
}

static void use(uint32_t i) {
  (void)take(i);
  fdpool_release(&files[i]);
}

// Whether the file has to be opened for a use.
static bool opens(uint32_t i) {
  const int before = atomic_load(&fake_opens);
  use(i);
  return atomic_load(&fake_opens) != before;
}

static bool is_open(uint32_t i) { return atomic_load(&files[i].state) >> 32 != 0; }

static void test_clock(void **state) {
  (void)state;
  struct fdpool *const p = make_pool(3, 5);
  for (uint32_t i = 0; i < 3; i++) assert_true(opens(i));
  for (uint32_t i = 0; i < 3; i++) assert_false(opens(i));
  assert_true(opens(3));  // all have been used: the first is closed, and the others stand there as not used since
  assert_false(is_open(0));
  assert_false(opens(1));
  assert_true(opens(4));  // 2 goes, as 1 was used since
  assert_true(is_open(1) && !is_open(2) && is_open(3));
  assert_int_equal(fdpool_open_count(p), 3);
  for (uint32_t n = 0; n < 20; n++) {  // a file that is used in every round stays open
    assert_false(opens(1));
    use((uint32_t[]){0, 2, 3, 4}[n % 4]);
  }
  assert_int_equal(atomic_load(&fake_open_max), 3);
  fdpool_remove(&files[1]);  // one that is open
  assert_int_equal(fdpool_open_count(p), 2);
  fdpool_add(p, &files[1], &held, paths[1], ENV_READ);
  drop_pool(p, 5);
  fdpool_destroy(NULL);
}

static _Atomic int wrong;

static void *take_third(void *arg) {
  int fd = -1;
  if (fdpool_acquire(&files[2], &fd) != REMIXDB_OK || !is_file(fd, 2)) atomic_fetch_add(&wrong, 1);
  atomic_store((_Atomic int *)arg, 1);
  return NULL;
}

static void test_in_use(void **state) {
  (void)state;
  struct fdpool *const p = make_pool(2, 5);
  const int a = take(0), b = take(1);
  int fd = 0;
  assert_false(fdpool_try_acquire(&files[2], &fd));
  assert_int_equal(fd, -1);
  assert_true(fdpool_try_acquire(&files[1], &fd));  // a second user of an open file needs no place
  assert_int_equal(fd, b);
  // a caller that can wait gets the place that is given back
  pthread_t t;
  _Atomic int done;
  atomic_init(&done, 0);
  atomic_store(&wrong, 0);
  OK(thread_start(&t, take_third, &done, "take"));
  fdpool_release(&files[1]);
  time_sleep_ns(20000000);
  assert_int_equal(atomic_load(&done), 0);
  assert_true(is_file(a, 0) && is_file(b, 1));
  fdpool_release(&files[1]);
  (void)pthread_join(t, NULL);
  assert_int_equal(atomic_load(&wrong), 0);
  assert_int_equal(fdpool_open_count(p), 2);
  assert_int_equal(atomic_load(&fake_open_max), 2);
  fdpool_release(&files[0]);
  fdpool_release(&files[2]);
  assert_int_equal(fdpool_open_count(p), 2);
  assert_false(opens(0));
  assert_false(opens(2));
  drop_pool(p, 5);
}

// Two that hold all there is wait for each other: the bound is passed, and kept again afterwards.
static void test_patience(void **state) {
  (void)state;
  struct fdpool *const p = make_pool(2, 4);
  (void)take(0);
  (void)take(1);
  atomic_store(&fdpool_patience_ns, SHORT_NS);
  const uint64_t began = time_ns();
  (void)take(2);
  assert_true(time_ns() - began >= SHORT_NS);
  atomic_store(&fdpool_patience_ns, LONG_NS);
  assert_int_equal(fdpool_open_count(p), 3);
  fdpool_release(&files[2]);
  assert_int_equal(fdpool_open_count(p), 2);
  fdpool_release(&files[0]);
  fdpool_release(&files[1]);
  drop_pool(p, 4);
}

static struct fdpool *reserve_pool;

static void *reserve(void *arg) {
  fdpool_reserve(reserve_pool);
  atomic_store((_Atomic int *)arg, 1);
  return NULL;
}

static void test_reserve(void **state) {
  (void)state;
  struct fdpool *const p = reserve_pool = make_pool(4, 5);
  for (uint32_t i = 0; i < 4; i++) use(i);
  fdpool_reserve(p);
  assert_int_equal(fdpool_open_count(p), 4);
  assert_int_equal(atomic_load(&fake_open_nr), 3);  // one was closed for it
  fdpool_reserve(p);
  assert_int_equal(atomic_load(&fake_open_nr), 2);
  // half is the most; readers share the rest
  pthread_t t;
  _Atomic int done;
  atomic_init(&done, 0);
  OK(thread_start(&t, reserve, &done, "reserve"));
  (void)take(0);
  (void)take(1);
  int fd;
  assert_false(fdpool_try_acquire(&files[2], &fd));
  fdpool_release(&files[0]);
  use(2);
  time_sleep_ns(20000000);
  assert_int_equal(atomic_load(&done), 0);
  fdpool_unreserve(p);
  (void)pthread_join(t, NULL);
  assert_int_equal(atomic_load(&done), 1);
  fdpool_release(&files[1]);
  fdpool_unreserve(p);
  fdpool_unreserve(p);
  for (uint32_t i = 0; i < 4; i++) use(i);
  assert_int_equal(fdpool_open_count(p), 4);
  assert_int_equal(atomic_load(&fake_open_max), 4);
  drop_pool(p, 5);
}

// Held places are a quarter at most, and with the reserved ones half. A caller that reserves a place gets one beside
// them.
static void test_hold(void **state) {
  (void)state;
  struct fdpool *const p = make_pool(8, 8);
  for (uint32_t i = 0; i < 8; i++) use(i);
  assert_true(fdpool_hold(p, 2));
  assert_int_equal(atomic_load(&fake_open_nr), 6);  // two were closed for it
  assert_false(fdpool_hold(p, 1));
  fdpool_reserve(p);
  fdpool_reserve(p);
  assert_int_equal(fdpool_open_count(p), 8);
  fdpool_unhold(p, 1);
  assert_false(fdpool_hold(p, 2));
  assert_true(fdpool_hold(p, 1));
  fdpool_unhold(p, 2);
  fdpool_reserve(p);
  assert_false(fdpool_hold(p, 2));  // half are reserved but for one
  assert_true(fdpool_hold(p, 1));
  fdpool_unhold(p, 1);
  for (uint32_t i = 0; i < 3; i++) fdpool_unreserve(p);
  // none is free, and the one that was taken goes back
  for (uint32_t i = 0; i < 7; i++) (void)take(i);
  assert_false(fdpool_hold(p, 2));
  assert_int_equal(fdpool_open_count(p), 7);
  for (uint32_t i = 0; i < 7; i++) fdpool_release(&files[i]);
  // under a smaller bound, others get their places beside all that are held
  assert_true(fdpool_hold(p, 2) && fdpool_holds_fit(p));
  fdpool_set_max(p, 2);
  assert_false(fdpool_holds_fit(p));
  fdpool_reserve(p);
  use(0);
  use(1);
  assert_int_equal(fdpool_open_count(p), 4);
  fdpool_unhold(p, 1);
  fdpool_unhold(p, 1);
  assert_true(fdpool_holds_fit(p));
  fdpool_unreserve(p);
  use(2);
  assert_true(fdpool_open_count(p) <= 2);
  drop_pool(p, 8);
}

static void test_refused(void **state) {
  (void)state;
  static const int refusals[] = {EMFILE, ENFILE};
  for (size_t k = 0; k < 2; k++) {
    struct fdpool *const p = make_pool(10, 6);
    atomic_store(&fake_limit, 3);
    atomic_store(&fake_refusal, refusals[k]);
    for (uint32_t i = 0; i < 6; i++) use(i);  // each in place of an unused one
    assert_int_equal(fdpool_open_count(p), 3);
    (void)take(0);
    (void)take(1);
    (void)take(2);
    int fd = 0;
    FAILS(fdpool_acquire(&files[3], &fd), REMIXDB_NOMEM);
    assert_int_equal(fd, -1);
    assert_non_null(strstr(err_msg(), paths[3]));
    assert_int_equal(fdpool_open_count(p), 3);
    fdpool_release(&files[1]);
    use(3);
    fdpool_release(&files[0]);
    fdpool_release(&files[2]);
    // A lower limit of the system's: all unused ones are closed before giving up.
    atomic_store(&fake_limit, 0);
    FAILS(fdpool_acquire(&files[5], &fd), REMIXDB_NOMEM);
    assert_int_equal(fdpool_open_count(p), 0);
    atomic_store(&fake_limit, 3);
    use(5);
    drop_pool(p, 6);
  }
}

static void test_failures(void **state) {
  (void)state;
  struct fdpool *const p = make_pool(2, 3);
  struct fdpool_file gone;
  char path[2 * ENV_PATH_MAX];
  (void)snprintf(path, sizeof(path), "%s/none", dir);
  fdpool_add(p, &gone, &held, path, ENV_READ);
  use(0);
  int fd = 0;
  FAILS(fdpool_acquire(&gone, &fd), REMIXDB_IO);
  assert_int_equal(fd, -1);
  assert_non_null(strstr(err_msg(), path));
  assert_int_equal(fdpool_open_count(p), 1);
  // Another reason than the number of descriptors costs no other file its own.
  atomic_store(&fake_limit, 1);
  atomic_store(&fake_refusal, EACCES);
  FAILS(fdpool_acquire(&files[1], &fd), REMIXDB_IO);
  assert_false(opens(0));
  atomic_store(&fake_limit, 1000);
  atomic_store(&fake_eintrs, 3);
  use(1);
  assert_int_equal(atomic_load(&fake_eintrs), 0);
  fdpool_remove(&gone);
  drop_pool(p, 3);
}

static bool deny(size_t size) {
  (void)size;
  return false;
}

static void test_nomem(void **state) {
  (void)state;
  struct fdpool *p = NULL;
  atomic_store(&mem_fault, deny);
  const enum remixdb_status s = fdpool_create(&fake, 1, &p);
  atomic_store(&mem_fault, NULL);
  FAILS(s, REMIXDB_NOMEM);
  assert_null(p);
}

// ---- threads

#define THREADS 4

static void *open_same(void *arg) {
  int fd = -1;
  (void)arg;
  if (fdpool_acquire(&files[0], &fd) != REMIXDB_OK || !is_file(fd, 0)) atomic_fetch_add(&wrong, 1);
  return NULL;
}

// All of them find the file closed and open it; one descriptor stays.
static void test_open_together(void **state) {
  (void)state;
  struct fdpool *const p = make_pool(10, 1);
  pthread_t t[THREADS];
  atomic_store(&wrong, 0);
  atomic_store(&fake_meet, THREADS);
  for (int i = 0; i < THREADS; i++) OK(thread_start(&t[i], open_same, NULL, "open"));
  for (int i = 0; i < THREADS; i++) (void)pthread_join(t[i], NULL);
  assert_int_equal(atomic_load(&wrong), 0);
  assert_int_equal(atomic_load(&fake_opens), THREADS);
  assert_int_equal(atomic_load(&fake_open_nr), 1);
  assert_int_equal(fdpool_open_count(p), 1);
  for (int i = 0; i < THREADS; i++) fdpool_release(&files[0]);
  drop_pool(p, 1);
}

static void *hammer(void *arg) {
  uint64_t seed = (uintptr_t)arg;
  for (uint32_t n = 0; n < 3000; n++) {
    const uint32_t i = (uint32_t)(rng_next(&seed) % FILES), k = (uint32_t)(rng_next(&seed) % FILES);
    int fd_i = -1, fd_k = -1;
    if (fdpool_acquire(&files[i], &fd_i) != REMIXDB_OK || !is_file(fd_i, i)) atomic_fetch_add(&wrong, 1);
    const bool both = fdpool_try_acquire(&files[k], &fd_k);
    if (both != (fd_k >= 0) || (both && !is_file(fd_k, k))) atomic_fetch_add(&wrong, 1);
    fdpool_release(&files[i]);
    if (both && !is_file(fd_k, k)) atomic_fetch_add(&wrong, 1);
    if (both) fdpool_release(&files[k]);
  }
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  struct fdpool *const p = make_pool(4, FILES);
  pthread_t t[THREADS];
  atomic_store(&wrong, 0);
  for (int i = 0; i < THREADS; i++) OK(thread_start(&t[i], hammer, (void *)(uintptr_t)(i + 1), "hammer"));
  for (int i = 0; i < THREADS; i++) (void)pthread_join(t[i], NULL);
  assert_int_equal(atomic_load(&wrong), 0);
  assert_true(fdpool_open_count(p) <= 4);
  assert_true(atomic_load(&fake_open_max) <= 4);
  drop_pool(p, FILES);
}

// ---- nobody sleeps while there is something to be had

static void *wait_file(void *arg) {
  int fd = -1;
  if (fdpool_acquire(&files[2], &fd) != REMIXDB_OK) atomic_fetch_add(&wrong, 1);
  atomic_store((_Atomic uint64_t *)arg, time_ns());
  fdpool_release(&files[2]);
  return NULL;
}

static void *wait_reserve(void *arg) {
  fdpool_reserve(reserve_pool);
  atomic_store((_Atomic uint64_t *)arg, time_ns());
  fdpool_unreserve(reserve_pool);
  return NULL;
}

static void give_release(void) { fdpool_release(&files[0]); }
static void give_unreserve(void) { fdpool_unreserve(reserve_pool); }

// Whether a waiter gets a place that is given back at once, not when its patience has ended.
static bool woken(void *(*waiter)(void *), void (*give)(void)) {
  pthread_t t;
  _Atomic uint64_t got;
  atomic_init(&got, 0);
  OK(thread_start(&t, waiter, &got, "wait"));
  time_sleep_ns(50000000);
  assert_int_equal(atomic_load(&got), 0);
  const uint64_t gave = time_ns();
  give();
  (void)pthread_join(t, NULL);
  return atomic_load(&got) - gave < LONG_NS / 2;
}

static void test_woken(void **state) {
  (void)state;
  struct fdpool *const p = reserve_pool = make_pool(2, 3);
  atomic_store(&wrong, 0);
  (void)take(0);
  (void)take(1);
  assert_true(woken(wait_file, give_release));
  fdpool_release(&files[1]);
  fdpool_reserve(p);
  assert_true(woken(wait_reserve, give_unreserve));
  fdpool_reserve(p);
  (void)take(0);
  assert_true(woken(wait_file, give_unreserve));
  fdpool_release(&files[0]);
  assert_int_equal(atomic_load(&wrong), 0);
  assert_int_equal(atomic_load(&fake_open_max), 2);
  drop_pool(p, 3);
}

#define MEETINGS (20000u / SLOW)
static _Atomic uint32_t arrived, slept;

// One place for two callers that come at the same time, once a meeting.
static void *meet(void *arg) {
  const uint32_t i = (uint32_t)(uintptr_t)arg;
  uint64_t seed = i;
  for (uint32_t n = 1; n <= MEETINGS && !atomic_load(&slept); n++) {
    int fd = -1;
    atomic_fetch_add(&arrived, 1);
    while (atomic_load(&arrived) < 2 * n && !atomic_load(&slept)) (void)sched_yield();
    for (uint64_t k = rng_next(&seed) % 1000; k > 0; k--) (void)atomic_load(&arrived);
    const uint64_t began = time_ns();
    if (fdpool_acquire(&files[i], &fd) != REMIXDB_OK) atomic_fetch_add(&wrong, 1);
    for (uint64_t k = rng_next(&seed) % 1000; k > 0; k--) (void)atomic_load(&arrived);
    if (time_ns() - began >= LONG_NS) atomic_fetch_add(&slept, 1);
    fdpool_release(&files[i]);
  }
  return NULL;
}

static void test_meetings(void **state) {
  (void)state;
  struct fdpool *const p = make_pool(2, 3);
  pthread_t t[2];
  atomic_store(&wrong, 0);
  atomic_store(&arrived, 0);
  atomic_store(&slept, 0);
  (void)take(0);
  for (uintptr_t i = 0; i < 2; i++) OK(thread_start(&t[i], meet, (void *)(i + 1), "meet"));
  for (int i = 0; i < 2; i++) (void)pthread_join(t[i], NULL);
  fdpool_release(&files[0]);
  assert_int_equal(atomic_load(&wrong), 0);
  assert_int_equal(atomic_load(&slept), 0);
  assert_int_equal(atomic_load(&fake_open_max), 2);
  drop_pool(p, 3);
}

// A thread that passes through files, as many as it gets, can still acquire others, also beside as many builders as
// there may be: nobody waits.
static void test_passing(void **state) {
  (void)state;
  for (uint32_t max_open = 2; max_open <= 9; max_open++) {
    struct fdpool *const p = make_pool(max_open, FILES);
    int fds[FILES], fd;
    uint32_t nr = 0;
    assert_true(fdpool_try_acquire(&files[0], &fd));
    while (nr < FILES && fdpool_open_passing(&files[0], false, &fds[nr])) {
      assert_true(fds[nr] != fd && is_file(fds[nr], 0));
      nr++;
    }
    fdpool_release(&files[0]);
    assert_int_equal(nr, max_open / 4);
    assert_int_equal(atomic_load(&fake_passing), nr);
    const uint32_t reserved = (max_open + 1) / 2;
    for (uint32_t i = 0; i < reserved; i++) fdpool_reserve(p);
    for (uint32_t i = 0; i < FILES; i++) {
      assert_true(fdpool_try_acquire(&files[i], &fd));
      assert_true(is_file(fd, i));
      fdpool_release(&files[i]);
    }
    for (uint32_t i = 0; i < reserved; i++) fdpool_unreserve(p);
    for (uint32_t i = 0; i < nr; i++) fdpool_close_passing(&files[0], fds[i]);
    if (max_open >= 4) {  // a place that is given back can be taken again; one that fails is given back
      atomic_store(&fake_limit, 0);
      assert_false(fdpool_open_passing(&files[1], false, &fds[0]));
      atomic_store(&fake_limit, 1000);
      assert_true(fdpool_open_passing(&files[1], false, &fds[0]));
      assert_true(is_file(fds[0], 1));
      fdpool_close_passing(&files[1], fds[0]);
    }
    assert_true(atomic_load(&fake_open_max) <= (int)max_open);
    drop_pool(p, FILES);
  }
}

// A thread that has all places gets one more without waiting. The pool comes back to its bound, and others wait as long
// as it is beyond.
static void test_beyond(void **state) {
  (void)state;
  struct fdpool *const p = make_pool(2, 4);
  int fd;
  (void)take(0);
  (void)take(1);
  OK(fdpool_acquire_beyond(&files[1], &fd));
  assert_int_equal(fdpool_open_count(p), 2);  // it was open
  fdpool_release(&files[1]);
  OK(fdpool_acquire_beyond(&files[2], &fd));
  assert_true(is_file(fd, 2));
  assert_int_equal(fdpool_open_count(p), 3);
  assert_false(fdpool_try_acquire(&files[3], &fd));
  fdpool_release(&files[2]);
  assert_int_equal(fdpool_open_count(p), 2);
  assert_true(is_open(0) && is_open(1) && !is_open(2));
  atomic_store(&fake_limit, 0);
  FAILS(fdpool_acquire_beyond(&files[3], &fd), REMIXDB_NOMEM);
  atomic_store(&fake_limit, 1000);
  assert_int_equal(fdpool_open_count(p), 2);
  fdpool_release(&files[0]);
  OK(fdpool_acquire_beyond(&files[3], &fd));  // there is a place
  assert_int_equal(fdpool_open_count(p), 2);
  fdpool_release(&files[3]);
  fdpool_release(&files[1]);
  drop_pool(p, 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_clock),    cmocka_unit_test(test_in_use), cmocka_unit_test(test_patience),
      cmocka_unit_test(test_reserve),  cmocka_unit_test(test_hold),   cmocka_unit_test(test_refused),
      cmocka_unit_test(test_failures), cmocka_unit_test(test_nomem),  cmocka_unit_test(test_open_together),
      cmocka_unit_test(test_threads),  cmocka_unit_test(test_woken),  cmocka_unit_test(test_meetings),
      cmocka_unit_test(test_passing),  cmocka_unit_test(test_beyond),
  };
  hang_alarm();
  atomic_store(&fdpool_patience_ns, LONG_NS);
  return cmocka_run_group_tests_name("fdpool", tests, setup, teardown);
}
