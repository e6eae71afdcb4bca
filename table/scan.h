// SPDX-License-Identifier: Apache-2.0
//
// Reading tables past the cache: all records in order, single blocks, keys. Compaction, verification and repair use it.
//
// A reader that goes forward has its next part in flight while its caller works on the current one (blkio.h). The
// engine reads this part into memory that the reader owns. Advice to the system would bring the bytes into the page
// cache only. It is used if a flight gets no lane. The flight holds the table's descriptor. If the pool gives none to
// hold, the part is read when it is asked for. A flight that fails reports its error then, too.
#ifndef SST_SCAN_H
#define SST_SCAN_H

#include "sst.h"

// ---- memory. A reader has two buffers, each for one read of at most 512 KiB and for the block that the read before
// has begun (72 KiB; only the used part becomes memory). A thread that merges many tables bounds the reads, so that all
// buffers together take about *ctx->scan_room bytes, but at least 2 * SST_READ_LEAST for each table.
#define SST_SCAN_ROOM ((size_t)16 << 20)  // bytes, if the context says 0
#define SST_READ_LEAST (64u << 10)
// Returns the bytes of a read for a thread that reads nr tables at once, for the two calls named _limit.
uint32_t sst_scan_share(const struct sst_ctx *ctx, uint32_t nr);

// ---- all records in order, in large reads. One thread.
struct sst_scan;
// Makes a scan that stands before the first record. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status sst_scan_create(struct sst *t, struct blkio_queue *q, struct sst_scan **out);
void sst_scan_limit(struct sst_scan *scan, uint32_t read);  // before the first record
void sst_scan_destroy(struct sst_scan *scan);               // NULL is allowed
// Reads the next record. Returns REMIXDB_OK, REMIXDB_NOTFOUND at the end, or an error. Its seq is set, too.
// Pointers are valid until the next call.
MUST_CHECK enum remixdb_status sst_scan_next(struct sst_scan *scan, struct kv_rec *rec_out, sst_pos *pos_out);
// Skips n records. The call does not read blocks that it skips as a whole.
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
// Reads and verifies nr <= SST_BLOCKS_MAX blocks. If blocks fail, returns the status of one of them. Takes descriptors
// from the pool and gives them back; the caller must hold none.
MUST_CHECK enum remixdb_status sst_blocks_read(struct blkio_queue *q, struct sst_block_read *reads, uint32_t nr);

// ---- keys, from the table's compressed-keys block if it has one, otherwise from its data. A caller reads either all
// keys in order (sst_keys_next) or single ones (sst_keys_at), not both. One thread.
struct sst_keys {
  struct kref key;  // the current key; valid until the next call
  uint32_t shared;  // bytes that the key shares with the key before it in the table, 0 for the table's first key; set
                    // by sst_keys_next only
  uint32_t kind;    // the kind of the key's record; set by sst_keys_next only
  sst_pos pos;      // the key's position in the table
  struct sst_keys_state *state;
};
// Makes a reader that stands before the first key. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status sst_keys_open(struct sst *t, struct blkio_queue *q, struct sst_keys *k);
void sst_keys_limit(struct sst_keys *k, uint32_t read);  // before the first key
void sst_keys_close(struct sst_keys *k);
MUST_CHECK enum remixdb_status sst_keys_next(struct sst_keys *k);  // OK, REMIXDB_NOTFOUND at the end, or an error
// Reads the key at pos, which is a record's position. The fast direction is forward. The reader then reads data ahead
// in large reads. It checks each chunk of compressed keys on the way, but decodes only the keys near pos. A short step
// back is cheap, too.
MUST_CHECK enum remixdb_status sst_keys_at(struct sst_keys *k, sst_pos pos);
uint64_t sst_keys_blocks_read(const struct sst_keys *k);  // data pages read; 0 with a compressed-keys block
uint64_t sst_keys_ckb_read(const struct sst_keys *k);     // bytes of compressed keys read and checked
// Tells whether the nr bytes at offset `off` of the file begin with the whole first chunk of the compressed keys of
// table `number`. The chunk's checksum depends on its place. So the call can find the end of the blocks if the metadata
// is lost. Reads at most 64 KiB.
bool sst_keys_begin(uint64_t number, const uint8_t *bytes, size_t nr, const char *path, uint64_t off);
#endif
