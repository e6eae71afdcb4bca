// SPDX-License-Identifier: Apache-2.0
#include "table/scan.h"

#include <assert.h>

#include "table/ckb.h"
#include "table/stored.h"

#define SST_READ_MIN (256u << 10)  // most bytes of a read that does not follow the last read
#define SST_READ_MAX (512u << 10)  // most bytes of a read that follows the last read
// Most bytes of a read past the page cache. A read of the disk waits behind it. The system's readahead, which joins
// such reads to some megabytes, does not work there.
#define SST_READ_PAST (256u << 10)
// Room before a read's bytes. If the read brings only the end of a block or chunk, its beginning is kept there. A part
// that one read brings needs none.
#define SST_KEEP (BLOCK_BYTES_MAX + 2 * BLKIO_ALIGN)

// ---- single blocks

static inline uint64_t sst_block_from(const struct sst *t, uint32_t block) {
  return sst_align_down(sst_block_off(t, block));
}

static inline uint32_t sst_block_span(const struct sst *t, uint32_t block, uint32_t pages) {
  const uint64_t end = sst_block_off(t, block) + sst_block_stored(t, block, pages);
  return (uint32_t)(align_up(end, BLKIO_ALIGN) - sst_block_from(t, block));
}

// Returns the room for the stored block, in whole aligned pages. With compression, the unpacked block follows it.
size_t sst_block_room(const struct sst *t, uint32_t block) {
  const uint32_t pages = sst_block_pages(t, block);
  return sst_block_span(t, block, pages) + (t->offs ? (size_t)pages * BLOCK_PAGE : 0);
}

static enum remixdb_status sst_block_check(struct sst_block_read *r, ZSTD_DCtx **zstd) {
  const struct sst *const t = r->t;
  const uint32_t pages = sst_block_pages(t, r->block);
  const uint64_t off = sst_block_off(t, r->block);
  const uint8_t *const stored = r->buf + (off - sst_block_from(t, r->block));
  if (!t->offs) {
    r->data = stored;
    return block_verify(stored, pages, t->nr_recs[r->block], t->form, t->number, r->block, t->path, off);
  }
  uint8_t *const data = r->buf + sst_block_span(t, r->block, pages);
  r->data = data;
  return sst_unpack(t, r->block, pages, stored, sst_block_stored(t, r->block, pages), zstd, data);
}

// Reads the first *nr_out blocks: as many as get a descriptor at once. Waits only for the first descriptor, while the
// call holds none.
static enum remixdb_status sst_blocks_read_some(struct blkio_queue *q, struct sst_block_read *reads, uint32_t nr,
                                                uint32_t *nr_out) {
  struct blkio_read io[SST_BLOCKS_MAX];
  enum remixdb_status s = REMIXDB_OK;
  uint32_t n = 0;
  for (; n < nr; n++) {
    struct sst *const t = reads[n].t;
    const uint32_t block = reads[n].block;
    int fd = -1;
    assert(block < t->nr_pages && t->nr_recs[block]);
    if (n == 0) s = fdpool_acquire(t->file, &fd);
    else if (!fdpool_try_acquire(t->file, &fd)) break;
    if (s != REMIXDB_OK) return s;
    io[n] = (struct blkio_read){.fd = fd,
                                .path = t->path,
                                .buf = reads[n].buf,
                                .len = sst_block_span(t, block, sst_block_pages(t, block)),
                                .off = sst_block_from(t, block)};
  }
  s = blkio_read_batch(q, io, n);
  for (uint32_t i = 0; i < n; i++) fdpool_release(reads[i].t->file);
  *nr_out = n;
  return s;
}

enum remixdb_status sst_blocks_read(struct blkio_queue *q, struct sst_block_read *reads, uint32_t nr) {
  assert(nr <= SST_BLOCKS_MAX);
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t at = 0, n = 0; at < nr && s == REMIXDB_OK; at += n)
    s = sst_blocks_read_some(q, reads + at, nr - at, &n);
  if (s != REMIXDB_OK) return s;
  struct sst_scratch *const x = sst_scratch_take();
  if (!x) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < nr && s == REMIXDB_OK; i++) s = sst_block_check(&reads[i], &x->zstd);
  sst_scratch_give(x);
  return s;
}

