// SPDX-License-Identifier: Apache-2.0
//
// remixdb_count over a million keys, after overwrites and deletes: how far it is off, and how little it looks at.
// COUNT_KEYS in the environment: with so many keys.
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/simdisk.h"
#include "tests/lib/slow.h"
#include "tests/lib/starve.h"
#include "tests/lib/store.h"
#include "remix/paged.h"
#include "store/idle.h"
#include "store/ref.h"
#include "table/block.h"
#include "view/count.h"
#include "view/super.h"
#include "xdb.h"

#define MILLION 1000000u

struct world {
  struct simdisk *disk;
  struct xdb *x;
  struct xdb_space *spaces[2];
  struct xdb_ref *ref;
  uint32_t nr;
  uint8_t *len;  // bytes of each key's value; 0: it is not there
  uint64_t rng;
};

static uint32_t key_of(uint32_t i, char buf[32]) { return (uint32_t)snprintf(buf, 32, "user:%011u", i * 3); }

// Puts the key with a value of 40 to 160 bytes, or deletes it.
static void change(struct world *w, uint32_t i, bool there) {
  static const char value[256] = "value";
  char key[32];
  const uint32_t len = key_of(i, key);
  w->len[i] = there ? (uint8_t)(40 + rng_next(&w->rng) % 121) : 0;
  CHECK(there ? remixdb_put(w->ref, key, len, value, w->len[i]) : remixdb_del(w->ref, key, len));
}

static uint32_t some(struct world *w) { return (uint32_t)(rng_next(&w->rng) % w->nr); }

static void world_init(struct world *w, uint32_t nr, size_t memtable, uint32_t young_from, bool spaces) {
  struct remixdb_opts o = small_opts(0);
  *w = (struct world){.disk = simdisk_create(), .nr = nr, .rng = check_seed};
  o.cache_mb = 64;
  o.memtable_mb = 1024;
  o.wal_mb = 4096;
  OK(xdb_open("/store", &o, simdisk_env(w->disk), &w->x));
  if (spaces) {
    struct xdb_ref *const other = remixdb_space_ref(w->spaces[0] = remixdb_space_open(w->x, "other", true));
    char key[32];
    for (uint32_t i = 0; i < nr / 4; i++) CHECK(remixdb_put(other, key, key_of(i, key), "other", 5));
    remixdb_unref(other);
    w->spaces[1] = remixdb_space_open(w->x, "counted", true);
  }
  CHECK((w->ref = spaces ? remixdb_space_ref(w->spaces[1]) : remixdb_ref(w->x)) && (w->len = calloc(nr, 1)));
  shrink(w->x, memtable, 2048);
  w->x->compact.young_from = young_from;
}

static void world_fini(struct world *w) {
  remixdb_unref(w->ref);
  for (uint32_t i = 0; i < 2; i++) remixdb_space_close(w->spaces[i]);
  remixdb_close(w->x);
  simdisk_destroy(w->disk);
  free(w->len);
}

// Bounds the records in a memtable to so many bytes, beside what an empty one takes. Call it right after a compaction.
static void bound_records(struct world *w, size_t bytes) {
  const struct memtable *const empty = xdb_super(w->x)->active;
  assert_int_equal(memtable_count(empty), 0);
  shrink(w->x, memtable_memory(empty) + bytes, 2048);
}

struct work {
  uint64_t leaves, lookups, clusters, segments, reads;
};

