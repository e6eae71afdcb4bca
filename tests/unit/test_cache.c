// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/thread.h"
#include "tests/lib/check.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/budget.h"
#include "table/block.h"
#include "table/cache.h"
#include "table/records.h"

#define PAGE BLOCK_PAGE

// ---- blocks that tell which they are, in each cache line of theirs

static uint64_t word_of(uint64_t id, uint32_t block, uint32_t i) {
  return (id << 40) ^ ((uint64_t)block << 16) ^ (i * 0x9E3779B97F4A7C15ull);
}

static void fill(uint64_t id, uint32_t block, uint32_t nr_pages, uint8_t *buf) {
  for (uint32_t i = 0; i < nr_pages * PAGE / 8; i += 8) store64le(buf + i * 8, word_of(id, block, i));
}

static bool is_block(uint64_t id, uint32_t block, uint32_t nr_pages, const uint8_t *buf) {
  for (uint32_t i = 0; i < nr_pages * PAGE / 8; i += 8)
    if (load64le(buf + i * 8) != word_of(id, block, i)) return false;
  return true;
}

struct tab {
  struct cache_table t;
  _Atomic uint32_t loads;
  _Atomic int32_t failures;  // loads that are to fail
  uint64_t sleep_ns;         // a load's
  struct epoch_item item;
};

static struct cache *cache;

static bool in_frames(const uint8_t *buf) {
  return cache && cache->pages && buf >= cache->pages && buf < cache->pages + cache_most(cache);
}

static enum remixdb_status load(void *arg, uint32_t block, uint32_t nr_pages, uint8_t *buf, bool own) {
  struct tab *const tab = arg;
  if (own == in_frames(buf)) return err_set(REMIXDB_INVALID, "whose memory it is was not told");
  atomic_fetch_add_explicit(&tab->loads, 1, memory_order_relaxed);
  memset(buf, 0xEE, nr_pages * PAGE);  // nobody may see a block that is not whole
  if (tab->sleep_ns) time_sleep_ns(tab->sleep_ns);
  int32_t failures = atomic_load_explicit(&tab->failures, memory_order_relaxed);
  while (failures > 0)
    if (atomic_compare_exchange_weak(&tab->failures, &failures, failures - 1))
      return err_set(REMIXDB_CORRUPT, "block %u is bad", block);
  fill(tab->t.id, block, nr_pages, buf);
  return REMIXDB_OK;
}

// ---- a store's worth: an epoch domain, a cache, two readers

static struct epoch ep;
static struct epoch_slot me, other;

static int setup(void **state) {
  (void)state;
  epoch_init(&ep);
  epoch_join(&ep, &me);
  epoch_join(&ep, &other);
  cache = NULL;
  return 0;
}

// The same where all tables use the common slots.
static int setup_common(void **state) {
  atomic_store(&budget_starved, true);
  return setup(state);
}

static int teardown(void **state) {
  (void)state;
  atomic_store(&budget_starved, false);
  cache_destroy(cache);
  cache = NULL;
  epoch_leave(&ep, &me);
  epoch_leave(&ep, &other);
  epoch_fini(&ep);
  return 0;
}

static void make_cache_most(size_t pages, size_t most) {
  OK(cache_create(pages * PAGE, most * PAGE, &ep, &cache));
  cache->disk_ns = UINT32_MAX;  // no load is the disk's, however long it takes here
}
static void make_cache(size_t pages) { make_cache_most(pages, pages); }

static void tab_init(struct tab *tab, uint32_t nr_pages, uint64_t id) {
  memset(tab, 0, sizeof(*tab));
  OK(cache_table_init(&tab->t, cache, nr_pages, id));
}

static struct cache_stats stats(void) {
  struct cache_stats st;
  cache_stats(cache, &st);
  return st;
}

// One get in an epoch of its own; whether the block was in the cache before.
static bool touch(struct tab *tab, uint32_t block, uint32_t nr_pages) {
  static struct cache_block b;
  const uint32_t before = atomic_load(&tab->loads);
  epoch_enter(&ep, &me);
  OK(cache_get(&tab->t, block, nr_pages, false, load, tab, &b));
  assert_true(is_block(tab->t.id, block, nr_pages, b.data));
  cache_block_fini(&tab->t, &b);
  epoch_exit(&me);
  return atomic_load(&tab->loads) == before;
}

static bool cached(struct tab *tab, uint32_t block) { return cache_frame(&tab->t, block) != 0; }

// As often as it takes to get a frame where there is one (C7).
static bool bring(struct tab *tab, uint32_t block, uint32_t nr_pages) {
  const bool had = touch(tab, block, nr_pages);
  if (!cached(tab, block)) (void)touch(tab, block, nr_pages);
  return had;
}

static void test_no_cache(void **state) {
  (void)state;
  make_cache(0);
  for (int i = 0; i < 2; i++) {
    struct tab tab = {.sleep_ns = 0};
    OK(cache_table_init(&tab.t, i ? cache : NULL, 100, 1));
    assert_null(tab.t.cache);
    assert_false(cache_room(&tab.t, 3, 1));
    struct cache_block b = {NULL, 0, false, NULL, 0, false};
    for (uint32_t n = 1; n <= BLOCK_PAGES_MAX; n++) {
      OK(cache_get(&tab.t, 3, n, false, load, &tab, &b));
      assert_int_equal(b.frame, 0);
      assert_true(is_block(1, 3, n, b.data));
      cache_block_pin(&tab.t, &b);
      assert_false(b.pinned);
    }
    const uint8_t *const own = b.own;
    OK(cache_get(&tab.t, 4, 2, false, load, &tab, &b));
    assert_ptr_equal(b.data, own);  // the buffer is kept
    cache_offer(&tab.t, 5, 1, b.data);
    atomic_store(&tab.failures, 1);
    FAILS(cache_get(&tab.t, 4, 2, false, load, &tab, &b), REMIXDB_CORRUPT);
    assert_null(b.data);
    cache_block_drop(&tab.t, &b);
    cache_block_fini(NULL, &b);
    assert_null(b.own);
    cache_table_fini(&tab.t);
  }
  assert_int_equal(stats().size, 0);
  cache_destroy(NULL);
}

// The heap's head of an own block does not take a page: such blocks do not all begin a page. Those of fills do, because
// their reads may go past the page cache.
static void test_own_places(void **state) {
  (void)state;
  enum { NR = 64 };
  struct tab tab = {.sleep_ns = 0};
  struct cache_block b[NR];
  struct cache_fill fill;
  uint32_t aligned = 0;
  memset(b, 0, sizeof(b));
  OK(cache_table_init(&tab.t, NULL, 100, 1));
  for (uint32_t i = 0; i < NR; i++) {
    OK(cache_get(&tab.t, i, 1, false, load, &tab, &b[i]));
    aligned += (uintptr_t)b[i].own % PAGE == 0;
  }
#if defined(__GLIBC__)
  assert_true(aligned < NR / 2);
#endif
  for (uint32_t i = 0; i < NR; i++) {
    assert_int_equal(cache_fill_begin(&tab.t, i, 1, &b[i], &fill), CACHE_FILL_READ);
    assert_true(fill.buf == b[i].own && (uintptr_t)fill.buf % PAGE == 0);
    cache_fill_end(&tab.t, i, 1, &b[i], &fill, false);
    cache_block_fini(&tab.t, &b[i]);
  }
  cache_table_fini(&tab.t);
}

static void test_hit(void **state) {
  (void)state;
  make_cache(256);
  struct tab tab;
  tab_init(&tab, 100, 7);
  struct cache_block b = {NULL, 0, false, NULL, 0, false};
  epoch_enter(&ep, &me);
  uint32_t f = 0;
  assert_null(cache_hit(&tab.t, 9, &f));
  OK(cache_get(&tab.t, 9, 3, false, load, &tab, &b));
  assert_true(is_block(7, 9, 3, b.data));
  assert_int_not_equal(b.frame, 0);
  assert_null(b.own);
  assert_ptr_equal(cache_hit(&tab.t, 9, &f), b.data);
  assert_int_equal(f, b.frame);
  const uint8_t *const data = b.data;
  OK(cache_get(&tab.t, 9, 3, false, load, &tab, &b));
  assert_ptr_equal(b.data, data);
  assert_int_equal(atomic_load(&tab.loads), 1);
  epoch_exit(&me);
  const struct cache_stats st = stats();
  assert_int_equal(st.size, 256 * PAGE);
  assert_int_equal(st.used, 3 * PAGE);
  assert_int_equal(st.misses, 1);
  assert_int_equal(st.evictions, 0);
  assert_int_equal(st.bypasses, 0);
  cache_block_fini(&tab.t, &b);
  cache_table_fini(&tab.t);
  assert_int_equal(stats().used, 0);
}

static void test_load_fails(void **state) {
  (void)state;
  make_cache(64);
  struct tab tab;
  tab_init(&tab, 100, 7);
  struct cache_block b = {NULL, 0, false, NULL, 0, false};
  epoch_enter(&ep, &me);
  OK(cache_get(&tab.t, 1, 1, false, load, &tab, &b));
  for (int i = 0; i < 100; i++) {  // more pages than there are: none may be lost
    atomic_store(&tab.failures, 1);
    FAILS(cache_get(&tab.t, 20, 16, false, load, &tab, &b), REMIXDB_CORRUPT);
    assert_string_equal(err_msg(), "block 20 is bad");
    assert_null(b.data);
    assert_int_equal(b.frame, 0);
    assert_false(cached(&tab, 20));
  }
  assert_int_equal(stats().used, PAGE);
  assert_int_equal(stats().bypasses, 0);
  OK(cache_get(&tab.t, 20, 16, false, load, &tab, &b));
  assert_true(cached(&tab, 20));
  epoch_exit(&me);
  cache_block_fini(&tab.t, &b);
  cache_table_fini(&tab.t);
}

