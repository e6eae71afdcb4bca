// SPDX-License-Identifier: Apache-2.0
//
// Trips to the disk: how often a seek and a scan wait, and how many bytes they read for it. Counters prove it; the disk
// is the real file system with blkio told that all reads come from a disk.
#include "tests/lib/check.h"
#include "tests/lib/place.h"
#include "table/stored.h"
#include "view/merge.h"

#define KEYS 24000u
#define LENGTH 50u  // steps of a scan
#define PARTS 2u
#define YOUNG_ONE_IN 16u  // keys that a young view has, too

// Two partitions. Each key is in one run of its partition's older view; the choice is random.
struct world {
  struct place p;
  struct keyset k;
  struct version *version;
  struct merge m;
  uint32_t reach;
  uint32_t dead_from, dead_to;  // keys that are deleted
  bool young, apart;            // as in the shape
  uint32_t value;
  uint64_t needed;  // bytes of the file that hold the records of the last scan
};

struct shape {
  uint32_t runs, young;  // runs of each view; young 0: there is no young view
  uint32_t value;        // bytes, on average
  size_t cache;
  uint32_t dead;  // deleted keys in the middle of the first partition
  bool apart;     // keys of a young view are in no older one
};

static struct counts { uint64_t trips, reads, bytes; } counts_of(const struct world *w) {
  const struct blkio *const io = &w->p.io;
  return (struct counts){atomic_load(&io->nr_trips), atomic_load(&io->nr_reads), atomic_load(&io->read_bytes)};
}

static struct counts since(const struct world *w, struct counts before) {
  const struct counts now = counts_of(w);
  return (struct counts){now.trips - before.trips, now.reads - before.reads, now.bytes - before.bytes};
}

static uint32_t chosen(uint32_t key, uint64_t salt) { return (uint32_t)(hash64_seed(&key, sizeof(key), salt) >> 33); }

static bool is_young(uint32_t key) { return chosen(key, 77) % YOUNG_ONE_IN == 0; }
static bool is_dead(const struct world *w, uint32_t key) { return key >= w->dead_from && key < w->dead_to; }

static struct remix *view_make(struct world *w, const struct shape *sh, uint32_t from, uint32_t to, bool young) {
  const uint32_t runs = young ? sh->young : sh->runs;
  uint32_t *const what = calloc(KEYS, sizeof(*what));
  struct remix *x = NULL;
  for (uint32_t r = 0; r < runs; r++) {
    for (uint32_t i = from; i < to; i++) {
      const bool other = young ? !is_young(i) || is_dead(w, i) : w->apart && is_young(i);
      const bool here = chosen(i, young) % runs == r && !other;
      what[i] = here ? 100u + young : NONE;
      if (!young && r + 1 == runs && is_dead(w, i)) what[i] = TOMB;
    }
    x = remix_add(&w->p, x, table_make(&w->p, &w->k, what, from, to, sh->value, true), true);
  }
  free(what);
  if (young) remix_make_young(x);
  return x;
}

static void world_make_on(struct world *w, const struct shape *sh, bool native) {
  struct part *parts[PARTS];
  memset(w, 0, sizeof(*w));
  place_native = native;
  place_cold = true;
  place_init(&w->p, sh->cache);
  w->value = sh->value;
  w->young = sh->young;
  w->apart = sh->apart;
  w->dead_from = KEYS / 4;
  w->dead_to = KEYS / 4 + sh->dead;
  w->k.keys = calloc(KEYS, sizeof(*w->k.keys));
  for (; w->k.nr < KEYS; w->k.nr++) {
    char *const key = malloc(16);
    (void)snprintf(key, 16, "%010u", w->k.nr * 7919u);
    w->k.keys[w->k.nr] = kref((uint8_t *)key, 10);
  }
  for (uint32_t i = 0; i < PARTS; i++) {
    const uint32_t from = KEYS / PARTS * i, to = KEYS / PARTS * (i + 1);
    struct remix *const x = view_make(w, sh, from, to, false), *const young = sh->young
                                                                                  ? view_make(w, sh, from, to, true)
                                                                                  : NULL;
    OK(part_create(i ? w->k.keys[from] : kref("", 0), x, young, &parts[i]));
  }
  OK(version_create(parts, PARTS, &w->version));
  w->version->store_id = PLACE_STORE_ID;
  w->version->number = w->version->log_gen = 1;
  w->version->next_file = w->p.next;
  OK(version_save(&w->p.ctx, w->version));
  version_unref(w->version);
  OK(version_load(&w->p.ctx, NULL, NULL, &w->version));
}

