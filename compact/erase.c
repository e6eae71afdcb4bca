// SPDX-License-Identifier: Apache-2.0
#include "compact/erase.h"

#include <assert.h>
#include <stdlib.h>

#include "compact/job.h"
#include "compact/part_new.h"
#include "remix/erase.h"
#include "remix/paged.h"

// The part of a partition that the ranges take.
struct cut {
  bool whole;     // all keys of the partition lie in one range
  bool damaged;   // so it is known by its anchors: it cannot be opened
  uint64_t live;  // live entries of both views
};

static bool before(struct kref key, struct kref bound) { return !bound.ptr || kv_cmp(key, bound) < 0; }
static bool at_or_behind(struct kref key, struct kref bound) { return !bound.ptr || kv_cmp(key, bound) >= 0; }

static const struct sst *first_table(const struct part *p) {
  const struct sst *first = part_run(p, 0);
  for (uint32_t r = 1; r < part_runs(p); r++)
    if (kv_cmp(part_run(p, r)->min, first->min) < 0) first = part_run(p, r);
  return first;
}

static uint64_t live_of(const struct remix *x) { return x ? remix_live(x) : 0; }

static uint64_t entries_of(const struct remix *x) { return x ? x->nr_entries : 0; }

// Adds the live entries that the ranges take of a view, by ranks. If the view is paged, only the bounds' pages are
// read.
static enum remixdb_status count_view(const struct compact_erase *e, struct remix *x, struct sst_hold *hold,
                                      uint64_t *live) {
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; x && i < e->nr && s == REMIXDB_OK; i++) {
    const struct compact_range *const r = &e->ranges[i];
    uint64_t from = 0, to = remix_live(x);
    epoch_enter(e->c->epoch, e->slot);
    if (r->from.ptr && r->from.len) s = remix_rank(x, r->from, hold, &from);
    if (r->to.ptr && s == REMIXDB_OK) s = remix_rank(x, r->to, hold, &to);
    epoch_exit(e->slot);
    if (s == REMIXDB_OK && to > from) *live += to - from;
  }
  return s;
}

// Tells whether the tree can have a key in from <= key < to. to.ptr NULL: no upper bound.
static bool may_have(const struct compact_erase *e, struct kref from, struct kref to) {
  if (e->names) return names_may_have(e->names, from, to);
  return !to.ptr || kv_cmp(from, to) < 0;
}

// Tells whether the ranges have all keys that can belong to the tree's partition `at`.
static bool covers(const struct compact_erase *e, const struct version *tree, uint32_t at) {
  const struct kref end = at + 1 < tree->nr_parts ? part_anchor(tree->parts[at + 1]) : kref(NULL, 0);
  struct kref from = part_anchor(tree->parts[at]);  // keys before this one are covered
  for (uint32_t i = 0; i < e->nr; i++) {
    const struct compact_range *const r = &e->ranges[i];
    if (r->from.ptr && end.ptr && kv_cmp(r->from, end) >= 0) break;
    if (r->from.ptr && may_have(e, from, r->from)) return false;
    if (!r->to.ptr) return true;
    if (kv_cmp(from, r->to) < 0) from = r->to;
  }
  return !may_have(e, from, end);
}

static void find_names(struct compact_erase *e, const struct version *base) {
  e->names = e->tree == TREE_SPACES ? base->names : NULL;
}

