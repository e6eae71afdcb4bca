// SPDX-License-Identifier: Apache-2.0
#include "compact/dropped.h"

#include <assert.h>

#include "compact/job.h"
#include "compact/part_new.h"
#include "compact/views.h"
#include "remix/erase.h"

// ---- dropped spaces in a view

// The stretches of ids that no space has, among the ids of a partition's keys.
struct gaps {
  const struct names *names;
  uint64_t next;  // the stretch after the current one begins here or later
  uint32_t last;
  uint8_t from[NAMES_ID], to[NAMES_ID];  // the current stretch: from <= key < to
};

static uint32_t id_of(struct kref key) { return key.len >= NAMES_ID ? names_id_get(key.ptr) : 0; }

static void gaps_init(struct gaps *g, const struct part *p, const struct names *n) {
  *g = (struct gaps){.names = n, .next = UINT32_MAX};
  for (uint32_t r = 0; r < part_runs(p); r++) {
    const struct sst *const t = part_run(p, r);
    const uint32_t first = id_of(t->min), last = id_of(t->max);
    if (first < g->next) g->next = first;
    if (last > g->last) g->last = last;
  }
  if (g->last >= NAMES_ID_MAX) g->last = NAMES_ID_MAX - 1;  // no space has such an id: the file is damaged
}

static bool gaps_next(struct gaps *g) {
  uint32_t first, last;
  if (g->next > g->last || !names_gap(g->names, (uint32_t)g->next, g->last, &first, &last)) return false;
  names_id_put(g->from, first);
  names_id_put(g->to, last + 1);
  g->next = (uint64_t)last + 1;
  return true;
}

// Tells whether the view has a live key in the current stretch.
static enum remixdb_status has_keys(struct compact *c, struct epoch_slot *slot, struct remix *x, const struct gaps *g,
                                    bool *any) {
  if (!x || *any) return REMIXDB_OK;
  struct sst_hold hold = {0};
  uint64_t from = 0, to = 0;
  epoch_enter(c->epoch, slot);
  enum remixdb_status s = remix_rank(x, kref(g->from, NAMES_ID), &hold, &from);
  if (s == REMIXDB_OK) s = remix_rank(x, kref(g->to, NAMES_ID), &hold, &to);
  sst_hold_fini(&hold);
  epoch_exit(slot);
  *any = s == REMIXDB_OK && to > from;
  return s;
}

// ---- bytes

static uint64_t table_and_values(const struct sst *t) {
  uint64_t sum = t->file_size;
  for (uint32_t i = 0; i < t->nr_apart; i++) sum += t->apart[i].bytes;
  return sum;
}

// Estimates the bytes of the view's tables that are in the stretches, by the segments that these take. A stretch takes
// one at least.
static uint64_t view_bytes(const struct remix *x, struct gaps g, uint64_t *all) {
  const uint32_t nr_segs = x ? remix_segments(x) : 0;
  if (nr_segs == 0) return 0;
  uint64_t bytes = 0, segs = 0;
  for (uint32_t r = 0; r < x->nr_runs; r++) bytes += table_and_values(x->runs[r]);
  while (gaps_next(&g)) segs += remix_segment(x, kref(g.to, NAMES_ID)) - remix_segment(x, kref(g.from, NAMES_ID)) + 1;
  *all += bytes;
  return segs >= nr_segs ? bytes : (uint64_t)((double)bytes * (double)segs / nr_segs);
}

static uint64_t part_bytes(const struct part *p, const struct names *n, uint64_t *all) {
  struct gaps g;
  gaps_init(&g, p, n);
  return view_bytes(part_remix(p), g, all) + view_bytes(part_young(p), g, all);
}

uint64_t compact_dropped_bytes(const struct version *base) {
  const struct version *const tree = base->spaces;
  uint64_t sum = 0, all = 0;
  for (uint32_t i = 0; names_dropped(base->names) && tree && i < tree->nr_parts; i++)
    if (part_has_dropped(tree->parts[i], base->names)) sum += part_bytes(tree->parts[i], base->names, &all);
  return sum;
}

// ---- finding

// The runs of a view that have keys of dropped spaces only, as bits.
static uint32_t runs_dropped(const struct remix *x, const struct names *n) {
  uint32_t set = 0;
  for (uint32_t r = 0; x && r < x->nr_runs; r++) set |= (uint32_t)table_is_dropped(x->runs[r], n) << r;
  return set;
}

// Tells whether a look at the partition, or the build of a view from its views, has to wait until its time has come: a
// read has failed. Where merges found damage, a build may succeed all the same, because it reads keys only.
static bool waits(const struct part *p, uint64_t now) {
  return part_is_left(p, now) && part_unread_ns(p) != PART_DAMAGED;
}

