// SPDX-License-Identifier: Apache-2.0
//
// Work of an opening on the files of a log beside replaying them, and the records that repair reads of a damaged log.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/simdisk.h"
#include "log/format.h"
#include "log/wal.h"

#define STORE 0x5eedf00dcafe1234ull
#define DIR "/db"
#define HEAD 512u
#define TAGS 4096u

// The replayed records: each value begins with its tag.
struct seen {
  uint32_t tags[TAGS], nr;
};
static struct seen seen;
static struct simdisk *watched;  // no more than two files of it are open while it is replayed

static enum remixdb_status take(void *arg, uint64_t seq, const struct kv_rec *r) {
  struct seen *const s = arg;
  (void)seq;
  if (watched) assert_true(simdisk_open_files(watched) <= 2);
  assert_true(s->nr < TAGS && r->vlen >= 4);
  memcpy(&s->tags[s->nr++], r->val, 4);
  return REMIXDB_OK;
}

static struct simdisk *disk_create(void) {
  struct simdisk *const d = simdisk_create();
  assert_non_null(d);
  OK(env_mkdir(ENV_PATHS(simdisk_env(d)), DIR));
  OK(paths_sync_dir(simdisk_env(d), "/"));
  return d;
}

// Takes the watermarks away, as of a process that died after its last sync. The next opening begins a segment.
static void unmark(struct simdisk *d) {
  static const uint8_t none[WAL_LEVEL_LEN];
  for (uint32_t i = 0; i < 50; i++) {
    char path[32];
    (void)snprintf(path, sizeof(path), DIR "/wal-%u", i);
    if (simdisk_size(d, path) >= (int64_t)HEAD) assert_true(simdisk_poke(d, path, WAL_LEVEL, none, sizeof(none)));
  }
}

static struct wal *open_log(struct env *e, bool fresh) {
  const struct wal_opts o = {.dir = simdisk_dir(e, DIR), .store_id = STORE, .step = 64u << 10};
  struct wal *w;
  struct wal_recovery rec;
  seen.nr = 0;
  OK(wal_open(&o, 1, 0, fresh, take, &seen, &rec, &w));
  return w;
}

static void append(struct wal *w, uint32_t tag, uint32_t vlen) {
  static uint8_t val[60000];
  uint64_t gen;
  memset(val, 'v', vlen);
  memcpy(val, &tag, 4);
  OK(wal_begin(w, kv_rec_size(KV_REC(kref(NULL, 3), NULL, vlen, false)), &gen));
  (void)wal_put(w, KV_REC(kref("key", 3), val, vlen, false));
  wal_end(w);
}

// One record in a frame of its own, which is in the file.
static void put(struct wal *w, uint32_t tag, uint32_t vlen) {
  append(w, tag, vlen);
  OK(wal_flush(w));
}

// Losses that a salvage reported.
static struct {
  struct wal_loss l[64];
  char path[64][64];
  uint32_t nr, torn;
} lost;

static void take_loss(void *arg, const struct wal_loss *l) {
  (void)arg;
  char text[WAL_LOSS_TEXT];
  assert_true(lost.nr < 64 && strlen(wal_loss_text(l, text, sizeof(text))) > 10);
  (void)snprintf(lost.path[lost.nr], sizeof(lost.path[0]), "%s", l->path);
  lost.l[lost.nr] = *l;
  lost.l[lost.nr].path = lost.path[lost.nr];
  lost.torn += l->torn;
  lost.nr++;
}

// Every record that is still there, from generation oldest_gen on, which follows sequence number 0.
static enum remixdb_status salvage(struct env *e, uint64_t oldest_gen, struct wal_salvage *out) {
  const struct wal_opts o = {.dir = simdisk_dir(e, DIR), .store_id = STORE, .read_only = true};
  const struct wal_salvage_to to = {.record = take, .lost = take_loss, .arg = &seen};
  seen.nr = lost.nr = lost.torn = 0;
  return wal_read_damaged(&o, oldest_gen, 0, &to, out);
}

static void expect_seen(const uint32_t *tags, uint32_t nr) {
  assert_int_equal(seen.nr, nr);
  for (uint32_t i = 0; i < nr; i++) assert_int_equal(seen.tags[i], tags[i]);
}

// ---- opening

static struct {
  struct env env;
  struct env_ops ops;
  const struct env_ops *real;
  uint64_t from, to;   // the bounds of the written frames
  const char *unread;  // the file of which [bad_from, bad_to) cannot be read
  uint64_t bad_from, bad_to;
  const char *full;  // the file that cannot be written to: the disk is full, and the file system never writes in place
  int fd, full_fd;
} spy;

static ssize_t spy_write(struct env *e, int fd, const void *buf, size_t len, uint64_t off) {
  if (spy.full && fd == spy.full_fd) return -ENOSPC;
  if (off >= HEAD) {
    if (off < spy.from) spy.from = off;
    if (off + len > spy.to) spy.to = off + len;
  }
  return spy.real->pwrite(e, fd, buf, len, off);
}

static int spy_open(struct env *e, int at, const char *path, unsigned flags) {
  const int fd = spy.real->open(e, at, path, flags);
  if (fd == spy.fd) spy.fd = -1;
  if (spy.unread && strcmp(path, spy.unread) == 0) spy.fd = fd;
  if (fd == spy.full_fd) spy.full_fd = -1;
  if (spy.full && strcmp(path, spy.full) == 0) spy.full_fd = fd;
  return fd;
}

// As systems do: the bytes before the bad part are given.
static ssize_t spy_read(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  if (spy.unread && fd >= 0 && fd == spy.fd && off < spy.bad_to && off + len > spy.bad_from) {
    if (off >= spy.bad_from) return -EIO;
    len = (size_t)(spy.bad_from - off);
  }
  return spy.real->pread(e, fd, buf, len, off);
}

static struct env *spy_on(struct simdisk *d) {
  spy.env = *simdisk_env(d);
  spy.real = spy.env.ops;
  spy.ops = *spy.real;
  spy.ops.pwrite = spy_write;
  spy.ops.open = spy_open;
  spy.ops.pread = spy_read;
  spy.env.ops = &spy.ops;
  spy.from = UINT64_MAX;
  spy.to = 0;
  spy.unread = spy.full = NULL;
  spy.fd = spy.full_fd = -1;
  return &spy.env;
}

