// SPDX-License-Identifier: Apache-2.0
#include "lib.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#if defined(__APPLE__)
#include <sys/random.h>
#endif
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#elif defined(__FreeBSD__)
#include <pthread_np.h>
#include <sys/cpuset.h>
#include <sys/param.h>
#endif

#define XXH_INLINE_ALL
#include <xxhash.h>

// ---- arena

// Sanitizers know malloc, but not arenas. These tell them which memory of an arena is not handed out.
#if LIB_ASAN
#include <sanitizer/asan_interface.h>
static void arena_hide(void *p, size_t size) { __asan_poison_memory_region(p, size); }
static void arena_show(void *p, size_t size) { __asan_unpoison_memory_region(p, size); }
#elif LIB_MSAN
#include <sanitizer/msan_interface.h>
static void arena_hide(void *p, size_t size) { __msan_poison(p, size); }
static void arena_show(void *p, size_t size) { (void)p, (void)size; }  // stays poisoned until it is written
#else
static inline void arena_hide(void *p, size_t size) { (void)p, (void)size; }
static inline void arena_show(void *p, size_t size) { (void)p, (void)size; }
#endif

// An allocation adds its size to `cut`. If the sum passes `size`, the chunk is used up: this allocation and all later
// ones get nothing from it. `cut` and `size` count from the start of the chunk, so they include this header.
struct arena_chunk {
  _Atomic size_t cut;
  size_t size;
  size_t base;  // bytes in the chunks before this one, without their headers
  struct arena_chunk *next;
  struct mem_map map;  // ptr NULL: the memory is from mem_alloc_aligned
};

#define ARENA_HEAD ((size_t)CACHE_LINE)
_Static_assert(sizeof(struct arena_chunk) <= CACHE_LINE, "the header of a chunk fits its room");

void arena_init(struct arena *a, size_t chunk_size, struct arena_pool *pool) {
  assert(!pool || pool->chunk_size == chunk_size);
  assert(chunk_size >= 65536 && (chunk_size & (chunk_size - 1)) == 0);
  atomic_init(&a->chunk, NULL);
  atomic_init(&a->large_used, 0);
  a->large = NULL;
  a->chunk_size = chunk_size;
  a->pool = pool;
  (void)pthread_mutex_init(&a->lock, NULL);
}

static inline size_t pool_get(const _Atomic size_t *field) { return atomic_load_explicit(field, memory_order_relaxed); }
static inline void pool_set(_Atomic size_t *field, size_t n) { atomic_store_explicit(field, n, memory_order_relaxed); }
static inline void pool_spilled(struct arena_pool *p, bool is) {
  atomic_store_explicit(&p->spilled, is, memory_order_relaxed);
}

// Keeps the chunk for the next arena. Returns false when the pool is full.
static bool arena_pool_put(struct arena_pool *p, struct arena_chunk *c) {
  (void)pthread_mutex_lock(&p->lock);
  const bool kept = pool_get(&p->held) + c->size <= pool_get(&p->limit);
  if (kept) {
    c->next = p->chunks;
    p->chunks = c;
    pool_set(&p->held, pool_get(&p->held) + c->size);
  } else {
    pool_spilled(p, true);
  }
  (void)pthread_mutex_unlock(&p->lock);
  return kept;
}

static struct arena_chunk *arena_pool_take(struct arena_pool *p) {
  (void)pthread_mutex_lock(&p->lock);
  struct arena_chunk *const c = p->chunks;
  if (c) {
    p->chunks = c->next;
    pool_set(&p->held, pool_get(&p->held) - c->size);
  } else {
    pool_spilled(p, false);
  }
  (void)pthread_mutex_unlock(&p->lock);
  if (c) arena_hide((uint8_t *)c + ARENA_HEAD, c->size - ARENA_HEAD);
  return c;
}

static void arena_free_list(struct arena_chunk *c, struct arena_pool *pool) {
  while (c) {
    struct arena_chunk *const next = c->next;
    struct mem_map map = c->map;  // a copy, because the header lies in the map
    if (pool && arena_pool_put(pool, c)) {
      c = next;
      continue;
    }
    arena_show(c, c->size);  // the memory returns to the system
    if (map.ptr) mem_unmap(&map);
    else mem_free(c);
    c = next;
  }
}

void arena_pool_init(struct arena_pool *p, size_t chunk_size, size_t limit) {
  *p = (struct arena_pool){.chunk_size = chunk_size, .limit = limit};
  (void)pthread_mutex_init(&p->lock, NULL);
}

void arena_pool_fini(struct arena_pool *p) {
  arena_free_list(p->chunks, NULL);
  p->chunks = NULL;
  (void)pthread_mutex_destroy(&p->lock);
}

