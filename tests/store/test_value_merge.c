// SPDX-License-Identifier: Apache-2.0
//
// Value merges: scans that read values apart in disorder bring it about that these are written again in the order of
// keys. The tests look at what is written and what stays, and at what older readers see.
#include "tests/lib/store.h"

#include "compact/value_merge.h"
#include "remix/value_debt.h"
#include "store/collect.h"
#include "tests/lib/expect.h"
#include "tests/lib/simdisk.h"

#define KEYS 1200u
#define MOST 80000u  // bytes of a value

static struct xdb *x;
static struct xdb_ref *r, *spaced;  // refs of the unnamed space and of a named one, with the same keys
static struct xdb_space *space;
static uint64_t rng;
static uint32_t
    now[2 * KEYS];  // the turn in which a key was written; 0: it is not there. Keys from KEYS on are the space's
static uint8_t *val;

#define GOOD(call) CHECK_SAYS((call), "%s: %s", remixdb_strerror(remixdb_errcode()), remixdb_errmsg())

static uint32_t key_of(uint32_t i, char buf[16]) { return (uint32_t)snprintf(buf, 16, "key-%05u", i % KEYS * 7); }
// Most values go apart; some are too short, some longer than a chunk.
static uint32_t len_of(uint32_t i, uint32_t turn) {
  const uint32_t n = (i * 7919 + turn * 104729) % 40;
  return n == 0 ? 10 : n == 1 ? MOST : 4100 + n * 60;
}
static bool is_moved(uint32_t len) { return len >= COMPACT_APART && len <= VALUE_CHUNK; }
static void fill(uint32_t i, uint32_t turn) {
  uint64_t n = i * 1000003ull + turn;
  const uint32_t len = len_of(i, turn);
  memset(val, (int)turn, len);
  for (uint32_t at = 0; at + 8 <= len; at += 64) store64le(val + at, rng_next(&n));
}
static uint64_t figure(const char *name) {
  uint64_t n;
  GOOD(remixdb_figure(x, name, &n));
  return n;
}
static uint64_t again(void) { return figure("compaction.values_again"); }

static void put(uint32_t i, uint32_t turn) {
  char k[16];
  const uint32_t klen = key_of(i, k);
  fill(i, turn);
  if (turn) GOOD(remixdb_put(i < KEYS ? r : spaced, k, klen, val, len_of(i, turn)));
  else GOOD(remixdb_del(i < KEYS ? r : spaced, k, klen));
  now[i] = turn;
}

static void open_in(const char *where, struct env *env, int workers) {
  struct remixdb_opts o = small_opts(workers);
  o.cache_mb = 8;  // all blocks of tables: no scan pays for another merge
  atomic_store(&blkio_test_cold, 2);
  OK(xdb_open(where, &o, env, &x));
  atomic_store(&blkio_test_cold, 0);
  shrink(x, 1u << 20, 256);
  GOOD((r = remixdb_ref(x)) != NULL);
  GOOD((space = remixdb_space_open(x, "other", true)) != NULL);
  GOOD((spaced = remixdb_space_ref(space)) != NULL);
}
static void open_it(int workers) { open_in(dir, quick_env(), workers); }

