// SPDX-License-Identifier: Apache-2.0
#include "table/keys.h"

#include <assert.h>

#include "table/stored.h"

#define CHUNK_ROOM (align_up(CKB_CHUNK, BLKIO_ALIGN) + BLKIO_ALIGN)

// ---- the places of the chunks

// Bytes that a read of [off, off + len) of the compressed keys takes, and where it begins in the file.
static uint32_t read_bytes(const struct sst *t, uint64_t off, uint32_t len, uint64_t *from_out) {
  const uint64_t at = t->ckb_off + off;
  *from_out = t->ctx->direct_io ? sst_align_down(at) : at;
  return (uint32_t)((t->ctx->direct_io ? align_up(at + len, BLKIO_ALIGN) : at + len) - *from_out);
}

static enum remixdb_status chunk_read(const struct sst *t, int fd, uint64_t off, uint32_t len, uint8_t *buf,
                                      const uint8_t **out) {
  uint64_t from;
  const uint32_t bytes = read_bytes(t, off, len, &from);
  *out = buf + (t->ckb_off + off - from);
  return blkio_read_one(t->ctx->io, fd, t->path, buf, bytes, from);
}

// Reads the head of the chunk at off, which begins with the record at *pos_io. Moves *pos_io to the next chunk's.
static enum remixdb_status chunk_head(const struct sst *t, int fd, uint64_t off, uint8_t *buf, uint64_t *left_io,
                                      sst_pos *pos_io, uint32_t *len_out) {
  const uint8_t *p;
  if (t->ckb_len - off <= CKB_CHUNK_HEAD || *left_io == 0)
    return err_corrupt(t->path, t->ckb_off + off, "compressed keys do not end with the records");
  const enum remixdb_status s = chunk_read(t, fd, off, CKB_CHUNK_HEAD, buf, &p);
  if (s != REMIXDB_OK) return s;
  const uint32_t count = load32le(p + CKB_OFF_COUNT);
  *len_out = ckb_chunk_length(p, t->ckb_len - off);
  if (*len_out == 0 || count == 0 || count > *left_io)
    return err_corrupt(t->path, t->ckb_off + off + CKB_OFF_LENGTH, "head of compressed keys");
  *left_io -= count;
  *pos_io = sst_advance(t, *pos_io, count);
  return s;
}

static enum remixdb_status chunks_read(const struct sst *t, int fd, uint8_t *buf, struct sst_chunks **out) {
  uint64_t off = 0, left = t->nr_records;
  sst_pos pos = 0;
  uint32_t nr = 0, cap = 0, len = 0;
  struct sst_chunks *c = NULL;
  for (;; off += len, nr++) {
    if (nr == cap) {
      cap = cap ? 2 * cap : 16;
      struct sst_chunks *const more = mem_realloc(c, sizeof(*c) + (cap + 1) * sizeof(c->at[0]));
      if (!more) {
        mem_free(c);
        return REMIXDB_NOMEM;
      }
      c = more;
    }
    c->at[nr] = (struct sst_chunk_at){off, pos};
    c->nr = nr;
    if (off == t->ckb_len && left == 0) break;
    const enum remixdb_status s = chunk_head(t, fd, off, buf, &left, &pos, &len);
    if (s != REMIXDB_OK) {
      mem_free(c);
      return s;
    }
  }
  *out = c;
  return REMIXDB_OK;
}

// Returns the table's chunks, and finds them at the first call.
static enum remixdb_status chunks_of(struct sst *t, uint8_t *buf, const struct sst_chunks **out) {
  struct sst_chunks *had = atomic_load_explicit(&t->chunks, memory_order_acquire), *made;
  *out = had;
  if (likely(had != NULL)) return REMIXDB_OK;
  int fd;
  enum remixdb_status s = fdpool_acquire(t->file, &fd);
  if (s != REMIXDB_OK) return s;
  s = chunks_read(t, fd, buf, &made);
  fdpool_release(t->file);
  if (s != REMIXDB_OK) return s;
  *out = made;
  if (atomic_compare_exchange_strong_explicit(&t->chunks, &had, made, memory_order_acq_rel, memory_order_acquire)) {
    budget_take(t->ctx->budget, BUDGET_TABLES, sst_chunks_memory(t));
    return s;
  }
  mem_free(made);
  *out = had;
  return s;
}

size_t sst_chunks_memory(const struct sst *t) {
  const struct sst_chunks *const c = atomic_load_explicit(&t->chunks, memory_order_acquire);
  return c ? sizeof(*c) + (c->nr + 1) * sizeof(c->at[0]) : 0;
}

// ---- a chunk

static bool chunk_has(const struct sst_chunks *c, uint32_t i, sst_pos pos) {
  return pos >= c->at[i].first && pos < c->at[i + 1].first;
}

