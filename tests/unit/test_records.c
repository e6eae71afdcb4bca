// SPDX-License-Identifier: Apache-2.0
//
// Records that the cache keeps alone: what is found is right, a reader's record stays as it is, records that are found
// stay, memory goes back. Also through tables: gets that come from the disk.
//
// TEST_SEED in the environment repeats a run's random choices.
#include "tests/lib/check.h"
#include "tests/lib/tables.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "table/block.h"
#include "table/hold.h"
#include "table/records.h"

#define CHUNKS 256u
#define PAGES (CHUNKS * RECORDS_CHUNK_PAGES)
#define GIVEN_MAX (CHUNKS * RECORDS_PART_NUM / RECORDS_PART_DEN)
#define THREADS 4u

static struct epoch ep;
static struct epoch_slot me, other;
static uint8_t *pages;
static struct records *rec;

// Chunks that the cache can give: their frames.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t stock[CHUNKS], nr_stock;

static uint32_t give(void *arg) {
  (void)arg;
  (void)pthread_mutex_lock(&lock);
  const uint32_t frame = nr_stock ? stock[--nr_stock] : 0;
  (void)pthread_mutex_unlock(&lock);
  return frame;
}

// The records give a chunk up, if they can.
static bool yield(void) {
  const uint32_t frame = records_yield(rec);
  if (!frame) return false;
  memset(pages + (size_t)(frame - 1) * BLOCK_PAGE, 0xee, RECORDS_CHUNK_PAGES * BLOCK_PAGE);  // for blocks
  (void)pthread_mutex_lock(&lock);
  stock[nr_stock++] = frame;
  (void)pthread_mutex_unlock(&lock);
  return true;
}

static int setup(void **state) {
  (void)state;
  epoch_init(&ep);
  epoch_join(&ep, &me);
  epoch_join(&ep, &other);
  pages = mem_alloc_aligned(BLOCK_PAGE, (size_t)PAGES * BLOCK_PAGE);
  assert_non_null(pages);
  for (nr_stock = 0; nr_stock < CHUNKS; nr_stock++) stock[nr_stock] = 1 + nr_stock * RECORDS_CHUNK_PAGES;
  const struct records_room room = {pages, PAGES, &ep, give, NULL};
  OK(records_create(&room, &rec));
  assert_non_null(rec);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  records_destroy(rec);
  mem_free(pages);
  epoch_leave(&ep, &me);
  epoch_leave(&ep, &other);
  epoch_fini(&ep);
  return 0;
}

// The record at a position: its bytes and length follow from table and position.
static uint32_t make(uint64_t table, uint32_t pos, uint8_t *buf) {
  uint64_t rng = table << 32 | pos;
  const uint32_t klen = 4 + (uint32_t)(rng_next(&rng) % 20), vlen = (uint32_t)(rng_next(&rng) % 400);
  uint8_t key[24], val[400];
  for (uint32_t i = 0; i < klen; i++) key[i] = (uint8_t)rng_next(&rng);
  for (uint32_t i = 0; i < vlen; i++) val[i] = (uint8_t)rng_next(&rng);
  const struct kv_rec r = {.key = key, .val = val, .klen = klen, .vlen = vlen, .kind = 0};
  return (uint32_t)(kv_rec_put(buf, &r) - buf);
}

static void keep(uint64_t table, uint32_t pos) {
  uint8_t buf[512];
  const uint32_t len = make(table, pos, buf);
  records_keep(rec, table, pos, BLOCK_FORM_BARE, buf, len);
}

// Whether the record is there; then it is right.
static bool is_right(const uint8_t *alone, uint64_t table, uint32_t pos) {
  uint8_t buf[512];
  const uint32_t len = make(table, pos, buf);
  struct kv_rec r, want;
  CHECK(kv_rec_get(buf, buf + len, KV_BARE, &want) != NULL);
  block_record(alone, 0, &r);
  return r.klen == want.klen && r.vlen == want.vlen && r.kind == want.kind && memcmp(r.key, want.key, r.klen) == 0 &&
         memcmp(r.val, want.val, r.vlen) == 0;
}
static bool found(uint64_t table, uint32_t pos) {
  const uint8_t *const alone = records_find(rec, table, pos);
  if (alone) assert_true(is_right(alone, table, pos));
  return alone != NULL;
}

static struct records_stats stats(void) {
  struct records_stats st;
  records_stats(rec, &st);
  return st;
}

