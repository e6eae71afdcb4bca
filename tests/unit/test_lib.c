// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/cores.h"
#include "base/thread.h"
#include "tests/lib/check.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include "lib.h"

#if LIB_ASAN
#include <sanitizer/asan_interface.h>
#endif

// ---- memory

static bool deny_all(size_t size) {
  (void)size;
  return false;
}

static void test_alloc(void **state) {
  (void)state;
  uint8_t *p = mem_alloc(0);
  assert_non_null(p);
  p = mem_realloc(p, 100);
  assert_non_null(p);
  memset(p, 1, 100);
  mem_free(p);
  p = mem_calloc(10, 10);
  assert_non_null(p);
  for (int i = 0; i < 100; i++) assert_int_equal(p[i], 0);
  mem_free(p);
  for (size_t align = 1; align <= 4096; align *= 2) {
    p = mem_alloc_aligned(align, 100);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % align, 0);
    mem_free(p);
  }
  mem_free(NULL);
}

static void test_alloc_failure(void **state) {
  (void)state;
  err_finish(REMIXDB_OK);
  assert_null(mem_calloc(SIZE_MAX / 2, 3));
  assert_true(strlen(err_msg()) > 0);
  uint8_t *const p = mem_alloc(4);
  memcpy(p, "abc", 4);
  struct mem_map m;
  atomic_store(&mem_fault, deny_all);
  err_finish(REMIXDB_OK);
  void *const a = mem_alloc(1), *const b = mem_calloc(1, 1), *const c = mem_realloc(p, 8),
              *const d = mem_alloc_aligned(64, 64);
  struct mem_map small, large;
  const enum remixdb_status s = mem_map(4096, &m), s1 = mem_map_table(100, &small), s2 = mem_map_table(4 << 20, &large);
  struct arena ar;
  arena_init(&ar, 65536, NULL);
  void *const f = arena_alloc(&ar, 8), *const g = arena_alloc(&ar, 1 << 20);
  pthread_t t;
  const enum remixdb_status ts = thread_start(&t, NULL, NULL, "x");
  atomic_store(&mem_fault, NULL);
  assert_null(a);
  assert_null(b);
  assert_null(c);
  assert_null(d);
  FAILS(s, REMIXDB_NOMEM);
  assert_null(m.ptr);
  mem_unmap(&m);
  FAILS(s1, REMIXDB_NOMEM);
  FAILS(s2, REMIXDB_NOMEM);
  assert_true(!small.ptr && !large.ptr);
  assert_null(f);
  assert_null(g);
  FAILS(ts, REMIXDB_NOMEM);
  assert_true(strlen(err_msg()) > 0);
  assert_string_equal((char *)p, "abc");  // a failed realloc leaves the old memory
  mem_free(p);
  // the arena is not the worse for it
  assert_non_null(arena_alloc(&ar, 8));
  assert_int_equal(arena_used(&ar), 8 + ARENA_GAP);
  arena_fini(&ar);
}

static void test_map(void **state) {
  (void)state;
  const size_t sizes[] = {1, 4096, 5000, (2u << 20) - 1, 2u << 20, 7u << 20};
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    struct mem_map m;
    OK(mem_map(sizes[i], &m));
    assert_true(m.size >= sizes[i]);
    assert_int_equal(m.size % m.page, 0);
    if (m.size >= 2u << 20) assert_int_equal((uintptr_t)m.ptr % (2u << 20), 0);
    for (size_t at = 0; at < m.size; at += 1024) assert_int_equal(m.ptr[at], 0);
    m.ptr[0] = m.ptr[m.size - 1] = 1;
    mem_unmap(&m);
    assert_null(m.ptr);
    mem_unmap(&m);
  }
  struct mem_map m;
  for (size_t size = 1; size < 8u << 20; size = size * 3 + 1) {
    OK(mem_map_table(size, &m));
    assert_true(m.size >= size);
    assert_int_equal((uintptr_t)m.ptr % CACHE_LINE, 0);
    memset(m.ptr, 0x5a, size);
    mem_unmap(&m);
    assert_null(m.ptr);
  }
  FAILS(mem_map(SIZE_MAX - 10, &m), REMIXDB_NOMEM);
  FAILS(mem_map((size_t)1 << 60, &m), REMIXDB_NOMEM);
  assert_null(m.ptr);
}