static void world_make(struct world *w, const struct shape *sh) { world_make_on(w, sh, true); }

// Begins with an empty cache and a new iterator.
static void cold(struct world *w, uint32_t expect) {
  if (w->m.version) {
    enter(&w->p);
    merge_park(&w->m);
    leave(&w->p);
  }
  merge_fini(&w->m);
  version_unref(w->version);
  OK(version_load(&w->p.ctx, NULL, NULL, &w->version));
  merge_init(&w->m, blkio_shared(&w->p.io));
  merge_learn(&w->m, expect, &w->reach);
  enter(&w->p);
  merge_set(&w->m, NULL, NULL, w->version, UINT64_MAX);
  leave(&w->p);
}

static void world_free(struct world *w) {
  enter(&w->p);
  merge_park(&w->m);
  leave(&w->p);
  merge_fini(&w->m);
  version_unref(w->version);
  keyset_free(&w->k);
  place_fini(&w->p);
  place_native = place_cold = place_direct = false;
  place_compression = REMIXDB_COMPRESSION_NONE;
}

static void expect_key(struct world *w, uint32_t key) {
  struct kv_rec r;
  assert_true(merge_valid(&w->m));
  OK(merge_record(&w->m, &r));
  assert_true(kv_eq(kref(r.key, r.klen), w->k.keys[key]));
}

static void seek_key(struct world *w, uint32_t key, bool back) {
  OK(back ? merge_seek_for_prev(&w->m, w->k.keys[key]) : merge_seek(&w->m, w->k.keys[key]));
  expect_key(w, key);
}

// The pages of a set of blocks.
struct pages {
  struct {
    const struct sst *t;
    uint32_t block;
  } seen[4096];
  uint32_t nr, pages;
  uint64_t stored;  // bytes in the file
};

static void pages_add(struct pages *p, const struct remix_cursor *c) {
  const struct sst_hold *const h = &c->holds[remix_run(c)];
  for (uint32_t i = 0; i < p->nr; i++)
    if (p->seen[i].t == h->sst && p->seen[i].block == h->block) return;
  p->seen[p->nr].t = h->sst;
  p->seen[p->nr++].block = h->block;
  p->pages += sst_block_pages(h->sst, h->block);
  p->stored += sst_block_stored(h->sst, h->block, sst_block_pages(h->sst, h->block));
}

static void pages_note(struct pages *p, const struct world *w) {
  if (w->m.same & 1u << MERGE_YOUNG) pages_add(p, &w->m.young);
  if (w->m.same & 1u << MERGE_PARTS) pages_add(p, &w->m.remix);
}

// A scan of so many steps. Returns its cost, and in *pages_out the pages that hold its records.
static struct counts scan(struct world *w, uint32_t key, uint32_t steps, bool back, uint32_t *pages_out) {
  static struct pages pages;
  pages.nr = pages.pages = 0;
  pages.stored = 0;
  const struct counts before = counts_of(w);
  enter(&w->p);
  seek_key(w, key, back);
  pages_note(&pages, w);
  for (uint32_t i = 0; i < steps; i++) {
    OK(back ? merge_prev(&w->m) : merge_next(&w->m));
    do key += back ? UINT32_MAX : 1;
    while (is_dead(w, key));
    expect_key(w, key);
    pages_note(&pages, w);
  }
  leave(&w->p);
  *pages_out = pages.pages;
  w->needed = pages.stored;
  return since(w, before);
}

