// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of a store that was opened with read_only, and whose log has range deletions that CURRENT has not. Memory
// alone has their views, so the checkpoint writes them: each of its calls fails, and the power goes at each change.
//
// TEST_SEED in the environment repeats a run.
#include <errno.h>
#include <stdio.h>

#include "admin/checkpoint.h"
#include "admin/destroy.h"
#include "compact/erase.h"
#include "store/flush.h"
#include "tests/lib/check.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/slow.h"
#include "xdb.h"

#define KEYS 12000u
#define FROM 1000u  // the deleted range
#define TO 10000u
#define STORE "/store"
#define COPY "/copy"

static struct remixdb_opts some_opts(bool read_only) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.workers = 0;
  o.memtable_mb = 8;
  o.cache_mb = 4;
  o.read_only = read_only;
  o.create = false;
  return o;
}

static uint32_t key_of(uint32_t i, char *buf) { return (uint32_t)snprintf(buf, 16, "%08u", i); }

static void put(struct xdb_ref *r, uint32_t i, const char *value) {
  char key[16];
  CHECK(remixdb_put(r, key, key_of(i, key), value, (uint32_t)strlen(value)));
}

// Each tree has a partition with both views.
static void load_views(struct xdb *x, struct xdb_ref *const refs[TREES]) {
  for (uint32_t t = 0; t < TREES; t++)
    for (uint32_t i = 0; i < KEYS; i++) put(refs[t], i, "loaded");
  CHECK(remixdb_compact(refs[0]));
  for (uint32_t t = 0; t < TREES; t++)
    for (uint32_t i = 0; i < KEYS; i += 600) put(refs[t], i, "new");
  CHECK(remixdb_flush(refs[0]));
  for (const struct version *v = xdb_super(x)->version; v; v = v->spaces)
    CHECK(v->nr_parts == 1 && part_remix(v->parts[0]) && part_young(v->parts[0]));
}

static void put_file(struct env *env, const char *path, const void *bytes, size_t len) {
  int fd;
  OK(env_open(ENV_PATHS(env), path, ENV_WRITE | ENV_CREATE | ENV_TRUNC, &fd));
  OK(env_write(env, fd, path, bytes, len, 0));
  OK(env_sync_all(env, fd, path));
  OK(env_close(env, fd, path));
}

// A disk with a store whose log has the deletion of a range in both trees. CURRENT is the one before these.
static struct simdisk *make_unsaved(void) {
  static uint8_t current[1 << 16];
  struct simdisk *const disk = simdisk_create();
  struct remixdb_opts o = some_opts(false);
  struct xdb *x;
  o.create = true;
  CHECK(disk);
  OK(xdb_open(STORE, &o, simdisk_env(disk), &x));
  x->compact.young_from = 1;
  struct xdb_space *const space = remixdb_space_open(x, "space", true);
  struct xdb_ref *const refs[] = {remixdb_ref(x), remixdb_space_ref(space)};
  load_views(x, refs);
  OK(xdb_wait_idle(x));
  struct xdb_snapshot *const snap = remixdb_snapshot(refs[0]);  // the older files stay
  const int64_t len = simdisk_size(disk, STORE "/" FILES_CURRENT);
  CHECK(snap && len > 0 && len <= (int64_t)sizeof(current));
  CHECK(simdisk_peek(disk, STORE "/" FILES_CURRENT, 0, current, (size_t)len));
  for (uint32_t i = 0; i < 2; i++) {
    char a[16], b[16];
    const struct remixdb_range range = {{a, key_of(FROM, a)}, {b, key_of(TO, b)}};
    CHECK(remixdb_del_range(refs[i], &range));
    put(refs[i], FROM + 7, "back");
  }
  CHECK(remixdb_sync(refs[0]));
  struct simdisk *const crashed = simdisk_crash(disk, 1);
  CHECK(crashed);
  put_file(simdisk_env(crashed), STORE "/" FILES_CURRENT, current, (size_t)len);
  remixdb_snapshot_release(snap);
  for (uint32_t i = 0; i < 2; i++) remixdb_unref(refs[i]);
  remixdb_space_close(space);
  OK(xdb_close(x));
  simdisk_destroy(disk);
  return crashed;
}

