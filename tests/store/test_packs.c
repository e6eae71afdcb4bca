// SPDX-License-Identifier: Apache-2.0
//
// Packs in a store: a flush makes few files, however many partitions it writes to, and syncs few, of the log next to
// nothing; the room of what died comes back; old moments, checkpoints and repairs read what they need.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <unistd.h>

#include "admin/checkpoint.h"
#include "admin/destroy.h"
#include "admin/repair.h"
#include "admin/stats.h"
#include "admin/verify.h"
#include "store/snapshot.h"
#include "tests/lib/paths.h"
#include "tests/lib/store.h"

#define TABLE_PAGES 4u
#define VALUE 60u
#define MOST 8u  // files made, and syncs, of a flush

// ---- an env that counts

static struct env_ops ops;
static struct env env = {.ops = &ops};
static _Atomic uint32_t nr_made, nr_syncs, nr_punched;

#define FDS 1024
#define LOGS 8
#define LOG_PAGES 4096u  // pages of a log file at most

// Files of the log, by descriptor (0: another file) and number; their pages that were written since the last sync.
static _Atomic uint32_t log_of[FDS];
static _Atomic bool log_dirty[LOGS][LOG_PAGES];
static _Atomic uint64_t log_written, log_synced;  // bytes of the log, and pages of it that syncs wrote

static int counting_open(struct env *e, int at, const char *path, unsigned flags) {
  nr_made += (flags & ENV_CREATE) != 0;
  const int fd = env_posix()->ops->open(e, at, path, flags);
  CHECK(fd < FDS);
  if (fd >= 0) log_of[fd] = strncmp(path, "wal-", 4) == 0 ? 1 + (uint32_t)atoi(path + 4) : 0;
  return fd;
}

static ssize_t counting_write(struct env *e, int fd, const void *buf, size_t len, uint64_t off) {
  if (log_of[fd]) {
    CHECK(log_of[fd] <= LOGS && (off + len) / 4096 < LOG_PAGES);
    for (uint64_t p = off / 4096; p <= (off + len - 1) / 4096; p++) log_dirty[log_of[fd] - 1][p] = true;
    log_written += len;
  }
  return env_posix()->ops->pwrite(e, fd, buf, len, off);
}

static int counting_sync_head(struct env *e, int fd, uint64_t len) {
  (void)e;
  nr_syncs++;
  for (uint64_t p = 0; log_of[fd] && p < LOG_PAGES && p * 4096 < len; p++)
    log_synced += atomic_exchange(&log_dirty[log_of[fd] - 1][p], false);
  return 0;
}

static int counting_sync(struct env *e, int fd) { return counting_sync_head(e, fd, UINT64_MAX); }

static int counting_punch(struct env *e, int fd, uint64_t off, uint64_t len) {
  nr_punched++;
  return env_posix()->ops->punch(e, fd, off, len);
}

static struct xdb *open_in(const char *path, int workers) {
  struct remixdb_opts o;
  struct xdb *x;
  ops = *env_posix()->ops;
  ops.open = counting_open;
  ops.pwrite = counting_write;
  ops.sync_data = ops.sync_all = counting_sync;
  ops.sync_head = counting_sync_head;
  ops.punch = counting_punch;
  remixdb_opts_init(&o, sizeof(o));
  o.create = true;
  o.cache_mb = 4;
  o.memtable_mb = 4;
  o.workers = workers;
  o.worker_cores = "none";
  OK(xdb_open(path, &o, &env, &x));
  x->compact.build.max_pages = TABLE_PAGES;
  x->compact.memtable_size = 0;  // nothing is handed back
  return x;
}

static struct kref key_of(uint32_t i) {
  static char buf[32];
  return kref(buf, (uint32_t)snprintf(buf, sizeof(buf), "key%08u", i));
}

static void put(struct xdb_ref *r, uint32_t i, uint32_t what) {
  uint8_t val[VALUE];
  uint64_t seed = (uint64_t)what << 32 | i;
  for (uint32_t at = 0; at < VALUE; at += 4) store32le(val + at, (uint32_t)rng_next(&seed));
  OK(xdb_put(r, KV_REC(key_of(i), val, VALUE, false)));
}

