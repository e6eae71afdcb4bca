// SPDX-License-Identifier: Apache-2.0
//
// Reads that cursors and gets of a REMIX make from disk, and when: jumps between runs, blocks gathered and read ahead,
// blocks held.
#include "tests/lib/check.h"
#include "tests/lib/place.h"
#include "table/pieces.h"

#define JUMP_KEYS 36000u
#define JUMP_RUNS 3u
#define COLD_VALUE 100u  // bytes of a value, on average

// A REMIX of which nothing is in the cache. Key i is in run i % runs.
struct cold {
  struct place *p;
  struct keyset k;
  uint32_t nr;
  struct sst *sst[REMIX_RUNS_MAX];
  struct remix *x;
};

static struct kref numbered(uint32_t i, uint8_t buf[9]) {
  (void)snprintf((char *)buf, 9, "%08u", i % 100000000);
  return kref(buf, 8);
}

static void cold_make(struct cold *w, struct place *p, uint32_t keys, uint32_t runs) {
  *w = (struct cold){.p = p, .nr = runs};
  w->k.keys = calloc(keys, sizeof(*w->k.keys));
  for (; w->k.nr < keys; w->k.nr++) {
    uint8_t *const key = malloc(9);
    w->k.keys[w->k.nr] = numbered(w->k.nr, key);
  }
  uint32_t *const what = malloc(keys * sizeof(*what));
  for (uint32_t r = 0; r < runs; r++) {
    for (uint32_t i = 0; i < keys; i++) what[i] = i % runs == r ? 2 : NONE;
    w->sst[r] = table_make(p, &w->k, what, 0, keys, COLD_VALUE, true);
    sst_ref(w->sst[r]);
    w->x = remix_add(p, w->x, w->sst[r], true);
  }
  free(what);
}

static void cold_again(struct cold *w) {
  const uint64_t number = w->x->number;
  remix_unref(w->x);
  for (uint32_t r = 0; r < w->nr; r++) {
    const uint64_t table = w->sst[r]->number;
    sst_unref(w->sst[r]);
    OK(sst_open(&w->p->ctx, table, &w->sst[r]));
  }
  OK(remix_open(&w->p->ctx, number, w->sst, w->nr, &w->x));
}

static void cold_free(struct cold *w) {
  remix_unref(w->x);
  for (uint32_t r = 0; r < w->nr; r++) sst_unref(w->sst[r]);
  keyset_free(&w->k);
}

static void read_here(struct remix_cursor *c, uint32_t key) {
  struct kv_rec r;
  uint8_t buf[9];
  assert_true(remix_valid(c));
  OK(remix_record(c, &r));
  assert_true(kv_eq(kref(r.key, r.klen), numbered(key, buf)));
}

static void seek_to(struct remix_cursor *c, uint32_t key) {
  uint8_t buf[9];
  OK(remix_seek(c, numbered(key, buf)));
}

static uint64_t scan_debt_of(const struct cold *w) { return atomic_load(&w->x->scan_debt); }
static uint64_t reads_of(const struct cold *w) { return atomic_load(&w->p->io.nr_reads); }

// All of it one way.
static void read_all(struct cold *w, bool backward, struct blkio_queue *queue) {
  struct remix_cursor c;
  const uint64_t before = scan_debt_of(w);
  remix_cursor_init(&c, queue);
  OK(remix_cursor_set(&c, w->x));
  enter(w->p);
  if (backward) {
    remix_seek_last(&c);
    for (uint32_t k = w->k.nr; k-- > 0; remix_prev(&c)) read_here(&c, k);
  } else {
    remix_seek_first(&c);
    for (uint32_t k = 0; k < w->k.nr; k++, remix_next(&c)) read_here(&c, k);
  }
  assert_false(remix_valid(&c));
  leave(w->p);
  assert_int_equal(scan_debt_of(w), before);  // it is the cursor's until it goes elsewhere
  remix_cursor_fini(&c);
}

static uint64_t scan_debt_all(struct cold *w, bool backward, struct blkio_queue *queue) {
  const uint64_t before = scan_debt_of(w);
  read_all(w, backward, queue);
  return scan_debt_of(w) - before;
}

