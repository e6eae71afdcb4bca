// SPDX-License-Identifier: Apache-2.0
//
// The whole store with failing calls, a full disk, no memory and no threads, in random lives.
//
// CRASH_SEED and CRASH_SEEDS: see tests/lib/life.h.
#include "base/thread.h"
#include "store/flush.h"
#include "tests/lib/check.h"
#include "tests/lib/life_faults.h"
#include "tests/lib/slow.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>

static const int fault_calls[] = {SIMDISK_OPEN,     SIMDISK_READ, SIMDISK_WRITE,  SIMDISK_SYNC,
                                  SIMDISK_ALLOCATE, SIMDISK_STAT, SIMDISK_RENAME, SIMDISK_UNLINK,
                                  SIMDISK_MKDIR,    SIMDISK_LIST, SIMDISK_LOCK,   SIMDISK_CLOSE};
#define NR_FAULT_CALLS (sizeof(fault_calls) / sizeof(fault_calls[0]))

// The life of a store in which a call fails, from its creation on or later.
static void fault_life(uint64_t s, const struct fault *f) {
  struct run *r = run_create(s);
  if (r->plan.vlen_max > 2500) r->plan.vlen_max = 2500;
  r->plan.memtable_limit = 70u << 10;
  if (s % 3 == 0) run_apart(r);
  if (s % 6 == 1) run_sparse(r);
  const bool late = f->full || chance(&r->rng, 50), stay = passes(f) && chance(&r->rng, 70);
  if (stay) r->plan.reopen = 0;
  run_disk(r, simdisk_create());
  if (late) CHECK(small_life(r, 60));
  else inject(r, f);
  uint32_t failures = 0;
  for (uint32_t part = 0; part < 4; part++) {
    if (late && part == 1) inject(r, f);
    if (!r->x) {
      const enum remixdb_status opened = run_open(r);
      if (opened != REMIXDB_OK) {
        check_failure(r, opened);
        failures++;
        continue;
      }
      if (!check_prefix(r)) {
        failures++;
        (void)run_close(r);
        continue;
      }
    }
    const uint32_t each = 100 + r->plan.vlen_max / 2 + r->plan.apart * 20;
    for (size_t i = 80 + r->plan.memtable_limit / each; i && r->x; i--) failures += !step(r);
    if (r->x) failures += !do_flush(r);
    if (r->x) check_content(r, !f->full && (f->memory || reads_use(f->call)));
    if (r->x && part % 2 && !stay) failures += !do_reopen(r);
  }
  counts.faults++;
  counts.hit += failures != 0;
  if (!stay && chance(&r->rng, 30)) {  // the power goes during the fault
    (void)run_close(r);
    run_disk(r, simdisk_crash(r->disk, rng_next(&r->rng)));
  }
  heal(r, !(r->x && passes(f)));
  // the first of these calls meets the remains of the failed ones, also in a power cut
  CHECK(steps(r, below(&r->rng, 100)));
  if (chance(&r->rng, 50)) {
    check_content(r, false);
    CHECK(do_flush(r));
    // where only writing failed, its remains have been removed
    if (!f->memory && passes(f) && (f->full || f->call == SIMDISK_WRITE)) check_names(r, false);
    CHECK(do_reopen(r) && check_prefix(r));
    check_names(r, true);
  } else {
    simdisk_power_off(r->disk, below(&r->rng, 1ull << below(&r->rng, 6)));
    while (!simdisk_is_off(r->disk) && steps(r, 1)) {}
    after_cut(r);
    run_disk(r, simdisk_crash(r->disk, rng_next(&r->rng)));
    recover(r, 1);
  }
  run_destroy(r);
}

static void memory_seed(uint64_t s) {
  uint64_t rng = s;
  const struct fault f = {.memory = true, .once = chance(&rng, 70), .nth = below(&rng, 1ull << below(&rng, 13))};
  fault_life(s, &f);
}

static void fault_seed(uint64_t s) {
  static const char *const names[] = {"", "", "CURRENT", "wal", "0", "store", "CREATING"};
  uint64_t rng = s;
  struct fault f = {.full = chance(&rng, 10),
                    .errnum = s / NR_FAULT_CALLS % 2 ? EIO : ENOSPC,
                    .once = chance(&rng, 50)};
  f.call = (enum simdisk_call)fault_calls[s % NR_FAULT_CALLS];
  f.name = names[below(&rng, sizeof(names) / sizeof(names[0]))];
  f.nth = f.full ? below(&rng, 400u << 10) : below(&rng, 1ull << below(&rng, f.name[0] ? 6 : 8));
  fault_life(s, &f);
}

