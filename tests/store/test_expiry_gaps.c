// SPDX-License-Identifier: Apache-2.0
//
// Searches among records that have expired and lie in memtables still: they cost the same after any number of them, in
// both directions. The test counts entries of memtables and gaps that are looked at. Then a model, with a clock that
// steps on and back, puts among expired records, deletions, snapshots and rounds. Then puts of one thread, which the
// others must find among expired records.
//
// TEST_SEED in the environment repeats a run's random choices.
#define WH_COUNTERS 1
#include "wh/cursor.c"
#undef AHEAD
#undef FLOW
#undef SPOT
#undef ENTRY_HEAD
#include "wh/pass.c"
#define REMIX_COUNTERS 1
#include "remix/cursor.c"

#include "store/install.h"
#include "tests/lib/store.h"

#define KLEN 6u
#define START 1000000u  // ms: the clock at first

static _Atomic uint64_t wall;
static uint64_t wall_ms(void *arg) { return (void)arg, wall; }
static uint64_t steady_ms(void *arg) { return (void)arg, 1000; }
static const struct env_clock test_clock = {wall_ms, steady_ms, NULL};

static struct xdb *x;
static struct xdb_ref *r;

static int begin(void **state) {
  struct remixdb_opts o = small_opts(0);
  struct env *const e = quick_env();
  if (setup(state) != 0) return -1;
  wall = START;
  e->clock = &test_clock;
  o.memtable_mb = 64;
  OK(xdb_open(dir, &o, e, &x));
  return (r = remixdb_ref(x)) ? 0 : -1;
}

// Ends the round of a frozen memtable.
static void thaw(void) {
  if (xdb_super(x)->frozen) workers_kick(x->workers);
  OK(xdb_wait_idle(x));
}

static int end(void **state) {
  thaw();
  remixdb_unref(r);
  remixdb_close(x);
  return remixdb_errcode() == REMIXDB_OK ? teardown(state) : -1;
}

static const char *key_of(uint32_t i) {
  static _Thread_local char key[KLEN + 8];
  (void)snprintf(key, sizeof(key), "%06u", i);
  return key;
}

// expires: 0: never.
static void put(uint32_t i, uint64_t expires) {
  if (expires) CHECK(remixdb_put_expire(r, key_of(i), KLEN, "value", 5, expires));
  else CHECK(remixdb_put(r, key_of(i), KLEN, "value", 5));
}

// The key at which the iterator is; -1: at none.
static int64_t at(struct xdb_iter *it) {
  uint32_t klen;
  char buf[KLEN + 1] = {0};
  THREAD_CHECK(remixdb_iter_status(it) == REMIXDB_OK);
  if (!remixdb_iter_valid(it)) return -1;
  const void *const key = remixdb_iter_key(it, &klen);
  THREAD_CHECK(key && klen == KLEN);
  memcpy(buf, key, KLEN);
  return strtol(buf, NULL, 10);
}

static void gaps_check(void) {
  char why[200];
  const struct super *const v = xdb_super(x);
  if (!wh_gaps_check(v->active->wh, why, sizeof(why)))
    fail_msg("TEST_SEED=%llu: %s", (unsigned long long)check_seed, why);
}

// ---- costs

#define RECORDS (40000u / SLOW)

static uint64_t looked_at(void) {
  return atomic_load(&wh_counters.entries) + atomic_load(&wh_counters.hops) + atomic_load(&wh_counters.checked);
}

static void freeze(void) {
  xdb_lock(x);
  OK(round_freeze(x));
  xdb_unlock(x);
}

// Records expire one after the other, from one end on, and each time a search finds the first that is left. deleted:
// so many from one that is deleted, too, to the next; 0: none.
static void expire_all(bool back, uint32_t deleted, bool frozen) {
  enum { PARTS = 8 };
  wall = START;
  for (uint32_t i = 0; i < RECORDS; i++) put(i, START + 1 + (back ? RECORDS - 1 - i : i));
  if (frozen) freeze();
  struct xdb_iter *const it = remixdb_iter_create(r);
  for (uint32_t part = 0; part < PARTS; part++) {
    const uint64_t before = looked_at();
    for (uint32_t n = part * (RECORDS / PARTS); n < (part + 1) * (RECORDS / PARTS); n++) {
      const uint32_t first = back ? RECORDS - 1 - n : n;
      if (back) remixdb_iter_seek_last(it);
      else remixdb_iter_seek(it, NULL, 0);
      CHECK(at(it) == first);
      if (deleted && n % deleted == 0) CHECK(remixdb_del(r, key_of(first), KLEN));
      wall++;
    }
    const uint64_t each = (looked_at() - before) / (RECORDS / PARTS);
    if (each > 60) fail_msg("%llu looks a search in part %u", (unsigned long long)each, part);
    gaps_check();
  }
  remixdb_iter_destroy(it);
}

