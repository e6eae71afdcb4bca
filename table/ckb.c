// SPDX-License-Identifier: Apache-2.0
#include "table/ckb.h"

#include <assert.h>
#include <zstd_errors.h>

#include "base/zmem.h"

#define CKB_SUMMED (CKB_OFF_SUM + 8u)  // the checksum covers the bytes from this offset on
#define CKB_ENTRY_MAX (3 + 3 + 1 + KV_KEY_MAX)
#define CKB_SLACK 16u   // bytes after a decoded key that may be written: a short suffix is copied as one vector
#define CKB_LEVEL 1     // higher levels find little more in ascending keys
#define CKB_SHORT 144u  // longer than a key with one-byte lengths and a short suffix

_Static_assert(CKB_CHUNK_HEAD + CKB_ENTRY_MAX <= CKB_CHUNK, "the largest key fits a chunk");
_Static_assert(127 + CKB_SLACK < CKB_SHORT, "room for a key with one-byte lengths and a short suffix");
_Static_assert(CKB_CHUNK <= 1u << 16, "an entry's offset has 16 bits");

// The seed of a chunk differs from the seed of every block. A block's seed has the table's number in its upper 48 bits.
// A chunk's seed has the complement of this number in its upper 32 bits. Offsets are below 2^32, because a table's keys
// have fewer bytes.
static uint64_t ckb_seed(uint64_t table, uint64_t off) { return ~(table << 32) ^ off; }

static inline uint64_t ckb_sum(const uint8_t *chunk, uint32_t len, uint64_t table, uint64_t off) {
  return hash64_seed(chunk + CKB_SUMMED, len - CKB_SUMMED, ckb_seed(table, off));
}

// Makes *buf hold `need` bytes. Doubles it, so that the cost of copying stays linear.
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

// The same for a key's buffer.
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
  c->entries = 0;
  c->plain = false;
  c->left = c->left_of = 0;
  c->last_len = 0;
  c->table = table;
}

void ckb_build_fini(struct ckb_build *c) {
  mem_free(c->buf);
  mem_free(c->last);
  mem_free(c->packed);
  *c = (struct ckb_build){0};
}

// Packs the entries of the open chunk into c->packed. *len_out: bytes of the frame; 0: it would save too little.
static enum remixdb_status ckb_build_pack(struct ckb_build *c, uint32_t entries, size_t *len_out) {
  *len_out = 0;
  const size_t most = entries - (entries + 7) / 8, head = CKB_PACKED_HEAD - CKB_CHUNK_HEAD;  // saves an eighth
  if (most <= head || c->plain) return REMIXDB_OK;
  if (c->left) {
    c->left--;
    return REMIXDB_OK;
  }
  const enum remixdb_status s = ckb_reserve(&c->packed, &c->packed_cap, most);
  if (s != REMIXDB_OK) return s;
  ZSTD_CCtx *const z = zmem_packer_take();
  if (!z) return REMIXDB_NOMEM;
  const size_t n = ZSTD_compressCCtx(z, c->packed, most - head, c->buf + c->chunk + CKB_CHUNK_HEAD, entries, CKB_LEVEL);
  zmem_packer_give(z);
  if (!ZSTD_isError(n)) {
    *len_out = n;
    c->left_of = 0;
  } else if (ZSTD_getErrorCode(n) != ZSTD_error_dstSize_tooSmall) {
    // any other error of this call means that memory is missing
    return err_set(REMIXDB_NOMEM, "no memory for compression: %s", ZSTD_getErrorName(n));
  } else {
    if (c->left_of < CKB_LEFT_MAX) c->left_of = 2 * c->left_of + 1;
    c->left = c->left_of;
  }
  return REMIXDB_OK;
}

static enum remixdb_status ckb_build_close(struct ckb_build *c) {
  if (c->chunk == c->len) return REMIXDB_OK;
  uint8_t *const p = c->buf + c->chunk;
  const uint32_t entries = (uint32_t)(c->len - c->chunk) - CKB_CHUNK_HEAD;
  size_t frame;
  const enum remixdb_status s = ckb_build_pack(c, entries, &frame);
  if (s != REMIXDB_OK) return s;
  uint32_t len = CKB_CHUNK_HEAD + entries, packed = 0;
  if (frame) {
    len = CKB_PACKED_HEAD + (uint32_t)frame;
    packed = CKB_PACKED;
    store32le(p + CKB_OFF_UNPACKED, entries);
    memcpy(p + CKB_PACKED_HEAD, c->packed, frame);
  }
  store32le(p + CKB_OFF_LENGTH, len | packed | CKB_KINDS);
  store32le(p + CKB_OFF_COUNT, c->count);
  store64le(p + CKB_OFF_SUM, ckb_sum(p, len, c->table, c->chunk));
  c->len = c->chunk += len;
  c->count = 0;
  return REMIXDB_OK;
}

