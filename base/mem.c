// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__linux__)
#include <malloc.h>
#elif defined(__APPLE__)
#include <malloc/malloc.h>
#elif defined(__FreeBSD__)
#include <malloc_np.h>
#endif

#include "lib.h"

#if !defined(MAP_ANONYMOUS)
#define MAP_ANONYMOUS MAP_ANON
#endif

#define HEAP_STEP ((size_t)64 << 10)
// The heap is trimmed when its small blocks have so many bytes fewer than at their most.
#define HEAP_MUCH ((size_t)4 << 20)

bool (*_Atomic mem_fault)(size_t size);
_Atomic size_t mem_large_from = MEM_LARGE;

static _Atomic size_t heap_bytes;    // in small blocks, as the heap rounds them; relaxed
static _Atomic size_t heap_most;     // about the most of these since the heap was trimmed; relaxed
static _Atomic size_t mapped_bytes;  // bytes of mem_map's mappings; relaxed

static _Thread_local bool hurried;
static _Thread_local uint64_t nr_changes;

void mem_hurry(bool on) { hurried = on; }

uint64_t mem_changes(void) { return nr_changes; }

static inline bool mem_denied(size_t size) {
  bool (*const fault)(size_t) = atomic_load_explicit(&mem_fault, memory_order_relaxed);
  return unlikely(fault != NULL) && !fault(size);
}

static void *mem_check(void *p, size_t size) {
  if (unlikely(!p)) (void)err_set(REMIXDB_NOMEM, "no memory for %zu bytes", size);
  return p;
}

static size_t page_size(void) {
  static _Atomic size_t cached;
  size_t page = atomic_load_explicit(&cached, memory_order_relaxed);
  if (likely(page != 0)) return page;
  const long said = sysconf(_SC_PAGESIZE);
  page = said > 0 ? (size_t)said : 4096;
  atomic_store_explicit(&cached, page, memory_order_relaxed);
  return page;
}

// ---- pages of the system

