// SPDX-License-Identifier: Apache-2.0
//
// Building tables: tables of all kinds of records, read again in all ways; records out of order; failures of memory and
// disk.
#include "tests/lib/keys_packed.h"
#include "tests/lib/check.h"
#include "tests/lib/tables.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "table/block.h"
#include "table/ckb.h"
#include "table/readahead.h"
#include "table/scan.h"
#include "tests/lib/fault.h"

// ---- a disk that fails at the n-th call that changes something

static struct env_ops fault_ops;

static struct env fault_env;

// fault_at 0: no call fails
static _Atomic uint64_t fault_at, fault_calls;

static const int fault_errno = ENOSPC;

static bool fault_now(void) { return atomic_fetch_add(&fault_calls, 1) + 1 == atomic_load(&fault_at); }

static int fault_open(struct env *e, int at, const char *path, unsigned flags) {
  (void)e;
  if ((flags & ENV_WRITE) && fault_now()) return -fault_errno;
  return env_posix()->ops->open(env_posix(), at, path, flags);
}

static int fault_close(struct env *e, int fd) {
  (void)e;
  const bool bad = fault_now();
  const int r = env_posix()->ops->close(env_posix(), fd);
  return bad ? -EIO : r;
}

static ssize_t fault_pwrite(struct env *e, int fd, const void *buf, size_t len, uint64_t off) {
  (void)e;
  return fault_now() ? -fault_errno : env_posix()->ops->pwrite(env_posix(), fd, buf, len, off);
}

static int fault_sync(struct env *e, int fd) {
  (void)e;
  return fault_now() ? -EIO : env_posix()->ops->sync_all(env_posix(), fd);
}

static int fault_truncate(struct env *e, int fd, uint64_t size) {
  (void)e;
  return fault_now() ? -fault_errno : env_posix()->ops->truncate(env_posix(), fd, size);
}

static int fault_allocate(struct env *e, int fd, uint64_t off, uint64_t len) {
  (void)e;
  return fault_now() ? -fault_errno : env_posix()->ops->allocate(env_posix(), fd, off, len);
}

static void fault_env_init(void) {
  fault_ops = *env_posix()->ops;
  fault_ops.open = fault_open;
  fault_ops.close = fault_close;
  fault_ops.pwrite = fault_pwrite;
  fault_ops.sync_data = fault_sync;
  fault_ops.sync_all = fault_sync;
  fault_ops.truncate = fault_truncate;
  fault_ops.allocate = fault_allocate;
  fault_env = (struct env){.ops = &fault_ops, .priv = env_posix()->priv, .native = false};
}

// ---- a table is as its records are

static void check_advance(const struct sst *t, const sst_pos *pos, uint32_t nr) {
  for (uint32_t i = 0; i < nr; i++) assert_int_equal(sst_advance(t, pos[i], 1), pos[i + 1]);
  for (uint32_t i = 0; i < 300; i++) {
    const uint32_t from = below(nr + 1), n = below(below(2) ? 5 : nr + 10);
    assert_int_equal(sst_advance(t, pos[from], n), pos[from + n < nr ? from + n : nr]);
  }
}

static void check_reads(struct world *w, struct sst *t, const struct model *m, const sst_pos *pos, uint32_t reads) {
  struct sst_hold h[3] = {0};
  for (uint32_t i = 0; i < reads; i++) {
    epoch_enter(&w->epoch, &w->slot);
    if (below(8) == 0) sst_readahead(t, w->q, below(t->nr_pages), 1 + below(BLKIO_BATCH_MAX));
    uint32_t at = below(m->nr);
    struct kv_rec r;
    for (uint32_t n = below(4); n-- > 0 && at < m->nr; at++) {
      struct sst_hold *const x = &h[below(3)];
      if (below(6) == 0) read_on(t, sst_pos_block(pos[at]), x);
      OK(sst_read_some(t, pos[at], below(4) ? 1 + below(20) : SST_ALL, below(2), x, &r));
      assert_rec(&r, &m->r[at]);
    }
    // a pinned block stays when the epoch is left
    at = below(m->nr);
    OK(sst_read(t, pos[at], true, &h[0], &r));
    epoch_exit(&w->slot);
    assert_rec(&r, &m->r[at]);
    if (below(10) == 0) sst_hold_drop(&h[below(3)]);
  }
  for (uint32_t i = 0; i < 3; i++) sst_hold_fini(&h[i]);
}

