// SPDX-License-Identifier: Apache-2.0
//
// A full disk, as a user of the public functions meets it: puts are refused, reads and deletes are not, nothing is
// lost, and when there is room again the same store takes puts again.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "remixdb.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/slow.h"
#include "store/flush.h"
#include "store/reserve.h"
#include "xdb.h"

#define DIR_NAME "/store"
#define NR 6000u

static struct simdisk *disk;
static struct xdb *x;
static struct xdb_ref *ref;
static uint32_t now[NR];  // version of each key's value; 0: there is none
static uint32_t next_version;
static uint8_t buf[3000], got[3000];

static uint32_t key_of(uint32_t i, char *kbuf) { return (uint32_t)snprintf(kbuf, 16, "key%06u", i); }
static uint32_t len_of(uint32_t i, uint32_t version) { return 8 + (i * 37 + version * 101) % 500; }

static uint32_t value_of(uint32_t i, uint32_t version) {
  const uint32_t len = len_of(i, version);
  uint64_t r = (uint64_t)version << 32 | i;
  for (uint32_t at = 0; at < len; at++) buf[at] = (uint8_t)rng_next(&r);
  return len;
}

static bool put(uint32_t i) {
  char kbuf[16];
  const uint32_t version = ++next_version, len = value_of(i, version);
  if (!remixdb_put(ref, kbuf, key_of(i, kbuf), buf, len)) return false;
  now[i] = version;
  return true;
}

static bool del(uint32_t i) {
  char kbuf[16];
  if (!remixdb_del(ref, kbuf, key_of(i, kbuf))) return false;
  now[i] = 0;
  return true;
}

static void check_value(uint32_t i, const uint8_t *val, uint32_t len) {
  CHECK(now[i] && len == value_of(i, now[i]) && memcmp(val, buf, len) == 0);
}

static void check_get(uint32_t i) {
  char kbuf[16];
  uint32_t len = 0;
  const uint32_t klen = key_of(i, kbuf);
  const bool there = remixdb_get(ref, kbuf, klen, got, &len);
  CHECK(there || remixdb_errcode() == REMIXDB_NOTFOUND);
  CHECK(there == (now[i] != 0) && remixdb_probe(ref, kbuf, klen) == there);
  if (there) check_value(i, got, len);
}

// Everything, by all the ways to read.
static void check_all(void) {
  for (uint32_t i = 0; i < NR; i += 1 + i % 3) check_get(i);
  struct xdb_iter *it = remixdb_iter_create(ref);
  CHECK(it != NULL);
  uint32_t want = 0, nr = 0;
  for (remixdb_iter_seek(it, NULL, 0); remixdb_iter_valid(it); remixdb_iter_skip1(it), want++) {
    uint32_t klen, vlen;
    char kbuf[16];
    CHECK(remixdb_iter_peek(it, kbuf, &klen, got, &vlen));
    while (want < NR && !now[want]) want++;
    char is[16];
    CHECK(want < NR && klen == key_of(want, is) && memcmp(is, kbuf, klen) == 0);
    check_value(want, got, vlen);
    nr++;
  }
  CHECK(remixdb_iter_status(it) == REMIXDB_OK);
  for (remixdb_iter_seek_last(it); remixdb_iter_valid(it); remixdb_iter_prev(it)) nr--;
  CHECK(remixdb_iter_status(it) == REMIXDB_OK && nr == 0);
  remixdb_iter_destroy(it);
  for (; want < NR; want++) CHECK(!now[want]);
  char kbufs[32][16];
  struct remixdb_slice keys[32];
  bool found[32];
  for (uint32_t i = 0; i < 32; i++)
    keys[i] = (struct remixdb_slice){.ptr = kbufs[i], .len = key_of(i * 181 % NR, kbufs[i])};
  const size_t n = remixdb_multi_get(ref, 32, keys, NULL, found);
  CHECK(remixdb_errcode() == REMIXDB_OK);
  size_t there = 0;
  for (uint32_t i = 0; i < 32; i++) {
    CHECK(found[i] == (now[i * 181 % NR] != 0));
    there += found[i];
  }
  CHECK(n == there);
}

static _Atomic uint32_t nr_not_installed;
static void count_line(void *priv, const char *line) {
  (void)priv;
  if (strstr(line, "could not be installed")) atomic_fetch_add(&nr_not_installed, 1);
}

