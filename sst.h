// SPDX-License-Identifier: Apache-2.0
//
// Tables: immutable sorted runs on disk, "%06llu.sst". Data blocks, then the compressed-keys block (when written), then
// metadata, then a footer of fixed size; layouts in docs/FORMAT.md. A position is (block number: 16 bits, record index:
// 8 bits) in one integer; block numbers count pages of 4 KiB, a block of n pages takes n numbers. Immutable after
// opening; any thread may read. A table finds nothing by key: its REMIX does. What is read here goes through the cache;
// table/scan.h reads past it.
#ifndef SST_H
#define SST_H

#include "table/hold.h"
#include "table/prefetch.h"

// Opens and checks footer and metadata (not the data). *out has one reference. A missing file is REMIXDB_CORRUPT.
// REMIXDB_VERSION.
MUST_CHECK enum remixdb_status sst_open(const struct sst_ctx *ctx, uint64_t number, struct sst **out);
void sst_ref(struct sst *t);
void sst_unref(struct sst *t);              // NULL is allowed; the last one closes, and removes the file when obsolete
void sst_retire(struct sst *t);             // makes it obsolete: no version will name it
void sst_name(char *buf, uint64_t number);  // "000001.sst"; buf of 32 bytes
size_t sst_memory(const struct sst *t);     // bytes of metadata, cache slots and what is known of pieces
// What a table's builder knows of its pieces (sst_build_pieces), as many as it has pages, becomes the table's. Before
// others know the table. NULL is allowed.
void sst_give_pieces(struct sst *t, struct sst_pieces *p);
#endif
