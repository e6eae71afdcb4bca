// SPDX-License-Identifier: Apache-2.0
#include "remix/paged.h"

#include <assert.h>
#include <stddef.h>

#include "remix/filter.h"
#include "remix/narrow.h"
#include "remix/open.h"
#include "remix/pack.h"
#include "remix/seg.h"

// A page in memory.
struct remix_in {
  struct remix x;
  struct remix_index ix;
  struct epoch_item item;
  struct remix_in *next, *prev;  // in the pool's ring
  struct remix_slot *slot;       // NULL: it is leaving, and its REMIX has gone
  size_t bytes;
  uint8_t *image;
  uint32_t shared;  // bytes that all keys of the page share, as far as the directory tells
  bool leaving;     // it is in the slot, but not in the ring. Under the pool's lock
  bool missed;      // a leaving page leaves a filter
};

// A page of a paged REMIX. It has the contents of its entry in the directory, and stays as long as the REMIX.
struct remix_slot {
  _Atomic(struct remix *) in;             // NULL: it is not in memory. Published with release
  _Atomic(struct remix_filter *) filter;  // NULL: there is none. Published with release
  uint64_t sum;                           // checksum
  uint32_t at;                            // offset in the file
  uint32_t live;                          // live entries before it
  uint32_t segs;                          // segments before it
  uint32_t anchors_len;                   // bytes of its segments' anchors, the first one not counted
  uint16_t nr_entries, nr_keys;           // as in struct remix_page
  _Atomic bool used;                      // since the hand last passed. Relaxed
  _Atomic bool missed;                    // since it came in, a get has read it in vain. Relaxed
};
_Static_assert(sizeof(struct remix_slot) <= 48 && REMIX_PAGE_MOST * REMIX_SEG <= UINT16_MAX, "slots are small");

struct remix_paged {
  struct fdpool_file file;  // not used if the REMIX is a part of a pack
  uint32_t nr;
  uint32_t live;             // live entries of all pages
  uint32_t segs;             // the segments of all pages
  uint32_t end;              // where the last page in the file ends
  struct remix_slot *slots;  // nr
  uint8_t *starts;           // u32 for each page and run: its cursor offset at the page's beginning
  uint8_t *head;             // bytes of the file, until it is open
  uint64_t number;
  // Anchors of the pages, for the search.
  uint8_t *offs, *bytes;
  struct anchors anchors;
  size_t memory;
};

static inline const uint8_t *slot_starts(const struct remix_paged *g, uint32_t nr_runs, const struct remix_slot *s) {
  return g->starts + 4 * (size_t)(s - g->slots) * nr_runs;
}

static inline bool slot_is_last(const struct remix_paged *g, const struct remix_slot *s) {
  return s + 1 == g->slots + g->nr;
}

static inline uint32_t slot_segs(const struct remix_paged *g, const struct remix_slot *s) {
  return (slot_is_last(g, s) ? g->segs : s[1].segs) - s->segs;
}

static struct remix_page slot_page(const struct remix_paged *g, uint32_t nr_runs, const struct remix_slot *s) {
  return (struct remix_page){.at = s->at,
                             .size = (slot_is_last(g, s) ? g->end : s[1].at) - s->at,
                             .nr_segs = slot_segs(g, s),
                             .nr_entries = s->nr_entries,
                             .nr_keys = s->nr_keys,
                             .anchors_len = s->anchors_len,
                             .sum = s->sum,
                             .starts = slot_starts(g, nr_runs, s),
                             .anchor = anchors_at(&g->anchors, (uint32_t)(s - g->slots))};
}

// The bytes that all keys of the page share, as far as the directory tells.
static uint32_t slot_shared(const struct remix_paged *g, const struct remix_slot *s) {
  const uint32_t i = (uint32_t)(s - g->slots);
  return slot_is_last(g, s) ? 0 : kv_lcp_from(anchors_at(&g->anchors, i), anchors_at(&g->anchors, i + 1), 0);
}

// ---- the pool

static void page_free(struct remix *page) {
  struct remix_in *const in = (struct remix_in *)page;
  anchors_fini(&in->ix.anchors);
  mem_free(in->ix.live);
  mem_free(in->image);
  mem_free(in);
}

void remix_pool_init(struct remix_pool *p, struct epoch *epoch, struct budget *budget) {
  *p = (struct remix_pool){.epoch = epoch, .budget = budget};
  (void)pthread_mutex_init(&p->lock, NULL);
}

void remix_pool_fini(struct remix_pool *p) {
  assert(!p->hand && !p->filters.hand);
  remix_unpacker_destroy(atomic_load_explicit(&p->unpacker, memory_order_relaxed));
  (void)pthread_mutex_destroy(&p->lock);
}

// The caller has the lock, as in the next three.
static void ring_add(struct remix_pool *p, struct remix_in *in) {
  struct remix_in *const hand = p->hand;
  in->next = hand ? hand : in;
  in->prev = hand ? hand->prev : in;
  in->next->prev = in->prev->next = in;
  if (!hand) p->hand = in;
  atomic_fetch_add_explicit(&p->bytes, in->bytes, memory_order_relaxed);
  budget_take(p->budget, BUDGET_INDEXES, in->bytes);
  atomic_fetch_add_explicit(&p->nr, 1, memory_order_relaxed);
}

static void ring_remove(struct remix_pool *p, struct remix_in *in) {
  if (p->hand == in) p->hand = in->next == in ? NULL : in->next;
  in->next->prev = in->prev;
  in->prev->next = in->next;
  atomic_fetch_sub_explicit(&p->bytes, in->bytes, memory_order_relaxed);
  budget_give(p->budget, BUDGET_INDEXES, in->bytes);
  atomic_fetch_sub_explicit(&p->nr, 1, memory_order_relaxed);
}

static void page_passed(struct epoch_item *item, void *arg) {
  (void)arg;
  remix_unref(&((struct remix_in *)((uint8_t *)item - offsetof(struct remix_in, item)))->x);
}

