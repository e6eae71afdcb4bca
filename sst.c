// SPDX-License-Identifier: Apache-2.0
#include "sst.h"

#include <assert.h>
#include <stdio.h>

#include "base/zmem.h"
#include "table/format.h"
#include "table/pieces.h"
#include "table/readahead.h"
#include "table/stored.h"

_Static_assert(BLOCK_PAGE == FORMAT_SST_PAGE && SST_PAGES_MAX == FORMAT_SST_PAGES_MAX &&
                   BLOCK_RECORDS_MAX == FORMAT_SST_BLOCK_RECORDS,
               "one set of limits");
_Static_assert(BLOCK_PAGE == CACHE_PAGE && BLOCK_PAGES_MAX == CACHE_BLOCK_PAGES, "a block fits a frame");
_Static_assert(BLKIO_ALIGN == FORMAT_SST_ALIGN, "aligned reads do not pass the end of a file");

// ---- opening and closing

void sst_name(char *buf, uint64_t number) { files_table_name(buf, number); }

size_t sst_memory(const struct sst *t) {
  size_t n = sizeof(*t) + t->nr_pages + 1 + t->min.len + t->max.len + strlen(t->path) + 1 + sst_pieces_memory(t);
  if (t->cache.cache) n += (size_t)t->nr_pages * sizeof(*t->cache.slots);
  if (t->offs) n += ((size_t)t->nr_pages + 1) * sizeof(*t->offs);
  if (t->zdict) n += ZSTD_sizeof_DDict(t->zdict);
  return n;
}

static void sst_free(struct sst *t) {
  cache_table_fini(&t->cache);
  if (t->file.pool) fdpool_remove(&t->file);
  mem_free(atomic_load_explicit(&t->pieces, memory_order_relaxed));
  mem_free(t->nr_recs);
  mem_free(t->offs);
  (void)ZSTD_freeDDict(t->zdict);
  mem_free((void *)(uintptr_t)t->min.ptr);  // max lies behind it
  mem_free(t->path);
  mem_free(t);
  sst_scratch_leave();
}

// Blocks begin where the counts are not zero; a block has at most 16 pages, and the counts add up. Sets what sst_advance goes by.
static enum remixdb_status sst_check_pages(struct sst *t, uint64_t off) {
  uint64_t sum = 0;
  uint32_t pages = BLOCK_PAGES_MAX;  // of the block so far: a first page of 0 is one too many
  t->last = 0;
  t->least = BLOCK_RECORDS_MAX + 1;
  for (uint32_t i = 0; i < t->nr_pages; i++) {
    sum += t->nr_recs[i];
    if (t->nr_recs[i]) {
      if (i > 0 && t->nr_recs[t->last] < t->least) t->least = t->nr_recs[t->last];
      t->last = i;
      pages = 1;
    } else if (++pages > BLOCK_PAGES_MAX) {
      return err_corrupt(t->path, off + i, "page %u of a table belongs to no block", i);
    }
  }
  if (sum != t->nr_records) return err_corrupt(t->path, off, "counts of records do not add up");
  return REMIXDB_OK;
}

// File offsets of the blocks, from their stored sizes.
static enum remixdb_status sst_decode_sizes(struct sst *t, const uint8_t *p, const uint8_t *end, uint64_t off) {
  t->offs = mem_alloc(((size_t)t->nr_pages + 1) * sizeof(*t->offs));
  if (!t->offs) return REMIXDB_NOMEM;
  uint64_t at = 0;
  for (uint32_t block = 0; block < t->nr_pages;) {
    const uint32_t pages = sst_block_pages(t, block);
    uint32_t size;
    p = kv_varint_get(p, end, &size);
    // stored raw it is one byte longer than a plain block, the kind
    if (!p || size <= FORMAT_SST_STORED_HEAD || size > pages * BLOCK_PAGE + 1)
      return err_corrupt(t->path, off, "stored size of block %u", block);
    for (uint32_t i = 0; i < pages; i++) t->offs[block + i] = at;
    at += size;
    block += pages;
  }
  t->offs[t->nr_pages] = at;
  if (p != end || at != t->data_size) return err_corrupt(t->path, off, "stored sizes of blocks do not add up");
  return REMIXDB_OK;
}

