// SPDX-License-Identifier: Apache-2.0
#include "table/readahead.h"

#include <assert.h>

#include "table/stored.h"

struct sst_ahead {
  uint64_t off;       // of the file, where buf begins
  uint8_t *buf;       // aligned; the blocks as they are stored
  size_t size;
  uint8_t *block;     // of a compressed table: the block that is held. NULL until needed
};

static struct sst_ahead *ahead_reserve(struct sst_hold *h, size_t size) {
  if (!h->ahead) h->ahead = mem_calloc(1, sizeof(*h->ahead));
  struct sst_ahead *const a = h->ahead;
  if (!a || a->size >= size) return a;
  mem_free(a->buf);
  a->buf = mem_alloc_aligned(BLKIO_ALIGN, size);
  a->size = a->buf ? size : 0;
  return a->buf ? a : NULL;
}

void sst_ahead_free(struct sst_ahead *a) {
  if (!a) return;
  mem_free(a->buf);
  mem_free(a->block);
  mem_free(a);
}

void sst_read_ahead(struct sst *t, uint32_t block, uint32_t nr_pages, struct sst_hold *h) {
  assert(nr_pages > 0 && block + nr_pages <= t->nr_pages && t->nr_recs[block]);
  uint32_t last = block + nr_pages - 1;
  while (t->nr_recs[last] == 0) last--;
  const uint32_t to = last + sst_block_pages(t, last);
  const uint64_t end = sst_block_off(t, last) + sst_block_stored(t, last, to - last);
  const uint64_t from = sst_align_down(sst_block_off(t, block)), until = align_up(end, BLKIO_ALIGN);
  int fd;
  sst_hold_drop(h);  // it may be of what is read over
  h->ahead_from = h->ahead_to = 0;
  struct sst_ahead *const a = ahead_reserve(h, until - from);
  if (!a || !fdpool_try_acquire(&t->file, &fd)) return;
  const enum remixdb_status s = blkio_read_one(t->ctx->io, fd, t->path, a->buf, (uint32_t)(until - from), from);
  fdpool_release(&t->file);
  if (s != REMIXDB_OK) return;  // who needs one of the blocks reads it, and reports it
  a->off = from;
  h->ahead_number = t->number;
  h->ahead_from = block;
  h->ahead_to = to;
}

static enum remixdb_status ahead_unpack(const struct sst *t, uint32_t block, uint32_t pages, const uint8_t *stored, struct sst_ahead *a) {
  if (!a->block) a->block = mem_alloc(SST_BLOCK_BYTES);
  struct sst_scratch *const x = a->block ? sst_scratch_take() : NULL;
  if (!x) return REMIXDB_NOMEM;
  const enum remixdb_status s = sst_unpack(t, block, pages, stored, sst_block_stored(t, block, pages), &x->zstd, a->block);
  sst_scratch_give(x);
  return s;
}

enum remixdb_status sst_take_ahead(struct sst *t, uint32_t block, struct sst_hold *h) {
  struct sst_ahead *const a = h->ahead;
  const uint32_t pages = sst_block_pages(t, block);
  const uint64_t off = sst_block_off(t, block);
  const uint8_t *const stored = a->buf + (off - a->off);
  sst_hold_drop(h);
  const enum remixdb_status s =
      t->offs ? ahead_unpack(t, block, pages, stored, a) : block_verify(stored, pages, t->nr_recs[block], t->number, block, t->path, off);
  if (s == REMIXDB_OK) h->cb.data = t->offs ? a->block : stored;
  return s;
}