// Takes a page out of the ring that was not used since the hand last passed. The hand passes each page twice at most.
static struct remix_in *ring_take(struct remix_pool *p) {
  struct remix_in *in = p->hand;
  while (atomic_exchange_explicit(&in->slot->used, false, memory_order_relaxed)) in = in->next;
  p->hand = in->next;
  ring_remove(p, in);
  in->leaving = true;
  in->missed = atomic_exchange_explicit(&in->slot->missed, false, memory_order_relaxed);
  atomic_fetch_add_explicit(&p->drops, 1, memory_order_relaxed);
  return in;
}

// ---- filters of pages that have left. The caller has the lock, except where a comment says more.

static void filter_passed(struct epoch_item *item, void *arg) {
  (void)arg;
  remix_filter_free((struct remix_filter *)((uint8_t *)item - offsetof(struct remix_filter, item)));
}

static void filter_count(struct remix_pool *p, const struct remix_filter *f, bool more) {
  if (more) {
    atomic_fetch_add_explicit(&p->filters.bytes, f->size, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->filters.nr, 1, memory_order_relaxed);
    budget_take(p->budget, BUDGET_INDEXES, f->size);
  } else {
    atomic_fetch_sub_explicit(&p->filters.bytes, f->size, memory_order_relaxed);
    atomic_fetch_sub_explicit(&p->filters.nr, 1, memory_order_relaxed);
    budget_give(p->budget, BUDGET_INDEXES, f->size);
  }
}

static void filter_add(struct remix_pool *p, struct remix_slot *s, struct remix_filter *f) {
  struct remix_filter *const hand = p->filters.hand;
  f->slot = s;
  f->next = hand ? hand : f;
  f->prev = hand ? hand->prev : f;
  f->next->prev = f->prev->next = f;
  if (!hand) p->filters.hand = f;
  filter_count(p, f, true);
  atomic_store_explicit(&f->used, true, memory_order_relaxed);
  atomic_store_explicit(&s->filter, f, memory_order_release);
}

// Takes the filter out of its slot. The caller frees it when no reader can have it.
static void filter_remove(struct remix_pool *p, struct remix_filter *f) {
  if (p->filters.hand == f) p->filters.hand = f->next == f ? NULL : f->next;
  f->next->prev = f->prev;
  f->prev->next = f->next;
  filter_count(p, f, false);
  atomic_store_explicit(&f->slot->filter, NULL, memory_order_relaxed);  // epoch_retire orders it
}

// Moves the hand on, by one filter; drops this one if it was not used since the hand last passed.
static void filter_pass(struct remix_pool *p) {
  struct remix_filter *const f = p->filters.hand;
  p->filters.hand = f->next;
  if (atomic_exchange_explicit(&f->used, false, memory_order_relaxed)) return;
  filter_remove(p, f);
  epoch_retire(p->epoch, &f->item, filter_passed, NULL);
}

// ---- bounds of both

struct bounds {
  uint64_t pages_least, filters_most;  // bytes
  uint64_t together;                   // bytes of pages that one thread reads together, at most
  bool starved;
};

// Filters may take REMIX_FILTERS_PART/8 of what directories and metadata leave. Any caller.
static struct bounds pool_bounds(const struct remix_pool *p) {
  struct bounds b = {REMIX_POOL_LEAST_STARVED, REMIX_FILTERS_STARVED, REMIX_POOL_LEAST_STARVED / 2, true};
  if (unlikely(atomic_load_explicit(&budget_starved, memory_order_relaxed))) return b;
  b = (struct bounds){REMIX_POOL_LEAST, UINT64_MAX, UINT64_MAX, false};
  if (!p->budget) return b;
  const uint64_t most = atomic_load_explicit(&p->budget->indexes_most, memory_order_relaxed),
                 all = budget_indexes(p->budget),
                 ours = atomic_load_explicit(&p->bytes, memory_order_relaxed) +
                        atomic_load_explicit(&p->filters.bytes, memory_order_relaxed),
                 others = all > ours ? all - ours : 0;
  if (most / 8 < b.pages_least) b.pages_least = most / 8;
  const uint64_t room = most > others ? most - others : 0;
  b.filters_most = room / 8 * REMIX_FILTERS_PART;
  b.together = room / 2;
  return b;
}

// The level of the next filter: the lowest with which filters of all pages would fit. Levels are mixed so that these
// take as much as they may. Any caller.
static uint32_t pool_level(struct remix_pool *p) {
  static const uint8_t price[FILTER_LEVELS] = {66, 48, 33};  // hundredths of a byte for a live entry, about
  const struct bounds b = pool_bounds(p);
  const uint64_t made = atomic_fetch_add_explicit(&p->filters.made, 1, memory_order_relaxed),
                 keys = atomic_load_explicit(&p->keys, memory_order_relaxed) + 1;
  if (unlikely(b.starved)) return (uint32_t)(made % FILTER_LEVELS);
  const uint64_t most = b.filters_most / keys >= price[0] ? price[0] : b.filters_most * 100 / keys;
  uint32_t level = 0;
  while (level + 1 < FILTER_LEVELS && price[level] > most) level++;
  if (level == 0 || price[level] > most) return level;
  // so many of 256 filters have the level below
  const uint64_t lower = (most - price[level]) * 256 / (price[level - 1] - price[level]);
  return (uint8_t)(made * 157) < lower ? level - 1 : level;
}

// Takes pages out of the ring, and drops filters, until both are within their bounds. Returns the pages.
static struct remix_in *pool_trim(struct remix_pool *p) {
  struct remix_in *leaving = NULL;
  while (budget_indexes_over(p->budget)) {
    const struct bounds b = pool_bounds(p);
    const bool pages = p->hand && atomic_load_explicit(&p->bytes, memory_order_relaxed) > b.pages_least,
               filters = p->filters.hand &&
                         (atomic_load_explicit(&p->filters.bytes, memory_order_relaxed) > b.filters_most ||
                          (!pages && !b.starved));
    if (filters) {
      filter_pass(p);
    } else if (pages) {
      struct remix_in *const in = ring_take(p);
      in->next = leaving;
      leaving = in;
      if (++p->filters.steps % REMIX_FILTERS_STEP == 0 && p->filters.hand) filter_pass(p);
    } else {
      break;
    }
  }
  return leaving;
}

