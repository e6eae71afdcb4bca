// SPDX-License-Identifier: Apache-2.0
#include "table/fetch.h"

#include <assert.h>
#include <stddef.h>

#include "table/stored.h"

#define KEEP_BYTES (4 * BLOCK_PAGE)  // larger memory of a fetch is not kept

_Static_assert(offsetof(struct fetch, read) == 0, "a read leads to its fetch");

struct fetcher {
  struct blkio *io;
  struct blkio_flow *flow;
  bool keeps;           // AIO: a read needs its descriptor until it has ended
  uint32_t nr_all;      // in `all`
  uint32_t nr;          // asked for and not given back
  uint32_t nr_waiting;  // fetches that were asked for and have not started
  uint32_t nr_opened;   // fetches that have a descriptor
  struct fetch *waiting, **waiting_tail;
  struct fetch *plain;          // cannot start: to be read by a plain call. At most one
  struct fetch *added;          // given to the flow since it last submitted
  struct fetch *ended;          // AIO: their reads have ended, and they have no descriptor any more
  struct fetch *idle;           // the one used last first: no more memory is touched than is needed
  struct sst_scratch *scratch;  // has the data of the fetch that was taken; NULL: it is in its own memory
  struct fetch **buckets;       // by block
  uint32_t mask;
  struct fetch all[];
};

enum remixdb_status fetcher_create(struct blkio *io, uint32_t depth, struct fetcher **out) {
  const uint32_t nr_all = depth + 1;  // one that was taken, while its readers ask for others
  struct fetcher *const fr = *out = mem_calloc(1, sizeof(*fr) + nr_all * sizeof(fr->all[0]));
  if (!fr) return REMIXDB_NOMEM;
  fr->io = io;
  fr->nr_all = nr_all;
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
  fetcher_destroy(fr);
  *out = NULL;
  return s;
}

static void fetch_close(struct fetcher *fr, struct fetch *f) {
  if (!f->opened) return;
  fdpool_release(f->file);
  f->opened = false;
  fr->nr_opened--;
}

void fetcher_destroy(struct fetcher *fr) {
  if (!fr) return;
  struct blkio_read *r;
  while (fr->flow && (r = blkio_flow_take(fr->flow, true)) != NULL) fetch_close(fr, (struct fetch *)r);
  blkio_flow_destroy(fr->flow);
  for (uint32_t i = 0; i < fr->nr_all; i++) mem_free(fr->all[i].buf);
  mem_free(fr->buckets);
  mem_free(fr);
}

// ---- asking

static struct fetch **bucket_of(const struct fetcher *fr, const struct sst *t, uint32_t block) {
  return &fr->buckets[(block_seed(t->number, block) * 0x9E3779B97F4A7C15ull >> 32) & fr->mask];
}

// Takes an idle fetch, and lets it wait for the start.
static struct fetch *fetch_new(struct fetcher *fr, struct sst *t, struct fdpool_file *file, const char *path) {
  struct fetch *const f = fr->idle;
  assert(f);
  fr->idle = f->next;
  f->sst = t;
  f->file = file;
  f->path = path;
  f->readers = NULL;
  f->data = NULL;
  f->status = REMIXDB_OK;
  f->next = NULL;
  *fr->waiting_tail = f;
  fr->waiting_tail = &f->next;
  fr->nr_waiting++;
  fr->nr++;
  return f;
}

struct fetch *fetcher_ask(struct fetcher *fr, struct sst *t, uint32_t block) {
  struct fetch **const bucket = bucket_of(fr, t, block);
  for (struct fetch *f = *bucket; f; f = f->chain)
    if (f->sst == t && f->block == block) return f;
  const bool past = admission_past(t->ctx->admission, t->ctx->io, block_seed(t->number, block));
  struct fetch *const f = fetch_new(fr, t, past ? t->past : t->file, t->path);
  f->block = block;
  f->pages = sst_block_pages(t, block);
  f->chain = *bucket;
  *bucket = f;
  return f;
}

struct fetch *fetcher_ask_bytes(struct fetcher *fr, struct fdpool_file *file, const char *path, uint64_t off,
                                uint32_t len, void *into) {
  struct fetch *const f = fetch_new(fr, NULL, file, path);
  f->off = off;
  f->len = len;
  f->into = into;
  return f;
}

uint32_t fetcher_waiting(const struct fetcher *fr) { return fr->nr_waiting; }
uint32_t fetcher_count(const struct fetcher *fr) { return fr->nr; }
bool fetcher_lasts(const struct fetcher *fr) { return blkio_flow_lasts(fr->flow); }
struct blkio_flow *fetcher_flow(struct fetcher *fr) {
  return fr->flow;
}