// The first block of the scan and the following blocks of its run do not count; the other runs' first blocks do. A
// block that was read once does not count again.
static void jumps_of_scans(struct cold *w) {
  for (uint32_t way = 0; way < 3; way++) {
    cold_again(w);
    const uint64_t read = atomic_load(&w->p->io.read_bytes);
    assert_int_equal(scan_debt_all(w, way == 1, way == 2 ? w->p->queue : NULL), JUMP_RUNS - 1);
    assert_true(atomic_load(&w->p->io.read_bytes) - read > (uint64_t)JUMP_RUNS * 50 * BLOCK_PAGE);
    assert_int_equal(scan_debt_all(w, way == 1, NULL), 0);
  }
}

// Finding places, and stepping without reading records.
static void jumps_of_places(struct cold *w) {
  struct remix_cursor c;
  cold_again(w);
  remix_cursor_init(&c, NULL);
  OK(remix_cursor_set(&c, w->x));
  enter(w->p);
  for (uint32_t k = 0; k + 1000 < JUMP_KEYS; k += 1000) {
    const uint64_t reads = reads_of(w);
    seek_to(&c, k);
    assert_int_equal(reads_of(w), reads + 1);
    read_here(&c, k);
    for (uint32_t i = 0; i < 20; i++) remix_next(&c);
    assert_int_equal(reads_of(w), reads + 1);
    assert_int_equal(c.scan_debt, 0);
  }
  leave(w->p);
  remix_cursor_fini(&c);
  assert_int_equal(scan_debt_of(w), 0);
}

// Far on by skipping, the first block does not count; neither at the beginning or the end. Returns the debt.
static uint32_t jumps_of_skips(struct remix_cursor *c) {
  const uint32_t scan_debt = c->scan_debt;
  seek_to(c, 6000);
  read_here(c, 6000);
  assert_int_equal(remix_skip(c, 3000, UINT32_MAX), 3000);
  read_here(c, 9000);
  assert_int_equal(c->scan_debt, scan_debt);
  remix_next(c);
  read_here(c, 9001);
  assert_int_equal(c->scan_debt, scan_debt + 1);
  remix_seek_first(c);
  read_here(c, 0);
  assert_int_equal(c->scan_debt, scan_debt + 1);
  remix_prev(c);
  assert_false(remix_valid(c));
  remix_seek_last(c);
  read_here(c, JUMP_KEYS - 1);
  assert_int_equal(c->scan_debt, scan_debt + 1);
  remix_prev(c);
  read_here(c, JUMP_KEYS - 2);
  assert_int_equal(c->scan_debt, scan_debt + 2);
  return scan_debt + 2;
}

static void jumps_after_seeks(struct cold *w) {
  struct remix_cursor c;
  remix_cursor_init(&c, NULL);
  // after a seek each of the other runs is one
  cold_again(w);
  OK(remix_cursor_set(&c, w->x));
  enter(w->p);
  for (uint32_t k = 500, scan_debt = 0; k < 6000; k += 1000) {
    seek_to(&c, k);
    assert_int_equal(c.scan_debt, scan_debt);
    for (uint32_t i = 0; i < 2 * JUMP_RUNS; i++, remix_next(&c)) {
      read_here(&c, k + i);
      scan_debt += i > 0 && i < JUMP_RUNS;
      assert_int_equal(c.scan_debt, scan_debt);
    }
  }
  // the block that the seek looks at is the first, also when the key that was looked for is not there and the next one
  // is another run's
  uint32_t scan_debt = c.scan_debt;
  OK(remix_seek(&c, kref("00006000+", 9)));
  for (uint32_t k = 6001; k < 6001 + JUMP_RUNS; k++, remix_next(&c)) {
    read_here(&c, k);
    scan_debt += k < 6000 + JUMP_RUNS;
    assert_int_equal(c.scan_debt, scan_debt);
  }
  scan_debt = jumps_of_skips(&c);
  leave(w->p);
  remix_cursor_fini(&c);
  assert_int_equal(scan_debt_of(w), scan_debt);
}

