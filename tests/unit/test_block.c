// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#include "table/block.h"

#define TABLE 77u

static uint8_t pool[REMIXDB_KV_MAX];  // keys and values are parts of it

static uint32_t below(uint32_t n) { return (uint32_t)(rng_next(&check_seed) % n); }

static struct kv_rec make(uint32_t klen, uint32_t vlen, bool tomb) {
  const uint32_t at = below(REMIXDB_KV_MAX - klen - vlen + 1);
  return (
      struct kv_rec){.key = pool + at, .klen = klen, .val = pool + at + klen, .vlen = tomb ? 0 : vlen, .kind = tomb};
}

static void assert_same(const struct kv_rec *a, const struct kv_rec *b) {
  assert_int_equal(a->klen, b->klen);
  assert_int_equal(a->vlen, b->vlen);
  assert_int_equal(a->kind, b->kind);
  assert_true(kv_eq(kref(a->key, a->klen), kref(b->key, b->klen)));
  assert_true(kv_eq(kref(a->val, a->vlen), kref(b->val, b->vlen)));
}

// Adds records from recs while they fit, finishes, verifies and compares; returns how many went in.
static uint32_t round_trip(struct block_build *b, const struct kv_rec *recs, uint32_t nr, uint32_t block,
                           uint32_t *pages_out) {
  uint32_t n = 0;
  while (n < nr && block_build_fits(b, kv_rec_size(&recs[n]))) block_build_add(b, &recs[n++], 0);
  const uint32_t pages = block_build_finish(b, TABLE, block);
  assert_int_equal(b->count, 0);
  assert_in_range(pages, 1, BLOCK_PAGES_MAX);
  // a copy of its exact size: reading past the end does not go unseen
  uint8_t *const buf = malloc(pages * BLOCK_PAGE);
  memcpy(buf, b->buf, pages * BLOCK_PAGE);
  OK(block_verify(buf, pages, n, BLOCK_FORM_KINDS, TABLE, block, "t", 0));
  assert_int_equal(block_count(buf), n);
  for (uint32_t i = 0; i < n; i++) {
    struct kv_rec r;
    block_record(buf, i, &r);
    assert_same(&r, &recs[i]);
  }
  free(buf);
  *pages_out = pages;
  return n;
}

static void test_random(void **state) {
  (void)state;
  struct block_build b;
  OK(block_build_init(&b));
  enum { NR = 300 };
  static struct kv_rec recs[NR];
  for (uint32_t round = 0; round < 400; round++) {
    const uint32_t klen_max = 1 + below(round % 4 == 0 ? 40 : 600), vlen_max = 1 + below(round % 3 == 0 ? 3000 : 100);
    for (uint32_t i = 0; i < NR; i++) recs[i] = make(below(klen_max), below(vlen_max), below(4) == 0);
    if (round % 16 == 0) recs[0] = make(below(30000), below(30000), false);
    if (round % 4 == 1) recs[below(30)] = make(below(100), below(60000), false);
    uint32_t pages;
    const uint32_t n = round_trip(&b, recs, NR, round, &pages);
    assert_in_range(n, 1, BLOCK_RECORDS_MAX);
    assert_true(pages <= BLOCK_GROW_PAGES || n == 1);
    // the records that were left out had no room
    if (n < BLOCK_RECORDS_MAX && pages <= BLOCK_GROW_PAGES) {
      size_t size = BLOCK_HEAD;
      for (uint32_t i = 0; i <= n; i++) size += 2 + kv_rec_size(&recs[i]);
      if (kv_rec_size(&recs[n]) == 1) size++;  // two bytes are kept for it
      assert_true(size > pages * BLOCK_PAGE);
    }
  }
  block_build_fini(&b);
}

// Bytes that stay empty in so many pages of records of one size, at least one.
static uint32_t empty_in(uint32_t pages, uint32_t rec_size) {
  const uint32_t room = pages * BLOCK_PAGE - BLOCK_HEAD;
  return room % (2 + rec_size);
}