// An fsync fails while written records are on their way to the disk, which closes the log without a watermark.
static void fail_sync(struct simdisk *d, struct wal *w) {
  simdisk_fault(d, SIMDISK_SYNC, 0, 1, EIO);
  FAILS(wal_sync(w), REMIXDB_IO);
  FAILS(wal_close(w), REMIXDB_IO);
}

// Then the log is opened again.
static struct wal *open_after_failed_sync(struct simdisk *d, struct wal *w) {
  fail_sync(d, w);
  spy.from = UINT64_MAX;
  spy.to = 0;
  return open_log(&spy.env, false);
}

// After an fsync that has failed the system may call pages clean that never came to the disk, and another fsync writes
// nothing: what nothing proves to be on disk is written again, and no more than that.
static void test_written_again(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct env *const e = spy_on(d);
  struct wal *w = open_log(e, true);
  put(w, 1, 100);
  OK(wal_sync(w));
  const uint64_t at = wal_segment_bytes(w);
  put(w, 2, 100);
  const uint64_t end = wal_segment_bytes(w);
  w = open_after_failed_sync(d, w);
  assert_int_equal(seen.nr, 2);
  assert_int_equal(spy.from, at);
  assert_int_equal(spy.to, end);
  put(w, 3, 100);
  OK(wal_sync(w));
  OK(wal_close(w));
  spy.from = UINT64_MAX;
  w = open_log(e, false);  // closed well: all of it is known to be durable
  assert_int_equal(seen.nr, 3);
  assert_int_equal(spy.from, UINT64_MAX);
  // a process that is killed leaves the last frames without a proof; the next header is one
  put(w, 4, 100);
  OK(wal_sync(w));
  for (int i = 0; i < 2; i++) {
    simdisk_fault(d, SIMDISK_WRITE, 0, 1, EIO);
    append(w, 5, 100);
    FAILS(wal_flush(w), REMIXDB_IO);
    FAILS(wal_close(w), REMIXDB_IO);
    spy.from = UINT64_MAX;
    w = open_log(e, false);
    assert_int_equal(seen.nr, 4);
    assert_int_equal(spy.from == UINT64_MAX, i == 1);
  }
  // as is, for all of a segment, a later one of which something is durable
  put(w, 6, 100);
  OK(wal_switch(w, NULL, NULL));
  put(w, 7, 100);
  OK(wal_sync(w));
  const uint64_t known = wal_segment_bytes(w);
  put(w, 8, 100);
  w = open_after_failed_sync(d, w);
  assert_int_equal(seen.nr, 7);
  assert_int_equal(spy.from, known);
  OK(wal_close(w));
  simdisk_destroy(d);
}

// Makes a log with a record of so many bytes, closed well.
static struct simdisk *closed_log(uint32_t vlen) {
  struct simdisk *const d = disk_create();
  struct wal *const w = open_log(simdisk_env(d), true);
  put(w, 1, vlen);
  OK(wal_close(w));
  return d;
}

// A small log that was closed well goes on in its segment: the opening changes nothing, and new records follow the old
// ones. It does not if the watermark is not of the end, if there is another file, if the file has a second name, if a
// frame lies after the end, or if the segment is large.
static void test_goes_on(void **state) {
  (void)state;
  enum { CLOSED, UNMARKED, OLD_MARK, SPARE, LINKED, TORN, LARGE, WAYS };
  for (int way = CLOSED; way < WAYS; way++) {
    struct simdisk *const d = closed_log(way == LARGE ? 50000 : 100);
    struct env *const e = simdisk_env(d);
    uint8_t mark[WAL_LEVEL_LEN];
    int fd;
    if (way == UNMARKED) unmark(d);
    assert_true(simdisk_peek(d, DIR "/wal-0", WAL_LEVEL, mark, sizeof(mark)));
    if (way == OLD_MARK || way == LARGE || way == TORN) {
      struct wal *const w = open_log(e, false);
      put(w, 2, way == LARGE ? 50000 : 100);
      put(w, 3, 100);
      OK(wal_close(w));
      if (way != LARGE) assert_true(simdisk_poke(d, DIR "/wal-0", WAL_LEVEL, mark, sizeof(mark)));
      if (way == TORN) assert_true(simdisk_flip(d, DIR "/wal-0", HEAD + WAL_FRAME_HEAD + 160, 1));
    }
    if (way == SPARE) {
      OK(env_open(ENV_PATHS(e), DIR "/wal-9", ENV_WRITE | ENV_CREATE, &fd));
      OK(env_close(e, fd, DIR "/wal-9"));
    }
    if (way == LINKED) OK(env_link(ENV_PATHS(e), DIR "/wal-0", ENV_PATHS(e), DIR "/other"));
    const uint64_t changes = simdisk_changes(d), syncs = simdisk_calls(d, SIMDISK_SYNC);
    struct wal *w = open_log(e, false);
    const uint32_t nr = way == OLD_MARK || way == LARGE ? 3 : 1;
    assert_int_equal(seen.nr, nr);
    assert_int_equal(wal_gen(w) == 1, way == CLOSED);
    assert_int_equal(wal_segment_holds(w), way == CLOSED);
    assert_int_equal(simdisk_changes(d) == changes && simdisk_calls(d, SIMDISK_SYNC) == syncs, way == CLOSED);
    put(w, 4, 100);
    OK(wal_sync(w));
    OK(wal_close(w));
    w = open_log(e, false);
    assert_int_equal(seen.nr, nr + 1);
    assert_int_equal(seen.tags[nr], 4);
    OK(wal_close(w));
    simdisk_destroy(d);
  }
}

// A file system that never writes in place has no room for that when the disk is full, and the store opens all the
// same, with a segment that was made ready.
static void test_not_written_again(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct env *const e = spy_on(d);
  struct wal *w = open_log(e, true);
  put(w, 1, 100);
  OK(wal_sync(w));
  OK(wal_prepare(w));
  simdisk_fault(d, SIMDISK_WRITE, 0, 1, EIO);
  append(w, 2, 100);
  FAILS(wal_flush(w), REMIXDB_IO);  // so that no watermark is written
  FAILS(wal_close(w), REMIXDB_IO);
  spy.full = "wal-0";
  w = open_log(e, false);
  assert_int_equal(seen.nr, 1);
  OK(wal_close(w));
  simdisk_destroy(d);
}

