// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes past the page cache. Rounds of a store that is larger than memory do both, while reads come from the
// disk. Readers of several blocks read so what is missed for the first time in such a store. The disk is simulated. It
// counts what is read and written past the page cache, and refuses what is not in whole pages. Rings need a real one.
#include "tests/lib/check.h"

#include <stdio.h>

#include "tests/lib/expect.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/store.h"
#include "tests/lib/temp.h"
#include "base/cgroup.h"
#include "blkio.h"
#include "xdb.h"

#define KEYS 6000u
#define VALUE 400u

struct past {
  struct simdisk *disk;
  struct xdb *x;
  struct xdb_ref *ref;
  uint64_t rng;
};

static uint32_t key_of(uint32_t i, char buf[24]) { return (uint32_t)snprintf(buf, 24, "%08u", i * 7u); }

static void fill_value(uint8_t *value, uint32_t i, uint32_t pass) {
  for (uint32_t k = 0; k < VALUE; k++) value[k] = (uint8_t)(i * 31 + pass * 7 + k);
}

// Puts every key once, in an order of its own, and writes all to tables.
static void put_all(struct past *t, uint32_t pass) {
  uint8_t value[VALUE];
  char key[24];
  const uint32_t step = 4799;  // has no common divisor with KEYS
  for (uint32_t i = 0, k = (uint32_t)(rng_next(&t->rng) % KEYS); i < KEYS; i++, k = (k + step) % KEYS) {
    fill_value(value, k, pass);
    CHECK(remixdb_put(t->ref, key, key_of(k, key), value, VALUE));
  }
  CHECK(remixdb_flush(t->ref));
}

static void get_all(struct past *t, uint32_t pass) {
  uint8_t value[VALUE], got[VALUE];
  char key[24];
  for (uint32_t i = 0; i < KEYS; i++) {
    uint32_t len = VALUE;
    fill_value(value, i, pass);
    CHECK(remixdb_get(t->ref, key, key_of(i, key), got, &len) && len == VALUE);
    CHECK(memcmp(value, got, VALUE) == 0);
  }
}

static void open_it(struct past *t, int cold, uint64_t memory, uint64_t seed, bool refused) {
  struct remixdb_opts o = small_opts(0);
  o.memtable_mb = 64;
  atomic_store(&blkio_test_cold, cold);
  t->rng = seed;
  if (!t->disk) CHECK(t->disk = simdisk_create());
  simdisk_no_direct(t->disk, refused);
  OK(xdb_open("/store", &o, simdisk_env(t->disk), &t->x));
  t->x->compact.memory = memory;
  shrink(t->x, 512 << 10, 100);
  CHECK(t->ref = remixdb_ref(t->x));
}

static void close_it(struct past *t) {
  remixdb_unref(t->ref);
  remixdb_close(t->x);
  atomic_store(&blkio_test_cold, 0);
}

static void test_when(void **state) {
  (void)state;
  check_seed = check_seed_or(1);
  static const struct {
    int cold;         // blkio_test_cold
    uint64_t memory;  // 0: not known
    bool refused, past;
  } cases[] = {
      {2, 1, false, true}, {1, 1, false, false}, {2, 1 << 30, false, false}, {2, 0, false, false}, {2, 1, true, true}};
  for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    struct past t = {.disk = NULL};
    open_it(&t, cases[i].cold, cases[i].memory, check_seed + i, cases[i].refused);
    put_all(&t, 0);
    put_all(&t, 1);
    get_all(&t, 1);
    const uint64_t direct = atomic_load(&t.x->io.past_bytes), all = atomic_load(&t.x->io.write_bytes);
    if (cases[i].past && !cases[i].refused) CHECK(direct > all / 2 && simdisk_direct(t.disk) >= direct);
    if (!cases[i].past) CHECK(direct == 0);
    if (!cases[i].past || cases[i].refused) CHECK(simdisk_direct(t.disk) == 0);
    CHECK((simdisk_refused(t.disk) > 0) == cases[i].refused);
    CHECK(remixdb_compact(t.ref));
    CHECK((simdisk_direct_read(t.disk) > 0) == (cases[i].past && !cases[i].refused));
    get_all(&t, 1);
    close_it(&t);
    open_it(&t, 1, 0, check_seed, cases[i].refused);  // the same bytes, for a store that knows nothing of this
    get_all(&t, 1);
    close_it(&t);
    simdisk_destroy(t.disk);
  }
}

