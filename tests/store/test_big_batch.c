// SPDX-License-Identifier: Apache-2.0
//
// Batches that are much larger than a memtable: whole or absent to readers and after a crash, and the store goes on.
#include "tests/lib/simdisk.h"
#include "tests/lib/store.h"
#include "log/format.h"

#define KEYS (24000u / SLOW)
#define VALUE 1000u  // bytes; a batch of all keys has about a hundred memtables' worth

static void fill_key(uint8_t key[8], uint32_t i) {
  for (uint32_t b = 0; b < 8; b++) key[b] = (uint8_t)((uint64_t)i * 0x9E3779B97F4A7C15u >> (56 - 8 * b));
}

static void fill_value(uint8_t *val, uint32_t i, uint32_t round) {
  for (uint32_t b = 0; b < VALUE; b++) val[b] = (uint8_t)(i * 31 + round * 7 + b);
}

static void fill(struct xdb_batch *b, uint32_t round) {
  uint8_t key[8], val[VALUE];
  remixdb_batch_clear(b);
  for (uint32_t i = 0; i < KEYS; i++) {
    fill_key(key, i);
    fill_value(val, i, round);
    if ((i + round) % 5 == 4) CHECK(remixdb_batch_del(b, key, sizeof(key)));
    else CHECK(remixdb_batch_put(b, key, sizeof(key), val, VALUE));
  }
}

// How many keys are as this round left them.
static uint32_t count(struct xdb_ref *ref, uint32_t round) {
  uint8_t key[8], val[VALUE], got[VALUE];
  uint32_t nr = 0, len;
  for (uint32_t i = 0; i < KEYS; i++) {
    fill_key(key, i);
    fill_value(val, i, round);
    const bool there = remixdb_getn(ref, key, sizeof(key), got, VALUE, &len);
    CHECK(there || remixdb_errcode() == REMIXDB_NOTFOUND);
    nr += there ? len == VALUE && memcmp(got, val, VALUE) == 0 : (i + round) % 5 == 4;
  }
  return nr;
}

static struct xdb *open_on(struct simdisk *d, int workers) {
  struct remixdb_opts o;
  struct xdb *x = NULL;
  remixdb_opts_init(&o, sizeof(o));
  o.memtable_mb = 1;
  o.cache_mb = 1;
  o.workers = workers;
  if (xdb_open("/store", &o, simdisk_env(d), &x) != REMIXDB_OK) fail_msg("%s", remixdb_errmsg());
  shrink(x, 256 << 10, 32);
  return x;
}

