// SPDX-License-Identifier: Apache-2.0
//
// The whole store, one writer with and without a worker, on a disk that loses power: in the midst of random lives,
// before every call that changes the disk, and again during recoveries.
//
// CRASH_SEED and CRASH_SEEDS: see tests/lib/life.h.
#include "tests/lib/check.h"
#include "tests/lib/life.h"
#include "tests/lib/slow.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "store/flush.h"
#include "store/page.h"
#include "store/syncer.h"

// Rounds fail for want of room, and the log does not. It gets several segments, and in the end writes are refused.
static void stuck_life(struct run *r) {
  r->faulty = r->may_nospace = true;
  simdisk_fault_name(r->disk, "0");
  simdisk_fault(r->disk, SIMDISK_WRITE, 0, UINT64_MAX, ENOSPC);
  for (uint64_t nr = enough(r, 3); nr && r->x && !simdisk_is_off(r->disk); nr--) {
    if (nr == 30) simdisk_power_off(r->disk, below(&r->rng, 30));
    (void)step(r);
  }
  if (r->x) simdisk_power_off(r->disk, 0);
  after_cut(r);
  simdisk_fault(r->disk, SIMDISK_WRITE, 0, 0, ENOSPC);
  r->faulty = r->may_nospace = false;
}

static void cut_seed(uint64_t s, int workers) {
  struct run *r = run_create(s);
  r->plan.opts.workers = workers;
  if (s % 4 == 2) run_apart(r);
  if (s % 8 == 5) run_sparse(r);
  run_disk(r, simdisk_create());
  OK(run_open(r));
  for (uint32_t life = 0; life < 3; life++) {
    (void)snprintf(check_what, sizeof(check_what), "life %u", life);
    CHECK(steps(r, enough(r, 6)));
    check_names(r, false);
    if (chance(&r->rng, 25)) {
      stuck_life(r);
    } else {
      simdisk_power_off(r->disk, below(&r->rng, 1ull << below(&r->rng, 9)));
      if (chance(&r->rng, 30)) (void)do_flush(r);
      while (!simdisk_is_off(r->disk) && steps(r, 8) && !chance(&r->rng, 2)) {}
    }
    after_cut(r);
    counts.cuts++;
    for (uint32_t outcome = 0; outcome < 3; outcome++) {
      (void)snprintf(check_what, sizeof(check_what), "life %u, outcome %u", life, outcome);
      struct run *f = fork_run(r, rng_next(&r->rng));
      recover(f, 0);
      if (chance(&f->rng, 40)) {
        (void)steps(f, 50);
        check_content(f, false);
      }
      drop_fork(f);
    }
    (void)snprintf(check_what, sizeof(check_what), "life %u, going on", life);
    if (chance(&r->rng, 30)) simdisk_power_on(r->disk);
    else run_disk(r, simdisk_crash(r->disk, rng_next(&r->rng)));
    recover(r, 3);
  }
  OK(run_close(r));
  run_destroy(r);
}

// A run whose disk is copied before every call that changes it, as a power cut would leave it.
struct watch {
  struct run *r;
  uint64_t rng;
  uint32_t outcomes;  // for each call
  uint64_t calls;
};

// The call that was interrupted may be in its clean-up, in which no message is kept. Ends that, and returns its depth.
static uint32_t leave_cleanup(void) {
  for (uint32_t depth = 0;; depth++) {
    err_restore(&(struct err_saved){REMIXDB_OK, ""});
    (void)err_set(REMIXDB_IO, "kept");
    if (err_msg()[0]) return depth;
    err_cleanup_end();
  }
}

static void cut_here(void *arg) {
  struct watch *w = arg;
  struct err_saved was;
  (void)alarm(HANG_S);
  err_save(&was, REMIXDB_OK);
  uint32_t depth = leave_cleanup();
  w->calls++;
  for (uint32_t outcome = 0; outcome < w->outcomes; outcome++) {
    counts.cuts++;
    (void)snprintf(check_what, sizeof(check_what), "call %llu, outcome %u", (unsigned long long)w->calls, outcome);
    struct run *f = fork_run(w->r, rng_next(&w->rng));
    f->look_apart = 6;
    recover(f, (w->calls + outcome) % 2 ? 0 : 2);
    if (chance(&w->rng, 5)) {  // the life goes on from there
      (void)steps(f, 20);
      check_content(f, false);
    }
    drop_fork(f);
  }
  for (; depth; depth--) err_cleanup_begin();
  err_restore(&was);
}

static void each_call_seed(uint64_t s, uint32_t outcomes) {
  struct run *r = run_create(s);
  if (r->plan.vlen_max > 2500) r->plan.vlen_max = 2500;
  r->plan.memtable_limit = 70u << 10;
  if (s % 3 == 0) run_apart(r);
  const bool sparse = s % 24 == 1;
  if (sparse) run_sparse(r);
  struct watch w = {.r = r, .rng = s * 31 + 7, .outcomes = outcomes};
  run_disk(r, simdisk_create());
  simdisk_on_change(r->disk, cut_here, &w);
  CHECK(sparse ? sparse_life(r) : small_life(r, 120));
  CHECK(run_close(r) == REMIXDB_OK);
  CHECK(w.calls == simdisk_changes(r->disk));
  counts.calls += w.calls;
  run_destroy(r);
}