// ---- a window that moves over a part of the file, in large aligned reads
//
// While the caller works on one buffer, a flight fills the other buffer with the bytes that follow. Without flights,
// the window has one buffer, and the system's readahead fetches the bytes that follow.

struct sst_window {
  struct sst *t;
  struct blkio_queue *q;
  int fd;            // the private descriptor; -1: there is none, and each read takes the table's
  bool past;         // the private descriptor bypasses the page cache
  bool begun;        // the window needs no private descriptor, or has tried to get it
  uint32_t cur;      // the buffer of the bytes
  uint8_t *bufs[2];  // `keep` and `size` bytes each; NULL until needed
  uint32_t keep;     // SST_KEEP, or 0
  const uint8_t *p;  // the bytes [lo, hi) of the file, in bufs[cur]; lo and hi are aligned
  uint64_t lo, hi;
  uint64_t end;                 // where the part ends, aligned
  uint32_t size;                // bytes of a read, at most
  uint32_t next;                // bytes of the next read; grows while reads follow each other
  uint64_t ahead;               // with a flight under way: it brings [hi, ahead) into the other buffer
  struct blkio_flight *flight;  // NULL until needed
};

static void sst_window_init(struct sst_window *w, struct sst *t, struct blkio_queue *q, uint64_t start,
                            uint64_t limit) {
  *w = (struct sst_window){.t = t, .q = q, .fd = -1, .end = align_up(limit, BLKIO_ALIGN), .next = SST_READ_MIN};
  w->lo = w->hi = sst_align_down(start);
  w->past = blkio_past(t->ctx->io);
  const uint32_t most = w->past ? SST_READ_PAST : SST_READ_MAX;
  w->size = w->end - w->lo < most ? (uint32_t)(w->end - w->lo) : most;
  w->begun = w->end - w->lo <= SST_READ_MIN;  // one read is all
  w->keep = w->begun ? 0 : SST_KEEP;
}

uint32_t sst_scan_share(const struct sst_ctx *ctx, uint32_t nr) {
  const size_t room = ctx->scan_room ? atomic_load_explicit(ctx->scan_room, memory_order_relaxed) : SST_SCAN_ROOM;
  const size_t read = room / (2 * (size_t)(nr ? nr : 1)) & ~((size_t)BLKIO_ALIGN - 1);
  return read < SST_READ_LEAST ? SST_READ_LEAST : read < SST_READ_MAX ? (uint32_t)read : SST_READ_MAX;
}

// Bounds the bytes of each read. The call must come before the first read.
static void sst_window_limit(struct sst_window *w, uint32_t read) {
  assert(!w->bufs[0] && !w->bufs[1] && read >= SST_READ_LEAST && read % BLKIO_ALIGN == 0);
  if (read >= w->size) return;
  w->begun = false;
  w->keep = SST_KEEP;
  w->size = read;
}

static inline bool sst_window_flies(const struct sst_window *w) { return w->flight && blkio_flight_is_open(w->flight); }

static void sst_window_fini(struct sst_window *w) {
  if (!w->t) return;
  blkio_flight_destroy(w->flight);
  if (w->fd >= 0) fdpool_close_passing(w->t->file, w->fd);
  mem_free(w->bufs[0]);
  mem_free(w->bufs[1]);
}

static bool sst_window_reserve(struct sst_window *w, uint32_t i) {
  if (!w->bufs[i]) w->bufs[i] = mem_alloc_aligned(BLKIO_ALIGN, w->keep + (size_t)w->size);
  return w->bufs[i] != NULL;
}

