// SPDX-License-Identifier: Apache-2.0
//
// Batches that are much larger than a memtable: whole or absent to readers and after a crash, and the store goes on.
// The same for batches and transactions with more value files than descriptors.
#include "tests/lib/simdisk.h"
#include "tests/lib/store.h"
#include "log/format.h"

#include <errno.h>

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

// ---- more value files than descriptors

#define LONGS 24u
#define FEW_FILES 16u
#define FULL (256u << 10)  // bytes of a value file: an odd value has one for its own, and even ones share them

enum way { BATCH, BATCH_RANGE, TXN, TXN_RANGE, WAYS };

static struct env_ops ops;
static struct env env;
static struct simdisk *disk;
static uint32_t open_most;

static ssize_t pwrite_noting(struct env *e, int fd, const void *buf, size_t len, uint64_t off) {
  const uint32_t nr = simdisk_open_files(disk);
  if (nr > open_most) open_most = nr;
  return simdisk_env(disk)->ops->pwrite(e, fd, buf, len, off);
}

static struct xdb *few_on(struct simdisk *d) {
  struct remixdb_opts o = small_opts(0);
  struct xdb *x = NULL;
  o.max_open_files = FEW_FILES;
  o.io = "sync";
  o.compression = REMIXDB_COMPRESSION_NONE;
  disk = d;
  env = *simdisk_env(d);
  ops = *env.ops;
  ops.pwrite = pwrite_noting;
  env.ops = &ops;
  OK(xdb_open("/store", &o, &env, &x));
  x->values.full = x->compact.values.full = FULL;
  return x;
}

static uint32_t long_len(uint32_t i) { return i % 2 ? 70000 + i : 50000 + i; }
static const uint8_t *long_value(uint32_t i, uint32_t turn) {
  static uint8_t val[80000];
  uint64_t n = i * 7919ull + turn;
  for (uint32_t b = 0; b < sizeof(val); b++) val[b] = (uint8_t)(rng_next(&n) >> 24);
  return val;
}
static uint32_t long_key(uint32_t i, char key[16]) { return (uint32_t)snprintf(key, 16, "k%05u", i); }

// One write of all values, and of the deletion of another key. False: it has failed, with the thread's status.
static bool write_longs(struct xdb *x, struct xdb_ref *ref, enum way way, uint32_t turn) {
  const struct remixdb_range gone = {{"x", 1}, {"y", 1}};
  struct xdb_batch *const b = way <= BATCH_RANGE ? remixdb_batch_create() : NULL;
  struct xdb_txn *const t = b ? NULL : remixdb_txn_begin(x);
  struct xdb_ref *const mine = t ? remixdb_txn_ref(t, NULL) : NULL;
  char key[16];
  CHECK(b || mine);
  for (uint32_t i = 0; i < LONGS; i++) {
    const uint32_t klen = long_key(i, key), len = long_len(i);
    const uint8_t *const val = long_value(i, turn);
    CHECK(b ? remixdb_batch_put(b, key, klen, val, len) : remixdb_put(mine, key, klen, val, len));
  }
  if (way == BATCH) CHECK(remixdb_batch_del(b, "x", 1));
  if (way == BATCH_RANGE) CHECK(remixdb_batch_del_range(b, &gone));
  if (way == TXN) CHECK(remixdb_del(mine, "x", 1));
  if (way == TXN_RANGE) CHECK(remixdb_del_range(mine, &gone));
  const bool good = b ? remixdb_write(ref, b) : remixdb_txn_commit(t);
  const enum remixdb_status s = remixdb_errcode();
  CHECK(good || (s != REMIXDB_OK && remixdb_errmsg()[0]));
  if (b) remixdb_batch_destroy(b);
  return good;
}

// Tells whether all is as this turn has left it.
static bool longs_are(struct xdb_ref *ref, uint32_t turn) {
  static uint8_t got[80000];
  char key[16];
  uint32_t len;
  if (remixdb_probe(ref, "x", 1) != (turn == 0)) return false;
  for (uint32_t i = 0; i < LONGS; i++) {
    CHECK_SAYS(remixdb_getn(ref, key, long_key(i, key), got, sizeof(got), &len), "key %u: %s", i, remixdb_errmsg());
    if (len != long_len(i) || memcmp(got, long_value(i, turn), len) != 0) return false;
  }
  return true;
}

// A new disk with turn 0.
static struct xdb *longs_begin(struct xdb_ref **ref_out) {
  struct xdb *const x = few_on(simdisk_create());
  struct xdb_ref *const ref = remixdb_ref(x);
  char key[16];
  CHECK(ref && remixdb_put(ref, "x", 1, "x", 1));
  for (uint32_t i = 0; i < LONGS; i++) CHECK(remixdb_put(ref, key, long_key(i, key), long_value(i, 0), long_len(i)));
  CHECK(remixdb_sync(ref));
  *ref_out = ref;
  return x;
}

// Opens d: it has turn 0 or 1, and takes turn 2. Destroys it. *turn_out: which it has.
static void longs_after(struct simdisk *d, enum way way, uint32_t *turn_out) {
  struct xdb *const x = few_on(d);
  struct xdb_ref *const ref = remixdb_ref(x);
  CHECK(ref);
  *turn_out = longs_are(ref, 1);
  CHECK(*turn_out || longs_are(ref, 0));
  CHECK(write_longs(x, ref, way, 2) && longs_are(ref, 2) && remixdb_flush(ref) && remixdb_verify(ref));
  close_all(x, ref);
  CHECK(simdisk_open_files(d) == 0);
  simdisk_destroy(d);
}