// A process that dies soon after each start leaves a segment more each time; they are not all open at once.
static void test_many_segments(void **state) {
  (void)state;
  struct simdisk *const d = watched = disk_create();
  for (uint32_t i = 0; i < 40; i++) {
    struct wal *const w = open_log(simdisk_env(d), i == 0);
    assert_int_equal(seen.nr, i);
    put(w, i, 100);
    OK(wal_sync(w));
    OK(wal_close(w));
    unmark(d);
    assert_int_equal(simdisk_open_files(d), 0);
  }
  struct wal_salvage out;
  OK(salvage(simdisk_env(d), 1, &out));
  assert_int_equal(out.nr_segments, 40);
  watched = NULL;
  simdisk_destroy(d);
}

// ---- files with another name, and files of others

#define COPY "/copy"
static uint8_t copied[256u << 10];
static int64_t copied_size;

// The first file of the log gets a second name, as cp -al gives it.
static void link_first(struct env *e, struct simdisk *d) {
  OK(env_link(ENV_PATHS(e), DIR "/wal-0", ENV_PATHS(e), COPY));
  OK(paths_sync_dir(e, "/"));
  copied_size = simdisk_size(d, COPY);
  CHECK(copied_size > 0 && (size_t)copied_size <= sizeof(copied));
  CHECK(simdisk_peek(d, COPY, 0, copied, (size_t)copied_size));
}

static void expect_copy(struct simdisk *d) {
  static uint8_t now[sizeof(copied)];
  assert_int_equal(simdisk_size(d, COPY), copied_size);
  CHECK(simdisk_peek(d, COPY, 0, now, (size_t)copied_size));
  assert_memory_equal(now, copied, copied_size);
}

static uint32_t links_of(struct env *e, const char *path) {
  struct env_stat st;
  OK(env_stat(ENV_PATHS(e), path, &st));
  return st.links;
}

// The watermark of a segment also belongs into the segment before, but not if that has another name.
static void test_linked_mark(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct env *const e = simdisk_env(d);
  struct wal *w = open_log(e, true);
  put(w, 1, 100);
  OK(wal_sync(w));
  OK(wal_close(w));
  link_first(e, d);
  for (uint32_t i = 0; i < 2; i++) {
    w = open_log(e, false);
    assert_int_equal(seen.nr, 1 + i);
    put(w, 2 + i, 100);
    OK(wal_sync(w));
    OK(wal_mark(w));
    expect_copy(d);
    OK(wal_close(w));
    expect_copy(d);
  }
  assert_int_equal(links_of(e, DIR "/wal-0"), 2);
  simdisk_destroy(d);
}

// Nothing proves that the last record is on disk, and the file has another name: the log goes on with a copy of it. The
// copy is written and synced.
static void test_linked_tail(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct env *const e = spy_on(d);
  struct wal *w = open_log(e, true);
  put(w, 1, 100);
  OK(wal_sync(w));
  put(w, 2, 100);
  fail_sync(d, w);
  link_first(e, d);
  assert_int_equal(links_of(e, COPY), 2);
  w = open_log(e, false);
  assert_int_equal(seen.nr, 2);
  assert_int_equal(links_of(e, COPY), 1);
  assert_int_equal(links_of(e, DIR "/wal-0"), 1);
  expect_copy(d);
  struct simdisk *const after = simdisk_crash(d, 1);
  put(w, 3, 100);
  OK(wal_sync(w));
  OK(wal_close(w));
  expect_copy(d);
  w = open_log(e, false);
  assert_int_equal(seen.nr, 3);
  OK(wal_close(w));
  simdisk_destroy(d);
  w = open_log(simdisk_env(after), false);
  assert_int_equal(seen.nr, 2);
  OK(wal_close(w));
  simdisk_destroy(after);
}

// A file of the pool is replaced while the log is open: by a text, by a segment of another store, or by a file's second
// name. It is neither taken for a segment nor removed.
static void run_replaced(uint32_t what, bool shed) {
  struct simdisk *const d = disk_create();
  struct env *const e = simdisk_env(d);
  uint8_t other[WAL_HEAD] = "a text of somebody's";
  struct wal *w = open_log(e, true);
  int fd;
  put(w, 1, 100);
  OK(wal_switch(w, NULL, NULL));
  put(w, 2, 100);
  OK(wal_release(w, wal_gen(w)));
  struct wal_stats st;
  wal_stats(w, &st);
  assert_int_equal(st.pool_segments, 1);
  if (what) wal_head_put(other, &(struct wal_head){.store_id = what == 1 ? STORE + 1 : STORE, .gen = 1});
  OK(env_open(ENV_PATHS(e), COPY, ENV_WRITE | ENV_CREATE, &fd));
  OK(env_write(e, fd, COPY, other, what ? sizeof(other) : 20, 0));
  OK(env_sync_all(e, fd, COPY));
  OK(env_close(e, fd, COPY));
  OK(env_unlink(ENV_PATHS(e), DIR "/wal-0"));
  OK(env_link(ENV_PATHS(e), COPY, ENV_PATHS(e), DIR "/wal-0"));
  if (what < 2) OK(env_unlink(ENV_PATHS(e), COPY));
  if (shed) OK(wal_shed(w));
  OK(wal_switch(w, NULL, NULL));
  put(w, 3, 100);
  OK(wal_sync(w));
  OK(wal_close(w));
  const char *const path = what < 2 ? DIR "/wal-0" : COPY;
  uint8_t now[WAL_HEAD] = {0};
  CHECK(simdisk_size(d, path) == (what ? (int64_t)sizeof(other) : 20));
  CHECK(simdisk_peek(d, path, 0, now, what ? sizeof(other) : 20));
  assert_memory_equal(now, other, what ? sizeof(other) : 20);
  simdisk_destroy(d);
}

static void test_replaced(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 6; i++) run_replaced(i % 3, i / 3);
}

// ---- a damaged log

