// SPDX-License-Identifier: Apache-2.0
//
// Sorted ingest: power cuts and failing calls at every step, partitions of every shape below it, readers, writers and
// merges beside it. The model test (test_model.c) has it among all other calls.
//
// TEST_SEED in the environment repeats a run's random choices.
#include "tests/lib/check.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>

#include "admin/repair.h"
#include "base/files.h"
#include "tests/lib/paths.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/store.h"
#include "store/flush.h"
#include "xdb.h"

#define KEYS 900u
#define CUTS 400u

static struct simdisk *disk;
static struct xdb *x;
static struct xdb_ref *ref;

static uint32_t key_of(uint32_t i, char buf[16]) { return (uint32_t)snprintf(buf, 16, "%06u", i); }

// For the stores that are opened from now on.
static void (*logger)(void *priv, const char *line);
static uint32_t max_open;  // 0: the default
static bool plain;         // no cache, so what is read comes from the disk; and each table is a file of its own

// Another thread puts a record beside the flush of a commit, so the commit finds it in the memtable. Nothing but its
// number changes.
static bool beside, put_beside;
static uint32_t nr_handed;  // ingests that have handed the memtable over
static struct env env;
static struct env_ops ops;
static _Thread_local bool is_other;

static void *other_put(void *arg) {
  is_other = true;
  struct xdb_ref *const r = remixdb_ref(x);
  const bool good = r && remixdb_put(r, "000108", 6, arg, 60);
  THREAD_CHECK(good || remixdb_errcode() != REMIXDB_INVALID);  // the fault may be the put's
  remixdb_unref(r);
  return NULL;
}

static ssize_t pwrite_beside(struct env *e, int fd, const void *buf, size_t len, uint64_t off) {
  if (!is_other && put_beside && xdb_super(x)->frozen) {
    char value[60];
    pthread_t id;
    put_beside = false;
    memset(value, 'b', sizeof(value));
    CHECK(pthread_create(&id, NULL, other_put, value) == 0 && pthread_join(id, NULL) == 0);
  }
  return simdisk_env(disk)->ops->pwrite(e, fd, buf, len, off);
}

static void open_on(struct simdisk *d, uint32_t workers) {
  struct remixdb_opts o = small_opts(workers);
  o.logger = logger;
  if (plain) o.cache_mb = 0;
  o.max_open_files = max_open;
  env = *simdisk_env(d);
  ops = *env.ops;
  if (beside) {
    ops.pwrite = pwrite_beside;
    o.io = "sync";
  }
  env.ops = &ops;
  OK(xdb_open("/store", &o, &env, &x));
  if (plain) packs_cannot(x->packs);
  CHECK(ref = remixdb_ref(x));
}

static void close_it(void) {
  remixdb_unref(ref);
  remixdb_close(x);
}

static void put(uint32_t i, char what) {
  char key[16], value[60];
  memset(value, what, sizeof(value));
  CHECK(remixdb_put(ref, key, key_of(i, key), value, sizeof(value)));
}

// Even keys in tables, every ninth one in the memtable, too.
static void store_make(uint32_t pages) {
  disk = simdisk_create();
  open_on(disk, 0);
  shrink(x, 256 << 10, pages);
  for (uint32_t i = 0; i < KEYS; i += 2) put(i, 'a');
  CHECK(remixdb_compact(ref));
  for (uint32_t i = 0; i < KEYS; i += 18) put(i, 'b');
  CHECK(remixdb_sync(ref));
}

static char old_of(uint32_t i) { return i % 18 == 0 ? 'b' : i % 2 == 0 ? 'a' : 0; }
static bool in_ingest(uint32_t i) { return i >= 100 && i < 800 && i % 3 != 1; }

// Begins an ingest, and puts its records. NULL: a call has failed, with the thread's status.
static struct xdb_ingest *ingest_filled(void) {
  struct xdb_ingest *const g = remixdb_ingest_begin(ref);
  if (!g) return NULL;
  for (uint32_t i = 0; i < KEYS; i++) {
    char key[16], value[60];
    if (!in_ingest(i)) continue;
    memset(value, 'n', sizeof(value));
    if (remixdb_ingest_put(g, key, key_of(i, key), value, sizeof(value))) continue;
    const enum remixdb_status s = remixdb_errcode();
    remixdb_ingest_abort(g);
    (void)s;
    return NULL;
  }
  return g;
}

// One ingest; false: a put or the commit has failed, with the thread's status.
static bool ingest(void) {
  struct xdb_ingest *const g = ingest_filled();
  return g && remixdb_ingest_commit(g);
}

// Whether the store has the ingest's records: all, or none of them.
static bool has_ingest(void) {
  uint32_t there = 0, all = 0;
  for (uint32_t i = 0; i < KEYS; i++) {
    char key[16], value[60];
    uint32_t len = 0;
    const bool got = remixdb_getn(ref, key, key_of(i, key), value, sizeof(value), &len);
    CHECK(got || remixdb_errcode() == REMIXDB_NOTFOUND);
    const char is = got ? value[0] : 0;
    CHECK(!got || len == sizeof(value));
    all += in_ingest(i);
    if (in_ingest(i) && is == 'n') there++;
    else CHECK(is == old_of(i));
  }
  if (there != 0 && there != all)
    fail_msg("TEST_SEED=%llu: %u of %u records", (unsigned long long)check_seed, there, all);
  return there != 0;
}

static bool count_table(void *arg, const char *name) {
  const enum files_kind kind = files_kind_of(name, NULL);
  *(uint32_t *)arg += kind == FILES_IS_TABLE || kind == FILES_IS_REMIX || kind == FILES_IS_PACK;
  return true;
}

// Counts the file, and a pack once.
static void count_named(const struct part_file *f, uint64_t *packs, uint32_t *nr_packs, uint32_t *named) {
  if (f->number == 0) return;
  for (uint32_t i = 0; f->part && i < *nr_packs; i++)
    if (packs[i] == f->part->pack->number) return;
  CHECK(*nr_packs < 256);
  if (f->part) packs[(*nr_packs)++] = f->part->pack->number;
  ++*named;
}