// ---- C2: a reader's block stays whole to the end of its epoch; frames are reused after it

static void test_epoch_keeps(void **state) {
  (void)state;
  make_cache(64);
  struct tab tab;
  tab_init(&tab, 2000, 3);
  struct cache_block held[8];
  memset(held, 0, sizeof(held));
  epoch_enter(&ep, &other);
  for (uint32_t i = 0; i < 8; i++) OK(cache_get(&tab.t, i, 1, false, load, &tab, &held[i]));
  for (uint32_t i = 0; i < 1000; i++) (void)bring(&tab, 100 + i, 1);
  for (uint32_t i = 0; i < 8; i++) assert_true(is_block(3, i, 1, held[i].data));
  // C5: nothing can be reused before that epoch ends, and nobody waited for it.
  const struct cache_stats st = stats();
  assert_true(st.bypasses > 800);
  assert_true(st.evictions > 0 && st.evictions <= 64 / 8 + 1);
  assert_true(st.used <= st.size);
  epoch_exit(&other);
  for (uint32_t i = 0; i < 500; i++) (void)bring(&tab, 1100 + i, 1);
  assert_true(stats().bypasses - st.bypasses <= 8);
  assert_true(stats().evictions - st.evictions > 400);
  for (uint32_t i = 0; i < 8; i++) cache_block_fini(&tab.t, &held[i]);
  cache_table_fini(&tab.t);
}

// After readers that stay inside for long there is more in reserve, but never more than an eighth of the cache.
static void test_reserve_grows(void **state) {
  (void)state;
  make_cache(1600);
  struct tab tab;
  uint64_t got[20];
  tab_init(&tab, 60000, 3);
  uint32_t block = 0;
  for (; block < 2000; block++) (void)bring(&tab, block, 1);
  for (uint32_t turn = 0; turn < 20; turn++) {
    const uint64_t bypasses = stats().bypasses;
    epoch_enter(&ep, &other);
    for (uint32_t i = 0; i < 1000; i++) (void)bring(&tab, block++, 1);
    got[turn] = 1000 - (stats().bypasses - bypasses);
    epoch_exit(&other);
    for (uint32_t i = 0; i < 300; i++) (void)bring(&tab, block++, 1);
    uint32_t nr = 0;
    for (uint32_t i = 0; i < block; i++) nr += cached(&tab, i);
    assert_true(nr >= 1600 - 2 * 200);
  }
  assert_true(got[0] <= 64 + 64);
  assert_true(got[19] > got[0] && got[19] <= 200);
  cache_table_fini(&tab.t);
}

// A page or a few: every shape of cache serves.
static void test_small(void **state) {
  (void)state;
  static const uint32_t sizes[] = {1, 2, 3, 15, 16, 17, 40};
  for (uint32_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
    make_cache(sizes[k]);
    struct tab tab;
    tab_init(&tab, 500, k);
    for (uint32_t n = 1; n <= BLOCK_PAGES_MAX; n++) {
      const uint64_t without = stats().bypasses + stats().declined;
      for (uint32_t i = 0; i < 60; i++) (void)touch(&tab, i % 25 * 16, n);
      const uint64_t lacking = stats().bypasses + stats().declined - without;
      if (n > sizes[k]) assert_int_equal(lacking, 60);
      if (n <= sizes[k]) assert_true(lacking < 60);
      assert_true(stats().used <= stats().size);
      cache_table_fini(&tab.t);  // block numbers have other sizes in the next round
      OK(cache_table_init(&tab.t, cache, 500, k));
    }
    cache_table_fini(&tab.t);
    assert_int_equal(stats().used, 0);
    cache_destroy(cache);
    cache = NULL;
  }
}

static void test_clock(void **state) {
  (void)state;
  make_cache(128);
  struct tab tab;
  tab_init(&tab, 8000, 3);
  for (uint32_t i = 0; i < 8; i++) (void)touch(&tab, i, 1);
  uint32_t hot_misses = 0;
  for (uint32_t i = 0; i < 4000; i++) {
    hot_misses += !touch(&tab, i % 8, 1);
    assert_false(bring(&tab, 100 + i, 1));
  }
  assert_int_equal(hot_misses, 0);
  assert_true(stats().evictions > 3500);
  assert_int_equal(stats().bypasses, 0);  // in separate epochs there is always a frame
  cache_table_fini(&tab.t);
}

// ---- C7: a block that is read once puts nothing out

#define FULL_PAGES 1024u  // one shard

// Fills the cache with blocks from 0 on; returns the first that got no frame.
static uint32_t fill_up(struct tab *tab) {
  uint32_t nr = 0;
  do (void)touch(tab, nr, 1);
  while (cached(tab, nr++));
  return nr - 1;
}

static void test_once(void **state) {
  (void)state;
  make_cache(FULL_PAGES);
  struct tab tab;
  tab_init(&tab, 20000, 3);
  assert_true(cache_room(&tab.t, 0, 1));
  const uint32_t nr = fill_up(&tab);
  assert_int_equal(nr, FULL_PAGES);  // to the last page
  assert_false(cache_room(&tab.t, 0, 1));
  bool stays[FULL_PAGES];
  for (uint32_t i = 0; i < nr; i++) stays[i] = cached(&tab, i);
  const struct cache_stats was = stats();
  assert_int_equal(was.declined, 1);
  struct cache_block b = {NULL, 0, false, NULL, 0, false};
  epoch_enter(&ep, &me);
  for (uint32_t i = 0; i < 10000; i++) {
    OK(cache_get(&tab.t, 2000 + i, 1, false, load, &tab, &b));
    assert_true(is_block(3, 2000 + i, 1, b.data));
    assert_int_equal(b.frame, 0);
    assert_ptr_equal(b.data, b.own);  // one buffer for all
    assert_false(cached(&tab, 2000 + i));
  }
  epoch_exit(&me);
  cache_block_fini(&tab.t, &b);
  const struct cache_stats st = stats();
  assert_int_equal(st.declined - was.declined, 10000);
  assert_int_equal(st.misses - was.misses, 10000);
  assert_int_equal(st.used, was.used);
  assert_int_equal(st.evictions, was.evictions);
  assert_int_equal(st.bypasses, 0);
  for (uint32_t i = 0; i < nr; i++) assert_int_equal(cached(&tab, i), stays[i]);
  cache_table_fini(&tab.t);
  assert_int_equal(stats().used, 0);
  // there is room again: the first time is enough
  tab_init(&tab, 2000, 4);
  assert_true(cache_room(&tab.t, 0, BLOCK_PAGES_MAX));
  for (uint32_t i = 0; i < FULL_PAGES / 2; i++) {
    (void)touch(&tab, i, 1);
    assert_true(cached(&tab, i));
  }
  assert_int_equal(stats().declined, st.declined);
  cache_table_fini(&tab.t);
}

// The second miss brings it in, when no more came between than a quarter of those that there is room for; one too late
// is a first one again.
static void test_again(void **state) {
  (void)state;
  static const uint32_t sizes[] = {1, 2, 3, 8, BLOCK_PAGES_MAX};
  make_cache(FULL_PAGES);
  struct tab tab;
  tab_init(&tab, 60000, 3);
  const uint32_t nr = fill_up(&tab);
  uint32_t once = nr + 1, block = 50000;
  for (uint32_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
    const uint32_t n = sizes[k], span = FULL_PAGES / n / 4;
    for (uint32_t late = 0; late < 2; late++, block += BLOCK_PAGES_MAX) {
      do assert_false(touch(&tab, once, 1));  // until the frames that an eviction left are used up
      while (cached(&tab, once++));
      assert_false(touch(&tab, block, n));
      assert_false(cached(&tab, block));
      for (uint32_t i = 1; i < span + late; i++) (void)touch(&tab, once++, 1);
      const uint64_t declined = stats().declined;
      assert_false(touch(&tab, block, n));
      assert_int_equal(stats().declined - declined, late);
      if (late) {
        assert_false(cached(&tab, block));
        assert_false(touch(&tab, block, n));
      }
      // a run of pages may have to be made first, which each miss that wants one sees to
      for (uint32_t i = 0; n > 1 && i < 64 && !cached(&tab, block); i++) assert_false(touch(&tab, block, n));
      assert_true(cached(&tab, block));
      assert_true(touch(&tab, block, n));
    }
  }
  assert_true(stats().evictions > 0);
  // a read that fails takes nothing of that away
  assert_false(touch(&tab, block, 1));
  struct cache_block b = {NULL, 0, false, NULL, 0, false};
  epoch_enter(&ep, &me);
  atomic_store(&tab.failures, 1);
  FAILS(cache_get(&tab.t, block, 1, false, load, &tab, &b), REMIXDB_CORRUPT);
  assert_null(b.data);
  OK(cache_get(&tab.t, block, 1, false, load, &tab, &b));
  assert_true(cached(&tab, block));
  epoch_exit(&me);
  cache_block_fini(&tab.t, &b);
  cache_table_fini(&tab.t);
  assert_int_equal(stats().used, 0);
}

