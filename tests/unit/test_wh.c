// SPDX-License-Identifier: Apache-2.0
//
// The index in memory against its model: versions at every moment, cursors, many keys at once, the memory of dead
// leaves. test_wh_leaves.c looks at the leaves, test_wh_threads.c has several threads.
//
// TEST_SEED in the environment repeats a run's random choices.
#include "base/arena.h"
#include "tests/lib/slow.h"
#include "tests/lib/wh_model.h"

// Whether a get of the key looks into the index.
static bool looks(const struct wh_model *m, struct kref key) {
  const struct wh_begun w = wh_get_begin(m->wh, key, key_hash(key));
  return w.leaf || w.recent;
}

// A get does not search an index to which nothing was ever linked, and searches any other.
static void test_unused(void **state) {
  (void)state;
  struct wh_model m;
  const struct kref key = kref("a", 1);
  wh_model_init(&m);
  epoch_enter(&m.epoch, &m.slot);
  struct wh_slot s;
  wh_lock(m.wh, key, key_hash(key), &s);
  wh_unlock(&s);
  CHECK(!looks(&m, key));
  CHECK(wh_get(m.wh, key, key_hash(key), WH_PENDING - 1) == NULL);
  wh_lock(m.wh, key, key_hash(key), &s);
  OK(wh_link(&s, KV_REC(kref(NULL, 0), NULL, 0, true)));
  CHECK(looks(&m, key) && looks(&m, kref("b", 1)));
  wh_unlink(&s);
  wh_unlock(&s);
  CHECK(looks(&m, key));
  CHECK(wh_get(m.wh, key, key_hash(key), WH_PENDING - 1) == NULL);
  epoch_exit(&m.slot);
  wh_model_fini(&m);
}

static void test_empty(void **state) {
  (void)state;
  struct wh_model m;
  wh_model_init(&m);
  uint64_t rng = check_seed;
  CHECK_INDEX(m.wh);
  CHECK(wh_count(m.wh) == 0);
  CHECK(wh_memory(m.wh) > 0);
  wh_model_verify(&m, WH_PENDING - 1, &rng, 0);
  epoch_enter(&m.epoch, &m.slot);
  CHECK(wh_get(m.wh, kref(NULL, 0), hash64("", 0), 1) == NULL);
  CHECK(wh_get(m.wh, kref("a", 1), hash64("a", 1), 1) == NULL);
  struct wh_cursor c;
  wh_cursor_init(&c, m.wh, 1);
  wh_seek_for_prev(&c, kref("zz", 2));
  CHECK(!wh_valid(&c));
  // a locked slot without a change
  struct wh_slot s;
  wh_lock(m.wh, kref("a", 1), hash64("a", 1), &s);
  CHECK(s.entry == NULL && s.ver == NULL);
  CHECK(wh_slot_newest(&s) == NULL);
  wh_unlock(&s);
  epoch_exit(&m.slot);
  wh_model_have(&m, kref(NULL, 0), 0);
  wh_model_have(&m, kref("", 0), 3);
  OK(wh_model_put(&m, kref("a", 1), 0, true, false));
  CHECK(wh_count(m.wh) == 2);
  for (uint64_t moment = 0; moment <= 4; moment++) wh_model_verify(&m, moment, &rng, 20);
  CHECK_INDEX(m.wh);
  wh_model_fini(&m);
}

