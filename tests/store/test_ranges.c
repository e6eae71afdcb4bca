// SPDX-License-Identifier: Apache-2.0
//
// Range deletion: what it writes, what it costs the readers afterwards, and what waits for it. The model of all calls,
// the crash tests and the rounds against their model check its results.
//
// TEST_SEED in the environment repeats a run.
#define REMIX_COUNTERS 1
#include "remix/cursor.c"
#include "remix/remix.c"

#include <dirent.h>

#include "admin/checkpoint.h"
#include "store/idle.h"
#include "store/ranges.h"
#include "tests/lib/fault.h"
#include "tests/lib/store.h"

#define MANY 1100000u

static struct remixdb_opts some_opts(void) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.workers = 1;
  o.memtable_mb = 8;
  o.cache_mb = 64;
  return o;
}

static uint32_t key_of(uint32_t i, char *buf) { return (uint32_t)sprintf(buf, "%08u", i); }

static void load(struct xdb_ref *r, uint32_t nr) {
  char key[16];
  for (uint32_t i = 0; i < nr; i++) CHECK(remixdb_put(r, key, key_of(i, key), key, 8));
  CHECK(remixdb_flush(r));
}

static bool del(struct xdb_ref *r, uint32_t from, uint32_t to) {
  char a[16], b[16];
  const struct remixdb_range range = {{a, key_of(from, a)}, {b, key_of(to, b)}};
  return remixdb_del_range(r, &range);
}

static uint64_t figure(struct xdb *x, const char *name) {
  uint64_t value = 0;
  CHECK(remixdb_figure(x, name, &value));
  return value;
}

// All bytes that the store has written to tables, indexes and the log.
static uint64_t written(struct xdb *x) {
  struct wal_stats ws;
  wal_stats(x->wal, &ws);
  return atomic_load(&x->compact.stats.table_bytes) + atomic_load(&x->compact.stats.remix_bytes) + ws.bytes;
}

static uint32_t keys_there(struct xdb_ref *r) {
  struct xdb_iter *const it = remixdb_iter_create(r);
  uint32_t n = 0;
  for (remixdb_iter_seek(it, NULL, 0); remixdb_iter_valid(it); remixdb_iter_skip1(it)) n++;
  CHECK(remixdb_iter_status(it) == REMIXDB_OK);
  remixdb_iter_destroy(it);
  return n;
}

// A million keys of whole partitions go, and hardly anything is written. A snapshot still has them; without it their
// files are gone.
static void test_many(void **state) {
  (void)state;
  const struct remixdb_opts o = some_opts();
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  CHECK(r);
  shrink(x, 4u << 20, 256);
  load(r, MANY);
  OK(xdb_wait_idle(x));
  const struct version *const v = xdb_super(x)->version;
  CHECK(v->nr_parts > 4);
  char from[16], key[16];
  const struct kref anchor = part_anchor(v->parts[1]);
  CHECK(anchor.len <= 8);
  memcpy(from, anchor.ptr, anchor.len);
  from[anchor.len] = 0;
  struct xdb_snapshot *const snap = remixdb_snapshot(r);
  struct xdb_ref *const past = remixdb_snapshot_ref(snap);
  const uint64_t before = written(x);
  const struct remixdb_range range = {{from, anchor.len}, {NULL, 0}};
  CHECK(remixdb_del_range(r, &range));
  const uint64_t cost = written(x) - before;
  const uint32_t left = keys_there(r);
  print_message("%u keys gone, %llu bytes written besides CURRENT\n", MANY - left, (unsigned long long)cost);
  CHECK(MANY - left >= 1000000 && cost < 100000);
  CHECK(xdb_super(x)->version->nr_parts == 1);
  CHECK(!remixdb_probe(r, key, key_of(MANY - 1, key)) && remixdb_probe(r, key, key_of(0, key)));
  CHECK(remixdb_probe(past, key, key_of(MANY - 1, key)) && keys_there(past) == MANY);
  remixdb_unref(past);
  remixdb_snapshot_release(snap);
  OK(xdb_wait_idle(x));
  CHECK(figure(x, "table_entries") == left);
  remixdb_unref(r);
  remixdb_close(x);
}

