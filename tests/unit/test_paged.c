// SPDX-License-Identifier: Apache-2.0
//
// Paged REMIXes: each answer is that of the whole REMIX over the same tables; pages come and go; damage and failures.
#include <pthread.h>

#include "remix/filter.h"
#include "remix/narrow.h"
#include "remix/paged.h"
#include "remix/seg.h"
#include "tests/lib/bytes.h"
#include "tests/lib/fault.h"
#include "tests/lib/longer.h"
#include "tests/lib/remix_model.h"
#include "tests/lib/slow.h"
#include "tests/lib/starve.h"

#define THREADS 4u

static uint8_t anchor_room[2 * KV_KEY_MAX];  // for anchors

struct paged {
  struct place p;
  struct budget budget;
  struct remix_pool pool;
  struct tables t;
  struct remix *whole, *x;  // the same file
};

// The places of a world of this kind of keys. Its view is paged if it has some segments. segs: of a page.
static void make_pages(struct paged *w, uint32_t kind, uint32_t keys, uint32_t runs, bool tags, uint32_t segs) {
  memset(w, 0, sizeof(*w));
  place_init(&w->p, 1 << 20);
  budget_init(&w->budget);
  remix_pool_init(&w->pool, &w->p.epoch, &w->budget);
  w->p.ctx.budget = &w->budget;
  w->p.ctx.pages = &w->pool;
  starve(true);
  atomic_store(&remix_page_segs, segs);
  part_small(&w->t, &w->p, kind, keys, runs, &check_seed);
  w->whole = part_build_all(&w->t, tags);
  OK(remix_open_paged(&w->p.ctx, w->whole->number, w->t.sst, w->t.nr, &w->x));
}

static void make(struct paged *w, uint32_t kind, uint32_t keys, uint32_t runs, bool tags) {
  make_pages(w, kind, keys, runs, tags, 2);
}

// Makes both REMIXes young views.
static void make_young(struct paged *w) {
  remix_make_young(w->whole);
  remix_unref(w->x);
  OK(remix_open(&w->p.ctx, w->whole->number, w->t.sst, w->t.nr, &w->x));
  remix_make_young(w->x);
  OK(remix_page_out(w->x, NULL));
}

static void end(struct paged *w) {
  remix_unref(w->x);
  done(w->whole);
  part_fini(&w->t);
  assert_int_equal(atomic_load(&w->pool.nr), 0);
  assert_true(atomic_load(&w->pool.filters.nr) == 0 && atomic_load(&w->pool.keys) == 0);
  w->p.ctx.pages = NULL;
  epoch_reclaim(&w->p.epoch);
  remix_pool_fini(&w->pool);
  starve(false);
  assert_int_equal(budget_used(&w->budget, BUDGET_INDEXES), 0);
  w->p.ctx.budget = NULL;
  place_fini(&w->p);
  budget_fini(&w->budget);
}

// A key of the set, or one beside it.
static struct kref some_key(const struct paged *w, uint8_t *buf) {
  const struct kref k = w->t.k.keys[rng_next(&check_seed) % w->t.k.nr];
  uint32_t len = k.len;
  memcpy(buf, k.ptr, len);
  switch (rng_next(&check_seed) % 4) {
    case 0: buf[len++] = (uint8_t)rng_next(&check_seed); break;
    case 1: len -= len > 0; break;
    case 2:
      if (len) buf[rng_next(&check_seed) % len] ^= (uint8_t)(1u << rng_next(&check_seed) % 8);
      break;
    default: break;
  }
  return kref(buf, len);
}

// A key near this one, but not the same.
static struct kref near_key(struct kref key, uint8_t *buf) {
  uint32_t len = key.len;
  if (len) memcpy(buf, key.ptr, len);
  if (len && rng_next(&check_seed) % 4) buf[len - 1] ^= (uint8_t)(1 + rng_next(&check_seed) % 4);
  else buf[len++] = (uint8_t)rng_next(&check_seed);
  return kref(buf, len);
}

struct got {
  enum remixdb_status status;
  uint64_t sum;
};

static uint64_t sum_of(const struct kv_rec *r) {
  return hash64(r->key, r->klen) ^ hash64(r->val, r->vlen) * 3 ^ r->kind;
}

static struct got get(struct remix *x, struct kref key) {
  struct sst_hold h = {0};
  struct kv_rec r;
  struct got g = {.status = remix_get(x, key, hash64(key.ptr, key.len), &h, &r)};
  if (g.status == REMIXDB_OK) g.sum = sum_of(&r);
  sst_hold_fini(&h);
  return g;
}

static enum remixdb_status add_near(void *arg, const struct kv_rec *r, uint32_t nr) {
  *(uint64_t *)arg += sum_of(r) * nr;
  return REMIXDB_OK;
}

// All that a reader can ask of a view.
static void same_answers(struct paged *w, struct kref key) {
  struct sst_hold h = {0};
  uint64_t a = 0, b = 0;
  const uint64_t hash = hash64(key.ptr, key.len);
  const struct got g = get(w->whole, key), n = get(w->x, key);
  assert_int_equal(g.status, n.status);
  assert_true(g.sum == n.sum);
  OK(remix_rank(w->whole, key, &h, &a));
  OK(remix_rank(w->x, key, &h, &b));
  assert_int_equal(a, b);
  assert_int_equal(remix_guess(w->whole, key, hash), remix_guess(w->x, key, hash));
  if (remix_live(w->whole)) {
    const uint64_t rank = rng_next(&check_seed) % remix_live(w->whole);
    const uint64_t from = rng_next(&check_seed) % (rank + 1), to = rank + 1;
    uint64_t whole = 0, paged = 0;
    OK(remix_live_near(w->whole, rank, from, to, &h, add_near, &whole));
    OK(remix_live_near(w->x, rank, from, to, &h, add_near, &paged));
    assert_true(whole == paged);
  }
  sst_hold_fini(&h);
}

