// SPDX-License-Identifier: Apache-2.0
//
// Requests for values that lie apart, by iterators and many gets, while values come from the disk: each advice and each
// read of a value file is counted. tests/store/test_trips.c counts the waits.
#include "tests/lib/check.h"

#include <stdio.h>

#include "tests/lib/simdisk.h"
#include "tests/lib/store.h"
#include "blkio.h"
#include "xdb.h"

#define KEYS 1200u
#define BYTES 8000u  // bytes of a value; in its file it has less than a page more
#define LONG 32000u  // bytes of one that the putting thread writes
#define RECORD (BYTES + 100)
#define FILES 64u
#define PAGES 16384u  // pages of a value file
#define LENGTH 50u
#define FDS 512  // descriptors of the simulated disk are numbers in a row

static struct {
  struct simdisk *disk;
  struct env_ops ops;
  struct env env;
  uint64_t number[FDS];  // the number of the value file that a descriptor is open for; 0: something else
  uint32_t asks, reads;
  uint32_t alone;  // reads that nobody had asked for
  uint64_t asked;  // bytes
  uint32_t lead;   // the least number of values that were asked for and not read, when more were
  uint32_t bytes;  // bytes of a value
  uint8_t told[FILES][PAGES];
  struct xdb *x;
  struct xdb_ref *ref;
  uint64_t rng;
} w;

static int watch_open(struct env *e, int at, const char *path, unsigned flags) {
  const int fd = simdisk_env(w.disk)->ops->open(e, at, path, flags);
  const char *const name = env_name(path);
  if (fd >= 0) w.number[fd % FDS] = ends_with(name, ".val") ? strtoull(name, NULL, 10) : 0;
  return fd;
}

static ssize_t watch_pread(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  if (w.number[fd % FDS]) {
    const uint8_t *const told = w.told[w.number[fd % FDS] % FILES];
    CHECK(off + len <= (uint64_t)PAGES * BLOCK_PAGE);
    w.reads++;
    w.alone += !told[off / BLOCK_PAGE] || !told[(off + len - 1) / BLOCK_PAGE];
  }
  return simdisk_env(w.disk)->ops->pread(e, fd, buf, len, off);
}

static int watch_advise(struct env *e, int fd, uint64_t off, uint64_t len, enum env_advice advice) {
  if (w.number[fd % FDS] && advice == ENV_WILL_NEED) {
    const uint32_t lead = (uint32_t)(w.asked / value_cost(8, BYTES)) - (w.reads - w.alone);
    w.asks++;
    w.asked += len;
    if (w.reads > 4 * VALUE_AHEAD_NR && lead < w.lead) w.lead = lead;
    for (uint64_t p = off / BLOCK_PAGE; p <= (off + len - 1) / BLOCK_PAGE; p++)
      w.told[w.number[fd % FDS] % FILES][p] = 1;
  }
  return simdisk_env(w.disk)->ops->advise(e, fd, off, len, advice);
}

static void world_open(bool cold) {
  struct remixdb_opts o = small_opts(0);
  o.memtable_mb = 64;
  atomic_store(&blkio_test_cold, cold ? 2 : 1);
  OK(xdb_open("/store", &o, &w.env, &w.x));
  CHECK(w.ref = remixdb_ref(w.x));
}

static void world_close(void) {
  remixdb_unref(w.ref);
  remixdb_close(w.x);
  atomic_store(&blkio_test_cold, 0);
}

static void put(uint32_t i, uint32_t bytes) {
  static uint8_t value[LONG];
  char key[16];
  memset(value, (int)(i % 251), sizeof(value));
  CHECK(remixdb_put(w.ref, key, (uint32_t)snprintf(key, sizeof(key), "%08u", i), value, bytes));
}

