// SPDX-License-Identifier: Apache-2.0
//
// Crafted files, with checksums that are right, that claim to hold much more than they can: opening takes memory and
// time for the real bytes, not for the claimed ones.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <zstd.h>

#include "log/format.h"
#include "remix/format.h"
#include "remixdb.h"
#include "store/state.h"
#include "table/format.h"
#include "tests/lib/paths.h"
#include "tests/lib/temp.h"
#include "xdb.h"

#define MIB ((uint64_t)1 << 20)

static char dir[TEMP_DIR];
static _Atomic uint64_t taken, largest, bytes_read;

static bool count(size_t size) {
  atomic_fetch_add(&taken, size);
  if (size > atomic_load(&largest)) atomic_store(&largest, size);
  return true;
}

static ssize_t counting_pread(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  atomic_fetch_add(&bytes_read, len);
  return env_posix()->ops->pread(e, fd, buf, len, off);
}

static char *path_of(const char *name) {
  static char path[2 * TEMP_DIR];
  (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
  return path;
}

static int setup(void **state) {
  (void)state;
  return temp_make(dir, "claims") ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  atomic_store(&mem_fault, NULL);
  return remove_tree(dir);
}

static enum remixdb_status try_open(struct xdb **out) {
  static struct env_ops ops;
  static struct env env = {.ops = &ops};
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.memtable_mb = 1;
  o.cache_mb = 0;
  o.workers = 0;
  ops = *env_posix()->ops;
  ops.pread = counting_pread;
  atomic_store(&taken, 0);
  atomic_store(&largest, 0);
  atomic_store(&bytes_read, 0);
  atomic_store(&mem_fault, count);
  const enum remixdb_status s = xdb_open(dir, &o, &env, out);
  atomic_store(&mem_fault, NULL);
  return s;
}

// A store with some records in a table, or in the log.
static void make_store(bool logged) {
  struct xdb *x;
  OK(try_open(&x));
  struct xdb_ref *r = remixdb_ref(x);
  char key[16];
  for (uint32_t i = 0; i < 1000; i++)
    assert_true(remixdb_put(r, key, (uint32_t)snprintf(key, sizeof(key), "key%05u", i), "value", 5));
  assert_true(logged ? remixdb_sync(r) : remixdb_flush(r));
  remixdb_unref(r);
  x->leave_log = logged;
  OK(xdb_close(x));
}

static uint8_t *read_all(const char *name, size_t *len_out) {
  uint8_t *buf;
  OK(paths_read_file(ENV_PATHS(env_posix()), path_of(name), MIB, &buf, len_out));
  return buf;
}

static void write_all(const char *name, const void *buf, size_t len) {
  const int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  assert_true(fd >= 0 && write(fd, buf, len) == (ssize_t)len && close(fd) == 0);
}

// CURRENT, of `len` bytes, gets the fingerprint of a file at this offset.
static void claim_print(uint8_t *current, size_t len, size_t at, uint64_t print) {
  store64le(current + at, print);
  store64le(current + len - 8, hash64(current, len - 8));
  write_all("CURRENT", current, len);
}

static void refused(uint64_t most) {
  struct xdb *x;
  FAILS(try_open(&x), REMIXDB_CORRUPT);
  if (atomic_load(&taken) > most)
    fail_msg("%llu bytes were taken to open it, %llu at most: %s", (unsigned long long)atomic_load(&taken),
             (unsigned long long)most, remixdb_errmsg());
}

// Memory that opening a sound store takes, mostly for the buffers of the log.
static uint64_t usual(void) {
  struct xdb *x;
  OK(try_open(&x));
  const uint64_t bytes = atomic_load(&taken);
  x->leave_log = true;
  OK(xdb_close(x));
  return bytes;
}

// One partition's files, named for thousands.
static void test_partitions(void **state) {
  (void)state;
  enum { PARTS = 5000, SECTION = 64, HEAD = SECTION + 16 + 8, PART = 48, NAME = 16 };
  make_store(false);
  const uint64_t sound = usual();
  size_t len;
  uint8_t *const was = read_all("CURRENT", &len);
  const uint32_t nr = load32le(was + HEAD + 4);
  assert_true(load32le(was + 8) == 3 && load32le(was + 12) == 1 && load32le(was + HEAD) == 0 && nr > 0 &&
              len == HEAD + PART + NAME * nr + 8);
  const size_t max = HEAD + PARTS * (PART + 8 + NAME * (size_t)nr) + 8;
  uint8_t *const now = calloc(1, max), *p = now + HEAD;
  assert_non_null(now);
  memcpy(now, was, HEAD);
  store32le(now + SECTION + 16, PARTS);
  for (uint32_t i = 0; i < PARTS; i++) {
    char anchor[9] = "";
    const uint32_t alen = i ? (uint32_t)snprintf(anchor, sizeof(anchor), "key%05u", i) : 0;
    memcpy(p, was + HEAD, PART);
    store32le(p, alen);
    memcpy(p + PART, anchor, alen);
    memcpy(p + PART + alen, was + HEAD + PART, NAME * (size_t)nr);
    p += PART + alen + NAME * (size_t)nr;
  }
  store64le(now + SECTION + 8, (uint64_t)(p - (now + SECTION + 16)));
  store64le(p, hash64(now, (size_t)(p - now)));
  write_all("CURRENT", now, (size_t)(p - now) + 8);
  refused(sound + 4 * max + MIB);
  mem_free(was);
  free(now);
}

// CURRENT gets this size and a checksum that is right. Bytes of it are there at its beginning, at its end and at every
// step (0: nowhere else); the rest is a hole.
static void grow_current(uint64_t size, uint64_t step) {
  const int fd = open(path_of("CURRENT"), O_RDWR);
  assert_true(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
  for (uint64_t at = step; step && at < size - 8; at += step) assert_int_equal(pwrite(fd, "x", 1, (off_t)at), 1);
  uint8_t sum[8], *const p = malloc(size);  // a mapping of the file would fill the holes of tmpfs
  assert_true(p != NULL && pread(fd, p, size, 0) == (ssize_t)size);
  store64le(sum, hash64(p, size - 8));
  free(p);
  assert_true(pwrite(fd, sum, 8, (off_t)size - 8) == 8 && close(fd) == 0);
}

// A version file of many MiB: of a store that has one table; and all hole, where enough files have tables' names.
static void test_current(void **state) {
  (void)state;
  const uint64_t size = 64 * MIB, part = 65500 + 32;
  make_store(false);
  const uint64_t sound = usual();
  grow_current(size, 64 << 10);
  refused(sound + MIB);
  if (!strstr(remixdb_errmsg(), "far more than")) fail_msg("%s", remixdb_errmsg());
  for (uint64_t i = 0; i <= size / part; i++) {
    char name[32];
    (void)snprintf(name, sizeof(name), "%06llu.sst", (unsigned long long)(1000 + i));
    write_all(name, "", 0);
  }
  assert_int_equal(truncate(path_of("CURRENT"), 56), 0);
  grow_current(size, 0);
  refused(sound + MIB);
  if (!strstr(remixdb_errmsg(), "hole")) fail_msg("%s", remixdb_errmsg());
}

// CURRENT with another number at an offset, and a checksum that is right.
static void set_number(uint64_t off, uint64_t value) {
  size_t len;
  uint8_t *const p = read_all("CURRENT", &len);
  store64le(p + off, value);
  store64le(p + len - 8, hash64(p, len - 8));
  write_all("CURRENT", p, len);
  mem_free(p);
}

// A store whose numbers could come to their ends while it is open is opened for reading only: what is written could not
// be opened later.
static void test_numbers(void **state) {
  (void)state;
  static const struct { uint64_t off, most; } numbers[] = {{24, (uint64_t)1 << 62}, {32, (uint64_t)1 << 46}};
  const uint64_t left = (uint64_t)1 << 32;
  make_store(false);
  for (uint32_t i = 0; i < 2; i++) {
    struct remixdb_opts o;
    struct xdb *x;
    remixdb_opts_init(&o, sizeof(o));
    o.read_only = true;
    set_number(numbers[i].off, numbers[i].most);
    FAILS(try_open(&x), REMIXDB_CORRUPT);
    if (!strstr(remixdb_errmsg(), "run out")) fail_msg("%s", remixdb_errmsg());
    OK(xdb_open(dir, &o, env_posix(), &x));
    OK(xdb_close(x));
    set_number(numbers[i].off, numbers[i].most - left + 1);
    FAILS(try_open(&x), REMIXDB_CORRUPT);
    set_number(numbers[i].off, numbers[i].most - left);
    OK(try_open(&x));
    OK(xdb_close(x));
    set_number(numbers[i].off, 1000);
    OK(try_open(&x));
    OK(xdb_close(x));
  }
}

// An index of many segments without entries, which zstd makes a few hundred bytes of.
static void test_segments(void **state) {
  (void)state;
  enum { SEGS = 1 << 20, ENTRIES = 1000, COLUMNS = 6, PART = 88 };
  make_store(false);
  const uint64_t sound = usual();
  size_t len, was_len;
  uint8_t *const current = read_all("CURRENT", &len);
  const uint64_t number = load64le(current + PART + 8), segs_off = remix_segs_off(load32le(current + PART + 4));
  char name[32];
  (void)snprintf(name, sizeof(name), "%06llu.remix", (unsigned long long)number);
  uint8_t *const was = read_all(name, &was_len);
  assert_true(load32le(was + REMIX_HEAD_FORMAT) == 2 && load64le(was + REMIX_HEAD_ENTRIES) == ENTRIES);
  const uint64_t lens[COLUMNS] = {ENTRIES, 4ull * SEGS, ENTRIES, ENTRIES, ENTRIES, 0};
  const size_t cap = ZSTD_compressBound(lens[1]) + 8 * ENTRIES + segs_off;
  uint8_t *const now = calloc(1, cap), *const none = calloc(1, lens[1]);
  assert_true(now && none);
  memcpy(now, was, segs_off);
  store32le(now + REMIX_HEAD_SEGS, SEGS);
  uint64_t at = segs_off + 16 * COLUMNS;
  for (uint32_t i = 0; i < COLUMNS; i++) {
    const size_t stored = i == 1 ? ZSTD_compress(now + at, cap - at, none, lens[i], 1) : lens[i];
    assert_false(ZSTD_isError(stored));
    store64le(now + segs_off + 16 * i, lens[i]);
    store64le(now + segs_off + 16 * i + 8, stored);
    at += stored;
    if (i == 1) memset(now + at, 0, cap - at);  // zstd may have used room after its frame
  }
  store64le(now + REMIX_HEAD_SIZE, at + 8);
  store64le(now + at, hash64_seed(now, at, number));
  write_all(name, now, at + 8);
  claim_print(current, len, PART + 16, load64le(now + at));
  refused(sound + MIB);
  if (!strstr(remixdb_errmsg(), "segments, ")) fail_msg("%s", remixdb_errmsg());
  free(now);
  free(none);
  mem_free(was);
  mem_free(current);
}

// Writes the metadata and footer of a table of so many pages, each a block of 255 records; data_size bytes lie before
// them. Returns the fingerprint.
static uint64_t claim_table(const char *name, uint64_t store_id, uint64_t number, uint32_t pages, uint64_t data_size,
                            uint32_t flags) {
  const uint32_t sizes = flags & FORMAT_SST_FLAG_ZSTD ? pages : 0;
  const uint64_t used = pages + 2 + sizes, meta_len = align_up(data_size + used + FORMAT_SST_FOOTER, FORMAT_SST_ALIGN) -
                                                      data_size - FORMAT_SST_FOOTER;
  uint8_t *const meta = calloc(1, meta_len + FORMAT_SST_FOOTER);
  assert_non_null(meta);
  memset(meta, 255, pages);
  meta[pages] = 'a';
  meta[pages + 1] = 'b';
  memset(meta + pages + 2, (int)(data_size / pages), sizes);
  const struct format_sst_footer f = {.store_id = store_id,
                                      .number = number,
                                      .nr_records = 255ull * pages,
                                      .key_bytes = 255ull * pages,
                                      .data_size = data_size,
                                      .meta_off = data_size,
                                      .meta_len = meta_len,
                                      .meta_sum = hash64_seed(meta, meta_len, format_sst_meta_seed(number)),
                                      .file_size = data_size + meta_len + FORMAT_SST_FOOTER,
                                      .nr_pages = pages,
                                      .flags = flags,
                                      .min_len = 1,
                                      .max_len = 1,
                                      .sizes_len = sizes,
                                      .seq_min = 1,
                                      .seq_max = 1};
  format_sst_footer_put(meta + meta_len, &f);
  const int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  for (uint64_t at = 0; sizes && at < data_size; at += pages)
    assert_int_equal(pwrite(fd, meta, pages, (off_t)at), pages);
  assert_true(fd >= 0 &&
              pwrite(fd, meta, meta_len + FORMAT_SST_FOOTER, (off_t)data_size) ==
                  (ssize_t)(meta_len + FORMAT_SST_FOOTER) &&
              close(fd) == 0);
  struct format_sst_footer back;
  OK(format_sst_footer_get(meta + meta_len, f.file_size, name, &back));
  free(meta);
  return back.print;
}

// A table of millions of records that has no room for them: packed into ten bytes a block, or lying in a hole.
static void test_tables(void **state) {
  (void)state;
  make_store(false);
  const uint64_t sound = usual();
  size_t len;
  uint8_t *const current = read_all("CURRENT", &len);
  const uint64_t number = load64le(current + 88 + 48);
  char name[32];
  (void)snprintf(name, sizeof(name), "%06llu.sst", (unsigned long long)number);
  uint64_t print = claim_table(name, load64le(current + 16), number, 57000, 570000, FORMAT_SST_FLAG_ZSTD);
  claim_print(current, len, 88 + 48 + 8, print);
  refused(sound + 4 * MIB);
  if (!strstr(remixdb_errmsg(), "stored size of block")) fail_msg("%s", remixdb_errmsg());
  print = claim_table(name, load64le(current + 16), number, 65000, 65000 * 4096ull, 0);
  claim_print(current, len, 88 + 48 + 8, print);
  refused(sound + 4 * MIB);
  if (!strstr(remixdb_errmsg(), "hole")) fail_msg("%s", remixdb_errmsg());
  mem_free(current);
}

// Opening a log of 8 GB of holes takes no longer than its few records do.
static void test_sparse_log(void **state) {
  (void)state;
  struct xdb *x;
  make_store(true);
  assert_int_equal(truncate(path_of("wal-0"), (off_t)8 << 30), 0);
  OK(try_open(&x));
  assert_in_range(atomic_load(&bytes_read), 1, 16 * MIB);
  struct xdb_ref *r = remixdb_ref(x);
  assert_true(remixdb_probe(r, "key00999", 8));
  remixdb_unref(r);
  OK(xdb_close(x));
}

// A frame that says that it is a gigabyte, most of it a hole.
static void test_frame(void **state) {
  (void)state;
  struct xdb *x;
  make_store(true);
  const uint64_t sound = usual();
  size_t len;
  uint8_t *const log = read_all("wal-0", &len);
  uint64_t at = WAL_HEAD;
  struct wal_frame f;
  const struct wal_key k = wal_key(load64le(log + 16), load64le(log + 24));
  uint64_t seq = load64le(log + 56);
  for (; at + WAL_FRAME_HEAD <= len && wal_frame_get(log + at, &k, at, &f); at += WAL_FRAME_HEAD + f.len)
    seq = f.first_seq + f.count - 1;
  assert_int_equal(seq, 1000);
  // the head is right, for which it takes no payload; nothing follows it
  uint8_t head[WAL_FRAME_HEAD + 2] = {0};
  const struct wal_frame small = {.len = 2, .count = 1, .first_seq = seq + 1};
  wal_frame_put(head, &k, at, &small);
  store32le(head + 12, WAL_FRAME_MAX);
  store32le(head + 36, (uint32_t)hash64_seed(head + 8, 28, ~(k.seed + at)));
  assert_true(wal_frame_get(head, &k, at, &f) && f.len == WAL_FRAME_MAX);
  const int fd = open(path_of("wal-0"), O_WRONLY);
  assert_true(fd >= 0 && pwrite(fd, head, sizeof(head), (off_t)at) == (ssize_t)sizeof(head) &&
              ftruncate(fd, (off_t)2 << 30) == 0 && close(fd) == 0);
  OK(try_open(&x));
  assert_in_range(atomic_load(&largest), 1, sound + 4 * MIB);
  assert_int_equal(x->recovery.nr_records, 1000);
  x->leave_log = true;
  OK(xdb_close(x));
  mem_free(log);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_partitions, setup, teardown),
      cmocka_unit_test_setup_teardown(test_current, setup, teardown),
      cmocka_unit_test_setup_teardown(test_numbers, setup, teardown),
      cmocka_unit_test_setup_teardown(test_segments, setup, teardown),
      cmocka_unit_test_setup_teardown(test_tables, setup, teardown),
      cmocka_unit_test_setup_teardown(test_sparse_log, setup, teardown),
      cmocka_unit_test_setup_teardown(test_frame, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
