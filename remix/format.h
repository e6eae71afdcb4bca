// SPDX-License-Identifier: Apache-2.0
//
// A REMIX file and its image in memory: magic, limits, and where things are in a segment. docs/FORMAT.md has the
// layout.
#ifndef REMIX_FORMAT_H
#define REMIX_FORMAT_H

#include "lib.h"

#define REMIX_SEG 32u
#define REMIX_RUNS_MAX 32u
#define REMIX_RUN 0x1Fu   // selector: the run,
#define REMIX_TOMB 0x40u  // a tombstone,
#define REMIX_OLD 0x80u   // not the newest version of its key

#define REMIX_BIT_SAME 0xFFFFu
#define REMIX_BIT_FAR 0xFFFEu
#define REMIX_BYTE_MAX 4094u  // the farthest byte behind the base that is stored (base/blind.h searches by these)

#define REMIX_MAGIC "RDBREMIX"
#define REMIX_FORMAT 2u  // 1: the file is the image itself
#define REMIX_HEAD 104u  // fixed part of the header; the runs' table numbers (u64) follow, then zeros up to REMIX_ALIGN
#define REMIX_ALIGN 64u
#define REMIX_SEG_ALIGN 16u  // of a segment's size: whole lines would cost up to a third more memory and save little
#define REMIX_FLAG_TAGS 1u   // of the file
#define REMIX_SEG_FAR 1u     // of a segment: some entry is REMIX_BIT_FAR

// Where things are in a segment: tags, selectors, head (u8 count, u8 flags, u16 base), cursor offsets, discriminating
// bits. What get needs comes first.
struct remix_layout {
  uint32_t sel, head, offs, dbits, stride;
};
static inline struct remix_layout remix_layout(uint32_t nr_runs, bool tags) {
  struct remix_layout l;
  l.sel = tags ? REMIX_SEG : 0;
  l.head = l.sel + REMIX_SEG;
  l.offs = l.head + 4;
  l.dbits = l.offs + 4 * nr_runs;
  l.stride = (uint32_t)align_up(l.dbits + 2 * REMIX_SEG, REMIX_SEG_ALIGN);
  return l;
}
static inline uint64_t remix_segs_off(uint32_t nr_runs) { return align_up(REMIX_HEAD + 8ull * nr_runs, REMIX_ALIGN); }
// The tag of a key: the 8 highest bits of its hash64.
static inline uint8_t remix_tag(uint64_t hash) { return (uint8_t)(hash >> 56); }
#endif
