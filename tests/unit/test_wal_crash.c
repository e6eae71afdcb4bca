// SPDX-License-Identifier: Apache-2.0
//
// The write-ahead log after power cuts and the death of a process: random lives against a model, and the watermark that
// records how much is durable.
#include "tests/lib/check.h"
#include "tests/lib/wal_model.h"

#include <errno.h>
#include <stdlib.h>

// Opens the log, calls it at random until the power goes or the calls end, and goes on with a disk that this leaves.
static void crash_round(struct simdisk **disk, struct model *m, uint64_t *rng) {
  struct simdisk *d = *disk;
  struct wal *w = NULL;
  simdisk_no_allocate(d, pick(rng, 16) != 0);  // large files are slow here
  if (pick(rng, 4) == 0) simdisk_short_io(d, rng_next(rng) | 1);
  if (pick(rng, 4) != 0) simdisk_power_off(d, pick(rng, pick(rng, 2) ? 12 : 60));
  enum remixdb_status s = open_model(dir_of(d), m, &w);
  CHECK_SAYS(s == REMIXDB_OK || (s == REMIXDB_IO && simdisk_is_off(d)), "open: status %d", s);
  // Short sessions leave small logs, to which the next opening appends.
  const bool brief = pick(rng, 3) == 0;
  const uint64_t nr_ops = s == REMIXDB_OK ? pick(rng, brief ? 6 : 40) : 0;
  for (uint64_t i = 0; i < nr_ops && s == REMIXDB_OK; i++) {
    const uint64_t dice = pick(rng, 100);
    if (dice < 55) s = append(w, m, rng, 1 + (uint32_t)pick(rng, 4));
    else if (dice < 58) s = append(w, m, rng, 60 + (uint32_t)pick(rng, 300));
    else if (dice < 72) s = wal_flush(w);
    else if (dice < 84) s = sync_model(w, m);
    else if (dice < 86) s = wal_prepare(w);
    else if (dice < 88) s = wal_mark(w);
    else if (dice < 91) s = secure_model(w, m);
    else if (dice < 96) s = wal_switch(w, switched, m);
    else if (dice < 98) s = release_model(w, m);
    else s = install_model(w, m);
    CHECK_SAYS(s == REMIXDB_OK || (s == REMIXDB_IO && simdisk_is_off(d)), "op %llu: status %d",
               (unsigned long long)dice, s);
  }
  if (w) {
    if (!simdisk_is_off(d) && pick(rng, 4) >= (brief ? 3 : 1))
      simdisk_power_off(d, pick(rng, 2) * pick(rng, 8));  // no clean end, or half of one
    s = wal_close(w);
    if (s == REMIXDB_OK) m->synced = m->nr;
  }
  // Disks that this cut could leave; the life goes on with the last one.
  for (int i = 0; i < 3; i++) {
    struct simdisk *const c = simdisk_crash(*disk, rng_next(rng));
    if (!m->fresh) check_image(c, m);
    if (i < 2) {
      simdisk_destroy(c);
    } else {
      simdisk_destroy(*disk);
      *disk = c;
    }
  }
}

// WAL_SEED repeats the life of a failure; WAL_SEEDS is the number of lives.
static void test_crashes(void **state) {
  (void)state;
  check_seed_name = "WAL_SEED";
  const char *const many = getenv("WAL_SEEDS");
  const uint64_t first = check_seed_or(1), nr = getenv("WAL_SEED") ? 1 : many ? strtoull(many, NULL, 0) : 40;
  uint64_t nr_continued = 0;
  for (uint64_t seed = first; seed < first + nr; seed++) {
    check_seed = seed;
    uint64_t rng = seed;
    struct simdisk *d = disk_create();
    struct model *const m = model_create();
    for (int round = 0; round < 10; round++) crash_round(&d, m, &rng);
    nr_continued += m->nr_continued;
    log_end(d, m);
  }
  print_message("%llu openings went on in a segment with records\n", (unsigned long long)nr_continued);
  assert_true(nr < 40 || nr_continued > nr / 8);
}

// When a process dies, the system keeps all its writes. Only the contents of its own buffers are lost.
static void test_process_death(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  struct wal *w;
  uint64_t rng = 9;
  OK(open_model(dir_of(d), m, &w));
  for (int i = 0; i < 100; i++) OK(append(w, m, &rng, 1));
  OK(wal_flush(w));
  const uint64_t flushed = m->nr;
  OK(append(w, m, &rng, 1));
  simdisk_fault(d, SIMDISK_WRITE, 0, UINT64_MAX, EIO);
  FAILS(wal_close(w), REMIXDB_IO);
  simdisk_fault(d, SIMDISK_WRITE, 0, 0, 0);
  OK(open_model(dir_of(d), m, &w));
  assert_int_equal(m->nr, flushed);
  // opening made it durable, so that a power cut changes nothing
  simdisk_power_off(d, 0);
  check_cuts(d, m, 10);
  FAILS(wal_close(w), REMIXDB_IO);  // the log had only room to give back
  log_end(d, m);
}