static void test_cost(void **state) {
  for (uint32_t way = 0; way < 8; way++) {
    if (way) CHECK(end(state) == 0 && begin(state) == 0);
    expire_all(way & 1, way & 2 ? 3 : 0, way & 4);
  }
}

// ---- tables

// Seeks of the first record that is left, and of the last one, over many that have expired in tables: only the first
// seek comes to all their segments. A reader by an earlier clock finds them. newer: so many of them have a newer
// version in the memtable, and a newer record lies among them.
static void lapsed(bool back, bool newer) {
  enum { FROM = RECORDS / 8, TO = RECORDS };
  wall = START;
  for (uint32_t i = 0; i < TO + FROM; i++) put(i, i < FROM || i >= TO ? START + 100000 : START + 10 + i % 50);
  CHECK(remixdb_compact(r));
  const uint32_t mid = (FROM + TO) / 2;
  if (newer) {
    for (uint32_t i = mid + 1; i < mid + 100; i++) CHECK(remixdb_del(r, key_of(i), KLEN));
    put(mid + 50, 0);
  }
  struct xdb_snapshot *const snap = remixdb_snapshot(r);
  struct xdb_ref *const old = remixdb_snapshot_ref(snap);
  struct xdb_iter *const it = remixdb_iter_create(r), *const was = remixdb_iter_create(old);
  const uint32_t edge = back ? TO : FROM - 1, past = back ? FROM - 1 : TO;
  for (uint32_t i = 0; i < 6; i++) {
    wall = START + (i == 3 ? 30 : 100);
    const uint64_t before = atomic_load(&remix_counters.segments);
    if (back) remixdb_iter_seek_for_prev(it, key_of(edge), KLEN);
    else remixdb_iter_seek(it, key_of(edge), KLEN);
    CHECK(at(it) == edge);
    if (back) remixdb_iter_prev(it);
    else remixdb_iter_skip1(it);
    if (newer && i != 3) {
      CHECK(at(it) == mid + 50);
      if (back) remixdb_iter_prev(it);
      else remixdb_iter_skip1(it);
    }
    const uint64_t segs = atomic_load(&remix_counters.segments) - before;
    if (i == 3) {  // the clock was set back
      const uint32_t next = back ? edge - 1 : edge + 1;
      CHECK(at(it) != past && (START + 10 + next % 50 <= wall || at(it) == next));
    } else {
      CHECK(at(it) == past);
      if (i > 0 && segs > 16) fail_msg("%llu segments", (unsigned long long)segs);
    }
    remixdb_iter_seek(was, key_of(FROM), KLEN);
    CHECK(at(was) == FROM);
    remixdb_iter_seek_for_prev(was, key_of(TO - 1), KLEN);
    CHECK(at(was) == TO - 1);
  }
  remixdb_iter_destroy(it);
  remixdb_iter_destroy(was);
  remixdb_unref(old);
  remixdb_snapshot_release(snap);
}

static void test_lapsed(void **state) {
  for (uint32_t way = 0; way < 4; way++) {
    if (way) CHECK(end(state) == 0 && begin(state) == 0);
    lapsed(way & 1, way & 2);
  }
}

// A transaction with an earlier clock has read a record that readers pass as expired, in a gap, when it is deleted. Its
// commit fails.
static void test_txn_clock(void **state) {
  (void)state;
  enum { NR = 600 };
  for (uint32_t i = 0; i < NR; i++) put(i, i == NR / 2 ? START + 50 : 0);
  for (uint32_t i = 0; i + 1 < NR; i++)
    if (i != NR / 2) CHECK(remixdb_del(r, key_of(i), KLEN));
  for (uint32_t lost = 0; lost < 2; lost++) {
    wall = START;
    struct xdb_txn *const t = remixdb_txn_begin(x);
    struct xdb_ref *const in = remixdb_txn_ref(t, NULL);
    struct xdb_iter *const early = remixdb_iter_create(in), *const late = remixdb_iter_create(r);
    remixdb_iter_seek(early, "", 0);
    CHECK(at(early) == NR / 2);
    remixdb_iter_skip1(early);
    CHECK(at(early) == NR - 1);
    wall = START + 100;
    for (uint32_t i = 0; i < 3; i++) remixdb_iter_seek(late, "", 0);
    CHECK(at(late) == NR - 1);
    if (lost) CHECK(remixdb_del(r, key_of(NR / 2), KLEN));
    remixdb_iter_destroy(early);
    remixdb_iter_destroy(late);
    CHECK(remixdb_put(in, "elsewhere", 9, "", 0));
    CHECK(remixdb_txn_commit(t) == !lost && remixdb_errcode() == (lost ? REMIXDB_ABORTED : REMIXDB_OK));
  }
}

