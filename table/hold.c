// SPDX-License-Identifier: Apache-2.0
#include "table/hold.h"

#include <assert.h>

#include "table/pieces.h"
#include "table/prefetch.h"
#include "table/records.h"
#include "table/stored.h"

// ---- the account of scans

// Brings the account up to date. Call it when h has got memory, or given some back.
static void hold_count(struct sst_hold *h, const struct sst *t) {
  const size_t has = (h->cb.given ? 0 : h->cb.own_size) + sst_ahead_memory(&h->ahead[0]) +
                     sst_ahead_memory(&h->ahead[1]);
  if (likely(has == h->counted)) return;
  if (!h->budget) h->budget = t->ctx->budget;
  budget_scans(h->budget, h->counted, has);
  h->counted = has;
}

// How many pages a may read, beside all that scans keep.
static uint32_t ahead_room(const struct sst_ahead *a, const struct sst *t) {
  const uint64_t left = budget_scans_left(t->ctx->budget), has = sst_ahead_memory(a), most = SST_FULL_PAGES;
  return left / BLOCK_PAGE < most ? (uint32_t)((left + has) / BLOCK_PAGE) : SST_FULL_PAGES;
}

// ---- blocks

static enum remixdb_status sst_load_at(struct sst *t, int fd, uint32_t block, uint32_t pages, uint8_t *buf) {
  struct blkio *const io = t->ctx->io;
  const uint64_t off = sst_block_off(t, block);
  const uint32_t len = sst_block_stored(t, block, pages);
  const bool aligned = !t->ctx->direct_io || (uintptr_t)buf % BLKIO_ALIGN == 0;
  if (likely(!t->offs && aligned)) {
    const enum remixdb_status s = blkio_read_one(io, fd, t->path, buf, len, off);
    return s == REMIXDB_OK ? block_verify(buf, pages, t->nr_recs[block], t->form, t->number, block, t->path, off) : s;
  }
  struct sst_scratch *const x = sst_scratch_take();
  if (!x) return REMIXDB_NOMEM;
  const uint64_t from = t->ctx->direct_io ? sst_align_down(off) : off;
  const uint64_t to = t->ctx->direct_io ? align_up(off + len, BLKIO_ALIGN) : off + len;
  enum remixdb_status s = sst_scratch_reserve(x, BLOCK_BYTES_MAX + 2 * BLKIO_ALIGN);
  if (s == REMIXDB_OK) s = blkio_read_one(io, fd, t->path, x->buf, (uint32_t)(to - from), from);
  if (s == REMIXDB_OK) {
    if (t->offs) {
      s = sst_unpack(t, block, pages, x->buf + (off - from), len, &x->zstd, buf);
    } else {
      memcpy(buf, x->buf, len);
      s = block_verify(buf, pages, t->nr_recs[block], t->form, t->number, block, t->path, off);
    }
  }
  sst_scratch_give(x);
  return s;
}

// Load request: records [idx, idx + nr) of one block. span: bytes to read from the block's beginning on, when it brings
// blocks behind it, too; 0: the block alone. The load sets [from, to), the records that are there, and makes span 0
// when it read nothing behind the block.
struct load {
  struct sst *t;
  uint32_t idx, nr, span, from, to;
};

static enum remixdb_status sst_load(void *arg, uint32_t block, uint32_t nr_pages, uint8_t *buf, bool own) {
  struct load *const l = arg;
  struct sst *const t = l->t;
  int fd;
  enum remixdb_status s = fdpool_acquire(t->file, &fd);
  if (s != REMIXDB_OK) return s;
  admission_note(t->ctx->admission, t->ctx->io, block_seed(t->number, block));
  const bool few = own && l->nr != SST_ALL;
  l->from = l->to = 0;
  s = few ? sst_pieces_read(t, fd, block, l->idx, l->nr, l->span, buf, &l->from, &l->to) : REMIXDB_NOTFOUND;
  if (unlikely(l->span && s != REMIXDB_OK && s != REMIXDB_NOTFOUND)) {
    l->span = 0;  // maybe only the bytes behind the block cannot be read
    s = sst_pieces_read(t, fd, block, l->idx, l->nr, 0, buf, &l->from, &l->to);
  }
  if (s == REMIXDB_NOTFOUND) {
    l->span = 0;
    s = sst_load_at(t, fd, block, nr_pages, buf);
    l->from = 0;
    l->to = SST_ALL;
    if (few && s == REMIXDB_OK) sst_pieces_learn(t, block, buf);
  }
  fdpool_release(t->file);
  return s;
}

