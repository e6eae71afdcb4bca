// SPDX-License-Identifier: Apache-2.0
//
// A store whose indexes are several times as large as their share of the budget of memory: it opens, answers each
// question right, and stays within the share. A get reads one page of an index and one block at most, about. Filters
// save most reads of pages for absent keys. The deletion of a small range reads the pages of that range.
#include "tests/lib/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "remixdb.h"
#include "store/memory.h"
#include "xdb.h"
#include "tests/lib/slow.h"
#include "tests/lib/temp.h"

#define KEYS (SLOW > 8 ? 250000u : 1000000u)
#define BUDGET_MB (SLOW > 8 ? 3u : 10u)
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

static uint32_t budget_mb;

static _Atomic uint64_t single_bytes;  // bytes of reads that are no part of a batch

static ssize_t count_read(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  const ssize_t n = env_posix()->ops->pread(e, fd, buf, len, off);
  if (n > 0) atomic_fetch_add(&single_bytes, (uint64_t)n);
  return n;
}

static struct xdb *db_open(uint32_t mb) {
  static struct env_ops ops;
  static struct env env;
  struct remixdb_opts o;
  struct xdb *db = NULL;
  ops = *env_posix()->ops;
  ops.pread = count_read;
  env = (struct env){.ops = &ops};
  remixdb_opts_init(&o, sizeof(o));
  o.memory_mb = budget_mb = mb;
  o.workers = 0;
  OK(xdb_open(dir, &o, &env, &db));
  return db;
}

