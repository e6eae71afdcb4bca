// SPDX-License-Identifier: Apache-2.0
//
// Disks that are full, or fail: no acknowledged write is lost, and the error is told. And two that make one store.
//
// TEST_SEED in the environment repeats a run's random choices.
#include <errno.h>

#include "tests/lib/check.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/store_model.h"

static uint64_t seed_first;  // the seed of all tests

// ---- an env that refuses on demand

enum trouble { TROUBLE_NONE, TROUBLE_FULL, TROUBLE_WRITE, TROUBLE_SYNC };
static _Atomic int trouble;
static struct env_ops bad_ops;
static struct env bad_env = {.ops = &bad_ops, .native = false};

static ssize_t bad_pwrite(struct env *e, int fd, const void *buf, size_t len, uint64_t off) {
  const int t = atomic_load(&trouble);
  if (t == TROUBLE_FULL) return -ENOSPC;
  if (t == TROUBLE_WRITE) return -EIO;
  return env_posix()->ops->pwrite(e, fd, buf, len, off);
}

static int bad_allocate(struct env *e, int fd, uint64_t off, uint64_t len) {
  return atomic_load(&trouble) == TROUBLE_FULL ? -ENOSPC : env_posix()->ops->allocate(e, fd, off, len);
}

static int bad_sync(struct env *e, int fd) {
  return atomic_load(&trouble) == TROUBLE_SYNC ? -EIO : env_posix()->ops->sync_data(e, fd);
}

static int bad_sync_head(struct env *e, int fd, uint64_t len) {
  (void)len;
  return bad_sync(e, fd);
}

static void bad_open(struct model *m) {
  bad_ops = *env_posix()->ops;
  bad_ops.pwrite = bad_pwrite;
  bad_ops.allocate = bad_allocate;
  bad_ops.sync_data = bad_ops.sync_all = bad_sync;
  bad_ops.sync_head = bad_sync_head;
  atomic_store(&trouble, TROUBLE_NONE);
  if (xdb_open(dir, &m->opts, &bad_env, &m->xdb) != REMIXDB_OK) fail_msg("%s", err_msg());
  m->ref = remixdb_ref(m->xdb);
  CHECK(m->ref);
}

// After a while the store must have noticed, and write and compact again.
static void room_again(struct model *m) {
  atomic_store(&trouble, TROUBLE_NONE);
  const uint64_t began = time_ns();
  while (!model_put(m, 0) || xdb_flush(m->xdb) != REMIXDB_OK) {
    CHECK(time_ns() - began < SLOW_HANG_S * 1000000000ull);
    time_sleep_ns(5000000);
  }
}

// ---- a full disk

// A full disk refuses writes until there is room, whichever call meets it. Nothing is lost, and a refused write leaves
// no record in the store.
static void run_full_disk(uint64_t nr, int workers) {
  check_seed = seed_first + nr;
  struct model m;
  model_init(&m, 1000, 3000);
  m.opts = small_opts(workers);
  bad_open(&m);
  uint32_t refused = 0;
  for (uint32_t step = 0; step < 12000; step++) {
    const uint64_t r = rng_next(&m.rng);
    const uint32_t k = (uint32_t)(r >> 32) % m.nr;
    if (r % 1000 == 0 || step % 2000 == 0) atomic_store(&trouble, TROUBLE_FULL);
    bool good = true;
    if (r % 1000 == 1) good = remixdb_sync(m.ref);
    else if (r % 10 == 2) model_get(&m, k);
    else good = r % 4 ? model_put(&m, k) : model_del(&m, k);
    if (good) continue;
    refused++;
    CHECK(remixdb_errcode() == REMIXDB_NOSPACE && strstr(remixdb_errmsg(), dir));
    model_get(&m, k);
    if (r % 4 == 0) model_scan(&m);
    if (r % 3) continue;
    room_again(&m);
  }
  CHECK(refused > 0);
  room_again(&m);
  CHECK(remixdb_sync(m.ref));
  model_check(&m);
  model_close(&m);
  bad_open(&m);
  model_check(&m);
  model_close(&m);
  model_fini(&m);
}

static void test_full_disk(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    run_full_disk(500 + (uint64_t)i, i);
    setup_again();
  }
}

// The disk is full at one moment only: when the version file is written.
static int full_for_current_open(struct env *e, int at, const char *path, unsigned flags) {
  if (atomic_load(&trouble) == TROUBLE_FULL && strncmp(path, FILES_CURRENT, strlen(FILES_CURRENT)) == 0) return -ENOSPC;
  return env_posix()->ops->open(e, at, path, flags);
}

static void test_full_at_version(void **state) {
  (void)state;
  check_seed = seed_first + 510;
  struct model m;
  model_init(&m, 300, 3000);
  m.opts = small_opts(0);
  bad_open(&m);
  bad_ops.open = full_for_current_open;
  bad_ops.pwrite = env_posix()->ops->pwrite;
  bad_ops.allocate = env_posix()->ops->allocate;
  atomic_store(&trouble, TROUBLE_FULL);
  for (uint32_t i = 0; i < m.nr; i++) CHECK(model_put(&m, i));
  CHECK(xdb_flush(m.xdb) == REMIXDB_NOSPACE);
  model_check(&m);
  room_again(&m);
  model_check(&m);
  model_close(&m);
  bad_open(&m);
  model_check(&m);
  model_close(&m);
  model_fini(&m);
}