// Makes room in h's own buffer for so many bytes. False: there is no memory, or the account of scans has no room.
static bool hold_reserve(struct sst_hold *h, const struct sst *t, uint32_t bytes) {
  const uint32_t pages = (bytes + BLOCK_PAGE - 1) / BLOCK_PAGE + BLOCK_GROW_PAGES;
  if (h->cb.own_size < pages * BLOCK_PAGE && budget_scans_left(t->ctx->budget) < pages * BLOCK_PAGE) return false;
  return cache_block_reserve(&h->cb, pages) == REMIXDB_OK;
}

static __attribute__((noinline)) enum remixdb_status sst_read_slow(struct sst *t, uint32_t block, uint32_t idx,
                                                                   uint32_t nr, bool lone, struct sst_hold *h) {
  const uint32_t pages = sst_block_pages(t, block);
  struct load l = {.t = t, .idx = idx, .nr = nr, .from = 0, .to = SST_ALL};
  h->kind = SST_HOLD_NONE;
  h->sst = NULL;
  h->cb.data = NULL;
  if (nr != SST_ALL && nr > t->nr_recs[block] - idx && (l.span = sst_pieces_span(t, block, idx, nr)) != 0 &&
      !hold_reserve(h, t, l.span))
    l.span = 0;
  const enum remixdb_status s = cache_get(&t->cache, block, pages, lone, sst_load, &l, &h->cb);
  hold_count(h, t);
  if (s != REMIXDB_OK) return s;
  sst_hold_set_read(h, t, block);
  h->from = l.from;
  h->to = l.to;
  if (l.span && h->kind == SST_HOLD_OWN) {
    h->own_first = block;
    h->own_bytes = l.span;
  }
  return REMIXDB_OK;
}

// Takes the block from the bytes that were read behind the one that h holds. REMIXDB_NOTFOUND: they are of no use.
static __attribute__((noinline)) enum remixdb_status sst_take_behind(struct sst *t, uint32_t block,
                                                                     struct sst_hold *h) {
  const uint32_t first = h->own_first, bytes = h->own_bytes, at = (block - first) * BLOCK_PAGE;
  uint32_t nr;
  const enum remixdb_status s = sst_pieces_check(t, block, bytes - at, h->cb.own + at, &nr);
  if (s != REMIXDB_OK) return s;
  sst_hold_set(h, t, block, SST_HOLD_OWN);
  h->cb.data = h->cb.own + at;
  h->own_first = first;
  h->own_bytes = bytes;
  h->to = nr == t->nr_recs[block] ? SST_ALL : nr;
  return REMIXDB_OK;
}

// h holds some records of the block, but not those to be read now. Reads all that lie on their side into the same
// buffer: a reader that goes on in a block, or comes back to it, is likely to do so again. The cache does not count a
// miss. REMIXDB_NOTFOUND: the block must be read whole.
static __attribute__((noinline)) enum remixdb_status sst_read_more(struct sst *t, uint32_t block, uint32_t idx,
                                                                   uint32_t nr, struct sst_hold *h) {
  const uint32_t from = idx < h->from || nr == SST_ALL ? 0 : idx,
                 last = idx >= h->to || nr == SST_ALL ? t->nr_recs[block] - 1u : idx;
  int fd;
  uint8_t *const buf = h->cb.own + (h->cb.data - h->cb.own);
  assert(h->cb.data >= h->cb.own && h->cb.data + sst_block_pages(t, block) * BLOCK_PAGE <= h->cb.own + h->cb.own_size &&
         h->to != SST_ALL);
  enum remixdb_status s = fdpool_acquire(t->file, &fd);
  if (s == REMIXDB_OK) {
    s = sst_pieces_read(t, fd, block, from, last - from + 1, 0, buf, &h->from, &h->to);
    fdpool_release(t->file);
  }
  if (s == REMIXDB_OK && h->from == 0 && h->to == t->nr_recs[block]) h->to = SST_ALL;
  if (s != REMIXDB_OK && s != REMIXDB_NOTFOUND) sst_hold_drop(h);
  return s;
}

