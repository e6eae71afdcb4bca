// SPDX-License-Identifier: Apache-2.0
//
// Records that expire: absent to every call from their time on, wherever they are; gone after compaction, and no older
// version rises again; judged by the clock of a snapshot; a wrong clock loses nothing for good; and a store of which
// all has expired becomes small by itself. The clocks are the test's.
#include "store/expiry.h"
#include "tests/lib/check.h"
#include "tests/lib/store.h"

#define YEAR_MS (365ull * 86400000)

static _Atomic uint64_t wall = 50 * YEAR_MS, steady = 1000;  // workers read them, too
static uint64_t wall_ms(void *arg) { return (void)arg, wall; }
static uint64_t steady_ms(void *arg) { return (void)arg, steady; }
static const struct env_clock test_clock = {wall_ms, steady_ms, NULL};

static struct xdb *x;
static struct xdb_ref *r;

static void open_with(uint32_t workers) {
  struct remixdb_opts o = small_opts(workers);
  struct env *const e = quick_env();
  e->clock = &test_clock;
  OK(xdb_open(dir, &o, e, &x));
  CHECK((r = remixdb_ref(x)) != NULL);
}

static void close_store(void) {
  remixdb_unref(r);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
}

static bool has(struct xdb_ref *ref, const char *key, const char *value) {
  char buf[64];
  uint32_t len = 0;
  if (!remixdb_getn(ref, key, (uint32_t)strlen(key), buf, sizeof(buf), &len)) {
    CHECK(remixdb_errcode() == REMIXDB_NOTFOUND);
    return false;
  }
  return len == strlen(value) && memcmp(buf, value, len) == 0;
}

static void put(const char *key, const char *value, uint64_t expires_ms) {
  CHECK(remixdb_put_expire(r, key, (uint32_t)strlen(key), value, (uint32_t)strlen(value), expires_ms));
}

// The keys that an iterator comes to, in order, each followed by a blank.
static void keys(struct xdb_ref *ref, bool back, uint32_t skip, char *out) {
  struct xdb_iter *const it = remixdb_iter_create(ref);
  CHECK(it);
  if (back) remixdb_iter_seek_last(it);
  else remixdb_iter_seek(it, NULL, 0);
  for (*out = 0; remixdb_iter_valid(it);) {
    uint32_t len;
    const void *const key = remixdb_iter_key(it, &len);
    CHECK(key);
    (void)sprintf(out + strlen(out), "%.*s ", (int)len, (const char *)key);
    if (back) remixdb_iter_prev(it);
    else if (skip == 1) remixdb_iter_skip1(it);
    else remixdb_iter_skip(it, skip);
  }
  CHECK(remixdb_iter_status(it) == REMIXDB_OK);
  remixdb_iter_destroy(it);
}

static bool iterates(struct xdb_ref *ref, bool back, uint32_t skip, const char *want) {
  char got[256];
  keys(ref, back, skip, got);
  if (strcmp(got, want) == 0) return true;
  printf("got \"%s\", want \"%s\"\n", got, want);
  return false;
}

// "b" and "d" expire, "a", "c" and "e" do not.
static void check_some(struct xdb_ref *ref, bool there) {
  static const char names[] = "abcde";
  struct remixdb_slice slices[5];
  struct remixdb_buf bufs[5];
  char space[5][8];
  bool found[5];
  for (uint32_t i = 0; i < 5; i++) {
    const char key[2] = {names[i], 0};
    const bool want = there || i % 2 == 0;
    uint32_t len;
    slices[i] = (struct remixdb_slice){&names[i], 1};
    bufs[i] = (struct remixdb_buf){space[i], sizeof(space[i]), 0};
    CHECK(has(ref, key, "value") == want && remixdb_probe(ref, key, 1) == want);
    void *const copy = remixdb_get_alloc(ref, key, 1, &len);
    CHECK((copy != NULL) == want);
    remixdb_free(copy);
    const void *val;
    struct xdb_pin *const pin = remixdb_get_pinned(ref, key, 1, &val, &len);
    CHECK((pin != NULL) == want);
    remixdb_pin_release(pin);
    uint64_t ms = 1, version;
    CHECK(remixdb_expiry(ref, key, 1, &ms) == want && (!want || (ms == 0) == (i % 2 == 0)));
    CHECK(remixdb_getv(ref, key, 1, NULL, 0, NULL, &version) == false);
    CHECK(remixdb_errcode() == (want ? REMIXDB_TOOBIG : REMIXDB_NOTFOUND));
  }
  CHECK(remixdb_multi_get(ref, 5, slices, bufs, found) == (there ? 5 : 3));
  for (uint32_t i = 0; i < 5; i++) CHECK(found[i] == (there || i % 2 == 0));
  CHECK(iterates(ref, false, 1, there ? "a b c d e " : "a c e "));
  CHECK(iterates(ref, true, 1, there ? "e d c b a " : "e c a "));
  CHECK(iterates(ref, false, 2, there ? "a c e " : "a e "));
}