// A tail that a recovery has cut does not come back, and nor do the records of the same numbers that followed go: any
// power cut, then more writes.
static void test_cut_tail(void **state) {
  (void)state;
  uint32_t cut = 0;
  for (uint64_t seed = 1; seed <= 200; seed++) {
    struct simdisk *const d = disk_create();
    struct wal *w = open_log(simdisk_env(d), true);
    put(w, 1, 100);
    OK(wal_sync(w));
    if (seed % 3 == 0) OK(wal_switch(w, NULL, NULL));
    for (uint32_t i = 0; i < 6; i++) put(w, 1000 + i, 3000);
    if (seed % 3 == 1) OK(wal_switch(w, NULL, NULL));
    for (uint32_t i = 0; i < 3; i++) put(w, 1100 + i, seed % 2 ? 60 : 3000);
    struct simdisk *const c = simdisk_crash(d, seed);
    OK(wal_close(w));
    simdisk_destroy(d);
    w = open_log(simdisk_env(c), false);
    cut += seen.nr < 10;
    for (uint32_t i = 0; i < 3; i++) put(w, 2000 + i, 100);
    OK(wal_sync(w));
    OK(wal_close(w));
    w = open_log(simdisk_env(c), false);
    OK(wal_close(w));
    const struct seen want = seen;
    struct wal_salvage out;
    OK(salvage(simdisk_env(c), seed % 2, &out));
    expect_seen(want.tags, want.nr);
    assert_int_equal(out.nr_records, want.nr);
    assert_int_equal(out.lost_bytes, 0);
    simdisk_destroy(c);
  }
  assert_true(cut > 20);
}

// Without a version that says which generations are needed all are read that the newest header leads to.
static void test_all_sessions(void **state) {
  (void)state;
  static const uint32_t all[] = {10, 11, 12, 13};
  struct simdisk *const d = disk_create();
  for (uint32_t i = 0; i < 4; i++) {
    struct wal *const w = open_log(simdisk_env(d), i == 0);
    put(w, 10 + i, 100);
    OK(wal_sync(w));
    OK(wal_close(w));
  }
  struct wal_salvage out;
  OK(salvage(simdisk_env(d), 0, &out));
  expect_seen(all, 4);
  // no header leads to released frames when their file serves again
  struct wal *const w = open_log(simdisk_env(d), false);
  OK(wal_release(w, wal_gen(w)));
  OK(wal_switch(w, NULL, NULL));
  put(w, 20, 100);
  OK(wal_sync(w));
  OK(wal_close(w));
  OK(salvage(simdisk_env(d), 0, &out));
  assert_true(seen.nr >= 1 && seen.tags[seen.nr - 1] == 20);
  simdisk_destroy(d);
}

// Header after header is broken: a segment is known by its first frame, the newest one, too.
static void test_broken_headers(void **state) {
  (void)state;
  static const uint32_t all[] = {10, 11, 12};
  for (uint32_t broken = 1; broken < 8; broken++) {
    for (uint64_t oldest = 0; oldest < 2; oldest++) {
      struct simdisk *const d = disk_create();
      for (uint32_t i = 0; i < 3; i++) {
        struct wal *const w = open_log(simdisk_env(d), i == 0);
        put(w, 10 + i, 100);
        OK(wal_sync(w));
        OK(wal_close(w));
        if (i < 2) unmark(d);
      }
      for (uint32_t i = 0; i < 3; i++) {
        char path[32];
        (void)snprintf(path, sizeof(path), DIR "/wal-%u", i);
        if (broken & 1u << i) assert_true(simdisk_flip(d, path, 100, 0x10));
      }
      struct wal_salvage out;
      OK(salvage(simdisk_env(d), oldest, &out));
      if (!oldest && (broken == 2 || broken == 3)) expect_seen(all + 1, 2);  // nothing leads past the one in the midst
      else expect_seen(all, 3);
      simdisk_destroy(d);
    }
  }
}

// A broken header in an old store. Its generations are far from the first.
static void test_broken_header_of_old(void **state) {
  (void)state;
  for (uint64_t gen = 4000; gen <= 1000000; gen = gen * 3 / 2) {
    struct simdisk *const d = disk_create();
    const struct wal_opts o = {.dir = simdisk_dir(simdisk_env(d), DIR), .store_id = STORE, .step = 64u << 10};
    struct wal *w;
    struct wal_salvage out;
    OK(wal_open(&o, gen, 0, true, NULL, NULL, NULL, &w));
    put(w, 7, 100);
    OK(wal_sync(w));
    OK(wal_close(w));
    assert_true(simdisk_flip(d, DIR "/wal-0", 100, 0x10));
    OK(salvage(simdisk_env(d), gen, &out));
    assert_int_equal(seen.nr, 1);
    simdisk_destroy(d);
  }
}

// The header that says where an older one was cut is broken: what was cut bears numbers that the frames of the newer
// one have.
static void test_cut_tail_and_broken_header(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 100; seed++) {
    struct simdisk *const d = disk_create();
    struct wal *w = open_log(simdisk_env(d), true);
    put(w, 1, 100);
    OK(wal_sync(w));
    for (uint32_t i = 0; i < 9; i++) put(w, 1000 + i, 3000);
    struct simdisk *const c = simdisk_crash(d, seed);
    OK(wal_close(w));
    simdisk_destroy(d);
    w = open_log(simdisk_env(c), false);
    const struct seen before = seen;
    for (uint32_t i = 0; i < 3; i++) put(w, 2000 + i, 100);
    OK(wal_sync(w));
    OK(wal_close(w));
    for (uint32_t i = 1; i < 4; i++) {
      char path[32];
      uint8_t gen = 0;
      (void)snprintf(path, sizeof(path), DIR "/wal-%u", i);
      if (simdisk_peek(c, path, 24, &gen, 1) && gen == 3) assert_true(simdisk_flip(c, path, 100, 0x10));
    }
    struct wal_salvage out;
    OK(salvage(simdisk_env(c), 1, &out));
    assert_int_equal(seen.nr, before.nr + 3);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(seen.tags[before.nr + i], 2000 + i);
    simdisk_destroy(c);
  }
}