// Returns a read of the bytes after the window into buffer i. The part must have bytes there.
static struct blkio_read sst_window_read(struct sst_window *w, uint32_t i, int fd) {
  const uint64_t left = w->end - w->hi, most = w->next < w->size ? w->next : w->size;
  return (struct blkio_read){.fd = fd,
                             .path = w->t->path,
                             .buf = w->bufs[i] + w->keep,
                             .len = (uint32_t)(left < most ? left : most),
                             .off = w->hi};
}

// Starts a read of the bytes after the window. If the call cannot start it, sst_window_wait reads the bytes later.
static void sst_window_fly(struct sst_window *w) {
  w->next = SST_READ_MAX;
  if (w->hi == w->end || w->fd < 0 || !blkio_queue_flies(w->q)) return;
  err_cleanup_begin();
  const bool ready = sst_window_reserve(w, !w->cur) &&
                     (w->flight || blkio_flight_create(w->q, &w->flight) == REMIXDB_OK);
  err_cleanup_end();
  if (!ready) return;
  const struct blkio_read r = sst_window_read(w, !w->cur, w->fd);
  w->ahead = r.off + r.len;
  blkio_flight_start(w->flight, &r);
}

// Moves the window to buffer i. Keeps the window's bytes from lo on, and puts them right before the place of a read's
// bytes in that buffer.
static void sst_window_shift(struct sst_window *w, uint32_t i, uint64_t lo) {
  uint8_t *const data = w->bufs[i] + w->keep;
  const uint64_t from = lo < w->hi ? lo : w->hi;
  const size_t keep = w->hi - from;
  assert(from >= w->lo && keep <= w->keep);
  if (keep) memmove(data - keep, w->p + (from - w->lo), keep);
  w->cur = i;
  w->p = data - keep;
  w->lo = from;
}

// Reads with the table's descriptor, which has no readahead. So the call tells the system which bytes come next.
static enum remixdb_status sst_window_read_shared(struct sst_window *w, struct blkio_read *r) {
  const uint64_t end = r->off + r->len, left = w->end - end;
  enum remixdb_status s = fdpool_acquire(w->t->file, &r->fd);
  if (s != REMIXDB_OK) return s;
  if (left && w->next == SST_READ_MAX && !w->t->ctx->direct_io)
    env_advise(w->t->ctx->env, r->fd, end, left < SST_READ_MAX ? left : SST_READ_MAX, ENV_WILL_NEED);
  s = w->past ? blkio_read_aside(w->t->ctx->io, r->fd, r->path, r->buf, r->len, r->off)
              : blkio_read_one(w->t->ctx->io, r->fd, r->path, r->buf, r->len, r->off);
  fdpool_release(w->t->file);
  return s;
}

// Reads without a flight, and waits for the bytes. If lo is in the window or at its end, the read goes on at the
// window's end. Else the window begins anew at lo.
static enum remixdb_status sst_window_wait(struct sst_window *w, uint64_t lo) {
  if (lo < w->lo || lo > w->hi) {
    w->lo = w->hi = lo;
    w->next = SST_READ_MIN;
  }
  if (!sst_window_reserve(w, w->cur)) return REMIXDB_NOMEM;
  if (!w->begun && !fdpool_open_passing(w->t->file, w->past, &w->fd)) w->fd = -1;
  w->begun = true;
  sst_window_shift(w, w->cur, lo);
  struct blkio_read r = sst_window_read(w, w->cur, w->fd);
  struct blkio *const io = w->t->ctx->io;
  const enum remixdb_status s = w->fd < 0 ? sst_window_read_shared(w, &r)
                                : w->past ? blkio_read_aside(io, w->fd, r.path, r.buf, r.len, r.off)
                                          : blkio_read_one(io, w->fd, r.path, r.buf, r.len, r.off);
  if (s == REMIXDB_OK) w->hi = r.off + r.len;
  return s;
}