static const uint32_t all_runs[] = {1, 4, 10, 14};
#define SHAPES (sizeof(all_runs) / sizeof(all_runs[0]) * 2)
static struct shape shape(uint32_t i, uint32_t value, size_t cache) {
  return (struct shape){.runs = all_runs[i / 2], .young = i % 2 ? 2 : 0, .value = value, .cache = cache};
}

// A key that is there costs one read, whether the young view has it or not.
static void test_seek_present(void **state) {
  (void)state;
  for (uint32_t i = 0; i < SHAPES; i++) {
    struct world w;
    const struct shape sh = shape(i, 100, 8 << 20);
    world_make(&w, &sh);
    for (uint32_t back = 0; back < 2; back++) {
      uint32_t vain = 0, nr = 0;
      cold(&w, 0);
      for (uint32_t k = 100; k + 100 < KEYS; k += 499, nr++) {
        const struct counts before = counts_of(&w);
        enter(&w.p);
        seek_key(&w, k, back);
        leave(&w.p);
        const struct counts c = since(&w, before);
        vain += c.trips > 1 || c.reads > 1;
      }
      assert_true(vain <= nr / 20);  // tags are wrong once in 256 times
    }
    world_free(&w);
  }
}

// A key that is not there: right behind key k, or anywhere between k and k + 1.
static struct kref absent_key(const struct world *w, uint32_t k, bool right_behind, uint8_t buf[11]) {
  if (!right_behind) (void)snprintf((char *)buf, 11, "%010u", k * 7919u + 1 + chosen(k, 5) % 7918);
  else memcpy(buf, w->k.keys[k].ptr, 10);
  buf[10] = 'x';
  return kref(buf, right_behind ? 11 : 10);
}

static void seek_absent(struct world *w, uint32_t k, bool right_behind, bool back) {
  uint8_t buf[11];
  const struct kref key = absent_key(w, k, right_behind, buf);
  OK(back ? merge_seek_for_prev(&w->m, key) : merge_seek(&w->m, key));
  expect_key(w, back ? k : k + 1);
}

// The record's value is the young view's, if that has the key.
static void expect_newest(struct world *w, uint32_t key) {
  static uint8_t buf[VALUE_MAX];
  struct kv_rec r;
  OK(merge_record(&w->m, &r));
  const uint32_t len = value_make(w->k.keys[key], 100u + (w->young && is_young(key)), w->value, buf);
  assert_true(r.vlen == len && memcmp(r.val, buf, len) == 0);
}

// Where the key is absent, the entry after it is read in the same trip as the one that tells its place: with n runs
// 2 - 1/n reads. A young view costs one read more, the same trip's.
static void test_seek_absent(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 4 * SHAPES; i++) {
    struct world w;
    struct shape sh = shape(i % SHAPES, 100, 8 << 20);
    const bool behind = i / SHAPES % 2;
    sh.young *= 2;
    sh.apart = i / SHAPES / 2;
    if (sh.apart && !sh.young) continue;
    world_make(&w, &sh);
    for (uint32_t back = 0; back < 2; back++) {
      struct counts all = {0, 0, 0};
      uint32_t nr = 0;
      for (uint32_t k = 100; k + 100 < KEYS; k += 499, nr++) {
        cold(&w, 0);
        const struct counts before = counts_of(&w);
        enter(&w.p);
        seek_absent(&w, k, behind, back);
        expect_newest(&w, back ? k : k + 1);
        leave(&w.p);
        all.trips += since(&w, before).trips;
        all.reads += since(&w, before).reads;
      }
      if (getenv("VERBOSE"))
        print_message("runs %u young %u apart %d back %u behind %d: %.3f trips, %.3f reads\n", sh.runs, sh.young,
                      sh.apart, back, behind, (double)all.trips / nr, (double)all.reads / nr);
      assert_true(all.trips * 100 <= nr * (sh.young ? 125 : 108));
      assert_true(all.reads * 100 <= nr * (200 - 100 / sh.runs + (sh.young ? 125 : 8)));
    }
    world_free(&w);
  }
}