// No table and no REMIX lies in the directory that the version does not name.
static void check_files(struct simdisk *d) {
  uint32_t files = 0, named = 0, nr_packs = 0;
  uint64_t packs[256];
  CHECK(xdb_wait_idle(x) == REMIXDB_OK);
  OK(paths_list(simdisk_env(d), "/store", count_table, &files));
  for (const struct version *v = xdb_super(x)->version; v; v = v->spaces) {
    for (uint32_t i = 0; i < v->nr_parts; i++) {
      struct part_files f;
      part_files(v->parts[i], &f);
      count_named(&f.remix, packs, &nr_packs, &named);
      count_named(&f.young, packs, &nr_packs, &named);
      for (uint32_t t = 0; t < f.nr; t++) count_named(&f.tables[t], packs, &nr_packs, &named);
    }
  }
  if (files != named) fail_msg("TEST_SEED=%llu: %u files, %u named", (unsigned long long)check_seed, files, named);
}

// ---- power cuts

static struct simdisk *cuts[CUTS];
static uint32_t nr_cuts;

static void on_change(void *arg) {
  (void)arg;
  if (nr_cuts == CUTS) return;
  cuts[nr_cuts] = simdisk_crash(disk, check_seed + nr_cuts);
  nr_cuts++;
}

static void test_power_cuts(void **state) {
  (void)state;
  check_seed = check_seed_or(time_ns());
  store_make(2);
  nr_cuts = 0;
  simdisk_on_change(disk, on_change, NULL);
  CHECK(ingest());
  simdisk_on_change(disk, NULL, NULL);
  CHECK(has_ingest());
  check_files(disk);
  const uint32_t taken = nr_cuts;
  if (nr_cuts < CUTS) cuts[nr_cuts++] = simdisk_crash(disk, check_seed);
  close_it();
  uint32_t with = 0, without = 0;
  bool last = false;
  for (uint32_t i = 0; i < nr_cuts; i++) {
    open_on(cuts[i], 0);
    last = has_ingest();
    with += last;
    without += !last;
    check_files(cuts[i]);
    CHECK(remixdb_verify(ref));
    close_it();
    simdisk_destroy(cuts[i]);
  }
  CHECK(taken > 20 && taken < CUTS && with > 0 && without > 0 && last);  // durable when the commit returned
  simdisk_destroy(disk);
}

// ---- failing calls

static void fails_at(enum simdisk_call call, int errnum, uint64_t skip, bool *hit) {
  store_make(2);
  const uint64_t before = simdisk_calls(disk, call), gen = wal_gen(x->wal);
  simdisk_fault(disk, call, skip, 1, errnum);
  put_beside = beside;
  const bool good = ingest();
  put_beside = false;
  CHECK(!good || beside || wal_gen(x->wal) == gen + 1);
  nr_handed += good && wal_gen(x->wal) == gen + 2;
  const enum remixdb_status s = remixdb_errcode();
  *hit = simdisk_calls(disk, call) - before > skip;
  simdisk_fault(disk, call, 0, 0, 0);
  CHECK(good || s == REMIXDB_IO || s == REMIXDB_NOSPACE || s == REMIXDB_LOCKED);
  CHECK(has_ingest() == good);
  bool put_works = remixdb_put(ref, "zzz", 3, "z", 1);
  if (put_works) {
    pthread_mutex_lock(&x->lock);
    x->rounds.failed_ns = 0;  // a round that has failed may be tried again at once
    pthread_mutex_unlock(&x->lock);
    CHECK(remixdb_flush(ref));
    check_files(disk);
  }
  if (put_works && !good) {  // and it works the next time
    CHECK(ingest() && has_ingest());
    check_files(disk);
  }
  close_it();
  open_on(disk, 0);
  const bool there = has_ingest();
  CHECK(!good || there);
  check_files(disk);
  close_it();
  simdisk_destroy(disk);
}

static void test_failing_calls(void **state) {
  (void)state;
  static const enum simdisk_call calls[] = {SIMDISK_OPEN,   SIMDISK_WRITE,    SIMDISK_SYNC,
                                            SIMDISK_RENAME, SIMDISK_ALLOCATE, SIMDISK_READ};
  check_seed = check_seed_or(1);
  for (uint32_t i = 0; i < 2 * sizeof(calls) / sizeof(calls[0]); i++) {
    const enum simdisk_call call = calls[i / 2];
    beside = i % 2;
    for (uint32_t e = 0; e < 2; e++) {
      uint32_t n = 0;
      bool hit = true;
      for (uint64_t skip = 0; hit && skip < 200; skip += 1 + skip / 12, n++)
        fails_at(call, e && call != SIMDISK_READ ? ENOSPC : EIO, skip, &hit);
      CHECK(n > 1 || call == SIMDISK_ALLOCATE);
    }
  }
  CHECK(nr_handed > 0);
  beside = false;
}

// ---- partitions below

static uint8_t *now;  // per key: its value's byte; 0: absent

static void all_are(uint32_t nr) {
  struct xdb_iter *const it = remixdb_iter_create(ref);
  remixdb_iter_seek(it, NULL, 0);
  for (uint32_t i = 0; i < nr; i++) {
    char key[16];
    uint32_t klen, vlen;
    if (!now[i]) continue;
    const uint32_t len = key_of(i, key);
    const uint8_t *const k = remixdb_iter_key(it, &klen), *const v = remixdb_iter_value(it, &vlen);
    CHECK(k && v && klen == len && memcmp(k, key, len) == 0 && v[0] == now[i]);
    remixdb_iter_skip1(it);
  }
  CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_OK);
  remixdb_iter_destroy(it);
}

// Ingests keys [from, to) in steps; at `middle` of them `between` runs.
static void ingest_range(uint32_t from, uint32_t to, uint32_t step, uint8_t what, void (*between)(void)) {
  struct xdb_ingest *const g = remixdb_ingest_begin(ref);
  CHECK(g);
  for (uint32_t i = from; i < to; i += step) {
    char key[16], value[100];
    memset(value, what, sizeof(value));
    CHECK(remixdb_ingest_put(g, key, key_of(i, key), value, sizeof(value)));
    if (between && i >= from + (to - from) / 2) {
      between();
      between = NULL;
    }
  }
  CHECK(remixdb_ingest_commit(g));
  for (uint32_t i = from; i < to; i += step) now[i] = what;
}

#define MANY 30000u

static void split_all(void) {
  for (uint32_t i = 0; i < MANY; i += 3) {
    put(i, 'p');
    now[i] = 'p';
  }
  x->compact.build.max_pages = 8;
  CHECK(remixdb_compact(ref));
  CHECK(xdb_super(x)->version->nr_parts > 4);
}

