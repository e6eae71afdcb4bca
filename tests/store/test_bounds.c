// SPDX-License-Identifier: Apache-2.0
//
// Iterators with bounds read nothing from the disk for keys beyond: each read, and each advice to the system, is
// compared with the keys of the blocks that it covers. The model test (test_model.c) compares what the iterators show.
#include "tests/lib/check.h"

#include <stdio.h>

#include "tests/lib/simdisk.h"
#include "tests/lib/store.h"
#include "table/hold.h"
#include "xdb.h"

#define KEYS 12000u
#define MANY 100000u
#define KEY_LEN 8u
#define FDS 512  // descriptors of the simulated disk are numbers in a row
#define TABLES 128u

// The blocks of a table: the numbers of their first and last keys, by page. last < first: no block begins there.
struct table {
  uint64_t number;
  uint32_t nr_pages, *first, *last;
};

struct world {
  struct simdisk *disk;
  struct env_ops ops;
  struct env env;
  uint64_t number[FDS];  // the number of the table that a descriptor is open for; 0: something else
  bool watch;
  uint32_t low, high;     // the iterator's keys
  uint32_t beyond, near;  // pages that were read: beyond the bounds, within them
  uint64_t bytes;         // bytes of tables that were read
  struct xdb *x;
  struct xdb_ref *ref;
  struct table tables[TABLES];
  uint32_t nr_tables, nr_parts, nr_young, nr_runs;  // nr_runs: those of the partition with the most
  uint64_t rng;
};

static struct world w;

static int watch_open(struct env *e, int at, const char *path, unsigned flags) {
  const int fd = simdisk_env(w.disk)->ops->open(e, at, path, flags);
  const char *const name = env_name(path);
  if (fd >= 0) w.number[fd % FDS] = strstr(name, ".sst") ? strtoull(name, NULL, 10) : 0;
  return fd;
}

// Counts the pages of [off, off + len).
static void watch_pages(int fd, uint64_t off, uint64_t len) {
  if (!w.watch || !w.number[fd % FDS]) return;
  w.bytes += len;
  const struct table *t = w.tables;
  while (t->number != w.number[fd % FDS]) CHECK(++t < w.tables + w.nr_tables);
  uint32_t page = (uint32_t)(off / BLOCK_PAGE), end = (uint32_t)((off + len + BLOCK_PAGE - 1) / BLOCK_PAGE);
  if (end > t->nr_pages) end = t->nr_pages;
  for (; page < end; page++) {
    uint32_t head = page;
    while (t->last[head] < t->first[head]) head--;
    if (t->last[head] < w.low || t->first[head] >= w.high) w.beyond++;
    else w.near++;
  }
}

static ssize_t watch_pread(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  watch_pages(fd, off, len);
  return simdisk_env(w.disk)->ops->pread(e, fd, buf, len, off);
}

static int watch_advise(struct env *e, int fd, uint64_t off, uint64_t len, enum env_advice advice) {
  if (advice == ENV_WILL_NEED) watch_pages(fd, off, len);
  return simdisk_env(w.disk)->ops->advise ? simdisk_env(w.disk)->ops->advise(e, fd, off, len, advice) : 0;
}

static uint32_t key_of(uint32_t i, char buf[16]) { return (uint32_t)snprintf(buf, 16, "%08u", i * 3); }
// The number of the first key that is not below the digits.
static uint32_t rank_of(const void *key) {
  char digits[KEY_LEN + 1] = {0};
  memcpy(digits, key, KEY_LEN);
  return ((uint32_t)strtoul(digits, NULL, 10) + 2) / 3;
}

static void table_learn(struct sst *t) {
  struct table *const to = &w.tables[w.nr_tables++];
  struct sst_hold hold = {0};
  CHECK(w.nr_tables <= TABLES);
  *to = (struct table){.number = t->number, .nr_pages = t->nr_pages};
  CHECK((to->first = calloc(t->nr_pages, sizeof(uint32_t))) && (to->last = calloc(t->nr_pages, sizeof(uint32_t))));
  for (uint32_t p = 0; p < t->nr_pages; p++) {
    to->first[p] = 1;
    if (!t->nr_recs[p]) continue;
    for (uint32_t i = 0; i < 2; i++) {
      struct kv_rec r;
      OK(sst_read(t, sst_pos_make(p, i ? t->nr_recs[p] - 1u : 0), false, &hold, &r));
      *(i ? &to->last[p] : &to->first[p]) = rank_of(r.key);
    }
  }
  sst_hold_fini(&hold);
}