// A store with the values in value files: key i is in the round i % rounds, and a round writes in the order of keys.
// young: a second round has every tenth key, in a young view.
static void world_make_of(uint32_t rounds, uint32_t bytes, bool young) {
  memset(&w, 0, sizeof(w));
  w.rng = check_seed;
  w.bytes = bytes;
  w.disk = simdisk_create();
  const struct env *const e = simdisk_env(w.disk);
  w.ops = *e->ops;
  w.ops.advise = watch_advise;
  w.ops.pread = watch_pread;
  w.ops.open = watch_open;
  w.env = (struct env){.ops = &w.ops, .priv = e->priv, .clock = e->clock};
  world_open(false);
  w.x->compact.young_from = young ? 2 : 0;
  for (uint32_t round = 0; round < rounds; round++) {
    for (uint32_t i = 0; i < KEYS; i++)
      if ((young ? i % 10 == 9 : i % rounds) == round) put(i, bytes);
    CHECK(remixdb_flush(w.ref));
  }
  CHECK((xdb_super(w.x)->version->nr_young > 0) == young);
  world_close();
  world_open(true);
}

static void world_make(uint32_t rounds) { world_make_of(rounds, BYTES, false); }

static void world_free(void) {
  world_close();
  simdisk_destroy(w.disk);
}

static void expect_record(struct xdb_iter *it, uint32_t i, uint32_t bytes) {
  char key[16];
  uint32_t klen, vlen;
  (void)snprintf(key, sizeof(key), "%08u", i);
  const char *const k = remixdb_iter_key(it, &klen);
  CHECK(k && klen == 8 && memcmp(k, key, 8) == 0);
  const uint8_t *const v = remixdb_iter_value(it, &vlen);
  CHECK(v && vlen == bytes && v[0] == i % 251 && v[vlen - 1] == i % 251);
}

static void expect_at(struct xdb_iter *it, uint32_t i) { expect_record(it, i, w.bytes); }

static void begin(void) {
  w.asks = w.reads = w.alone = 0;
  w.asked = 0;
  w.lead = UINT32_MAX;
  memset(w.told, 0, sizeof(w.told));
}

// The iterator reads the record `at` and those behind it, `length` more.
static void scan_with(struct xdb_iter *it, uint32_t at, uint32_t length, bool back) {
  char key[16];
  const uint32_t len = (uint32_t)snprintf(key, sizeof(key), "%08u", at);
  begin();
  if (back) remixdb_iter_seek_for_prev(it, key, len);
  else remixdb_iter_seek(it, key, len);
  expect_at(it, at);
  for (uint32_t n = 1; n <= length; n++) {
    if (back) remixdb_iter_prev(it);
    else remixdb_iter_skip1(it);
    expect_at(it, back ? at - n : at + n);
  }
}

// The same with a new iterator.
static void scan(uint32_t at, uint32_t length, bool back, uint32_t expect) {
  struct remixdb_iter_opts o;
  remixdb_iter_opts_init(&o, sizeof(o));
  o.expect = expect;
  struct xdb_iter *const it = remixdb_iter_create_opts(w.ref, &o);
  CHECK(it);
  scan_with(it, at, length, back);
  remixdb_iter_destroy(it);
}

static uint32_t any(void) { return LENGTH + (uint32_t)(rng_next(&w.rng) % (KEYS - 2 * LENGTH - 1)); }

// The calls that bring this many values, if they are neighbours: the system is asked for ENV_WILL_NEED_MAX at a time.
static uint32_t calls(uint32_t nr) { return 1 + (uint32_t)(nr * RECORD / ENV_WILL_NEED_MAX); }

// A value that tells whether values still come from the disk is not asked for, and splits a stretch.
#define PROBE 2u

// Neighbours in a file are asked for together, in both directions, and where the records of several stretches take
// turns. Nothing is asked for but what the scan comes to.
static void test_neighbours(void **state) {
  (void)state;
  for (uint32_t rounds = 1; rounds <= 3; rounds++) {
    world_make(rounds);
    scan(any(), LENGTH, false, 0);  // the ref learns
    for (uint32_t i = 0; i < 40; i++) {
      const bool back = i % 2, told = i % 4 > 1;
      scan(any(), LENGTH, back, told ? LENGTH : 0);
      CHECK(w.reads == LENGTH + 1 && w.alone <= 1 + PROBE + rounds);
      CHECK(w.asks >= 1 && w.asks <= rounds * (calls(LENGTH / rounds + 1) + PROBE));
      CHECK(w.asked >= (uint64_t)(LENGTH - PROBE - 2 * rounds) * BYTES &&
            w.asked <= (uint64_t)(LENGTH + 1) * (RECORD + BLOCK_PAGE));
    }
    world_free();
  }
}

