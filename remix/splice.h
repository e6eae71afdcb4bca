// SPDX-License-Identifier: Apache-2.0
//
// Splicing new keys into a view: what is recorded of the old entries stays true between two new ones and is copied, so
// that only the places of the new keys have to be found, and only a few old keys to be read.
//
// A new key K lies in the segment whose anchor is the last not greater. There the blind search gives one candidate C;
// the first bit at which K differs from C gives K's place (the String B-tree's insertion: Ferragina and Grossi, 1999).
// If that bit is d and K > C, the entry before K's place differs from K at d, and the one behind K's place differs from
// K where it differed from the entry before it; if K < C, the other way round. So both new discriminating bits are
// known with C's key alone. All keys of a segment begin with its anchor, if they are less than its first key, and
// whatever lies before the next anchor shares as much with it as the segment's last key did: anchors stay what they
// are, too.
//
// A segment that new keys come into, or runs leave, goes into a window. When what is in the window fills segments well
// it is cut in segments and written; when not, the next old segment is taken in as well (at most SPLICE_ABSORB in a
// row), so that segments do not become smaller and smaller: as long as the whole view holds SPLICE_FILL entries in a
// segment on average, half full ones pass; then none with fewer than that. Two more keys are read where segments are
// cut or joined anew: that of an entry that has become the first of its segment, for the anchor, and the last one
// before an old segment's first, of which only the common prefix is recorded.
//
// Keys are read through sst_keys_at: from compressed keys, or from data that is read ahead. When there are few new keys
// for the data there is, blocks are read singly, a batch of new keys at a time.
#ifndef REMIX_SPLICE_H
#define REMIX_SPLICE_H

#include "remix/fresh.h"
#include "remix/write.h"

#define SPLICE_FILL 28u   // entries
#define SPLICE_ABSORB 8u  // segments

struct remix_splice {
  const struct remix *old;  // has segments
  uint32_t keep;            // bit r: run r stays
  const uint8_t *run_map;   // the new number of each run that stays, REMIX_RUNS_MAX or more for those that leave
  uint32_t nr_kept;         // of the new view's runs: the new tables follow
  struct remix_fresh *fresh;
  struct remix_write *write;  // started; what it is not given is the caller's to finish
  struct blkio_queue *queue;
  bool dense;                  // new keys come into most segments
  bool probe;                  // blocks of tables without compressed keys are read singly
  _Atomic uint64_t *progress;  // may be NULL
  // out: added to
  uint64_t data_pages_read, ckb_bytes_read, key_bytes_compared, keys_read, entries_copied;
};
// Writes all segments of the new view. REMIXDB_NOMEM, REMIXDB_IO, REMIXDB_CORRUPT.
MUST_CHECK enum remixdb_status remix_splice(struct remix_splice *s);
#endif