// Blocks of records of one size: of one page where these fill it well, else of as many as fill well, or as well as any
// number does.
static void test_growth(void **state) {
  (void)state;
  struct block_build b;
  OK(block_build_init(&b));
  static struct kv_rec recs[BLOCK_RECORDS_MAX + 1];
  for (uint32_t round = 0; round < 3000; round++) {
    const uint32_t vlen = round < 2000 ? 8 * round + below(8) : below(6000);
    for (uint32_t i = 0; i < BLOCK_RECORDS_MAX + 1; i++) recs[i] = make(16, vlen, false);
    const uint32_t size = (uint32_t)kv_rec_size(KV_REC(kref(NULL, 16), NULL, vlen, false));
    uint32_t pages;
    const uint32_t n = round_trip(&b, recs, BLOCK_RECORDS_MAX + 1, round, &pages),
                   empty = pages * BLOCK_PAGE - BLOCK_HEAD - n * (2 + size);
    if (n == BLOCK_RECORDS_MAX) continue;
    if (pages > BLOCK_GROW_PAGES) {
      assert_int_equal(n, 1);
      continue;
    }
    assert_int_equal(empty, empty_in(pages, size));
    if (size <= BLOCK_PAGE / 3) assert_int_equal(pages, 1);
    if (3 * empty <= pages * BLOCK_PAGE) continue;
    for (uint32_t p = pages + 1; p <= BLOCK_GROW_PAGES; p++)
      assert_true((double)empty_in(p, size) / (p * BLOCK_PAGE) >
                  (double)empty / (pages * BLOCK_PAGE) - 0.1 * (p - pages) - 1e-9);
  }
  // a page with one record of 2,100 bytes is half empty: two have three of them, and a third page would help little
  static const uint32_t cases[][3] = {{2080, 3, 2}, {2048, 3, 2}, {2680, 3, 2}, {2980, 1, 1}, {1480, 2, 1},
                                      {980, 4, 1},  {3280, 1, 1}, {4096, 2, 3}, {5980, 1, 2}};
  for (uint32_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
    uint32_t pages;
    for (uint32_t i = 0; i < 8; i++) recs[i] = make(16, cases[k][0], false);
    assert_int_equal(round_trip(&b, recs, 8, 1, &pages), cases[k][1]);
    assert_int_equal(pages, cases[k][2]);
  }
  // Behind a record that leaves two fifths of a page empty: what makes the block larger for little, or larger than
  // blocks grow, begins another.
  static const uint32_t mixed[][3] = {{5000, 2, 2},  {9700, 2, 3},  {12000, 1, 1},
                                      {13800, 2, 4}, {17000, 1, 1}, {40000, 1, 1}};
  for (uint32_t k = 0; k < sizeof(mixed) / sizeof(mixed[0]); k++) {
    uint32_t pages;
    recs[0] = make(16, 2430, false);
    recs[1] = make(16, mixed[k][0], false);
    assert_int_equal(round_trip(&b, recs, 2, 1, &pages), mixed[k][1]);
    assert_int_equal(pages, mixed[k][2]);
  }
  block_build_fini(&b);
}

