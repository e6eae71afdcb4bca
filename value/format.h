// SPDX-License-Identifier: Apache-2.0
//
// The bytes of a value file, "%06llu.val": a header, then records. docs/FORMAT.md has the layouts. All numbers are
// little-endian.
//
// A record has a head, the key, an entry for each chunk of the value, and the chunks. A chunk holds 64 KiB of the value
// (the last one holds the rest), as they are or as one zstd frame. So a reader of a piece reads the head, a few
// entries, and its chunks.
//
// Invariants
//   F1  The head's checksum covers the key, and is seeded with the file's key and the record's offset. The file's key
//       is drawn from the store's id, the file's number and a random number. So a record never passes in another file
//       or at another place.
//   F2  A chunk's checksum is seeded with the record's own random number and the place of the chunk's beginning, which
//       the entry before it states. So a wrong entry never yields bytes.
//   F3  A reference names a record by file, offset, and 32 bits of the head's checksum. So a reference never yields
//       another record than the one that it was made for, also if a copy of the store has gone on in the same file.
#ifndef VALUE_FORMAT_H
#define VALUE_FORMAT_H

#include "kv.h"

#define VALUE_FORMAT 1u
#define VALUE_HEAD 64u                    // bytes of the header; records begin behind it
#define VALUE_ALIGN 8u                    // records begin at multiples of it
#define VALUE_REC_HEAD 40u                // bytes of a record's head; the key follows
#define VALUE_ENTRY 16u                   // bytes of a chunk's entry: its end, u64; its checksum, u64
#define VALUE_CHUNK (1u << 16)            // bytes of the value in a chunk
#define VALUE_REF 24u                     // bytes of a reference
#define VALUE_MOVED 24u                   // bytes of an index's entry
#define VALUE_INDEX_KEY 8u                // bytes of an index's key
#define VALUE_AT_MAX ((uint64_t)1 << 46)  // offsets stay below

// The header of a file.
struct value_head {
  uint64_t store_id, number;
  uint64_t nonce;  // random
  uint64_t print;  // out only: the file's fingerprint, which is the header's checksum
  uint64_t key;    // out only: the key of the seeds (F1)
};
// Tells whether these 8 bytes begin a value file.
bool value_is_magic(const uint8_t *bytes);
// Writes VALUE_HEAD bytes, and sets h->print and h->key.
void value_head_put(uint8_t *p, struct value_head *h);
// Decodes VALUE_HEAD bytes. Fails with REMIXDB_CORRUPT, or with REMIXDB_VERSION if the format is newer.
MUST_CHECK enum remixdb_status value_head_get(const uint8_t *p, const char *path, struct value_head *h_out);

// The head of a record.
struct value_rec {
  uint32_t klen, vlen;  // vlen: at least 1
  uint64_t stored;      // bytes of all chunks
  uint64_t nonce;       // random
  uint64_t sum;         // the head's checksum
  bool index;           // the value is an index (value/index.h), and the key is the number of the collected file
};
static inline uint64_t value_chunks(uint32_t vlen) { return ((uint64_t)vlen + VALUE_CHUNK - 1) / VALUE_CHUNK; }
static inline uint32_t value_chunk_len(uint32_t vlen, uint64_t chunk) {
  const uint64_t left = vlen - chunk * VALUE_CHUNK;
  return left < VALUE_CHUNK ? (uint32_t)left : VALUE_CHUNK;
}
// Offsets of its entries, of its chunks and of its end, from the beginning of a record.
static inline uint64_t value_entries_at(uint32_t klen) {
  return align_up(VALUE_REC_HEAD + (uint64_t)klen, VALUE_ALIGN);
}
static inline uint64_t value_data_at(uint32_t klen, uint32_t vlen) {
  return value_entries_at(klen) + VALUE_ENTRY * value_chunks(vlen);
}
static inline uint64_t value_rec_len(uint32_t klen, uint32_t vlen, uint64_t stored) {
  return align_up(value_data_at(klen, vlen) + stored, VALUE_ALIGN);
}
// Writes the head, the key and the zeros behind it: value_entries_at bytes. Sets r->sum. file_key: from the file's
// header; at: where the record begins.
void value_rec_put(uint8_t *p, uint64_t file_key, uint64_t at, const uint8_t *key, struct value_rec *r);
// Decodes a head and the key from the `len` bytes at p. Returns false if they are broken.
MUST_CHECK bool value_rec_get(const uint8_t *p, size_t len, uint64_t file_key, uint64_t at, struct value_rec *r_out);
// Tells whether 8-byte-aligned bytes can begin a record of the file. VALUE_REC_HEAD bytes at p.
bool value_rec_may_begin(const uint8_t *p, uint64_t file_key);

// The seed of a chunk's checksum. begin: the chunk's offset among the record's chunks.
static inline uint64_t value_chunk_seed(const struct value_rec *r, uint64_t begin) {
  return r->nonce + (begin << 1 | 1);
}

// An entry of the index of a file that was collected: where the record at `from` is now.
struct value_moved {
  uint64_t from, to;  // offsets in the collected file and in the file with the index
  uint32_t was, is;   // the lower 32 bits of both heads' checksums
};
void value_moved_put(uint8_t *p, const struct value_moved *m);  // VALUE_MOVED bytes
struct value_moved value_moved_get(const uint8_t *p);
// Tells whether these bytes are an index: at least one entry, offsets that can be, `from` ascending.
MUST_CHECK bool value_moved_good(const uint8_t *p, uint64_t len);

// A reference, which a record of kind KV_APART has for its value.
struct value_ref {
  uint64_t file, at;
  uint32_t len;    // the value's bytes
  uint32_t check;  // the lower 32 bits of the head's checksum
};
void value_ref_put(uint8_t *p, const struct value_ref *r);  // VALUE_REF bytes
// Decodes `len` bytes. Returns false if they can be no reference.
MUST_CHECK bool value_ref_get(const uint8_t *p, uint32_t len, struct value_ref *r_out);
// The length of the value alone, of bytes that value_ref_get has accepted.
static inline uint32_t value_ref_len(const uint8_t *p) { return load32le(p + 16); }
#endif