static void test_model(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  for (enum shape shape = 0; shape < SHAPES; shape++) {
    struct wh_model m;
    wh_model_init(&m);
    uint64_t moments[8];
    for (uint64_t n = 0; n < 2400; n++) {
      uint8_t buf[KEY_CAP];
      struct kref key = shape_key(shape, n, &rng, buf);
      if (m.nr && rng_next(&rng) % 4 == 0) key = wh_model_kref(&m.keys[rng_next(&rng) % m.nr]);
      const bool tomb = rng_next(&rng) % 8 == 0;
      CHECK(wh_model_put(&m, key, tomb ? 0 : (uint32_t)(rng_next(&rng) % 40), tomb, rng_next(&rng) % 8 == 0) ==
            REMIXDB_OK);
      if (n % 300 == 0) {
        moments[n / 300] = m.seq;
        CHECK_INDEX(m.wh);
        wh_model_verify(&m, m.seq, &rng, 20);
      }
    }
    CHECK(wh_count(m.wh) == m.nr);
    CHECK_INDEX(m.wh);
    for (uint32_t i = 0; i < 8; i++) wh_model_verify(&m, moments[i], &rng, 60);
    wh_model_verify(&m, WH_PENDING - 1, &rng, 200);
    wh_model_fini(&m);
  }
}

// A cursor keeps its moment when writes follow, and steps outside any epoch.
static void test_moment(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  struct wh_model m;
  wh_model_init(&m);
  uint8_t buf[KEY_CAP];
  for (uint64_t n = 0; n < 1000; n++) wh_model_have(&m, shape_key(BINARY, n, &rng, buf), 8);
  const uint64_t moment = m.seq;
  struct wh_cursor fore, back;
  wh_cursor_init(&fore, m.wh, moment);
  wh_cursor_init(&back, m.wh, moment);
  epoch_enter(&m.cursors, &m.stay);
  epoch_enter(&m.epoch, &m.slot);
  wh_seek(&fore, kref("", 0));
  wh_seek_last(&back);
  epoch_exit(&m.slot);
  const uint32_t nr = m.nr;
  struct kref *order = malloc(nr * sizeof(*order));
  for (uint32_t i = 0; i < nr; i++) order[i] = wh_model_kref(&m.keys[i]);
  for (uint32_t i = 0; i < nr; i++) {
    CHECK(wh_valid(&fore) && kv_eq(wh_key(&fore), order[i]));
    CHECK(wh_valid(&back) && kv_eq(wh_key(&back), order[nr - 1 - i]));
    CHECK(wh_ver_seq(fore.ver) <= moment && wh_ver_seq(back.ver) <= moment);
    for (uint32_t w = 0; w < 4; w++)
      OK(wh_model_put(&m, shape_key(BINARY, 0, &rng, buf), 8, false, rng_next(&rng) % 4 == 0));
    wh_next(&fore);
    wh_prev(&back);
  }
  CHECK(!wh_valid(&fore) && !wh_valid(&back));
  epoch_exit(&m.stay);
  free(order);
  CHECK_INDEX(m.wh);
  wh_model_fini(&m);
}

// Puts so many random keys, without the model.
static void put_random(struct wh_model *m, uint32_t nr, uint64_t *rng) {
  for (uint32_t n = 0; n < nr; n++) {
    struct wh_slot s;
    uint8_t buf[KEY_CAP];
    const struct kref key = shape_key(RANDOM16, n, rng, buf);
    epoch_enter(&m->epoch, &m->slot);
    wh_lock(m->wh, key, key_hash(key), &s);
    OK(wh_link(&s, KV_REC(kref(NULL, 0), NULL, 0, false)));
    wh_stamp(&s, ++m->seq);
    wh_unlock(&s);
    epoch_exit(&m->slot);
  }
}