static void open_store(int workers) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.workers = workers;
  o.memtable_mb = 1;
  o.cache_mb = 1;
  o.logger = count_line;
  if (xdb_open(DIR_NAME, &o, simdisk_env(disk), &x) != REMIXDB_OK)
    fail_msg("FULL_SEED=%llu: %s", (unsigned long long)check_seed, remixdb_errmsg());
  x->compact.garbage_from = 0;  // so that overwrites fill the disk
  CHECK((ref = remixdb_ref(x)) != NULL);
}

static void close_store(void) {
  remixdb_unref(ref);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
  CHECK(simdisk_open_files(disk) == 0);
}

static void check_refused(void) { CHECK(remixdb_errcode() == REMIXDB_NOSPACE && remixdb_errmsg()[0]); }

static void fill(uint64_t *rng) {
  for (uint32_t nr = 0; put((uint32_t)rng_next(rng) % NR); nr++) CHECK(nr < 100000);
  check_refused();
}

// All was synced: the power goes now, and it is there.
static void check_crash(uint64_t s) {
  struct simdisk *const was = disk;
  struct xdb *const was_x = x;
  struct xdb_ref *const was_ref = ref;
  disk = simdisk_crash(was, s);
  open_store(0);
  check_all();
  close_store();
  simdisk_destroy(disk);
  disk = was;
  x = was_x;
  ref = was_ref;
}

static bool flush(uint32_t i) {
  (void)i;
  return remixdb_flush(ref);
}

// There is room again. A compaction that failed for want of it is tried again after a second; until then it may be
// told.
static void soon(bool (*fn)(uint32_t i), uint32_t i) {
  const uint64_t until = time_ns() + SLOW_HANG_S * 1000000000ull;
  while (!fn(i)) {
    check_refused();
    CHECK(time_ns() < until);
    time_sleep_ns(20000000);
    xdb_lock(x);
    x->rounds.failed_ns = 0;  // the next call asks for another try at once
    xdb_unlock(x);
  }
}

// reserves: the file system does. Where it does not, deletes and syncs may be refused as well.
static void full_seed(uint64_t s, int workers, bool reserves) {
  uint64_t rng = check_seed = s;
  memset(now, 0, sizeof(now));
  disk = simdisk_create();
  simdisk_no_allocate(disk, !reserves);
  open_store(workers);
  for (uint32_t nr = NR / 4 + (uint32_t)rng_next(&rng) % NR; nr; nr--) CHECK(put((uint32_t)rng_next(&rng) % NR));
  if (s % 2) CHECK(remixdb_flush(ref));
  for (uint32_t time = 0; time < 2; time++) {
    simdisk_space(disk, simdisk_used(disk) + rng_next(&rng) % (3u << 20));
    fill(&rng);
    check_all();
    for (uint32_t i = 0; i < 10; i++) fill(&rng);  // smaller records may have found room
    for (uint32_t i = (uint32_t)rng_next(&rng) % 3; i < NR; i += 3) {
      if (!del(i)) {
        check_refused();
        if (reserves) soon(del, i);  // a round uses the kept room for a moment, and gives it back
      }
      if (i % 100 == 0) check_get(i);
    }
    check_all();
    if (remixdb_sync(ref)) {
      check_crash(rng_next(&rng));
    } else {
      check_refused();
      CHECK(!reserves);
    }
    // they go into tables where there is room for that; else there is an end
    bool taken = true;
    for (uint32_t nr = 0; time == 1 && nr < 20000 && taken; nr++) taken = del((uint32_t)rng_next(&rng) % NR);
    if (!taken) check_refused();
    CHECK(reserves || time == 0 || !taken);
    check_all();
    // room again
    simdisk_space(disk, UINT64_MAX);
    for (uint32_t i = 0; i < NR; i += 1 + (uint32_t)rng_next(&rng) % 5) soon(put, i);
    check_all();
    soon(flush, 0);
  }
  close_store();
  open_store(workers);
  check_all();
  close_store();
  simdisk_destroy(disk);
}

static void test_full(void **state) {
  (void)state;
  const char *const given = getenv("FULL_SEED");
  const uint64_t first = given ? strtoull(given, NULL, 0) : 1, nr = given ? 1 : SLOW > 1 ? 1 : 2;
  for (uint64_t s = first; s < first + nr; s++) {
    full_seed(s, 0, true);
    full_seed(s, 1, true);
  }
  full_seed(first, 0, false);
}