static void test_limits(void **state) {
  (void)state;
  struct block_build b;
  OK(block_build_init(&b));
  uint32_t pages;

  // 255 records that would all fit in less than a page
  static struct kv_rec recs[300];
  for (uint32_t i = 0; i < 300; i++) recs[i] = make(3, 0, true);
  assert_int_equal(round_trip(&b, recs, 300, 1, &pages), BLOCK_RECORDS_MAX);
  assert_int_equal(pages, 1);

  // the empty record
  recs[0] = make(0, 0, false);
  assert_int_equal(round_trip(&b, recs, 1, 0, &pages), 1);

  // pages filled to the last byte, and one more
  for (uint32_t n = 1; n < BLOCK_PAGES_MAX - 1; n++) {
    const uint32_t room = n * BLOCK_PAGE - BLOCK_HEAD - 2;
    for (uint32_t more = 0; more < 2; more++) {
      uint32_t vlen = room + more - 10;
      while (kv_rec_size(KV_REC(kref(NULL, 10), NULL, vlen, false)) > room + more) vlen--;
      assert_int_equal(kv_rec_size(KV_REC(kref(NULL, 10), NULL, vlen, false)), room + more);
      recs[0] = make(10, vlen, false);
      recs[1] = make(0, 0, true);
      // a page that was begun is there for others
      assert_int_equal(round_trip(&b, recs, 2, n, &pages), more && n < BLOCK_GROW_PAGES ? 2 : 1);
      assert_int_equal(pages, n + more);
    }
  }
  // two records that fill a page to the last byte
  recs[0] = make(100, 0, true);
  const uint32_t left = BLOCK_PAGE - BLOCK_HEAD - 4 - (uint32_t)kv_rec_size(KV_REC(kref(NULL, 100), NULL, 0, true));
  recs[1] = make(left - 3, 0, true);
  assert_int_equal(kv_rec_size(KV_REC(kref(NULL, left - 3), NULL, 0, true)), left);
  assert_int_equal(round_trip(&b, recs, 2, 9, &pages), 2);
  assert_int_equal(pages, 1);
  recs[1].klen++;  // the first alone would be a page that is nearly empty
  assert_int_equal(round_trip(&b, recs, 2, 9, &pages), 2);
  assert_int_equal(pages, 2);

  // the smallest record has two bytes: it goes where two are left, and not where one is
  for (uint32_t spare = 1; spare <= 2; spare++) {
    const uint32_t size = BLOCK_PAGE - BLOCK_HEAD - 2 * 2 - spare;
    recs[0] = make(size - 3, 0, true);
    assert_int_equal(kv_rec_size(KV_REC(kref(NULL, size - 3), NULL, 0, true)), size);
    recs[1] = make(0, 0, true);
    assert_int_equal(round_trip(&b, recs, 2, 9, &pages), spare);
    assert_int_equal(pages, 1);
  }

  // the largest: all key, all value, all key of a tombstone
  recs[0] = make(REMIXDB_KV_MAX, 0, false);
  assert_int_equal(round_trip(&b, recs, 1, 65500, &pages), 1);
  assert_int_equal(pages, BLOCK_PAGES_MAX - 1);
  recs[0] = make(0, REMIXDB_KV_MAX, false);
  assert_int_equal(round_trip(&b, recs, 1, 65500, &pages), 1);
  recs[0] = make(REMIXDB_KV_MAX, 0, true);
  assert_int_equal(round_trip(&b, recs, 1, 65500, &pages), 1);
  block_build_fini(&b);
}

// A block of five records with lengths of one byte and of two; all live, or a tombstone among them.
static uint32_t small_block(struct block_build *b, bool tomb) {
  for (uint32_t i = 0; i < 5; i++) {
    const struct kv_rec r = make(8 + i, i * 50, tomb && i == 3);
    block_build_add(b, &r, 0);
  }
  return block_build_finish(b, TABLE, 12);
}

static void test_flips(void **state) {
  (void)state;
  struct block_build b;
  OK(block_build_init(&b));
  memset(b.buf, 0, 2 * BLOCK_PAGE);  // bytes that no block has filled are compared, too
  assert_int_equal(small_block(&b, true), 1);
  for (uint32_t bit = 0; bit < BLOCK_PAGE * 8; bit++) {
    b.buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
    FAILS(block_verify(b.buf, 1, 5, BLOCK_FORM_KINDS, TABLE, 12, "some.sst", 4096), REMIXDB_CORRUPT);
    b.buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
  }
  assert_non_null(strstr(err_msg(), "some.sst"));
  OK(block_verify(b.buf, 1, 5, BLOCK_FORM_KINDS, TABLE, 12, "t", 0));
  // the right bytes in a wrong place
  FAILS(block_verify(b.buf, 1, 5, BLOCK_FORM_KINDS, TABLE + 1, 12, "t", 0), REMIXDB_CORRUPT);
  FAILS(block_verify(b.buf, 1, 5, BLOCK_FORM_KINDS, TABLE, 13, "t", 0), REMIXDB_CORRUPT);
  FAILS(block_verify(b.buf, 1, 6, BLOCK_FORM_KINDS, TABLE, 12, "t", 0), REMIXDB_CORRUPT);
  FAILS(block_verify(b.buf, 1, 4, BLOCK_FORM_KINDS, TABLE, 12, "t", 0), REMIXDB_CORRUPT);
  FAILS(block_verify(b.buf, 2, 5, BLOCK_FORM_KINDS, TABLE, 12, "t", 0), REMIXDB_CORRUPT);
  block_build_fini(&b);
}