// No miss of long ago, or none at all, is taken for one of late, where the count of misses begins or starts anew.
static void test_first_misses(void **state) {
  (void)state;
  static uint8_t buf[PAGE];
  make_cache(FULL_PAGES);
  struct tab tab;
  tab_init(&tab, 20000, 3);
  for (uint32_t i = 0; cache_room(&tab.t, i, 1); i++) {
    fill(3, i, 1, buf);
    cache_offer(&tab.t, i, 1, buf);
  }
  assert_int_equal(stats().misses, 0);
  assert_false(touch(&tab, 5000, 1));
  assert_false(cached(&tab, 5000));
  atomic_store(&tab.t.slots[6000], CACHE_MISSED | 0x7FFFFFFFu);  // three misses before the next
  assert_false(touch(&tab, 6000, 1));
  assert_true(cached(&tab, 6000));
  atomic_store(&tab.t.slots[7000], CACHE_MISSED | 0x7FFFF000u);
  assert_false(touch(&tab, 7000, 1));
  assert_false(cached(&tab, 7000));
  cache_table_fini(&tab.t);
}

// Where loads take as long as a disk's each block gets its frame at once; that is seen by one load in eight, both ways.
static void test_disk(void **state) {
  (void)state;
  make_cache(FULL_PAGES);
  struct tab tab;
  tab_init(&tab, 20000, 3);
  uint32_t block = fill_up(&tab) + 1;
  for (uint32_t turn = 0; turn < 4; turn++) {
    const bool disk = turn % 2 == 0;
    cache->disk_ns = disk ? 1 : UINT32_MAX;
    for (uint32_t i = 0; i < 8; i++) (void)touch(&tab, block++, 1);
    // those that an eviction has left room for are no proof
    const uint64_t declined = stats().declined;
    for (uint32_t i = 0; i < 400; i++, block++) {
      assert_false(touch(&tab, block, 1));
      if (disk) assert_true(cached(&tab, block));
    }
    if (disk) assert_int_equal(stats().declined, declined);
    else assert_true(stats().declined - declined > 300);
  }
  cache_table_fini(&tab.t);
}

// Fills as gets. Readahead puts blocks into the cache at once, because its reader looks for them there.
static void test_once_otherwise(void **state) {
  (void)state;
  static uint8_t buf[PAGE];
  make_cache(FULL_PAGES);
  struct tab tab;
  tab_init(&tab, 20000, 3);
  (void)fill_up(&tab);
  struct cache_block b = {NULL, 0, false, NULL, 0, false};
  struct cache_fill f;
  for (uint32_t i = 0; i < 100; i++) {
    epoch_enter(&ep, &me);
    for (uint32_t time = 0; time < 2; time++) {
      const uint32_t block = 2000 + i;
      assert_int_equal(cache_fill_begin(&tab.t, block, 1, &b, &f), CACHE_FILL_READ);
      fill(3, block, 1, f.buf);
      cache_fill_end(&tab.t, block, 1, &b, &f, true);
      assert_true(is_block(3, block, 1, b.data));
      assert_int_equal(b.frame != 0, time);
      assert_int_equal(cached(&tab, block), time);
    }
    epoch_exit(&me);
    fill(3, 4000 + i, 1, buf);
    cache_offer(&tab.t, 4000 + i, 1, buf);
    assert_true(touch(&tab, 4000 + i, 1));
    // and so is the block of the earlier miss
    (void)touch(&tab, 6000 + i, 1);
    fill(3, 6000 + i, 1, buf);
    cache_offer(&tab.t, 6000 + i, 1, buf);
    assert_true(touch(&tab, 6000 + i, 1));
  }
  assert_int_equal(stats().bypasses, 0);
  cache_block_fini(&tab.t, &b);
  cache_table_fini(&tab.t);
}

// ---- pins

static void test_pin(void **state) {
  (void)state;
  make_cache(64);
  struct tab tab;
  tab_init(&tab, 2000, 3);
  struct cache_block held[2];
  memset(held, 0, sizeof(held));
  epoch_enter(&ep, &other);
  for (uint32_t i = 0; i < 2; i++) {
    OK(cache_get(&tab.t, 20 * i, 10, false, load, &tab, &held[i]));
    cache_block_pin(&tab.t, &held[i]);
    cache_block_pin(&tab.t, &held[i]);  // once
    assert_true(held[i].pinned);
  }
  epoch_exit(&other);
  for (uint32_t i = 0; i < 1000; i++) (void)bring(&tab, 100 + i, 1);
  for (uint32_t i = 0; i < 2; i++) {
    assert_true(cached(&tab, 20 * i));  // CLOCK passes by pinned blocks
    assert_true(is_block(3, 20 * i, 10, held[i].data));
  }
  assert_int_equal(stats().bypasses, 0);
  cache_block_drop(&tab.t, &held[0]);
  assert_null(held[0].data);
  // A get drops the former hold.
  epoch_enter(&ep, &other);
  OK(cache_get(&tab.t, 1999, 1, false, load, &tab, &held[1]));
  epoch_exit(&other);
  assert_false(held[1].pinned);
  for (uint32_t i = 0; i < 1000; i++) (void)bring(&tab, 100 + i, 1);
  assert_false(cached(&tab, 0));
  assert_false(cached(&tab, 20));
  for (uint32_t i = 0; i < 2; i++) cache_block_fini(&tab.t, &held[i]);
  cache_table_fini(&tab.t);
}

// C3: the pin that comes after the eviction, still inside the epoch, holds the frame past the epoch's end.
static void test_pin_in_limbo(void **state) {
  (void)state;
  make_cache(64);
  struct tab tab, next;
  tab_init(&tab, 2000, 3);
  struct cache_block held = {NULL, 0, false, NULL, 0, false};
  epoch_enter(&ep, &other);
  OK(cache_get(&tab.t, 0, 1, false, load, &tab, &held));
  for (uint32_t i = 0; i < 200; i++) (void)bring(&tab, 100 + i, 1);
  assert_false(cached(&tab, 0));
  cache_block_pin(&tab.t, &held);
  epoch_exit(&other);
  for (uint32_t i = 0; i < 1000; i++) (void)bring(&tab, 300 + i, 1);
  assert_true(is_block(3, 0, 1, held.data));
  assert_false(bring(&tab, 0, 1));  // a second frame for it, meanwhile
  assert_true(touch(&tab, 0, 1));
  assert_true(is_block(3, 0, 1, held.data));
  cache_block_fini(&tab.t, &held);
  // The table goes; the frame comes back all the same: a whole cache of pages can be had.
  cache_table_fini(&tab.t);
  tab_init(&next, 2000, 4);
  for (uint32_t i = 0; i < 200; i++) (void)bring(&next, i, 1);
  uint32_t nr = 0;
  for (uint32_t i = 0; i < 2000; i++) nr += cached(&next, i);
  assert_true(nr >= 64 - 64 / 8);
  cache_table_fini(&next.t);
  assert_int_equal(stats().used, 0);
}

// ---- accounting

// C6, and C1 of all slots: frames lie inside the cache, do not overlap, and hold their blocks.
static uint64_t check_tables(struct tab *tabs, uint32_t nr_tabs, const uint8_t (*sizes)[600], uint32_t nr_frames) {
  uint8_t *const seen = calloc(nr_frames + 1, 1);
  uint64_t pages = 0;
  for (uint32_t k = 0; k < nr_tabs; k++) {
    for (uint32_t block = 0; block < tabs[k].t.nr_pages; block++) {
      const uint32_t f = cache_frame(&tabs[k].t, block);
      if (!f) continue;
      const uint32_t n = sizes[k][block];
      assert_true(f + n - 1 <= nr_frames);
      for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(seen[f + i], 0);
        seen[f + i] = 1;
      }
      assert_true(is_block(tabs[k].t.id, block, n, cache_frame_data(cache, f)));
      pages += n;
    }
  }
  free(seen);
  return pages;
}

// Random calls on three tables, with a model of the blocks that are held.
struct random_use {
  uint64_t *seed;
  uint8_t sizes[3][600];
  struct tab tabs[3];
  struct cache_block held[6];
  uint32_t held_tab[6], held_block[6];
  bool other_inside;  // the other thread's epoch
};

// Holds another block in place of one.
static void use_held(struct random_use *u, uint32_t k, uint32_t block) {
  const uint32_t h = (uint32_t)(rng_next(u->seed) % 6), tab = u->held_tab[h], old = u->held_block[h];
  struct cache_block *const held = &u->held[h];
  if (held->data) assert_true(is_block(tab + 10, old, u->sizes[tab][old], held->data));
  epoch_enter(&ep, &me);
  if (held->data) cache_block_drop(&u->tabs[tab].t, held);
  OK(cache_get(&u->tabs[k].t, block, u->sizes[k][block], false, load, &u->tabs[k], held));
  cache_block_pin(&u->tabs[k].t, held);
  u->held_tab[h] = k;
  u->held_block[h] = block;
  epoch_exit(&me);
}

// Ends the table and begins it anew.
static void use_table_again(struct random_use *u, uint32_t k) {
  for (uint32_t h = 0; h < 6; h++)
    if (u->held[h].data && u->held_tab[h] == k) cache_block_drop(&u->tabs[k].t, &u->held[h]);
  cache_table_fini(&u->tabs[k].t);
  tab_init(&u->tabs[k], 600, k + 10);
}

// The block's read fails unless it is cached.
static void use_failing(struct random_use *u, uint32_t k, uint32_t block) {
  struct tab *const t = &u->tabs[k];
  struct cache_block b = {NULL, 0, false, NULL, 0, false};
  atomic_store(&t->failures, cached(t, block) ? 0 : 1);
  epoch_enter(&ep, &me);
  const bool bad = atomic_load(&t->failures) > 0;
  FAILS(cache_get(&t->t, block, u->sizes[k][block], false, load, t, &b), bad ? REMIXDB_CORRUPT : REMIXDB_OK);
  epoch_exit(&me);
  cache_block_fini(&t->t, &b);
}