// The disk has not a byte left, and the store is opened: after its end, or after a power cut. Puts are refused, reads
// go on, and deletes of the first `share` twentieths of all keys are taken. They and a compaction give room back,
// without any from outside, where that leaves no more to write than the store keeps room for; else it is refused, and
// nothing is lost.
static void no_byte(uint64_t s, int workers, bool cut, uint32_t share) {
  uint64_t rng = check_seed = s;
  memset(now, 0, sizeof(now));
  disk = simdisk_create();
  open_store(workers);
  for (uint32_t i = 0; i < NR; i++) CHECK(put(i));
  for (uint32_t nr = (uint32_t)rng_next(&rng) % NR; nr; nr--) CHECK(put((uint32_t)rng_next(&rng) % NR));
  if (cut) {  // little lies in the log then, beside the room that the store keeps for this
    CHECK(remixdb_flush(ref));
    for (uint32_t nr = 0; nr < 100; nr++) CHECK(put((uint32_t)rng_next(&rng) % NR));
    CHECK(remixdb_sync(ref));
    struct simdisk *const left = simdisk_crash(disk, s);
    close_store();
    simdisk_destroy(disk);
    disk = left;
  } else {
    close_store();
  }
  const uint64_t full = simdisk_used(disk);
  simdisk_space(disk, full);
  open_store(workers);
  check_all();
  CHECK(simdisk_used(disk) <= full);
  if (!cut) fill(&rng);  // else there is room that the log had before, for more than could be brought into tables
  for (uint32_t i = 0; i < NR * share / 20; i++)
    if (!del(i))
      fail_msg("%d workers, cut %d, share %u: delete of key %u: %s", workers, cut, share, i, remixdb_errmsg());
  check_all();
  const bool good = remixdb_compact(ref);
  if (!good) check_refused();
  if (!good && share >= 19) fail_msg("%d workers, cut %d, share %u: %s", workers, cut, share, remixdb_errmsg());
  check_all();
  CHECK(!good || simdisk_used(disk) < full - full / 4);
  for (uint32_t i = 0; good && i < 100; i++) soon(put, i);
  close_store();
  open_store(workers);
  check_all();
  close_store();
  simdisk_destroy(disk);
}

static void test_no_byte(void **state) {
  (void)state;
  static const uint32_t shares[] = {10, 19, 20};
  for (uint32_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++)
    for (int workers = 0; workers < 2; workers++)
      for (int cut = 0; cut < 2; cut++) no_byte(i + 1, workers, cut != 0, shares[i]);
}

// The disk is full but for a little room, in which none of the partitions can be merged as a whole, and half of the
// keys are deleted. Deletes are taken, and the store frees the room of what they delete without any more from outside.
// Then it takes puts. A power cut at any time loses nothing. asks: a flush comes before the first look at the room.
static void half_full(uint64_t s, bool asks) {
  uint64_t rng = check_seed = s;
  memset(now, 0, sizeof(now));
  disk = simdisk_create();
  open_store(0);
  x->compact.garbage_from = 1;
  x->compact.build.max_pages = 40;
  x->memtable_limit = 80u << 10;
  x->compact.memtable_size = 80u << 10;
  for (uint32_t i = 0; i < NR; i++) CHECK(put((uint32_t)((uint64_t)i * 2741 % NR)));
  CHECK(remixdb_flush(ref));
  CHECK(remixdb_sync(ref));
  OK(xdb_wait_idle(x));  // the room that the store keeps for a full disk is there
  const uint64_t full = simdisk_used(disk);
  simdisk_space(disk, full);
  fill(&rng);
  simdisk_space(disk, full + (128u << 10));
  for (uint32_t i = 0; i < NR; i++)
    if (i % 2) soon(del, i);
  check_all();
  if (asks) soon(flush, 0);
  const uint64_t until = time_ns() + SLOW_HANG_S * 1000000000ull;
  while (simdisk_used(disk) > full - full / 6) {
    CHECK_SAYS(time_ns() < until, "%llu of %llu bytes", (unsigned long long)simdisk_used(disk),
               (unsigned long long)full);
    soon(del, 1);  // the store works only within calls
    soon(flush, 0);
    time_sleep_ns(10000000);
  }
  check_all();
  CHECK(remixdb_sync(ref));
  OK(xdb_wait_idle(x));
  check_crash(rng_next(&rng));
  for (uint32_t i = 0; i < NR / 8; i++) soon(put, i);
  check_all();
  close_store();
  open_store(0);
  check_all();
  close_store();
  simdisk_destroy(disk);
}

