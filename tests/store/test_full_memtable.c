// SPDX-License-Identifier: Apache-2.0
//
// A memtable that one call has filled is frozen by that call: a batch, an opening that replays a long log, or a smaller
// budget. It does not stay in memory until somebody writes again. The call does not wait for the round, and neither do
// the next writes.
#include "tests/lib/check.h"

#include "store/replay_round.h"
#include "tests/lib/gates.h"

#define VALUE 1000u
#define MANY 4000u  // records, some four MB: more than the log of a memtable of 1 MiB may take

// While it is set, no round makes a table.
static _Atomic bool held;

static int held_open(struct env *e, int at, const char *path, unsigned flags) {
  (void)e;
  if (flags & ENV_CREATE && (ends_with(path, ".sst") || ends_with(path, ".pack")))
    while (atomic_load(&held)) time_sleep_ns(100000);
  return env_posix()->ops->open(env_posix(), at, path, flags);
}

static struct remixdb_opts opts(size_t memtable_mb, int workers) {
  struct remixdb_opts o = small_opts(workers);
  o.memtable_mb = memtable_mb;
  o.wal_mb = 0;
  return o;
}

static struct xdb_ref *held_store(const struct remixdb_opts *o) {
  static struct env_ops ops;
  static struct env env;
  struct xdb_ref *r;
  ops = *quick_env()->ops;
  ops.open = held_open;
  env = (struct env){.ops = &ops};
  OK(xdb_open(dir, o, &env, &x));
  OK(xdb_ref(x, &r));
  return r;
}

static void closed(struct xdb_ref *r) {
  xdb_unref(r);
  OK(xdb_close(x));
  x = NULL;
}

static uint32_t key(char *buf, char kind, uint32_t i) { return (uint32_t)sprintf(buf, "%c%06u", kind, i); }

static void put_many(struct xdb_ref *r, uint32_t nr) {
  static const uint8_t val[VALUE];
  char buf[16];
  for (uint32_t i = 0; i < nr; i++) CHECK(remixdb_put(r, buf, key(buf, 'p', i), val, VALUE));
}

static void write_batch(struct xdb_ref *r, char kind) {
  static const uint8_t val[VALUE];
  char buf[16];
  struct xdb_batch *const b = remixdb_batch_create();
  CHECK(b);
  for (uint32_t i = 0; i < MANY; i++) CHECK(remixdb_batch_put(b, buf, key(buf, kind, i), val, VALUE));
  CHECK(remixdb_write(r, b));
  remixdb_batch_destroy(b);
}

static void check_has(struct xdb_ref *r, char kind, uint32_t nr) {
  char buf[16];
  for (uint32_t i = 0; i < nr; i++) CHECK(remixdb_probe(r, buf, key(buf, kind, i)));
}

static uint64_t nr_active(void) { return memtable_count(xdb_super(x)->active); }

// So many memtables were frozen, and all are in tables; the active one has no record.
static void check_settled(uint64_t rounds) {
  OK(xdb_wait_idle(x));
  CHECK_SAYS(frozen() == rounds && x->rounds.nr_installed == rounds, "%u frozen, %u wanted", (uint32_t)frozen(),
             (uint32_t)rounds);
  CHECK_SAYS(nr_active() == 0, "%u records stay in the memtable", (uint32_t)nr_active());
}

static void test_batch(void **state) {
  (void)state;
  const struct remixdb_opts o = opts(1, 1);
  struct xdb_ref *const r = held_store(&o);
  atomic_store(&held, true);
  write_batch(r, 'a');
  CHECK(frozen() == 1 && nr_active() == 0);
  put_many(r, 8);  // the log of the batch is beyond the limit, but these wait for no round
  // the round's end freezes what was filled meanwhile
  write_batch(r, 'b');
  CHECK(frozen() == 1 && nr_active() == 8 + MANY);
  atomic_store(&held, false);
  check_settled(2);
  check_has(r, 'a', MANY);
  check_has(r, 'b', MANY);
  check_has(r, 'p', 8);
  closed(r);
}

// Without workers a round runs in the call that needs room.
static void test_no_workers(void **state) {
  (void)state;
  const struct remixdb_opts o = opts(1, 0);
  struct xdb_ref *const r = held_store(&o);
  write_batch(r, 'a');
  CHECK(frozen() == 0 && nr_active() == MANY);
  put_many(r, 1);
  CHECK(frozen() == 1 && nr_active() == 1);
  closed(r);
}

static void test_opening(void **state) {
  (void)state;
  struct remixdb_opts o = opts(64, 1);
  struct xdb_ref *r = held_store(&o);
  put_many(r, MANY);
  CHECK(frozen() == 0);
  x->leave_log = true;
  closed(r);
  o = opts(1, 1);
  atomic_store(&held, true);
  atomic_store(&replay_most, SIZE_MAX);  // the opening makes no round itself
  r = held_store(&o);
  atomic_store(&replay_most, 0);
  CHECK(frozen() == 1 && nr_active() == 0);
  put_many(r, 8);
  CHECK(frozen() == 1);
  check_has(r, 'p', MANY);
  atomic_store(&held, false);
  OK(xdb_wait_idle(x));
  CHECK(x->rounds.nr_installed == 1 && nr_active() == 8);
  check_has(r, 'p', MANY);
  closed(r);
}

// An opening for reading writes nothing.
static void test_read_only(void **state) {
  (void)state;
  struct remixdb_opts o = opts(64, 1);
  struct xdb_ref *r = held_store(&o);
  put_many(r, MANY);
  x->leave_log = true;
  closed(r);
  o = opts(1, 1);
  o.read_only = true;
  r = held_store(&o);
  CHECK(frozen() == 0 && nr_active() == MANY);
  check_has(r, 'p', MANY);
  closed(r);
}

static void test_smaller(void **state) {
  (void)state;
  struct remixdb_opts o = opts(0, 1);
  o.memory_mb = 256;
  struct xdb_ref *const r = held_store(&o);
  put_many(r, MANY);
  CHECK(frozen() == 0);
  CHECK(remixdb_set_option(x, "memory_mb", "8"));
  CHECK(frozen() == 1 && nr_active() == 0);
  check_settled(1);
  check_has(r, 'p', MANY);
  closed(r);
}

int main(void) {
  hang_alarm();  // for calls that wait for a round that is held up
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_batch, setup, teardown),
      cmocka_unit_test_setup_teardown(test_no_workers, setup, teardown),
      cmocka_unit_test_setup_teardown(test_opening, setup, teardown),
      cmocka_unit_test_setup_teardown(test_read_only, setup, teardown),
      cmocka_unit_test_setup_teardown(test_smaller, setup, teardown),
  };
  return cmocka_run_group_tests_name("full memtable", tests, NULL, NULL);
}
