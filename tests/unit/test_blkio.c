// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/thread.h"
#include "tests/lib/check.h"
#include "tests/lib/simdisk.h"
#include "tests/lib/temp.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "blkio.h"

#define DATA_LEN ((size_t)3 << 20)
#define OUT_MAX ((size_t)12 << 20)

static char dir[ENV_PATH_MAX], data_path[ENV_PATH_MAX + 16], out_path[ENV_PATH_MAX + 16], other_path[ENV_PATH_MAX + 16];
static uint8_t *data;      // content of the data file, and of the file that is written
static uint8_t *out_data;  // bytes that were read back
static int data_fd = -1;
static const enum blkio_kind kinds[] = {BLKIO_URING, BLKIO_AIO, BLKIO_SYNC};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

// ---- an env in which calls are short, interrupted, or fail

static struct env_ops fake_ops;
static struct env fake = {.ops = &fake_ops};
static _Atomic uint32_t fake_reads, fake_writes;
static _Atomic uint32_t fail_read_at, fail_write_at;  // the call that fails, counted from 1; 0 none
static _Atomic int fail_errno, fail_truncate, fail_sync;
static _Atomic uint32_t short_len;  // most that a call moves; 0 no bound
static _Atomic uint32_t eintr_every;

static ssize_t fake_pread(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  const uint32_t n = atomic_fetch_add(&fake_reads, 1) + 1, cut = atomic_load(&short_len),
                 every = atomic_load(&eintr_every);
  if (n == atomic_load(&fail_read_at)) return -atomic_load(&fail_errno);
  if (every && n % every == 0) return -EINTR;
  return env_posix()->ops->pread(e, fd, buf, cut && cut < len ? cut : len, off);
}

static ssize_t fake_pwrite(struct env *e, int fd, const void *buf, size_t len, uint64_t off) {
  const uint32_t n = atomic_fetch_add(&fake_writes, 1) + 1, cut = atomic_load(&short_len),
                 every = atomic_load(&eintr_every);
  if (n == atomic_load(&fail_write_at)) return -atomic_load(&fail_errno);
  if (every && n % every == 0) return -EINTR;
  return env_posix()->ops->pwrite(e, fd, buf, cut && cut < len ? cut : len, off);
}

static int fake_truncate(struct env *e, int fd, uint64_t size) {
  const int errnum = atomic_load(&fail_truncate);
  return errnum ? -errnum : env_posix()->ops->truncate(e, fd, size);
}

static _Atomic uint32_t fake_syncs;
static int fake_sync_all(struct env *e, int fd) {
  const int errnum = atomic_load(&fail_sync);
  atomic_fetch_add(&fake_syncs, 1);
  return errnum ? -errnum : env_posix()->ops->sync_all(e, fd);
}

// Ranges of a file that were sent to the disk: they are adjacent, and nothing unwritten is among them.
static _Atomic uint32_t fake_outs;
static _Atomic uint64_t fake_out_to;
static _Atomic bool fake_out_wrong;
static int fake_write_out(struct env *e, int fd, uint64_t off, uint64_t len) {
  struct env_stat st;
  const int rc = env_posix()->ops->fstat(e, fd, &st);
  if (rc < 0 || len == 0 || off != atomic_load(&fake_out_to) || off + len > st.size)
    atomic_store(&fake_out_wrong, true);
  atomic_store(&fake_out_to, off + len);
  atomic_fetch_add(&fake_outs, 1);
  return -EIO;  // it has no consequence: it is advice
}

static void fake_reset(bool native) {
  fake.native = native;
  atomic_store(&fake_outs, 0);
  atomic_store(&fake_out_to, 0);
  atomic_store(&fake_out_wrong, false);
  atomic_store(&fake_reads, 0);
  atomic_store(&fake_writes, 0);
  atomic_store(&fake_syncs, 0);
  atomic_store(&fail_read_at, 0);
  atomic_store(&fail_write_at, 0);
  atomic_store(&fail_errno, EIO);
  atomic_store(&fail_truncate, 0);
  atomic_store(&fail_sync, 0);
  atomic_store(&short_len, 0);
  atomic_store(&eintr_every, 0);
  atomic_store(&blkio_test_ring_errno, 0);
}

static int setup(void **state) {
  (void)state;
  if (!temp_make(dir, "blkio")) return -1;
  (void)snprintf(data_path, sizeof(data_path), "%s/data", dir);
  (void)snprintf(out_path, sizeof(out_path), "%s/out", dir);
  (void)snprintf(other_path, sizeof(other_path), "%s/other", dir);
  fake_ops = *env_posix()->ops;
  fake_ops.pread = fake_pread;
  fake_ops.pwrite = fake_pwrite;
  fake_ops.truncate = fake_truncate;
  fake_ops.sync_all = fake_sync_all;
  fake_ops.write_out = fake_write_out;
  data = malloc(OUT_MAX);
  out_data = malloc(OUT_MAX);
  if (!data || !out_data) return -1;
  uint64_t seed = 7;
  for (size_t i = 0; i < OUT_MAX; i += 8) store64le(data + i, rng_next(&seed));
  data_fd = open(data_path, O_RDWR | O_CREAT, 0644);
  if (data_fd < 0 || pwrite(data_fd, data, DATA_LEN, 0) != (ssize_t)DATA_LEN) return -1;
  return 0;
}

static int teardown(void **state) {
  (void)state;
  (void)close(data_fd);
  (void)unlink(data_path);
  (void)unlink(out_path);
  (void)unlink(other_path);
  free(data);
  free(out_data);
  return rmdir(dir);
}

static int reset(void **state) {
  (void)state;
  fake_reset(false);
  return 0;
}

static uint64_t test_seed(void) {
  const char *const s = getenv("TEST_SEED");
  return s ? strtoull(s, NULL, 0) : time_ns();
}

static struct blkio_queue *make_queue(struct blkio *b) {
  struct blkio_queue *q = NULL;
  OK(blkio_queue_create(b, &q));
  assert_non_null(q);
  return q;
}

// ---- the choice of the engine

static void test_parse(void **state) {
  (void)state;
  enum blkio_kind k = BLKIO_SYNC;
  OK(blkio_parse(NULL, &k));
  assert_int_equal(k, BLKIO_AUTO);
  static const char *const names[] = {"auto", "uring", "aio", "sync"};
  for (int i = 0; i < 4; i++) {
    OK(blkio_parse(names[i], &k));
    assert_int_equal(k, i);
  }
  static const char *const bad[] = {"", "URING", "io_uring", "syn", "sync "};
  for (int i = 0; i < 5; i++) {
    FAILS(blkio_parse(bad[i], &k), REMIXDB_INVALID);
    assert_int_not_equal(strlen(err_msg()), 0);
  }
}

static void test_fallback(void **state) {
  (void)state;
  struct blkio b;
  blkio_init(&b, env_posix(), BLKIO_AIO);
  const char *const second = blkio_engine(&b);  // a build for ThreadSanitizer has no AIO
  assert_true(b.kind == BLKIO_AIO || b.kind == BLKIO_SYNC);
  static const int errnos[] = {ENOSYS, EPERM, EOPNOTSUPP, ENOMEM, EINVAL, EMFILE};
  for (size_t i = 0; i < sizeof(errnos) / sizeof(errnos[0]); i++) {
    atomic_store(&blkio_test_ring_errno, errnos[i]);
    blkio_init(&b, env_posix(), BLKIO_AUTO);
    assert_string_equal(blkio_engine(&b), second);
    blkio_init(&b, env_posix(), BLKIO_URING);
    assert_string_equal(blkio_engine(&b), second);
  }
  atomic_store(&blkio_test_ring_errno, 0);
  blkio_init(&b, env_posix(), BLKIO_SYNC);
  assert_string_equal(blkio_engine(&b), "sync");
  blkio_init(&b, env_posix(), BLKIO_AUTO);
  if (b.kind != BLKIO_URING) assert_string_equal(blkio_engine(&b), second);  // a machine may have no rings
  for (int k = BLKIO_AUTO; k <= BLKIO_SYNC; k++) {
    blkio_init(&b, &fake, (enum blkio_kind)k);
    assert_string_equal(blkio_engine(&b), "sync");
  }
  blkio_queue_destroy(NULL);
  blkio_writer_destroy(NULL);
}

// ---- reading

static void check_batch(struct blkio_queue *q, uint32_t nr, uint64_t *seed) {
  struct blkio_read *const reads = calloc(nr, sizeof(*reads));
  size_t used = 0;
  for (uint32_t i = 0; i < nr; i++) {
    uint32_t len = (uint32_t)(rng_next(seed) % 3 == 0 ? rng_next(seed) % 30000 : BLKIO_ALIGN);
    if (used + len > OUT_MAX) len = 0;
    reads[i] = (struct blkio_read){.fd = data_fd,
                                   .path = data_path,
                                   .buf = out_data + used,
                                   .len = len,
                                   .off = rng_next(seed) % (DATA_LEN - len),
                                   .status = REMIXDB_IO};
    used += len;
  }
  memset(out_data, 0, used);
  OK(blkio_read_batch(q, reads, nr));
  for (uint32_t i = 0; i < nr; i++) {
    OK(reads[i].status);
    assert_memory_equal(reads[i].buf, data + reads[i].off, reads[i].len);
  }
  free(reads);
}

