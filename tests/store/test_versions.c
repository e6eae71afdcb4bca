// SPDX-License-Identifier: Apache-2.0
//
// Versions: never 0, higher with each write, the same in memtable, log and tables, after compaction, hand-backs and
// opening; and compare and set, exact under threads.
#include "store/wait_room.h"
#include "tests/lib/check.h"
#include "tests/lib/store.h"

static struct xdb *x;
static struct xdb_ref *r;

static void open_with(uint32_t workers) {
  const struct remixdb_opts o = small_opts(workers);
  x = quick_open(&o);
  CHECK((r = remixdb_ref(x)) != NULL);
}

static void close_store(void) {
  remixdb_unref(r);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

// The key's version; 0: it does not exist.
static uint64_t version_of(struct xdb_ref *ref, const void *key, uint32_t klen) {
  char buf[256];
  uint64_t version = 0;
  if (remixdb_getv(ref, key, klen, buf, sizeof(buf), NULL, &version)) {
    CHECK(version != 0);
    return version;
  }
  CHECK(remixdb_errcode() == REMIXDB_NOTFOUND);
  return 0;
}
#define VERSION(key) version_of(r, key, sizeof(key) - 1)
#define PUT_IF(key, value, version) remixdb_put_if(r, key, sizeof(key) - 1, value, sizeof(value) - 1, version)
#define LOST(call) (!(call) && remixdb_errcode() == REMIXDB_ABORTED)

static enum remixdb_merge_op keep(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  (void)v0, (void)v0len, (void)v1, (void)v1len, (void)priv;
  return REMIXDB_MERGE_KEEP;
}

static void test_ascend(void **state) {
  (void)state;
  open_with(0);
  uint64_t last = 0;
  for (uint32_t i = 0; i < 12; i++) {
    CHECK(remixdb_put(r, "k", 1, &i, sizeof(i)));
    const uint64_t now = VERSION("k");
    CHECK(now > last);
    last = now;
    if (i % 3 == 1) CHECK(remixdb_flush(r) && VERSION("k") == last);
    if (i % 5 == 4) CHECK(remixdb_compact(r) && VERSION("k") == last);
    CHECK(remixdb_merge(r, "k", 1, keep, NULL) && VERSION("k") == last);
    if (i % 4 == 3) {
      CHECK(remixdb_sync(r));
      close_store();
      open_with(0);
      CHECK(VERSION("k") == last);
    }
  }
  CHECK(remixdb_del(r, "k", 1) && VERSION("k") == 0);
  CHECK(remixdb_flush(r) && remixdb_compact(r) && remixdb_put(r, "k", 1, "", 0) && VERSION("k") > last);
  close_store();
}

static void test_compare(void **state) {
  (void)state;
  open_with(0);
  for (uint32_t flush = 0; flush < 3; flush++) {
    CHECK(LOST(PUT_IF("k", "x", 7)) && VERSION("k") == 0);
    CHECK(PUT_IF("k", "one", 0) && LOST(PUT_IF("k", "two", 0)));
    if (flush) CHECK(remixdb_flush(r));
    if (flush > 1) CHECK(remixdb_compact(r));
    const uint64_t one = VERSION("k");
    CHECK(LOST(PUT_IF("k", "two", one - 1)) && LOST(PUT_IF("k", "two", one + 1)) && VERSION("k") == one);
    CHECK(LOST(PUT_IF("k", "two", 0)));
    CHECK(PUT_IF("k", "two", one) && VERSION("k") > one && LOST(PUT_IF("k", "three", one)));
    const uint64_t two = VERSION("k");
    if (flush) CHECK(remixdb_flush(r));
    CHECK(LOST(remixdb_del_if(r, "k", 1, one)) && VERSION("k") == two);
    CHECK(remixdb_del_if(r, "k", 1, two) && VERSION("k") == 0 && LOST(remixdb_del_if(r, "k", 1, two)));
    if (flush) CHECK(remixdb_flush(r));
    CHECK(LOST(PUT_IF("k", "x", two)) && VERSION("k") == 0);
  }
  CHECK(!remixdb_del_if(r, "k", 1, 0) && remixdb_errcode() == REMIXDB_INVALID);
  struct xdb_snapshot *const snap = remixdb_snapshot(r);
  struct xdb_ref *const old = remixdb_snapshot_ref(snap);
  CHECK(!remixdb_put_if(old, "k", 1, "", 0, 0) && remixdb_errcode() == REMIXDB_READONLY);
  CHECK(remixdb_put(r, "k", 1, "", 0) && version_of(old, "k", 1) == 0);
  remixdb_unref(old);
  remixdb_snapshot_release(snap);
  close_store();
}

// In a transaction the comparison is with what the transaction reads; its own writes have no version.
static void test_transaction(void **state) {
  (void)state;
  open_with(0);
  CHECK(remixdb_put(r, "k", 1, "v", 1));
  const uint64_t version = VERSION("k");
  struct xdb_txn *t = remixdb_txn_begin(x);
  struct xdb_ref *tr = remixdb_txn_ref(t, NULL);
  CHECK(version_of(tr, "k", 1) == version && LOST(remixdb_put_if(tr, "k", 1, "w", 1, version + 1)));
  CHECK(remixdb_put_if(tr, "k", 1, "w", 1, version) && remixdb_put_if(tr, "new", 3, "w", 1, 0));
  CHECK(!remixdb_getv(tr, "k", 1, NULL, 0, NULL, NULL) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(LOST(remixdb_put_if(tr, "k", 1, "x", 1, version)) && strstr(remixdb_errmsg(), "has written the key"));
  CHECK(LOST(remixdb_put_if(tr, "new", 3, "x", 1, 0)) && strstr(remixdb_errmsg(), "has written the key"));
  CHECK(remixdb_del(tr, "new", 3) && remixdb_put_if(tr, "new", 3, "y", 1, 0));
  CHECK(remixdb_txn_commit(t) && VERSION("k") > version && VERSION("new") != 0);
  t = remixdb_txn_begin(x);
  tr = remixdb_txn_ref(t, NULL);
  CHECK(remixdb_del_if(tr, "k", 1, VERSION("k")) && remixdb_put(r, "k", 1, "z", 1));
  CHECK(LOST(remixdb_txn_commit(t)));  // the comparison was a read
  close_store();
}

#define KEYS 3000u

// Random rounds over many keys with hand-backs: every version stays as it was when the key was written.
static void test_rounds(void **state) {
  (void)state;
  static uint64_t versions[KEYS];
  memset(versions, 0, sizeof(versions));
  uint64_t rng = check_seed;
  uint64_t handed_back = 0;
  open_with(0);
  for (uint32_t round = 0; round < 60; round++) {
    shrink(x, 256 << 10, 8);
    x->compact.young_from = 0;  // small new data is expensive: it is handed back
    const uint32_t from = (uint32_t)below(&rng, KEYS), n = round < 6 ? 900 : 12;
    for (uint32_t i = 0; i < n; i++) {
      const uint32_t k = (from + (uint32_t)below(&rng, round % 2 ? KEYS : 200)) % KEYS, key = __builtin_bswap32(k);
      const uint8_t value[200] = {(uint8_t)round};
      if (chance(&rng, 10)) {
        CHECK(remixdb_del(r, &key, 4));
        versions[k] = 0;
      } else {
        CHECK(remixdb_put(r, &key, 4, value, 20 + (uint32_t)below(&rng, 180)));
        versions[k] = version_of(r, &key, 4);
      }
    }
    if (chance(&rng, 60)) OK(xdb_wait_room(x, XDB_FREEZE_ANY, 0));  // a round that may hand back
    handed_back += atomic_load(&x->compact.stats.handed_back);
    if (chance(&rng, 5)) CHECK(remixdb_compact(r));
    if (chance(&rng, 30)) {
      CHECK(remixdb_sync(r));
      close_store();
      open_with(0);
    }
    for (uint32_t k = 0; k < KEYS; k++) {
      const uint32_t key = __builtin_bswap32(k);
      CHECK(version_of(r, &key, 4) == versions[k]);
    }
    CHECK(remixdb_verify(r));
  }
  CHECK(handed_back > 0);
  close_store();
}

enum { THREADS = 8, TURNS = 4000, COUNTERS = 4 };

static void *count(void *arg) {
  struct xdb_ref *const ref = remixdb_ref(x);
  THREAD_CHECK(ref);
  uint64_t rng = (uint64_t)(uintptr_t)arg + 1;
  for (uint32_t done = 0; done < TURNS;) {
    uint64_t value = 0, version = 0;
    const uint8_t key = (uint8_t)below(&rng, COUNTERS);
    uint32_t len;
    if (!remixdb_getv(ref, &key, 1, &value, sizeof(value), &len, &version))
      THREAD_CHECK(remixdb_errcode() == REMIXDB_NOTFOUND);
    value++;
    if (remixdb_put_if(ref, &key, 1, &value, sizeof(value), version)) done++;
    else THREAD_CHECK(remixdb_errcode() == REMIXDB_ABORTED);
    if (done % 500 == 499) THREAD_CHECK(remixdb_flush(ref));
  }
  remixdb_unref(ref);
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  open_with(2);
  pthread_t threads[THREADS];
  for (uint32_t i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, count, (void *)(uintptr_t)i) == 0);
  for (uint32_t i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  uint64_t sum = 0;
  for (uint8_t key = 0; key < COUNTERS; key++) {
    uint64_t value = 0;
    CHECK(remixdb_get(r, &key, 1, &value, NULL));
    sum += value;
  }
  CHECK(sum == THREADS * TURNS);
  close_store();
}

int main(void) {
  check_seed = check_seed_or(1);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_ascend, setup, teardown),
      cmocka_unit_test_setup_teardown(test_compare, setup, teardown),
      cmocka_unit_test_setup_teardown(test_transaction, setup, teardown),
      cmocka_unit_test_setup_teardown(test_rounds, setup, teardown),
      cmocka_unit_test_setup_teardown(test_threads, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
