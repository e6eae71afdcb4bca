// SPDX-License-Identifier: Apache-2.0
//
// Stores with damaged files. A store that cannot be opened is reported with the file's name and left as it was found;
// one that can be opened returns no wrong data. test_rot.c goes through every bit of smaller stores.
#include "log/state.h"
#include "tests/lib/check.h"
#include "tests/lib/slow.h"
#include "xdb.h"

#include "tests/lib/sample.h"

// An open of dir must fail with one of two statuses, name the file, and change nothing.
static void check_refused(const char *dir, enum remixdb_status s, enum remixdb_status or_s, const char *name,
                          const char *what) {
  const struct listing before = list_dir(dir);
  struct remixdb_opts o = small_opts(0);
  for (int i = 0; i < 2; i++) {
    o.read_only = i == 1;
    struct xdb *const x = remixdb_open_opts(dir, &o);
    if (x) fail_msg("%s: the store opened", what);
    if (remixdb_errcode() != s && remixdb_errcode() != or_s)
      fail_msg("%s: %s: %s", what, status_now(), remixdb_errmsg());
    if (!strstr(remixdb_errmsg(), name) || !strstr(remixdb_errmsg(), dir))
      fail_msg("%s: the message is \"%s\"", what, remixdb_errmsg());
    SAME(before, dir, what);
  }
}

static void test_newer_format(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  copy_dir(sample, dir_of(dir, "newer"));
  uint8_t old[4], newer[4];
  const struct listing l = list_dir(dir);
  size_t len = 0;
  for (uint32_t i = 0; i < l.nr; i++)
    if (strcmp(l.files[i].name, "CURRENT") == 0) len = (size_t)l.files[i].size;
  uint8_t *const current = malloc(len), sum[8];
  CHECK(current && len > 64);
  peek(dir, "CURRENT", 0, current, len);
  peek(dir, "CURRENT", len - 8, sum, 8);
  peek(dir, "CURRENT", 8, old, 4);
  store32le(newer, load32le(old) + 100);
  poke(dir, "CURRENT", 8, newer, 4);
  check_refused(dir, REMIXDB_CORRUPT, REMIXDB_CORRUPT, "CURRENT", "a format that is damaged");
  store32le(current + 8, load32le(newer));
  store64le(current + len - 8, hash64(current, len - 8));
  poke(dir, "CURRENT", len - 8, current + len - 8, 8);
  check_refused(dir, REMIXDB_VERSION, REMIXDB_VERSION, "CURRENT", "a newer CURRENT");
  poke(dir, "CURRENT", 8, old, 4);
  poke(dir, "CURRENT", len - 8, sum, 8);
  free(current);
  // the heads of log segments carry their own version and checksum
  for (uint32_t i = 0; i < l.nr; i++) {
    if (strncmp(l.files[i].name, "wal-", 4) != 0) continue;
    uint8_t head[512], good[512];
    peek(dir, l.files[i].name, 0, head, sizeof(head));
    memcpy(good, head, sizeof(head));
    store32le(head + 8, load32le(head + 8) + 1);
    store64le(head + 504, hash64(head, 448));
    poke(dir, l.files[i].name, 0, head, sizeof(head));
    check_refused(dir, REMIXDB_VERSION, REMIXDB_VERSION, l.files[i].name, "a newer log");
    poke(dir, l.files[i].name, 0, good, sizeof(good));
  }
  sample_check(dir);
  remove_tree(dir);
}

static void test_truncated(void **state) {
  (void)state;
  char dir[PATH_SIZE], path[PATH_SIZE + 100], what[128];
  copy_dir(sample, dir_of(dir, "truncated"));
  const struct listing l = list_dir(dir);
  uint32_t seen = 0;
  for (uint32_t i = 0; i < l.nr; i++) {
    const char *const name = l.files[i].name;
    const bool sst = ends_with(name, ".sst"), remix = ends_with(name, ".remix"), current = strcmp(name, "CURRENT") == 0;
    if (!sst && !remix && !current) continue;
    seen |= sst ? 1 : remix ? 2 : 4;
    char from[PATH_SIZE + 100];
    (void)snprintf(path, sizeof(path), "%s/%.63s", dir, name);
    (void)snprintf(from, sizeof(from), "%s/%.63s", sample, name);
    const uint64_t size = l.files[i].size, sizes[] = {0, 1, size / 2, size > 4096 ? size - 4096 : 7, size - 1};
    for (uint32_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
      CHECK(truncate(path, (off_t)sizes[k]) == 0);
      (void)snprintf(what, sizeof(what), "%s cut to %llu bytes", name, (unsigned long long)sizes[k]);
      check_refused(dir, REMIXDB_CORRUPT, REMIXDB_CORRUPT, name, what);
      copy_file(from, path);
    }
    CHECK(truncate(path, (off_t)size + 4096) == 0);
    (void)snprintf(what, sizeof(what), "%s with more at its end", name);
    check_refused(dir, REMIXDB_CORRUPT, REMIXDB_VERSION, name, what);
    copy_file(from, path);
    if (!current) {
      CHECK(unlink(path) == 0);
      (void)snprintf(what, sizeof(what), "%s missing", name);
      check_refused(dir, REMIXDB_CORRUPT, REMIXDB_IO, name, what);
      copy_file(from, path);
    }
  }
  CHECK(seen == 7);
  sample_check(dir);
  remove_tree(dir);
}

