// SPDX-License-Identifier: Apache-2.0
//
// Writing a REMIX file: segments one after the other, then anchors, header and checksum. Knows the format and nothing
// of where the order of the entries comes from. The file is put together in memory, because its checksum covers the
// header, which counts what follows it.
#ifndef REMIX_WRITE_H
#define REMIX_WRITE_H

#include "remix/remix.h"

// Entries of a segment as the caller has them: arrays of the same length, of which a part becomes a segment.
struct remix_entries {
  const uint8_t *sel;  // REMIX_ selector, with the runs of the new view
  const uint8_t *tag;  // not looked at without tags
  const uint32_t
      *dbit;  // absolute discriminating bit (byte << 4 | b), or REMIX_SAME; that of the first is not looked at
};

struct remix_bytes {
  uint8_t *p;
  size_t len, cap;
};

struct remix_write {
  const struct sst_ctx *ctx;
  struct blkio_queue *queue;
  uint64_t number;
  bool tags;
  uint32_t nr_runs;
  struct sst *const *runs;  // the caller's
  struct remix_layout lay;
  sst_pos pos[REMIX_RUNS_MAX];  // of each run, behind the last segment
  struct remix_bytes image, anchors, anchor_offs;
  uint32_t nr_segs;
  uint64_t nr_entries, nr_keys;
};

// Begins a file of this number over these runs (oldest first; they are not referenced). REMIXDB_NOMEM. Zero w first; in
// any case end with remix_write_fini.
MUST_CHECK enum remixdb_status remix_write_start(struct remix_write *w, const struct sst_ctx *ctx,
                                                 struct blkio_queue *q, uint64_t number, struct sst *const *runs,
                                                 uint32_t nr_runs, bool tags);
void remix_write_fini(struct remix_write *w);
// A segment of nr entries, 1 <= nr <= REMIX_SEG, the first of which is not an old version. anchor: R3; that of the
// file's first segment is empty whatever is given. REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status remix_write_segment(struct remix_write *w, const struct remix_entries *e, uint32_t nr,
                                                   struct kref anchor);
// Segments [from, to) of another view as they are, with the runs that it has renamed: run_map[r] is the new number of
// its run r, below nr_runs; all of its entries' runs are among those. anchor: of the first of them; the others keep
// theirs. REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status remix_write_copy(struct remix_write *w, const struct remix *x, uint32_t from,
                                                uint32_t to, const uint8_t *run_map, struct kref anchor);
// All segments of another view, some of whose runs have become this one's last tables, from number `first` on, without
// a record less or more: an entry of a run that run_map gives no number below nr_runs is the next record of these, in
// turn. REMIXDB_NOMEM; REMIXDB_CORRUPT when they have fewer records.
MUST_CHECK enum remixdb_status remix_write_moved(struct remix_write *w, const struct remix *x, const uint8_t *run_map,
                                                 uint32_t first);
// Writes and syncs the file; *size_out: its size. On failure no file is left. REMIXDB_NOMEM, REMIXDB_IO,
// REMIXDB_NOSPACE.
MUST_CHECK enum remixdb_status remix_write_finish(struct remix_write *w, uint64_t *size_out);

// Room for more bytes behind len, and a copy of them there. REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status remix_bytes_reserve(struct remix_bytes *a, size_t more);
MUST_CHECK enum remixdb_status remix_bytes_put(struct remix_bytes *a, const void *p, size_t len);
#endif
