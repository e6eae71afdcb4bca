// SPDX-License-Identifier: Apache-2.0
//
// A log that holds more than memtables may take: the opening brings it into tables, a memtable at a time. The store is
// then as the writes left it, after a power cut at each change of the disk, and after each failing call.
//
// TEST_SEED in the environment repeats a run's random choices.
#include "tests/lib/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log/state.h"
#include "tests/lib/simdisk.h"
#include "store/flush.h"
#include "store/replay_round.h"
#include "store/space_ref.h"
#include "store/whole.h"
#include "xdb.h"

#define DIR_NAME "/store"
#define KEYS 400u
#define SPACES 2u
#define LONG_LEN 20000u  // such a value lies apart from the beginning
#define MOST 60000u      // bytes for replay_most

static uint64_t seed_first;

// ---- a store and its model

struct now {
  uint64_t version;  // as remixdb_getv tells it; 0: absent
  uint32_t len;
  uint8_t what;  // each byte of the value
};

static struct simdisk *disk;
static struct xdb *x;
static struct xdb_space *space;
static struct xdb_ref *refs[SPACES];
static uint32_t active_file;  // the number of the log's last segment
static struct now model[SPACES][KEYS];
static uint8_t value[LONG_LEN], got[LONG_LEN];

static uint32_t key_of(uint32_t i, char buf[16]) { return (uint32_t)snprintf(buf, 16, "%05u", i); }

static struct remixdb_opts opts(int workers, bool compress) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.memtable_mb = o.cache_mb = 1;
  o.workers = workers;
  o.sync = REMIXDB_SYNC_NONE;
  if (compress) o.compression = REMIXDB_COMPRESSION_ZSTD;
  return o;
}

static enum remixdb_status try_open(const struct remixdb_opts *o, struct simdisk *d) {
  enum remixdb_status s = xdb_open(DIR_NAME, o, simdisk_env(d), &x);
  if (s != REMIXDB_OK) return s;
  x->leave_log = true;
  OK(xdb_ref(x, &refs[0]));
  s = xdb_space_open(x, "s", 1, !o->read_only, &space);
  if (s == REMIXDB_OK) OK(xdb_space_ref(space, &refs[1]));
  return s;
}

static enum remixdb_status try_close(void) {
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t sp = 0; sp < SPACES; sp++) xdb_unref(refs[sp]);
  xdb_space_close(space);
  refs[0] = refs[1] = NULL;
  space = NULL;
  if (x) s = xdb_close(x);
  x = NULL;
  return s;
}

static void close_all(void) { OK(try_close()); }

// The store is as the model says.
static void check(const char *when) {
  for (uint32_t sp = 0; sp < SPACES; sp++) {
    for (uint32_t i = 0; i < KEYS; i++) {
      const struct now *const n = &model[sp][i];
      char key[16];
      uint32_t len = 0;
      uint64_t version = 0;
      const bool there = remixdb_getv(refs[sp], key, key_of(i, key), got, sizeof(got), &len, &version);
      CHECK(there || remixdb_errcode() == REMIXDB_NOTFOUND);
      memset(value, n->what, n->len);
      CHECK_SAYS(there == (n->version != 0) && (!there || (len == n->len && memcmp(got, value, len) == 0)),
                 "%s: key %u of space %u is %s", when, i, sp, there ? "another" : "absent");
      CHECK_SAYS(!there || version == n->version, "%s: key %u of space %u has another version", when, i, sp);
    }
    struct xdb_iter *const it = remixdb_iter_create(refs[sp]);
    CHECK(it);
    remixdb_iter_seek(it, NULL, 0);
    for (uint32_t i = 0; i < KEYS; i++) {
      char key[16];
      uint32_t len;
      if (!model[sp][i].version) continue;
      CHECK(remixdb_iter_valid(it));
      const void *const k = remixdb_iter_key(it, &len);
      CHECK_SAYS(len == key_of(i, key) && memcmp(k, key, len) == 0, "%s: key %u of space %u", when, i, sp);
      remixdb_iter_skip1(it);
    }
    CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_OK);
    remixdb_iter_destroy(it);
  }
}

// The versions that the store gave to the last writes.
static void learn(void) {
  for (uint32_t sp = 0; sp < SPACES; sp++) {
    for (uint32_t i = 0; i < KEYS; i++) {
      struct now *const n = &model[sp][i];
      char key[16];
      uint32_t len;
      uint64_t version = 0;
      const bool there = remixdb_getv(refs[sp], key, key_of(i, key), got, sizeof(got), &len, &version);
      CHECK(there == (n->version != 0));
      if (there) n->version = version;
    }
  }
}