void fetcher_give(struct fetcher *fr, struct fetch *f) {
  if (f->sst) {
    struct fetch **p = bucket_of(fr, f->sst, f->block);
    while (*p != f) p = &(*p)->chain;
    *p = f->chain;
  }
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

static struct fetch *waiting_pop(struct fetcher *fr) {
  struct fetch *const f = fr->waiting;
  fr->waiting = f->next;
  if (!fr->waiting) fr->waiting_tail = &fr->waiting;
  fr->nr_waiting--;
  return f;
}

// Makes room for len bytes in the fetch's memory. REMIXDB_NOMEM.
static enum remixdb_status fetch_reserve(struct fetch *f, uint32_t len) {
  if (len <= f->size) return REMIXDB_OK;
  mem_free(f->buf);
  f->size = 0;
  f->buf = mem_alloc_aligned(BLKIO_ALIGN, len);
  if (!f->buf) return REMIXDB_NOMEM;
  f->size = len;
  return REMIXDB_OK;
}

// Sets the fetch's read: the bytes, or the block's, or for a compressed table the whole aligned pages around the
// block's, because direct I/O reads no less. REMIXDB_NOMEM.
static enum remixdb_status fetch_prepare(struct fetch *f) {
  const struct sst *const t = f->sst;
  uint64_t from = f->off;
  uint32_t len = f->len;
  if (t) {
    const uint64_t off = sst_block_off(t, f->block), end = off + sst_block_stored(t, f->block, f->pages);
    from = sst_align_down(off);
    len = (uint32_t)((t->offs ? align_up(end, BLKIO_ALIGN) : end) - from);
  }
  const bool own = t || !f->into;
  const enum remixdb_status s = own ? fetch_reserve(f, len) : REMIXDB_OK;
  if (s != REMIXDB_OK) return s;
  f->read = (struct blkio_read){.fd = -1, .path = f->path, .buf = own ? f->buf : f->into, .len = len, .off = from};
  return s;
}

// Hands the reads to the system, which then needs no descriptor from us, or one until the read has ended.
static void fetcher_hand_over(struct fetcher *fr) {
  blkio_flow_submit(fr->flow);
  struct fetch *f;
  while ((f = fr->added) != NULL) {
    fr->added = f->next;
    if (!fr->keeps) fetch_close(fr, f);
  }
}

// Gives a waiting fetch's read to the flow. False: not now.
static bool fetch_start(struct fetcher *fr, struct fetch *f) {
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

void fetcher_submit(struct fetcher *fr) {
  while (fr->waiting && !fr->plain && blkio_flow_has_room(fr->flow) && fetch_start(fr, fr->waiting)) continue;
  fetcher_hand_over(fr);
}

// ---- taking

// Reads the fetch's block, or its bytes, in this thread.
static enum remixdb_status fetch_read(const struct fetcher *fr, struct fetch *f) {
  int fd;
  size_t n = 0;
  const bool opened = f->opened;
  enum remixdb_status s = REMIXDB_OK;
  if (opened) fd = f->read.fd;
  else s = fdpool_acquire(f->file, &fd);
  if (s != REMIXDB_OK) return s;
  s = fetch_prepare(f);
  const struct blkio_read *const r = &f->read;
  if (s == REMIXDB_OK && f->sst) s = blkio_read_one(fr->io, fd, r->path, r->buf, r->len, r->off);
  else if (s == REMIXDB_OK) s = env_read_upto(fr->io->env, fd, r->path, r->buf, r->len, r->off, &n);
  if (!f->sst) f->len = (uint32_t)n;
  if (!opened) fdpool_release(f->file);
  return s;
}

// Makes the block of what was read.
static enum remixdb_status fetch_verify(struct fetcher *fr, struct fetch *f) {
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
static struct fetch *fetcher_next(struct fetcher *fr, bool wait, bool *good_out) {
  struct fetch *f = fr->ended;
  if (f) {
    fr->ended = f->next;
    *good_out = f->good;
    return f;
  }
  struct blkio_read *const r = blkio_flow_take(fr->flow, wait);
  *good_out = r && r->status == REMIXDB_OK;
  return (struct fetch *)r;
}

// Waits for all reads that need their descriptors (L5).
static void fetcher_end_all(struct fetcher *fr) {
  struct blkio_read *r;
  while (fr->nr_opened && (r = blkio_flow_take(fr->flow, true)) != NULL) {
    struct fetch *const f = (struct fetch *)r;
    fetch_close(fr, f);
    f->good = r->status == REMIXDB_OK;
    f->next = fr->ended;
    fr->ended = f;
  }
}

struct fetch *fetcher_take(struct fetcher *fr, bool wait) {
  struct fetch *f = fr->plain;
  bool good = false;
  fetcher_end_all(fr);
  fr->plain = NULL;
  if (!f && fr->waiting && !blkio_flow_works(fr->flow)) f = waiting_pop(fr);
  if (!f) f = fetcher_next(fr, wait, &good);
  if (!f) return NULL;
  f->status = good ? REMIXDB_OK : fetch_read(fr, f);
  fetch_close(fr, f);
  if (f->status != REMIXDB_OK) return f;
  if (!f->sst) {
    f->data = f->read.buf;
    return f;
  }
  f->status = fetch_verify(fr, f);
  if (f->status == REMIXDB_OK) cache_offer_missed(&f->sst->cache, f->block, f->pages, f->data);
  return f;
}
