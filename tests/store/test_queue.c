// SPDX-License-Identifier: Apache-2.0
//
// Cost of a queue: records come in at one end and are found and deleted at the other, for longer than a memtable lasts.
// Deleted records at the place where a search begins must not make the search look at more: the test counts entries of
// memtables, gaps and records of tables. Both ends, both directions, with snapshots, in batches, out of tables, several
// queues at a time, time series whose oldest range is deleted, and keys that come to where the queue has gone already.
// The first keys found are compared with a model of the queue.
//
// Then what makes a gap invalid, one case at a time.
//
// TEST_SEED in the environment repeats a run's random choices.
#define WH_COUNTERS 1
#define REMIX_COUNTERS 1
#include "wh/cursor.c"
#undef AHEAD
#undef FLOW
#undef SPOT
#undef ENTRY_HEAD
#include "wh/pass.c"
#include "remix/cursor.c"
#include "remix/remix.c"
#include "view/merge.c"

#include "tests/lib/check.h"
#include "xdb.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/store.h"

static uint32_t cycles;  // set by main
#define PARTS 8u         // in which the cycles are counted
#define SHOTS 4u

struct cost {
  uint64_t seeks, looks, worst;
};

static uint64_t looked_at(void) {
  const struct wh_counters *const w = &wh_counters;
  const struct remix_counters *const r = &remix_counters;
  return atomic_load(&w->entries) + atomic_load(&w->hops) + atomic_load(&w->checked) + atomic_load(&r->records) +
         atomic_load(&r->key_reads) + atomic_load(&r->segments);
}

enum {
  BACK = 1,  // goes out at the end of the key space and grows at its beginning
  SNAPS = 2,
  BATCHES = 4,
  TABLES = 8,        // all of it has come before, and lies in tables
  OUT_OF_TURN = 16,  // now and then a key comes to where the queue has been
  STEPS = 32,        // the next record is found by a step, not by a seek
  YOUNG = 64,        // partitions get young views
};

struct plan {
  const char *name;
  uint32_t flags, depth;  // depth: records that stay in the queue
  uint32_t queues;        // side by side, in turn
  uint32_t expire;        // 0: one record goes out at a time; else so many, by one scan
  size_t memtable;
  // With young views seeks are not alike: each memtable passes their tombstones once.
  uint32_t per_seek, worst;  // entries looked at, at most: on average of a part of the cycles, and in one search
  uint32_t per_old;          // by a snapshot's search on average: it walks through the leaf in which its queue begins
};

struct shot {
  struct xdb_snapshot *s;
  struct xdb_ref *ref;
  struct xdb_iter *it;
  uint64_t first;
};

struct queue {
  const struct plan *plan;
  struct simdisk *disk;
  struct xdb *x;
  struct xdb_ref *ref;
  struct xdb_iter *it;
  struct xdb_batch *batch;
  uint64_t in[64], out[64];  // by queue: the numbers of the next record to come in and to go out
  struct shot shots[SHOTS];
  struct cost cost, old;
  uint64_t rng;
};

#define KEY_LEN 12u
#define FIRST_QUEUE 0x71000000u
#define EARLY (UINT64_C(1) << 40)  // the number of a queue's first record

static void put_be(uint8_t *p, uint64_t v, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; i++) p[i] = (uint8_t)(v >> 8 * (bytes - 1 - i));
}

// Number n of the queue. Those of a queue that grows at its beginning descend.
static struct kref queue_key(const struct queue *q, uint32_t queue, uint64_t n, uint8_t *buf) {
  put_be(buf, FIRST_QUEUE + queue, 4);
  put_be(buf + 4, q->plan->flags & BACK ? EARLY - n : EARLY + n, 8);
  return kref(buf, KEY_LEN);
}

static void queue_put(struct queue *q, uint32_t queue, uint64_t n) {
  uint8_t k[KEY_LEN], v[40] = {0};
  const struct kref key = queue_key(q, queue, n, k);
  put_be(v, n, 8);
  if (q->plan->flags & BATCHES) CHECK(remixdb_batch_put(q->batch, key.ptr, key.len, v, sizeof(v)));
  else CHECK(remixdb_put(q->ref, key.ptr, key.len, v, sizeof(v)));
}

