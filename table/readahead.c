// SPDX-License-Identifier: Apache-2.0
#include "table/readahead.h"

#include <assert.h>

#include "table/stored.h"

// ---- into memory of the reader's own

// A stretch that took less was in the page cache.
#define AHEAD_WARM_NS 20000u      // to begin with
#define AHEAD_WARM_PAGE_NS 1000u  // and for each page
// Stretches that are advised before one is timed again. Advice on what is in the page cache anyway costs time.
#define AHEAD_COLD 64u
#define AHEAD_KEPT (128u << 10)  // a buffer larger than this, and than four times what is needed, is given back

struct sst_ahead_mem {
  struct fdpool_file *file;  // that is being read, between sst_ahead_begin and sst_ahead_end
  uint64_t off;              // the file's offset of buf[0]
  uint8_t *buf;              // the blocks as they are stored
  size_t size;               // bytes of buf
  uint8_t *block;            // the last block that was taken, unpacked; NULL until a compressed table needs it
  uint32_t from, to;         // the pages that are being read, between sst_ahead_begin and sst_ahead_end
  // The rest is of stretches that follow each other.
  bool back;
  uint64_t edge;     // the offset where the reader's need ends; going back: begins
  uint64_t came;     // bytes read so far
  uint64_t advised;  // the system was told of all from the last stretch to this offset
  uint32_t cold;     // stretches still to be advised; 0: the next one is timed
};

// aligned: the buffer begins at a multiple of BLKIO_ALIGN. The heap loses up to as many bytes for that.
static struct sst_ahead_mem *ahead_reserve(struct sst_ahead *a, size_t size, bool aligned) {
  if (!a->mem) a->mem = mem_calloc(1, sizeof(*a->mem));
  struct sst_ahead_mem *const m = a->mem;
  const bool fits = m && m->size >= size && (!aligned || (uintptr_t)m->buf % BLKIO_ALIGN == 0);
  if (!m || (fits && (m->size <= AHEAD_KEPT || m->size / 4 <= size))) return m;
  mem_free(m->buf);
  m->buf = mem_alloc_aligned(aligned ? BLKIO_ALIGN : CACHE_LINE, size);
  m->size = m->buf ? size : 0;
  return m->buf ? m : NULL;
}

size_t sst_ahead_memory(const struct sst_ahead *a) {
  return a->mem ? a->mem->size + (a->mem->block ? BLOCK_BYTES_MAX : 0) : 0;
}

void sst_ahead_fini(struct sst_ahead *a) {
  if (a->mem) {
    mem_free(a->mem->buf);
    mem_free(a->mem->block);
    mem_free(a->mem);
  }
  *a = (struct sst_ahead){0};
}

// The stretch [off, end) of the file follows the last one, in the direction of the last.
static bool ahead_follows(const struct sst_ahead *a, const struct sst *t, uint32_t from, uint32_t to, bool back) {
  return a->to > a->from && a->number == t->number && a->mem->back == back && (back ? to == a->from : from == a->to);
}

// Tells the system of what follows the stretch [off, end) and was not told before.
static void ahead_advise(struct sst_ahead_mem *m, const struct sst *t, int fd, uint64_t off, uint64_t end) {
  const uint64_t size = SST_AHEAD_MORE * (end - off), more = size < m->came ? size : m->came;
  if (m->back) {
    const uint64_t to = m->advised < off ? m->advised : off, first = off > more ? off - more : 0,
                   from = first > m->edge ? first : m->edge;
    if (from < to) env_advise(t->ctx->env, fd, from, to - from, ENV_WILL_NEED);
    m->advised = from < to ? from : to;
  } else {
    const uint64_t from = m->advised > end ? m->advised : end, left = m->edge > end ? m->edge - end : 0,
                   to = end + (more < left ? more : left);
    if (from < to) env_advise(t->ctx->env, fd, from, to - from, ENV_WILL_NEED);
    m->advised = from < to ? to : from;
  }
  m->cold--;
}

