// SPDX-License-Identifier: Apache-2.0
//
// The basics: memory (base/mem.c), a lock, time, bits, hashing. Nothing here depends on a store.
#ifndef LIB_H
#define LIB_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "base/err.h"

#define CACHE_LINE 64
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
// A function that is compiled into each caller, so that arguments that are constants there cost nothing.
#define ALWAYS_INLINE static inline __attribute__((always_inline))

// Prefetch the cache line of an address: for reading, for writing, or into the second-level cache. Any address is
// allowed. gcc removes calls of functions that only prefetch. An empty asm in the function prevents that.
#if defined(__GNUC__) && !defined(__clang__)
#define PREFETCH_STAYS() __asm__ volatile("")
#else
#define PREFETCH_STAYS() ((void)0)
#endif
static inline void prefetch(const void *p) {
  __builtin_prefetch(p);
  PREFETCH_STAYS();
}
static inline void prefetch_write(const void *p) {
  __builtin_prefetch(p, 1);
  PREFETCH_STAYS();
}
static inline void prefetch_far(const void *p) {
  __builtin_prefetch(p, 0, 2);
  PREFETCH_STAYS();
}
// All lines of the bytes [p, end), into the second-level cache: it has more requests under way than the first level, so
// the processor waits less for a free one. The first level is near from there.
static inline void prefetch_bytes(const uint8_t *p, const uint8_t *end) {
  for (p -= (uintptr_t)p % CACHE_LINE; p < end; p += CACHE_LINE) prefetch_far(p);
}

// ---- the sanitizer of this build: each is 0 or 1
#if defined(__has_feature)
#define LIB_FEATURE(x) __has_feature(x)
#else
#define LIB_FEATURE(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || LIB_FEATURE(address_sanitizer)
#define LIB_ASAN 1
#else
#define LIB_ASAN 0
#endif
#if defined(__SANITIZE_THREAD__) || LIB_FEATURE(thread_sanitizer)
#define LIB_TSAN 1
#else
#define LIB_TSAN 0
#endif
#define LIB_MSAN LIB_FEATURE(memory_sanitizer)
#define LIB_SANITIZED (LIB_ASAN || LIB_TSAN || LIB_MSAN)

// ---- memory. If memory is missing, each call returns NULL and sets the thread's message. mem_free frees what these
// calls return. Any thread.
//
// Small blocks come from the heap. A block of MEM_LARGE bytes or more is a mapping of its own, in whole pages of the
// system, and begins at a page. Freeing it returns its pages to the system. The heap would keep many of them: it takes
// freed memory back from its end only, and once it has freed one large block it takes the next ones from its middle.
// Work that frees large blocks and takes them again would pay for new pages each time. So freed large blocks are kept
// for such work, as many as mem_keep allows, until mem_trim.
void *mem_alloc(size_t size);
void *mem_calloc(size_t nr, size_t size);            // zeroed
void *mem_realloc(void *p, size_t size);             // p stays valid on failure
void *mem_alloc_aligned(size_t align, size_t size);  // align: a power of two
// These take sizes that follow from numbers of a caller or a file. The memory is missing, too, if a size_t does not
// count so many bytes: on 32 bits a product of two legal numbers may be that large.
void *mem_array(size_t nr, size_t size, size_t extra);  // nr elements of `size` bytes, and `extra` bytes behind them
// Gives an array of *cap elements twice as many, or `first` if it has none. On failure p and *cap stay valid.
void *mem_grow(void *p, size_t *cap, size_t first, size_t size);
void *mem_grow32(void *p, uint32_t *cap, uint32_t first, size_t size);
// A sum of sizes. SIZE_MAX, which no allocation gives, stands for all that is more.
static inline size_t mem_sum(size_t a, size_t b) {
  size_t sum;
  return unlikely(__builtin_add_overflow(a, b, &sum)) ? SIZE_MAX : sum;
}
// Doubles cap, which is not 0, until it is at least `needs`. SIZE_MAX: a size_t cannot be that large.
static inline size_t mem_doubled(size_t cap, size_t needs) {
  while (cap < needs) cap = cap > SIZE_MAX / 2 ? SIZE_MAX : 2 * cap;
  return cap;
}
void mem_free(void *p);
// Returns all kept blocks to the system. If the small blocks have become less by 4 MiB, also returns the memory that
// the heap has kept. Call it when work has ended, outside of any lock: the heap's part may take some milliseconds.
void mem_trim(void);
// Lets the process keep so many bytes more of freed blocks. Before the first call it keeps none. It never keeps more
// than 64 MiB. One kept block is at most a quarter of all that may be kept, and at most 8 MiB. A zeroed block of 1 MiB
// or more is mapped anew all the same, unless the thread is in a hurry: an owner that touches little of it pays for no
// more.
void mem_keep(size_t more);
void mem_keep_less(size_t less);  // takes back what mem_keep was given, and returns what is too much
// The system changes the mappings of a process one after the other. A thread that takes or frees a large block may wait
// for all threads that do so, and for those that read pages in meanwhile: waits of 145 ms were seen. So a thread is in
// a hurry while writers wait for it. Such a thread cuts its blocks from kept ones of any size. It may keep a quarter
// more than mem_keep allows, and leaves the excess to other threads.
void mem_hurry(bool on);
// For tests: how often the calling thread has changed the mappings of the process.
uint64_t mem_changes(void);
// Sanitizers and valgrind watch the heap only, so nothing is large there.
#if !defined(MEM_LARGE)
#if LIB_SANITIZED
#define MEM_LARGE SIZE_MAX
#else
#define MEM_LARGE ((size_t)32 << 10)
#endif
#endif
// For tests: the size from which a block is large, to begin with MEM_LARGE. Blocks stay what they are.
extern _Atomic size_t mem_large_from;
// For tests: if a test sets this function, every allocation calls it first, those of mem_map too. If the function
// returns false, the allocation fails.
extern bool (*_Atomic mem_fault)(size_t size);

