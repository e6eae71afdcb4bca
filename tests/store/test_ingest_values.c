// SPDX-License-Identifier: Apache-2.0
//
// The value files of ingests, and the collection of garbage beside them. While an ingest is under way, and at each
// change of the disk that its commit makes, a collection goes on: it takes no file of the ingest before CURRENT names
// the tables, and takes them like all others afterwards. After a power cut at each of these places, and after an ingest
// was given up, the directory has no value file that the store does not need.
#include "tests/lib/check.h"

#include <pthread.h>
#include <stdio.h>

#include "store/collect.h"
#include "store/value_pace.h"
#include "store/values.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/store.h"
#include "xdb.h"

#define KEYS 90u
#define FULL (128u << 10)  // bytes of a value file: about seven values
#define MINE_MOST 64u
#define CUTS 300u

static struct simdisk *disk;
static struct env_ops ops;
static struct env env;
static struct xdb *x;
static struct xdb_ref *ref;
static uint8_t now[KEYS];  // the turn in which a key was written
static uint8_t *val, *got;

static uint32_t key_of(uint32_t i, char buf[16]) { return (uint32_t)snprintf(buf, 16, "%06u", i); }
static uint32_t len_of(uint32_t i, uint8_t turn) { return 17000 + (i * 37 + turn * 101) % 1000; }
static void fill(uint32_t i, uint8_t turn) {
  uint64_t n = i * 1000003ull + turn;
  for (uint32_t at = 0; at < len_of(i, turn); at++) val[at] = (uint8_t)(rng_next(&n) >> 32);
}

static void open_on(struct env *e) {
  struct remixdb_opts o = small_opts(0);
  o.io = "sync";
  o.compression = REMIXDB_COMPRESSION_NONE;
  OK(xdb_open("/store", &o, e, &x));
  shrink(x, 256 << 10, 20);
  x->values.full = x->compact.values.full = FULL;
  CHECK(ref = remixdb_ref(x));
}

static void close_it(void) {
  remixdb_unref(ref);
  remixdb_close(x);
}

static void put(uint32_t i, uint8_t turn) {
  char key[16];
  fill(i, turn);
  CHECK(remixdb_put(ref, key, key_of(i, key), val, len_of(i, turn)));
  now[i] = turn;
}

static bool is(uint32_t i, uint8_t turn) {
  char key[16];
  uint32_t len;
  fill(i, turn);
  CHECK_SAYS(remixdb_getn(ref, key, key_of(i, key), got, 20000, &len), "key %u", i);
  return len == len_of(i, turn) && memcmp(got, val, len) == 0;
}

static void all_are(const uint8_t *turns) {
  for (uint32_t i = 0; i < KEYS; i++) CHECK_SAYS(is(i, turns[i]), "key %u is not that of turn %u", i, turns[i]);
}

// ---- value files of the directory

struct numbers {
  uint64_t all[512];
  uint32_t nr;
};

static bool add_number(void *arg, const char *name) {
  struct numbers *const n = arg;
  char *end;
  const uint64_t number = strtoull(name, &end, 10);
  if (end == name || strcmp(end, ".val") != 0) return true;
  CHECK(n->nr < 512);
  n->all[n->nr++] = number;
  return true;
}

static struct numbers list(struct simdisk *d) {
  struct numbers n = {.nr = 0};
  OK(paths_list(simdisk_env(d), "/store", add_number, &n));
  return n;
}

static bool has(const struct numbers *n, uint64_t number) {
  for (uint32_t i = 0; i < n->nr; i++)
    if (n->all[i] == number) return true;
  return false;
}

static bool of_version(uint64_t number) { return value_set_find(&xdb_super(x)->version->values, number) != NULL; }

// Each value file is one that the version, a memtable or the next puts need, or one of the collection under way.
static void no_file_too_many(struct simdisk *d) {
  CHECK(xdb_wait_idle(x) == REMIXDB_OK);
  const struct numbers all = list(d);
  for (uint32_t i = 0; i < all.nr; i++) {
    const uint64_t n = all.all[i];
    const bool needed = of_version(n) || value_list_find(&xdb_super(x)->active->values, n) || collect_has(x, n) ||
                        value_log_find(&x->values, n) || value_log_find(&x->compact.values, n);
    CHECK_SAYS(needed, "nothing needs value file %llu", (unsigned long long)n);
  }
}

