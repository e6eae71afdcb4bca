// SPDX-License-Identifier: Apache-2.0
//
// Filters: a page of a paged REMIX (remix/paged.h) that leaves memory leaves a filter. It excludes most keys that are
// not in the page. So a get of an absent key reads no page.
//
// The page's segments make sets: each set is 1 << level segments that are next to each other. For each set a filter has
// the tags of the set's live entries. The higher the level, the smaller is the filter, and the more keys seem to be
// there: with 28 entries in a segment about a tenth of the absent keys, or a fifth on level 1, and a third on level 2.
//
// To find the set of a key, the filter has bounds. The bound of a set is the anchor of its first segment, shortened.
// The bytes that all anchors of the page begin with are left out. The rest has two forms, and the shorter one serves:
//   numbers  the next 8 bytes are a number, and only its upper part is kept. If a key's number equals some bounds, the
//            key may belong to any of the sets beside these. The filter then asks all of them, or gives no answer.
//   strings  for anchors with long bytes in common: the anchor, cut BOUND_MORE bytes after the last byte that it shares
//            with the anchors beside it, and front-coded: varint(bytes shared with the string before), varint(bytes
//            that follow << 1 | whether it is cut), these bytes. If a cut string begins a key, and no higher bound is
//            at or below the key, the filter asks the sets on both sides of the bound.
//
// The tags of FILTER_STRETCH segments are one ascending list of numbers: a tag of the list's i-th set counts as
// i * 256 + tag. The list has the gaps between these numbers, coded as Rice does (Golomb-Rice: the quotient by 1 << k
// in unary, the rest in k bits). The filter knows where each list begins.
//
// Invariants
//   F1  A filter never denies a key that is live in the page. It gives no other promise.
//   F2  A filter does not change. It refers to nothing outside of itself; the pool's fields are apart from that.
//
// In memory only: no file has filters. Any thread may ask.
#ifndef REMIX_FILTER_H
#define REMIX_FILTER_H

#include "base/epoch.h"
#include "remix/state.h"

#define FILTER_LEVELS 3u
#define FILTER_STRETCH 4u  // segments whose tags are one list

struct remix_slot;
struct remix_filter {
  // For the pool (remix/paged.c):
  struct epoch_item item;
  struct remix_filter *next, *prev;  // in the pool's ring
  struct remix_slot *slot;           // the page's slot
  _Atomic bool used;                 // since the hand last passed. Relaxed
  // private below
  uint8_t k;           // the parameter of Rice's code
  uint8_t width;       // bytes of a bound that is a number; 0: bounds are strings
  uint8_t shift;       // a bound is (the anchor's number - low) >> shift
  uint8_t nr_sets;     // at least 1
  uint8_t per_list;    // sets of a list
  uint8_t more;        // bytes of `data` that follow `shared` in all bounds
  uint16_t bounds;     // bytes of all bounds
  uint32_t shared;     // bytes that all keys of the page share, because the anchors around the page share them
  uint32_t size;       // bytes of this filter
  uint64_t low, high;  // the numbers of the first and the last bound
  uint8_t data[];      // those bytes; bounds; u16 for each list: the bit where it begins, and where the last one ends;
                       // lists
};

// Makes the filter of the page with these segments of x. x is a view or a page in memory, and has tags. shared: as
// above. NULL: memory is missing, or the anchors do not suit.
struct remix_filter *remix_filter_make(const struct remix *x, uint32_t first, uint32_t nr_segs, uint32_t shared,
                                       uint32_t level);
uint32_t remix_filter_level(const struct remix_filter *f);
void remix_filter_free(struct remix_filter *f);  // NULL is allowed
// Returns false if no live entry of the page has the key. The page must be the key's. tag: the tag of the key's hash.
bool remix_filter_asks(const struct remix_filter *f, struct kref key, uint8_t tag);
#endif
