// SPDX-License-Identifier: Apache-2.0
//
// Large blocks of memory: mappings of their own, kept ones, and the counts.
#include "base/thread.h"
#include "tests/lib/check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fork.h"
#include "tests/lib/slow.h"

#define BLOCK ((size_t)64 << 10)
#define KEEP ((size_t)1 << 20)

static struct mem_stats stats(void) {
  struct mem_stats s;
  mem_stats(&s);
  return s;
}

// Whether the page at p is mapped.
static bool mapped(void *p) {
#if defined(__linux__)
  unsigned char in;
  return mincore(p, 4096, &in) == 0;
#else
  return msync(p, 4096, MS_ASYNC) == 0;
#endif
}

static size_t page(void) { return (size_t)sysconf(_SC_PAGESIZE); }

// A large block begins at a page, takes whole pages and no more, and goes back to the system when it is freed.
static void test_large(void **state) {
  (void)state;
  const struct mem_stats was = stats();
  uint8_t *const p = mem_alloc(BLOCK + 1), *const q = mem_calloc(BLOCK, 2), *const r = mem_alloc_aligned(64, BLOCK);
  CHECK(p && q && r);
  CHECK((uintptr_t)p % page() == 0 && (uintptr_t)q % page() == 0 && (uintptr_t)r % page() == 0);
  for (size_t i = 0; i < 2 * BLOCK; i++) CHECK(q[i] == 0);
  memset(p, 1, BLOCK + 1);
  struct mem_stats now = stats();
  CHECK(now.large - was.large == 4 * BLOCK + page() && now.nr_large - was.nr_large == 3);
  CHECK(now.heap == was.heap && now.kept == 0);
  mem_free(q);
  mem_free(p);
  mem_free(r);
  CHECK(!mapped(p) && !mapped(q) && !mapped(r));
  now = stats();
  CHECK(now.large == was.large && now.nr_large == was.nr_large && now.kept == 0);
}

// A small block, one that needs more than a page's alignment, and one that happens to begin at a page, are the heap's.
static void test_small(void **state) {
  (void)state;
  const struct mem_stats was = stats();
  void *const p = mem_alloc(BLOCK / 2 - 1), *const q = mem_alloc_aligned(page(), 100),
              *const r = mem_alloc_aligned(2 * page(), 2 * BLOCK);
  CHECK(p && q && r && (uintptr_t)q % page() == 0 && (uintptr_t)r % (2 * page()) == 0);
  const struct mem_stats now = stats();
  CHECK(now.nr_large == was.nr_large && now.heap >= was.heap + 2 * BLOCK + BLOCK / 2 - 1 + 100);
  mem_free(p);
  mem_free(q);
  mem_free(r);
  CHECK(stats().heap == was.heap);
}

#define SHORT 2000u

// Frees so many small blocks. Returns whether the system has back what the heap kept of them after a trim.
static bool heap_back(uint32_t nr) {
  void **const blocks = malloc(nr * sizeof(*blocks));
  CHECK(blocks);
  for (uint32_t i = 0; i < nr; i++) {
    CHECK(blocks[i] = mem_alloc(SHORT));
    memset(blocks[i], 1, SHORT);
  }
  void *const end = mem_alloc(SHORT);  // the heap gives its end back by itself
  CHECK(end);
  for (uint32_t i = 0; i < nr; i++) mem_free(blocks[i]);
  mem_trim();
  unsigned char in = 1;
  const uintptr_t middle = (uintptr_t)blocks[nr / 2] & ~(uintptr_t)(page() - 1);
#if defined(__GLIBC__)
  CHECK(mincore((void *)middle, 1, &in) == 0);
#endif
  mem_free(end);
  free((void *)blocks);
  return !(in & 1);
}

// A trim takes what the heap keeps only if that is much.
static void test_heap_back(void **state) {
  (void)state;
#if defined(__GLIBC__)
  if (LIB_SANITIZED) skip();
  mem_trim();
  CHECK(!heap_back(500) && heap_back(5000) && !heap_back(500));
#else
  skip();
#endif
}

