// SPDX-License-Identifier: Apache-2.0
//
// Scan merges: that scans bring them about, and what they do when a memtable is frozen, readers are at work, the store
// is closed or the disk fails just then. test_scan_merge_when.c asks when they are made.
#include "base/cores.h"
#include "tests/lib/check.h"
#include "tests/lib/gates.h"

#include <errno.h>

static void scan(struct xdb_iter *it, uint64_t *rng) {
  struct kv_rec rec;
  uint8_t kbuf[8];
  OK(xdb_iter_seek(it, key_of((uint32_t)below(rng, KEYS), kbuf)));
  for (uint32_t i = 0; i < 20 && xdb_iter_valid(it); i++) {
    OK(xdb_iter_record(it, &rec));
    OK(xdb_iter_skip(it, 1));
  }
}

static void test_scans_merge(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  struct xdb_ref *r = load(1, LARGE), *old;
  struct xdb_iter *it, *open_on, *open_at;
  struct xdb_snapshot *snap;
  uint32_t then[KEYS];
  const uint32_t before = runs(r);
  memcpy(then, newest, sizeof(then));
  // open snapshots and iterators keep their moment
  OK(xdb_snapshot(r, &snap));
  OK(xdb_snapshot_ref(snap, &old));
  OK(xdb_iter_create(old, &open_on));
  OK(xdb_iter_create(r, &open_at));
  OK(xdb_iter_seek(open_at, kref("", 0)));
  OK(xdb_iter_create(r, &it));
  uint32_t scans = 0;
  for (; !scan_merge_begun(); scans++) {
    CHECK(scans < 20000);
    scan(it, &rng);
  }
  CHECK(scans >= COMPACT_SCAN_DEBT_MIN / before / 2);  // not for less than was paid
  idle();
  CHECK(stat_of(x, "scan_merges") > 0);
  CHECK(runs(r) < before);
  CHECK(stat_of(x, "failed") == 0);
  for (uint32_t k = 0; k < KEYS; k += 7) write_key(r, k, k % 3 == 0);
  check_all(r, newest);
  check_all(old, then);
  check_rest(open_at, 0, then);
  OK(xdb_iter_seek(open_on, kref("", 0)));
  check_rest(open_on, 0, then);
  // the debt is paid, so half as many scans lead to nothing
  const uint64_t merged = stat_of(x, "scan_merges");
  for (uint32_t i = 0; i < scans / 2; i++) scan(it, &rng);
  idle();
  CHECK(stat_of(x, "scan_merges") == merged);
  xdb_iter_destroy(it);
  xdb_iter_destroy(open_on);
  xdb_iter_destroy(open_at);
  xdb_unref(old);
  xdb_snapshot_release(snap);
  reopen(r);
}

// Partitions that are merged together for scans leave them a processor, but one is merged at a time in any case.
static void test_scans_keep_a_processor(void **state) {
  (void)state;
  const uint32_t processors = cores_list(NULL, 0);
  for (int workers = 0; workers <= 3; workers++) {
    struct xdb_ref *r = load(workers, SMALL);
    const uint32_t parts = x->compact.scan_merge_parts;
    CHECK(parts == 1 || (parts > 0 && parts <= (uint32_t)workers && parts < processors));
    CHECK(parts >= (uint32_t)workers || parts + 1 >= processors);
    reopen(r);
    setup_again();
  }
}

// Without workers a call's effect does not depend on the content of the cache.
static void test_no_workers(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  struct xdb_ref *r = load(0, LARGE);
  struct xdb_iter *it;
  const uint32_t before = runs(r);
  OK(xdb_iter_create(r, &it));
  for (uint32_t i = 0; i < 2000; i++) scan(it, &rng);
  xdb_iter_destroy(it);
  epoch_enter(&x->epoch, &r->slot);
  CHECK(compact_scan_debt_paid(xdb_super(x)->version->parts[0]->remix));  // there would be reason to
  epoch_exit(&r->slot);
  OK(xdb_flush(x));
  CHECK(runs(r) == before && stat_of(x, "scan_merges") == 0);
  reopen(r);
}