// Nothing is found but what was kept, with its table and at its position.
static void test_found(void **state) {
  (void)state;
  epoch_enter(&ep, &me);
  assert_false(found(1, 1));
  for (uint32_t pos = 0; pos < 1000; pos++) keep(1 + pos % 3, pos);
  for (uint32_t pos = 0; pos < 1000; pos++)
    for (uint64_t table = 1; table <= 3; table++) assert_int_equal(found(table, pos), table == 1 + pos % 3);
  const uint64_t kept = stats().kept;
  for (uint32_t pos = 0; pos < 1000; pos++) keep(1 + pos % 3, pos);  // they are there already
  assert_int_equal(stats().kept, kept);
  assert_int_equal(stats().hits, 1000);
  static uint8_t big[RECORDS_LEN_MAX + 1];
  records_keep(rec, 9, 1, BLOCK_FORM_BARE, big, RECORDS_LEN_MAX + 1);
  assert_null(records_find(rec, 9, 1));
  epoch_exit(&me);
}

// Many more records than there is room for. Those that are looked for again and again stay, the others go; no more
// memory is used than the cache may give.
static void test_turnover(void **state) {
  (void)state;
  const uint32_t hot = 2000;
  for (uint32_t pos = 0; pos < hot; pos++) {
    epoch_enter(&ep, &me);
    keep(7, pos);
    epoch_exit(&me);
  }
  uint64_t rng = check_seed;
  uint32_t lost = 0;
  for (uint32_t i = 0; i < 300000; i++) {
    epoch_enter(&ep, &me);
    keep(8, i);
    const uint32_t pos = (uint32_t)(rng_next(&rng) % hot);
    if (!found(7, pos)) {
      lost++;
      keep(7, pos);
    }
    epoch_exit(&me);
  }
  const uint64_t most = (uint64_t)GIVEN_MAX * RECORDS_CHUNK_PAGES * BLOCK_PAGE;
  print_message("%u of 300000 looks at %u hot records missed\n", lost, hot);
  assert_true(lost < 1400);
  assert_true(stats().bytes <= most && stats().bytes > most / 2);
  epoch_enter(&ep, &me);
  uint32_t old = 0;
  for (uint32_t i = 0; i < 1000; i++) old += found(8, i);
  assert_true(old < 10);
  epoch_exit(&me);
}

// A reader that stays in its epoch goes on seeing its record, while everything else turns over.
static void test_reader(void **state) {
  (void)state;
  epoch_enter(&ep, &me);
  keep(1, 5);
  epoch_exit(&me);
  epoch_enter(&ep, &other);
  const uint8_t *const mine = records_find(rec, 1, 5);
  assert_non_null(mine);
  for (uint32_t i = 0; i < 200000; i++) {
    epoch_enter(&ep, &me);
    keep(2, i);
    epoch_exit(&me);
    if (i % 1000 == 0) assert_true(is_right(mine, 1, 5));
  }
  assert_true(is_right(mine, 1, 5));
  epoch_exit(&other);
}

// All memory goes back to the cache.
static void test_yield(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 200000; i++) {
    epoch_enter(&ep, &me);
    keep(2, i);
    epoch_exit(&me);
  }
  const uint64_t had = stats().bytes, chunk = (uint64_t)RECORDS_CHUNK_PAGES * BLOCK_PAGE;
  uint32_t given = 0;
  for (uint32_t i = 0; i < 10000; i++) given += yield();
  assert_int_equal(stats().bytes, had - given * chunk);
  assert_true(stats().bytes <= 2 * chunk);
  assert_int_equal(nr_stock, CHUNKS - stats().bytes / chunk);
  for (uint32_t i = 0; i < 200000; i++) {  // and comes again
    epoch_enter(&ep, &me);
    keep(3, i);
    (void)found(3, i / 2);
    epoch_exit(&me);
  }
  assert_true(stats().bytes > had / 2);
}

static _Atomic uint32_t wrong;