static void check_gets(bool there) {
  struct xdb_gets *const g = remixdb_gets_create(r, 4);
  char buf[8];
  struct remixdb_got got;
  CHECK(g && remixdb_get_begin(g, "b", 1, buf, sizeof(buf), NULL));
  CHECK(remixdb_get_poll(g, &got, 1, 1) == 1 && got.status == (there ? REMIXDB_OK : REMIXDB_NOTFOUND));
  remixdb_gets_destroy(g);
}

static enum remixdb_merge_op add(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  *(bool *)priv = v0 != NULL;
  (void)v0len;
  *v1 = "value";
  *v1len = 5;
  return REMIXDB_MERGE_PUT;
}

enum { IN_MEMTABLE, IN_LOG, IN_TABLE, IN_TWO_TABLES, PLACES };

static void test_absent(void **state) {
  (void)state;
  for (uint32_t place = 0; place < PLACES; place++) {
    if (place) setup_again();
    open_with(0);
    const uint64_t then = wall + 5000;
    for (uint32_t i = 0; i < 5; i++) {
      const char key[2] = {(char)('a' + i), 0};
      put(key, "value", i % 2 ? then : 0);
      if (place == IN_TWO_TABLES && i == 2) CHECK(remixdb_flush(r));
    }
    if (place == IN_LOG) {
      CHECK(remixdb_sync(r));
      close_store();
      open_with(0);
    }
    if (place >= IN_TABLE) CHECK(remixdb_flush(r));
    struct xdb_snapshot *const snap = remixdb_snapshot(r);
    struct xdb_ref *const old = remixdb_snapshot_ref(snap);
    struct xdb_txn *const txn = remixdb_txn_begin(x);
    struct xdb_ref *const in_txn = remixdb_txn_ref(txn, NULL);
    check_some(r, true);
    check_gets(true);
    wall = then - 1;
    check_some(r, true);
    wall = then;
    check_some(r, false);
    check_gets(false);
    check_some(old, true);  // by the clock of its making
    CHECK(has(in_txn, "b", "value") && iterates(in_txn, false, 1, "a b c d e "));
    remixdb_txn_abort(txn);
    wall -= 100;
    check_some(r, true);  // nothing is lost
    wall += 100;
    CHECK(remixdb_verify(r));
    remixdb_unref(old);
    remixdb_snapshot_release(snap);
    bool there = true;
    CHECK(remixdb_merge(r, "b", 1, add, &there) && !there && has(r, "b", "value"));
    CHECK(remixdb_put_if(r, "d", 1, "value", 5, 0) && has(r, "d", "value"));
    close_store();
    open_with(0);
    CHECK(iterates(r, false, 1, "a b c d e "));
    close_store();
  }
}

static void test_changes(void **state) {
  (void)state;
  open_with(0);
  const uint64_t then = wall + 1000;
  uint64_t ms;
  bool there;
  for (uint32_t in_table = 0; in_table < 2; in_table++) {
    put("k", "v", then);
    if (in_table) CHECK(remixdb_flush(r));
    CHECK(remixdb_merge(r, "k", 1, add, &there) && there);  // keeps it
    CHECK(remixdb_expiry(r, "k", 1, &ms) && ms == then);
    CHECK(remixdb_put(r, "k", 1, "v", 1) && remixdb_expiry(r, "k", 1, &ms) && ms == 0);  // clears it
  }
  put("k", "w", wall - 1);  // is a delete
  CHECK(!has(r, "k", "w") && !remixdb_expiry(r, "k", 1, &ms) && remixdb_errcode() == REMIXDB_NOTFOUND);
  struct xdb_batch *const b = remixdb_batch_create();
  CHECK(b && remixdb_put(r, "gone", 4, "v", 1));
  CHECK(remixdb_batch_put_expire(b, "one", 3, "v", 1, then) && remixdb_batch_put_expire(b, "two", 3, "v", 1, 0));
  CHECK(remixdb_batch_put_expire(b, "gone", 4, "v", 1, wall));
  CHECK(remixdb_write(r, b) && has(r, "one", "v") && has(r, "two", "v") && !has(r, "gone", "v"));
  CHECK(remixdb_expiry(r, "one", 3, &ms) && ms == then);
  remixdb_batch_destroy(b);
  struct xdb_txn *const t = remixdb_txn_begin(x);
  struct xdb_ref *const tr = remixdb_txn_ref(t, NULL);
  CHECK(remixdb_put_expire(tr, "own", 3, "v", 1, then) && has(tr, "own", "v"));
  CHECK(remixdb_expiry(tr, "own", 3, &ms) && ms == then);
  CHECK(remixdb_txn_commit(t) && has(r, "own", "v") && iterates(r, false, 1, "one own two "));
  wall = then;
  CHECK(iterates(r, false, 1, "two ") && iterates(r, true, 1, "two "));
  close_store();
}