// A scan that begins at an absent key: its steps find the keys of the young view that the seek has not looked at.
static void test_scan_absent(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 8; i++) {
    struct world w;
    const struct shape sh = {.runs = 10, .young = 2, .value = 100, .cache = i % 2 ? 0 : 8 << 20, .apart = i / 2 % 2};
    uint64_t trips = 0, nr = 0;
    const bool back = i / 4;
    world_make(&w, &sh);
    for (uint32_t k = 200; k + 200 < KEYS; k += 497, nr++) {
      uint32_t at = back ? k : k + 1;
      cold(&w, 0);
      const struct counts before = counts_of(&w);
      enter(&w.p);
      seek_absent(&w, k, k % 2, back);
      for (uint32_t n = 0; n < LENGTH; n++) {
        expect_newest(&w, at);
        OK(back ? merge_prev(&w.m) : merge_next(&w.m));
        at += back ? UINT32_MAX : 1;
        expect_key(&w, at);
      }
      trips += since(&w, before).trips;
      for (uint32_t n = 0; n <= LENGTH; n++) {  // and the other way, over the place of the seek
        OK(back ? merge_next(&w.m) : merge_prev(&w.m));
        at += back ? 1 : UINT32_MAX;
        expect_key(&w, at);
        expect_newest(&w, at);
      }
      leave(&w.p);
    }
    if (getenv("VERBOSE"))
      print_message("scans from absent keys, apart %d back %d cache %zu: %.2f trips\n", sh.apart, back, sh.cache,
                    (double)trips / (double)nr);
    assert_true(trips * 10 <= nr * 23);
    world_free(&w);
  }
}

// Turns at once after a seek to an absent key.
static void test_turn_absent(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 4; i++) {
    struct world w;
    const struct shape sh = {.runs = 4, .young = 1 + i % 2, .value = 100, .cache = 1 << 20, .apart = true};
    const bool back = i / 2;
    world_make(&w, &sh);
    cold(&w, 0);
    for (uint32_t k = 200; k + 200 < KEYS; k += 7) {
      const uint32_t at = back ? k + 1 : k;
      enter(&w.p);
      seek_absent(&w, k, k % 2, back);
      OK(back ? merge_next(&w.m) : merge_prev(&w.m));
      expect_key(&w, at);
      expect_newest(&w, at);
      leave(&w.p);
    }
    world_free(&w);
  }
}

// A scan waits twice: for the block of its seek, and for all others; it reads no page that it does not need.
static void scans(const struct shape *sh, uint32_t expect, uint64_t trips_max) {
  struct world w;
  world_make(&w, sh);
  for (uint32_t back = 0; back < 2; back++) {
    uint64_t bytes = 0, needed = 0, trips = 0, nr = 0;
    uint32_t pages;
    cold(&w, expect);
    if (!expect) (void)scan(&w, KEYS / 2 + 300, LENGTH, back, &pages);  // the ref learns from it
    for (uint32_t k = 200; k + 200 < KEYS; k += 1777) {
      cold(&w, expect);
      const struct counts c = scan(&w, k, LENGTH, back, &pages);
      bytes += c.bytes;
      trips += c.trips;
      needed += w.needed;
      nr++;
    }
    if (getenv("VERBOSE"))
      print_message("runs %u young %u value %u cache %zu back %u expect %u: %.2f trips, bytes x %.2f\n", sh->runs,
                    sh->young, sh->value, sh->cache, back, expect, (double)trips / (double)nr,
                    (double)bytes / (double)needed);
    // The place of a key that a young view does not have is known only when its candidate was read. If blocks have one
    // record or two, the place is often in another block than those that were gathered.
    const bool apart = sh->young && sh->value >= BLOCK_PAGE / 2;
    assert_true(trips * 10 <= nr * (trips_max * 10 + (apart ? 5 : sh->young ? 3 : 1)));
    assert_true(bytes * 10 <= needed * (apart ? 14 : 13));
  }
  world_free(&w);
}