// The memory of this process that came by these calls, of all stores together. Bytes.
struct mem_stats {
  size_t heap;                    // small blocks, as the heap rounds them; 0 where the system does not tell
  size_t large;                   // large blocks, in whole pages; parts that were never touched count, too
  size_t kept;                    // freed large blocks that are kept
  size_t mapped;                  // by mem_map
  uint64_t nr_large;              // large blocks that exist
  uint64_t nr_mapped, nr_reused;  // large blocks that were mapped anew, and that were kept ones
};
void mem_stats(struct mem_stats *out);

// Call them before and after a fork, in parent and child: no other thread is then inside this allocator.
void mem_fork_hold(void);
void mem_fork_release(void);

// Maps zeroed pages. If the system has free pages of 1 GB or 2 MB, and they waste at most 1/8, the call uses these.
// Else it uses the system's usual pages and asks for transparent huge pages. Fails with REMIXDB_NOMEM.
struct mem_map {
  uint8_t *ptr;
  size_t size;  // bytes mapped: at least the size asked for
  size_t page;  // bytes of a page of the mapping; 0: memory of mem_alloc_aligned
};
MUST_CHECK enum remixdb_status mem_map(size_t size, struct mem_map *out);
// Allocates memory for an array that is read at random. From 1 MB on the memory is a mapping. Smaller memory comes from
// mem_alloc_aligned, aligned to a cache line, and not zeroed. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status mem_map_table(size_t size, struct mem_map *out);
// Has the system clear these pages of a mapping now, so that the first thread that touches them later does not wait.
// The bytes stay as they are, and others may use them meanwhile. p and size: multiples of a page. False: the system
// does not.
MUST_CHECK bool mem_populate(void *p, size_t size);
// Returns the bytes of the machine's memory. 0: the system does not tell.
size_t memory_size(void);
// Maps address space for `most` bytes. The caller means to touch no more than `size` of them: the statistics count
// these. Asks for no huge pages. If the system does not give so much address space, it maps `size` bytes; out->size
// tells. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status mem_reserve(size_t size, size_t most, struct mem_map *out);
// Tells the system whether to take huge pages for this part of a mapping when it is touched for the first time: a hint.
// p and size: multiples of a page.
void mem_huge(void *p, size_t size, bool on);
// Makes huge pages of this part of a mapping now. Others may read and write its bytes meanwhile. Takes 3 ms and more
// for each. If the system cannot (Linux before 6.1), it may do so later by itself, where mem_huge has asked for it. p
// and size: multiples of 2 MiB.
void mem_collapse(void *p, size_t size);
// The caller of mem_reserve means to touch `size` bytes from now on, in place of `was`.
void mem_reserve_change(size_t was, size_t size);
void mem_unreserve(struct mem_map *m, size_t size);  // frees the space; size: as counted last; m->ptr may be NULL
// Gives the memory of these pages of a mapping back to the system, which takes it at once, or (FreeBSD, macOS) when it
// needs it. Until the pages are written to, each has its old bytes or zeros. p and size: multiples of a page.
void mem_give_back(void *p, size_t size);
void mem_unmap(struct mem_map *m);  // frees the memory of both calls; m->ptr may be NULL

// ---- a lock of 4 bytes for short critical sections. A thread that waits spins a little, then sleeps: in the kernel on
// Linux (futex), elsewhere by yielding and short naps. Zero is unlocked. The lock is not recursive and not fair.
struct lib_lock {
  _Atomic uint32_t word;  // 0: free; 1: held; 2: held, and a thread may sleep
};
void lib_lock_slow(struct lib_lock *l);
void lib_lock_wake(struct lib_lock *l);
static inline void lib_lock(struct lib_lock *l) {
  uint32_t free_word = 0;
  if (unlikely(!atomic_compare_exchange_strong_explicit(&l->word, &free_word, 1, memory_order_acquire,
                                                        memory_order_relaxed)))
    lib_lock_slow(l);
}
static inline void lib_unlock(struct lib_lock *l) {
  if (unlikely(atomic_exchange_explicit(&l->word, 0, memory_order_release) == 2)) lib_lock_wake(l);
}
// lib_unlock in two steps, for a thread that releases another lock in between. Returns whether lib_lock_wake must
// follow.
MUST_CHECK static inline bool lib_lock_release(struct lib_lock *l) {
  return atomic_exchange_explicit(&l->word, 0, memory_order_release) == 2;
}

