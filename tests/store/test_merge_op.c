// SPDX-License-Identifier: Apache-2.0
//
// remixdb_merge: the arguments of the function and its possible answers, for values in all places; and no update is
// lost: not between threads, not when a memtable is switched in the middle, not over a kill or a power cut.
//
// TEST_SEED in the environment repeats a run's random choices.
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/thread.h"
#include "tests/lib/check.h"
#include "tests/lib/fault.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/store.h"

// ---- a merge that notes its arguments

struct call {
  enum remixdb_merge_op op;
  const void *v1;  // a PUT's
  uint32_t v1len;
  uint32_t from, cut;  // v1 is the given value, without this many bytes in front and after
  bool own;            // the answer is that part
  uint32_t calls;
  bool there;
  uint32_t v0len;
  uint8_t v0[REMIXDB_KV_MAX];
};

static enum remixdb_merge_op call_fn(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  struct call *const c = priv;
  c->calls++;
  c->there = v0 != NULL;
  c->v0len = v0len;
  if (v0) memcpy(c->v0, v0, v0len);
  if (c->own) {
    CHECK(v0 && c->from + c->cut <= v0len);
    *v1 = (const uint8_t *)v0 + c->from;
    *v1len = v0len - c->from - c->cut;
  } else {
    *v1 = c->v1;
    *v1len = c->v1len;
  }
  return c->op;
}

static void decide_fn(struct remixdb_decision *d) {
  CHECK(d->op == REMIXDB_MERGE_KEEP && !d->v1 && d->v1len == 0);
  d->op = call_fn(d->v0, d->v0len, &d->v1, &d->v1len, d->priv);
}

static struct call now;  // too large for a stack
static bool by_decision;

static bool merge(struct xdb_ref *r, const char *key, struct call c) {
  now = c;
  struct remixdb_decision d = {.decide = decide_fn, .priv = &now, .op = REMIXDB_MERGE_DEL, .v1 = "left", .v1len = 4};
  return by_decision ? remixdb_merge_decide(r, key, (uint32_t)strlen(key), &d)
                     : remixdb_merge(r, key, (uint32_t)strlen(key), call_fn, &now);
}

static bool saw(const void *v0, uint32_t len) {
  return now.calls == 1 && now.there == (v0 != NULL) && now.v0len == len && (len == 0 || memcmp(now.v0, v0, len) == 0);
}

// The last of several calls.
static bool saw_last(const void *v0, uint32_t len) {
  return now.there && now.v0len == len && memcmp(now.v0, v0, len) == 0;
}

static bool holds(struct xdb_ref *r, const char *key, const void *val, uint32_t len) {
  static uint8_t got[REMIXDB_KV_MAX];
  uint32_t n = 0;
  if (!remixdb_getn(r, key, (uint32_t)strlen(key), got, sizeof(got), &n)) {
    CHECK(remixdb_errcode() == REMIXDB_NOTFOUND);
    return val == NULL;
  }
  return val && n == len && memcmp(got, val, n) == 0;
}

static struct call puts_text(const char *text) {
  return (struct call){.op = REMIXDB_MERGE_PUT, .v1 = text, .v1len = (uint32_t)strlen(text)};
}

static const struct call keep = {.op = REMIXDB_MERGE_KEEP, .v1 = "not used", .v1len = 8},
                         del = {.op = REMIXDB_MERGE_DEL};