static void test_scans(void **state) {
  (void)state;
  static const uint32_t values[] = {100, 400, 1000};
  for (uint32_t i = 0; i < SHAPES; i++) {
    for (uint32_t v = 0; v < 3; v++) {
      const struct shape sh = shape(i, values[v], v % 2 ? 0 : 8 << 20);
      scans(&sh, 0, 2);
    }
  }
}

// The caller has said how far it goes.
static void test_scans_expected(void **state) {
  (void)state;
  for (uint32_t i = 0; i < SHAPES; i++) {
    const struct shape sh = shape(i, 400, 8 << 20);
    scans(&sh, LENGTH, 1);
  }
}

// The same for blocks of several pages, compressed ones, files that bypass the page cache, and a cache of a few pages.
static void test_scans_stored(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 11; i++) {
    static const uint32_t values[] = {4000, 400, 400};
    const struct shape sh = {.runs = 10,
                             .young = i % 2 ? 0 : 2,
                             .value = values[i / 2 % 3],
                             .cache = i < 6 ? 64 << 10 : 8 << 20};
    place_compression = i / 2 % 3 == 1 ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
    place_direct = i / 2 % 3 == 2;
    scans(&sh, i < 6 ? LENGTH : 0, i < 6 ? 1 : 2);
  }
}

// A number that is too large reads no more than a gather may, in one trip.
static void test_expected_too_many(void **state) {
  (void)state;
  static const uint32_t expects[] = {5000, UINT32_MAX};
  for (uint32_t i = 0; i < 4; i++) {
    struct world w;
    uint32_t pages, nr = 0;
    const struct shape sh = {.runs = 10, .young = i / 2 * 2, .value = 400, .cache = 8 << 20};
    uint64_t trips = 0;
    world_make(&w, &sh);
    for (uint32_t back = 0; back < 2; back++) {
      for (uint32_t k = 2000; k + 2000 < KEYS; k += 1777, nr++) {
        cold(&w, expects[i % 2]);
        const struct counts c = scan(&w, k, LENGTH, back, &pages);
        trips += c.trips;
        assert_true(c.bytes <= 2 * 256 * BLOCK_PAGE);
      }
    }
    if (getenv("VERBOSE"))
      print_message("young %u expect %u: %.2f trips\n", sh.young, expects[i % 2], (double)trips / nr);
    assert_true(trips * 10 <= nr * 13);
    world_free(&w);
  }
}

// However long the scans were, a seek without a step reads its own block only.
static void test_seek_after_scans(void **state) {
  (void)state;
  struct world w;
  uint32_t pages;
  const struct shape sh = {.runs = 10, .value = 400, .cache = 8 << 20};
  world_make(&w, &sh);
  cold(&w, 0);
  for (uint32_t i = 0; i < 10; i++) (void)scan(&w, 500 + 1000 * i, 200, false, &pages);
  assert_int_equal(w.reach, 200);
  for (uint32_t k = 777; k + 100 < KEYS; k += 1999) {
    cold(&w, 0);
    const struct counts before = counts_of(&w);
    enter(&w.p);
    seek_key(&w, k, false);
    leave(&w.p);
    const struct counts c = since(&w, before);
    assert_int_equal(c.reads, 1);
    assert_int_equal(c.bytes, BLOCK_PAGE * (c.bytes / BLOCK_PAGE));
    assert_true(c.bytes <= 3 * BLOCK_PAGE);  // one block
  }
  // and it is no scan: the others are still expected to be long
  assert_int_equal(w.reach, 200);
  world_free(&w);
}

// A scan of all that there is waits once for many records, both ways.
static void test_long(void **state) {
  (void)state;
  for (uint32_t young = 0; young < 3; young += 2) {
    struct world w;
    uint32_t pages;
    const struct shape sh = {.runs = 10, .young = young, .value = 100, .cache = 1 << 20};
    world_make(&w, &sh);
    for (uint32_t back = 0; back < 2; back++) {
      cold(&w, 0);
      const struct counts c = scan(&w, back ? KEYS - 1 : 0, KEYS - 1, back, &pages);
      if (getenv("VERBOSE"))
        print_message("all, young %u back %u: %u trips, %u reads, bytes x %.2f\n", young, back, (uint32_t)c.trips,
                      (uint32_t)c.reads, (double)c.bytes / ((double)pages * BLOCK_PAGE));
      assert_true(c.trips * 100 <= KEYS);
      assert_true(c.bytes * 100 <= (uint64_t)pages * BLOCK_PAGE * 110);
    }
    world_free(&w);
  }
}