// Frames after a cut belong to no later segment, even where their bytes would fit.
static void test_lost_header(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  struct wal *w;
  uint64_t rng = 6;
  simdisk_no_allocate(d, true);
  OK(open_model(dir_of(d), m, &w));
  OK(append(w, m, &rng, 1));
  OK(sync_model(w, m));
  OK(wal_switch(w, switched, m));
  for (int i = 0; i < 4; i++) {
    OK(append(w, m, &rng, 1));
    OK(wal_flush(w));
  }
  const uint64_t lost = m->gen;
  simdisk_power_off(d, 0);
  FAILS(wal_close(w), REMIXDB_IO);
  struct simdisk *c = NULL;
  // keeps all writes except the new header
  for (uint64_t seed = 0; !c; seed++) {
    c = simdisk_crash(d, seed);
    if (!file_of(c, lost) && simdisk_size(c, DIR "/wal-1") > (int64_t)HEAD) break;
    if (file_of(c, lost) && simdisk_size(c, DIR "/wal-1") == simdisk_size(d, DIR "/wal-1")) {
      static const uint8_t zero[HEAD];
      assert_true(simdisk_poke(c, DIR "/wal-1", 0, zero, HEAD));
      break;
    }
    simdisk_destroy(c);
    c = NULL;
  }
  check_image(c, m);
  simdisk_no_allocate(c, true);
  OK(open_model(dir_of(c), m, &w));
  assert_int_equal(m->nr, 1);
  assert_true(m->gen > lost);
  OK(append(w, m, &rng, 1));
  OK(wal_close(w));
  m->synced = m->nr;
  check_image(c, m);
  free(m);
  simdisk_destroy(c);
  simdisk_destroy(d);
}

// Writes bytes that no segment has into the file wal-1.
static void write_foreign(struct simdisk *d, uint8_t what, bool sync) {
  int fd;
  uint8_t bytes[HEAD];
  memset(bytes, what, sizeof(bytes));
  OK(env_open(dir_of(d), "wal-1", ENV_READ | ENV_WRITE | ENV_CREATE, &fd));
  OK(env_write(simdisk_env(d), fd, "wal-1", bytes, sizeof(bytes), 0));
  if (sync) OK(env_sync_all(simdisk_env(d), fd, "wal-1"));
  OK(env_close(simdisk_env(d), fd, "wal-1"));
}

// The header of a new segment is torn while it takes the place of an older one, and the process dies. That file looks
// foreign. An opening that goes on with the last segment makes it durable as it is: the older header, with the
// generation that comes next, must not come back after a power cut.
static void test_torn_new_header(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct model *const m = model_create();
  struct wal *w;
  OK(open_model(dir_of(d), m, &w));
  OK(wal_close(w));
  write_foreign(d, 0x5a, true);
  OK(env_sync_dir(dir_of(d)));
  write_foreign(d, 0xa5, false);
  OK(open_model(dir_of(d), m, &w));
  assert_int_equal(m->gen, 1);
  for (uint64_t seed = 0; seed < 20; seed++) {
    struct simdisk *const c = simdisk_crash(d, seed);
    uint8_t bytes[HEAD];
    CHECK(simdisk_peek(c, DIR "/wal-1", 0, bytes, HEAD));
    for (uint32_t i = 0; i < HEAD; i++) CHECK(bytes[i] == 0xa5);
    simdisk_destroy(c);
  }
  OK(wal_close(w));
  log_end(d, m);
}

// A mark costs two changes of the disk, and none where it would say nothing new.
static void test_mark(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct wal *w;
  struct wal_recovery rec;
  simdisk_no_allocate(d, true);
  OK(open_any(d, true, false, NULL, &w));
  uint64_t changes = simdisk_changes(d);
  OK(wal_mark(w));  // nothing to lose
  assert_int_equal(simdisk_changes(d), changes);
  append_sized(w, 20);
  changes = simdisk_changes(d);
  OK(wal_mark(w));  // nothing durable
  assert_int_equal(simdisk_changes(d), changes);
  OK(wal_sync(w));
  changes = simdisk_changes(d);
  OK(wal_mark(w));
  assert_int_equal(simdisk_changes(d), changes + 2);
  OK(wal_mark(w));
  assert_int_equal(simdisk_changes(d), changes + 2);
  OK(wal_switch(w, NULL, NULL));
  OK(wal_sync(w));
  changes = simdisk_changes(d);
  OK(wal_mark(w));  // the header says all of the segment before it
  assert_int_equal(simdisk_changes(d), changes);
  for (int i = 0; i < 2; i++) {
    append_sized(w, 20);
    OK(wal_sync(w));
    changes = simdisk_changes(d);
    OK(wal_mark(w));
    assert_int_equal(simdisk_changes(d), changes + (i == 0 ? 4 : 2));
  }
  changes = simdisk_changes(d);
  OK(wal_close(w));
  assert_int_equal(simdisk_changes(d), changes);
  OK(open_any(d, false, true, &rec, &w));
  assert_int_equal(rec.nr_records, 3);
  OK(wal_close(w));

  // a failed mark stops the log, as a failed sync does; a lack of room for the mark itself does not
  OK(open_any(d, false, false, &rec, &w));
  append_sized(w, 20);
  OK(wal_sync(w));
  simdisk_fault(d, SIMDISK_WRITE, 0, 1, ENOSPC);
  OK(wal_mark(w));
  append_sized(w, 20);
  OK(wal_sync(w));
  simdisk_fault(d, SIMDISK_SYNC, 0, 1, EIO);
  FAILS(wal_mark(w), REMIXDB_IO);
  uint64_t gen;
  FAILS(wal_begin(w, 20, &gen), REMIXDB_IO);
  FAILS(wal_close(w), REMIXDB_IO);
  OK(open_any(d, false, true, &rec, &w));
  assert_int_equal(rec.nr_records, 5);
  OK(wal_close(w));
  simdisk_destroy(d);
}

