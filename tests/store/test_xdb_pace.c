// SPDX-License-Identifier: Apache-2.0
//
// The pace of writers: the time of a quantum, for rounds with made-up figures. The test reads the clock that writers
// draw from, so nothing here depends on the machine's speed.
#include <sys/mman.h>

#include "base/arena.h"
#include "tests/lib/check.h"
#include "tests/lib/slow.h"
#include "tests/lib/store.h"
#include "log/state.h"
#include "store/memory.h"
#include "store/pace.h"
#include "store/ref.h"
#include "store/flush.h"
#include "xdb.h"

#define SECOND 1000000000ull
#define QUANTUM 4096u

static struct xdb *x;
static struct xdb_ref *r;

static void begin(void) {
  struct remixdb_opts o = small_opts(0);
  x = quick_open(&o);
  OK(xdb_ref(x, &r));
}

static void end(void) {
  xdb_unref(r);
  OK(xdb_close(x));
}

// Fills about a third of the memtable.
static void fill(void) {
  static const uint8_t val[1000];
  for (uint32_t i = 0; i < 330; i++) OK(xdb_put(r, KV_REC(kref(&i, sizeof(i)), val, sizeof(val), false)));
}

static uint64_t room(void) {
  const size_t used = wh_memory(xdb_super(x)->active->wh);
  assert_true(used > x->memtable_limit / 8 && used < x->memtable_limit);
  return x->memtable_limit - used;
}

// A round that has just begun, as far as time says.
static void round_is(uint64_t work, uint64_t done, uint64_t rate, uint64_t tail_ns, uint64_t last_ns) {
  atomic_store(&x->pace.round_began_ns, time_ns() + 1000 * SECOND);
  atomic_store(&x->compact.work, work);
  atomic_store(&x->compact.progress, done);
  atomic_store(&x->pace.round_rate, rate);
  atomic_store(&x->pace.round_tail_ns, tail_ns);
  atomic_store(&x->pace.last_round_ns, last_ns);
}

// While a memtable is being compacted, as far as that says.
static void draw(void) {
  atomic_store(&x->rounds.compacting, true);
  xdb_pace_draw(r);
  atomic_store(&x->rounds.compacting, false);
}

// A write of so many bytes, by a writer that comes later than the clock says, moves the clock by `want` ns.
static void expect_moved(int line, uint64_t bytes, uint64_t want) {
  atomic_store(&x->pace.at_ns, 0);
  r->debt = bytes;
  const uint64_t before = time_ns();
  draw();
  const uint64_t after = time_ns(), at = atomic_load(&x->pace.at_ns);
  if (at < before + want - want / 1000 - 1 || at > after + want + want / 1000 + 1)
    fail_msg("line %d: the clock is at %lld ns after %lld, not %llu", line, (long long)(at - before),
             (long long)(after - before), (unsigned long long)want);
  assert_int_equal(r->debt, 0);
}

// A quantum moves it by what the quantum takes, for a round that still needs so long.
static void expect_remaining(int line, double seconds) {
  const double takes = seconds * 1e9 * QUANTUM / (double)room(), most = 5e6;
  expect_moved(line, QUANTUM, (uint64_t)(takes < most ? takes : most));
}
#define EXPECT_REMAINING(seconds) expect_remaining(__LINE__, (seconds))