// Syncs everything and copies the files, as if the process died now. The copy has all that was written.
static void check_copy(struct xdb_ref *r) {
  char copy[600];
  struct files_entry *list;
  size_t nr;
  OK(xdb_sync(r));
  idle_destroy_wait(x);  // nothing is removed while it is copied
  (void)snprintf(copy, sizeof(copy), "%s/copy", dir);
  CHECK(mkdir(copy, 0700) == 0);
  OK(paths_files(env_posix(), dir, &list, &nr));
  for (size_t i = 0; i < nr; i++) {
    char from[600], to[700];
    (void)snprintf(from, sizeof(from), "%s/%s", dir, list[i].name);
    (void)snprintf(to, sizeof(to), "%s/%s", copy, list[i].name);
    copy_file(from, to);
  }
  mem_free(list);
  struct remixdb_opts o = small_opts(0);
  o.read_only = true;
  struct xdb *other;
  struct xdb_ref *other_r;
  OK(xdb_open(copy, &o, quick_env(), &other));
  OK(xdb_ref(other, &other_r));
  check_all(other_r, newest);
  xdb_unref(other_r);
  OK(xdb_close(other));
  CHECK(remove_tree(copy) == 0);
}

// A memtable is frozen while a scan merge is at a gate. Before its first table the merge gives way; later it is
// installed.
static void frozen_meanwhile(enum gate at) {
  struct xdb_ref *r = load(1, SMALL), *snap_r;
  struct xdb_snapshot *snap;
  uint32_t then[KEYS];
  const uint32_t before = runs(r);
  const uint64_t rounds = frozen();
  allow(rounds);
  hold(at);
  wear(r);
  wait_held_at(at);
  for (uint32_t k = 1; k < 200; k += 2) write_key(r, k, k % 3 == 0);
  check_all(r, newest);
  freeze(r);
  check_all(r, newest);
  CHECK(frozen() == rounds + 1);
  OK(xdb_snapshot(r, &snap));
  OK(xdb_snapshot_ref(snap, &snap_r));
  memcpy(then, newest, sizeof(then));
  hold(GATE_NONE);
  wait_held(rounds + 1);  // the memtable's round goes on
  const bool merged = at != GATE_TABLE;
  CHECK(stat_of(x, "scan_merges") == merged && stat_of(x, "failed") == 0);
  CHECK(merged ? runs(r) < before : runs(r) == before);
  epoch_enter(&x->epoch, &r->slot);
  CHECK(xdb_super(x)->frozen != NULL);
  epoch_exit(&r->slot);
  check_all(r, newest);
  check_copy(r);
  for (uint32_t k = 0; k < 300; k += 2) write_key(r, k, k % 4 == 0);
  check_all(r, newest);
  allow(UINT64_MAX);
  idle();
  check_all(r, newest);
  check_all(snap_r, then);
  CHECK(stat_of(x, "scan_merges") == merged);
  xdb_unref(snap_r);
  xdb_snapshot_release(snap);
  check_copy(r);
  reopen(r);
}

static void test_frozen_at_work(void **state) {
  (void)state;
  frozen_meanwhile(GATE_TABLE);
}

static void test_frozen_when_done(void **state) {
  (void)state;
  frozen_meanwhile(GATE_REMIX);
}

static void test_frozen_before_it_is_installed(void **state) {
  (void)state;
  frozen_meanwhile(GATE_CURRENT);
}

// A flush does not wait for a round that has begun.
static void test_flush_meanwhile(void **state) {
  (void)state;
  struct xdb_ref *r = load(1, SMALL);
  const uint64_t rounds = frozen();
  allow(rounds);
  hold(GATE_CURRENT);
  wear(r);
  wait_held_at(GATE_CURRENT);
  freeze(r);
  hold(GATE_NONE);
  allow(UINT64_MAX);
  OK(xdb_flush(x));
  OK(xdb_compact(x));
  check_all(r, newest);
  CHECK(stat_of(x, "scan_merges") == 1);
  reopen(r);
}

// A memtable that is frozen before a scan merge begins goes first.
static void test_frozen_first(void **state) {
  (void)state;
  struct xdb_ref *r = load(1, SMALL);
  const uint64_t rounds = frozen();
  allow(rounds + 1);
  atomic_store(&at_end, false);
  atomic_store(&hold_end, rounds + 1);
  freeze(r);
  while (!atomic_load(&at_end)) time_sleep_ns(100000);
  wear(r);
  freeze(r);
  atomic_store(&hold_end, 0);
  wait_held(rounds + 2);
  CHECK(stat_of(x, "scan_merges") == 0);
  allow(UINT64_MAX);
  idle();
  check_all(r, newest);
  reopen(r);
}

