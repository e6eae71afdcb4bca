// SPDX-License-Identifier: Apache-2.0
#include "table/readahead.h"

#include <assert.h>

#include "table/stored.h"

// ---- into memory of the reader's own

struct sst_ahead_mem {
  uint64_t off;    // the file's offset of buf[0]
  uint8_t *buf;    // the blocks as they are stored; aligned to BLKIO_ALIGN
  size_t size;     // of buf
  uint8_t *block;  // the last block that was taken, unpacked; NULL until a compressed table needs it
};

static struct sst_ahead_mem *ahead_reserve(struct sst_ahead *a, size_t size) {
  if (!a->mem) a->mem = mem_calloc(1, sizeof(*a->mem));
  struct sst_ahead_mem *const m = a->mem;
  if (!m || m->size >= size) return m;
  mem_free(m->buf);
  m->buf = mem_alloc_aligned(BLKIO_ALIGN, size);
  m->size = m->buf ? size : 0;
  return m->buf ? m : NULL;
}

void sst_ahead_fini(struct sst_ahead *a) {
  if (a->mem) {
    mem_free(a->mem->buf);
    mem_free(a->mem->block);
    mem_free(a->mem);
  }
  *a = (struct sst_ahead){0};
}

void sst_ahead_read(struct sst_ahead *a, const struct sst *t, uint32_t block, uint32_t nr_pages,
                    struct fdpool_file *file) {
  assert(nr_pages > 0 && block + nr_pages <= t->nr_pages && t->nr_recs[block]);
  uint32_t last = block + nr_pages - 1;
  while (t->nr_recs[last] == 0) last--;
  const uint32_t to = last + sst_block_pages(t, last);
  const uint64_t end = sst_block_off(t, last) + sst_block_stored(t, last, to - last);
  const uint64_t from = sst_align_down(sst_block_off(t, block)), until = align_up(end, BLKIO_ALIGN);
  int fd;
  a->from = a->to = 0;
  struct sst_ahead_mem *const m = ahead_reserve(a, until - from);
  if (!m || !fdpool_try_acquire(file, &fd)) return;
  const enum remixdb_status s = blkio_read_one(t->ctx->io, fd, t->path, m->buf, (uint32_t)(until - from), from);
  fdpool_release(file);
  if (s != REMIXDB_OK) return;  // the read that needs a block meets the error again, and reports it
  m->off = from;
  a->number = t->number;
  a->from = block;
  a->to = to;
}

static enum remixdb_status ahead_unpack(const struct sst *t, uint32_t block, uint32_t pages, const uint8_t *stored,
                                        struct sst_ahead_mem *m) {
  if (!m->block) m->block = mem_alloc(BLOCK_BYTES_MAX);
  struct sst_scratch *const x = m->block ? sst_scratch_take() : NULL;
  if (!x) return REMIXDB_NOMEM;
  const enum remixdb_status s = sst_unpack(t, block, pages, stored, sst_block_stored(t, block, pages), &x->zstd,
                                           m->block);
  sst_scratch_give(x);
  return s;
}

enum remixdb_status sst_ahead_take(struct sst_ahead *a, const struct sst *t, uint32_t block, const uint8_t **data_out) {
  assert(sst_ahead_has(a, t, block));
  struct sst_ahead_mem *const m = a->mem;
  const uint32_t pages = sst_block_pages(t, block);
  const uint64_t off = sst_block_off(t, block);
  const uint8_t *const stored = m->buf + (off - m->off);
  const enum remixdb_status s = t->offs
                                    ? ahead_unpack(t, block, pages, stored, m)
                                    : block_verify(stored, pages, t->nr_recs[block], t->number, block, t->path, off);
  if (s == REMIXDB_OK) *data_out = t->offs ? m->block : stored;
  return s;
}

// ---- into the cache

// Verifies the blocks that begin in the pages [block, to), and publishes them. stored: their bytes.
static void readahead_publish(struct sst *t, struct sst_scratch *x, uint32_t block, uint32_t to,
                              const uint8_t *stored) {
  while (block < to) {
    const uint32_t pages = sst_block_pages(t, block), len = sst_block_stored(t, block, pages);
    const uint8_t *data = stored;
    if (t->offs) {
      if (!x->block) x->block = mem_alloc(BLOCK_BYTES_MAX);
      if (!x->block || sst_unpack(t, block, pages, stored, len, &x->zstd, x->block) != REMIXDB_OK) return;
      data = x->block;
    } else if (block_verify(data, pages, t->nr_recs[block], t->number, block, t->path, sst_block_off(t, block)) !=
               REMIXDB_OK) {
      return;
    }
    cache_offer(&t->cache, block, pages, data);
    stored += len;
    block += pages;
  }
}

void sst_readahead_all(struct blkio_queue *q, const struct sst_stretch *stretches, uint32_t nr) {
  assert(nr <= BLKIO_BATCH_MAX);
  struct blkio_read reads[BLKIO_BATCH_MAX];
  const struct sst_stretch *of[BLKIO_BATCH_MAX];
  uint32_t nr_reads = 0;
  size_t size = 0;
  if (!q || nr == 0) return;
  for (uint32_t i = 0; i < nr; i++) {
    const struct sst_stretch *const one = &stretches[i];
    struct sst *const t = one->t;
    const uint64_t from = sst_align_down(sst_block_off(t, one->from)),
                   to = align_up(sst_block_off(t, one->to), BLKIO_ALIGN);
    int fd;
    if (!t->cache.cache || !fdpool_try_acquire(&t->file, &fd)) continue;
    of[nr_reads] = one;
    reads[nr_reads++] = (struct blkio_read){
        .fd = fd, .path = t->path, .len = (uint32_t)(to - from), .off = from, .status = REMIXDB_ABORTED};
    size += to - from;
  }
  struct sst_scratch *const x = nr_reads ? sst_scratch_take() : NULL;
  const bool ready = x && sst_scratch_reserve(x, size) == REMIXDB_OK;
  size_t at = 0;
  for (uint32_t i = 0; i < nr_reads && ready; at += reads[i++].len) reads[i].buf = x->buf + at;
  if (ready)
    IGNORED(blkio_read_batch(q, reads, nr_reads),
            "each read has its status; sst_read meets the error again, and reports it");
  for (uint32_t i = 0; i < nr_reads; i++) {
    struct sst *const t = of[i]->t;
    fdpool_release(&t->file);
    if (!ready || reads[i].status != REMIXDB_OK) continue;
    readahead_publish(t, x, of[i]->from, of[i]->to,
                      (uint8_t *)reads[i].buf + (sst_block_off(t, of[i]->from) - reads[i].off));
  }
  if (x) sst_scratch_give(x);
}

void sst_readahead(struct sst *t, struct blkio_queue *q, uint32_t first_block, uint32_t nr_pages) {
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
  sst_readahead_all(q, missing, nr);
}