static void world_open(uint32_t cache_mb) {
  struct remixdb_opts o = small_opts(0);
  o.cache_mb = cache_mb;
  o.memtable_mb = 64;
  OK(xdb_open("/store", &o, &w.env, &w.x));
  CHECK(w.ref = remixdb_ref(w.x));
}

static void world_close(void) {
  remixdb_unref(w.ref);
  remixdb_close(w.x);
}

// The keys in any order; values of `least` bytes, or of less than `spread` more.
static void put_all(uint32_t nr, uint32_t least, uint32_t spread) {
  static uint8_t value[800];
  static uint32_t order[MANY];
  for (uint32_t i = 0; i < nr; i++) order[i] = i;
  for (uint32_t i = nr; i > 1; i--) {
    const uint32_t j = (uint32_t)(rng_next(&w.rng) % i), k = order[i - 1];
    order[i - 1] = order[j];
    order[j] = k;
  }
  for (uint32_t i = 0; i < nr; i++) {
    char key[16];
    const uint32_t len = least + (spread ? (uint32_t)(rng_next(&w.rng) % spread) : 0);
    CHECK(remixdb_put(w.ref, key, key_of(order[i], key), value, len));
  }
}

static void tables_learn(void) {
  const struct version *const v = xdb_super(w.x)->version;
  epoch_enter(&w.x->epoch, &w.ref->slot);
  for (uint32_t p = 0; p < v->nr_parts; p++) {
    for (uint32_t r = 0; r < part_runs(v->parts[p]); r++) table_learn(part_run(v->parts[p], r));
    if (part_runs(v->parts[p]) > w.nr_runs) w.nr_runs = part_runs(v->parts[p]);
  }
  epoch_exit(&w.ref->slot);
  w.nr_parts = v->nr_parts;
  w.nr_young = v->nr_young;
}

static void world_begin(void) {
  memset(&w, 0, sizeof(w));
  w.rng = check_seed;
  w.disk = simdisk_create();
  w.ops = *simdisk_env(w.disk)->ops;
  w.env = *simdisk_env(w.disk);
  w.env.ops = &w.ops;
  w.ops.open = watch_open;
  w.ops.pread = watch_pread;
  w.ops.advise = watch_advise;
  world_open(8);
}

static void world_make(bool young, bool one_run) {
  world_begin();
  shrink(w.x, 512 << 10, 700);
  w.x->compact.young_from = young ? 2 : UINT32_MAX;
  put_all(KEYS, 100, 500);
  CHECK(remixdb_flush(w.ref));
  if (one_run) CHECK(remixdb_compact(w.ref));
  tables_learn();
  world_close();
}

static void world_free(void) {
  for (uint32_t i = 0; i < w.nr_tables; i++) {
    free(w.tables[i].first);
    free(w.tables[i].last);
  }
  simdisk_destroy(w.disk);
}

static void expect_key(struct xdb_iter *it, uint32_t i) {
  char key[16];
  uint32_t klen, vlen;
  const uint32_t len = key_of(i, key);
  const void *const k = remixdb_iter_key(it, &klen);
  CHECK(k && klen == len && memcmp(k, key, len) == 0 && remixdb_iter_value(it, &vlen));
}

