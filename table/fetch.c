// SPDX-License-Identifier: Apache-2.0
#include "table/fetch.h"

#include <assert.h>
#include <stddef.h>

#include "table/stored.h"

#define KEEP_BYTES (4 * BLOCK_PAGE)  // larger memory of a fetch is not kept

_Static_assert(offsetof(struct sst_fetch, read) == 0, "a read leads to its fetch");

struct sst_fetcher {
  struct blkio_flow *flow;
  bool keeps;           // AIO: a read needs its descriptor until it has ended
  uint32_t nr;          // asked for and not given back
  uint32_t nr_waiting;  // of these, not started
  uint32_t nr_opened;   // fetches that have a descriptor
  struct sst_fetch *waiting, **waiting_tail;
  struct sst_fetch *plain;      // cannot start: to be read by a plain call. At most one
  struct sst_fetch *added;      // given to the flow since it last submitted
  struct sst_fetch *ended;      // AIO: their reads have ended, and they have no descriptor any more
  struct sst_fetch *idle;       // the one used last first: no more memory is touched than is needed
  struct sst_scratch *scratch;  // has the data of the fetch that was taken; NULL: it is in its own memory
  struct sst_fetch **buckets;   // by block
  uint32_t mask;
  struct sst_fetch all[];
};

enum remixdb_status sst_fetcher_create(struct blkio *io, uint32_t depth, struct sst_fetcher **out) {
  const uint32_t nr_all = depth + 1;  // one that was taken, while its readers ask for others
  struct sst_fetcher *const fr = *out = mem_calloc(1, sizeof(*fr) + nr_all * sizeof(fr->all[0]));
  if (!fr) return REMIXDB_NOMEM;
  fr->keeps = io->kind == BLKIO_AIO;
  uint32_t nr = 2;
  while (nr < depth) nr *= 2;
  fr->mask = nr - 1;
  fr->waiting_tail = &fr->waiting;
  for (uint32_t i = nr_all; i-- > 0;) {
    fr->all[i].next = fr->idle;
    fr->idle = &fr->all[i];
  }
  enum remixdb_status s = REMIXDB_NOMEM;
  if ((fr->buckets = mem_calloc(nr, sizeof(*fr->buckets))) != NULL) s = blkio_flow_create(io, depth, &fr->flow);
  if (s == REMIXDB_OK) return s;
  sst_fetcher_destroy(fr);
  *out = NULL;
  return s;
}

static void fetch_close(struct sst_fetcher *fr, struct sst_fetch *f) {
  if (!f->opened) return;
  fdpool_release(f->file);
  f->opened = false;
  fr->nr_opened--;
}

void sst_fetcher_destroy(struct sst_fetcher *fr) {
  if (!fr) return;
  struct blkio_read *r;
  while (fr->flow && (r = blkio_flow_take(fr->flow, true)) != NULL) fetch_close(fr, (struct sst_fetch *)r);
  blkio_flow_destroy(fr->flow);
  for (uint32_t i = 0; fr->buckets && i <= fr->mask; i++)
    for (struct sst_fetch *f = fr->buckets[i]; f; f = f->chain) mem_free(f->buf);
  for (struct sst_fetch *f = fr->idle; f; f = f->next) mem_free(f->buf);
  mem_free(fr->buckets);
  mem_free(fr);
}

// ---- asking

static struct sst_fetch **bucket_of(const struct sst_fetcher *fr, const struct sst *t, uint32_t block) {
  return &fr->buckets[(block_seed(t->number, block) * 0x9E3779B97F4A7C15ull >> 32) & fr->mask];
}