// One run has nothing to jump to.
static void jumps_of_one_run(struct place *p) {
  struct cold w;
  struct remix_cursor c;
  cold_make(&w, p, 3000, 1);
  for (uint32_t i = 0; i < 2; i++) assert_int_equal(scan_debt_all(&w, i, NULL), 0);
  remix_cursor_init(&c, NULL);
  OK(remix_cursor_set(&c, w.x));
  enter(p);
  for (uint32_t k = 0; k < 2900; k += 100) {
    seek_to(&c, k);
    for (uint32_t i = 0; i < 50; i++, remix_next(&c)) read_here(&c, k + i);
  }
  leave(p);
  remix_cursor_fini(&c);
  assert_int_equal(scan_debt_of(&w), 0);
  cold_free(&w);
}

// Scan debt counts only the reads that a scan makes because there are several runs.
static void test_jumps(void **state) {
  (void)state;
  struct place p;
  struct cold w;
  place_init(&p, 8 << 20);
  cold_make(&w, &p, JUMP_KEYS, JUMP_RUNS);
  for (uint32_t r = 0; r < JUMP_RUNS; r++) assert_true(w.sst[r]->nr_pages > 50);
  jumps_of_scans(&w);
  jumps_of_places(&w);
  jumps_after_seeks(&w);
  cold_free(&w);
  // without a cache each read goes to the disk
  place_fini(&p);
  place_init(&p, 0);
  cold_make(&w, &p, 3000, JUMP_RUNS);
  for (uint32_t i = 0; i < 2; i++) assert_int_equal(scan_debt_all(&w, i, NULL), JUMP_RUNS - 1);
  cold_free(&w);
  jumps_of_one_run(&p);
  place_fini(&p);
}

static void cold_young(struct cold *w) {
  cold_again(w);
  remix_make_young(w->x);
}

// Seeks to places far apart in a young view of which nothing is cached, with some steps after each: of each run the
// first block counts.
static void young_places(struct cold *w, struct remix_cursor *c, bool backward) {
  enter(w->p);
  for (uint32_t k = 100; k + 1000 < w->k.nr; k += 1000) {
    uint8_t buf[9];
    const uint64_t reads = reads_of(w), before = scan_debt_of(w) + c->scan_debt;
    if (backward) OK(remix_seek_for_prev(c, numbered(k, buf)));
    else seek_to(c, k);
    assert_true(reads_of(w) > reads);
    assert_int_equal(scan_debt_of(w) + c->scan_debt - before, reads_of(w) - reads);
    read_here(c, k);
    for (uint32_t i = 1; i < 40; i++) {
      if (backward) remix_prev(c);
      else remix_next(c);
      read_here(c, backward ? k - i : k + i);
    }
    assert_int_equal(scan_debt_of(w) + c->scan_debt - before, w->nr);  // the first of each run
  }
  leave(w->p);
}

// The end of a skip counts. Gets are no scans and do not count.
static void young_skip(struct cold *w) {
  struct remix_cursor c;
  cold_young(w);
  remix_cursor_init(&c, NULL);
  OK(remix_cursor_set(&c, w->x));
  enter(w->p);
  seek_to(&c, 6000);
  read_here(&c, 6000);
  assert_int_equal(c.scan_debt, 1);
  assert_int_equal(remix_skip(&c, 9000, UINT32_MAX), 9000);
  assert_int_equal(c.scan_debt, 1);
  read_here(&c, 15000);
  assert_int_equal(c.scan_debt, 2);
  struct sst_hold hold = {0};
  struct kv_rec r;
  uint8_t buf[9];
  const struct kref key = numbered(30000, buf);
  OK(remix_get(w->x, key, hash64(key.ptr, key.len), &hold, &r));
  assert_int_equal(c.scan_debt, 2);
  leave(w->p);
  sst_hold_fini(&hold);
  remix_cursor_fini(&c);
  assert_int_equal(scan_debt_of(w), 2);
}

// Without a cache: the cursor's own blocks are not read again.
static void young_uncached(void) {
  struct place p;
  struct cold w;
  struct remix_cursor c;
  place_init(&p, 0);
  cold_make(&w, &p, 9000, JUMP_RUNS);
  cold_young(&w);
  remix_cursor_init(&c, NULL);
  OK(remix_cursor_set(&c, w.x));
  for (uint32_t backward = 0; backward < 2; backward++) young_places(&w, &c, backward);
  enter(&p);
  uint32_t scan_debt = c.scan_debt;
  for (uint32_t i = 0; i < 5; i++) {
    const uint64_t reads = reads_of(&w);
    seek_to(&c, 7 + JUMP_RUNS * (i % 2));
    if (i) assert_int_equal(reads_of(&w), reads);
    scan_debt += i == 0;
    assert_int_equal(c.scan_debt, scan_debt);
  }
  leave(&p);
  remix_cursor_fini(&c);
  cold_free(&w);
  place_fini(&p);
}

