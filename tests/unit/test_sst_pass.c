// SPDX-License-Identifier: Apache-2.0
//
// Passing through tables: the bytes read of a file, the calls, and the advice to the system.
#include "tests/lib/check.h"
#include "tests/lib/tables.h"

#include "table/readahead.h"
#include "table/scan.h"

// ---- a disk that counts

#define COUNT_PAGES 8192u

static struct env_ops count_ops;
static struct env count_env;
static struct {
  uint8_t pages[COUNT_PAGES];  // how often each was read
  uint8_t told[COUNT_PAGES];   // and how often the system was told to bring it in
  uint64_t bytes, calls;
  uint64_t read_to, needed_to;  // the largest offsets
  uint32_t advised[ENV_DONT_NEED + 1];
} counted;
static uint64_t slow_ns;  // a read's

static void count_range(uint8_t *pages, uint64_t off, uint64_t len) {
  const uint64_t first = off / BLOCK_PAGE, end = (off + len + BLOCK_PAGE - 1) / BLOCK_PAGE;
  assert_true(end <= COUNT_PAGES);
  for (uint64_t page = first; page < end; page++) pages[page]++;
}

static ssize_t count_pread(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  (void)e;
  counted.calls++;
  counted.bytes += len;
  if (off + len > counted.read_to) counted.read_to = off + len;
  count_range(counted.pages, off, len);
  if (slow_ns) time_sleep_ns(slow_ns);
  return env_posix()->ops->pread(env_posix(), fd, buf, len, off);
}

static int count_advise(struct env *e, int fd, uint64_t off, uint64_t len, enum env_advice advice) {
  (void)e, (void)fd;
  counted.advised[advice]++;
  if (advice != ENV_WILL_NEED) return 0;
  if (off + len > counted.needed_to) counted.needed_to = off + len;
  count_range(counted.told, off, len);
  return 0;
}

static void count_anew(void) { memset(&counted, 0, sizeof(counted)); }

// Every page of [from, to) was read once, in large reads, and nothing else was.
static void count_is_once(uint64_t from, uint64_t to, bool direct) {
  const uint64_t first = from / BLOCK_PAGE, end = (to + BLOCK_PAGE - 1) / BLOCK_PAGE;
  for (uint64_t page = 0; page < COUNT_PAGES; page++)
    assert_int_equal(counted.pages[page], page >= first && page < end);
  assert_int_equal(counted.bytes, (end - first) * BLOCK_PAGE);
  assert_true(counted.calls <= 2 + counted.bytes / (direct ? 256u << 10 : 512u << 10));
}

// ---- scans

// Takes all descriptors that the pool has for passes.
static uint32_t take_passing(struct sst *t, int *fds) {
  uint32_t nr = 0;
  while (fdpool_open_passing(t->file, false, &fds[nr])) nr++;
  assert_true(nr > 0);
  return nr;
}

static void check_pass(struct world *w, struct sst *t, uint32_t nr, bool own, bool direct) {
  struct sst_scan *scan;
  struct sst_keys k;
  struct kv_rec r;
  sst_pos pos;
  const bool many = t->data_size > 600u << 10;
  count_anew();
  OK(sst_scan_create(t, w->q, &scan));
  for (uint32_t i = 0; i < nr; i++) {
    OK(sst_scan_next(scan, &r, &pos));
    if (own || direct || counted.calls < 2 || counted.read_to >= t->data_size) continue;
    assert_true(counted.needed_to > counted.read_to);
  }
  sst_scan_destroy(scan);
  count_is_once(0, t->data_size, direct);
  assert_true(!many || counted.advised[ENV_SEQUENTIAL] == own);
  assert_true(!many || (counted.needed_to > 0) == (!own && !direct));
  count_anew();
  OK(sst_keys_open(t, w->q, &k));
  for (uint32_t i = 0; i < nr; i++) OK(sst_keys_next(&k));
  sst_keys_close(&k);
  count_is_once(t->ckb_off, t->ckb_off + t->ckb_len, direct);
  // one that is given up has read one part, and no more
  count_anew();
  OK(sst_scan_create(t, w->q, &scan));
  OK(sst_scan_next(scan, &r, &pos));
  sst_scan_destroy(scan);
  assert_true(counted.read_to <= 256u << 10 && counted.needed_to == 0);
}

