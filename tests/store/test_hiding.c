// SPDX-License-Identifier: Apache-2.0
//
// A store at rest with deletions in its memtable that hide much of its tables brings them into tables. The same goes
// for a memtable that has replaced many of its own values apart. Nothing is timed: the tests wait until the worker has
// judged, or until it is at it.
#include "tests/lib/store.h"

#include "remixdb.h"
#include "store/hidden_values.h"
#include "store/hiding.h"
#include "store/idle.h"
#include "view/version.h"

#define KEYS 20000u
#define VALUE 200u

static struct xdb *x;
static struct xdb_ref *ref;

static uint32_t key_of(uint32_t i, char key[16]) { return (uint32_t)snprintf(key, 16, "key%08u", i); }

static void open_store_with(int workers) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.workers = workers;
  o.memtable_mb = 64;
  x = quick_open(&o);
  CHECK((ref = remixdb_ref(x)) != NULL);
}

static void open_store(void) { open_store_with(1); }

// The test writes to a named space from now on.
static void use_space(void) {
  remixdb_unref(ref);
  struct xdb_space *const space = remixdb_space_open(x, "space", true);
  CHECK(space != NULL && (ref = remixdb_space_ref(space)) != NULL);
  remixdb_space_close(space);
}

static void close_store(void) {
  remixdb_unref(ref);
  OK(xdb_close(x));
}

static void put(uint32_t i) {
  static const char value[VALUE];
  char key[16];
  CHECK(remixdb_put(ref, key, key_of(i, key), value, VALUE));
}

static void del(uint32_t i) {
  char key[16];
  CHECK(remixdb_del(ref, key, key_of(i, key)));
}

// Waits until a worker has judged all that was written.
static void wait_judged(uint64_t least) {
  atomic_store(&x->hiding.least, least);
  atomic_store(&x->hiding.rest_ns, 1000000);
  idle_hiding(x);
  while (atomic_load_explicit(&x->hiding.judged, memory_order_acquire) != atomic_load(&x->published))
    time_sleep_ns(1000000);
}

static uint64_t in_memory(void) {
  xdb_lock(x);
  const uint64_t nr = memtable_count(xdb_super(x)->active);
  xdb_unlock(x);
  return nr;
}

static uint64_t frozen(void) {
  xdb_lock(x);
  const uint64_t nr = x->rounds.nr_frozen;
  xdb_unlock(x);
  return nr;
}

// Nothing is written: nothing more happens, however often a worker looks.
static void rest(uint64_t rounds) {
  const uint32_t nr = atomic_load(&x->hiding.nr);
  for (uint32_t looks = 0; looks < 3; looks++) {
    idle_hiding(x);
    const uint64_t at = atomic_load(&x->hiding.at_ns);
    while (atomic_load(&x->hiding.at_ns) == at) time_sleep_ns(1000000);
  }
  OK(xdb_wait_idle(x));
  CHECK(atomic_load(&x->hiding.nr) == nr && frozen() == rounds);
}

enum how { DELETES, FEW, NEW_KEYS, OVERWRITES, SMALL, PUT_AGAIN, STOPPED, IN_SPACE, WAYS };

static void write_as(enum how how) {
  for (uint32_t i = 0; i < KEYS; i++) {
    if (how == NEW_KEYS) put(KEYS + i);
    else if (how == OVERWRITES) put(i);
    else if (how == FEW ? i % 20 == 0 : i % 3 == 0) del(i);
  }
  for (uint32_t i = 0; how == PUT_AGAIN && i < KEYS; i += 3) put(i);
}