// A page's place is free for another thread that reads it again. Its filter is there before.
static void page_leave(struct remix_pool *p, struct remix_in *in) {
  struct remix_filter *f = NULL;
  if (in->missed) {
    err_cleanup_begin();  // without memory there is no filter
    f = remix_filter_make(&in->x, 0, in->x.nr_segs, in->shared, pool_level(p));
    err_cleanup_end();
  }
  pthread_mutex_lock(&p->lock);
  struct remix_slot *const s = in->slot;
  if (s) {
    struct remix_filter *const there = atomic_load_explicit(&s->filter, memory_order_relaxed);
    if (f && !there) {
      filter_add(p, s, f);
      f = NULL;
    }
    atomic_store_explicit(&s->in, NULL, memory_order_relaxed);  // epoch_retire orders it
  }
  pthread_mutex_unlock(&p->lock);
  remix_filter_free(f);
  if (s) epoch_retire(p->epoch, &in->item, page_passed, NULL);
  else remix_unref(&in->x);
}

static void pages_leave(struct remix_pool *p, struct remix_in *leaving) {
  for (struct remix_in *next; leaving; leaving = next) {
    next = leaving->next;
    page_leave(p, leaving);
  }
  epoch_reclaim(p->epoch);
}

// Puts a page into its slot. If another thread was quicker, *in_io becomes its page. Both are valid until the caller's
// epoch ends.
static void pool_put(struct remix_pool *p, struct remix_slot *s, struct remix_in **in_io) {
  struct remix *there = NULL;
  struct remix_in *leaving = NULL;
  pthread_mutex_lock(&p->lock);
  if (atomic_compare_exchange_strong_explicit(&s->in, &there, &(*in_io)->x, memory_order_acq_rel,
                                              memory_order_acquire)) {
    ring_add(p, *in_io);
    atomic_store_explicit(&s->used, true, memory_order_relaxed);
    leaving = pool_trim(p);
  }
  pthread_mutex_unlock(&p->lock);
  if (there) {
    page_free(&(*in_io)->x);
    *in_io = (struct remix_in *)there;
  }
  pages_leave(p, leaving);
}

// ---- reading a page

// The header or the directory.
static enum remixdb_status read_bytes(const struct remix *x, struct remix_paged *g, uint64_t at, size_t len,
                                      uint8_t *to) {
  int fd;
  if (x->part) return pack_part_read(x->part, to, len, at);
  enum remixdb_status s = fdpool_acquire(&g->file, &fd);
  if (s != REMIXDB_OK) return s;
  s = env_read(x->ctx->env, fd, g->file.path, to, len, at);
  fdpool_release(&g->file);
  return s;
}

// Counts the records of a table from one position to another; more than `most`: most + 1.
static uint64_t records_between(const struct sst *t, sst_pos from, sst_pos to, uint64_t most) {
  uint64_t nr = 0;
  uint32_t block = sst_pos_block(from);
  if (to < from) return most + 1;
  for (; block < sst_pos_block(to) && nr <= most + BLOCK_RECORDS_MAX; block += sst_block_pages(t, block))
    nr += t->nr_recs[block];
  nr += sst_pos_idx(to);
  return nr < sst_pos_idx(from) ? most + 1 : nr - sst_pos_idx(from) <= most ? nr - sst_pos_idx(from) : most + 1;
}

// Runs end where the next page begins.
static sst_pos slot_end(const struct remix *x, const struct remix_slot *s, uint32_t run) {
  const struct remix_paged *const g = x->paged;
  return slot_is_last(g, s) ? sst_end(x->runs[run]) : load32le(slot_starts(g, x->nr_runs, s + 1) + 4 * run);
}

// Checks that the page's selectors go from its cursor offsets to those of the next page (G4).
static enum remixdb_status check_walk(const struct remix *x, const struct remix_slot *s, const struct remix_page *p,
                                      const uint64_t *seen) {
  for (uint32_t r = 0; r < x->nr_runs; r++) {
    const sst_pos from = load32le(p->starts + 4 * r);
    if (records_between(x->runs[r], from, slot_end(x, s, r), p->nr_entries) != seen[r])
      return err_corrupt(x->path, p->at, "a page has %llu entries of run %u", (unsigned long long)seen[r], r);
  }
  return REMIXDB_OK;
}

static struct ZSTD_DCtx_s *unpacker_take(struct remix_pool *p) {
  // acquire: all that the thread before did with it has happened
  struct ZSTD_DCtx_s *z = atomic_exchange_explicit(&p->unpacker, NULL, memory_order_acquire);
  if (!z) z = remix_unpacker_create();
  return z;
}

static void unpacker_give(struct remix_pool *p, struct ZSTD_DCtx_s *z) {
  remix_unpacker_destroy(atomic_exchange_explicit(&p->unpacker, z, memory_order_acq_rel));
}

// Unpacks a page's bytes into `in`, and checks it.
static enum remixdb_status page_fill(const struct remix *x, struct remix_slot *slot, const struct remix_page *p,
                                     const uint8_t *bytes, struct remix_in *in) {
  struct remix_index *const ix = &in->ix;
  struct remix *const page = &in->x;
  uint64_t seen[REMIX_RUNS_MAX] = {0};
  struct ZSTD_DCtx_s *const z = unpacker_take(x->ctx->pages);
  if (!z) return REMIXDB_NOMEM;
  enum remixdb_status s = remix_page_unpack(p, bytes, x, x->paged->number, z, in->image, seen);
  unpacker_give(x->ctx->pages, z);
  if (s == REMIXDB_OK) s = check_walk(x, slot, p, seen);
  if (s != REMIXDB_OK) return s;
  page->ctx = x->ctx;
  page->number = x->number;
  page->origin = x->origin;
  page->print = x->print;
  page->path = x->path;
  page->runs = x->runs;
  page->nr_runs = x->nr_runs;
  page->nr_segs = p->nr_segs;
  page->nr_entries = p->nr_entries;
  page->nr_keys = p->nr_keys;
  page->tags = x->tags;
  page->image = in->image;
  page->image_size = remix_page_image(p, &x->index->lay);
  page->index = ix;
  page->of = (struct remix *)(uintptr_t)x;
  page->fini = page_free;
  atomic_init(&page->refs, 1);
  ix->segs = in->image;
  ix->lay = x->index->lay;
  ix->plain = x->index->plain;
  ix->anchors = (struct anchors){.offs = in->image + (size_t)p->nr_segs * ix->lay.stride, .nr = p->nr_segs};
  ix->anchors.bytes = ix->anchors.offs + 4 * ((size_t)p->nr_segs + 1);
  in->slot = slot;
  in->shared = slot_shared(x->paged, slot);
  return remix_check_image(page, p->anchors_len, true);
}

