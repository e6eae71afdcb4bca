// SPDX-License-Identifier: Apache-2.0
//
// Calls that get no memory or no file descriptors: each works, or says NOMEM and has changed nothing.
#include "tests/lib/check.h"

#include <sys/resource.h>

#include "tests/lib/expect.h"
#include "tests/lib/fault.h"
#include "tests/lib/sample.h"

// The store at arg, with as many descriptors as it takes: until then every open says what it could not open and leaves
// the store readable.
static int descriptors_child(void *arg) {
  struct remixdb_opts o = small_opts(0);
  struct rlimit old;
  CHILD_CHECK(getrlimit(RLIMIT_NOFILE, &old) == 0);
  // the lowest descriptor that is free, and none after it
  const int low = open("/dev/null", O_RDONLY);
  CHILD_CHECK(low >= 0);
  (void)close(low);
  uint32_t refused = 0;
  struct xdb *x = NULL;
  const struct listing before = list_dir(arg);
  for (rlim_t n = (rlim_t)low; n < 64 && !x; n++) {
    const struct rlimit few = {n, old.rlim_max};
    CHILD_CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    x = remixdb_open_opts(arg, &o);
    CHILD_CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0);
    if (x) continue;
    refused++;
    CHILD_CHECK(remixdb_errcode() == REMIXDB_NOMEM && strstr(remixdb_errmsg(), arg) &&
                strstr(remixdb_errmsg(), strerror(EMFILE)));
    const struct listing after = list_dir(arg);
    CHILD_CHECK(after.nr == before.nr && memcmp(&before, &after, sizeof(before)) == 0);
  }
  CHILD_CHECK(x && refused >= 2);
  struct xdb_ref *const r = remixdb_ref(x);
  CHILD_CHECK(r);
  // none at all from here on: what is open is enough to read and to write on, or it is said
  const struct rlimit few = {(rlim_t)low, old.rlim_max};
  CHILD_CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
  char key[24];
  uint8_t want[512], got[512];
  for (uint32_t i = 0; i < SAMPLE_KEYS; i++) {
    uint32_t len = 0;
    const uint32_t klen = sample_key(key, i), vlen = sample_value(want, i);
    if (!remixdb_getn(r, key, klen, got, sizeof(got), &len))
      CHILD_CHECK(remixdb_errcode() == REMIXDB_NOMEM && strstr(remixdb_errmsg(), strerror(EMFILE)));
    else CHILD_CHECK(len == vlen && memcmp(got, want, len) == 0);
  }
  CHILD_CHECK(remixdb_put(r, "zz", 2, "", 0));
  CHILD_CHECK(remixdb_sync(r));
  CHILD_CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0);
  for (uint32_t i = 0; i < SAMPLE_KEYS; i++) CHILD_CHECK(remixdb_probe(r, key, sample_key(key, i)));
  CHILD_CHECK(remixdb_del(r, "zz", 2));
  sample_close(x, r);
  CHILD_CHECK(remixdb_errcode() == REMIXDB_OK);
  return 0;
}

static void test_descriptors(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  copy_dir(sample, dir_of(dir, "descriptors"));
  CHECK(in_child(descriptors_child, dir) == 0);
  sample_check(dir);
  remove_tree(dir);
}

// ---- memory

static struct xdb *open_without_memory(const char *dir, int64_t nth, bool lasting, bool *refused_out) {
  const struct remixdb_opts o = small_opts(0);
  if (lasting) fault_mem_set_lasting(nth);
  else fault_mem_set(nth);
  struct xdb *const x = remixdb_open_opts(dir, &o);
  *refused_out = fault_mem_end();
  return x;
}

