// SPDX-License-Identifier: Apache-2.0
//
// Value debt: bytes of values apart that scans read from the disk away from the value that they read before. There is a
// sum for each span, a 64th of the view's segments, so that a merge pays for the keys that are scanned. It takes memory
// once a scan has added to it. Any thread; all sums are relaxed.
#ifndef REMIX_VALUE_DEBT_H
#define REMIX_VALUE_DEBT_H

#include "remix/state.h"

#define REMIX_SPANS 64u

struct remix_value_debt {
  _Atomic uint64_t due;       // a merge pays for a span with so much; 0: not known yet
  _Atomic uint64_t again_ns;  // no merge is asked for before this time (time_ns); 0: at any time
  _Atomic uint64_t spans[REMIX_SPANS];
};

// The span of a segment of a view that has nr.
static inline uint32_t remix_span(uint64_t seg, uint64_t nr) {
  return seg < nr ? (uint32_t)(seg * REMIX_SPANS / nr) : REMIX_SPANS - 1;
}
// Adds to the debt of a segment's span, and calls the watch if enough is due. x: an older view, whole, or a page of one
// that is paged; page: its number. seg: within x. Without memory nothing is added. x is alive.
void remix_add_value_debt(struct remix *x, uint32_t page, uint32_t seg, uint64_t bytes);
// The debt of all spans and what is due; NULL: no scan has added to it.
static inline struct remix_value_debt *remix_value_debt(const struct remix *x) {
  return atomic_load_explicit(&x->values, memory_order_acquire);
}
// Gives `to` the debt of `from`, except for spans with a bit in `but`. `to` is a view of about the same keys, and no
// other thread has it yet.
void remix_take_value_debt(struct remix *to, const struct remix *from, uint64_t but);
#endif