// Counts as remixdb_count does, and tells the work.
static struct work work_of(struct world *w, struct kref low, struct kref high) {
  struct count c = {.low = low, .high = high, .epoch = &w->x->epoch, .slot = &w->ref->slot};
  struct super *const v = xdb_ref_hold(w->ref, &c.moment);
  c.mem[0] = memtable_tree(v->active, w->ref->tree);
  c.mem[1] = super_frozen(v, w->ref->tree);
  c.version = version_tree(v->version, w->ref->tree);
  const uint64_t before = atomic_load(&w->x->io.nr_reads);
  OK(count_range(&c));
  const struct work t = {c.leaves, c.lookups, c.clusters, c.segments, atomic_load(&w->x->io.nr_reads) - before};
  // The keys alone are the same, for less work.
  struct count only = c;
  only.keys_only = true;
  OK(count_range(&only));
  CHECK(only.keys == c.keys && only.bytes == 0 && only.segments <= c.segments);
  if (c.clusters == 0) CHECK(only.segments == 0);
  xdb_super_drop(w->x, v);
  return t;
}

// The largest error of a kind of range, in parts of the keys (bytes) that are there.
struct off {
  double keys, bytes;
  double beyond;  // bytes as well, but a page more or less is no error: it may lie across the end of a small range
  struct work most;
};

static double off_by(uint64_t counted, uint64_t there) {
  const double d = (double)counted - (double)there;
  return (d < 0 ? -d : d) / (double)(there ? there : 1);
}

static void larger(uint64_t *most, uint64_t n) {
  if (n > *most) *most = n;
}

static void measure(struct world *w, uint32_t from, uint32_t to, bool open, struct off *off) {
  char low[32], high[32];
  const struct remixdb_range range = {{open ? NULL : low, key_of(from, low)}, {open ? NULL : high, key_of(to, high)}};
  uint64_t keys, bytes, want = 0, want_bytes = 0;
  for (uint32_t i = from; i < to; i++) {
    want += w->len[i] != 0;
    want_bytes += w->len[i] ? 16u + w->len[i] : 0;
  }
  CHECK(remixdb_count(w->ref, &range, &keys, &bytes));
  const double k = off_by(keys, want), b = off_by(bytes, want_bytes);
  if (k > off->keys) off->keys = k;
  if (b > off->bytes) off->bytes = b;
  const double beyond = b - BLOCK_PAGE / (double)(want_bytes ? want_bytes : 1);
  if (beyond > off->beyond) off->beyond = beyond;
  if (w->spaces[1]) return;  // its keys begin with the space's id
  const struct work t = work_of(w, open ? kref(NULL, 0) : kref(low, range.from.len),
                                open ? kref(NULL, 0) : kref(high, range.to.len));
  larger(&off->most.leaves, t.leaves);
  larger(&off->most.lookups, t.lookups);
  larger(&off->most.clusters, t.clusters);
  larger(&off->most.segments, t.segments);
  larger(&off->most.reads, t.reads);
}

// Ranges of a hundredth, a tenth, and the whole. The bounds are parts of what is there in the range.
static void check(struct world *w, const char *what, const double most[3], const double most_bytes[3]) {
  static const uint32_t parts[] = {100, 10, 1};
  for (uint32_t n = 0; n < 3; n++) {
    struct off off = {0};
    const uint32_t length = w->nr / parts[n];
    for (uint32_t round = 0; round < (n == 2 ? 2 : 8); round++) {
      const uint32_t from = n == 2 ? 0 : (uint32_t)(rng_next(&w->rng) % (w->nr - length));
      measure(w, from, from + length, n == 2 && round, &off);
    }
    const struct work *const t = &off.most;
    print_message("%s, 1/%u: off by %.3f %% of the keys, %.3f %% of the bytes; %llu leaves, %llu lookups, %llu places, "
                  "%llu segments, %llu reads\n",
                  what, parts[n], off.keys * 100, off.bytes * 100, (unsigned long long)t->leaves,
                  (unsigned long long)t->lookups, (unsigned long long)t->clusters, (unsigned long long)t->segments,
                  (unsigned long long)t->reads);
    if (off.keys > most[n] || off.beyond > most_bytes[n])
      fail_msg("TEST_SEED=%llu: %s, 1/%u", (unsigned long long)check_seed, what, parts[n]);
    CHECK(t->leaves <= 4 * WH_SAMPLE_LEAVES && t->lookups <= 2 * WH_SAMPLE + 512 * 32);
    CHECK(t->clusters <= 512 && t->segments <= 3 * 2048 + 16 * 256 && t->reads <= 8 + 2 * t->clusters);
  }
}