static void close_it(void) {
  remixdb_unref(spaced);
  remixdb_space_close(space);
  remixdb_unref(r);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

// All keys in random order, and some once more, so that old versions and tombstones lie between.
static void load(void) {
  uint32_t order[2 * KEYS];
  for (uint32_t i = 0; i < 2 * KEYS; i++) order[i] = i;
  for (uint32_t i = 2 * KEYS; i-- > 1;) {
    const uint32_t k = (uint32_t)below(&rng, i + 1), was = order[i];
    order[i] = order[k];
    order[k] = was;
  }
  for (uint32_t i = 0; i < 2 * KEYS; i++) put(order[i], 1 + i % 3);
  for (uint32_t i = 0; i < KEYS / 4; i++) put((uint32_t)below(&rng, 2 * KEYS), chance(&rng, 20) ? 0 : 4);
  GOOD(remixdb_flush(r));
}

// Passes over all records of a ref, and checks them. The ref's content is `w`. Returns how many values that can be
// moved do not lie near the one before them.
static uint32_t pass(struct xdb_ref *ref, const uint32_t *w, uint32_t first, bool back) {
  struct xdb_iter *it;
  struct kv_rec rec;
  struct value_ref to, last = {0};
  struct value_file *f;
  uint32_t jumps = 0;
  OK(xdb_iter_create(ref, &it));
  OK(back ? xdb_iter_seek_last(it) : xdb_iter_seek(it, kref("", 0)));
  for (uint32_t n = 0; n < KEYS; n++) {
    const uint32_t i = back ? KEYS - 1 - n : n, turn = w[first + i];
    char k[16];
    const uint32_t klen = key_of(i, k), len = len_of(first + i, turn);
    if (!turn) continue;
    CHECK(xdb_iter_valid(it));
    OK(xdb_iter_refer(it, &rec));
    CHECK(rec.klen == klen && memcmp(rec.key, k, klen) == 0);
    if (rec.kind & KV_APART && is_moved(len)) {
      OK(super_value(it->super, &rec, &to, &f));
      const uint64_t way = to.at > last.at ? to.at - last.at : last.at - to.at;
      jumps += to.file != last.file || way > VALUES_NEAR;
      last = to;
    }
    OK(xdb_iter_record(it, &rec));
    fill(first + i, turn);
    CHECK(rec.vlen == len && memcmp(rec.val, val, len) == 0);
    if (back) OK(xdb_iter_prev(it));
    else OK(xdb_iter_skip(it, 1));
  }
  CHECK(!xdb_iter_valid(it));
  xdb_iter_destroy(it);
  return jumps;
}
static uint32_t passes(bool back) { return pass(r, now, 0, back) + pass(spaced, now, KEYS, back); }

// Lets the workers end what scans have asked for.
static void settle(void) {
  for (uint64_t was = UINT64_MAX, is = again(); is != was; is = again()) {
    was = is;
    while (atomic_load(&x->scan_merges.due)) time_sleep_ns(100000);
    OK(xdb_wait_idle(x));
  }
}

// Scans until the values lie in order. For ever: the alarm ends it. A merge without room waits for a second, so the
// number of scans depends on the machine.
static void scan_until_ordered(void) {
  for (uint32_t n = 1; passes(false) > 2 * KEYS / 10; n++) {
    (void)passes(n % 3 == 0);
    settle();
  }
}

static void test_order(void **state) {
  (void)state;
  struct xdb_snapshot *snap;
  struct xdb_ref *old;
  static uint32_t then[2 * KEYS];
  open_it(1);
  load();
  const uint32_t before = passes(false);
  CHECK(before > 2 * KEYS / 10 * 7);  // it is a disorder
  memcpy(then, now, sizeof(then));
  GOOD((snap = remixdb_snapshot(r)) != NULL);
  GOOD((old = remixdb_snapshot_ref(snap)) != NULL);
  scan_until_ordered();
  const uint64_t moved = again();
  CHECK(moved >= before / 2 && figure("compaction.scan_merges") > 0 && figure("compaction.failed") == 0);
  // Scans end to pay for more when all values lie in order.
  expect_value_merges(x, 50000);
  uint64_t was = moved - 1;
  for (uint32_t n = 0; was != again(); n++) {
    CHECK(n < 40);
    was = again();
    for (uint32_t i = 0; i < 6; i++) (void)passes(i % 2);
    settle();
  }
  for (uint32_t i = 0; i < 2 * KEYS; i += 5) put(i, i % 2 ? 5 : 0);
  (void)passes(false);
  CHECK(pass(old, then, 0, false) <= KEYS);
  remixdb_unref(old);
  remixdb_snapshot_release(snap);
  GOOD(remixdb_verify(r));
  close_it();
  open_it(1);
  (void)passes(true);
  GOOD(remixdb_compact(r));
  (void)passes(false);
  GOOD(remixdb_verify(r));
  close_it();
}

// Gets, seeks without steps, and scans of keys or of what lies in order pay for nothing.
static void test_no_debt(void **state) {
  (void)state;
  char k[16];
  uint32_t len;
  struct kv_rec rec;
  struct xdb_iter *it;
  open_it(1);
  expect_value_merges(x, 1);
  load();
  for (uint32_t i = 0; i < KEYS; i++) {
    const uint32_t klen = key_of(i, k);
    CHECK(remixdb_get(r, k, klen, val, &len) == (now[i] != 0));
  }
  OK(xdb_iter_create(r, &it));
  for (uint32_t i = 0; i < KEYS; i++) {
    const uint32_t klen = key_of(i, k);
    OK(xdb_iter_seek(it, kref(k, klen)));
    if (xdb_iter_valid(it)) OK(xdb_iter_record(it, &rec));
  }
  OK(xdb_iter_seek(it, kref("", 0)));
  while (xdb_iter_valid(it)) {
    OK(xdb_iter_refer(it, &rec));
    OK(xdb_iter_skip(it, 1));
  }
  settle();
  CHECK(again() == 0);
  OK(xdb_iter_seek(it, kref("", 0)));
  while (xdb_iter_valid(it)) {
    OK(xdb_iter_record(it, &rec));
    OK(xdb_iter_skip(it, 1));
  }
  xdb_iter_destroy(it);
  settle();
  CHECK(again() > 0);
  close_it();
}

// Values that are newer than the tables lie where writers put them, and no merge would move them.
static void test_newer(void **state) {
  (void)state;
  enum { FEW = 100, BYTES = 20000 };
  char k[16];
  struct kv_rec rec;
  struct xdb_iter *it;
  open_it(1);
  expect_value_merges(x, 3 * BYTES);  // a scan goes from file to file, too
  x->values_least = UINT64_MAX;
  memset(val, 1, BYTES);
  for (uint32_t i = 0; i < FEW; i++) GOOD(remixdb_put(r, k, key_of(i, k), val, BYTES));
  GOOD(remixdb_flush(r));
  for (uint32_t turn = 0; turn < 2; turn++) {
    OK(xdb_iter_create(r, &it));
    OK(xdb_iter_seek(it, kref("", 0)));
    for (uint32_t i = 0; i < FEW; i++) {
      OK(xdb_iter_record(it, &rec));
      CHECK(rec.vlen == BYTES && rec.val[0] == (turn && i % 2 ? 2 : 1));
      OK(xdb_iter_skip(it, 1));
    }
    CHECK(!xdb_iter_valid(it));
    xdb_iter_destroy(it);
    settle();
    CHECK_SAYS(again() == 0, "%u: %llu", turn, (unsigned long long)again());
    memset(val, 2, BYTES);
    for (uint32_t i = 0; !turn && i < FEW; i++) {
      const uint32_t at = i * 37 % FEW;
      if (at % 2) GOOD(remixdb_put(r, k, key_of(at, k), val, BYTES));
    }
  }
  CHECK(figure("values.files") > 0);
  close_it();
}

// Values of any length go apart where keys are long. Those that are too short for it otherwise stay where they are.
static void test_long_keys(void **state) {
  (void)state;
  enum { FEW = 60, BYTES = 2500 };
  static uint8_t key[KV_KEY_MAX];
  struct kv_rec rec;
  struct xdb_iter *it;
  open_it(1);
  expect_value_merges(x, 1);
  for (uint32_t i = 0; i < FEW; i++) {
    key[0] = (uint8_t)(i * 7 % FEW);
    memset(val, (int)(i * 7 % FEW), BYTES);
    GOOD(remixdb_put(r, key, REMIXDB_KV_MAX - 1000, val, BYTES + i * 7 % FEW % 2 * BYTES));
    if (i % 20 == 19) GOOD(remixdb_flush(r));
  }
  for (uint32_t turn = 0; turn < 3; turn++) {
    OK(xdb_iter_create(r, &it));
    OK(xdb_iter_seek(it, kref("", 0)));
    for (uint32_t i = 0; i < FEW; i++) {
      OK(xdb_iter_refer(it, &rec));
      CHECK(rec.kind & KV_APART);
      OK(xdb_iter_record(it, &rec));
      CHECK(rec.vlen == BYTES + i % 2 * BYTES && rec.val[BYTES - 1] == i);
      OK(xdb_iter_skip(it, 1));
    }
    xdb_iter_destroy(it);
    settle();
  }
  CHECK(again() > 0);
  GOOD(remixdb_verify(r));
  close_it();
}

// Without workers a call's effect does not depend on what scans have read.
static void test_no_workers(void **state) {
  (void)state;
  open_it(0);
  expect_value_merges(x, 1);
  load();
  for (uint32_t n = 0; n < 3; n++) (void)passes(false);
  GOOD(remixdb_flush(r));
  CHECK(again() == 0);
  close_it();
}

// A span of the keys alone is scanned: its values are moved, and the rest is not.
static void test_span(void **state) {
  (void)state;
  open_it(1);
  for (uint32_t i = 0; i < KEYS; i++) put(i * 7 % KEYS, 1);
  GOOD(remixdb_flush(r));
  expect_value_merges(x, 1);
  struct xdb_iter *it;
  struct kv_rec rec;
  OK(xdb_iter_create(r, &it));
  for (uint32_t n = 0; n < 5; n++) {
    OK(xdb_iter_seek(it, kref("", 0)));
    for (uint32_t i = 0; i < KEYS / 40; i++) {
      OK(xdb_iter_record(it, &rec));
      OK(xdb_iter_skip(it, 1));
    }
  }
  xdb_iter_destroy(it);
  settle();
  CHECK_SAYS(again() > 0 && again() < KEYS / 8, "%llu", (unsigned long long)again());
  close_it();
}

// A merge is asked for where it helps, and else costs nothing: scans that leave out most values, and long values
// between short ones.
static void test_no_use(void **state) {
  (void)state;
  enum { FEW = 400 };
  char k[16];
  struct kv_rec rec;
  struct xdb_iter *it;
  uint64_t was = 0;
  open_it(1);
  memset(val, 5, MOST);
  for (uint32_t i = 0; i < FEW; i++) GOOD(remixdb_put(r, k, key_of(i, k), val, i % 2 ? 8000 : MOST));
  for (uint32_t i = FEW; i < 2 * FEW; i++) GOOD(remixdb_put(r, k, key_of(i * 37 % FEW + FEW, k), val, 8000));
  GOOD(remixdb_flush(r));
  expect_value_merges(x, 150000);
  for (uint32_t n = 0; n < 18; n++) {
    OK(xdb_iter_create(r, &it));
    OK(xdb_iter_seek(it, kref("", 0)));
    for (uint32_t i = 0; i < 2 * FEW; i++) {
      if (i < FEW || i % 5 == 0) OK(xdb_iter_record(it, &rec));
      else OK(xdb_iter_refer(it, &rec));
      OK(xdb_iter_skip(it, 1));
    }
    xdb_iter_destroy(it);
    if (n % 9 != 8) continue;
    settle();
    if (n == 8) was = again();
  }
  CHECK_SAYS(again() == was && was < FEW / 10, "%llu, then %llu", (unsigned long long)was, (unsigned long long)again());
  close_it();
}

// ---- room

enum { NR = 6000, LEN = 8000 };

// A scan of the store below. Returns how many values do not lie near the one before them.
static uint32_t scan_large(void) {
  struct xdb_iter *it;
  struct value_ref to, last = {0};
  struct value_file *f;
  struct kv_rec rec;
  uint32_t jumps = 0;
  OK(xdb_iter_create(r, &it));
  OK(xdb_iter_seek(it, kref("", 0)));
  for (uint32_t i = 0; i < NR; i++) {
    OK(xdb_iter_refer(it, &rec));
    OK(super_value(it->super, &rec, &to, &f));
    jumps += to.file != last.file || (to.at > last.at ? to.at - last.at : last.at - to.at) > VALUES_NEAR;
    last = to;
    OK(xdb_iter_record(it, &rec));
    CHECK(rec.vlen == LEN && rec.val[LEN - 1] == 3);
    OK(xdb_iter_skip(it, 1));
  }
  xdb_iter_destroy(it);
  settle();
  return jumps;
}

static void load_large(void) {
  char k[16];
  open_it(1);
  expect_value_merges(x, 400000);
  x->values.full = x->compact.values.full = 4u << 20;  // a worker reads them when there is something to do
  memset(val, 3, LEN);
  for (uint32_t i = 0; i < NR; i++)
    GOOD(remixdb_put(r, k, (uint32_t)snprintf(k, sizeof(k), "key-%05u", i * 1009 % NR), val, LEN));
  GOOD(remixdb_flush(r));
}

// The collection makes room for the next merge, until all values lie in order. In the second turn garbage may hardly be
// as much as a collection is due for by itself.
static void test_large(void **state) {
  (void)state;
  for (uint32_t turn = 0; turn < 2; turn++) {
    load_large();
    if (turn) atomic_store(&x->compact.values_room, (uint64_t)NR * LEN / 100 * 27);
    while (scan_large() > NR / 5) continue;  // for ever: the alarm ends it
    CHECK(again() >= NR / 2);
    close_it();
    if (turn == 0) setup_again();
  }
}

// Tells whether all partitions wait before scans ask for a merge of theirs again.
static bool all_wait(void) {
  bool all = true;
  epoch_enter(&x->epoch, &r->slot);
  const struct version *const v = xdb_super(x)->version;
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    const struct remix_value_debt *const d = remix_value_debt(v->parts[i]->remix);
    all = all && d && atomic_load(&d->again_ns) != 0;
  }
  epoch_exit(&r->slot);
  return all;
}

