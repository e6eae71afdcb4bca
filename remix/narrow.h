// SPDX-License-Identifier: Apache-2.0
//
// Narrow images: what a view in memory looks like, if it can. A plain image, which docs/FORMAT.md describes, has two
// bytes for each discriminating bit. Nearly all segments need one: the keys of a segment mostly differ within 16 bytes.
// A plain selector is a byte. Nearly all segments need a nibble of each: there are few runs, and few entries are
// tombstones, expire or are erased. Old versions need no bit: their discriminating bits are SAME. Cursor offsets are
// shorter, too. So a narrow segment is 48 bytes shorter and more. Files, builds and checks know plain images only.
//
// Invariants
//   N1  A narrow image has the parts of the plain one in the same order, with shorter segments, and after the anchors a
//       list of what is too long for a segment. An element of the list has REMIX_LISTED bytes. A segment whose bits are
//       not all near (blind_near) has the flag REMIX_SEG_WIDE and its wide bits in two elements of the list; in their
//       place it has a u32, the number of the first one. Any other segment has narrow bits. A segment has the flag
//       REMIX_SEG_NIBBLES if its selectors are nibbles: the runs. Such a segment has the flag REMIX_SEG_OLD if it has
//       old versions. If the layout has room for nibbles only, any other segment has its selectors in an element of the
//       list, and the element's number in their place. A cursor offset has the fewest bytes, from 2 on, that hold the
//       ends of all runs.
//   N2  A view has a narrow image if no more than one of NARROW_SHARE segments needs wide bits; else it stays plain.
//   Its
//       layout has room for nibbles only if there are at most NARROW_RUNS runs, and no more than one of NARROW_SHARE
//       segments needs bytes; else all selectors are bytes.
//   N3  The plain image can be made of the narrow one without loss, except for the checksum at its end.
#ifndef REMIX_NARROW_H
#define REMIX_NARROW_H

#include "remix/state.h"

#define NARROW_SHARE 4u
#define NARROW_RUNS 16u

struct narrow_form {
  struct remix_layout lay;
  size_t size;  // bytes of the image; 0: it stays plain (N2)
};
// Chooses the form of the narrow image of x, whose plain image has been checked. head: bytes of the image before the
// segments, 0 for a page.
struct narrow_form remix_narrow_form(const struct remix *x, size_t head);
// Makes the narrow image at `to`, which has the form's size and replaces x's image: x and its index point into it
// afterwards.
void remix_narrow(struct remix *x, size_t head, const struct narrow_form *form, uint8_t *to);
// Bytes of the plain image of a whole view.
size_t remix_plain_size(const struct remix *x);
// Makes that image, with zeros in the place of the checksum.
void remix_plain(const struct remix *x, uint8_t *to);
// Makes wide bits: BLIND_WIDE bytes.
void remix_widen(struct blind b, uint8_t *to);
// Makes the selectors of a segment: REMIX_SEG bytes.
void remix_sels(const struct remix_index *ix, const uint8_t *s, uint8_t *to);
#endif