// Dead leaves serve again, but not while a cursor stays or a thread is in an epoch. An index that recycles and one that
// does not get the same keys; the memory that they take shows the difference.
static void test_recycle(void **state) {
  (void)state;
  enum { NR = 24000, PHASES = 4 };
  struct wh_model m[2];
  size_t grown[2][PHASES];
  struct epoch_slot inside;
  for (uint32_t i = 0; i < 2; i++) {
    uint64_t rng = check_seed;
    wh_model_init(&m[i]);
    if (i == 0) wh_recycle(m[i].wh, NULL);
    epoch_join(&m[i].epoch, &inside);
    for (uint32_t phase = 0; phase < PHASES; phase++) {
      const size_t before = wh_memory(m[i].wh);
      if (phase == 1) epoch_enter(&m[i].cursors, &m[i].stay);
      if (phase == 2) epoch_enter(&m[i].epoch, &inside);
      put_random(&m[i], NR, &rng);
      epoch_exit(&m[i].stay);
      epoch_exit(&inside);
      grown[i][phase] = wh_memory(m[i].wh) - before;
    }
    CHECK_INDEX(m[i].wh);
    epoch_leave(&m[i].epoch, &inside);
    wh_model_fini(&m[i]);
  }
  // half of all leaves are dead: about 12 of some 70 bytes
  CHECK(grown[1][0] < grown[0][0] - grown[0][0] / 10);
  // only leaves that died before the cursor came serve again: two times 32. 80 leaves would be a sixteenth.
  CHECK(grown[1][1] > grown[0][1] - grown[0][1] / 16);
  CHECK(grown[1][2] > grown[1][0] + grown[1][0] / 25);
  CHECK(grown[1][3] < grown[1][2] && grown[1][3] < grown[1][1]);
}

// How often the index looks at the epochs, each time at all slots: after 32 dead leaves, if there are few slots. If
// there are many, it looks as seldom as the live leaves allow. Dead leaves that wait are bounded in both cases.
static uint64_t looks_at_slots(uint32_t nr, uint32_t keys, uint32_t *leaves_out) {
  uint64_t rng = check_seed;
  struct wh_model m;
  struct epoch_slot *const slots = aligned_alloc(CACHE_LINE, (nr + 1) * 2 * sizeof(*slots));
  wh_model_init(&m);
  CHECK(slots);
  for (uint32_t i = 0; i < 2 * nr; i++) epoch_join(i % 2 ? &m.cursors : &m.epoch, &slots[i]);
  CHECK(epoch_slots(&m.epoch) == nr + 1 && epoch_slots(&m.cursors) == nr + 1);
  const uint64_t before = atomic_load(&m.cursors.now);  // each look that finds the stamps passed takes a stamp
  put_random(&m, keys, &rng);
  const uint64_t looks = atomic_load(&m.cursors.now) - before;
  *leaves_out = m.wh->nr_leaves;
  CHECK(m.wh->dead.nr + m.wh->waiting.nr <= *leaves_out / 2 + 64);
  for (uint32_t i = 0; i < 2 * nr; i++) epoch_leave(i % 2 ? &m.cursors : &m.epoch, &slots[i]);
  CHECK(epoch_slots(&m.epoch) == 1);
  CHECK_INDEX(m.wh);
  wh_model_fini(&m);
  free(slots);
  return looks;
}

static void test_many_slots(void **state) {
  (void)state;
  const uint32_t keys = 240000 / SLOW;
  uint32_t leaves, most = 8;
  const uint64_t few = looks_at_slots(3, keys, &leaves), some = looks_at_slots(800, keys, &leaves),
                 many = looks_at_slots(20000, keys, &leaves);
  for (uint32_t n = leaves / 128; n; n /= 2) most += 4;
  CHECK_SAYS(few >= leaves / 32 - 1, "%u looks for %u leaves", (uint32_t)few, leaves);
  CHECK_SAYS(some <= leaves / 100 + most && many <= most, "%u and %u looks for %u leaves", (uint32_t)some,
             (uint32_t)many, leaves);
}

