// SPDX-License-Identifier: Apache-2.0
//
// The layout of a REMIX: limits, the header's offsets, and where the parts of a segment are. docs/FORMAT.md is the full
// description. A plain image has this layout; a narrow one has shorter segments (remix/narrow.h). A file of a later
// format than 1 has the same header and a different part after it. All numbers are little-endian.
#ifndef REMIX_FORMAT_H
#define REMIX_FORMAT_H

#include "kv.h"

#define REMIX_SEG 32u       // entries of a segment, at most
#define REMIX_RUNS_MAX 32u  // runs of a view

// A selector is one byte.
#define REMIX_RUN 0x1Fu      // the run
#define REMIX_EXPIRES 0x20u  // the record expires; from format 3 on, before 0
#define REMIX_TOMB 0x40u     // a tombstone
#define REMIX_OLD 0x80u      // not the newest version of its key
#define REMIX_ERASED 0x60u   // both bits: a range deletion has deleted the record (remix/remix.h, R6)

#define REMIX_MAGIC "RDBREMIX"
// In format 1 the file is the image itself. In formats 2 and 3 it is the image, packed: 3 if some record expires, or is
// erased. In format 4 it is packed in pages (remix/pack.h).
#define REMIX_FORMAT 4u
#define REMIX_FORMAT_PAGED 4u
#define REMIX_FORMAT_KINDS 3u
#define REMIX_FORMAT_PLAIN 2u
#define REMIX_ALIGN 64u        // alignment of the segments' offset
#define REMIX_SEG_ALIGN 16u    // alignment of a segment's size: whole cache lines would cost up to a third more memory
#define REMIX_NARROW_ALIGN 1u  // the same in a narrow image
#define REMIX_FLAG_TAGS 1u     // header flag: entries have tags
#define REMIX_FLAG_KINDS 2u    // in files of format 4: some record expires, or is erased
#define REMIX_SEG_FAR 1u       // segment flag: some discriminating bit is BLIND_FAR (base/blind.h)
// segment flags of a narrow image, never of a file (remix/narrow.h)
#define REMIX_SEG_WIDE 2u     // its discriminating bits are wide
#define REMIX_SEG_NIBBLES 4u  // its selectors are nibbles
#define REMIX_SEG_OLD 8u      // some entry is old
#define REMIX_SEG_DENSE 16u   // its discriminating bits are dense
#define REMIX_SEG_GROUP 5u    // no flag: the flags from this bit on are its number in its group

// Offsets in the header.
enum {
  REMIX_HEAD_MAGIC = 0,         // u8[8]
  REMIX_HEAD_FORMAT = 8,        // u32
  REMIX_HEAD_FLAGS = 12,        // u32
  REMIX_HEAD_STORE_ID = 16,     // u64
  REMIX_HEAD_NUMBER = 24,       // u64, of the file
  REMIX_HEAD_SIZE = 32,         // u64, of the image; in a file, of the file
  REMIX_HEAD_RUNS = 40,         // u32, how many
  REMIX_HEAD_SEGS = 44,         // u32, how many
  REMIX_HEAD_ENTRIES = 48,      // u64, how many
  REMIX_HEAD_KEYS = 56,         // u64, entries that are neither old nor tombstones
  REMIX_HEAD_STRIDE = 64,       // u32, bytes of a segment
  REMIX_HEAD_ZERO = 68,         // u32
  REMIX_HEAD_SEGS_AT = 72,      // u64, offset of the segments; in a file of format 4 that of the directory
  REMIX_HEAD_OFFS_AT = 80,      // u64, offset of the anchors' offsets: u32[segments + 1]
  REMIX_HEAD_ANCHORS_AT = 88,   // u64, offset of the anchors' bytes
  REMIX_HEAD_ANCHORS_LEN = 96,  // u64
  REMIX_HEAD_TABLES = 104,      // u64 for each run: its table's number; then zeros up to REMIX_ALIGN
  REMIX_SUM = 8,                // size of the checksum at the end, u64
};

// The bits of a selector that a record's kind gives.
static inline uint8_t remix_sel_kind(uint32_t kind) {
  return (uint8_t)((kind & KV_TOMB ? REMIX_TOMB : 0) | (kind & KV_EXPIRES ? REMIX_EXPIRES : 0));
}