// All keys are there; what[i]: of the last put.
static void expect(struct xdb_ref *r, const uint32_t *what, uint32_t nr) {
  struct xdb_iter *it;
  uint32_t i = 0;
  OK(xdb_iter_create(r, &it));
  for (OK(xdb_iter_seek(it, kref(NULL, 0))); xdb_iter_valid(it); OK(xdb_iter_skip(it, 1)), i++) {
    struct kv_rec rec;
    uint64_t seed = (uint64_t)what[i] << 32 | i;
    OK(xdb_iter_record(it, &rec));
    CHECK(i < nr && kv_eq(kref(rec.key, rec.klen), key_of(i)) && rec.vlen == VALUE);
    for (uint32_t at = 0; at < VALUE; at += 4) CHECK(load32le(rec.val + at) == (uint32_t)rng_next(&seed));
  }
  CHECK(i == nr);
  xdb_iter_destroy(it);
}

static const struct version *version_of(struct xdb *x) { return atomic_load(&x->super)->version; }

// Fills the store until it has so many partitions.
static uint32_t grow(struct xdb *x, struct xdb_ref *r, uint32_t parts, uint32_t *what, uint32_t most) {
  uint32_t nr = 0;
  while (version_of(x)->nr_parts < parts) {
    for (uint32_t n = 0; n < 2000 && nr < most; n++, nr++) put(r, nr, what[nr] = 1);
    OK(xdb_flush(x));
    CHECK(nr < most);
  }
  return nr;
}

struct counts {
  uint32_t made, syncs;
};

// A flush of `every`-th keys.
static struct counts flush_some(struct xdb *x, struct xdb_ref *r, uint32_t *what, uint32_t nr, uint32_t every,
                                uint32_t now) {
  for (uint32_t i = now % every; i < nr; i += every) put(r, i, what[i] = now);
  OK(xdb_wait_idle(x));
  const struct counts before = {nr_made, nr_syncs};
  OK(xdb_flush(x));
  OK(xdb_wait_idle(x));
  return (struct counts){nr_made - before.made, nr_syncs - before.syncs};
}

// The room of the store's files on the disk, and the bytes of its tables and REMIX files, in pages.
struct room {
  uint64_t disk, needed;
  uint32_t packs, files;
};