// A page that knows of no key between two keys is right for its whole view.
static uint32_t check_none_between(struct paged *w, struct kref a, struct kref b) {
  const bool back = rng_next(&check_seed) % 2;
  const struct kref low = kv_cmp(a, b) < 0 ? a : b, high = kv_cmp(a, b) < 0 ? b : a, from = back ? high : low;
  struct sst_hold h = {0};
  struct remix_cursor c;
  struct remix *page;
  uint64_t before = 0, behind = 0;
  bool none;
  remix_cursor_init(&c, NULL);
  OK(remix_page(w->x, remix_page_of(w->x, from), &page));
  OK(remix_cursor_set(&c, page));
  remix_seek_begin(&c, from);
  OK(remix_none_between(&c, from, back ? low : high, back, &none));
  OK(remix_rank(w->whole, low, &h, &before));
  OK(remix_rank(w->whole, high, &h, &behind));
  assert_true(!none || before == behind);
  remix_cursor_fini(&c);
  sst_hold_fini(&h);
  return none;
}

// A page and the whole view may have images of different forms.
static void same_segment(const struct remix *x, uint32_t at, const struct remix *y, uint32_t bt) {
  const struct remix_index *const a = x->index, *const b = y->index;
  const uint8_t *const s = seg_at(a, at), *const t = seg_at(b, bt);
  uint8_t bits[2][BLIND_WIDE], sels[2][REMIX_SEG];
  assert_int_equal(a->lay.sel, b->lay.sel);
  assert_memory_equal(s, t, a->lay.sel);  // tags
  assert_int_equal(seg_nr(a, s), seg_nr(b, t));
  assert_int_equal(seg_far(a, s), seg_far(b, t));
  assert_int_equal(seg_base(a, s), seg_base(b, t));
  remix_sels(a, s, sels[0]);
  remix_sels(b, t, sels[1]);
  assert_memory_equal(sels[0], sels[1], REMIX_SEG);
  for (uint32_t r = 0; r < x->nr_runs; r++) assert_int_equal(seg_off(x, s, r), seg_off(y, t, r));
  remix_widen(seg_blind(a, s), seg_nr(a, s), bits[0]);
  remix_widen(seg_blind(b, t), seg_nr(b, t), bits[1]);
  assert_memory_equal(bits[0], bits[1], BLIND_WIDE);
}

// The pages are the view's segments, one after the other.
static void check_pages(struct paged *w) {
  uint64_t entries = 0, live = 0;
  uint32_t segs = 0;
  for (uint32_t i = 0; i < remix_pages(w->x); i++) {
    struct remix *page;
    enter(&w->p);
    assert_int_equal(remix_page_rank(w->x, i), live);
    assert_int_equal(remix_page_segment(w->x, i), segs);
    OK(remix_page(w->x, i, &page));
    for (uint32_t s = 0; s < page->nr_segs; s++) {
      same_segment(page, s, w->whole, segs + s);
      const struct kref a = remix_anchor(w->whole, segs + s, anchor_room);
      if (s) assert_true(kv_eq(remix_anchor(page, s, anchor_room + KV_KEY_MAX), a));
      assert_int_equal(remix_page_of(w->x, a), i);
    }
    segs += page->nr_segs;
    entries += page->nr_entries;
    live += remix_live(page);
    leave(&w->p);
  }
  assert_int_equal(segs, w->whole->nr_segs);
  assert_int_equal(entries, w->whole->nr_entries);
  assert_int_equal(live, remix_live(w->whole));
  assert_int_equal(live, remix_live(w->x));
}

// The same around the border of two pages: the key is of the one, the next key of the other.
static void check_borders(struct paged *w) {
  uint8_t *const buf = malloc(2 * (KV_KEY_MAX + 8)), *const other = buf + KV_KEY_MAX + 8;
  for (uint32_t i = 1; i < remix_pages(w->x); i++) {
    const struct kref a = remix_anchor(w->whole, remix_page_segment(w->x, i), anchor_room);
    memcpy(buf, a.ptr, a.len);
    memcpy(other, a.ptr, a.len);
    buf[a.len - 1] -= buf[a.len - 1] > 0;
    memset(other + a.len, 0xFF, 4);
    enter(&w->p);
    (void)check_none_between(w, kref(buf, a.len), kref(other, a.len + 4));
    leave(&w->p);
  }
  free(buf);
}

static void check_whole(struct paged *w) {
  struct remix *again;
  const uint32_t *a, *b;
  OK(remix_whole(w->x, &again));
  assert_int_equal(again->image_size, w->whole->image_size);
  assert_memory_equal(again->image, w->whole->image, again->image_size);
  remix_unref(again);
  OK(remix_hidden(w->whole, &a));
  OK(remix_hidden(w->x, &b));
  assert_memory_equal(a, b, w->t.nr * sizeof(*a));
}

// A share of all segments is exact, and so is that of a paged view if it looks at all.
static void check_share(struct paged *w) {
  struct remix_share a, b;
  if (remix_live(w->whole) == 0) return;
  enter(&w->p);
  OK(remix_share(w->whole, 0, remix_live(w->whole), 1 << 20, &a));
  OK(remix_share(w->x, 0, remix_live(w->x), 1 << 20, &b));
  leave(&w->p);
  for (uint32_t r = 0; r < w->t.nr; r++) assert_true(a.runs[r].pages == b.runs[r].pages);
  if (remix_pages(w->x) <= 8) assert_true(a.segs == b.segs && a.live == b.live && a.tombs == b.tombs);
}