static void reseal(uint8_t *buf, uint32_t pages) {
  store64le(buf, hash64_seed(buf + 8, pages * BLOCK_PAGE - 8, block_seed(TABLE, 12)));
}

// Whether the fields of a block are true: walked from record to record.
static bool well_formed(const uint8_t *buf, uint32_t count) {
  const uint8_t *const end = buf + BLOCK_PAGE, *p = buf + BLOCK_HEAD + 2 * count;
  if (buf[8] != 1 || buf[9] != count || count == 0 || buf[10] != BLOCK_FORM_KINDS || buf[11] != 0) return false;
  for (uint32_t i = 0; i < count; i++) {
    struct kv_rec r;
    if (buf + load16le(buf + BLOCK_HEAD + 2 * i) != p || end - p < 2) return false;
    p = kv_rec_get(p, end, KV_IN_TABLE, &r);
    if (!p) return false;
  }
  return true;
}

// Changes some bytes of the block, mostly where the structure is: the head, the offsets, and where records begin.
static void forge(const struct block_build *b, uint8_t *buf) {
  for (uint32_t i = 0; i <= below(3); i++) {
    const uint32_t what = below(3);
    const uint32_t at = what == 0   ? 8 + below(16)
                        : what == 1 ? load16le(b->buf + BLOCK_HEAD + 2 * below(5)) + below(4)
                                    : 8 + below(BLOCK_PAGE - 8);
    buf[at] = below(2) ? (uint8_t)rng_next(&check_seed) : (uint8_t)(buf[at] ^ 1u << below(8));
  }
  // lengths that make up for each other: between two offsets is one record of another shape
  if (below(4) == 0) {
    const uint32_t off = load16le(b->buf + BLOCK_HEAD + 2 * below(5));
    buf[off] = (uint8_t)(buf[off] + 2);
    buf[off + 1]--;
  }
}

// The last record ends one byte after the page.
static void forge_long(struct block_build *b, uint8_t *buf) {
  struct kv_rec r = make(20, 4042, false);
  block_build_add(b, &r, 0);
  assert_int_equal(block_build_finish(b, TABLE, 12), 1);
  memcpy(buf, b->buf, BLOCK_PAGE);
  const uint32_t end = BLOCK_HEAD + 2 + (uint32_t)kv_rec_size(KV_REC(kref(NULL, 20), NULL, 4042, false));
  assert_true(end < BLOCK_PAGE);
  (void)kv_head_put(buf + BLOCK_HEAD + 2, KV_REC(kref(NULL, 20), NULL, 4042 + BLOCK_PAGE - end, false));
  reseal(buf, 1);
  OK(block_verify(buf, 1, 1, BLOCK_FORM_KINDS, TABLE, 12, "t", 0));
  (void)kv_head_put(buf + BLOCK_HEAD + 2, KV_REC(kref(NULL, 20), NULL, 4043 + BLOCK_PAGE - end, false));
  reseal(buf, 1);
  FAILS(block_verify(buf, 1, 1, BLOCK_FORM_KINDS, TABLE, 12, "t", 0), REMIXDB_CORRUPT);
}

// The same after a short record. The length has two bytes, or one: the last byte of the page is the last of the block.
static void forge_longer(struct block_build *b) {
  for (uint32_t vlen = 100; vlen <= 300; vlen += 200) {
    const struct kv_rec last = make(20, vlen, false);
    const uint32_t size = (uint32_t)kv_rec_size(KV_REC(kref(NULL, 20), NULL, vlen, false)),
                   filler = BLOCK_PAGE - BLOCK_HEAD - 2 * 2 - size - 2 - 1 - 10;
    const struct kv_rec r = make(10, filler, false);
    block_build_add(b, &r, 0);
    block_build_add(b, &last, 0);
    assert_int_equal(block_build_finish(b, TABLE, 12), 1);
    OK(block_verify(b->buf, 1, 2, BLOCK_FORM_KINDS, TABLE, 12, "t", 0));
    (void)kv_head_put(b->buf + BLOCK_PAGE - size, KV_REC(kref(NULL, 20), NULL, vlen + 1, false));
    reseal(b->buf, 1);
    FAILS(block_verify(b->buf, 1, 2, BLOCK_FORM_KINDS, TABLE, 12, "t", 0), REMIXDB_CORRUPT);
  }
}