static void test_current_missing(void **state) {
  (void)state;
  char dir[PATH_SIZE], path[PATH_SIZE + 16];
  copy_dir(sample, dir_of(dir, "headless"));
  (void)snprintf(path, sizeof(path), "%s/CURRENT", dir);
  CHECK(unlink(path) == 0);
  const struct listing before = list_dir(dir);
  struct remixdb_opts o = small_opts(0);
  for (int i = 0; i < 4; i++) {
    o.create = i % 2 == 0;
    o.read_only = i / 2 == 1;
    CHECK(!remixdb_open_opts(dir, &o));
    FAILED(REMIXDB_CORRUPT, "CURRENT");
    FAILED(REMIXDB_CORRUPT, dir);
    SAME(before, dir, "opening a store without CURRENT");
  }
  CHECK(!remixdb_open(dir, 0, 0, true) && !remixdb_open_compact(dir, 0, 0));
  SAME(before, dir, "opening a store without CURRENT");
  // the log alone is a store that must not be overwritten, too; no lock file is left beside it
  const struct listing l = list_dir(dir);
  for (uint32_t i = 0; i < l.nr; i++) {
    char gone[PATH_SIZE + 100];
    (void)snprintf(gone, sizeof(gone), "%s/%s", dir, l.files[i].name);
    if (strncmp(l.files[i].name, "wal-", 4) != 0) CHECK(unlink(gone) == 0);
  }
  const struct listing logs = list_dir(dir);
  CHECK(!remixdb_open(dir, 0, 0, true));
  FAILED(REMIXDB_CORRUPT, "CURRENT");
  SAME(logs, dir, "opening a log without CURRENT");
  remove_tree(dir);
}

// Bytes flipped one at a time all over the files. Opened read-only, so that the same files serve for all of them.
static void flip_all_over(const char *from, const char *name_of_copy) {
  char dir[PATH_SIZE], what[128];
  copy_dir(from, dir_of(dir, name_of_copy));
  const struct listing l = list_dir(dir);
  struct remixdb_opts o = small_opts(0);
  o.read_only = true;
  uint64_t rng = 42;
  for (uint32_t i = 0; i < l.nr; i++) {
    const struct file *const f = &l.files[i];
    const bool sst = ends_with(f->name, ".sst"), wal = strncmp(f->name, "wal-", 4) == 0;
    const bool exact = ends_with(f->name, ".remix") || strcmp(f->name, "CURRENT") == 0;
    if (!sst && !wal && !exact) continue;
    const uint32_t times = exact ? 24 : 12;
    for (uint32_t k = 0; k < times; k++) {
      // a table's end and every file's beginning are read first
      uint64_t off = k < 4 ? k * 8 : rng_next(&rng) % f->size;
      if (sst && k >= 4 && k < 8) off = f->size - 1 - rng_next(&rng) % 512;
      if (wal && k >= 4) off = rng_next(&rng) % (f->size < 300000 ? f->size : 300000);
      (void)snprintf(what, sizeof(what), "a bit flipped in %s at %llu of %llu", f->name, (unsigned long long)off,
                     (unsigned long long)f->size);
      flip(dir, f->name, off);
      struct xdb *const x = remixdb_open_opts(dir, &o);
      if (!x) {
        const enum remixdb_status s = remixdb_errcode();
        if (s != REMIXDB_CORRUPT && s != REMIXDB_VERSION)
          fail_msg("%s: %s: %s", what, remixdb_strerror(s), remixdb_errmsg());
        // in the log it may be the place of the missing segment
        if (!strstr(remixdb_errmsg(), wal ? dir : f->name))
          fail_msg("%s: the message is \"%s\"", what, remixdb_errmsg());
      } else {
        if (exact) fail_msg("%s: the store opened", what);
        struct xdb_ref *const r = remixdb_ref(x);
        uint32_t end;
        const bool whole = sample_look(r, &end);
        // only the last thing synced before the close has nothing after it that says it was durable
        if (wal && !whole && end < SAMPLE_OLD) fail_msg("%s: keys from %u on are gone without a word", what, end);
        if (sst && end != SAMPLE_KEYS) fail_msg("%s: key %u is gone", what, end);
        sample_close(x, r);
      }
      flip(dir, f->name, off);
    }
  }
  SAME(l, dir, "opening with read_only");
  sample_check(dir);
  remove_tree(dir);
}