static void test_arena(void **state) {
  (void)state;
  for (size_t chunk = 65536; chunk <= 1u << 21; chunk *= 32) {
    struct arena a;
    arena_init(&a, chunk, NULL);
    assert_int_equal(arena_used(&a), 0);
    size_t asked = 0;
    uint8_t *const first = arena_alloc(&a, 1);
    asked = 8 + ARENA_GAP;
    assert_int_equal(arena_used(&a), asked);
#if LIB_ASAN
    assert_false(__asan_address_is_poisoned(first));
    for (size_t at = 1; at < 64; at++) assert_true(__asan_address_is_poisoned(first + at));
#endif
    // a large one has its own chunk and does not end the one being cut
    uint8_t *const large = arena_alloc(&a, 3 * chunk + 5);
    assert_non_null(large);
    memset(large, 2, 3 * chunk + 5);
    assert_ptr_equal(arena_alloc(&a, 8), first + asked);
    asked += align_up(3 * chunk + 5, 8) + 8 + 2 * ARENA_GAP;
    assert_true(arena_used(&a) >= asked - 8 - ARENA_GAP && arena_used(&a) <= asked);
    size_t before = arena_used(&a);
    const int rounds = (int)(5 * chunk / 120);
    for (int i = 0; i < rounds; i++) {
      const size_t size = 1 + (size_t)i % 211;
      uint8_t *const p = arena_alloc(&a, size);
      assert_non_null(p);
      assert_int_equal((uintptr_t)p % 8, 0);
      memset(p, i, size);
      const size_t used = arena_used(&a);
      assert_true(used >= before + size);
      before = used;
      asked += align_up(size, 8) + ARENA_GAP;
    }
    assert_true(arena_used(&a) <= asked + asked / 4);
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_null(arena_alloc(&a, SIZE_MAX - 100));
    arena_fini(&a);
  }
}

// A pool that is filled ahead holds one chunk, which the next arena takes.
static void pool_fill(struct arena_pool *pool, size_t chunk) {
  struct arena a;
  arena_pool_init(pool, chunk, 2 * chunk);
  assert_false(arena_pool_fill(pool, 0));
  assert_true(arena_pool_fill(pool, chunk));
  assert_false(arena_pool_fill(pool, chunk));
  assert_int_equal(arena_pool_held(pool), chunk);
  arena_init(&a, chunk, pool);
  uint8_t *const all = arena_alloc(&a, chunk / 8);
  assert_non_null(all);
  memset(all, 2, chunk / 8);
  assert_int_equal(arena_pool_held(pool), 0);
  atomic_store(&mem_fault, deny_all);
  assert_false(arena_pool_fill(pool, chunk));
  atomic_store(&mem_fault, NULL);
  assert_int_equal(arena_pool_held(pool), 0);
  arena_fini(&a);
  assert_int_equal(arena_pool_held(pool), chunk);
  assert_true(arena_pool_fill(pool, SIZE_MAX));
  assert_false(arena_pool_fill(pool, SIZE_MAX));
  assert_int_equal(arena_pool_held(pool), 2 * chunk);
}

