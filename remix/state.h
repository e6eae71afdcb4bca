// SPDX-License-Identifier: Apache-2.0
//
// A REMIX in memory: what remix.h and the files of remix/ share.
#ifndef REMIX_STATE_H
#define REMIX_STATE_H

#include "base/anchors.h"
#include "base/set32.h"
#include "remix/format.h"
#include "sst.h"

// What was looked at, for tests: counted by what is compiled with REMIX_COUNTERS.
struct remix_counters {
  _Atomic uint64_t key_reads;     // keys of entries read by a get or a seek,
  _Atomic uint64_t key_compares;  // and compared in full
  _Atomic uint64_t records;       // records given by remix_record
  _Atomic uint64_t segments;      // segments cursors came to
  _Atomic uint64_t probes;        // looks at a count of live entries, to pass segments
};
extern struct remix_counters remix_counters;
#if defined(REMIX_COUNTERS)
#define REMIX_COUNT(field) ((void)atomic_fetch_add_explicit(&remix_counters.field, 1, memory_order_relaxed))
#else
#define REMIX_COUNT(field) ((void)0)
#endif

struct remix;

// Hears that a REMIX has enough scan debt. due is called from any reader's thread, inside an epoch or not, while the
// REMIX is alive, and again with each debt that is added after that. It must not wait.
struct remix_watch {
  void (*due)(void *arg, struct remix *x);
  void *arg;
};

struct remix {
  const struct sst_ctx *ctx;
  uint64_t number;
  char *path;
  struct sst **runs;  // nr_runs, oldest first; each referenced
  uint32_t nr_runs;
  uint32_t nr_segs;
  uint64_t nr_entries;  // all versions
  uint64_t nr_keys;     // newest versions that are not tombstones
  bool tags;
  uint64_t file_size;
  uint8_t *image;  // the view as docs/FORMAT.md has it, unpacked and checked
  size_t image_size;
  // private below: where things are in the image, and what is known beside it
  struct remix_index *index;
  _Atomic uint32_t refs;
  _Atomic bool obsolete;
  // Jumps: blocks that scans have read from disk only because there are several runs. A scan reads a block where it
  // begins, and then what follows it in the same run; when it comes to a block of another run, that is a jump. In a
  // young view, which is read beside another, where it begins is one, too. Both relaxed; scan_debt_due is set by what
  // watch->due calls, 0 at first.
  _Atomic uint64_t scan_debt, scan_debt_due;
  const struct remix_watch *watch;  // NULL: nobody wants to know
};

// The segments, each of remix_layout.stride bytes.
static inline const uint8_t *remix_segs(const struct remix *x) { return x->image + remix_segs_off(x->nr_runs); }

// Where things are in the image, and what is known beside it.
struct remix_index {
  const uint8_t *segs;
  struct remix_layout lay;
  bool young;  // tombstones are live
  struct anchors anchors;
  // Per segment, and one more: live entries in all segments before it. A stretch without any, or any number of keys, is
  // passed by a search in these.
  uint32_t *live;
};
#endif