// The values of a write have files of their own, and few of these are open at a time.
static void test_few_descriptors(void **state) {
  (void)state;
  for (enum way way = 0; way < WAYS; way++) {
    for (uint32_t held = 0; held <= FEW_FILES / 4; held += FEW_FILES / 4) {
      struct xdb_ref *ref;
      struct xdb *const x = longs_begin(&ref);
      CHECK(remixdb_flush(ref));
      const uint32_t others = simdisk_open_files(disk) - fdpool_open_count(x->fds);
      if (held) CHECK(fdpool_hold(x->fds, held));
      open_most = 0;
      for (uint32_t turn = 1; turn <= 3; turn++) CHECK(write_longs(x, ref, way, turn) && longs_are(ref, turn));
      // besides those of the pool there are the active file, and that of the value that is being written
      CHECK_SAYS(open_most <= others + FEW_FILES - held + 2, "way %u: %u files", way, open_most);
      if (held) fdpool_unhold(x->fds, held);
      CHECK(remixdb_flush(ref) && fdpool_hold(x->fds, FEW_FILES / 4));
      fdpool_unhold(x->fds, FEW_FILES / 4);
      close_all(x, ref);
      simdisk_destroy(disk);
    }
  }
}

// A call fails at each step. The write has happened, or nothing of it.
static void test_few_fail(void **state) {
  (void)state;
  static const struct {
    enum simdisk_call call;
    int errnum;
  } faults[] = {{SIMDISK_OPEN, EMFILE}, {SIMDISK_OPEN, EIO},    {SIMDISK_WRITE, ENOSPC}, {SIMDISK_WRITE, EIO},
                {SIMDISK_SYNC, EIO},    {SIMDISK_SYNC, ENOSPC}, {SIMDISK_CLOSE, EIO}};
  for (uint32_t f = 0; f < sizeof(faults) / sizeof(faults[0]); f++) {
    bool hit = true;
    for (uint64_t skip = 0; hit; skip += f % 2 + SLOW) {
      const enum way way = (enum way)(skip % WAYS);
      struct xdb_ref *ref;
      struct xdb *const x = longs_begin(&ref);
      const bool few = skip / WAYS % 2;
      if (few) CHECK(fdpool_hold(x->fds, FEW_FILES / 4));
      const uint64_t before = simdisk_calls(disk, faults[f].call);
      simdisk_fault(disk, faults[f].call, skip, 1, faults[f].errnum);
      bool good = write_longs(x, ref, way, 1);
      const enum remixdb_status s = remixdb_errcode();
      hit = simdisk_calls(disk, faults[f].call) - before > skip;
      simdisk_fault(disk, faults[f].call, 0, 0, 0);
      CHECK_SAYS(good || hit, "fault %u, skip %u: %s", f, (uint32_t)skip, remixdb_errmsg());
      CHECK(longs_are(ref, good ? 1 : 0));
      if (few) fdpool_unhold(x->fds, FEW_FILES / 4);
      // a want of descriptors passes
      if (!good && s == REMIXDB_NOMEM) CHECK((good = write_longs(x, ref, way, 1)) && longs_are(ref, 1));
      good = good && remixdb_sync(ref);
      remixdb_unref(ref);
      remixdb_close(x);
      CHECK(simdisk_open_files(disk) == 0);
      uint32_t turn;
      longs_after(disk, way, &turn);
      CHECK_SAYS(turn || !good, "fault %u, skip %u: the write is gone", f, (uint32_t)skip);
    }
  }
}

// The power goes at each step.
static void test_few_cut(void **state) {
  (void)state;
  bool off = true;
  uint32_t turns[2] = {0, 0};
  for (uint64_t nr = 0; off; nr += SLOW) {
    const enum way way = (enum way)(nr % WAYS);
    struct xdb_ref *ref;
    struct xdb *const x = longs_begin(&ref);
    if (nr / WAYS % 2) CHECK(fdpool_hold(x->fds, FEW_FILES / 4));
    simdisk_power_off(disk, nr);
    const bool good = write_longs(x, ref, way, 1) && remixdb_sync(ref);
    off = simdisk_is_off(disk);
    CHECK(good || off);
    if (nr / WAYS % 2) fdpool_unhold(x->fds, FEW_FILES / 4);
    struct simdisk *const d = disk, *const cut = simdisk_crash(d, nr + 1);
    remixdb_unref(ref);
    remixdb_close(x);
    simdisk_destroy(d);
    uint32_t turn;
    longs_after(cut, way, &turn);
    CHECK(turn || !good);
    turns[turn]++;
  }
  CHECK(turns[0] && turns[1]);
}

int main(void) {
  hang_alarm();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rounds),
      cmocka_unit_test(test_cut),
      cmocka_unit_test(test_handed_back),
      cmocka_unit_test(test_few_descriptors),
      cmocka_unit_test(test_few_fail),
      cmocka_unit_test(test_few_cut),
      cmocka_unit_test_setup_teardown(test_limit, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