static void test_answers(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(0);
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  CHECK(r);
  uint64_t seq = stat_of(x, "sequence");
  // nothing is there
  CHECK(merge(r, "k", keep) && saw(NULL, 0) && holds(r, "k", NULL, 0));
  CHECK(merge(r, "k", del) && saw(NULL, 0) && holds(r, "k", NULL, 0));
  CHECK(stat_of(x, "sequence") == seq);  // and nothing was written
  CHECK(merge(r, "k", puts_text("one")) && saw(NULL, 0) && holds(r, "k", "one", 3));
  CHECK(stat_of(x, "sequence") == seq + 1);
  // something is
  CHECK(merge(r, "k", keep) && saw("one", 3) && holds(r, "k", "one", 3));
  CHECK(stat_of(x, "sequence") == seq + 1);
  CHECK(merge(r, "k", puts_text("two and more")) && saw("one", 3) && holds(r, "k", "two and more", 12));
  CHECK(merge(r, "k", del) && saw("two and more", 12) && holds(r, "k", NULL, 0));
  CHECK(stat_of(x, "sequence") == seq + 3);
  // a deleted key is none
  CHECK(merge(r, "k", keep) && saw(NULL, 0));
  CHECK(merge(r, "k", del) && saw(NULL, 0) && stat_of(x, "sequence") == seq + 3);
  // an empty value is one
  CHECK(merge(r, "k", (struct call){.op = REMIXDB_MERGE_PUT}) && holds(r, "k", "", 0));
  CHECK(merge(r, "k", puts_text("")) && saw("", 0) && holds(r, "k", "", 0));
  CHECK(merge(r, "k", del) && saw("", 0) && holds(r, "k", NULL, 0));
  // the empty key
  CHECK(merge(r, "", puts_text("x")) && saw(NULL, 0) && merge(r, "", puts_text("y")) && saw("x", 1) &&
        holds(r, "", "y", 1));
  // a value that a record has no room for
  static uint8_t big[REMIXDB_KV_MAX];
  memset(big, 'b', sizeof(big));
  CHECK(merge(r, "big", (struct call){.op = REMIXDB_MERGE_PUT, .v1 = big, .v1len = REMIXDB_KV_MAX - 3}) &&
        holds(r, "big", big, REMIXDB_KV_MAX - 3));
  seq = stat_of(x, "sequence");
  CHECK(merge(r, "big", (struct call){.op = REMIXDB_MERGE_PUT, .v1 = big, .v1len = REMIXDB_KV_MAX - 2}) &&
        holds(r, "big", big, REMIXDB_KV_MAX - 2));
  CHECK(saw(big, REMIXDB_KV_MAX - 3));
  CHECK(merge(r, "big", (struct call){.op = REMIXDB_MERGE_PUT, .v1 = big, .v1len = REMIXDB_KV_MAX - 3}));
  CHECK(saw(big, REMIXDB_KV_MAX - 2));
  seq += 2;
  // answers that are none
  CHECK(!merge(r, "big", (struct call){.op = REMIXDB_MERGE_PUT, .v1 = NULL, .v1len = 5}) &&
        remixdb_errcode() == REMIXDB_INVALID && remixdb_errmsg()[0]);
  CHECK(!merge(r, "big", (struct call){.op = (enum remixdb_merge_op)77}) && remixdb_errcode() == REMIXDB_INVALID &&
        remixdb_errmsg()[0]);
  CHECK(holds(r, "big", big, REMIXDB_KV_MAX - 3) && stat_of(x, "sequence") == seq);
  // the leaf has been given up: others write
  CHECK(remixdb_put(r, "big", 3, "small", 5) && holds(r, "big", "small", 5));
  remixdb_unref(r);
  remixdb_close(x);
}

static void test_decisions(void **state) {
  by_decision = true;
  test_answers(state);
  by_decision = false;
}

static void decides_nothing(struct remixdb_decision *d) { ++*(uint32_t *)d->priv; }

// The function returns without an answer, as after an exception in another language. The caller's memory counts for
// nothing.
static void test_a_function_without_an_answer(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(0);
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  CHECK(r && remixdb_put(r, "k", 1, "value", 5));
  const uint64_t seq = stat_of(x, "sequence");
  for (uint32_t op = 0; op < 300; op++) {
    uint32_t calls = 0;
    struct remixdb_decision d = {
        .decide = decides_nothing, .priv = &calls, .op = (enum remixdb_merge_op)op, .v1 = "left", .v1len = 4};
    CHECK(remixdb_merge_decide(r, "k", 1, &d) && calls == 1 && d.op == REMIXDB_MERGE_KEEP);
    CHECK(d.v0len == 5 && d.v0 != NULL);
  }
  CHECK(holds(r, "k", "value", 5) && stat_of(x, "sequence") == seq);
  remixdb_unref(r);
  remixdb_close(x);
}