static bool add_room(void *arg, const char *name) {
  struct room *const m = arg;
  char path[3 * TEMP_DIR];
  struct stat st;
  const enum files_kind kind = files_kind_of(name, NULL);
  if (kind != FILES_IS_PACK && kind != FILES_IS_TABLE && kind != FILES_IS_REMIX) return true;
  (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
  CHECK(stat(path, &st) == 0);
  m->disk += 512ull * (uint64_t)st.st_blocks;
  m->packs += kind == FILES_IS_PACK;
  m->files += kind != FILES_IS_PACK;
  return true;
}

static struct room room_of(struct xdb *x) {
  struct room m = {0};
  OK(paths_list(env_posix(), dir, add_room, &m));
  for (uint32_t i = 0; i < version_of(x)->nr_parts; i++) {
    struct part_files f;
    part_files(version_of(x)->parts[i], &f);
    m.needed += pack_align(f.remix.size) + pack_align(f.young.size);
    for (uint32_t t = 0; t < f.nr; t++) m.needed += pack_align(f.tables[t].size);
  }
  return m;
}

// A file system of the test that makes no holes shows nothing.
static bool holes(struct xdb *x) { return packs_can(x->packs); }

static void flush_files(uint32_t parts, int workers) {
  static uint32_t what[400000];
  setup_again();
  struct xdb *const x = open_in(dir, workers);
  struct xdb_ref *r;
  OK(xdb_ref(x, &r));
  const uint32_t nr = grow(x, r, parts, what, 400000), every = nr / parts / 4;
  struct counts most = {0};
  if (!holes(x)) skip();
  for (uint32_t round = 2; round < 40; round++) {
    const struct counts c = flush_some(x, r, what, nr, every, round);
    if (c.made > most.made) most.made = c.made;
    if (c.syncs > most.syncs) most.syncs = c.syncs;
    if (round % 10 == 0) expect(r, what, nr);
  }
  const struct room m = room_of(x);
  struct packs_stats st;
  packs_measure(x->packs, &st);
  CHECK_SAYS(most.made <= MOST && most.syncs <= MOST, "%u partitions: %u files made, %u syncs", version_of(x)->nr_parts,
             most.made, most.syncs);
  CHECK(m.packs > 0 && st.nr == m.packs);
  CHECK_SAYS(st.dead_bytes == 0, "%llu bytes of dead parts", (unsigned long long)st.dead_bytes);
  // besides the parts there are only directories: a page and what the file system needs
  CHECK_SAYS(m.disk <= m.needed + (uint64_t)m.packs * 65536 + m.needed / 50, "%llu bytes on disk for %llu, %u packs",
             (unsigned long long)m.disk, (unsigned long long)m.needed, m.packs);
  struct verify_report report;
  OK(verify_store(r, &report));
  xdb_unref(r);
  OK(xdb_close(x));
  // after a clean close an opening gives nothing back: nothing is to give
  struct xdb *const again = open_in(dir, workers);
  OK(xdb_ref(again, &r));
  expect(r, what, nr);
  const uint32_t open = fdpool_open_count(again->fds);
  const struct room now = room_of(again);  // the close may have written some more
  CHECK_SAYS(open <= 2 * now.packs + now.files, "%u descriptors of %u packs and %u files", open, now.packs, now.files);
  xdb_unref(r);
  OK(xdb_close(again));
}

static void test_flush_4(void **state) {
  (void)state;
  flush_files(4, 0);
  flush_files(4, 2);
}

static void test_flush_400(void **state) {
  (void)state;
  flush_files(400, 1);
}

// When a round ends, the records of its memtable are in tables, and the user may sync those of the next one. So rounds
// sync no more of the log than its beginning and what they hand back, also in files that have been segments before.
static void test_log_of_rounds(void **state) {
  (void)state;
  static uint32_t what[60000];
  setup_again();
  struct xdb *const x = open_in(dir, 0);
  struct xdb_ref *r;
  OK(xdb_ref(x, &r));
  const uint32_t nr = grow(x, r, 12, what, 60000);
  x->compact.memtable_size = 4u << 20;
  const struct compact_stats *const stats = &x->compact.stats;
  const uint64_t written = log_written, synced = log_synced, rounds = stats->rounds, back = stats->handed_back;
  // all over the keys, but a few records only in the last partition, which hands them back
  for (uint32_t i = 0; i < 150000; i++) {
    const uint32_t k = i % 10000 == 0 ? nr - 1 - i / 10000 : (uint32_t)(i * 7919ull % (nr - nr / 6));
    put(r, k, what[k] = 2 + i);
  }
  const uint64_t more = log_written - written, forced = 4096 * (log_synced - synced),
                 handed = stats->handed_back - back, made = stats->rounds - rounds;
  print_message("%u rounds, %u bytes handed back, %u of %u bytes of the log synced\n", (unsigned)made, (unsigned)handed,
                (unsigned)forced, (unsigned)more);
  CHECK(made >= 4 && handed > 0 && forced >= 4096 * made && forced <= 4 * 4096 * made);
  xdb_unref(r);
  OK(xdb_close(x));
}

// ---- readers of old moments

static void test_snapshot(void **state) {
  (void)state;
  static uint32_t what[60000], then[60000];
  setup_again();
  struct xdb *const x = open_in(dir, 0);
  struct xdb_ref *r, *old;
  struct xdb_snapshot *snap;
  OK(xdb_ref(x, &r));
  const uint32_t nr = grow(x, r, 12, what, 60000);
  if (!holes(x)) skip();
  (void)flush_some(x, r, what, nr, 30, 2);
  memcpy(then, what, sizeof(what));
  OK(xdb_snapshot(r, &snap));
  OK(xdb_snapshot_ref(snap, &old));
  for (uint32_t round = 3; round < 20; round++) (void)flush_some(x, r, what, nr, 10, round);
  OK(xdb_compact(x));
  expect(old, then, nr);
  expect(r, what, nr);
  const struct room with = room_of(x);
  xdb_unref(old);
  xdb_snapshot_release(snap);
  (void)flush_some(x, r, what, nr, 10, 20);
  const struct room without = room_of(x);
  CHECK(without.disk < with.disk);
  expect(r, what, nr);
  xdb_unref(r);
  OK(xdb_close(x));
}

// A checkpoint shares packs: neither side makes holes in them while both names are there.
static void test_checkpoint(void **state) {
  (void)state;
  static uint32_t what[60000], then[60000];
  char other[3 * TEMP_DIR];
  setup_again();
  struct xdb *const x = open_in(dir, 0);
  struct xdb_ref *r, *s;
  OK(xdb_ref(x, &r));
  (void)snprintf(other, sizeof(other), "%s/checkpoint", dir);
  const uint32_t nr = grow(x, r, 12, what, 60000);
  if (!holes(x)) skip();
  (void)flush_some(x, r, what, nr, 30, 2);
  memcpy(then, what, sizeof(what));
  OK(checkpoint_make(r, other));
  for (uint32_t round = 3; round < 8; round++) (void)flush_some(x, r, what, nr, 10, round);
  struct packs_stats st;
  packs_measure(x->packs, &st);
  CHECK(st.dead_bytes > 0);
  struct xdb *copy = open_in(other, 0);
  OK(xdb_ref(copy, &s));
  expect(s, then, nr);
  for (uint32_t round = 50; round < 60; round++) (void)flush_some(copy, s, then, nr, 10, round);
  struct verify_report report;
  OK(verify_store(s, &report));
  expect(s, then, nr);
  expect(r, what, nr);
  OK(verify_store(r, &report));
  xdb_unref(s);
  OK(xdb_close(copy));
  OK(destroy_store(&env, other));
  (void)flush_some(x, r, what, nr, 10, 21);
  packs_measure(x->packs, &st);
  CHECK_SAYS(st.dead_bytes == 0, "%llu bytes of dead parts", (unsigned long long)st.dead_bytes);
  expect(r, what, nr);
  xdb_unref(r);
  OK(xdb_close(x));
}

// ---- repair

static bool hurt_packs(void *arg, const char *name) {
  char path[3 * TEMP_DIR];
  const uint8_t wrong = 0x5a;
  if (files_kind_of(name, NULL) != FILES_IS_PACK) return true;
  (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
  const int fd = open(path, O_WRONLY);
  struct stat st;
  CHECK(fd >= 0 && fstat(fd, &st) == 0);
  CHECK(pwrite(fd, &wrong, 1, st.st_size - 30) == 1);  // in the footer
  CHECK(close(fd) == 0);
  ++*(uint32_t *)arg;
  return true;
}

// how 0: CURRENT is lost; 1: and the packs' footers are damaged; 2: the footers, with CURRENT.
static void repair(int how) {
  static uint32_t what[60000];
  setup_again();
  struct xdb *x = open_in(dir, 0);
  struct xdb_ref *r;
  uint32_t hurt = 0;
  OK(xdb_ref(x, &r));
  const uint32_t nr = grow(x, r, 12, what, 60000);
  if (!holes(x)) skip();
  for (uint32_t round = 2; round < 12; round++) (void)flush_some(x, r, what, nr, 25, round);
  xdb_unref(r);
  OK(xdb_close(x));
  char path[3 * TEMP_DIR];
  (void)snprintf(path, sizeof(path), "%s/CURRENT", dir);
  if (how < 2) CHECK(unlink(path) == 0);
  if (how > 0) OK(paths_list(env_posix(), dir, hurt_packs, &hurt));
  CHECK(how == 0 || hurt > 0);
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  FAILS(xdb_open(dir, &o, &env, &x), REMIXDB_CORRUPT);
  struct repair_report report;
  OK(repair_store(&env, dir, &report));
  CHECK(report.tables > 0 && report.tables_lost == 0 && report.tables_damaged == 0);
  x = open_in(dir, 0);
  OK(xdb_ref(x, &r));
  expect(r, what, nr);
  xdb_unref(r);
  OK(xdb_close(x));
}

static void test_repair(void **state) {
  (void)state;
  for (int how = 0; how < 3; how++) repair(how);
}

// ---- a damaged pack

static void test_missing(void **state) {
  (void)state;
  static uint32_t what[60000];
  setup_again();
  struct xdb *x = open_in(dir, 0);
  struct xdb_ref *r;
  uint32_t hurt = 0;
  OK(xdb_ref(x, &r));
  const uint32_t nr = grow(x, r, 12, what, 60000);
  if (!holes(x)) skip();
  (void)flush_some(x, r, what, nr, 25, 2);
  xdb_unref(r);
  OK(xdb_close(x));
  OK(paths_list(env_posix(), dir, hurt_packs, &hurt));
  CHECK(hurt > 0);
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  FAILS(xdb_open(dir, &o, &env, &x), REMIXDB_CORRUPT);
  CHECK(strstr(err_msg(), ".pack") != NULL);
  OK(destroy_store(&env, dir));
  CHECK(access(dir, F_OK) != 0);
  CHECK(mkdir(dir, 0700) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_flush_4, setup, teardown),
      cmocka_unit_test_setup_teardown(test_flush_400, setup, teardown),
      cmocka_unit_test_setup_teardown(test_log_of_rounds, setup, teardown),
      cmocka_unit_test_setup_teardown(test_snapshot, setup, teardown),
      cmocka_unit_test_setup_teardown(test_checkpoint, setup, teardown),
      cmocka_unit_test_setup_teardown(test_repair, setup, teardown),
      cmocka_unit_test_setup_teardown(test_missing, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
