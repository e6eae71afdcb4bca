// SPDX-License-Identifier: Apache-2.0
#include "store/ranges.h"

#include <assert.h>
#include <stdlib.h>

#include "store/edit.h"
#include "store/idle.h"
#include "store/round.h"
#include "store/space.h"
#include "store/value_pace.h"
#include "store/values.h"
#include "store/write.h"
#include "store/write_steps.h"

#define FULL_PART 16u     // tombstones of a range with many keys take at most this part of a memtable
#define LEFT_OUT_COST 4u  // so many keys may be gathered in vain for each one that gets a tombstone

static struct kref op_key(const struct batch_op *op) { return kref(op->rec.key, op->rec.klen); }

static bool is_empty(struct kref from, struct kref to) { return to.ptr && kv_cmp(from, to) >= 0; }

// ---- the calls

// Sets g->few. Fails with REMIXDB_TOOBIG if the ranges have more keys in the tables of v. A range with more than
// xdb.ranges.few keys may be a small part of what it cuts: then tombstones cost less than the indexes that an edit
// writes again. They must not fill the log and the memtable, and so have a bound.
static enum remixdb_status set_few(struct range_group *g, struct xdb *x, struct epoch_slot *slot,
                                   const struct super *v) {
  enum remixdb_status s = REMIXDB_OK;
  uint64_t most = xdb_memtable_limit(x) / FULL_PART / wh_record_memory(0, 0), keys = 0, indexed = 0;
  if (most > x->ranges.most) most = x->ranges.most;
  if (most < x->ranges.few) most = x->ranges.few;
  for (uint32_t t = 0; t < TREES && s == REMIXDB_OK; t++) {
    struct compact_erase e = {.c = &x->compact,
                              .slot = slot,
                              .tree = t,
                              .ranges = g->trees[t].ranges,
                              .nr = g->trees[t].nr_ranges,
                              .few = x->ranges.cut_few};
    uint64_t more;
    s = compact_range_keys(&e, v->version, most, &more);
    keys += more;
    indexed += e.indexed;
  }
  if (most > indexed / RANGES_ENTRIES) most = indexed / RANGES_ENTRIES;
  g->few = keys > x->ranges.few && most > x->ranges.few ? most : x->ranges.few;
  return s == REMIXDB_OK && keys > g->few ? REMIXDB_TOOBIG : s;
}

// After the gathering, if there are more than xdb.ranges.few keys: tells whether an edit costs less all the same. The
// tombstones would take much of the memtable; or most of the keys in tables are deleted already, and each later call
// would gather them in vain.
static bool edit_is_better(const struct xdb *x, const struct range_group *g) {
  const uint64_t nr = g->trees[0].nr + g->trees[1].nr;
  if (g->few == x->ranges.few) return false;
  return (nr > x->ranges.few && g->memory > xdb_memtable_limit(x) / FULL_PART) ||
         (g->left_out > x->ranges.few && g->left_out / LEFT_OUT_COST > nr);
}

// One try without an edit. Fails with REMIXDB_TOOBIG if an edit is needed.
static enum remixdb_status write_few(struct range_group *g, struct xdb_ref *r, bool *full_out) {
  struct xdb *const x = r->xdb;
  uint64_t moment;
  struct super *const v = xdb_ref_hold(r, &moment);
  *full_out = g->puts && values_full(x, v->active);
  enum remixdb_status s = *full_out ? REMIXDB_ABORTED : REMIXDB_OK;
  if (s == REMIXDB_OK && g->tombstones) g->few = UINT64_MAX;
  else if (s == REMIXDB_OK) s = set_few(g, x, &r->slot, v);
  if (s == REMIXDB_OK) s = range_group_gather(g, x, &r->slot, v, v->version);
  if (s == REMIXDB_OK && !g->tombstones && edit_is_better(x, g)) s = REMIXDB_TOOBIG;
  if (s == REMIXDB_OK && (*full_out = xdb_round_due(x, v->active, g->memory))) s = REMIXDB_ABORTED;
  if (s == REMIXDB_OK) s = range_group_commit(g, x, &r->slot, v, NULL);
  if (s == REMIXDB_OK) g->memory += g->trees[0].nr_gone * sizeof(struct wh_ver);
  struct err_saved why;
  err_save(&why, s);
  xdb_super_drop(x, v);
  return err_raise(&why);
}

