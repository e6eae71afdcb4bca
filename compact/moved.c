// SPDX-License-Identifier: Apache-2.0
#include "compact/moved.h"

#include <stdlib.h>

#include "compact/plan.h"

uint64_t moved_most(const struct compact *c, const struct version *store) {
  const uint64_t given = atomic_load_explicit(&c->moved_from, memory_order_relaxed);
  const struct budget *const b = c->ctx->budget;
  if (unlikely(given != 0)) return given;
  const uint64_t tables = version_table_bytes(store), floor = tables / MOVED_FLOOR;
  const uint64_t memory = b ? atomic_load_explicit(&b->indexes_most, memory_order_relaxed) / MOVED_MEMORY : UINT64_MAX;
  uint64_t most = tables / MOVED_PART < memory ? tables / MOVED_PART : memory;
  if (most < floor) most = floor;
  return most < MOVED_LEAST ? MOVED_LEAST : most;
}

static bool over(const struct compact *c, const struct version *store) {
  return unlikely(store->moves.nr > 0) && value_moves_memory(&store->moves) > moved_most(c, store) &&
         time_ns() >= atomic_load_explicit(&c->extras_ns, memory_order_relaxed);
}

// The bytes of moved values to which the tables of a partition refer, live or hidden. 0 also where a merge would not
// write new references (M2).
static uint64_t moved_of(const struct part *p, const struct version *store, uint64_t now) {
  uint64_t bytes = 0;
  if (part_is_away(p) || !part_remix(p) || part_is_left(p, now)) return 0;
  for (uint32_t r = 0; r < part_runs(p); r++) {
    const struct sst *const t = part_run(p, r);
    for (uint32_t k = 0; k < t->nr_apart; k++)
      if (value_moves_find(&store->moves, t->apart[k].file)) bytes += t->apart[k].bytes;
  }
  return bytes;
}

bool moved_due(const struct compact *c, const struct version *store, const struct version *tree) {
  if (!over(c, store)) return false;
  const uint64_t now = time_ns();
  bool any = false;
  for (uint32_t i = 0; i < tree->nr_parts && !any; i++) any = moved_of(tree->parts[i], store, now) > 0;
  return any;
}

struct candidate {
  struct job *job;
  uint64_t moved, tables;  // bytes
};

static int most_first(const void *a, const void *b) {
  const struct candidate *const x = a, *const y = b;
  // cross products in floating point do not overflow
  const double mx = (double)x->moved * (double)(y->tables + 1), my = (double)y->moved * (double)(x->tables + 1);
  return (mx < my) - (mx > my);
}

void moved_plan(struct round *r, const struct version *store) {
  if (!over(r->c, store)) return;
  struct candidate *const list = mem_array(r->nr_jobs + 1, sizeof(*list), 0);
  uint32_t nr = 0;
  if (!list) return;
  for (uint32_t i = 0; i < r->nr_jobs; i++) {
    struct job *const j = &r->jobs[i];
    if (j->nr_parts != 1 || j->all || j->append || j->upto || j->gone || j->cut != CUT_NONE) continue;
    const uint64_t moved = moved_of(old_part(j), store, r->now);
    if (moved) list[nr++] = (struct candidate){j, moved, plan_part_bytes(old_part(j))};
  }
  qsort(list, nr, sizeof(*list), most_first);
  const uint32_t most = r->scans ? atomic_load_explicit(&r->c->scan_merge_parts, memory_order_relaxed) : UINT32_MAX;
  uint64_t left = r->c->memtable_size;
  for (uint32_t i = 0; i < nr && i < most; i++) {
    struct job *const j = list[i].job;
    if (i > 0 && list[i].tables > left) break;
    left -= list[i].tables < left ? list[i].tables : left;
    j->scan_merge = r->scans;
    j->may_abort = false;
    j->moved = true;
    plan_all(j);
  }
  mem_free(list);
}