enum remixdb_status ckb_build_add(struct ckb_build *c, struct kref key, uint32_t kind) {
  // steps that can fail come before all changes, so that a failure changes nothing
  enum remixdb_status s = ckb_reserve(&c->buf, &c->cap, c->len + CKB_CHUNK_HEAD + 11 + key.len);
  if (s == REMIXDB_OK) s = ckb_reserve_key(&c->last, &c->last_cap, key.len ? key.len : 1);
  if (unlikely(s != REMIXDB_OK)) return s;

  uint32_t shared = 0;
  if (c->count) {
    shared = kv_lcp_from(kref(c->last, c->last_len), key, 0);
    assert(shared < key.len && (shared == c->last_len || key.ptr[shared] > c->last[shared]));
    const uint32_t rest = key.len - shared;
    const size_t size = kv_varint_size(shared) + kv_varint_size(rest << 1) + (kind != 0) + rest;
    if (c->len + size - c->chunk > CKB_CHUNK) {
      s = ckb_build_close(c);
      if (unlikely(s != REMIXDB_OK)) return s;
      shared = 0;
    }
  }
  if (c->count == 0) c->len = c->chunk + CKB_CHUNK_HEAD;
  const uint32_t rest = key.len - shared;
  uint8_t *p = c->buf + c->len;
  p = kv_varint_put(p, shared);
  p = kv_varint_put(p, rest << 1 | (kind ? 1u : 0u));
  if (unlikely(kind)) *p++ = (uint8_t)kind;
  if (rest) {
    memcpy(p, key.ptr + shared, rest);
    memcpy(c->last + shared, key.ptr + shared, rest);
  }
  p += rest;
  c->entries += (size_t)(p - (c->buf + c->len));
  c->len = (size_t)(p - c->buf);
  c->last_len = key.len;
  c->count++;
  return REMIXDB_OK;
}

enum remixdb_status ckb_build_finish(struct ckb_build *c) { return ckb_build_close(c); }

void ckb_read_init(struct ckb_read *r) { *r = (struct ckb_read){0}; }

void ckb_read_fini(struct ckb_read *r) {
  mem_free(r->key);
  mem_free(r->unpacked);
  *r = (struct ckb_read){0};
}

uint32_t ckb_chunk_length(const uint8_t *p, uint64_t left) {
  const uint32_t word = load32le(p + CKB_OFF_LENGTH), len = word & ~(CKB_PACKED | CKB_KINDS),
                 least = word & CKB_PACKED ? CKB_PACKED_HEAD + 1 : CKB_CHUNK_HEAD + 2;
  return len < least || len > CKB_CHUNK || len > left ? 0 : len;
}

enum remixdb_status ckb_read_chunk(struct ckb_read *r, const uint8_t *chunk, uint32_t len, uint64_t table, uint64_t off,
                                   const char *path, uint64_t file_off) {
  if (unlikely(load64le(chunk + CKB_OFF_SUM) != ckb_sum(chunk, len, table, off)))
    return err_corrupt(path, file_off, "checksum of compressed keys");
  const uint32_t word = load32le(chunk + CKB_OFF_LENGTH), count = load32le(chunk + CKB_OFF_COUNT);
  if (unlikely(ckb_chunk_length(chunk, len) != len || count == 0))
    return err_corrupt(path, file_off + CKB_OFF_LENGTH, "head of compressed keys");
  uint32_t packed = 0;
  if (word & CKB_PACKED) {
    packed = load32le(chunk + CKB_OFF_UNPACKED);
    if (unlikely(packed < 2 || packed > CKB_CHUNK - CKB_CHUNK_HEAD))
      return err_corrupt(path, file_off + CKB_OFF_UNPACKED, "size of packed compressed keys");
  }
  r->chunk = chunk;
  r->packed = packed;
  r->p = chunk + (packed ? CKB_PACKED_HEAD : CKB_CHUNK_HEAD);
  r->end = chunk + len;
  r->at = 0;
  r->left = count;
  r->first = true;
  r->kinds = word & CKB_KINDS;
  return REMIXDB_OK;
}

