// SPDX-License-Identifier: Apache-2.0
//
// The compressed-keys block of a table: all its keys in order, so that building a REMIX reads keys only. A sequence of
// chunks of at most CKB_CHUNK bytes (the largest key fits one):
//   0  u64 checksum (of all that follows in the chunk, seeded with table number and the chunk's offset within the CKB)
//   8  u32 length of the chunk, these 16 bytes included; bit 31: packed     12 u32 count of keys
//   16 entries: varint(shared prefix with the key before), varint(suffix length << 1 | tombstone), suffix
// packed:
//   16 u32 bytes of the entries     20 the entries as one zstd frame
// The first entry of a chunk shares nothing, so that a reader can begin at any chunk. A chunk is packed when that saves
// an eighth of its entries at least; head and entries are at most CKB_CHUNK bytes before that, too.
#ifndef CKB_H
#define CKB_H

#include "kv.h"

#define CKB_CHUNK (64u << 10)
#define CKB_CHUNK_HEAD 16u
#define CKB_PACKED 0x80000000u  // in the length
#define CKB_PACKED_HEAD 20u
#define CKB_BACK 256u  // entries of a chunk behind the current one that can be gone back to

// ---- writing: into growing memory, handed to the table's writer at the end
struct ckb_build {
  uint8_t *buf;  // whole CKB so far
  size_t len, cap;
  size_t chunk;    // start of the open chunk; == len when none is open
  uint32_t count;  // keys in it
  uint8_t *last;   // last key
  uint32_t last_len, last_cap;
  uint64_t table;
  struct ZSTD_CCtx_s *zstd;  // both made when the first chunk is closed
  uint8_t *packed;           // CKB_CHUNK bytes: a frame, before it takes the place of its entries
};
// Zero it before the first time; also to begin the next table, which keeps the memory.
void ckb_build_init(struct ckb_build *c, uint64_t table);
void ckb_build_fini(struct ckb_build *c);
// Keys ascend. REMIXDB_NOMEM: nothing has changed, and the key can be added again.
MUST_CHECK enum remixdb_status ckb_build_add(struct ckb_build *c, struct kref key, bool tomb);
// Closes the last chunk: buf[0..len) is the CKB. REMIXDB_NOMEM: nothing has changed, and it can be called again.
MUST_CHECK enum remixdb_status ckb_build_finish(struct ckb_build *c);

// ---- reading a chunk held in memory; the chunks of a CKB in order, from any of them on (ckb_read_init before another
// start, or any = false when chunks are left out)
struct ckb_read {
  const uint8_t *p, *end;  // next entry
  const uint8_t *chunk;    // the caller's, which holds it until the next ckb_read_chunk; of a packed one that has been
                           // unpacked: `unpacked`
  uint32_t at;             // entries of the chunk that have been read
  uint32_t left;           // keys left in this chunk
  uint8_t *key;            // current key, decoded; own buffer
  uint32_t klen, cap;
  uint32_t shared;  // bytes it shares with the key before it (in the whole CKB: across chunks it is worked out)
  bool tomb;
  bool any;                  // a key was read before: order is checked, and `shared` worked out, against it
  bool first;                // the next entry is its chunk's first
  uint32_t packed;           // the entries have so many bytes, and p is still at their frame; 0: p is at entries
  uint16_t back[CKB_BACK];   // where the last entries begin, from `chunk` on: entry i at [i % CKB_BACK]
  struct ZSTD_DCtx_s *zstd;  // both made when the first packed chunk is read
  uint8_t *unpacked;         // CKB_CHUNK bytes
};
void ckb_read_init(struct ckb_read *r);
void ckb_read_fini(struct ckb_read *r);
// Length of the chunk at p (16 bytes are enough), checked against what is left of the CKB; 0 when it cannot be one.
uint32_t ckb_chunk_length(const uint8_t *p, uint64_t left);
// Checks the chunk's checksum and head, and begins it; a packed one is unpacked when its first key is asked for, so
// that one that is left out costs nothing more. `off`: its offset within the CKB; file_off, path: for the message.
// REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status ckb_read_chunk(struct ckb_read *r, const uint8_t *chunk, uint32_t len, uint64_t table,
                                              uint64_t off, const char *path, uint64_t file_off);
// The next key of the chunk; left must be > 0. REMIXDB_CORRUPT for a malformed entry or a key not greater than the one
// before, or for a frame that does not give the entries as promised; REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status ckb_read_next(struct ckb_read *r, const char *path, uint64_t file_off);
// The nr-th next key of the chunk, 1 <= nr <= left: as ckb_read_next so many times, but faster.
MUST_CHECK enum remixdb_status ckb_read_skip(struct ckb_read *r, uint32_t nr, const char *path, uint64_t file_off);
// A key of the chunk that has been passed: entry `at` (counted from the chunk's first) into *buf, which grows (mem_free
// is the caller's). The reader stays where it is. REMIXDB_NOTFOUND when it is too far back for what the reader
// remembers; REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status ckb_read_back(const struct ckb_read *r, uint32_t at, uint8_t **buf, uint32_t *cap,
                                             uint32_t *klen_out);
#endif