static void check_scan(struct world *w, struct sst *t, const struct model *m, const sst_pos *pos, uint32_t skip_max) {
  struct sst_scan *s;
  OK(sst_scan_create(t, w->q, &s));
  struct kv_rec r;
  sst_pos p;
  uint32_t at = 0;
  for (;;) {
    if (skip_max && below(3) == 0) {
      const uint32_t n = below(skip_max);
      sst_scan_skip(s, n);
      at += n;
    }
    const enum remixdb_status got = sst_scan_next(s, &r, &p);
    if (got == REMIXDB_NOTFOUND) break;
    OK(got);
    assert_true(at < m->nr);
    assert_int_equal(p, pos[at]);
    assert_rec(&r, &m->r[at++]);
  }
  assert_true(at >= m->nr);
  FAILS(sst_scan_next(s, &r, &p), REMIXDB_NOTFOUND);
  sst_scan_destroy(s);
}

static void check_keys(struct world *w, struct sst *t, const struct model *m, const sst_pos *pos) {
  struct sst_keys k;
  OK(sst_keys_open(t, w->q, &k));
  for (uint32_t i = 0; i < m->nr; i++) {
    OK(sst_keys_next(&k));
    assert_true(kv_eq(k.key, kref(m->r[i].key, m->r[i].klen)));
    assert_int_equal(k.kind, m->r[i].kind);
    assert_int_equal(k.pos, pos[i]);
    const uint32_t shared = i ? kv_lcp_from(kref(m->r[i - 1].key, m->r[i - 1].klen), k.key, 0) : 0;
    assert_int_equal(k.shared, shared);
  }
  FAILS(sst_keys_next(&k), REMIXDB_NOTFOUND);
  assert_int_equal(sst_keys_blocks_read(&k), t->ckb_len ? 0 : t->nr_pages);
  sst_keys_close(&k);
}

// Single keys in any order, but mostly forward.
static void check_single(struct world *w, struct sst *t, const struct model *m, const sst_pos *pos) {
  struct sst_keys k;
  OK(sst_keys_open(t, w->q, &k));
  uint32_t at = 0;
  for (uint32_t i = 0; i < 3000; i++) {
    switch (below(8)) {
      case 0: at = below(m->nr); break;
      case 1: at -= below(at < 600 ? at + 1 : 600); break;
      case 2: at -= below(at < 4 ? at + 1 : 4); break;
      default: at += below(40); break;
    }
    if (at >= m->nr) at = below(2) ? m->nr - 1 : 0;
    OK(sst_keys_at(&k, pos[at]));
    assert_int_equal(k.pos, pos[at]);
    assert_true(kv_eq(k.key, kref(m->r[at].key, m->r[at].klen)));
  }
  if (t->ckb_len) {
    assert_int_equal(sst_keys_blocks_read(&k), 0);
    assert_true(sst_keys_ckb_read(&k) > 0 && sst_keys_ckb_read(&k) <= t->ckb_len);
  } else {
    assert_true(sst_keys_blocks_read(&k) > 0);
    assert_int_equal(sst_keys_ckb_read(&k), 0);
  }
  sst_keys_close(&k);
}

// Single blocks, many at once.
static void check_blocks(struct world *w, struct sst *t, const struct model *m, const sst_pos *pos) {
  struct sst_block_read reads[SST_BLOCKS_MAX];
  uint32_t of[SST_BLOCKS_MAX], nr = 1 + below(SST_BLOCKS_MAX);
  for (uint32_t i = 0; i < nr; i++) {
    of[i] = below(m->nr);
    const uint32_t block = sst_pos_block(pos[of[i]]);
    reads[i] = (struct sst_block_read){.t = t,
                                       .block = block,
                                       .buf = mem_alloc_aligned(BLKIO_ALIGN, sst_block_room(t, block))};
  }
  OK(sst_blocks_read(w->q, reads, nr));
  for (uint32_t i = 0; i < nr; i++) {
    struct kv_rec r;
    block_record(reads[i].data, sst_pos_idx(pos[of[i]]), &r);
    assert_rec(&r, &m->r[of[i]]);
    mem_free(reads[i].buf);
  }
  OK(sst_blocks_read(w->q, reads, 0));
}