// An iterator that holds its moment keeps its clock over seeks; another one takes the clock anew.
static void test_iterators(void **state) {
  (void)state;
  open_with(0);
  const uint64_t then = wall + 1000;
  put("a", "v", then);
  put("b", "v", 0);
  CHECK(remixdb_flush(r));
  struct remixdb_iter_opts o;
  remixdb_iter_opts_init(&o, sizeof(o));
  o.hold = true;
  struct xdb_iter *const held = remixdb_iter_create_opts(r, &o), *const it = remixdb_iter_create(r);
  uint32_t len;
  CHECK(held && it);
  remixdb_iter_seek(it, "a", 1);
  CHECK(remixdb_iter_valid(it) && *(const char *)remixdb_iter_key(it, &len) == 'a');
  wall = then;
  remixdb_iter_skip1(it);
  remixdb_iter_prev(it);
  CHECK(remixdb_iter_valid(it) && *(const char *)remixdb_iter_key(it, &len) == 'a');
  remixdb_iter_seek(it, "a", 1);
  CHECK(*(const char *)remixdb_iter_key(it, &len) == 'b');
  remixdb_iter_prev(it);
  CHECK(!remixdb_iter_valid(it));
  remixdb_iter_seek(held, "a", 1);
  CHECK(*(const char *)remixdb_iter_key(held, &len) == 'a');
  remixdb_iter_destroy(held);
  remixdb_iter_destroy(it);
  close_store();
}

static void settle(void) {
  for (uint32_t i = 0; i < 3; i++) {
    (void)expiry_settle(x);
    steady += REMIXDB_EXPIRY_SETTLES_MS;
  }
}

static uint64_t records(void) {
  uint64_t nr = 0;
  const struct version *const v = xdb_super(x)->version;
  for (uint32_t i = 0; i < v->nr_parts; i++)
    for (uint32_t n = 0; n < part_runs(v->parts[i]); n++) nr += part_run(v->parts[i], n)->nr_records;
  return nr;
}

// A record that has expired hides the older versions of its key, also when a round removes it, with all runs or
// without.
static void test_hides(void **state) {
  (void)state;
  for (uint32_t whole = 0; whole < 2; whole++) {
    if (whole) setup_again();
    open_with(0);
    const uint64_t then = wall + 1000;
    put("a", "v", 0);
    put("k", "old", 0);
    CHECK(remixdb_flush(r));
    put("k", "new", then);
    wall = then;
    settle();
    if (whole) CHECK(remixdb_flush(r));
    CHECK(whole ? remixdb_compact(r) : remixdb_flush(r));
    wall = then - 1;  // the record is not there any more
    CHECK(!has(r, "k", "old") && !has(r, "k", "new") && iterates(r, false, 1, "a "));
    CHECK(records() == (whole ? 1 : 3));
    CHECK(remixdb_verify(r) && remixdb_compact(r) && records() == 1);
    wall = then;
    close_store();
  }
}