static void queue_del(struct queue *q, uint32_t queue, uint64_t n) {
  uint8_t k[KEY_LEN];
  const struct kref key = queue_key(q, queue, n, k);
  if (q->plan->flags & BATCHES) CHECK(remixdb_batch_del(q->batch, key.ptr, key.len));
  else CHECK(remixdb_del(q->ref, key.ptr, key.len));
}

static void queue_flush(struct queue *q) {
  if (!(q->plan->flags & BATCHES)) return;
  CHECK(remixdb_write(q->ref, q->batch));
  remixdb_batch_clear(q->batch);
}

static void cost_add(struct cost *c, uint64_t looks) {
  c->seeks++;
  c->looks += looks;
  if (looks > c->worst) c->worst = looks;
}

// The iterator stands at this record of the queue, or (none) at no record of it.
static void expect_at(struct queue *q, struct xdb_iter *it, uint32_t queue, bool there, uint64_t n) {
  uint8_t k[KEY_LEN];
  uint32_t klen = 0;
  const struct kref want = queue_key(q, queue, n, k);
  CHECK(remixdb_iter_status(it) == REMIXDB_OK);
  const void *const got = remixdb_iter_valid(it) ? remixdb_iter_key(it, &klen) : NULL;
  if (there) CHECK(got && kv_eq(kref(got, klen), want));
  else CHECK(!got || memcmp(got, k, 4) != 0);
}

// To the end of the queue at which records go out.
static void queue_seek(struct queue *q, struct xdb_iter *it, uint32_t queue, struct cost *c) {
  uint8_t k[4];
  const uint64_t before = looked_at();
  const bool only = q->plan->queues == 1;
  put_be(k, FIRST_QUEUE + queue + !!(q->plan->flags & BACK), 4);
  if (!(q->plan->flags & BACK)) remixdb_iter_seek(it, only ? NULL : k, only ? 0 : 4);
  else if (only) remixdb_iter_seek_last(it);
  else remixdb_iter_seek_for_prev(it, k, 4);
  cost_add(c, looked_at() - before);
}

static void shot_drop(struct shot *t) {
  if (!t->s) return;
  remixdb_iter_destroy(t->it);
  remixdb_unref(t->ref);
  remixdb_snapshot_release(t->s);
  *t = (struct shot){0};
}

static void shot_take(struct queue *q, struct shot *t) {
  shot_drop(t);
  CHECK((t->s = remixdb_snapshot(q->ref)) && (t->ref = remixdb_snapshot_ref(t->s)) &&
        (t->it = remixdb_iter_create(t->ref)));
  t->first = q->out[0];
}

static void shots_look(struct queue *q, uint64_t cycle) {
  if (!(q->plan->flags & SNAPS)) return;
  if (cycle % (cycles / PARTS / 2) == cycles / PARTS / 4) shot_take(q, &q->shots[below(&q->rng, SHOTS)]);
  struct shot *const t = &q->shots[cycle % SHOTS];
  if (!t->s) return;
  queue_seek(q, t->it, 0, &q->old);
  expect_at(q, t->it, 0, true, t->first);
}

// The next record goes out.
static void take_one(struct queue *q, uint32_t queue) {
  const bool steps = q->plan->flags & STEPS && q->out[queue] % 100;
  if (steps) {
    const uint64_t before = looked_at();
    if (q->plan->flags & BACK) remixdb_iter_prev(q->it);
    else remixdb_iter_skip1(q->it);
    cost_add(&q->cost, looked_at() - before);
  } else {
    queue_seek(q, q->it, queue, &q->cost);
  }
  expect_at(q, q->it, queue, true, q->out[queue]);
  queue_del(q, queue, q->out[queue]++);
}

