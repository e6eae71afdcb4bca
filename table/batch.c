// SPDX-License-Identifier: Apache-2.0
#include "table/batch.h"

#include <assert.h>

#include "table/stored.h"

#define ROOM_MIN 16u  // pages

// Keeps the batch's earliest error.
static void batch_note(struct sst_batch *b, enum remixdb_status s) {
  if (s != REMIXDB_OK && b->error.status == REMIXDB_OK) err_save(&b->error, s);
}

static void batch_fail(struct sst_batch *b, struct sst_request *w, enum remixdb_status s) {
  w->status = s;
  batch_note(b, s);
}

// Called when a read has ended: makes the block from its bytes and publishes the block, while other reads are under
// way.
static void batch_done(void *arg, struct blkio_read *read) {
  struct sst_batch *const b = arg;
  const size_t i = (size_t)(read - b->reads);
  struct sst_request *const w = b->of[i].request;
  struct cache_fill *const fill = &b->of[i].fill;
  struct sst *const t = w->sst;
  const uint32_t pages = b->of[i].pages;
  const uint64_t off = sst_block_off(t, w->block);
  enum remixdb_status s = read->status;
  if (likely(s == REMIXDB_OK))
    s = t->offs ? sst_unpack(t, w->block, pages, (const uint8_t *)read->buf + (off - read->off),
                             sst_block_stored(t, w->block, pages), &b->scratch[b->of[i].part]->zstd, fill->buf)
                : block_verify(fill->buf, pages, t->nr_recs[w->block], t->form, t->number, w->block, t->path, off);
  cache_fill_end(&t->cache, w->block, pages, &w->hold->cb, fill, s == REMIXDB_OK);
  w->status = s;
  if (likely(s == REMIXDB_OK)) sst_hold_set_read(w->hold, t, w->block);
  else batch_fail(b, w, s);
}

// ---- memory for blocks without frames

// Grows the memory to what the batch before would have needed, where the account of scans has room. Without memory the
// holds have their own. No hold has a block in it.
static void room_begin(struct sst_room *s, struct budget *budget) {
  uint32_t size = ROOM_MIN;
  while (size < s->wanted && size < SST_ROOM_MAX) size *= 2;
  if (s->wanted > s->size && s->size < SST_ROOM_MAX && budget_scans_left(budget) >= (size - s->size) * BLOCK_PAGE) {
    sst_room_fini(s);
    err_cleanup_begin();
    s->buf = mem_alloc_aligned(BLOCK_PAGE, (size_t)size * BLOCK_PAGE);
    err_cleanup_end();
    s->size = s->buf ? size : 0;
    s->budget = budget;
    budget_scans(budget, 0, (uint64_t)s->size * BLOCK_PAGE);
  }
  s->used = s->wanted = 0;
}

void sst_room_fini(struct sst_room *s) {
  budget_scans(s->budget, (uint64_t)s->size * BLOCK_PAGE, 0);
  mem_free(s->buf);
  s->buf = NULL;
  s->size = 0;
}

// Begins the fill of a request's block. A block that is to be read, and has neither a frame nor memory, gets some.
static enum cache_fill_begun batch_fill(struct sst_batch *b, struct sst_request *w, uint32_t pages,
                                        struct cache_fill *fill) {
  struct sst_room *const s = b->room;
  struct cache_block *const cb = &w->hold->cb;
  const bool lacks = s && !cb->own;
  if (lacks && pages <= s->size - s->used) {
    cb->own = s->buf + (size_t)s->used * BLOCK_PAGE;
    cb->own_size = pages * BLOCK_PAGE;
    cb->given = true;
  }
  const enum cache_fill_begun begun = cache_fill_begin(&w->sst->cache, w->block, pages, cb, fill);
  if (!lacks) return begun;
  if (begun == CACHE_FILL_READ && fill->buf == cb->own) {
    s->wanted += pages;
    if (cb->given) s->used += pages;
  } else if (cb->given) {
    cb->own = NULL;
    cb->own_size = 0;
    cb->given = false;
  }
  return begun;
}

// ---- reads

// Notes that the block is missed, and returns the file that it is read from.
static struct fdpool_file *batch_file(struct sst_batch *b, struct sst *t, uint32_t block) {
  const uint64_t seed = block_seed(t->number, block);
  if (blkio_batch_lane(&b->io)) return admission_past(t->ctx->admission, t->ctx->io, seed) ? t->past : t->file;
  admission_note(t->ctx->admission, t->ctx->io, seed);
  return t->file;
}