// ---- writing

static void model_put(uint32_t sp, uint32_t i, uint64_t *rng) {
  const uint32_t dice = (uint32_t)(rng_next(rng) % 100);
  model[sp][i] = (struct now){1, dice < 3 ? LONG_LEN : dice < 20 ? 5000 : dice * 7, (uint8_t)rng_next(rng)};
  memset(value, model[sp][i].what, model[sp][i].len);
}

static void put(uint32_t sp, uint32_t i, uint64_t *rng) {
  char key[16];
  model_put(sp, i, rng);
  CHECK(remixdb_put(refs[sp], key, key_of(i, key), value, model[sp][i].len));
}

static void del(uint32_t sp, uint32_t i) {
  char key[16];
  model[sp][i].version = 0;
  CHECK(remixdb_del(refs[sp], key, key_of(i, key)));
}

static struct remixdb_range range_of(uint32_t from, uint32_t to, char key[2][16]) {
  struct remixdb_range range = {{key[0], 0}, {key[1], 0}};
  range.from.len = key_of(from, key[0]);
  range.to.len = key_of(to, key[1]);
  if (to == KEYS) range.to.ptr = NULL;
  if (from == 0) range.from.ptr = NULL;
  return range;
}

static void model_del_range(uint32_t sp, uint32_t from, uint32_t to) {
  for (uint32_t i = from; i < to; i++) model[sp][i].version = 0;
}

static void del_range(uint32_t sp, uint64_t *rng, uint32_t most) {
  char key[2][16];
  const uint32_t from = (uint32_t)(rng_next(rng) % KEYS), nr = (uint32_t)(rng_next(rng) % most),
                 to = from + nr < KEYS ? from + nr : KEYS;
  const struct remixdb_range range = range_of(from, to, key);
  model_del_range(sp, from, to);
  CHECK(remixdb_del_range(refs[sp], &range));
}

// Records of both spaces, and a range among them.
static void batch(uint64_t *rng) {
  struct xdb_batch *const b = remixdb_batch_create();
  CHECK(b);
  for (uint32_t n = 0; n < 12; n++) {
    char key[2][16];
    const uint32_t sp = (uint32_t)(rng_next(rng) % SPACES), i = (uint32_t)(rng_next(rng) % (KEYS - 20));
    remixdb_batch_space(b, sp ? space : NULL);
    if (n == 6) {
      const struct remixdb_range range = range_of(i, i + 20, key);
      model_del_range(sp, i, i + 20);
      CHECK(remixdb_batch_del_range(b, &range));
    } else if (n % 4 == 3) {
      model[sp][i].version = 0;
      CHECK(remixdb_batch_del(b, key[0], key_of(i, key[0])));
    } else {
      model_put(sp, i, rng);
      CHECK(remixdb_batch_put(b, key[0], key_of(i, key[0]), value, model[sp][i].len));
    }
  }
  // without a space of its own, a record goes to the ref's
  CHECK(remixdb_write(refs[0], b));
  remixdb_batch_destroy(b);
}

static void ingest(uint32_t sp, uint64_t *rng) {
  const uint32_t from = (uint32_t)(rng_next(rng) % (KEYS - 30));
  struct xdb_ingest *const g = remixdb_ingest_begin(refs[sp]);
  CHECK(g);
  for (uint32_t i = from; i < from + 30; i += 3) {
    char key[16];
    model_put(sp, i, rng);
    CHECK(remixdb_ingest_put(g, key, key_of(i, key), value, model[sp][i].len));
  }
  CHECK(remixdb_ingest_commit(g));
}

// How range deletions are made: key by key, in the version, or one of them in a version that is not saved.
enum edits { NONE, SAVED, UNSAVED, EDITS };

static void refuse_current(void) {
  simdisk_fault_name(disk, "CURRENT");
  simdisk_fault(disk, SIMDISK_WRITE, 0, UINT64_MAX, ENOSPC);
}

// The process dies.
static void die(void) {
  simdisk_power_off(disk, 0);
  CHECK(try_close() != REMIXDB_OK);
  simdisk_power_on(disk);
  simdisk_fault(disk, SIMDISK_WRITE, 0, 0, 0);
  simdisk_fault_name(disk, NULL);
}