struct sst_fetch *sst_fetcher_ask(struct sst_fetcher *fr, struct sst *t, uint32_t block) {
  struct sst_fetch **const bucket = bucket_of(fr, t, block);
  for (struct sst_fetch *f = *bucket; f; f = f->chain)
    if (f->sst == t && f->block == block) return f;
  struct sst_fetch *const f = fr->idle;
  assert(f);
  fr->idle = f->next;
  f->sst = t;
  f->block = block;
  f->file = admission_past(t->ctx->admission, t->ctx->io, block_seed(t->number, block)) ? t->past : t->file;
  f->pages = sst_block_pages(t, block);
  f->readers = NULL;
  f->data = NULL;
  f->status = REMIXDB_OK;
  f->chain = *bucket;
  *bucket = f;
  f->next = NULL;
  *fr->waiting_tail = f;
  fr->waiting_tail = &f->next;
  fr->nr_waiting++;
  fr->nr++;
  return f;
}

uint32_t sst_fetcher_waiting(const struct sst_fetcher *fr) { return fr->nr_waiting; }
uint32_t sst_fetcher_count(const struct sst_fetcher *fr) { return fr->nr; }
bool sst_fetcher_lasts(const struct sst_fetcher *fr) { return blkio_flow_lasts(fr->flow); }
struct blkio_flow *sst_fetcher_flow(struct sst_fetcher *fr) {
  return fr->flow;
}

void sst_fetcher_give(struct sst_fetcher *fr, struct sst_fetch *f) {
  struct sst_fetch **p = bucket_of(fr, f->sst, f->block);
  while (*p != f) p = &(*p)->chain;
  *p = f->chain;
  if (fr->scratch) sst_scratch_give(fr->scratch);
  fr->scratch = NULL;
  if (f->size > KEEP_BYTES) {
    mem_free(f->buf);
    f->buf = NULL;
    f->size = 0;
  }
  f->next = fr->idle;
  fr->idle = f;
  fr->nr--;
}

// ---- starting

static struct sst_fetch *waiting_pop(struct sst_fetcher *fr) {
  struct sst_fetch *const f = fr->waiting;
  fr->waiting = f->next;
  if (!fr->waiting) fr->waiting_tail = &fr->waiting;
  fr->nr_waiting--;
  return f;
}

// Sets the fetch's read: the block's bytes, or for a compressed table the whole aligned pages around them, because
// direct I/O reads no less. REMIXDB_NOMEM.
static enum remixdb_status fetch_prepare(struct sst_fetch *f) {
  const struct sst *const t = f->sst;
  const uint64_t off = sst_block_off(t, f->block), end = off + sst_block_stored(t, f->block, f->pages);
  const uint64_t from = sst_align_down(off), to = t->offs ? align_up(end, BLKIO_ALIGN) : end;
  const uint32_t len = (uint32_t)(to - from);
  if (len > f->size) {
    mem_free(f->buf);
    f->size = 0;
    f->buf = mem_alloc_aligned(BLKIO_ALIGN, len);
    if (!f->buf) return REMIXDB_NOMEM;
    f->size = len;
  }
  f->read = (struct blkio_read){.fd = -1, .path = t->path, .buf = f->buf, .len = len, .off = from};
  return REMIXDB_OK;
}

// Hands the reads to the system, which then needs no descriptor from us, or one until the read has ended.
static void fetcher_hand_over(struct sst_fetcher *fr) {
  blkio_flow_submit(fr->flow);
  struct sst_fetch *f;
  while ((f = fr->added) != NULL) {
    fr->added = f->next;
    if (!fr->keeps) fetch_close(fr, f);
  }
}

// Gives a waiting fetch's read to the flow. False: not now.
static bool fetch_start(struct sst_fetcher *fr, struct sst_fetch *f) {
  int fd;
  bool opened = fdpool_try_acquire(f->file, &fd);
  if (!opened && fr->added) {
    fetcher_hand_over(fr);
    opened = fdpool_try_acquire(f->file, &fd);
  }
  // The plain call waits for a descriptor, so this thread must have none then.
  if (!opened && fr->nr_opened) return false;
  (void)waiting_pop(fr);
  f->opened = opened;
  fr->nr_opened += opened;
  if (!opened || fetch_prepare(f) != REMIXDB_OK) {
    fetch_close(fr, f);
    f->next = NULL;
    fr->plain = f;
    return true;
  }
  f->read.fd = fd;
  f->next = fr->added;
  fr->added = f;
  blkio_flow_add(fr->flow, &f->read);
  return true;
}

