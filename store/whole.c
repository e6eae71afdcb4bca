// SPDX-License-Identifier: Apache-2.0
#include "store/whole.h"

#include "store/collect.h"
#include "store/waiter.h"

#define WHOLE_MOST_MIN (64u << 10)  // a compaction of the whole that cannot write so many bytes at once gives up
#define WHOLE_PASSES 16u            // the most passes over partitions that the disk had no room for
#define WHOLE_AGAIN 3u              // the most passes more for neighbours that have come to fit each other

// Returns the bytes of the tables in the partitions [from, to) of a tree.
static uint64_t parts_bytes(const struct version *tree, uint32_t from, uint32_t to) {
  uint64_t bytes = 0;
  for (uint32_t i = from; i < to; i++) bytes += part_table_bytes(tree->parts[i]);
  return bytes;
}

// Estimates how many bytes the compaction will read.
static uint64_t whole_bytes(const struct waiter *w) {
  const struct compact_whole *const work = &w->whole->work;
  xdb_lock(w->x);
  const struct super *const super = xdb_super(w->x);
  uint64_t bytes = memtable_memory(super->active);
  if (work->within) {
    const struct version *const tree = version_tree(super->version, w->tree);  // NULL: no space has tables
    if (tree) bytes += parts_bytes(tree, version_find(tree, w->low), compact_whole_stop(work, tree));
  } else {
    for (const struct version *tree = super->version; tree; tree = tree->spaces)
      bytes += parts_bytes(tree, 0, tree->nr_parts);
  }
  xdb_unlock(w->x);
  return bytes + 1;
}

// Goes on to the next partitions: a round has brought the partitions before w->whole->work.to into the fewest tables.
static void whole_on(struct waiter *w) {
  struct compact_whole *const work = &w->whole->work;
  xdb_lock(w->x);
  const struct version *const v = xdb_super(w->x)->version;
  const struct version *const tree = version_tree(v, work->to_tree);
  const uint32_t before = work->to_tree == TREE_UNNAMED ? 0 : v->nr_parts,
                 all = v->nr_parts + (v->spaces ? v->spaces->nr_parts : 0),
                 at = version_find(tree, kref(work->to, work->to_len));
  const uint32_t low = version_find(tree, w->low);
  if (!work->within) w->base = w->total / all * (before + at);
  else if (at > low) w->base = w->total / (compact_whole_stop(work, tree) - low) * (at - low);
  xdb_unlock(w->x);
  compact_whole_on(work);
}

// Called when the disk had no room for a round. Returns whether to try again with smaller partitions only; these then
// make room for larger partitions.
static bool go_smaller(struct waiter *w) {
  struct compact_whole *const work = w->whole ? &w->whole->work : NULL;  // NULL: the call is given up
  if (!work || work->largest / 2 < WHOLE_MOST_MIN) return false;
  work->most = work->largest / 2;
  xdb_lock(w->x);
  w->x->rounds.failed_ns = 0;  // the memtable's round tries again at once
  xdb_unlock(w->x);
  return true;
}

// One pass over all partitions. Sets *any_out when it has written something.
static enum remixdb_status compact_pass(struct waiter *w, bool *any_out) {
  enum remixdb_status s = REMIXDB_OK;
  for (bool end = false; s == REMIXDB_OK && !end;) {
    w->whole->taken = w->whole->done = w->whole->installed = false;
    w->whole->work.largest = 0;
    s = waiter_round(w, XDB_FREEZE_ANY);
    if (s == REMIXDB_NOSPACE && go_smaller(w)) s = REMIXDB_OK;
    if (s == REMIXDB_OK && w->whole->error.status != REMIXDB_OK) s = err_raise(&w->whole->error);
    if (s != REMIXDB_OK || !w->whole->installed) continue;  // the round with this work failed: once more
    *any_out = *any_out || w->whole->work.largest;
    end = w->whole->work.end;
    if (end) break;
    whole_on(w);
    s = progress_report(&w->progress, w->what, w->done, w->total);
  }
  return s;
}

// Tells whether neighbours fit together now that the last pass has made them smaller.
static bool fits_again(struct waiter *w) {
  const struct compact_whole *const work = &w->whole->work;
  bool fits = false;
  xdb_lock(w->x);
  const struct version *const v = xdb_super(w->x)->version;
  for (uint32_t i = 0; i < TREES; i++) {
    const struct version *const tree = version_tree(v, i);
    if (!tree || (work->within && i != w->tree)) continue;
    const uint32_t from = work->within ? version_find(tree, w->low) : 0;
    fits = fits || compact_whole_fits(&w->x->compact, tree, from, compact_whole_stop(work, tree));
  }
  xdb_unlock(w->x);
  return fits;
}

