// SPDX-License-Identifier: Apache-2.0
#include "store/write_steps.h"

#include "store/collect.h"
#include "store/flush.h"
#include "store/reserve.h"
#include "store/wait_room.h"

#define AGAIN_NS 100000000u

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

// Deletions since the last refused put give room back when they are in tables, and when a collection has followed. So a
// round brings them there; the log may have room for thousands of them, and nothing else would begin that round. A
// program that deletes and puts in turn has AGAIN_NS between two. Returns whether one was made.
static bool round_again(struct xdb *x) {
  struct refused *const r = &x->refused;
  const uint64_t written = atomic_load_explicit(&x->published, memory_order_relaxed), now = time_ns();
  uint64_t again = atomic_load_explicit(&r->again_ns, memory_order_relaxed);
  if (now < again || !atomic_compare_exchange_strong_explicit(&r->again_ns, &again, now + AGAIN_NS,
                                                              memory_order_relaxed, memory_order_relaxed))
    return false;
  collect_urgently(x);  // also where nothing was written: one may have found too little room before
  const bool news = atomic_exchange_explicit(&r->written, written, memory_order_relaxed) != written,
             made = news && xdb_flush(x) == REMIXDB_OK;
  atomic_store_explicit(&r->again_ns, time_ns() + AGAIN_NS, memory_order_relaxed);
  return made;
}

static bool put_has_room(struct xdb *x) {
  return reserve_back(x) || (round_again(x) && (!reserve_scarce(x) || reserve_back(x)));
}

// A delete flushes, which may spend the reserved room, and then the log has room again.
enum remixdb_status write_no_room(struct xdb *x, bool tomb) {
  struct err_saved why;
  err_save(&why, REMIXDB_NOSPACE);
  if (tomb ? xdb_flush(x) == REMIXDB_OK : put_has_room(x)) return REMIXDB_ABORTED;
  return err_raise(&why);
}

enum remixdb_status write_apart(struct xdb *x, struct kv_rec *rec, struct value_apart *out) {
  enum remixdb_status s = values_put(x, rec, out);
  if (unlikely(s == REMIXDB_NOSPACE) && (s = write_no_room(x, false)) == REMIXDB_ABORTED) s = values_put(x, rec, out);
  return s;
}