static void test_remaining(void **state) {
  (void)state;
  begin();
  // a memtable that is nearly empty is filled as fast as may be
  round_is(SECOND, 0, SECOND, SECOND, SECOND);
  r->debt = QUANTUM;
  draw();
  assert_int_equal(atomic_load(&x->pace.at_ns), 0);
  fill();
  // the rest at the rate of the rounds before, and the tail
  round_is(100000000, 0, 500000000, 0, 0);
  EXPECT_REMAINING(0.2);
  round_is(100000000, 0, 500000000, SECOND / 10, 5 * SECOND);
  EXPECT_REMAINING(0.3);
  // three quarters of the work of this round in no time, one as if done before, at 500 million in a second: 4 quarters
  // in 0.05 s
  round_is(100000000, 75000000, 500000000, 0, 0);
  EXPECT_REMAINING(0.0125);
  // at the end, and beyond the expected end, the tail is left
  round_is(100000000, 100000000, 500000000, SECOND / 10, 0);
  EXPECT_REMAINING(0.1);
  round_is(100000000, 170000000, 500000000, SECOND / 10, 0);
  EXPECT_REMAINING(0.1);
  // until the work of the round is known: as the last one, but not less than the tail
  round_is(0, 0, 500000000, SECOND / 10, SECOND / 5);
  EXPECT_REMAINING(0.2);
  round_is(0, 0, 500000000, SECOND / 10, SECOND / 50);
  EXPECT_REMAINING(0.1);
  // nothing is known: nobody waits
  round_is(100000000, 0, 0, 0, 0);
  EXPECT_REMAINING(0);
  // no quantum takes longer than the longest nap
  round_is(100000000, 0, 1, 0, 0);
  EXPECT_REMAINING(1e8);
  end();
}

// Nothing is known of how rounds end: that takes 1/16 of the time that this one has taken.
static void test_first(void **state) {
  (void)state;
  begin();
  fill();
  for (uint32_t planned = 0; planned < 2; planned++) {
    round_is(planned ? 100 : 0, planned ? 100 : 0, 0, 0, 0);
    const uint64_t began = time_ns() - 4 * SECOND;
    atomic_store(&x->pace.round_began_ns, began);
    atomic_store(&x->pace.at_ns, 0);
    r->debt = QUANTUM;
    const double share = (double)QUANTUM / (double)room();
    const uint64_t before = time_ns();
    draw();
    const uint64_t after = time_ns(), at = atomic_load(&x->pace.at_ns),
                   most = (uint64_t)((double)(after - began) / 16 * share);
    assert_true(at >= before + (uint64_t)(SECOND / 4 * share * 0.999));
    assert_true(at <= after + (most < 5000000 ? most : 5000000) + 1);
  }
  end();
}

static void test_quantum(void **state) {
  (void)state;
  begin();
  fill();
  uint64_t last = UINT64_MAX;
  for (uint64_t ns = 1000; ns < 10000 * SECOND; ns *= 2) {
    round_is(100, 100, 1, ns, 0);
    atomic_store(&x->pace.at_ns, 0);
    r->debt = QUANTUM;
    draw();
    assert_true(r->debt_max <= last && r->debt_max >= 512 && r->debt_max <= 16384);
    last = r->debt_max;
    // a quantum is made such that it takes two milliseconds at most; but there is a smallest one
    const double takes = (double)ns * (double)r->debt_max / (double)room();
    assert_true(takes <= 2000001 || r->debt_max == 512);
  }
  assert_int_equal(last, 512);
  round_is(100, 100, 1, 1000, 0);
  atomic_store(&x->pace.at_ns, 0);
  r->debt = QUANTUM;
  draw();
  assert_int_equal(r->debt_max, 16384);
  end();
}

// Between rounds nobody waits, and writes count towards the next look all the same.
static void test_between(void **state) {
  (void)state;
  begin();
  round_is(SECOND, 0, SECOND, SECOND, SECOND);
  fill();
  atomic_store(&x->pace.at_ns, 0);
  r->debt = r->debt_max = 2;
  xdb_pace(r, 1);
  assert_int_equal(atomic_load(&x->pace.at_ns), 0);
  assert_int_equal(r->debt, 0);
  assert_true(r->debt_max > 2);
  end();
}