// Freed blocks serve again, whole or in parts, zeroed if that is asked for, and within the limit.
static void test_kept(void **state) {
  (void)state;
  const struct mem_stats was = stats();
  mem_keep(KEEP);
  uint8_t *const p = mem_alloc(4 * BLOCK);
  CHECK(p);
  memset(p, 7, 4 * BLOCK);
  mem_free(p);
  CHECK(stats().kept == 4 * BLOCK && mapped(p));
  uint8_t *const q = mem_calloc(1, 3 * BLOCK), *const r = mem_calloc(1, BLOCK);
  CHECK(q >= p && q < p + 4 * BLOCK && r >= p && r < p + 4 * BLOCK);
  for (size_t i = 0; i < 3 * BLOCK; i++) CHECK(q[i] == 0);
  for (size_t i = 0; i < BLOCK; i++) CHECK(r[i] == 0);
  CHECK(stats().nr_reused - was.nr_reused == 2 && stats().kept == 0);
  mem_free(q);
  mem_free(r);
  void *many[10];
  for (uint32_t i = 0; i < 10; i++) CHECK((many[i] = mem_alloc(3 * BLOCK)));
  for (uint32_t i = 0; i < 10; i++) mem_free(many[i]);
  CHECK(stats().kept <= KEEP && stats().kept >= KEEP / 2);
  void *const large = mem_alloc(KEEP / 2);
  mem_free(large);
  CHECK(!mapped(large));  // more than a quarter
  mem_trim();
  CHECK(stats().kept == 0);
  void *const last = mem_alloc(BLOCK);
  mem_free(last);
  CHECK(stats().kept == BLOCK);
  mem_keep_less(KEEP);
  CHECK(stats().kept == 0 && !mapped(last));
}

// A block of more than twice the size is not cut up: it stays for those that need it whole.
static void test_not_cut(void **state) {
  (void)state;
  const struct mem_stats was = stats();
  mem_keep(KEEP);
  uint8_t *const p = mem_alloc(4 * BLOCK);
  mem_free(p);
  uint8_t *const q = mem_alloc(BLOCK);
  CHECK(q && (q < p || q >= p + 4 * BLOCK));
  CHECK(stats().kept == 4 * BLOCK && stats().nr_reused == was.nr_reused);
  uint8_t *const r = mem_alloc(2 * BLOCK);
  CHECK(r >= p && r < p + 4 * BLOCK && stats().kept == 2 * BLOCK && stats().nr_reused - was.nr_reused == 1);
  mem_free(q);
  mem_free(r);
  mem_keep_less(KEEP);
}

// A rest of a kept block that is too small to keep goes back to the system, if the block would waste more by it.
static void test_rest(void **state) {
  (void)state;
  mem_keep(KEEP);
  const size_t rest = 3 * page();
  void *const p = mem_alloc(BLOCK / 2 + rest);
  mem_free(p);
  const size_t large = stats().large;
  uint8_t *const q = mem_alloc(BLOCK / 2);
  CHECK(q == p && stats().large - large == BLOCK / 2 && stats().kept == 0);
  CHECK(page() > 4096 || !mapped(q + BLOCK / 2));
  mem_free(q);
  mem_keep_less(KEEP);
}

// A thread in a hurry changes no mapping. It takes its block from a much larger one, and keeps a rest that another
// thread would give back. Freed blocks beyond the limit stay, too, until another thread frees one. Beyond a quarter
// more the thread unmaps them itself.
static void test_hurry(void **state) {
  (void)state;
  mem_keep(KEEP);
  uint8_t *const p = mem_alloc(4 * BLOCK);
  mem_free(p);
  uint64_t before = mem_changes();
  mem_hurry(true);
  uint8_t *const q = mem_alloc(BLOCK);
  mem_hurry(false);
  CHECK(q >= p && q < p + 4 * BLOCK && stats().kept == 3 * BLOCK && mem_changes() == before);
  mem_free(q);
  mem_trim();
  const size_t rest = 3 * page();
  mem_free(mem_alloc(BLOCK / 2 + rest));
  before = mem_changes();
  mem_hurry(true);
  uint8_t *const r = mem_alloc(BLOCK / 2);
  mem_hurry(false);
  CHECK(stats().kept == 0 && mapped(r + BLOCK / 2) && mem_changes() == before);
  mem_free(r);
  mem_trim();
  void *many[24], *last = mem_alloc(BLOCK);  // KEEP / 16 each
  for (uint32_t i = 0; i < 24; i++) many[i] = mem_alloc(BLOCK);
  before = mem_changes();
  mem_hurry(true);
  for (uint32_t i = 0; i < 20; i++) mem_free(many[i]);
  CHECK(stats().kept == KEEP + KEEP / 4 && mem_changes() == before);
  for (uint32_t i = 20; i < 24; i++) mem_free(many[i]);
  CHECK(stats().kept == KEEP + KEEP / 4 && mem_changes() == before + 4);
  mem_hurry(false);
  mem_free(last);
  CHECK(stats().kept == KEEP);
  mem_keep_less(KEEP);
  CHECK(stats().kept == 0);
}