static uint32_t keys_of_test(uint32_t nr) {
  const char *const given = getenv("COUNT_KEYS");
  return given ? (uint32_t)strtoul(given, NULL, 10) : nr / SLOW;
}

// Half of the keys are overwritten, and three tenths deleted: in the memtable, in young views, and compacted.
static void changed(uint32_t young_from, size_t memtable_part, const char *what) {
  static const double most[] = {0.01, 0.01, 0.01}, bytes[] = {0.08, 0.02, 0.01};
  struct world w;
  const uint32_t nr = keys_of_test(young_from ? MILLION / 4 : MILLION);
  world_init(&w, nr, (size_t)nr * 200, 0, false);
  for (uint32_t i = 0; i < nr; i++) change(&w, i, true);
  CHECK(remixdb_compact(w.ref));
  check(&w, "loaded", most, bytes);
  w.x->compact.young_from = young_from;
  bound_records(&w, memtable_part ? (size_t)nr * 160 / memtable_part : (size_t)nr * 500);
  for (uint32_t n = 0; n < nr / 10 * 8; n++) {
    const uint32_t i = some(&w);
    const bool put = n % 8 < 5;
    if (w.len[i]) change(&w, i, put);  // no new keys
  }
  for (uint32_t n = 0; young_from && n < 40 && xdb_super(w.x)->version->nr_young == 0; n++) {
    for (uint32_t k = 0; k < nr / 60; k++) change(&w, some(&w), k % 3 != 0);
    CHECK(remixdb_flush(w.ref));
  }
  if (young_from) CHECK(xdb_super(w.x)->version->nr_young > 0);
  else CHECK(memtable_count(xdb_super(w.x)->active) > 0);
  check(&w, what, most, bytes);
  CHECK(remixdb_compact(w.ref));
  check(&w, "compacted", most, bytes);
  world_fini(&w);
}

static void test_memtable(void **state) {
  (void)state;
  changed(0, 0, "in the memtable");
}

static void test_young(void **state) {
  (void)state;
  changed(2, 30, "in young views");
}

// New keys, overwrites and deletes of keys that may be there or not: the sample has to tell them apart.
static void mixed(uint32_t young_from, size_t memtable_part, bool spaces, const char *what) {
  static const double most[] = {0.06, 0.02, 0.01}, bytes[] = {0.08, 0.05, 0.03};
  struct world w;
  const uint32_t nr = keys_of_test(MILLION / 4);
  world_init(&w, nr, (size_t)nr * 200, 0, spaces);
  for (uint32_t i = 0; i < nr; i++)
    if (rng_next(&w.rng) % 4) change(&w, i, true);
  CHECK(remixdb_compact(w.ref));
  w.x->compact.young_from = young_from;
  bound_records(&w, memtable_part ? (size_t)nr * 160 / memtable_part : (size_t)nr * 500);
  for (uint32_t n = 0; n < nr / 5; n++) change(&w, some(&w), rng_next(&w.rng) % 3 != 0);
  check(&w, what, most, bytes);
  world_fini(&w);
}

static void test_mixed(void **state) {
  (void)state;
  mixed(0, 0, false, "mixed in the memtable");
  mixed(2, 30, false, "mixed in young views");
  mixed(0, 0, true, "mixed in a space");
}

