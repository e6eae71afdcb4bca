// SPDX-License-Identifier: Apache-2.0
//
// A thread that wakes others holds no lock that others may need, because a thread that is woken often takes the
// processor from the one that wakes it. And it does not wait for a thread that was woken earlier and has no processor.
#include "base/thread.h"
#include "tests/lib/wakes.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/budget.h"
#include "log/wal.h"
#include "table/cache.h"
#include "table/fdpool.h"
#include "tests/lib/temp.h"

#define LOST_NS 300000000000ull  // a wake-up that has not come by then is lost, however slow the machine is

static _Atomic uint32_t wrong;
static void right(bool is) { atomic_fetch_add(&wrong, !is); }

static int begin(void **state) {
  (void)state;
  atomic_store(&wrong, 0);
  return 0;
}

static pthread_t started(void *(*fn)(void *), void *arg) {
  pthread_t t;
  assert_true(wakes_asleep(&t, fn, arg));
  return t;
}

// ---- a thread that waits and does not get on, as if it had no processor: it is in the handler of a signal

static _Atomic bool go_on, inside;

static void hold_here(int nr) {
  (void)nr;
  atomic_store(&inside, true);
  while (!atomic_load(&go_on)) {
    const struct timespec nap = {.tv_nsec = 1000000};
    (void)nanosleep(&nap, NULL);
  }
}

static bool comes(_Atomic bool *what) {
  const uint64_t until = time_ns() + LOST_NS;
  while (!atomic_load(what) && time_ns() < until) time_sleep_ns(100000);
  return atomic_load(what);
}

struct waking {
  void (*wakes)(void *arg);
  void *arg;
  _Atomic bool done;
};

static void *wake_thrice(void *arg) {
  struct waking *const k = arg;
  for (uint32_t i = 0; i < 3; i++) k->wakes(k->arg);
  atomic_store(&k->done, true);
  return NULL;
}

#if defined(__linux__)
// `waits` returns after `ends`. Meanwhile `wakes` wakes the threads that are in it, again and again.
static void check_stuck(void *(*waits)(void *arg), void (*wakes)(void *arg), void (*ends)(void *arg), void *arg) {
  struct sigaction act = {.sa_handler = hold_here}, before;
  struct waking k = {.wakes = wakes, .arg = arg};
  atomic_store(&go_on, false);
  atomic_store(&inside, false);
  assert_int_equal(sigaction(SIGUSR1, &act, &before), 0);
  const pthread_t stuck = started(waits, arg);
  assert_int_equal(pthread_kill(stuck, SIGUSR1), 0);
  assert_true(comes(&inside));
  wakes(arg);
  const pthread_t other = started(waits, arg), waker = started(wake_thrice, &k);
  const bool done = comes(&k.done);
  atomic_store(&go_on, true);
  thread_join(waker);
  ends(arg);
  thread_join(other);
  thread_join(stuck);
  assert_int_equal(sigaction(SIGUSR1, &before, NULL), 0);
  assert_true(done);
}
#else  // E4 of base/eventcount.h does not hold
static void check_stuck(void *(*waits)(void *arg), void (*wakes)(void *arg), void (*ends)(void *arg), void *arg) {
  (void)waits, (void)wakes, (void)hold_here, (void)comes, (void)wake_thrice;
  ends(arg);
}
#endif

// ---- the budget of work

static void *work_more(void *arg) {
  budget_work_begin(arg, 90);
  budget_work_end(arg, 90);
  return NULL;
}

static void work_little(void *arg) {
  budget_work_begin(arg, 1);
  budget_work_end(arg, 1);
}

static void work_half_ends(void *arg) { budget_work_end(arg, 50); }

static void test_budget(void **state) {
  (void)state;
  struct budget b;
  budget_init(&b);
  atomic_store(&b.work_most, 100);
  budget_work_begin(&b, 50);
  const pthread_t t = started(work_more, &b);
  wakes_begin(work_little, &b);
  budget_work_end(&b, 50);
  thread_join(t);
  assert_true(wakes_end() >= 1);
  budget_work_begin(&b, 50);
  check_stuck(work_more, work_little, work_half_ends, &b);
  budget_fini(&b);
}

// ---- descriptors