// Writers have workers fetch memory for the next memtable once they have used half of the first chunk, and none of it
// when it is the allocator's, or there are no workers.
static void test_ahead(void **state) {
  (void)state;
  static const uint8_t val[1000];
  for (uint32_t i = 0; i < 3; i++) {
    struct remixdb_opts o = small_opts(i != 1);
    o.memtable_mb = i == 2 ? 1 : 40;
    x = quick_open(&o);
    OK(xdb_ref(x, &r));
    const size_t chunk = x->memtables.chunks.chunk_size;
    for (uint32_t k = 0; k < 100; k++) OK(xdb_put(r, KV_REC(kref(&k, sizeof(k)), val, sizeof(val), false)));
    if (i == 0 && !LIB_SANITIZED) {
      assert_int_equal(arena_pool_held(&x->memtables.chunks), 0);
      for (uint32_t k = 100; k < 1500; k++) OK(xdb_put(r, KV_REC(kref(&k, sizeof(k)), val, sizeof(val), false)));
      while (arena_pool_held(&x->memtables.chunks) < chunk) time_sleep_ns(1000000);
      assert_int_equal(arena_pool_held(&x->memtables.chunks), chunk);
    } else {
      time_sleep_ns(20000000);
      assert_int_equal(arena_pool_held(&x->memtables.chunks), 0);
    }
    end();
  }
}

// Pages of the block cache that the system has given memory.
static uint32_t cache_pages_there(void) {
  const size_t size = cache_most(x->cache);
  uint8_t *const there = malloc(size / BLOCK_PAGE);
  uint32_t nr = 0;
  assert_non_null(there);
  assert_int_equal(mincore(x->cache->pages, size, there), 0);
  for (size_t i = 0; i < size / BLOCK_PAGE; i++) nr += there[i] & 1;
  free(there);
  return nr;
}

// A reader that fills the cache has a worker get memory for it.
static void test_cache_ahead(void **state) {
  (void)state;
  static const uint8_t val[1000];
  const uint32_t stretch = CACHE_AHEAD / BLOCK_PAGE, shards = 4;
  struct mem_map map;
  OK(mem_map(CACHE_AHEAD, &map));
  const bool able = mem_populate(map.ptr, CACHE_AHEAD);
  mem_unmap(&map);
  if (!able) skip();
  struct remixdb_opts o = small_opts(1);
  o.cache_mb = 8 * shards;
  o.memtable_mb = 40;
  x = quick_open(&o);
  OK(xdb_ref(x, &r));
  for (uint32_t k = 0; k < 8000; k++) OK(xdb_put(r, KV_REC(kref(&k, sizeof(k)), val, sizeof(val), false)));
  OK(xdb_flush(x));
  struct xdb_iter *it;
  struct kv_rec rec;
  struct cache_stats stats = {0};
  OK(xdb_iter_create(r, &it));
  // three quarters of each shard's first stretch
  for (OK(xdb_iter_seek(it, kref(NULL, 0))); stats.used < shards * CACHE_AHEAD / 4 * 3; OK(xdb_iter_skip(it, 1))) {
    assert_true(xdb_iter_valid(it));
    OK(xdb_iter_record(it, &rec));
    cache_stats(x->cache, &stats);
  }
  xdb_iter_destroy(it);
  // in each shard the next stretch is there, too
  const uint32_t wanted = (uint32_t)(stats.used / BLOCK_PAGE) + shards * stretch;
  while (cache_pages_there() < wanted) time_sleep_ns(1000000);
  end();
}

static pthread_t writer;
static _Atomic uint32_t of_writer;  // calls that wait for the file system, made in its thread
static _Atomic bool hold_rounds, is_held;

static void made(void) { atomic_fetch_add(&of_writer, pthread_equal(pthread_self(), writer) != 0); }

static int watched_sync(struct env *e, int fd) {
  (void)e, (void)fd;
  made();
  return 0;
}

static int watched_sync_head(struct env *e, int fd, uint64_t len) {
  (void)len;
  return watched_sync(e, fd);
}

static int watched_allocate(struct env *e, int fd, uint64_t off, uint64_t len) {
  (void)e;
  made();
  return env_posix()->ops->allocate(env_posix(), fd, off, len);
}