// Makes the page's image narrow, and prepares the search.
static enum remixdb_status page_keep(struct remix_in *in) {
  struct remix *const page = &in->x;
  struct narrow_form narrow;
  enum remixdb_status s = remix_narrow_form(page, 0, &narrow);
  if (s != REMIXDB_OK) return s;
  uint8_t *const plain = in->image, *const image = mem_alloc_aligned(CACHE_LINE, align_up(narrow.size, CACHE_LINE));
  if (image) {
    remix_narrow(page, 0, &narrow, image);
    in->image = image;
    mem_free(plain);
  } else {
    s = REMIXDB_NOMEM;
  }
  remix_narrow_end(&narrow);
  return s == REMIXDB_OK ? remix_take_anchors(page) : s;
}

// A page without content. NULL: REMIXDB_NOMEM.
static struct remix_in *page_new(const struct remix *x, const struct remix_page *p) {
  const size_t image = remix_page_image(p, &x->index->lay);
  struct remix_in *const in = mem_calloc(1, sizeof(*in));
  if (!in || (in->image = mem_alloc_aligned(CACHE_LINE, align_up(image, CACHE_LINE)))) return in;
  mem_free(in);
  return NULL;
}

// Fills a page, and counts it as read.
static enum remixdb_status page_make(const struct remix *x, struct remix_slot *slot, const struct remix_page *p,
                                     const uint8_t *bytes, struct remix_in *in) {
  struct remix_pool *const pool = x->ctx->pages;
  enum remixdb_status s = page_fill(x, slot, p, bytes, in);
  if (s == REMIXDB_OK) s = page_keep(in);
  if (s != REMIXDB_OK) return s;
  if (x->index->young) remix_make_young(&in->x);
  in->bytes = sizeof(*in) + align_up(in->x.image_size, CACHE_LINE) + anchors_memory(&in->ix.anchors) +
              remix_live_size(&in->x);
  atomic_fetch_add_explicit(&pool->loads, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&pool->loaded, p->size, memory_order_relaxed);
  return s;
}

// Where the bytes of a page are. With direct I/O from a pack they are read from a little before the page on.
struct page_place {
  struct fdpool_file *file;
  uint64_t from;
  uint32_t len, skip;  // skip: bytes that are read before the page
  uint32_t align;      // the alignment of the memory
};

static struct page_place page_place(const struct remix *x, const struct remix_page *p) {
  const bool whole = x->part && x->ctx->direct_io;
  const uint64_t at = p->at + (x->part ? x->part->at.off : 0), end = at + p->size;
  const uint64_t from = whole ? at & ~(uint64_t)(BLKIO_ALIGN - 1) : at, to = whole ? align_up(end, BLKIO_ALIGN) : end;
  return (struct page_place){.file = x->part ? &x->part->pack->file : &x->paged->file,
                             .from = from,
                             .len = (uint32_t)(to - from),
                             .skip = (uint32_t)(at - from),
                             .align = whole ? BLKIO_ALIGN : CACHE_LINE};
}

static uint8_t *page_room(const struct page_place *at) {
  return mem_alloc_aligned(at->align, align_up(at->len, at->align));
}

// wait: for a descriptor. Otherwise REMIXDB_ABORTED: none is free.
static enum remixdb_status page_read_bytes(const struct remix *x, const struct page_place *at, bool wait, uint8_t *to) {
  int fd;
  if (wait) {
    const enum remixdb_status s = fdpool_acquire(at->file, &fd);
    if (s != REMIXDB_OK) return s;
  } else if (!fdpool_try_acquire(at->file, &fd)) {
    return err_set(REMIXDB_ABORTED, "%s: no descriptor is free", at->file->path);
  }
  const enum remixdb_status s = blkio_read_one(x->ctx->io, fd, at->file->path, to, at->len, at->from);
  fdpool_release(at->file);
  return s;
}

static enum remixdb_status page_read(const struct remix *x, struct remix_slot *slot, bool wait, struct remix_in **out) {
  const struct remix_page p = slot_page(x->paged, x->nr_runs, slot);
  const struct page_place at = page_place(x, &p);
  struct remix_in *const in = page_new(x, &p);
  uint8_t *const bytes = page_room(&at);
  enum remixdb_status s = in && bytes ? REMIXDB_OK : REMIXDB_NOMEM;
  if (s == REMIXDB_OK) s = page_read_bytes(x, &at, wait, bytes);
  if (s == REMIXDB_OK) s = page_make(x, slot, &p, bytes + at.skip, in);
  mem_free(bytes);
  if (s == REMIXDB_OK) *out = in;
  else if (in) page_free(&in->x);
  return s;
}

static enum remixdb_status page_find(const struct remix *x, uint32_t page, bool wait, struct remix **out) {
  struct remix_slot *const slot = &x->paged->slots[page];
  assert(page < x->paged->nr);
  struct remix *const there = atomic_load_explicit(&slot->in, memory_order_acquire);
  if (likely(there != NULL)) {
    if (!atomic_load_explicit(&slot->used, memory_order_relaxed))
      atomic_store_explicit(&slot->used, true, memory_order_relaxed);
    *out = there;
    return REMIXDB_OK;
  }
  struct remix_in *in = NULL;
  const enum remixdb_status s = page_read(x, slot, wait, &in);
  if (s != REMIXDB_OK) return s;
  pool_put(x->ctx->pages, slot, &in);
  *out = &in->x;
  return s;
}

enum remixdb_status remix_page(const struct remix *x, uint32_t page, struct remix **out) {
  return page_find(x, page, true, out);
}

