// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/repack.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "kv.h"
#include "remix/format.h"
#include "table/ckb.h"
#include "tests/lib/check.h"

#define LEVEL 3
#define DIR_ENTRY 16u   // bytes of a REMIX file's column: two lengths, u64
#define PAGE_ENTRY 32u  // bytes of a page of a REMIX file, in the directory, without cursor offsets and anchor
#define PAGE_ENTRY_ANCHOR 20u
#define PAGE_ENTRY_SUM 24u
#define FOOTER_VERSION 244u  // offset in the footer
#define FOOTER_SUMMED 8u     // its checksum covers the bytes from here on
#define SIZES_SLACK 8u       // bytes by which the stored sizes may grow

static uint8_t *take(size_t len) {
  uint8_t *const p = calloc(1, len ? len : 1);
  assert_non_null(p);
  return p;
}

static struct format_sst_footer footer_of(const uint8_t *file, size_t len) {
  struct format_sst_footer f;
  OK(format_sst_footer_get(file + len - FORMAT_SST_FOOTER, len, "table", &f));
  return f;
}

// ---- frames

// The dictionary that the frame needs, or none.
static const uint8_t *dictionary(const uint8_t *file, size_t len, const struct repack *k, size_t *len_out) {
  *len_out = 0;
  if (k->kind != REPACK_BLOCK) return NULL;
  const struct format_sst_footer f = footer_of(file, len);
  *len_out = f.dict_len;
  return file + repack_dict_off(&f);
}

static size_t skipped(const struct repack *k) { return k->kind == REPACK_BLOCK ? FORMAT_SST_STORED_SKIP : 0; }

uint8_t *repack_content(const uint8_t *file, size_t len, const struct repack *k) {
  size_t dict_len;
  const uint8_t *const dict = dictionary(file, len, k, &dict_len);
  uint8_t *const content = take(k->whole);
  ZSTD_DCtx *const z = ZSTD_createDCtx();
  assert_non_null(z);
  const size_t skip = skipped(k),
               n = ZSTD_decompress_usingDict(z, content + skip, k->whole - skip, file + k->at, k->len, dict, dict_len);
  CHECK(n == k->whole - skip);
  (void)ZSTD_freeDCtx(z);
  return content;
}

static uint8_t *compress(const uint8_t *file, size_t len, const struct repack *k, const uint8_t *content,
                         size_t *len_out) {
  size_t dict_len;
  const uint8_t *const dict = dictionary(file, len, k, &dict_len);
  const size_t skip = skipped(k), cap = ZSTD_compressBound(k->whole);
  uint8_t *const frame = take(cap);
  ZSTD_CCtx *const z = ZSTD_createCCtx();
  assert_non_null(z);
  CHECK(!ZSTD_isError(ZSTD_CCtx_setParameter(z, ZSTD_c_compressionLevel, LEVEL)));
  CHECK(!ZSTD_isError(ZSTD_CCtx_setParameter(z, ZSTD_c_dictIDFlag, 0)));
  if (dict_len) CHECK(!ZSTD_isError(ZSTD_CCtx_loadDictionary(z, dict, dict_len)));
  *len_out = ZSTD_compress2(z, frame, cap, content + skip, k->whole - skip);
  CHECK(!ZSTD_isError(*len_out));
  (void)ZSTD_freeCCtx(z);
  return frame;
}

// ---- files

// The page that has the frame, as the directory has it. Fails the test if there is none.
struct page_of {
  uint64_t at, entry;  // its offset, and that of its entry in the directory
};

static struct page_of find_page(const uint8_t *file, size_t len, uint64_t frame) {
  const uint32_t runs = load32le(file + REMIX_HEAD_RUNS);
  struct page_of p = {remix_segs_off(runs), load64le(file + REMIX_HEAD_SEGS_AT)};
  for (;;) {
    CHECK(p.entry + PAGE_ENTRY <= len);
    const uint32_t size = load32le(file + p.entry);
    if (frame < p.at + size) return p;
    p.at += size;
    p.entry += PAGE_ENTRY + 4 * (uint64_t)runs + load32le(file + p.entry + PAGE_ENTRY_ANCHOR);
  }
}

// The lengths and checksums of a page whose column k->nr has nr bytes now, and of the directory.
static void seal_page(uint8_t *out, size_t now, const struct repack *k, const struct page_of *was, size_t nr) {
  const uint64_t number = load64le(out + REMIX_HEAD_NUMBER), delta = nr - k->len;
  const uint64_t dir = load64le(out + REMIX_HEAD_SEGS_AT) + delta, entry = was->entry + delta;
  const size_t sum = now - 2 * REMIX_SUM;
  store64le(out + REMIX_HEAD_SEGS_AT, dir);
  store32le(out + was->at + 4 * k->nr, (uint32_t)nr);
  store32le(out + entry, load32le(out + entry) + (uint32_t)delta);
  store64le(out + entry + PAGE_ENTRY_SUM, hash64_seed(out + was->at, load32le(out + entry), number));
  store64le(out + sum, hash64_seed(out + dir, sum - dir, number));
}