// Writes the long values of the operations apart. *apart_out: one for each operation that has it, tree by tree; NULL:
// none.
static enum remixdb_status put_apart(struct xdb *x, struct range_group *g, struct value_apart **apart_out) {
  const size_t nr = g->trees[0].nr_ops + g->trees[1].nr_ops;
  enum remixdb_status s = REMIXDB_OK;
  *apart_out = NULL;
  size_t at = 0;
  for (uint32_t t = 0; t < TREES; t++) {
    for (size_t i = 0; i < g->trees[t].nr_ops && s == REMIXDB_OK; i++, at++) {
      struct kv_rec *const rec = &g->trees[t].ops[i].rec;
      if (!values_direct(rec->klen, rec->vlen)) continue;
      if (!*apart_out) value_pace(x);
      if (!*apart_out && !(*apart_out = mem_calloc(nr, sizeof(**apart_out)))) return REMIXDB_NOMEM;
      s = write_apart(x, rec, &(*apart_out)[at]);
      if (s == REMIXDB_OK) s = values_keep(x, &(*apart_out)[at]);
    }
  }
  return s;
}

// Before a try of a transaction: what an earlier try has found to be due.
static enum remixdb_status try_begin(struct xdb *x, const struct range_group *g) {
  const enum remixdb_status s = xdb_failure(x);
  return s == REMIXDB_OK && g->check ? g->check->tables(g->check) : s;
}

enum remixdb_status ranges_commit(struct xdb_ref *r, struct range_group *g) {
  struct xdb *const x = r->xdb;
  struct value_apart *apart = NULL;
  enum remixdb_status s = range_group_ready(g);
  if (s == REMIXDB_OK) s = put_apart(x, g, &apart);
  bool tried = false, waited = false, again = true;
  while (again && s == REMIXDB_OK) {
    bool full;
    if ((s = try_begin(x, g)) != REMIXDB_OK) break;
    s = write_few(g, r, &full);
    if (s == REMIXDB_TOOBIG && !g->tombstones) {
      struct xdb_edit e = {.group = g};
      s = xdb_edit(x, &e);
    }
    if (s == REMIXDB_NOSPACE && !tried) {
      tried = true;
      s = write_no_room(x, !g->puts);
    }
    again = s == REMIXDB_ABORTED && !(g->check && g->check->conflict);
    if (again) s = full ? write_wait_room(x, g->memory, waited) : REMIXDB_OK;
    waited = waited || full;
  }
  const size_t memory = g->memory;
  struct err_saved why;
  err_save(&why, s);
  for (size_t i = 0; apart && i < g->trees[0].nr_ops + g->trees[1].nr_ops; i++) s = values_end(x, &apart[i], s);
  if (unlikely(s != why.status)) err_save(&why, s);  // a sync has failed there
  mem_free(apart);
  range_group_fini(g);
  return s == REMIXDB_OK ? write_done(r, memory) : err_raise(&why);
}

static enum remixdb_status del_range(struct xdb_ref *r, uint32_t tree, struct kref from, struct kref to, bool named) {
  struct range_group g = {.named = named};
  struct compact_range *const range = mem_alloc(sizeof(*range));
  if (!range) return REMIXDB_NOMEM;
  *range = (struct compact_range){from, to};
  g.trees[tree].ranges = range;
  g.trees[tree].nr_ranges = 1;
  return ranges_commit(r, &g);
}

enum remixdb_status ranges_delete(struct xdb_ref *r, uint32_t tree, struct kref from, struct kref to, bool named) {
  enum remixdb_status s = write_check(r);
  if (s == REMIXDB_OK) s = xdb_failure(r->xdb);
  if (!from.ptr) from = kref("", 0);
  return s == REMIXDB_OK && !is_empty(from, to) ? del_range(r, tree, from, to, named) : s;
}