static void use_once(struct random_use *u, uint32_t n, uint32_t k, uint32_t block) {
  static uint8_t buf[BLOCK_PAGES_MAX * PAGE];
  const uint32_t what = (uint32_t)(rng_next(u->seed) % 100), size = u->sizes[k][block];
  if (what < 4) {
    if (u->other_inside) epoch_exit(&other);
    else epoch_enter(&ep, &other);
    u->other_inside = !u->other_inside;
  } else if (what < 12) {
    use_held(u, k, block);
  } else if (what < 20) {
    fill(k + 10, block, size, buf);
    cache_offer(&u->tabs[k].t, block, size, buf);
  } else if (what == 20 && n % 8 == 0) {
    use_table_again(u, k);
  } else if (what == 21) {
    use_failing(u, k, block);
  } else {
    (void)(rng_next(u->seed) % 2 ? touch : bring)(&u->tabs[k], block, size);
  }
}

static void test_accounting(void **state) {
  (void)state;
  const char *const env = getenv("TEST_SEED");
  uint64_t seed = env ? strtoull(env, NULL, 0) : time_ns();
  print_message("TEST_SEED=%llu\n", (unsigned long long)seed);
  static struct random_use u;
  u = (struct random_use){.seed = &seed};
  make_cache_most(300, 500);
  for (uint32_t k = 0; k < 3; k++) {
    tab_init(&u.tabs[k], 600, k + 10);
    for (uint32_t i = 0; i < 600; i++)
      u.sizes[k][i] = (uint8_t)(rng_next(&seed) % 3 ? 1 : rng_next(&seed) % BLOCK_PAGES_MAX + 1);
  }
  for (uint32_t n = 0; n < 6000; n++) {
    const uint32_t k = (uint32_t)(rng_next(&seed) % 3), block = (uint32_t)(rng_next(&seed) % 600);
    use_once(&u, n, k, block);
    if (n % 97 == 50 && !u.other_inside) {  // readers in their epochs would be waited for
      const size_t size = (100 + rng_next(&seed) % 400) * PAGE;
      OK(cache_resize(cache, size));
      assert_int_equal(stats().size, size);
    }
    if (n % 200 == 0) {
      OK(u.other_inside ? REMIXDB_OK : cache_resize(cache, 300 * PAGE));
      const uint64_t pages = check_tables(u.tabs, 3, u.sizes, 500);
      const struct cache_stats c = stats();
      assert_true(pages * PAGE <= c.used && c.used <= c.size);
    }
  }
  if (u.other_inside) epoch_exit(&other);
  for (uint32_t h = 0; h < 6; h++) cache_block_fini(&u.tabs[u.held_tab[h]].t, &u.held[h]);
  for (uint32_t k = 0; k < 3; k++) cache_table_fini(&u.tabs[k].t);
  // Every page is accounted for: the whole cache can be filled again.
  OK(cache_resize(cache, 300 * PAGE));
  struct tab tab;
  tab_init(&tab, 600, 99);
  for (uint32_t i = 0; i < 1000; i++) (void)bring(&tab, i % 290, 1);
  const uint64_t misses = stats().misses;
  for (uint32_t i = 0; i < 250; i++) (void)touch(&tab, i, 1);
  assert_true(stats().misses - misses < 125);
  cache_table_fini(&tab.t);
  assert_int_equal(stats().used, 0);
}

// Frames that wait in limbo know nothing of a table that is gone, and those in slots are free at once.
static void test_table_gone(void **state) {
  (void)state;
  make_cache(64);
  for (uint64_t id = 0; id < 20; id++) {
    struct tab *const tab = malloc(sizeof(*tab));
    tab_init(tab, 400, id);
    epoch_enter(&ep, &other);
    for (uint32_t i = 0; i < 200; i++) (void)touch(tab, i, 1);
    cache_table_fini(&tab->t);
    free(tab);
    assert_int_equal(stats().used, 0);
    if (id % 2) epoch_exit(&other);
    struct tab next;
    tab_init(&next, 400, 100 + id);
    const uint64_t evictions = stats().evictions, bypasses = stats().bypasses;
    for (uint32_t i = 0; i < 48; i++) (void)touch(&next, i, 1);
    assert_int_equal(stats().evictions, evictions);
    assert_int_equal(stats().bypasses, bypasses);
    cache_table_fini(&next.t);
    if (id % 2 == 0) epoch_exit(&other);
  }
}

static void test_offer(void **state) {
  (void)state;
  static uint8_t buf[BLOCK_PAGES_MAX * PAGE];
  make_cache(64);
  struct tab tab;
  tab_init(&tab, 400, 5);
  fill(5, 8, 4, buf);
  cache_offer(&tab.t, 8, 4, buf);
  assert_true(touch(&tab, 8, 4));
  const uint32_t f = cache_frame(&tab.t, 8);
  cache_offer(&tab.t, 8, 4, buf);  // it is there
  assert_int_equal(cache_frame(&tab.t, 8), f);
  assert_int_equal(stats().used, 4 * PAGE);
  assert_int_equal(stats().misses, 0);
  epoch_enter(&ep, &other);  // nothing to be had
  for (uint32_t i = 0; i < 200; i++) {
    fill(5, 100 + i, 1, buf);
    cache_offer(&tab.t, 100 + i, 1, buf);
  }
  uint32_t nr = 0;
  for (uint32_t i = 0; i < 200; i++) nr += cached(&tab, 100 + i);
  assert_true(nr >= 64 - 4 - 16 && nr <= 60);
  assert_int_equal(stats().bypasses, 0);
  epoch_exit(&other);
  for (uint32_t i = 0; i < 200; i++) (void)touch(&tab, 100 + i, 1);
  cache_table_fini(&tab.t);
}

// Where single pages are scattered over the cache, room for large blocks is made all the same, and hot pages stay.
static void test_large_among_small(void **state) {
  (void)state;
  make_cache(512);
  struct tab tab, large;
  uint64_t seed = 1;
  tab_init(&tab, 1000, 5);
  tab_init(&large, 16000, 6);
  for (uint32_t i = 0; i < 5000; i++) (void)bring(&tab, (uint32_t)(rng_next(&seed) % 600), 1);
  const uint64_t bypasses = stats().bypasses;
  uint32_t hot_misses = 0;
  for (uint32_t i = 0; i < 900; i++) {
    (void)bring(&large, i * 16, 16);
    for (uint32_t k = 0; k < 64; k++) hot_misses += !touch(&tab, k, 1);
  }
  const uint64_t lost = stats().bypasses - bypasses;
  assert_true(lost < 200);
  assert_true(hot_misses < 900 * 64 / 10);
  cache_table_fini(&tab.t);
  cache_table_fini(&large.t);
}

// ---- memory ahead

#define AHEAD_SHARD 2048u  // pages of a shard in these tests
#define AHEAD_STRETCH ((uint32_t)(CACHE_AHEAD / PAGE))
static uint32_t nr_first, nr_later;  // loads into untouched memory: in a shard's first stretch, and behind it
static uint32_t nr_wanted;           // how often cache_ahead was asked for

static void wanted(void *arg) { *(uint32_t *)arg += 1; }

static enum remixdb_status load_ahead(void *arg, uint32_t block, uint32_t nr_pages, uint8_t *buf, bool own) {
  unsigned char there;
  if (!own) {
    const uint32_t page = (uint32_t)((size_t)(buf - cache->pages) / PAGE);
    assert_int_equal(mincore(buf, PAGE, &there), 0);
    if (!(there & 1) && page % AHEAD_SHARD < AHEAD_STRETCH) nr_first++;
    else if (!(there & 1)) nr_later++;
  }
  return load(arg, block, nr_pages, buf, own);
}

// Fills a cache of four shards. served: cache_ahead is called when it is asked for.
static void fill_ahead(bool served) {
  struct tab tab;
  struct cache_block b = {0};
  uint32_t nr_cleared = 0;
  nr_first = nr_later = nr_wanted = 0;
  make_cache((size_t)AHEAD_SHARD * 4);
  cache_on_ask(cache, wanted, &nr_wanted);
  tab_init(&tab, AHEAD_SHARD * 4, 1);
  assert_false(cache_ahead(cache));  // not before the cache is used
  epoch_enter(&ep, &me);
  for (uint32_t block = 0, seen = 0; block < AHEAD_SHARD * 3; block++) {
    OK(cache_get(&tab.t, block, 1, false, load_ahead, &tab, &b));
    assert_true(is_block(1, block, 1, b.data));
    if (!served || nr_wanted == seen) continue;
    seen = nr_wanted;
    while (cache_ahead(cache)) nr_cleared++;
  }
  epoch_exit(&me);
  // clearing keeps the bytes of readers
  for (uint32_t block = 0; block < AHEAD_SHARD * 3; block++)
    if (cached(&tab, block)) assert_true(touch(&tab, block, 1));
  if (served) assert_true(nr_cleared >= 4 * 2 && nr_cleared <= 4 * 4 && nr_wanted >= nr_cleared / 4);
  cache_block_fini(&tab.t, &b);
  cache_table_fini(&tab.t);
  cache_destroy(cache);
  cache = NULL;
}

