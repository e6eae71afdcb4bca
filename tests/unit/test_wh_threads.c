// SPDX-License-Identifier: Apache-2.0
//
// Several threads in the index in memory: writers that commit, take back and leave pending, beside readers at moments.
//
// TEST_SEED in the environment repeats the random choices of each thread.
#include "base/thread.h"
#include "tests/lib/wh_model.h"

#include <sched.h>

// ---- numbers are given under one mutex, then published, as the store does it: so a moment is complete

#define T_KEYS 6000u  // enough for a guide
#define T_WRITERS 3u
#define T_OPS 1200u  // per writer
#define T_BATCH 16u
#define T_PENDING 200u

enum writing {
  DENSE,   // many committed keys, batches in one leaf and over several
  SPARSE,  // few committed keys, many pending ones that come and go: leaves split and merge all the time
  APPEND,  // all writers at the end of the last leaf
};

struct shared {
  enum writing how;
  _Atomic uint32_t appended, locks;
  struct epoch epoch, cursors;
  struct wh *wh;
  pthread_mutex_t lock;  // the log's
  uint64_t last;         // under lock
  _Atomic uint64_t published;
  uint16_t *log;             // key of each number; written before it is published
  struct kref keys[T_KEYS];  // in order
  uint8_t *key_bytes;
  _Atomic uint32_t writers;  // that still write
  _Atomic uint64_t scans;
  _Atomic int broken;  // line of the first failure
};

struct worker {
  struct shared *sh;
  uint64_t rng;
  uint32_t id;
};

#define T_CHECK(sh, cond)                                                              \
  do {                                                                                 \
    int none = 0;                                                                      \
    if (!(cond)) (void)atomic_compare_exchange_strong(&(sh)->broken, &none, __LINE__); \
  } while (0)

static void commit(struct shared *sh, const struct wh_link *links, const uint32_t *ids, uint32_t nr) {
  (void)pthread_mutex_lock(&sh->lock);
  for (uint32_t i = 0; i < nr; i++) {
    sh->log[++sh->last] = (uint16_t)ids[i];
    wh_link_stamp(&links[i], sh->last);
  }
  atomic_store_explicit(&sh->published, sh->last, memory_order_release);
  (void)pthread_mutex_unlock(&sh->lock);
}

struct pending {
  uint32_t nr;
  struct {
    uint32_t key;
    struct wh_ver *ver;
  } of[T_PENDING];
};

// Now and then the lock is held for long, so that others meet it; seldom so long that they sleep.
static void lock_key(struct shared *sh, uint32_t k, struct wh_slot *s) {
  wh_lock(sh->wh, sh->keys[k], key_hash(sh->keys[k]), s);
  const uint32_t n = atomic_fetch_add_explicit(&sh->locks, 1, memory_order_relaxed);
  if (n % 256 == 0) (void)sched_yield();
  for (volatile uint32_t i = 0; n % 8 == 0 && i < 3000;) i = i + 1;
}

static void write_one(struct shared *sh, uint32_t k, bool take_back) {
  struct wh_slot s;
  lock_key(sh, k, &s);
  T_CHECK(sh, wh_link(&s, KV_REC(kref(NULL, 0), &k, sizeof(k), false)) == REMIXDB_OK);
  if (take_back) wh_unlink(&s);
  else commit(sh, &(struct wh_link){s.entry, s.ver}, &k, 1);
  wh_unlock(&s);
}

// Some keys of one leaf or of several, from k on.
static void write_batch(struct worker *w, uint32_t k, uint32_t step, bool take_back) {
  struct shared *sh = w->sh;
  struct wh_many many;
  struct wh_link links[T_BATCH];
  uint32_t ids[T_BATCH], nr = 0;
  wh_many_init(&many, sh->wh);
  for (const uint32_t most = 1 + (uint32_t)(rng_next(&w->rng) % T_BATCH); nr < most && k < T_KEYS; k += step, nr++) {
    ids[nr] = k;
    T_CHECK(sh, wh_many_link(&many, KV_REC(sh->keys[k], &k, sizeof(k), false), key_hash(sh->keys[k]), &links[nr]) ==
                    REMIXDB_OK);
    for (volatile uint32_t i = 0; nr == 4 && i < 1000;) i = i + 1;
  }
  if (rng_next(&w->rng) % 32 == 0) (void)sched_yield();
  if (take_back)
    for (uint32_t i = nr; i > 0; i--) wh_many_unlink(&many, &links[i - 1]);
  else commit(sh, links, ids, nr);
  wh_many_unlock(&many);
}