// So many go out that one scan finds; the cost is that of the search.
static void take_range(struct queue *q, uint32_t queue, uint32_t nr) {
  queue_seek(q, q->it, queue, &q->cost);
  for (uint32_t i = 0; i < nr; i++) {
    expect_at(q, q->it, queue, true, q->out[queue]);
    queue_del(q, queue, q->out[queue]++);
    if (q->plan->flags & BACK) remixdb_iter_prev(q->it);
    else remixdb_iter_skip1(q->it);
  }
}

// A record that is older than all comes, is found first, and goes.
static void out_of_turn(struct queue *q, uint32_t queue) {
  const uint64_t n = below(&q->rng, q->out[queue]);
  queue_put(q, queue, n);
  queue_flush(q);
  queue_seek(q, q->it, queue, &q->cost);
  expect_at(q, q->it, queue, true, n);
  queue_del(q, queue, n);
}

static void cycle(struct queue *q, uint64_t n) {
  const struct plan *const p = q->plan;
  const uint32_t queue = (uint32_t)(n % p->queues);
  if (!(p->flags & TABLES)) queue_put(q, queue, q->in[queue]++);
  queue_flush(q);
  shots_look(q, n);
  if (p->flags & OUT_OF_TURN && n % 7 == 6) out_of_turn(q, queue);
  if (p->expire == 0 && q->in[queue] - q->out[queue] > p->depth) take_one(q, queue);
  if (p->expire && q->in[queue] - q->out[queue] >= p->depth + p->expire) take_range(q, queue, p->expire);
  queue_flush(q);
}

static void gaps_check(struct xdb *x) {
  char why[200];
  if (!wh_gaps_check(xdb_super(x)->active->wh, why, sizeof(why))) fail_msg("%s", why);
}

static void queue_open(struct queue *q, const struct plan *p) {
  check_seed = check_seed_or(1);
  *q = (struct queue){.plan = p, .rng = check_seed};
  struct remixdb_opts o = small_opts(0);
  o.cache_mb = 64;
  o.memtable_mb = 64;
  q->disk = simdisk_create();
  OK(xdb_open("/store", &o, simdisk_env(q->disk), &q->x));
  shrink(q->x, p->memtable, 300);
  if (p->flags & YOUNG) q->x->compact.young_from = 1;
  CHECK((q->ref = remixdb_ref(q->x)) && (q->it = remixdb_iter_create(q->ref)) && (q->batch = remixdb_batch_create()));
  const uint64_t first = (p->flags & TABLES ? cycles : 0) / p->queues + p->depth;
  for (uint64_t n = 0; n < first; n++) {
    for (uint32_t k = 0; k < p->queues; k++) queue_put(q, k, n);
    if (n % 100 == 99) queue_flush(q);
  }
  queue_flush(q);
  for (uint32_t k = 0; k < p->queues; k++) q->in[k] = first;
  if (p->flags & TABLES) CHECK(remixdb_flush(q->ref));
}

static void queue_close(struct queue *q) {
  for (uint32_t i = 0; i < SHOTS; i++) shot_drop(&q->shots[i]);
  remixdb_batch_destroy(q->batch);
  remixdb_iter_destroy(q->it);
  remixdb_unref(q->ref);
  remixdb_close(q->x);
  simdisk_destroy(q->disk);
}

static void expect_cost(const char *name, const char *of, uint32_t part, const struct cost *c, uint32_t per_seek,
                        uint32_t worst) {
  const double mean = c->seeks ? (double)c->looks / (double)c->seeks : 0;
  if (getenv("QUEUE_COSTS"))
    print_message("%s, %s, part %u: %.1f looks a seek, at worst %llu\n", name, of, part, mean,
                  (unsigned long long)c->worst);
  if (mean > per_seek) fail_msg("%s, %s, part %u: %.1f looks a seek", name, of, part, mean);
  if (c->worst > worst) fail_msg("%s, %s, part %u: %llu looks in a seek", name, of, part, (unsigned long long)c->worst);
}

