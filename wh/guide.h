// SPDX-License-Identifier: Apache-2.0
//
// Hints: which of many ordered items a key belongs to, as it was when the guide was made. A static tree
// (base/anchors.h) over the items' lower bounds answers in a few cache lines where the structure that it is a picture
// of would take many; what has changed since is the caller's to find from there. Items are replaced in place.
#ifndef GUIDE_H
#define GUIDE_H

#include "base/anchors.h"
#include "base/epoch.h"

struct guide {
  struct epoch_item retired;  // the owner's
  struct anchors anchors;
  size_t bytes;  // of memory
  uint32_t nr;
  _Atomic(void *) items[];  // replaced with release
};

// nr > 0 items by their lower bounds, which ascend strictly and of which the first is empty; they are copied.
// REMIXDB_NOMEM.
MUST_CHECK enum remixdb_status guide_create(const struct kref *bounds, void *const *items, uint32_t nr,
                                            struct guide **out);
void guide_destroy(struct guide *g);  // NULL is allowed
// The last item whose bound is not greater than the key. Any thread.
static inline void *guide_find(const struct guide *g, struct kref key) {
  return atomic_load_explicit(&g->items[anchors_find(&g->anchors, key)], memory_order_acquire);
}
// The same for nr <= ANCHORS_MANY_MAX keys side by side: items_out[i] for keys[which[i]].
void guide_find_many(const struct guide *g, const struct kref *keys, const uint8_t *which, uint32_t nr,
                     void **items_out);
// From the first bound that is not less than this one on, puts another item in the place of `old`, as far as that is
// there. One thread at a time.
void guide_replace(struct guide *g, struct kref bound, const void *old, void *item);
#endif
