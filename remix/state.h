// SPDX-License-Identifier: Apache-2.0
//
// A REMIX in memory: the part of its state that remix.h and the files of remix/ share.
#ifndef REMIX_STATE_H
#define REMIX_STATE_H

#include <stddef.h>

#include "base/anchors.h"
#include "base/blind.h"
#include "base/set32.h"
#include "remix/format.h"
#include "sst.h"

// Counters for tests, in builds with REMIX_COUNTERS.
struct remix_counters {
  _Atomic uint64_t key_reads;     // keys of entries that a get or a seek read
  _Atomic uint64_t key_compares;  // keys that it compared in full
  _Atomic uint64_t records;       // records that remix_record gave
  _Atomic uint64_t segments;      // segments that cursors came to
  _Atomic uint64_t probes;        // looks at a segment's live entries, or at a rank, to pass segments
};
extern struct remix_counters remix_counters;
#if defined(REMIX_COUNTERS)
#define REMIX_COUNT(field) ((void)atomic_fetch_add_explicit(&remix_counters.field, 1, memory_order_relaxed))
#else
#define REMIX_COUNT(field) ((void)0)
#endif

struct remix;
struct remix_value_debt;
struct remix_lapsed;

// A watch of scan debt and value debt. When a REMIX has enough of one, a reader's thread calls `due`, inside an epoch
// or not; the REMIX is alive meanwhile. After the first call, each further jump calls `due` again. `due` must not wait.
struct remix_watch {
  void (*due)(void *arg, struct remix *x);
  void *arg;
};

struct remix {
  // One cache line has all that a reader reads first. The fields `index`, `paged` and `of` are private.
  struct sst **runs;  // nr_runs tables, from the oldest to the newest; each referenced
  uint32_t nr_runs;
  uint32_t nr_segs;  // 0 if it is paged
  struct remix_index *index;
  struct remix_paged *paged;  // remix/paged.h; NULL: it is whole
  struct remix *of;           // it is a page of this REMIX; else NULL
  const struct sst_ctx *ctx;
  bool tags;
  bool unfiled;  // made in memory (remix_erase): no file has it, and the file of its number has the view before it
  uint64_t number;
  struct pack_part *part;  // the file is this part of a pack; NULL: it is a file of its own
  uint64_t origin;         // the id of the store that wrote the file
  uint64_t print;          // the file's fingerprint: its checksum
  char *path;
  uint64_t nr_entries;  // all versions
  uint64_t nr_keys;     // newest versions that are not tombstones
  uint64_t file_size;
  uint8_t *image;  // the view, unpacked and checked: plain, as docs/FORMAT.md has it, or narrow. NULL: it is paged
  size_t image_size;
  // private below
  size_t paged_memory;            // bytes that it takes, without the pages; 0: it is whole
  void (*fini)(struct remix *x);  // a paged one's: frees what it has for its pages; a page's: frees the page. Else NULL
  _Atomic uint32_t refs;
  _Atomic bool obsolete;
  // Scan debt: jumps, the blocks that scans read from disk only because there are several runs. A scan reads the block
  // where it begins, and then the blocks that follow in the same run; a block of another run is a jump. In a young view
  // the block where a scan begins is a jump, too. The watch sets scan_debt_due, which begins with 0. Both are relaxed.
  _Atomic uint64_t scan_debt, scan_debt_due;
  const struct remix_watch *watch;            // NULL: none
  _Atomic(struct remix_value_debt *) values;  // remix/value_debt.h; NULL: none yet. Published with release
  _Atomic(struct remix_lapsed *) lapsed;      // remix/lapsed.h; NULL: no segment has. Published with release
  _Atomic(uint32_t *) hidden;                 // remix_hidden; NULL until somebody asks. Published with release
};

// Pointers into the image, and facts that the image does not have.
struct remix_index {
  const uint8_t *segs;  // the first segment; lay tells where the others are (remix_seg_at)
  const uint8_t *list;  // the list of a narrow image (remix/narrow.h, N1)
  struct remix_layout lay;
  bool young;  // tombstones are live
  bool plain;  // no record expires
  // The number of live entries before each segment: nr_segs + 1 rising numbers, which seg_rank reads. A cursor searches
  // them to pass segments without live entries, and to skip any number of keys.
  struct rising_line *live;
  struct anchors anchors;  // in the next cache line
};
// Bytes of that array, of a view that is whole or of a page.
static inline size_t remix_live_size(const struct remix *x) {
  return rising_lines((size_t)x->nr_segs + 1) * sizeof(struct rising_line);
}
_Static_assert(sizeof(void *) != 8 || offsetof(struct remix_index, anchors) == CACHE_LINE, "a seek reads two lines");
#endif