static void check_ref(struct xdb_ref *r) {
  char key[16], value[8];
  uint32_t nr = 0, len;
  struct xdb_iter *const it = remixdb_iter_create(r);
  CHECK(it);
  for (remixdb_iter_seek(it, NULL, 0); remixdb_iter_valid(it); remixdb_iter_skip1(it)) nr++;
  CHECK(remixdb_iter_status(it) == REMIXDB_OK);
  remixdb_iter_destroy(it);
  CHECK_SAYS(nr == KEYS - (TO - FROM) + 1, "%u keys", nr);
  CHECK(remixdb_getn(r, key, key_of(FROM + 7, key), value, sizeof(value), &len) && len == 4);
  CHECK(remixdb_getn(r, key, key_of(600, key), value, sizeof(value), &len) && len == 3);
  CHECK(!remixdb_probe(r, key, key_of(TO - 1, key)) && remixdb_probe(r, key, key_of(TO, key)));
}

static void check_edited(struct xdb *x) {
  struct xdb_space *const space = remixdb_space_open(x, "space", false);
  CHECK(space);
  struct xdb_ref *const refs[] = {remixdb_ref(x), remixdb_space_ref(space)};
  for (uint32_t i = 0; i < 2; i++) {
    check_ref(refs[i]);
    remixdb_unref(refs[i]);
  }
  remixdb_space_close(space);
}

struct source {
  struct simdisk *disk;
  struct xdb *x;
  struct xdb_ref *ref;
};

static void source_open(struct source *s, struct simdisk *disk) {
  const struct remixdb_opts o = some_opts(true);
  s->disk = disk;
  OK(xdb_open(STORE, &o, simdisk_env(disk), &s->x));
  CHECK((s->ref = remixdb_ref(s->x)) && compact_unfiled(xdb_super(s->x)->version));
}

static void source_close(struct source *s) {
  remixdb_unref(s->ref);
  OK(xdb_close(s->x));
}

static void check_store(struct simdisk *disk, const char *path, bool read_only) {
  const struct remixdb_opts o = some_opts(read_only);
  struct xdb *x;
  OK(xdb_open(path, &o, simdisk_env(disk), &x));
  check_edited(x);
  struct xdb_ref *const r = remixdb_ref(x);
  CHECK(r && remixdb_verify(r));
  if (!read_only) CHECK(remixdb_compact(r) && remixdb_verify(r));
  if (!read_only) check_edited(x);
  remixdb_unref(r);
  OK(xdb_close(x));
}

// Makes the checkpoint while the nth call fails in this way. Returns false if there is no such call.
static bool fail_one(struct source *s, enum simdisk_call call, uint64_t nth, uint64_t nr, int how, uint32_t *failed) {
  const uint64_t before = simdisk_calls(s->disk, call);
  const uint32_t open = simdisk_open_files(s->disk);
  struct env_stat st;
  simdisk_fault(s->disk, call, nth, nr, how);
  const enum remixdb_status made = checkpoint_make(s->ref, COPY);
  simdisk_fault(s->disk, call, 0, 0, 0);
  CHECK_SAYS(simdisk_open_files(s->disk) == open, "call %u, %llu", call, (unsigned long long)nth);
  const bool hit = simdisk_calls(s->disk, call) - before > nth;
  if (made == REMIXDB_OK) {
    if (hit) check_store(s->disk, COPY, true);
    OK(destroy_store(simdisk_env(s->disk), COPY));
    return hit;
  }
  CHECK_SAYS(hit && err_msg()[0], "call %u, %llu", call, (unsigned long long)nth);
  ++*failed;
  // it leaves nothing; where its own clean-up has failed, a destroy can remove the rest
  const enum remixdb_status there = env_stat(ENV_PATHS(simdisk_env(s->disk)), COPY, &st);
  const bool cleans = call == SIMDISK_UNLINK || call == SIMDISK_RMDIR || call == SIMDISK_LIST || call == SIMDISK_OPEN ||
                      call == SIMDISK_STAT || call == SIMDISK_LOCK || call == SIMDISK_SYNC || nr > 1;
  CHECK_SAYS(there == REMIXDB_NOTFOUND || cleans, "call %u, %llu", call, (unsigned long long)nth);
  if (there == REMIXDB_OK) {
    const enum remixdb_status gone = destroy_store(simdisk_env(s->disk), COPY);
    CHECK(gone == REMIXDB_OK || gone == REMIXDB_NOTFOUND);
  }
  return true;
}