// A thread that is woken often takes the processor from the one that wakes it. So a thread, as far as it can, wakes
// others only when it has released the locks that they may need.
// For tests: if a test sets this function, each wake-up of a thread that may sleep calls it first, with the lib_lock or
// the eventcount. In the thread that wakes, which may hold locks.
extern void (*_Atomic wake_watch)(const void *what);
static inline void wake_tell(const void *what) {
  void (*const watch)(const void *) = atomic_load_explicit(&wake_watch, memory_order_relaxed);
  if (unlikely(watch != NULL)) watch(what);
}

// A cancelled thread (pthread_cancel) must not end inside the library, where it may hold locks. CANCEL_LATER, as the
// first declaration of a block, delays a deferred cancellation until the block ends. It stands around every
// cancellation point and every call of a user's function, and nowhere else, so that other calls pay nothing. The
// library waits only in thread_join, cond_wait, cond_wait_ns and time_sleep_ns. These four contain CANCEL_LATER.
static inline int cancel_off(void) {
  int before;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  return before;
}
static inline void cancel_back(const int *before) { (void)pthread_setcancelstate(*before, NULL); }
#define CANCEL_LATER const int cancel_before __attribute__((cleanup(cancel_back), unused)) = cancel_off()

// ---- the process
// Returns how many descriptors this process may have open at once.
uint64_t process_descriptors(void);

// ---- time: monotonic nanoseconds
uint64_t time_ns(void);
void time_sleep_ns(uint64_t ns);
static inline struct timespec time_spec(uint64_t ns) {
  return (struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
}

// ---- bits
// align: a power of two
static inline uint64_t align_up(uint64_t n, uint64_t align) { return (n + align - 1) & ~(align - 1); }
static inline uint32_t load16le(const void *p) {
  uint16_t v;
  memcpy(&v, p, 2);
  return v;
}
static inline uint32_t load32le(const void *p) {
  uint32_t v;
  memcpy(&v, p, 4);
  return v;
}
static inline uint64_t load64le(const void *p) {
  uint64_t v;
  memcpy(&v, p, 8);
  return v;
}
static inline uint64_t load64be(const void *p) { return __builtin_bswap64(load64le(p)); }
static inline void store16le(void *p, uint32_t v) {
  uint16_t w = (uint16_t)v;
  memcpy(p, &w, 2);
}
static inline void store32le(void *p, uint32_t v) { memcpy(p, &v, 4); }
static inline void store64le(void *p, uint64_t v) { memcpy(p, &v, 8); }

typedef uint64_t lib_chunk __attribute__((vector_size(16)));
static inline void copy_chunk(uint8_t *to, const uint8_t *from) {
  lib_chunk c;
  memcpy(&c, from, 16);
  memcpy(to, &c, 16);
}
// memcpy without a call, for at most COPY_SMALL bytes. Copies from both ends; the two copies may overlap.
#define COPY_SMALL 128u
static inline void copy_small(void *to_ptr, const void *from_ptr, size_t n) {
  uint8_t *const to = to_ptr;
  const uint8_t *const from = from_ptr;
  if (n >= 16) {
    if (n > 64) {
      for (size_t i = 16; i < 64; i += 16) {
        copy_chunk(to + i, from + i);
        copy_chunk(to + n - 16 - i, from + n - 16 - i);
      }
    } else if (n > 32) {
      copy_chunk(to + 16, from + 16);
      copy_chunk(to + n - 32, from + n - 32);
    }
    copy_chunk(to, from);
    copy_chunk(to + n - 16, from + n - 16);
  } else if (n >= 8) {
    const uint64_t first = load64le(from), last = load64le(from + n - 8);
    store64le(to, first);
    store64le(to + n - 8, last);
  } else if (n > 0) {
    to[0] = from[0];
    to[n / 2] = from[n / 2];
    to[n - 1] = from[n - 1];
    if (n > 3) {
      const uint32_t first = load32le(from), last = load32le(from + n - 4);
      store32le(to, first);
      store32le(to + n - 4, last);
    }
  }
}
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "files are little-endian and are read without swapping: a big-endian port starts here"
#endif

// ---- hashing: XXH3 of libxxhash
uint64_t hash64(const void *p, size_t len);
uint64_t hash64_seed(const void *p, size_t len, uint64_t seed);
// Returns a new seed for hashes in memory. The seed is random, so nobody can choose keys that collide. If the system
// gives no random numbers, the seed is made from the clock and an address. Any thread.
uint64_t random_seed(void);
// For tests: if a test sets this function, it returns the seeds.
extern uint64_t (*_Atomic random_seed_source)(void);
// hash64_seed for processors with AVX2 (base/hash_avx2.c). Only hash64_seed calls it.
#if defined(__x86_64__)
uint64_t hash64_seed_avx2(const void *p, size_t len, uint64_t seed);
#endif

// ---- a small random generator (splitmix64), for sampling and tests, not for secrets
static inline uint64_t rng_next(uint64_t *state) {
  uint64_t z = (*state += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}
#endif