static void check_table(struct world *w, uint64_t number, const struct model *m, struct sst_build_opts o,
                        uint64_t size) {
  struct sst *t;
  OK(sst_open(&w->ctx, number, &t));
  assert_int_equal(t->file_size, size);
  assert_int_equal(t->nr_records, m->nr);
  assert_int_equal(t->nr_tombs, m->tombs);
  assert_int_equal(t->key_bytes, m->key_bytes);
  assert_int_equal(t->value_bytes, m->value_bytes);
  // keys that are long and share little have none
  assert_int_equal(t->ckb_len != 0, o.ckeys && m->key_bytes < 1024 * (uint64_t)m->nr);
  assert_int_equal(t->offs != NULL, o.compression != REMIXDB_COMPRESSION_NONE);
  assert_true(kv_eq(t->min, kref(m->r[0].key, m->r[0].klen)));
  assert_true(kv_eq(t->max, kref(m->r[m->nr - 1].key, m->r[m->nr - 1].klen)));
  assert_true(sst_memory(t) > t->nr_pages);
  sst_pos *const pos = positions(t, m->nr);
  check_advance(t, pos, m->nr);
  check_reads(w, t, m, pos, 150);
  check_scan(w, t, m, pos, 0);
  check_scan(w, t, m, pos, 3);
  check_scan(w, t, m, pos, 1 + m->nr / 4);
  check_keys(w, t, m, pos);
  check_single(w, t, m, pos);
  check_blocks(w, t, m, pos);
  table_end(t, pos);
}

// ---- tests

static void test_round_trips(void **state) {
  (void)state;
  for (uint32_t style = 0; style < STYLES; style++) {
    struct model m = model_make((enum style)style, style_nr[style]);
    for (uint32_t v = 0; v < 4; v++) {
      const struct sst_build_opts o = opts(v & 1, v & 2);
      struct world *const home = world_open(env_posix(), 0, (style + v) % 2);
      uint64_t size;
      OK(build(home, 7, &m, o, &size));
      assert_int_equal(files_in(home), 1);
      for (uint32_t c = 0; c < 3; c++) {
        struct world *const w = world_open(env_posix(),
                                           c == 0   ? 0
                                           : c == 1 ? 1u << 20
                                                    : 16u << 20,
                                           (style + v + c) % 3 == 0);
        w->ctx.dir = &home->at;
        check_table(w, 7, &m, o, size);
        world_close(w);
      }
      world_close(home);
    }
    model_free(&m);
  }
}