// Neither the cache nor readahead memory has the block.
static __attribute__((noinline)) enum remixdb_status hold_miss(struct sst *t, uint32_t block, uint32_t idx, uint32_t nr,
                                                               bool lone, struct sst_hold *h) {
  enum remixdb_status s = REMIXDB_NOTFOUND;
  if (sst_holds_behind(h, t, block)) s = sst_take_behind(t, block, h);
  if (sst_holds(h, t, block) && !sst_holds_some(h, t, block, idx, nr)) s = sst_read_more(t, block, idx, nr, h);
  return s == REMIXDB_NOTFOUND ? sst_read_slow(t, block, idx, nr, lone, h) : s;
}

static __attribute__((noinline)) enum remixdb_status hold_take_ahead(struct sst *t, uint32_t block,
                                                                     struct sst_hold *h) {
  const uint8_t *data;
  const uint8_t side = sst_ahead_has(&h->ahead[1], t, block);
  sst_hold_drop(h);
  const enum remixdb_status s = sst_ahead_take(&h->ahead[side], t, block, &data);
  hold_count(h, t);  // a packed block takes memory
  if (s != REMIXDB_OK) return s;
  if (h->ahead[side].shared) cache_offer(&t->cache, block, sst_block_pages(t, block), data);
  h->cb.data = data;
  h->side = side;
  sst_hold_set(h, t, block, SST_HOLD_AHEAD);
  return REMIXDB_OK;
}

// Makes h hold records of the block from idx on, which it does not hold yet.
static inline enum remixdb_status hold_get(struct sst *t, uint32_t block, uint32_t idx, uint32_t nr,
                                           struct sst_hold *h) {
  assert(!sst_holds_some(h, t, block, idx, nr));
  if (unlikely(sst_holds_ahead(h, t, block))) {
    const enum remixdb_status s = hold_take_ahead(t, block, h);
    if (s != REMIXDB_CORRUPT) return s;
    // the bytes may have been spoilt on their way, some time ago: another read decides
  }
  if (unlikely(h->kind == SST_HOLD_PINNED)) sst_hold_drop(h);
  uint32_t frame;
  const uint8_t *const data = t->cache.cache ? cache_hit(&t->cache, block, &frame) : NULL;
  if (unlikely(data == NULL)) return hold_miss(t, block, idx, nr, false, h);
  sst_prefetch_all_of(t, data, block, idx);
  h->cb.data = data;
  h->cb.frame = frame;
  sst_hold_set(h, t, block, SST_HOLD_FRAME);
  return REMIXDB_OK;
}

enum remixdb_status sst_read_some(struct sst *t, sst_pos pos, uint32_t nr, bool pin, struct sst_hold *h,
                                  struct kv_rec *rec_out) {
  const uint32_t block = sst_pos_block(pos), idx = sst_pos_idx(pos);
  assert(block < t->nr_pages && idx < t->nr_recs[block]);
  if (!sst_holds_some(h, t, block, idx, nr)) {
    const enum remixdb_status s = hold_get(t, block, idx, nr, h);
    if (unlikely(s != REMIXDB_OK)) return s;
    if (pin && h->kind == SST_HOLD_FRAME) {
      cache_block_pin(&t->cache, &h->cb);
      h->kind = SST_HOLD_PINNED;
    }
  }
  h->of = t;
  block_record(h->cb.data, idx, rec_out);
  return REMIXDB_OK;
}