// A store whose readers find all in the page cache goes back to it.
static void test_readers_decide(void **state) {
  (void)state;
  check_seed = check_seed_or(1);
  struct past t = {.disk = NULL};
  open_it(&t, 0, 1, check_seed, false);
  atomic_store(&t.x->io.cold, 256);
  t.x->io.disk_ns = UINT64_MAX;  // no read takes so long
  put_all(&t, 0);
  const uint64_t before = atomic_load(&t.x->io.past_bytes);
  CHECK(before > 0);
  get_all(&t, 0);
  CHECK(!blkio_cold(&t.x->io));
  put_all(&t, 1);
  CHECK(atomic_load(&t.x->io.past_bytes) == before);
  close_it(&t);
  simdisk_destroy(t.disk);
}

// ---- readers

// Readers of every kind: each reads all records, or some in each part of the store.
static void multi_get_all(struct past *t, uint32_t pass) {
  enum { NR = 50 };
  static uint8_t got[NR][VALUE];
  char keys[NR][24];
  for (uint32_t i = 0; i < KEYS; i += NR) {
    struct remixdb_slice slices[NR];
    struct remixdb_buf values[NR];
    uint8_t value[VALUE];
    bool found[NR];
    for (uint32_t k = 0; k < NR; k++) {
      const uint32_t at = (i + k * 61) % KEYS;
      slices[k] = (struct remixdb_slice){keys[k], key_of(at, keys[k])};
      values[k] = (struct remixdb_buf){.ptr = got[k], .cap = VALUE};
    }
    CHECK(remixdb_multi_get(t->ref, NR, slices, values, found) == NR);
    for (uint32_t k = 0; k < NR; k++) {
      fill_value(value, (i + k * 61) % KEYS, pass);
      CHECK(values[k].len == VALUE && memcmp(got[k], value, VALUE) == 0);
    }
  }
}

static void scan_some(struct past *t, uint32_t pass, bool back) {
  for (uint32_t i = 0; i < KEYS; i += 97) {
    struct xdb_iter *const it = expect_iter(t->ref, i);
    char key[24];
    CHECK(it);
    remixdb_iter_seek(it, key, key_of(i, key));
    for (uint32_t k = 0; k < 30 && (back ? k <= i : i + k < KEYS); k++) {
      uint8_t value[VALUE], got[VALUE];
      uint32_t len = VALUE;
      CHECK(remixdb_iter_peek(it, NULL, NULL, got, &len) && len == VALUE);
      fill_value(value, back ? i - k : i + k, pass);
      CHECK(memcmp(value, got, VALUE) == 0);
      if (back) remixdb_iter_prev(it);
      else remixdb_iter_skip1(it);
    }
    remixdb_iter_destroy(it);
  }
}

static void async_get_all(struct past *t, uint32_t pass) {
  enum { NR = 40 };
  static uint8_t values[NR][VALUE];
  struct xdb_gets *const gets = remixdb_gets_create(t->ref, NR);
  CHECK(gets);
  for (uint32_t i = 0; i < KEYS; i += NR) {
    struct remixdb_got got[NR];
    uint8_t value[VALUE];
    char key[24];
    for (uint32_t k = 0; k < NR; k++)
      CHECK(remixdb_get_begin(gets, key, key_of(i + k, key), values[k], VALUE, values[k]));
    CHECK(remixdb_get_poll(gets, got, NR, NR) == NR);
    for (uint32_t k = 0; k < NR; k++) {
      fill_value(value, i + (uint32_t)((uint8_t(*)[VALUE])got[k].priv - values), pass);
      CHECK(got[k].status == REMIXDB_OK && got[k].len == VALUE && memcmp(got[k].priv, value, VALUE) == 0);
    }
  }
  remixdb_gets_destroy(gets);
}