// Finds out what the ranges take of the tree's partition `at`.
static enum remixdb_status cut_part(const struct compact_erase *e, const struct version *tree, uint32_t at,
                                    struct cut *out) {
  const struct part *const p = tree->parts[at];
  *out = (struct cut){.whole = false};
  const enum remixdb_status ready = part_ready(p);
  if (ready == REMIXDB_CORRUPT && covers(e, tree, at)) {
    *out = (struct cut){.whole = true, .damaged = true, .live = p->away->keys};
    return REMIXDB_OK;
  }
  if (ready != REMIXDB_OK || !part_remix(p)) return ready;
  const struct kref min = first_table(p)->min, max = last_table(p)->max;
  bool any = false;
  for (uint32_t i = 0; i < e->nr; i++) {
    const struct compact_range *const r = &e->ranges[i];
    out->whole = out->whole || (at_or_behind(min, r->from) && before(max, r->to));
    any = any || (at_or_behind(max, r->from) && before(min, r->to));
  }
  if (out->whole) out->live = live_of(part_remix(p)) + live_of(part_young(p));
  if (out->whole || !any) return REMIXDB_OK;
  struct sst_hold hold = {0};
  enum remixdb_status s = count_view(e, part_remix(p), &hold, &out->live);
  if (s == REMIXDB_OK) s = count_view(e, part_young(p), &hold, &out->live);
  sst_hold_fini(&hold);
  return s;
}

// The partitions that some of the ranges touch: [*from_out, *end_out).
static void parts_touched(const struct compact_erase *e, const struct version *tree, uint32_t *from_out,
                          uint32_t *end_out) {
  const struct kref from = e->ranges[0].from, to = e->ranges[e->nr - 1].to;
  *from_out = from.ptr ? version_find(tree, from) : 0;
  *end_out = to.ptr ? version_find(tree, to) + 1 : tree->nr_parts;
}

enum remixdb_status compact_range_keys(struct compact_erase *e, const struct version *base, uint64_t most,
                                       uint64_t *keys_out) {
  const struct version *const tree = version_tree(base, e->tree);
  uint32_t i = 0, end = 0;
  *keys_out = e->indexed = 0;
  find_names(e, base);
  if (tree && e->nr) parts_touched(e, tree, &i, &end);
  for (; i < end && *keys_out <= most; i++) {
    struct cut k;
    const enum remixdb_status s = cut_part(e, tree, i, &k);
    if (s != REMIXDB_OK) return s;
    // one by one they would have to be read
    const bool unread = k.damaged || (k.whole && part_unread_ns(tree->parts[i]) == PART_DAMAGED);
    *keys_out = unread && most < UINT64_MAX ? most + 1 : *keys_out + k.live;
    const struct part *const p = tree->parts[i];
    if (!k.whole && k.live > e->few) e->indexed += entries_of(part_remix(p)) + entries_of(part_young(p));
  }
  return REMIXDB_OK;
}

// Finds the entries of each range in a view that is whole.
static enum remixdb_status spans_find(const struct compact_erase *e, struct remix *x, struct remix_span *spans) {
  struct remix_cursor cursor;
  enum remixdb_status s = REMIXDB_OK;
  remix_cursor_init(&cursor, NULL);
  for (uint32_t i = 0; i < e->nr && s == REMIXDB_OK; i++) {
    epoch_enter(e->c->epoch, e->slot);
    s = remix_span_find(&cursor, x, e->ranges[i].from, e->ranges[i].to, &spans[i]);
    epoch_exit(e->slot);
  }
  epoch_enter(e->c->epoch, e->slot);
  remix_cursor_fini(&cursor);
  epoch_exit(e->slot);
  return s;
}

// The same for a view that is whole. spans: memory, one for each range.
static enum remixdb_status erase_whole(const struct compact_erase *e, struct remix *x, struct remix_span *spans,
                                       struct remix **out) {
  uint64_t bytes = 0;
  enum remixdb_status s = spans_find(e, x, spans);
  if (s != REMIXDB_OK) return s;
  const uint64_t number = e->queue ? compact_new_number(e->c, remix_name) : 0;
  s = remix_erase(x, spans, e->nr, e->queue, number, out, &bytes);
  if (s != REMIXDB_OK) return s;
  atomic_fetch_add_explicit(&e->c->stats.remix_bytes, bytes, memory_order_relaxed);
  remix_watch(*out, e->c->watch);
  return s;
}

