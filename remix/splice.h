// SPDX-License-Identifier: Apache-2.0
//
// Splices new keys into a view. The tags and discriminating bits of the old entries between two new keys stay true, and
// the splice copies them. So a splice only looks for the places of the new keys, and reads few old keys.
//
// A new key K belongs to the last segment whose anchor is not greater. In that segment the blind search gives one
// candidate C, and the lowest bit d at which K differs from C gives K's place (the String B-tree's insertion: Ferragina
// and Grossi, 1999). If K > C, the entry before K's place differs from K at d. The entry after K's place differs from K
// at the bit at which it differed from the entry before. If K < C, it is the other way round. So C's key alone gives
// both new discriminating bits. All keys of a segment begin with its anchor, unless they are less than its first key; a
// key before the next anchor shares as many bytes with that anchor as the segment's last key did. So anchors stay, too.
//
// The splice copies a segment that gets new keys, or loses a run, into a window. If the window's entries fill segments
// well, the splice cuts the window into segments and writes them. If not, it also copies the next old segment into the
// window, at most SPLICE_ABSORB segments in a row, so that segments do not become smaller and smaller. While the whole
// view has SPLICE_FILL entries in a segment on average, half-full segments are accepted; after that only segments with
// at least SPLICE_FILL. A new cut or a join may need one more key. The anchor of a new segment needs the key of the
// segment's first entry. To join an old segment to the window, the splice needs the last key before the segment's first
// key, because the view has only the common prefix of the two.
//
// Keys come from sst_keys_at: from compressed keys, or from data with readahead. If there are few new keys for the
// data, the splice reads single blocks, for a batch of new keys at a time.
#ifndef REMIX_SPLICE_H
#define REMIX_SPLICE_H

#include "remix/fresh.h"
#include "remix/write.h"

#define SPLICE_FILL 28u   // entries that a segment should have
#define SPLICE_ABSORB 8u  // old segments that a window takes in, in a row

struct remix_splice {
  const struct remix *old;  // has segments
  uint32_t keep;            // bit r: run r stays
  const uint8_t *run_map;   // the new number of each run that stays; REMIX_RUNS_MAX or more means that the run leaves
  uint32_t nr_kept;         // runs that stay: the new view's lowest runs; the new tables follow
  struct remix_fresh *fresh;
  struct remix_write *write;  // started; the caller finishes it
  struct blkio_queue *queue;
  bool dense;                  // new keys come into most segments
  bool probe;                  // reads blocks singly in tables without compressed keys
  _Atomic uint64_t *progress;  // may be NULL
  // out: the splice adds to these, which are as in remix_build
  uint64_t data_pages_read, ckb_bytes_read, key_bytes_compared, keys_read, entries_copied;
};
// Writes all segments of the new view. Fails with REMIXDB_NOMEM, REMIXDB_IO or REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status remix_splice(struct remix_splice *s);
#endif
