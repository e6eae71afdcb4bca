// SPDX-License-Identifier: Apache-2.0
//
// Reports of a long call to its ref's progress function (remixdb_progress).
#ifndef STORE_PROGRESS_H
#define STORE_PROGRESS_H

#include "lib.h"

struct progress {
  remixdb_progress_fn fn;  // NULL: no reports
  void *priv;
};

// Calls the function, if there is one, in this thread. Outside of any lock and epoch: the function may take long, and
// may use the store through other refs. The function may change this thread's message, so the caller must have no
// pending failure. Fails with REMIXDB_ABORTED if the function gives the call up. When done == total the work is
// complete, and the function's result does not matter.
MUST_CHECK static inline enum remixdb_status progress_report(const struct progress *p, const char *what, uint64_t done,
                                                             uint64_t total) {
  if (!p->fn) return REMIXDB_OK;
  CANCEL_LATER;
  const bool on = p->fn(p->priv, what, done, total);
  return on || (total && done == total)
             ? REMIXDB_OK
             : err_set(REMIXDB_ABORTED, "%s: given up, because its progress function returned false", what);
}
#endif