static enum remixdb_status sst_decode_meta(struct sst *t, const struct format_sst_footer *f, const uint8_t *meta) {
  if (f->meta_sum != hash64_seed(meta, f->meta_len, format_sst_meta_seed(t->number)))
    return err_corrupt(t->path, f->meta_off, "checksum of metadata");
  const uint8_t *const min = meta + t->nr_pages, *const dict = min + f->min_len + f->max_len, *const sizes = dict + f->dict_len;

  // one more, not zero, ends the last block
  t->nr_recs = mem_alloc((size_t)t->nr_pages + 1);
  if (!t->nr_recs) return REMIXDB_NOMEM;
  memcpy(t->nr_recs, meta, t->nr_pages);
  t->nr_recs[t->nr_pages] = 1;
  enum remixdb_status s = sst_check_pages(t, f->meta_off);
  if (s != REMIXDB_OK) return s;

  uint8_t *const keys = mem_alloc((size_t)f->min_len + f->max_len);
  if (!keys) return REMIXDB_NOMEM;
  if (f->min_len + f->max_len) memcpy(keys, min, f->min_len + f->max_len);
  t->min = kref(keys, f->min_len);
  t->max = kref(keys + f->min_len, f->max_len);
  const int order = kv_cmp(t->min, t->max);
  if (order > 0 || (order == 0) != (t->nr_records == 1))
    return err_corrupt(t->path, f->meta_off + t->nr_pages, "smallest and largest key");

  if (f->dict_len) {
    bool lacking = false;
    t->zdict = ZSTD_createDDict_advanced(dict, f->dict_len, ZSTD_dlm_byCopy, ZSTD_dct_auto, zmem_telling(&lacking));
    if (!t->zdict) return lacking ? REMIXDB_NOMEM : err_corrupt(t->path, f->meta_off + (uint64_t)(dict - meta), "malformed dictionary");
  }
  if (f->flags & FORMAT_SST_FLAG_ZSTD) return sst_decode_sizes(t, sizes, sizes + f->sizes_len, f->meta_off);
  return REMIXDB_OK;
}

static enum remixdb_status sst_load_meta(struct sst *t, int fd) {
  struct blkio *const io = t->ctx->io;
  struct format_sst_footer f;
  uint8_t *meta = NULL;
  uint8_t *const tail = mem_alloc_aligned(BLKIO_ALIGN, BLKIO_ALIGN);
  enum remixdb_status s = tail ? REMIXDB_OK : REMIXDB_NOMEM;
  if (s == REMIXDB_OK) s = blkio_read_one(io, fd, t->path, tail, BLKIO_ALIGN, t->file_size - BLKIO_ALIGN);
  if (s == REMIXDB_OK) s = format_sst_footer_get(tail + BLKIO_ALIGN - FORMAT_SST_FOOTER, t->file_size, t->path, &f);
  if (s != REMIXDB_OK) goto out;

  const uint64_t foot = t->file_size - FORMAT_SST_FOOTER;
  if (f.number != t->number) {
    s = err_corrupt(t->path, foot, "this is table %llu", (unsigned long long)f.number);
    goto out;
  }
  if (f.store_id != t->ctx->store_id) {
    s = err_corrupt(t->path, foot, "table of another store (%016llx)", (unsigned long long)f.store_id);
    goto out;
  }
  t->nr_pages = f.nr_pages;
  t->nr_records = f.nr_records;
  t->nr_tombs = f.nr_tombs;
  t->key_bytes = f.key_bytes;
  t->value_bytes = f.value_bytes;
  t->data_size = f.data_size;
  const uint32_t klen = (uint32_t)(f.key_bytes / f.nr_records), vlen = (uint32_t)(f.value_bytes / f.nr_records);
  t->rec_size = (uint32_t)kv_rec_size(klen, vlen, false);
  t->ckb_off = f.ckb_off;
  t->ckb_len = f.ckb_len;

  const uint64_t from = sst_align_down(f.meta_off);
  const uint32_t len = (uint32_t)(t->file_size - from);  // bounded by the footer's checks to less than 1 MB
  meta = mem_alloc_aligned(BLKIO_ALIGN, len);
  s = meta ? blkio_read_one(io, fd, t->path, meta, len, from) : REMIXDB_NOMEM;
  if (s == REMIXDB_OK) s = sst_decode_meta(t, &f, meta + (f.meta_off - from));
out:
  mem_free(tail);
  mem_free(meta);
  return s;
}