// ---- a model

enum { KEYS = 3000, SHOTS = 4 };

struct picture {
  uint64_t expires[KEYS];  // 0: not there; UINT64_MAX: never
};

struct shot {
  struct xdb_snapshot *s;
  struct xdb_ref *ref;
  struct xdb_iter *it;
  struct picture was;
  uint64_t clock;
};

static struct picture now;
static struct shot shots[SHOTS];
static int64_t low = 0, high = KEYS;  // bounds of the iterator that is checked

// The first key there at or behind n, or at or before it, by this clock; -1: none.
static int64_t nearest(const struct picture *p, uint64_t clock, int64_t n, bool back) {
  for (; n >= low && n < high; n += back ? -1 : 1)
    if (p->expires[n] > clock) return n;
  return -1;
}

static void seek(struct xdb_iter *it, const struct picture *p, uint64_t clock) {
  const int64_t i = (int64_t)below(&check_seed, KEYS);
  const uint64_t way = below(&check_seed, 4);
  int64_t n = way == 0 ? 0 : way == 1 ? KEYS - 1 : i;
  bool back = way == 1 || way == 2;
  if (way == 0) remixdb_iter_seek(it, NULL, 0);
  else if (way == 1) remixdb_iter_seek_last(it);
  else if (way == 2) remixdb_iter_seek_for_prev(it, key_of((uint32_t)i), KLEN);
  else remixdb_iter_seek(it, key_of((uint32_t)i), KLEN);
  if (!back && n < low) n = low;
  if (back && n >= high) n = high - 1;
  n = nearest(p, clock, n, back);
  for (uint64_t steps = below(&check_seed, 6);; steps--) {
    CHECK(at(it) == n);
    if (n < 0 || steps == 0) return;
    if (chance(&check_seed, 20)) back = !back;
    if (back) remixdb_iter_prev(it);
    else remixdb_iter_skip1(it);
    n = nearest(p, clock, n + (back ? -1 : 1), back);
  }
}

static void shot_drop(struct shot *t) {
  if (!t->s) return;
  remixdb_iter_destroy(t->it);
  remixdb_unref(t->ref);
  remixdb_snapshot_release(t->s);
  t->s = NULL;
}

static void shot_take(struct shot *t) {
  shot_drop(t);
  *t = (struct shot){.was = now, .clock = wall, .s = remixdb_snapshot(r)};
  CHECK(t->s && (t->ref = remixdb_snapshot_ref(t->s)) && (t->it = remixdb_iter_create(t->ref)));
}

static void set(uint32_t i, uint64_t expires) {
  put(i, expires);
  now.expires[i] = !expires ? UINT64_MAX : expires > wall ? expires : 0;  // in the past: a deletion
}

// Writes neighbours. Most expire soon.
static void write_some(void) {
  const uint32_t i = (uint32_t)below(&check_seed, KEYS), nr = 1 + (uint32_t)below(&check_seed, 300);
  const uint64_t way = below(&check_seed, 10);
  for (uint32_t k = i; k < KEYS && k < i + nr; k++) {
    if (way < 6) {
      set(k, wall + below(&check_seed, 40));  // some at once
    } else if (way == 6) {
      CHECK(remixdb_del(r, key_of(k), KLEN));
      now.expires[k] = 0;
    } else {
      set(k, way == 7 ? 0 : wall + 1 + below(&check_seed, 1000));
      if (k > i + 1) return;
    }
  }
}

// Seeks of an iterator with bounds.
static void seek_bounded(void) {
  struct remixdb_iter_opts o;
  char keys[2][KLEN + 1];
  remixdb_iter_opts_init(&o, sizeof(o));
  low = (int64_t)below(&check_seed, KEYS);
  high = low + 1 + (int64_t)below(&check_seed, (uint64_t)(KEYS - low));
  memcpy(keys[0], key_of((uint32_t)low), KLEN);
  memcpy(keys[1], key_of((uint32_t)high), KLEN);
  o.bounds = (struct remixdb_range){{keys[0], KLEN}, {keys[1], KLEN}};
  struct xdb_iter *const it = remixdb_iter_create_opts(r, &o);
  CHECK(it);
  for (uint32_t i = 0; i < 10; i++) seek(it, &now, wall);
  remixdb_iter_destroy(it);
  low = 0;
  high = KEYS;
}