static bool had(const struct version *v, const struct part *p) {
  for (uint32_t i = 0; i < v->nr_parts; i++)
    for (uint32_t r = 0; r < part_runs(v->parts[i]); r++)
      for (uint32_t k = 0; k < part_runs(p); k++)
        if (part_run(v->parts[i], r) == part_run(p, k)) return true;
  return false;
}

// Partitions that merges cannot read (view/part.h, P4) get tables of an ingest. They are left out from then on, too.
static void test_unread(void **state) {
  (void)state;
  store_make(1);
  OK(xdb_flush(x));
  struct version *const before = xdb_super(x)->version;
  version_ref(before);
  CHECK_SAYS(before->nr_parts > 2, "%u", before->nr_parts);
  for (uint32_t i = 0; i < before->nr_parts; i++) CHECK(part_set_unread(before->parts[i], REMIXDB_CORRUPT));
  CHECK(ingest() && has_ingest());
  const struct version *const after = xdb_super(x)->version;
  uint32_t kept = 0, grown = 0;
  for (uint32_t i = 0; i < after->nr_parts; i++) {
    const struct part *const p = after->parts[i];
    if (!had(before, p)) continue;
    CHECK(part_unread_ns(p) == PART_DAMAGED);
    kept++;
    grown += p != before->parts[version_find(before, part_anchor(p))];
  }
  CHECK(kept == before->nr_parts && grown > 1);
  version_unref(before);
  close_it();
  simdisk_destroy(disk);
}

// ---- an ingest into a partition that cannot be read

static char bad_name[32];  // the file's
static uint32_t told_bad;  // lines with its name

static void count_bad(void *arg, const char *line) {
  (void)arg;
  told_bad += bad_name[0] && strstr(line, bad_name) != NULL;
}

// Makes a store and returns the partition that is to be damaged, its second one. *path_out names the file of the
// partition's oldest table.
static struct part *bad_make(uint32_t young_from, const char **path_out) {
  logger = count_bad;
  plain = true;
  bad_name[0] = 0;
  store_make(2);
  x->compact.young_from = young_from;
  OK(xdb_flush(x));
  struct part *const p = xdb_super(x)->version->parts[1];
  CHECK(xdb_super(x)->version->nr_parts > 2 && !part_run(p, 0)->part && !part_is_unread(p));
  part_ref(p);
  *path_out = part_run(p, 0)->path;
  (void)snprintf(bad_name, sizeof(bad_name), "%s", env_name(*path_out));
  told_bad = 0;
  return p;
}

static void bad_end(struct part *p) {
  part_unref(p);
  check_files(disk);
  close_it();
  simdisk_destroy(disk);
  logger = NULL;
  plain = false;
}

// Flips a bit in each block of the partition's oldest table, and in its compressed keys; the next call flips them back.
static void damage(const struct part *p) {
  const struct sst *const t = part_run(p, 0);
  for (uint64_t off = 40; off < (uint64_t)t->nr_pages * BLOCK_PAGE; off += 512)
    CHECK(simdisk_flip(disk, t->path, t->base + off, 1));
  for (uint64_t off = 0; off < t->ckb_len; off += 64) CHECK(simdisk_flip(disk, t->path, t->base + t->ckb_off + off, 1));
}

static const struct part *part_now(const struct part *was) {
  const struct version *const v = xdb_super(x)->version;
  return v->parts[version_find(v, part_anchor(was))];
}

// The nth key of the ingest that is in the partition.
static uint32_t key_in(const struct part *p, uint32_t n, char *key) {
  for (uint32_t i = 0, seen = 0;; i++) {
    const struct kref k = kref(key, key_of(i, key));
    const bool in = in_ingest(i) && kv_cmp(k, part_anchor(p)) >= 0 && kv_cmp(k, part_run(p, 0)->max) < 0;
    if (in && seen++ == n) return k.len;
  }
}

// A record of the ingest once more, in the partition.
static bool ingest_one(const struct part *p, uint32_t n) {
  char key[16], value[60];
  memset(value, 'n', sizeof(value));
  struct xdb_ingest *const g = remixdb_ingest_begin(ref);
  const uint32_t len = key_in(p, n, key);
  CHECK(g && remixdb_ingest_put(g, key, len, value, sizeof(value)));
  return remixdb_ingest_commit(g);
}

// Small ingests go into the young view, one after the other: the older view stays as it is. Where there are too many
// runs, those of the young view are merged.
static void test_small(void **state) {
  (void)state;
  uint32_t fewer = 0, most = 0;
  store_make(2);
  x->compact.young_from = 2;
  x->compact.build.max_pages = 1024;
  CHECK(remixdb_compact(ref));
  struct part *const was = xdb_super(x)->version->parts[0];
  part_ref(was);
  const struct remix *const old = part_remix(was);
  for (uint32_t n = 0; n < 40; n++) {
    const uint32_t before = part_runs(part_now(was));
    CHECK(ingest_one(was, n % 4));
    const struct part *const p = part_now(was);
    CHECK_SAYS(part_remix(p) == old && part_young_runs(p) > 0, "%u: %u runs", n, part_runs(p));
    fewer += part_runs(p) < before;
    if (part_runs(p) > most) most = part_runs(p);
  }
  CHECK_SAYS(fewer > 0 && most <= 20, "%u, %u", fewer, most);
  part_unref(was);
  check_files(disk);
  close_it();
  simdisk_destroy(disk);
}