enum remixdb_status sst_open(const struct sst_ctx *ctx, uint64_t number, struct sst **out) {
  *out = NULL;
  struct sst *const t = mem_calloc(1, sizeof(*t));
  if (!t) return REMIXDB_NOMEM;
  sst_scratch_enter();
  t->ctx = ctx;
  t->number = number;
  atomic_init(&t->pieces, NULL);
  atomic_init(&t->refs, 1);
  atomic_init(&t->obsolete, false);

  char name[32], path[ENV_PATH_MAX];
  struct env_stat st;
  int fd;
  sst_name(name, number);
  enum remixdb_status s = env_path(path, ctx->dir->path, name);
  if (s != REMIXDB_OK) goto out;
  const size_t path_size = strlen(path) + 1;
  t->path = mem_alloc(path_size);
  if (!t->path) {
    s = REMIXDB_NOMEM;
    goto out;
  }
  memcpy(t->path, path, path_size);
  s = env_stat(ctx->dir, env_name(t->path), &st);
  if (s == REMIXDB_NOTFOUND) s = err_corrupt(t->path, 0, "table is missing");
  if (s != REMIXDB_OK) goto out;
  t->file_size = st.size;
  if (st.size == 0 || st.size % FORMAT_SST_ALIGN) {
    s = err_corrupt(t->path, st.size, "table is truncated or of a wrong size");
    goto out;
  }

  fdpool_add(ctx->fds, &t->file, ctx->dir, t->path, ENV_READ | (ctx->direct_io ? ENV_DIRECT : 0));
  s = fdpool_acquire(&t->file, &fd);
  if (s != REMIXDB_OK) goto out;
  s = sst_load_meta(t, fd);
  fdpool_release(&t->file);
  if (s == REMIXDB_OK) s = cache_table_init(&t->cache, ctx->cache, t->nr_pages, number);
out:
  if (s != REMIXDB_OK) {
    sst_free(t);
    return s;
  }
  *out = t;
  return REMIXDB_OK;
}

void sst_give_pieces(struct sst *t, struct sst_pieces *p) {
  if (sst_pieces_suit(t)) atomic_store_explicit(&t->pieces, p, memory_order_release);
  else mem_free(p);
}

void sst_ref(struct sst *t) { (void)atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed); }

void sst_unref(struct sst *t) {
  // acq_rel: what others did with it happened before it goes
  if (!t || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1) return;
  if (atomic_load_explicit(&t->obsolete, memory_order_relaxed)) {
    if (t->ctx->retired) sst_retired_add(t->ctx->retired, -1, t->file_size);
    // a file left over takes room only: the next opening of the store removes it
    const enum remixdb_status s = env_unlink(t->ctx->dir, env_name(t->path));
    (void)s;
  }
  sst_free(t);
}

void sst_retire(struct sst *t) {
  if (!atomic_exchange_explicit(&t->obsolete, true, memory_order_relaxed) && t->ctx->retired) sst_retired_add(t->ctx->retired, 1, t->file_size);
}

// ---- blocks

static enum remixdb_status sst_load_at(struct sst *t, int fd, uint32_t block, uint32_t pages, uint8_t *buf) {
  struct blkio *const io = t->ctx->io;
  const uint64_t off = sst_block_off(t, block);
  const uint32_t len = sst_block_stored(t, block, pages);
  const bool aligned = !t->ctx->direct_io || (uintptr_t)buf % BLKIO_ALIGN == 0;
  if (likely(!t->offs && aligned)) {
    const enum remixdb_status s = blkio_read_one(io, fd, t->path, buf, len, off);
    return s == REMIXDB_OK ? block_verify(buf, pages, t->nr_recs[block], t->number, block, t->path, off) : s;
  }
  struct sst_scratch *const x = sst_scratch_take();
  if (!x) return REMIXDB_NOMEM;
  const uint64_t from = t->ctx->direct_io ? sst_align_down(off) : off;
  const uint64_t to = t->ctx->direct_io ? align_up(off + len, BLKIO_ALIGN) : off + len;
  enum remixdb_status s = sst_scratch_reserve(x, SST_BLOCK_BYTES + 2 * BLKIO_ALIGN);
  if (s == REMIXDB_OK) s = blkio_read_one(io, fd, t->path, x->buf, (uint32_t)(to - from), from);
  if (s == REMIXDB_OK) {
    if (t->offs) {
      s = sst_unpack(t, block, pages, x->buf + (off - from), len, &x->zstd, buf);
    } else {
      memcpy(buf, x->buf, len);
      s = block_verify(buf, pages, t->nr_recs[block], t->number, block, t->path, off);
    }
  }
  sst_scratch_give(x);
  return s;
}