// Whether the key may be live in a page, as far as the page shows.
static bool page_shows(const struct remix *page, struct kref key, uint64_t hash) {
  const struct remix_index *const ix = page->index;
  const uint8_t *const s = seg_at(ix, anchors_find(&ix->anchors, key));
  if (!page->tags) return true;
  return seg_far(ix, s) ? seg_tagged(ix, s, hash) != 0 : seg_candidate(ix, s, key, hash) != 0;
}

enum remixdb_status remix_page_get(const struct remix *x, struct kref key, uint64_t hash, bool wait,
                                   struct remix **out) {
  const uint32_t i = remix_page_of(x, key);
  struct remix_slot *const slot = &x->paged->slots[i];
  if (atomic_load_explicit(&slot->in, memory_order_relaxed)) return page_find(x, i, wait, out);
  struct remix_filter *const f = atomic_load_explicit(&slot->filter, memory_order_acquire);
  *out = NULL;
  if (f && !remix_filter_asks(f, key, remix_tag(hash))) {
    if (!atomic_load_explicit(&f->used, memory_order_relaxed))
      atomic_store_explicit(&f->used, true, memory_order_relaxed);
    atomic_fetch_add_explicit(&x->ctx->pages->filters.denied, 1, memory_order_relaxed);
    return REMIXDB_OK;
  }
  const enum remixdb_status s = page_find(x, i, wait, out);
  if (s != REMIXDB_OK || page_shows(*out, key, hash)) return s;
  atomic_store_explicit(&slot->missed, true, memory_order_relaxed);
  *out = NULL;
  return s;
}

// ---- pages of many keys

// Pages that are read together.
struct together {
  struct blkio_read reads[REMIX_NEEDS_MAX];
  struct {
    const struct remix *x;
    struct remix_slot *slot;
    struct remix_in *in;
    struct page_place at;
    uint8_t *bytes;
  } of[REMIX_NEEDS_MAX];
  uint8_t page[REMIX_NEEDS_MAX];  // for each key: the number of its page, or NO_PAGE
  uint32_t nr;
  uint64_t room;  // bytes of pages that may still be added
};
#define NO_PAGE 255u
_Static_assert(REMIX_NEEDS_MAX < NO_PAGE, "numbers of pages have 8 bits");

// Adds a page. False: there is no room, no memory or no descriptor for it.
static bool together_add(struct together *t, const struct remix *x, struct remix_slot *slot) {
  const struct remix_page p = slot_page(x->paged, x->nr_runs, slot);
  const uint64_t size = remix_page_image(&p, &x->index->lay);
  const struct page_place at = page_place(x, &p);
  const uint32_t n = t->nr;
  int fd;
  if (t->nr && size > t->room) return false;
  struct remix_in *const in = page_new(x, &p);
  uint8_t *const bytes = page_room(&at);
  if (!in || !bytes || !fdpool_try_acquire(at.file, &fd)) {
    if (in) page_free(&in->x);
    mem_free(bytes);
    return false;
  }
  t->of[n].x = x;
  t->of[n].slot = slot;
  t->of[n].in = in;
  t->of[n].at = at;
  t->of[n].bytes = bytes;
  t->reads[n] = (struct blkio_read){.fd = fd, .path = at.file->path, .buf = bytes, .len = at.len, .off = at.from};
  t->room -= size < t->room ? size : t->room;
  t->nr++;
  return true;
}

// Whether the key needs a page that is not in memory. *slot_out: the page.
static bool lacks(const struct remix_need *w, struct remix_slot **slot_out) {
  if (!w->x->paged) return false;
  struct remix_slot *const s = *slot_out = &w->x->paged->slots[remix_page_of(w->x, w->key)];
  if (atomic_load_explicit(&s->in, memory_order_relaxed)) return false;
  const struct remix_filter *const f = atomic_load_explicit(&s->filter, memory_order_acquire);
  return !f || remix_filter_asks(f, w->key, remix_tag(w->hash));
}

static void together_plan(struct together *t, const struct remix_need *needs, uint32_t nr) {
  memset(t->page, NO_PAGE, sizeof(t->page));
  for (uint32_t i = 0; i < nr; i++) {
    struct remix_slot *slot;
    if (!lacks(&needs[i], &slot)) continue;
    uint32_t n = 0;
    while (n < t->nr && t->of[n].slot != slot) n++;
    if (n == t->nr && !together_add(t, needs[i].x, slot)) return;
    t->page[i] = (uint8_t)n;
  }
}

// Makes page n of what was read, and puts it into its slot.
static void together_end(struct together *t, uint32_t n, const struct remix_need *needs, uint32_t nr) {
  const struct remix *const x = t->of[n].x;
  struct remix_slot *const slot = t->of[n].slot;
  struct remix_in *in = t->of[n].in;
  const struct remix_page p = slot_page(x->paged, x->nr_runs, slot);
  fdpool_release(t->of[n].at.file);
  if (t->reads[n].status == REMIXDB_OK && page_make(x, slot, &p, t->of[n].bytes + t->of[n].at.skip, in) == REMIXDB_OK) {
    for (uint32_t i = 0; i < nr; i++)
      if (t->page[i] == n && !page_shows(&in->x, needs[i].key, needs[i].hash))
        atomic_store_explicit(&slot->missed, true, memory_order_relaxed);
    pool_put(x->ctx->pages, slot, &in);
  } else {
    page_free(&in->x);
  }
  mem_free(t->of[n].bytes);
}

void remix_pages_together(const struct remix_need *needs, uint32_t nr) {
  const struct sst_ctx *const ctx = needs->x->ctx;
  struct together t = {.room = pool_bounds(ctx->pages).together};
  assert(nr <= REMIX_NEEDS_MAX);
  err_cleanup_begin();  // a thread that needs an unread page reads it again, and reports the failure
  together_plan(&t, needs, nr);
  if (t.nr) IGNORED(blkio_read_batch(blkio_shared(ctx->io), t.reads, t.nr), "each read has its status");
  for (uint32_t n = 0; n < t.nr; n++) together_end(&t, n, needs, nr);
  err_cleanup_end();
}