static void test_read_batch(void **state) {
  (void)state;
  uint64_t seed = test_seed();
  print_message("TEST_SEED=%llu\n", (unsigned long long)seed);
  static const uint32_t nrs[] = {0, 1, 2, 63, 64, 65, 300};
  for (size_t k = 0; k < KINDS; k++) {
    struct blkio b;
    blkio_init(&b, env_posix(), kinds[k]);
    struct blkio_queue *const q = make_queue(&b);
    uint64_t nr_all = 0;
    for (size_t i = 0; i < sizeof(nrs) / sizeof(nrs[0]); i++) {
      check_batch(q, nrs[i], &seed);
      nr_all += nrs[i];
    }
    assert_int_equal(atomic_load(&b.nr_reads), nr_all);
    blkio_queue_destroy(q);
    uint8_t buf[100];
    OK(blkio_read_one(&b, data_fd, data_path, buf, sizeof(buf), 12345));
    assert_memory_equal(buf, data + 12345, sizeof(buf));
    assert_int_equal(atomic_load(&b.nr_reads), nr_all + 1);
  }
}

static void test_read_direct(void **state) {
  (void)state;
  int fd = -1;
  OK(env_open(ENV_PATHS(env_posix()), data_path, ENV_READ | ENV_DIRECT, &fd));
  uint8_t *const buf = mem_alloc_aligned(BLKIO_ALIGN, 32 * BLKIO_ALIGN);
  for (size_t k = 0; k < KINDS; k++) {
    struct blkio b;
    blkio_init(&b, env_posix(), kinds[k]);
    struct blkio_queue *const q = make_queue(&b);
    struct blkio_read reads[33];
    for (uint32_t i = 0; i < 33; i++)
      reads[i] = (struct blkio_read){.fd = fd,
                                     .path = data_path,
                                     .buf = buf + i % 32 * BLKIO_ALIGN,
                                     .len = BLKIO_ALIGN,
                                     .off = (uint64_t)(i * 7 % 32) * BLKIO_ALIGN};
    reads[32].off = DATA_LEN;  // the end of the file
    reads[32].buf = mem_alloc_aligned(BLKIO_ALIGN, BLKIO_ALIGN);
    FAILS(blkio_read_batch(q, reads, 33), REMIXDB_CORRUPT);
    for (uint32_t i = 0; i < 32; i++) assert_memory_equal(reads[i].buf, data + reads[i].off, BLKIO_ALIGN);
    mem_free(reads[32].buf);
    blkio_queue_destroy(q);
  }
  mem_free(buf);
  (void)close(fd);
}

// The first in order that failed speaks, in any order of completion; the others are not harmed.
static void test_read_failures(void **state) {
  (void)state;
  const int closed = dup(data_fd);
  (void)close(closed);
  for (size_t k = 0; k < KINDS; k++) {
    struct blkio b;
    blkio_init(&b, env_posix(), kinds[k]);
    struct blkio_queue *const q = make_queue(&b);
    struct blkio_read reads[100];
    for (int turn = 0; turn < 2; turn++) {
      for (uint32_t i = 0; i < 100; i++)
        reads[i] = (struct blkio_read){
            .fd = data_fd, .path = data_path, .buf = out_data + i * 8192, .len = 8192, .off = i * 1000};
      reads[turn ? 20 : 60].off = DATA_LEN - 5000;  // ends inside
      reads[turn ? 20 : 60].path = "cut";
      reads[turn ? 60 : 20].fd = closed;
      reads[turn ? 60 : 20].path = "closed";
      reads[90].off = DATA_LEN + 100000;
      assert_int_equal(blkio_read_batch(q, reads, 100), turn ? REMIXDB_CORRUPT : REMIXDB_IO);
      assert_non_null(strstr(err_msg(), turn ? "cut: offset" : "closed"));
      for (uint32_t i = 0; i < 100; i++) {
        const enum remixdb_status want = i == (turn ? 20u : 60u) || i == 90 ? REMIXDB_CORRUPT
                                         : i == (turn ? 60u : 20u)          ? REMIXDB_IO
                                                                            : REMIXDB_OK;
        assert_int_equal(reads[i].status, want);
        if (want == REMIXDB_OK) assert_memory_equal(reads[i].buf, data + reads[i].off, 8192);
      }
    }
    uint64_t seed = 5;
    check_batch(q, 70, &seed);  // and it goes on working
    FAILS(blkio_read_one(&b, data_fd, data_path, out_data, 10, DATA_LEN), REMIXDB_CORRUPT);
    blkio_queue_destroy(q);
  }
}

// Reads that are added part by part, with a call for each that ends.
struct ended {
  struct blkio_read *reads;
  uint32_t calls[300];
  bool wrong;
};

static void on_end(void *arg, struct blkio_read *r) {
  struct ended *const e = arg;
  const uint32_t i = (uint32_t)(r - e->reads);
  e->calls[i]++;
  if (r->status == REMIXDB_OK) e->wrong = e->wrong || memcmp(r->buf, data + r->off, r->len) != 0;
  else e->wrong = e->wrong || i % 50 != 7 || r->status != REMIXDB_CORRUPT || !strstr(err_msg(), r->path);
  (void)err_set(REMIXDB_INVALID, "a message of another kind");
}

static void test_read_parts(void **state) {
  (void)state;
  static const uint32_t nrs[] = {0, 1, 2, 128, 129, 300};
  for (size_t k = 0; k < KINDS; k++) {
    struct blkio b;
    blkio_init(&b, env_posix(), kinds[k]);
    struct blkio_queue *const q = make_queue(&b);
    for (size_t n = 0; n < 2 * sizeof(nrs) / sizeof(nrs[0]); n++) {
      const uint32_t nr = nrs[n / 2];
      const bool fail = n % 2 && nr > 7;
      struct blkio_read reads[300];
      static char paths[300][16];
      for (uint32_t i = 0; i < nr; i++) {
        (void)snprintf(paths[i], sizeof(paths[i]), "file-%u", i);
        reads[i] = (struct blkio_read){.fd = data_fd,
                                       .path = paths[i],
                                       .buf = out_data + i * 4096,
                                       .len = 4096,
                                       .off = i * 300,
                                       .status = REMIXDB_IO};
        if (fail && i % 50 == 7) reads[i].off = DATA_LEN - 100;
      }
      struct ended e = {.reads = reads};
      memset(out_data, 0, nr * 4096);
      struct blkio_batch batch;
      blkio_batch_begin(&batch, q, reads, on_end, &e);
      for (uint32_t at = 0, step; at < nr; at += step) {  // at once, or in parts
        step = nr - at < (n % 3 ? 300 : 40) ? nr - at : 40;
        blkio_batch_add(&batch, step);
      }
      assert_int_equal(blkio_batch_end(&batch), fail ? REMIXDB_CORRUPT : REMIXDB_OK);
      if (fail) assert_non_null(strstr(err_msg(), "file-7: offset"));
      assert_false(e.wrong);
      for (uint32_t i = 0; i < nr; i++) {
        assert_int_equal(e.calls[i], 1);
        assert_int_equal(reads[i].status, fail && i % 50 == 7 ? REMIXDB_CORRUPT : REMIXDB_OK);
      }
    }
    blkio_queue_destroy(q);
  }
}

static void test_read_fake(void **state) {
  (void)state;
  struct blkio b;
  blkio_init(&b, &fake, BLKIO_AUTO);
  struct blkio_queue *const q = make_queue(&b);
  uint64_t seed = 11;
  atomic_store(&short_len, 1000);
  atomic_store(&eintr_every, 3);
  check_batch(q, 80, &seed);
  assert_true(atomic_load(&fake_reads) > 80);
  fake_reset(false);
  for (uint32_t n = 1; n <= 10; n++) {
    struct blkio_read reads[10];
    for (uint32_t i = 0; i < 10; i++)
      reads[i] = (struct blkio_read){
          .fd = data_fd, .path = data_path, .buf = out_data + i * 512, .len = 512, .off = i * 512};
    atomic_store(&fake_reads, 0);
    atomic_store(&fail_read_at, n);
    FAILS(blkio_read_batch(q, reads, 10), REMIXDB_IO);
    assert_non_null(strstr(err_msg(), data_path));
    uint32_t failed = 0;
    for (uint32_t i = 0; i < 10; i++) failed += reads[i].status != REMIXDB_OK;
    assert_int_equal(failed, 1);
  }
  atomic_store(&fake_reads, 0);
  atomic_store(&fail_read_at, 1);
  FAILS(blkio_read_one(&b, data_fd, data_path, out_data, 10, 0), REMIXDB_IO);
  blkio_queue_destroy(q);
}