static void test_answers(void **state) {
  (void)state;
  uint32_t pages = 0, none = 0;
  uint64_t denied = 0;
  for (uint32_t i = 0; i < 6 * KEYS_KINDS; i++) {
    struct paged w;
    uint8_t *const buf = malloc(2 * (KV_KEY_MAX + 8)), *const other = buf + KV_KEY_MAX + 8;
    make(&w, i % KEYS_KINDS, i < KEYS_KINDS ? 90 : 1500 / SLOW, 1 + i % 6, i % 3 != 0);
    if (i / KEYS_KINDS % 2) make_young(&w);
    if (remix_is_paged(w.x)) {
      pages += remix_pages(w.x);
      check_pages(&w);
      check_whole(&w);
      check_share(&w);
      check_borders(&w);
      for (uint32_t n = 0; n < 400 / SLOW; n++) {
        enter(&w.p);
        const struct kref key = some_key(&w, buf);
        same_answers(&w, key);
        none += check_none_between(&w, key, near_key(key, other));
        leave(&w.p);
        assert_true(atomic_load(&w.pool.bytes) <= REMIX_POOL_LEAST_STARVED);
        if (!w.x->tags) assert_int_equal(atomic_load(&w.pool.filters.made), 0);
      }
      assert_true(w.x->nr_segs == 0 && w.x->image == NULL);
    }
    denied += atomic_load(&w.pool.filters.denied);
    free(buf);
    end(&w);
  }
  assert_true(pages > 200 / SLOW && denied > 200 / SLOW && none > 200 / SLOW);
}

// ---- filters

struct asked {
  uint64_t absent, denied;
};

// Asks the filters of all levels of page i for the key. Whether the key is live there: `there`.
static void ask_filters(struct remix_filter *const *f, struct kref key, bool there, struct asked *out) {
  const uint8_t tag = remix_tag(hash64(key.ptr, key.len));
  for (uint32_t level = 0; level < FILTER_LEVELS; level++) {
    if (!f[level]) continue;
    const bool asks = remix_filter_asks(f[level], key, tag);
    assert_true(asks || !there);
    out[level].absent += !there;
    out[level].denied += !asks;
  }
}

// The bytes that all keys of a page share.
static uint32_t shared_of(const struct paged *w, uint32_t page) {
  if (page + 1 == remix_pages(w->x)) return 0;
  const uint32_t at = remix_page_segment(w->x, page), next = remix_page_segment(w->x, page + 1);
  return kv_lcp_from(remix_anchor(w->whole, at, anchor_room), remix_anchor(w->whole, next, anchor_room + KV_KEY_MAX),
                     0);
}

// Each live key, and keys beside them, are asked of the filters of their pages.
static void check_filters(struct paged *w, struct asked *out) {
  uint8_t *const buf = malloc(KV_KEY_MAX + 8);
  for (uint32_t i = 0; i < remix_pages(w->x); i++) {
    struct remix_filter *f[FILTER_LEVELS];
    struct remix *page;
    enter(&w->p);
    OK(remix_page(w->x, i, &page));
    for (uint32_t level = 0; level < FILTER_LEVELS; level++)
      f[level] = remix_filter_make(page, 0, page->nr_segs, shared_of(w, i), level);
    leave(&w->p);
    for (uint32_t n = 0; n < w->t.k.nr; n++) {
      if (remix_page_of(w->x, w->t.k.keys[n]) == i)
        ask_filters(f, w->t.k.keys[n], get(w->whole, w->t.k.keys[n]).status == REMIXDB_OK, out);
      const struct kref key = some_key(w, buf);
      if (remix_page_of(w->x, key) == i) ask_filters(f, key, get(w->whole, key).status == REMIXDB_OK, out);
    }
    for (uint32_t level = 0; level < FILTER_LEVELS; level++) remix_filter_free(f[level]);
  }
  free(buf);
}

static void test_filters(void **state) {
  (void)state;
  static const uint32_t segs[] = {2, 3, 20, REMIX_PAGE_SEGS, REMIX_PAGE_MOST};
  for (uint32_t kind = 0; kind < KEYS_KINDS; kind++) {
    struct asked asked[FILTER_LEVELS] = {{0}};
    for (uint32_t i = 0; i < sizeof(segs) / sizeof(segs[0]); i++) {
      struct paged w;
      make_pages(&w, kind, 3000 / SLOW, 1 + i % 3, true, segs[i]);
      enter(&w.p);
      if (remix_is_paged(w.x)) check_filters(&w, asked);
      leave(&w.p);
      end(&w);
    }
    for (uint32_t level = 0; level < FILTER_LEVELS; level++) {
      // 32 entries of 256 tags in a segment. Some pages of far keys have no filter.
      const double least = kind == KEYS_FAR ? 0.3 : 0.82 - 0.1 * level;
      assert_true(SLOW > 1 || asked[level].absent > 1000);
      if (asked[level].absent > 1000) assert_true((double)asked[level].denied > least * (double)asked[level].absent);
    }
  }
}

// A page that leaves without memory for its filter leaves none, and the get that drops it is right.
static void test_no_filter(void **state) {
  (void)state;
  struct paged w;
  uint8_t buf[4096];
  uint32_t failed = 0;
  make(&w, KEYS_NUMBERS, 2000, 3, true);
  for (uint32_t n = 0; n < 3000; n++) {
    const struct kref key = some_key(&w, buf);
    enter(&w.p);
    const uint64_t made = atomic_load(&w.pool.filters.made), nr = atomic_load(&w.pool.filters.nr);
    fault_mem_set(8 + n % 16);
    const struct got b = get(w.x, key);
    const bool bad = fault_mem_end();
    if (bad && b.status != REMIXDB_NOMEM) {
      const struct got a = get(w.whole, key);
      assert_true(a.status == b.status && a.sum == b.sum);
      failed += atomic_load(&w.pool.filters.made) > made && atomic_load(&w.pool.filters.nr) <= nr;
    }
    leave(&w.p);
  }
  assert_true(failed > 0);
  end(&w);
}

