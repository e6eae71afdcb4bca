// SPDX-License-Identifier: Apache-2.0
//
// Writers and readers at once, and threads that come and go: each reader finds the store as it was at some moment of
// its call.
//
// TEST_SEED in the environment repeats a run's random choices.
#include "tests/lib/check.h"
#include "tests/lib/store.h"

static uint64_t seed_first;  // the seed of all tests

// Each writer goes over its keys in order, again and again: its p-th write (from 0) is of key p % FLOW_KEYS. So a value
// that a reader finds tells how far the writer was. A view of one moment has the keys up to some place one version
// ahead of the others.
#define FLOW_WRITERS 2u
#define FLOW_KEYS 200u
#define FLOW_THREADS (FLOW_WRITERS + 3)  // two readers and one that scans
#define GUESTS 40u

struct flow {
  struct xdb *xdb;
  uint32_t id;                   // the writer's
  _Atomic uint64_t begun, done;  // writes of this writer: begun before a call, done after it
  struct flow *all;
  _Atomic bool *stop;
  uint64_t rng;
  _Atomic uint64_t *work;  // readers' work: how often they came round
};

static uint32_t flow_version(uint32_t i, uint64_t writes) {
  return (uint32_t)((writes + FLOW_KEYS - 1 - i) / FLOW_KEYS);
}
static bool flow_there(uint32_t ver) { return ver % 4 != 0; }  // every fourth version of a key is a delete

static uint32_t flow_key(char *buf, uint32_t id, uint32_t i) {
  return (uint32_t)snprintf(buf, 32, "writer%u-%05u", id, i);
}

static uint32_t flow_value(uint8_t *buf, uint32_t id, uint32_t i, uint32_t ver) {
  uint64_t rng = (uint64_t)id << 60 | (uint64_t)i << 32 | ver;
  const uint32_t len = 16 + (uint32_t)(rng_next(&rng) % 1200);
  const uint32_t head[4] = {id, i, ver, len};
  memcpy(buf, head, sizeof(head));
  memset(buf + sizeof(head), (int)(ver + i), len - sizeof(head));
  return len;
}

// The version of a value, which must be whole.
static uint32_t flow_parse(const uint8_t *val, uint32_t len, uint32_t id, uint32_t i) {
  uint8_t want[2048];
  uint32_t head[4];
  THREAD_CHECK(len >= sizeof(head));
  memcpy(head, val, sizeof(head));
  THREAD_CHECK(head[0] == id && head[1] == i && head[3] == len);
  THREAD_CHECK(flow_value(want, id, i, head[2]) == len && memcmp(want, val, len) == 0);
  return head[2];
}

static void *flow_write(void *arg) {
  struct flow *const f = arg;
  struct xdb_ref *const r = remixdb_ref(f->xdb);
  THREAD_CHECK(r);
  uint8_t val[2048];
  char key[32];
  for (uint64_t p = 0; !atomic_load(f->stop); p++) {
    const uint32_t i = (uint32_t)(p % FLOW_KEYS), ver = flow_version(i, p + 1);
    const uint32_t klen = flow_key(key, f->id, i), vlen = flow_value(val, f->id, i, ver);
    atomic_store(&f->begun, p + 1);
    if (flow_there(ver)) THREAD_CHECK(remixdb_put(r, key, klen, val, vlen));
    else THREAD_CHECK(remixdb_del(r, key, klen));
    atomic_store(&f->done, p + 1);
    if (p % 3001 == 3000) THREAD_CHECK(remixdb_sync(r));
  }
  remixdb_unref(r);
  return NULL;
}

static void *flow_read(void *arg) {
  struct flow *const f = arg;
  struct xdb_ref *const r = remixdb_ref(f->xdb);
  THREAD_CHECK(r);
  static _Thread_local uint32_t last[FLOW_WRITERS][FLOW_KEYS];
  memset(last, 0, sizeof(last));
  uint8_t val[2048];
  char key[32];
  while (!atomic_load(f->stop)) {
    const uint32_t w = (uint32_t)(rng_next(&f->rng) % FLOW_WRITERS), i = (uint32_t)(rng_next(&f->rng) % FLOW_KEYS);
    uint32_t len;
    const uint32_t low = flow_version(i, atomic_load(&f->all[w].done));
    const bool found = remixdb_get(r, key, flow_key(key, w, i), val, &len);
    const uint32_t high = flow_version(i, atomic_load(&f->all[w].begun));
    if (found) {
      const uint32_t ver = flow_parse(val, len, w, i);
      THREAD_CHECK(ver >= low && ver <= high && ver >= last[w][i]);
      last[w][i] = ver;
    } else {
      THREAD_CHECK(remixdb_errcode() == REMIXDB_NOTFOUND);
      uint32_t ver = low;
      while (ver <= high && flow_there(ver)) ver++;
      THREAD_CHECK(ver <= high);
    }
    atomic_fetch_add(f->work, 1);
  }
  remixdb_unref(r);
  return NULL;
}