// The view without the entries of the ranges. x NULL: *out is NULL.
static enum remixdb_status erase_view(const struct compact_erase *e, struct remix *x, struct remix **out) {
  struct remix *whole = NULL;
  *out = NULL;
  if (!x) return REMIXDB_OK;
  struct remix_span *const spans = mem_array(e->nr, sizeof(*spans), 0);
  enum remixdb_status s = spans ? remix_whole(x, &whole) : REMIXDB_NOMEM;
  if (s == REMIXDB_OK) s = erase_whole(e, whole, spans, out);
  remix_unref(whole);
  mem_free(spans);
  return s;
}

// Makes a partition whose entries are erased.
static enum remixdb_status erase_part(const struct compact_erase *e, const struct part *p, struct part **out) {
  struct remix *old, *young = NULL;
  enum remixdb_status s = erase_view(e, part_remix(p), &old);
  if (s == REMIXDB_OK) s = erase_view(e, part_young(p), &young);
  return part_new(p, s, old, young, e->queue != NULL, out);
}

// Adds what is left of a partition to parts. The first partition of a tree stays, because its anchor is empty, and so
// does one behind a partition that is away (P8 in view/part.h).
static enum remixdb_status add_rest(struct compact_erase *e, const struct version *tree, uint32_t at,
                                    struct part **parts, uint32_t *nr, bool *any) {
  struct part *const p = tree->parts[at];
  struct cut k;
  enum remixdb_status s = cut_part(e, tree, at, &k);
  if (s != REMIXDB_OK) return s;
  const bool stays = !k.whole && k.live <= e->few, leaves = k.whole && part_takes_over(*nr ? parts[*nr - 1] : NULL);
  if (stays) {
    e->left += k.live;
    part_ref(p);
    parts[*nr] = p;
  } else {
    e->keys += k.live;
    *any = true;
    *(k.whole ? &e->dropped : &e->erased) += 1;
    if (leaves) s = REMIXDB_OK;
    else if (k.whole) s = part_create(part_anchor(p), NULL, NULL, &parts[*nr]);
    else s = erase_part(e, p, &parts[*nr]);
  }
  if (s == REMIXDB_OK && !leaves) (*nr)++;
  return s;
}

// Drops the partitions, and the files that were made for them.
static void parts_drop(const struct compact_erase *e, const struct version *tree, struct part **parts, uint32_t nr) {
  err_cleanup_begin();
  for (uint32_t i = 0; i < nr; i++)
    part_new_drop(parts[i], tree->parts[version_find(tree, part_anchor(parts[i]))], e->queue != NULL);
  err_cleanup_end();
}

// Makes the next version of the tree. *out NULL: it stays as it is.
static enum remixdb_status erase_tree(struct compact_erase *e, const struct version *tree, struct version **out) {
  *out = NULL;
  struct part **const parts = mem_calloc(tree->nr_parts, sizeof(*parts));
  if (!parts) return REMIXDB_NOMEM;
  uint32_t nr = 0, from, end;
  bool any = false;
  enum remixdb_status s = REMIXDB_OK;
  parts_touched(e, tree, &from, &end);
  for (uint32_t i = 0; i < tree->nr_parts && s == REMIXDB_OK; i++) {
    if (i >= from && i < end) {
      s = add_rest(e, tree, i, parts, &nr, &any);
      continue;
    }
    part_ref(tree->parts[i]);
    parts[nr++] = tree->parts[i];
  }
  if (s == REMIXDB_OK && any) {
    for (uint32_t i = 0; i < nr; i++) part_ref(parts[i]);
    s = version_create(parts, nr, out);
  }
  if (s != REMIXDB_OK) parts_drop(e, tree, parts, nr);
  else
    for (uint32_t i = 0; i < nr; i++) part_unref(parts[i]);
  if (*out) version_like(*out, tree);
  mem_free(parts);
  return s;
}

static int range_order(const void *a, const void *b) {
  return kv_cmp(((const struct compact_range *)a)->from, ((const struct compact_range *)b)->from);
}

