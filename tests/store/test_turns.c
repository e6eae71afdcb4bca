// SPDX-License-Identifier: Apache-2.0
//
// Iterators that turn round in the midst of rounds. A round hands records back to the active memtable under their old
// numbers. An iterator over both memtables sees them come at its own moment, on either side of the key where it stands.
// All the same it shows each key of its moment once, and in order.
//
// TEST_SEED in the environment repeats a run's random choices.
#include "base/thread.h"
#include "tests/lib/check.h"
#include "tests/lib/expect.h"
#include "tests/lib/past.h"
#include "tests/lib/starve.h"

// Percent of the writes that go to few keys. The other partitions get so little that a round hands it back.
#define MOST 97u

static const struct xdb *store;
static enum remixdb_status (*hand_back)(void *arg, struct worker *w, uint32_t tree, const struct kv_rec *rec);
static _Atomic uint64_t nr_back;  // records that were handed back

// Small memtables and tables, so that the store has several partitions and many rounds.
static struct xdb *turns_open(const struct remixdb_opts *o) {
  expect_reads(check_seed);
  starve(check_seed % 4 == 3);
  struct xdb *const x = quick_open(o);
  shrink(x, 1u << 20, 8);
  x->compact.memtable_size *= 2;  // a round may hand back an eighth of a memtable
  x->compact.young_from = check_seed / 2 % 2 ? 2 : 0;
  store = x;
  return x;
}

// The store has its first records. From now on `hook` comes before each record that a round hands back.
static void turns_begin(struct xdb *x, enum remixdb_status (*hook)(void *arg, struct worker *w, uint32_t tree,
                                                                   const struct kv_rec *rec)) {
  OK(xdb_flush(x));
  OK(xdb_wait_idle(x));
  CHECK(stat_of(x, "partitions") > 1);
  x->compact.young_from = 0;  // a partition whose young view begins or grows is too cheap to be handed back
  hand_back = x->compact.hand_back;
  x->compact.hand_back = hook;
}

static void turns_close(struct xdb *x) {
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
  setup_again();
  starve(false);
}

static uint64_t rounds_of(const struct xdb *x) { return atomic_load(&x->compact.stats.rounds); }

// ---- one thread and a model. Without workers the iterators move between the records that are handed back.

#define MIDS 4u

struct shot {
  struct xdb_snapshot *s;
  struct xdb_ref *ref;
  struct past_cursor c;
  uint64_t time;  // the model's
};

static struct mids {
  struct past m;
  struct xdb_ref *ref;               // not the writer's, which may be in a call
  struct past_cursor cursors[MIDS];  // with options at random
  struct shot shots[MIDS];
  uint64_t sought;         // the round in which all iterators were sought
  _Atomic uint64_t round;  // the round that hands back now, or has done so last
} mids;

static void shot_drop(struct shot *t) {
  past_cursor_drop(&t->c);
  remixdb_unref(t->ref);
  remixdb_snapshot_release(t->s);
  *t = (struct shot){0};
}

static enum seek_kind mid_how(void) { return (enum seek_kind)below(&mids.m.rng, SEEK_KINDS); }

// Seeks all iterators, so that they have the memtables of this round.
static void mid_seek(void) {
  struct past *const m = &mids.m;
  mids.sought = atomic_load(&mids.round);
  for (uint32_t i = 0; i < MIDS; i++) {
    struct past_cursor *const c = &mids.cursors[i];
    struct shot *const t = &mids.shots[i];
    past_cursor_drop(c);
    past_cursor_make(m, c, mids.ref, m->time);
    past_cursor_seek(m, c, mids.ref, m->time, mid_how());
    if (t->s && chance(&m->rng, 70)) shot_drop(t);
    if (!t->s) {
      CHECK((t->s = remixdb_snapshot(mids.ref)) && (t->ref = remixdb_snapshot_ref(t->s)));
      t->time = m->time;
    }
    past_cursor_seek(m, &t->c, t->ref, t->time, mid_how());
  }
}

// A few steps of one of them, now one way and now the other.
static void mid_walk(void) {
  struct past *const m = &mids.m;
  const uint32_t i = (uint32_t)below(&m->rng, MIDS);
  const bool of_shot = chance(&m->rng, 50);
  struct shot *const t = &mids.shots[i];
  struct past_cursor *const c = of_shot ? &t->c : &mids.cursors[i];
  for (uint32_t n = 0; n < 3 && past_cursor_valid(m, c); n++) {
    const uint64_t dice = below(&m->rng, 100);
    if (dice < 45) past_cursor_prev(m, c);
    else if (dice < 80) past_cursor_skip(m, c, 1);
    else if (dice < 90) past_cursor_skip(m, c, (uint32_t)below(&m->rng, 30));
    else past_cursor_pages(m, c);
  }
  if (!past_cursor_valid(m, c) || chance(&m->rng, 2))
    past_cursor_seek(m, c, of_shot ? t->ref : mids.ref, of_shot ? t->time : m->time, mid_how());
}