// An unreadable file hides no readable one, and is reported.
static void test_unread(void **state) {
  (void)state;
  static const uint32_t all[] = {10, 11, 12};
  struct wal_salvage out;
  struct simdisk *const d = disk_create();
  struct env *const e = spy_on(d);
  for (uint32_t i = 0; i < 3; i++) {
    struct wal *const w = open_log(e, i == 0);
    put(w, 10 + i, 100);
    OK(wal_sync(w));
    OK(wal_close(w));
    if (i < 2) unmark(d);
  }
  // a spare that nobody needs
  int fd;
  OK(env_open(ENV_PATHS(e), DIR "/wal-9", ENV_WRITE | ENV_CREATE, &fd));
  OK(env_write(e, fd, DIR "/wal-9", "x", 1, 8191));
  OK(env_close(e, fd, DIR "/wal-9"));
  spy.unread = "wal-9";
  spy.bad_from = 0;
  spy.bad_to = UINT64_MAX;
  FAILS(salvage(e, 1, &out), REMIXDB_IO);
  assert_non_null(strstr(err_msg(), "wal-9"));
  expect_seen(all, 3);
  // one that is needed
  spy.unread = "wal-1";
  FAILS(salvage(e, 1, &out), REMIXDB_IO);
  assert_int_equal(seen.nr, 2);
  assert_int_equal(seen.tags[0], 10);
  assert_int_equal(seen.tags[1], 12);
  // and one that cannot be opened
  spy.unread = NULL;
  simdisk_fault_name(d, "wal-0");
  simdisk_fault(d, SIMDISK_OPEN, 0, 100, EIO);
  FAILS(salvage(e, 1, &out), REMIXDB_IO);
  expect_seen(all + 1, 2);
  simdisk_destroy(d);

  // a page within: frames before and after it are whole
  struct simdisk *const p = disk_create();
  spy_on(p);
  struct wal *const w = open_log(&spy.env, true);
  for (uint32_t i = 0; i < 300; i++) put(w, i, 500);
  OK(wal_sync(w));
  OK(wal_close(w));
  spy.unread = "wal-0";
  spy.bad_from = 20 * 4096;
  spy.bad_to = 21 * 4096;
  FAILS(salvage(&spy.env, 1, &out), REMIXDB_IO);
  assert_true(seen.nr >= 288 && seen.nr < 300);
  assert_true(out.lost_bytes >= 4096 && out.lost_bytes < 4096 + 2 * 560);
  assert_int_equal(seen.tags[seen.nr - 1], 299);
  for (uint32_t i = 1; i < seen.nr; i++) assert_true(seen.tags[i] > seen.tags[i - 1]);
  simdisk_destroy(p);
}

// ---- reports of losses

#define SESSIONS 4u
#define EACH 12u   // records of a session, each in a frame of its own
#define LONG 400u  // bytes of a value

// Closed sessions, a segment each or two; record n has sequence number and tag n. Generations are 1, 3, 4, 6, 8: the
// second has two.
static struct simdisk *sessions_create(void) {
  struct simdisk *const d = disk_create();
  for (uint32_t i = 0, n = 1; i < SESSIONS; i++) {
    struct wal *const w = open_log(simdisk_env(d), i == 0);
    for (uint32_t k = 0; k < EACH; k++, n++) {
      if (i == 1 && k == EACH / 2) OK(wal_switch(w, NULL, NULL));
      put(w, n, LONG);
      if (k % 3 == 2) OK(wal_sync(w));
    }
    OK(wal_close(w));
    if (i < SESSIONS - 1) unmark(d);
  }
  return d;
}

static struct wal_head head_of(struct simdisk *d, const char *path) {
  uint8_t bytes[WAL_HEAD];
  struct wal_head h = {.gen = 0};
  if (simdisk_size(d, path) >= (int64_t)sizeof(bytes) && simdisk_peek(d, path, 0, bytes, sizeof(bytes)) &&
      wal_head_get(bytes, path, STORE, &h) != REMIXDB_OK)
    h.gen = 0;
  return h;
}

// The file of a generation.
static const char *segment_of(struct simdisk *d, uint64_t gen) {
  static char path[32];
  for (uint32_t i = 0; i < 10; i++) {
    (void)snprintf(path, sizeof(path), DIR "/wal-%u", i);
    if (head_of(d, path).gen == gen) return path;
  }
  fail_msg("generation %llu is in no file", (unsigned long long)gen);
  return NULL;
}

// Where frame i of a file begins; all are of one length.
static uint64_t frame_at(uint32_t i) {
  return HEAD + (uint64_t)i * (WAL_FRAME_HEAD + kv_rec_size(KV_REC(kref(NULL, 3), NULL, LONG, false)));
}

static void cut_to(struct simdisk *d, const char *path, uint64_t size) {
  int fd;
  OK(env_open(ENV_PATHS(simdisk_env(d)), path, ENV_READ | ENV_WRITE, &fd));
  OK(env_truncate(simdisk_env(d), fd, path, size));
  OK(env_close(simdisk_env(d), fd, path));
}

enum damage { GONE, TAIL, AT_FRAME, NO_FRAME, LAST, MIDDLE, HEADER, HEADER_AND_FIRST, DAMAGES };

static void damage(struct simdisk *d, uint64_t gen, uint32_t frames, enum damage what) {
  char path[32];
  (void)snprintf(path, sizeof(path), "%s", segment_of(d, gen));
  switch (what) {
    case GONE: OK(env_unlink(ENV_PATHS(simdisk_env(d)), path)); break;
    case TAIL: cut_to(d, path, frame_at(frames - 3) + 100); break;  // the head of a frame is left
    case AT_FRAME: cut_to(d, path, frame_at(frames - 3)); break;    // nothing is
    case NO_FRAME: cut_to(d, path, HEAD); break;
    case LAST: assert_true(simdisk_flip(d, path, frame_at(frames) - 1, 1)); break;
    case MIDDLE: assert_true(simdisk_flip(d, path, frame_at(2) + 60, 1)); break;
    case HEADER: assert_true(simdisk_flip(d, path, 40, 1)); break;
    default: assert_true(simdisk_flip(d, path, 40, 1) && simdisk_flip(d, path, HEAD + 20, 1));
  }
}

static const struct {
  uint64_t gen;
  uint32_t frames;
  uint64_t first;  // sequence number of its first record
} segments[] = {{1, 12, 1}, {3, 6, 13}, {4, 6, 19}, {6, 12, 25}, {8, 12, 37}};
#define SEGMENTS 5u
#define RECORDS (SESSIONS * EACH)

static bool was_seen(uint64_t seq) {
  for (uint32_t i = 0; i < seen.nr; i++)
    if (seen.tags[i] == seq) return true;
  return false;
}

// Every record is there or told as lost, and none is both.
static void check_told(const char *what, uint32_t a, uint32_t b) {
  for (uint64_t seq = 1; seq <= RECORDS; seq++) {
    bool told = false, named = false;
    for (uint32_t i = 0; i < lost.nr; i++) {
      const struct wal_loss *const l = &lost.l[i];
      if (l->torn || l->first_seq == 0) continue;
      const bool in = seq >= l->first_seq && seq <= l->last_seq;
      named = named || in;
      told = told || in || (l->more && seq >= l->first_seq);
    }
    if (was_seen(seq) ? named : !told)
      fail_msg("%s %u %u: record %llu is %s", what, a, b, (unsigned long long)seq,
               named ? "there and called lost" : "lost and not told");
  }
  for (uint32_t i = 1; i < seen.nr; i++) assert_true(seen.tags[i] > seen.tags[i - 1]);
}

