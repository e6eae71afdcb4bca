// SPDX-License-Identifier: Apache-2.0
//
// Writers that come to a full memtable together: one of them freezes it, and then there is room for all. Rounds are held up where they make a file, so that
// whoever waits for one that is not his concern waits for ever: an alarm ends the program then.
#include "store.h"
#include "xdb_ref.h"
#include "xdb_write.h"

#define WRITERS 4u
#define MEMTABLE (64u << 10)

static struct xdb *x;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint64_t allowed;  // rounds; guarded by lock
static uint64_t held;     // the round that is held up; guarded by lock

static uint64_t frozen(void) {
  pthread_mutex_lock(&x->lock);
  const uint64_t nr = x->nr_frozen;
  pthread_mutex_unlock(&x->lock);
  return nr;
}

static int gate_open(struct env *e, const char *path, unsigned flags) {
  const size_t len = strlen(path);
  if (flags & ENV_CREATE && len > 4 && strcmp(path + len - 4, ".sst") == 0) {
    const uint64_t nr = frozen();
    pthread_mutex_lock(&lock);
    while (nr > allowed) {
      held = nr;
      pthread_cond_broadcast(&changed);
      pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
  }
  return env_posix()->ops->open(e, path, flags);
}

static void allow(uint64_t rounds) {
  pthread_mutex_lock(&lock);
  allowed = rounds;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static void wait_held(uint64_t nr) {
  pthread_mutex_lock(&lock);
  while (held < nr) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

static void begin(void) {
  static struct env_ops ops;
  static struct env env;
  ops = *quick_env()->ops;
  ops.open = gate_open;
  env = (struct env){.ops = &ops};
  const struct remixdb_opts o = small_opts(1);
  held = 0;
  allow(0);
  CHECK_OK(xdb_open(dir, &o, &env, &x));
  shrink(x, MEMTABLE, 4);
}

static void end(void) {
  allow(UINT64_MAX);
  CHECK_OK(xdb_close(x));
}

static void put(struct xdb_ref *r, uint64_t i) {
  static const uint8_t val[100];
  CHECK_OK(xdb_put(r, kref(&i, sizeof(i)), val, sizeof(val), false));
}

// Until the active memtable is full; the next put will find that.
static uint64_t fill(struct xdb_ref *r, uint64_t i) {
  while (!xdb_round_due(x, xdb_view(x)->active, 0)) put(r, i++);
  return i;
}

static void test_room_is_there(void **state) {
  (void)state;
  struct xdb_ref *r;
  begin();
  CHECK_OK(xdb_ref(x, &r));
  uint64_t i = fill(r, 0);
  put(r, i++);
  wait_held(1);
  CHECK_OK(xdb_round_room(x, XDB_ROUND_FULL, 0));  // another one has frozen it
  assert_int_equal(frozen(), 1);
  put(r, i);
  xdb_unref(r);
  end();
}

struct writer {
  pthread_t thread;
  uint32_t nr;
};
static _Atomic uint32_t coming;

static void *write_one(void *arg) {
  const struct writer *const w = arg;
  struct xdb_ref *r;
  const uint64_t key = UINT64_MAX - w->nr;
  THREAD_CHECK(xdb_ref(x, &r) == REMIXDB_OK);
  atomic_fetch_add(&coming, 1);
  THREAD_CHECK(xdb_put(r, kref(&key, sizeof(key)), "v", 1, false) == REMIXDB_OK);
  xdb_unref(r);
  return NULL;
}

static void test_one_round_for_all(void **state) {
  (void)state;
  struct xdb_ref *r;
  struct writer writers[WRITERS];
  begin();
  CHECK_OK(xdb_ref(x, &r));
  uint64_t i = fill(r, 0);
  put(r, i++);
  wait_held(1);
  fill(r, i);  // a full one, and one that is frozen: all wait
  atomic_store(&coming, 0);
  for (uint32_t w = 0; w < WRITERS; w++) {
    writers[w].nr = w;
    CHECK(pthread_create(&writers[w].thread, NULL, write_one, &writers[w]) == 0);
  }
  while (atomic_load(&coming) < WRITERS) time_sleep_ns(1000000);
  time_sleep_ns(20000000);  // most of them have come to where they wait
  assert_int_equal(frozen(), 1);
  allow(1);
  wait_held(2);
  for (uint32_t w = 0; w < WRITERS; w++) pthread_join(writers[w].thread, NULL);  // while the second round is held up
  assert_int_equal(frozen(), 2);
  xdb_unref(r);
  end();
}

int main(void) {
  seed = seed_from(1);
  alarm(100);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_room_is_there, setup, teardown),
      cmocka_unit_test_setup_teardown(test_one_round_for_all, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
