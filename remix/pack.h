// SPDX-License-Identifier: Apache-2.0
//
// REMIX files from format 2 on: the image, packed. Each new table of a partition makes the store write the partition's
// REMIX again, so REMIX files are a large part of all bytes written. The file leaves out the cursor offsets, which
// follow from the tables, and compresses the rest column by column: an entry takes about two bytes in the file, and
// five to six in the plain image. docs/FORMAT.md has the layout. This module knows where the parts of an image are, not
// their meaning.
//
// In format 4 the columns go over the segments of one page at a time, and a directory at the end of the file tells
// where the pages are. So a reader can unpack one page alone (remix/paged.h). Views of less than REMIX_PAGED_FROM
// segments have no pages.
#ifndef REMIX_PACK_H
#define REMIX_PACK_H

#include "base/zmem.h"
#include "remix/state.h"

// Segments of a page: all pages of a view but the last one have so many, or twice as many (large pages). A page takes
// about 4 KiB in the file, so most take one or two pages of the disk. Readers would read and unpack most of a larger
// one in vain; smaller ones make larger directories.
#define REMIX_PAGE_SEGS 64u
#define REMIX_PAGE_MOST (2 * REMIX_PAGE_SEGS)               // segments of a page that readers take, at most
#define REMIX_PAGED_FROM 256u                               // segments of a view whose file has pages, at least
extern _Atomic uint32_t remix_paged_from, remix_page_segs;  // the same; tests change both. Relaxed

// Makes the file of an image of `len` bytes. The image's header must be right. The caller frees *file_out with
// mem_free.
// large_pages: its pages have twice as many segments (at most REMIX_PAGE_MOST), and short columns are not compressed.
// That takes less time, and a few bytes more. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status remix_pack(const uint8_t *image, size_t len, bool large_pages, uint8_t **file_out,
                                          size_t *len_out);
// Makes the image of such a file over these tables. The caller has verified the file's checksum, and checks the image:
// it is safe to read, and its cursor offsets walk each table from beginning to end, but all else may be wrong. The
// image is the first *len_out bytes of *map_out; the caller frees *map_out with mem_unmap. The image's header is
// that of format 2 or 3. Fails with REMIXDB_CORRUPT or REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status remix_unpack(const uint8_t *file, size_t len, struct sst *const *runs, uint32_t nr_runs,
                                            const char *path, struct mem_map *map_out, size_t *len_out);

// Maps memory for what a file describes. A size_t may not count so many bytes. Fails with REMIXDB_NOMEM.
MUST_CHECK static inline enum remixdb_status remix_map(uint64_t size, struct mem_map *out) {
  return mem_map_table(size < SIZE_MAX ? (size_t)size : SIZE_MAX, out);
}

// ---- pages, format 4

bool remix_file_is_paged(const uint8_t *head);  // from the file's header

// A page, as the directory has it.
struct remix_page {
  uint64_t at;    // offset in the file
  uint32_t size;  // bytes in the file
  uint32_t nr_segs, nr_entries;
  uint32_t nr_keys;       // entries that are neither old nor tombstones
  uint32_t anchors_len;   // bytes of its segments' anchors, the first one not counted
  uint64_t sum;           // checksum
  const uint8_t *starts;  // u32 for each run: its cursor offset at the page's beginning
  struct kref anchor;     // the anchor of the page's first segment
};
// Reads the directory, page after page, while `left` is not 0.
struct remix_dir {
  size_t left;       // bytes
  const uint8_t *p;  // the entry of the next page
  // private
  const char *path;
  bool tags;
  uint32_t nr_runs, segs;
  uint64_t at, end, entries, keys, anchors;
  struct kref last;
};
// head: the file's header up to the segments. dir: the file's bytes from the directory on, without the file's checksum;
// they must live as long as the pages that are read. Checks the directory's checksum. Both calls fail with
// REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status remix_dir_begin(struct remix_dir *d, const uint8_t *head, const uint8_t *dir, size_t len,
                                               const char *path);
// Checks that pages fill the file, that their anchors ascend, and that their counts add up to the header's.
MUST_CHECK enum remixdb_status remix_dir_next(struct remix_dir *d, struct remix_page *out);
// Bytes of a page's image: its segments, the ends of their anchors, and the anchors. The first anchor is empty.
static inline size_t remix_page_image(const struct remix_page *p, const struct remix_layout *lay) {
  return (size_t)p->nr_segs * lay->stride + 4 * ((size_t)p->nr_segs + 1) + p->anchors_len;
}
// The state of unpacking, for one thread at a time. NULL: REMIXDB_NOMEM. NULL may be destroyed.
ZSTD_DCtx *remix_unpacker_create(void);
void remix_unpacker_destroy(ZSTD_DCtx *z);
// Unpacks page `number` of x to `image`. bytes: p->size bytes of the file. seen: for each run the number of its
// entries; the caller checks that these end where the next page begins. Checks the page's checksum. Fails as
// remix_unpack does.
MUST_CHECK enum remixdb_status remix_page_unpack(const struct remix_page *p, const uint8_t *bytes,
                                                 const struct remix *x, uint64_t number, ZSTD_DCtx *z, uint8_t *image,
                                                 uint64_t *seen);
#endif