static void test_judges(void **state) {
  (void)state;
  for (int how = DELETES; how < WAYS; how++) {
    const bool due = how == DELETES || how == IN_SPACE;
    setup_again();
    open_store();
    if (how == IN_SPACE) use_space();
    for (uint32_t i = 0; i < KEYS; i++) put(i);
    CHECK(remixdb_flush(ref));
    OK(xdb_wait_idle(x));
    const uint64_t before = frozen();
    write_as((enum how)how);
    const uint64_t held = in_memory();
    if (how == STOPPED) hiding_stop(x);
    wait_judged(how == SMALL ? (uint64_t)KEYS * VALUE : 100000);
    while (due && frozen() == before) time_sleep_ns(1000000);  // the round begins after the judgement
    OK(xdb_wait_idle(x));
    CHECK(frozen() - before == due);
    CHECK(in_memory() == (due ? 0 : held));
    char key[16];
    for (uint32_t i = 0; i < KEYS; i++) {
      const bool gone = how == FEW ? i % 20 == 0 : (due || how == SMALL || how == STOPPED) && i % 3 == 0;
      CHECK(remixdb_probe(ref, key, key_of(i, key)) == !gone);
    }
    rest(before + due);
    close_store();
  }
}

static uint64_t away(void) {
  xdb_lock(x);
  const uint64_t nr = version_tree_away(xdb_super(x)->version);
  xdb_unlock(x);
  return nr;
}

// A judgement that cannot find many keys gone leaves partitions away, and so does one that the close stops.
static void test_away(void **state) {
  (void)state;
  static const enum how ways[] = {FEW, NEW_KEYS, STOPPED, DELETES};
  for (uint32_t way = 0; way < sizeof(ways) / sizeof(ways[0]); way++) {
    const enum how how = ways[way];
    setup_again();
    open_store();
    for (uint32_t i = 0; i < KEYS; i++) put(i);
    CHECK(remixdb_flush(ref));
    close_store();
    atomic_store(&version_eager, 0);
    open_store();
    atomic_store(&version_eager, VERSION_EAGER);
    const uint64_t before = frozen(), there = away();
    CHECK(there != 0);
    if (how != FEW) write_as(how);
    if (how == FEW || how == NEW_KEYS) del(0);
    if (how == STOPPED) hiding_stop(x);
    wait_judged(100000);
    CHECK(atomic_load(&x->hiding.nr) == 1);
    while (how == DELETES && frozen() == before) time_sleep_ns(1000000);
    CHECK(away() == (how == DELETES ? 0 : there));
    OK(xdb_wait_idle(x));
    CHECK(frozen() - before == (how == DELETES));
    close_store();
  }
}

// ---- the close beside a judgement

static _Atomic bool judging;
static bool goes_on;

// For mem_fault: holds a worker up that begins to count tombstones until the close has begun, and then for a while.
static bool hold_judge(size_t size) {
  if (size != sizeof(struct wh_sample) || atomic_exchange(&judging, true)) return true;
  while (!atomic_load(&x->hiding.ending)) time_sleep_ns(100000);
  if (goes_on) atomic_store(&x->hiding.ending, false);
  time_sleep_ns(30000000);
  return true;
}

// Deletes a third of few keys, and waits until a worker judges that.
static void begin_judging(void) {
  const uint32_t nr = 600;
  atomic_store(&judging, false);
  setup_again();
  open_store_with(2);
  for (uint32_t i = 0; i < nr; i++) put(i);
  CHECK(remixdb_flush(ref));
  OK(xdb_wait_idle(x));
  for (uint32_t i = 0; i < nr; i += 3) del(i);
  atomic_store(&mem_fault, hold_judge);
  atomic_store(&x->hiding.least, 1);
  atomic_store(&x->hiding.rest_ns, 1000000);
  idle_hiding(x);
  while (!atomic_load(&judging)) time_sleep_ns(100000);
}

// The close waits for the round that a judgement asks for beside it, and begins nothing meanwhile that the round would
// disturb: the few records, which it would leave in the log, are in tables.
static void test_close(void **state) {
  (void)state;
  goes_on = true;
  begin_judging();
  close_store();
  atomic_store(&mem_fault, NULL);
  open_store();
  CHECK(x->recovery.nr_records == 0);
  close_store();
}

// A new space does not wait for the judgement. That keeps the version that the space's name replaces, and leaves it to
// the close. If it stayed there, its memory would leak.
static void test_replaced(void **state) {
  (void)state;
  goes_on = false;
  begin_judging();
  use_space();
  CHECK(!atomic_load(&x->hiding.ending));
  close_store();
  atomic_store(&mem_fault, NULL);
  open_store();
  CHECK(x->nr_cleaned == 0);
  close_store();
}