// ---- writing

static void check_file(uint64_t len) {
  const int fd = open(out_path, O_RDONLY);
  assert_true(fd >= 0);
  assert_int_equal(lseek(fd, 0, SEEK_END), len);
  memset(out_data, 0, len);
  assert_int_equal(pread(fd, out_data, len, 0), len);
  assert_memory_equal(out_data, data, len);
  (void)close(fd);
}

static int open_out(bool direct) {
  int fd = -1;
  const unsigned flags = ENV_READ | ENV_WRITE | ENV_CREATE | ENV_TRUNC | (direct ? ENV_DIRECT : 0);
  OK(env_open(ENV_PATHS(env_posix()), out_path, flags, &fd));
  return fd;
}

// Puts data[from, to) in pieces of many sizes.
static void put_pieces(struct blkio_writer *w, uint64_t from, uint64_t to, uint64_t *seed) {
  while (from < to) {
    static const uint32_t sizes[] = {1, 20, 5000, 70000, BLKIO_WRITER_BUF / 2, 2 * BLKIO_WRITER_BUF + 1};
    uint64_t len = rng_next(seed) % sizes[rng_next(seed) % 6] + 1;
    if (len > to - from) len = to - from;
    blkio_writer_put(w, data + from, len);
    from += len;
    assert_int_equal(blkio_writer_offset(w), from);
  }
}

static void test_write(void **state) {
  (void)state;
  uint64_t seed = test_seed();
  print_message("TEST_SEED=%llu\n", (unsigned long long)seed);
  for (size_t k = 0; k < KINDS; k++) {
    struct blkio b;
    blkio_init(&b, env_posix(), kinds[k]);
    struct blkio_queue *const q = make_queue(&b);
    struct blkio_writer *w = NULL;
    OK(blkio_writer_create(q, &w));
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < 16; i++) {
      const bool direct = i & 1;
      static const uint64_t lens[] = {0, 1, 4096, BLKIO_WRITER_BUF, 2 * BLKIO_WRITER_BUF + 4095};
      const uint64_t len = i / 2 < 5 ? lens[i / 2] : rng_next(&seed) % (OUT_MAX - 8192);
      const int fd = open_out(direct);
      blkio_writer_start(w, fd, out_path, direct);
      put_pieces(w, 0, len, &seed);
      OK(blkio_writer_finish(w, i == 15));
      assert_int_equal(blkio_writer_offset(w), len);
      (void)close(fd);
      check_file(len);
      bytes += direct ? align_up(len, BLKIO_ALIGN) : len;
    }
    assert_int_equal(atomic_load(&b.write_bytes), bytes);
    assert_true(atomic_load(&b.nr_writes) >= bytes / BLKIO_WRITER_BUF);
    blkio_writer_destroy(w);
    blkio_queue_destroy(q);
  }
}

// A file that is open only while it is written to.
#define AJAR_BYTES ((size_t)BLKIO_WRITER_NR * BLKIO_WRITER_BUF)  // written at a time
static _Atomic uint32_t ajar_opens, ajar_shuts, ajar_synced;
static int ajar_fd = -1, ajar_fails;

static enum remixdb_status ajar_open(void *arg, int *fd_out) {
  (void)arg;
  assert_int_equal(ajar_fd, -1);
  if (ajar_fails) return err_set(REMIXDB_NOMEM, "no door");
  ajar_fd = *fd_out = open(out_path, O_WRONLY | O_CREAT, 0600);
  assert_true(ajar_fd >= 0);
  atomic_fetch_add(&ajar_opens, 1);
  return REMIXDB_OK;
}

static enum remixdb_status ajar_shut(void *arg, int fd) {
  (void)arg;
  assert_true(fd >= 0 && fd == ajar_fd);
  (void)close(fd);
  ajar_fd = -1;
  atomic_fetch_add(&ajar_shuts, 1);
  // none of its bytes waits for a sync when it is shut
  if (atomic_load(&ajar_synced) >= atomic_load(&ajar_shuts)) return REMIXDB_OK;
  return err_set(REMIXDB_IO, "not synced");
}

static int ajar_sync(struct env *e, int fd) {
  assert_int_equal(fd, ajar_fd);
  atomic_fetch_add(&ajar_synced, 1);
  return env_posix()->ops->sync_data(e, fd);
}

static int ajar_sync_all(struct env *e, int fd) {
  assert_int_equal(fd, ajar_fd);
  atomic_fetch_add(&ajar_synced, 1);
  return fake_sync_all(e, fd);
}

static void test_write_ajar(void **state) {
  (void)state;
  const size_t lens[] = {1, BLKIO_WRITER_BUF + 5, AJAR_BYTES - 1, AJAR_BYTES, 2 * AJAR_BYTES + 77};
  const struct blkio_door door = {ajar_open, ajar_shut, NULL};
  fake_ops.sync_data = ajar_sync;
  fake_ops.sync_all = ajar_sync_all;
  for (size_t k = 0; k < KINDS; k++) {
    struct blkio b;
    struct blkio_queue *q;
    struct blkio_writer *w;
    fake_reset(true);
    blkio_init(&b, &fake, kinds[k]);
    OK(blkio_queue_create(&b, &q));
    OK(blkio_writer_create(q, &w));
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
      (void)unlink(out_path);
      atomic_store(&ajar_opens, 0);
      atomic_store(&ajar_shuts, 0);
      atomic_store(&ajar_synced, 0);
      blkio_writer_start_ajar(w, out_path, false, &door);
      for (size_t at = 0; at < lens[i]; at += 1000) {
        blkio_writer_put(w, data + at, lens[i] - at < 1000 ? lens[i] - at : 1000);
        assert_int_equal(ajar_fd, -1);
      }
      assert_int_equal(atomic_load(&ajar_opens), lens[i] / AJAR_BYTES);
      OK(blkio_writer_finish(w, true));
      assert_int_equal(ajar_fd, -1);
      assert_int_equal(atomic_load(&ajar_shuts), lens[i] / AJAR_BYTES + 1);
      const int fd = open(out_path, O_RDONLY);
      assert_true(fd >= 0 && read(fd, out_data, OUT_MAX) == (ssize_t)lens[i]);
      assert_memory_equal(out_data, data, lens[i]);
      (void)close(fd);
    }
    // the first failure stays
    ajar_fails = 1;
    blkio_writer_start_ajar(w, out_path, false, &door);
    blkio_writer_put(w, data, 2 * AJAR_BYTES);
    ajar_fails = 0;
    assert_true(blkio_writer_failed(w));
    FAILS(blkio_writer_finish(w, true), REMIXDB_NOMEM);
    atomic_store(&fail_write_at, atomic_load(&fake_writes) + 1);
    blkio_writer_start_ajar(w, out_path, false, &door);
    blkio_writer_put(w, data, 2 * AJAR_BYTES);
    FAILS(blkio_writer_finish(w, true), REMIXDB_IO);
    assert_int_equal(ajar_fd, -1);
    blkio_writer_destroy(w);
    blkio_queue_destroy(q);
    blkio_fini(&b);
  }
  fake_ops.sync_data = env_posix()->ops->sync_data;
  fake_ops.sync_all = fake_sync_all;
  (void)unlink(out_path);
}

// A table goes to the disk while it is written, a few megabytes at a time, but not past the page cache, where there is
// nothing to be brought there.
static void test_write_out(void **state) {
  (void)state;
  uint64_t seed = test_seed();
  for (uint32_t i = 0; i < 4; i++) {
    const bool direct = i & 1;
    struct blkio b;
    struct blkio_writer *w = NULL;
    fake_reset(false);
    blkio_init(&b, &fake, BLKIO_SYNC);
    struct blkio_queue *const q = make_queue(&b);
    OK(blkio_writer_create(q, &w));
    for (uint32_t file = 0; file < 2; file++) {  // the second begins from nothing
      const int fd = open_out(direct);
      atomic_store(&fake_out_to, 0);
      atomic_store(&fake_outs, 0);
      blkio_writer_start(w, fd, out_path, direct);
      put_pieces(w, 0, OUT_MAX - 8192, &seed);
      const uint64_t out = atomic_load(&fake_out_to);
      OK(blkio_writer_finish(w, true));
      (void)close(fd);
      check_file(OUT_MAX - 8192);
      assert_false(atomic_load(&fake_out_wrong));
      assert_int_equal(atomic_load(&fake_out_to), out);  // the end is synced
      if (direct) {
        assert_int_equal(atomic_load(&fake_outs), 0);
      } else {
        assert_true(out > OUT_MAX / 2 && out / atomic_load(&fake_outs) >= 4u << 20);
      }
    }
    blkio_writer_destroy(w);
    blkio_queue_destroy(q);
  }
}