// Brings [off, off + len) into the window. If these bytes follow the previous ones, starts a read of the bytes after
// the window.
static enum remixdb_status sst_window_fill(struct sst_window *w, uint64_t off, uint32_t len) {
  const uint64_t lo = sst_align_down(off);
  const bool follows = lo >= w->lo && lo <= (sst_window_flies(w) ? w->ahead : w->hi);
  enum remixdb_status s = REMIXDB_OK;
  assert(off + len <= w->end && len <= BLOCK_BYTES_MAX + 1);
  if (sst_window_flies(w) && !follows) {
    blkio_flight_drop(w->flight);
  } else if (sst_window_flies(w)) {
    s = blkio_flight_end(w->flight);
    if (s == REMIXDB_OK) {
      sst_window_shift(w, !w->cur, lo);
      w->hi = w->ahead;
    }
  }
  while (s == REMIXDB_OK && (off < w->lo || off + len > w->hi)) s = sst_window_wait(w, lo);
  if (s != REMIXDB_OK) w->lo = w->hi = lo;
  else if (follows) sst_window_fly(w);
  return s;
}

// *p_out: the bytes [off, off + len) of the file, valid until the next call. They must be in the part, and len at most
// BLOCK_BYTES_MAX + 1.
static inline enum remixdb_status sst_window_get(struct sst_window *w, uint64_t off, uint32_t len,
                                                 const uint8_t **p_out) {
  if (unlikely(off < w->lo || off + len > w->hi)) {
    const enum remixdb_status s = sst_window_fill(w, off, len);
    if (s != REMIXDB_OK) return s;
  }
  *p_out = w->p + (off - w->lo);
  return REMIXDB_OK;
}

// ---- scan

#define SST_NO_BLOCK UINT32_MAX

struct sst_scan {
  struct sst *t;
  struct sst_window win;
  sst_pos pos;          // the next record's position
  uint32_t block;       // the current block, or SST_NO_BLOCK
  const uint8_t *data;  // its bytes, verified
  uint32_t last_block;  // the block that was current before, verified; a short way back needs it again
  const uint8_t *last_data;
  uint8_t *unpacked[2];  // BLOCK_BYTES_MAX each, for a compressed table; NULL until needed
  ZSTD_DCtx *zstd;
  uint64_t pages_read;
};

enum remixdb_status sst_scan_create(struct sst *t, struct blkio_queue *q, struct sst_scan **out) {
  *out = NULL;
  struct sst_scan *const scan = mem_calloc(1, sizeof(*scan));
  if (!scan) return REMIXDB_NOMEM;
  scan->t = t;
  scan->block = scan->last_block = SST_NO_BLOCK;
  sst_window_init(&scan->win, t, q, t->base, t->base + t->data_size);
  enum remixdb_status s = REMIXDB_OK;
  if (t->offs) {
    scan->unpacked[0] = mem_alloc(BLOCK_BYTES_MAX);
    s = scan->unpacked[0] ? sst_zstd_reserve(&scan->zstd) : REMIXDB_NOMEM;
  }
  if (s != REMIXDB_OK) {
    sst_scan_destroy(scan);
    return s;
  }
  *out = scan;
  return REMIXDB_OK;
}

void sst_scan_limit(struct sst_scan *scan, uint32_t read) { sst_window_limit(&scan->win, read); }

void sst_scan_destroy(struct sst_scan *scan) {
  if (!scan) return;
  sst_window_fini(&scan->win);
  mem_free(scan->unpacked[0]);
  mem_free(scan->unpacked[1]);
  (void)ZSTD_freeDCtx(scan->zstd);
  mem_free(scan);
}

static enum remixdb_status sst_scan_load(struct sst_scan *scan, uint32_t block) {
  struct sst *const t = scan->t;
  const uint32_t pages = sst_block_pages(t, block), len = sst_block_stored(t, block, pages);
  const uint64_t off = sst_block_off(t, block);
  const uint8_t *p;
  scan->block = SST_NO_BLOCK;
  enum remixdb_status s = sst_window_get(&scan->win, off, len, &p);
  if (s != REMIXDB_OK) return s;
  if (t->offs) {
    s = sst_unpack(t, block, pages, p, len, &scan->zstd, scan->unpacked[0]);
    p = scan->unpacked[0];
  } else {
    s = block_verify(p, pages, t->nr_recs[block], t->form, t->number, block, t->path, off);
  }
  if (s != REMIXDB_OK) return s;
  scan->block = block;
  scan->data = p;
  scan->pages_read += pages;
  return REMIXDB_OK;
}