// A clock that is ahead, and is set back in time, loses nothing. Records whose time is behind a clock that was set back
// stay, whatever the clock has shown.
static void test_wrong_clock(void **state) {
  (void)state;
  open_with(0);
  const uint64_t began = wall, then = wall + 86400000;
  settle();
  put("a", "v", then);
  put("b", "v", then);
  CHECK(remixdb_flush(r));
  wall = then + YEAR_MS;
  steady += REMIXDB_EXPIRY_SETTLES_MS - 1;
  CHECK(remixdb_put(r, "a", 1, "w", 1) && remixdb_flush(r) && remixdb_compact(r));
  steady += REMIXDB_EXPIRY_SETTLES_MS - 1;
  CHECK(remixdb_compact(r) && !has(r, "b", "v"));
  wall = began + 1;
  CHECK(has(r, "b", "v"));
  // ahead for long, then set back: what has been put since stays
  wall = then + YEAR_MS;
  settle();
  CHECK(expiry_settle(x) == wall);
  wall = began + 2;
  put("c", "v", then);
  CHECK(remixdb_flush(r) && remixdb_compact(r) && has(r, "c", "v") && has(r, "b", "v"));
  CHECK(expiry_settle(x) == wall);
  wall = then;
  settle();
  CHECK(remixdb_compact(r) && records() == 1);
  close_store();
  // nothing is settled right after the opening
  open_with(0);
  put("d", "v", wall + 1);
  CHECK(remixdb_flush(r));
  wall++;
  CHECK(remixdb_compact(r) && records() == 2);
  close_store();
}

static uint64_t files_size(void) {
  uint64_t sum = 0;
  xdb_lock(x);  // the super stays
  const struct version *const v = xdb_super(x)->version;
  for (uint32_t i = 0; i < v->nr_parts; i++)
    for (uint32_t n = 0; n < part_runs(v->parts[i]); n++) sum += part_run(v->parts[i], n)->file_size;
  xdb_unlock(x);
  return sum;
}

// Waits for workers. The test's limit of time ends it when they do not do it.
static void wait_size(uint64_t most) {
  while (files_size() > most) time_sleep_ns(2000000);
  OK(xdb_wait_idle(x));
}

// All has expired: idle workers merge it away. Before enough has, nothing is merged.
static void test_shrinks(void **state) {
  (void)state;
  open_with(2);
  shrink(x, 1 << 20, 64);
  const uint64_t began = wall;
  char key[16], value[200] = {0};
  for (uint32_t i = 0; i < 40000; i++) {
    (void)snprintf(key, sizeof(key), "%08u", i * 2654435761u % 100000000);
    CHECK(remixdb_put_expire(r, key, 8, value, sizeof(value), began + 1000 + i));
  }
  CHECK(remixdb_flush(r));
  const uint64_t full = files_size(), number = xdb_super(x)->version->number;
  CHECK(full > 8000000);
  wall = began + 4000;  // a tenth
  settle();
  expiry_look(x, &r->slot);
  CHECK(!atomic_load(&x->scan_merges.due) && xdb_super(x)->version->number == number && files_size() == full);
  wall = began + 25000;  // most of it
  settle();
  expiry_look(x, &r->slot);
  wait_size(full * 6 / 10);
  CHECK(remixdb_verify(r));
  wall = began + 100000;
  settle();
  expiry_look(x, &r->slot);
  wait_size(0);
  CHECK(remixdb_verify(r) && iterates(r, false, 1, ""));
  close_store();
  open_with(0);
  CHECK(iterates(r, false, 1, ""));
  close_store();
}

// A checkpoint has the times, and a store that is opened again, too.
static void test_checkpoint(void **state) {
  (void)state;
  open_with(0);
  const uint64_t then = wall + 1000;
  char copy[sizeof(dir) + 8];
  (void)snprintf(copy, sizeof(copy), "%s/copy", dir);
  put("table", "v", then);
  CHECK(remixdb_flush(r));
  put("memtable", "v", then + 1);
  CHECK(remixdb_checkpoint(r, copy));
  close_store();
  struct remixdb_opts o = small_opts(0);
  struct env *const e = quick_env();
  e->clock = &test_clock;
  OK(xdb_open(copy, &o, e, &x));
  CHECK((r = remixdb_ref(x)) != NULL);
  uint64_t ms;
  CHECK(remixdb_expiry(r, "table", 5, &ms) && ms == then && remixdb_expiry(r, "memtable", 8, &ms) && ms == then + 1);
  close_store();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_absent, setup, teardown),
      cmocka_unit_test_setup_teardown(test_changes, setup, teardown),
      cmocka_unit_test_setup_teardown(test_iterators, setup, teardown),
      cmocka_unit_test_setup_teardown(test_hides, setup, teardown),
      cmocka_unit_test_setup_teardown(test_wrong_clock, setup, teardown),
      cmocka_unit_test_setup_teardown(test_shrinks, setup, teardown),
      cmocka_unit_test_setup_teardown(test_checkpoint, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
