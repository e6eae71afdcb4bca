// SPDX-License-Identifier: Apache-2.0
//
// The zstd frames within a store's files: their content, and the file with another content in one of them. All lengths,
// offsets and checksums that hang on the frame are made right, so that a reader comes to the content. Failures fail the
// test.
#ifndef TESTS_REPACK_H
#define TESTS_REPACK_H

#include <stddef.h>
#include <stdint.h>

#include "table/format.h"

enum repack_kind {
  REPACK_BLOCK,   // a table's. The content begins with 8 zeros, which are not stored
  REPACK_CHUNK,   // a chunk of a table's compressed keys
  REPACK_COLUMN,  // a REMIX file's
};
struct repack {
  enum repack_kind kind;
  uint32_t nr;       // the number of the block or the column
  uint64_t at, len;  // the frame's place in the file
  size_t whole;      // bytes of the content
};

// Where the dictionary of a table's blocks is; it has f->dict_len bytes.
static inline uint64_t repack_dict_off(const struct format_sst_footer *f) {
  return f->meta_off + f->nr_pages + f->min_len + f->max_len;
}

// The content of a frame. The caller frees it.
uint8_t *repack_content(const uint8_t *file, size_t len, const struct repack *k);
// The file with k->whole bytes of other content in the frame. The caller frees it.
uint8_t *repack_file(const uint8_t *file, size_t len, const struct repack *k, const uint8_t *content, size_t *len_out);
#endif