// What a miss is to load: of the table's block the nr records from idx on, or to memory of its own `span` bytes from the block's beginning on (0: no more than the block). from, to: those
// that were loaded; span is 0 when what lies behind them was not.
struct load {
  struct sst *t;
  uint32_t idx, nr, span, from, to;
};

static enum remixdb_status sst_load(void *arg, uint32_t block, uint32_t nr_pages, uint8_t *buf, bool own) {
  struct load *const l = arg;
  struct sst *const t = l->t;
  int fd;
  enum remixdb_status s = fdpool_acquire(&t->file, &fd);
  if (s != REMIXDB_OK) return s;
  const bool few = own && l->nr != SST_ALL;
  l->from = l->to = 0;
  s = few ? sst_pieces_read(t, fd, block, l->idx, l->nr, l->span, buf, &l->from, &l->to) : REMIXDB_NOTFOUND;
  if (unlikely(l->span && s != REMIXDB_OK && s != REMIXDB_NOTFOUND)) {  // it may be what lies behind that cannot be read
    l->span = 0;
    s = sst_pieces_read(t, fd, block, l->idx, l->nr, 0, buf, &l->from, &l->to);
  }
  if (s == REMIXDB_NOTFOUND) {
    l->span = 0;
    s = sst_load_at(t, fd, block, nr_pages, buf);
    l->from = 0;
    l->to = SST_ALL;
    if (few && s == REMIXDB_OK) sst_pieces_learn(t, block, buf);
  }
  fdpool_release(&t->file);
  return s;
}

static inline void sst_hold_set(struct sst_hold *h, struct sst *t, uint32_t block) {
  h->sst = t;
  h->number = t->number;
  h->block = block;
  h->from = 0;
  h->to = SST_ALL;
  h->own_bytes = 0;
}

static __attribute__((noinline)) enum remixdb_status sst_read_slow(struct sst *t, uint32_t block, uint32_t idx, uint32_t nr, struct sst_hold *h) {
  const uint32_t pages = sst_block_pages(t, block);
  struct load l = {.t = t, .idx = idx, .nr = nr, .from = 0, .to = SST_ALL};
  h->sst = NULL;
  h->cb.data = NULL;
  if (nr != SST_ALL && nr > t->nr_recs[block] - idx && (l.span = sst_pieces_span(t, block, idx, nr)) != 0 &&
      cache_block_reserve(&h->cb, (l.span + BLOCK_PAGE - 1) / BLOCK_PAGE + BLOCK_GROW_PAGES) != REMIXDB_OK)
    l.span = 0;
  const enum remixdb_status s = cache_get(&t->cache, block, pages, sst_load, &l, &h->cb);
  if (s != REMIXDB_OK) return s;
  sst_hold_set(h, t, block);
  h->from = l.from;
  h->to = l.to;
  if (l.span && h->cb.frame == 0) {
    h->own_first = block;
    h->own_bytes = l.span;
  }
  return REMIXDB_OK;
}

// The block was read with the one before it that h holds, or some of it was. REMIXDB_NOTFOUND: nothing that is of use.
static __attribute__((noinline)) enum remixdb_status sst_take_behind(struct sst *t, uint32_t block, struct sst_hold *h) {
  const uint32_t first = h->own_first, bytes = h->own_bytes, at = (block - first) * BLOCK_PAGE;
  uint32_t nr;
  const enum remixdb_status s = sst_pieces_check(t, block, bytes - at, h->cb.own + at, &nr);
  if (s != REMIXDB_OK) return s;
  sst_hold_set(h, t, block);
  h->cb.data = h->cb.own + at;
  h->own_first = first;
  h->own_bytes = bytes;
  h->to = nr == t->nr_recs[block] ? SST_ALL : nr;
  return REMIXDB_OK;
}

