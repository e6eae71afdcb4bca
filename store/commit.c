// SPDX-License-Identifier: Apache-2.0
#include "store/commit.h"

enum remixdb_status commit_take_back(struct wh_slot *slot, enum remixdb_status s) {
  err_cleanup_begin();  // the leaf may find no memory to become smaller
  wh_unlink(slot);
  err_cleanup_end();
  return s;
}

// The waiting thread is woken without the log's lock, and before this one writes a buffer.
void commit_end_waited(struct xdb *x, struct epoch_slot *es, const struct wh_slot *slot) {
  const bool write = wal_end_unlock(x->wal);
  wh_wake(slot);
  epoch_exit(es);
  if (write) wal_end_write(x->wal);
}