// Keys that are never committed; each writer has its own.
static void leave_pending(struct worker *w, struct pending *p) {
  struct shared *sh = w->sh;
  const uint32_t k = (uint32_t)(rng_next(&w->rng) % (T_KEYS / 2 / T_WRITERS) * T_WRITERS + w->id) * 2 + 1;
  struct wh_slot s;
  if (p->nr == T_PENDING) return;
  lock_key(sh, k, &s);
  if (s.entry == NULL) {
    T_CHECK(sh, wh_link(&s, KV_REC(kref(NULL, 0), &k, sizeof(k), false)) == REMIXDB_OK);
    p->of[p->nr].key = k;
    p->of[p->nr++].ver = s.ver;
  }
  wh_unlock(&s);
}

static void take_back(struct worker *w, struct pending *p) {
  if (p->nr == 0) return;
  const uint32_t at = (uint32_t)(rng_next(&w->rng) % p->nr);
  struct wh_slot s;
  lock_key(w->sh, p->of[at].key, &s);
  T_CHECK(w->sh, s.entry != NULL);
  s.ver = p->of[at].ver;
  wh_unlink(&s);
  wh_unlock(&s);
  p->of[at] = p->of[--p->nr];
}

static void *writer(void *arg) {
  struct worker *w = arg;
  struct shared *sh = w->sh;
  struct epoch_slot es;
  epoch_join(&sh->epoch, &es);
  struct pending p = {.nr = 0};
  for (uint32_t op = 0; op < T_OPS; op++) {
    const uint64_t dice = rng_next(&w->rng) % 16;
    const uint32_t k = (uint32_t)(rng_next(&w->rng) % (T_KEYS / 2)) * 2;  // even keys are committed
    epoch_enter(&sh->epoch, &es);
    if (sh->how == APPEND) {
      const uint32_t nr = dice < 4 ? T_BATCH : 1, next = atomic_fetch_add(&sh->appended, nr);
      if (nr > 1) write_batch(w, next < T_KEYS ? next : k, 1, dice == 0);
      else write_one(sh, next < T_KEYS ? next : k, false);
    } else if (sh->how == SPARSE) {
      if (dice == 0) write_one(sh, k - k % 50, rng_next(&w->rng) % 2);
      else if (dice == 1) write_batch(w, k - k % 50, 50, rng_next(&w->rng) % 2);
      else if (dice == 2) write_batch(w, k, 2, true);
      else if (op / 150 % 2 == 0) leave_pending(w, &p);
      else take_back(w, &p);
    } else if (dice < 6) {
      write_one(sh, k, dice == 0);
    } else if (dice < 8) {
      write_batch(w, k, 2 * (1 + (uint32_t)(rng_next(&w->rng) % (dice == 6 ? 3 : 60))), rng_next(&w->rng) % 3 == 0);
    } else if (dice < 12) {
      leave_pending(w, &p);
    } else {
      take_back(w, &p);
    }
    epoch_exit(&es);
    if (op % 256 == 0) epoch_reclaim(&sh->epoch);
  }
  epoch_enter(&sh->epoch, &es);
  while (p.nr) take_back(w, &p);
  epoch_exit(&es);
  epoch_leave(&sh->epoch, &es);
  atomic_fetch_sub(&sh->writers, 1);
  return NULL;
}

// Expected content at a moment: the number of each key's newest version, 0 for none.
static void expect(const struct shared *sh, uint64_t moment, uint64_t *seq_of) {
  memset(seq_of, 0, T_KEYS * sizeof(*seq_of));
  for (uint64_t i = 1; i <= moment; i++) seq_of[sh->log[i]] = i;
}

static bool is_at(const struct shared *sh, const struct wh_cursor *c, int64_t k, const uint64_t *seq_of) {
  uint32_t v;
  if (!wh_valid(c) || !kv_eq(wh_key(c), sh->keys[k]) || wh_ver_seq(c->ver) != seq_of[k]) return false;
  memcpy(&v, c->ver->val, sizeof(v));
  return v == k;
}