// Without a collection garbage comes to half of what lives. Then merges end, and scans do not ask for more all the
// time.
static void test_room(void **state) {
  (void)state;
  static const uint64_t live = (uint64_t)NR * LEN;
  load_large();
  collect_stop(x);
  while (again() <= NR / 3) CHECK(scan_large() > 0);
  while (!all_wait()) CHECK(scan_large() > 0);
  const uint64_t room = figure("values.room"), moved = again();
  CHECK_SAYS(room <= live / 100 * 155, "%llu of %llu", (unsigned long long)room, (unsigned long long)live);
  CHECK_SAYS(moved <= NR / 8 * 5, "%llu", (unsigned long long)moved);
  close_it();
}

// A merge that finds the disk full changes nothing, and scans have to pay for the next one.
static void test_full_disk(void **state) {
  (void)state;
  struct simdisk *const disk = simdisk_create();
  open_in("/store", simdisk_env(disk), 1);
  load();
  simdisk_space(disk, 200000);
  expect_value_merges(x, 300000);  // one of 64 spans: many scans
  while (figure("compaction.failed") == 0) {
    (void)passes(false);
    settle();
  }
  const uint64_t failed = figure("compaction.failed");
  for (uint32_t n = 0; n < 3; n++) (void)passes(false);  // each span of both trees gets its debt once, about
  settle();
  CHECK_SAYS(figure("compaction.failed") <= failed + 3 * REMIX_SPANS, "%llu, then %llu", (unsigned long long)failed,
             (unsigned long long)figure("compaction.failed"));
  simdisk_space(disk, UINT64_MAX);
  scan_until_ordered();
  GOOD(remixdb_verify(r));
  close_it();
  simdisk_destroy(disk);
}