// Reads [off, end) into m->buf, and has what follows on its way. A stretch that nobody has told the system of is timed.
static enum remixdb_status ahead_load(struct sst_ahead_mem *m, const struct sst *t, int fd, uint64_t off,
                                      uint64_t end) {
  const bool told = m->back ? m->advised <= off : m->advised >= end;
  const uint32_t len = (uint32_t)(end - off);
  if (m->cold) ahead_advise(m, t, fd, off, end);
  const uint64_t began = told ? 0 : time_ns();
  const enum remixdb_status s = blkio_read_one(t->ctx->io, fd, t->path, m->buf, len, off);
  if (s != REMIXDB_OK) return s;
  m->came += len;
  if (told || m->cold || t->ctx->direct_io || time_ns() - began < AHEAD_WARM_NS + len / BLOCK_PAGE * AHEAD_WARM_PAGE_NS)
    return s;
  m->cold = AHEAD_COLD;
  ahead_advise(m, t, fd, off, end);
  return s;
}

// Forgets the stretches so far: the next one follows none.
static void ahead_anew(struct sst_ahead_mem *m, bool back) {
  m->came = 0;
  m->cold = 0;
  m->advised = back ? UINT64_MAX : 0;
  m->back = back;
}

// Reads the blocks [from, to).
static void ahead_read(struct sst_ahead *a, struct sst *t, uint32_t from, uint32_t to, bool back) {
  uint32_t last = to - 1;
  while (t->nr_recs[last] == 0) last--;
  uint64_t off = sst_block_off(t, from), end = sst_block_off(t, last) + sst_block_stored(t, last, to - last);
  if (t->ctx->direct_io) {
    off = sst_align_down(off);
    end = align_up(end, BLKIO_ALIGN);
  }
  int fd;
  const bool follows = ahead_follows(a, t, from, to, back);
  a->from = a->to = 0;
  a->shared = false;
  struct sst_ahead_mem *const m = ahead_reserve(a, end - off, t->ctx->direct_io);
  if (!m) return;
  if (!follows) ahead_anew(m, back);
  const bool whole = a->edge == 0 || a->edge == t->nr_pages;
  m->edge = !whole ? sst_block_off(t, a->edge) : back ? t->base : t->base + t->data_size;
  const bool far = !back && !t->ctx->direct_io && m->came >= SST_AHEAD_LONG &&
                   (whole || m->edge >= end + SST_AHEAD_FAR);
  struct fdpool_file *const file = far ? t->scans : t->file;
  if (!fdpool_try_acquire(file, &fd)) return;
  const enum remixdb_status s = far ? blkio_read_one(t->ctx->io, fd, t->path, m->buf, (uint32_t)(end - off), off)
                                    : ahead_load(m, t, fd, off, end);
  fdpool_release(file);
  if (s != REMIXDB_OK) return;  // the read that needs a block meets the error again, and reports it
  m->off = off;
  a->number = t->number;
  a->from = from;
  a->to = to;
}

void sst_ahead_read(struct sst_ahead *a, struct sst *t, uint32_t block, uint32_t nr_pages) {
  assert(nr_pages > 0 && block + nr_pages <= t->nr_pages && t->nr_recs[block]);
  uint32_t last = block + nr_pages - 1;
  while (t->nr_recs[last] == 0) last--;
  ahead_read(a, t, block, last + sst_block_pages(t, last), false);
}

uint32_t sst_block_back(const struct sst *t, uint32_t block, uint32_t nr_pages) {
  const uint32_t end = block + sst_block_pages(t, block);
  uint32_t first = end > nr_pages ? end - nr_pages : 0;
  while (first < block && t->nr_recs[first] == 0) first++;
  return first < block ? first : block;
}