// Garbage between neighbours does not part them: every twelfth value was written again. There is too little of it for a
// collection.
static void test_gaps(void **state) {
  (void)state;
  uint32_t asks = 0;
  world_make(1);
  for (uint32_t i = 0; i < KEYS; i += 12) put(i, BYTES);
  CHECK(remixdb_compact(w.ref));
  scan(any(), LENGTH, false, 0);
  for (uint32_t i = 0; i < 20; i++) {
    scan(any(), LENGTH, i % 2, 0);
    CHECK(w.reads == LENGTH + 1 && w.alone <= 1 + PROBE);
    asks += w.asks;
  }
  CHECK(asks <= 20 * (calls(LENGTH) + 1) + 5 * PROBE);
  world_free();
}

// A long scan has the next half of what may be on its way asked for when it has used the first one.
static void test_long(void **state) {
  (void)state;
  world_make(1);
  for (uint32_t back = 0; back < 2; back++) {
    scan(back ? KEYS - 1 : 0, KEYS - 1, back, 0);
    const uint32_t halves = KEYS / (VALUE_AHEAD_NR / 2);
    CHECK(w.reads == KEYS);
    CHECK(w.asks <= (halves + 8) * (calls(VALUE_AHEAD_NR / 2) + 1));  // it begins with a few records
    CHECK(w.asked <= (uint64_t)KEYS * (RECORD + BLOCK_PAGE));
    CHECK(w.lead >= VALUE_AHEAD_NR / 4);
  }
  world_free();
}

// A ref learns how far scans go also where all blocks of tables are in the cache.
static void test_learns(void **state) {
  (void)state;
  world_make(1);
  scan(0, KEYS - 1, false, 0);  // now they are
  remixdb_unref(w.ref);
  CHECK(w.ref = remixdb_ref(w.x));
  scan(any(), LENGTH, false, 0);
  for (uint32_t i = 0; i < 10; i++) {
    scan(any(), LENGTH, i % 2, 0);
    CHECK(w.alone <= 1 + PROBE && w.asks <= calls(LENGTH) + PROBE);
  }
  world_free();
}

// A scan that stops early has asked for what it expected at most, and for no more than may be on its way at once.
static void test_stops(void **state) {
  (void)state;
  world_make(1);
  scan(any(), 1, false, 0);  // values come from the disk
  for (uint32_t expect = 10; expect <= 1000; expect *= 10) {
    scan(LENGTH, 0, false, expect);
    const uint32_t most = expect < VALUE_AHEAD_NR ? expect : VALUE_AHEAD_NR;
    // the records lie in two blocks, and the seek has read one
    CHECK(w.reads == 1 && w.asked >= (uint64_t)(most < 40 ? most : 40) * BYTES && w.asked <= (uint64_t)most * RECORD);
  }
  scan(LENGTH, 0, false, 0);  // nothing tells that it goes on
  CHECK(w.reads == 1 && w.asks == 0);
  world_free();
  world_make_of(1, LONG, false);
  scan(any(), 1, false, 0);
  scan(LENGTH, 0, false, LENGTH);
  CHECK(w.reads == 1 && w.asked <= VALUES_AHEAD_BYTES && w.asked + 2 * LONG > VALUES_AHEAD_BYTES);
  world_free();
}

// The values that the nearest steps come to are asked for first, also where most of the records are in the older view.
static void test_young(void **state) {
  (void)state;
  world_make_of(2, BYTES, true);
  scan(any(), 1, false, 0);
  for (uint32_t back = 0; back < 2; back++) {
    uint32_t alone = 0;
    for (uint32_t i = 0; i < 10; i++) {
      scan(100 * (i + 1), VALUE_AHEAD_NR / 2 - 2, back, KEYS);
      alone += w.alone;
    }
    CHECK(alone <= 10 + 2 * PROBE);  // the first value of each scan, and one of 256
  }
  world_free();
}

