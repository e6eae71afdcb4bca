// SPDX-License-Identifier: Apache-2.0
#include "compact/dropped.h"

#include <assert.h>

#include "compact/job.h"
#include "compact/part_new.h"
#include "compact/views.h"
#include "remix/erase.h"
#include "value/format.h"

#define DROPPED_LOOKS 256u  // records of a view that are read at most, to find out what they have apart

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

// The live keys of the view in the current stretch, as ranks. Inside an epoch.
static enum remixdb_status ranks_of(const struct remix *x, const struct gaps *g, struct sst_hold *hold, uint64_t *from,
                                    uint64_t *to) {
  *from = *to = 0;
  const enum remixdb_status s = remix_rank(x, kref(g->from, NAMES_ID), hold, from);
  return s == REMIXDB_OK ? remix_rank(x, kref(g->to, NAMES_ID), hold, to) : s;
}

// Tells whether the view has a live key in the current stretch.
static enum remixdb_status has_keys(struct compact *c, struct epoch_slot *slot, struct remix *x, const struct gaps *g,
                                    bool *any) {
  if (!x || *any) return REMIXDB_OK;
  struct sst_hold hold = {0};
  uint64_t from, to;
  epoch_enter(c->epoch, slot);
  const enum remixdb_status s = ranks_of(x, g, &hold, &from, &to);
  sst_hold_fini(&hold);
  epoch_exit(slot);
  *any = s == REMIXDB_OK && to > from;
  return s;
}

// ---- bytes

static uint64_t values_of(const struct sst *t) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < t->nr_apart; i++) sum += t->apart[i].bytes;
  return sum;
}

static uint64_t stretch_segments(const struct remix *x, const struct gaps *g) {
  return remix_segment(x, kref(g->to, NAMES_ID)) - remix_segment(x, kref(g->from, NAMES_ID)) + 1;
}

// Estimates the bytes of the view's tables that are in the stretches, by the segments that these take. A stretch takes
// one at least. values: with their values apart.
static uint64_t view_bytes(const struct remix *x, struct gaps g, bool values, uint64_t *all) {
  const uint32_t nr_segs = x ? remix_segments(x) : 0;
  if (nr_segs == 0) return 0;
  uint64_t bytes = 0, segs = 0;
  for (uint32_t r = 0; r < x->nr_runs; r++) bytes += x->runs[r]->file_size + (values ? values_of(x->runs[r]) : 0);
  while (gaps_next(&g)) segs += stretch_segments(x, &g);
  *all += bytes;
  return segs >= nr_segs ? bytes : (uint64_t)((double)bytes * (double)segs / nr_segs);
}

static uint64_t part_bytes(const struct part *p, const struct names *n, bool values, uint64_t *all) {
  struct gaps g;
  gaps_init(&g, p, n);
  return view_bytes(part_remix(p), g, values, all) + view_bytes(part_young(p), g, values, all);
}

static enum remixdb_status add_apart(void *arg, const struct kv_rec *rec, uint32_t nr) {
  (void)nr;
  struct value_ref ref;
  if ((rec->kind & KV_APART) && value_ref_get(rec->val, rec->vlen, &ref)) *(uint64_t *)arg += ref.len;
  return REMIXDB_OK;
}

// Estimates the bytes of the values apart that live records of the current stretch refer to. Reads *left records at
// most, at equal distances, and takes them off.
static enum remixdb_status stretch_apart(struct remix *x, const struct gaps *g, struct sst_hold *hold, uint64_t *left,
                                         double *bytes) {
  uint64_t from, to, sum = 0;
  enum remixdb_status s = ranks_of(x, g, hold, &from, &to);
  const uint64_t all = to > from ? to - from : 0, nr = all < *left ? all : *left;
  for (uint64_t i = 0; i < nr && s == REMIXDB_OK; i++) {
    const uint64_t rank = from + (uint64_t)((double)i * (double)all / (double)nr);
    s = remix_live_near(x, rank, rank, rank + 1, hold, add_apart, &sum);
  }
  if (nr) *bytes += (double)sum * (double)all / (double)nr;
  *left -= nr ? nr : 1;  // a stretch without keys has cost as much
  return s;
}

// The same for all stretches of a view. Those that are left when enough was read have as much in a segment as the
// others.
static enum remixdb_status view_apart(struct compact *c, struct epoch_slot *slot, struct remix *x, struct gaps g,
                                      double *bytes) {
  struct sst_hold hold = {0};
  uint64_t left = DROPPED_LOOKS, seen = 0, segs = 0;
  double sum = 0;
  enum remixdb_status s = REMIXDB_OK;
  while (x && s == REMIXDB_OK && gaps_next(&g)) {
    const uint64_t more = stretch_segments(x, &g);
    segs += more;
    if (left == 0) continue;
    seen += more;
    epoch_enter(c->epoch, slot);
    s = stretch_apart(x, &g, &hold, &left, &sum);
    epoch_exit(slot);
  }
  sst_hold_fini(&hold);
  if (seen) *bytes += sum * (double)segs / (double)seen;
  return s;
}

uint64_t compact_dropped_bytes(const struct version *base) {
  const struct version *const tree = base->spaces;
  uint64_t sum = 0, all = 0;
  for (uint32_t i = 0; names_dropped(base->names) && tree && i < tree->nr_parts; i++)
    if (part_has_dropped(tree->parts[i], base->names)) sum += part_bytes(tree->parts[i], base->names, true, &all);
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

// Tells whether a partition with keys of dropped spaces is worth a merge, which writes its tables and no value apart.
static enum remixdb_status worth(struct compact *c, struct epoch_slot *slot, const struct part *p,
                                 const struct names *n, bool *out) {
  uint64_t all = 0;
  struct gaps g;
  gaps_init(&g, p, n);
  double bytes = (double)part_bytes(p, n, false, &all);
  const double enough = (double)all / COMPACT_DROPPED_SHARE;
  enum remixdb_status s = REMIXDB_OK;
  if (bytes < enough && has_apart(p)) {
    s = view_apart(c, slot, part_remix(p), g, &bytes);
    if (s == REMIXDB_OK) s = view_apart(c, slot, part_young(p), g, &bytes);
  }
  *out = bytes >= enough;
  return s;
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
  bool any = s == REMIXDB_OK && part_has_dropped(p, n), due = false;
  gaps_init(&g, p, n);
  while (!any && s == REMIXDB_OK && gaps_next(&g)) {
    s = has_keys(c, slot, part_remix(p), &g, &any);
    if (s == REMIXDB_OK) s = has_keys(c, slot, part_young(p), &g, &any);
  }
  if (s == REMIXDB_OK && any) s = worth(c, slot, p, n, &due);
  if (s == REMIXDB_OK) part_set_dropped(p, n, !any ? PART_CLEAN : due ? PART_DUE : PART_FEW);
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