// One builder makes many tables, some of which are left unfinished, and its figures are right.
static void test_builder(void **state) {
  (void)state;
  struct world *const w = world_open(env_posix(), 4u << 20, false);
  struct model m = model_make(SMALL, 1000);
  for (uint32_t v = 0; v < 4; v++) {
    struct sst_build_opts o = opts(v & 1, v & 2);
    o.max_pages = 5;
    struct sst_build *b;
    OK(sst_build_create(&w->ctx, &o, w->q, &b));
    uint64_t size;
    uint32_t at = 0, tables = 0;
    while (at < m.nr) {
      sst_build_start(b, 99);
      sst_build_add(b, &m.r[0]);
      const uint64_t number = 100 * v + 100 + tables++;
      sst_build_start(b, number);
      assert_int_equal(sst_build_bytes(b), 0);
      struct model part = {.r = m.r + at};
      while (at < m.nr && !sst_build_full(b)) {
        sst_build_add(b, &m.r[at]);
        part.nr++;
        part.tombs += m.r[at].kind;
        part.key_bytes += m.r[at].klen;
        part.value_bytes += m.r[at].vlen;
        at++;
      }
      const uint64_t bytes = sst_build_bytes(b);
      assert_true(bytes > part.key_bytes + part.value_bytes);
      OK(sst_build_finish(b, &size));
      check_table(w, number, &part, o, size);
      struct sst *t;
      OK(sst_open(&w->ctx, number, &t));
      assert_true(t->nr_pages <= 5);
      assert_int_equal(bytes, (uint64_t)t->nr_pages * BLOCK_PAGE);
      atomic_store(&t->obsolete, true);
      sst_ref(t);
      sst_unref(t);
      assert_int_equal(files_in(w), 1);
      sst_unref(t);
      assert_int_equal(files_in(w), 0);
    }
    assert_true(tables > 3);
    sst_build_start(b, 5000);
    sst_build_add(b, &m.r[0]);
    sst_build_destroy(b);
    assert_int_equal(files_in(w), 0);
  }
  // a new table replaces a file that a crash left under its number
  char path[ENV_PATH_MAX];
  table_path(w, 8, path);
  FILE *const f = fopen(path, "w");
  for (uint32_t i = 0; i < 30000; i++) (void)fputs("left over ", f);
  assert_int_equal(fclose(f), 0);
  uint64_t size;
  OK(build(w, 8, &m, opts(true, false), &size));
  check_table(w, 8, &m, opts(true, false), size);
  model_free(&m);
  world_close(w);
}

static uint32_t json_make(char *val, size_t cap, uint32_t table, uint32_t i) {
  return (uint32_t)snprintf(val, cap, "{\"table\": %u, \"name\": \"record %u\", \"kind\": \"something of kind %u\"}",
                            table, i, i % 13);
}

// A block that does not shrink leaves nothing in the builder's compression. Later tables have their own dictionaries.
static void test_builder_after_raw(void **state) {
  (void)state;
  struct world *const w = world_open(env_posix(), 1 << 20, false);
  const struct sst_build_opts o = {.ckeys = true, .compression = REMIXDB_COMPRESSION_ZSTD};
  struct sst_build *b;
  OK(sst_build_create(&w->ctx, &o, w->q, &b));
  enum { TABLES = 6, RAW = 61384 };  // fills its pages, so that no zeros at their end can be compressed
  static const uint32_t counts[TABLES] = {20000, 50, 20000, 20000, 1, 3000};
  uint8_t *const raw = mem_alloc(RAW);
  assert_non_null(raw);
  for (uint64_t i = 0, rng = 7; i + 8 <= RAW; i += 8) store64le(raw + i, rng_next(&rng));
  char key[32], val[256];
  for (uint32_t t = 0; t < TABLES; t++) {
    sst_build_start(b, t + 1);
    for (uint32_t i = 0; i < counts[t]; i++) {
      const uint32_t klen = (uint32_t)snprintf(key, sizeof(key), "key%08u", i);
      const uint32_t vlen = json_make(val, sizeof(val), t, i);
      sst_build_add(b, KV_REC(kref(key, klen), val, vlen, 0));
    }
    sst_build_add(b, KV_REC(kref("z", 1), raw, RAW, 0));
    uint64_t size;
    OK(sst_build_finish(b, &size));
  }
  sst_build_destroy(b);
  for (uint32_t t = 0; t < TABLES; t++) {
    struct sst *table;
    struct sst_scan *scan;
    struct kv_rec r;
    sst_pos pos;
    OK(sst_open(&w->ctx, t + 1, &table));
    OK(sst_scan_create(table, w->q, &scan));
    for (uint32_t i = 0; i < counts[t]; i++) {
      const uint32_t vlen = json_make(val, sizeof(val), t, i);
      OK(sst_scan_next(scan, &r, &pos));
      assert_int_equal(r.vlen, vlen);
      assert_memory_equal(r.val, val, vlen);
    }
    OK(sst_scan_next(scan, &r, &pos));
    assert_int_equal(r.vlen, RAW);
    assert_memory_equal(r.val, raw, RAW);
    FAILS(sst_scan_next(scan, &r, &pos), REMIXDB_NOTFOUND);
    sst_scan_destroy(scan);
    sst_unref(table);
  }
  mem_free(raw);
  world_close(w);
}

