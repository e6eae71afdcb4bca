// SPDX-License-Identifier: Apache-2.0
//
// Repairs of stores without CURRENT. Where the log and tables have records of the same keys, the newer ones are kept: a
// store makes the tables, and then the test writes a log of its own beside them. Tables of an ingest are kept if it was
// committed.
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>

#include "admin/repair.h"
#include "store/flush.h"
#include "store/ingest.h"
#include "table/format.h"
#include "tests/lib/simdisk.h"
#include "xdb.h"

#define DIR_NAME "/store"
#define LOG_NAME DIR_NAME "/wal-0"

static struct simdisk *disk;
static struct env *env;
static struct xdb *x;
static struct xdb_ref *r;
static struct wal *w;
static uint64_t store_id, hole;
static struct repair_report report;

static struct kref key_of(const char *text) { return kref(text, (uint32_t)strlen(text)); }

// ---- the tables

static void store_open(void) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.workers = 0;
  o.cache_mb = 1;
  o.memtable_mb = 2;
  OK(xdb_open(DIR_NAME, &o, env, &x));
  OK(xdb_ref(x, &r));
}

static void store_close(void) {
  xdb_unref(r);
  OK(xdb_close(x));
}

static void tables_begin(void) {
  disk = simdisk_create();
  env = simdisk_env(disk);
  store_open();
  store_id = x->store_id;
}

static void put(const char *key, const char *value) {
  OK(xdb_put(r, KV_REC(key_of(key), value, (uint32_t)strlen(value), false)));
}

// Puts n other keys, so that the next record has a larger number.
static void put_more(uint32_t n) {
  char key[16];
  for (uint32_t i = 0; i < n; i++) {
    (void)snprintf(key, sizeof(key), "more%u", i);
    put(key, "x");
  }
}

struct list {
  char names[32][32];
  uint32_t nr;
};

static bool add(void *arg, const char *name) {
  struct list *const l = arg;
  CHECK(l->nr < 32);
  (void)snprintf(l->names[l->nr++], sizeof(l->names[0]), "%s", name);
  return true;
}

// Calls fn for each file of the kind. There is at least one.
static void each_file(enum files_kind kind, void (*fn)(const char *path, uint64_t number)) {
  struct list l = {.nr = 0};
  uint32_t files = 0;
  OK(paths_list(env, DIR_NAME, add, &l));
  for (uint32_t i = 0; i < l.nr; i++) {
    char path[64];
    uint64_t number;
    if (files_kind_of(l.names[i], &number) != kind) continue;
    (void)snprintf(path, sizeof(path), DIR_NAME "/%s", l.names[i]);
    fn(path, number);
    files++;
  }
  CHECK(files > 0);
}

static void flip_last(const char *path, uint64_t number) {
  (void)number;
  CHECK(simdisk_flip(disk, path, (uint64_t)simdisk_size(disk, path) - 1, 1));
}

// Damages the footers of all tables: their records can be read, without their numbers.
static void hide_numbers(void) { each_file(FILES_IS_TABLE, flip_last); }

static void flush(void) {
  x->compact.memtable_size = 0;  // each table has its own file
  OK(xdb_flush(x));
}

// CURRENT is lost. Returns the last number of the store.
static uint64_t tables_end(void) {
  flush();
  const uint64_t last = atomic_load(&x->published);
  store_close();
  OK(env_unlink(ENV_PATHS(env), DIR_NAME "/CURRENT"));
  return last;
}

// ---- the log

// from: the number before the first record.
static void log_begin(uint64_t from) {
  const struct wal_opts o = {.dir = simdisk_dir(env, DIR_NAME), .store_id = store_id, .step = 64u << 10};
  OK(wal_open(&o, 1, from, true, NULL, NULL, NULL, &w));
  hole = 0;
}

// own: the number that the record states, as one does that was handed back; 0: none.
static void log_rec(struct kv_rec *rec, uint32_t kind, uint64_t own) {
  uint64_t gen;
  rec->kind |= kind | (own ? KV_SEQ : 0);
  rec->seq = own;
  OK(wal_begin(w, kv_rec_size(rec), &gen));
  (void)wal_put(w, rec);
  wal_end(w);
  OK(wal_sync(w));
}

static void log_put(const char *key, const char *value, uint64_t own) {
  struct kv_rec rec;
  (void)kv_rec_set(&rec, key_of(key), value, (uint32_t)strlen(value), 0);
  log_rec(&rec, 0, own);
}

static void log_del(const char *key) {
  struct kv_rec rec;
  (void)kv_rec_set(&rec, key_of(key), NULL, 0, KV_TOMB);
  log_rec(&rec, 0, 0);
}