// Unpacks the frame at r->p. A failure leaves the reader as it was.
static enum remixdb_status ckb_read_unpack(struct ckb_read *r, const char *path, uint64_t file_off) {
  const size_t len = (size_t)(r->end - r->p);
  // there must be exactly one frame, but decompression accepts several frames
  if (unlikely(ZSTD_findFrameCompressedSize(r->p, len) != len))
    return err_corrupt(path, file_off + CKB_PACKED_HEAD, "frame of compressed keys");
  const enum remixdb_status s = ckb_reserve(&r->unpacked, &r->unpacked_cap, r->packed);
  if (s != REMIXDB_OK) return s;
  ZSTD_DCtx *const z = zmem_unpacker_take();
  if (!z) return REMIXDB_NOMEM;
  const size_t n = ZSTD_decompressDCtx(z, r->unpacked, r->packed, r->p, len);
  zmem_unpacker_give(z);
  if (unlikely(ZSTD_isError(n)))
    return err_corrupt(path, file_off + CKB_PACKED_HEAD, "frame of compressed keys: %s", ZSTD_getErrorName(n));
  if (unlikely(n != r->packed))
    return err_corrupt(path, file_off + CKB_PACKED_HEAD, "frame of compressed keys is too short");
  r->packed = 0;
  r->chunk = r->p = r->unpacked;
  r->end = r->unpacked + n;
  return REMIXDB_OK;
}

// Reads an entry of any kind. The quick paths below leave to this call: a chunk's first and last entry, an entry with a
// length of more than 7 bits, an empty suffix or a suffix of more than CKB_SLACK bytes, and an entry near the chunk's
// end.
static enum remixdb_status ckb_read_any(struct ckb_read *r, const char *path, uint64_t file_off) {
  uint32_t shared, head;
  if (unlikely(r->packed)) {
    const enum remixdb_status s = ckb_read_unpack(r, path, file_off);
    if (s != REMIXDB_OK) return s;
  }
  const uint8_t *p = kv_varint_get(r->p, r->end, &shared);
  if (likely(p != NULL)) p = kv_varint_get(p, r->end, &head);
  if (unlikely(!p)) goto bad;
  const uint32_t rest = head >> 1;
  uint32_t kind = head & 1;  // without kinds this is KV_TOMB
  if (unlikely(kind && r->kinds) && (p == r->end || !kv_kind_fits(kind = *p++, KV_IN_TABLE))) goto bad;
  if (unlikely(rest > (size_t)(r->end - p))) goto bad;

  if (likely(!r->first)) {
    // the shared prefix is the longest one, so the next byte decides the order
    if (unlikely(shared > r->klen || rest == 0 || rest > KV_KEY_MAX - shared)) goto bad;
    if (unlikely(shared < r->klen && p[0] <= r->key[shared])) goto bad;
    r->shared = shared;
  } else {
    if (unlikely(shared != 0 || rest > KV_KEY_MAX)) goto bad;
    if (r->any) {
      if (unlikely(kv_cmp(kref(r->key, r->klen), kref(p, rest)) >= 0)) goto bad;
      r->shared = kv_lcp_from(kref(r->key, r->klen), kref(p, rest), 0);
    } else {
      r->shared = 0;
    }
  }
  const uint32_t klen = shared + rest;
  if (unlikely(klen + CKB_SLACK > r->cap)) {
    const enum remixdb_status s = ckb_reserve_key(&r->key, &r->cap, klen + CKB_SLACK);
    if (s != REMIXDB_OK) return s;
  }
  if (likely(rest)) memcpy(r->key + shared, p, rest);
  r->back[r->at++ % CKB_BACK] = (uint16_t)(r->p - r->chunk);
  r->p = p + rest;
  r->klen = klen;
  r->kind = kind;
  r->any = true;
  r->first = false;
  r->left--;
  if (unlikely(r->left == 0 && r->p != r->end)) goto bad;
  return REMIXDB_OK;
bad:
  return err_corrupt(path, file_off, "entry of compressed keys");
}

