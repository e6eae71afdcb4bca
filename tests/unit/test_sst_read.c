// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "table/ckb.h"
#include "table/format.h"
#include "table/batch.h"
#include "table/build.h"
#include "table/scan.h"
#include "table/readahead.h"
#include "table/stored.h"
#include "tests/lib/paths.h"

#define STORE_ID 0x1122334455667788ull

static uint32_t below(uint32_t n) { return (uint32_t)(rng_next(&check_seed) % n); }

// ---- a disk that fails at the n-th call that changes something

static struct env_ops fault_ops;
static struct env fault_env;
static _Atomic uint64_t fault_at, fault_calls;  // 0: never
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

// ---- allocation that fails after some

static _Atomic int64_t allowed;
static bool allow_some(size_t size) {
  (void)size;
  return atomic_fetch_sub(&allowed, 1) > 0;
}
static void allow(int64_t nr) {
  atomic_store(&allowed, nr);
  atomic_store(&mem_fault, allow_some);
}
static void allow_all(void) { atomic_store(&mem_fault, NULL); }

// ---- a store's surroundings

struct world {
  char dir[256];
  struct env_dir at;  // the same, held
  struct blkio io;
  struct blkio_queue *q;
  struct fdpool *fds;
  struct epoch epoch;
  struct epoch_slot slot;
  struct cache *cache;
  struct sst_ctx ctx;
};

static char root[200];

static struct world *world_open(struct env *env, size_t cache_size, bool direct) {
  static uint32_t nr;
  struct world *const w = mem_alloc_aligned(CACHE_LINE, sizeof(*w));
  assert_non_null(w);
  memset(w, 0, sizeof(*w));
  (void)snprintf(w->dir, sizeof(w->dir), "%s/%u", root, nr++);
  assert_int_equal(mkdir(w->dir, 0700), 0);
  OK(env_dir_open(ENV_PATHS(env), w->dir, &w->at));
  blkio_init(&w->io, env, (enum blkio_kind)(nr % 4));
  OK(blkio_queue_create(&w->io, &w->q));
  OK(fdpool_create(env, 16, &w->fds));
  epoch_init(&w->epoch);
  epoch_join(&w->epoch, &w->slot);
  if (cache_size) OK(cache_create(cache_size, &w->epoch, &w->cache));
  w->ctx = (struct sst_ctx){.env = env, .dir = &w->at, .io = &w->io, .cache = w->cache, .fds = w->fds};
  w->ctx.store_id = STORE_ID;
  w->ctx.direct_io = direct;
  return w;
}

static bool count_name(void *arg, const char *name) {
  (void)name;
  ++*(uint32_t *)arg;
  return true;
}
static uint32_t files_in(const struct world *w) {
  uint32_t nr = 0;
  OK(paths_list(env_posix(), w->dir, count_name, &nr));
  return nr;
}

static bool remove_name(void *arg, const char *name) {
  char path[1024];
  (void)snprintf(path, sizeof(path), "%s/%s", (const char *)arg, name);
  (void)unlink(path);
  return true;
}
static void world_close(struct world *w) {
  epoch_leave(&w->epoch, &w->slot);
  cache_destroy(w->cache);
  epoch_fini(&w->epoch);
  fdpool_destroy(w->fds);
  blkio_queue_destroy(w->q);
  env_dir_close(&w->at);
  OK(paths_list(env_posix(), w->dir, remove_name, w->dir));
  assert_int_equal(rmdir(w->dir), 0);
  mem_free(w);
}

// ---- records to build from

struct model {
  struct kv_rec *r;
  uint32_t nr;
  uint64_t tombs, key_bytes, value_bytes;
  uint8_t *mem;
  size_t used;
};

enum style { SMALL, TINY, MIXED, EXACT, LONG_KEYS, ONE, TEXT, STYLES };
static const uint32_t style_nr[STYLES] = {900, 2000, 120, 60, 40, 1, 1500};

static void model_add(struct model *m, uint32_t klen, uint32_t vlen, bool tomb) {
  struct kv_rec *const r = &m->r[m->nr++];
  uint8_t *const p = m->mem + m->used;
  *r = (struct kv_rec){.key = p, .klen = klen, .val = p + klen, .vlen = tomb ? 0 : vlen, .tomb = tomb};
  m->used += klen + r->vlen;
  m->tombs += tomb;
  m->key_bytes += klen;
  m->value_bytes += r->vlen;
}

// Keys ascend by a counter of `width` bytes in front.
static struct model model_make(enum style style, uint32_t nr) {
  const bool large = style == MIXED || style == EXACT || style == LONG_KEYS;
  struct model m = {.r = calloc(nr, sizeof(struct kv_rec)), .mem = malloc((size_t)nr * (large ? 66000 : 400))};
  const uint32_t width = style == TINY ? 2 : 4;
  for (uint32_t i = 0; i < nr; i++) {
    uint32_t klen = 16, vlen = below(200);
    bool tomb = below(8) == 0;
    switch (style) {
      case TINY:
        klen = i % 7 ? 2 : 2 + below(3);
        vlen = 0;
        tomb = i % 5 != 0;
        break;
      case MIXED:
        klen = 4 + below(below(4) ? 30 : 3000);
        vlen = below(below(3) ? 6000 : REMIXDB_KV_MAX - klen + 1);
        break;
      case EXACT: {  // pages filled to the last byte, or one less, or one more
        const uint32_t pages = 1 + below(15), size = pages * BLOCK_PAGE - BLOCK_HEAD - 2 + below(3) - 1;
        tomb = false;
        vlen = size - klen;
        while (kv_rec_size(klen, vlen, false) > size) vlen--;
        break;
      }
      case LONG_KEYS:
        klen = i == nr - 1 ? REMIXDB_KV_MAX : 4 + below(20000);
        vlen = below(10) * (klen < 60000);
        break;
      case TEXT: vlen = 100 + below(200); break;
      default: break;
    }
    if (i == 0 && style != ONE) klen = 0, vlen = vlen > 60000 ? 60000 : vlen;  // the empty key comes first
    if (i == 0 && style == EXACT) vlen = 4000;
    uint8_t *const k = m.mem + m.used;
    model_add(&m, klen, vlen, tomb);
    if (klen) {
      for (uint32_t b = 0; b < width; b++) k[b] = (uint8_t)(i >> 8 * (width - 1 - b));
      memset(k + width, 'k', klen - width);
      if (klen > width + 2) store16le(k + klen - 2, below(65536));
    }
    uint8_t *const v = k + klen;
    const uint32_t n = m.r[i].vlen;
    const bool text = style == TEXT || i % 2;
    for (uint32_t b = 0; b < n; b++)
      v[b] = (uint8_t)(text ? (uint64_t) "some words that come again "[(b + i) % 27] : rng_next(&check_seed));
  }
  return m;
}

static void model_free(struct model *m) {
  free(m->r);
  free(m->mem);
}

static struct sst_build_opts opts(bool ckeys, bool zstd) {
  return (struct sst_build_opts){.ckeys = ckeys,
                                 .compression = zstd ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE};
}

static enum remixdb_status build_with(struct sst_build *b, uint64_t number, const struct model *m, uint64_t *size_out) {
  sst_build_start(b, number);
  for (uint32_t i = 0; i < m->nr; i++) sst_build_add(b, &m->r[i]);
  return sst_build_finish(b, size_out);
}

static enum remixdb_status build(struct world *w, uint64_t number, const struct model *m, struct sst_build_opts o,
                                 uint64_t *size_out) {
  struct sst_build *b;
  enum remixdb_status s = sst_build_create(&w->ctx, &o, w->q, &b);
  if (s != REMIXDB_OK) return s;
  s = build_with(b, number, m, size_out);
  sst_build_destroy(b);
  return s;
}

