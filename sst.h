// SPDX-License-Identifier: Apache-2.0
//
// Tables: immutable sorted runs on disk, "%06llu.sst". A file has data blocks, then the compressed-keys block if there
// is one, then metadata, then a footer of fixed size; docs/FORMAT.md has the layouts. Block numbers count pages of 4
// KiB: a block of n pages takes n numbers. A position is a block number (16 bits) and the index of a record (8 bits) in
// one integer. An open table does not change, and any thread may read it. A table cannot look up a key; its REMIX does.
// Reads here go through the cache; table/scan.h reads past it.
#ifndef SST_H
#define SST_H

#include "table/hold.h"
#include "table/prefetch.h"

// Opens a table and checks the footer and the metadata, but not the data. *out has one reference. Fails with
// REMIXDB_CORRUPT (also for a missing file), REMIXDB_VERSION, REMIXDB_NOMEM or REMIXDB_IO.
MUST_CHECK enum remixdb_status sst_open(const struct sst_ctx *ctx, uint64_t number, struct sst **out);
// The facts that a file tells at its ends.
struct sst_peek {
  uint64_t print, origin;  // its fingerprint, and the id of the store that wrote it
  uint64_t size;           // bytes of the file
  bool spaces;             // its records are of the spaces' tree; tables only
};
// Reads the footer of a table, and checks that it is the footer of this file and of this store. One read. Fails as
// sst_open does.
MUST_CHECK enum remixdb_status sst_look(const struct sst_ctx *ctx, uint64_t number, struct sst_peek *out);
// Gives all records of a table another sequence number. The table was built with one number for all
// (sst_build_numbers), and no other thread has the table. Writes and syncs the footer, so the table's fingerprint
// changes. After a failure the table is of no use. Fails with REMIXDB_IO, REMIXDB_NOSPACE, REMIXDB_NOMEM or
// REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status sst_renumber(struct sst *t, uint64_t seq);
// The same for the open table only: its file keeps the number.
void sst_number_as(struct sst *t, uint64_t seq);
void sst_ref(struct sst *t);
void sst_unref(struct sst *t);   // NULL is allowed. The last reference closes the table and removes an obsolete file
void sst_retire(struct sst *t);  // makes the table obsolete: no version will name it
void sst_name(char *buf, uint64_t number);  // "000001.sst"; buf of 32 bytes
size_t sst_memory(const struct sst *t);     // bytes of metadata, cache slots and pieces
// Frees the scratch memory that the process keeps for the next reads of tables. Any thread, at any time.
void sst_trim(void);
// Gives the table the pieces that its builder made (sst_build_pieces), one element per page. Takes ownership of p; NULL
// is allowed. The table gets none if the budget has no room for them. The caller must do so before other threads have
// the table.
void sst_give_pieces(struct sst *t, struct sst_pieces *p);
#endif