// More records than the samples of a dictionary, and more than one large read.
static void test_large(void **state) {
  (void)state;
  struct model m = {.r = calloc(30000, sizeof(struct kv_rec)), .mem = malloc(30000 * 200)};
  for (uint32_t i = 0; i < 30000; i++) {
    uint8_t *const p = m.mem + m.used;
    model_record(&m, 16, 60 + i % 120, false);
    (void)snprintf((char *)p, 17, "user%012u", i * 3);
    for (uint32_t b = 0; b < m.r[i].vlen; b++)
      p[16 + b] = (uint8_t)("{\"name\": \"somebody\", \"city\": "[b % 29] ^ (b % 17 == 3 ? i & 15 : 0));
  }
  uint64_t sizes[2];
  for (uint32_t v = 0; v < 4; v++) {
    struct world *const w = world_open(env_posix(), 2u << 20, v == 3);
    uint64_t size;
    const struct sst_build_opts o = opts(v & 1, v & 2);
    OK(build(w, 3, &m, o, &size));
    sizes[v >> 1] = size;
    check_table(w, 3, &m, o, size);
    if (v == 2) {
      struct sst *t;
      OK(sst_open(&w->ctx, 3, &t));
      assert_non_null(t->dict);
      sst_unref(t);
    }
    world_close(w);
  }
  assert_true(sizes[1] < sizes[0] / 2);
  model_free(&m);
}

// Records out of order, or one twice, make no table, and the builder's next table is good.
static void test_order(void **state) {
  (void)state;
  struct model m = model_make(SMALL, 900);
  struct world *const w = world_open(env_posix(), 0, false);
  for (uint32_t v = 0; v < 4; v++) {
    const struct sst_build_opts o = opts(v & 1, v & 2);
    struct sst_build *b;
    uint64_t size;
    OK(sst_build_create(&w->ctx, &o, w->q, &b));
    for (uint32_t at = 1; at < m.nr; at += 37) {
      const struct kv_rec last = m.r[at - 1], rec = m.r[at];
      m.r[at - 1] = at % 2 ? rec : last;
      m.r[at] = last;
      FAILS(build_with(b, 1, &m, &size), REMIXDB_CORRUPT);
      assert_non_null(strstr(err_msg(), "000001.sst"));
      assert_int_equal(files_in(w), 0);
      m.r[at - 1] = last;
      m.r[at] = rec;
    }
    OK(build_with(b, 1, &m, &size));
    check_table(w, 1, &m, o, size);
    sst_build_destroy(b);
    char path[ENV_PATH_MAX];
    table_path(w, 1, path);
    assert_int_equal(unlink(path), 0);
  }
  world_close(w);
  model_free(&m);
}

static void test_no_memory(void **state) {
  (void)state;
  struct model m = model_make(SMALL, 600);
  for (uint32_t v = 0; v < 4; v++) {
    struct world *const w = world_open(env_posix(), 1u << 20, false);
    uint64_t size;
    enum remixdb_status s = REMIXDB_NOMEM;
    for (int64_t n = 0; s != REMIXDB_OK; n++) {
      fault_mem_set_lasting(n + 1);
      s = build(w, 1, &m, opts(v & 1, v & 2), &size);
      (void)fault_mem_end();
      if (s == REMIXDB_OK) break;
      FAILS(s, REMIXDB_NOMEM);
      assert_int_equal(files_in(w), 0);
      assert_true(n < 1000);
    }
    // a read fails with a status, and the next one is good
    s = REMIXDB_NOMEM;
    int64_t n = 0;
    for (; s != REMIXDB_OK; n++) {
      fault_mem_set_lasting(n + 1);
      s = read_whole(w, 1, &m);
      (void)fault_mem_end();
      if (s != REMIXDB_OK) FAILS(s, REMIXDB_NOMEM);
      assert_true(n < 1000);
    }
    assert_true(n > 5);
    world_close(w);
  }
  model_free(&m);
}