// The values of an earlier scan may have left the page cache, so a seek to the same place asks for them again.
static void test_again(void **state) {
  (void)state;
  world_make(1);
  scan(any(), 1, false, 0);
  struct remixdb_iter_opts o;
  remixdb_iter_opts_init(&o, sizeof(o));
  o.expect = LENGTH;
  struct xdb_iter *const it = remixdb_iter_create_opts(w.ref, &o);
  CHECK(it);
  for (uint32_t i = 0; i < 4; i++) {
    scan_with(it, LENGTH, LENGTH / 5, false);
    CHECK(w.alone <= 1 + PROBE);
  }
  remixdb_iter_destroy(it);
  world_free();
}

// Records of the memtable stand between those of the tables, or hide them.
static void test_memtable(void **state) {
  (void)state;
  world_make(1);
  for (uint32_t i = 0; i < KEYS; i += 3) put(i, BYTES);
  scan(any(), LENGTH, false, 0);
  for (uint32_t i = 0; i < 20; i++) {
    scan(any(), LENGTH, i % 2, 0);
    CHECK(w.reads <= LENGTH - LENGTH / 3 + 2);
    CHECK(w.asks <= 2 * calls(LENGTH) + PROBE + 2);
  }
  // the values of these lie apart, too, in a file of the memtable's
  for (uint32_t i = 0; i < KEYS; i += 3) put(i, 3 * BYTES);
  struct xdb_iter *const it = remixdb_iter_create(w.ref);
  CHECK(it);
  begin();
  remixdb_iter_seek(it, NULL, 0);
  for (uint32_t i = 0; i < KEYS; i++) {
    expect_record(it, i, i % 3 ? BYTES : 3 * BYTES);
    remixdb_iter_skip1(it);
  }
  CHECK(w.reads == KEYS && w.asks <= KEYS / 4);
  remixdb_iter_destroy(it);
  world_free();
}

static void test_keys_only(void **state) {
  (void)state;
  struct remixdb_iter_opts o;
  world_make(1);
  scan(any(), LENGTH, false, 0);
  remixdb_iter_opts_init(&o, sizeof(o));
  o.keys_only = true;
  o.expect = LENGTH;
  struct xdb_iter *const it = remixdb_iter_create_opts(w.ref, &o);
  CHECK(it);
  begin();
  uint32_t n = 0, klen;
  for (remixdb_iter_seek(it, NULL, 0); remixdb_iter_valid(it); remixdb_iter_skip1(it), n++)
    CHECK(remixdb_iter_key(it, &klen));
  CHECK(n == KEYS && w.reads == 0 && w.asks == 0);
  remixdb_iter_destroy(it);
  world_free();
}

// Many gets of keys in a row, in any order.
static void test_many(void **state) {
  (void)state;
  static uint8_t values[LENGTH][BYTES];
  static char keys[LENGTH][16];
  struct remixdb_slice slices[LENGTH];
  struct remixdb_buf bufs[LENGTH];
  bool found[LENGTH];
  world_make(1);
  scan(any(), 1, false, 0);  // values come from the disk
  for (uint32_t round = 0; round < 20; round++) {
    const uint32_t from = any();
    for (uint32_t i = 0; i < LENGTH; i++) {
      const uint32_t k = round == 0 ? i : (uint32_t)(i * 7 + round) % LENGTH;
      const uint32_t len = (uint32_t)snprintf(keys[i], 16, "%08u", from + k);
      slices[i] = (struct remixdb_slice){keys[i], len};
      bufs[i] = (struct remixdb_buf){values[i], BYTES, 0};
    }
    begin();
    CHECK(remixdb_multi_get(w.ref, LENGTH, slices, bufs, found) == LENGTH);
    CHECK(w.reads == LENGTH && w.asks >= 1 && w.asks <= calls(LENGTH) + PROBE);
    CHECK(w.asked <= (uint64_t)LENGTH * RECORD);
    for (uint32_t i = 0; i < LENGTH; i++)
      CHECK(bufs[i].len == BYTES && values[i][BYTES - 1] == strtoul(keys[i], NULL, 10) % 251);
  }
  world_free();
}

int main(void) {
  check_seed = check_seed_or(1);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_neighbours), cmocka_unit_test(test_gaps),     cmocka_unit_test(test_long),
      cmocka_unit_test(test_stops),      cmocka_unit_test(test_learns),   cmocka_unit_test(test_young),
      cmocka_unit_test(test_again),      cmocka_unit_test(test_memtable), cmocka_unit_test(test_keys_only),
      cmocka_unit_test(test_many),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