// A store with tables, and a log of some hundred KB. synced: the log is durable.
static void live(uint64_t s, const struct remixdb_opts *o, enum edits edits, bool synced) {
  uint64_t rng = check_seed = s;
  memset(model, 0, sizeof(model));
  disk = simdisk_create();
  atomic_store(&replay_most, 0);
  struct remixdb_opts large = *o;
  large.memtable_mb = 16;
  OK(try_open(&large, disk));
  if (edits != NONE) x->ranges = (struct range_limits){0};
  for (uint32_t i = 0; i < 400; i++) put(i % SPACES, (uint32_t)(rng_next(&rng) % KEYS), &rng);
  OK(xdb_flush(x));
  for (uint32_t n = 0; n < 900; n++) {
    const uint32_t sp = n % 5 == 0, i = (uint32_t)(rng_next(&rng) % KEYS), dice = (uint32_t)(rng_next(&rng) % 300);
    if (dice < 40) del(sp, i);
    else if (dice < 45) del_range(sp, &rng, 60);
    else if (dice < 50) batch(&rng);
    else if (dice < 51 && n < 200) ingest(sp, &rng);
    else put(sp, i, &rng);
    if (n != 700 || edits != UNSAVED) continue;
    refuse_current();
    del_range(sp, &rng, KEYS / 2);
    x->ranges = (struct range_limits){KEYS, KEYS, UINT64_MAX};
  }
  learn();
  check("before");
  if (synced) CHECK(remixdb_sync(refs[0]));
  OK(wal_flush(x->wal));
  active_file = x->wal->active->nr;
  die();
}

static void end(void) {
  simdisk_destroy(disk);
  disk = NULL;
  atomic_store(&replay_most, 0);
}

// ---- openings

// All records come into tables, the log is empty, and the next opening finds the same.
static void test_opens(void **state) {
  (void)state;
  for (uint64_t s = 0; s < 9; s++) {
    const struct remixdb_opts o = opts((int)(s % 3), s % 4 == 3);
    live(seed_first + s, &o, (enum edits)(s % EDITS), s % 2);
    atomic_store(&replay_most, MOST);
    OK(try_open(&o, disk));
    CHECK_SAYS(x->replay_rounds > 3, "%u rounds", x->replay_rounds);
    CHECK(memtable_count(xdb_super(x)->active) == 0 && !wal_holds(x->wal) && x->recovery.nr_records > 700);
    check("after rounds");
    for (uint64_t cut = 0; cut < 4; cut++) {
      struct simdisk *const d = simdisk_crash(disk, s + cut);
      struct xdb *const mine = x;
      struct xdb_ref *const own[SPACES] = {refs[0], refs[1]};
      struct xdb_space *const named = space;
      OK(try_open(&o, d));
      check("after rounds and a power cut");
      close_all();
      simdisk_destroy(d);
      x = mine;
      refs[0] = own[0];
      refs[1] = own[1];
      space = named;
    }
    uint64_t rng = s;
    for (uint32_t n = 0; n < 300; n++) put(n % SPACES, (uint32_t)(rng_next(&rng) % KEYS), &rng);
    learn();
    close_all();
    OK(try_open(&o, disk));
    check("after rounds, and another replay");
    OK(xdb_compact(x));
    check("after rounds and a compaction");
    CHECK(remixdb_verify(refs[0]));
    close_all();
    end();
  }
}

// Without rounds all is as it was; read_only makes none.
static void test_few(void **state) {
  (void)state;
  struct remixdb_opts o = opts(1, false);
  o.memtable_mb = 16;
  live(seed_first + 100, &o, NONE, true);
  OK(try_open(&o, disk));
  CHECK(x->replay_rounds == 0 && memtable_count(xdb_super(x)->active) > 100);
  check("without rounds");
  close_all();
  atomic_store(&replay_most, MOST);
  o.read_only = true;
  const uint64_t changes = simdisk_changes(disk);
  OK(try_open(&o, disk));
  CHECK(x->replay_rounds == 0 && memtable_count(xdb_super(x)->active) > 100);
  check("with read_only");
  close_all();
  CHECK(simdisk_changes(disk) == changes);
  end();
}

// ---- power cuts

static uint64_t nr_cuts, nr_openings;

// The power goes here: the store that is left opens, in rounds or without. The opening that is under way goes on
// afterwards.
static void cut_here(void *arg) {
  uint64_t *const rng = arg;
  struct err_saved was;
  const struct remixdb_opts o = opts(0, false);
  err_save(&was, REMIXDB_OK);
  nr_cuts++;
  for (uint32_t outcome = 0; outcome < 2; outcome++) {
    struct simdisk *const d = simdisk_crash(disk, rng_next(rng));
    (void)snprintf(check_what, sizeof(check_what), "cut %u, outcome %u", (uint32_t)nr_cuts, outcome);
    atomic_store(&replay_most, (nr_cuts + outcome) % 3 ? 0 : MOST);
    OK(try_open(&o, d));
    check("after a cut");
    close_all();
    simdisk_destroy(d);
  }
  atomic_store(&replay_most, MOST);
  err_restore(&was);
}

