// SPDX-License-Identifier: Apache-2.0
#include "compact/garbage.h"

#include <stdlib.h>

#include "compact/plan.h"

// A partition that may be merged for its garbage.
struct candidate {
  struct job *job;
  struct garbage g;
};

uint64_t garbage_most(size_t memtable, const struct garbage *all) {
  const uint64_t live = all->live, even = 30 * (uint64_t)memtable;  // with so much live data the two lines meet
  const uint64_t most = live < even ? live + live * 2 / 5 + (even - live) / 15 : live + live * 3 / 5 - even / 5;
  const uint64_t clean = all->files - all->garbage, least = clean + clean / 5;
  return most > least ? most : least;
}

static int worst_first(const void *a, const void *b) {
  const struct candidate *const x = a, *const y = b;
  // the share of garbage; cross products in floating point do not overflow
  const double gx = (double)x->g.garbage * (double)(y->g.live + 1), gy = (double)y->g.garbage * (double)(x->g.live + 1);
  return (gx < gy) - (gx > gy);
}

// The new records of a partition hide some of its live ones.
static void add_fresh(struct garbage *g, const struct fresh *f) {
  const uint64_t hidden = f->hides < g->keys ? f->hides : g->keys;
  const uint64_t bytes = g->keys ? (uint64_t)((double)g->live / (double)g->keys * (double)hidden) : 0;
  g->live -= bytes;
  g->garbage += bytes;
}

static bool may_merge(const struct job *j) { return !j->append && !j->upto && !j->all && part_remix(old_part(j)); }

// Adds the partitions of a tree that takes part: the sums of all, and those that may be merged. Returns how many these
// are.
static uint32_t add_tree(const struct round *r, const struct round_tree *tree, struct candidate *to,
                         struct garbage *sums) {
  uint32_t nr = 0;
  for (uint32_t i = tree->first_job; i < tree->end_job; i++) {
    struct job *const j = &r->jobs[i];
    sums->files += j->bytes;
    sums->live += j->bytes;
    if (j->append) continue;
    struct garbage g;
    garbage_of(old_part(j), &g);
    add_fresh(&g, &tree->fresh[j->part]);
    sums->files += g.files;
    sums->live += g.live;
    if (j->all) {
      sums->files -= g.garbage < g.files ? g.garbage : g.files;
      continue;
    }
    sums->garbage += g.garbage;
    if (may_merge(j)) to[nr++] = (struct candidate){j, g};
  }
  return nr;
}

// Makes the list of candidates, the worst first, and the sums over all partitions. *out: own memory.
static enum remixdb_status candidates(const struct round *r, const struct version *base, struct candidate **out,
                                      uint32_t *nr_out, struct garbage *sums) {
  *sums = (struct garbage){0};
  *nr_out = 0;
  *out = mem_alloc((r->nr_jobs + 1) * sizeof(**out));
  if (!*out) return REMIXDB_NOMEM;
  for (uint32_t i = 0; i < TREES; i++)
    if (round_has(r, i)) *nr_out += add_tree(r, &r->trees[i], *out + *nr_out, sums);
  if (base->spaces && !round_has(r, TREE_SPACES)) {
    struct garbage g;
    garbage_all(base->spaces, &g);
    sums->files += g.files;
    sums->live += g.live;
  }
  qsort(*out, *nr_out, sizeof(**out), worst_first);
  return REMIXDB_OK;
}

static bool enough(const struct compact *c, const struct garbage *all) {
  const uint64_t from = atomic_load_explicit(&c->garbage_from, memory_order_relaxed);
  return from && all->garbage >= from;
}

enum remixdb_status garbage_bound(struct round *r, const struct version *base) {
  struct candidate *list;
  struct garbage sums;
  uint32_t nr;
  const enum remixdb_status s = candidates(r, base, &list, &nr, &sums);
  if (s != REMIXDB_OK) return s;
  const uint64_t most = garbage_most(r->c->memtable_size, &sums);
  uint64_t left = GARBAGE_ROUND * (uint64_t)r->c->memtable_size;
  for (uint32_t i = 0; i < nr && sums.files > most && enough(r->c, &sums); i++) {
    const struct garbage *const g = &list[i].g;
    if (g->garbage < g->live / GARBAGE_LEAST) break;
    if (g->live > left && i) break;
    left -= g->live < left ? g->live : left;
    sums.files -= g->garbage < sums.files ? g->garbage : sums.files;
    sums.garbage -= g->garbage;
    list[i].job->may_abort = false;
    list[i].job->garbage = true;
    plan_all(list[i].job);
  }
  mem_free(list);
  return REMIXDB_OK;
}

bool garbage_due(const struct compact *c, const struct garbage *all) {
  return all->files > all->live + all->live / 5 && all->garbage > all->live / GARBAGE_REST &&
         all->garbage > c->memtable_size / GARBAGE_REST && enough(c, all);
}

enum remixdb_status garbage_plan_rest(struct round *r, const struct version *base) {
  struct candidate *list;
  struct garbage sums;
  uint32_t nr;
  const enum remixdb_status s = candidates(r, base, &list, &nr, &sums);
  if (s != REMIXDB_OK) return s;
  const uint32_t most = atomic_load_explicit(&r->c->scan_merge_parts, memory_order_relaxed);
  for (uint32_t i = 0; i < nr && i < most && garbage_due(r->c, &sums); i++) {
    const struct garbage *const g = &list[i].g;
    if (g->garbage <= g->live / GARBAGE_REST) break;
    sums.files -= g->garbage < sums.files ? g->garbage : sums.files;
    sums.garbage -= g->garbage;
    list[i].job->scan_merge = list[i].job->garbage = true;
    plan_all(list[i].job);
  }
  mem_free(list);
  return REMIXDB_OK;
}
