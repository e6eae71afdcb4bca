// SPDX-License-Identifier: Apache-2.0
#include "store/garbage_merge.h"

#include "store/expiry.h"
#include "store/garbage_look.h"
#include "store/idle.h"
#include "store/install.h"
#include "store/scan_merge.h"

#define FAILED_NS 60000000000ull  // until a merge that failed is tried again

// Returns the version to merge in, with a reference; NULL: something is more urgent, or the store is not at rest.
static struct version *begin(struct xdb *x) {
  const uint64_t written = atomic_load_explicit(&x->published, memory_order_relaxed);
  if (written != atomic_load_explicit(&x->garbage_merges.written, memory_order_relaxed) || !scan_merge_may_begin(x))
    return NULL;
  xdb_lock(x);
  struct version *const base = xdb_super(x)->version;
  version_ref(base);
  xdb_unlock(x);
  return base;
}

void garbage_merge_run(struct xdb *x, struct worker *w) {
  struct garbage_merges *const g = &x->garbage_merges;
  struct version *base, *next = NULL;
  uint64_t installed, again_ns = 0;
  enum remixdb_status s = REMIXDB_OK;
  // taken before the work: a look that finds more to do meanwhile is not lost
  if (!atomic_exchange_explicit(&g->due, false, memory_order_relaxed)) return;
  do {
    const uint64_t began = time_ns();
    if (!(base = begin(x))) break;
    (void)expiry_settle(x);
    s = compact_garbage_round(&x->compact, w, base, &next);
    again_ns = version_again_ns(base, began);
    err_cleanup_begin();
    version_unref(base);
    err_cleanup_end();
    if (s == REMIXDB_OK && next && (s = round_install(x, next, false, &installed)) == REMIXDB_OK)
      xdb_say(x, "merge for garbage: %.3f s", (double)(installed - began) * 1e-9);
  } while (s == REMIXDB_OK && next);
  if (s == REMIXDB_NOSPACE) x->rounds.full = true;
  if (s != REMIXDB_OK && s != REMIXDB_ABORTED) {
    xdb_say(x, "a merge for garbage failed and will be tried again: %s", err_msg());
    garbage_look_after(x, FAILED_NS);
    idle_later(x, FAILED_NS);
  } else if (!base || s != REMIXDB_OK) {
    idle_garbage(x);
  } else if (again_ns) {
    garbage_look_after(x, again_ns);
    idle_later(x, again_ns);
  }
}