static enum remixdb_status mid_hand_back(void *arg, struct worker *w, uint32_t tree, const struct kv_rec *rec) {
  atomic_store(&mids.round, rounds_of(store) + 1);
  atomic_fetch_add(&nr_back, 1);
  if (workers_count(store->workers)) {
    time_sleep_ns(20000);  // the test's thread walks meanwhile
  } else {
    static uint8_t other[PAST_VLEN_MAX + 1];
    uint8_t *const buf = mids.m.buf;  // the put that has met the round has its value there
    mids.m.buf = other;
    if (mids.sought != atomic_load(&mids.round)) mid_seek();
    for (uint32_t n = 0; n < 2; n++) mid_walk();
    mids.m.buf = buf;
  }
  return hand_back(arg, w, tree, rec);
}

static void run_mids(uint64_t s, int workers, uint32_t rounds) {
  struct past *const m = &mids.m;
  check_seed = s;
  past_init(m, s % 2 ? KEYS_TEXT : KEYS_MIXED, 8000, 60);
  struct remixdb_opts o = small_opts(workers);
  o.tags = chance(&m->rng, 50);
  o.ckeys = chance(&m->rng, 50);
  struct xdb *const x = turns_open(&o);
  struct xdb_ref *const ref = remixdb_ref(x);
  CHECK(ref && (mids.ref = remixdb_ref(x)));
  for (uint32_t i = 0; i < m->nr; i++)
    if (!chance(&m->rng, 30)) CHECK(past_put(m, ref, i));
  OK(xdb_flush(x));
  for (uint32_t n = 0; n < 100; n++) CHECK(past_put(m, ref, (uint32_t)below(&m->rng, m->nr)));
  memset(mids.cursors, 0, sizeof(mids.cursors));
  memset(mids.shots, 0, sizeof(mids.shots));
  mids.sought = 0;
  atomic_store(&mids.round, 0);
  turns_begin(x, mid_hand_back);
  for (const uint64_t until = rounds_of(x) + rounds; rounds_of(x) < until;) {
    const uint32_t hot = m->nr / 2 + (uint32_t)below(&m->rng, 200);
    const uint32_t i = chance(&m->rng, MOST) ? hot : (uint32_t)below(&m->rng, m->nr);
    CHECK(chance(&m->rng, 20) ? past_del(m, ref, i) : past_put(m, ref, i));
    if (mids.sought != atomic_load(&mids.round)) mid_seek();
    if (mids.sought && chance(&m->rng, mids.sought > rounds_of(x) ? 60 : 5)) mid_walk();
  }
  OK(xdb_wait_idle(x));
  for (uint32_t i = 0; i < MIDS; i++) {
    past_cursor_drop(&mids.cursors[i]);
    shot_drop(&mids.shots[i]);
  }
  past_check_all(m, ref, m->time);
  remixdb_unref(mids.ref);
  remixdb_unref(ref);
  past_fini(m);
  turns_close(x);
}

static void test_within(void **state) {
  (void)state;
  atomic_store(&nr_back, 0);
  for (uint32_t i = 0; i < 4; i++) run_mids(check_seed_or(60) + i, 0, 5);
  print_message("%llu records handed back\n", (unsigned long long)atomic_load(&nr_back));
  CHECK(atomic_load(&nr_back) > 100);
}

static void test_beside(void **state) {
  (void)state;
  atomic_store(&nr_back, 0);
  for (uint32_t i = 0; i < 3; i++) run_mids(check_seed_or(70) + i, 1, 7);
  print_message("%llu records handed back\n", (unsigned long long)atomic_load(&nr_back));
  CHECK(atomic_load(&nr_back) > 100);
}

// ---- threads that write and threads that read. A scan of the same moment, which does not turn, tells what is right.

#define KEYS 6000u
#define PAGE 40u

static _Atomic bool stop;
static _Atomic uint64_t walks;

static uint32_t key_of(uint32_t i, char buf[16]) { return (uint32_t)snprintf(buf, 16, "%06u", i); }

static uint32_t any_key(uint64_t *rng) {
  return (uint32_t)(chance(rng, MOST) ? KEYS / 2 + below(rng, 200) : below(rng, KEYS));
}