// One kind of damage to each segment at a time: which records are lost is told exactly wherever something is left that
// says it.
static void test_losses(void **state) {
  (void)state;
  struct simdisk *const whole = sessions_create();
  struct wal_salvage out;
  OK(salvage(simdisk_env(whole), 1, &out));
  assert_true(seen.nr == RECORDS && lost.nr == 0 && out.lost_bytes == 0);
  for (uint32_t i = 0; i < SEGMENTS; i++) {
    for (uint32_t what = 0; what < DAMAGES; what++) {
      struct simdisk *const d = simdisk_crash(whole, 1);
      char path[32];
      (void)snprintf(path, sizeof(path), "%s", segment_of(d, segments[i].gen));
      const bool newest = i == SEGMENTS - 1;
      const uint64_t first = segments[i].first, last = first + segments[i].frames - 1;
      damage(d, segments[i].gen, segments[i].frames, (enum damage)what);
      OK(salvage(simdisk_env(d), 1, &out));
      check_told("one", i, what);
      if (what == HEADER) {
        assert_true(seen.nr == RECORDS && lost.nr == 0);
        simdisk_destroy(d);
        continue;
      }
      assert_int_equal(lost.nr, 1);
      const struct wal_loss *const l = &lost.l[0];
      const uint64_t from = what == MIDDLE                     ? first + 2
                            : what == LAST                     ? last
                            : what == TAIL || what == AT_FRAME ? last - 2
                                                               : first;
      const uint64_t to = what == MIDDLE             ? first + 2
                          : what == HEADER_AND_FIRST ? first
                          : !newest || what == LAST  ? last
                                                     : from;
      assert_true(!l->torn && l->first_seq == from && l->last_seq == to);
      assert_int_equal(l->more, newest && (what == GONE || what == TAIL || what == AT_FRAME || what == NO_FRAME));
      assert_int_equal(l->missing, what == GONE);
      assert_int_equal(l->gen, segments[i].gen);
      if (what != GONE) {
        assert_string_equal(l->path, path);
        assert_int_equal(l->off, frame_at((uint32_t)(from - first)));
      }
      // the opening says the same of the first break
      struct wal *w;
      const struct wal_opts o = {.dir = simdisk_dir(simdisk_env(d), DIR), .store_id = STORE, .read_only = true};
      char text[WAL_LOSS_TEXT];
      FAILS(wal_open(&o, 1, 0, false, take, &seen, NULL, &w), REMIXDB_CORRUPT);
      if (what >= TAIL && what <= MIDDLE && !strstr(err_msg(), wal_loss_text(l, text, sizeof(text))))
        fail_msg("\"%s\" does not say \"%s\"", err_msg(), text);
      simdisk_destroy(d);
    }
  }
  simdisk_destroy(whole);
}

// Whether a damage takes the watermark that a header holds: without both of them a tail that is gone cannot be missed.
static bool takes_header(enum damage what) { return what == GONE || what >= HEADER; }

// Two at a time, and an oldest generation that is and is not known.
static void test_losses_by_two(void **state) {
  (void)state;
  struct simdisk *const whole = sessions_create();
  for (uint32_t a = 0; a < SEGMENTS * DAMAGES; a++) {
    for (uint32_t b = a + 1; b < SEGMENTS * DAMAGES; b++) {
      const uint32_t i = a / DAMAGES, k = b / DAMAGES;
      if (i == k) continue;
      struct simdisk *const d = simdisk_crash(whole, 1);
      struct wal_salvage out;
      // the second one's file is looked for by its header: it goes first where the other needs its own
      damage(d, segments[i].gen, segments[i].frames, (enum damage)(a % DAMAGES));
      damage(d, segments[k].gen, segments[k].frames, (enum damage)(b % DAMAGES));
      OK(salvage(simdisk_env(d), 1, &out));
      const bool blind = k == SEGMENTS - 1 && i == SEGMENTS - 2 && takes_header((enum damage)(a % DAMAGES)) &&
                         takes_header((enum damage)(b % DAMAGES));
      if (!blind) check_told("two", a, b);
      OK(salvage(simdisk_env(d), 0, &out));
      simdisk_destroy(d);
    }
  }
  simdisk_destroy(whole);
}

// A log of which nothing is there, and one whose end nothing proves.
static void test_losses_at_ends(void **state) {
  (void)state;
  struct simdisk *d = disk_create();
  struct wal_salvage out;
  OK(salvage(simdisk_env(d), 1, &out));
  assert_true(lost.nr == 1 && lost.l[0].missing && lost.l[0].first_seq == 1 && lost.l[0].last_seq == 0 &&
              lost.l[0].more);
  OK(salvage(simdisk_env(d), 0, &out));
  assert_true(lost.nr == 1 && lost.l[0].missing && lost.l[0].first_seq == 0);
  struct wal *const w = open_log(simdisk_env(d), true);
  for (uint32_t i = 1; i < 9; i++) put(w, i, LONG);
  struct simdisk *const c = simdisk_crash(d, 3);
  assert_true(simdisk_poke(c, DIR "/wal-0", frame_at(2) + 50, "x", 1));
  for (uint32_t i = 3; i < 9; i++) assert_true(simdisk_poke(c, DIR "/wal-0", frame_at(i) + 50, "x", 1));
  OK(salvage(simdisk_env(c), 1, &out));
  assert_true(lost.nr <= 1 && lost.torn == lost.nr &&
              out.lost_bytes == 0);  // nothing was synced: a crash may leave that
  OK(wal_close(w));
  simdisk_destroy(c);
  simdisk_destroy(d);
}

// ---- numbers at their ends

// A log of this generation, after this sequence number. The checksum of its header is right.
static void make_log(struct env *e, uint64_t gen, uint64_t seq) {
  uint8_t head[WAL_HEAD];
  const struct wal_head h = {.store_id = STORE, .gen = gen, .last_seq = seq};
  int fd;
  wal_head_put(head, &h);
  OK(env_open(ENV_PATHS(e), DIR "/wal-0", ENV_READ | ENV_WRITE | ENV_CREATE, &fd));
  OK(env_write(e, fd, DIR "/wal-0", head, sizeof(head), 0));
  OK(env_sync_all(e, fd, DIR "/wal-0"));
  OK(env_close(e, fd, DIR "/wal-0"));
  OK(env_sync_dir(simdisk_dir(e, DIR)));
}

