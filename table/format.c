// SPDX-License-Identifier: Apache-2.0
#include "table/format.h"

// Offsets in the footer. Magic and version stay at the end in every later format.
enum {
  SST_SUM = 0,
  SST_SUMMED = 8,  // the checksum is of the bytes from here on
  SST_STORE_ID = 8,
  SST_NUMBER = 16,
  SST_NR_RECORDS = 24,
  SST_NR_TOMBS = 32,
  SST_KEY_BYTES = 40,
  SST_VALUE_BYTES = 48,
  SST_DATA_SIZE = 56,
  SST_CKB_OFF = 64,
  SST_CKB_LEN = 72,
  SST_META_OFF = 80,
  SST_META_LEN = 88,
  SST_META_SUM = 96,
  SST_FILE_SIZE = 104,
  SST_NR_PAGES = 112,
  SST_FLAGS = 116,
  SST_MIN_LEN = 120,
  SST_MAX_LEN = 124,
  SST_DICT_LEN = 128,
  SST_SIZES_LEN = 132,
  SST_BLOCKS_SUM = 136,
  SST_SEQ_MIN = 144,  // from version 3 on, up to SST_EXPIRY
  SST_SEQ_MAX = 152,
  SST_SEQ_WIDTH = 160,  // u32
  SST_EXPIRING = 168,
  SST_EXPIRING_BYTES = 176,
  SST_EXPIRY = 184,  // u64 each, SPREAD_POINTS of them
  SST_APART = 240,   // u32, from version 3 on
  SST_VERSION = 244,
  SST_MAGIC = 248,
};

static inline uint64_t footer_sum(const uint8_t *p) { return hash64(p + SST_SUMMED, FORMAT_SST_FOOTER - SST_SUMMED); }

uint64_t format_sst_footer_size(const uint8_t *p) { return load64le(p + SST_FILE_SIZE); }

void format_sst_footer_put(uint8_t *p, const struct format_sst_footer *f) {
  memset(p, 0, FORMAT_SST_FOOTER);
  store64le(p + SST_STORE_ID, f->store_id);
  store64le(p + SST_NUMBER, f->number);
  store64le(p + SST_NR_RECORDS, f->nr_records);
  store64le(p + SST_NR_TOMBS, f->nr_tombs);
  store64le(p + SST_KEY_BYTES, f->key_bytes);
  store64le(p + SST_VALUE_BYTES, f->value_bytes);
  store64le(p + SST_DATA_SIZE, f->data_size);
  store64le(p + SST_CKB_OFF, f->ckb_off);
  store64le(p + SST_CKB_LEN, f->ckb_len);
  store64le(p + SST_META_OFF, f->meta_off);
  store64le(p + SST_META_LEN, f->meta_len);
  store64le(p + SST_META_SUM, f->meta_sum);
  store64le(p + SST_FILE_SIZE, f->file_size);
  store32le(p + SST_NR_PAGES, f->nr_pages);
  store32le(p + SST_FLAGS, f->flags);
  store32le(p + SST_MIN_LEN, f->min_len);
  store32le(p + SST_MAX_LEN, f->max_len);
  store32le(p + SST_DICT_LEN, f->dict_len);
  store32le(p + SST_SIZES_LEN, f->sizes_len);
  store64le(p + SST_BLOCKS_SUM, f->blocks_sum);
  store64le(p + SST_SEQ_MIN, f->seq_min);
  store64le(p + SST_SEQ_MAX, f->seq_max);
  store32le(p + SST_SEQ_WIDTH, f->seq_width);
  store64le(p + SST_EXPIRING, f->expiry.nr);
  store64le(p + SST_EXPIRING_BYTES, f->expiry.bytes);
  for (uint32_t i = 0; i < SPREAD_POINTS; i++) store64le(p + SST_EXPIRY + 8 * i, f->expiry.at[i]);
  store32le(p + SST_APART, f->nr_apart);
  store32le(p + SST_VERSION, FORMAT_SST_VERSION);
  store64le(p + SST_MAGIC, FORMAT_SST_MAGIC);
  store64le(p + SST_SUM, footer_sum(p));
}

uint64_t format_sst_print(const uint8_t *p) { return load64le(p + SST_SUM); }

static const char *numbers_flaw(const struct format_sst_footer *f) {
  if (f->seq_width > BLOCK_SEQ_MAX) return "width of sequence numbers out of range";
  if (f->seq_min == 0 || f->seq_max < f->seq_min || f->seq_max > FORMAT_SST_SEQ_MAX)
    return "sequence numbers out of range";
  if (f->seq_width < BLOCK_SEQ_MAX && (f->seq_max - f->seq_min) >> 8 * f->seq_width)
    return "sequence numbers do not fit into their width";
  const uint64_t most = (uint64_t)f->nr_pages * BLOCK_PAGE;
  if (!spread_valid(&f->expiry) || f->expiry.nr > f->nr_records - f->nr_tombs || f->expiry.bytes > most)
    return "times of expiry out of range";
  return NULL;
}