static bool write_one(struct xdb_ref *r, uint64_t *rng) {
  char key[16];
  uint64_t value[4] = {rng_next(rng)};
  const uint32_t klen = key_of(any_key(rng), key);
  return chance(rng, 20) ? remixdb_del(r, key, klen) : remixdb_put(r, key, klen, value, 8 + (uint32_t)below(rng, 24));
}

struct walker {
  struct xdb *x;
  uint64_t rng;
  struct seen {
    char key[16];
    uint32_t klen, vlen;
    uint64_t value;
  } is[KEYS];  // the moment's contents
  uint32_t nr;
};

static void *write_main(void *arg) {
  struct walker *const t = arg;
  struct xdb_ref *const r = remixdb_ref(t->x);
  THREAD_CHECK(r);
  while (!atomic_load(&stop)) THREAD_CHECK(write_one(r, &t->rng));
  remixdb_unref(r);
  return NULL;
}

static void look(struct xdb_iter *it, struct seen *s) {
  const void *const key = remixdb_iter_key(it, &s->klen);
  THREAD_CHECK(key && s->klen < sizeof(s->key));
  memcpy(s->key, key, s->klen);
  const void *const value = remixdb_iter_value(it, &s->vlen);
  THREAD_CHECK(value && s->vlen >= 8);
  memcpy(&s->value, value, 8);
}

static void scan(struct walker *t, struct xdb_ref *r) {
  struct xdb_iter *const it = remixdb_iter_create(r);
  THREAD_CHECK(it);
  t->nr = 0;
  for (remixdb_iter_seek(it, NULL, 0); remixdb_iter_valid(it); remixdb_iter_skip1(it)) {
    struct seen *const s = &t->is[t->nr++];
    look(it, s);
    THREAD_CHECK(t->nr < KEYS);
    THREAD_CHECK(t->nr == 1 || kv_cmp(kref(s[-1].key, s[-1].klen), kref(s->key, s->klen)) < 0);
  }
  THREAD_CHECK(remixdb_iter_status(it) == REMIXDB_OK);
  remixdb_iter_destroy(it);
}