size_t arena_pool_held(struct arena_pool *p) { return pool_get(&p->held); }

void arena_fini(struct arena *a) {
  arena_free_list(atomic_load_explicit(&a->chunk, memory_order_relaxed), a->pool);
  arena_free_list(a->large, NULL);
  atomic_store_explicit(&a->chunk, NULL, memory_order_relaxed);
  a->large = NULL;
  (void)pthread_mutex_destroy(&a->lock);
}

// Makes a chunk of at least `size` bytes, of which `cut` are taken. NULL: REMIXDB_NOMEM.
static struct arena_chunk *arena_chunk_create(size_t size, size_t cut) {
  struct mem_map map = {NULL, 0, 0};
  struct arena_chunk *c;
  if (size >= (size_t)1 << 20) {
    if (mem_map(size, &map) != REMIXDB_OK) return NULL;
    c = (struct arena_chunk *)map.ptr;
    size = map.size;
  } else {
    c = mem_alloc_aligned(CACHE_LINE, size);
    if (!c) return NULL;
  }
  atomic_init(&c->cut, cut);
  c->size = size;
  c->base = 0;
  c->next = NULL;
  c->map = map;
  arena_hide((uint8_t *)c + ARENA_HEAD, size - ARENA_HEAD);
  return c;
}

void arena_pool_trim(struct arena_pool *p, size_t keep) {
  struct arena_chunk *out = NULL;
  (void)pthread_mutex_lock(&p->lock);
  while (pool_get(&p->held) > keep) {
    struct arena_chunk *const c = p->chunks;
    p->chunks = c->next;
    pool_set(&p->held, pool_get(&p->held) - c->size);
    c->next = out;
    out = c;
  }
  (void)pthread_mutex_unlock(&p->lock);
  arena_free_list(out, NULL);
}

void arena_pool_limit(struct arena_pool *p, size_t limit) {
  (void)pthread_mutex_lock(&p->lock);
  pool_set(&p->limit, limit);
  (void)pthread_mutex_unlock(&p->lock);
  arena_pool_trim(p, limit);
}

bool arena_pool_short(struct arena_pool *p, size_t enough) {
  const size_t held = pool_get(&p->held);
  return held < enough && held + p->chunk_size <= pool_get(&p->limit) &&
         !atomic_load_explicit(&p->spilled, memory_order_relaxed);
}

void arena_pool_drains(struct arena_pool *p) {
  (void)pthread_mutex_lock(&p->lock);
  pool_spilled(p, false);
  (void)pthread_mutex_unlock(&p->lock);
}

bool arena_pool_fill(struct arena_pool *p, size_t enough) {
  if (!arena_pool_short(p, enough)) return false;
  struct arena_chunk *const c = arena_chunk_create(p->chunk_size, ARENA_HEAD);
  if (!c) return false;
  arena_show((uint8_t *)c + ARENA_HEAD, c->size - ARENA_HEAD);
  for (size_t at = ARENA_HEAD; at < c->size; at += 4096) *((volatile uint8_t *)c + at) = 0;
  c->next = NULL;
  const bool kept = arena_pool_put(p, c);  // other threads may have filled the pool
  if (!kept) arena_free_list(c, NULL);
  return kept;
}

static void *arena_cut(struct arena_chunk *c, size_t size) {
  // A full chunk is not added to, so `cut` cannot wrap.
  if (atomic_load_explicit(&c->cut, memory_order_relaxed) > c->size) return NULL;
  const size_t at = atomic_fetch_add_explicit(&c->cut, size, memory_order_relaxed);
  return likely(at <= c->size && size <= c->size - at) ? (uint8_t *)c + at : NULL;
}

// A large allocation gets a chunk of its own. Later small allocations still come from the current chunk.
static void *arena_alloc_large(struct arena *a, size_t size) {
  if (size > SIZE_MAX / 2) {
    (void)err_set(REMIXDB_NOMEM, "no memory for %zu bytes", size);
    return NULL;
  }
  struct arena_chunk *const c = arena_chunk_create(size + ARENA_HEAD, size + ARENA_HEAD);
  if (!c) return NULL;
  (void)pthread_mutex_lock(&a->lock);
  c->next = a->large;
  a->large = c;
  (void)pthread_mutex_unlock(&a->lock);
  atomic_fetch_add_explicit(&a->large_used, size, memory_order_relaxed);
  return (uint8_t *)c + ARENA_HEAD;
}

