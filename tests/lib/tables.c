// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "table/block.h"
#include "table/readahead.h"
#include "table/scan.h"
#include "tests/lib/often.h"
#include "tests/lib/paths.h"
#include "tests/lib/temp.h"

#define STORE_ID 0x1122334455667788ull

static char root[TEMP_DIR];

struct world *world_open(struct env *env, size_t cache_size, bool direct) {
  static uint32_t nr;
  struct world *const w = mem_alloc_aligned(CACHE_LINE, sizeof(*w));
  assert_non_null(w);
  often_keep();
  memset(w, 0, sizeof(*w));
  (void)snprintf(w->dir, sizeof(w->dir), "%s/%u", root, nr++);
  assert_int_equal(mkdir(w->dir, 0700), 0);
  OK(env_dir_open(ENV_PATHS(env), w->dir, &w->at));
  blkio_init(&w->io, env, (enum blkio_kind)(nr % 4));
  OK(blkio_queue_create(&w->io, &w->q));
  OK(fdpool_create(env, 16, &w->fds));
  epoch_init(&w->epoch);
  epoch_join(&w->epoch, &w->slot);
  if (cache_size) OK(cache_create(cache_size, 0, &w->epoch, &w->cache));
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

uint32_t files_in(const struct world *w) {
  uint32_t nr = 0;
  OK(env_list(&w->at, count_name, &nr));
  return nr;
}

void world_close(struct world *w) {
  epoch_leave(&w->epoch, &w->slot);
  cache_destroy(w->cache);
  epoch_fini(&w->epoch);
  fdpool_destroy(w->fds);
  blkio_queue_destroy(w->q);
  blkio_fini(&w->io);
  env_dir_close(&w->at);
  assert_int_equal(remove_tree(w->dir), 0);
  mem_free(w);
}

const uint32_t style_nr[STYLES] = {900, 2000, 120, 60, 40, 1, 1500};

void model_record(struct model *m, uint32_t klen, uint32_t vlen, bool tomb) {
  struct kv_rec *const r = &m->r[m->nr++];
  uint8_t *const p = m->mem + m->used;
  *r = (struct kv_rec){.key = p, .klen = klen, .val = p + klen, .vlen = tomb ? 0 : vlen, .kind = tomb};
  m->used += klen + r->vlen;
  m->tombs += tomb;
  m->key_bytes += klen;
  m->value_bytes += r->vlen;
}

struct model model_make(enum style style, uint32_t nr) {
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
      case EXACT: {
        const uint32_t pages = 1 + below(15), size = pages * BLOCK_PAGE - BLOCK_HEAD - 2 + below(3) - 1;
        tomb = false;
        vlen = size - klen;
        while (kv_rec_size(KV_REC(kref(NULL, klen), NULL, vlen, false)) > size) vlen--;
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
    model_record(&m, klen, vlen, tomb);
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

void model_free(struct model *m) {
  free(m->r);
  free(m->mem);
}

enum remixdb_status build_with(struct sst_build *b, uint64_t number, const struct model *m, uint64_t *size_out) {
  sst_build_start(b, number);
  for (uint32_t i = 0; i < m->nr; i++) sst_build_add(b, &m->r[i]);
  return sst_build_finish(b, size_out);
}

enum remixdb_status build(struct world *w, uint64_t number, const struct model *m, struct sst_build_opts o,
                          uint64_t *size_out) {
  struct sst_build *b;
  enum remixdb_status s = sst_build_create(&w->ctx, &o, w->q, &b);
  if (s != REMIXDB_OK) return s;
  s = build_with(b, number, m, size_out);
  sst_build_destroy(b);
  return s;
}

void assert_rec(const struct kv_rec *a, const struct kv_rec *b) {
  assert_int_equal(a->klen, b->klen);
  assert_int_equal(a->vlen, b->vlen);
  assert_int_equal(a->kind, b->kind);
  assert_true(kv_eq(kref(a->key, a->klen), kref(b->key, b->klen)));
  assert_true(kv_eq(kref(a->val, a->vlen), kref(b->val, b->vlen)));
}

sst_pos *positions(const struct sst *t, uint32_t nr) {
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

void read_on(struct sst *t, uint32_t block, struct sst_hold *h) {
  const uint32_t left = t->nr_pages - block, nr = 1 + below(40);
  sst_hold_readahead(t, block, nr < left ? nr : left, 0, h);
}

// Reads record after record through a hold, perhaps ahead.
static enum remixdb_status read_records(struct world *w, struct sst *t, const struct model *m) {
  enum remixdb_status s = REMIXDB_OK;
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
  return s;
}

static enum remixdb_status scan_records(struct world *w, struct sst *t, const struct model *m) {
  struct sst_scan *scan;
  struct kv_rec r;
  sst_pos p;
  enum remixdb_status s = sst_scan_create(t, w->q, &scan);
  if (s != REMIXDB_OK) return s;
  for (uint32_t i = 0; (s = sst_scan_next(scan, &r, &p)) == REMIXDB_OK; i++)
    if (m) assert_rec(&r, &m->r[i]);
  sst_scan_destroy(scan);
  return s == REMIXDB_NOTFOUND ? REMIXDB_OK : s;
}

static enum remixdb_status read_keys(struct world *w, struct sst *t, const struct model *m) {
  struct sst_keys k;
  enum remixdb_status s = sst_keys_open(t, w->q, &k);
  if (s != REMIXDB_OK) return s;
  for (uint32_t i = 0; (s = sst_keys_next(&k)) == REMIXDB_OK; i++)
    if (m) assert_true(kv_eq(k.key, kref(m->r[i].key, m->r[i].klen)));
  sst_keys_close(&k);
  return s == REMIXDB_NOTFOUND ? REMIXDB_OK : s;
}

enum remixdb_status read_whole(struct world *w, uint64_t number, const struct model *m) {
  struct sst *t;
  enum remixdb_status s = sst_open(&w->ctx, number, &t);
  if (s != REMIXDB_OK) return s;
  s = read_records(w, t, m);
  if (s == REMIXDB_OK) s = scan_records(w, t, m);
  if (s == REMIXDB_OK) s = read_keys(w, t, m);
  sst_unref(t);
  return s;
}

int root_setup(void **state) {
  (void)state;
  return temp_make(root, "sst") ? 0 : -1;
}

int root_teardown(void **state) {
  (void)state;
  return remove_tree(root);
}

void table_path(const struct world *w, uint64_t number, char path[ENV_PATH_MAX]) {
  char name[32];
  sst_name(name, number);
  OK(env_path(path, w->dir, name));
}

struct sst *table_new(struct world *w, uint64_t number, const struct model *m, struct sst_build_opts o,
                      sst_pos **pos_out) {
  uint64_t size;
  struct sst *t;
  OK(build(w, number, m, o, &size));
  OK(sst_open(&w->ctx, number, &t));
  *pos_out = positions(t, m->nr);
  return t;
}

void table_end(struct sst *t, sst_pos *pos) {
  free(pos);
  sst_unref(t);
}