static void assert_rec(const struct kv_rec *a, const struct kv_rec *b) {
  assert_int_equal(a->klen, b->klen);
  assert_int_equal(a->vlen, b->vlen);
  assert_int_equal(a->tomb, b->tomb);
  assert_true(kv_eq(kref(a->key, a->klen), kref(b->key, b->klen)));
  assert_true(kv_eq(kref(a->val, a->vlen), kref(b->val, b->vlen)));
}

// The position of each record, from the counts alone.
static sst_pos *positions(const struct sst *t, uint32_t nr) {
  sst_pos *const pos = calloc(nr + 1, sizeof(*pos));
  uint32_t n = 0;
  for (uint32_t block = 0; block < t->nr_pages; block++)
    for (uint32_t i = 0; i < t->nr_recs[block]; i++) {
      assert_true(n < nr);
      pos[n++] = sst_pos_make(block, i);
    }
  assert_int_equal(n, nr);
  pos[n] = sst_end(t);
  return pos;
}

static void check_advance(const struct sst *t, const sst_pos *pos, uint32_t nr) {
  for (uint32_t i = 0; i < nr; i++) assert_int_equal(sst_advance(t, pos[i], 1), pos[i + 1]);
  for (uint32_t i = 0; i < 300; i++) {
    const uint32_t from = below(nr + 1), n = below(below(2) ? 5 : nr + 10);
    assert_int_equal(sst_advance(t, pos[from], n), pos[from + n < nr ? from + n : nr]);
  }
}

// Reads some of what begins there ahead.
static void read_on(struct sst *t, uint32_t block, struct sst_hold *h) {
  const uint32_t left = t->nr_pages - block, nr = 1 + below(40);
  sst_hold_readahead(t, block, nr < left ? nr : left, h);
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
    // what is pinned stays when the epoch is left
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
    const enum remixdb_status st = sst_scan_next(s, &r, &p);
    if (st == REMIXDB_NOTFOUND) break;
    OK(st);
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
    assert_int_equal(k.tomb, m->r[i].tomb);
    assert_int_equal(k.pos, pos[i]);
    const uint32_t shared = i ? kv_lcp_from(kref(m->r[i - 1].key, m->r[i - 1].klen), k.key, 0) : 0;
    assert_int_equal(k.shared, shared);
  }
  FAILS(sst_keys_next(&k), REMIXDB_NOTFOUND);
  assert_int_equal(sst_keys_blocks_read(&k), t->ckb_len ? 0 : t->nr_pages);
  sst_keys_close(&k);
}

// Single keys in any order, but mostly forward; and single blocks, in batches.
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
  assert_int_equal(t->ckb_len != 0, o.ckeys);
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
  free(pos);
  sst_unref(t);
}

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

// One builder for many tables, with the builder's figures, and left unfinished in between.
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
        part.tombs += m.r[at].tomb;
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
  // what a crash left under the number is replaced
  char path[400];
  (void)snprintf(path, sizeof(path), "%s/000008.sst", w->dir);
  FILE *const f = fopen(path, "w");
  for (uint32_t i = 0; i < 30000; i++) (void)fputs("left over ", f);
  assert_int_equal(fclose(f), 0);
  uint64_t size;
  OK(build(w, 8, &m, opts(true, false), &size));
  check_table(w, 8, &m, opts(true, false), size);
  model_free(&m);
  world_close(w);
}

// More than the samples of a dictionary, and more than one large read.
// A block that does not shrink leaves nothing behind in the builder's compression: the tables after it have
// dictionaries of their own.
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
      const uint32_t vlen = (uint32_t)
          snprintf(val, sizeof(val), "{\"table\": %u, \"name\": \"record %u\", \"kind\": \"something of kind %u\"}", t,
                   i, i % 13);
      sst_build_add(b, &(struct kv_rec){(const uint8_t *)key, (const uint8_t *)val, klen, vlen, false});
    }
    sst_build_add(b, &(struct kv_rec){(const uint8_t *)"z", raw, 1, RAW, false});
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
      const uint32_t vlen = (uint32_t)
          snprintf(val, sizeof(val), "{\"table\": %u, \"name\": \"record %u\", \"kind\": \"something of kind %u\"}", t,
                   i, i % 13);
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

static void test_large(void **state) {
  (void)state;
  struct model m = {.r = calloc(30000, sizeof(struct kv_rec)), .mem = malloc(30000 * 200)};
  for (uint32_t i = 0; i < 30000; i++) {
    uint8_t *const p = m.mem + m.used;
    model_add(&m, 16, 60 + i % 120, false);
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
      assert_non_null(t->zdict);
      sst_unref(t);
    }
    world_close(w);
  }
  assert_true(sizes[1] < sizes[0] / 2);
  model_free(&m);
}

// Holds while the cache turns over several times between their epochs.
static void test_holds(void **state) {
  (void)state;
  struct model m = model_make(TEXT, 20000);
  for (uint32_t v = 0; v < 4; v++) {
    struct world *const w = world_open(env_posix(), v & 1 ? 1u << 20 : 0, false);
    uint64_t size;
    struct sst *t;
    OK(build(w, 1, &m, opts(false, v & 2), &size));
    OK(sst_open(&w->ctx, 1, &t));
    assert_true((uint64_t)t->nr_pages * BLOCK_PAGE > 3u << 20);
    sst_pos *const pos = positions(t, m.nr);
    struct sst_hold pinned[8] = {0}, loose = {0}, other = {0};
    struct kv_rec kept[8], r;
    uint32_t at[8];
    for (uint32_t round = 0; round < 3; round++) {
      epoch_enter(&w->epoch, &w->slot);
      for (uint32_t i = 0; i < 8; i++) {
        at[i] = below(m.nr);
        OK(sst_read(t, pos[at[i]], true, &pinned[i], &kept[i]));
      }
      const uint32_t here = below(m.nr);
      OK(sst_read(t, pos[here], false, &loose, &r));
      epoch_exit(&w->slot);
      for (uint32_t i = 0; i < m.nr; i += 5) {
        epoch_enter(&w->epoch, &w->slot);
        OK(sst_read(t, pos[i], i % 10 == 0, &other, &r));
        assert_rec(&r, &m.r[i]);
        epoch_exit(&w->slot);
      }
      for (uint32_t i = 0; i < 8; i++) assert_rec(&kept[i], &m.r[at[i]]);
      epoch_enter(&w->epoch, &w->slot);
      OK(sst_read(t, pos[here], false, &loose, &r));
      assert_rec(&r, &m.r[here]);
      epoch_exit(&w->slot);
    }
    for (uint32_t i = 0; i < 8; i++) sst_hold_fini(&pinned[i]);
    sst_hold_fini(&loose);
    sst_hold_fini(&other);
    free(pos);
    sst_unref(t);
    world_close(w);
  }
  model_free(&m);
}