// Begins the fills of requests [from, to) that have no block yet, and lists their reads. A compressed block is read in
// whole aligned pages, for direct I/O, into memory that batch_scratch gives. A request that cannot begin now keeps its
// status: another fill reads its block, or memory or a descriptor is lacking.
static void batch_list(struct sst_batch *b, uint32_t from, uint32_t to) {
  // The descriptors of the last table with a read, through the page cache and past it: each serves all its reads.
  struct {
    struct fdpool_file *file;
    int fd;
  } open[2] = {{.file = NULL}, {.file = NULL}};
  for (uint32_t i = from; i < to; i++) {
    struct sst_request *const w = &b->requests[i];
    if (w->status != REMIXDB_ABORTED) continue;
    struct sst *const t = w->sst;
    const uint32_t pages = sst_block_pages(t, w->block), n = b->nr_reads;
    struct cache_fill *const fill = &b->of[n].fill;
    const enum cache_fill_begun begun = batch_fill(b, w, pages, fill);
    if (begun == CACHE_FILL_HIT) {
      sst_hold_set_read(w->hold, t, w->block);
      w->status = REMIXDB_OK;
    }
    if (begun != CACHE_FILL_READ) continue;
    struct fdpool_file *const file = batch_file(b, t, w->block);
    const bool past = file == t->past;
    b->of[n].opened = NULL;
    if (file != open[past].file) {
      open[past].file = NULL;
      if (!fdpool_try_acquire(file, &open[past].fd)) {
        cache_fill_end(&t->cache, w->block, pages, &w->hold->cb, fill, false);
        continue;
      }
      open[past].file = b->of[n].opened = file;
    }
    const uint64_t off = sst_block_off(t, w->block), end = off + sst_block_stored(t, w->block, pages);
    const uint64_t begin = t->offs ? sst_align_down(off) : off, stop = t->offs ? align_up(end, BLKIO_ALIGN) : end;
    b->of[n].request = w;
    b->of[n].pages = pages;
    b->of[n].part = (uint8_t)b->nr_parts;
    b->reads[n] = (struct blkio_read){.fd = open[past].fd,
                                      .path = t->path,
                                      .buf = t->offs ? NULL : fill->buf,
                                      .len = (uint32_t)(stop - begin),
                                      .past = past,
                                      .off = begin};
    b->nr_reads++;
  }
}

// Gives memory to the reads from `from` on that have none. False: no memory.
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

// Starts reads for requests [from, to). False: none can start, or memory is lacking.
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
    struct sst_request *const w = b->of[i].request;
    cache_fill_end(&w->sst->cache, w->block, b->of[i].pages, &w->hold->cb, &b->of[i].fill, false);
    if (b->of[i].opened) fdpool_release(b->of[i].opened);
  }
  b->nr_reads = first;
  return false;
}

// Waits for the reads that have started, and gives back their descriptors and memory.
static void batch_finish(struct sst_batch *b) {
  batch_note(b, blkio_batch_end(&b->io));  // batch_done has noted it, too
  for (uint32_t i = 0; i < b->nr_reads; i++)
    if (b->of[i].opened) fdpool_release(b->of[i].opened);
  for (uint32_t i = 0; i < b->nr_parts; i++) {
    if (b->scratch[i]) sst_scratch_give(b->scratch[i]);
  }
  b->nr_reads = b->nr_parts = 0;
  blkio_batch_begin(&b->io, b->io.q, b->reads, batch_done, b);
}

void sst_batch_begin(struct sst_batch *b, struct blkio_queue *q, struct sst_room *room) {
  b->room = room;
  b->nr = b->nr_reads = b->nr_parts = 0;
  b->error.status = REMIXDB_OK;
  blkio_batch_begin(&b->io, q, b->reads, batch_done, b);
}

void sst_batch_add(struct sst_batch *b, uint32_t nr) {
  const uint32_t from = b->nr;
  assert(nr <= SST_BATCH_MAX - from);
  b->nr += nr;
  if (from == 0 && b->room && nr) room_begin(b->room, b->requests[0].sst->ctx->budget);
  for (uint32_t i = from; i < b->nr; i++) {
    sst_hold_drop(b->requests[i].hold);
    b->requests[i].status = REMIXDB_ABORTED;  // has no block and no failure yet
  }
  (void)batch_start(b, from, b->nr);  // the end starts those that cannot start now
}

enum remixdb_status sst_batch_end(struct sst_batch *b) {
  // one more turn, or several when there are more tables than descriptors
  do batch_finish(b);
  while (batch_start(b, 0, b->nr));
  batch_finish(b);  // a turn that could begin no read may have taken a lane
  // Reads the rest one by one. Now that this thread has no fill open it may wait for others (C4).
  for (uint32_t i = 0; i < b->nr; i++) {
    struct sst_request *const w = &b->requests[i];
    if (w->status != REMIXDB_ABORTED) continue;
    w->status = sst_read_block(w->sst, w->block, w->hold);
    if (w->status != REMIXDB_OK) batch_fail(b, w, w->status);
  }
  return err_raise(&b->error);
}