// A reader touches no memory for the first time but in a shard's first stretch, if somebody serves the cache's wishes.
static void test_ahead(void **state) {
  (void)state;
  struct mem_map map;
  OK(mem_map(CACHE_AHEAD * 2, &map));
  const bool able = mem_populate(map.ptr, CACHE_AHEAD);
  mem_unmap(&map);
  if (!able) skip();
  fill_ahead(false);
  assert_true(nr_first >= 4 && nr_later >= 4 * 2);
  assert_true(nr_wanted >= 1 && nr_wanted <= 4 * 2);  // each shard asks once for a huge page, and once for a stretch
  fill_ahead(true);
  assert_true(nr_first >= 4);
  assert_int_equal(nr_later, 0);
}

// Some blocks in each shard of a large cache take little memory: huge pages come when a shard has used more.
static void test_few_blocks(void **state) {
  (void)state;
  static unsigned char there[AHEAD_SHARD * 4];
  struct tab tab;
  uint32_t nr = 0;
  make_cache((size_t)AHEAD_SHARD * 4);
  tab_init(&tab, AHEAD_SHARD * 4, 1);
  epoch_enter(&ep, &me);
  for (uint32_t block = 0; block < 64; block++) assert_false(touch(&tab, block, 1));
  epoch_exit(&me);
  assert_int_equal(mincore(cache->pages, sizeof(there) * PAGE, there), 0);
  for (uint32_t i = 0; i < sizeof(there); i++) nr += there[i] & 1;
  assert_true(nr >= 64 && nr < 256);
  cache_table_fini(&tab.t);
}

// A cache that is smaller than a stretch asks for nothing.
static void test_ahead_small(void **state) {
  (void)state;
  struct tab tab;
  nr_wanted = 0;
  make_cache(AHEAD_STRETCH / 2);
  cache_on_ask(cache, wanted, &nr_wanted);
  tab_init(&tab, AHEAD_STRETCH, 1);
  epoch_enter(&ep, &me);
  for (uint32_t block = 0; block < AHEAD_STRETCH / 4; block++) assert_false(touch(&tab, block, 1));
  epoch_exit(&me);
  assert_int_equal(nr_wanted, 0);
  assert_false(cache_ahead(cache));
  cache_table_fini(&tab.t);
}

// ---- memory

static _Atomic int deny_after;
static bool deny(size_t size) {
  (void)size;
  return atomic_fetch_sub(&deny_after, 1) > 0;
}

static void test_nomem(void **state) {
  (void)state;
  struct cache *c = NULL;
  enum remixdb_status s = REMIXDB_NOMEM;
  int n = 0;
  for (; s != REMIXDB_OK; n++) {
    atomic_store(&deny_after, n);
    atomic_store(&mem_fault, deny);
    s = cache_create(64 * PAGE, 0, &ep, &c);
    atomic_store(&mem_fault, NULL);
    assert_true(s == REMIXDB_OK || (s == REMIXDB_NOMEM && c == NULL));
  }
  assert_int_equal(n, 6);  // five things to allocate
  cache = c;
  struct tab tab;
  memset(&tab, 0, sizeof(tab));
  atomic_store(&deny_after, 0);
  atomic_store(&mem_fault, deny);
  s = cache_table_init(&tab.t, cache, 100, 1);
  atomic_store(&mem_fault, NULL);
  FAILS(s, REMIXDB_NOMEM);
  cache_table_fini(&tab.t);
  tab_init(&tab, 2000, 1);
  // A reader's own buffer
  epoch_enter(&ep, &other);
  for (uint32_t i = 0; i < 200; i++) (void)touch(&tab, i, 1);
  struct cache_block b = {NULL, 0, false, NULL, 0, false};
  OK(cache_get(&tab.t, 300, 1, false, load, &tab, &b));
  assert_int_equal(b.frame, 0);
  atomic_store(&deny_after, 0);
  atomic_store(&mem_fault, deny);
  s = cache_get(&tab.t, 301, 2, false, load, &tab, &b);
  atomic_store(&mem_fault, NULL);
  FAILS(s, REMIXDB_NOMEM);
  assert_null(b.data);
  OK(cache_get(&tab.t, 301, 2, false, load, &tab, &b));
  epoch_exit(&other);
  cache_block_fini(&tab.t, &b);
  cache_table_fini(&tab.t);
}

// ---- C4: threads that miss the same block

#define THREADS 6

static struct tab same;
static _Atomic uint32_t wrong, failed;

// All THREADS wait here for each other. macOS has no pthread_barrier_t.
static struct {
  pthread_mutex_t lock;
  pthread_cond_t all_here;
  uint32_t here, rounds;
} meeting = {.lock = PTHREAD_MUTEX_INITIALIZER, .all_here = PTHREAD_COND_INITIALIZER};

static void meet(void) {
  (void)pthread_mutex_lock(&meeting.lock);
  const uint32_t round = meeting.rounds;
  if (++meeting.here == THREADS) {
    meeting.here = 0;
    meeting.rounds++;
    (void)pthread_cond_broadcast(&meeting.all_here);
  }
  while (meeting.rounds == round) (void)pthread_cond_wait(&meeting.all_here, &meeting.lock);
  (void)pthread_mutex_unlock(&meeting.lock);
}

static void *get_same(void *arg) {
  struct epoch_slot slot;
  struct cache_block b = {NULL, 0, false, NULL, 0, false};
  (void)arg;
  epoch_join(&ep, &slot);
  for (uint32_t block = 0; block < 20; block++) {
    meet();
    epoch_enter(&ep, &slot);
    const enum remixdb_status s = cache_get(&same.t, block * 3, 3, false, load, &same, &b);
    if (s == REMIXDB_CORRUPT) atomic_fetch_add(&failed, 1);
    if (s == REMIXDB_OK ? !is_block(8, block * 3, 3, b.data) : s != REMIXDB_CORRUPT || b.data)
      atomic_fetch_add(&wrong, 1);
    cache_block_drop(&same.t, &b);
    epoch_exit(&slot);
  }
  cache_block_fini(&same.t, &b);
  epoch_leave(&ep, &slot);
  return NULL;
}

static void run_same(int32_t failures) {
  pthread_t t[THREADS];
  tab_init(&same, 100, 8);
  same.sleep_ns = 1000000;
  atomic_store(&same.failures, failures);
  atomic_store(&wrong, 0);
  atomic_store(&failed, 0);
  for (int i = 0; i < THREADS; i++) OK(thread_start(&t[i], get_same, NULL, "same"));
  for (int i = 0; i < THREADS; i++) (void)pthread_join(t[i], NULL);
  assert_int_equal(atomic_load(&wrong), 0);
}

static void test_load_once(void **state) {
  (void)state;
  make_cache(256);
  run_same(0);
  assert_int_equal(atomic_load(&same.loads), 20);
  assert_int_equal(stats().misses, 20);
  cache_table_fini(&same.t);
  // All reads fail: each thread tries by itself, and gets the error of its own read.
  run_same(INT32_MAX);
  assert_int_equal(atomic_load(&failed), 20 * THREADS);
  assert_int_equal(atomic_load(&same.loads), 20 * THREADS);
  cache_table_fini(&same.t);
  // Some fail
  run_same(15);
  assert_int_equal(atomic_load(&failed), 15);
  cache_table_fini(&same.t);
  assert_int_equal(stats().used, 0);
}

// ---- many blocks begun by one thread

static void *get_begun(void *arg) {
  struct epoch_slot slot;
  struct cache_block b = {NULL, 0, false, NULL, 0, false};
  struct tab *const tab = arg;
  epoch_join(&ep, &slot);
  epoch_enter(&ep, &slot);
  if (cache_get(&tab->t, 10, 3, false, load, tab, &b) != REMIXDB_OK || !is_block(tab->t.id, 10, 3, b.data))
    atomic_fetch_add(&wrong, 1);
  cache_block_drop(&tab->t, &b);
  epoch_exit(&slot);
  cache_block_fini(&tab->t, &b);
  epoch_leave(&ep, &slot);
  return NULL;
}

static void test_fills(void **state) {
  (void)state;
  make_cache(256);
  struct tab tab;
  tab_init(&tab, 100, 7);
  struct cache_block b[4] = {{NULL, 0, false, NULL, 0, false}};
  struct cache_fill f[4];
  atomic_store(&wrong, 0);
  for (int failing = 0; failing < 2; failing++) {
    pthread_t t;
    epoch_enter(&ep, &me);
    assert_int_equal(cache_fill_begin(&tab.t, 10, 3, &b[0], &f[0]), CACHE_FILL_READ);
    assert_int_equal(cache_fill_begin(&tab.t, 20, 1, &b[1], &f[1]), CACHE_FILL_READ);
    assert_int_equal((uintptr_t)f[0].buf % PAGE, 0);
    assert_int_equal(stats().used, 4 * PAGE);
    // a block whose read has begun is not there yet, and no second read begins
    assert_false(cached(&tab, 10));
    assert_null(b[0].data);
    epoch_enter(&ep, &other);
    assert_int_equal(cache_fill_begin(&tab.t, 10, 3, &b[2], &f[2]), CACHE_FILL_LATER);
    epoch_exit(&other);
    // a thread that wants it waits for it; when it fails it reads by itself
    OK(thread_start(&t, get_begun, &tab, "begun"));
    time_sleep_ns(3000000);
    assert_int_equal(atomic_load(&tab.loads), 0);
    fill(7, 10, 3, f[0].buf);
    fill(7, 20, 1, f[1].buf);
    cache_fill_end(&tab.t, 20, 1, &b[1], &f[1], true);
    assert_true(is_block(7, 20, 1, b[1].data));
    assert_true(cached(&tab, 20));
    cache_fill_end(&tab.t, 10, 3, &b[0], &f[0], !failing);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(atomic_load(&tab.loads), failing);
    if (failing) assert_null(b[0].data);
    else assert_true(is_block(7, 10, 3, b[0].data));
    const uint64_t misses = stats().misses;
    assert_int_equal(cache_fill_begin(&tab.t, 20, 1, &b[3], &f[3]), CACHE_FILL_HIT);
    assert_ptr_equal(b[3].data, b[1].data);
    assert_int_equal(stats().misses, misses);
    epoch_exit(&me);
    for (int i = 0; i < 4; i++) cache_block_drop(&tab.t, &b[i]);
    cache_table_fini(&tab.t);
    assert_int_equal(stats().used, 0);
    tab_init(&tab, 100, 7);
  }
  for (int i = 0; i < 4; i++) cache_block_fini(&tab.t, &b[i]);
  cache_table_fini(&tab.t);
  assert_int_equal(atomic_load(&wrong), 0);
}