// A round that makes a table is held up until the writer waits for it, with a full memtable.
static int watched_open(struct env *e, int at, const char *path, unsigned flags) {
  (void)e;
  if (flags & ENV_CREATE) {
    made();
    const uint64_t until = time_ns() + SLOW_HANG_S * SECOND;
    for (bool due = false; (strstr(path, ".sst") || strstr(path, ".pack")) && !due && atomic_load(&hold_rounds);) {
      CHECK(time_ns() < until);
      atomic_store(&is_held, true);
      pthread_mutex_lock(&x->lock);
      due = xdb_round_due(x, xdb_super(x)->active, 0);
      pthread_mutex_unlock(&x->lock);
      time_sleep_ns(5000000);
    }
  }
  return env_posix()->ops->open(env_posix(), at, path, flags);
}

// Until workers have done the work that the log asked for.
static void wait_for_log(void) {
  struct wal *const w = x->wal;
  const uint64_t until = time_ns() + SLOW_HANG_S * SECOND;
  for (bool done = false; !done;) {
    assert_true(time_ns() < until);
    time_sleep_ns(100000);
    pthread_mutex_lock(&w->admin);
    lib_lock(&w->lock);
    done = !wal_ahead_pending(w) && !w->growing;
    lib_unlock(&w->lock);
    pthread_mutex_unlock(&w->admin);
  }
}

// A writer makes no file and no room in one, and syncs nothing: neither while memtables are frozen for rounds before
// they are full, nor when it waits for a round and goes on the moment that round ends.
static void test_log_ahead(void **state) {
  (void)state;
  static const uint8_t val[1000];
  struct remixdb_opts o = small_opts(2);
  o.memtable_mb = 4;
  struct env_ops ops = *env_posix()->ops;
  ops.sync_data = ops.sync_all = watched_sync;
  ops.sync_head = watched_sync_head;
  ops.allocate = watched_allocate;
  ops.open = watched_open;
  struct env env = {.ops = &ops};
  for (uint32_t held = 0; held < 2; held++) {
    atomic_store(&hold_rounds, held != 0);
    OK(xdb_open(dir, &o, &env, &x));
    OK(xdb_ref(x, &r));
    writer = pthread_self();
    atomic_store(&of_writer, 0);
    const uint64_t first = wal_gen(x->wal);
    for (uint32_t k = 0; wal_gen(x->wal) < first + 4; k++) {
      const uint32_t key = k * 2654435761u;
      if (held) r->debt_max = UINT64_MAX;  // he does not slow down before
      OK(xdb_put(r, KV_REC(kref(&key, sizeof(key)), val, sizeof(val), false)));
      if (wal_ahead_pending(x->wal)) {
        xdb_pace_draw(r);  // it asks for them
        wait_for_log();
      }
    }
    assert_int_equal(atomic_load(&of_writer), 0);
    atomic_store(&hold_rounds, false);
    end();
    setup_again();
  }
}

// When the round of a full memtable writes, all memory is ready that the next one may take, late records included: the
// writer need not get any, though no worker is idle. Before a flush none is fetched.
static void test_chunks_ahead(void **state) {
  (void)state;
  static const uint8_t val[1000];
  struct remixdb_opts o = small_opts(1);
  o.memtable_mb = 40;
  struct env_ops ops = *env_posix()->ops;
  ops.open = watched_open;
  struct env env = {.ops = &ops};
  for (uint32_t flushed = 0; flushed < 2; flushed++) {
    atomic_store(&hold_rounds, flushed == 0);
    atomic_store(&is_held, false);
    OK(xdb_open(dir, &o, &env, &x));
    OK(xdb_ref(x, &r));
    struct arena_pool *const pool = &x->memtables.chunks;
    const uint64_t first = wal_gen(x->wal), until = time_ns() + SLOW_HANG_S * SECOND;
    uint32_t k = 0;
    for (; wal_gen(x->wal) == first && (flushed == 0 || k < 100); k++) {
      // a few are there, as if more had come back than there was room for
      arena_pool_drains(pool);
      while (flushed == 0 && arena_pool_fill(pool, 2 * pool->chunk_size)) continue;
      pthread_mutex_lock(&pool->lock);
      pool->spilled = true;
      pthread_mutex_unlock(&pool->lock);
      OK(xdb_put(r, KV_REC(kref(&k, sizeof(k)), val, sizeof(val), false)));
    }
    if (flushed) OK(xdb_flush(x));
    while (flushed == 0 && !atomic_load(&is_held)) {
      assert_true(time_ns() < until);
      time_sleep_ns(1000000);
    }
    const size_t used = wh_memory_small(xdb_super(x)->active->wh), held = arena_pool_held(pool);
    if (LIB_SANITIZED) assert_int_equal(held, 0);
    else if (flushed) assert_true(held <= 2 * pool->chunk_size);
    else assert_true(used + held + pool->chunk_size > memory_late(x->memtable_limit));
    atomic_store(&hold_rounds, false);
    end();
    setup_again();
  }
}

