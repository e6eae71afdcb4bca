// SPDX-License-Identifier: Apache-2.0
//
// Flows: reads that begin and end one by one over many calls, with each engine.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/check.h"
#include "tests/lib/fault.h"
#include "tests/lib/temp.h"

#include "blkio.h"

#define DATA ((size_t)2 << 20)
#define LEN 512u
#define READS 700u

static const enum blkio_kind kinds[] = {BLKIO_URING, BLKIO_AIO, BLKIO_SYNC};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static char dir[TEMP_DIR], path[TEMP_DIR + 8];
static uint8_t *data;

static int setup(void **state) {
  (void)state;
  uint64_t rng = 7;
  data = malloc(DATA);
  if (!data || !temp_make(dir, "flow")) return -1;
  for (size_t i = 0; i < DATA; i += 8) store64le(data + i, rng_next(&rng));
  (void)snprintf(path, sizeof(path), "%s/data", dir);
  FILE *const f = fopen(path, "w");
  return f && fwrite(data, DATA, 1, f) == 1 && fclose(f) == 0 ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  free(data);
  return remove_tree(dir);
}

static struct blkio_read reads[READS];
static uint8_t bufs[READS][LEN];
static bool taken[READS];
static uint32_t nr_out;  // added and not taken

static void add(struct blkio_flow *f, int fd, uint32_t i, uint64_t off) {
  memset(bufs[i], 0, LEN);
  taken[i] = false;
  reads[i] = (struct blkio_read){.fd = fd, .path = path, .buf = bufs[i], .len = LEN, .off = off};
  blkio_flow_add(f, &reads[i]);
  nr_out++;
}

// Takes the reads that have ended. Returns their number.
static uint32_t take(struct blkio_flow *f, bool wait) {
  uint32_t good = 0;
  struct blkio_read *r;
  while ((r = blkio_flow_take(f, wait)) != NULL) {
    const size_t i = (size_t)(r - reads);
    CHECK(i < READS && !taken[i] && (r->status == REMIXDB_OK || r->status == REMIXDB_ABORTED));
    taken[i] = true;
    nr_out--;
    if (r->status != REMIXDB_OK) continue;
    CHECK(memcmp(bufs[i], data + r->off, LEN) == 0);
    good++;
  }
  CHECK(!wait || nr_out == 0);
  return good;
}

static struct blkio_flow *make(struct blkio *b, enum blkio_kind kind, uint32_t depth) {
  struct blkio_flow *f;
  blkio_init(b, env_posix(), kind);
  OK(blkio_flow_create(b, depth, &f));
  CHECK(blkio_flow_works(f) == (b->kind != BLKIO_SYNC) && blkio_flow_lasts(f) == (b->kind == BLKIO_URING));
  nr_out = 0;
  return f;
}

// A flow takes as many reads as it was made for, keeps them over calls, and counts a trip per submission. Under
// io_uring the descriptor may be closed, and serve another file, once they are handed over.
static void test_reads(void **state) {
  (void)state;
  for (size_t k = 0; k < KINDS; k++) {
    struct blkio b;
    struct blkio_flow *const f = make(&b, kinds[k], READS);
    CHECK(!blkio_flow_take(f, true) && !blkio_flow_take(f, false));
    uint64_t rng = k + 1;
    uint32_t most = 0;
    for (uint32_t turn = 0; turn < 3; turn++) {
      const int fd = open(path, O_RDONLY | O_CLOEXEC);
      CHECK(fd >= 0);
      uint32_t nr = 0;
      for (; nr < READS && blkio_flow_has_room(f); nr++) {
        add(f, fd, nr, rng_next(&rng) % (DATA - LEN));
        if (nr % 100 == 99) blkio_flow_submit(f);
      }
      blkio_flow_submit(f);
      if (turn == 0) most = nr;
      CHECK(nr == most);
      if (blkio_flow_lasts(f)) CHECK(dup2(STDIN_FILENO, fd) == fd);
      CHECK(take(f, true) == nr);
      (void)close(fd);
    }
    CHECK(most == (b.kind == BLKIO_URING ? READS : b.kind == BLKIO_AIO ? BLKIO_READS_MAX : 0));
    CHECK(atomic_load(&b.nr_reads) == 3 * most);
    CHECK(atomic_load(&b.nr_trips) == 3 * ((most + 99) / 100));
    blkio_flow_destroy(f);
  }
}

