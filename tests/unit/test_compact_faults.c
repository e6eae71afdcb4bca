// SPDX-License-Identifier: Apache-2.0
//
// Rounds of compaction that fail: no memory, failing calls, and a REMIX that was forged. test_unread.c has damaged
// tables.
#include "tests/lib/check.h"
#include "tests/lib/rounds.h"

#include "remix/write.h"

// Several partitions: one gets a little, one many runs, and one new data after it.
static void ready_to_fail(struct world *w, uint64_t seed) {
  world_init(w, 2500, 0, seed);
  w->value = VALUE + 10;
  w->c.build.max_pages = 4;
  w->c.memtable_size = COMPACT_ABORT_SHARE * 400;
  w->allow_abort = true;
  three_parts(w);
  w->allow_abort = false;
  for (uint32_t r = 0; remix_of(w, 1)->nr_runs < compact_run_limit(&w->c, w->base->parts[1], UINT64_MAX); r++) {
    assert_true(r <= COMPACT_RUNS);
    put_range(w, first_key_of(w, 1) + r, first_key_of(w, 2), 30, false);
    round_ok(w, NULL);
  }
  w->allow_abort = true;
  put(w, first_key_of(w, 0) + 3, true);
  put_range(w, first_key_of(w, 1), first_key_of(w, 2), 25, true);
  put_range(w, first_key_of(w, 1) + 1, first_key_of(w, 2), 25, false);
  put_range(w, keys_for(w, 5.4), w->k.nr, 1, false);
}

static void test_no_memory(void **state) {
  (void)state;
  struct world w;
  uint64_t kinds[COMPACT_KINDS];
  for (uint32_t compressed = 0; compressed < 2; compressed++) {
    ready_to_fail(&w, 30);
    w.c.build.compression = compressed ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
    w.c.build.ckeys = !compressed;
    no_memory(&w, compressed ? 3 : 1);
    round_ok(&w, kinds);
    expect_kind(kinds, COMPACT_ABORT, 1);
    world_fini(&w);
  }
}

static void test_io_fails(void **state) {
  (void)state;
  struct world w;
  ready_to_fail(&w, 31);
  io_fails(&w);
  uint64_t done[COMPACT_KINDS];
  round_ok(&w, done);
  expect_kind(done, COMPACT_ABORT, 1);
  assert_true(done[COMPACT_MAJOR] >= 1 && done[COMPACT_MINOR] + done[COMPACT_SPLIT] >= 1);
  world_fini(&w);
}

// A round soon sees a failed write of a table, and stops its other work, in the partition and in others.
static void test_fails_soon(void **state) {
  (void)state;
  for (uint32_t one = 0; one < 2; one++) {
    struct world w;
    world_init(&w, 30000, 0, 37);
    if (one) w.c.build.max_pages = 4000;  // all of it in one partition
    const uint32_t n = one ? w.k.nr : keys_for(&w, 8);
    put_range(&w, 0, n, 1, false);
    round_ok(&w, NULL);
    assert_true(one ? w.base->nr_parts == 1 && remix_of(&w, 0)->runs[0]->data_size > 3 * BLKIO_WRITER_BUF
                    : w.base->nr_parts > 3);
    put_range(&w, 0, n, 2, false);
    for (uint32_t open = 0; open < 2; open++) {
      // the first new table, or the first bytes written to one
      fault_io_set(open ? FAULT_OPEN : FAULT_WRITE, 1, false);
      assert_int_equal(round_try(&w), open ? REMIXDB_IO : REMIXDB_NOSPACE);
      assert_true(fault_io_end());
      assert_true(atomic_load(&w.c.progress) < atomic_load(&w.c.work) / (!one ? 2 : open ? 20 : 3));
    }
    round_ok(&w, NULL);
    assert_true(atomic_load(&w.c.progress) > atomic_load(&w.c.work) / 2);
    world_fini(&w);
  }
}