// A partition is cut. A seek before the place, and a step across it, touch as many segments as if the keys had never
// been there: the counts of live entries lead over them.
static void test_across(void **state) {
  (void)state;
  const struct remixdb_opts o = some_opts();
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  CHECK(r);
  load(r, 60000);
  CHECK(remixdb_compact(r));
  OK(xdb_wait_idle(x));
  CHECK(xdb_super(x)->version->nr_parts == 1);
  CHECK(del(r, 1000, 50000));
  const struct remix *const v = xdb_super(x)->version->parts[0]->remix;
  CHECK(v->nr_entries == 60000 && v->nr_keys == 11000);
  struct xdb_iter *const it = remixdb_iter_create(r);
  char key[16];
  uint32_t klen;
  remixdb_iter_seek(it, key, key_of(999, key));
  CHECK(remixdb_iter_valid(it));
  const uint64_t segments = atomic_load(&remix_counters.segments), probes = atomic_load(&remix_counters.probes),
                 reads = atomic_load(&remix_counters.records) + atomic_load(&remix_counters.key_reads);
  remixdb_iter_skip1(it);
  CHECK(remixdb_iter_valid(it) && remixdb_iter_peek(it, key, &klen, NULL, NULL) && memcmp(key, "00050000", 8) == 0);
  CHECK(atomic_load(&remix_counters.segments) - segments <= 2);
  CHECK(atomic_load(&remix_counters.probes) - probes <= 40);  // there are 1,900 segments
  CHECK(atomic_load(&remix_counters.records) + atomic_load(&remix_counters.key_reads) - reads <= 4);
  remixdb_iter_prev(it);
  CHECK(remixdb_iter_valid(it) && remixdb_iter_peek(it, key, &klen, NULL, NULL) && memcmp(key, "00000999", 8) == 0);
  const uint64_t sought = atomic_load(&remix_counters.segments), read = atomic_load(&remix_counters.key_reads);
  remixdb_iter_seek(it, key, key_of(20000, key));
  CHECK(atomic_load(&remix_counters.segments) - sought <= 2 && atomic_load(&remix_counters.key_reads) - read == 1);
  CHECK(remixdb_iter_valid(it) && remixdb_iter_peek(it, key, &klen, NULL, NULL) && memcmp(key, "00050000", 8) == 0);
  remixdb_iter_destroy(it);
  CHECK(keys_there(r) == 11000);
  uint64_t keys, bytes;
  CHECK(remixdb_count(r, &(struct remixdb_range){{NULL, 0}, {NULL, 0}}, &keys, &bytes) && keys == 11000);
  // the next merge leaves the records out
  CHECK(remixdb_compact(r) && figure(x, "table_entries") == 11000 && keys_there(r) == 11000);
  remixdb_unref(r);
  remixdb_close(x);
}

// A few keys need no round and no CURRENT.
static void test_few(void **state) {
  (void)state;
  const struct remixdb_opts o = some_opts();
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  CHECK(r);
  load(r, 60000);
  OK(xdb_wait_idle(x));
  const uint64_t number = xdb_super(x)->version->number, rounds = atomic_load(&x->compact.stats.rounds);
  CHECK(del(r, 100, 200) && del(r, 200, 200 + RANGES_FEW) && del(r, 7, 3) && del(r, 100, 4000));
  CHECK(xdb_super(x)->version->number == number && atomic_load(&x->compact.stats.rounds) == rounds);
  CHECK(keys_there(r) == 60000 - (200 + RANGES_FEW - 100));
  CHECK(del(r, 10000, 10000 + 2 * RANGES_FEW));
  CHECK(xdb_super(x)->version->number > number && atomic_load(&x->compact.stats.rounds) == rounds);
  CHECK(keys_there(r) == 60000 - (200 + RANGES_FEW - 100) - 2 * RANGES_FEW);
  remixdb_unref(r);
  remixdb_close(x);
}