// A pool that had to give chunks back has enough, until an arena finds it empty.
static void pool_short(struct arena_pool *pool, size_t chunk) {
  struct arena a;
  struct arena b;
  arena_init(&a, chunk, pool);
  arena_init(&b, chunk, pool);
  for (int i = 0; i < 3 * 8; i++) assert_non_null(arena_alloc(i < 8 ? &a : &b, chunk / 8 - 64));
  assert_int_equal(arena_pool_held(pool), 0);
  assert_true(arena_pool_short(pool, 1));
  arena_fini(&a);
  assert_false(arena_pool_short(pool, chunk));
  assert_true(arena_pool_short(pool, chunk + 1));
  arena_fini(&b);  // three chunks in all
  arena_init(&a, chunk, pool);
  assert_non_null(arena_alloc(&a, 100));
  assert_int_equal(arena_pool_held(pool), chunk);
  assert_false(arena_pool_short(pool, SIZE_MAX));
  assert_false(arena_pool_fill(pool, SIZE_MAX));
  for (int i = 0; i < 3 * 8; i++) assert_non_null(arena_alloc(&a, chunk / 8 - 64));
  assert_true(arena_pool_short(pool, SIZE_MAX));
  arena_fini(&a);
}

// Chunks of an ended arena serve the next one, up to the pool's limit; large ones go back to the system.
// An arena of little memory takes no huge page, if it is the pool's first one.
static void test_arena_begins(void **state) {
  (void)state;
  const size_t chunk = 2u << 20;
  struct arena_pool pool;
  struct arena a;
  static unsigned char there[(2u << 20) / 4096];
  uint32_t nr = 0;
  arena_pool_init(&pool, chunk, 2 * chunk);
  arena_init(&a, chunk, &pool);
  uint8_t *const p = arena_alloc(&a, 10000);
  assert_non_null(p);
  memset(p, 1, 10000);
  uint8_t *const begin = (uint8_t *)((uintptr_t)p & ~(uintptr_t)(chunk - 1));
  assert_int_equal(mincore(begin, chunk, (void *)there), 0);
  for (size_t i = 0; i < sizeof(there); i++) nr += there[i] & 1;
  assert_true(nr >= 3 && nr < 64);
  arena_fini(&a);
  arena_pool_fini(&pool);
}

static void test_arena_pool(void **state) {
  (void)state;
  const size_t chunk = 65536;
  struct arena_pool pool;
  arena_pool_init(&pool, chunk, 2 * chunk);
  struct arena a;
  arena_init(&a, chunk, &pool);
  for (int i = 0; i < 3 * 8; i++) assert_non_null(arena_alloc(&a, chunk / 8 - 64));
  uint8_t *const large = arena_alloc(&a, 4 * chunk);
  assert_non_null(large);
  assert_int_equal(arena_pool_held(&pool), 0);
  arena_fini(&a);
  assert_int_equal(arena_pool_held(&pool), 2 * chunk);

  arena_init(&a, chunk, &pool);
  assert_int_equal(arena_used(&a), 0);
  uint8_t *const p = arena_alloc(&a, 100);
  assert_non_null(p);
  memset(p, 1, 100);
  assert_int_equal(arena_used(&a), 104 + ARENA_GAP);
  assert_int_equal(arena_pool_held(&pool), chunk);
  for (int i = 0; i < 3 * 8; i++) {  // the pool runs out and the system serves
    uint8_t *const q = arena_alloc(&a, chunk / 8 - 64);
    assert_non_null(q);
    memset(q, i, chunk / 8 - 64);
  }
  assert_int_equal(arena_pool_held(&pool), 0);
  for (int i = 0; i < 100; i++) assert_int_equal(p[i], 1);
  arena_fini(&a);
  arena_pool_fini(&pool);

  pool_fill(&pool, chunk);
  pool_short(&pool, chunk);
  arena_pool_fini(&pool);
  arena_pool_init(&pool, chunk, 0);
  assert_false(arena_pool_fill(&pool, chunk));
  assert_int_equal(arena_pool_held(&pool), 0);
  arena_pool_fini(&pool);
}

enum { ARENA_THREADS = 4, ARENA_ALLOCS = 4000 };

struct arena_job {
  struct arena *a;
  uint8_t tag;
  uint8_t *got[ARENA_ALLOCS];
  size_t size[ARENA_ALLOCS];
};

