// SPDX-License-Identifier: Apache-2.0
//
// How often calls of the store wait for a slow disk, one wait after the other, when nothing is cached. The disk is
// simulated, and its clock counts the waits. tests/unit/test_gather.c counts bytes, and knows every shape of a
// partition.
#include "tests/lib/check.h"

#include <stdio.h>

#include "tests/lib/simdisk.h"
#include "tests/lib/starve.h"
#include "tests/lib/store.h"
#include "tests/lib/temp.h"
#include "blkio.h"
#include "xdb.h"

#define KEYS 12000u
#define LENGTH 50u
#define TRIES 60u
#define MANY 64u
#define VALUE_MOST 12000u
#define LONG_KEYS 1500u
#define LONG_BYTES 8000u  // bytes of values that lie apart

struct trips {
  struct simdisk *disk;
  struct xdb *x;
  struct xdb_ref *ref;
  uint64_t rng;
  uint32_t keys;
  uint64_t from;  // the clock when the operation began
};

// Key number i of the store, with a suffix that no key has.
static uint32_t key_of(uint32_t i, char buf[24], bool absent) {
  return (uint32_t)snprintf(buf, 24, "%08u%s", i * 7u, absent ? "x" : "");
}

static void open_slow(struct trips *t, uint32_t cache_mb) {
  struct remixdb_opts o = small_opts(0);
  o.cache_mb = cache_mb;
  o.memtable_mb = 64;
  atomic_store(&blkio_test_cold, 2);
  OK(xdb_open("/store", &o, simdisk_env(t->disk), &t->x));
  CHECK(t->ref = remixdb_ref(t->x));
}

static void close_slow(struct trips *t) {
  remixdb_unref(t->ref);
  remixdb_close(t->x);
  atomic_store(&blkio_test_cold, 0);
}

// A store of overlapping runs: it was filled in random order, in many small memtables.
// Its values have half as many bytes to half as many more than `bytes`.
static void trips_make_of(struct trips *t, bool young, uint32_t keys, uint32_t bytes) {
  static uint8_t value[VALUE_MOST];
  static uint32_t order[KEYS];
  check_seed = check_seed_or(1);
  *t = (struct trips){.rng = check_seed, .keys = keys, .disk = simdisk_create()};
  struct remixdb_opts o = small_opts(0);
  o.memtable_mb = 64;
  OK(xdb_open("/store", &o, simdisk_env(t->disk), &t->x));
  shrink(t->x, 512 << 10, 700);
  t->x->compact.young_from = young ? 2 : UINT32_MAX;
  CHECK(t->ref = remixdb_ref(t->x));
  for (uint32_t i = 0; i < keys; i++) order[i] = i;
  for (uint32_t i = keys; i > 1; i--) {
    const uint32_t j = (uint32_t)(rng_next(&t->rng) % i), k = order[i - 1];
    order[i - 1] = order[j];
    order[j] = k;
  }
  for (uint32_t i = 0; i < keys; i++) {
    char key[24];
    const uint32_t len = key_of(order[i], key, false);
    CHECK(remixdb_put(t->ref, key, len, value, bytes / 2 + (uint32_t)(rng_next(&t->rng) % bytes)));
  }
  CHECK(remixdb_flush(t->ref));
  close_slow(t);
}

static void trips_make(struct trips *t, bool young) { trips_make_of(t, young, KEYS, 400); }

static void trips_free(struct trips *t) {
  close_slow(t);
  simdisk_destroy(t->disk);
}

static uint32_t any(struct trips *t) { return 100 + (uint32_t)(rng_next(&t->rng) % (t->keys - 200)); }

// Empties the page cache and begins to count.
static void begin(struct trips *t) { simdisk_slow(t->disk, true); }
static uint64_t waits(const struct trips *t) { return simdisk_waits(t->disk); }

