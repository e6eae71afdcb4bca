// SPDX-License-Identifier: Apache-2.0
//
// The fixed parts of a table's file: magic number, version, limits, and the codec of the footer. docs/FORMAT.md
// describes the whole file. All numbers are little-endian. Code reads and writes them by load and store functions; it
// never writes a struct as it is in memory.
#ifndef FORMAT_H
#define FORMAT_H

#include "table/block.h"
#include "table/spread.h"

// ---- tables
#define FORMAT_SST_MAGIC 0x545353584D455223ull  // "#REMXSST"
// The version that is written. The others can be read: version 1 has no packed keys (table/ckb.h), and both have no
// kinds and no sequence numbers (BLOCK_FORM_BARE).
#define FORMAT_SST_VERSION 3u
#define FORMAT_SST_VERSION_KINDS 3u
#define FORMAT_SST_SEQ_MAX ((uint64_t)1 << 62)  // sequence numbers have this bound
#define FORMAT_SST_FOOTER 256u                  // bytes, at the end of the file
#define FORMAT_SST_ALIGN 4096u  // the file's size is a multiple of it, so that no aligned read passes the file's end
#define FORMAT_SST_PAGES_MAX 65520u      // pages of a table at most, so that block numbers have 16 bits
#define FORMAT_SST_FLAG_CKB 1u           // flag: the table has a compressed-keys block
#define FORMAT_SST_FLAG_ZSTD 2u          // flag: data blocks are stored one by one, each with a head
#define FORMAT_SST_FLAG_SPACES 4u        // flag: the records belong to the tree of the named spaces
#define FORMAT_SST_APART 16u             // bytes for a value file: its number, u64; bytes of the values, u64
#define FORMAT_SST_APART_MAX 65536u      // value files at most
#define FORMAT_SST_DICT_MAX (16u << 10)  // bytes of the compression dictionary at most

// A stored block of a compressed table has three parts: a checksum, a kind, and the block. The block is raw or one zstd
// frame, and lacks its own checksum, which is its first 8 bytes.
#define FORMAT_SST_STORED_SUM 0u   // u64, checksum of the bytes after it, seeded with block_seed
#define FORMAT_SST_STORED_KIND 8u  // u8
#define FORMAT_SST_STORED_HEAD 9u
#define FORMAT_SST_STORED_SKIP 8u  // bytes at a block's beginning that are left out: the block's own checksum
enum { FORMAT_SST_STORED_RAW = 0, FORMAT_SST_STORED_ZSTD = 1 };

struct format_sst_footer {
  uint64_t store_id, number;
  uint64_t nr_records, nr_tombs, key_bytes, value_bytes;
  uint64_t data_size;           // bytes of the data blocks, which begin the file
  uint64_t ckb_off, ckb_len;    // the compressed-keys block; both are 0 if there is none
  uint64_t meta_off, meta_len;  // the metadata with its padding; the footer follows
  uint64_t meta_sum;            // XXH3-64 of the metadata, seeded with format_sst_meta_seed
  uint64_t file_size;
  uint32_t nr_pages, flags;
  uint32_t min_len, max_len, dict_len,
      sizes_len;  // bytes of the parts of the metadata, which follow the nr_pages counts
  // The sum, modulo 2^64, of the checksums of all blocks: the first 8 bytes of each block as it is stored. 0 in tables
  // that an older library wrote. With it the footer's checksum covers the values, too.
  uint64_t blocks_sum;
  // Version 3; in older tables every record has number 1.
  uint64_t seq_min, seq_max;  // no record has a smaller number, or a larger one
  struct spread expiry;       // the spread of the times at which records expire
  uint32_t seq_width;         // bytes of a record's number, less seq_min, in its block
  uint32_t version;           // out only
  uint32_t nr_apart;          // entries of the list of value files, at the end of the metadata
  uint64_t print;             // out only: the table's fingerprint, which is the footer's checksum
};

// The seed of the metadata's checksum. No block has the same seed (block_seed). Such a block's table would have the
// number 2^48 - 1 - (number >> 16), which is larger than any table's number.
static inline uint64_t format_sst_meta_seed(uint64_t number) { return ~number; }

// The size of the table that the footer states; nothing is checked.
uint64_t format_sst_footer_size(const uint8_t *p);
void format_sst_footer_put(uint8_t *p, const struct format_sst_footer *f);  // FORMAT_SST_FOOTER bytes
uint64_t format_sst_print(const uint8_t *p);  // the fingerprint that a footer's bytes state
// Decodes the footer p of a table of file_size bytes, which begins at the offset `base` of a file. Checks magic,
// version and checksum. Checks that the parts named by the footer lie one after the other and fill the file. The caller
// checks number and store_id. Fails with REMIXDB_CORRUPT, or with REMIXDB_VERSION if the format is newer.
MUST_CHECK enum remixdb_status format_sst_footer_at(const uint8_t *p, uint64_t base, uint64_t file_size,
                                                    const char *path, struct format_sst_footer *f_out);
// The same for a table in a file of its own.
MUST_CHECK static inline enum remixdb_status format_sst_footer_get(const uint8_t *p, uint64_t file_size,
                                                                   const char *path, struct format_sst_footer *f_out) {
  return format_sst_footer_at(p, 0, file_size, path, f_out);
}
#endif