// Where the parts of a segment are: tags, selectors, head, cursor offsets, discriminating bits, in this order. A get
// mostly needs the parts at the segment's beginning, one cursor offset, and the row of its group.
struct remix_layout {
  uint16_t sel, head, offs, dbits;
  uint32_t stride;
  uint16_t row;       // bytes of the row before each group of REMIX_GROUP segments (remix/narrow.h); 0: no groups
  uint32_t group;     // bytes of REMIX_GROUP segments and their row
  uint32_t off_mask;  // no groups: the bits of a cursor offset
  uint16_t inverse;   // groups: 65536 / radix, rounded up; radix: the divisor of a distance, from 2 on
  uint8_t beyond;     // groups: 256 - radix
  uint8_t off_size;   // bytes of a cursor offset, or, with groups, of its distance
  bool narrow;        // the image is narrow; false in files
  bool nibbles;       // a segment has room for selectors of a nibble each
  bool wide;          // a segment has wide discriminating bits
  bool tables;        // a segment has room for discriminating bits of a nibble each, and for their table
};
#define REMIX_GROUP 8u    // segments of a group
#define REMIX_BASE 2u     // bytes of a block's number in a row
#define REMIX_WALK 0xFFu  // the distance of an offset that has to be counted
// The widths of cursor offsets: `size` bytes each, or, with a radix, a distance in a group.
struct remix_offs {
  uint32_t size, radix;
};
// The room that a segment has for discriminating bits: wide ones, bytes, or nibbles.
enum remix_room { REMIX_ROOM_WIDE, REMIX_ROOM_BYTES, REMIX_ROOM_NIBBLES };
#define REMIX_NIBBLES 16u  // bytes of selectors, or of discriminating bits, that are nibbles
#define REMIX_LISTED 32u   // bytes of an element of a narrow image's list
// Offsets in a segment's head.
enum {
  REMIX_SEG_NR = 0,     // u8, entries
  REMIX_SEG_FLAGS = 1,  // u8
  REMIX_SEG_BASE = 2,   // u16, bytes that all keys share; dbits count from there
  REMIX_SEG_HEAD = 4,   // size
  REMIX_SEG_TABLE = 4,  // u16, if `tables`: the table of the bits that are nibbles; 0: the bits are not
};
static inline struct remix_layout remix_layout_of(uint32_t nr_runs, bool tags, bool narrow, bool nibbles,
                                                  enum remix_room room, struct remix_offs offs) {
  struct remix_layout l;
  const uint32_t off_size = offs.radix ? 1 : offs.size;
  l.narrow = narrow;
  l.nibbles = nibbles;
  l.wide = room == REMIX_ROOM_WIDE;
  l.tables = room == REMIX_ROOM_NIBBLES;
  l.row = (uint16_t)(offs.radix ? REMIX_BASE * nr_runs : 0);
  l.beyond = (uint8_t)(256 - offs.radix);
  l.inverse = offs.radix ? (uint16_t)((0x10000 + offs.radix - 1) / offs.radix) : 0;
  l.off_size = (uint8_t)off_size;
  l.off_mask = UINT32_MAX >> (32 - 8 * off_size);
  l.sel = tags ? REMIX_SEG : 0;
  l.head = (uint16_t)(l.sel + (nibbles ? REMIX_NIBBLES : REMIX_SEG));
  l.offs = (uint16_t)(l.head + REMIX_SEG_HEAD + (l.tables ? 2 : 0));
  l.dbits = (uint16_t)(l.offs + off_size * nr_runs);
  const uint32_t bits = l.tables ? REMIX_NIBBLES : l.wide ? 2 * REMIX_SEG : REMIX_SEG;
  l.stride = (uint32_t)align_up(l.dbits + bits, narrow ? REMIX_NARROW_ALIGN : REMIX_SEG_ALIGN);
  l.group = REMIX_GROUP * l.stride + l.row;
  return l;
}
static inline struct remix_layout remix_layout(uint32_t nr_runs, bool tags) {
  return remix_layout_of(nr_runs, tags, false, false, REMIX_ROOM_WIDE, (struct remix_offs){.size = 4});
}
// The first segment of a group of those that begin at segs; a row is before it.
static inline const uint8_t *remix_group_at(const struct remix_layout *l, const uint8_t *segs, uint32_t group) {
  return segs + (size_t)group * l->group;
}
static inline const uint8_t *remix_seg_at(const struct remix_layout *l, const uint8_t *segs, uint32_t seg) {
  return remix_group_at(l, segs, seg / REMIX_GROUP) + (size_t)(seg % REMIX_GROUP) * l->stride;
}
// Prefetches the row before the first segment of a group.
static inline void remix_row_prefetch(const uint8_t *first, uint32_t row) {
  prefetch(first - 1);
  prefetch(first - row);
}
// Prefetches a segment, the first lines first. Nearly all narrow ones have 65 to 128 bytes.
static inline void remix_stride_prefetch(const uint8_t *s, uint32_t stride) {
  prefetch(s);
  prefetch(s + CACHE_LINE);
  if (unlikely(stride > 2 * CACHE_LINE))
    for (uint32_t o = 2 * CACHE_LINE; o < stride; o += CACHE_LINE) prefetch(s + o);
}
// Bytes of nr segments and their rows.
static inline size_t remix_segs_size(const struct remix_layout *l, uint32_t nr) {
  return (size_t)nr * l->stride + (size_t)((nr + REMIX_GROUP - 1) / REMIX_GROUP) * l->row;
}
// The fields of a segment s.
static inline uint32_t remix_seg_nr(const struct remix_layout *l, const uint8_t *s) {
  return s[l->head + REMIX_SEG_NR];
}
static inline uint32_t remix_seg_flags(const struct remix_layout *l, const uint8_t *s) {
  return s[l->head + REMIX_SEG_FLAGS];
}
static inline uint32_t remix_seg_base(const struct remix_layout *l, const uint8_t *s) {
  return load16le(s + l->head + REMIX_SEG_BASE);
}
// A layout without groups.
static inline uint32_t remix_seg_off(const struct remix_layout *l, const uint8_t *s, uint32_t run) {
  return load32le(s + l->offs + l->off_size * run) & l->off_mask;  // discriminating bits follow
}

// Offset of the segments.
static inline uint64_t remix_segs_off(uint32_t nr_runs) {
  return align_up(REMIX_HEAD_TABLES + 8ull * nr_runs, REMIX_ALIGN);
}
// The tag of a key: the 8 highest bits of its hash64.
static inline uint8_t remix_tag(uint64_t hash) { return (uint8_t)(hash >> 56); }
#endif