// Goes through the keys [low, high) with a new iterator, in one direction and perhaps a part of the way back.
static void pass(bool back, bool bounded, bool by_prefix, uint32_t expect) {
  char from[16], to[16];
  struct remixdb_iter_opts o;
  remixdb_iter_opts_init(&o, sizeof(o));
  o.expect = expect;
  const uint32_t from_len = key_of(w.low, from), to_len = key_of(w.high, to);
  if (bounded && by_prefix) o.prefix = (struct remixdb_slice){from, 5};
  else if (bounded) o.bounds = (struct remixdb_range){{from, from_len}, {to, to_len}};
  struct xdb_iter *const it = remixdb_iter_create_opts(w.ref, &o);
  CHECK(it);
  w.beyond = w.near = 0;
  w.watch = true;
  if (bounded && back) remixdb_iter_seek_last(it);
  else if (bounded) remixdb_iter_seek(it, NULL, 0);
  else if (!back) remixdb_iter_seek(it, from, from_len);
  else remixdb_iter_seek_for_prev(it, to, to_len);
  if (!bounded && back && w.high < KEYS) remixdb_iter_prev(it);
  const uint32_t turn = w.low < w.high && rng_next(&w.rng) % 2 ? (uint32_t)(rng_next(&w.rng) % (w.high - w.low)) : 0;
  for (uint32_t n = 0; n < w.high - w.low; n++) {
    expect_key(it, back ? w.high - 1 - n : w.low + n);
    if (back) remixdb_iter_prev(it);
    else remixdb_iter_skip1(it);
    if (!turn || n + 1 != turn || n + 1 == w.high - w.low) continue;
    for (uint32_t i = 0; i < 2 * turn; i++) {  // back to where it began, and here again
      if (back == (i < turn)) remixdb_iter_skip1(it);
      else remixdb_iter_prev(it);
    }
  }
  if (bounded) CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_OK);
  w.watch = false;
  remixdb_iter_destroy(it);
}

// The keys that begin with the first five digits of key i.
static void prefix_range(uint32_t i) {
  const uint32_t from = i * 3 / 1000 * 1000;
  w.low = (from + 2) / 3;
  w.high = (from + 1002) / 3;
  if (w.high > KEYS) w.high = KEYS;
}

static void test_nothing_beyond(void **state) {
  (void)state;
  uint64_t unbounded = 0, passes = 0, near = 0, young = 0;
  for (uint32_t shape = 0; shape < 12; shape++) {
    check_seed = check_seed_or(1) + shape;
    world_make(shape % 3 == 1, shape % 3 == 2);
    // A view reads one key at each bound, which may lie beyond; it may be in two pages.
    const uint32_t most = 2 * (shape % 3 == 1 ? 4 : 2);
    static const uint32_t lengths[] = {1, 3, 20, 200, 2000, 9000}, expects[] = {0, 1, 50, 5000};
    for (uint32_t n = 0; n < 60; n++) {
      atomic_store(&blkio_test_cold, 1 + (n / 2) % 2);  // from the page cache, or from the disk
      world_open(n % 3 * 4);
      const uint32_t length = lengths[n % 6];
      w.low = (uint32_t)(rng_next(&w.rng) % (KEYS - length));
      w.high = w.low + length;
      const bool by_prefix = n % 5 == 0;
      if (by_prefix) prefix_range(w.low);
      simdisk_slow(w.disk, true);
      pass(n % 2, true, by_prefix, expects[n / 6 % 4]);
      if (w.beyond > most)
        fail_msg("shape %u, pass %u: %u pages beyond, %u within [%u, %u)", shape, n, w.beyond, w.near, w.low, w.high);
      near += w.near;
      passes++;
      world_close();
      world_open(n % 3 * 4);
      pass(n % 2, false, false, expects[n / 6 % 4]);
      unbounded += w.beyond > most;
      world_close();
    }
    young += w.nr_young > 0;
    world_free();
  }
  atomic_store(&blkio_test_cold, 0);
  // The test sees readahead: without bounds a good part of the passes reads more.
  CHECK(near > passes && unbounded > passes / 4 && young > 0);
}

// Goes through the keys [from, nr), which are the last ones. Returns the bytes of tables that were read.
static uint64_t scan_bytes(bool keys_only, bool back, uint32_t from, uint32_t nr) {
  struct remixdb_iter_opts o;
  char key[16];
  remixdb_iter_opts_init(&o, sizeof(o));
  o.keys_only = keys_only;
  const uint32_t len = key_of(from, key);
  o.bounds.from = (struct remixdb_slice){key, len};
  struct xdb_iter *const it = remixdb_iter_create_opts(w.ref, &o);
  w.bytes = 0;
  w.watch = true;
  if (back) remixdb_iter_seek_last(it);
  else remixdb_iter_seek(it, NULL, 0);
  for (uint32_t i = from; i < nr; i++) {
    char want[16];
    uint32_t klen;
    const uint32_t n = key_of(back ? nr - 1 - (i - from) : i, want);
    const void *const k = remixdb_iter_key(it, &klen);
    CHECK(k && klen == n && memcmp(k, want, n) == 0);
    if (back) remixdb_iter_prev(it);
    else remixdb_iter_skip1(it);
  }
  CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_OK);
  w.watch = false;
  remixdb_iter_destroy(it);
  return w.bytes;
}