// A block that was read ahead is not read again.
static void test_prefetch(void **state) {
  (void)state;
  struct model m = model_make(MIXED, 120);
  for (uint32_t v = 0; v < 2; v++) {
    struct world *const w = world_open(env_posix(), 32u << 20, false);
    uint64_t size;
    struct sst *t;
    OK(build(w, 1, &m, opts(false, v), &size));
    OK(sst_open(&w->ctx, 1, &t));
    assert_true(t->nr_pages > 2 * BLKIO_BATCH_MAX);
    sst_pos *const pos = positions(t, m.nr);
    struct sst_hold h = {0};
    struct kv_rec r;
    epoch_enter(&w->epoch, &w->slot);
    // one in the midst is there already
    OK(sst_read(t, pos[sst_pos_block(pos[9]) < 40 ? 9 : 2], false, &h, &r));
    atomic_store(&t->cache.slots[0], CACHE_MISSED | 1);  // nor is one that has been missed before
    sst_readahead(t, w->q, 0, BLKIO_BATCH_MAX);
    struct cache_stats before, after;
    cache_stats(w->cache, &before);
    uint32_t i = 0;
    for (; sst_pos_block(pos[i]) < BLKIO_BATCH_MAX; i++) {
      OK(sst_read(t, pos[i], false, &h, &r));
      assert_rec(&r, &m.r[i]);
    }
    cache_stats(w->cache, &after);
    assert_int_equal(before.misses, after.misses);
    OK(sst_read(t, pos[i], false, &h, &r));
    cache_stats(w->cache, &after);
    assert_int_equal(before.misses + 1, after.misses);
    epoch_exit(&w->slot);
    sst_hold_fini(&h);
    free(pos);
    sst_unref(t);
    world_close(w);
  }
  model_free(&m);
}

static uint64_t reads_of(const struct world *w) { return atomic_load(&w->io.nr_reads); }

static void ahead_is(struct sst *t, const struct model *m, const sst_pos *pos, uint32_t at, struct sst_hold *h) {
  struct kv_rec r;
  OK(sst_read(t, pos[at], below(2), h, &r));
  assert_rec(&r, &m->r[at]);
}

// One read for all blocks that begin in the pages, from whatever block on: they need no other, in any order and in
// whatever epoch; what lies behind them, and the same pages of another table, do.
static void test_ahead(void **state) {
  (void)state;
  struct model m[2] = {model_make(MIXED, 120), model_make(MIXED, 120)};
  for (uint32_t v = 0; v < 8; v++) {
    struct world *const w = world_open(env_posix(), v & 4 ? 32u << 20 : 0, v & 2);
    struct sst *t[2];
    sst_pos *pos[2];
    for (uint32_t k = 0; k < 2; k++) {
      uint64_t size;
      OK(build(w, 1 + k, &m[k], opts(false, v & 1), &size));
      OK(sst_open(&w->ctx, 1 + k, &t[k]));
      pos[k] = positions(t[k], m[k].nr);
    }
    struct sst_hold h = {0};
    for (uint32_t i = 0; i < m[0].nr; i++) {
      const uint32_t block = sst_pos_block(pos[0][i]), left = t[0]->nr_pages - block,
                     n = 1 + below(left < BLKIO_BATCH_MAX ? left : BLKIO_BATCH_MAX);
      epoch_enter(&w->epoch, &w->slot);
      uint64_t reads = reads_of(w);
      sst_hold_readahead(t[0], block, n, &h);
      assert_int_equal(reads_of(w), ++reads);
      uint32_t last = i;
      while (last + 1 < m[0].nr && sst_pos_block(pos[0][last + 1]) < block + n) last++;
      for (uint32_t k = i; k <= last; k++) ahead_is(t[0], &m[0], pos[0], k, &h);
      for (uint32_t k = 0; k < 3; k++) {
        ahead_is(t[0], &m[0], pos[0], i + below(last - i + 1), &h);
        assert_false(h.cb.pinned);
        epoch_exit(&w->slot);
        epoch_enter(&w->epoch, &w->slot);
      }
      assert_int_equal(reads_of(w), reads);
      if (!(v & 4)) {
        ahead_is(t[1], &m[1], pos[1], i, &h);
        assert_int_equal(reads_of(w), ++reads);
        if (last + 1 < m[0].nr) {
          ahead_is(t[0], &m[0], pos[0], last + 1, &h);
          assert_int_equal(reads_of(w), ++reads);
        }
        ahead_is(t[0], &m[0], pos[0], last, &h);  // it is still there
        assert_int_equal(reads_of(w), reads);
      }
      epoch_exit(&w->slot);
    }
    if (v & 4) {  // the cache has learned nothing of it
      struct cache_stats st;
      cache_stats(w->cache, &st);
      assert_int_equal(st.used, 0);
      assert_int_equal(st.misses, 0);
      // what was pinned is not when the hold goes on to what was read ahead
      epoch_enter(&w->epoch, &w->slot);
      sst_hold_readahead(t[0], 0, 1, &h);
      struct kv_rec r;
      OK(sst_read(t[1], pos[1][0], true, &h, &r));
      const uint32_t frame = h.cb.frame;
      assert_true(h.cb.pinned);
      ahead_is(t[0], &m[0], pos[0], 0, &h);
      assert_false(h.cb.pinned);
      assert_int_equal(atomic_load(&w->cache->marks[frame]) & ~CACHE_USED, 0);
      epoch_exit(&w->slot);
    }
    // the hold goes to the other table
    epoch_enter(&w->epoch, &w->slot);
    sst_hold_readahead(t[1], 0, 1, &h);
    assert_true(sst_holds_ahead(&h, t[1], 0));
    assert_false(sst_holds_ahead(&h, t[0], 0));
    ahead_is(t[1], &m[1], pos[1], 0, &h);
    epoch_exit(&w->slot);
    sst_hold_fini(&h);
    for (uint32_t k = 0; k < 2; k++) {
      free(pos[k]);
      sst_unref(t[k]);
    }
    world_close(w);
  }
  for (uint32_t k = 0; k < 2; k++) model_free(&m[k]);
}

// Without memory, or when the read fails, nothing is there ahead, and what is held no more is not said to be.
static void test_ahead_fails(void **state) {
  (void)state;
  struct model m = model_make(TEXT, 1500);
  for (uint32_t v = 0; v < 4; v++) {
    struct world *const w = world_open(env_posix(), v & 2 ? 1u << 20 : 0, false);
    uint64_t size;
    struct sst *t;
    OK(build(w, 1, &m, opts(false, v & 1), &size));
    OK(sst_open(&w->ctx, 1, &t));
    sst_pos *const pos = positions(t, m.nr);
    struct sst_hold h = {0};
    struct kv_rec r;
    const uint32_t block = sst_pos_block(pos[m.nr / 2]), nr = 8;
    assert_true(block + nr < t->nr_pages);
    for (int64_t n = 0;; n++) {
      assert_true(n < 20);
      epoch_enter(&w->epoch, &w->slot);
      ahead_is(t, &m, pos, m.nr - 1, &h);
      allow(n);
      sst_hold_readahead(t, block, nr, &h);
      const bool ahead = sst_holds_ahead(&h, t, block);
      const enum remixdb_status s = sst_read(t, pos[m.nr / 2], true, &h, &r);
      const bool all = atomic_load(&allowed) > 0;
      allow_all();
      assert_true(s == REMIXDB_OK || s == REMIXDB_NOMEM);
      assert_int_equal(sst_holds(&h, t, block), s == REMIXDB_OK);
      for (uint32_t i = 0; i < nr; i++) assert_int_equal(sst_holds_ahead(&h, t, block + i), ahead);
      if (s == REMIXDB_OK) assert_rec(&r, &m.r[m.nr / 2]);
      ahead_is(t, &m, pos, m.nr / 2, &h);
      sst_hold_readahead(t, block, nr, &h);  // the next time it can be had
      assert_true(sst_holds_ahead(&h, t, block));
      ahead_is(t, &m, pos, m.nr / 2, &h);
      epoch_exit(&w->slot);
      sst_hold_fini(&h);
      if (!all) continue;
      assert_true(ahead && s == REMIXDB_OK);
      break;
    }
    // a damaged block among others: they are good, and who comes to it is told
    const uint32_t bad = sst_pos_block(pos[m.nr / 2 + 40]);
    assert_true(bad > block && bad < block + 32 && block + 32 < t->nr_pages);
    const int fd = open(t->path, O_RDWR);
    const off_t at = t->offs ? (off_t)t->offs[bad] + 9 : (off_t)bad * BLOCK_PAGE + 200;
    uint8_t was, now;
    assert_int_equal(pread(fd, &was, 1, at), 1);
    now = was ^ 4;
    assert_int_equal(pwrite(fd, &now, 1, at), 1);
    epoch_enter(&w->epoch, &w->slot);
    sst_hold_readahead(t, block, 32, &h);
    for (uint32_t i = m.nr / 2; sst_pos_block(pos[i]) < block + 32; i++) {
      if (sst_pos_block(pos[i]) != bad) {
        ahead_is(t, &m, pos, i, &h);
        continue;
      }
      FAILS(sst_read(t, pos[i], true, &h, &r), REMIXDB_CORRUPT);
      assert_non_null(strstr(err_msg(), "000001.sst"));
      assert_false(sst_holds(&h, t, bad));
    }
    // the file ends there: nothing ahead, and each read says so
    assert_int_equal(ftruncate(fd, (off_t)BLOCK_PAGE), 0);
    sst_hold_readahead(t, block, nr, &h);
    assert_false(sst_holds_ahead(&h, t, block));
    assert_false(sst_holds(&h, t, block));
    assert_int_equal(sst_read(t, pos[m.nr / 2], true, &h, &r), v & 2 ? REMIXDB_OK : REMIXDB_CORRUPT);  // it was cached
    epoch_exit(&w->slot);
    assert_int_equal(close(fd), 0);
    sst_hold_fini(&h);
    free(pos);
    sst_unref(t);
    world_close(w);
  }
  model_free(&m);
}