// The same for both views of a partition. Returns false if no run can leave now. Returns false, too, if all runs of the
// older view would leave: then only a merge can remove them.
static bool part_runs_dropped(const struct part *p, const struct names *n, uint64_t now, uint32_t *old_out,
                              uint32_t *young_out) {
  if (part_dropped(p, n) == PART_STUCK || waits(p, now)) return false;
  *old_out = runs_dropped(part_remix(p), n);
  *young_out = runs_dropped(part_young(p), n);
  return (*old_out || *young_out) && set32_count(*old_out) < part_old_runs(p);
}

static bool has_apart(const struct part *p) {
  bool apart = false;
  for (uint32_t r = 0; r < part_runs(p) && !apart; r++) apart = part_run(p, r)->nr_apart > 0;
  return apart;
}

// Tells whether a partition with keys of dropped spaces is worth a merge.
static bool worth(const struct part *p, const struct names *n) {
  uint64_t all = 0;
  const uint64_t bytes = part_bytes(p, n, &all);
  return has_apart(p) || bytes >= all / COMPACT_DROPPED_SHARE;
}

// Finds out about partition i. It is opened if it is away and its anchors do not tell.
static enum remixdb_status look_at(struct compact *c, struct epoch_slot *slot, const struct version *tree, uint32_t i,
                                   const struct names *n) {
  struct part *const p = tree->parts[i];
  struct gaps g;
  if (!part_may_have_dropped(tree, i, n)) {
    part_set_dropped(p, n, PART_CLEAN);
    return REMIXDB_OK;
  }
  enum remixdb_status s = part_ready(p);
  bool any = s == REMIXDB_OK && part_has_dropped(p, n);
  gaps_init(&g, p, n);
  while (!any && s == REMIXDB_OK && gaps_next(&g)) {
    s = has_keys(c, slot, part_remix(p), &g, &any);
    if (s == REMIXDB_OK) s = has_keys(c, slot, part_young(p), &g, &any);
  }
  if (s == REMIXDB_OK) part_set_dropped(p, n, !any ? PART_CLEAN : worth(p, n) ? PART_DUE : PART_FEW);
  return s;
}

// The partition could not be read, because of s. It becomes `what` if it is damaged, now or by an earlier merge. Where
// a read has failed, a later try may succeed.
static void unread(const struct compact *c, struct part *p, const struct names *n, enum part_dropped what,
                   enum remixdb_status s) {
  struct err_saved why;
  err_save(&why, s);
  if (s == REMIXDB_CORRUPT || part_unread_ns(p) == PART_DAMAGED) part_set_dropped(p, n, what);
  if (part_set_unread(p, s)) compact_tell(c, &why);
}

enum remixdb_status compact_dropped_find(struct compact *c, struct epoch_slot *slot, const struct version *base,
                                         struct compact_dropped *out) {
  const struct names *const n = base->names;
  const struct version *const tree = base->spaces;
  const uint64_t now = time_ns();
  *out = (struct compact_dropped){.due = 0};
  for (uint32_t i = 0; names_dropped(n) && tree && i < tree->nr_parts; i++) {
    struct part *const p = tree->parts[i];
    enum part_dropped what = part_dropped(p, n);
    if (what == PART_UNKNOWN && !waits(p, now)) {
      const enum remixdb_status s = look_at(c, slot, tree, i, n);
      // nothing tells which keys a damaged one has: they leave as a whole, or with a whole table
      if (s == REMIXDB_CORRUPT || s == REMIXDB_IO) unread(c, p, n, PART_FEW, s);
      else if (s != REMIXDB_OK) return s;
      what = part_dropped(p, n);
    }
    if (what == PART_CLEAN) continue;
    uint32_t old, young;
    if (part_is_dropped(tree, i, n)) out->parts = true;
    else if (what != PART_UNKNOWN && part_runs_dropped(p, n, now, &old, &young)) out->tables = true;
    else if (what == PART_DUE && !part_is_left(p, now)) out->due++;
    else {
      part_add_again(p, now, &out->again_ns);
      continue;
    }
    out->apart = out->apart || has_apart(p);
  }
  const struct part *const first = out->parts ? version_trim_first(base) : NULL;
  return first ? part_ready(first) : REMIXDB_OK;
}

// ---- tables that leave