// ---- the ingest, and its files

static struct numbers mine;
static int64_t mine_size[MINE_MOST];
static bool in_ingest(uint32_t i) { return i % 3 != 1; }

static void note_mine(const struct numbers *before) {
  const struct numbers all = list(disk);
  mine.nr = 0;
  for (uint32_t i = 0; i < all.nr; i++) {
    char path[40];
    if (has(before, all.all[i])) continue;
    CHECK(mine.nr < MINE_MOST);
    (void)snprintf(path, sizeof(path), "/store/%06llu.val", (unsigned long long)all.all[i]);
    mine_size[mine.nr] = simdisk_size(disk, path);
    CHECK(mine_size[mine.nr] > 0);
    mine.all[mine.nr++] = all.all[i];
  }
}

// The files are there, no byte is gone, and no collection has them.
static void mine_stay(void) {
  for (uint32_t i = 0; i < mine.nr; i++) {
    char path[40];
    (void)snprintf(path, sizeof(path), "/store/%06llu.val", (unsigned long long)mine.all[i]);
    CHECK(simdisk_size(disk, path) >= mine_size[i]);
    CHECK(of_version(mine.all[i]) || !collect_has(x, mine.all[i]));
  }
}

// ---- the gate, before each change of the disk that the commit makes

static bool armed, inside;
static uint32_t nr_gates, nr_collected;
static struct simdisk *cuts[CUTS];
static uint32_t nr_cuts;

static void cut_power(void) {
  if (nr_cuts < CUTS) cuts[nr_cuts] = simdisk_crash(disk, check_seed + nr_cuts);
  nr_cuts += nr_cuts < CUTS;
}

// Goes on with a collection, and begins with one. In a thread of its own, as a worker's: the caller may have the log's
// lock.
static void *collect_thread(void *arg) {
  struct epoch_slot slot;
  (void)arg;
  epoch_join(&x->epoch, &slot);
  atomic_store(&x->collect.asked, true);
  nr_collected += collect_idle(x, &slot);
  epoch_leave(&x->epoch, &slot);
  return NULL;
}
static void collect_some(void) {
  pthread_t id;
  CHECK(pthread_create(&id, NULL, collect_thread, NULL) == 0 && pthread_join(id, NULL) == 0);
}

static void gate(void) {
  if (!armed || inside) return;
  inside = true;
  nr_gates++;
  cut_power();
  if (pthread_mutex_trylock(&x->lock) == 0) {  // else this thread has it, and the collection would wait
    (void)pthread_mutex_unlock(&x->lock);
    collect_some();
  }
  mine_stay();
  inside = false;
}

static ssize_t gate_pwrite(struct env *e, int fd, const void *buf, size_t len, uint64_t off) {
  gate();
  return simdisk_env(disk)->ops->pwrite(e, fd, buf, len, off);
}
static int gate_sync_data(struct env *e, int fd) {
  gate();
  return simdisk_env(disk)->ops->sync_data(e, fd);
}
static int gate_sync_all(struct env *e, int fd) {
  gate();
  return simdisk_env(disk)->ops->sync_all(e, fd);
}
static void (*renames)(void);  // called once, before the next rename; NULL: no call
static int gate_rename(struct env *e, int from_at, const char *from, int to_at, const char *to) {
  void (*const call)(void) = renames;
  gate();
  renames = NULL;
  if (call) call();
  return simdisk_env(disk)->ops->rename(e, from_at, from, to_at, to);
}