static void read_many(struct worker *w, struct epoch_slot *es, uint64_t moment, const uint64_t *seq_of) {
  struct shared *sh = w->sh;
  struct kref keys[WH_GROUP_MAX];
  uint64_t hashes[WH_GROUP_MAX];
  const struct wh_ver *vers[WH_GROUP_MAX];
  uint8_t which[WH_GROUP_MAX];
  uint32_t ids[WH_GROUP_MAX];
  for (uint32_t i = 0; i < WH_GROUP_MAX; i++) {
    ids[i] = (uint32_t)(rng_next(&w->rng) % T_KEYS);
    keys[i] = sh->keys[ids[i]];
    hashes[i] = key_hash(keys[i]);
    which[i] = (uint8_t)i;
  }
  epoch_enter(&sh->epoch, es);
  wh_get_many(sh->wh, keys, hashes, which, WH_GROUP_MAX, moment, vers);
  epoch_exit(es);
  for (uint32_t i = 0; i < WH_GROUP_MAX; i++) T_CHECK(sh, (vers[i] ? wh_ver_seq(vers[i]) : 0) == seq_of[ids[i]]);
}

// One reader's view of a moment.
struct look {
  struct worker *w;
  struct epoch_slot epoch, stay;
  uint64_t moment;
  uint64_t *seq_of;  // expected content
  struct wh_cursor c;
};

// All keys, in one direction.
static void read_all(struct look *l, bool back) {
  struct shared *sh = l->w->sh;
  epoch_enter(&sh->epoch, &l->epoch);
  epoch_renew(&sh->cursors, &l->stay);
  if (back) wh_seek_last(&l->c);
  else wh_seek(&l->c, kref("", 0));
  epoch_exit(&l->epoch);
  for (int64_t k = back ? T_KEYS - 1 : 0; k >= 0 && k < T_KEYS; k += back ? -1 : 1) {
    if (!l->seq_of[k]) continue;
    T_CHECK(sh, is_at(sh, &l->c, k, l->seq_of));
    if (!wh_valid(&l->c)) break;
    if (back) wh_prev(&l->c);
    else wh_next(&l->c);
  }
  T_CHECK(sh, !wh_valid(&l->c));
}

// From a key, to and fro. With `begun`, the seek begins in one epoch and ends in the next.
static void read_around(struct look *l, bool begun, bool begun_back) {
  struct shared *sh = l->w->sh;
  uint64_t *const rng = &l->w->rng;
  const uint32_t from = (uint32_t)(rng_next(rng) % T_KEYS);
  int64_t dir = rng_next(rng) % 2 ? 1 : -1, k = from;
  epoch_enter(&sh->epoch, &l->epoch);
  epoch_renew(&sh->cursors, &l->stay);
  if (begun) {
    wh_seek_begin(&l->c, sh->keys[from], begun_back);
    epoch_exit(&l->epoch);
    epoch_enter(&sh->epoch, &l->epoch);
  }
  if (dir > 0) wh_seek(&l->c, sh->keys[from]);
  else wh_seek_for_prev(&l->c, sh->keys[from]);
  epoch_exit(&l->epoch);
  for (uint32_t step = 0; step < 100; step++) {
    while (k >= 0 && k < T_KEYS && !l->seq_of[k]) k += dir;
    if (k < 0 || k >= T_KEYS) {
      T_CHECK(sh, !wh_valid(&l->c));
      break;
    }
    T_CHECK(sh, is_at(sh, &l->c, k, l->seq_of));
    if (!wh_valid(&l->c)) break;
    if (rng_next(rng) % 16 == 0) dir = -dir;
    if (dir > 0) wh_next(&l->c);
    else wh_prev(&l->c);
    k += dir;
  }
}

static void read_ones(struct look *l) {
  struct shared *sh = l->w->sh;
  for (uint32_t i = 0; i < 50; i++) {
    const uint32_t k = (uint32_t)(rng_next(&l->w->rng) % T_KEYS);
    epoch_enter(&sh->epoch, &l->epoch);
    const struct wh_ver *v = wh_get(sh->wh, sh->keys[k], key_hash(sh->keys[k]), l->moment);
    epoch_exit(&l->epoch);
    T_CHECK(sh, (v ? wh_ver_seq(v) : 0) == l->seq_of[k]);
  }
}