// The first key that is not smaller.
static int64_t rank_of(const struct walker *t, struct kref key) {
  uint32_t lo = 0, hi = t->nr;
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (kv_cmp(kref(t->is[mid].key, t->is[mid].klen), key) < 0) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

static bool within(const struct walker *t, int64_t at) { return at >= 0 && at < (int64_t)t->nr; }

// The iterator stands on key `at` of the moment.
static void stands(const struct walker *t, struct xdb_iter *it, int64_t at) {
  struct seen s;
  THREAD_CHECK(remixdb_iter_status(it) == REMIXDB_OK && remixdb_iter_valid(it) == within(t, at));
  if (!within(t, at)) return;
  look(it, &s);
  const struct seen *const want = &t->is[at];
  THREAD_CHECK(kv_eq(kref(s.key, s.klen), kref(want->key, want->klen)) && s.vlen == want->vlen &&
               s.value == want->value);
}

// Reads a page and unreads some of its records. Returns where the iterator stands then.
static int64_t page(struct walker *t, struct xdb_iter *it, int64_t at) {
  static _Thread_local uint8_t room[PAGE * 64];
  uint32_t klens[PAGE];
  const bool back = chance(&t->rng, 50);
  struct remixdb_page p = {.ptr = room, .cap = sizeof(room), .klens = klens, .back = back};
  p.max = 1 + (uint32_t)below(&t->rng, PAGE);
  THREAD_CHECK(remixdb_iter_page(it, &p));
  const uint8_t *key = room;
  for (uint32_t i = 0; i < p.nr; key += klens[i++], at += back ? -1 : 1)
    THREAD_CHECK(within(t, at) && kv_eq(kref(key, klens[i]), kref(t->is[at].key, t->is[at].klen)));
  const uint32_t nr = (uint32_t)below(&t->rng, p.nr + 1);
  THREAD_CHECK(remixdb_iter_unread(it, &p, nr));
  return back ? at + nr : at - nr;
}

static void seek(struct xdb_iter *it, uint32_t i, bool back) {
  char key[16];
  const uint32_t klen = key_of(i, key);
  if (back) remixdb_iter_seek_for_prev(it, key, klen);
  else remixdb_iter_seek(it, key, klen);
}

// Where that seek leads.
static int64_t place_of(const struct walker *t, uint32_t i, bool back) {
  char buf[16];
  const struct kref key = kref(buf, key_of(i, buf));
  const int64_t at = rank_of(t, key);
  return at - (back && !(within(t, at) && kv_eq(kref(t->is[at].key, t->is[at].klen), key)));
}

static void walk(struct walker *t, struct xdb_iter *it, int64_t at) {
  for (uint32_t n = 0; n < 300; n++) {
    stands(t, it, at);
    const uint64_t dice = below(&t->rng, 100);
    if (!within(t, at) || dice < 1) {
      const uint32_t i = (uint32_t)below(&t->rng, KEYS);
      const bool back = chance(&t->rng, 50);
      seek(it, i, back);
      at = place_of(t, i, back);
    } else if (dice < 45) {
      remixdb_iter_prev(it);
      at--;
    } else if (dice < 80) {
      remixdb_iter_skip1(it);
      at++;
    } else if (dice < 90) {
      const uint32_t nr = (uint32_t)below(&t->rng, 30);
      remixdb_iter_skip(it, nr);
      at = at + nr < (int64_t)t->nr ? at + nr : (int64_t)t->nr;
    } else {
      at = page(t, it, at);
    }
    if (chance(&t->rng, 5)) time_sleep_ns(20000);
  }
}

static void *walk_main(void *arg) {
  struct walker *const t = arg;
  struct xdb_ref *const r = remixdb_ref(t->x);
  THREAD_CHECK(r);
  while (!atomic_load(&stop)) {
    struct xdb_snapshot *const s = remixdb_snapshot(r);
    struct xdb_ref *const then = remixdb_snapshot_ref(s);
    struct xdb_iter *const it = remixdb_iter_create(then);
    THREAD_CHECK(s && then && it);
    const uint32_t i = (uint32_t)below(&t->rng, KEYS);
    const bool back = chance(&t->rng, 50);
    seek(it, i, back);  // before the scan, during which a round may hand back
    scan(t, then);
    walk(t, it, place_of(t, i, back));
    remixdb_iter_destroy(it);
    remixdb_unref(then);
    remixdb_snapshot_release(s);
    atomic_fetch_add(&walks, 1);
  }
  remixdb_unref(r);
  return NULL;
}

// Slows the round down, so that iterators turn in the midst of it.
static enum remixdb_status slow_hand_back(void *arg, struct worker *w, uint32_t tree, const struct kv_rec *rec) {
  atomic_fetch_add(&nr_back, 1);
  time_sleep_ns(100000);
  return hand_back(arg, w, tree, rec);
}

static void run_threads(uint64_t s, int workers) {
  check_seed = s;
  const struct remixdb_opts o = small_opts(workers);
  struct xdb *const x = turns_open(&o);
  struct xdb_ref *const ref = remixdb_ref(x);
  uint64_t rng = s;
  char key[16];
  CHECK(ref);
  for (uint32_t i = 0; i < KEYS; i++)
    if (!chance(&rng, 30)) CHECK(remixdb_put(ref, key, key_of(i, key), "a first value of a key", 8 + i % 15));
  OK(xdb_flush(x));
  for (uint32_t n = 0; n < 100; n++)
    CHECK(remixdb_put(ref, key, key_of((uint32_t)below(&rng, KEYS), key), "a second value", 14));
  turns_begin(x, slow_hand_back);
  struct walker *const t = calloc(4, sizeof(*t));
  pthread_t threads[4];
  CHECK(t);
  atomic_store(&stop, false);
  atomic_store(&walks, 0);
  atomic_store(&nr_back, 0);
  for (uint32_t i = 0; i < 4; i++) {
    t[i].x = x;
    t[i].rng = s * 10 + i;
    OK(thread_start(&threads[i], i < 2 ? write_main : walk_main, &t[i], "turns"));
  }
  const uint64_t until = rounds_of(x) + 12 / SLOW;
  while (rounds_of(x) < until || atomic_load(&walks) < 250 / SLOW || atomic_load(&nr_back) < 200)
    time_sleep_ns(1000000);
  atomic_store(&stop, true);
  for (uint32_t i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  free(t);
  OK(xdb_wait_idle(x));
  print_message("%llu rounds, %llu walks, %llu records handed back\n", (unsigned long long)rounds_of(x),
                (unsigned long long)atomic_load(&walks), (unsigned long long)atomic_load(&nr_back));
  CHECK(remixdb_verify(ref));
  remixdb_unref(ref);
  turns_close(x);
}

static void test_threads(void **state) {
  (void)state;
  for (int workers = 1; workers < 3; workers++) run_threads(check_seed_or(80) + (uint64_t)workers, workers);
}

// An argument names the tests to run, as in "test_t*".
int main(int argc, char **argv) {
  hang_alarm();
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_within, setup, teardown),
      cmocka_unit_test_setup_teardown(test_beside, setup, teardown),
      cmocka_unit_test_setup_teardown(test_threads, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