static void test_half(void **state) {
  (void)state;
  // Without workers: how much room rounds take before a merge makes some must not depend on when a worker gets to it.
  for (int asks = 0; asks < 2; asks++) half_full((uint64_t)asks + 1, asks != 0);
}

#define LONG 20000u  // bytes of a value that is written apart at once
#define NR_LONG 300u

static const uint8_t *long_value(uint32_t i) {
  static uint8_t val[LONG];
  uint64_t r = i;
  for (uint32_t at = 0; at < LONG; at++) val[at] = (uint8_t)rng_next(&r);
  return val;
}

static bool put_long(uint32_t i) {
  char kbuf[16];
  return remixdb_put(ref, kbuf, key_of(i, kbuf), long_value(i), LONG);
}

// Every second key is there, and all from `all` on.
static void check_long(uint32_t all) {
  static uint8_t val[LONG];
  for (uint32_t i = 0; i < NR_LONG; i++) {
    char kbuf[16];
    uint32_t len = 0;
    const bool there = remixdb_get(ref, kbuf, key_of(i, kbuf), val, &len);
    CHECK(there || remixdb_errcode() == REMIXDB_NOTFOUND);
    CHECK(there == (i % 2 == 0 || i >= all));
    CHECK(!there || (len == LONG && memcmp(val, long_value(i), LONG) == 0));
  }
}

// The disk is full of long values, and half of them are deleted. A compaction frees their room in the room that the
// store keeps: file by file, also where the live values of no two files fit. Then the store takes them again.
static void half_long(void) {
  disk = simdisk_create();
  open_store(0);
  x->values.full = 512u << 10;
  for (uint32_t i = 0; i < NR_LONG; i++) CHECK(put_long(i));
  CHECK(remixdb_flush(ref));
  CHECK(remixdb_sync(ref));
  OK(xdb_wait_idle(x));  // the room that the store keeps for a full disk is there
  const uint64_t full = simdisk_used(disk);
  simdisk_space(disk, full);
  for (uint32_t i = 0; !put_long(NR_LONG + i); i++) {  // the first one is refused, unless the log's room takes it
    check_refused();
    if (i == 10) break;
  }
  for (uint32_t i = 1; i < NR_LONG; i += 2) soon(del, i);
  soon(flush, 0);
  const uint64_t until = time_ns() + SLOW_HANG_S * 1000000000ull;
  while (!remixdb_compact(ref) || simdisk_used(disk) > full * 2 / 3) {
    CHECK_SAYS(time_ns() < until, "%llu of %llu bytes", (unsigned long long)simdisk_used(disk),
               (unsigned long long)full);
    time_sleep_ns(20000000);
  }
  check_long(NR_LONG);
  for (uint32_t i = NR_LONG / 2 + 1; i < NR_LONG; i += 2) soon(put_long, i);
  CHECK(remixdb_sync(ref));
  OK(xdb_wait_idle(x));
  struct simdisk *const left = simdisk_crash(disk, 7);
  close_store();
  simdisk_destroy(disk);
  disk = left;
  open_store(0);
  check_long(NR_LONG / 2);
  close_store();
  simdisk_destroy(disk);
}

static void test_half_long(void **state) {
  (void)state;
  half_long();
}

// The room that the store keeps for a full disk grows with long values that no version has yet: they may be all of its
// first life. So a flush finds room there.
static void test_first_life(void **state) {
  (void)state;
  disk = simdisk_create();
  open_store(0);
  for (uint32_t i = 0; i < NR_LONG; i++) CHECK(put_long(i));
  CHECK(remixdb_sync(ref));
  const uint64_t values = (uint64_t)NR_LONG * LONG;
  CHECK_SAYS(reserve_bytes(x) >= values / 24 && reserve_bytes(x) <= values / 8, "%llu bytes",
             (unsigned long long)reserve_bytes(x));
  simdisk_space(disk, simdisk_used(disk));
  for (uint32_t i = 0; put_long(NR_LONG + i); i++) CHECK(i < 10);
  check_refused();
  CHECK_SAYS(remixdb_flush(ref), "%s", remixdb_errmsg());
  close_store();
  simdisk_destroy(disk);
}