static void *reader(void *arg) {
  struct look l = {.w = arg};
  struct shared *sh = l.w->sh;
  epoch_join(&sh->epoch, &l.epoch);
  epoch_join(&sh->cursors, &l.stay);
  l.seq_of = malloc(T_KEYS * sizeof(*l.seq_of));
  bool more;
  do {
    more = atomic_load(&sh->writers) != 0;
    l.moment = atomic_load_explicit(&sh->published, memory_order_acquire);
    expect(sh, l.moment, l.seq_of);
    wh_cursor_init(&l.c, sh->wh, l.moment);
    const uint32_t how = (uint32_t)(rng_next(&l.w->rng) % 4);
    if (how < 2) read_all(&l, how);
    for (uint32_t n = 0; n < 8 && how >= 2; n++) {
      read_around(&l, n % 2, n % 4 == 1);
      read_ones(&l);
      read_many(l.w, &l.epoch, l.moment, l.seq_of);
    }
    atomic_fetch_add(&sh->scans, 1);
    if (rng_next(&l.w->rng) % 4 == 0) epoch_exit(&l.stay);
  } while (more);
  free(l.seq_of);
  epoch_exit(&l.stay);
  epoch_leave(&sh->epoch, &l.epoch);
  epoch_leave(&sh->cursors, &l.stay);
  return NULL;
}

// Keys of the shape, all different, in order.
static void make_keys(struct shared *sh, enum shape shape, uint64_t seed) {
  uint64_t rng = seed;
  sh->key_bytes = malloc((size_t)T_KEYS * KEY_CAP);
  for (uint32_t i = 0; i < T_KEYS; i++) sh->keys[i] = shape_key(shape, i, &rng, sh->key_bytes + (size_t)i * KEY_CAP);
  for (bool again = true; again;) {
    again = false;
    qsort(sh->keys, T_KEYS, sizeof(sh->keys[0]), kref_order);
    for (uint32_t i = 1; i < T_KEYS; i++) {
      if (!kv_eq(sh->keys[i - 1], sh->keys[i])) continue;
      sh->keys[i] = shape_key(shape, i, &rng, (uint8_t *)(uintptr_t)sh->keys[i].ptr);
      again = true;
    }
  }
}

// Commits most of the even keys: between the keys of a batch there is more than two leaves' worth from the start. Some
// are left for the writers.
static void fill(struct shared *sh) {
  struct epoch_slot es;
  epoch_join(&sh->epoch, &es);
  for (uint32_t k = 0; k < T_KEYS; k += 2) {
    if (k % 40 < 4) continue;
    struct wh_slot s;
    epoch_enter(&sh->epoch, &es);
    wh_lock(sh->wh, sh->keys[k], key_hash(sh->keys[k]), &s);
    OK(wh_link(&s, KV_REC(kref(NULL, 0), &k, sizeof(k), false)));
    commit(sh, &(struct wh_link){s.entry, s.ver}, &k, 1);
    wh_unlock(&s);
    epoch_exit(&es);
  }
  epoch_leave(&sh->epoch, &es);
}

static struct shared *shared_create(enum shape shape, enum writing how, uint64_t seed) {
  struct shared *const sh = mem_alloc_aligned(CACHE_LINE, align_up(sizeof(*sh), CACHE_LINE));
  CHECK(sh);
  memset(sh, 0, sizeof(*sh));
  sh->how = how;
  epoch_init(&sh->epoch);
  epoch_init(&sh->cursors);
  (void)pthread_mutex_init(&sh->lock, NULL);
  sh->log = calloc(T_KEYS + T_WRITERS * T_OPS * T_BATCH + 1, sizeof(*sh->log));
  make_keys(sh, shape, seed);
  OK(wh_create(&sh->epoch, CHUNK, NULL, &sh->wh));
  wh_recycle(sh->wh, &sh->cursors);
  if (how == DENSE) fill(sh);
  return sh;
}

static void shared_destroy(struct shared *sh) {
  wh_destroy(sh->wh);
  epoch_fini(&sh->cursors);
  epoch_fini(&sh->epoch);
  (void)pthread_mutex_destroy(&sh->lock);
  free(sh->log);
  free(sh->key_bytes);
  mem_free(sh);
}

static void run_threads(struct shared *sh) {
  struct worker w[T_WRITERS + 2];
  pthread_t t[T_WRITERS + 2];
  atomic_store(&sh->writers, T_WRITERS);
  for (uint32_t i = 0; i < T_WRITERS + 2; i++) {
    w[i] = (struct worker){.sh = sh, .rng = check_seed * 31 + i, .id = i};
    OK(thread_start(&t[i], i < T_WRITERS ? writer : reader, &w[i], "wh"));
  }
  for (uint32_t i = 0; i < T_WRITERS + 2; i++) assert_int_equal(pthread_join(t[i], NULL), 0);
}