// ---- values apart

#define LONG 20000u  // bytes of a value that the thread that puts it writes apart
#define MIB ((uint64_t)1 << 20)

static uint64_t figure(const char *name) {
  uint64_t n;
  CHECK(remixdb_figure(x, name, &n));
  return n;
}

// No worker judges before wait_judged.
static void open_quiet(void) {
  open_store();
  atomic_store(&x->hiding.at_ns, 0);
}

static void put_long(struct xdb_ref *r, uint32_t i) {
  static uint8_t value[LONG];
  static uint64_t rng = 1;
  char key[16];
  for (uint32_t at = 0; at < LONG; at += 8) {
    const uint64_t n = rng_next(&rng);
    memcpy(value + at, &n, 8);
  }
  CHECK(remixdb_put(r, key, key_of(i, key), value, LONG));
}

enum values {
  ONE_KEY,    // 400 times
  ONE_SPACE,  // the same in a space
  TOMBSTONES,
  SHORT,  // values of a few bytes in the place of 300
  HALF,   // 250 keys, twice
  LIVE,
  LIVE_SPACE,  // in a space
  QUARTER,     // 700 keys, and 220 of them once more
  FEW_ALL,     // 100 values of one key
  FIVE_MB,     // 150 keys, and 100 of them once more
  BETWEEN,     // all live, among records that are many pieces of a pass
  VALUES
};

static bool is_much(enum values how) { return how <= HALF; }

static void put_values(enum values how, struct xdb_ref *r) {
  const uint32_t nr = how == FEW_ALL ? 100 : how == FIVE_MB ? 150 : how == HALF ? 250 : how == QUARTER ? 700 : 400;
  const uint32_t more = how == HALF ? 250 : how == QUARTER ? 220 : how == FIVE_MB ? 100 : 0;
  const bool one = how == ONE_KEY || how == ONE_SPACE || how == FEW_ALL;
  for (uint32_t i = 0; how == BETWEEN && i < 8 * HIDDEN_VALUES_PIECE; i++) put(i);
  for (uint32_t i = 0; i < nr; i++) put_long(r, one ? 7 : how == BETWEEN ? 20 * i : i);
  for (uint32_t i = 0; i < more; i++) put_long(r, i);
  for (uint32_t i = 0; how == TOMBSTONES && i < nr; i++) del(i);
  for (uint32_t i = 0; how == SHORT && i < 300; i++) put(i);
}

// The bytes of all values, and of those that live.
static uint64_t all_of(enum values how) {
  const uint32_t nr[VALUES] = {400, 400, 400, 400, 500, 400, 400, 920, 100, 250, 400};
  return (uint64_t)nr[how] * LONG;
}

static uint64_t live_of(enum values how) {
  const uint32_t nr[VALUES] = {1, 1, 0, 100, 250, 400, 400, 700, 1, 150, 400};
  return (uint64_t)nr[how] * LONG;
}

static void test_values(void **state) {
  (void)state;
  for (int i = ONE_KEY; i < VALUES; i++) {
    const enum values how = (enum values)i;
    setup_again();
    open_quiet();
    struct xdb_space *const space = remixdb_space_open(x, "space", true);
    struct xdb_ref *const inside = remixdb_space_ref(space);
    CHECK(space && inside);
    CHECK(remixdb_flush(ref));
    OK(xdb_wait_idle(x));
    const uint64_t before = frozen();
    put_values(how, how == ONE_SPACE || how == LIVE_SPACE ? inside : ref);
    const uint64_t held = in_memory(), all = figure("values.memtable_bytes"), live = live_of(how);
    CHECK(all == all_of(how) && figure("values.room") > all);
    wait_judged(4 * MIB);
    while (is_much(how) && (frozen() == before || figure("values.room") > live + live / 8 + MIB))
      time_sleep_ns(1000000);
    OK(xdb_wait_idle(x));
    CHECK(frozen() - before == is_much(how));
    CHECK(in_memory() == (is_much(how) ? 0 : held));
    CHECK(figure("values.memtable_bytes") == (is_much(how) ? 0 : all));
    CHECK(figure("values.memtable_garbage_bytes") == (is_much(how) || how == FEW_ALL ? 0 : all - live));
    CHECK(figure("values.room") >= live);
    rest(before + is_much(how));
    remixdb_unref(inside);
    remixdb_space_close(space);
    close_store();
  }
}