static void run_plan(const struct plan *p) {
  struct queue q;
  queue_open(&q, p);
  for (uint32_t part = 0; part < PARTS; part++) {
    for (uint32_t n = 0; n < cycles / PARTS; n++) cycle(&q, part * (uint64_t)(cycles / PARTS) + n);
    gaps_check(q.x);
    expect_cost(p->name, "queue", part, &q.cost, p->per_seek, p->worst);
    expect_cost(p->name, "snapshots", part, &q.old, p->per_old, p->worst);
    q.cost = q.old = (struct cost){0};
  }
  queue_close(&q);
}

#define MB ((size_t)1 << 20)
static const struct plan plans[] = {
    {"queue that is empty", 0, 0, 1, 0, 64 * MB, 28, 800, 0},
    {"queue of 1000", 0, 1000, 1, 0, 64 * MB, 28, 800, 0},
    {"queue through memtables", 0, 1000, 1, 0, 2 * MB, 28, 800, 0},
    {"at the other end", BACK, 0, 1, 0, 64 * MB, 28, 800, 0},
    {"1000 at the other end, through memtables", BACK, 1000, 1, 0, 2 * MB, 28, 800, 0},
    {"with snapshots", SNAPS, 100, 1, 0, 64 * MB, 28, 2000, 320},
    {"with snapshots, through memtables", SNAPS, 100, 1, 0, 2 * MB, 28, 2000, 320},
    {"with snapshots, at the other end", SNAPS | BACK, 100, 1, 0, 64 * MB, 28, 2000, 320},
    {"in batches", BATCHES, 100, 1, 0, 8 * MB, 28, 800, 0},
    {"out of tables", TABLES, 0, 1, 0, 64 * MB, 28, 800, 0},
    {"out of tables, at the other end", TABLES | BACK, 0, 1, 0, 64 * MB, 28, 800, 0},
    {"out of tables, through memtables", TABLES, 0, 1, 0, 2 * MB, 28, 800, 0},
    {"out of tables, with young views", TABLES | YOUNG, 0, 1, 0, 1 * MB, 28, 800, 0},
    {"through memtables, with young views", YOUNG, 40000, 1, 0, 1 * MB, 60, 30000, 0},
    {"forty queues", 0, 50, 40, 0, 64 * MB, 60, 800, 0},
    {"forty queues, at their other ends", BACK, 50, 40, 0, 64 * MB, 60, 800, 0},
    {"expiry", 0, 5000, 1, 1000, 64 * MB, 2500, 3000, 0},
    {"time series", 0, 300, 16, 100, 8 * MB, 400, 1000, 0},
    {"out of turn", OUT_OF_TURN, 100, 1, 0, 64 * MB, 60, 800, 0},
    {"out of turn, at the other end", OUT_OF_TURN | BACK, 100, 1, 0, 64 * MB, 60, 800, 0},
    {"steps", STEPS, 200, 1, 0, 64 * MB, 28, 800, 0},
};

static void test_cost(void **state) {
  (void)state;
  const char *const only = getenv("QUEUE_PLAN");
  for (uint32_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++)
    if (!only || strcmp(only, plans[i].name) == 0) run_plan(&plans[i]);
}

// ---- keys that come to where nothing but tombstones was found

#define FIELD 6000u  // keys; every second one was there and deleted

struct field {
  struct queue q;
  bool live[FIELD];
  bool then[SHOTS][FIELD];  // when the snapshot was taken
};

// The next key there at or after n (back: at or before it); FIELD: there is none.
static uint32_t field_next(const bool *live, uint32_t n, bool back) {
  while (n < FIELD && !live[n]) n += back ? UINT32_MAX : 1;
  return n < FIELD ? n : FIELD;
}

static void field_seek(struct field *f, struct xdb_iter *it, const bool *live, uint32_t n, bool back) {
  uint8_t k[KEY_LEN];
  const struct kref key = queue_key(&f->q, 0, n, k);
  const uint64_t before = looked_at();
  if (back) remixdb_iter_seek_for_prev(it, key.ptr, key.len);
  else remixdb_iter_seek(it, key.ptr, key.len);
  cost_add(&f->q.cost, looked_at() - before);
  const uint32_t want = field_next(live, n, back);
  expect_at(&f->q, it, 0, want < FIELD, want);
}

