// SPDX-License-Identifier: Apache-2.0
#include "value/format.h"

// Offsets in the header.
enum {
  HEAD_MAGIC = 0,   // u8[8]
  HEAD_FORMAT = 8,  // u32
  HEAD_FLAGS = 12,  // u32, 0
  HEAD_STORE_ID = 16,
  HEAD_NUMBER = 24,
  HEAD_NONCE = 32,
  HEAD_ZERO = 40,  // 16 bytes
  HEAD_SUM = 56,   // u64, XXH3 of the bytes before it
};
// Offsets in the head of a record.
enum {
  REC_SUM = 0,      // u64
  REC_MARK = 8,     // u32
  REC_KLEN = 12,    // u32
  REC_VLEN = 16,    // u32
  REC_FLAGS = 20,   // u32, REC_INDEX or 0
  REC_STORED = 24,  // u64
  REC_NONCE = 32,   // u64
};
#define REC_INDEX 1u
static const char value_magic[8] = {'R', 'M', 'X', 'D', 'B', 'V', 'A', 'L'};

bool value_is_magic(const uint8_t *bytes) { return memcmp(bytes, value_magic, sizeof(value_magic)) == 0; }

void value_head_put(uint8_t *p, struct value_head *h) {
  memset(p, 0, VALUE_HEAD);
  memcpy(p + HEAD_MAGIC, value_magic, sizeof(value_magic));
  store32le(p + HEAD_FORMAT, VALUE_FORMAT);
  store64le(p + HEAD_STORE_ID, h->store_id);
  store64le(p + HEAD_NUMBER, h->number);
  store64le(p + HEAD_NONCE, h->nonce);
  h->print = hash64(p, HEAD_SUM);
  store64le(p + HEAD_SUM, h->print);
  h->key = hash64_seed(p + HEAD_STORE_ID, HEAD_ZERO - HEAD_STORE_ID, h->print);
}

enum remixdb_status value_head_get(const uint8_t *p, const char *path, struct value_head *h_out) {
  if (!value_is_magic(p + HEAD_MAGIC)) return err_corrupt(path, 0, "not a value file");
  const uint64_t sum = hash64(p, HEAD_SUM);
  if (load64le(p + HEAD_SUM) != sum) return err_corrupt(path, 0, "checksum of the header");
  // Read after the checksum: a flipped bit is damage, not a later format.
  const uint32_t format = load32le(p + HEAD_FORMAT), flags = load32le(p + HEAD_FLAGS);
  if (format == 0) return err_corrupt(path, HEAD_FORMAT, "format 0");
  if (format > VALUE_FORMAT || flags)
    return err_set(REMIXDB_VERSION, "%s: format %u with flags %#x is not known to this library (it knows up to %u)",
                   path, format, flags, VALUE_FORMAT);
  *h_out = (struct value_head){.store_id = load64le(p + HEAD_STORE_ID),
                               .number = load64le(p + HEAD_NUMBER),
                               .nonce = load64le(p + HEAD_NONCE),
                               .print = sum,
                               .key = hash64_seed(p + HEAD_STORE_ID, HEAD_ZERO - HEAD_STORE_ID, sum)};
  return REMIXDB_OK;
}

static uint32_t rec_mark(uint64_t file_key) { return (uint32_t)(file_key >> 32) | 1u; }

void value_rec_put(uint8_t *p, uint64_t file_key, uint64_t at, const uint8_t *key, struct value_rec *r) {
  const size_t end = (size_t)value_entries_at(r->klen);
  memset(p + end - VALUE_ALIGN, 0, VALUE_ALIGN);
  store32le(p + REC_MARK, rec_mark(file_key));
  store32le(p + REC_KLEN, r->klen);
  store32le(p + REC_VLEN, r->vlen);
  store32le(p + REC_FLAGS, r->index ? REC_INDEX : 0);
  store64le(p + REC_STORED, r->stored);
  store64le(p + REC_NONCE, r->nonce);
  if (r->klen) memcpy(p + VALUE_REC_HEAD, key, r->klen);
  r->sum = hash64_seed(p + REC_MARK, VALUE_REC_HEAD - REC_MARK + r->klen, file_key + at);
  store64le(p + REC_SUM, r->sum);
}

bool value_rec_may_begin(const uint8_t *p, uint64_t file_key) {
  return load32le(p + REC_MARK) == rec_mark(file_key) && (load32le(p + REC_FLAGS) & ~REC_INDEX) == 0;
}

bool value_rec_get(const uint8_t *p, size_t len, uint64_t file_key, uint64_t at, struct value_rec *r_out) {
  if (len < VALUE_REC_HEAD || !value_rec_may_begin(p, file_key)) return false;
  const struct value_rec r = {.klen = load32le(p + REC_KLEN),
                              .vlen = load32le(p + REC_VLEN),
                              .stored = load64le(p + REC_STORED),
                              .nonce = load64le(p + REC_NONCE),
                              .sum = load64le(p + REC_SUM),
                              .index = load32le(p + REC_FLAGS) == REC_INDEX};
  if (r.klen > KV_KEY_MAX || r.klen > len - VALUE_REC_HEAD || r.vlen == 0) return false;
  if (r.stored < value_chunks(r.vlen) || r.stored > r.vlen) return false;
  if (hash64_seed(p + REC_MARK, VALUE_REC_HEAD - REC_MARK + r.klen, file_key + at) != r.sum) return false;
  *r_out = r;
  return true;
}

void value_moved_put(uint8_t *p, const struct value_moved *m) {
  store64le(p, m->from);
  store64le(p + 8, m->to);
  store32le(p + 16, m->was);
  store32le(p + 20, m->is);
}

struct value_moved value_moved_get(const uint8_t *p) {
  return (struct value_moved){load64le(p), load64le(p + 8), load32le(p + 16), load32le(p + 20)};
}

static bool offset_good(uint64_t at) { return at >= VALUE_HEAD && at < VALUE_AT_MAX && at % VALUE_ALIGN == 0; }

bool value_moved_good(const uint8_t *p, uint64_t len) {
  uint64_t before = 0;
  for (uint64_t i = 0; i < len / VALUE_MOVED; i++) {
    const struct value_moved m = value_moved_get(p + i * VALUE_MOVED);
    if (m.from <= before || !offset_good(m.from) || !offset_good(m.to)) return false;
    before = m.from;
  }
  return len > 0 && len % VALUE_MOVED == 0;
}

void value_ref_put(uint8_t *p, const struct value_ref *r) {
  store64le(p, r->file);
  store64le(p + 8, r->at);
  store32le(p + 16, r->len);
  store32le(p + 20, r->check);
}

bool value_ref_get(const uint8_t *p, uint32_t len, struct value_ref *r_out) {
  if (len != VALUE_REF) return false;
  *r_out = (struct value_ref){load64le(p), load64le(p + 8), load32le(p + 16), load32le(p + 20)};
  return r_out->file != 0 && r_out->file < VALUE_AT_MAX && r_out->len != 0 && offset_good(r_out->at);
}
