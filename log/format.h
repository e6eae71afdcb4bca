// SPDX-License-Identifier: Apache-2.0
//
// The log's formats (docs/FORMAT.md, "The log"): headers of log segments, watermarks, frames. For the files of the log,
// and for code that tells the log's files from others.
#ifndef WAL_FORMAT_H
#define WAL_FORMAT_H

#include "lib.h"

#define WAL_MAGIC 0x4C4157584D455223ull  // "#REMXWAL"
#define WAL_VERSION 2u    // the version that is written; version 1 is read if its layout is the same (wal_head_get)
#define WAL_HEAD 512u     // bytes of a header: one sector, so the disk writes it whole or not at all
#define WAL_HEAD_GEN 24u  // offset of the generation
#define WAL_HEAD_LAST_SEQ 56u  // offset of the last sequence number before the segment
#define WAL_LEVEL 448u         // offset of the watermark; written later in place, outside the header's checksum
#define WAL_LEVEL_LEN 24u
#define WAL_HEAD_SUM 504u  // offset of the checksum, in this and every later version
#define WAL_FRAME_HEAD 40u
#define WAL_FRAME_MAGIC 8u        // offset of the magic in a frame's head
#define WAL_FRAME_MAX (1u << 30)  // payload bytes of one frame
#define WAL_NUMBER_MAX \
  ((uint64_t)1 << 62)  // bound of generations and sequence numbers; they count up and never reach it

struct wal_head {
  uint64_t store_id, gen;
  uint64_t prev_gen, prev_len, prev_durable;  // of the segment before; prev_len 0: there is none
  uint64_t last_seq;                          // the last sequence number of all segments before
};

// A watermark: segment `gen` is durable up to `end`, and every older segment is durable as a whole. The watermark is in
// the header of segment `gen`, and also in the header of the segment before, which shows if segment `gen` is lost. gen
// 0: there is no watermark.
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
};

void wal_head_put(uint8_t *p, const struct wal_head *h);
// Decodes the WAL_HEAD bytes at p. Fails with REMIXDB_NOTFOUND if they are not a header of this store. Fails with
// REMIXDB_VERSION if the header is too new or too old for this library.
MUST_CHECK enum remixdb_status wal_head_get(const uint8_t *p, const char *path, uint64_t store_id,
                                            struct wal_head *out);
// Returns the store id in a header. Checks nothing.
uint64_t wal_head_store_id(const uint8_t *p);
struct wal_key wal_key(uint64_t store_id, uint64_t gen);
// p: the watermark in the header of segment k.
void wal_level_put(uint8_t *p, const struct wal_key *k, const struct wal_level *l);
// Returns gen 0 if the watermark is not sound.
struct wal_level wal_level_get(const uint8_t *p, const struct wal_key *k, uint64_t gen);
uint64_t wal_frame_sum(const struct wal_key *k, uint64_t off, const uint8_t *p, size_t len);
// p: head and payload of a frame for offset off. Writes the head.
void wal_frame_put(uint8_t *p, const struct wal_key *k, uint64_t off, const struct wal_frame *f);
// Tells whether the WAL_FRAME_HEAD bytes at p are the head of a frame of this segment at this offset. Does not check
// the payload.
bool wal_frame_get(const uint8_t *p, const struct wal_key *k, uint64_t off, struct wal_frame *out);
#endif
