// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#if !defined(REMIXDB_NO_URING)
#include <liburing.h>
#endif

#define PAGE 4096u
#define CHUNK (1u << 20)
#define BATCH_DEFAULT 32u

static const struct disk_work {
  const char *name, *what;
  bool sequential;  // chunks in the file's order, else pages at random places
  bool batch;       // so many at once, and no more until all are there; else always `depth` in flight
} works[] = {
    {.name = "diskread", .what = "the disk itself: random pages, --depth in flight"},
    {.name = "diskbatch", .what = "the disk itself: random pages, --batch_size asked for at once", .batch = true},
    {.name = "diskseq",
     .what = "the disk itself: the whole file by reads of 1 MiB, --depth in flight",
     .sequential = true},
};
#define NR_WORKS (sizeof(works) / sizeof(works[0]))

static const struct disk_work *find(const char *name) {
  for (size_t i = 0; i < NR_WORKS; i++)
    if (!strcmp(works[i].name, name)) return &works[i];
  return NULL;
}

bool bench_disk_known(const char *name) { return find(name) != NULL; }

const char *bench_disk_name(uint32_t i, const char **what_out) {
  if (i >= NR_WORKS) return NULL;
  *what_out = works[i].what;
  return works[i].name;
}

// Always false.
static bool told(const char *what, int error) {
  fprintf(stderr, "xdbbench: disk: %s: %s\n", what, strerror(error));
  return false;
}

// ---- the file

static int open_direct(const char *path, int flags) {
#ifdef O_DIRECT
  return open(path, flags | O_DIRECT | O_CLOEXEC, 0644);
#else
  (void)path, (void)flags;
  errno = EOPNOTSUPP;
  return -1;
#endif
}

// Bytes that no disk compresses or leaves out.
static void fill_chunk(uint8_t *chunk, uint64_t *random) {
  for (uint32_t i = 0; i < CHUNK; i += 8) {
    const uint64_t v = bench_random(random);
    memcpy(chunk + i, &v, 8);
  }
}

static bool write_chunks(int fd, uint64_t bytes, uint8_t *chunk) {
  uint64_t random = bytes;
  for (uint64_t at = 0; at < bytes; at += CHUNK) {
    const uint32_t len = bytes - at < CHUNK ? (uint32_t)(bytes - at) : CHUNK;
    fill_chunk(chunk, &random);
    const ssize_t n = pwrite(fd, chunk, len, (off_t)at);
    if (n != (ssize_t)len) return told("write", n < 0 ? errno : ENOSPC);
  }
  return fsync(fd) == 0 || told("fsync", errno);
}