// The same with more blocks than are kept: a thread in a hurry may keep 32 more.
static void test_hurry_many(void **state) {
  (void)state;
  enum { NR = 200, SMALL = 128, MOST = 160 };
  void *many[NR];
  mem_keep((size_t)NR * BLOCK);
  for (uint32_t i = 0; i < NR; i++) many[i] = mem_alloc(BLOCK / 2);
  mem_hurry(true);
  const uint64_t before = mem_changes();
  for (uint32_t i = 0; i < MOST; i++) mem_free(many[i]);
  CHECK(stats().kept == MOST * (BLOCK / 2) && mem_changes() == before);
  for (uint32_t i = MOST; i + 1 < NR; i++) mem_free(many[i]);
  CHECK(stats().kept == MOST * (BLOCK / 2));
  mem_hurry(false);
  mem_free(many[NR - 1]);
  CHECK(stats().kept == SMALL * (BLOCK / 2));
  mem_keep_less((size_t)NR * BLOCK);
}

// Hundreds of stores ask for more than a process has use for. It keeps 64 MiB at most, in blocks of 8 MiB at most: a
// larger one is the table of a large cache, and little of that was ever touched.
static void test_kept_most(void **state) {
  (void)state;
  enum { STORES = 200, NR = 20 };
  const size_t each = (size_t)12 << 20, block = (size_t)8 << 20, most = (size_t)64 << 20;
  for (uint32_t i = 0; i < STORES; i++) mem_keep(each);
  void *p = mem_alloc(block + page());
  mem_free(p);
  CHECK(stats().kept == 0 && !mapped(p));
  p = mem_alloc(block);
  mem_free(p);
  CHECK(stats().kept == block && mapped(p));
  void *many[NR];
  for (uint32_t i = 0; i < NR; i++) many[i] = mem_alloc(block);
  for (uint32_t i = 0; i < NR; i++) mem_free(many[i]);
  CHECK(stats().kept == most);
  for (uint32_t i = 1; i < STORES; i++) mem_keep_less(each);
  CHECK(stats().kept <= each);
  mem_keep_less(each);
  CHECK(stats().kept == 0);
}

// A zeroed block of 1 MiB or more takes no kept one, because to zero that would touch all of it. A smaller one does,
// and so does a thread in a hurry, which changes no mapping.
static void test_fresh(void **state) {
  (void)state;
  const size_t block = (size_t)1 << 20, keep = 4 * block;
  mem_keep(keep);
  uint8_t *const p = mem_alloc(block);
  CHECK(p);
  memset(p, 7, block);
  mem_free(p);
  CHECK(stats().kept == block);
  const uint64_t reused = stats().nr_reused;
  uint8_t *const fresh = mem_calloc(1, block);
  CHECK(fresh && fresh != p && stats().nr_reused == reused && stats().kept == block);
  mem_free(mem_calloc(1, block - page()));
  CHECK(stats().nr_reused == reused + 1 && stats().kept >= block - page());
  mem_trim();
  uint8_t *const q = mem_alloc(block);
  CHECK(q);
  memset(q, 7, block);
  mem_free(q);
  const uint64_t before = mem_changes();
  mem_hurry(true);
  uint8_t *const hasty = mem_calloc(1, block);
  mem_hurry(false);
  CHECK(hasty == q && mem_changes() == before);
  for (size_t i = 0; i < block; i++) CHECK(hasty[i] == 0 && fresh[i] == 0);
  mem_free(hasty);
  mem_free(fresh);
  mem_keep_less(keep);
}

static void fill(uint8_t *p, size_t from, size_t to) {
  for (size_t i = from; i < to; i++) p[i] = (uint8_t)(i * 7 + i / 251);
}

static void test_grow(void **state) {
  (void)state;
  static const size_t sizes[] = {100, BLOCK, BLOCK + 1, 40 * BLOCK, 3 * BLOCK, BLOCK / 2 - 1, 2 * BLOCK, 1, BLOCK, 0};
  const struct mem_stats was = stats();
  uint8_t *p = NULL;
  size_t has = 0;
  for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    p = mem_realloc(p, sizes[i]);
    CHECK(p);
    const size_t both = has < sizes[i] ? has : sizes[i];
    for (size_t k = 0; k < both; k++) CHECK(p[k] == (uint8_t)(k * 7 + k / 251));
    fill(p, both, sizes[i]);
    has = sizes[i];
    const struct mem_stats now = stats();
    CHECK(now.large - was.large == (has >= BLOCK / 2 ? align_up(has, page()) : 0));
    CHECK(now.nr_large - was.nr_large == (has >= BLOCK / 2));
  }
  mem_free(p);
  CHECK(stats().heap == was.heap && stats().large == was.large);
}