static void test_no_memory_open(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  for (int lasts = 0; lasts < 2; lasts++) {
    copy_dir(sample, dir_of(dir, "nomem"));
    const struct listing before = list_dir(dir);
    int64_t n = 1;
    for (;; n += 1 + n / 12) {
      bool refused;
      struct xdb *const x = open_without_memory(dir, n, lasts, &refused);
      if (x) {
        remixdb_close(x);
        if (!refused) break;
        remove_tree(dir);  // it did without
        copy_dir(sample, dir);
        continue;
      }
      FAILED(REMIXDB_NOMEM, "memory");
      SAME(before, dir, "opening without memory");
    }
    CHECK(n > 20);
    sample_check(dir);
    remove_tree(dir);
    // a new store
    uint32_t tries = 0;
    for (n = 1;; n += 1 + n / 12) {
      bool refused;
      struct xdb *const x = open_without_memory(dir, n, lasts, &refused);
      if (x) remixdb_close(x);
      if (x && !refused) break;
      if (!x) FAILED(REMIXDB_NOMEM, "memory");
      if (tries++ % 2) remove_tree(dir);  // else the next try meets the files of this one
    }
    remove_tree(dir);
  }
}

// Puts a sample record, with an allocation that may fail. there[i] tells whether it was put.
static void put_without_memory(struct xdb_ref *r, uint8_t *there, uint32_t i, uint64_t *rng) {
  char key[24];
  uint8_t val[512];
  const uint32_t klen = sample_key(key, i), vlen = sample_value(val, i);
  fault_mem_set(1 + (int64_t)(rng_next(rng) % 20));
  there[i] = remixdb_put(r, key, klen, val, vlen);
  (void)fault_mem_end();
  if (there[i]) return;
  FAILED(REMIXDB_NOMEM, "memory");
  CHECK(!remixdb_probe(r, key, klen));
}

static void refs_and_figures_without_memory(struct xdb *x) {
  fault_mem_set(1);
  struct xdb_ref *const r = remixdb_ref(x);
  (void)fault_mem_end();
  CHECK(!r);
  FAILED(REMIXDB_NOMEM, "memory");
  fault_mem_set(1);
  char *const json = remixdb_stats(x);
  (void)fault_mem_end();
  CHECK(!json);
  FAILED(REMIXDB_NOMEM, "memory");
}

// An iterator of which the nth allocation fails. Returns whether there were so many.
static bool iterate_without_memory(struct xdb_ref *r, int64_t nth) {
  uint8_t val[512];
  fault_mem_set(nth);
  struct xdb_iter *const it = remixdb_iter_create(r);
  if (it) remixdb_iter_seek(it, NULL, 0);
  if (it && remixdb_errcode() == REMIXDB_OK) remixdb_iter_skip(it, 300);
  if (it && remixdb_errcode() == REMIXDB_OK) (void)remixdb_iter_peek(it, NULL, NULL, val, NULL);
  const enum remixdb_status s = remixdb_errcode();
  const bool hit = fault_mem_end();
  if (s != REMIXDB_OK && s != REMIXDB_NOTFOUND) {
    FAILED(REMIXDB_NOMEM, "memory");
    CHECK(!it || remixdb_iter_status(it) == REMIXDB_NOMEM || remixdb_iter_valid(it));
  }
  if (it) {  // the next seek makes it as good as new
    remixdb_iter_seek(it, NULL, 0);
    CHECK(remixdb_errcode() == REMIXDB_OK && remixdb_iter_status(it) == REMIXDB_OK);
  }
  remixdb_iter_destroy(it);
  return hit;
}

// Gets all sample records, every seventh without memory at first. Finds those that are there.
static void get_without_memory(struct xdb_ref *r, const uint8_t *there) {
  char key[24];
  uint8_t val[512], got[512];
  for (uint32_t i = 0; i < SAMPLE_KEYS; i++) {
    const uint32_t klen = sample_key(key, i), vlen = sample_value(val, i);
    uint32_t len = 0;
    if (i % 7 == 0) fault_mem_set(1);
    bool found = remixdb_getn(r, key, klen, got, sizeof(got), &len);
    if (i % 7 == 0 && fault_mem_end() && !found && remixdb_errcode() == REMIXDB_NOMEM)
      found = remixdb_getn(r, key, klen, got, sizeof(got), &len);
    CHECK(found ? there[i] && len == vlen && memcmp(got, val, len) == 0
                : !there[i] && remixdb_errcode() == REMIXDB_NOTFOUND);
  }
}