// Whether a reader's view of a writer's keys (version 0: not there) is the store after some number of the writer's
// writes, between low and high.
static bool flow_consistent(const uint32_t *seen, uint64_t low, uint64_t high) {
  for (uint64_t writes = low; writes <= high; writes++) {
    uint32_t i = 0;
    for (; i < FLOW_KEYS; i++) {
      const uint32_t ver = flow_version(i, writes);
      if (seen[i] != (flow_there(ver) ? ver : 0)) break;
    }
    if (i == FLOW_KEYS) return true;
  }
  return false;
}

static void *flow_scan(void *arg) {
  struct flow *const f = arg;
  struct xdb_ref *const r = remixdb_ref(f->xdb);
  struct xdb_iter *const it = remixdb_iter_create(r);
  THREAD_CHECK(r && it);
  uint8_t val[2048];
  char key[64], want[64];
  while (!atomic_load(f->stop)) {
    uint32_t seen[FLOW_WRITERS][FLOW_KEYS] = {{0}};
    uint64_t low[FLOW_WRITERS], high[FLOW_WRITERS];
    for (uint32_t w = 0; w < FLOW_WRITERS; w++) low[w] = atomic_load(&f->all[w].done);
    remixdb_iter_seek(it, "writer", 6);
    THREAD_CHECK(remixdb_errcode() == REMIXDB_OK);
    for (uint32_t w = 0; w < FLOW_WRITERS; w++) high[w] = atomic_load(&f->all[w].begun);
    uint32_t place = 0;  // the smallest key that may come
    for (; remixdb_iter_valid(it); remixdb_iter_skip1(it)) {
      uint32_t klen, vlen;
      THREAD_CHECK(remixdb_iter_peek(it, key, &klen, val, &vlen));
      if (klen < 6 || memcmp(key, "writer", 6) != 0) break;
      while (place < FLOW_WRITERS * FLOW_KEYS) {
        const uint32_t n = flow_key(want, place / FLOW_KEYS, place % FLOW_KEYS);
        if (n == klen && memcmp(want, key, n) == 0) break;
        place++;
      }
      THREAD_CHECK(place < FLOW_WRITERS * FLOW_KEYS);
      seen[place / FLOW_KEYS][place % FLOW_KEYS] = flow_parse(val, vlen, place / FLOW_KEYS, place % FLOW_KEYS);
      place++;
      if (rng_next(&f->rng) % 100 == 0) time_sleep_ns(20000);
    }
    THREAD_CHECK(remixdb_iter_status(it) == REMIXDB_OK);
    for (uint32_t w = 0; w < FLOW_WRITERS; w++) THREAD_CHECK(flow_consistent(seen[w], low[w], high[w]));
    if (rng_next(&f->rng) % 4 == 0) remixdb_iter_park(it);
    atomic_fetch_add(f->work, 1);
  }
  remixdb_iter_destroy(it);
  remixdb_unref(r);
  return NULL;
}

// A thread that writes a little and ends. Every second one does not end its ref and an iterator on a key.
struct guest {
  struct xdb *xdb;
  struct xdb_ref *ref;
  struct xdb_iter *it;
  uint32_t nr;
};

static uint32_t guest_key(char *buf, uint32_t i) { return (uint32_t)snprintf(buf, 32, "guest-%06u", i); }

static void *guest_main(void *arg) {
  struct guest *const g = arg;
  struct xdb_ref *const r = remixdb_ref(g->xdb);
  struct xdb_iter *const it = remixdb_iter_create(r);
  THREAD_CHECK(r && it);
  char key[32];
  for (uint32_t i = 0; i < 20; i++) THREAD_CHECK(remixdb_put(r, key, guest_key(key, g->nr + i), &g->nr, 4));
  remixdb_iter_seek(it, "guest-", 6);
  THREAD_CHECK(remixdb_iter_valid(it));
  if (g->nr / 20 % 2) {
    g->ref = r;
    g->it = it;
  } else {
    remixdb_iter_destroy(it);
    remixdb_unref(r);
  }
  return NULL;
}

// The threads of one run, and their counts.
struct run {
  struct xdb *xdb;
  _Atomic bool stop;
  _Atomic uint64_t reads, scans;
  struct flow flows[FLOW_THREADS];
  pthread_t threads[FLOW_THREADS];
  struct guest guests[GUESTS];
};