// Allocates after `full` was found full: takes the next chunk, unless another thread has done so already.
static void *arena_alloc_slow(struct arena *a, struct arena_chunk *full, size_t size) {
  void *p = NULL;
  (void)pthread_mutex_lock(&a->lock);
  for (;;) {
    struct arena_chunk *c = atomic_load_explicit(&a->chunk, memory_order_acquire);
    if (c != full) {
      p = arena_cut(c, size);
      if (p) break;
      full = c;
    }
    c = a->pool ? arena_pool_take(a->pool) : NULL;
    if (c) atomic_store_explicit(&c->cut, ARENA_HEAD + size, memory_order_relaxed);
    else c = arena_chunk_create(a->chunk_size, ARENA_HEAD + size);
    if (!c) break;
    p = (uint8_t *)c + ARENA_HEAD;
    c->base = full ? full->base + full->size - ARENA_HEAD : 0;
    c->next = full;
    atomic_store_explicit(&a->chunk, c, memory_order_release);
    break;
  }
  (void)pthread_mutex_unlock(&a->lock);
  return p;
}

void *arena_alloc(struct arena *a, size_t size) {
  assert(size > 0);
  void *p;
  const size_t full = align_up(size + ARENA_GAP, 8);
  if (unlikely(size > a->chunk_size / 4)) {
    p = arena_alloc_large(a, size > SIZE_MAX / 2 ? size : full);
  } else {
    struct arena_chunk *const c = atomic_load_explicit(&a->chunk, memory_order_acquire);
    p = likely(c != NULL) ? arena_cut(c, full) : NULL;
    if (unlikely(!p)) p = arena_alloc_slow(a, c, full);
  }
  if (p) arena_show(p, size);
  return p;
}

size_t arena_used_small(const struct arena *a) {
  struct arena_chunk *const c = atomic_load_explicit(&a->chunk, memory_order_acquire);
  if (!c) return 0;
  const size_t cut = atomic_load_explicit(&c->cut, memory_order_relaxed);
  return c->base + (cut < c->size ? cut : c->size) - ARENA_HEAD;
}

size_t arena_used(const struct arena *a) {
  return atomic_load_explicit(&a->large_used, memory_order_relaxed) + arena_used_small(a);
}

// ---- lock (the third mutex of Drepper's "Futexes Are Tricky", with a short spin before it)