// A scan of keys reads the compressed keys: with values of 350 bytes a tenth of the bytes, in both directions, from the
// page cache or from the disk.
static void test_keys_only(void **state) {
  (void)state;
  for (uint32_t shape = 0; shape < 3; shape++) {
    check_seed = check_seed_or(1) + shape;
    world_make(shape == 1, shape == 2);
    for (uint32_t n = 0; n < 12; n++) {
      const uint32_t from = n % 4 ? 0 : KEYS / 8;
      atomic_store(&blkio_test_cold, 1 + n / 2 % 2);
      world_open(n % 3 ? 0 : 1);
      const uint64_t all = scan_bytes(false, n % 2, from, KEYS);
      world_close();
      world_open(n % 3 ? 0 : 1);
      const uint64_t keys = scan_bytes(true, n % 2, from, KEYS);
      world_close();
      if (keys * 10 > all)
        fail_msg("shape %u, %u: %llu bytes of %llu", shape, n, (unsigned long long)keys, (unsigned long long)all);
    }
    world_free();
  }
  atomic_store(&blkio_test_cold, 0);
}

// The same with many keys, values of 400 bytes, overlapping tables in a partition, and young views.
static void test_keys_only_many(void **state) {
  (void)state;
  check_seed = check_seed_or(1);
  world_begin();
  shrink(w.x, 9 << 20, 6000);
  w.x->compact.young_from = 2;
  put_all(MANY, 400, 0);
  CHECK(remixdb_flush(w.ref));
  for (uint32_t n = 0; n < 2; n++) {
    for (uint32_t i = n; i < MANY; i += 60) {
      char key[16];
      CHECK(remixdb_put(w.ref, key, key_of(i, key), (const uint8_t[400]){0}, 400));
    }
    CHECK(remixdb_flush(w.ref));
  }
  tables_learn();
  world_close();
  CHECK_SAYS(w.nr_runs >= 5 && w.nr_young > 0, "%u runs, %u young views", w.nr_runs, w.nr_young);
  for (uint32_t n = 0; n < 4; n++) {
    atomic_store(&blkio_test_cold, 1 + n / 2);
    world_open(n == 3 ? 8 : 0);
    const uint64_t all = scan_bytes(false, n % 2, 0, MANY);
    world_close();
    world_open(n == 3 ? 8 : 0);
    const uint64_t keys = scan_bytes(true, n % 2, 0, MANY);
    world_close();
    print_message("%u tables, %u runs, %s: %llu bytes of %llu\n", w.nr_tables, w.nr_runs, n % 2 ? "back" : "on",
                  (unsigned long long)keys, (unsigned long long)all);
    CHECK(keys * 10 <= all);
  }
  world_free();
  atomic_store(&blkio_test_cold, 0);
}

// Scans of `length` keys from random places on (back), each by a seek. Returns the bytes of tables that were read.
static uint64_t short_scans(struct xdb_iter *it, uint32_t nr, uint32_t length, bool back) {
  w.bytes = 0;
  w.watch = true;
  for (uint32_t n = 0; n < nr; n++) {
    const uint32_t from = length + (uint32_t)(rng_next(&w.rng) % (MANY - 2 * length));
    char key[16];
    const uint32_t len = key_of(from, key);
    if (back) remixdb_iter_seek_for_prev(it, key, len);
    else remixdb_iter_seek(it, key, len);
    for (uint32_t i = 0; i < length; i++) {
      char want[16];
      uint32_t klen;
      const uint32_t wlen = key_of(back ? from - i : from + i, want);
      const void *const k = remixdb_iter_key(it, &klen);
      CHECK(k && klen == wlen && memcmp(k, want, wlen) == 0);
      if (back) remixdb_iter_prev(it);
      else remixdb_iter_skip1(it);
    }
    remixdb_iter_park(it);
  }
  w.watch = false;
  return w.bytes;
}