// The last record of an old block has one byte: the tombstone of an empty key. It may begin in the last byte but one,
// and must not in the last.
static void forge_tiny(uint8_t *buf) {
  for (uint32_t left = 1; left <= 2; left++) {
    const uint32_t first = BLOCK_HEAD + 2 * 2, last = BLOCK_PAGE - left, klen = last - first - 2;
    memset(buf, 0, BLOCK_PAGE);
    buf[8] = 1;
    buf[9] = 2;
    store16le(buf + BLOCK_HEAD, first);
    store16le(buf + BLOCK_HEAD + 2, last);
    assert_ptr_equal(kv_varint_put(buf + first, klen << 1 | 1), buf + first + 2);
    memcpy(buf + first + 2, pool, klen);
    buf[last] = 1;
    reseal(buf, 1);
    assert_int_equal(block_verify(buf, 1, 2, BLOCK_FORM_BARE, TABLE, 12, "t", 0),
                     left == 1 ? REMIXDB_CORRUPT : REMIXDB_OK);
    if (left == 1) assert_non_null(strstr(err_msg(), "record 1 of a block begins in its last byte"));
    for (uint32_t i = 0; left == 2 && i < 2; i++) {
      struct kv_rec r;
      block_record(buf, i, &r);
      assert_same(&r,
                  i ? &(struct kv_rec){.kind = KV_TOMB} : &(struct kv_rec){.key = pool, .klen = klen, .kind = KV_TOMB});
    }
  }
}

// Bytes whose checksum is right and whose contents are not: those of well-formed blocks pass, and can be read without
// leaving the block.
static void test_forged(void **state) {
  (void)state;
  struct block_build b;
  OK(block_build_init(&b));
  uint8_t *const buf = malloc(BLOCK_PAGE);
  uint32_t passed = 0, refused = 0;
  for (uint32_t round = 0; round < 20000; round++) {
    (void)small_block(&b, below(2) == 0);
    memcpy(buf, b.buf, BLOCK_PAGE);
    forge(&b, buf);
    reseal(buf, 1);
    const uint32_t count = below(2) ? 5 : buf[9];
    const bool good = well_formed(buf, count);
    assert_int_equal(block_verify(buf, 1, count, BLOCK_FORM_KINDS, TABLE, 12, "t", 0),
                     good ? REMIXDB_OK : REMIXDB_CORRUPT);
    if (!good) {
      refused++;
      continue;
    }
    passed++;
    for (uint32_t i = 0; i < block_count(buf); i++) {
      struct kv_rec r;
      block_record(buf, i, &r);
      assert_true(r.key >= buf && r.val + r.vlen <= buf + BLOCK_PAGE && r.klen + r.vlen <= REMIXDB_KV_MAX);
    }
  }
  assert_true(passed > 1000 && refused > 1000);

  forge_long(&b, buf);
  forge_longer(&b);
  forge_tiny(buf);
  free(buf);
  block_build_fini(&b);
}

static bool deny(size_t size) {
  (void)size;
  return false;
}

static void test_no_memory(void **state) {
  (void)state;
  struct block_build b;
  atomic_store(&mem_fault, deny);
  FAILS(block_build_init(&b), REMIXDB_NOMEM);
  atomic_store(&mem_fault, NULL);
  block_build_fini(&b);
}

int main(void) {
  const char *const given = getenv("TEST_SEED");
  const uint64_t start = check_seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
  for (uint32_t i = 0; i < sizeof(pool); i++) pool[i] = (uint8_t)rng_next(&check_seed);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random), cmocka_unit_test(test_growth), cmocka_unit_test(test_limits),
      cmocka_unit_test(test_flips),  cmocka_unit_test(test_forged), cmocka_unit_test(test_no_memory),
  };
  const int rc = cmocka_run_group_tests(tests, NULL, NULL);
  if (rc) fprintf(stderr, "repeat with TEST_SEED=%llu\n", (unsigned long long)start);
  return rc;
}