enum remixdb_status ranges_delete_prefix(struct xdb_ref *r, uint32_t tree, struct kref prefix) {
  uint32_t len = prefix.len;
  while (len > 0 && prefix.ptr[len - 1] == 0xff) len--;
  if (len == 0) return ranges_delete(r, tree, prefix, kref(NULL, 0), false);
  uint8_t *const end = mem_alloc(len);
  if (!end) return REMIXDB_NOMEM;
  memcpy(end, prefix.ptr, len);
  end[len - 1]++;
  const enum remixdb_status s = ranges_delete(r, tree, prefix, kref(end, len), false);
  mem_free(end);
  return s;
}

// ---- batches

// The ranges of a batch in one tree, as stretches of keys between their bounds. Each knows the last range that has it.
struct painted {
  struct kref *bounds;  // ascending, different
  size_t *last;  // for the stretch from bound i to the next one: the number of the range's operation and 1; 0: none
  uint32_t *on;  // the first stretch at or after i that has no range yet
  uint32_t nr;
};

static void painted_fini(struct painted *p) {
  mem_free(p->bounds);
  mem_free(p->last);
  mem_free(p->on);
}

static int key_order(const void *a, const void *b) { return kv_cmp(*(const struct kref *)a, *(const struct kref *)b); }

// The last bound at or before the key; nr: there is none.
static uint32_t painted_find(const struct painted *p, struct kref key) {
  uint32_t lo = 0, hi = p->nr;
  while (lo < hi) {
    const uint32_t mid = lo + (hi - lo) / 2;
    if (kv_cmp(p->bounds[mid], key) <= 0) lo = mid + 1;
    else hi = mid;
  }
  return lo ? lo - 1 : p->nr;
}

static uint32_t painted_next(struct painted *p, uint32_t i) {
  while (p->on[i] != i) i = p->on[i] = p->on[p->on[i]];
  return i;
}

// numbers: those of the operations, ascending. Later ranges come first, so each stretch is painted once.
static enum remixdb_status painted_make(struct painted *p, const struct compact_range *ranges, const size_t *numbers,
                                        uint32_t nr) {
  *p = (struct painted){.bounds = mem_array(2 * (size_t)nr + 1, sizeof(*p->bounds), 0),
                        .last = mem_calloc(2 * (size_t)nr + 1, sizeof(*p->last)),
                        .on = mem_array(2 * (size_t)nr + 2, sizeof(*p->on), 0)};
  if (!p->bounds || !p->last || !p->on) return REMIXDB_NOMEM;
  uint32_t all = 0;
  for (uint32_t i = 0; i < nr; i++) {
    p->bounds[all++] = ranges[i].from;
    if (ranges[i].to.ptr) p->bounds[all++] = ranges[i].to;
  }
  if (all) qsort(p->bounds, all, sizeof(*p->bounds), key_order);
  for (uint32_t i = 0; i < all; i++)
    if (i == 0 || !kv_eq(p->bounds[p->nr - 1], p->bounds[i])) p->bounds[p->nr++] = p->bounds[i];
  for (uint32_t i = 0; i <= p->nr; i++) p->on[i] = i;
  for (uint32_t i = nr; i-- > 0;) {
    const uint32_t end = ranges[i].to.ptr ? painted_find(p, ranges[i].to) : p->nr;
    for (uint32_t k = painted_next(p, painted_find(p, ranges[i].from)); k < end; k = painted_next(p, k)) {
      p->last[k] = numbers[i] + 1;
      p->on[k] = k + 1;
    }
  }
  return REMIXDB_OK;
}

// Whether a range after operation number `at` has the key.
static bool painted_over(const struct painted *p, struct kref key, size_t at) {
  const uint32_t i = painted_find(p, key);
  return i < p->nr && p->last[i] > at + 1;
}

// The end of a range in the spaces' tree: with the id of its space before it; an open one has the next id. *room:
// memory.
static struct kref space_end(const struct kv_rec *rec, uint8_t **room) {
  const uint32_t id = names_id_get(rec->key);
  const struct kref end = kref(*room, NAMES_ID + rec->vlen);
  names_id_put(*room, rec->vlen ? id : id + 1);
  if (rec->vlen) memcpy(*room + NAMES_ID, rec->val, rec->vlen);
  *room += end.len;
  return end;
}