// More keys, too, are deleted one by one where they are a small part of what an edit would write again, and the
// tombstones a small part of the memtable. A partition that goes as a whole goes by an edit.
static void test_small_part(void **state) {
  (void)state;
  const struct remixdb_opts o = some_opts();
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  CHECK(r);
  x->ranges = (struct range_limits){100, 25, 600};
  load(r, 60000);
  CHECK(remixdb_compact(r));
  OK(xdb_wait_idle(x));
  CHECK(xdb_super(x)->version->nr_parts == 1 && 60000 / RANGES_ENTRIES > 900);
  uint64_t number = xdb_super(x)->version->number;
  CHECK(del(r, 10000, 10600) && del(r, 20000, 20600) && xdb_super(x)->version->number == number);
  CHECK(keys_there(r) == 58800);
  // more than `most`
  CHECK(del(r, 30000, 30601) && xdb_super(x)->version->number > number && keys_there(r) == 58199);
  number = xdb_super(x)->version->number;
  // more than the part of the index
  x->ranges.most = UINT64_MAX;
  CHECK(del(r, 40000, 40800) && xdb_super(x)->version->number == number);
  CHECK(del(r, 41000, 42000) && xdb_super(x)->version->number > number && keys_there(r) == 56399);
  number = xdb_super(x)->version->number;
  // nearly all of them are deleted already
  CHECK(del(r, 20000, 20610) && xdb_super(x)->version->number > number && keys_there(r) == 56389);
  number = xdb_super(x)->version->number;
  // more than a part of the memtable
  CHECK(del(r, 50000, 50500) && xdb_super(x)->version->number == number);
  shrink(x, 400u << 10, 32);
  CHECK(del(r, 51000, 51500) && xdb_super(x)->version->number > number && keys_there(r) == 55389);
  number = xdb_super(x)->version->number;
  CHECK(del(r, 0, 60000) && xdb_super(x)->version->number > number && keys_there(r) == 0);
  remixdb_unref(r);
  remixdb_close(x);
}

// Bad arguments, and ranges that are empty.
static void test_refused(void **state) {
  (void)state;
  const struct remixdb_opts o = some_opts();
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  struct xdb_batch *const b = remixdb_batch_create();
  CHECK(r && b && remixdb_put(r, "", 0, "x", 1) && remixdb_put(r, "k", 1, "x", 1));
  const struct remixdb_range none = {{NULL, 0}, {"", 0}}, wrong = {{"z", 1}, {"a", 1}}, all = {{NULL, 0}, {NULL, 0}};
  CHECK(remixdb_del_range(r, &none) && remixdb_del_range(r, &wrong) && keys_there(r) == 2);
  CHECK(remixdb_batch_del_range(b, &none) && remixdb_batch_del_range(b, &wrong) && remixdb_batch_count(b) == 0);
  CHECK(!remixdb_del_range(r, NULL) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_batch_del_range(b, NULL) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_del_range(NULL, &all) && remixdb_errcode() == REMIXDB_INVALID);
  struct xdb_snapshot *const snap = remixdb_snapshot(r);
  struct xdb_ref *const past = remixdb_snapshot_ref(snap);
  CHECK(!remixdb_del_range(past, &all) && remixdb_errcode() == REMIXDB_READONLY);
  remixdb_unref(past);
  remixdb_snapshot_release(snap);
  // a transaction deletes what it sees
  struct xdb_txn *const t = remixdb_txn_begin(x);
  struct xdb_ref *const own = remixdb_txn_ref(t, NULL);
  CHECK(remixdb_put(own, "own", 3, "x", 1) && remixdb_del_range(own, &all) && keys_there(own) == 0);
  CHECK(keys_there(r) == 2 && remixdb_txn_commit(t) && keys_there(r) == 0);
  remixdb_batch_destroy(b);
  remixdb_unref(r);
  remixdb_close(x);
}

// ---- keys that are deleted already

static uint64_t memtable_bytes(struct xdb *x) { return wh_memory(memtable_tree(xdb_super(x)->active, TREE_UNNAMED)); }

// A range that keeps its beginning is deleted again and again, a little longer each time. Each key is logged once, and
// the memtable gets one tombstone of it; so it is by a transaction and by a batch.
static void test_again(void **state) {
  (void)state;
  const struct remixdb_opts o = some_opts();
  struct xdb *x = quick_open(&o);
  struct xdb_ref *r = remixdb_ref(x);
  struct xdb_batch *const b = remixdb_batch_create();
  char key[16];
  CHECK(r && b);
  load(r, 60000);
  OK(xdb_wait_idle(x));
  uint64_t records = figure(x, "log.records");
  const uint64_t bytes = memtable_bytes(x);
  for (uint32_t i = 1; i <= 500; i++) CHECK(del(r, 0, 4 * i));
  CHECK(figure(x, "log.records") - records == 2000 && memtable_bytes(x) - bytes < 1u << 20);
  CHECK(keys_there(r) == 58000);
  // a key that has come back is deleted once more
  CHECK(remixdb_put(r, key, key_of(1000, key), "back", 4));
  records = figure(x, "log.records");
  CHECK(del(r, 0, 2000) && figure(x, "log.records") - records == 1 && del(r, 0, 2000) && keys_there(r) == 58000);
  CHECK(figure(x, "log.records") - records == 1);
  struct xdb_txn *const t = remixdb_txn_begin(x);
  const struct remixdb_range longer = {{NULL, 0}, {key, key_of(2001, key)}};
  CHECK(remixdb_del_range(remixdb_txn_ref(t, NULL), &longer) && remixdb_txn_commit(t));
  CHECK(figure(x, "log.records") - records == 2);
  const struct remixdb_range longest = {{NULL, 0}, {key, key_of(2002, key)}};
  CHECK(remixdb_batch_del_range(b, &longest) && remixdb_batch_put(b, "00000500", 8, "x", 1) && remixdb_write(r, b));
  CHECK(figure(x, "log.records") - records == 4 && keys_there(r) == 57999 && del(r, 0, 2002));
  // the log alone knows all that
  CHECK(remixdb_sync(r));
  remixdb_batch_destroy(b);
  remixdb_unref(r);
  x->leave_log = true;
  remixdb_close(x);
  x = quick_open(&o);
  r = remixdb_ref(x);
  CHECK(r && keys_there(r) == 57998 && !remixdb_probe(r, "00000500", 8));
  CHECK(remixdb_flush(r) && remixdb_compact(r) && keys_there(r) == 57998);
  remixdb_unref(r);
  remixdb_close(x);
}