static void test_power_cuts(void **state) {
  (void)state;
  const uint64_t first = first_seed(), nr = nr_seeds(usual_or_long(40, 80));
  for (uint64_t s = first; s < first + nr; s++) cut_seed(s, 0);
  print_message("%llu power cuts, %llu recoveries, %llu of them cut themselves\n", (unsigned long long)counts.cuts,
                (unsigned long long)counts.recoveries, (unsigned long long)counts.torn_openings);
  print_message("partitions:");
  for (uint32_t k = 0; k < COMPACT_KINDS; k++) {
    static const char *const names[COMPACT_KINDS] = {"kept", "handed back", "minor", "major", "split"};
    print_message(" %llu %s", (unsigned long long)counts.kinds[k], names[k]);
    if (nr >= 40) assert_true(counts.kinds[k] > 0);  // otherwise the cuts are not where they should be
  }
  print_message(
      "; %llu merged for scans, %llu cut, %llu joined, %llu left empty, %llu young views made, %llu values written "
      "apart by rounds, %llu again\n",
      (unsigned long long)counts.scan_merges, (unsigned long long)counts.part_cuts, (unsigned long long)counts.joined,
      (unsigned long long)counts.emptied, (unsigned long long)counts.young, (unsigned long long)counts.apart,
      (unsigned long long)counts.again);
  if (nr >= 40) assert_true(counts.scan_merges > 0 && counts.young > 0 && counts.apart > 1000 && counts.joined > 0);
  if (nr >= 40) assert_true(counts.collections > 0 && counts.moved > 0 && counts.again > 0);
  if (nr >= 40) assert_true(counts.moved_merges > 0);
  print_message("%llu collections of garbage moved %llu bytes, %llu partitions were merged for that\n",
                (unsigned long long)counts.collections, (unsigned long long)counts.moved,
                (unsigned long long)counts.moved_merges);
  print_message("%llu ingests, %llu large values, %llu reads in pieces, %llu counts, %llu compactions of ranges, "
                "%llu iterators with options, %llu batches with ranges, %llu records expired\n",
                (unsigned long long)counts.ingests, (unsigned long long)counts.large, (unsigned long long)counts.pieces,
                (unsigned long long)counts.counted, (unsigned long long)counts.range_compacts,
                (unsigned long long)counts.bounded, (unsigned long long)counts.batch_ranges,
                (unsigned long long)counts.expired);
  print_message("%llu rounds of openings\n", (unsigned long long)counts.replay_rounds);
  if (nr < 40) return;
  assert_true(counts.replay_rounds > 0);
  assert_true(counts.ingests > 0 && counts.large > 0 && counts.pieces > 0 && counts.counted > 0);
  assert_true(counts.range_compacts > 0 && counts.bounded > 0 && counts.batch_ranges > 0 && counts.expired > 0);
}

// With one writer the model still holds, but a seed does not make the same run twice.
static void test_power_cuts_with_a_worker(void **state) {
  (void)state;
  const uint64_t first = first_seed(), nr = nr_seeds(usual_or_long(10, 20));
  counts.cuts = 0;
  for (uint64_t s = first; s < first + nr; s++) cut_seed(s, 1);
  print_message("%llu power cuts\n", (unsigned long long)counts.cuts);
}

static void test_each_call(void **state) {
  (void)state;
  const uint64_t first = first_seed(), nr = nr_seeds(24);
  counts.cuts = counts.calls = counts.scan_merges = counts.apart = counts.again = counts.joined = counts.emptied = 0;
  for (uint64_t s = first; s < first + nr; s++) each_call_seed(s, usual_or_long(1, 2));
  print_message(
      "before each of %llu calls, and in the recoveries: %llu power cuts; %llu merged for scans, %llu joined, "
      "%llu left empty\n",
      (unsigned long long)counts.calls, (unsigned long long)counts.cuts, (unsigned long long)counts.scan_merges,
      (unsigned long long)counts.joined, (unsigned long long)counts.emptied);
  if (nr >= 20) assert_true(counts.scan_merges > 0 && counts.apart > 1000 && counts.joined > 0 && counts.emptied > 0);
  if (nr >= 20) assert_true(counts.again > 0);
}

// After an opening no power cut brings back the mark of a new store. With the mark, a later opening would remove the
// files if CURRENT were lost.
static void test_mark(void **state) {
  (void)state;
  const struct remixdb_opts o = {.size = sizeof(o), .memtable_mb = 1, .create = true};
  for (check_seed = 0; check_seed < 32; check_seed++) {
    struct simdisk *disk = simdisk_create();
    struct xdb *x;
    struct xdb_ref *r;
    (void)snprintf(check_what, sizeof(check_what), "the mark of a new store");
    OK(xdb_open(DIR_NAME, &o, simdisk_env(disk), &x));
    OK(xdb_ref(x, &r));
    OK(xdb_put(r, KV_REC(kref("key", 3), "value", 5, false)));
    OK(xdb_sync(r));
    struct simdisk *const after = simdisk_crash(disk, check_seed);
    xdb_unref(r);
    OK(xdb_close(x));
    simdisk_destroy(disk);
    CHECK(simdisk_size(after, DIR_NAME "/CREATING") < 0);
    OK(env_unlink(ENV_PATHS(simdisk_env(after)), DIR_NAME "/CURRENT"));
    CHECK(xdb_open(DIR_NAME, &o, simdisk_env(after), &x) == REMIXDB_CORRUPT);
    simdisk_destroy(after);
  }
}

int main(int argc, char **argv) {
  life_start(argc, argv);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_power_cuts),
      cmocka_unit_test(test_power_cuts_with_a_worker),
      cmocka_unit_test(test_each_call),
      cmocka_unit_test(test_mark),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