bool remix_page_lacks(const struct remix_need *w) {
  struct remix_slot *slot;
  return lacks(w, &slot);
}

// ---- finding pages

uint32_t remix_pages(const struct remix *x) { return x->paged->nr; }
uint32_t remix_page_of(const struct remix *x, struct kref key) { return anchors_find(&x->paged->anchors, key); }
uint64_t remix_page_rank(const struct remix *x, uint32_t page) {
  return page < x->paged->nr ? x->paged->slots[page].live : x->paged->live;
}
uint32_t remix_page_segment(const struct remix *x, uint32_t page) {
  return page < x->paged->nr ? x->paged->slots[page].segs : x->paged->segs;
}

uint32_t remix_page_at(const struct remix *x, uint64_t rank) {
  uint32_t lo = 0, hi = x->paged->nr;
  while (hi - lo > 1) {
    const uint32_t mid = lo + (hi - lo) / 2;
    if (x->paged->slots[mid].live > rank) hi = mid;
    else lo = mid;
  }
  return lo;
}

sst_pos remix_page_end(const struct remix *page, uint32_t run) {
  return slot_end(page->of, ((const struct remix_in *)page)->slot, run);
}

// Segments are mostly 7/8 full. Each has an anchor, without the bytes that all keys share, with its place in the
// search, and two rising numbers.
uint64_t remix_whole_memory(struct sst *const *runs, uint32_t nr_runs) {
  uint64_t records = 0, keys = 0;
  struct kref min = {0}, max = {0};
  for (uint32_t r = 0; r < nr_runs; r++) {
    records += runs[r]->nr_records;
    keys += runs[r]->key_bytes;
    if (r == 0 || kv_cmp(runs[r]->min, min) < 0) min = runs[r]->min;
    if (r == 0 || kv_cmp(runs[r]->max, max) > 0) max = runs[r]->max;
  }
  const uint64_t key = records ? keys / records - kv_lcp_from(min, max, 0) : 0;
  const struct remix_offs offs = {.size = 4, .radix = nr_runs >= NARROW_GROUPED ? 2 : 0};
  const struct remix_layout lay = remix_layout_of(nr_runs, true, true, nr_runs <= NARROW_RUNS, REMIX_ROOM_NIBBLES,
                                                  offs);
  return records / (REMIX_SEG * 7 / 8) * (lay.group / REMIX_GROUP + key + 21);
}

// ---- opening

static void paged_free(struct remix_paged *g) {
  if (!g) return;
  anchors_fini(&g->anchors);
  mem_free(g->slots);
  mem_free(g->starts);
  mem_free(g->head);
  mem_free(g->offs);
  mem_free(g->bytes);
  mem_free(g);
}

// No reader can find the page or the filter any more: it would have a version with the REMIX. But another thread may be
// making the filter of the page; it then frees the page.
static void slot_fini(struct remix_pool *pool, struct remix_slot *s) {
  pthread_mutex_lock(&pool->lock);
  struct remix *page = atomic_load_explicit(&s->in, memory_order_relaxed);
  struct remix_filter *const f = atomic_load_explicit(&s->filter, memory_order_relaxed);
  if (page && ((struct remix_in *)page)->leaving) {
    ((struct remix_in *)page)->slot = NULL;
    page = NULL;
  } else if (page) {
    ring_remove(pool, (struct remix_in *)page);
  }
  if (f) filter_remove(pool, f);
  pthread_mutex_unlock(&pool->lock);
  remix_unref(page);
  remix_filter_free(f);
}

static void paged_fini(struct remix *x) {
  struct remix_pool *const pool = x->ctx->pages;
  struct remix_paged *const g = x->paged;
  for (uint32_t i = 0; i < g->nr; i++) slot_fini(pool, &g->slots[i]);
  atomic_fetch_sub_explicit(&pool->keys, x->nr_keys, memory_order_relaxed);
  if (!x->part) fdpool_remove(&g->file);
  budget_give(x->ctx->budget, BUDGET_INDEXES, g->memory);
  paged_free(g);
  x->paged = NULL;
}

// A record's position that the table has, or its end.
static bool position_is(const struct sst *t, sst_pos pos) {
  const uint32_t block = sst_pos_block(pos);
  return pos == sst_end(t) || (block < t->nr_pages && sst_pos_idx(pos) < t->nr_recs[block]);
}

// Checks the cursor offsets of a page. last: those of the page before; NULL: it is the first one.
static enum remixdb_status check_starts(const struct remix *x, const struct remix_page *p, const uint8_t *last) {
  for (uint32_t r = 0; r < x->nr_runs; r++) {
    const sst_pos pos = load32le(p->starts + 4 * r);
    const bool right = last ? position_is(x->runs[r], pos) && load32le(last + 4 * r) <= pos
                            : pos == sst_advance(x->runs[r], 0, 0);
    if (!right) return err_corrupt(x->path, p->at, "cursor offset of a page, run %u", r);
  }
  return REMIXDB_OK;
}

// Counts the pages of the directory, and the bytes of their anchors. room: its bytes, with its checksum.
static enum remixdb_status count_pages(const struct remix *x, struct remix_paged *g, const uint8_t *dir, size_t room,
                                       size_t *anchors_out) {
  struct remix_page page;
  struct remix_dir d;
  enum remixdb_status s = remix_dir_begin(&d, g->head, dir, room, x->path);
  *anchors_out = 0;
  while (s == REMIXDB_OK && d.left) {
    s = remix_dir_next(&d, &page);
    if (s != REMIXDB_OK) return s;
    g->nr++;
    *anchors_out += page.anchor.len;
  }
  return s == REMIXDB_OK && g->nr == 0 ? err_corrupt(x->path, d.end, "no pages") : s;
}

// Room for what memory keeps of the directory.
static enum remixdb_status paged_room(struct remix_paged *g, uint32_t nr_runs, size_t anchors) {
  const size_t slots = g->nr * sizeof(*g->slots), starts = 4 * (size_t)g->nr * nr_runs, offs = 4 * ((size_t)g->nr + 1);
  g->slots = mem_calloc(g->nr, sizeof(*g->slots));
  g->starts = mem_alloc(starts + 1);
  g->offs = mem_alloc(offs);
  g->bytes = mem_alloc(anchors + 1);
  g->memory = sizeof(*g) + slots + starts + offs + anchors + 2;
  return g->slots && g->starts && g->offs && g->bytes ? REMIXDB_OK : REMIXDB_NOMEM;
}