static uint32_t lib_spins(void) {
  static _Atomic uint32_t cached;  // 0 not known, else spins + 1
  uint32_t n = atomic_load_explicit(&cached, memory_order_relaxed);
  if (n == 0) {
    n = thread_cores(NULL, 0) > 1 ? 101 : 1;
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

// ---- threads

struct thread_start_arg {
  void *(*fn)(void *);
  void *arg;
  char name[16];
};

static void *thread_main(void *p) {
  struct thread_start_arg a;
  memcpy(&a, p, sizeof(a));
  mem_free(p);
  // Some systems let only the thread itself set its name. A refused name is no loss.
#if defined(__linux__)
  (void)pthread_setname_np(pthread_self(), a.name);
#elif defined(__APPLE__)
  (void)pthread_setname_np(a.name);
#elif defined(__FreeBSD__)
  pthread_set_name_np(pthread_self(), a.name);
#endif
  return a.fn(a.arg);
}

bool (*_Atomic thread_fault)(void);

enum remixdb_status thread_start(pthread_t *out, void *(*fn)(void *), void *arg, const char *name) {
  struct thread_start_arg *const a = mem_calloc(1, sizeof(*a));
  if (!a) return REMIXDB_NOMEM;
  a->fn = fn;
  a->arg = arg;
  const size_t len = strlen(name);
  memcpy(a->name, name, len < sizeof(a->name) ? len : sizeof(a->name) - 1);
  // A new thread inherits the mask, so signals go to the program's own threads.
  sigset_t all, old;
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &old);
  bool (*const fault)(void) = atomic_load_explicit(&thread_fault, memory_order_relaxed);
  const int rc = unlikely(fault != NULL) && !fault() ? EAGAIN : pthread_create(out, NULL, thread_main, a);
  (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (rc == 0) return REMIXDB_OK;
  mem_free(a);
  return err_errno(rc == EAGAIN ? ENOMEM : rc, "starting thread", name);
}

#define THREAD_CORES_MAX 65536u

uint32_t thread_cores(uint32_t *cores_out, uint32_t cap) {
  uint32_t nr = 0;
#if defined(__linux__)
  union {
    cpu_set_t set;
    uint64_t words[THREAD_CORES_MAX / 64];
  } mask;  // a kernel with more processors than a cpu_set_t holds refuses a smaller mask
  memset(&mask, 0, sizeof(mask));
  if (sched_getaffinity(0, sizeof(mask), &mask.set) == 0) {
    for (uint32_t i = 0; i < THREAD_CORES_MAX; i++) {
      if (i % 64 == 0 && mask.words[i / 64] == 0) {  // skips most of the mask
        i += 63;
        continue;
      }
      if (!CPU_ISSET_S(i, sizeof(mask), &mask.set)) continue;
      if (nr < cap) cores_out[nr] = i;
      nr++;
    }
  }
#elif defined(__FreeBSD__)
  cpuset_t set;
  CPU_ZERO(&set);
  if (cpuset_getaffinity(CPU_LEVEL_WHICH, CPU_WHICH_PID, -1, sizeof(set), &set) == 0) {
    for (uint32_t i = 0; i < CPU_SETSIZE; i++) {
      if (!CPU_ISSET(i, &set)) continue;
      if (nr < cap) cores_out[nr] = i;
      nr++;
    }
  }
#endif
  if (nr > 0) return nr;
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  nr = online > 0 ? (uint32_t)online : 1;
  for (uint32_t i = 0; i < nr && i < cap; i++) cores_out[i] = i;
  return nr;
}

bool thread_pin(uint32_t core) {
#if defined(__linux__)
  union {
    cpu_set_t set;
    uint8_t bytes[THREAD_CORES_MAX / 8];
  } mask;
  if (core >= THREAD_CORES_MAX) return false;
  memset(&mask, 0, sizeof(mask));
  CPU_SET_S(core, sizeof(mask), &mask.set);
  return pthread_setaffinity_np(pthread_self(), sizeof(mask), &mask.set) == 0;
#elif defined(__FreeBSD__)
  cpuset_t set;
  if (core >= CPU_SETSIZE) return false;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
#else
  (void)core;
  return false;
#endif
}

uint64_t process_descriptors(void) {
  struct rlimit r;
  return getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur != RLIM_INFINITY ? (uint64_t)r.rlim_cur : UINT64_MAX;
}

// Parses the number at *p and moves past it. Returns false when there are no digits or the number is too large.
static bool thread_parse_core(const char **p, uint32_t *core_out) {
  uint32_t n = 0;
  const char *s = *p;
  if (*s < '0' || *s > '9') return false;
  for (; *s >= '0' && *s <= '9'; s++) {
    n = n * 10 + (uint32_t)(*s - '0');
    if (n >= THREAD_CORES_MAX) return false;
  }
  *p = s;
  *core_out = n;
  return true;
}

enum remixdb_status thread_parse_cores(const char *list, uint32_t *cores_out, uint32_t cap, uint32_t *nr_out) {
  uint32_t nr = 0;
  for (const char *p = list;; p++) {
    uint32_t first, last;
    if (!thread_parse_core(&p, &first)) goto bad;
    last = first;
    if (*p == '-') {
      p++;
      if (!thread_parse_core(&p, &last) || last < first) goto bad;
    }
    for (uint32_t core = first; core <= last; core++) {
      if (nr == cap) return err_set(REMIXDB_INVALID, "list of cores \"%s\": more than %u", list, cap);
      cores_out[nr++] = core;
    }
    if (*p == '\0') break;
    if (*p != ',') goto bad;
  }
  *nr_out = nr;
  return REMIXDB_OK;
bad:
  return err_set(REMIXDB_INVALID, "list of cores \"%s\": not of the form 0,2,4-7", list);
}

void cond_init(pthread_cond_t *c) {
#if defined(__APPLE__)
  (void)pthread_cond_init(c, NULL);
#else
  pthread_condattr_t attr;
  (void)pthread_condattr_init(&attr);
  (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  (void)pthread_cond_init(c, &attr);
  (void)pthread_condattr_destroy(&attr);
#endif
}

static struct timespec time_spec(uint64_t ns) {
  return (struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
}

void thread_join(pthread_t t) {
  CANCEL_LATER;
  (void)pthread_join(t, NULL);
}

void cond_wait(pthread_cond_t *c, pthread_mutex_t *m) {
  CANCEL_LATER;
  (void)pthread_cond_wait(c, m);
}

bool cond_wait_ns(pthread_cond_t *c, pthread_mutex_t *m, uint64_t ns) {
  CANCEL_LATER;
  if (ns > (uint64_t)1 << 60) ns = (uint64_t)1 << 60;  // 36 years: the sum below cannot wrap
#if defined(__APPLE__)
  const struct timespec ts = time_spec(ns);
  return pthread_cond_timedwait_relative_np(c, m, &ts) != ETIMEDOUT;
#else
  const struct timespec ts = time_spec(time_ns() + ns);
  return pthread_cond_timedwait(c, m, &ts) != ETIMEDOUT;
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