// Checks the footer's numbers against each other. Returns NULL, or words for what is wrong.
static const char *footer_flaw(const struct format_sst_footer *f, uint64_t file_size) {
  const bool zstd = f->flags & FORMAT_SST_FLAG_ZSTD;
  const bool ckb = f->flags & FORMAT_SST_FLAG_CKB;
  const bool kinds = f->version >= FORMAT_SST_VERSION_KINDS;
  if (f->flags & ~(FORMAT_SST_FLAG_CKB | FORMAT_SST_FLAG_ZSTD | (kinds ? FORMAT_SST_FLAG_SPACES : 0)))
    return "unknown flags";
  if (f->file_size != file_size) return "file size differs";
  if (f->number == 0) return "table number 0";
  if (f->number >= (uint64_t)1 << 47) return "table number too large";
  if (f->nr_pages == 0 || f->nr_pages > FORMAT_SST_PAGES_MAX) return "number of pages out of range";
  const uint64_t pages_size = (uint64_t)f->nr_pages * BLOCK_PAGE;
  // the file bounds each number first, so that no sum below can wrap
  if (f->data_size > file_size || f->ckb_len > file_size || f->ckb_off > file_size || f->meta_off > file_size ||
      f->meta_len > file_size)
    return "a part lies outside of the file";
  if (!zstd && f->data_size != pages_size) return "size of data differs from its pages";
  if (zstd && (f->data_size == 0 || f->data_size > pages_size + f->nr_pages))
    return "size of compressed data out of range";
  if (ckb != (f->ckb_len != 0) || f->ckb_off != (ckb ? f->data_size : 0)) return "compressed keys out of place";
  if (f->meta_off != f->data_size + f->ckb_len || f->meta_off + f->meta_len + FORMAT_SST_FOOTER != file_size)
    return "metadata out of place";
  const uint32_t key_max = kinds ? KV_KEY_MAX : REMIXDB_KV_MAX;
  if (f->min_len > key_max || f->max_len > key_max) return "key too long";
  if (f->dict_len > FORMAT_SST_DICT_MAX || f->sizes_len > f->nr_pages * 5u || (!zstd && (f->dict_len || f->sizes_len)))
    return "compression tables out of range";
  if (f->nr_apart > FORMAT_SST_APART_MAX || f->nr_apart > f->nr_records) return "number of value files out of range";
  const uint64_t used = (uint64_t)f->nr_pages + f->min_len + f->max_len + f->dict_len + f->sizes_len +
                        FORMAT_SST_APART * (uint64_t)f->nr_apart;
  if (used > f->meta_len || f->meta_len - used >= FORMAT_SST_ALIGN) return "size of metadata out of range";
  if (f->nr_records == 0 || f->nr_records > (uint64_t)f->nr_pages * BLOCK_RECORDS_MAX || f->nr_tombs > f->nr_records)
    return "number of records out of range";
  if (f->key_bytes > pages_size || f->value_bytes > pages_size) return "bytes of records out of range";
  return numbers_flaw(f);
}

enum remixdb_status format_sst_footer_at(const uint8_t *p, uint64_t base, uint64_t file_size, const char *path,
                                         struct format_sst_footer *f_out) {
  const uint64_t off = base + file_size - FORMAT_SST_FOOTER;
  if (load64le(p + SST_MAGIC) != FORMAT_SST_MAGIC) return err_corrupt(path, off + SST_MAGIC, "not the end of a table");
  if (load64le(p + SST_SUM) != footer_sum(p)) return err_corrupt(path, off, "checksum of footer");
  // after the checksum: a flipped bit is damage, not a later format
  const uint32_t version = load32le(p + SST_VERSION);
  if (version > FORMAT_SST_VERSION)
    return err_set(REMIXDB_VERSION, "%s: table format %u; this library knows up to %u", path, version,
                   FORMAT_SST_VERSION);
  if (version == 0) return err_corrupt(path, off + SST_VERSION, "table format %u", version);
  *f_out = (struct format_sst_footer){
      .store_id = load64le(p + SST_STORE_ID),
      .number = load64le(p + SST_NUMBER),
      .nr_records = load64le(p + SST_NR_RECORDS),
      .nr_tombs = load64le(p + SST_NR_TOMBS),
      .key_bytes = load64le(p + SST_KEY_BYTES),
      .value_bytes = load64le(p + SST_VALUE_BYTES),
      .data_size = load64le(p + SST_DATA_SIZE),
      .ckb_off = load64le(p + SST_CKB_OFF),
      .ckb_len = load64le(p + SST_CKB_LEN),
      .meta_off = load64le(p + SST_META_OFF),
      .meta_len = load64le(p + SST_META_LEN),
      .meta_sum = load64le(p + SST_META_SUM),
      .file_size = load64le(p + SST_FILE_SIZE),
      .nr_pages = load32le(p + SST_NR_PAGES),
      .flags = load32le(p + SST_FLAGS),
      .min_len = load32le(p + SST_MIN_LEN),
      .max_len = load32le(p + SST_MAX_LEN),
      .dict_len = load32le(p + SST_DICT_LEN),
      .sizes_len = load32le(p + SST_SIZES_LEN),
      .blocks_sum = load64le(p + SST_BLOCKS_SUM),
      .seq_min = 1,
      .seq_max = 1,
      .version = version,
      .print = load64le(p + SST_SUM),
  };
  if (version >= FORMAT_SST_VERSION_KINDS) {
    f_out->seq_min = load64le(p + SST_SEQ_MIN);
    f_out->seq_max = load64le(p + SST_SEQ_MAX);
    f_out->seq_width = load32le(p + SST_SEQ_WIDTH);
    f_out->expiry.nr = load64le(p + SST_EXPIRING);
    f_out->expiry.bytes = load64le(p + SST_EXPIRING_BYTES);
    for (uint32_t i = 0; i < SPREAD_POINTS; i++) f_out->expiry.at[i] = load64le(p + SST_EXPIRY + 8 * i);
    f_out->nr_apart = load32le(p + SST_APART);
  }
  const char *const flaw = footer_flaw(f_out, file_size);
  return flaw ? err_corrupt(path, off, "footer: %s", flaw) : REMIXDB_OK;
}