// All keys in the memtable, the last of them in a stretch that grew at once: its leaves are newer than the guide.
static void test_only_memtable(void **state) {
  (void)state;
  static const double most[] = {0.02, 0.01, 0.01}, bytes[] = {0.08, 0.04, 0.02};
  struct world w;
  const uint32_t nr = keys_of_test(MILLION);
  world_init(&w, nr, (size_t)nr * 500, 0, false);
  for (uint32_t i = 0; i < nr; i++)
    if (i % 4 == 0) change(&w, i, true);
  for (uint32_t i = nr / 2; i < nr / 2 + nr / 20; i++) change(&w, i, true);
  for (uint32_t n = 0; n < nr / 4; n++) {
    const uint32_t i = some(&w);
    if (w.len[i]) change(&w, i, n % 3 != 0);
  }
  check(&w, "only memtable", most, bytes);
  world_fini(&w);
}

// Every other new record overwrites an older one: a sample at equal distances would have one kind only.
static void test_periodic(void **state) {
  (void)state;
  static const double most[] = {0.06, 0.06, 0.04}, bytes[] = {0.1, 0.08, 0.06};
  struct world w;
  const uint32_t nr = keys_of_test(MILLION / 4);
  world_init(&w, nr, (size_t)nr * 200, 0, false);
  for (uint32_t i = 0; i < nr; i += 2) change(&w, i, true);
  CHECK(remixdb_compact(w.ref));
  bound_records(&w, (size_t)nr * 500);
  for (uint32_t i = 0; i < nr; i++) change(&w, i, true);
  check(&w, "periodic", most, bytes);
  world_fini(&w);
}

// The slot of the thread that counts: NULL at other times. Reads while it is inside an epoch, and outside.
static const struct epoch_slot *counting;
static uint64_t reads_inside, reads_outside;

static ssize_t slot_read(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  if (counting) (*(atomic_load(&counting->at) ? &reads_inside : &reads_outside))++;
  return simdisk_env(e->priv)->ops->pread(e, fd, buf, len, off);
}

// Young views that are paged: a page may leave memory while others are read, so every read of one is inside an epoch.
static void test_paged_young(void **state) {
  (void)state;
  const uint32_t nr = 20000;
  struct remixdb_opts o = small_opts(0);
  struct simdisk *const disk = simdisk_create();
  struct env_ops ops = *simdisk_env(disk)->ops;
  struct env env = {.ops = &ops, .priv = disk};
  struct xdb *x;
  const struct remixdb_range all = {{NULL, 0}, {NULL, 0}};
  char key[32];
  uint64_t keys;
  ops.pread = slot_read;
  o.memtable_mb = 1024;
  starve(true);
  OK(xdb_open("/store", &o, &env, &x));
  shrink(x, (size_t)nr * 800, 2048);
  struct xdb_ref *const ref = remixdb_ref(x);
  for (uint32_t i = 0; i < nr; i++) CHECK(remixdb_put(ref, key, key_of(i, key), "value", 5));
  CHECK(remixdb_compact(ref));
  x->compact.young_from = 2;
  for (uint32_t n = 0; n < 40 && xdb_super(x)->version->nr_young == 0; n++) {
    for (uint32_t i = n; i < nr; i += 16) CHECK(remixdb_put(ref, key, key_of(i, key), "other", 5));
    CHECK(remixdb_flush(ref));
  }
  const struct version *const v = xdb_super(x)->version;
  assert_true(v->nr_young > 0);
  for (uint32_t i = 0; i < v->nr_young; i++) assert_true(remix_is_paged(part_young(v->parts[v->young[i]])));
  counting = &ref->slot;
  CHECK(remixdb_count(ref, &all, &keys, NULL));
  counting = NULL;
  assert_true(off_by(keys, nr) < 0.05);
  assert_true(reads_inside > 0);
  assert_int_equal(reads_outside, 0);
  starve(false);
  remixdb_unref(ref);
  remixdb_close(x);
  simdisk_destroy(disk);
}

int main(void) {
  (void)check_seed_start();
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_memtable), cmocka_unit_test(test_young),
                                     cmocka_unit_test(test_mixed),    cmocka_unit_test(test_only_memtable),
                                     cmocka_unit_test(test_periodic), cmocka_unit_test(test_paged_young)};
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