// The given value may lie in the active memtable, in the frozen one, in tables: cached, read past the cache,
// compressed, of several blocks. The answer may be a part of it.
static void test_places(void **state) {
  (void)state;
  static uint8_t val[40000];
  static const uint32_t lens[] = {1, 100, 3000, 9000, 40000};
  for (uint32_t variant = 0; variant < 4; variant++) {
    check_seed = check_seed_or(2) + variant;
    uint64_t rng = check_seed;
    struct remixdb_opts o = small_opts(0);
    o.cache_mb = variant % 2;
    o.compression = variant / 2 ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
    struct simdisk *const d = simdisk_create();
    (void)snprintf(dir, sizeof(dir), "/store");
    struct xdb *x;
    OK(xdb_open(dir, &o, simdisk_env(d), &x));
    struct xdb_ref *const r = remixdb_ref(x);
    CHECK(r);
    for (uint32_t place = 0; place < 4; place++) {
      for (uint32_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        for (uint32_t at = 0; at < lens[i]; at++) val[at] = (uint8_t)(rng_next(&rng) >> (at % 2 ? 60 : 56));
        CHECK(remixdb_put(r, "neighbour", 9, val, 100) && remixdb_put(r, "k", 1, val, lens[i]));
        if (place == 1 || place == 2) CHECK(remixdb_flush(r));
        if (place == 2) CHECK(remixdb_put(r, "other", 5, "x", 1));  // the memtable is not empty
        if (place == 3) {                                           // no room for tables: it stays frozen
          simdisk_fault_name(d, "0");
          simdisk_fault(d, SIMDISK_OPEN, 0, UINT64_MAX, ENOSPC);
          CHECK(!remixdb_flush(r) && remixdb_errcode() == REMIXDB_NOSPACE);
          CHECK(atomic_load(&x->super)->frozen != NULL);
        }
        const uint32_t half = lens[i] / 2;
        CHECK(merge(r, "k", keep) && saw(val, lens[i]));
        CHECK(merge(r, "k", (struct call){.op = REMIXDB_MERGE_PUT, .own = true, .from = lens[i] - half}) &&
              saw(val, lens[i]));
        CHECK(holds(r, "k", val + lens[i] - half, half));
        CHECK(merge(r, "k", (struct call){.op = REMIXDB_MERGE_PUT, .own = true, .cut = half / 2}) &&
              saw(val + lens[i] - half, half));
        CHECK(holds(r, "k", val + lens[i] - half, half - half / 2));
        CHECK(merge(r, "k", (struct call){.op = REMIXDB_MERGE_PUT, .own = true}));  // all of it
        CHECK(holds(r, "k", val + lens[i] - half, half - half / 2));
        CHECK(merge(r, "neighbour", del) && saw(val, 100) && holds(r, "neighbour", NULL, 0));
        CHECK(merge(r, "neighbour", keep) && saw(NULL, 0));
        simdisk_fault(d, SIMDISK_OPEN, 0, 0, 0);
        x->rounds.failed_ns = 0;
        CHECK(remixdb_flush(r));
        CHECK(merge(r, "neighbour", keep) && saw(NULL, 0));
        CHECK(holds(r, "k", val + lens[i] - half, half - half / 2));
      }
    }
    remixdb_unref(r);
    remixdb_close(x);
    CHECK(remixdb_errcode() == REMIXDB_OK);
    simdisk_destroy(d);
  }
}

// "Could not look" is not "not there": then the function is not asked.
static void test_failures(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts(0);
  o.cache_mb = 0;
  struct simdisk *const d = simdisk_create();
  (void)snprintf(dir, sizeof(dir), "/store");
  struct xdb *x;
  OK(xdb_open(dir, &o, simdisk_env(d), &x));
  struct xdb_ref *const r = remixdb_ref(x);
  CHECK(r && remixdb_put(r, "k", 1, "v", 1) && remixdb_flush(r));
  simdisk_fault(d, SIMDISK_READ, 0, UINT64_MAX, EIO);
  CHECK(!merge(r, "k", puts_text("w")) && remixdb_errcode() == REMIXDB_IO && remixdb_errmsg()[0] && now.calls == 0);
  simdisk_fault(d, SIMDISK_READ, 0, 0, 0);
  CHECK(merge(r, "k", keep) && saw("v", 1));
  // each allocation in turn: all of it or nothing
  uint32_t refused = 0;
  uint64_t sum = 0;
  for (uint32_t round = 0; round < 400; round++) {
    for (int64_t n = 1;; n++) {
      char key[300];
      memset(key, 'k', sizeof(key));
      (void)snprintf(key + 200 + round % 90, 10, "%05u", round * 1000 + (uint32_t)n);
      static uint8_t val[5000];
      store64le(val, ++sum);
      fault_mem_set(n);
      const bool good = merge(
          r, key, (struct call){.op = REMIXDB_MERGE_PUT, .v1 = val, .v1len = sizeof(val) - round % 40 * 100});
      const bool hit = fault_mem_end();
      CHECK(good || (hit && remixdb_errcode() == REMIXDB_NOMEM));
      CHECK(holds(r, key, good ? val : NULL, sizeof(val) - round % 40 * 100));
      refused += !good;
      x->rounds.failed_ns = 0;
      if (!hit) break;
    }
    if (round % 100 == 99) CHECK(remixdb_flush(r));
  }
  CHECK(refused > 0);
  remixdb_unref(r);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
  simdisk_destroy(d);
}

// ---- a memtable is switched while the function decides

struct switching {
  struct xdb *x;
  const char *then;             // written by another thread before the function ends; NULL: nothing
  enum remixdb_merge_op first;  // the first answer
  uint32_t calls;
  char seen[4][16];
  const struct super *old;
  _Atomic bool go, written;
};

static void *flush_main(void *arg) {
  struct switching *const s = arg;
  struct xdb_ref *const r = remixdb_ref(s->x);
  THREAD_CHECK(r);
  while (!atomic_load(&s->go)) time_sleep_ns(100000);
  THREAD_CHECK(remixdb_flush(r));  // freezes the memtable, takes no leaf's lock for it
  remixdb_unref(r);
  return NULL;
}