// Across the end of a partition, and over a deleted stretch.
static void test_borders(void **state) {
  (void)state;
  for (uint32_t young = 0; young < 3; young += 2) {
    struct world w;
    uint32_t pages;
    const struct shape sh = {.runs = 10, .young = young, .value = 400, .cache = 8 << 20, .dead = 2000};
    world_make(&w, &sh);
    for (uint32_t back = 0; back < 2; back++) {
      const uint32_t border = back ? KEYS / 2 + 20 : KEYS / 2 - 20, stretch = back ? w.dead_to + 20 : w.dead_from - 20;
      cold(&w, 0);
      (void)scan(&w, 2000, LENGTH, back, &pages);
      cold(&w, 0);
      struct counts c = scan(&w, border, LENGTH, back, &pages);
      assert_true(c.trips <= (young ? 5 : 4));
      assert_true(c.bytes <= pages * BLOCK_PAGE * 2);
      cold(&w, 0);
      c = scan(&w, stretch, LENGTH, back, &pages);
      if (!young) {
        assert_true(c.trips <= 2);
        assert_true(c.bytes * 10 <= pages * BLOCK_PAGE * 13ull);
      }
    }
    world_free(&w);
  }
}

// Blocks in the cache are not read again.
static void test_partly_cached(void **state) {
  (void)state;
  struct world w;
  uint32_t pages;
  const struct shape sh = {.runs = 10, .value = 400, .cache = 32 << 20};
  world_make(&w, &sh);
  cold(&w, 0);
  (void)scan(&w, 9000, LENGTH, false, &pages);
  for (uint32_t k = 1000; k < 5000; k += 400) {
    (void)scan(&w, k, LENGTH / 2, false, &pages);
    const struct counts c = scan(&w, k, LENGTH, false, &pages), again = scan(&w, k, LENGTH, false, &pages);
    assert_true(c.trips <= 1 && c.bytes < pages * BLOCK_PAGE);
    assert_int_equal(again.reads, 0);
  }
  world_free(&w);
}

// A skip reads none of the blocks that it passes.
static void test_skip(void **state) {
  (void)state;
  struct world w;
  const struct shape sh = {.runs = 10, .value = 400, .cache = 8 << 20};
  world_make(&w, &sh);
  cold(&w, 0);
  for (uint32_t k = 100; k + 6000 < KEYS / 2; k += 1700) {
    enter(&w.p);
    seek_key(&w, k, false);
    const struct counts before = counts_of(&w);
    OK(merge_skip(&w.m, 3000));
    assert_int_equal(since(&w, before).reads, 0);
    expect_key(&w, k + 3000);
    assert_true(since(&w, before).reads <= 1);
    leave(&w.p);
  }
  world_free(&w);
}

static void steps(struct world *w, uint32_t *key, uint32_t nr, bool back) {
  for (; nr; nr--) {
    OK(back ? merge_prev(&w->m) : merge_next(&w->m));
    *key += back ? UINT32_MAX : 1;
    expect_key(w, *key);
  }
}

