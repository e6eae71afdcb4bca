// SPDX-License-Identifier: Apache-2.0
//
// Values that rounds write apart: which ones, where, how often, and what a failed round leaves of them.
#include "tests/lib/check.h"
#include "tests/lib/rounds.h"

#include "remix/value_debt.h"
#include "table/scan.h"

#define FROM 60u  // bytes; about half of the values are apart

static uint64_t values_of(struct world *w) { return atomic_load(&w->c.values.values); }
static uint64_t bytes_of(struct world *w) { return atomic_load(&w->c.values.file_bytes); }

// A reference, and the key that has it.
struct seen {
  uint32_t at;
  struct value_ref to;
};

// Reads all tables. Returns how many records have their values apart; *inline_out: how many values of FROM bytes or
// more are in tables; seen: NULL, or room for a reference of each key.
static uint64_t read_tables(struct world *w, uint64_t *inline_out, struct seen *seen) {
  uint64_t nr = 0;
  *inline_out = 0;
  for (uint32_t i = 0; i < w->base->nr_parts; i++) {
    for (uint32_t r = 0; r < part_runs(w->base->parts[i]); r++) {
      struct sst *const t = part_run(w->base->parts[i], r);
      struct sst_scan *scan;
      struct kv_rec rec;
      sst_pos pos;
      uint64_t bytes = 0, stated = 0;
      enum remixdb_status s;
      OK(sst_scan_create(t, w->p.queue, &scan));
      while ((s = sst_scan_next(scan, &rec, &pos)) == REMIXDB_OK) {
        *inline_out += !(rec.kind & KV_APART) && rec.vlen >= FROM;
        if (!(rec.kind & KV_APART)) continue;
        struct value_ref to;
        assert_true(value_ref_get(rec.val, rec.vlen, &to) && to.len >= FROM);
        if (seen) seen[nr] = (struct seen){keyset_rank(&w->k, kref(rec.key, rec.klen)), to};
        bytes += to.len;
        nr++;
      }
      FAILS(s, REMIXDB_NOTFOUND);
      sst_scan_destroy(scan);
      for (uint32_t k = 0; k < t->nr_apart; k++) stated += t->apart[k].bytes;
      assert_int_equal(bytes, stated);
    }
  }
  return nr;
}

// Each long value is written once, to one file for all partitions. Merges move references, and write no value.
static void test_once(void **state) {
  (void)state;
  for (uint32_t threads = 0; threads <= 3; threads += 3) {
    struct world w;
    uint64_t in_tables;
    world_init(&w, 6000, threads, 50);
    world_apart(&w, FROM);
    w.c.build.max_pages = 4;
    put_range(&w, 0, w.k.nr, 1, false);
    round_ok(&w, NULL);
    assert_true(w.base->nr_parts > 3);
    const uint64_t apart = read_tables(&w, &in_tables, NULL);
    assert_true(apart > w.k.nr / 4 && apart < w.k.nr && in_tables == 0);
    assert_int_equal(values_of(&w), apart);
    assert_int_equal(atomic_load(&w.c.stats.apart), apart);
    assert_int_equal(w.base->values.nr, 1);
    // little more in many partitions: the same file
    put_range(&w, 0, w.k.nr, 50, false);
    round_ok(&w, NULL);
    assert_int_equal(w.base->values.nr, 1);
    struct seen *const was = calloc(w.k.nr * 2, sizeof(*was)), *const is = calloc(w.k.nr * 2, sizeof(*is));
    const uint64_t nr = read_tables(&w, &in_tables, was), bytes = bytes_of(&w);
    static struct compact_whole whole;
    whole = (struct compact_whole){.budget = UINT64_MAX};
    w.whole = &whole;
    const uint64_t tables = atomic_load(&w.c.stats.table_bytes);
    round_ok(&w, NULL);
    w.whole = NULL;
    assert_true(atomic_load(&w.c.stats.table_bytes) > tables && bytes_of(&w) == bytes);
    const uint64_t left = read_tables(&w, &in_tables, is);
    assert_true(left > 0 && left <= nr && in_tables == 0);
    uint64_t same = 0;
    for (uint64_t i = 0; i < left; i++)
      for (uint64_t k = 0; k < nr; k++)
        same += is[i].at == was[k].at && memcmp(&is[i].to, &was[k].to, sizeof(is[i].to)) == 0;
    assert_int_equal(same, left);
    free(was);
    free(is);
    // all of it goes, and so does the file once it is not written to any more
    put_range(&w, 0, w.k.nr, 1, true);
    whole = (struct compact_whole){.budget = UINT64_MAX};
    w.whole = &whole;
    round_ok(&w, NULL);
    assert_int_equal(bytes_of(&w), bytes);
    assert_int_equal(w.base->values.nr, 0);
    world_settle(&w);
    expect_files(&w, w.base);
    assert_null(w.c.values.files);
    world_fini(&w);
  }
}

