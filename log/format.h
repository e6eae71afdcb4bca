// SPDX-License-Identifier: Apache-2.0
//
// The log's formats (docs/FORMAT.md, "The log"): headers of log segments, watermarks, frames. The sources in log/
// include this header. Other sources include it to recognize files of the log.
#ifndef WAL_FORMAT_H
#define WAL_FORMAT_H

#include "kv.h"

#define WAL_MAGIC 0x4C4157584D455223ull  // "#REMXWAL"
#define WAL_VERSION \
  4u  // the version that is written; 2 and 3 are read, and 1 if its layout is that of 2 (wal_head_get)
#define WAL_VERSION_CHAIN 3u      // from this version on a header names the segment before by its fingerprint
#define WAL_HEAD 512u             // bytes of a header: one sector, so the disk writes it whole or not at all
#define WAL_HEAD_GEN 24u          // offset of the generation
#define WAL_HEAD_LAST_SEQ 56u     // offset of the last sequence number before the segment
#define WAL_HEAD_PREV_PRINT 72u   // offset of the fingerprint of the segment before
#define WAL_HEAD_PREV_FRAMES 80u  // offset of the sum of that segment's frame checksums
#define WAL_ORIGINS 44u           // most origins that a header has room for
#define WAL_LEVEL 448u            // offset of the watermark; written later in place, outside the header's checksum
#define WAL_LEVEL_LEN 24u
#define WAL_HEAD_SUM 504u  // offset of the checksum, in this and every later version
#define WAL_FRAME_HEAD 40u
#define WAL_FRAME_MAGIC 8u        // offset of the magic in a frame's head
#define WAL_FRAME_MAX (5u << 28)  // payload bytes of one frame: 1.25 GiB
#define WAL_NUMBER_MAX \
  ((uint64_t)1 << 62)  // bound of generations and sequence numbers; they count up and never reach it

struct wal_head {
  uint64_t store_id, gen;
  uint64_t prev_gen, prev_len, prev_durable;  // from the segment before; prev_len 0: there is none
  uint64_t last_seq;                          // the last sequence number of all segments before
  // From version 3 on (L7); else 0.
  uint64_t nonce;        // random, so that no two segments have the same header
  uint64_t prev_print;   // the fingerprint of the segment before
  uint64_t prev_frames;  // the sum of the checksums of that segment's frames, modulo 2^64
  // The other ids that files of the store state. The header has the first WAL_ORIGINS of them.
  const uint64_t *origins;  // in only: the caller's
  uint32_t nr_origins;
  // Out only:
  uint32_t version;
  uint64_t print;  // the segment's fingerprint: the header's checksum
};

// A watermark: segment `gen` is durable up to `end`, and every older segment is durable as a whole. If gen is 0, there
// is no watermark. The header of segment `gen` has the watermark. The header of the segment before has it, too, so that
// recovery notices when segment `gen` is lost.
struct wal_level {
  uint64_t gen, end;
};

// Ties frames to one segment: the seed of their checksums, and the magic in their heads.
struct wal_key {
  uint64_t seed;
  uint32_t magic;
};

struct wal_frame {
  uint64_t sum, first_seq, durable;
  uint32_t len, count;
  uint32_t kinds;  // its records' kinds, for kv_rec_get: KV_IN_LOG, or KV_BARE in frames of writers up to version 3
};

// Returns the fingerprint.
uint64_t wal_head_put(uint8_t *p, const struct wal_head *h);
// Returns the i-th origin of a header that wal_head_get accepts. i is below nr_origins and WAL_ORIGINS.
uint64_t wal_head_origin(const uint8_t *p, uint32_t i);
// Decodes the WAL_HEAD bytes at p. Fails with REMIXDB_NOTFOUND if they are not a header of this store. Fails with
// REMIXDB_VERSION if the header is too new or too old for this library.
MUST_CHECK enum remixdb_status wal_head_get(const uint8_t *p, const char *path, uint64_t store_id,
                                            struct wal_head *out);
// Returns the store id in a header. Checks nothing.
uint64_t wal_head_store_id(const uint8_t *p);
struct wal_key wal_key(uint64_t store_id, uint64_t gen);
// Encodes a watermark as WAL_LEVEL_LEN bytes at p. k: the key of the segment whose header gets these bytes.
void wal_level_put(uint8_t *p, const struct wal_key *k, const struct wal_level *l);
// Decodes the watermark at p. k and gen are those of the segment whose header has it. Returns a watermark with gen 0 if
// the checksum is wrong or a number is out of bounds.
struct wal_level wal_level_get(const uint8_t *p, const struct wal_key *k, uint64_t gen);
// Returns the checksum of a frame at offset off. p: the frame's head and payload; len: bytes of the payload.
uint64_t wal_frame_sum(const struct wal_key *k, uint64_t off, const uint8_t *p, size_t len);
// Writes the head of a frame at p. The payload follows the head and is complete. off: the frame's offset in the
// segment. Returns the frame's checksum.
uint64_t wal_frame_put(uint8_t *p, const struct wal_key *k, uint64_t off, const struct wal_frame *f);
// Tells whether the WAL_FRAME_HEAD bytes at p are the head of a frame of this segment at this offset. Does not check
// the payload.
bool wal_frame_get(const uint8_t *p, const struct wal_key *k, uint64_t off, struct wal_frame *out);
#endif