static void log_range(const char *from, const char *to) {
  struct kv_rec rec;
  (void)kv_rec_set(&rec, key_of(from), to, (uint32_t)strlen(to), 0);
  log_rec(&rec, KV_RANGE, 0);
}

// The next record of the log will be lost.
static void log_hole(void) { hole = wal_segment_bytes(w); }

// Ends the first segment, begins the next, and breaks the frame at the hole.
static void log_end(void) {
  OK(wal_switch(w, NULL, NULL));
  log_put("last", "x", 0);
  OK(wal_close(w));
  if (hole) CHECK(simdisk_flip(disk, LOG_NAME, hole + 45, 1));
}

// ---- the repair

static void check_value(const char *key, const char *value) {
  char buf[64];
  uint32_t len = 0;
  const enum remixdb_status s = xdb_get(r, key_of(key), buf, sizeof(buf) - 1, &len);
  if (!value) {
    FAILS(s, REMIXDB_NOTFOUND);
    return;
  }
  OK(s);
  buf[len] = '\0';
  CHECK_SAYS(strcmp(buf, value) == 0, "%s has \"%s\" in place of \"%s\"", key, buf, value);
}

static void repair(void) {
  OK(repair_store(env, DIR_NAME, &report));
  CHECK(report.version_lost);
  store_open();
  check_value("last", "x");
}

static bool report_has(const char *text) {
  uint8_t *buf;
  size_t len;
  OK(paths_read_file(ENV_PATHS(env), DIR_NAME "/lost.1/REPORT", 1 << 20, &buf, &len));
  char *const all = test_malloc(len + 1);
  memcpy(all, buf, len);
  all[len] = '\0';
  const bool has = strstr(all, text) != NULL;
  test_free(all);
  mem_free(buf);
  return has;
}

static void end(void) {
  store_close();
  simdisk_destroy(disk);
}

// ---- tests

enum numbers { KNOWN, HIDDEN };

// The log says "old" before the hole, the hole "new", the tables what they were given. back: the tables have a record
// that the log has, too, because it was handed back.
static void repair_hole(enum numbers numbers, bool released, bool same, bool back) {
  tables_begin();
  if (released) put_more(8);
  put("key", released ? "new" : "before");
  if (same || back) put("other", "same");
  const uint64_t last = tables_end();
  if (numbers == HIDDEN) hide_numbers();
  log_begin(released ? 0 : last);
  if (back) log_put("first", "x", 0);
  log_put("other", "same", back ? 1 : 0);
  log_put("key", "old", 0);
  log_hole();
  log_put("key", "new", 0);
  log_end();
  repair();
  CHECK(report.more_lost && report.losses >= 2);
  CHECK(report_has("is a guess") == (numbers == HIDDEN));
}

// A segment that had been released does not bring back what the tables have a newer version of; one that had not is
// newer than they are, also if a record in it was handed back. Without numbers the repair finds out by equal values.
static void test_released_and_a_hole(void **state) {
  (void)state;
  for (uint32_t i = KNOWN; i <= HIDDEN; i++) {
    repair_hole(i, true, true, false);
    check_value("key", "new");
    end();
    for (uint32_t back = 0; back < 2; back++) {
      repair_hole(i, false, false, back);
      check_value("key", "old");
      end();
    }
  }
}

// One key was written again with the value that tables have: that does not show that the segment was released.
static void test_same_value_again(void **state) {
  (void)state;
  repair_hole(KNOWN, false, true, false);
  check_value("key", "old");
  check_value("other", "same");
  end();
}

// The tables have the keys "in" and "out". The log has the deletion of a range with "in" and, in its hole, a newer
// record of "in".
static void repair_range(enum numbers numbers, bool released) {
  tables_begin();
  if (released) put_more(8);
  put("in", "table");
  put("out", "table");
  const uint64_t last = tables_end();
  if (numbers == HIDDEN) hide_numbers();
  log_begin(released ? 0 : last);
  log_range("i", "j");
  log_hole();
  log_put("in", "new", 0);
  log_end();
  repair();
  check_value("out", "table");
}

// The deletion of a range in a segment that had been released takes nothing from the tables. Without numbers none does,
// and the report says so.
static void test_range_and_a_hole(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 4; i++) {
    const enum numbers numbers = i % 2 ? HIDDEN : KNOWN;
    const bool released = i / 2;
    repair_range(numbers, released);
    check_value("in", numbers == HIDDEN || released ? "table" : NULL);
    CHECK(report_has("deleted keys may come back\n") == (numbers == HIDDEN || released));
    CHECK(report.more_lost);
    end();
  }
}

