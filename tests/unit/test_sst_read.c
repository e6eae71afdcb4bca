// SPDX-License-Identifier: Apache-2.0
//
// Reading tables: holds, reading ahead, many blocks at once, and threads.
#include "base/thread.h"
#include "tests/lib/check.h"
#include "tests/lib/tables.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "table/batch.h"
#include "table/block.h"
#include "table/readahead.h"
#include "tests/lib/fault.h"

// Holds stay good while the cache turns over several times between their epochs.
static void test_holds(void **state) {
  (void)state;
  struct model m = model_make(TEXT, 20000);
  for (uint32_t v = 0; v < 4; v++) {
    struct world *const w = world_open(env_posix(), v & 1 ? 1u << 20 : 0, false);
    sst_pos *pos;
    struct sst *const t = table_new(w, 1, &m, opts(false, v & 2), &pos);
    assert_true((uint64_t)t->nr_pages * BLOCK_PAGE > 3u << 20);

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
    table_end(t, pos);
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
    sst_pos *pos;
    struct sst *const t = table_new(w, 1, &m, opts(false, v), &pos);
    assert_true(t->nr_pages > 2 * BLKIO_BATCH_MAX);

    struct sst_hold h = {0};
    struct kv_rec r;
    epoch_enter(&w->epoch, &w->slot);
    // one block among them is in the cache already
    OK(sst_read(t, pos[sst_pos_block(pos[9]) < 40 ? 9 : 2], false, &h, &r));
    atomic_store(&t->cache.slots[0], CACHE_MISSED | 1);  // and one has been missed before
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
    table_end(t, pos);
    world_close(w);
  }
  model_free(&m);
}

// Record `at` is read through the hold, and is right.
static void ahead_is(struct sst *t, const struct model *m, const sst_pos *pos, uint32_t at, struct sst_hold *h) {
  struct kv_rec r;
  OK(sst_read(t, pos[at], below(2), h, &r));
  assert_rec(&r, &m->r[at]);
}

// Two tables with records of several pages.
struct pair {
  struct world *w;
  struct model *m;  // the model of both
  struct sst *t[2];
  sst_pos *pos[2];
  struct sst_hold h;
};

// Reads up to n blocks of the first table ahead, from that of record i on. One read serves them all, in any order and
// any epoch. The same record of the other table, and the block after them, need reads of their own, where there is no
// cache.
static void ahead_from(struct pair *x, uint32_t i, uint32_t n, bool cache) {
  const uint32_t block = sst_pos_block(x->pos[0][i]);
  uint64_t reads = reads_of(x->w);
  epoch_enter(&x->w->epoch, &x->w->slot);
  sst_hold_readahead(x->t[0], block, n, 0, &x->h);
  assert_int_equal(reads_of(x->w), ++reads);
  uint32_t last = i;
  while (last + 1 < x->m[0].nr && sst_pos_block(x->pos[0][last + 1]) < block + n) last++;
  for (uint32_t k = i; k <= last; k++) ahead_is(x->t[0], &x->m[0], x->pos[0], k, &x->h);
  for (uint32_t k = 0; k < 3; k++) {
    ahead_is(x->t[0], &x->m[0], x->pos[0], i + below(last - i + 1), &x->h);
    assert_false(x->h.cb.pinned);
    epoch_exit(&x->w->slot);
    epoch_enter(&x->w->epoch, &x->w->slot);
  }
  assert_int_equal(reads_of(x->w), reads);
  if (!cache) {
    ahead_is(x->t[1], &x->m[1], x->pos[1], i, &x->h);
    assert_int_equal(reads_of(x->w), ++reads);
    if (last + 1 < x->m[0].nr) {
      ahead_is(x->t[0], &x->m[0], x->pos[0], last + 1, &x->h);
      assert_int_equal(reads_of(x->w), ++reads);
    }
    ahead_is(x->t[0], &x->m[0], x->pos[0], last, &x->h);  // it is still there
    assert_int_equal(reads_of(x->w), reads);
  }
  epoch_exit(&x->w->slot);
}