// More is begun than there are frames, or than there is memory: nobody waits for either.
static void test_fills_without(void **state) {
  (void)state;
  make_cache(8);
  for (int with = 0; with < 2; with++) {
    struct tab tab = {.sleep_ns = 0};
    OK(cache_table_init(&tab.t, with ? cache : NULL, 100, 7));
    struct cache_block b[20];
    struct cache_fill f[20];
    memset(b, 0, sizeof(b));
    epoch_enter(&ep, &me);
    uint32_t frames = 0;
    for (uint32_t i = 0; i < 20; i++) {
      assert_int_equal(cache_fill_begin(&tab.t, i * 4, 1, &b[i], &f[i]), CACHE_FILL_READ);
      frames += f[i].frame != 0;
      fill(7, i * 4, 1, f[i].buf);
    }
    assert_int_equal(frames, with ? 8 : 0);
    if (with) assert_int_equal(stats().bypasses + stats().declined, 12);
    for (uint32_t i = 20; i-- > 0;) cache_fill_end(&tab.t, i * 4, 1, &b[i], &f[i], i % 5 != 0);
    for (uint32_t i = 0; i < 20; i++) {
      if (i % 5 == 0) assert_null(b[i].data);
      else assert_true(is_block(7, i * 4, 1, b[i].data));
    }
    for (uint32_t i = 0; i < 20; i++) cache_block_fini(&tab.t, &b[i]);
    if (with) {  // the frames whose reads failed are free again
      for (uint32_t i = 0; i < 8; i++) (void)cache_fill_begin(&tab.t, i * 4 + 1, 1, &b[i], &f[i]);
      for (uint32_t i = 0; i < 8; i++) cache_fill_end(&tab.t, i * 4 + 1, 1, &b[i], &f[i], false);
    }
    atomic_store(&deny_after, 0);
    atomic_store(&mem_fault, deny);
    const enum cache_fill_begun begun = cache_fill_begin(&tab.t, 99, with ? BLOCK_PAGES_MAX : 1, &b[9], &f[9]);
    atomic_store(&mem_fault, NULL);
    assert_int_equal(begun, CACHE_FILL_LATER);
    epoch_exit(&me);
    for (uint32_t i = 0; i < 20; i++) cache_block_fini(&tab.t, &b[i]);
    cache_table_fini(&tab.t);
  }
  assert_int_equal(stats().used, 0);
}

// ---- threads against a small cache; a table that is replaced while it is read

#define TABS 3
#define TAB_PAGES 400
static struct tab shared[TABS];
static _Atomic(struct tab *) passing;
static _Atomic uint64_t passing_id;

// Blocks begin at multiples of 4 pages and are 1 to 4 pages long; every 16th is of 16 pages.
static uint32_t block_of(uint64_t *seed) {
  const uint32_t group = (uint32_t)(rng_next(seed) % (TAB_PAGES / 16));
  return group * 16 + (group % 4 ? (uint32_t)(rng_next(seed) % 4) * 4 : 0);
}
static uint32_t pages_of(uint32_t block) { return block % 64 == 0 ? BLOCK_PAGES_MAX : (block / 4) % 4 + 1; }

static void tab_free(struct epoch_item *item, void *arg) {
  (void)item;
  struct tab *const tab = arg;
  cache_table_fini(&tab->t);
  mem_free(tab);
}

static struct tab *tab_new(void) {
  struct tab *const tab = mem_calloc(1, sizeof(*tab));
  if (!tab) return NULL;
  if (cache_table_init(&tab->t, cache, TAB_PAGES, atomic_fetch_add(&passing_id, 1)) == REMIXDB_OK) return tab;
  mem_free(tab);
  return NULL;
}

// Some blocks together; blocks that others read are taken when those reads have ended.
static void hammer_fills(struct tab *tab, uint64_t *seed) {
  struct cache_block b[6];
  struct cache_fill f[6];
  uint32_t blocks[6], nr = 0;
  enum cache_fill_begun begun[6];
  memset(b, 0, sizeof(b));
  for (uint32_t i = 0; i < 6; i++) {
    const uint32_t block = block_of(seed);
    bool again = false;
    for (uint32_t k = 0; k < nr; k++) again = again || blocks[k] == block;
    if (!again) blocks[nr++] = block;
  }
  for (uint32_t i = 0; i < nr; i++) begun[i] = cache_fill_begin(&tab->t, blocks[i], pages_of(blocks[i]), &b[i], &f[i]);
  for (uint32_t i = 0; i < nr; i++) {
    if (begun[i] != CACHE_FILL_READ) continue;
    const uint32_t pages = pages_of(blocks[i]);
    const bool good = load(tab, blocks[i], pages, f[i].buf, f[i].frame == 0) == REMIXDB_OK;
    cache_fill_end(&tab->t, blocks[i], pages, &b[i], &f[i], good);
    if (good != (b[i].data != NULL)) atomic_fetch_add(&wrong, 1);
  }
  for (uint32_t i = 0; i < nr; i++) {
    const uint32_t pages = pages_of(blocks[i]);
    if (begun[i] == CACHE_FILL_LATER) {
      const enum remixdb_status s = cache_get(&tab->t, blocks[i], pages, false, load, tab, &b[i]);
      if (s != REMIXDB_OK && s != REMIXDB_CORRUPT) atomic_fetch_add(&wrong, 1);
    }
    if (b[i].data && !is_block(tab->t.id, blocks[i], pages, b[i].data)) atomic_fetch_add(&wrong, 1);
  }
  for (uint32_t i = 0; i < nr; i++) cache_block_fini(&tab->t, &b[i]);
}

#define HELD 4
static void *hammer(void *arg) {
  uint64_t seed = (uintptr_t)arg * 77;
  struct epoch_slot slot;
  struct cache_block b = {NULL, 0, false, NULL, 0, false}, held[HELD];
  uint32_t held_tab[HELD] = {0}, held_block[HELD] = {0};
  static __thread uint8_t buf[BLOCK_PAGES_MAX * PAGE];
  memset(held, 0, sizeof(held));
  epoch_join(&ep, &slot);
  for (uint32_t n = 0; n < 2500; n++) {
    const uint32_t what = (uint32_t)(rng_next(&seed) % 100), k = (uint32_t)(rng_next(&seed) % TABS);
    const uint32_t block = block_of(&seed), pages = pages_of(block);
    epoch_enter(&ep, &slot);
    if (what < 30) {
      struct tab *const tab = atomic_load_explicit(&passing, memory_order_acquire);
      if (cache_get(&tab->t, block, pages, false, load, tab, &b) != REMIXDB_OK ||
          !is_block(tab->t.id, block, pages, b.data))
        atomic_fetch_add(&wrong, 1);
      cache_block_drop(&tab->t, &b);
    } else if (what < 50) {
      const uint32_t h = (uint32_t)(rng_next(&seed) % HELD);
      if (held[h].data && !is_block(shared[held_tab[h]].t.id, held_block[h], pages_of(held_block[h]), held[h].data))
        atomic_fetch_add(&wrong, 1);
      const enum remixdb_status s = cache_get(&shared[k].t, block, pages, false, load, &shared[k], &held[h]);
      if (s != REMIXDB_OK && s != REMIXDB_CORRUPT) atomic_fetch_add(&wrong, 1);
      cache_block_pin(&shared[k].t, &held[h]);
      held_tab[h] = k;
      held_block[h] = block;
    } else if (what < 60) {
      fill(shared[k].t.id, block, pages, buf);
      cache_offer(&shared[k].t, block, pages, buf);
    } else if (what == 60) {
      atomic_fetch_add(&shared[k].failures, 1);
    } else if (what < 70) {
      hammer_fills(&shared[k], &seed);
    } else {
      const enum remixdb_status s = cache_get(&shared[k].t, block, pages, false, load, &shared[k], &b);
      if (what < 76) (void)sched_yield();
      if (s == REMIXDB_OK ? !is_block(shared[k].t.id, block, pages, b.data) : s != REMIXDB_CORRUPT)
        atomic_fetch_add(&wrong, 1);
    }
    epoch_exit(&slot);
    if (what == 99) {  // outside: the retired table's end takes the shard locks
      struct tab *const tab = tab_new();
      struct tab *const old = tab ? atomic_exchange_explicit(&passing, tab, memory_order_acq_rel) : NULL;
      if (old) epoch_retire(&ep, &old->item, tab_free, old);
      epoch_reclaim(&ep);
    }
  }
  cache_block_fini(&shared[0].t, &b);
  for (uint32_t h = 0; h < HELD; h++) cache_block_fini(&shared[held_tab[h]].t, &held[h]);
  epoch_leave(&ep, &slot);
  return NULL;
}

