// SPDX-License-Identifier: Apache-2.0
#include "store/write_steps.h"

#include "store/flush.h"
#include "store/reserve.h"
#include "store/wait_room.h"

enum remixdb_status write_check(const struct xdb_ref *r) {
  struct xdb *x = r->xdb;
  if (unlikely(r->super)) return err_set(REMIXDB_READONLY, "%s: a snapshot is not written to", x->dir);
  if (unlikely(x->opts.read_only)) return err_set(REMIXDB_READONLY, "%s: opened with read_only", x->dir);
  return REMIXDB_OK;
}

enum remixdb_status write_wait_room(struct xdb *x, size_t batch, bool again) {
  const uint64_t began = time_ns();
  const enum remixdb_status s = xdb_wait_room(x, again ? XDB_FREEZE_AGAIN : XDB_FREEZE_FULL, batch);
  if (s == REMIXDB_OK) xdb_pace_stalled(x, time_ns() - began);
  return s;
}

// A delete flushes, which may spend the reserved room, and then the log has room again.
enum remixdb_status write_no_room(struct xdb *x, bool tomb) {
  struct err_saved why;
  err_save(&why, REMIXDB_NOSPACE);
  if (tomb ? xdb_flush(x) == REMIXDB_OK : reserve_back(x)) return REMIXDB_ABORTED;
  return err_raise(&why);
}

enum remixdb_status write_apart(struct xdb *x, struct kv_rec *rec, struct value_apart *out) {
  enum remixdb_status s = values_put(x, rec, out);
  if (unlikely(s == REMIXDB_NOSPACE) && (s = write_no_room(x, false)) == REMIXDB_ABORTED) s = values_put(x, rec, out);
  return s;
}