// A scan and the keys in order read each page once, through a descriptor of their own that is advised for sequential
// reads. Where the pool has none for them, they announce their next reads.
static void test_pass(void **state) {
  (void)state;
  for (uint32_t v = 0; v < 24; v++) {
    const enum style style = v % 3 == 0 ? TEXT : v % 3 == 1 ? MIXED : SMALL;
    const bool direct = v & 4, zstd = v & 8, own = v < 12;
    struct model m = model_make(style, style == MIXED ? 300 : 20000);
    struct world *const w = world_open(&count_env, 0, direct);
    sst_pos *pos;
    struct sst *const t = table_new(w, 1, &m, opts(true, zstd), &pos);
    int taken[16];
    const uint32_t nr_taken = own ? 0 : take_passing(t, taken);
    check_pass(w, t, m.nr, own, direct);
    for (uint32_t i = 0; i < nr_taken; i++) fdpool_close_passing(t->file, taken[i]);
    table_end(t, pos);
    world_close(w);
    model_free(&m);
  }
}

// A bounded scan, and bounded keys, read everything in reads of that size.
static void test_limit(void **state) {
  (void)state;
  for (uint32_t v = 0; v < 8; v++) {
    struct model m = model_make(v & 1 ? MIXED : TEXT, v & 1 ? 300 : 20000);
    struct world *const w = world_open(&count_env, 0, v & 4);
    sst_pos *pos, at;
    struct sst *const t = table_new(w, 1, &m, opts(true, v & 2), &pos);
    struct sst_scan *scan;
    struct sst_keys k;
    struct kv_rec r;
    count_anew();
    OK(sst_scan_create(t, w->q, &scan));
    sst_scan_limit(scan, SST_READ_LEAST);
    for (uint32_t i = 0; i < m.nr; i++) {
      OK(sst_scan_next(scan, &r, &at));
      assert_rec(&r, &m.r[i]);
    }
    FAILS(sst_scan_next(scan, &r, &at), REMIXDB_NOTFOUND);
    sst_scan_destroy(scan);
    const uint64_t data = align_up(t->data_size, BLKIO_ALIGN);
    assert_true(counted.bytes == data && counted.calls == (data + SST_READ_LEAST - 1) / SST_READ_LEAST);
    count_anew();
    OK(sst_keys_open(t, w->q, &k));
    sst_keys_limit(&k, SST_READ_LEAST);
    for (uint32_t i = 0; i < m.nr; i++) {
      OK(sst_keys_next(&k));
      assert_int_equal(kv_cmp(k.key, kref(m.r[i].key, m.r[i].klen)), 0);
    }
    FAILS(sst_keys_next(&k), REMIXDB_NOTFOUND);
    sst_keys_close(&k);
    assert_true(counted.calls >= counted.bytes / SST_READ_LEAST);
    table_end(t, pos);
    world_close(w);
    model_free(&m);
  }
}

// The reads of a merge of many tables fit the room together if each has its least size.
static void test_share(void **state) {
  (void)state;
  _Atomic size_t room = 8u << 20;
  struct sst_ctx c = {.scan_room = &room};
  assert_int_equal(sst_scan_share(&c, 1), 512u << 10);
  for (uint32_t nr = 1; nr <= 64; nr++) {
    const uint32_t read = sst_scan_share(&c, nr);
    assert_true(read % BLKIO_ALIGN == 0 && 2 * nr * (size_t)read <= room);
  }
  assert_int_equal(sst_scan_share(&c, 65), SST_READ_LEAST);
  c.scan_room = NULL;
  assert_int_equal(sst_scan_share(&c, 16), SST_SCAN_ROOM / 32);
}