// ---- damage

static uint8_t *slurp(const char *path, size_t *len_out) {
  uint8_t *buf;
  OK(paths_read_file(ENV_PATHS(env_posix()), path, 64u << 20, &buf, len_out));
  uint8_t *const copy = malloc(*len_out);
  memcpy(copy, buf, *len_out);
  mem_free(buf);
  return copy;
}

// Written over in place: some file systems sync a file that is truncated and written again.
static void spill(const char *path, const uint8_t *buf, size_t len) {
  const int fd = open(path, O_WRONLY | O_CREAT, 0600);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, buf, len), (ssize_t)len);
  assert_int_equal(close(fd), 0);
}

// Opens the table and reads all of it, in each way; the first error. When m is given, what is read must be that.
static enum remixdb_status read_whole(struct world *w, uint64_t number, const struct model *m) {
  struct sst *t;
  enum remixdb_status s = sst_open(&w->ctx, number, &t);
  if (s != REMIXDB_OK) return s;
  struct kv_rec r;
  struct sst_hold h = {0};
  uint32_t i = 0;
  epoch_enter(&w->epoch, &w->slot);
  sst_readahead(t, w->q, 0, BLKIO_BATCH_MAX);
  const bool ahead = below(2);
  for (sst_pos p = 0; s == REMIXDB_OK && p != sst_end(t); p = sst_advance(t, p, 1)) {
    if (ahead && !sst_holds(&h, t, sst_pos_block(p)) && !sst_holds_ahead(&h, t, sst_pos_block(p)))
      read_on(t, sst_pos_block(p), &h);
    s = sst_read(t, p, false, &h, &r);
    if (s == REMIXDB_OK && m) assert_rec(&r, &m->r[i]);
    i++;
  }
  epoch_exit(&w->slot);
  sst_hold_fini(&h);
  struct sst_scan *scan = NULL;
  if (s == REMIXDB_OK) s = sst_scan_create(t, w->q, &scan);
  i = 0;
  if (s == REMIXDB_OK) {
    sst_pos p;
    while ((s = sst_scan_next(scan, &r, &p)) == REMIXDB_OK) {
      if (m) assert_rec(&r, &m->r[i]);
      i++;
    }
    if (s == REMIXDB_NOTFOUND) s = REMIXDB_OK;
  }
  sst_scan_destroy(scan);
  if (s == REMIXDB_OK) {
    struct sst_keys k;
    s = sst_keys_open(t, w->q, &k);
    i = 0;
    if (s == REMIXDB_OK) {
      while ((s = sst_keys_next(&k)) == REMIXDB_OK) {
        if (m) assert_true(kv_eq(k.key, kref(m->r[i].key, m->r[i].klen)));
        i++;
      }
      if (s == REMIXDB_NOTFOUND) s = REMIXDB_OK;
      sst_keys_close(&k);
    }
  }
  sst_unref(t);
  return s;
}

// ---- many blocks at once

struct many {
  struct sst *t[2];
  sst_pos *pos[2];
  const struct model *m;
  struct sst_batch *batch;
  struct sst_hold holds[SST_BATCH_MAX];
  uint32_t nr;
};

// Wants up to SST_BATCH_MAX blocks of both tables, in order.
static void many_want(struct many *x) {
  x->nr = 0;
  const uint32_t limit = below(4) ? 1 + below(SST_BATCH_MAX) : SST_BATCH_MAX, sparse = 1 + below(5);
  for (uint32_t k = 0; k < 2; k++) {
    for (uint32_t block = 0; block < x->t[k]->nr_pages && x->nr < limit; block++) {
      if (!x->t[k]->nr_recs[block] || below(sparse)) continue;
      x->batch->requests[x->nr] = (struct sst_request){.sst = x->t[k], .block = block, .hold = &x->holds[x->nr]};
      x->nr++;
    }
  }
}

// Adds what is wanted, at once or in parts.
static enum remixdb_status many_read(struct many *x, struct world *w) {
  sst_batch_begin(x->batch, w->q);
  const uint32_t most = below(2) ? SST_BATCH_MAX : 1 + below(40);
  for (uint32_t at = 0, step; at < x->nr; at += step) {
    step = x->nr - at < most ? x->nr - at : most;
    sst_batch_add(x->batch, step);
  }
  return sst_batch_end(x->batch);
}

// The records of every block that was had are right, and the holds are good for sst_read.
static void many_check(const struct many *x) {
  uint32_t r = 0;
  for (uint32_t i = 0; i < x->nr; i++) {
    const struct sst_request *const w = &x->batch->requests[i];
    if (w->status != REMIXDB_OK) {
      assert_null(w->hold->cb.data);
      assert_null(w->hold->sst);
      continue;
    }
    const uint8_t *const data = w->hold->cb.data;
    const bool own = w->hold->cb.frame == 0;
    const sst_pos *const pos = x->pos[w->sst == x->t[1]];
    assert_non_null(data);
    if (i == 0 || w->sst != x->batch->requests[i - 1].sst) r = 0;
    while (sst_pos_block(pos[r]) < w->block) r++;
    for (; sst_pos_block(pos[r]) == w->block; r++) {  // the last position is the table's end
      struct kv_rec rec;
      block_record(data, sst_pos_idx(pos[r]), &rec);
      assert_rec(&rec, &x->m->r[r]);
      OK(sst_read(w->sst, pos[r], false, w->hold, &rec));
      assert_rec(&rec, &x->m->r[r]);
      if (own) assert_ptr_equal(w->hold->cb.data, data);  // without another read
    }
  }
}

static void many_drop(struct many *x) {
  for (uint32_t i = 0; i < SST_BATCH_MAX; i++) {
    if (below(2)) sst_hold_fini(&x->holds[i]);
    else sst_hold_drop(&x->holds[i]);
  }
}