// h holds some of the block, but not what is to be read now. All that lies on that side of it comes to the same memory: who goes on in a block, or comes back to it, is likely to do so again.
// To the cache that is no new miss. REMIXDB_NOTFOUND: the block has to be read whole.
static __attribute__((noinline)) enum remixdb_status sst_read_more(struct sst *t, uint32_t block, uint32_t idx, uint32_t nr, struct sst_hold *h) {
  const uint32_t from = idx < h->from || nr == SST_ALL ? 0 : idx, last = idx >= h->to || nr == SST_ALL ? t->nr_recs[block] - 1u : idx;
  int fd;
  uint8_t *const buf = h->cb.own + (h->cb.data - h->cb.own);
  assert(h->cb.data >= h->cb.own && h->cb.data + sst_block_pages(t, block) * BLOCK_PAGE <= h->cb.own + h->cb.own_size && h->to != SST_ALL);
  enum remixdb_status s = fdpool_acquire(&t->file, &fd);
  if (s == REMIXDB_OK) {
    s = sst_pieces_read(t, fd, block, from, last - from + 1, 0, buf, &h->from, &h->to);
    fdpool_release(&t->file);
  }
  if (s == REMIXDB_OK && h->from == 0 && h->to == t->nr_recs[block]) h->to = SST_ALL;
  if (s != REMIXDB_OK && s != REMIXDB_NOTFOUND) sst_hold_drop(h);
  return s;
}

enum remixdb_status sst_read_few(struct sst *t, sst_pos pos, uint32_t nr, bool pin, struct sst_hold *h, struct kv_rec *rec_out) {
  const uint32_t block = sst_pos_block(pos), idx = sst_pos_idx(pos);
  assert(block < t->nr_pages && idx < t->nr_recs[block]);
  if (!sst_holds_few(h, t, block, idx, nr)) {
    if (unlikely(sst_holds_ahead(h, t, block))) {
      const enum remixdb_status s = sst_take_ahead(t, block, h);
      if (unlikely(s != REMIXDB_OK)) return s;
      sst_hold_set(h, t, block);
      block_record(h->cb.data, idx, rec_out);
      return REMIXDB_OK;
    }
    if (unlikely(h->cb.pinned)) sst_hold_drop(h);
    uint32_t frame;
    const uint8_t *const data = t->cache.cache ? cache_hit(&t->cache, block, &frame) : NULL;
    if (likely(data != NULL)) {
      sst_want_all(t, data, block, idx);
      h->cb.data = data;
      h->cb.frame = frame;
      sst_hold_set(h, t, block);
    } else {
      enum remixdb_status s = REMIXDB_NOTFOUND;
      if (sst_holds_behind(h, t, block)) s = sst_take_behind(t, block, h);
      if (sst_holds(h, t, block) && !sst_holds_few(h, t, block, idx, nr)) s = sst_read_more(t, block, idx, nr, h);
      if (s == REMIXDB_NOTFOUND) s = sst_read_slow(t, block, idx, nr, h);
      if (s != REMIXDB_OK) return s;
    }
    if (pin && h->cb.frame) cache_block_pin(&t->cache, &h->cb);
  }
  block_record(h->cb.data, idx, rec_out);
  return REMIXDB_OK;
}

#define STRETCH_BYTES 4096u  // the processor itself goes on with what is larger

// To the second level: there is more room on the way to it, so that the processor waits less for room to ask, and the first is near from there.
static void want_bytes(const uint8_t *p, size_t nr) {
  for (size_t o = 0; o < nr; o += CACHE_LINE) prefetch_far(p + o);
}