static uint64_t gets(struct trips *t, bool absent) {
  static uint8_t value[VALUE_MOST];
  uint64_t sum = 0;
  for (uint32_t i = 0; i < TRIES; i++) {
    char key[24];
    uint32_t vlen;
    const uint32_t len = key_of(any(t), key, absent);
    begin(t);
    CHECK(remixdb_get(t->ref, key, len, value, &vlen) == !absent);
    sum += waits(t);
  }
  return sum;
}

static void check_at(struct xdb_iter *it, uint32_t i) {
  char key[24];
  uint32_t klen, vlen;
  const uint32_t len = key_of(i, key, false);
  const void *const k = remixdb_iter_key(it, &klen);
  CHECK(k && klen == len && memcmp(k, key, len) == 0 && remixdb_iter_value(it, &vlen));
}

static uint64_t seeks(struct trips *t, bool absent) {
  struct xdb_iter *const it = remixdb_iter_create(t->ref);
  uint64_t sum = 0;
  for (uint32_t i = 0; i < TRIES; i++) {
    char key[24];
    const uint32_t at = any(t), len = key_of(at, key, absent);
    begin(t);
    remixdb_iter_seek(it, key, len);
    check_at(it, at + absent);
    sum += waits(t);
  }
  remixdb_iter_destroy(it);
  return sum;
}

// A new iterator for each scan, as many programs have it.
static uint64_t scans(struct trips *t, bool back, uint32_t expect) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i <= TRIES; i++) {
    char key[24];
    const uint32_t len = key_of(any(t), key, false);
    uint32_t at = (uint32_t)strtoul(key, NULL, 10) / 7;
    struct remixdb_iter_opts o;
    remixdb_iter_opts_init(&o, sizeof(o));
    o.expect = expect;
    struct xdb_iter *const it = remixdb_iter_create_opts(t->ref, &o);
    CHECK(it);
    begin(t);
    if (back) remixdb_iter_seek_for_prev(it, key, len);
    else remixdb_iter_seek(it, key, len);
    check_at(it, at);
    for (uint32_t n = 0; n < LENGTH; n++) {
      if (back) remixdb_iter_prev(it);
      else remixdb_iter_skip1(it);
      check_at(it, back ? --at : ++at);
    }
    if (i > 0) sum += waits(t);  // the ref learns from the first one
    remixdb_iter_destroy(it);
  }
  return sum;
}

// Two iterators of one ref step by turns, in different places.
static uint64_t scans_beside(struct trips *t, uint32_t expect) {
  uint64_t sum = 0;
  struct remixdb_iter_opts o;
  remixdb_iter_opts_init(&o, sizeof(o));
  o.expect = expect;
  for (uint32_t i = 0; i <= TRIES; i++) {
    struct xdb_iter *its[2];
    uint32_t at[2];
    for (uint32_t k = 0; k < 2; k++) CHECK((its[k] = remixdb_iter_create_opts(t->ref, &o)) != NULL);
    begin(t);
    for (uint32_t k = 0; k < 2; k++) {
      char key[24];
      at[k] = any(t);
      remixdb_iter_seek(its[k], key, key_of(at[k], key, false));
      check_at(its[k], at[k]);
    }
    for (uint32_t n = 0; n < 2 * LENGTH; n++) {
      remixdb_iter_skip1(its[n % 2]);
      check_at(its[n % 2], ++at[n % 2]);
    }
    if (i > 0) sum += waits(t);
    for (uint32_t k = 0; k < 2; k++) remixdb_iter_destroy(its[k]);
  }
  return sum;
}

static uint64_t many(struct trips *t) {
  static char keys[MANY][24];
  static uint8_t values[MANY][VALUE_MOST];
  uint64_t sum = 0;
  for (uint32_t i = 0; i < TRIES; i++) {
    struct remixdb_slice slices[MANY];
    struct remixdb_buf bufs[MANY];
    bool found[MANY];
    for (uint32_t k = 0; k < MANY; k++) {
      slices[k] = (struct remixdb_slice){keys[k], key_of(any(t), keys[k], false)};
      bufs[k] = (struct remixdb_buf){values[k], sizeof(values[k]), 0};
    }
    begin(t);
    CHECK(remixdb_multi_get(t->ref, MANY, slices, bufs, found) == MANY);
    sum += waits(t);
  }
  return sum;
}