// Many at a time, beside single ones; taken back now and then, which leaves keys without versions in the leaves.
static void test_many(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  struct many *const b = calloc(1, sizeof(*b));
  for (enum shape shape = 0; shape < SHAPES; shape++) {
    struct wh_model m;
    wh_model_init(&m);
    uint64_t moments[8];
    for (uint32_t n = 0; n < 32; n++) {
      many_make(b, &m, shape, n % 4 ? (uint32_t)(rng_next(&rng) % 40) : MANY_MAX, &rng);
      OK(many_put(&m, b, rng_next(&rng) % 4 == 0));
      for (uint32_t i = 0; i < 10; i++) {
        uint8_t buf[KEY_CAP];
        const bool old = m.nr && rng_next(&rng) % 2;
        const struct kref key = old ? wh_model_kref(&m.keys[rng_next(&rng) % m.nr])
                                    : shape_key(shape, 10000 + n * 10 + i, &rng, buf);
        OK(wh_model_put(&m, key, 5, false, rng_next(&rng) % 3 == 0));
      }
      CHECK(wh_count(m.wh) == m.nr);
      CHECK_INDEX(m.wh);
      if (n % 4 == 0) moments[n / 4] = m.seq;
      if (n % 8 == 0) wh_model_verify(&m, m.seq, &rng, 20);
    }
    for (uint32_t i = 0; i < 8; i++) wh_model_verify(&m, moments[i], &rng, 30);
    wh_model_verify(&m, WH_PENDING - 1, &rng, 100);
    wh_model_fini(&m);
  }
  many_free(b);
}

// Growth replaces the table of prefixes. The old one stays until all threads that may read it have left.
static void test_growth(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  struct wh_model m;
  wh_model_init(&m);
  struct epoch_slot other;
  epoch_join(&m.epoch, &other);
  epoch_enter(&m.epoch, &other);
  for (uint64_t n = 0; n < 2000; n++) {
    uint8_t buf[KEY_CAP];
    wh_model_have(&m, shape_key(LONG_PREFIX, n, &rng, buf), 1);
  }
  CHECK(m.epoch.retired != NULL);
  epoch_reclaim(&m.epoch);
  CHECK(m.epoch.retired != NULL);
  epoch_exit(&other);
  epoch_reclaim(&m.epoch);
  CHECK(m.epoch.retired == NULL);
  epoch_leave(&m.epoch, &other);
  CHECK_INDEX(m.wh);
  wh_model_verify(&m, m.seq, &rng, 20);
  wh_model_fini(&m);
}

// A memtable's growth changes no mapping, though its tables and guides are large blocks: writers wait for it. Its
// chunks are ready, and two kept blocks are large enough for all of these together.
static void test_growth_unmapped(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  const size_t chunk = 256u << 10, keep = 64u << 20;
  const size_t large = atomic_exchange(&mem_large_from, (size_t)4096);  // with sanitizers, too
  struct epoch e;
  struct epoch_slot slot;
  struct arena_pool pool;
  struct wh *wh;
  epoch_init(&e);
  epoch_join(&e, &slot);
  arena_pool_init(&pool, chunk, 64 * chunk);
  while (arena_pool_fill(&pool, 64 * chunk)) {}
  OK(wh_create(&e, chunk, &pool, &wh));
  mem_keep(keep);
  void *const blocks[2] = {mem_alloc(keep / 8), mem_alloc(keep / 8)};
  mem_free(blocks[0]);
  mem_free(blocks[1]);
  struct mem_stats was, now;
  mem_stats(&was);
  CHECK(was.kept == keep / 4);
  const uint64_t before = mem_changes();
  uint64_t seq = 0;
  for (uint32_t n = 0; n < 60000; n++) {
    const uint64_t bytes[2] = {rng_next(&rng), n};
    const struct kref key = kref(bytes, sizeof(bytes));
    struct wh_slot at;
    epoch_enter(&e, &slot);
    wh_lock(wh, key, key_hash(key), &at);
    OK(wh_link(&at, KV_REC(key, "", 0, 0)));
    wh_stamp(&at, ++seq);
    wh_unlock(&at);
    epoch_exit(&slot);
  }
  mem_stats(&now);
  CHECK_SAYS(mem_changes() == before && now.nr_reused - was.nr_reused > 12, "%u changes, %u kept ones used",
             (uint32_t)(mem_changes() - before), (uint32_t)(now.nr_reused - was.nr_reused));
  epoch_leave(&e, &slot);
  epoch_reclaim(&e);
  wh_destroy(wh);
  arena_pool_fini(&pool);
  epoch_fini(&e);
  mem_keep_less(keep);
  atomic_store(&mem_large_from, large);
}