static void many_open(struct many *x, struct world *w, const struct model *m, bool zstd) {
  memset(x, 0, sizeof(*x));
  x->m = m;
  x->batch = malloc(sizeof(*x->batch));
  for (uint32_t k = 0; k < 2; k++) {
    uint64_t size;
    OK(build(w, 1 + k, m, opts(false, zstd && k == 0), &size));
    OK(sst_open(&w->ctx, 1 + k, &x->t[k]));
    x->pos[k] = positions(x->t[k], m->nr);
  }
}

static void many_close(struct many *x) {
  for (uint32_t i = 0; i < SST_BATCH_MAX; i++) sst_hold_fini(&x->holds[i]);
  for (uint32_t k = 0; k < 2; k++) {
    free(x->pos[k]);
    sst_unref(x->t[k]);
  }
  free(x->batch);
}

static void test_many(void **state) {
  (void)state;
  static const struct {
    size_t cache;
    uint32_t model;
    bool direct, zstd;
  } ways[] = {{0, 0, false, false},        {100 << 10, 1, true, true}, {1 << 20, 0, true, true},
              {32 << 20, 1, false, false}, {0, 1, true, true},         {100 << 10, 0, false, false},
              {1 << 20, 1, false, true},   {32 << 20, 0, true, false}, {0, 0, true, true},
              {32 << 20, 1, true, true}};
  struct model models[] = {model_make(MIXED, 100), model_make(TEXT, 3000)};
  struct many x;
  for (uint32_t v = 0; v < sizeof(ways) / sizeof(ways[0]); v++) {
    struct world *const w = world_open(env_posix(), ways[v].cache, ways[v].direct);
    many_open(&x, w, &models[ways[v].model], ways[v].zstd);
    for (uint32_t round = 0; round < 4; round++) {
      const uint64_t reads = atomic_load(&w->io.nr_reads);
      epoch_enter(&w->epoch, &w->slot);
      many_want(&x);
      OK(many_read(&x, w));
      if (!ways[v].cache) assert_int_equal(atomic_load(&w->io.nr_reads), reads + x.nr);
      for (uint32_t i = 0; i < x.nr; i++) OK(x.batch->requests[i].status);
      many_check(&x);
      if (ways[v].cache == 32 << 20) {  // a cache that has room keeps them
        const uint64_t before = atomic_load(&w->io.nr_reads);
        OK(many_read(&x, w));
        assert_int_equal(atomic_load(&w->io.nr_reads), before);
        many_check(&x);
      }
      epoch_exit(&w->slot);
      many_drop(&x);
    }
    many_close(&x);
    world_close(w);
  }
  for (uint32_t i = 0; i < 2; i++) model_free(&models[i]);
}

static bool deny_large(size_t size) { return size <= 128u << 10; }

// There is no memory to read so many at once, but to read each: that is how they are had, and what was taken before is
// given back.
static void test_many_one_by_one(void **state) {
  (void)state;
  struct model m = model_make(TEXT, 3000);
  struct world *const w = world_open(env_posix(), 0, false);
  struct many x;
  many_open(&x, w, &m, true);
  epoch_enter(&w->epoch, &w->slot);
  for (x.nr = 0; x.nr < 100; x.nr++)
    x.batch->requests[x.nr] = (struct sst_request){.sst = x.t[0], .block = x.nr, .hold = &x.holds[x.nr]};
  for (uint32_t round = 0; round < 2; round++) {
    const uint64_t reads = atomic_load(&w->io.nr_reads);
    atomic_store(&mem_fault, deny_large);
    OK(many_read(&x, w));
    atomic_store(&mem_fault, NULL);
    assert_int_equal(atomic_load(&w->io.nr_reads), reads + x.nr);
    many_check(&x);
    many_drop(&x);
  }
  epoch_exit(&w->slot);
  many_close(&x);
  world_close(w);
  model_free(&m);
}

// Some blocks cannot be had: they say so, and all others are there. Afterwards everything is.
static void test_many_fails(void **state) {
  (void)state;
  struct model m = model_make(TEXT, 1500);
  struct many x;
  for (uint32_t v = 0; v < 4; v++) {
    struct world *const w = world_open(env_posix(), v & 1 ? 100 << 10 : 0, false);
    many_open(&x, w, &m, v & 2);
    uint32_t some = 0;
    for (int64_t n = 0; n < 60; n++) {
      for (uint32_t i = 0; i < SST_BATCH_MAX; i++) sst_hold_fini(&x.holds[i]);
      epoch_enter(&w->epoch, &w->slot);
      many_want(&x);
      allow(n);
      const enum remixdb_status s = many_read(&x, w);
      allow_all();
      uint32_t bad = 0;
      for (uint32_t i = 0; i < x.nr; i++) {
        bad += x.batch->requests[i].status != REMIXDB_OK;
        if (x.batch->requests[i].status != REMIXDB_OK) FAILS(x.batch->requests[i].status, REMIXDB_NOMEM);
      }
      assert_int_equal(s, bad ? REMIXDB_NOMEM : REMIXDB_OK);
      some += bad > 0 && bad < x.nr;
      many_check(&x);
      OK(many_read(&x, w));
      many_check(&x);
      epoch_exit(&w->slot);
      many_drop(&x);
    }
    assert_true(some > 0);

    // and damage
    const uint32_t block = sst_pos_block(x.pos[1][m.nr / 2]);
    const int fd = open(x.t[1]->path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "damaged", 7, (off_t)block * BLOCK_PAGE + 200), 7);
    assert_int_equal(close(fd), 0);
    for (uint32_t i = 0; i < SST_BATCH_MAX; i++) sst_hold_fini(&x.holds[i]);
    struct sst *const stale = x.t[1];  // its blocks may be in the cache
    OK(sst_open(&w->ctx, 2, &x.t[1]));
    sst_unref(stale);
    epoch_enter(&w->epoch, &w->slot);
    for (x.nr = 0; x.nr < 40; x.nr++) {
      const uint32_t at = block - 20 + x.nr;
      x.batch->requests[x.nr] = (struct sst_request){.sst = x.t[1], .block = at, .hold = &x.holds[x.nr]};
    }
    FAILS(many_read(&x, w), REMIXDB_CORRUPT);
    assert_non_null(strstr(err_msg(), "000002.sst"));
    for (uint32_t i = 0; i < x.nr; i++)
      assert_int_equal(x.batch->requests[i].status, x.batch->requests[i].block == block ? REMIXDB_CORRUPT : REMIXDB_OK);
    many_check(&x);
    epoch_exit(&w->slot);
    many_close(&x);
    world_close(w);
  }
  model_free(&m);
}

// Every bit of a small table.
static void test_flips(void **state) {
  (void)state;
  struct model m = model_make(SMALL, 12);
  for (uint32_t v = 0; v < 4; v++) {
    struct world *const w = world_open(env_posix(), v & 1 ? 1u << 20 : 0, false);
    uint64_t size;
    OK(build(w, 1, &m, opts(v & 1, v & 2), &size));
    char path[400];
    (void)snprintf(path, sizeof(path), "%s/000001.sst", w->dir);
    OK(read_whole(w, 1, &m));
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    size_t len;
    uint8_t *const buf = slurp(path, &len);
    // the padding is one checksum's business: a sample of it is enough; the rest is done bit by bit
    for (size_t i = 0; i < len; i++) {
      const bool dull = buf[i] == 0 && i > 0 && buf[i - 1] == 0 && i + 1 < len && buf[i + 1] == 0;
      for (uint32_t bit = 0; bit < 8; bit++) {
        if (dull && below(64)) continue;
        const uint8_t b = buf[i] ^ (uint8_t)(1u << bit);
        assert_int_equal(pwrite(fd, &b, 1, (off_t)i), 1);
        const enum remixdb_status s = read_whole(w, 1, &m);
        if (s != REMIXDB_CORRUPT && s != REMIXDB_VERSION) fail_msg("byte %zu bit %u passed: %d", i, bit, (int)s);
        assert_non_null(strstr(err_msg(), "000001.sst"));
      }
      assert_int_equal(pwrite(fd, &buf[i], 1, (off_t)i), 1);
    }
    OK(read_whole(w, 1, &m));
    assert_int_equal(close(fd), 0);
    free(buf);
    world_close(w);
  }
  model_free(&m);
}