// Splits a batch by kind and tree. list: from batch_listed. numbers: for each tree's ranges, the operations' numbers.
static enum remixdb_status batch_split(const struct batch_op *list, size_t nr, struct range_group *g,
                                       size_t *numbers[TREES]) {
  size_t bytes = 1;
  for (size_t i = 0; i < nr; i++)
    if (list[i].rec.kind & KV_RANGE) bytes += NAMES_ID + (size_t)list[i].rec.vlen;
  uint8_t *room = g->bounds = mem_alloc(bytes);
  if (!room) return REMIXDB_NOMEM;
  for (uint32_t t = 0; t < TREES; t++) {
    g->trees[t].ranges = mem_array(nr + 1, sizeof(*g->trees[t].ranges), 0);
    g->trees[t].ops = mem_array(nr + 1, sizeof(*g->trees[t].ops), 0);
    numbers[t] = mem_array(nr + 1, sizeof(*numbers[t]), 0);
    if (!g->trees[t].ranges || !g->trees[t].ops || !numbers[t]) return REMIXDB_NOMEM;
  }
  for (size_t i = 0; i < nr; i++) {
    const struct kv_rec *const rec = &list[i].rec;
    const uint32_t tree = rec->kind & KV_SPACES ? TREE_SPACES : TREE_UNNAMED;
    struct range_tree *const t = &g->trees[tree];
    g->puts = g->puts || !(rec->kind & (KV_TOMB | KV_RANGE));
    if (!(rec->kind & KV_RANGE)) {
      t->ops[t->nr_ops++] = list[i];
      continue;
    }
    const struct kref to = tree == TREE_SPACES ? space_end(rec, &room) : kref(rec->vlen ? rec->val : NULL, rec->vlen);
    numbers[tree][t->nr_ranges] = i;
    t->ranges[t->nr_ranges++] = (struct compact_range){kref(rec->key, rec->klen), to};
  }
  return REMIXDB_OK;
}

// Orders by key, the later operation first.
static int op_later(const void *a, const void *b) {
  const struct batch_op *const x = a, *const y = b;
  const int c = kv_cmp(op_key(x), op_key(y));
  return c ? c : (x->at < y->at) - (x->at > y->at);
}

// Keeps the last operation on each key, if no later range has the key.
static enum remixdb_status ops_settle(struct range_tree *t, const size_t *numbers) {
  struct painted p;
  const enum remixdb_status s = painted_make(&p, t->ranges, numbers, t->nr_ranges);
  size_t nr = 0;
  if (s == REMIXDB_OK && t->nr_ops) qsort(t->ops, t->nr_ops, sizeof(*t->ops), op_later);
  struct kref last = kref(NULL, 0);
  for (size_t i = 0; s == REMIXDB_OK && i < t->nr_ops; i++) {
    const struct kref key = op_key(&t->ops[i]);
    if (last.ptr && kv_eq(last, key)) continue;
    last = key;
    if (!painted_over(&p, key, t->ops[i].at)) t->ops[nr++] = t->ops[i];
  }
  painted_fini(&p);
  t->nr_ops = nr;
  return s;
}

enum remixdb_status ranges_write(struct xdb_ref *r, const struct xdb_batch *b) {
  struct range_group g = {.puts = false, .named = true};
  size_t *numbers[TREES] = {NULL, NULL};
  struct batch_op *list = NULL;
  enum remixdb_status s = batch_listed(b, r->space ? r->space->id : 0, &list);
  if (s == REMIXDB_OK) s = batch_split(list, b->nr, &g, numbers);
  for (uint32_t t = 0; t < TREES && s == REMIXDB_OK; t++) s = ops_settle(&g.trees[t], numbers[t]);
  for (uint32_t t = 0; t < TREES; t++) mem_free(numbers[t]);
  if (s == REMIXDB_OK) s = ranges_commit(r, &g);
  else range_group_fini(&g);
  mem_free(list);
  return s;
}
