// SPDX-License-Identifier: Apache-2.0
//
// Gets that return memory: copies, and pins. A pinned value stays as it was, whatever happens to the key, the cache and
// the tables; and a pin keeps nothing but the memtable, or the block and the table, that has the value.
//
// TEST_SEED in the environment repeats a run.
#include "tests/lib/check.h"
#include "tests/lib/fault.h"
#include "tests/lib/store.h"

#define KEYS 60u
#define LENGTHS 6u
static const uint32_t lengths[LENGTHS] = {0, 1, 1024, 1025, 9000, 60000};

static uint32_t key_at(char *buf, uint32_t i) { return (uint32_t)sprintf(buf, "key %06u", i); }
static uint8_t byte_of(uint32_t i, uint32_t stamp) { return (uint8_t)(i * 7 + stamp * 31 + 1); }

static void put_one(struct xdb_ref *r, uint32_t i, uint32_t stamp) {
  char key[32];
  static uint8_t value[60000];
  memset(value, byte_of(i, stamp), lengths[i % LENGTHS]);
  CHECK(remixdb_put(r, key, key_at(key, i), value, lengths[i % LENGTHS]));
}
static void put_all(struct xdb_ref *r, uint32_t stamp) {
  for (uint32_t i = 0; i < KEYS; i++) put_one(r, i, stamp);
}

static bool is_value(const void *v, uint32_t len, uint32_t i, uint32_t stamp) {
  const uint8_t *const p = v;
  if (!p || len != lengths[i % LENGTHS]) return false;
  for (uint32_t b = 0; b < len; b++)
    if (p[b] != byte_of(i, stamp)) return false;
  return true;
}

struct held {
  struct xdb_pin *pin;
  const void *v;
  uint32_t len;
};

static void pin_all(struct xdb_ref *r, struct held *held) {
  char key[32];
  for (uint32_t i = 0; i < KEYS; i++) {
    held[i] = (struct held){NULL, NULL, 77};
    held[i].pin = remixdb_get_pinned(r, key, key_at(key, i), &held[i].v, &held[i].len);
    CHECK(held[i].pin && remixdb_errcode() == REMIXDB_OK);
  }
}

static void check_pins(const struct held *held, uint32_t stamp) {
  for (uint32_t i = 0; i < KEYS; i++) CHECK(is_value(held[i].v, held[i].len, i, stamp));
}

static void *release_all(void *arg) {
  struct held *const held = arg;
  for (uint32_t i = 0; i < KEYS; i++) remixdb_pin_release(held[i].pin);
  return NULL;
}

// Copies of all values, and what a missing key gives.
static void check_alloc(struct xdb_ref *r, uint32_t stamp) {
  char key[32];
  uint32_t len = 77;
  for (uint32_t i = 0; i < KEYS; i++) {
    void *const v = remixdb_get_alloc(r, key, key_at(key, i), &len);
    CHECK(is_value(v, len, i, stamp) && remixdb_errcode() == REMIXDB_OK);
    remixdb_free(v);
  }
  len = 77;
  CHECK(!remixdb_get_alloc(r, "none", 4, &len) && len == 77 && remixdb_errcode() == REMIXDB_NOTFOUND);
  const void *v = key;
  CHECK(!remixdb_get_pinned(r, "none", 4, &v, &len) && v == key && len == 77 && remixdb_errcode() == REMIXDB_NOTFOUND);
}

// Pins from each place: the active memtable, a table whose blocks are cached, one whose blocks are not. Everything that
// could touch the bytes happens before they are compared.
static void pins_outlive(size_t cache_mb, bool flushed, int workers) {
  struct remixdb_opts o = small_opts(workers);
  o.cache_mb = cache_mb;
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *r = remixdb_ref(x), *const other = remixdb_ref(x);
  static struct held held[KEYS], twice[KEYS];
  pthread_t thread;
  put_all(r, 1);
  if (flushed) CHECK(remixdb_flush(r));
  check_alloc(r, 1);
  pin_all(r, held);
  pin_all(r, twice);
  release_all(twice);
  remixdb_unref(r);
  put_all(other, 2);
  CHECK(remixdb_del(other, "key 000001", 10) && remixdb_flush(other));
  put_all(other, 3);
  CHECK(remixdb_flush(other) && remixdb_compact(other));
  for (uint32_t n = 0; n < 3; n++) check_alloc(other, 3);
  check_pins(held, 1);
  CHECK(pthread_create(&thread, NULL, release_all, held) == 0 && pthread_join(thread, NULL) == 0);
  CHECK(atomic_load(&x->nr_pins) == 0);
  OK(xdb_wait_idle(x));
  CHECK(stat_of(x, "file_bytes") == 0 && stat_of(x, "memory_bytes") == 0);  // nothing else was kept
  remixdb_unref(other);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

static void test_outlive(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 12; i++) {
    pins_outlive(i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : 64, i & 1, (int)(i / 6));
    setup_again();
  }
}