enum remixdb_status sst_scan_next(struct sst_scan *scan, struct kv_rec *rec_out, sst_pos *pos_out) {
  const uint32_t block = sst_pos_block(scan->pos);
  if (unlikely(block != scan->block)) {
    if (block >= scan->t->nr_pages) return REMIXDB_NOTFOUND;
    const enum remixdb_status s = sst_scan_load(scan, block);
    if (s != REMIXDB_OK) return s;
  }
  block_record(scan->data, sst_pos_idx(scan->pos), rec_out);
  rec_out->seq = sst_seq(scan->t, rec_out);
  *pos_out = scan->pos;
  scan->pos = sst_advance(scan->t, scan->pos, 1);
  return REMIXDB_OK;
}

// Makes `block` the current block. Keeps the previous block, if its bytes stay.
static enum remixdb_status sst_scan_turn(struct sst_scan *scan, uint32_t block) {
  const uint32_t was_block = scan->block;
  const uint8_t *const was = scan->data, *const last = scan->last_data;
  const uint64_t lo = scan->win.lo, hi = scan->win.hi;
  if (scan->t->offs) {
    if (!scan->unpacked[1]) scan->unpacked[1] = mem_alloc(BLOCK_BYTES_MAX);
    if (!scan->unpacked[1]) return REMIXDB_NOMEM;
    uint8_t *const p = scan->unpacked[0];
    scan->unpacked[0] = scan->unpacked[1];
    scan->unpacked[1] = p;
  }
  enum remixdb_status s = REMIXDB_OK;
  if (block == scan->last_block) {
    scan->block = block;
    scan->data = last;
  } else {
    scan->last_block = SST_NO_BLOCK;
    s = sst_scan_load(scan, block);
  }
  // without compression the previous block's bytes stay if the window has not moved
  scan->last_block = scan->t->offs || (lo == scan->win.lo && hi == scan->win.hi) ? was_block : SST_NO_BLOCK;
  scan->last_data = was;
  return s;
}

// Gets the record at pos. A scan uses either this call or sst_scan_next.
static enum remixdb_status sst_scan_at(struct sst_scan *scan, sst_pos pos, struct kv_rec *rec_out) {
  const uint32_t block = sst_pos_block(pos);
  if (block != scan->block) {
    const enum remixdb_status s = sst_scan_turn(scan, block);
    if (s != REMIXDB_OK) return s;
  }
  block_record(scan->data, sst_pos_idx(pos), rec_out);
  return REMIXDB_OK;
}

void sst_scan_skip(struct sst_scan *scan, uint32_t n) {
  if (n > scan->t->nr_records) n = (uint32_t)scan->t->nr_records;  // so that no sum in sst_advance wraps
  scan->pos = sst_advance(scan->t, scan->pos, n);
}

// ---- keys

struct sst_chunk {
  uint64_t off;    // in the compressed-keys block
  uint64_t first;  // its first key's number in the table
};

struct sst_keys_state {
  struct sst *t;
  struct sst_scan *scan;  // reads the data; NULL: the table has compressed keys
  struct sst_window win;  // over the compressed keys
  struct ckb_read read;   // the current chunk; with a scan, only a copy of the previous key
  uint64_t off;           // the next chunk's offset in the compressed-keys block
  uint64_t chunk_off;     // the current chunk's offset in the file, for messages
  uint64_t ckb_read;      // bytes of chunks checked
  sst_pos pos;            // the next key's position
  // Only sst_keys_at uses the rest.
  uint32_t ord_block;        // a block
  uint64_t ord;              // records in all blocks before ord_block
  struct sst_chunk *chunks;  // the chunks that were begun, in order
  uint32_t nr_chunks, cap_chunks;
  uint8_t *key;  // a passed key that was decoded again
  uint32_t key_cap;
  struct ckb_read behind;  // a chunk that was passed, in behind_buf
  uint32_t behind_chunk;   // its index in `chunks`; UINT32_MAX: none
  uint8_t *behind_buf;
};