// The border: values of that length go, shorter ones stay. Longer ones in older tables go when these are merged.
static void test_border(void **state) {
  (void)state;
  struct world w;
  uint64_t in_tables;
  static struct compact_whole whole;
  whole = (struct compact_whole){.budget = UINT64_MAX};
  world_init(&w, 3000, 0, 51);
  put_range(&w, 0, w.k.nr, 1, false);
  round_ok(&w, NULL);
  assert_int_equal(read_tables(&w, &in_tables, NULL), 0);
  const uint64_t all = in_tables;
  assert_true(all > w.k.nr / 4 && values_of(&w) == 0);
  world_apart(&w, FROM);
  put_range(&w, 0, w.k.nr, 10, true);  // a merge of all runs needs a reason
  w.whole = &whole;
  round_ok(&w, NULL);
  const uint64_t apart = read_tables(&w, &in_tables, NULL);
  assert_true(in_tables == 0 && apart < all && apart > all * 3 / 4);
  assert_int_equal(values_of(&w), apart);
  world_fini(&w);
}

// No value is written of a record that is handed back, hidden or dropped.
static void test_no_value(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  world_init(&w, 2500, 0, 52);
  world_apart(&w, 41);
  w.value = VALUE + 10;
  w.c.build.max_pages = 4;
  w.c.memtable_size = COMPACT_ABORT_SHARE * 1000;
  put_range(&w, 0, w.k.nr, 1, false);
  round_ok(&w, NULL);
  const uint64_t before = values_of(&w);
  w.allow_abort = true;
  put(&w, first_key_of(&w, 1) + 3, false);
  round_ok(&w, kinds);
  expect_kind(kinds, COMPACT_ABORT, 1);
  assert_int_equal(values_of(&w), before);
  w.allow_abort = false;
  thaw(&w);
  // a key of each partition and nothing else
  for (uint32_t i = 0; i < w.k.nr; i += 40) put(&w, i, true);
  round_ok(&w, NULL);
  assert_int_equal(values_of(&w), before);
  world_fini(&w);
}

// Values count as work, and the tables' sizes are planned without them.
static void test_plan(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 6000, 0, 53);
  w.value = 3000;
  world_apart(&w, 41);
  w.c.values.full = 1u << 20;
  put_range(&w, 0, w.k.nr, 2, false);
  round_ok(&w, NULL);
  const uint64_t bytes = atomic_load(&w.c.values.value_bytes), work = atomic_load(&w.c.work) << COMPACT_PROGRESS_SHIFT,
                 progress = atomic_load(&w.c.progress) << COMPACT_PROGRESS_SHIFT;
  assert_true(bytes > 4u << 20 && w.base->values.nr > 4 && w.base->values.nr < 40);
  assert_true(work > bytes && work < bytes + bytes / 4 && progress > bytes && progress < bytes + bytes / 4);
  // with their values they would need fifty times as many
  uint32_t runs = 0;
  for (uint32_t i = 0; i < w.base->nr_parts; i++) runs += part_runs(w.base->parts[i]);
  assert_true(runs <= 4);
  world_fini(&w);
}

// Failures of all kinds: nothing stays of the values, and the next round has them all.
static void ready(struct world *w, uint64_t seed) {
  world_init(w, 1500, 0, seed);
  w->value = VALUE + 10;
  w->c.build.max_pages = 4;
  w->c.values.full = 20000;
  three_parts(w);
  world_apart(w, 50);
  put_range(w, 0, w->k.nr, 7, false);
  round_ok(w, NULL);
  put_range(w, 0, w->k.nr, 3, false);
}

static void test_no_memory(void **state) {
  (void)state;
  for (uint32_t compressed = 0; compressed < 2; compressed++) {
    struct world w;
    ready(&w, 54);
    value_log_compress(&w.c.values, compressed ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE, 1);
    no_memory(&w, 1);
    round_ok(&w, NULL);
    assert_true(w.base->values.nr >= 2);
    world_fini(&w);
  }
}

static void test_io_fails(void **state) {
  (void)state;
  struct world w;
  ready(&w, 55);
  io_fails(&w);
  round_ok(&w, NULL);
  assert_true(w.base->values.nr >= 2);
  world_fini(&w);
}

// A value merge that fails has spent its debt: no other one is made before scans have paid again.
static void test_debt_spent(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2000, 0, 56);
  world_apart(&w, FROM);
  w.c.build.max_pages = 4;
  put_range(&w, 0, w.k.nr, 1, false);
  round_ok(&w, NULL);
  struct remix *const x = remix_of(&w, 0);
  atomic_store(&w.c.value_debt, 1000);
  w.scan_merges = true;
  remix_add_value_debt(x, 0, 0, 2000);
  assert_true(compact_value_debt_paid(&w.c, x));
  fault_io_set(FAULT_WRITE, 1, true);
  FAILS(round_try(&w), REMIXDB_NOSPACE);
  (void)fault_io_end();
  expect_failed(&w, REMIXDB_NOSPACE, true);
  assert_false(compact_value_debt_paid(&w.c, x));
  OK(round_try(&w));
  assert_null(w.next);
  remix_add_value_debt(x, 0, 0, 2000);
  assert_true(compact_value_debt_paid(&w.c, x));
  OK(round_try(&w));
  assert_true(w.next && atomic_load(&w.c.stats.again) > 0);
  world_install(&w);
  world_fini(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_once),       cmocka_unit_test(test_border),    cmocka_unit_test(test_no_value),
      cmocka_unit_test(test_plan),       cmocka_unit_test(test_no_memory), cmocka_unit_test(test_io_fails),
      cmocka_unit_test(test_debt_spent),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