// ---- no memory

static uint64_t fault_rng;
static uint32_t fault_of;  // so many of 256 requests fail
static uint64_t faults;
static bool fault_fn(size_t size) {
  (void)size;
  const bool ok = rng_next(&fault_rng) % 256 >= fault_of;
  faults += !ok;
  return ok;
}

static void test_nomem_create(void **state) {
  (void)state;
  struct epoch e;
  epoch_init(&e);
  fault_rng = check_seed;
  fault_of = 32;
  faults = 0;
  atomic_store(&mem_fault, fault_fn);
  uint32_t ok = 0;
  for (uint32_t i = 0; i < 64; i++) {
    struct wh *wh = NULL;
    const enum remixdb_status s = wh_create(&e, CHUNK, NULL, &wh);
    CHECK(s == REMIXDB_OK || s == REMIXDB_NOMEM);
    if (s == REMIXDB_OK) {
      ok++;
      CHECK_INDEX(wh);
      wh_destroy(wh);
    }
  }
  atomic_store(&mem_fault, NULL);
  CHECK(ok && faults);
  epoch_fini(&e);
}

// Most requests fail. Sizes vary, so the arena's chunks end at every kind of allocation; growth of the table asks on
// its own.
static void test_nomem(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  faults = 0;
  fault_rng = check_seed + 1;
  fault_of = 200;
  for (enum shape shape = 0; shape < SHAPES; shape++) {
    struct wh_model m;
    wh_model_init(&m);
    uint64_t failed = 0;
    for (uint64_t n = 0; n < 2500; n++) {
      uint8_t buf[KEY_CAP];
      const struct kref key = shape_key(shape, n, &rng, buf);
      const uint64_t count = wh_count(m.wh);
      atomic_store(&mem_fault, fault_fn);
      const uint32_t vlen = rng_next(&rng) % 2 ? (uint32_t)(rng_next(&rng) % 2500) : (uint32_t)(rng_next(&rng) % 20);
      const enum remixdb_status s = wh_model_put(&m, key, vlen, false, rng_next(&rng) % 4 == 0);
      atomic_store(&mem_fault, NULL);
      if (s != REMIXDB_OK) {
        CHECK(s == REMIXDB_NOMEM);
        CHECK(wh_count(m.wh) == count);
        if (failed++ % 32 == 0) CHECK_INDEX(m.wh);
      }
      if (n % 400 == 0) {
        CHECK_INDEX(m.wh);
        atomic_store(&mem_fault, fault_fn);  // reads need no memory
        wh_model_verify(&m, m.seq, &rng, 10);
        atomic_store(&mem_fault, NULL);
      }
    }
    CHECK(failed > 0);
    CHECK(wh_count(m.wh) == m.nr);
    CHECK_INDEX(m.wh);
    wh_model_verify(&m, m.seq, &rng, 50);
    wh_model_fini(&m);
  }
  CHECK(faults > 0);
}

// The same for many at a time: all of them or none.
static void test_nomem_many(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  struct many *const b = calloc(1, sizeof(*b));
  fault_rng = check_seed + 2;
  for (enum shape shape = 0; shape < SHAPES; shape++) {
    struct wh_model m;
    wh_model_init(&m);
    uint32_t failed = 0, good = 0;
    for (uint32_t n = 0; n < 60 || (n < 6000 && (failed <= 2 || good <= 2)); n++) {
      many_make(b, &m, shape, 1 + (uint32_t)(rng_next(&rng) % (n % 3 ? 60 : MANY_MAX)), &rng);
      const uint64_t count = wh_count(m.wh);
      fault_of = n % 2 ? 250 : 100;
      atomic_store(&mem_fault, fault_fn);
      const enum remixdb_status s = many_put(&m, b, rng_next(&rng) % 8 == 0);
      atomic_store(&mem_fault, NULL);
      CHECK(s == REMIXDB_OK || s == REMIXDB_NOMEM);
      if (s == REMIXDB_OK) good++;
      else CHECK(wh_count(m.wh) == count);
      failed += s != REMIXDB_OK;
      CHECK_INDEX(m.wh);
      if (n % 15 == 0) wh_model_verify(&m, m.seq, &rng, 10);
    }
    CHECK(failed > 2 && good > 2);
    CHECK(wh_count(m.wh) == m.nr);
    wh_model_verify(&m, m.seq, &rng, 50);
    wh_model_fini(&m);
  }
  many_free(b);
}

