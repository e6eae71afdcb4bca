// SPDX-License-Identifier: Apache-2.0
//
// Transactions that delete many keys and seek among them: a seek costs the same after any number of deletions. The test
// counts how many of the transaction's own writes seeks look at. Queues and stacks are emptied, with keys in the store
// and with keys that the transaction has put. Then a model: deletions, puts, records that expire, savepoints and
// rollbacks at random, and iterators of all kinds among them.
//
// TEST_SEED in the environment repeats a run's random choices.
#define OVERLAY_COUNTERS 1
#include "store/overlay.c"

#include "tests/lib/store.h"

#define KLEN 6u

static struct xdb *x;
static struct xdb_ref *ref;

static int begin(void **state) {
  const struct remixdb_opts o = small_opts(0);
  if (setup(state) != 0) return -1;
  x = quick_open(&o);
  ref = remixdb_ref(x);
  return ref ? 0 : -1;
}

static int end(void **state) {
  remixdb_unref(ref);
  remixdb_close(x);
  return remixdb_errcode() == REMIXDB_OK ? teardown(state) : -1;
}

static const char *key_of(uint32_t i) {
  static char key[KLEN + 8];
  (void)snprintf(key, sizeof(key), "%06u", i);
  return key;
}

static void put(struct xdb_ref *r, uint32_t i) { CHECK(remixdb_put(r, key_of(i), KLEN, &i, sizeof(i))); }
static void del(struct xdb_ref *r, uint32_t i) { CHECK(remixdb_del(r, key_of(i), KLEN)); }

// The key at which the iterator is; -1: at none.
static int64_t at(struct xdb_iter *it) {
  uint32_t klen;
  char buf[KLEN + 1] = {0};
  if (!remixdb_iter_valid(it)) {
    CHECK(remixdb_iter_status(it) == REMIXDB_OK);
    return -1;
  }
  const void *const key = remixdb_iter_key(it, &klen);
  CHECK(key && klen == KLEN);
  memcpy(buf, key, KLEN);
  return strtol(buf, NULL, 10);
}

// ---- costs

#define KEYS (8000u / SLOW)

enum { IN_STORE = 1, OWN = 2, LAST = 4, PUT_BACK = 8, ROLLED_BACK = 16, HELD = 32 };

static uint64_t looked_at(void) { return atomic_load(&overlay_counters.nodes) + atomic_load(&overlay_counters.links); }

// Deletes key after key from one end, each found by a seek. Returns how much the most expensive part of the seeks
// looked at, on average of a seek.
static uint64_t pop_all(struct xdb_ref *r, struct xdb_iter *it, uint32_t flags) {
  enum { PARTS = 8 };
  uint64_t worst = 0;
  for (uint32_t part = 0; part < PARTS; part++) {
    const uint64_t before = looked_at();
    for (uint32_t i = part * (KEYS / PARTS); i < (part + 1) * (KEYS / PARTS); i++) {
      const uint32_t want = flags & LAST ? KEYS - 1 - i : i;
      if (flags & LAST) remixdb_iter_seek_last(it);
      else remixdb_iter_seek(it, NULL, 0);
      CHECK(at(it) == want);
      if (flags & PUT_BACK && i % 16 == 0) {  // it goes out by and by, and comes once more to where the queue has been
        del(r, want);
        put(r, flags & LAST ? KEYS - 1 - i / 2 : i / 2);
        del(r, flags & LAST ? KEYS - 1 - i / 2 : i / 2);
      }
      del(r, want);
    }
    const uint64_t each = (looked_at() - before) / (KEYS / PARTS);
    if (each > worst) worst = each;
  }
  return worst;
}