static void test_cuts(void **state) {
  (void)state;
  struct model m = model_make(SMALL, 12);
  struct world *const w = world_open(env_posix(), 1u << 20, false);
  uint64_t size;
  OK(build(w, 1, &m, opts(true, true), &size));
  char path[400];
  (void)snprintf(path, sizeof(path), "%s/000001.sst", w->dir);
  while (size-- > 0) {
    assert_int_equal(truncate(path, (off_t)size), 0);
    FAILS(read_whole(w, 1, &m), REMIXDB_CORRUPT);
    assert_non_null(strstr(err_msg(), "000001.sst"));
  }
  OK(build(w, 1, &m, opts(true, true), &size));
  assert_int_equal(truncate(path, (off_t)size + 4096), 0);
  FAILS(read_whole(w, 1, &m), REMIXDB_CORRUPT);
  // cut after it was opened
  assert_int_equal(truncate(path, (off_t)size), 0);
  OK(build(w, 1, &m, opts(true, false), &size));
  struct sst *t;
  OK(sst_open(&w->ctx, 1, &t));
  assert_int_equal(truncate(path, 100), 0);
  struct sst_hold h = {0};
  struct kv_rec r;
  epoch_enter(&w->epoch, &w->slot);
  sst_readahead(t, w->q, 0, 10);
  FAILS(sst_read(t, 0, true, &h, &r), REMIXDB_CORRUPT);
  FAILS(sst_read(t, 0, true, &h, &r), REMIXDB_CORRUPT);
  epoch_exit(&w->slot);
  sst_hold_fini(&h);
  struct sst_keys k;
  OK(sst_keys_open(t, w->q, &k));
  FAILS(sst_keys_next(&k), REMIXDB_CORRUPT);
  sst_keys_close(&k);
  sst_unref(t);
  // gone
  assert_int_equal(unlink(path), 0);
  FAILS(sst_open(&w->ctx, 1, &t), REMIXDB_CORRUPT);
  assert_null(t);
  assert_non_null(strstr(err_msg(), "000001.sst"));
  world_close(w);
  model_free(&m);
}

static void reseal_footer(uint8_t *f) { store64le(f, hash64(f + 8, FORMAT_SST_FOOTER - 8)); }

static void test_identity(void **state) {
  (void)state;
  struct model m = model_make(SMALL, 100);
  struct world *const w = world_open(env_posix(), 0, false);
  uint64_t size;
  OK(build(w, 1, &m, opts(true, false), &size));
  char from[400], to[400];
  (void)snprintf(from, sizeof(from), "%s/000001.sst", w->dir);
  (void)snprintf(to, sizeof(to), "%s/000002.sst", w->dir);
  size_t len;
  uint8_t *const buf = slurp(from, &len);
  spill(to, buf, len);
  FAILS(read_whole(w, 2, &m), REMIXDB_CORRUPT);
  assert_non_null(strstr(err_msg(), "000002.sst"));
  w->ctx.store_id++;
  FAILS(read_whole(w, 1, &m), REMIXDB_CORRUPT);
  w->ctx.store_id--;
  OK(read_whole(w, 1, &m));

  // a number that is flipped is damage; a newer format has a checksum that is right, whatever else is in it
  uint8_t *const foot = buf + len - FORMAT_SST_FOOTER;
  store32le(foot + 244, FORMAT_SST_VERSION + 1);
  spill(from, buf, len);
  FAILS(read_whole(w, 1, &m), REMIXDB_CORRUPT);
  store64le(foot, hash64(foot + 8, FORMAT_SST_FOOTER - 8));
  spill(from, buf, len);
  FAILS(read_whole(w, 1, &m), REMIXDB_VERSION);
  assert_non_null(strstr(err_msg(), "000001.sst"));
  store32le(foot + 244, 0);
  store64le(foot, hash64(foot + 8, FORMAT_SST_FOOTER - 8));
  spill(from, buf, len);
  FAILS(read_whole(w, 1, &m), REMIXDB_CORRUPT);
  // every older one is read
  for (uint32_t version = FORMAT_SST_VERSION; version > 0; version--) {
    store32le(foot + 244, version);
    store64le(foot, hash64(foot + 8, FORMAT_SST_FOOTER - 8));
    spill(from, buf, len);
    OK(read_whole(w, 1, &m));
  }
  free(buf);
  model_free(&m);
  world_close(w);
}

// Footers, metadata, keys and blocks with right checksums and wrong contents: an error or some answer, and nothing read
// that is not there.
static void test_forged(void **state) {
  (void)state;
  struct model m = model_make(MIXED, 10);
  while (m.used < 48 << 10) {  // less may be too little for a dictionary
    model_free(&m);
    m = model_make(MIXED, 10);
  }
  for (uint32_t v = 0; v < 4; v++) {
    struct world *const w = world_open(env_posix(), v & 1 ? 1u << 20 : 0, false);
    uint64_t size;
    OK(build(w, 1, &m, opts(v & 1, v & 2), &size));
    char path[400];
    (void)snprintf(path, sizeof(path), "%s/000001.sst", w->dir);
    size_t len;
    uint8_t *const buf = slurp(path, &len), *const orig = slurp(path, &len);
    struct format_sst_footer f;
    OK(format_sst_footer_get(orig + len - FORMAT_SST_FOOTER, len, path, &f));
    uint32_t refused = 0;
    for (uint32_t round = 0; round < 400; round++) {
      memcpy(buf, orig, len);
      uint8_t *const foot = buf + len - FORMAT_SST_FOOTER, *const meta = buf + f.meta_off;
      switch (below(3)) {
        case 0: {  // a field of the footer: a little off, or anything
          const uint32_t at = 24 + 8 * below(14);
          if (at == 96) continue;
          uint64_t x = load64le(foot + at);
          x = below(3) == 0 ? rng_next(&check_seed) >> below(64)
              : below(2)    ? x + below(3) - 1
                            : x + ((uint64_t)(below(3) - 1) << 32);
          store64le(foot + at, x);
          break;
        }
        case 1:  // counts, keys and sizes
          meta[below((uint32_t)(f.nr_pages + f.min_len + f.max_len + f.dict_len + f.sizes_len))] ^=
              (uint8_t)(1u << below(8));
          break;
        default:  // counts that still add up
          meta[below(f.nr_pages)]++;
          meta[below(f.nr_pages)]--;
          break;
      }
      store64le(foot + 96, hash64_seed(meta, f.meta_len, format_sst_meta_seed(1)));
      reseal_footer(foot);
      spill(path, buf, len);
      const enum remixdb_status s = read_whole(w, 1, NULL);
      assert_true(s == REMIXDB_OK || s == REMIXDB_CORRUPT);
      refused += s != REMIXDB_OK;
    }
    assert_true(refused > 100);
    if (v & 2) {
      // a dictionary that zstd cannot make anything of
      memcpy(buf, orig, len);
      assert_true(f.dict_len > 64);
      memset(buf + f.meta_off + f.nr_pages + f.min_len + f.max_len + 8, 0xff, 56);
      store64le(buf + len - FORMAT_SST_FOOTER + 96, hash64_seed(buf + f.meta_off, f.meta_len, format_sst_meta_seed(1)));
      reseal_footer(buf + len - FORMAT_SST_FOOTER);
      spill(path, buf, len);
      FAILS(read_whole(w, 1, NULL), REMIXDB_CORRUPT);
      assert_non_null(strstr(err_msg(), "dictionary"));
      // sizes that are not the blocks'
      const uint64_t at = f.meta_off + f.nr_pages + f.min_len + f.max_len + f.dict_len;
      for (uint32_t bit = 0; bit < f.sizes_len * 8; bit++) {
        memcpy(buf, orig, len);
        uint8_t *const foot = buf + len - FORMAT_SST_FOOTER;
        buf[at + bit / 8] ^= (uint8_t)(1u << bit % 8);
        store64le(foot + 96, hash64_seed(buf + f.meta_off, f.meta_len, format_sst_meta_seed(1)));
        reseal_footer(foot);
        spill(path, buf, len);
        struct sst *t;
        FAILS(sst_open(&w->ctx, 1, &t), REMIXDB_CORRUPT);
      }
      // the bytes of a compressed block, behind a right checksum
      for (uint32_t round = 0; round < 400; round++) {
        memcpy(buf, orig, len);
        uint32_t n;
        const uint8_t *const sizes = buf + f.meta_off + f.nr_pages + f.min_len + f.max_len + f.dict_len;
        assert_non_null(kv_varint_get(sizes, buf + len, &n));
        for (uint32_t i = 0; i <= below(3); i++) buf[8 + below(round % 2 ? 30 : n - 8)] ^= (uint8_t)(1u << below(8));
        store64le(buf, hash64_seed(buf + 8, n - 8, block_seed(1, 0)));
        spill(path, buf, len);
        const enum remixdb_status s = read_whole(w, 1, NULL);
        assert_true(s == REMIXDB_OK || s == REMIXDB_CORRUPT);
      }
    }
    free(buf);
    free(orig);
    world_close(w);
  }
  model_free(&m);
}

