// SPDX-License-Identifier: Apache-2.0
//
// Deletes a range of keys in a view, and does not touch the view's tables: makes a new REMIX over the same runs, and
// erases the range's entries in it (REMIX_ERASED, invariant R6 of remix/remix.h).
#ifndef REMIX_ERASE_H
#define REMIX_ERASE_H

#include "remix/cursor.h"

// The live entries of a key range, and all entries between them.
struct remix_span {
  uint32_t seg, at;        // the first live entry at or after the beginning of the range
  uint32_t to_seg, to_at;  // the first live entry at or after its end; segment nr_segs: there is none
  uint64_t live;           // how many live entries the span has
};
// Finds the span of [from, to). ptr NULL: no bound on this side. c: a cursor that the caller has initialized and ends;
// it is left at any entry of x. Reads one block for each bound, inside an epoch. Fails as a seek does.
MUST_CHECK enum remixdb_status remix_span_find(struct remix_cursor *c, struct remix *x, struct kref from,
                                               struct kref to, struct remix_span *out);

// Makes a REMIX like x in which all entries of the spans are erased. number: its file's number. The call writes and
// syncs the file through the queue; the caller syncs the directory entry. queue NULL: no file is written, the REMIX has
// the number and the fingerprint of x's file, it is `unfiled`, and no version with it may be saved. *out has one
// reference, and no watch. It is young if x is. *bytes_out: the file's size, or 0. On failure no file is left. Fails
// with REMIXDB_NOMEM, REMIXDB_IO or REMIXDB_NOSPACE.
MUST_CHECK enum remixdb_status remix_erase(const struct remix *x, const struct remix_span *spans, uint32_t nr,
                                           struct blkio_queue *queue, uint64_t number, struct remix **out,
                                           uint64_t *bytes_out);
// Makes a REMIX like x, with a file of this number in the directory of another ctx, which lives longer than it. x is
// whole. All else is as for remix_erase.
MUST_CHECK enum remixdb_status remix_file_again(const struct remix *x, const struct sst_ctx *ctx,
                                                struct blkio_queue *queue, uint64_t number, struct remix **out,
                                                uint64_t *bytes_out);
#endif
