// SPDX-License-Identifier: Apache-2.0
//
// The part of the block cache that keeps single records. Where reads come from the disk, a get that misses needs one
// record of a block. A frame would spend a whole block's memory on it. So the cache keeps the record alone.
//
// Records lie one after the other in *chunks*: frames of RECORDS_CHUNK_PAGES pages that the cache gives. An index of
// buckets finds a record by table and position. New records go into chunks on probation. When all memory is in use, the
// oldest such chunk is emptied: records that were found meanwhile move to the main chunks, the index remembers the
// others for a while. One of these that comes again goes into a main chunk at once. A main chunk that is emptied keeps
// the records that were found, by moving them to the newest main chunk. So records that are read once leave soon.
// (After S3-FIFO: Yang, Zhang, Qiu, Yue, Vinayak, "FIFO queues are all you need for cache eviction", SOSP 2023.)
//
// Invariants
//   R1  An index entry names a record that is whole. The entry is stored (release) after the record's bytes.
//   R2  A chunk is written again only when no entry names a record in it, and all epochs have passed since the last one
//       did. So a reader's record stays unchanged until the reader leaves its epoch.
//   R3  Tables never change and their numbers are never used twice, so a kept record stays right. The records of a
//       removed table are not found any more, and go when their chunk is emptied.
//   R4  No thread waits: a thread that finds the lock taken, or no chunk free, keeps nothing.
//   R5  All chunks are frames of the cache, at most RECORDS_PART_NUM / RECORDS_PART_DEN of its pages.
#ifndef TABLE_RECORDS_H
#define TABLE_RECORDS_H

#include "base/epoch.h"
#include "table/block.h"

#define RECORDS_CHUNK_PAGES 16u
#define RECORDS_PART_NUM 3u
#define RECORDS_PART_DEN 4u
#define RECORDS_LEN_MAX (BLOCK_PAGE / 2)  // bytes of a record; a longer one is most of a block

struct records;
// The cache, as records see it.
struct records_room {
  uint8_t *pages;  // where the cache's frames begin: frame f at page f - 1
  uint32_t nr_pages;
  struct epoch *epoch;          // the readers' epoch
  uint32_t (*give)(void *arg);  // gives a chunk: its frame, which holds nothing; 0: none is free at once
  void *arg;
};
// *out is NULL if the cache is too small to keep records. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status records_create(const struct records_room *room, struct records **out);
void records_destroy(struct records *r);  // NULL is allowed; the cache frees the chunks

// The cache has another size: drops all records, and keeps new ones in chunks that are given from now on. *frames_out:
// the frames of all chunks, which no reader uses; the caller frees the array. Waits for readers: outside of any epoch
// and lock. Fails with REMIXDB_NOMEM; nothing has changed then.
MUST_CHECK enum remixdb_status records_resize(struct records *r, uint32_t nr_pages, uint32_t **frames_out,
                                              uint32_t *nr_out);

// Returns a block for block_record, or NULL. The block's record 0 is the searched one; the block has no other valid
// parts. pos: the record's position in the table. Inside an epoch; valid until the epoch is left.
const uint8_t *records_find(struct records *r, uint64_t table, uint32_t pos);
// Keeps a copy of the record's len bytes, with those of its sequence number, if there is room. form: its block's.
// Inside an epoch.
void records_keep(struct records *r, uint64_t table, uint32_t pos, uint32_t form, const uint8_t *rec, uint32_t len);
// Gives a chunk up, for the cache: its frame, which no reader uses; or 0. Not under a lock of the cache.
uint32_t records_yield(struct records *r);

// Records that were found or kept so far. Any thread.
uint64_t records_used(const struct records *r);

struct records_stats {
  uint64_t bytes;  // bytes of the chunks
  uint64_t kept;   // records put in
  uint64_t hits;
};
void records_stats(struct records *r, struct records_stats *out);
#endif