// In a young view the reads of a seek and of a scan's first block count, too; later blocks of the same run and
// readahead do not.
static void test_young_jumps(void **state) {
  (void)state;
  struct place p;
  struct cold w;
  struct remix_cursor c;
  place_init(&p, 8 << 20);
  for (uint32_t runs = 1; runs <= JUMP_RUNS; runs += JUMP_RUNS - 1) {
    cold_make(&w, &p, JUMP_KEYS, runs);
    for (uint32_t way = 0; way < 4; way++) {
      cold_young(&w);
      atomic_store(&p.io.cold, way == 3 ? 256 : 0);
      read_all(&w, way == 1, way >= 2 ? p.queue : NULL);
      atomic_store(&p.io.cold, 0);
      assert_int_equal(scan_debt_of(&w), runs);
      // cached blocks do not count
      assert_int_equal(scan_debt_all(&w, way == 1, NULL), 0);
    }
    for (uint32_t backward = 0; backward < 2; backward++) {
      cold_young(&w);
      remix_cursor_init(&c, NULL);
      OK(remix_cursor_set(&c, w.x));
      young_places(&w, &c, backward);
      remix_cursor_fini(&c);
    }
    young_skip(&w);
    cold_free(&w);
  }
  place_fini(&p);
  young_uncached();
}

struct scan_merges {
  uint32_t calls;
  const struct remix *x;
};

static void scan_debt_fn(void *arg, struct remix *x) {
  struct scan_merges *const seen = arg;
  seen->calls++;
  seen->x = x;
}

// A debt is added to the right REMIX at the right time, and the watch is told.
static void test_jumps_added(void **state) {
  (void)state;
  struct place p;
  struct cold w, other;
  struct remix_cursor c;
  struct scan_merges seen = {0};
  const struct remix_watch watch = {scan_debt_fn, &seen};
  place_init(&p, 8 << 20);
  cold_make(&w, &p, JUMP_KEYS, JUMP_RUNS);
  cold_make(&other, &p, 3000, JUMP_RUNS);
  cold_again(&w);
  cold_again(&other);
  remix_watch(w.x, &watch);
  remix_watch(other.x, &watch);
  remix_cursor_init(&c, NULL);
  OK(remix_cursor_set(&c, w.x));
  atomic_store(&w.x->scan_debt_due, 66);
  enter(&p);
  // two of them each time; they are handed over together when the cursor goes elsewhere
  const uint32_t apart = 900, nr = JUMP_KEYS / apart;
  assert_true(2 * nr > 70 && 2 * nr < 128);
  for (uint32_t i = 0; i < nr; i++) {
    assert_int_equal(c.scan_debt, i <= 32 ? 2 * i : 2 * (i - 33) + 2);
    assert_int_equal(scan_debt_of(&w), i <= 32 ? 0 : 64);
    seek_to(&c, i * apart + 10);
    for (uint32_t k = 0; k < JUMP_RUNS; k++, remix_next(&c)) read_here(&c, i * apart + 10 + k);
  }
  leave(&p);
  assert_int_equal(scan_debt_of(&w), 64);
  assert_int_equal(seen.calls, 0);
  // the rest when it goes to another REMIX, which has none of it
  OK(remix_cursor_set(&c, other.x));
  assert_int_equal(c.scan_debt, 0);
  assert_int_equal(scan_debt_of(&w), 2 * nr);
  assert_int_equal(scan_debt_of(&other), 0);
  assert_int_equal(seen.calls, 1);
  assert_ptr_equal(seen.x, w.x);
  enter(&p);
  seek_to(&c, 10);
  for (uint32_t k = 0; k < JUMP_RUNS; k++, remix_next(&c)) read_here(&c, 10 + k);
  leave(&p);
  // set anew, a cursor has no debt; without a due number, every addition is told
  OK(remix_cursor_set(&c, c.x));
  assert_int_equal(scan_debt_of(&other), 2);
  assert_int_equal(scan_debt_of(&w), 2 * nr);
  assert_int_equal(seen.calls, 2);
  assert_ptr_equal(seen.x, other.x);
  OK(remix_cursor_set(&c, w.x));
  remix_cursor_fini(&c);
  assert_int_equal(scan_debt_of(&other), 2);
  assert_int_equal(scan_debt_of(&w), 2 * nr);
  assert_int_equal(seen.calls, 2);
  // not before they are due, and each time after that
  atomic_store(&other.x->scan_debt_due, 102);
  remix_add_debt(other.x, 99);
  assert_int_equal(seen.calls, 2);
  remix_add_debt(other.x, 1);
  assert_int_equal(seen.calls, 3);
  remix_add_debt(other.x, 1);
  assert_int_equal(seen.calls, 4);
  assert_int_equal(scan_debt_of(&other), 103);
  remix_watch(other.x, NULL);
  remix_add_debt(other.x, 1000);
  assert_int_equal(seen.calls, 4);
  cold_free(&w);
  cold_free(&other);
  place_fini(&p);
}
#define GATHER_RUNS 8u

