// SPDX-License-Identifier: Apache-2.0
//
// Narrow images: what a view in memory looks like, if it can. A plain image, which docs/FORMAT.md describes, has two
// bytes for each discriminating bit. Nearly all segments need one: the keys of a segment mostly differ within 16 bytes.
// So a narrow segment is 32 bytes shorter. Its cursor offsets are shorter, too. All in all it takes a fifth less.
// Files, builds and checks know plain images only.
//
// Invariants
//   N1  A narrow image has the parts of the plain one in the same order, with shorter segments, and after the anchors a
//       list of wide bits, BLIND_WIDE bytes each. A segment whose bits are not all near (blind_near) has the flag
//       REMIX_SEG_WIDE, and in the place of its bits a u32, the number of its wide bits in that list. Any other segment
//       has narrow bits. A cursor offset has the fewest bytes, from 2 on, that hold the ends of all runs.
//   N2  A view has a narrow image if no more than one of NARROW_SHARE segments needs wide bits; else it stays plain.
//   N3  The plain image can be made of the narrow one without loss, except for the checksum at its end.
#ifndef REMIX_NARROW_H
#define REMIX_NARROW_H

#include "remix/state.h"

#define NARROW_SHARE 4u

// Bytes of the narrow image of x, whose plain image has been checked; 0: it stays plain (N2). head: bytes of the image
// before the segments, 0 for a page.
size_t remix_narrow_size(const struct remix *x, size_t head);
// Makes the narrow image at `to`, which has that size and replaces x's image: x and its index point into it afterwards.
void remix_narrow(struct remix *x, size_t head, uint8_t *to);
// Bytes of the plain image of a whole view.
size_t remix_plain_size(const struct remix *x);
// Makes that image, with zeros in the place of the checksum.
void remix_plain(const struct remix *x, uint8_t *to);
// Makes wide bits: BLIND_WIDE bytes.
void remix_widen(struct blind b, uint8_t *to);
#endif