// Reads and two writers on one queue: each gets its own completions.
static void test_mixed(void **state) {
  (void)state;
  uint64_t seed = test_seed();
  print_message("TEST_SEED=%llu\n", (unsigned long long)seed);
  for (size_t k = 0; k < KINDS; k++) {
    struct blkio b;
    blkio_init(&b, env_posix(), kinds[k]);
    struct blkio_queue *const q = make_queue(&b);
    struct blkio_writer *w = NULL, *v = NULL;
    OK(blkio_writer_create(q, &w));
    OK(blkio_writer_create(q, &v));
    const int fd = open_out(false), other = open(other_path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    blkio_writer_start(w, fd, out_path, false);
    blkio_writer_start(v, other, other_path, false);
    for (uint64_t at = 0; at < OUT_MAX; at += OUT_MAX / 16) {
      put_pieces(w, at, at + OUT_MAX / 16, &seed);
      put_pieces(v, at, at + OUT_MAX / 16, &seed);
      check_batch(q, (uint32_t)(rng_next(&seed) % 100), &seed);
    }
    OK(blkio_writer_finish(v, false));
    OK(blkio_writer_finish(w, false));
    check_file(OUT_MAX);
    assert_int_equal(rename(other_path, out_path), 0);
    check_file(OUT_MAX);
    (void)close(fd);
    (void)close(other);
    blkio_writer_destroy(v);
    blkio_writer_destroy(w);
    blkio_queue_destroy(q);
  }
}

// ---- flights

#define FLIGHTS 5u
#define FLIGHT ((uint32_t)256 << 10)

static void fly(struct blkio_flight *f, uint32_t i, uint64_t off) {
  uint8_t *const buf = out_data + i * FLIGHT;
  memset(buf, 0, FLIGHT);
  blkio_flight_start(f, &(struct blkio_read){.fd = data_fd, .path = data_path, .buf = buf, .len = FLIGHT, .off = off});
  assert_true(blkio_flight_is_open(f));
}

static void land(struct blkio_flight *f, uint32_t i, uint64_t off) {
  OK(blkio_flight_end(f));
  assert_false(blkio_flight_is_open(f));
  assert_memory_equal(out_data + i * FLIGHT, data + off, FLIGHT);
}

// Several flights of a queue, ended in any order, beside a writer and batches. Some are destroyed on their way.
static void check_flights(struct blkio_queue *q, bool beside, uint64_t *seed) {
  struct blkio_flight *f[FLIGHTS];
  struct blkio_writer *w = NULL;
  uint64_t off[FLIGHTS];
  const int fd = beside ? open_out(false) : -1;
  if (beside) {
    OK(blkio_writer_create(q, &w));
    blkio_writer_start(w, fd, out_path, false);
  }
  for (uint32_t i = 0; i < FLIGHTS; i++) OK(blkio_flight_create(q, &f[i]));
  for (uint32_t i = 0; i < FLIGHTS; i++) fly(f[i], i, off[i] = rng_next(seed) % (DATA_LEN - FLIGHT));
  for (uint32_t round = 0; round < 40; round++) {
    const uint32_t i = (uint32_t)(rng_next(seed) % FLIGHTS);
    if (beside) blkio_writer_put(w, data + round * 100000, 100000);
    land(f[i], i, off[i]);
    fly(f[i], i, off[i] = rng_next(seed) % (DATA_LEN - FLIGHT));
  }
  for (uint32_t i = 0; i < FLIGHTS; i++) {
    if (i % 2) land(f[i], i, off[i]);
    blkio_flight_destroy(f[i]);
  }
  if (!beside) return;
  OK(blkio_writer_finish(w, false));
  check_file(4000000);
  blkio_writer_destroy(w);
  (void)close(fd);
}

static void test_flights(void **state) {
  (void)state;
  uint64_t seed = test_seed();
  print_message("TEST_SEED=%llu\n", (unsigned long long)seed);
  for (size_t k = 0; k < KINDS; k++) {
    struct blkio b;
    fake_reset(true);
    blkio_init(&b, &fake, kinds[k]);
    struct blkio_queue *const q = make_queue(&b);
    struct blkio_flight *f, *g;
    check_flights(q, true, &seed);
    assert_int_equal(blkio_queue_flies(q), b.kind != BLKIO_SYNC);
    OK(blkio_flight_create(q, &f));
    OK(blkio_flight_create(q, &g));
    // a batch between the beginning and the end
    fly(f, FLIGHTS, 5);
    check_batch(q, 30, &seed);
    fly(g, FLIGHTS + 1, 4096);
    check_batch(q, 30, &seed);
    land(g, FLIGHTS + 1, 4096);
    land(f, FLIGHTS, 5);
    // the file ends first: the end says so, and the next one is well
    fly(f, FLIGHTS, DATA_LEN - FLIGHT + 1);
    FAILS(blkio_flight_end(f), REMIXDB_CORRUPT);
    assert_non_null(strstr(err_msg(), data_path));
    fly(f, FLIGHTS, 0);
    land(f, FLIGHTS, 0);
    // a ring that is lost on the way
    fly(f, FLIGHTS, 77);
    atomic_store(&blkio_test_ring_errno, ENOMEM);
    land(f, FLIGHTS, 77);
    fly(f, FLIGHTS, 78);
    land(f, FLIGHTS, 78);
    atomic_store(&blkio_test_ring_errno, 0);
    blkio_flight_destroy(g);
    blkio_flight_destroy(f);
    blkio_queue_destroy(q);
    // the shared queue keeps its lanes
    check_flights(blkio_shared(&b), false, &seed);
    assert_int_equal(blkio_lanes(&b), 0);
    assert_false(blkio_queue_flies(blkio_shared(&b)));
    blkio_fini(&b);
  }
}

// A file that cannot be written: the error stays, later calls do nothing, and the next file is written well.
static void test_write_failure(void **state) {
  (void)state;
  uint64_t seed = 3;
  for (size_t k = 0; k < KINDS; k++) {
    struct blkio b;
    blkio_init(&b, env_posix(), kinds[k]);
    struct blkio_queue *const q = make_queue(&b);
    struct blkio_writer *w = NULL;
    OK(blkio_writer_create(q, &w));
    const int ro = open(data_path, O_RDONLY);
    for (uint64_t len = 1000; len <= OUT_MAX; len = len * 5 + 1000) {
      blkio_writer_start(w, ro, "readonly", false);
      put_pieces(w, 0, len, &seed);
      FAILS(blkio_writer_finish(w, true), REMIXDB_IO);
      assert_non_null(strstr(err_msg(), "readonly"));
      FAILS(blkio_writer_finish(w, true), REMIXDB_IO);
    }
    const int fd = open_out(false);
    // abandoned in the middle, then another one begun
    blkio_writer_start(w, fd, out_path, false);
    put_pieces(w, 0, OUT_MAX / 2 + 77, &seed);
    blkio_writer_start(w, fd, out_path, false);
    put_pieces(w, 0, OUT_MAX - 5, &seed);
    OK(blkio_writer_finish(w, false));
    check_file(OUT_MAX - 5);
    // destroyed with writes in flight
    blkio_writer_start(w, fd, out_path, false);
    put_pieces(w, 0, OUT_MAX / 2, &seed);
    blkio_writer_destroy(w);
    blkio_queue_destroy(q);
    (void)close(fd);
    (void)close(ro);
  }
}

static void test_write_fake(void **state) {
  (void)state;
  uint64_t seed = 9;
  struct blkio b;
  blkio_init(&b, &fake, BLKIO_AUTO);
  struct blkio_queue *const q = make_queue(&b);
  struct blkio_writer *w = NULL;
  OK(blkio_writer_create(q, &w));
  const uint64_t len = 5 * BLKIO_WRITER_BUF + 1234;

  atomic_store(&short_len, 100000);
  atomic_store(&eintr_every, 4);
  int fd = open_out(false);
  blkio_writer_start(w, fd, out_path, false);
  put_pieces(w, 0, len, &seed);
  OK(blkio_writer_finish(w, true));
  assert_int_equal(atomic_load(&fake_syncs), 1);
  check_file(len);

  fake_reset(false);
  for (int sync = 0; sync < 2; sync++) {
    for (uint32_t n = 1;; n++) {
      atomic_store(&fake_writes, 0);
      atomic_store(&fake_syncs, 0);
      atomic_store(&fail_write_at, n);
      atomic_store(&fail_errno, n % 2 ? ENOSPC : EIO);
      blkio_writer_start(w, fd, out_path, false);
      blkio_writer_put(w, data, len);
      const enum remixdb_status s = blkio_writer_finish(w, sync);
      if (n > 6) {
        OK(s);
        assert_int_equal(atomic_load(&fake_syncs), sync);
        break;
      }
      assert_int_equal(s, n % 2 ? REMIXDB_NOSPACE : REMIXDB_IO);
      assert_non_null(strstr(err_msg(), out_path));
      assert_int_equal(atomic_load(&fake_writes), n);  // nothing is written after the error
      assert_int_equal(atomic_load(&fake_syncs), 0);
    }
  }

  fake_reset(false);
  atomic_store(&fail_truncate, EIO);
  blkio_writer_start(w, fd, out_path, true);
  blkio_writer_put(w, data, 4096);
  OK(blkio_writer_finish(w, true));  // nothing to cut
  blkio_writer_start(w, fd, out_path, true);
  blkio_writer_put(w, data, 100);
  FAILS(blkio_writer_finish(w, true), REMIXDB_IO);
  assert_non_null(strstr(err_msg(), "truncate"));
  atomic_store(&fail_truncate, 0);
  atomic_store(&fail_sync, EIO);
  blkio_writer_start(w, fd, out_path, true);
  blkio_writer_put(w, data, 100);
  FAILS(blkio_writer_finish(w, true), REMIXDB_IO);
  assert_non_null(strstr(err_msg(), "sync"));
  blkio_writer_start(w, fd, out_path, false);
  blkio_writer_put(w, data, 100);
  OK(blkio_writer_finish(w, false));
  (void)close(fd);
  blkio_writer_destroy(w);
  blkio_queue_destroy(q);
}

// Under direct I/O every write is of whole aligned parts at aligned offsets, from aligned memory.
static _Atomic uint32_t unaligned;
static ssize_t aligned_pwrite(struct env *e, int fd, const void *buf, size_t len, uint64_t off) {
  if (len % BLKIO_ALIGN || off % BLKIO_ALIGN || (uintptr_t)buf % BLKIO_ALIGN) atomic_fetch_add(&unaligned, 1);
  return env_posix()->ops->pwrite(e, fd, buf, len, off);
}

static void test_write_aligned(void **state) {
  (void)state;
  uint64_t seed = test_seed();
  print_message("TEST_SEED=%llu\n", (unsigned long long)seed);
  struct env_ops ops = fake_ops;
  ops.pwrite = aligned_pwrite;
  struct env env = {.ops = &ops};
  struct blkio b;
  blkio_init(&b, &env, BLKIO_AUTO);
  struct blkio_queue *const q = make_queue(&b);
  struct blkio_writer *w = NULL;
  OK(blkio_writer_create(q, &w));
  const int fd = open_out(false);
  for (int i = 0; i < 10; i++) {
    const uint64_t len = rng_next(&seed) % OUT_MAX;
    assert_int_equal(ftruncate(fd, 0), 0);
    blkio_writer_start(w, fd, out_path, true);
    put_pieces(w, 0, len, &seed);
    OK(blkio_writer_finish(w, false));
    assert_int_equal(atomic_load(&unaligned), 0);
    check_file(len);
  }
  (void)close(fd);
  blkio_writer_destroy(w);
  blkio_queue_destroy(q);
}

// A file that fits into one buffer is written by the thread itself, whatever the engine. Longer files leave to the
// engine what the thread need not wait for.
static void test_write_short(void **state) {
  (void)state;
  static const uint32_t lens[] = {1, 4096, 60000, BLKIO_WRITER_BUF - 1};
  fake_reset(true);  // native: the ring is used, and the plain calls are counted
  for (uint32_t k = 0; k < KINDS; k++) {
    struct blkio b;
    blkio_init(&b, &fake, kinds[k]);
    struct blkio_queue *const q = make_queue(&b);
    struct blkio_writer *w = NULL;
    OK(blkio_writer_create(q, &w));
    const int fd = open_out(false);
    for (uint32_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
      const uint64_t turns = atomic_load(&b.nr_turns);
      atomic_store(&fake_writes, 0);
      assert_int_equal(ftruncate(fd, 0), 0);
      blkio_writer_start(w, fd, out_path, false);
      blkio_writer_put(w, data, lens[i]);
      OK(blkio_writer_finish(w, false));
      assert_int_equal(atomic_load(&fake_writes), 1);
      assert_int_equal(atomic_load(&b.nr_turns), turns);
      check_file(lens[i]);
    }
    const uint64_t turns = atomic_load(&b.nr_turns);
    atomic_store(&fake_writes, 0);
    blkio_writer_start(w, fd, out_path, false);
    blkio_writer_put(w, data, 2 * BLKIO_WRITER_BUF);
    OK(blkio_writer_finish(w, false));
    if (b.kind == BLKIO_URING) assert_true(atomic_load(&b.nr_turns) > turns);
    if (b.kind == BLKIO_SYNC) assert_int_equal(atomic_load(&fake_writes), 2);
    check_file(2 * BLKIO_WRITER_BUF);
    (void)close(fd);
    blkio_writer_destroy(w);
    blkio_queue_destroy(q);
  }
}

// ---- rings that cannot be had, or fail later

static void test_ring_lost(void **state) {
  (void)state;
  uint64_t seed = test_seed();
  print_message("TEST_SEED=%llu\n", (unsigned long long)seed);
  static const int errnos[] = {EBADF, EAGAIN, ENOMEM, EINTR};
  fake_reset(true);  // native: the ring is used, and the plain calls are counted
  for (size_t i = 0; i < sizeof(errnos) / sizeof(errnos[0]); i++) {
    struct blkio b;
    blkio_init(&b, &fake, BLKIO_URING);
    // the queue's own ring is refused, and is tried for again later
    atomic_store(&blkio_test_ring_errno, errnos[i]);
    struct blkio_queue *const q = make_queue(&b);
    check_batch(q, 100, &seed);
    assert_true(b.kind == BLKIO_AIO || !q->lane);  // AIO: the system has no rings for this process
    atomic_store(&blkio_test_ring_errno, 0);
    check_batch(q, 100, &seed);
    assert_true(b.kind == BLKIO_SYNC || (q->lane == NULL) == (b.kind == BLKIO_URING));
    atomic_store(&b.retry_ns, 0);
    check_batch(q, 100, &seed);
    assert_true((q->lane != NULL) == (b.kind != BLKIO_SYNC));
    blkio_queue_destroy(q);

    // it is lost with writes in flight
    struct blkio_queue *const r = make_queue(&b);
    struct blkio_writer *w = NULL;
    OK(blkio_writer_create(r, &w));
    const int fd = open_out(false);
    blkio_writer_start(w, fd, out_path, false);
    check_batch(r, 100, &seed);
    put_pieces(w, 0, OUT_MAX / 2, &seed);
    const uint32_t writes_before = atomic_load(&fake_writes);
    atomic_store(&blkio_test_ring_errno, errnos[i]);
    check_batch(r, 100, &seed);
    put_pieces(w, OUT_MAX / 2, OUT_MAX - 100, &seed);
    atomic_store(&blkio_test_ring_errno, 0);
    if (b.kind == BLKIO_URING) assert_true(atomic_load(&fake_writes) > writes_before);
    check_batch(r, 100, &seed);
    put_pieces(w, OUT_MAX - 100, OUT_MAX, &seed);
    OK(blkio_writer_finish(w, false));
    check_file(OUT_MAX);
    (void)close(fd);
    blkio_writer_destroy(w);
    blkio_queue_destroy(r);
  }
}

// When an engine fails, the plain call does the work; a failure of the plain call is the one reported.
static void test_engine_fails(void **state) {
  (void)state;
  for (size_t k = 0; k < 2; k++) {
    fake_reset(true);
    struct blkio b;
    blkio_init(&b, &fake, kinds[k]);
    struct blkio_queue *const q = make_queue(&b);
    struct blkio_writer *w = NULL;
    OK(blkio_writer_create(q, &w));
    const int ro = open(data_path, O_RDONLY);
    atomic_store(&fail_write_at, 1);
    atomic_store(&fail_errno, ENOSPC);
    blkio_writer_start(w, ro, data_path, false);
    blkio_writer_put(w, data, 3 * BLKIO_WRITER_BUF);
    FAILS(blkio_writer_finish(w, false), REMIXDB_NOSPACE);
    assert_int_equal(atomic_load(&fake_writes), 1);
    // Reads that end early are finished the same way.
    struct blkio_read reads[2] = {
        {.fd = data_fd, .path = data_path, .buf = out_data, .len = 4096, .off = 0},
        {.fd = data_fd, .path = data_path, .buf = out_data + 4096, .len = 8192, .off = DATA_LEN - 5000}};
    FAILS(blkio_read_batch(q, reads, 2), REMIXDB_CORRUPT);
    OK(reads[0].status);
    assert_true(atomic_load(&fake_reads) > 0);
    (void)close(ro);
    blkio_writer_destroy(w);
    blkio_queue_destroy(q);
  }
}

// ---- memory

static _Atomic int deny_after;
static bool deny(size_t size) {
  (void)size;
  return atomic_fetch_sub(&deny_after, 1) > 0;
}

// ---- the pool that all threads share

static uint32_t open_descriptors(void) {
  uint32_t nr = 0;
  for (int fd = 0; fd < 1024; fd++) nr += fcntl(fd, F_GETFD) != -1;
  return nr;
}

#define POOL 3u

// A batch that is open: its lane is taken until it ends.
struct opened {
  struct blkio_batch batch;
  struct blkio_read reads[4];
  uint8_t buf[4][4096];
};

static void opened_add(struct opened *o, struct blkio *b, uint64_t *rng) {
  for (uint32_t i = 0; i < 4; i++)
    o->reads[i] = (struct blkio_read){
        .fd = data_fd, .path = data_path, .buf = o->buf[i], .len = 4096, .off = rng_next(rng) % (DATA_LEN - 4096)};
  blkio_batch_begin(&o->batch, blkio_shared(b), o->reads, NULL, NULL);
  blkio_batch_add(&o->batch, 2);
  blkio_batch_add(&o->batch, 2);
}

static void opened_end(struct opened *o) {
  OK(blkio_batch_end(&o->batch));
  for (uint32_t i = 0; i < 4; i++) assert_memory_equal(o->buf[i], data + o->reads[i].off, 4096);
}

// No lane before the first read of a batch, one lane for all that follow each other, none for a single read, and never
// more than the bound: reads beyond it run at once, in their own threads.
static void test_pool(void **state) {
  (void)state;
  static struct opened all[3 * POOL];
  uint64_t rng = 5;
  fake_reset(true);  // native: the engine serves, and the plain calls are counted
  for (size_t k = 0; k < KINDS; k++) {
    struct blkio b;
    blkio_init(&b, &fake, kinds[k]);
    blkio_pool(&b, (uint64_t)POOL * BLKIO_DESCRIPTORS, NULL, NULL);
    b.lanes_max = POOL;  // for engines without descriptors, too
    b.direct = b.kind == BLKIO_AIO;
    const uint32_t most = b.kind == BLKIO_SYNC ? 0 : POOL, ring = b.kind == BLKIO_URING, before = open_descriptors();
    struct blkio_batch none;
    blkio_batch_begin(&none, blkio_shared(&b), NULL, NULL, NULL);
    blkio_batch_add(&none, 0);
    OK(blkio_batch_end(&none));
    for (uint32_t n = 0; n < 20; n++) check_batch(blkio_shared(&b), 1, &rng);
    assert_int_equal(blkio_lanes(&b), 0);
    for (uint32_t n = 0; n < 20; n++) check_batch(blkio_shared(&b), 2 + n * 10, &rng);
    assert_int_equal(blkio_lanes(&b), most > 0);
    assert_int_equal(open_descriptors(), before + ring);
    for (uint32_t turn = 0; turn < 5; turn++) {
      for (uint32_t n = 0; n < 3 * POOL; n++) {
        const uint32_t plain = atomic_load(&fake_reads);
        opened_add(&all[n], &b, &rng);
        assert_int_equal(all[n].batch.lane != NULL, n < most);
        if (n >= most) assert_int_equal(atomic_load(&fake_reads), plain + 4);
        assert_true(blkio_lanes(&b) <= most);
      }
      for (uint32_t n = 0; n < 3 * POOL; n++) opened_end(&all[(n * 4 + turn) % (3 * POOL)]);
      assert_int_equal(blkio_lanes(&b), most);
      assert_int_equal(open_descriptors(), before + ring * most);
    }
    blkio_fini(&b);
    assert_int_equal(open_descriptors(), before);
  }
}

static void test_pool_bound(void **state) {
  (void)state;
  static const struct {
    uint64_t descriptors;
    uint32_t lanes;
  } bounds[] = {{0, 1}, {64, 1}, {256, 2}, {1024, 8}, {4096, 32}, {UINT64_MAX, BLKIO_LANES_MAX}};
  for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++) {
    struct blkio b;
    blkio_init(&b, env_posix(), BLKIO_AUTO);
    blkio_pool(&b, bounds[i].descriptors, NULL, NULL);
    assert_int_equal(b.lanes_max, b.kind == BLKIO_URING ? bounds[i].lanes : BLKIO_LANES_MAX);
  }
}