// Writes beside an ingest's commit are older than it, and so is a record that was handed over behind it. The log has
// them, without a hole, because power went before their segment was removed.
static void test_older_than_an_ingest(void **state) {
  (void)state;
  static const char *const keys[] = {"a deleted one", "key", "later"};
  for (uint32_t handed = 0; handed < 2; handed++) {
    struct xdb_ingest *g;
    tables_begin();
    put_more(8);
    OK(ingest_begin(r, &g));
    for (uint32_t i = 0; i < 3; i++) OK(ingest_put(g, key_of(keys[i]), "ingested", 8));
    OK(ingest_commit(g));
    const uint64_t last = tables_end();
    log_begin(handed ? last : 0);
    log_put("key", "before", handed);
    if (!handed) log_del("a deleted one");
    if (!handed) log_range("k", "l");
    if (handed) log_put("later", "after", 0);
    log_end();
    repair();
    check_value("a deleted one", "ingested");
    check_value("key", "ingested");
    check_value("later", handed ? "after" : "ingested");
    CHECK(report_has("newer ones of the same keys"));
    CHECK(report_has("deleted keys may come back\n") == !handed);
    end();
  }
}

// ---- ingests

static uint64_t new_number, from_table;

// Writes the number into the table's footer, as an ingest does, if the table is new enough and finished.
static void renumber(const char *path, uint64_t number) {
  struct sst *t;
  if (number < from_table || simdisk_size(disk, path) == 0) return;
  OK(sst_open(&x->ctx, number, &t));
  OK(sst_renumber(t, new_number));
  sst_unref(t);
}

static void unlink_file(const char *path, uint64_t number) {
  (void)number;
  OK(env_unlink(ENV_PATHS(env), path));
}

// Puts 200 records of 1000 bytes, so that all tables but the last are finished.
static void ingest_many(struct xdb_ingest *g) {
  char key[16], value[1000] = "";
  for (uint32_t i = 0; i < 200; i++) {
    (void)snprintf(key, sizeof(key), "ingest%03u", i);
    OK(ingest_put(g, key_of(key), value, sizeof(value)));
  }
}

// Power goes before an ingest is committed: no record of it is kept. cut: a round has cut its tables.
static void repair_uncommitted(bool cut) {
  struct xdb_ingest *g;
  tables_begin();
  put_more(8);
  flush();
  x->compact.build.max_pages = 8;
  from_table = atomic_load(&x->compact.next_file);
  OK(ingest_begin(r, &g));
  ingest_many(g);
  new_number = FORMAT_SST_SEQ_MAX;
  if (cut) each_file(FILES_IS_TABLE, renumber);
  put("after", "x");
  flush();  // syncs the directory, too
  struct simdisk *const after = simdisk_crash(disk, 1);
  ingest_abort(g);
  end();
  disk = after;
  env = simdisk_env(disk);
  OK(env_unlink(ENV_PATHS(env), DIR_NAME "/CURRENT"));
  OK(repair_store(env, DIR_NAME, &report));
  store_open();
  check_value("more0", "x");
  for (uint32_t i = 0; i < 200; i++) {
    char key[16];
    (void)snprintf(key, sizeof(key), "ingest%03u", i);
    check_value(key, NULL);
  }
  CHECK(report_has("was not committed"));
  check_value("after", "x");
  CHECK(report.tables == 2 && report.tables_damaged == 0);
  end();
}

static void test_uncommitted_ingest(void **state) {
  (void)state;
  repair_uncommitted(false);
  repair_uncommitted(true);
}

// A table of a version may look like one of an ingest that was not committed. An ingest into an empty store has the
// number 1; then no table is older. Merges of old formats' tables give the number 1, too; then a REMIX has the table.
static void repair_committed(bool first, bool without_remix) {
  struct xdb_ingest *g;
  tables_begin();
  if (!first) put_more(8);
  flush();
  from_table = atomic_load(&x->compact.next_file);
  OK(ingest_begin(r, &g));
  OK(ingest_put(g, key_of("a"), "1", 1));
  OK(ingest_put(g, key_of("b"), "2", 1));
  OK(ingest_commit(g));
  new_number = 1;
  each_file(FILES_IS_TABLE, renumber);
  const uint64_t last = tables_end();
  if (without_remix) each_file(FILES_IS_REMIX, unlink_file);
  log_begin(last);
  log_end();
  repair();
  check_value("a", "1");
  check_value("b", "2");
  CHECK(!report_has("was not committed"));
  end();
}

static void test_committed_ingest(void **state) {
  (void)state;
  repair_committed(true, false);
  repair_committed(true, true);
  repair_committed(false, false);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_released_and_a_hole), cmocka_unit_test(test_same_value_again),
      cmocka_unit_test(test_range_and_a_hole),    cmocka_unit_test(test_older_than_an_ingest),
      cmocka_unit_test(test_uncommitted_ingest),  cmocka_unit_test(test_committed_ingest),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