// Blocks that were read ahead are not in the cache, and a hold that goes on to them unpins its block.
static void ahead_beside_cache(struct pair *x) {
  struct cache_stats st;
  struct kv_rec r;
  cache_stats(x->w->cache, &st);
  assert_int_equal(st.used, 0);
  assert_int_equal(st.misses, 0);
  epoch_enter(&x->w->epoch, &x->w->slot);
  sst_hold_readahead(x->t[0], 0, 1, 0, &x->h);
  OK(sst_read(x->t[1], x->pos[1][0], true, &x->h, &r));
  const uint32_t frame = x->h.cb.frame;
  assert_true(x->h.cb.pinned);
  ahead_is(x->t[0], &x->m[0], x->pos[0], 0, &x->h);
  assert_false(x->h.cb.pinned);
  assert_int_equal(atomic_load(&x->w->cache->marks[frame]) & ~CACHE_USED, 0);
  epoch_exit(&x->w->slot);
}

static void test_ahead(void **state) {
  (void)state;
  struct model m[2] = {model_make(MIXED, 120), model_make(MIXED, 120)};
  for (uint32_t v = 0; v < 8; v++) {
    const bool cache = v & 4;
    struct pair x = {.w = world_open(env_posix(), cache ? 32u << 20 : 0, v & 2), .m = m};
    for (uint32_t k = 0; k < 2; k++) x.t[k] = table_new(x.w, 1 + k, &m[k], opts(false, v & 1), &x.pos[k]);
    for (uint32_t i = 0; i < m[0].nr; i++) {
      const uint32_t left = x.t[0]->nr_pages - sst_pos_block(x.pos[0][i]);
      ahead_from(&x, i, 1 + below(left < BLKIO_BATCH_MAX ? left : BLKIO_BATCH_MAX), cache);
    }
    if (cache) ahead_beside_cache(&x);
    // the hold goes to the other table
    epoch_enter(&x.w->epoch, &x.w->slot);
    sst_hold_readahead(x.t[1], 0, 1, 0, &x.h);
    assert_true(sst_holds_ahead(&x.h, x.t[1], 0));
    assert_false(sst_holds_ahead(&x.h, x.t[0], 0));
    ahead_is(x.t[1], &m[1], x.pos[1], 0, &x.h);
    epoch_exit(&x.w->slot);
    sst_hold_fini(&x.h);
    for (uint32_t k = 0; k < 2; k++) table_end(x.t[k], x.pos[k]);
    world_close(x.w);
  }
  for (uint32_t k = 0; k < 2; k++) model_free(&m[k]);
}

// Reads 8 blocks ahead from the middle of the table, with memory that runs out at each allocation in turn. Then nothing
// is there ahead, and the hold does not say that it is; the next try succeeds.
static void ahead_without_memory(struct world *w, struct sst *t, const struct model *m, const sst_pos *pos) {
  const uint32_t middle = m->nr / 2, block = sst_pos_block(pos[middle]), nr = 8;
  struct sst_hold h = {0};
  struct kv_rec r;
  assert_true(block + nr < t->nr_pages);
  for (int64_t n = 0;; n++) {
    assert_true(n < 20);
    epoch_enter(&w->epoch, &w->slot);
    ahead_is(t, m, pos, m->nr - 1, &h);
    fault_mem_set_lasting(n + 1);
    sst_hold_readahead(t, block, nr, 0, &h);
    const bool ahead = sst_holds_ahead(&h, t, block);
    const enum remixdb_status s = sst_read(t, pos[middle], true, &h, &r);
    const bool met = fault_mem_end();
    assert_true(s == REMIXDB_OK || s == REMIXDB_NOMEM);
    assert_int_equal(sst_holds(&h, t, block), s == REMIXDB_OK);
    for (uint32_t i = 0; i < nr; i++) assert_int_equal(sst_holds_ahead(&h, t, block + i), ahead);
    if (s == REMIXDB_OK) assert_rec(&r, &m->r[middle]);
    ahead_is(t, m, pos, middle, &h);
    sst_hold_readahead(t, block, nr, 0, &h);
    assert_true(sst_holds_ahead(&h, t, block));
    ahead_is(t, m, pos, middle, &h);
    epoch_exit(&w->slot);
    sst_hold_fini(&h);
    if (met) continue;
    assert_true(ahead && s == REMIXDB_OK);
    break;
  }
}

