// SPDX-License-Identifier: Apache-2.0
//
// Writers that come to a full memtable together: one of them freezes it, and then there is room for all. Rounds are
// held up, so a writer that waits for one round too many hangs until the alarm.
#include "store/memory.h"
#include "store/wait_room.h"
#include "tests/lib/check.h"
#include "tests/lib/gates.h"

#define WRITERS 4u
#define MEMTABLE (64u << 10)

static void put(struct xdb_ref *r, uint64_t i) {
  static const uint8_t val[100];
  OK(xdb_put(r, KV_REC(kref(&i, sizeof(i)), val, sizeof(val), false)));
}

// Puts until the active memtable is full; the next put will find that. Returns the next number to put.
static uint64_t fill(struct xdb_ref *r, uint64_t i) {
  while (!xdb_round_due(x, xdb_super(x)->active, 0)) put(r, i++);
  return i;
}

static bool is_late_full(void) { return memtable_memory(xdb_super(x)->active) >= memory_late(x->memtable_limit); }

// Puts until the active memtable takes not even late records. Returns the next number to put.
static uint64_t fill_late(struct xdb_ref *r, uint64_t i) {
  for (i = fill(r, i); !is_late_full();) put(r, i++);
  return i;
}

// Opens a store and fills a memtable. The memtable's round is held up. *next_out is the next number to put.
static struct xdb_ref *begin_held(uint64_t *next_out) {
  struct xdb_ref *r;
  allow(0);
  begin_with(1, MEMTABLE, 4);
  OK(xdb_ref(x, &r));
  uint64_t i = fill(r, 0);
  put(r, i++);
  wait_held(1);
  *next_out = i;
  return r;
}

static void test_room_is_there(void **state) {
  (void)state;
  uint64_t i;
  struct xdb_ref *const r = begin_held(&i);
  OK(xdb_wait_room(x, XDB_FREEZE_FULL, 0));  // another writer has frozen it
  assert_int_equal(frozen(), 1);
  put(r, i);
  xdb_unref(r);
  end();
}

struct writer {
  pthread_t thread;
  uint32_t nr;
};
static _Atomic uint32_t coming, written;

static void *write_one(void *arg) {
  const struct writer *const w = arg;
  struct xdb_ref *r;
  const uint64_t key = UINT64_MAX - w->nr;
  THREAD_CHECK(xdb_ref(x, &r) == REMIXDB_OK);
  atomic_fetch_add(&coming, 1);
  THREAD_CHECK(xdb_put(r, KV_REC(kref(&key, sizeof(key)), "v", 1, false)) == REMIXDB_OK);
  atomic_fetch_add(&written, 1);
  xdb_unref(r);
  return NULL;
}

// Starts all writers; each is about to write, or waits already.
static void start_writers(struct writer writers[WRITERS]) {
  atomic_store(&coming, 0);
  atomic_store(&written, 0);
  for (uint32_t w = 0; w < WRITERS; w++) {
    writers[w].nr = w;
    CHECK(pthread_create(&writers[w].thread, NULL, write_one, &writers[w]) == 0);
  }
  while (atomic_load(&coming) < WRITERS) time_sleep_ns(1000000);
}

static void test_one_round_for_all(void **state) {
  (void)state;
  struct writer writers[WRITERS];
  uint64_t i;
  struct xdb_ref *const r = begin_held(&i);
  fill_late(r, i);  // a full one, and one that is frozen: all wait
  start_writers(writers);
  time_sleep_ns(20000000);  // most of them have come to where they wait
  assert_int_equal(frozen(), 1);
  allow(1);
  wait_held(2);
  for (uint32_t w = 0; w < WRITERS; w++) pthread_join(writers[w].thread, NULL);  // while the second round is held up
  assert_int_equal(frozen(), 2);
  xdb_unref(r);
  end();
}

// While a round is held up, a full memtable takes late records, and not too many. Puts and deletes are alike.
static void test_late(void **state) {
  (void)state;
  struct writer writers[WRITERS];
  uint64_t i;
  struct xdb_ref *const r = begin_held(&i);
  const uint64_t first = i = fill(r, i);
  while (!is_late_full()) {
    const uint64_t key = i++;
    if (key % 2) put(r, key);
    else OK(xdb_put(r, KV_REC(kref(&key, sizeof(key)), NULL, 0, true)));
  }
  assert_true(i > first + 2);
  assert_int_equal(frozen(), 1);
  const size_t used = memtable_memory(xdb_super(x)->active);
  assert_in_range(used, x->memtable_limit, x->memtable_limit + x->memtable_limit / 8);
  start_writers(writers);
  time_sleep_ns(10 * ROOM_WAIT_NS);
  assert_int_equal(atomic_load(&written), 0);
  assert_int_equal(memtable_memory(xdb_super(x)->active), used);
  allow(UINT64_MAX);
  for (uint32_t w = 0; w < WRITERS; w++) pthread_join(writers[w].thread, NULL);
  for (uint64_t key = first; key < i; key++) {
    uint8_t val[100];
    uint32_t len;
    const enum remixdb_status s = xdb_get(r, kref(&key, sizeof(key)), val, sizeof(val), &len);
    assert_int_equal(s, key % 2 ? REMIXDB_OK : REMIXDB_NOTFOUND);
  }
  xdb_unref(r);
  end();
}

static void *flush_it(void *arg) {
  (void)arg;
  THREAD_CHECK(xdb_flush(x) == REMIXDB_OK);
  return NULL;
}

// A flush that is called while a memtable is frozen freezes the next one, however many writers wait for that, too. It
// waits for one round at most besides its own.
static void test_flush_is_next(void **state) {
  (void)state;
  for (uint32_t n = 0; n < 8; n++) {
    struct writer writers[WRITERS];
    pthread_t flusher;
    uint64_t i;
    struct xdb_ref *const r = begin_held(&i);
    fill_late(r, i);
    start_writers(writers);
    time_sleep_ns(5000000);
    CHECK(pthread_create(&flusher, NULL, flush_it, NULL) == 0);
    for (uint32_t waits = 0; waits == 0; time_sleep_ns(100000)) {
      pthread_mutex_lock(&x->lock);
      waits = x->rounds.nr_flushers;
      pthread_mutex_unlock(&x->lock);
    }
    allow(1);
    wait_held(2);
    for (uint32_t w = 0; w < WRITERS; w++) pthread_join(writers[w].thread, NULL);
    allow(UINT64_MAX);
    pthread_join(flusher, NULL);
    assert_int_equal(frozen(), 2);
    xdb_unref(r);
    end();
  }
}

int main(void) {
  check_seed = check_seed_or(1);
  hang_alarm();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_room_is_there, setup, teardown),
      cmocka_unit_test_setup_teardown(test_one_round_for_all, setup, teardown),
      cmocka_unit_test_setup_teardown(test_late, setup, teardown),
      cmocka_unit_test_setup_teardown(test_flush_is_next, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