// Appends a frame of a plain record and of one that states this number, after sequence number `seq`, to that log.
static void add_stated(struct env *e, uint64_t gen, uint64_t seq, uint64_t stated) {
  uint8_t frame[WAL_FRAME_HEAD + 100], *p = frame + WAL_FRAME_HEAD;
  struct kv_rec *const rec = KV_REC(kref("key", 3), "value", 5, 0);
  int fd;
  p = kv_rec_put(p, rec);
  rec->kind = KV_SEQ;
  rec->seq = stated;
  p = kv_rec_put(p, rec);
  const struct wal_frame f = {.first_seq = seq + 1,
                              .len = (uint32_t)(p - frame) - WAL_FRAME_HEAD,
                              .count = 2,
                              .kinds = KV_IN_LOG};
  const struct wal_key k = wal_key(STORE, gen);
  wal_frame_put(frame, &k, WAL_HEAD, &f);
  OK(env_open(ENV_PATHS(e), DIR "/wal-0", ENV_READ | ENV_WRITE, &fd));
  OK(env_write(e, fd, DIR "/wal-0", frame, (size_t)(p - frame), WAL_HEAD));
  OK(env_close(e, fd, DIR "/wal-0"));
}

static enum remixdb_status take_number(void *arg, uint64_t seq, const struct kv_rec *r) {
  (void)seq;
  *(uint64_t *)arg = r->seq;
  return REMIXDB_OK;
}

// A record may state a number below its place. A frame with any other number is not whole, for recovery and salvage.
static void test_stated(void **state) {
  (void)state;
  const uint64_t max = (uint64_t)1 << 62, befores[] = {0, 1, 1000, max - 2};
  for (uint32_t i = 0; i < 4; i++) {
    const uint64_t seq = befores[i], place = seq + 2;
    const uint64_t stated[] = {0, 1, place - 1, place, place + 1, max, max + 1, UINT64_MAX - 1, UINT64_MAX};
    for (uint32_t n = 0; n < sizeof(stated) / sizeof(stated[0]); n++) {
      struct simdisk *const d = disk_create();
      const bool good = stated[n] > 0 && stated[n] < place;
      uint64_t got = 0;
      struct wal *w;
      struct wal_recovery rec;
      struct wal_salvage out;
      make_log(simdisk_env(d), 1, seq);
      add_stated(simdisk_env(d), 1, seq, stated[n]);
      const struct wal_opts o = {.dir = simdisk_dir(simdisk_env(d), DIR), .store_id = STORE, .read_only = true};
      OK(wal_open(&o, 1, seq, false, take_number, &got, &rec, &w));
      OK(wal_close(w));
      assert_int_equal(rec.nr_records, good ? 2 : 0);
      assert_int_equal(got, good ? stated[n] : 0);
      const struct wal_salvage_to to = {.record = take_number, .arg = &got};
      got = 0;
      OK(wal_read_damaged(&o, 1, seq, &to, &out));
      assert_int_equal(out.nr_records, good ? 2 : 0);
      assert_int_equal(got, good ? stated[n] : 0);
      simdisk_destroy(d);
    }
  }
}

static enum remixdb_status open_numbers(struct env *e, uint64_t gen, uint64_t seq, bool read_only, struct wal **out) {
  const struct wal_opts o = {.dir = simdisk_dir(e, DIR), .store_id = STORE, .step = 64u << 10, .read_only = read_only};
  return wal_open(&o, gen, seq, false, take, &seen, NULL, out);
}

// The payload of a frame has at most 1.25 GiB, and has no fewer bytes than records, with kinds and without.
static void lengths_on_disk(const struct wal_key *k) {
  static const struct {
    uint32_t len, count;
    bool good;
  } lens[] = {{5u << 28, 1, true},
              {5u << 28, 5u << 28, true},
              {(5u << 28) + 1, 1, false},
              {~0u >> 1, 1, false},
              {5u << 28, (5u << 28) + 1, false},
              {0, 0, false},
              {9, 9, true},
              {9, 10, false},
              {9, 0, false}};
  for (uint32_t i = 0; i < 2 * sizeof(lens) / sizeof(lens[0]); i++) {
    uint8_t head[WAL_FRAME_HEAD] = {0};
    struct wal_frame f = {.first_seq = 1};
    wal_frame_put(head, k, WAL_HEAD, &f);  // its lengths are made here, because no payload follows
    store32le(head + 12, lens[i / 2].len | (i & 1 ? 1u << 31 : 0));
    store32le(head + 32, lens[i / 2].count);
    store32le(head + 36, (uint32_t)hash64_seed(head + 8, 28, ~(k->seed + WAL_HEAD)));
    assert_int_equal(wal_frame_get(head, k, WAL_HEAD, &f), lens[i / 2].good);
    if (lens[i / 2].good) assert_true(f.len == lens[i / 2].len && f.kinds == (i & 1 ? KV_IN_LOG : KV_BARE));
  }
}

// A header or a frame with impossible numbers is not valid.
static void numbers_on_disk(void) {
  uint8_t head[WAL_HEAD], frame[WAL_FRAME_HEAD + 9];
  struct wal_head out;
  static const struct {
    uint64_t gen, seq;
    bool good;
  } heads[] = {{1, 0, true},
               {0, 0, false},
               {(uint64_t)1 << 62, (uint64_t)1 << 62, true},
               {((uint64_t)1 << 62) + 1, 0, false},
               {1, ((uint64_t)1 << 62) + 1, false}};
  for (uint32_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
    const struct wal_head h = {.store_id = STORE, .gen = heads[i].gen, .last_seq = heads[i].seq};
    wal_head_put(head, &h);
    assert_int_equal(wal_head_get(head, "head", STORE, &out) == REMIXDB_OK, heads[i].good);
  }
  const struct wal_key k = wal_key(STORE, 1);
  static const struct {
    uint64_t first;
    bool good;
  } firsts[] = {
      {1, true}, {0, false}, {((uint64_t)1 << 62) - 1, true}, {(uint64_t)1 << 62, false}, {UINT64_MAX, false}};
  for (uint32_t i = 0; i < sizeof(firsts) / sizeof(firsts[0]); i++) {
    struct wal_frame f = {.first_seq = firsts[i].first, .len = 9, .count = 2};
    memset(frame, 0, sizeof(frame));
    wal_frame_put(frame, &k, WAL_HEAD, &f);
    assert_int_equal(wal_frame_get(frame, &k, WAL_HEAD, &f), firsts[i].good);
  }
  lengths_on_disk(&k);
}

