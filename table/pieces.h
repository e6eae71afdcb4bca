// SPDX-License-Identifier: Apache-2.0
//
// Pieces of blocks. Where a block gets no frame in the cache, a reader that needs a few of its records reads, copies
// and checks about half a KiB instead of the block. A piece is the records that begin in one eighth of a page.
//
// The file does not describe pieces. The table's builder makes the places and checksums of pieces in memory from a
// verified block. If the builder did not, the first reader that needs a few records of the block does: it has to read
// the whole block.
//
// Invariants
//   P1  One thread writes the pieces of a block, once, and publishes them (`known`, release). They do not change while
//       the table is open.
//   P2  No reader uses bytes that do not match the checksum of their piece. The reader then reads the whole block, and
//       the block's checksum decides.
//   P3  A piece's checksum depends on the table's and the block's number, as the block's does. A piece read from
//       another block does not pass.
#ifndef SST_PIECES_H
#define SST_PIECES_H

#include "table/state.h"

// Only tables whose records have at most this many bytes on average have pieces. For larger records the pieces would
// take twice as much memory per record as a REMIX.
#define SST_PIECES_RECORD 512u

// Allocates pieces for nr pages; no piece is known yet. The caller frees them with mem_free. Returns NULL if memory is
// missing.
struct sst_pieces *sst_pieces_make(uint32_t nr);
// Computes the pieces of a verified block in memory. p: one element per page of the block.
void sst_pieces_cut(struct sst_pieces *p, const uint8_t *block, uint64_t table, uint32_t number);
// Tells whether readers may read pieces of the table: the table is not compressed, reads need no alignment, and the
// records are small.
bool sst_pieces_suit(const struct sst *t);
// Tells whether the budget has room for the pieces of one more table like this one.
bool sst_pieces_room(const struct sst *t);
// Makes the pieces of a block known. The caller has read the whole block and verified it. Does nothing if memory or
// room in the budget is missing. Any thread.
void sst_pieces_learn(struct sst *t, uint32_t block, const uint8_t *data);
// For a caller that wants nr records from idx on, more than the block has. Returns how many bytes from the block's
// beginning to read, so that the read covers these records, at most SST_PIECES_SPAN pages. Returns 0 if the caller
// should read only this block, because the pieces of the next block are not known, or because the cache has the next
// block.
#define SST_PIECES_SPAN 8u
uint32_t sst_pieces_span(const struct sst *t, uint32_t block, uint32_t idx, uint32_t nr);
// Checks the first nr_bytes of a block, which are in buf. *nr_out: how many of the block's records these bytes have.
// Fails with REMIXDB_NOTFOUND if they have no whole piece, or if a checksum does not match.
MUST_CHECK enum remixdb_status sst_pieces_check(const struct sst *t, uint32_t block, uint32_t nr_bytes, uint8_t *buf,
                                                uint32_t *nr_out);
// Reads the pieces with the block's records [idx, idx + nr) into buf, which is as large as the block. Each byte goes to
// its place in the block. In the head the call fills in only the form, and only the offsets of the records that buf
// then has. [*from, *to): in, the records that buf has already; out, the records that buf has now. An empty range means
// no records. span: 0, or the result of sst_pieces_span. If span is not 0 and the range is empty, the same read also
// brings the bytes that follow the block, unchecked. Fails with REMIXDB_NOTFOUND if the caller must read the whole
// block: its pieces are not known, a checksum does not match, or all pieces are wanted; buf is then not valid. Fails
// also with REMIXDB_IO or REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status sst_pieces_read(struct sst *t, int fd, uint32_t block, uint32_t idx, uint32_t nr,
                                               uint32_t span, uint8_t *buf, uint32_t *from, uint32_t *to);
size_t sst_pieces_memory(const struct sst *t);  // bytes of the table's pieces
#endif