// resizes: the cache becomes larger and smaller meanwhile.
static void run_hammer(size_t pages, bool resizes) {
  pthread_t t[THREADS];
  make_cache_most(pages, resizes ? 2 * pages : pages);
  atomic_store(&wrong, 0);
  atomic_store(&passing_id, 1000);
  for (uint32_t k = 0; k < TABS; k++) tab_init(&shared[k], TAB_PAGES, k);
  atomic_store(&passing, tab_new());
  for (uint32_t i = 0; i < THREADS; i++) OK(thread_start(&t[i], hammer, (void *)(uintptr_t)(i + 1), "hammer"));
  uint64_t seed = 1;
  for (uint32_t i = 0; resizes && i < 100; i++) OK(cache_resize(cache, (pages / 2 + rng_next(&seed) % pages) * PAGE));
  if (resizes) OK(cache_resize(cache, pages * PAGE));
  for (uint32_t i = 0; i < THREADS; i++) (void)pthread_join(t[i], NULL);
  assert_int_equal(atomic_load(&wrong), 0);
  struct tab *const last = atomic_load(&passing);
  cache_table_fini(&last->t);
  mem_free(last);
  epoch_wait(&ep, epoch_stamp(&ep));
  epoch_reclaim(&ep);
  for (uint32_t k = 0; k < TABS; k++) {
    for (uint32_t block = 0; block < TAB_PAGES; block++) {
      const uint32_t f = cache_frame(&shared[k].t, block);
      if (f) assert_true(is_block(k, block, pages_of(block), cache_frame_data(cache, f)));
    }
    cache_table_fini(&shared[k].t);
  }
  // Misses look again at the frames that were pinned in limbo; then no page is missing.
  struct tab tab;
  tab_init(&tab, 20000, 5000);
  const uint32_t nr = (uint32_t)pages;
  for (uint32_t i = 0; i < 3 * nr; i++) (void)bring(&tab, i % 20000, 1);
  cache_table_fini(&tab.t);
  assert_int_equal(stats().used, 0);
  cache_destroy(cache);
  cache = NULL;
}

static void test_threads(void **state) {
  (void)state;
  run_hammer(40, false);
  run_hammer(200, false);
  run_hammer(700, false);
  run_hammer(4096 + 5, false);  // two shards
}

static void test_resize_threads(void **state) {
  (void)state;
  run_hammer(200, true);
  run_hammer(4096 + 5, true);
}

// Keeps records alone, and finds some of them again.
static void *keep_alone(void *arg) {
  uint64_t seed = (uintptr_t)arg + 1;
  struct epoch_slot slot;
  epoch_join(&ep, &slot);
  for (uint32_t i = 0; i < 20000; i++) {
    uint8_t value[200], buf[256];
    const uint32_t pos = (uint32_t)(rng_next(&seed) % 20000);
    memset(value, (int)pos, sizeof(value));
    epoch_enter(&ep, &slot);
    const uint8_t *const alone = records_find(cache->records, 7, pos);
    if (alone) {
      struct kv_rec r;
      block_record(alone, 0, &r);
      if (r.vlen != sizeof(value) || memcmp(r.val, value, sizeof(value)) != 0) atomic_fetch_add(&wrong, 1);
    } else {
      const uint32_t len = (uint32_t)(kv_rec_put(buf, KV_REC(kref("k", 1), value, sizeof(value), 0)) - buf);
      records_keep(cache->records, 7, pos, BLOCK_FORM_BARE, buf, len);
    }
    epoch_exit(&slot);
  }
  epoch_leave(&ep, &slot);
  return NULL;
}

// Records take chunks of a cache while its size changes.
static void test_resize_records(void **state) {
  (void)state;
  pthread_t t[THREADS];
  make_cache_most(4096, 8192);
  assert_non_null(cache->records);
  atomic_store(&wrong, 0);
  for (uint32_t i = 0; i < THREADS; i++) OK(thread_start(&t[i], keep_alone, (void *)(uintptr_t)i, "keep"));
  for (uint32_t i = 0; i < 100; i++) OK(cache_resize(cache, (i % 2 ? 8192 : 3072) * PAGE));
  for (uint32_t i = 0; i < THREADS; i++) (void)pthread_join(t[i], NULL);
  assert_int_equal(atomic_load(&wrong), 0);
}

// Memory of this process, in pages.
static long resident(void) {
  long all, pages = 0;
  FILE *const f = fopen("/proc/self/statm", "r");
  if (!f) return 0;
  if (fscanf(f, "%ld %ld", &all, &pages) != 2) pages = 0;
  (void)fclose(f);
  return pages;
}

// A smaller cache gives its memory back, and keeps what is pinned. A larger one keeps what it has.
static void test_resize(void **state) {
  (void)state;
  make_cache_most(64, 16384);
  assert_int_equal(cache_most(cache), 16384 * PAGE);
  struct tab tab;
  tab_init(&tab, 20000, 3);
  for (uint32_t i = 0; i < 40; i++) (void)touch(&tab, i, 1);
  OK(cache_resize(cache, 16384 * PAGE));
  for (uint32_t i = 0; i < 40; i++) assert_true(cached(&tab, i));
  for (uint32_t i = 0; i < 12000; i++) (void)touch(&tab, i, 1);
  for (uint32_t i = 0; i < 12000; i++) assert_true(cached(&tab, i));
  struct cache_block held = {NULL, 0, false, NULL, 0, false};
  epoch_enter(&ep, &me);
  OK(cache_get(&tab.t, 7777, 1, false, load, &tab, &held));
  cache_block_pin(&tab.t, &held);
  epoch_exit(&me);
  const long before = resident();
  OK(cache_resize(cache, 100 * PAGE));
  assert_true(stats().used <= 100 * PAGE && stats().touched <= 100 * PAGE);
  assert_true(cached(&tab, 7777) && is_block(3, 7777, 1, held.data));
#if defined(__linux__)
  assert_true(before - resident() > 8000 || before == 0);
#endif
  for (uint32_t i = 0; i < 3000; i++) {
    (void)bring(&tab, i, 1);
    assert_true(stats().touched <= 100 * PAGE);
  }
  OK(cache_resize(cache, 1000 * PAGE));
  for (uint32_t i = 0; i < 900; i++) (void)bring(&tab, i, 1);
  uint32_t there = 0;
  for (uint32_t i = 0; i < 900; i++) there += cached(&tab, i);
  assert_true(there > 850 && is_block(3, 7777, 1, held.data));
  FAILS(cache_resize(cache, 16385 * PAGE), REMIXDB_INVALID);
  FAILS(cache_resize(cache, 0), REMIXDB_INVALID);
  assert_int_equal(stats().size, 1000 * PAGE);
  cache_block_fini(&tab.t, &held);
  cache_table_fini(&tab.t);
  assert_int_equal(stats().used, 0);
}

// ---- common slots (C9)

// Tables have arrays until these have so many slots; the others share slots. The number of these follows from the
// cache.
static void test_own_or_common(void **state) {
  (void)state;
  static struct tab tabs[70];
  make_cache(64);
  for (uint32_t k = 0; k < 64; k++) tab_init(&tabs[k], CACHE_OWN_LEAST / 64, k);
  assert_int_equal(cache_common(cache), 0);
  for (uint32_t k = 64; k < 69; k++) tab_init(&tabs[k], k == 64 ? 1 : 1000000, k);
  for (uint32_t k = 0; k < 69; k++) assert_true((tabs[k].t.slots != NULL) == (k < 64));
  const size_t bytes = cache_common(cache);
  assert_true(bytes >= 64 * 3 * 16 && bytes <= 64 * 3 * 16 + 1024 + 64);
  cache_table_fini(&tabs[7].t);
  tab_init(&tabs[7], CACHE_OWN_LEAST / 64 + 1, 7);  // no room for one more
  assert_null(tabs[7].t.slots);
  cache_table_fini(&tabs[7].t);
  tab_init(&tabs[7], CACHE_OWN_LEAST / 64, 7);
  assert_non_null(tabs[7].t.slots);
  for (uint32_t k = 0; k < 69; k++) {  // both kinds in one cache
    (void)bring(&tabs[k], 0, 1);
    assert_true(touch(&tabs[k], 0, 1));
  }
  for (uint32_t k = 0; k < 69; k++) cache_table_fini(&tabs[k].t);
  assert_int_equal(stats().used, 0);
  assert_int_equal(cache_common(cache), bytes);

  cache_destroy(cache);
  make_cache(16384);
  for (uint32_t k = 0; k < 5; k++) tab_init(&tabs[k], 4 * 16384, k);
  for (uint32_t k = 0; k < 5; k++) assert_true((tabs[k].t.slots != NULL) == (k < CACHE_OWN / 4));
  for (uint32_t k = 0; k < 5; k++) cache_table_fini(&tabs[k].t);
}