static struct xdb_iter *keys_iter(bool keys_only, uint32_t expect) {
  struct remixdb_iter_opts o;
  remixdb_iter_opts_init(&o, sizeof(o));
  o.keys_only = keys_only;
  o.expect = expect;
  struct xdb_iter *const it = remixdb_iter_create_opts(w.ref, &o);
  CHECK(it);
  return it;
}

// Short scans of keys read a tenth of the bytes, too, where the compressed keys are in chunks that are no longer than a
// block and the reads come from the disk: after some scans the places of the chunks are known.
static void test_keys_only_short(void **state) {
  (void)state;
  check_seed = check_seed_or(1);
  world_begin();
  shrink(w.x, 9 << 20, 60000);
  put_all(MANY, 400, 0);
  CHECK(remixdb_compact(w.ref));
  tables_learn();
  world_close();
  CHECK_SAYS(w.nr_runs == 1, "%u runs", w.nr_runs);
  atomic_store(&blkio_test_cold, 2);
  for (uint32_t n = 0; n < 8; n++) {
    const uint32_t length = n / 2 % 2 ? 3 : 50, expect = n / 4 ? length : 0;
    uint64_t bytes[2];
    for (uint32_t keys_only = 0; keys_only < 2; keys_only++) {
      world_open(0);
      struct xdb_iter *const it = keys_iter(keys_only, expect);
      (void)short_scans(it, 200, 50, n % 2);
      bytes[keys_only] = short_scans(it, 200, length, n % 2);
      remixdb_iter_destroy(it);
      world_close();
    }
    print_message("%u keys, %s: %llu bytes of %llu\n", length, n % 2 ? "back" : "on", (unsigned long long)bytes[1],
                  (unsigned long long)bytes[0]);
    CHECK(length == 50 ? bytes[1] * 10 <= bytes[0] : bytes[1] <= bytes[0]);
  }
  world_free();
  atomic_store(&blkio_test_cold, 0);
}

// The numbers of the tables in a partition.
static uint64_t part_print(const struct part *p) {
  uint64_t print = part_runs(p);
  for (uint32_t r = 0; r < part_runs(p); r++) print = print * 31 + part_run(p, r)->number;
  return print;
}

static bool compacted(const struct part *p) {
  return part_runs(p) <= 2 && !p->young && (!p->remix || p->remix->nr_keys == p->remix->nr_entries);
}