static void test_no_memory_use(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  dir_of(dir, "nomem-use");
  struct remixdb_opts o = small_opts(0);
  o.cache_mb = 0;
  struct xdb *x;
  struct xdb_ref *r = sample_open(dir, &o, &x);
  uint8_t *const there = calloc(SAMPLE_KEYS, 1);
  CHECK(there);
  uint64_t rng = 7;
  uint32_t refused = 0;
  for (uint32_t i = 0; i < SAMPLE_KEYS; i++) {
    put_without_memory(r, there, i, &rng);
    refused += !there[i];
    if (i % 500) continue;
    refs_and_figures_without_memory(x);
    for (int64_t n = 1; iterate_without_memory(r, n);) n++;
  }
  CHECK(refused > 0 && refused < SAMPLE_KEYS / 2);
  get_without_memory(r, there);
  sample_close(x, r);
  r = sample_open(dir, &o, &x);
  get_without_memory(r, there);
  sample_close(x, r);
  free(there);
  remove_tree(dir);
}

#define COLD_RUNS 4u
#define COLD_KEYS 400u
#define COLD_FROM 100u
#define COLD_STEPS 60u

// A store of which all is in tables: several runs, and maybe more of them in a young view.
static void cold_make(const char *dir, const struct remixdb_opts *o, bool young) {
  struct xdb *x;
  struct xdb_ref *const r = sample_open(dir, o, &x);
  x->compact.memtable_size = 0;  // nothing is handed back: each flush makes a run
  x->compact.young_from = young ? 2 : 0;
  for (uint32_t run = 0; run < COLD_RUNS; run++) {
    for (uint32_t i = run; i < COLD_KEYS; i += COLD_RUNS) sample_put(r, i);
    GOOD(remixdb_flush(r));
  }
  for (uint32_t run = 0; run < 2 * young; run++) {
    for (uint32_t i = run; i < COLD_KEYS; i += 16) sample_put(r, i);
    GOOD(remixdb_flush(r));
  }
  char *const json = remixdb_stats(x);
  CHECK(json && strstr(json, young ? "\"young_views\":1," : "\"young_views\":0,"));
  remixdb_free(json);
  sample_close(x, r);
}

// The record is right, or memory was refused. False: that happened.
static bool cold_record(struct xdb_iter *it, uint32_t i) {
  char key[24], got[24];
  uint8_t want[512], val[512];
  uint32_t klen, vlen;
  if (!remixdb_iter_valid(it) || !remixdb_iter_peek(it, got, &klen, val, &vlen)) {
    CHECK(remixdb_iter_status(it) == REMIXDB_NOMEM || remixdb_errcode() == REMIXDB_NOMEM);
    return false;
  }
  CHECK(klen == sample_key(key, i) && memcmp(got, key, klen) == 0);
  CHECK(vlen == sample_value(want, i) && memcmp(val, want, vlen) == 0);
  return true;
}

// Scans on and back. A call that gets no memory works when it is made again. Returns how many did not.
static uint32_t cold_scan(struct xdb_ref *r, uint64_t dice) {
  struct xdb_iter *it = expect_iter(r, dice);
  uint32_t refused = 0;
  if (!it) {
    FAILED(REMIXDB_NOMEM, "memory");
    refused++;
    GOOD((it = expect_iter(r, dice)) != NULL);
  }
  char key[24];
  bool back = false, placed = false;
  for (uint32_t i = COLD_FROM; i >= COLD_FROM;) {
    if (!placed || !remixdb_iter_valid(it)) remixdb_iter_seek(it, key, sample_key(key, i));
    placed = true;
    if (!cold_record(it, i)) {
      CHECK(++refused < 3);  // one allocation fails, and once
      continue;
    }
    back |= i == COLD_FROM + COLD_STEPS;
    if (back) remixdb_iter_prev(it);
    else remixdb_iter_skip1(it);
    i += back ? UINT32_MAX : 1;
  }
  remixdb_iter_destroy(it);
  return refused;
}