// The disk is full of long values, and a `part`-th of them is deleted. The log has room for all of these deletions, and
// the garbage is less than other collections take. The store takes long values again all the same, without a flush or
// a compaction, until a quarter of them is there. No collection is in vain (G4 in store/collect.h). unflushed: in its
// first life, before the first round.
static void long_alone(int workers, bool unflushed, uint32_t part) {
  char kbuf[16];
  disk = simdisk_create();
  open_store(workers);
  x->values.full = 256u << 10;
  nr_not_installed = 0;
  for (uint32_t i = 0; i < NR_LONG; i++) CHECK(put_long(i));
  if (!unflushed) CHECK(remixdb_flush(ref));
  CHECK(remixdb_sync(ref));
  OK(xdb_wait_idle(x));
  CHECK(reserve_bytes(x) >= NR_LONG * LONG / 16);
  simdisk_space(disk, simdisk_used(disk));
  for (uint32_t i = 0; put_long(NR_LONG + i); i++) CHECK(i < 10);
  check_refused();
  for (uint32_t i = 0; i < NR_LONG; i += part) CHECK(remixdb_del(ref, kbuf, key_of(i, kbuf)));
  for (uint32_t i = 0; i < NR_LONG / 4; i += part) soon(put_long, i);
  CHECK(!x->collect.urgent && nr_not_installed == 0);
  CHECK(remixdb_sync(ref));
  OK(xdb_wait_idle(x));
  close_store();
  simdisk_space(disk, UINT64_MAX);
  open_store(0);
  for (uint32_t i = 0; i < NR_LONG; i++)
    CHECK(remixdb_probe(ref, kbuf, key_of(i, kbuf)) == (i < NR_LONG / 4 || i % part != 0));
  close_store();
  simdisk_destroy(disk);
}

static void test_long_alone(void **state) {
  (void)state;
  for (int workers = 0; workers < 2; workers++)
    for (uint32_t part = 2; part <= 6; part += 4)
      for (int unflushed = 0; unflushed < 2; unflushed++) long_alone(workers, unflushed != 0, part);
}

// A collection does not begin if what it copies could take the room that CURRENT needs, however much room there is (G4
// in store/collect.h).
static void test_in_vain(void **state) {
  (void)state;
  char kbuf[16];
  const uint32_t nr = NR_LONG / 3;
  uint32_t nr_made = 0, nr_rooms = 0;
  for (uint64_t less = 0, kept = 1; less < kept; less += 4096, nr_rooms++) {
    disk = simdisk_create();
    open_store(0);
    x->values.full = 128u << 10;
    nr_not_installed = 0;
    for (uint32_t i = 0; i < nr; i++) CHECK(put_long(i));
    CHECK(remixdb_flush(ref));
    for (uint32_t i = 0; i < nr; i += 4) CHECK(remixdb_del(ref, kbuf, key_of(i, kbuf)));
    kept = reserve_bytes(x);
    simdisk_space(disk, simdisk_used(disk) - less);
    for (uint32_t i = 0; i < 10; i++) {
      x->refused.again_ns = 0;
      (void)put_long(nr + i);
    }
    CHECK_SAYS(nr_not_installed == 0, "%u with %u KiB less", nr_not_installed, (uint32_t)(less >> 10));
    nr_made += x->collect.nr != 0;
    close_store();
    simdisk_destroy(disk);
  }
  CHECK_SAYS(nr_made > nr_rooms / 8 && nr_made < nr_rooms, "%u of %u", nr_made, nr_rooms);
}

// The store is not scarce because the room that it keeps cannot grow a little. It is when much of this room lacks.
static void test_grows_little(void **state) {
  (void)state;
  disk = simdisk_create();
  open_store(0);
  for (uint32_t i = 0; i < NR_LONG; i++) CHECK(put_long(i));
  CHECK(remixdb_flush(ref));
  const uint64_t size = reserve_bytes(x);
  simdisk_space(disk, simdisk_used(disk));
  CHECK(size > 0 && !reserve_scarce(x));
  x->reserve.want = size + size / 4;
  CHECK(reserve_keep(x) && !reserve_scarce(x) && reserve_bytes(x) == size);
  x->reserve.want = size + size / 2;
  CHECK(!reserve_keep(x) && reserve_scarce(x) && reserve_bytes(x) == size);
  x->reserve.want = size;
  CHECK(reserve_keep(x) && !reserve_scarce(x));
  close_store();
  simdisk_destroy(disk);
}