// A read that the engine cannot do, or not all of it, comes back as such, and hurts no other read.
static void test_short(void **state) {
  (void)state;
  const int fd = open(path, O_RDONLY | O_CLOEXEC), closed = dup(fd);
  (void)close(closed);
  for (size_t k = 0; k < KINDS; k++) {
    struct blkio b;
    struct blkio_flow *const f = make(&b, kinds[k], 60);
    if (!blkio_flow_works(f)) {
      blkio_flow_destroy(f);
      continue;
    }
    for (uint32_t i = 0; i < 60; i++) add(f, i % 20 == 3 ? closed : fd, i, i % 20 == 5 ? DATA - LEN / 2 : i * 1000);
    blkio_flow_submit(f);
    CHECK(take(f, true) == 54);
    for (uint32_t i = 0; i < 60; i++) CHECK((reads[i].status == REMIXDB_OK) == (i % 20 != 3 && i % 20 != 5));
    blkio_flow_destroy(f);
  }
  (void)close(fd);
}

static void test_bell(void **state) {
  (void)state;
#if !defined(__linux__)
  skip();  // there is no eventfd
#endif
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  for (size_t k = 0; k < KINDS; k++) {
    struct blkio b;
    struct blkio_flow *const f = make(&b, kinds[k], 60);
    struct pollfd p = {.fd = -1, .events = POLLIN};
    int again;
    blkio_flow_ring_bell(f);  // there is none
    blkio_flow_clear_bell(f);
    OK(blkio_flow_bell(f, &p.fd));
    OK(blkio_flow_bell(f, &again));
    CHECK(again == p.fd && poll(&p, 1, 0) == 0);
    for (uint32_t turn = 0; turn < 3; turn++) {
      blkio_flow_ring_bell(f);
      CHECK(poll(&p, 1, 0) == 1);
      blkio_flow_clear_bell(f);
      blkio_flow_clear_bell(f);
      CHECK(poll(&p, 1, 0) == 0);
    }
    if (blkio_flow_lasts(f)) {
      for (uint32_t i = 0; i < 60; i++) add(f, fd, i, i * 1000);
      CHECK(poll(&p, 1, 0) == 0);
      blkio_flow_submit(f);
      CHECK(poll(&p, 1, -1) == 1);
      CHECK(take(f, true) == 60);
    }
    blkio_flow_destroy(f);
  }
  (void)close(fd);
}

// A ring that is refused at the beginning, or lost with reads in flight and with reads that are not handed over.
static void test_lost(void **state) {
  (void)state;
  static const int errnos[] = {EBADF, EAGAIN, ENOMEM, EINTR};
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  for (size_t e = 0; e < sizeof(errnos) / sizeof(errnos[0]); e++) {
    struct blkio b;
    struct blkio_flow *f = make(&b, BLKIO_URING, 60);
    const bool ring = blkio_flow_lasts(f);
    for (uint32_t i = 0; ring && i < 60; i++) {
      add(f, fd, i, i * 1000);
      if (i == 29) blkio_flow_submit(f);
    }
    atomic_store(&blkio_test_ring_errno, errnos[e]);
    blkio_flow_submit(f);
    if (ring) CHECK(!blkio_flow_works(f) && !blkio_flow_has_room(f));
    if (ring) CHECK(take(f, true) == 30);
    blkio_flow_destroy(f);
    OK(blkio_flow_create(&b, 60, &f));
    if (ring) CHECK(!blkio_flow_works(f));
    blkio_flow_destroy(f);
    atomic_store(&blkio_test_ring_errno, 0);
    blkio_fini(&b);
  }
  (void)close(fd);
}

// The end waits for the reads in flight: their memory is the kernel's.
static void test_end(void **state) {
  (void)state;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  for (size_t k = 0; k < KINDS; k++) {
    for (uint32_t part = 0; part < 3; part++) {
      struct blkio b;
      struct blkio_flow *const f = make(&b, kinds[k], 60);
      for (uint32_t i = 0; part && i < 60 && blkio_flow_has_room(f); i++) add(f, fd, i, i * 1000);
      if (part == 2) blkio_flow_submit(f);
      blkio_flow_destroy(f);
    }
  }
  blkio_flow_destroy(NULL);
  (void)close(fd);
}

static void test_nomem(void **state) {
  (void)state;
  struct blkio b;
  struct blkio_flow *f;
  blkio_init(&b, env_posix(), BLKIO_AUTO);
  fault_mem_set(1);
  const enum remixdb_status s = blkio_flow_create(&b, 10, &f);
  CHECK(fault_mem_end());
  FAILS(s, REMIXDB_NOMEM);
  fault_mem_set(2);  // without memory for a lane it takes no reads
  OK(blkio_flow_create(&b, 10, &f));
  CHECK(fault_mem_end() == (b.kind != BLKIO_SYNC) && !blkio_flow_works(f) && !blkio_flow_has_room(f));
  blkio_flow_destroy(f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_reads), cmocka_unit_test(test_short), cmocka_unit_test(test_bell),
      cmocka_unit_test(test_lost),  cmocka_unit_test(test_end),   cmocka_unit_test(test_nomem),
  };
  return cmocka_run_group_tests_name("blkio_flow", tests, setup, teardown);
}