static void *pages_map(size_t size, int flags) {
  nr_changes++;
  void *const p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

// Linux takes the memory at once by MADV_DONTNEED. FreeBSD and macOS would keep the bytes of anonymous pages then, if
// need be in the swap space. By MADV_FREE these take the memory when they need it.
static void pages_give_back(void *p, size_t size) {
#if defined(__linux__) || !defined(MADV_FREE)
  (void)madvise(p, size, MADV_DONTNEED);
#else
  (void)madvise(p, size, MADV_FREE);
#endif
}

// A process that has as many mappings as it may have cannot cut one in two. Then the memory goes back, and only the
// addresses stay taken.
static void pages_unmap(void *p, size_t size) {
  nr_changes++;
  if (munmap(p, size) != 0) pages_give_back(p, size);
}

// ---- large blocks
//
// Each is a mapping of its own. A table has their sizes by address, because mem_free gets nothing but the address. Only
// an address at the start of a page is looked up there, so most small blocks never are.

struct region {
  uint8_t *at;  // NULL: the slot is free
  size_t size;  // bytes mapped
};

#define LARGE_SLOTS_MIN 256u
// More blocks than this go to the heap. The system bounds the mappings of a process; Linux allows 65530.
#define LARGE_NR_MAX 16384u
// Blocks that were freed and are kept for the next ones. Only threads in a hurry keep more blocks, and more bytes.
#define KEPT_NR 128u
#define KEPT_NR_MOST (KEPT_NR + 32u)
#define KEPT_MORE 4u                   // 1/4 of the bytes
#define KEPT_LEAST ((size_t)32 << 10)  // bytes
// No more is kept, however many stores ask: a processor has no use for more, and the tables of a large cache are no
// work's next block.
#define KEPT_MOST ((size_t)64 << 20)
#define KEPT_BLOCK_MOST ((size_t)8 << 20)
// A zeroed block of so many bytes is mapped anew: its owner may never touch most of it, and zeroing a kept block would
// touch it all.
#define FRESH_FROM ((size_t)1 << 20)

static struct {
  struct lib_lock lock;  // guards all; no other lock is taken under it
  struct region *slots;  // open addressing, half full at most
  size_t nr_slots, nr;   // a power of two, or 0
  size_t bytes;
  struct region kept[KEPT_NR_MOST];  // the oldest first
  uint32_t nr_kept;
  size_t kept_bytes, kept_asked;  // kept_asked: the sum of mem_keep
  uint64_t nr_mapped, nr_reused;
} large;

static inline size_t slot_of(const uint8_t *at, size_t nr_slots) {
  return (size_t)(((uint64_t)(uintptr_t)at >> 12) * 0x9E3779B97F4A7C15ull >> 32) & (nr_slots - 1);
}

static void slots_put(struct region *slots, size_t nr_slots, struct region r) {
  size_t i = slot_of(r.at, nr_slots);
  while (slots[i].at) i = (i + 1) & (nr_slots - 1);
  slots[i] = r;
}

// Makes room for one region more. Returns false without memory. The caller has the lock.
static bool slots_reserve(void) {
  if (likely(2 * (large.nr + 1) <= large.nr_slots)) return true;
  const size_t more = large.nr_slots ? 2 * large.nr_slots : LARGE_SLOTS_MIN;
  struct region *const slots = pages_map(more * sizeof(*slots), 0);
  if (!slots) return false;
  for (size_t i = 0; i < large.nr_slots; i++)
    if (large.slots[i].at) slots_put(slots, more, large.slots[i]);
  if (large.slots) pages_unmap(large.slots, large.nr_slots * sizeof(*slots));
  large.slots = slots;
  large.nr_slots = more;
  return true;
}

// Returns the slot of the region, or nr_slots. The caller has the lock.
static size_t slots_find(const uint8_t *at) {
  if (large.nr == 0) return large.nr_slots;
  size_t i = slot_of(at, large.nr_slots);
  for (; large.slots[i].at; i = (i + 1) & (large.nr_slots - 1))
    if (large.slots[i].at == at) return i;
  return large.nr_slots;
}

// Empties a slot. Regions behind it move up, if their own place is not behind the slot.
static void slots_remove(size_t hole) {
  const size_t mask = large.nr_slots - 1;
  for (size_t i = (hole + 1) & mask; large.slots[i].at; i = (i + 1) & mask) {
    const size_t home = slot_of(large.slots[i].at, large.nr_slots);
    if (((i - home) & mask) < ((i - hole) & mask)) continue;
    large.slots[hole] = large.slots[i];
    hole = i;
  }
  large.slots[hole].at = NULL;
}

// The caller has the lock of `large` for all of these.
static inline size_t kept_limit(void) { return large.kept_asked < KEPT_MOST ? large.kept_asked : KEPT_MOST; }
static inline size_t kept_block_most(void) {
  return kept_limit() / 4 < KEPT_BLOCK_MOST ? kept_limit() / 4 : KEPT_BLOCK_MOST;
}

static struct region kept_remove(uint32_t i) {
  const struct region r = large.kept[i];
  memmove(&large.kept[i], &large.kept[i + 1], (--large.nr_kept - i) * sizeof(r));
  large.kept_bytes -= r.size;
  return r;
}

// Moves kept blocks to out, the oldest first, until those that stay have at most so many bytes. Returns how many.
static uint32_t kept_shrink(size_t bytes, struct region *out) {
  uint32_t nr = 0;
  while (large.kept_bytes > bytes) out[nr++] = kept_remove(0);
  return nr;
}

static void regions_unmap(const struct region *r, uint32_t nr) {
  for (uint32_t i = 0; i < nr; i++) pages_unmap(r[i].at, r[i].size);
}

// Takes `size` bytes of the smallest kept block that has so many. at NULL: none has, or more than twice as many: the
// next work of the same kind needs such a block whole, unless the thread is in a hurry. A rest that is worth it stays
// kept; a small one goes with the block, or into *rest for the caller to unmap.
static struct region kept_take(size_t size, struct region *rest) {
  uint32_t best = KEPT_NR_MOST;
  *rest = (struct region){NULL, 0};
  for (uint32_t i = 0; i < large.nr_kept; i++)
    if (large.kept[i].size >= size && (best == KEPT_NR_MOST || large.kept[i].size < large.kept[best].size)) best = i;
  if (best == KEPT_NR_MOST || (!hurried && large.kept[best].size / 2 > size)) return (struct region){NULL, 0};
  struct region *const k = &large.kept[best];
  const size_t left = k->size - size;
  if (left >= KEPT_LEAST) {
    k->size = left;
    large.kept_bytes -= size;
    return (struct region){k->at + left, size};
  }
  struct region r = kept_remove(best);
  if (left > size / 8 && !hurried) {
    *rest = (struct region){r.at + size, left};
    r.size = size;
  }
  return r;
}

// Enters the block in the table. Returns false if there is no room.
static bool large_enter(struct region r, bool reused) {
  if (!slots_reserve()) return false;
  slots_put(large.slots, large.nr_slots, r);
  large.nr++;
  large.bytes += r.size;
  large.nr_reused += reused;
  large.nr_mapped += !reused;
  return true;
}

// Whether a block of this size is to be a mapping.
static inline bool is_large(size_t size) {
  return unlikely(size >= atomic_load_explicit(&mem_large_from, memory_order_relaxed));
}

// Takes a large block. *clean_out: it is zeroed. NULL without memory; *full_out: there are too many already. zeroed: it
// is to be zeroed, now or by the caller.
static void *large_alloc(size_t size, bool zeroed, bool *clean_out, bool *full_out) {
  struct region r = {NULL, align_up(size, page_size())};
  *full_out = *clean_out = false;
  if (r.size < size) return NULL;
  lib_lock(&large.lock);
  if (large.nr >= LARGE_NR_MAX) {
    lib_unlock(&large.lock);
    *full_out = true;
    return NULL;
  }
  struct region rest = {NULL, 0}, kept = {NULL, 0};
  if (!zeroed || r.size < FRESH_FROM || hurried) kept = kept_take(r.size, &rest);
  bool entered = kept.at && large_enter(kept, true);
  lib_unlock(&large.lock);
  regions_unmap(&rest, rest.at != NULL);
  if (entered) return kept.at;
  regions_unmap(&kept, kept.at != NULL);
  r.at = pages_map(r.size, 0);
  if (!r.at) return NULL;
  lib_lock(&large.lock);
  entered = large_enter(r, false);
  lib_unlock(&large.lock);
  *clean_out = true;
  if (!entered) pages_unmap(r.at, r.size);
  return entered ? r.at : NULL;
}

// Frees p if it is a large block, and returns whether it is.
static bool large_free(void *p) {
  struct region out[KEPT_NR_MOST + 1];
  uint32_t nr_out = 0;
  lib_lock(&large.lock);
  const size_t slot = slots_find(p);
  if (slot == large.nr_slots) {
    lib_unlock(&large.lock);
    return false;
  }
  const struct region r = large.slots[slot];
  slots_remove(slot);
  large.nr--;
  large.bytes -= r.size;
  if (r.size > kept_block_most()) {
    out[nr_out++] = r;
  } else {
    const size_t most = kept_limit() + (hurried ? kept_limit() / KEPT_MORE : 0);
    while (large.nr_kept >= (hurried ? KEPT_NR_MOST : KEPT_NR)) out[nr_out++] = kept_remove(0);
    nr_out += kept_shrink(most - r.size, out + nr_out);
    large.kept[large.nr_kept++] = r;
    large.kept_bytes += r.size;
  }
  lib_unlock(&large.lock);
  regions_unmap(out, nr_out);
  return true;
}

// Returns the bytes of p if it is a large block, else 0.
static size_t large_size(const void *p) {
  if (((uintptr_t)p & 4095) != 0 || !p) return 0;
  lib_lock(&large.lock);
  const size_t slot = slots_find(p);
  const size_t size = slot == large.nr_slots ? 0 : large.slots[slot].size;
  lib_unlock(&large.lock);
  return size;
}

// The heap keeps what threads have freed in the arenas of each of them. Gives it back.
static void heap_trim(void) {
  atomic_store_explicit(&heap_most, atomic_load_explicit(&heap_bytes, memory_order_relaxed), memory_order_relaxed);
#if defined(__GLIBC__)
  if (!LIB_SANITIZED) (void)malloc_trim(0);
#endif
}

void mem_trim(void) {
  struct region out[KEPT_NR_MOST];
  lib_lock(&large.lock);
  const uint32_t nr = kept_shrink(0, out);
  lib_unlock(&large.lock);
  regions_unmap(out, nr);
  const size_t heap = atomic_load_explicit(&heap_bytes, memory_order_relaxed);
  if (atomic_load_explicit(&heap_most, memory_order_relaxed) >= heap + HEAP_MUCH) heap_trim();
}

void mem_keep(size_t more) {
  lib_lock(&large.lock);
  large.kept_asked += more;
  lib_unlock(&large.lock);
}

void mem_keep_less(size_t less) {
  struct region out[KEPT_NR_MOST], slots = {NULL, 0};
  lib_lock(&large.lock);
  assert(less <= large.kept_asked);
  large.kept_asked -= less;
  const uint32_t nr = kept_shrink(kept_limit(), out);
  if (large.nr == 0 && large.kept_asked == 0 && large.slots) {
    slots = (struct region){(uint8_t *)large.slots, large.nr_slots * sizeof(*large.slots)};
    large.slots = NULL;
    large.nr_slots = 0;
  }
  const bool last = large.kept_asked == 0;
  lib_unlock(&large.lock);
  regions_unmap(out, nr);
  regions_unmap(&slots, slots.at != NULL);
  if (last) heap_trim();
}

void mem_fork_hold(void) { lib_lock(&large.lock); }
void mem_fork_release(void) { lib_unlock(&large.lock); }

void mem_stats(struct mem_stats *out) {
  *out = (struct mem_stats){.heap = atomic_load_explicit(&heap_bytes, memory_order_relaxed),
                            .mapped = atomic_load_explicit(&mapped_bytes, memory_order_relaxed)};
  lib_lock(&large.lock);
  out->large = large.bytes;
  out->kept = large.kept_bytes;
  out->nr_large = large.nr;
  out->nr_mapped = large.nr_mapped;
  out->nr_reused = large.nr_reused;
  lib_unlock(&large.lock);
}

// ---- small blocks

// Bytes of a block of the heap; 0 where the system does not tell.
static inline size_t heap_size(void *p) {
#if defined(__linux__) || defined(__FreeBSD__)
  return malloc_usable_size(p);
#elif defined(__APPLE__)
  return malloc_size(p);
#else
  (void)p;
  return 0;
#endif
}

// Counts `more` bytes of small blocks; a realloc that shrinks passes a negative number, modulo 2^n.
static inline void heap_grew(size_t more) {
  const size_t now = atomic_fetch_add_explicit(&heap_bytes, more, memory_order_relaxed) + more;
  // in steps, so that a growing heap mostly writes nothing here
  if (unlikely(now > atomic_load_explicit(&heap_most, memory_order_relaxed) + HEAP_STEP))
    atomic_store_explicit(&heap_most, now, memory_order_relaxed);
}

static inline void *heap_count(void *p) {
  if (likely(p != NULL)) heap_grew(heap_size(p));
  return p;
}

static inline void heap_uncount(void *p) {
  if (p) (void)atomic_fetch_sub_explicit(&heap_bytes, heap_size(p), memory_order_relaxed);
}

// malloc(0) may return NULL, which means failure here. So these ask for a byte.
static void *heap_alloc(size_t size, bool zeroed) {
  return heap_count(zeroed ? calloc(1, size ? size : 1) : malloc(size ? size : 1));
}

static void *block_take(size_t size, bool zeroed) {
  if (is_large(size)) {
    bool clean, full;
    void *const p = large_alloc(size, zeroed, &clean, &full);
    if (p && zeroed && !clean) memset(p, 0, size);
    if (!full) return p;
  }
  return heap_alloc(size, zeroed);
}

void *mem_alloc(size_t size) { return mem_check(mem_denied(size) ? NULL : block_take(size, false), size); }

void *mem_calloc(size_t nr, size_t size) {
  size_t all;
  if (__builtin_mul_overflow(nr, size, &all)) return mem_check(NULL, SIZE_MAX);
  return mem_check(mem_denied(all) ? NULL : block_take(all, true), all);
}

// Returns the bytes of the elements and of what is behind them; SIZE_MAX: too many.
static size_t array_size(size_t nr, size_t size, size_t extra) {
  size_t all;
  return unlikely(__builtin_mul_overflow(nr, size, &all)) ? SIZE_MAX : mem_sum(all, extra);
}

void *mem_array(size_t nr, size_t size, size_t extra) {
  const size_t all = array_size(nr, size, extra);
  return likely(all < SIZE_MAX) ? mem_alloc(all) : mem_check(NULL, all);
}

void *mem_alloc_aligned(size_t align, size_t size) {
  void *p = NULL;
  if (align < sizeof(void *)) align = sizeof(void *);
  if (mem_denied(size)) return mem_check(NULL, size);
  if (is_large(size) && align <= page_size()) {
    bool clean, full;
    p = large_alloc(size, false, &clean, &full);
    if (!full) return mem_check(p, size);
  }
  if (posix_memalign(&p, align, size ? size : 1) != 0) p = NULL;
  return mem_check(heap_count(p), size);
}

void mem_free(void *p) {
  if (unlikely(((uintptr_t)p & 4095) == 0) && p && large_free(p)) return;
  heap_uncount(p);
  free(p);
}

// Moves `has` bytes of p into a new block. p stays valid on failure.
static void *block_move(void *p, size_t has, size_t size) {
  void *const to = block_take(size, false);
  if (!to) return NULL;
  memcpy(to, p, has < size ? has : size);
  mem_free(p);
  return to;
}

// Lets a large block grow or shrink where it is or by moving its pages, without a copy. NULL: the system refuses.
static void *large_resize(void *p, size_t has, size_t size) {
#if defined(__linux__)
  const size_t full = align_up(size, page_size());
  if (full < size) return NULL;
  // The system may take long, so nobody waits for the lock meanwhile. The block still counts in large.nr, so its place
  // in the table stays free.
  lib_lock(&large.lock);
  const size_t slot = slots_find(p);
  assert(slot != large.nr_slots);
  slots_remove(slot);
  lib_unlock(&large.lock);
  nr_changes++;
  uint8_t *const to = mremap(p, has, full, MREMAP_MAYMOVE);
  lib_lock(&large.lock);
  slots_put(large.slots, large.nr_slots, to == MAP_FAILED ? (struct region){p, has} : (struct region){to, full});
  if (to != MAP_FAILED) large.bytes += full - has;
  lib_unlock(&large.lock);
  return to == MAP_FAILED ? NULL : to;
#else
  (void)p, (void)has, (void)size;
  return NULL;
#endif
}

static void *heap_realloc(void *p, size_t size) {
  const size_t had = p ? heap_size(p) : 0;
  void *const to = realloc(p, size ? size : 1);
  if (to) heap_grew(heap_size(to) - had);
  return to;
}

void *mem_realloc(void *p, size_t size) {
  if (!p) return mem_alloc(size);
  if (mem_denied(size)) return mem_check(NULL, size);
  const size_t has = large_size(p);
  void *to = NULL;
  if (has && is_large(size)) to = size <= has && align_up(size, page_size()) == has ? p : large_resize(p, has, size);
  if (!to && has) to = block_move(p, has, size);
  if (!to && !has && is_large(size) && heap_size(p)) to = block_move(p, heap_size(p), size);
  else if (!to && !has) to = heap_realloc(p, size);
  return mem_check(to, size);
}

void *mem_grow(void *p, size_t *cap, size_t first, size_t size) {
  size_t more = first;
  if (*cap && __builtin_mul_overflow(*cap, (size_t)2, &more)) return mem_check(NULL, SIZE_MAX);
  const size_t all = array_size(more, size, 0);
  void *const grown = likely(all < SIZE_MAX) ? mem_realloc(p, all) : mem_check(NULL, all);
  if (grown) *cap = more;
  return grown;
}

void *mem_grow32(void *p, uint32_t *cap, uint32_t first, size_t size) {
  size_t more = *cap;
  if (unlikely(*cap > UINT32_MAX / 2)) return mem_check(NULL, SIZE_MAX);
  void *const grown = mem_grow(p, &more, first, size);
  if (grown) *cap = (uint32_t)more;
  return grown;
}

// ---- mappings

#define MEM_PAGE_2M ((size_t)1 << 21)
#define MEM_PAGE_1G ((size_t)1 << 30)
#define MEM_TABLE_MAP ((size_t)1 << 20)
#define COLLAPSE_TRIES 3u
#if defined(__linux__) && !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25  // since Linux 6.1; the C library's headers may be older
#endif

#if defined(MAP_HUGETLB)
#if !defined(MAP_HUGE_SHIFT)
#define MAP_HUGE_SHIFT 26
#endif
static bool mem_map_huge(size_t size, size_t page, struct mem_map *out) {
  const size_t full = align_up(size, page);
  if (full < size || full - size > size / 8) return false;
  void *const p = pages_map(full, MAP_HUGETLB | (__builtin_ctzll(page) << MAP_HUGE_SHIFT));
  if (!p) return false;
  *out = (struct mem_map){p, full, page};
  (void)atomic_fetch_add_explicit(&mapped_bytes, full, memory_order_relaxed);
  return true;
}
#endif

enum remixdb_status mem_map(size_t size, struct mem_map *out) {
  *out = (struct mem_map){NULL, 0, 0};
  if (mem_denied(size)) return err_set(REMIXDB_NOMEM, "no memory for a mapping of %zu bytes", size);
#if defined(MAP_HUGETLB)
  if (mem_map_huge(size, MEM_PAGE_1G, out) || mem_map_huge(size, MEM_PAGE_2M, out)) return REMIXDB_OK;
#endif
  const size_t page = page_size();
  const size_t full = align_up(size ? size : 1, page);
  // Transparent huge pages must be aligned. So this maps more, and returns the parts before and after.
  const size_t slack = full >= MEM_PAGE_2M ? MEM_PAGE_2M : 0;
  uint8_t *p = full >= size && full + slack >= full ? pages_map(full + slack, 0) : NULL;
  if (!p) return err_set(REMIXDB_NOMEM, "no memory for a mapping of %zu bytes", size);
  if (slack) {
    const size_t before = (size_t)(align_up((uintptr_t)p, MEM_PAGE_2M) - (uintptr_t)p);
    if (before) pages_unmap(p, before);
    p += before;
    if (slack - before) pages_unmap(p + full, slack - before);
#if defined(MADV_HUGEPAGE)
    (void)madvise(p, full, MADV_HUGEPAGE);
#endif
  }
  *out = (struct mem_map){p, full, page};
  (void)atomic_fetch_add_explicit(&mapped_bytes, full, memory_order_relaxed);
  return REMIXDB_OK;
}

enum remixdb_status mem_map_table(size_t size, struct mem_map *out) {
  if (size >= MEM_TABLE_MAP) return mem_map(size, out);
  *out = (struct mem_map){mem_alloc_aligned(CACHE_LINE, size), size, 0};
  return out->ptr ? REMIXDB_OK : REMIXDB_NOMEM;
}

size_t memory_size(void) {
#if defined(_SC_PHYS_PAGES)
  const long pages = sysconf(_SC_PHYS_PAGES);
  if (pages > 0 && (size_t)pages < SIZE_MAX / page_size()) return (size_t)pages * page_size();
#endif
  return 0;
}

enum remixdb_status mem_reserve(size_t size, size_t most, struct mem_map *out) {
  *out = (struct mem_map){NULL, 0, 0};
#if defined(MAP_NORESERVE)
  const size_t page = page_size(), full = align_up(most, MEM_PAGE_2M);
  if (most > size && full >= most && !mem_denied(size)) {
    uint8_t *p = pages_map(full + MEM_PAGE_2M, MAP_NORESERVE);
    if (p) {
      const size_t before = (size_t)(align_up((uintptr_t)p, MEM_PAGE_2M) - (uintptr_t)p);
      if (before) pages_unmap(p, before);
      if (before < MEM_PAGE_2M) pages_unmap(p + before + full, MEM_PAGE_2M - before);
      mem_huge(p + before, full, false);
      *out = (struct mem_map){p + before, full, page};
      mem_reserve_change(0, size);
      return REMIXDB_OK;
    }
  }
#endif
  const enum remixdb_status s = mem_map(size, out);
  if (s != REMIXDB_OK) return s;
  mem_huge(out->ptr, out->size, false);
  mem_reserve_change(out->size, size);  // mem_map has counted all of it
  return s;
}

void mem_reserve_change(size_t was, size_t size) {
  (void)atomic_fetch_add_explicit(&mapped_bytes, size - was, memory_order_relaxed);
}

void mem_unreserve(struct mem_map *m, size_t size) {
  if (!m->ptr) return;
  mem_reserve_change(size, m->size);  // mem_unmap counts all of it
  mem_unmap(m);
}

void mem_huge(void *p, size_t size, bool on) {
#if defined(MADV_HUGEPAGE) && defined(MADV_NOHUGEPAGE)
  (void)madvise(p, size, on ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#else
  (void)p, (void)size, (void)on;
#endif
}

void mem_collapse(void *p, size_t size) {
#if defined(MADV_COLLAPSE)
  // A page to which the system writes at this moment cannot move.
  for (uint32_t i = 0; i < COLLAPSE_TRIES && madvise(p, size, MADV_COLLAPSE) != 0 && errno != EINVAL; i++) {}
#else
  (void)p, (void)size;
#endif
}

void mem_give_back(void *p, size_t size) { pages_give_back(p, size); }

bool mem_populate(void *p, size_t size) {
#if defined(MADV_POPULATE_WRITE)
  return madvise(p, size, MADV_POPULATE_WRITE) == 0;
#else
  (void)p, (void)size;
  return false;
#endif
}

void mem_unmap(struct mem_map *m) {
  if (m->ptr && m->page == 0) {
    mem_free(m->ptr);
  } else if (m->ptr) {
    pages_unmap(m->ptr, m->size);
    (void)atomic_fetch_sub_explicit(&mapped_bytes, m->size, memory_order_relaxed);
  }
  *m = (struct mem_map){NULL, 0, 0};
}