// A scan that turns round in the middle of the blocks that it has gathered, and turns again.
static void test_turns(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 8; i++) {
    struct world w;
    const struct shape sh = {.runs = 10, .young = i / 4 * 2, .value = 400, .cache = i % 2 ? 0 : 8 << 20};
    const bool back = i / 2 % 2;
    uint64_t turned = 0, trips = 0, nr = 0;
    world_make(&w, &sh);
    for (uint32_t k = 1000; k + 1000 < KEYS / 2; k += 777, nr++) {
      uint32_t key = k;
      cold(&w, LENGTH);
      enter(&w.p);
      seek_key(&w, key, back);
      steps(&w, &key, LENGTH / 2, back);
      struct counts before = counts_of(&w);
      steps(&w, &key, LENGTH / 3, !back);
      turned += since(&w, before).reads;
      before = counts_of(&w);
      steps(&w, &key, LENGTH, !back);  // beyond where it began
      steps(&w, &key, LENGTH, back);
      trips += since(&w, before).trips;
      leave(&w.p);
    }
    if (getenv("VERBOSE"))
      print_message("turns, young %u cache %zu back %u: %.2f reads, %.2f trips\n", sh.young, sh.cache, back,
                    (double)turned / (double)nr, (double)trips / (double)nr);
    assert_true(turned == 0 && trips <= nr * 3);
    world_free(&w);
  }
}

// A skip into blocks that were gathered reads nothing.
static void test_skip_gathered(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 4; i++) {
    struct world w;
    const struct shape sh = {.runs = 10, .young = i / 2 * 2, .value = 400, .cache = i % 2 ? 0 : 8 << 20};
    uint64_t reads = 0, nr = 0;
    world_make(&w, &sh);
    for (uint32_t k = 1000; k + 1000 < KEYS / 2; k += 777, nr++) {
      cold(&w, LENGTH);
      enter(&w.p);
      seek_key(&w, k, false);
      struct counts before = counts_of(&w);
      for (uint32_t n = 1; n <= 4; n++) {
        OK(merge_skip(&w.m, LENGTH / 5));
        expect_key(&w, k + n * (LENGTH / 5));
      }
      reads += since(&w, before).reads;
      leave(&w.p);
    }
    if (getenv("VERBOSE"))
      print_message("skips, young %u cache %zu: %.2f reads\n", sh.young, sh.cache, (double)reads / (double)nr);
    assert_true(reads * 10 <= (sh.young ? nr : 0));
    world_free(&w);
  }
}

// Steps on until the record of `key` cannot be had. Returns the key's number.
static uint32_t steps_until_bad(struct world *w, uint32_t key, enum remixdb_status expected) {
  for (; merge_valid(&w->m); key++) {
    struct kv_rec r;
    const enum remixdb_status s = merge_record(&w->m, &r);
    if (s != REMIXDB_OK) {
      assert_int_equal(s, expected);
      if (expected == REMIXDB_CORRUPT) assert_non_null(strstr(err_msg(), ".sst"));
      return key;
    }
    assert_true(kv_eq(kref(r.key, r.klen), w->k.keys[key]));
    OK(merge_next(&w->m));
  }
  return key;
}

// A block that was gathered is damaged: the scan hears of it where it comes there, and passes over it.
static void test_damaged(void **state) {
  (void)state;
  struct world w;
  uint32_t pages;
  const struct shape sh = {.runs = 10, .value = 400, .cache = 8 << 20};
  world_make(&w, &sh);
  cold(&w, 0);
  (void)scan(&w, 2000, LENGTH, false, &pages);
  const struct sst *t = w.version->parts[0]->remix->runs[3];
  const uint32_t block = t->nr_pages / 2;
  uint32_t at = block;
  while (t->nr_recs[at] == 0) at--;
  byte_flip(t->path, (long)at * BLOCK_PAGE + 100);
  cold(&w, 0);
  t = w.version->parts[0]->remix->runs[3];
  enter(&w.p);
  OK(merge_seek(&w.m, w.k.keys[10]));
  uint32_t key = steps_until_bad(&w, 10, REMIXDB_CORRUPT), bad = 0;
  for (; key < KEYS / 2; bad++) {  // each record of the block, and no other
    assert_true(chosen(key, 0) % sh.runs == 3);
    OK(merge_next(&w.m));
    key = steps_until_bad(&w, key + 1, REMIXDB_CORRUPT);
  }
  assert_int_equal(bad, t->nr_recs[at]);
  leave(&w.p);
  byte_flip(t->path, (long)at * BLOCK_PAGE + 100);
  world_free(&w);
}