static void test_flips(void **state) {
  (void)state;
  flip_all_over(sample, "flips");
}

static void test_flips_compressed(void **state) {
  (void)state;
  flip_all_over(sample_zstd, "flips-zstd");
}

// Tells whether all that was written is durable, and the log's watermark says so.
static bool log_rests(struct xdb *x) {
  struct wal *const w = x->wal;
  uint64_t durable = 0, sequence = 1;
  (void)pthread_mutex_lock(&w->admin);
  lib_lock(&w->lock);
  const bool marked = w->active->level.gen == w->active->h.gen && w->active->level.end == w->active->durable;
  lib_unlock(&w->lock);
  (void)pthread_mutex_unlock(&w->admin);
  return marked && remixdb_figure(x, "log.durable_sequence", &durable) && remixdb_figure(x, "sequence", &sequence) &&
         durable == sequence;
}

// A log that is broken in the middle is not the same as one that ends early.
static void test_damaged_log(void **state) {
  (void)state;
  char dir[PATH_SIZE];
  struct remixdb_opts o = small_opts(0);
  dir_of(dir, "log");
  // a process that dies after its log has come to rest: the end of a store would leave none
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    o.sync = 10;
    struct xdb *const x = remixdb_open_opts(dir, &o);
    struct xdb_ref *const r = remixdb_ref(x);
    for (uint32_t i = 0; i < 200; i++) {
      sample_put(r, i);
      if (i % 50 == 49 && !remixdb_sync(r)) _exit(1);
    }
    (void)alarm(SLOW_HANG_S);
    while (!log_rests(x)) time_sleep_ns(10000000);
    _exit(0);
  }
  int status;
  CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const struct listing l = list_dir(dir);
  uint32_t refused = 0;
  for (uint32_t i = 0; i < l.nr; i++) {
    if (strncmp(l.files[i].name, "wal-", 4) != 0) continue;
    for (uint32_t off = 520; off < 10000; off += 3001) {  // within the first frames, which later ones call durable
      uint8_t b;
      peek(dir, l.files[i].name, off, &b, 1);
      if (b == 0) continue;
      flip(dir, l.files[i].name, off);
      check_refused(dir, REMIXDB_CORRUPT, REMIXDB_CORRUPT, l.files[i].name, "a log broken before its durable end");
      refused++;
      flip(dir, l.files[i].name, off);
    }
    // the file ends in the middle of the last frame; the log was marked, so that all of it had been durable
    char path[PATH_SIZE + 100];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, l.files[i].name);
    CHECK(truncate(path, 55000) == 0);
    check_refused(dir, REMIXDB_CORRUPT, REMIXDB_CORRUPT, l.files[i].name, "a log cut short");
    // without the watermark, as the death of the process leaves it, this is a torn tail
    flip(dir, l.files[i].name, 448);
  }
  CHECK(refused >= 3);
  struct xdb *x;
  struct xdb_ref *const r = sample_open(dir, &o, &x);
  uint32_t end;
  (void)sample_look(r, &end);
  CHECK(end >= 150 && end <= 200);
  sample_close(x, r);
  // the log gone altogether
  const struct listing l2 = list_dir(dir);
  for (uint32_t i = 0; i < l2.nr; i++) {
    char path[PATH_SIZE + 100];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, l2.files[i].name);
    if (strncmp(l2.files[i].name, "wal-", 4) == 0) CHECK(unlink(path) == 0);
  }
  check_refused(dir, REMIXDB_CORRUPT, REMIXDB_CORRUPT, dir, "a store whose log is gone");
  remove_tree(dir);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_newer_format),     cmocka_unit_test(test_truncated),
      cmocka_unit_test(test_current_missing),  cmocka_unit_test(test_flips),
      cmocka_unit_test(test_flips_compressed), cmocka_unit_test(test_damaged_log),
  };
  return cmocka_run_group_tests_name("damage", tests, samples_setup, base_teardown);
}