// Reads 32 blocks ahead, one of which is damaged: the others are good, and a read of that one fails. Then the file ends
// before them: nothing is there ahead, and each read fails, unless the block is in the cache.
static void ahead_of_damage(struct world *w, struct sst *t, const struct model *m, const sst_pos *pos) {
  const uint32_t middle = m->nr / 2, block = sst_pos_block(pos[middle]), bad = sst_pos_block(pos[middle + 40]);
  struct sst_hold h = {0};
  struct kv_rec r;
  assert_true(bad > block && bad < block + 32 && block + 32 < t->nr_pages);
  const int fd = open(t->path, O_RDWR);
  const off_t at = t->offs ? (off_t)t->offs[bad] + 9 : (off_t)bad * BLOCK_PAGE + 200;
  uint8_t byte;
  assert_int_equal(pread(fd, &byte, 1, at), 1);
  byte ^= 4;
  assert_int_equal(pwrite(fd, &byte, 1, at), 1);
  epoch_enter(&w->epoch, &w->slot);
  sst_hold_readahead(t, block, 32, 0, &h);
  for (uint32_t i = middle; sst_pos_block(pos[i]) < block + 32; i++) {
    if (sst_pos_block(pos[i]) != bad) {
      ahead_is(t, m, pos, i, &h);
      continue;
    }
    FAILS(sst_read(t, pos[i], true, &h, &r), REMIXDB_CORRUPT);
    assert_non_null(strstr(err_msg(), "000001.sst"));
    assert_false(sst_holds(&h, t, bad));
  }
  assert_int_equal(ftruncate(fd, (off_t)BLOCK_PAGE), 0);
  sst_hold_readahead(t, block, 8, 0, &h);
  assert_false(sst_holds_ahead(&h, t, block));
  assert_false(sst_holds(&h, t, block));
  FAILS(sst_read(t, pos[middle], true, &h, &r), w->cache ? REMIXDB_OK : REMIXDB_CORRUPT);
  epoch_exit(&w->slot);
  assert_int_equal(close(fd), 0);
  sst_hold_fini(&h);
}

static _Atomic uint32_t spoil;  // so many reads have a flipped bit

static ssize_t spoilt_pread(struct env *env, int fd, void *buf, size_t len, uint64_t off) {
  const ssize_t n = env_posix()->ops->pread(env, fd, buf, len, off);
  if (n > 600 && atomic_load(&spoil)) {
    ((uint8_t *)buf)[600] ^= 1;
    atomic_fetch_sub(&spoil, 1);
  }
  return n;
}

// The disk gives a wrong bit once, while blocks are read ahead. The reader that comes to the block reads it again.
static void test_ahead_spoilt(void **state) {
  (void)state;
  struct env_ops ops = *env_posix()->ops;
  struct env env = {.ops = &ops};
  ops.pread = spoilt_pread;
  struct model m = model_make(TEXT, 1500);
  uint32_t met = 0;
  for (uint32_t v = 0; v < 8; v++) {
    struct world *const w = world_open(&env, v & 2 ? 1u << 20 : 0, false);
    sst_pos *pos;
    struct sst *const t = table_new(w, 1, &m, opts(false, v & 1), &pos);
    struct sst_hold h = {0};
    const uint32_t block = sst_pos_block(pos[m.nr / 2]);
    for (uint32_t n = 0; n < 2; n++) {
      epoch_enter(&w->epoch, &w->slot);
      atomic_store(&spoil, 1);
      if (n == 0) sst_hold_readahead(t, block, 8, 0, &h);
      else sst_fetch(w->q, &(struct sst_need){t, block, block + sst_block_pages(t, block), &h}, 1);
      met += atomic_exchange(&spoil, 0) == 0;
      for (uint32_t i = m.nr / 2; i < m.nr && sst_pos_block(pos[i]) < block + 8; i++) ahead_is(t, &m, pos, i, &h);
      epoch_exit(&w->slot);
    }
    sst_hold_fini(&h);
    table_end(t, pos);
    world_close(w);
  }
  assert_true(met >= 4);
  model_free(&m);
}

