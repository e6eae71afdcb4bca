// SPDX-License-Identifier: Apache-2.0
//
// remixdb_progress: what flush, compact, checkpoint and verify tell while they work, and what is there when they are
// given up at any report.
#include <errno.h>

#include "tests/lib/check.h"
#include "tests/lib/store.h"

#define KEYS 1000u
#define VALUE 4000u

static struct env slow;  // real files with syncs that take a while: so does each round
static _Atomic uint32_t sync_ms;
static _Atomic uint32_t reports;         // reports of the call
static _Atomic uint32_t reports_wanted;  // syncs of workers wait for so many
static pthread_t caller;

#define LONG_NS 200000000000ull  // a sync does not wait longer than that for reports

static int slow_sync(struct env *e, int fd) {
  (void)e, (void)fd;
  time_sleep_ns((uint64_t)atomic_load(&sync_ms) * 1000000);
  const uint64_t until = time_ns() + LONG_NS;
  while (!pthread_equal(pthread_self(), caller) && atomic_load(&reports) < atomic_load(&reports_wanted) &&
         time_ns() < until)
    time_sleep_ns(1000000);
  return 0;
}

static int no_link(struct env *e, int from_fd, const char *from, int to_fd, const char *to) {
  (void)e, (void)from_fd, (void)from, (void)to_fd, (void)to;
  return -EXDEV;
}

// links: whether a checkpoint can have them, else it copies.
static struct env *slow_env(bool links) {
  static struct env_ops ops;
  ops = *env_posix()->ops;
  ops.sync_data = ops.sync_all = slow_sync;
  if (!links) ops.link = no_link;
  slow.ops = &ops;
  return &slow;
}

// ---- the reports

struct told {
  struct xdb *x;
  struct xdb_ref *other;  // the function uses the store through it; NULL: it does not
  const char *what;
  pthread_t thread;
  uint32_t nr, give_up_at;  // reports so far; it is given up at this one, 0: never
  uint64_t done, total;     // the last report's
  bool wrong;
};

static bool hear(void *priv, const char *what, uint64_t done, uint64_t total) {
  struct told *const t = priv;
  t->nr++;
  atomic_store(&reports, t->nr);
  const bool right = strcmp(what, t->what) == 0 && pthread_equal(pthread_self(), t->thread) &&
                     (t->nr > 1 || done == 0) && done >= t->done && (total == 0 || done <= total);
  if (!right)
    fprintf(stderr, "report %u: %s %llu of %llu\n", t->nr, what, (unsigned long long)done, (unsigned long long)total);
  t->wrong = t->wrong || !right;
  t->done = done;
  t->total = total;
  if (t->other) {  // no lock is held: writes, and another that waits for a round, go through
    char buf[VALUE];
    uint32_t len;
    t->wrong = t->wrong || !remixdb_put(t->other, "by the way", 10, "x", 1) ||
               !remixdb_getn(t->other, "by the way", 10, buf, sizeof(buf), &len) ||
               (t->nr == 2 && !remixdb_flush(t->other));
  }
  return t->nr != t->give_up_at;
}

static void listen(struct xdb *x, struct xdb_ref *ref, struct told *t, const char *what, uint32_t give_up_at) {
  *t = (struct told){.x = x, .what = what, .thread = pthread_self(), .give_up_at = give_up_at};
  atomic_store(&reports, 0);
  remixdb_progress(ref, hear, t);
}

// A call that succeeded has told its end, and one that failed was given up.
static void check_told(const struct told *t, bool good) {
  CHECK(!t->wrong && t->nr >= 1);
  if (good) CHECK(t->nr >= 2 && t->total > 0 && t->done == t->total && (t->give_up_at == 0 || t->nr <= t->give_up_at));
  else
    CHECK(remixdb_errcode() == REMIXDB_ABORTED && t->nr == t->give_up_at &&
          strstr(remixdb_errmsg(), t->what) == remixdb_errmsg());
}

// ---- the calls

static char copy_dir[600];

static bool do_checkpoint(struct xdb_ref *r) { return remixdb_checkpoint(r, copy_dir); }

static const struct call {
  const char *what;
  bool (*fn)(struct xdb_ref *r);
} calls[] = {{"flush", remixdb_flush},
             {"compact", remixdb_compact},
             {"checkpoint", do_checkpoint},
             {"verify", remixdb_verify}};