// The disk fails at each call in turn. The builder gives the disk's error, leaves no file, and is good for the next
// table.
static void test_bad_disk(void **state) {
  (void)state;
  struct model m = model_make(SMALL, 9000);
  fault_env_init();
  struct world *const w = world_open(&fault_env, 0, false);
  char path[ENV_PATH_MAX];
  table_path(w, 5, path);
  for (uint32_t v = 0; v < 4; v += 3) {
    const struct sst_build_opts o = opts(v & 1, v & 2);
    struct sst_build *b;
    OK(sst_build_create(&w->ctx, &o, w->q, &b));
    uint64_t size;
    enum remixdb_status s;
    uint64_t n = 1;
    for (;; n++) {
      atomic_store(&fault_calls, 0);
      atomic_store(&fault_at, n);
      s = build_with(b, 5, &m, &size);
      const bool met = atomic_load(&fault_calls) >= n;
      atomic_store(&fault_at, 0);
      if (!met) break;
      if (s == REMIXDB_OK) {  // failed advice does not matter
        OK(read_whole(w, 5, &m));
        assert_int_equal(unlink(path), 0);
        continue;
      }
      assert_true(s == REMIXDB_IO || s == REMIXDB_NOSPACE);
      assert_non_null(strstr(err_msg(), "000005.sst"));
      assert_int_equal(files_in(w), 0);
    }
    OK(s);
    assert_true(n > 4);
    OK(read_whole(w, 5, &m));
    assert_int_equal(unlink(path), 0);
    sst_build_destroy(b);
  }
  world_close(w);
  model_free(&m);
}

// Adds nr records whose keys have klen bytes, the first `shared` of which are the same for all. Returns their bytes.
static uint64_t add_long(struct sst_build *b, uint32_t first, uint32_t nr, uint32_t klen, uint32_t shared,
                         uint32_t vlen) {
  static uint8_t key[REMIXDB_KV_MAX], val[REMIXDB_KV_MAX];
  for (uint32_t i = first; i < first + nr; i++) {
    memset(key, 'k', klen);
    store32le(key + shared, __builtin_bswap32(i));
    for (uint32_t at = shared + 4; at + 8 <= klen; at += 8)
      store64le(key + at, rng_next(&check_seed) & 0x1f1f1f1f1f1f1f1f);
    sst_build_add(b, KV_REC(kref(key, klen), val, vlen, 0));
  }
  return (uint64_t)nr * (klen + vlen);
}

// Keys are written a second time, as compressed keys, only where these take at most 3/10 of the bytes of the blocks.
// Keys that are much of the data and share little are in the file once.
static void test_keys_are_written_once(void **state) {
  (void)state;
  static const struct {
    uint32_t nr, klen, shared, vlen;
    bool ckeys;
  } cases[] = {
      {60, 60000, 0, 100, false},   {1, 60000, 0, 100, false},   {200, 8208, 0, 100, false},
      {200, 8208, 8200, 100, true},  // long prefixes are in it once for a chunk
      {200, 2000, 0, 4000, true},    // the values are larger than the keys
      {3000, 1000, 0, 10, false},   {3000, 1000, 990, 10, true}, {9000, 200, 0, 10, false},
      {9000, 200, 150, 10, true},   {9000, 24, 0, 0, false},  // packed, they are 2/5
      {9000, 24, 0, 4, false},      {9000, 24, 0, 16, true},  // a third, a quarter
      {9000, 24, 0, 100, true},     {20, 200, 0, 10, true},   // a few pages
  };
  struct world *const w = world_open(env_posix(), 1 << 20, false);
  for (uint32_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++)
    for (uint32_t max_pages = 64; max_pages <= 4096; max_pages *= 64) {
      const struct sst_build_opts o = {.ckeys = true, .max_pages = max_pages};
      struct sst_build *b;
      struct sst *t;
      uint64_t size;
      OK(sst_build_create(&w->ctx, &o, w->q, &b));
      for (uint32_t twice = 0; twice < 2; twice++) {  // a builder goes on with its memory
        const uint64_t number = 100 + c * 10 + twice + (max_pages == 64 ? 0 : 1000);
        sst_build_start(b, number);
        const uint64_t bytes = add_long(b, 0, cases[c].nr, cases[c].klen, cases[c].shared, cases[c].vlen);
        OK(sst_build_finish(b, &size));
        OK(sst_open(&w->ctx, number, &t));
        if ((t->ckb_len != 0) != cases[c].ckeys)
          fail_msg("case %u, %u pages: %llu bytes of compressed keys", c, max_pages, (unsigned long long)t->ckb_len);
        if (!cases[c].ckeys) CHECK(2 * size < 3 * bytes + 6 * 65536);  // a third of a block may be empty
        if (!cases[c].ckeys && cases[c].klen == 200) CHECK(size < bytes + bytes / 10);
        CHECK(t->ckb_len <= t->data_size * 3 / 10 || t->ckb_len <= 2 * BLOCK_PAGE);
        sst_unref(t);
      }
      sst_build_destroy(b);
    }
  world_close(w);
}