// Makes the view without these runs. *out NULL: all leave, or there is no view. *unread_out: the call has failed
// because it could not read the view or its keys.
static enum remixdb_status view_without(struct compact *c, struct worker *self, struct remix *x, uint32_t leave,
                                        struct remix **out, bool *unread_out) {
  *out = NULL;
  *unread_out = false;
  if (!x || set32_count(leave) == x->nr_runs) return REMIXDB_OK;
  if (leave == 0) {
    remix_ref(*out = x);
    return REMIXDB_OK;
  }
  struct sst *runs[REMIX_RUNS_MAX];
  struct remix_build b = {.queue = self->queue, .old = x, .keep = ~leave};
  uint32_t nr = 0;
  for (uint32_t r = 0; r < x->nr_runs; r++)
    if (!(leave >> r & 1)) runs[nr++] = x->runs[r];
  struct budget *const memory = c->ctx->budget;
  // three plain images, with about 24 bytes for a segment's anchor
  const uint64_t image = (uint64_t)remix_segments(x) * (remix_layout(x->nr_runs, x->tags).stride + 24),
                 bytes = (uint64_t)BLKIO_WRITER_NR * BLKIO_WRITER_BUF + 3 * image;
  budget_work_begin(memory, bytes);
  const enum remixdb_status s = views_build(c, &b, runs, nr, remix_is_young(x), x, out);
  budget_work_end(memory, bytes);
  *unread_out = s != REMIXDB_OK && b.old_unread;
  return s;
}

static enum remixdb_status part_without(struct compact *c, struct worker *self, struct part *p, uint32_t leave_old,
                                        uint32_t leave_young, struct part **out, bool *unread_out) {
  struct remix *old, *young = NULL;
  enum remixdb_status s = view_without(c, self, part_remix(p), leave_old, &old, unread_out);
  if (s == REMIXDB_OK) s = view_without(c, self, part_young(p), leave_young, &young, unread_out);
  return part_new(p, s, old, young, true, out);
}

// Makes the tree's partition i for the tree without the tables. One that cannot be read stays as it is. Adds to
// *left_out how many tables have left.
static enum remixdb_status make_without(struct compact *c, struct worker *self, const struct version *tree, uint32_t i,
                                        const struct names *n, uint64_t now, uint32_t *left_out, struct part **out) {
  struct part *const p = tree->parts[i];
  uint32_t runs, young_runs;
  if (!part_is_dropped(tree, i, n) && part_runs_dropped(p, n, now, &runs, &young_runs)) {
    bool cannot;
    const enum remixdb_status s = part_without(c, self, p, runs, young_runs, out, &cannot);
    if (s == REMIXDB_OK) *left_out += set32_count(runs) + set32_count(young_runs);
    if (s == REMIXDB_OK || !cannot) return s;
    unread(c, p, n, PART_STUCK, s);
  }
  part_ref(*out = p);
  return REMIXDB_OK;
}

// Makes the tree without the tables. *left_out: how many have left.
static enum remixdb_status tree_without(struct compact *c, struct worker *self, const struct version *tree,
                                        const struct names *n, uint32_t *left_out, struct version **out) {
  struct part **const parts = mem_calloc(tree->nr_parts, sizeof(*parts));
  if (!parts) return REMIXDB_NOMEM;
  enum remixdb_status s = REMIXDB_OK;
  const uint64_t now = time_ns();
  uint32_t nr = 0;
  *left_out = 0;
  for (; nr < tree->nr_parts && s == REMIXDB_OK; nr += s == REMIXDB_OK)
    s = make_without(c, self, tree, nr, n, now, left_out, &parts[nr]);
  for (uint32_t i = 0; i < nr; i++) part_ref(parts[i]);
  if (s == REMIXDB_OK) s = version_create(parts, nr, out);
  else
    for (uint32_t i = 0; i < nr; i++) part_unref(parts[i]);
  err_cleanup_begin();
  for (uint32_t i = 0; i < nr; i++) {
    if (s != REMIXDB_OK) part_new_drop(parts[i], tree->parts[i], true);
    else part_unref(parts[i]);
  }
  err_cleanup_end();
  mem_free(parts);
  return s;
}

enum remixdb_status compact_dropped_tables(struct compact *c, struct worker *self, const struct version *base,
                                           struct version **out) {
  assert(base->names && base->spaces);
  struct version *tree, *v;
  uint32_t left;
  *out = NULL;
  enum remixdb_status s = tree_without(c, self, base->spaces, base->names, &left, &tree);
  if (s != REMIXDB_OK) return s;
  if (left == 0) {
    version_unref(tree);
    return s;
  }
  version_like(tree, base->spaces);
  if ((s = version_copy(base, &v)) != REMIXDB_OK) {
    err_cleanup_begin();
    compact_retire_tree(tree, base->spaces);
    version_unref(tree);
    err_cleanup_end();
    return s;
  }
  version_unref(v->spaces);
  v->spaces = tree;
  names_unref(v->names);
  v->names = NULL;
  atomic_fetch_add_explicit(&c->stats.dropped_tables, left, memory_order_relaxed);
  *out = v;
  return s;
}
