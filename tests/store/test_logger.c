// SPDX-License-Identifier: Apache-2.0
//
// A logger that uses the store. Compaction may wait for the logger, so a call that must wait for compaction fails
// there, and everything else works.
#include "tests/lib/store.h"

#include "remixdb.h"

#define KEYS 4000u
#define VALUE 200u
#define MEMTABLE (256u << 10)

struct told;
typedef bool (*call_fn)(struct told *t);  // false: the call has failed

struct told {
  struct xdb *x;
  struct xdb *other;           // a second store
  call_fn call;                // the logger does it once
  _Atomic bool now, done;      // it is to do it; it has
  enum remixdb_status status;  // the status of the call, and its message
  char msg[256];
};

static struct told told;

// Takes the first line of a round: the memtable is in tables, and the round goes on.
static void logger(void *priv, const char *line) {
  struct told *const t = priv;
  if (strncmp(line, "compaction: ", 12) != 0 || !atomic_exchange(&t->now, false)) return;
  t->status = t->call(t) ? REMIXDB_OK : remixdb_errcode();
  (void)snprintf(t->msg, sizeof(t->msg), "%s", remixdb_errmsg());
  atomic_store(&t->done, true);
}

static bool put(struct xdb_ref *r, uint32_t i) {
  char key[16], value[VALUE];
  memset(value, (int)i, sizeof(value));
  return remixdb_put(r, key, (uint32_t)snprintf(key, sizeof(key), "%08u", i), value, sizeof(value));
}

static bool fill(struct xdb_ref *r, uint32_t nr) {
  bool good = true;
  for (uint32_t i = 0; good && i < nr; i++) good = put(r, i);
  return good;
}

// ---- what the logger does

static bool with_ref(struct xdb *x, bool (*fn)(struct xdb_ref *r)) {
  struct xdb_ref *const r = remixdb_ref_borrow(x);
  THREAD_CHECK(r != NULL);
  const bool good = fn(r);
  const enum remixdb_status s = remixdb_ref_errcode(r);
  THREAD_CHECK(good == (s == REMIXDB_OK));
  remixdb_ref_return(r);
  return good;
}

// Much more than the memtables hold.
static bool put_many(struct xdb_ref *r) { return fill(r, 100 * KEYS); }
static bool put_one(struct xdb_ref *r) { return put(r, KEYS) && remixdb_sync(r); }
static bool read_all(struct xdb_ref *r) {
  struct xdb_snapshot *const snap = remixdb_snapshot(r);
  struct xdb_iter *const it = remixdb_iter_create(r);
  bool good = snap && it && remixdb_get(r, "00000000", 8, NULL, NULL);
  for (remixdb_iter_seek(it, NULL, 0); good && remixdb_iter_valid(it);) remixdb_iter_skip(it, 100);
  good = good && remixdb_iter_status(it) == REMIXDB_OK;
  remixdb_iter_destroy(it);
  remixdb_snapshot_release(snap);
  return good && remixdb_verify(r);
}
static bool compact_range(struct xdb_ref *r) { return remixdb_compact_range(r, &(struct remixdb_range){0}); }
static bool del_range(struct xdb_ref *r) { return remixdb_del_range(r, &(struct remixdb_range){0}); }

// The memtable has room for a half of it.
static bool write_batch(struct xdb_ref *r) {
  char key[16];
  static const char value[MEMTABLE / 16];
  bool good = true;
  for (uint32_t n = 0; good && n < 64; n++) {
    struct xdb_batch *const b = remixdb_batch_create();
    for (uint32_t i = 0; good && i < 12; i++)
      good = remixdb_batch_put(b, key, (uint32_t)snprintf(key, sizeof(key), "b%u", i), value, sizeof(value) / 16);
    good = good && remixdb_write(r, b);
    remixdb_batch_destroy(b);
  }
  return good;
}

static bool ingest(struct xdb_ref *r) {
  struct xdb_ingest *const g = remixdb_ingest_begin(r);
  return g && remixdb_ingest_put(g, "ingested", 8, "v", 1) && remixdb_ingest_commit(g);
}

static bool do_put_many(struct told *t) { return with_ref(t->x, put_many); }
static bool do_put_one(struct told *t) { return with_ref(t->x, put_one); }
static bool do_read(struct told *t) { return with_ref(t->x, read_all); }
static bool do_flush(struct told *t) { return with_ref(t->x, remixdb_flush); }
static bool do_compact(struct told *t) { return with_ref(t->x, remixdb_compact); }
static bool do_compact_range(struct told *t) { return with_ref(t->x, compact_range); }
static bool do_del_range(struct told *t) { return with_ref(t->x, del_range); }
static bool do_write(struct told *t) { return with_ref(t->x, write_batch); }
static bool do_ingest(struct told *t) { return with_ref(t->x, ingest); }
static bool do_set_option(struct told *t) { return remixdb_set_option(t->x, "max_open_files", "100"); }
static bool do_drop(struct told *t) { return remixdb_space_drop(t->x, "there"); }