static bool deny(size_t size) { return size < BLOCK; }

static void test_denied(void **state) {
  (void)state;
  const struct mem_stats was = stats();
  uint8_t *const p = mem_alloc(BLOCK / 2 - 1);
  CHECK(p);
  memcpy(p, "stays", 6);
  atomic_store(&mem_fault, deny);
  void *const a = mem_alloc(BLOCK), *const b = mem_calloc(1, BLOCK), *const c = mem_alloc_aligned(64, BLOCK),
              *const d = mem_realloc(p, BLOCK), *const e = mem_alloc(SIZE_MAX - 100);
  atomic_store(&mem_fault, NULL);
  void *const f = mem_alloc(SIZE_MAX - 100);
  CHECK(!a && !b && !c && !d && !e && !f && strcmp((char *)p, "stays") == 0);
  mem_free(p);
  CHECK(stats().large == was.large && stats().heap == was.heap);
}

// Whether the call has failed for lack of memory, with a message of its own.
static bool is_missing(const void *p) {
  const bool missing = !p && strstr(err_msg(), "no memory") != NULL;
  (void)err_set(REMIXDB_INVALID, "of an earlier call");
  return missing;
}

// Arrays whose bytes a size_t does not count have no memory. Others have room for all elements and what is behind them.
static void test_arrays(void **state) {
  (void)state;
  const struct mem_stats was = stats();
  CHECK(mem_sum(3, 4) == 7 && mem_sum(SIZE_MAX - 1, 1) == SIZE_MAX && mem_sum(SIZE_MAX, 2) == SIZE_MAX);
  CHECK(mem_sum(SIZE_MAX / 2 + 1, SIZE_MAX / 2 + 1) == SIZE_MAX);
  CHECK(mem_doubled(8, 8) == 8 && mem_doubled(8, 9) == 16 && mem_doubled(8, SIZE_MAX) == SIZE_MAX);
  CHECK(mem_doubled(SIZE_MAX / 2 + 1, SIZE_MAX / 2 + 2) == SIZE_MAX);
  CHECK(is_missing(mem_array(SIZE_MAX / 8 + 1, 8, 0)) && is_missing(mem_array(SIZE_MAX / 8 + 2, 8, 8)));
  CHECK(is_missing(mem_array(SIZE_MAX / 8, 8, 8)) && is_missing(mem_array(1, SIZE_MAX, 0)));
  CHECK(is_missing(mem_array(1, 1, SIZE_MAX)) && is_missing(mem_array(1, 100, SIZE_MAX - 50)));
  uint8_t *const p = mem_array(100, 8, 3), *const none = mem_array(0, 8, 0);
  CHECK(p && none);
  memset(p, 1, 803);
  mem_free(p);
  mem_free(none);
  uint64_t *a = NULL;
  size_t cap = 0;
  uint32_t cap32 = 0, *b = NULL;
  for (uint32_t i = 0; i < 5; i++) {
    a = mem_grow(a, &cap, 4, sizeof(*a));
    b = mem_grow32(b, &cap32, 3, sizeof(*b));
    CHECK(a && b && cap == 4u << i && cap32 == 3u << i);
    for (size_t k = i ? cap / 2 : 0; k < cap; k++) a[k] = k;
    for (uint32_t k = i ? cap32 / 2 : 0; k < cap32; k++) b[k] = k;
  }
  for (size_t i = 0; i < cap; i++) CHECK(a[i] == i);
  for (uint32_t i = 0; i < cap32; i++) CHECK(b[i] == i);
  CHECK(is_missing(mem_grow(NULL, &(size_t){0}, SIZE_MAX / 4 + 1, 4)));
  for (cap = SIZE_MAX; cap >= SIZE_MAX / 16 + 1; cap /= 2) {  // as if it had so many
    const size_t before = cap;
    CHECK(is_missing(mem_grow(a, &cap, 4, sizeof(*a))) && cap == before);
  }
  cap32 = UINT32_MAX / 2 + 1;
  CHECK(is_missing(mem_grow32(b, &cap32, 3, sizeof(*b))) && cap32 == UINT32_MAX / 2 + 1);
  CHECK(a[63] == 63 && b[47] == 47);
  mem_free(a);
  mem_free(b);
  CHECK(stats().heap == was.heap && stats().large == was.large);
}

