// SPDX-License-Identifier: Apache-2.0
#include "lib.h"

#include <errno.h>
#include <sched.h>
#if defined(__APPLE__)
#include <sys/random.h>
#endif
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include "base/cores.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

// ---- lock (the third mutex of Drepper's "Futexes Are Tricky", with a short spin before it)

static uint32_t lib_spins(void) {
  static _Atomic uint32_t cached;  // 0 not known, else spins + 1
  uint32_t n = atomic_load_explicit(&cached, memory_order_relaxed);
  if (n == 0) {
    n = cores_list(NULL, 0) > 1 ? 101 : 1;
    atomic_store_explicit(&cached, n, memory_order_relaxed);
  }
  return n - 1;
}

static inline void lib_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

static inline bool lib_lock_try(struct lib_lock *l) {
  uint32_t free_word = 0;
  return atomic_load_explicit(&l->word, memory_order_relaxed) == 0 &&
         atomic_compare_exchange_strong_explicit(&l->word, &free_word, 1, memory_order_acquire, memory_order_relaxed);
}

void lib_lock_slow(struct lib_lock *l) {
  for (uint32_t i = lib_spins(); i > 0; i--) {
    if (lib_lock_try(l)) return;
    lib_pause();
  }
#if defined(__linux__)
  // A thread that wakes does not know whether others sleep, too. So it sets 2, and its unlock wakes one of them.
  while (atomic_exchange_explicit(&l->word, 2, memory_order_acquire) != 0)
    (void)syscall(SYS_futex, &l->word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
#else
  for (uint32_t tries = 0; !lib_lock_try(l); tries++) {
    if (tries < 16) (void)sched_yield();
    else time_sleep_ns(tries < 64 ? 20000 : 200000);
  }
#endif
}

void (*_Atomic wake_watch)(const void *what);

void lib_lock_wake(struct lib_lock *l) {
  wake_tell(l);
#if defined(__linux__)
  (void)syscall(SYS_futex, &l->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
#else
  (void)l;  // nobody sleeps on the word here, so nobody sets 2
#endif
}

// ---- time

uint64_t time_ns(void) {
  struct timespec ts;
  (void)clock_gettime(CLOCK_MONOTONIC, &ts);
  return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

void time_sleep_ns(uint64_t ns) {
  CANCEL_LATER;
  struct timespec ts = time_spec(ns);
  while (nanosleep(&ts, &ts) != 0 && errno == EINTR) {}
}

// ---- the process

uint64_t process_descriptors(void) {
  struct rlimit r;
  return getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur != RLIM_INFINITY ? (uint64_t)r.rlim_cur : UINT64_MAX;
}

// ---- hashing

#define HASH_LONG 512u  // bytes; shorter inputs gain less from AVX2 than asking the processor costs

uint64_t hash64(const void *p, size_t len) { return XXH3_64bits(p, len); }

uint64_t (*_Atomic random_seed_source)(void);

uint64_t random_seed(void) {
  uint64_t (*const source)(void) = atomic_load_explicit(&random_seed_source, memory_order_acquire);
  if (source) return source();
  uint64_t seed;
  if (likely(getentropy(&seed, sizeof(seed)) == 0)) return seed;
  static _Atomic uint64_t nr;
  const uint64_t one = atomic_fetch_add_explicit(&nr, 1, memory_order_relaxed);
  const uint64_t stand_in[3] = {time_ns(), (uint64_t)(uintptr_t)&seed, one};
  return hash64(stand_in, sizeof(stand_in));
}

uint64_t hash64_seed(const void *p, size_t len, uint64_t seed) {
#if defined(__x86_64__)
  if (len >= HASH_LONG && __builtin_cpu_supports("avx2")) return hash64_seed_avx2(p, len, seed);
#endif
  return XXH3_64bits_withSeed(p, len, seed);
}