// Takes page i of the directory. *anchors_io: bytes of the anchors so far.
static void take_page(struct remix_paged *g, uint32_t i, uint32_t nr_runs, const struct remix_page *p,
                      uint32_t *anchors_io) {
  struct remix_slot *const slot = &g->slots[i];
  slot->sum = p->sum;
  slot->at = (uint32_t)p->at;
  slot->live = g->live;
  slot->segs = g->segs;
  slot->anchors_len = p->anchors_len;
  slot->nr_entries = (uint16_t)p->nr_entries;
  slot->nr_keys = (uint16_t)p->nr_keys;
  memcpy(g->starts + 4 * (size_t)i * nr_runs, p->starts, 4 * (size_t)nr_runs);
  store32le(g->offs + 4 * (size_t)i, *anchors_io);
  if (p->anchor.len) memcpy(g->bytes + *anchors_io, p->anchor.ptr, p->anchor.len);
  *anchors_io += p->anchor.len;
  store32le(g->offs + 4 * ((size_t)i + 1), *anchors_io);
  g->live += p->nr_keys;
  g->segs += p->nr_segs;
  g->end = (uint32_t)(p->at + p->size);
}

// Checks the directory's bytes, and takes from them what memory keeps.
static enum remixdb_status take_dir(struct remix *x, struct remix_paged *g, const uint8_t *dir, size_t room) {
  uint64_t records = 0;
  uint32_t anchors = 0;
  size_t anchors_len;
  struct remix_dir d;
  for (uint32_t r = 0; r < x->nr_runs; r++) records += x->runs[r]->nr_records;
  if (x->nr_entries != records || load32le(g->head + REMIX_HEAD_SEGS) > records)
    return err_corrupt(x->path, REMIX_HEAD_ENTRIES, "%llu entries of %llu records", (unsigned long long)x->nr_entries,
                       (unsigned long long)records);
  enum remixdb_status s = count_pages(x, g, dir, room, &anchors_len);
  if (s == REMIXDB_OK) s = paged_room(g, x->nr_runs, anchors_len);
  if (s == REMIXDB_OK) s = remix_dir_begin(&d, g->head, dir, room, x->path);
  const uint8_t *last = NULL;
  for (uint32_t i = 0; i < g->nr && s == REMIXDB_OK; i++) {
    struct remix_page p;
    s = remix_dir_next(&d, &p);
    if (s == REMIXDB_OK) s = check_starts(x, &p, last);
    if (s != REMIXDB_OK) return s;
    take_page(g, i, x->nr_runs, &p, &anchors);
    last = p.starts;
  }
  if (s == REMIXDB_OK) s = anchors_init(&g->anchors, g->offs, g->bytes, g->nr);
  g->memory += anchors_memory(&g->anchors);
  return s;
}

// Reads header, directory and the checksum at the file's end. size: that of the file. *paged_out false: it has no
// pages, or is too large.
static enum remixdb_status read_dir(struct remix *x, struct remix_paged *g, uint64_t size, bool *paged_out) {
  const size_t head = remix_segs_off(x->nr_runs);
  *paged_out = false;
  if (size < head + 2 * REMIX_SUM) return REMIXDB_OK;
  if (!(g->head = mem_alloc(head))) return REMIXDB_NOMEM;
  enum remixdb_status s = read_bytes(x, g, 0, head, g->head);
  if (s == REMIXDB_OK) s = remix_check_start(x->path, size, g->head);
  if (s != REMIXDB_OK || !remix_file_is_paged(g->head) || size > UINT32_MAX) return s;
  *paged_out = true;
  x->file_size = size;
  if ((s = remix_check_head(x, g->head)) != REMIXDB_OK) return s;
  x->nr_segs = 0;
  g->number = x->number;
  const uint64_t at = load64le(g->head + REMIX_HEAD_SEGS_AT);
  if (at < head || at > size - 2 * REMIX_SUM || size - at > UINT32_MAX)
    return err_corrupt(x->path, REMIX_HEAD_SEGS_AT, "place of the directory");
  uint8_t *const dir = mem_alloc(size - at);
  if (!dir) return REMIXDB_NOMEM;
  s = read_bytes(x, g, at, size - at, dir);
  if (s == REMIXDB_OK) {
    x->print = load64le(dir + (size - at - REMIX_SUM));
    s = take_dir(x, g, dir, size - at - REMIX_SUM);
  }
  mem_free(dir);
  mem_free(g->head);
  g->head = NULL;
  return s;
}

// Finds the file, or the part of a pack, and its size.
static enum remixdb_status find_file(const struct remix *x, struct remix_paged *g, uint64_t *size_out) {
  struct env_stat st;
  *size_out = x->part ? x->part->at.len : 0;
  if (x->part) return REMIXDB_OK;
  fdpool_add(x->ctx->fds, &g->file, x->ctx->dir, x->path, ENV_READ);
  const enum remixdb_status s = env_stat(x->ctx->dir, env_name(x->path), &st);
  if (s == REMIXDB_NOTFOUND) return err_corrupt(x->path, 0, "file is missing");
  if (s == REMIXDB_OK) *size_out = st.size;
  return s;
}

// Reads what is needed of the file of x, which has no image. *out NULL: the file has no pages.
static enum remixdb_status paged_open(struct remix *x, struct remix_paged **out) {
  struct remix_paged *const g = mem_calloc(1, sizeof(*g));
  bool paged = false;
  uint64_t size = 0;
  *out = NULL;
  if (!g) return REMIXDB_NOMEM;
  enum remixdb_status s = find_file(x, g, &size);
  if (s == REMIXDB_OK) s = read_dir(x, g, size, &paged);
  if (s != REMIXDB_OK || !paged) {
    if (!x->part) fdpool_remove(&g->file);
    paged_free(g);
    return s;
  }
  budget_take(x->ctx->budget, BUDGET_INDEXES, g->memory);
  atomic_fetch_add_explicit(&x->ctx->pages->keys, x->nr_keys, memory_order_relaxed);
  *out = g;
  return s;
}