static uint32_t chunk_find(const struct sst_chunks *c, sst_pos pos) {
  uint32_t lo = 0, hi = c->nr;
  while (hi - lo > 1) {
    const uint32_t mid = lo + (hi - lo) / 2;
    if (c->at[mid].first > pos) hi = mid;
    else lo = mid;
  }
  return lo;
}

// Begins to read the chunk, which is in h->buf, at its first key.
static enum remixdb_status chunk_begin(const struct sst *t, const struct sst_chunks *c, uint32_t i,
                                       struct sst_key_hold *h) {
  const uint64_t off = c->at[i].off, at = t->ckb_off + off;
  const uint8_t *const p = h->buf + (t->ctx->direct_io ? at - sst_align_down(at) : 0);
  h->read.any = false;
  h->read.klen = 0;
  return ckb_read_chunk(&h->read, p, (uint32_t)(c->at[i + 1].off - off), t->number, off, t->path, at);
}

static enum remixdb_status chunk_load(struct sst *t, const struct sst_chunks *c, uint32_t i, struct sst_key_hold *h) {
  const uint8_t *p;
  int fd;
  h->sst = NULL;
  enum remixdb_status s = fdpool_acquire(t->file, &fd);
  if (s != REMIXDB_OK) return s;
  s = chunk_read(t, fd, c->at[i].off, (uint32_t)(c->at[i + 1].off - c->at[i].off), h->buf, &p);
  fdpool_release(t->file);
  if (s == REMIXDB_OK) s = chunk_begin(t, c, i, h);
  if (s != REMIXDB_OK) return s;
  h->sst = t;
  h->number = t->number;
  h->chunk = i;
  h->pos = c->at[i].first;
  h->at = 0;
  return s;
}

// The number of records in [from, to).
static uint32_t records_between(const struct sst *t, sst_pos from, sst_pos to) {
  uint32_t n = sst_pos_idx(to) - sst_pos_idx(from);
  for (uint32_t b = sst_pos_block(from); b < sst_pos_block(to); b++) n += t->nr_recs[b];
  return n;
}

enum remixdb_status sst_key_at(struct sst *t, sst_pos pos, struct sst_key_hold *h, struct kref *key_out) {
  const struct sst_chunks *c;
  struct ckb_read *const r = &h->read;
  assert(sst_has_keys(t) && sst_pos_block(pos) < t->nr_pages && sst_pos_idx(pos) < t->nr_recs[sst_pos_block(pos)]);
  if (!h->buf && !(h->buf = mem_alloc_aligned(BLKIO_ALIGN, CHUNK_ROOM))) return REMIXDB_NOMEM;
  if (h->sst != t || h->number != t->number) h->sst = NULL;
  enum remixdb_status s = chunks_of(t, h->buf, &c);
  if (s != REMIXDB_OK) return s;
  if (!h->sst || !chunk_has(c, h->chunk, pos)) s = chunk_load(t, c, chunk_find(c, pos), h);
  if (s != REMIXDB_OK) return s;
  h->at = pos >= h->pos ? h->at + records_between(t, h->pos, pos) : h->at - records_between(t, pos, h->pos);
  h->pos = pos;
  uint32_t klen = 0;
  if (h->at + 1 < r->at) {
    s = ckb_read_back(r, h->at, &h->key, &h->key_cap, &klen);
    *key_out = kref(h->key, klen);
    if (s != REMIXDB_NOTFOUND) return s;
    s = chunk_begin(t, c, h->chunk, h);
  }
  if (s == REMIXDB_OK && h->at >= r->at) {
    if (h->at - r->at >= r->left) s = err_corrupt(t->path, t->ckb_off + c->at[h->chunk].off, "too few compressed keys");
    else s = ckb_read_skip(r, h->at - r->at + 1, t->path, t->ckb_off + c->at[h->chunk].off);
  }
  if (s != REMIXDB_OK) h->sst = NULL;
  *key_out = kref(r->key, r->klen);
  return s;
}

bool sst_key_cheap(struct sst *t, sst_pos pos, const struct sst_key_hold *h) {
  const struct sst_chunks *const c = atomic_load_explicit(&t->chunks, memory_order_acquire);
  if (!c) return atomic_fetch_add_explicit(&t->keys_wanted, 1, memory_order_relaxed) >= SST_KEYS_WANTED;
  if (h->sst == t && h->number == t->number && chunk_has(c, h->chunk, pos)) return true;
  const uint32_t i = chunk_find(c, pos), block = sst_pos_block(pos);
  uint64_t from;
  return read_bytes(t, c->at[i].off, (uint32_t)(c->at[i + 1].off - c->at[i].off), &from) <=
         sst_block_stored(t, block, sst_block_pages(t, block));
}

void sst_key_hold_fini(struct sst_key_hold *h) {
  ckb_read_fini(&h->read);
  mem_free(h->buf);
  mem_free(h->key);
  *h = (struct sst_key_hold){0};
}
