// SPDX-License-Identifier: Apache-2.0
//
// A store whose indexes are several times as large as their share of the budget of memory: it opens, answers each
// question right, and stays within the share. A get reads one page of an index and one block at most, about.
#include "tests/lib/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "remixdb.h"
#include "store/memory.h"
#include "tests/lib/slow.h"
#include "tests/lib/temp.h"

#define KEYS (SLOW > 1 ? 250000u : 1000000u)
#define BUDGET_MB 10u
#define MIB ((uint64_t)1 << 20)
#define GETS 4000u

static char dir[TEMP_DIR];

static uint32_t key_of(uint32_t i, uint8_t buf[16]) {
  store64le(buf, hash64(&i, sizeof(i)));
  store64le(buf + 8, i);
  return 16;
}

static uint64_t figure(struct xdb *db, const char *name) {
  uint64_t v = 0;
  if (!remixdb_figure(db, name, &v)) fail_msg("%s: %s", name, remixdb_errmsg());
  return v;
}

static struct xdb *db_open(void) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.memory_mb = BUDGET_MB;
  o.workers = 0;
  struct xdb *const db = remixdb_open_opts(dir, &o);
  if (!db) fail_msg("%s", remixdb_errmsg());
  return db;
}

// Indexes and metadata of tables stay within their share, the memory of a page for each thread aside.
static void check_share(struct xdb *db) {
  const uint64_t all = figure(db, "memory.remix") + figure(db, "memory.remix_pages") + figure(db, "memory.tables") -
                       figure(db, "memory.pieces"),
                 share = BUDGET_MB * MIB / 16 * MEMORY_INDEX_PARTS;
  if (all > share + MIB / 4)
    fail_msg("%" PRIu64 " bytes of indexes, %" PRIu64 " of pages, %" PRIu64 " of tables; the share is %" PRIu64,
             figure(db, "memory.remix"), figure(db, "memory.remix_pages"), figure(db, "memory.tables"), share);
}

static void check_get(struct xdb_ref *r, uint32_t i) {
  uint8_t key[16], val[64];
  uint32_t len;
  const bool there = remixdb_get(r, key, key_of(i, key), val, &len);
  if (i % 10 == 9 || i >= KEYS) {
    CHECK(!there && remixdb_errcode() == REMIXDB_NOTFOUND);
  } else {
    if (!there) fail_msg("key %u: %s", i, remixdb_errmsg());
    CHECK(len == 8 && load64le(val) == i * 3ull);
  }
}

static void fill(struct xdb_ref *r) {
  uint8_t key[16], val[8];
  for (uint32_t i = 0; i < KEYS; i++) {
    store64le(val, i * 3ull);
    CHECK(remixdb_put(r, key, key_of(i, key), val, 8));
  }
  for (uint32_t i = 9; i < KEYS; i += 10) CHECK(remixdb_del(r, key, key_of(i, key)));
}

static void check_scans(struct xdb_ref *r) {
  struct xdb_iter *const it = remixdb_iter_create(r);
  CHECK(it);
  for (uint32_t back = 0; back < 2; back++) {
    uint32_t nr = 0;
    uint8_t last[16];
    if (back) remixdb_iter_seek_last(it);
    else remixdb_iter_seek(it, NULL, 0);
    for (; remixdb_iter_valid(it); nr++) {
      uint32_t len;
      const uint8_t *const key = remixdb_iter_key(it, &len);
      CHECK(key && len == 16 && load64le(key + 8) < KEYS && load64le(key + 8) % 10 != 9);
      if (nr) CHECK((memcmp(key, last, 16) > 0) == !back);
      memcpy(last, key, 16);
      if (back) remixdb_iter_prev(it);
      else remixdb_iter_skip1(it);
    }
    CHECK(nr == KEYS - KEYS / 10);
  }
  remixdb_iter_destroy(it);
}

// Reads of pages and of blocks for gets of random keys: those that are there, then absent ones.
static void check_reads(struct xdb *db, struct xdb_ref *r) {
  for (uint32_t absent = 0; absent < 2; absent++) {
    const uint64_t pages = figure(db, "indexes.page_reads"), blocks = figure(db, "io_totals.reads");
    for (uint32_t n = 0; n < GETS; n++) {
      const uint32_t i = (uint32_t)(rng_next(&check_seed) % (KEYS / 10)) * 10;
      check_get(r, absent ? KEYS + i : i);
    }
    const double p = (double)(figure(db, "indexes.page_reads") - pages) / GETS,
                 b = (double)(figure(db, "io_totals.reads") - blocks) / GETS;
    print_message("%s keys: %.2f reads of pages, %.2f of blocks for a get\n", absent ? "absent" : "present", p, b);
    CHECK(p > 0.2 && p <= 1.01 && b <= (absent ? 0.1 : 1.1));
  }
  check_share(db);
}

static void test_starved(void **state) {
  (void)state;
  check_seed = check_seed_or(time_ns() / 1000);
  CHECK(temp_make(dir, "starved"));
  struct xdb *db = db_open();
  struct xdb_ref *r = remixdb_ref(db);
  fill(r);
  CHECK(remixdb_flush(r));
  check_share(db);
  remixdb_unref(r);
  remixdb_close(db);
  db = db_open();
  r = remixdb_ref(db);
  check_reads(db, r);
  CHECK(figure(db, "indexes.paged") > 0);
  check_scans(r);
  check_share(db);
  const struct remixdb_range everything = {{NULL, 0}, {NULL, 0}};
  uint64_t keys = 0, bytes = 0;
  CHECK(remixdb_count(r, &everything, &keys, &bytes));
  CHECK(keys > KEYS / 100 * 89 && keys < KEYS / 100 * 91);
  for (uint32_t n = 0; n < GETS; n++) check_get(r, (uint32_t)(rng_next(&check_seed) % KEYS));
  CHECK(remixdb_verify(r));
  check_share(db);
  remixdb_unref(r);
  remixdb_close(db);
  CHECK(remove_tree(dir) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_starved)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
