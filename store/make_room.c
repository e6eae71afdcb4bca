// SPDX-License-Identifier: Apache-2.0
#include "store/make_room.h"

#include "store/install.h"
#include "store/reserve.h"

#define LEAST ((uint64_t)64 << 10)  // bytes; a merge that must write less than this is not worth a try
#define PASSES 24u                  // in a call
#define AGAIN_NS 500000000ull       // after a call that has made no room

// Makes the next step of a room: *next, installed already. *made_out: how the step itself went. *next NULL: there is
// none.
static enum remixdb_status step(struct xdb *x, struct worker *w, struct compact_room *room, struct version **next,
                                enum remixdb_status *made_out) {
  uint64_t when;
  xdb_lock(x);
  struct version *const base = xdb_super(x)->version;
  version_ref(base);
  xdb_unlock(x);
  enum remixdb_status s = *made_out = compact_room_step(&x->compact, w, base, room, next);
  err_cleanup_begin();
  version_unref(base);
  err_cleanup_end();
  if (s == REMIXDB_OK && *next) s = round_install(x, *next, false, &when);
  return s;
}

enum remixdb_status make_room_steps(struct xdb *x, struct worker *w, struct compact_room *room) {
  struct version *next = NULL;
  enum remixdb_status s, made;
  do {
    s = step(x, w, room, &next, &made);
  } while (s == REMIXDB_OK && next);
  if (made != REMIXDB_OK && made != REMIXDB_NOSPACE && made != REMIXDB_NOMEM) {
    xdb_say(x, "a merge for room failed: %s", err_msg());
    return REMIXDB_OK;
  }
  if (s == REMIXDB_NOSPACE) x->rounds.full = room->scarce = true;
  return s == REMIXDB_NOSPACE ? REMIXDB_OK : s;
}

// ---- a full disk

static bool may_go_on(struct xdb *x) {
  xdb_lock(x);
  const bool may = !x->scan_merges.ending && atomic_load_explicit(&x->failed, memory_order_relaxed) == 0;
  xdb_unlock(x);
  return may;
}

// Makes the merges of one plan. *most: bytes of one merge; out: as the plan had it. *any_out: some room was made.
static enum remixdb_status pass(struct xdb *x, struct worker *w, uint64_t *most, bool *any_out) {
  struct compact_room room = {.most = *most};
  struct version *next = NULL;
  enum remixdb_status s = REMIXDB_OK, made;
  *any_out = false;
  while (s == REMIXDB_OK && may_go_on(x)) {
    s = step(x, w, &room, &next, &made);
    if (s == REMIXDB_OK && !next) break;
    *any_out = *any_out || s == REMIXDB_OK;
  }
  *most = room.most;
  compact_room_fini(&room);
  return s;
}

// Makes passes with merges that fit into the room that there is. Returns whether they have made any room.
static bool passes(struct xdb *x, struct worker *w) {
  uint64_t most = UINT64_MAX;
  bool any, freed = false;
  for (uint32_t i = 0; i < PASSES && may_go_on(x); i++) {
    const enum remixdb_status s = pass(x, w, &most, &any);
    freed = freed || any;
    if (s == REMIXDB_NOSPACE) most /= 2;
    else if (s == REMIXDB_OK && any) most = most > UINT64_MAX / 2 ? most : most * 2;
    else break;
    if (most < LEAST) break;
  }
  return freed;
}

bool make_room_full(struct xdb *x, struct worker *w, bool urgent) {
  struct rounds *const r = &x->rounds;
  const uint64_t began = time_ns();
  if (began < r->full_again_ns) return false;
  struct err_saved was;
  err_save(&was, REMIXDB_OK);
  bool freed = passes(x, w);
  if (!freed && urgent && may_go_on(x) && reserve_spend(x)) {
    (void)passes(x, w);
    freed = true;
  }
  freed = freed && may_go_on(x);  // an install that failed for good leaves nothing to try again
  err_restore(&was);
  if (freed) xdb_say(x, "merges for room on a full disk: %.3f s", (double)(time_ns() - began) * 1e-9);
  r->full_again_ns = freed ? 0 : time_ns() + AGAIN_NS;
  return freed;
}

void make_room_run(struct xdb *x, struct worker *w) {
  if (likely(!x->rounds.full)) return;
  x->rounds.full = false;
  (void)make_room_full(x, w, reserve_scarce(x));
}