enum remixdb_status ckb_read_skip(struct ckb_read *r, uint32_t nr, const char *path, uint64_t file_off) {
  assert(nr > 0 && nr <= r->left);
  for (;;) {
    // The loop reads nearly all entries: both lengths have one byte, the suffix is short, and a whole vector can be
    // copied. Locals hold the loop's state: the compiler must assume that writing a key's bytes changes other memory.
    const uint8_t *p = r->p;
    const uint8_t *const end = r->end - (CKB_SLACK + 2), *const chunk = r->chunk;
    uint8_t *const key = r->key;
    uint32_t klen = r->klen, shared = r->shared, kind = r->kind, at = r->at;
    const uint32_t unusual = r->kinds ? 0x8180 : 0x8080;
    const uint32_t from = at, most = nr < r->left ? nr : nr - 1;  // without the chunk's last entry
    const uint32_t to = r->first || r->cap < 2 * CKB_SHORT ? at : at + most;
    for (; at != to && p <= end; at++) {
      const uint32_t w = load16le(p), same = w & 0xFF, h = w >> 8, rest = h >> 1;
      if (unlikely(w & unusual || same > klen || rest - 1 >= CKB_SLACK)) break;
      if (unlikely(p[2] <= key[same] && same < klen)) break;
      memcpy(key + same, p + 2, CKB_SLACK);
      r->back[at % CKB_BACK] = (uint16_t)(p - chunk);
      klen = same + rest;
      shared = same;
      kind = h & 1;
      p += 2 + rest;
    }
    r->p = p;
    r->klen = klen;
    r->shared = shared;
    r->kind = kind;
    r->at = at;
    r->left -= at - from;
    nr -= at - from;
    if (nr == 0) return REMIXDB_OK;
    const enum remixdb_status s = ckb_read_any(r, path, file_off);
    if (unlikely(s != REMIXDB_OK) || --nr == 0) return s;
  }
}

// Does one step of the loop in ckb_read_skip.
enum remixdb_status ckb_read_next(struct ckb_read *r, const char *path, uint64_t file_off) {
  assert(r->left > 0);
  const uint8_t *const p = r->p;
  uint8_t *const key = r->key;
  if (likely(r->left > 1 && !r->first && r->cap >= 2 * CKB_SHORT && r->end - p >= (ptrdiff_t)(CKB_SLACK + 2))) {
    const uint32_t w = load16le(p), same = w & 0xFF, rest = w >> 9, klen = r->klen;
    if (likely(!(w & (r->kinds ? 0x8180 : 0x8080)) && same <= klen && rest - 1 < CKB_SLACK &&
               (p[2] > key[same] || same == klen))) {
      memcpy(key + same, p + 2, CKB_SLACK);
      r->back[r->at % CKB_BACK] = (uint16_t)(p - r->chunk);
      r->at++;
      r->left--;
      r->klen = same + rest;
      r->shared = same;
      r->kind = w >> 8 & 1;
      r->p = p + 2 + rest;
      return REMIXDB_OK;
    }
  }
  return ckb_read_any(r, path, file_off);
}

// Decodes an entry that was read before, and so is well-formed. Returns its suffix.
static const uint8_t *ckb_read_again(const struct ckb_read *r, uint32_t at, uint32_t *shared_out, uint32_t *rest_out) {
  const uint8_t *p = r->chunk + r->back[at % CKB_BACK];
  p = kv_varint_get(p, r->end, shared_out);
  p = kv_varint_get(p, r->end, rest_out);
  p += *rest_out & r->kinds;
  *rest_out >>= 1;
  return p;
}

// All keys from `at` to the current key share a prefix, which the current key has. The rest of the wanted key is in the
// suffixes of entry `at` and of the entries before `at`.
enum remixdb_status ckb_read_back(const struct ckb_read *r, uint32_t at, uint8_t **buf, uint32_t *cap,
                                  uint32_t *klen_out) {
  assert(at < r->at);
  const uint32_t oldest = r->at > CKB_BACK ? r->at - CKB_BACK : 0;
  if (at < oldest) return REMIXDB_NOTFOUND;
  uint32_t common = r->klen, shared, rest;
  for (uint32_t i = at + 1; i < r->at; i++) {
    (void)ckb_read_again(r, i, &shared, &rest);
    if (shared < common) common = shared;
  }
  const uint8_t *suffix = ckb_read_again(r, at, &shared, &rest);
  const uint32_t klen = shared + rest;
  const enum remixdb_status s = ckb_reserve_key(buf, cap, klen ? klen : 1);
  if (s != REMIXDB_OK) return s;
  if (rest) memcpy(*buf + shared, suffix, rest);
  uint32_t need = shared;  // bytes still missing
  for (uint32_t i = at; need > common;) {
    if (i-- == oldest) return REMIXDB_NOTFOUND;
    suffix = ckb_read_again(r, i, &shared, &rest);
    if (shared >= need) continue;
    memcpy(*buf + shared, suffix, need - shared);
    need = shared;
  }
  if (need) memcpy(*buf, r->key, need);
  *klen_out = klen;
  return REMIXDB_OK;
}