// A snapshot keeps the values that it reads, and their files count as pinned. That is no reason for a further round.
static void test_pinned(void **state) {
  (void)state;
  open_quiet();
  for (uint32_t i = 0; i < 400; i++) put_long(ref, i);
  struct xdb_snapshot *const snap = remixdb_snapshot(ref);
  CHECK(snap);
  for (uint32_t i = 0; i < 400; i++) del(i);
  const uint64_t before = frozen(), files = figure("pinned.files"), bytes = figure("pinned.file_bytes");
  wait_judged(4 * MIB);
  while (frozen() == before || figure("values.room") > MIB) time_sleep_ns(1000000);
  OK(xdb_wait_idle(x));
  CHECK(figure("pinned.files") > files && figure("pinned.file_bytes") >= bytes + 400 * LONG);
  rest(before + 1);
  struct xdb_ref *const past = remixdb_snapshot_ref(snap);
  for (uint32_t i = 0; i < 400; i++) {
    static uint8_t value[LONG];
    uint32_t len;
    char key[16];
    CHECK(remixdb_get(past, key, key_of(i, key), value, &len) && len == LONG);
    CHECK(!remixdb_probe(ref, key, key_of(i, key)));
  }
  remixdb_unref(past);
  remixdb_snapshot_release(snap);
  while (figure("pinned.files") || figure("pinned.file_bytes")) time_sleep_ns(1000000);
  close_store();
}

static bool judge(const struct super *v, uint64_t written) { return hidden_values_due(x, &ref->slot, v, written); }

// The pass gives up when anything happens, and says when the next one may follow.
static void test_pass(void **state) {
  (void)state;
  open_quiet();
  for (uint32_t i = 0; i < 400; i++) put_long(ref, 0);
  xdb_lock(x);
  struct super *const v = xdb_super(x);
  super_ref(v);
  xdb_unlock(x);
  const uint64_t written = atomic_load(&x->published), now = time_ns();
  CHECK(judge(v, written) && atomic_load(&x->hiding.value_bytes) == 399 * LONG);
  CHECK(atomic_load(&x->hiding.again_ns) > now);
  atomic_store(&x->values_lost, MIB);  // values that were given up
  CHECK(judge(v, written) && atomic_load(&x->hiding.value_bytes) == 399 * LONG + MIB);
  atomic_store(&x->values_lost, 0);
  CHECK(judge(v, written));
  CHECK(!judge(v, written - 1) && atomic_load(&x->hiding.value_bytes) == 399 * LONG);
  atomic_store(&x->collect.ending, true);
  CHECK(!judge(v, written));
  atomic_store(&x->collect.ending, false);
  // no judgement before its time
  atomic_store(&x->hiding.again_ns, UINT64_MAX);
  atomic_store(&x->hiding.rest_ns, 1000000);
  rest(frozen());
  CHECK(remixdb_flush(ref));
  CHECK(atomic_load(&x->hiding.value_bytes) == 0 && !judge(v, written));
  xdb_super_drop(x, v);
  close_store();
}

int main(void) {
  hang_alarm();
  const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_judges, setup, teardown),
                                     cmocka_unit_test_setup_teardown(test_away, setup, teardown),
                                     cmocka_unit_test_setup_teardown(test_close, setup, teardown),
                                     cmocka_unit_test_setup_teardown(test_replaced, setup, teardown),
                                     cmocka_unit_test_setup_teardown(test_values, setup, teardown),
                                     cmocka_unit_test_setup_teardown(test_pinned, setup, teardown),
                                     cmocka_unit_test_setup_teardown(test_pass, setup, teardown)};
  return cmocka_run_group_tests_name("hiding", tests, NULL, NULL);
}