void sst_want_stretch(const struct sst *t, sst_pos pos, uint32_t nr, const struct sst_hold *h) {
  uint32_t block = sst_pos_block(pos), idx = sst_pos_idx(pos);
  while (nr > 0 && block < t->nr_pages) {
    const uint32_t recs = t->nr_recs[block], n = nr < recs - idx ? nr : recs - idx;
    const uint8_t *data;
    size_t from, to;
    if (sst_holds_few(h, t, block, idx, n) && idx + n < h->to) {
      data = h->cb.data;
      from = load16le(data + BLOCK_HEAD + 2 * idx);
      to = idx + n < recs ? load16le(data + BLOCK_HEAD + 2 * (idx + n)) : from + (size_t)n * t->rec_size;
    } else {
      data = cache_want(&t->cache, block);
      if (!data) return;
      prefetch(data + BLOCK_HEAD + 2 * recs - 1);
      from = BLOCK_HEAD + 2 * recs + (size_t)idx * t->rec_size;
      to = from + (size_t)n * t->rec_size;
    }
    want_bytes(data + from, to - from < STRETCH_BYTES ? to - from : STRETCH_BYTES);
    nr -= n;
    block += sst_block_pages(t, block);
    idx = 0;
  }
}

void sst_hold_drop(struct sst_hold *h) {
  // only a pin needs the table, and keeps it
  if (h->cb.pinned) cache_block_drop(&h->sst->cache, &h->cb);
  h->cb.data = NULL;
  h->cb.frame = 0;
  h->sst = NULL;
}

void sst_hold_fini(struct sst_hold *h) {
  sst_hold_drop(h);
  cache_block_fini(NULL, &h->cb);
  sst_ahead_free(h->ahead);
  h->ahead = NULL;
  h->ahead_from = h->ahead_to = 0;
}

// ---- many blocks at once

static void batch_fail(struct sst_batch *b, struct sst_want *w, enum remixdb_status s) {
  w->status = s;
  if (b->error.status == REMIXDB_OK) err_save(&b->error, s);
}

// What has been read is made the block and published while the other reads are on their way.
static void batch_done(void *arg, struct blkio_read *read) {
  struct sst_batch *const b = arg;
  const size_t i = (size_t)(read - b->reads);
  struct sst_want *const w = b->of[i].want;
  struct cache_fill *const fill = &b->of[i].fill;
  struct sst *const t = w->sst;
  const uint32_t pages = b->of[i].pages;
  const uint64_t off = sst_block_off(t, w->block);
  enum remixdb_status s = read->status;
  if (likely(s == REMIXDB_OK))
    s = t->offs ? sst_unpack(t, w->block, pages, (const uint8_t *)read->buf + (off - read->off), sst_block_stored(t, w->block, pages),
                             &b->scratch[b->of[i].part]->zstd, fill->buf)
                : block_verify(fill->buf, pages, t->nr_recs[w->block], t->number, w->block, t->path, off);
  cache_fill_end(&t->cache, w->block, pages, &w->hold->cb, fill, s == REMIXDB_OK);
  w->status = s;
  if (likely(s == REMIXDB_OK))
    sst_hold_set(w->hold, t, w->block);
  else
    batch_fail(b, w, s);
}

// Begins blocks of wants[from, to) that are not had yet and lists what is to be read; a compressed one in whole aligned pages, as direct I/O
// wants them, to memory that is given later. What cannot be begun now (another thread reads it, or this one does; memory or a
// descriptor is lacking) keeps its status.
static void batch_list(struct sst_batch *b, uint32_t from, uint32_t to) {
  const struct sst *opened = NULL;  // the table of the last read: it has been given a descriptor, one for all of its reads
  int fd = -1;
  for (uint32_t i = from; i < to; i++) {
    struct sst_want *const w = &b->wants[i];
    if (w->status != REMIXDB_ABORTED) continue;
    struct sst *const t = w->sst;
    const uint32_t pages = sst_block_pages(t, w->block), n = b->nr_reads;
    struct cache_fill *const fill = &b->of[n].fill;
    const enum cache_fill_begun begun = cache_fill_begin(&t->cache, w->block, pages, &w->hold->cb, fill);
    if (begun == CACHE_FILL_HIT) {
      sst_hold_set(w->hold, t, w->block);
      w->status = REMIXDB_OK;
    }
    if (begun != CACHE_FILL_READ) continue;
    b->of[n].opened = t != opened;
    if (t != opened) {
      if (!fdpool_try_acquire(&t->file, &fd)) {
        cache_fill_end(&t->cache, w->block, pages, &w->hold->cb, fill, false);
        opened = NULL;  // nor is there another one's any more
        continue;
      }
      opened = t;
    }
    const uint64_t off = sst_block_off(t, w->block), end = off + sst_block_stored(t, w->block, pages);
    const uint64_t begin = t->offs ? sst_align_down(off) : off, stop = t->offs ? align_up(end, BLKIO_ALIGN) : end;
    b->of[n].want = w;
    b->of[n].pages = pages;
    b->of[n].part = (uint8_t)b->nr_parts;
    b->reads[n] =
        (struct blkio_read){.fd = fd, .path = t->path, .buf = t->offs ? NULL : fill->buf, .len = (uint32_t)(stop - begin), .off = begin};
    b->nr_reads++;
  }
}