#define NR_CALLS (sizeof(calls) / sizeof(calls[0]))

static uint32_t key_at(char *buf, uint32_t i) { return (uint32_t)sprintf(buf, "key %06u", i); }

static void put_all(struct xdb_ref *r, uint32_t stamp) {
  char key[32], value[VALUE];
  memset(value, (int)('a' + stamp % 26), sizeof(value));
  for (uint32_t i = 0; i < KEYS; i++) CHECK(remixdb_put(r, key, key_at(key, i), value, VALUE));
}

static void check_all(struct xdb_ref *r, uint32_t stamp) {
  char key[32], value[VALUE];
  uint32_t len;
  for (uint32_t i = 0; i < KEYS; i++)
    CHECK(remixdb_getn(r, key, key_at(key, i), value, VALUE, &len) && len == VALUE &&
          value[i % VALUE] == (char)('a' + stamp % 26));
}

static struct xdb *open_slow(int workers, bool links) {
  struct remixdb_opts o = small_opts(workers);
  struct xdb *x = NULL;
  atomic_store(&sync_ms, 0);
  OK(xdb_open(dir, &o, slow_env(links), &x));
  shrink(x, 1u << 19, 64);  // a compaction is several rounds
  return x;
}

static bool exists(const char *path) { return access(path, F_OK) == 0; }

static void destroy_copy(void) {
  if (exists(copy_dir)) CHECK(remixdb_destroy(copy_dir));
}

static void test_calls_tell(void **state) {
  (void)state;
  (void)snprintf(copy_dir, sizeof(copy_dir), "%s/copy", dir);
  for (int workers = 0; workers < 2; workers++) {
    for (int links = 0; links < 2; links++) {
      struct xdb *const x = open_slow(workers, links);
      struct xdb_ref *const r = remixdb_ref(x);
      CHECK(r);
      atomic_store(&sync_ms, 1);
      for (uint32_t c = 0; c < NR_CALLS; c++) {
        struct told t;
        put_all(r, c);  // so that there is something to compact everywhere
        listen(x, r, &t, calls[c].what, 0);
        CHECK(calls[c].fn(r));
        check_told(&t, true);
        // 4 MB were read, or copied
        if (strcmp(calls[c].what, "verify") == 0 || (strcmp(calls[c].what, "checkpoint") == 0 && !links))
          CHECK(t.nr >= 4);
        if (strcmp(calls[c].what, "compact") == 0) CHECK(t.nr >= 3);  // more than one round
        remixdb_progress(r, NULL, NULL);
        destroy_copy();
        const uint32_t nr = t.nr;
        CHECK(calls[c].fn(r) && t.nr == nr);
        destroy_copy();
      }
      check_all(r, NR_CALLS - 1);
      remixdb_unref(r);
      remixdb_close(x);
      setup_again();
      (void)snprintf(copy_dir, sizeof(copy_dir), "%s/copy", dir);
    }
  }
  remixdb_progress(NULL, hear, NULL);  // does nothing
}

// A call that waits for a round tells that it is still there.
static void test_waiting_is_told(void **state) {
  (void)state;
  struct xdb *const x = open_slow(1, true);
  struct xdb_ref *const r = remixdb_ref(x), *const other = remixdb_ref(x);
  CHECK(r && other);
  caller = pthread_self();
  for (uint32_t n = 0; n < 4; n++) {
    const uint32_t c = n % 2;
    atomic_store(&sync_ms, 0);
    put_all(r, n);
    OK(xdb_wait_idle(x));
    CHECK(remixdb_put(r, "one more", 8, "", 0));
    atomic_store(&sync_ms, n < 2 ? 60 : 20);
    struct told t;
    listen(x, r, &t, calls[c].what, 0);
    t.other = n < 2 ? NULL : other;  // it waits for the round in the function, so that there are fewer reports
    atomic_store(&reports_wanted, n < 2 ? 3 : 2);  // and one at the end
    CHECK(calls[c].fn(r));
    atomic_store(&reports_wanted, 0);
    check_told(&t, true);
    CHECK(t.nr >= (n < 2 ? 4u : 3u));
  }
  atomic_store(&sync_ms, 0);
  remixdb_unref(other);
  remixdb_unref(r);
  remixdb_close(x);
}