// ---- a failed disk

static bool model_matches(struct model *m) {
  for (uint32_t i = 0; i < m->nr; i++) {
    uint32_t len;
    if (remixdb_get(m->ref, m->keys[i].ptr, m->keys[i].len, m->buf, &len) != (m->now[i].ver != 0)) return false;
    if (m->now[i].ver && !value_good(m, i, m->now[i], m->buf, len)) return false;
  }
  return true;
}

static void check_no_writes(struct model *m) {
  for (int i = 0; i < 3; i++) {
    CHECK(!remixdb_put(m->ref, "k", 1, "v", 1) && remixdb_errcode() == REMIXDB_IO &&
          strstr(remixdb_errmsg(), strerror(EIO)));
    CHECK(strstr(remixdb_errmsg(), dir));
    CHECK(!remixdb_del(m->ref, "k", 1) && remixdb_errcode() == REMIXDB_IO);
    CHECK(!remixdb_sync(m->ref) && remixdb_errcode() == REMIXDB_IO);
    model_check(m);
  }
}

// After a failed write or sync the store takes no more writes, and reads go on. The next opening finds all that was
// synced, and a beginning of the writes after it.
static void run_failed_disk(uint64_t nr, enum trouble what, int workers) {
  check_seed = seed_first + nr;
  struct model m;
  model_init(&m, 150, 3000);
  m.opts = small_opts(workers);
  bad_open(&m);
  for (uint32_t i = 0; i < 1500; i++) {
    const uint32_t k = (uint32_t)(rng_next(&m.rng) % m.nr);
    CHECK(rng_next(&m.rng) % 4 ? model_put(&m, k) : model_del(&m, k));
  }
  CHECK(remixdb_sync(m.ref) && xdb_wait_idle(m.xdb) == REMIXDB_OK);
  struct now *const synced = malloc(m.nr * sizeof(*synced));
  struct {
    uint32_t at;
    struct now now;
  } *const after = malloc(5000 * sizeof(*after));
  CHECK(synced && after);
  memcpy(synced, m.now, m.nr * sizeof(*synced));
  atomic_store(&trouble, what);
  uint32_t accepted = 0;
  bool good = true;
  for (; good && accepted < 5000; accepted += good) {
    const uint32_t k = (uint32_t)(rng_next(&m.rng) % m.nr);
    const struct now n = {++m.next_ver, random_len(&m, m.keys[k].len)};
    value_fill(m.buf, k, n);
    good = remixdb_put(m.ref, m.keys[k].ptr, m.keys[k].len, m.buf, n.len);
    if (!good) break;
    m.now[k] = n;
    after[accepted].at = k;
    after[accepted].now = n;
    if (accepted % 200 == 199) good = remixdb_sync(m.ref) || (accepted++, false);
  }
  CHECK(accepted < 5000);
  atomic_store(&trouble, TROUBLE_NONE);
  check_no_writes(&m);
  remixdb_unref(m.ref);
  remixdb_close(m.xdb);
  CHECK(remixdb_errcode() == REMIXDB_IO && strstr(remixdb_errmsg(), strerror(EIO)));
  bad_open(&m);
  memcpy(m.now, synced, m.nr * sizeof(*synced));
  uint32_t kept = 0;
  while (!model_matches(&m)) {
    CHECK(kept < accepted);
    m.now[after[kept].at] = after[kept].now;
    kept++;
  }
  model_check(&m);
  CHECK(model_put(&m, 0) && remixdb_sync(m.ref));
  model_close(&m);
  free(synced);
  free(after);
  model_fini(&m);
}

static void test_failed_disk(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 4; i++) {
    run_failed_disk(520 + i, i % 2 ? TROUBLE_SYNC : TROUBLE_WRITE, (int)i / 2);
    setup_again();
  }
}

// ---- two at once

// Two make the same store at the same time: while the second one looks around, the first one gets done.
static struct xdb *first_opened;

static int racing_stat(struct env *e, int at, const char *path, struct env_stat *out) {
  const int rc = env_posix()->ops->stat(e, at, path, out);
  if (rc == -ENOENT && !first_opened && strcmp(path, FILES_CURRENT) == 0) {
    const struct remixdb_opts o = small_opts(0);
    if (xdb_open(dir, &o, env_posix(), &first_opened) != REMIXDB_OK) fail_msg("%s", err_msg());
  }
  return rc;
}

static void test_made_by_two(void **state) {
  (void)state;
  bad_ops = *env_posix()->ops;
  bad_ops.stat = racing_stat;
  const struct remixdb_opts o = small_opts(0);
  struct xdb *x;
  const enum remixdb_status s = xdb_open(dir, &o, &bad_env, &x);
  if (s != REMIXDB_LOCKED) fail_msg("%s: %s", remixdb_strerror(s), err_msg());
  remixdb_close(first_opened);
  first_opened = NULL;
}