// All blocks of the runs are read ahead: of each run two by themselves, then 4, 8, 16 and so on; and where some are
// cached a read more.
static void scan_readahead(struct cold *w, bool backward) {
  struct cache_stats before = {0}, after = {0};
  if (w->p->cache) cache_stats(w->p->cache, &before);
  uint64_t reads = reads_of(w);
  read_all(w, backward, w->p->queue);
  reads = reads_of(w) - reads;
  assert_true(reads >= GATHER_RUNS * 4 && reads <= GATHER_RUNS * 14);
  if (!w->p->cache) return;
  cache_stats(w->p->cache, &after);
  assert_true(after.evictions - before.evictions <= 4 * GATHER_RUNS);
  assert_true(after.misses - before.misses < GATHER_RUNS * 4);
}

// A scan that turns reads its next blocks one by one again.
static void test_ahead_turns(void **state) {
  (void)state;
  struct place p;
  struct cold w;
  struct remix_cursor c;
  place_init(&p, 0);
  cold_make(&w, &p, JUMP_KEYS, GATHER_RUNS);
  cold_again(&w);
  remix_cursor_init(&c, p.queue);
  OK(remix_cursor_set(&c, w.x));
  enter(&p);
  seek_to(&c, 0);
  uint32_t k = 0;
  for (; k < 20000; k++, remix_next(&c)) read_here(&c, k);
  for (uint32_t turn = 0; turn < 4; turn++) {
    for (uint32_t r = 0; r < GATHER_RUNS; r++) assert_true(c.near[r].ahead >= 8);
    if (turn % 2) remix_next(&c);
    else remix_prev(&c);
    for (uint32_t r = 0; r < GATHER_RUNS; r++) assert_int_equal(c.near[r].ahead, 0);
    for (uint32_t i = 0; i < 8000; i++) {
      k = turn % 2 ? k + 1 : k - 1;
      read_here(&c, k);
      if (i < 7999 && turn % 2) remix_next(&c);
      else if (i < 7999) remix_prev(&c);
    }
  }
  leave(&p);
  remix_cursor_fini(&c);
  cold_free(&w);
  place_fini(&p);
}

