// SPDX-License-Identifier: Apache-2.0
//
// A guide tells to which of many ordered items a key belonged when the guide was made. The guide is a static tree
// (base/anchors.h) over the items' lower bounds. A lookup reads a few cache lines; the structure itself would need
// many. The answer is a hint: the caller starts at this item and follows later changes. An item can be replaced in
// place.
#ifndef GUIDE_H
#define GUIDE_H

#include "base/anchors.h"
#include "base/epoch.h"

struct guide {
  struct epoch_item retired;  // for the owner's use
  struct anchors anchors;
  size_t bytes;  // all its memory
  uint32_t nr;
  // Further items, which came after the guide was made. Lookups do not see them. They have numbers: number base + 1 + i
  // is at more[i].
  uint32_t base, cap_more;
  _Atomic uint32_t nr_more;  // release, after the item
  _Atomic(void *) *more;     // release; NULL: there is none any more
  _Atomic(void *) items[];   // replaced with release
};

// Makes a guide to nr > 0 items, with room for cap_more further ones. The items' lower bounds ascend strictly, and the
// bound of item 0 is empty. Copies the bounds. The caller sets `base`. Fails with REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status guide_create(const struct kref *bounds, void *const *items, uint32_t nr,
                                            uint32_t cap_more, struct guide **out);
void guide_destroy(struct guide *g);  // NULL is allowed
// Returns the last item whose bound is not greater than the key. Any thread.
static inline void *guide_find(const struct guide *g, struct kref key) {
  return atomic_load_explicit(&g->items[anchors_find(&g->anchors, key)], memory_order_acquire);
}
// Looks up nr <= ANCHORS_MANY_MAX keys side by side: items_out[i] for keys[which[i]].
void guide_find_many(const struct guide *g, const struct kref *keys, const uint8_t *which, uint32_t nr,
                     void **items_out);
// Replaces `old` by another item in neighbouring places: from the first place whose bound is not less than the given
// one, up to the first place that does not hold `old`. One thread at a time.
void guide_replace(struct guide *g, struct kref bound, const void *old, void *item);
// Sets the further item of this number; NULL: it is gone. Does nothing for numbers up to `base`, and for those beyond
// the room. One thread at a time.
void guide_more(struct guide *g, uint32_t number, void *item);
#endif