static uint64_t nr_past(const struct past *t) { return atomic_load(&t->x->admission.nr_past); }

static void read_all(struct past *t, uint32_t way) {
  switch (way) {
    case 0: get_all(t, 0); break;
    case 1: multi_get_all(t, 0); break;
    case 2: scan_some(t, 0, false); break;
    case 3: scan_some(t, 0, true); break;
    default: async_get_all(t, 0);
  }
}
#define WAYS 5u

// Opens a store of a cache that holds less than half of it, with an empty cache.
static void open_to_read(struct past *t, const struct remixdb_opts *o, struct env *env, const char *where) {
  OK(xdb_open(where, o, env, &t->x));
  expect_small_memory(t->x);
  CHECK(t->ref = remixdb_ref(t->x));
}

static struct remixdb_opts reader_opts(uint32_t n) {
  struct remixdb_opts o = small_opts(0);
  o.cache_mb = 1;
  o.memtable_mb = 64;
  o.compression = n & 1 ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
  return o;
}

// A store that has become larger than memory gives its readers the choice, and so does one that is so at its opening.
static void test_readers_begin(void **state) {
  (void)state;
  check_seed = check_seed_or(1);
  struct past t = {.disk = NULL};
  open_it(&t, 2, 1 << 20, check_seed, false);
  CHECK(!atomic_load(&t.x->admission.on));
  put_all(&t, 0);
  CHECK(atomic_load(&t.x->admission.on));
  for (uint32_t n = 0; n < 4; n++) {
    struct remixdb_opts o = reader_opts(n & 1);
    close_it(&t);
    o.direct_io = n & 2;
    atomic_store(&cgroup_test_memory, (uint64_t)(1 + n % 2 * 8) << 20);
    OK(xdb_open("/store", &o, simdisk_env(t.disk), &t.x));
    atomic_store(&cgroup_test_memory, 0);
    CHECK(t.ref = remixdb_ref(t.x));
    CHECK(atomic_load(&t.x->admission.on) == (n == 0));  // where all reads go past it there is no choice
    CHECK((t.x->ctx.admission == NULL) == o.direct_io);
    get_all(&t, 0);
  }
  close_it(&t);
  simdisk_destroy(t.disk);
}

static void test_readers(void **state) {
  (void)state;
  check_seed = check_seed_or(1);
  for (uint32_t n = 0; n < 4; n++) {
    const bool refused = n & 2;
    const struct remixdb_opts o = reader_opts(n);
    struct past t = {.disk = simdisk_create(), .rng = check_seed};
    struct env *const env = simdisk_env(t.disk);
    atomic_store(&blkio_test_cold, 1);
    OK(xdb_open("/store", &o, env, &t.x));
    shrink(t.x, 512 << 10, 100);
    CHECK(t.ref = remixdb_ref(t.x));
    put_all(&t, 0);
    CHECK(nr_past(&t) == 0);
    for (uint32_t way = 0; way < WAYS; way++) {
      close_it(&t);
      simdisk_no_direct(t.disk, refused);
      atomic_store(&blkio_test_cold, 2);
      open_to_read(&t, &o, env, "/store");
      const uint64_t before = simdisk_direct_read(t.disk), refusals = simdisk_refused(t.disk);
      read_all(&t, way);
      const uint64_t first = nr_past(&t);
      if (way == 0) CHECK(first == 0);  // each read alone
      else CHECK_SAYS(first > 100 || o.compression, "%llu blocks", (unsigned long long)first);
      CHECK((simdisk_direct_read(t.disk) > before) == (first > 0 && !refused));
      if (!refused) CHECK(simdisk_refused(t.disk) == refusals);
      read_all(&t, way);
      const uint64_t again = nr_past(&t) - first;
      CHECK_SAYS(again <= first / 2, "%llu blocks, then %llu", (unsigned long long)first, (unsigned long long)again);
      if (way > 0) continue;
      read_all(&t, 1);  // keys that were read alone are remembered, too
      CHECK_SAYS(nr_past(&t) < KEYS / 12, "%llu blocks", (unsigned long long)nr_past(&t));
    }
    close_it(&t);
    simdisk_destroy(t.disk);
  }
}