static void flow_start(struct run *run) {
  for (uint32_t i = 0; i < FLOW_THREADS; i++) {
    struct flow *const f = &run->flows[i];
    f->xdb = run->xdb;
    f->id = i;
    f->all = run->flows;
    f->stop = &run->stop;
    f->rng = check_seed + i;
    f->work = i == FLOW_THREADS - 1 ? &run->scans : &run->reads;
  }
  for (uint32_t i = 0; i < FLOW_THREADS; i++) {
    void *(*const fn)(void *) = i < FLOW_WRITERS ? flow_write : i < FLOW_THREADS - 1 ? flow_read : flow_scan;
    CHECK(pthread_create(&run->threads[i], NULL, fn, &run->flows[i]) == 0);
  }
}

// Guests come one after the other, within so many milliseconds.
static void guests_come(struct run *run, uint64_t ms) {
  for (uint32_t i = 0; i < GUESTS; i++) {
    pthread_t t;
    run->guests[i].xdb = run->xdb;
    run->guests[i].nr = i * 20;
    CHECK(pthread_create(&t, NULL, guest_main, &run->guests[i]) == 0 && pthread_join(t, NULL) == 0);
    time_sleep_ns(ms * 1000000 / GUESTS);
  }
}

// Stops the threads when each has done something and memtables have come and gone, however long that takes.
static void flow_stop(struct run *run) {
  const uint64_t rounds = stat_of(run->xdb, "rounds");
  while (atomic_load(&run->reads) < 100 || atomic_load(&run->scans) < 3 || stat_of(run->xdb, "rounds") < rounds + 2)
    time_sleep_ns(1000000);
  atomic_store(&run->stop, true);
  for (uint32_t i = 0; i < FLOW_THREADS; i++) CHECK(pthread_join(run->threads[i], NULL) == 0);
}

// The refs and iterators that the guests did not end still work.
static void guests_check(struct run *run) {
  char key[32], want[32];
  for (uint32_t i = 0; i < GUESTS; i++) {
    struct guest *const g = &run->guests[i];
    if (!g->it) continue;
    for (uint32_t k = 0; k < (i + 1) * 20; k++, remixdb_iter_skip1(g->it)) {
      uint32_t len;
      CHECK(remixdb_iter_peek(g->it, key, &len, NULL, NULL));
      CHECK(len == guest_key(want, k) && memcmp(key, want, len) == 0);
    }
    remixdb_iter_destroy(g->it);
    CHECK(remixdb_probe(g->ref, key, 12) && remixdb_put(g->ref, "late", 4, NULL, 0));
    remixdb_unref(g->ref);
  }
}

// The store has the last version of each key, and all keys of the guests.
static void flow_check(struct run *run) {
  struct xdb_ref *const r = remixdb_ref(run->xdb);
  uint8_t val[2048];
  char key[32];
  for (uint32_t w = 0; w < FLOW_WRITERS; w++) {
    for (uint32_t i = 0; i < FLOW_KEYS; i++) {
      uint32_t len;
      const uint32_t ver = flow_version(i, run->flows[w].done);
      CHECK(remixdb_get(r, key, flow_key(key, w, i), val, &len) == flow_there(ver));
      if (flow_there(ver)) CHECK(flow_parse(val, len, w, i) == ver);
    }
  }
  for (uint32_t i = 0; i < GUESTS * 20; i++) CHECK(remixdb_probe(r, key, guest_key(key, i)));
  remixdb_unref(r);
}

static void run_flow(uint64_t nr, int workers, uint64_t ms) {
  check_seed = seed_first + nr;
  struct remixdb_opts o = small_opts(workers);
  uint64_t rng = check_seed;
  o.ckeys = rng_next(&rng) % 2;
  o.tags = rng_next(&rng) % 2;
  o.sync = rng_next(&rng) % 2 ? 5 : REMIXDB_SYNC_NONE;
  struct run *const run = calloc(1, sizeof(*run));
  CHECK(run && (run->xdb = remixdb_open_opts(dir, &o)));
  flow_start(run);
  guests_come(run, ms);
  flow_stop(run);
  guests_check(run);
  flow_check(run);
  remixdb_close(run->xdb);
  CHECK(remixdb_errcode() == REMIXDB_OK);
  CHECK((run->xdb = remixdb_open_opts(dir, &o)));
  flow_check(run);
  remixdb_close(run->xdb);
  CHECK(remixdb_errcode() == REMIXDB_OK);
  free(run);
}

static void test_threads(void **state) {
  (void)state;
  for (int workers = 0; workers < 3; workers++) {
    run_flow(400 + (uint64_t)workers, workers, 500);
    setup_again();
  }
}

int main(void) {
  seed_first = check_seed_or(time_ns() % 1000000 * 1000);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_threads, setup, teardown),
  };
  return cmocka_run_group_tests_name("xdb threads", tests, NULL, NULL);
}
