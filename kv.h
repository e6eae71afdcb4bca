// SPDX-License-Identifier: Apache-2.0
//
// Keys and records: references, their order, and the record codec that the log and the tables share.
#ifndef KV_H
#define KV_H

#include "lib.h"

// A reference to a key. The reference does not own the bytes.
struct kref {
  const uint8_t *ptr;
  uint32_t len;
};

// A decoded record. key and val point into the encoded bytes. A tombstone has vlen 0.
struct kv_rec {
  const uint8_t *key;
  const uint8_t *val;
  uint32_t klen;
  uint32_t vlen;
  bool tomb;
};

static inline struct kref kref(const void *p, uint32_t len) { return (struct kref){(const uint8_t *)p, len}; }

// Compares two keys as memcmp does; a key is less than every longer key that begins with it. Returns < 0, 0 or > 0. The
// function first compares the first 8 bytes as a number, because most keys differ there.
static inline int kv_cmp(struct kref a, struct kref b) {
  if (likely(a.len >= 8 && b.len >= 8)) {
    const uint64_t x = load64be(a.ptr), y = load64be(b.ptr);
    if (x != y) return x < y ? -1 : 1;
  }
  const uint32_t n = a.len < b.len ? a.len : b.len;
  const int r = n ? memcmp(a.ptr, b.ptr, n) : 0;
  return r ? r : (a.len > b.len) - (a.len < b.len);
}
static inline bool kv_eq(struct kref a, struct kref b) {
  return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}
// Returns the length of the common prefix of a and b. The caller knows that their first `from` bytes are equal.
uint32_t kv_lcp_from(struct kref a, struct kref b, uint32_t from);

// Varints: numbers with 7 bits in each byte, from the lowest bits to the highest, in at most 5 bytes. kv_varint_put
// needs 5 bytes of room at p, and returns the end of the varint. kv_varint_get returns the end, too. It returns NULL if
// `end` comes before the end of the varint, or if the number does not fit into 32 bits.
uint8_t *kv_varint_put(uint8_t *p, uint32_t v);
const uint8_t *kv_varint_get(const uint8_t *p, const uint8_t *end, uint32_t *v_out);
static inline uint32_t kv_varint_size(uint32_t v) {
  return v < 1u << 7 ? 1 : v < 1u << 14 ? 2 : v < 1u << 21 ? 3 : v < 1u << 28 ? 4 : 5;
}

// An encoded record has these parts: varint(klen << 1 | tomb), varint(vlen), key, value. A tombstone has only the first
// varint and the key.
#define KV_HEAD_MAX 10
static inline size_t kv_rec_size(uint32_t klen, uint32_t vlen, bool tomb) {
  return kv_varint_size(klen << 1) + (tomb ? 0 : kv_varint_size(vlen) + (size_t)vlen) + klen;
}
// Writes only the varints: two, or one for a tombstone; at most KV_HEAD_MAX bytes. Returns the end.
uint8_t *kv_head_put(uint8_t *p, uint32_t klen, uint32_t vlen, bool tomb);
// Writes the whole record, kv_rec_size bytes. Returns the end.
uint8_t *kv_rec_put(uint8_t *p, const struct kv_rec *r);
// Decodes the record at p. Checks every length against `end` and REMIXDB_KV_MAX. Returns the record's end, or NULL if
// the record is malformed.
const uint8_t *kv_rec_get(const uint8_t *p, const uint8_t *end, struct kv_rec *r_out);
#endif
