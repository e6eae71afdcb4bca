// SPDX-License-Identifier: Apache-2.0
//
// REMIX files of format 2: the image, packed. Each new table of a partition makes the store write the partition's REMIX
// again, so REMIX files are a large part of all bytes written. The file leaves out the cursor offsets, which follow
// from the tables, and compresses the rest column by column: an entry takes about two bytes in the file, and five to
// six in the image. docs/FORMAT.md has the layout. This module knows where the parts of an image are, not their
// meaning.
#ifndef REMIX_PACK_H
#define REMIX_PACK_H

#include "remix/format.h"
#include "sst.h"

// Makes the file of an image of `len` bytes, whose header must be right. The caller frees *file_out with mem_free.
// Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status remix_pack(const uint8_t *image, size_t len, uint8_t **file_out, size_t *len_out);
// Makes the image of a file of format 2 over these tables. The caller has verified the file's checksum, and checks the
// image: it is safe to read, and its cursor offsets walk each table from beginning to end, but all else may be wrong.
// The image is the first *len_out bytes of *map_out; the caller frees *map_out with mem_unmap. Fails with
// REMIXDB_CORRUPT or REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status remix_unpack(const uint8_t *file, size_t len, struct sst *const *runs, uint32_t nr_runs,
                                            const char *path, struct mem_map *map_out, size_t *len_out);
#endif