bool sst_kept_alone(struct sst *t, sst_pos pos, struct kv_rec *rec_out) {
  if (!cache_keeps_records(&t->cache)) return false;
  const uint8_t *const alone = records_find(t->cache.cache->records, t->number, pos);
  if (alone) block_record(alone, 0, rec_out);
  return alone != NULL;
}

enum remixdb_status sst_read_alone(struct sst *t, sst_pos pos, struct sst_hold *h, struct kv_rec *rec_out) {
  const uint32_t block = sst_pos_block(pos), idx = sst_pos_idx(pos);
  if (sst_holds_some(h, t, block, idx, 1) || cache_has(&t->cache, block) || sst_holds_ahead(h, t, block))
    return sst_read_some(t, pos, 1, false, h, rec_out);
  h->of = t;
  if (sst_kept_alone(t, pos, rec_out)) return REMIXDB_OK;
  if (unlikely(h->kind == SST_HOLD_PINNED)) sst_hold_drop(h);
  const enum remixdb_status s = hold_miss(t, block, idx, 1, true, h);
  if (s != REMIXDB_OK) return s;
  block_record(h->cb.data, idx, rec_out);
  if (h->kind != SST_HOLD_OWN) return s;  // the block has a frame
  const uint8_t *const from = h->cb.data + block_record_at(h->cb.data, idx);
  const uint32_t form = block_form(h->cb.data),
                 len = (uint32_t)(rec_out->val + rec_out->vlen - from) + block_form_width(form);
  records_keep(t->cache.cache->records, t->number, pos, form, from, len);
  return s;
}

enum remixdb_status sst_read_block(struct sst *t, uint32_t block, struct sst_hold *h) {
  return sst_read_slow(t, block, 0, SST_ALL, false, h);
}

// Gets h ready for a stretch that begins with this block. Returns how many of its pages may be read; 0: none.
static uint32_t hold_stretch(struct sst *t, uint32_t block, uint32_t nr_pages, uint32_t edge, struct sst_hold *h) {
  sst_hold_drop(h);  // the read replaces readahead memory
  const uint32_t room = ahead_room(&h->ahead[0], t);
  if (unlikely(room < sst_block_pages(t, block))) {
    sst_ahead_fini(&h->ahead[0]);
    sst_ahead_fini(&h->ahead[1]);
    hold_count(h, t);
    return 0;
  }
  h->has_ahead = true;
  h->ahead[0].edge = edge;
  return nr_pages < room ? nr_pages : room;
}

void sst_hold_readahead(struct sst *t, uint32_t block, uint32_t nr_pages, uint32_t edge, struct sst_hold *h) {
  const uint32_t nr = hold_stretch(t, block, nr_pages, edge, h);
  if (nr) sst_ahead_read(&h->ahead[0], t, block, nr);
  hold_count(h, t);
}

void sst_hold_readahead_back(struct sst *t, uint32_t block, uint32_t nr_pages, uint32_t edge, struct sst_hold *h) {
  const uint32_t nr = hold_stretch(t, block, nr_pages, edge, h);
  if (nr) sst_ahead_read_back(&h->ahead[0], t, block, nr);
  hold_count(h, t);
}

// The side of the hold's readahead memory that a read of so many pages may replace. NULL: there is no room for them.
static struct sst_ahead *hold_ahead_free(struct sst_hold *h, const struct sst *t, uint32_t nr_pages) {
  struct sst_ahead *const a = &h->ahead[h->kind == SST_HOLD_AHEAD ? !h->side : h->side];
  if (unlikely(ahead_room(a, t) < nr_pages)) {
    sst_ahead_fini(a);
    return NULL;
  }
  h->has_ahead = true;
  return a;
}

// Offers all blocks that were read to the cache, and frees their memory.
static void ahead_publish(struct sst_ahead *a, struct sst *t) {
  const uint8_t *data;
  for (uint32_t b = a->from; b < a->to && sst_ahead_take(a, t, b, &data) == REMIXDB_OK; b += sst_block_pages(t, b))
    cache_offer(&t->cache, b, sst_block_pages(t, b), data);
  sst_ahead_fini(a);
}