void sst_ahead_read_back(struct sst_ahead *a, struct sst *t, uint32_t block, uint32_t nr_pages) {
  assert(nr_pages > 0 && block < t->nr_pages && t->nr_recs[block]);
  ahead_read(a, t, sst_block_back(t, block, nr_pages), block + sst_block_pages(t, block), true);
}

// Notes that the blocks in the pages [from, to) are missed, and returns the file that they are read from.
static struct fdpool_file *ahead_file(struct sst *t, uint32_t from, uint32_t to, bool many) {
  struct admission *const a = t->ctx->admission;
  uint32_t nr = 0, known = 0;
  if (!admission_chooses(a, t->ctx->io)) return t->file;
  for (uint32_t b = from; b < to; b += sst_block_pages(t, b), nr++)
    known += admission_knows(a, block_seed(t->number, b));
  if (!many || 2 * known >= nr) return t->file;
  admission_count(a, nr);
  return t->past;
}

bool sst_ahead_begin(struct sst_ahead *a, struct sst *t, uint32_t block, uint32_t nr_pages, bool many,
                     struct blkio_read *read) {
  assert(nr_pages > 0 && block + nr_pages <= t->nr_pages && t->nr_recs[block]);
  uint32_t last = block + nr_pages - 1;
  while (t->nr_recs[last] == 0) last--;
  const uint32_t to = last + sst_block_pages(t, last);
  const uint64_t end = sst_block_off(t, last) + sst_block_stored(t, last, to - last);
  struct fdpool_file *const file = ahead_file(t, block, to, many);
  const bool aligned = t->ctx->direct_io || file == t->past;
  const uint64_t off = sst_block_off(t, block), from = aligned ? sst_align_down(off) : off,
                 until = aligned ? align_up(end, BLKIO_ALIGN) : end;
  int fd;
  a->from = a->to = 0;
  a->shared = false;
  struct sst_ahead_mem *const m = ahead_reserve(a, until - from, aligned);
  if (!m || !fdpool_try_acquire(file, &fd)) return false;
  m->file = file;
  m->off = from;
  m->from = block;
  m->to = to;
  ahead_anew(m, false);
  *read = (struct blkio_read){.fd = fd,
                              .path = t->path,
                              .buf = m->buf,
                              .len = (uint32_t)(until - from),
                              .off = from,
                              .past = file == t->past,
                              .status = REMIXDB_ABORTED};
  return true;
}

void sst_ahead_end(struct sst_ahead *a, struct sst *t, enum remixdb_status s) {
  fdpool_release(a->mem->file);
  if (s != REMIXDB_OK) return;  // the read that needs a block meets the error again, and reports it
  a->number = t->number;
  a->from = a->mem->from;
  a->to = a->mem->to;
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
  const enum remixdb_status s = t->offs ? ahead_unpack(t, block, pages, stored, m)
                                        : block_verify(stored, pages, t->nr_recs[block], t->form, t->number, block,
                                                       t->path, off);
  if (s == REMIXDB_OK) *data_out = t->offs ? m->block : stored;
  return s;
}

// ---- into the page cache

void sst_will_need(struct sst *t, uint32_t first_block, uint32_t nr_pages) {
  int fd;
  if (t->ctx->direct_io || first_block >= t->nr_pages || nr_pages == 0) return;
  const uint32_t left = t->nr_pages - first_block, to = first_block + (nr_pages < left ? nr_pages : left);
  if (!fdpool_try_acquire(t->file, &fd)) return;
  const uint64_t off = sst_block_off(t, first_block), end = sst_block_off(t, to);
  if (off < end) env_advise(t->ctx->env, fd, off, end - off, ENV_WILL_NEED);
  fdpool_release(t->file);
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
    } else if (block_verify(data, pages, t->nr_recs[block], t->form, t->number, block, t->path,
                            sst_block_off(t, block)) != REMIXDB_OK) {
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
    if (!t->cache.cache || !fdpool_try_acquire(t->file, &fd)) continue;
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
    fdpool_release(t->file);
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
