// SPDX-License-Identifier: Apache-2.0
//
// Pieces of blocks. A reader that needs a few records of a block that gets no frame in the cache reads, copies and
// checks about half a KiB instead of the block. A piece is the records that begin in one eighth of a page.
//
// The file has no pieces. Their places and checksums are made in memory from a verified block: by the table's builder,
// or by the first reader that needs a few records of the block and has to read it whole.
//
// Invariants
//   P1  One thread writes the pieces of a block, once, and publishes them (`known`, release). They do not change while
//       the table is open.
//   P2  Bytes that do not match their piece's checksum are not used. The block is then read whole, and its own checksum
//       decides.
//   P3  A piece's checksum depends on the table's and the block's number, as the block's does. A piece read from
//       another block does not pass.
#ifndef SST_PIECES_H
#define SST_PIECES_H

#include "table/state.h"

// Only tables whose records have at most this many bytes on average have pieces. For larger records the pieces would
// take twice as much memory per record as a REMIX.
#define SST_PIECES_RECORD 512u

// Makes pieces for nr pages, of which nothing is known. The caller frees them with mem_free. NULL: no memory.
struct sst_pieces *sst_pieces_make(uint32_t nr);
// Fills in the pieces of a verified block in memory. p: one per page of the block.
void sst_pieces_cut(struct sst_pieces *p, const uint8_t *block, uint64_t table, uint32_t number);
// Whether the table is read in pieces: it is not compressed, reads need no alignment, and its records are small.
bool sst_pieces_suit(const struct sst *t);
// A reader had to read this block whole, and has verified it: its pieces are known from now on. Does nothing without
// memory. Any thread.
void sst_pieces_learn(struct sst *t, uint32_t block, const uint8_t *data);
// The caller wants nr records from idx on, and the block has fewer. Returns the bytes to read from the block's
// beginning to get them, at most SST_PIECES_SPAN pages. 0: read only this block, because the pieces of the next one are
// not known, or the cache has it.
#define SST_PIECES_SPAN 8u
uint32_t sst_pieces_span(const struct sst *t, uint32_t block, uint32_t idx, uint32_t nr);
// Checks the first nr_bytes of a block, which are in buf. *nr_out: how many records are there, counted from the first.
// REMIXDB_NOTFOUND: none, or a checksum does not match.
MUST_CHECK enum remixdb_status sst_pieces_check(const struct sst *t, uint32_t block, uint32_t nr_bytes, uint8_t *buf,
                                                uint32_t *nr_out);
// Reads the pieces with the block's records [idx, idx + nr) into buf, which is as large as the block. Each byte goes to
// its place in the block; the head is not filled in, and only the offsets of records that are there.
// [*from, *to): in, the records that buf has already; out, those that it has now. An empty range: none.
// span: 0, or the result of sst_pieces_span: with an empty range the same read also brings the bytes behind the block,
// unchecked. REMIXDB_NOTFOUND: buf is not valid and the block must be read whole: its pieces are not known, a checksum
// does not match, or all of them are wanted. Fails with REMIXDB_IO or REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status sst_pieces_read(struct sst *t, int fd, uint32_t block, uint32_t idx, uint32_t nr,
                                               uint32_t span, uint8_t *buf, uint32_t *from, uint32_t *to);
size_t sst_pieces_memory(const struct sst *t);  // bytes of the table's pieces
#endif