// ---- readers

// Readers of all kinds, while one view after another is replaced.
static _Atomic bool readers_stop;

static void *read_on(void *arg) {
  uint64_t rng = (uintptr_t)arg;
  struct xdb_ref *r;
  struct xdb_iter *it;
  uint8_t kbuf[8], val[LARGE], want[LARGE];
  THREAD_CHECK(xdb_ref(x, &r) == REMIXDB_OK);
  THREAD_CHECK(xdb_iter_create(r, &it) == REMIXDB_OK);
  while (!atomic_load(&readers_stop)) {
    const uint32_t key = (uint32_t)below(&rng, KEYS);
    uint32_t len;
    const enum remixdb_status s = xdb_get(r, key_of(key, kbuf), val, sizeof(val), &len);
    THREAD_CHECK(s == REMIXDB_OK || s == REMIXDB_NOTFOUND);
    if (s == REMIXDB_OK) {
      value_of(key, load32le(val + 4), want);
      THREAD_CHECK(len == value_len && memcmp(val, want, len) == 0);
    }
    THREAD_CHECK(xdb_iter_seek(it, key_of(key, kbuf)) == REMIXDB_OK);
    for (uint32_t i = 0; i < 30 && xdb_iter_valid(it); i++) {
      struct kv_rec rec;
      THREAD_CHECK(xdb_iter_record(it, &rec) == REMIXDB_OK);
      value_of(load32le(rec.val), load32le((const uint8_t *)rec.val + 4), want);
      THREAD_CHECK(kv_eq(key_of(load32le(rec.val), kbuf), kref(rec.key, rec.klen)) && rec.vlen == value_len &&
                   memcmp(rec.val, want, value_len) == 0);
      THREAD_CHECK(xdb_iter_skip(it, 1) == REMIXDB_OK);
    }
  }
  xdb_iter_destroy(it);
  xdb_unref(r);
  return NULL;
}

static void test_readers(void **state) {
  (void)state;
  struct xdb_ref *r = load(1, SMALL);
  pthread_t readers[2];
  atomic_store(&readers_stop, false);
  for (uintptr_t i = 0; i < 2; i++) CHECK(pthread_create(&readers[i], NULL, read_on, (void *)(i + 1)) == 0);
  for (uint32_t n = 0; n < 20; n++) {
    wear(r);
    for (uint32_t k = n; k < KEYS; k += 9) write_key(r, k, k % 5 == 0);
    if (n % 3 == 0) OK(xdb_flush(x));
    if (n % 2) idle();
  }
  idle();
  atomic_store(&readers_stop, true);
  for (uint32_t i = 0; i < 2; i++) CHECK(pthread_join(readers[i], NULL) == 0);
  CHECK(stat_of(x, "scan_merges") > 2);
  check_all(r, newest);
  reopen(r);
}

// Memory that a reader has found stays until the reader leaves its epoch.
static void test_reader_inside(void **state) {
  (void)state;
  struct xdb_ref *r = load(1, SMALL);
  char path[ENV_PATH_MAX];
  hold(GATE_CURRENT);
  wear(r);
  wait_held_at(GATE_CURRENT);
  epoch_enter(&x->epoch, &r->slot);
  const struct super *const found = xdb_super(x);
  (void)snprintf(path, sizeof(path), "%s", found->version->parts[0]->remix->runs[0]->path);
  hold(GATE_NONE);
  while (xdb_super(x) == found) time_sleep_ns(100000);
  time_sleep_ns(20000000);  // for it to be dropped too early
  CHECK(access(path, F_OK) == 0);
  CHECK(runs_of(found->version) >= LEVELS);
  epoch_exit(&r->slot);
  idle();
  CHECK(access(path, F_OK) != 0);
  check_all(r, newest);
  reopen(r);
}

// ---- closing, failing

static void *close_it(void *arg) {
  (void)arg;
  end();
  return NULL;
}