// A long scan reads ahead although the cache has no room for its blocks, and leaves the cache as it is.
static void test_ahead_own(void **state) {
  (void)state;
  struct place p;
  struct cold w;
  for (uint32_t with = 0; with < 2; with++) {
    place_init(&p, with ? 64 * BLOCK_PAGE : 0);
    cold_make(&w, &p, JUMP_KEYS, GATHER_RUNS);
    cold_again(&w);
    if (with) read_all(&w, true, NULL);  // fills the cache
    assert_true(w.sst[0]->nr_pages > 120);
    scan_readahead(&w, false);
    scan_readahead(&w, true);
    uint64_t reads;
    // a short one does not
    struct remix_cursor c;
    remix_cursor_init(&c, p.queue);
    OK(remix_cursor_set(&c, w.x));
    enter(&p);
    seek_to(&c, 20000);
    reads = reads_of(&w);
    for (uint32_t k = 20000; k < 20000 + 40 * GATHER_RUNS; k++, remix_next(&c))
      read_here(&c, k);  // two or three blocks of each
    assert_true(reads_of(&w) - reads <= GATHER_RUNS * 3);
    for (uint32_t r = 0; r < GATHER_RUNS; r++) assert_null(c.holds[r].ahead[0].mem);
    // a long one does, until the cursor is sent nowhere, which gives all of it back
    for (uint32_t k = 20000 + 40 * GATHER_RUNS; k < 20000 + 1000 * GATHER_RUNS; k++, remix_next(&c)) read_here(&c, k);
    for (uint32_t r = 0; r < GATHER_RUNS; r++) assert_non_null(c.holds[r].ahead[0].mem);
    leave(&p);
    OK(remix_cursor_set(&c, NULL));
    for (uint32_t r = 0; r < GATHER_RUNS; r++) assert_true(!c.holds[r].ahead[0].mem && !c.holds[r].cb.own);
    remix_cursor_fini(&c);
    cold_free(&w);
    place_fini(&p);
  }
}

// However a new cursor was sent to where it stands, most of its steps on are near ones: it asks for memory in groups of
// entries.
static void test_steps_are_near(void **state) {
  (void)state;
  struct place p;
  struct cold w;
  place_init(&p, 64 << 20);
  cold_make(&w, &p, JUMP_KEYS, GATHER_RUNS);
  for (uint32_t way = 0; way < 3; way++) {
    struct remix_cursor c;
    uint8_t buf[9];
    remix_cursor_init(&c, p.queue);
    OK(remix_cursor_set(&c, w.x));
    enter(&p);
    if (way == 0) OK(remix_seek(&c, numbered(1000, buf)));
    else if (way == 1) OK(remix_seek_for_prev(&c, numbered(1000, buf)));
    else remix_seek_first(&c);
    uint32_t far = 0;
    for (uint32_t i = 0; i < 1000; i++) {
      struct kv_rec r;
      OK(remix_record(&c, &r));
      if (remix_next_fast(&c)) continue;
      far++;
      remix_next(&c);
    }
    assert_true(far < 1000 / 8);
    leave(&p);
    remix_cursor_fini(&c);
  }
  cold_free(&w);
  place_fini(&p);
}

// A get in the block that the one before had to read needs no other read, be it in another epoch; in a table at the
// same address it does.
static void test_get_again(void **state) {
  (void)state;
  struct place p;
  struct cold w;
  struct sst_hold h = {0};
  struct kv_rec rec;
  uint8_t buf[9];
  place_init(&p, 0);
  cold_make(&w, &p, 3000, 2);
  for (uint32_t k = 0; k < 2; k++) {
    for (uint32_t i = 0; i < 4; i++) {
      const uint64_t reads = reads_of(&w);
      const struct kref key = numbered(1000 + k + 2 * i, buf);
      enter(&p);
      OK(remix_get(w.x, key, hash64(key.ptr, key.len), &h, &rec));
      assert_true(kv_eq(kref(rec.key, rec.klen), key));
      leave(&p);
      assert_int_equal(reads_of(&w) - reads, i == 0);
    }
  }
  struct sst *const t = w.sst[1];
  assert_true(sst_holds(&h, t, h.block));
  assert_false(sst_holds(&h, t, h.block + 1));
  assert_false(sst_holds(&h, w.sst[0], h.block));
  h.number++;
  assert_false(sst_holds(&h, t, h.block));
  h.number--;
  sst_hold_drop(&h);
  assert_false(sst_holds(&h, t, h.block));
  sst_hold_fini(&h);
  cold_free(&w);
  place_fini(&p);
}

// The table's blocks are known, so that they are read in pieces.
static void pieces_learn(struct cold *w) {
  struct sst_hold h = {0};
  struct kv_rec rec;
  uint8_t buf[9];
  for (uint32_t i = 0; i < w->k.nr; i++) {
    const struct kref key = numbered(i, buf);
    enter(w->p);
    OK(remix_get(w->x, key, hash64(key.ptr, key.len), &h, &rec));
    leave(w->p);
  }
  sst_hold_fini(&h);
}