// Two tables of one number, as two views of one file have them: each has its own frames, and an end of one leaves
// those of the other.
static void test_common_twins(void **state) {
  (void)state;
  struct tab a, b;
  make_cache(64);
  tab_init(&a, 1000, 5);
  tab_init(&b, 1000, 5);
  for (uint32_t i = 0; i < 10; i++) {
    assert_false(touch(&a, i, 1));
    assert_false(touch(&b, i, 1));
  }
  struct cache_block held = {NULL, 0, false, NULL, 0, false};
  epoch_enter(&ep, &me);
  OK(cache_get(&b.t, 3, 1, false, load, &b, &held));
  cache_block_pin(&b.t, &held);
  epoch_exit(&me);
  uint32_t there = 0;
  for (uint32_t i = 0; i < 10; i++) there += cached(&b, i);
  cache_table_fini(&a.t);
  for (uint32_t i = 0; i < 10; i++) there -= cached(&b, i);
  assert_int_equal(there, 0);
  assert_true(is_block(5, 3, 1, held.data));
  cache_block_fini(&b.t, &held);
  cache_table_fini(&b.t);
  assert_int_equal(stats().used, 0);
}

// Nearly all of a cache is of use, though buckets may be full: what was used lately is there again.
static void test_common_fill(void **state) {
  (void)state;
  struct tab tab;
  for (uint32_t pages = 64; pages <= 4096; pages *= 4) {
    make_cache(pages);
    tab_init(&tab, 1000000, pages);
    const uint32_t nr = pages / 4 * 3;
    for (uint32_t n = 0; n < 4; n++)
      for (uint32_t i = 0; i < nr; i++) (void)bring(&tab, i * 97, 1);
    uint32_t there = 0;
    for (uint32_t i = 0; i < nr; i++) there += cached(&tab, i * 97);
    assert_true(there >= nr - nr / 12 && there <= nr);
    for (uint32_t i = 0; i < nr; i++) (void)touch(&tab, i * 97, 1);  // compares what is there
    cache_table_fini(&tab.t);
    assert_int_equal(stats().used, 0);
    cache_destroy(cache);
    cache = NULL;
  }
}

// A full bucket gives up a block that was not used, rather than one that is used or pinned.
static void test_common_full(void **state) {
  (void)state;
  struct tab tab;
  make_cache(1024);
  tab_init(&tab, 1000000, 1);
  struct cache_block held = {NULL, 0, false, NULL, 0, false};
  epoch_enter(&ep, &me);
  OK(cache_get(&tab.t, 77, 1, false, load, &tab, &held));
  cache_block_pin(&tab.t, &held);
  epoch_exit(&me);
  const uint64_t evictions = stats().evictions;
  for (uint32_t i = 1000; i < 1400; i++) {  // many more than a bucket has, fewer than the cache
    (void)touch(&tab, i, 1);
    (void)touch(&tab, 78, 1);
  }
  assert_true(stats().evictions < evictions + 20);
  cache->disk_ns = 0;  // from the disk, a block gets a frame at its first miss (C7)
  atomic_store(&cache->disk, true);
  uint32_t lost = 0;
  for (uint32_t i = 2000; i < 200000 && cached(&tab, 77); i++) {
    (void)bring(&tab, i, 1);
    if (i % 8 == 0) lost += !touch(&tab, 78, 1);
  }
  assert_true(cached(&tab, 77) && lost == 0);
  assert_true(is_block(1, 77, 1, held.data));
  cache_block_fini(&tab.t, &held);
  cache_table_fini(&tab.t);
}

// The second miss of a block counts as in arrays, as long as its slot keeps the first one.
static void test_common_again(void **state) {
  (void)state;
  struct tab tab;
  make_cache(1024);
  tab_init(&tab, 1000000, 1);
  for (uint32_t i = 0; i < 2000; i++) (void)touch(&tab, i, 1);  // full
  uint64_t declined = stats().declined;
  for (uint32_t i = 10000; i < 10100; i++) (void)touch(&tab, i, 1);
  assert_true(stats().declined >= declined + 90);
  uint32_t there = 0;
  for (uint32_t i = 10000; i < 10100; i++) {
    (void)touch(&tab, i, 1);
    there += cached(&tab, i);
  }
  assert_true(there >= 85);
  declined = stats().declined;
  for (uint32_t i = 20000; i < 20400; i++) (void)touch(&tab, i, 1);
  (void)touch(&tab, 20000, 1);  // too long ago
  assert_false(cached(&tab, 20000));
  assert_true(stats().declined > declined);
  cache_table_fini(&tab.t);
}

// A larger cache gets more common slots, and keeps its blocks.
static void test_common_grows(void **state) {
  (void)state;
  struct tab tab;
  make_cache_most(64, 4096);
  tab_init(&tab, 1000000, 1);
  const size_t bytes = cache_common(cache);
  struct cache_block held = {NULL, 0, false, NULL, 0, false};
  for (uint32_t i = 0; i < 40; i++) (void)touch(&tab, i, 1);
  epoch_enter(&ep, &me);
  OK(cache_get(&tab.t, 7, 1, false, load, &tab, &held));
  cache_block_pin(&tab.t, &held);
  epoch_exit(&me);
  uint32_t there = 0;
  for (uint32_t i = 0; i < 40; i++) there += cached(&tab, i);
  OK(cache_resize(cache, 100 * PAGE));  // enough slots for these, too
  assert_int_equal(cache_common(cache), bytes);
  OK(cache_resize(cache, 4096 * PAGE));
  assert_true(cache_common(cache) > 10 * bytes && cache_common(cache) < (size_t)4096 * 80);
  for (uint32_t i = 0; i < 40; i++) there -= cached(&tab, i);
  assert_int_equal(there, 0);
  assert_true(cached(&tab, 7));
  for (uint32_t i = 0; i < 3000; i++) (void)bring(&tab, i, 1);
  for (uint32_t i = 0; i < 3000; i++) there += cached(&tab, i);
  assert_true(there > 2800);
  OK(cache_resize(cache, 64 * PAGE));
  assert_true(cached(&tab, 7) && is_block(1, 7, 1, held.data));
  cache_block_fini(&tab.t, &held);
  cache_table_fini(&tab.t);
  assert_int_equal(stats().used, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_no_cache, setup, teardown),
      cmocka_unit_test(test_own_places),
      cmocka_unit_test_setup_teardown(test_hit, setup, teardown),
      cmocka_unit_test_setup_teardown(test_hit, setup_common, teardown),
      cmocka_unit_test_setup_teardown(test_load_fails, setup, teardown),
      cmocka_unit_test_setup_teardown(test_load_fails, setup_common, teardown),
      cmocka_unit_test_setup_teardown(test_epoch_keeps, setup, teardown),
      cmocka_unit_test_setup_teardown(test_epoch_keeps, setup_common, teardown),
      cmocka_unit_test_setup_teardown(test_reserve_grows, setup, teardown),
      cmocka_unit_test_setup_teardown(test_small, setup, teardown),
      cmocka_unit_test_setup_teardown(test_clock, setup, teardown),
      cmocka_unit_test_setup_teardown(test_once, setup, teardown),
      cmocka_unit_test_setup_teardown(test_again, setup, teardown),
      cmocka_unit_test_setup_teardown(test_first_misses, setup, teardown),
      cmocka_unit_test_setup_teardown(test_disk, setup, teardown),
      cmocka_unit_test_setup_teardown(test_once_otherwise, setup, teardown),
      cmocka_unit_test_setup_teardown(test_pin, setup, teardown),
      cmocka_unit_test_setup_teardown(test_pin, setup_common, teardown),
      cmocka_unit_test_setup_teardown(test_pin_in_limbo, setup, teardown),
      cmocka_unit_test_setup_teardown(test_accounting, setup, teardown),
      cmocka_unit_test_setup_teardown(test_accounting, setup_common, teardown),
      cmocka_unit_test_setup_teardown(test_table_gone, setup, teardown),
      cmocka_unit_test_setup_teardown(test_offer, setup, teardown),
      cmocka_unit_test_setup_teardown(test_ahead, setup, teardown),
      cmocka_unit_test_setup_teardown(test_few_blocks, setup, teardown),
      cmocka_unit_test_setup_teardown(test_ahead_small, setup, teardown),
      cmocka_unit_test_setup_teardown(test_large_among_small, setup, teardown),
      cmocka_unit_test_setup_teardown(test_large_among_small, setup_common, teardown),
      cmocka_unit_test_setup_teardown(test_nomem, setup, teardown),
      cmocka_unit_test_setup_teardown(test_nomem, setup_common, teardown),
      cmocka_unit_test_setup_teardown(test_load_once, setup, teardown),
      cmocka_unit_test_setup_teardown(test_load_once, setup_common, teardown),
      cmocka_unit_test_setup_teardown(test_fills, setup, teardown),
      cmocka_unit_test_setup_teardown(test_fills, setup_common, teardown),
      cmocka_unit_test_setup_teardown(test_fills_without, setup, teardown),
      cmocka_unit_test_setup_teardown(test_threads, setup, teardown),
      cmocka_unit_test_setup_teardown(test_threads, setup_common, teardown),
      cmocka_unit_test_setup_teardown(test_resize, setup, teardown),
      cmocka_unit_test_setup_teardown(test_own_or_common, setup, teardown),
      cmocka_unit_test_setup_teardown(test_common_twins, setup_common, teardown),
      cmocka_unit_test_setup_teardown(test_common_fill, setup_common, teardown),
      cmocka_unit_test_setup_teardown(test_common_full, setup_common, teardown),
      cmocka_unit_test_setup_teardown(test_common_again, setup_common, teardown),
      cmocka_unit_test_setup_teardown(test_common_grows, setup_common, teardown),
      cmocka_unit_test_setup_teardown(test_resize_threads, setup, teardown),
      cmocka_unit_test_setup_teardown(test_resize_threads, setup_common, teardown),
      cmocka_unit_test_setup_teardown(test_resize_records, setup, teardown),
  };
  return cmocka_run_group_tests_name("cache", tests, NULL, NULL);
}
