// SPDX-License-Identifier: Apache-2.0
#include "ckb.h"

#include <assert.h>

#define CKB_ENTRY_MAX (2 * 5 + REMIXDB_KV_MAX)

_Static_assert(CKB_CHUNK_HEAD + CKB_ENTRY_MAX <= CKB_CHUNK, "the largest key fits a chunk");

// Never the seed of a block: that one has the table number in its upper 48 bits, this one its complement. Offsets stay below
// 2^32 because a table's keys do.
static uint64_t ckb_seed(uint64_t table, uint64_t off) { return ~(table << 32) ^ off; }

// Makes *buf hold `need` bytes, doubling so that the copying stays linear.
static enum remixdb_status ckb_reserve(uint8_t **buf, size_t *cap, size_t need) {
  if (likely(need <= *cap)) return REMIXDB_OK;
  size_t to = *cap ? *cap * 2 : 4096;
  if (to < need) to = need;
  uint8_t *const p = mem_realloc(*buf, to);
  if (!p) return REMIXDB_NOMEM;
  *buf = p;
  *cap = to;
  return REMIXDB_OK;
}

// Moves buf to hold a key of `need` bytes; what it holds stays.
static enum remixdb_status ckb_reserve_key(uint8_t **buf, uint32_t *cap, uint32_t need) {
  size_t c = *cap;
  const enum remixdb_status s = ckb_reserve(buf, &c, need);
  *cap = (uint32_t)c;
  return s;
}

void ckb_build_init(struct ckb_build *c, uint64_t table) {
  c->len = 0;
  c->chunk = 0;
  c->count = 0;
  c->last_len = 0;
  c->table = table;
}

void ckb_build_fini(struct ckb_build *c) {
  mem_free(c->buf);
  mem_free(c->last);
  *c = (struct ckb_build){0};
}

static void ckb_build_close(struct ckb_build *c) {
  if (c->chunk == c->len) return;
  uint8_t *const p = c->buf + c->chunk;
  const size_t len = c->len - c->chunk;
  store32le(p + 8, (uint32_t)len);
  store32le(p + 12, c->count);
  store64le(p, hash64_seed(p + 8, len - 8, ckb_seed(c->table, c->chunk)));
  c->chunk = c->len;
  c->count = 0;
}

enum remixdb_status ckb_build_add(struct ckb_build *c, struct kref key, bool tomb) {
  // all that can fail comes first, so that a failure changes nothing
  enum remixdb_status s = ckb_reserve(&c->buf, &c->cap, c->len + CKB_CHUNK_HEAD + 10 + key.len);
  if (s == REMIXDB_OK) s = ckb_reserve_key(&c->last, &c->last_cap, key.len ? key.len : 1);
  if (unlikely(s != REMIXDB_OK)) return s;

  uint32_t shared = 0;
  if (c->count) {
    shared = kv_lcp_from(kref(c->last, c->last_len), key, 0);
    const uint32_t rest = key.len - shared;
    const size_t size = kv_varint_size(shared) + kv_varint_size(rest << 1) + rest;
    if (c->len + size - c->chunk > CKB_CHUNK) {
      ckb_build_close(c);
      shared = 0;
    }
  }
  if (c->count == 0) c->len = c->chunk + CKB_CHUNK_HEAD;
  const uint32_t rest = key.len - shared;
  uint8_t *p = c->buf + c->len;
  p = kv_varint_put(p, shared);
  p = kv_varint_put(p, rest << 1 | (tomb ? 1u : 0u));
  if (rest) {
    memcpy(p, key.ptr + shared, rest);
    memcpy(c->last + shared, key.ptr + shared, rest);
  }
  c->len = (size_t)(p + rest - c->buf);
  c->last_len = key.len;
  c->count++;
  return REMIXDB_OK;
}

void ckb_build_finish(struct ckb_build *c) { ckb_build_close(c); }

void ckb_read_init(struct ckb_read *r) { *r = (struct ckb_read){0}; }

void ckb_read_fini(struct ckb_read *r) {
  mem_free(r->key);
  *r = (struct ckb_read){0};
}

uint32_t ckb_chunk_length(const uint8_t *p, uint64_t left) {
  const uint32_t len = load32le(p + 8);
  return len < CKB_CHUNK_HEAD + 2 || len > CKB_CHUNK || len > left ? 0 : len;
}

enum remixdb_status ckb_read_chunk(struct ckb_read *r, const uint8_t *chunk, uint32_t len, uint64_t table, uint64_t off,
                                   const char *path, uint64_t file_off) {
  if (unlikely(load64le(chunk) != hash64_seed(chunk + 8, len - 8, ckb_seed(table, off))))
    return err_corrupt(path, file_off, "checksum of compressed keys");
  const uint32_t count = load32le(chunk + 12);
  if (unlikely(load32le(chunk + 8) != len || count == 0)) return err_corrupt(path, file_off + 8, "head of compressed keys");
  r->p = chunk + CKB_CHUNK_HEAD;
  r->end = chunk + len;
  r->left = count;
  r->first = true;
  return REMIXDB_OK;
}

enum remixdb_status ckb_read_next(struct ckb_read *r, const char *path, uint64_t file_off) {
  assert(r->left > 0);
  uint32_t shared, head;
  const uint8_t *p = kv_varint_get(r->p, r->end, &shared);
  if (likely(p != NULL)) p = kv_varint_get(p, r->end, &head);
  if (unlikely(!p)) goto bad;
  const uint32_t rest = head >> 1;
  if (unlikely(rest > (size_t)(r->end - p))) goto bad;

  if (likely(!r->first)) {
    // With the longest prefix shared, the next byte alone decides the order.
    if (unlikely(shared > r->klen || rest == 0 || rest > REMIXDB_KV_MAX - shared)) goto bad;
    if (unlikely(shared < r->klen && p[0] <= r->key[shared])) goto bad;
    r->shared = shared;
  } else {
    if (unlikely(shared != 0 || rest > REMIXDB_KV_MAX)) goto bad;
    if (r->any) {
      if (unlikely(kv_cmp(kref(r->key, r->klen), kref(p, rest)) >= 0)) goto bad;
      r->shared = kv_lcp_from(kref(r->key, r->klen), kref(p, rest), 0);
    } else {
      r->shared = 0;
    }
  }
  const uint32_t klen = shared + rest;
  if (unlikely(klen + 1 > r->cap)) {
    const enum remixdb_status s = ckb_reserve_key(&r->key, &r->cap, klen + 1);
    if (s != REMIXDB_OK) return s;
  }
  if (likely(rest)) memcpy(r->key + shared, p, rest);
  r->p = p + rest;
  r->klen = klen;
  r->tomb = head & 1;
  r->any = true;
  r->first = false;
  r->left--;
  if (unlikely(r->left == 0 && r->p != r->end)) goto bad;
  return REMIXDB_OK;
bad:
  return err_corrupt(path, file_off, "entry of compressed keys");
}
