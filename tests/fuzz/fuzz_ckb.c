// SPDX-License-Identifier: Apache-2.0
//
// Compressed-keys blocks from any bytes. Accepted keys ascend and share the prefixes that the entries claim. The
// builder writes them again as the same bytes.
//
// Input: flags (bit 0: the checksums are right, 1: the bytes are chunks as they are, else entries from which chunks are
// made, 2: the last of them is packed).
#include "table/ckb.h"
#include "tests/fuzz/fuzz.h"
#include "table/scan.h"
#include "base/zmem.h"

#define TABLE 9u
#define PATH "keys"
#define CKB_MAX (1u << 20)
#define KEYS_BYTES_MAX (8u << 20)  // an input that says more is not worth the time

static uint64_t seed_of(uint64_t off) { return ~((uint64_t)TABLE << 32) ^ off; }  // docs/FORMAT.md

struct bytes {
  uint8_t *p;
  size_t len, cap;
};

static uint8_t *bytes_room(struct bytes *b, size_t more) {
  while (b->cap - b->len < more) {
    b->cap = b->cap ? b->cap * 2 : 4096;
    b->p = realloc(b->p, b->cap);
    FUZZ_CHECK(b->p != NULL);
  }
  uint8_t *const p = b->p + b->len;
  b->len += more;
  return p;
}

// Puts a frame in place of the bytes after the chunk's head. Bits of `how`: 1 the size is wrong, 2 a byte follows the
// frame, 3 its last byte is not there.
static void pack(struct bytes *b, size_t chunk, uint32_t how) {
  const size_t entries = b->len - chunk - CKB_CHUNK_HEAD, cap = ZSTD_compressBound(entries);
  uint8_t *const frame = malloc(cap + 1);
  FUZZ_CHECK(frame != NULL);
  size_t n = ZSTD_compress(frame, cap, b->p + chunk + CKB_CHUNK_HEAD, entries, 1);
  FUZZ_CHECK(!ZSTD_isError(n));
  if (how & 4) frame[n++] = 0;
  if (how & 8) n--;
  b->len = chunk + CKB_CHUNK_HEAD;
  store32le(bytes_room(b, 4), (uint32_t)entries + (how >> 1 & 1));
  memcpy(bytes_room(b, n), frame, n);
  free(frame);
}

// Bits of `how`: 0 it is packed, then those of pack.
static void close_chunk(struct bytes *b, size_t chunk, uint32_t count, uint32_t how) {
  if (b->len == chunk) return;
  if (how & 1) pack(b, chunk, how);
  store32le(b->p + chunk + 8, (uint32_t)(b->len - chunk) | (how & 1 ? CKB_PACKED : 0));
  store32le(b->p + chunk + 12, count);
}

// Entries: kind (bits 0-1: 0 and 1 an entry, 2 bytes as they are, 3 a new chunk: bits 2-5 how the one before is
// closed), then the arguments of that kind.
static void compose(struct fuzz_in *in, struct bytes *b, bool pack_last) {
  size_t chunk = 0;
  uint32_t count = 0, len;
  memset(bytes_room(b, CKB_CHUNK_HEAD), 0, CKB_CHUNK_HEAD);
  while (fuzz_left(in) && b->len < CKB_MAX) {
    const uint32_t kind = fuzz_u8(in);
    if ((kind & 3) == 3) {
      close_chunk(b, chunk, count + (kind >> 7), kind >> 2 & 15);
      chunk = b->len;
      count = 0;
      memset(bytes_room(b, CKB_CHUNK_HEAD), 0, CKB_CHUNK_HEAD);
    } else if ((kind & 3) == 2) {
      const uint8_t *const p = fuzz_bytes(in, kind >> 3, &len);
      if (len) memcpy(bytes_room(b, len), p, len);
      count += kind >> 2 & 1;
    } else {
      uint8_t head[10];
      const uint32_t shared = kind & 4 ? fuzz_u16(in) : fuzz_u8(in), rest = kind & 8 ? fuzz_u16(in) : fuzz_u8(in) & 31;
      const uint32_t first = fuzz_u8(in);
      const uint8_t *const end = kv_varint_put(kv_varint_put(head, shared), rest << 1 | kind >> 7);
      memcpy(bytes_room(b, (size_t)(end - head)), head, (size_t)(end - head));
      uint8_t *const p = bytes_room(b, rest);
      memset(p, (int)(kind >> 4 & 7) * 36, rest);
      if (rest) p[0] = (uint8_t)first;
      count++;
    }
  }
  close_chunk(b, chunk, count, pack_last);
}

static void fix(struct bytes *b) {
  for (size_t off = 0; b->len - off >= CKB_CHUNK_HEAD;) {
    const uint32_t len = ckb_chunk_length(b->p + off, b->len - off);
    if (len == 0) return;
    store64le(b->p + off, hash64_seed(b->p + off + 8, len - 8, seed_of(off)));
    off += len;
  }
}