// A get of a key in a page that is in memory reads no page, any other get reads one.
static void test_loads(void **state) {
  (void)state;
  struct paged w;
  uint8_t buf[4096];
  make(&w, KEYS_NUMBERS, 3000 / SLOW, 3, true);
  atomic_store(&budget_starved, false);
  for (uint32_t n = 0; n < 2000; n++) {
    const struct kref key = some_key(&w, buf);
    const uint64_t before = atomic_load(&w.pool.loads), nr = atomic_load(&w.pool.nr);
    enter(&w.p);
    same_answers(&w, key);
    leave(&w.p);
    assert_true(atomic_load(&w.pool.loads) - before <= 3);  // the key's page, and the one of the rank beside
    assert_int_equal(atomic_load(&w.pool.nr) - nr, atomic_load(&w.pool.loads) - before);
  }
  assert_int_equal(atomic_load(&w.pool.loads), remix_pages(w.x));
  assert_int_equal(atomic_load(&w.pool.drops), 0);
  const uint64_t all = budget_used(&w.budget, BUDGET_INDEXES);
  atomic_store(&budget_starved, true);
  remix_unref(w.x);
  assert_true(budget_used(&w.budget, BUDGET_INDEXES) < all);
  OK(remix_open_paged(&w.p.ctx, w.whole->number, w.t.sst, w.t.nr, &w.x));
  end(&w);
}

// A page that is read counts as a read of the store, and one in memory does not.
static void test_counted(void **state) {
  (void)state;
  struct paged w;
  struct remix *page;
  make(&w, KEYS_NUMBERS, 3000 / SLOW, 3, true);
  atomic_store(&budget_starved, false);
  for (uint32_t again = 0; again < 2; again++) {
    for (uint32_t i = 0; i < remix_pages(w.x); i++) {
      const uint64_t reads = atomic_load(&w.p.io.nr_reads), bytes = atomic_load(&w.p.io.read_bytes),
                     trips = atomic_load(&w.p.io.nr_trips), loaded = atomic_load(&w.pool.loaded);
      enter(&w.p);
      OK(remix_page(w.x, i, &page));
      leave(&w.p);
      assert_int_equal(atomic_load(&w.p.io.nr_reads) - reads, !again);
      assert_int_equal(atomic_load(&w.p.io.nr_trips) - trips, !again);
      assert_int_equal(atomic_load(&w.p.io.read_bytes) - bytes, atomic_load(&w.pool.loaded) - loaded);
    }
  }
  atomic_store(&budget_starved, true);
  end(&w);
}

// ---- pages of many keys

#define NEEDS 40u

// Some keys of the view, in memory of the caller.
static void needs_make(const struct paged *w, uint8_t (*room)[4096], struct remix_need *out) {
  for (uint32_t i = 0; i < NEEDS; i++) {
    const struct kref key = some_key(w, room[i]);
    out[i] = (struct remix_need){w->x, key, hash64(key.ptr, key.len)};
  }
}

// With room for all pages, those that many keys need are read once each, in one trip, and no get reads one again.
static void test_together(void **state) {
  (void)state;
  struct paged w;
  static uint8_t room[NEEDS][4096];
  struct remix_need needs[NEEDS];
  make(&w, KEYS_NUMBERS, 20000 / SLOW, 3, true);
  atomic_store(&budget_starved, false);
  for (uint32_t n = 0; n < 10; n++) {
    needs_make(&w, room, needs);
    enter(&w.p);
    uint32_t lacking = 0;
    uint8_t seen[100000] = {0};
    for (uint32_t i = 0; i < NEEDS; i++) {
      const uint32_t page = remix_page_of(w.x, needs[i].key);
      lacking += remix_page_lacks(&needs[i]) && !seen[page];
      seen[page] = 1;
    }
    const uint64_t loads = atomic_load(&w.pool.loads), trips = atomic_load(&w.p.io.nr_trips);
    remix_pages_together(needs, NEEDS);
    assert_int_equal(atomic_load(&w.pool.loads) - loads, lacking);
    if (n == 0) assert_true(lacking > NEEDS / 2 && atomic_load(&w.p.io.nr_reads) > 0);
    if (w.p.io.kind == BLKIO_URING) assert_true(atomic_load(&w.p.io.nr_trips) - trips <= 1);
    for (uint32_t i = 0; i < NEEDS; i++) {
      const struct got a = get(w.whole, needs[i].key), b = get(w.x, needs[i].key);
      assert_true(a.status == b.status && a.sum == b.sum);
    }
    assert_int_equal(atomic_load(&w.pool.loads) - loads, lacking);
    leave(&w.p);
  }
  atomic_store(&budget_starved, true);
  end(&w);
}

// Where memory is missing, reads fail or the room is small, some pages are not read, and gets are right.
static void test_not_together(void **state) {
  (void)state;
  struct paged w;
  static uint8_t room[NEEDS][4096];
  struct remix_need needs[NEEDS];
  uint32_t failed = 0;
  make(&w, KEYS_PATHS, 3000 / SLOW, 3, true);
  for (uint32_t n = 0; n < 60; n++) {
    needs_make(&w, room, needs);
    enter(&w.p);
    bool any = false;
    for (uint32_t i = 0; i < NEEDS; i++) any = any || remix_page_lacks(&needs[i]);
    if (n % 3 == 1) fault_mem_set(1 + n / 3);
    if (n % 3 == 2) fault_io_set(FAULT_READ | FAULT_OPEN, 1 + n / 3, n % 2);
    const uint64_t loads = atomic_load(&w.pool.loads);
    remix_pages_together(needs, NEEDS);
    if (n % 3 == 1) failed += fault_mem_end();
    if (n % 3 == 2) failed += fault_io_end();
    assert_true(n % 3 || !any || atomic_load(&w.pool.loads) > loads);
    assert_true(atomic_load(&w.pool.bytes) <= REMIX_POOL_LEAST_STARVED);
    for (uint32_t i = 0; i < NEEDS; i++) {
      const struct got a = get(w.whole, needs[i].key), b = get(w.x, needs[i].key);
      assert_true(a.status == b.status && a.sum == b.sum);
    }
    leave(&w.p);
  }
  assert_true(failed > 10);
  end(&w);
}

// A REMIX that goes while a page of it leaves memory: when the filter of the page takes its memory.
static struct {
  struct remix *x;  // NULL: it has gone
  const struct remix_pool *pool;
  uint64_t made;
} going;