// An opening in rounds, in which the power goes at each change of the disk.
static void open_with_cuts(const struct remixdb_opts *o, uint64_t *rng, uint32_t least_rounds, uint32_t least_cuts) {
  struct xdb *mine;
  atomic_store(&replay_most, MOST);
  nr_cuts = 0;
  simdisk_on_change(disk, cut_here, rng);
  OK(xdb_open(DIR_NAME, o, simdisk_env(disk), &mine));
  simdisk_on_change(disk, NULL, NULL);
  CHECK_SAYS(mine->replay_rounds >= least_rounds && nr_cuts >= least_cuts, "%u rounds, %u cuts", mine->replay_rounds,
             (uint32_t)nr_cuts);
  OK(xdb_close(mine));
  OK(try_open(o, disk));
  check("in the end");
  close_all();
}

static void test_cuts(void **state) {
  (void)state;
  for (uint64_t s = 0; s < 2; s++) {
    const struct remixdb_opts o = opts(0, s);
    live(seed_first + 200 + s, &o, s ? UNSAVED : SAVED, true);
    uint64_t rng = check_seed;
    open_with_cuts(&o, &rng, 4, 61);
    end();
  }
}

// ---- what the cache asks for

#define FULL_CACHE_MB 4u  // with so much a shard asks for memory when half of its first stretch is used
#define BLOCK_LEN 3900u   // bytes of a value that has a block for itself

// Each record of the first space has a block for itself.
static void put_blocks(void) {
  for (uint32_t i = 0; i < KEYS; i++) {
    char key[16];
    model[0][i] = (struct now){1, BLOCK_LEN, (uint8_t)i};
    memset(value, (uint8_t)i, BLOCK_LEN);
    CHECK(remixdb_put(refs[0], key, key_of(i, key), value, BLOCK_LEN));
  }
}

// Deletes two of each four keys, in ranges, by one batch.
static void del_many_ranges(void) {
  struct xdb_batch *const b = remixdb_batch_create();
  CHECK(b);
  for (uint32_t i = 0; i + 4 <= KEYS; i += 4) {
    char key[2][16];
    const struct remixdb_range range = range_of(i + 1, i + 3, key);
    model_del_range(0, i + 1, i + 3);
    CHECK(remixdb_batch_del_range(b, &range));
  }
  CHECK(remixdb_write(refs[0], b));
  remixdb_batch_destroy(b);
}

// A store with blocks in tables, and a log with many ranges that CURRENT does not have.
static void live_ranges(const struct remixdb_opts *o, uint64_t *rng) {
  memset(model, 0, sizeof(model));
  disk = simdisk_create();
  atomic_store(&replay_most, 0);
  OK(try_open(o, disk));
  put_blocks();
  OK(xdb_flush(x));
  OK(xdb_wait_idle(x));
  x->ranges = (struct range_limits){0};
  refuse_current();
  del_many_ranges();
  for (uint32_t n = 0; n < 60; n++) put(n % SPACES, (uint32_t)(rng_next(rng) % KEYS), rng);
  learn();
  CHECK(x->rounds.unsaved && remixdb_sync(refs[0]));
  die();
}

// The edits before the first round read so many blocks that the cache asks for memory. No worker may look for idle work
// then: there is no log yet, and the super changes (U1 of store/setup.h). At each change of the disk a worker has time
// for that.
static void test_asks(void **state) {
  (void)state;
  struct remixdb_opts o = opts(2, false);
  o.memtable_mb = 16;
  o.cache_mb = FULL_CACHE_MB;
  uint64_t rng = check_seed = seed_first + 600;
  live_ranges(&o, &rng);
  open_with_cuts(&o, &rng, 1, 10);
  end();
}

// ---- failing calls, and a full disk