// ---- seeks in two steps

// A seek that was begun finds its key at the cursor's moment, whatever comes into the leaf meanwhile or becomes of it.
// A seek to the end, or another begin, takes its place, in any order.
static void test_wanted(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  struct wh_model m;
  uint8_t buf[KEY_CAP + 1];
  wh_model_init(&m);
  epoch_enter(&m.cursors, &m.stay);
  for (uint32_t n = 0; n < 400; n++) wh_model_have(&m, tied_key(&rng, buf), 1);
  struct wh_cursor c;
  for (uint32_t n = 0; n < 6000; n++) {
    if (n % 7 == 0) wh_cursor_init(&c, m.wh, m.seq);
    uint8_t other[KEY_CAP + 1];
    const struct kref key = tied_key(&rng, other);
    const uint32_t begun = (uint32_t)(rng_next(&rng) % 3), how = (uint32_t)(rng_next(&rng) % 5);
    epoch_enter(&m.epoch, &m.slot);
    if (begun && rng_next(&rng) % 2) {  // begun and never ended
      const struct kref other_key = tied_key(&rng, buf);
      wh_seek_begin(&c, other_key, rng_next(&rng) % 2);
      wh_seek_begin_place(&c, other_key, rng_next(&rng) % 2);
    }
    if (begun) wh_seek_begin(&c, key, rng_next(&rng) % 2);
    if (begun > 1) wh_seek_begin_place(&c, key, how && how < 3);
    epoch_exit(&m.slot);
    for (uint32_t i = (uint32_t)(rng_next(&rng) % 4); i > 0; i--)
      CHECK(wh_model_put(&m, n % 2 ? tied_key(&rng, buf) : shape_key(RANDOM16, n, &rng, buf), 1, false,
                         rng_next(&rng) % 3 == 0) == REMIXDB_OK);
    int64_t at = wh_model_rank(&m, key);
    const bool there = at < m.nr && kv_eq(wh_model_kref(&m.keys[at]), key);
    int64_t dir = 1;
    epoch_enter(&m.epoch, &m.slot);
    if (how == 0) {
      wh_seek_last(&c);
      at = (int64_t)m.nr - 1;
      dir = -1;
    } else if (how < 3) {
      wh_seek_for_prev(&c, key);
      at -= !there;
      dir = -1;
    } else {
      wh_seek(&c, key);
    }
    epoch_exit(&m.slot);
    wh_model_walk(&m, &c, at, dir, 8, 3, &rng);
  }
  epoch_exit(&m.stay);
  CHECK_INDEX(m.wh);
  wh_model_verify(&m, m.seq, &rng, 500);
  wh_model_fini(&m);
}

int main(void) {
  (void)check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_unused),       cmocka_unit_test(test_empty),   cmocka_unit_test(test_model),
      cmocka_unit_test(test_moment),       cmocka_unit_test(test_recycle), cmocka_unit_test(test_many_slots),
      cmocka_unit_test(test_many),         cmocka_unit_test(test_growth),  cmocka_unit_test(test_growth_unmapped),
      cmocka_unit_test(test_nomem_create), cmocka_unit_test(test_nomem),   cmocka_unit_test(test_nomem_many),
      cmocka_unit_test(test_wanted),
  };
  return check_seed_end(cmocka_run_group_tests(tests, NULL, NULL));
}