// A long value keeps its memtable, a short one nothing.
static void test_keeps_a_memtable(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(0);
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  const void *v;
  put_one(r, 2, 1);
  struct xdb_pin *const brief = remixdb_get_pinned(r, "key 000002", 10, &v, NULL);
  CHECK(brief && remixdb_flush(r));
  CHECK(stat_of(x, "memory_bytes") == 0);
  remixdb_pin_release(brief);
  put_one(r, 3, 2);
  struct xdb_pin *const pin = remixdb_get_pinned(r, "key 000003", 10, &v, NULL);
  CHECK(pin && remixdb_flush(r) && stat_of(x, "memory_bytes") > 0);
  CHECK(remixdb_compact(r) && stat_of(x, "file_bytes") == 0);  // tables go, although the pin is there
  CHECK(is_value(v, 1025, 3, 2));
  remixdb_pin_release(pin);
  CHECK(stat_of(x, "memory_bytes") == 0);
  remixdb_unref(r);
  remixdb_close(x);
}

// A value in a table keeps this one file, and no other file or memtable.
static void test_keeps_a_table(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts(0);
  o.cache_mb = 16;
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  const void *v;
  for (uint32_t stamp = 1; stamp <= 3; stamp++) {
    put_all(r, stamp);
    CHECK(remixdb_flush(r));
  }
  struct xdb_pin *const pin = remixdb_get_pinned(r, "key 000003", 10, &v, NULL);
  CHECK(pin && stat_of(x, "tables") >= 3);
  put_all(r, 4);
  CHECK(remixdb_compact(r));
  CHECK(stat_of(x, "files") == 1 && stat_of(x, "memory_bytes") == 0);
  CHECK(is_value(v, 1025, 3, 3));
  remixdb_pin_release(pin);
  CHECK(stat_of(x, "files") == 0);
  remixdb_unref(r);
  remixdb_close(x);
}

static void test_snapshots(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(0);
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  static struct held held[KEYS];
  put_all(r, 1);
  struct xdb_snapshot *const snap = remixdb_snapshot(r);
  struct xdb_ref *const old = remixdb_snapshot_ref(snap);
  put_all(r, 2);
  check_alloc(old, 1);
  pin_all(old, held);
  remixdb_unref(old);
  remixdb_snapshot_release(snap);
  CHECK(remixdb_compact(r));
  check_pins(held, 1);
  release_all(held);
  remixdb_unref(r);
  remixdb_close(x);
}

// Where reads come from the disk, the cache keeps single records without their blocks. A pin of such a record copies
// it: the frame that an earlier get has read is another one.
static void test_kept_alone(void **state) {
  (void)state;
  enum { NR = 3000, LEN = 1500 };
  struct remixdb_opts o = small_opts(0);
  o.cache_mb = 1;
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  uint8_t value[LEN];
  struct held held[64];
  char key[32];
  uint64_t rng = check_seed;
  x->cache->disk_ns = 0;  // all loads count as the disk's
  for (uint32_t i = 0; i < NR; i++) {
    memset(value, byte_of(i, 0), LEN);
    CHECK(remixdb_put(r, key, key_at(key, i), value, LEN));
  }
  CHECK(remixdb_flush(r));
  for (uint32_t round = 0; round < 10; round++) {
    uint32_t which[64];
    for (uint32_t i = 0; i < 64; i++) {
      which[i] = (uint32_t)below(&rng, i % 2 ? 100 : NR);
      held[i].pin = remixdb_get_pinned(r, key, key_at(key, which[i]), &held[i].v, &held[i].len);
      CHECK(held[i].pin && held[i].len == LEN);
      CHECK(remixdb_probe(r, key, key_at(key, (uint32_t)below(&rng, NR))));
    }
    for (uint32_t i = 0; i < 2000; i++) {  // the memory of records that are not pinned serves again
      const uint32_t k = (uint32_t)below(&rng, NR);
      for (uint32_t n = 0; n < 2; n++) CHECK(remixdb_probe(r, key, key_at(key, k)));
    }
    for (uint32_t i = 0; i < 64; i++) {
      const uint8_t *const p = held[i].v;
      for (uint32_t b = 0; b < LEN; b++) CHECK(p[b] == byte_of(which[i], 0));
      remixdb_pin_release(held[i].pin);
    }
  }
  uint64_t hits;
  CHECK(remixdb_figure(x, "cache.record_hits", &hits) && hits > 0);
  remixdb_unref(r);
  remixdb_close(x);
}