static void make_group(struct range_group *g, const char *from, const char *to) {
  struct compact_range *const range = mem_alloc(sizeof(*range));
  CHECK(range);
  *range = (struct compact_range){kref(from, (uint32_t)strlen(from)), kref(to, (uint32_t)strlen(to))};
  *g = (struct range_group){.few = RANGES_FEW};
  g->trees[TREE_UNNAMED].ranges = range;
  g->trees[TREE_UNNAMED].nr_ranges = 1;
  OK(range_group_ready(g));
}

// Between the gathering and the commit a key comes back that has been left out, and another one is deleted; or the
// memtable is frozen.
static void test_between(void **state) {
  (void)state;
  const struct remixdb_opts o = some_opts();
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  struct range_group g;
  char key[16];
  CHECK(r);
  load(r, 1000);
  CHECK(del(r, 100, 110));
  struct xdb_snapshot *const snap = remixdb_snapshot(r);
  struct xdb_ref *const past = remixdb_snapshot_ref(snap);
  for (uint32_t frozen = 0; frozen < 2; frozen++) {
    uint64_t moment;
    make_group(&g, "00000100", "00000120");
    struct super *const v = xdb_ref_hold(r, &moment);
    OK(range_group_gather(&g, x, &r->slot, v, v->version));
    CHECK(g.trees[TREE_UNNAMED].nr == 10);
    if (frozen) CHECK(remixdb_flush(r));
    else CHECK(remixdb_put(r, key, key_of(105, key), "back", 4) && remixdb_del(r, key, key_of(115, key)));
    const enum remixdb_status s = range_group_commit(&g, x, &r->slot, v, NULL);
    CHECK(s == (frozen ? REMIXDB_ABORTED : REMIXDB_OK));
    xdb_super_drop(x, v);
    range_group_fini(&g);
    if (frozen) break;
    CHECK(keys_there(r) == 980 && !remixdb_probe(r, key, key_of(105, key)));
    CHECK(keys_there(past) == 990 && remixdb_probe(past, key, key_of(115, key)));
    CHECK(remixdb_flush(r));
    for (uint32_t i = 100; i < 120; i++) CHECK(remixdb_put(r, key, key_of(i, key), key, 8));
    CHECK(remixdb_flush(r) && del(r, 100, 110));
  }
  CHECK(keys_there(r) == 990 && keys_there(past) == 990);
  remixdb_unref(past);
  remixdb_snapshot_release(snap);
  remixdb_unref(r);
  remixdb_close(x);
}

// ---- threads

#define GENERATIONS 150u
#define DATA 200u

struct team {
  struct xdb *x;
  _Atomic bool stop;
  _Atomic uint32_t torn, looks;
};

// Puts elsewhere, so that memtables are frozen and rounds run all the time.
static void *put_on(void *arg) {
  struct team *const t = arg;
  struct xdb_ref *const r = remixdb_ref(t->x);
  THREAD_CHECK(r);
  static const char value[900];
  for (uint32_t i = 0; !atomic_load(&t->stop); i++) {
    char key[16];
    THREAD_CHECK(remixdb_put(r, key, (uint32_t)sprintf(key, "z%07u", i * 7919u % 3000u), value, sizeof(value)));
  }
  remixdb_unref(r);
  return NULL;
}