// ---- an iterator whose record cannot be read

#define LOST_RECORDS 300u
#define LOST_VALUE 30000u  // bytes of the value of every tenth record, which lies apart

static void lost_fill(struct xdb_ref *ref) {
  static uint8_t value[LOST_VALUE];
  char key[16];
  for (uint32_t i = 0; i < LOST_RECORDS; i++) {
    const int n = snprintf(key, sizeof(key), "key%05u", i);
    CHECK(remixdb_put(ref, key, (uint32_t)n, value, i % 10 == 3 ? LOST_VALUE : 200));
  }
  CHECK(remixdb_flush(ref));
}

// The iterator has ended because of the disk, and says so in every call.
static void lost_check(struct xdb_iter *it) {
  uint32_t len;
  CHECK(remixdb_errcode() == REMIXDB_IO && remixdb_errmsg()[0]);
  CHECK(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_IO);
  CHECK(!remixdb_iter_key(it, &len) && remixdb_errcode() == REMIXDB_IO);
  CHECK(!remixdb_iter_value(it, &len) && remixdb_errcode() == REMIXDB_IO);
  CHECK(!remixdb_iter_peek(it, NULL, &len, NULL, NULL) && remixdb_errcode() == REMIXDB_IO);
}

enum lost { LOST_NOTHING, LOST_MOVE, LOST_KEY, LOST_COPY, LOST_BYTES, LOSTS };

// Goes over all records while the nr-th read from the beginning on fails, and those after it. Returns the call that
// failed.
static enum lost lost_scan(struct simdisk *disk, struct xdb_ref *ref, uint64_t nr, bool copies) {
  static uint8_t room[LOST_VALUE];
  enum lost how = LOST_NOTHING;
  uint32_t klen, vlen, seen = 0;
  struct xdb_iter *const it = remixdb_iter_create(ref);
  CHECK(it);
  simdisk_fault(disk, SIMDISK_READ, nr, UINT64_MAX, EIO);
  for (remixdb_iter_seek(it, NULL, 0); remixdb_iter_valid(it); remixdb_iter_skip1(it), seen++) {
    if (!remixdb_iter_key(it, &klen)) how = LOST_KEY;
    else if (copies && !remixdb_iter_peek(it, NULL, NULL, room, &vlen)) how = LOST_COPY;
    else if (!copies && !remixdb_iter_value(it, &vlen)) how = LOST_BYTES;
    if (how != LOST_NOTHING) break;
  }
  if (how == LOST_NOTHING && remixdb_iter_status(it) != REMIXDB_OK) how = LOST_MOVE;
  if (how != LOST_NOTHING) lost_check(it);
  else CHECK(seen == LOST_RECORDS);
  simdisk_fault(disk, SIMDISK_READ, 0, 0, EIO);
  remixdb_iter_seek(it, NULL, 0);  // it can be used again
  CHECK(remixdb_iter_valid(it) && remixdb_iter_key(it, &klen) && klen == 8);
  remixdb_iter_destroy(it);
  return how;
}

static void test_lost_record(void **state) {
  (void)state;
  struct simdisk *const disk = simdisk_create();
  struct remixdb_opts o = small_opts(0);
  struct xdb *x;
  uint32_t counts[LOSTS] = {0};
  o.cache_mb = 0;
  o.ckeys = true;
  OK(xdb_open("/store", &o, simdisk_env(disk), &x));
  struct xdb_ref *const ref = remixdb_ref(x);
  CHECK(ref);
  lost_fill(ref);
  for (uint32_t txn = 0; txn < 2; txn++) {
    struct xdb_txn *const t = txn ? remixdb_txn_begin(x) : NULL;
    struct xdb_ref *const r = txn ? remixdb_txn_ref(t, NULL) : ref;
    CHECK(r);
    for (uint32_t copies = 0; copies < 2; copies++) {
      uint64_t nr = 0;
      for (enum lost how; (how = lost_scan(disk, r, nr, copies)) != LOST_NOTHING; nr++) counts[how]++;
      CHECK(nr > 30);
    }
    remixdb_txn_abort(t);
  }
  CHECK(counts[LOST_KEY] > 0 && counts[LOST_COPY] > 0 && counts[LOST_BYTES] > 0);
  remixdb_unref(ref);
  OK(xdb_close(x));
  simdisk_destroy(disk);
}

int main(void) {
  seed_first = check_seed_or(time_ns() % 1000000 * 1000);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_full_disk, setup, teardown),
      cmocka_unit_test_setup_teardown(test_full_at_version, setup, teardown),
      cmocka_unit_test_setup_teardown(test_failed_disk, setup, teardown),
      cmocka_unit_test_setup_teardown(test_made_by_two, setup, teardown),
      cmocka_unit_test(test_lost_record),
  };
  return cmocka_run_group_tests_name("bad disk", tests, NULL, NULL);
}