static void *write_main(void *arg) {
  struct switching *const s = arg;
  struct xdb_ref *const r = remixdb_ref(s->x);
  THREAD_CHECK(r);
  while (!atomic_load(&s->go) || atomic_load(&s->x->super) == s->old) time_sleep_ns(100000);
  if (s->then && *s->then) THREAD_CHECK(remixdb_put(r, "k", 1, s->then, (uint32_t)strlen(s->then)));
  else if (s->then) THREAD_CHECK(remixdb_del(r, "k", 1));
  atomic_store(&s->written, true);
  remixdb_unref(r);
  return NULL;
}

static enum remixdb_merge_op switch_fn(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  struct switching *const s = priv;
  CHECK(s->calls < 4 && v0len < sizeof(s->seen[0]));
  (void)snprintf(s->seen[s->calls], sizeof(s->seen[0]), "%.*s", v0 ? (int)v0len : 4, v0 ? (const char *)v0 : "none");
  *v1 = "merged";
  *v1len = 6;
  if (s->calls++) return REMIXDB_MERGE_PUT;
  s->old = atomic_load(&s->x->super);
  atomic_store(&s->go, true);
  while (!atomic_load(&s->written)) time_sleep_ns(100000);
  return s->first;
}

static void test_switched(void **state) {
  (void)state;
  // the value that is written meanwhile (NULL: none; "": a deletion), and the right end
  static const struct {
    const char *then;
    enum remixdb_merge_op first;
    uint32_t calls;
    const char *second, *end;
  } cases[] = {
      {NULL, REMIXDB_MERGE_PUT, 2, "first", "merged"}, {"newer", REMIXDB_MERGE_PUT, 2, "newer", "merged"},
      {"", REMIXDB_MERGE_PUT, 2, "none", "merged"},    {"newer", REMIXDB_MERGE_DEL, 2, "newer", "merged"},
      {"newer", REMIXDB_MERGE_KEEP, 1, NULL, "newer"}, {NULL, REMIXDB_MERGE_KEEP, 1, NULL, "first"},
  };
  for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    for (int place = 0; place < 2; place++) {  // the value's place: in the memtable, in a table
      const struct remixdb_opts o = small_opts(place);
      struct xdb *const x = quick_open(&o);
      struct xdb_ref *const r = remixdb_ref(x);
      CHECK(r && remixdb_put(r, "k", 1, "first", 5));
      if (place) CHECK(remixdb_flush(r) && remixdb_put(r, "other", 5, "x", 1));
      struct switching s = {.x = x, .then = cases[i].then, .first = cases[i].first};
      pthread_t t[2];
      OK(thread_start(&t[0], flush_main, &s, "flush"));
      OK(thread_start(&t[1], write_main, &s, "write"));
      CHECK(remixdb_merge(r, "k", 1, switch_fn, &s));
      CHECK(pthread_join(t[0], NULL) == 0 && pthread_join(t[1], NULL) == 0);
      // the end of the flush's round replaces the super once more, perhaps beside the second try
      const bool tries = s.calls == cases[i].calls || (cases[i].calls > 1 && s.calls == cases[i].calls + 1);
      CHECK_SAYS(tries && strcmp(s.seen[0], "first") == 0, "case %u, place %d: %u calls", i, place, s.calls);
      if (cases[i].second) CHECK(strcmp(s.seen[1], cases[i].second) == 0);
      CHECK(holds(r, "k", cases[i].end, (uint32_t)strlen(cases[i].end)));
      CHECK(remixdb_flush(r) && holds(r, "k", cases[i].end, (uint32_t)strlen(cases[i].end)));
      remixdb_unref(r);
      remixdb_close(x);
      setup_again();
    }
  }
}

// ---- counters

#define COUNTERS 10u
#define COUNTER_MAX 600u  // bytes of a value, at most

// A counter's value: the number, and bytes that follow from it, so that a torn one shows.
static uint32_t counter_value(uint64_t n, uint8_t *buf) {
  const uint32_t len = 8 + (uint32_t)(n * 37 % (COUNTER_MAX - 8));
  memset(buf, (int)n, len);
  store64le(buf, n);
  return len;
}

// THREAD_CHECKs, since it is called in threads too.
static uint64_t counter_parse(const void *val, uint32_t len) {
  uint8_t want[COUNTER_MAX];
  if (!val) return 0;
  THREAD_CHECK(len >= 8);
  const uint64_t n = load64le(val);
  THREAD_CHECK(n > 0 && counter_value(n, want) == len && memcmp(want, val, len) == 0);
  return n;
}

struct adding {
  uint64_t before;
  bool slow;  // now and then: so that others come as far as this function and wait
  uint8_t value[COUNTER_MAX];
};