static void *arena_job_main(void *p) {
  struct arena_job *const j = p;
  uint64_t rng = j->tag;
  for (int i = 0; i < ARENA_ALLOCS; i++) {
    j->size[i] = 1 + rng_next(&rng) % (i % 100 == 0 ? 40000 : 200);
    j->got[i] = arena_alloc(j->a, j->size[i]);
    if (!j->got[i]) return (void *)1;
    memset(j->got[i], j->tag, j->size[i]);
  }
  return NULL;
}

// No two threads ever get the same byte, and no allocation is counted twice.
static void test_arena_threads(void **state) {
  (void)state;
  static struct arena_job jobs[ARENA_THREADS];
  struct arena a;
  pthread_t t[ARENA_THREADS];
  size_t asked = 0;
  arena_init(&a, 65536, NULL);
  for (int i = 0; i < ARENA_THREADS; i++) {
    jobs[i].a = &a;
    jobs[i].tag = (uint8_t)(i + 1);
    OK(thread_start(&t[i], arena_job_main, &jobs[i], "arena"));
  }
  for (int i = 0; i < ARENA_THREADS; i++) {
    void *ret;
    assert_int_equal(pthread_join(t[i], &ret), 0);
    assert_null(ret);
  }
  for (int i = 0; i < ARENA_THREADS; i++)
    for (int k = 0; k < ARENA_ALLOCS; k++) {
      asked += align_up(jobs[i].size[k], 8);
      for (size_t b = 0; b < jobs[i].size[k]; b++)
        if (jobs[i].got[k][b] != jobs[i].tag)
          fail_msg("byte %zu of allocation %d of thread %d was given twice", b, k, i);
    }
  assert_true(arena_used(&a) >= asked);
  assert_true(arena_used(&a) <= asked + asked / 2);
  arena_fini(&a);
}

// ---- lock

struct lock_job {
  struct lib_lock lock;
  uint64_t count;  // under the lock
  _Atomic bool go;
};

enum { LOCK_THREADS = 4, LOCK_ROUNDS = 20000 };

static void *lock_job_main(void *p) {
  struct lock_job *const j = p;
  while (!atomic_load(&j->go)) (void)sched_yield();
  for (int i = 0; i < LOCK_ROUNDS; i++) {
    lib_lock(&j->lock);
    const uint64_t n = j->count;
    if (i % 512 == 0) (void)sched_yield();  // makes others go to sleep
    j->count = n + 1;
    lib_unlock(&j->lock);
  }
  return NULL;
}

static void test_lock(void **state) {
  (void)state;
  static struct lock_job j;
  pthread_t t[LOCK_THREADS];
  assert_int_equal(sizeof(j.lock), 4);
  for (int i = 0; i < LOCK_THREADS; i++) OK(thread_start(&t[i], lock_job_main, &j, "lock"));
  atomic_store(&j.go, true);
  for (int i = 0; i < LOCK_THREADS; i++) assert_int_equal(pthread_join(t[i], NULL), 0);
  assert_int_equal(j.count, (uint64_t)LOCK_THREADS * LOCK_ROUNDS);
  assert_int_equal(atomic_load(&j.lock.word), 0);
}

static void *lock_sleeper(void *p) {
  struct lock_job *const j = p;
  atomic_store(&j->go, true);
  lib_lock(&j->lock);
  j->count++;
  lib_unlock(&j->lock);
  return NULL;
}

// A holder that stays long puts the other to sleep; the unlock wakes it.
static void test_lock_sleeps(void **state) {
  (void)state;
  static struct lock_job j;
  pthread_t t[2];
  lib_lock(&j.lock);
  for (int i = 0; i < 2; i++) OK(thread_start(&t[i], lock_sleeper, &j, "sleeper"));
  while (!atomic_load(&j.go)) (void)sched_yield();
  time_sleep_ns(20000000);
  assert_int_equal(j.count, 0);
  lib_unlock(&j.lock);
  for (int i = 0; i < 2; i++) assert_int_equal(pthread_join(t[i], NULL), 0);
  assert_int_equal(j.count, 2);
}

