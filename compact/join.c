// SPDX-License-Identifier: Apache-2.0
#include "compact/join.h"

#include <assert.h>

#include "compact/plan.h"

// Neighbours that may become one.
struct group {
  uint64_t now;   // as of a round
  uint64_t room;  // bound of `bytes`
  uint32_t nr;
  uint64_t bytes;  // bytes of the result
  uint64_t most;   // the most of them from one partition that the round would not write as a whole
  uint64_t reads;  // bytes of runs
  uint64_t cost;   // bytes that the join reads and writes, and the round would not
};

// A group of none. share: COMPACT_JOIN.
static struct group group_none(const struct compact *c, uint32_t share, uint64_t now) {
  return (struct group){.now = now, .room = table_bytes(c) / share};
}

static uint32_t join_share(const struct compact *c) { return atomic_load_explicit(&c->join, memory_order_relaxed); }

// Tells whether nothing lives in a partition, for certain: a young view may hide all of the older one, and nobody has
// counted that.
static bool is_dead(const struct part *p) {
  const struct remix *const old = part_remix(p), *const young = part_young(p);
  return old && old->nr_keys == 0 && (!young || young->nr_keys == 0);
}

// Adds a partition, with so many bytes of new data. whole: the round writes it as a whole in any case. Returns false if
// it does not belong to the group.
static bool group_add(struct group *g, const struct compact *c, const struct part *p, uint64_t fresh, bool whole) {
  const uint64_t bytes = plan_live_bytes(c, p) + fresh, reads = plan_part_bytes(p);
  if (part_is_left(p, g->now) || g->bytes + bytes > g->room || g->reads + reads > JOIN_READ * table_bytes(c))
    return false;
  g->nr++;
  g->bytes += bytes;
  g->reads += reads;
  if (whole) return true;
  if (bytes > g->most) g->most = bytes;
  g->cost += bytes + reads;
  return true;
}

// J2
static bool worth(const struct group *g) {
  return (g->nr >= JOIN_LEAST && g->most <= g->bytes / 2) || g->nr >= JOIN_MANY;
}

// ---- jobs

// A split means that the partition is large.
static bool may_join(const struct job *j) {
  return j->kind != COMPACT_SPLIT && !j->upto && !j->append && !j->gone && j->nr_parts == 1;
}

// The largest group worth a join that begins with job `at`. nr 0: there is none.
static struct group group_of(const struct round *r, uint32_t share, uint32_t at, uint32_t end) {
  struct group g = group_none(r->c, share, r->now), best = g;
  for (; at < end && may_join(&r->jobs[at]); at++) {
    const struct job *const j = &r->jobs[at];
    if (!group_add(&g, r->c, old_part(j), j->bytes, j->all && !plan_may_abort(j))) break;
    if (worth(&g)) best = g;
  }
  return best;
}

// Makes one job of nr jobs from `at` on.
static void join(struct round *r, uint32_t at, uint32_t nr, struct job *to) {
  struct job j = r->jobs[at];
  for (uint32_t i = at + 1; i < at + nr; i++) {
    const struct job *const more = &r->jobs[i];
    assert(more->part == j.part + j.nr_parts && more->nr_parts == 1);
    j.nr_parts++;
    j.bytes += more->bytes;
    j.apart += more->apart;
    j.count += more->count;
    j.hides += more->hides;
    if (more->seqs.max) seqs_add(&j.seqs, more->seqs.min, more->seqs.max);
  }
  j.joins = true;
  j.may_abort = j.dropped = j.garbage = false;
  j.scan_merge = r->scans;
  plan_all(&j);
  *to = j;
}

void join_dead(struct round *r) {
  if (join_share(r->c) == 0) return;
  for (uint32_t i = 0; i < r->nr_jobs; i++) {
    struct job *const j = &r->jobs[i];
    j->gone = j->kind == COMPACT_KEEP && !j->upto && is_dead(old_part(j));
  }
}

// The cost that the round may still spend on joins in a tree.
struct purse {
  uint64_t cost;
  uint32_t groups;
  bool any;
};

// A group that costs too much waits for a later round, and so do all behind it.
static bool spend(struct purse *p, const struct group *g) {
  if (p->any && g->cost > p->cost) p->groups = 0;
  if (p->groups == 0) return false;
  p->cost -= g->cost < p->cost ? g->cost : p->cost;
  p->groups--;
  p->any = true;
  return true;
}

// Moves a tree's jobs to `to`, and joins some. Returns the place behind them.
static uint32_t join_tree(struct round *r, struct round_tree *tree, uint32_t share, uint32_t to) {
  const uint32_t most = atomic_load_explicit(&r->c->scan_merge_parts, memory_order_relaxed);
  struct purse purse = {.cost = r->scans ? UINT64_MAX : JOIN_ROUND * (uint64_t)r->c->memtable_size,
                        .groups = r->scans ? most : UINT32_MAX};
  uint32_t at = tree->first_job;
  const uint32_t end = tree->end_job;
  assert(to <= at);
  tree->first_job = to;
  while (at < end) {
    struct group g = {.nr = 0};
    if (purse.groups) g = group_of(r, share, at, end);
    if (g.nr && spend(&purse, &g)) {
      join(r, at, g.nr, &r->jobs[to++]);
      at += g.nr;
    } else {
      r->jobs[to++] = r->jobs[at++];
    }
  }
  tree->end_job = to;
  return to;
}

void join_plan(struct round *r) {
  const uint32_t share = join_share(r->c);
  uint32_t to = 0;
  if (share == 0 || time_ns() < atomic_load_explicit(&r->c->extras_ns, memory_order_relaxed)) return;
  for (uint32_t i = 0; i < TREES; i++)
    if (round_has(r, i)) to = join_tree(r, &r->trees[i], share, to);
  r->nr_jobs = to;
}

// ---- whether one is due

bool join_due(const struct compact *c, const struct version *tree) {
  const uint32_t share = join_share(c);
  if (share == 0 || version_tree_away(tree)) return false;
  const uint64_t now = time_ns();
  const bool may = now >= atomic_load_explicit(&c->extras_ns, memory_order_relaxed);
  for (uint32_t i = 0; i < tree->nr_parts; i++) {
    struct group g = group_none(c, share, now);
    if (is_dead(tree->parts[i])) return true;
    for (uint32_t k = i; may && k < tree->nr_parts && !worth(&g); k++)
      if (!group_add(&g, c, tree->parts[k], 0, false)) break;
    if (worth(&g)) return true;
  }
  return false;
}