// Gives memory to those of the reads from `from` on that have none.
static bool batch_scratch(struct sst_batch *b, uint32_t from) {
  struct sst_scratch **const x = &b->scratch[b->nr_parts];
  size_t size = 0, at = 0;
  *x = NULL;
  for (uint32_t i = from; i < b->nr_reads; i++) size += b->reads[i].buf ? 0 : b->reads[i].len;
  if (size == 0) return true;
  *x = sst_scratch_take();
  if (!*x) return false;
  if (sst_scratch_reserve(*x, size) != REMIXDB_OK) {
    sst_scratch_give(*x);
    return false;
  }
  for (uint32_t i = from; i < b->nr_reads; i++) {
    if (b->reads[i].buf) continue;
    b->reads[i].buf = (*x)->buf + at;
    at += b->reads[i].len;
  }
  return true;
}

// Starts reading what can be begun of wants[from, to). False: nothing can, or it had to be given up for want of memory.
static bool batch_start(struct sst_batch *b, uint32_t from, uint32_t to) {
  const uint32_t first = b->nr_reads;
  if (b->nr_parts == SST_BATCH_PARTS) return false;
  batch_list(b, from, to);
  if (b->nr_reads == first) return false;
  if (batch_scratch(b, first)) {
    b->nr_parts++;
    blkio_batch_add(&b->io, b->nr_reads - first);
    return true;
  }
  for (uint32_t i = first; i < b->nr_reads; i++) {
    struct sst_want *const w = b->of[i].want;
    cache_fill_end(&w->sst->cache, w->block, b->of[i].pages, &w->hold->cb, &b->of[i].fill, false);
    if (b->of[i].opened) fdpool_release(&w->sst->file);
  }
  b->nr_reads = first;
  return false;
}

// Waits for what has been started, and gives back all that it took.
static void batch_finish(struct sst_batch *b) {
  if (blkio_batch_end(&b->io) != REMIXDB_OK) {
    // each read's status has been looked at
  }
  for (uint32_t i = 0; i < b->nr_reads; i++)
    if (b->of[i].opened) fdpool_release(&b->of[i].want->sst->file);
  for (uint32_t i = 0; i < b->nr_parts; i++) {
    if (b->scratch[i]) sst_scratch_give(b->scratch[i]);
  }
  b->nr_reads = b->nr_parts = 0;
  blkio_batch_begin(&b->io, b->io.q, b->reads, batch_done, b);
}

void sst_batch_begin(struct sst_batch *b, struct blkio_queue *q) {
  b->nr = b->nr_reads = b->nr_parts = 0;
  b->error.status = REMIXDB_OK;
  blkio_batch_begin(&b->io, q, b->reads, batch_done, b);
}

void sst_batch_add(struct sst_batch *b, uint32_t nr) {
  const uint32_t from = b->nr;
  assert(nr <= SST_BATCH_MAX - from);
  b->nr += nr;
  for (uint32_t i = from; i < b->nr; i++) {
    sst_hold_drop(b->wants[i].hold);
    b->wants[i].status = REMIXDB_ABORTED;  // neither had nor failed yet
  }
  (void)batch_start(b, from, b->nr);  // what is not started now is at the end
}

enum remixdb_status sst_batch_end(struct sst_batch *b) {
  // once more, unless there are more tables than descriptors: then as often as some can be opened
  do batch_finish(b);
  while (batch_start(b, 0, b->nr));
  // One by one what could not be begun. Only now, with nothing of its own begun, may this thread wait for others.
  for (uint32_t i = 0; i < b->nr; i++) {
    struct sst_want *const w = &b->wants[i];
    if (w->status != REMIXDB_ABORTED) continue;
    w->status = sst_read_slow(w->sst, w->block, 0, SST_ALL, w->hold);
    if (w->status != REMIXDB_OK) batch_fail(b, w, w->status);
  }
  return err_raise(&b->error);
}