uint32_t compact_ranges_join(struct compact_range *ranges, uint32_t nr) {
  uint32_t last = 0;
  if (nr == 0) return 0;
  qsort(ranges, nr, sizeof(*ranges), range_order);
  for (uint32_t i = 1; i < nr; i++) {
    struct compact_range *const l = &ranges[last];
    const struct compact_range *const r = &ranges[i];
    if (l->to.ptr && kv_cmp(r->from, l->to) > 0) ranges[++last] = *r;
    else if (l->to.ptr && (!r->to.ptr || kv_cmp(r->to, l->to) > 0)) l->to = r->to;
  }
  return last + 1;
}

enum remixdb_status compact_erase(struct compact_erase *e, struct version *base, struct version **out) {
  const struct version *const tree = version_tree(base, e->tree);
  struct version *next;
  *out = NULL;
  find_names(e, base);
  e->keys = e->left = 0;
  e->dropped = e->erased = 0;
  if (!tree || e->nr == 0) return REMIXDB_OK;
  enum remixdb_status s = erase_tree(e, tree, &next);
  if (s != REMIXDB_OK || !next) return s;
  if (e->tree == TREE_UNNAMED) {
    next->spaces = base->spaces;
    if (base->spaces) version_ref(base->spaces);
    *out = next;
    return s;
  }
  if ((s = version_copy(base, out)) != REMIXDB_OK) {
    err_cleanup_begin();
    if (e->queue) compact_retire(next, tree);
    version_unref(next);
    err_cleanup_end();
    return s;
  }
  version_unref((*out)->spaces);
  (*out)->spaces = next;
  return s;
}

// ---- views that no file has

static bool is_unfiled(const struct remix *x) { return x && x->unfiled; }
static bool part_unfiled(const struct part *p) { return is_unfiled(part_remix(p)) || is_unfiled(part_young(p)); }

bool compact_unfiled(const struct version *v) {
  for (const struct version *tree = v; tree; tree = tree->spaces)
    for (uint32_t i = 0; i < tree->nr_parts; i++)
      if (part_unfiled(tree->parts[i])) return true;
  return false;
}

// x NULL: *out is NULL.
static enum remixdb_status file_view(struct compact_filing *f, struct remix *x, struct remix **out) {
  uint64_t bytes;
  if (is_unfiled(x)) return remix_file_again(x, f->ctx, f->queue, f->next_file++, out, &bytes);
  if (x) remix_ref(x);
  *out = x;
  return REMIXDB_OK;
}

static enum remixdb_status file_part(struct compact_filing *f, struct part *p, struct part **out) {
  struct remix *remix = NULL, *young = NULL;
  if (!part_unfiled(p)) {
    part_ref(*out = p);
    return REMIXDB_OK;
  }
  enum remixdb_status s = file_view(f, part_remix(p), &remix);
  if (s == REMIXDB_OK) s = file_view(f, part_young(p), &young);
  return part_new(p, s, remix, young, false, out);
}

static enum remixdb_status file_tree(struct compact_filing *f, const struct version *tree, struct version **out) {
  struct part **const parts = mem_array(tree->nr_parts, sizeof(*parts), 0);
  if (!parts) return REMIXDB_NOMEM;
  enum remixdb_status s = REMIXDB_OK;
  uint32_t nr = 0;
  for (; nr < tree->nr_parts && s == REMIXDB_OK; nr += s == REMIXDB_OK) s = file_part(f, tree->parts[nr], &parts[nr]);
  if (s == REMIXDB_OK) s = version_create(parts, nr, out);
  else
    for (uint32_t i = 0; i < nr; i++) part_unref(parts[i]);
  if (s == REMIXDB_OK) version_like(*out, tree);
  mem_free(parts);
  return s;
}

enum remixdb_status compact_file_views(struct compact_filing *f, const struct version *v, struct version **out) {
  struct version *made;
  enum remixdb_status s = file_tree(f, v, &made);
  if (s != REMIXDB_OK) return s;
  if (v->spaces && (s = file_tree(f, v->spaces, &made->spaces)) != REMIXDB_OK) {
    version_unref(made);
    return s;
  }
  *out = made;
  return s;
}
