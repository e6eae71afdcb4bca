// SPDX-License-Identifier: Apache-2.0
//
// REMIX files: the image that is kept in memory, packed. A REMIX is written again whenever a table is added to its
// partition, so its size is a good part of all that is written: what follows from the tables (cursor offsets) is left
// out, and the rest is compressed column by column, to about two bytes per entry where the image has five to six.
// Layout in docs/FORMAT.md. Knows nothing of what the image means but where things are in it.
#ifndef REMIX_PACK_H
#define REMIX_PACK_H

#include "remix/format.h"
#include "sst.h"

// The file of an image of `len` bytes, whose head must be right: REMIX_HEAD bytes and the table numbers, then what they
// say. *file_out is the caller's, to be freed with mem_free. REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status remix_pack(const uint8_t *image, size_t len, uint8_t **file_out, size_t *len_out);
// The image of a file of format 2, for these tables; the file's checksum has been verified. Its cursor offsets walk
// each table from its beginning to its end; what else it says may be anything but leads nowhere outside of the image:
// the caller checks the image. *map_out is the caller's, to be given back with mem_unmap; the image, *len_out bytes,
// begins with it. REMIXDB_CORRUPT, REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status remix_unpack(const uint8_t *file, size_t len, struct sst *const *runs, uint32_t nr_runs,
                                            const char *path, struct mem_map *map_out, size_t *len_out);
#endif