static void field_set(struct field *f, uint32_t n, bool live) {
  if (live) queue_put(&f->q, 0, n);
  else queue_del(&f->q, 0, n);
  f->live[n] = live;
}

static void field_look(struct field *f) {
  struct queue *const q = &f->q;
  const bool back = chance(&q->rng, 50);
  const uint32_t i = (uint32_t)below(&q->rng, SHOTS);
  const uint32_t n = chance(&q->rng, 70) ? (back ? FIELD - 1 : 0) : (uint32_t)below(&q->rng, FIELD);
  field_seek(f, q->it, f->live, n, back);
  if (q->shots[i].s) field_seek(f, q->shots[i].it, f->then[i], n, back);
  if (!chance(&q->rng, 2)) return;
  shot_take(q, &q->shots[i]);
  memcpy(f->then[i], f->live, sizeof(f->live));
}

static void test_keys_come(void **state) {
  (void)state;
  static const struct plan in_memory = {"field", 0, 0, 1, 0, 64 * MB, 0, 0, 0};
  static const struct plan in_tables = {"field", 0, 0, 1, 0, 2 * MB, 0, 0, 0};
  struct field *const f = calloc(1, sizeof(*f));
  CHECK(f);
  for (uint32_t run = 0; run < 4; run++) {
    const bool tables = run % 2 != 0;
    memset(f->live, 0, sizeof(f->live));
    queue_open(&f->q, tables ? &in_tables : &in_memory);
    f->q.rng += run;
    for (uint32_t n = 0; n < FIELD; n += 2) field_set(f, n, true);
    if (tables) CHECK(remixdb_flush(f->q.ref));
    for (uint32_t n = 0; n < FIELD; n += 2) field_set(f, n, false);
    for (uint32_t i = 0; i < 6; i++) field_seek(f, f->q.it, f->live, i % 2 ? FIELD - 1 : 0, i % 2);
    f->q.cost = (struct cost){0};
    for (uint32_t i = 0; i < (LIB_SANITIZED ? 2000u : 8000u); i++) {
      const uint32_t n = (uint32_t)below(&f->q.rng, FIELD), there = field_next(f->live, n, false);
      if (there < FIELD && chance(&f->q.rng, 52)) field_set(f, there, false);
      else field_set(f, n, chance(&f->q.rng, 90));
      if (run >= 2 && i % 1000 == 0)  // many come to one place: leaves are split
        for (uint32_t k = n; k < n + 300 && k < FIELD; k++) field_set(f, k, true);
      if (run >= 2 && i % 1000 == 500)
        for (uint32_t k = 0; k < FIELD; k++)
          if (f->live[k]) field_set(f, k, false);
      field_look(f);
      if (i % 100 == 0) gaps_check(f->q.x);
    }
    expect_cost("field", "seeks", run, &f->q.cost, 450, UINT32_MAX);
    queue_close(&f->q);
  }
  free(f);
}

// ---- transactions

// Takers in transactions: each finds the first record, deletes it and puts one at the end. Its commit looks at few of
// the tombstones that all earlier takes have left.
static void test_take(void **state) {
  (void)state;
  enum { DEPTH = 200 };
  static const struct plan plan = {"takers", 0, DEPTH, 1, 0, 64 * MB, 0, 0, 0};
  const uint32_t takes = LIB_SANITIZED ? 2000 : 10000;
  struct queue q;
  queue_open(&q, &plan);
  uint64_t late = 0;
  for (uint32_t i = 0; i < takes; i++) {
    uint8_t k[KEY_LEN];
    struct xdb_txn *const t = remixdb_txn_begin(q.x);
    struct xdb_ref *const r = remixdb_txn_ref(t, NULL);
    struct xdb_iter *const it = remixdb_iter_create(r);
    const struct kref key = queue_key(&q, 0, i, k);
    remixdb_iter_seek(it, key.ptr, 4);
    expect_at(&q, it, 0, true, i);
    remixdb_iter_destroy(it);
    CHECK(remixdb_del(r, key.ptr, key.len));
    CHECK(remixdb_put(r, k, queue_key(&q, 0, DEPTH + i, k).len, "at the end", 10));
    const uint64_t before = looked_at();
    CHECK_SAYS(remixdb_txn_commit(t), "%s", remixdb_errmsg());
    if (i >= takes / 2) late += looked_at() - before;
  }
  CHECK_SAYS(late < takes / 2 * 150ull, "%llu a commit", (unsigned long long)(late / (takes / 2)));
  queue_close(&q);
}