// A written record can be read at the next opening, or the log refuses it and writes nothing.
static void test_numbers(void **state) {
  (void)state;
  const uint64_t max = (uint64_t)1 << 62;
  for (uint32_t back = 0; back < 6; back++) {
    for (uint32_t what = 0; what < 2; what++) {
      struct simdisk *const d = disk_create();
      const uint64_t gen = what == 0 ? max - back : 1, seq = what == 0 ? 0 : max - ((uint64_t)5 << 28) + 3 - back;
      struct wal *w;
      bool written = false;
      make_log(simdisk_env(d), gen, seq);
      const uint64_t before = simdisk_changes(d);
      for (uint32_t life = 0; life < 8; life++) {
        seen.nr = 0;
        const enum remixdb_status s = open_numbers(simdisk_env(d), gen, seq, false, &w);
        if (s != REMIXDB_OK) {
          FAILS(s, REMIXDB_CORRUPT);
          assert_non_null(strstr(err_msg(), "run out"));
          if (!written) assert_int_equal(simdisk_changes(d), before);
        } else {
          uint64_t g;
          const enum remixdb_status begun = wal_begin(w, 100, &g);
          if (life == 0) assert_int_equal(begun, what == 1 && back < 3 ? REMIXDB_CORRUPT : REMIXDB_OK);
          if (begun == REMIXDB_OK) {
            (void)wal_put(w, KV_REC(kref("key", 3), "value", 5, false));
            wal_end(w);
            written = true;
          } else {
            FAILS(begun, REMIXDB_CORRUPT);
          }
          const enum remixdb_status switched = wal_switch(w, NULL, NULL);
          assert_true(switched == REMIXDB_OK || (switched == REMIXDB_CORRUPT && strstr(err_msg(), "run out")));
          OK(wal_close(w));
        }
        OK(open_numbers(simdisk_env(d), gen, seq, true, &w));  // it can always be read
        OK(wal_close(w));
      }
      FAILS(open_numbers(simdisk_env(d), 0, seq, true, &w), REMIXDB_CORRUPT);
      FAILS(open_numbers(simdisk_env(d), max + 1, seq, true, &w), REMIXDB_CORRUPT);
      FAILS(open_numbers(simdisk_env(d), gen, max + 1, true, &w), REMIXDB_CORRUPT);
      // a log that could not be read later is not begun
      const struct wal_opts o = {.dir = simdisk_dir(simdisk_env(d), DIR), .store_id = STORE, .step = 64u << 10};
      FAILS(wal_open(&o, 1, max + 1, true, take, &seen, NULL, &w), REMIXDB_CORRUPT);
      FAILS(wal_open(&o, max + 1, 0, true, take, &seen, NULL, &w), REMIXDB_CORRUPT);
      simdisk_destroy(d);
    }
  }
  numbers_on_disk();
}

// Nor does a lack of descriptors say that there is no header.
static void test_store_id(void **state) {
  (void)state;
  struct simdisk *const d = disk_create();
  struct wal_ids ids;
  OK(wal_close(open_log(simdisk_env(d), true)));
  simdisk_fault(d, SIMDISK_OPEN, 0, 1, EMFILE);
  FAILS(wal_read_ids(simdisk_dir(simdisk_env(d), DIR), &ids), REMIXDB_NOMEM);
  OK(wal_read_ids(simdisk_dir(simdisk_env(d), DIR), &ids));
  assert_true(ids.own == STORE && ids.nr_origins == 0);
  simdisk_destroy(d);
}

// A log whose segments have a record each.
static struct simdisk *two_segments(void) {
  struct simdisk *const d = disk_create();
  struct wal *const w = open_log(simdisk_env(d), true);
  put(w, 1, 100);
  OK(wal_switch(w, NULL, NULL));
  put(w, 2, 100);
  OK(wal_close(w));
  return d;
}

// Generations that no segment can have: nothing is found, and the search ends. The oldest file has lost its header and
// its first frame, or both files have.
static void test_impossible_generations(void **state) {
  (void)state;
  for (uint32_t headed = 0; headed < 2; headed++) {
    struct simdisk *const d = two_segments();
    for (uint64_t gen = 1; gen < 3 - headed; gen++) damage(d, gen, 1, HEADER_AND_FIRST);
    for (uint64_t below = 0; below < 5000; below += below < 8 ? 1 : 4096 - 9) {
      struct wal_salvage out;
      OK(salvage(simdisk_env(d), UINT64_MAX - below, &out));
      expect_seen(NULL, 0);
    }
    simdisk_destroy(d);
  }
}

static enum remixdb_status refuse(void *arg, uint64_t seq, const struct kv_rec *r) {
  (void)arg, (void)seq, (void)r;
  return err_set(REMIXDB_IO, "refused");
}

// The consumer of the records may fail with the same status as a read; that ends the salvage.
static void test_refused(void **state) {
  (void)state;
  struct simdisk *const d = two_segments();
  const struct wal_opts o = {.dir = simdisk_dir(simdisk_env(d), DIR), .store_id = STORE, .read_only = true};
  struct wal_salvage out;
  const struct wal_salvage_to to = {.record = refuse};
  FAILS(wal_read_damaged(&o, 1, 0, &to, &out), REMIXDB_IO);
  assert_string_equal(err_msg(), "refused");
  assert_int_equal(out.nr_segments, 1);
  assert_int_equal(simdisk_open_files(d), 0);
  simdisk_destroy(d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_written_again),
      cmocka_unit_test(test_goes_on),
      cmocka_unit_test(test_not_written_again),
      cmocka_unit_test(test_linked_mark),
      cmocka_unit_test(test_linked_tail),
      cmocka_unit_test(test_replaced),
      cmocka_unit_test(test_broken_header_of_old),
      cmocka_unit_test(test_cut_tail_and_broken_header),
      cmocka_unit_test(test_many_segments),
      cmocka_unit_test(test_cut_tail),
      cmocka_unit_test(test_all_sessions),
      cmocka_unit_test(test_broken_headers),
      cmocka_unit_test(test_unread),
      cmocka_unit_test(test_impossible_generations),
      cmocka_unit_test(test_refused),
      cmocka_unit_test(test_store_id),
      cmocka_unit_test(test_stated),
      cmocka_unit_test(test_numbers),
      cmocka_unit_test(test_losses),
      cmocka_unit_test(test_losses_by_two),
      cmocka_unit_test(test_losses_at_ends),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
