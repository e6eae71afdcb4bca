// SPDX-License-Identifier: Apache-2.0
//
// Edits: a round leaves the keys of ranges out of the version, and commits a group of writes with it (store/ranges.h
// has the invariants).
#ifndef STORE_EDIT_H
#define STORE_EDIT_H

#include "store/state.h"

struct range_group;

// A group that waits for a round to edit the version. Guarded by xdb.lock.
struct xdb_edit {
  struct range_group *group;
  struct err_saved error;  // the result; status REMIXDB_OK: done
  bool done;
  struct xdb_edit *next;
};
// Has a round make the edit, and waits for it.
MUST_CHECK enum remixdb_status xdb_edit(struct xdb *x, struct xdb_edit *e);
// Makes the edits that wait. For rounds.
void xdb_edits_run(struct xdb *x, struct worker *w);
#endif