// The ways to write a long value. The ways with ranges have a deletion of other keys beside it.
enum way { PUT, MERGE, BATCH, BATCH_OF_RANGES, TXN, TXN_OF_RANGES, WAYS };
static const struct remixdb_range others = {{"a", 1}, {"b", 1}};

static enum remixdb_merge_op to_long(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  (void)v0, (void)v0len, (void)priv;
  *v1 = long_value(0);
  *v1len = LONG;
  return REMIXDB_MERGE_PUT;
}

static bool batch_long(const char *key, uint32_t klen, bool ranges) {
  struct xdb_batch *const b = remixdb_batch_create();
  CHECK(b && remixdb_batch_put(b, key, klen, long_value(0), LONG) && remixdb_batch_put(b, "short", 5, "value", 5));
  if (ranges) CHECK(remixdb_batch_del_range(b, &others));
  const bool good = remixdb_write(ref, b);
  remixdb_batch_destroy(b);
  return good;
}

static bool txn_long(const char *key, uint32_t klen, bool ranges) {
  struct xdb_txn *const t = remixdb_txn_begin(x);
  struct xdb_ref *const r = remixdb_txn_ref(t, NULL);
  CHECK(r && remixdb_put(r, key, klen, long_value(0), LONG));
  if (ranges) CHECK(remixdb_del_range(r, &others));
  return remixdb_txn_commit(t);
}

static bool write_long(enum way way) {
  char key[16];
  const uint32_t klen = key_of(0, key);
  switch (way) {
    case PUT: return remixdb_put(ref, key, klen, long_value(0), LONG);
    case MERGE: return remixdb_merge(ref, key, klen, to_long, NULL);
    case BATCH:
    case BATCH_OF_RANGES: return batch_long(key, klen, way == BATCH_OF_RANGES);
    default: return txn_long(key, klen, way == TXN_OF_RANGES);
  }
}

// The disk was full, and has room again, when a long value is refused once more: the store makes anew what it keeps for
// a full disk, and takes the write, however the value came.
static void test_long_again(void **state) {
  (void)state;
  static uint8_t val[LONG];
  for (enum way way = PUT; way < WAYS; way++) {
    char key[16];
    uint32_t len = 0;
    disk = simdisk_create();
    memset(now, 0, sizeof(now));
    open_store(0);
    for (uint32_t i = 0; i < NR; i++) CHECK(put(i));
    CHECK(remixdb_flush(ref) && remixdb_sync(ref));
    OK(xdb_wait_idle(x));
    CHECK(reserve_spend(x) && reserve_scarce(x));
    simdisk_fault(disk, SIMDISK_WRITE, 0, 1, ENOSPC);
    CHECK_SAYS(write_long(way), "way %u: %s", (unsigned)way, remixdb_errmsg());
    CHECK(!reserve_scarce(x));
    CHECK(remixdb_get(ref, key, key_of(0, key), val, &len) && len == LONG && memcmp(val, long_value(0), LONG) == 0);
    close_store();
    simdisk_destroy(disk);
  }
}

static bool none(size_t size) {
  (void)size;
  return false;
}

// A put that the disk has no room for is taken back, for which there is no memory: the caller is told of the disk.
static void test_reason(void **state) {
  (void)state;
  uint32_t refused = 0;
  disk = simdisk_create();
  memset(now, 0, sizeof(now));
  open_store(0);
  simdisk_space(disk, simdisk_used(disk));
  uint64_t rng = check_seed = 1;
  fill(&rng);
  atomic_store(&mem_fault, none);
  for (uint32_t i = 0; i < 100000; i++) {
    if (put(i * 7919 % NR)) continue;  // a smaller one finds room
    if (remixdb_errcode() == REMIXDB_NOMEM) break;
    CHECK(remixdb_errcode() == REMIXDB_NOSPACE && strstr(remixdb_errmsg(), "No space left"));
    refused++;
  }
  atomic_store(&mem_fault, NULL);
  CHECK(refused > 10);
  close_store();
  simdisk_destroy(disk);
}

int main(void) {
  check_seed_name = "FULL_SEED";
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_full),       cmocka_unit_test(test_no_byte),
                                     cmocka_unit_test(test_half),       cmocka_unit_test(test_half_long),
                                     cmocka_unit_test(test_first_life), cmocka_unit_test(test_long_alone),
                                     cmocka_unit_test(test_in_vain),    cmocka_unit_test(test_grows_little),
                                     cmocka_unit_test(test_long_again), cmocka_unit_test(test_reason)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