static uint32_t troubles;
static int trouble_errno;
static void on_trouble(void *arg, int errnum) {
  assert_ptr_equal(arg, &troubles);
  troubles++;
  trouble_errno = errnum;
}

static bool deny_all(size_t size) {
  (void)size;
  return false;
}

// Rings that are refused, or lost in a batch, and memory that is lacking: all is read, the reason is told once, the
// thread's message stays, and later there are lanes again.
static void test_pool_trouble(void **state) {
  (void)state;
  static const int errnos[] = {EMFILE, ENOMEM, EPERM};
  uint64_t rng = 6;
  struct blkio b;
  for (size_t i = 0; i < sizeof(errnos) / sizeof(errnos[0]); i++) {
    for (uint32_t how = 0; how < 3; how++) {
      blkio_init(&b, env_posix(), how == 2 ? BLKIO_AIO : BLKIO_URING);
      if (b.kind != (how == 2 ? BLKIO_AIO : BLKIO_URING)) continue;  // a machine may have none
      blkio_pool(&b, UINT64_MAX, on_trouble, &troubles);
      b.direct = how == 2;
      troubles = 0;
      (void)err_set(REMIXDB_INVALID, "what was there");
      if (how == 1) check_batch(blkio_shared(&b), 100, &rng);  // it is there, and is lost
      const uint32_t before = open_descriptors();
      if (how == 2) atomic_store(&mem_fault, deny_all);
      else atomic_store(&blkio_test_ring_errno, errnos[i]);
      for (uint32_t n = 0; n < 10; n++) {
        struct opened *const o = calloc(2, sizeof(*o));
        for (uint32_t k = 0; k < 2; k++) opened_add(&o[k], &b, &rng);
        for (uint32_t k = 0; k < 2; k++) opened_end(&o[k]);
        free(o);
        atomic_store(&b.retry_ns, 0);
      }
      atomic_store(&mem_fault, NULL);
      atomic_store(&blkio_test_ring_errno, 0);
      assert_int_equal(troubles, 1);
      assert_int_equal(trouble_errno, how == 2 ? ENOMEM : errnos[i]);
      assert_string_equal(err_msg(), "what was there");
      assert_int_equal(blkio_lanes(&b), 0);
      assert_int_equal(open_descriptors(), before - (how == 1));
      atomic_store(&b.retry_ns, time_ns() + BLKIO_RETRY_NS);
      check_batch(blkio_shared(&b), 100, &rng);
      assert_int_equal(blkio_lanes(&b), 0);  // not so soon
      atomic_store(&b.retry_ns, 0);
      check_batch(blkio_shared(&b), 100, &rng);
      assert_int_equal(blkio_lanes(&b), 1);
      assert_int_equal(troubles, 1);
      blkio_fini(&b);
    }
  }
}