// The opening has failed or not; the store is whole, and so it is after the next one.
static void fault_once(const struct remixdb_opts *o, uint64_t seed, enum simdisk_call call, uint64_t skip, int errnum,
                       bool *hit_out) {
  struct simdisk *const d = simdisk_crash(disk, seed);
  (void)snprintf(check_what, sizeof(check_what), "call %u of kind %u fails with %d", (uint32_t)skip, (uint32_t)call,
                 errnum);
  const uint64_t before = simdisk_calls(d, call);
  simdisk_fault(d, call, skip, 1, errnum);
  const enum remixdb_status s = try_open(o, d);
  *hit_out = simdisk_calls(d, call) - before > skip;
  simdisk_fault(d, call, 0, 0, 0);
  CHECK(s == REMIXDB_OK || ((s == REMIXDB_IO || s == REMIXDB_NOSPACE) && err_msg()[0]));
  if (s == REMIXDB_OK) check("after a failing call");
  nr_openings += s == REMIXDB_OK;
  close_all();
  OK(try_open(o, d));
  check("at the next opening");
  close_all();
  simdisk_destroy(d);
}

static void test_faults(void **state) {
  (void)state;
  static const enum simdisk_call calls[] = {SIMDISK_OPEN,     SIMDISK_READ,     SIMDISK_WRITE,  SIMDISK_SYNC,
                                            SIMDISK_TRUNCATE, SIMDISK_ALLOCATE, SIMDISK_RENAME, SIMDISK_UNLINK};
  const struct remixdb_opts o = opts(0, false);
  live(seed_first + 300, &o, UNSAVED, true);
  uint64_t rng = check_seed;
  uint32_t nr = 0;
  nr_openings = 0;
  atomic_store(&replay_most, MOST);
  for (uint32_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++) {
    bool hit = true;
    for (uint64_t skip = 0; hit; skip += 1 + rng_next(&rng) % 4, nr++)
      fault_once(&o, rng_next(&rng), calls[c], skip, rng_next(&rng) % 2 ? EIO : ENOSPC, &hit);
  }
  print_message("%u failing calls, %u openings succeeded all the same\n", nr, (uint32_t)nr_openings);
  assert_true(nr > 60 && nr_openings > nr / 3);
  end();
}

#define NR_ROOMS 55u

// Without room for tables the records come into memory.
static void test_full(void **state) {
  (void)state;
  struct remixdb_opts o = opts(0, false);
  o.memtable_mb = 16;
  live(seed_first + 400, &o, UNSAVED, true);
  atomic_store(&replay_most, MOST);
  uint32_t nr_in_rounds = 0;
  for (uint64_t more = 0; more < NR_ROOMS * 49152u; more += 49152u) {
    struct simdisk *const d = simdisk_crash(disk, check_seed);
    (void)snprintf(check_what, sizeof(check_what), "%u bytes of room", (uint32_t)more);
    simdisk_space(d, simdisk_used(d) + more);
    OK(try_open(&o, d));
    const bool rounds = x->replay_rounds != 0;
    nr_in_rounds += rounds;
    CHECK((memtable_count(xdb_super(x)->active) == 0) == rounds);
    check("on a full disk");
    close_all();
    simdisk_space(d, UINT64_MAX);
    OK(try_open(&o, d));
    CHECK((x->replay_rounds == 0) == rounds);
    check("with room again");
    close_all();
    simdisk_destroy(d);
  }
  print_message("%u of %u openings in rounds\n", nr_in_rounds, NR_ROOMS);
  assert_true(nr_in_rounds > 0 && nr_in_rounds < NR_ROOMS);
  end();
}

// Without room for a new segment appends go on in the old one. Its records cannot leave the log, so they come into
// memory, too.
static void test_no_segment(void **state) {
  (void)state;
  struct remixdb_opts o = opts(0, false);
  o.memtable_mb = 16;
  live(seed_first + 500, &o, SAVED, true);
  atomic_store(&replay_most, MOST);
  simdisk_fault_name(disk, active_file ? "wal-0" : "wal-1");
  simdisk_fault(disk, SIMDISK_WRITE, 0, UINT64_MAX, ENOSPC);
  OK(try_open(&o, disk));
  CHECK(x->replay_rounds == 0 && wal_segment_holds(x->wal) && memtable_count(xdb_super(x)->active) > 100);
  check("without a new segment");
  close_all();
  simdisk_fault(disk, SIMDISK_WRITE, 0, 0, 0);
  OK(try_open(&o, disk));
  CHECK(x->replay_rounds > 3);
  check("with a new segment");
  close_all();
  end();
}

int main(void) {
  seed_first = check_seed_or(time_ns() % 1000000 * 1000);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_opens),      cmocka_unit_test(test_few),    cmocka_unit_test(test_cuts),
      cmocka_unit_test(test_asks),       cmocka_unit_test(test_faults), cmocka_unit_test(test_full),
      cmocka_unit_test(test_no_segment),
  };
  return cmocka_run_group_tests_name("replay_rounds", tests, NULL, NULL);
}