// Each call on the files of the views fails, in each way; then each call of the checkpoint, with the same error.
static void test_failing_calls(void **state) {
  (void)state;
  static const enum simdisk_call calls[] = {SIMDISK_OPEN,     SIMDISK_READ,     SIMDISK_WRITE, SIMDISK_SYNC,
                                            SIMDISK_TRUNCATE, SIMDISK_ALLOCATE, SIMDISK_STAT,  SIMDISK_RENAME,
                                            SIMDISK_UNLINK,   SIMDISK_LINK,     SIMDISK_MKDIR, SIMDISK_LIST,
                                            SIMDISK_LOCK,     SIMDISK_CLOSE};
  static const int ways[] = {EIO, ENOSPC, SIMDISK_SHORT, SIMDISK_NOTHING, SIMDISK_DONE};
  struct source s;
  uint32_t of_views = 0, of_all = 0, writes = 0;
  source_open(&s, make_unsaved());
  const uint64_t first = xdb_super(s.x)->version->next_file;
  for (uint32_t view = 0; view < 4; view++) {
    char name[32];
    remix_name(name, first + view);
    simdisk_fault_name(s.disk, name);
    for (uint32_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++)
      for (uint32_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
        if (ways[w] == SIMDISK_SHORT && calls[c] != SIMDISK_READ && calls[c] != SIMDISK_WRITE) continue;
        if (ways[w] == SIMDISK_NOTHING && calls[c] != SIMDISK_WRITE) continue;
        const uint32_t before = of_views;
        for (uint64_t nth = 0; fail_one(&s, calls[c], nth, 1, ways[w], &of_views); nth++) CHECK(nth < 100);
        writes += calls[c] == SIMDISK_WRITE && ways[w] == ENOSPC && of_views > before;
      }
  }
  CHECK_SAYS(writes == 4, "%u views were written", writes);
  simdisk_fault_name(s.disk, NULL);
  for (uint32_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++)
    for (uint32_t last = 0; last < 2; last++)
      for (uint64_t nth = 0; fail_one(&s, calls[c], nth, last ? UINT64_MAX : 1, EIO, &of_all); nth++) CHECK(nth < 500);
  printf("%u checkpoints failed by a call on a view, %u by any call\n", of_views, of_all);
  CHECK(of_views > 20 && of_all > 40);
  check_edited(s.x);
  OK(checkpoint_make(s.ref, COPY));
  source_close(&s);
  check_store(s.disk, COPY, false);
  check_store(s.disk, STORE, false);
  simdisk_destroy(s.disk);
}

static struct {
  struct simdisk *disk;
  uint64_t seeds, nr;
  uint32_t whole, none;
  bool made;  // the call has returned
} cuts;

// The power goes now.
static void cut(void *arg) {
  (void)arg;
  for (uint64_t seed = 0; seed < cuts.seeds; seed++) {
    struct simdisk *const d = simdisk_crash(cuts.disk, check_seed + cuts.nr * 16 + seed);
    const struct remixdb_opts o = some_opts(true);
    struct xdb *x;
    CHECK(d);
    const enum remixdb_status s = xdb_open(COPY, &o, simdisk_env(d), &x);
    if (s == REMIXDB_OK) {
      check_edited(x);
      OK(xdb_close(x));
      check_store(d, COPY, false);
      cuts.whole++;
    } else {
      struct source again;
      CHECK(!cuts.made && (s == REMIXDB_NOTFOUND || s == REMIXDB_CORRUPT));
      source_open(&again, d);
      OK(checkpoint_make(again.ref, COPY));
      source_close(&again);
      check_store(d, COPY, true);
      cuts.none++;
    }
    check_store(d, STORE, seed % 2);
    simdisk_destroy(d);
  }
  cuts.nr++;
}

// The power goes at every change while the checkpoint is made. At its place is a whole store, or none, and it can be
// made again.
static void test_power_cuts(void **state) {
  (void)state;
  struct source s;
  source_open(&s, make_unsaved());
  cuts.disk = s.disk;
  cuts.seeds = SLOW > 1 ? 1 : 3;
  simdisk_on_change(s.disk, cut, NULL);
  OK(checkpoint_make(s.ref, COPY));
  simdisk_on_change(s.disk, NULL, NULL);
  cuts.made = true;
  cut(NULL);
  printf("%llu places: %u whole, %u none\n", (unsigned long long)cuts.nr, cuts.whole, cuts.none);
  CHECK(cuts.whole >= cuts.seeds && cuts.none > 20 * cuts.seeds);
  source_close(&s);
  simdisk_destroy(s.disk);
}

int main(void) {
  check_seed = check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_failing_calls),
      cmocka_unit_test(test_power_cuts),
  };
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