// The fsync of a watermark may report the failure of earlier frames. In either case the log acknowledges no later
// record.
static void test_mark_tells_of_frames(void **state) {
  (void)state;
  static const int errnums[] = {EIO, ENOSPC, EDQUOT, ENOMEM};
  for (size_t i = 0; i < 4; i++) {
    struct simdisk *const d = disk_create();
    struct wal *w;
    uint64_t gen;
    OK(open_any(d, true, false, NULL, &w));
    append_sized(w, 20);
    OK(wal_sync(w));
    append_sized(w, 20);  // written, not synced
    simdisk_fault(d, SIMDISK_SYNC, 0, 1, errnums[i]);
    FAILS(wal_mark(w), REMIXDB_IO);
    FAILS(wal_begin(w, 20, &gen), REMIXDB_IO);
    FAILS(wal_sync(w), REMIXDB_IO);
    assert_int_equal(wal_durable_seq(w), 1);
    FAILS(wal_close(w), REMIXDB_IO);
    simdisk_destroy(d);
  }
}

// A disk that holds up one sync. The system reports a failed write once for each open file, so a sync beside that of
// the watermark would not hear of it.
static struct {
  struct env env;
  struct env_ops ops;
  const struct env_ops *real;
  _Atomic bool armed, in, go;
  _Atomic uint32_t others;  // calls while one is held up
} beside;

// Holds the first call after arming up, and fails it.
static int beside_sync(struct env *e, int fd) {
  if (!atomic_exchange(&beside.armed, false)) {
    atomic_fetch_add(&beside.others, 1);
    return beside.real->sync_data(e, fd);
  }
  atomic_store(&beside.in, true);
  while (!atomic_load(&beside.go)) time_sleep_ns(100000);
  return -EIO;
}

static void *beside_syncs(void *arg) { return (void *)(uintptr_t)wal_sync(arg); }

static void *beside_marks(void *arg) { return (void *)(uintptr_t)wal_mark(arg); }

static void beside_run(bool mark_first) {
  struct simdisk *const d = disk_create();
  struct wal *w;
  atomic_store(&beside.in, false);
  atomic_store(&beside.go, false);
  beside.env = *simdisk_env(d);
  beside.real = beside.env.ops;
  beside.ops = *beside.real;
  beside.ops.sync_data = beside_sync;
  beside.env.ops = &beside.ops;
  const struct wal_opts o = {.dir = simdisk_dir(&beside.env, DIR), .store_id = STORE};
  OK(wal_open(&o, 1, 0, true, NULL, NULL, NULL, &w));
  append_sized(w, 20);
  OK(wal_sync(w));
  append_sized(w, 20);
  pthread_t first, second;
  void *said[2];
  atomic_store(&beside.armed, true);
  assert_int_equal(pthread_create(&first, NULL, mark_first ? beside_marks : beside_syncs, w), 0);
  while (!atomic_load(&beside.in)) time_sleep_ns(100000);
  atomic_store(&beside.others, 0);
  assert_int_equal(pthread_create(&second, NULL, mark_first ? beside_syncs : beside_marks, w), 0);
  time_sleep_ns(20000000);  // time to come to its own fsync, or to wait
  assert_int_equal(atomic_load(&beside.others), 0);
  atomic_store(&beside.go, true);
  assert_int_equal(pthread_join(first, &said[0]), 0);
  assert_int_equal(pthread_join(second, &said[1]), 0);
  FAILS((uintptr_t)said[0], REMIXDB_IO);
  FAILS((uintptr_t)said[1], REMIXDB_IO);
  assert_int_equal(wal_durable_seq(w), 1);
  FAILS(wal_close(w), REMIXDB_IO);
  simdisk_destroy(d);
}

static void test_mark_beside_sync(void **state) {
  (void)state;
  beside_run(true);
  beside_run(false);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_crashes),
      cmocka_unit_test(test_process_death),
      cmocka_unit_test(test_lost_header),
      cmocka_unit_test(test_torn_new_header),
      cmocka_unit_test(test_mark),
      cmocka_unit_test(test_mark_tells_of_frames),
      cmocka_unit_test(test_mark_beside_sync),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
