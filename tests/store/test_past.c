// SPDX-License-Identifier: Apache-2.0
//
// Which rounds read and write past the page cache: those of a store that is larger than memory, while reads come from
// the disk. The disk is simulated. It counts what is written so, and refuses what is not in whole pages.
#include "tests/lib/check.h"

#include <stdio.h>

#include "tests/lib/simdisk.h"
#include "tests/lib/store.h"
#include "tests/lib/temp.h"
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_when),
      cmocka_unit_test(test_readers_decide),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