// A store with much garbage in its value files. A part of them is collected.
static void store_make(void) {
  check_seed = check_seed_or(1);
  disk = simdisk_create();
  env = *simdisk_env(disk);
  ops = *env.ops;
  ops.pwrite = gate_pwrite;
  ops.sync_data = gate_sync_data;
  ops.sync_all = gate_sync_all;
  ops.rename = gate_rename;
  env.ops = &ops;
  armed = inside = false;
  nr_gates = nr_collected = nr_cuts = 0;
  mine.nr = 0;
  open_on(&env);
  for (uint32_t i = 0; i < KEYS; i++) put(i, 1);
  CHECK(remixdb_flush(ref));
  for (uint32_t i = 0; i < KEYS; i += 2) put(i, 2);
  CHECK(remixdb_flush(ref));
  for (uint32_t i = 0; i < KEYS; i += 9) put(i, 3);
  CHECK(remixdb_sync(ref));
}

static struct xdb_ingest *ingest_some(uint32_t from, uint32_t to, uint8_t turn, struct xdb_ingest *g) {
  if (!g) CHECK((g = remixdb_ingest_begin(ref)) != NULL);
  for (uint32_t i = from; i < to; i++) {
    char key[16];
    if (!in_ingest(i)) continue;
    fill(i, turn);
    CHECK(remixdb_ingest_put(g, key, key_of(i, key), val, len_of(i, turn)));
  }
  return g;
}

// Whole collections beside an ingest that is under way.
static void compact_beside(uint8_t turn) {
  for (uint32_t i = 0; i < KEYS; i += 2) put(i, turn);
  CHECK(remixdb_compact(ref));
  mine_stay();
  CHECK(mine.nr > 1);
}

static void check_cut(uint32_t cut, const uint8_t *was, const uint8_t *is_now, bool *with_out) {
  open_on(simdisk_env(cuts[cut]));
  *with_out = is(0, is_now[0]);
  all_are(*with_out ? is_now : was);
  no_file_too_many(cuts[cut]);
  CHECK(remixdb_verify(ref) && remixdb_compact(ref));
  all_are(*with_out ? is_now : was);
  close_it();
  simdisk_destroy(cuts[cut]);
}

// The power went while an ingest was under way.
static void check_early(uint32_t cut) {
  open_on(simdisk_env(cuts[cut]));
  no_file_too_many(cuts[cut]);
  CHECK(remixdb_verify(ref));
  close_it();
  simdisk_destroy(cuts[cut]);
}

static void check_cuts(const uint8_t *was, const uint8_t *is_now, uint32_t early, uint32_t durable_from) {
  uint32_t with = 0;
  for (uint32_t i = 0; i < early; i++) check_early(i);
  for (uint32_t i = early; i < nr_cuts; i++) {
    bool is_with;
    check_cut(i, was, is_now, &is_with);
    CHECK(is_with || i < durable_from);
    with += is_with;
  }
  CHECK_SAYS(with > nr_cuts - durable_from && with < nr_cuts - early, "%u of %u cuts", with, nr_cuts);
}

static void test_commit(void **state) {
  (void)state;
  uint8_t was[KEYS];
  store_make();
  const struct numbers before = list(disk);
  struct xdb_ingest *const g = ingest_some(0, KEYS / 2, 9, NULL);
  note_mine(&before);
  cut_power();
  compact_beside(4);
  cut_power();
  memcpy(was, now, sizeof(was));  // the compaction has made it durable
  const struct numbers again = list(disk);
  const uint32_t half = mine.nr;
  ingest_some(KEYS / 2, KEYS, 9, g);
  struct numbers more = {.nr = 0};
  const struct numbers all = list(disk);
  for (uint32_t i = 0; i < all.nr; i++)
    if (!has(&again, all.all[i])) more.all[more.nr++] = all.all[i];
  CHECK(more.nr > 0 && half + more.nr < MINE_MOST);
  for (uint32_t i = 0; i < more.nr; i++) mine.all[mine.nr] = more.all[i], mine_size[mine.nr++] = 1;
  for (uint32_t i = 0; i < KEYS; i += 5) put(i, 5);  // garbage for the collection at the gates
  CHECK(remixdb_sync(ref));
  memcpy(was, now, sizeof(was));
  const uint32_t early = nr_cuts;
  armed = true;
  CHECK(remixdb_ingest_commit(g));
  armed = false;
  for (uint32_t i = 0; i < KEYS; i++)
    if (in_ingest(i)) now[i] = 9;
  const uint32_t durable_from = nr_cuts;
  for (uint32_t i = 0; i < 4; i++) cut_power();
  CHECK_SAYS(nr_gates > 10 && nr_collected > 0, "%u gates, %u steps", nr_gates, nr_collected);
  all_are(now);
  for (uint32_t i = 0; i < mine.nr; i++) CHECK(of_version(mine.all[i]));
  no_file_too_many(disk);
  // Afterwards they are files like all others.
  uint8_t later[KEYS];
  memcpy(later, now, sizeof(later));
  for (uint32_t i = 0; i < KEYS; i++)
    if (i % 4) put(i, 6);
  CHECK(remixdb_compact(ref) && remixdb_compact(ref));
  uint32_t left = 0;
  for (uint32_t i = 0; i < mine.nr; i++) left += of_version(mine.all[i]);
  CHECK_SAYS(left < mine.nr / 2, "%u of %u files", left, mine.nr);
  all_are(now);
  CHECK(remixdb_verify(ref));
  no_file_too_many(disk);
  close_it();
  check_cuts(was, later, early, durable_from);
  simdisk_destroy(disk);
}