static struct fdpool_file files[3];

static void *use_third(void *arg) {
  int fd;
  (void)arg;
  right(fdpool_acquire(&files[2], &fd) == REMIXDB_OK);
  fdpool_release(&files[2]);
  return NULL;
}

static void *reserve(void *arg) {
  fdpool_reserve(arg);
  fdpool_unreserve(arg);
  return NULL;
}

static void same_most(void *arg) { fdpool_set_max(arg, 2); }
static void second_free(void *arg) {
  (void)arg;
  fdpool_release(&files[1]);
}

static void count_open(void *arg) { right(fdpool_open_count(arg) <= 3); }

static void test_fdpool(void **state) {
  (void)state;
  char dir[TEMP_DIR];
  static const char *const names[3] = {"0", "1", "2"};
  struct env_dir held;
  struct fdpool *p;
  int fd;
  assert_true(temp_make(dir, "wakes"));
  atomic_store(&fdpool_patience_ns, 10 * LOST_NS);
  OK(env_dir_open(ENV_PATHS(env_posix()), dir, &held));
  OK(fdpool_create(env_posix(), 2, &p));
  for (uint32_t i = 0; i < 3; i++) {
    OK(env_open(&held, names[i], ENV_READ | ENV_WRITE | ENV_CREATE, &fd));
    env_close_quiet(env_posix(), fd);
    fdpool_add(p, &files[i], &held, names[i], ENV_READ);
  }
  for (uint32_t how = 0; how < 4; how++) {
    OK(fdpool_acquire(&files[0], &fd));
    if (how == 0 || how == 3) OK(fdpool_acquire(&files[1], &fd));
    else fdpool_reserve(p);
    const pthread_t t = started(how == 2 ? reserve : use_third, p);
    wakes_begin(count_open, p);
    if (how == 0) fdpool_release(&files[1]);
    else if (how == 3) fdpool_set_max(p, 3);
    else fdpool_unreserve(p);
    thread_join(t);
    assert_true(wakes_end() >= 1);
    if (how == 3) fdpool_release(&files[1]);
    fdpool_release(&files[0]);
  }
  fdpool_set_max(p, 2);
  OK(fdpool_acquire(&files[0], &fd));
  OK(fdpool_acquire(&files[1], &fd));
  check_stuck(use_third, same_most, second_free, p);
  fdpool_release(&files[0]);
  assert_int_equal(atomic_load(&wrong), 0);
  for (uint32_t i = 0; i < 3; i++) fdpool_remove(&files[i]);
  fdpool_destroy(p);
  env_dir_close(&held);
  assert_int_equal(remove_tree(dir), 0);
}

// ---- blocks that another thread reads

struct reading {
  struct epoch ep;
  struct epoch_slot slot;
  struct cache *cache;
  struct cache_table t;
  struct cache_block b;
  struct cache_fill f;     // the fill of block 10
  _Atomic uint32_t other;  // another block
};

static enum remixdb_status fill(void *arg, uint32_t block, uint32_t nr_pages, uint8_t *buf, bool own) {
  (void)arg, (void)own;
  memset(buf, (int)block, nr_pages * BLOCK_PAGE);
  return REMIXDB_OK;
}

static void get(struct reading *r, uint32_t block) {
  struct epoch_slot slot;
  struct cache_block b = {0};
  epoch_join(&r->ep, &slot);
  epoch_enter(&r->ep, &slot);
  right(cache_get(&r->t, block, 1, false, fill, r, &b) == REMIXDB_OK && b.data[0] == block);
  cache_block_drop(&r->t, &b);
  epoch_exit(&slot);
  cache_block_fini(&r->t, &b);
  epoch_leave(&r->ep, &slot);
}

static void *get_same(void *arg) {
  get(arg, 10);
  return NULL;
}

static void get_another(void *arg) { get(arg, 20); }

static void *get_other(void *arg) {
  struct reading *const r = arg;
  get(r, atomic_load(&r->other));
  return NULL;
}

static void fill_tenth(void *arg) {
  struct reading *const r = arg;
  right(fill(NULL, 10, 1, r->f.buf, false) == REMIXDB_OK);
  cache_fill_end(&r->t, 10, 1, &r->b, &r->f, true);
}