// A round tells of long records while it writes them, however few they are: the writers' pace needs to know. The second
// write of a table fails, and the reports until then count.
static void test_tells_of_long_records(void **state) {
  (void)state;
  enum { LONG = 60000, NR = 60 };
  static uint8_t value[LONG];
  struct world w;
  world_init(&w, 10, 0, 38);
  w.c.build.max_pages = 4000;
  for (uint32_t i = 0; i < NR; i++) {
    struct wh_slot slot;
    const uint32_t key = __builtin_bswap32(i);
    const struct kref k = kref(&key, sizeof(key));
    enter(&w.p);
    wh_lock(w.frozen, k, hash64(k.ptr, k.len), &slot);
    OK(wh_link(&slot, KV_REC(kref(NULL, 0), value, LONG, false)));
    wh_stamp(&slot, ++w.seq);
    wh_unlock(&slot);
    leave(&w.p);
  }
  fault_io_set(FAULT_WRITE, 2, false);
  assert_int_equal(round_try(&w), REMIXDB_NOSPACE);
  assert_true(fault_io_end());
  assert_in_range(atomic_load(&w.c.progress), BLKIO_WRITER_BUF >> COMPACT_PROGRESS_SHIFT,
                  (NR * LONG >> COMPACT_PROGRESS_SHIFT) - 1);
  world_fini(&w);
}

// Deletes a range that cuts two partitions, one of which has a young view. The next version goes at once.
static void erase_try(struct world *w, const struct compact_range *range) {
  struct compact_erase e = {.c = &w->c, .slot = &w->p.slot, .queue = w->p.queue, .ranges = range, .nr = 1};
  struct version *next;
  w->next = NULL;
  w->status = compact_erase(&e, w->base, &next);
  if (w->status != REMIXDB_OK) {
    err_save(&w->error, w->status);
    return;
  }
  CHECK(next && e.erased == 2 && e.dropped == 0);
  compact_retire(next, w->base);
  version_unref(next);
}

// A deletion of a range that fails leaves no file, at whatever allocation or call.
static void test_erase_fails(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2500, 0, 39);
  w.c.build.max_pages = 4;
  w.c.young_from = 4;
  three_parts(&w);
  put_range(&w, first_key_of(&w, 1), first_key_of(&w, 2), 9, false);
  round_ok(&w, NULL);
  CHECK(young_of(&w, 1) && !young_of(&w, 2));
  const struct compact_range range = {w.k.keys[first_key_of(&w, 1) + 5], w.k.keys[first_key_of(&w, 2) + 9]};
  static const unsigned kinds[] = {FAULT_OPEN, FAULT_READ, FAULT_WRITE, FAULT_SYNC, FAULT_CLOSE};
  for (uint32_t i = 0; i <= sizeof(kinds) / sizeof(kinds[0]); i++) {
    const bool memory = i == sizeof(kinds) / sizeof(kinds[0]);
    uint32_t failed = 0;
    for (int64_t n = 1;; n++) {
      if (memory) fault_mem_set(n);
      else fault_io_set(kinds[i], n, false);
      erase_try(&w, &range);
      if (!(memory ? fault_mem_end() : fault_io_end())) break;
      if (w.status == REMIXDB_OK) continue;  // it can do without
      expect_failed(&w, memory ? REMIXDB_NOMEM : kinds[i] == FAULT_WRITE ? REMIXDB_NOSPACE : REMIXDB_IO, n % 8 == 0);
      failed++;
    }
    OK(w.status);
    expect_files(&w, w.base);
    CHECK(failed >= (memory ? 12 : kinds[i] == FAULT_READ ? 0 : 3));
  }
  world_fini(&w);
}