void sst_fetch(struct blkio_queue *q, const struct sst_need *needs, uint32_t nr) {
  assert(nr <= BLKIO_BATCH_MAX);
  struct blkio_read reads[BLKIO_BATCH_MAX];
  struct sst_ahead spare[BLKIO_BATCH_MAX], *to[BLKIO_BATCH_MAX];
  uint32_t of[BLKIO_BATCH_MAX], n = 0;
  struct blkio_batch b;
  err_cleanup_begin();
  blkio_batch_begin(&b, q, reads, NULL, NULL);
  const bool many = nr > 1 && blkio_batch_lane(&b);
  for (uint32_t i = 0; i < nr; i++) {
    const struct sst_need *const w = &needs[i];
    struct sst_ahead *const own = w->hold ? hold_ahead_free(w->hold, w->t, w->to - w->from) : NULL;
    if (!own && !w->t->cache.cache) continue;
    spare[n] = (struct sst_ahead){0};
    to[n] = own ? own : &spare[n];
    of[n] = i;
    if (sst_ahead_begin(to[n], w->t, w->from, w->to - w->from, many, &reads[n])) n++;
    else if (!own) sst_ahead_fini(&spare[n]);
    if (w->hold) hold_count(w->hold, w->t);
  }
  if (many) blkio_batch_add(&b, n);
  if (many) IGNORED(blkio_batch_end(&b), "each read has its status");
  else if (n) IGNORED(blkio_read_batch(q, reads, n), "each read has its status");
  for (uint32_t i = 0; i < n; i++) {
    const struct sst_need *const w = &needs[of[i]];
    sst_ahead_end(to[i], w->t, reads[i].status);
    if (to[i] != &spare[i]) to[i]->shared = true;
    else ahead_publish(to[i], w->t);
  }
  err_cleanup_end();
}

void sst_hold_drop(struct sst_hold *h) {
  // only a pin needs the table, which stays open for it
  if (h->kind == SST_HOLD_PINNED) cache_block_drop(&h->sst->cache, &h->cb);
  h->cb.data = NULL;
  h->cb.frame = 0;
  h->kind = SST_HOLD_NONE;
  h->sst = NULL;
}

void sst_hold_fini(struct sst_hold *h) {
  sst_hold_drop(h);
  cache_block_fini(NULL, &h->cb);
  sst_ahead_fini(&h->ahead[0]);
  sst_ahead_fini(&h->ahead[1]);
  budget_scans(h->budget, h->counted, 0);
  h->counted = 0;
}

// ---- prefetches

#define STRETCH_BYTES 4096u  // bytes of a block; the processor's own prefetcher continues longer ones

void sst_prefetch_stretch(const struct sst *t, sst_pos pos, uint32_t nr, const struct sst_hold *h) {
  uint32_t block = sst_pos_block(pos), idx = sst_pos_idx(pos);
  while (nr > 0 && block < t->nr_pages) {
    const uint32_t recs = t->nr_recs[block], n = nr < recs - idx ? nr : recs - idx;
    const uint8_t *data;
    size_t from, to;
    if (sst_holds_some(h, t, block, idx, n) && idx + n < h->to) {
      data = h->cb.data;
      from = block_record_at(data, idx);
      to = idx + n < recs ? block_record_at(data, idx + n) : from + (size_t)n * t->rec_size;
    } else {
      data = cache_prefetch(&t->cache, block);
      if (!data) return;
      prefetch(data + block_records_at(recs) - 1);
      from = sst_record_guess(t, block, idx);
      to = from + (size_t)n * t->rec_size;
    }
    prefetch_bytes(data + from, data + (to - from < STRETCH_BYTES ? to : from + STRETCH_BYTES));
    nr -= n;
    block += sst_block_pages(t, block);
    idx = 0;
  }
}