static enum remixdb_merge_op add_fn(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  struct adding *const a = priv;
  a->before = counter_parse(v0, v0len);
  if (a->slow && a->before % 32 == 0) time_sleep_ns(20000);
  *v1 = a->value;
  *v1len = counter_value(a->before + 1, a->value);
  return REMIXDB_MERGE_PUT;
}

static uint32_t counter_key(uint32_t i, char buf[32]) { return (uint32_t)snprintf(buf, 32, "counter-%u", i); }

static uint64_t counter_get(struct xdb_ref *r, uint32_t i) {
  char kbuf[32];
  uint8_t val[COUNTER_MAX];
  uint32_t len;
  if (remixdb_getn(r, kbuf, counter_key(i, kbuf), val, sizeof(val), &len)) return counter_parse(val, len);
  THREAD_CHECK(remixdb_errcode() == REMIXDB_NOTFOUND);
  return 0;
}

#define ADDERS 8u

struct adder {
  struct xdb *x;
  uint32_t nr;                       // to add
  _Atomic uint8_t *taken[COUNTERS];  // by the number that was seen
  uint32_t *added;                   // by counter, of this thread
  _Atomic uint32_t *busy;
  uint64_t rng;
};

// Each number of a counter is seen by one adder only.
static void *add_main(void *arg) {
  struct adder *const a = arg;
  struct xdb_ref *const r = remixdb_ref(a->x);
  THREAD_CHECK(r);
  struct adding g = {.slow = true};
  char kbuf[32];
  for (uint32_t n = 0; n < a->nr; n++) {
    const uint32_t i = (uint32_t)below(&a->rng, COUNTERS);
    THREAD_CHECK(remixdb_merge(r, kbuf, counter_key(i, kbuf), add_fn, &g));
    THREAD_CHECK(g.before < (uint64_t)a->nr * ADDERS);
    THREAD_CHECK(atomic_exchange(&a->taken[i][g.before], 1) == 0);
    a->added[i]++;
    THREAD_CHECK(counter_get(r, i) > g.before);
  }
  remixdb_unref(r);
  atomic_fetch_sub(a->busy, 1);
  return NULL;
}

static void test_counters(void **state) {
  (void)state;
  for (int workers = 0; workers < 3; workers++) {
    check_seed = check_seed_or(10) + (uint64_t)workers;
    const struct remixdb_opts o = small_opts(workers);
    struct xdb *x = quick_open(&o);
    shrink(x, 120u << 10, 8);
    const uint32_t nr = 3000 / (SLOW < 8 ? SLOW : 8);  // enough for rounds beside them
    _Atomic uint32_t busy = ADDERS;
    _Atomic uint8_t *const taken = calloc((size_t)COUNTERS * ADDERS * nr, 1);
    uint32_t added[ADDERS][COUNTERS] = {{0}};
    struct adder a[ADDERS];
    pthread_t t[ADDERS];
    CHECK(taken);
    for (uint32_t i = 0; i < ADDERS; i++) {
      a[i] = (struct adder){.x = x, .nr = nr, .added = added[i], .busy = &busy, .rng = check_seed * 100 + i};
      for (uint32_t c = 0; c < COUNTERS; c++) a[i].taken[c] = taken + (size_t)c * ADDERS * nr;
      OK(thread_start(&t[i], add_main, &a[i], "add"));
    }
    struct xdb_ref *r = remixdb_ref(x);
    CHECK(r);
    uint64_t low[COUNTERS] = {0};
    while (atomic_load(&busy)) {  // compactions beside those that come by themselves; counters never fall
      CHECK(remixdb_flush(r));
      for (uint32_t c = 0; c < COUNTERS; c++) {
        const uint64_t n = counter_get(r, c);
        CHECK(n >= low[c]);
        low[c] = n;
      }
      time_sleep_ns(3000000);
    }
    for (uint32_t i = 0; i < ADDERS; i++) CHECK(pthread_join(t[i], NULL) == 0);
    const uint64_t rounds = stat_of(x, "rounds");
    for (int again = 0; again < 2; again++) {
      for (uint32_t c = 0; c < COUNTERS; c++) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < ADDERS; i++) sum += added[i][c];
        CHECK(counter_get(r, c) == sum);
      }
      remixdb_unref(r);
      remixdb_close(x);
      CHECK(remixdb_errcode() == REMIXDB_OK);
      if (again) break;
      x = quick_open(&o);
      r = remixdb_ref(x);
      CHECK(r);
    }
    print_message("%u additions, %llu rounds\n", ADDERS * nr, (unsigned long long)rounds);
    CHECK(rounds > 3);
    free((void *)taken);
    setup_again();
  }
}

// ---- long values, which are written with the leaf unlocked