enum remixdb_status sst_keys_open(struct sst *t, struct blkio_queue *q, struct sst_keys *k) {
  *k = (struct sst_keys){0};
  struct sst_keys_state *const x = mem_calloc(1, sizeof(*x));
  if (!x) return REMIXDB_NOMEM;
  k->state = x;
  x->t = t;
  x->behind_chunk = UINT32_MAX;
  ckb_read_init(&x->read);
  ckb_read_init(&x->behind);
  enum remixdb_status s = REMIXDB_OK;
  if (t->ckb_len) sst_window_init(&x->win, t, q, t->ckb_off, t->ckb_off + t->ckb_len);
  else s = sst_scan_create(t, q, &x->scan);
  if (s != REMIXDB_OK) sst_keys_close(k);
  return s;
}

void sst_keys_limit(struct sst_keys *k, uint32_t read) {
  struct sst_keys_state *const x = k->state;
  sst_window_limit(x->scan ? &x->scan->win : &x->win, read);
}

void sst_keys_close(struct sst_keys *k) {
  struct sst_keys_state *const x = k->state;
  if (!x) return;
  sst_scan_destroy(x->scan);
  sst_window_fini(&x->win);
  ckb_read_fini(&x->read);
  ckb_read_fini(&x->behind);
  mem_free(x->chunks);
  mem_free(x->key);
  mem_free(x->behind_buf);
  mem_free(x);
  *k = (struct sst_keys){0};
}

uint64_t sst_keys_blocks_read(const struct sst_keys *k) {
  return k->state && k->state->scan ? k->state->scan->pages_read : 0;
}

uint64_t sst_keys_ckb_read(const struct sst_keys *k) { return k->state ? k->state->ckb_read : 0; }

static enum remixdb_status sst_keys_next_chunk(struct sst_keys_state *x) {
  struct sst *const t = x->t;
  const uint64_t left = t->ckb_len - x->off;
  x->chunk_off = t->ckb_off + x->off;
  const uint8_t *p;
  if (left <= CKB_CHUNK_HEAD) return err_corrupt(t->path, x->chunk_off, "compressed keys end before the records");
  enum remixdb_status s = sst_window_get(&x->win, x->chunk_off, CKB_CHUNK_HEAD, &p);
  if (s != REMIXDB_OK) return s;
  const uint32_t len = ckb_chunk_length(p, left);
  if (len == 0) return err_corrupt(t->path, x->chunk_off + CKB_OFF_LENGTH, "length of compressed keys");
  s = sst_window_get(&x->win, x->chunk_off, len, &p);
  if (s == REMIXDB_OK) s = ckb_read_chunk(&x->read, p, len, t->number, x->off, t->path, x->chunk_off);
  if (s == REMIXDB_OK) {
    x->off += len;
    x->ckb_read += len;
  }
  return s;
}

// Gets the next key of a table without compressed keys. x->read keeps a copy of the key. Only the bytes after the
// prefix shared with the previous key are copied.
static enum remixdb_status sst_keys_next_data(struct sst_keys_state *x, sst_pos *pos_out) {
  struct ckb_read *const r = &x->read;
  struct kv_rec rec;
  enum remixdb_status s = sst_scan_next(x->scan, &rec, pos_out);
  if (s != REMIXDB_OK) return s;
  const struct kref key = kref(rec.key, rec.klen), last = kref(r->key, r->klen);
  r->shared = r->any ? kv_lcp_from(last, key, 0) : 0;
  if (r->any && (r->shared == key.len || (r->shared < last.len && key.ptr[r->shared] < last.ptr[r->shared])))
    return err_corrupt(x->t->path, sst_block_off(x->t, sst_pos_block(*pos_out)), "keys out of order");
  if (key.len + 1 > r->cap) {
    const uint32_t cap = key.len * 2 + 64;
    uint8_t *const p = mem_realloc(r->key, cap);
    if (!p) return REMIXDB_NOMEM;
    r->key = p;
    r->cap = cap;
  }
  memcpy(r->key + r->shared, key.ptr + r->shared, key.len - r->shared);
  r->klen = key.len;
  r->kind = rec.kind;
  r->any = true;
  return REMIXDB_OK;
}

