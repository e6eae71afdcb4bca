// SPDX-License-Identifier: Apache-2.0
//
// The fixed parts of the file formats, transcribed once from docs/FORMAT.md: magic numbers, versions, and the codec of
// a table's footer. Everything is little-endian and goes through load/store functions; no struct is written as it lies
// in memory.
#ifndef FORMAT_H
#define FORMAT_H

#include "lib.h"

// ---- tables
#define FORMAT_SST_MAGIC 0x545353584D455223ull  // "#REMXSST"
#define FORMAT_SST_VERSION 2u                   // what is written; 1, without packed keys (table/ckb.h), is read too
#define FORMAT_SST_FOOTER 256u                  // bytes; the last of the file
#define FORMAT_SST_ALIGN 4096u  // the file is a multiple of it, so that aligned reads never pass its end
#define FORMAT_SST_PAGE 4096u
#define FORMAT_SST_PAGES_MAX 65520u  // what block numbers of 16 bits allow
#define FORMAT_SST_BLOCK_RECORDS 255u
#define FORMAT_SST_FLAG_CKB 1u   // has a compressed-keys block
#define FORMAT_SST_FLAG_ZSTD 2u  // data blocks are stored one by one, each behind a head (below)
#define FORMAT_SST_DICT_MAX (16u << 10)

// A stored block of a compressed table: u64 checksum of all that follows, u8 kind, then the block without its first 8
// bytes, raw or as a zstd frame.
#define FORMAT_SST_STORED_HEAD 9u
#define FORMAT_SST_STORED_SKIP 8u
enum { FORMAT_SST_STORED_RAW = 0, FORMAT_SST_STORED_ZSTD = 1 };

struct format_sst_footer {
  uint64_t store_id, number;
  uint64_t nr_records, nr_tombs, key_bytes, value_bytes;
  uint64_t data_size;           // data blocks are [0, data_size)
  uint64_t ckb_off, ckb_len;    // both 0 without one
  uint64_t meta_off, meta_len;  // up to the footer, padding included
  uint64_t meta_sum;            // XXH3-64 of the metadata, seeded with format_sst_meta_seed
  uint64_t file_size;
  uint32_t nr_pages, flags;
  uint32_t min_len, max_len, dict_len, sizes_len;  // bytes of the metadata's parts after the nr_pages counts
};

// No block has this seed: its table number would have to be 2^48 - 1 - (number >> 16).
static inline uint64_t format_sst_meta_seed(uint64_t number) { return ~number; }

void format_sst_footer_put(uint8_t *p, const struct format_sst_footer *f);  // FORMAT_SST_FOOTER bytes
// Decodes the footer p of a file of file_size bytes, and checks magic, version, checksum and that the parts it names
// lie one behind the other and fill the file. Whether it is the table that was asked for (number, store_id) is the
// caller's to check. REMIXDB_CORRUPT, REMIXDB_VERSION (a newer format).
MUST_CHECK enum remixdb_status format_sst_footer_get(const uint8_t *p, uint64_t file_size, const char *path,
                                                     struct format_sst_footer *f_out);
#endif