// Reads another block, for which a thread waits.
static void fill_other(void *arg) {
  struct reading *const r = arg;
  const uint32_t block = atomic_fetch_add(&r->other, 1) + 1;
  struct epoch_slot slot;
  struct cache_block b = {0};
  struct cache_fill f;
  pthread_t t;
  epoch_join(&r->ep, &slot);
  epoch_enter(&r->ep, &slot);
  right(cache_fill_begin(&r->t, block, 1, &b, &f) == CACHE_FILL_READ);
  right(wakes_asleep(&t, get_other, r));
  cache_fill_end(&r->t, block, 1, &b, &f, false);  // that thread reads it by itself
  (void)pthread_join(t, NULL);
  cache_block_drop(&r->t, &b);
  epoch_exit(&slot);
  cache_block_fini(&r->t, &b);
  epoch_leave(&r->ep, &slot);
}

static void test_cache(void **state) {
  (void)state;
  struct reading r = {.other = 30};
  epoch_init(&r.ep);
  epoch_join(&r.ep, &r.slot);
  OK(cache_create(256 * BLOCK_PAGE, 0, &r.ep, &r.cache));  // too small for two shards
  for (uint32_t how = 0; how < 3; how++) {
    OK(cache_table_init(&r.t, r.cache, 100, 1));
    epoch_enter(&r.ep, &r.slot);
    assert_int_equal(cache_fill_begin(&r.t, 10, 1, &r.b, &r.f), CACHE_FILL_READ);
    if (how < 2) {
      const pthread_t t = started(get_same, &r);
      OK(fill(NULL, 10, 1, r.f.buf, false));
      wakes_begin(get_another, &r);
      cache_fill_end(&r.t, 10, 1, &r.b, &r.f, how == 0);
      thread_join(t);
      assert_true(wakes_end() >= 1);
    } else {
      check_stuck(get_same, fill_other, fill_tenth, &r);
    }
    cache_block_drop(&r.t, &r.b);
    epoch_exit(&r.slot);
    cache_table_fini(&r.t);
  }
  assert_int_equal(atomic_load(&wrong), 0);
  cache_block_fini(&r.t, &r.b);
  cache_destroy(r.cache);
  epoch_leave(&r.ep, &r.slot);
  epoch_fini(&r.ep);
}

// ---- the log, on a disk that is slow while `slow` is set, and full while `full` is

static struct {
  char dir[TEMP_DIR];
  struct env_ops ops;
  struct env env;
  struct env_dir held;
  struct wal *w;
  _Atomic bool slow, full;
  _Atomic uint32_t inside;  // calls that wait until the disk is quick again
} l;

static void be_slow(void) {
  atomic_fetch_add(&l.inside, 1);
  while (atomic_load(&l.slow)) time_sleep_ns(100000);
}

static ssize_t slow_pwrite(struct env *e, int fd, const void *buf, size_t len, uint64_t off) {
  be_slow();
  return atomic_load(&l.full) ? -ENOSPC : env_posix()->ops->pwrite(e, fd, buf, len, off);
}

static int slow_sync(struct env *e, int fd) {
  be_slow();
  return env_posix()->ops->sync_data(e, fd);
}

static void wait_inside(void) {
  const uint64_t until = time_ns() + LOST_NS;
  while (!atomic_load(&l.inside) && time_ns() < until) time_sleep_ns(100000);
  assert_true(atomic_load(&l.inside) > 0);
}

static void disk_slow(void) {
  atomic_store(&l.inside, 0);
  atomic_store(&l.slow, true);
}

static int open_log(void **state) {
  (void)state;
  if (!temp_make(l.dir, "wakes")) return -1;
  atomic_store(&wrong, 0);
  l.ops = *env_posix()->ops;
  l.ops.pwrite = slow_pwrite;
  l.ops.sync_data = slow_sync;
  l.env = (struct env){.ops = &l.ops};
  if (env_dir_open(ENV_PATHS(&l.env), l.dir, &l.held) != REMIXDB_OK) return -1;
  const struct wal_opts o = {.dir = &l.held, .store_id = 1};
  return wal_open(&o, 1, 0, true, NULL, NULL, NULL, &l.w) == REMIXDB_OK ? 0 : -1;
}

