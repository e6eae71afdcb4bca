// SPDX-License-Identifier: Apache-2.0
//
// When the last user of an old version drops the version, its files are removed, and no reader waits for the removal.
#include "tests/lib/check.h"
#include "tests/lib/gates.h"

enum keeper { BY_SEEK, BY_END, BY_DESTROY, BY_SNAPSHOT, BY_VERIFY, KEEPERS };

// A user of an old version: an iterator, a snapshot or a super.
struct kept {
  struct xdb_iter *it;
  struct xdb_snapshot *snap;
  struct super *super;
};

static void keep(enum keeper by, struct xdb_ref *r, struct kept *k) {
  uint64_t moment;
  *k = (struct kept){0};
  if (by == BY_SNAPSHOT) {
    OK(xdb_snapshot(r, &k->snap));
  } else if (by == BY_VERIFY) {
    k->super = xdb_ref_hold(r, &moment);
  } else {
    OK(xdb_iter_create(r, &k->it));
    OK(by == BY_END ? xdb_iter_seek_last(k->it) : xdb_iter_seek(k->it, kref("", 0)));
  }
}

static void drop(enum keeper by, struct kept *k) {
  switch (by) {
    case BY_SEEK:
      OK(xdb_iter_seek(k->it, kref("", 0)));
      check_rest(k->it, 0, newest);
      break;
    case BY_END:
      OK(xdb_iter_skip(k->it, 1));
      CHECK(!xdb_iter_valid(k->it));
      break;
    case BY_DESTROY:
      xdb_iter_destroy(k->it);
      k->it = NULL;
      break;
    case BY_SNAPSHOT: xdb_snapshot_release(k->snap); break;
    default: xdb_super_drop(x, k->super); break;
  }
}

static size_t count_files(void) {
  struct files_entry *list;
  size_t nr;
  OK(paths_files(env_posix(), dir, &list, &nr));
  mem_free(list);
  return nr;
}

static void drop_the_last(enum keeper by, int workers) {
  struct xdb_ref *r = load(workers, SMALL);
  struct kept k;
  keep(by, r, &k);
  OK(xdb_compact(x));
  idle();
  const size_t before = count_files();
  atomic_store(&removed, 0);
  atomic_store(&hold_remover, workers != 0);
  drop(by, &k);
  if (workers) {  // the reader's call has returned, although the remover is held up
    while (atomic_load(&removed) == 0) time_sleep_ns(100000);
    CHECK(!i_removed());
    check_all(r, newest);
    atomic_store(&hold_remover, false);
  } else {
    CHECK(atomic_load(&removed) >= LEVELS && i_removed());
  }
  idle();
  CHECK(atomic_load(&removed) >= LEVELS && atomic_load(&x->idle.nr_left) == 0);
  CHECK(count_files() + LEVELS <= before);
  xdb_iter_destroy(k.it);
  reopen(r);
  setup_again();
}

// A reader that is the last user of a version's files does not wait for their removal: workers remove them, or the next
// round does at its end. Without workers the reader removes them at once.
static void test_readers_remove_nothing(void **state) {
  (void)state;
  for (enum keeper by = 0; by < KEEPERS; by++)
    for (int workers = 0; workers < 2; workers++) drop_the_last(by, workers);
}

// Lets round `rounds` + 1 end when the next memtable is already frozen, and holds that memtable's round up.
static void freeze_behind(struct xdb_ref *r, uint64_t rounds) {
  allow(rounds + 1);
  while (!atomic_load(&at_end)) time_sleep_ns(100000);
  freeze(r);
  atomic_store(&hold_end, 0);
  wait_held(rounds + 2);
}

// If no worker is idle, the end of a round removes the files, or the close of the store if the close comes earlier.
static void test_removed_in_the_end(void **state) {
  (void)state;
  for (uint32_t closing = 0; closing < 2; closing++) {
    struct xdb_ref *r = load(1, SMALL);
    struct xdb_iter *it;
    OK(xdb_iter_create(r, &it));
    OK(xdb_iter_seek(it, kref("", 0)));
    OK(xdb_compact(x));
    idle();
    const uint64_t rounds = frozen();
    allow(rounds);
    freeze(r);
    wait_held(rounds + 1);  // the only worker runs this round
    atomic_store(&removed, 0);
    atomic_store(&hold_end, closing ? 0 : rounds + 1);
    atomic_store(&at_end, false);
    xdb_iter_destroy(it);
    CHECK(atomic_load(&removed) == 0 && atomic_load(&x->idle.nr_left) == 1);
    check_all(r, newest);
    if (closing) {
      allow(UINT64_MAX);
    } else {
      freeze_behind(r, rounds);
      // while the second round is held up
      CHECK(atomic_load(&removed) >= LEVELS && atomic_load(&x->idle.nr_left) == 0);
      allow(UINT64_MAX);
      idle();
    }
    reopen(r);
    setup_again();
  }
}

int main(void) {
  check_seed = check_seed_or(1);
  hang_alarm();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_readers_remove_nothing, setup, teardown),
      cmocka_unit_test_setup_teardown(test_removed_in_the_end, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
