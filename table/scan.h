// SPDX-License-Identifier: Apache-2.0
//
// Reading tables past the cache: all records in order, single blocks, keys. For those who build, merge, check and
// repair.
#ifndef SST_SCAN_H
#define SST_SCAN_H

#include "sst.h"

// ---- reading a table from a position on, in large reads that bypass the cache: for compaction. One thread.
struct sst_scan;
MUST_CHECK enum remixdb_status sst_scan_create(struct sst *t, struct blkio_queue *q,
                                               struct sst_scan **out);  // stands before the first record
void sst_scan_destroy(struct sst_scan *s);
// The next record: REMIXDB_OK, REMIXDB_NOTFOUND at the end, or an error. Pointers hold until the next call.
MUST_CHECK enum remixdb_status sst_scan_next(struct sst_scan *s, struct kv_rec *rec_out, sst_pos *pos_out);
// Leaves out n records without looking at them (blocks that are wholly left out are not read).
void sst_scan_skip(struct sst_scan *s, uint32_t n);

// ---- reading single blocks past the cache, several in one batch: for whoever needs few keys of large tables. One
// thread.
struct sst_block_read {
  struct sst *t;
  uint32_t block;
  uint8_t *buf;         // sst_block_room(t, block) bytes, aligned to BLKIO_ALIGN
  const uint8_t *data;  // out: the verified block (table/block.h), within buf
};
size_t sst_block_room(const struct sst *t, uint32_t block);
#define SST_BLOCKS_MAX 64u
// Reads and verifies all of them; nr <= SST_BLOCKS_MAX. The status of the first that failed. Holds no descriptor of the
// pool before and after.
MUST_CHECK enum remixdb_status sst_blocks_read(struct blkio_queue *q, struct sst_block_read *reads, uint32_t nr);

// ---- reading a table's keys: from the compressed-keys block when it has one, else from its data. One thread. Either
// all of them in order (sst_keys_next) or single ones (sst_keys_at); the two are not mixed.
struct sst_keys {
  struct kref key;  // current; holds until the next call
  uint32_t shared;  // bytes it shares with the table's key before it (0 for the first); sst_keys_next only
  bool tomb;        // sst_keys_next only
  sst_pos pos;      // its position in the table
  struct sst_keys_state *state;
};
MUST_CHECK enum remixdb_status sst_keys_open(struct sst *t, struct blkio_queue *q,
                                             struct sst_keys *k);  // stands before the first key
void sst_keys_close(struct sst_keys *k);
MUST_CHECK enum remixdb_status sst_keys_next(struct sst_keys *k);  // OK, REMIXDB_NOTFOUND at the end, or an error
// The key at pos, which must be a position of a record. Any order will do, but going forward is what is fast: data is
// read ahead in large reads, compressed keys that are passed are checked chunk by chunk but decoded only near the key.
// A little way back costs little.
MUST_CHECK enum remixdb_status sst_keys_at(struct sst_keys *k, sst_pos pos);
uint64_t sst_keys_blocks_read(const struct sst_keys *k);  // data pages read: 0 with a compressed-keys block
uint64_t sst_keys_ckb_read(const struct sst_keys *k);     // bytes of compressed keys read and checked
// Whether bytes at offset `off` of the file begin with the first chunk of the compressed keys of table `number`, whole:
// its checksum is of its place, so that it shows where the blocks end when the metadata cannot. At most 64 KiB are
// looked at.
bool sst_keys_begin(uint64_t number, const uint8_t *bytes, size_t nr, const char *path, uint64_t off);
#endif