// A get and a seek read a piece of a block. A cursor that steps reads the pieces on its way, and a cursor that steps
// back also the pieces before them. Every record is right on all ways.
static void test_pieces(void **state) {
  (void)state;
  struct place p;
  struct cold w;
  struct remix_cursor c;
  struct sst_hold h = {0};
  struct kv_rec rec;
  uint8_t buf[9];
  uint64_t rng = 11;
  place_init(&p, 0);
  cold_make(&w, &p, 9000, 3);
  pieces_learn(&w);
  remix_cursor_init(&c, NULL);
  OK(remix_cursor_set(&c, w.x));
  const uint64_t begun = atomic_load(&p.io.read_bytes), reads = reads_of(&w);
  for (uint32_t i = 0; i < 1000; i++) {
    const struct kref key = numbered((uint32_t)(rng_next(&rng) % 9000), buf);
    enter(&p);
    OK(i % 2 ? remix_seek(&c, key) : remix_get(w.x, key, hash64(key.ptr, key.len), &h, &rec));
    leave(&p);
  }
  assert_true(atomic_load(&p.io.read_bytes) - begun < (reads_of(&w) - reads) * BLOCK_PAGE / 3);
  uint32_t at = 0;
  enter(&p);
  seek_to(&c, at);
  for (uint32_t i = 0; i < 20000; i++) {
    const uint64_t how = rng_next(&rng);
    const uint32_t to = (uint32_t)(how >> 32) % 9000;
    switch (how % 8) {
      case 0: seek_to(&c, at = to); break;
      case 1: OK(remix_seek_for_prev(&c, numbered(at = to, buf))); break;
      case 2:
        seek_to(&c, at);  // and its neighbours
        break;
      default:
        for (uint32_t n = (uint32_t)(how >> 8) % 12; n > 0 && remix_valid(&c); n--) {
          if (how >> 16 & 1) remix_next(&c);
          else remix_prev(&c);
          at += how >> 16 & 1 ? 1 : UINT32_MAX;
          if (at < 9000 && how >> 17 & 1) read_here(&c, at);
        }
        break;
    }
    if (at < 9000) read_here(&c, at);
    else seek_to(&c, at = to);
  }
  leave(&p);
  remix_cursor_fini(&c);
  sst_hold_fini(&h);
  cold_free(&w);
  place_fini(&p);
}

// Average cost of nr scans of `length` records each, with a skip in the middle when that is not 0; two views in turn.
struct scanned {
  uint32_t reads, bytes;  // reads in thousandths
};
static struct scanned scan_some(struct cold *w, struct remix_cursor *c, uint64_t *rng, uint32_t nr, uint32_t length,
                                uint32_t skip, bool in_turn) {
  struct blkio *const io = &w->p->io;
  const uint64_t reads = atomic_load(&io->nr_reads), bytes = atomic_load(&io->read_bytes);
  for (uint32_t i = 0; i < nr; i++) {
    uint32_t k = (uint32_t)(rng_next(rng) % (w->k.nr - length - skip - 1));
    if (in_turn) OK(remix_cursor_set(c, w[i % 2].x));
    enter(w->p);
    seek_to(c, k);
    for (uint32_t n = 0; n < length; n++, k++) {
      if (n) remix_next(c);
      if (n == length / 2 && skip) {
        assert_int_equal(remix_skip(c, skip, UINT32_MAX), skip);
        k += skip;
      }
      read_here(c, k);
    }
    leave(w->p);
  }
  return (struct scanned){(uint32_t)((atomic_load(&io->nr_reads) - reads) * 1000 / nr),
                          (uint32_t)((atomic_load(&io->read_bytes) - bytes) / nr)};
}

#define SCAN_RUNS 3u
#define SCAN_BLOCK 28u    // records in a block, at least
#define SCAN_RECORD 132u  // bytes, a little more than a record has
#define SCAN_PIECE 600u
#define SCAN_PIECES 3000u
#define SCANS_FORGET 20u  // after which the length of those before is forgotten