// A transaction has read from one key up to the next one there. Others write, and readers pass what is deleted. The
// commit fails if a key has come there, or the one that was found has gone, and it does not if nothing was written
// there.
static void test_txn_reads(void **state) {
  (void)state;
  static const struct plan plan = {"reads", 0, 0, 1, 0, 64 * MB, 0, 0, 0};
  enum { NR = 700, ROUNDS = LIB_SANITIZED ? 400 : 4000 };
  struct field *const f = calloc(1, sizeof(*f));
  bool *const then = calloc(FIELD, sizeof(*then));
  uint8_t k[KEY_LEN];
  uint32_t failed = 0, good = 0;
  CHECK(f && then);
  queue_open(&f->q, &plan);
  struct queue *const q = &f->q;
  uint64_t *const rng = &q->rng;
  for (uint32_t n = 0; n < NR; n++) field_set(f, n, true);
  for (uint32_t i = 0; i < ROUNDS; i++) {
    for (uint32_t n = 0; n < NR && i % 40 == 0; n++)  // long stretches of deletions, again and again
      if (f->live[n] != (n % 350 == 349)) field_set(f, n, !f->live[n]);
    struct xdb_txn *const t = remixdb_txn_begin(q->x);
    struct xdb_ref *const r = remixdb_txn_ref(t, NULL);
    struct xdb_iter *const it = remixdb_iter_create(r);
    const uint32_t from = (uint32_t)below(rng, NR), to = field_next(f->live, from, false);
    memcpy(then, f->live, FIELD * sizeof(*then));
    field_seek(f, it, then, from, false);
    remixdb_iter_destroy(it);
    bool touched = false, changed = false;
    for (uint64_t nr = below(rng, 4); nr; nr--) {
      const uint32_t n = chance(rng, 60) ? from + (uint32_t)below(rng, 30) : (uint32_t)below(rng, NR);
      if (n >= NR) continue;
      const bool live = chance(rng, 30);
      field_set(f, n, live);
      touched = touched || (n >= from && n <= to);
      if (live && chance(rng, 30)) field_set(f, n, false);
      if (chance(rng, 50)) field_seek(f, q->it, f->live, (uint32_t)below(rng, NR), false);
    }
    field_seek(f, q->it, f->live, from, chance(rng, 50));  // so the stretch is a gap now
    for (uint32_t n = from; n < NR && n <= to; n++) changed = changed || f->live[n] != then[n];
    CHECK(remixdb_put(r, k, queue_key(q, 1, i, k).len, "elsewhere", 9));
    const bool ok = remixdb_txn_commit(t);
    CHECK(ok || remixdb_errcode() == REMIXDB_ABORTED);
    CHECK_SAYS(!(ok && changed) && (ok || touched), "transaction %u from %u to %u: %d", i, from, to, ok);
    failed += !ok;
    good += ok;
    if (i % 100 == 0) gaps_check(q->x);
  }
  CHECK(failed > ROUNDS / 10 && good > ROUNDS / 10);
  queue_close(q);
  free(then);
  free(f);
}

int main(void) {
#if defined(NDEBUG)
  cycles = usual_or_long(40000, 120000);
#else  // slower builds look for other things
  cycles = 16000;
#endif
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_keys_come),
      cmocka_unit_test(test_cost),
      cmocka_unit_test(test_take),
      cmocka_unit_test(test_txn_reads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