static bool go(size_t size) {
  (void)size;
  struct remix *const x = going.x;
  if (!x || atomic_load(&going.pool->filters.made) == going.made) return true;
  going.x = NULL;
  remix_unref(x);
  return true;
}

// A page of x of which no live entry has the key's tag is in memory, and a get has read it in vain.
static bool missed(struct paged *w, struct remix *x) {
  uint8_t buf[4096];
  const struct kref key = some_key(w, buf);
  const uint64_t before = atomic_load(&w->pool.loads);
  return get(x, key).status == REMIXDB_NOTFOUND && atomic_load(&w->pool.loads) > before;
}

static void test_gone(void **state) {
  (void)state;
  struct paged w;
  uint8_t buf[4096];
  uint32_t gone = 0;
  make(&w, KEYS_NUMBERS, 900, 3, true);
  for (uint32_t n = 0; n < 20; n++) {
    OK(remix_open_paged(&w.p.ctx, w.whole->number, w.t.sst, w.t.nr, &going.x));
    going.pool = &w.pool;
    enter(&w.p);
    while (!missed(&w, going.x)) {}
    leave(&w.p);
    going.made = atomic_load(&w.pool.filters.made);
    atomic_store(&mem_fault, go);
    for (uint32_t i = 0; i < 40 && going.x; i++) {
      enter(&w.p);
      const struct kref key = some_key(&w, buf);
      const struct got a = get(w.whole, key), b = get(w.x, key);
      assert_true(a.status == b.status && a.sum == b.sum);
      leave(&w.p);
    }
    atomic_store(&mem_fault, NULL);
    gone += !going.x;
    remix_unref(going.x);
    assert_true(atomic_load(&w.pool.bytes) <= REMIX_POOL_LEAST_STARVED);
    assert_true(atomic_load(&w.pool.filters.bytes) <= 2 * REMIX_FILTERS_STARVED);
  }
  assert_true(gone > 10);
  end(&w);
}

struct reader {
  struct paged *w;
  struct epoch_slot slot;
  uint64_t seed;
  uint32_t gets;
};

static void *read_on(void *arg) {
  struct reader *const r = arg;
  struct paged *const w = r->w;
  epoch_join(&w->p.epoch, &r->slot);
  for (uint32_t n = 0; n < r->gets; n++) {
    struct kref key = w->t.k.keys[rng_next(&r->seed) % w->t.k.nr];
    uint8_t beside[KV_KEY_MAX + 1];
    if (n % 2) {  // mostly absent
      memcpy(beside, key.ptr, key.len);
      beside[key.len] = (uint8_t)rng_next(&r->seed);
      key = kref(beside, key.len + 1);
    }
    epoch_enter(&w->p.epoch, &r->slot);
    const struct got a = get(w->whole, key), b = get(w->x, key);
    CHECK(a.status == b.status && a.sum == b.sum);
    struct remix *page = NULL;
    if (n % 8 == 0) {  // a page that a reader keeps outlives the epoch
      OK(remix_page_for(w->x, key, &page));
      remix_ref(page);
    }
    epoch_exit(&r->slot);
    if (!page) continue;
    epoch_enter(&w->p.epoch, &r->slot);
    CHECK(get(page, key).status == a.status);
    epoch_exit(&r->slot);
    remix_unref(page);
  }
  epoch_leave(&w->p.epoch, &r->slot);
  return NULL;
}