static void test_nomem(void **state) {
  (void)state;
  struct blkio b;
  struct blkio_queue *q = NULL;
  struct blkio_writer *w = NULL;
  blkio_init(&b, env_posix(), BLKIO_AUTO);
  atomic_store(&deny_after, 0);
  atomic_store(&mem_fault, deny);
  enum remixdb_status s = blkio_queue_create(&b, &q);
  atomic_store(&mem_fault, NULL);
  FAILS(s, REMIXDB_NOMEM);
  assert_null(q);
  q = make_queue(&b);
  for (int n = 0; n < 2; n++) {
    atomic_store(&deny_after, n);
    atomic_store(&mem_fault, deny);
    s = blkio_writer_create(q, &w);
    atomic_store(&mem_fault, NULL);
    FAILS(s, REMIXDB_NOMEM);
    assert_null(w);
  }
  blkio_queue_destroy(q);
}

// ---- threads: a queue each, or the pool

static struct blkio shared;
static _Atomic uint32_t wrong;
static bool from_pool;

static void *reader(void *arg) {
  uint64_t seed = (uintptr_t)arg;
  struct blkio_queue *own = NULL;
  uint8_t *const buf = malloc(80 * 4096);
  struct blkio_read reads[80];
  if (!buf || blkio_queue_create(&shared, &own) != REMIXDB_OK) {
    atomic_fetch_add(&wrong, 1);
    free(buf);
    return NULL;
  }
  struct blkio_queue *const q = from_pool ? blkio_shared(&shared) : own;
  for (int turn = 0; turn < 20; turn++) {
    for (uint32_t i = 0; i < 80; i++)
      reads[i] = (struct blkio_read){.fd = data_fd,
                                     .path = data_path,
                                     .buf = buf + i * 4096,
                                     .len = 4096,
                                     .off = rng_next(&seed) % (DATA_LEN - 4096)};
    if (blkio_read_batch(q, reads, 80) != REMIXDB_OK) atomic_fetch_add(&wrong, 1);
    for (uint32_t i = 0; i < 80; i++)
      if (memcmp(reads[i].buf, data + reads[i].off, 4096) != 0) atomic_fetch_add(&wrong, 1);
  }
  blkio_queue_destroy(own);
  free(buf);
  return NULL;
}

#define READERS 6u