static uint8_t *remix_file(const uint8_t *file, size_t len, const struct repack *k, const uint8_t *bytes, size_t nr,
                           size_t *len_out) {
  const size_t now = len - k->len + nr;
  uint8_t *const out = take(now);
  memcpy(out, file, k->at);
  memcpy(out + k->at, bytes, nr);
  memcpy(out + k->at + nr, file + k->at + k->len, len - k->at - k->len);
  if (load32le(file + REMIX_HEAD_FORMAT) == REMIX_FORMAT_PAGED) {
    const struct page_of page = find_page(file, len, k->at);
    seal_page(out, now, k, &page, nr);
  } else {
    store64le(out + remix_segs_off(load32le(file + REMIX_HEAD_RUNS)) + DIR_ENTRY * k->nr + 8, nr);
  }
  store64le(out + REMIX_HEAD_SIZE, now);
  store64le(out + now - REMIX_SUM, hash64_seed(out, now - REMIX_SUM, load64le(out + REMIX_HEAD_NUMBER)));
  *len_out = now;
  return out;
}

// The offset of a chunk comes into its checksum, so that of all chunks after the changed one changes.
static void seal_chunks(uint8_t *ckb, uint64_t len, uint64_t table) {
  for (uint64_t at = 0, next; at < len; at = next) {
    next = at + (load32le(ckb + at + CKB_OFF_LENGTH) & ~(CKB_PACKED | CKB_KINDS));
    CHECK(next > at && next <= len);
    store64le(ckb + at, hash64_seed(ckb + at + 8, next - at - 8, ~(table << 32) ^ at));
  }
}

// Copies the stored sizes; that of one block (UINT32_MAX: of none) differs by delta. Returns their end.
static uint8_t *put_sizes(const uint8_t *file, const struct format_sst_footer *f, uint32_t block, uint32_t delta,
                          uint8_t *to) {
  const uint8_t *const pages = file + f->meta_off, *p = file + repack_dict_off(f) + f->dict_len;
  const uint8_t *const end = p + f->sizes_len;
  for (uint32_t b = 0; b < f->nr_pages; b++) {
    uint32_t size;
    if (!pages[b]) continue;
    CHECK((p = kv_varint_get(p, end, &size)) != NULL);
    to = kv_varint_put(to, size + (b == block ? delta : 0));
  }
  return to;
}

// Writes metadata and footer after the new f->meta_off. was: the footer before. Returns the length of the file.
static size_t put_meta(const uint8_t *file, size_t len, const struct format_sst_footer *was, uint32_t block,
                       uint32_t delta, struct format_sst_footer *f, uint8_t *out) {
  uint8_t *const meta = out + f->meta_off, *p = meta;
  const size_t fixed = (size_t)was->nr_pages + was->min_len + was->max_len + was->dict_len;
  memcpy(p, file + was->meta_off, fixed);
  p += fixed;
  const uint8_t *const sizes = p;
  if (was->sizes_len) p = put_sizes(file, was, block, delta, p);
  f->sizes_len = (uint32_t)(p - sizes);
  const size_t apart = FORMAT_SST_APART * (size_t)was->nr_apart;  // the list of value files
  if (apart) memcpy(p, file + was->meta_off + fixed + was->sizes_len, apart);
  p += apart;
  f->file_size = align_up((uint64_t)(p - out) + FORMAT_SST_FOOTER, FORMAT_SST_ALIGN);
  f->meta_len = f->file_size - FORMAT_SST_FOOTER - f->meta_off;
  f->meta_sum = hash64_seed(meta, f->meta_len, format_sst_meta_seed(f->number));
  uint8_t *const foot = meta + f->meta_len;
  format_sst_footer_put(foot, f);
  store32le(foot + FOOTER_VERSION, load32le(file + len - FORMAT_SST_FOOTER + FOOTER_VERSION));
  store64le(foot, hash64(foot + FOOTER_SUMMED, FORMAT_SST_FOOTER - FOOTER_SUMMED));
  return f->file_size;
}

static uint8_t *table_file(const uint8_t *file, size_t len, const struct repack *k, const uint8_t *frame, size_t nr,
                           size_t *len_out) {
  const struct format_sst_footer was = footer_of(file, len);
  struct format_sst_footer f = was;
  const uint64_t delta = nr - k->len;  // may wrap around, and so do the sums with it
  uint8_t *const out = take(len + nr + SIZES_SLACK + FORMAT_SST_ALIGN);
  memcpy(out, file, k->at);
  memcpy(out + k->at, frame, nr);
  memcpy(out + k->at + nr, file + k->at + k->len, was.meta_off - k->at - k->len);
  f.meta_off += delta;
  if (k->kind == REPACK_BLOCK) {
    uint8_t *const stored = out + k->at - FORMAT_SST_STORED_HEAD;
    f.data_size += delta;
    f.ckb_off += f.ckb_len ? delta : 0;
    store64le(stored, hash64_seed(stored + 8, FORMAT_SST_STORED_HEAD - 8 + nr, f.number << 16 | k->nr));
  } else {
    f.ckb_len += delta;
    uint8_t *const word = out + k->at - CKB_PACKED_HEAD + CKB_OFF_LENGTH;
    store32le(word, (CKB_PACKED_HEAD + (uint32_t)nr) | (load32le(word) & (CKB_PACKED | CKB_KINDS)));
  }
  seal_chunks(out + f.data_size, f.ckb_len, f.number);
  *len_out = put_meta(file, len, &was, k->kind == REPACK_BLOCK ? k->nr : UINT32_MAX, (uint32_t)delta, &f, out);
  return out;
}

uint8_t *repack_file(const uint8_t *file, size_t len, const struct repack *k, const uint8_t *content, size_t *len_out) {
  size_t nr;
  uint8_t *const frame = compress(file, len, k, content, &nr), *out;
  if (k->kind != REPACK_COLUMN) out = table_file(file, len, k, frame, nr, len_out);
  else if (nr < k->whole) out = remix_file(file, len, k, frame, nr, len_out);
  else out = remix_file(file, len, k, content, k->whole, len_out);
  free(frame);
  return out;
}