// ---- threads

static void *thread_mask(void *p) {
  (void)pthread_sigmask(SIG_SETMASK, NULL, p);
  return p;
}

static void test_thread_start(void **state) {
  (void)state;
  sigset_t before, inside, after;
  pthread_t t;
  void *ret;
  (void)pthread_sigmask(SIG_SETMASK, NULL, &before);
  OK(thread_start(&t, thread_mask, &inside, "a name longer than sixteen bytes"));
  assert_int_equal(pthread_join(t, &ret), 0);
  assert_ptr_equal(ret, &inside);
  assert_true(sigismember(&inside, SIGTERM) == 1 && sigismember(&inside, SIGUSR1) == 1);
  (void)pthread_sigmask(SIG_SETMASK, NULL, &after);
  assert_int_equal(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
}

static void *thread_pins(void *p) {
  uint32_t cores[4];
  if (!cores_pin(*(uint32_t *)p)) return NULL;
  // a pinned thread may run on that core only
  return cores_list(cores, 4) == 1 && cores[0] == *(uint32_t *)p ? p : NULL;
}

static void test_cores(void **state) {
  (void)state;
  uint32_t cores[1024];
  const uint32_t nr = cores_list(cores, 1024);
  assert_true(nr >= 1);
  assert_int_equal(cores_list(NULL, 0), nr);
  for (uint32_t i = 1; i < nr && i < 1024; i++) assert_true(cores[i] > cores[i - 1]);
#if defined(__linux__)
  pthread_t t;
  void *ret;
  OK(thread_start(&t, thread_pins, &cores[0], "pin"));
  assert_int_equal(pthread_join(t, &ret), 0);
  assert_ptr_equal(ret, &cores[0]);
  assert_false(cores_pin(0xffffffffu));
#else
  (void)thread_pins;
#endif
}

static void test_parse_cores(void **state) {
  (void)state;
  uint32_t cores[8], nr = 0;
  OK(cores_parse("0,2,4-7", cores, 8, &nr));
  const uint32_t want[] = {0, 2, 4, 5, 6, 7};
  assert_int_equal(nr, 6);
  assert_memory_equal(cores, want, sizeof(want));
  OK(cores_parse("3-3", cores, 1, &nr));
  assert_int_equal(nr, 1);
  assert_int_equal(cores[0], 3);
  const char *const bad[] = {
      "", ",", "1,", ",1", "a", "1-", "-1", "4-2", "1 2", "1,,2", "99999999999999999999", "1-2-3", "0-65536", "auto"};
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    err_finish(REMIXDB_OK);
    FAILS(cores_parse(bad[i], cores, 8, &nr), REMIXDB_INVALID);
    assert_true(strlen(err_msg()) > 0);
  }
  FAILS(cores_parse("0-8", cores, 8, &nr), REMIXDB_INVALID);  // nine do not fit
}

static void test_cond(void **state) {
  (void)state;
  pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t c;
  cond_init(&c);
  (void)pthread_mutex_lock(&m);
  const uint64_t t0 = time_ns();
  while (cond_wait_ns(&c, &m, 2000000)) {}
  assert_true(time_ns() - t0 >= 2000000);
  assert_false(cond_wait_ns(&c, &m, 0));
  (void)pthread_mutex_unlock(&m);
  (void)pthread_cond_destroy(&c);
}

// ---- bits, hashes