// A bounded number of blocks are mappings. The system would refuse more at some point.
static void test_many(void **state) {
  (void)state;
  enum { MOST = 16384, ALL = MOST + 10 };
  void **const p = malloc(ALL * sizeof(*p));
  const struct mem_stats was = stats();
  for (uint32_t i = 0; i < ALL; i++) CHECK((p[i] = mem_alloc(BLOCK)));
  CHECK(stats().nr_large == MOST);
  CHECK(stats().heap - was.heap >= 10 * BLOCK);
  for (uint32_t i = 0; i < ALL; i++) mem_free(p[(i * 7919ull) % ALL]);
  CHECK(stats().nr_large == 0 && stats().large == 0 && stats().heap == was.heap);
  free(p);
}

#define SLOTS 200u
// Random work. Every byte is checked: no block overlaps another one.
static void *work(void *arg) {
  uint64_t seed = *(uint64_t *)arg;
  uint8_t *p[SLOTS] = {NULL};
  size_t has[SLOTS] = {0};
  for (uint32_t i = 0; i < 4000; i++) {
    const uint32_t at = rng_next(&seed) % SLOTS;
    const size_t size = rng_next(&seed) % (6 * BLOCK) >> rng_next(&seed) % 6;
    for (size_t k = 0; k < has[at]; k += 61)
      if (p[at][k] != (uint8_t)(at + k)) return arg;
    if (rng_next(&seed) % 3 == 0) {
      uint8_t *const q = mem_realloc(p[at], size);
      if (!q) return arg;
      for (size_t k = 0; k < has[at] && k < size; k += 61)
        if (q[k] != (uint8_t)(at + k)) return arg;
      p[at] = q;
    } else {
      mem_free(p[at]);
      if (!(p[at] = size & 1 ? mem_alloc(size) : mem_alloc_aligned(4096, size))) return arg;
    }
    has[at] = size;
    for (size_t k = 0; k < size; k += 61) p[at][k] = (uint8_t)(at + k);
  }
  for (uint32_t i = 0; i < SLOTS; i++) mem_free(p[i]);
  return NULL;
}

static void test_random(void **state) {
  (void)state;
  const struct mem_stats was = stats();
  mem_keep(KEEP);
  pthread_t t[4];
  uint64_t seeds[4];
  for (uint32_t i = 0; i < 4; i++) {
    seeds[i] = check_seed + i;
    OK(thread_start(&t[i], work, &seeds[i], "work"));
  }
  for (uint32_t i = 0; i < 4; i++) {
    void *failed;
    CHECK(pthread_join(t[i], &failed) == 0 && !failed);
  }
  CHECK(stats().large == was.large && stats().kept <= KEEP && stats().heap == was.heap);
  mem_keep_less(KEEP);
  CHECK(stats().kept == 0);
}

#if !LIB_TSAN  // TSan does not follow a process with threads into a child
static _Atomic bool ended;

static void *churn(void *arg) {
  (void)arg;
  while (!atomic_load(&ended)) mem_free(mem_alloc(BLOCK));
  return NULL;
}

// A child made while another thread is in the allocator can use it.
static void test_fork(void **state) {
  (void)state;
  OK(fork_watch());
  mem_keep(KEEP);
  pthread_t t;
  atomic_store(&ended, false);
  OK(thread_start(&t, churn, NULL, "churn"));
  for (uint32_t i = 0; i < 100; i++) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      (void)alarm(SLOW_HANG_S);  // a lock that nobody will give back
      void *const p = mem_alloc(BLOCK);
      mem_free(p);
      _exit(p ? 0 : 1);
    }
    int how;
    CHECK(waitpid(child, &how, 0) == child && how == 0);
  }
  atomic_store(&ended, true);
  thread_join(t);
  mem_keep_less(KEEP);
}
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_large),
    cmocka_unit_test(test_small),
    cmocka_unit_test(test_heap_back),
    cmocka_unit_test(test_kept),
    cmocka_unit_test(test_not_cut),
    cmocka_unit_test(test_rest),
    cmocka_unit_test(test_hurry),
    cmocka_unit_test(test_hurry_many),
    cmocka_unit_test(test_kept_most),
    cmocka_unit_test(test_fresh),
    cmocka_unit_test(test_denied),
    cmocka_unit_test(test_grow),
    cmocka_unit_test(test_arrays),
    cmocka_unit_test(test_many),
    cmocka_unit_test(test_random),
#if !LIB_TSAN
    cmocka_unit_test(test_fork),
#endif
  };
  (void)check_seed_start();
  atomic_store(&mem_large_from, BLOCK / 2);  // with sanitizers, too
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
