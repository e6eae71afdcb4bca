// SPDX-License-Identifier: Apache-2.0
//
// The fixed parts of a table's file, as docs/FORMAT.md has them: magic number, version, limits, and the codec of the
// footer. All numbers are little-endian and go through load and store functions. No struct is written as it lies in
// memory.
#ifndef FORMAT_H
#define FORMAT_H

#include "table/block.h"

// ---- tables
#define FORMAT_SST_MAGIC 0x545353584D455223ull  // "#REMXSST"
#define FORMAT_SST_VERSION 2u                   // written; version 1, without packed keys (table/ckb.h), can be read
#define FORMAT_SST_FOOTER 256u                  // bytes, at the end of the file
#define FORMAT_SST_ALIGN 4096u                  // divides the file's size, so that no aligned read passes its end
#define FORMAT_SST_PAGES_MAX 65520u             // so that block numbers have 16 bits
#define FORMAT_SST_FLAG_CKB 1u                  // has a compressed-keys block
#define FORMAT_SST_FLAG_ZSTD 2u                 // data blocks are stored one by one, each with a head
#define FORMAT_SST_DICT_MAX (16u << 10)         // bytes of the compression dictionary

// A stored block of a compressed table: its checksum, its kind, then the block without its own checksum, raw or as one
// zstd frame.
#define FORMAT_SST_STORED_SUM 0u   // u64, of all that follows, seeded with block_seed
#define FORMAT_SST_STORED_KIND 8u  // u8
#define FORMAT_SST_STORED_HEAD 9u
#define FORMAT_SST_STORED_SKIP 8u  // bytes at a block's beginning that are not stored
enum { FORMAT_SST_STORED_RAW = 0, FORMAT_SST_STORED_ZSTD = 1 };

struct format_sst_footer {
  uint64_t store_id, number;
  uint64_t nr_records, nr_tombs, key_bytes, value_bytes;
  uint64_t data_size;           // bytes of the data blocks, at the file's beginning
  uint64_t ckb_off, ckb_len;    // the compressed-keys block; both 0 without one
  uint64_t meta_off, meta_len;  // the metadata, up to the footer, with its padding
  uint64_t meta_sum;            // XXH3-64 of the metadata, seeded with format_sst_meta_seed
  uint64_t file_size;
  uint32_t nr_pages, flags;
  uint32_t min_len, max_len, dict_len, sizes_len;  // bytes of the metadata's parts behind the nr_pages counts
};

// No block has this seed: its table number would have to be 2^48 - 1 - (number >> 16).
static inline uint64_t format_sst_meta_seed(uint64_t number) { return ~number; }

void format_sst_footer_put(uint8_t *p, const struct format_sst_footer *f);  // FORMAT_SST_FOOTER bytes
// Decodes the footer p of a file of file_size bytes. Checks magic, version, checksum, and that the parts it names lie
// one behind the other and fill the file. The caller checks number and store_id. Fails with REMIXDB_CORRUPT or
// REMIXDB_VERSION (a newer format).
MUST_CHECK enum remixdb_status format_sst_footer_get(const uint8_t *p, uint64_t file_size, const char *path,
                                                     struct format_sst_footer *f_out);
#endif