// The tables of an ingest go into the young view of a damaged partition, and the damage is told once. Where it has too
// many runs, those of the young view are merged. Without young views the ingest fails, and names the file; writes go
// on.
static void test_damaged(void **state) {
  (void)state;
  for (uint32_t young = 0; young < 2; young++) {
    const char *path;
    struct part *const p = bad_make(young ? COMPACT_YOUNG_FROM : 0, &path);
    const uint32_t old = part_old_runs(p);
    uint32_t fewer = 0, most = 0;
    damage(p);
    CHECK(ingest() == (young != 0));
    if (!young) CHECK(remixdb_errcode() == REMIXDB_CORRUPT && strstr(remixdb_errmsg(), path));
    CHECK(told_bad == 1 && part_unread_ns(part_now(p)) == PART_DAMAGED);
    for (uint32_t n = 0; n < 45 && young; n++) {
      const uint32_t before = part_runs(part_now(p));
      CHECK_SAYS(ingest_one(p, n % 5), "%u: %s", n, remixdb_errmsg());
      const uint32_t is = part_runs(part_now(p));
      CHECK(part_old_runs(part_now(p)) == old && part_unread_ns(part_now(p)) == PART_DAMAGED);
      fewer += is < before;
      if (is > most) most = is;
      if (n % 9 == 0) CHECK(remixdb_put(ref, "zz", 2, "w", 1) && remixdb_del(ref, "zz", 2) && remixdb_flush(ref));
    }
    CHECK(!young || (fewer > 0 && most + 2 >= COMPACT_UNREAD_RUNS && most < COMPACT_UNREAD_RUNS));
    CHECK(remixdb_put(ref, "zz", 2, "w", 1) && remixdb_flush(ref) && remixdb_del(ref, "zz", 2));
    CHECK(told_bad == 1);
    damage(p);
    CHECK(has_ingest() == (young != 0));
    CHECK((young || ingest()) && has_ingest());
    CHECK(remixdb_compact(ref) && has_ingest() && remixdb_verify(ref));
    bad_end(p);
  }
}

// Ingests of many full tables fail before they take the runs that memtables need.
static void test_damaged_full(void **state) {
  (void)state;
  const char *path;
  struct part *const p = bad_make(COMPACT_YOUNG_FROM, &path);
  damage(p);
  CHECK(ingest());
  x->compact.build.max_pages = 4;
  uint32_t taken = 0;
  while (taken < 40 && ingest()) taken++;
  CHECK_SAYS(taken < 40 && remixdb_errcode() == REMIXDB_CORRUPT && strstr(remixdb_errmsg(), path), "%s",
             remixdb_errmsg());
  for (uint32_t n = 0; n < 40; n++) {
    char key[16];
    const uint32_t len = key_in(p, n % 3, key);
    CHECK_SAYS(remixdb_put(ref, key, len, "w", 1) && remixdb_flush(ref), "%u: %s", n, remixdb_errmsg());
  }
  damage(p);
  bad_end(p);
}

// The same where a read fails.
static void test_reads_fail(void **state) {
  (void)state;
  const char *path;
  struct part *const p = bad_make(COMPACT_YOUNG_FROM, &path);
  simdisk_fault_name(disk, bad_name);
  simdisk_fault(disk, SIMDISK_READ, 0, UINT64_MAX, EIO);
  const uint64_t began = time_ns();
  CHECK_SAYS(ingest(), "%s", remixdb_errmsg());
  const struct part *const is = part_now(p);
  CHECK(told_bad == 1 && part_is_left(is, began) && part_unread_ns(is) != PART_DAMAGED);
  CHECK(atomic_load(&is->failed_reads) == 1 && part_young_runs(is) > 0);
  // a young view that cannot be read keeps the memtable from tables until it can
  char key[16];
  const uint32_t len = key_in(p, 0, key);
  simdisk_fault_name(disk, env_name(part_run(is, part_old_runs(is))->path));
  CHECK(remixdb_put(ref, key, len, "w", 1) && !remixdb_flush(ref) && remixdb_errcode() == REMIXDB_IO);
  CHECK(remixdb_put(ref, key, len, "v", 1));
  simdisk_fault(disk, SIMDISK_READ, 0, 0, 0);
  x->rounds.failed_ns = 0;  // no call waits for the next try
  CHECK_SAYS(remixdb_flush(ref), "%s", remixdb_errmsg());
  CHECK(remixdb_del(ref, key, len) && ingest());
  CHECK(has_ingest() && remixdb_compact(ref) && has_ingest() && remixdb_verify(ref));
  bad_end(p);
}

static void test_shapes(void **state) {
  (void)state;
  check_seed = check_seed_or(1);
  for (uint32_t shape = 0; shape < 6; shape++) {
    CHECK(now = calloc(MANY, 1));
    disk = simdisk_create();
    open_on(disk, 0);
    shrink(x, 1 << 20, 20);
    x->compact.young_from = shape % 2 ? 2 : UINT32_MAX;
    // One partition with few keys that span all of it: the ingest does not fit in as runs.
    for (uint32_t i = 0; i < MANY; i += 1000) put(i, now[i] = 'o');
    if (shape != 5) CHECK(remixdb_flush(ref));
    ingest_range(10, MANY - 10, 2, 'i', shape == 1 || shape == 4 ? split_all : NULL);
    all_are(MANY);
    const struct version *const v = xdb_super(x)->version;
    CHECK(v->nr_parts > 4);
    for (uint32_t i = 0; i < v->nr_parts; i++) CHECK(part_runs(v->parts[i]) <= 24);
    // Few keys in the middle become a run; keys behind the end become partitions.
    ingest_range(MANY / 2, MANY / 2 + 50, 1, 'j', NULL);
    if (shape > 2) {
      for (uint32_t i = 5; i < MANY; i += 77) put(i, now[i] = 'w');
      CHECK(remixdb_flush(ref));
    }
    ingest_range(MANY / 3, MANY, 7, 'k', shape == 3 ? split_all : NULL);
    all_are(MANY);
    CHECK(remixdb_verify(ref));
    check_files(disk);
    close_it();
    open_on(disk, 0);
    all_are(MANY);
    CHECK(remixdb_compact(ref));
    all_are(MANY);
    close_it();
    simdisk_destroy(disk);
    free(now);
  }
}

// ---- beside others

#define ROUNDS 40u
#define SPREAD 300u
static _Atomic bool over;

static void *reader(void *arg) {
  (void)arg;
  struct xdb_ref *const r = remixdb_ref(x);
  struct remixdb_iter_opts o;
  remixdb_iter_opts_init(&o, sizeof(o));
  o.prefix = (struct remixdb_slice){"in/", 3};
  struct xdb_iter *const it = remixdb_iter_create_opts(r, &o);
  uint32_t last = 0;
  while (!atomic_load(&over)) {
    uint32_t nr = 0, round = 0, vlen;
    for (remixdb_iter_seek(it, NULL, 0); remixdb_iter_valid(it); remixdb_iter_skip1(it), nr++) {
      uint32_t is;
      memcpy(&is, remixdb_iter_value(it, &vlen), sizeof(is));
      if (nr == 0) round = is;
      THREAD_CHECK(is == round);
    }
    THREAD_CHECK((nr == 0 || nr == SPREAD) && round >= last);
    last = round;
  }
  remixdb_iter_destroy(it);
  remixdb_unref(r);
  return NULL;
}