// Given up at the first report, the second, ... until the call comes to its end.
static void give_up_everywhere(struct xdb *x, struct xdb_ref *r, const struct call *call, uint32_t *stamp) {
  uint32_t gave_up = 0;
  for (uint32_t at = 1, good = 0; !good; at += 1 + at / 2) {
    CHECK(at < 200);
    atomic_store(&sync_ms, 0);
    put_all(r, ++*stamp);
    OK(xdb_wait_idle(x));
    CHECK(remixdb_put(r, "one more", 8, "", 0));
    atomic_store(&sync_ms, 20);
    struct told t;
    listen(x, r, &t, call->what, at);
    good = call->fn(r);
    gave_up += !good;
    check_told(&t, good);
    remixdb_progress(r, NULL, NULL);
    atomic_store(&sync_ms, 0);
    CHECK(good || !exists(copy_dir));
    check_all(r, *stamp);
    CHECK(calls[3].fn(r));  // and nothing is damaged
    destroy_copy();
    if (at % 3 == 0) CHECK(call->fn(r));  // the next one works
    destroy_copy();
  }
  CHECK(gave_up >= 1);
}

static void test_giving_up(void **state) {
  (void)state;
  (void)snprintf(copy_dir, sizeof(copy_dir), "%s/copy", dir);
  uint32_t stamp = 0;
  struct xdb *x = open_slow(2, false);
  struct xdb_ref *r = remixdb_ref(x);
  CHECK(r);
  for (uint32_t c = 0; c < NR_CALLS; c++) give_up_everywhere(x, r, &calls[c], &stamp);
  remixdb_unref(r);
  remixdb_close(x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
  x = open_slow(2, true);
  r = remixdb_ref(x);
  CHECK(r);
  check_all(r, stamp);
  remixdb_unref(r);
  remixdb_close(x);
}

// A round that nobody waits for any more ends before the store does, with its request done.
static void test_closing_behind_it(void **state) {
  (void)state;
  for (uint32_t at = 1; at < 6; at++) {
    struct xdb *const x = open_slow(1, true);
    struct xdb_ref *const r = remixdb_ref(x);
    CHECK(r);
    put_all(r, at);
    atomic_store(&sync_ms, 30);
    struct told t;
    listen(x, r, &t, "compact", at);
    check_told(&t, remixdb_compact(r));
    remixdb_unref(r);
    remixdb_close(x);
    CHECK(remixdb_errcode() == REMIXDB_OK);
  }
}

// Through a ref that does not write two of the calls are refused before they begin.
static void check_reading(struct xdb *x, struct xdb_ref *r) {
  for (uint32_t c = 0; c < NR_CALLS; c++) {
    struct told t;
    listen(x, r, &t, calls[c].what, 0);
    const bool good = calls[c].fn(r);
    CHECK(good == (c >= 2));
    if (good) check_told(&t, true);
    else CHECK(remixdb_errcode() == REMIXDB_READONLY && t.nr == 0);
  }
  destroy_copy();
}

static void test_read_only_and_snapshots(void **state) {
  (void)state;
  (void)snprintf(copy_dir, sizeof(copy_dir), "%s/copy", dir);
  struct xdb *x = open_slow(1, true);
  struct xdb_ref *r = remixdb_ref(x);
  CHECK(r);
  put_all(r, 7);
  struct xdb_snapshot *const s = remixdb_snapshot(r);
  struct xdb_ref *const old = remixdb_snapshot_ref(s);
  CHECK(s && old);
  put_all(r, 8);
  check_reading(x, old);
  remixdb_unref(old);
  remixdb_snapshot_release(s);
  remixdb_unref(r);
  remixdb_close(x);
  struct remixdb_opts o = small_opts(1);
  o.read_only = true;
  CHECK((x = remixdb_open_opts(dir, &o)) && (r = remixdb_ref(x)));
  check_reading(x, r);
  remixdb_unref(r);
  remixdb_close(x);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_calls_tell, setup, teardown),
      cmocka_unit_test_setup_teardown(test_waiting_is_told, setup, teardown),
      cmocka_unit_test_setup_teardown(test_giving_up, setup, teardown),
      cmocka_unit_test_setup_teardown(test_closing_behind_it, setup, teardown),
      cmocka_unit_test_setup_teardown(test_read_only_and_snapshots, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