static int close_log(void **state) {
  (void)state;
  const enum remixdb_status s = wal_close(l.w);
  env_dir_close(&l.held);
  return s == REMIXDB_OK && remove_tree(l.dir) == 0 ? 0 : -1;
}

static void put(uint32_t vlen) {
  static const uint8_t value[2 * WAL_BUF] = {0};
  const struct kv_rec *const rec = KV_REC(kref("key", 3), value, vlen, 0);
  uint64_t gen;
  const enum remixdb_status s = wal_begin(l.w, kv_rec_size(rec), &gen);
  right(s == REMIXDB_OK);
  if (s != REMIXDB_OK) return;
  (void)wal_put(l.w, rec);
  wal_end(l.w);
}

static void *put_one(void *arg) {
  (void)arg;
  put(10);
  return NULL;
}

// A record with a buffer of its own, which is written at once.
static void *put_large(void *arg) {
  (void)arg;
  put(WAL_BUF + 1000);
  return NULL;
}

static void *flush(void *arg) {
  right(wal_flush(l.w) == REMIXDB_OK);
  if (arg) atomic_store((_Atomic bool *)arg, true);
  return NULL;
}

static void *sync_all(void *arg) {
  (void)arg;
  right(wal_sync(l.w) == REMIXDB_OK);
  return NULL;
}

static void look_at_log(void *arg) {
  struct wal_stats st;
  (void)arg;
  wal_stats(l.w, &st);
}

// A thread does something slow, and another one waits for its end.
static void log_wakes(void *(*does)(void *arg), void *(*waits)(void *arg)) {
  disk_slow();
  pthread_t first, second;
  OK(thread_start(&first, does, NULL, "first"));
  wait_inside();
  second = started(waits, NULL);
  wakes_begin(look_at_log, NULL);
  atomic_store(&l.slow, false);
  thread_join(first);
  thread_join(second);
  assert_true(wakes_end() >= 1);
  assert_int_equal(atomic_load(&wrong), 0);
}

static void test_written(void **state) {
  (void)state;
  log_wakes(put_large, flush);
  put(10);
  log_wakes(flush, flush);
}

static void test_synced(void **state) {
  (void)state;
  put(10);
  log_wakes(sync_all, sync_all);
}

static void test_unheld(void **state) {
  (void)state;
  wal_hold(l.w);
  const pthread_t t = started(put_one, NULL);
  wakes_begin(look_at_log, NULL);
  wal_unhold(l.w);
  thread_join(t);
  assert_true(wakes_end() >= 1);
  assert_int_equal(atomic_load(&wrong), 0);
}

// An append writes a buffer before it gets room, for which a disk that was full had no place. It wakes those that wait
// for this buffer after its own record.
static void test_written_before_an_append(void **state) {
  (void)state;
  static _Atomic bool flushed;
  atomic_store(&l.full, true);
  put(10);
  FAILS(wal_flush(l.w), REMIXDB_NOSPACE);
  atomic_store(&l.full, false);
  atomic_store(&flushed, false);
  disk_slow();
  pthread_t first, second;
  OK(thread_start(&first, put_one, NULL, "first"));
  wait_inside();
  second = started(flush, &flushed);
  wakes_begin(look_at_log, NULL);
  atomic_store(&l.slow, false);
  thread_join(first);
  const uint64_t until = time_ns() + LOST_NS;
  while (!atomic_load(&flushed) && time_ns() < until) time_sleep_ns(100000);
  const bool lost = !atomic_load(&flushed);
  if (lost) OK(wal_flush(l.w));  // wakes it
  thread_join(second);
  assert_true(wakes_end() >= 1);
  assert_false(lost);
  assert_int_equal(atomic_load(&wrong), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_budget, begin),
      cmocka_unit_test_setup(test_fdpool, begin),
      cmocka_unit_test_setup(test_cache, begin),
      cmocka_unit_test_setup_teardown(test_written, open_log, close_log),
      cmocka_unit_test_setup_teardown(test_synced, open_log, close_log),
      cmocka_unit_test_setup_teardown(test_unheld, open_log, close_log),
      cmocka_unit_test_setup_teardown(test_written_before_an_append, open_log, close_log),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