enum remixdb_status sst_keys_next(struct sst_keys *k) {
  struct sst_keys_state *const x = k->state;
  struct sst *const t = x->t;
  struct ckb_read *const r = &x->read;
  if (unlikely(x->pos == sst_end(t))) return REMIXDB_NOTFOUND;
  const bool first = x->pos == 0;
  enum remixdb_status s = REMIXDB_OK;
  if (x->scan) {
    s = sst_keys_next_data(x, &k->pos);
  } else {
    if (unlikely(r->left == 0)) s = sst_keys_next_chunk(x);
    if (likely(s == REMIXDB_OK)) s = ckb_read_next(r, t->path, x->chunk_off);
    k->pos = x->pos;
  }
  if (unlikely(s != REMIXDB_OK)) return s;
  x->pos = sst_advance(t, x->pos, 1);
  k->key = kref(r->key, r->klen);
  k->shared = r->shared;
  k->kind = r->kind;
  // the metadata has the first and the last key, too, so keys of another table are found out
  const bool last = x->pos == sst_end(t);
  if (unlikely((first && !kv_eq(k->key, t->min)) || (last && !kv_eq(k->key, t->max))))
    return err_corrupt(t->path, x->scan ? 0 : x->chunk_off, "%s key differs from the metadata",
                       first ? "first" : "last");
  if (unlikely(last && !x->scan && (r->left || x->off != t->ckb_len)))
    return err_corrupt(t->path, x->chunk_off, "more compressed keys than records");
  return REMIXDB_OK;
}

// Returns the number of records before pos. Counts on from the position of the last call.
static uint64_t sst_keys_ordinal(struct sst_keys_state *x, sst_pos pos) {
  const uint8_t *const nr_recs = x->t->nr_recs;
  const uint32_t block = sst_pos_block(pos);
  while (x->ord_block < block) x->ord += nr_recs[x->ord_block++];
  while (x->ord_block > block) x->ord -= nr_recs[--x->ord_block];
  return x->ord + sst_pos_idx(pos);
}

// Begins the next chunk, and adds it to x->chunks.
static enum remixdb_status sst_keys_enter_chunk(struct sst_keys_state *x) {
  struct ckb_read *const r = &x->read;
  if (x->nr_chunks == x->cap_chunks) {
    struct sst_chunk *const p = mem_grow32(x->chunks, &x->cap_chunks, 64, sizeof(*p));
    if (!p) return REMIXDB_NOMEM;
    x->chunks = p;
  }
  uint64_t first = 0;
  if (x->nr_chunks) first = x->chunks[x->nr_chunks - 1].first + r->at + r->left;
  r->any = r->any && r->left == 0;  // a key's order can be checked only against the key right before it
  const uint64_t off = x->off;
  const enum remixdb_status s = sst_keys_next_chunk(x);
  if (s == REMIXDB_OK) x->chunks[x->nr_chunks++] = (struct sst_chunk){off, first};
  return s;
}

