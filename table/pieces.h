// SPDX-License-Identifier: Apache-2.0
//
// Pieces of blocks, for who needs a record or a few of a block that gets no frame in the cache: it reads, copies and
// checks about half a KiB instead of all of it. A piece has the records that begin in one eighth of a page. Where the
// pieces begin and what their bytes have to hash to is nowhere on disk: it is made of blocks in memory whose own
// checksum has been made or verified, by the builder of the table or by the first who wanted a few records of it and
// had to read it whole, to memory of its own.
//
// Invariants
//   P1  What is known of a block is written once, by one thread, and then published (`known`, release); it does not
//   change while the table is open. P2  Bytes that do not have their piece's sum are not used: the block is read whole,
//   and its own checksum decides. P3  A sum is of the table's and the block's number, too, as the block's checksum is:
//   a piece read from another block does not pass.
#ifndef SST_PIECES_H
#define SST_PIECES_H

#include "table/state.h"

#define SST_PIECES_RECORD \
  512u  // bytes of a table's records, on average: of larger ones nothing is kept, it would be twice as much as a REMIX
        // keeps for each

// Of so many pages, of which nothing is known; to be freed with mem_free. NULL: no memory.
struct sst_pieces *sst_pieces_make(uint32_t nr);
// Of a block in memory that is right. p: as many as it has pages.
void sst_pieces_cut(struct sst_pieces *p, const uint8_t *block, uint64_t table, uint32_t number);
// Whether the table's blocks are read in pieces at all: they are stored as they are, read at any offset, and their
// records are small.
bool sst_pieces_suit(const struct sst *t);
// The block, which has been verified, was read whole because it was not known: it is from now on, unless there is no
// memory. Any thread.
void sst_pieces_learn(struct sst *t, uint32_t block, const uint8_t *data);
// How far to read so that nr records from idx on are had, of which the block has fewer: bytes from its beginning on. 0:
// no farther than the block, for what lies behind it is not known, or cached. At most SST_PIECES_SPAN pages.
#define SST_PIECES_SPAN 8u
uint32_t sst_pieces_span(const struct sst *t, uint32_t block, uint32_t idx, uint32_t nr);
// Of a block of which the first nr_bytes are in buf: how many records, from the first on, are there. REMIXDB_NOTFOUND:
// none, or they are not right.
MUST_CHECK enum remixdb_status sst_pieces_check(const struct sst *t, uint32_t block, uint32_t nr_bytes, uint8_t *buf,
                                                uint32_t *nr_out);
// Makes the nr records from idx on, as far as the block has them, those of [*from, *to) that are there already. span:
// what sst_pieces_span said, or 0; where none are there yet what lies behind the block is read with it, as it is. buf:
// as large as the block; all in it is where it is in the block, but only what accessors of those records look at is
// there. REMIXDB_NOTFOUND: the block has to be read whole (it is not known, or a sum did not match, or nothing would be
// spared), and buf is not to be used.
MUST_CHECK enum remixdb_status sst_pieces_read(struct sst *t, int fd, uint32_t block, uint32_t idx, uint32_t nr,
                                               uint32_t span, uint8_t *buf, uint32_t *from, uint32_t *to);
size_t sst_pieces_memory(const struct sst *t);  // bytes
#endif