static void test_nap(void **state) {
  (void)state;
  begin();
  fill();
  round_is(100, 100, 1, SECOND / 100, 0);
  // Soon enough: nobody sleeps for so little. (A thread that loses its processor here comes late, and does not sleep
  // either.)
  atomic_store(&x->pace.at_ns, time_ns() + 1900000);
  r->debt = QUANTUM;
  draw();
  assert_int_equal(atomic_load(&x->pace.stall_ns), 0);
  // but where little room is left, unless it is very little time
  const size_t limit = x->memtable_limit, used = limit - (size_t)room();
  x->memtable_limit = used + used / 128;
  atomic_store(&x->pace.at_ns, time_ns() + 20000);
  r->debt = QUANTUM;
  draw();
  assert_int_equal(atomic_load(&x->pace.stall_ns), 0);
  uint64_t slept = 0;
  for (uint32_t i = 0; i < 100 && slept == 0; i++) {
    atomic_store(&x->pace.at_ns, time_ns() + 1900000);
    r->debt = QUANTUM;
    draw();
    slept = atomic_load(&x->pace.stall_ns);
  }
  assert_true(slept > 0 && slept <= 1900000);
  atomic_store(&x->pace.stall_ns, 0);
  atomic_store(&x->pace.stall_max_ns, 0);
  x->memtable_limit = limit;
  // a clock far ahead: the longest nap, which is counted, and the clock is called back
  const uint64_t before = time_ns();
  atomic_store(&x->pace.at_ns, before + 1000 * SECOND);
  r->debt = QUANTUM;
  draw();
  assert_true(time_ns() - before >= 5000000);
  assert_int_equal(atomic_load(&x->pace.stall_ns), 5000000);
  assert_int_equal(atomic_load(&x->pace.stall_max_ns), 5000000);
  assert_true(atomic_load(&x->pace.at_ns) <= time_ns() + 10000000);
  end();
}

// The same, in a round that still needs so long.
static void expect_takes(int line, uint64_t bytes, double seconds, uint64_t want) {
  round_is(100, 100, 1, (uint64_t)(seconds * 1e9), 0);
  expect_moved(line, bytes, want);
}
#define EXPECT_TAKES(bytes, seconds, want) expect_takes(__LINE__, (bytes), (seconds), (want))

// A batch of many quanta takes as long as its quanta one by one, and not as one of them: else batches fill the memtable
// long before the round ends. There is a longest nap for each quantum, and one for all.
static void test_batch(void **state) {
  (void)state;
  const uint64_t quantum = 16384, ms = 1000000;
  begin();
  fill();
  const double all = (double)room() / (double)quantum /
                     1000;  // seconds: a quantum takes 1 ms of a round that needs so long
  for (uint64_t n = 1; n <= 20; n++) EXPECT_TAKES(n * quantum, 4.5 * all, n * 9 * ms / 2);
  for (uint64_t n = 1; n <= 20; n++) EXPECT_TAKES(n * quantum, 1e4, n * 5 * ms);
  EXPECT_TAKES(1, 1e9, 5 * ms);
  EXPECT_TAKES(2 * quantum - 1, 1e4, 5 * ms);
  EXPECT_TAKES(3 * quantum - 1, 1e4, 10 * ms);
  EXPECT_TAKES(21 * quantum, 1e4, 100 * ms);
  EXPECT_TAKES(1000 * quantum, 1e4, 100 * ms);
  end();
}