#define PASSES 40u
// More scans side by side, by one thread, than the pool has descriptors. None waits for another's, and what is read in
// flight is not read again, with any engine, buffered and direct.
static void check_passes(const struct model *m, bool direct) {
  struct world *const w = world_open(env_posix(), 0, direct);
  struct sst *t[PASSES];
  struct sst_scan *scan[PASSES];
  struct kv_rec r;
  sst_pos pos;
  uint64_t size, all = 0;
  for (uint32_t i = 0; i < PASSES; i++) {
    OK(build(w, 1 + i, m, opts(false, false), &size));
    assert_true(size > 1u << 20);
    OK(sst_open(&w->ctx, 1 + i, &t[i]));
    OK(sst_scan_create(t[i], w->q, &scan[i]));
    all += t[i]->data_size;
  }
  const uint64_t before = atomic_load(&w->io.read_bytes);
  for (uint32_t at = 0; at < m->nr; at++) {
    for (uint32_t i = 0; i < PASSES; i++) {
      OK(sst_scan_next(scan[i], &r, &pos));
      assert_rec(&r, &m->r[at]);
    }
    assert_true(fdpool_open_count(w->fds) <= 16);  // past its patience the pool would pass its bound
  }
  assert_int_equal(atomic_load(&w->io.read_bytes) - before, all);
  for (uint32_t i = 0; i < PASSES; i++) {
    sst_scan_destroy(scan[i]);
    sst_unref(t[i]);
  }
  world_close(w);
}

static void test_passes(void **state) {
  (void)state;
  struct model m = model_make(TEXT, 6000);
  for (uint32_t v = 0; v < 8; v++) check_passes(&m, v & 4);
  model_free(&m);
}

// ---- a reader's own readahead

// Takes every block of the stretch, and compares its records.
static void take_stretch(struct sst_ahead *a, const struct sst *t, const struct model *m, const sst_pos *pos) {
  for (uint32_t i = 0; i < m->nr; i++) {
    const uint32_t block = sst_pos_block(pos[i]);
    const uint8_t *data;
    struct kv_rec r;
    if (!sst_ahead_has(a, t, block)) continue;
    OK(sst_ahead_take(a, t, block, &data));
    block_record(data, sst_pos_idx(pos[i]), &r);
    assert_rec(&r, &m->r[i]);
  }
}

// Goes through the table in stretches of n pages, from the end that it begins at.
static void go(struct sst *t, const struct model *m, const sst_pos *pos, uint32_t n, bool back) {
  struct sst_ahead a = {0};
  uint32_t at = back ? t->nr_pages : 0;
  while (back ? at > 0 : at < t->nr_pages) {
    if (back) {
      uint32_t block = at - 1;
      while (t->nr_recs[block] == 0) block--;
      sst_ahead_read_back(&a, t, block, n);
      assert_int_equal(a.to, at);
      assert_int_equal(a.from, sst_block_back(t, block, n));
      assert_true(a.from == block || a.to - a.from <= n);
      at = a.from;
    } else {
      const uint32_t left = t->nr_pages - at;
      sst_ahead_read(&a, t, at, n < left ? n : left);
      assert_int_equal(a.from, at);
      at = a.to;
    }
    assert_true(a.to > a.from);
    take_stretch(&a, t, m, pos);
  }
  sst_ahead_fini(&a);
}

// Stretches that follow each other read no byte twice, forward and back. Where they come from a slow disk, the system
// is told once of each page but the first stretches', and of none beyond the data.
static void test_stretches(void **state) {
  (void)state;
  for (uint32_t v = 0; v < 16; v++) {
    const bool direct = v & 1, zstd = v & 2, back = v & 4, slow = v & 8;
    struct model m = model_make(v % 3 ? TEXT : MIXED, v % 3 ? 12000 : 300);
    struct world *const w = world_open(&count_env, 0, direct);
    sst_pos *pos;
    struct sst *const t = table_new(w, 1, &m, opts(false, zstd), &pos);
    const uint32_t n = 18;
    count_anew();
    slow_ns = slow ? 3000000 : 0;
    go(t, &m, pos, n, back);
    slow_ns = 0;
    if (!direct) assert_int_equal(counted.bytes, t->data_size);
    const uint64_t nr = (t->data_size + BLOCK_PAGE - 1) / BLOCK_PAGE;
    uint64_t told = 0;
    for (uint64_t page = 0; page < COUNT_PAGES; page++) {
      assert_true(zstd || counted.pages[page] == (page < nr));  // stretches may share a page of a compressed table
      assert_true(zstd || counted.told[page] <= 1);
      assert_true(page < nr || !counted.told[page]);
      told += counted.told[page] > 0;
    }
    assert_true(!direct || told == 0);
    if (slow && !direct) assert_true(told >= nr - n - 16);
    table_end(t, pos);
    world_close(w);
    model_free(&m);
  }
}