static void test_abort(void **state) {
  (void)state;
  store_make();
  const struct numbers before = list(disk);
  // The pace of writers goes by garbage, so by no byte of the ingest.
  const uint64_t allowed = atomic_load(&x->collect.allowed);
  atomic_store(&x->collect.allowed, 0);
  const uint64_t over = value_pace_over(x);
  struct xdb_ingest *const g = ingest_some(0, KEYS, 9, NULL);
  CHECK(over > 0 && value_pace_over(x) <= over + VALUE_EXTENT);
  atomic_store(&x->collect.allowed, allowed);
  note_mine(&before);
  cut_power();
  compact_beside(4);
  collect_some();
  remixdb_ingest_abort(g);
  const struct numbers all = list(disk);
  for (uint32_t i = 0; i < mine.nr; i++) CHECK(!has(&all, mine.all[i]));
  CHECK(atomic_load(&x->collect.ingesting) == 0);
  all_are(now);
  no_file_too_many(disk);
  close_it();
  check_early(0);
  simdisk_destroy(disk);
}

// After the flush of a commit, before its place: the new memtable has a short record and a value that was given up.
static void write_late(void) {
  struct xdb_ref *const late = remixdb_ref(x);
  struct value_apart apart = {0};
  struct kv_rec rec = {.key = (const uint8_t *)"late", .klen = 4, .val = val, .vlen = 19000};
  char key[16];
  CHECK(late && remixdb_put(late, key, key_of(30, key), "v", 1) && remixdb_put(late, "other", 5, "v", 1));
  OK(values_put(x, &rec, &apart));
  CHECK(values_end(x, &apart, REMIXDB_ABORTED) == REMIXDB_ABORTED);
  atomic_store(&x->hiding.value_bytes, 7);
  remixdb_unref(late);
}

// A memtable that an ingest replaces takes what was known of it along.
static void test_lost(void **state) {
  (void)state;
  for (uint32_t way = 0; way < 2; way++) {  // the ingest has a key of the memtable; it has none
    store_make();
    struct xdb_ingest *const g = way ? ingest_some(0, 30, 9, NULL) : ingest_some(0, KEYS, 9, NULL);
    renames = write_late;
    CHECK(remixdb_ingest_commit(g) && !renames);
    const uint64_t lost = atomic_load(&x->values_lost), hidden = atomic_load(&x->hiding.value_bytes);
    CHECK_SAYS(lost == (way ? 19000 : 0) && hidden == (way ? 7 : 0), "way %u: %llu lost", way,
               (unsigned long long)lost);
    CHECK(remixdb_probe(ref, "other", 5));
    close_it();
    simdisk_destroy(disk);
  }
}

int main(void) {
  hang_alarm();
  val = malloc(20000);
  got = malloc(20000);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_commit), cmocka_unit_test(test_abort),
                                     cmocka_unit_test(test_lost)};
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  free(val);
  free(got);
  return failed;
}