static void test_no_memory(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts(0);
  o.cache_mb = 4;
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  char key[32];
  put_all(r, 1);
  for (uint32_t flushed = 0; flushed < 2; flushed++) {
    if (flushed) CHECK(remixdb_flush(r));
    for (uint32_t i = 0; i < LENGTHS; i++) {
      const uint32_t klen = key_at(key, i);
      const void *v = key;
      uint32_t len = 77;
      for (int64_t nth = 1;; nth++) {
        fault_mem_set(nth);
        struct xdb_pin *const pin = remixdb_get_pinned(r, key, klen, &v, &len);
        const enum remixdb_status s = remixdb_errcode();
        if (!fault_mem_end()) {
          CHECK(pin && is_value(v, len, i, 1));
          remixdb_pin_release(pin);
          break;
        }
        if (!pin) CHECK(s == REMIXDB_NOMEM && v == key && len == 77);
        remixdb_pin_release(pin);
        v = key;
        len = 77;
      }
      fault_mem_set(1);
      void *const copy = remixdb_get_alloc(r, key, klen, NULL);
      CHECK(fault_mem_end() && !copy && remixdb_errcode() == REMIXDB_NOMEM);
    }
  }
  remixdb_unref(r);
  remixdb_close(x);
}

// ---- beside writers and rounds

static struct xdb *shared;
static _Atomic bool over;

static void *pin_some(void *arg) {
  uint64_t rng = (uintptr_t)arg;
  struct xdb_ref *const r = remixdb_ref(shared);
  struct held held[16] = {{NULL, NULL, 0}};
  uint32_t which[16];
  char key[32];
  while (!atomic_load(&over)) {
    const uint32_t at = (uint32_t)below(&rng, 16);
    struct held *const h = &held[at];
    if (h->pin) {  // all bytes are still of one write
      const uint8_t *const p = h->v;
      THREAD_CHECK(h->len == lengths[which[at] % LENGTHS]);
      for (uint32_t b = 1; b < h->len; b++) THREAD_CHECK(p[b] == p[0]);
      remixdb_pin_release(h->pin);
    }
    which[at] = (uint32_t)below(&rng, KEYS);
    h->pin = remixdb_get_pinned(r, key, key_at(key, which[at]), &h->v, &h->len);
    THREAD_CHECK(h->pin);
    void *const copy = remixdb_get_alloc(r, key, key_at(key, which[at]), &h->len);
    THREAD_CHECK(copy && h->len == lengths[which[at] % LENGTHS]);
    remixdb_free(copy);
  }
  remixdb_unref(r);
  for (uint32_t i = 0; i < 16; i++) remixdb_pin_release(held[i].pin);
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  struct remixdb_opts o = small_opts(2);
  o.cache_mb = 1;
  shared = quick_open(&o);
  shrink(shared, 1u << 20, 64);
  struct xdb_ref *const r = remixdb_ref(shared);
  pthread_t threads[3];
  put_all(r, 0);
  atomic_store(&over, false);
  for (uintptr_t i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, pin_some, (void *)(check_seed + i)) == 0);
  for (uint32_t stamp = 1; stamp < 160 / SLOW + 5; stamp++) {
    put_all(r, stamp);
    if (stamp % 8 == 0) CHECK(remixdb_compact(r));
  }
  atomic_store(&over, true);
  for (uint32_t i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(atomic_load(&shared->nr_pins) == 0);
  remixdb_unref(r);
  remixdb_close(shared);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

#define INVALID(call) CHECK(!(call) && remixdb_errcode() == REMIXDB_INVALID)

static void test_wrong_use(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(0);
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  const void *v;
  INVALID(remixdb_get_pinned(NULL, "k", 1, &v, NULL));
  INVALID(remixdb_get_pinned(r, NULL, 1, &v, NULL));
  INVALID(remixdb_get_pinned(r, "k", 1, NULL, NULL));
  INVALID(remixdb_get_alloc(NULL, "k", 1, NULL));
  INVALID(remixdb_get_alloc(r, NULL, 1, NULL));
  remixdb_pin_release(NULL);
  remixdb_unref(r);
  remixdb_close(x);
}

int main(void) {
  check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_outlive, setup, teardown),
      cmocka_unit_test_setup_teardown(test_keeps_a_memtable, setup, teardown),
      cmocka_unit_test_setup_teardown(test_keeps_a_table, setup, teardown),
      cmocka_unit_test_setup_teardown(test_snapshots, setup, teardown),
      cmocka_unit_test_setup_teardown(test_kept_alone, setup, teardown),
      cmocka_unit_test_setup_teardown(test_no_memory, setup, teardown),
      cmocka_unit_test_setup_teardown(test_threads, setup, teardown),
      cmocka_unit_test_setup_teardown(test_wrong_use, setup, teardown),
  };
  return check_seed_end(cmocka_run_group_tests_name("pin", tests, NULL, NULL));
}