// Far into a table a reader that goes forward leaves the rest to the system. It has another descriptor for that.
static void test_far(void **state) {
  (void)state;
  struct model m = model_make(TEXT, 60000);
  for (uint32_t v = 0; v < 4; v++) {
    const bool direct = v & 1, back = v & 2;
    struct world *const w = world_open(&count_env, 0, direct);
    sst_pos *pos;
    struct sst *const t = table_new(w, 1, &m, opts(false, false), &pos);
    const uint32_t stretch = 64 * BLOCK_PAGE;
    assert_true(t->data_size > SST_AHEAD_LONG + 10 * stretch);
    count_anew();
    slow_ns = 3000000;
    go(t, &m, pos, 64, back);
    slow_ns = 0;
    assert_int_equal(counted.bytes, t->data_size);
    assert_true(counted.calls <= 1 + t->data_size / stretch);
    assert_int_equal(counted.advised[ENV_SEQUENTIAL], !direct && !back);
    assert_int_equal(counted.advised[ENV_RANDOM], 0);  // the table was open
    if (!direct && !back) assert_true(counted.needed_to <= SST_AHEAD_LONG + (SST_AHEAD_MORE + 1) * stretch);
    table_end(t, pos);
    world_close(w);
  }
  model_free(&m);
}

// The advice is bounded by the bytes read, and a reader that leaps begins anew.
static void test_told(void **state) {
  (void)state;
  struct model m = model_make(TEXT, 20000);
  struct world *const w = world_open(&count_env, 0, false);
  sst_pos *pos;
  struct sst *const t = table_new(w, 1, &m, opts(false, false), &pos);
  struct sst_ahead a = {0};
  assert_true(t->nr_pages > 600);
  count_anew();
  slow_ns = 3000000;
  sst_ahead_read(&a, t, 100, 8);
  assert_int_equal(counted.needed_to, 116 * BLOCK_PAGE);
  sst_ahead_read(&a, t, 108, 8);
  assert_int_equal(counted.needed_to, 124 * BLOCK_PAGE);  // the bytes read before the advice
  sst_ahead_read(&a, t, 116, 8);
  assert_int_equal(counted.needed_to, 140 * BLOCK_PAGE);
  sst_ahead_read(&a, t, 300, 8);
  assert_int_equal(counted.needed_to, 316 * BLOCK_PAGE);
  slow_ns = 0;
  // advice of readers that know their next reads
  count_anew();
  sst_will_need(t, 40, 10);
  assert_int_equal(counted.needed_to, 50 * BLOCK_PAGE);
  sst_will_need(t, t->nr_pages - 3, 10);
  sst_will_need(t, t->nr_pages, 10);
  assert_int_equal(counted.needed_to, t->data_size);
  assert_int_equal(counted.calls, 0);
  assert_int_equal(fdpool_open_count(w->fds), 1);
  sst_ahead_fini(&a);
  table_end(t, pos);
  world_close(w);
  model_free(&m);
}

static int setup(void **state) {
  count_ops = *env_posix()->ops;
  count_ops.pread = count_pread;
  count_ops.advise = count_advise;
  count_env = (struct env){.ops = &count_ops, .priv = env_posix()->priv, .native = false};
  return root_setup(state);
}

int main(void) {
  (void)check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_limit),  cmocka_unit_test(test_share),     cmocka_unit_test(test_pass),
      cmocka_unit_test(test_passes), cmocka_unit_test(test_stretches), cmocka_unit_test(test_far),
      cmocka_unit_test(test_told),
  };
  return check_seed_end(cmocka_run_group_tests(tests, setup, root_teardown));
}
