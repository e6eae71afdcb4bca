// SPDX-License-Identifier: Apache-2.0
//
// Narrow images: a view as it is in memory. A plain image, which docs/FORMAT.md describes, has two bytes for each
// discriminating bit. Nearly all segments need one: the keys of a segment mostly differ within 16 bytes, and those of
// URLs, which vary in several places, within 28 (dense bits, base/blind.h). A plain selector is a byte. Nearly all
// segments need a nibble of each: there are few runs, and few entries are tombstones, expire or are erased. Old
// versions need no bit: their discriminating bits are SAME. Cursor offsets are shorter, too. Most segments have few
// different bits, near each other: then a bit takes a nibble. So a narrow segment is 64 bytes shorter and more. Files,
// builds and checks know plain images only.
//
// Invariants
//   N1  A narrow image has the parts of the plain one in the same order, with shorter segments, and after the anchors a
//       list of what is too long for a segment. An element of the list has REMIX_LISTED bytes. If a part of a segment
//       lies in the list, the segment has a u32 in its place: the number of the part's first element. Discriminating
//       bits: a segment whose bits can be neither narrow nor dense (base/blind.h) has the flag REMIX_SEG_WIDE and its
//       wide bits in two elements. The bits of any other segment are nibbles, and the head ends in their table; if no
//       table has them, it is 0, and narrow bits lie in an element, or dense ones, with the flag REMIX_SEG_DENSE. Or
//       the layout has room for bytes and no table, and all these segments have narrow or dense bits in place. Or it
//       has room for wide bits, and all segments have wide bits without a flag. Selectors: a segment has the flag
//       REMIX_SEG_NIBBLES if its selectors are nibbles: the runs. Such a segment has the flag REMIX_SEG_OLD if it has
//       old versions. Any other segment has its selectors in an element. Or the layout has room for bytes, and all
//       selectors are bytes. Cursor offsets: the layout has groups (N4), or an offset has the fewest bytes, from 2 on,
//       that hold the ends of all runs. Anchors: the bytes that all but the first share are stored once, behind the
//       others (`cut`, base/anchors.h). Their ends, which lie before them, are rising numbers (base/rising.h), unless
//       anchors are so long that a line of such numbers cannot have them.
//   N2  The layout of a narrow image has room for bits that are nibbles only, if no more than one of NARROW_SHARE
//       segments lacks such bits. It has room for bytes, if no more than one of NARROW_SHARE segments needs wide bits.
//       Otherwise it has room for wide bits. It has room for selectors that are nibbles only, if there are at most
//       NARROW_RUNS runs, and no more than one of NARROW_SHARE segments needs bytes. It has groups if there are at
//       least NARROW_GROUPED runs, none with more than NARROW_BLOCKS pages, if no offset names a record beyond its
//       block's 254th, and if at most one offset in NARROW_WALKED is REMIX_WALK then.
//   N3  The plain image can be made of the narrow one without loss, except for the checksum at its end.
//   N4  Groups: REMIX_GROUP segments, one after the other, are a group; the last one may have fewer. Before its first
//       segment a group has a row: for each run a u16, the number of the block in which the run's cursor offset of that
//       segment lies. A segment has its number in its group in its flags, from bit REMIX_SEG_GROUP on, so its own
//       address tells where the row is. Its offset of a run is a byte, the distance from the row's block: blocks x
//       radix + record. The radix is greater than the record of any offset of the view.
//   N5  A distance that does not fit in the byte is REMIX_WALK. Such an offset is that of the segment before, moved on
//       by the selectors of the run there. The first segment of a group has no such offset.
#ifndef REMIX_NARROW_H
#define REMIX_NARROW_H

#include "remix/state.h"

#define NARROW_SHARE 4u
#define NARROW_RUNS 16u
#define NARROW_GROUPED 3u
#define NARROW_BLOCKS 0xFFFFu
#define NARROW_WALKED 16u

struct narrow_bits;
struct narrow_form {
  struct remix_layout lay;
  size_t size;               // bytes of the image
  uint32_t cut;              // the cut of its anchors
  bool rising;               // their ends are rising numbers
  struct narrow_bits *bits;  // private: one for each segment
};
// Chooses the form of x's narrow image. x's plain image has been checked. head: bytes of the image before the segments,
// 0 for a page. The caller ends the form. Fails with REMIXDB_NOMEM; the form then needs no end.
MUST_CHECK enum remixdb_status remix_narrow_form(const struct remix *x, size_t head, struct narrow_form *out);
void remix_narrow_end(struct narrow_form *form);
// Makes the narrow image at `to`, which has the form's size and the alignment of a u32, and replaces x's image: x and
// its index point into it afterwards.
void remix_narrow(struct remix *x, size_t head, const struct narrow_form *form, uint8_t *to);
// Bytes of the plain image of a whole view.
size_t remix_plain_size(const struct remix *x);
// Makes that image, with zeros in the place of the checksum.
void remix_plain(const struct remix *x, uint8_t *to);
// Makes wide bits, BLIND_WIDE bytes; the first nr bits are used.
void remix_widen(struct blind b, uint32_t nr, uint8_t *to);
// Makes the selectors of a segment: REMIX_SEG bytes.
void remix_sels(const struct remix_index *ix, const uint8_t *s, uint8_t *to);
#endif