struct keys {
  struct kref *at;
  bool *tombs;
  size_t nr, cap, bytes;
};

static void keys_add(struct keys *k, const struct ckb_read *r) {
  if (k->nr == k->cap) {
    k->cap = k->cap ? k->cap * 2 : 64;
    k->at = realloc(k->at, k->cap * sizeof(*k->at));
    k->tombs = realloc(k->tombs, k->cap * sizeof(*k->tombs));
    FUZZ_CHECK(k->at && k->tombs);
  }
  uint8_t *const p = malloc(r->klen ? r->klen : 1);
  FUZZ_CHECK(p != NULL);
  if (r->klen) memcpy(p, r->key, r->klen);
  k->at[k->nr] = kref(p, r->klen);
  k->tombs[k->nr++] = r->kind;
  k->bytes += r->klen;
}

static void keys_fini(struct keys *k) {
  for (size_t i = 0; i < k->nr; i++) fuzz_key_free(k->at[i]);
  free(k->at);
  free(k->tombs);
}

// Reads the CKB from the chunk at `off` to the end, as sst_keys does. Keys of a good one are gathered when out is not
// NULL.
static enum remixdb_status read_from(const uint8_t *p, size_t size, size_t off, struct keys *out) {
  struct ckb_read r;
  ckb_read_init(&r);
  enum remixdb_status s = REMIXDB_OK;
  uint8_t *last = NULL;
  uint32_t last_len = 0;
  bool any = false;
  while (s == REMIXDB_OK && size - off > CKB_CHUNK_HEAD && (!out || out->bytes < KEYS_BYTES_MAX)) {
    const uint32_t len = ckb_chunk_length(p + off, size - off);
    if (len == 0) {
      s = REMIXDB_CORRUPT;
      break;
    }
    s = ckb_read_chunk(&r, p + off, len, TABLE, off, PATH, off);
    while (s == REMIXDB_OK && r.left > 0) {
      s = ckb_read_next(&r, PATH, off);
      if (s != REMIXDB_OK) break;
      const struct kref key = kref(r.key, r.klen), before = kref(last, last_len);
      FUZZ_CHECK(r.klen <= KV_KEY_MAX);
      if (any) FUZZ_CHECK(kv_cmp(before, key) < 0 && r.shared == kv_lcp_from(before, key, 0));
      else FUZZ_CHECK(r.shared == 0);
      last = realloc(last, r.klen + 1);
      FUZZ_CHECK(last != NULL);
      memcpy(last, r.key, r.klen);
      last_len = r.klen;
      any = true;
      if (out) keys_add(out, &r);
      if (out && out->bytes >= KEYS_BYTES_MAX) break;
    }
    off += len;
  }
  FUZZ_CHECK(s == REMIXDB_OK || s == REMIXDB_CORRUPT);
  free(last);
  ckb_read_fini(&r);
  return s;
}

static void write_again(const struct keys *k) {
  struct ckb_build b = {0};
  struct keys again = {0};
  ckb_build_init(&b, TABLE);
  for (size_t i = 0; i < k->nr; i++) FUZZ_OK(ckb_build_add(&b, k->at[i], k->tombs[i]));
  FUZZ_OK(ckb_build_finish(&b));
  uint8_t *const exact = malloc(b.len ? b.len : 1);
  FUZZ_CHECK(exact != NULL);
  if (b.len) memcpy(exact, b.buf, b.len);
  FUZZ_OK(read_from(exact, b.len, 0, &again));
  FUZZ_CHECK(again.nr == k->nr);
  for (size_t i = 0; i < k->nr; i++) FUZZ_CHECK(kv_eq(again.at[i], k->at[i]) && again.tombs[i] == k->tombs[i]);
  free(exact);
  keys_fini(&again);
  ckb_build_fini(&b);
}

FUZZ(ckb) {
  struct fuzz_in in = {data, data + size};
  const uint32_t flags = fuzz_u8(&in);
  struct bytes b = {0};
  if (flags & 2) {
    const size_t n = fuzz_left(&in);
    if (n) memcpy(bytes_room(&b, n), in.p, n);
  } else {
    compose(&in, &b, flags >> 2 & 1);
  }
  if (flags & 1) fix(&b);
  uint8_t *const exact = malloc(b.len ? b.len : 1);
  FUZZ_CHECK(exact != NULL);
  if (b.len) memcpy(exact, b.p, b.len);
  struct keys keys = {0};
  if (read_from(exact, b.len, 0, &keys) == REMIXDB_OK && keys.bytes < KEYS_BYTES_MAX) {
    write_again(&keys);
    // from any chunk on it is good as well
    for (size_t off = 0; b.len - off > CKB_CHUNK_HEAD; off += ckb_chunk_length(exact + off, b.len - off))
      FUZZ_OK(read_from(exact, b.len, off, NULL));
  }
  keys_fini(&keys);
  free(exact);
  free(b.p);
  return 0;
}