// The size of the data in the file counts: where values compress to little, keys are most of it.
static void test_keys_beside_compressed_data(void **state) {
  (void)state;
  struct world *const w = world_open(env_posix(), 1 << 20, false);
  for (uint32_t zstd = 0; zstd < 2; zstd++) {
    const struct sst_build_opts o = opts(true, zstd);
    struct sst_build *b;
    struct sst *t;
    uint64_t size;
    OK(sst_build_create(&w->ctx, &o, w->q, &b));
    sst_build_start(b, 1 + zstd);
    const uint64_t bytes = add_long(b, 0, 20000, 24, 0, 100);
    OK(sst_build_finish(b, &size));
    OK(sst_open(&w->ctx, 1 + zstd, &t));
    assert_int_equal(t->ckb_len != 0, !zstd);
    CHECK(zstd ? size < bytes / 4 : size > bytes);
    sst_unref(t);
    sst_build_destroy(b);
  }
  world_close(w);
}

// The 3/10 are of the blocks as a reader has them, the half is of the file. Compressed blocks of keys with a long
// common prefix are small, but whoever reads the records in place of the keys has to decompress them.
static void test_keys_beside_compressed_prefixes(void **state) {
  (void)state;
  struct world *const w = world_open(env_posix(), 1 << 20, false);
  const struct sst_build_opts o = opts(true, true);
  struct sst_build *b;
  struct sst *t;
  uint64_t size;
  OK(sst_build_create(&w->ctx, &o, w->q, &b));
  sst_build_start(b, 1);
  for (uint32_t i = 0; i < 20000; i++) {
    uint8_t key[200], val[8];
    memset(key, 'k', sizeof(key));
    store32le(key + 188, __builtin_bswap32(i));
    store64le(key + 192, rng_next(&check_seed) & 0x1f1f1f1f1f1f1f1f);
    store64le(val, rng_next(&check_seed));
    sst_build_add(b, KV_REC(kref(key, sizeof(key)), val, sizeof(val), 0));
  }
  OK(sst_build_finish(b, &size));
  OK(sst_open(&w->ctx, 1, &t));
  CHECK(10 * t->ckb_len > 3 * t->data_size && 2 * t->ckb_len <= t->data_size);
  sst_unref(t);
  sst_build_destroy(b);
  world_close(w);
}