// Verifies and offers the blocks from `block` to `to`, which lie one behind the other in what was read.
static void sst_prefetch_publish(struct sst *t, struct sst_scratch *x, uint32_t block, uint32_t to, const uint8_t *stored) {
  while (block < to) {
    const uint32_t pages = sst_block_pages(t, block), len = sst_block_stored(t, block, pages);
    const uint8_t *data = stored;
    if (t->offs) {
      if (!x->block) x->block = mem_alloc(SST_BLOCK_BYTES);
      if (!x->block || sst_unpack(t, block, pages, stored, len, &x->zstd, x->block) != REMIXDB_OK) return;
      data = x->block;
    } else if (block_verify(data, pages, t->nr_recs[block], t->number, block, t->path, sst_block_off(t, block)) != REMIXDB_OK) {
      return;
    }
    cache_offer(&t->cache, block, pages, data);
    stored += len;
    block += pages;
  }
}

void sst_prefetch_all(struct blkio_queue *q, const struct sst_stretch *stretches, uint32_t nr) {
  assert(nr <= BLKIO_BATCH_MAX);
  struct blkio_read reads[BLKIO_BATCH_MAX];
  const struct sst_stretch *of[BLKIO_BATCH_MAX];
  uint32_t nr_reads = 0;
  size_t size = 0;
  if (!q || nr == 0) return;
  for (uint32_t i = 0; i < nr; i++) {
    const struct sst_stretch *const s = &stretches[i];
    const uint64_t from = sst_align_down(sst_block_off(s->t, s->from)), to = align_up(sst_block_off(s->t, s->to), BLKIO_ALIGN);
    int fd;
    if (!s->t->cache.cache || !fdpool_try_acquire(&s->t->file, &fd)) continue;
    of[nr_reads] = s;
    reads[nr_reads++] = (struct blkio_read){.fd = fd, .path = s->t->path, .len = (uint32_t)(to - from), .off = from, .status = REMIXDB_ABORTED};
    size += to - from;
  }
  struct sst_scratch *const x = nr_reads ? sst_scratch_take() : NULL;
  const bool ready = x && sst_scratch_reserve(x, size) == REMIXDB_OK;
  size_t at = 0;
  for (uint32_t i = 0; i < nr_reads && ready; at += reads[i++].len) reads[i].buf = x->buf + at;
  if (ready && blkio_read_batch(q, reads, nr_reads) != REMIXDB_OK) {
    // each read has its own status; what failed is met again, and reported, by the read that needs it
  }
  for (uint32_t i = 0; i < nr_reads; i++) {
    struct sst *const t = of[i]->t;
    fdpool_release(&t->file);
    if (!ready || reads[i].status != REMIXDB_OK) continue;
    sst_prefetch_publish(t, x, of[i]->from, of[i]->to, (uint8_t *)reads[i].buf + (sst_block_off(t, of[i]->from) - reads[i].off));
  }
  if (x) sst_scratch_give(x);
}

void sst_prefetch(struct sst *t, struct blkio_queue *q, uint32_t first_block, uint32_t nr_pages) {
  if (!t->cache.cache || first_block >= t->nr_pages) return;
  assert(nr_pages <= BLKIO_BATCH_MAX);
  struct sst_stretch missing[BLKIO_BATCH_MAX];
  uint32_t nr = 0, block = first_block;
  while (block < t->nr_pages && t->nr_recs[block] == 0) block++;
  const uint32_t end = t->nr_pages - first_block < nr_pages ? t->nr_pages : first_block + nr_pages;
  bool joined = false;
  while (block < end) {
    const uint32_t pages = sst_block_pages(t, block);
    if (cache_has(&t->cache, block)) {
      joined = false;
    } else if (joined) {
      missing[nr - 1].to = block + pages;
    } else {
      missing[nr++] = (struct sst_stretch){t, block, block + pages};
      joined = true;
    }
    block += pages;
  }
  sst_prefetch_all(q, missing, nr);
}