// Scans of one length after the other read each block that they come to once and of it little that they do not need;
// those of another length soon do, too, and those that go to another view each time. One that skips is two for the
// blocks, but is not thought to be long.
static void test_usual(void **state) {
  (void)state;
  static const uint32_t lengths[] = {1, 3, 10, 30, 100, 300, 10, 2, 50, 3000, 1, 20};
  struct place p;
  struct cold w[2];
  struct remix_cursor c;
  uint64_t rng = 5;
  place_init(&p, 0);
  for (uint32_t i = 0; i < 2; i++) {
    cold_make(&w[i], &p, 9000, SCAN_RUNS);
    pieces_learn(&w[i]);
  }
  remix_cursor_init(&c, NULL);
  OK(remix_cursor_set(&c, w[0].x));
  for (uint32_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
    const uint32_t n = lengths[i], nr = n < 1000 ? 400 : 40;
    // thousandths; of scans longer than the average counts to the blocks come one by one in the middle
    const uint32_t reads = (n < SCAN_RUNS ? n : SCAN_RUNS) * 1000 +
                           n * 1000 / (n < 1000 ? SCAN_BLOCK * (SST_PIECES_SPAN - 1) : SCAN_BLOCK) + 100;
    const uint32_t bytes = n == 1 ? SCAN_PIECE : n * SCAN_RECORD + n * SCAN_RECORD / 50 + SCAN_PIECES;
    (void)scan_some(w, &c, &rng, SCANS_FORGET, n, 0, false);
    for (uint32_t in_turn = 0; in_turn < 2; in_turn++) {
      OK(remix_cursor_set(&c, w[0].x));
      const struct scanned s = scan_some(w, &c, &rng, nr, n, 0, in_turn);
      assert_true(s.reads <= reads && s.bytes <= bytes);
      // one that is much longer
      assert_true(scan_some(w, &c, &rng, 1, 3000, 0, in_turn).reads <= (3000 / SCAN_BLOCK + 4 * SCAN_RUNS) * 1000);
      (void)scan_some(w, &c, &rng, SCANS_FORGET, n, 0, in_turn);
      // a reader that goes back is not expected to go on
      const uint64_t before = atomic_load(&p.io.read_bytes);
      uint8_t buf[9];
      enter(&p);
      for (uint32_t k = 0; k < 100; k++) OK(remix_seek_for_prev(&c, numbered((uint32_t)(rng_next(&rng) % 9000), buf)));
      leave(&p);
      assert_true(atomic_load(&p.io.read_bytes) - before <= 100 * 2 * SCAN_PIECE);
      (void)scan_some(w, &c, &rng, SCANS_FORGET, n, 0, in_turn);
      if (n < 2 * SCAN_RUNS) continue;
      const struct scanned skipping = scan_some(w, &c, &rng, nr, n, 2000, in_turn);
      assert_true(skipping.reads <= reads + SCAN_RUNS * 1000 &&
                  skipping.bytes <= 2 * bytes + SCAN_PIECES);  // the blocks after the last position are read in vain
    }
  }
  // short ones between long ones: the long are prepared for
  uint32_t sum = 0;
  for (uint32_t i = 0; i < 400; i++) sum += scan_some(w, &c, &rng, 1, i % 2 ? 100 : 10, 0, false).reads;
  assert_true(sum / 400 <= 5000);  // expecting the length of the last scan alone: 5672
  remix_cursor_fini(&c);
  // blocks that came with the read before are no reason to read ahead
  uint32_t bytes[2];
  for (uint32_t with = 0; with < 2; with++) {
    remix_cursor_init(&c, with ? p.queue : NULL);
    OK(remix_cursor_set(&c, w[0].x));
    (void)scan_some(w, &c, &rng, SCANS_FORGET, 500, 0, false);
    bytes[with] = scan_some(w, &c, &rng, 200, 500, 0, false).bytes;
    remix_cursor_fini(&c);
  }
  assert_true(bytes[1] < bytes[0] + bytes[0] / 5);  // where it is one: two thirds more
  for (uint32_t i = 0; i < 2; i++) cold_free(&w[i]);
  place_fini(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_jumps),     cmocka_unit_test(test_young_jumps), cmocka_unit_test(test_jumps_added),
      cmocka_unit_test(test_ahead_own), cmocka_unit_test(test_ahead_turns), cmocka_unit_test(test_steps_are_near),
      cmocka_unit_test(test_get_again), cmocka_unit_test(test_pieces),      cmocka_unit_test(test_usual),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