// A close lets a scan merge that is nearly done be installed; another one gives up.
static void test_close_meanwhile(void **state) {
  (void)state;
  for (enum gate at = GATE_TABLE; at <= GATE_CURRENT; at++) {
    struct xdb_ref *r = load(1, SMALL);
    const uint32_t before = runs(r);
    for (uint32_t k = 1; k < 200; k += 2) write_key(r, k, k % 3 == 0);
    hold(at);
    wear(r);
    wait_held_at(at);
    xdb_unref(r);
    pthread_t closer;
    x->leave_log = true;
    CHECK(pthread_create(&closer, NULL, close_it, NULL) == 0);
    for (bool ending = false; !ending; time_sleep_ns(100000)) {  // the close cannot go on before the gate is open
      pthread_mutex_lock(&x->lock);
      ending = x->scan_merges.ending;
      pthread_mutex_unlock(&x->lock);
    }
    hold(GATE_NONE);
    CHECK(pthread_join(closer, NULL) == 0);
    struct files_entry *list;
    size_t nr;
    OK(paths_files(env_posix(), dir, &list, &nr));
    begin_with(1, ROOM, PAGES);
    OK(xdb_ref(x, &r));
    check_files(list, nr);
    mem_free(list);
    CHECK(at == GATE_TABLE ? runs(r) == before : runs(r) < before);
    check_all(r, newest);
    reopen(r);
    setup_again();
  }
}

// A failing scan merge fails no call, unless it is unknown which CURRENT there is.
static void test_round_fails(void **state) {
  (void)state;
  static const enum gate gates[] = {GATE_TABLE, GATE_REMIX, GATE_CURRENT, GATE_CURRENT};
  for (uint32_t n = 0; n < 4; n++) {
    const bool unknown = n == 3;
    struct xdb_ref *r = load(1, SMALL);
    const uint32_t before = runs(r);
    atomic_store(&fail_with, unknown ? EIO : ENOSPC);
    atomic_store(&fail_at, gates[n]);
    wear(r);
    idle();
    CHECK(runs(r) == before && stat_of(x, "failed") == (gates[n] != GATE_CURRENT));
    check_all(r, newest);
    atomic_store(&fail_at, GATE_NONE);
    if (unknown) {
      CHECK(xdb_put(r, KV_REC(kref("k", 1), "v", 1, false)) == REMIXDB_IO);
      wear(r);
      time_sleep_ns(20000000);  // for a round to begin that should not
      CHECK(runs(r) == before);
      check_all(r, newest);
      xdb_unref(r);
      CHECK(xdb_close(x) == REMIXDB_IO);
      begin_with(1, ROOM, PAGES);
      OK(xdb_ref(x, &r));
      check_all(r, newest);
    } else {
      write_key(r, 5, false);
      CHECK(stat_of(x, "scan_merges") == (gates[n] == GATE_CURRENT));  // it was merged, but not installed
    }
    // it takes the same debt again, and then the merge is made
    wear(r);
    idle();
    CHECK(runs(r) < before && stat_of(x, "scan_merges") == 1 + (n == 2));
    check_all(r, newest);
    reopen(r);
    setup_again();
  }
}

int main(void) {
  check_seed = check_seed_or(1);
  hang_alarm();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_scans_merge, setup, teardown),
      cmocka_unit_test_setup_teardown(test_scans_keep_a_processor, setup, teardown),
      cmocka_unit_test_setup_teardown(test_no_workers, setup, teardown),
      cmocka_unit_test_setup_teardown(test_frozen_at_work, setup, teardown),
      cmocka_unit_test_setup_teardown(test_frozen_when_done, setup, teardown),
      cmocka_unit_test_setup_teardown(test_frozen_before_it_is_installed, setup, teardown),
      cmocka_unit_test_setup_teardown(test_flush_meanwhile, setup, teardown),
      cmocka_unit_test_setup_teardown(test_frozen_first, setup, teardown),
      cmocka_unit_test_setup_teardown(test_readers, setup, teardown),
      cmocka_unit_test_setup_teardown(test_reader_inside, setup, teardown),
      cmocka_unit_test_setup_teardown(test_close_meanwhile, setup, teardown),
      cmocka_unit_test_setup_teardown(test_round_fails, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