static void test_ahead_fails(void **state) {
  (void)state;
  struct model m = model_make(TEXT, 1500);
  for (uint32_t v = 0; v < 4; v++) {
    struct world *const w = world_open(env_posix(), v & 2 ? 1u << 20 : 0, false);
    sst_pos *pos;
    struct sst *const t = table_new(w, 1, &m, opts(false, v & 1), &pos);
    ahead_without_memory(w, t, &m, pos);
    ahead_of_damage(w, t, &m, pos);
    table_end(t, pos);
    world_close(w);
  }
  model_free(&m);
}

// ---- the account of scans

#define ROOM_HOLDS 12u
#define ROOM_PAGES 40u

// The bytes that the holds keep, and those of readahead memory among them.
static uint64_t room_kept(const struct sst_hold *holds, uint64_t *ahead_out) {
  uint64_t own = 0, ahead = 0;
  for (uint32_t i = 0; i < ROOM_HOLDS; i++) {
    own += holds[i].cb.own_size;
    ahead += sst_ahead_memory(&holds[i].ahead[0]) + sst_ahead_memory(&holds[i].ahead[1]);
  }
  *ahead_out = ahead;
  return own + ahead;
}

// Reads one record, and says that others behind its block will follow. Where the account is full, no bytes of further
// blocks come with it.
static void room_few(struct sst *t, const struct budget *b, sst_pos pos, const struct kv_rec *right,
                     struct sst_hold *h) {
  const uint32_t had = h->cb.own_size, alone = sst_block_pages(t, sst_pos_block(pos)) * BLOCK_PAGE;
  const bool full = budget_scans_left(b) == 0;
  struct kv_rec r;
  OK(sst_read_some(t, pos, 200, true, h, &r));
  assert_rec(&r, right);
  if (full) assert_true(h->cb.own_size <= (had > alone ? had : alone));
}

// Scans that read ahead, each in its own way, keep no more for that than the account has room for, and read the right
// records where it has none. The account has all that they keep, and nothing when they end.
static void test_room(void **state) {
  (void)state;
  struct model m = model_make(TEXT, 4000);
  for (uint32_t v = 0; v < 4; v++) {
    struct world *const w = world_open(env_posix(), v & 2 ? 1u << 20 : 0, false);
    struct budget b;
    budget_init(&b);
    atomic_store(&b.scans_most, ROOM_PAGES * BLOCK_PAGE);
    w->ctx.budget = &b;
    sst_pos *pos;
    struct sst *const t = table_new(w, 1, &m, opts(false, v & 1), &pos);
    struct sst_hold holds[ROOM_HOLDS] = {0};
    uint32_t full = 0, some = 0;
    uint64_t ahead;
    for (uint32_t n = 0; n < 2000; n++) {
      struct sst_hold *const h = &holds[below(ROOM_HOLDS)];
      const uint32_t at = below(m.nr), block = sst_pos_block(pos[at]), most = t->nr_pages - block,
                     nr = 1 + below(most < 24 ? most : 24), how = below(9);
      const struct sst_need need = {t, block, block + sst_block_pages(t, block), h};
      epoch_enter(&w->epoch, &w->slot);
      if (how < 3) sst_hold_readahead(t, block, nr, 0, h);
      else if (how < 5) sst_hold_readahead_back(t, block, nr, 0, h);
      else if (how < 7) sst_fetch(w->q, &need, 1);
      else if (how < 8) sst_hold_fini(h);
      else room_few(t, &b, pos[at], &m.r[at], h);
      const bool ahead_of_it = sst_holds_ahead(h, t, block);
      if (how < 7) *(ahead_of_it ? &some : &full) += 1;
      if (how < 5 && !ahead_of_it) assert_true(sst_ahead_memory(&h->ahead[0]) + sst_ahead_memory(&h->ahead[1]) == 0);
      ahead_is(t, &m, pos, at, h);
      ahead_is(t, &m, pos, at + 1 < m.nr ? at + 1 : at, h);
      epoch_exit(&w->slot);
      assert_int_equal(budget_used(&b, BUDGET_SCANS), room_kept(holds, &ahead));
      if (!t->offs) assert_true(ahead <= ROOM_PAGES * BLOCK_PAGE);
    }
    assert_true(some > 100 && full > 100);
    for (uint32_t i = 0; i < ROOM_HOLDS; i++) sst_hold_fini(&holds[i]);
    assert_int_equal(budget_used(&b, BUDGET_SCANS), 0);
    table_end(t, pos);
    world_close(w);
    budget_fini(&b);
  }
  model_free(&m);
}