// A compaction of a range writes the partitions that have keys of it, and no others.
static void test_compact_range(void **state) {
  (void)state;
  for (uint32_t shape = 0; shape < 4; shape++) {
    check_seed = check_seed_or(1) + shape;
    world_make(shape % 2, false);
    world_open(8);
    shrink(w.x, 512 << 10, 60);
    char from[16], to[16];
    uint64_t before[64], others = 0, inside = 0;
    uint32_t nr = 0;
    w.low = 1 + (uint32_t)(rng_next(&w.rng) % (KEYS / 2));
    w.high = w.low + KEYS / 4;
    struct remixdb_range range = {{from, key_of(w.low, from)}, {to, key_of(w.high, to)}};
    for (uint32_t i = 0; i < KEYS; i += 3) {
      char key[16];
      CHECK(remixdb_put(w.ref, key, key_of(i, key), "old", 3));
    }
    CHECK(remixdb_compact(w.ref));  // into small partitions
    for (uint32_t i = 0; i < KEYS; i += 5) {
      char key[16];
      CHECK(remixdb_put(w.ref, key, key_of(i, key), "new", 3) && (i % 10 || remixdb_del(w.ref, key, KEY_LEN)));
      if (i % 1000 == 0) CHECK(remixdb_flush(w.ref));
    }
    CHECK(remixdb_flush(w.ref));
    const struct version *v = xdb_super(w.x)->version;
    if (v->nr_parts <= 4 || v->nr_parts >= 64) fail_msg("%u partitions", v->nr_parts);
    struct kref anchors[64];
    for (uint32_t p = 0; p < v->nr_parts; p++) {
      before[nr] = part_print(v->parts[p]);
      anchors[nr++] = part_anchor(v->parts[p]);
    }
    struct xdb_snapshot *const keep = remixdb_snapshot(w.ref);  // the anchors' bytes
    const struct remixdb_range none[] = {{{to, KEY_LEN}, {from, KEY_LEN}}, {{NULL, 0}, {to, 0}}};
    for (uint32_t i = 0; i < 2; i++) CHECK(remixdb_compact_range(w.ref, &none[i]) && xdb_super(w.x)->version == v);
    CHECK(remixdb_compact_range(w.ref, &range));
    v = xdb_super(w.x)->version;
    for (uint32_t p = 0; p < v->nr_parts; p++) {
      const struct kref low = part_anchor(v->parts[p]),
                        high = p + 1 < v->nr_parts ? part_anchor(v->parts[p + 1]) : kref("\xff", 1);
      if (kv_cmp(high, kref(from, KEY_LEN)) > 0 && kv_cmp(low, kref(to, KEY_LEN)) < 0) {
        CHECK(compacted(v->parts[p]));
        inside++;
        continue;
      }
      uint32_t i = 0;
      while (i < nr && !kv_eq(anchors[i], low)) i++;
      CHECK(i < nr && before[i] == part_print(v->parts[p]) && !compacted(v->parts[p]));
      others++;
    }
    CHECK(inside > 1 && others > 1);
    const struct remixdb_range all = {{NULL, 0}, {NULL, 0}};
    CHECK(remixdb_compact_range(w.ref, &all));
    v = xdb_super(w.x)->version;
    for (uint32_t p = 0; p < v->nr_parts; p++) CHECK(compacted(v->parts[p]));
    remixdb_snapshot_release(keep);
    world_close();
    world_free();
  }
}

static void count_is(struct xdb_ref *ref, uint32_t from, uint32_t to, uint64_t want, uint64_t most, double record) {
  char low[16], high[16];
  const struct remixdb_range range = {{low, key_of(from, low)}, {high, key_of(to, high)}};
  uint64_t keys, bytes;
  CHECK(remixdb_count(ref, &range, &keys, &bytes));
  const uint64_t off = keys > want ? keys - want : want - keys;
  if (off > most)
    fail_msg("TEST_SEED=%llu: %llu keys counted, %llu are there", (unsigned long long)check_seed,
             (unsigned long long)keys, (unsigned long long)want);
  CHECK((double)bytes >= (double)keys * record * 0.98 && (double)bytes <= (double)keys * record * 1.02);
}

// Overwrites, deletes and new keys, in young views and in both memtables: the estimate is off by less than 1 % of all.
// COUNT_KEYS in the environment: with so many keys.
static void test_count(void **state) {
  (void)state;
  const char *const given = getenv("COUNT_KEYS");
  const uint32_t nr = given ? (uint32_t)strtoul(given, NULL, 10) : 160000;
  check_seed = check_seed_or(time_ns());
  uint64_t rng = check_seed, wait = 0;
  memset(&w, 0, sizeof(w));
  w.disk = simdisk_create();
  w.env = *simdisk_env(w.disk);
  uint8_t *const there = calloc(nr, 1);
  CHECK(there);
  struct remixdb_opts o = small_opts(0);
  o.cache_mb = 64;
  o.memtable_mb = 64;
  OK(xdb_open("/store", &o, &w.env, &w.x));
  CHECK(w.ref = remixdb_ref(w.x));
  shrink(w.x, (size_t)nr * 10, 0);
  w.x->compact.young_from = 2;
  char key[16];
  for (uint32_t i = 0; i < nr; i += 2) {
    CHECK(remixdb_put(w.ref, key, key_of(i, key), "a value of twenty b", 20));
    there[i] = 1;
  }
  CHECK(remixdb_compact(w.ref));
  count_is(w.ref, 0, nr, nr / 2, 0, 28);
  struct xdb_snapshot *const before = remixdb_snapshot(w.ref);
  for (uint32_t n = 0; n < nr / 8; n++) {
    const uint32_t i = (uint32_t)(rng_next(&rng) % nr);
    there[i] = rng_next(&rng) % 3 != 0;
    CHECK(there[i] ? remixdb_put(w.ref, key, key_of(i, key), "another of 20 bytes", 20)
                   : remixdb_del(w.ref, key, key_of(i, key)));
    if (++wait == nr / 30) CHECK(remixdb_flush(w.ref));
  }
  CHECK(memtable_count(xdb_super(w.x)->active) > 0);
  for (uint32_t n = 0; n < 40; n++) {
    uint32_t from = (uint32_t)(rng_next(&rng) % nr), to = from + (uint32_t)(rng_next(&rng) % (nr - from + 1));
    if (n < 4) from = 0, to = nr;
    if (n > 20) to = from + n < nr ? from + n : nr;
    uint64_t want = 0;
    for (uint32_t i = from; i < to; i++) want += there[i];
    count_is(w.ref, from, to, want, n > 20 ? 2 : nr / 100, 28);
  }
  struct xdb_ref *const old = remixdb_snapshot_ref(before);
  count_is(old, 0, nr, nr / 2, nr / 100, 28);
  remixdb_unref(old);
  remixdb_snapshot_release(before);
  free(there);
  world_close();
  simdisk_destroy(w.disk);
}