void sst_fetcher_submit(struct sst_fetcher *fr) {
  while (fr->waiting && !fr->plain && blkio_flow_has_room(fr->flow) && fetch_start(fr, fr->waiting)) continue;
  fetcher_hand_over(fr);
}

// ---- taking

// Reads the fetch's block in this thread.
static enum remixdb_status fetch_read(struct sst_fetch *f) {
  int fd;
  const bool opened = f->opened;
  enum remixdb_status s = REMIXDB_OK;
  if (opened) fd = f->read.fd;
  else s = fdpool_acquire(f->file, &fd);
  if (s != REMIXDB_OK) return s;
  s = fetch_prepare(f);
  if (s == REMIXDB_OK) s = blkio_read_one(f->sst->ctx->io, fd, f->sst->path, f->buf, f->read.len, f->read.off);
  if (!opened) fdpool_release(f->file);
  return s;
}

// Makes the block of what was read.
static enum remixdb_status fetch_verify(struct sst_fetcher *fr, struct sst_fetch *f) {
  struct sst *const t = f->sst;
  const uint64_t off = sst_block_off(t, f->block);
  if (!t->offs) {
    f->data = f->buf;
    return block_verify(f->buf, f->pages, t->nr_recs[f->block], t->form, t->number, f->block, t->path, off);
  }
  assert(!fr->scratch);
  if (!(fr->scratch = sst_scratch_take())) return REMIXDB_NOMEM;
  const enum remixdb_status s = sst_scratch_reserve(fr->scratch, BLOCK_BYTES_MAX);
  if (s != REMIXDB_OK) return s;
  f->data = fr->scratch->buf;
  return sst_unpack(t, f->block, f->pages, f->buf + (off - f->read.off), sst_block_stored(t, f->block, f->pages),
                    &fr->scratch->zstd, fr->scratch->buf);
}

// The next fetch whose read has ended; NULL: none. *good_out: it has its bytes.
static struct sst_fetch *fetcher_next(struct sst_fetcher *fr, bool wait, bool *good_out) {
  struct sst_fetch *f = fr->ended;
  if (f) {
    fr->ended = f->next;
    *good_out = f->good;
    return f;
  }
  struct blkio_read *const r = blkio_flow_take(fr->flow, wait);
  *good_out = r && r->status == REMIXDB_OK;
  return (struct sst_fetch *)r;
}

// Waits for all reads that need their descriptors (L5).
static void fetcher_end_all(struct sst_fetcher *fr) {
  struct blkio_read *r;
  while (fr->nr_opened && (r = blkio_flow_take(fr->flow, true)) != NULL) {
    struct sst_fetch *const f = (struct sst_fetch *)r;
    fetch_close(fr, f);
    f->good = r->status == REMIXDB_OK;
    f->next = fr->ended;
    fr->ended = f;
  }
}

struct sst_fetch *sst_fetcher_take(struct sst_fetcher *fr, bool wait) {
  struct sst_fetch *f = fr->plain;
  bool good = false;
  fetcher_end_all(fr);
  fr->plain = NULL;
  if (!f && fr->waiting && !blkio_flow_works(fr->flow)) f = waiting_pop(fr);
  if (!f) f = fetcher_next(fr, wait, &good);
  if (!f) return NULL;
  f->status = good ? REMIXDB_OK : fetch_read(f);
  fetch_close(fr, f);
  if (f->status == REMIXDB_OK) f->status = fetch_verify(fr, f);
  if (f->status == REMIXDB_OK) cache_offer_missed(&f->sst->cache, f->block, f->pages, f->data);
  return f;
}