static void close_all(struct xdb *x, struct xdb_ref *ref) {
  remixdb_unref(ref);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

// Batch upon batch, with small writes in between; the rounds bring all of it into tables.
static void test_rounds(void **state) {
  (void)state;
  struct simdisk *const d = simdisk_create();
  struct xdb *x = open_on(d, 1);
  struct xdb_ref *ref = remixdb_ref(x);
  struct xdb_batch *const b = remixdb_batch_create();
  CHECK(d && ref && b);
  for (uint32_t round = 0; round < 3; round++) {
    fill(b, round);
    CHECK(remixdb_write(ref, b));
    CHECK(remixdb_put(ref, "small", 5, &round, sizeof(round)));
    CHECK(count(ref, round) == KEYS);
  }
  CHECK(remixdb_flush(ref));
  CHECK(count(ref, 2) == KEYS && xdb_super(x)->version->nr_parts > 1);
  close_all(x, ref);
  x = open_on(d, 1);
  CHECK((ref = remixdb_ref(x)) != NULL && count(ref, 2) == KEYS && remixdb_probe(ref, "small", 5));
  close_all(x, ref);
  remixdb_batch_destroy(b);
  simdisk_destroy(d);
}

// A power cut leaves the batch whole or absent.
static void test_cut(void **state) {
  (void)state;
  struct simdisk *const d = simdisk_create();
  struct xdb *const x = open_on(d, 0);  // no round runs when the disk is copied
  struct xdb_ref *const ref = remixdb_ref(x);
  struct xdb_batch *const b = remixdb_batch_create();
  fill(b, 0);
  CHECK(remixdb_write(ref, b) && remixdb_sync(ref));
  fill(b, 1);
  CHECK(remixdb_write(ref, b));
  uint32_t wholes = 0, nones = 0;
  for (uint64_t seed = 1; seed <= 12; seed++) {
    if (seed == 12) CHECK(remixdb_sync(ref));
    struct simdisk *const cut = simdisk_crash(d, seed);
    struct xdb *const y = open_on(cut, 1);
    struct xdb_ref *const r = remixdb_ref(y);
    const bool whole = count(r, 1) == KEYS;
    CHECK_SAYS(whole || count(r, 0) == KEYS, "seed %u: a part of the batch", (uint32_t)seed);
    CHECK(whole || seed < 12);
    wholes += whole;
    nones += !whole;
    close_all(y, r);
    simdisk_destroy(cut);
  }
  CHECK(wholes && nones);
  close_all(x, ref);
  remixdb_batch_destroy(b);
  simdisk_destroy(d);
}

// Without workers a round runs in the call that needs room. A batch that needs all of the next memtable gets it: the
// rounds that it waits for do not hand the same records back for ever.
static void test_handed_back(void **state) {
  (void)state;
  struct simdisk *const d = simdisk_create();
  struct remixdb_opts o = small_opts(0);
  struct xdb *x;
  o.wal_mb = 2;  // a 64th of it is less than what rounds may hand back
  OK(xdb_open("/store", &o, simdisk_env(d), &x));
  shrink(x, 1u << 20, 16);
  struct xdb_ref *const ref = remixdb_ref(x);
  struct xdb_batch *const b = remixdb_batch_create();
  char key[16];
  static const uint8_t val[VALUE];
  const uint32_t nr = 60000;
  for (uint32_t i = 0; i < nr; i++) CHECK(remixdb_put(ref, key, (uint32_t)sprintf(key, "k%06u", i), val, 100));
  for (uint32_t turn = 0; turn < 12; turn++) {
    for (uint32_t i = turn; i < nr; i += nr / 50)
      CHECK(remixdb_put(ref, key, (uint32_t)sprintf(key, "k%06u", i), val, VALUE));
    remixdb_batch_clear(b);
    for (uint32_t i = 0; i < 1100; i++)
      CHECK(remixdb_batch_put(b, key, (uint32_t)sprintf(key, "m%06u", i), val, VALUE));
    if (turn % 2) CHECK(remixdb_batch_del_range(b, &(struct remixdb_range){{"x", 1}, {"y", 1}}));
    CHECK(remixdb_write(ref, b));
  }
  CHECK(atomic_load(&x->compact.stats.handed_back) > (2u << 20) / 64);
  remixdb_batch_destroy(b);
  close_all(x, ref);
  simdisk_destroy(d);
}

// The largest batch, and one that is larger. Too much memory for sanitizers.
static void test_limit(void **state) {
  (void)state;
  if (SLOW > 1) skip();
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.memtable_mb = 4;
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const ref = remixdb_ref(x);
  struct xdb_batch *const b = remixdb_batch_create();
  static uint8_t val[16000];                     // not put apart
  const uint32_t nr = (1u << 30) / sizeof(val);  // 1 GiB of values
  for (uint32_t i = 0; i <= nr; i++) CHECK(remixdb_batch_put(b, &i, sizeof(i), val, sizeof(val)));
  CHECK(remixdb_write(ref, b));
  uint32_t len = 0;
  for (uint32_t i = 0; i <= nr; i += 997) CHECK(remixdb_get(ref, &i, sizeof(i), NULL, &len) && len == sizeof(val));
  uint32_t more = nr + 1;
  while (remixdb_batch_put(b, &more, sizeof(more), val, sizeof(val))) more++;
  CHECK(remixdb_errcode() == REMIXDB_TOOBIG && remixdb_batch_count(b) == more);
  CHECK((uint64_t)more * sizeof(val) > WAL_FRAME_MAX / 100 * 99);
  // Each key of a space is 4 bytes longer in the log, so there the frame sets the limit.
  struct xdb_space *const space = remixdb_space_open(x, "space", true);
  struct xdb_ref *const of_space = remixdb_space_ref(space);
  const uint64_t seq = stat_of(x, "sequence");
  CHECK(of_space && !remixdb_write(of_space, b) && remixdb_errcode() == REMIXDB_TOOBIG && remixdb_errmsg()[0]);
  more = 0;
  CHECK(stat_of(x, "sequence") == seq && !remixdb_probe(of_space, &more, sizeof(more)));
  remixdb_unref(of_space);
  remixdb_space_close(space);
  CHECK(remixdb_put(ref, "after", 5, "v", 1));
  remixdb_batch_destroy(b);
  close_all(x, ref);
}

int main(void) {
  hang_alarm();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rounds),
      cmocka_unit_test(test_cut),
      cmocka_unit_test(test_handed_back),
      cmocka_unit_test_setup_teardown(test_limit, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