// Makes a pass. fits_only: as in struct compact_whole. Sets *any_out to whether it has written something, and *left_out
// to whether it has left out a partition for lack of room.
static enum remixdb_status pass_from_start(struct waiter *w, bool fits_only, bool *any_out, bool *left_out) {
  struct compact_whole *const work = &w->whole->work;
  *any_out = work->left = false;
  work->fits_only = fits_only;
  work->most = UINT64_MAX;
  work->from_len = w->low.len;
  if (w->low.len) memcpy(work->from, w->low.ptr, w->low.len);
  work->from_tree = w->tree;
  const enum remixdb_status s = compact_pass(w, any_out);
  *left_out = w->whole && w->whole->work.left;
  return s;
}

// Makes passes until no partition is left out for lack of room, or a pass achieves nothing. Then makes passes for
// neighbours that have come to fit each other. A lack of room or memory ends these without a failure: the call has
// already done its work.
static enum remixdb_status compact_passes(struct waiter *w) {
  enum remixdb_status s = REMIXDB_OK;
  bool any = true, left = true;
  for (uint32_t pass = 0; s == REMIXDB_OK && left && any && pass < WHOLE_PASSES; pass++)
    s = pass_from_start(w, false, &any, &left);
  if (s == REMIXDB_OK && left)
    s = err_set(REMIXDB_NOSPACE, "%s: No space left on device: some partitions could not be compacted", w->x->dir);
  if (s != REMIXDB_OK) return s;
  // writers make neighbours that fit, too
  for (uint32_t more = 0; s == REMIXDB_OK && !left && any && more < WHOLE_AGAIN && fits_again(w); more++)
    s = pass_from_start(w, true, &any, &left);
  return s == REMIXDB_NOSPACE || s == REMIXDB_NOMEM ? REMIXDB_OK : s;
}

// Removes the log files that are kept for reuse, and replaces the active segment, which has grown, by a new one.
static enum remixdb_status shrink_log(struct xdb *x) {
  struct waiter w = {.x = x};
  enum remixdb_status s = wal_shed(x->wal);
  if (s == REMIXDB_OK) s = waiter_round(&w, XDB_FREEZE_ANY);
  return s == REMIXDB_OK ? wal_shed(x->wal) : s;
}

// Compacts what w->whole says, and frees that. Also where it returns REMIXDB_OK, partitions may be as they were,
// because they could not be read. *unread_out tells why: the call fails by that when all else is done.
static enum remixdb_status compact_with(struct waiter *w, struct err_saved *unread_out) {
  struct xdb *const x = w->x;
  // A round takes about as long as writing a few memtables: a writer waits for one round at most.
  w->whole->work.budget = 4 * xdb_memtable_limit(x);
  if (w->progress.fn && !x->opts.read_only) w->total = whole_bytes(w);
  unread_out->status = REMIXDB_OK;
  enum remixdb_status s = waiter_begin(w);
  if (s == REMIXDB_OK) s = compact_passes(w);
  if (s == REMIXDB_OK && w->whole) *unread_out = w->whole->work.unread;
  mem_free(w->whole);
  return s;
}

enum remixdb_status xdb_compact_told(struct xdb *x, const struct progress *p) {
  struct waiter w = {.x = x, .progress = *p, .what = "compact", .whole = mem_calloc(1, sizeof(*w.whole))};
  if (!w.whole) return REMIXDB_NOMEM;
  value_log_turn(&x->values);  // the garbage in all files is collected, also in those that are not full
  value_log_turn(&x->compact.values);
  struct err_saved unread;
  enum remixdb_status s = compact_with(&w, &unread);
  if (s == REMIXDB_OK) s = collect_all(x, &w.progress, w.what, w.done, w.total);
  if (s == REMIXDB_OK && shrink_log(x) != REMIXDB_OK) xdb_say(x, "the log could not be made smaller: %s", err_msg());
  if (s == REMIXDB_OK) s = err_raise(&unread);
  return s == REMIXDB_OK ? waiter_end(&w) : s;
}

// A key as `from` and `until` of struct compact_whole have room for.
static struct kref whole_key(struct kref key) { return kref(key.ptr, key.len < KV_KEY_MAX ? key.len : KV_KEY_MAX); }

enum remixdb_status xdb_compact_range(struct xdb *x, uint32_t tree, struct kref low, struct kref high,
                                      const struct progress *p) {
  struct waiter w = {.x = x, .progress = *p, .what = "compact", .tree = tree, .whole = mem_calloc(1, sizeof(*w.whole))};
  if (!w.whole) return REMIXDB_NOMEM;
  struct compact_whole *const work = &w.whole->work;
  w.low = low.ptr ? whole_key(low) : kref("", 0);
  work->within = true;
  work->until_len = high.ptr ? whole_key(high).len : UINT32_MAX;
  if (high.ptr) memcpy(work->until, high.ptr, work->until_len);
  struct err_saved unread;
  enum remixdb_status s = compact_with(&w, &unread);
  if (s == REMIXDB_OK) s = err_raise(&unread);
  return s == REMIXDB_OK ? waiter_end(&w) : s;
}

enum remixdb_status xdb_compact(struct xdb *x) { return xdb_compact_told(x, &(struct progress){0}); }