static void test_pop(void **state) {
  (void)state;
  static const uint32_t ways[] = {IN_STORE,         OWN, IN_STORE | OWN, IN_STORE | PUT_BACK, OWN | PUT_BACK,
                                  ROLLED_BACK | OWN};
  for (uint32_t w = 0; w < sizeof(ways) / sizeof(ways[0]) * 2; w++) {
    const uint32_t flags = ways[w / 2] | (w % 2 ? LAST : 0u);
    for (uint32_t i = 0; i < KEYS; i++) {
      if (flags & IN_STORE && (!(flags & OWN) || i % 3)) put(ref, i);
      else del(ref, i);
    }
    struct xdb_txn *const t = remixdb_txn_begin(x);
    struct xdb_ref *const r = remixdb_txn_ref(t, NULL);
    struct xdb_iter *const it = remixdb_iter_create(r);
    if (flags & ROLLED_BACK) {
      CHECK(remixdb_txn_savepoint(t));
      for (uint32_t i = 0; i < KEYS; i++) put(r, i + KEYS);
      CHECK(remixdb_txn_rollback(t));
    }
    for (uint32_t i = 0; i < KEYS && flags & OWN; i++)
      if (!(flags & IN_STORE) || i % 3 == 0) put(r, i);
    const uint64_t each = pop_all(r, it, flags);
    CHECK(each <= 200);
    CHECK((remixdb_iter_seek(it, NULL, 0), at(it)) == -1 && (remixdb_iter_seek_last(it), at(it)) == -1);
    remixdb_iter_destroy(it);
    remixdb_txn_abort(t);
  }
}

// ---- a model

enum { MODEL_KEYS = 400, ITERS = 4, SAVED = 4 };

struct picture {
  bool there[MODEL_KEYS];
};

struct walker {
  struct xdb_iter *it;
  uint32_t from, to;    // its bounds
  bool held;            // it shows the keys of its making
  struct picture made;  // for that
  struct picture seen;  // the keys at its last seek
  int64_t at;           // -1: nowhere
};

struct model {
  struct xdb_txn *t;
  struct xdb_ref *r;
  struct picture now, saved[SAVED];
  uint32_t nr_saved;
  struct walker walkers[ITERS];
};

// The first key at or behind i, or at or before it, that the walker shows; -1: none.
static int64_t nearest(const struct walker *w, int64_t i, bool back) {
  for (; i >= w->from && i < w->to; i += back ? -1 : 1)
    if (w->seen.there[i]) return i;
  return -1;
}

static void walker_make(struct model *m, struct walker *w) {
  struct remixdb_iter_opts o;
  char from[KLEN + 8], to[KLEN + 8];
  remixdb_iter_opts_init(&o, sizeof(o));
  *w = (struct walker){.to = MODEL_KEYS, .held = o.hold = chance(&check_seed, 40), .made = m->now, .at = -1};
  if (chance(&check_seed, 40)) {
    w->from = (uint32_t)below(&check_seed, MODEL_KEYS);
    w->to = w->from + 1 + (uint32_t)below(&check_seed, MODEL_KEYS - w->from);
    o.bounds.from = (struct remixdb_slice){strcpy(from, key_of(w->from)), KLEN};
    o.bounds.to = (struct remixdb_slice){strcpy(to, key_of(w->to)), KLEN};
  }
  CHECK((w->it = remixdb_iter_create_opts(m->r, &o)) != NULL);
}

static void walker_end(struct walker *w) {
  remixdb_iter_destroy(w->it);
  w->it = NULL;
}

static void walker_seek(const struct model *m, struct walker *w) {
  const uint32_t i = (uint32_t)below(&check_seed, MODEL_KEYS), last = w->to - 1;
  w->seen = w->held ? w->made : m->now;
  switch (below(&check_seed, 4)) {
    case 0:
      remixdb_iter_seek(w->it, NULL, 0);
      w->at = nearest(w, w->from, false);
      break;
    case 1:
      remixdb_iter_seek_last(w->it);
      w->at = nearest(w, last, true);
      break;
    case 2:
      remixdb_iter_seek(w->it, key_of(i), KLEN);
      w->at = nearest(w, i < w->from ? w->from : i, false);
      break;
    default: remixdb_iter_seek_for_prev(w->it, key_of(i), KLEN); w->at = nearest(w, i > last ? last : i, true);
  }
  CHECK(at(w->it) == w->at);
}