enum remixdb_status remix_open_paged(const struct sst_ctx *ctx, uint64_t number, struct sst *const *runs,
                                     uint32_t nr_runs, struct remix **out) {
  struct remix *x = NULL;
  assert(ctx->pages);
  *out = NULL;
  enum remixdb_status s = remix_create(ctx, number, runs, nr_runs, &x);
  if (s == REMIXDB_OK) s = paged_open(x, &x->paged);
  if (s == REMIXDB_OK && x->paged) {
    x->paged_memory = x->paged->memory;
    x->fini = paged_fini;
    *out = x;
    return s;
  }
  if (x) remix_free(x);
  return s == REMIXDB_OK ? remix_open(ctx, number, runs, nr_runs, out) : s;
}

// The directory does not tell how many entries of a young view are live (G2).
static void take_live(struct remix_paged *g, const struct remix_index *ix, uint32_t nr_segs) {
  for (uint32_t i = 0; i < g->nr; i++) g->slots[i].live = seg_rank(ix, g->slots[i].segs);
  g->live = seg_rank(ix, nr_segs);
}

// ---- filters of a new view (G6)

// How often absent keys of a range are asked for.
struct range_asked {
  bool filter;     // the range's pages get filters
  bool used;       // the filters count as used since the hand last passed
  uint32_t level;  // the filters' level; FILTER_LEVELS: not known
};

// Looks at the pages of `before` that have keys in [from, end); end.ptr NULL: to the last one.
static struct range_asked range_asked(struct remix_pool *p, const struct remix *before, struct kref from,
                                      struct kref end) {
  const struct anchors *const anchors = &before->paged->anchors;
  const uint32_t first = anchors_find(anchors, from);
  uint32_t last = end.ptr ? anchors_find(anchors, end) : before->paged->nr - 1, asked = 0;
  struct range_asked got = {.level = FILTER_LEVELS};
  if (end.ptr && last > first && kv_eq(anchors_at(anchors, last), end)) last--;
  pthread_mutex_lock(&p->lock);
  for (uint32_t i = first; i <= last; i++) {
    const struct remix_slot *const s = &before->paged->slots[i];
    const struct remix_filter *const f = atomic_load_explicit(&s->filter, memory_order_relaxed);
    const bool missed = atomic_load_explicit(&s->missed, memory_order_relaxed);
    asked += f || missed;
    if (f) got.level = remix_filter_level(f);
    if (missed || (f && atomic_load_explicit(&f->used, memory_order_relaxed))) got.used = true;
  }
  pthread_mutex_unlock(&p->lock);
  got.filter = 2 * asked > last - first;
  return got;
}

// Makes the filters that the pages of x get, which is whole and will have these pages. Returns a list of them; nobody
// else has them.
static struct remix_filter *filters_make(const struct remix *x, struct remix_paged *g, const struct remix *before) {
  struct remix_pool *const p = x->ctx->pages;
  struct remix_filter *all = NULL;
  err_cleanup_begin();  // without memory there is no filter
  for (uint32_t i = 0; i < g->nr; i++) {
    struct remix_slot *const s = &g->slots[i];
    const struct kref from = anchors_at(&g->anchors, i),
                      end = i + 1 < g->nr ? anchors_at(&g->anchors, i + 1) : kref(NULL, 0);
    const struct range_asked asked = range_asked(p, before, from, end);
    if (!asked.filter) continue;
    const uint32_t level = asked.level < FILTER_LEVELS ? asked.level : pool_level(p);
    struct remix_filter *const f = remix_filter_make(x, s->segs, slot_segs(g, s), slot_shared(g, s), level);
    if (!f) continue;
    f->slot = s;
    atomic_store_explicit(&f->used, asked.used, memory_order_relaxed);
    f->next = all;
    all = f;
  }
  err_cleanup_end();
  return all;
}

// Gives the pages of a new view their filters, as far as the bounds allow.
static void filters_give(struct remix_pool *p, struct remix_filter *all) {
  for (struct remix_filter *f = all, *next; f; f = next) {
    next = f->next;
    const bool used = atomic_load_explicit(&f->used, memory_order_relaxed);
    pthread_mutex_lock(&p->lock);
    filter_add(p, f->slot, f);
    atomic_store_explicit(&f->used, used, memory_order_relaxed);
    struct remix_in *const leaving = pool_trim(p);
    pthread_mutex_unlock(&p->lock);
    pages_leave(p, leaving);
  }
}

enum remixdb_status remix_page_out(struct remix *x, const struct remix *before) {
  struct remix_paged *g = NULL;
  struct remix_filter *filters = NULL;
  const uint32_t nr_segs = x->nr_segs;
  const struct remix_layout lay = x->index->lay;  // the layout of the image in memory; the file's head sets another
  assert(!x->paged && !x->of);
  if (!x->ctx->pages) return REMIXDB_OK;
  const enum remixdb_status s = paged_open(x, &g);
  const struct remix_layout file_lay = x->index->lay;
  x->nr_segs = nr_segs;
  x->index->lay = lay;
  if (s != REMIXDB_OK || !g) return s;
  take_live(g, x->index, nr_segs);
  if (before && before->paged && x->tags) filters = filters_make(x, g, before);
  remix_drop_image(x);
  x->index->lay = file_lay;
  x->paged = g;
  x->paged_memory = g->memory;
  x->fini = paged_fini;
  filters_give(x->ctx->pages, filters);
  return s;
}

enum remixdb_status remix_whole(struct remix *x, struct remix **out) {
  *out = x;
  if (!x->paged) {
    remix_ref(x);
    return REMIXDB_OK;
  }
  const enum remixdb_status s = remix_open(x->ctx, x->number, x->runs, x->nr_runs, out);
  if (s != REMIXDB_OK) return s;
  if (x->index->young) remix_make_young(*out);
  atomic_store_explicit(&(*out)->scan_debt, atomic_load_explicit(&x->scan_debt, memory_order_relaxed),
                        memory_order_relaxed);
  return s;
}