// Ends the round once a writer that naps has drawn from the clock.
static void *end_round(void *arg) {
  const uint64_t far = *(const uint64_t *)arg;
  while (atomic_load(&x->pace.at_ns) == far) time_sleep_ns(100000);
  atomic_store(&x->rounds.compacting, false);
  return NULL;
}

// The nap of a batch is as long, but it does not go on when the round has ended.
static void test_batch_nap(void **state) {
  (void)state;
  const uint64_t far = time_ns() + 1000 * SECOND;
  begin();
  fill();
  round_is(100, 100, 1, SECOND / 100, 0);
  atomic_store(&x->pace.at_ns, far);
  r->debt = 5 * 16384 + 1;
  const uint64_t before = time_ns();
  draw();
  assert_true(time_ns() - before >= 25000000);
  assert_int_equal(atomic_load(&x->pace.stall_ns), 25000000);
  assert_int_equal(atomic_load(&x->pace.stall_max_ns), 25000000);
  uint64_t slept = UINT64_MAX;
  for (uint32_t i = 0; i < 100 && slept >= 100000000; i++) {  // again if the other thread was late
    pthread_t other;
    atomic_store(&x->pace.stall_ns, 0);
    atomic_store(&x->pace.at_ns, far);
    r->debt = 100 * 16384;
    assert_int_equal(pthread_create(&other, NULL, end_round, (void *)(uintptr_t)&far), 0);
    draw();
    assert_int_equal(pthread_join(other, NULL), 0);
    slept = atomic_load(&x->pace.stall_ns);
  }
  assert_true(slept >= 5000000 && slept < 100000000);
  end();
}

static void test_learn(void **state) {
  (void)state;
  begin();
  xdb_pace_learn(x, 1000000, SECOND, SECOND / 4);
  const uint64_t rate = atomic_load(&x->pace.round_rate);
  assert_true(rate >= 999990 && rate <= 1000010);
  assert_int_equal(atomic_load(&x->pace.round_tail_ns), SECOND / 4);
  xdb_pace_learn(x, 3000000, SECOND, SECOND / 2);
  assert_true(atomic_load(&x->pace.round_rate) >= 1999980 && atomic_load(&x->pace.round_rate) <= 2000020);
  // an end that took longer is expected again, one that took less moves the mean
  assert_int_equal(atomic_load(&x->pace.round_tail_ns), SECOND / 2);
  xdb_pace_learn(x, 2000000, SECOND, SECOND / 4);
  assert_int_equal(atomic_load(&x->pace.round_tail_ns), SECOND / 4 + SECOND / 8);
  // a disk that hung: its tail counts no more than the round
  xdb_pace_learn(x, 2000000, SECOND, 100 * SECOND);
  assert_int_equal(atomic_load(&x->pace.round_tail_ns), SECOND);
  // a round of nearly nothing says nothing of the rate
  const uint64_t was = atomic_load(&x->pace.round_rate);
  xdb_pace_learn(x, 5, SECOND, SECOND);
  assert_int_equal(atomic_load(&x->pace.round_rate), was);
  end();
}

int main(void) {
  hang_alarm();
  check_seed = check_seed_or(1);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_remaining, setup, teardown),
      cmocka_unit_test_setup_teardown(test_first, setup, teardown),
      cmocka_unit_test_setup_teardown(test_quantum, setup, teardown),
      cmocka_unit_test_setup_teardown(test_between, setup, teardown),
      cmocka_unit_test_setup_teardown(test_ahead, setup, teardown),
      cmocka_unit_test_setup_teardown(test_cache_ahead, setup, teardown),
      cmocka_unit_test_setup_teardown(test_log_ahead, setup, teardown),
      cmocka_unit_test_setup_teardown(test_chunks_ahead, setup, teardown),
      cmocka_unit_test_setup_teardown(test_nap, setup, teardown),
      cmocka_unit_test_setup_teardown(test_batch, setup, teardown),
      cmocka_unit_test_setup_teardown(test_batch_nap, setup, teardown),
      cmocka_unit_test_setup_teardown(test_learn, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