static void test_threads(void **state) {
  (void)state;
  for (size_t k = 0; k < 2 * KINDS; k++) {
    pthread_t t[READERS];
    from_pool = k >= KINDS;
    blkio_init(&shared, env_posix(), kinds[k % KINDS]);
    shared.lanes_max = POOL;
    shared.direct = k % 2;
    const bool lanes = shared.kind == BLKIO_URING || (shared.kind == BLKIO_AIO && shared.direct);
    atomic_store(&wrong, 0);
    for (uint32_t i = 0; i < READERS; i++) OK(thread_start(&t[i], reader, (void *)(uintptr_t)(i + 1), "reader"));
    for (uint32_t i = 0; i < READERS; i++) (void)pthread_join(t[i], NULL);
    assert_int_equal(atomic_load(&wrong), 0);
    assert_int_equal(atomic_load(&shared.nr_reads), READERS * 20 * 80);
    assert_int_equal(atomic_load(&shared.read_bytes), READERS * 20 * 80 * 4096);
    assert_true(blkio_lanes(&shared) <= POOL);
    assert_int_equal(blkio_lanes(&shared) > 0, from_pool && lanes);
    blkio_fini(&shared);
  }
}

// A lane goes from hand to hand: each thread takes one for a few reads, thousands of times. Where there are as many
// lanes as threads, and where there are not.
static void *taker(void *arg) {
  uint64_t rng = (uintptr_t)arg;
  uint8_t buf[3][512];
  for (uint32_t turn = 0; turn < 2000; turn++) {
    struct blkio_read reads[3];
    for (uint32_t i = 0; i < 3; i++)
      reads[i] = (struct blkio_read){
          .fd = data_fd, .path = data_path, .buf = buf[i], .len = 512, .off = rng_next(&rng) % (DATA_LEN - 512)};
    if (blkio_read_batch(blkio_shared(&shared), reads, 3) != REMIXDB_OK) atomic_fetch_add(&wrong, 1);
    for (uint32_t i = 0; i < 3; i++)
      if (memcmp(buf[i], data + reads[i].off, 512) != 0) atomic_fetch_add(&wrong, 1);
  }
  return NULL;
}

static void test_handed_on(void **state) {
  (void)state;
  for (size_t k = 0; k < 3 * KINDS; k++) {
    pthread_t t[READERS];
    blkio_init(&shared, env_posix(), kinds[k / 3]);
    shared.lanes_max = k % 3 == 0 ? 1 : k % 3 == 1 ? POOL : BLKIO_LANES_MAX;
    atomic_store(&wrong, 0);
    for (uint32_t i = 0; i < READERS; i++) OK(thread_start(&t[i], taker, (void *)(uintptr_t)(i + 1), "taker"));
    for (uint32_t i = 0; i < READERS; i++) (void)pthread_join(t[i], NULL);
    assert_int_equal(atomic_load(&wrong), 0);
    assert_true(blkio_lanes(&shared) <= shared.lanes_max && blkio_lanes(&shared) <= READERS);
    blkio_fini(&shared);
  }
}

// Where reads come from the disk, a batch without a lane is read at its end, in one trip; not under direct I/O. AIO has
// lanes for direct I/O alone.
static void test_cold(void **state) {
  (void)state;
  static struct opened one;
  uint64_t rng = 9;
  fake_reset(true);
  for (uint32_t n = 0; n < 3; n++) {
    struct blkio b;
    const uint32_t direct = n == 1;
    atomic_store(&blkio_test_cold, 2);
    blkio_init(&b, &fake, n == 2 ? BLKIO_AIO : BLKIO_SYNC);
    atomic_store(&blkio_test_cold, 1);
    b.direct = direct;
    const uint32_t before = atomic_load(&fake_reads);
    opened_add(&one, &b, &rng);
    assert_int_equal(atomic_load(&fake_reads), before + (direct ? 4 : 0));
    opened_end(&one);
    assert_int_equal(atomic_load(&fake_reads), before + 4);
    assert_int_equal(atomic_load(&b.nr_trips), direct ? 4 : 1);
    assert_int_equal(blkio_lanes(&b), 0);
    blkio_fini(&b);
  }
}

// Where reads come from the disk, a ring takes the reads of a batch two at a time.
static void test_turns(void **state) {
  (void)state;
  static const uint32_t nrs[] = {2, 3, 4, 5, 31, BLKIO_READS_MAX, 300};
  uint64_t rng = 10;
  for (uint32_t cold = 0; cold < 2; cold++) {
    for (uint32_t i = 0; i < sizeof(nrs) / sizeof(nrs[0]); i++) {
      struct blkio b;
      blkio_init(&b, env_posix(), BLKIO_URING);
      b.cold = cold ? 256 : 0;
      check_batch(blkio_shared(&b), nrs[i], &rng);
      const uint64_t turns = atomic_load(&b.nr_turns), least = (nrs[i] + 1) / 2;
      assert_int_equal(atomic_load(&b.nr_trips), b.kind == BLKIO_URING || cold ? 1 : nrs[i]);
      if (b.kind != BLKIO_URING) assert_int_equal(turns, 0);
      else if (nrs[i] <= BLKIO_READS_MAX) assert_int_equal(turns, cold ? least : 1);
      else assert_in_range(turns, cold ? least : 2, nrs[i]);  // reads make room for others as they end, if one by one
      blkio_fini(&b);
    }
  }
}

// A few reads that take long make it cold; many that do not make it warm again.
static void test_cold_learned(void **state) {
  (void)state;
  struct blkio b;
  uint8_t buf[4096];
  fake_reset(true);
  blkio_init(&b, &fake, BLKIO_SYNC);
  for (uint32_t i = 0; i < 100; i++) OK(blkio_read_one(&b, data_fd, data_path, buf, sizeof(buf), 0));
  assert_false(blkio_cold(&b));
  b.disk_ns = 0;
  for (uint32_t i = 0; i < 8; i++) OK(blkio_read_one(&b, data_fd, data_path, buf, sizeof(buf), 0));
  assert_true(blkio_cold(&b));
  b.disk_ns = UINT64_MAX;
  for (uint32_t i = 0; i < 16; i++) OK(blkio_read_one(&b, data_fd, data_path, buf, sizeof(buf), 0));
  assert_true(blkio_cold(&b));  // one in a few dozen is enough to care
  for (uint32_t i = 0; i < 300; i++) OK(blkio_read_one(&b, data_fd, data_path, buf, sizeof(buf), 0));
  assert_false(blkio_cold(&b));
  blkio_fini(&b);
}

static uint32_t advised;
static int count_advice(struct env *e, int fd, uint64_t off, uint64_t len, enum env_advice advice) {
  (void)e, (void)fd, (void)off, (void)len;
  advised += advice == ENV_WILL_NEED;
  return 0;
}

// So do batches without a lane. Reads past the page cache, and those of a worker, tell nothing.
static void test_cold_learned_by_batches(void **state) {
  (void)state;
  struct blkio b;
  struct blkio_queue *own;
  uint8_t buf[2][512];
  struct blkio_read reads[2];
  for (uint32_t i = 0; i < 2; i++)
    reads[i] = (struct blkio_read){.fd = data_fd, .path = data_path, .buf = buf[i], .len = 512, .off = i};
  fake_reset(true);
  blkio_init(&b, &fake, BLKIO_SYNC);
  OK(blkio_queue_create(&b, &own));
  b.disk_ns = 0;
  for (uint32_t i = 0; i < 8; i++) OK(blkio_read_batch(own, reads, 2));
  reads[0].past = reads[1].past = true;
  for (uint32_t i = 0; i < 8; i++) OK(blkio_read_batch(blkio_shared(&b), reads, 2));
  assert_int_equal(atomic_load(&b.cold), 0);
  reads[1].past = false;
  for (uint32_t i = 0; i < 8; i++) OK(blkio_read_batch(blkio_shared(&b), reads, 2));
  assert_true(blkio_cold(&b));
  // The system was told of most reads, so how soon they are there says nothing.
  const uint32_t cold = atomic_load(&b.cold);
  b.disk_ns = UINT64_MAX;
  // A batch that reads at once times its first read alone.
  atomic_store(&b.cold, 15);
  struct blkio_batch two;
  blkio_batch_begin(&two, blkio_shared(&b), reads, NULL, NULL);
  reads[0].past = false;
  blkio_batch_add(&two, 1);
  blkio_batch_add(&two, 1);
  OK(blkio_batch_end(&two));
  assert_int_equal(atomic_load(&b.cold), 14);
  atomic_store(&b.cold, cold);
  // The system is told of all reads but the first of each eighth batch.
  fake_ops.advise = count_advice;
  advised = 0;
  atomic_store(&b.nr_trips, 0);
  for (uint32_t i = 0; i < 8; i++) OK(blkio_read_batch(blkio_shared(&b), reads, 2));
  assert_int_equal(advised, 8 * 2 - 1);
  atomic_store(&b.cold, cold);
  atomic_store(&b.nr_trips, 1);
  for (uint32_t i = 0; i < 6; i++) OK(blkio_read_batch(blkio_shared(&b), reads, 2));
  assert_int_equal(atomic_load(&b.cold), cold);
  for (uint32_t i = 0; i < 300; i++) OK(blkio_read_batch(blkio_shared(&b), reads, 2));
  assert_false(blkio_cold(&b));
  blkio_queue_destroy(own);
  blkio_fini(&b);
}

