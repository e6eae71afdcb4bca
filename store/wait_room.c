// SPDX-License-Identifier: Apache-2.0
#include "store/wait_room.h"

#include "store/install.h"
#include "store/waiter.h"

// until: the time to give up (*late_out); UINT64_MAX: never.
static enum remixdb_status wait_room(struct xdb *x, enum xdb_freeze when, size_t batch, uint64_t until,
                                     bool *late_out) {
  bool kick = false;
  *late_out = false;
  xdb_lock(x);
  enum remixdb_status s = xdb_failure(x);
  // Another writer may freeze the memtable earlier. The new memtable then has room, and this call need not wait for a
  // round. A flush may do the same. Flushes go before writers, because otherwise writers would make a flush wait for
  // one round after the other.
  while (s == REMIXDB_OK && !kick && !*late_out && xdb_freeze_due(x, when, batch)) {
    if (freeze_must_wait(x) || x->rounds.nr_flushers) {
      const uint64_t now = until == UINT64_MAX ? 0 : time_ns(), left = until > now ? until - now : 0;
      const enum remixdb_status may = xdb_may_wait(x);
      if (left && may == REMIXDB_OK) s = xdb_wait_frozen(x, NULL, left < WAITER_RETRY_NS ? left : WAITER_RETRY_NS);
      else if (until != UINT64_MAX) *late_out = true;
      else s = may;
    } else {
      s = round_freeze(x);
      kick = s == REMIXDB_OK;
      if (kick && when == XDB_FREEZE_AGAIN) x->rounds.nothing_back = true;
    }
  }
  xdb_unlock(x);
  if (kick) workers_kick(x->workers);
  return s;
}

enum remixdb_status xdb_wait_room(struct xdb *x, enum xdb_freeze when, size_t batch) {
  bool late;
  return wait_room(x, when, batch, UINT64_MAX, &late);
}

enum remixdb_status xdb_wait_room_a_while(struct xdb *x, bool *late_out) {
  return wait_room(x, XDB_FREEZE_FULL, 0, time_ns() + ROOM_WAIT_NS, late_out);
}