// Scans the store with each allocation failing in turn. Returns how many failures a call told of.
static uint32_t cold_scans(const char *dir, const struct remixdb_opts *o, uint64_t dice) {
  uint32_t refused = 0;
  int64_t n = 1;
  for (bool hit = true; hit; n++) {
    struct xdb *x;
    struct xdb_ref *const r = sample_open(dir, o, &x);
    const uint64_t trips = atomic_load(&x->io.nr_trips), reads = atomic_load(&x->io.nr_reads);
    if (dice & 1) expect_small_memory(x);
    fault_mem_set(n);
    refused += cold_scan(r, dice);
    hit = fault_mem_end();
    if (!hit) CHECK(atomic_load(&x->io.nr_reads) - reads > atomic_load(&x->io.nr_trips) - trips);
    sample_close(x, r);
  }
  CHECK(n > 8);
  return refused;
}

// Every allocation of a scan that gathers its blocks fails once.
static void test_no_memory_cold(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  for (uint32_t way = 0; way < 8; way++) {
    struct remixdb_opts o = small_opts(0);
    o.cache_mb = way & 1;
    o.compression = way & 2 ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
    cold_make(dir_of(dir, "nomem-cold"), &o, way & 4);
    o.read_only = true;
    expect_reads(2);
    for (uint64_t dice = 0; dice < 6; dice++) CHECK(cold_scans(dir, &o, dice) > 0);
    expect_reads(0);
    remove_tree(dir);
  }
}

// Writes the number to the key's beginning.
static char *own_key(char *key, uint32_t number) {
  char text[17];
  (void)snprintf(text, sizeof(text), "%015u.", number);
  memcpy(key, text, 16);
  return key;
}

// A seek takes the key that its own iterator stands on. The store has been compacted meanwhile, so the seek gives up
// the memory that the key lies in, and reads other blocks into it.
static void test_own_key(void **state) {
  (void)state;
  char dir[PATH_SIZE], key[400], val[100];
  memset(val, 'v', sizeof(val));
  for (uint32_t klen = 16; klen <= 300; klen += 284) {
    struct remixdb_opts o = small_opts(0);  // no worker lacks memory meanwhile
    o.cache_mb = 0;
    o.memtable_mb = 16;
    struct xdb *x;
    struct xdb_ref *const r = sample_open(dir_of(dir, "ownkey"), &o, &x);
    memset(key, 'k', sizeof(key));
    for (uint32_t i = 0; i < 20000; i++) GOOD(remixdb_put(r, own_key(key, i * 10), klen, val, sizeof(val)));
    GOOD(remixdb_flush(r) && remixdb_compact(r));
    struct xdb_iter *const it = remixdb_iter_create(r);
    uint64_t seed = 5;
    for (uint32_t n = 0; n < 30; n++) {
      for (uint32_t k = 0; k < 20; k++) {
        (void)own_key(key, (uint32_t)(rng_next(&seed) % 100000) + 1 + n % 9);
        GOOD(remixdb_put(r, key, klen, val, sizeof(val)));
      }
      remixdb_iter_seek(it, own_key(key, 100000 + (uint32_t)(rng_next(&seed) % 9000) * 10), klen);
      uint32_t len = 0;
      const void *own = remixdb_iter_key(it, &len);
      CHECK(own && len == klen && memcmp(own, key, klen) == 0);
      if (n % 3) GOOD(remixdb_compact(r));
      if (klen > 128 && n % 4 == 0) {  // no memory for a copy
        fault_mem_set_lasting(1);
        remixdb_iter_seek(it, own, len);
        CHECK(fault_mem_end());
        FAILED(REMIXDB_NOMEM, NULL);
        CHECK(!remixdb_iter_valid(it));
        remixdb_iter_seek(it, key, klen);
        own = remixdb_iter_key(it, &len);
      }
      if (n % 2) remixdb_iter_seek(it, own, len);
      else remixdb_iter_seek_for_prev(it, own, len);
      own = remixdb_iter_key(it, &len);
      CHECK(own && len == klen && memcmp(own, key, klen) == 0);
    }
    remixdb_iter_destroy(it);
    sample_close(x, r);
    remove_tree(dir);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      // those with children first: while there is one thread only
      cmocka_unit_test(test_descriptors),   cmocka_unit_test(test_no_memory_open),
      cmocka_unit_test(test_no_memory_use), cmocka_unit_test(test_no_memory_cold),
      cmocka_unit_test(test_own_key),
  };
  return cmocka_run_group_tests_name("no memory", tests, samples_setup, base_teardown);
}