// Direct reads get memory that is aligned for them, also from a hold whose memory was not.
static void test_ahead_aligned(void **state) {
  (void)state;
  struct model m = model_make(TEXT, 1500);
  struct world *const w = world_open(env_posix(), 0, false);
  sst_pos *pos;
  struct sst *const t = table_new(w, 1, &m, opts(false, false), &pos);
  struct sst_ahead a[16] = {{0}};
  struct blkio_read read;
  uint32_t odd = 0;
  for (uint32_t direct = 0; direct < 2; direct++) {
    w->ctx.direct_io = direct;
    for (uint32_t i = 0; i < 16; i++) {
      assert_true(sst_ahead_begin(&a[i], t, i, 1 + i % 4, false, &read));
      if (direct) assert_int_equal((uintptr_t)read.buf % BLKIO_ALIGN, 0);
      else odd += (uintptr_t)read.buf % BLKIO_ALIGN != 0;
      sst_ahead_end(&a[i], t, REMIXDB_ABORTED);  // nothing was read
    }
  }
  if (!LIB_SANITIZED) assert_true(odd > 0);
  for (uint32_t i = 0; i < 16; i++) sst_ahead_fini(&a[i]);
  table_end(t, pos);
  world_close(w);
  model_free(&m);
}

// ---- many blocks at once

struct many {
  struct sst *t[2];
  sst_pos *pos[2];
  const struct model *m;
  struct sst_batch *batch;
  struct sst_hold holds[SST_BATCH_MAX];
  struct sst_room room;
  uint32_t nr;
};

// Makes requests for up to SST_BATCH_MAX blocks of both tables, in order.
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

// Adds the requests, at once or in parts, with a queue of the thread's own or with the shared one.
static enum remixdb_status many_read(struct many *x, struct world *w) {
  for (uint32_t i = 0; i < SST_BATCH_MAX; i++)
    if (x->holds[i].cb.given) sst_hold_fini(&x->holds[i]);
  sst_batch_begin(x->batch, below(2) ? w->q : blkio_shared(&w->io), below(4) ? &x->room : NULL);
  const uint32_t most = below(2) ? SST_BATCH_MAX : 1 + below(40);
  for (uint32_t at = 0, step; at < x->nr; at += step) {
    step = x->nr - at < most ? x->nr - at : most;
    sst_batch_add(x->batch, step);
  }
  return sst_batch_end(x->batch);
}

// The records of every block that was read are right, and the holds are good for sst_read.
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
    x->t[k] = table_new(w, 1 + k, m, opts(false, zstd && k == 0), &x->pos[k]);
  }
}