// An iterator in a space: its keys begin with bytes that its caller does not see.
static void test_space(void **state) {
  (void)state;
  check_seed = check_seed_or(1);
  memset(&w, 0, sizeof(w));
  w.disk = simdisk_create();
  w.env = *simdisk_env(w.disk);
  world_open(1);
  static const char *const spaces[] = {"aaaa", "aaab", "zzzz", "\xff\xff\xff\xff"}, *const keys[] = {"", "k", "kk",
                                                                                                     "l"};
  for (uint32_t i = 0; i < 16; i++) {
    char key[16];
    const uint32_t len = (uint32_t)snprintf(key, sizeof(key), "%s%s", spaces[i / 4], keys[i % 4]);
    CHECK(remixdb_put(w.ref, key, len, spaces[i / 4], 4));
    if (i % 5 == 4) CHECK(remixdb_flush(w.ref));
  }
  for (uint32_t n = 0; n < 12; n++) {
    const struct xdb_iter_opts o = {.space = kref(spaces[n % 4], 4),
                                    .bounds.to = {n / 4 == 1 ? "l" : NULL, 1},
                                    .prefix = {n / 4 == 2 ? "k" : NULL, 1}};
    const uint32_t low = n / 4 == 2, high = n / 4 ? 3 : 4;
    struct xdb_iter *it;
    struct kv_rec r;
    OK(xdb_iter_create_opts(w.ref, &o, &it));
    for (uint32_t i = low; i < high; i++) {
      if (i == low) OK(xdb_iter_seek(it, kref(NULL, 0)));
      else OK(xdb_iter_skip(it, 1));
      OK(xdb_iter_record(it, &r));
      CHECK(kv_eq(kref(r.key, r.klen), kref(keys[i], (uint32_t)strlen(keys[i]))) &&
            memcmp(r.val, spaces[n % 4], 4) == 0);
      CHECK(!xdb_iter_record_held(it, &r));
    }
    OK(xdb_iter_skip(it, 1));
    CHECK(!xdb_iter_valid(it));
    OK(xdb_iter_seek_for_prev(it, kref("zz", 2)));
    OK(xdb_iter_record(it, &r));
    CHECK(kv_eq(kref(r.key, r.klen), kref(keys[high - 1], (uint32_t)strlen(keys[high - 1]))));
    OK(xdb_iter_seek(it, kref(keys[1], 1)));
    OK(xdb_iter_record(it, &r));
    CHECK(kv_eq(kref(r.key, r.klen), kref(keys[1], 1)));
    xdb_iter_destroy(it);
  }
  world_close();
  simdisk_destroy(w.disk);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_nothing_beyond), cmocka_unit_test(test_keys_only),
                                     cmocka_unit_test(test_keys_only_many), cmocka_unit_test(test_keys_only_short),
                                     cmocka_unit_test(test_compact_range),  cmocka_unit_test(test_count),
                                     cmocka_unit_test(test_space)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