// Sees the keys of one generation, all of them.
static void *look_on(void *arg) {
  struct team *const t = arg;
  struct xdb_ref *const r = remixdb_ref(t->x);
  THREAD_CHECK(r);
  while (!atomic_load(&t->stop)) {
    struct xdb_iter *const it = remixdb_iter_create(r);
    uint32_t n = 0, first = 0;
    bool same = true;
    for (remixdb_iter_seek(it, "d", 1); remixdb_iter_valid(it); remixdb_iter_skip1(it)) {
      uint32_t klen, vlen, generation;
      const char *const key = remixdb_iter_key(it, &klen);
      if (key[0] != 'd') break;
      memcpy(&generation, remixdb_iter_value(it, &vlen), sizeof(generation));
      if (n++ == 0) first = generation;
      same = same && generation == first;
    }
    THREAD_CHECK(remixdb_iter_status(it) == REMIXDB_OK);
    remixdb_iter_destroy(it);
    if (n != DATA || !same) atomic_fetch_add(&t->torn, 1);
    atomic_fetch_add(&t->looks, 1);
  }
  remixdb_unref(r);
  return NULL;
}

// Each batch deletes all data as a range, and then puts the data of the next generation, under other keys.
static void generations(struct xdb_ref *r, uint32_t from, uint32_t to) {
  struct xdb_batch *const b = remixdb_batch_create();
  const struct remixdb_range data = {{"d", 1}, {"e", 1}};
  for (uint32_t g = from; g < to; g++) {
    remixdb_batch_clear(b);
    CHECK(remixdb_batch_put(b, "d-before", 8, &g, sizeof(g)) && remixdb_batch_del_range(b, &data));
    for (uint32_t i = 0; i < DATA; i++) {
      char key[16];
      CHECK(remixdb_batch_put(b, key, (uint32_t)sprintf(key, "d%05u", i * 3 + g % 3), &g, sizeof(g)));
    }
    CHECK(remixdb_write(r, b));
    if (g % 10 == 9) CHECK(remixdb_flush(r));
  }
  remixdb_batch_destroy(b);
}

static void test_threads(void **state) {
  (void)state;
  for (uint32_t how = 0; how < 2; how++) {
    setup_again();
    const struct remixdb_opts o = some_opts();
    struct team t = {.x = quick_open(&o)};
    struct xdb_ref *const r = remixdb_ref(t.x);
    CHECK(r);
    shrink(t.x, 300u << 10, 32);
    if (how) t.x->ranges = (struct range_limits){0, 0, 0};  // by edits
    generations(r, 0, 1);
    pthread_t threads[4];
    for (uint32_t i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, i < 2 ? put_on : look_on, &t) == 0);
    generations(r, 1, GENERATIONS);
    atomic_store(&t.stop, true);
    for (uint32_t i = 0; i < 4; i++) (void)pthread_join(threads[i], NULL);
    print_message("%u looks\n", atomic_load(&t.looks));
    if (atomic_load(&t.torn)) fail_msg("%u looks saw a part", atomic_load(&t.torn));
    CHECK(remixdb_verify(r));
    remixdb_unref(r);
    remixdb_close(t.x);
  }
}

// ---- a store that is opened with read_only makes the edits of its log in memory

static void copy_all(const char *from, const char *to) {
  CHECK(mkdir(to, 0777) == 0);
  DIR *const d = opendir(from);
  CHECK(d);
  for (const struct dirent *e; (e = readdir(d)) != NULL;) {
    char a[4 * TEMP_DIR], b[4 * TEMP_DIR];
    if (e->d_type != DT_REG) continue;
    (void)snprintf(a, sizeof(a), "%s/%s", from, e->d_name);
    (void)snprintf(b, sizeof(b), "%s/%s", to, e->d_name);
    copy_file(a, b);
  }
  (void)closedir(d);
}

// Makes the older and the young view of a partition, as they are before the deletion.
static void load_views(struct xdb *x, struct xdb_ref *r) {
  char key[16];
  load(r, 60000);
  CHECK(remixdb_compact(r));
  for (uint32_t i = 0; i < 60000; i += 600) CHECK(remixdb_put(r, key, key_of(i, key), "new", 3));
  CHECK(remixdb_flush(r));
  const struct version *const v = version_tree(xdb_super(x)->version, r->tree);
  CHECK(v->nr_parts == 1 && part_remix(v->parts[0]) && part_young(v->parts[0]));
}