// The table with other compressed keys, all checksums right.
static enum remixdb_status with_keys(struct world *w, const char *path, const uint8_t *orig, size_t len,
                                     const struct model *m, uint32_t leave_out, const struct kref *more) {
  struct format_sst_footer f;
  OK(format_sst_footer_get(orig + len - FORMAT_SST_FOOTER, len, path, &f));
  struct ckb_build c = {0};
  ckb_build_init(&c, 1);
  for (uint32_t i = 0; i < m->nr; i++)
    if (i != leave_out) OK(ckb_build_add(&c, kref(m->r[i].key, m->r[i].klen), m->r[i].tomb));
  if (more) OK(ckb_build_add(&c, *more, false));
  OK(ckb_build_finish(&c));
  const size_t used = f.nr_pages + f.min_len + f.max_len;
  const size_t to = align_up(f.data_size + c.len + used + FORMAT_SST_FOOTER, FORMAT_SST_ALIGN);
  uint8_t *const buf = calloc(1, to);
  memcpy(buf, orig, f.data_size);
  memcpy(buf + f.data_size, c.buf, c.len);
  uint8_t *const meta = buf + f.data_size + c.len;
  memcpy(meta, orig + f.meta_off, used);
  f.ckb_len = c.len;
  f.meta_off = f.data_size + c.len;
  f.meta_len = to - FORMAT_SST_FOOTER - f.meta_off;
  f.file_size = to;
  f.meta_sum = hash64_seed(meta, f.meta_len, format_sst_meta_seed(1));
  format_sst_footer_put(buf + to - FORMAT_SST_FOOTER, &f);
  (void)unlink(path);
  spill(path, buf, to);
  free(buf);
  ckb_build_fini(&c);
  return read_whole(w, 1, NULL);
}

// A block is stored as one frame, as docs/FORMAT.md says; zstd itself would take several.
static void test_one_frame(void **state) {
  (void)state;
  static const uint8_t value[2000] = {1, 2, 3}, skippable[] = "\x50\x2a\x4d\x18\x03\0\0\0abc";
  const struct kv_rec rec = {.key = value, .klen = 3, .val = value, .vlen = sizeof(value)};
  struct block_build b;
  OK(block_build_init(&b));
  block_build_add(&b, &rec);
  assert_int_equal(block_build_finish(&b, 1, 0), 1);
  const uint8_t *const body = b.buf + FORMAT_SST_STORED_SKIP;
  const size_t len = BLOCK_PAGE - FORMAT_SST_STORED_SKIP;
  for (uint32_t way = 0; way < 4; way++) {
    uint8_t stored[2 * BLOCK_PAGE], block[BLOCK_PAGE], counts[] = {1, 1};
    size_t end = FORMAT_SST_STORED_HEAD;
    const size_t first = way == 1 ? 2000 : len;
    if (way == 3) memcpy(stored + end, skippable, sizeof(skippable) - 1);
    if (way == 3) end += sizeof(skippable) - 1;
    end += ZSTD_compress(stored + end, sizeof(stored) - end, body, first, 3);
    if (way == 1) end += ZSTD_compress(stored + end, sizeof(stored) - end, body + first, len - first, 3);
    if (way == 2) memcpy(stored + end, skippable, sizeof(skippable) - 1);
    if (way == 2) end += sizeof(skippable) - 1;
    stored[8] = FORMAT_SST_STORED_ZSTD;
    store64le(stored, hash64_seed(stored + 8, end - 8, block_seed(1, 0)));
    uint64_t offs[] = {0, end};
    const struct sst t = {.number = 1, .path = (char[]){"t"}, .nr_pages = 1, .nr_recs = counts, .offs = offs};
    ZSTD_DCtx *zstd = NULL;
    assert_int_equal(sst_unpack(&t, 0, 1, stored, (uint32_t)end, &zstd, block),
                     way == 0 ? REMIXDB_OK : REMIXDB_CORRUPT);
    if (way == 0) assert_memory_equal(block + FORMAT_SST_STORED_SKIP, body, len);
    (void)ZSTD_freeDCtx(zstd);
  }
  block_build_fini(&b);
}

static void test_wrong_keys(void **state) {
  (void)state;
  struct model m = model_make(SMALL, 9000);
  struct world *const w = world_open(env_posix(), 0, false);
  uint64_t size;
  OK(build(w, 1, &m, opts(true, false), &size));
  char path[400];
  (void)snprintf(path, sizeof(path), "%s/000001.sst", w->dir);
  size_t len;
  uint8_t *const orig = slurp(path, &len);
  const struct kref more = kref("\xff\xff", 2);
  OK(with_keys(w, path, orig, len, &m, m.nr, NULL));
  FAILS(with_keys(w, path, orig, len, &m, 0, NULL), REMIXDB_CORRUPT);  // fewer, at each end and in between
  FAILS(with_keys(w, path, orig, len, &m, m.nr / 2, NULL), REMIXDB_CORRUPT);
  FAILS(with_keys(w, path, orig, len, &m, m.nr - 1, NULL), REMIXDB_CORRUPT);
  FAILS(with_keys(w, path, orig, len, &m, m.nr, &more), REMIXDB_CORRUPT);  // more
  FAILS(with_keys(w, path, orig, len, &m, 0, &more), REMIXDB_CORRUPT);     // as many, but others
  FAILS(with_keys(w, path, orig, len, &m, m.nr - 1, &more), REMIXDB_CORRUPT);
  free(orig);
  world_close(w);
  model_free(&m);
}

// Two records in each other's place, or one twice: no table comes of it, and the next one is good.
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
    char path[400];
    (void)snprintf(path, sizeof(path), "%s/000001.sst", w->dir);
    assert_int_equal(unlink(path), 0);
  }
  world_close(w);
  model_free(&m);
}