// Gets key number `ord` of the table. The key is in a chunk that was passed, or too far back in the current chunk.
// Reads the chunk again, unless x->behind has the chunk and stands before the key.
static enum remixdb_status sst_keys_behind(struct sst_keys_state *x, uint64_t ord, struct kref *out) {
  struct sst *const t = x->t;
  struct ckb_read *const r = &x->behind;
  uint32_t c = x->nr_chunks - 1;
  while (x->chunks[c].first > ord) c--;
  const uint64_t off = x->chunks[c].off, end = c + 1 < x->nr_chunks ? x->chunks[c + 1].off : x->off;
  const uint32_t at = (uint32_t)(ord - x->chunks[c].first);
  enum remixdb_status s = REMIXDB_OK;
  if (c != x->behind_chunk || at < r->at) {
    const uint64_t from = sst_align_down(t->ckb_off + off), to = align_up(t->ckb_off + end, BLKIO_ALIGN);
    if (!x->behind_buf) x->behind_buf = mem_alloc_aligned(BLKIO_ALIGN, align_up(CKB_CHUNK, BLKIO_ALIGN) + BLKIO_ALIGN);
    if (!x->behind_buf) return REMIXDB_NOMEM;
    x->behind_chunk = UINT32_MAX;
    int fd;
    s = fdpool_acquire(t->file, &fd);
    if (s != REMIXDB_OK) return s;
    s = blkio_read_one(t->ctx->io, fd, t->path, x->behind_buf, (uint32_t)(to - from), from);
    fdpool_release(t->file);
    r->any = false;
    const uint8_t *const p = x->behind_buf + (t->ckb_off + off - from);
    if (s == REMIXDB_OK) s = ckb_read_chunk(r, p, (uint32_t)(end - off), t->number, off, t->path, t->ckb_off + off);
    if (s != REMIXDB_OK) return s;
    x->behind_chunk = c;
  }
  if (at >= r->at) {
    if (at - r->at >= r->left) return err_corrupt(t->path, t->ckb_off + off, "compressed keys end before the records");
    s = ckb_read_skip(r, at - r->at + 1, t->path, t->ckb_off + off);
  }
  *out = kref(r->key, r->klen);
  return s;
}

enum remixdb_status sst_keys_at(struct sst_keys *k, sst_pos pos) {
  struct sst_keys_state *const x = k->state;
  struct sst *const t = x->t;
  struct ckb_read *const r = &x->read;
  enum remixdb_status s = REMIXDB_OK;
  assert(sst_pos_block(pos) < t->nr_pages && sst_pos_idx(pos) < t->nr_recs[sst_pos_block(pos)]);
  k->pos = pos;
  if (x->scan) {
    struct kv_rec rec;
    s = sst_scan_at(x->scan, pos, &rec);
    if (s == REMIXDB_OK) k->key = kref(rec.key, rec.klen);
    return s;
  }
  const uint64_t ord = sst_keys_ordinal(x, pos);
  uint64_t first;  // number of the current chunk's first key
  for (;;) {
    first = x->nr_chunks ? x->chunks[x->nr_chunks - 1].first : 0;
    if (ord < first + r->at + r->left) break;
    s = sst_keys_enter_chunk(x);
    if (s != REMIXDB_OK) return s;
  }
  if (ord >= first + r->at) {
    s = ckb_read_skip(r, (uint32_t)(ord - first - r->at) + 1, t->path, x->chunk_off);
  } else if (ord + 1 < first + r->at || r->at == 0) {
    uint32_t klen = 0;
    s = ord < first ? REMIXDB_NOTFOUND : ckb_read_back(r, (uint32_t)(ord - first), &x->key, &x->key_cap, &klen);
    if (s == REMIXDB_NOTFOUND) return sst_keys_behind(x, ord, &k->key);
    k->key = kref(x->key, klen);
    return s;
  }
  k->key = kref(r->key, r->klen);
  return s;
}

bool sst_keys_begin(uint64_t number, const uint8_t *bytes, size_t nr, const char *path, uint64_t off) {
  const uint32_t len = nr >= CKB_CHUNK_HEAD ? ckb_chunk_length(bytes, nr) : 0;
  struct ckb_read r;
  if (len == 0) return false;
  ckb_read_init(&r);
  const bool is = ckb_read_chunk(&r, bytes, len, number, 0, path, off) == REMIXDB_OK;
  ckb_read_fini(&r);
  return is;
}