// Makes a store in `at` whose log has the deletion of a range in both trees, and whose CURRENT has not.
static void make_unsaved(const char *at) {
  char from[4 * TEMP_DIR], to[4 * TEMP_DIR], saved[4 * TEMP_DIR], key[16];
  const struct remixdb_opts o = some_opts();
  struct xdb *const x = quick_open(&o);
  x->compact.young_from = 1;
  struct xdb_space *const space = remixdb_space_open(x, "space", true);
  struct xdb_ref *const refs[] = {remixdb_ref(x), remixdb_space_ref(space)};
  for (uint32_t i = 0; i < 2; i++) load_views(x, refs[i]);
  OK(xdb_wait_idle(x));
  struct xdb_snapshot *const snap = remixdb_snapshot(refs[0]);  // the older files stay
  (void)snprintf(from, sizeof(from), "%s/CURRENT", dir);
  (void)snprintf(saved, sizeof(saved), "%s/saved", dir);
  copy_file(from, saved);
  for (uint32_t i = 0; i < 2; i++) {
    CHECK(del(refs[i], 1000, 50000));
    CHECK(remixdb_put(refs[i], key, key_of(2000, key), "back", 4));
  }
  CHECK(remixdb_sync(refs[0]));
  copy_all(dir, at);
  (void)snprintf(from, sizeof(from), "%s/saved", at);
  (void)snprintf(to, sizeof(to), "%s/CURRENT", at);
  CHECK(rename(from, to) == 0);
  remixdb_snapshot_release(snap);
  for (uint32_t i = 0; i < 2; i++) remixdb_unref(refs[i]);
  remixdb_space_close(space);
  remixdb_close(x);
}

static void check_edited(struct xdb *x) {
  struct xdb_space *const space = remixdb_space_open(x, "space", false);
  CHECK(space);
  struct xdb_ref *const refs[] = {remixdb_ref(x), remixdb_space_ref(space)};
  for (uint32_t i = 0; i < 2; i++) {
    char key[16], value[8];
    uint32_t len;
    CHECK(keys_there(refs[i]) == 11001);
    CHECK(remixdb_get(refs[i], key, key_of(2000, key), value, &len) && len == 4);
    CHECK(remixdb_get(refs[i], key, key_of(600, key), value, &len) && len == 3);
    CHECK(!remixdb_probe(refs[i], key, key_of(3000, key)));
    remixdb_unref(refs[i]);
  }
  remixdb_space_close(space);
}

// Its files are whole all the same, and a checkpoint has files of what it reads. A checkpoint that fails leaves
// nothing.
static void test_read_only(void **state) {
  (void)state;
  char crashed[3 * TEMP_DIR], copy[3 * TEMP_DIR];
  (void)snprintf(crashed, sizeof(crashed), "%s/crashed", dir);
  (void)snprintf(copy, sizeof(copy), "%s/copy", dir);
  make_unsaved(crashed);
  struct remixdb_opts o = some_opts();
  o.read_only = true;
  struct xdb *x;
  OK(xdb_open(crashed, &o, quick_env(), &x));
  check_edited(x);
  struct xdb_ref *const r = remixdb_ref(x);
  CHECK(remixdb_verify(r));
  bool failed = true;
  for (int64_t n = 1; failed; n++) {
    fault_mem_set(n);
    const enum remixdb_status s = checkpoint_make(r, copy);
    failed = fault_mem_end();
    CHECK(s == REMIXDB_NOMEM || s == REMIXDB_OK);
    CHECK((access(copy, F_OK) == 0) == (s == REMIXDB_OK));
    if (failed && s == REMIXDB_OK) CHECK(remixdb_destroy(copy));
  }
  remixdb_unref(r);
  remixdb_close(x);
  o.read_only = false;
  OK(xdb_open(copy, &o, quick_env(), &x));
  check_edited(x);
  struct xdb_ref *const c = remixdb_ref(x);
  CHECK(remixdb_verify(c) && remixdb_compact(c) && remixdb_verify(c));
  remixdb_unref(c);
  check_edited(x);
  remixdb_close(x);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_many, setup, teardown),
      cmocka_unit_test_setup_teardown(test_across, setup, teardown),
      cmocka_unit_test_setup_teardown(test_few, setup, teardown),
      cmocka_unit_test_setup_teardown(test_small_part, setup, teardown),
      cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
      cmocka_unit_test_setup_teardown(test_again, setup, teardown),
      cmocka_unit_test_setup_teardown(test_between, setup, teardown),
      cmocka_unit_test_setup_teardown(test_threads, setup, teardown),
      cmocka_unit_test_setup_teardown(test_read_only, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