// Indexes and metadata of tables stay within their share, the memory of a page for each thread aside.
static void check_share(struct xdb *db) {
  const uint64_t all = figure(db, "memory.remix") + figure(db, "memory.remix_pages") +
                       figure(db, "memory.remix_filters") + figure(db, "memory.tables") - figure(db, "memory.pieces"),
                 share = budget_mb * MIB / 16 * MEMORY_INDEX_PARTS;
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

// Random keys are asked for this.
enum ask { PRESENT, ABSENT, SEEK };

struct reads {
  double pages, blocks;  // for each question
};

static void seek_once(struct xdb_iter *it, uint32_t i) {
  uint8_t key[16];
  uint32_t len, vlen;
  remixdb_iter_seek(it, key, key_of(i, key));
  CHECK(remixdb_iter_valid(it));
  const uint8_t *const at = remixdb_iter_key(it, &len), *const val = remixdb_iter_value(it, &vlen);
  CHECK(at && val && len == 16 && memcmp(at, key, 16) == 0 && load64le(val) == i * 3ull);
}

// Reads of pages and of blocks for questions of this kind.
static struct reads ask(struct xdb *db, struct xdb_ref *r, enum ask what, uint32_t nr) {
  static const char *const names[] = {"present keys", "absent keys", "seeks"};
  const uint64_t pages = figure(db, "indexes.page_reads"), blocks = figure(db, "io_totals.reads");
  struct xdb_iter *const it = remixdb_iter_create(r);
  CHECK(it);
  for (uint32_t n = 0; n < nr; n++) {
    const uint32_t i = (uint32_t)(rng_next(&check_seed) % (KEYS / 10)) * 10;
    if (what == SEEK) seek_once(it, i);
    else check_get(r, what == ABSENT ? KEYS + i : i);
  }
  remixdb_iter_destroy(it);
  const uint64_t read = figure(db, "indexes.page_reads") - pages, all = figure(db, "io_totals.reads") - blocks;
  CHECK(all >= read);
  const struct reads got = {(double)read / nr, (double)(all - read) / nr};
  print_message("%s: %.3f reads of pages, %.3f of blocks\n", names[what], got.pages, got.blocks);
  return got;
}

// Deletes a few neighbours. *nr_out: how many there were.
static void trim_once(struct xdb_ref *r, uint32_t i, uint32_t *nr_out) {
  uint8_t from[16], to[3];
  (void)key_of(i, from);
  const uint32_t end = ((uint32_t)from[0] << 16 | (uint32_t)from[1] << 8 | from[2]) + (3u << 24) / KEYS + 1;
  for (uint32_t k = 0; k < 3; k++) to[k] = (uint8_t)(end >> (16 - 8 * k));
  if (end >> 24) return;
  const struct remixdb_range range = {{from, sizeof(from)}, {to, sizeof(to)}};
  struct xdb_iter *const it = remixdb_iter_create(r);
  for (uint32_t again = 0; again < 2; again++) {
    uint32_t len;
    for (remixdb_iter_seek(it, from, sizeof(from)); remixdb_iter_valid(it); remixdb_iter_skip1(it)) {
      const void *const at = remixdb_iter_key(it, &len);
      CHECK(at && len == 16);
      if (memcmp(at, to, sizeof(to)) >= 0) break;
      ++*nr_out;
      CHECK(!again);
    }
    CHECK(remixdb_iter_status(it) == REMIXDB_OK && (again || remixdb_del_range(r, &range)));
  }
  remixdb_iter_destroy(it);
}

// The deletion of a few neighbours reads the pages that they lie in, and not the whole index of their partition.
static void trim(struct xdb *db, struct xdb_ref *r) {
  enum { TRIMS = 100 };
  const uint64_t pages = figure(db, "indexes.page_reads"), bytes = single_bytes;
  uint32_t nr = 0;
  for (uint32_t n = 0; n < TRIMS; n++) trim_once(r, (uint32_t)(rng_next(&check_seed) % KEYS), &nr);
  const uint64_t read = figure(db, "indexes.page_reads") - pages, all = single_bytes - bytes;
  print_message("%u keys deleted in %u ranges: %" PRIu64 " reads of pages, %" PRIu64 " bytes\n", nr, TRIMS, read, all);
  CHECK(nr > TRIMS && read <= 3 * TRIMS && all <= TRIMS * (uint64_t)(64 << 10));
}

static void test_starved(void **state) {
  (void)state;
  check_seed = check_seed_or(time_ns() / 1000);
  CHECK(temp_make(dir, "starved"));
  struct xdb *db = db_open(BUDGET_MB);
  struct xdb_ref *r = remixdb_ref(db);
  fill(r);
  CHECK(remixdb_flush(r));
  check_share(db);
  remixdb_unref(r);
  remixdb_close(db);
  db = db_open(BUDGET_MB);
  r = remixdb_ref(db);
  for (enum ask what = PRESENT; what <= SEEK; what++) {
    const struct reads got = ask(db, r, what, GETS);
    CHECK(got.pages > 0.02 && got.pages <= 1.01 && got.blocks <= (what == ABSENT ? 0.1 : 1.1));
    check_share(db);
  }
  CHECK(figure(db, "indexes.paged") > 0);
  check_scans(r);
  check_share(db);
  const struct remixdb_range everything = {{NULL, 0}, {NULL, 0}};
  uint64_t keys = 0, bytes = 0;
  CHECK(remixdb_count(r, &everything, &keys, &bytes));
  CHECK(keys > KEYS / 100 * 89 && keys < KEYS / 100 * 91);
  for (uint32_t n = 0; n < GETS; n++) check_get(r, (uint32_t)(rng_next(&check_seed) % KEYS));
  trim(db, r);
  CHECK(remixdb_verify(r));
  check_share(db);
  remixdb_unref(r);
  remixdb_close(db);
  CHECK(remove_tree(dir) == 0);
}

// At most 2.1 reads for a present key or a seek.
static void ask_all(struct xdb *db, struct xdb_ref *r) {
  for (enum ask what = PRESENT; what <= SEEK; what++) {
    const struct reads got = ask(db, r, what, GETS);
    CHECK(got.pages + got.blocks <= 2.1);
    check_share(db);
  }
}

// The index takes so many bytes if all of it is in memory.
static uint64_t whole_index(void) {
  struct xdb *const db = db_open(256);
  struct xdb_ref *const r = remixdb_ref(db);
  check_scans(r);
  const uint64_t bytes = figure(db, "memory.remix");
  CHECK(figure(db, "indexes.paged") == 0);
  remixdb_unref(r);
  remixdb_close(db);
  return bytes;
}

// A share of a tenth of the index or a little more: budgets are whole megabytes.
static void test_tenth(void **state) {
  (void)state;
  if (SLOW > 8) skip();  // the least budget has room for a third of so small an index
  check_seed = check_seed_or(time_ns() / 1000);
  CHECK(temp_make(dir, "starved"));
  struct xdb *db = db_open(256);
  struct xdb_ref *r = remixdb_ref(db);
  fill(r);
  CHECK(remixdb_flush(r));
  remixdb_unref(r);
  remixdb_close(db);
  const uint64_t all = whole_index(), mb = (all * 16 / MEMORY_INDEX_PARTS / 10 + MIB - 1) / MIB;
  db = db_open((uint32_t)mb);
  r = remixdb_ref(db);
  print_message("%" PRIu64 " bytes of indexes, a share of %" PRIu64 "\n", all,
                budget_mb * MIB / 16 * MEMORY_INDEX_PARTS);
  ask_all(db, r);
  // Each get reads a page about once before its filter is there. Filters go where nobody asks for absent keys.
  CHECK(ask(db, r, PRESENT, GETS).pages > 0.8 && figure(db, "memory.remix_filters") == 0);
  (void)ask(db, r, ABSENT, GETS);
  const uint64_t denied = figure(db, "indexes.filtered");
  const struct reads absent = ask(db, r, ABSENT, GETS);
  CHECK(figure(db, "memory.remix_filters") > 0 && figure(db, "indexes.filtered") - denied > GETS * 7 / 10);
  CHECK(absent.pages + absent.blocks < 0.3);
  check_share(db);
  // A compaction writes all views anew, and these take the filters over. So few gets learn little.
  CHECK(remixdb_compact(r));
  const struct reads anew = ask(db, r, ABSENT, GETS / 8);
  CHECK(anew.pages + anew.blocks < absent.pages + absent.blocks + 0.25);
  check_share(db);
  remixdb_unref(r);
  remixdb_close(db);
  CHECK(remove_tree(dir) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_starved), cmocka_unit_test(test_tenth)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