static void test_threads(void **state) {
  (void)state;
  static const struct {
    enum shape shape;
    enum writing how;
  } rounds[] = {{BINARY, DENSE},       {LONG_PREFIX, DENSE}, {RANDOM16, DENSE},   {BINARY, SPARSE},
                {LONG_PREFIX, SPARSE}, {RANDOM16, SPARSE},   {ASCENDING, APPEND}, {ASCENDING, APPEND}};
  for (uint32_t r = 0; r < sizeof(rounds) / sizeof(rounds[0]); r++) {
    struct shared *const sh = shared_create(rounds[r].shape, rounds[r].how, check_seed + r);
    run_threads(sh);
    if (atomic_load(&sh->broken))
      fail_msg("TEST_SEED=%llu line %d", (unsigned long long)check_seed, atomic_load(&sh->broken));
    CHECK_INDEX(sh->wh);
    CHECK(atomic_load(&sh->scans) > 0);
    shared_destroy(sh);
  }
}

// ---- orders

#define RACE_ROUNDS (LIB_SANITIZED ? 300u : 6000u)

// One thread fills leaves while others read them, which puts them in order, all at once. A reader that takes an order
// half written, or one that another thread has replaced meanwhile, reads wrong keys.
struct race {
  struct epoch epoch;
  struct wh *wh;
  _Atomic uint32_t published, done, broken;
};

static void *race_reader(void *arg) {
  struct race *const r = arg;
  struct epoch_slot es;
  epoch_join(&r->epoch, &es);
  struct wh_cursor c;
  while (!atomic_load(&r->done)) {
    const uint32_t moment = atomic_load_explicit(&r->published, memory_order_acquire);
    epoch_enter(&r->epoch, &es);
    wh_cursor_init(&c, r->wh, moment);
    uint32_t nr = 0;
    uint64_t last = 0;
    for (wh_seek(&c, kref("", 0)); wh_valid(&c); wh_next(&c), nr++) {
      const uint64_t k = load64be(wh_key(&c).ptr);
      if (nr && k <= last) atomic_store(&r->broken, 1);
      last = k;
    }
    if (nr != moment) atomic_store(&r->broken, 2);
    epoch_exit(&es);
  }
  epoch_leave(&r->epoch, &es);
  return NULL;
}

static void test_order_race(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  for (uint32_t round = 0; round < RACE_ROUNDS; round++) {
    struct race *const r = mem_alloc_aligned(CACHE_LINE, align_up(sizeof(*r), CACHE_LINE));
    memset(r, 0, sizeof(*r));
    epoch_init(&r->epoch);
    OK(wh_create(&r->epoch, CHUNK, NULL, &r->wh));
    pthread_t t[3];
    struct epoch_slot es;
    epoch_join(&r->epoch, &es);
    for (uint32_t i = 0; i < 3; i++) OK(thread_start(&t[i], race_reader, r, "wh"));
    for (uint32_t n = 1; n <= 120; n++) {
      uint8_t key[8];
      const uint64_t k = rng_next(&rng) >> (round % 2 ? 0 : 40);
      for (uint32_t b = 0; b < 8; b++) key[b] = (uint8_t)(k >> (56 - 8 * b));
      struct wh_slot s;
      epoch_enter(&r->epoch, &es);
      wh_lock(r->wh, kref(key, 8), hash64(key, 8), &s);
      if (s.entry == NULL) {
        OK(wh_link(&s, KV_REC(kref(NULL, 0), "", 0, false)));
        wh_stamp(&s, n);
        atomic_store_explicit(&r->published, n, memory_order_release);
      } else {
        n--;
      }
      wh_unlock(&s);
      epoch_exit(&es);
    }
    atomic_store(&r->done, 1);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(pthread_join(t[i], NULL), 0);
    CHECK(!atomic_load(&r->broken));
    CHECK_INDEX(r->wh);
    wh_destroy(r->wh);
    epoch_leave(&r->epoch, &es);
    epoch_fini(&r->epoch);
    mem_free(r);
  }
}

int main(void) {
  (void)check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_threads),
      cmocka_unit_test(test_order_race),
  };
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