// Opens and closes another REMIX of the file. Other threads drop its pages meanwhile.
static void *open_on(void *arg) {
  struct reader *const r = arg;
  struct paged *const w = r->w;
  epoch_join(&w->p.epoch, &r->slot);
  for (uint32_t n = 0; n < r->gets / 20; n++) {
    struct remix *x;
    OK(remix_open_paged(&w->p.ctx, w->whole->number, w->t.sst, w->t.nr, &x));
    epoch_enter(&w->p.epoch, &r->slot);
    for (uint32_t i = 0; i < 4; i++) {
      const struct kref key = w->t.k.keys[rng_next(&r->seed) % w->t.k.nr];
      const struct got a = get(w->whole, key), b = get(x, key);
      CHECK(a.status == b.status && a.sum == b.sum);
    }
    epoch_exit(&r->slot);
    remix_unref(x);
  }
  epoch_leave(&w->p.epoch, &r->slot);
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  struct paged w;
  struct reader readers[THREADS] = {{0}};
  pthread_t threads[THREADS];
  make(&w, KEYS_PATHS, 2500 / SLOW, 4, true);
  for (uint32_t i = 0; i < THREADS; i++) {
    readers[i].w = &w;
    readers[i].seed = check_seed + i;
    readers[i].gets = 6000 / SLOW;
    assert_int_equal(pthread_create(&threads[i], NULL, i ? read_on : open_on, &readers[i]), 0);
  }
  for (uint32_t i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
  assert_true(atomic_load(&w.pool.drops) > 100 && atomic_load(&w.pool.filters.denied) > 100 / SLOW);
  end(&w);
}

// A damaged file is refused, or gives right answers, or a get finds the damage. No answer is lost for the pages that
// are whole.
static void test_damage(void **state) {
  (void)state;
  struct paged w;
  uint8_t buf[4096];
  uint32_t refused = 0, found = 0;
  make(&w, KEYS_NUMBERS, 700, 3, true);
  const uint64_t size = w.whole->file_size;
  char path[ENV_PATH_MAX];
  (void)snprintf(path, sizeof(path), "%s", w.whole->path);
  for (uint64_t at = rng_next(&check_seed) % 7; at < size; at += 1 + rng_next(&check_seed) % (13 * SLOW)) {
    byte_flip(path, (long)at);
    struct remix *bad = NULL;
    const enum remixdb_status s = remix_open_paged(&w.p.ctx, w.whole->number, w.t.sst, w.t.nr, &bad);
    assert_true(s == REMIXDB_OK || s == REMIXDB_CORRUPT || s == REMIXDB_VERSION);
    refused += s != REMIXDB_OK;
    uint32_t wrong = 0, right = 0;
    for (uint32_t n = 0; n < 40 && bad; n++) {
      const struct kref key = some_key(&w, buf);
      enter(&w.p);
      const struct got a = get(w.whole, key), b = get(bad, key);
      leave(&w.p);
      if (b.status == REMIXDB_CORRUPT) wrong++;
      else right += a.status == b.status && a.sum == b.sum;
      assert_true(b.status == REMIXDB_CORRUPT || (a.status == b.status && a.sum == b.sum));
    }
    found += wrong > 0;
    if (bad) assert_true(right > 0);
    remix_unref(bad);
    byte_flip(path, (long)at);
  }
  assert_true(refused > 20 / SLOW && found > 20 / SLOW);
  end(&w);
}

// Checks whether the columns of heads and anchors lie plain in a page, as they do in large ones. A page begins with the
// length of each column in the file: tags, heads, selectors, both bytes of the discriminating bits, anchors; then comes
// the length of the anchors before compression.
static void check_plain(const uint8_t *page, const struct remix_page *p, bool plain) {
  const uint32_t tags = load32le(page), heads = load32le(page + 4), sels = load32le(page + 8),
                 anchors = load32le(page + 20), whole = load32le(page + 24);
  assert_int_equal(tags, p->nr_entries);
  assert_true(sels < p->nr_entries);
  assert_int_equal(heads == REMIX_SEG_HEAD * p->nr_segs, plain);
  assert_int_equal(anchors == whole, plain);
}

// Packs an image, checks that all pages but the last have so many segments, and that the file is the image.
static size_t check_packed(const struct paged *w, const uint8_t *image, size_t size, bool large_pages, uint32_t segs) {
  uint8_t *file;
  size_t len, back;
  struct mem_map map;
  struct remix_dir d;
  struct remix_page page = {.nr_segs = segs};
  OK(remix_pack(image, size, large_pages, &file, &len));
  const size_t at = load64le(file + REMIX_HEAD_SEGS_AT);
  OK(remix_dir_begin(&d, file, file + at, len - REMIX_SUM - at, "a file"));
  while (d.left) {
    assert_int_equal(page.nr_segs, segs);
    OK(remix_dir_next(&d, &page));
    if (page.nr_segs == segs) check_plain(file + page.at, &page, large_pages);  // the last page may be too short
  }
  assert_in_range(page.nr_segs, 1, segs);
  OK(remix_unpack(file, len, w->t.sst, w->t.nr, "a file", &map, &back));
  assert_int_equal(back, size);
  assert_memory_equal(map.ptr, image, size - REMIX_SUM);
  mem_unmap(&map);
  mem_free(file);
  return len;
}

// Large pages have twice as many segments. Their plain columns are short, so the file is about as long.
static void test_large_pages(void **state) {
  (void)state;
  struct paged w;
  make_pages(&w, 0, 20000, 3, true, REMIX_PAGE_SEGS);
  const size_t size = remix_plain_size(w.whole);
  uint8_t *const image = malloc(size);
  remix_plain(w.whole, image);
  const size_t large = check_packed(&w, image, size, true, 2 * REMIX_PAGE_SEGS),
               small = check_packed(&w, image, size, false, REMIX_PAGE_SEGS);
  print_message("large pages: %zu bytes, small ones: %zu\n", large, small);
  assert_true(large < small + small / 16);
  free(image);
  end(&w);
}

// Gives one entry of page i to another run, and makes a file of this with checksums that are right.
static void forge(const struct paged *w, uint32_t i) {
  const struct remix_layout lay = remix_layout(w->t.nr, true);
  const size_t size = remix_plain_size(w->whole);
  uint8_t *const image = malloc(size), *file;
  size_t len;
  const uint32_t first = remix_page_segment(w->x, i), nr = remix_page_segment(w->x, i + 1) - first;
  remix_plain(w->whole, image);
  uint8_t *const s = image + remix_segs_off(w->t.nr) + (first + rng_next(&check_seed) % nr) * lay.stride;
  uint8_t *const sel = s + lay.sel + rng_next(&check_seed) % remix_seg_nr(&lay, s);
  *sel = (uint8_t)((*sel & ~REMIX_RUN) | ((*sel & REMIX_RUN) + 1) % w->t.nr);
  OK(remix_pack(image, size, false, &file, &len));
  file_write(w->whole->path, file, len);
  mem_free(file);
  free(image);
}

// A page whose selectors do not go to the cursor offsets of the next page, or to the ends of the runs, is refused (G4).
static void test_forged(void **state) {
  (void)state;
  struct paged w;
  make_pages(&w, KEYS_NUMBERS, 900, 3, true, 3);
  size_t len;
  uint8_t *const good = file_read(w.whole->path, &len);
  for (uint32_t i = 0; i < remix_pages(w.x); i++) {
    struct remix *bad, *page;
    forge(&w, i);
    OK(remix_open_paged(&w.p.ctx, w.whole->number, w.t.sst, w.t.nr, &bad));
    assert_int_equal(remix_pages(bad), remix_pages(w.x));
    for (uint32_t k = 0; k < remix_pages(bad); k++) {
      enter(&w.p);
      assert_int_equal(remix_page(bad, k, &page), k == i ? REMIXDB_CORRUPT : REMIXDB_OK);
      if (k == i) assert_non_null(strstr(err_msg(), "entries of run"));
      leave(&w.p);
    }
    remix_unref(bad);
    file_write(w.whole->path, good, len);
  }
  free(good);
  end(&w);
}

// Makes pages, and returns their file.
static uint8_t *pages_read(struct paged *w, size_t *len_out) {
  make_pages(w, KEYS_PATHS, 900, 3, true, 3);
  return file_read(w->whole->path, len_out);
}

// A directory whose page states more bytes of anchors than its segments can have is refused before a page is read.
static void test_many_anchors(void **state) {
  (void)state;
  struct paged w;
  struct remix *bad;
  size_t len;
  uint8_t *const p = pages_read(&w, &len);
  const uint64_t dir = load64le(p + REMIX_HEAD_SEGS_AT), sum = len - 2 * REMIX_SUM;
  for (uint32_t beyond = 0; beyond < 2; beyond++) {
    const uint32_t was = load32le(p + dir + 16), now = 2 * KV_KEY_MAX + beyond;
    store32le(p + dir + 16, now);
    store64le(p + REMIX_HEAD_ANCHORS_LEN, load64le(p + REMIX_HEAD_ANCHORS_LEN) + now - was);
    store64le(p + sum, hash64_seed(p + dir, sum - dir, w.whole->number));
    store64le(p + sum + REMIX_SUM, hash64_seed(p, sum + REMIX_SUM, w.whole->number));
    file_write(w.whole->path, p, len);
    const enum remixdb_status s = remix_open_paged(&w.p.ctx, w.whole->number, w.t.sst, w.t.nr, &bad);
    assert_int_equal(s, beyond ? REMIXDB_CORRUPT : REMIXDB_OK);
    if (!beyond) remix_unref(bad);
  }
  free(p);
  end(&w);
}

// A directory whose page has more bytes than its columns can have is refused before a page is read.
static void test_large_page(void **state) {
  (void)state;
  struct paged w;
  struct remix *bad;
  size_t len;
  uint8_t *const p = pages_read(&w, &len);
  const size_t dir = (size_t)load64le(p + REMIX_HEAD_SEGS_AT), first = remix_segs_off(w.t.nr);
  const uint32_t was = load32le(p + dir), segs = load32le(p + dir + 4), entries = load32le(p + dir + 8);
  const uint32_t most = 28 + 4 * segs + 4 * entries + 10 * segs + load32le(p + dir + 16);
  assert_true(was < most);
  for (uint32_t beyond = 0; beyond < 2; beyond++) {
    const size_t more = most + beyond - was, all = len + more, sum = all - 2 * REMIX_SUM;
    uint8_t *const q = calloc(1, all);
    memcpy(q, p, first + was);
    memcpy(q + first + was + more, p + first + was, len - first - was);
    store32le(q + dir + more, most + beyond);
    store64le(q + REMIX_HEAD_SEGS_AT, dir + more);
    store64le(q + REMIX_HEAD_SIZE, all);
    store64le(q + sum, hash64_seed(q + dir + more, sum - dir - more, w.whole->number));
    store64le(q + sum + REMIX_SUM, hash64_seed(q, sum + REMIX_SUM, w.whole->number));
    file_write(w.whole->path, q, all);
    free(q);
    const enum remixdb_status s = remix_open_paged(&w.p.ctx, w.whole->number, w.t.sst, w.t.nr, &bad);
    assert_int_equal(s, beyond ? REMIXDB_CORRUPT : REMIXDB_OK);
    if (!beyond) remix_unref(bad);
  }
  free(p);
  end(&w);
}

// A page with an anchor that is longer than a key can be is refused.
static void test_long_anchor(void **state) {
  (void)state;
  struct paged w;
  struct remix *bad, *page;
  make_pages(&w, KEYS_PATHS, 900, 3, true, 3);
  assert_true(remix_pages(w.x) > 3);
  size_t size = remix_plain_size(w.whole), len;
  const uint32_t seg = remix_page_segment(w.x, 2) - 1, has = anchors_len(&w.whole->index->anchors, seg);
  uint8_t *const plain = malloc(size), *file;
  remix_plain(w.whole, plain);
  uint8_t *const image = anchor_longer(plain, &size, seg, KV_KEY_MAX + 1 - has);
  assert_non_null(image);
  OK(remix_pack(image, size, false, &file, &len));
  file_write(w.whole->path, file, len);
  OK(remix_open_paged(&w.p.ctx, w.whole->number, w.t.sst, w.t.nr, &bad));
  for (uint32_t k = 0; k < remix_pages(bad); k++) {
    enter(&w.p);
    assert_int_equal(remix_page(bad, k, &page), k == 1 ? REMIXDB_CORRUPT : REMIXDB_OK);
    if (k == 1) assert_non_null(strstr(err_msg(), "anchor of 65505 bytes"));
    leave(&w.p);
  }
  remix_unref(bad);
  mem_free(file);
  free(image);
  free(plain);
  end(&w);
}

// Missing memory and failing reads: the call fails, and the next one is right.
static void test_failures(void **state) {
  (void)state;
  struct paged w;
  uint8_t buf[4096];
  uint32_t failed = 0;
  make(&w, KEYS_PATHS, 900, 3, true);
  for (uint32_t n = 1; n < 12; n++) {
    struct remix *x = NULL;
    fault_io_set(FAULT_READ | FAULT_OPEN, n, false);
    enum remixdb_status s = remix_open_paged(&w.p.ctx, w.whole->number, w.t.sst, w.t.nr, &x);
    assert_int_equal(s, fault_io_end() ? REMIXDB_IO : REMIXDB_OK);
    failed += s != REMIXDB_OK;
    remix_unref(x);
    x = NULL;
    fault_mem_set(n);
    s = remix_open_paged(&w.p.ctx, w.whole->number, w.t.sst, w.t.nr, &x);
    assert_int_equal(s, fault_mem_end() ? REMIXDB_NOMEM : REMIXDB_OK);
    failed += s != REMIXDB_OK;
    remix_unref(x);
    const struct kref key = some_key(&w, buf);
    for (uint32_t i = 0; i < 2; i++) {
      enter(&w.p);
      if (i) fault_mem_set(n);
      else fault_io_set(FAULT_READ | FAULT_OPEN, n, false);
      const struct got b = get(w.x, key);
      const bool bad = i ? fault_mem_end() : fault_io_end();
      const struct got a = get(w.whole, key);
      if (b.status == REMIXDB_IO || b.status == REMIXDB_NOMEM) assert_true(bad && ++failed);
      else assert_true(a.status == b.status && a.sum == b.sum);
      const struct got c = get(w.x, key);
      assert_true(a.status == c.status && a.sum == c.sum);
      leave(&w.p);
    }
  }
  assert_true(failed > 8);
  end(&w);
}

// A whole view becomes paged in its place, and a small one or one without room for it stays whole.
static void test_page_out(void **state) {
  (void)state;
  struct paged w;
  uint8_t buf[4096];
  make(&w, KEYS_NUMBERS, 800, 2, true);
  struct remix *x;
  OK(remix_open(&w.p.ctx, w.whole->number, w.t.sst, w.t.nr, &x));
  const size_t before = remix_memory(x);
  fault_mem_set(2);
  assert_int_equal(remix_page_out(x, NULL), REMIXDB_NOMEM);
  assert_true(fault_mem_end() && !remix_is_paged(x));
  for (uint32_t i = 0; i < 2; i++) {
    const struct kref key = some_key(&w, buf);
    enter(&w.p);
    const struct got a = get(w.whole, key), b = get(x, key);
    leave(&w.p);
    assert_true(a.status == b.status && a.sum == b.sum);
    if (i == 0) OK(remix_page_out(x, NULL));
  }
  assert_true(remix_is_paged(x) && remix_memory(x) < before && x->nr_keys == w.whole->nr_keys);
  remix_unref(x);
  atomic_store(&remix_paged_from, REMIX_PAGED_FROM);
  struct remix *const small = part_build_all(&w.t, true);
  OK(remix_page_out(small, NULL));
  assert_false(remix_is_paged(small));
  done(small);
  end(&w);
}

// A view over one more table, paged, which takes over the filters of w->x.
static struct remix *anew_make(struct paged *w) {
  struct remix *x;
  struct sst *runs[REMIX_RUNS_MAX];
  uint32_t *const what = calloc(w->t.k.nr, sizeof(*what));
  for (uint32_t i = 0; i < w->t.k.nr; i += 7) what[i] = 2 + i;
  for (uint32_t r = 0; r < w->t.nr; r++) runs[r] = w->t.sst[r];
  runs[w->t.nr] = table_make(&w->p, &w->t.k, what, 0, w->t.k.nr, 20, true);
  struct remix_build b = place_build(&w->p, w->p.next++, w->whole, &runs[w->t.nr], 1);
  OK(remix_build(&b));
  OK(remix_open(&w->p.ctx, b.number, runs, w->t.nr + 1, &x));
  sst_unref(runs[w->t.nr]);
  free(what);
  return x;
}

// Absent keys are looked up in pages of the first half of the keys, until their filters are there.
static void ask_first_half(struct paged *w) {
  uint8_t buf[4096];
  for (uint32_t n = 0; n < 4000; n++) {
    const struct kref key = some_key(w, buf);
    if (kv_cmp(key, w->t.k.keys[w->t.k.nr / 2]) >= 0) continue;
    enter(&w->p);
    (void)get(w->x, key);
    leave(&w->p);
  }
}

// Gets keys of x and of `whole`, which has the same entries in memory, and compares. *low, *high: how often filters
// denied a key of the first half, and of the second one.
static void compare_denied(struct paged *w, struct remix *x, struct remix *whole, uint64_t *low, uint64_t *high) {
  uint8_t buf[4096];
  for (uint32_t n = 0; n < 2000; n++) {
    const struct kref key = some_key(w, buf);
    enter(&w->p);
    const uint64_t before = atomic_load(&w->pool.filters.denied);
    const struct got is = get(x, key);
    const uint64_t more = atomic_load(&w->pool.filters.denied) - before;
    const struct got was = get(whole, key);
    leave(&w->p);
    assert_true(is.status == was.status && is.sum == was.sum);
    assert_true(!more || is.status == REMIXDB_NOTFOUND);
    *(kv_cmp(key, w->t.k.keys[w->t.k.nr / 2]) < 0 ? low : high) += more;
  }
}

// Where pages had filters the pages of the view after them have filters, if memory is there, and others have none.
static void take_filters_over(bool young, bool fail) {
  struct paged w;
  struct remix *whole;
  uint64_t low = 0, high = 0;
  make_pages(&w, KEYS_NUMBERS, 6000, 3, true, 6);
  if (young) make_young(&w);
  ask_first_half(&w);
  const uint64_t had = atomic_load(&w.pool.filters.nr);
  assert_true(had > 2);
  struct remix *const x = anew_make(&w);
  OK(remix_open(&w.p.ctx, x->number, x->runs, x->nr_runs, &whole));
  if (young) remix_make_young(x);
  if (young) remix_make_young(whole);
  atomic_store(&budget_starved, false);
  if (fail) fault_mem_set_lasting(16);
  const enum remixdb_status s = remix_page_out(x, w.x);
  const bool bad = fail && fault_mem_end();
  OK(s);
  assert_true(remix_is_paged(x) && (!fail || bad));
  const uint64_t got = atomic_load(&w.pool.filters.nr) - had;
  assert_true(fail ? got < had : got >= had / 2 && got <= 2 * had + 2);
  compare_denied(&w, x, whole, &low, &high);
  assert_true(fail || (low > 0 && high * 8 < low));
  atomic_store(&budget_starved, true);
  remix_unref(whole);
  done(x);
  end(&w);
}

static void test_filters_anew(void **state) {
  (void)state;
  for (uint32_t way = 0; way < 4; way++) take_filters_over(way / 2, way % 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_answers),      cmocka_unit_test(test_loads),        cmocka_unit_test(test_counted),
      cmocka_unit_test(test_threads),      cmocka_unit_test(test_damage),       cmocka_unit_test(test_failures),
      cmocka_unit_test(test_page_out),     cmocka_unit_test(test_filters),      cmocka_unit_test(test_no_filter),
      cmocka_unit_test(test_filters_anew), cmocka_unit_test(test_gone),         cmocka_unit_test(test_forged),
      cmocka_unit_test(test_long_anchor),  cmocka_unit_test(test_many_anchors), cmocka_unit_test(test_large_page),
      cmocka_unit_test(test_together),     cmocka_unit_test(test_not_together), cmocka_unit_test(test_large_pages),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