// ---- failures around it

static void test_no_memory(void **state) {
  (void)state;
  struct model m = model_make(SMALL, 600);
  for (uint32_t v = 0; v < 4; v++) {
    struct world *const w = world_open(env_posix(), 1u << 20, false);
    uint64_t size;
    enum remixdb_status s = REMIXDB_NOMEM;
    for (int64_t n = 0; s != REMIXDB_OK; n++) {
      allow(n);
      s = build(w, 1, &m, opts(v & 1, v & 2), &size);
      allow_all();
      if (s == REMIXDB_OK) break;
      FAILS(s, REMIXDB_NOMEM);
      assert_int_equal(files_in(w), 0);
      assert_true(n < 1000);
    }
    // a read of all of it: what cannot be had is said, and the next read is good
    s = REMIXDB_NOMEM;
    int64_t n = 0;
    for (; s != REMIXDB_OK; n++) {
      allow(n);
      s = read_whole(w, 1, &m);
      allow_all();
      if (s != REMIXDB_OK) FAILS(s, REMIXDB_NOMEM);
      assert_true(n < 1000);
    }
    assert_true(n > 5);
    world_close(w);
  }
  model_free(&m);
}

// The disk fails at each call in turn: an error that is a failure of the disk, no file left, and the builder good for
// the next table.
static void test_bad_disk(void **state) {
  (void)state;
  struct model m = model_make(SMALL, 9000);
  struct world *const w = world_open(&fault_env, 0, false);
  char path[400];
  (void)snprintf(path, sizeof(path), "%s/000005.sst", w->dir);
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
      if (s == REMIXDB_OK) {  // advice that failed does not matter
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

// ---- threads

struct reader {
  pthread_t thread;
  struct world *w;
  struct sst **tables;
  const struct model *m;
  const sst_pos *pos;
  uint64_t rng;
  bool good;
};

static bool same_rec(const struct kv_rec *a, const struct kv_rec *b) {
  return a->tomb == b->tomb && kv_eq(kref(a->key, a->klen), kref(b->key, b->klen)) &&
         kv_eq(kref(a->val, a->vlen), kref(b->val, b->vlen));
}

static void *reader_main(void *arg) {
  struct reader *const x = arg;
  struct world *const w = x->w;
  struct blkio_queue *q;
  struct epoch_slot *slot;
  struct sst_hold h = {0}, kept = {0};
  struct kv_rec r, k = {0};
  uint32_t kept_at = UINT32_MAX;
  if (blkio_queue_create(&w->io, &q) != REMIXDB_OK || posix_memalign((void **)&slot, CACHE_LINE, sizeof(*slot)) != 0)
    return NULL;
  epoch_join(&w->epoch, slot);
  x->good = true;
  for (uint32_t i = 0; i < 3000 && x->good; i++) {
    const uint64_t z = rng_next(&x->rng);
    struct sst *const t = x->tables[z & 1];
    epoch_enter(&w->epoch, slot);
    if (i % 64 == 0) sst_readahead(t, q, (uint32_t)(z >> 40) % t->nr_pages, 16);
    const uint32_t at = (uint32_t)(z >> 8) % x->m->nr;
    x->good = sst_read(t, x->pos[at], false, &h, &r) == REMIXDB_OK && same_rec(&r, &x->m->r[at]);
    if (x->good && kept_at != UINT32_MAX) x->good = same_rec(&k, &x->m->r[kept_at]);
    if (x->good && i % 50 == 0) {
      kept_at = at;
      x->good = sst_read(t, x->pos[at], true, &kept, &k) == REMIXDB_OK;
    }
    epoch_exit(slot);
  }
  sst_hold_fini(&h);
  sst_hold_fini(&kept);
  epoch_leave(&w->epoch, slot);
  free(slot);
  blkio_queue_destroy(q);
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  struct model m = model_make(TEXT, 12000);
  struct world *const w = world_open(env_posix(), 1u << 20, false);
  uint64_t size;
  struct sst *tables[2];
  OK(build(w, 1, &m, opts(true, false), &size));
  OK(build(w, 2, &m, opts(true, true), &size));
  OK(sst_open(&w->ctx, 1, &tables[0]));
  OK(sst_open(&w->ctx, 2, &tables[1]));
  sst_pos *const pos = positions(tables[0], m.nr);
  struct reader readers[4];
  for (uint32_t i = 0; i < 4; i++) {
    readers[i] = (struct reader){.w = w, .tables = tables, .m = &m, .pos = pos, .rng = rng_next(&check_seed)};
    OK(thread_start(&readers[i].thread, reader_main, &readers[i], "reader"));
  }
  // and one that opens and closes tables beside them
  for (uint32_t i = 0; i < 20; i++) {
    struct sst *t;
    OK(sst_open(&w->ctx, 1 + i % 2, &t));
    sst_ref(t);
    sst_unref(t);
    sst_unref(t);
  }
  for (uint32_t i = 0; i < 4; i++) {
    assert_int_equal(pthread_join(readers[i].thread, NULL), 0);
    assert_true(readers[i].good);
  }
  free(pos);
  sst_unref(tables[0]);
  sst_unref(tables[1]);
  world_close(w);
  model_free(&m);
}

static int make_root(void **state) {
  (void)state;
  const char *const tmp = getenv("TMPDIR");
  (void)snprintf(root, sizeof(root), "%.150s/remixdb-sst-XXXXXX", tmp && *tmp ? tmp : "/tmp");
  fault_ops = *env_posix()->ops;
  fault_ops.open = fault_open;
  fault_ops.close = fault_close;
  fault_ops.pwrite = fault_pwrite;
  fault_ops.sync_data = fault_sync;
  fault_ops.sync_all = fault_sync;
  fault_ops.truncate = fault_truncate;
  fault_ops.allocate = fault_allocate;
  fault_env = (struct env){.ops = &fault_ops, .priv = env_posix()->priv, .native = false};
  return mkdtemp(root) ? 0 : -1;
}

static bool remove_dir(void *arg, const char *name) {
  (void)arg;
  char path[600];
  (void)snprintf(path, sizeof(path), "%s/%s", root, name);
  const enum remixdb_status s = paths_list(env_posix(), path, remove_name, path);
  return rmdir(path) == 0 && s == REMIXDB_OK;
}

static int remove_root(void **state) {
  (void)state;
  const enum remixdb_status s = paths_list(env_posix(), root, remove_dir, NULL);
  return s == REMIXDB_OK ? rmdir(root) : -1;
}

int main(void) {
  const char *const given = getenv("TEST_SEED");
  const uint64_t start = check_seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_round_trips), cmocka_unit_test(test_builder),     cmocka_unit_test(test_builder_after_raw),
      cmocka_unit_test(test_large),       cmocka_unit_test(test_many),        cmocka_unit_test(test_many_one_by_one),
      cmocka_unit_test(test_many_fails),  cmocka_unit_test(test_holds),       cmocka_unit_test(test_prefetch),
      cmocka_unit_test(test_ahead),       cmocka_unit_test(test_ahead_fails), cmocka_unit_test(test_flips),
      cmocka_unit_test(test_cuts),        cmocka_unit_test(test_identity),    cmocka_unit_test(test_forged),
      cmocka_unit_test(test_one_frame),   cmocka_unit_test(test_wrong_keys),  cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_bad_disk),    cmocka_unit_test(test_threads),     cmocka_unit_test(test_order),
  };
  const int rc = cmocka_run_group_tests(tests, make_root, remove_root);
  if (rc) fprintf(stderr, "repeat with TEST_SEED=%llu\n", (unsigned long long)start);
  return rc;
}