// ---- damage

// A value that cannot be read stays where it is, and all others move.
static void test_damage(void **state) {
  (void)state;
  struct xdb_iter *it;
  struct kv_rec rec;
  struct value_ref to;
  struct value_file *f;
  open_it(1);
  load();
  uint32_t bad = 100;
  while (!now[bad] || !is_moved(len_of(bad, now[bad]))) bad++;
  char k[16];
  const uint32_t klen = key_of(bad, k);
  OK(xdb_iter_create(r, &it));
  OK(xdb_iter_seek(it, kref(k, klen)));
  OK(xdb_iter_refer(it, &rec));
  CHECK(rec.kind & KV_APART);
  OK(super_value(it->super, &rec, &to, &f));
  const int fd = open(f->path, O_RDWR | O_CLOEXEC);
  const uint64_t at = to.at + value_data_at(klen, to.len) + 100;
  uint8_t byte = 0;
  CHECK(fd >= 0 && pread(fd, &byte, 1, (off_t)at) == 1);
  byte ^= 0x40;
  CHECK(pwrite(fd, &byte, 1, (off_t)at) == 1);
  CHECK(close(fd) == 0);
  xdb_iter_destroy(it);
  expect_value_merges(x, 200000);
  while (again() <= KEYS / 2) {
    OK(xdb_iter_create(r, &it));
    OK(xdb_iter_seek(it, kref("", 0)));
    for (uint32_t i = 0; i < KEYS; i++) {
      if (!now[i]) continue;
      CHECK(xdb_iter_valid(it));
      if (i == bad) OK(xdb_iter_refer(it, &rec));
      else OK(xdb_iter_record(it, &rec));
      OK(xdb_iter_skip(it, 1));
    }
    xdb_iter_destroy(it);
    settle();
  }
  CHECK(figure("compaction.failed") == 0);
  OK(xdb_iter_create(r, &it));
  OK(xdb_iter_seek(it, kref(k, klen)));
  OK(xdb_iter_refer(it, &rec));
  struct value_ref is;
  OK(super_value(it->super, &rec, &is, &f));
  CHECK(is.file == to.file && is.at == to.at);
  FAILS(xdb_iter_record(it, &rec), REMIXDB_CORRUPT);
  xdb_iter_destroy(it);
  now[bad] = 0;
  GOOD(remixdb_del(r, k, klen));
  (void)passes(false);
  close_it();
}

int main(void) {
  check_seed = check_seed_start();
  rng = check_seed;
  val = malloc(MOST);
  hang_alarm();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_order, setup, teardown),
      cmocka_unit_test_setup_teardown(test_no_debt, setup, teardown),
      cmocka_unit_test_setup_teardown(test_newer, setup, teardown),
      cmocka_unit_test_setup_teardown(test_long_keys, setup, teardown),
      cmocka_unit_test_setup_teardown(test_no_workers, setup, teardown),
      cmocka_unit_test_setup_teardown(test_span, setup, teardown),
      cmocka_unit_test_setup_teardown(test_no_use, setup, teardown),
      cmocka_unit_test_setup_teardown(test_large, setup, teardown),
      cmocka_unit_test_setup_teardown(test_room, setup, teardown),
      cmocka_unit_test_setup_teardown(test_full_disk, setup, teardown),
      cmocka_unit_test_setup_teardown(test_damage, setup, teardown),
  };
  const int rc = check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
  free(val);
  return rc;
}