static void *churn(void *arg) {
  uint64_t rng = check_seed + (uint64_t)(uintptr_t)arg;
  struct epoch_slot slot;
  epoch_join(&ep, &slot);
  for (uint32_t i = 0; i < 60000; i++) {
    const uint64_t table = 1 + rng_next(&rng) % 3;
    const uint32_t pos = (uint32_t)(rng_next(&rng) % (i % 3 ? 500 : 60000));
    epoch_enter(&ep, &slot);
    const uint8_t *const alone = records_find(rec, table, pos);
    if (!alone) keep(table, pos);
    else if (!is_right(alone, table, pos)) atomic_fetch_add(&wrong, 1);
    epoch_exit(&slot);
    if (i % 64 == 0) (void)yield();
  }
  epoch_leave(&ep, &slot);
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  pthread_t t[THREADS];
  for (uint32_t i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&t[i], NULL, churn, (void *)(uintptr_t)i), 0);
  for (uint32_t i = 0; i < THREADS; i++) assert_int_equal(pthread_join(t[i], NULL), 0);
  assert_int_equal(atomic_load(&wrong), 0);
}

// Gets of a table whose reads come from the disk: a record that was read is not read again, although its block is not
// in the cache. Where reads are fast nothing is kept.
static void test_table(void **state) {
  (void)state;
  struct model m = model_make(TEXT, 40000);
  for (uint32_t disk = 0; disk < 2; disk++) {
    struct world *const w = world_open(env_posix(), 1u << 20, false);
    w->cache->disk_ns = disk ? 0 : UINT32_MAX;
    sst_pos *pos;
    struct sst *const t = table_new(w, 1, &m, opts(false, false), &pos);
    assert_true((uint64_t)t->nr_pages * BLOCK_PAGE > 4u << 20);
    struct sst_hold h = {0};
    struct kv_rec r;
    for (uint32_t i = 0; i < m.nr; i++) {  // the cache is full, and has seen where reads come from
      epoch_enter(&w->epoch, &w->slot);
      OK(sst_read_lone(t, pos[i], &h, &r));
      assert_rec(&r, &m.r[i]);
      epoch_exit(&w->slot);
    }
    uint64_t reads = 0;
    for (uint32_t lap = 0; lap < 20; lap++) {
      struct cache_stats before, after;
      cache_stats(w->cache, &before);
      for (uint32_t i = 0; i < m.nr; i += 100) {
        epoch_enter(&w->epoch, &w->slot);
        OK(sst_read_lone(t, pos[i], &h, &r));
        assert_rec(&r, &m.r[i]);
        epoch_exit(&w->slot);
        sst_hold_drop(&h);
      }
      cache_stats(w->cache, &after);
      reads = after.misses - before.misses;
    }
    struct cache_stats st;
    cache_stats(w->cache, &st);
    if (disk) assert_true(reads < m.nr / 100 / 10 && st.record_hits > 0);
    else assert_int_equal(st.records_kept, 0);
    // Blocks are read, and records are found: the records keep their memory.
    const uint64_t had = st.record_bytes;
    for (uint32_t i = 0; i < 8 * m.nr; i += 10) {
      epoch_enter(&w->epoch, &w->slot);
      OK(sst_read(t, pos[i % m.nr], false, &h, &r));
      if (i % 50 == 0) OK(sst_read_lone(t, pos[i * 2 % m.nr / 100 * 100], &h, &r));
      epoch_exit(&w->slot);
      sst_hold_drop(&h);
    }
    cache_stats(w->cache, &st);
    assert_true(!disk || st.record_bytes >= had / 2);
    // Then only blocks are read: the memory of records goes back to them, after three turns of the cache at most.
    const uint64_t evicted = st.evictions;
    for (uint32_t i = 0; disk && st.evictions < evicted + 3u * ((1u << 20) / BLOCK_PAGE); i += 10) {
      epoch_enter(&w->epoch, &w->slot);
      OK(sst_read(t, pos[i % m.nr], false, &h, &r));
      epoch_exit(&w->slot);
      sst_hold_drop(&h);
      cache_stats(w->cache, &st);
    }
    assert_true(!disk || (had > 2u * RECORDS_CHUNK_PAGES * BLOCK_PAGE &&
                          st.record_bytes <= 2u * RECORDS_CHUNK_PAGES * BLOCK_PAGE));
    sst_hold_fini(&h);
    table_end(t, pos);
    world_close(w);
  }
  model_free(&m);
}

int main(void) {
  (void)check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_found, setup, teardown),
      cmocka_unit_test_setup_teardown(test_turnover, setup, teardown),
      cmocka_unit_test_setup_teardown(test_reader, setup, teardown),
      cmocka_unit_test_setup_teardown(test_yield, setup, teardown),
      cmocka_unit_test_setup_teardown(test_threads, setup, teardown),
      cmocka_unit_test(test_table),
  };
  return check_seed_end(cmocka_run_group_tests(tests, root_setup, root_teardown));
}