static enum remixdb_merge_op increment(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  uint64_t *const n = priv;
  if (v0 && v0len == sizeof(*n)) memcpy(n, v0, sizeof(*n));
  else *n = 0;
  ++*n;
  *v1 = n;
  *v1len = sizeof(*n);
  return REMIXDB_MERGE_PUT;
}

static void *merger(void *arg) {
  (void)arg;
  struct xdb_ref *const r = remixdb_ref(x);
  uint64_t n;
  while (!atomic_load(&over)) THREAD_CHECK(remixdb_merge(r, "counter", 7, increment, &n));
  remixdb_unref(r);
  return NULL;
}

static void *deleter(void *arg) {  // makes gaps around the keys of the ingest
  (void)arg;
  struct xdb_ref *const r = remixdb_ref(x);
  struct xdb_iter *const it = remixdb_iter_create(r);
  for (uint32_t n = 0; !atomic_load(&over); n++) {
    char key[24];
    for (uint32_t i = 0; i < 60; i++)
      THREAD_CHECK(remixdb_del(r, key, (uint32_t)snprintf(key, sizeof(key), "in/%05u-", (n * 60 + i) % SPREAD)));
    remixdb_iter_seek(it, "in/", 3);
  }
  remixdb_iter_destroy(it);
  remixdb_unref(r);
  return NULL;
}

// Readers see whole ingests only; a merge is never based on what an ingest has replaced.
static void test_beside(void **state) {
  (void)state;
  check_seed = check_seed_or(1);
  disk = simdisk_create();
  open_on(disk, 2);
  shrink(x, 256 << 10, 20);
  atomic_store(&over, false);
  void *(*const fns[])(void *) = {reader, reader, merger, deleter};
  pthread_t threads[4];
  for (uint32_t i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, fns[i], NULL) == 0);
  for (uint32_t round = 1; round <= ROUNDS; round++) {
    struct xdb_ingest *const g = remixdb_ingest_begin(ref);
    const uint64_t base = (uint64_t)round << 32;
    uint64_t n = 0;
    uint32_t len;
    CHECK(g && remixdb_ingest_put(g, "counter", 7, &base, sizeof(base)));
    for (uint32_t i = 0; i < SPREAD; i++) {
      char key[24];
      CHECK(remixdb_ingest_put(g, key, (uint32_t)snprintf(key, sizeof(key), "in/%05u", i), &round, sizeof(round)));
    }
    CHECK(remixdb_ingest_commit(g));
    CHECK(remixdb_getn(ref, "counter", 7, &n, sizeof(n), &len) && n >= base);
  }
  atomic_store(&over, true);
  for (uint32_t i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(remixdb_verify(ref));
  close_it();
  simdisk_destroy(disk);
}

// ---- the calls