static void told(const char *what, uint64_t sum) {
  if (getenv("VERBOSE")) print_message("  %-20s %.2f waits\n", what, (double)sum / TRIES);
}

// At most so many hundredths of a wait for each of TRIES operations.
#define AT_MOST(call, hundredths)                      \
  do {                                                 \
    const uint64_t sum_ = (call);                      \
    told(#call, sum_);                                 \
    CHECK(sum_ * 100 <= (uint64_t)(hundredths)*TRIES); \
  } while (0)

// Scans at a snapshot, while the store goes on.
static void waits_then(struct trips *t) {
  struct xdb_ref *const now = t->ref;
  struct xdb_snapshot *const snap = remixdb_snapshot(now);
  CHECK(snap && (t->ref = remixdb_snapshot_ref(snap)) != NULL);
  for (uint32_t i = 0; i < KEYS; i += 50) {  // writes that the snapshot must not see
    char key[24];
    uint32_t len = key_of(i, key, true);
    CHECK(remixdb_put(now, key, len, "", 0));
    len = key_of(i + 1, key, false);
    CHECK(remixdb_del(now, key, len));
  }
  for (uint32_t back = 0; back < 2; back++) {
    AT_MOST(scans(t, back, 0), 225);
    AT_MOST(scans(t, back, LENGTH), 125);
  }
  remixdb_unref(t->ref);
  remixdb_snapshot_release(snap);
  t->ref = now;
}

static void test_waits(void **state) {
  (void)state;
  for (uint32_t young = 0; young < 2; young++) {
    struct trips t;
    trips_make(&t, young);
    for (uint32_t cache = 0; cache < 2; cache++) {
      open_slow(&t, cache);
      if (getenv("VERBOSE")) print_message("young %u cache %u MiB\n", young, cache);
      AT_MOST(gets(&t, false), 105);
      AT_MOST(gets(&t, true), young ? 15 : 10);
      AT_MOST(seeks(&t, false), 105);
      AT_MOST(seeks(&t, true), 130);
      AT_MOST(scans(&t, false, 0), 225);
      AT_MOST(scans(&t, true, 0), 225);
      AT_MOST(scans(&t, false, LENGTH), 125);
      AT_MOST(scans(&t, true, LENGTH), 125);
      AT_MOST(scans_beside(&t, 0), 2 * 225);
      AT_MOST(scans_beside(&t, LENGTH), 2 * 125);
      AT_MOST(many(&t), young ? 150 : 105);
      close_slow(&t);
    }
    open_slow(&t, 1);
    waits_then(&t);
    trips_free(&t);
  }
}

// Indexes that are paged, and next to nothing of them is in memory: a get waits for a page of the index and for a
// block, and many gets read what they need of both together, as far as the pages have room.
static void test_waits_paged(void **state) {
  (void)state;
  struct trips t;
  starve(true);
  trips_make(&t, false);
  open_slow(&t, 1);
  AT_MOST(gets(&t, false), 205);
  AT_MOST(seeks(&t, false), 205);
  AT_MOST(many(&t), 700);
  trips_free(&t);
  starve(false);
}

// Values that lie apart: a scan and a multi-get ask for many at once, after a first one.
static void test_waits_apart(void **state) {
  (void)state;
  for (uint32_t young = 0; young < 2; young++) {
    struct trips t;
    trips_make_of(&t, young, LONG_KEYS, LONG_BYTES);
    open_slow(&t, 1);
    if (getenv("VERBOSE")) print_message("values apart, young %u\n", young);
    AT_MOST(gets(&t, false), 150);
    for (uint32_t back = 0; back < 2; back++) {
      AT_MOST(scans(&t, back, 0), young ? 325 : 250);
      AT_MOST(scans(&t, back, LENGTH), 125);
    }
    AT_MOST(many(&t), 125);
    trips_free(&t);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_waits),
      cmocka_unit_test(test_waits_paged),
      cmocka_unit_test(test_waits_apart),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