// A read fails, whichever it is: the call that needs its block says so, and works when it is made again.
static void test_failing_reads(void **state) {
  (void)state;
  for (uint32_t young = 0; young < 3; young += 2) {
    struct world w;
    uint32_t pages, failed = 0;
    const struct shape sh = {.runs = 4, .young = young, .value = 400, .cache = young ? 8 << 20 : 0};
    world_make_on(&w, &sh, false);
    cold(&w, 0);
    (void)scan(&w, 2000, LENGTH, false, &pages);
    for (int64_t nth = 1;; nth++) {
      uint32_t key = 3000;
      bool hit = false;
      cold(&w, 0);
      enter(&w.p);
      fault_io_set(FAULT_READ, nth, false);
      enum remixdb_status s = merge_seek(&w.m, w.k.keys[key]);
      if (s != REMIXDB_OK) {
        assert_int_equal(s, REMIXDB_IO);
        hit = true;
        OK(merge_seek(&w.m, w.k.keys[key]));
      }
      while (key < 3000 + LENGTH) {
        struct kv_rec r;
        s = merge_record(&w.m, &r);
        if (s == REMIXDB_OK) assert_true(kv_eq(kref(r.key, r.klen), w.k.keys[key]));
        if (s == REMIXDB_OK) s = merge_next(&w.m);
        if (s == REMIXDB_OK) {
          key++;
          continue;
        }
        assert_int_equal(s, REMIXDB_IO);
        hit = true;
        if (!merge_valid(&w.m)) OK(merge_seek(&w.m, w.k.keys[key]));  // a step that fails ends the merge
      }
      leave(&w.p);
      if (!fault_io_end()) break;
      failed += hit;
    }
    // most failures of a gather are not even seen, because the block is read again alone
    if (getenv("VERBOSE")) print_message("young %u: %u calls failed\n", young, failed);
    assert_true(failed > 0);
    world_free(&w);
  }
}

// Jumps are counted as if each block had been read alone (remix/state.h): a gathered scan of an older view has one for
// each further run, a young view's first blocks count, too.
static void test_debt(void **state) {
  (void)state;
  for (uint32_t young = 0; young < 3; young += 2) {
    struct world w;
    uint32_t pages;
    const struct shape sh = {.runs = 10, .young = young, .value = 400, .cache = 8 << 20};
    world_make(&w, &sh);
    cold(&w, 0);
    (void)scan(&w, 9000, LENGTH, false, &pages);
    for (uint32_t expect = 0; expect <= LENGTH; expect += LENGTH) {
      cold(&w, expect);
      for (uint32_t k = 500; k < 5000; k += 1000) (void)scan(&w, k, LENGTH, false, &pages);
      enter(&w.p);
      merge_park(&w.m);
      leave(&w.p);
      const uint64_t old = atomic_load(&w.version->parts[0]->remix->scan_debt),
                     fresh = young ? atomic_load(&w.version->parts[0]->young->scan_debt) : 0;
      assert_true(old >= 5 * 7 && old <= 5 * 9);
      if (young) assert_true(fresh >= 5 && fresh <= 5 * 2);
    }
    world_free(&w);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_seek_present),
      cmocka_unit_test(test_seek_absent),
      cmocka_unit_test(test_scan_absent),
      cmocka_unit_test(test_turn_absent),
      cmocka_unit_test(test_scans),
      cmocka_unit_test(test_scans_expected),
      cmocka_unit_test(test_scans_stored),
      cmocka_unit_test(test_expected_too_many),
      cmocka_unit_test(test_seek_after_scans),
      cmocka_unit_test(test_borders),
      cmocka_unit_test(test_partly_cached),
      cmocka_unit_test(test_skip),
      cmocka_unit_test(test_turns),
      cmocka_unit_test(test_skip_gathered),
      cmocka_unit_test(test_damaged),
      cmocka_unit_test(test_failing_reads),
      cmocka_unit_test(test_debt),
      cmocka_unit_test(test_long),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
