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

// The kind of a record is a set of these bits. A plain record has kind 0.
enum {
  KV_TOMB = 1,     // a tombstone: no value, and no other bit but KV_SEQ and KV_SPACES
  KV_EXPIRES = 2,  // the record has an expiry
  KV_APART = 4,    // the value's bytes are a reference to a value that lies elsewhere, of at most KV_REF_MAX bytes
  // in the log only:
  KV_SEQ = 8,      // the record states its sequence number
  KV_SPACES = 16,  // the record belongs to the tree of the named spaces
  KV_RANGE = 32,   // a range deletion: the key is where it begins, the value is where it ends
};
// The kinds that a decoder accepts.
#define KV_BARE 0u  // tables up to format 2 and logs up to format 3: plain records, and tombstones without a kind byte
#define KV_IN_TABLE ((uint32_t)(KV_TOMB | KV_EXPIRES | KV_APART))
#define KV_IN_LOG (KV_IN_TABLE | (uint32_t)(KV_SEQ | KV_SPACES | KV_RANGE))

#define KV_LONG 0x100u  // a batch's records have values of any length
#define KV_IN_BATCH (KV_IN_LOG | KV_LONG)

#define KV_KEY_MAX (REMIXDB_KV_MAX + 4u)  // bytes of a key; one in the tree of the named spaces has 4 of its own
#define KV_REF_MAX 40u                    // bytes of a reference (KV_APART)

// A record, as it is written and as a decoder finds it. key and val point to the owner's bytes, a decoder's into the
// encoded bytes. A tombstone has vlen 0.
struct kv_rec {
  const uint8_t *key;
  const uint8_t *val;
  uint32_t klen;
  uint32_t vlen;
  uint32_t kind;    // bits KV_...
  uint64_t expiry;  // in ms since 1970; set with KV_EXPIRES only
  uint64_t seq;     // sequence number; set with KV_SEQ, and where a contract says so
};

// Fills in a record, but neither expiry nor seq, and returns it.
static inline struct kv_rec *kv_rec_set(struct kv_rec *r, struct kref key, const void *val, uint32_t vlen,
                                        uint32_t kind) {
  r->key = key.ptr;
  r->val = val;
  r->klen = key.len;
  r->vlen = vlen;
  r->kind = kind;
  return r;
}
// A pointer to such a record, which lives as long as the enclosing block.
#define KV_REC(key, val, vlen, kind) kv_rec_set(&(struct kv_rec){0}, key, val, vlen, kind)

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

// The same for 64 bits, in at most 10 bytes.
#define KV_VARINT64_MAX 10u
uint8_t *kv_varint64_put(uint8_t *p, uint64_t v);
const uint8_t *kv_varint64_get(const uint8_t *p, const uint8_t *end, uint64_t *v_out);

// An encoded record has these parts: varint(klen << 1 | special); if special: u8 kind, varint64 seq with KV_SEQ,
// varint64 expiry with KV_EXPIRES; varint(vlen), but not of a tombstone; key; value. A plain record is not special.
// With KV_BARE the first varint's bit means a tombstone, and no kind follows.
#define KV_HEAD_MAX (3u + 1u + 2u * KV_VARINT64_MAX + 5u)
size_t kv_rec_size_special(const struct kv_rec *r);  // private to kv_rec_size
// Bytes of the encoded record.
static inline size_t kv_rec_size(const struct kv_rec *r) {
  if (unlikely(r->kind)) return kv_rec_size_special(r);
  return kv_varint_size(r->klen << 1) + kv_varint_size(r->vlen) + (size_t)r->klen + r->vlen;
}
// Writes the parts before the key, at most KV_HEAD_MAX bytes. Returns the end.
uint8_t *kv_head_put(uint8_t *p, const struct kv_rec *r);
// Writes the whole record, kv_rec_size bytes. Returns the end.
uint8_t *kv_rec_put(uint8_t *p, const struct kv_rec *r);
// Decodes the record at p. kinds: KV_BARE, KV_IN_TABLE, KV_IN_LOG or KV_IN_BATCH. Checks the kind, and every length
// against `end` and the limits above. Sets seq with KV_SEQ only, expiry with KV_EXPIRES only. Returns the record's end,
// or NULL if the record is malformed.
const uint8_t *kv_rec_get(const uint8_t *p, const uint8_t *end, uint32_t kinds, struct kv_rec *r_out);
// Tells whether a record of this kind can have these lengths.
bool kv_lengths_fit(uint32_t kind, uint32_t klen, uint32_t vlen);
// Tells whether these bits, at least one, can be the kind of a special record of `kinds` (kv_rec_get).
bool kv_kind_fits(uint32_t kind, uint32_t kinds);
#endif