static void test_calls(void **state) {
  (void)state;
  disk = simdisk_create();
  open_on(disk, 0);
  static char big[REMIXDB_KV_MAX + 1];
  CHECK(!remixdb_ingest_begin(NULL) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_ingest_put(NULL, "k", 1, "v", 1) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_ingest_commit(NULL) && remixdb_errcode() == REMIXDB_INVALID);
  remixdb_ingest_abort(NULL);
  struct xdb_snapshot *const snap = remixdb_snapshot(ref);
  struct xdb_ref *const old = remixdb_snapshot_ref(snap);
  CHECK(!remixdb_ingest_begin(old) && remixdb_errcode() == REMIXDB_READONLY);
  struct xdb_ingest *g = remixdb_ingest_begin(ref);
  CHECK(g && remixdb_ingest_put(g, "", 0, "", 0) && remixdb_ingest_put(g, "k", 1, NULL, 0));
  CHECK(!remixdb_ingest_put(g, "k", 1, "v", 1) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_ingest_put(g, "a", 1, "v", 1) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_ingest_put(g, big, sizeof(big), "v", 1) && remixdb_errcode() == REMIXDB_TOOBIG);
  CHECK(strstr(remixdb_errmsg(), "65501") && strstr(remixdb_errmsg(), "65500"));
  CHECK(!remixdb_ingest_put(g, NULL, 1, "v", 1) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(remixdb_ingest_put(g, "l", 1, "v", 1) && !remixdb_probe(ref, "l", 1));
  CHECK(remixdb_ingest_commit(g) && remixdb_probe(ref, "l", 1) && remixdb_probe(ref, "", 0));
  CHECK(!remixdb_probe(old, "l", 1));
  CHECK((g = remixdb_ingest_begin(ref)) != NULL && remixdb_ingest_commit(g));  // nothing
  CHECK((g = remixdb_ingest_begin(ref)) != NULL && remixdb_ingest_put(g, "m", 1, "v", 1));
  remixdb_ingest_abort(g);
  CHECK(!remixdb_probe(ref, "m", 1));
  // Numbers: above all that was there, below what comes.
  uint64_t before = 0, is = 0, after = 0;
  char byte;
  uint32_t len;
  CHECK(remixdb_put(ref, "v", 1, "1", 1) && remixdb_getv(ref, "v", 1, &byte, 1, &len, &before));
  CHECK((g = remixdb_ingest_begin(ref)) != NULL && remixdb_ingest_put(g, "v", 1, "2", 1) && remixdb_ingest_commit(g));
  CHECK(remixdb_getv(ref, "v", 1, &byte, 1, &len, &is) && is > before && byte == '2');
  CHECK(!remixdb_put_if(ref, "v", 1, "x", 1, before) && remixdb_errcode() == REMIXDB_ABORTED);
  CHECK(remixdb_put_if(ref, "v", 1, "3", 1, is) && remixdb_getv(ref, "v", 1, &byte, 1, &len, &after) && after > is);
  remixdb_unref(old);
  remixdb_snapshot_release(snap);
  check_files(disk);
  close_it();
  simdisk_destroy(disk);
}

// ---- records of any length

#define LONGEST (9u << 20)
static const uint32_t lens[] = {0, 1, 16383, 16384, 16385, 65499, 65500, 65501, 70000, 300000, LONGEST};
#define LENS (sizeof(lens) / sizeof(lens[0]))

// Key i: short ones and the longest, in order.
static uint32_t long_key(uint32_t i, uint8_t *key) {
  const uint32_t klen = i % 3 == 2 ? REMIXDB_KV_MAX : 6;
  memset(key, 'k', klen);
  (void)key_of(i, (char *)key);
  key[6] = 'k';
  return klen;
}

static void long_put(struct xdb_ingest *g, uint32_t i, const uint8_t *value) {
  static uint8_t key[REMIXDB_KV_MAX + 16];
  const uint32_t klen = long_key(i, key);
  CHECK(remixdb_ingest_put(g, key, klen, value + i % 251, lens[i % LENS]));
}

static void long_are(uint32_t from, uint32_t nr, const uint8_t *value) {
  static uint8_t key[REMIXDB_KV_MAX + 16];
  static uint8_t buf[LONGEST];
  for (uint32_t i = from; i < nr; i++) {
    const uint32_t klen = long_key(i, key), len = lens[i % LENS];
    uint32_t got, n;
    CHECK(remixdb_getn(ref, key, klen, buf, sizeof(buf), &got) && got == len);
    CHECK(memcmp(buf, value + i % 251, len) == 0);
    CHECK(remixdb_get_part(ref, key, klen, len / 2, buf, 100, &n, &got) && got == len);
    CHECK(n == (len - len / 2 < 100 ? len - len / 2 : 100) && memcmp(buf, value + i % 251 + len / 2, n) == 0);
  }
}

static bool count_values(void *arg, const char *name) {
  *(uint32_t *)arg += strstr(name, ".val") != NULL;
  return true;
}
static uint32_t value_files(void) {
  uint32_t nr = 0;
  OK(paths_list(simdisk_env(disk), "/store", count_values, &nr));
  return nr;
}

// Long values over long values, in tables that the store's partitions cut, into the version, out of it, and again.
static void test_any_length(void **state) {
  (void)state;
  uint8_t *const value = malloc(LONGEST + 256);
  uint64_t rng = 5;
  for (uint32_t i = 0; i < LONGEST + 256; i++) value[i] = (uint8_t)rng_next(&rng);
  disk = simdisk_create();
  open_on(disk, 0);
  shrink(x, 256 << 10, 60);
  struct xdb_ingest *g = remixdb_ingest_begin(ref);
  for (uint32_t i = 0; i < 66; i++) long_put(g, i, value);
  // A put beside it splits nothing yet; an ingest that is given up leaves no file.
  remixdb_ingest_abort(g);
  CHECK(value_files() == 0);
  for (uint32_t round = 0; round < 3; round++) {
    CHECK((g = remixdb_ingest_begin(ref)) != NULL);
    for (uint32_t i = 0; i < 66; i++) {
      // The partitions change while the ingest has a table in the making.
      if (round == 1 && i == 30) CHECK(remixdb_compact(ref));
      long_put(g, i, value + round);
    }
    CHECK(remixdb_ingest_commit(g));
    long_are(0, 66, value + round);
    check_files(disk);
  }
  CHECK(remixdb_compact(ref) && remixdb_verify(ref));
  CHECK(xdb_wait_idle(x) == REMIXDB_OK && value_files() < 40);
  close_it();
  open_on(disk, 0);
  long_are(0, 66, value + 2);
  CHECK(remixdb_verify(ref));
  close_it();
  simdisk_destroy(disk);
  free(value);
}

// Many tables over a store that has the same keys, in many partitions: one commit.
static void test_many_partitions(void **state) {
  (void)state;
  disk = simdisk_create();
  open_on(disk, 0);
  shrink(x, 256 << 10, 3);
  for (uint32_t round = 1; round <= 3; round++) {
    struct xdb_ingest *const g = remixdb_ingest_begin(ref);
    for (uint32_t i = 0; i < MANY; i++) {
      char key[16], value[60];
      memset(value, (int)(round + i % 7), sizeof(value));
      CHECK(remixdb_ingest_put(g, key, key_of(i, key), value, sizeof(value)));
    }
    CHECK(remixdb_ingest_commit(g));
    CHECK(xdb_super(x)->version->nr_parts > 80);
    uint64_t keys = 0, bytes = 0;
    const struct remixdb_range all = {{NULL, 0}, {NULL, 0}};
    CHECK(remixdb_count(ref, &all, &keys, &bytes) && keys == MANY);
    CHECK(bytes > MANY * 66u * 99ull / 100 && bytes < MANY * 66u * 101ull / 100);
    struct xdb_iter *const it = remixdb_iter_create(ref);
    uint32_t nr = 0, len;
    for (remixdb_iter_seek(it, NULL, 0); remixdb_iter_valid(it); remixdb_iter_skip1(it), nr++)
      CHECK(*(const char *)remixdb_iter_value(it, &len) == (char)(round + nr % 7));
    CHECK(nr == MANY);
    remixdb_iter_destroy(it);
    check_files(disk);
  }
  CHECK(remixdb_verify(ref));
  close_it();
  simdisk_destroy(disk);
}

// ---- the progress function

struct telling {
  uint64_t refuse_from, last;  // the function returns false from this many bytes on
  uint32_t calls, refused;
  bool complete;
};

static bool told(void *priv, const char *what, uint64_t done, uint64_t total) {
  struct telling *const t = priv;
  CHECK(strcmp(what, "ingest") == 0 && (total == 0 || done == total) && !t->complete);
  t->calls++;
  t->last = done;
  t->complete = total != 0;
  if (done < t->refuse_from) return true;
  t->refused++;
  return false;
}

static bool ingest_two(void) {
  static char value[2 << 20];
  struct xdb_ingest *const g = remixdb_ingest_begin(ref);
  CHECK(g != NULL);
  for (uint32_t i = 0; i < 60; i++) {
    char key[16];
    CHECK(remixdb_ingest_put(g, key, key_of(i, key), value, 20000));
  }
  return remixdb_ingest_commit(g);
}

// The function may give the ingest up before anybody sees it, and never afterwards.
static void test_progress(void **state) {
  (void)state;
  disk = simdisk_create();
  open_on(disk, 0);
  struct telling t = {.refuse_from = 60 * 20000};  // all bytes, and nobody sees them yet
  remixdb_progress(ref, told, &t);
  CHECK(!ingest_two() && remixdb_errcode() == REMIXDB_ABORTED && t.refused == 1 && !t.complete);
  CHECK(!remixdb_probe(ref, "000000", 6));
  check_files(disk);
  const uint64_t all = t.last;
  t = (struct telling){.refuse_from = all + 1};  // only the last report is above
  CHECK(ingest_two() && remixdb_errcode() == REMIXDB_OK && t.refused == 1 && t.complete);
  CHECK(remixdb_probe(ref, "000000", 6) && remixdb_probe(ref, "000059", 6));
  check_files(disk);
  close_it();
  simdisk_destroy(disk);
}

static bool drop_it(void *priv, const char *what, uint64_t done, uint64_t total) {
  bool *const dropped = priv;
  (void)what;
  (void)done;
  if (total) return true;
  CHECK(*dropped || remixdb_space_drop(x, "dropped"));
  return *dropped = true;
}

// The space is dropped in the commit, before its records are there. mixed: another space has keys in the same
// partition.
static void drop_in_commit(bool mixed) {
  bool dropped = false;
  disk = simdisk_create();
  open_on(disk, 0);
  struct xdb_space *const space = remixdb_space_open(x, "dropped", true), *const other = remixdb_space_open(x, "b",
                                                                                                            true);
  struct xdb_ref *const r = remixdb_space_ref(space), *const b = remixdb_space_ref(other);
  CHECK(r && b);
  if (mixed) CHECK(remixdb_put(b, "k", 1, "v", 1) && remixdb_flush(b) && remixdb_put(b, "l", 1, "w", 1));
  struct xdb_ingest *const g = remixdb_ingest_begin(r);
  CHECK(g);
  for (uint32_t i = 0; i < 1000; i++) {
    char key[16];
    CHECK(remixdb_ingest_put(g, key, key_of(i, key), key, 6));
  }
  remixdb_progress(r, drop_it, &dropped);
  CHECK(!remixdb_ingest_commit(g) && remixdb_errcode() == REMIXDB_GONE && dropped);
  check_files(disk);
  CHECK(remixdb_probe(b, "k", 1) == mixed && remixdb_probe(b, "l", 1) == mixed);
  CHECK(remixdb_put(b, "m", 1, "x", 1) && remixdb_flush(b) && remixdb_verify(b));
  remixdb_unref(r);
  remixdb_unref(b);
  remixdb_space_close(space);
  remixdb_space_close(other);
  close_it();
  simdisk_destroy(disk);
}

static void test_dropped(void **state) {
  (void)state;
  drop_in_commit(false);
  drop_in_commit(true);
}

// The tables of an ingest were numbered before a round made others with older records. Without CURRENT a repair finds
// out which are older.
static void test_numbers(void **state) {
  (void)state;
  struct repair_report report;
  store_make(16);
  struct xdb_ingest *const g = ingest_filled();
  CHECK(g);
  for (uint32_t i = 0; i < KEYS; i += 2) put(i, old_of(i));
  CHECK(remixdb_compact(ref) && remixdb_ingest_commit(g) && has_ingest());
  close_it();
  OK(env_unlink(ENV_PATHS(simdisk_env(disk)), "/store/" FILES_CURRENT));
  OK(repair_store(simdisk_env(disk), "/store", &report));
  CHECK(report.version_lost);
  open_on(disk, 0);
  CHECK(has_ingest());
  close_it();
  simdisk_destroy(disk);
}

// The tables of the partition are much larger than the store makes them now, as after an opening with a smaller
// memtable, and all of its records come into one of the new partitions.
static void test_large_tables(void **state) {
  (void)state;
  char value[300], key[32];
  memset(value, 'v', sizeof(value));
  disk = simdisk_create();
  open_on(disk, 0);
  shrink(x, 1 << 20, 512);
  for (uint32_t round = 0; round < 6; round++) {
    for (uint32_t i = round; i < 6000; i += 6) CHECK(remixdb_put(ref, key, key_of(i, key), value, sizeof(value)));
    CHECK(remixdb_flush(ref));
  }
  CHECK(xdb_super(x)->version->nr_parts == 1 && part_runs(xdb_super(x)->version->parts[0]) >= 3);
  x->compact.build.max_pages = 4;
  struct xdb_ingest *const g = remixdb_ingest_begin(ref);
  CHECK(g);
  for (uint32_t i = 0; i < 2000; i++)
    CHECK(remixdb_ingest_put(g, key, (uint32_t)snprintf(key, sizeof(key), "005998/%06u", i), value, sizeof(value)));
  CHECK(remixdb_ingest_commit(g));
  uint64_t keys = 0;
  struct xdb_iter *const it = remixdb_iter_create(ref);
  CHECK(it);
  for (remixdb_iter_seek(it, NULL, 0); remixdb_iter_valid(it); remixdb_iter_skip1(it)) keys++;
  remixdb_iter_destroy(it);
  CHECK_SAYS(keys == 8000, "%u keys", (uint32_t)keys);
  CHECK(remixdb_flush(ref) && remixdb_compact(ref));
  close_it();
  simdisk_destroy(disk);
}

// ---- more ingests at once than descriptors

#define CROWD 12u        // ingests
#define MANY_KEYS 1500u  // keys of each
#define MANY_VALUE 3000u
#define MANY_LONG 100000u
#define FEW_FILES 16u
#define HELD (FEW_FILES / 4)  // ingests whose tables may stay open

static void many_key(uint32_t g, uint32_t i, char key[16]) { (void)snprintf(key, 16, "%02u/%06u", g, i); }
static void many_value(uint32_t g, uint32_t i, char value[MANY_VALUE]) {
  memset(value, (int)('a' + (g + i) % 26), MANY_VALUE);
}

// Puts the next record. False: it has failed, with the thread's status.
static bool many_put(struct xdb_ingest *in, uint32_t g, uint32_t i) {
  char key[16], value[MANY_VALUE];
  many_key(g, i, key);
  many_value(g, i, value);
  return remixdb_ingest_put(in, key, 9, value, sizeof(value));
}

// A long value behind the record, in a value file of the ingest.
static void many_put_long(struct xdb_ingest *in, uint32_t g, uint32_t i) {
  char key[17];
  static char value[MANY_LONG];
  many_key(g, i, key);
  key[9] = '+';
  memset(value, (int)('A' + (g + i) % 26), sizeof(value));
  CHECK(remixdb_ingest_put(in, key, 10, value, sizeof(value)));
}

static void many_are_long(uint32_t from, uint32_t to, uint32_t i) {
  for (uint32_t g = from; g < to; g++) {
    char key[17];
    static char value[MANY_LONG];
    uint32_t len;
    many_key(g, i, key);
    key[9] = '+';
    CHECK(remixdb_getn(ref, key, 10, value, sizeof(value), &len) && len == MANY_LONG);
    CHECK(value[0] == (char)('A' + (g + i) % 26) && value[MANY_LONG - 1] == value[0]);
  }
}

static void many_are(uint32_t from, uint32_t to) {
  for (uint32_t g = from; g < to; g++) {
    for (uint32_t i = 0; i < MANY_KEYS; i++) {
      char key[16], value[MANY_VALUE], got[MANY_VALUE];
      uint32_t len;
      many_key(g, i, key);
      many_value(g, i, value);
      CHECK(remixdb_getn(ref, key, 9, got, sizeof(got), &len) && len == MANY_VALUE);
      CHECK(memcmp(got, value, MANY_VALUE) == 0);
    }
  }
}

static void many_make(uint32_t files) {
  max_open = files;
  disk = simdisk_create();
  open_on(disk, 0);
  max_open = 0;
  shrink(x, 1 << 20, 1024);
}

// One thread has them all, so nobody would end a wait. A round works meanwhile. shrunk: the bound becomes so small when
// all of them have their tables open.
static void many_at_once(bool shrunk) {
  struct xdb_ingest *in[CROWD];
  many_make(shrunk ? 0 : FEW_FILES);
  const uint32_t before = simdisk_open_files(disk), others = before - fdpool_open_count(x->fds);
  for (uint32_t g = 0; g < CROWD; g++) CHECK((in[g] = remixdb_ingest_begin(ref)) != NULL);
  for (uint32_t i = 0; i < MANY_KEYS; i++) {
    if (i == 1 && shrunk) {
      CHECK(simdisk_open_files(disk) == before + CROWD);
      CHECK(remixdb_set_option(x, "max_open_files", "16"));
    }
    for (uint32_t g = 0; g < CROWD; g++) CHECK(many_put(in[g], g, i));
    if (i % 100 == 7 && i < 1000)
      for (uint32_t g = 0; g < CROWD; g++) many_put_long(in[g], g, i);
    // besides those of the pool there are the log's new segment and the like, and not one for each ingest
    CHECK(shrunk || simdisk_open_files(disk) <= others + fdpool_open_count(x->fds) + 4);
    if (i % 400 != 50) continue;
    put(i, 'p');
    CHECK(remixdb_flush(ref) && remixdb_compact(ref));
  }
  CHECK(shrunk || fdpool_open_count(x->fds) <= FEW_FILES);
  CHECK(!fdpool_hold(x->fds, 1));
  remixdb_ingest_abort(in[0]);
  for (uint32_t g = 1; g < CROWD; g++) CHECK(remixdb_ingest_commit(in[g]));
  CHECK(fdpool_hold(x->fds, HELD) && !fdpool_hold(x->fds, 1));  // all have given back what they held
  fdpool_unhold(x->fds, HELD);
  many_are(1, CROWD);
  for (uint32_t i = 7; i < 1000; i += 100) many_are_long(1, CROWD, i);
  // all that was written with pauses is durable, too
  struct simdisk *const cut = simdisk_crash(disk, check_seed);
  close_it();
  CHECK(simdisk_open_files(disk) == 0);
  simdisk_destroy(disk);
  disk = cut;
  open_on(disk, 0);
  many_are(1, CROWD);
  for (uint32_t i = 7; i < 1000; i += 100) many_are_long(1, CROWD, i);
  CHECK(remixdb_verify(ref));
  check_files(disk);
  close_it();
  simdisk_destroy(disk);
}

static void test_many_at_once(void **state) {
  (void)state;
  many_at_once(false);
  many_at_once(true);
}

// A call fails while a table's file is opened, written or closed for a moment.
static bool many_fails(enum simdisk_call call, uint64_t skip) {
  struct xdb_ingest *held[HELD];
  bool good = true;
  many_make(FEW_FILES);
  for (uint32_t g = 0; g < HELD; g++) {
    CHECK((held[g] = remixdb_ingest_begin(ref)) != NULL);
    CHECK(many_put(held[g], g, 0));
  }
  struct xdb_ingest *const last = remixdb_ingest_begin(ref);
  CHECK(last != NULL);
  const uint32_t before = simdisk_open_files(disk), open = fdpool_open_count(x->fds);
  const uint64_t calls = simdisk_calls(disk, call);
  simdisk_fault(disk, call, skip, 1, EIO);
  for (uint32_t i = 0; i < MANY_KEYS && good; i++) {
    good = many_put(last, HELD, i);
    CHECK(simdisk_open_files(disk) == before && fdpool_open_count(x->fds) == open);
  }
  const bool hit = simdisk_calls(disk, call) - calls > skip;
  CHECK(good || remixdb_errcode() == REMIXDB_IO);
  CHECK(!hit || !good || call == SIMDISK_CLOSE);  // a failed write shows at the put, since it is no other thread's
  simdisk_fault(disk, call, 0, 0, 0);
  CHECK(remixdb_ingest_commit(last) == !hit);
  for (uint32_t g = 0; g < HELD; g++) remixdb_ingest_abort(held[g]);
  if (!hit) many_are(HELD, HELD + 1);
  check_files(disk);
  close_it();
  simdisk_destroy(disk);
  return hit;
}

static void test_many_fail(void **state) {
  (void)state;
  static const enum simdisk_call calls[] = {SIMDISK_OPEN, SIMDISK_WRITE, SIMDISK_SYNC, SIMDISK_CLOSE};
  for (size_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++) {
    uint64_t skip = 0;
    while (many_fails(calls[c], skip)) skip++;
    CHECK(skip >= 2);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls),         cmocka_unit_test(test_power_cuts),
                                     cmocka_unit_test(test_failing_calls), cmocka_unit_test(test_shapes),
                                     cmocka_unit_test(test_unread),        cmocka_unit_test(test_beside),
                                     cmocka_unit_test(test_damaged),       cmocka_unit_test(test_reads_fail),
                                     cmocka_unit_test(test_damaged_full),  cmocka_unit_test(test_progress),
                                     cmocka_unit_test(test_any_length),    cmocka_unit_test(test_many_partitions),
                                     cmocka_unit_test(test_numbers),       cmocka_unit_test(test_dropped),
                                     cmocka_unit_test(test_small),         cmocka_unit_test(test_large_tables),
                                     cmocka_unit_test(test_many_at_once),  cmocka_unit_test(test_many_fail)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