// The same on a real disk, where engines have batches.
static void test_readers_batches(void **state) {
  (void)state;
  check_seed = check_seed_or(1);
  static const char *const engines[] = {"uring", "aio", "sync"};
  for (uint32_t n = 0; n < 6; n++) {
    struct remixdb_opts o = reader_opts(n);
    struct past t = {.rng = check_seed};
    o.io = engines[n / 2];
    setup_again();
    atomic_store(&blkio_test_cold, 1);
    OK(xdb_open(dir, &o, env_posix(), &t.x));
    shrink(t.x, 512 << 10, 100);
    CHECK(t.ref = remixdb_ref(t.x));
    CHECK(t.x->io.kind == BLKIO_URING || n / 2 || t.x->io.refused);  // or the system forbids it
    put_all(&t, 0);
    for (uint32_t way = 0; way < WAYS; way++) {
      close_it(&t);
      atomic_store(&blkio_test_cold, 2);
      open_to_read(&t, &o, env_posix(), dir);
      atomic_store(&blkio_test_lane, false);
      read_all(&t, way);
      const uint64_t first = nr_past(&t);
      // Without batches of the system the page cache brings many blocks at once (blkio.h, B4).
      CHECK((first > 0) == (way > 0 && (way == 4 || t.x->io.kind == BLKIO_URING)));
      read_all(&t, way);
      const uint64_t again = nr_past(&t) - first;
      CHECK_SAYS(again <= first / 2, "%u/%u: %llu blocks, then %llu", n, way, (unsigned long long)first,
                 (unsigned long long)again);
    }
    close_it(&t);
  }
}

// Reads past the page cache do not tell where those through it come from. When these find all there, the choice ends.
static void test_readers_learn(void **state) {
  (void)state;
  check_seed = check_seed_or(1);
  const struct remixdb_opts o = reader_opts(0);
  struct past t = {.rng = check_seed};
  atomic_store(&blkio_test_cold, 0);
  OK(xdb_open(dir, &o, env_posix(), &t.x));
  shrink(t.x, 512 << 10, 100);
  CHECK(t.ref = remixdb_ref(t.x));
  put_all(&t, 0);
  close_it(&t);
  open_to_read(&t, &o, env_posix(), dir);
  atomic_store(&blkio_test_lane, false);
  t.x->io.disk_ns = UINT64_MAX;  // no read takes so long
  atomic_store(&t.x->io.cold, 256);
  char keys[2][24];
  const struct remixdb_slice two[2] = {{keys[0], key_of(0, keys[0])}, {keys[1], key_of(KEYS / 2, keys[1])}};
  bool found[2];
  CHECK(remixdb_multi_get(t.ref, 2, two, NULL, found) == 2);
  if (t.x->io.kind == BLKIO_URING) {  // AIO has no lane for these reads (blkio.h, B4)
    CHECK(nr_past(&t) == 2 && atomic_load(&t.x->io.cold) == 256);
    for (uint32_t i = 0; i < 8; i++) read_all(&t, 1);
    CHECK(!blkio_cold(&t.x->io));
    const uint64_t before = nr_past(&t);
    read_all(&t, 1);
    CHECK(nr_past(&t) == before);
  }
  close_it(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_when),
      cmocka_unit_test(test_readers_decide),
      cmocka_unit_test(test_readers_begin),
      cmocka_unit_test(test_readers),
      cmocka_unit_test_setup_teardown(test_readers_batches, setup, teardown),
      cmocka_unit_test_setup_teardown(test_readers_learn, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
