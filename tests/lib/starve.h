// SPDX-License-Identifier: Apache-2.0
//
// Stores whose indexes do not fit in memory: every REMIX that has some segments is paged, and few pages stay.
#ifndef TESTS_STARVE_H
#define TESTS_STARVE_H

#include "base/budget.h"
#include "remix/pack.h"

// For all files that are written, and all stores that are opened, from now on.
static inline void starve(bool on) {
  atomic_store(&budget_starved, on);
  atomic_store(&remix_paged_from, on ? 2 : REMIX_PAGED_FROM);
  atomic_store(&remix_page_segs, on ? 2 : REMIX_PAGE_SEGS);
}
#endif
