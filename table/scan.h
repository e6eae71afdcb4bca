// SPDX-License-Identifier: Apache-2.0
//
// Reading tables past the cache: all records in order, single blocks, keys. Compaction, verification and repair use it.
//
// A reader that goes forward has its next part in flight while its caller works on the current one (blkio.h). The
// engine reads it into memory of the reader's own. Advice to the system would need a page cache and would bring the
// bytes no nearer than that; it serves where a flight has no lane. The flight holds the table's descriptor. If the pool
// gives none to hold, the part is read when it is asked for. A flight that fails reports its error then, too.
#ifndef SST_SCAN_H
#define SST_SCAN_H

#include "sst.h"

// ---- all records in order, in large reads. One thread.
struct sst_scan;
// Stands before the first record. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status sst_scan_create(struct sst *t, struct blkio_queue *q, struct sst_scan **out);
void sst_scan_destroy(struct sst_scan *scan);  // NULL is allowed
// The next record: REMIXDB_OK, REMIXDB_NOTFOUND at the end, or an error. Pointers are valid until the next call.
MUST_CHECK enum remixdb_status sst_scan_next(struct sst_scan *scan, struct kv_rec *rec_out, sst_pos *pos_out);
// Passes over n records. Blocks that are passed over as a whole are not read.
void sst_scan_skip(struct sst_scan *scan, uint32_t n);

// ---- single blocks, several in one batch, for a caller that needs few keys of large tables. One thread.
struct sst_block_read {
  struct sst *t;
  uint32_t block;
  uint8_t *buf;         // sst_block_room(t, block) bytes, aligned to BLKIO_ALIGN
  const uint8_t *data;  // out: the verified block (table/block.h), within buf
};
size_t sst_block_room(const struct sst *t, uint32_t block);
#define SST_BLOCKS_MAX 64u
// Reads and verifies all of them; nr <= SST_BLOCKS_MAX. Returns the status of the first that failed. Takes descriptors
// of the pool and gives them back; the caller has none.
MUST_CHECK enum remixdb_status sst_blocks_read(struct blkio_queue *q, struct sst_block_read *reads, uint32_t nr);

// ---- keys, from the table's compressed-keys block if it has one, otherwise from its data. A caller reads either all
// keys in order (sst_keys_next) or single ones (sst_keys_at), not both. One thread.
struct sst_keys {
  struct kref key;  // the current key; valid until the next call
  uint32_t shared;  // bytes it shares with the table's key before it, 0 for the first; sst_keys_next only
  bool tomb;        // sst_keys_next only
  sst_pos pos;      // its position in the table
  struct sst_keys_state *state;
};
// Stands before the first key. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status sst_keys_open(struct sst *t, struct blkio_queue *q, struct sst_keys *k);
void sst_keys_close(struct sst_keys *k);
MUST_CHECK enum remixdb_status sst_keys_next(struct sst_keys *k);  // OK, REMIXDB_NOTFOUND at the end, or an error
// The key at pos, which is a record's position. Forward is the fast direction: data is read ahead in large reads, and a
// chunk of compressed keys that is passed is checked, but decoded only near the key. A short way back is cheap, too.
MUST_CHECK enum remixdb_status sst_keys_at(struct sst_keys *k, sst_pos pos);
uint64_t sst_keys_blocks_read(const struct sst_keys *k);  // data pages read; 0 with a compressed-keys block
uint64_t sst_keys_ckb_read(const struct sst_keys *k);     // bytes of compressed keys read and checked
// Whether the nr bytes at offset `off` of the file begin with the first chunk, whole, of the compressed keys of table
// `number`. The chunk's checksum depends on its place, so this shows where the blocks end when the metadata is lost.
// Reads 64 KiB at most.
bool sst_keys_begin(uint64_t number, const uint8_t *bytes, size_t nr, const char *path, uint64_t off);
#endif