// A put of another ref, made where the merge's thread writes its value: once for each decision, `left` times. It would
// wait for ever for a leaf that the merge has locked.
static struct {
  struct xdb_ref *r;
  const char *key;
  uint32_t left, calls;
} beside;

static void put_beside(void *arg) {
  (void)arg;
  if (beside.left == 0 || beside.calls == now.calls) return;
  beside.left--;
  beside.calls = now.calls;
  CHECK(remixdb_put(beside.r, beside.key, (uint32_t)strlen(beside.key), "beside", 6));
}

static void begin_beside(const char *key, uint32_t left) {
  beside.key = key;
  beside.left = left;
  beside.calls = UINT32_MAX;
}

static void test_long_values(void **state) {
  (void)state;
  enum { LONG = 20000, IN_VAIN = 4 };
  static uint8_t value[LONG];
  struct remixdb_opts o = small_opts(0);
  struct simdisk *const disk = simdisk_create();
  struct xdb *x;
  memset(value, 'v', sizeof(value));
  OK(xdb_open("/store", &o, simdisk_env(disk), &x));
  struct xdb_ref *const r = remixdb_ref(x);
  beside.r = remixdb_ref(x);
  CHECK(r && beside.r && remixdb_put(r, "k", 1, "old", 3));
  simdisk_on_change(disk, put_beside, NULL);
  const struct call to_long = {.op = REMIXDB_MERGE_PUT, .v1 = value, .v1len = LONG};
  begin_beside("l", 1);  // a neighbour
  CHECK(merge(r, "k", to_long) && now.calls == 1 && beside.left == 0);
  CHECK(holds(r, "k", value, LONG) && holds(r, "l", "beside", 6));
  for (uint32_t times = 1; times <= IN_VAIN; times++) {  // the key itself, which had a long value and a short one
    begin_beside("k", times);
    CHECK(merge(r, "k", to_long) && now.calls == 1 + times && beside.left == 0 && saw_last("beside", 6));
    CHECK(holds(r, "k", value, LONG));
  }
  begin_beside("none", 1);
  CHECK(remixdb_del(r, "none", 4) && merge(r, "none", to_long) && now.calls == 2 && saw_last("beside", 6));

  uint64_t version = 0;
  uint32_t len;
  char text[8];
  CHECK(remixdb_put(r, "c", 1, "old", 3) && remixdb_getv(r, "c", 1, text, sizeof(text), &len, &version));
  now.calls = 0;
  begin_beside("c", 1);
  CHECK(!remixdb_put_if(r, "c", 1, value, LONG, version) && remixdb_errcode() == REMIXDB_ABORTED);
  CHECK(beside.left == 0 && holds(r, "c", "beside", 6));
  CHECK(remixdb_getv(r, "c", 1, text, sizeof(text), &len, &version));
  CHECK(remixdb_put_if(r, "c", 1, value, LONG, version) && holds(r, "c", value, LONG));
  begin_beside("c", 0);
  struct call part = {.op = REMIXDB_MERGE_PUT, .own = true, .from = 10, .cut = 90};
  CHECK(merge(r, "k", part) && now.calls == 1 && holds(r, "k", value, LONG - 100));
  simdisk_on_change(disk, NULL, NULL);
  remixdb_unref(beside.r);
  remixdb_unref(r);
  OK(xdb_close(x));
  simdisk_destroy(disk);
}

// The old value of a merge is read outside of the ref's epoch, and once; if another thread puts another long value
// meanwhile, that one is read, too.
static struct {
  struct simdisk *disk;
  const struct xdb_ref *r;
  struct xdb_ref *other;  // puts `to` at the first read; NULL: nobody does
  uint8_t to[30000];
  uint32_t reads;
} watched;

static ssize_t watch_pread(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  if (watched.r && len > 20000) {
    watched.reads++;
    CHECK(atomic_load(&watched.r->slot.at) == 0);
    if (watched.other) CHECK(remixdb_put(watched.other, "k", 1, watched.to, sizeof(watched.to)));
    watched.other = NULL;
  }
  return simdisk_env(watched.disk)->ops->pread(e, fd, buf, len, off);
}