static bool do_open_space(struct told *t) {
  struct xdb_space *const made = remixdb_space_open(t->x, "new", true);
  remixdb_space_close(made);
  return made != NULL;
}

static bool do_open_again(struct told *t) {
  struct xdb_space *const again = remixdb_space_open(t->x, "there", false);
  remixdb_space_close(again);
  return again != NULL;
}

static bool do_close(struct told *t) {
  remixdb_close(t->x);
  return remixdb_errcode() == REMIXDB_OK;
}

static bool do_txn(struct told *t) {
  bool good = true;
  for (uint32_t n = 0; good && n < 100; n++) {
    struct xdb_txn *const txn = remixdb_txn_begin(t->x);
    good = txn && fill(remixdb_txn_ref(txn, NULL), KEYS / 4) && remixdb_txn_commit(txn);
  }
  return good;
}

// The other store does its rounds while this one's logger waits for it.
static bool fill_and_compact(struct xdb_ref *r) { return fill(r, 2 * KEYS) && remixdb_compact(r); }
static bool do_other(struct told *t) { return with_ref(t->other, fill_and_compact); }

static const struct {
  const char *name;
  call_fn call;
  enum remixdb_status status;  // the call's
} all[] = {
    {"put, many times", do_put_many, REMIXDB_INVALID},
    {"write, many times", do_write, REMIXDB_INVALID},
    {"commit, many times", do_txn, REMIXDB_INVALID},
    {"flush", do_flush, REMIXDB_INVALID},
    {"compact", do_compact, REMIXDB_INVALID},
    {"compact_range", do_compact_range, REMIXDB_INVALID},
    {"del_range", do_del_range, REMIXDB_INVALID},
    {"ingest", do_ingest, REMIXDB_INVALID},
    {"set_option", do_set_option, REMIXDB_INVALID},
    {"space_open", do_open_space, REMIXDB_INVALID},
    {"space_drop", do_drop, REMIXDB_INVALID},
    {"close", do_close, REMIXDB_INVALID},
    {"put and sync", do_put_one, REMIXDB_OK},
    {"reads", do_read, REMIXDB_OK},
    {"space_open of an open one", do_open_again, REMIXDB_OK},
    {"another store", do_other, REMIXDB_OK},
};

static struct xdb *open_in(const char *where, int workers, bool logs) {
  struct remixdb_opts o = small_opts(workers);
  struct xdb *x;
  o.logger = logs ? logger : NULL;
  o.logger_priv = &told;
  OK(xdb_open(where, &o, quick_env(), &x));
  shrink(x, MEMTABLE, 20);
  x->ranges.few = x->ranges.cut_few = x->ranges.most = 10;
  return x;
}

static void try_call(uint32_t i, int workers) {
  char second[3 * TEMP_DIR];
  setup_again();
  (void)snprintf(second, sizeof(second), "%s/second", dir);
  told = (struct told){.call = all[i].call};
  told.x = open_in(dir, workers, true);
  told.other = open_in(second, workers, true);
  struct xdb_ref *const r = remixdb_ref(told.x);
  struct xdb_space *const space = remixdb_space_open(told.x, "there", true);
  CHECK(r && space && fill(r, KEYS) && remixdb_flush(r) && put(r, 0));
  atomic_store(&told.now, true);
  CHECK(remixdb_flush(r));
  // a flush without workers has done all; else the line comes a little later
  while (!atomic_load(&told.done)) (void)usleep(1000);
  CHECK_SAYS(told.status == all[i].status, "%s, workers %d: %s: %s", all[i].name, workers,
             remixdb_strerror(told.status), told.msg);
  CHECK_SAYS(told.status == REMIXDB_OK || strstr(told.msg, "logger"), "%s: %s", all[i].name, told.msg);
  // outside of the logger all of it works
  told.call = NULL;
  CHECK(fill(r, KEYS) && remixdb_flush(r) && remixdb_compact(r) && remixdb_space_drop(told.x, "there"));
  CHECK(remixdb_set_option(told.x, "max_open_files", "200") && remixdb_verify(r) && del_range(r));
  CHECK(!remixdb_get(r, "00000000", 8, NULL, NULL) && remixdb_errcode() == REMIXDB_NOTFOUND);
  remixdb_space_close(space);
  remixdb_unref(r);
  remixdb_close(told.other);
  remixdb_close(told.x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

static void test_calls(void **state) {
  (void)state;
  for (uint32_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
    hang_step = all[i].name;
    for (int workers = 0; workers <= 2; workers += 2) try_call(i, workers);
  }
}

int main(void) {
  hang_alarm();
  const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_calls, setup, teardown)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