static void walker_steps(struct walker *w) {
  for (uint64_t n = below(&check_seed, 8); n > 0 && w->at >= 0; n--) {
    const bool back = chance(&check_seed, 20) || (n & 4 && chance(&check_seed, 50));
    if (back) remixdb_iter_prev(w->it);
    else remixdb_iter_skip1(w->it);
    w->at = nearest(w, w->at + (back ? -1 : 1), back);
    CHECK(at(w->it) == w->at);
  }
}

static void model_set(struct model *m, uint32_t i, bool there) {
  if (there) put(m->r, i);
  else if (chance(&check_seed, 80)) del(m->r, i);
  else CHECK(remixdb_put_expire(m->r, key_of(i), KLEN, "late", 4, 1));  // it has expired
  m->now.there[i] = there;
}

// Mostly deletions of neighbours, in any order.
static void model_write(struct model *m) {
  const uint32_t i = (uint32_t)below(&check_seed, MODEL_KEYS), nr = 1 + (uint32_t)below(&check_seed, 60);
  const uint64_t way = below(&check_seed, 10);
  for (uint32_t k = 0; k < nr; k++) {
    const uint32_t key = way < 3 ? i + k : way < 6 ? i - k : (uint32_t)below(&check_seed, MODEL_KEYS);
    if (key >= MODEL_KEYS || (way >= 6 && k == 3)) return;
    model_set(m, key, way == 9 || (way == 8 && k == 0));
  }
}

static void model_savepoint(struct model *m) {
  if (m->nr_saved < SAVED && chance(&check_seed, 60)) {
    CHECK(remixdb_txn_savepoint(m->t));
    m->saved[m->nr_saved++] = m->now;
  } else if (m->nr_saved) {
    CHECK(remixdb_txn_rollback(m->t));
    m->now = m->saved[--m->nr_saved];
    for (uint32_t i = 0; i < ITERS; i++) {
      struct walker *const w = &m->walkers[i];
      if (w->it && chance(&check_seed, 50)) remixdb_iter_skip1(w->it);  // to a key that nobody can tell
      if (w->it && w->held) walker_end(w);
      w->at = -1;
    }
  }
}

static void model_run(struct picture *base) {
  struct model m = {.t = remixdb_txn_begin(x), .now = *base};
  CHECK((m.r = remixdb_txn_ref(m.t, NULL)) != NULL);
  const uint32_t steps = 40 + (uint32_t)below(&check_seed, 400);
  for (uint32_t i = 0; i < steps; i++) {
    struct walker *const w = &m.walkers[below(&check_seed, ITERS)];
    const uint64_t dice = below(&check_seed, 100);
    if (dice < 25) model_write(&m);
    else if (dice < 30) model_savepoint(&m);
    else if (!w->it) walker_make(&m, w);
    else if (dice < 70) walker_seek(&m, w);
    else if (dice < 97) walker_steps(w);
    else walker_end(w);
  }
  for (uint32_t i = 0; i < ITERS; i++) walker_end(&m.walkers[i]);
  if (chance(&check_seed, 50)) {
    remixdb_txn_abort(m.t);
    return;
  }
  CHECK(remixdb_txn_commit(m.t));
  *base = m.now;
}

static void test_model(void **state) {
  (void)state;
  struct picture base = {0};
  for (uint32_t run = 0; run < 2000 / SLOW; run++) {
    for (uint32_t k = 0; k < MODEL_KEYS; k++) {
      const uint32_t i = (uint32_t)below(&check_seed, MODEL_KEYS);
      if (run % 4 == 0) put(ref, i);
      base.there[i] |= run % 4 == 0;
    }
    model_run(&base);
    if (run % 16 == 0) CHECK(remixdb_flush(ref));
  }
}

int main(void) {
  hang_alarm();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_pop, begin, end),
      cmocka_unit_test_setup_teardown(test_model, begin, end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