static void test_old_value(void **state) {
  (void)state;
  uint8_t *const value = watched.to;
  const uint32_t len = sizeof(watched.to);
  struct remixdb_opts o = small_opts(0);
  struct simdisk *const disk = watched.disk = simdisk_create();
  const struct env *const e = simdisk_env(disk);
  struct env_ops ops = *e->ops;
  ops.pread = watch_pread;
  struct env env = {.ops = &ops, .priv = e->priv, .clock = e->clock};
  struct xdb *x;
  OK(xdb_open("/store", &o, &env, &x));
  struct xdb_ref *const r = remixdb_ref(x), *const other = remixdb_ref(x);
  CHECK(r && other);
  struct call part = {.op = REMIXDB_MERGE_PUT, .own = true, .from = 10, .cut = 90};
  for (uint32_t turn = 0; turn < 4; turn++) {
    memset(value, (int)('a' + turn), len);
    CHECK(remixdb_put(r, "k", 1, value, len));
    if (turn & 1) CHECK(remixdb_flush(r));
    memset(value, turn & 2 ? 'z' : (int)('a' + turn), len);
    watched.reads = 0;
    watched.r = r;
    watched.other = turn & 2 ? other : NULL;
    CHECK(merge(r, "k", part) && now.calls == 1);
    watched.r = NULL;
    CHECK_SAYS(watched.reads == (turn & 2 ? 2 : 1), "%u reads", watched.reads);
    CHECK(holds(r, "k", value, len - 100));
  }
  remixdb_unref(other);
  remixdb_unref(r);
  OK(xdb_close(x));
  simdisk_destroy(disk);
}

// ---- a process that is killed

struct report {  // the counts that a successful sync covers
  uint64_t counters[COUNTERS];
};

struct child {
  struct xdb *x;
  int fd;
  uint64_t rng;
  bool syncs;
};

static void *child_main(void *arg) {
  struct child *const c = arg;
  struct xdb_ref *const r = remixdb_ref(c->x);
  THREAD_CHECK(r);
  struct adding g = {.slow = false};
  char kbuf[32];
  for (;;) {
    const uint32_t i = (uint32_t)below(&c->rng, COUNTERS);
    THREAD_CHECK(remixdb_merge(r, kbuf, counter_key(i, kbuf), add_fn, &g));
    if (!c->syncs || below(&c->rng, 50)) continue;
    struct report p;
    for (uint32_t k = 0; k < COUNTERS; k++) p.counters[k] = counter_get(r, k);
    THREAD_CHECK(remixdb_sync(r));
    if (write(c->fd, &p, sizeof(p)) != sizeof(p)) _exit(0);  // small enough to be written whole
  }
}

static _Noreturn void child_run(int fd, uint64_t s) {
  const struct remixdb_opts o = small_opts(1);
  struct xdb *x = NULL;
  THREAD_CHECK(xdb_open(dir, &o, env_posix(), &x) == REMIXDB_OK);
  x->memtable_limit = 150u << 10;
  x->compact.memtable_size = 150u << 10;
  struct child c[4];
  pthread_t t[4];
  for (uint32_t i = 0; i < 4; i++) {
    c[i] = (struct child){x, fd, s * 4 + i, i < 2};
    THREAD_CHECK(thread_start(&t[i], child_main, &c[i], "add") == REMIXDB_OK);
  }
  for (;;) pause();
}

static void test_killed(void **state) {
  (void)state;
  check_seed = check_seed_or(20);
  uint64_t rng = check_seed, total = 0, reports = 0;
  uint64_t low[COUNTERS] = {0};
  for (uint32_t round = 0; round < 8; round++) {
    int fds[2];
    CHECK(pipe(fds) == 0);
    (void)fflush(NULL);
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
      (void)close(fds[0]);
      child_run(fds[1], check_seed + round);
    }
    (void)close(fds[1]);
    // from its first report on it lives for a while
    struct report p;
    uint64_t until = 0;
    const uint64_t life = below(&rng, 60) * 1000000;
    bool killed = false;
    for (;;) {
      const ssize_t n = read(fds[0], &p, sizeof(p));
      CHECK(n == sizeof(p) || n == 0);
      if (n == 0) break;
      reports++;
      for (uint32_t k = 0; k < COUNTERS; k++)
        if (p.counters[k] > low[k]) low[k] = p.counters[k];
      if (!until) until = time_ns() + life;
      if (!killed && time_ns() >= until) {
        CHECK(kill(pid, SIGKILL) == 0);
        killed = true;
      }
    }
    int st;
    CHECK(waitpid(pid, &st, 0) == pid && killed && WIFSIGNALED(st) && WTERMSIG(st) == SIGKILL);
    (void)close(fds[0]);
    const struct remixdb_opts o = small_opts(0);
    struct xdb *const x = remixdb_open_opts(dir, &o);
    CHECK(x);
    struct xdb_ref *const r = remixdb_ref(x);
    CHECK(r);
    total = 0;
    for (uint32_t k = 0; k < COUNTERS; k++) {
      const uint64_t n = counter_get(r, k);
      if (n < low[k])
        fail_msg("TEST_SEED=%llu, kill %u: counter %u was %llu when it was synced, and is %llu",
                 (unsigned long long)check_seed, round, k, (unsigned long long)low[k], (unsigned long long)n);
      low[k] = n;
      total += n;
    }
    remixdb_unref(r);
    remixdb_close(x);
    CHECK(remixdb_errcode() == REMIXDB_OK);
  }
  print_message("%llu additions, %llu syncs reported\n", (unsigned long long)total, (unsigned long long)reports);
  CHECK(reports >= 8 && total > 100);
}

