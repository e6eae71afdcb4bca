// SPDX-License-Identifier: Apache-2.0
//
// The compressed-keys block (CKB) of a table: all its keys in order, so that building a REMIX reads no values. It is a
// sequence of chunks of at most CKB_CHUNK bytes:
//   0   u64  checksum of the rest of the chunk, seeded with the table's number and the chunk's offset in the CKB
//   8   u32  bytes of the chunk, its head included; bit 31: packed; bit 30: special entries have a kind byte
//   12  u32  count of keys
//   16  entries: varint(prefix shared with the key before), varint(suffix length << 1 | special), if special the u8
//       kind of the record (kv.h), suffix. Without bit 30, in tables up to format 2, special means a tombstone, and no
//       kind follows
// A packed chunk has this after the count:
//   16  u32  bytes of the entries
//   20  the entries as one zstd frame
// The first entry of a chunk shares nothing, so a reader can begin at any chunk. The writer packs a chunk if that saves
// at least an eighth of the entries' bytes, and if `plain` is not set. Where it has saved less, the writer leaves the
// next chunks as they are: 1, then 3, then CKB_LEFT_MAX, until a chunk saves enough again. Head and unpacked entries
// together have at most CKB_CHUNK bytes, so the largest key fits.
#ifndef CKB_H
#define CKB_H

#include "kv.h"

#define CKB_CHUNK (64u << 10)
#define CKB_CHUNK_HEAD 16u
#define CKB_PACKED_HEAD 20u
#define CKB_PACKED 0x80000000u  // in the length
#define CKB_KINDS 0x40000000u   // in the length
enum {                          // offsets in a chunk
  CKB_OFF_SUM = 0,
  CKB_OFF_LENGTH = 8,
  CKB_OFF_COUNT = 12,
  CKB_OFF_UNPACKED = 16,  // bytes of the entries; packed only
};
#define CKB_LEFT_MAX 7u  // chunks in a row that are not tried
#define CKB_BACK 256u    // entries before the current one that ckb_read_back can reach

// ---- writing, into memory that grows. One thread.
struct ckb_build {
  uint8_t *buf;  // the CKB so far
  size_t len, cap;
  size_t chunk;      // beginning of the open chunk; == len: none is open
  uint32_t count;    // keys in the open chunk
  uint64_t entries;  // bytes of all entries, before packing
  bool plain;        // set by the caller: chunks that are closed while it is true are not packed
  uint32_t left;     // so many chunks are left as they are before packing is tried again
  uint32_t left_of;  // how many chunks `left` began with; 0: the last try saved enough
  uint8_t *last;     // the last key
  uint32_t last_len, last_cap;
  uint64_t table;
  uint8_t *packed;  // a frame, before it replaces its entries; NULL until the first chunk is closed
  size_t packed_cap;
};
// Begins a table. The caller zeroes c before the first table; later tables reuse the memory.
void ckb_build_init(struct ckb_build *c, uint64_t table);
void ckb_build_fini(struct ckb_build *c);
// Adds a key. Keys ascend. Fails with REMIXDB_NOMEM; then nothing has changed, and the caller can try again.
// kind: bits of KV_IN_TABLE.
MUST_CHECK enum remixdb_status ckb_build_add(struct ckb_build *c, struct kref key, uint32_t kind);
// Closes the last chunk: buf[0..len) is the CKB. Fails with REMIXDB_NOMEM; then nothing has changed, and the caller can
// try again.
MUST_CHECK enum remixdb_status ckb_build_finish(struct ckb_build *c);

// ---- reading chunks in memory, in the order of the CKB. A reader may begin at any chunk. A caller that skips chunks
// first sets `any` to false. One thread.
struct ckb_read {
  const uint8_t *p, *end;  // the next entry; the end of the entries
  const uint8_t *chunk;    // the caller's chunk, which stays until the next ckb_read_chunk; or `unpacked`
  uint32_t at;             // entries of the chunk that have been read
  uint32_t left;           // entries of the chunk that have not been read
  uint8_t *key;            // the current key, in the reader's own buffer
  uint32_t klen, cap;
  uint32_t shared;          // bytes the key shares with the CKB's key before it
  uint32_t kind;            // the kind of the key's record
  bool any;                 // a key was read before, and the next key must be greater
  bool first;               // the next entry is the first of its chunk
  bool kinds;               // special entries of the chunk have a kind byte
  uint32_t packed;          // 0; or p is at a frame, and the unpacked entries have so many bytes
  uint16_t back[CKB_BACK];  // where the last entries begin, from `chunk` on: entry i at [i % CKB_BACK]
  uint8_t *unpacked;        // the entries of a packed chunk; NULL until the first is read
  size_t unpacked_cap;
};
void ckb_read_init(struct ckb_read *r);
void ckb_read_fini(struct ckb_read *r);
// Returns the size of the chunk at p, where CKB_CHUNK_HEAD bytes can be read. left: bytes of the CKB from p on. Returns
// 0 if these bytes are not the head of a chunk.
uint32_t ckb_chunk_length(const uint8_t *p, uint64_t left);
// Checks a chunk's checksum and head, and begins to read the chunk. A packed chunk is unpacked when its first key is
// read, so that a caller can skip the chunk without unpacking it. off: the chunk's offset in the CKB. path and file_off
// are for the message. Fails with REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status ckb_read_chunk(struct ckb_read *r, const uint8_t *chunk, uint32_t len, uint64_t table,
                                              uint64_t off, const char *path, uint64_t file_off);
// Reads the next key of the chunk; left > 0. Fails with REMIXDB_CORRUPT if an entry or the frame is malformed, or if
// the key is not greater than the key before it. Fails with REMIXDB_NOMEM if memory is missing.
MUST_CHECK enum remixdb_status ckb_read_next(struct ckb_read *r, const char *path, uint64_t file_off);
// Reads the nr-th next key of the chunk, 1 <= nr <= left: like nr calls of ckb_read_next, but faster.
MUST_CHECK enum remixdb_status ckb_read_skip(struct ckb_read *r, uint32_t nr, const char *path, uint64_t file_off);
// Decodes a key that the reader has passed: entry `at` of the chunk, counted from 0, into *buf, which grows. The caller
// frees *buf with mem_free. The reader does not move. Fails with REMIXDB_NOTFOUND if the entry is too far back
// (CKB_BACK), or with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status ckb_read_back(const struct ckb_read *r, uint32_t at, uint8_t **buf, uint32_t *cap,
                                             uint32_t *klen_out);
#endif