// Fills the pipe a little later. A process of its own does that: valgrind 3.19 runs no other thread of a process while
// one waits in a ring.
static pid_t fill_pipe(int fd) {
  static const uint8_t bytes[512];
  const pid_t pid = fork();
  if (pid != 0) return pid;
  time_sleep_ns(3000000);
  _exit(write(fd, bytes, sizeof(bytes)) == sizeof(bytes) ? 0 : 1);
}

// A batch waits for a read past the page cache, after all others came from memory. How long that took tells nothing.
// Rings of some file systems, such as tmpfs, end no read at once: a batch counts only if that read had ended.
static void test_cold_beside_past(void **state) {
  (void)state;
  struct blkio b;
  uint8_t buf[2][512];
  int ends[2];
  uint32_t counted = 0;
  blkio_init(&b, env_posix(), BLKIO_URING);
  if (b.kind != BLKIO_URING) {
    blkio_fini(&b);
    skip();
  }
  assert_int_equal(pipe(ends), 0);
  b.disk_ns = 1000;
  for (uint32_t i = 0; i < 20; i++) {
    struct blkio_read reads[2] = {{.fd = data_fd, .path = data_path, .buf = buf[0], .len = 512, .off = 0},
                                  {.fd = ends[0], .path = "pipe", .buf = buf[1], .len = 512, .past = true}};
    struct blkio_batch batch;
    const pid_t filler = fill_pipe(ends[1]);
    assert_true(filler > 0);
    blkio_batch_begin(&batch, blkio_shared(&b), reads, NULL, NULL);
    blkio_batch_add(&batch, 2);
    const bool ended = batch.through_left == 0;
    const uint32_t cold = atomic_load(&b.cold);
    OK(blkio_batch_end(&batch));
    int status = 1;
    assert_int_equal(waitpid(filler, &status, 0), filler);
    assert_int_equal(status, 0);
    if (ended) assert_true(atomic_load(&b.cold) <= cold);
    counted += ended;
  }
  assert_true(close(ends[0]) == 0 && close(ends[1]) == 0);
  blkio_fini(&b);
  if (counted == 0) skip();
}

static uint64_t place_at(void *arg, uint64_t len, bool all) {
  uint64_t *const told = arg;
  told[0] = len;
  told[1] = all;
  return 3 * BLKIO_ALIGN;
}

// A part that is written past the page cache: a few pieces, of whole pages, and nothing is cut.
static void test_part_direct(void **state) {
  (void)state;
  enum { LEN = 4 * BLKIO_DIRECT_BUF + 100 };
  struct simdisk *const d = simdisk_create();
  struct env *const e = simdisk_env(d);
  struct blkio io;
  struct blkio_queue *q;
  struct blkio_writer *w;
  int fd;
  uint64_t told[2] = {0, 1};
  blkio_init(&io, e, BLKIO_SYNC);
  OK(blkio_queue_create(&io, &q));
  OK(blkio_writer_create(q, &w));
  OK(env_create(simdisk_dir(e, "/"), "part", ENV_WRITE | ENV_DIRECT, &fd));
  uint8_t *const bytes = malloc(LEN), *const back = malloc(LEN + BLKIO_ALIGN);
  assert_true(bytes && back);
  for (uint32_t i = 0; i < LEN; i++) bytes[i] = (uint8_t)(i * 7 + i / 251 + 1);
  blkio_writer_start_part(w, fd, "part", true, place_at, told);
  blkio_writer_put(w, bytes, LEN);
  OK(blkio_writer_finish(w, false));
  assert_true(told[0] == BLKIO_DIRECT_BUF && told[1] == 0);
  assert_int_equal(simdisk_calls(d, SIMDISK_WRITE), 5);
  assert_int_equal(simdisk_calls(d, SIMDISK_TRUNCATE), 0);
  assert_int_equal(simdisk_refused(d), 0);
  assert_int_equal(simdisk_direct(d), 4 * BLKIO_DIRECT_BUF + BLKIO_ALIGN);
  assert_int_equal(atomic_load(&io.past_bytes), 4 * BLKIO_DIRECT_BUF + BLKIO_ALIGN);
  assert_int_equal(simdisk_size(d, "part"), 3 * BLKIO_ALIGN + 4 * BLKIO_DIRECT_BUF + BLKIO_ALIGN);
  assert_true(simdisk_peek(d, "part", 3 * BLKIO_ALIGN, back, 4 * BLKIO_DIRECT_BUF + BLKIO_ALIGN));
  assert_memory_equal(back, bytes, LEN);
  for (uint32_t i = LEN; i < 4 * BLKIO_DIRECT_BUF + BLKIO_ALIGN; i++) assert_int_equal(back[i], 0);
  // the next file of the writer, through the page cache: large pieces again
  blkio_writer_start(w, fd, "part", false);
  blkio_writer_put(w, bytes, LEN);
  OK(blkio_writer_finish(w, false));
  assert_int_equal(simdisk_calls(d, SIMDISK_WRITE), 5 + 3);
  OK(env_close(e, fd, "part"));
  blkio_writer_destroy(w);
  blkio_queue_destroy(q);
  blkio_fini(&io);
  free(bytes);
  free(back);
  simdisk_destroy(d);
}

// A worker's reads tell nothing of readers'.
static void test_aside(void **state) {
  (void)state;
  struct simdisk *const d = simdisk_create();
  struct env *const e = simdisk_env(d);
  struct blkio io;
  struct blkio_queue *q;
  uint8_t buf[100] = {0};
  int fd;
  blkio_init(&io, e, BLKIO_SYNC);
  io.disk_ns = 0;  // any read comes from the disk
  OK(blkio_queue_create(&io, &q));
  OK(env_create(simdisk_dir(e, "/"), "file", ENV_READ | ENV_WRITE, &fd));
  OK(env_write(e, fd, "file", buf, sizeof(buf), 0));
  for (uint32_t i = 0; i < 16; i++) {
    struct blkio_read r = {.fd = fd, .path = "file", .buf = buf, .len = 50, .off = i};
    OK(blkio_read_aside(&io, fd, "file", buf, 50, i));
    OK(blkio_read_batch(q, &r, 1));
  }
  FAILS(blkio_read_aside(&io, fd, "file", buf, 50, 60), REMIXDB_CORRUPT);
  assert_int_equal(atomic_load(&io.nr_reads), 33);
  assert_int_equal(atomic_load(&io.nr_trips), 33);
  assert_false(blkio_cold(&io));
  OK(blkio_read_one(&io, fd, "file", buf, 50, 0));
  assert_true(blkio_cold(&io));
  OK(env_close(e, fd, "file"));
  blkio_queue_destroy(q);
  blkio_fini(&io);
  simdisk_destroy(d);
}

int main(void) {
  atomic_store(&blkio_test_cold, 1);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_parse, reset),
      cmocka_unit_test_setup(test_fallback, reset),
      cmocka_unit_test_setup(test_read_batch, reset),
      cmocka_unit_test_setup(test_read_parts, reset),
      cmocka_unit_test_setup(test_read_direct, reset),
      cmocka_unit_test_setup(test_read_failures, reset),
      cmocka_unit_test_setup(test_read_fake, reset),
      cmocka_unit_test_setup(test_write, reset),
      cmocka_unit_test_setup(test_mixed, reset),
      cmocka_unit_test_setup(test_write_failure, reset),
      cmocka_unit_test_setup(test_write_fake, reset),
      cmocka_unit_test_setup(test_write_aligned, reset),
      cmocka_unit_test_setup(test_write_short, reset),
      cmocka_unit_test_setup(test_ring_lost, reset),
      cmocka_unit_test_setup(test_engine_fails, reset),
      cmocka_unit_test_setup(test_nomem, reset),
      cmocka_unit_test_setup(test_threads, reset),
      cmocka_unit_test_setup(test_write_out, reset),
      cmocka_unit_test_setup(test_write_ajar, reset),
      cmocka_unit_test_setup(test_pool, reset),
      cmocka_unit_test(test_part_direct),
      cmocka_unit_test(test_aside),
      cmocka_unit_test(test_cold),
      cmocka_unit_test_setup(test_turns, reset),
      cmocka_unit_test(test_cold_learned),
      cmocka_unit_test(test_cold_beside_past),
      cmocka_unit_test(test_cold_learned_by_batches),
      cmocka_unit_test_setup(test_flights, reset),
      cmocka_unit_test_setup(test_pool_bound, reset),
      cmocka_unit_test_setup(test_pool_trouble, reset),
      cmocka_unit_test_setup(test_handed_on, reset),
  };
  return cmocka_run_group_tests_name("blkio", tests, setup, teardown);
}