// A full table with keys of a letter and ascending numbers; after 400 more bytes where the letter is a capital one.
static struct sst *forged_table(struct place *p, char letter, uint32_t *counter) {
  struct sst_build *b;
  struct sst *t;
  uint64_t size;
  const uint64_t number = p->next++;
  OK(sst_build_create(&p->ctx, &(struct sst_build_opts){.ckeys = true, .max_pages = TABLE}, p->queue, &b));
  sst_build_start(b, number);
  for (;;) {
    char key[512];
    const uint8_t val[VALUE] = {0};
    const uint32_t head = letter <= 'Z' ? 400 : 0;
    memset(key, 'a', head);
    const uint32_t klen = head + (uint32_t)snprintf(key + head, sizeof(key) - head, "%c%015u", letter, *counter);
    const struct kv_rec rec = {.key = (const uint8_t *)key, .klen = klen, .val = val, .vlen = sizeof(val)};
    if (!sst_build_takes(b, &rec) || sst_build_bytes(b) >= TABLE * BLOCK_PAGE) break;
    sst_build_add(b, &rec);
    ++*counter;
  }
  OK(sst_build_finish(b, &size));
  sst_build_destroy(b);
  OK(sst_open(&p->ctx, number, &t));
  return t;
}

// A REMIX that gives the order of its entries as run after run, with two runs for each letter.
static struct remix *forged_remix(struct place *p, uint64_t number, const char *letters) {
  struct sst *runs[REMIX_RUNS_MAX];
  struct remix_write rw = {0};
  struct remix *x;
  uint64_t size, print;
  uint32_t nr = 0, nr_segs = 0, counter = 0;
  for (const char *c = letters; *c; c++)
    for (uint32_t i = 0; i < 2; i++) runs[nr++] = forged_table(p, *c, &counter);
  OK(remix_write_start(&rw, &p->ctx, p->queue, number, runs, nr, true));
  for (uint32_t r = 0; r < nr; r++) {
    for (uint64_t left = runs[r]->nr_records; left > 0;) {
      const uint32_t n = left < 28 ? (uint32_t)left : 28;
      uint8_t sel[32], tag[32] = {0};
      uint32_t dbit[32];
      char anchor[16];
      memset(sel, (int)r, sizeof(sel));
      for (uint32_t i = 0; i < 32; i++) dbit[i] = 16 * i + 5;
      (void)snprintf(anchor, sizeof(anchor), "%08x", ++nr_segs);
      const struct remix_entries e = {.sel = sel, .tag = tag, .dbit = dbit};
      OK(remix_write_segment(&rw, &e, n, kref(anchor, 8)));
      left -= n;
    }
  }
  OK(remix_write_finish(&rw, &size, &print));
  remix_write_fini(&rw);
  OK(remix_open(&p->ctx, number, runs, nr, &x));
  for (uint32_t r = 0; r < nr; r++) sst_unref(runs[r]);
  return x;
}

// All checksums are right, but the REMIX has another order than the keys. A round makes no version of it.
static void test_forged_order(void **state) {
  (void)state;
  static const char *const orders[] = {"ma", "ma0", "mab", "MXbaYZ"};
  for (uint32_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
    struct world w;
    struct part *part;
    struct compact_whole whole = {.budget = UINT64_C(1) << 40};
    world_init(&w, 10, 0, 1);
    w.p.next = 100;
    OK(part_create(kref("", 0), forged_remix(&w.p, 99, orders[i]), NULL, &part));
    version_unref(w.base);
    OK(version_create(&part, 1, &w.base));
    atomic_store(&w.c.next_file, 1000);
    w.whole = &whole;
    mem_put(&w.p, w.frozen, kref("z", 1), 5, VALUE, ++w.seq);
    FAILS(round_try(&w), REMIXDB_CORRUPT);
    assert_non_null(strstr(w.error.msg, "not in order"));
    assert_null(w.next);
    world_fini(&w);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_no_memory),    cmocka_unit_test(test_io_fails),
      cmocka_unit_test(test_erase_fails),  cmocka_unit_test(test_fails_soon),
      cmocka_unit_test(test_forged_order), cmocka_unit_test(test_tells_of_long_records),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
