// SPDX-License-Identifier: Apache-2.0
//
// Gathering: the blocks that a cursor is about to need are read in one trip to the disk. A REMIX knows from its
// selectors, before it reads anything, which records of which runs come next. So a scan waits for the disk twice: for
// the block that its seek compares with, and for all other blocks together. (A merging iterator learns a run's next
// block only when it comes there.)
//
// A gather begins when a cursor misses a block while reads come from the disk (blkio_cold). It lists the blocks of the
// next entries that neither the cache nor the cursor has. The next entries of a run are neighbours in its table, so
// each run mostly needs one read. The blocks go into readahead memory of the run's hold. If a run needs a second read,
// its blocks go into the cache.
//
// Cursors that move side by side (`beside`), of a young view and of the older one, gather for each other.
//
// The least that a seek of an absent key reads. In memory a view has no key, only bits of keys: those that tell its
// entries apart. They lead to the candidate. The absent key comes before the candidate or behind it, each about as
// often. A bit decides that, and nobody knows the bit without a read. The record that the seek comes to is the
// candidate's or its neighbour's, and with n runs these two are in one block once in n times. So a seek that reads one
// block after the other makes 1.5 - 1/(2n) reads in as many trips, and one that reads both at once makes 2 - 1/n reads
// in one trip. A second trip costs more than half a read of a batch, so the seek reads both at once. A young view adds
// the read of its candidate, in the same trip. Nearly always the candidate tells that the young view has no key between
// the sought key and the found one (remix_none_between). So the candidate's neighbour is read only if the candidate
// does not tell this.
//
// Invariants
//   G1  A seek gathers only blocks that tell the place of its key. With an `expect` it also gathers the blocks of the
//       entries that the caller is going to read.
//   G2  The first step gathers as many entries as the last scans read (`reach`), or as `expect` tells. Each later
//       gather of the scan doubles the entries, up to GATHER_ENTRIES, so that long scans read large pieces.
//   G3  A gather reads a block without any of these entries only if the block fills a hole of at most GATHER_HOLE pages
//       between two blocks that have some.
#ifndef REMIX_GATHER_H
#define REMIX_GATHER_H

#include "remix/position.h"

#define GATHER_ENTRIES 1024u  // entries of a gather, at most; longer scans read each run ahead separately
#define GATHER_PAGES 256u     // pages of a gather, about
#define GATHER_FEW 8u         // entries of a gather if nothing is known of the scan

// The cursor's seek has found its candidate, entry `cand` of segment s, number c->front_seg. The candidate's block is
// missing. Reads it together with the other blocks that the seek needs. absent: the view does not have the key. Then
// the place is the candidate or, as often, the entry after it (backward: before it).
void gather_seek(struct remix_cursor *c, struct kref key, const uint8_t *s, uint32_t cand, bool absent);
// The block of the cursor's entry is missing. Reads it together with those of the entries that come next.
void gather_steps(struct remix_cursor *c);
#endif