static void test_bits(void **state) {
  (void)state;
  uint8_t b[9] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  assert_int_equal(load16le(b + 1), 0x0201);
  assert_int_equal(load32le(b + 1), 0x04030201);
  assert_true(load64le(b + 1) == 0x0807060504030201ull);
  assert_true(load64be(b + 1) == 0x0102030405060708ull);
  store16le(b + 1, 0xabcd);
  store32le(b + 3, 0x11223344);
  assert_int_equal(load16le(b + 1), 0xabcd);
  assert_int_equal(load32le(b + 3), 0x11223344);
  store64le(b + 1, 0xfedcba9876543210ull);
  assert_int_equal(b[1], 0x10);
  assert_int_equal(b[8], 0xfe);
  assert_int_equal(align_up(0, 8), 0);
  assert_int_equal(align_up(1, 8), 8);
  assert_int_equal(align_up(8, 8), 8);
}

// The hash is part of the file formats: these values must never change.
static void test_hash(void **state) {
  (void)state;
  assert_true(hash64("", 0) == 0x2d06800538d394c2ull);
  assert_true(hash64_seed("", 0, 0) == hash64("", 0));
  assert_true(hash64("a", 1) == 0xe6c632b61e964e1full);
  assert_true(hash64("a", 1) != hash64_seed("a", 1, 1));
  uint8_t buf[4096];
  for (size_t i = 0; i < sizeof(buf); i++) buf[i] = (uint8_t)i;
  assert_true(hash64(buf, 4096) == hash64_seed(buf, 4096, 0));
  assert_true(hash64(buf, 4096) != hash64(buf, 4095));
  // long enough for the vector instructions that each processor has others of
  assert_true(hash64(buf, 4096) == 0xeb4b7c3707879151ull);
  assert_true(hash64_seed(buf, 4096, 0x9E3779B97F4A7C15ull) == 0x7683a757fbe2415eull);
  assert_true(hash64_seed(buf, 1000, 1) == 0xabebce472d08bdf7ull);
  uint64_t all = 0;
  for (uint32_t n = 0; n <= sizeof(buf); n++) all = all * 31 + hash64_seed(buf, n, n);
  assert_true(all == 0x2213b386b5244098ull);
  // with any instructions
  for (uint32_t i = 0; i < 3000; i++) {
    const size_t from = i % 64, len = i < 2000 ? i : sizeof(buf) - 64 - i % 256;
    assert_true(hash64_seed(buf + from, len, i * UINT64_C(0x9E3779B97F4A7C15)) ==
                XXH3_64bits_withSeed(buf + from, len, i * UINT64_C(0x9E3779B97F4A7C15)));
  }
}

static void test_rng(void **state) {
  (void)state;
  uint64_t a = 0;
  assert_true(rng_next(&a) == 0xe220a8397b1dcdafull);  // splitmix64's published first output for seed 0
}

// Every length, with nothing before, after or between touched that should not be.
static void test_copy_small(void **state) {
  (void)state;
  uint8_t from[COPY_SMALL + 2], to[COPY_SMALL + 2];
  for (uint32_t n = 0; n <= COPY_SMALL; n++) {
    for (uint32_t i = 0; i < sizeof(from); i++) from[i] = (uint8_t)(i * 7 + n);
    memset(to, 0xEE, sizeof(to));
    copy_small(to + 1, from + 1, n);
    assert_memory_equal(to + 1, from + 1, n);
    assert_int_equal(to[0], 0xEE);
    for (uint32_t i = n + 1; i < sizeof(to); i++) assert_int_equal(to[i], 0xEE);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_alloc),         cmocka_unit_test(test_alloc_failure), cmocka_unit_test(test_map),
      cmocka_unit_test(test_arena),         cmocka_unit_test(test_arena_pool),    cmocka_unit_test(test_arena_begins),
      cmocka_unit_test(test_arena_threads), cmocka_unit_test(test_lock),          cmocka_unit_test(test_lock_sleeps),
      cmocka_unit_test(test_thread_start),  cmocka_unit_test(test_cores),         cmocka_unit_test(test_parse_cores),
      cmocka_unit_test(test_cond),          cmocka_unit_test(test_bits),          cmocka_unit_test(test_hash),
      cmocka_unit_test(test_rng),           cmocka_unit_test(test_copy_small),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
