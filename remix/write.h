// SPDX-License-Identifier: Apache-2.0
//
// Writes a REMIX file: segments one after the other, then anchors, header and checksum. This module knows the format;
// the caller gives the entries in order. The file is put together in memory, because the header has the sizes of the
// parts after it, and the checksum covers the header.
#ifndef REMIX_WRITE_H
#define REMIX_WRITE_H

#include "remix/remix.h"
#include "table/packing.h"

// Arrays of entries, all of the same length. The entries at the beginning become a segment.
struct remix_entries {
  const uint8_t *sel;    // selectors, with the runs of the new view
  const uint8_t *tag;    // ignored without tags
  const uint32_t *dbit;  // absolute discriminating bits (byte << 4 | b), or REMIX_SAME; the bit of the segment's first
                         // entry is ignored
};

struct remix_bytes {
  uint8_t *p;
  size_t len, cap;
};

struct remix_write {
  const struct sst_ctx *ctx;
  struct blkio_queue *queue;
  uint64_t number;
  struct packing *pack;  // the file becomes a part of this pack; NULL: a file of its own. Set after remix_write_start
  bool tags;
  uint32_t nr_runs;
  struct sst *const *runs;  // the caller's
  struct remix_layout lay;
  sst_pos pos[REMIX_RUNS_MAX];  // the position of each run after the last segment
  struct remix_bytes image, anchors, anchor_offs;
  uint32_t nr_segs;
  uint64_t nr_entries, nr_keys;
  bool expires;      // some entry has REMIX_EXPIRES
  bool large_pages;  // see remix_pack. Set after remix_write_start
};

// Begins a file of this number over these runs, from the oldest to the newest; w takes no references to them. The
// caller zeroes w first, and always ends with remix_write_fini. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status remix_write_start(struct remix_write *w, const struct sst_ctx *ctx,
                                                 struct blkio_queue *q, uint64_t number, struct sst *const *runs,
                                                 uint32_t nr_runs, bool tags);
void remix_write_fini(struct remix_write *w);
// Writes a segment of nr entries, 1 <= nr <= REMIX_SEG. The first entry is not an old version. anchor: as R3 demands;
// the file's first segment always gets an empty anchor. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status remix_write_segment(struct remix_write *w, const struct remix_entries *e, uint32_t nr,
                                                   struct kref anchor);
// Copies segments [from, to) of another view. run_map[r] is the new number of that view's run r. The runs of all copied
// entries have new numbers below nr_runs. anchor: the anchor of segment `from`; the other segments keep their anchors.
// Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status remix_write_copy(struct remix_write *w, const struct remix *x, uint32_t from,
                                                uint32_t to, const uint8_t *run_map, struct kref anchor);
// Copies all segments of another view. Some of its runs, the leaving ones, lie together in age and have become
// `nr_tables` tables of this view, from number `first` on. run_map gives a leaving run a number that is not below
// nr_runs. The old entries of such runs are left out; each other one becomes the next record of those tables. Fails
// with REMIXDB_NOMEM, or with REMIXDB_CORRUPT if the tables have fewer records.
MUST_CHECK enum remixdb_status remix_write_moved(struct remix_write *w, const struct remix *x, const uint8_t *run_map,
                                                 uint32_t first, uint32_t nr_tables);
// Writes and syncs the file, or adds the part to the pack; *size_out: its size; *print_out: its fingerprint. On failure
// no file is left. Fails with REMIXDB_NOMEM, REMIXDB_IO or REMIXDB_NOSPACE.
MUST_CHECK enum remixdb_status remix_write_finish(struct remix_write *w, uint64_t *size_out, uint64_t *print_out);
// The same for a whole image, which the caller has made. pack: as above.
MUST_CHECK enum remixdb_status remix_write_image(const struct sst_ctx *ctx, struct blkio_queue *q, uint64_t number,
                                                 struct packing *pack, const uint8_t *image, size_t image_size,
                                                 bool large_pages, uint64_t *size_out, uint64_t *print_out);

// remix_bytes_reserve makes room for more bytes after len; remix_bytes_put appends bytes. Both fail with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status remix_bytes_reserve(struct remix_bytes *a, size_t more);
MUST_CHECK enum remixdb_status remix_bytes_put(struct remix_bytes *a, const void *p, size_t len);
#endif