static void test_faults(void **state) {
  (void)state;
  const uint64_t first = first_seed(), nr = nr_seeds(usual_or_long(75, 150));
  counts.scan_merges = counts.part_cuts = counts.apart = counts.again = counts.joined = counts.emptied = 0;
  for (uint64_t s = first; s < first + nr; s++) fault_seed(s);
  print_message("%llu faults, %llu of them made calls fail; %llu merged for scans, %llu cut, %llu joined, %llu left "
                "empty; %llu collections moved %llu bytes\n",
                (unsigned long long)counts.faults, (unsigned long long)counts.hit,
                (unsigned long long)counts.scan_merges, (unsigned long long)counts.part_cuts,
                (unsigned long long)counts.joined, (unsigned long long)counts.emptied,
                (unsigned long long)counts.collections, (unsigned long long)counts.moved);
  if (nr >= 40)
    assert_true(counts.scan_merges > 0 && counts.apart > 1000 && counts.again > 0 && counts.collections > 0);
  if (nr >= 40) assert_true(counts.joined > 0 && counts.part_cuts > 0);
}

static uint64_t threads, threads_fail_at, threads_fail_nr;

static bool thread_denied(void) {
  const uint64_t n = threads++;
  return n < threads_fail_at || n - threads_fail_at >= threads_fail_nr;
}

// The number of threads of this process; 0 where the system does not say.
static uint32_t nr_threads(void) {
  DIR *const d = opendir("/proc/self/task");
  if (!d) return 0;
  uint32_t nr = 0;
  for (const struct dirent *e; (e = readdir(d)) != NULL;) nr += e->d_name[0] != '.';
  (void)closedir(d);
  return nr;
}

// At most nr threads run. A joined one may be seen until the system has run it once more, which on a busy machine takes
// seconds.
static void check_threads(uint32_t nr) {
  for (uint32_t tries = 0; nr_threads() > nr && tries < 60000; tries++) time_sleep_ns(10000000);
  CHECK(nr_threads() <= nr);
}

static void *end_at_once(void *arg) { return arg; }

// Starts a thread and waits for its end. A sanitizer starts a thread of its own beside the first thread of a program.
static void start_one(void) {
  pthread_t id;
  OK(thread_start(&id, end_at_once, NULL, "first"));
  CHECK(pthread_join(id, NULL) == 0);
}

// An opening that cannot start its first worker, or the thread that syncs, fails. It leaves nothing running and nothing
// changed. Without the other workers it succeeds, and the store works.
static void test_threads(void **state) {
  (void)state;
  start_one();
  for (uint32_t fresh = 0; fresh < 2; fresh++) {
    struct run *r = run_small(0);
    if (!fresh) CHECK(small_life(r, 40));
    OK(run_close(r));
    const size_t written_nr = r->model.nr;
    r->model.synced = written_nr;
    r->plan.opts.workers = 3;
    r->plan.opts.sync = 5;
    const uint32_t before = nr_threads();
    for (int once = 0; once < 2; once++) {
      uint64_t n = 0;
      for (;; n++) {
        (void)snprintf(check_what, sizeof(check_what), "%s store, thread %llu %s", fresh ? "new" : "old",
                       (unsigned long long)n, once ? "once" : "from then on");
        threads = 0;
        threads_fail_at = n;
        threads_fail_nr = once ? 1 : UINT64_MAX;
        atomic_store(&thread_fault, thread_denied);
        const uint64_t changes = simdisk_changes(r->disk);
        struct xdb *x = NULL;
        const enum remixdb_status s = xdb_open(DIR_NAME, &r->plan.opts, simdisk_env(r->disk), &x);
        if (s == REMIXDB_OK) OK(xdb_flush(x));
        atomic_store(&thread_fault, NULL);
        if (s == REMIXDB_OK) {  // a worker and the thread that syncs have started
          CHECK(n == 2 && threads >= 2);
          OK(xdb_close(x));
          check_threads(before);
          break;
        }
        CHECK(s == REMIXDB_NOMEM && err_msg()[0] != '\0' && x == NULL);
        CHECK(threads == n + 1);  // no start is tried after one that failed
        CHECK(simdisk_open_files(r->disk) == 0 && simdisk_changes(r->disk) == changes);
        check_threads(before);
      }
      if (fresh) run_disk(r, simdisk_create());
    }
    r->plan.opts.sync = REMIXDB_SYNC_NONE;
    OK(run_open(r));
    CHECK(check_prefix(r) && r->model.nr == written_nr);
    CHECK(steps(r, 20));
    OK(run_close(r));
    check_threads(before);
    run_destroy(r);
  }
}

static void test_memory(void **state) {
  (void)state;
  const uint64_t first = first_seed(), nr = nr_seeds(usual_or_long(75, 150));
  counts.faults = counts.hit = counts.scan_merges = counts.apart = 0;
  for (uint64_t s = first; s < first + nr; s++) memory_seed(s);
  print_message("%llu faults, %llu of them made calls fail; %llu merged for scans\n", (unsigned long long)counts.faults,
                (unsigned long long)counts.hit, (unsigned long long)counts.scan_merges);
  if (nr >= 40) assert_true(counts.scan_merges > 0 && counts.apart > 1000);
}

int main(int argc, char **argv) {
  life_start(argc, argv);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_faults),
      cmocka_unit_test(test_threads),
      cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