// Chunks are not packed while the block does not pay. Values that come later can make it pay all the same.
static void test_keys_that_do_not_pay_are_not_packed(void **state) {
  (void)state;
  struct world *const w = world_open(env_posix(), 1 << 20, false);
  uint64_t ckb[2];
  for (uint32_t vlen = 0; vlen <= 100; vlen += 100) {
    const struct sst_build_opts o = {.ckeys = true};
    struct sst_build *b;
    struct sst *t;
    uint64_t size;
    OK(sst_build_create(&w->ctx, &o, w->q, &b));
    sst_build_start(b, 1 + vlen);
    (void)add_long(b, 0, 20000, 24, 0, vlen);
    (void)add_long(b, 20000, 4000, 24, 0, 1000);
    OK(sst_build_finish(b, &size));
    OK(sst_open(&w->ctx, 1 + vlen, &t));
    ckb[vlen / 100] = t->ckb_len;
    sst_unref(t);
    sst_build_destroy(b);
  }
  // all chunks of the second table are packed, and the first one of the other
  CHECK(ckb[1] > 0 && ckb[0] > ckb[1] + ckb[1] / 4);
  world_close(w);
}

// The records that come before an eighth of a full table do not decide alone. Long keys are not packed meanwhile.
static void test_few_long_keys_do_not_decide(void **state) {
  (void)state;
  struct world *const w = world_open(env_posix(), 1 << 20, false);
  struct sst_build *b;
  uint64_t ckb[2];
  OK(sst_build_create(&w->ctx, &(struct sst_build_opts){.ckeys = true}, w->q, &b));
  for (uint32_t nr_long = 0; nr_long <= 10; nr_long += 10) {
    struct sst *t;
    uint64_t size;
    sst_build_start(b, 1 + nr_long);
    (void)add_long(b, 0, nr_long, 60000, 0, 100);
    (void)add_long(b, 10, 40000, 24, 0, 100);
    OK(sst_build_finish(b, &size));
    OK(sst_open(&w->ctx, 1 + nr_long, &t));
    ckb[nr_long / 10] = t->ckb_len;
    sst_unref(t);
  }
  CHECK(ckb[0] > 0 && ckb[1] > ckb[0] + 10 * 59000);
  sst_build_destroy(b);
  world_close(w);
}

// Returns the bytes of compressed keys of a table of such records.
static uint64_t keys_of(struct world *w, uint64_t number, bool brief, uint32_t nr, uint32_t vlen, bool *packed_out) {
  const struct sst_build_opts o = {.ckeys = true, .brief = brief};
  struct sst_build *b;
  struct sst *t;
  uint64_t size;
  OK(sst_build_create(&w->ctx, &o, w->q, &b));
  sst_build_start(b, number);
  (void)add_long(b, 0, nr, 24, 0, vlen);
  OK(sst_build_finish(b, &size));
  OK(sst_open(&w->ctx, number, &t));
  *packed_out = keys_packed(t);
  const uint64_t len = t->ckb_len;
  sst_unref(t);
  sst_build_destroy(b);
  return len;
}

// Small keys of a table that will be merged soon are not packed; keys that are an eighth of the data or more are.
static void test_keys_of_a_brief_table(void **state) {
  (void)state;
  struct world *const w = world_open(env_posix(), 1 << 20, false);
  bool packed;
  for (uint32_t nr = 60; nr <= 6000; nr *= 10) {
    const uint64_t hard = keys_of(w, nr, false, nr, 200, &packed);
    CHECK(packed);
    const uint64_t plain = keys_of(w, nr + 1, true, nr, 200, &packed);
    CHECK(!packed && plain > hard && plain < 200 * (uint64_t)nr / 8);
    const uint64_t less = keys_of(w, nr + 2, true, nr, 20, &packed);
    CHECK(packed && less < plain);
  }
  world_close(w);
}

int main(void) {
  (void)check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_round_trips),
      cmocka_unit_test(test_builder),
      cmocka_unit_test(test_builder_after_raw),
      cmocka_unit_test(test_large),
      cmocka_unit_test(test_order),
      cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_bad_disk),
      cmocka_unit_test(test_keys_are_written_once),
      cmocka_unit_test(test_keys_beside_compressed_data),
      cmocka_unit_test(test_keys_beside_compressed_prefixes),
      cmocka_unit_test(test_keys_that_do_not_pay_are_not_packed),
      cmocka_unit_test(test_few_long_keys_do_not_decide),
      cmocka_unit_test(test_keys_of_a_brief_table),
  };
  return check_seed_end(cmocka_run_group_tests(tests, root_setup, root_teardown));
}