static void many_close(struct many *x) {
  for (uint32_t i = 0; i < SST_BATCH_MAX; i++) sst_hold_fini(&x->holds[i]);
  sst_room_fini(&x->room);
  for (uint32_t k = 0; k < 2; k++) {
    table_end(x->t[k], x->pos[k]);
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
      const uint64_t reads = reads_of(w);
      epoch_enter(&w->epoch, &w->slot);
      many_want(&x);
      OK(many_read(&x, w));
      if (!ways[v].cache) assert_int_equal(reads_of(w), reads + x.nr);
      for (uint32_t i = 0; i < x.nr; i++) OK(x.batch->requests[i].status);
      many_check(&x);
      if (ways[v].cache == 32 << 20) {  // a cache with room keeps them
        const uint64_t before = reads_of(w);
        OK(many_read(&x, w));
        assert_int_equal(reads_of(w), before);
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

static _Atomic uint32_t nr_allocs;

static bool count_allocs(size_t size) {
  (void)size;
  atomic_fetch_add(&nr_allocs, 1);
  return true;
}

// Reads the first nr blocks of a table together. Returns how often that asked the allocator.
static uint32_t room_read(struct many *x, struct world *w, uint32_t nr) {
  for (x->nr = 0; x->nr < nr; x->nr++)
    x->batch->requests[x->nr] = (struct sst_request){.sst = x->t[0], .block = x->nr, .hold = &x->holds[x->nr]};
  epoch_enter(&w->epoch, &w->slot);
  atomic_store(&nr_allocs, 0);
  atomic_store(&mem_fault, count_allocs);
  sst_batch_begin(x->batch, w->q, &x->room);
  sst_batch_add(x->batch, nr / 2);
  sst_batch_add(x->batch, nr - nr / 2);
  const enum remixdb_status s = sst_batch_end(x->batch);
  atomic_store(&mem_fault, NULL);
  OK(s);
  many_check(x);
  epoch_exit(&w->slot);
  for (uint32_t i = 0; i < nr; i++) sst_hold_fini(&x->holds[i]);
  return atomic_load(&nr_allocs);
}

// Blocks without frames are read into memory that serves batch after batch, and is counted as that of scans. Where the
// account has no room for it, each block has its own.
static void test_room_of_batches(void **state) {
  (void)state;
  struct model m = model_make(TEXT, 3000);
  struct world *const w = world_open(env_posix(), 0, false);
  struct budget b;
  budget_init(&b);
  w->ctx.budget = &b;
  struct many x;
  many_open(&x, w, &m, false);
  assert_int_equal(room_read(&x, w, 100), 100);
  assert_int_equal(budget_used(&b, BUDGET_SCANS), 0);
  assert_int_equal(room_read(&x, w, 100), 1);
  assert_in_range(x.room.size, 100, 200);
  for (uint32_t nr = 1; nr <= 100; nr += 33) {
    assert_int_equal(room_read(&x, w, nr), 0);
    assert_int_equal(budget_used(&b, BUDGET_SCANS), x.room.size * BLOCK_PAGE);
  }
  atomic_store(&b.scans_most, x.room.size * BLOCK_PAGE);
  const uint32_t more = x.room.size + 10;
  for (uint32_t round = 0; round < 3; round++) assert_int_equal(room_read(&x, w, more), 10);
  atomic_store(&b.scans_most, 4 * x.room.size * BLOCK_PAGE);
  assert_int_equal(room_read(&x, w, more), 1);
  assert_int_equal(room_read(&x, w, more), 0);
  assert_int_equal(budget_used(&b, BUDGET_SCANS), x.room.size * BLOCK_PAGE);
  sst_room_fini(&x.room);
  assert_int_equal(budget_used(&b, BUDGET_SCANS), 0);
  many_close(&x);
  world_close(w);
  budget_fini(&b);
  model_free(&m);
}

static bool deny_large(size_t size) { return size <= 128u << 10; }

// With memory for one block, but not for many, the blocks are read one by one, and all memory is given back.
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
    const uint64_t reads = reads_of(w);
    atomic_store(&mem_fault, deny_large);
    OK(many_read(&x, w));
    atomic_store(&mem_fault, NULL);
    assert_int_equal(reads_of(w), reads + x.nr);
    many_check(&x);
    many_drop(&x);
  }
  epoch_exit(&w->slot);
  many_close(&x);
  world_close(w);
  model_free(&m);
}

// Damages a block of the second table: its request says so, and all others are good.
static void many_of_damage(struct many *x, struct world *w) {
  const uint32_t block = sst_pos_block(x->pos[1][x->m->nr / 2]);
  const int fd = open(x->t[1]->path, O_WRONLY);
  assert_true(fd >= 0);
  assert_int_equal(pwrite(fd, "damaged", 7, (off_t)block * BLOCK_PAGE + 200), 7);
  assert_int_equal(close(fd), 0);
  for (uint32_t i = 0; i < SST_BATCH_MAX; i++) sst_hold_fini(&x->holds[i]);
  struct sst *const stale = x->t[1];  // its blocks may be in the cache
  OK(sst_open(&w->ctx, 2, &x->t[1]));
  sst_unref(stale);
  epoch_enter(&w->epoch, &w->slot);
  for (x->nr = 0; x->nr < 40; x->nr++) {
    const uint32_t at = block - 20 + x->nr;
    x->batch->requests[x->nr] = (struct sst_request){.sst = x->t[1], .block = at, .hold = &x->holds[x->nr]};
  }
  FAILS(many_read(x, w), REMIXDB_CORRUPT);
  assert_non_null(strstr(err_msg(), "000002.sst"));
  for (uint32_t i = 0; i < x->nr; i++)
    assert_int_equal(x->batch->requests[i].status, x->batch->requests[i].block == block ? REMIXDB_CORRUPT : REMIXDB_OK);
  many_check(x);
  epoch_exit(&w->slot);
}

// Requests that fail say so, and all others are served. Afterwards all succeed.
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
      fault_mem_set_lasting(n + 1);
      const enum remixdb_status s = many_read(&x, w);
      (void)fault_mem_end();
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
    many_of_damage(&x, w);
    many_close(&x);
    world_close(w);
  }
  model_free(&m);
}