bool bench_disk_prepare(const char *path, uint64_t bytes) {
  struct stat st;
  bytes = bytes < CHUNK ? CHUNK : bytes & ~(uint64_t)(PAGE - 1);
  if (!stat(path, &st) && (uint64_t)st.st_size == bytes) return true;
  const int fd = open_direct(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (fd < 0) return told(path, errno);
  void *chunk = NULL;
  const int rc = posix_memalign(&chunk, PAGE, CHUNK);
  bool good = rc ? told("memory", rc) : write_chunks(fd, bytes, chunk);
  free(chunk);
  if (close(fd)) good = told("close", errno);
  return good;
}

bool bench_disk_remove(const char *path) { return !unlink(path) || errno == ENOENT || told(path, errno); }

// ---- the loops

#if !defined(REMIXDB_NO_URING)
struct loop {
  const struct disk_work *work;
  struct io_uring ring;
  int fd;
  uint32_t depth, len;    // reads in flight, bytes of one
  uint64_t pages;         // pages of the file
  uint64_t total, asked;  // reads
  uint64_t random;
  uint8_t *memory;                       // len bytes for each in flight
  uint64_t began[BENCH_DISK_DEPTH_MAX];  // ticks
  struct bench_result *result;
};

static void ask(struct loop *l, uint32_t slot) {
  struct io_uring_sqe *const sqe = io_uring_get_sqe(&l->ring);  // there are as many as reads in flight
  const uint64_t at = l->work->sequential ? l->asked * CHUNK : bench_random_below(&l->random, l->pages) * PAGE;
  io_uring_prep_read(sqe, l->fd, l->memory + (size_t)slot * l->len, l->len, at);
  io_uring_sqe_set_data64(sqe, slot);
  l->began[slot] = bench_tick();
  l->asked++;
}

// Takes one read that has ended. False: it failed, told.
static bool take(struct loop *l, uint32_t *slot_out) {
  struct io_uring_cqe *cqe;
  int rc = io_uring_wait_cqe(&l->ring, &cqe);
  if (rc) return told("wait", -rc);
  *slot_out = (uint32_t)io_uring_cqe_get_data64(cqe);
  rc = cqe->res;
  io_uring_cqe_seen(&l->ring, cqe);
  if (rc <= 0 || (!l->work->sequential && rc != (int)l->len)) return told("read", rc < 0 ? -rc : EIO);
  l->result->ops++;
  l->result->bytes_read += (uint64_t)rc;
  return true;
}

static bool submit(struct loop *l, uint32_t wait_for) {
  const int rc = io_uring_submit_and_wait(&l->ring, wait_for);
  return rc >= 0 || told("submit", -rc);
}

static bool run_batches(struct loop *l) {
  while (l->asked < l->total) {
    uint32_t slot;
    const uint64_t t0 = bench_tick();
    for (slot = 0; slot < l->depth; slot++) ask(l, slot);
    if (!submit(l, l->depth)) return false;
    for (uint32_t i = 0; i < l->depth; i++)
      if (!take(l, &slot)) return false;
    bench_hist_add(&l->result->read, bench_tick() - t0);
  }
  return true;
}

static bool run_in_flight(struct loop *l) {
  uint32_t in_flight = 0, slot;
  while (in_flight < l->depth && l->asked < l->total) ask(l, in_flight++);
  while (in_flight) {
    if (!submit(l, 1)) return false;
    for (uint32_t ready = io_uring_cq_ready(&l->ring); ready; ready--) {
      if (!take(l, &slot)) return false;
      bench_hist_add(&l->result->read, bench_tick() - l->began[slot]);
      if (l->asked < l->total) ask(l, slot);
      else in_flight--;
    }
  }
  return true;
}

static bool run_loop(struct loop *l) {
  const struct bench_thread_usage used = bench_thread_usage_get();
  const uint64_t t0 = bench_time_ns();
  const bool good = l->work->batch ? run_batches(l) : run_in_flight(l);
  l->result->seconds = (double)(bench_time_ns() - t0) / 1e9;
  bench_thread_usage_add(&l->result->used, &used, 1);
  l->result->reads = l->result->records = l->result->ops;
  bench_hist_merge(&l->result->all, &l->result->read);
  return good;
}

static bool run_file(struct loop *l, const struct bench_params *p) {
  struct stat st;
  if (fstat(l->fd, &st)) return told("stat", errno);
  l->pages = (uint64_t)st.st_size / PAGE;
  l->total = l->work->sequential ? ((uint64_t)st.st_size + CHUNK - 1) / CHUNK : p->ops ? p->ops : 10000;
  const int rc = posix_memalign((void **)&l->memory, PAGE, (size_t)l->depth * l->len);
  if (rc) return told("memory", rc);
  const int failed = io_uring_queue_init(l->depth, &l->ring, 0);
  const bool none = failed == -ENOSYS || failed == -EPERM;  // as in a program that was built without rings
  const bool good = !failed ? run_loop(l) : none || told("io_uring", -failed);
  if (!failed) io_uring_queue_exit(&l->ring);  // waits for reads in flight
  free(l->memory);
  return good;
}

bool bench_disk(const char *path, const char *name, const struct bench_params *p, uint64_t seed,
                struct bench_result *result) {
  struct loop l = {.work = find(name), .random = seed, .result = result};
  *result = (struct bench_result){0};
  l.depth = !l.work->batch ? p->depth : p->batch_size ? p->batch_size : BATCH_DEFAULT;
  l.len = l.work->sequential ? CHUNK : PAGE;
  l.fd = open_direct(path, O_RDONLY);
  if (l.fd < 0) return told(path, errno);
  const bool good = run_file(&l, p);
  close(l.fd);
  return good;
}
#else
bool bench_disk(const char *path, const char *name, const struct bench_params *p, uint64_t seed,
                struct bench_result *result) {
  (void)path, (void)name, (void)p, (void)seed;
  *result = (struct bench_result){0};
  return true;
}
#endif