static void test_model(void **state) {
  (void)state;
  struct xdb_iter *const it = remixdb_iter_create(r);
  now = (struct picture){{0}};
  for (uint32_t n = 0; n < 60000 / SLOW; n++) {
    const uint64_t dice = below(&check_seed, 1000);
    struct shot *const t = &shots[below(&check_seed, SHOTS)];
    if (dice < 100) write_some();
    else if (dice < 200) wall += below(&check_seed, 30);
    else if (dice < 220) wall -= below(&check_seed, 40);
    else if (dice < 240) shot_take(t);
    else if (dice < 250) shot_drop(t);
    else if (dice < 252 && !xdb_super(x)->frozen) freeze();
    else if (dice < 253) thaw();
    else if (dice < 254 && !xdb_super(x)->frozen) CHECK(remixdb_compact(r));
    else if (dice < 260) gaps_check();
    else if (dice < 270) seek_bounded();
    else if (dice < 450 && t->s) seek(t->it, &t->was, t->clock);
    else seek(it, &now, wall);
  }
  for (uint32_t i = 0; i < SHOTS; i++) shot_drop(&shots[i]);
  remixdb_iter_destroy(it);
}

// ---- a record of the frozen memtable that expires among tombstones of the active one

static void frozen_one(uint32_t one, bool back) {
  const uint32_t last = 300;
  const uint64_t early = wall;
  put(one, early + 10);
  put(back ? 0 : last, 0);
  freeze();
  for (uint32_t i = back; i < last + back; i++)
    if (i != one) CHECK(remixdb_del(r, key_of(i), KLEN));
  struct xdb_iter *const it = remixdb_iter_create(r);
  for (uint32_t i = 0; i < 6; i++) {
    wall = early + (i % 3 == 2 ? 5 : 10);
    if (back) remixdb_iter_seek_last(it);
    else remixdb_iter_seek(it, NULL, 0);
    CHECK(at(it) == (i % 3 == 2 ? one : back ? 0 : last));
  }
  remixdb_iter_destroy(it);
  thaw();
  for (uint32_t i = 0; i < last + 1; i++) CHECK(remixdb_del(r, key_of(i), KLEN));
  wall = early + 20;
}

static void test_frozen_one(void **state) {
  (void)state;
  for (uint32_t back = 0; back < 2; back++)
    for (uint32_t one = 0; one < 300; one += one < 10 ? 1 : 29) frozen_one(back ? 300 - one : one, back);
}

// ---- threads

enum { AREA = 20000, READERS = 2 };

static _Atomic uint32_t first_put;  // no key before this one was put lately

static void *read_first(void *arg) {
  (void)arg;
  struct xdb_ref *const ref = remixdb_ref(x);
  struct xdb_iter *const it = remixdb_iter_create(ref);
  for (uint32_t most = AREA; most > 0;) {
    most = atomic_load(&first_put);
    remixdb_iter_seek(it, NULL, 0);
    const int64_t got = at(it);
    THREAD_CHECK(got >= 0 && got <= most);
  }
  remixdb_iter_destroy(it);
  remixdb_unref(ref);
  return NULL;
}

// Puts come nearer and nearer to the beginning, each into an area in which all has expired.
static void test_threads(void **state) {
  (void)state;
  pthread_t ids[READERS];
  for (uint32_t i = 0; i < AREA; i++) put(i, wall + 1 + i % 7);
  wall += 8;
  put(AREA, 0);
  atomic_store(&first_put, AREA);
  for (uint32_t i = 0; i < READERS; i++) CHECK(pthread_create(&ids[i], NULL, read_first, NULL) == 0);
  for (uint32_t n = AREA; n > 0;) {
    const uint32_t by = 1 + (uint32_t)below(&check_seed, 40);
    n -= by < n ? by : n;
    put(n, wall + 1);
    wall++;
    put(n, n % 2 ? 0 : wall + AREA);
    atomic_store(&first_put, n);
  }
  for (uint32_t i = 0; i < READERS; i++) CHECK(pthread_join(ids[i], NULL) == 0);
  gaps_check();
}

int main(void) {
  hang_alarm();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_cost, begin, end),
      cmocka_unit_test_setup_teardown(test_lapsed, begin, end),
      cmocka_unit_test_setup_teardown(test_txn_clock, begin, end),
      cmocka_unit_test_setup_teardown(test_model, begin, end),
      cmocka_unit_test_setup_teardown(test_frozen_one, begin, end),
      cmocka_unit_test_setup_teardown(test_threads, begin, end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