// Other users have all descriptors, so no read of a batch can begin, and the blocks are read one by one. The batch
// gives its lane of the disk engine back all the same: as many batches as there are lanes leave none of them taken.
static void test_many_without_descriptors(void **state) {
  (void)state;
  struct model m = model_make(TEXT, 300);
  struct many x;
  for (uint32_t v = 0; v < 8; v++) {  // each kind of disk engine twice
    struct world *const w = world_open(env_posix(), v & 1 ? 1u << 20 : 0, v & 4);
    struct fdpool_file others[2];
    int fd;
    many_open(&x, w, &m, v & 2);
    fdpool_set_max(w->fds, 2);
    for (uint32_t i = 0; i < 2; i++) {
      fdpool_add(w->fds, &others[i], &w->at, x.t[i]->path, ENV_READ);
      OK(fdpool_acquire(&others[i], &fd));
    }
    atomic_store(&fdpool_patience_ns, 1);
    for (uint32_t n = 0; n < BLKIO_LANES_MAX; n++) {
      epoch_enter(&w->epoch, &w->slot);
      many_want(&x);
      OK(many_read(&x, w));
      many_check(&x);
      epoch_exit(&w->slot);
      many_drop(&x);
    }
    atomic_store(&fdpool_patience_ns, FDPOOL_PATIENCE_NS);
    for (uint32_t i = 0; i < 2; i++) {
      fdpool_release(&others[i]);
      fdpool_remove(&others[i]);
    }
    many_close(&x);
    world_close(w);
  }
  model_free(&m);
}

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
  return a->kind == b->kind && kv_eq(kref(a->key, a->klen), kref(b->key, b->klen)) &&
         kv_eq(kref(a->val, a->vlen), kref(b->val, b->vlen));
}

// Reads at random, with one record pinned over many epochs.
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
  // this thread opens and closes tables beside them
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

int main(void) {
  (void)check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_holds),
      cmocka_unit_test(test_prefetch),
      cmocka_unit_test(test_ahead),
      cmocka_unit_test(test_ahead_fails),
      cmocka_unit_test(test_room),
      cmocka_unit_test(test_ahead_spoilt),
      cmocka_unit_test(test_ahead_aligned),
      cmocka_unit_test(test_many),
      cmocka_unit_test(test_room_of_batches),
      cmocka_unit_test(test_many_one_by_one),
      cmocka_unit_test(test_many_fails),
      cmocka_unit_test(test_many_without_descriptors),
      cmocka_unit_test(test_threads),
  };
  return check_seed_end(cmocka_run_group_tests(tests, root_setup, root_teardown));
}