// ---- power cuts

// The counter that the n-th addition is to.
static uint32_t counter_of(uint64_t s, uint64_t n) {
  uint64_t rng = s * 1000003 + n;
  return (uint32_t)below(&rng, COUNTERS);
}

struct tally {
  uint64_t done, synced;
};

static void tally_run(struct simdisk *d, const struct remixdb_opts *o, uint64_t s, struct tally *y) {
  struct xdb *x;
  *y = (struct tally){0};
  if (xdb_open("/store", o, simdisk_env(d), &x) != REMIXDB_OK) return;
  shrink(x, 80u << 10, 8);
  struct xdb_ref *const r = remixdb_ref(x);
  CHECK(r);
  uint64_t rng = s;
  struct adding g = {.slow = false};
  char kbuf[32];
  for (uint64_t n = 0; n < 700; n++) {
    const bool good = remixdb_merge(r, kbuf, counter_key(counter_of(s, n), kbuf), add_fn, &g);
    if (!good) break;
    y->done = n + 1;
    if (o->sync == REMIXDB_SYNC_EACH) y->synced = y->done;
    if (chance(&rng, 2)) {
      if (!(chance(&rng, 70) ? remixdb_sync(r) : remixdb_flush(r))) break;
      y->synced = y->done;
    }
  }
  remixdb_unref(r);
  remixdb_close(x);
}

static void test_power(void **state) {
  (void)state;
  (void)snprintf(dir, sizeof(dir), "/store");
  uint64_t cuts = 0;
  for (uint32_t run = 0; run < 2; run++) {
    check_seed = check_seed_or(30) + run;
    struct remixdb_opts o = small_opts(0);
    o.cache_mb = 0;
    o.sync = run ? REMIXDB_SYNC_EACH : REMIXDB_SYNC_NONE;
    uint64_t calls = UINT64_MAX, stride = 1;
    for (uint64_t cut = UINT64_MAX; cut == UINT64_MAX || cut < calls; cut = cut == UINT64_MAX ? 0 : cut + stride) {
      struct simdisk *const d = simdisk_create();
      simdisk_no_allocate(d, true);
      simdisk_power_off(d, cut);
      struct tally y;
      tally_run(d, &o, check_seed, &y);
      if (cut == UINT64_MAX) {
        calls = simdisk_changes(d);
        stride = 1 + calls / (200 / SLOW);
      }
      for (uint64_t outcome = 0; outcome < 2 && cut != UINT64_MAX; outcome++) {
        struct simdisk *const left = simdisk_crash(d, check_seed * 77777 + cut * 3 + outcome);
        struct xdb *x;
        OK(xdb_open(dir, &o, simdisk_env(left), &x));
        struct xdb_ref *const r = remixdb_ref(x);
        CHECK(r);
        // the sum says how many there were; each counter must have its share of exactly these
        uint64_t sum = 0, want[COUNTERS] = {0};
        for (uint32_t c = 0; c < COUNTERS; c++) sum += counter_get(r, c);
        for (uint64_t n = 0; n < sum; n++) want[counter_of(check_seed, n)]++;
        for (uint32_t c = 0; c < COUNTERS; c++) CHECK(counter_get(r, c) == want[c]);
        if (sum < y.synced || sum > y.done + 1)
          fail_msg("TEST_SEED=%llu, cut %llu: %llu additions, %llu synced, and %llu are there",
                   (unsigned long long)check_seed, (unsigned long long)cut, (unsigned long long)y.done,
                   (unsigned long long)y.synced, (unsigned long long)sum);
        remixdb_unref(r);
        remixdb_close(x);
        CHECK(remixdb_errcode() == REMIXDB_OK);
        simdisk_destroy(left);
        cuts++;
      }
      simdisk_destroy(d);
    }
  }
  print_message("%llu power cuts\n", (unsigned long long)cuts);
  CHECK(cuts > 300 / SLOW);
}

// An argument names the tests to run, as in "test_p*".
int main(int argc, char **argv) {
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  hang_alarm();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_killed, setup, teardown),  // first: a process with threads must not fork
      cmocka_unit_test_setup_teardown(test_answers, setup, teardown),
      cmocka_unit_test_setup_teardown(test_decisions, setup, teardown),
      cmocka_unit_test_setup_teardown(test_a_function_without_an_answer, setup, teardown),
      cmocka_unit_test(test_places),
      cmocka_unit_test(test_failures),
      cmocka_unit_test_setup_teardown(test_switched, setup, teardown),
      cmocka_unit_test_setup_teardown(test_counters, setup, teardown),
      cmocka_unit_test(test_long_values),
      cmocka_unit_test(test_old_value),
      cmocka_unit_test(test_power),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
